"""Li et al. (2015), Table 1: probit regression on six UCI sets by ADF, SEP and EP.

    EPFAST_DATA=folder python -m bench li2015.table1 [--quick] [--only crabs sonar]   # about 8 min

Test error ("RMSE" in the paper: the numbers are error rates) and test log-likelihood per datum,
mean and standard error over random splits of 90 and 10 %.  The paper gives neither the splits
nor the preparation of the features nor the prior.  So several are tried: features standardised, in
[0, 1], or raw, and a constant column; prior N(0, v I) with v = 1 or 10; and for standardised ones
no constant, or half of the rows for training.  For each of these protocols the table says how far
its numbers are from the published ones, and on how many data sets the claims hold; the protocol
that fits best is then shown in full beside the paper, and the claims are judged on it, data set by
data set, by paired differences over the splits.  Being chosen by the published numbers, its
closeness to them says little; that the claims hold under the other protocols too says more.

The splits of one data set overlap, so that the standard errors (the paper's as well as ours) are
too small as statements on new data; as statements on the difference of methods on these data they
do.  Where a claim fails, is it EP or the posterior?  On a few splits the exact posterior is sampled
(Albert & Chib 1993), and the methods are judged by their distance from its test log-likelihood.

ADF is run once over the data, and iterated (10 passes), as in the paper's other experiments;
SEP with K = M = 1, shuffled, 50 sweeps, and its fixed point AEP.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

import epfast
from bench.lib import harness
from bench.lib.datasets import Raw, load_raw
from bench.lib.harness import Claim

Array = NDArray[np.float64]

NAMES = ("australian", "breast", "crabs", "ionosphere", "pima", "sonar")
METHODS = ("ADF", "ADF, 10 passes", "SEP", "AEP", "EP")
SPLITS = 20
SAME = 0.01  # nats: a smaller difference of log-likelihoods is none

# error and its standard error, log-likelihood and its standard error
PUBLISHED = {
    "australian": {
        "ADF": (0.328, 0.0127, -0.634, 0.010),
        "SEP": (0.325, 0.0135, -0.631, 0.009),
        "EP": (0.330, 0.0133, -0.631, 0.009),
    },
    "breast": {
        "ADF": (0.037, 0.0045, -0.100, 0.015),
        "SEP": (0.034, 0.0034, -0.094, 0.011),
        "EP": (0.034, 0.0039, -0.093, 0.011),
    },
    "crabs": {
        "ADF": (0.062, 0.0125, -0.290, 0.010),
        "SEP": (0.040, 0.0106, -0.177, 0.012),
        "EP": (0.048, 0.0117, -0.217, 0.011),
    },
    "ionosphere": {
        "ADF": (0.126, 0.0166, -0.373, 0.047),
        "SEP": (0.130, 0.0147, -0.336, 0.029),
        "EP": (0.131, 0.0149, -0.324, 0.028),
    },
    "pima": {
        "ADF": (0.242, 0.0093, -0.516, 0.013),
        "SEP": (0.244, 0.0098, -0.514, 0.012),
        "EP": (0.241, 0.0093, -0.513, 0.012),
    },
    "sonar": {
        "ADF": (0.198, 0.0208, -0.461, 0.053),
        "SEP": (0.198, 0.0217, -0.418, 0.021),
        "EP": (0.198, 0.0243, -0.415, 0.021),
    },
}


class Protocol(NamedTuple):
    """How the features are prepared, and the prior."""

    scaling: str  # "standard", "unit" or "raw"
    constant: bool
    prior: float
    share: float = 0.9  # of the rows for training

    def __str__(self) -> str:
        scaling = {"standard": "standardised", "unit": "in [0, 1]", "raw": "raw"}[self.scaling]
        return f"{scaling}, {'' if self.constant else 'no '}constant, v = {self.prior:g}" + (
            "" if self.share == 0.9 else f", {100 * self.share:.0f} % training"
        )

    def features(self, train: Array, test: Array) -> tuple[Array, Array]:
        """Scale by the training rows."""
        if self.scaling == "raw":
            shift, scale = np.zeros(train.shape[1]), np.ones(train.shape[1])
        elif self.scaling == "standard":
            shift, scale = train.mean(axis=0), train.std(axis=0)
        else:
            shift, scale = train.min(axis=0), np.ptp(train, axis=0)
        scale = np.where(scale > 0.0, scale, 1.0)
        parts = [(rows - shift) / scale for rows in (train, test)]
        if self.constant:
            parts = [np.column_stack([rows, np.ones(len(rows))]) for rows in parts]
        return parts[0], parts[1]


GRID = [
    *(
        Protocol(scaling, True, prior)
        for scaling, prior in itertools.product(("standard", "unit", "raw"), (1.0, 10.0))
    ),
    Protocol("standard", False, 1.0),
    Protocol("standard", True, 1.0, share=0.5),
]


def split(raw: Raw, protocol: Protocol, seed: int) -> tuple[Array, Array, Array, Array]:
    """Features and labels of the rows to train on, then of the others."""
    order = np.random.default_rng(seed).permutation(len(raw.y))
    train, test = np.split(order, [round(protocol.share * len(order))])
    X, X_test = protocol.features(raw.X[train], raw.X[test])
    return X, raw.y[train], X_test, raw.y[test]


def exact(raw: Raw, protocol: Protocol, seed: int, draws: int) -> float:
    """Test log-likelihood of the exact posterior on a split, by Gibbs sampling."""
    X, y, X_test, y_test = split(raw, protocol, seed)
    rng = np.random.default_rng([1993, seed])
    covariance = np.linalg.inv(X.T @ X + np.eye(X.shape[1]) / protocol.prior)
    root = np.linalg.cholesky(covariance)
    gain, theta = covariance @ X.T, np.zeros(X.shape[1])
    rows, total, kept = X_test * y_test[:, None], np.zeros(len(y_test)), 0
    for draw in range(draws):
        h = X @ theta
        # y (z - h) is standard normal above -y h
        beyond = special.ndtri_exp(np.log(rng.random(len(y))) + special.log_ndtr(y * h))
        theta = gain @ (h - y * beyond) + root @ rng.standard_normal(len(theta))
        if draw >= draws // 10 and draw % 5 == 0:
            total += special.ndtr(rows @ theta)
            kept += 1
    return float(np.log(total / kept).mean())


def scores(raw: Raw, protocol: Protocol, splits: int, full: bool) -> dict[str, Array]:
    """(splits, 2) error and test log-likelihood for every method; a failed fit is NaN.

    ``full`` is for the protocol that is shown: without it SEP and AEP take fewer sweeps.
    """
    out = {method: np.full((splits, 2), np.nan) for method in METHODS}
    for i in range(splits):
        X, y, X_test, y_test = split(raw, protocol, i)

        def fit(schedule: Any, start: Any = None, X: Array = X, y: Array = y) -> Any:
            return epfast.fit_linear(
                X,
                y,
                loss="probit",
                scheme="exact",
                posterior="full",
                batch_size=None,
                # a start of ADF brings its own
                prior_variance=protocol.prior if start is None else None,
                schedule=schedule,
                start=start,
            )

        def adf(passes: int, i: int = i, fit: Any = fit) -> Any:
            post = None
            for k in range(passes):
                post = fit(epfast.ADF(order="shuffled", seed=100 * i + k), post)
            return post

        sep = epfast.SEP(sweeps=50 if full else 15, tol=0.0, order="shuffled", seed=i)
        runs = {
            "ADF": lambda: adf(1),
            "ADF, 10 passes": lambda: adf(10),
            "SEP": lambda: fit(sep),  # noqa: B023  (called within the turn)
            "AEP": lambda: fit(epfast.AEP(sweeps=300 if full else 100, tol=1e-5)),
            "EP": lambda: fit(epfast.EP(sweeps=100, tol=1e-5)),
        }
        for method, task in runs.items():
            try:
                with warnings.catch_warnings():  # a run that does not settle is a result
                    warnings.simplefilter("ignore", epfast.ConvergenceWarning)
                    p = task().predict_proba(X_test)
            except (FloatingPointError, np.linalg.LinAlgError):
                continue
            hit = np.where(y_test > 0, p, 1.0 - p)
            out[method][i] = (hit < 0.5).mean(), np.log(np.maximum(hit, 1e-300)).mean()
    return out


def summary(values: Array) -> tuple[float, float]:
    """Mean and standard error over the splits."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


class Paired(NamedTuple):
    """The claim on one data set: differences of test log-likelihoods over the splits."""

    ep_adf: tuple[float, float]
    ep_sep: tuple[float, float]

    @property
    def beats_adf(self) -> bool:
        """EP is better than ADF by more than two standard errors."""
        return self.ep_adf[0] > 2 * self.ep_adf[1]

    @property
    def like_sep(self) -> bool:
        """SEP differs from EP by less than SAME, or by no more than two standard errors."""
        return abs(self.ep_sep[0]) <= max(SAME, 2 * self.ep_sep[1])


def paired(results: dict[str, Array], adf: str, sep: str = "SEP") -> Paired:
    ll = {method: values[:, 1] for method, values in results.items()}
    return Paired(summary(ll["EP"] - ll[adf]), summary(ll["EP"] - ll[sep]))


def distance(results: dict[str, dict[str, Array]]) -> tuple[float, float]:
    """Median size of (ours - published) in published standard errors: error, likelihood.

    A median, so that a data set that fits no protocol (Australian) does not decide. The paper does
    not say how often its ADF runs over the data: what is closer of the two counts.
    """
    found = []
    for adf in METHODS[:2]:
        z = np.array(
            [
                [
                    (summary(values[method][:, 0])[0] - row[0]) / row[1],
                    (summary(values[method][:, 1])[0] - row[2]) / row[3],
                ]
                for name, values in results.items()
                for method, row in zip((adf, "SEP", "EP"), PUBLISHED[name].values(), strict=True)
            ]
        )
        found.append(np.median(np.abs(z), axis=0))
    error, likelihood = min(found, key=sum)
    return float(error), float(likelihood)


# ------------------------------------------------------------------------------------- verdicts


def judge(results: dict[str, dict[str, Array]]) -> list[Claim]:
    """EP is like SEP, both better than ADF: on every data set, then altogether."""
    claims: list[Claim] = []
    ours: list[Paired] = []
    for name, values in results.items():
        found = {adf: paired(values, adf) for adf in METHODS[:2]}
        published = {method: row[2] for method, row in PUBLISHED[name].items()}
        parts = [found[adf].beats_adf for adf in METHODS[:2]]
        gap = published["EP"] - published["ADF"]
        ours.append(found["ADF, 10 passes"])
        claims.append(
            (
                name,
                "EP has a higher test log-likelihood than ADF",
                harness.in_part(parts),
                f"EP - ADF over the splits: {_difference(found['ADF'].ep_adf)} after one pass, "
                f"{_difference(found['ADF, 10 passes'].ep_adf)} after ten; published {gap:+.3f}",
            )
        )
        claims.append(
            (
                name,
                "SEP performs similarly to EP",
                found["ADF"].like_sep,
                f"EP - SEP: {_difference(found['ADF'].ep_sep)}, EP - AEP: "
                f"{_difference(paired(values, 'ADF', 'AEP').ep_sep)}; published "
                f"{published['EP'] - published['SEP']:+.3f}",
            )
        )
    one = [paired(values, "ADF").beats_adf for values in results.values()]
    ten = [pair.beats_adf for pair in ours]
    like = [pair.like_sep for pair in ours]
    means = {
        method: np.mean([summary(v[method][:, 0])[0] for v in results.values()])
        for method in METHODS
    }
    claims += [
        (
            "Table 1",
            "EP outperforms ADF in test log-likelihood on almost all data sets: ADF, one pass",
            sum(one) >= len(one) - len(one) // 6,
            f"on {sum(one)} of {len(one)}",
        ),
        (
            "Table 1",
            "EP outperforms ADF in test log-likelihood on almost all data sets: ADF iterated",
            sum(ten) >= len(ten) - len(ten) // 6,
            f"on {sum(ten)} of {len(ten)}",
        ),
        (
            "Table 1",
            "SEP performs similarly to EP",
            sum(like) == len(like),
            f"on {sum(like)} of {len(like)}",
        ),
        (
            "Table 1",
            "all methods capture a good posterior mean",
            max(means.values()) - min(means.values()) < 0.01,
            "test error, mean over the sets: "
            + ", ".join(f"{method} {value:.3f}" for method, value in means.items()),
        ),
    ]
    return claims


def _difference(pair: tuple[float, float]) -> str:
    return f"{pair[0]:+.4f} ± {pair[1]:.4f}"


def _pm(pair: tuple[float, float]) -> str:
    return f"{pair[0]:.3f}±{pair[1]:.3f}"


def published_rows(results: dict[str, dict[str, Array]]) -> list[dict[str, Any]]:
    """Table 1, the published number before ours."""
    rows = []
    for name, values in results.items():
        for method in METHODS:
            row = PUBLISHED[name].get(method.split(",")[0])
            error, likelihood = (summary(values[method][:, i]) for i in range(2))
            rows.append(
                {
                    "dataset": name,
                    "method": method,
                    "error_published": None if row is None else _pm((row[0], row[1])),
                    "error": _pm(error),
                    "loglik_published": None if row is None else _pm((row[2], row[3])),
                    "loglik": _pm(likelihood),
                    "loglik_away_in_published_se": None
                    if row is None
                    else (likelihood[0] - row[2]) / row[3],
                }
            )
    return rows


def against_exact(
    data: dict[str, Raw],
    protocol: Protocol,
    results: dict[str, dict[str, Array]],
    splits: int,
    draws: int,
) -> list[dict[str, Any]]:
    """Each method's test log-likelihood less the exact one on the first splits."""
    rows = []
    for name, raw in data.items():
        truth = np.array([exact(raw, protocol, i, draws) for i in range(splits)])
        gaps = {
            method: float((values[:splits, 1] - truth).mean())
            for method, values in results[name].items()
        }
        rows.append({"dataset": name, "exact": float(truth.mean()), "splits": splits} | gaps)
    return rows


def nearest_to_exact(reasons: list[dict[str, Any]]) -> Claim:
    """Whether EP predicts as the exact posterior does, where the claims hold and where not."""
    nearest = [min(METHODS, key=lambda method: abs(row[method])) for row in reasons]
    return (
        "ours",
        "EP predicts as the exact posterior does: where ADF is better, it is better than that",
        harness.in_part([abs(row["EP"]) < 0.005 for row in reasons]),
        "EP - exact: "
        + ", ".join(f"{row['dataset']} {row['EP']:+.4f}" for row in reasons)
        + "; nearest: "
        + ", ".join(nearest),
    )


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", choices=NAMES, nargs="*", default=NAMES, help="data sets")
    parser.add_argument("--splits", type=int, default=SPLITS, help="for the protocol shown")
    parser.add_argument("--grid-splits", type=int, default=6, help="for the protocols tried")


def run(options: argparse.Namespace) -> dict[str, Any]:
    few, splits = (2, 3) if options.quick else (options.grid_splits, options.splits)
    grid = GRID[:2] if options.quick else GRID
    data = {name: load_raw(name) for name in NAMES if name in options.only}
    tried = {
        protocol: {name: scores(raw, protocol, few, full=False) for name, raw in data.items()}
        for protocol in grid
    }
    sensitivity = []
    for protocol, results in tried.items():
        pairs = {adf: [paired(v, adf) for v in results.values()] for adf in METHODS[:2]}
        away = distance(results)
        sensitivity.append(
            {
                "protocol": str(protocol),
                "error_away": away[0],
                "loglik_away": away[1],
                "EP_above_ADF_1_pass": sum(p.ep_adf[0] > 0 for p in pairs["ADF"]),
                "EP_above_ADF_10_passes": sum(p.ep_adf[0] > 0 for p in pairs["ADF, 10 passes"]),
                "SEP_like_EP": sum(p.like_sep for p in pairs["ADF"]),
                "AEP_like_EP": sum(paired(v, "ADF", "AEP").like_sep for v in results.values()),
                **{f"{name}_EP": summary(v["EP"][:, 1])[0] for name, v in results.items()},
            }
        )
    harness.show(
        sensitivity,
        f"Protocols, {few} splits: distance from the published error and log-likelihood in its "
        "standard errors; on how many sets; EP's log-likelihood",
    )
    best = min(
        (p for p, row in zip(grid, sensitivity, strict=True) if np.isfinite(row["loglik_away"])),
        key=lambda p: sum(distance(tried[p])),
    )
    print(f"\nclosest to the published numbers, by which it is chosen: {best}")
    results = {name: scores(raw, best, splits, full=True) for name, raw in data.items()}
    rows = published_rows(results)
    harness.show(rows, f"Table 1, {splits} splits: {best}")
    reasons = against_exact(data, best, results, *((2, 2_000) if options.quick else (4, 20_000)))
    harness.show(
        reasons,
        "Test log-likelihood less that of the exact posterior, by Gibbs sampling: mean over splits",
    )
    claims = judge(results)
    claims.append(nearest_to_exact(reasons))
    return {
        "protocol": str(best),
        "claims": claims,
        "table": rows,
        "against_exact": reasons,
        "sensitivity": sensitivity,
    }

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
do.

ADF is run once over the data, and iterated (10 passes), as in the paper's other experiments;
SEP with K = M = 1, shuffled, 50 sweeps, and its fixed point AEP.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import epfast
from bench.li2015 import probit
from bench.lib import harness
from bench.lib.datasets import Raw, load_raw
from bench.lib.harness import Claim

Array = NDArray[np.float64]

ADFS = ("ADF", "ADF, 10 passes")
METHODS = (*ADFS, "SEP", "AEP", "EP")
SPLITS = 20
SAME = 0.01  # nats: a smaller difference of log-likelihoods is none

#: error and its standard error, log-likelihood and its standard error, by ADF, SEP and EP
PUBLISHED_TABLE = """
australian  .328 .0127 -.634 .010   .325 .0135 -.631 .009   .330 .0133 -.631 .009
breast      .037 .0045 -.100 .015   .034 .0034 -.094 .011   .034 .0039 -.093 .011
crabs       .062 .0125 -.290 .010   .040 .0106 -.177 .012   .048 .0117 -.217 .011
ionosphere  .126 .0166 -.373 .047   .130 .0147 -.336 .029   .131 .0149 -.324 .028
pima        .242 .0093 -.516 .013   .244 .0098 -.514 .012   .241 .0093 -.513 .012
sonar       .198 .0208 -.461 .053   .198 .0217 -.418 .021   .198 .0243 -.415 .021
"""
PUBLISHED = {
    name: dict(zip(("ADF", "SEP", "EP"), np.array(numbers, float).reshape(3, 4), strict=True))
    for name, *numbers in map(str.split, PUBLISHED_TABLE.strip().splitlines())
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


def scores(raw: Raw, protocol: Protocol, splits: int, full: bool) -> dict[str, Array]:
    """(splits, 2) error and test log-likelihood for every method; a failed fit is NaN.

    ``full`` is for the protocol that is shown: without it SEP and AEP take fewer sweeps.
    """
    out = {method: np.full((splits, 2), np.nan) for method in METHODS}
    for i in range(splits):
        X, y, X_test, y_test = split(raw, protocol, i)
        sep = epfast.SEP(sweeps=50 if full else 15, tol=0.0, order="shuffled", seed=i)
        fitted = partial(probit.fit, X, y, prior=protocol.prior)
        iterated = partial(probit.adf, X, y, seed=100 * i, prior=protocol.prior)
        runs = {
            "ADF": partial(iterated, 1),
            "ADF, 10 passes": partial(iterated, 10),
            "SEP": partial(fitted, sep),
            "AEP": partial(fitted, epfast.AEP(sweeps=300 if full else 100, tol=1e-5)),
            "EP": partial(fitted, epfast.EP(sweeps=100, tol=1e-5)),
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


def gap(values: dict[str, Array], method: str) -> tuple[float, float]:
    """Test log-likelihood of EP less that of a method: mean and standard error over the splits."""
    return summary(values["EP"][:, 1] - values[method][:, 1])


def beats(values: dict[str, Array], adf: str) -> bool:
    """Whether EP is better than ADF by more than two standard errors."""
    mean, error = gap(values, adf)
    return mean > 2 * error


def like_ep(values: dict[str, Array], sep: str) -> bool:
    """Whether SEP differs from EP by less than SAME, or by no more than two standard errors."""
    mean, error = gap(values, sep)
    return abs(mean) <= max(SAME, 2 * error)


def distance(results: dict[str, dict[str, Array]]) -> Array:
    """Median size of (ours - published) in published standard errors: error, likelihood.

    A median, so that a data set that fits no protocol (Australian) does not decide. The paper does
    not say how often its ADF runs over the data: what is closer of the two counts.
    """
    found = []
    for adf in ADFS:
        z = [
            (values[method].mean(axis=0) - row[::2]) / row[1::2]
            for name, values in results.items()
            for method, row in zip((adf, "SEP", "EP"), PUBLISHED[name].values(), strict=True)
        ]
        found.append(np.median(np.abs(z), axis=0))
    return min(found, key=sum)


# ------------------------------------------------------------------------------------- verdicts


def judge(results: dict[str, dict[str, Array]]) -> list[Claim]:
    """EP is like SEP, both better than ADF: on every data set, then altogether."""
    claims: list[Claim] = []
    for name, values in results.items():
        published = {method: row[2] for method, row in PUBLISHED[name].items()}
        gaps = {method: "{:+.4f} ± {:.4f}".format(*gap(values, method)) for method in METHODS}
        claims += [
            (
                name,
                "EP has a higher test log-likelihood than ADF",
                harness.in_part([beats(values, adf) for adf in ADFS]),
                f"EP - ADF over the splits: {gaps[ADFS[0]]} after one pass, {gaps[ADFS[1]]} after "
                f"ten; published {published['EP'] - published['ADF']:+.3f}",
            ),
            (
                name,
                "SEP performs similarly to EP",
                like_ep(values, "SEP"),
                f"EP - SEP: {gaps['SEP']}, EP - AEP: {gaps['AEP']}; published "
                f"{published['EP'] - published['SEP']:+.3f}",
            ),
        ]
    sets = results.values()
    for adf, how in zip(ADFS, ("ADF, one pass", "ADF iterated"), strict=True):
        better = [beats(values, adf) for values in sets]
        claim = f"EP outperforms ADF in test log-likelihood on almost all data sets: {how}"
        holds = sum(better) >= len(better) - len(better) // 6
        claims.append(("Table 1", claim, holds, f"on {sum(better)} of {len(better)}"))
    like = [like_ep(values, "SEP") for values in sets]
    said = f"on {sum(like)} of {len(like)}"
    claims.append(("Table 1", "SEP performs similarly to EP", all(like), said))
    means = {m: float(np.mean([values[m][:, 0].mean() for values in sets])) for m in METHODS}
    said = ", ".join(f"{method} {value:.3f}" for method, value in means.items())
    holds = max(means.values()) - min(means.values()) < 0.01
    claim = "all methods capture a good posterior mean"
    claims.append(("Table 1", claim, holds, f"test error, mean over the sets: {said}"))
    return claims


def published_rows(results: dict[str, dict[str, Array]]) -> list[dict[str, Any]]:
    """Table 1, the published number before ours."""
    rows = []
    for name, method in itertools.product(results, METHODS):
        row = PUBLISHED[name].get(method.split(",")[0], [None] * 4)
        error, likelihood = map(summary, results[name][method].T)
        rows.append(
            {
                "dataset": name,
                "method": method,
                "error_published": _pm(*row[:2]),
                "error": _pm(*error),
                "loglik_published": _pm(*row[2:]),
                "loglik": _pm(*likelihood),
                "loglik_away_in_published_se": (
                    None if row[2] is None else (likelihood[0] - row[2]) / row[3]
                ),
            }
        )
    return rows


def _pm(mean: float | None, error: float | None) -> str | None:
    return None if mean is None else f"{mean:.3f}±{error:.3f}"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--only", choices=PUBLISHED, nargs="*", default=list(PUBLISHED), help="data sets"
    )
    parser.add_argument("--splits", type=int, default=SPLITS, help="for the protocol shown")
    parser.add_argument("--grid-splits", type=int, default=6, help="for the protocols tried")


def run(options: argparse.Namespace) -> dict[str, Any]:
    few, splits = (2, 3) if options.quick else (options.grid_splits, options.splits)
    grid = GRID[:2] if options.quick else GRID
    data = {name: load_raw(name) for name in PUBLISHED if name in options.only}
    tried = {
        protocol: {name: scores(raw, protocol, few, full=False) for name, raw in data.items()}
        for protocol in grid
    }
    sensitivity = []
    for protocol, results in tried.items():
        away, sets = distance(results), results.values()
        sensitivity.append(
            {
                "protocol": str(protocol),
                "error_away": away[0],
                "loglik_away": away[1],
                "EP_above_ADF_1_pass": sum(gap(v, ADFS[0])[0] > 0 for v in sets),
                "EP_above_ADF_10_passes": sum(gap(v, ADFS[1])[0] > 0 for v in sets),
                "SEP_like_EP": sum(like_ep(v, "SEP") for v in sets),
                "AEP_like_EP": sum(like_ep(v, "AEP") for v in sets),
                **{f"{name}_EP": summary(v["EP"][:, 1])[0] for name, v in results.items()},
            }
        )
    harness.show(
        sensitivity,
        f"Protocols, {few} splits: distance from the published error and log-likelihood in its "
        "standard errors; on how many sets; EP's log-likelihood",
    )
    finite = [p for p in grid if np.isfinite(distance(tried[p])[1])]
    best = min(finite, key=lambda p: sum(distance(tried[p])))
    print(f"\nclosest to the published numbers, by which it is chosen: {best}")
    results = {name: scores(raw, best, splits, full=True) for name, raw in data.items()}
    rows = harness.show(published_rows(results), f"Table 1, {splits} splits: {best}")
    return {
        "protocol": str(best),
        "claims": judge(results),
        "table": rows,
        "sensitivity": sensitivity,
    }

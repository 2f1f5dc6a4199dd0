"""Li et al. (2015), section 5.2: clustering by a mixture of Gaussians, ADF, SEP and EP.

    python -m bench mixture [--quick]          # about 3 min; needs no data

N = 200 rows in 4 dimensions from J = 4 components, noise 0.5 and uniform weights known, 200 passes,
as the authors have it; they print pictures alone. Here the true means are N(0, 4 I), and the prior
of each mean is N(m_j, 10 I), m_j the true mean and a normal of variance 1/4. The truth is Gibbs
sampling from the prior means on, two chains, whose difference tells its error. The error of a
method is the Frobenius norm of its difference from the truth, averaged over components, for means
and for covariances; over the passes; medians over the data sets. Where components come near each
other ("near") there are several solutions, and chains and methods may end in different ones: the
sets are told apart by the least distance of two true means.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

import epfast
from bench.lib import harness
from bench.lib.harness import Claim
from bench.lib.pictures import picture

N, J, D, NOISE, PRIOR = 200, 4, 4, 0.25, 10.0
#: least distance of two true means of a separated set, in standard deviations of the noise
SEPARATED = 5.0
METHODS: dict[str, Any] = {
    "EP": partial(epfast.EP, tol=0.0),
    "SEP, in order": partial(epfast.SEP, tol=0.0),
    "SEP, shuffled": partial(epfast.SEP, tol=0.0, order="shuffled"),
    "SEP, shuffled, damping 0.1": partial(epfast.SEP, tol=0.0, order="shuffled", damping=0.1),
    "AEP (fixed point of SEP)": partial(epfast.AEP, tol=0.0, damping=0.5),
    "ADF": epfast.ADF,
}
#: those of a shared site
SEPS = [method for method in METHODS if "SEP" in method]
#: passes after which errors are taken
PASSES = (1, 2, 3, 5, 10, 20, 40, 100, 200)


class Data(NamedTuple):
    """Rows, their components, and the prior means of these."""

    X: NDArray[np.float64]
    label: NDArray[np.intp]
    prior_mean: NDArray[np.float64]
    #: least distance of two components, in standard deviations of the noise
    apart: float


class Truth(NamedTuple):
    """Moments of the posterior by two chains."""

    mean: NDArray[np.float64]
    covariance: NDArray[np.float64]
    #: half of the difference of two chains, as an error is measured
    error: tuple[float, float]


def simulate(seed: int) -> Data:
    rng = np.random.default_rng(seed)
    mean = 2.0 * rng.standard_normal((J, D))
    label = rng.integers(J, size=N)
    X = mean[label] + np.sqrt(NOISE) * rng.standard_normal((N, D))
    gaps = np.linalg.norm(mean[:, None] - mean, axis=2) + np.where(np.eye(J) > 0, np.inf, 0.0)
    return Data(
        X, label, mean + 0.5 * rng.standard_normal((J, D)), float(gaps.min() / np.sqrt(NOISE))
    )


def chain(data: Data, draws: int, seed: int) -> tuple[Any, Any]:
    """Mean and covariance of the means of the components, by one chain of Gibbs sampling."""
    rng = np.random.default_rng(seed)
    mu, total, square = data.prior_mean.copy(), np.zeros((J, D)), np.zeros((J, D, D))
    burn = draws // 10
    for step in range(burn + draws):
        logs = -0.5 / NOISE * ((data.X[:, None] - mu) ** 2).sum(axis=2)
        label = (logs + rng.gumbel(size=logs.shape)).argmax(axis=1)
        own = np.eye(J)[label]
        precision = 1.0 / PRIOR + own.sum(axis=0)[:, None] / NOISE
        center = (data.prior_mean / PRIOR + own.T @ data.X / NOISE) / precision
        mu = center + rng.standard_normal((J, D)) / np.sqrt(precision)
        if step >= burn:
            total += mu
            square += mu[:, :, None] * mu[:, None, :]
    mean = total / draws
    return mean, square / draws - mean[:, :, None] * mean[:, None, :]


def distance(one: tuple[Any, Any], two: tuple[Any, Any]) -> tuple[float, float]:
    mean = np.linalg.norm(one[0] - two[0], axis=1).mean()
    return float(mean), float(np.linalg.norm(one[1] - two[1], axis=(1, 2)).mean())


def truth_of(data: Data, draws: int, seed: int) -> Truth:
    one, two = (chain(data, draws, 2 * seed + k) for k in (0, 1))
    apart = distance(one, two)
    both = (0.5 * (a + b) for a, b in zip(one, two, strict=True))
    return Truth(*both, (0.5 * apart[0], 0.5 * apart[1]))


def fit(data: Data, schedule: Any, start: Any = None) -> Any:
    weights = np.full(J, 1.0 / J)
    given = {"prior_mean": data.prior_mean, "prior_variance": PRIOR, "weights": weights}
    with warnings.catch_warnings():  # a run that does not settle is a result
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        return epfast.fit_mixture(data.X, J, NOISE, schedule=schedule, start=start, **given)


def curve(data: Data, truth: Truth, method: str, passes: tuple[int, ...]) -> list[dict[str, Any]]:
    """Errors over the passes; a fit goes on from where it was, to the bit."""
    post, done, found, refused = None, 0, [], 0
    for count in passes:
        post = fit(data, METHODS[method](count - done), post)
        done, refused = count, refused + post.n_refused
        mean, covariance = distance((post.mean, post.covariance), (truth.mean, truth.covariance))
        found.append(
            {
                "method": method,
                "passes": count,
                "mean_error": mean,
                "covariance_error": covariance,
                "size": float(np.linalg.norm(post.covariance, axis=(1, 2)).mean()),
                "n_refused": refused,
            }
        )
    return found


def medians(rows: list[dict[str, Any]], method: str, passes: int, separated: bool) -> Any:
    """Medians over the data sets, and their number."""
    mine = [
        row
        for row in rows
        if (row["method"], row["passes"], row["separated"]) == (method, passes, separated)
    ]
    names = ("mean_error", "covariance_error", "size", "n_refused")
    return len(mine), {name: float(np.median([row[name] for row in mine])) for name in names}


def judge(rows: list[dict[str, Any]], last: int) -> list[Claim]:
    def at(method: str, name: str, passes: int = last) -> float:
        return medians(rows, method, passes, True)[1][name]

    ep, damped = at("EP", "mean_error"), at("SEP, shuffled, damping 0.1", "mean_error")
    return [
        (
            "ours",
            "EP is near the truth on separated sets: mean within 0.01, covariance within 0.001",
            ep < 0.01 and at("EP", "covariance_error") < 0.001,
            f"median error of means {ep:.4f}, of covariances {at('EP', 'covariance_error'):.5f}",
        ),
        (
            "5.2",
            "SEP is like EP: damped by 0.1, means within 0.02",
            damped < 0.02,
            f"median error of means: EP {ep:.4f}; SEP "
            + ", ".join(
                f"{method.removeprefix('SEP, ')} {at(method, 'mean_error'):.4f}" for method in SEPS
            ),
        ),
        (
            "5.2",
            "ADF collapses to a point",
            at("ADF", "size") < 0.1 * at("EP", "size"),
            f"norm of the covariance after 1, {last} passes: {at('ADF', 'size', 1):.4f}, "
            f"{at('ADF', 'size'):.6f}; of EP {at('EP', 'size'):.4f}",
        ),
    ]


def draw(stored: dict[str, Any], folder: Path) -> None:
    """Figure 4b: errors over the passes, medians over the separated sets; and figure 4a."""
    rows = stored["errors"]
    with picture(folder / "li2015_mixture.png", 2, size=(4.6, 3.8)) as axes:
        for axis, name in zip(axes, ("mean_error", "covariance_error"), strict=True):
            for method in METHODS:
                mine = [r for r in rows if r["method"] == method and r["separated"]]
                passes = sorted({r["passes"] for r in mine})
                values = [np.median([r[name] for r in mine if r["passes"] == k]) for k in passes]
                axis.loglog(passes, values, "o-", ms=4, label=method)
            axis.set(xlabel="passes", title=f"error of {name[:-6]}s")
        axes[0].legend()
    draw_clusters(folder / "li2015_mixture_clusters.png", max(r["passes"] for r in rows))


def draw_clusters(path: Path, passes: int) -> None:
    """Two of the four dimensions of a set: rows by component, and 98 % of each posterior."""
    data = next(found for found in map(simulate, itertools.count()) if found.apart >= SEPARATED)
    radius = np.sqrt(stats.chi2.ppf(0.98, 2))
    circle = radius * np.stack([f(np.linspace(0.0, 2.0 * np.pi, 61)) for f in (np.cos, np.sin)])
    with picture(path, 2, 2, sharex=True, sharey=True) as axes:
        for axis, method in zip(axes, ("truth", "EP", SEPS[2], "ADF"), strict=True):
            post = None if method == "truth" else fit(data, METHODS[method](passes))
            label = data.label if post is None else post.predict(data.X)
            for j in range(J):
                axis.plot(*data.X[label == j, :2].T, ".", ms=3, color=f"C{j}")
                if post is not None:
                    root = np.linalg.cholesky(post.covariance[j, :2, :2])
                    ends = post.mean[j, :2, None] + root @ circle
                    axis.plot(*ends, color="black", lw=1.0)
            axis.set_title("true components" if post is None else method)


def run(options: argparse.Namespace) -> dict[str, Any]:
    sets, draws = (2, 1000) if options.quick else (10, 20_000)
    passes = PASSES[:6] if options.quick else PASSES
    rows, truths = [], []
    for seed in range(sets):
        data = simulate(seed)
        truth = truth_of(data, draws, seed)
        separated = data.apart >= SEPARATED
        mean, covariance = truth.error
        of_truth = {"mean_error": mean, "covariance_error": covariance}
        truths.append({"set": seed, "apart": data.apart} | of_truth)
        for method in METHODS:
            for row in curve(data, truth, method, passes):
                rows.append({"set": seed, "separated": separated, **row})
    last = passes[-1]
    for which in {row["separated"] for row in rows}:
        title = "separated sets" if which else "sets with near components"
        lines = []
        for method, count in itertools.product(METHODS, (1, 10, last)):
            number, values = medians(rows, method, count, which)
            lines.append({"method": method, "passes": count, "sets": number} | values)
        harness.show(lines, f"Medians over {title}")
    return {"claims": judge(rows, last), "errors": rows, "truth": truths}

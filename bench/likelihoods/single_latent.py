"""Likelihoods of one latent value: evidence on data beside the published, Student-t, ns per site.

    EPFAST_DATA=folder python -m bench single_latent [--quick] [--only 1 2 3]     # about 1 min

1. Log evidence of EP on data (columns standardised, an intercept, prior variance 10) beside the
   published number of EP and of importance sampling, and beside a check of this fit: its own
   importance sampling, the largest shift of a mean in posterior standard deviations, and the
   largest factor of a standard deviation. Sweeps and seconds by the default order.
2. Student's t on Boston by order and damping: sweeps (capped at 60), sites that are negative, and
   the outcome that was published; 100 draws of 12 points with 4 outliers 60 scales away.
3. Nanoseconds per site of the exact tilted moments, 4,096 sites, m ~ N(0, 1), by variance of the
   cavity; beside probit, the closed form that was there.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import norm

import epfast
from bench.lib import datasets, harness
from bench.lib.harness import Claim
from epfast import losses

PRIOR = 10.0
#: nats by which the log evidence may differ from the published
EVIDENCE = 0.002
DRAWS = 40_000
SITES = 4096


class Fit(NamedTuple):
    """A row of the table: data, likelihood, and the published log evidence of EP and truth."""

    name: str
    X: np.ndarray
    y: np.ndarray
    loss: losses.Loss
    ep: float
    truth: float


def _columns(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Standardised columns but the last, and the last as it is."""
    table = datasets.load_numbers(name)
    X = table[:, :-1]
    return (X - X.mean(axis=0)) / X.std(axis=0), table[:, -1]


def _with_ones(X: np.ndarray) -> np.ndarray:
    return np.column_stack([X, np.ones(len(X))])


def boston() -> tuple[np.ndarray, np.ndarray, float]:
    """Columns and a one, the standardised price, and the limit at which it is censored."""
    X, price = _columns("boston")
    center, scale = price.mean(), price.std()
    return _with_ones(X), (price - center) / scale, (50.0 - center) / scale


def fits() -> Iterator[Fit]:
    """The rows of the published table that have one latent value."""
    table = datasets.load_numbers("haberman")
    X = (table[:, :2] - table[:, :2].mean(axis=0)) / table[:, :2].std(axis=0)
    X, nodes = _with_ones(X), table[:, 2]
    yield Fit("Poisson, haberman", X, nodes, losses.Poisson(), -1637.0933, -1637.0937)
    loss: losses.Loss = losses.NegativeBinomial(0.5)
    yield Fit("negative binomial, haberman", X, nodes, loss, -716.7013, -716.6999)
    X, quality = _columns("wine_quality_red")
    classes = np.unique(quality, return_inverse=True)[1]
    shares = np.cumsum(np.bincount(classes))[:-1] / len(classes)
    loss = losses.Ordinal(tuple(1.3 * norm.ppf(shares)))
    yield Fit("ordinal probit, wine", X, classes, loss, -1597.7158, -1597.7135)
    X, y, limit = boston()
    loss = losses.Censored(0.25, upper=limit)
    yield Fit("tobit, boston", X, y, loss, -470.0129, -470.0112)
    yield Fit("Student-t 4, .3, boston", X, y, losses.StudentT(4.0, 0.3), -371.8425, -371.8400)
    yield Fit("Student-t 4, .2, boston", X, y, losses.StudentT(4.0, 0.2), -433.9948, -433.9864)


def evidence(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Claim]]:
    rows = []
    for fit in fits():
        given = {"loss": fit.loss, "prior_variance": PRIOR}
        post, seconds = harness.timed(
            lambda fit=fit, given=given: epfast.fit_linear(fit.X, fit.y, **given)
        )
        check = post.check(1000 if options.quick else DRAWS)
        rows.append(
            {
                "fit": fit.name,
                "EP": post.log_evidence,
                "published": fit.ep,
                "sampled": check.log_evidence,
                "truth, published": fit.truth,
                "shift, sd": check.shift,
                "sd factor": check.sd_factor,
                "sweeps": post.n_sweeps,
                "ms": 1e3 * seconds,
            }
        )
    harness.table(list(rows[0]), [list(row.values()) for row in rows], "Log evidence")
    worst = max(abs(row["EP"] - row["published"]) for row in rows)
    claim = f"log evidence of EP within {EVIDENCE} of the published"
    return rows, [("1", claim, worst <= EVIDENCE, f"largest difference {worst:.5f}")]


#: degrees of freedom, squared scale; published outcomes: parallel, damped by half, sequential
STUDENT = {
    (4.0, 0.09): ("12 sweeps", "32", "9", 75),
    (4.0, 0.01): ("improper at 3", "35", "9", 245),
    (2.0, 0.01): ("17", "38", "10", 291),
    (1.0, 0.0025): ("improper at 3", "improper at 16", "not in 60", 384),
}
ORDERS: tuple[dict[str, Any], ...] = (
    {"order": "parallel", "damping": 1.0},
    {"order": "parallel", "damping": 0.5},
    {"order": "auto"},
)


def _student(X: np.ndarray, y: np.ndarray, loss: losses.Loss, **given: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schedule = epfast.EP(**given)
        return epfast.fit_linear(X, y, loss=loss, prior_variance=PRIOR, schedule=schedule)


def student(options: argparse.Namespace) -> tuple[dict[str, Any], list[Claim]]:
    X, y, _ = boston()
    rows, settled = [], []
    for (df, square), (*published, negative) in STUDENT.items():
        row: list[Any] = [f"{df:g}, {square:g}"]
        for order, theirs in zip(ORDERS, published, strict=True):
            post = _student(X, y, losses.StudentT(df, square**0.5), sweeps=60, **order)
            how = f"{post.n_sweeps}" if post.converged else "not in 60"
            row.append(f"{how} ({theirs})")
        row.append(f"{int((post.sites.precision < 0.0).sum())} ({negative})")
        settled.append(post.converged)
        rows.append(row)
    names = ["df, scale^2", "parallel", "damping .5", "default", "negative sites"]
    harness.table(names, rows, "Student-t on Boston: sweeps, ours (published)")
    trials = 10 if options.quick else 100
    lost = dict.fromkeys(("parallel", "damping .5", "damping .2", "default"), 0)
    for seed in range(trials):
        rng = np.random.default_rng(seed)
        Z = np.column_stack([rng.normal(size=12), np.ones(12)])
        t = Z @ rng.normal(size=2) + 0.1 * rng.normal(size=12)
        t[rng.choice(12, 4, replace=False)] += 6.0 * rng.choice([-1.0, 1.0], 4)
        for name in lost:
            given: dict[str, Any] = {"sweeps": 300}
            if name != "default":
                damping = 1.0 if name == "parallel" else float(name.split()[1])
                given |= {"order": "parallel", "damping": damping}
            lost[name] += not _student(Z, t, losses.StudentT(2.0, 0.1), **given).converged
    title = f"12 points, 4 outliers: not converged of {trials}"
    harness.table(list(lost), [list(lost.values())], title)
    wanted = settled == [True, True, True, False]
    claims: list[Claim] = [
        ("2", "the default order settles where sequential sweeps are published to", wanted, ""),
    ]
    return {"boston": rows, "outliers": lost}, claims


#: nanoseconds per site to reach
CLOSED, QUADRATURE, MIXTURE = 30.0, 250.0, 600.0


def speed(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Claim]]:
    rng, n = np.random.default_rng(0), SITES
    real, counts = rng.normal(size=n), rng.poisson(3.0, n)
    times, classes = np.exp(real), rng.integers(0, 4, n)
    cuts, seen = (-1.0, 0.0, 1.0), rng.integers(0, 2, n)
    ends = np.column_stack([real, real + rng.exponential(size=n)])
    cases: dict[str, tuple[losses.Loss, np.ndarray, float]] = {
        "probit": (losses.Probit(), np.sign(real), CLOSED),
        "gaussian": (losses.Gaussian(0.3), real, CLOSED),
        "laplace": (losses.LaplaceNoise(0.5), real, CLOSED),
        "quantile": (losses.Quantile(0.9, 0.5), real, CLOSED),
        "interval": (losses.Interval(0.3), ends, CLOSED),
        "censored": (losses.Censored(0.3, upper=0.5), real, CLOSED),
        "ordinal probit": (losses.Ordinal(cuts), classes, CLOSED),
        "ordinal logit": (losses.Ordinal(cuts, "logit"), classes, QUADRATURE),
        "poisson": (losses.Poisson(), counts, QUADRATURE),
        "negative binomial": (losses.NegativeBinomial(2.0), counts, QUADRATURE),
        "gamma": (losses.GammaNoise(2.0), times, QUADRATURE),
        "gamma, censored": (
            *(losses.GammaNoise(2.0), np.column_stack([times, np.zeros(n)])),
            QUADRATURE,
        ),
        "weibull": (losses.Weibull(2.0), np.column_stack([times, seen]), QUADRATURE),
        "student-t 4": (losses.StudentT(4.0, 0.3), real, MIXTURE),
        "student-t 2": (losses.StudentT(2.0, 0.1), real, MIXTURE),
    }
    variances = (0.05, 0.5, 5.0)
    m, out, tasks = rng.normal(size=n), np.empty((3, n)), {}
    for name, (loss, y, _) in cases.items():
        for v in variances:
            moments = loss.tilted()
            given = (loss.responses("y", y, n), m, np.full(n, v), np.ones(n), *out)
            tasks[name, v] = lambda moments=moments, given=given: moments.many(*given)
    found = harness.interleave(tasks, 3 if options.quick else 9, 0.01)
    rows = []
    for name, (_, _, goal) in cases.items():
        row: dict[str, Any] = {"loss": name}
        row |= {f"v = {v:g}": 1e9 * found[name, v].median / n for v in variances}
        rows.append(row | {"to reach": goal})
    harness.table(list(rows[0]), [list(row.values()) for row in rows], "ns per site")
    slow = [row["loss"] for row in rows if row["v = 0.05"] > row["to reach"]]
    evidence = f"slower: {', '.join(slow)}" if slow else ""
    return rows, [("3", "ns per site to reach, at a variance of .05", not slow, evidence)]


PARTS = {1: ("evidence", evidence), 2: ("student", student), 3: ("speed", speed)}


def arguments(parser: argparse.ArgumentParser) -> None:
    harness.choose_parts(parser, PARTS)


def run(options: argparse.Namespace) -> dict[str, Any]:
    return harness.run_parts(options, PARTS)

"""Regression of counts and ordered classes beside point estimates, and a million rows; one thread.

    python -m bench counts [--quick] [--only 1 2]            # 1 min; needs no data

1. 32,561 standard normal rows of 20 columns, one of them constant: seconds of ``fit_linear`` to its
   default tolerance, for Poisson and for five ordered classes (probit, logit), over those of L-BFGS
   (SciPy, default tolerances) on the same posterior, from 0, with the gradient in NumPy, and of
   scikit-learn's PoissonRegressor by both of its solvers. All run in this process, turn by turn.
   How far the means are apart, in posterior standard deviations.
2. 1,000,000 such rows, Poisson: seconds of eight sweeps.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy import optimize, special

import epfast
from bench.lib import harness
from bench.lib.harness import Claim
from bench.speed.linear_task import fastest, ratio, rounds
from epfast import losses

ROWS, COLUMNS = 32_561, 20
MANY_ROWS, MANY_SWEEPS, MOST_SECONDS = 1_000_000, 8, 2.0
PRIOR = 100.0
CUTS = (-1.5, -0.5, 0.5, 1.5)
#: times the seconds of the point estimate
MOST = 3.0

Objective = Callable[[np.ndarray], tuple[float, np.ndarray]]


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.random.Generator]:
    """Columns, of which the last is 1, their linear predictor, and the generator."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, COLUMNS))
    X[:, -1] = 1.0
    weights = 0.3 * rng.normal(size=COLUMNS)
    weights[-1] = 0.5
    return X, X @ weights, rng


def of_counts(X: np.ndarray, y: np.ndarray) -> Objective:
    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        h = X @ theta
        mean = np.exp(h)
        value = mean.sum() - y @ h + 0.5 * theta @ theta / PRIOR
        return value, (mean - y) @ X + theta / PRIOR

    return objective


def of_classes(X: np.ndarray, y: np.ndarray, link: str) -> Objective:
    ends = np.array([-np.inf, *CUTS, np.inf])
    lower, upper = ends[y], ends[y + 1]

    def objective(theta: np.ndarray) -> tuple[float, np.ndarray]:
        h = X @ theta
        below, above = lower - h, upper - h
        if link == "probit":
            mass = special.ndtr(above) - special.ndtr(below)
            density = [np.exp(-0.5 * z * z) / np.sqrt(2.0 * np.pi) for z in (below, above)]
        else:
            at = special.expit(below), special.expit(above)
            mass, density = at[1] - at[0], [p * (1.0 - p) for p in at]
        slope = (density[1] - density[0]) / mass
        return -np.log(mass).sum() + 0.5 * theta @ theta / PRIOR, slope @ X + theta / PRIOR

    return objective


def mode(objective: Objective) -> np.ndarray:
    start = np.zeros(COLUMNS)
    found = optimize.minimize(objective, start, jac=True, method="L-BFGS-B")
    return np.asarray(found.x)


def against_points(options: argparse.Namespace, n: int) -> tuple[dict[str, Any], list[Claim]]:
    """Seconds of fits and of point estimates."""
    from sklearn.linear_model import PoissonRegressor

    X, h, rng = rows(n, 0)
    counts = rng.poisson(np.exp(h))
    noise = {"probit": rng.normal(size=n), "logit": rng.logistic(size=n)}
    cases: dict[str, tuple[Any, np.ndarray, Objective]] = {
        "Poisson": (losses.Poisson(), counts, of_counts(X, counts.astype(float)))
    }
    for link, e in noise.items():
        y = np.searchsorted(CUTS, h + e)
        cases[f"ordinal {link}"] = losses.Ordinal(CUTS, link), y, of_classes(X, y, link)
    cells: list[tuple[Any, ...]] = []
    goals: list[Claim] = []
    stored: dict[str, list[float]] = {}
    for name, (loss, y, objective) in cases.items():
        fit = partial(epfast.fit_linear, X, y, loss=loss, prior_variance=PRIOR)
        tasks: dict[str, Callable[[], object]] = {"fit": fit, "L-BFGS": partial(mode, objective)}
        if name == "Poisson":
            for solver in ("lbfgs", "newton-cholesky"):
                rival = PoissonRegressor(
                    alpha=1.0 / (PRIOR * n), fit_intercept=False, solver=solver, max_iter=1000
                )
                tasks[f"PoissonRegressor, {solver}"] = partial(rival.fit, X, counts)
        timed = harness.interleave(tasks, **rounds(options))
        post = fit()
        sd = np.sqrt(np.diag(post.covariance))
        apart = float(np.abs((post.mean - mode(objective)) / sd).max())
        for rival_name in list(tasks)[1:]:
            over = timed["fit"].over(timed[rival_name])
            least = fastest(timed["fit"], timed[rival_name])
            milliseconds = 1e3 * timed["fit"].median, 1e3 * timed[rival_name].median
            cells.append(
                (name, rival_name, post.n_sweeps, *milliseconds, ratio(over), least, apart)
            )
            stored[f"{name}, {rival_name}"] = [*milliseconds, over.median, least]
        least = fastest(timed["fit"], timed["L-BFGS"])
        goals.append(
            (f"1. {name}", f"at most {MOST:g} of L-BFGS", least <= MOST, f"fastest {least:.2f}")
        )
    harness.table(
        ["likelihood", "rival", "sweeps", "fit, ms", "rival, ms", "ratio", "fastest", "apart, sd"],
        cells,
        f"1. {n} x {COLUMNS} rows, fits over point estimates",
    )
    return {"over": stored}, goals


def many(options: argparse.Namespace, n: int) -> tuple[dict[str, Any], list[Claim]]:
    """Seconds of eight sweeps over many rows."""
    X, h, rng = rows(n, 1)
    y = rng.poisson(np.exp(h))
    # a tolerance that is not met: all sweeps are made
    schedule = epfast.EP(sweeps=MANY_SWEEPS, tol=1e-300)
    seconds = [
        harness.timed(
            lambda: epfast.fit_linear(
                X, y, loss=losses.Poisson(), prior_variance=PRIOR, schedule=schedule
            )
        )[1]
        for _ in range(1 if options.quick else 3)
    ]
    _, default = harness.timed(
        lambda: epfast.fit_linear(X, y, loss=losses.Poisson(), prior_variance=PRIOR)
    )
    harness.table(
        ["rows", "8 sweeps, s", "to the default tolerance, s"],
        [(n, min(seconds), default)],
        "2. Poisson, many rows",
    )
    claim = f"{MANY_SWEEPS} sweeps in {MOST_SECONDS:g} s"
    found = f"{min(seconds):.2f} s"
    goals: list[Claim] = [("2. many rows", claim, min(seconds) <= MOST_SECONDS, found)]
    return {"seconds": seconds, "default": default}, goals


PARTS: dict[int, tuple[str, Callable[..., Any], int, int]] = {  # rows of a full and of a quick run
    1: ("against_points", against_points, ROWS, 4000),
    2: ("many", many, MANY_ROWS, 20_000),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    harness.choose_parts(parser, PARTS)


def run(options: argparse.Namespace) -> dict[str, Any]:
    return harness.run_parts(options, harness.sized(options, PARTS))

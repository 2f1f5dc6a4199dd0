"""Fits with several latent values per row beside one fit per class; ns per row and sweep.

    python -m bench latents [--quick] [--only 1 2]            # 2 min; needs no data

1. Classes drawn from multinomial probit: seconds of ``fit_linear`` to its default tolerance with
   ``Multiclass(correlated=True)`` and ``False``, over those of a probit fit per class against the
   rest, by rows, classes and columns; the same of predicted probabilities. Goals: where the default
   takes covariances, at most 10 times the seconds of the product.
2. Heteroscedastic noise, 20 columns of which one is 1: ns per row and sweep in sequential order,
   beside a plain NumPy visit of the same site (Gauss and Hermite's rule over the log variance, 64
   nodes, and two rank-one updates); the goal is a fifth of that.

All run in this process, turn by turn, on one thread.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from scipy import special

import epfast
from bench.lib import harness
from bench.lib.harness import Claim
from bench.speed.linear_task import fastest, rounds
from epfast import losses

#: classes and columns
SHAPES = ((3, 10), (3, 100), (10, 20), (10, 100), (30, 30))
ROWS, FEW_ROWS, COLUMNS, NODES = 1000, 2000, 20, 64
MOST, LEAST = 10.0, 5.0


def of_shape(options: argparse.Namespace, n: int, count: int, d: int) -> list[float]:
    """Sweeps; milliseconds of fits, and the ratio of two; milliseconds of predictions."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    y = losses.Multiclass(count).sample(X @ rng.normal(size=(d, count)) / np.sqrt(d), rng)
    sides = [np.where(y == k, 1, -1) for k in range(count)]
    fit = partial(epfast.fit_linear, X)
    tasks: dict[str, Callable[[], list[Any]]] = {
        "together": lambda: [fit(y, loss=losses.Multiclass(correlated=True))],
        "product": lambda: [fit(y, loss=losses.Multiclass(correlated=False))],
        "rest": lambda: [fit(side, loss="probit") for side in sides],
    }
    timed = harness.interleave(tasks, **rounds(options))
    posts = {name: task() for name, task in tasks.items()}

    def asked(name: str) -> list[Any]:
        return [post.predict_proba(X) for post in posts[name]]

    told = harness.interleave({name: partial(asked, name) for name in tasks}, **rounds(options))
    return [
        *(posts[name][0].n_sweeps for name in ("together", "product")),
        *(1e3 * timed[name].median for name in tasks),
        fastest(timed["together"], timed["product"]),
        *(1e3 * told[name].median for name in tasks),
    ]


def classes(options: argparse.Namespace, n: int) -> tuple[list[dict[str, Any]], list[Claim]]:
    """Seconds of fits, and of predictions."""
    rows: list[tuple[Any, ...]] = []
    goals = []
    for count, d in SHAPES[:: 2 if options.quick else 1]:
        found = of_shape(options, n, count, d)
        rows.append((f"{count} x {d}", *found))
        said = f"at most {MOST:g} of a product"
        goals.append((f"1. {count} x {d}", said, found[5] <= MOST, f"{found[5]:.2f}"))
    stored = harness.table(
        [
            *("classes x columns", "sweeps, together", "sweeps, product"),
            *("together, ms", "product, ms", "rest, ms", "together / product"),
            *("predict: together, ms", "predict: product, ms", "predict: rest, ms"),
        ],
        rows,
        f"1. {n} rows: one Gaussian over all classes, a product, each against the rest",
    )
    return stored, goals


def plain_sweep(X: np.ndarray, y: np.ndarray) -> None:
    """One sequential sweep over heteroscedastic rows from flat sites, in NumPy."""
    n, d = X.shape
    nodes, weights = special.roots_hermitenorm(NODES)
    log_weights = np.log(weights / weights.sum())
    Sigma, mu = np.stack([np.eye(d)] * 2), np.zeros((2, d))
    tau, nu = np.zeros((n, 2)), np.zeros((n, 2))
    for i in range(n):
        a = X[i]
        columns = Sigma @ a
        h, s = mu @ a, columns @ a
        rest = 1.0 - tau[i] * s
        v, m = s / rest, (h - nu[i] * s) / rest
        V = v[0] + np.exp(m[1] + np.sqrt(v[1]) * nodes)
        e = y[i] - m[0]
        logs = log_weights - 0.5 * np.log(V) - 0.5 * e * e / V
        p = np.exp(logs - logs.max())
        p /= p.sum()
        slope = e * (p @ (1.0 / V))
        second = e * e * (p @ V**-2.0) - p @ (1.0 / V) - slope * slope
        center = p @ nodes
        d1 = np.array([slope, center / np.sqrt(v[1])])
        d2 = np.array([second, (p @ (nodes - center) ** 2 - 1.0) / v[1]])
        shrink = 1.0 + v * d2
        new_tau, new_nu = -d2 / shrink, (d1 - m * d2) / shrink
        for k in range(2):
            dt, dn = new_tau[k] - tau[i, k], new_nu[k] - nu[i, k]
            size = 1.0 + dt * s[k]
            mu[k] += (dn - dt * h[k]) / size * columns[k]
            Sigma[k] -= dt / size * np.outer(columns[k], columns[k])
        tau[i], nu[i] = new_tau, new_nu


def noise(options: argparse.Namespace, n: int) -> tuple[list[dict[str, Any]], list[Claim]]:
    """ns per row and sweep."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(n, COLUMNS))
    X[:, -1] = 1.0
    mean, log_variance = (0.3 * rng.normal(size=(2, COLUMNS))) @ X.T
    y = mean + np.exp(0.5 * log_variance) * rng.normal(size=n)
    # one sweep: the tolerance is not met
    schedule = epfast.EP(1, 1e-300, order="sequential")

    def sweep() -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", epfast.ConvergenceWarning)
            epfast.fit_linear(X, y, loss="heteroscedastic", schedule=schedule)

    timed = harness.interleave(
        {"fit": sweep, "plain": partial(plain_sweep, X, y)}, **rounds(options)
    )
    nanoseconds = [1e9 * timed[name].median / n for name in ("fit", "plain")]
    over = fastest(timed["fit"], timed["plain"])
    stored = harness.table(
        ["rows", "columns", "epfast, ns", "NumPy, ns", "epfast / NumPy"],
        [(n, COLUMNS, *nanoseconds, over)],
        "2. Heteroscedastic noise, per row and sweep",
    )
    claim = ("2. noise", f"a {LEAST:g}th of NumPy", over <= 1.0 / LEAST, f"{over:.3f}")
    return stored, [claim]


PARTS: dict[int, tuple[str, Callable[..., Any], int, int]] = {  # rows of a full and of a quick run
    1: ("classes", classes, ROWS, 200),
    2: ("noise", noise, FEW_ROWS, 300),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    harness.choose_parts(parser, PARTS)


def run(options: argparse.Namespace) -> dict[str, Any]:
    warnings.simplefilter("ignore", epfast.DataWarning)
    return harness.run_parts(options, harness.sized(options, PARTS))

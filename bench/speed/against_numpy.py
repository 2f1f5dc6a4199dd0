"""Three pieces of EP beside plain NumPy and the best NumPy, like for like, small and large.

    python -m bench against_numpy [--quick]     # 3 min; no data files

1. Tilted moments of scalar sites: the formulas as they stand, and in buffers that are kept.
2. A sequential sweep of a process, a rank-one update of the covariance for each site, by NumPy's
   outer product and by ``dsyr`` of SciPy's BLAS.
3. EP of rows: a sequential sweep, site by site, in NumPy with the outer product, and without a
   temporary; and a fit to the tolerance beside parallel EP in NumPy, by products and by triangles.

One thread; all sides do the same work in one process, turn by turn: medians of the rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.blas import dsyr

import epfast
from bench.lib import harness
from bench.lib.harness import Claim
from bench.lib.numpy_reference import rbf
from bench.speed import numpy_ep
from bench.speed.numpy_ep import TOLERANCE, plain_probit, synthetic
from epfast import backend

Array = NDArray[np.float64]
Tasks = dict[str, Callable[[], Any]]
#: sites; sizes of a process; rows and columns of a fit
SITES, PROCESSES, ROWS = (10, 100_000), (50, 500), ((100, 5), (5_000, 50))


def row(piece: str, what: str, size: str, tasks: Tasks) -> dict[str, Any]:
    """Times of ours, of plain and of best NumPy, in microseconds, and quotients."""
    timed = harness.interleave(tasks, rounds=9, least=0.01, budget=3.0)
    found: dict[str, Any] = {"piece": piece, "what": what, "size": size}
    for name, timing in timed.items():
        found[f"{name}, us"] = 1e6 * timing.median
    for name in ("plain", "best"):
        found[f"{name} over ours"] = timed[name].over(timed["ours"]).median
    return found


def moments() -> list[dict[str, Any]]:
    rng, rows = np.random.default_rng(1), []
    for n in SITES:
        m, v = rng.normal(size=n), rng.gamma(2.0, size=n)
        y = np.where(rng.random(n) < 0.5, 1.0, -1.0)
        logistic = numpy_ep.logistic()
        for loss, plain, best in (
            ("probit", plain_probit, numpy_ep.fast_probit),
            ("logistic", logistic, logistic),
        ):
            ours = backend.TiltedMoments(loss)
            tasks: Tasks = {"ours": partial(ours, y, m, v)}
            tasks |= {"plain": partial(plain, y, m, v), "best": partial(best, y, m, v)}
            rows.append(row("tilted moments", loss, f"{n} sites", tasks))
    return rows


def one_by_one(A: Array | None, y: Array, Sigma: Array, update: Callable[..., Any]) -> Array:
    """A sequential sweep of probit EP from the prior N(0, Sigma), which becomes the posterior."""
    n, d = len(y), len(Sigma)
    mu = np.zeros(d)
    for i in range(n):
        column = Sigma[:, i].copy() if A is None else Sigma @ A[i]
        s, h = (column[i], mu[i]) if A is None else (A[i] @ column, A[i] @ mu)
        slope, curvature = plain_probit(y[i], h, s)  # sites are flat: the cavity is q
        mu += column * slope
        update(Sigma, column, curvature)
    return mu


def outer(Sigma: Array, column: Array, factor: float) -> None:
    Sigma += factor * np.outer(column, column)


def symmetric(Sigma: Array, column: Array, factor: float) -> None:
    """Both triangles, without a temporary."""
    np.add(Sigma, np.multiply.outer(factor * column, column), out=Sigma)


def processes() -> list[dict[str, Any]]:
    rng, rows = np.random.default_rng(2), []
    for n in PROCESSES:
        X = rng.normal(size=(n, 2))
        K = rbf(X, X, 1.0) + 1e-6 * np.eye(n)
        y = np.where(X[:, 0] + 0.5 * rng.normal(size=n) > 0.0, 1.0, -1.0)

        def ours(K: Array = K, y: Array = y) -> None:
            n = len(y)
            backend.sweep(K.copy(), np.zeros(n), None, y, np.zeros(n), np.zeros(n))

        def in_blas(K: Array = K, y: Array = y) -> Array:
            """Of a lower triangle by rows, which column i is read from in two parts."""
            Sigma, mu = np.tril(K), np.zeros(len(y))
            for i in range(len(y)):
                column = np.concatenate([Sigma[i, :i], Sigma[i:, i]])
                slope, curvature = plain_probit(y[i], mu[i], column[i])
                mu += column * slope
                dsyr(curvature, column, a=Sigma.T, lower=0, overwrite_a=1)
            return mu

        def plain(K: Array = K, y: Array = y) -> Array:
            return one_by_one(None, y, K.copy(), outer)

        assert np.allclose(plain(), in_blas(), atol=1e-8)
        tasks: Tasks = {"ours": ours, "plain": plain, "best": in_blas}
        rows.append(row("process, sequential sweep", "probit", f"{n} x {n}", tasks))
    return rows


def of_rows() -> list[dict[str, Any]]:
    rows = []
    for n, d in ROWS:
        X, y = synthetic(n, d, "probit")

        def ours(X: Array = X, y: Array = y) -> None:
            n, d = X.shape
            backend.sweep(np.eye(d), np.zeros(d), X, y, np.zeros(n), np.zeros(n))

        def by(update: Callable[..., Any], X: Array = X, y: Array = y) -> Array:
            return one_by_one(X, y, np.eye(X.shape[1]), update)

        assert np.allclose(by(outer), by(symmetric), atol=1e-8)
        tasks: Tasks = {"ours": ours, "plain": partial(by, outer), "best": partial(by, symmetric)}
        rows.append(row("rows, sequential sweep", "probit", f"{n} x {d}", tasks))
        schedule = epfast.EP(50, TOLERANCE)
        fit = partial(epfast.fit_linear, X, y, loss="probit", schedule=schedule)
        parallel = partial(numpy_ep.parallel, X, y)
        plain = partial(parallel, plain_probit)
        best = partial(parallel, numpy_ep.fast_probit, triangular=True)
        tasks = {"ours": fit, "plain": plain, "best": best}
        rows.append(row("rows, fit", "probit", f"{n} x {d}", tasks))
    return rows


def run(options: argparse.Namespace) -> dict[str, Any]:
    rows = [line for part in (moments, processes, of_rows) for line in part()]
    harness.show(rows, "Against pure NumPy")
    least: dict[str, list[float]] = {line["piece"]: [] for line in rows}
    for line in rows:
        least[line["piece"]].append(line["best over ours"])
    goals: list[Claim] = [
        (
            piece,
            "faster than the best NumPy at each size",
            harness.in_part([ratio > 1.0 for ratio in ratios]),
            f"{min(ratios):.1f} to {max(ratios):.1f} times",
        )
        for piece, ratios in least.items()
    ]
    return {"goals": goals, "table": rows}

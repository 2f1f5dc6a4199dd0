"""Gaussian processes of low rank: memory and growth with n at rank 500.

    python -m bench low_rank [--quick]           # 5 min; needs no data

RBF kernel on random inputs, of which the columns are computed on demand. For each n, in a process
of its own: the peak of the resident memory beyond X and y over factorisation and fit, the seconds
of the factorisation, of one EP sweep with exact moments in parallel order, and of one serial sweep
of Laplace propagation in chunks of 500 rows. These run five times; what is given is the sum over
their steps (a column, a chunk of rows) of the least time, since whole runs are never undisturbed on
a shared machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np

import epfast
from bench.lib import harness

MB = 2.0**20
SIZES = (5_000, 10_000, 20_000, 40_000)
RANK = 500
MOST_MB = 200.0  # at n = 20,000


def problem(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels."""
    X = rng.standard_normal((n, 10))
    return X, np.where(np.sin(2 * X[:, 0]) + X[:, 1] + rng.standard_normal(n) > 0, 1.0, -1.0)


def fit(X: np.ndarray, y: np.ndarray, rank: int) -> tuple[epfast.KernelColumns, Any]:
    """The kernel, and a fit of two EP sweeps, factorisation included."""
    kernel = epfast.KernelColumns.rbf(X, 3.0)
    schedule = epfast.EP(2, 0.0, order="parallel")
    return kernel, epfast.fit_gp(
        kernel, y, loss="probit", scheme="exact", rank=rank, schedule=schedule
    )  # fmt: skip


def second_sweep(G: np.ndarray, y: np.ndarray, order: str, **given: Any) -> float:
    """Seconds of the second of two sweeps."""

    def sweeps(step: Callable[..., None]) -> None:
        epfast.fit_linear(
            G, y, posterior="full", prior_variance=1.0, progress=step,
            schedule=epfast.EP(2, 0.0, order=order), **given,
        )  # fmt: skip

    return harness.fastest({0: sweeps}, split=harness.steps)[0].second_half().seconds


def measure(n: int, rank: int) -> tuple[float, float, float, int, int]:
    """Seconds of factor, EP sweep and Laplace sweep; bytes of the factor and of the peak."""
    harness.watch_stalls()
    rng = np.random.default_rng(0)
    fit(*problem(rng, 600), 20)[1].mean  # noqa: B018  (code and buffers that stay)
    X, y = problem(rng, n)
    before = harness.peak_memory(reset=True)
    kernel, post = fit(X, y, rank)
    post.mean  # noqa: B018
    peak = harness.peak_memory() - before
    del post

    def factor(step: Callable[..., None]) -> None:
        def column(i: int) -> np.ndarray:
            step()
            return kernel.column(i)

        epfast.incomplete_cholesky(epfast.KernelColumns(kernel.diagonal, column), rank)

    seconds = harness.fastest({0: factor}, 15, harness.steps)[0].seconds
    G = epfast.incomplete_cholesky(kernel, rank).G
    ep = second_sweep(G, y, "parallel", loss="probit", scheme="exact", batch_size=None)
    laplace = second_sweep(G, y, "sequential", loss="logistic", scheme="laplace", batch_size=500)
    return seconds, ep, laplace, G.nbytes, peak


def run(options: argparse.Namespace) -> dict[str, Any]:
    sizes, rank = ((1_000, 2_000), 100) if options.quick else (SIZES, RANK)
    rows = []
    for n in sizes:
        factor, sweep, chunks, size, peak = harness.in_child(measure, n, rank)
        rows.append(
            {
                "n": n,
                "rank": rank,
                "factor_s": factor,
                "EP_sweep_s": sweep,
                "Laplace_sweep_s": chunks,
                "factor_MB": size / MB,
                "peak_MB": peak / MB,
            }
        )
        print(rows[-1], flush=True)
    harness.table(
        [key.replace("_", " ") for key in rows[0]],
        [tuple(row.values()) for row in rows],
        f"Rank {rank}: seconds, and peak memory beyond X and y",
    )

    def exponent(key: str) -> float:
        n, s = np.log([[row["n"], row[key]] for row in rows]).T
        return float(np.polyfit(n, s, 1)[0])

    growth = {key: exponent(key) for key in ("factor_s", "EP_sweep_s", "Laplace_sweep_s")}
    peaks = {row["n"]: row["peak_MB"] for row in rows}
    goals = [
        (
            "ours",
            f"n = 20,000 at rank 500 peaks at most {MOST_MB:g} MB beyond X",
            peaks[20_000] <= MOST_MB if 20_000 in peaks else None,
            f"MB by n: { {n: round(peak, 1) for n, peak in peaks.items()} }",
        ),
        (
            "ours",
            "the time grows linearly in n",
            harness.in_part([power <= 1.15 for power in growth.values()]),
            "exponents of n: " + ", ".join(f"{k} {v:.2f}" for k, v in growth.items()),
        ),
    ]
    return {"goals": goals, "growth": growth, "results": rows}

"""Scalar-site EP with a full covariance, on one thread: against the best simple code, and alone.

    EPFAST_DATA=folder python -m bench linear [--quick] [--only 1 2 ...]
                                            (needs a C compiler: $CC or gcc; about 3 minutes)

Both sides of a comparison run in this process, on one core, turn by turn; a ratio is the median of
the quotients of the rounds, with its quartiles, and the quotient of the fastest rounds stands
beside it. What other processes and the host of a virtual machine take is left out as far as can be
(``harness.Instant``).

N = 32,561 and d = 100 unless said otherwise: rows are standard normal with a constant last column,
weights N(0, 1/d), labels drawn from the model, and the prior is N(0, I). A fit is a call of
``fit_linear``, checks of the input and evidence included, until a sweep changes no mean by more
than 1e-6 standard deviations nor the log of one of these by more than 1e-6.

1. Sweeps and seconds of a fit by order, probit and logistic.
2. Sequential EP one site at a time (``rank_one.c``: dsymv, scalar update, dsyr, daxpy; lower
   triangle only, the BLAS functions of SciPy, which epfast uses as well), time per sweep.
3. Parallel EP in NumPy: chunks that stay in cache, buffers allocated once, marginals by the faster
   of two ways, Gram matrix by syrk, Gauss-Hermite for logistic. Whole fits, against the default.
4. scikit-learn's LogisticRegression (lbfgs, C = prior variance, default tolerance), on these data
   and, with the data, on one-hot Census (d = 101), LIBSVM's a9a and w8a (sparse; prior variance 25)
   and MNIST, 3 against 8 (d = 785, prior variance 1). What counts is the fastest rounds.
5. The matrix work of a sequential sweep as a share of the rate of dgemm at the size of a block:
   3 d^2 N flops that are needed, 4 d^2 N that are done as both triangles are kept.
6. N = 515,345, d = 90, in a process of its own: peak memory beyond X and y, and time per row at
   N/4, N/2 and N.
7. Nanoseconds per site of ``backend.tilted_moments``, and of a ``backend.TiltedMoments``, bound
   once and called with arrays to fill.
8. A sweep in chunks, of the core alone, as a share of the rate of dgemm, for d from 64 to 785: the
   2 d^2 N flops of marginal variances and Gram matrix over its time, tilted moments included.
"""

from __future__ import annotations

import argparse
import itertools
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import epfast
from bench.lib import compile, harness
from bench.lib.compile import blas
from bench.lib.harness import Claim, Timing
from bench.speed.linear_limit import chunked_sweeps
from bench.speed.linear_rivals import (
    FUNCTIONS,
    SOURCE,
    against_numpy,
    against_sklearn,
    site_by_site,
)
from bench.speed.linear_task import (
    DIMENSION,
    LOSSES,
    TOLERANCE,
    fastest,
    ours,
    ratio,
    rounds,
    synthetic,
    timed_sweeps,
)

ROWS = 32_561
MANY_ROWS, FEWER_DIMENSIONS = 515_345, 90
ORDERS = ("sequential", "chunked", "parallel", "auto")
#: most nanoseconds per site that are aimed at
MOMENTS = {"probit": 15.0, "logistic": 50.0, "hinge": 25.0, "quasi01": None}


# ---- 1. orders ----


def orders(options: argparse.Namespace, n: int) -> tuple[dict, list[Claim]]:
    """Sweeps and seconds of a fit, by order."""
    tasks, fits = {}, {}
    for loss in LOSSES:
        X, y = synthetic(n, DIMENSION, loss)
        for order in ORDERS:
            with warnings.catch_warnings():  # which orders settle is a result
                warnings.simplefilter("ignore", epfast.ConvergenceWarning)
                fits[loss, order] = timed_sweeps(X, y, loss, order=order)
            if fits[loss, order][0].converged:
                tasks[loss, order] = lambda X=X, y=y, loss=loss, order=order: ours(
                    X, y, loss, order=order
                )
    timed = harness.interleave(tasks, **rounds(options))
    cells = []
    for loss, order in fits:
        total = sum(fits[loss, order][1])
        timing = timed.get((loss, order), harness.summarize([total]))
        fit, seconds = fits[loss, order]
        best, _ = fits[loss, "sequential"]
        cells.append(
            {
                "loss": loss,
                "order": order,
                "converged": fit.converged,
                "sweeps": len(fit.history),
                "seconds": timing._asdict(),
                "seconds_of_sweeps": seconds,
                "distance": float(np.abs((fit.mean - best.mean) / np.sqrt(best.variance)).max()),
            }
        )
    harness.table(
        [
            "loss",
            "order",
            "converged",
            "sweeps",
            "seconds",
            "quartiles",
            "least",
            "ms of the sweeps",
        ],
        [
            (
                *(c["loss"], c["order"], c["converged"], c["sweeps"]),
                *(c["seconds"]["median"], harness.spread(Timing(**c["seconds"]))),
                min(c["seconds"]["values"]),
                " ".join(f"{1e3 * s:.0f}" for s in c["seconds_of_sweeps"][:12]),
            )
            for c in cells
        ],
        f"1. Fits to {TOLERANCE:g}, N = {n}, d = {DIMENSION}",
    )
    goals = [
        (
            "1. orders",
            "the default takes no longer than the sequential order",
            harness.in_part(
                [
                    timed[loss, "auto"].over(timed[loss, "sequential"]).median <= 1.0
                    for loss in LOSSES
                ]
            ),
            ", ".join(
                f"{loss}: default / sequential "
                f"{ratio(timed[loss, 'auto'].over(timed[loss, 'sequential']))}, fastest rounds "
                f"{fastest(timed[loss, 'auto'], timed[loss, 'sequential']):.2f}"
                for loss in LOSSES
            ),
        )
    ]
    return {"cells": cells}, goals


# ---- 5. share of dgemm ----


def matrix_work(options: argparse.Namespace, n: int) -> tuple[dict, list[Claim]]:
    """The flops of the covariance, over the time of a sequential sweep, against dgemm."""
    d, columns, repeats = DIMENSION, 32, 2000
    rng = np.random.default_rng(0)
    A, B, C = rng.standard_normal((d, d)), rng.standard_normal((columns, d)), np.empty((columns, d))
    cells = []
    library = compile.library(SOURCE, FUNCTIONS)
    dgemm = blas("dgemm")
    for loss in LOSSES:
        X, y = synthetic(n, d, loss)
        sweeps: list[list[float]] = []

        def sweep(X=X, y=y, loss=loss, sweeps=sweeps):
            sweeps.append(timed_sweeps(X, y, loss, order="sequential", tol=0.0, sweeps=4)[1][1:])

        timed = harness.interleave(
            {
                "gemm": lambda: library.gemm_rate(
                    repeats, d, columns, A.ctypes.data, B.ctypes.data, C.ctypes.data, dgemm
                ),
                "sweep": sweep,
            },
            **rounds(options),
        )
        rate = timed["gemm"].scaled(1e9 / (2.0 * repeats * d * d * columns))  # ns per flop
        turns = len(timed["sweep"].values)
        spent = harness.summarize([float(np.median(s)) for s in sweeps[-turns:]])
        share = rate.over(spent.scaled(1e9 / (3.0 * d * d * n)))
        cells.append(
            {
                "loss": loss,
                "gflops": 1.0 / rate.median,
                "sweep_seconds": spent._asdict(),
                "needed": share._asdict(),
                "done": share.scaled(4.0 / 3.0)._asdict(),
                "least_sweep": min(min(each) for each in sweeps),
                "needed_fastest": min(rate.values)
                * (3.0 * d * d * n)
                / (1e9 * min(min(each) for each in sweeps)),
            }
        )
    harness.table(
        ["loss", "dgemm GFLOP/s", "ms per sweep", "needed / dgemm", "quartiles", "done / dgemm"],
        [
            (
                *(c["loss"], c["gflops"], 1e3 * c["sweep_seconds"]["median"]),
                *(c["needed"]["median"], harness.spread(Timing(**c["needed"]))),
                c["done"]["median"],
            )
            for c in cells
        ],
        f"5. Matrix flops of a sequential sweep against dgemm, {d} x {d} by {d} x {columns}",
    )
    goals = [
        (
            "5. matrix work",
            "at least 60 % of the rate of dgemm (3 d^2 N flops, probit)",
            cells[0]["needed"]["median"] >= 0.6,
            ", ".join(
                f"{c['loss']} {100 * c['needed']['median']:.0f} % "
                f"({100 * c['done']['median']:.0f} % of the flops that are done), fastest rounds "
                f"{100 * c['needed_fastest']:.0f} % ({1e3 * c['least_sweep']:.1f} ms)"
                for c in cells
            ),
        )
    ]
    return {"cells": cells}, goals


# ---- 6. many rows ----


def memory_and_growth(n: int) -> dict[str, Any]:
    """In a process of its own: the memory of a fit, and fits at N/4, N/2 and N, twice.

    A chunk of rows takes a millisecond, so that most of them meet no stall of the host; a sweep
    takes a second, and all of them do.
    """
    X, y = synthetic(n, FEWER_DIMENSIONS, "probit")
    ours(X[:5000], y[:5000], "probit")
    ours(X[:5000], y[:5000], "probit", order="sequential", sweeps=2, tol=0.0)
    harness.peak_memory(reset=True)
    before = harness.peak_memory()
    fit = ours(X, y, "probit")
    memory = (harness.peak_memory() - before) / 2**20
    del fit
    cells = []
    for size in (n // 4, n // 2, n, n // 4, n // 2, n):
        chunks = [(time.perf_counter(), 0)]  # when they ended, and their rows

        def note(rows: int, chunks=chunks) -> None:
            chunks.append((time.perf_counter(), rows))

        fit = ours(X[:size], y[:size], "probit", progress=note)
        seconds = time.perf_counter() - chunks[0][0]
        us = [1e6 * (t - s) / rows for (s, _), (t, rows) in itertools.pairwise(chunks)]
        cells.append(
            {
                "N": size,
                "sweeps": fit.n_sweeps,
                "us_per_row": np.quantile(us, [0.05, 0.25, 0.5, 0.75, 0.95]).tolist(),
                "seconds": seconds,
            }
        )
    return {"memory_mb": memory, "data_mb": (X.nbytes + y.nbytes) / 2**20, "fits": cells}


def many_rows(options: argparse.Namespace, n: int) -> tuple[dict, list[Claim]]:
    """Memory and growth at N = 515,345."""
    out = harness.in_child(memory_and_growth, n)
    harness.table(
        ["N", "sweeps", "us per row: 5 %", "25 %", "50 %", "75 %", "95 %", "s of the fit"],
        [(c["N"], c["sweeps"], *c["us_per_row"], c["seconds"]) for c in out["fits"]],
        f"6. Probit, default order, d = {FEWER_DIMENSIONS}; X and y {out['data_mb']:.0f} MB, peak "
        f"memory of the fit beyond them {out['memory_mb']:.1f} MB; quantiles over chunks of rows",
    )
    sizes = [c["N"] for c in out["fits"]]
    slopes = [
        1.0
        + float(np.polyfit(np.log(sizes), np.log([c["us_per_row"][k] for c in out["fits"]]), 1)[0])
        for k in (0, 1)
    ]
    goals = [
        (
            "6. many rows",
            "at most 20 MB beyond X and y",
            out["memory_mb"] <= 20.0,
            f"{out['memory_mb']:.1f} MB, {1e6 * out['memory_mb'] * 1.048576 / n:.0f} bytes per row",
        ),
        (
            "6. many rows",
            "seconds per sweep grow with N (exponent 0.9 to 1.1)",
            0.9 <= slopes[1] <= 1.1,
            f"N^{slopes[1]:.2f} by the lower quartile of the chunks, N^{slopes[0]:.2f} by the "
            "fastest 5 %",
        ),
    ]
    return {**out, "exponent": slopes[1]}, goals


# ---- 7. tilted moments ----


def tilted(options: argparse.Namespace, n: int) -> tuple[dict, list[Claim]]:
    """Nanoseconds per site."""
    del n
    size = 100_000
    rng = np.random.default_rng(0)
    m, v = 2.0 * rng.standard_normal(size), np.exp(rng.standard_normal(size))
    y = np.where(rng.random(size) < 0.5, 1.0, -1.0)
    out = np.empty((3, size))
    tasks: dict[tuple[str, str], Callable[[], object]] = {}
    for loss in MOMENTS:
        bound = epfast.backend.TiltedMoments(loss)
        tasks[loss, "call"] = lambda loss=loss: epfast.backend.tilted_moments(loss, y, m, v)
        tasks[loss, "bound"] = lambda bound=bound: bound(y, m, v, out)
    timed = harness.interleave(tasks, **rounds(options))
    ns = {key: t.scaled(1e9 / size) for key, t in timed.items()}
    harness.table(
        ["loss", "ns per site", "quartiles", "bound once", "quartiles", "aim"],
        [
            (
                *(loss, ns[loss, "call"].median, harness.spread(ns[loss, "call"])),
                *(ns[loss, "bound"].median, harness.spread(ns[loss, "bound"]), aim),
            )
            for loss, aim in MOMENTS.items()
        ],
        f"7. backend.tilted_moments, {size} sites, m ~ N(0, 4), log v ~ N(0, 1)",
    )
    goals = [
        (
            f"7. tilted moments, {loss}",
            f"at most {aim:g} ns per site",
            ns[loss, "call"].median <= aim,
            f"{ns[loss, 'call'].median:.1f} ns, bound once {ns[loss, 'bound'].median:.1f} ns; "
            f"fastest rounds {min(ns[loss, 'call'].values):.1f}, "
            f"{min(ns[loss, 'bound'].values):.1f} ns",
        )
        for loss, aim in MOMENTS.items()
        if aim is not None
    ]
    return {"ns": {f"{loss} {what}": t._asdict() for (loss, what), t in ns.items()}}, goals


PARTS: dict[int, tuple[str, Callable, int, int]] = {  # rows of a full and of a quick run
    1: ("orders", orders, ROWS, 300),
    2: ("site_by_site", site_by_site, ROWS, 300),
    3: ("numpy", against_numpy, ROWS, 300),
    4: ("sklearn", against_sklearn, ROWS, 300),
    5: ("matrix_work", matrix_work, ROWS, 1000),
    6: ("many_rows", many_rows, MANY_ROWS, MANY_ROWS // 64),
    7: ("tilted", tilted, 0, 0),
    8: ("chunked_sweeps", chunked_sweeps, 4_000_000, 100_000),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    harness.choose_parts(parser, PARTS)


def run(options: argparse.Namespace) -> dict[str, Any]:
    return harness.run_parts(options, harness.sized(options, PARTS))

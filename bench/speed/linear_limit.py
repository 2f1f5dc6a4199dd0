"""Part 8 of ``linear``: a sweep in chunks against the rate of dgemm."""

from __future__ import annotations

import argparse

import numpy as np

import epfast
from bench.lib import compile, harness
from bench.lib.compile import blas
from bench.lib.harness import Claim, Timing
from bench.speed.linear_rivals import FUNCTIONS, SOURCE
from bench.speed.linear_task import fastest, rounds, synthetic
from epfast._core.chunks import ChunkedSweep
from epfast._core.row_sweeps import SiteFits
from epfast._core.rows import Rows
from epfast.gaussian.engines.chunks import block_of

#: columns of X, and those from which the aim holds
DIMENSIONS, AIMED_FROM, AIM = (64, 100, 128, 256, 785), 128, 0.8
#: numbers in a matrix that dgemm multiplies with
COLUMNS = 256


def chunked_sweeps(options: argparse.Namespace, n: int) -> tuple[dict, list[Claim]]:
    """One chunk of all rows, from memory in a random order; n numbers, or more.

    Its n d^2 flops of marginal variances and n d^2 of the Gram matrix, over the time of the chunk,
    with the new factor: tilted moments and sites (probit) count too, and are taken off beside it.
    """
    library, dgemm, cells = compile.library(SOURCE, FUNCTIONS), blas("dgemm"), []
    for d in DIMENSIONS:
        count = max(n // d, 16 * d)  # the factor of the new precision is a small share
        X, labels = synthetic(count, d, "probit")
        y, visits = labels[:, None].copy(), np.random.default_rng(0).permutation(count)
        sites, rows = np.zeros((3, count)), Rows(X)
        tilted = epfast.schemes.Exact().tilted(epfast.losses.Probit())
        core = ChunkedSweep(tilted, d, block_of(d), 1.0, 1.0, False)
        core.begin(np.eye(d) * count, np.zeros(d))
        A, B, C = (np.random.default_rng(0).random(s) for s in ((d, d), (COLUMNS, d), (COLUMNS, d)))
        repeats = max(1, count // COLUMNS)
        pointers = [array.ctypes.data for array in (A, B, C)]

        def sweep(core=core, rows=rows, visits=visits, y=y, n=count, sites=sites) -> None:
            core.advance(rows, visits, visits, y, None, n, *sites)

        def gemm(repeats=repeats, d=d, pointers=pointers) -> None:
            library.gemm_rate(repeats, d, COLUMNS, *pointers, dgemm)

        alone = SiteFits(tilted, 1.0, 1.0, block_of(d))
        h, s = np.random.default_rng(0).standard_normal(count), np.full(count, 0.01)
        others = np.zeros((3, count))

        def moments(alone=alone, y=y, h=h, s=s, others=others) -> None:
            alone.fit(h, s, y, *others)

        sweep()
        tasks = {"gemm": gemm, "sweep": sweep, "moments": moments}
        timed = harness.interleave(tasks, **rounds(options))
        # both of 2 d^2 flops per row
        gemm_time = timed["gemm"].scaled(1e9 / (2.0 * repeats * COLUMNS * d * d))
        spent = timed["sweep"].scaled(1e9 / (2.0 * count * d * d))
        moments_share = min(timed["moments"].values) / min(timed["sweep"].values)
        cells.append(
            {
                "d": d,
                "rows": count,
                "gflops": 1.0 / gemm_time.median,
                "sweep_seconds": timed["sweep"]._asdict(),
                "share": gemm_time.over(spent)._asdict(),
                "share_fastest": fastest(gemm_time, spent),
                "matrices_alone": fastest(gemm_time, spent) / (1.0 - moments_share),
            }
        )
    harness.table(
        [
            *("d", "rows", "dgemm GFLOP/s", "ms per sweep", "of dgemm's rate", "quartiles"),
            *("fastest", "without moments"),
        ],
        [
            (
                *(c["d"], c["rows"], c["gflops"], 1e3 * c["sweep_seconds"]["median"]),
                *(c["share"]["median"], harness.spread(Timing(**c["share"])), c["share_fastest"]),
                c["matrices_alone"],
            )
            for c in cells
        ],
        f"8. A sweep in one chunk, 2 d^2 N flops, against dgemm, d x d by d x {COLUMNS}",
    )
    aimed = [c for c in cells if c["d"] >= AIMED_FROM]
    goals = [
        (
            "8. chunked sweeps",
            f"matrix work at {100 * AIM:.0f} % of dgemm's rate at least from d = {AIMED_FROM} on",
            harness.in_part([c["matrices_alone"] >= AIM for c in aimed]),
            ", ".join(
                f"d = {c['d']}: {100 * c['matrices_alone']:.0f} %, with the moments "
                f"{100 * c['share_fastest']:.0f} %"
                for c in cells
            ),
        )
    ]
    return {"cells": cells}, goals

"""Nanoseconds per (row, coordinate) pair: scheme x loss, scalar C, NumPy, and the machine's limit.

    python -m bench minibatch_limit [--quick]          (needs a C compiler: $CC or gcc)

*fit* is one cache-resident minibatch (s = 100, d = 101) through ``backend.fit_minibatch``, call
overhead included; *pass* is a whole pass over 32,500 x 101 numbers (26 MB, the size of Census)
with ``fit_linear``, per pair, and of the same numbers as floats.  The scalar loops of
``minibatch_limit.c`` do the same pass.

The limit of a kernel is the largest of three times: its vector multiplications and multiply-adds
at the rate of an FMA loop, all its vector instructions at the rate of a loop of FMAs and
additions, and 8 bytes at the rate of a plain sum over the same memory.  The counts are a model
(below), not a bound that can be proved; read the distance to it as "no more than about this
factor is left".
"""

from __future__ import annotations

import argparse
import ctypes
from pathlib import Path
from typing import Any

import numpy as np

import epfast
from bench.lib import compile, harness, numpy_reference
from bench.lib.harness import SHORT, Claim, Timing
from bench.speed.minibatch_scaling import synthetic

SOURCE = Path(__file__).with_name("minibatch_limit.c")
ROWS, DIMENSION, BATCH = 32_500, 101, 100
LOSSES = ("logistic", "hinge", "quasi01", "probit")
KINKED = ("hinge", "quasi01")

# Vector instructions per pair, both sides together: (multiplications and FMAs, all).
#   hinge     2 fma (1 - m -+ x r), 2 max, 2 add
#   quasi01   max(0, min(1 - eps a, 1 - a / eps)): 4 fma, 2 min, 2 max, 2 add
#   logistic  x r: 1 mul; exp of both signs: 2 fma and 1 sub to round and reduce, 1 mul, 10 of the
#             even and odd polynomials, 2 add, 3 on exponents; q + p e: 2 fma; two products: 2 mul
#   probit    x r: 1 mul; per side 19 fma of the ratio, 2 fma, 2 mul and 1 sub of the argument of
#             exp, 10 fma polynomial, 2 on exponents, 1 fma, 1 add, 1 select, 2 mul of products;
#             the squares: 3 fma, 2 mul, 4 others
MODEL = {"hinge": (2, 6), "quasi01": (4, 10), "logistic": (18, 24), "probit": (78, 92)}

BUILDS = {
    "scalar -O2": ["-O2", "-fno-tree-vectorize", "-fno-tree-slp-vectorize"],
    "-O3 native": compile.NATIVE,
}

LOOP: compile.Signature = ctypes.c_double, [ctypes.c_size_t] * 3 + [ctypes.c_void_p] * 5
PEAK: compile.Signature = ctypes.c_double, [ctypes.c_size_t]
FUNCTIONS: dict[str, compile.Signature] = {
    **dict.fromkeys(("logistic_naive", "logistic_product", "hinge_loop", "quasi01_loop"), LOOP),
    **dict.fromkeys(("peak_fma", "peak_mixed"), PEAK),
    "stream": (ctypes.c_double, [ctypes.c_size_t, ctypes.c_size_t, ctypes.c_void_p]),
    "lanes": (ctypes.c_size_t, []),
}


def limits(library: ctypes.CDLL, quick: bool) -> dict[str, float]:
    """Peak rates of vector instructions, and of reading a minibatch, 26 MB and 256 MB."""
    rounds = 1_000_000 if quick else 10_000_000
    sizes = {"minibatch": BATCH * DIMENSION, "pass": ROWS * DIMENSION, "memory": 1 << 25}
    arrays = {name: np.ones(size) for name, size in sizes.items()}
    tasks = {
        "fma": (lambda: library.peak_fma(rounds), 12 * rounds),
        "mixed": (lambda: library.peak_mixed(rounds), 12 * rounds),
    }
    for name, array in arrays.items():
        repeats = max(1, 20_000_000 // array.size)
        tasks[name] = (
            lambda array=array, repeats=repeats: library.stream(
                array.size, repeats, array.ctypes.data
            ),
            repeats * array.size,
        )
    best = dict.fromkeys(tasks, np.inf)
    for _ in range(3 if quick else 9):  # limits are minima, not medians
        for name, (task, count) in tasks.items():
            start = harness.now()
            task()
            best[name] = min(best[name], 1e9 * (harness.now() - start) / count)
    lanes = int(library.lanes())
    return {
        "lanes": lanes,
        "fma_ns": best["fma"],
        "mixed_ns": best["mixed"],
        "gflops": 2.0 * lanes / best["fma"],
        **{f"{name}_ns_per_number": best[name] for name in sizes},
        **{f"{name}_gb_per_s": 8.0 / best[name] for name in sizes},
    }


def run(options: argparse.Namespace) -> dict[str, Any]:
    rounds, least = (3, 0.005) if options.quick else (9, 0.02)
    X, y = synthetic(ROWS, DIMENSION)
    X32, yX = X.astype(np.float32), X * y[:, None]
    batch = np.ascontiguousarray(yX[:BATCH])
    mean, variance = np.zeros(DIMENSION), np.full(DIMENSION, 0.5)
    mean[::3] = 0.3
    reach = np.sqrt((DIMENSION + 0.5) * variance)
    plus, minus = np.empty(DIMENSION), np.empty(DIMENSION)
    libraries = {name: compile.library(SOURCE, FUNCTIONS, flags) for name, flags in BUILDS.items()}
    limit = limits(libraries["-O3 native"], options.quick)
    print(
        f"limits: {limit['gflops']:.0f} GFLOP/s ({limit['lanes']} lanes, {1 / limit['fma_ns']:.1f} "
        f"FMA or {1 / limit['mixed_ns']:.1f} mixed vector instructions per ns); reads "
        f"{limit['minibatch_gb_per_s']:.0f} GB/s (one minibatch), {limit['pass_gb_per_s']:.0f} "
        f"(26 MB), {limit['memory_gb_per_s']:.0f} (256 MB)"
    )

    # C loops, and the check that they compute what the reference computes.
    loops = {
        "logistic, two log1p(exp)": ("logistic_naive", "logistic"),
        "logistic, product form": ("logistic_product", "logistic"),
        "hinge": ("hinge_loop", "hinge"),
        "quasi01": ("quasi01_loop", "quasi01"),
    }
    tasks, ns = {}, {}
    for build, library in libraries.items():
        for label, (function, loss) in loops.items():
            loop = getattr(library, function)

            def call(n: int, loop=loop) -> float:
                arrays = (a.ctypes.data for a in (yX, mean, reach, plus, minus))
                return loop(n, BATCH, DIMENSION, *arrays)

            m, delta = batch @ mean, batch * reach
            value = numpy_reference.LOSSES[loss].value
            expected = value(m).sum() + sum(
                value(m[:, None] + sign * delta).sum() for sign in (1.0, -1.0)
            )
            if not np.isclose(call(BATCH), expected, rtol=1e-9):
                raise RuntimeError(f"{function} ({build}) computes something else")
            tasks["C", build, label] = lambda call=call: call(ROWS)
    schedule = epfast.ADF(site_rule="nonnegative", settle=0)
    for loss in LOSSES:
        for name in SHORT:
            scheme = harness.scheme(name, "slope" if loss in KINKED else "exact")
            tasks["fit", name, loss] = lambda scheme=scheme, loss=loss: (
                epfast.backend.fit_minibatch(loss, batch, mean, variance, scheme)
            )
            for kind, rows in (("pass", X), ("floats", X32)):
                tasks[kind, name, loss] = lambda scheme=scheme, loss=loss, rows=rows: (
                    epfast.fit_linear(
                        rows,
                        y,
                        loss=loss,
                        scheme=scheme,
                        posterior="factorized",
                        batch_size=BATCH,
                        prior_variance=25.0,
                        schedule=schedule,
                    )
                )
        tasks["numpy", "variational", loss] = lambda loss=loss: numpy_reference.fit_minibatch(
            loss, batch, mean, variance, "variational"
        )
    one = np.ones((1, 1)), np.zeros(1), np.ones(1)
    tasks["call", "", ""] = lambda: epfast.backend.fit_minibatch("hinge", *one, "variational")
    timed = harness.interleave(tasks, rounds, least, 2.0)
    per_pass, per_fit = 1e9 / (ROWS * DIMENSION), 1e9 / (BATCH * DIMENSION)
    for (kind, *rest), timing in timed.items():
        unit = 1e9 if kind == "call" else per_fit if kind in ("fit", "numpy") else per_pass
        ns[kind, *rest] = timing.scaled(unit)

    def bound(loss: str, where: str) -> float:
        multiplications, everything = MODEL[loss]
        return max(
            multiplications * limit["fma_ns"] / limit["lanes"],
            everything * limit["mixed_ns"] / limit["lanes"],
            limit[f"{where}_ns_per_number"],
        )

    rows, cells = [], []
    for loss in LOSSES:
        for scheme in SHORT:
            fit, whole = ns["fit", scheme, loss], ns["pass", scheme, loss]
            pairwise = scheme in ("quadrature", "variational")
            numpy_ns = ns.get(("numpy", scheme, loss))
            cells.append(
                {
                    "loss": loss,
                    "scheme": scheme,
                    "fit_ns": fit._asdict(),
                    "pass_ns": whole._asdict(),
                    "floats_over_doubles": ns["floats", scheme, loss].over(whole)._asdict(),
                    "numpy_fit_ns": numpy_ns and numpy_ns._asdict(),
                    "limit_fit_ns": bound(loss, "minibatch") if pairwise else None,
                    "limit_pass_ns": bound(loss, "pass")
                    if pairwise
                    else limit["pass_ns_per_number"]
                    if scheme == "quick_laplace"
                    else None,
                }
            )
            cell = cells[-1]
            rows.append(
                (
                    loss,
                    SHORT[scheme],
                    fit.median,
                    harness.spread(fit),
                    whole.median,
                    harness.spread(whole),
                    cell["floats_over_doubles"]["median"],
                    numpy_ns and numpy_ns.median,
                    cell["limit_pass_ns"],
                    cell["limit_pass_ns"] and whole.median / cell["limit_pass_ns"],
                )
            )
    harness.table(
        [
            *("loss", "scheme", "fit ns", "quartiles", "pass ns", "quartiles", "floats/doubles"),
            "best NumPy fit ns",
            *("limit ns", "pass/limit"),
        ],
        rows,
        f"epfast, ns per pair (a call of fit_minibatch with s = d = 1 takes "
        f"{ns['call', '', ''].median:.0f} ns)",
    )
    harness.table(
        ["loop", *(h for build in BUILDS for h in (f"gcc {build}", "quartiles", "/ VQ pass"))],
        [
            (
                label,
                *(
                    value
                    for build in BUILDS
                    for t in (ns["C", build, label],)
                    for value in (
                        t.median,
                        harness.spread(t),
                        t.over(ns["pass", "variational", loss]).median,
                    )
                ),
            )
            for label, (_, loss) in loops.items()
        ],
        "C loops over the same pass, ns per pair, and how many times slower than epfast's VQ pass",
    )
    c_loops = [
        {"build": key[1], "loop": key[2], "ns": t._asdict()}
        for key, t in ns.items()
        if key[0] == "C"
    ]
    return {"limits": limit, "model": MODEL, "cells": cells, "c_loops": c_loops, "goals": judge(ns)}


def judge(ns: dict[tuple[str, ...], Timing]) -> list[Claim]:
    """Compare with the project's goals: absolute on a 2.6 GHz AVX2 core, or relative to C."""
    goals = []
    for loss, loop, most, factor in (
        ("logistic", "logistic, product form", 4.5, 2.3),
        ("hinge", "hinge", 0.9, 3.0),
    ):
        ours = ns["pass", "variational", loss].median
        scalar = ns["C", "scalar -O2", loop]
        gain = scalar.over(ns["pass", "variational", loss]).median
        goals.append(
            (
                f"VQ {loss}, s = 100, d = 101",
                f"at most {most} ns per pair, or {factor} x faster than the scalar C loop",
                ours <= most or gain >= factor,
                f"{ours:.2f} ns; the same loop in scalar C {scalar.median:.2f} ns, {gain:.1f} x",
            )
        )
    probit = ns["pass", "variational", "probit"].median
    goals.append(
        ("VQ probit", "at most 3 ns per pair (AVX-512)", probit <= 3.0, f"{probit:.2f} ns")
    )
    for loss, most in (("logistic", 1.0), ("hinge", 0.65), ("probit", 1.0)):
        ratio = ns["floats", "variational", loss].over(ns["pass", "variational", loss]).median
        goals.append(
            (
                f"VQ {loss}, rows of floats",
                f"at most {most} of the time of doubles",
                ratio <= most,
                f"{ratio:.2f}",
            )
        )
    return goals

"""Threads of fit_linear: one and two of them, turn by turn, and what differs in the results.

    EPFAST_DATA=folder python -m bench threads [--quick] [--threads 1 2]            # 1 min

Rows of 32,561 by 100 normal columns, Census (nearly sparse: one-hot columns) and a9a (sparse), in
chunked and in parallel order, probit. Rounds run a fit of some sweeps on each number of threads;
what is given is the least time of a sweep, and of a fit with its door, over all rounds. A second
thread needs a second core that is free: ``both`` is how many cores two plain threads of the process
got, by the time that the same work took on one and on two.

Results must be the same to the last bit: how rows are cut does not depend on the threads.
"""

from __future__ import annotations

import argparse
import os
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import epfast
from bench.lib import datasets, harness
from bench.speed.linear_task import DIMENSION, synthetic

ROWS, QUICK_ROWS, ROUNDS, QUICK_ROUNDS, SWEEPS = 32_561, 8_000, 40, 3, 6
ORDERS = ("chunked", "parallel")
#: goals
FASTER, SAME = 1.7, 1e-10


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2], help="numbers of threads")


def seconds_of(task: Callable[[], Any]) -> float:
    """Time that passed: of threads, the time of the process is that of all."""
    began = time.perf_counter()
    task()
    return time.perf_counter() - began


def cores() -> float:
    """How many cores two threads get just now."""
    X = np.ones((2000, 500))

    def work() -> None:
        for _ in range(10):
            np.sqrt(X, out=np.empty_like(X))  # without the GIL

    def twice() -> None:
        other = threading.Thread(target=work)
        other.start()
        work()
        other.join()

    return 2.0 * seconds_of(work) / seconds_of(twice)


def data(quick: bool) -> dict[str, tuple[Any, np.ndarray]]:
    """X and y."""
    found = {"normal": synthetic(QUICK_ROWS if quick else ROWS, DIMENSION, "probit")}
    if not quick:
        census = datasets.load("census")
        found["census"] = census.X, census.y
        found["a9a"] = datasets.load_libsvm("a9a")
    return found


def compared(X: Any, y: np.ndarray, order: str, numbers: list[int], rounds: int) -> dict[str, Any]:
    """Least seconds of a sweep and of a fit, by the number of threads; the largest difference."""
    sweep: dict[Any, float] = dict.fromkeys(numbers, np.inf)
    fit, posts = dict(sweep), {}
    for _ in range(rounds):
        for count in numbers:

            def task(count: int = count) -> None:
                posts[count] = epfast.fit_linear(
                    X,
                    y,
                    loss="probit",
                    posterior="full",
                    schedule=epfast.EP(SWEEPS, 0.0, order=order),
                    n_jobs=count,
                )

            fit[count] = min(fit[count], seconds_of(task))
            # the first one lays the rows out
            later = [info.seconds for info in posts[count].history[1:]]
            sweep[count] = min(sweep[count], *later)
    one = posts[numbers[0]]
    differ = {
        count: max(
            float(np.abs((post.mean - one.mean) / np.sqrt(one.variance)).max()),
            float(np.abs(post.precision - one.precision).max() / np.abs(one.precision).max()),
            abs(post.log_evidence - one.log_evidence),
        )
        for count, post in posts.items()
    }
    return {"sweep": sweep, "fit": fit, "differ": differ}


def run(options: argparse.Namespace) -> dict[str, Any]:
    numbers, rounds = options.threads, QUICK_ROUNDS if options.quick else ROUNDS
    if hasattr(os, "sched_setaffinity"):  # the harness held it to one core
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    cells: list[dict[str, Any]] = []
    free = [cores() for _ in range(3)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, (X, y) in data(options.quick).items():
            for order in ORDERS:
                found = compared(X, y, order, numbers, rounds)
                cells.append({"data": name, "order": order, **found})
                free.append(cores())
    first, last = numbers[0], numbers[-1]
    harness.table(
        [
            "data",
            "order",
            "threads",
            "ms of a sweep",
            "times",
            "ms of a fit",
            "times",
            "difference",
        ],
        [
            (
                *(c["data"], c["order"], count),
                *(1e3 * c["sweep"][count], c["sweep"][first] / c["sweep"][count]),
                *(1e3 * c["fit"][count], c["fit"][first] / c["fit"][count]),
                c["differ"][count],
            )
            for c in cells
            for count in numbers
        ],
        f"Sweeps on threads; both: {max(free):.2f} cores at most, {min(free):.2f} at least",
    )
    times = {(c["data"], c["order"]): c["sweep"][first] / c["sweep"][last] for c in cells}
    worst = max(max(c["differ"].values()) for c in cells)
    goals: list[harness.Claim] = [
        (
            *(order, f"{last} threads sweep {FASTER:g} times as fast as {first}"),
            harness.in_part([t >= FASTER for (_, o), t in times.items() if o == order]),
            ", ".join(f"{name} {t:.2f}" for (name, o), t in times.items() if o == order),
        )
        for order in ORDERS
    ]
    goals.append(("all", f"the same results to {SAME:g}", worst <= SAME, f"{worst:.1e}"))
    return {"goals": goals, "cells": cells, "both": free, "load": os.getloadavg()}

"""epfast.dask on two worker processes: the same numbers, few passes, overheads, memory.

    EPFAST_DATA=folder python -m bench dask.accept [--quick]            # 5 min

Rounds of DEP, DSEP and DAEP against the serial schedules, on a9a (sparse) and 200,000 x 20 normal
columns; DEP in the order "as_completed" against EP, many times; what a round of tasks costs where
there is next to nothing to do; memory of this process over 100 passes; rows of four times the
memory of the workers, read at each visit; and two workers against one process, which says something
only where two cores are free.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np
from scipy import sparse

import epfast
import epfast.dask as epd
from bench.lib import datasets, harness
from epfast import DAEP, DEP, DSEP, EP

FEW = EP(3, 0.0, order="sequential")
ROUNDS = {
    "DEP": DEP(8, 5, 0.0, damping=0.5, order="parallel", inner=FEW),
    "DSEP": DSEP(8, 2, 0.0, damping=0.5, batch=1000, order="parallel"),
    "DAEP": DAEP(8, 10, 0.0, damping=0.5, order="parallel"),
}
#: allowed differences: means in sd, precision relative, evidence
SAME = (1e-10, 1e-12, 1e-9)
RUNS, QUICK_RUNS, PASSES = 10, 2, 100
#: of a round, milliseconds: of all, and of each task
BASE, EACH = 15.0, 4.0


@contextmanager
def workers(count: int = 2, **more: Any) -> Iterator[Any]:
    """A client of so many processes of one thread."""
    settings = {"threads_per_worker": 1, "dashboard_address": None} | more
    # Dask's scheduler keeps its last messages, 1,000 to each worker, with all that they hold
    with (
        dask.config.set({"distributed.admin.low-level-log-length": 10}),
        distributed.LocalCluster(n_workers=count, **settings) as cluster,
        distributed.Client(cluster) as client,
    ):
        yield client


def normal(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows, and labels by a logistic model."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(n, d))
    return X, np.where(X @ rng.normal(size=d) + rng.logistic(size=n) > 0, 1.0, -1.0)


def lazy(X: Any, y: np.ndarray, chunks: int = 8) -> tuple[Any, Any]:
    """Collections of so many chunks."""
    size = -(-X.shape[0] // chunks)
    if not sparse.issparse(X):
        return da.from_array(X, (size, X.shape[1])), da.from_array(y, size)
    parts = [X[i : i + size] for i in range(0, X.shape[0], size)]
    blocks = [da.from_array(part, part.shape, asarray=False) for part in parts]
    return da.concatenate(blocks), da.from_array(y, size)


def gaps(a: Any, b: Any) -> tuple[float, float, float]:
    """Of means in sd, of precisions, of evidences."""
    return (
        float(np.abs((a.mean - b.mean) / np.sqrt(b.variance)).max()),
        float(np.abs(a.precision - b.precision).max() / np.abs(b.precision).max()),
        abs(a.log_evidence - b.log_evidence),
    )


def rounds(sets: dict[str, Any]) -> list[dict[str, Any]]:
    """Each schedule in rounds, against that of one process."""
    cells = []
    for name, (X, y) in sets.items():
        for kind, schedule in ROUNDS.items():
            plain = epfast.fit_linear(X, y, schedule=schedule, prior_variance=25.0)
            post = epd.fit_linear(*lazy(X, y), schedule=schedule, prior_variance=25.0)
            cells.append({"data": name, "schedule": kind, "gaps": gaps(post, plain)})
    return cells


def as_completed(sets: dict[str, Any], runs: int) -> list[dict[str, Any]]:
    """Passes to 1e-6, and the distance from EP."""
    cells = []
    for name, (X, y) in sets.items():
        truth = epfast.fit_linear(X, y, schedule=EP(200, 1e-11), prior_variance=25.0)
        found, passes = [], []
        for _ in range(runs):
            schedule = DEP(8, 60, 1e-6, inner=EP(1, 0.0, order="sequential"))
            post = epd.fit_linear(*lazy(X, y), schedule=schedule, prior_variance=25.0)
            found.append(gaps(post, truth))
            passes.append(post.n_sweeps)
        worst = [max(gap[i] for gap in found) for i in (0, 2)]
        cells.append({"data": name, "passes": max(passes), "mean": worst[0], "evidence": worst[1]})
    return cells


def overheads() -> list[dict[str, Any]]:
    """Median milliseconds of a round of tasks on ten rows each."""
    cells = []
    for d in (10, 124):
        for tasks in (2, 8, 32):
            X, y = normal(10 * tasks, d)
            schedule = DAEP(tasks, 15, 0.0, damping=0.5)
            post = epd.fit_linear(*lazy(X, y, tasks), schedule=schedule, prior_variance=1e-2)
            spent = 1e3 * float(np.median([info.seconds for info in post.history[3:]]))
            cells.append({"columns": d, "tasks": tasks, "ms": spent, "goal": BASE + EACH * tasks})
    return cells


def growth() -> float:
    """Bytes that this process gains over the last 80 of 100 passes."""
    X, y = normal(2000, 50)
    seen: list[int] = []

    def look(info: Any, state: Any) -> None:
        if info.sweep % 20 == 0:
            gc.collect()
            seen.append(tracemalloc.get_traced_memory()[0])

    tracemalloc.start()
    epd.fit_linear(*lazy(X, y), schedule=DEP(8, PASSES, 0.0, inner=FEW), callback=look)
    tracemalloc.stop()
    return float(seen[-1] - seen[0])


def _written(path: Path, n: int, d: int, chunk: int) -> tuple[Any, Any]:
    """Rows on disk, one file per chunk, which are read when they are asked for."""
    rng = np.random.default_rng(1)
    theta = rng.normal(size=d)
    blocks, labels = [], []
    for i in range(0, n, chunk):
        X = rng.normal(size=(min(chunk, n - i), d))
        np.save(path / f"{i}.npy", X)
        labels.append(np.where(X @ theta + rng.logistic(size=len(X)) > 0, 1.0, -1.0))
        blocks.append(
            da.from_delayed(dask.delayed(np.load)(str(path / f"{i}.npy")), X.shape, X.dtype)
        )
    return da.concatenate(blocks), da.from_array(np.concatenate(labels), chunk)


def _peak() -> float:
    """Largest memory of this process so far, in bytes."""
    return float(harness.peak_memory())


def out_of_core(quick: bool) -> dict[str, Any]:
    """Rows of four times the memory that both workers have."""
    limit = (400 if quick else 500) << 20
    d, chunk = 100, 20_000
    n = 4 * 2 * limit // (8 * d)
    with tempfile.TemporaryDirectory() as folder:
        X, y = _written(Path(folder), n, d, chunk)
        with workers(memory_limit=limit) as client:
            began = time.perf_counter()
            schedule = DEP(len(X.chunks[0]), 4 if quick else 8, 1e-4, inner=EP(2, 0.0))
            post = epd.fit_linear(X, y, schedule=schedule, persist=False, prior_variance=25.0)
            spent = time.perf_counter() - began
            peaks = list(client.run(_peak).values())
    return {
        **{"rows": n, "bytes": 8 * n * d, "limit": limit, "peak": max(peaks)},
        **{"passes": post.n_sweeps, "change": post.history[-1].change, "seconds": spent},
    }


def faster(quick: bool) -> dict[str, Any]:
    """Seconds of passes of one process and of two workers, with the rows in memory."""
    X, y = normal(100_000 if quick else 1_000_000, 100)
    schedule = {"shards": 8, "sweeps": 4, "tol": 0.0, "inner": EP(2, 0.0, order="sequential")}
    plain = epfast.fit_linear(X, y, schedule=DEP(**schedule))
    post = epd.fit_linear(*lazy(X, y), schedule=DEP(**schedule))
    one, two = (min(info.seconds for info in p.history) for p in (plain, post))
    return {"rows": len(X), "one": one, "two": two, "times": one / two}


def run(options: argparse.Namespace) -> dict[str, Any]:
    sets: dict[str, Any] = {"normal": normal(20_000 if options.quick else 200_000, 20)}
    if not options.quick:
        sets["a9a"] = datasets.load_libsvm("a9a")
    with harness.all_cores(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with workers():
            same = rounds(sets)
            soon = as_completed(sets, QUICK_RUNS if options.quick else RUNS)
            cost, gained = overheads(), growth()
            speed = faster(options.quick)
        large = out_of_core(options.quick)
    heads = ["data", "schedule", "mean, sd", "precision", "evidence"]
    harness.table(heads, [(c["data"], c["schedule"], *c["gaps"]) for c in same], "Rounds")
    heads = ["data", "passes, most", "mean, sd", "evidence"]
    harness.table(heads, [tuple(c.values()) for c in soon], "As completed, from EP")
    harness.table(list(cost[0]), [tuple(c.values()) for c in cost], "A round of empty tasks")
    harness.table(list(large), [tuple(large.values())], "Four times the memory")
    harness.table(list(speed), [tuple(speed.values())], "Two workers against one process")
    worst = [max(c["gaps"][i] for c in same) for i in range(3)]
    goals: list[harness.Claim] = [
        (
            *("rounds", "those of one process"),
            all(gap <= most for gap, most in zip(worst, SAME, strict=True)),
            ", ".join(f"{gap:.1e}" for gap in worst),
        ),
        (
            *("as completed", "within 1e-5 sd of EP in at most 20 passes"),
            all(c["mean"] <= 1e-5 and c["passes"] <= 20 for c in soon),
            ", ".join(f"{c['data']}: {c['mean']:.1e} in {c['passes']}" for c in soon),
        ),
        (
            *("overhead", f"{BASE:g} ms and {EACH:g} ms per task"),
            harness.in_part([c["ms"] <= c["goal"] for c in cost]),
            ", ".join(f"{c['ms']:.0f} of {c['goal']:.0f}" for c in cost),
        ),
        ("memory", "no growth over 80 passes", gained < 1 << 20, f"{gained:.0f} bytes"),
        (
            *("out of core", "peak below the limit of a worker"),
            large["peak"] <= large["limit"],
            f"{large['peak'] / 2**20:.0f} of {large['limit'] / 2**20:.0f} MB",
        ),
        ("speed", "1.7 times one process", speed["times"] >= 1.7, f"{speed['times']:.2f}"),
    ]
    tables = {"rounds": same, "as_completed": soon, "overheads": cost}
    return {"goals": goals, **tables, "large": large, "speed": speed}

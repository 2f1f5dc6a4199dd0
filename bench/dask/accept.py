"""epfast.dask on two worker processes: passes, overheads, memory, and against one process.

    EPFAST_DATA=folder python -m bench dask.accept [--quick]            # 10 min

DEP in the order "as_completed" against EP, many times, on normal rows, census and a9a (sparse);
what a round of tasks costs where there is next to nothing to do; rows of four times the memory of
the workers, read at each visit; and two workers against one process, which says something only
where two cores are free. Rounds are those of one process: tests/dask/ compares them.
"""

from __future__ import annotations

import argparse
import tempfile
import time
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
from epfast import ADF, DAEP, DEP, EP

RUNS, QUICK_RUNS = 10, 2
#: rows whose passes are timed
TIMED, QUICK_TIMED = 2_000_000, 100_000
#: memory of a worker, MB, and rows of a quick run, which fill none
LIMIT, QUICK_ROWS = 600, 60_000
#: of a round, milliseconds: of all, and of each task
BASE, EACH = 15.0, 4.0


@contextmanager
def workers(count: int = 2, **more: Any) -> Iterator[Any]:
    """A client of so many processes of one thread."""
    settings = {"threads_per_worker": 1, "dashboard_address": None} | more
    # Dask's scheduler keeps its last messages, 1,000 to each worker, with all that they hold
    with (
        dask.config.set(
            {
                "distributed.admin.low-level-log-length": 10,
                # workers that pause where they come near to their limit say so
                "distributed.logging.distributed": "critical",
            }
        ),
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
    """Collections of so many chunks, which end where minibatches of 100 rows do."""
    size = -(-X.shape[0] // chunks)
    if X.shape[0] >= 100 * chunks:
        size = -(-size // 100) * 100
    if not sparse.issparse(X):
        return da.from_array(X, (size, X.shape[1])), da.from_array(y, size)
    parts = [X[i : i + size] for i in range(0, X.shape[0], size)]
    blocks = [da.from_array(part, part.shape, asarray=False) for part in parts]
    return da.concatenate(blocks), da.from_array(y, size)


def block(i: int, n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal rows of a chunk, and labels by a logistic model."""
    theta = 2.0 * np.random.default_rng(7).normal(size=d) / np.sqrt(d)
    rng = np.random.default_rng([7, i])
    X = rng.normal(size=(n, d))
    return X, np.where(X @ theta + rng.logistic(size=n) > 0, 1.0, -1.0)


def made(n: int, d: int, chunks: int) -> tuple[Any, Any]:
    """Collections whose chunks are made on the workers."""
    size = n // chunks
    parts = [dask.delayed(block, nout=2)(i, size, d) for i in range(chunks)]
    X = [da.from_delayed(part[0], (size, d), np.float64) for part in parts]
    y = [da.from_delayed(part[1], (size,), np.float64) for part in parts]
    return da.concatenate(X), da.concatenate(y)


def whole(n: int, d: int, chunks: int) -> tuple[np.ndarray, np.ndarray]:
    """The same rows, here."""
    parts = [block(i, n // chunks, d) for i in range(chunks)]
    X, y = zip(*parts, strict=True)
    return np.concatenate(X), np.concatenate(y)


def apart(a: Any, b: Any) -> tuple[float, float]:
    """The largest distance of a mean in sd, and that of the log evidences."""
    mean = float(np.abs((a.mean - b.mean) / np.sqrt(b.variance)).max())
    return mean, abs(a.log_evidence - b.log_evidence)


def as_completed(sets: dict[str, Any], runs: int) -> list[dict[str, Any]]:
    """Passes to 1e-6, and the distance from EP: the largest of all runs."""
    cells = []
    for name, (X, y) in sets.items():
        truth = epfast.fit_linear(X, y, schedule=EP(200, 1e-11), prior_variance=25.0)
        schedule, rows = DEP(8, 60, 1e-6, inner=EP(1, 0.0, order="sequential")), lazy(X, y)
        given = {"schedule": schedule, "prior_variance": 25.0}
        posts = [epd.fit_linear(*rows, **given) for _ in range(runs)]
        mean, evidence = np.max([apart(post, truth) for post in posts], axis=0)
        passes = max(post.n_sweeps for post in posts)
        cells.append({"data": name, "passes": passes, "mean": mean, "evidence": evidence})
    return harness.show(cells, "As completed, from EP")


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
    return harness.show(cells, "A round of empty tasks")


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


def out_of_core(quick: bool) -> list[dict[str, Any]]:
    """Rows of four times the memory that both workers have."""
    limit = LIMIT << 20
    d, chunk, cells = 100, 20_000, []
    n = QUICK_ROWS if quick else 4 * 2 * limit // (8 * d)
    with tempfile.TemporaryDirectory() as folder:
        X, y = _written(Path(folder), n, d, chunk)
        for schedule in (ADF(), DEP(tol=1e-4, inner=EP(2, 0.0))):
            with workers(memory_limit=limit) as client:
                began = time.perf_counter()
                given = {"schedule": schedule, "persist": False, "prior_variance": 25.0}
                post = epd.fit_linear(X, y, **given)
                spent = time.perf_counter() - began
                peak = max(client.run(_peak).values())
            cells.append(
                {
                    "schedule": type(schedule).__name__,
                    "rows": n,
                    "bytes": 8 * n * d,
                    "limit": limit,
                    "peak": peak,
                    "passes": post.n_sweeps,
                    "change": post.history[-1].change,
                    "seconds": spent,
                    "lost": sum(info.n_lost for info in post.history),
                }
            )
    return harness.show(cells, "Four times the memory")


def faster(quick: bool) -> list[dict[str, Any]]:
    """Seconds of passes of one process and of two workers, with the rows in memory."""
    n, d, chunks, cells = QUICK_TIMED if quick else TIMED, 100, 8, []
    # both sides at once would want four cores: passes of one, then of the other
    inner = {"one sweep": EP(1, 0.0, order="parallel"), "two": EP(2, 0.0, order="sequential")}
    here, there = whole(n, d, chunks), made(n, d, chunks)
    for name, sweeps in inner.items():
        schedule = DEP(chunks, 4, 0.0, inner=sweeps)
        times = []
        for _ in range(2):
            post = epd.fit_linear(*there, schedule=schedule)
            plain = epfast.fit_linear(*here, schedule=schedule)
            times.append([[info.seconds for info in p.history[1:]] for p in (plain, post)])
        one, two = (float(np.median([t[i] for t in times])) for i in (0, 1))
        cells.append({"rows": n, "inner": name, "one": one, "two": two, "times": one / two})
    return harness.show(cells, "Two workers against one process")


def run(options: argparse.Namespace) -> dict[str, Any]:
    quick = options.quick
    sets = {"normal": normal(20_000, 20)}
    if not quick:
        census = datasets.load("census")
        sets |= {"census": (census.X, census.y), "a9a": datasets.load_libsvm("a9a")}
    with harness.all_cores(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with workers():
            speed, cost = faster(quick), overheads()
            soon = as_completed(sets, QUICK_RUNS if quick else RUNS)
        large = out_of_core(quick)
    goals: list[harness.Claim] = [
        (
            *("as completed", "within 1e-5 sd of EP in at most 20 passes"),
            all(c["mean"] <= 1e-5 and c["passes"] <= 20 for c in soon),
            ", ".join(f"{c['data']}: {c['mean']:.1e} in {c['passes']}" for c in soon),
        ),
        (
            *("overhead", f"{BASE:g} ms and {EACH:g} ms per shard"),
            harness.in_part([c["ms"] <= c["goal"] for c in cost]),
            ", ".join(f"{c['ms']:.0f} of {c['goal']:.0f}" for c in cost),
        ),
        (
            *("out of core", "peak below the limit of a worker, no task lost"),
            all(c["peak"] <= c["limit"] and not c["lost"] for c in large),
            ", ".join(f"{c['peak'] / 2**20:.0f} of {c['limit'] / 2**20:.0f} MB" for c in large),
        ),
        (
            *("speed", "1.7 times one process"),
            harness.in_part([c["times"] >= 1.7 for c in speed]),
            ", ".join(f"{c['times']:.2f}" for c in speed),
        ),
    ]
    tables = {"as_completed": soon, "overheads": cost, "large": large, "speed": speed}
    return {"goals": goals, **tables}

"""Workers killed at random times: every fit ends, and no shard counts twice.

    python -m bench dask.kills [--quick]            # 10 min

One of two worker processes gets SIGKILL at a random time of each of 50 fits; it comes again, and
its rows are made again. The posterior is compared with that of EP, and with its own sites.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
import warnings
from typing import Any

import dask
import dask.array as da
import distributed
import numpy as np

import epfast
import epfast.dask as epd
from bench.dask.accept import normal
from bench.lib import harness
from epfast import DEP, EP

RUNS, QUICK_RUNS, ROWS, COLUMNS = 50, 4, 20_000, 20
#: distance from EP, in sd, and of q from the product of its sites, relative
NEAR, ONCE = 1e-4, 1e-8


def _cluster() -> Any:
    return distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def one(client: Any, X: Any, y: Any, after: float, victim: int, truth: Any) -> dict[str, Any]:
    """A fit, and what it is worth."""
    timer = threading.Timer(after, _kill, (victim,))
    timer.start()
    began, error = time.perf_counter(), ""
    try:
        post = epd.fit_linear(X, y, schedule=DEP(8, 60, 1e-9), client=client)
    except epfast.ExecutorFailed as failed:
        post, error = failed.posterior, str(failed)
    spent = time.perf_counter() - began
    timer.join()
    gap = twice = np.inf
    if post is not None:
        gap = float(np.abs((post.mean - truth.mean) / np.sqrt(truth.variance)).max())
        whole = post.prior_precision + post.sites.precision.sum(axis=0)
        twice = float(np.abs(post.precision - whole).max() / np.abs(whole).max())
    return {"after": after, "gap": gap, "twice": twice, "seconds": spent, "error": error}


def run(options: argparse.Namespace) -> dict[str, Any]:
    rows, labels = normal(ROWS, COLUMNS)
    truth = epfast.fit_linear(rows, labels, schedule=EP(200, 1e-11))
    X, y = da.from_array(rows, (ROWS // 8, COLUMNS)), da.from_array(labels, ROWS // 8)
    rng, found = np.random.default_rng(0), []
    quiet = {"distributed.logging.distributed": "critical"}
    with harness.all_cores(), warnings.catch_warnings(), dask.config.set(quiet):
        warnings.simplefilter("ignore")
        cluster = _cluster()
        try:
            length = 2.0
            while len(found) < (QUICK_RUNS if options.quick else RUNS):
                with distributed.Client(cluster) as client:
                    try:
                        client.wait_for_workers(2, timeout=20)
                    except TimeoutError:  # the nanny gave up: another cluster
                        cluster.close()
                        cluster = _cluster()
                        continue
                    told = client.run(os.getpid, on_error="return").values()
                    pids = sorted(pid for pid in told if isinstance(pid, int))
                    if len(pids) < 2:  # one that the fit before has left dying
                        continue
                    after = float(rng.uniform(0.0, length))
                    victim = pids[int(rng.integers(2))]
                    found.append(one(client, X, y, after, victim, truth))
                    length = min(length, found[-1]["seconds"])
        finally:
            cluster.close()
    heads = ["killed after, s", "from EP, sd", "counted twice", "seconds", "error"]
    harness.table(heads, [tuple(cell.values()) for cell in found], "Fits")
    ended = [cell for cell in found if not cell["error"]]
    goals: list[harness.Claim] = [
        (
            *("kills", f"each fit ends within {NEAR:g} sd of EP, or in an error with a state"),
            all(cell["gap"] <= NEAR for cell in ended),
            f"{len(ended)} of {len(found)} end; {max(cell['gap'] for cell in ended):.1e} sd",
        ),
        (
            *("kills", f"q is the product of its sites to {ONCE:g}"),
            all(cell["twice"] <= ONCE for cell in found),
            f"{max(cell['twice'] for cell in found):.1e}",
        ),
    ]
    return {"goals": goals, "fits": found}

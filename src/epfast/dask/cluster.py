"""Where shards are visited: the workers of a client, or threads of this process."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from epfast import _checks
from epfast.dask.engines import Shard, Workers
from epfast.dask.needs import annotate, delayed, distributed
from epfast.dask.worker import Opaque, answers, facts_of, forget, good, version
from epfast.inference.executors import attempted
from epfast.inference.runtime import cores

#: of what a thread of a worker has free, the largest share of a shard that is kept. Of one that is
#: read for each visit, which is there twice, as chunks and as a whole, beside the one that is read
#: ahead
KEPT_SHARE, READ_SHARE = 0.25, 0.125
#: seconds within which the client of a worker, which its first task makes, connects
CONNECTS = 30.0
#: bytes that EP keeps per row: three numbers, as they were and as they are
ROW_BYTES = 48


@contextmanager
def client_at_work(client: Any) -> Iterator[Any]:
    """The client, the default client, or None, while the caller waits for tasks.

    Within a task it is that of the worker by default. The thread leaves the worker's pool meanwhile
    (secede): tasks that filled all threads would else wait for tasks that never begin.
    """
    try:
        distributed.get_worker()
    except ValueError:
        yield client_at_door(client)
        return
    with distributed.worker_client() as own:
        ends = time.monotonic() + CONNECTS
        # another task of the worker may have just made it
        while own.status in ("newly-created", "connecting") and time.monotonic() < ends:
            time.sleep(0.01)
        yield client_at_door(own if client is None else client)


def workers_of(client: Any, name: str) -> Workers:
    """The cluster of a client, or threads where there is none."""
    return LocalThreads() if client is None else Cluster(client, name)


def client_at_door(client: Any) -> Any:
    """The client, checked, or the default client, or None."""
    if client is None:
        try:
            client = distributed.default_client()  # type: ignore[no-untyped-call]
        except ValueError:
            return None
    if not isinstance(client, distributed.Client):
        raise TypeError(
            f"client is {_checks.describe(client)}; allowed: a distributed.Client or None"
        )
    if client.asynchronous:
        raise ValueError("client is asynchronous; allowed: one that waits for its answers")
    if client.status != "running":
        raise ValueError(f"client is {client.status}; allowed: one that is running")
    return client


class Cluster(Workers):
    """Workers of a client: each shard goes where its rows are, or to any other one."""

    def __init__(self, client: Any, name: str) -> None:
        self.client, self.name, self.count = client, name, 0
        #: whether shards stay in memory
        self.are_kept = False
        self._check_versions()
        info = client.scheduler_info(n_workers=-1)["workers"]
        self.threads_of: dict[Any, int] = {name: w["nthreads"] for name, w in info.items()}
        super().__init__(max(1, sum(self.threads_of.values())))
        #: free memory of workers that have a limit, and their threads
        self.free = [
            (max(0, w["memory_limit"] - w["metrics"].get("memory", 0)), w["nthreads"])
            for w in info.values()
            if w["memory_limit"]
        ]

    def shard_bytes(self, persist: bool, rows: float) -> int | None:
        if not self.free:
            return None
        own = 0.0 if persist or math.isnan(rows) else ROW_BYTES * rows / len(self.threads_of)
        share = KEPT_SHARE if persist else READ_SHARE
        return max(1, int(min(share * max(f - own, 0.1 * f) / threads for f, threads in self.free)))

    def _check_versions(self) -> None:
        """Refuse workers whose epfast is another one."""
        ours = version()
        theirs = self.client.run(version, on_error="return")
        if not theirs:
            raise ValueError("client has no workers; allowed: one at least")
        for error in theirs.values():
            if isinstance(error, ImportError):
                raise ValueError(
                    f"workers cannot import epfast ({error}); allowed: workers with epfast {ours}"
                ) from error
        # one that has just died says nothing
        versions = {one for one in theirs.values() if isinstance(one, str)}
        others = sorted(versions - {ours})
        if others:
            raise ValueError(
                f"workers have epfast {', '.join(others)} and the client {ours}; allowed: the same"
            )

    def loaded(self, loads: list[Any], persist: bool) -> tuple[Any, Any, Any]:
        self.are_kept = persist
        if not persist:
            facts = self.client.compute([delayed(facts_of)(load) for load in loads])
            addresses = sorted(self.client.nthreads())
            homes = [[addresses[k % len(addresses)]] for k in range(len(loads))]
            return loads, self.client.gather(facts), homes
        futures = self.client.compute(loads)
        facts = self.client.gather([self.client.submit(facts_of, future) for future in futures])
        where = self.client.who_has(futures)
        return futures, facts, [list(where.get(future.key, ())) for future in futures]

    def parcels(self, shards: Sequence[Shard]) -> list[list[int]]:
        """One for each thread of the workers that have the shards: a task takes milliseconds.

        Rows that are read for a visit are read one shard at a time.
        """
        if not self.are_kept:
            return super().parcels(shards)
        where: dict[Any, list[int]] = {}
        for i, shard in enumerate(shards):
            where.setdefault(shard.home, []).append(i)
        parcels: list[list[int]] = []
        for home, positions in where.items():
            count = min(len(positions), self.threads_of.get(home, 1))
            parcels += [positions[first::count] for first in range(count)]
        return parcels

    def idles(self, shard: Shard, flying: Sequence[Shard]) -> bool:
        busy = sum(other.home == shard.home for other in flying)
        return busy < self.threads_of.get(shard.home, 1)

    def start(self, parcels: list[Sequence[tuple[Any, ...]]]) -> list[Future[Any]]:
        tasks, places = [], []
        for parcel in parcels:
            first: Shard = parcel[0][1]
            # where its cache is, or another one where that worker is gone
            pinned = {"workers": first.homes, "allow_other_workers": True}
            places.append(pinned if first.homes else {})
            with annotate(**places[-1]):
                task = delayed(attempted, pure=False)
                tasks.append(task(answers, *_apart(parcel), dask_key_name=self._key(first)))
        if self.are_kept:
            # all in one message, since the next one waits for 10 ms; first come, first served
            given = {"optimize_graph": False, "fifo_timeout": "100 ms"}
            return list(self.client.compute(tasks, **given))
        pairs = zip(tasks, places, strict=True)
        return [self.client.compute(task, **place) for task, place in pairs]

    def _key(self, shard: Shard) -> tuple[str, str, int]:
        """The name of a task, by its first shard, and its number.

        The first part is that of a group, which the scheduler remembers for ever once it is empty:
        it never is, while a fit goes on.
        """
        self.count += 1
        return f"{self.name}-{self.token}", f"shard {shard.number}", self.count

    def close(self) -> None:
        if self.client.status == "running":
            self.client.run(forget, self.token, on_error="ignore")


def _apart(parcel: Sequence[tuple[Any, ...]]) -> tuple[list[Any], Opaque]:
    """The rows of calls, which Dask is to find, and the rest of each."""
    return [call[1].rows for call in parcel], Opaque([(call[0], *call[2:]) for call in parcel])


class LocalThreads(Workers):
    """Threads of this process."""

    def __init__(self) -> None:
        super().__init__(cores())
        self.pool = ThreadPoolExecutor(self.width, thread_name_prefix="epfast-dask")

    def loaded(self, loads: list[Any], persist: bool) -> tuple[Any, Any, Any]:
        rows = list(self.pool.map(good, loads)) if persist else loads
        return rows, self.pool.map(facts_of, rows), [()] * len(rows)

    def start(self, parcels: list[Sequence[tuple[Any, ...]]]) -> list[Future[Any]]:
        return [self.pool.submit(attempted, answers, *_apart(parcel)) for parcel in parcels]

    def close(self) -> None:
        self.pool.shutdown(wait=False, cancel_futures=True)
        forget(self.token)

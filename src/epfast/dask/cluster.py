"""Where shards are visited: the workers of a client, or threads of this process."""

from __future__ import annotations

import math
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from itertools import cycle, repeat
from typing import TypeVar

from dask.delayed import Delayed

from epfast import _checks
from epfast.dask.needs import annotate, delayed, distributed
from epfast.dask.worker import (
    Facts,
    Lazy,
    Opaque,
    Passed,
    Placed,
    answers,
    bytes_of,
    facts_of,
    forget,
    good,
    packed,
    unpacked,
    version,
)
from epfast.gaussian.problem import Problem
from epfast.gaussian.rows import NO_ROWS
from epfast.gaussian.shards import KeptRows, Update
from epfast.inference.executors import Answers, Calls, Key, Tasks
from epfast.inference.runtime import cores

T = TypeVar("T")
#: of shards: rows, facts and homes
Parts = Iterable[tuple[Lazy, Facts, Sequence[str]]]
#: of what a thread of a worker has free, the largest share of a shard that is kept. Of one that is
#: read for each visit, which is there twice, as chunks and as a whole, beside the one that is read
#: ahead
KEPT_SHARE, READ_SHARE = 0.25, 0.125
#: seconds within which the client of a worker, which its first task makes, connects
CONNECTS = 30.0
#: bytes that EP keeps per row: three numbers, as they were and as they are
ROW_BYTES = 48


@contextmanager
def client_at_work(client: distributed.Client | None) -> Iterator[distributed.Client | None]:
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


def workers_of(client: distributed.Client | None, name: str) -> Workers[Update | Passed]:
    """The cluster of a client, or threads where there is none."""
    if client is not None:
        return Cluster(client, name)
    return Workers(ThreadPoolExecutor(cores(), thread_name_prefix="epfast-dask"))


def client_at_door(client: distributed.Client | None) -> distributed.Client | None:
    """The client, checked, or the default client, or None."""
    if client is None:
        try:
            client = distributed.default_client()
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


def placed_in(call: partial[T]) -> Placed:
    """The rows of a call, those of its first argument, a problem."""
    shard: Problem = call.args[0]
    rows = shard.data.X
    assert isinstance(rows, Placed)
    return rows


class Workers(Tasks[T]):
    """Tasks on rows where these are, with the bytes that they took. Here: in threads of ours."""

    def __init__(self, executor: Executor | None, width: int | None = None) -> None:
        super().__init__(executor, width)
        self.is_remote = True
        #: of the fit
        self.token = uuid.uuid4().hex

    def shard_bytes(self, persist: bool, rows: float) -> int | None:
        """Most bytes of a shard of so many rows, or NaN, in all. None: not known."""
        return None

    def shards(self, loads: list[Delayed], persist: bool, intercept: bool) -> list[Placed]:
        """Those that have rows, loaded once. Who persists keeps them, else each visit loads."""
        parts = [part for part in self.loaded(loads, persist, intercept) if part[1].rows]
        return [Placed(KeptRows(self.token, k, 0), *part) for k, part in enumerate(parts)]

    def loaded(self, loads: list[Delayed], persist: bool, intercept: bool) -> Parts:
        """See :meth:`shards`: rows, facts and homes."""
        assert self.executor is not None
        rows: list[Lazy] = list(self.executor.map(good, loads)) if persist else [*loads]
        facts = self.executor.map(partial(facts_of, intercept=intercept), rows)
        return zip(rows, facts, repeat(()), strict=False)

    def submitted(self, parcels: Sequence[Calls[T]]) -> list[Future[Answers[T]]]:
        assert self.executor is not None
        split = map(self._apart, parcels)
        return [self.executor.submit(answers, rows, calls) for rows, calls in split]

    def _apart(self, calls: Calls[T]) -> tuple[list[Lazy], Opaque[T]]:
        """The rows of calls, which Dask is to find, and the calls without them."""
        sent = []
        for call in calls:
            problem, *rest = call.args
            rest = [packed(part) for part in rest]
            self.n_bytes += bytes_of(tuple(rest))
            problem = problem._replace(data=NO_ROWS)
            sent.append(partial(call.func, problem, *rest, **call.keywords))
        return [placed_in(call).rows for call in calls], Opaque(sent)

    def take(self) -> tuple[Key, list[T] | None]:
        key, values = super().take()
        self.n_bytes += bytes_of(tuple(values or ()))
        return key, None if values is None else list(map(unpacked, values))

    def idles(self, shard: Placed, others: Sequence[Placed]) -> bool:
        """Whether a worker that has a shard does nothing while others are visited."""
        return True

    def close(self) -> None:
        """Forget the fit."""
        if self.executor is not None:
            self.executor.shutdown(wait=False, cancel_futures=True)
        forget(self.token)


class Cluster(Workers[T]):
    """Workers of a client: each shard goes where its rows are, or to any other one."""

    client: distributed.Client

    def __init__(self, client: distributed.Client, name: str) -> None:
        info = client.scheduler_info(n_workers=-1)["workers"]
        self.threads_of: dict[str, int] = {name: w["nthreads"] for name, w in info.items()}
        super().__init__(None, max(1, sum(self.threads_of.values())))
        self.client, self.name, self.n_tasks = client, name, 0
        self._check_versions()
        #: whether shards stay in memory
        self.are_kept = False
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

    def loaded(self, loads: list[Delayed], persist: bool, intercept: bool) -> Parts:
        self.are_kept = persist
        if not persist:
            facts = self.client.compute([delayed(facts_of)(load, intercept) for load in loads])
            addresses = sorted(self.client.nthreads())
            homes = ([address] for address in cycle(addresses))
            return zip(loads, self.client.gather(facts), homes, strict=False)
        futures = self.client.compute(loads)
        facts = [self.client.submit(facts_of, future, intercept) for future in futures]
        facts = self.client.gather(facts)
        where = self.client.who_has(futures)
        homes = (list(where.get(future.key, ())) for future in futures)
        return zip(futures, facts, homes, strict=True)

    def parcels(self, calls: Calls[T]) -> list[list[int]]:
        """One for each thread of the workers that have the shards: a task takes milliseconds.

        Rows that are read for a visit are read one shard at a time.
        """
        if not self.are_kept:
            return super().parcels(calls)
        where: dict[str | None, list[int]] = {}
        for i, call in enumerate(calls):
            where.setdefault(placed_in(call).home, []).append(i)
        parcels: list[list[int]] = []
        for home, positions in where.items():
            count = min(len(positions), self._threads(home))
            parcels += [positions[first::count] for first in range(count)]
        return parcels

    def _threads(self, home: str | None) -> int:
        return 1 if home is None else self.threads_of.get(home, 1)

    def idles(self, shard: Placed, others: Sequence[Placed]) -> bool:
        return sum(other.home == shard.home for other in others) < self._threads(shard.home)

    def submitted(self, parcels: Sequence[Calls[T]]) -> list[Future[Answers[T]]]:
        tasks, places = [], []
        for calls in parcels:
            first = placed_in(calls[0])
            # where its cache is, or another one where that worker is gone
            pinned = {"workers": first.homes, "allow_other_workers": True}
            places.append(pinned if first.homes else {})
            with annotate(**places[-1]):
                task = delayed(answers, pure=False)
                tasks.append(task(*self._apart(calls), dask_key_name=self._key(first)))
        if self.are_kept:
            # all in one message, since the next one waits for 10 ms; first come, first served
            return list(self.client.compute(tasks, optimize_graph=False, fifo_timeout="100 ms"))
        pairs = zip(tasks, places, strict=True)
        return [self.client.compute(task, **place) for task, place in pairs]

    def _key(self, rows: Placed) -> tuple[str, str, int]:
        """The name of a task, by its first shard, and its number.

        The first part is that of a group, which the scheduler remembers for ever once it is empty:
        it never is, while a fit goes on.
        """
        self.n_tasks += 1
        return f"{self.name}-{self.token}", f"shard {rows.kept.shard}", self.n_tasks

    def close(self) -> None:
        if self.client.status == "running":
            self.client.run(forget, self.token, on_error="ignore")

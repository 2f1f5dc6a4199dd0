"""Work of a fit on an executor of ``concurrent.futures``: threads, processes, a cluster's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from epfast import _checks
from epfast.inference.records import ExecutorFailed
from epfast.inference.runtime import Tick, cores, no_tick

#: seconds between two looks while waiting, after which Ctrl-C acts at the latest. They take .3 % of
#: a core
LOOK = 0.1
#: a task that is lost so many times in a row is lost for good: where one in ten is lost by chance,
#: one in 10,000 is lost so often
PATIENCE = 4
#: seconds after which an answer that was there is lost: its worker has died with it. One of 5,000
#: columns, 200 MB, comes in that time at 7 MB a second
GONE = 30.0

T = TypeVar("T")
#: of a task: a shard, and the number of its visit
Key = tuple[int, int]
#: calls of one task, and what comes back: their values, or what one has raised
Calls = Sequence[partial[T]]
Answers = list[T] | Exception


def attempted(calls: Calls[T]) -> Answers[T]:
    """Make the calls of a task. What they raise is a value: an executor's own errors are others."""
    try:
        return [call() for call in calls]
    except Exception as error:  # raised again by who asked
        return error


def check_executor(executor: Executor) -> None:
    """Check that this is an executor."""
    if not isinstance(executor, Executor):
        is_client = hasattr(executor, "get_executor")
        hint = "; a Dask client has one: client.get_executor()" if is_client else ""
        raise TypeError(
            f"executor is {_checks.describe(executor)}; allowed: a concurrent.futures.Executor or "
            f"None{hint}"
        )


def workers_of(executor: Executor) -> int:
    """How many tasks an executor does at a time, as far as it can be known."""
    count = getattr(executor, "_max_workers", None)  # of pools; they do not say it otherwise
    if isinstance(count, int):
        return max(1, count)
    threads = getattr(getattr(executor, "_client", None), "nthreads", None)  # of Dask's
    if threads is not None:
        return max(1, int(sum(threads().values())))
    return cores()


class Tasks(Generic[T]):
    """Tasks of one fit. Without an executor they are done here, at once and in their order.

    A task makes a call of a pure function, or several. The executor is the user's: it is never shut
    down. What it loses is sent again.

    Parameters
    ----------
    executor : concurrent.futures.Executor, optional
    width : int, optional
        Tasks that are done at a time. By default as many as the executor has workers.
    """

    def __init__(self, executor: Executor | None = None, width: int | None = None) -> None:
        self.executor = executor
        if width is None:
            width = 1 if executor is None else workers_of(executor)
        self.width = width
        #: whether there are tasks, and calls are not made here
        self.is_remote = executor is not None
        #: of Dask: tasks that are sent while it looks for its scheduler are never done
        self.client = getattr(executor, "_client", None)
        #: tasks that the executor lost, so far, and bytes that went to tasks and came back, where
        #: they are counted
        self.n_lost = self.n_bytes = 0
        self._in_flight: dict[Future[Answers[T]], Key] = {}
        #: tasks that are done. Ctrl-C in ``concurrent.futures.wait`` could leave its locks closed
        self._done: SimpleQueue[Future[Answers[T]]] = SimpleQueue()
        #: how many times in a row each task was lost
        self._losses: dict[Key, int] = {}
        #: tasks whose answers were taken. A cluster forgets them after it was sent the next ones,
        #: since a message goes out every 10 ms
        self._answered: list[Future[Answers[T]]] = []

    def in_flight(self) -> list[Key]:
        """Keys of the tasks in flight."""
        return list(self._in_flight.values())

    def begin(self, parcels: Mapping[Key, Calls[T]]) -> None:
        """Begin tasks, each a list of calls, by their keys.

        Raises
        ------
        ExecutorFailed
            If the executor takes no more.
        """
        try:
            futures = self.submitted(list(parcels.values()))
        except Exception as error:
            raise _failed("takes no task", error) from error
        for key, future in zip(parcels, futures, strict=True):
            self._in_flight[future] = key
            future.add_done_callback(self._done.put)
        self._answered.clear()

    def submitted(self, parcels: Sequence[Calls[T]]) -> list[Future[Answers[T]]]:
        """Submit tasks: :func:`attempted` calls."""
        assert self.executor is not None
        return [self.executor.submit(attempted, calls) for calls in parcels]

    def parcels(self, calls: Calls[T]) -> list[list[int]]:
        """Positions of the calls that are best made by one task."""
        return [[i] for i in range(len(calls))]

    def take(self) -> tuple[Key, list[T] | None]:
        """The key and the answers of the task that is done first. None: they were lost.

        Raises
        ------
        ExecutorFailed
            If the task was lost too often, or the executor is gone.
        Exception
            What the task itself raised.
        """
        while True:
            status = getattr(self.client, "status", "running")
            if status != "running":
                raise _failed("is gone", ConnectionError(f"its client is {status}"))
            try:
                # a wait without an end would keep Ctrl-C out on some systems
                done = self._done.get(timeout=LOOK)
                break
            except Empty:
                continue
        key = self._in_flight.pop(done)
        self._answered.append(done)
        try:
            values = done.result(timeout=GONE)
        except Exception as error:
            self.n_lost += 1
            count = self._losses[key] = self._losses.get(key, 0) + 1
            if count >= PATIENCE:
                raise _failed(f"lost a task {count} times in a row", error) from error
            return key, None
        if isinstance(values, Exception):
            raise values
        self._losses.pop(key, None)
        return key, values

    def together(self, calls: Calls[T], counts: Sequence[int], tick: Tick = no_tick) -> list[T]:
        """The answers to calls, in their order; counts: factors of each, for ``tick``."""
        answers: dict[int, T] = {}
        if not self.is_remote:
            for k, call in enumerate(calls):
                answers[k] = call()
                tick(counts[k])
            return list(answers.values())
        positions = self.parcels(calls)
        parcels = {(k, 0): [calls[i] for i in some] for k, some in enumerate(positions)}
        self.begin(parcels)
        while len(answers) < len(calls):
            key, values = self.take()
            if values is None:
                self.begin({key: parcels[key]})
                continue
            some = positions[key[0]]
            answers.update(zip(some, values, strict=True))
            tick(sum(counts[i] for i in some))
        return [answers[k] for k in range(len(calls))]

    def cancel(self) -> None:
        """Forget what is in flight. What has not begun does not begin."""
        flying, self._in_flight, self._done = self._in_flight, {}, SimpleQueue()
        for future in flying:
            # a client that is closed refuses this, too
            with suppress(Exception):
                future.cancel()
        self._losses.clear()
        self._answered.clear()


def _failed(what: str, error: Exception) -> ExecutorFailed:
    return ExecutorFailed(
        f"the executor {what} ({type(error).__name__}: {error}); .posterior holds what was found "
        "so far: resume from it by start=, on another executor"
    )

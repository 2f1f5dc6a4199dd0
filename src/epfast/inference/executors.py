"""Work of a fit on an executor of ``concurrent.futures``: threads, processes, a cluster's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

from epfast import _checks
from epfast.inference.records import ExecutorFailed
from epfast.inference.runtime import Tick, no_tick
from epfast.inference.threads import cores

#: seconds after which one who waits looks again
LOOK = 0.1
#: a task that is lost so many times in a row is lost for good
PATIENCE = 4
#: seconds after which an answer that was there is lost: its worker has died with it
GONE = 30.0


class TaskAnswer(NamedTuple):
    """What a task came back with."""

    value: Any = None
    #: what it raised itself, as it would have here
    error: Exception | None = None
    #: whether the executor lost it
    lost: bool = False


def attempted(function: Callable[..., Any], *args: Any) -> TaskAnswer:
    """Call a function; an error of its own is an answer, so that it is none of the executor."""
    try:
        return TaskAnswer(function(*args))
    except Exception as error:  # raised again by who asked
        return TaskAnswer(error=error)


def each_of(calls: Sequence[tuple[Any, ...]]) -> list[Any]:
    """The values of calls, each a function and its arguments."""
    return [function(*args) for function, *args in calls]


def executor_at_door(executor: Any) -> None:
    """Refuse what is no executor."""
    if executor is not None and not isinstance(executor, Executor):
        hint = "; a Dask client has one: client.get_executor()" if _is_client(executor) else ""
        raise TypeError(
            f"executor is {_checks.describe(executor)}; allowed: a concurrent.futures.Executor or "
            f"None{hint}"
        )


def _is_client(given: Any) -> bool:
    return hasattr(given, "get_executor")


def workers_of(executor: Executor) -> int:
    """How many tasks an executor does at a time, as far as it can be known."""
    count = getattr(executor, "_max_workers", None)  # of pools; they do not say it otherwise
    if isinstance(count, int):
        return max(1, count)
    client: Any = getattr(executor, "_client", None)  # of Dask's
    if hasattr(client, "nthreads"):
        return max(1, int(sum(client.nthreads().values())))
    return cores()


def status_of(executor: Any) -> str:
    """What a client of Dask says of its connection; "running" of other executors."""
    client: Any = getattr(executor, "_client", None) or getattr(executor, "client", None)
    return str(getattr(client, "status", "running"))


class Tasks:
    """Tasks of one fit; without an executor they are done here, at once and in their order.

    The executor is the user's: it is never shut down. What it loses is sent again.

    Parameters
    ----------
    executor : concurrent.futures.Executor, optional
    width : int, optional
        Tasks in flight at a time, of those whose answers are taken as they come; None: as many as
        the executor has workers.
    """

    def __init__(self, executor: Executor | None = None, width: int | None = None) -> None:
        self.executor = executor
        self.width = 1
        if executor is not None:
            self.width = workers_of(executor) if width is None else width
        #: tasks that the executor lost, so far
        self.n_lost = 0
        self._flying: dict[Future[TaskAnswer], Any] = {}
        #: those that are done; Ctrl-C in ``concurrent.futures.wait`` could leave its locks closed
        self._done: SimpleQueue[Future[TaskAnswer]] = SimpleQueue()
        #: of a task, how many times in a row it was lost
        self._losses: dict[Any, int] = {}
        #: those that were taken; a cluster is told to forget them after it was sent the next ones,
        #: since it is told something every 10 ms
        self._taken: list[Future[TaskAnswer]] = []

    def __len__(self) -> int:
        return len(self._flying)

    def flying(self) -> set[Any]:
        """The keys of those in flight."""
        return set(self._flying.values())

    def send(self, key: Any, function: Callable[..., Any], *args: Any) -> None:
        """Begin a task.

        Raises
        ------
        ExecutorFailed
            If the executor takes no more.
        """
        assert self.executor is not None
        try:
            future = self.executor.submit(attempted, function, *args)
        except Exception as error:
            raise takes_none(error) from error
        self.fly(key, future)

    def fly(self, key: Any, future: Future[TaskAnswer]) -> None:
        """Note a task that has begun."""
        self._flying[future] = key
        future.add_done_callback(self._done.put)
        self._taken.clear()

    def take(self) -> tuple[Any, TaskAnswer]:
        """The key and the answer of the task that is done first.

        Raises
        ------
        ExecutorFailed
            If the task was lost too often, or the executor is gone.
        Exception
            What the task itself raised.
        """
        while True:
            # tasks that are sent while Dask's client looks for its scheduler are never done
            if (status := status_of(self.executor)) != "running":
                raise _failed("is gone", ConnectionError(f"its client is {status}"))
            try:
                # a wait without an end would keep Ctrl-C out on some systems
                done = self._done.get(timeout=LOOK)
                break
            except Empty:
                continue
        key = self._flying.pop(done)
        self._taken.append(done)
        try:
            answer = done.result(timeout=GONE)
        except Exception as error:
            self.n_lost += 1
            count = self._losses[key] = self._losses.get(key, 0) + 1
            if count >= PATIENCE:
                raise _failed(f"lost a task {count} times in a row", error) from error
            return key, TaskAnswer(lost=True)
        if answer.error is not None:
            raise answer.error
        self._losses.pop(key, None)
        return key, answer._replace(value=self.received(answer.value))

    def received(self, value: Any) -> Any:
        """What came from a task, as who asked takes it."""
        return value

    def parcels(self, calls: Sequence[tuple[Any, ...]]) -> list[list[int]]:
        """Numbers of the calls that go in one task."""
        return [[k] for k in range(len(calls))]

    def together(
        self, calls: Sequence[tuple[Any, ...]], counts: Sequence[int], tick: Tick = no_tick
    ) -> list[Any]:
        """The answers to calls, each a function and its arguments, in their order.

        counts: factors of each, for ``tick``.
        """
        found: dict[int, Any] = {}
        if self.executor is None:
            for k, (function, *args) in enumerate(calls):
                found[k] = function(*args)
                tick(counts[k])
        else:
            parcels = self.parcels(calls)
            self.begin([[calls[k] for k in parcel] for parcel in parcels])
            left = len(parcels)
            while left:
                key, answer = self.take()
                if answer.lost:
                    self.send(key, each_of, [calls[k] for k in parcels[key]])
                    continue
                left -= 1
                found |= zip(parcels[key], answer.value, strict=True)
                tick(sum(counts[k] for k in parcels[key]))
        return [found[k] for k in range(len(calls))]

    def begin(self, parcels: Sequence[Sequence[tuple[Any, ...]]]) -> None:
        """Begin a task for each list of calls, whose key is its position."""
        for key, some in enumerate(parcels):
            self.send(key, each_of, some)

    def cancel(self) -> None:
        """Forget what is in flight; what has not begun does not begin."""
        flying, self._flying, self._done = self._flying, {}, SimpleQueue()
        for future in flying:
            # a client that is closed refuses this, too
            with suppress(Exception):
                future.cancel()
        self._losses.clear()
        self._taken.clear()


def takes_none(error: Exception) -> ExecutorFailed:
    """The error of an executor that refuses a task."""
    return _failed("takes no task", error)


def _failed(what: str, error: Exception) -> ExecutorFailed:
    return ExecutorFailed(
        f"the executor {what} ({type(error).__name__}: {error}); .posterior holds what was found "
        "so far: resume from it by start=, on another executor"
    )

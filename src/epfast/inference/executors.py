"""Work of a fit on an executor of ``concurrent.futures``: threads, processes, a cluster's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

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
#: in place of the answer of a task that the executor lost
LOST = object()


def attempted(function: Callable[..., Any], *args: Any) -> tuple[Any, Exception | None]:
    """Return the result or the exception of a call, so that only the executor's own are retried."""
    try:
        return function(*args), None
    except Exception as error:  # raised again by who asked
        return None, error


def check_executor(executor: Any) -> None:
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
    client: Any = getattr(executor, "_client", None)  # of Dask's
    if hasattr(client, "nthreads"):
        return max(1, int(sum(client.nthreads().values())))
    return cores()


class Tasks:
    """Tasks of one fit. Without an executor they are done here, at once and in their order.

    The executor is the user's: it is never shut down. What it loses is sent again.

    Parameters
    ----------
    executor : concurrent.futures.Executor, optional
    width : int, optional
        Tasks in flight at a time, of those whose answers are taken as they come. By default as many
        as the executor has workers.
    """

    def __init__(self, executor: Executor | None = None, width: int | None = None) -> None:
        self.executor = executor
        self.width = 1
        if executor is not None:
            self.width = workers_of(executor) if width is None else width
        #: tasks that the executor lost, so far, and bytes that went to tasks and came back, where
        #: they are counted
        self.n_lost = self.n_bytes = 0
        self._flying: dict[Future[Any], Any] = {}
        #: tasks that are done. Ctrl-C in ``concurrent.futures.wait`` could leave its locks closed
        self._done: SimpleQueue[Future[Any]] = SimpleQueue()
        #: how many times in a row each task was lost
        self._losses: dict[Any, int] = {}
        #: tasks whose answers were taken. A cluster forgets them after it was sent the next ones,
        #: since a message goes out every 10 ms
        self._taken: list[Future[Any]] = []

    def __len__(self) -> int:
        return len(self._flying)

    def flying(self) -> set[Any]:
        """Keys of the tasks in flight."""
        return set(self._flying.values())

    def begin(self, calls: Mapping[Any, tuple[Any, ...]]) -> None:
        """Begin tasks, each a function and its arguments, by their keys.

        Raises
        ------
        ExecutorFailed
            If the executor takes no more.
        """
        try:
            futures = self.submitted(list(calls.values()))
        except Exception as error:
            raise _failed("takes no task", error) from error
        for key, future in zip(calls, futures, strict=True):
            self._flying[future] = key
            future.add_done_callback(self._done.put)
        self._taken.clear()

    def submitted(self, calls: Sequence[tuple[Any, ...]]) -> list[Future[Any]]:
        """Submit :func:`attempted` calls."""
        assert self.executor is not None
        return [self.executor.submit(attempted, *call) for call in calls]

    def take(self) -> tuple[Any, Any]:
        """The key and the answer of the task that is done first. LOST in place of an answer.

        Raises
        ------
        ExecutorFailed
            If the task was lost too often, or the executor is gone.
        Exception
            What the task itself raised.
        """
        while True:
            # of Dask: tasks that are sent while its client looks for its scheduler are never done
            client = getattr(self.executor, "_client", getattr(self.executor, "client", None))
            status = getattr(client, "status", "running")
            if status != "running":
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
            value, raised = done.result(timeout=GONE)
        except Exception as error:
            self.n_lost += 1
            count = self._losses[key] = self._losses.get(key, 0) + 1
            if count >= PATIENCE:
                raise _failed(f"lost a task {count} times in a row", error) from error
            return key, LOST
        if raised is not None:
            raise raised
        self._losses.pop(key, None)
        return key, value

    def together(
        self, calls: Sequence[tuple[Any, ...]], counts: Sequence[int], tick: Tick = no_tick
    ) -> list[Any]:
        """The answers to calls, each a function and its arguments, in their order.

        counts: factors of each, for ``tick``.
        """
        answers: dict[int, Any] = {}
        if self.executor is not None:
            self.begin(dict(enumerate(calls)))
        for k, (function, *args) in enumerate(calls if self.executor is None else ()):
            answers[k] = function(*args)
            tick(counts[k])
        while len(answers) < len(calls):
            k, value = self.take()
            if value is LOST:
                self.begin({k: calls[k]})
                continue
            answers[k] = value
            tick(counts[k])
        return [answers[k] for k in range(len(calls))]

    def cancel(self) -> None:
        """Forget what is in flight. What has not begun does not begin."""
        flying, self._flying, self._done = self._flying, {}, SimpleQueue()
        for future in flying:
            # a client that is closed refuses this, too
            with suppress(Exception):
                future.cancel()
        self._losses.clear()
        self._taken.clear()


def _failed(what: str, error: Exception) -> ExecutorFailed:
    return ExecutorFailed(
        f"the executor {what} ({type(error).__name__}: {error}); .posterior holds what was found "
        "so far: resume from it by start=, on another executor"
    )

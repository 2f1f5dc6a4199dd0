"""Threads of ours: how many a fit may use, and the work that they share."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from epfast import _checks
from epfast.inference.runtime import (
    ROOM_OF_A_THREAD,
    Tick,
    has_room,
    no_tick,
    one_blas_thread,
)

#: seconds after which one who waits looks again
LOOK = 0.1


def threads_of(n_jobs: Any, serial: bool = False) -> int:
    """The number of threads that an argument ``n_jobs`` asks for.

    Parameters
    ----------
    n_jobs : int or None
        None: 1; -1: as many as the process may use; else that many.
    serial : bool
        Whether it must be one, for a scheme that learns.

    Raises
    ------
    ValueError, TypeError
        For a number that is neither -1 nor above 0, and for what is no integer.
    """
    if n_jobs is None:
        return 1
    allowed = "an integer > 0, -1 for all cores, or None for 1"
    try:
        count = _checks.integer("n_jobs", n_jobs, least=-1)
    except (TypeError, ValueError) as error:
        raise type(error)(f"n_jobs is {_checks.describe(n_jobs)}; allowed: {allowed}") from None
    if count == 0:
        raise ValueError(f"n_jobs is {_checks.describe(n_jobs)}; allowed: {allowed}")
    if serial and count != 1:
        raise ValueError(f"n_jobs is {count}; allowed with a scheme that learns: 1 or None")
    return count if count > 0 else cores()


def cores() -> int:
    """How many cores the process may use: of the machine, or of those that it is held to."""
    if hasattr(os, "process_cpu_count"):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class Threads:
    """Threads of one fit: the caller's own, number 0, and others up to ``count`` in all.

    The others begin with the first work and end with the fit, so that there are none to inherit by
    a fork, nor at the exit of the process. A part of the work goes to who comes first: nobody waits
    for one who is late, or could not begin. Ctrl-C, which falls in the thread of the caller, waits
    for the parts that others have begun. BLAS has one thread meanwhile.
    """

    def __init__(self, count: int = 1) -> None:
        self.count = count
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        #: ``dismiss(None)`` lets the threads end, without waiting: a call that Ctrl-C cannot divide
        self.dismiss = self._inbox.put
        self._others: list[threading.Thread] = []

    def __enter__(self) -> Threads:
        return self

    def __exit__(self, *raised: object) -> None:
        pressed = None
        while True:
            try:
                self.close()
                break
            except KeyboardInterrupt as error:
                pressed = error
        if pressed is not None:
            raise pressed

    def close(self) -> None:
        """End the threads, which have nothing to do."""
        self.dismiss(None)
        for other in self._others:
            if other.is_alive():  # not one whose start Ctrl-C has cut short: it ends by itself
                other.join()
        self._others = []

    def _begin(self, count: int) -> int:
        """Have so many threads, as far as the system gives them; returns how many there are."""
        while len(self._others) < count - 1 and has_room(ROOM_OF_A_THREAD):
            name = f"epfast-{len(self._others) + 1}"
            # where Ctrl-C keeps them from being closed, they end as nobody has this any more
            given = self._inbox, weakref.ref(self, self._inbox.put)
            other = threading.Thread(target=_serve, args=given, name=name, daemon=True)
            self._others.append(other)
            try:
                other.start()
            except RuntimeError as refused:
                # Ctrl-C in its wait for the thread leaves a lock that threading cannot release
                if isinstance(refused.__context__, KeyboardInterrupt):
                    raise refused.__context__ from None
                self._others.pop()
                break
        return 1 + len(self._others)

    def together(
        self, work: Callable[[int], Any], stop: Callable[[], Any], count: int | None = None
    ) -> None:
        """Call ``work(k)`` on thread k, until all that have begun are back.

        An error of one, or Ctrl-C, is raised then. count: of threads; None: all.

        stop: called after an error; the others then come back soon.
        """
        workers, failed = _Workers(work, stop), None
        with one_blas_thread(1):
            try:
                most = self.count if count is None else min(self.count, count)
                for k in range(1, min(most, self._begin(most))):
                    self._inbox.put(partial(workers.help, k))
                work(0)
            except BaseException as error:  # raised below
                failed = error
            while True:
                try:
                    workers.end(failed is not None)
                    break
                except KeyboardInterrupt as error:
                    failed = error
        if failed is None and workers.errors:
            failed = workers.errors[0]
        if failed is not None:
            raise failed

    def each(
        self, work: Callable[[int, int], Iterable[int]], parts: int, tick: Tick = no_tick
    ) -> None:
        """Go through ``work(k, part)`` on thread k, for each part from 0, in any order.

        work yields how many factors it has done, now and then: there it may end early.

        tick: called with these numbers, in the thread of the caller.
        """
        todo: SimpleQueue[int] = SimpleQueue()
        for part in range(parts):
            todo.put(part)
        done: list[int] = []
        halted: list[bool] = []

        def run(k: int) -> None:
            while not halted:
                try:
                    part = todo.get_nowait()
                except Empty:
                    return
                for count in work(k, part):
                    done.append(count)
                    while k == 0 and done:
                        tick(done.pop())
                    if halted:
                        return

        if self.count == 1 or parts == 1:
            run(0)
            return
        self.together(run, partial(halted.append, True), parts)
        while done:
            tick(done.pop())


class _Workers:
    """Those who do one piece of work."""

    def __init__(self, work: Callable[[int], Any], stop: Callable[[], Any]) -> None:
        self.work, self.stop = work, stop
        self.over = False
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.errors: list[BaseException] = []
        self.back: SimpleQueue[int] = SimpleQueue()

    def help(self, k: int) -> None:
        """Work on thread k, unless it is over."""
        self.begun.append(k)
        try:
            # whoever ends the work sees that this one has begun, or this one that it is over
            if not self.over:
                self.work(k)
        except BaseException as error:  # raised by the caller
            self.errors.append(error)
            self.stop()
        finally:
            self.ended.append(k)
            self.back.put(k)

    def end(self, failed: bool) -> None:
        """Wait for those who have begun."""
        self.over = True
        if failed:
            self.stop()
        while len(self.ended) < len(self.begun):
            try:
                self.back.get(timeout=LOOK)
            except Empty:
                continue


def _serve(inbox: SimpleQueue[Any], owner: weakref.ref[Threads]) -> None:
    """Run tasks until a stop message, then pass the stop on."""
    while isinstance(task := inbox.get(), partial):
        task()
        del task  # what it holds may be the last to hold the owner
    inbox.put(None)


#: for engines that nobody gave threads
ALONE = Threads()

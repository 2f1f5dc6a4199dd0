"""Threads of ours: how many a fit may use, and the work that they share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import Any

from epfast import _checks
from epfast._core.thread_pool import ThreadPool
from epfast.inference.runtime import Tick, blas_threads, no_tick


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


def each(
    pool: ThreadPool,
    work: Callable[[int, int], Iterable[int]],
    parts: int,
    tick: Tick = no_tick,
) -> None:
    """Go through ``work(k, part)`` on thread k of a pool, for each part from 0, in any order.

    Threads begin with the work and end with it, so that there are none to inherit by a fork. A part
    goes to who comes first: nobody waits for one who is late, or could not begin. An error of one,
    or Ctrl-C, which falls in the thread of the caller, waits for the pieces that others have begun.
    BLAS has one thread meanwhile.

    work yields how many factors it has done, now and then: there it may end early.

    tick: called with these numbers, in the thread of the caller.
    """
    done: list[int] = []

    def run(k: int, part: int) -> None:
        for count in work(k, part):
            done.append(count)
            while k == 0 and done:
                tick(done.pop())
            if pool.errors:
                return

    if pool.threads == 1 or parts == 1:
        for part in range(parts):
            for count in work(0, part):
                tick(count)
        return
    with blas_threads(1), pool:
        pool.each(run, parts)
    while done:
        tick(done.pop())

"""Threads of an estimator: over its problems where there are several, else inside the one fit."""

from __future__ import annotations

import numbers
from collections.abc import Callable
from typing import Any, TypeVar

from epfast.inference.runtime import blas_threads, cores, threads_of, with_room

# scikit-learn is there, or epfast.estimators.base would have said so
# scikit-learn's own Parallel sets the filters of warnings in each thread, which spoils those of all
from joblib import Parallel, delayed, effective_n_jobs  # isort: skip

R = TypeVar("R")


def jobs_of(n_jobs: Any) -> int:
    """The number of threads that ``n_jobs`` asks for, as scikit-learn counts them.

    None: 1, unless a ``joblib.parallel_config`` says more. -1: as many as the process may use. -2:
    one less, and so on.

    Raises
    ------
    ValueError, TypeError
        For 0, and for what is no integer.
    """
    if n_jobs is None:
        return int(effective_n_jobs(None))
    if isinstance(n_jobs, numbers.Integral) and n_jobs < -1:
        return max(1, cores() + 1 + int(n_jobs))
    return threads_of(n_jobs)


def shares(n_jobs: Any, count: int) -> tuple[int, int | None]:
    """Threads over so many problems, and those inside each of them. None: as BLAS has them.

    Problems come first, as they need not wait for each other, and have one thread each.
    """
    jobs = jobs_of(n_jobs)
    if jobs > 1 and count > 1:
        return min(jobs, count), 1
    return 1, None if n_jobs is None else jobs


def in_threads(calls: list[Callable[[], R]], jobs: int) -> list[R]:
    """Results of the calls, in their order, by so many threads. BLAS has one in each."""
    jobs = with_room(jobs)
    if jobs == 1 or len(calls) < 2:
        return [call() for call in calls]
    # fits that each set and restore the number of BLAS threads would do that all the time
    with blas_threads(1):
        results: list[R] = Parallel(n_jobs=jobs, prefer="threads", require="sharedmem")(
            delayed(call)() for call in calls
        )
    return results

"""Threads of ours: how many a fit may use."""

from __future__ import annotations

import os
from typing import Any

from epfast import _checks


def threads_of(n_jobs: Any) -> int:
    """The number of threads that an argument ``n_jobs`` asks for.

    Parameters
    ----------
    n_jobs : int or None
        None: 1; -1: as many as the process may use; else that many.

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
    return count if count > 0 else cores()


def cores() -> int:
    """How many cores the process may use: of the machine, or of those that it is held to."""
    if hasattr(os, "process_cpu_count"):
        return os.process_cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1

"""The one loop: engines start and sweep, and :func:`run` repeats sweeps until they converge.

``loop.py`` has the loop and the protocol of an engine, ``records.py`` the records of sweeps,
``runtime.py`` threads, progress and pauses for signals, ``executors.py`` the tasks of a fit,
``report.py`` tables and comparisons of results, and ``files.py`` their files.
"""

from epfast.inference.loop import (
    FAILURES,
    Callback,
    Counts,
    Engine,
    Fit,
    Summary,
    Swept,
    evidence_bound,
    fit_from,
    interrupted,
    run,
    run_from,
    start_may_be_dropped,
    warn_of,
)
from epfast.inference.records import (
    ConvergenceWarning,
    DataWarning,
    ExecutorFailed,
    Interrupted,
    PartOfSweep,
    Sites,
    SweepInfo,
)

__all__ = [
    "FAILURES",
    "Callback",
    "ConvergenceWarning",
    "Counts",
    "DataWarning",
    "Engine",
    "ExecutorFailed",
    "Fit",
    "Interrupted",
    "PartOfSweep",
    "Sites",
    "Summary",
    "SweepInfo",
    "Swept",
    "evidence_bound",
    "fit_from",
    "interrupted",
    "run",
    "run_from",
    "start_may_be_dropped",
    "warn_of",
]

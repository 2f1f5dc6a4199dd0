"""The one loop: engines start and sweep, and :func:`run` repeats sweeps until they converge.

``loop.py`` has the loop and the protocol of an engine, ``records.py`` sites and the records of
sweeps, ``mixing.py`` an accelerator, ``runtime.py`` threads, progress and pauses for signals,
``executors.py`` the tasks of a fit. Of results ``certificates.py``, ``importance.py`` and
``best_gaussian.py`` are the check, ``report.py`` has tables and comparisons, ``files.py`` their
files. ``learning.py`` has slopes of the log evidence, ``hyper.py`` the search of hyper-parameters,
and ``design.py`` the points of an average over them.
"""

from epfast.inference.loop import (
    FAILURES,
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
    Callback,
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

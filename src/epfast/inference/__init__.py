"""THE ONE LOOP: engines start and sweep, :func:`run` repeats them until they settle.

``loop.py`` has the loop and what it asks of an engine. ``records.py`` what a sweep leaves behind.
``runtime.py`` threads, progress and pacing. ``executors.py`` tasks of a fit. ``report.py`` what
results say of themselves. ``files.py`` how they are written and read.
"""

from epfast.inference.loop import (
    FAILURES,
    Callback,
    Counts,
    Engine,
    Fit,
    Summary,
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
    "evidence_bound",
    "fit_from",
    "interrupted",
    "run",
    "run_from",
    "start_may_be_dropped",
    "warn_of",
]

"""THE ONE LOOP: engines start and sweep, :func:`run` repeats them until they settle.

``loop.py`` has the loop and what it asks of an engine; ``records.py`` what a sweep leaves behind;
``runtime.py`` BLAS threads, progress and pacing; ``posterior.py`` what all results share.
"""

from epfast.inference.loop import (
    FAILURES,
    Callback,
    Counts,
    Engine,
    Fit,
    Summary,
    fit_from,
    reached,
    run,
    warn_of,
)
from epfast.inference.records import (
    ConvergenceWarning,
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
    "Engine",
    "Fit",
    "Interrupted",
    "PartOfSweep",
    "Sites",
    "Summary",
    "SweepInfo",
    "fit_from",
    "reached",
    "run",
    "warn_of",
]

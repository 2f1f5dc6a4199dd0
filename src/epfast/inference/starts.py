"""Starts that may be dropped: guesses, from which a fit begins anew where they lead nowhere."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any, TypeVar

from epfast.inference.loop import Engine, Fit, logger, run

#: sweeps from a start that do not settle, after which it may be to blame
PATIENCE = 20

#: what a fit far from the usual may fail with: no posterior, or a start that is improper there
FAILURES = (FloatingPointError, ValueError)

R = TypeVar("R")


def start_may_be_dropped(start: Any, problem: Any) -> bool:
    """Whether a start is of another fit, and no part of the model or of a fit that goes on."""
    before = getattr(start, "problem", None)
    if before is None or problem.schedule.stores == "none":
        return False
    return bool(start.converged or before.loss != problem.loss)


def _is_lost(fit: Fit, schedule: Any) -> bool:
    """Whether a run from a guess has shown that it does not settle."""
    if fit.converged or fit.stopped or not (fit.history and schedule.tol > 0.0):
        return False
    return fit.history[-1].n_refused > 0 or len(fit.history) >= PATIENCE or bool(fit.reason)


def run_from(
    engine: Engine, schedule: Any, start: Any = None, *, guess: bool = False, **given: Any
) -> Fit:
    """Run a schedule on an engine, see :func:`run`. Drop a guess that leads nowhere.

    Sites of another loss, rows or prior may be so far off that all digits go where they are taken
    away: then the run begins anew, and that is the result where it settles.

    guess: whether ``start`` is one, see :func:`start_may_be_dropped`; given: the other arguments.
    """
    if not guess:
        return run(engine, schedule, start, **given)
    fit = None
    with contextlib.suppress(FloatingPointError):
        fit = run(engine, schedule, start, **given)
        if not _is_lost(fit, schedule):
            return fit
    logger.info("the start leads nowhere: the run begins anew")
    try:
        anew = run(engine, schedule, None, **given)
    except FloatingPointError:
        if fit is None:
            raise
        return fit
    return anew if fit is None or anew.converged or anew.stopped else fit


def fit_from(fit: Callable[[Any], R], start: Any) -> R:
    """``fit(start)``, or ``fit(None)`` where that fails: a start may be improper where it goes."""
    if start is not None:
        with contextlib.suppress(*FAILURES):
            return fit(start)
    return fit(None)

"""The loop over sweeps: repeat the sweep of an :class:`Engine` until the state converges."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

import numpy as np

from epfast._arrays import Array
from epfast._core.thread_pool import ThreadPool
from epfast._core.vector import change as change
from epfast.inference.records import (
    Callback as Callback,
    ConvergenceWarning,
    ExecutorFailed,
    Interrupted,
    OfFit,
    PartOfSweep,
    SweepInfo,
    warn_user,
)
from epfast.inference.runtime import Tick, at_work, ticks
from epfast.losses import Loss
from epfast.schedules import FilledSchedule

if TYPE_CHECKING:
    from epfast.inference.certificates import Check

logger = logging.getLogger("epfast")

#: rounding of a log evidence, per factor
ROUNDING = 1e-8
#: the same, relative, between two sweeps
RELATIVE = 1e-9
#: a change of so many roundings is none: with collinear columns sweeps would never end
OF_DRIFT = 3.0
#: rounding of the posterior that nobody sees
NO_DRIFT = 1e-7
#: a change per sweep up to which the result is called approximate, else unusable
APPROXIMATE = 0.1

#: a residual above which sweeps that stand still are at no fixed point
RESIDUAL = 1e-3
#: of these
NO_FIXED_POINT = (
    "the sweeps stand still at what is no fixed point of EP (residual {:.2g}): the moments of this "
    "scheme change too sharply with the cavity, by jumps where the loss has a kink or jump, by the "
    "noise of samples, or by rounding where the prior is wide; use scheme='exact', a smooth loss, "
    "more samples, or a narrower prior"
)

#: posterior standard deviations from 0 at which a mean, in doubles, has no digits below RESIDUAL
FAR = RESIDUAL / np.finfo(np.float64).eps
BLURRED = (
    "the mean is {:.2g} posterior standard deviations from 0: rounding of the mean is more than "
    "the uncertainty, and the result is unusable; use a narrower prior (prior_variance), a prior "
    "mean nearer to 0, or a loss that grows on both sides"
)

#: gives how many questions oracles were asked, and how many of these were audits, or None
Questions = Callable[[], tuple[int, int] | None]


class RunState(Protocol):
    """What the loop reads of a state beside its moments."""

    @property
    def sweeps(self) -> int: ...


#: what an engine starts from, a state between two sweeps, and one as a posterior has it
P = TypeVar("P", contravariant=True)
S = TypeVar("S", bound=RunState)
E = TypeVar("E", covariant=True)


class SchemeOfRun(Protocol):
    """What is read of a scheme, see :class:`epfast.schemes.Scheme`."""

    @property
    def integrates(self) -> bool: ...

    @property
    def relaxes(self) -> bool: ...

    @property
    def learns(self) -> bool: ...

    @property
    def polish(self) -> int: ...

    def polishing(self) -> AbstractContextManager[None]: ...

    def questions(self) -> tuple[int, int] | None: ...

    def warning(self) -> str: ...


class Summary(NamedTuple):
    """What the loop reads of a state."""

    #: (m,), posterior mean
    mean: Array
    variance: Array
    #: EP's log p(y). 0 if not asked for
    log_evidence: float = 0.0


class Counts(NamedTuple):
    """What a sweep counts. See :class:`SweepInfo`."""

    refused: int = 0
    failed: int = 0
    clipped: int = 0
    #: of tasks on an executor
    lost: int = 0
    bytes_sent: int | None = None


NO_COUNTS = Counts()


class Extent(NamedTuple):
    """What only a pass over rows that were not counted before knows; see :class:`OfSites`."""

    n_sites: int
    evidence_bound: float


class Swept(NamedTuple, Generic[S]):
    """What a sweep has found. See :class:`SweepInfo`."""

    state: S
    #: largest change of a mean, in its sd, or of the log of an sd, over the damping
    change: float
    log_evidence: float
    counts: Counts = NO_COUNTS
    #: moments of the state. None: where a look at all weights would cost more than the sweep
    moments: Summary | None = None
    drift: float | None = None
    #: True or False if the engine tests for a fixed point itself. None: the loop tests the change
    settled: bool | None = None
    #: True if no further sweep would move the posterior
    stuck: bool = False
    mismatch: float | None = None
    #: (updates, d), posterior mean after every factor. None if it is not recorded
    trace: Array | None = None
    #: damping beside that of the schedule
    damping: float = 1.0
    in_flight: int | None = None
    #: None: that of the engine
    extent: Extent | None = None


class OfSites(Protocol):
    """What warnings of a fit read of an engine, or of a problem."""

    #: number of sites
    @property
    def n_sites(self) -> int: ...

    #: no right log evidence is above this, see :func:`evidence_bound`. NaN: there is no evidence
    @property
    def evidence_bound(self) -> float: ...

    @property
    def remedy(self) -> str:
        """What to do about a run that fails. Appended to errors and warnings."""


class Engine(OfSites, Protocol[P, S, E]):
    """An inference engine: makes the initial state and performs one sweep.

    It owns scratch only. Everything that a sweep changes is in the state, which counts its
    ``sweeps``.
    """

    #: order of the largest matrix that a sweep factorises. 0 without BLAS
    order_of_matrices: int
    #: threads of ours that share its matrices. None: BLAS has its own
    pool: ThreadPool | None

    def init(self, start: P | None) -> S:
        """Make the initial state, from a posterior or None."""

    def sweep(self, state: S, keep: bool, tick: Tick, summary: Summary | None = None) -> Swept[S]:
        """Perform one sweep. summary: the moments of the state, where they are known.

        keep: the old state is still in use, so leave its arrays unchanged. Else they may change on
        the way, as long as it is a state at any time: one that Ctrl-C may go back to, wherever it
        falls.

        Ctrl-C comes out of it as KeyboardInterrupt. As PartOfSweep if what is done so far counts.
        """

    def summary(self, state: S, evidence: bool = True) -> Summary:
        """Moments of the posterior, in arrays that no later sweep changes, and its evidence."""

    def finish(self, state: S, hurry: bool = False) -> E:
        """Make the state of the result, free of rounding drift.

        hurry: Ctrl-C ended the run. Do nothing that takes long, the drift may stay.
        """


#: gives the costs after a sweep: at the mean, and at that after every factor
Record = Callable[[Swept[S]], tuple[float | None, Array | None]]


class Fit(NamedTuple, Generic[E]):
    """The result of a run."""

    state: E
    converged: bool
    history: list[SweepInfo]
    #: whether the callback ended it
    stopped: bool = False
    #: why sweeps that stand still have not converged
    reason: str = ""
    #: of the last sweep. None: that of the engine
    extent: Extent | None = None


class Recorded:
    """The record of a fit. A subclass has ``state`` and ``problem``."""

    state: OfFit
    problem: OfFit
    converged: bool
    history: list[SweepInfo]
    #: why sweeps that stand still have not converged
    reason: str = ""
    #: the result of the last ``check()``, or None before the first
    last_check: Check | None = None

    def _remembered(self, check: Check) -> Check:
        """Keep the result of a check, and return it."""
        vars(self)["last_check"] = check
        return check

    @property
    def schedule(self) -> FilledSchedule:
        schedule: FilledSchedule = self.problem.schedule
        return schedule

    @property
    def n_sweeps(self) -> int:
        """Sweeps in all, those of warm starts included."""
        sweeps: int = self.state.sweeps
        return sweeps

    @property
    def n_refused(self) -> int:
        """Sites that kept their old value, summed over the sweeps of this fit."""
        return sum(info.n_refused for info in self.history)


def run(
    engine: Engine[P, S, E],
    schedule: FilledSchedule,
    start: P | None = None,
    *,
    record: Record[S] | None = None,
    callback: Callback | None = None,
    progress: bool | Tick = False,
    questions: Questions | None = None,
) -> Fit[E]:
    """Run a schedule on an engine: the only loop over sweeps.

    ``change`` of a sweep is the largest move of a posterior mean, in its standard deviations, or of
    the log of a standard deviation, divided by the damping. Of a joint step of a process, the same
    distance from its result to what it aimed at, or to a fixed point, whichever is larger. Of a
    pass of nested EP, that move times the factor by which passes contract. A run has ``converged``
    if ``tol`` is above 0, the last change is at most ``tol`` (or the engine found a fixed point by
    the mismatch of moments), the last sweep refused no site, and the log evidence is not above its
    bound. With damping the log evidence must have settled too, to ``tol`` nats or
    1e-9 of itself. With a site per row and a full covariance, the rows' x.theta too, to the larger
    of ``tol`` and 1e-4 of their standard deviations.

    Parameters
    ----------
    engine : Engine
    schedule : Schedule
        The loop uses ``sweeps``, ``tol`` and ``damping``, the engine the rest.
    start : posterior, optional
        A posterior to continue.
    record : callable, optional
        ``record(swept)`` gives the costs after a sweep, (cost, factor costs).
    callback : callable, optional
        Called after each sweep as ``callback(info, state)``. A true answer ends the run.
    progress : bool or callable, default=False
        True shows a bar. A callable is called with the number of factors done, after each piece of
        work.
    questions : callable, optional
        Of what learns messages: questions to its oracles so far, and audits among them. None of
        what learns none.

    Raises
    ------
    FloatingPointError
        If the posterior or the evidence overflows.
    Interrupted, ExecutorFailed
        On Ctrl-C, or where tasks are lost for good. Its ``posterior`` is the :class:`Fit` of the
        last state, or None if there is none yet.
    """
    history: list[SweepInfo] = []
    converged, stopped = False, False
    state, first, now, extent = None, 0, None, None
    try:
        with at_work(engine.pool, engine.order_of_matrices):
            state = engine.init(start)
            first = state.sweeps
            with ticks(progress) as tick:
                for _ in range(schedule.sweeps):
                    began = time.perf_counter()
                    asked = None if questions is None else questions()
                    # functions of the user may keep the states that they see
                    swept = engine.sweep(state, callback is not None, tick, now)
                    new, moved, evidence, counts, now, drift = swept[:6]
                    extent = swept.extent
                    bound = (extent or engine).evidence_bound
                    sound = math.isfinite(evidence) or math.isnan(bound)
                    if not (sound and math.isfinite(moved)):
                        raise FloatingPointError(
                            f"the posterior or its evidence overflowed; {engine.remedy}"
                        )
                    costs = (None, None) if record is None else record(swept)
                    total = None if questions is None else questions()
                    spent: tuple[int | None, int | None] = (None, None)
                    if asked is not None and total is not None:
                        spent = total[0] - asked[0], total[1] - asked[1]
                    info = SweepInfo(
                        new.sweeps,
                        moved,
                        counts.refused,
                        counts.failed,
                        evidence,
                        time.perf_counter() - began,
                        *costs,
                        drift,
                        counts.clipped,
                        swept.mismatch,
                        *spent,
                        n_lost=counts.lost,
                        in_flight=swept.in_flight,
                        n_bytes=counts.bytes_sent,
                    )
                    history.append(info)
                    state = new
                    text = "sweep %d: change %.3g, log evidence %.10g, %d refused"
                    logger.info(text, info.sweep, moved, evidence, info.n_refused)
                    stopped = callback is not None and bool(callback(info, state))
                    settled = swept.settled
                    if settled is None:
                        # nothing settles below its rounding
                        enough = schedule.tol
                        if drift is not None and drift <= APPROXIMATE:  # more is no rounding
                            enough = max(enough, OF_DRIFT * drift)
                        settled = schedule.tol > 0.0 and moved <= enough
                        damping = schedule.damping * swept.damping
                        if settled and damping != 1.0:
                            settled = _lag(history, damping) <= enough
                    impossible = evidence > bound
                    converged = bool(settled and counts.refused == 0 and not impossible)
                    # sites refused, and all else as it was to the last bit: so it would be again
                    still = moved == 0.0 and [h.log_evidence for h in history[-2:-1]] == [evidence]
                    still = still and counts.refused > 0 and swept.settled is not False
                    stuck = swept.stuck or (still and asked is None and schedule.tol > 0.0)
                    if stopped or converged or stuck or (settled and impossible):
                        break
            reason = ""
            if converged:
                end = engine.summary(state, evidence=False) if now is None else now
                reason = mean_beyond_precision(end.mean, end.variance)
            result, converged = engine.finish(state), converged and not reason
            return Fit(result, converged, history, stopped, reason, extent)
    except KeyboardInterrupt as pressed:
        if isinstance(pressed, PartOfSweep):
            state = pressed.state
        if state is None:
            raise Interrupted(None) from None
        # between an append and its state there is no sweep
        del history[state.sweeps - first :]
        raise Interrupted(Fit(engine.finish(state, True), False, history)) from None
    except ExecutorFailed as failed:
        if state is not None:
            last = state if failed.posterior is None else failed.posterior
            failed.posterior = Fit(engine.finish(last, True), False, history)
        raise


def polished(
    engine: Engine[P, S, E], schedule: FilledSchedule, scheme: SchemeOfRun, fit: Fit[E], post: P
) -> Fit[E]:
    """The fit after sweeps in which a scheme that learns asks for the truth alone.

    post: the posterior of ``fit``.
    """
    with scheme.polishing():
        schedule = replace(schedule, sweeps=scheme.polish, tol=0.0)
        last = run(engine, schedule, post, questions=scheme.questions)
    return last._replace(converged=fit.converged, history=[*fit.history, *last.history])


def warn_of_scheme(scheme: SchemeOfRun) -> None:
    """Warn of what a scheme that learns knows to be wrong."""
    text = scheme.warning()
    if text:
        warn_user(text, ConvergenceWarning)


def interrupted(
    stopped: KeyboardInterrupt | ExecutorFailed,
    fit: Fit[E] | None,
    result: Callable[[Fit[E]], R],
    start: P | None,
    unfitted: Callable[[], R],
) -> Interrupted | ExecutorFailed:
    """What to raise where Ctrl-C or a lost executor ends a fit, with the posterior so far.

    fit: the last run that has ended; result: makes a posterior of one; start, unfitted: what there
    is before the first sweep.
    """
    last = getattr(stopped, "posterior", None)
    fit = last if isinstance(last, Fit) else fit
    posterior: P | R | None
    if fit is not None:
        posterior = result(fit)
    else:  # sites in the role of a start are no posterior
        posterior = start if hasattr(start, "history") else unfitted()
    if isinstance(stopped, KeyboardInterrupt):
        return Interrupted(posterior)
    stopped.posterior = posterior
    return stopped


def _lag(history: list[SweepInfo], damping: float) -> float:
    """How far the log evidence lags behind damped sweeps, in nats, beyond rounding.

    The log scales of damped sites may follow where nothing else moves.
    """
    if len(history) < 2:
        return math.inf
    last, now = (info.log_evidence for info in history[-2:])
    lag = abs(now - last) / damping
    return lag if lag > RELATIVE * abs(now) else 0.0


def mean_beyond_precision(mean: Array, variance: Array) -> str:
    """Why rounding of the mean is more than its uncertainty. Empty if it is not."""
    # of nearly all fits the extremes are enough
    least = float(variance.min(initial=np.inf))
    most = max(float(mean.max(initial=0.0)), -float(mean.min(initial=0.0)))
    if least > 0.0 and most <= FAR * math.sqrt(least):
        return ""
    with np.errstate(all="ignore"):
        away = np.abs(mean) / np.sqrt(variance)
    # what is certain has no uncertainty to lose
    largest = float(np.max(away, where=variance > 0.0, initial=0.0))
    return BLURRED.format(largest) if largest > FAR else ""


def not_a_fixed_point(residual: float, tol: float) -> bool:
    """Whether sweeps that met a tolerance are at no fixed point. A loose one allows more."""
    return not residual <= max(RESIDUAL, 10.0 * tol)


def evidence_bound(loss: Loss, n: float) -> float:
    """The largest log evidence of n factors that is possible, up to rounding.

    Where t <= 1 their integral under the prior is at most 1.
    """
    return ROUNDING * n if loss.bounded else math.inf


def is_sharp(scheme: SchemeOfRun) -> bool:
    """Whether the moments of a site may change sharply where its cavity moves.

    So do those of schemes that look at some points, or at a mode: by jumps where the factor has a
    kink or a jump, and with the rounding of a cavity far wider than the posterior. Sweeps may then
    stand still at what is no fixed point.
    """
    return not (scheme.integrates or scheme.relaxes or scheme.learns)


#: what warnings read: a run that has ended, or its posterior
Ended = Fit[object] | Recorded


def warn_of(
    fit: Ended,
    engine: OfSites,
    schedule: FilledSchedule,
    category: type[Warning] = ConvergenceWarning,
) -> None:
    """Warn of a result that is not a fixed point of EP, and say what to do.

    That is: an impossible log evidence, sites refused or fits that failed in the last sweep, a
    tolerance that was missed. What earlier sweeps met is in the history.

    fit: what has ended, or its posterior; engine: what was run, or its problem.
    """
    history, sites = fit.history, fit.extent or engine if isinstance(fit, Fit) else engine
    if not history:
        return

    def say(text: str) -> None:
        warn_user(f"{text}; {engine.remedy}", category)

    if fit.reason:
        warn_user(fit.reason, category)
    last = history[-1]
    if last.log_evidence > sites.evidence_bound:
        say(
            f"the log evidence is {last.log_evidence:+.4g}, and cannot be above 0 as no factor is "
            "above 1: EP did not converge to anything, and the result is unusable"
        )
    if last.n_refused:
        say(
            f"{last.n_refused} of {sites.n_sites} sites were refused in the last sweep (an "
            "improper cavity or fit): their factors count as they were fitted before, or not at all"
        )
    if last.n_failed:
        say(
            f"{last.n_failed} fits of a factor failed in the last sweep and kept the old site (see "
            "history[i].n_failed)"
        )
    if fit.converged and (last.drift or 0.0) > max(schedule.tol, NO_DRIFT):
        say(
            f"rounding alone moves the posterior by {last.drift:.2g} of its own scale "
            f"(tol={schedule.tol:g}): it and the log evidence are no more exact than that"
        )
    missed = schedule.tol > 0.0 and len(history) == schedule.sweeps
    if missed and last.change > schedule.tol:
        state = "approximate" if last.change <= APPROXIMATE else "unusable"
        say(
            f"EP did not converge: after {len(history)} sweeps the posterior still moves by "
            f"{last.change:.2g} of its own scale per sweep (tol={schedule.tol:g}), so that the "
            f"result is {state}"
        )
    elif missed and not (fit.converged or last.n_refused):
        say(
            f"EP did not converge: after {len(history)} sweeps the mean and sd stand still "
            f"(tol={schedule.tol:g}), but not yet all rows, sites or the log evidence, so that the "
            "result is approximate"
        )


# ---- guesses: from one that leads nowhere the fit begins anew ----


#: sweeps from a start that do not converge, after which it may be to blame
PATIENCE = 20

#: what a fit far from the usual may fail with: no posterior, or a start that is improper there
FAILURES = (FloatingPointError, ValueError)

R = TypeVar("R")


class ProblemOfLoss(Protocol):
    """What is read of the problem of a fit."""

    @property
    def schedule(self) -> FilledSchedule: ...

    @property
    def loss(self) -> Loss: ...


def start_may_be_dropped(start: P, problem: ProblemOfLoss) -> bool:
    """Whether a start is of another fit, and no part of the model or of a fit that goes on."""
    if not isinstance(start, Recorded) or problem.schedule.stores == "none":
        return False
    return bool(start.converged or start.problem.loss != problem.loss)


def _is_lost(fit: Fit[E], schedule: FilledSchedule) -> bool:
    """Whether a run from a guess has shown that it does not converge."""
    if fit.converged or fit.stopped or not (fit.history and schedule.tol > 0.0):
        return False
    return fit.history[-1].n_refused > 0 or len(fit.history) >= PATIENCE or bool(fit.reason)


def run_from(
    engine: Engine[P, S, E],
    schedule: FilledSchedule,
    start: P | None = None,
    *,
    guess: bool = False,
    record: Record[S] | None = None,
    callback: Callback | None = None,
    progress: bool | Tick = False,
    questions: Questions | None = None,
) -> Fit[E]:
    """Run a schedule on an engine, see :func:`run`. Drop a guess that leads nowhere.

    Sites of another loss, rows or prior may be so far off that all digits go where they are taken
    away. The run then starts again without them, and that is the result if it converges.

    guess: whether ``start`` is one, see :func:`start_may_be_dropped`.
    """
    begin = partial(
        run,
        engine,
        schedule,
        record=record,
        callback=callback,
        progress=progress,
        questions=questions,
    )
    if not guess:
        return begin(start)
    fit = None
    with contextlib.suppress(FloatingPointError):
        fit = begin(start)
        if not _is_lost(fit, schedule):
            return fit
    logger.info("the start leads nowhere: the run begins anew")
    try:
        anew = begin(None)
    except FloatingPointError:
        if fit is None:
            raise
        return fit
    return anew if fit is None or anew.converged or anew.stopped else fit


def fit_from(fit: Callable[[P | None], R], start: P | None) -> R:
    """``fit(start)``, or ``fit(None)`` where that fails: a start may be improper where it goes."""
    if start is not None:
        with contextlib.suppress(*FAILURES):
            return fit(start)
    return fit(None)

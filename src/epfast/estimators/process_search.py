"""The search of the hyper-parameters that maximise the log evidence of process classifiers."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from epfast._arrays import Array
from epfast.estimators.descent import descend, root_of_slopes
from epfast.estimators.jobs import in_threads, shares
from epfast.estimators.processes import (
    PILOT,
    AnyProcess,
    BinaryProcess,
    LowRankProcess,
    NearestProcess,
    fitted,
    start_from,
)
from epfast.gaussian import GPPosterior, LowRankGPPosterior
from epfast.gaussian.engines.shards import WarmStart
from epfast.inference import FAILURES, ConvergenceWarning
from epfast.schedules import EP

#: tolerance of EP within a search, and within that of a pilot: an error of the sites changes the
#: evidence to second order
TOL, PILOT_TOL = 1e-3, 1e-2
#: where L-BFGS stops: relative change of the evidence, largest slope. The same for a pilot
FTOL, GTOL = 1e-8, 1e-3
PILOT_FTOL, PILOT_GTOL = 1e-3, 0.1
#: the same for fits that locate the maximum to the digits of the slopes, which is for PILOT rows at
#: most: there fits of weighted and of repeated rows agree to 1e-7
FINE_TOL, FINE_GTOL = 1e-10, 1e-7
#: points without a fit at which a run of the optimizer ends: along the edge of what holds it has
#: gained 0.1 nat by 500 more of them
MOST_LOST = 40
#: height of the wall where no fit holds, over what the slope at the best point promises
WALL = 0.1
#: failed fits of one search that are repaired. Those that follow are lost at once
REPAIRS = 5
#: searches with pivots of their own, and the gain in evidence below which no other follows
ROUNDS, GAIN = 3, 0.05
#: where the rank is free: such searches, before an exact one. And the truncation error, in nats,
#: that the pivots of the last one may have at the maximum, where it is 0.003 as a rule
FREE_ROUNDS, OPEN = 10, 0.1
#: posteriors with a site per row
OF_ROWS = GPPosterior, LowRankGPPosterior


class _Ended(Exception):  # noqa: N818 (it is no error)
    """A run of the optimizer ends before it has settled, at the best point so far."""


class Maximum(NamedTuple):
    """What a search found."""

    theta: Array
    value: float
    #: sites to start from there, where each row has one
    start: WarmStart | None = None
    #: truncation error there, in nats, of a process of low rank
    error: float = 0.0


#: hyper-parameters, and sites of a fit of the same rows near them
Start = tuple[Array, WarmStart | None]


class Descent:
    """One run of an optimizer over minus the log evidence of a problem."""

    def __init__(
        self, problem: AnyProcess, start: WarmStart | None = None, *, pilot: bool = False
    ) -> None:
        schedule = problem.schedule
        self.plain, self.refine = schedule, not pilot and len(problem.X) <= PILOT
        tol = PILOT_TOL if pilot else TOL
        if isinstance(schedule, EP) and 0.0 < schedule.tol < tol:
            schedule = replace(schedule, tol=tol)
        self.problem, self.schedule = problem, schedule
        self.hurry = problem.loss.log_concave is False
        ftol, gtol = (PILOT_FTOL, PILOT_GTOL) if pilot else (FTOL, GTOL)
        self.options = {"ftol": ftol, "gtol": gtol}
        #: start of the next fit
        self.last: Any = start
        self.best: tuple[float, Array | None] = (np.inf, None)
        #: of the objective at the best hyper-parameters
        self.slope = np.zeros(len(problem.bounds))
        #: at the best hyper-parameters
        self.start: WarmStart | None = None
        #: truncation error there
        self.error = 0.0
        #: what L-BFGS sees as 0: with densities, the first value, which has the unit of y in it
        self.level: float | None = None if problem.parameters.names else 0.0
        #: hyper-parameters that were tried, those at which no fit held, and repaired ones
        self.tried = self.lost = self.repaired = 0
        #: points that may yet be lost in this run of the optimizer
        self.left = MOST_LOST

    def objective(self, theta: Array, eval_gradient: bool = True) -> Any:
        """Minus the log evidence. Infinite where no fit holds."""
        self.tried += 1
        value, slope = np.inf, np.zeros(len(theta))
        try:
            point = self.problem.at(theta, gradient=eval_gradient)
            post, holds = fitted(
                point,
                self.schedule,
                self.last,
                repair=self.repaired < REPAIRS,
                can_descend=self.problem.can_descend,
                hurry=self.hurry,
            )
            if holds:
                slope = -point.gradient(post) if eval_gradient else slope
                value = -post.log_evidence
                self.last = post
            if not holds or post.schedule != self.schedule:
                self.repaired += 1
        except FAILURES:
            self.repaired += 1
        if np.isfinite(value) and np.isfinite(slope).all():
            if value < self.best[0]:
                self.best, self.slope = (value, np.array(theta)), slope
                self.start = start_from(post) if isinstance(post, OF_ROWS) else None
                self.error = getattr(post, "truncation_error", None) or 0.0
        else:
            self.lost += 1
            value, slope = np.inf, np.zeros(len(theta))
        return (value, slope) if eval_gradient else value

    def _with_wall(self, theta: Array) -> tuple[float, Array]:
        """As the objective, with a wall where that is infinite: the line search steps back.

        It is above the best point by a tenth of what the slope there promises, and rises: half of
        the step follows. After a high and level one steps crawl along the edge of what holds.
        """
        value, slope = self.objective(theta)
        best, there = self.best
        self.left -= bool(np.isinf(value))
        if self.left == 0:
            raise _Ended
        if np.isinf(value) and there is not None:
            step = theta - there
            gain = max(abs(float(self.slope @ step)), 1e-9 * (1.0 + abs(best)))
            value, slope = best + WALL * gain, step * (gain / max(float(step @ step), 1e-300))
        elif np.isinf(value):
            value = 0.0
        elif self.level is None:
            self.level = value
        return value - (self.level or 0.0), slope

    def run(self, optimizer: Any, theta: Array) -> Maximum:
        """Descend from theta."""
        with self.problem.at_work():
            end = self._run(optimizer, theta)
        # n^2 numbers
        self.last = None
        return end

    def _run(self, optimizer: Any, theta: Array) -> Maximum:
        bounds = self.problem.bounds
        if callable(optimizer):
            best, value = optimizer(self.objective, theta, bounds=bounds)
            return Maximum(np.asarray(best), -float(value), self.start, self.error)
        self._descend(theta)
        value, place = self.best
        best = theta if place is None else place
        if (
            place is not None
            and self.refine
            and isinstance(self.plain, EP)
            and self.plain.tol > 0.0
        ):
            best = self._refined(best)
        return Maximum(best, -value, self.start, self.error)

    def _refined(self, theta: Array) -> Array:
        """On from the best of what was tried: up what rises little, and to the root of the slopes.

        Where classes are separable the evidence rises by 1e-4 per unit, and a search that stops
        early stops at random.
        """
        self.schedule = replace(self.plain, tol=min(FINE_TOL, self.plain.tol))

        def evaluate(theta: Array) -> tuple[float, Array] | None:
            value, slope = self.objective(theta)
            return (-value, -slope) if np.isfinite(value) else None

        self.options = {"ftol": 0.0, "gtol": FINE_GTOL}
        lost, self.best = self.lost, (np.inf, None)
        self._descend(theta)
        theta = theta if self.best[1] is None else self.best[1]
        root, _ = root_of_slopes(evaluate, theta, self.problem.bounds)
        value, _ = self.objective(root)  # the last fit is where its sites are
        self.lost = lost
        if not np.isfinite(value):
            return theta
        if isinstance(self.last, GPPosterior):
            self.start = start_from(self.last)
        return root

    def _descend(self, theta: Array) -> None:
        self.left = MOST_LOST
        with suppress(_Ended):
            descend(self._with_wall, theta, self.problem.bounds, self.options)


def descended(
    optimizer: Any, problem: Any, start: Start, runs: list[Descent], *, pilot: bool = False
) -> Maximum:
    """The end of a descent, which is appended to the runs first."""
    theta, guess = start
    run = Descent(problem, guess, pilot=pilot)
    runs.append(run)
    return run.run(optimizer, theta)


def maxima(
    problems: list[AnyProcess],
    starts: list[list[Start]],
    climb: Callable[[Any, Start, list[Descent]], Maximum],
    n_jobs: int | None,
    runs: list[Descent],
) -> list[Maximum]:
    """The best theta of each problem over searches from each of its starts, in threads.

    The results do not depend on ``n_jobs``: each search has its own warm starts. Its descents are
    appended to the runs.
    """
    jobs = [(k, start) for k, mine in enumerate(starts) for start in mine]
    over, inside = shares(n_jobs, len(jobs))
    calls: list[Callable[[], Maximum]] = [
        partial(climb, problems[k].with_threads(inside), start, runs) for k, start in jobs
    ]
    ends = in_threads(calls, over)
    best = []
    for k in range(len(problems)):
        mine = [one for (which, _), one in zip(jobs, ends, strict=True) if which == k]
        best.append(max(mine, key=lambda one: one.value))
    return best


def search(
    problems: list[AnyProcess],
    pilots: list[AnyProcess] | None,
    starts: list[list[Array]],
    optimizer: Any,
    n_jobs: int | None,
) -> tuple[list[Maximum], list[Descent]]:
    """The hyper-parameters of all problems, and the descents over all rows that led there.

    Parameters
    ----------
    problems : list
    pilots : list, optional
        The problems of a few of the rows, on which all starts are tried. Only the best of each goes
        on.
    starts : list of list of ndarray of shape (p,)
        Of each problem.
    optimizer, n_jobs
        As in GPClassifier.

    Raises
    ------
    FloatingPointError
        If no fit held at any of the hyper-parameters of a problem.
    """
    with warnings.catch_warnings():
        # the last fit, at the maximum, gives its own warnings
        warnings.simplefilter("ignore", ConvergenceWarning)
        given: list[list[Start]] = [[(theta, None) for theta in mine] for mine in starts]
        begin = given
        if pilots is not None:
            first = maxima(pilots, given, partial(descended, optimizer, pilot=True), n_jobs, [])
            # sites of the same rows, from which alone fits may hold there
            all_rows = len(pilots[0].X) == len(problems[0].X)
            begin = [
                [(one.theta, one.start if all_rows else None)] if np.isfinite(one.value) else mine
                for one, mine in zip(first, given, strict=True)
            ]
        climb, runs = partial(staged, optimizer), list[Descent]()
        ends = maxima(problems, begin, climb, n_jobs, runs)
        for k, one in enumerate(ends):
            if not np.isfinite(one.value) and begin[k] is not given[k]:
                # what holds for some rows may not hold for all of them
                (ends[k],) = maxima([problems[k]], [given[k]], climb, n_jobs, runs)
    if not all(np.isfinite(one.value) for one in ends):
        raise FloatingPointError("EP failed at all hyper-parameters that were tried")
    return ends, runs


def staged(optimizer: Any, problem: Any, start: Start, runs: list[Descent]) -> Maximum:
    """The best of descents one after the other, each from where the last one ended.

    In each of them the problem has one form, exact or of the low rank that it has at its start,
    with the pivots held fixed: so the evidence is smooth. An exact search has one stage, one for
    nearest rows a first one on some of the rows, which starts without sites.
    """
    best: Maximum | None = None
    form, rounds = _first(problem, start[0]), 0
    while form is not None:
        rounds += 1
        begin = (start[0], None) if isinstance(form, NearestProcess) else start
        end = descended(optimizer, form.searched(), begin, runs)
        if isinstance(problem, LowRankProcess):
            # the value with pivots of its own decides
            runs.append(Descent(problem))
            end = end._replace(value=-runs[-1].objective(end.theta, False))
        best, form = _next(problem, form, end, best, rounds)
        start = end.theta, best.start
    assert best is not None
    return best


def _first(problem: Any, theta: Array) -> Any:
    """The form in which a search begins.

    Where nearest rows may be what it comes to, one of a rank above PILOT begins on some rows: from
    where the pilot ends on 8,000 rows of protein it took 75 s, to find that it has no low rank.
    """
    form = problem.stage(theta)
    some = problem.unfactored() if isinstance(problem, BinaryProcess) else form
    many = isinstance(form, LowRankProcess) and form.pivots is not None and len(form.pivots) > PILOT
    return some if many and isinstance(some, NearestProcess) else form


def _next(
    problem: Any, form: Any, end: Maximum, before: Maximum | None, rounds: int
) -> tuple[Maximum, Any]:
    """The best so far, and the form of a further search. None: there is none."""
    if isinstance(form, NearestProcess):
        there = problem.stage(end.theta) if rounds == 1 else form
        return end._replace(start=None), there if isinstance(there, LowRankProcess) else None
    if not isinstance(form, LowRankProcess):
        return end, None
    if isinstance(problem, LowRankProcess):
        if before is not None and not end.value > before.value:
            return before, None
        gain = np.inf if before is None else end.value - before.value
        return end, problem.stage(end.theta) if rounds < ROUNDS and gain > GAIN else None
    if end.start is None or rounds == FREE_ROUNDS:
        return end, problem.unfactored()
    there = problem.stage(end.theta, end.start.sites.precision)
    return end, None if isinstance(there, LowRankProcess) and end.error <= OPEN else there

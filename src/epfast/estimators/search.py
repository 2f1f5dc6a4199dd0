"""The search of the prior variances that maximise the log evidence of linear classifiers.

A fit counts only if it is valid, see :func:`epfast.estimators.evidence.certified`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np
from scipy import optimize

from epfast._arrays import Array
from epfast.estimators.base import ConvergenceWarning, EvidenceWarning
from epfast.estimators.evidence import (
    BinaryProblems,
    Fits,
    Posterior,
    ScalePrior,
)
from epfast.estimators.leading import leading
from epfast.gaussian import Problem
from epfast.inference import FAILURES, fit_from
from epfast.inference.hyper import SHARE
from epfast.inference.records import warn_user
from epfast.schedules import DEP, EP, Schedule, SharedSites

logger = logging.getLogger("epfast")

#: least number of sweeps that a fit of the search may take, and its loosest and default tolerance
SWEEPS, QUICK_TOL, TOL = 100, 0.1, 1e-6
#: prior variance of x.theta where a search begins
BEGIN = 3.0
#: the largest step of log(prior variance), and how far from the root, in tolerances, a slope has
#: its right sign
LARGEST_STEP, NEAR = 2.0, 10.0
#: error of the excess of a fit over its tolerance: 0.02 on MNIST, 0.2 where a plane separates
#: classes
NOISE = 0.5
#: what a step leaves is no larger than this share of it, once the rise is known
RISES = 0.1
#: accuracy of log(prior variance): of the root of the slope, at fixed points of EP, ...
ROOT_ACCURACY = 1e-10
#: ... or of the largest value, which cannot be located more precisely
ACCURACY = 1e-4
#: hyper-parameters that follow the sites crawl if a step is this share of the last but one, and no
#: larger. Where rows are many steps shrink by 5 to 100, where a plane separates classes by 1.2
CRAWLS, FAR = 0.5, 1.0
#: a share of the accuracy that is no step: a smaller one costs a sweep more
STILL = 0.3
#: a change of the inverse prior sd by which slopes tell how they rise
SECANT_FROM = 5e-3
#: SHARE of passes in leading directions, whose slopes are right to second order in what is left
OF_PASSES = 0.05
#: step back from a lost fit at which a search by slopes is given up, and steps from the first point
#: at which some fit is to hold
LEAST_STEP, ELSEWHERE = 0.1, (0.0, -3.0, 3.0, -6.0, 6.0, -9.0, 9.0)
#: below the end of the range, of a prior variance of x.theta of 1e6, from where it is flat
EDGE = math.log(100.0)
#: damping of the repairs, and how many times the sweeps it needs
REPAIRS = ((0.5, 2), (0.2, 5))
#: the change of a fit that settles slowly shrinks by this factor over the second half of its sweeps
SLOW = 0.7
#: several variances: most steps, and the slope in nats at which a variance has settled
STEPS, SLOPE = 200, 1e-4


class Search:
    """The maximum of the log evidence over u, the log of the prior variance."""

    def __init__(
        self,
        problem: BinaryProblems,
        start: list[Posterior] | None = None,
        prior: ScalePrior | None = None,
    ) -> None:
        """prior: of a common variance, whose log density is added. None: it is flat."""
        self.problem, self.prior = problem, prior
        #: start of the next fit: the last valid one
        self.last = start
        #: its variance and fits
        self.latest: tuple[float | Array, Fits] | None = None
        #: of the excess at the last point, see :meth:`Fits.rise`
        self.rise = math.nan
        #: points without a valid fit, and all points
        self.n_lost = self.n_tried = 0
        #: minus the second derivative of the log density by u, where the search by slopes ended
        self.curvature = math.nan
        self.fine, self.quick = schedules_of(problem.schedule)
        tol = float(self.fine.tol)
        #: of logs of prior variances and numbers of the loss, at the root of slopes
        self.accuracy = max(ROOT_ACCURACY, min(ACCURACY, 100.0 * tol), 10.0 * tol)
        #: see SHARE
        self.share = SHARE

    def fits(self, variance: float | Array, schedule: Schedule) -> Fits | None:
        """Fits with certificates. None if there are none, even after repairs."""
        self.n_tried += 1
        for attempt in self._attempts(variance, schedule):
            if attempt is not None and self.problem.certified(attempt):
                if schedule.stores != "none":  # ADF would count the rows again
                    self.last, self.latest = attempt.posteriors, (variance, attempt)
                return attempt
        self.n_lost += 1
        logger.info("prior variance %s: no fit was valid", variance)
        return None

    def _attempts(self, variance: float | Array, schedule: Any) -> Iterator[Fits | None]:
        """The fit as it is, then repaired."""
        first = self._attempt(variance, schedule, self.last)
        yield first
        yield from self._repairs(variance, schedule, first)

    def final(self, variance: float | Array, repairs: bool) -> Fits:
        """The fits at the variance of the maximum, by the schedule of the problem.

        repairs: whether an invalid fit is repaired, if it can be.
        """
        schedule, loss = self.problem.schedule, self.problem.problems[0].loss
        if self.latest is not None and np.array_equal(self.latest[0], variance):
            fits = self.latest[1]
            known = (post.problem for post in fits.posteriors)
            if all(one.schedule == schedule and one.loss == loss for one in known):
                return fits
        first = fit_from(partial(self.problem.fit, variance, schedule), self.last)
        if not repairs or self.problem.certified(first):
            return first
        tried = self._repairs(variance, schedule, first)
        return next((r for r in tried if r is not None and self.problem.certified(r)), first)

    def _repairs(
        self, variance: float | Array, schedule: Any, first: Fits | None
    ) -> Iterator[Fits | None]:
        """Twice the sweeps if the first fit settles slowly, else damping."""
        if schedule.stores == "none":
            return
        if first is not None and all(map(settles_slowly, first.posteriors)):
            if schedule is not self.quick:
                yield self._attempt(variance, schedule, first.posteriors)
            return
        for damping, times in REPAIRS:
            damping *= schedule.damping
            damped = replace(schedule, damping=damping, sweeps=times * schedule.sweeps)
            yield self._attempt(variance, damped, self.last)

    def _attempt(
        self, variance: float | Array, schedule: Schedule, starts: list[Posterior] | None
    ) -> Fits | None:
        try:
            return fit_from(partial(self.problem.fit, variance, schedule), starts)
        except FAILURES:
            return None

    def of_prior(self, u: float) -> tuple[float, float]:
        """Log density of the prior of a common variance, and its slope."""
        return (0.0, 0.0) if self.prior is None else (self.prior.value(u), self.prior.slope(u))

    def value(self, u: float, fits: Fits) -> float:
        """Log density of u, of prior times evidence."""
        return fits.log_evidence + self.of_prior(u)[0]

    def slope(self, u: float, fits: Fits) -> float:
        """The slope of :meth:`value`."""
        return fits.slope(math.exp(-u), self.problem.d) + self.of_prior(u)[1]

    def maximum(self, low: float, high: float) -> float | None:
        """The best log of a prior variance in a range. None if no fit was valid."""
        u = None
        if self.problem.flat:
            begin, rise = self._pilot(low, high)
            settled, schedule = False, self.fine
            if math.isnan(rise):
                (begin, settled), schedule = self._with_sites(low, high, begin), self.quick
            u = begin if settled else self._root(low, high, begin, rise, schedule)
        return self._best(low, high) if u is None else u

    def _pilot(self, low: float, high: float) -> tuple[float, float]:
        """Where the search begins, and how the excess rises there. NaN: not known.

        Without a start, where searches in leading directions end.
        """
        u, rise, d, starts = _begin(low, high), math.nan, self.problem.d, None
        if self.last is not None:
            return u, rise
        for small in leading(self.problem):
            pilot = Pilot(cast(Any, small), starts, self.prior)
            begin = pilot.quick if math.isnan(rise) else pilot.to(small.stage.first)
            root = pilot._root(low, high, u, rise * d / small.d, begin)
            if root is None:
                break
            u, rise, starts = root, pilot.rise * small.d / d, pilot.last
        if starts is not None:
            self.last = cast(Any, starts[0]).by_problem(
                math.exp(-u), self.problem.problems[0].shape[1]
            )
        return u, rise

    def _with_sites(self, low: float, high: float, u: float) -> tuple[float, bool]:
        """Where u ends that follows the sites within a fit, and whether that is the root."""
        d, before = self.problem.d, (math.nan, math.nan)

        def newton(at: Array, fits: Fits) -> Array:
            nonlocal before
            u = float(at[0])
            slope, x = self.slope(u, fits), math.exp(-0.5 * u)
            excess = fits.excess(slope, d)
            if abs(before[0] / x - 1.0) > SECANT_FROM:
                self.rise = (excess - before[1]) / (x - before[0])
            before = x, excess
            step = _secant(excess, fits.rise(x * x, slope, d), x)
            return np.array([min(max(u + step, low), high)])

        (u,), settled = self.follow(
            np.array([u]), lambda at: (self.problem, math.exp(at[0])), newton
        )
        if settled and self.latest is not None:
            self.curvature = self.latest[1].bend(math.exp(-0.5 * u), self.rise, d)
        return float(u), settled

    def follow(
        self,
        u: Array,
        at: Callable[[Array], tuple[BinaryProblems, float | Array]],
        there: Callable[[Array, Fits], Array | None],
    ) -> tuple[Array, bool]:
        """Where hyper-parameters u end that follow the sites within a fit, and whether at a root.

        There they stand still, and the fit is valid. They are left where they crawl, with
        that fit as the next start.

        at: the problems and the prior variance at u; there: the next u, by the posterior of a
        sweep, or None.
        """
        begun, steps, crawls = u, [math.inf, math.inf], False
        if not self.problem.follows:
            return u, False

        def learn(post: Posterior) -> tuple[Problem | None, bool]:
            nonlocal u, crawls
            to = there(u, Fits([post], [])) if post.n_sweeps else None
            step = 0.0 if to is None else float(np.abs(to - u).max(initial=0.0))
            if to is None or step <= STILL * self.accuracy:
                return None, False
            crawls = CRAWLS * steps[-2] < step < FAR
            u, steps[:] = to, [steps[-1], step]
            problem, variance = at(u)
            return problem.at(0, variance), step > self.accuracy

        problem, variance = at(u)
        given = {"learn": learn, "callback": lambda *_: crawls}
        try:
            fits = problem.fit(variance, self.fine, self.last, **given)
        except FAILURES:
            return begun, False
        if crawls:
            self.last = fits.posteriors
            return u, False
        if not problem.certified(fits):
            return begun, False
        self.n_tried += 1
        self.last, self.latest = fits.posteriors, (at(u)[1], fits)
        return u, True

    def _root(self, low: float, high: float, u: float, rise: float, schedule: Any) -> float | None:
        """Where the slope is 0, or an end of the range where it points outwards. None if lost.

        By Newton's step with the sites held, then secants, of :meth:`Fits.excess`, in the bracket
        of slopes of both signs. Each fit begins where the last one ended, and is as precise as its
        step, so that all of them take the sweeps of two. The last step is taken without a fit,
        where the one after it would be as small as the accuracy.
        """
        d = self.problem.d
        ends: list[tuple[float, Any]] = []
        below, above = -math.inf, math.inf
        before: tuple[float, float, float] | None = None
        tol, accuracy = self.fine.tol, self.accuracy
        loose, last = 0.0, math.inf if math.isnan(rise) else 1.0
        for _ in range(STEPS):
            fits = self.fits(math.exp(u), schedule)
            if fits is None:
                if before is None or abs(u - before[0]) < LEAST_STEP:
                    return None
                u = 0.5 * (u + before[0])
                continue
            ends = [*ends, (u, fits)][-2:]
            slope = self.slope(u, fits)
            x, excess = math.exp(-0.5 * u), fits.excess(slope, d)
            if before is None and math.isnan(rise):
                rise = fits.rise(math.exp(-u), slope, d)
            elif before is not None and last > loose:
                # nearer, the fits before were not precise enough
                rise = (excess - before[2]) / (x - before[1])
            # the sign of a slope close to its root is known to the precision of the fit
            near = schedule.tol * max(NEAR, NOISE / (rise * x) if rise > 0.0 else 0.0)
            below, above = (
                (max(below, u - near), above) if slope > 0.0 else (below, min(above, u + near))
            )
            step = _secant(excess, rise, x)
            there = min(max(u + step, low), high)
            if not below <= there <= above:
                there = 0.5 * (max(below, low) + min(above, high))
            step = abs(there - u)
            if schedule == self.fine and step <= accuracy:  # these fits are the last
                self.rise, self.curvature = rise, fits.bend(x, rise, d)
                return u
            self.rise, self.last = rise, self._onward(ends, there)
            left = step**2 / max(last, accuracy)
            left = left if before is None else min(RISES * step, left)
            if left <= accuracy and schedule.tol <= max(2.0 * accuracy, tol):
                self.curvature = fits.bend(x, rise, d)
                return there
            loose, last = schedule.tol, step
            schedule = self.to(max(self.share * step * min(step, 1.0), accuracy))
            before, u = (u, x, excess), there
        return None

    def _onward(self, ends: list[tuple[float, Any]], there: float) -> Any:
        """Starts of fits there, by the line through the last two."""
        if len(ends) < 2 or self.last is None or ends[0][0] == ends[1][0]:
            return self.last
        (before, old), (u, new) = ends
        return new.onward(old, (there - u) / (u - before))

    def to(self, tol: float) -> Any:
        """The schedule of the search, to a tolerance between those of its two."""
        return replace(self.fine, tol=min(max(tol, self.fine.tol), self.quick.tol))

    def _best(self, low: float, high: float) -> float | None:
        """The largest value, by Brent's minimisation."""
        tried: dict[float, float] = {}

        def loss(u: float) -> float:
            fits = self.fits(math.exp(u), self.fine)
            tried[u] = -math.inf if fits is None else self.value(u, fits)
            return -max(tried[u], -1e50)  # a finite number for a lost fit

        begin = _begin(low, high)
        if not any(loss(min(max(begin + away, low), high)) < 1e50 for away in ELSEWHERE):
            return None
        optimize.minimize_scalar(
            loss, bounds=(low, high), method="bounded", options={"xatol": ACCURACY}
        )
        # it visits the inside of the range only
        for end in (low, high):
            if abs(max(tried, key=lambda u: tried[u]) - end) < 10.0 * ACCURACY:
                loss(end)
        return max(tried, key=lambda u: tried[u])


class Pilot(Search):
    """The search in leading directions, whose passes cannot be repaired."""

    def __init__(
        self, problem: Any, start: list[Posterior] | None, prior: ScalePrior | None
    ) -> None:
        super().__init__(problem, start, prior)
        self.fine, self.accuracy = self.to(problem.stage.last), problem.stage.accuracy
        self.share = OF_PASSES

    def _repairs(
        self, variance: float | Array, schedule: Any, first: Fits | None
    ) -> Iterator[Fits | None]:
        return iter(())


def _secant(excess: float, rise: float, x: float) -> float:
    """The step of log v to the root of an excess that is a line in x, the inverse prior sd."""
    step = math.copysign(1.0, excess)
    if rise > 0.0:
        step = -2.0 * math.log(max(1.0 - excess / (rise * x), 1e-300))
    return min(max(step, -LARGEST_STEP), LARGEST_STEP)


def _begin(low: float, high: float) -> float:
    """Where a search begins, in a range about a prior variance of x.theta of 1."""
    return min(0.5 * (low + high) + math.log(BEGIN), high)


def schedules_of(schedule: Any) -> tuple[Any, Any]:
    """The schedule of the search: to its accuracy, and to find the region of the maximum.

    A fixed number of sweeps (``tol=0``) is not valid, nor are few sweeps.
    """
    if not isinstance(schedule, EP | SharedSites | DEP):
        return schedule, schedule
    sweeps = max(schedule.sweeps, SWEEPS)
    fine = replace(cast(Any, schedule), sweeps=sweeps, tol=schedule.tol or TOL)
    return fine, replace(fine, tol=max(fine.tol, QUICK_TOL))


def settles_slowly(post: Posterior) -> bool:
    """Whether a fit only lacks sweeps: it refuses nothing and its change goes on shrinking."""
    history = post.history
    half = history[len(history) // 2].change
    return history[-1].n_refused == 0 and (post.converged or history[-1].change < SLOW * half)


def common_variance(search: Search, least: float, most: float) -> float:
    """The prior variance in a range that the evidence favours. It warns of what went wrong.

    It is 1 if all points of the search are lost.
    """
    u = search.maximum(math.log(least), math.log(most))
    warn_lost(search, "1" if u is None else "the best of the others")
    if u is None:
        search.last = None
        return 1.0
    if u > math.log(most) - EDGE:
        warn_user(
            f"the log evidence rises up to prior_variance={math.exp(u):.3g}, and hardly falls "
            "beyond: a plane separates the classes, or nearly, and does not bound the "
            "coefficients, or the columns of X differ in scale; standardise them, or give a "
            "number, such as prior_variance=1.0 for columns of unit variance",
            EvidenceWarning,
        )
    return math.exp(u)


def warn_lost(search: Search, kept: str) -> None:
    """Warn of points that were lost; kept: what prior_variance_ is then."""
    if search.n_lost:
        warn_user(
            f"{search.n_lost} of {search.n_tried} points of the search of the prior variance gave "
            "no fit that converged with all its sites and a log evidence of at most 0; "
            f"prior_variance_ is {kept}; try scheme='exact', a schedule with damping, or a number "
            "as prior_variance",
            ConvergenceWarning,
        )

"""The hyper-parameters of linear estimators that maximise prior times evidence.

They are logs of prior variances, then numbers of the likelihood. A fit counts only if it is valid,
see :func:`epfast.estimators.evidence.certified`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from epfast._arrays import Array
from epfast.estimators.base import ConvergenceWarning, EvidenceWarning
from epfast.estimators.descent import END, descend, root_of_slopes
from epfast.estimators.evidence import BinaryProblems, Fits, Posterior
from epfast.estimators.leading import leading
from epfast.estimators.parameters import LossParameters, OfPower
from epfast.estimators.spectrum import Spectrum
from epfast.gaussian import Problem
from epfast.gaussian.held import gains, newton, newton_step
from epfast.inference import FAILURES, fit_from
from epfast.inference.hyper import SHARE
from epfast.inference.records import warn_user
from epfast.losses import Loss
from epfast.schedules import DEP, EP, Schedule, SharedSites

logger = logging.getLogger("epfast")

#: least number of sweeps that a fit of the search may take, and its loosest and default tolerance:
#: 128 classifiers and regressors of 10 to 768 rows take 1,084, 1,051 and 1,055 runs with .01, .1
#: and 1 as the loosest, and their log evidence changes by 8e-6 at most
SWEEPS, QUICK_TOL, TOL = 100, 0.1, 1e-6
#: prior variance of x.theta where a search begins: with 1 and 10 the 128 fits take 1,055 and 1,063
#: runs, and two and three end at another log evidence, by up to 1 nat
BEGIN = 3.0
#: the largest step of log(prior variance): with 1 and 8 the 128 fits take 1,102 and 1,053 runs
LARGEST_STEP = 2.0
#: accuracy of log(prior variance): of the root of the slope, at fixed points of EP, ...
ROOT_ACCURACY = 1e-10
#: ... or of the largest value, which cannot be located more precisely. With .001 the 128 fits take
#: 1,027 runs, and their log evidence changes by 9e-5 at most
ACCURACY = 1e-4
#: hyper-parameters that follow the sites crawl if a step is this share of the last but one, and no
#: larger. Where rows are many steps shrink by 5 to 100, where a plane separates classes by 1.2. The
#: 128 fits take 12,189 sweeps in place of 9,109 without this rule, and 9,766 with a share of 0
CRAWLS, FAR = 0.5, 1.0
#: a share of the accuracy that is no step: a smaller one costs a sweep, or a fit, more. With .03
#: and 1 the 128 fits take 1,056 and 1,045 runs
STILL = 0.3
#: a change of the inverse prior sd by which slopes tell how they rise: with 0 and .05 the 128 fits
#: take 1,059 and 1,109 runs, and one and four end at another log evidence
SECANT_FROM = 5e-3
#: steps from the first point at which some fit is to hold
ELSEWHERE = (0.0, -3.0, 3.0, -6.0, 6.0, -9.0, 9.0)
#: below the end of the range, of a prior variance of x.theta of 1e6, from where it is flat
EDGE = math.log(100.0)
#: damping of the repairs, and how many times the sweeps it needs
REPAIRS = ((0.5, 2), (0.2, 5))
#: the change of a fit that settles slowly shrinks by this factor over the second half of its
#: sweeps: the 128 fits are the same with .3 and 1
SLOW = 0.7
#: L-BFGS: most steps, the slope in nats at which it ends, and tolerance of its fits. The slope up
#: to which a maximum differs from a point where the search is stuck: the 128 fits are the same with
#: 1e-4 and 1
STEPS, SLOPE, CLIMB_TOL, LEVEL = 200, 1e-4, 1e-6, 1e-2
#: step of differences of slopes of priors
SHORT = 1e-6
#: fixed point: most fits, no turn, and the most by which mixing changes a step. 400 fits of tables
#: of 12 to 300 rows, with one to five hyper-parameters, take 2,665 runs to their modes, and 3,190
#: without mixing, where two end lower. With 8 and 40 of the first they take 2,973 and 2,673, and
#: three and none end lower. With .25 and 1e9 of the third these are 2,637 and 2,922, none and one
POINTS, TINY, MIXED = 15, 1e-300, 1.0


def flat(u: float) -> tuple[float, float]:
    """No prior."""
    return 0.0, 0.0


class Learnt(NamedTuple):
    """What was found, or given."""

    variance: float | Array
    loss: Loss
    #: whether the slopes there are those of a maximum
    settled: bool = True


class Search:
    """Log of prior and evidence as a function of u, and its maximum."""

    def __init__(
        self,
        problem: BinaryProblems,
        start: list[Posterior] | None = None,
        *,
        parameters: Any = None,
        fixed: float | Array | None = None,
        groups: NDArray[np.intp] | None = None,
        ranges: Array | None = None,
        prior: OfPower | None = None,
        spectrum: Spectrum | None = None,
    ) -> None:
        """Search variances where there are (k, 2) ``ranges`` of them: by group, or a common one.

        start: of the first fit. parameters: of the likelihood that are sought. fixed: the prior
        variance without ranges. prior: of a common variance; None: it is flat. spectrum: gives the
        log evidence by one prior variance, and that of Gaussian noise.
        """
        self.problem, self.parameters, self.fixed = problem, parameters, fixed
        self.groups, self.prior, self.spectrum = groups, prior, spectrum
        self.k = 0 if ranges is None else len(ranges)
        logs = np.empty((0, 2)) if ranges is None else np.log(ranges)
        sought = np.empty((0, 2)) if parameters is None else parameters.bounds
        self.bounds = np.concatenate([logs, sought])
        #: of each number, its prior over the logarithm: value and slope
        self.priors: list[Callable[[float], tuple[float, float]]] = [
            *([flat if prior is None else prior.over_log] * self.k),
            *([flat] * len(sought)),
        ]
        #: start of the next fit: the last valid one
        self.last = start
        #: its variance and fits
        self.latest: tuple[float | Array, Fits] | None = None
        #: the largest value, and where, if more than a common variance is sought
        self.best: tuple[float, Array | None] = (-np.inf, None)
        self.starts: list[Posterior] | None = None
        #: of a common variance: inverse prior sd and excess of the last point, and how the excess
        #: rises there, see :meth:`Fits.rise`
        self.before, self.rise = (math.nan, math.nan), math.nan
        #: minus the second derivative of the log density by u, where such a search ended
        self.curvature = math.nan
        #: points without a valid fit, and all points
        self.n_lost = self.n_tried = 0
        self.fine, self.quick = schedules_of(problem.schedule)
        tol = float(self.fine.tol)
        #: of logs of prior variances and numbers of the loss, at the root of slopes
        self.accuracy = max(ROOT_ACCURACY, min(ACCURACY, 100.0 * tol), 10.0 * tol)

    def keep(self, parameters: LossParameters, densities: list[Any]) -> None:
        """Seek these of the parameters, under priors over their logs. The others stay."""
        self.parameters = parameters
        self.bounds = np.concatenate([self.bounds[: self.k], parameters.bounds])
        self.priors = [*self.priors[: self.k], *densities]

    @property
    def alone(self) -> bool:
        """Whether a common variance is all that is sought."""
        return self.groups is None and self.k == len(self.bounds) == 1

    def variance(self, u: Array) -> float | Array:
        """The prior variance at u, or of each column."""
        if not self.k:
            return cast(float, self.fixed)
        variances = np.exp(u[: self.k])
        return float(variances[0]) if self.groups is None else variances[self.groups]

    def loss(self, u: Array) -> Loss:
        """The loss at u."""
        if self.parameters is None:
            return self.problem.problems[0].loss
        loss: Loss = self.parameters.at(u[self.k :])
        return loss

    def learnt(self, u: Array, settled: bool = True) -> Learnt:
        """The hyper-parameters at u."""
        return Learnt(self.variance(u), self.loss(u), settled)

    def _at(self, u: Array) -> tuple[BinaryProblems, float | Array]:
        known = self.parameters is None or not self.parameters.names
        problem = self.problem if known else self.problem.with_loss(self.loss(u))
        return problem, self.variance(u)

    # ---- fits ----

    def fits(self, u: Array, schedule: Any) -> Fits | None:
        """Fits with certificates. None if there are none, even after repairs."""
        self.problem, variance = self._at(u)
        self.n_tried += 1
        for attempt in self._attempts(variance, schedule):
            if attempt is not None and self.problem.certified(attempt):
                if schedule.stores != "none":  # ADF would count the rows again
                    self.last, self.latest = attempt.posteriors, (variance, attempt)
                value = -math.inf if self.alone else self.value(u, attempt)
                if value > self.best[0]:
                    self.best, self.starts = (value, u.copy()), attempt.posteriors
                return attempt
        self.n_lost += 1
        logger.info("prior variance %s: no fit was valid", variance)
        return None

    def _attempts(self, variance: float | Array, schedule: Any) -> Iterator[Fits | None]:
        """The fit as it is, then repaired."""
        first = self._attempt(variance, schedule, self.last)
        yield first
        yield from self._repairs(variance, schedule, first)

    def final(self, learnt: Learnt, repairs: bool) -> Fits:
        """The fits with what was learnt, by the schedule of the problem.

        repairs: whether an invalid fit is repaired, if it can be.
        """
        variance, loss = learnt.variance, learnt.loss
        self.problem = self.problem.with_loss(loss)
        schedule = self.problem.schedule
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

    def to(self, tol: float) -> Any:
        """The schedule of the search, to a tolerance between those of its two."""
        return replace(self.fine, tol=min(max(tol, self.fine.tol), self.quick.tol))

    # ---- the log density ----

    def log_prior(self, u: Array) -> tuple[float, Array, Array]:
        """Log density of u, its slopes and second derivatives."""
        values = np.array([prior(x) for prior, x in zip(self.priors, u, strict=True)])
        values, slopes = values.reshape(-1, 2).T
        above = np.array([prior(x + SHORT)[1] for prior, x in zip(self.priors, u, strict=True)])
        return float(values.sum()), slopes, np.diag((above - slopes) / SHORT)

    def value(self, u: Array, fits: Fits) -> float:
        """Log of prior and evidence."""
        return fits.log_evidence + self.log_prior(u)[0]

    def slopes(self, u: Array, fits: Fits) -> Array:
        """The gradient at a fixed point."""
        return self.derivatives(u, fits)[0]

    def derivatives(self, u: Array, fits: Fits) -> tuple[Array, Array]:
        """The gradient at a fixed point, and second derivatives with sites, or cavities, held.

        These are NaN without d x d matrices.
        """
        if self.spectrum is not None:
            return self.exact(u)[1:]
        k, numbers = self.k, slice(self.k, None)
        _, slopes, bent = self.log_prior(u)
        given = self.parameters
        at: Any = None if given is None else given.at
        chart = None if given is None else given.chart(u[numbers])
        by_number, more = gains(fits.posteriors, at, u[numbers], self.bounds[numbers], chart)
        slopes[numbers] += by_number
        bent[numbers, numbers] += more
        d = self.problem.d
        if self.groups is not None:
            by_column = fits.slopes(np.exp(-u[:k])[self.groups], d)
            slopes[:k] += np.bincount(self.groups, by_column, k)
            bent[:k, :k] += fits.curvatures(np.exp(u[:k]), self.groups)
        elif k:
            precision = math.exp(-u[0])
            slopes[0] += fits.slope(precision, d)
            bent[0, 0] += fits.curvature(precision, d)
        return slopes, bent

    def exact(self, u: Array) -> tuple[float, Array, Array]:
        """Log of prior and evidence without a fit, its gradient and its second derivatives."""
        assert self.spectrum is not None
        value, slopes, bent = self.spectrum.evidence(float(self.variance(u)), math.exp(u[self.k]))
        sought = slice(1 - self.k, None)
        of_prior, slopes_of_prior, bent_of_prior = self.log_prior(u)
        return (
            value + of_prior,
            slopes[sought] + slopes_of_prior,
            bent[sought, sought] + bent_of_prior,
        )

    # ---- its maximum ----

    def first(self, starts: list[Array]) -> Array:
        """The best of the starts, by quick fits."""
        best, where = -np.inf, starts[0]
        for u in starts if len(starts) > 1 else []:
            if self.spectrum is not None:
                value = self.exact(u)[0]
            else:
                fits = self.fits(u, self.quick)
                value = -np.inf if fits is None else self.value(u, fits)
            if value > best:
                best, where = value, u
        return where

    def climb(self, start: Array) -> Learnt | None:
        """A local maximum. None if no fit was valid.

        The hyper-parameters follow the sites within a fit, or go to the fixed point of fits with
        their sites held. Where that fails by values, or by L-BFGS.
        """
        u, settled, there = np.clip(start, *self.bounds.T), False, None
        self.best = (-np.inf, None)
        if self.spectrum is not None:
            there = newton(self.exact, u, self.bounds)
            self.fits(there, self.fine)
        elif self.problem.flat:
            if self.alone and self.last is None:
                u = self._pilot(u)
            loosest = self.fine.tol
            if math.isnan(self.rise):
                (u, settled), loosest = self._follow(u), self.quick.tol
                self.rise = self.rise if settled else math.nan
            there = u if settled else self._fixed_point(u, loosest)
        if there is not None:
            return self.learnt(there)
        return self._by_values() if self.alone else self._by_slopes(u)

    def _fixed_point(self, u: Array, loosest: float) -> Array | None:
        """Where fits with their sites held lead to themselves. None: it is not found.

        Of a common variance by secants.
        """
        self.before = (math.nan, math.nan)
        return fixed_point(
            lambda u, tol: self.fits(u, self.to(tol)),
            self._secant if self.alone else self._held,
            u,
            self.bounds,
            (self.fine.tol, loosest),
            self.accuracy,
            mixes=not self.alone,
        )

    def _pilot(self, u: Array) -> Array:
        """Where searches in leading directions end, with the start of fits there."""
        d, starts = self.problem.d, None
        for small in leading(self.problem):
            pilot = Pilot(cast(Any, small), starts, ranges=np.exp(self.bounds), prior=self.prior)
            pilot.rise = self.rise * d / small.d
            loosest = pilot.quick.tol if math.isnan(self.rise) else small.stage.first
            root = pilot._fixed_point(u, loosest)
            if root is None:
                break
            u, self.rise, starts = root, pilot.rise * small.d / d, pilot.last
        if starts is not None:
            width = self.problem.problems[0].shape[1]
            self.last = cast(Any, starts[0]).by_problem(math.exp(-u[0]), width)
        return u

    def _follow(self, u: Array) -> tuple[Array, bool]:
        """Where hyper-parameters u end that follow the sites within a fit, and whether at a root.

        There they stand still, and the fit is valid. They are left where they crawl, with
        that fit as the next start.
        """
        begun, steps, crawls = u, [math.inf, math.inf], False
        if not self.problem.follows:
            return u, False

        def learn(post: Posterior) -> tuple[Problem | None, bool]:
            nonlocal u, crawls
            to = self._held(u, Fits([post], [])) if post.n_sweeps else None
            step = 0.0 if to is None else float(np.abs(to - u).max(initial=0.0))
            if to is None or step <= STILL * self.accuracy:
                return None, False
            crawls = CRAWLS * steps[-2] < step < FAR
            u, steps[:] = to, [steps[-1], step]
            problem, variance = self._at(u)
            return problem.at(0, variance), step > self.accuracy

        problem, variance = self._at(u)
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
        self.last, self.latest = fits.posteriors, (self._at(u)[1], fits)
        return u, True

    def _held(self, u: Array, fits: Fits) -> Array | None:
        """Newton's step with sites, or cavities, of fits at u held. None: it is not known."""
        if self.alone:
            return self._secant(u, fits, True)
        try:
            variances = np.arange(len(u)) < self.k
            return newton_step(u, *self.derivatives(u, fits), self.bounds, variances)
        except FloatingPointError:  # no cavity, no gain
            return None

    def _secant(self, u: Array, fits: Fits, held: bool = False) -> Array:
        """A common variance, (1,), at the root of the line through the last two excesses.

        Of the first point by Newton's step with the sites held; held: of each.
        """
        d, precision = self.problem.d, math.exp(-float(u[0]))
        x = math.sqrt(precision)
        slope = fits.slope(precision, d) + self.log_prior(u)[1].item()
        excess = fits.excess(slope, d)
        if abs(self.before[0] / x - 1.0) > SECANT_FROM:
            self.rise = (excess - self.before[1]) / (x - self.before[0])
        self.before, rise = (x, excess), self.rise
        if held or math.isnan(rise):
            rise = fits.rise(precision, slope, d)
        if math.isnan(self.rise) and not held:
            self.rise = rise
        self.curvature = fits.bend(x, self.rise, d)
        step = math.copysign(1.0, excess)
        if rise > 0.0:
            step = -2.0 * math.log(max(1.0 - excess / (rise * x), 1e-300))
        step = min(max(step, -LARGEST_STEP), LARGEST_STEP)
        if not held and abs(step) <= STILL * self.accuracy:
            step = 0.0
        return np.asarray(np.clip(u + step, *self.bounds.T))

    def _by_values(self) -> Learnt | None:
        """The largest value of a common variance, by Brent's minimisation."""
        ((low, high),) = self.bounds
        tried: dict[float, float] = {}

        def loss(u: float) -> float:
            at = np.array([u])
            fits = self.fits(at, self.fine)
            tried[u] = -math.inf if fits is None else self.value(at, fits)
            return -max(tried[u], -1e50)  # a finite number for a lost fit

        (begin,) = begin_of(self.bounds)
        if not any(loss(min(max(begin + away, low), high)) < 1e50 for away in ELSEWHERE):
            return None
        optimize.minimize_scalar(
            loss, bounds=(low, high), method="bounded", options={"xatol": ACCURACY}
        )
        # it visits the inside of the range only
        for end in (low, high):
            if abs(max(tried, key=lambda u: tried[u]) - end) < 10.0 * ACCURACY:
                loss(end)
        return self.learnt(np.array([max(tried, key=lambda u: tried[u])]))

    def _by_slopes(self, start: Array) -> Learnt | None:
        """A maximum by L-BFGS, then the root of the slopes nearby."""
        start = start if self.best[1] is None else self.best[1]
        highest, last = 0.0, start + 1.0

        def descent(u: Array) -> tuple[float, Array]:
            nonlocal highest, last
            step, last = float(np.abs(u - last).max(initial=0.0)), u.copy()
            point = self.evaluate(u, max(CLIMB_TOL, SHARE * step))
            if point is None:  # worse than all others: the line search comes back
                return highest + 1e3, np.zeros(len(u))
            highest = max(highest, -point[0])
            return -point[0], -point[1]

        options = {"maxiter": STEPS, "gtol": SLOPE, "ftol": 1e-13}
        descend(descent, start, self.bounds, options)
        u = self.best[1]
        if u is None:
            return None
        close = self.problem.flat and self.fine.tol <= CLIMB_TOL
        u, slopes = root_of_slopes(self.evaluate, u, self.bounds, enough=close)
        low, high = u <= self.bounds[:, 0] + END, u >= self.bounds[:, 1] - END
        inward = np.where(
            low, np.maximum(slopes, 0.0), np.where(high, np.minimum(slopes, 0.0), slopes)
        )
        self.last = self.starts
        return self.learnt(u, bool(np.abs(inward).max(initial=0.0) <= LEVEL))

    def evaluate(self, u: Array, tol: float = 0.0) -> tuple[float, Array] | None:
        """Log evidence and its gradient. None without a valid fit."""
        fits = self.fits(u, self.to(tol))
        if fits is None:
            return None
        slopes = self.slopes(u, fits)
        return (self.value(u, fits), slopes) if np.isfinite(slopes).all() else None


def fixed_point(
    fitted: Callable[[Array, float], Any],
    held: Callable[[Array, Any], Array | None],
    start: Array,
    bounds: Array,
    tolerances: tuple[float, float],
    accuracy: float,
    mixes: bool = True,
) -> Array | None:
    """Where the step from a fit, its sites and cavities held, is 0. None: it is not found.

    Each fit is as precise as its step. Anderson's rule mixes a step with the last one: they turn in
    circles where rows are few.

    Parameters
    ----------
    fitted : callable
        The fit at u (m,), to a tolerance. None if there is none.
    held : callable
        Where the step from u leads, with what the fit there holds. None if it is not known.
    start : ndarray of shape (m,)
    bounds : ndarray of shape (m, 2)
    tolerances : pair of float
        The finest and the loosest.
    accuracy : float
        Of u.
    mixes : bool
        Whether steps are mixed.
    """
    finest, loosest = tolerances
    u, tol, last = start, loosest, 1.0
    before: tuple[Array, Array] | None = None
    for _ in range(POINTS):
        fit = fitted(u, tol)
        if fit is None and before is not None:
            u = 0.5 * (u + before[0])
            continue
        there = None if fit is None else held(u, fit)
        if there is None:
            return None
        here = u, there
        if mixes and before is not None:
            turned = there - u - (before[1] - before[0])
            back = float(turned @ (there - u)) / max(float(turned @ turned), TINY)
            mixed = np.clip(back * (there - before[1]), -MIXED, MIXED)
            there = np.clip(there - mixed, *bounds.T)
        before = here
        step = float(np.abs(there - u).max(initial=0.0))
        ends_here = step * min(step / max(last, accuracy), 1.0) <= accuracy
        if ends_here and tol <= max(0.2 * accuracy, finest):
            return there
        u, last = there, step
        tol = min(max(SHARE * step * min(step, 1.0), 0.1 * accuracy, finest), loosest)
    return None


class Pilot(Search):
    """The search in leading directions, whose passes cannot be repaired."""

    def __init__(self, problem: Any, start: list[Posterior] | None, **given: Any) -> None:
        super().__init__(problem, start, **given)
        self.fine, self.accuracy = self.to(problem.stage.last), problem.stage.accuracy

    def _repairs(
        self, variance: float | Array, schedule: Any, first: Fits | None
    ) -> Iterator[Fits | None]:
        return iter(())


def begin_of(bounds: Array) -> Array:
    """Where the search of a common variance begins, about a prior variance of x.theta of 1."""
    return np.asarray(np.minimum(bounds.mean(axis=1) + math.log(BEGIN), bounds[:, 1]))


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


def common_variance(search: Search) -> Learnt:
    """The common prior variance that the evidence favours. It warns of what went wrong.

    It is 1 if all points of the search are lost.
    """
    learnt = search.climb(begin_of(search.bounds))
    warn_lost(search, "1" if learnt is None else "the best of the others")
    if learnt is None:
        search.last = None
        return Learnt(1.0, search.loss(np.empty(0)))
    if math.log(cast(float, learnt.variance)) > search.bounds[0, 1] - EDGE:
        warn_user(
            f"the log evidence rises up to prior_variance={learnt.variance:.3g}, and hardly falls "
            "beyond: a plane separates the classes, or nearly, and does not bound the "
            "coefficients, or the columns of X differ in scale; standardise them, or give a "
            "number, such as prior_variance=1.0 for columns of unit variance",
            EvidenceWarning,
        )
    return learnt


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

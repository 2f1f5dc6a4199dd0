"""The hyper-parameters of linear estimators: the target that their search is given.

They are logs of prior standard deviations, then numbers of the likelihood. A fit counts only if it
is valid, see :func:`epfast.estimators.evidence.certified`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast._arrays import Array
from epfast.estimators.base import ConvergenceWarning, EvidenceWarning
from epfast.estimators.directions import in_directions
from epfast.estimators.evidence import BinaryProblems, Fits, Posterior
from epfast.estimators.parameters import LossParameters
from epfast.estimators.spectrum import Spectrum
from epfast.gaussian.forms.kernel import GPState
from epfast.gaussian.problem import Problem
from epfast.gaussian.shards import WarmStart
from epfast.gaussian.wide_posterior import WidePosterior
from epfast.inference import FAILURES, Sites, fit_from
from epfast.inference.hyper import (
    LEFT,
    ROUNDING,
    TINY,
    HyperPoint,
    SearchEnd,
    Target,
    Unknown,
    rounding_of,
)
from epfast.inference.learning import derivatives_by_loss
from epfast.inference.records import warn_user
from epfast.losses import Loss
from epfast.schedules import DEP, EP, SharedSites

#: least number of sweeps that a fit of a search may take, and its default tolerance
SWEEPS, TOL = 100, 1e-6
#: steps of the logs of prior sds, and of numbers of the likelihood, from where a search begins to
#: where some fit is to hold
ELSEWHERE = ((0.0, 0.0), (0.0, 1.0), *((step, 0.0) for step in (-1.5, 1.5, -3.0, 3.0, -4.5, 4.5)))
#: step of the log of a prior sd, of differences of values without slopes
SIDE = 0.03
#: below the end of the range, of a prior sd of x.theta of 1e3, from where it is flat
EDGE = math.log(10.0)
#: log of how far below a mode scales of noise are where rows tell what they leave of y
LITTLE = 1.5
#: shares of the last move by which sites go on to the next point, and the longest last step
LEAST_SHARE, MOST_SHARE, LAST_STEP = 1e-3, 1.0, 0.1
#: damping of fits that failed, and how many times the sweeps it needs
REPAIRS = ((0.5, 2), (0.2, 5))
#: of a value that takes none
NO_FITS = Fits([], [])
#: what numbers of a likelihood are called as unknowns
NAMES = {"variance": "sd"}


class Learnt(NamedTuple):
    """What was found, or given."""

    variance: float | Array
    loss: Loss


class EvidenceTarget(Target[Fits]):
    """Log of prior and evidence of all problems, by prior sds and numbers of the likelihood."""

    #: BFGS goes on as well by rougher slopes: sweeps of 90 searches are a tenth fewer
    share = 0.1

    def __init__(
        self,
        problem: BinaryProblems,
        sds: list[Unknown],
        ranges: Array,
        parameters: LossParameters,
        *,
        fixed: float | Array | None = None,
        groups: NDArray[np.intp] | None = None,
        start: list[Posterior] | None = None,
    ) -> None:
        """sds: prior standard deviations that are sought, in ranges (k, 2).

        The numbers of the parameters have no priors. fixed: the prior variance where no sd is
        sought. groups: of the columns, 0 to k - 1. None: one prior sd for all. start: of the first
        fit.
        """
        self.problem, self.fixed, self.groups, self.start = problem, fixed, groups, start
        self.k = len(sds)
        self.fine = schedule_of(problem.schedule)
        self.finest = float(self.fine.tol) or TOL
        #: slopes are off by this and degrees of freedom, of which there are no more
        self.enough = self.finest**2 * min(problem.problems[0].shape) * len(problem.problems)
        self.nearly = 100.0 * self.enough
        self.of_axes = min(self.of_axes, 10.0 * self.finest)
        self.of_points = min(self.of_points, 20.0 * self.of_axes)
        if parameters.loss.log_concave is False:  # values are not flat in sites that creep
            self.of_points = self.of_axes
        self.knows_curvature = not problem.flat
        self.little = LITTLE
        #: whether fits that fail are tried again
        self.repairs = True
        #: points without a valid fit, and all points
        self.n_lost = self.n_tried = 0
        #: the last two points, of one unknown
        self._trail: list[tuple[float, Fits]] = []
        self._sides: dict[bytes, tuple[float, float]] = {}
        self._summed: tuple[Any, Any] = (None, None)
        self.ends = np.log(ranges)
        self.seek(sds, parameters, {})

    def seek(self, sds: list[Unknown], parameters: LossParameters, priors: dict[str, Any]) -> None:
        """Have prior sds and these numbers of the likelihood for unknowns, under priors."""
        numbers = [name for name, part in parameters.places for _ in range(part.start, part.stop)]
        own = [Unknown(NAMES.get(name, name), priors.get(name)) for name in numbers]
        self.parameters, self.unknowns = parameters, [*sds, *own]
        #: of the numbers of the likelihood: a sd is no variance
        self.powers = np.array([2.0 if one.name == "sd" else 1.0 for one in own])
        self.numbers = slice(self.k, None)
        ends = parameters.bounds / self.powers[:, None]
        self.bounds = self.ends = np.concatenate([self.ends[: self.k], ends])

    @property
    def is_one_sd(self) -> bool:
        """Whether the prior sd of all columns is the only unknown."""
        return self.k == len(self.unknowns) == 1 and self.groups is None

    # ---- what hyper-parameters mean ----

    def values(self, u: Array) -> Array:
        """Prior variances, and numbers of the likelihood."""
        return np.exp(np.where(np.arange(u.shape[-1]) < self.k, 2.0, 1.0) * u)

    def at(self, learnt: Learnt) -> Array:
        """The unknowns of a prior variance and a loss, (m,)."""
        given = np.broadcast_to(learnt.variance, (self.problem.d,))
        first = [0] if self.groups is None else np.unique(self.groups, return_index=True)[1]
        numbers = self.parameters._replace(loss=learnt.loss).start / self.powers
        return np.append(0.5 * np.log(given[first[: self.k]]), numbers)

    def learnt(self, u: Array) -> Learnt:
        """The prior variance, or that of each column, and the loss."""
        loss: Loss = self.parameters.at(self.powers * u[self.k :])
        if not self.k:
            assert self.fixed is not None
            return Learnt(self.fixed, loss)
        variances = np.exp(2.0 * u[: self.k])
        common = self.groups is None
        return Learnt(float(variances[0]) if common else variances[self.groups], loss)

    # ---- fits ----

    def posterior_at(self, u: Array, tol: float, near: Any) -> Any:
        """Valid fits at u, from those near it, from none, or damped. None: there are none."""
        self.n_tried += 1
        learnt = self.learnt(u)
        problem = self.problem.with_loss(learnt.loss)
        schedule = self.fine
        if schedule.stores == "none":  # a start would count the rows again
            near = None
        elif near is None:
            near = self.start
        else:
            near = self.starts_at(u, near)
        if isinstance(schedule, EP | SharedSites | DEP):
            given: Any = schedule
            schedule = replace(given, tol=max(tol, self.finest))
        for fits in attempts(problem, learnt.variance, schedule, near, self.repairs):
            self.n_fits += 1
            if fits is not None and problem.certified(fits):
                if len(u) == 1:
                    last = [one for one in self._trail[-1:] if one[0] != u[0]]
                    self._trail = [*last, (float(u[0]), fits)]
                return fits
        self.n_lost += 1
        return None

    def starts_at(self, u: Array, near: Fits) -> list[Any]:
        """Starts at u from fits near it: their sites on the line through the last two points."""
        first = near.posteriors[0].problem
        plain = self.problem.flat and first.schedule.is_automatic and first.loss.latents == 1
        plain = plain and first.posterior == "full"
        if not plain or len(self._trail) < 2 or self._trail[1][1] is not near:
            return near.posteriors
        (u_0, before), (u_1, _) = self._trail
        share = (float(u[0]) - u_1) / (u_1 - u_0)
        if not LEAST_SHARE < abs(share) < MOST_SHARE:
            return near.posteriors
        pairs = zip(before.posteriors, near.posteriors, strict=True)
        return [WarmStart(beyond(a.sites, b.sites, share), n_sweeps=b.n_sweeps) for a, b in pairs]

    def rounding(self, post: Fits) -> float:
        return rounding_of(*(one.sites for one in post.posteriors))

    def error(self, point: HyperPoint[Fits], tol: float) -> float:
        """As of one fit; without a fixed point values change with sites to first order."""
        tol = max(tol, self.finest)
        if not self.problem.flat:
            return tol + self.rounding(point.fit)
        freedom = float(self._sums(point)[1].sum()) if self.k else 1.0
        return tol**2 * max(freedom, 1.0) + self.rounding(point.fit)

    # ---- derivatives ----

    def slopes(self, point: HyperPoint[Fits]) -> Array:
        """Slopes of the log density at a fixed point, else by differences, (m,)."""
        if not self.problem.flat:
            return np.array([self._parabola(point)[0]])
        slopes = np.empty(len(self.unknowns))
        if self.k:
            squares, freedom = self._sums(point)
            slopes[: self.k] = squares - freedom
        slopes[self.k :] = self._gains(point)[0]
        return np.asarray(slopes + self.log_prior(point.u)[1])

    def metric(self, point: HyperPoint[Fits]) -> Array:
        """Minus second derivatives, about: by degrees of freedom, and with the cavities held."""
        if not self.problem.flat:
            return np.array([[self._parabola(point)[1]]])
        k, bent = self.k, self.log_prior(point.u)[2]
        metric = -bent
        if k:
            metric[:k, :k] += np.diag(2.0 * self._sums(point)[1])
        metric[k:, k:] -= self._gains(point)[1]
        return metric

    def jump(self, point: HyperPoint[Fits]) -> Array | None:
        """MacKay's step of the prior sds, and numbers of the loss by what a fit leaves of y."""
        if not self.problem.flat:
            return None
        there = np.array(point.u)
        if self.k:
            squares, freedom = self._sums(point)
            there[: self.k] += 0.5 * np.log(np.maximum(squares, TINY) / freedom)
        posts = point.fit.posteriors
        if self.parameters.names and len(posts) == 1:
            (post,) = posts
            data, loss = post.problem.data, self.learnt(point.u).loss
            loss = loss.started_beside(post.marginals_of_rows()[0], data.y, data.weights)
            there[self.k :] = self.parameters._replace(loss=loss).start / self.powers
        return there

    def _sums(self, point: HyperPoint[Fits]) -> tuple[Array, Array]:
        """Squares of means over prior variances, and degrees of freedom, of each group, (k,)."""
        if self._summed[0] is not point.fit:  # slopes, metric and jump of a point ask for them
            variances, units = np.exp(2.0 * point.u[: self.k]), self.problem.units.variances
            squares, freedom = point.fit.sums(variances, self.groups, units)
            self._summed = point.fit, (squares, np.maximum(freedom, TINY))
        both: tuple[Array, Array] = self._summed[1]
        return both

    def _gains(self, point: HyperPoint[Fits]) -> tuple[Array, Array]:
        """Slopes and second derivatives by numbers of the loss, the cavities of the fits held."""
        free, given = self.powers * point.u[self.k :], self.parameters
        if not len(free):
            return free, np.zeros((0, 0))
        try:
            chart = given.chart(free)
            slopes, bent = derivatives_by_loss(
                point.fit.posteriors, given.at, free, given.bounds, chart
            )
        except FloatingPointError:  # no cavity, no gain
            slopes = np.full(len(free), math.nan)
            bent = np.diag(slopes)
        return self.powers * slopes, np.outer(self.powers, self.powers) * bent

    def _parabola(self, point: HyperPoint[Fits]) -> tuple[float, float]:
        """Slope and minus curvature of a value that is no fixed point's, by fits on both sides."""
        key = point.u.tobytes()
        if key not in self._sides:
            sides = [self.point_at(point.u + by, self.finest, point.fit) for by in (-SIDE, SIDE)]
            low, high = (point.value if one is None else one.value for one in sides)
            low, high = (point.value if math.isinf(one) else one for one in (low, high))
            width = SIDE * max(sum(one is not None for one in sides), 1)
            self._sides[key] = (high - low) / width, (2.0 * point.value - low - high) / SIDE**2
        return self._sides[key]

    # ---- other modes ----

    def other_starts(self, mode: HyperPoint[Fits]) -> list[Array]:
        """As of one fit, but where improper cavities of outliers are all that is found."""
        if self.learnt(mode.u).loss.log_concave is False:
            return []
        counts, self.repairs = (self.n_lost, self.n_tried), False
        starts = super().other_starts(mode)
        (self.n_lost, self.n_tried), self.repairs = counts, True
        return starts


class SpectrumTarget(EvidenceTarget):
    """The same of Gaussian noise and one prior sd, whose evidence takes no fit."""

    def __init__(self, spectrum: Spectrum, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.spectrum, self.knows_curvature = spectrum, True

    def posterior_at(self, u: Array, tol: float, near: Any) -> Any:
        """No fit."""
        return None

    def point_at(self, u: Array, tol: float, near: Any) -> HyperPoint[Fits]:
        """The value at u."""
        return HyperPoint(u, -math.inf if self.ended(u) else self._exact(u)[0], NO_FITS)

    def error(self, point: HyperPoint[Fits], tol: float) -> float:
        """Rounding alone."""
        return ROUNDING * abs(point.value)

    def slopes(self, point: HyperPoint[Fits]) -> Array:
        return self._exact(point.u)[1]

    def metric(self, point: HyperPoint[Fits]) -> Array:
        return -self._exact(point.u)[2]

    def jump(self, point: HyperPoint[Fits]) -> None:
        """Newton's steps need none."""

    def other_starts(self, mode: HyperPoint[Fits]) -> list[Array]:
        """With less noise: of few rows the density has two modes."""
        return [start - LITTLE * (np.arange(len(start)) >= self.k) for start in self.starts]

    def _exact(self, u: Array) -> tuple[float, Array, Array]:
        """The log density, its slopes and second derivatives."""
        learnt: Any = self.learnt(u)
        value, slopes, bent = self.spectrum.evidence(learnt.variance, learnt.loss.variance)
        sought = slice(1 - self.k, None)
        of_prior, slopes_of_prior, bent_of_prior = self.log_prior(u)
        return (
            value + of_prior,
            2.0 * slopes[sought] + slopes_of_prior,
            4.0 * bent[sought, sought] + bent_of_prior,
        )

    def fits_at(self, u: Array, fits: Fits) -> Fits:
        """The fits at u, from those at another point."""
        learnt = self.learnt(u)
        at = self.problem.with_loss(learnt.loss).at(0, learnt.variance)
        return Fits([with_noise(post, at) for post in fits.posteriors], [])


# ---- fits ----


def with_noise(post: Any, problem: Problem) -> Any:
    """The fit of a problem with Gaussian noise, from one with other variances, without a sweep.

    Its sites are known, and their sum over the rows is that of the other fit but for a factor.

    Parameters
    ----------
    post : FullPosterior
        Of the same rows, with Gaussian noise.
    problem : Problem
        With another prior variance or variance of the noise.
    """
    sites: Any = problem.exact_sites()
    before = post.problem
    if isinstance(post, WidePosterior):
        return replace(post, state=GPState(sites, post.state.sweeps, None), problem=problem)
    noise: Any = problem.loss
    share = before.loss.variance / noise.variance
    old, new = before.base, problem.base
    state = post.state._replace(
        precision=share * (post.state.precision - old.precision) + new.precision,
        shift=share * (post.state.shift - old.shift) + new.shift,
        sites=sites,
        log_scale=new.log_scale + float(sites.log_scale.sum()),
    )
    return replace(post, state=state, problem=problem)


def beyond(before: Sites, now: Sites, share: float) -> Sites:
    """Sites that go on by this share of their last move, and keep their signs."""
    with np.errstate(all="ignore"):
        rise = share * np.log(now.precision / before.precision)
    rise = np.clip(np.where(np.isfinite(rise), rise, 0.0), -1.0, 1.0)
    shift = now.shift + share * (now.shift - before.shift)
    return Sites(now.precision * np.exp(rise), shift, now.log_scale)


def attempts(
    problem: BinaryProblems,
    variance: float | Array,
    schedule: Any,
    start: list[Posterior] | None,
    repairs: bool = True,
) -> Iterator[Fits | None]:
    """Fits from a start, from none, then, where they are repaired, longer or damped ones."""

    def attempt(schedule: Any, start: list[Posterior] | None) -> Fits | None:
        try:
            return problem.fit(variance, schedule, start)
        except FAILURES:
            return None

    first: Fits | None = None
    for begin in (start, None) if start is not None else (None,):
        first = attempt(schedule, begin)
        yield first
    if not repairs or schedule.stores == "none":
        return
    if first is not None and all(post.history[-1].n_refused == 0 for post in first.posteriors):
        yield attempt(schedule, first.posteriors)
    for damping, times in REPAIRS:
        damped = {"damping": damping * schedule.damping, "sweeps": times * schedule.sweeps}
        yield attempt(replace(schedule, **damped), None)


def schedule_of(schedule: Any) -> Any:
    """The schedule of a search: a fixed number of sweeps (``tol=0``) is not valid, nor are few."""
    if not isinstance(schedule, EP | SharedSites | DEP):
        return schedule
    given: Any = schedule
    return replace(given, sweeps=max(schedule.sweeps, SWEEPS), tol=schedule.tol or TOL)


# ---- what is found ----


def highest(target: EvidenceTarget, start: Learnt) -> SearchEnd[Fits] | None:
    """Where the search ends from a start, or from another prior sd. None: no fit was valid."""
    middle = target.at(start)
    for small, unseen in in_directions(target.problem) if target.is_one_sd else ():
        part = EvidenceTarget(small, target.unknowns, np.exp(target.ends), target.parameters)
        part.start, part.first_metric, part.starts = (
            unplaced(target.start),
            target.first_metric,
            [middle],
        )
        with suppress(FloatingPointError):
            end = part.found()[0]
            step = np.linalg.solve(end.metric, part.slopes(end.point))
            middle = end.point.u + np.clip(step, -LAST_STEP, LAST_STEP)
            target.start = unplaced(part.starts_at(middle, end.point.fit))
            target.first_metric = end.metric, max(unseen**2, target.finest)
        target.n_fits += part.n_fits
    is_sd = np.arange(len(middle)) < target.k
    steps = np.unique([np.where(is_sd, *step) for step in ELSEWHERE], axis=0)
    for step in sorted(steps.tolist(), key=lambda step: np.abs(step).max()):
        target.starts = [middle + step]
        with suppress(FloatingPointError):
            return target.found()[0]
    return None


def unplaced(starts: list[Any] | None) -> list[Any] | None:
    """Starts of fits of the same rows in other columns."""
    return starts and [WarmStart(one.sites, n_sweeps=one.n_sweeps) for one in starts]


def final(problem: BinaryProblems, learnt: Learnt, near: Fits | None, repairs: bool) -> Fits:
    """The fits with what was learnt, by the schedule of the problem, from fits near them.

    repairs: whether an invalid fit is repaired, if it can be.
    """
    variance, schedule = learnt.variance, problem.schedule
    problem = problem.with_loss(learnt.loss)
    if near is not None and problem.has_made(near, variance):
        return near
    start = None if near is None or schedule.stores == "none" else near.posteriors
    first = fit_from(partial(problem.fit, variance, schedule), start)
    if not repairs or problem.certified(first):
        return first
    tried = attempts(problem, variance, schedule, None)
    return next((one for one in tried if one is not None and problem.certified(one)), first)


def warn_of_range(target: EvidenceTarget, variance: float) -> None:
    """Warn of a common prior variance at the upper end of its range, where it is flat."""
    if 0.5 * math.log(variance) > target.bounds[0, 1] - EDGE:
        warn_user(
            f"the log evidence rises up to prior_variance={variance:.3g}, and hardly falls beyond: "
            "a plane separates the classes, or nearly, and does not bound the coefficients; "
            "prior_variance=None has a weak prior, or give a number",
            EvidenceWarning,
        )


def warn_lost(target: EvidenceTarget, kept: str, left: float = 0.0) -> None:
    """Warn of points that were lost; kept: what prior_variance_ is then.

    left: nats that a maximum beyond the end may have more.
    """
    said = ""
    if target.n_lost:
        said = (
            f"{target.n_lost} of {target.n_tried} points of the search of the prior variance gave "
            "no fit that converged with all its sites and a log evidence of at most 0; "
        )
    elif left > LEFT:
        said = f"the search ended before its maximum, which may have {left:.2g} nats more; "
    if said:
        warn_user(
            f"{said}prior_variance_ is {kept}; try scheme='exact', a schedule with damping, or a "
            "number as prior_variance",
            ConvergenceWarning,
        )

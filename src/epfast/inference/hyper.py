"""The mode of hyper-parameters: one search, of whatever has a density over them.

What a fit is, and its log density over u, the logs of the hyper-parameters, a :class:`Target` says.
"""

from __future__ import annotations

import math
from contextlib import suppress
from typing import Generic, NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from epfast import priors
from epfast._arrays import Array
from epfast.inference import FAILURES, ConvergenceWarning
from epfast.inference.records import Sites, warn_user

#: tolerances of the fits of a search, the finest one and the loosest, and of a fit over the step
#: that it follows, or over the square of a small one: the log evidence is flat in the sites at a
#: fixed point
FINEST, LOOSEST, SHARE = 1e-6, 0.1, 0.01
#: rounding of a log evidence, over the sum of the terms that make it
ROUNDING = 4e-15
#: most steps, the longest one along a principal axis, shares of it that are tried, the shortest
#: jump, and the gain in nats below which a search ends, by its metric and by that of the target
STEPS, LONGEST, SHARES, JUMP, GAIN, NEARLY = 100, 1.5, 0.5 ** np.arange(12.0), 0.5, 1e-8, 1e-6
#: points without a fit after which a search ends: along the edge of what converges it gains little
MOST_LOST = 20
#: share of the curvature to which a step may lower it: Powell's damping of BFGS
BENDS = 0.1
#: gain in nats of one more step that a search may leave without a word
SLIGHT_GAIN = 0.01
#: names of scales of noise, whose logs are another start if they are so far below: at half of the
#: sd, with half of the rows as degrees of freedom
NOISE, APART_IN_NOISE = ("sd", "variance", "scale"), math.log(2.0)
#: no curvature, and more than the rounding of a logarithm
TINY, ROUNDING_OF_LOG = 1e-300, 1e-12
#: tolerances of the fits of an average's points, and of those of which its axes are differences
OF_POINTS, OF_AXES = 2e-3, 1e-4
#: points that an average draws
DRAWS = 128


class WithEvidence(Protocol):
    """What a search reads of a posterior."""

    @property
    def log_evidence(self) -> float: ...


P = TypeVar("P", bound=WithEvidence)


class HyperPoint(NamedTuple, Generic[P]):
    """A value of hyper-parameters."""

    #: its logarithm, (m,)
    u: Array
    #: log of prior density times evidence, over u
    value: float
    #: the posterior there
    fit: P


class Unknown(NamedTuple):
    """A hyper-parameter."""

    name: str
    #: None: flat over the logarithm, so that the density is the evidence
    prior: priors.Scale | priors.LKJ | None
    #: the columns whose prior sd it is. None: a correlation, or a number of the loss
    columns: NDArray[np.intp] | None = None
    #: of a correlation: effects that are correlated after the first of its two
    others: int = 0

    @property
    def most(self) -> float:
        """No value is above this."""
        return self.prior.most if isinstance(self.prior, priors.Scale) else math.inf

    @property
    def log_most(self) -> float:
        """The logarithm of that, less its rounding: beyond the end the density is 0."""
        return math.log(self.most) - ROUNDING_OF_LOG

    def log_density(self, u: float) -> tuple[float, float, float]:
        """Log of the prior over u, its slope and second derivative."""
        if self.prior is None:
            return 0.0, 0.0, 0.0
        if isinstance(self.prior, priors.LKJ):
            return self.prior.of_partial(u, self.others)
        value, slope = self.prior.over_log(u)
        return value, slope, (self.prior.over_log(u + 1e-6)[1] - slope) / 1e-6


def rounding_of(*sites: Sites | None) -> float:
    """What rounding may change of the log evidence of sites, in nats: it is a sum of their logs."""
    return ROUNDING * sum(float(np.abs(one.log_scale).sum()) for one in sites if one is not None)


class Target(Generic[P]):
    """Log density of hyper-parameters, of which each value has a fit: what a search is given."""

    #: unknowns that are sds of groups of weights, which come first
    k = 0
    #: unknowns that are numbers of the likelihood, where jumps tell them
    numbers = slice(0, 0)
    #: the logs of scales of noise are so far below a mode where rows tell what they leave of y
    little = math.log(1e3)
    #: whether a group has so many levels that its sds are nearly normal in their logs
    of_many = False
    #: points that are drawn where few of the first ones count
    most_draws = DRAWS
    #: the finest tolerance of the fits of a search, and the gains in nats below which it ends, by
    #: its metric and by that of the target
    finest, enough, nearly = FINEST, GAIN, NEARLY
    #: tolerance of a fit over the step that it follows, or over the square of a small one
    share = SHARE
    #: tolerances of the fits of an average's points, and of those of which its axes are differences
    of_points, of_axes = OF_POINTS, OF_AXES
    #: whether the metric is that of second derivatives, so that steps are Newton's
    knows_curvature = False
    n_fits = 0
    #: metric and tolerance with which searches begin near a mode. None: it is not known
    first_metric: tuple[Array, float] | None = None
    unknowns: list[Unknown]
    #: where searches begin, (m,) each
    starts: list[Array]
    #: what is searched, and where the density ends, (m, 2) each
    bounds: Array
    ends: Array

    def values(self, u: Array) -> Array:
        """The hyper-parameters (..., m) of unknowns (..., m)."""
        return np.exp(u)

    def valid_fit(self, u: Array, tol: float, start: P | None) -> P | None:
        """The posterior at u, from a start, or None if the fit fails or does not converge."""
        raise NotImplementedError

    def rounding(self, post: P) -> float:
        """What rounding may change of a log evidence, in nats; see :func:`rounding_of`."""
        raise NotImplementedError

    def slopes(self, point: HyperPoint[P]) -> Array:
        """Slopes of the log density at a fixed point, (m,). NaN: they are not known."""
        raise NotImplementedError

    def metric(self, point: HyperPoint[P]) -> Array:
        """Minus second derivatives at a point, about, (m, m): what a search begins with.

        By default such that no unknown goes further than 1 on the first step.
        """
        return np.diag(np.maximum(1.0, np.abs(self.slopes(point))))

    def jump(self, point: HyperPoint[P]) -> Array | None:
        """Where the mode may be, as far as the fit at a point tells, (m,). None: it does not."""
        return None

    @property
    def proper(self) -> bool:
        """Whether the priors have an end, so that the posterior has one."""
        return not any(isinstance(one.prior, priors.Flat | None) for one in self.unknowns)

    def ended(self, u: Array) -> bool:
        """Whether the range of a hyper-parameter ends before u."""
        low, high = self.ends.T
        return bool((u < low).any() or (u > high).any())

    def log_prior(self, u: Array) -> tuple[float, Array, Array]:
        """Log density over u, its slopes and second derivatives."""
        pairs = zip(self.unknowns, u.tolist(), strict=True)
        terms = np.array([one.log_density(number) for one, number in pairs])
        values, slopes, bent = terms.reshape(-1, 3).T
        return -math.inf if self.ended(u) else float(values.sum()), slopes, np.diag(bent)

    def error(self, point: HyperPoint[P], tol: float) -> float:
        """What the value of a fit to a tolerance is off, in nats: by that, and by rounding."""
        return tol**2 + self.rounding(point.fit)

    def posterior_at(self, u: Array, tol: float, near: P | None) -> P | None:
        """The posterior at u, from one near it or without a start, or None if neither converges."""
        for start in (near, None) if near is not None else (None,):
            self.n_fits += 1
            with suppress(*FAILURES):
                post = self.valid_fit(u, tol, start)
                if post is not None and math.isfinite(post.log_evidence):
                    return post
        return None

    def point(self, u: Array, post: P) -> HyperPoint[P]:
        return HyperPoint(u, post.log_evidence + self.log_prior(u)[0], post)

    def point_at(self, u: Array, tol: float, near: P | None) -> HyperPoint[P] | None:
        """The point at u, from a fit near it. None if there is no fit."""
        if near is not None and self.ended(u):
            return HyperPoint(u, -math.inf, near)
        post = self.posterior_at(u, tol, near)
        return None if post is None else self.point(u, post)

    def modes(self) -> list[HyperPoint[P]]:
        """Local maxima, from each start; the most probable one first."""
        found = self.found()
        if found[0].promised > SLIGHT_GAIN:
            warn_user(
                f"the search of the hyper-parameters ended before their mode, which may have "
                f"{found[0].promised:.2g} nats more: fits beyond do not converge; try other "
                "priors, or a schedule with damping",
                ConvergenceWarning,
            )
        return [one.point for one in found]

    def found(self) -> list[SearchEnd[P]]:
        """Where searches from each start end; the most probable one first."""
        found = self._climbed(self.starts)
        found += self._climbed(self.other_starts(found[0].point)) if found else []
        if not found:
            raise FloatingPointError(
                "no fit converges where the search of the hyper-parameters begins; try other "
                "priors, or a schedule with damping"
            )
        found.sort(key=lambda one: -one.point.value)
        return found

    def _climbed(self, starts: list[Array]) -> list[SearchEnd[P]]:
        return [end for end in (climbed(self, start) for start in starts) if end is not None]

    def other_starts(self, mode: HyperPoint[P]) -> list[Array]:
        """Where noise is what rows leave of y whatever the prior, if that is far less.

        A prior of the weights that hardly allows them makes two modes, with little and much noise.
        """
        numbers, little = self.numbers, np.array(mode.u)
        is_noise = np.array([one.name in NOISE for one in self.unknowns[numbers]], dtype=bool)
        if not is_noise.any():
            return []
        little[numbers] -= np.where(is_noise, self.little, 0.0)
        little = np.maximum(little, self.bounds[:, 0])
        post = self.posterior_at(little, LOOSEST, None)
        jump = None if post is None else self.jump(HyperPoint(little, math.nan, post))
        if jump is None:
            return []
        little[numbers] = jump[numbers]
        return [little] if (mode.u - little).max() > APART_IN_NOISE else []


class SearchEnd(NamedTuple, Generic[P]):
    """Where a search ended."""

    point: HyperPoint[P]
    #: nats that one more step promises, beyond the error of the fit
    promised: float
    #: minus second derivatives, as far as the steps tell, (m, m)
    metric: Array


class Stand(NamedTuple, Generic[P]):
    """A point of a search."""

    point: HyperPoint[P]
    slopes: Array
    tol: float
    #: of the value, in nats
    error: float


def climbed(target: Target[P], start: Array) -> SearchEnd[P] | None:
    """A local maximum of the log density. None: there is no fit at the start.

    Steps go uphill in the metric of the target, which BFGS corrects. Far from the mode the jumps of
    the target come first. Where slopes are rougher than the step that they promise, the fit is made
    finer. A step counts if the density does not fall by more than the errors of the two fits, else
    half of it is tried. The end is where the expected gain of a step is small, or the step within
    the error of fits.

    Parameters
    ----------
    target : Target
    start : ndarray of shape (m,)
    """
    (low, high), lost = target.bounds.T, 0

    def look(u: Array, tol: float, near: P | None) -> Stand[P] | None:
        nonlocal lost
        point = target.point_at(u, tol, near)
        lost += point is None
        if point is None or not math.isfinite(point.value):
            return None
        slopes = target.slopes(point)
        if not np.isfinite(slopes).all():
            return None
        return Stand(point, slopes, tol, target.error(point, tol))

    def reached(here: Stand[P], step: Array) -> Stand[P] | None:
        size = float(np.abs(step).max())
        tol = min(max(target.share * size * min(size, 1.0), target.finest), LOOSEST)
        there = look(here.point.u + step, tol, here.point.fit)
        if there is None:
            return None
        # rounding of the data tells in values, too
        fall = here.point.value - there.point.value
        if fall > here.error + there.error + GAIN:
            return None
        return there

    first, tol = target.first_metric or (None, LOOSEST)
    here = look(np.clip(start, low, high), tol, None)
    if here is None:
        return None
    metric = _positive(target.metric(here.point)) if first is None else first
    highest, jumps, gain, size = here, True, 0.0, math.inf
    for _ in range(STEPS):
        u, slopes = here.point.u, here.slopes
        free = np.where(slopes > 0.0, u < high, u > low)
        uphill, gain = _uphill(metric, slopes, free)
        last, size = size, float(np.abs(uphill).max(initial=0.0))
        if here.tol > max(size, target.finest):  # slopes are rougher than the step
            finer = look(u, max(target.share * size, target.finest), here.point.fit)
            if finer is not None:
                here = finer
                continue
        if here.tol <= target.finest and target.finest > size > 0.5 * last:
            break  # what is left is the error of fits
        far = _far_jump(target, here.point) if jumps else None
        jumps, there = far is not None, None
        aims = [] if far is None else [far]
        aims += [u + share * uphill for share in SHARES if gain > target.enough]
        for aim in aims:
            step = np.clip(aim, low, high) - u
            if (there := reached(here, step)) is not None:
                break
            jumps = False
        if there is not None:
            fall = slopes - there.slopes
            anew = jumps or target.knows_curvature
            metric = _positive(target.metric(there.point)) if anew else _bent(metric, step, fall)
        else:
            # rough slopes may not lead uphill, and a metric of far steps may promise too little
            finest = target.finest
            exact = look(u, finest, here.point.fit) if here.tol > finest else None
            there = exact or here
            plain = _positive(target.metric(there.point))
            gain = _uphill(plain, there.slopes, free)[1]
            flat = not aims and gain <= target.nearly
            if exact is None and (aims or flat):
                break
            metric = metric if flat else plain
        if lost > MOST_LOST:
            here = there
            break
        here = there
        if here.point.value > highest.point.value:
            highest = here
    if highest.point.value > here.point.value + here.error + highest.error + GAIN:
        exact = look(highest.point.u, target.finest, highest.point.fit)
        here = here if exact is None else max(here, exact, key=lambda one: one.point.value)
    return SearchEnd(here.point, max(gain - here.error, 0.0), metric)


def _far_jump(target: Target[P], point: HyperPoint[P]) -> Array | None:
    """Where the target jumps to, if it does so, and that is far, (m,)."""
    jump = target.jump(point)
    far = jump is not None and np.abs(np.clip(jump, *target.bounds.T) - point.u).max() > JUMP
    return jump if far else None


def _positive(metric: Array) -> Array:
    """The metric with positive curvatures, which BFGS keeps positive."""
    values, vectors = np.linalg.eigh(metric)
    return np.asarray(vectors * np.maximum(np.abs(values), TINY) @ vectors.T)


def _uphill(metric: Array, slopes: Array, free: NDArray[np.bool_]) -> tuple[Array, float]:
    """The step of the free unknowns, (m,), and its expected gain in nats."""
    values, vectors = np.linalg.eigh(metric[np.ix_(free, free)])
    along = slopes[free] @ vectors
    values = np.maximum(values, np.abs(along) / LONGEST + TINY)
    step = np.zeros(len(slopes))
    step[free] = vectors @ (along / values)
    return step, 0.5 * float((along**2 / values).sum())


def _bent(metric: Array, step: Array, fall: Array) -> Array:
    """The metric (m, m) by BFGS, where the slopes fall by so much on a step; positive definite."""
    by_metric = metric @ step
    expected, seen = float(step @ by_metric), float(step @ fall)
    if not expected > 0.0:
        return metric
    if seen < BENDS * expected:
        share = (1.0 - BENDS) * expected / (expected - seen)
        fall = share * fall + (1.0 - share) * by_metric
        seen = float(step @ fall)
    drop = np.outer(by_metric, by_metric) / expected
    return np.asarray(metric + np.outer(fall, fall) / seen - drop)

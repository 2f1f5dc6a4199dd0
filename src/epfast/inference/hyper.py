"""The mode of hyper-parameters, and points about it for an average.

Each point has a fit by EP, and its weight is prior density times evidence: after Rue, Martino &
Chopin (2009), with EP in place of their Laplace approximation. What a fit is, and its log density
over u, the logs of the hyper-parameters, a caller says.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import special

from epfast import priors
from epfast._arrays import Array
from epfast.inference import FAILURES, ConvergenceWarning
from epfast.inference.records import warn_user

#: tolerances of the fits of a search, the finest one and the loosest, and of a fit over the step
#: that it follows, or over the square of a small one. The log evidence is flat in the sites at a
#: fixed point: of 40 models the errors are 3e-4 nats at most with .1, 3e-6 with .01
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
LEFT = 0.01
#: names of scales of noise, whose logs are another start if they are so far below: at half of the
#: sd, with half of the rows as degrees of freedom
NOISE, APART_IN_NOISE = ("sd", "variance", "scale"), math.log(2.0)
#: no curvature, and more than the rounding of a logarithm
TINY, ROUNDING_OF_LOG = 1e-300, 1e-12
#: tolerances of the fits of an average's points, and of those of which its axes are differences:
#: averages of three models change by 1e-4 sd at most, and with 1e-4 for all points by 4e-6 sd in
#: 1.4 times the time
OF_POINTS, OF_AXES = 2e-3, 1e-4
#: of a grid: its spacing at first, in sd of its sides, the fall of the log density where it ends,
#: and the gap of its sum to that of a surface through its points at which it is fine enough. Of 367
#: models of one to three rows a level none has a sd 5 % off, with 1 and .05 two, and with 1.3 and
#: .05 two. With a fall of 6 in place of 8 sds of two rows a level are up to 7 % low
SPACING, DROP, GAP = 1.2, 8.0, 0.01
#: distance of points from the mode beyond which a density has no end, and how many of them make a
#: grid that gets no finer: beside an end of a prior it would never be fine enough
FARTHEST, MOST_POINTS = 40.0, 200
#: modes are different from so many sd on: those of 96 processes of 10 to 30 rows are the same to
#: .01 in 72 of them, 1.3 sd apart in one, and 3.2 or more in 23. Less probable ones count where
#: points of a grid would, see DROP
APART = 2.0
#: more hyper-parameters than these are not averaged over: of 1,024 points 417 count with 10
MOST = 8
#: degrees of freedom of what points are drawn from
DF = 6.0
#: share of the points that are to count, where more may be drawn: of processes with 0.5 and 0.6 the
#: sds of noise were 25 %, of length scales 35 % off with 128 points, and up to 19 and 5 % with 512
ENOUGH = 0.75
#: points that are drawn: with 128 sds of sds are within 3 % of those of 1,024 (hyper.md, 2)
DRAWS = 128
#: share of the points that count below which draws are not trusted. Of 512 points of processes 41
#: to 83 counted in four of 32 fits of 20 and 50 rows, whose averages gained .006 to 4e6 nats a
#: held-out row over the mode
FEW = 0.2


class HyperPoint(NamedTuple):
    """A value of hyper-parameters."""

    #: its logarithm, a number or (m,)
    u: Any
    #: log of prior density times evidence, over u
    value: float
    #: what was fitted there
    fit: Any


class WeightedPoints(NamedTuple):
    """Points, and the volume of u that each represents."""

    points: list[HyperPoint]
    #: logs of the volumes, (k,)
    log_volumes: Array
    #: values of u (g, m), and their probabilities (g,): finer than the points, or those
    nodes: Array
    probabilities: Array
    #: where there was no fit, (l, m)
    lost: Array

    @property
    def logs(self) -> Array:
        """Logs of what the points weigh, (k,)."""
        return np.array([point.value for point in self.points]) + self.log_volumes

    @property
    def ess(self) -> float:
        """How many points would count as much, if all weighed the same."""
        return float(1.0 / (_normal(self.logs) ** 2).sum())


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


class Target:
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
    known: tuple[Array, float] | None = None
    unknowns: list[Unknown]
    #: where searches begin, (m,) each
    starts: list[Array]
    #: what is searched, and where the density ends, (m, 2) each
    bounds: Array
    ends: Array

    def values(self, u: Array) -> Array:
        """The hyper-parameters (..., m) of unknowns (..., m)."""
        return np.exp(u)

    def fit_at(self, u: Array, tol: float, start: Any) -> Any:
        """The posterior at u, from a start, or None if the fit fails or does not converge."""
        raise NotImplementedError

    def slopes(self, point: HyperPoint) -> Array:
        """Slopes of the log density at a fixed point, (m,). NaN: they are not known."""
        raise NotImplementedError

    def metric(self, point: HyperPoint) -> Array:
        """Minus second derivatives at a point, about, (m, m): what a search begins with.

        By default such that no unknown goes further than 1 on the first step.
        """
        return np.diag(np.maximum(1.0, np.abs(self.slopes(point))))

    def jump(self, point: HyperPoint) -> Array | None:
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
        terms = np.array([one.log_density(at) for one, at in pairs])
        values, slopes, bent = terms.reshape(-1, 3).T
        return -math.inf if self.ended(u) else float(values.sum()), slopes, np.diag(bent)

    def error(self, point: HyperPoint, tol: float) -> float:
        """What the value of a fit to a tolerance is off, in nats: by that, and by rounding."""
        return tol**2 + ROUNDING * float(np.abs(point.fit.sites.log_scale).sum())

    def fitted(self, u: Array, tol: float, near: Any) -> Any:
        """The posterior at u, from a start or without one, or None if neither converges."""
        for start in (near, None) if near is not None else (None,):
            self.n_fits += 1
            with suppress(*FAILURES):
                post = self.fit_at(u, tol, start)
                if post is not None and math.isfinite(post.log_evidence):
                    return post
        return None

    def point(self, u: Array, post: Any) -> HyperPoint:
        return HyperPoint(u, post.log_evidence + self.log_prior(u)[0], post)

    def point_at(self, u: Array, tol: float, near: Any) -> HyperPoint | None:
        """The point at u, from a fit near it. None if there is no fit."""
        if self.ended(u):
            return HyperPoint(u, -math.inf, near)
        post = self.fitted(u, tol, near)
        return None if post is None else self.point(u, post)

    def modes(self) -> list[HyperPoint]:
        """Local maxima, from each start; the most probable one first."""
        found = self.found()
        if found[0].left > LEFT:
            warn_user(
                f"the search of the hyper-parameters ended before their mode, which may have "
                f"{found[0].left:.2g} nats more: fits beyond do not converge; try other priors, "
                "or a schedule with damping",
                ConvergenceWarning,
            )
        return [one.point for one in found]

    def found(self) -> list[SearchEnd]:
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

    def _climbed(self, starts: list[Array]) -> list[SearchEnd]:
        return [end for end in (climbed(self, start) for start in starts) if end is not None]

    def other_starts(self, mode: HyperPoint) -> list[Array]:
        """Where noise is what rows leave of y whatever the prior, if that is far less.

        A prior of the weights that hardly allows them makes two modes, with little and much noise.
        """
        numbers, little = self.numbers, np.array(mode.u)
        is_noise = np.array([one.name in NOISE for one in self.unknowns[numbers]], dtype=bool)
        if not is_noise.any():
            return []
        little[numbers] -= np.where(is_noise, self.little, 0.0)
        little = np.maximum(little, self.bounds[:, 0])
        post = self.fitted(little, LOOSEST, None)
        jump = None if post is None else self.jump(HyperPoint(little, math.nan, post))
        if jump is None:
            return []
        little[numbers] = jump[numbers]
        return [little] if (mode.u - little).max() > APART_IN_NOISE else []


class SearchEnd(NamedTuple):
    """Where a search ended."""

    point: HyperPoint
    #: nats that one more step promises, beyond the error of the fit
    left: float
    #: minus second derivatives, as far as the steps tell, (m, m)
    metric: Array


class Stand(NamedTuple):
    """A point of a search."""

    point: HyperPoint
    slopes: Array
    tol: float
    #: of the value, in nats
    error: float


def climbed(target: Target, start: Array) -> SearchEnd | None:
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

    def look(u: Array, tol: float, near: Any) -> Stand | None:
        nonlocal lost
        point = target.point_at(u, tol, near)
        lost += point is None
        if point is None or not math.isfinite(point.value):
            return None
        slopes = target.slopes(point)
        known = np.isfinite(slopes).all()
        return Stand(point, slopes, tol, target.error(point, tol)) if known else None

    def reached(here: Stand, step: Array) -> Stand | None:
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

    def metric_at(point: HyperPoint) -> Array:
        """The metric of the target with positive curvatures, which BFGS keeps positive."""
        values, vectors = np.linalg.eigh(target.metric(point))
        return np.asarray(vectors * np.maximum(np.abs(values), TINY) @ vectors.T)

    first, tol = target.known or (None, LOOSEST)
    here = look(np.clip(start, low, high), tol, None)
    if here is None:
        return None
    metric = metric_at(here.point) if first is None else first
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
        aims = [u + share * uphill for share in SHARES if gain > target.enough]
        jump = target.jump(here.point) if jumps else None
        jumps = jump is not None and np.abs(np.clip(jump, low, high) - u).max() > JUMP
        aims = [jump, *aims] if jump is not None and jumps else aims
        there = None
        for aim in aims:
            step = np.clip(aim, low, high) - u
            if (there := reached(here, step)) is not None:
                break
            jumps = False
        if there is not None:
            fall = slopes - there.slopes
            anew = jumps or target.knows_curvature
            metric = metric_at(there.point) if anew else _bent(metric, step, fall)
        else:
            # rough slopes may not lead uphill, and a metric of far steps may promise too little
            finest = target.finest
            exact = look(u, finest, here.point.fit) if here.tol > finest else None
            there = exact or here
            plain = metric_at(there.point)
            gain = _uphill(plain, there.slopes, free)[1]
            flat = not aims and gain <= target.nearly
            if exact is None and (aims or flat):
                break
            metric = metric if flat else plain
        if lost > MOST_LOST:
            here = there
            break
        here = there
        highest = max(highest, here, key=lambda one: one.point.value)
    if highest.point.value > here.point.value + here.error + highest.error + GAIN:
        exact = look(highest.point.u, target.finest, highest.point.fit)
        here = here if exact is None else max(here, exact, key=lambda one: one.point.value)
    return SearchEnd(here.point, max(gain - here.error, 0.0), metric)


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


def principal_axes(
    mode: HyperPoint,
    fitted: Callable[[Array, Any], HyperPoint | None],
    slopes: Callable[[HyperPoint], Array],
) -> Array:
    """Axes (m, m) of the curvature at a mode, of the length of its sds, by slopes of 2 m fits.

    Parameters
    ----------
    mode : HyperPoint
    fitted : callable
        The point at u (m,), from a fit near it. None if there is none.
    slopes : callable
        Of the value at a point, by u.
    """
    m, length = len(mode.u), 0.1
    bent = np.zeros((m, m))
    for k, step in enumerate(length * np.eye(m)):
        sides = [fitted(mode.u + by, mode.fit) for by in (-step, step)]
        # a range may end there
        usable = [one is not None and one.value > -math.inf for one in sides]
        here: list[Any] = [one if held else mode for one, held in zip(sides, usable, strict=True)]
        bent[k] = (slopes(here[0]) - slopes(here[1])) / (length * max(sum(usable), 1))
    return axes_of(bent)


def axes_of(bent: Array) -> Array:
    """Principal axes of minus second derivatives (m, m), as long as their sds."""
    values, vectors = np.linalg.eigh(0.5 * (bent + bent.T))
    return np.asarray(vectors / np.sqrt(np.maximum(values, 0.05)))  # a sd of 4.5 of a log at most


def grown(spread: Any, shift: Any) -> Any:
    """The share by which a sd grows whose log has this variance, and mean the squared shift."""
    return np.sqrt(np.exp(2.0 * np.minimum(spread, 100.0)) + shift) - 1.0


def change(mean: Array, variance: Array, others: list[tuple[Array, Array]]) -> float:
    """The share by which an average changes a sd, the largest one.

    Parameters
    ----------
    mean, variance : ndarray of shape (d,)
        At the mode.
    others : list
        The same a sd beside it on each principal axis.
    """
    moved = sum((other - mean) ** 2 / variance for other, _ in others)
    spread = sum((0.5 * np.log(other / variance)) ** 2 for _, other in others)
    return float(np.max(grown(np.asarray(spread), np.asarray(moved)), initial=0.0))


def _at(target: Target, tol: float, u: Array, near: Any) -> HyperPoint | None:
    return target.point_at(u, tol, near)


class Surface:
    """The log density of hyper-parameters about its mode, in units of the sd of its sides."""

    def __init__(
        self,
        mode: HyperPoint,
        fitted: Callable[[Array, Any], HyperPoint | None],
        axes: Array,
        proper: bool = False,
    ) -> None:
        """Know the mode, and :meth:`at`.

        fitted: the point at u (m,), from a fit near it. axes: units of z, (m, m). proper: the
        density is known to have an end, also where no fit tells it.
        """
        self.mode, self.fitted, self.axes, self.proper = mode, fitted, axes, proper
        self.lost: list[Array] = []
        self.log_axes = float(np.linalg.slogdet(axes)[1])
        m = len(mode.u)
        self.known: list[tuple[Array, HyperPoint]] = [(np.zeros(m), mode)]
        self.sides = np.ones((m, 2))

    @classmethod
    def of(cls, target: Target, mode: HyperPoint) -> Self:
        """In units of its sides. What makes axes and sides, which are differences, is exact."""
        exact = partial(_at, target, target.of_axes)
        surface = cls(mode, exact, principal_axes(mode, exact, target.slopes), target.proper)
        surface.measure()
        surface.fitted = partial(_at, target, target.of_points)
        return surface

    def near(self, mode: HyperPoint) -> bool:
        """Whether another mode is the same."""
        return bool(np.linalg.norm(np.linalg.solve(self.axes, mode.u - self.mode.u)) < APART)

    def measure(self) -> None:
        """Find the sides, by fits, and have them as units."""
        every = range(len(self.mode.u))
        self.sides = np.array([[self._side(k, sign) for sign in (-1.0, 1.0)] for k in every])
        self.known = [(self.z(point.u), point) for _, point in self.known]

    def _side(self, k: int, sign: float) -> float:
        """The sd of half of the density along an axis, in that of its curvature."""
        point = self.at(sign * math.sqrt(2.0) * np.eye(len(self.mode.u))[k])
        drop = np.inf if point is None else self.mode.value - point.value
        return float(np.clip(1.0 / math.sqrt(max(drop, 1e-2)), 0.3, 4.0))

    def _unit(self) -> tuple[Array, Array]:
        """The mean of the sides of each axis, and their skewness, (m,)."""
        low, high = self.sides.T
        # such that places sqrt(2) from the mode are where the sides were found
        skew = math.sqrt(2.0) / (math.sqrt(3.0) - 1.0) * (high - low) / (high + low)
        return 0.5 * (low + high), np.clip(skew, -0.9, 0.9)

    def u(self, z: Array) -> Array:
        """Unknowns u at places z (..., m), whose unit goes smoothly from one side to the other."""
        unit, skew = self._unit()
        along = unit * (z + skew * (np.sqrt(1.0 + z**2) - 1.0))
        return np.asarray(self.mode.u + along @ self.axes.T)

    def z(self, u: Array) -> Array:
        """Places z (..., m) of unknowns u."""
        unit, skew = self._unit()
        w = np.linalg.solve(self.axes, (u - self.mode.u).T).T / unit + skew
        return np.asarray((w - skew * np.sqrt(w**2 + 1.0 - skew**2)) / (1.0 - skew**2))

    def log_draws(self, u: Array) -> Array:
        """Log density of :func:`drawn` at u (k, m), (k,)."""
        z = self.z(u)
        return np.asarray(scipy.stats.t.logpdf(z, DF).sum(-1) - self.log_volume(z))

    def log_volume(self, z: Array) -> Array:
        """Logs of du / dz, (...,)."""
        unit, skew = self._unit()
        sides = unit * (1.0 + skew * z / np.sqrt(1.0 + z**2))
        return np.asarray(np.log(sides).sum(-1) + self.log_axes)

    def between(self, z: Array) -> Array:
        """Log density at z (k, m), less that of the mode, by a cubic surface through the points."""
        m = z.shape[1]
        at = np.array([at for at, _ in self.known])
        values = np.array([point.value for _, point in self.known]) - self.mode.value
        kept = values > -2.0 * DROP
        residual = values[kept] + 0.5 * (at[kept] ** 2).sum(1)
        smooth: Any = residual.mean()  # of hardly a point
        if kept.sum() > m + 1:
            degree = 2 if kept.sum() >= (m + 1) * (m + 2) else 1
            through = scipy.interpolate.RBFInterpolator(
                at[kept], residual, kernel="cubic", degree=degree
            )
            smooth = through(z)
        # no higher than what is known
        return np.asarray(np.minimum(smooth - 0.5 * (z**2).sum(1), values.max()))

    def at(self, z: Array) -> HyperPoint | None:
        """The point at z, from the nearest fit. None if there is none."""
        away = ((np.array([other for other, _ in self.known]) - z) ** 2).sum(axis=1)
        first = int(away.argmin())
        nearest = self.known[first][1]
        if away[first] == 0.0:
            return nearest
        point = self.fitted(self.u(z), nearest.fit)
        if point is None or math.isnan(point.value):
            self.lost.append(self.u(z))
            return None
        self.known.append((z, point))
        return point


class Grid:
    """Points of one or two hyper-parameters, at whole multiples of a spacing of each z."""

    def __init__(self, surface: Surface) -> None:
        m = len(surface.mode.u)
        self.surface, self.spacing = surface, np.full(m, SPACING)
        #: by their places. None: there is no fit
        self.points: dict[tuple[int, ...], HyperPoint | None] = {(0,) * m: surface.mode}
        one = np.eye(m, dtype=int)
        self.steps: list[list[int]] = [*one.tolist(), *(-one).tolist()]

    def design(self) -> WeightedPoints | None:
        """The points, of equal volumes of z, and nodes between them. None: there is no end.

        The sum over places is the integral of a density that is smooth on the scale of the spacing
        (the trapezoidal rule). Where it is not that over a surface through the points, the spacing
        of the longest axis is halved.
        """
        if not self._filled():
            return None
        kept = [place for place, point in self.points.items() if point is not None]
        m, z = len(self.spacing), np.array(kept) * self.spacing
        volume = float(np.log(self.spacing).sum())
        points = [point for point in self.points.values() if point is not None]
        size = 40 if m == 1 else 8
        inside = [(np.arange(size) + 0.5) / size - 0.5] * m
        cell = np.stack(np.meshgrid(*inside), -1).reshape(-1, m) * self.spacing
        dense = np.array([self._fall(place) < 2.0 * DROP for place in kept])
        nodes = (z[dense, None] + cell).reshape(-1, m)
        logs = self.surface.between(nodes) + self.surface.log_volume(nodes)
        found = WeightedPoints(
            points,
            self.surface.log_volume(z) + volume,
            self.surface.u(nodes),
            _normal(logs),
            lost_of([self.surface]),
        )
        integral = self.surface.mode.value + volume - math.log(size**m) + special.logsumexp(logs)
        if abs(special.logsumexp(found.logs) - integral) < GAP or len(points) > MOST_POINTS:
            return found
        lengths = self.spacing * np.linalg.norm(self.surface.axes, axis=0)
        times = np.where(np.arange(m) == lengths.argmax(), 2, 1)
        self.spacing = self.spacing / times
        finer = (tuple((times * place).tolist()) for place in self.points)
        self.points = dict(zip(finer, self.points.values(), strict=True))
        return self.design()

    def _filled(self) -> bool:
        """Go on from each point within DROP of the mode to its neighbours. False: there is no end.

        A line through two points tells where the next one has fallen further: it is not fitted.
        """
        queue = [(self._fall(place), place) for place in self.points]
        heapq.heapify(queue)
        while queue and queue[0][0] <= DROP:
            _, here = heapq.heappop(queue)
            for place in (_moved(here, step) for step in self.steps):
                if place in self.points or self._expected(place) > DROP:
                    continue
                z = np.array(place) * self.spacing
                point = self.surface.at(z) if np.abs(z).max() <= FARTHEST else None
                if point is None and not self.surface.proper:
                    return False
                self.points[place] = point
                heapq.heappush(queue, (self._fall(place), place))
        return True

    def _fall(self, place: tuple[int, ...]) -> float:
        """How far the density is below that of the mode, in nats, and at most 2 DROP."""
        point = self.points[place]
        fall = math.inf if point is None else self.surface.mode.value - point.value
        return min(fall, 2.0 * DROP)

    def _expected(self, place: tuple[int, ...]) -> float:
        """How far it falls by the steepest line through two points beside a place."""
        falls = [0.0]
        for step in self.steps:
            near = _moved(place, step)
            far = _moved(near, step)
            if near in self.points and far in self.points:
                falls.append(2.0 * self._fall(near) - self._fall(far))
        return max(falls)

    def holds(self, u: Array) -> bool:
        """Whether there is a point about u."""
        place = np.rint(self.surface.z(u) / self.spacing).astype(int)
        return self.points.get(tuple(place.tolist())) is not None


def _moved(place: tuple[int, ...], step: list[int]) -> tuple[int, ...]:
    return tuple(at + by for at, by in zip(place, step, strict=True))


def drawn(surfaces: list[Surface], size: int, seed: int, most: int = 0) -> WeightedPoints:
    """Quasi-random points, drawn from split Student-t densities along the axes of each mode.

    Parameters
    ----------
    surfaces : list of Surface
        About different modes. Of one the points have a surface between them.
    size : int
        Points in all.
    seed : int
    most : int, default=0
        As many again are drawn, up to so many, while few of them count (ENOUGH).
    """
    m, share = len(surfaces[0].mode.u), size // len(surfaces)
    sobol = scipy.stats.qmc.Sobol(m, rng=np.random.default_rng(seed))
    points: list[HyperPoint] = []
    count, more = 0, share
    while True:
        for surface in surfaces:
            draws = scipy.stats.t.ppf(np.clip(sobol.random(more), 1e-9, 1.0 - 1e-9), DF)
            tried = [surface.at(z) for z in draws[np.argsort((draws**2).sum(1), kind="stable")]]
            points += [one for one in tried if one is not None]
        count += more
        at = np.array([point.u for point in points])
        logs = np.array([surface.log_draws(at) for surface in surfaces])
        volumes = -special.logsumexp(logs, axis=0) - math.log(count)
        found = _of_points(points, volumes.tolist(), lost_of(surfaces))
        if found.ess >= ENOUGH * len(points) or 2 * count * len(surfaces) > most:
            break
        more = count
    found = found if len(surfaces) > 1 else _between(surfaces[0], seed)
    if found.ess < FEW * min(len(found.points), DRAWS):
        warn_user(
            f"{found.ess:.0f} of {len(found.points)} points carry the average: the posterior of "
            "the hyper-parameters is far from normal in their logs; narrower priors help, or fewer "
            "hyper-parameters",
            ConvergenceWarning,
        )
    return found


def composite(surface: Surface) -> WeightedPoints:
    """A central composite design (Rue, Martino & Chopin 2009, section 6.5)."""
    m, far = len(surface.mode.u), 1.1
    stars = math.sqrt(m) * np.concatenate([np.eye(m), -np.eye(m)])
    for z in np.concatenate([far * _corners(m), far * stars]):
        surface.at(z)
    return _between(surface, 0)


def _student(m: int, size: int, seed: int) -> Array:
    """Quasi-random draws of independent Student-t, (size, m)."""
    uniform = scipy.stats.qmc.Sobol(m, rng=np.random.default_rng(seed)).random(size)
    return np.asarray(scipy.stats.t.ppf(np.clip(uniform, 1e-9, 1.0 - 1e-9), DF))


def _between(surface: Surface, seed: int) -> WeightedPoints:
    """All points that are known, with a cubic surface of the log density through them.

    A point has the mass of what is nearest to it. Weights of the points themselves by density over
    volume leave the means of sds two to ten times as far off.
    """
    top, m = surface.mode.value, len(surface.mode.u)
    z = np.array([z for z, _ in surface.known])
    points = [point for _, point in surface.known]
    values = np.array([point.value for point in points])
    nodes = _student(m, 4096, seed + 1)  # twice as many change no sd by 1 %
    near = scipy.spatial.KDTree(z).query(nodes)[1]
    log_density = surface.between(nodes)
    # nothing where a prior has ended
    log_density[np.isneginf(values[near])] = -np.inf
    logs = log_density - scipy.stats.t.logpdf(nodes, DF).sum(1) + surface.log_volume(nodes)
    total = float(special.logsumexp(logs)) - math.log(len(logs)) + top
    probabilities = _normal(logs)
    masses = _calibrated(
        np.bincount(near, probabilities, len(z)).astype(np.float64), z, nodes, probabilities
    )
    weighted = np.flatnonzero(masses > 0.0)
    volumes = np.log(masses[weighted]) + total - values[weighted]
    return WeightedPoints(
        [points[k] for k in weighted], volumes, surface.u(nodes), probabilities, lost_of([surface])
    )


def _calibrated(masses: Array, z: Array, nodes: Array, probabilities: Array) -> Array:
    """Masses of points z (k, m) whose moments up to the second are those of nodes (g, m)."""
    i, j = np.tril_indices(z.shape[1])
    of_points, of_nodes = (
        np.column_stack([np.ones(len(at)), at, at[:, i] * at[:, j]]) for at in (z, nodes)
    )
    missing = probabilities @ of_nodes - masses @ of_points
    turn = np.linalg.lstsq(of_points.T @ (masses[:, None] * of_points), missing, rcond=1e-8)[0]
    calibrated = np.maximum(masses * (1.0 + np.clip(of_points @ turn, -1.0, 1.0)), 0.0)
    return np.asarray(calibrated / calibrated.sum())


def lost_of(surfaces: list[Surface]) -> Array:
    """Unknowns where there was no fit, (l, m)."""
    none = np.empty((0, len(surfaces[0].mode.u)))
    return np.concatenate([none, *(one.lost for one in surfaces if one.lost)])


def _of_points(points: list[HyperPoint], volumes: list[float], lost: Array) -> WeightedPoints:
    """A design whose nodes are its points."""
    logs = np.array([point.value for point in points]) + volumes
    nodes = np.array([point.u for point in points])
    return WeightedPoints(points, np.array(volumes), nodes, _normal(logs), lost)


def _corners(m: int) -> Array:
    """Corners of a cube, or of a fraction of resolution V, (k, m)."""
    of: dict[int, list[tuple[int, ...]]] = {
        5: [(0, 1, 2, 3)],
        6: [(0, 1, 2, 3, 4)],
        7: [(0, 1, 2, 3, 4, 5)],
    }
    of[8] = [(0, 1, 2, 3), (0, 1, 4, 5)]
    products = of.get(m, [])
    signs = np.stack(np.meshgrid(*[[-1.0, 1.0]] * (m - len(products)), indexing="ij"), -1)
    free = signs.reshape(-1, m - len(products))
    return np.column_stack([free, *(free[:, list(one)].prod(1) for one in products)])


def _normal(logs: Array) -> Array:
    """Probabilities from their logs."""
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def chosen(target: Target) -> str:
    """The strategy that is "auto": the sds of many levels are nearly normal in their logs."""
    m = len(target.unknowns)
    if m > MOST:
        return "eb"
    if target.of_many and m > 1:
        return "ccd"
    return "grid" if m <= 2 else "sobol"


def design(
    target: Target, modes: list[HyperPoint], strategy: str, seed: int
) -> WeightedPoints | None:
    """Points of an average about modes, the most probable one first. None: there is no end.

    A grid or a central composite design is about one mode. Where there is another one, beyond the
    points of the grid, points are drawn about both.
    """
    first, strategy = modes[0], chosen(target) if strategy == "auto" else strategy
    if strategy == "eb":
        at = first.u[None]
        return WeightedPoints([first], np.zeros(1), at, np.ones(1), np.empty((0, at.size)))
    surfaces = [Surface.of(target, first)]
    others = [one for one in modes[1:] if one.value > first.value - DROP]
    if strategy == "grid":
        points = Grid(surfaces[0])
        found = points.design()
        if found is None or all(points.holds(one.u) for one in others):
            return found
    for one in others:
        if not any(surface.near(one) for surface in surfaces):
            surfaces.append(Surface.of(target, one))
    if strategy == "ccd" and len(surfaces) == 1:
        return composite(surfaces[0])
    return drawn(surfaces, DRAWS, seed, target.most_draws)

"""The mode of hyper-parameters, and points about it for an average.

Each point has a fit by EP, and its weight is prior density times evidence: after Rue, Martino &
Chopin (2009), with EP in place of their Laplace approximation. What a fit is, and its log density
over u, the logs of the hyper-parameters, a caller says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
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
#: share of the curvature to which a step may lower it: Powell's damping of BFGS
BENDS = 0.1
#: gain in nats of one more step that a search may leave without a word
LEFT = 0.01
#: no curvature, and more than the rounding of a logarithm
TINY, ROUNDING_OF_LOG = 1e-300, 1e-12
#: step of differences of slopes, and least curvature: a sd of 4.5 of a log. With steps of .03 and
#: .3 the log evidence of 12 fits with one group changes by 7e-6 and 5e-5 nats at most
STEP, FLATTEST = 0.1, 0.05
#: least and largest sd of a half of the density, in that of its curvature: the 12 fits are the same
#: with .7 and 1.5
SIDES = (0.3, 4.0)
#: grids: steps of one hyper-parameter, and of two, in sd of their sides. The fall of the log
#: density where they end, and most steps on a side. With steps of one of .5 and 2 the 12 fits have
#: 453 and 200 points in place of 288, and their log evidence changes by .002 and .03 nats at most,
#: by 4e-5 with falls of 4, and by nothing with 10. With 10 steps nine of the 12 fail. With steps of
#: two of .4, .75 and 1.2 the log evidence of five other fits changes by .004, .003 and .008 nats at
#: most, means of weights by .026, .015 and .04 sd
STEP_OF_ONE, STEP_OF_TWO, DROP, MOST = 1.0, 1.0, 7.0, 40
#: the fall beyond that to which a point of a grid is fitted, which axes alone predict: with .5 and
#: 5 the log evidence changes by 2e-4 and 4e-5 nats at most
MARGIN = 2.0
#: degrees of freedom of what points are drawn from: with 3 and 12 the log evidence changes by .002
#: and .003 nats at most
DF = 6.0
#: share of the points that are to count, where more may be drawn: of processes with 0.5 and 0.6 the
#: sds of noise were 25 %, of length scales 35 % off with 128 points, and up to 19 and 5 % with 512
ENOUGH = 0.75
#: nodes on an axis of a density between the points of a grid, of one hyper-parameter and of two:
#: the log evidence of the 12 fits is the same with half or twice as many of the first
NODES = (400, 120)
#: points that are drawn: with 128 sds of sds are within 3 % of those of 1,024 (hyper.md, 2)
DRAWS = 128
#: draws of the density between points of more: twice as many change no sd by 1 %
FINE = 4096


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


class Unknown(NamedTuple):
    """A hyper-parameter."""

    name: str
    prior: priors.Scale | priors.LKJ
    #: the columns whose prior sd it is. None: a correlation, or a number of the loss
    columns: NDArray[np.intp] | None = None
    #: of a correlation: effects that are correlated after the first of its two
    others: int = 0

    @property
    def most(self) -> float:
        """No value is above this."""
        return math.inf if isinstance(self.prior, priors.LKJ) else self.prior.most

    @property
    def log_most(self) -> float:
        """The logarithm of that, less its rounding: beyond the end the density is 0."""
        return math.log(self.most) - ROUNDING_OF_LOG

    def log_density(self, u: float) -> tuple[float, float, float]:
        """Log of the prior over u, its slope and second derivative."""
        if isinstance(self.prior, priors.LKJ):
            return self.prior.of_partial(u, self.others)
        value, slope = self.prior.over_log(u)
        return value, slope, (self.prior.over_log(u + 1e-6)[1] - slope) / 1e-6


class Target:
    """Log density of hyper-parameters, of which each value has a fit: what a search is given."""

    #: unknowns that are sds of groups of weights, which come first
    k = 0
    #: whether a group has so many levels that its sds are nearly normal in their logs
    of_many = False
    #: points that are drawn where few of the first ones count
    most_draws = DRAWS
    n_fits = 0
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
        return not any(isinstance(one.prior, priors.Flat) for one in self.unknowns)

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
        found = self._climbed(self.starts)
        found += self._climbed(self.other_starts(found[0].point)) if found else []
        if not found:
            raise FloatingPointError(
                "no fit converges where the search of the hyper-parameters begins; try other "
                "priors, or a schedule with damping"
            )
        found.sort(key=lambda one: -one.point.value)
        if found[0].left > LEFT:
            warn_user(
                f"the search of the hyper-parameters ended before their mode, which may have "
                f"{found[0].left:.2g} nats more: fits beyond do not converge; try other priors, "
                "or a schedule with damping",
                ConvergenceWarning,
            )
        return [one.point for one in found]

    def _climbed(self, starts: list[Array]) -> list[SearchEnd]:
        return [end for end in (climbed(self, start) for start in starts) if end is not None]

    def other_starts(self, mode: HyperPoint) -> list[Array]:
        """Where another mode than a first one may be."""
        return []


class SearchEnd(NamedTuple):
    """Where a search ended."""

    point: HyperPoint
    #: nats that one more step promises, beyond the error of the fit
    left: float


class Stand(NamedTuple):
    """A point of a search."""

    point: HyperPoint
    slopes: Array
    tol: float

    @property
    def error(self) -> float:
        """What the value is off, in nats: by the tolerance of the fit, and by rounding."""
        scales = self.point.fit.sites.log_scale
        return self.tol**2 + ROUNDING * float(np.abs(scales).sum())


def climbed(target: Target, start: Array) -> SearchEnd | None:
    """A local maximum of the log density. None: there is no fit at the start.

    Steps go uphill in the metric of the target, which BFGS corrects. Far from the mode the jumps of
    the target come first. A step counts if the density does not fall by more than the errors of the
    two fits, else half of it is tried. The end is where the expected gain of a step is small.

    Parameters
    ----------
    target : Target
    start : ndarray of shape (m,)
    """
    low, high = target.bounds.T

    def look(u: Array, tol: float, near: Any) -> Stand | None:
        point = target.point_at(u, tol, near)
        if point is None or not math.isfinite(point.value):
            return None
        slopes = target.slopes(point)
        return Stand(point, slopes, tol) if np.isfinite(slopes).all() else None

    def reached(here: Stand, step: Array) -> Stand | None:
        size = float(np.abs(step).max())
        tol = min(max(SHARE * size * min(size, 1.0), FINEST), LOOSEST)
        there = look(here.point.u + step, tol, here.point.fit)
        if there is None or here.point.value - there.point.value > here.error + there.error:
            return None
        return there

    here = look(np.clip(start, low, high), LOOSEST, None)
    if here is None:
        return None
    highest, metric, jumps, gain = here, target.metric(here.point), True, 0.0
    for _ in range(STEPS):
        u, slopes = here.point.u, here.slopes
        free = np.where(slopes > 0.0, u < high, u > low)
        uphill, gain = _uphill(metric, slopes, free)
        aims = [u + share * uphill for share in SHARES if gain > GAIN]
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
            metric = target.metric(there.point) if jumps else _bent(metric, step, fall)
        else:
            # rough slopes may not lead uphill, and a metric of far steps may promise too little
            exact = look(u, FINEST, here.point.fit) if here.tol > FINEST else None
            there, metric = exact or here, target.metric((exact or here).point)
            gain = _uphill(metric, there.slopes, free)[1]
            if exact is None and (aims or gain <= NEARLY):
                break
        here = there
        highest = max(highest, here, key=lambda one: one.point.value)
    if highest.point.value > here.point.value + here.error + highest.error:
        exact = look(highest.point.u, FINEST, highest.point.fit)
        here = here if exact is None else max(here, exact, key=lambda one: one.point.value)
    return SearchEnd(here.point, max(gain - here.error, 0.0))


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
    m = len(mode.u)
    bent = np.zeros((m, m))
    for k, step in enumerate(STEP * np.eye(m)):
        sides = [fitted(mode.u + by, mode.fit) for by in (-step, step)]
        # a range may end there
        usable = [one is not None and one.value > -math.inf for one in sides]
        here: list[Any] = [one if held else mode for one, held in zip(sides, usable, strict=True)]
        width = STEP * sum(usable)
        bent[k] = (slopes(here[0]) - slopes(here[1])) / max(width, STEP)
    return axes_of(bent)


def axes_of(bent: Array) -> Array:
    """Principal axes of minus second derivatives (m, m), as long as their sds."""
    values, vectors = np.linalg.eigh(0.5 * (bent + bent.T))
    return np.asarray(vectors / np.sqrt(np.maximum(values, FLATTEST)))


def grown(spread: Any, shift: Any) -> Any:
    """The share by which a sd grows whose log has this variance, and mean the squared shift."""
    return np.sqrt(np.exp(2.0 * np.minimum(spread, 100.0)) + shift) - 1.0


def change(post: Any, others: list[Any], share: float = 1.0) -> float:
    """The share by which an average changes a sd, the largest one.

    Parameters
    ----------
    post, others
        With mean and variance. At the mode, and beside it on each principal axis.
    share : float, default=1.0
        A sd of the axis, over the distance of the others.
    """
    pairs = [(other.mean, other.variance) for other in others]
    moved = sum((mean - post.mean) ** 2 / post.variance for mean, _ in pairs)
    spread = sum((0.5 * np.log(variance / post.variance)) ** 2 for _, variance in pairs)
    more = grown(share**2 * np.asarray(spread), share**2 * np.asarray(moved))
    return float(more.max(initial=0.0))


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
    def of(
        cls,
        mode: HyperPoint,
        fitted: Callable[[Array, Any], HyperPoint | None],
        slopes: Callable[[HyperPoint], Array],
        proper: bool = False,
        exact: Callable[[Array, Any], HyperPoint | None] | None = None,
    ) -> Self:
        """In units of its sides. slopes: of the value at a point, by u.

        exact: as fitted, of the points that make axes and sides, which are differences.
        """
        exact = fitted if exact is None else exact
        surface = cls(mode, exact, principal_axes(mode, exact, slopes), proper)
        surface.measure()
        surface.fitted = fitted
        return surface

    def measure(self) -> None:
        """Find the sides, by fits, and have them as units."""
        every = range(len(self.mode.u))
        self.sides = np.array([[self._side(k, sign) for sign in (-1.0, 1.0)] for k in every])
        self.known = [(z / self.stretch(z), point) for z, point in self.known]

    def _side(self, k: int, sign: float) -> float:
        """The sd of half of the density along an axis, in that of its curvature."""
        point = self.at(sign * math.sqrt(2.0) * np.eye(len(self.mode.u))[k])
        drop = np.inf if point is None else self.mode.value - point.value
        return float(np.clip(1.0 / math.sqrt(max(drop, 1e-2)), *SIDES))

    def stretch(self, z: Array) -> Array:
        """The length of a unit of z on its side, (m,)."""
        low, high = self.sides.T
        return np.where(z < 0.0, low, np.where(z > 0.0, high, 0.5 * (low + high)))

    def u(self, z: Array) -> Array:
        """Unknowns u at places z (..., m)."""
        return np.asarray(self.mode.u + (z * self.stretch(z)) @ self.axes.T)

    def log_draws(self, u: Array) -> Array:
        """Log density of :func:`drawn` at u (k, m), (k,)."""
        along = np.linalg.solve(self.axes, (u - self.mode.u).T).T
        z = along / self.stretch(along)
        return np.asarray(scipy.stats.t.logpdf(z, DF).sum(-1) - self.log_volume(z))

    def log_volume(self, z: Array) -> Array:
        """Logs of du / dz, (...,)."""
        return np.asarray(np.log(self.stretch(z)).sum(-1) + self.log_axes)

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

    def axis(self, k: int, step: float, drop: float = DROP) -> Array:
        """Steps along an axis until the density has fallen by so much. NaN: it has no end.

        One that is proper ends at the last fit, too.
        """
        unit, ends = np.eye(len(self.mode.u))[k], []
        for sign in (-1.0, 1.0):
            for j in range(1, MOST + 1):
                point = self.at(sign * j * step * unit)
                if point is None or point.value < self.mode.value - drop:
                    break
            if not self.proper and (point is None or not point.value < self.mode.value - drop):
                return np.array([math.nan])
            ends.append(j if point is not None else max(j - 1, 1))
        return np.asarray(step * np.arange(-ends[0], ends[1] + 1))

    def falls(self, k: int, axis: Array) -> Array:
        """The log density on an axis, less that of the mode."""
        unit, worst = np.eye(len(self.mode.u))[k], -2.0 * DROP
        points = [self.at(float(z) * unit) for z in axis]
        values = [worst if one is None else one.value - self.mode.value for one in points]
        return np.maximum(np.array(values, dtype=np.float64), worst)


def grid(surface: Surface, step: float | None = None, drop: float = DROP) -> WeightedPoints | None:
    """Points of a grid, of one or two hyper-parameters. None if the density has no end.

    Parameters
    ----------
    surface : Surface
    step : float, optional
        Of the grid, in sd of its sides. By default STEP_OF_ONE, or STEP_OF_TWO.
    drop : float
        Nats by which the density has fallen where the grid ends.
    """
    m = len(surface.mode.u)
    if step is None:
        step = STEP_OF_ONE if m == 1 else STEP_OF_TWO
    axes: list[Array] = [surface.axis(k, step, drop) for k in range(m)]
    if any(np.isnan(axis).any() for axis in axes):
        return None
    at = np.stack(np.meshgrid(*axes, indexing="ij"), -1)
    # as if the axes were independent: where a fit is worth its time, and what stands in for one
    values = np.full(at.shape[:-1], surface.mode.value)
    for k, axis in enumerate(axes):
        values += surface.falls(k, axis).reshape([-1 if j == k else 1 for j in range(m)])
    points: list[HyperPoint] = []
    volumes: list[float] = []
    # from the middle, where fits begin
    order = sorted(np.ndindex(values.shape), key=lambda where: float((at[where] ** 2).sum()))
    for where in order:
        if values[where] < surface.mode.value - drop - MARGIN:
            continue
        point = surface.at(at[where])
        if point is not None:
            # a prior may end there
            values[where] = max(point.value, surface.mode.value - 2.0 * DROP)
            points.append(point)
            volumes.append(float(surface.log_volume(at[where])) + m * math.log(step))
    fine = [np.linspace(axis[0], axis[-1], NODES[m - 1]) for axis in axes]
    if m == 1:
        between = scipy.interpolate.CubicSpline(axes[0], values)(fine[0])
    else:
        degrees = [min(3, len(axis) - 1) for axis in axes]
        between = scipy.interpolate.RectBivariateSpline(
            *axes, values, kx=degrees[0], ky=degrees[1]
        )(*fine)
    z = np.stack(np.meshgrid(*fine, indexing="ij"), -1).reshape(-1, m)
    logs = between.ravel() + surface.log_volume(z)
    return WeightedPoints(
        points, np.array(volumes), surface.u(z), _normal(logs), lost_of([surface])
    )


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
        design = _of_points(points, volumes.tolist(), lost_of(surfaces))
        counted = 1.0 / (design.probabilities**2).sum()
        if counted >= ENOUGH * len(points) or 2 * count * len(surfaces) > most:
            return design if len(surfaces) > 1 else _between(surfaces[0], seed)
        more = count


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
    kept = values > top - 2.0 * DROP
    degree = 2 if kept.sum() >= (m + 1) * (m + 2) else 1
    residual = values[kept] - top + 0.5 * (z[kept] ** 2).sum(1)
    nodes = _student(m, FINE, seed + 1)
    between: Any = residual.mean()  # of hardly a point
    if kept.sum() > m + 1:
        smooth = scipy.interpolate.RBFInterpolator(z[kept], residual, kernel="cubic", degree=degree)
        between = smooth(nodes)
    near = scipy.spatial.KDTree(z).query(nodes)[1]
    # no higher than the mode, and nothing where a prior has ended
    log_density = np.minimum(between - 0.5 * (nodes**2).sum(1), 0.0)
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
    values = np.array([point.value for point in points]) + volumes
    nodes = np.array([point.u for point in points])
    return WeightedPoints(points, np.array(volumes), nodes, _normal(values), lost)


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

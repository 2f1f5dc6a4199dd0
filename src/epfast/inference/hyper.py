"""The mode of hyper-parameters, and points about it for an average.

Each point has a fit by EP, and its weight is prior density times evidence: after Rue, Martino &
Chopin (2009), with EP in place of their Laplace approximation. What a fit is, and its log density
over u, the logs of the hyper-parameters, a caller says.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import scipy
from scipy import special

from epfast._arrays import Array

#: tolerance of a fit over the step that it follows, or over the square of a small one: with .001
#: and .1 119 fits take as many runs, and their log evidence changes by .001 and 4e-5 nats at most
SHARE = 0.01
#: fixed point: most fits, no turn, and the most by which mixing changes a step. 400 fits of tables
#: of 12 to 300 rows, with one to five hyper-parameters, take 2,665 runs to their modes, and 3,190
#: without mixing, where two end lower. With 8 and 40 of the first they take 2,973 and 2,673, and
#: three and none end lower. With .25 and 1e9 of the third these are 2,637 and 2,922, none and one
POINTS, TINY, FAR = 15, 1e-300, 1.0
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
#: two of .4 and 1.2 the log evidence changes by .002 and .007 nats at most
STEP_OF_ONE, STEP_OF_TWO, DROP, MOST = 1.0, 0.75, 7.0, 40
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
    #: points that gave no fit
    n_lost: int = 0


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
            mixed = np.clip(back * (there - before[1]), -FAR, FAR)
            there = np.clip(there - mixed, *bounds.T)
        before = here
        step = float(np.abs(there - u).max(initial=0.0))
        ends_here = step * min(step / max(last, accuracy), 1.0) <= accuracy
        if ends_here and tol <= max(0.2 * accuracy, finest):
            return there
        u, last = there, step
        tol = min(max(SHARE * step * min(step, 1.0), 0.1 * accuracy, finest), loosest)
    return None


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
        self, mode: HyperPoint, fitted: Callable[[Array, Any], HyperPoint | None], axes: Array
    ) -> None:
        """fitted: the point at u (m,), from a fit near it; axes: units of z, (m, m)."""
        self.mode, self.fitted, self.axes, self.n_lost = mode, fitted, axes, 0
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
    ) -> Self:
        """In units of its sides, by fits; slopes: of the value at a point, by u."""
        surface = cls(mode, fitted, principal_axes(mode, fitted, slopes))
        surface.measure()
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
            self.n_lost += 1
            return None
        self.known.append((z, point))
        return point

    def axis(self, k: int, step: float, drop: float = DROP) -> Array:
        """Steps along an axis until the density has fallen by so much. NaN: it has not."""
        unit, ends = np.eye(len(self.mode.u))[k], []
        for sign in (-1.0, 1.0):
            for j in range(1, MOST + 1):
                point = self.at(sign * j * step * unit)
                if point is None or point.value < self.mode.value - drop:
                    break
            if point is None or not point.value < self.mode.value - drop:
                return np.array([math.nan])
            ends.append(j)
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
    return WeightedPoints(points, np.array(volumes), surface.u(z), _normal(logs), surface.n_lost)


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
        design = _of_points(points, volumes.tolist(), sum(one.n_lost for one in surfaces))
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
        [points[k] for k in weighted], volumes, surface.u(nodes), probabilities, surface.n_lost
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


def _of_points(points: list[HyperPoint], volumes: list[float], n_lost: int) -> WeightedPoints:
    """A design whose nodes are its points."""
    values = np.array([point.value for point in points]) + volumes
    nodes = np.array([point.u for point in points])
    return WeightedPoints(points, np.array(volumes), nodes, _normal(values), n_lost)


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

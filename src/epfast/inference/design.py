"""Points of hyper-parameters about their mode, for an average over them.

Each point has a fit by EP, and its weight is prior density times evidence: after Rue, Martino &
Chopin (2009), with EP in place of their Laplace approximation.
"""

from __future__ import annotations

import heapq
import math
from operator import add
from typing import Generic, NamedTuple, Self

import numpy as np
import scipy
from scipy import special

from epfast._arrays import Array
from epfast.inference import ConvergenceWarning
from epfast.inference.hyper import DRAWS, HyperPoint, P, Target
from epfast.inference.records import warn_user

#: of a grid: its spacing at first, in sd of its sides, the fall of the log density where it ends,
#: and the gap of its sum to that of a surface through its points at which it is fine enough
SPACING, DROP, GAP = 1.2, 8.0, 0.01
#: distance of points from the mode beyond which a density has no end, and how many of them make a
#: grid that gets no finer: beside an end of a prior it would never be fine enough
FARTHEST, MOST_POINTS = 40.0, 200
#: modes are different from so many sd on. Less probable ones count where points of a grid would,
#: see DROP
APART = 2.0
#: more hyper-parameters than these are not averaged over: hardly a drawn point counts
MOST = 8
#: degrees of freedom of what points are drawn from
DF = 6.0
#: share of the points that are to count, where more may be drawn
ENOUGH = 0.75
#: share of the points that count below which draws are not trusted
FEW = 0.2


class WeightedPoints(NamedTuple, Generic[P]):
    """Points, and the volume of u that each represents."""

    points: list[HyperPoint[P]]
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


def design(
    target: Target[P], modes: list[HyperPoint[P]], strategy: str, seed: int
) -> WeightedPoints[P] | None:
    """Points of an average about modes, the most probable one first. None: there is no end.

    A grid or a central composite design is about one mode. Where there is another one, beyond the
    points of the grid, points are drawn about both.
    """
    first, strategy = modes[0], auto_strategy(target) if strategy == "auto" else strategy
    if strategy == "eb":
        node = first.u[None]
        return WeightedPoints([first], np.zeros(1), node, np.ones(1), np.empty((0, node.size)))
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


def auto_strategy(target: Target[P]) -> str:
    """The strategy that is "auto": the sds of many levels are nearly normal in their logs."""
    m = len(target.unknowns)
    if m > MOST:
        return "eb"
    if target.of_many and m > 1:
        return "ccd"
    return "grid" if m <= 2 else "sobol"


class Surface(Generic[P]):
    """The log density of hyper-parameters about its mode, in units of the sd of its sides."""

    def __init__(self, target: Target[P], mode: HyperPoint[P], axes: Array) -> None:
        """Know the mode, and :meth:`point_at`; axes: units of z, (m, m)."""
        self.target, self.mode, self.axes = target, mode, axes
        self.tol = target.of_points
        self.lost: list[Array] = []
        self.log_axes = float(np.linalg.slogdet(axes)[1])
        m = len(mode.u)
        self.evaluated: list[tuple[Array, HyperPoint[P]]] = [(np.zeros(m), mode)]
        self.sides = np.ones((m, 2))

    @classmethod
    def of(cls, target: Target[P], mode: HyperPoint[P]) -> Self:
        """In units of its sides. What makes axes and sides, which are differences, is exact."""
        surface = cls(target, mode, principal_axes(target, mode, target.of_axes))
        surface.tol = target.of_axes
        surface.measure()
        surface.tol = target.of_points
        return surface

    def near(self, mode: HyperPoint[P]) -> bool:
        """Whether another mode is the same."""
        return bool(np.linalg.norm(np.linalg.solve(self.axes, mode.u - self.mode.u)) < APART)

    def measure(self) -> None:
        """Find the sides, by fits, and have them as units."""
        every = range(len(self.mode.u))
        self.sides = np.array([[self._side(k, sign) for sign in (-1.0, 1.0)] for k in every])
        self.evaluated = [(self.z(point.u), point) for _, point in self.evaluated]

    def _side(self, k: int, sign: float) -> float:
        """The sd of half of the density along an axis, in that of its curvature."""
        point = self.point_at(sign * math.sqrt(2.0) * np.eye(len(self.mode.u))[k])
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
        places = np.array([place for place, _ in self.evaluated])
        values = np.array([point.value for _, point in self.evaluated]) - self.mode.value
        kept = values > -2.0 * DROP
        residual = values[kept] + 0.5 * (places[kept] ** 2).sum(1)
        smooth: Array | float = residual.mean()  # of hardly a point
        if kept.sum() > m + 1:
            degree = 2 if kept.sum() >= (m + 1) * (m + 2) else 1
            through = scipy.interpolate.RBFInterpolator(
                places[kept], residual, kernel="cubic", degree=degree
            )
            smooth = through(z)
        # no higher than what is known
        return np.asarray(np.minimum(smooth - 0.5 * (z**2).sum(1), values.max()))

    def point_at(self, z: Array) -> HyperPoint[P] | None:
        """The point at z, from the nearest fit. None if there is none."""
        away = ((np.array([other for other, _ in self.evaluated]) - z) ** 2).sum(axis=1)
        first = int(away.argmin())
        nearest = self.evaluated[first][1]
        if away[first] == 0.0:
            return nearest
        point = self.target.point_at(self.u(z), self.tol, nearest.fit)
        if point is None or math.isnan(point.value):
            self.lost.append(self.u(z))
            return None
        self.evaluated.append((z, point))
        return point


def principal_axes(target: Target[P], mode: HyperPoint[P], tol: float) -> Array:
    """Axes (m, m) of the curvature at a mode, of the length of its sds, by slopes of 2 m fits.

    tol: of these fits.
    """
    m, length = len(mode.u), 0.1
    bent = np.zeros((m, m))
    for k, step in enumerate(length * np.eye(m)):
        sides = [target.point_at(mode.u + by, tol, mode.fit) for by in (-step, step)]
        # a range may end there
        low, high = (mode if one is None or not one.value > -math.inf else one for one in sides)
        width = length * max((low is not mode) + (high is not mode), 1)
        bent[k] = (target.slopes(low) - target.slopes(high)) / width
    return axes_of(bent)


def axes_of(bent: Array) -> Array:
    """Principal axes of minus second derivatives (m, m), as long as their sds."""
    values, vectors = np.linalg.eigh(0.5 * (bent + bent.T))
    return np.asarray(vectors / np.sqrt(np.maximum(values, 0.05)))  # a sd of 4.5 of a log at most


class Grid(Generic[P]):
    """Points of one or two hyper-parameters, at whole multiples of a spacing of each z."""

    def __init__(self, surface: Surface[P]) -> None:
        m = len(surface.mode.u)
        self.surface, self.spacing = surface, np.full(m, SPACING)
        #: by their places. None: there is no fit
        self.points: dict[tuple[int, ...], HyperPoint[P] | None] = {(0,) * m: surface.mode}
        one = np.eye(m, dtype=int)
        self.steps: list[list[int]] = [*one.tolist(), *(-one).tolist()]

    def design(self) -> WeightedPoints[P] | None:
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
                point = self.surface.point_at(z) if np.abs(z).max() <= FARTHEST else None
                if point is None and not self.surface.target.proper:
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
    return tuple(map(add, place, step))


def drawn(surfaces: list[Surface[P]], size: int, seed: int, most: int = 0) -> WeightedPoints[P]:
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
    points: list[HyperPoint[P]] = []
    count, more = 0, share
    while True:
        for surface in surfaces:
            draws = scipy.stats.t.ppf(np.clip(sobol.random(more), 1e-9, 1.0 - 1e-9), DF)
            tried = [
                surface.point_at(z) for z in draws[np.argsort((draws**2).sum(1), kind="stable")]
            ]
            points += [one for one in tried if one is not None]
        count += more
        places = np.array([point.u for point in points])
        logs = np.array([surface.log_draws(places) for surface in surfaces])
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


def composite(surface: Surface[P]) -> WeightedPoints[P]:
    """A central composite design (Rue, Martino & Chopin 2009, section 6.5)."""
    m, far = len(surface.mode.u), 1.1
    stars = math.sqrt(m) * np.concatenate([np.eye(m), -np.eye(m)])
    for z in np.concatenate([far * _corners(m), far * stars]):
        surface.point_at(z)
    return _between(surface, 0)


def _between(surface: Surface[P], seed: int) -> WeightedPoints[P]:
    """All points that are known, with a cubic surface of the log density through them.

    A point has the mass of what is nearest to it. Weights of the points themselves by density over
    volume leave the means of sds two to ten times as far off.
    """
    top, m = surface.mode.value, len(surface.mode.u)
    z = np.array([z for z, _ in surface.evaluated])
    points = [point for _, point in surface.evaluated]
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
        np.column_stack([np.ones(len(part)), part, part[:, i] * part[:, j]]) for part in (z, nodes)
    )
    missing = probabilities @ of_nodes - masses @ of_points
    turn = np.linalg.lstsq(of_points.T @ (masses[:, None] * of_points), missing, rcond=1e-8)[0]
    calibrated = np.maximum(masses * (1.0 + np.clip(of_points @ turn, -1.0, 1.0)), 0.0)
    return np.asarray(calibrated / calibrated.sum())


def _student(m: int, size: int, seed: int) -> Array:
    """Quasi-random draws of independent Student-t, (size, m)."""
    uniform = scipy.stats.qmc.Sobol(m, rng=np.random.default_rng(seed)).random(size)
    return np.asarray(scipy.stats.t.ppf(np.clip(uniform, 1e-9, 1.0 - 1e-9), DF))


def _of_points(points: list[HyperPoint[P]], volumes: list[float], lost: Array) -> WeightedPoints[P]:
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


def lost_of(surfaces: list[Surface[P]]) -> Array:
    """Unknowns where there was no fit, (l, m)."""
    none = np.empty((0, len(surfaces[0].mode.u)))
    return np.concatenate([none, *(one.lost for one in surfaces if one.lost)])


def _normal(logs: Array) -> Array:
    """Probabilities from their logs."""
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


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


def grown(spread: Array, shift: Array | float) -> Array:
    """The share by which a sd grows whose log has this variance, and mean the squared shift."""
    return np.asarray(np.sqrt(np.exp(2.0 * np.minimum(spread, 100.0)) + shift) - 1.0)

"""Messages by adaptive quadrature, of factors with one or two neighbours."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.polynomial import legendre
from numpy.typing import NDArray

from epfast import _checks
from epfast._arrays import Array, Indices, Which, pieces
from epfast.families import Scalar
from epfast.operators.tilted import (
    HASTY,
    LESS,
    MOST_NUMBERS,
    FactorCavities,
    FactorRows,
    MessageScheme,
    Projections,
    Tilted,
    called,
    maximum,
)


class Rule(NamedTuple):
    """Gauss's rule of 7 points on (-1, 1), in Kronrod's of 15, and the ends of the cell.

    The ends have no weight: a jump between an end and a node shows as a value that is not the one
    extrapolated from the nodes.
    """

    #: (17,), as the weights are
    nodes: Array
    kronrod: Array
    gauss: Array
    #: (2, 17), value at an end less the one extrapolated, times the length from the last node
    slip: Array


def gauss_kronrod() -> Rule:
    """The rule: its weights are right for polynomials."""
    old, weights = legendre.leggauss(7)
    new = [0.9914553711208126, 0.8648644233597691, 0.5860872354676911, 0.20778495500789848]
    inner = np.sort(np.concatenate([old, new, np.negative(new)]))
    values = legendre.legvander(inner, 14).T
    kronrod, gauss = np.zeros((2, 17))
    kronrod[1:-1] = np.linalg.solve(values, 2.0 * np.eye(15)[0])
    gauss[2:-1:2] = weights
    slip = np.zeros((2, 17))
    slip[:, 1:-1] = -np.linalg.solve(values, legendre.legvander([-1.0, 1.0], 14).T).T
    slip[[0, 1], [0, -1]] = 1.0
    return Rule(np.concatenate([[-1.0], inner, [1.0]]), kronrod, gauss, slip * (1.0 - inner[-1]))


RULE = gauss_kronrod()
#: points along an axis of the scan for the mode, of one variable and of two, over so many widths of
#: the cavity on each side
SCAN, SPAN = (65, 21), 8.0
#: widths of the density about its mode that a first interval has on each side
REACH = 9.0
#: longest cells about the mode, widths of the cavity from it
CAVITY = 20.0
#: logs below the mode at which a density is nothing
NOTHING = 40.0
#: doublings of an interval whose ends are not yet nothing, and rounds of halving cells
MOST_GROWTHS, MOST_ROUNDS = 60, 40
#: part of an integral that may be in doubt. Above it a fit has failed
DOUBTFUL = 1e-6


class Range(NamedTuple):
    """Where densities are integrated: centre + width w, w within low and high. (m,) each."""

    centre: Array
    width: Array
    low: Array
    high: Array
    #: longest first cell, in widths
    most: Array
    #: log density that counts as 1. NaN where none is seen
    top: Array

    def select(self, which: Which) -> Range:
        return Range(*(value[which] for value in self))


#: logs of integrals (m,), those that failed for want of evaluations as far as they came. Means of
#: functions (m, functions). And reasons (m,), see QuadratureMessages.reasons
Sums = tuple[Array, Array, NDArray[np.intp]]
#: log densities and functions at points (c, p) of rows (c,)
Columns = Callable[[Array, Indices], tuple[Array, list[Array]]]


def seen(value: Array) -> tuple[Array, NDArray[np.intp], Array]:
    """Log densities of a scan (m, p), -inf for what is none. The best of each, NaN if none is."""
    value = np.where(np.isfinite(value), value, -np.inf)
    best = value.argmax(axis=1)
    top = value.max(axis=1)
    return value, best, np.where(np.isfinite(top), top, np.nan)


def around(
    points: Array, value: Array, spread: Array, middle: Array, width: Array, top: Array, step: float
) -> Range:
    """An interval about what a scan sees. Without a width at the mode, that of what it sees."""
    nothing = np.isnan(top)
    weights = np.exp(value - np.where(nothing, 0.0, top)[:, None])
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    mean = (weights * points).sum(axis=1)
    sd = np.sqrt((weights * (points - mean[:, None]) ** 2).sum(axis=1))
    usual = np.maximum(sd, step * spread)
    width = np.where(np.isfinite(width) & (width > 0.0), width, usual)
    counts = value > np.where(nothing, np.inf, top)[:, None] - NOTHING
    places = (points - middle[:, None]) / width[:, None]
    beyond = np.where(counts.any(axis=1), step * spread / width, 0.0)
    low = np.minimum(np.where(counts, places, 0.0).min(axis=1) - beyond, -REACH)
    high = np.maximum(np.where(counts, places, 0.0).max(axis=1) + beyond, REACH)
    return Range(middle, width, low, high, np.maximum(spread / width, REACH), top)


def enclosed(columns: Columns, where: Range) -> tuple[Range, NDArray[np.bool_]]:
    """Intervals grown until the density is nothing at both ends. Where that came to an end."""
    ends = np.stack([where.low, where.high], axis=1)
    growing = np.ones(ends.shape, dtype=bool)
    for _ in range(MOST_GROWTHS):
        rows, side = np.nonzero(growing)
        if not len(rows):
            break
        u = where.centre[rows] + where.width[rows] * ends[rows, side]
        value = columns(u[:, None], rows)[0][:, 0] - where.top[rows]
        still = value > -NOTHING
        growing[rows, side] = still
        ends[rows[still], side[still]] *= 2.0
    return where._replace(low=ends[:, 0], high=ends[:, 1]), np.asarray(~growing.any(axis=1))


def integrals(columns: Columns, where: Range, functions: int, tol: float, evaluations: int) -> Sums:
    """Integrals over intervals, and means of so many functions."""
    m = len(where.centre)
    reason = np.where(np.isnan(where.top), 1, 0)
    good = np.flatnonzero(reason == 0)

    def of(index: NDArray[np.intp]) -> Columns:
        return lambda u, rows: columns(u, index[rows])

    part, ended = enclosed(of(good), where.select(good))
    reason[good[~ended]] = 2
    good, part = good[ended], part.select(ended)
    log_z, means = np.full(m, np.nan), np.full((m, functions), np.nan)
    if len(good):
        total, top, doubt = adaptive(of(good), part, functions, tol, evaluations)
        log_z[good] = np.log(total[:, 0]) + top + np.log(part.width)
        means[good] = total[:, 1:] / total[:, :1]
        reason[good[~(doubt < DOUBTFUL)]] = 3
    return log_z, means, reason


def adaptive(
    columns: Columns, where: Range, functions: int, tol: float, evaluations: int
) -> tuple[Array, Array, Array]:
    """Integrals over w of the density over exp(top) and of its products. Top. What is in doubt."""
    m = len(where.centre)
    top = where.top.copy()
    rows, middle, half = cells(where)
    used, doubt = np.zeros(m, dtype=np.intp), np.zeros(m)
    done = np.zeros((m, 1 + functions))
    for step in range(MOST_ROUNDS):
        u = where.centre[rows][:, None] + where.width[rows][:, None] * (
            middle[:, None] + half[:, None] * RULE.nodes
        )
        value, products = columns(u, rows)
        if step == 0:  # now more is seen than before
            np.maximum.at(top, rows, np.where(value < np.inf, value, -np.inf).max(axis=1))
        value = value - top[rows][:, None]
        with np.errstate(all="ignore"):
            p = np.where(value > -745.0, np.exp(value), np.where(np.isnan(value), np.nan, 0.0))
            p *= half[:, None]
            # where the density is 0, products with infinite functions are 0, too
            values = np.stack([p, *(np.where(p > 0.0, p * f, p) for f in products)], axis=-1)
        by_cell = np.einsum("cix,i->cx", values, RULE.kronrod)
        error = np.abs(by_cell - np.einsum("cix,i->cx", values, RULE.gauss)).max(axis=1)
        used += np.bincount(rows, minlength=m) * len(RULE.nodes)
        with np.errstate(all="ignore"):
            whole = (done[:, 0] + np.bincount(rows, by_cell[:, 0], m))[rows]
            size = error / whole
            # what is in doubt is far below the difference of two rules, once that is small
            slip = np.abs(values[..., 0] @ RULE.slip.T).max(axis=1)
            wrong = np.minimum(size, (200.0 * size) ** 1.5) + slip / whole
        # where the density is no number somewhere, smaller cells do not help
        used[np.bincount(rows, ~np.isfinite(by_cell).all(axis=1), m) > 0] = evaluations
        split = ~(wrong <= tol) & (used[rows] < evaluations)
        kept = ~split
        done += np.stack([np.bincount(rows[kept], c, m) for c in by_cell[kept].T], axis=1)
        doubt += np.bincount(rows[kept], wrong[kept], m)
        if not split.any():
            return done, top, doubt
        half = 0.5 * np.concatenate([half[split], half[split]])
        rows = np.concatenate([rows[split], rows[split]])
        middle = np.concatenate([middle[split], middle[split]])
        middle += half * np.repeat([-1.0, 1.0], len(half) // 2)
    return done, top, np.where(np.bincount(rows, minlength=m) > 0, np.inf, doubt)


def cells(where: Range) -> tuple[NDArray[np.intp], Array, Array]:
    """First cells: rows (c,), middles and half lengths (c,). Short ones about the mode."""
    m = len(where.centre)
    pieces = []
    for sign, end in ((-1.0, -where.low), (1.0, where.high)):
        edge, length = np.zeros(m), np.full(m, 0.25 * REACH)
        going = np.arange(m)
        while len(going):
            stop = np.minimum(edge[going] + length[going], end[going])
            pieces.append((going, sign * 0.5 * (edge[going] + stop), 0.5 * (stop - edge[going])))
            edge[going] = stop
            # about the cavity short enough to see what is narrow there
            near = stop < CAVITY * where.most[going]
            length[going] = np.where(near, np.minimum(stop, where.most[going]), stop)
            going = going[stop < end[going]]
    rows, middle, half = (np.concatenate(column) for column in zip(*pieces, strict=True))
    return rows, middle, half


@dataclass(frozen=True)
class QuadratureMessages(MessageScheme):
    """Moments of the tilted density by adaptive quadrature, for one or two neighbours.

    Parameters
    ----------
    tol : float, default=1e-09
        Error that is aimed at, as a part of the integral.
    evaluations : int, default=1000000
        Most evaluations of log_t for one factor in a sweep. Of two neighbours, an integral over
        one has their square root. A fit that needs more has failed if 1e-6 of an integral or more
        is in doubt.

    Notes
    -----
    Gauss and Kronrod's rule of 15 points on cells about the mode, halved where they need it. Of two
    neighbours, the second is integrated at each point of the first. A gamma variable is integrated
    over its logarithm, a beta variable over its log odds. A density of several modes is found if a
    scan of the cavity, 8 standard deviations to each side, sees them all. One variable takes some
    200 evaluations, two some 40,000.
    """

    tol: float = 1e-9
    evaluations: int = 1_000_000
    reasons: ClassVar[tuple[str, ...]] = (
        "",
        "log_t is -inf, infinite or NaN all over the cavities",
        "the integral has no end: the tilted density does not fall off",
        "the integral is not found with the evaluations allowed, or log_t is NaN somewhere",
    )

    def __post_init__(self) -> None:
        _checks.freeze(
            self,
            tol=_checks.number("tol", self.tol, least=1e-13, most=1e-2),
            evaluations=_checks.integer("evaluations", self.evaluations, least=1000),
        )

    def refuses(self, families: tuple[str, ...]) -> str | None:
        if len(families) > 2:
            return (
                f"scheme is 'quadrature' for {len(families)} neighbours; allowed: 1 or 2, or "
                "scheme='importance' or 'laplace'"
            )
        return None

    def numbers(self, neighbours: int) -> int:
        return 400 if neighbours == 1 else 4_000

    def fit_some(self, tilted: Tilted, cavities: FactorCavities) -> Projections:
        (where, *_), centres, widths, sure = located(tilted, cavities)
        if len(tilted.kinds) == 1:
            log_z, means, reason = over_one(
                tilted, cavities, where, centres[:, 0], widths[:, 0], self.tol, self.evaluations
            )
        else:
            # the log density of the first is that of both, integrated over the second
            where = where._replace(top=where.top + np.log(widths[:, 1]))
            log_z, means, reason = self._over_two(tilted, cavities, where, centres, widths, sure)
        targets = []
        for j, kind in enumerate(tilted.kinds):
            units = kind.units(widths[:, j])
            first, second = means[:, 2 * j] * units[0], means[:, 2 * j + 1] * units[1]
            targets.append(kind.target(first, second, centres[:, j]))
        return Projections(np.where(reason == 0, log_z, np.nan), tuple(targets), reason)

    def _over_two(
        self,
        tilted: Tilted,
        cavities: FactorCavities,
        where: Range,
        centres: Array,
        widths: Array,
        sure: NDArray[np.bool_],
    ) -> Sums:
        """Integrals over both variables, the second at each point of the first."""
        one = tilted.kinds[0]
        nothing = np.where(sure, where.top - 2.0 * NOTHING, -np.inf)
        most = math.isqrt(self.evaluations)

        def columns(u: Array, rows: Indices) -> tuple[Array, list[Array]]:
            c, p = u.shape
            at, first, sums = np.repeat(rows, p), u.ravel(), []
            for part in pieces(len(at), 500, MOST_NUMBERS):
                of = at[part]
                inner, second = Slice(tilted, one.x(first[part])), second_cavities(cavities, of)
                (within,), *_ = located(inner, second)
                about = centres[of, 1], widths[of, 1]
                # a tenth of the tolerance of the outer integral
                sums.append(over_one(inner, second, within, *about, 0.1 * self.tol, most))
            log_z, means, reason = map(np.concatenate, zip(*sums, strict=True))
            log_z += one.log_density(cavities.messages[0][at], first)
            # an integral that is not found is NaN, but where it does not count
            gone = (reason == 1) | ((reason == 3) & (log_z < nothing[at]))
            log_z = np.where(gone, -np.inf, np.where(reason == 0, log_z, np.nan))
            own = integrands(one, u, centres[rows, 0], widths[rows, 0])
            return log_z.reshape(c, p), [*own, *means.T.reshape(2, c, p)]

        poor = np.flatnonzero(~sure & np.isfinite(where.top))
        if len(poor):
            where = scanned(columns, where, poor, *one.location(cavities.messages[0]))
            nothing[poor] = where.top[poor] - 2.0 * NOTHING
        return integrals(columns, where, 4, self.tol, most)


def over_one(
    tilted: Tilted,
    cavities: FactorCavities,
    where: Range,
    centre: Array,
    width: Array,
    tol: float,
    most: int,
) -> Sums:
    """Integrals of densities of one variable, and means of its integrands over their units."""

    def columns(u: Array, rows: Indices) -> tuple[Array, list[Array]]:
        value = tilted.at_points(u[:, :, None], cavities.select(rows))
        return value, integrands(tilted.kinds[0], u, centre[rows], width[rows])

    return integrals(columns, where, 2, tol, most)


class Slice(Tilted):
    """A density of two variables as one of the second, where the first is x (m,).

    The place of a row is that of its x: it goes along where rows are selected or repeated.
    """

    def __init__(self, tilted: Tilted, x: Array) -> None:
        super().__init__((tilted.kinds[1].name,), tilted.function, name=tilted.name)
        self.first = x

    def log_t(self, u: Array, rows: FactorRows) -> Array:
        both = np.column_stack([self.first[rows.rows], self.x(u)])
        return called(self.name, self.function, both, rows)


def second_cavities(cavities: FactorCavities, which: Indices) -> FactorCavities:
    """Cavities of the second variable, numbered as the rows of a slice are."""
    part = cavities.select(which)
    return FactorCavities(
        part.messages[1:],
        part.flat[:, 1:],
        part.start[:, 1:],
        FactorRows(part.rows.data, np.arange(part.n)),
        part.power,
    )


def integrands(kind: type[Scalar], u: Array, centre: Array, width: Array) -> list[Array]:
    """The two functions whose means give the projection, in units, at points (c, p)."""
    pair = kind.integrands(u, centre[:, None])
    return [f / unit for f, unit in zip(pair, kind.units(width[:, None]), strict=True)]


def located(
    tilted: Tilted, cavities: FactorCavities
) -> tuple[list[Range], Array, Array, NDArray[np.bool_]]:
    """An interval of each variable, centres and widths (m, k), and whether they are at a mode."""
    k = len(tilted.kinds)
    count, tries = SCAN[k - 1], (HASTY, LESS)[k - 1]
    centre, spread = tilted.location(cavities)
    axis = np.linspace(-SPAN, SPAN, count)
    grid = np.stack(np.meshgrid(*[axis] * k), axis=-1).reshape(-1, k)
    points = np.concatenate(
        [centre[:, None, :] + spread[:, None, :] * grid, cavities.start[:, None, :]], axis=1
    )
    value, best, top = seen(tilted.at_points(points, cavities))
    begin = points[np.arange(cavities.n), best]
    mode = maximum(tilted, cavities, begin, spread, tries)
    ok = mode.converged & (mode.value >= top - 1e-6)
    scaled = mode.curvature * mode.width[:, :, None] * mode.width[:, None, :]
    scaled[~ok] = np.eye(k)
    # narrow ridges are all but singular
    ok &= np.linalg.eigvalsh(scaled)[:, 0] > 1e-14
    scaled[~ok] = np.eye(k)
    variance = np.diagonal(np.linalg.inv(scaled), axis1=1, axis2=2)
    width = np.where(ok[:, None], mode.width * np.sqrt(variance), np.nan)
    middle, top = np.where(ok[:, None], mode.u, begin), np.where(ok, mode.value, top)
    step = axis[1] - axis[0]
    ranges = [
        around(points[..., j], value, spread[:, j], middle[:, j], width[:, j], top, step)
        for j in range(k)
    ]
    return ranges, middle, np.stack([where.width for where in ranges], axis=1), ok


def scanned(
    columns: Columns, where: Range, poor: NDArray[np.intp], centre: Array, spread: Array
) -> Range:
    """Intervals of the first variable by a scan of its own density, where no mode is found."""
    axis = np.linspace(-SPAN, SPAN, SCAN[0])
    points = centre[poor][:, None] + spread[poor][:, None] * axis
    value, best, top = seen(columns(points, poor)[0])
    middle = points[np.arange(len(poor)), best]
    unknown = np.full(len(poor), np.nan)
    scan = around(points, value, spread[poor], middle, unknown, top, axis[1] - axis[0])
    result = Range(*(column.copy() for column in where))
    for column, new in zip(result, scan, strict=True):
        column[poor] = new
    return result

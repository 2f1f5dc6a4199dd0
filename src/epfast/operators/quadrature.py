"""Messages by adaptive quadrature, of factors with one or two neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast._arrays import Array
from epfast.operators.density import Density, differences, parts
from epfast.operators.intervals import (
    NOTHING,
    Columns,
    Range,
    Sums,
    around,
    integrals,
    seen,
)
from epfast.operators.messages import MessageKind
from epfast.operators.tilted import HASTY, LESS, FactorCavities, Projections, Tilted, maximum

#: points along an axis of the scan for the mode, and the widths of the cavity that it spans
SCAN, SCAN_2D, SPAN = 65, 21, 8.0
#: tolerance of inner integrals over that of outer ones
INNER = 0.1


class Cut(NamedTuple):
    """Factors over their last neighbour, at a value of the first where there are two."""

    asked: FactorCavities
    #: (m,). None: of one neighbour
    first: Array | None

    @property
    def n(self) -> int:
        return self.asked.n

    def taken(self, which: Any) -> Cut:
        first = None if self.first is None else self.first[which]
        return Cut(self.asked.taken(which), first)


class Line:
    """The density of factors over their last neighbour."""

    def __init__(self, tilted: Tilted) -> None:
        self.tilted = tilted
        self.kind: MessageKind = tilted.kinds[-1]

    def at_points(self, u: Array, cut: Cut) -> Array:
        """Log density at points (m, p)."""
        point = u[:, :, None]
        if cut.first is not None:
            first = np.broadcast_to(cut.first[:, None, None], point.shape)
            point = np.concatenate([first, point], axis=2)
        return self.tilted.at_points(point, cut.asked)

    def value(self, u: Array, cut: Cut) -> Array:
        """Log density at u (m, 1)."""
        return self.at_points(u, cut)[:, 0]

    def derivatives(self, u: Array, cut: Cut, width: Array) -> tuple[Array, Array, Array]:
        """Value, gradient, minus the Hessian."""
        value, slope, curvature = differences(self.value, u, cut, width)
        return value, slope, -curvature


@dataclass(frozen=True)
class QuadratureMessages:
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
    families: ClassVar[frozenset[str]] = frozenset({"gaussian", "gamma", "beta"})
    takes_flat: ClassVar[bool] = False
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
        """Why factors of such neighbours are refused. None: they are not."""
        if len(families) > 2:
            return (
                f"scheme is 'quadrature' for {len(families)} neighbours; allowed: 1 or 2, or "
                "scheme='importance' or 'laplace'"
            )
        return None

    def fit(
        self, density: Density, families: tuple[str, ...], asked: FactorCavities
    ) -> Projections:
        """Fit the factors of a run."""
        tilted = Tilted(density, families)
        numbers = 400 if len(families) == 1 else 4_000
        with np.errstate(all="ignore"):  # what overflows is a fit that failed
            found = [self._fit(tilted, asked.taken(part)) for part in parts(asked.n, numbers)]
        columns = zip(*(answer.targets for answer in found), strict=True)
        return Projections(
            np.concatenate([answer.log_z for answer in found]),
            tuple(np.concatenate(column) for column in columns),
            np.concatenate([answer.reason for answer in found]),
        )

    def _fit(self, tilted: Tilted, asked: FactorCavities) -> Projections:
        if len(tilted.kinds) == 1:
            cut = Cut(asked, None)
            where = located(Line(tilted), cut)
            centres, widths = where.centre[:, None], where.width[:, None]
            sums = self._over_last(tilted, cut, where, centres, widths, self.tol, self.evaluations)
        else:
            where, centres, widths, sure = located_2d(tilted, asked)
            nothing = np.where(sure, where.top - 2.0 * NOTHING, -np.inf)

            def columns(u: Array, rows: Any) -> tuple[Array, list[Array]]:
                return self._over_second(tilted, asked, centres, widths, nothing, u, rows)

            poor = np.flatnonzero(~sure & np.isfinite(where.top))
            if len(poor):
                where = scanned(columns, where, poor, *tilted.kinds[0].location(asked.messages[0]))
                nothing[poor] = where.top[poor] - 2.0 * NOTHING
            sums = integrals(columns, where, 4, self.tol, math.isqrt(self.evaluations))
        targets = []
        with np.errstate(all="ignore"):
            for j, kind in enumerate(tilted.kinds):
                first, second = sums.means[j].T
                units = kind.units(widths[:, j])
                targets.append(kind.target(first * units[0], second * units[1], centres[:, j]))
        return Projections(
            np.where(sums.reason == 0, sums.log_z, np.nan), tuple(targets), sums.reason
        )

    def _over_last(
        self,
        tilted: Tilted,
        cut: Cut,
        where: Range,
        centres: Array,
        widths: Array,
        tol: float,
        most: int,
    ) -> Sums:
        """Integrals over the last neighbour, and means of its integrands in units of the widths."""
        line = Line(tilted)

        def columns(u: Array, rows: Any) -> tuple[Array, list[Array]]:
            value = line.at_points(u, cut.taken(rows))
            return value, integrands(line.kind, u, centres[rows, -1], widths[rows, -1])

        return integrals(columns, where, 2, tol, most)

    def _over_second(
        self,
        tilted: Tilted,
        asked: FactorCavities,
        centres: Array,
        widths: Array,
        nothing: Array,
        u: Array,
        rows: Any,
    ) -> tuple[Array, list[Array]]:
        """Logs of the integrals over the second variable at points u (c, p) of the first."""
        c, p = u.shape
        at = np.repeat(rows, p)
        found, first, most = [], u.ravel(), math.isqrt(self.evaluations)
        for part in parts(len(at), 500):
            cut, about = (
                Cut(asked.taken(at[part]), first[part]),
                (centres[at[part]], widths[at[part]]),
            )
            where = located(Line(tilted), cut)
            found.append(self._over_last(tilted, cut, where, *about, INNER * self.tol, most))
        reason = np.concatenate([sums.reason for sums in found])
        log_z = np.concatenate([sums.log_z for sums in found])
        # an integral that is not found is NaN, but where it does not count
        gone = (reason == 1) | ((reason == 3) & (log_z < nothing[at]))
        log_z = np.where(gone, -np.inf, np.where(reason == 0, log_z, np.nan)).reshape(c, p)
        means = np.concatenate([sums.means[0] for sums in found]).reshape(c, p, 2)
        own = integrands(tilted.kinds[0], u, centres[rows, 0], widths[rows, 0])
        return log_z, [*own, means[..., 0], means[..., 1]]


def integrands(kind: MessageKind, u: Array, centre: Array, width: Array) -> list[Array]:
    """The two functions whose means give the projection, in units, at points (c, p)."""
    with np.errstate(all="ignore"):
        pair = kind.integrands(u, centre[:, None])
        return [f / unit for f, unit in zip(pair, kind.units(width[:, None]), strict=True)]


def located(line: Line, cut: Cut) -> Range:
    """Mode, width at the mode and interval of integration, per factor."""
    centre, spread = line.kind.location(cut.asked.messages[-1])
    axis = np.linspace(-SPAN, SPAN, SCAN)
    points = np.concatenate(
        [centre[:, None] + spread[:, None] * axis, cut.asked.start[:, -1:]], axis=1
    )
    value, best, top = seen(line.at_points(points, cut))
    begin = points[np.arange(len(best)), best]
    mode = maximum(line, cut, begin[:, None], spread[:, None], HASTY)
    ok = mode.found & (mode.value >= top - 1e-6)
    width = np.where(ok, 1.0 / np.sqrt(np.where(ok, mode.curvature[:, 0, 0], 1.0)), np.nan)
    middle, top = np.where(ok, mode.u[:, 0], begin), np.where(ok, mode.value, top)
    return around(points, value, spread, middle, width, top, axis[1] - axis[0])


def scanned(
    columns: Columns, where: Range, poor: NDArray[np.intp], centre: Array, spread: Array
) -> Range:
    """Intervals of the first variable by a scan of its own density, where no mode is found."""
    axis = np.linspace(-SPAN, SPAN, SCAN)
    points = centre[poor][:, None] + spread[poor][:, None] * axis
    value, best, top = seen(columns(points, poor)[0])
    middle = points[np.arange(len(poor)), best]
    unknown = np.full(len(poor), np.nan)
    found = around(points, value, spread[poor], middle, unknown, top, axis[1] - axis[0])
    result = Range(*(column.copy() for column in where))
    for column, new in zip(result, found, strict=True):
        column[poor] = new
    return result


def located_2d(
    tilted: Tilted, asked: FactorCavities
) -> tuple[Range, Array, Array, NDArray[np.bool_]]:
    """An interval of the first variable, centres and widths of both (m, 2). If by the mode."""
    m = asked.n
    moments = [kind.location(eta) for kind, eta in zip(tilted.kinds, asked.messages, strict=True)]
    centre = np.stack([pair[0] for pair in moments], axis=1)
    spread = np.stack([pair[1] for pair in moments], axis=1)
    axis = np.linspace(-SPAN, SPAN, SCAN_2D)
    grid = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    points = np.concatenate(
        [centre[:, None, :] + spread[:, None, :] * grid, asked.start[:, None, :]], axis=1
    )
    value, best, top = seen(tilted.at_points(points, asked))
    begin = points[np.arange(m), best]
    mode = maximum(tilted, asked, begin, spread, LESS)
    ok = mode.found & (mode.value >= top - 1e-6)
    scaled = mode.curvature * mode.width[:, :, None] * mode.width[:, None, :]
    scaled[~ok] = np.eye(2)
    # narrow ridges are all but singular
    ok &= np.linalg.eigvalsh(scaled)[:, 0] > 1e-14
    scaled[~ok] = np.eye(2)
    variance = np.diagonal(np.linalg.inv(scaled), axis1=1, axis2=2)
    width = np.where(ok[:, None], mode.width * np.sqrt(variance), np.nan)
    middle, top = np.where(ok[:, None], mode.u, begin), np.where(ok, mode.value, top)
    step = axis[1] - axis[0]
    both = [
        around(points[..., j], value, spread[:, j], middle[:, j], width[:, j], top, step)
        for j in range(2)
    ]
    widths = np.stack([where.width for where in both], axis=1)
    # the log density of the first is that of both, integrated over the second
    return both[0]._replace(top=top + np.log(widths[:, 1])), middle, widths, ok

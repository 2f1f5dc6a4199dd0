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
    Interval,
    around,
    integrals,
    seen,
)
from epfast.operators.messages import MessageKind
from epfast.operators.tilted import HASTY, LESS, Answer, Asked, Tilted, maximum

#: points along an axis of the scan for the mode, and the widths of the cavity that it spans
SCAN, SCAN_2D, SPAN = 65, 21, 8.0
#: tolerance of inner integrals over that of outer ones
INNER = 0.1


class Line:
    """The density of a factor with one neighbour."""

    def __init__(self, tilted: Tilted) -> None:
        self.tilted = tilted
        self.kind: type[MessageKind] = tilted.kinds[0]

    def moments(self, asked: Asked) -> tuple[Array, Array]:
        """Centre and width of the cavity."""
        return self.kind.location(asked.messages[0])

    def start(self, asked: Asked) -> Array:
        """A point that the scan must not miss."""
        return asked.start[:, 0]

    def at_points(self, u: Array, asked: Asked) -> Array:
        """Log density at points (m, p)."""
        return self.tilted.at_points(u[:, :, None], asked)

    def value(self, u: Array, asked: Asked) -> Array:
        """Log density at u (m, 1)."""
        return self.tilted.value(u, asked)

    def derivatives(self, u: Array, asked: Asked, width: Array) -> tuple[Array, Array, Array]:
        """Value, gradient, minus the Hessian."""
        return self.tilted.derivatives(u, asked, width)


class Cut(NamedTuple):
    """Factors with two neighbours, at a value of the first."""

    asked: Asked
    #: (m,)
    first: Array

    @property
    def n(self) -> int:
        return self.asked.n

    def taken(self, which: Any) -> Cut:
        return Cut(self.asked.taken(which), self.first[which])


class Section:
    """The density of a factor with two neighbours over the second, given the first."""

    def __init__(self, tilted: Tilted) -> None:
        self.tilted = tilted
        self.kind: type[MessageKind] = tilted.kinds[1]

    def moments(self, cut: Cut) -> tuple[Array, Array]:
        return self.kind.location(cut.asked.messages[1])

    def start(self, cut: Cut) -> Array:
        return cut.asked.start[:, 1]

    def at_points(self, u: Array, cut: Cut) -> Array:
        pairs = np.stack([np.broadcast_to(cut.first[:, None], u.shape), u], axis=-1)
        return self.tilted.at_points(pairs, cut.asked)

    def value(self, u: Array, cut: Cut) -> Array:
        return self.at_points(u, cut)[:, 0]

    def derivatives(self, u: Array, cut: Cut, width: Array) -> tuple[Array, Array, Array]:
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

    def fit(self, density: Density, families: tuple[str, ...], asked: Asked) -> Answer:
        """Fit the factors of a run."""
        tilted = Tilted(density, families)
        numbers = 400 if len(families) == 1 else 4_000
        with np.errstate(all="ignore"):  # what overflows is a fit that failed
            found = [self._fit(tilted, asked.taken(part)) for part in parts(asked.n, numbers)]
        columns = zip(*(answer.targets for answer in found), strict=True)
        return Answer(
            np.concatenate([answer.log_z for answer in found]),
            tuple(np.concatenate(column) for column in columns),
            np.concatenate([answer.reason for answer in found]),
        )

    def _fit(self, tilted: Tilted, asked: Asked) -> Answer:
        if len(tilted.kinds) == 1:
            line = Line(tilted)
            where = located(line, asked)
            centres = where.centre[:, None]

            def columns(u: Array, rows: Any) -> tuple[Array, list[Array]]:
                value = line.at_points(u, asked.taken(rows))
                return value, integrands(tilted.kinds[0], u, centres[rows, 0], widths[rows, 0])

            widths = where.width[:, None]
        else:
            where, centres, widths, sure = located_2d(tilted, asked)
            nothing = np.where(sure, where.top - 2.0 * NOTHING, -np.inf)

            def columns(u: Array, rows: Any) -> tuple[Array, list[Array]]:
                return self._over_second(tilted, asked, centres, widths, nothing, u, rows)

            poor = np.flatnonzero(~sure & np.isfinite(where.top))
            if len(poor):
                where = scanned(columns, where, poor, *tilted.kinds[0].location(asked.messages[0]))
                nothing[poor] = where.top[poor] - 2.0 * NOTHING

        d = len(tilted.kinds)
        sums = integrals(columns, where, 2 * d, self.tol, self._most(d))
        targets = []
        with np.errstate(all="ignore"):
            for j, kind in enumerate(tilted.kinds):
                first, second = sums.means[j].T
                units = kind.units(widths[:, j])
                targets.append(kind.target(first * units[0], second * units[1], centres[:, j]))
        return Answer(np.where(sums.reason == 0, sums.log_z, np.nan), tuple(targets), sums.reason)

    def _most(self, d: int) -> int:
        """Evaluations of an integral over one of d variables."""
        return self.evaluations if d == 1 else math.isqrt(self.evaluations)

    def _over_second(
        self,
        tilted: Tilted,
        asked: Asked,
        centres: Array,
        widths: Array,
        nothing: Array,
        u: Array,
        rows: Any,
    ) -> tuple[Array, list[Array]]:
        """Logs of the integrals over the second variable at points u (c, p) of the first."""
        c, p = u.shape
        at = np.repeat(rows, p)
        section, found = Section(tilted), []
        first = u.ravel()
        for part in parts(len(at), 500):
            cut = Cut(asked.taken(at[part]), first[part])
            among = at[part]

            def columns(
                inner: Array, which: Any, cut: Cut = cut, among: Any = among
            ) -> tuple[Array, list[Array]]:
                chosen = among[which]
                value = section.at_points(inner, cut.taken(which))
                return value, integrands(section.kind, inner, centres[chosen, 1], widths[chosen, 1])

            where = located(section, cut)
            found.append(integrals(columns, where, 2, INNER * self.tol, self._most(2)))
        reason = np.concatenate([sums.reason for sums in found])
        log_z = np.concatenate([sums.log_z for sums in found])
        # an integral that is not found is NaN, but where it does not count
        gone = (reason == 1) | ((reason == 3) & (log_z < nothing[at]))
        log_z = np.where(gone, -np.inf, np.where(reason == 0, log_z, np.nan)).reshape(c, p)
        means = np.concatenate([sums.means[0] for sums in found]).reshape(c, p, 2)
        own = integrands(tilted.kinds[0], u, centres[rows, 0], widths[rows, 0])
        return log_z, [*own, means[..., 0], means[..., 1]]


def integrands(kind: type[MessageKind], u: Array, centre: Array, width: Array) -> list[Array]:
    """The two functions whose means give the projection, in units, at points (c, p)."""
    with np.errstate(all="ignore"):
        pair = kind.integrands(u, centre[:, None])
        return [f / unit for f, unit in zip(pair, kind.units(width[:, None]), strict=True)]


def located(line: Line | Section, asked: Any) -> Interval:
    """The mode of each, what the density varies on there, and an interval about what is seen."""
    centre, spread = line.moments(asked)
    axis = np.linspace(-SPAN, SPAN, SCAN)
    points = np.concatenate(
        [centre[:, None] + spread[:, None] * axis, line.start(asked)[:, None]], axis=1
    )
    value, best, top = seen(line.at_points(points, asked))
    begin = points[np.arange(len(best)), best]
    mode = maximum(line, asked, begin[:, None], spread[:, None], HASTY)
    ok = mode.found & (mode.value >= top - 1e-6)
    width = np.where(ok, 1.0 / np.sqrt(np.where(ok, mode.curvature[:, 0, 0], 1.0)), np.nan)
    middle, top = np.where(ok, mode.u[:, 0], begin), np.where(ok, mode.value, top)
    return around(points, value, spread, middle, width, top, axis[1] - axis[0])


def scanned(
    columns: Columns, where: Interval, poor: NDArray[np.intp], centre: Array, spread: Array
) -> Interval:
    """Intervals of the first variable by a scan of its own density, where no mode is found."""
    axis = np.linspace(-SPAN, SPAN, SCAN)
    points = centre[poor][:, None] + spread[poor][:, None] * axis
    value, best, top = seen(columns(points, poor)[0])
    middle = points[np.arange(len(poor)), best]
    unknown = np.full(len(poor), np.nan)
    found = around(points, value, spread[poor], middle, unknown, top, axis[1] - axis[0])
    result = Interval(*(column.copy() for column in where))
    for column, new in zip(result, found, strict=True):
        column[poor] = new
    return result


def located_2d(tilted: Tilted, asked: Asked) -> tuple[Interval, Array, Array, NDArray[np.bool_]]:
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

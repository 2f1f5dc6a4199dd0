"""Tilted densities t^a x cavities of factors of the user's own, in coordinates without limits.

What the user's functions return is checked. It is differentiated where no derivatives are given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks
from epfast._arrays import Array, UserFunction, Which, pieces
from epfast.families import SCALARS

#: steps of central differences, in units of the width of what is differentiated: with these a sixth
#: order rule is right to about 1e-11, as rounding is
STEP = 0.01
#: weights of the steps 1, 2, 3 in a first and in a second derivative, sixth order
FIRST = np.array([3.0 / 4.0, -3.0 / 20.0, 1.0 / 60.0])
SECOND = np.array([3.0 / 2.0, -3.0 / 20.0, 1.0 / 90.0])
#: numbers of an array that is built at once
MOST_NUMBERS = 1 << 18
#: a function of x (n, k) and of the factors to which the rows belong
Function = Callable[[Array, "FactorRows"], Array]


class FactorRows(NamedTuple):
    """Factors of a batch that are fitted at once."""

    #: data keywords, with their rows first
    data: dict[str, Array]
    #: (m,), places of the factors when they were added
    rows: NDArray[np.intp]

    @property
    def n(self) -> int:
        return len(self.rows)

    def select(self, which: Which) -> FactorRows:
        return FactorRows(
            {name: value[which] for name, value in self.data.items()}, self.rows[which]
        )


def called(
    name: str, function: UserFunction, x: Array, rows: FactorRows, *neighbours: int
) -> Array:
    """What a function of the user's returns at x (n, k), see :func:`row_values`."""
    # the arrays of the call are its own: what it writes into them is lost
    with np.errstate(all="ignore"):
        value = function(*[column.copy() for column in x.T], **rows.data)
    return row_values(name, value, len(x), *neighbours)


def row_values(
    name: str, value: ArrayLike, n: int, *neighbours: int, within: bool = False
) -> Array:
    """What a function of the user's returned for n rows, (n, ...).

    That is numbers (n,), or a sequence of such results for each of the neighbours. Within a
    sequence one number may stand for all rows.
    """
    if neighbours:
        k, *rest = neighbours
        if (
            not isinstance(value, list | tuple | np.ndarray)
            or getattr(value, "ndim", 1) == 0
            or len(value) != k
        ):
            raise ValueError(
                f"{name} returned {_checks.describe(value)}; allowed: a sequence of {k}, one for "
                "each neighbour"
            )
        return np.stack([row_values(name, part, n, *rest, within=True) for part in value], axis=1)
    given = np.asarray(value)
    if given.shape not in ([(n,), ()] if within else [(n,)]):
        raise ValueError(
            f"{name} returned shape {given.shape} for rows of shape ({n},); allowed: a number for "
            "each row"
        )
    if given.dtype.kind not in "fiub" or (given.dtype.kind == "f" and given.itemsize < 8):
        raise TypeError(
            f"{name} returned numbers of dtype {given.dtype}; allowed: float64, whose digits the "
            "fit needs"
        )
    return np.array(np.broadcast_to(given, (n,)), dtype=np.float64)


def repeated(rows: FactorRows, times: int) -> FactorRows:
    """Each factor as often in a row."""
    return rows if times == 1 else rows.select(np.repeat(np.arange(rows.n), times))


def _stencil(
    f: Function, x: Array, rows: FactorRows, width: Array, directions: Array
) -> tuple[Array, Array, Array]:
    """Steps h (m, k), f at x, and at x +- 1, 2, 3 steps in each of p directions.

    The last are (m, p, 3, 2, ...). A call of f serves all of many rows.
    """
    m, k = x.shape
    h = np.maximum(STEP * width, 1e-13 * np.abs(x))
    signs = np.ravel(np.arange(1.0, 4.0)[:, None] * [1.0, -1.0])
    grid = np.concatenate([np.zeros((1, k)), *(signs[:, None] * d for d in directions)])
    values = []
    for part in pieces(m, len(grid) * k, MOST_NUMBERS):
        points = x[part, None, :] + grid * h[part, None, :]
        values.append(f(points.reshape(-1, k), repeated(rows.select(part), len(grid))))
    found = np.concatenate(values)
    found = found.reshape(m, len(grid), *found.shape[1:])
    sides = found[:, 1:].reshape(m, len(directions), 3, 2, *found.shape[2:])
    return h, found[:, 0], sides


def differences(
    f: Function, x: Array, rows: FactorRows, width: Array
) -> tuple[Array, Array, Array]:
    """Value (m,), gradient (m, k) and Hessian (m, k, k) of f at x, by central differences.

    width: (m, k), on which f varies. Mixed derivatives are second ones along the two diagonals.
    """
    m, k = x.shape
    pairs = [(i, j) for i in range(k) for j in range(i)]
    directions = np.zeros((k + 2 * len(pairs), k))
    directions[:k] = np.eye(k)
    for at, (i, j) in enumerate(pairs):
        directions[k + 2 * at, [i, j]] = 1.0
        directions[k + 2 * at + 1, [i, j]] = 1.0, -1.0
    h, middle, sides = _stencil(f, x, rows, width, directions)
    with np.errstate(all="ignore"):
        slope = (sides[..., 0] - sides[..., 1])[:, :k] @ FIRST
        sides -= middle[:, None, None, None]
        second = sides.sum(axis=-1) @ SECOND
        curvature = np.zeros((m, k, k))
        curvature[:, range(k), range(k)] = second[:, :k]
        for at, (i, j) in enumerate(pairs):
            mixed = 0.25 * (second[:, k + 2 * at] - second[:, k + 2 * at + 1])
            curvature[:, i, j] = curvature[:, j, i] = mixed
        return middle, slope / h, curvature / (h[:, :, None] * h[:, None, :])


def slope_differences(f: Function, x: Array, rows: FactorRows, width: Array) -> tuple[Array, Array]:
    """A gradient f (m, k), and its derivative (m, k, k), symmetric."""
    h, middle, sides = _stencil(f, x, rows, width, np.eye(x.shape[1]))
    with np.errstate(all="ignore"):
        slopes = np.einsum("s,misj->mij", FIRST, sides[:, :, :, 0] - sides[:, :, :, 1])
        slopes /= h[:, :, None]
        return middle, np.asarray(0.5 * (slopes + slopes.transpose(0, 2, 1)))


class FactorCavities(NamedTuple):
    """Factors to fit: what comes in from their neighbours."""

    #: natural parameters of the cavities, (m, 2) for each neighbour
    messages: tuple[Array, ...]
    #: (m, k), Gaussian cavities without a distribution, whose density counts as 1
    flat: NDArray[np.bool_]
    #: (m, k), where to begin: means of the beliefs, or of the cavities
    start: Array
    rows: FactorRows
    power: float

    @property
    def n(self) -> int:
        return self.rows.n

    def select(self, which: Which) -> FactorCavities:
        return FactorCavities(
            tuple(eta[which] for eta in self.messages),
            self.flat[which],
            self.start[which],
            self.rows.select(which),
            self.power,
        )


class Projections(NamedTuple):
    """Fits of factors. Rows that failed have NaN."""

    #: (m,), log of the integral of t^a times the normalised cavities
    log_z: Array
    #: projections of the tilted marginals, natural parameters (m, k) for each neighbour
    targets: tuple[Array, ...]
    #: (m,), 0: fine. Else the number of a reason of the scheme
    reason: NDArray[np.intp]


class LogDensity(Protocol):
    """A log density of factors in coordinates u (m, k), as :class:`Tilted` is one."""

    def value(self, u: Array, cavities: FactorCavities) -> Array: ...

    def derivatives(
        self, u: Array, cavities: FactorCavities, width: Array
    ) -> tuple[Array, Array, Array]: ...


class Tilted:
    """Log of t^a times the cavities, as a function of u (m, k). log t is a function of the user's.

    gradient and hessian, where they are given, return a sequence of k arrays, and k of k. name: of
    the argument that log_t was given as.
    """

    def __init__(
        self,
        families: tuple[str, ...],
        log_t: UserFunction,
        gradient: UserFunction | None = None,
        hessian: UserFunction | None = None,
        name: str = "log_t",
    ) -> None:
        self.function, self.gradient, self.hessian, self.name = log_t, gradient, hessian, name
        self.kinds = tuple(SCALARS[name] for name in families)
        #: whether derivatives of the user's serve as they are
        self.straight = all(name == "gaussian" for name in families)

    def location(self, cavities: FactorCavities) -> tuple[Array, Array]:
        """Centres and widths of the cavities, (m, k) each."""
        each = [kind.location(eta) for kind, eta in zip(self.kinds, cavities.messages, strict=True)]
        centre, spread = zip(*each, strict=True)
        return np.stack(centre, axis=1), np.stack(spread, axis=1)

    def x(self, u: Array) -> Array:
        return np.stack([kind.x(u[:, j]) for j, kind in enumerate(self.kinds)], axis=1)

    def log_t(self, u: Array, rows: FactorRows) -> Array:
        return called(self.name, self.function, self.x(u), rows)

    def log_cavities(self, u: Array, cavities: FactorCavities) -> Array:
        """Sum of the log densities of the cavities at u (m, k), or (m, p, k)."""
        total = np.zeros(u.shape[:-1])
        with np.errstate(all="ignore"):
            for j, (kind, eta) in enumerate(zip(self.kinds, cavities.messages, strict=True)):
                value = kind.log_density(eta, u[..., j])
                flat = cavities.flat[:, j]
                value[flat] = 0.0
                total += value
        return total

    def value(self, u: Array, cavities: FactorCavities) -> Array:
        """At u (m, k)."""
        return cavities.power * self.log_t(u, cavities.rows) + self.log_cavities(u, cavities)

    def at_points(self, u: Array, cavities: FactorCavities) -> Array:
        """At points u (m, p, k) of each factor, (m, p). NaN of t is density 0 nowhere."""
        m, p, k = u.shape
        log_t = self.log_t(u.reshape(m * p, k), repeated(cavities.rows, p))
        return cavities.power * log_t.reshape(m, p) + self.log_cavities(u, cavities)

    def factor(self, u: Array, rows: FactorRows, width: Array) -> tuple[Array, Array, Array]:
        """log t, its gradient (m, k) and Hessian (m, k, k), by the user's functions or steps."""
        if self.gradient is None or not self.straight:
            value, slope, curvature = differences(self.log_t, u, rows, width)
        elif self.hessian is None:
            return self.log_t(u, rows), *slope_differences(self.slopes, u, rows, width)
        else:
            value, slope = self.log_t(u, rows), self.slopes(u, rows)
        if self.hessian is not None and self.straight:
            k = u.shape[1]
            full = called("hessian", self.hessian, u, rows, k, k)
            curvature = 0.5 * (full + full.transpose(0, 2, 1))
        return value, slope, curvature

    def slopes(self, x: Array, rows: FactorRows) -> Array:
        """The user's gradient, (n, k)."""
        assert self.gradient is not None
        return called("gradient", self.gradient, x, rows, x.shape[1])

    def derivatives(
        self, u: Array, cavities: FactorCavities, width: Array
    ) -> tuple[Array, Array, Array]:
        """Value (m,), gradient (m, k) and minus the Hessian (m, k, k)."""
        a = cavities.power
        value, slope, curvature = self.factor(u, cavities.rows, width)
        value = a * value + self.log_cavities(u, cavities)
        slope, curvature = a * slope, -a * curvature
        for j, (kind, eta) in enumerate(zip(self.kinds, cavities.messages, strict=True)):
            first, second = kind.derivatives(eta, u[:, j])
            slope[:, j] += first
            curvature[:, j, j] -= second
        return value, slope, curvature


class MessageScheme:
    """How messages of factors are found: projections of tilted densities, some at a time."""

    families: ClassVar[frozenset[str]] = frozenset(SCALARS)
    #: whether cavities of Gaussians may be flat
    takes_flat: ClassVar[bool] = False
    #: why a fit failed, by the number in a projection
    reasons: ClassVar[tuple[str, ...]]

    def refuses(self, families: tuple[str, ...]) -> str | None:
        """Why factors of such neighbours are refused. None: they are not."""
        return None

    def numbers(self, neighbours: int) -> int:
        """How many numbers the fit of a factor builds at once."""
        raise NotImplementedError

    def fit_some(self, tilted: Tilted, cavities: FactorCavities) -> Projections:
        """Fit factors, so few that no large arrays are built."""
        raise NotImplementedError

    def fit(self, tilted: Tilted, cavities: FactorCavities) -> Projections:
        """Fit the factors of a run."""
        some = pieces(cavities.n, self.numbers(len(tilted.kinds)), MOST_NUMBERS)
        with np.errstate(all="ignore"):  # what overflows is a fit that failed
            projections = [self.fit_some(tilted, cavities.select(part)) for part in some]
        log_z, targets, reason = zip(*projections, strict=True)
        columns = map(np.concatenate, zip(*targets, strict=True))
        return Projections(np.concatenate(log_z), tuple(columns), np.concatenate(reason))


class Mode(NamedTuple):
    """Maxima of tilted densities."""

    #: (m, k)
    u: Array
    #: (m,)
    value: Array
    #: (m, k, k), minus the Hessian
    curvature: Array
    #: (m, k), on which the density varies there
    width: Array
    #: (m,), whether it is a maximum
    converged: NDArray[np.bool_]
    #: (m,), whether t and its derivatives are numbers there
    finite: NDArray[np.bool_]


#: Newton steps, and halvings of each. And where there is a way out without a mode
PATIENT, LESS, HASTY = (100, 50), (40, 20), (20, 12)
#: smallest eigenvalue of a Newton step over the largest, in units of the widths. And if positive
FLOOR, RIDGE = 1e-6, 1e-11
#: square of the length of a step, in standard deviations, at which it is at the maximum
CLOSE = 1e-22
#: and where rounding may keep it: from here on steps are taken without a look at the value
NEAR = 1e-10


def widths(curvature: Array, before: Array) -> Array:
    """On which the density varies along each axis, by its curvature."""
    diagonal = np.abs(np.diagonal(curvature, axis1=1, axis2=2))
    with np.errstate(all="ignore"):
        width = 1.0 / np.sqrt(diagonal)
    return np.where(np.isfinite(width) & (width < 1e3 * before), width, before)


def maximum(
    tilted: LogDensity,
    cavities: FactorCavities,
    start: Array,
    width: Array,
    tries: tuple[int, int] = PATIENT,
) -> Mode:
    """Modes by Newton steps: eigenvalues are made positive, steps halved until the value grows."""
    m = len(start)
    u, width = start.copy(), width.copy()
    value, slope, curvature = tilted.derivatives(u, cavities, width)
    converged, finite = np.zeros(m, dtype=bool), np.ones(m, dtype=bool)
    decrement = np.full(m, np.inf)
    going = np.arange(m)
    for _ in range(tries[0]):
        fine = np.isfinite(value[going]) & np.isfinite(slope[going]).all(axis=1)
        fine &= np.isfinite(curvature[going]).all(axis=(1, 2))
        finite[going[~fine]] = False
        going = going[fine]
        if not len(going):
            break
        w = widths(curvature[going], width[going])
        values, vectors = np.linalg.eigh(curvature[going] * w[:, :, None] * w[:, None, :])
        sizes = np.abs(values)
        most = np.maximum(sizes.max(axis=1, keepdims=True), FLOOR)
        # along a ridge the curvature is small, yet right
        sizes = np.maximum(sizes, np.where(values > 0.0, RIDGE, FLOOR) * most)
        with np.errstate(all="ignore"):  # a step that overflows is halved
            along = np.einsum("mij,mi->mj", vectors, slope[going] * w)
            step = np.einsum("mij,mj->mi", vectors, along / sizes) * w
            gain = (along * along / sizes).sum(axis=1)
        maximal = values[:, 0] > 0.0
        # at the maximum, or as near as rounding of the derivatives lets steps come
        stalled = (gain < NEAR) & (gain > 0.25 * decrement[going])
        arrived = maximal & ((gain < CLOSE) | stalled)
        # widths must have settled, too: differences are taken on them
        settled = np.asarray((np.abs(np.log(w / width[going])) < 0.5).all(axis=1))
        done = arrived & settled
        converged[going[done]] = True
        # the last step is too short for derivatives to change
        last = done & (gain < CLOSE)
        u[going[last]] += step[last]
        width[going] = w
        decrement[going] = gain
        moving, step, gain = going[~done], step[~done], gain[~done]
        if not len(moving):
            break
        part = cavities.select(moving)
        new = _stepped(tilted, part, u[moving], value[moving], step, gain, tries[1])
        # at a kink no step is any good, and none will be
        stuck = (new == u[moving]).all(axis=1) & (gain >= NEAR) & settled[~done]
        u[moving] = new
        moving, part = moving[~stuck], part.select(~stuck)
        if not len(moving):
            break
        value[moving], slope[moving], curvature[moving] = tilted.derivatives(
            u[moving], part, width[moving]
        )
        going = moving
    return Mode(u, value, curvature, width, converged & finite, finite)


def _stepped(
    tilted: LogDensity,
    cavities: FactorCavities,
    u: Array,
    value: Array,
    step: Array,
    gain: Array,
    most: int,
) -> Array:
    """u + step, as long as the value grows. u itself where no step lets it."""
    result = u + step
    left = np.flatnonzero(gain >= NEAR)
    share = 1.0
    for _ in range(most):
        if not len(left):
            break
        with np.errstate(all="ignore"):
            new = tilted.value(result[left], cavities.select(left))
        # NaN is no growth; a value has so many digits
        needed = 1e-4 * share * gain[left] - 1e-15 * np.abs(value[left])
        grown = new - value[left] >= needed
        left = left[~grown]
        share *= 0.5
        result[left] = u[left] + share * step[left]
    result[left] = u[left]
    return result

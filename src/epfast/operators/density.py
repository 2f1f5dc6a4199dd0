"""Log densities of the user's own on rows: what they return is checked, and differentiated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast._arrays import Array

#: steps of central differences, in units of the width of what is differentiated: with these a sixth
#: order rule is right to about 1e-11, as rounding is
STEP = 0.01
#: weights of the steps 1, 2, 3 in a first and in a second derivative, sixth order
FIRST = np.array([3.0 / 4.0, -3.0 / 20.0, 1.0 / 60.0])
SECOND = np.array([3.0 / 2.0, -3.0 / 20.0, 1.0 / 90.0])
#: numbers of an array that is built at once
MOST_NUMBERS = 1 << 18


class FactorRows(NamedTuple):
    """Factors of a batch that are fitted at once."""

    #: data keywords, with their rows first
    data: dict[str, Array]
    #: (m,), places of the factors when they were added
    rows: NDArray[np.intp]

    @property
    def n(self) -> int:
        return len(self.rows)

    def taken(self, which: Any) -> FactorRows:
        return FactorRows(
            {name: value[which] for name, value in self.data.items()}, self.rows[which]
        )


class Density:
    """log t(x_1, ..., x_k) of n rows, by a function of the user's.

    gradient and hessian, where they are given, return a sequence of k arrays, and k of k. name: of
    the argument that log_t was given as.
    """

    def __init__(
        self, log_t: Any, gradient: Any = None, hessian: Any = None, name: str = "log_t"
    ) -> None:
        self.log_t, self.gradient, self.hessian, self.name = log_t, gradient, hessian, name

    def values(self, x: Array, data: dict[str, Array]) -> Array:
        """log t, (n,), at x (n, k). Data has rows for each."""
        return row_values(self.name, self._called(self.log_t, x, data), len(x))

    def slopes(self, x: Array, data: dict[str, Array]) -> Array:
        """The user's gradient, (n, k)."""
        return row_values("gradient", self._called(self.gradient, x, data), *x.shape)

    def curvatures(self, x: Array, data: dict[str, Array]) -> Array:
        """The user's hessian, (n, k, k), symmetric."""
        n, k = x.shape
        full = row_values("hessian", self._called(self.hessian, x, data), n, k, k)
        return np.asarray(0.5 * (full + full.transpose(0, 2, 1)))

    @staticmethod
    def _called(function: Callable[..., Any], x: Array, data: dict[str, Array]) -> Any:
        # the arrays of the call are its own: what it writes into them is lost
        with np.errstate(all="ignore"):
            return function(*[column.copy() for column in x.T], **data)


def row_values(name: str, found: Any, n: int, *neighbours: int) -> Array:
    """What a function of the user's returned for n rows, (n, ...).

    That is numbers (n,), or a sequence of such results for each of the neighbours. Within a
    sequence one number may stand for all rows.
    """
    return _stacked(name, found, n, neighbours, [(n,), ()] if neighbours else [(n,)])


def _stacked(
    name: str, found: Any, n: int, sizes: tuple[int, ...], allowed: list[tuple[int, ...]]
) -> Array:
    if sizes:
        is_sequence = isinstance(found, list | tuple | np.ndarray) and getattr(found, "ndim", 1) > 0
        if not is_sequence or len(found) != sizes[0]:
            raise ValueError(
                f"{name} returned {_checks.describe(found)}; allowed: a sequence of {sizes[0]}, "
                "one for each neighbour"
            )
        return np.stack([_stacked(name, part, n, sizes[1:], allowed) for part in found], axis=1)
    given = np.asarray(found)
    if given.shape not in allowed:
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


#: a function of x (n, k) and of the factors to which the rows belong
Function = Callable[[Array, Any], Array]


def repeated(rows: Any, times: int) -> Any:
    """Each factor as often in a row."""
    return rows if times == 1 else rows.taken(np.repeat(np.arange(rows.n), times))


def _stencil(
    f: Function, x: Array, rows: Any, width: Array, directions: Array
) -> tuple[Array, Array, Array]:
    """Steps h (m, k), f at x, and at x +- 1, 2, 3 steps in each of p directions.

    The last are (m, p, 3, 2, ...). A call of f serves all of many rows.
    """
    m, k = x.shape
    h = np.maximum(STEP * width, 1e-13 * np.abs(x))
    signs = np.ravel(np.arange(1.0, 4.0)[:, None] * [1.0, -1.0])
    grid = np.concatenate([np.zeros((1, k)), *(signs[:, None] * d for d in directions)])
    found = []
    for part in parts(m, len(grid) * k):
        points = x[part, None, :] + grid * h[part, None, :]
        found.append(f(points.reshape(-1, k), repeated(rows.taken(part), len(grid))))
    values = np.concatenate(found)
    values = values.reshape(m, len(grid), *values.shape[1:])
    sides = values[:, 1:].reshape(m, len(directions), 3, 2, *values.shape[2:])
    return h, values[:, 0], sides


def differences(f: Function, x: Array, rows: Any, width: Array) -> tuple[Array, Array, Array]:
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


def slope_differences(f: Function, x: Array, rows: Any, width: Array) -> tuple[Array, Array]:
    """A gradient f (m, k), and its derivative (m, k, k), symmetric."""
    h, middle, sides = _stencil(f, x, rows, width, np.eye(x.shape[1]))
    with np.errstate(all="ignore"):
        slopes = np.einsum("s,misj->mij", FIRST, sides[:, :, :, 0] - sides[:, :, :, 1])
        slopes /= h[:, :, None]
        return middle, np.asarray(0.5 * (slopes + slopes.transpose(0, 2, 1)))


def parts(m: int, numbers: int) -> list[slice]:
    """Slices of m rows with so many numbers each, none of which builds large arrays."""
    size = max(1, MOST_NUMBERS // max(1, numbers))
    return [slice(first, min(m, first + size)) for first in range(0, m, size)]

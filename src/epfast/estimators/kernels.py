"""The kernel of a process classifier to which none is given, and those that the core computes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.spatial.distance import cdist, pdist, squareform

from epfast import _checks
from epfast._arrays import Array, slices
from epfast._core.kernel_matrix import KINDS, KernelMatrix, stationary
from epfast._core.thread_pool import ThreadPool
from epfast.estimators.units import ColumnMoments
from epfast.gaussian import KernelColumns

# scikit-learn is there, or epfast.estimators.base would have said so
from sklearn.base import clone  # isort: skip
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, Matern, Product  # isort: skip

#: bounds of the default kernel's variance, and where its search starts
VARIANCES, VARIANCE = (1e-2, 1e5), 4.0
#: largest length scale over the largest distance. With Gaussian noise, whose evidence is exact,
#: this and the largest variance reach so far that a kernel may be that of a line, to the noise
REACH, FAR_REACH, FAR_VARIANCE = 10.0, 1e3, 1e7
#: where searches with the default kernel start: its variance and length scale, over those that it
#: has, and logs added to the scale of noise. Those of noise that is Gaussian: in 234 smooth
#: functions of 20 to 200 rows they reach the highest of 24 ends, and the first six miss 11
LADDER = tuple((1.0, length, noise) for length in (0.25, 1.0, 4.0) for noise in (0.0, -3.0))
FAR_LADDER = ((1e3, 4.0, 0.0), (1.0, 0.25, -6.0), (1e3, 4.0, -3.0), (1e3, 16.0, 0.0))
#: rows from which the default kernel's bounds are taken
ROWS = 1000
#: distance of the log of a hyper-parameter from its bound that counts as none: 0.1 % of itself,
#: more than a search leaves, and far less than the evidence tells apart
CLOSE = 1e-3


class ScaledRBF(RBF):  # type: ignore[misc]
    """An RBF of columns in units of their own: of rows divided by ``column_scale``.

    It is that of length scales ``length_scale * column_scale``, whose ratios are held fixed.

    Parameters
    ----------
    length_scale, length_scale_bounds
        As of scikit-learn's ``RBF``.
    column_scale : float or ndarray of shape (d,), default=1.0
        The unit of each column. It is no hyper-parameter.
    """

    def __init__(
        self,
        length_scale: Any = 1.0,
        length_scale_bounds: Any = (1e-5, 1e5),
        column_scale: Any = 1.0,
    ) -> None:
        super().__init__(length_scale, length_scale_bounds)
        self.column_scale = column_scale

    def __call__(self, X: Any, Y: Any = None, eval_gradient: bool = False) -> Any:
        """The kernel of rows, as of scikit-learn's ``RBF``."""
        rows, others = (
            None if some is None else np.atleast_2d(some) / self.column_scale for some in (X, Y)
        )
        return super().__call__(rows, others, eval_gradient)

    def __repr__(self) -> str:
        scales = ", ".join(f"{one:.3g}" for one in np.atleast_1d(self.column_scale))
        return f"{super().__repr__()[:-1]}, column_scale=[{scales}])"


def default_kernel(
    X: Array, weights: Array | None = None, unit: float = 1.0, far: bool = False
) -> Any:
    """A variance times an RBF of one length scale, in units of the columns, with bounds from X.

    The length scale lies between a tenth of the distance that a tenth of the pairs fall below and
    ten times the largest distance. The search starts at the median distance. Those between rows
    that differ, sorted, so that copies of rows change nothing, nor does their order. unit: of the
    values. far: whether noise is Gaussian.
    """
    scales = ColumnMoments.of(X, weights).scales(centred=True)
    rows = np.unique(X, axis=0)
    rows = rows if len(rows) <= ROWS else rows[np.linspace(0, len(rows) - 1, ROWS).astype(np.intp)]
    distances = pdist(rows / scales)
    distances = distances[np.isfinite(distances)]
    reach, most = (FAR_REACH, FAR_VARIANCE) if far else (REACH, VARIANCES[1])
    low, middle, high = 0.1, 1.0, reach
    if distances.size:
        low, middle = np.quantile(distances, [0.1, 0.5]) * (0.1, 1.0)
        high = reach * distances.max()
    square = unit**2
    bounds = VARIANCES[0] * square, most * square
    shape = ScaledRBF(float(middle), (float(low), float(high)), scales)
    return ConstantKernel(VARIANCE * square, bounds) * shape


def kernel_of(
    given: Any, X: Array, weights: Array | None, unit: float = 1.0, far: bool = False
) -> Any:
    """A kernel of its own for a fit: a copy of the one given, or the default one."""
    if given is None:
        return default_kernel(X, weights, unit, far)
    if not isinstance(given, Kernel):
        raise TypeError(
            f"kernel is {_checks.describe(given)}; allowed: a kernel of "
            "sklearn.gaussian_process.kernels, or None"
        )
    shape = Stationary.of(given)
    if shape is not None and np.size(shape.widths) not in (1, X.shape[1]):
        raise ValueError(
            f"kernel has {np.size(shape.widths)} length scales; allowed: 1, or one for each of the "
            f"{X.shape[1]} columns of X"
        )
    return clone(given)


def ladder(kernel: Any, shifted: Callable[[float], Array], far: bool) -> list[Array]:
    """Where searches with the default kernel start.

    shifted: the free numbers of the loss, with so much added to the logs of scales of noise.
    """
    low, high = kernel.bounds.T
    starts = [
        np.append(np.clip(kernel.theta + np.log(step), low, high), shifted(noise))
        for *step, noise in (FAR_LADDER if far else LADDER)
    ]
    return list({one.tobytes(): one for one in starts}.values())


def at_bounds(kernel: Any) -> list[str]:
    """Each hyper-parameter that is at a bound, in scikit-learn's words. Fixed ones have none."""
    free = [
        (one, dimension)
        for one in kernel.hyperparameters
        if not one.fixed
        for dimension in range(one.n_elements)
    ]
    texts = []
    for (one, dimension), value, ends in zip(free, kernel.theta, kernel.bounds, strict=True):
        low, high = np.isclose(value, ends, atol=CLOSE)
        if ends[0] < ends[1] and (low or high):
            side, change = ("lower", "Decreasing") if low else ("upper", "Increasing")
            texts.append(
                f"The optimal value found for dimension {dimension} of parameter {one.name} is "
                f"close to the specified {side} bound {one.bounds[dimension, 0 if low else 1]}. "
                f"{change} the bound and calling fit again may find a better value."
            )
    return texts


# ---- stationary kernels, from distances ----

#: kind and scale times the square of the length scale, by the order of a Matern kernel. RBF
MATERN = {0.5: ("matern12", 1.0), 1.5: ("matern32", 3.0), 2.5: ("matern52", 5.0)}
SQUARED_EXPONENTIAL = ("rbf", 0.5)


class Distances:
    """The squared distances of some rows over widths of their columns, the last ones asked for."""

    def __init__(self, X: Array) -> None:
        self.X = X
        self._last: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return {"X": self.X, "_last": None}

    def over(self, widths: Any) -> Array:
        """(n (n - 1) / 2,), as pdist orders them."""
        last = self._last
        if last is None or not np.array_equal(last[0], widths):
            last = self._last = widths, pdist(self.X / widths, "sqeuclidean")
        return np.asarray(last[1])


class Stationary(NamedTuple):
    """A height times a stationary kernel of one length scale, or of one for each column."""

    kind: int
    #: of the squared distances of rows over widths
    scale: float
    height: float
    #: of columns, (d,). Their length scales where these are many
    widths: Array | float
    #: "height", "length" or "lengths" for each part of theta
    free: tuple[str, ...]

    @classmethod
    def of(cls, kernel: Any) -> Stationary | None:
        """A kernel of scikit-learn, or None if it is of another kind.

        A constant times an RBF or a Matern kernel of order 1/2, 3/2 or 5/2, or one of these alone.
        """
        parts = [kernel.k1, kernel.k2] if type(kernel) is Product else [kernel]
        constants = [part for part in parts if type(part) is ConstantKernel]
        shapes = [part for part in parts if type(part) in (RBF, ScaledRBF, Matern)]
        if len(shapes) != 1 or len(constants) + 1 != len(parts):
            return None
        (shape,) = shapes
        kind = MATERN.get(shape.nu) if type(shape) is Matern else SQUARED_EXPONENTIAL
        if kind is None:
            return None
        length = np.squeeze(np.asarray(shape.length_scale, dtype=np.float64))
        height = float(constants[0].constant_value) if constants else 1.0
        widths = getattr(shape, "column_scale", 1.0)
        scale = kind[1]
        if shape.anisotropic:
            widths = length * widths
        else:
            scale = kind[1] / float(length) ** 2 if length > 0.0 else math.inf
        if not (0.0 < height < math.inf and 0.0 < scale < math.inf):
            return None
        if not ((np.asarray(widths) > 0.0) & np.isfinite(widths)).all():
            return None
        names = {id(shape): "lengths" if shape.anisotropic else "length"}
        names |= {id(one): "height" for one in constants}
        free = tuple(
            names[id(part)] for part in parts for one in part.hyperparameters if not one.fixed
        )
        return cls(KINDS[kind[0]], scale, height, widths, free)

    def matrix(
        self, n: int, distances: Distances, jitter: float, pool: ThreadPool | None = None
    ) -> KernelMatrix:
        """The kernel of n rows, with a jitter added to the diagonal. O(n^2), by the pool."""
        matrix = KernelMatrix(np.empty((n, n)), np.zeros(n))
        matrix.pool = pool
        matrix.pour(distances.over(self.widths), self.kind, self.scale, self.height)
        matrix.diagonal[:] += jitter
        return matrix

    def by_columns(self, X: Array) -> KernelColumns:
        """The kernel of some rows, by columns."""
        rows = X / self.widths

        def column(i: int) -> Array:
            return self._columns(rows, rows[[i]]).ravel()

        return KernelColumns(np.full(len(X), self.height), column)

    def columns(self, X: Array, pivots: NDArray[np.intp]) -> Array:
        """(n, r), the kernel of all rows with these. O(n r)."""
        rows = X / self.widths
        return self._columns(rows, rows[pivots])

    def _columns(self, rows: Array, others: Array) -> Array:
        squares = cdist(rows, others, "sqeuclidean")
        values = np.empty(squares.shape)
        stationary(squares.ravel(), self.kind, self.scale, values.ravel())
        values *= self.height
        return values

    def slopes(self, X: Array, pivots: NDArray[np.intp]) -> Iterator[Array]:
        """The derivatives of these columns by theta, (n, r) each. O(n r)."""
        rows = X / self.widths
        squares = cdist(rows, rows[pivots], "sqeuclidean")
        both = np.empty((2, *squares.shape))
        stationary(squares.ravel(), self.kind, self.scale, both[0].ravel(), both[1].ravel())
        both *= self.height
        for name in self.free:
            if name != "lengths":
                yield both[("height", "length").index(name)]
                continue
            shares = _shares(both[1], squares)
            for column in rows.T:
                yield shares * np.subtract.outer(column, column[pivots]) ** 2

    def gradient(self, matrix: KernelMatrix, alpha: Array, distances: Distances) -> Array:
        """Of the log evidence of a posterior by theta: (alpha' dK alpha - tr(R dK)) / 2. O(n^2 d).

        matrix: its other triangle holds R.
        """
        squares = distances.over(self.widths)
        by_height, by_length = matrix.contract(alpha, squares, self.kind, self.scale)
        slopes: dict[str, Any] = {"height": 0.5 * by_height, "length": 0.5 * by_length}
        if "lengths" in self.free:
            slopes["lengths"] = self._by_lengths(matrix, alpha, distances)
        return self.height * np.concatenate(
            [np.empty(0), *(np.atleast_1d(slopes[name]) for name in self.free)]
        )

    def _by_lengths(self, matrix: KernelMatrix, alpha: Array, distances: Distances) -> Array:
        """The same by length scales of a height of 1, (d,).

        With x over widths and m_ik = (alpha_i alpha_k - R_ik) s_ik, where s_ik |x_i - x_k|^2 is the
        derivative of k_ik by the logs of all of them, sum_ik m_ik (x_ij - x_kj)^2 / 2 is
        sum_i x_ij^2 sum_k m_ik - sum_ik x_ij m_ik x_kj: one product of a matrix for all columns.
        """
        squares, R = distances.over(self.widths), matrix.array
        values, by_all = np.empty((2, len(squares)))
        stationary(squares, self.kind, self.scale, values, by_all)
        M = squareform(_shares(by_all, squares), checks=False)
        for part in slices(len(M)):  # the other triangle is not read below
            M[part] *= np.multiply.outer(alpha[part], alpha) - R[part]
        x = distances.X / self.widths
        x = np.column_stack([x - x.mean(axis=0), np.ones(len(x))])
        product = linalg.blas.dsymm(1.0, M.T, x, lower=1)
        return np.asarray((x * (x * product[:, -1:] - product)).sum(axis=0)[:-1])


def _shares(by_all: Array, squares: Array) -> Array:
    """Derivatives by all logs of length scales, over squared distances. 0 where these are."""
    return np.divide(by_all, squares, out=np.zeros(squares.shape), where=squares > 0.0)

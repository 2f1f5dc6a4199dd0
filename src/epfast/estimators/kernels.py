"""The kernel of a process classifier to which none is given, and those that the core computes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist, pdist

from epfast import _checks
from epfast._arrays import Array
from epfast._core.kernel_matrix import KINDS, KernelMatrix, stationary
from epfast._core.thread_pool import ThreadPool
from epfast.gaussian import KernelColumns
from epfast.inference.runtime import cached_property

# scikit-learn is there, or epfast.estimators.base would have said so
from sklearn.base import clone  # isort: skip
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, Matern, Product  # isort: skip

#: bounds of the default kernel's variance, and where its search starts
VARIANCES, VARIANCE = (1e-2, 1e5), 4.0
#: largest length scale over the largest distance. With Gaussian noise, whose evidence is exact,
#: this and the largest variance reach so far that a kernel may be that of a line, to the noise
REACH, FAR_REACH, FAR_VARIANCE = 10.0, 1e3, 1e7
#: length scales at which searches with the default kernel start, over the median distance
LADDER = (0.25, 1.0, 4.0)
#: rows from which the default kernel's bounds are taken
ROWS = 1000
#: distance of the log of a hyper-parameter from its bound that counts as none: 0.1 % of itself,
#: more than a search leaves, and far less than the evidence tells apart
CLOSE = 1e-3


def default_kernel(X: Array, unit: float = 1.0, far: bool = False) -> Any:
    """A variance times an RBF of one length scale, with bounds from the rows.

    The length scale lies between a tenth of the distance that a tenth of the pairs fall below and
    ten times the largest distance. The search starts at the median distance. Those between rows
    that differ, sorted, so that copies of rows change nothing, nor does their order. unit: of the
    values. far: whether noise is Gaussian.
    """
    rows = np.unique(X, axis=0)
    rows = rows if len(rows) <= ROWS else rows[np.linspace(0, len(rows) - 1, ROWS).astype(np.intp)]
    distances = pdist(rows)
    distances = distances[np.isfinite(distances)]
    reach, most = (FAR_REACH, FAR_VARIANCE) if far else (REACH, VARIANCES[1])
    low, middle, high = 0.1, 1.0, reach
    if distances.size:
        low, middle = np.quantile(distances, [0.1, 0.5]) * (0.1, 1.0)
        high = reach * distances.max()
    square = unit**2
    bounds = VARIANCES[0] * square, most * square
    return ConstantKernel(VARIANCE * square, bounds) * RBF(float(middle), (float(low), float(high)))


def kernel_of(given: Any, X: Array, unit: float = 1.0, far: bool = False) -> Any:
    """A kernel of its own for a fit: a copy of the one given, or the default one."""
    if given is None:
        return default_kernel(X, unit, far)
    if not isinstance(given, Kernel):
        raise TypeError(
            f"kernel is {_checks.describe(given)}; allowed: a kernel of "
            "sklearn.gaussian_process.kernels, or None"
        )
    return clone(given)


def ladder(kernel: Any) -> list[Array]:
    """Where searches with the default kernel start."""
    variance, scale = kernel.theta
    low, high = kernel.bounds[1]
    return [np.array([variance, np.clip(scale + np.log(step), low, high)]) for step in LADDER]


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


# ---- stationary kernels of one length scale, from distances that are computed once ----

#: kind and scale times the square of the length scale, by the order of a Matern kernel. RBF
MATERN = {0.5: ("matern12", 1.0), 1.5: ("matern32", 3.0), 2.5: ("matern52", 5.0)}
SQUARED_EXPONENTIAL = ("rbf", 0.5)


class Distances:
    """The squared distances of some rows, once they are asked for."""

    def __init__(self, X: Array) -> None:
        self.X = X

    def __getstate__(self) -> dict[str, Any]:
        return {"X": self.X}

    @cached_property
    def squares(self) -> Array:
        """(n (n - 1) / 2,), as pdist orders them."""
        return np.asarray(pdist(self.X, "sqeuclidean"))


class Stationary(NamedTuple):
    """A height times a stationary kernel of one length scale."""

    kind: int
    #: of the squared distances
    scale: float
    height: float
    #: "height" or "length" for each entry of theta
    free: tuple[str, ...]

    @classmethod
    def of(cls, kernel: Any) -> Stationary | None:
        """A kernel of scikit-learn, or None if it is of another kind.

        A constant times an RBF or a Matern kernel of order 1/2, 3/2 or 5/2, or one of these alone.
        """
        parts = [kernel.k1, kernel.k2] if type(kernel) is Product else [kernel]
        constants = [part for part in parts if type(part) is ConstantKernel]
        shapes = [part for part in parts if type(part) in (RBF, Matern) and not part.anisotropic]
        if len(shapes) != 1 or len(constants) + 1 != len(parts):
            return None
        (shape,) = shapes
        kind = MATERN.get(shape.nu) if type(shape) is Matern else SQUARED_EXPONENTIAL
        if kind is None:
            return None
        length = float(np.squeeze(shape.length_scale))
        height = float(constants[0].constant_value) if constants else 1.0
        scale = kind[1] / length**2 if length > 0.0 else math.inf
        if not (0.0 < height < math.inf and 0.0 < scale < math.inf):
            return None
        names = {id(shape): "length"} | {id(one): "height" for one in constants}
        free = tuple(
            names[id(part)] for part in parts for one in part.hyperparameters if not one.fixed
        )
        return cls(KINDS[kind[0]], scale, height, free)

    @classmethod
    def stretched(cls, kernel: Any) -> tuple[Stationary | None, Array | float]:
        """The same of rows over length scales of their columns, and these. None as above."""
        scales = {
            name: value
            for name, value in kernel.get_params().items()
            if name.endswith("length_scale") and np.ndim(value) == 1
        }
        if len(scales) != 1:
            return cls.of(kernel), 1.0
        ((name, widths),) = scales.items()
        round_ = clone(kernel).set_params(**{name: 1.0, f"{name}_bounds": "fixed"})
        return cls.of(round_), np.asarray(widths, dtype=np.float64)

    def matrix(
        self, n: int, distances: Distances, jitter: float, pool: ThreadPool | None = None
    ) -> KernelMatrix:
        """The kernel of n rows, with a jitter added to the diagonal. O(n^2), by the pool."""
        matrix = KernelMatrix(np.empty((n, n)), np.zeros(n))
        matrix.pool = pool
        matrix.pour(distances.squares, self.kind, self.scale, self.height)
        matrix.diagonal[:] += jitter
        return matrix

    def by_columns(self, X: Array) -> KernelColumns:
        """The kernel of some rows, by columns."""

        def column(i: int) -> Array:
            return self.columns(X, np.array([i])).ravel()

        return KernelColumns(np.full(len(X), self.height), column)

    def columns(self, X: Array, pivots: NDArray[np.intp]) -> Array:
        """(n, r), the kernel of all rows with these. O(n r)."""
        squares = cdist(X, X[pivots], "sqeuclidean")
        values = np.empty(squares.shape)
        stationary(squares.ravel(), self.kind, self.scale, values.ravel())
        values *= self.height
        return values

    def slopes(self, X: Array, pivots: NDArray[np.intp]) -> list[Array]:
        """The derivatives of these columns by theta, (n, r) each. O(n r)."""
        squares = cdist(X, X[pivots], "sqeuclidean")
        both = np.empty((2, *squares.shape))
        stationary(squares.ravel(), self.kind, self.scale, both[0].ravel(), both[1].ravel())
        both *= self.height
        return [both[("height", "length").index(name)] for name in self.free]

    def gradient(self, matrix: KernelMatrix, alpha: Array, distances: Distances) -> Array:
        """Of the log evidence of a posterior by theta: (alpha' dK alpha - tr(R dK)) / 2. O(n^2).

        matrix: its other triangle holds R.
        """
        by_height, by_length = matrix.contract(alpha, distances.squares, self.kind, self.scale)
        slopes = {"height": 0.5 * self.height * by_height, "length": 0.5 * self.height * by_length}
        return np.array([slopes[name] for name in self.free])

"""Kernels, and what a process of one is at some hyper-parameters: its forms and its fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Never, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg
from scipy.spatial import cKDTree
from scipy.spatial.distance import cdist, pdist, squareform

from epfast import _checks, losses
from epfast._arrays import Array, Indices, pieces, slices
from epfast._core.kernel_matrix import KINDS, KernelMatrix, stationary
from epfast._core.nearest import regress
from epfast._core.thread_pool import ThreadPool
from epfast.estimators.search import LossParameters
from epfast.estimators.units import ColumnMoments
from epfast.gaussian import (
    GPPosterior,
    KernelColumns,
    LatentGPPosterior,
    LowRankFactor,
    LowRankGPPosterior,
    fit_process,
    incomplete_cholesky,
)
from epfast.gaussian.diagnostics import trusted
from epfast.gaussian.factor import certified_factor, factor_at
from epfast.gaussian.fit_gp import fit_gp, without_factor
from epfast.gaussian.fit_hyper_gp import FitOfProcess, ProcessPoint
from epfast.gaussian.low_rank import fit_factor
from epfast.gaussian.nearest import NearestGPPosterior, fit_nearest
from epfast.gaussian.posterior import GaussianPosterior
from epfast.gaussian.prior import KernelPrior, checked_kernel
from epfast.gaussian.problem import Problem
from epfast.gaussian.process_posterior import ProcessPosterior, contracted
from epfast.gaussian.rows import Data
from epfast.gaussian.shards import WarmStart
from epfast.gaussian.state import State
from epfast.gaussian.table import NO_KERNEL, Choices, Request, choose
from epfast.inference import FAILURES, Callback, Sites, SweepInfo
from epfast.inference.runtime import at_work, memory_left, one_blas_thread, pool_of
from epfast.losses import Loss
from epfast.schedules import EP, DoubleLoop, Schedule
from epfast.schemes import Scheme

# scikit-learn is there, or epfast.estimators.base would have said so
from sklearn.base import clone  # isort: skip
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, Kernel, Matern, Product  # isort: skip

#: bounds of the default kernel's variance, and where its search starts
VARIANCES, VARIANCE = (1e-2, 1e5), 4.0
#: largest length scale over the largest distance. With Gaussian noise, whose evidence is exact,
#: this and the largest variance reach so far that a kernel may be that of a line, to the noise
REACH, FAR_REACH, FAR_VARIANCE = 10.0, 1e3, 1e7
#: where searches with the default kernel start: its variance and length scale, over those that it
#: has, and logs added to the scale of noise. Gaussian noise has more: smooth functions have modes
#: at long length scales, or with hardly any noise
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
        length_scale: float | Array = 1.0,
        length_scale_bounds: tuple[float, float] | Array | str = (1e-5, 1e5),
        column_scale: float | Array = 1.0,
    ) -> None:
        super().__init__(length_scale, length_scale_bounds)
        self.column_scale = column_scale

    def __call__(
        self, X: ArrayLike, Y: ArrayLike | None = None, eval_gradient: bool = False
    ) -> Array | tuple[Array, Array]:
        """The kernel of rows, as of scikit-learn's ``RBF``."""
        rows, others = (
            None if some is None else np.atleast_2d(some) / self.column_scale for some in (X, Y)
        )
        values: Array | tuple[Array, Array] = super().__call__(rows, others, eval_gradient)
        return values

    def __repr__(self) -> str:
        scales = ", ".join(f"{one:.3g}" for one in np.atleast_1d(self.column_scale))
        return f"{super().__repr__()[:-1]}, column_scale=[{scales}])"


def default_kernel(
    X: Array, weights: Array | None = None, unit: float = 1.0, far: bool = False
) -> Kernel:
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
    given: Kernel | None,
    X: Array,
    weights: Array | None,
    unit: float = 1.0,
    far: bool = False,
) -> Kernel:
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


def ladder(kernel: Kernel, shifted: Callable[[float], Array], far: bool) -> list[Array]:
    """Where searches with the default kernel start.

    shifted: the free numbers of the loss, with so much added to the logs of scales of noise.
    """
    low, high = kernel.bounds.T
    starts = [
        np.append(np.clip(kernel.theta + np.log(step), low, high), shifted(noise))
        for *step, noise in (FAR_LADDER if far else LADDER)
    ]
    return list({one.tobytes(): one for one in starts}.values())


def at_bounds(kernel: Kernel) -> list[str]:
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
        self._last: tuple[Array | float, Array] | None = None

    def __getstate__(self) -> dict[str, Array | None]:
        return {"X": self.X, "_last": None}

    def over(self, widths: Array | float) -> Array:
        """(n (n - 1) / 2,), as pdist orders them."""
        last = self._last
        if last is None or not np.array_equal(last[0], widths):
            last = self._last = widths, pdist(self.X / widths, "sqeuclidean")
        return last[1]


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
    def of(cls, kernel: Kernel) -> Stationary | None:
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

    def columns(self, X: Array, pivots: Indices) -> Array:
        """(n, r), the kernel of all rows with these. O(n r)."""
        rows = X / self.widths
        return self._columns(rows, rows[pivots])

    def _columns(self, rows: Array, others: Array) -> Array:
        squares = cdist(rows, others, "sqeuclidean")
        values = np.empty(squares.shape)
        stationary(squares.ravel(), self.kind, self.scale, values.ravel())
        values *= self.height
        return values

    def slopes(self, X: Array, pivots: Indices) -> Iterator[Array]:
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
        slopes: dict[str, float | Array] = {
            "height": 0.5 * by_height,
            "length": 0.5 * by_length,
        }
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


# ---- nearest rows ----

#: rows that an input is given, and how many times as many in predictions
COUNT, AT_NEW = 50, 8
#: half of the rows of an input are the nearest of a random tenth of all, and so farther away, where
#: there are four times as many as it asks for
SHARE_FAR, ROOM = 10, 4
#: values of a kernel at a time, 8 MB
VALUES = 1 << 20


class Neighbors:
    """Inputs, each with rows of X whose prior correlation with it is largest.

    Half of them are the nearest of a random tenth of the rows: some that are farther away say what
    the near ones leave open of a smooth process (Stein, Chi & Welty 2004). It is a
    :class:`epfast.gaussian.forms.nearest.Nearest`.
    """

    def __init__(
        self,
        kernel: Kernel,
        X: Array,
        inputs: Array,
        count: int,
        own: Indices | None = None,
        pool: ThreadPool | None = None,
    ) -> None:
        """count: of rows for each input, all at most. own: which row each input is, not its own."""
        self.kernel, self.X, self.inputs, self.pool = kernel, X, inputs, pool
        self.diagonal = np.array(kernel.diag(inputs))
        self.shape = Stationary.of(kernel)
        if self.shape is not None:
            widths = self.shape.widths
            self.X = np.ascontiguousarray(X / widths)
            self.inputs = self.X if inputs is X else np.ascontiguousarray(inputs / widths)
        n = len(X)
        order, few = (
            np.random.default_rng(0).permutation(n),
            n // SHARE_FAR if ROOM * count <= n else 0,
        )
        parts = [(order[few:], count - (few and count // 2)), (order[:few], few and count // 2)]
        numbers = [self._among(np.sort(rows), some, own) for rows, some in parts]
        self.index = np.ascontiguousarray(np.concatenate(numbers, axis=1))
        self.count = self.index.shape[1]

    def _among(self, rows: Indices, count: int, own: Indices | None) -> Indices:
        """So many of these rows that are nearest to each input, all at most."""
        more = int(own is not None)
        count = max(0, min(count, len(rows) - more))
        if count == 0:
            return np.empty((len(self.inputs), 0), dtype=np.intp)
        X = self.X[rows]
        by_distance = cKDTree(X) if self.shape is not None else None
        nearest = np.empty((len(self.inputs), count + more), dtype=np.intp)
        for part in pieces(len(nearest), len(X), VALUES):  # Ctrl-C falls between two of them
            some = self.inputs[part]
            if by_distance is None:
                nearest[part] = self._by_all(some, X, count + more)
            else:
                nearest[part] = by_distance.query(some, np.arange(1, count + more + 1))[1]
        index: Indices = rows[nearest]
        if own is None:
            return index
        # itself; where it is not there, or copies of it are in its place, the farthest one
        out = index == own[:, None]
        out[~out.any(axis=1), -1] = True
        return np.reshape(index[~out], (-1, count))

    def _by_all(self, inputs: Array, X: Array, count: int) -> Indices:
        """The rows of X from all values of the kernel, the farthest one last. O(n) an input."""
        with np.errstate(divide="ignore", invalid="ignore"):
            near = np.nan_to_num(np.abs(self.kernel(inputs, X)) / np.sqrt(self.kernel.diag(X)))
        return np.argpartition(-near, count - 1, axis=1)[:, :count]

    def moments_at(self, which: Indices, sites: Sites) -> tuple[Array, Array]:
        """Mean and variance of the process at some of the inputs. O(count^3 / 3) each."""
        index, (mean, variance) = self.index[which], np.empty((2, len(which)))
        of_sites = sites.precision, sites.shift
        if self.shape is not None:
            regress(
                index,
                *of_sites,
                mean,
                variance,
                X=self.X,
                Q=self.inputs,
                inputs=which,
                kind=self.shape.kind,
                scale=self.shape.scale,
                height=self.shape.height,
                pool=self.pool,
            )
            return mean, variance
        step = max(1, VALUES // (self.count + 1) ** 2)
        for first in range(0, len(which), step):
            part = slice(first, first + step)
            pairs = zip(which[part], index[part], strict=True)
            points = (np.concatenate([self.inputs[[i]], self.X[rows]]) for i, rows in pairs)
            K = np.array([self.kernel(some) for some in points], dtype=np.float64)
            regress(index[part], *of_sites, mean[part], variance[part], K=K)
        return mean, variance


# ---- processes ----

#: damping that repairs a failed fit
DAMPING = 0.5
#: most observations for which a double loop repairs a failed fit, and sweeps that it begins with
DESCENT_SIZE, FIRST_SWEEPS = 600, 20
#: sweeps of a search in which a change is to halve, of likelihoods that are not log-concave: fits
#: that hold take 3 as a rule
PATIENCE = 5
#: step of log hyper-parameters for the derivatives of a kernel
STEP = 1e-5
#: rows on which searches are tried first, where that is worth it
PILOT = 250
#: rows by which a process of nearest rows finds its hyper-parameters
SOME = 2000
#: of those, by how many it tells what more rows would add
ASKED = 200
#: matrices of the size of the kernel's that every fit of all rows needs, besides its derivatives
LEAST = 2
#: truncation error, in nats, up to which a factor stands for its kernel
NATS = 1e-3
#: the rank is at most this share of the rows, where a sweep takes a quarter of an exact one, and at
#: most that of the largest process that is fitted exactly
RANK_SHARE, MOST_RANK = 3, 2000
#: factors that are tried at the same hyper-parameters, each for the sites of the one before
TRIES = 3

R = TypeVar("R")

#: of a process, and what a fit begins with
Posterior = ProcessPosterior
FitStart = Posterior | WarmStart
NO_PARAMETERS = LossParameters(losses.Gaussian(), (), np.empty((0, 2)))


@dataclass(frozen=True, eq=False)
class Process:
    """A process at inputs, without its hyper-parameters."""

    X: Array
    kernel: Kernel
    #: of the loss, which follow those of the kernel in theta
    parameters: LossParameters = field(default=NO_PARAMETERS, kw_only=True)
    #: of BLAS
    threads: int | None = field(default=None, kw_only=True)

    @property
    def bounds(self) -> Array:
        """(p, 2), of theta."""
        return np.concatenate([self.kernel.bounds.reshape(-1, 2), self.parameters.bounds])

    @property
    def can_descend(self) -> bool:
        """Whether a double loop may repair a failed fit."""
        return False

    def with_threads(self, threads: int | None) -> Self:
        """The same, its matrices shared among so many threads. None: as BLAS has them."""
        return replace(self, threads=threads)

    def searched(self) -> Self:
        """The process whose evidence a search maximises."""
        return self

    def descending(self) -> Self:
        """The process whose fits descend to a fixed point of EP, where they may: else itself."""
        return self

    def parted(self, theta: Array, loss: Loss) -> tuple[Kernel, Loss]:
        """The kernel, and the loss: the one that is given if the process learns nothing of it."""
        where, free = np.split(np.asarray(theta), [self.kernel.n_dims])
        parameters = self.parameters
        if parameters.names:
            loss = parameters.loss_at(free)
        return self.kernel.clone_with_theta(where), loss

    def with_slopes(self, by_kernel: Array, post: GaussianPosterior) -> Array:
        """The gradient by theta, from that by the kernel's part of it."""
        if not self.parameters.names:
            return by_kernel
        return np.append(by_kernel, self.parameters.slopes(post.problem.loss, post.loss_slopes()))


@dataclass(frozen=True, eq=False)
class BinaryProcess(Process):
    """One binary problem, exact."""

    #: the fit of a process, without its kernel
    process: Problem[KernelPrior]
    jitter: float
    #: of the rows, which the problems of several classes share
    distances: Distances
    #: threads that share the matrices of this problem alone. None: BLAS has its own
    pool: ThreadPool | None = None
    #: the same by a factor of its kernel, where one may be as good. None: it is not tried
    low_rank: LowRankProcess | None = None
    #: rows that a value is given, where the process of nearest rows stands for this. None: nowhere
    neighbors: int | None = None

    @property
    def schedule(self) -> Schedule:
        schedule = self.process.schedule
        assert isinstance(schedule, Schedule)
        return schedule

    @property
    def loss(self) -> Loss:
        return self.process.loss

    @property
    def can_descend(self) -> bool:
        scheme = self.process.scheme
        plain = scheme.integrates and not scheme.relaxes and self.process.data.weights is None
        return len(self.X) <= DESCENT_SIZE and plain

    def descending(self) -> Self:
        schedule = self.schedule
        if not (self.can_descend and isinstance(schedule, EP) and schedule.tol > 0.0):
            return self
        return replace(self, process=self.process._replace(schedule=descent_of(schedule).filled()))

    def with_threads(self, threads: int | None) -> Self:
        few = None if self.low_rank is None else self.low_rank.with_threads(threads)
        return replace(self, pool=pool_of(threads, len(self.X)), low_rank=few)

    def at_work(self) -> AbstractContextManager[None]:
        """Where these threads live."""
        return at_work(self.pool, len(self.X))

    def pilot(self, rows: Indices) -> BinaryProcess:
        """The exact problem of some of the rows."""
        some, X = self.process._replace(data=self.process.data.select(rows)), self.X[rows]
        exact = replace(self, low_rank=None, neighbors=None)
        return replace(exact, X=X, process=some, distances=Distances(X))

    def stage(self, theta: Array, precision: Array | None = None) -> ProcessForm:
        """The process as fits near these hyper-parameters have it.

        That is the one by a factor whose truncation error is half of NATS at most, where there is
        one of a low rank, and else :meth:`unfactored`.

        precision: of the sites. By default that of fits of some rows.
        """
        form = None if self.low_rank is None else self.low_rank.certified(theta, precision)
        return self.unfactored() if form is None else form

    def unfactored(self) -> BinaryProcess | NearestProcess:
        """The process where no low rank is found: that of nearest rows, or this one."""
        return self if self.neighbors is None else NearestProcess(self, self.neighbors)

    def searched(self) -> Self:
        """The process itself, where no low rank is found.

        Raises
        ------
        MemoryError
            If its matrices do not fit.
        """
        if self.low_rank is not None and least_bytes(len(self.X)) > memory_left():
            raise MemoryError
        return self

    def point_at(
        self, theta: Array, *, gradient: bool = False, checked: bool = False
    ) -> ProcessPoint:
        """The problem at some hyper-parameters, for a caller :meth:`at_work`.

        A check of the kernel matrix is O(n^3 / 3).
        """
        kernel, loss = self.parted(theta, self.process.loss)
        ours = self.process._replace(loss=loss)
        shape = None if checked else Stationary.of(kernel)
        if shape is not None:
            return self._shaped(shape, ours, gradient)
        K, dK = matrix_of(kernel, self.X, gradient)
        K = _owned(K, self.X, dK)
        if checked:
            matrix = checked_kernel(K, True, self.jitter, self.pool)
            process = ours._replace(prior=KernelPrior(matrix))
        else:
            K[np.diag_indices(len(K))] += self.jitter
            process = ours.with_kernel(K)
            assert isinstance(process.prior.kernel, KernelMatrix)
            process.prior.kernel.pool = self.pool

        def slope(post: ProcessPosterior) -> Array:
            assert isinstance(post, GPPosterior)
            by_kernel = [contracted(post.alpha, K, dK[:, :, k]) for k in range(dK.shape[2])]
            return self.with_slopes(np.array(by_kernel), post)

        return ProcessPoint(fits_of(process, gradient), slope)

    def _shaped(
        self, shape: Stationary, ours: Problem[KernelPrior], gradient: bool
    ) -> ProcessPoint:
        """As :meth:`point_at`, from the distances of the rows."""
        matrix = shape.matrix(len(self.X), self.distances, self.jitter, self.pool)
        process = ours._replace(prior=KernelPrior(matrix))

        def slope(post: ProcessPosterior) -> Array:
            assert isinstance(post, GPPosterior)
            by_kernel = shape.gradient(matrix, post.alpha, self.distances)
            return self.with_slopes(by_kernel, post)

        return ProcessPoint(fits_of(process, gradient), slope)


def matrix_of(kernel: Kernel, X: Array, gradient: bool) -> tuple[Array, Array]:
    """The values of a kernel, (n, n), and their derivatives by theta, (n, n, p)."""
    if not gradient:
        return kernel(X), np.empty((0, 0, 0))
    values, slopes = kernel(X, eval_gradient=True)
    return values, slopes


def least_bytes(n: int) -> float:
    """What the matrices of every exact fit of n rows take."""
    return 8.0 * LEAST * n**2


def fits_of(process: Problem[KernelPrior], gradient: bool) -> FitOfProcess:
    """``fit`` of a :class:`ProcessPoint`, of a process with its kernel."""

    def fit(
        schedule: Schedule, start: FitStart | None, callback: Callback | None = None
    ) -> GPPosterior:
        if isinstance(start, LowRankGPPosterior | NearestGPPosterior):
            start = start_from(start)
        post = fit_process(
            process._replace(schedule=schedule.filled()),
            start,
            warns=False,
            callback=callback,
            slopes=gradient,
        )
        assert isinstance(post, GPPosterior)
        return post

    return fit


@dataclass(frozen=True, eq=False)
class LowRankProcess(Process):
    """One binary problem of low rank."""

    chosen: Choices
    #: responses and weights
    data: Data
    #: columns at most. None: as few as leave the evidence as it is
    rank: int | None
    #: those of a search, in which the evidence is smooth. None: those of the hyper-parameters
    pivots: Indices | None = None

    @property
    def schedule(self) -> Schedule:
        schedule = self.chosen.schedule
        assert isinstance(schedule, Schedule)
        return schedule

    @property
    def loss(self) -> Loss:
        return self.chosen.loss

    def stage(self, theta: Array, precision: Array | None = None) -> LowRankProcess:
        """The same with the pivots of these hyper-parameters held fixed."""
        del precision
        return replace(self, pivots=self.factor_by(theta).pivots)

    def certified(self, theta: Array, precision: Array | None = None) -> LowRankProcess | None:
        """The same with as few pivots as :meth:`BinaryProcess.stage` says. None: of no low rank."""
        kernel, _ = self.parted(theta, self.loss)
        most = max(1, min(len(self.X) // RANK_SHARE, MOST_RANK))
        try:
            typical = self._typical_precision(theta) if precision is None else precision
            with self.at_work():
                factor = certified_factor(by_columns(kernel, self.X), typical, most, 0.5 * NATS)
        except FAILURES:  # no covariance, or no fit: the exact process says so
            return None
        return None if factor is None else replace(self, pivots=factor.pivots)

    def _typical_precision(self, theta: Array) -> float:
        """Of the sites, by a fit of some rows."""
        pilot = self.pilot(pilot_rows(len(self.X)))
        with pilot.at_work():
            sites = pilot.point_at(theta).fit(pilot.schedule, None).sites
        assert sites is not None
        return float(np.mean(np.abs(sites.precision)))

    def factor_by(self, theta: Array) -> LowRankFactor:
        """The factor of that rank, with the pivots of these hyper-parameters."""
        assert self.rank is not None
        kernel, _ = self.parted(theta, self.loss)
        return incomplete_cholesky(by_columns(kernel, self.X), self.rank)

    def at_work(self) -> AbstractContextManager[None]:
        """Where BLAS has these threads."""
        rank = self.rank if self.pivots is None else len(self.pivots)
        return one_blas_thread(MOST_RANK if rank is None else rank, self.threads)

    def point_at(
        self, theta: Array, *, gradient: bool = False, checked: bool = False
    ) -> ProcessPoint:
        """The problem at some hyper-parameters, for a caller :meth:`at_work`."""
        del gradient, checked
        kernel, loss = self.parted(theta, self.loss)
        if self.pivots is None:
            factor = self.factor_by(theta)
        else:
            columns = columns_of(kernel, self.X, self.pivots)
            factor = factor_at(columns, self.pivots, kernel.diag(self.X))

        def fit(
            schedule: Schedule, start: FitStart | None, callback: Callback | None = None
        ) -> LowRankGPPosterior:
            chosen = self.chosen._replace(loss=loss, schedule=schedule.filled())
            return fit_factor(
                chosen, factor, self.data, start, threads=self.threads, callback=callback
            )

        def slope(post: ProcessPosterior) -> Array:
            assert isinstance(post, LowRankGPPosterior)
            by_kernel = post.log_evidence_gradient(slopes_of(kernel, self.X, post.pivots))
            return self.with_slopes(by_kernel, post)

        return ProcessPoint(fit, slope)

    def pilot(self, rows: Indices) -> BinaryProcess:
        """The exact process of some of the rows."""
        request = Request(self.loss, self.chosen.scheme, "process", schedule=self.schedule)
        chosen = choose(request)
        X, process = self.X[rows], chosen.problem(self.data.select(rows), NO_KERNEL)
        return BinaryProcess(X, self.kernel, process, 0.0, Distances(X), parameters=self.parameters)


@dataclass(frozen=True, eq=False)
class NearestProcess:
    """One binary problem, in which each value is given the sites of its nearest rows."""

    #: the exact one, whose matrix is not formed
    whole: BinaryProcess
    neighbors: int
    can_descend = False

    @property
    def schedule(self) -> Schedule:
        return self.whole.schedule

    def at_work(self) -> AbstractContextManager[None]:
        """Where the threads of the exact problem live."""
        return self.whole.at_work()

    def searched(self) -> BinaryProcess:
        """See :meth:`BinaryProcess.searched`: that of some of the rows."""
        return self.whole.pilot(pilot_rows(len(self.whole.X), SOME))

    def point_at(
        self, theta: Array, *, gradient: bool = False, checked: bool = False
    ) -> ProcessPoint:
        """The problem at some hyper-parameters."""
        del gradient, checked
        whole, n = self.whole, len(self.whole.X)
        kernel, loss = whole.parted(theta, whole.loss)
        rows = Neighbors(kernel, whole.X, whole.X, self.neighbors, np.arange(n), whole.pool)
        process, some = (
            whole.process._replace(loss=loss, prior=KernelPrior(rows)),
            pilot_rows(n, ASKED),
        )
        wider = Neighbors(kernel, whole.X, whole.X[some], AT_NEW * rows.count, some, whole.pool)

        def fit(
            schedule: Schedule, start: FitStart | None, callback: Callback | None = None
        ) -> NearestGPPosterior:
            return fit_nearest(
                process._replace(schedule=schedule.filled()), some, wider, start, callback
            )

        return ProcessPoint(fit, without_evidence)


def without_evidence(*_: Posterior) -> Never:
    """Refuse what asks a process of nearest rows for its evidence."""
    raise ValueError(
        "the log evidence is asked for, and the fit is by nearest rows (method), which has none; "
        "allowed: posterior_.loo_log_predictive(), or method='exact'"
    )


def pilot_rows(n: int, most: int = PILOT) -> Indices:
    """So many of n rows at most."""
    return np.sort(np.random.default_rng(0).permutation(n)[:most])


def by_columns(kernel: Kernel, X: Array) -> KernelColumns:
    """A kernel of scikit-learn, by its columns."""
    shape = Stationary.of(kernel)
    return KernelColumns.from_sklearn(kernel, X) if shape is None else shape.by_columns(X)


def columns_of(kernel: Kernel, X: Array, pivots: Indices) -> Array:
    """(n, r), the kernel of all inputs with the pivots."""
    shape = Stationary.of(kernel)
    return np.asarray(kernel(X, X[pivots])) if shape is None else shape.columns(X, pivots)


def slopes_of(kernel: Kernel, X: Array, pivots: Indices) -> Iterable[Array]:
    """The derivatives of these columns by theta."""
    shape = Stationary.of(kernel)
    if shape is not None:
        return shape.slopes(X, pivots)
    theta = kernel.theta

    def columns_at(where: Array) -> Array:
        return columns_of(kernel.clone_with_theta(where), X, pivots)

    # scikit-learn gives no derivatives of kernels between different inputs
    return (
        (columns_at(theta + h) - columns_at(theta - h)) / (2.0 * STEP)
        for h in STEP * np.eye(len(theta))
    )


@dataclass(frozen=True, eq=False)
class LatentProcess(Process):
    """Processes of all classes together, of one kernel: one problem."""

    #: class numbers
    y: Array
    #: with its number of classes
    loss: losses.LatentLoss
    scheme: str | Scheme
    schedule: Schedule
    jitter: float

    def at_work(self) -> AbstractContextManager[None]:
        """Where BLAS has these threads."""
        return one_blas_thread(len(self.X), self.threads)

    def stage(self, theta: Array, precision: Array | None = None) -> LatentProcess:
        """The problem itself."""
        del theta, precision
        return self

    def pilot(self, rows: Indices) -> LatentProcess:
        """The problem of some of the rows."""
        return replace(self, X=self.X[rows], y=self.y[rows])

    def point_at(
        self, theta: Array, *, gradient: bool = False, checked: bool = False
    ) -> ProcessPoint:
        """The problem at some hyper-parameters."""
        del checked
        K, dK = matrix_of(self.kernel.clone_with_theta(theta), self.X, gradient)

        def fit(
            schedule: Schedule, start: FitStart | None, callback: Callback | None = None
        ) -> LatentGPPosterior:
            assert start is None or isinstance(start, LatentGPPosterior)
            post = fit_gp(
                K,
                self.y,
                loss=self.loss,
                scheme=self.scheme,
                schedule=schedule,
                jitter=self.jitter,
                start=start,
                callback=callback,
            )
            assert isinstance(post, LatentGPPosterior)
            return post

        def slope(post: ProcessPosterior) -> Array:
            assert isinstance(post, LatentGPPosterior)
            return post.slopes_by_kernel(dK[:, :, k] for k in range(dK.shape[2]))

        return ProcessPoint(fit, slope)


AnyProcess = BinaryProcess | LowRankProcess | LatentProcess
#: what a search or a fit takes for a problem
ProcessForm = AnyProcess | NearestProcess


def evidence_at(problem: AnyProcess, theta: Array, gradient: bool) -> tuple[float, Array]:
    """The log evidence at some hyper-parameters, and its gradient where asked for."""

    def fit(form: ProcessForm, start: FitStart | None) -> tuple[Posterior, Array]:
        if isinstance(form, NearestProcess):
            without_evidence()
        with form.at_work():
            point = form.point_at(theta, gradient=gradient)
            post = point.fit(form.schedule, start)
            return post, point.gradient(post) if gradient else np.empty(0)

    post, slope = settled(problem, theta, None, fit)
    return post.log_evidence, slope


def settled(
    problem: AnyProcess,
    theta: Array,
    start: FitStart | None,
    fit: Callable[[ProcessForm, FitStart | None], tuple[Posterior, R]],
) -> tuple[Posterior, R]:
    """``fit(form, start)`` of the form that the problem has at these hyper-parameters.

    One of low rank counts if it leaves NATS of the evidence open at most, by its own sites.
    """
    if not isinstance(problem, BinaryProcess):
        return fit(problem, start)
    sites, tries = None if start is None else start.sites, 0 if problem.low_rank is None else TRIES
    for _ in range(tries):
        form = problem.stage(theta, None if sites is None else sites.precision)
        if not isinstance(form, LowRankProcess):
            break
        post, beside = fit(form, start)
        assert isinstance(post, LowRankGPPosterior)
        assert post.truncation_error is not None
        if post.truncation_error <= NATS:
            return post, beside
        sites, start = post.sites, start_from(post)
    last = problem.unfactored()
    return fit(last.searched() if last is problem else last, start)


def start_from(post: Posterior) -> WarmStart:
    """The sites of a fit, with the sweeps that have made them."""
    return WarmStart(post.sites, n_sweeps=post.n_sweeps)


def _owned(K: ArrayLike, *others: Array) -> Array:
    """K in an array to overwrite: itself, or a copy if other arrays share its memory."""
    if isinstance(K, np.ndarray) and K.dtype == np.float64:
        alone = K.flags.carray and K.flags.owndata
        if alone and not any(np.may_share_memory(K, other) for other in others):
            return K
    return np.array(_checks.real_array("K", K), dtype=np.float64, order="C")


# ---- fits that hold ----


def posterior_at(
    problem: AnyProcess, theta: Array, start: FitStart | None, repair: bool
) -> tuple[Posterior, bool]:
    """The fit at some hyper-parameters, and whether it holds. Their kernel matrix is checked."""

    def fit(form: ProcessForm, start: FitStart | None) -> tuple[Posterior, bool]:
        with form.at_work():
            return valid_fit(
                form.point_at(theta, checked=True),
                form.schedule,
                start,
                repair=repair,
                can_descend=form.can_descend,
            )

    return settled(problem, theta, start, fit)


def stalled() -> Callback:
    """A callback that ends sweeps whose change is more than half of that PATIENCE sweeps before."""
    changes: list[float] = []

    def ends(info: SweepInfo, state: State) -> bool:
        del state
        changes.append(info.change)
        earlier = changes[-PATIENCE - 1 : -PATIENCE]
        return bool(earlier) and not info.change <= 0.5 * earlier[0]

    return ends


def valid_fit(
    point: ProcessPoint,
    schedule: Schedule,
    start: FitStart | None,
    *,
    repair: bool,
    can_descend: bool,
) -> tuple[Posterior, bool]:
    """A valid fit, or the first and False.

    From the start, then from flat sites, then, if repairs are wanted, with damping and by a double
    loop.

    Raises
    ------
    FloatingPointError, ValueError
        If no fit came to an end.
    """
    first: Posterior | None = None
    failure: Exception | None = None
    for other, where in _attempts(schedule, start, repair, can_descend):
        try:
            post: Posterior = point.fit(other, where)
        except FAILURES as error:
            failure = failure or error
            continue
        if trusted(post):
            return post, True
        first = post if first is None else first
    if isinstance(first, GPPosterior):
        # later fits had its array
        first = without_factor(first)
    if first is None:
        assert failure is not None
        raise failure
    return first, False


def _attempts(
    schedule: Schedule, start: FitStart | None, repair: bool, can_descend: bool
) -> Iterator[tuple[Schedule, FitStart | None]]:
    if start is not None:
        yield schedule, start
    yield schedule, None
    if repair and isinstance(schedule, EP):
        damping = DAMPING * (schedule.damping or 1.0)
        yield replace(schedule, damping=damping, sweeps=2 * schedule.sweeps), None
        if can_descend and schedule.tol > 0.0:
            yield descent_of(schedule), None


def descent_of(schedule: EP) -> DoubleLoop:
    """A few sweeps, and a descent where they do not converge."""
    power = 1.0 if schedule.power is None else schedule.power
    sweeps = EP(min(FIRST_SWEEPS, schedule.sweeps), schedule.tol, damping=1.0, power=power)
    return DoubleLoop(start=sweeps)

"""Priors as objects: of weights, of single weights by a site each, and of processes."""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol, Self, overload, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg, sparse

from epfast import _checks
from epfast._arrays import CSR, Array, Given, Indices, Matrix, Piece, SparseGiven
from epfast._core.kernel_matrix import KernelMatrix
from epfast._core.thread_pool import ThreadPool
from epfast.gaussian.rows import diagonal_products, gram, products
from epfast.gaussian.sparse import Moments, SparseDesign, as_csr, moments
from epfast.gaussian.state import (
    State,
    factor_of,
    in_memory,
    inverse_of,
    inverse_root,
    log_determinant,
    not_proper,
    raised,
    uncentered,
)
from epfast.inference import Sites
from epfast.inference.runtime import cached_property
from epfast.losses import Prior
from epfast.schedules import FilledSchedule, Schedule

#: prior variance of an intercept: broad, a standard deviation of 10 in units of log odds, or of y
INTERCEPT_VARIANCE = 100.0
#: variances are multiples of others if their ratios are equal, to rounding
SAME = 1e-14
#: an eigenvalue of K, or what a factor leaves of a variance, above minus this times the largest
#: diagonal entry counts as rounding
ROUNDING = 1e-10


# ---- normal priors of weights ----


@dataclass(frozen=True, eq=False)
class WeightPrior:
    """N(mean, 1 / precision) over the weights. The last one may be that of an intercept b.

    With a center c, a row, the prior of the intercept is that of b + c.w, see :func:`prior_of`.
    """

    #: (d,) or (d, d), with the cross terms of a center. Of a :class:`SparsePrior` CSR
    precision: Array
    #: (d,), precision times mean
    shift: Array
    #: -shift.mean / 2
    log_scale: float = 0.0
    #: whether the last column of X is the ones of an intercept, which the user does not give
    intercept: bool = False
    #: (d - 1,). None: at 0
    center: Array | None = None

    @property
    def parts(self) -> tuple[Array, Array, float, bool, Array | None]:
        """The fields that every class has, first: for the same prior as one of another."""
        return self.precision, self.shift, self.log_scale, self.intercept, self.center

    @classmethod
    def of_state(cls, state: State) -> Self:
        """A cavity, say, in the role of a prior."""
        return cls(state.precision, state.shift, state.log_scale)

    @cached_property
    def state(self) -> State:
        """The prior as a state without sites."""
        return State(self.precision, self.shift, None, self.log_scale, 0)

    @cached_property
    def mean(self) -> Array:
        """(d,)."""
        return self._mean() if self.shift.any() else self.shift

    def _mean(self) -> Array:
        if self.precision.ndim == 1:
            return np.asarray(self.shift / self.precision)
        return np.asarray(linalg.cho_solve((factor_of(self.precision), True), self.shift))

    @cached_property
    def log_norm(self) -> float:
        """Half of the log of the determinant of the precision. O(d^3), once."""
        return 0.5 * log_determinant(self.precision)

    def log_density(self, theta: Array) -> Array:
        """Log density (k,) of weights (k, d), over that at the mean."""
        away, precision = theta - self.mean, self.precision
        half = away * precision if precision.ndim == 1 else away @ precision
        return np.asarray(-0.5 * np.einsum("ki,ki->k", half, away))

    @cached_property
    def _root(self) -> Array:
        return inverse_root(self.precision)

    def color(self, noise: Array) -> Array:
        """Turn standard normal draws (k, d) into draws about the mean."""
        if self.precision.ndim == 1:
            return np.asarray(noise * np.sqrt(1.0 / self.precision))
        return np.asarray(noise @ self._root.T)

    def draw(self, size: int, rng: np.random.Generator) -> Array:
        """Weights (size, d)."""
        return self.mean + self.color(rng.standard_normal((size, len(self.shift))))

    def with_precision(self, precision: Array, mean: Array | None = None) -> Self:
        """The same form with another precision, and a mean, 0 by default. They are not checked."""
        if precision.ndim == 1 and self.precision.ndim == 2:
            precision = np.diag(precision)
        mean = np.zeros(len(self.shift)) if mean is None else mean
        precision, shift, scale = natural(precision, mean, self.center)
        return replace(self, precision=precision, shift=shift, log_scale=scale)

    def raised(self, level: float) -> Self:
        """The prior of an intercept that is so much higher."""
        state = raised(self.state, level)
        return replace(self, shift=state.shift, log_scale=state.log_scale)

    def uncentered(self, center: Array) -> Self:
        """The prior of the weights of rows, from that of rows less a center, (d - 1,)."""
        state = uncentered(self.state, center)
        center = center if self.center is None else center + self.center
        return replace(self, precision=state.precision, shift=state.shift, center=center)

    def without_rows(self) -> Self:
        """What is pickled where rows are not."""
        return self

    def of_other_rows(self) -> Self:
        """The same prior, beside other rows."""
        return self


def prior_of(
    precision: Array,
    mean: Array,
    full: bool,
    center: Array | None = None,
    intercept: bool = False,
) -> WeightPrior:
    """N(mean, 1 / precision). The precision is (d,), or (d, d), which ``full`` makes it.

    center: (d - 1,), a row x. The last of precision and mean are then those of b + x.w, the latent
    value there, in place of those of the intercept b, the last weight, and the precision that
    comes out has cross terms.
    """
    if full and precision.ndim == 1:
        precision = np.diag(precision)
    return WeightPrior(*natural(precision, mean, center), intercept, center)


def natural(
    precision: Array, mean: Array, center: Array | None = None
) -> tuple[Array, Array, float]:
    """Precision, shift and log scale of a normal prior, with cross terms of a center."""
    shift, scale = np.zeros(len(mean)), 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        if mean.any():
            shift = precision * mean if precision.ndim == 1 else precision @ mean
            scale = -0.5 * float(shift @ mean)
        if center is not None:
            precision = precision + cross_terms(precision, center)
            shift[:-1] += center * shift[-1]
    if not math.isfinite(scale):
        raise ValueError(
            f"prior_mean is {np.abs(mean).max():.2g}, whose square over the prior variance "
            "overflows; allowed: numbers of moderate size"
        )
    return precision, shift, scale


def cross_terms(precision: Matrix, center: Array) -> Array | sparse.coo_array:
    """What a center adds to a precision, dense or CSR, see :func:`prior_of`."""
    row, own = np.append(center, 1.0), float(precision[-1, -1])
    if hasattr(precision, "indptr"):
        along = sparse.coo_array(row[None])
        terms = sparse.coo_array(own * (along.T @ along))
        terms.data[(terms.row == len(center)) & (terms.col == len(center))] = 0.0
        return terms
    terms = np.outer(row, own * row)
    terms[-1, -1] = 0.0
    return terms


@dataclass(frozen=True, eq=False)
class CenteredPrior(WeightPrior):
    """N(m, S) for the n x n form: a variance per weight, or a precision that the user gave.

    The center is applied to rows, as adding to the precision of a flat prior rounds it. The last
    weight is b + c.w under that precision, so that S is its inverse D less D c e' and its
    transpose, with (c.D c) e e' added; e is the unit vector of the intercept. O(d^3) for a
    precision (d, d), once.
    """

    #: variances V of the weights but the intercept, and X V X', of dense rows about the center,
    #: kept for multiples of them
    kept: tuple[Array, Array | None] | None = None

    def __getstate__(self) -> dict[str, Array | float | tuple[Array, None] | None]:
        own = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return own | {"kept": None if self.kept is None else (self.kept[0], None)}

    def _mean(self) -> Array:
        mean = super()._mean()
        if self.center is not None:
            mean[-1] -= self.center @ mean[:-1]
        return mean

    def log_density(self, theta: Array) -> Array:
        away = theta - self.mean
        if self.center is not None:
            away[:, -1] += away[:, :-1] @ self.center
        half = away * self.precision if self.precision.ndim == 1 else away @ self.precision
        return np.asarray(-0.5 * np.einsum("ki,ki->k", half, away))

    def with_precision(self, precision: Array, mean: Array | None = None) -> Self:
        mean = np.zeros(len(self.shift)) if mean is None else mean
        precision, shift, scale = natural(precision, mean)
        return replace(self, precision=precision, shift=shift, log_scale=scale)

    def of_other_rows(self) -> Self:
        return replace(self, kept=None)

    def remembering(self, X: Matrix, variance: Array) -> Self:
        """The same, with X V X' at hand for multiples of these prior variances. O(n^2 d)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return replace(self, kept=(variance, self._gram(X, variance)))

    # -- S --

    @cached_property
    def _row(self) -> Array | None:
        """(d,), c, with 0 for the intercept."""
        return None if self.center is None else np.append(self.center, 0.0)

    @cached_property
    def covariance(self) -> Array | None:
        """(d, d), S of a precision (d, d)."""
        if self.precision.ndim == 1:
            return None
        covariance = inverse_of(self.precision)
        if self._row is not None:
            covariance[-1] -= self._row @ covariance
            covariance[:, -1] -= covariance @ self._row
        return covariance

    @cached_property
    def scales(self) -> Array:
        """(d,), D of a precision (d,)."""
        return np.asarray(1.0 / self.precision)

    @cached_property
    def variance(self) -> Array:
        """(d,), the diagonal of S."""
        if self.covariance is not None:
            return np.diag(self.covariance).copy()
        variance = self.scales.copy()
        if self._row is not None:
            variance[-1] += self._row @ (self.scales * self._row)
        return variance

    @overload
    def of_rows(self, rows: Array) -> Array: ...

    @overload
    def of_rows(self, rows: Matrix) -> Matrix: ...

    def of_rows(self, rows: Matrix) -> Matrix:
        """rows S, of rows dense or CSR."""
        if self.covariance is not None:
            return np.asarray(rows @ self.covariance)
        if self._row is None:
            return _scaled(rows, self.scales)
        ones = rows[..., -1:] if isinstance(rows, np.ndarray) else rows[:, -1:].toarray()
        product = np.asarray(rows - ones * self._row) * self.scales
        product[..., -1] -= product @ self._row
        return product

    def of_columns(self, columns: Matrix, part: Piece) -> Matrix:
        """Some rows of S columns, for columns = X', (d, n), of rows that end in 1."""
        if self.covariance is not None:
            return np.asarray(self.covariance[part] @ columns)
        product = _scaled(columns[part], self.scales[part, None])
        if self._row is None:
            return product
        along = self.scales * self._row
        product = product if isinstance(product, np.ndarray) else product.toarray()
        product -= along[part, None]
        if part.indices(len(along))[1] == len(along):
            product[-1] += self._row @ along - np.asarray(along @ columns)
        return product

    def color(self, noise: Array) -> Array:
        theta = super().color(noise)
        if self._row is not None:
            theta[:, -1] -= theta @ self._row
        return theta

    def matrix(self) -> Array:
        """(d, d), S."""
        if self.covariance is not None:
            return self.covariance.copy()
        matrix = np.diag(self.variance)
        if self._row is not None:
            matrix[-1, :-1] = matrix[:-1, -1] = -(self.scales * self._row)[:-1]
        return matrix

    # -- the prior that rows give h = X theta: N(X m, X S X') --

    def mean_of_rows(self, X: Matrix) -> Array | None:
        """(n,), X m. None: 0."""
        return np.asarray(X @ self.mean, dtype=np.float64) if self.shift.any() else None

    def variance_of_rows(self, X: Matrix) -> Array:
        """(n,), the diagonal of X S X'."""
        return diagonal_products(self.of_rows(X), X)

    def _features(self, X: Matrix) -> Matrix:
        return X[:, :-1] if self.intercept else X

    def _gram(self, X: Matrix, variance: Array | None) -> Array:
        """X S X' without the intercept. Dense rows are about the center.

        Products about 0 of rows far from it lose the digits of their differences.
        """
        rows = self._features(X)
        return gram(rows, variance, None if hasattr(rows, "indptr") else self.center)

    def kernel(self, X: Matrix) -> KernelMatrix:
        """X S X'. O(n^2 d), of multiples of known variances O(n^2)."""
        with np.errstate(over="ignore", invalid="ignore"):
            array = self._kernel(X)
        if not np.isfinite(array).all():
            raise not_proper()
        return KernelMatrix(array)

    def _kernel(self, X: Matrix) -> Array:
        if self.precision.ndim == 2:
            array = products(self.of_rows(X), X)
            return np.ascontiguousarray(0.5 * (array + array.T))
        variance = 1.0 / self.precision
        common = variance[: len(variance) - self.intercept]
        variances, kernel = self.kept or (np.ones_like(common), None)
        times = common / variances
        if np.abs(times - times[0]).max() <= SAME * times[0]:
            array = times[0] * (self._gram(X, variances) if kernel is None else kernel)
        else:
            array = self._gram(X, common)
        array = array + variance[-1] if self.intercept else array
        if self.center is not None and hasattr(X, "indptr"):  # K - r 1' - 1 r' + a
            along = common * self.center
            r = np.asarray(self._features(X) @ along, dtype=np.float64)
            array -= r[:, None] + r - self.center @ along
        return np.asarray(array)


def _scaled(rows: Matrix, by: Array) -> Matrix:
    return np.asarray(rows * by) if isinstance(rows, np.ndarray) else rows.multiply(by).tocsr()


@dataclass(frozen=True, eq=False)
class SparsePrior(WeightPrior):
    """A prior whose precision is CSR, with the pattern of the posterior, and constraints."""

    #: the pattern, with the rows on it, and constraints
    design: SparseDesign = field(kw_only=True)

    @cached_property
    def _moments(self) -> Moments:
        """Under the constraints."""
        design = self.design
        parts = design.of_prior.split(as_csr(self.precision))
        now = moments(design.of_prior, parts, self.shift, design.constraints)
        if now is None:
            raise not_proper()
        return now

    def _mean(self) -> Array:
        return self._moments.mean

    @cached_property
    def log_norm(self) -> float:
        """What the log evidence has of the prior, and of its constraints, beside the log scale."""
        if self.design.constraints is None:
            return 0.5 * self._moments.log_determinant
        return -float(self._moments.log_mass + self.log_scale)

    def with_rows(self, X: CSR) -> Self:
        """The same with the rows of the fit, or some of them."""
        return replace(self, design=self.design.with_rows(X))

    def without_rows(self) -> Self:
        return replace(self, design=self.design.without_rows())


# ---- a prior of each weight by itself ----


@dataclass(frozen=True, eq=False)
class PerWeightPrior(WeightPrior):
    """The prior of each weight, and which of them have sites to be fitted.

    The normal prior is the one that these sites begin with.
    """

    prior: Prior = field(kw_only=True)
    #: sites to begin with. Those that are not visited are exact
    start: Sites = field(kw_only=True)
    #: weights with a site to be fitted
    visits: Indices = field(kw_only=True)

    def log_density(self, theta: Array) -> Array:
        density = self.prior.log_density(theta[:, self.visits]).sum(axis=1)
        return np.asarray(density + self.of_normal(theta) - self.start.log_scale.sum())

    def of_normal(self, theta: Array) -> Array:
        """Log density (k,) of the weights that are not visited, which have a normal prior alone."""
        fixed = np.ones(theta.shape[1], dtype=bool)
        fixed[self.visits] = False
        precision, scale = self.start.precision[fixed], self.start.log_scale[fixed]
        return np.asarray(scale.sum() - 0.5 * theta[:, fixed] ** 2 @ precision)

    def draw(self, size: int, rng: np.random.Generator) -> Array:
        theta = super().draw(size, rng)
        drawn = self.prior.sample(size * len(self.visits), rng)
        theta[:, self.visits] = drawn.reshape(size, -1)
        return theta


# ---- the prior of a process ----


@runtime_checkable
class NearRows(Protocol):
    """Inputs, and the rows nearest to each."""

    #: rows of each input
    count: int
    pool: ThreadPool | None

    @property
    def diagonal(self) -> Array:
        """(n,), prior variances."""

    def moments_at(self, which: Indices, sites: Sites) -> tuple[Array, Array]:
        """Mean and variance of the process at some inputs, given the sites of their rows."""


@dataclass(frozen=True, eq=False)
class KernelPrior:
    """N(0, K) over the latent values of a process."""

    #: K in one triangle of an array, whose other triangle the sweeps use, or one for each of
    #: several latents, or nearest rows, or None after loading
    kernel: KernelMatrix | tuple[KernelMatrix, ...] | NearRows | None = None
    #: (n, n), K where it is the same for several latents
    common: Array | None = None

    def without_rows(self) -> KernelPrior:
        return KernelPrior()


# ---- from the arguments of the user ----


class PriorArguments(NamedTuple):
    """What a user gives of a normal prior. Each may be None, and one of three may be given."""

    variance: Given = None
    precision: Given | SparseGiven = None
    covariance: Given | SparseGiven = None
    mean: Given = None
    #: begins the names of the arguments
    prefix: str = "prior_"

    @property
    def is_matrix(self) -> bool:
        return self.precision is not None or self.covariance is not None

    def refuse(self, beside: str, allowed: str) -> None:
        """Refuse them beside what has another prior."""
        for name, value in zip(self._fields[:4], self, strict=False):
            if value is not None:
                raise ValueError(
                    f"{self.prefix}{name} is {_checks.describe(value)} beside {beside}; "
                    f"allowed{allowed}"
                )

    def prior(
        self,
        d: int,
        full: bool,
        intercept: float | None = None,
        center: Array | None = None,
    ) -> WeightPrior:
        """The prior of d weights.

        full: whether its precision is a matrix. intercept: the prior variance of one more weight,
        of mean 0, at the row ``center``, see :func:`prior_of`.
        """
        precision = _precision(self, d, full)
        means = self._means(d, intercept)
        if intercept is not None:
            if precision.ndim == 1:
                precision = np.append(precision, 1.0 / intercept)
            else:
                precision = linalg.block_diag(precision, 1.0 / intercept)
        return prior_of(precision, means, full, center, intercept is not None)

    def sparse(self, d: int, intercept: float | None, center: Array | None) -> WeightPrior:
        """As :meth:`prior`, with a precision that is a CSR array."""
        if self.covariance is not None:
            raise ValueError(
                f"prior_covariance is {_checks.describe(self.covariance)}; allowed with a sparse "
                "posterior: prior_precision, or prior_variance"
            )
        name = f"{self.prefix}precision"
        if self.precision is not None and self.variance is not None:
            raise ValueError(f"{name} is given beside {self.prefix}variance; allowed: one of them")
        if _checks.is_sparse_given(self.precision):
            matrix = _checks.sparse_symmetric(name, self.precision, d)
            _moderate(f"{name}'s diagonal", matrix.diagonal(), d)
        elif self.precision is not None:
            matrix = sparse.csr_array(_checks.definite(name, self.precision, d))
        else:
            matrix = sparse.diags_array(_precision(self, d, False))
        means = self._means(d, intercept)
        if intercept is not None:
            matrix = sparse.block_diag([matrix, sparse.csr_array([[1.0 / intercept]])])
        return prior_of(sparse.csr_array(matrix), means, True, center, intercept is not None)

    def _means(self, d: int, intercept: float | None) -> Array:
        if self.mean is None:
            return np.zeros(d + (intercept is not None))
        means = _checks.array(f"{self.prefix}mean", self.mean, shape=(d,))
        return means if intercept is None else np.append(means, 0.0)

    def of_fit(
        self,
        start: WeightPrior | None,
        schedule: Schedule | FilledSchedule,
        d: int,
        intercept: float | None,
        full: bool,
        center: Array | None = None,
    ) -> WeightPrior:
        """The prior of a fit. ADF with a start keeps the prior of that, ``start``.

        d: the number of weights, with that of the intercept, which has its prior at ``center``.
        """
        if start is None or schedule.stores != "none":
            return self.prior(d if intercept is None else d - 1, full, intercept, center)
        self.refuse("a start", " with ADF: None, the prior is that of the start")
        if start.shift.size != d:
            raise ValueError(f"start has {start.shift.size} dimensions; allowed: {d}")
        return start


def _precision(arguments: PriorArguments, d: int, full: bool) -> Array:
    """Precision of the prior, (d, d), or (d,) of a factorised one."""
    variance, precision, covariance, _, prefix = arguments
    if precision is not None or covariance is not None:
        pairs = {"variance": variance, "precision": precision, "covariance": covariance}
        name, *more = [f"{prefix}{name}" for name, value in pairs.items() if value is not None]
        if more:
            raise ValueError(f"{more[0]} is given beside {name}; allowed: one of them")
        value = covariance if precision is None else precision
        if _checks.is_sparse_given(value):
            in_memory(name, d, "posterior='sparse' makes none of prior_precision")
            value = _checks.sparse_symmetric(name, value, d).toarray()
        matrix = _checks.definite(name, value, d)
        diagonal = _moderate(f"{name}'s diagonal", np.diag(matrix), d)
        if not full:
            if (matrix != np.diag(diagonal)).any():
                raise ValueError(
                    f"{name} is not diagonal; allowed with posterior='factorized': a diagonal "
                    "matrix"
                )
            return diagonal.copy() if covariance is None else 1.0 / diagonal
        if precision is not None:
            return matrix
        scale = np.sqrt(diagonal)  # of the correlations, whose inverse does not depend on units
        return inverse_of(matrix / scale / scale[:, None]) / scale / scale[:, None]
    if variance is None:
        return np.ones(d)
    if isinstance(variance, str):
        raise TypeError(
            f"prior_variance is {variance!r}; allowed: a number or an array of shape ({d},); "
            "LinearClassifier(prior_variance='evidence') finds one"
        )
    variances = checked_variances(variance, d, f"{prefix}variance")
    return 1.0 / variances if isinstance(variances, np.ndarray) else np.full(d, 1.0 / variances)


def checked_variances(variance: ArrayLike, d: int, name: str = "prior_variance") -> float | Array:
    """Prior variances, checked: a number, or (d,). Their inverses are normal numbers."""
    if not isinstance(variance, np.ndarray) and isinstance(variance, numbers.Number):
        return _checks.number(name, variance, least=1e-300, most=1e300)
    spread = _checks.real_array(name, variance)
    if spread.ndim == 0:
        return _checks.number(name, spread[()], least=1e-300, most=1e300)
    if spread.shape != (d,):
        raise ValueError(f"{name} has shape {spread.shape}; allowed: a number, or shape ({d},)")
    return _moderate(name, spread, d).copy()


def _moderate(name: str, value: Given, d: int) -> Array:
    result = _checks.array(name, value, shape=(d,), positive=True)
    if not ((result >= 1e-300) & (result <= 1e300)).all():
        raise ValueError(f"{name} holds {result.min():g}; allowed: from 1e-300 to 1e300")
    return result


def intercept_variance(given: _checks.NumberGiven) -> float | None:
    """Prior variance of the intercept. None: there is none."""
    if isinstance(given, bool | np.bool_):
        return INTERCEPT_VARIANCE if given else None
    return _checks.number("intercept", given, least=1e-150, most=1e150)


# ---- kernel matrices of the user ----


def square(name: str, shape: tuple[int, ...]) -> None:
    """Refuse rows of features in the place of a kernel matrix."""
    if len(shape) != 2 or shape[0] != shape[1]:
        raise ValueError(
            f"{name} has shape {shape}; allowed: (n, n), a kernel matrix (for rows of features "
            "use epfast.GPClassifier, or give the kernel between them)"
        )


def checked_kernel(
    K: ArrayLike, overwrite: bool, jitter: float, pool: ThreadPool | None = None
) -> KernelMatrix:
    """Check K, and hold it in a copy or in its own memory. O(n^3 / 3), by the pool."""
    kernel = kernel_in_memory(K, overwrite, jitter)
    kernel.pool = pool
    check_positive(kernel)
    return kernel


def kernel_in_memory(K: ArrayLike, overwrite: bool, jitter: float) -> KernelMatrix:
    """As :func:`checked_kernel`, but for :func:`check_positive`. O(n^2)."""
    if overwrite:
        if not (
            isinstance(K, np.ndarray)
            and K.dtype == np.float64
            and K.flags.c_contiguous
            and K.flags.writeable
        ):
            raise ValueError(
                f"K is {_checks.describe(K)}; allowed with overwrite_K: a writeable C-contiguous "
                "float64 array"
            )
        array = K
    else:
        array = _checks.real_array("K", K)
        with np.errstate(over="ignore"):  # beyond the range of a double: found below
            array = np.array(array, dtype=np.float64, order="C")
    square("K", array.shape)
    _checks.covariance("K", array, _checks.half_digits(K))
    array[np.diag_indices(len(array))] += jitter
    return KernelMatrix(array)


def check_positive(kernel: KernelMatrix) -> None:
    """Refuse a matrix that is not positive semi-definite to rounding. O(n^3 / 3)."""
    if not kernel.is_positive(ROUNDING * float(kernel.diagonal.max()) + 1e-300):
        raise ValueError(
            "K is not positive semi-definite; allowed: a covariance matrix (where rounding made it "
            "so, give jitter)"
        )

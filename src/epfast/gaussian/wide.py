"""Wide data, fewer rows than columns: the prior that the rows give h = X theta, N(X m, X S X').

EP on h works with matrices of order n. Of the d x d covariance S of the weights' prior a variance
per weight is kept, or what the user gave.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast._arrays import Array, pieces
from epfast._core.kernel_matrix import KernelMatrix
from epfast.gaussian.notes import is_mapped
from epfast.gaussian.problem import (
    MOST_BYTES,
    Data,
    Problem,
    State,
    in_memory,
    inverse_of,
    inverse_root,
    not_proper,
    prior_of,
)
from epfast.inference.runtime import cached_property
from epfast.schedules import EP

#: numbers that are multiplied at a time, so that Ctrl-C acts within about a second, and that
#: temporary arrays hold
WORK, NUMBERS = 1 << 29, 1 << 20
#: largest product of a row's prior mean and variance, of which EP loses about so many roundings:
#: the log evidence of 16 fits of 30 rows and 60 columns is 4e-5 nats off at 2e6, .009 at 2e7, and
#: .5 at 2e8
FAR = 1e7
#: variances are multiples of others if their ratios are equal, to rounding
SAME = 1e-14


# ---- products of rows ----


def products(rows: Any, X: Any) -> Array:
    """rows X', (m, n), of dense or CSR matrices with the same columns."""
    m, n = rows.shape[0], X.shape[0]
    if hasattr(rows, "indptr") and hasattr(X, "indptr"):
        result, columns = np.empty((m, n)), X.T.tocsr()
        for part in pieces(m, n):
            result[part] = (rows[part] @ columns).toarray()
        return result
    if hasattr(X, "indptr"):
        return np.asarray((X @ np.asarray(rows, dtype=np.float64).T).T)
    result = np.zeros((m, n))
    for part in _columns(X, m):
        block = rows[:, part]
        block = block.toarray() if hasattr(rows, "indptr") else np.asarray(block, dtype=np.float64)
        result += block @ np.asarray(X[:, part], dtype=np.float64).T
    return result


def diagonal_products(rows: Any, others: Any) -> Array:
    """The products of each row with its fellow, (m,)."""
    if hasattr(others, "indptr"):
        return np.asarray(others.multiply(rows).sum(axis=1)).ravel()
    return np.asarray(np.einsum("ij,ij->i", rows, others))


def gram(X: Any, variance: Array | None, center: Array | None = None) -> Array:
    """X diag(variance) X', (n, n), from the nonzeros of a CSR matrix. None: variances of 1.

    center: (d,), is taken from dense rows.
    """
    if hasattr(X, "indptr"):
        return products(X if variance is None else X.multiply(variance).tocsr(), X)
    result = np.zeros((X.shape[0], X.shape[0]))
    for part in _columns(X, X.shape[0]):
        block = np.asarray(X[:, part], dtype=np.float64)
        if center is not None:
            block = block - center[part]
        if variance is not None:
            block = block * np.sqrt(variance[part])
        result += np.dot(block, block.T)
    return result


def _columns(X: Any, m: int) -> list[slice]:
    """Slices of columns for products with m rows."""
    n, d = X.shape
    step = max(1, min(NUMBERS // max(1, m), WORK // max(1, m * n)))
    return [slice(i, i + step) for i in range(0, d, step)]


# ---- the prior of the weights, and of the rows ----


class WeightPrior:
    """N(m, S) over the weights: a variance per weight, or a precision that the user gave.

    O(d^3) for a precision (d, d), once. With a center c, see ``prior_of`` in problem.py, the last
    weight is b + c.w under that precision, so that S is its inverse D less D c e' and its
    transpose, with (c.D c) e e' added; e is the unit vector of the intercept.
    """

    def __init__(self, prior: State, center: Array | None = None) -> None:
        self.precision = prior.precision
        #: (d,), c, with 0 for the intercept
        self.center = None if center is None else np.append(center, 0.0)
        #: (d, d), S of a precision (d, d)
        self.covariance: Array | None = None
        if self.precision.ndim == 2:
            self.covariance = inverse_of(self.precision)
            if self.center is not None:
                self.covariance[-1] -= self.center @ self.covariance
                self.covariance[:, -1] -= self.covariance @ self.center
            self.variance = np.diag(self.covariance).copy()
        else:
            #: (d,), D of a precision (d,)
            self.scales = 1.0 / self.precision
            self.variance = self.scales.copy()
            if self.center is not None:
                self.variance[-1] += self.center @ (self.scales * self.center)

    def of_rows(self, rows: Any) -> Any:
        """rows S, of rows dense or CSR."""
        if self.covariance is not None:
            return np.asarray(rows @ self.covariance)
        if self.center is None:
            return _scaled(rows, self.scales)
        ones = rows[..., -1:]
        ones = ones.toarray() if hasattr(ones, "indptr") else ones
        product = np.asarray(rows - ones * self.center) * self.scales
        product[..., -1] -= product @ self.center
        return product

    def of_columns(self, columns: Any, part: slice) -> Any:
        """Some rows of S columns, for columns = X', (d, n), of rows that end in 1."""
        if self.covariance is not None:
            return np.asarray(self.covariance[part] @ columns)
        product = _scaled(columns[part], self.scales[part, None])
        if self.center is None:
            return product
        along = self.scales * self.center
        product = product.toarray() if hasattr(product, "indptr") else product
        product -= along[part, None]
        if part.indices(len(along))[1] == len(along):
            product[-1] += self.center @ along - np.asarray(along @ columns)
        return product

    @cached_property
    def _root(self) -> Array:
        return inverse_root(self.precision)

    def color(self, noise: Array) -> Array:
        """Turn standard normal draws (k, d) into draws of N(0, S)."""
        if self.covariance is not None:
            theta = np.asarray(noise @ self._root.T)
        else:
            theta = np.asarray(noise * np.sqrt(self.scales))
        if self.center is not None:
            theta[:, -1] -= theta @ self.center
        return theta

    def matrix(self) -> Array:
        """(d, d), S."""
        if self.covariance is not None:
            return self.covariance.copy()
        matrix = np.diag(self.variance)
        if self.center is not None:
            matrix[-1, :-1] = matrix[:-1, -1] = -(self.scales * self.center)[:-1]
        return matrix


def _scaled(rows: Any, by: Array) -> Any:
    return rows.multiply(by).tocsr() if hasattr(rows, "indptr") else np.asarray(rows * by)


class WideRows:
    """The rows of a fit in the n x n form, its own."""

    def __init__(
        self,
        X: Any,
        intercept: bool,
        center: Array | None = None,
        remembered: tuple[Array, Array | None] | None = None,
    ) -> None:
        #: center: where the intercept has its prior, see :func:`epfast.gaussian.problem.prior_of`
        self.X, self.intercept, self.center = X, intercept, center
        #: variances V of the weights but the intercept, and X V X', of dense rows about the center,
        #: kept for multiples of them
        self.remembered = remembered
        self._prior: WeightPrior | None = None

    def __getstate__(self) -> dict[str, Any]:
        known = None if self.remembered is None else (self.remembered[0], None)
        return self.__dict__ | {"remembered": known, "_prior": None}

    def prior(self, prior: State) -> WeightPrior:
        """The prior of the weights; the last one is kept."""
        if self._prior is None or self._prior.precision is not prior.precision:
            self._prior = WeightPrior(prior, self.center)
        return self._prior

    def of(self, X: Any) -> WideRows:
        """Other rows, under the same prior."""
        return WideRows(X, self.intercept, self.center)

    def remembering(self, variance: Array) -> WideRows:
        """The same, with X V X' at hand for multiples of these prior variances. O(n^2 d)."""
        with np.errstate(over="ignore", invalid="ignore"):
            known = variance, self._gram(variance)
            return WideRows(self.X, self.intercept, self.center, known)

    def columns(self) -> Any:
        """X', whose rows are at hand."""
        return self.X.T.tocsr() if hasattr(self.X, "indptr") else self.X.T

    def _features(self) -> Any:
        return self.X[:, :-1] if self.intercept else self.X

    def _gram(self, variance: Array | None) -> Array:
        """X S X' without the intercept. Dense rows are about the center.

        Products about 0 of rows far from it lose the digits of their differences.
        """
        rows = self._features()
        return gram(rows, variance, None if hasattr(rows, "indptr") else self.center)

    def kernel(self, prior: State) -> KernelMatrix:
        """The prior covariance of the rows. O(n^2 d), of multiples of known variances O(n^2)."""
        with np.errstate(over="ignore", invalid="ignore"):
            array = self._kernel(prior)
        if not np.isfinite(array).all():
            raise not_proper()
        return KernelMatrix(array)

    def _kernel(self, prior: State) -> Array:
        if prior.precision.ndim == 2:
            array = products(self.prior(prior).of_rows(self.X), self.X)
            return np.ascontiguousarray(0.5 * (array + array.T))
        variance = 1.0 / prior.precision
        common = variance[: len(variance) - self.intercept]
        known, kernel = self.remembered or (np.ones_like(common), None)
        times = common / known
        if np.abs(times - times[0]).max() <= SAME * times[0]:
            array = times[0] * (self._gram(known) if kernel is None else kernel)
        else:
            array = self._gram(common)
        array = array + variance[-1] if self.intercept else array
        if self.center is not None and hasattr(self.X, "indptr"):  # K - r 1' - 1 r' + a
            along = common * self.center
            r = np.asarray(self._features() @ along, dtype=np.float64)
            array -= r[:, None] + r - self.center @ along
        return np.asarray(array)


def offset_of(problem: Problem) -> Array | None:
    """(n,), prior mean of X theta. None: 0."""
    if not problem.prior.shift.any():
        return None
    return np.asarray(problem.data.X @ problem.prior_mean, dtype=np.float64)


def mean_of(problem: Problem, alpha: Array) -> Array:
    """(d,), posterior mean of the weights, m + S X' alpha."""
    back = np.asarray(alpha @ problem.data.X)
    return np.asarray(problem.prior_mean + problem.wide.prior(problem.prior).of_rows(back))


# ---- which problems are wide ----


def wide_rows(
    choices: Any, X: Any, intercept: bool, center: Array | None = None
) -> WideRows | None:
    """The rows, if a fit by these choices takes the n x n form.

    Scalar sites of EP with a full covariance, fewer rows than columns; not in chunks, nor relaxed.
    """
    schedule = choices.schedule
    if not (isinstance(schedule, EP) and choices.covariance == "full"):
        return None
    by_rows = choices.batch_size is None and choices.loss.latents == 1
    if not by_rows or choices.scheme.relaxes or not hasattr(X, "shape"):
        return None
    if schedule.order == "chunked" or not is_wide(*X.shape):
        return None
    return WideRows(_own(X, intercept), intercept, center)


def is_wide(n: int, d: int) -> bool:
    """Whether n rows of d columns are wide.

    Sweeps of order n take less time up to n = 1.5 d, but from n = d on the d x d form has shorter
    predictions, and keeps no rows.
    """
    return n < d


def in_best_form(problem: Problem) -> Problem:
    """The same problem, in the d x d form where the prior mean of a row costs too many digits."""
    if not problem.prior.shift.any():
        return problem
    d, X = len(problem.prior.shift), problem.data.X
    offset: Any = offset_of(problem)
    with np.errstate(over="ignore", invalid="ignore"):
        spread = diagonal_products(problem.wide.prior(problem.prior).of_rows(X), X)
        far = not (np.abs(offset) * spread <= FAR).all()
    return in_d_by_d(problem) if far and 8 * d * d <= MOST_BYTES else problem


def same_rows(one: Data, other: Data) -> bool:
    """Whether two fits know their rows, and they are equal. O(n d)."""
    if one.y is None or other.y is None or one.X.shape != other.X.shape:
        return False
    if not np.array_equal(one.y, other.y):
        return False
    if hasattr(one.X, "indptr") or hasattr(other.X, "indptr"):
        return bool(abs(one.X - other.X).max() == 0.0)
    return np.array_equal(one.X, other.X)


def _own(X: Any, is_copy: bool) -> Any:
    """X, which predictions need, as nobody else changes it: a copy, but of a read-only map."""
    if is_copy:
        return X
    if hasattr(X, "indptr"):
        return X.copy()
    return X if is_mapped(X) and not X.flags.writeable else np.array(X, order="C")


def in_d_by_d(problem: Problem) -> Problem:
    """The same problem in the d x d form. O(d^2) numbers."""
    prior = problem.prior
    if prior.precision.ndim == 1:
        in_memory("a matrix of the weights", len(prior.shift), "the n x n form makes none")
    if prior.precision.ndim == 1 or problem.center is not None:
        mean = problem._replace(center=None).prior_mean
        prior = prior_of(prior.precision, mean, True, problem.center)
    return problem._replace(prior=prior, base=prior, wide=None)

"""Wide data, fewer rows than columns: the prior that the rows give h = X theta, N(X m, X S X').

EP on h works with matrices of order n. Of the d x d covariance S of the weights' prior a variance
per weight is kept, or what the user gave.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast._arrays import Array
from epfast._core.kernel_matrix import KernelMatrix
from epfast.gaussian.notes import is_mapped
from epfast.gaussian.problem import (
    Data,
    LinearProblem,
    State,
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
#: largest product of a row's prior mean and variance, of which EP loses about so many roundings
FAR = 1e7
#: bytes of the largest d x d matrix that is made of a posterior in the n x n form
MOST_BYTES = 2 << 30


# ---- products of rows ----


def pieces(n: int, numbers: int) -> list[slice]:
    """Slices of n things of so many numbers each, of NUMBERS in all."""
    step = max(1, NUMBERS // max(1, numbers))
    return [slice(i, min(i + step, n)) for i in range(0, n, step)]


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
        some = rows[:, part]
        some = some.toarray() if hasattr(rows, "indptr") else np.asarray(some, dtype=np.float64)
        result += some @ np.asarray(X[:, part], dtype=np.float64).T
    return result


def diagonal_products(rows: Any, others: Any) -> Array:
    """The products of each row with its fellow, (m,)."""
    if hasattr(others, "indptr"):
        return np.asarray(others.multiply(rows).sum(axis=1)).ravel()
    return np.asarray(np.einsum("ij,ij->i", rows, others))


def gram(X: Any, variance: Array | None) -> Array:
    """X diag(variance) X', (n, n), from the nonzeros of a CSR matrix; None: variances of 1."""
    if hasattr(X, "indptr"):
        return products(X if variance is None else X.multiply(variance).tocsr(), X)
    result = np.zeros((X.shape[0], X.shape[0]))
    for part in _columns(X, X.shape[0]):
        some = np.asarray(X[:, part], dtype=np.float64)
        if variance is not None:
            some = some * np.sqrt(variance[part])
        result += np.dot(some, some.T)
    return result


def _columns(X: Any, m: int) -> list[slice]:
    """Slices of columns for products with m rows."""
    n, d = X.shape
    step = max(1, min(NUMBERS // max(1, m), WORK // max(1, m * n)))
    return [slice(i, i + step) for i in range(0, d, step)]


# ---- the prior of the weights, and of the rows ----


class WeightPrior:
    """N(m, S) over the weights: a variance per weight, or a precision that the user gave.

    O(d^3) for a precision (d, d), once.
    """

    def __init__(self, prior: State) -> None:
        self.precision = prior.precision
        #: (d, d), None if S is diagonal
        self.covariance: Array | None = None
        if self.precision.ndim == 2:
            self.covariance = inverse_of(self.precision)
            self.variance = np.diag(self.covariance).copy()
        else:
            self.variance = 1.0 / self.precision

    def of_rows(self, rows: Any) -> Any:
        """rows S, of rows dense or CSR."""
        if self.covariance is not None:
            return np.asarray(rows @ self.covariance)
        return _scaled(rows, self.variance)

    def of_columns(self, columns: Any, part: slice) -> Any:
        """Some rows of S columns, for columns = X', (d, n)."""
        if self.covariance is not None:
            return np.asarray(self.covariance[part] @ columns)
        return _scaled(columns[part], self.variance[part, None])

    @cached_property
    def _root(self) -> Array:
        return inverse_root(self.precision)

    def color(self, noise: Array) -> Array:
        """Turn standard normal draws (k, d) into draws of N(0, S)."""
        if self.covariance is not None:
            return np.asarray(noise @ self._root.T)
        return np.asarray(noise * np.sqrt(self.variance))

    def matrix(self) -> Array:
        """(d, d), S."""
        return np.diag(self.variance) if self.covariance is None else self.covariance.copy()


def _scaled(rows: Any, by: Array) -> Any:
    return rows.multiply(by).tocsr() if hasattr(rows, "indptr") else np.asarray(rows * by)


class WideRows:
    """The rows of a fit in the n x n form, its own."""

    def __init__(self, X: Any, intercept: bool, remembered: Array | None = None) -> None:
        self.X, self.intercept = X, intercept
        #: X X' without the intercept, if it is kept for other prior variances
        self.remembered = remembered
        self._prior: WeightPrior | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"remembered": None, "_prior": None}

    def prior(self, prior: State) -> WeightPrior:
        """The prior of the weights; the last one is kept."""
        if self._prior is None or self._prior.precision is not prior.precision:
            self._prior = WeightPrior(prior)
        return self._prior

    def remembering(self) -> WideRows:
        """The same, with X X' at hand for any common prior variance. O(n^2 d)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return WideRows(self.X, self.intercept, gram(self._features(), None))

    def columns(self) -> Any:
        """X', whose rows are at hand."""
        return self.X.T.tocsr() if hasattr(self.X, "indptr") else self.X.T

    def _features(self) -> Any:
        return self.X[:, :-1] if self.intercept else self.X

    def kernel(self, prior: State) -> KernelMatrix:
        """The prior covariance of the rows. O(n^2 d), or O(n^2) for a common prior variance."""
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
        if not (common == common[0]).all():
            return gram(self.X, variance)
        array = gram(self._features(), None) if self.remembered is None else self.remembered
        array = common[0] * array
        return np.asarray(array + variance[-1] if self.intercept else array)


def offset_of(problem: LinearProblem) -> Array | None:
    """(n,), prior mean of X theta; None: 0."""
    if not problem.prior.shift.any():
        return None
    return np.asarray(problem.data.X @ problem.prior_mean, dtype=np.float64)


def mean_of(problem: LinearProblem, alpha: Array) -> Array:
    """(d,), posterior mean of the weights, m + S X' alpha."""
    back = np.asarray(alpha @ problem.data.X)
    return np.asarray(problem.prior_mean + problem.wide.prior(problem.prior).of_rows(back))


# ---- the door ----


def wide_rows(choices: Any, data: Data, intercept: bool) -> WideRows | None:
    """The rows, if a fit by these choices takes the n x n form.

    Scalar sites of EP with a full covariance, fewer rows than columns; not in chunks, or where they
    are weighted and fitted in parallel.
    """
    schedule = choices.schedule
    if not (isinstance(schedule, EP) and choices.covariance == "full"):
        return None
    by_rows = choices.batch_size is None and choices.loss.latents == 1
    if not by_rows or not hasattr(data.X, "shape"):
        return None
    if schedule.order == "chunked" or (data.weights is not None and schedule.order == "parallel"):
        return None
    return WideRows(_own(data.X, intercept), intercept) if is_wide(*data.X.shape) else None


def is_wide(n: int, d: int) -> bool:
    """Whether n rows of d columns are wide.

    Sweeps of order n take less time up to n = 1.5 d, but from n = d on the d x d form has shorter
    predictions, and keeps no rows.
    """
    return n < d


def in_best_form(problem: LinearProblem) -> LinearProblem:
    """The same problem, in the d x d form where the prior mean of a row costs too many digits."""
    if problem.wide is None or not problem.prior.shift.any():
        return problem
    d, X = len(problem.prior.shift), problem.data.X
    offset = offset_of(problem)
    assert offset is not None
    with np.errstate(over="ignore", invalid="ignore"):
        spread = diagonal_products(problem.wide.prior(problem.prior).of_rows(X), X)
        far = not (np.abs(offset) * spread <= FAR).all()
    return in_d_by_d(problem) if far and 8 * d * d <= MOST_BYTES else problem


def same_rows(mine: Data, theirs: Data) -> bool:
    """Whether two fits know their rows, and they are equal. O(n d)."""
    if mine.y is None or theirs.y is None or mine.X.shape != theirs.X.shape:
        return False
    if not np.array_equal(mine.y, theirs.y):
        return False
    if hasattr(mine.X, "indptr") or hasattr(theirs.X, "indptr"):
        return bool(abs(mine.X - theirs.X).max() == 0.0)
    return np.array_equal(mine.X, theirs.X)


def _own(X: Any, is_copy: bool) -> Any:
    """X, which predictions need, as nobody else changes it: a copy, but of a read-only map."""
    if is_copy:
        return X
    if hasattr(X, "indptr"):
        return X.copy()
    return X if is_mapped(X) and not X.flags.writeable else np.array(X, order="C")


def in_d_by_d(problem: LinearProblem) -> LinearProblem:
    """The same problem in the d x d form. O(d^2) numbers."""
    prior = problem.prior
    if prior.precision.ndim == 1:
        in_memory("a matrix of the weights", len(prior.shift), "the n x n form makes none")
        prior = prior_of(prior.precision, problem.prior_mean, True)
    return problem._replace(prior=prior, base=prior, wide=None)


def in_memory(name: str, d: int, instead: str) -> None:
    """Refuse a d x d matrix that is too large."""
    if 8 * d * d > MOST_BYTES:
        raise MemoryError(
            f"{name} would take {8e-9 * d * d:,.0f} GB, {d} x {d} numbers; allowed: up to "
            f"{MOST_BYTES >> 30} GB; {instead}"
        )

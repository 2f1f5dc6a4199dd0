"""Wide data, fewer rows than columns: the prior that the rows give h = X theta, N(X m, X S X').

EP on h works with matrices of order n. Of the d x d covariance S of the weights' prior a variance
per weight is kept, or what the user gave.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from epfast._arrays import Array
from epfast._core.kernel_matrix import KernelMatrix
from epfast.inference import Sites
from epfast.inference.runtime import cached_property
from epfast.linear.engines.kernel import Moments, moments_of
from epfast.linear.notes import is_mapped
from epfast.linear.problem import (
    Data,
    LinearProblem,
    State,
    inverse_of,
    inverse_root,
    not_proper,
    prior_of,
)
from epfast.schedules import EP

#: numbers that are multiplied at a time, so that Ctrl-C acts within about a second, and that
#: temporary arrays hold
WORK, NUMBERS = 1 << 29, 1 << 20
#: largest product of a row's prior mean and variance, of which EP loses about so many roundings
FAR = 1e7
#: bytes of the largest d x d matrix that is made of a posterior in the n x n form
MOST_BYTES = 2 << 30


class WideState(NamedTuple):
    """The sites of the rows and their sweeps, and what follows from them: plain arrays."""

    sites: Sites
    #: sweeps done so far
    sweeps: int
    #: of h; None: yet to be computed
    moments: Moments | None = None
    #: (n, n): below the diagonal K, the rest R = (K + 1 / precision)^-1; None as above
    packed: Array | None = None
    #: (n,), the diagonal of K
    diagonal: Array | None = None

    @property
    def rows_seen(self) -> None:
        """Of ADF alone."""
        return None


# ---- the prior of the weights ----


class DiagonalPrior:
    """N(m, diag(variance)) over the weights."""

    def __init__(self, prior: State) -> None:
        self.variance = 1.0 / prior.precision

    def times(self, matrix: Array) -> Array:
        """S times (d,) or (d, k)."""
        return (self.variance * matrix.T).T

    def of_columns(self, columns: Any, part: slice) -> Any:
        """Some rows of S columns, for columns = X', (d, n)."""
        spread = self.variance[part, None]
        if hasattr(columns, "indptr"):
            return columns[part].multiply(spread).tocsr()
        return np.asarray(columns[part] * spread)

    def of_rows(self, rows: Any) -> Any:
        """rows S, of rows dense or CSR."""
        if hasattr(rows, "indptr"):
            return rows.multiply(self.variance).tocsr()
        return np.asarray(rows * self.variance)

    def variances(self, rows: Any) -> Array:
        """The diagonal of rows S rows'."""
        if hasattr(rows, "indptr"):
            return np.asarray(rows.multiply(rows) @ self.variance)
        return np.asarray(np.square(rows, dtype=np.float64) @ self.variance)

    def color(self, noise: Array) -> Array:
        """Turn standard normal draws (k, d) into draws of N(0, S)."""
        return np.asarray(noise * np.sqrt(self.variance))

    def matrix(self) -> Array:
        """(d, d), S."""
        return np.diag(self.variance)


class DensePrior:
    """N(m, precision^-1) over the weights, with a d x d matrix that the user gave. O(d^3), once."""

    def __init__(self, prior: State) -> None:
        self.precision = prior.precision
        self.covariance = inverse_of(prior.precision)
        self.variance = np.diag(self.covariance).copy()

    @cached_property
    def root(self) -> Array:
        """(d, d), S = root root'. O(d^3), once."""
        return inverse_root(self.precision)

    def times(self, matrix: Array) -> Array:
        return np.asarray(self.covariance @ matrix)

    def of_columns(self, columns: Any, part: slice) -> Array:
        return np.asarray(self.covariance[part] @ columns)

    def of_rows(self, rows: Any) -> Any:
        return np.asarray(rows @ self.covariance)

    def variances(self, rows: Any) -> Array:
        half = np.asarray(rows @ self.root)
        return np.asarray(np.einsum("ij,ij->i", half, half))

    def color(self, noise: Array) -> Array:
        return np.asarray(noise @ self.root.T)

    def matrix(self) -> Array:
        return np.array(self.covariance)


Prior = DiagonalPrior | DensePrior


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
    step = max(1, min(NUMBERS // max(1, m), WORK // max(1, m * n)))
    for i in range(0, X.shape[1], step):
        part = slice(i, i + step)
        some = rows[:, part]
        some = some.toarray() if hasattr(rows, "indptr") else np.asarray(some, dtype=np.float64)
        result += some @ np.asarray(X[:, part], dtype=np.float64).T
    return result


def gram(X: Any, variance: Array | None) -> Array:
    """X diag(variance) X', (n, n), from the nonzeros of a CSR matrix; None: variances of 1."""
    n, d = X.shape
    if hasattr(X, "indptr"):
        return products(X if variance is None else X.multiply(variance).tocsr(), X)
    result = np.zeros((n, n))
    step = max(1, min(NUMBERS // n, WORK // (n * n)))
    for i in range(0, d, step):
        part = slice(i, i + step)
        some = np.asarray(X[:, part], dtype=np.float64)
        if variance is not None:
            some = some * np.sqrt(variance[part])
        result += np.dot(some, some.T)
    return result


class WideRows:
    """The rows of a fit in the n x n form, its own."""

    def __init__(self, X: Any, intercept: bool, remembered: Array | None = None) -> None:
        self.X, self.intercept = X, intercept
        #: X X' without the intercept, if it is kept for other prior variances
        self.remembered = remembered
        self._dense: DensePrior | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"remembered": None, "_dense": None}

    def prior(self, prior: State) -> Prior:
        """The prior of the weights. O(d^3) for a precision (d, d), once."""
        if prior.precision.ndim == 1:
            return DiagonalPrior(prior)
        if self._dense is None or self._dense.precision is not prior.precision:
            self._dense = DensePrior(prior)
        return self._dense

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
        if self.remembered is not None:
            array = common[0] * self.remembered
        else:
            array = gram(self._features(), None)
            array *= common[0]
        if self.intercept:
            array += variance[-1]
        return array


def offset_of(problem: LinearProblem) -> Array | None:
    """(n,), prior mean of X theta; None: 0."""
    if not problem.prior.shift.any():
        return None
    return np.asarray(problem.data.X @ problem.prior_mean, dtype=np.float64)


def mean_of(problem: LinearProblem, alpha: Array) -> Array:
    """(d,), posterior mean of the weights, m + S X' alpha."""
    back = np.asarray(alpha @ problem.data.X)
    return np.asarray(problem.prior_mean + problem.wide.prior(problem.prior).times(back))


def losses_of(problem: LinearProblem, latent: Array, part: Any = slice(None)) -> Array:
    """Beta times the weighted loss of some rows at latent values (m, k), (m, k)."""
    y, weights = problem.data.y, problem.data.weights
    assert y is not None
    found = problem.loss.values(latent, y[part])
    return found if weights is None else weights[part, None] * found


def solved(problem: LinearProblem, sites: Sites, sweeps: int) -> WideState | None:
    """The state of these sites; None if it is improper. O(n^2 d + n^3)."""
    kernel: KernelMatrix = problem.wide.kernel(problem.prior)
    offset = offset_of(problem)
    moments = moments_of(kernel, sites, covariance=False, marginals=False, offset=offset)
    if moments is None:
        return None
    return WideState(sites, sweeps, moments, kernel.array, kernel.diagonal)


# ---- the door ----


def wide_rows(choices: Any, data: Data, intercept: bool) -> WideRows | None:
    """The rows, if a fit by these choices takes the n x n form.

    Scalar sites of EP with a full covariance, fewer rows than columns; not in chunks, or where they
    are weighted and fitted in parallel.
    """
    schedule = choices.schedule
    if not (isinstance(schedule, EP) and choices.covariance == "full"):
        return None
    if choices.batch_size is not None or not hasattr(data.X, "shape"):
        return None
    if schedule.order == "chunked" or (data.weights is not None and schedule.order == "parallel"):
        return None
    return WideRows(_own(data.X, intercept), intercept) if is_wide(*data.X.shape) else None


def is_wide(n: int, d: int) -> bool:
    """Whether n rows of d columns are wide: sweeps of order n take less time, up to n = 1.5 d.

    Then the d x d form has shorter predictions, and keeps no rows.
    """
    return n < d


def in_best_form(problem: LinearProblem) -> LinearProblem:
    """The same problem, in the d x d form where the prior mean of a row costs too many digits."""
    if problem.wide is None or not problem.prior.shift.any():
        return problem
    d = len(problem.prior.shift)
    offset = offset_of(problem)
    assert offset is not None
    with np.errstate(over="ignore", invalid="ignore"):
        spread = problem.wide.prior(problem.prior).variances(problem.data.X)
        far = not (np.abs(offset) * spread <= FAR).all()
    return in_d_by_d(problem) if far and 8 * d * d <= MOST_BYTES else problem


def same_rows(mine: Data, theirs: Data) -> bool:
    """Whether two fits know their rows, and they are equal. O(n d)."""
    if mine.y is None or theirs.y is None or mine.X.shape != theirs.X.shape:
        return False
    if not np.array_equal(mine.y, theirs.y):
        return False
    ours, others = mine.X, theirs.X
    if hasattr(ours, "indptr") or hasattr(others, "indptr"):
        return bool(abs(ours - others).max() == 0.0)
    return np.array_equal(ours, others)


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

"""Rows of a fit: read from the arguments of the user, checked, and multiplied."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from epfast import _checks
from epfast._arrays import CSR, Array, Given, Matrix, Piece, Which, is_sparse, pieces, row_chunks
from epfast._core.sparse_factors import appended
from epfast.losses import Loss
from epfast.schedules import FilledSchedule

#: numbers that are multiplied at a time, so that Ctrl-C acts within about a second, and that
#: temporary arrays hold
WORK, NUMBERS = 1 << 29, 1 << 20
#: a constant further from 0 than this has no prior of the intercept at its mean: fits with a
#: constant column fail from ten times as far on
FAR_CONSTANT = 3e3
#: spread of a column, over its size, below which its squares are those of a constant, to rounding
NO_SPREAD = 1e-8


class Data(NamedTuple):
    """The rows of a fit, by reference: they cost no memory."""

    #: (n, d), an array or a CSR matrix. A pass may have a Stream in its place, and a problem that
    #: was loaded or unpickled None
    X: Matrix
    #: (n, response_width). With a stream, or without X, None
    y: Array
    #: (n,). None: all 1
    weights: Array | None = None
    #: (n,), the group of each row, or None unless rows share sites
    groups: NDArray[np.intp] | None = None

    def select(self, which: Which) -> Data:
        """Some of the rows."""
        return Data._make(None if part is None else part[which] for part in self)

    def copied(self) -> Data:
        return Data._make(None if part is None else part.copy() for part in self)


#: in the place of rows that are not here
NO_ROWS = Data._make((None,) * 4)


# ---- from the arguments of the user ----


def data_of(rows: Matrix, y: Given, weights: Given, loss: Loss, offset: Given = None) -> Data:
    """Rows that ``_checks.rows`` made, with their responses and weights, checked. O(n d)."""
    if y is None:
        raise ValueError("y is None; allowed: a response per row of X, (n,)")
    check_finite(rows)
    return responses_of(loss, y, rows.shape[0], weights, offset)._replace(X=rows)


def responses_of(loss: Loss, y: Given, n: int, weights: Given = None, offset: Given = None) -> Data:
    """Responses and weights of n rows, checked, without the rows."""
    return NO_ROWS._replace(y=loss.observed(y, n, offset), weights=weights_of(weights, n))


def check_finite(rows: Matrix) -> None:
    """Refuse rows, dense or CSR, with an entry that is not finite. O(n d)."""
    entries = rows.data[:, None] if is_sparse(rows) else rows
    for part in row_chunks(entries):
        with np.errstate(all="ignore"):
            if math.isfinite(float(entries[part].sum())):
                continue
        good = np.isfinite(entries[part]).all(axis=1)
        if not good.all():
            row = part.start + int(np.argmin(good))
            if is_sparse(rows):
                row = int(np.searchsorted(rows.indptr, row, "right")) - 1
            raise ValueError(
                f"X holds NaN or infinity, first in row {row}; allowed: finite numbers"
            )


def weights_of(weights: Given, n: int) -> Array | None:
    """Weights of n rows, checked, (n,). None: all 1."""
    if weights is None:
        return None
    result = _checks.array("weights", weights, shape=(n,))
    if not ((result >= 0.0) & (result <= 1e15)).all():
        raise ValueError(
            f"weights holds numbers from {result.min():g} to {result.max():g}; allowed: from 0 to "
            "1e15"
        )
    if not result.any():
        raise ValueError("weights are all 0; allowed: one row at least that counts")
    return None if (result == 1.0).all() else result


def copies_of(weights: Array) -> Array:
    """The number of copies that a row of each weight counts as, (n,)."""
    return np.where(weights > 0.0, np.maximum(weights, 1.0), 0.0)


def with_ones(rows: Matrix) -> Matrix:
    """Rows, dense or CSR, with a column of ones at the end. A copy."""
    n, d = rows.shape
    if is_sparse(rows):
        kind = sparse.csr_array if isinstance(rows, sparse.csr_array) else sparse.csr_matrix
        longer: CSR = kind(appended(rows.indptr, rows.indices, rows.data, d), shape=(n, d + 1))
        return longer
    result = np.empty((n, d + 1), dtype=rows.dtype)
    result[:, :d] = rows
    result[:, d] = 1.0
    return result


def same_rows(one: Data, other: Data) -> bool:
    """Whether two fits know their rows, and they are equal. O(n d)."""
    if one.y is None or other.y is None or one.X.shape != other.X.shape:
        return False
    if not np.array_equal(one.y, other.y):
        return False
    a, b = (one.X, other.X) if is_sparse(one.X) else (other.X, one.X)
    if is_sparse(a):
        return not ((a - b).count_nonzero() if is_sparse(b) else np.count_nonzero(a - b))
    assert not is_sparse(b)
    return np.array_equal(a, b)


def is_mapped(X: Matrix) -> bool:
    """Whether an array lies in a file."""
    array: Matrix | None = X
    while array is not None and not isinstance(array, np.memmap):
        array = getattr(array, "base", None)
    return array is not None


def own_rows(X: Matrix, is_copy: bool) -> Matrix:
    """X, which predictions need, as nobody else changes it: a copy, but of a read-only map."""
    if is_copy:
        return X
    if is_sparse(X):
        return X.copy()
    return X if is_mapped(X) and not X.flags.writeable else np.array(X, order="C")


# ---- where an intercept has its prior ----


def mean_of_rows(rows: Matrix, weights: Array | None = None) -> Array:
    """(d,), of rows dense or CSR."""
    with np.errstate(over="ignore", invalid="ignore"):
        if weights is None and not is_sparse(rows):
            return np.asarray(rows.mean(axis=0, dtype=np.float64))
        weights = np.ones(rows.shape[0]) if weights is None else weights
        return np.asarray(rows.T @ (weights / weights.sum()), dtype=np.float64)


def center_of(rows: Matrix, weights: Array | None = None) -> Array:
    """Where an intercept, the last column, has its prior: the means of the others, (d,).

    0 of a constant far from 0. At its mean it would be a difference of large numbers in the
    posterior of the intercept. At 0 it takes the place of the intercept, and its weight is small.
    """
    center = mean_of_rows(rows, weights)[:-1]
    far = np.flatnonzero(np.abs(center) > FAR_CONSTANT)
    if len(far):
        center[far] = near_center(center[far], *ends_of(rows[:, far]))
    return center


def ends_of(rows: Matrix) -> tuple[Array, Array]:
    """The least and the largest entry of each column, dense or CSR, (d,)."""
    if is_sparse(rows):
        entries: sparse.csr_array = rows
        return entries.min(axis=0).toarray().ravel(), entries.max(axis=0).toarray().ravel()
    return rows.min(axis=0), rows.max(axis=0)


def near_center(center: Array, least: Array, most: Array) -> Array:
    """A center, 0 in columns that are constant far from 0; least, most: entries of the columns."""
    size = np.abs(center)
    return np.where((size > FAR_CONSTANT) & (most - least <= NO_SPREAD * size), 0.0, center)


def rounding_of_mean(n: int) -> float:
    """How far the mean of n equal numbers may be off, in their size."""
    return n * float(np.finfo(np.float64).eps)


# ---- products ----


def products(rows: Matrix, X: Matrix) -> Array:
    """rows X', (m, n), of dense or CSR matrices with the same columns."""
    m, n = rows.shape[0], X.shape[0]
    if is_sparse(rows) and is_sparse(X):
        result, columns = np.empty((m, n)), X.T.tocsr()
        for part in pieces(m, n):
            result[part] = (rows[part] @ columns).toarray()
        return result
    if is_sparse(X):
        return np.asarray((X @ np.asarray(rows, dtype=np.float64).T).T)
    result = np.zeros((m, n))
    for part in _columns(X, m):
        block = rows[:, part]
        block = block.toarray() if is_sparse(block) else np.asarray(block, dtype=np.float64)
        result += block @ np.asarray(X[:, part], dtype=np.float64).T
    return result


def diagonal_products(rows: Matrix, others: Matrix) -> Array:
    """The products of each row with its fellow, (m,)."""
    if is_sparse(others):
        return np.asarray(others.multiply(rows).sum(axis=1)).ravel()
    assert not is_sparse(rows)
    return np.asarray(np.einsum("ij,ij->i", rows, others))


def gram(X: Matrix, variance: Array | None, center: Array | None = None) -> Array:
    """X diag(variance) X', (n, n), from the nonzeros of a CSR matrix. None: variances of 1.

    center: (d,), is taken from dense rows.
    """
    if is_sparse(X):
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


def _columns(X: Matrix, m: int) -> list[Piece]:
    """Slices of columns for products with m rows."""
    n, d = X.shape
    step = max(1, min(NUMBERS // max(1, m), WORK // max(1, m * n)))
    return [slice(i, i + step) for i in range(0, d, step)]


# ---- chunks of rows, and names of columns ----


#: rows of a user, with their responses
Chunk = tuple[ArrayLike, ArrayLike]
#: rows and responses, checked
CheckedChunk = tuple[Matrix, Array]


def is_stream(X: ArrayLike | Iterable[Chunk], y: ArrayLike | None) -> bool:
    """Whether X is an iterable of chunks, not an array."""
    if hasattr(X, "__array__") or hasattr(X, "tocsr"):
        return False
    return isinstance(X, Iterator) or (y is None and isinstance(X, Iterable))


class Stream:
    """Chunks of rows with their responses, checked as they come. They can be read once.

    All are dense, or all are sparse, as the first is. Frames have the columns of the first.
    """

    def __init__(self, chunks: Iterable[ArrayLike | Chunk], ones: bool = False) -> None:
        """ones: whether rows get a column of ones at the end."""
        self.chunks, self.ones = iter(chunks), ones
        self.loss: Loss | None = None
        self.names: tuple[str, ...] | None = None
        try:
            X, y = _pair(next(self.chunks))
        except StopIteration:
            raise ValueError("X is an empty iterable; allowed: at least one (X, y) chunk") from None
        #: as the user gives it until a loss reads it
        self.first_y = y
        self.names = column_names(X)
        self.first_X = self._rows(X)
        self.sparse = is_sparse(self.first_X)
        #: number of columns
        self.d = int(self.first_X.shape[1])

    def _rows(self, X: ArrayLike, d: int | None = None) -> Matrix:
        """Rows of a chunk, of d columns."""
        check_columns(self.names, X)
        rows = _checks.rows("a chunk's X", X, None if d is None else d - self.ones)
        whole: Matrix = with_ones(rows) if self.ones else rows
        return whole

    def read_by(self, loss: Loss) -> Stream:
        """Set the loss that checks responses, check the first ones, and return the stream."""
        self.loss = loss
        self.first_y = loss.responses("a chunk's y", self.first_y, self.first_X.shape[0])
        return self

    def _checked(self) -> Iterator[CheckedChunk]:
        """The chunks, from the first."""
        assert self.loss is not None
        yield self.first_X, np.asarray(self.first_y)
        for chunk in self.chunks:
            X, y = _pair(chunk)
            rows = self._rows(X, self.d)
            if self.sparse and not is_sparse(rows):
                rows = sparse.csr_matrix(rows)
            elif not self.sparse and is_sparse(rows):
                rows = rows.toarray()
            yield rows, self.loss.responses("a chunk's y", y, rows.shape[0])

    def _joined(self, parts: list[CheckedChunk]) -> CheckedChunk:
        if len(parts) == 1:
            return parts[0]
        X, y = zip(*parts, strict=True)
        whole = sparse.vstack(X, format="csr") if self.sparse else np.concatenate(X)
        return whole, np.concatenate(y)

    def pieces(self, batch_size: int, first: int = 0) -> Iterator[CheckedChunk]:
        """Yield whole minibatches. The rows at the end of a chunk join the next chunk.

        The first piece has at least ``first`` rows, the last what is left.
        """
        parts: list[CheckedChunk] = []
        count, needed = 0, max(first, batch_size)
        for X, y in self._checked():
            parts.append((X, y))
            count += X.shape[0]
            if count < needed:
                # copies: a reader may reuse its buffer for the next chunk
                parts[-1] = X.copy(), y.copy()
                continue
            rows, responses = self._joined(parts)
            whole = count - count % batch_size
            yield rows[:whole], responses[:whole]
            parts, count, needed = [], count - whole, batch_size
            if count:
                parts = [(rows[whole:].copy(), responses[whole:].copy())]
        if count:
            yield self._joined(parts)


def column_names(X: ArrayLike | Iterable[Chunk]) -> tuple[str, ...] | None:
    """Names of the columns of a frame, if all are strings, or None."""
    names = getattr(X, "columns", None)
    if names is None or hasattr(X, "tocsr"):
        return None
    names = tuple(names)
    return names if names and all(isinstance(name, str) for name in names) else None


def check_columns(names: tuple[str, ...] | None, X: ArrayLike) -> None:
    """Refuse a frame whose columns are not those that were fitted, in their order."""
    check_names(names, None if names is None else column_names(X))


def check_names(names: tuple[str, ...] | None, given: tuple[str, ...] | None) -> None:
    """Refuse names of columns, if there are some, that are not those that were fitted."""
    if names is None or given is None or given == names:
        return
    raise ValueError(
        f"X has the columns {_checks.describe(given)}; allowed: those that were fitted, in their "
        f"order, {_checks.describe(names)}"
    )


def _pair(chunk: ArrayLike | Chunk) -> Chunk:
    if not isinstance(chunk, tuple | list) or len(chunk) != 2:
        raise TypeError(f"a chunk of X is {_checks.describe(chunk)}; allowed: a pair (X, y)")
    return chunk[0], chunk[1]


def checked_stream(
    X: ArrayLike | Iterable[Chunk], ones: bool, schedule: FilledSchedule, **extra: ArrayLike | None
) -> Stream:
    """Chunks of rows, of which the first is read. extra: arguments that need all rows."""
    for name, value in extra.items():
        if value is not None:
            raise ValueError(f"{name} is given beside chunks of X; allowed: None")
    if schedule.order == "shuffled" or schedule.sweeps > 1:
        raise ValueError(
            f"schedule is {schedule!r}; allowed with chunks of X: one pass in sequential order"
        )
    assert isinstance(X, Iterable)
    return Stream(X, ones)

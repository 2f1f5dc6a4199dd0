"""Rows of a fit: read from the arguments of the user, checked, and multiplied."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast._arrays import Array, pieces, row_chunks
from epfast._core.sparse_factors import appended
from epfast.losses import Loss

#: numbers that are multiplied at a time, so that Ctrl-C acts within about a second, and that
#: temporary arrays hold
WORK, NUMBERS = 1 << 29, 1 << 20
#: a constant further from 0 than this has no prior of the intercept at its mean: of 40 regressions
#: of 20 to 300 rows with a constant column 6 to 27 failed at 3e4 to 1e9, and none at 2e3 and 1e4
FAR_CONSTANT = 3e3
#: spread of a column, over its size, below which its squares are those of a constant, to rounding
NO_SPREAD = 1e-8


class Data(NamedTuple):
    """The rows of a fit, by reference: they cost no memory."""

    #: (n, d), an array or a CSR matrix, or a Stream, or None after loading or unpickling
    X: Any
    #: (n, response_width), or None with a stream or without X
    y: Any
    #: (n,). None: all 1
    weights: Array | None = None
    #: (n,), the group of each row, or None unless rows share sites
    groups: NDArray[np.intp] | None = None

    def select(self, which: Any) -> Data:
        """Some of the rows."""
        parts: list[Any] = [None if part is None else part[which] for part in self]
        return Data(*parts)

    def copied(self) -> Data:
        parts: list[Any] = [None if part is None else part.copy() for part in self]
        return Data(*parts)


# ---- from the arguments of the user ----


def data_of(rows: Any, y: Any, weights: Any, loss: Loss, offset: Any = None) -> Data:
    """Rows that ``_checks.rows`` made, with their responses and weights, checked. O(n d)."""
    if y is None:
        raise ValueError("y is None; allowed: a response per row of X, (n,)")
    check_finite(rows)
    return responses_of(loss, y, rows.shape[0], weights, offset)._replace(X=rows)


def responses_of(loss: Loss, y: Any, n: int, weights: Any = None, offset: Any = None) -> Data:
    """Responses and weights of n rows, checked, without the rows."""
    return Data(None, loss.observed(y, n, offset), weights_of(weights, n))


def check_finite(rows: Any) -> None:
    """Refuse rows, dense or CSR, with an entry that is not finite. O(n d)."""
    entries = rows.data[:, None] if hasattr(rows, "indptr") else rows
    for part in row_chunks(entries):
        with np.errstate(all="ignore"):
            if math.isfinite(float(entries[part].sum())):
                continue
        good = np.isfinite(entries[part]).all(axis=1)
        if not good.all():
            row = part.start + np.argmin(good)
            if hasattr(rows, "indptr"):
                row = np.searchsorted(rows.indptr, row, "right") - 1
            raise ValueError(
                f"X holds NaN or infinity, first in row {row}; allowed: finite numbers"
            )


def weights_of(weights: Any, n: int) -> Array | None:
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


def with_ones(rows: Any) -> Any:
    """Rows, dense or CSR, with a column of ones at the end. A copy."""
    n, d = rows.shape
    if hasattr(rows, "indptr"):
        parts = appended(rows.indptr, rows.indices, rows.data, d)
        return type(rows)(parts, shape=(n, d + 1))
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
    if hasattr(one.X, "indptr") or hasattr(other.X, "indptr"):
        return bool(abs(one.X - other.X).max() == 0.0)
    return np.array_equal(one.X, other.X)


# ---- where an intercept has its prior ----


def mean_of_rows(rows: Any, weights: Array | None = None) -> Array:
    """(d,), of rows dense or CSR."""
    with np.errstate(over="ignore", invalid="ignore"):
        if weights is None and not hasattr(rows, "indptr"):
            return np.asarray(rows.mean(axis=0, dtype=np.float64))
        given = np.ones(rows.shape[0]) if weights is None else weights
        return np.asarray(rows.T @ (given / given.sum()), dtype=np.float64)


def center_of(rows: Any, weights: Array | None = None) -> Array:
    """Where an intercept, the last column, has its prior: the means of the others, (d,).

    0 of a constant far from 0. At its mean it would be a difference of large numbers in the
    posterior of the intercept. At 0 it takes the place of the intercept, and its weight is small.
    """
    center = mean_of_rows(rows, weights)[:-1]
    far = np.flatnonzero(np.abs(center) > FAR_CONSTANT)
    if len(far):
        center[far] = near_center(center[far], *ends_of(rows[:, far]))
    return center


def ends_of(rows: Any) -> tuple[Array, Array]:
    """The least and the largest entry of each column, dense or CSR, (d,)."""
    least, most = rows.min(axis=0), rows.max(axis=0)
    if hasattr(least, "toarray"):
        least, most = least.toarray().ravel(), most.toarray().ravel()
    return least, most


def near_center(center: Array, least: Array, most: Array) -> Array:
    """A center, 0 in columns that are constant far from 0; least, most: entries of the columns."""
    size = np.abs(center)
    return np.where((size > FAR_CONSTANT) & (most - least <= NO_SPREAD * size), 0.0, center)


def rounding_of_mean(n: int) -> float:
    """How far the mean of n equal numbers may be off, in their size."""
    return n * float(np.finfo(np.float64).eps)


# ---- products ----


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

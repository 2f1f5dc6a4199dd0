"""A column of ones at the end of rows, stored or not."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast._core.sparse_factors import appended
from epfast.inference.runtime import cached_property


def with_ones(rows: Any, stored: bool = True) -> Any:
    """Rows, dense or CSR, with a column of ones at the end.

    stored: a copy; else CSR rows are :class:`WithOnes`.
    """
    n, d = rows.shape
    if hasattr(rows, "indptr"):
        implied = WithOnes(rows)
        return implied.whole if stored else implied
    result = np.empty((n, d + 1), dtype=rows.dtype)
    result[:, :d] = rows
    result[:, d] = 1.0
    return result


def chunks_with_ones(chunks: Any) -> Iterator[Any]:
    """Chunks of a stream, with a column of ones; who reads them refuses what is no pair."""
    for chunk in chunks:
        if isinstance(chunk, tuple | list) and len(chunk) == 2:
            yield with_ones(_checks.rows("a chunk's X", chunk[0])), chunk[1]
        else:
            yield chunk


def stored_rows(X: Any) -> Any:
    """Rows with all that they hold in memory: a copy of :class:`WithOnes`, others as they are."""
    return X.whole if isinstance(X, WithOnes) else X


class WithOnes:
    """CSR rows and a column of ones that takes no memory, until somebody asks for all entries.

    It does what fits ask of CSR rows: some rows of it are a CSR matrix.
    """

    #: nobody has to look at the structure again
    is_checked = True

    def __init__(self, rows: Any) -> None:
        self.without_ones = rows
        self.shape = rows.shape[0], rows.shape[1] + 1
        self.dtype = rows.dtype

    @property
    def nnz(self) -> int:
        return int(self.without_ones.nnz + self.shape[0])

    @cached_property
    def whole(self) -> Any:
        """The CSR matrix. O(nonzeros)."""
        rows = self.without_ones
        parts = appended(rows.indptr, rows.indices, rows.data, rows.shape[1])
        return type(rows)(parts, shape=self.shape)

    @cached_property
    def indptr(self) -> Any:
        start = self.without_ones.indptr
        return start + np.arange(len(start), dtype=start.dtype)

    @property
    def indices(self) -> Any:
        return self.whole.indices

    @property
    def data(self) -> Array:
        entries: Array = self.whole.data
        return entries

    def tocsr(self) -> Any:
        return self.whole

    def copy(self) -> WithOnes:
        return WithOnes(self.without_ones.copy())

    def __getitem__(self, which: Any) -> Any:
        return WithOnes(self.without_ones[which]).whole

    def __matmul__(self, theta: Any) -> Any:
        return self.without_ones @ theta[:-1] + theta[-1]

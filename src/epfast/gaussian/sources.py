"""Rows that are collections of Dask, and answers for them, block by block.

Dask itself is not imported.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import methodcaller
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from epfast import _checks
from epfast._arrays import Array, Matrix, Slice
from epfast.gaussian.problem import Problem
from epfast.gaussian.rows import check_columns

if TYPE_CHECKING:
    from pandas.api.extensions import ExtensionDtype

#: what is said of rows, (n, ...)
OfRows = Callable[[ArrayLike], Array]


@runtime_checkable
class LazyArray(Protocol):
    """What is used of an array of Dask, which is not imported here."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def ndim(self) -> int: ...

    @property
    def dtype(self) -> np.dtype[np.float64]: ...

    @property
    def chunks(self) -> tuple[tuple[int, ...], ...]: ...

    @property
    def numblocks(self) -> tuple[int, ...]: ...

    def __getitem__(self, which: Slice | tuple[Slice, int], /) -> LazyArray: ...

    def map_blocks(
        self,
        function: Callable[[Array, OfRows, Array], Array],
        of_rows: OfRows,
        nothing: Array,
        /,
        *,
        drop_axis: int,
        new_axis: list[int],
        chunks: tuple[tuple[int, ...], ...],
        dtype: np.dtype[np.float64],
        meta: Array,
    ) -> Array: ...


def array_of(name: str, given: ArrayLike) -> LazyArray:
    """A dask array, of one or of a frame."""
    if hasattr(given, "to_dask_array"):
        kind = getattr(given, "dtype", None)
        if kind is not None and not isinstance(kind, np.dtype):
            # types of pandas itself; what is missing becomes NaN, which is refused in its chunk
            is_number = getattr(kind, "kind", "O") in "fiub"
            given = methodcaller("astype", np.float64 if is_number else object)(given)
        array: LazyArray = methodcaller("to_dask_array")(given)
        return array
    if not (_checks.is_lazy(given) and isinstance(given, LazyArray)):
        raise TypeError(
            f"{name} is {_checks.describe(given)}; allowed: a dask array, dataframe or series "
            "(epfast.fit_linear takes what is in memory)"
        )
    return given


def matrix_of(X: ArrayLike) -> LazyArray:
    """X as a dask array of numbers (n, d) whose blocks are whole rows, of one or of a frame."""
    dtypes = getattr(X, "dtypes", None) if hasattr(X, "columns") else None
    for name, kind in () if dtypes is None else dtypes.items():
        # types of pandas itself, as Int64, have a letter too
        if getattr(kind, "kind", "O") not in "fiub":
            is_time = getattr(kind, "kind", "O") in "mM" or str(kind).startswith("period")
            allowed = _checks.NO_TIMES if is_time else "allowed: columns of real numbers"
            raise TypeError(f"X has the column {name!r} of dtype {kind}; {allowed}")
    if dtypes is not None and not dtypes.map(_is_plain).all():
        X = methodcaller("astype", np.float64)(X)
    rows = array_of("X", X)
    if rows.ndim != 2 or len(rows.chunks[1]) != 1:
        raise ValueError(
            f"X has shape {rows.shape} in {rows.numblocks} chunks; allowed: (n, d), one chunk of "
            "columns, as X.rechunk({1: -1}) has"
        )
    if rows.dtype.kind not in "fiub":
        allowed = _checks.NO_TIMES if rows.dtype.kind in "mM" else "allowed: real numbers"
        raise TypeError(f"X has dtype {rows.dtype}; {allowed}")
    return rows


def _is_plain(kind: np.dtype[np.float64] | ExtensionDtype) -> bool:
    """Whether columns of this dtype make a matrix: truth values beside numbers make objects."""
    return isinstance(kind, np.dtype) and kind.kind != "b"


def rows_of(X: ArrayLike, problem: Problem) -> Matrix | LazyArray:
    """Rows with the columns that were fitted, checked: dense, CSR, or a dask array of both."""
    return _lazy_rows(X, problem) if _checks.is_lazy(X) else rows_in_memory(X, problem)


def rows_in_memory(X: ArrayLike, problem: Problem) -> Array | sparse.csr_matrix:
    """The same of rows in memory."""
    check_columns(problem.names, X)
    return _checks.rows("X", X, problem.n_columns)


def _lazy_rows(X: ArrayLike, problem: Problem) -> LazyArray:
    check_columns(problem.names, X)
    rows = matrix_of(X)
    if rows.shape[1] != problem.n_columns:
        raise ValueError(f"X has {rows.shape[1]} columns; allowed: {problem.n_columns}")
    return rows


def answers(of_rows: OfRows, X: ArrayLike, problem: Problem) -> Array:
    """What a function says of rows, (n, ...). Of rows of Dask as a dask array, block by block.

    of_rows: a method of a posterior, say, which travels without the rows that it was fitted to.
    problem: that of the fit.
    """
    if not _checks.is_lazy(X):
        rows = rows_in_memory(X, problem)
        return of_rows(rows) if rows.shape[0] else _nothing_of(of_rows, rows.shape[1])
    lazy = _lazy_rows(X, problem)
    nothing = _nothing_of(of_rows, lazy.shape[1])
    return lazy.map_blocks(
        _of_block,
        of_rows,
        nothing,
        drop_axis=1,
        new_axis=list(range(1, nothing.ndim)),
        chunks=(lazy.chunks[0], *((size,) for size in nothing.shape[1:])),
        dtype=nothing.dtype,
        meta=nothing,
    )


def _nothing_of(of_rows: OfRows, d: int) -> Array:
    """The answer for no rows: one row says its shape, or why there can be none, here and now."""
    return of_rows(np.zeros((1, d)))[:0]


def _of_block(block: Array, of_rows: OfRows, nothing: Array) -> Array:
    """The answer for one block, which is nothing if it has no rows."""
    return of_rows(block) if block.shape[0] else nothing

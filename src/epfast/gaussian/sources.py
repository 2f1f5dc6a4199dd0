"""Rows that are no matrix: chunks, cut into whole minibatches, and collections of Dask.

Dask itself is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import methodcaller
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from epfast import _checks
from epfast._arrays import Array, Matrix, Slice, is_sparse
from epfast.gaussian.problem import Problem
from epfast.gaussian.rows import with_ones
from epfast.losses import Loss
from epfast.schedules import Schedule

if TYPE_CHECKING:
    from pandas.api.extensions import ExtensionDtype

#: rows of a user, with their responses
Chunk = tuple[ArrayLike, ArrayLike]
#: rows and responses, checked
CheckedChunk = tuple[Matrix, Array]
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
    return _lazy_rows(X, problem) if _checks.is_lazy(X) else _rows_in_memory(X, problem)


def _rows_in_memory(X: ArrayLike, problem: Problem) -> Array | sparse.csr_matrix:
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
        rows = _rows_in_memory(X, problem)
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


def _pair(chunk: ArrayLike | Chunk) -> Chunk:
    if not isinstance(chunk, tuple | list) or len(chunk) != 2:
        raise TypeError(f"a chunk of X is {_checks.describe(chunk)}; allowed: a pair (X, y)")
    return chunk[0], chunk[1]


def checked_stream(
    X: ArrayLike | Iterable[Chunk], ones: bool, schedule: Schedule, **given: ArrayLike | None
) -> Stream:
    """Chunks of rows, of which the first is read. ``given``: arguments that need all rows."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} is given beside chunks of X; allowed: None")
    if schedule.order == "shuffled" or schedule.sweeps > 1:
        raise ValueError(
            f"schedule is {schedule!r}; allowed with chunks of X: one pass in sequential order"
        )
    assert isinstance(X, Iterable)
    return Stream(X, ones)

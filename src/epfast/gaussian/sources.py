"""Rows that are no matrix: chunks, cut into whole minibatches, and collections of Dask.

Dask itself is not imported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from scipy import sparse

from epfast import _checks
from epfast._arrays import Array
from epfast.gaussian.problem import Problem
from epfast.gaussian.rows import with_ones
from epfast.losses import Loss

_END = object()


def is_stream(X: Any, y: Any) -> bool:
    """Whether X is an iterable of chunks, not an array."""
    if hasattr(X, "__array__") or hasattr(X, "tocsr"):
        return False
    return isinstance(X, Iterator) or (y is None and isinstance(X, Iterable))


class Stream:
    """Chunks of rows with their responses, checked as they come. They can be read once.

    All are dense, or all are sparse, as the first is. Frames have the columns of the first.
    """

    def __init__(self, chunks: Iterable[Any], ones: bool = False) -> None:
        """ones: whether rows get a column of ones at the end."""
        self.chunks, self.ones = iter(chunks), ones
        self.loss: Any = None
        self.names: tuple[str, ...] | None = None
        first = next(self.chunks, _END)
        if first is _END:
            raise ValueError("X is an empty iterable; allowed: at least one (X, y) chunk")
        X, self.first_y = _pair(first)
        self.names = column_names(X)
        self.first_X = self._rows(X)
        self.sparse = hasattr(self.first_X, "indptr")
        #: number of columns
        self.d = int(self.first_X.shape[1])

    def _rows(self, X: Any, d: int | None = None) -> Any:
        """Rows of a chunk, of d columns."""
        check_columns(self.names, X)
        rows = _checks.rows("a chunk's X", X, None if d is None else d - self.ones)
        return with_ones(rows) if self.ones else rows

    def read_by(self, loss: Loss) -> Stream:
        """Set the loss that checks responses, check the first ones, and return the stream."""
        self.loss = loss
        self.first_y = loss.responses("a chunk's y", self.first_y, self.first_X.shape[0])
        return self

    def _checked(self) -> Iterator[tuple[Any, Array]]:
        """The chunks, from the first."""
        yield self.first_X, self.first_y
        for chunk in self.chunks:
            X, y = _pair(chunk)
            rows = self._rows(X, self.d)
            if self.sparse and not hasattr(rows, "indptr"):
                rows = sparse.csr_matrix(rows)
            elif not self.sparse and hasattr(rows, "indptr"):
                rows = rows.toarray()
            yield rows, self.loss.responses("a chunk's y", y, rows.shape[0])

    def _joined(self, parts: list[tuple[Any, Array]]) -> tuple[Any, Array]:
        if len(parts) == 1:
            return parts[0]
        X, y = zip(*parts, strict=True)
        whole = sparse.vstack(X, format="csr") if self.sparse else np.concatenate(X)
        return whole, np.concatenate(y)

    def pieces(self, batch_size: int, first: int = 0) -> Iterator[tuple[Any, Array]]:
        """Yield whole minibatches. The rows at the end of a chunk join the next chunk.

        The first piece has at least ``first`` rows, the last what is left.
        """
        parts: list[tuple[Any, Array]] = []
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


def column_names(X: Any) -> tuple[str, ...] | None:
    """Names of the columns of a frame, if all are strings, or None."""
    names = getattr(X, "columns", None)
    if names is None or hasattr(X, "tocsr"):
        return None
    names = tuple(names)
    return names if names and all(isinstance(name, str) for name in names) else None


def check_columns(names: tuple[str, ...] | None, X: Any) -> None:
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


def array_of(name: str, given: Any) -> Any:
    """A dask array, of one or of a frame."""
    if hasattr(given, "to_dask_array"):
        kind = getattr(given, "dtype", None)
        if kind is not None and not isinstance(kind, np.dtype):
            # types of pandas itself; what is missing becomes NaN, which is refused in its chunk
            given = given.astype(np.float64 if getattr(kind, "kind", "O") in "fiub" else object)
        return given.to_dask_array()
    if not (_checks.is_lazy(given) and hasattr(given, "map_blocks")):
        raise TypeError(
            f"{name} is {_checks.describe(given)}; allowed: a dask array, dataframe or series "
            "(epfast.fit_linear takes what is in memory)"
        )
    return given


def matrix_of(X: Any) -> Any:
    """X as a dask array of numbers (n, d) whose blocks are whole rows, of one or of a frame."""
    for name, kind in getattr(X, "dtypes", {}).items() if hasattr(X, "columns") else ():
        # types of pandas itself, as Int64, have a letter too
        if getattr(kind, "kind", "O") not in "fiub":
            is_time = getattr(kind, "kind", "O") in "mM" or str(kind).startswith("period")
            allowed = _checks.NO_TIMES if is_time else "allowed: columns of real numbers"
            raise TypeError(f"X has the column {name!r} of dtype {kind}; {allowed}")
    if hasattr(X, "columns") and not X.dtypes.map(_is_plain).all():
        X = X.astype(np.float64)
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


def _is_plain(kind: Any) -> bool:
    """Whether columns of this dtype make a matrix: truth values beside numbers make objects."""
    return isinstance(kind, np.dtype) and kind.kind != "b"


def rows_of(X: Any, problem: Problem) -> Any:
    """Rows with the columns that were fitted, checked: dense, CSR, or a dask array of both."""
    check_columns(problem.names, X)
    if not _checks.is_lazy(X):
        return _checks.rows("X", X, problem.n_columns)
    rows = matrix_of(X)
    if rows.shape[1] != problem.n_columns:
        raise ValueError(f"X has {rows.shape[1]} columns; allowed: {problem.n_columns}")
    return rows


def answers(of_rows: Callable[[Any], Array], X: Any, problem: Problem) -> Array:
    """What a function says of rows, (n, ...). Of rows of Dask as a dask array, block by block.

    of_rows: a method of a posterior, say, which travels without the rows that it was fitted to.
    problem: that of the fit.
    """
    rows = rows_of(X, problem)
    if not _checks.is_lazy(X) and rows.shape[0]:
        return of_rows(rows)
    # one row says what comes out, or why nothing can: now, not from a worker
    nothing = of_rows(np.zeros((1, rows.shape[1])))[:0]
    if not _checks.is_lazy(X):
        return nothing
    answer: Array = rows.map_blocks(
        _of_block,
        of_rows,
        nothing,
        drop_axis=1,
        new_axis=list(range(1, nothing.ndim)),
        chunks=(rows.chunks[0], *((size,) for size in nothing.shape[1:])),
        dtype=nothing.dtype,
        meta=nothing,
    )
    return answer


def _of_block(block: Any, of_rows: Callable[[Any], Array], nothing: Array) -> Array:
    """The answer for one block, which is nothing if it has no rows."""
    return of_rows(block) if block.shape[0] else nothing


def _pair(chunk: Any) -> tuple[Any, Any]:
    if not isinstance(chunk, tuple | list) or len(chunk) != 2:
        raise TypeError(f"a chunk of X is {_checks.describe(chunk)}; allowed: a pair (X, y)")
    return chunk[0], chunk[1]


def checked_stream(X: Any, ones: bool, schedule: Any, **given: Any) -> Stream:
    """Chunks of rows, of which the first is read. ``given``: arguments that need all rows."""
    for name, value in given.items():
        if value is not None:
            raise ValueError(f"{name} is given beside chunks of X; allowed: None")
    if schedule.order == "shuffled" or schedule.sweeps > 1:
        raise ValueError(
            f"schedule is {schedule!r}; allowed with chunks of X: one pass in sequential order"
        )
    return Stream(X, ones)

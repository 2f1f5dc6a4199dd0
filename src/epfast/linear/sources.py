"""Rows from an iterable of (X, y) chunks, cut into whole minibatches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast._arrays import Array
from epfast.losses import Loss

_END = object()


def is_stream(X: Any, y: Any) -> bool:
    """Whether X is an iterable of chunks, not an array."""
    if hasattr(X, "__array__") or hasattr(X, "tocsr"):
        return False
    return isinstance(X, Iterator) or (y is None and isinstance(X, Iterable))


class Stream:
    """Chunks of rows with their responses, checked as they come; they can be read once."""

    def __init__(self, chunks: Iterable[Any], loss: Loss) -> None:
        self.loss = loss
        self.chunks = iter(chunks)
        first = next(self.chunks, _END)
        if first is _END:
            raise ValueError("X is an empty iterable; allowed: at least one (X, y) chunk")
        self.first = self._checked(first, None)
        #: number of columns
        self.d = int(self.first[0].shape[1])

    def _checked(self, chunk: Any, d: int | None) -> tuple[NDArray[Any], Array]:
        if not isinstance(chunk, tuple | list) or len(chunk) != 2:
            raise TypeError(f"a chunk of X is {_checks.describe(chunk)}; allowed: a pair (X, y)")
        rows = _checks.design("a chunk's X", chunk[0], d)
        return rows, self.loss.responses("a chunk's y", chunk[1], len(rows))

    def pieces(self, batch_size: int) -> Iterator[tuple[NDArray[Any], Array]]:
        """Yield whole minibatches; rows left at the end of a chunk join the next chunk."""
        X, y = self.first
        left_X: NDArray[Any] = X[:0]
        left_y = y[:0]
        while True:
            if len(left_X):
                X, y = np.concatenate([left_X, X]), np.concatenate([left_y, y])
            whole = len(X) - len(X) % batch_size
            if whole:
                yield X[:whole], y[:whole]
            # copies: a reader may reuse its buffer for the next chunk
            left_X, left_y = X[whole:].copy(), y[whole:].copy()
            chunk = next(self.chunks, _END)
            if chunk is _END:
                break
            X, y = self._checked(chunk, self.d)
        if len(left_X):
            yield left_X, left_y


def column_names(X: Any) -> tuple[str, ...] | None:
    """Names of the columns of a frame, if all are strings; None without."""
    names = getattr(X, "columns", None)
    if names is None or hasattr(X, "tocsr"):
        return None
    names = tuple(names)
    return names if names and all(isinstance(name, str) for name in names) else None


def check_columns(names: tuple[str, ...] | None, X: Any) -> None:
    """Refuse a frame whose columns are not those that were fitted, in their order."""
    given = None if names is None else column_names(X)
    if given is None or given == names:
        return
    raise ValueError(
        f"X has the columns {_checks.describe(given)}; allowed: those that were fitted, in their "
        f"order, {_checks.describe(names)}"
    )

"""A column of ones at the end of rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from epfast import _checks
from epfast._core.sparse_factors import appended


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


def chunks_with_ones(chunks: Any) -> Iterator[Any]:
    """Chunks of a stream, with a column of ones; who reads them refuses what is no pair."""
    for chunk in chunks:
        if isinstance(chunk, tuple | list) and len(chunk) == 2:
            yield with_ones(_checks.rows("a chunk's X", chunk[0])), chunk[1]
        else:
            yield chunk

"""Collections of Dask as shards: whole chunks where that is possible, and nothing collected."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from dask.delayed import Delayed
from numpy.typing import ArrayLike, NDArray

from epfast import _checks
from epfast.dask.needs import da, delayed
from epfast.dask.worker import load
from epfast.gaussian.rows import column_names
from epfast.gaussian.sources import array_of, matrix_of
from epfast.losses import Loss

#: shards per thread of the cluster, if neither the user nor memory says otherwise: the posterior
#: that a shard sees is then old by a share of a pass
PER_THREAD = 4
#: a pass of ADF takes chunks one by one, or, if it has more of them, so many bytes at a time
MOST_SHARDS, FEW_BYTES = 1000, 1 << 24


class Rows(NamedTuple):
    """Rows of a collection, with their responses and weights: arrays of the same row chunks."""

    X: da.Array
    y: da.Array
    weights: da.Array | None
    names: tuple[str, ...] | None

    @property
    def sizes(self) -> tuple[float, ...]:
        """Rows of each chunk. NaN where they are not known."""
        sizes: tuple[float, ...] = self.X.chunks[0]
        return sizes

    @property
    def is_known(self) -> bool:
        return not any(math.isnan(size) for size in self.sizes)


def rows_at_door(given: ArrayLike, y: ArrayLike, weights: ArrayLike | None) -> Rows:
    """Check the collections as far as that reads nothing."""
    names = column_names(given) if hasattr(given, "to_dask_array") else None
    X = matrix_of(given)
    assert isinstance(X, da.Array)
    if X.shape[1] == 0:
        raise ValueError(f"X has shape {X.shape}; allowed: at least one column")
    parts = {"y": array_of("y", y)}
    if weights is not None:
        parts["weights"] = array_of("weights", weights)
    for name, part in parts.items():
        if part.ndim not in (1, 2) or (part.ndim == 2 and len(part.chunks[1]) != 1):
            raise ValueError(f"{name} has shape {part.shape}; allowed: a number or a row per row")
        if not _alike(part.chunks[0], X.chunks[0]):
            raise ValueError(
                f"{name} has the row chunks {_shown(part.chunks[0])} and X "
                f"{_shown(X.chunks[0])}; allowed: the same, as {name}.rechunk(X.chunks[0]) has"
            )
    return Rows(X, parts["y"], parts.get("weights"), names)


def _alike(ours: Sequence[float], theirs: Sequence[float]) -> bool:
    """Whether the lengths of row chunks agree, or are unknown."""
    return len(ours) == len(theirs) and all(
        a == b or math.isnan(a) or math.isnan(b) for a, b in zip(ours, theirs, strict=True)
    )


def _shown(chunks: Sequence[float]) -> str:
    return _checks.describe(tuple(chunks))


def loads_of(
    rows: Rows, groups: Sequence[tuple[int, int]], loss: Loss, intercept: bool, token: str
) -> list[Delayed]:
    """A delayed :func:`epfast.dask.worker.load` for each group of chunks."""
    X, y = rows.X.to_delayed()[:, 0], rows.y.to_delayed().ravel()
    weights = None if rows.weights is None else rows.weights.to_delayed().ravel()
    columns, loads = int(rows.X.shape[1]), []
    for k, (first, stop) in enumerate(groups):
        take = slice(first, stop)
        some = None if weights is None else list(weights[take])
        chunks = list(range(first, stop)), list(X[take]), list(y[take]), some
        name = f"load shard {k}-{token}"
        task = delayed(load, pure=False)
        loads.append(task(*chunks, loss, intercept, columns, dask_key_name=name))
    return loads


def shards_of(
    rows: Rows, shards: int | None, threads: int, shard_bytes: int | None, batch_size: int | None
) -> tuple[Rows, list[tuple[int, int]]]:
    """The rows, cut where need be, and the chunks of each shard: first, and last but one.

    shards: how many, cut as :class:`epfast.DEP` does. None: whole chunks, as many as suit so many
    threads and shards of at most ``shard_bytes``.
    """
    size = batch_size or 1
    if shards is not None:
        return _exactly(rows, shards, size)
    count = len(rows.sizes)
    shards = min(count, PER_THREAD * threads)
    if shard_bytes is not None and rows.is_known:
        total = sum(rows.sizes) * rows.X.shape[1] * rows.X.dtype.itemsize
        shards = min(count, max(shards, math.ceil(total / shard_bytes)))
    return of_whole_minibatches(rows, _evenly(count, shards), size)


def of_whole_minibatches(
    rows: Rows, groups: list[tuple[int, int]], size: int
) -> tuple[Rows, list[tuple[int, int]]]:
    """The rows, and their groups of chunks, cut so that no group cuts a minibatch.

    Of lengths that are not known each group begins with a minibatch of its own.
    """
    if size == 1 or not rows.is_known:
        return rows, groups
    edges = np.cumsum([0, *rows.sizes]).astype(int)
    n, ends = int(edges[-1]), edges[[stop for _, stop in groups]]
    if not (ends[:-1] % size).any():
        return rows, groups
    whole = np.unique(np.minimum(np.round(ends / size).astype(int) * size, n))
    return _cut(rows, np.append(whole[(whole > 0) & (whole < n)], n))


def shards_of_passes(
    rows: Rows, streams: int, shard_bytes: int | None, least: int, batch_size: int | None
) -> tuple[Rows, list[tuple[int, int]], list[slice]]:
    """The rows, chunks of each shard, and the shards of each of so many passes, neighbours.

    A shard is a chunk: blocks of rows end where chunks do, and so do those of a pass over chunks
    here. Small ones are taken together until they have ``least`` rows, where that is known, or
    where they are many.
    """
    count = len(rows.sizes)
    width = rows.X.shape[1] * rows.X.dtype.itemsize
    most = least
    if count > MOST_SHARDS * streams:
        most = max(least, min(shard_bytes or FEW_BYTES, FEW_BYTES) // width)
    groups: list[tuple[int, int]] = []
    for first, stop in _evenly(count, min(streams, count)):
        begin, size = first, 0.0
        for i in range(first, stop):
            size += rows.sizes[i]
            last = i + 1 == stop
            if last or math.isnan(size) or (size >= least and size + rows.sizes[i + 1] > most):
                groups.append((begin, i + 1))
                begin, size = i + 1, 0.0
    rows, groups = of_whole_minibatches(rows, groups, batch_size or 1)
    takes = [slice(*ends) for ends in _evenly(len(groups), min(streams, len(groups)))]
    return rows, groups, takes


def _evenly(count: int, parts: int) -> list[tuple[int, int]]:
    ends = np.arange(parts + 1) * count // parts
    return list(zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True))


def _exactly(rows: Rows, shards: int, size: int) -> tuple[Rows, list[tuple[int, int]]]:
    """The rows and the chunks of so many shards, which end where minibatches do."""
    if not rows.is_known:
        if shards > len(rows.sizes):
            raise ValueError(
                f"the schedule has {shards} shards and X {len(rows.sizes)} chunks of lengths that "
                "are not known; allowed: as many shards at most, or X.compute_chunk_sizes() before"
            )
        return rows, _evenly(len(rows.sizes), shards)
    n = int(sum(rows.sizes))
    factors = -(-n // size)
    if shards > factors:
        raise ValueError(
            f"the schedule has {shards} shards and X {n} rows"
            + (f" in minibatches of {size}" if size > 1 else "")
            + "; allowed: as many"
        )
    return _cut(rows, np.minimum(np.arange(1, shards + 1) * factors // shards * size, n))


def _cut(rows: Rows, ends: NDArray[np.intp]) -> tuple[Rows, list[tuple[int, int]]]:
    """The rows, in chunks that end at these rows too, and the neighbouring chunks between them."""
    if not np.isin(ends, np.cumsum(rows.sizes)).all():
        for name, part in (("y", rows.y), ("weights", rows.weights)):
            if part is not None and any(math.isnan(size) for size in part.chunks[0]):
                raise ValueError(
                    f"{name} has chunks of lengths that are not known, which have to be cut for "
                    f"the shards and minibatches; allowed: {name}.compute_chunk_sizes() before, or "
                    "whole chunks as shards"
                )
        cut = {0: tuple(np.diff([0, *ends]).tolist())}
        weights = None if rows.weights is None else rows.weights.rechunk(cut)
        rows = Rows(rows.X.rechunk(cut), rows.y.rechunk(cut), weights, rows.names)
    # chunks without rows go with those before
    stops = np.searchsorted(np.cumsum([0, *rows.sizes]), ends, "right") - 1
    return rows, list(zip([0, *stops[:-1].tolist()], stops.tolist(), strict=True))

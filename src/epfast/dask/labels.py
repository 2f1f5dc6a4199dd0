"""Labels of any kind, where they are: looked up once, and then by their class."""

from __future__ import annotations

import numbers
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Any

import numpy as np
from dask.delayed import Delayed
from numpy.typing import ArrayLike, NDArray

from epfast import _checks
from epfast._arrays import Array, Matrix
from epfast.dask.cluster import client_at_work
from epfast.dask.data import rows_at_door
from epfast.dask.needs import compute, da, delayed, distributed
from epfast.gaussian.sources import array_of

AS_OBJECTS = methodcaller("astype", object)
#: of any kind
Labels = NDArray[np.generic]
#: numbers of a chunk of rows, of its labels (or numbers) and weights, (n,)
OfChunk = Callable[[Matrix, NDArray[np.generic], Array], Array]


def computed(parts: Sequence[Delayed], client: distributed.Client | None) -> list[Any]:
    """The values of delayed objects: on the cluster of a client, or where Dask's settings say."""
    with client_at_work(client) as found:
        where = {} if client is None else {"scheduler": found}
        return list(compute(*parts, **where))


def by_chunk(
    function: OfChunk,
    X: ArrayLike,
    y: ArrayLike,
    weights: ArrayLike | None,
    client: distributed.Client | None,
) -> list[Array]:
    """What a function says of each chunk of rows, labels (or numbers) and weights, (n,)."""
    rows = rows_at_door(X, y, weights)
    parts = [rows.X.to_delayed()[:, 0], rows.y.to_delayed().ravel()]
    own = [None] * len(parts[0]) if rows.weights is None else rows.weights.to_delayed().ravel()
    parts.append(own)
    sent = delayed(function)  # it travels once, with its posteriors
    return computed([delayed(_called)(sent, *each) for each in zip(*parts, strict=True)], client)


def at_once(function: OfChunk, rows: Matrix, y: ArrayLike, weights: ArrayLike | None) -> Array:
    """What a function says of rows in memory, and their labels (or numbers) and weights, (n,)."""
    _checks.not_lazy("y", y)
    n, labels = rows.shape[0], np.asarray(y)
    if labels.shape not in ((n,), (n, 1)):
        raise ValueError(f"y has shape {labels.shape}; allowed: ({n},), one per row of X")
    if weights is not None:
        weights = _checks.array("sample_weight", weights, shape=(n,))
        if not (weights >= 0.0).all():
            raise ValueError("sample_weight holds numbers below 0; allowed: numbers >= 0")
    return _called(function, rows, labels, weights)


def _called(function: OfChunk, block: Matrix, y: Labels, weights: Array | None) -> Array:
    y = np.asarray(y).ravel()
    return function(block, y, np.ones(len(y)) if weights is None else np.asarray(weights).ravel())


def labels_at_door(y: ArrayLike) -> da.Array:
    """A label per row, as a dask array (n,)."""
    # of categories, and of types of pandas itself
    is_own = hasattr(y, "to_dask_array") and not isinstance(getattr(y, "dtype", None), np.dtype)
    labels = array_of("y", AS_OBJECTS(y) if is_own else y)
    assert isinstance(labels, da.Array)
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim != 1:
        raise ValueError(f"y has shape {labels.shape}; allowed: (n,), a label per row")
    return labels


def classes_of(labels: da.Array, client: distributed.Client | None) -> Labels:
    """The different labels in order. A pass over y alone."""
    chunks = enumerate(labels.to_delayed().ravel())
    distinct = computed([delayed(labels_of)(chunk, k) for k, chunk in chunks], client)
    parts = [part for part in distinct if len(part)]
    if not parts:
        raise ValueError("y has no rows; allowed: one at least")
    kinds = {part.dtype.kind in "biuf" for part in parts if part.dtype.kind != "O"}
    try:
        if len(kinds) > 1:
            raise TypeError("numbers would become strings")
        classes = np.unique(np.concatenate(parts))
    except TypeError:
        raise TypeError(
            "y holds labels of one kind in some chunks and of another kind in others; allowed: "
            "numbers alone, or strings alone"
        ) from None
    if len(classes) < 2:
        raise ValueError(f"y has 1 class, {classes.tolist()}; allowed: two classes or more")
    return classes


def labels_of(chunk: Labels, number: int) -> Labels:
    """The different labels of a chunk, checked; number: of the chunk, for errors."""
    labels = np.asarray(chunk).ravel()
    if labels.dtype.kind == "O":
        missing = np.array([_checks.is_missing(label) for label in labels], dtype=bool)
    else:
        missing = labels != labels
    if missing.any():
        raise ValueError(
            f"chunk {number}: y holds a label that is missing, first in row "
            f"{int(missing.argmax())}; allowed: a label in each row"
        )
    try:
        distinct = np.unique(labels)
    except TypeError:
        raise TypeError(
            f"chunk {number}: y holds labels that cannot be sorted; allowed: numbers alone, or "
            "strings alone"
        ) from None
    if distinct.dtype.kind == "O" and all(isinstance(label, numbers.Number) for label in distinct):
        distinct = np.array(distinct.tolist())
    if distinct.dtype.kind not in "biufOUT":
        raise TypeError(
            f"chunk {number}: y has dtype {distinct.dtype}; allowed: numbers or strings as labels"
        )
    if distinct.dtype.kind == "f":
        parts = distinct[(distinct != np.rint(distinct)) | np.isinf(distinct)]
        if len(parts):
            raise ValueError(
                f"chunk {number}: y holds {parts[0]:g}; allowed: labels, as numbers without "
                "fractions (LinearRegressor takes others)"
            )
    return np.asarray(distinct)


def signs_of(chunk: Labels, positive: np.generic) -> Array:
    """+1 for one class, and -1 for the rest."""
    return np.where(np.asarray(chunk) == positive, 1.0, -1.0)

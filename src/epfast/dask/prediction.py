"""Predictions for collections, made where they are, when they are asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast.dask.data import array_of


def _answer(block: Any, post: Any, method: str) -> Any:
    """Of one block; of none of its rows, none."""
    if block.shape[0] == 0:
        return np.empty(0)
    return getattr(post, method)(block)


def lazily(post: Any, X: Any, method: str, dtype: Any = np.float64) -> Any:
    """``getattr(post, method)(block)`` for each block of rows, (n,), as a dask array.

    post: it travels without the rows that it was fitted to.
    """
    meta = np.empty(0, dtype=dtype)
    return rows_of(X).map_blocks(_answer, post, method, drop_axis=1, dtype=dtype, meta=meta)


def rows_of(X: Any) -> Any:
    """X as a dask array (n, d) whose blocks are whole rows."""
    rows = array_of("X", X)
    if rows.ndim != 2 or len(rows.chunks[1]) != 1:
        raise ValueError(
            f"X has shape {rows.shape} in {rows.numblocks} chunks; allowed: (n, d), one chunk of "
            "columns, as X.rechunk({1: -1}) has"
        )
    return rows


def predict_proba(post: Any, X: Any) -> Any:
    """Probability of the label +1, lazily.

    Parameters
    ----------
    post : FullPosterior or FactorizedPosterior
    X : dask array, (n, d), or dask dataframe

    Returns
    -------
    dask array, (n,)
        In the row chunks of X; see :meth:`epfast.FullPosterior.predict_proba`.
    """
    return lazily(post, X, "predict_proba")


def predict(post: Any, X: Any) -> Any:
    """The label, or the mean of y, lazily: see :func:`predict_proba`.

    Parameters
    ----------
    post : FullPosterior or FactorizedPosterior
    X : dask array, (n, d), or dask dataframe

    Returns
    -------
    dask array, (n,)
    """
    return lazily(post, X, "predict")


def _latent(block: Any, post: Any) -> Any:
    if block.shape[0] == 0:
        return np.empty((0, 2))
    return np.stack(post.predict_latent(block), axis=1)


def predict_latent(post: Any, X: Any) -> tuple[Any, Any]:
    """Mean and variance of X theta, lazily: see :func:`predict_proba`.

    Parameters
    ----------
    post : FullPosterior or FactorizedPosterior
    X : dask array, (n, d), or dask dataframe

    Returns
    -------
    mean, variance : dask array, (n,)
    """
    rows = rows_of(X)
    meta = np.empty((0, 2))
    both = rows.map_blocks(_latent, post, chunks=(rows.chunks[0], (2,)), dtype=float, meta=meta)
    return both[:, 0], both[:, 1]

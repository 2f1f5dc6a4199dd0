"""Predictions for collections, made where they are, when they are asked for."""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast import _checks
from epfast.dask.data import matrix_of
from epfast.gaussian.linear_posterior import FactorizedPosterior, FullPosterior
from epfast.gaussian.sources import check_columns


def _answer(block: Any, post: Any, method: str, meta: Any) -> Any:
    """Of one block. Of none of its rows, none."""
    return getattr(post, method)(block) if block.shape[0] else meta


def lazily(post: Any, X: Any, method: str) -> Any:
    """``getattr(post, method)(block)`` for each block of rows, (n,), as a dask array.

    post: it travels without the rows that it was fitted to.
    """
    rows = rows_of(X, post)
    # one row tells what comes out, or why nothing can: now, not from a worker
    meta = getattr(post, method)(np.zeros((1, rows.shape[1])))[:0]
    if meta.ndim != 1:
        raise TypeError(f"post is {_checks.describe(post)}; allowed: one of a latent value per row")
    return rows.map_blocks(_answer, post, method, meta, drop_axis=1, dtype=meta.dtype, meta=meta)


def rows_of(X: Any, post: Any) -> Any:
    """X as a dask array (n, d) whose blocks are whole rows, as ``post`` was fitted to."""
    if not isinstance(post, FullPosterior | FactorizedPosterior):
        raise TypeError(
            f"post is {_checks.describe(post)}; allowed: a FullPosterior or FactorizedPosterior"
        )
    problem = post.problem
    check_columns(problem.names, X)
    rows = matrix_of(X)
    if rows.ndim != 2 or len(rows.chunks[1]) != 1:
        raise ValueError(
            f"X has shape {rows.shape} in {rows.numblocks} chunks; allowed: (n, d), one chunk of "
            "columns, as X.rechunk({1: -1}) has"
        )
    if rows.dtype.kind not in "fiub":
        raise TypeError(f"X has dtype {rows.dtype}; allowed: real numbers")
    if rows.shape[1] != problem.n_columns:
        raise ValueError(f"X has {rows.shape[1]} columns; allowed: {problem.n_columns}")
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
        In the row chunks of X. See :meth:`epfast.FullPosterior.predict_proba`.
    """
    return lazily(post, X, "predict_proba")


def predict(post: Any, X: Any) -> Any:
    """The label, or the mean of y, lazily: see :func:`epfast.dask.predict_proba`.

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
    """Mean and variance of X theta, lazily: see :func:`epfast.dask.predict_proba`.

    Parameters
    ----------
    post : FullPosterior or FactorizedPosterior
    X : dask array, (n, d), or dask dataframe

    Returns
    -------
    mean, variance : dask array, (n,)
    """
    rows = rows_of(X, post)
    meta = np.empty((0, 2))
    both = rows.map_blocks(_latent, post, chunks=(rows.chunks[0], (2,)), dtype=float, meta=meta)
    return both[:, 0], both[:, 1]

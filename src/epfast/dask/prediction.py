"""Predictions for collections, made where they are, when they are asked for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast.dask.data import matrix_of
from epfast.gaussian.linear_posterior import FactorizedPosterior, FullPosterior
from epfast.gaussian.sources import check_columns


def _answer(block: Any, of_rows: Callable[[Any], Array], meta: Array) -> Array:
    """Of one block. Of none of its rows, none."""
    return of_rows(block) if block.shape[0] else meta


def lazily(of_rows: Callable[[Any], Array], rows: Any) -> Any:
    """``of_rows(block)`` for each block of rows, as a dask array (n, ...).

    of_rows: a method of a posterior, say, which travels without the rows that it was fitted to.
    """
    # one row says what comes out, or why nothing can: now, not from a worker
    meta = of_rows(np.zeros((1, rows.shape[1])))[:0]
    return rows.map_blocks(
        _answer,
        of_rows,
        meta,
        drop_axis=1,
        new_axis=list(range(1, meta.ndim)),
        chunks=(rows.chunks[0], *((size,) for size in meta.shape[1:])),
        dtype=meta.dtype,
        meta=meta,
    )


def rows_of(X: Any, post: Any) -> Any:
    """X as a dask array (n, d) whose blocks are whole rows, as ``post`` was fitted to."""
    if not isinstance(post, FullPosterior | FactorizedPosterior):
        raise TypeError(
            f"post is {_checks.describe(post)}; allowed: a FullPosterior or FactorizedPosterior"
        )
    problem = post.problem
    check_columns(problem.names, X)
    rows = matrix_of(X)
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
    rows = rows_of(X, post)
    return lazily(post.predict_proba, rows)


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
    rows = rows_of(X, post)
    return lazily(post.predict, rows)


def _latent(post: Any, rows: Any) -> Array:
    return np.stack(post.predict_latent(rows), axis=-1)


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
    both = lazily(partial(_latent, post), rows_of(X, post))
    return both[..., 0], both[..., 1]

"""Predictions of posteriors: for collections where they are, when they are asked for."""

from __future__ import annotations

from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array
from epfast.dask.needs import da
from epfast.gaussian.linear_posterior import FactorizedPosterior, FullPosterior

#: of rows on a cluster, or of such rows in memory
Posterior = FullPosterior | FactorizedPosterior


def _checked(post: Posterior) -> Posterior:
    """A posterior, checked."""
    if not isinstance(post, FullPosterior | FactorizedPosterior):
        raise TypeError(
            f"post is {_checks.describe(post)}; allowed: a FullPosterior or FactorizedPosterior"
        )
    return post


def predict_proba(post: Posterior, X: ArrayLike) -> da.Array | Array:
    """Probability of the label +1: lazily, or at once of rows in memory.

    Parameters
    ----------
    post : FullPosterior or FactorizedPosterior
    X : dask array, (n, d), or dask dataframe, or rows in memory

    Returns
    -------
    dask array, in the row chunks of X, or ndarray, (n,)
        See :meth:`epfast.FullPosterior.predict_proba`.
    """
    return _checked(post).predict_proba(X)


def predict(post: Posterior, X: ArrayLike) -> da.Array | Array:
    """The label, or the mean of y: see :func:`epfast.dask.predict_proba`.

    Parameters
    ----------
    post : FullPosterior or FactorizedPosterior
    X : dask array, (n, d), or dask dataframe, or rows in memory

    Returns
    -------
    dask array or ndarray, (n,)
    """
    return _checked(post).predict(X)


def predict_latent(post: Posterior, X: ArrayLike) -> tuple[da.Array | Array, da.Array | Array]:
    """Mean and variance of X theta: see :func:`epfast.dask.predict_proba`.

    Parameters
    ----------
    post : FullPosterior or FactorizedPosterior
    X : dask array, (n, d), or dask dataframe, or rows in memory

    Returns
    -------
    mean, variance : dask array or ndarray, (n,)
    """
    return _checked(post).predict_latent(X)

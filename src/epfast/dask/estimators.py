"""scikit-learn's manners on collections of Dask: they come in, and they come out."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from epfast import losses
from epfast._arrays import Array
from epfast.dask.data import array_of
from epfast.dask.fit import fit_linear
from epfast.dask.needs import da
from epfast.dask.prediction import lazily, predict_latent
from epfast.linear.full_posterior import FullPosterior
from epfast.schedules import Schedule


class _Linear(BaseEstimator):  # type: ignore[misc]
    """What both share: settings, the fit, and latent values."""

    posterior_: FullPosterior

    def __init__(
        self,
        *,
        loss: Any = None,
        scheme: Any = None,
        prior_variance: Any = 1.0,
        fit_intercept: bool = True,
        intercept_variance: float = 100.0,
        schedule: Schedule | None = None,
        client: Any = None,
        persist: bool = True,
    ) -> None:
        self.loss = loss
        self.scheme = scheme
        self.prior_variance = prior_variance
        self.fit_intercept = fit_intercept
        self.intercept_variance = intercept_variance
        self.schedule = schedule
        self.client = client
        self.persist = persist

    def _fit(self, X: Any, y: Any, loss: losses.Loss, weights: Any) -> None:
        self.posterior_ = fit_linear(
            X,
            y,
            loss=loss,
            scheme=self.scheme,
            prior_variance=self.prior_variance,
            intercept=self.intercept_variance if self.fit_intercept else False,
            weights=weights,
            schedule=self.schedule,
            client=self.client,
            persist=self.persist,
        )
        self.n_features_in_ = int(self.posterior_.problem.n_columns)
        self.n_iter_, self.converged_ = self.posterior_.n_sweeps, self.posterior_.converged

    @property
    def _weights(self) -> tuple[Array, float]:
        """Mean of the coefficients and of the intercept."""
        check_is_fitted(self, "posterior_")
        mean = self.posterior_.mean
        return (mean[:-1], float(mean[-1])) if self.fit_intercept else (mean, 0.0)

    def predict_latent(self, X: Any) -> tuple[Any, Any]:
        """Mean and variance of x.theta, lazily.

        Parameters
        ----------
        X : dask array, (n, d), or dask dataframe

        Returns
        -------
        mean, variance : dask array, (n,)
        """
        check_is_fitted(self, "posterior_")
        return predict_latent(self.posterior_, X)


def _signs(block: Any, positive: Any) -> Any:
    return np.where(np.asarray(block) == positive, 1.0, -1.0)


def _both(block: Any) -> Any:
    return np.stack([1.0 - block, block], axis=1)


def _named(block: Any, classes: Any) -> Any:
    return classes[(block > 0.5).astype(np.intp)]


class LinearClassifier(_Linear):
    """A linear model of two classes, whose rows are on a cluster.

    Parameters
    ----------
    loss : str or Loss, optional
        Of two labels. None: "logistic".
    scheme, prior_variance, schedule, client, persist
        As in :func:`epfast.dask.fit_linear`.
    fit_intercept : bool
        Whether to add a constant column of ones.
    intercept_variance : float
        Prior variance of the intercept.

    Attributes
    ----------
    classes_ : ndarray of shape (2,)
        The labels, sorted.
    coef_ : ndarray of shape (1, d)
        Posterior mean of the coefficients.
    intercept_ : ndarray of shape (1,)
    posterior_ : FullPosterior
    n_features_in_, n_iter_ : int
    converged_ : bool
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LinearClassifier:
        """Fit the posterior.

        Parameters
        ----------
        X : dask array, (n, d), or dask dataframe
        y : dask array or series
            Labels of any kind, two different ones; they are looked up in a pass of their own.
        sample_weight : dask array or series, optional
            As ``weights`` of :func:`epfast.dask.fit_linear`.

        Returns
        -------
        LinearClassifier
            Itself.
        """
        loss = losses.resolve("logistic" if self.loss is None else self.loss)
        if not loss.by_margin:
            raise ValueError(f"loss is {loss!r}; allowed in a classifier: one of two labels")
        labels = array_of("y", y)
        classes = np.asarray(da.unique(labels.ravel()).compute())
        if len(classes) != 2:
            raise ValueError(f"y has {len(classes)} classes, {classes[:5].tolist()}; allowed: two")
        signs = labels.map_blocks(_signs, classes[1], dtype=np.float64, meta=np.empty(0))
        self._fit(X, signs, loss, sample_weight)
        self.classes_ = classes
        coefficients, constant = self._weights
        self.coef_, self.intercept_ = coefficients[None], np.array([constant])
        return self

    def predict_proba(self, X: Any) -> Any:
        """Probabilities of the classes, lazily.

        Parameters
        ----------
        X : dask array, (n, d), or dask dataframe

        Returns
        -------
        dask array, (n, 2)
            Columns in the order of ``classes_``.
        """
        check_is_fitted(self, "posterior_")
        positive = lazily(self.posterior_, X, "predict_proba")
        chunks = positive.chunks[0], (2,)
        meta = np.empty((0, 2))
        return positive.map_blocks(_both, new_axis=1, chunks=chunks, dtype=float, meta=meta)

    def predict(self, X: Any) -> Any:
        """The more probable class, lazily.

        Parameters
        ----------
        X : dask array, (n, d), or dask dataframe

        Returns
        -------
        dask array, (n,)
        """
        check_is_fitted(self, "posterior_")
        positive = lazily(self.posterior_, X, "predict_proba")
        return positive.map_blocks(
            _named, self.classes_, dtype=self.classes_.dtype, meta=self.classes_[:0]
        )

    def score(self, X: Any, y: Any) -> float:
        """Share of rows whose class is predicted.

        Parameters
        ----------
        X : dask array, (n, d), or dask dataframe
        y : dask array or series

        Returns
        -------
        float
        """
        return float((self.predict(X) == array_of("y", y).ravel()).mean().compute())


class LinearRegressor(_Linear):
    """A linear model of numbers, whose rows are on a cluster.

    Parameters
    ----------
    loss : str or Loss, optional
        Its parameters are as they are given: nothing is learnt. None: "gaussian".
    scheme, prior_variance, schedule, client, persist
        As in :func:`epfast.dask.fit_linear`.
    fit_intercept, intercept_variance
        As in :class:`LinearClassifier`.

    Attributes
    ----------
    coef_ : ndarray of shape (d,)
        Posterior mean of the coefficients.
    intercept_ : float
    posterior_ : FullPosterior
    n_features_in_, n_iter_ : int
    converged_ : bool
    """

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> LinearRegressor:
        """Fit the posterior.

        Parameters
        ----------
        X : dask array, (n, d), or dask dataframe
        y : dask array or series
        sample_weight : dask array or series, optional
            As ``weights`` of :func:`epfast.dask.fit_linear`.

        Returns
        -------
        LinearRegressor
            Itself.
        """
        loss = losses.resolve("gaussian" if self.loss is None else self.loss)
        if loss.by_margin:
            raise ValueError(f"loss is {loss!r}; allowed in a regressor: one of numbers")
        self._fit(X, y, loss, sample_weight)
        self.coef_, self.intercept_ = self._weights
        return self

    def predict(self, X: Any) -> Any:
        """Predictive mean of y, lazily.

        Parameters
        ----------
        X : dask array, (n, d), or dask dataframe

        Returns
        -------
        dask array, (n,)
        """
        check_is_fitted(self, "posterior_")
        return lazily(self.posterior_, X, "predict")

    def predict_variance(self, X: Any) -> Any:
        """Predictive variance of y, lazily.

        Parameters
        ----------
        X : dask array, (n, d), or dask dataframe

        Returns
        -------
        dask array, (n,)
        """
        check_is_fitted(self, "posterior_")
        return lazily(self.posterior_, X, "predict_variance")

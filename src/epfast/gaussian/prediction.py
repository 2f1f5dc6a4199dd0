"""What a linear posterior says of new rows, from mean and variance of their latent values."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array, row_chunks
from epfast.gaussian.files import Saved
from epfast.inference.posterior import Posterior, shifted


def of_entries(rows: Any, precision: Array, shift: Array, intercept: bool) -> tuple[Array, Array]:
    """Mean and variance of CSR rows times weights of a diagonal posterior. O(nonzeros)."""
    mean, variance = np.empty(rows.shape[0]), np.empty(rows.shape[0])
    with np.errstate(over="ignore", invalid="ignore"):
        for part in row_chunks(rows):
            some = rows[part]
            n, x, width = some.shape[0], some.data, precision[some.indices]
            row = np.repeat(np.arange(n), np.diff(some.indptr))
            mean[part] = np.bincount(row, x * (shift[some.indices] / width), n)
            variance[part] = np.bincount(row, x * x / width, n)
        if intercept:
            mean, variance = mean + shift[-1] / precision[-1], variance + 1.0 / precision[-1]
    finite(mean, variance)
    return mean, variance


def finite(*latent: Array) -> None:
    """Refuse latent values of rows that are not finite."""
    if not all(np.isfinite(part).all() for part in latent):
        raise ValueError("X holds NaN or infinity, or overflows; allowed: finite numbers")


class LinearPredictions(Saved, Posterior):
    """Base of linear posteriors; a subclass has ``predict_latent`` and ``sample``."""

    problem: Any

    @property
    def names(self) -> tuple[str, ...] | None:
        """Names of the columns of the frame that was fitted, and "intercept"; None without."""
        names = self.problem.names
        if names is None or not self.problem.intercept:
            return cast(tuple[str, ...] | None, names)
        return (*names, "intercept")

    def _columns(self) -> tuple[str, ...]:
        """``names``, or x0, x1, ... without."""
        if self.names is not None:
            return self.names
        columns = [f"x{i}" for i in range(self.problem.n_columns)]
        return tuple([*columns, "intercept"] if self.problem.intercept else columns)

    def with_rows(self, X: Any, y: Any) -> Any:
        """The posterior with the rows that were fitted."""
        raise NotImplementedError

    def _with_rows(self, X: Any = None, y: Any = None) -> Any:
        """The posterior with its rows, known or given."""
        self.known_loss()
        if self.problem.has_rows:
            if X is not None or y is not None:
                raise ValueError("X or y is given, and the posterior knows its rows; allowed: None")
            return self
        if X is None or y is None:
            raise ValueError(
                "X and y are needed, since the posterior was loaded or unpickled; allowed: the "
                "rows that were fitted"
            )
        return self.with_rows(X, y)

    def predict_latent(self, X: ArrayLike, joint: bool = False) -> tuple[Array, Array]:
        """Mean and variance of X theta."""
        raise NotImplementedError

    def _latent_draws(self, X: ArrayLike, draws: Array) -> Array:
        """X theta, (k, n), for draws of theta (k, d)."""
        raise NotImplementedError

    def _shifted_latent(self, X: ArrayLike, offset: ArrayLike | None) -> tuple[Array, Array]:
        """Mean and variance of X theta + offset."""
        mean, variance = self.predict_latent(X)
        return self._moved(mean, offset), variance

    def _moved(self, latent: Array, offset: ArrayLike | None) -> Array:
        """Latent values (..., n) with offsets (n,)."""
        return shifted(latent, offset, latent.shape[-1])

    def predict_proba(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Probability of the label +1.

        E[t(h)] / (E[t(h)] + E[t(-h)]) with t = exp(-beta loss) and h = x.theta under the posterior.
        For logistic, probit and noisy step at beta = 1 this is the predictive probability; for the
        other losses, which are not log likelihoods, the two classes are normalised to sum to 1.
        With a CustomSite the two expectations are its own.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        offset : array_like of shape (n,), optional
            As in :func:`epfast.fit_linear`. None: 0.

        Returns
        -------
        ndarray of shape (n,)
            Closed form for probit with beta = 1, else quadrature to about 1e-8.
        """
        return self.known_loss().predict_proba(*self._shifted_latent(X, offset))

    def predict(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Predict y.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        offset : array_like of shape (n,), optional
            As in :func:`epfast.fit_linear`. None: 0.

        Returns
        -------
        ndarray of shape (n,)
            The label for classes, -1 or +1; else the predictive mean of y.
        """
        return self.known_loss().predict(*self._shifted_latent(X, offset))

    def predict_variance(self, X: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Predictive variance of y.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        offset : array_like of shape (n,), optional
            As in :func:`epfast.fit_linear`. None: 0.

        Returns
        -------
        ndarray of shape (n,)
        """
        return self.known_loss().predict_variance(*self._shifted_latent(X, offset))

    def log_predictive(self, X: ArrayLike, y: ArrayLike, offset: ArrayLike | None = None) -> Array:
        """Log probability of responses to new rows.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        y : array_like
            As in :func:`epfast.fit_linear`.
        offset : array_like of shape (n,), optional
            As in :func:`epfast.fit_linear`. None: 0.

        Returns
        -------
        ndarray of shape (n,)
        """
        latent, loss = self._shifted_latent(X, offset), self.known_loss()
        return loss.log_predictive(loss.responses("y", y, len(latent[0])), *latent)

    def score(self, X: ArrayLike, y: ArrayLike, offset: ArrayLike | None = None) -> float:
        """Mean log probability of responses to new rows; higher is better, also for classes.

        Parameters
        ----------
        X, y, offset
            As in :meth:`log_predictive`.

        Returns
        -------
        float
        """
        found = self.log_predictive(X, y, offset)
        if not len(found):
            raise ValueError("X has 0 rows; allowed: one row at least")
        return float(found.mean())

    def sample_y(
        self,
        X: ArrayLike,
        size: int,
        rng: np.random.Generator | int | None = None,
        offset: ArrayLike | None = None,
    ) -> Array:
        """Draw responses to new rows from the posterior predictive distribution.

        A draw of the weights serves all rows, so that rows of one draw belong together. Given the
        weights, labels are drawn in the ratio t(h) : t(-h); of a loss that is no likelihood their
        shares differ from ``predict_proba``, which integrates both over the weights first.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
        size : int
            Number of draws.
        rng : numpy.random.Generator or int, optional
            A generator, or a seed for one; None draws afresh.
        offset : array_like of shape (n,), optional
            As in :func:`epfast.fit_linear`. None: 0.

        Returns
        -------
        ndarray of shape (size, n)
            Labels -1 and +1, or counts; for "binomial" the outcome of one trial, 0 or 1.
        """
        loss, draws = self.known_loss(), _checks.generator("rng", rng)
        latent = self._latent_draws(X, self.sample(size, draws))
        return loss.sample(self._moved(latent, offset), draws)

"""What posteriors of processes say of new inputs, from their latent mean and variance there."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from epfast import _checks
from epfast._arrays import Array, slices
from epfast.gaussian.posterior import GaussianPosterior, shifted

#: an array, or none
Maybe = ArrayLike | None


def prior_at(name: str, given: Any, m: int, joint: bool) -> Array:
    """Prior variances (m,), or for a joint prediction the prior covariance (m, m)."""
    if joint or _checks.real_array(name, given).ndim == 2:
        matrix = _checks.array(name, given, shape=(m, m))
        if m > 0:
            _checks.covariance(name, matrix, _checks.half_digits(given))
        return matrix if joint else np.diag(matrix)
    return _checks.prior_variances(name, given, m)


def matrices_of(dK: Any, shape: tuple[int, int]) -> Iterable[Any]:
    """Derivatives of a kernel, one matrix of this shape per parameter; an iterable as it is."""
    if not isinstance(dK, np.ndarray) and isinstance(dK, Iterable):
        return dK
    given = _checks.real_array("dK", dK)
    if given.ndim not in (2, 3):
        n, m = shape
        raise ValueError(f"dK has shape {given.shape}; allowed: ({n}, {m}), or (p, {n}, {m})")
    return given[None] if given.ndim == 2 else given


def contracted(alpha: Array, R: Array, dK: Any) -> float:
    """alpha' dK alpha / 2 - tr(R dK) / 2, of the upper triangle of R."""
    n = len(alpha)
    given = _checks.array("dK", dK, shape=(n, n))
    total = 0.0
    for part in slices(n):
        weight = np.multiply.outer(alpha[part], alpha[part.start :])
        weight -= R[part, part.start :]
        size = len(weight)
        # entries above the diagonal count twice
        weight[:, size:] *= 2.0
        weight[:, :size] = np.triu(2.0 * weight[:, :size], 1) + np.diag(np.diag(weight))
        total += float(np.vdot(weight, given[part, part.start :]))
    if not np.isfinite(total):
        raise ValueError("dK overflows; allowed: moderate numbers")
    return 0.5 * total


def missing() -> TypeError:
    """The error for rows of features in the place of kernels."""
    return TypeError(
        "k_star_diag (K_star_star) is missing; allowed: K_star, the kernel between new inputs and "
        "those of the fit, and after it the kernel of each new input with itself (for rows of "
        "features use epfast.GPClassifier)"
    )


def draws_of(mean: Array, covariance: Array, size: int, rng: np.random.Generator) -> Array:
    """Draws (size, m) of N(mean, covariance), by eigenvalues: it may be singular. O(m^3)."""
    values, vectors = linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    return np.asarray(mean + rng.standard_normal((size, len(mean))) @ root.T)


def pivoted_root(covariance: Array) -> Array:
    """A root (n, r) of a covariance of rank r to rounding, by Cholesky with pivots. O(n^2 r)."""
    factor, pivots, rank, _ = linalg.lapack.dpstrf(covariance, lower=1)
    rank = max(1, rank)
    root = np.empty((len(covariance), rank))
    root[pivots - 1] = np.tril(factor)[:, :rank]
    return root


class ProcessPosterior(GaussianPosterior):
    """Base of the posteriors of processes; a subclass has ``predict_latent``."""

    def predict_latent(
        self, K_star: ArrayLike, K_star_star: Any = None, joint: bool = False
    ) -> tuple[Array, Array]:
        """Mean and variance of the process at new inputs."""
        raise NotImplementedError

    def predict_mean(self, K_star: ArrayLike) -> Array:
        """Mean of the process at new inputs, as of :meth:`predict_latent`, without its variance."""
        raise NotImplementedError

    def sample_latent(
        self,
        K_star: ArrayLike,
        K_star_star: ArrayLike | None,
        size: int,
        rng: np.random.Generator | int | None = None,
    ) -> Array:
        """Draw the process at new inputs from the posterior, all inputs jointly. O(m^3).

        Parameters
        ----------
        K_star, K_star_star
            As in :meth:`predict_latent` with ``joint=True``.
        size : int
            Number of draws.
        rng : numpy.random.Generator or int, optional
            A generator, or a seed for one; None draws afresh.

        Returns
        -------
        ndarray of shape (size, m), or (size, m, C) with C latents
        """
        size = _checks.integer("size", size, least=0)
        draws = _checks.generator("rng", rng)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, covariance = self.predict_latent(K_star, K_star_star, joint=True)
        if not (np.isfinite(mean).all() and np.isfinite(covariance).all()):
            raise ValueError("K_star or K_star_star overflows; allowed: moderate numbers")
        if self.axes == 1:
            return draws_of(mean, covariance, size, draws)
        pairs = zip(mean.T, covariance, strict=True)
        return np.stack([draws_of(*pair, size, draws) for pair in pairs], axis=2)

    def _latent_of(self, theta: Array) -> Array:
        return theta

    def _losses_of(self, theta: Array) -> Array:
        return self.loss_of_rows().values(theta.T, self.observed()).T

    def marginals_of_rows(self) -> tuple[Array, Array]:
        return self.mean, self.variance

    def observed(self) -> Array:
        y: Array = self.problem.data.y
        return y

    @property
    def y(self) -> Array:
        """(n,) or (n, width), the responses of the fit."""
        y = self.observed()
        return y[:, 0] if y.shape[1] == 1 else y

    def _shifted_latent(
        self, K_star: ArrayLike, k_star_diag: Maybe, offset: Maybe
    ) -> tuple[Array, Array]:
        """Mean and variance of the process at new inputs, offset included."""
        mean, variance = self.predict_latent(K_star, k_star_diag)
        return shifted(mean, offset, self.axes), variance

    def predict_proba(
        self, K_star: ArrayLike, k_star_diag: Maybe = None, offset: Maybe = None
    ) -> Array:
        """Probability of the label +1 at new inputs.

        Parameters
        ----------
        K_star, k_star_diag
            ``K_star`` and ``K_star_star`` of :meth:`predict_latent`.
        offset : array_like of shape (m,), optional
            As in :func:`epfast.fit_gp`. None: 0.

        Returns
        -------
        ndarray of shape (m,)
            Closed form for probit and noisy step with beta = 1, else quadrature to about 1e-8.
        """
        return self.known_loss().predict_proba(*self._shifted_latent(K_star, k_star_diag, offset))

    def predict(self, K_star: ArrayLike, k_star_diag: Maybe = None, offset: Maybe = None) -> Array:
        """Predict y at new inputs: the label for classes, else the mean of y.

        From the mean of the process alone, O(n) each, where that decides: labels of a likelihood
        that rises with the margin, and y in the unit of the process. Elsewhere, as for counts, the
        mean of y depends on the variance too.

        Parameters
        ----------
        K_star, k_star_diag
            ``K_star`` and ``K_star_star`` of :meth:`predict_latent`.
        offset : array_like of shape (m,), optional
            As in :func:`epfast.fit_gp`. None: 0.

        Returns
        -------
        ndarray of shape (m,)
        """
        loss = self.known_loss()
        if loss.needs_variance or k_star_diag is None:
            return loss.predict(*self._shifted_latent(K_star, k_star_diag, offset))
        mean = self.predict_mean(K_star)
        prior_at("k_star_diag", k_star_diag, len(mean), False)
        return loss.predict(shifted(mean, offset), np.full(len(mean), np.nan))

    def predict_variance(
        self, K_star: ArrayLike, k_star_diag: Maybe = None, offset: Maybe = None
    ) -> Array:
        """Predictive variance of y at new inputs.

        Parameters
        ----------
        K_star, k_star_diag
            ``K_star`` and ``K_star_star`` of :meth:`predict_latent`.
        offset : array_like of shape (m,), optional
            As in :func:`epfast.fit_gp`. None: 0.

        Returns
        -------
        ndarray of shape (m,)
        """
        latent = self._shifted_latent(K_star, k_star_diag, offset)
        return self.known_loss().predict_variance(*latent)

    def log_predictive(
        self, K_star: ArrayLike, k_star_diag: Maybe, y: ArrayLike, offset: Maybe = None
    ) -> Array:
        """Log probability of responses at new inputs.

        Parameters
        ----------
        K_star, k_star_diag
            ``K_star`` and ``K_star_star`` of :meth:`predict_latent`.
        y : array_like
            As in :func:`epfast.fit_gp`.
        offset : array_like of shape (m,), optional
            As in :func:`epfast.fit_gp`. None: 0.

        Returns
        -------
        ndarray of shape (m,)
        """
        latent, loss = self._shifted_latent(K_star, k_star_diag, offset), self.known_loss()
        return loss.log_predictive(loss.responses("y", y, len(latent[0])), *latent)

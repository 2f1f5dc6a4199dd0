"""What posteriors of processes say of new inputs, from their latent mean and variance there."""

from __future__ import annotations

from typing import Any

from numpy.typing import ArrayLike

from epfast._arrays import Array
from epfast.inference.posterior import Posterior


class ProcessPosterior(Posterior):
    """Base of the posteriors of processes; a subclass has ``predict_latent``."""

    def predict_latent(self, K_star: ArrayLike, k_star_diag: Any) -> tuple[Array, Array]:
        """Mean and variance of the process at new inputs, (m,) each."""
        raise NotImplementedError

    def _responses(self) -> Array:
        """(n, width), as the loss made them."""
        y: Array = self.problem.y
        return y

    def observed(self) -> Array | None:
        return self._responses()

    def log_likelihood(self, draws: Array) -> Array:
        return -self.known_loss().values(draws.T, self._responses()).T

    @property
    def y(self) -> Array:
        """(n,) or (n, width), the responses of the fit."""
        y = self._responses()
        return y[:, 0] if y.shape[1] == 1 else y

    def predict_proba(self, K_star: ArrayLike, k_star_diag: ArrayLike | None) -> Array:
        """Probability of the label +1 at new inputs.

        Parameters
        ----------
        K_star, k_star_diag
            As in :meth:`predict_latent`.

        Returns
        -------
        ndarray of shape (m,)
            Closed form for probit and noisy step with beta = 1, else quadrature to about 1e-8.
        """
        return self.known_loss().predict_proba(*self.predict_latent(K_star, k_star_diag))

    def predict(self, K_star: ArrayLike, k_star_diag: ArrayLike | None) -> Array:
        """Predict y at new inputs: the label for classes, else the mean of y.

        Parameters
        ----------
        K_star, k_star_diag
            As in :meth:`predict_latent`.

        Returns
        -------
        ndarray of shape (m,)
        """
        return self.known_loss().predict(*self.predict_latent(K_star, k_star_diag))

    def predict_variance(self, K_star: ArrayLike, k_star_diag: ArrayLike | None) -> Array:
        """Predictive variance of y at new inputs.

        Parameters
        ----------
        K_star, k_star_diag
            As in :meth:`predict_latent`.

        Returns
        -------
        ndarray of shape (m,)
        """
        return self.known_loss().predict_variance(*self.predict_latent(K_star, k_star_diag))

    def log_predictive(
        self, K_star: ArrayLike, k_star_diag: ArrayLike | None, y: ArrayLike
    ) -> Array:
        """Log probability of responses at new inputs.

        Parameters
        ----------
        K_star, k_star_diag
            As in :meth:`predict_latent`.
        y : array_like
            As in :func:`epfast.fit_gp`.

        Returns
        -------
        ndarray of shape (m,)
        """
        latent = self.predict_latent(K_star, k_star_diag)
        loss = self.known_loss()
        return loss.log_predictive(loss.responses("y", y, len(latent[0])), *latent)

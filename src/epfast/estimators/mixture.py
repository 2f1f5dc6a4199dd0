"""The scikit-learn face of fit_mixture. Needs the extra ``epfast[sklearn]``."""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast._arrays import Array
from epfast.estimators.base import (
    Posteriors,
    Report,
    Seed,
    all_or_nothing,
    check_is_fitted,
    estimator,
    fit_seed,
    seed_of_draws,
    validate_rows,
    warn_of_fits,
)
from epfast.parametric import MixturePosterior
from epfast.parametric.mixture import MODEL, fit_model
from epfast.schedules import Schedule

if TYPE_CHECKING:  # scikit-learn has no types

    class DensityMixin:
        """As scikit-learn's."""

else:
    from sklearn.base import DensityMixin

__all__ = ["GaussianMixtureEP"]


@estimator
class GaussianMixtureEP(DensityMixin, Posteriors[MixturePosterior]):
    """Mixture of Gaussians of one isotropic noise, for scikit-learn: see :func:`fit_mixture`.

    Where scikit-learn's ``GaussianMixture(covariance_type="spherical")`` gives points, here are
    posteriors, which predictions integrate over, and a log evidence, by which the number of
    components may be chosen. They have no ``check()``: :func:`epfast.fit_mixture` says why.

    Parameters
    ----------
    n_components : int, default=1
    noise_variance, prior_mean, prior_variance, weights, concentration, noise_prior
        As in :func:`epfast.fit_mixture`.
    schedule, n_init
        As in :func:`epfast.fit_mixture`.
    random_state : int, RandomState or None
        Seed of prior means and of the order of rows. None is 0.

    Attributes
    ----------
    posterior_ : MixturePosterior
    means_ : ndarray of shape (n_components, d)
        Posterior means.
    weights_ : ndarray of shape (n_components,)
    noise_variance_ : float
    covariances_ : ndarray of shape (n_components, d, d)
        Of rows about the mean of their component: the noise.
    log_evidence_ : float
    converged_ : bool
    n_iter_ : int
        Passes.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = np.concatenate([rng.normal(-2, 0.5, (50, 2)), rng.normal(2, 0.5, (50, 2))])
    >>> model = epfast.GaussianMixtureEP(n_components=2).fit(X)
    >>> bool(model.predict(X[:1])[0] != model.predict(X[-1:])[0])
    True
    """

    n_components: int = field(default=1, kw_only=False)
    noise_variance: float | None = None
    prior_mean: ArrayLike | None = None
    prior_variance: ArrayLike | None = None
    weights: ArrayLike | None = None
    concentration: ArrayLike | None = None
    noise_prior: tuple[float, float] | None = None
    schedule: Schedule | None = None
    n_init: int | None = None
    random_state: Seed = None

    @all_or_nothing
    def fit(self, X: ArrayLike, y: ArrayLike | None = None) -> GaussianMixtureEP:
        """Fit the posterior.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows.
        y : None
            Ignored.

        Returns
        -------
        GaussianMixtureEP
            Itself.

        Raises
        ------
        Interrupted
            On Ctrl-C. The estimator is as it was.

        Warns
        -----
        ConvergenceWarning
            If the passes did not converge.
        """
        del y
        rows = validate_rows(self, X, **self._input())
        model = {name: getattr(self, name) for name in MODEL}
        post, engine = fit_model(
            rows,
            self.n_components,
            model,
            self.schedule,
            fit_seed(self.random_state),
            n_init=self.n_init,
        )
        warn_of_fits([Report(post, engine, post.schedule)])
        self._set_fits([post], post.log_evidence)
        self.means_, self.weights_ = post.mean, post.weights
        self.noise_variance_ = post.noise_variance
        J, d = self.means_.shape
        self.covariances_ = np.tile(np.diag(np.full(d, self.noise_variance_)), (J, 1, 1))
        return self

    def fit_predict(self, X: ArrayLike, y: ArrayLike | None = None) -> NDArray[np.intp]:
        """Fit, and the most probable component of each row, (n,)."""
        return self.fit(X, y).predict(X)

    def predict(self, X: ArrayLike) -> NDArray[np.intp]:
        """The most probable component of each row.

        Parameters
        ----------
        X : array_like of shape (n, d)

        Returns
        -------
        ndarray of shape (n,)
        """
        rows = self._rows(X)
        return np.asarray(self.posterior_.predict(rows))

    def predict_proba(self, X: ArrayLike) -> Array:
        """Probability of each component, integrated over the posterior.

        Parameters
        ----------
        X : array_like of shape (n, d)

        Returns
        -------
        ndarray of shape (n, n_components)
        """
        rows = self._rows(X)
        return np.asarray(self.posterior_.predict_proba(rows))

    def score_samples(self, X: ArrayLike) -> Array:
        """Log density of each row, integrated over the posterior.

        Parameters
        ----------
        X : array_like of shape (n, d)

        Returns
        -------
        ndarray of shape (n,)
        """
        rows = self._rows(X)
        return np.asarray(self.posterior_.log_predictive(rows))

    def score(self, X: ArrayLike, y: ArrayLike | None = None) -> float:
        """The mean of :meth:`score_samples`.

        Parameters
        ----------
        X : array_like of shape (n, d)
        y : None
            Ignored.

        Returns
        -------
        float
        """
        del y
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1) -> tuple[Array, NDArray[np.intp]]:
        """Draws of rows, by ``random_state``.

        Parameters
        ----------
        n_samples : int, default=1

        Returns
        -------
        X : ndarray of shape (n_samples, d)
        y : ndarray of shape (n_samples,)
            Their components.
        """
        check_is_fitted(self)
        rows, components = self.posterior_.sample_x(n_samples, seed_of_draws(self.random_state))
        return rows, components

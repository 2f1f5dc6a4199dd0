"""The scikit-learn face of fit_gp for y of any kind. Needs the extra ``epfast[sklearn]``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array
from epfast.estimators.base import all_or_nothing, check_sizes, estimator, sample_weights
from epfast.estimators.kernels import kernel_of
from epfast.estimators.process_model import ProcessModel
from epfast.estimators.regression import LatentRegressor, Observed, loss_of_numbers
from epfast.gaussian.fit_hyper_gp import IntegratedProcess
from epfast.gaussian.posterior import shifted
from epfast.inference.report import note_working

__all__ = ["GPRegressor"]

#: least variance of Gaussian noise over that of other scales of a likelihood: 1e-9 of that of y,
#: where searches for smooth functions without noise end
LESS_NOISE = 1e-3
#: median of the half-Cauchy prior of the noise, in units of the spread of y: that of linear models
NOISE = 2.5


@estimator
class GPRegressor(ProcessModel, LatentRegressor):
    """Gaussian process for y of any kind by expectation propagation, for scikit-learn.

    The kernel's hyper-parameters and parameters of the likelihood, such as the variance of noise,
    maximise EP's log evidence together, by a search with its gradient. Where scikit-learn's
    ``GaussianProcessRegressor`` stands, this one can: with Gaussian noise EP is exact.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel, optional
        The covariance function, in the unit of the latent values, of X as it is. None is a variance
        times an ``RBF`` of one length scale, of columns in units of their own, as in
        :class:`GPClassifier`, the variance times the square of the spread of y where the latent
        values have the unit of y. If noise is Gaussian, the variance goes up to 1e7, the length
        scale to 1,000 times the largest distance, and searches start there, too.
    loss : str or Loss, default="gaussian"
        A likelihood of one latent value per row, as in :class:`LinearRegressor`.
    learn : tuple of str, optional
        The parameters of the loss that the evidence sets, out of ``loss.learnable``: as ``("scale",
        "df")``. The search begins with y, not with the numbers of the loss. By default the first of
        them. () keeps the numbers of the loss, and so does ``optimizer=None``.
    center : bool, default=True
        Whether the process has a constant mean: the location of y, in the unit of the latent values
        (for counts the log of their mean). It is taken from y, not integrated.
    integrate : bool or "auto", default="auto"
        As in :class:`GPClassifier`. The noise has a half-Cauchy prior with a median of 2.5 times
        the spread of y. Predictions, quantiles and draws are those of the mixture.
    optimizer, n_restarts_optimizer, scheme, schedule, jitter, rank, method, n_neighbors
    random_state, n_jobs
        As in :class:`GPClassifier`.
    warm_start : bool, default=False
        Whether to start from the hyper-parameters of the fit before.

    Attributes
    ----------
    kernel_ : Kernel
        With the hyper-parameters found.
    loss_ : Loss
        With the parameters found.
    mean_ : float
        The constant mean of the process.
    posterior_ : GPPosterior, LowRankGPPosterior, NearestGPPosterior or IntegratedProcess
        The posterior over the latent values of the fit.
    log_marginal_likelihood_value_, log_evidence_ : float
        Log evidence at the hyper-parameters found. NaN by nearest rows. The second is that of an
        average, integrated over them.
    converged_ : bool
        Whether EP settled.
    n_failed_points_ : int
        Hyper-parameters of the search at which no fit held, as in :class:`GPClassifier`.
    n_iter_ : int
        Sweeps that the sites have gone through in this fit, as in :class:`LinearRegressor`.
    X_train_ : ndarray of shape (n, d)
        The inputs of the fit.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> x = np.linspace(0, 6, 40)[:, None]
    >>> y = np.sin(x[:, 0]) + 0.05 * np.random.default_rng(0).normal(size=40)
    >>> y[::8] += 5.0
    >>> model = epfast.GPRegressor(loss="student_t").fit(x, y)
    >>> bool(abs(model.predict(x) - np.sin(x[:, 0])).max() < 0.2)
    True
    """

    loss: Any = "gaussian"
    learn: tuple[str, ...] | None = None
    center: bool = True

    @all_or_nothing
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> GPRegressor:
        """Find the hyper-parameters and fit the posterior.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        y : array_like of shape (n,) or (n, 2)
            What the loss takes, see its class.
        sample_weight : array_like of shape (n,), optional
            A row of weight w >= 1 counts as w rows, the likelihood of one below 1 enters to that
            power. Rows of weight 0 are left out.
        offset : array_like of shape (n,), default=0
            Known parts of the latent values. For counts the log of the exposure.

        Returns
        -------
        GPRegressor
            Itself.

        Raises
        ------
        Interrupted
            On Ctrl-C, as in :class:`GPClassifier`. The estimator is as it was.
        FloatingPointError
            If EP fails at all hyper-parameters.
        MemoryError
            If there is no low rank, and the matrices of all rows do not fit.

        Warns
        -----
        ConvergenceWarning
            If hyper-parameters were lost (``n_failed_points_``), if the last fit did not converge,
            or if a hyper-parameter ends at a bound of the kernel, in scikit-learn's words.
        EvidenceWarning
            If a parameter ends where its search ends, or y does not tell it from numbers there.
            If there is one row.
        DataWarning
            If a ``rank`` that is given leaves more than 1 nat of the log evidence open. If
            ``method="auto"`` comes to nearest rows. If the loss is
            :class:`epfast.losses.Quantile`, whose sds and intervals do not hold.
        """
        rows, given = self._rows_and_responses(X, y)
        given = np.asarray(given)
        loss = loss_of_numbers(self.loss, given)
        check_sizes(rows, given, loss)
        note_working(loss)
        shift = None
        if offset is not None:
            shift = _checks.array("offset", offset, shape=(len(rows),))
        weights = None if sample_weight is None else sample_weights(rows, sample_weight)
        if weights is not None:
            counts = weights > 0.0
            rows, given, weights = rows[counts], given[counts], weights[counts]
            shift = None if shift is None else shift[counts]
        self._check()
        seen = Observed.of(loss, given, len(rows), weights, shift)
        self.mean_ = seen.location if _checks.flag("center", self.center) else 0.0
        shifts = seen.offset_beside(shift, self.mean_)
        parameters = self._learnable(seen.loss, seen.responses, weights)
        kept = parameters.loss.with_offset(shifts is not None)
        parameters = parameters._replace(loss=kept)
        far = seen.loss.exact_sites(seen.responses) is not None
        if far and parameters.size:
            least = parameters.bounds + np.log([LESS_NOISE, 1.0])
            parameters = parameters._replace(bounds=least)
        kernel = kernel_of(self.kernel, rows, weights, seen.unit, far)
        self._fit(rows, kernel, parameters, [given], weights, NOISE * seen.unit, shifts, far)
        return self

    # -- prediction --

    def predict(  # type: ignore[override]
        self,
        X: ArrayLike,
        return_std: bool = False,
        return_cov: bool = False,
        offset: ArrayLike | None = None,
    ) -> Any:
        """Predictive mean of y: integrated over the posterior.

        Parameters
        ----------
        X : array_like of shape (m, d)
            Rows of features.
        return_std : bool, default=False
            Whether to return the predictive standard deviation of y too, its noise included.
        return_cov : bool, default=False
            Whether to return the posterior covariance of the latent values too, which is without
            the noise of y. Not beside ``return_std``.
        offset : array_like of shape (m,), default=0
            As in ``fit``.

        Returns
        -------
        mean : ndarray of shape (m,)
            The most probable class for ordered classes. NaN where there is no mean.
        std : ndarray of shape (m,), only if ``return_std``
        covariance : ndarray of shape (m, m), only if ``return_cov``
        """
        if not _checks.flag("return_cov", return_cov):
            return super().predict(X, return_std, offset)
        if _checks.flag("return_std", return_std):
            raise ValueError("return_std and return_cov are both True; allowed: one of them")
        rows = self._rows(X)
        ((post, given),) = self._cross(rows, True)
        _, covariance = post.predict_latent(*given, True)
        return super().predict(X, False, offset), covariance

    @property
    def _level(self) -> float:
        return self.mean_

    def _draws(self, rows: Any, size: int, rng: np.random.Generator, offset: Any) -> Array:
        if isinstance(self.posterior_, IntegratedProcess):
            whole = shifted(np.full(len(rows), self.mean_), offset)
            return np.asarray(self.posterior_.sample_y(rows, size, rng, whole))
        ((post, given),) = self._cross(rows, True)
        latent: Array = post.sample_latent(*given, size, rng) + self.mean_
        return np.asarray(self.loss_.sample(shifted(latent, offset), rng))

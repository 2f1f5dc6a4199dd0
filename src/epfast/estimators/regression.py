"""What the regressors share: checks of y, and predictions. Needs scikit-learn."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from epfast import _checks, losses
from epfast._arrays import Array, to_float64
from epfast.estimators.base import (
    Posteriors,
    check_is_fitted,
    seed_of_draws,
    validate_data,
    validate_fit,
)
from epfast.gaussian.posterior import shifted
from epfast.losses import Loss, Multiclass, quantiles
from epfast.losses.names import NUMBERS, loss_at_door, own_name

# scikit-learn is there, or epfast.estimators.base would have said so
from sklearn.base import BaseEstimator, RegressorMixin  # isort: skip
from sklearn.metrics import r2_score  # isort: skip
from sklearn.utils.validation import check_consistent_length  # isort: skip

__all__ = ["LatentRegressor"]


#: losses with the mean exp(h), up to a factor
LOG_LINKS = losses.Poisson, losses.NegativeBinomial, losses.GammaNoise, losses.Weibull


class Parts(NamedTuple):
    """A mixture of predictive distributions of y."""

    weights: Array
    losses: list[Loss]
    #: mean and variance of the latent values, (n,) each
    latents: list[tuple[Array, Array]]

    def _each(self, name: str, *given: Any) -> Array:
        """What a method of the losses says, (k, n)."""
        pairs = zip(self.losses, self.latents, strict=True)
        return np.stack([getattr(loss, name)(*given, *latent) for loss, latent in pairs])

    @property
    def _finite(self) -> Parts:
        """The most probable part alone where y has a log link: then a mixture has no finite mean.

        E[exp(h)] over a prior sd s grows as exp(s^2 / 2), which no prior of scales outweighs.
        """
        loss, k = self.losses[0], int(np.argmax(self.weights))
        if not isinstance(getattr(loss, "base", loss), LOG_LINKS):
            return self
        return Parts(np.ones(1), [self.losses[k]], [self.latents[k]])

    def mean(self) -> Array:
        if hasattr(self.losses[0], "cuts"):  # the most probable class
            p = np.tensordot(self.weights, self._each("predict_proba"), 1)
            return np.asarray(p.argmax(axis=1), dtype=np.float64)
        most = self._finite
        return np.asarray(most.weights @ most._each("predict"))

    def moments(self) -> tuple[Array, Array]:
        """Mean and standard deviation."""
        most, mean = self._finite, self.mean()
        means, within = most._each("predict"), most.weights @ most._each("predict_variance")
        if len(means) > 1:
            within = within + most.weights @ (means - most.weights @ means) ** 2
        return mean, np.sqrt(within)

    def quantile(self, level: float) -> Array:
        if len(self.losses) == 1:
            return self.losses[0].predict_quantile(level, *self.latents[0])
        return quantiles.of_mixture(level, self.losses, self.weights, self.latents)

    def log_predictive(self, responses: Array) -> Array:
        each = self._each("log_predictive", responses)
        if len(each) == 1:
            return np.asarray(each[0])
        return np.asarray(special.logsumexp(each.T, axis=1, b=self.weights))


class Observed(NamedTuple):
    """What a regressor is given of y: the fits are of y less its location."""

    #: of the responses, which have offsets if some are given
    loss: Loss
    #: (n, width)
    responses: Array
    #: about where h is if all rows have the same, and how far y spreads
    location: float
    unit: float

    @classmethod
    def of(
        cls, loss: Loss, y: Any, n: int, weights: Array | None, offset: ArrayLike | None
    ) -> Observed:
        """y as the user gave it, of n rows."""
        whole = loss.with_offset(offset is not None)
        responses = whole.observed(y, n, offset)
        return cls(whole, responses, *whole.typical(responses, weights))

    def offset_beside(self, offset: ArrayLike | None, level: float) -> Array | None:
        """The offsets of the rows with a constant, (n,). None: they are 0."""
        n = len(self.responses)
        given = np.zeros(n) if offset is None else _checks.array("offset", offset, shape=(n,))
        result = given + level
        return result if result.any() else None


class LatentRegressor(Posteriors, RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the regressors: predictions of y from one latent value per row."""

    #: the loss, with the parameters that the evidence has set
    loss_: Loss

    def _rows_and_responses(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Rows and y of a fit. y (n,), or (n, 2) whose columns the loss knows."""
        given = self._input()
        if _is_pair(y) and isinstance(self.loss, str) and own_name(self.loss) == "gaussian":
            raise ValueError(
                "y has 2 columns; allowed with loss='gaussian': (n,); loss=losses.Gaussian() takes "
                "(value, variance); several outputs take a model each, as by "
                "sklearn.multioutput.MultiOutputRegressor"
            )
        if _is_pair(y):
            rows = validate_data(self, X, **given)
            check_consistent_length(rows, y)
            return rows, y
        try:
            first = np.asarray(y).ravel()[:1]
        except ValueError:
            raise ValueError(
                "y is not a rectangular array; allowed: numbers, one per row"
            ) from None
        if len(first) and isinstance(first[0], str):
            raise TypeError(
                f"y holds text, {str(first[0])!r} first; allowed: numbers; ordered classes are 0, "
                "1, 2, ...: pandas.Categorical(y, categories=[...], ordered=True).codes"
            )
        rows, targets = validate_fit(self, X, y, y_numeric=True, **given)
        return rows, to_float64(targets)

    @property
    def _level(self) -> float:
        """What is added to the latent values of posteriors."""
        return 0.0

    def _parts(self, rows: Any, offset: ArrayLike | None, variances: bool = True) -> Parts:
        """The likelihoods and latent values whose mixture predicts y; variances: see _points."""
        weights, posteriors, latents = self._points(rows, variances)
        losses = [post.known_loss() for (post,) in posteriors]
        given = [(shifted(m + self._level, offset), np.maximum(v, 0.0)) for ((m, v),) in latents]
        return Parts(weights, losses, given)

    def _draws(self, rows: Any, size: int, rng: np.random.Generator, offset: Any) -> Array:
        """Draws of y, (size, n)."""
        raise NotImplementedError

    def predict_latent(self, X: ArrayLike, offset: ArrayLike | None = None) -> tuple[Array, Array]:
        """Posterior mean and variance of the latent values, of which y is a noisy function.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        offset : array_like of shape (n,), default=0
            As in ``fit``.

        Returns
        -------
        mean, variance : ndarray of shape (n,)
        """
        ((mean, variance),) = self._latents(self._rows(X))
        return shifted(mean + self._level, offset), np.maximum(variance, 0.0)

    def predict(
        self, X: ArrayLike, return_std: bool = False, offset: ArrayLike | None = None
    ) -> Any:
        """Predictive mean of y: integrated over the posterior.

        Where y has the unit of the latent values it is their mean, up to a constant. Elsewhere, as
        for counts, it depends on their variances. With a log link it is that at the most probable
        hyper-parameters, also where these are averaged over: over a prior of scales the mean of
        exp(h) is infinite. Quantiles are those of the average.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        return_std : bool, default=False
            Whether to return the predictive standard deviation of y too, its noise included.
        offset : array_like of shape (n,), default=0
            As in ``fit``.

        Returns
        -------
        mean : ndarray of shape (n,)
            The most probable class for ordered classes. NaN where there is no mean.
        std : ndarray of shape (n,), only if ``return_std``
        """
        check_is_fitted(self)
        wide = _checks.flag("return_std", return_std) or self.loss_.needs_variance
        parts = self._parts(self._rows(X), offset, wide)
        return parts.moments() if return_std else parts.mean()

    def predict_quantile(
        self, X: ArrayLike, q: float | ArrayLike = 0.5, offset: ArrayLike | None = None
    ) -> Array:
        """Predictive quantiles of y: the least y with P(y' <= y) >= q.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        q : float or array_like of shape (k,), default=0.5
            Levels, in (0, 1).
        offset : array_like of shape (n,), default=0
            As in ``fit``.

        Returns
        -------
        ndarray of shape (n,), or (n, k)
        """
        levels = _checks.real_array("q", q)
        if levels.ndim > 1:
            raise ValueError(f"q has shape {levels.shape}; allowed: a number, or shape (k,)")
        parts = self._parts(self._rows(X), offset)
        quantiles = [parts.quantile(level) for level in levels.ravel().tolist()]
        if levels.ndim == 0:
            return quantiles[0]
        return np.array(quantiles).reshape(len(quantiles), len(parts.latents[0][0])).T.copy()

    def score(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> float:
        """Share of the variance of y that the predictive mean explains, R^2.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        y : array_like of shape (n,) or (n, 2)
            As in ``fit``. Of (value, variance) and (time, observed) the first column counts, of
            (lower, upper) the middle or the finite end, and of (count, trials) the share of
            successes, whose weight is multiplied by the trials.
        sample_weight : array_like of shape (n,), optional
            Numbers >= 0.
        offset : array_like of shape (n,), default=0
            As in ``fit``.

        Returns
        -------
        float
            1 is best. A constant that is the mean of y has 0.
        """
        predicted = self.predict(X, offset=offset)
        if not np.isfinite(predicted).all():
            raise ValueError(
                f"predict(X) has no finite mean for some rows with {self.loss_!r}, so that there "
                "is no R^2; score_samples(X, y) has log densities of all losses"
            )
        n, weights = len(predicted), None
        if sample_weight is not None:
            weights = _checks.array("sample_weight", sample_weight, shape=(n,))
            if not (weights >= 0.0).all() or not weights.any():
                raise ValueError(
                    f"sample_weight holds numbers from {weights.min():g} to {weights.max():g}; "
                    "allowed: numbers >= 0, some of them > 0"
                )
        if _is_pair(y):
            y, share = self.loss_.outcomes(self.loss_.responses("y", y, n))
            if share is not None:
                weights = share if weights is None else share * weights
        return float(r2_score(y, predicted, sample_weight=weights))

    def score_samples(
        self, X: ArrayLike, y: ArrayLike | None = None, offset: ArrayLike | None = None
    ) -> Array:
        """Log predictive density, or probability, of y: integrated over the posterior.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        y : array_like of shape (n,) or (n, 2), optional
            As in ``fit``. By default the predictive medians.
        offset : array_like of shape (n,), default=0
            As in ``fit``.

        Returns
        -------
        ndarray of shape (n,)
        """
        parts = self._parts(self._rows(X), offset)
        if y is None:
            y = parts.quantile(0.5)
        return parts.log_predictive(self.loss_.responses("y", y, len(parts.latents[0][0])))

    def sample_y(
        self,
        X: ArrayLike,
        n_samples: int = 1,
        random_state: Any = 0,
        offset: ArrayLike | None = None,
    ) -> Array:
        """Draw y: those of one column come from one draw of the model.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        n_samples : int, default=1
            Draws per row.
        random_state : int, RandomState or None, default=0
            As in scikit-learn, a seed or a generator. None draws afresh.
        offset : array_like of shape (n,), default=0
            As in ``fit``.

        Returns
        -------
        ndarray of shape (n, n_samples)
        """
        size = _checks.integer("n_samples", n_samples, least=0)
        rng = np.random.default_rng(seed_of_draws(random_state))
        return self._draws(self._rows(X), size, rng, offset).T


def _is_pair(y: Any) -> bool:
    """Whether y has two columns."""
    try:
        shape = np.asarray(y).shape
    except ValueError:  # rows of several lengths
        return False
    return len(shape) == 2 and shape[1] == 2


def loss_of_numbers(given: Any, y: Any) -> Loss:
    """The loss of a regressor. Those of labels, and of several latent values, are refused."""
    loss = loss_at_door(given, NUMBERS, y)
    if loss.by_margin or isinstance(loss, Multiclass):
        raise ValueError(
            f"loss is {loss!r}, whose y are labels; allowed in a regressor: a loss of other y, as "
            "'gaussian'; LinearClassifier and GPClassifier take labels"
        )
    if loss.latents != 1:
        raise ValueError(
            f"loss is {loss!r}, which has {loss.latents} latent values per row; allowed in a "
            "regressor: a loss of one; epfast.fit_linear and epfast.fit_gp take the others"
        )
    return loss

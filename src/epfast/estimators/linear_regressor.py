"""The scikit-learn face of fit_linear for y of any kind. Needs the extra ``epfast[sklearn]``."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks, losses
from epfast._arrays import Array
from epfast.estimators.base import all_or_nothing, check_sizes, estimator, sample_weights
from epfast.estimators.evidence import BinaryProblems
from epfast.estimators.linear_model import HyperParameters, LinearModel
from epfast.estimators.regression import LatentRegressor, Observed, loss_of_numbers
from epfast.estimators.search import Learnt
from epfast.gaussian import Problem
from epfast.gaussian.prior import INTERCEPT_VARIANCE
from epfast.inference import DataWarning
from epfast.inference.report import note_working
from epfast.losses import Loss

__all__ = ["LinearRegressor"]

#: rows of which parameters are learnt where the evidence of all has no slopes by them
FEW = 1000
#: prior variance of the intercept over the square of the unit of h, beside its location, of logs
#: and other links, as the exponential of h has to stay finite: with 2.5 and 40 the intercepts of 36
#: fits of 20 to 200 rows move by up to .61 and .35 of their sd, by .02 and .01 in the median
OF_LINK = 10.0


@estimator
class LinearRegressor(LinearModel, LatentRegressor):
    """Bayesian linear regression by expectation propagation, for scikit-learn.

    y may be real numbers, counts, times, or ordered classes. The posterior of the weights is that
    of :func:`epfast.fit_linear`, and predictions are averages over it. The prior variance and the
    parameters of the likelihood, such as the variance of the noise, maximise the log evidence.

    Parameters
    ----------
    loss : str or Loss, default="gaussian"
        A likelihood of one latent value x.theta per row, as in :func:`epfast.fit_linear`:
        "gaussian", "student_t", "laplace_noise", "poisson", "negative_binomial", "gamma_noise",
        "weibull", ``losses.Censored(upper=...)``, ``losses.Ordinal(cuts)``, ...
    scheme : str or Scheme, optional
        How factors are fitted. By default "exact" for scalar sites, as in
        :func:`epfast.fit_linear`.
    posterior : {"full", "factorized"}, optional
        As in :class:`LinearClassifier`. The evidence has slopes in parameters of the loss only with
        "full". With "factorized" or a ``batch_size``, the parameters and the prior variance are
        those of 1,000 random rows, fitted with "full", unless ``learn`` is given.
    batch_size : int, optional
        Rows per factor. By default a site per row.
    prior_variance : float, array_like of shape (d,), "evidence" or "ard", optional
        Variance of the independent normal priors of the coefficients, with mean 0. "evidence" is
        the common variance that maximises the log evidence, or one per group of ``prior_groups``.
        "ard" has one per column. The default for a likelihood is "evidence" under a weak prior
        (``prior_scale``), and 1 for other losses.
    standardize : bool, optional
        As in :class:`LinearClassifier`: by default prior variances that are learned are of
        standardised weights, so that the units of the columns do not matter.
    prior_groups : array_like of shape (d,), optional
        A label per column, of any kind. Columns with the same label share a prior variance.
    prior_scale : float or None, default=2.5
        As in :class:`LinearClassifier`, in units of the spread of y, or of 1 for a log or another
        link. In an average it is also the median of the half-Cauchy prior of the noise: of its sd
        or scale, and of the root of 1 / size and 1 / shape. None means no average.
    integrate : bool or "auto", default="auto"
        Whether to average over the prior variance and the parameters of ``learn``, under weak
        priors: half-Cauchy (``prior_scale``), gamma(2, 0.1) for degrees of freedom, flat for
        shares. Cuts of ordered classes are fixed at their mode. "auto" averages below 2,000 rows,
        if this changes a standard deviation by more than 5 %, as estimated from the curvature of
        the evidence and a fit for each hyper-parameter. False uses the most probable values, whose
        intervals are too narrow with few rows. With Gaussian noise the average needs no fits.
    learn : tuple of str, optional
        Parameters of the loss to estimate by the evidence, out of ``loss.learnable``, for example
        ``("scale", "df")``. The search starts from y, not from the numbers of the loss. By default
        the first of them. () keeps the numbers of the loss.
    fit_intercept : bool, default=True
        Whether to add a constant column of ones.
    intercept_variance : float, optional
        Prior variance of the latent value at the means of the columns (with a factorised
        posterior, of the intercept), whose prior mean is 0. By default the prior mean is the
        location of y, its mean or median, and the variance 100 times the square of its spread. For
        a log or another link the mean is 0, and the variance the square of the location plus 10.
    schedule : Schedule, optional
        As in :class:`LinearClassifier`.
    warm_start : bool, default=False
        Whether :meth:`fit` starts from the sites of the last fit.
    n_jobs : int, optional
        Number of threads of the fit, as in :func:`epfast.fit_linear`.
    random_state : int or RandomState, default=None
        As in :class:`LinearClassifier`.

    Attributes
    ----------
    coef_ : ndarray of shape (d,)
        Posterior mean of the coefficients.
    intercept_ : float
        Posterior mean of the intercept. 0 without one.
    coef_covariance_ : ndarray of shape (d, d)
        Posterior covariance of the coefficients, without the intercept. Computed when it is read.
    loss_ : Loss
        The loss, with its estimated parameters.
    posterior_ : FullPosterior, FactorizedPosterior or IntegratedPosterior
        The posterior of the coefficients and, as the last weight, of the intercept. If averaged
        over hyper-parameters, a mixture of posteriors, with the hyper-parameters in
        ``posterior_.hyper``.
    log_evidence_ : float
        EP's log p(y), if the loss is a likelihood. For an average it is integrated over the
        hyper-parameters, too.
    prior_variance_ : float or ndarray of shape (d,)
        The prior variance, given or estimated: that of standardised weights, where
        ``standardize_``. For an average it is the geometric mean.
    standardize_ : bool
    column_scale_ : ndarray of shape (d,)
        As in :class:`LinearClassifier`.
    n_lost_ : int
        Points of the search at which no fit converged.
    n_iter_ : int
        Sweeps that the sites have gone through in this fit, those of a search at other
        hyper-parameters included, as ``posterior_.n_sweeps``.
    converged_ : bool
        Whether the fit reached the tolerance of the schedule.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Notes
    -----
    If h = x.theta has the unit of y (Gaussian, Student-t, Laplace, quantile, censored), all
    defaults scale with y: predictions of c y are c times those of y. Beside an intercept they move
    with y, too: fits are of y less its location, and that of y + c differs in the intercept alone.
    The search of prior variances and of parameters of the loss is that of
    :class:`LinearClassifier`, to a local maximum. With Gaussian noise it needs no fits, since the
    evidence is a function of the eigenvalues of X'X. A row with weight w counts as w copies of
    itself.

    An average is that of :func:`epfast.fit_hyper`, over the same hyper-parameters. Predictions,
    quantiles and intervals are those of the mixture. 90 % intervals of coefficients and of new y
    cover 0.89 to 0.92 over simulated data of
    the model's own class, with 15 to 200 rows and up to half as many columns.

    References
    ----------
    Rue, H., Martino, S. and Chopin, N. (2009). Approximate Bayesian inference for latent Gaussian
    models by using integrated nested Laplace approximations. Journal of the Royal Statistical
    Society B 71(2), 319-392. With EP in place of their Laplace approximation.

    Juarez, M. A. and Steel, M. F. J. (2010). Model-based clustering of non-Gaussian panel data
    based on skew-t distributions. Journal of Business & Economic Statistics 28(1), 52-66: the prior
    of degrees of freedom.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = rng.poisson(np.exp(X @ [0.5, -1.0, 0.0] + 1.0))
    >>> model = epfast.LinearRegressor(loss="poisson").fit(X, y)
    >>> model.coef_.round(1) + 0.0
    array([ 0.5, -1. ,  0. ])
    >>> mean, std = model.predict(X[:5], return_std=True)
    """

    loss: Any = "gaussian"
    learn: tuple[str, ...] | None = None

    # ---- fit ----

    @all_or_nothing
    def fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        sample_weight: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> LinearRegressor:
        """Fit the posterior, the prior variance and the parameters of the likelihood.

        Ctrl-C raises :class:`epfast.Interrupted`, and leaves the estimator as it was before.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
            Rows of features.
        y : array_like of shape (n,) or (n, 2)
            What the loss takes, see its class.
        sample_weight : array_like of shape (n,), optional
            Numbers >= 0: each row counts as so many copies of itself.
        offset : array_like of shape (n,), default=0
            Known parts of the latent values. For counts the log of the exposure.

        Returns
        -------
        LinearRegressor
            Itself.

        Warns
        -----
        ConvergenceWarning
            If points of the search were lost (``n_lost_``), or the last fit did not converge.
        EvidenceWarning
            If a parameter ends where its search ends, or y does not tell it from numbers there.
            If y is a single number.
        DataWarning
            If the loss is :class:`epfast.losses.Quantile`, whose sds and intervals do not hold. If
            weights are no counts.
        """
        rows, given = self._rows_and_responses(X, y)
        rows, loss = _checks.rows("X", rows), loss_of_numbers(self.loss, given)
        check_sizes(rows, given, loss)
        note_working(loss)
        weights = None if sample_weight is None else sample_weights(rows, sample_weight)
        if weights is not None and (weights == 1.0).all():
            weights = None
        seen = Observed.of(loss, given, rows.shape[0], weights, offset)
        level, few = self._level_of(seen), None
        if self._learns_from_few(rows):
            few = partial(self._learnt_from_few, rows, np.asarray(given), weights, offset)
        shifts = seen.offset_beside(offset, level)
        self._fit(rows, [given], weights, shifts, few, partial(at_level, seen, level))
        return self

    # ---- parts of a fit ----

    def _level_of(self, seen: Observed) -> float:
        """What is taken from y, and added to the intercept: the location of y in units of h.

        Not beside a given prior of the intercept, which is about 0. Nor of y that are all alike,
        which have no other unit than their size.
        """
        free = _checks.flag("fit_intercept", self.fit_intercept) and self.intercept_variance is None
        varies = seen.loss.in_units_of_y and seen.unit != abs(seen.location)
        return seen.location if free and varies else 0.0

    def _learns_from_few(self, rows: Any) -> bool:
        """Whether parameters are to be learnt that the evidence of these fits has no slopes by."""
        slopes = self._covariance(rows) == "full" and self.batch_size is None
        return self.learn is None and not slopes and bool(losses.resolve(self.loss).learnable)

    def _learnt_from_few(
        self,
        rows: Any,
        given: Array,
        weights: Array | None,
        offset: ArrayLike | None,
        binary: BinaryProblems,
    ) -> HyperParameters:
        """Prior variance and loss of some of the rows, by a fit with a full covariance."""
        n = rows.shape[0]
        some = np.sort(np.random.default_rng(0).permutation(n)[:FEW])
        asked = self.get_params() | {"posterior": "full", "batch_size": None, "warm_start": False}
        asked["integrate"] = False
        loss = loss_of_numbers(self.loss, given)
        few = LinearRegressor(**asked | {"loss": loss, "scheme": None, "schedule": None})
        shift = None if offset is None else _checks.array("offset", offset, shape=(n,))[some]
        share = None if weights is None else weights[some]
        if share is not None and not share.any():
            share = None
        with warnings.catch_warnings():  # of all rows they are said already
            warnings.simplefilter("ignore", DataWarning)
            few.fit(rows[some], given[some], share, shift)
        loss = few.loss_.with_offset(binary.problems[0].loss.has_offset)
        return HyperParameters(Learnt(few.prior_variance_, loss), n_lost=few.n_lost_)

    def _factor(self, offset: ArrayLike | None, y: Any) -> Loss:
        return loss_of_numbers(self.loss, y).with_offset(offset is not None)

    def _intercept(self, problem: Problem) -> float:
        if self.intercept_variance is not None:
            return super()._intercept(problem)
        assert problem.data.y is not None
        location, unit = problem.loss.typical(problem.data.y, problem.data.weights)
        wide = INTERCEPT_VARIANCE if problem.loss.in_units_of_y else OF_LINK
        return float(np.clip(location**2 + wide * unit**2, 1e-300, 1e300))

    def _draws(self, rows: Any, size: int, rng: np.random.Generator, offset: Any) -> Array:
        drawn: Array = self.posterior_.sample_y(rows, size, rng, offset)
        return drawn


def at_level(seen: Observed, level: float, post: Any, sign: float = 1.0) -> Any:
    """The posterior of y, from that of y less its level. Or the other way, with sign -1."""
    if not level:
        return post
    return post.raised(sign * level, seen.responses, seen.loss.has_offset)

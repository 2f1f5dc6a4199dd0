"""The scikit-learn face of fit_linear. Needs the extra ``epfast[sklearn]``."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from epfast import _checks
from epfast._arrays import Array
from epfast.estimators.base import LatentClassifier, validate_data
from epfast.estimators.evidence import (
    BinaryProblems,
    Search,
    total_evidence,
    variance_range,
    with_ones,
)
from epfast.estimators.interrupts import all_or_nothing
from epfast.inference import ConvergenceWarning, fit_from
from epfast.linear.fit import choose
from epfast.linear.problem import data_of, prior_of
from epfast.schedules import EP, Schedule

# scikit-learn is there, or epfast.estimators.base would have said so
from sklearn.utils.class_weight import compute_class_weight  # isort: skip
from sklearn.utils.validation import _check_sample_weight  # isort: skip

__all__ = ["LinearClassifier"]

#: rows per factor of a factorised posterior by default
BATCH_SIZE = 10
#: tight enough that repeated and weighted rows agree to 1e-8
FULL_SCHEDULE = EP(sweeps=200, tol=1e-10)
#: factors of several rows may settle to a cycle, which a tight tolerance never passes
FACTORIZED_SCHEDULE = EP(sweeps=50, tol=1e-6)


class LinearClassifier(LatentClassifier):
    """Bayesian linear classifier by expectation propagation, for scikit-learn.

    The posterior over the weights comes from :func:`epfast.fit_linear`; predictions integrate over
    it. For more than two classes one classifier per class, that class against the rest, with the
    probabilities normalised to sum to 1.

    Parameters
    ----------
    loss : str, Loss, scipy.LowLevelCallable or callable
        "logistic", "probit", "hinge", "quasi01", "noisy_step" or another loss, as in
        :func:`epfast.fit_linear`.
    scheme : str or Scheme, optional
        How factors are fitted. None: "exact" for scalar sites, "variational" for minibatches.
    posterior : {"full", "factorized"}
        "full": scalar sites, one per row, and all correlations; O(n d^2) per sweep. "factorized":
        minibatch factors and a diagonal covariance, which understates the uncertainty of
        correlated columns; O(n d) per sweep.
    batch_size : int, optional
        Rows per factor. None: scalar sites with "full", 10 rows with "factorized".
    prior_variance : float, "evidence" or array_like of shape (d,)
        Variance of the independent normal prior of the coefficients, with mean 0. "evidence": the
        common variance that maximises the log evidence. The prior is on the coefficients as they
        are, so scale the columns (StandardScaler).
    fit_intercept : bool
        Whether to add a constant column of ones.
    intercept_variance : float
        Prior variance of the intercept, never chosen by the evidence. The default is broad: a
        standard deviation of 10, in units of log odds.
    schedule : Schedule, optional
        None runs EP to its fixed point: ``EP(sweeps=200, tol=1e-10)`` for "full",
        ``EP(sweeps=50, tol=1e-6)`` for "factorized".
    beta : float
        Inverse temperature of the factors exp(-beta loss).
    class_weight : dict, "balanced" or None
        Weights of the classes, which multiply ``sample_weight``. "balanced": inverse to the total
        sample weight of each class, with mean 1 over the data.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted.
    coef_ : ndarray of shape (1, d) or (n_classes, d)
        Posterior mean of the coefficients; of ``classes_[1]`` where there are two classes, else of
        each class against the rest.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Posterior mean of the intercept; 0 without one.
    coef_covariance_ : ndarray of shape (d, d) or (n_classes, d, d)
        Posterior covariance of the coefficients, without the intercept.
    posterior_ : FullPosterior or FactorizedPosterior
        With two classes: the posterior over coefficients and, as the last weight, the intercept.
    posteriors_ : list of FullPosterior or FactorizedPosterior
        One, or one for each class.
    log_evidence_ : float
        EP's log p(y); with more than two classes the sum over the classes, each against the rest.
    prior_variance_ : float or ndarray of shape (d,)
        The prior variance in use; with "evidence" the one that was found, which may be an end of
        the searched range where the evidence has no maximum inside it: classes that a plane
        separates favour large variances, data without any signal small ones.
    n_iter_ : int
        Sweeps of the fit, the most over the classes.
    converged_ : bool
        Whether all fits reached the tolerance of the schedule.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, where X has names that are all strings.

    Notes
    -----
    A weight w counts a row as w copies of itself, each with the factor t, so that the data enter as
    t^w. The weights need not be integers, and rows of weight 0 do not count.

    For "evidence" the posterior is fitted at 9 variances, such that the prior variance of x.theta,
    with x about its mean, runs from 1e-6 to 1e6, and the best of them is refined with warm starts:
    by the root of the slope of the log evidence where EP reaches fixed points, else by Brent's
    minimisation. With more than two classes the sum of their log evidences is maximised.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = np.where(X @ [1.0, -2.0, 0.0] + rng.logistic(size=200) > 0, "yes", "no")
    >>> model = epfast.LinearClassifier(prior_variance="evidence").fit(X, y)
    >>> model.predict(X[:3])
    array(['yes', 'yes', 'no'], dtype='<U3')
    """

    def __init__(
        self,
        *,
        loss: Any = "logistic",
        scheme: Any = None,
        posterior: str = "full",
        batch_size: int | None = None,
        prior_variance: float | str | ArrayLike = 25.0,
        fit_intercept: bool = True,
        intercept_variance: float = 100.0,
        schedule: Schedule | None = None,
        beta: float = 1.0,
        class_weight: dict[Any, float] | str | None = None,
    ) -> None:
        self.loss = loss
        self.scheme = scheme
        self.posterior = posterior
        self.batch_size = batch_size
        self.prior_variance = prior_variance
        self.fit_intercept = fit_intercept
        self.intercept_variance = intercept_variance
        self.schedule = schedule
        self.beta = beta
        self.class_weight = class_weight

    # ---- fit ----

    @all_or_nothing
    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> LinearClassifier:
        """Fit the posterior.

        Ctrl-C raises :class:`epfast.Interrupted` with the posterior of the binary problem last at
        hand, and leaves the estimator as it was before.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
            Rows of features; sparse with ``posterior="full"``.
        y : array_like of shape (n,)
            Labels of any kind, two or more different ones.
        sample_weight : array_like of shape (n,), optional
            Numbers >= 0: each row counts as so many copies of itself (below 1 with its factor to
            that power), as ``weights`` of :func:`epfast.fit_linear`; with ``posterior="full"``.

        Returns
        -------
        LinearClassifier
            Itself.
        """
        rows, labels = validate_data(
            self, X, y, dtype=np.float64, accept_sparse=self._accept_sparse()
        )
        index, targets = self._encode(labels)
        n_classes = len(self.classes_)
        weights = self._weights(rows, index, sample_weight)
        binary = self._problems(rows, targets, weights)
        self._left = binary.unfitted

        self.prior_variance_: Any
        if isinstance(self.prior_variance, str):
            _checks.choice("prior_variance", self.prior_variance, ("evidence",))
            limits = variance_range(rows, weights, self.fit_intercept)
            with warnings.catch_warnings():
                # warnings of the search only: the last fit, at the maximum, gives its own
                warnings.simplefilter("ignore", ConvergenceWarning)
                self.prior_variance_, starts = Search(binary).maximum(*limits)
        elif np.ndim(self.prior_variance) == 0:
            self.prior_variance_ = _checks.number("prior_variance", self.prior_variance, above=0.0)
            starts = None
        else:
            self.prior_variance_ = _checks.array(
                "prior_variance", self.prior_variance, shape=(rows.shape[1],), positive=True
            ).copy()
            starts = None
        fit = partial(binary.fit, self.prior_variance_, binary.schedule)
        self.posteriors_ = fit_from(fit, starts)

        d = rows.shape[1]
        if n_classes == 2:
            self.posterior_ = self.posteriors_[0]
        elif hasattr(self, "posterior_"):
            del self.posterior_
        covariances = [post.covariance[:d, :d] for post in self.posteriors_]
        self.coef_covariance_ = covariances[0].copy() if n_classes == 2 else np.array(covariances)
        means = np.array([post.mean for post in self.posteriors_])
        self.coef_ = means[:, :d].copy()
        self.intercept_ = means[:, d].copy() if self.fit_intercept else np.zeros(len(means))
        self.log_evidence_ = total_evidence(self.posteriors_)
        self.n_iter_ = max(len(post.history) for post in self.posteriors_)
        self.converged_ = all(post.converged for post in self.posteriors_)
        return self

    def _problems(self, rows: Any, targets: list[Array], weights: Array | None) -> BinaryProblems:
        """The part of the fit that stays fixed while the prior variance is sought."""
        _checks.flag("fit_intercept", self.fit_intercept)
        factorized = self.posterior == "factorized"
        schedule = self.schedule
        if schedule is None:
            schedule = FACTORIZED_SCHEDULE if factorized else FULL_SCHEDULE
        given = {} if weights is None else {"weights": weights}
        if sparse.issparse(rows):
            given["sparse X"] = rows
        batch_size = BATCH_SIZE if self.batch_size is None and factorized else self.batch_size
        chosen = choose(
            self.loss, self.scheme, self.posterior, batch_size, schedule, self.beta, given
        )
        intercept = _checks.number("intercept_variance", self.intercept_variance, above=0.0)
        X = with_ones(rows) if self.fit_intercept else rows
        prior = prior_of(np.ones(X.shape[1]), np.zeros(X.shape[1]), not factorized)
        problems = [
            chosen.problem(data_of(X, target, weights, chosen.loss), prior) for target in targets
        ]
        return BinaryProblems(problems, rows.shape[1], intercept if self.fit_intercept else None)

    def _weights(self, rows: Any, index: NDArray[np.intp], sample_weight: Any) -> Array | None:
        """Sample weight times class weight, (n,); None if all are 1."""
        weights = np.ones(rows.shape[0])
        if sample_weight is not None:
            weights = np.array(_check_sample_weight(sample_weight, rows, dtype=np.float64))
            if not (weights >= 0.0).all():
                raise ValueError(
                    f"sample_weight has a minimum of {weights.min():g}; allowed: numbers >= 0"
                )
            if not weights.any():
                raise ValueError("sample_weight is zero in every row; allowed: some number > 0")
        if isinstance(self.class_weight, str):
            _checks.choice("class_weight", self.class_weight, ("balanced",))
            mass = np.bincount(index, weights)
            seen = mass > 0.0
            by_class = np.zeros(len(mass))
            by_class[seen] = mass.sum() / (seen.sum() * mass[seen])
            weights *= by_class[index]
        elif self.class_weight is not None:
            by_class = compute_class_weight(
                self.class_weight, classes=self.classes_, y=self.classes_[index]
            )
            if not (np.isfinite(by_class).all() and (by_class >= 0.0).all() and by_class.any()):
                raise ValueError(
                    f"class_weight is {_checks.describe(self.class_weight)}; allowed: numbers >= 0"
                )
            weights *= by_class[index]
        if np.count_nonzero(np.bincount(index, weights)) < 2:
            raise ValueError(
                "the rows of positive weight are all of 1 class; allowed: two classes or more"
            )
        return None if (weights == 1.0).all() else weights

    # ---- predict ----

    def _latents(self, rows: Any) -> list[tuple[Array, Array]]:
        if self.posteriors_[0].shift.size > self.n_features_in_:
            rows = with_ones(rows)
        return [post.predict_latent(rows) for post in self.posteriors_]

    def __sklearn_tags__(self) -> Any:
        """Tags of scikit-learn."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = bool(self._accept_sparse())
        return tags

    def _accept_sparse(self) -> str | bool:
        """Sparse formats that scikit-learn shall accept; factorised fits take dense rows only."""
        return False if self.posterior == "factorized" else "csr"

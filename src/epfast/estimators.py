"""The scikit-learn face of fit_linear, and what all of them share: extra ``epfast[sklearn]``."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, sparse, special

from epfast import _checks, backend
from epfast._checks import Array
from epfast.linear import fit_linear
from epfast.loop import ConvergenceWarning
from epfast.posterior import FactorizedPosterior, FullPosterior
from epfast.schedules import ADF, EP, Schedule, SharedSites

try:
    from sklearn.base import BaseEstimator, ClassifierMixin
    from sklearn.utils.class_weight import compute_class_weight
    from sklearn.utils.multiclass import check_classification_targets
    from sklearn.utils.validation import _check_sample_weight, check_is_fitted
except ImportError as error:
    raise ImportError(
        "epfast's classifiers need scikit-learn >= 1.4: pip install 'epfast[sklearn]'"
    ) from error

try:
    from sklearn.utils.validation import validate_data
except ImportError:  # scikit-learn 1.4 and 1.5

    def validate_data(estimator: Any, *args: Any, **arguments: Any) -> Any:
        """The method that came before the function."""
        return estimator._validate_data(*args, **arguments)


__all__ = ["LatentClassifier", "LinearClassifier", "check_is_fitted", "validate_data"]

Posterior = FullPosterior | FactorizedPosterior

#: rows per factor of a factorised posterior, where the user names none
BATCH_SIZE = 10
#: runs to the fixed point: repeated rows and weighted rows then agree to 1e-8
FULL_SCHEDULE = EP(sweeps=200, tol=1e-10)
#: factors of several rows may settle to a cycle instead
FACTORIZED_SCHEDULE = EP(sweeps=50, tol=1e-6)

#: the evidence is searched where the prior variance of x.theta, x about its mean, is in this range
LATENT_VARIANCES = (1e-6, 1e6)
#: first at that many points, evenly in the logarithm
GRID = 9
#: then to that accuracy of log(prior variance): by the root of the slope at fixed points of EP, ...
ROOT_ACCURACY = 1e-10
#: ... or by the values, which cannot tell more
ACCURACY = 1e-4
#: what a fit at an extreme prior may fail with; ValueError: a start that is improper there
FAILURES = (FloatingPointError, np.linalg.LinAlgError, ValueError)


class LatentClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """What a classifier does with latent values: one per row, or one per row and class."""

    #: the labels, sorted
    classes_: NDArray[Any]
    #: one, or one for each class against the rest
    posteriors_: list[Any]

    def predict_latent(self, X: ArrayLike) -> tuple[Array, Array]:
        """Posterior mean and variance of the latent values: of x.theta, or of the process.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.

        Returns
        -------
        mean, variance : ndarray of shape (n,) or (n, n_classes)
            One column per class where there are more than two. In a linear model the intercept is
            included: the mean is ``X @ coef_.T + intercept_``.
        """
        check_is_fitted(self)
        rows = validate_data(
            self, X, dtype=np.float64, accept_sparse=self._accept_sparse(), reset=False
        )
        parts = self._latents(rows)
        if len(parts) == 1:
            return parts[0]
        return np.stack([m for m, _ in parts], axis=1), np.stack([v for _, v in parts], axis=1)

    def _latents(self, rows: Any) -> list[tuple[Array, Array]]:
        """Mean and variance, (n,) each, for every posterior."""
        raise NotImplementedError

    def _accept_sparse(self) -> str | bool:
        """What scikit-learn is to let through."""
        return False

    def decision_function(self, X: ArrayLike) -> Array:
        """Predictive log odds log p(+) / p(-), integrated over the posterior.

        They order the rows as ``predict_proba`` does and have the sign of the latent mean, but lie
        nearer to 0 where the latent is uncertain. For the latent mean itself see
        :meth:`predict_latent`.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.

        Returns
        -------
        ndarray of shape (n,) or (n, n_classes)
            Of ``classes_[1]``; or of each class against the rest, where there are more than two.
        """
        mean, variance = self.predict_latent(X)
        m, v = mean.ravel(), np.maximum(variance.ravel(), np.finfo(np.float64).tiny)
        post, plus = self.posteriors_[0], np.ones(m.size)
        up, down = (
            backend.tilted_moments(post.loss, y, m, v, beta=post.beta)[0] for y in (plus, -plus)
        )
        return np.asarray((up - down).reshape(mean.shape))

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.

        Returns
        -------
        ndarray of shape (n,)
            Labels out of ``classes_``.
        """
        scores = self.decision_function(X)
        index = (scores > 0.0).astype(np.intp) if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[index])

    def predict_proba(self, X: ArrayLike) -> Array:
        """Posterior predictive probability of each class.

        The factors are integrated over the posterior, and normalised over the two labels (see
        :meth:`epfast.FullPosterior.predict_proba`), with more than two classes over these.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.

        Returns
        -------
        ndarray of shape (n, n_classes)
            Columns in the order of ``classes_``.
        """
        return np.exp(self.predict_log_proba(X))

    def predict_log_proba(self, X: ArrayLike) -> Array:
        """Logarithm of ``predict_proba``, accurate where that underflows.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.

        Returns
        -------
        ndarray of shape (n, n_classes)
            Columns in the order of ``classes_``.
        """
        scores = self.decision_function(X)
        if scores.ndim == 1:
            return np.asarray(special.log_expit(np.stack([-scores, scores], axis=1)))
        logs = special.log_expit(scores)
        return np.asarray(logs - special.logsumexp(logs, axis=1, keepdims=True))

    def _encode(self, labels: NDArray[Any]) -> tuple[NDArray[np.intp], list[Array]]:
        """Set ``classes_``; their numbers, and an array of -1 and +1 per binary problem."""
        check_classification_targets(labels)
        self.classes_, index = np.unique(labels, return_inverse=True)
        n_classes = len(self.classes_)
        if n_classes < 2:
            raise ValueError(
                f"y has {n_classes} class, {self.classes_.tolist()}; allowed: two classes or more"
            )
        positive = [1] if n_classes == 2 else range(n_classes)
        return index, [np.where(index == k, 1.0, -1.0) for k in positive]


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
    array(['no', 'yes', 'yes'], dtype='<U3')
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

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> LinearClassifier:
        """Fit the posterior.

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
        problem = self._problem(rows, targets, weights)

        self.prior_variance_: Any
        if isinstance(self.prior_variance, str):
            _checks.choice("prior_variance", self.prior_variance, ("evidence",))
            limits = _variance_range(rows, weights, self.fit_intercept)
            with warnings.catch_warnings():
                # of the fits on the way; the last one, at the maximum, speaks for itself
                warnings.simplefilter("ignore", ConvergenceWarning)
                self.prior_variance_, starts = _Search(problem).maximum(*limits)
        elif np.ndim(self.prior_variance) == 0:
            self.prior_variance_ = _checks.number("prior_variance", self.prior_variance, above=0.0)
            starts = None
        else:
            self.prior_variance_ = _checks.array(
                "prior_variance", self.prior_variance, shape=(rows.shape[1],), positive=True
            ).copy()
            starts = None
        try:
            self.posteriors_ = problem.fit(self.prior_variance_, problem.schedule, starts)
        except FAILURES:
            if starts is None:
                raise
            self.posteriors_ = problem.fit(self.prior_variance_, problem.schedule)

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
        self.log_evidence_ = _total_evidence(self.posteriors_)
        self.n_iter_ = max(len(post.history) for post in self.posteriors_)
        self.converged_ = all(post.converged for post in self.posteriors_)
        return self

    def _problem(self, rows: Any, targets: list[Array], weights: Array | None) -> _Problem:
        """What stays fixed while the prior variance is sought."""
        factorized = (
            _checks.choice("posterior", self.posterior, ("full", "factorized")) == "factorized"
        )
        _checks.flag("fit_intercept", self.fit_intercept)
        batch_size = self.batch_size
        if batch_size is None and factorized:
            batch_size = BATCH_SIZE
        scheme = self.scheme
        if scheme is None:
            scheme = "exact" if batch_size is None else "variational"
        schedule = self.schedule
        if schedule is None:
            schedule = FACTORIZED_SCHEDULE if factorized else FULL_SCHEDULE
        arguments = {
            "loss": self.loss,
            "scheme": scheme,
            "posterior": self.posterior,
            "batch_size": batch_size,
            "beta": self.beta,
        }
        if weights is not None:
            arguments["weights"] = weights
        intercept = _checks.number("intercept_variance", self.intercept_variance, above=0.0)
        return _Problem(
            _with_ones(rows) if self.fit_intercept else rows,
            targets,
            rows.shape[1],
            intercept if self.fit_intercept else None,
            schedule,
            arguments,
        )

    def _weights(self, rows: Any, index: NDArray[np.intp], sample_weight: Any) -> Array | None:
        """Sample weight times class weight, (n,); None where all are 1."""
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
            rows = _with_ones(rows)
        return [post.predict_latent(rows) for post in self.posteriors_]

    def __sklearn_tags__(self) -> Any:
        """Tags of scikit-learn."""
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = bool(self._accept_sparse())
        return tags

    def _accept_sparse(self) -> str | bool:
        """What scikit-learn is to let through: factorised fits take dense rows only."""
        return False if self.posterior == "factorized" else "csr"


class _Problem(NamedTuple):
    """The binary problems of a fit, all but the prior variance of the coefficients."""

    #: (n, d) or (n, d + 1): with a column of ones at the end, if there is an intercept
    rows: Any
    #: one (n,) array of -1 and +1 per problem
    targets: list[Array]
    #: number of coefficients
    d: int
    intercept_variance: float | None
    schedule: Schedule
    #: the other arguments of fit_linear
    arguments: dict[str, Any]

    def fit(
        self, variance: float | Array, schedule: Schedule, starts: list[Posterior] | None = None
    ) -> list[Posterior]:
        prior = np.broadcast_to(np.asarray(variance, dtype=np.float64), (self.d,))
        if self.intercept_variance is not None:
            prior = np.append(prior, self.intercept_variance)
        return [
            fit_linear(
                self.rows,
                target,
                prior_variance=prior,
                schedule=schedule,
                start=None if starts is None else starts[k],
                **self.arguments,
            )
            for k, target in enumerate(self.targets)
        ]


class _Search:
    """The maximum of the log evidence over u, the log of the prior variance."""

    def __init__(self, problem: _Problem) -> None:
        self.problem = problem
        #: from which the next fit starts
        self.last: list[Posterior] | None = None
        self.failure: Exception | None = None

    def fits(self, u: float, schedule: Schedule) -> list[Posterior] | None:
        """None where no fit succeeds."""
        for starts in [None] if self.last is None else [self.last, None]:
            try:
                found = self.problem.fit(math.exp(u), schedule, starts)
            except FAILURES as error:
                self.failure = error
                continue
            if not isinstance(schedule, ADF):  # which would go on with new rows
                self.last = found
            return found
        return None

    def value(self, u: float, schedule: Schedule) -> float:
        found = self.fits(u, schedule)
        return -math.inf if found is None else _total_evidence(found)

    def slope(self, u: float) -> float:
        """d log Z / du at a fixed point: (E|w|^2 / variance - d) / 2 for the coefficients w.

        There log Z does not change with the sites, to first order. NaN without a fixed point.
        """
        found = self.fits(u, self.problem.schedule)
        if found is None or not all(post.converged for post in found):
            return math.nan
        d = self.problem.d
        squares = sum((post.mean[:d] ** 2 + post.variance[:d]).sum() for post in found)
        return 0.5 * float(squares * math.exp(-u) - d * len(found))

    def maximum(self, least: float, most: float) -> tuple[float, list[Posterior] | None]:
        """The prior variance in [least, most], and fits to start from."""
        schedule = quick = self.problem.schedule
        if isinstance(schedule, EP | SharedSites):
            sweeps, tol = min(schedule.sweeps, 20), max(schedule.tol, 1e-3)
            quick = replace(cast(Any, schedule), sweeps=sweeps, tol=tol)
        grid = np.linspace(math.log(least), math.log(most), GRID).tolist()
        values = [self.value(u, quick) for u in grid]
        top = int(np.argmax(values))
        if values[top] == -math.inf:
            assert self.failure is not None
            raise self.failure
        low, high = grid[max(0, top - 1)], grid[min(GRID - 1, top + 1)]
        if isinstance(schedule, EP) and self.problem.arguments["posterior"] == "full":
            try:
                if self.slope(low) > 0.0 > self.slope(high):
                    root = optimize.brentq(self.slope, low, high, xtol=ROOT_ACCURACY)
                    return math.exp(root), self.last
            except ValueError:  # NaN on the way: brentq refuses
                pass
        # the ends themselves, which the search within the bracket does not visit
        tried = {u: self.value(u, schedule) for u in (low, high)}

        def loss(u: float) -> float:
            tried[u] = self.value(u, schedule)
            return -max(tried[u], -1e50)  # a fit that failed, as a finite number

        optimize.minimize_scalar(
            loss, bounds=(low, high), method="bounded", options={"xatol": ACCURACY}
        )
        return math.exp(max(tried, key=lambda u: tried[u])), self.last


def _variance_range(rows: Any, weights: Array | None, centred: bool) -> tuple[float, float]:
    """The range of LATENT_VARIANCES over the total variance of the columns (about 0 if told)."""
    share = np.ones(rows.shape[0]) if weights is None else weights
    share = share / share.sum()
    rounding = rows.shape[0] * np.finfo(float).eps
    with np.errstate(all="ignore"):
        mean = rows.T @ share
        if sparse.issparse(rows):
            square = rows.multiply(rows).T @ share
            spread, lost = square - mean**2, rounding
        else:
            square = (rows**2).T @ share
            spread, lost = ((rows - mean) ** 2).T @ share, rounding**2
        # what is left of a constant column is the rounding of its mean
        spread = np.where(spread > lost * square, spread, 0.0)
        for scale in (spread if centred else square, square):
            total = float(np.sum(scale))
            if math.isfinite(total) and 1e-200 < total < 1e200:
                return LATENT_VARIANCES[0] / total, LATENT_VARIANCES[1] / total
    return LATENT_VARIANCES


def _total_evidence(posteriors: list[Posterior]) -> float:
    return float(sum(post.log_evidence for post in posteriors))


def _with_ones(rows: Any) -> Any:
    """X with a column of ones at the end: a copy, C-contiguous."""
    n, d = rows.shape
    if sparse.issparse(rows):
        return sparse.hstack([rows, np.ones((n, 1))], format="csr")
    result = np.empty((n, d + 1))
    result[:, :d] = rows
    result[:, d] = 1.0
    return result

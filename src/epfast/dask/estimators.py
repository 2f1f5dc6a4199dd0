"""scikit-learn's manners on collections of Dask: they come in, and they come out."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple, Self, cast

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, RegressorMixin, clone
from sklearn.utils.validation import check_is_fitted

from epfast import _checks, losses
from epfast._arrays import Array, Matrix
from epfast.dask.cluster import client_at_work
from epfast.dask.data import Rows, loads_of, rows_at_door
from epfast.dask.fit import covariance_by, fit_linear
from epfast.dask.labels import (
    Labels,
    OfChunk,
    at_once,
    by_chunk,
    classes_of,
    computed,
    labels_at_door,
    signs_of,
)
from epfast.dask.needs import da, delayed, distributed
from epfast.dask.prediction import Posterior
from epfast.dask.worker import Lazy, good
from epfast.estimators.base import (
    LatentClassifier,
    Rows as Block,
    all_or_nothing,
    best,
    check_ends,
    estimator,
    stacked,
    tally,
)
from epfast.estimators.linear import AnyPosterior, Coefficients
from epfast.estimators.units import ColumnMoments, Units
from epfast.gaussian.linear_posterior import uncentered_posterior
from epfast.gaussian.prior import checked_variances
from epfast.gaussian.sources import answers, rows_of
from epfast.inference import ExecutorFailed, Interrupted
from epfast.losses import Loss
from epfast.schedules import Schedule
from epfast.schemes import Scheme


class _Units(NamedTuple):
    """The rows of a fit, and what is known of the units of their columns."""

    rows: Rows
    #: prior variance, as given or 1
    variance: float | Array
    #: that of the weights
    own: float | Array
    #: whether the first is that of standardised columns
    standard: bool
    #: (d,), of the columns
    scales: Array
    #: (d,), their means. None: they stay where they are
    center: Array | None


@estimator
class _Linear(Coefficients, BaseEstimator):  # type: ignore[misc]
    """What both share: parameters, and fits."""

    loss: str | Loss
    scheme: str | Scheme | None = None
    posterior: str | None = None
    batch_size: int | None = None
    prior_variance: ArrayLike | None = None
    standardize: bool | None = None
    fit_intercept: bool = True
    intercept_variance: float = 100.0
    schedule: Schedule | None = None
    client: distributed.Client | None = None
    persist: bool = True

    def __sklearn_clone__(self) -> Self:
        """A copy without what was fitted. A client is a connection, which copies share."""
        parameters = self.get_params(deep=False)
        del parameters["client"]
        other = type(self)(loss=self.loss, client=self.client)
        return other.set_params(**{k: clone(v, safe=False) for k, v in parameters.items()})

    def __getstate__(self) -> dict[str, Any]:
        """Without the client, which is of this process."""
        state: dict[str, Any] = super().__getstate__()
        return state | {"client": None}

    def _units(self, X: ArrayLike, y: ArrayLike, loss: Loss, weights: ArrayLike | None) -> _Units:
        """Prior variances of the weights, and where columns are, by a pass if one is needed.

        y: responses of this loss.
        """
        variance_given, rows = self.prior_variance, rows_at_door(X, y, weights)
        if isinstance(variance_given, str):
            raise ValueError(
                f"prior_variance is {variance_given!r}; allowed on a cluster: numbers; "
                "compare posterior_.log_evidence of some"
            )
        d = int(rows.X.shape[1])
        variance = 1.0 if variance_given is None else checked_variances(variance_given, d)
        standard, beside = variance_given is None, _checks.flag("fit_intercept", self.fit_intercept)
        if self.standardize is not None:
            standard = _checks.flag("standardize", self.standardize)
        if not standard:
            return _Units(rows, variance, variance, False, np.ones(d), None)
        chunks = [(k, k + 1) for k in range(len(rows.sizes))]
        loads = loads_of(rows, chunks, loss, False, uuid.uuid4().hex)
        found = computed([delayed(_moments_of)(load, d) for load in loads], self.client)
        parts, sparse = zip(*found, strict=True)
        moments = reduce(ColumnMoments.merged, parts)
        check_ends(moments.low, moments.high)
        scales = moments.scales(beside)
        full = (self.posterior or covariance_by(d, self.schedule)) == "full"
        center = moments.mean if beside and full and not any(sparse) else None
        return _Units(rows, variance, variance * Units(scales).variances, True, scales, center)

    def _posterior_of(
        self, X: ArrayLike, y: ArrayLike, loss: Loss, weights: ArrayLike | None, units: _Units
    ) -> Posterior:
        """The posterior of rows. It is fitted to those less their center, if they have one."""
        names, center = ("scheme", "posterior", "batch_size", "schedule", "client"), units.center
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        options |= {"weights": weights, "persist": self.persist, "prior_variance": units.own}
        options["intercept"] = self.intercept_variance if self.fit_intercept else False
        if center is None:
            return fit_linear(X, y, loss=loss, **options)

        def of_rows(post: Posterior) -> Posterior:
            problem = post.problem._replace(names=units.rows.names)
            whole: Posterior
            whole = uncentered_posterior(replace(post, problem=problem), center, problem.data)
            return whole

        less = da.map_blocks(_less, units.rows.X, center=center, meta=np.empty((0, 0)))
        try:
            return of_rows(fit_linear(less, y, loss=loss, **options))
        except (Interrupted, ExecutorFailed) as ended:
            if ended.posterior is not None:
                ended.posterior = of_rows(ended.posterior)
            raise

    def _by_chunk(
        self, function: OfChunk, X: ArrayLike, y: ArrayLike, weights: ArrayLike | None
    ) -> Array:
        """What a function says of each chunk of rows, y and weights: a weight, and numbers.

        Rows in memory are one chunk.
        """
        check_is_fitted(self)
        rows = rows_of(X, self.posteriors_[0].problem)
        if _checks.is_lazy(rows):
            numbers = np.array(by_chunk(function, X, labels_at_door(y), weights, self.client))
        else:
            block = cast(Matrix, rows)
            numbers = np.array([at_once(function, block, y, weights)])
        if not numbers[:, 0].sum() > 0.0:
            raise ValueError(
                "sample_weight adds up to 0, or X has no rows; allowed: some that count"
            )
        return numbers

    def _answers(self, X: ArrayLike, of_rows: Callable[..., Any]) -> Any:
        """What a function says of rows to predict: at once, or lazily of those of Dask."""
        check_is_fitted(self)
        return answers(of_rows, X, self.posteriors_[0].problem)

    def predict_latent(self, X: ArrayLike) -> tuple[Array, Array]:
        """Mean and variance of x.theta.

        Parameters
        ----------
        X : dask array, (n, d), or dask dataframe, or rows in memory

        Returns
        -------
        mean, variance : dask array or ndarray, (n,) or (n, n_classes)
            One column per class where there are more than two. Lazily for a collection of Dask, at
            once, without a cluster, for rows in memory: arrays, frames, sparse matrices, lists. So
            do all methods that predict.
        """
        both = self._answers(X, self._moments)
        return both[..., 0], both[..., 1]

    def _moments(self, rows: Block) -> Array:
        return np.stack(stacked(self._latents(rows)), axis=-1)

    def _latents(self, rows: Block) -> list[tuple[Array, Array]]:
        return [post.predict_latent(rows) for post in self.posteriors_]

    def _publish(self, posteriors: list[Posterior], units: _Units) -> None:
        """Set the attributes of a fit, at its end: who is interrupted stays as it was."""
        self.__dict__.pop("feature_names_in_", None)
        self.prior_variance_, self.standardize_ = units.variance, units.standard
        self.column_scale_ = units.scales
        problem = posteriors[0].problem
        self.n_features_in_ = int(problem.n_columns)
        if problem.names is not None:
            self.feature_names_in_ = np.array(problem.names, dtype=object)
        self._set_fits(posteriors, float(sum(post.log_evidence for post in posteriors)))


def _moments_of(shard: Lazy, d: int) -> tuple[ColumnMoments, bool]:
    """Of the rows of a shard, and whether they are sparse."""
    data = good(shard)
    rows = np.empty((0, d)) if data.X is None else data.X
    return ColumnMoments.of(rows, data.weights), hasattr(rows, "indptr")


def _less(block: Array, center: Array) -> Array:
    """Rows less a center, in their own precision."""
    return (block - center).astype(np.result_type(block.dtype, np.float32), copy=False)


@estimator
class LinearClassifier(_Linear, LatentClassifier[AnyPosterior]):
    """A linear model of two classes or more, whose rows are on a cluster.

    With more than two classes one posterior per class, that class against the rest, combined as in
    :class:`epfast.LinearClassifier`. A joint posterior of C classes ("multiclass") is for one
    machine: its covariance has (C d)^2 numbers, which each visit of a shard would send twice. The
    fits follow one another, each by all workers, and each reads the rows. One pass more combines
    them. ``X.persist()`` where reading takes longer than the fit.

    Parameters
    ----------
    loss : str or Loss, default="logistic"
        "logistic", "probit" or another loss of two labels.
    scheme, posterior, batch_size, schedule, client, persist
        As in :func:`epfast.dask.fit_linear`.
    prior_variance : float or array_like of shape (d,), optional
        Variance of the independent normal priors of the coefficients, with mean 0. The default is 1
        for columns that are standardised (``standardize``). It is not learned, as
        :class:`epfast.LinearClassifier` does: each fit of a search would be passes over the
        cluster. With ``prior_variance=1.0`` and the same ``standardize`` it is the same model.
    standardize : bool, optional
        Whether ``prior_variance`` is that of coefficients of standardised columns: coefficient j
        has the prior variance ``prior_variance / column_scale_[j]**2``. The fit then does not
        depend on the units of columns. The scales take one pass more over the rows. By default
        True, and False if ``prior_variance`` is given.
    fit_intercept : bool, default=True
        Whether to add a constant column of ones.
    intercept_variance : float, default=100.0
        Prior variance of the latent value at the means of the columns (with a factorised
        posterior, of the intercept; with ``ADF()``, at the means of the first chunk).

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted.
    prior_variance_ : float or ndarray of shape (d,)
        The prior variance, given or 1.
    standardize_ : bool
        Whether it is that of standardised columns.
    column_scale_ : ndarray of shape (d,)
        What columns are measured in: the standard deviation, of a column with two values half their
        range, of a constant column 1. Without an intercept the root mean square, of a column with
        two values as if both were as frequent. All 1 where ``standardize_`` is False.
    coef_ : ndarray of shape (1, d) or (n_classes, d)
        Posterior mean of the coefficients. Of ``classes_[1]`` where there are two classes, else of
        each class against the rest.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Posterior mean of the intercept. 0 without one.
    coef_covariance_ : ndarray of shape (d, d) or (n_classes, d, d)
        Posterior covariance of the coefficients. Made when it is read.
    posterior_ : FullPosterior or FactorizedPosterior
        With two classes.
    posteriors_ : list of posteriors
        One, or one for each class.
    coupling_ : float
        As in :class:`epfast.LinearClassifier`, but the rows of the fit choose it: none is left out,
        so have many more rows than columns. 0 with two classes.
    log_evidence_ : float
        Log evidence, with more than two classes the sum over the classes, each against the rest.
    n_iter_ : int
        Sweeps of the fit, the most over the classes.
    converged_ : bool
        Whether all fits reached the tolerance of the schedule.
    n_features_in_ : int
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns of a dataframe.

    Examples
    --------
    >>> import dask.array as da, numpy as np, epfast.dask
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(600, 2)) + np.repeat([[2.0, 0.0], [0.0, 2.0], [-2.0, -2.0]], 200, 0)
    >>> y = np.repeat(["east", "north", "west"], 200)
    >>> order = rng.permutation(600)
    >>> rows, labels = da.from_array(X[order], (200, 2)), da.from_array(y[order], 200)
    >>> model = epfast.dask.LinearClassifier().fit(rows, labels)
    >>> model.coef_.shape, model.predict(rows[:2]).compute().tolist() == y[order[:2]].tolist()
    ((3, 2), True)
    """

    loss: str | Loss = "logistic"

    @all_or_nothing
    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> LinearClassifier:
        """Fit the posterior, or one for each class.

        Parameters
        ----------
        X : dask array, (n, d), or dask dataframe
        y : dask array or series
            Labels of any kind, two or more different ones. They are looked up in a pass of their
            own.
        sample_weight : dask array or series, optional
            As ``weights`` of :func:`epfast.dask.fit_linear`.

        Returns
        -------
        LinearClassifier
            Itself.

        Raises
        ------
        Interrupted
            On Ctrl-C. The estimator is as it was before.
        """
        loss = losses.resolve(self.loss)
        if not loss.by_margin:
            joint = isinstance(loss, losses.Multiclass)
            raise ValueError(
                f"loss is {loss!r}; allowed in a classifier on a cluster: one of two labels, as "
                "'probit'"
                + (": each class against the rest, combined by coupling_" if joint else "")
            )
        labels = labels_at_door(y)
        rows_at_door(X, labels, sample_weight)
        with client_at_work(self.client):  # one stay outside the pool for all that waits
            classes = classes_of(labels, self.client)
            targets = [
                da.map_blocks(signs_of, labels, positive, dtype=np.float64, meta=np.empty(0))
                for positive in (classes[1:] if len(classes) == 2 else classes)
            ]
            units = self._units(X, targets[0], loss, sample_weight)
            posteriors = [self._posterior_of(X, y, loss, sample_weight, units) for y in targets]
            self.classes_, self._seen, self.coupling_ = classes, np.arange(len(classes)), 0.0
            self._publish(posteriors, units)
            if len(posteriors) > 1:
                sums = self._by_chunk(self._tally_of, X, labels, sample_weight)
                self.coupling_ = best(sums.sum(axis=0)[1:])
        return self

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Share of rows whose class is predicted.

        Parameters
        ----------
        X : dask array, (n, d), or dask dataframe, or rows in memory
        y, sample_weight : dask array or series, or arrays beside rows in memory
            Weights are optional.

        Returns
        -------
        float
        """
        every, right = self._by_chunk(self._hits, X, y, sample_weight).sum(axis=0)
        return float(right / every)

    def _hits(self, block: Matrix, labels: Labels, weights: Array) -> Array:
        """Of a chunk: sum of the weights of all rows, and of those whose label is predicted."""
        right = weights[self._labels(block) == labels] if len(labels) else np.zeros(0)
        return np.array([weights.sum(), right.sum()])

    def _tally_of(self, block: Matrix, labels: Labels, weights: Array) -> Array:
        """Of a chunk: sum of the weights, and see :func:`epfast.estimators.base.tally`."""
        scores = self._odds(block) if len(labels) else None
        sums = tally(scores, np.searchsorted(self.classes_, labels), weights)
        return np.append(weights.sum(), sums)


@estimator
class LinearRegressor(RegressorMixin, _Linear):  # type: ignore[misc]
    """A linear model of numbers, whose rows are on a cluster.

    Parameters
    ----------
    loss : str or Loss, default="gaussian"
        Its parameters are as they are given, where :class:`epfast.LinearRegressor` learns them: of
        "gaussian" the variance of noise is 1, so scale y, or give ``losses.Gaussian(variance)``.
    scheme, posterior, batch_size, schedule, client, persist
        As in :func:`epfast.dask.fit_linear`.
    prior_variance, standardize, fit_intercept, intercept_variance
        As in :class:`LinearClassifier`. :class:`epfast.LinearRegressor` takes the prior of the
        intercept from y, its mean and variance, which here would be a pass of its own: center y, or
        give a large variance. With ``learn=()`` and these variances it is the same model.

    Attributes
    ----------
    prior_variance_, standardize_, column_scale_
        As in :class:`LinearClassifier`.
    coef_ : ndarray of shape (d,)
        Posterior mean of the coefficients.
    intercept_ : float
    coef_covariance_ : ndarray of shape (d, d)
        Posterior covariance of the coefficients. Made when it is read.
    posterior_ : FullPosterior or FactorizedPosterior
    log_evidence_ : float
    n_features_in_, n_iter_ : int
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns of a dataframe.
    converged_ : bool
    """

    loss: str | Loss = "gaussian"

    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> LinearRegressor:
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
        loss = losses.resolve(self.loss)
        if loss.by_margin or loss.latents != 1:
            raise ValueError(f"loss is {loss!r}; allowed in a regressor: one of numbers")
        with client_at_work(self.client):
            units = self._units(X, y, loss, sample_weight)
            self._publish([self._posterior_of(X, y, loss, sample_weight, units)], units)
        return self

    def predict(self, X: ArrayLike) -> da.Array | Array:
        """Predictive mean of y: lazily, or at once of rows in memory.

        Parameters
        ----------
        X : dask array, (n, d), or dask dataframe, or rows in memory

        Returns
        -------
        dask array or ndarray, (n,)
        """
        check_is_fitted(self)
        found: da.Array | Array = self._answers(X, self.posterior_.predict)
        return found

    def predict_variance(self, X: ArrayLike) -> da.Array | Array:
        """Predictive variance of y: lazily, or at once of rows in memory.

        Parameters
        ----------
        X : dask array, (n, d), or dask dataframe, or rows in memory

        Returns
        -------
        dask array or ndarray, (n,)
        """
        check_is_fitted(self)
        found: da.Array | Array = self._answers(X, self.posterior_.predict_variance)
        return found

    def score(self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None) -> float:
        """Share of the variance of y that the predictive mean explains, R^2.

        Parameters
        ----------
        X : dask array, (n, d), or dask dataframe, or rows in memory
        y, sample_weight : dask array or series, or arrays beside rows in memory
            Weights are optional.

        Returns
        -------
        float
        """
        size, mean, spread, rest = self._by_chunk(self._residuals, X, y, sample_weight).T
        about = mean - (size @ mean) / size.sum()
        whole = float(spread.sum() + size @ about**2)
        if whole == 0.0:  # y is one number: as scikit-learn has it
            return float(rest.sum() == 0.0)
        return 1.0 - float(rest.sum()) / whole

    def _residuals(self, block: Block, y: Labels, weights: Array) -> Array:
        """Of a chunk: weight, mean of y, and sums of squares about it and about the prediction."""
        size = weights.sum()
        if not size:
            return np.zeros(4)
        numbers = y.astype(np.float64)
        mean = weights @ numbers / size
        about, rest = numbers - mean, numbers - np.asarray(self.posterior_.predict(block))
        return np.array([size, mean, weights @ about**2, weights @ rest**2])

"""The scikit-learn face of fit_network. Needs the extra ``epfast[sklearn]``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import field
from functools import partial
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array
from epfast.estimators.base import (
    LatentClassifier,
    LatentRegressor,
    Posteriors,
    Rows,
    Seed,
    all_or_nothing,
    check_labels,
    estimator,
    fit_seed,
    in_threads,
    jobs_of,
    validate_data,
)
from epfast.gaussian.posterior import shifted
from epfast.inference.runtime import Tick
from epfast.parametric import NetworkPosterior, fit_network
from epfast.schedules import ADF, Schedule

__all__ = ["NetworkClassifier", "NetworkRegressor"]


@estimator
class _Network(Posteriors[NetworkPosterior]):
    """What both estimators share: parameters and fits."""

    hidden: tuple[int, ...] = field(default=(50,), kw_only=False)
    schedule: Schedule | None = None
    prior: tuple[float, float] | float | None = None
    standardize: bool = True
    random_state: Seed = None
    progress: bool | Tick = False
    #: of classifiers, which have a network for each class
    n_jobs: int | None = field(default=None, init=False)

    #: numbers of the noise, and the loss of classifiers
    noise = (6.0, 6.0)
    _loss: ClassVar[str | None] = None

    def _first(
        self, rows: Rows, targets: Sequence[ArrayLike], schedule: Schedule | None
    ) -> list[NetworkPosterior]:
        """Networks of the first rows, one for each target."""
        seed = fit_seed(self.random_state)
        fit = partial(
            fit_network,
            hidden=self.hidden,
            schedule=schedule,
            prior=self.prior,
            noise=self.noise,
            standardize=self.standardize,
            progress=self.progress,
            rng=seed,
            loss=self._loss,
        )
        return self._each(partial(fit, rows, y) for y in targets)

    def _continued(self, rows: Rows, targets: Sequence[ArrayLike]) -> list[NetworkPosterior]:
        """Networks of new rows, one for each target: from those that there are, or the first ones.

        The first rows of a stream count as often as later ones: by default one pass of ADF.
        """
        if hasattr(self, "posteriors_"):
            pairs = zip(self.posteriors_, targets, strict=True)
            return self._each(partial(post.partial_fit, rows, y) for post, y in pairs)
        return self._first(rows, targets, ADF() if self.schedule is None else self.schedule)

    def _each(self, calls: Iterable[Callable[[], NetworkPosterior]]) -> list[NetworkPosterior]:
        some = list(calls)
        return in_threads(some, min(jobs_of(self.n_jobs), len(some)))

    def _latents(self, rows: Rows) -> list[tuple[Array, Array]]:
        return [post.predict(rows) for post in self.posteriors_]

    def _publish(self, posts: list[NetworkPosterior]) -> Self:
        self.posteriors_, self.loss_ = posts, posts[0].loss
        self.n_iter_ = max(post.n_sweeps for post in posts)
        return self


@estimator
class NetworkRegressor(_Network, LatentRegressor[NetworkPosterior]):
    """Bayesian neural network by probabilistic backpropagation, for scikit-learn.

    The posterior over the weights comes from :func:`epfast.fit_network`: independent Gaussians,
    found by passes over the rows (Hernandez-Lobato & Adams 2015; Li et al. 2015). Predictions
    integrate over it: ``predict(X, return_std=True)`` gives the spread of y. Far from the rows that
    is too small, since weights depend on each other and the belief does not know it.

    Parameters
    ----------
    hidden : tuple of int, default=(50,)
        Units of one to three hidden layers of rectified linear units.
    schedule : ADF, SEP, AEP, DSEP or EP, optional
        As in :func:`epfast.fit_network`. By default up to 2,000 rows ADF, as many passes up to
        40 as predict held-out rows best. For more 40 passes of SEP. The first rows of a stream: one
        pass of ADF.
    prior : tuple of float, or float, optional
        Shape > 1 and rate of the gamma distribution of the weights' prior precision, or that
        precision. By default (6, 6). 1 for a classifier by several passes of ADF.
    noise : tuple of float, default=(6.0, 6.0)
        Those of the precision of the noise, of the standardised y.
    standardize : bool, default=True
        Whether columns of X, and y, are brought to mean 0 and variance 1 first.
    random_state : int, RandomState or None
        Of the first means of the weights and of the order of the rows. None is 0.
    progress : bool or callable, default=False
        True shows a bar.

    Attributes
    ----------
    posterior_ : NetworkPosterior
        The posterior over the weights.
    loss_ : losses.Gaussian
        The noise, with its variance.
    n_iter_ : int
        Passes.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> X = np.linspace(-2, 2, 300)[:, None]
    >>> y = np.sin(2 * X[:, 0])
    >>> model = epfast.NetworkRegressor(hidden=(30,)).fit(X, y)
    >>> mean, std = model.predict([[0.8], [3.0]], return_std=True)
    >>> bool(abs(mean[0] - 1.0) < std[0] < std[1])
    True
    """

    noise: tuple[float, float] = (6.0, 6.0)

    @all_or_nothing
    def fit(self, X: ArrayLike, y: ArrayLike, offset: ArrayLike | None = None) -> NetworkRegressor:
        """Fit the posterior.

        Ctrl-C raises :class:`epfast.Interrupted`, and leaves the estimator as it was before.

        Parameters
        ----------
        X : array_like of shape (n, d)
        y : array_like of shape (n,)
        offset : array_like of shape (n,), default=0
            Known parts of y, to which the network is added.

        Returns
        -------
        NetworkRegressor
            Itself.
        """
        rows, outcomes = self._rows_and_responses(X, y)
        return self._publish(self._first(rows, [_rest(outcomes, offset)], self.schedule))

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, offset: ArrayLike | None = None
    ) -> NetworkRegressor:
        """Take new rows in, by one pass of ADF. Or begin with them.

        Scales of columns and of y are those of the first call. See
        :meth:`epfast.NetworkPosterior.partial_fit`.

        Parameters
        ----------
        X : array_like of shape (m, d)
        y : array_like of shape (m,)
        offset : array_like of shape (m,), default=0
            As in ``fit``.

        Returns
        -------
        NetworkRegressor
            Itself.
        """
        if hasattr(self, "posterior_"):
            checks = self._input()
            rows, outcomes = validate_data(self, X, y, y_numeric=True, reset=False, **checks)
            return self._publish(self._continued(rows, [_rest(outcomes, offset)]))
        rows, responses = self._rows_and_responses(X, y)
        return self._publish(self._continued(rows, [_rest(responses, offset)]))

    def _draws(
        self, rows: Rows, size: int, rng: np.random.Generator, offset: ArrayLike | None
    ) -> Array:
        return shifted(self.posterior_.sample_y(rows, size, rng), offset)


def _rest(y: ArrayLike, offset: ArrayLike | None) -> ArrayLike:
    """What is left of y for the network, (n,)."""
    if offset is None:
        return y
    y = np.asarray(y)
    return np.asarray(y - _checks.array("offset", offset, shape=y.shape))


@estimator
class NetworkClassifier(_Network, LatentClassifier[NetworkPosterior]):
    """Bayesian neural network classifier by probabilistic backpropagation, for scikit-learn.

    One output with a probit likelihood. With more than two classes a network for each against the
    rest, whose probabilities are normalised. See :class:`NetworkRegressor`.

    Parameters
    ----------
    hidden, schedule, prior, standardize
        As in :class:`NetworkRegressor`.
    n_jobs : int, optional
        Threads over the networks of the classes, as scikit-learn counts them.
    random_state, progress
        As in :class:`NetworkRegressor`.

    Attributes
    ----------
    classes_ : ndarray
        The labels, sorted.
    posterior_ : NetworkPosterior
        Where there are two classes.
    posteriors_ : list of NetworkPosterior
        One, or one for each class against the rest.
    n_iter_ : int
        Passes of the network that took most.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> X = np.random.default_rng(0).normal(size=(400, 2))
    >>> model = epfast.NetworkClassifier(hidden=(20,)).fit(X, X[:, 0] * X[:, 1] > 0)
    >>> model.score(X, X[:, 0] * X[:, 1] > 0) > 0.9
    True
    """

    n_jobs: int | None = None

    _loss = "probit"

    @all_or_nothing
    def fit(self, X: ArrayLike, y: ArrayLike) -> NetworkClassifier:
        """Fit the posteriors.

        Ctrl-C raises :class:`epfast.Interrupted`, and leaves the estimator as it was before.

        Parameters
        ----------
        X : array_like of shape (n, d)
        y : array_like of shape (n,)
            Labels of any kind, two or more different ones.

        Returns
        -------
        NetworkClassifier
            Itself.
        """
        rows, labels = validate_data(self, X, y, dtype=np.float64)
        check_labels(labels)
        _, targets = self._encode(labels)
        return self._publish(self._first(rows, targets, self.schedule))

    def partial_fit(
        self, X: ArrayLike, y: ArrayLike, classes: ArrayLike | None = None
    ) -> NetworkClassifier:
        """Take new rows in, by one pass of ADF. Or begin with them.

        Parameters
        ----------
        X : array_like of shape (m, d)
        y : array_like of shape (m,)
            Their labels. Here one class may be alone.
        classes : array_like of shape (n_classes,), optional
            All labels there are, needed in a first call.

        Returns
        -------
        NetworkClassifier
            Itself.
        """
        first = not hasattr(self, "posteriors_")
        rows, labels = validate_data(self, X, y, dtype=np.float64, reset=first)
        targets = self._targets(self._class_numbers(labels, classes, first))
        return self._publish(self._continued(rows, targets))

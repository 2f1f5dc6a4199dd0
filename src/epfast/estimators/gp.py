"""The scikit-learn face of fit_gp. Needs the extra ``epfast[sklearn]``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks
from epfast._arrays import Array
from epfast.estimators.base import (
    LatentClassifier,
    all_or_nothing,
    check_is_fitted,
    estimator,
    odds,
    seed_of_draws,
)
from epfast.estimators.kernels import kernel_of
from epfast.estimators.process_model import ProcessModel
from epfast.gaussian.fit_hyper_gp import IntegratedProcess

__all__ = ["GPClassifier"]

#: distance of a latent mean from 0, over 1 + its prior sd, below which quadrature may have the sign
#: of the log odds wrong
NEAR = 1e-6


@estimator
class GPClassifier(ProcessModel, LatentClassifier):
    """Gaussian process classifier by expectation propagation, for scikit-learn.

    The kernel's hyper-parameters maximise EP's log evidence, by a search with its gradient. The
    interface is that of scikit-learn's ``GaussianProcessClassifier`` (Laplace's approximation).
    With more than two classes there is one process per class, that class against the rest, each
    with its own kernel, combined as in :class:`epfast.LinearClassifier`. With
    ``loss="multiclass"`` there is one fit of all classes, which share a kernel.

    Parameters
    ----------
    kernel : sklearn.gaussian_process.kernels.Kernel, optional
        The covariance function, of X as it is. By default a variance times an ``RBF`` of one length
        scale, of columns in units of their own: each is divided by its standard deviation, one of
        two values by half their range (the ``column_scale`` in ``kernel_``). The variance is in
        [0.01, 1e5], and the length scale between a tenth of the first decile of the distances of
        rows and ten times the largest distance. The search starts at a quarter, at one, and at four
        times the median distance, with more than 250 rows on 250 of them, and continues on all rows
        from the ends that differ.
    optimizer : {"fmin_l_bfgs_b"}, None or callable, default="fmin_l_bfgs_b"
        By scikit-learn's default the search is that of :func:`epfast.fit_hyper_gp`, without priors.
        None keeps the hyper-parameters of ``kernel``. A callable is called as
        ``optimizer(objective, theta, bounds)``, objective(theta, eval_gradient=True) to be
        minimised, and returns the best theta and its value.
    n_restarts_optimizer : int, default=0
        Further searches, from log-uniform draws within the bounds.
    loss : str, Loss or callable, default="probit"
        The likelihood, as in :func:`epfast.fit_gp`. "multiclass", or
        ``losses.Multiclass(correlated=False)``, is multinomial probit, with one posterior and one
        evidence of all classes, at O(n_classes n^3) per sweep. It takes integer weights of rows,
        which copy them, and no ``rank``.
    scheme : str or Scheme, default="exact"
        How sites are fitted, as in :func:`epfast.fit_gp`.
    learn : tuple of str, default=()
        Parameters of the loss to estimate together with the kernel, out of ``loss.learnable``. For
        example ``("share",)`` of ``losses.Contaminated()`` is the share of flipped labels, of each
        class against the rest.
    integrate : bool or "auto", default="auto"
        Whether to average over the hyper-parameters of an exact process of two classes, as in
        :func:`epfast.fit_hyper_gp`. Each (for a variance, its root) has a half-Cauchy prior whose
        median is the start of the search. "auto" averages with up to 100 rows, if this changes a
        standard deviation by more than 5 % and enough points are effective. It takes 90 to 570
        fits. More than eight hyper-parameters are fixed at the most probable ones, with a warning.
        False uses the most probable ones.
    schedule : EP, optional
        Which sites are stored, and in which order they are updated. By default
        ``EP(sweeps=200, tol=1e-6)``.
    jitter : float, default=0.0
        Added to the diagonal of the kernel matrix. 0 with ``rank``.
    class_weight : dict or "balanced", default=None
        Weights of the classes, as in :class:`epfast.LinearClassifier`.
    rank : int, optional
        Rank of the process, as in :func:`epfast.fit_gp`, with O(n rank) memory. There are up to
        five searches, each with fixed pivots from where the last one ended. By default ``method``
        decides.
    method : {"auto", "exact", "nearest"}, default="auto"
        "auto" uses, from 1,000 rows on, the rank with an estimated error of the log evidence
        (``posterior_.truncation_error``) of at most 1e-3 nats, if it is at most n / 3 and 2,000.
        Otherwise it uses the exact process, O(n^3), and beyond 6,000 rows nearest rows, with a
        warning. Low rank and nearest rows need a log-concave likelihood and EP without jitter.
        "nearest" is EP in which the cavity of each row depends on the sites of ``n_neighbors``
        others, and a prediction on eight times as many, at O(n n_neighbors^3) without a log
        evidence. Its kernel is that of an exact process of 2,000 rows. Its probabilities are less
        certain than exact ones, and better than those of 2,000 rows.
    n_neighbors : int, default=50
        Number of rows of the method "nearest". Half are those of largest prior correlation among
        nine tenths of the rows. The others are those of a random tenth, and farther away, if there
        are four times as many rows.
    random_state : int or RandomState, default=None
        Seed of the restarts. None is 0.
    warm_start : bool, default=False
        Whether to start from the hyper-parameters of the last fit, if it had the same number of
        classes, and from its sites, if it had the same number of rows.
    n_jobs : int, optional
        Number of threads, over classes and starts, or within a single fit as in
        :func:`epfast.fit_gp`. By default 1, except for BLAS, and with -1 one for each core. The
        result is the same to rounding.

    Attributes
    ----------
    classes_, n_classes_ : ndarray of shape (n_classes,), int
        The labels, sorted, and their number. A class whose rows all have weight 0 has probability
        0, and is not part of the attributes below.
    kernel_ : Kernel
        The kernel with the estimated hyper-parameters. With more than two classes, each against the
        rest, a ``CompoundKernel``.
    posterior_ : GPPosterior, LatentGPPosterior, LowRankGPPosterior or NearestGPPosterior
        With two classes, or "multiclass", the posterior of the latent values of the fit. An
        average over hyper-parameters is an :class:`epfast.IntegratedProcess`. With low rank it has
        ``rank`` and ``truncation_error``, with nearest rows ``n_neighbors`` and ``loo_gain``, which
        ``summary()`` also shows.
    posteriors_ : list of posteriors
        One, or one for each class.
    coupling_ : float
        Exponent with which one-vs-rest probabilities are combined, as in
        :class:`epfast.LinearClassifier`. 0 with one posterior.
    loss_ : Loss, or list of Loss
        The loss with its estimated parameters, or one for each of several processes.
    log_marginal_likelihood_value_, log_evidence_ : float
        Log evidence at the estimated hyper-parameters, with more than two classes, each against the
        rest, the mean over them. NaN for nearest rows. For an average, the second is integrated
        over the hyper-parameters.
    converged_ : bool
        Whether EP converged in all fits.
    n_failed_points_ : int
        Hyper-parameters of the search without a valid fit: not converged, with refused sites, with
        an impossible evidence, or with predictions lost to rounding. The search skips them and
        warns.
    n_iter_ : int
        Sweeps that the sites have gone through in this fit, as in :class:`LinearClassifier`. The
        most over the classes.
    X_train_ : ndarray of shape (n, d)
        The inputs of the fit.
    n_features_in_, feature_names_in_
        As in scikit-learn.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> from sklearn.gaussian_process.kernels import RBF
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(100, 2))
    >>> y = np.where(np.hypot(*X.T) < 1.1, "in", "out")
    >>> model = epfast.GPClassifier(1.0 * RBF(1.0)).fit(X, y)
    >>> model.predict([[0.0, 0.0], [2.0, 2.0]])
    array(['in', 'out'], dtype='<U3')
    """

    loss: Any = "probit"
    learn: tuple[str, ...] = ()
    class_weight: dict[Any, float] | str | None = None

    @all_or_nothing
    def fit(self, X: ArrayLike, y: ArrayLike, sample_weight: Any = None) -> GPClassifier:
        """Find the hyper-parameters and fit the posterior.

        Parameters
        ----------
        X : array_like of shape (n, d)
            Rows of features.
        y : array_like of shape (n,)
            Labels of any kind, two or more different ones.
        sample_weight : array_like of shape (n,), optional
            A row of weight w >= 1 counts as w rows, the likelihood of one below 1 enters to that
            power. Rows of weight 0 are left out.

        Returns
        -------
        GPClassifier
            Itself.

        Raises
        ------
        Interrupted
            On Ctrl-C. The estimator is as it was.
        FloatingPointError
            If EP fails at all hyper-parameters.
        MemoryError
            If there is no low rank, and the matrices of all rows do not fit.

        Warns
        -----
        ConvergenceWarning
            If hyper-parameters were lost (``n_failed_points_``), if the last fit did not converge,
            or if a hyper-parameter ends at a bound of the kernel, in scikit-learn's words.
        DataWarning
            If a ``rank`` that is given leaves more than 1 nat of the log evidence open. If
            ``method="auto"`` comes to nearest rows, with what the exact process would cost.
        """
        rows, index, targets, weights, loss = self._training(X, y, sample_weight, counted=True)
        self._check()
        self.n_classes_ = len(self.classes_)
        self._fit(
            rows,
            kernel_of(self.kernel, rows, weights),
            self._learnable(loss, targets[0][:, None], weights),
            targets,
            weights,
            noise=1.0,
        )
        self._couple(index, weights)
        return self

    # -- prediction --

    def predict_latent(self, X: ArrayLike, joint: bool = False) -> tuple[Array, Array]:
        """Posterior mean and variance, or covariance, of the process at new inputs.

        Parameters
        ----------
        X : array_like of shape (m, d)
            Rows of features.
        joint : bool, default=False
            Whether to return the covariance between the inputs in place of the variances. By
            nearest rows there is none.

        Returns
        -------
        mean : ndarray of shape (m,) or (m, n_classes)
            One column per class where there are more than two.
        variance : ndarray of shape (m,) or (m, n_classes). If ``joint`` (m, m) or (n_classes, m, m)
        """
        if not _checks.flag("joint", joint):
            return super().predict_latent(X)
        rows = self._rows(X)
        parts: list[Any] = [
            post.predict_latent(*given, True) for post, given in self._cross(rows, True)
        ]
        means, covariances = zip(*parts, strict=True)
        if len(parts) == 1:
            return means[0], covariances[0]
        return np.stack(means, axis=1), np.stack(covariances)

    def latent_mean_and_variance(self, X: ArrayLike) -> tuple[Array, Array]:
        """Posterior mean and variance of the process, under scikit-learn's name.

        Parameters
        ----------
        X : array_like of shape (m, d)
            Rows of features.

        Returns
        -------
        latent_mean, latent_var : ndarray of shape (m,) or (m, n_classes)
            As :meth:`predict_latent`.
        """
        return self.predict_latent(X)

    def _log_probabilities(self, rows: Any) -> Array:
        parts = []
        for some in self._blocks(rows):
            ((post, given),) = self._cross(some)
            parts.append(post.predict_log_proba(*given))
        return np.concatenate(parts)

    def predict(self, X: ArrayLike) -> NDArray[Any]:
        """The most probable class.

        O(n) a row where the signs of the latent means decide: of two classes, and of one whose mean
        alone is above 0, under a likelihood that rises with the margin. Elsewhere by the log odds,
        which depend on the variances. Then O(n^2) a row.

        Parameters
        ----------
        X : array_like of shape (m, d)
            Rows of features.

        Returns
        -------
        ndarray of shape (m,)
            Labels out of ``classes_``.
        """
        check_is_fitted(self)
        averaged = isinstance(self.posteriors_[0], IntegratedProcess)
        needed = any(post.known_loss().needs_variance for post in self.posteriors_)
        if self._several or averaged or needed:
            return super().predict(X)
        rows = self._rows(X)
        means = np.array(self._means(rows))
        above = means > 0.0
        index = above[0].astype(np.intp) if len(above) == 1 else above.argmax(axis=0)
        # odds nearer to 1 than this are those of predict_proba, to its rounding
        spread = np.array([kernel.diag(rows) for kernel in self._kernels])
        decided = (np.abs(means) > NEAR * (1.0 + np.sqrt(spread))).all(axis=0)
        if len(above) > 1:
            decided &= above.sum(axis=0) == 1
        if not decided.all():
            scores = odds(self.posteriors_, *self._stacked(rows[~decided]))
            index[~decided] = scores > 0.0 if scores.ndim == 1 else scores.argmax(axis=1)
        return np.asarray(self.classes_[self._seen][index])

    def sample_y(self, X: ArrayLike, n_samples: int = 1, random_state: Any = 0) -> NDArray[Any]:
        """Draw labels of new inputs: those of one column come from one draw of the process.

        By nearest rows there are no joint draws.

        Parameters
        ----------
        X : array_like of shape (m, d)
            Rows of features.
        n_samples : int, default=1
            Draws per row.
        random_state : int, RandomState or None, default=0
            As in scikit-learn, a seed or a generator. None draws afresh.

        Returns
        -------
        ndarray of shape (m, n_samples)
            Labels out of ``classes_``.
        """
        size = _checks.integer("n_samples", n_samples, least=0)
        rng = np.random.default_rng(seed_of_draws(random_state))
        rows, classes = self._rows(X), self.classes_[self._seen]
        if self._several:
            ((post, given),) = self._cross(rows, True)
            values = post.sample_latent(*given, size, rng)
            return np.asarray(classes[post.known_loss().sample(values, rng).T.astype(int)])
        scores = []
        for post, given in self._cross(rows, True):
            latent = post.sample_latent(*given, size, rng).T
            p = post.known_loss().predict_proba(latent.ravel(), np.zeros(latent.size))
            scores.append(p.reshape(latent.shape))
        if len(scores) == 1:
            return np.asarray(classes[(rng.random(scores[0].shape) < scores[0]).astype(int)])
        ladder_of = np.cumsum(scores, axis=0)
        drawn = rng.random(ladder_of.shape[1:]) * ladder_of[-1]
        return np.asarray(classes[(ladder_of[:-1] <= drawn).sum(axis=0)])

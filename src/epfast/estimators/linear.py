"""The scikit-learn face of fit_linear. Needs the extra ``epfast[sklearn]``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks, losses
from epfast._arrays import Array
from epfast.estimators.base import (
    LatentClassifier,
    all_or_nothing,
    estimator,
    loss_of_labels,
    row_weights,
    validate_data,
    warn_of_fits,
)
from epfast.estimators.evidence import (
    Fits,
    at_mode,
    at_origin,
    averages_with_chunk,
    with_chunk,
)
from epfast.estimators.linear_model import LinearModel
from epfast.estimators.units import ColumnMoments, Units
from epfast.gaussian import IntegratedPosterior
from epfast.inference.records import DataWarning, warn_user
from epfast.inference.report import WEIGHTS
from epfast.losses import Loss
from epfast.schedules import ADF

# scikit-learn is there, or epfast.estimators.base would have said so
from sklearn.utils.metaestimators import available_if  # isort: skip

__all__ = ["LinearClassifier"]

#: classes from which their number is worth a warning: of 4,000 rows of 20 columns 500 take 65 s and
#: 1.1 GB, 17 s and .8 GB with a given prior variance, 5 s and .25 GB with ADF too. Of 2,000 rows 20
#: classes take 3 s, and 70 s with "multiclass"; 60 take 7 s, and more than 150 s
MANY_CLASSES = 200


def _takes_chunks(self: Any) -> bool:
    """Whether there is partial_fit."""
    if isinstance(self.loss, losses.Multiclass) or self.loss == "multiclass":
        raise AttributeError(
            f"loss is {self.loss!r}, which has no partial_fit; allowed there: a loss of two "
            "labels, each class against the rest; fit takes all rows at once"
        )
    return True


@estimator
class LinearClassifier(LinearModel, LatentClassifier):
    """Bayesian linear classifier by expectation propagation, for scikit-learn.

    The posterior of the weights is that of :func:`epfast.fit_linear`. Predictions are averages over
    it. With more than two classes there is one classifier per class, that class against the rest,
    combined by leave-one-out (see Notes). With ``loss="multiclass"`` there is one posterior over
    all classes.

    Parameters
    ----------
    loss : str, Loss, scipy.LowLevelCallable, numba.cfunc or callable, default="logistic"
        "logistic", "probit", "hinge", "quasi01", "noisy_step" or another loss, as in
        :func:`epfast.fit_linear`. "multiclass", or :class:`epfast.losses.Multiclass`, is
        multinomial probit, with one posterior and one evidence of all classes. It takes integer
        weights of rows, which copy them, and has no ``partial_fit``.
    scheme : str or Scheme, optional
        How factors are fitted. By default "exact" for scalar sites, as in
        :func:`epfast.fit_linear`.
    posterior : {"full", "factorized"}, optional
        "full" is a full covariance, at O(n d^2) per sweep. "factorized" is a diagonal covariance,
        which underestimates the uncertainty of correlated columns, at O(n d) per sweep, or
        O(nonzeros) for CSR, with more sweeps. By default "full" for min(n, d) up to 5,000, else
        "factorized".
    batch_size : int, optional
        Rows per factor. By default a site per row.
    prior_variance : float, array_like of shape (d,), "evidence" or "ard", optional
        Variance of the independent normal priors of the coefficients, with mean 0. "evidence" is
        the common variance that maximises the log evidence, or one per group of ``prior_groups``.
        "ard" maximises it over a variance per column (automatic relevance determination). The
        default for a likelihood ("logistic", "probit", "noisy_step") is "evidence" under a weak
        prior (``prior_scale``). It is 1 for other losses and with another ``beta``, where the
        evidence is no log probability of the labels.
    standardize : bool, optional
        Whether prior variances are of standardised weights: coefficient j has the prior variance
        v / s_j^2, s_j the unit of column j (``column_scale_``, see Notes), so that the units of the
        columns do not matter. By default True, but False where ``prior_variance`` is a number or
        numbers, which are then in the units of X. True beside them means that they are v.
    prior_groups : array_like of shape (d,), optional
        A label per column, of any kind. Columns with the same label share a prior variance, which
        maximises the evidence.
    prior_scale : float or None, default=2.5
        With ``prior_variance=None``, the median of the half-Cauchy prior of s, the prior standard
        deviation of x.theta over the centred rows of X, to which constant columns do not add. It
        bounds s if a plane separates the classes, and with few rows, where the evidence is nearly
        flat. None means no such prior, as with "evidence".
    integrate : bool or "auto", default="auto"
        Whether to average over the prior variance and over the parameters of ``learn``, with a
        full posterior. "auto" averages if the logarithm of the prior variance has a standard
        deviation of 1 or more, and if the average changes probabilities and the standard deviation
        of a coefficient by more than 5 %. False uses the most probable values.
    fit_intercept : bool, default=True
        Whether to add a constant column of ones.
    intercept_variance : float, default=100.0
        Prior variance of the latent value at the means of the columns (with a factorised
        posterior, of the intercept). It is not estimated. The default is a standard deviation of
        10, in units of log odds.
    schedule : Schedule, optional
        Which sites are stored, and in which order they are updated. By default EP to convergence:
        ``EP(sweeps=200)`` for "full", to 1e-5 of a standard deviation (1e-6 with "multiclass"). For
        "factorized" it is ``EP(tol=1e-4)`` with 200 to 3,000 sweeps, fewer for a larger X, or
        ``EP()`` with minibatches. A default fit that fails (see Notes) is repeated with damping.
    beta : float, default=1.0
        Inverse temperature of the factors exp(-beta loss).
    learn : tuple of str, default=()
        Parameters of the loss to estimate by the evidence, out of ``loss.learnable``. For example
        ``("share",)`` of ``losses.Contaminated()`` is the share of flipped labels, one for all
        classes.
    class_weight : dict or "balanced", default=None
        Weights of the classes, which multiply ``sample_weight``. "balanced" is inverse to the total
        sample weight of each class, with mean 1 over the data. Weights count rows (see Notes), and
        make intervals too narrow: with 5 % positives 95 % intervals contained 55 % of the true
        coefficients. A DataWarning says so. For imbalanced classes fit without weights and change
        the threshold, for example by ``sklearn.model_selection.TunedThresholdClassifierCV``.
    warm_start : bool, default=False
        Whether :meth:`fit` starts from the sites of the last fit. They change the number of sweeps,
        not the result. They are not used if X has another shape, or with ADF, which stores none.
    n_jobs : int, optional
        Number of threads: over the classes if there are more than two, and within the fit, as in
        :func:`epfast.fit_linear`, if there are two. By default 1, and with -1 one for each core.
        The result does not depend on it.
    random_state : int or RandomState, default=None
        Seed of a shuffled order without a seed, and of the scheme "importance". Others do not use
        it. With None they use their own seeds, and fits are reproducible.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted. A class whose rows all have weight 0 has probability 0, and is not part
        of the attributes below.
    coef_ : ndarray of shape (1, d) or (n_classes, d)
        Posterior mean of the coefficients: those of ``classes_[1]`` with two classes, else those of
        each class against the rest. With "multiclass", those of each class.
    intercept_ : ndarray of shape (1,) or (n_classes,)
        Posterior mean of the intercept. 0 without one.
    coef_covariance_ : ndarray of shape (d, d) or (n_classes, d, d)
        Posterior covariance of the coefficients, without the intercept. Computed when it is read.
    posterior_ : FullPosterior, FactorizedPosterior, JointPosterior or LatentPosterior
        With two classes, or "multiclass", the posterior of the coefficients and, as the last
        weight, of the intercept. If averaged over the prior variance, an IntegratedPosterior.
    posteriors_ : list of posteriors
        One, or one for each class.
    coupling_ : float
        Exponent a in [0, 1] with which one-vs-rest probabilities are combined (see Notes). 0 is
        plain normalisation. It is 0 with one posterior, and without sites (``schedule=ADF()``)
        until ``partial_fit`` has a second chunk.
    log_evidence_ : float
        EP's log p(y) for losses that are likelihoods, at ``beta=1``. With more than two classes
        it is the sum over the classes, each against the rest. For an average it is integrated over
        the prior variance, too. For other losses, such as "hinge", it is the log integral of prior
        times factors, which must not be compared between losses.
    prior_variance_ : float or ndarray of shape (d,)
        The prior variance, given or estimated: v, where ``standardize_``. Both handed back to
        another fit give the same. For an average it is the geometric mean of ``posterior_.points``.
        With "evidence" it may be an end of the searched range. Classes that a plane separates
        favour large variances (an EvidenceWarning says so), and data without signal favour small
        ones.
    standardize_ : bool
        Whether it is that of standardised weights.
    column_scale_ : ndarray of shape (d,)
        The units s_j of the columns. 1 if not ``standardize_``.
    loss_ : Loss
        The loss, with its estimated parameters.
    n_lost_ : int
        Points of the search at which no fit converged, see Notes.
    n_iter_ : int
        Sweeps that the sites have gone through in this fit, those of a search at other
        hyper-parameters included, as ``posterior_.n_sweeps``. The most over the classes.
    converged_ : bool
        Whether all fits reached the tolerance of the schedule.
    n_features_in_ : int
        Number of columns of X.
    feature_names_in_ : ndarray of shape (d,)
        Names of the columns, where X has names that are all strings.

    Notes
    -----
    A row with weight w counts as w copies of itself: its factor is t^w. Weights need not be
    integers, and rows with weight 0 are ignored. Fits with weights and with copies agree to the
    tolerance of the schedule. scikit-learn's checks of this equivalence, to 1e-7, pass with
    ``schedule=EP(sweeps=200, tol=1e-10)``, and otherwise must be declared
    (``expected_failed_checks``). They fail with ``prior_variance="ard"``, whose search ends 1e-7
    away, and with ``schedule=ADF()``, which updates t^w at once but copies one after the other.

    The unit s_j of a column is its standard deviation, or half the range of a column with two
    values (Gelman 2008): a rare level of a one-hot table is then shrunk no less than a frequent
    one. Without an intercept it is the root mean square, of two values as if both were as
    frequent. A constant column has the unit 1, and so has a column of ones without an intercept.
    Rows count by their weights. ``partial_fit`` has the units of all rows so far. Columns that have
    one natural unit, as pixels, may lose by it: two digits of ``sklearn.datasets.load_digits`` (150
    rows) have a log loss of 0.077 in place of 0.061, three species of iris 0.117 in place of 0.105.
    ``standardize=False`` takes the columns as they are. Fourteen other tables have 0.270 in the
    mean in place of 0.289.

    The search of prior variances is over the logarithms of prior standard deviations, and of the
    numbers in ``learn``. It starts at a prior variance of 3 of x.theta, with x centred, and stays
    between 1e-6 and 1e6. MacKay's (1992) re-estimate comes first, then steps uphill by BFGS, whose
    first metric are the effective degrees of freedom. Slopes are those of the log evidence at fixed
    points of EP, plus the log prior. A step is taken if the density does not fall by more than the
    errors of the two fits, else it is halved. Each fit starts from the sites of those before, and
    is as precise as its step. Of many columns those that vary together are searched first, in fewer
    directions. The search ends where the gain that is left is within the error of a fit to the
    tolerance of the schedule. If EP has no fixed points (batches, shared sites, ADF), slopes are
    differences of log evidences. With more than two classes the sum of the log evidences is
    maximised. An average is that of :func:`epfast.fit_hyper`. With more than two classes all have
    the same points and weights.

    The search counts a fit only if it has converged, if its last sweep refused no site, and if its
    log evidence is at most 0 where no factor exceeds 1. A fit that fails is repeated with more
    sweeps or damping. If that fails too, the point is lost: it is counted in ``n_lost_``, and a
    ConvergenceWarning is issued. If all points where a search may begin are lost, the prior
    variance is 1. Each fit of the search may take 100 sweeps, even if ``schedule`` has fewer.

    With more than two classes let p_k be the probability of class k against the rest. The p_k need
    not add up to 1, and p(k) is proportional to p_k / (1 - p_k)^a. The exponent ``coupling_`` a = 0
    is plain normalisation. With a = 1 the p_k are independent, given that exactly one class is the
    right one. a maximises the sum of the log leave-one-out probabilities of the labels, minus a (of
    batches, if rows share a site). ``partial_fit`` adds the sum of a chunk before the chunk is
    fitted. The most probable class does not depend on a.

    Warnings of fits are :class:`epfast.estimators.ConvergenceWarning`, a subclass of epfast's and
    of scikit-learn's. An :class:`epfast.estimators.EvidenceWarning` is issued if "evidence" is used
    with a loss that is no likelihood, or if the evidence increases up to the end of the range. With
    ten rows a coefficient or more, a DataWarning names a coefficient of an average that grows with
    the prior variance without bound, since a plane, or a column of few values, separates classes.

    References
    ----------
    MacKay, D. J. C. (1992). The evidence framework applied to classification networks. Neural
    Computation 4(5), 720-736.

    Gelman, A. (2008). Scaling regression inputs by dividing by two standard deviations. Statistics
    in Medicine 27(15), 2865-2873.

    Gelman, A. (2006). Prior distributions for variance parameters in hierarchical models. Bayesian
    Analysis 1(3), 515-533.

    Rue, H., Martino, S. and Chopin, N. (2009). Approximate Bayesian inference for latent Gaussian
    models by using integrated nested Laplace approximations. Journal of the Royal Statistical
    Society B 71(2), 319-392.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(200, 3))
    >>> y = np.where(X @ [1.0, -2.0, 0.0] + rng.logistic(size=200) > 0, "yes", "no")
    >>> model = epfast.LinearClassifier().fit(X, y)
    >>> model.predict(X[:3])
    array(['yes', 'yes', 'no'], dtype='<U3')
    """

    loss: Any = "logistic"
    intercept_variance: float = 100.0
    beta: float = 1.0
    learn: tuple[str, ...] = ()
    class_weight: dict[Any, float] | str | None = None

    # ---- fit ----

    @all_or_nothing
    def fit(
        self, X: ArrayLike, y: ArrayLike, sample_weight: ArrayLike | None = None
    ) -> LinearClassifier:
        """Fit the posterior.

        Ctrl-C raises :class:`epfast.Interrupted`, and leaves the estimator as it was before.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
            Rows of features.
        y : array_like of shape (n,)
            Labels of any kind, two or more different ones.
        sample_weight : array_like of shape (n,), optional
            Numbers >= 0: each row counts as so many copies of itself (below 1 with its factor to
            that power), as ``weights`` of :func:`epfast.fit_linear`.

        Returns
        -------
        LinearClassifier
            Itself.
        """
        rows, index, targets, weights, _ = self._training(X, y, sample_weight)
        if len(targets) >= MANY_CLASSES:
            warn_user(
                f"y has {len(targets)} classes, and there is a fit of each against the rest: time "
                "and memory are in proportion. With prior_variance=1.0 and standardize=True, "
                "without a search, they take a quarter of the time, with schedule=epfast.ADF() "
                "beside it, one pass over the rows, a twelfth. loss='multiclass', one posterior of "
                "all classes, takes longer still",
                DataWarning,
            )
        self._fit(rows, targets, weights)
        self._couple(index, weights)
        return self

    @available_if(_takes_chunks)  # type: ignore[untyped-decorator]
    def partial_fit(
        self,
        X: ArrayLike,
        y: ArrayLike,
        classes: ArrayLike | None = None,
        sample_weight: ArrayLike | None = None,
    ) -> LinearClassifier:
        """Go on with new rows, after ``fit`` or ``partial_fit``. Or start with them.

        With a full covariance EP fits the sites of the new rows, and the sites that are there stay
        as they are (:meth:`epfast.FullPosterior.partial_fit`): all rows are kept. With
        ``schedule=ADF()``, and always with a factorised posterior, the new rows go by in one pass
        and no row is kept. Both want rows in a random order: a stream that is sorted by class ends
        far from the fit of all rows. The prior variance is that of the first call:
        ``prior_variance``, or 1 where the evidence would choose it. Or what ``fit`` has found.
        Where weights are standardised, the prior follows the units of columns over all rows so far.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
            New rows.
        y : array_like of shape (n,)
            Their labels. Here one class may be alone.
        classes : array_like of shape (n_classes,), optional
            All labels there are, needed in a first call.
        sample_weight : array_like of shape (n,), optional
            As in :meth:`fit`.

        Returns
        -------
        LinearClassifier
            Itself.
        """
        first = not hasattr(self, "posteriors_")
        rows, labels = validate_data(self, X, y, reset=first, **self._input())
        rows = _checks.rows("X", rows)
        index = self._class_numbers(labels, classes, first)
        loss_of_labels(self.loss)
        if self.learn:
            raise ValueError(f"learn is {self.learn!r}; allowed in partial_fit: ()")
        if isinstance(self.class_weight, str):
            raise ValueError(
                f"class_weight is {self.class_weight!r}; allowed in partial_fit: None, or a dict "
                "of numbers, since the classes of later rows are unknown"
            )
        weights = row_weights(rows, self.classes_[index], sample_weight, self.class_weight)
        schedule, kind = self._schedule(rows), self._covariance(rows)
        if not first:
            kind = at_mode(self.posteriors_[0]).kind
        if kind == "factorized" and not isinstance(schedule, ADF):
            if self.schedule is not None:
                raise ValueError(
                    f"schedule is {_checks.describe(schedule)}; allowed in partial_fit with "
                    "posterior='factorized': None or ADF()"
                )
            schedule = ADF()
        standardizes = self._standardizes if first else self.standardize_
        moments = ColumnMoments.of(rows, weights) if standardizes else None
        if moments is not None and not first:
            assert self._moments is not None
            moments = self._moments.merged(moments)
        units = self._units(rows, moments, standardizes)
        if not first:
            units = units._replace(origin=self._origin)
        prior = None if first else self.posteriors_[0].problem.prior
        targets = self._targets(index)
        binary = self._problems(rows, targets, weights, schedule, units, prior)
        scores: Array | None = None
        before: Array | float = 0.0
        if first:
            variance = self._prior(binary)
            variance = 1.0 if isinstance(variance, str) else variance
            fits, self.n_lost_ = binary.fit(variance, binary.schedule), 0
            posteriors = [at_origin(post, binary.units.origin) for post in fits.posteriors]
            fits = Fits(posteriors, fits.reports)
        else:
            variance, before = self.prior_variance_, self._tally
            if len(self.posteriors_) > 1:
                scores = self._odds(rows)
            integrated = isinstance(self.posteriors_[0], IntegratedPosterior)
            go_on: Any = averages_with_chunk if integrated else with_chunk
            fits = go_on(self.posteriors_, binary, variance, Units(self.column_scale_))
        self._set_units(binary.units, moments, standardizes)
        warn_of_fits(fits.reports)
        self._publish(fits, variance)
        self._couple(index, weights, scores, before)
        return self

    # ---- parts of a fit ----

    def _notes(self) -> list[list[str]]:
        names = [repr(label) for label in self.classes_.tolist()]
        if self.posteriors_[0].loss.latents > 1:
            lines = [", ".join(f"class {k} is {name}" for k, name in enumerate(names))]
        elif len(names) == 2:
            lines = [f"coefficients are for {names[1]}, against {names[0]}"]
        else:
            lines = [f"coefficients are for {names[k]}, against the rest" for k in self._seen]
        if self.class_weight is None:
            return [[line] for line in lines]
        said = f"class_weight is {_checks.describe(self.class_weight)}: {WEIGHTS}"
        return [[line, said] for line in lines]

    def _log_probabilities(self, rows: Any) -> Array:
        return np.asarray(self.posteriors_[0].predict_log_proba(rows))

    def _factor(self, offset: ArrayLike | None, y: Any) -> Loss:
        return loss_of_labels(self.loss).with_offset(offset is not None)

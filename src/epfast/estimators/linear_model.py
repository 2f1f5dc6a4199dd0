"""What the linear estimators share: the problems of a fit, its prior, and its attributes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks, inference, losses, schemes
from epfast._arrays import Array
from epfast.estimators.base import (
    EvidenceWarning,
    Points,
    Posteriors,
    check_is_fitted,
    estimator,
    seed_of_draws,
    uncounted,
    warn_of_fits,
)
from epfast.estimators.evidence import (
    BinaryProblems,
    Fits,
    Posterior,
    alike,
    at_mode,
    at_origin,
    normalised,
    problems_of,
)
from epfast.estimators.jobs import jobs_of
from epfast.estimators.mixtures import averaged, under_weak_priors
from epfast.estimators.parameters import LossParameters, warn_ends
from epfast.estimators.search import (
    EvidenceTarget,
    Learnt,
    SpectrumTarget,
    final,
    highest,
    warn_lost,
    warn_of_range,
)
from epfast.estimators.spectrum import Spectrum, without_offset
from epfast.estimators.units import ColumnMoments, Units, total_of
from epfast.gaussian import IntegratedPosterior, Problem, notes
from epfast.gaussian.fit_linear import FULL_UP_TO
from epfast.gaussian.prior import checked_variances
from epfast.gaussian.table import COVARIANCES, Request, choose, filled
from epfast.inference.hyper import SearchEnd, Unknown
from epfast.inference.records import warn_user
from epfast.inference.runtime import one_blas_thread
from epfast.losses import Loss
from epfast.priors import HalfCauchy
from epfast.schedules import EP, Schedule

#: as fit_linear
FULL_SCHEDULE = EP(sweeps=200)
#: of several latents: a matrix of all classes has the prior alone for what they have in common, so
#: that rounding is seen at 1e-8 under the widest priors of a search
LATENT_SCHEDULE = EP(sweeps=200, tol=1e-6)
#: a factorised posterior settles slowly where columns are correlated: sweeps that read about so
#: many numbers of X, within limits, and the tolerance
READ, FEWEST, MOST, FACTORIZED_TOL = 1e9, 200, 3_000, 1e-4
SEARCHES = ("evidence", "ard")
#: prior sds of x.theta, x about its mean, between which one is sought, and where a search begins
LATENT_SDS, BEGIN = (1e-3, 1e3), math.sqrt(3.0)
#: a regressor of fewer rows is averaged over hyper-parameters, if rows or columns are at most so
#: many, as each point keeps a matrix
FEWER_ROWS, MOST_SIZE = 2000, 500


class Coefficients(Posteriors):
    """Moments of the weights, from ``posteriors_``. The last weight may be the intercept.

    They are made when they are read: with many columns a chunk of rows costs less than an array of
    all coefficients.
    """

    n_features_in_: int
    #: of classifiers
    classes_: NDArray[Any]
    _seen: NDArray[np.intp]

    def _means(self) -> Array:
        """(1, d or d + 1) or (n_classes, ...)."""
        if not hasattr(self, "posteriors_"):
            raise AttributeError("the estimator is not fitted, so it has no coef_ or intercept_")
        return np.concatenate([np.atleast_2d(post.mean) for post in self.posteriors_])

    @property
    def coef_(self) -> Array:
        """Posterior mean of the coefficients: (1, d), (n_classes, d), or (d,) of a regressor."""
        coefficients = self._means()[:, : self.n_features_in_].copy()
        return coefficients if hasattr(self, "classes_") else coefficients[0]

    @property
    def intercept_(self) -> Any:
        """Posterior mean of the intercepts: (1,), (n_classes,), or a number of a regressor."""
        intercepts = self._means()[:, self.n_features_in_ :].sum(axis=1)
        return intercepts if hasattr(self, "classes_") else float(intercepts[0])

    @property
    def coef_covariance_(self) -> Array:
        """Posterior covariance of the coefficients, (d, d) or (n_classes, d, d). O(d^3)."""
        d = self.n_features_in_
        parts = [block[:d, :d] for post in self.posteriors_ for block in _blocks(post)]
        return parts[0].copy() if len(parts) == 1 else np.array(parts)


def same(post: Any, sign: float = 1.0) -> Any:
    """The posterior itself."""
    del sign
    return post


def _blocks(post: Any) -> Any:
    """The covariance of the weights of each latent."""
    whole, shape = post.covariance, post.mean.shape
    if len(shape) == 1:
        return [whole]
    if whole.ndim == 3:
        return whole
    return np.einsum("kikj->kij", whole.reshape(shape + shape))


class HyperParameters(NamedTuple):
    """Prior variance and loss of a fit, and the search that found them."""

    learnt: Learnt
    #: fits from which the last one starts
    near: Fits | None = None
    #: what was searched, and where that ended. None: both were given
    target: EvidenceTarget | None = None
    end: SearchEnd[Fits] | None = None
    n_lost: int = 0


@estimator
class LinearModel(Coefficients):
    """Base of the linear estimators, with the parameters that both have."""

    loss: Any
    scheme: Any = None
    posterior: str | None = None
    batch_size: int | None = None
    prior_variance: float | str | ArrayLike | None = None
    standardize: bool | None = None
    prior_groups: ArrayLike | None = None
    prior_scale: float | None = 2.5
    integrate: bool | str = "auto"
    fit_intercept: bool = True
    intercept_variance: float | None = None
    schedule: Schedule | None = None
    learn: tuple[str, ...] | None = None
    warm_start: bool = False
    n_jobs: int | None = None
    random_state: Any = None
    #: inverse temperature of the factors, which classifiers have as a parameter
    beta = 1.0

    # ---- parts of a fit ----

    def _schedule(self, rows: Any) -> Any:
        """The schedule that is asked for, or the default."""
        schedule = self.schedule
        if schedule is None:
            if losses.resolve(self.loss).latents != 1:
                return LATENT_SCHEDULE
            if self._covariance(rows) == "full":
                return FULL_SCHEDULE
            if self.batch_size is not None:
                return EP()
            sweeps = int(np.clip(READ / np.prod(rows.shape, dtype=float), FEWEST, MOST))
            return EP(sweeps=sweeps, tol=FACTORIZED_TOL)
        if self.random_state is not None and getattr(schedule, "order", "") == "shuffled":
            return schedule.filled(seed=seed_of_draws(self.random_state))
        return schedule

    def _covariance(self, rows: Any) -> str:
        if self.posterior is None:
            if losses.resolve(self.loss).latents != 1:
                return "full"
            return "full" if min(rows.shape) <= FULL_UP_TO else "factorized"
        return _checks.choice("posterior", self.posterior, COVARIANCES)

    def _problems(
        self,
        rows: Any,
        targets: list[Any],
        weights: Array | None,
        schedule: Any,
        units: Units,
        prior: Any = None,
        offset: ArrayLike | None = None,
    ) -> BinaryProblems:
        """The part of the fit that stays fixed while the prior variance is sought."""
        jobs = jobs_of(self.n_jobs)
        _checks.flag("fit_intercept", self.fit_intercept)
        covariance = self._covariance(rows)
        given = {} if weights is None else {"weights": weights}
        if hasattr(rows, "indptr"):
            given["sparse X"] = rows
        scheme = self.scheme
        if self.random_state is not None and scheme is not None:
            scheme = schemes.resolve(scheme)
            if hasattr(scheme, "seed"):
                scheme = replace(cast(Any, scheme), seed=seed_of_draws(self.random_state))
        with _own_words(getattr(self, "class_weight", None)):
            chosen = choose(
                Request(
                    self._factor(offset, targets[0]),
                    scheme,
                    covariance,
                    self.batch_size,
                    schedule,
                    self.beta,
                    given,
                )
            )
            intercepts = bool(self.fit_intercept)
            if isinstance(chosen.loss, losses.LatentLoss):
                d = rows.shape[1] + intercepts
                loss = filled(chosen.loss, targets[0], d, chosen.schedule)
                chosen = chosen._replace(loss=loss)
            given_rows = chosen, rows, targets, weights, intercepts
            problems = problems_of(*given_rows, units, prior, offset)
        names = getattr(self, "feature_names_in_", None)
        names = None if names is None else tuple(names)
        problems = [problem._replace(names=names) for problem in problems]
        intercept = self._intercept(problems[0])
        variance = intercept if self.fit_intercept else None
        if problems[0].posterior == "wide":
            units = units._replace(origin=None)
        return BinaryProblems(problems, rows.shape[1], variance, units, jobs)

    def _units(self, rows: Any, moments: ColumnMoments | None, standardizes: bool) -> Units:
        """What columns are measured in, and from where, by their moments if these are known."""
        beside, scale = _checks.flag("fit_intercept", self.fit_intercept), np.ones(rows.shape[1])
        if moments is None:
            return Units(scale)
        scale = moments.scales(beside) if standardizes else scale
        moves = beside and self._covariance(rows) == "full" and not hasattr(rows, "indptr")
        return Units(scale, moments.origin(scale) if moves else None)

    @property
    def _standardizes(self) -> bool:
        """Whether prior variances are of standardised weights."""
        if self.standardize is not None:
            return _checks.flag("standardize", self.standardize)
        return self.prior_variance is None or isinstance(self.prior_variance, str)

    def _note_columns(self, rows: Any, binary: BinaryProblems) -> None:
        """Note columns whose scale or place is hardly what one prior variance is for."""
        center = binary.problems[0].prior.center
        if self.fit_intercept:
            mean, variance = notes.places(rows)
            if binary.units.origin is not None:  # of constant columns alone
                mean = np.where(variance > 0.0, 0.0, mean)
            notes.note_far(mean, variance, center is not None)
        given: Any = self.prior_variance
        if (given is None or np.isscalar(given)) and not self._standardizes:
            notes.note_scales(notes.column_sizes(rows, center)[0])

    def _factor(self, offset: ArrayLike | None, y: Any) -> Loss:
        """The loss of these fits, of responses y."""
        raise NotImplementedError

    def _intercept(self, problem: Problem) -> float:
        """Prior variance of the intercept."""
        return _checks.number(
            "intercept_variance", self.intercept_variance, least=1e-150, most=1e150
        )

    def _prior(self, binary: BinaryProblems) -> Any:
        """The prior variance, or which of SEARCHES finds it."""
        given, loss = self.prior_variance, binary.problems[0].loss
        if given is None:
            given = "evidence" if normalised(loss) else 1.0
        elif isinstance(given, str):
            _checks.choice("prior_variance", given, SEARCHES)
            if not normalised(loss):
                warn_user(
                    f"prior_variance={given!r} maximises the log integral of prior times factors "
                    f"exp(-beta loss), which for {loss!r} at beta={loss.beta:g} is no log "
                    f"probability of {'the labels' if loss.by_margin else 'y'}; a number, or "
                    "cross-validation, is safer",
                    EvidenceWarning,
                )
        if self.prior_groups is not None and given != "evidence":
            raise ValueError(
                "prior_groups is given; allowed with prior_variance="
                f"{_checks.describe(self.prior_variance)}: None; write prior_variance='evidence'"
            )
        if isinstance(given, str):
            return given
        return checked_variances(given, binary.d)

    def _scale_prior(
        self, binary: BinaryProblems, total: float, weights: Array | None
    ) -> HalfCauchy | None:
        """The prior of a prior sd that is found. None: a flat one.

        total: variance of the columns, in their units.
        """
        scale, problem = self.prior_scale, binary.problems[0]
        if scale is None:
            return None
        scale = _checks.number("prior_scale", scale, least=1e-9, most=1e9)
        given = self.prior_variance is not None or self.prior_groups is not None
        if given or not normalised(problem.loss):
            return None
        unit = 1.0
        if not problem.loss.by_margin and problem.data.y is not None:
            unit = problem.loss.typical(problem.data.y, weights)[1]
        return HalfCauchy(float(np.clip(scale * unit / math.sqrt(total), 1e-300, 1e300)))

    def _groups(self, how: str, d: int) -> NDArray[np.intp] | None:
        """The group of each column, 0 to k - 1. None: one variance for all."""
        if how == "ard":
            return np.arange(d)
        if self.prior_groups is None:
            return None
        try:
            labels = np.asarray(self.prior_groups)
        except ValueError:
            labels = np.empty(0)  # rows of several lengths
        if labels.shape != (d,):
            raise ValueError(
                f"prior_groups has shape {labels.shape}; allowed: ({d},), a label per column of X"
            )
        return np.asarray(np.unique(labels, return_inverse=True)[1])

    def _publish(self, fits: Fits, variance: Any) -> None:
        """Set the attributes of a fit."""
        self.prior_variance_ = variance
        self._set_fits(fits.posteriors, fits.log_evidence)

    def _parameters(self, binary: BinaryProblems) -> LossParameters:
        """The parameters to be learnt."""
        problem = binary.problems[0]
        data, learn = problem.data, self.learn
        possible = binary.flat and problem.is_full
        if learn is None and not problem.loss.is_likelihood:
            learn = ()
        shifts = bool(self.fit_intercept)
        assert data.y is not None
        parameters = LossParameters.of(problem.loss, learn, data.y, data.weights, shifts)
        if parameters.names and not possible:
            raise ValueError(
                f"learn is {self.learn!r}, so that {', '.join(parameters.names)} of the loss "
                "would be learnt; allowed with EP on scalar sites by scheme 'exact' "
                "(batch_size=None) and posterior='full', whose evidence has a gradient; else "
                f"learn=(), and a loss with its numbers, as {parameters.loss!r}"
            )
        return parameters

    def _fit(
        self,
        rows: Any,
        targets: list[Any],
        weights: Array | None,
        offset: ArrayLike | None = None,
        few: Callable[[BinaryProblems], HyperParameters] | None = None,
        at_level: Callable[..., Any] = same,
    ) -> None:
        """Fit, and set the attributes. Arguments were checked.

        few: finds the prior variance and the loss in place of :meth:`_found`. at_level: turns the
        posterior of such a fit into that of the user's y; with sign=-1 the other way.
        """
        schedule, standardizes = self._schedule(rows), self._standardizes
        sought = self.prior_variance is None or isinstance(self.prior_variance, str)
        moments = ColumnMoments.of(rows, weights) if standardizes or sought else None
        units = self._units(rows, moments, standardizes)
        binary = self._problems(rows, targets, weights, schedule, units, offset=offset)
        self._note_columns(rows, binary)

        def finished(post: Any) -> Any:
            return at_level(at_origin(post, binary.units.origin))

        with one_blas_thread(binary.d):
            starts = None
            if _checks.flag("warm_start", self.warm_start) and binary.schedule.stores != "none":
                starts = [at_mode(post) for post in getattr(self, "posteriors_", ())]
                starts = [uncounted(at_level(post, sign=-1.0)) for post in starts]
                starts = starts if starts and alike(starts, binary) else None
            try:
                found = few(binary) if few else self._found(binary, starts, rows, weights, moments)
                near = found.near if found.near is not None or starts is None else Fits(starts, [])
                fits = final(binary, found.learnt, near, self.schedule is None)
                warn_of_fits(fits.reports)
                if found.target is not None:
                    post = fits.posteriors[0]
                    warn_ends(found.target.parameters, found.learnt.loss, post)
                fits, found = self._integrated(binary, found, fits, weights)
            except inference.Interrupted as pressed:
                post = pressed.posterior
                if post is not None and post.problem.data.y is binary.problems[0].data.y:
                    pressed.posterior = finished(post)
                raise
            self.loss_, self.n_lost_ = found.learnt.loss.with_offset(False), found.n_lost
            posteriors = [finished(post) for post in fits.posteriors]
            self._set_units(binary.units, moments, standardizes)
            self._publish(Fits(posteriors, []), found.learnt.variance)

    def _set_units(self, units: Units, moments: ColumnMoments | None, standardizes: bool) -> None:
        """Set what tells the units of columns, for later rows too."""
        self.standardize_, self.column_scale_ = standardizes, units.scale
        self._origin, self._moments = units.origin, moments

    def _found(
        self,
        binary: BinaryProblems,
        start: list[Posterior] | None,
        rows: Any,
        weights: Array | None,
        moments: ColumnMoments | None,
    ) -> HyperParameters:
        """Prior variance and loss, given or found."""
        problem, k = binary.problems[0], 0
        assert problem.data.y is not None
        parameters, prior = self._parameters(binary), self._prior(binary)
        if not (isinstance(prior, str) or parameters.names):
            return HyperParameters(Learnt(prior, parameters.loss))
        sds: list[Unknown] = []
        ranges, groups, fixed = np.empty((0, 2)), None, prior
        if isinstance(prior, str):
            assert moments is not None
            groups, fixed = self._groups(prior, rows.shape[1]), None
            if groups is not None and not binary.flat:
                raise ValueError(
                    "prior_variance is 'ard' or prior_groups is given; allowed with EP on scalar "
                    "sites by scheme 'exact' (batch_size=None), whose evidence has a known slope"
                )
            totals = total_of(moments, binary.units.scale, bool(self.fit_intercept), groups)
            unit = problem.loss.typical(problem.data.y, weights)[1]
            ranges = unit / np.sqrt(totals[:, None]) * LATENT_SDS
            own, k = self._scale_prior(binary, float(totals[0]), weights), len(totals)
            sds = [Unknown("prior_variance", own) for _ in totals]
        binary = binary.with_loss(parameters.loss)
        given = {"fixed": fixed, "groups": groups, "start": start}
        target = EvidenceTarget(binary, sds, ranges, parameters, **given)
        y, spectrum = without_offset(problem.loss, problem.data.y), None
        alone = groups is None and (k == 1 or np.ndim(prior) == 0)
        if y is not None and parameters.names == ("variance",) and alone:
            intercept = binary.intercept_variance
            spectrum = Spectrum.of(rows, y, weights, intercept, binary.units.variances)
        if spectrum is not None:
            target = SpectrumTarget(spectrum, binary, sds, ranges, parameters, **given)
        begin = prior
        if k:
            middle = np.sqrt(ranges.prod(axis=1)) * BEGIN
            begin = middle[0] ** 2 if groups is None else middle[groups] ** 2
        end = highest(target, Learnt(begin, parameters.loss))
        if end is None:
            kept = 1.0 if groups is None else np.ones(len(groups))
            learnt = Learnt(kept if k else prior, parameters.loss)
            warn_lost(target, "1" if k else "as given")
            return HyperParameters(learnt, n_lost=target.n_lost)
        learnt, fits = target.learnt(end.point.u), end.point.fit
        near = fits if fits.posteriors else None  # a spectrum takes no fit
        warn_lost(target, "the best of the others", end.promised)
        if k == 1 and groups is None and not parameters.names:
            warn_of_range(target, float(np.exp(2.0 * end.point.u[0])))
        return HyperParameters(learnt, near, target, end, target.n_lost)

    def _integrated(
        self, binary: BinaryProblems, found: HyperParameters, fits: Fits, weights: Array | None
    ) -> tuple[Fits, HyperParameters]:
        """Fits that are averaged over what was learnt, and its middle. Or those given."""
        given, target = self.integrate, found.target
        if not isinstance(given, bool):
            _checks.choice("integrate", given, ("auto",))
        problem = binary.problems[0]
        possible = normalised(problem.loss) and self.prior_scale is not None
        possible = possible and binary.flat and problem.is_full
        possible = possible and binary.schedule.tol > 0.0
        if target is not None and target.k:
            possible = possible and target.groups is None and target.unknowns[0].prior is not None
        possible = possible and target is not None
        if given is True and not possible:
            raise ValueError(
                "integrate is True; allowed with hyper-parameters under their priors (prior_scale "
                "a number; prior_variance=None, or a number beside what is learnt), a likelihood, "
                "and EP on scalar sites with a tolerance and posterior='full'; else 'auto' or False"
            )
        n, d = problem.shape
        labels = problem.loss.by_margin or problem.loss.latents != 1
        small = labels or (n < FEWER_ROWS and min(n, d) <= MOST_SIZE)
        possible = possible and given is not False and (given is True or small)
        if target is None or not possible or not binary.certified(fits):
            return fits, found
        assert problem.data.y is not None
        assert found.end is not None
        unit = 1.0 if labels else problem.loss.typical(problem.data.y, weights)[1]
        scale = float(np.clip(cast(float, self.prior_scale) * unit, 1e-300, 1e300))
        n_lost = target.n_lost
        under_weak_priors(target, found.learnt.loss, scale)
        average = averaged(target, found.end, found.learnt, fits, given is True)
        if average is None:
            return fits, found
        if target.n_lost > n_lost:
            warn_lost(target, "averaged over the others")
        return average[0], found._replace(learnt=average[1], n_lost=target.n_lost)

    # ---- results ----

    def summary(self, level: float = 0.95) -> Any:
        """A table of coefficients and intercept, as :meth:`epfast.FullPosterior.summary` gives it.

        Parameters
        ----------
        level : float, default=0.95
            Posterior probability of the intervals, between 0 and 1.

        Returns
        -------
        table, or dict of tables
            With more than two classes a table for each label against the rest.
        """
        check_is_fitted(self)
        tables: list[Any] = [cast(Any, post).summary(level) for post in self.posteriors_]
        for table, said in zip(tables, self._notes(), strict=True):
            table.attrs["notes"] += said
        if len(tables) == 1:
            return tables[0]
        return dict(zip(self.classes_[self._seen].tolist(), tables, strict=True))

    def _notes(self) -> list[list[str]]:
        """Lines below the summary of each posterior: what it models."""
        return [[] for _ in self.posteriors_]

    def _latents(self, rows: Any) -> list[tuple[Array, Array]]:
        return [post.predict_latent(rows) for post in self.posteriors_]

    def _points(self, rows: Any, variances: bool = True) -> Points:
        first = self.posteriors_[0]
        if not isinstance(first, IntegratedPosterior):
            return super()._points(rows)
        posteriors = [fits.posteriors for fits in Fits(self.posteriors_, []).by_point]
        if variances:
            latents = [[post.predict_latent(rows) for post in some] for some in posteriors]
        else:  # of one response
            weights, d = np.stack([some[0].mean for some in posteriors]), rows.shape[1]
            means = np.asarray(rows @ weights[:, :d].T).T + weights[:, d:].sum(axis=1)[:, None]
            latents = [[(mean, np.full(len(mean), np.nan))] for mean in means]
        return Points(first.weights, posteriors, latents)

    def __sklearn_tags__(self) -> Any:
        """Tags of scikit-learn."""
        tags = cast(Any, super()).__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _input(self) -> dict[str, Any]:
        return {"dtype": np.float64, "accept_sparse": "csr"}


@contextmanager
def _own_words(class_weight: Any) -> Iterator[None]:
    """Errors of fit_linear about weights, in the words of scikit-learn."""
    name = "sample_weight" if class_weight is None else "sample_weight or class_weight"
    try:
        yield
    except ValueError as error:
        for theirs in ("weights ", "a weight "):
            if str(error).startswith(theirs):
                raise ValueError(f"{name} {str(error).removeprefix(theirs)}") from None
        raise

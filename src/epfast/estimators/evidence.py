"""The binary problems of linear classifiers, and when the evidence of a fit may be believed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special

from epfast._arrays import Array, row_chunks
from epfast.estimators.jobs import in_threads, shares
from epfast.gaussian import (
    FactorizedPosterior,
    FullPosterior,
    IntegratedPosterior,
    Problem,
    WidePosterior,
    fit_problem,
)
from epfast.gaussian.choices import Choices
from epfast.gaussian.held import curvature
from epfast.gaussian.latent_posterior import JointPosterior, LatentPosterior
from epfast.gaussian.problem import (
    NO_SPREAD,
    Data,
    State,
    center_of,
    mean_of_rows,
    prior_of,
    responses_of,
    rounding_of_mean,
    with_ones,
)
from epfast.gaussian.wide import wide_rows
from epfast.inference import start_may_be_dropped
from epfast.inference.runtime import one_blas_thread
from epfast.losses import Loss
from epfast.schedules import DEP, EP, Schedule

Posterior = FullPosterior | FactorizedPosterior | LatentPosterior

#: range of the search: prior variance of x.theta, x about its mean
LATENT_VARIANCES = (1e-6, 1e6)


def normalised(loss: Loss) -> bool:
    """Whether the log evidence is a log probability of the labels."""
    return loss.is_likelihood and loss.beta == 1.0


def certified(post: Posterior) -> bool:
    """Whether the evidence of a fit may be believed, as far as is known without a sweep.

    It has settled, where its schedule has a tolerance. Its last sweep refused no site. And its log
    evidence is at most 0, where no factor exceeds 1.
    """
    value = post.log_evidence
    return (
        math.isfinite(value)
        and (post.converged or post.schedule.tol == 0.0)
        and post.history[-1].n_refused == 0
        and value <= post.problem.evidence_bound
    )


def problems_of(
    chosen: Choices,
    rows: Any,
    targets: list[Any],
    weights: Array | None,
    intercept: bool,
    prior: State | None = None,
    offset: Any = None,
) -> list[Problem]:
    """The problems of rows that were checked, a target each.

    prior: of them all, if it has the form of these fits. Else one stands in.
    """
    full = chosen.covariance == "full"
    X = with_ones(rows) if intercept else rows
    data = [
        responses_of(chosen.loss, target, X.shape[0], weights, offset)._replace(X=X)
        for target in targets
    ]
    center = center_of(X, data[0].weights) if intercept and full else None
    several = chosen.loss.latents > 1
    wide = None if several else wide_rows(chosen, X, intercept, center)
    if wide is not None:  # the kernel of one prior variance is a multiple of that of another
        wide = wide.remembering()
        data = [part._replace(X=wide.X) for part in data]
    dense = full and wide is None
    if prior is None or (prior.precision.ndim == 2) != dense:
        # until there is a prior variance: no memory where d is large
        ones, zeros = (np.broadcast_to(x, X.shape[1:]) for x in (1.0, 0.0))
        prior = prior_of(ones, zeros, True) if dense else State(ones, zeros, None, 0.0, 0)
    problems = [chosen.problem(part, prior) for part in data]
    return [problem._replace(intercept=intercept, center=center, wide=wide) for problem in problems]


class Slopes:
    """What a search reads of the fits of all binary problems with one prior variance."""

    @property
    def count(self) -> int:
        """Latents of all problems."""
        raise NotImplementedError

    def slope(self, precision: float, d: int) -> float:
        """d log Z / d log v of one prior variance v of d weights, summed over the problems."""
        raise NotImplementedError

    def curvature(self, precision: float, d: int) -> float:
        """d^2 log Z / (d log v)^2 of one prior variance, the sites held. NaN without matrices."""
        raise NotImplementedError

    def excess(self, slope: float, d: int) -> float:
        """A measure of a slope that is nearly linear in the inverse of the prior sd: its root is 0.

        The root of E |w|^2 over what the prior expects, less 1. It is linear where the data tell
        the weights, since E |w|^2 stands still there. And where these grow with the prior sd, the
        classes nearly separated, as slopes are (MNIST: the same secants end after 5 fits, not 8).
        """
        return math.sqrt(max(1.0 + 2.0 * slope / (d * self.count), 0.05)) - 1.0

    def rise(self, precision: float, slope: float, d: int) -> float:
        """d excess / d prior sd^-1, the sites held. NaN without matrices."""
        by_log = self.curvature(precision, d) / (d * self.count)
        return -2.0 * by_log / (math.sqrt(precision) * (1.0 + self.excess(slope, d)))

    def bend(self, x: float, rise: float, d: int) -> float:
        """Minus the second derivative by log v at the root, x the inverse prior sd there."""
        return 0.5 * d * self.count * rise * x


@dataclass(frozen=True)
class Fits(Slopes):
    """The fits of all binary problems with one prior, or their averages over the same priors."""

    posteriors: list[Any]
    #: what there is to warn of: arguments of :func:`epfast.estimators.base.warn_of_fits`
    reports: list[tuple[Any, ...]]

    def slopes(self, precision: Any, d: int) -> Array:
        """d log Z / d log v_j = (E w_j^2 / v_j - 1) / 2, (d,), summed over the problems.

        At a fixed point log Z does not change with the sites, to first order.
        """
        squares, count = np.zeros(d), 0
        for post in self.posteriors:  # of several latents each counts: (C, d), else (1, d)
            own = np.atleast_2d(post.mean**2 + post.variance)[:, :d]
            squares, count = squares + own.sum(axis=0), count + len(own)
        return np.asarray(0.5 * (squares * precision - count))

    def slope(self, precision: float, d: int) -> float:
        """The sum of :meth:`slopes` of one prior variance."""
        if all(isinstance(post, WidePosterior) for post in self.posteriors):
            wide = cast(list[WidePosterior], self.posteriors)
            return sum(post.log_evidence_slope() for post in wide)
        return float(self.slopes(precision, d).sum())

    def curvature(self, precision: float, d: int) -> float:
        """d^2 log Z / (d log v)^2 of one prior variance, the sites held. NaN without matrices."""
        variances, groups = np.array([1.0 / precision]), np.zeros(d, dtype=np.intp)
        return self.curvatures(variances, groups).item()

    def curvatures(self, variances: Array, groups: NDArray[np.intp]) -> Array:
        """d^2 log Z / d log v_i d log v_j of k prior variances, the sites held, (k, k).

        NaN without matrices. groups: of the d coefficients, 0 to k - 1.
        """
        d, total = len(groups), np.zeros((len(variances), len(variances)))
        for post in self.posteriors:
            full = isinstance(post, FullPosterior) and not isinstance(post, WidePosterior)
            if not full and not isinstance(post, JointPosterior):
                return np.full(total.shape, math.nan)
            # of several latents those of each, without intercepts
            places = np.arange(post.mean.size).reshape(-1, post.mean.shape[-1])[:, :d]
            which, repeated = places.ravel(), np.tile(groups, len(places))
            covariance = post.covariance[np.ix_(which, which)]
            total += curvature(post.mean.ravel()[which], covariance, repeated, variances)
        return total

    @property
    def count(self) -> int:
        return sum(len(post.mean) if post.mean.ndim > 1 else 1 for post in self.posteriors)

    @property
    def by_point(self) -> list[Fits]:
        """Of averages, the fits of each point."""
        columns = zip(*(post.posteriors for post in self.posteriors), strict=True)
        return [Fits(list(column), []) for column in columns]

    @property
    def log_evidence(self) -> float:
        first = self.posteriors[0]
        if isinstance(first, IntegratedPosterior):
            values = [fits.log_evidence for fits in self.by_point]
            return float(special.logsumexp(first.log_prior + values))
        return float(sum(post.log_evidence for post in self.posteriors))


class BinaryProblems(NamedTuple):
    """The binary problems of a fit, without the prior variance of the coefficients."""

    #: one problem, or one per class
    problems: list[Problem]
    #: number of coefficients, before the intercept
    d: int
    intercept_variance: float | None
    #: threads: over the problems, or inside the one
    n_jobs: int = 1

    @property
    def schedule(self) -> Any:
        return self.problems[0].schedule

    def with_loss(self, loss: Loss) -> BinaryProblems:
        """The same with another loss of the same responses."""
        return self._replace(problems=[one._replace(loss=loss) for one in self.problems])

    @property
    def flat(self) -> bool:
        """Whether the evidence of a fixed point does not change with its sites, to first order."""
        first = self.problems[0]
        exact = first.scheme.integrates or "moments" in first.loss.gives
        return isinstance(first.schedule, EP | DEP) and first.batch_size is None and exact

    @property
    def follows(self) -> bool:
        """Whether the prior may follow the sites within a fit."""
        first = self.problems[0]
        rows = first.covariance == "full" and first.wide is None and first.loss.latents == 1
        return self.flat and rows and len(self.problems) == 1 and isinstance(first.schedule, EP)

    def at(self, k: int, variance: float | Array) -> Problem:
        """One problem with this prior variance."""
        wide = self.intercept_variance
        precision = np.empty(self.d if wide is None else self.d + 1)
        precision[: self.d] = 1.0 / np.asarray(variance, dtype=np.float64)
        if wide is not None:
            precision[self.d] = 1.0 / wide
        return self.problems[k].with_precision(precision)

    def fit(
        self,
        variance: float | Array,
        schedule: Schedule,
        starts: list[Posterior] | None = None,
        **more: Any,
    ) -> Fits:
        """Fit each problem with this prior variance; more: arguments of ``fit_problem``."""
        threads = shares(self.n_jobs, len(self.problems))[1] or 1
        prior = self.at(0, variance).prior

        def one(k: int) -> tuple[Posterior, list[tuple[Any, ...]]]:
            problem = self.problems[k]._replace(prior=prior, base=prior, schedule=schedule)
            reports: list[tuple[Any, ...]] = []
            start = None if starts is None else starts[k]
            guess = problem.loss.latents != 1 and start_may_be_dropped(start, problem)
            given: dict[str, Any] = {"threads": threads, "guess": guess, **more}
            given["warn"] = lambda *what: reports.append(what[:3])
            return fit_problem(problem, start, **given), reports

        return Fits(*gathered(one, len(self.problems), self.n_jobs, self.d))

    def certified(self, fits: Fits) -> bool:
        return all(certified(post) for post in fits.posteriors)


def gathered(
    one: Callable[[int], tuple[Any, list[Any]]], count: int, n_jobs: int | None, d: int
) -> tuple[list[Any], list[Any]]:
    """Results of ``one(k)`` in the order of k, whatever the number of threads, and its lists."""
    with one_blas_thread(d):
        results = in_threads([partial(one, k) for k in range(count)], shares(n_jobs, count)[0])
    return [post for post, _ in results], [what for _, reports in results for what in reports]


def with_chunk(posteriors: list[Posterior], problem: BinaryProblems, n_jobs: int | None) -> Fits:
    """Posteriors that have gone on with new rows, the data of the binary problems.

    With stored scalar sites EP fits those of the new rows. Else ADF takes them in, and no row is
    kept.
    """

    def one(k: int) -> tuple[Posterior, list[tuple[Any, ...]]]:
        post, new = posteriors[k], problem.problems[k]
        reports: list[tuple[Any, ...]] = []

        def warn(*what: Any) -> None:
            reports.append(what[:3])

        if isinstance(post, FactorizedPosterior):
            prior = post.problem.prior
            return fit_problem(new._replace(prior=prior, base=prior), post, warn=warn), reports
        assert not isinstance(post, LatentPosterior)  # refused by the checks
        schedule = None if post.sites is None else post.schedule
        longer = post.with_checked_rows(new.data, schedule, warn)
        if post.sites is None:
            longer = replace(longer, problem=longer.problem._replace(data=Data(None, None)))
        return longer, reports

    return Fits(*gathered(one, len(posteriors), n_jobs, problem.d))


def averages_with_chunk(
    posteriors: list[IntegratedPosterior], problem: BinaryProblems, n_jobs: int | None
) -> Fits:
    """As :func:`with_chunk`, of averages: their points go on, and are weighted anew."""
    before = Fits(posteriors, []).by_point
    now = [with_chunk(fits.posteriors, problem, n_jobs) for fits in before]
    gains = [b.log_evidence - a.log_evidence for a, b in zip(before, now, strict=True)]
    columns = zip(*(fits.posteriors for fits in now), strict=True)
    pairs = zip(posteriors, columns, strict=True)
    longer = [post.with_posteriors(column, gains) for post, column in pairs]
    return Fits(longer, [one for fits in now for one in fits.reports])


def at_mode(post: Any) -> Posterior:
    """A posterior, or of an average that of its most probable point."""
    at_best: Posterior = post.best if isinstance(post, IntegratedPosterior) else post
    return at_best


def alike(starts: list[Posterior], problem: BinaryProblems) -> bool:
    """Whether these posteriors are of such problems: as many, of as many latents."""
    if len(starts) != len(problem.problems):
        return False
    before, now = starts[0].problem.loss, problem.problems[0].loss
    return (before.latents, before.correlated) == (now.latents, now.correlated)


def columns_of(rows: Any, weights: Array | None, centred: bool) -> tuple[Array, Array]:
    """Weighted variances of columns, (d,) each: about the mean or, not centred, 0. And about 0.

    In one pass beside that for the mean.
    """
    mean = mean_of_rows(rows, weights)
    rounding = rounding_of_mean(rows.shape[0])
    with np.errstate(all="ignore"):
        if sparse.issparse(rows):
            square = mean_of_rows(rows.power(2, float), weights)
            variance, lost = square - mean**2, rounding
        else:
            given = np.ones(len(rows)) if weights is None else weights
            parts = ((given[part], rows[part] - mean) for part in row_chunks(rows))
            variance = sum(some @ away**2 for some, away in parts) / given.sum()
            square, lost = variance + mean**2, rounding**2
        # a constant column leaves the rounding of its mean
        constant = variance <= max(lost, NO_SPREAD**2) * square
        variance[constant] = 0.0
    return variance if centred else square, square


def total_of(variance: Array, square: Array, groups: NDArray[np.intp] | None = None) -> Array:
    """The total variance of the columns of each group, of all without groups, (k,).

    About 0 if it is 0 or overflows. 1 where that does, too.
    """
    groups = np.zeros(len(square), dtype=np.intp) if groups is None else groups
    totals: Any = [np.bincount(groups, part) for part in (variance, square)]
    totals.append(np.ones(len(totals[0])))
    fine = [(total > 1e-200) & (total < 1e200) for total in totals]
    return np.select(fine, totals)

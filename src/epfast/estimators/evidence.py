"""The binary problems of linear classifiers, and when the evidence of a fit may be believed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from epfast._arrays import Array
from epfast.estimators.jobs import in_threads, shares
from epfast.estimators.units import Units
from epfast.gaussian import (
    FactorizedPosterior,
    FullPosterior,
    IntegratedPosterior,
    Problem,
    WidePosterior,
    fit_problem,
)
from epfast.gaussian.latent_posterior import LatentPosterior
from epfast.gaussian.linear_posterior import recentered_posterior, uncentered_posterior
from epfast.gaussian.prior import CenteredPrior, WeightPrior
from epfast.gaussian.rows import Data, center_of, own_rows, responses_of, with_ones
from epfast.gaussian.table import Choices, is_for_wide
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
    units: Units,
    prior: WeightPrior | None = None,
    offset: Any = None,
) -> list[Problem]:
    """The problems of rows that were checked, a target each.

    prior: of them all, if it has the form of these fits. Else one stands in.
    """
    full = chosen.posterior == "full"
    X = with_ones(rows) if intercept else rows
    data = [
        responses_of(chosen.loss, target, X.shape[0], weights, offset)._replace(X=X)
        for target in targets
    ]
    several = chosen.loss.latents > 1
    if units.origin is not None and (several or not is_for_wide(chosen, X)):
        X[:, :-1] -= units.origin  # a kernel is of rows about their means by itself
    center = center_of(X, data[0].weights) if intercept and full else None
    wide = not several and is_for_wide(chosen, X)
    dense = full and not wide
    if prior is None or (prior.precision.ndim == 2) != dense:
        # until there is a prior variance: no memory where d is large
        ones, zeros = (np.broadcast_to(x, X.shape[1:]) for x in (1.0, 0.0))
        prior = WeightPrior(np.diag(ones) if dense else ones, zeros)
    prior = replace(prior, intercept=intercept, center=center)
    if wide:  # the kernel of one prior variance is a multiple of that of another
        X = own_rows(X, intercept)
        data = [part._replace(X=X) for part in data]
        prior = prior.in_form(CenteredPrior).remembering(X, units.variances)
    return [chosen.problem(part, prior) for part in data]


@dataclass(frozen=True)
class Fits:
    """The fits of all binary problems with one prior, or their averages over the same priors."""

    posteriors: list[Any]
    #: what there is to warn of: arguments of :func:`epfast.estimators.base.warn_of_fits`
    reports: list[tuple[Any, ...]]

    def sums(
        self, variances: Array, groups: NDArray[np.intp] | None, units: Array
    ) -> tuple[Array, Array]:
        """Squares of means over prior variances, and degrees of freedom, of groups, (k,) each.

        Their difference is the slope of the log evidence by the log of a prior sd, at a fixed
        point. Degrees of freedom are MacKay's (1992).

        Parameters
        ----------
        variances : ndarray of shape (k,)
            Of the groups; coefficient j has its group's times ``units[j]``.
        groups : ndarray of shape (d,) or None
            0 to k - 1. None: one group.
        units : ndarray of shape (d,)
        """
        d, k, total = len(units), len(variances), np.zeros((2, len(variances)))
        which = np.zeros(d, dtype=np.intp) if groups is None else groups
        for post in self.posteriors:
            if isinstance(post, WidePosterior) and k == 1:  # without variances of all weights
                tau, seen = post.sites.precision, post.marginals_of_rows()[1]
                freedom = float(tau @ seen) - post.problem.prior.intercept
                squares = 2.0 * post.log_evidence_slope() + freedom
                total[:, 0] += squares, freedom
                continue
            # of several latents each counts: (C, d), else (1, d)
            mean, variance = (np.atleast_2d(part)[:, :d] for part in (post.mean, post.variance))
            scale = 1.0 / (variances[which] * units)
            total[0] += np.bincount(which, (mean**2).sum(axis=0) * scale, k)
            total[1] += np.bincount(which, len(mean) - variance.sum(axis=0) * scale, k)
        return total[0], total[1]

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
    #: of the columns
    units: Units
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

    def precision(self, variance: float | Array) -> Array:
        """Prior precisions of the weights with this prior variance, the intercept at the end."""
        precision = 1.0 / (np.asarray(variance, dtype=np.float64) * self.units.variances)
        wide = self.intercept_variance
        return precision if wide is None else np.append(precision, 1.0 / wide)

    def at(self, k: int, variance: float | Array) -> Problem:
        """One problem with this prior variance."""
        problem = self.problems[k]
        return problem.with_prior(problem.prior.with_precision(self.precision(variance)))

    def fit(
        self,
        variance: float | Array,
        schedule: Schedule,
        starts: list[Posterior] | None = None,
    ) -> Fits:
        """Fit each problem with this prior variance."""
        threads = shares(self.n_jobs, len(self.problems))[1] or 1
        prior = self.at(0, variance).prior

        def one(k: int) -> tuple[Posterior, list[tuple[Any, ...]]]:
            problem = self.problems[k].with_prior(prior)._replace(schedule=schedule)
            reports: list[tuple[Any, ...]] = []
            start = None if starts is None else starts[k]
            guess = problem.loss.latents != 1 and start_may_be_dropped(start, problem)
            given: dict[str, Any] = {"threads": threads, "guess": guess}
            given["warn"] = lambda *what: reports.append(what[:3])
            return fit_problem(problem, start, **given), reports

        return Fits(*gathered(one, len(self.problems), self.n_jobs, self.d))

    def has_made(self, fits: Fits, variance: float | Array) -> bool:
        """Whether fits are those of these problems with this prior variance."""
        precision, made = self.at(0, variance).prior.precision, True
        for post, problem in zip(fits.posteriors, self.problems, strict=True):
            one: Any = getattr(post, "problem", None)  # a start has none
            made = made and one is not None and one.data is problem.data
            made = made and (one.schedule, one.loss) == (problem.schedule, problem.loss)
            made = made and np.array_equal(one.prior.precision, precision)
        return made

    def certified(self, fits: Fits) -> bool:
        return all(certified(post) for post in fits.posteriors)


def gathered(
    one: Callable[[int], tuple[Any, list[Any]]], count: int, n_jobs: int | None, d: int
) -> tuple[list[Any], list[Any]]:
    """Results of ``one(k)`` in the order of k, whatever the number of threads, and its lists."""
    with one_blas_thread(d):
        results = in_threads([partial(one, k) for k in range(count)], shares(n_jobs, count)[0])
    return [post for post, _ in results], [what for _, reports in results for what in reports]


def with_chunk(
    posteriors: list[Posterior],
    problem: BinaryProblems,
    variance: float | Array,
    before: Units,
) -> Fits:
    """Posteriors that have gone on with new rows, the data of the binary problems.

    Their prior is that of the units that columns have now, where it was of those before. With
    stored scalar sites EP fits those of the new rows. Else ADF takes them in, and no row is kept.
    """

    def one(k: int) -> tuple[Posterior, list[tuple[Any, ...]]]:
        post, new = posteriors[k], problem.problems[k]
        origin = problem.units.origin
        if origin is not None and post.is_uncentered:
            post = recentered_posterior(post)
        old, now = (
            post.problem.prior.with_precision(problem._replace(units=units).precision(variance))
            for units in (before, problem.units)
        )
        post = under(post, old, now)
        reports: list[tuple[Any, ...]] = []

        def warn(*what: Any) -> None:
            reports.append(what[:3])

        if isinstance(post, FactorizedPosterior):
            prior = post.problem.prior
            return fit_problem(new.with_prior(prior), post, warn=warn), reports
        assert not isinstance(post, LatentPosterior)  # refused by the checks
        schedule = None if post.sites is None else post.schedule
        longer = post.with_checked_rows(new.data, schedule, warn)
        if post.sites is None:
            longer = replace(longer, problem=longer.problem._replace(data=Data(None, None)))
        return at_origin(longer, origin), reports

    return Fits(*gathered(one, len(posteriors), problem.n_jobs, problem.d))


def at_origin(post: Any, origin: Array | None) -> Any:
    """The posterior of the rows, from that of the rows less an origin."""
    if origin is None:
        return post
    data = post.problem.data
    if data.X is not None:
        data = data._replace(X=data.X + np.append(origin, 0.0))
    whole: Callable[[Any], Any] = partial(uncentered_posterior, center=origin, data=data)
    if isinstance(post, IntegratedPosterior):
        return replace(post, posteriors=tuple(whole(one) for one in post.posteriors))
    return whole(post)


def under(post: Posterior, before: WeightPrior, prior: WeightPrior) -> Posterior:
    """The posterior of the same sites under another prior than before."""
    state = post.state
    problem = post.problem.with_prior(prior)
    if isinstance(post, WidePosterior):
        return replace(post, problem=problem)
    state = state._replace(
        precision=state.precision - before.precision + prior.precision,
        shift=state.shift - before.shift + prior.shift,
        log_scale=state.log_scale - before.log_scale + prior.log_scale,
    )
    return replace(post, state=state, problem=problem)


def averages_with_chunk(
    posteriors: list[IntegratedPosterior],
    problem: BinaryProblems,
    variance: float | Array,
    units: Units,
) -> Fits:
    """As :func:`with_chunk`, of averages: their points go on, and are weighted anew."""
    before, first = Fits(posteriors, []).by_point, posteriors[0]
    variances: list[Any] = [variance] * len(before)
    if "prior_variance" in first.hyper_names:
        variances = first.points[:, first.hyper_names.index("prior_variance")].tolist()
    points = zip(before, variances, strict=True)
    now = [with_chunk(fits.posteriors, problem, at, units) for fits, at in points]
    gains = [b.log_evidence - a.log_evidence for a, b in zip(before, now, strict=True)]
    columns = zip(*(fits.posteriors for fits in now), strict=True)
    pairs = zip(posteriors, columns, strict=True)
    longer = [post.with_posteriors(column, gains) for post, column in pairs]
    return Fits(longer, [one for fits in now for one in fits.reports])


def at_mode(post: Any) -> Posterior:
    """A posterior, or of an average that of its most probable point."""
    best = post.best if isinstance(post, IntegratedPosterior) else post
    assert isinstance(best, Posterior)
    return best


def alike(starts: list[Posterior], problem: BinaryProblems) -> bool:
    """Whether these posteriors are of such problems: as many, of as many latents."""
    if len(starts) != len(problem.problems):
        return False
    before, now = starts[0].problem.loss, problem.problems[0].loss
    return (before.latents, before.correlated) == (now.latents, now.correlated)

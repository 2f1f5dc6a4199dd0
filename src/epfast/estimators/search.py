"""The hyper-parameters of linear models: fits at some of them, and the search for the best.

Hyper-parameters are logs of prior standard deviations, then numbers of the likelihood. What is
fitted with some of them are binary problems, one or one for each class. A target says what their
log density is, :func:`epfast.inference.hyper.climbed` walks uphill, and an average is taken about
the mode where that matters. A fit counts only if it is valid, see :func:`certified`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from typing import NamedTuple, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg, special

from epfast import _checks, priors
from epfast._arrays import Array, Indices, is_sparse, row_chunks
from epfast.estimators.base import ConvergenceWarning, EvidenceWarning, Report, Rows, in_threads
from epfast.estimators.units import Units
from epfast.gaussian import (
    FactorizedPosterior,
    FullPosterior,
    IntegratedPosterior,
    Problem,
    WidePosterior,
    fit_problem,
)
from epfast.gaussian.average import mixtures
from epfast.gaussian.forms.kernel import GPState
from epfast.gaussian.latent_posterior import LatentPosterior
from epfast.gaussian.posterior import GaussianPosterior
from epfast.gaussian.prior import WeightPrior, prior_of
from epfast.gaussian.rows import mean_of_rows
from epfast.gaussian.shards import WarmStart
from epfast.gaussian.state import State
from epfast.inference import (
    FAILURES,
    DataWarning,
    Sites,
    fit_from,
    start_may_be_dropped,
)
from epfast.inference.design import (
    MOST,
    WeightedPoints,
    axes_of,
    change,
    design,
    grown,
    principal_axes,
)
from epfast.inference.hyper import (
    ROUNDING,
    SLIGHT_GAIN,
    TINY,
    HyperPoint,
    SearchEnd,
    Target,
    Unknown,
    climbed,
    rounding_of,
)
from epfast.inference.learning import STEP, Chart, derivatives_by_loss
from epfast.inference.loop import Ended, OfSites
from epfast.inference.records import warn_user
from epfast.inference.runtime import cached_property, one_blas_thread
from epfast.losses import Gaussian, Loss
from epfast.priors import HalfCauchy
from epfast.schedules import DEP, EP, FilledSchedule, Schedule, SharedSites

T = TypeVar("T")

#: of one response, or of one class
Posterior = FullPosterior | FactorizedPosterior | LatentPosterior
#: what a fit begins with
Start = Posterior | WarmStart

# ---- fits with given hyper-parameters ----


class BinaryFits(NamedTuple):
    """The fits of all binary problems with one prior."""

    posteriors: list[Posterior]
    #: what there may be to warn of
    reports: list[Report]

    @classmethod
    def of(cls, pairs: Iterable[tuple[Posterior, list[Report]]]) -> BinaryFits:
        """The fits of the problems, in their order, each with what it reports."""
        posteriors: list[Posterior] = []
        reports: list[Report] = []
        for post, of_post in pairs:
            posteriors.append(post)
            reports += of_post
        return cls(posteriors, reports)

    @property
    def log_evidence(self) -> float:
        """The sum over the problems."""
        return float(sum(map(attrgetter("log_evidence"), self.posteriors)))

    @property
    def valid(self) -> bool:
        """Whether the evidence of each may be believed."""
        return all(map(certified, self.posteriors))


#: of a value that takes none
NO_FITS = BinaryFits([], [])


class Averages(NamedTuple):
    """The averages of the fits of all binary problems, over the same hyper-parameters."""

    posteriors: list[IntegratedPosterior]
    reports: list[Report]

    @property
    def by_point(self) -> list[BinaryFits]:
        """The fits of each point."""
        columns = zip(*(post.posteriors for post in self.posteriors), strict=True)
        return [BinaryFits(list(column), []) for column in columns]

    @property
    def log_evidence(self) -> float:
        """Integrated over the hyper-parameters."""
        values = [result.log_evidence for result in self.by_point]
        return float(special.logsumexp(self.posteriors[0].log_prior + values))


class BinaryProblems(NamedTuple):
    """The binary problems of a fit, without the prior variance of the coefficients."""

    #: one problem, or one per class
    problems: list[Problem]
    #: number of coefficients, before the intercept
    d: int
    intercept_variance: float | None
    #: of the columns
    units: Units
    #: threads over the problems, and inside each of them. None: one
    jobs: tuple[int, int | None] = 1, None

    @property
    def schedule(self) -> Schedule:
        schedule = self.problems[0].schedule
        assert isinstance(schedule, Schedule)
        return schedule

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

    def prior(self, variance: float | Array) -> WeightPrior:
        """The prior of the weights with this prior variance."""
        prior: WeightPrior = self.problems[0].prior
        return prior.with_precision(self.precision(variance))

    def fit(
        self,
        variance: float | Array,
        schedule: Schedule,
        starts: Sequence[Start] | None = None,
    ) -> BinaryFits:
        """Fit each problem with this prior variance. The caller holds BLAS to its threads."""
        prior, threads = self.prior(variance), self.jobs[1] or 1

        def fit_one(k: int) -> tuple[Posterior, list[Report]]:
            reports: list[Report] = []

            def report(fit: Ended, engine: OfSites, schedule: FilledSchedule) -> None:
                reports.append(Report(fit, engine, schedule))

            problem = self.problems[k].with_prior(prior)._replace(schedule=schedule.filled())
            start = None if starts is None else starts[k]
            guess = problem.loss.latents != 1 and start_may_be_dropped(start, problem)
            return fit_problem(problem, start, threads=threads, guess=guess, warn=report), reports

        return BinaryFits.of(self.each(fit_one))

    def each(self, of_problem: Callable[[int], T]) -> list[T]:
        """What a function says of the number of each problem, in their order, by threads."""
        if len(self.problems) == 1:
            return [of_problem(0)]
        return in_threads([partial(of_problem, k) for k in range(len(self.problems))], self.jobs[0])

    def gives(self, result: BinaryFits, variance: float | Array) -> bool:
        """Whether a result is that of these problems with this prior variance."""
        precision = self.prior(variance).precision
        for post, problem in zip(result.posteriors, self.problems, strict=True):
            there = post.problem
            if there.data is not problem.data or there.schedule != problem.schedule:
                return False
            if there.loss != problem.loss or not np.array_equal(there.prior.precision, precision):
                return False
        return True


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


# ---- numbers of a likelihood ----

#: numbers whose second derivatives are taken pair by pair, in O(k^2): more have a chart
PAIRWISE = 12
#: added to the logs of scales of noise, where searches begin
SHIFTS = (0.0, -3.0)
#: reach of the free numbers of increasing parameters: their middle, logs of their gaps
CUTS, GAPS = 50.0, 10.0
#: log of how much wider than at the start a gap is that ends at a class without rows, below or
#: above all others: the evidence rises with it for ever, by less than 1e-3 beyond 8 sd of the noise
EMPTY = 3.0
#: distance of a free number from an end that counts as none
NEAR = 1e-6
#: a parameter is flat where the log evidence falls by less over this change of its log: its
#: uncertainty is a factor of 500 and more
AWAY, FLAT = 2.0, 0.05
#: what it means that a parameter ends low (False) or high
ENDS = {
    ("variance", False): "the model fits y without noise",
    ("scale", False): "the model fits y without noise",
    ("variance", True): "the noise is far larger than y",
    ("scale", True): "the noise is far larger than y",
    ("df", False): "the tails are as heavy as the search goes, where y still has a mean",
    ("df", True): "the noise is Gaussian",
    ("size", False): "nearly all counts are 0, and others large",
    ("size", True): "the counts are Poisson's",
    ("shape", False): "y ranges over too many orders of magnitude",
    ("shape", True): "the model fits y without noise",
    ("share", False): "no row is an outlier",
    ("share", True): "nearly all rows are outliers",
    ("cuts", False): "a class is hardly there",
    ("cuts", True): "nearly no row has an outer class",
    ("epsilon", False): "no label is flipped",
    ("epsilon", True): "the labels are drawn at random",
}


class LossParameters(NamedTuple):
    """Learnable parameters of a loss: logs of positive numbers. Of cuts the middle, logs of gaps.

    The middle is the mean of the cuts between classes that have rows, so that classes in the
    reverse order have the reverse cuts. A cut beyond them is held far away, and moves no other.
    """

    #: with the parameters that a search begins with
    loss: Loss
    names: tuple[str, ...]
    #: (k, 2), bounds of the free numbers
    bounds: Array
    #: classes between cuts that no row has
    unseen: tuple[int, ...] = ()

    @classmethod
    def of(
        cls,
        loss: Loss,
        learn: Iterable[str] | None,
        responses: Array,
        weights: Array | None,
        shifts: bool,
    ) -> LossParameters:
        """Those that ``learn`` names. None: the first of the loss, where it has some.

        shifts: whether something else in the model shifts all cuts, so that their middle is held.

        Raises
        ------
        ValueError, TypeError
            If a name is none of ``loss.learnable``.
        """
        names = _names(loss, learn)
        count = len(responses) if weights is None else np.count_nonzero(weights)
        if names and count == 1:
            warn_user(
                f"one row tells nothing of {', '.join(names)}, which is as large as y",
                EvidenceWarning,
            )
            return cls(loss.started(responses, weights), (), np.empty((0, 2)))
        with_start = loss.started(responses, weights)
        with_start = loss.with_parameters(**{name: getattr(with_start, name) for name in names})
        unseen = _unseen(with_start, responses, weights) if "cuts" in names else ()
        new = cls(with_start, names, np.empty((0, 2)), unseen)
        bounds = [new._range(name, shifts) for name in names]
        if not bounds:
            return new
        new = new._replace(bounds=np.concatenate(bounds))
        return new._replace(loss=new.loss_at(np.clip(new.start, *new.bounds.T)))

    @property
    def size(self) -> int:
        return len(self.bounds)

    @property
    def places(self) -> list[tuple[str, slice[int, int, None]]]:
        """The names, and where the free numbers of each are."""
        first, places = 0, []
        for name in self.names:
            last = first + np.size(getattr(self.loss, name))
            places.append((name, slice(first, last)))
            first = last
        return places

    @property
    def start(self) -> Array:
        """(k,), the free numbers of the loss that a search begins with."""
        parts = [self._free(getattr(self.loss, name)) for name in self.names]
        return np.concatenate(parts) if parts else np.empty(0)

    def starts(self) -> list[Array]:
        """Where searches begin: as y spreads, and with less noise. Without names one empty one."""
        starts = [self.shifted(shift) for shift in SHIFTS]
        return starts if (starts[0] != starts[1]).any() else starts[:1]

    def shifted(self, shift: float) -> Array:
        """The start, with so much added to the logs of scales of noise.

        Nothing where t is not log-concave: outliers of a wrong mean make improper cavities.
        """
        scales = np.zeros(self.size)
        for name, part in self.places:
            scales[part] = name in ("scale", "variance") and self.loss.log_concave is not False
        return self.start + shift * scales

    def only(self, names: tuple[str, ...], loss: Loss) -> LossParameters:
        """Some of them, all of which are numbers. The others are as the loss has them."""
        bounds = [self.bounds[part] for name, part in self.places if name in names]
        none = np.empty((0, 2))
        return self._replace(loss=loss, names=names, bounds=np.concatenate([none, *bounds]))

    def loss_at(self, free: Array) -> Loss:
        """The loss with these free numbers."""
        values: dict[str, float | tuple[float, ...]] = {}
        for name, part in self.places:
            single = np.ndim(getattr(self.loss, name)) == 0
            values[name] = float(np.exp(free[part][0])) if single else self._cuts(free[part])
        return self.loss.with_parameters(**values) if values else self.loss

    def chart(self, free: Array) -> Chart | None:
        """Of cuts that are not few, themselves: a row depends on those on both sides of its class.

        Those around classes without rows are moved together, as they may be very close. None: of
        anything else.
        """
        if len(free) <= PAIRWISE or self.names != ("cuts",):
            return None
        cuts: Array = np.asarray(self._cuts(free))
        count, classes = len(cuts), np.arange(len(cuts) + 1)
        # a gap moves the cuts after it, and all of them by what their middle moves
        by_cut = np.tri(count) - self._middle(count) @ np.tri(count)
        by_gap = by_cut * np.append(0.0, np.diff(cuts))
        is_seen = ~np.isin(classes, self.unseen)
        blocks = np.cumsum(is_seen)[:-1]
        widths = np.append(np.insert(np.diff(cuts), 0, 1.0), 1.0)  # noise of one cut has unit 1
        nearest = np.full(blocks[-1] + 2, np.inf)
        for width, block in zip(widths[is_seen], np.cumsum(is_seen)[is_seen], strict=True):
            nearest[block - 1 : block + 1] = np.minimum(nearest[block - 1 : block + 1], width)

        def of_rows(responses: Array) -> Indices:
            result = np.full((len(responses), 2), count)
            ends = self.loss.numbers_of(responses)
            assert ends is not None
            for own in ends.T:
                rows = np.flatnonzero((own >= 0) & (own < count))
                result[rows, blocks[own[rows]] % 2] = own[rows]
            return result

        return Chart(
            lambda values: self.loss.with_parameters(cuts=tuple(values.tolist())),
            cuts,
            STEP * nearest[blocks],
            blocks % 2,
            of_rows,
            np.append(1.0, np.zeros(count - 1)) + by_gap,
            by_gap,
        )

    def slopes(self, loss: Loss, gradient: Mapping[str, ArrayLike]) -> Array:
        """By the free numbers, (k,), from the gradient by the parameters of the loss."""
        parts = []
        for name in self.names:
            value, slope = getattr(loss, name), np.atleast_1d(gradient[name])
            if np.ndim(value) == 0:
                parts.append(slope * value)
            else:  # a gap moves the cuts after it, and all of them by what their middle moves
                by_cut = np.cumsum(slope[::-1])[::-1]
                middle = self._middle(len(value))
                above = np.cumsum(middle[::-1])[::-1]
                by_gap = (by_cut - above * by_cut[0])[1:] * np.diff(value)
                parts.append(np.append(by_cut[0], by_gap))
        free = np.concatenate(parts) if parts else np.empty(0)
        return np.where(self.bounds[:, 0] < self.bounds[:, 1], free, 0.0)

    def at_ends(self, loss: Loss) -> list[str]:
        """What is at an end of its range, in words."""
        free, ends = self._replace(loss=loss).start, []
        for name, part in self.places:
            value = getattr(loss, name)
            low, high = self.bounds[part].T
            below, above = free[part] <= low + NEAR, free[part] >= high - NEAR
            if np.ndim(value) == 0:
                if below[0] or above[0]:
                    ends.append(f"{_written(name, value)} ({_why(name, bool(above[0]))})")
            elif self.unseen or ((below | above) & (low < high)).any():
                none = f": no row has class {', '.join(map(str, self.unseen[:9]))}"
                none = none if self.unseen else ""
                ends.append(f"{_written(name, value)} ({_why(name, False)}{none})")
        return ends

    def flat(self, post: GaussianPosterior) -> list[str]:
        """What the evidence hardly tells from numbers nearer to an end of the range, in words."""
        loss = post.problem.loss
        free, flat = self._replace(loss=loss).start, []
        for name, part in self.places:
            value = getattr(loss, name)
            sides: list[tuple[int, float, float]] = []
            unseen = np.ndim(value) > 0 and self.unseen  # by at_ends
            for k in () if unseen else range(part.start, part.stop):
                low, high = self.bounds[k]
                if min(free[k] - low, high - free[k]) > NEAR:  # else at_ends names it
                    sides += [(k, low, -AWAY), (k, high, AWAY)]
            moved = [free + step * (np.arange(len(free)) == k) for k, _, step in sides]
            try:
                gains = post.loss_gain(*(self.loss_at(np.clip(u, *self.bounds.T)) for u in moved))
            except FloatingPointError:  # no cavity, no gain
                continue
            # near an end there is less of the way, and of the fall
            room = [min(1.0, abs(end - free[k]) / AWAY) for k, end, _ in sides]
            rise = [gain / share**2 for gain, share in zip(gains, room, strict=True)]
            if rise and max(rise) > -FLAT:
                above = sides[int(np.argmax(rise))][2] > 0.0
                flat.append(
                    f"{_written(name, value)} from {'larger' if above else 'smaller'} ones "
                    f"({_why(name, above)})"
                )
        return flat

    def _middle(self, count: int) -> Array:
        """Weights of so many cuts in their middle, (count,)."""
        seen = np.delete(np.arange(count + 1), self.unseen)
        inner = (np.arange(count) >= seen[0]) & (np.arange(count) < seen[-1])
        inner = inner if inner.any() else np.ones(count, dtype=bool)
        return np.asarray(inner / inner.sum())

    def _free(self, value: float | tuple[float, ...]) -> Array:
        if not isinstance(value, tuple):
            return np.array([np.log(value)])
        return np.append(self._middle(len(value)) @ np.asarray(value), np.log(np.diff(value)))

    def _cuts(self, free: Array) -> tuple[float, ...]:
        cuts = np.cumsum(np.append(0.0, np.exp(free[1:])))
        return tuple((cuts + free[0] - self._middle(len(cuts)) @ cuts).tolist())

    def _range(self, name: str, shifts: bool) -> Array:
        """Bounds of the free numbers of a parameter, (k, 2)."""
        value = getattr(self.loss, name)
        if np.ndim(value) == 0:
            return np.log([self.loss.limits(name)])
        free = self._free(value)
        reach = np.full(len(free), GAPS)
        reach[0] = 0.0 if shifts else CUTS
        inner, outer = self._middle(len(free)) > 0.0, np.zeros(len(free), dtype=bool)
        outer[1:] = ~(inner[1:] & inner[:-1])
        reach[outer], free[outer] = 0.0, free[outer] + EMPTY
        return np.stack([free - reach, free + reach], axis=1)


@dataclass(frozen=True)
class OfPower(priors.Scale):
    """A prior of a power of a number, as one of the number."""

    prior: priors.Scale
    power: float

    def __post_init__(self) -> None:
        """Both are known."""

    def over_log(self, u: float, power: float = 1.0) -> tuple[float, float]:
        """As :meth:`epfast.priors.Scale.over_log`."""
        return self.prior.over_log(u, self.power * power)


#: powers of parameters that are as a scale of noise
POWERS = {"variance": 0.5, "scale": 1.0, "size": -0.5, "shape": -0.5}
#: weak priors of others
OWN_PRIORS = {
    "df": OfPower(priors.Gamma(2.0, 0.1), 1.0),
    "share": OfPower(priors.Flat(), 1.0),
    "epsilon": OfPower(priors.Flat(), 1.0),
}


def weak_prior(name: str, scale: float) -> OfPower | None:
    """A weak prior of a parameter. None: there is none.

    That of scales is half-Cauchy with this median. 1 / size and 1 / shape are the squares of a sd
    of log y, or of the log of its mean. The gamma of df is that of Juarez & Steel (2010).
    """
    if name in POWERS:
        return OfPower(HalfCauchy(scale), POWERS[name])
    return OWN_PRIORS.get(name)


def _written(name: str, value: float | tuple[float, ...]) -> str:
    if not isinstance(value, tuple):
        return f"{name}={value:.3g}"
    return f"{name}=({', '.join(f'{part:.3g}' for part in value)})"


def _why(name: str, above: bool) -> str:
    return ENDS.get((name, above), "y says nothing of it")


def _names(loss: Loss, learn: Iterable[str] | None) -> tuple[str, ...]:
    if learn is None:
        return loss.learnable[:1]
    if isinstance(learn, str) or not isinstance(learn, Iterable):
        raise TypeError(
            f"learn is {_checks.describe(learn)}; allowed: a tuple of names, as ('scale',)"
        )
    names = tuple(learn)
    for name in names:
        if not isinstance(name, str) or name not in loss.learnable:
            allowed = ", ".join(map(repr, loss.learnable)) or "(), it has no parameters"
            said = _checks.describe(name)
            raise ValueError(f"learn holds {said}; allowed with {loss!r}: {allowed}")
    return tuple(dict.fromkeys(names))


def _unseen(loss: Loss, responses: Array, weights: Array | None) -> tuple[int, ...]:
    """The classes between the cuts that no row has."""
    count = len(getattr(loss, "cuts", ())) + 1
    mass = np.bincount(responses[:, 0].astype(np.intp), weights, count)
    return tuple(np.flatnonzero(mass == 0.0).tolist())


def warn_ends(parameters: LossParameters, loss: Loss, post: GaussianPosterior | None) -> None:
    """Warn of parameters at an end of their range, or that y does not tell from one.

    post: the posterior with these parameters. None: there is none.
    """
    ends = parameters.at_ends(loss)
    parts = []
    if ends:
        parts.append(f"the log evidence rises up to {', '.join(ends)}, the end of the search")
    flat = [] if post is None else parameters.flat(post)
    if flat:
        parts.append(f"the log evidence hardly tells {', '.join(flat)}")
    if parts:
        warn_user(
            f"{'; '.join(parts)}; a number, and learn=(), settles it",
            EvidenceWarning,
        )


# ---- targets of the search ----

#: step of the log of a prior sd, of differences of values without slopes
SIDE = 0.03
#: log of how far below a mode scales of noise are where rows tell what they leave of y
LITTLE = 1.5
#: shares of the last move by which sites go on to the next point
LEAST_SHARE, MOST_SHARE = 1e-3, 1.0
#: what numbers of a likelihood are called as unknowns
NAMES = {"variance": "sd"}


class Learnt(NamedTuple):
    """What was found, or given."""

    variance: float | Array
    loss: Loss


class Sought(NamedTuple):
    """The hyper-parameters that a search is for."""

    #: prior standard deviations, and their ranges (k, 2)
    sds: list[Unknown]
    ranges: Array
    #: numbers of the likelihood, without priors
    parameters: LossParameters
    #: the prior variance where no sd is sought
    fixed: float | Array | None = None
    #: of the columns, 0 to k - 1. None: one prior sd for all
    groups: Indices | None = None


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The fits at a point of a search, and what its slopes and its metric are made of."""

    result: BinaryFits
    #: log density of the prior, its slopes and second derivatives
    prior: tuple[float, Array, Array]
    #: prior variances of the groups, (k,)
    variances: Array
    #: of the columns, 0 to k - 1, and the prior variances of their coefficients over those
    groups: Indices | None
    units: Array
    #: the log density, its slopes and second derivatives, where these are known without fits
    curve: tuple[float, Array, Array] | None = None

    @property
    def log_evidence(self) -> float:
        return self.result.log_evidence

    @cached_property
    def sums(self) -> tuple[Array, Array]:
        """Squares of means over prior variances, and degrees of freedom, of each group, (k,).

        Their difference is the slope of the log evidence by the log of a prior sd, at a fixed
        point. Degrees of freedom are MacKay's (1992).
        """
        d, k = len(self.units), len(self.variances)
        squares, freedom = np.zeros((2, k))
        which = np.zeros(d, dtype=np.intp) if self.groups is None else self.groups
        scale = 1.0 / (self.variances[which] * self.units)
        for post in self.result.posteriors:
            if isinstance(post, WidePosterior) and k == 1:  # without variances of all weights
                seen = post.marginals_of_rows()[1]
                told = float(post.sites.precision @ seen) - post.problem.prior.intercept
                squares += 2.0 * post.log_evidence_slope() + told
                freedom += told
                continue
            # of several latents each counts: (C, d), else (1, d)
            mean = np.atleast_2d(post.mean)[:, :d]
            variance = np.atleast_2d(post.variance)[:, :d]
            squares += np.bincount(which, (mean**2).sum(axis=0) * scale, k)
            freedom += np.bincount(which, len(mean) - variance.sum(axis=0) * scale, k)
        return squares, np.maximum(freedom, TINY)


class EvidenceTarget(Target[Evaluation]):
    """Log of prior and evidence of all problems, by prior sds and numbers of the likelihood."""

    #: BFGS goes on as well by rougher slopes
    share = 0.1

    def __init__(
        self, problem: BinaryProblems, sought: Sought, start: Sequence[Start] | None = None
    ) -> None:
        """start: of the first fit."""
        self.problem, self.sought, self.start = problem, sought, start
        self.fixed, self.groups, self.k = sought.fixed, sought.groups, len(sought.sds)
        self.units = problem.units.variances
        self.schedule = schedule_of(problem.schedule)
        self.finest = float(self.schedule.tol) or TOL
        #: slopes are off by this and degrees of freedom, of which there are no more
        self.enough = self.finest**2 * min(problem.problems[0].shape) * len(problem.problems)
        self.nearly = 100.0 * self.enough
        self.of_axes = min(self.of_axes, 10.0 * self.finest)
        self.of_points = min(self.of_points, 20.0 * self.of_axes)
        if sought.parameters.loss.log_concave is False:  # values are not flat in sites that creep
            self.of_points = self.of_axes
        #: whether slopes are known; else values are differences, and so are curvatures
        self.flat = problem.flat
        self.knows_curvature = not self.flat
        self.little = LITTLE
        #: whether fits that fail are tried again
        self.repairs = True
        #: points without a valid fit, and all points
        self.n_lost = self.n_tried = 0
        #: the last two points, of one unknown
        self._trail: list[tuple[float, BinaryFits]] = []
        self._sides: dict[bytes, tuple[float, float]] = {}
        self._seek(sought.parameters, {})

    def _seek(self, parameters: LossParameters, weak: Mapping[str, priors.Scale | None]) -> None:
        """Have the prior sds and these numbers of the likelihood for unknowns, under priors."""
        numbers = [name for name, part in parameters.places for _ in range(part.start, part.stop)]
        own = [Unknown(NAMES.get(name, name), weak.get(name)) for name in numbers]
        self.parameters, self.unknowns = parameters, [*self.sought.sds, *own]
        #: of the numbers of the likelihood: a sd is no variance
        self.powers = np.array([2.0 if one.name == "sd" else 1.0 for one in own])
        self.numbers = slice(self.k, None)
        ends = parameters.bounds / self.powers[:, None]
        self.bounds = self.ends = np.concatenate([np.log(self.sought.ranges), ends])

    def under_weak_priors(self, loss: Loss, scale: float) -> Self:
        """The same with weak priors of numbers of the likelihood, as an average takes them.

        Those that have none stay as a loss has them. scale: median of the half-Cauchy prior of the
        noise.
        """
        weak: dict[str, priors.Scale | None] = {
            name: weak_prior(name, scale) for name in self.parameters.names
        }
        if "variance" in weak:  # the unknown is its root
            weak["variance"] = HalfCauchy(scale)
        names = tuple(name for name in self.parameters.names if weak[name] is not None)
        other = copy(self)
        other._seek(self.parameters.only(names, loss), weak)
        return other

    @property
    def is_one_sd(self) -> bool:
        """Whether the prior sd of all columns is the only unknown."""
        return self.k == len(self.unknowns) == 1 and self.groups is None

    # ---- what hyper-parameters mean ----

    def values(self, u: Array) -> Array:
        """Prior variances, and numbers of the likelihood."""
        return np.exp(np.where(np.arange(u.shape[-1]) < self.k, 2.0, 1.0) * u)

    def unknowns_of(self, learnt: Learnt) -> Array:
        """The unknowns of a prior variance and a loss, (m,)."""
        variances = np.broadcast_to(learnt.variance, (self.problem.d,))
        first = [0] if self.groups is None else np.unique(self.groups, return_index=True)[1]
        numbers = self.parameters._replace(loss=learnt.loss).start / self.powers
        return np.append(0.5 * np.log(variances[first[: self.k]]), numbers)

    def learnt(self, u: Array) -> Learnt:
        """The prior variance, or that of each column, and the loss."""
        loss = self.parameters.loss
        if self.parameters.names:
            loss = self.parameters.loss_at(self.powers * u[self.k :])
        if not self.k:
            assert self.fixed is not None
            return Learnt(self.fixed, loss)
        variances = np.exp(2.0 * u[: self.k])
        common = self.groups is None
        return Learnt(float(variances[0]) if common else variances[self.groups], loss)

    # ---- fits ----

    def posterior_at(self, u: Array, tol: float, near: Evaluation | None) -> Evaluation | None:
        """Valid fits at u, from those near it, from none, or damped. None: there are none."""
        self.n_tried += 1
        learnt, problem, schedule = self.learnt(u), self.problem, self.schedule
        if learnt.loss is not problem.problems[0].loss:
            problem = problem.with_loss(learnt.loss)
        start: Sequence[Start] | None = None
        if schedule.stores != "none":  # else a start would count the rows again
            start = self.start if near is None else self.starts_at(u, near.result)
        if isinstance(schedule, EP | SharedSites | DEP):
            schedule = schedule.with_numbers(tol=max(tol, self.finest))
        result, count = valid_fits(problem, learnt.variance, schedule, start, self.repairs)
        self.n_fits += count
        if result is None:
            self.n_lost += 1
            return None
        if len(u) == 1:
            last = self._trail[-1:]
            self._trail = (
                [*last, (float(u[0]), result)]
                if last and last[0][0] != u[0]
                else [(float(u[0]), result)]
            )
        return self.evaluation(u, result)

    def evaluation(self, u: Array, result: BinaryFits) -> Evaluation:
        """What a search reads of the fits at u."""
        variances, groups = np.exp(2.0 * u[: self.k]), self.groups
        return Evaluation(result, self.log_prior(u), variances, groups, self.units)

    def point(self, u: Array, post: Evaluation) -> HyperPoint[Evaluation]:
        return HyperPoint(u, post.result.log_evidence + post.prior[0], post)

    def starts_at(self, u: Array, near: BinaryFits) -> Sequence[Start]:
        """Starts at u from fits near it: their sites on the line through the last two points."""
        first = near.posteriors[0].problem
        plain = self.flat and first.schedule.is_automatic and first.loss.latents == 1
        plain = plain and first.posterior == "full"
        if not plain or len(self._trail) < 2 or self._trail[1][1] is not near:
            return near.posteriors
        (u_0, previous_fits), (u_1, _) = self._trail
        share = (float(u[0]) - u_1) / (u_1 - u_0)
        if not LEAST_SHARE < abs(share) < MOST_SHARE:
            return near.posteriors
        pairs = zip(previous_fits.posteriors, near.posteriors, strict=True)
        starts = []
        for one, last in pairs:
            assert one.sites is not None
            assert last.sites is not None
            starts.append(WarmStart(beyond(one.sites, last.sites, share), n_sweeps=last.n_sweeps))
        return starts

    def rounding(self, post: Evaluation) -> float:
        return rounding_of(*map(attrgetter("sites"), post.result.posteriors))

    def error(self, point: HyperPoint[Evaluation], tol: float) -> float:
        """As of one fit; without a fixed point values change with sites to first order."""
        tol = max(tol, self.finest)
        if not self.flat:
            return tol + self.rounding(point.fit)
        freedom = float(point.fit.sums[1].sum()) if self.k else 1.0
        return tol**2 * max(freedom, 1.0) + self.rounding(point.fit)

    # ---- derivatives ----

    def slopes(self, point: HyperPoint[Evaluation]) -> Array:
        """Slopes of the log density at a fixed point, else by differences, (m,)."""
        if not self.flat:
            return np.array([self._parabola(point)[0]])
        slopes = np.empty(len(self.unknowns))
        if self.k:
            squares, freedom = point.fit.sums
            slopes[: self.k] = squares - freedom
        if self.parameters.names:
            slopes[self.k :] = self._gains(point)[0]
        return np.asarray(slopes + point.fit.prior[1])

    def metric(self, point: HyperPoint[Evaluation]) -> Array:
        """Minus second derivatives, about: by degrees of freedom, and with the cavities held."""
        if not self.flat:
            return np.array([[self._parabola(point)[1]]])
        k, metric = self.k, -point.fit.prior[2]
        if k:
            metric[:k, :k] += np.diag(2.0 * point.fit.sums[1])
        if self.parameters.names:
            metric[k:, k:] -= self._gains(point)[1]
        return np.asarray(metric)

    def jump(self, point: HyperPoint[Evaluation]) -> Array | None:
        """MacKay's step of the prior sds, and numbers of the loss by what a fit leaves of y."""
        if not self.flat:
            return None
        there = np.array(point.u)
        if self.k:
            squares, freedom = point.fit.sums
            there[: self.k] += 0.5 * np.log(np.maximum(squares, TINY) / freedom)
        posts = point.fit.result.posteriors
        if self.parameters.names and len(posts) == 1:
            (post,) = posts
            data, loss = post.problem.data, self.learnt(point.u).loss
            loss = loss.started_beside(post.marginals_of_rows()[0], data.y, data.weights)
            there[self.k :] = self.parameters._replace(loss=loss).start / self.powers
        return there

    def _gains(self, point: HyperPoint[Evaluation]) -> tuple[Array, Array]:
        """Slopes and second derivatives by numbers of the loss, the cavities of the fits held."""
        free, parameters = self.powers * point.u[self.k :], self.parameters
        try:
            chart = parameters.chart(free)
            slopes, bent = derivatives_by_loss(
                point.fit.result.posteriors, parameters.loss_at, free, parameters.bounds, chart
            )
        except FloatingPointError:  # no cavity, no gain
            slopes = np.full(len(free), math.nan)
            bent = np.diag(slopes)
        return self.powers * slopes, np.outer(self.powers, self.powers) * bent

    def _parabola(self, point: HyperPoint[Evaluation]) -> tuple[float, float]:
        """Slope and minus curvature of a value that is no fixed point's, by fits on both sides."""
        key = point.u.tobytes()
        if key not in self._sides:
            sides = [self.point_at(point.u + by, self.finest, point.fit) for by in (-SIDE, SIDE)]
            low, high = (point.value if one is None else one.value for one in sides)
            low, high = (point.value if math.isinf(one) else one for one in (low, high))
            width = SIDE * max(sum(one is not None for one in sides), 1)
            self._sides[key] = (high - low) / width, (2.0 * point.value - low - high) / SIDE**2
        return self._sides[key]

    # ---- other modes ----

    def other_starts(self, mode: HyperPoint[Evaluation]) -> list[Array]:
        """As of one fit, but where improper cavities of outliers are all that is found."""
        if self.learnt(mode.u).loss.log_concave is False:
            return []
        counts, self.repairs = (self.n_lost, self.n_tried), False
        starts = super().other_starts(mode)
        (self.n_lost, self.n_tried), self.repairs = counts, True
        return starts

    # ---- for an average ----

    def axes(self, mode: HyperPoint[Evaluation], tol: float) -> Array:
        """Principal axes at a mode, as long as their sds, (m, m)."""
        if self.knows_curvature:
            return axes_of(self.metric(mode))
        return principal_axes(self, mode, tol)

    def result_of(self, point: HyperPoint[Evaluation], result: BinaryFits) -> BinaryFits:
        """The fits of a point, which its value took. result: those of the same rows at the mode."""
        del result
        return point.fit.result


def without_offset(loss: Loss, responses: Array) -> Array | None:
    """y without offsets, (n,), where the noise is Gaussian and of one variance. Else None."""
    if not isinstance(loss, Gaussian) or loss.beta != 1.0 or (responses[:, 1] != 1.0).any():
        return None
    return responses[:, 0] - responses[:, 2] if loss.has_offset else responses[:, 0]


class Spectrum(NamedTuple):
    """Rows and y in the basis where the prior, v I, and the data are both diagonal.

    A value for another v or another variance of the noise is O(min(n, d)), where a fit is O(n d^2).
    """

    #: eigenvalues of Z'WZ, Z the columns about their means where there is an intercept
    values: Array
    #: squares of Z'W y along the eigenvectors
    squares: Array
    #: y'Wy, y about its mean
    rest: float
    #: sum of the weights
    mass: float
    #: mean of y, and the prior variance of the latent value there. None without an intercept
    intercept: tuple[float, float] | None

    @classmethod
    @np.errstate(over="ignore", invalid="ignore")  # found below
    def of(
        cls,
        rows: Rows,
        y: Array,
        weights: Array | None,
        intercept_variance: float | None,
        units: Array,
    ) -> Spectrum | None:
        """O(n min(n, d) d). None where a square overflows.

        y: without offsets, (n,). intercept_variance: None without an intercept. units: (d,), prior
        variances of the coefficients over the common one.
        """
        n, d = rows.shape
        share = np.ones(n) if weights is None else weights
        mean, center, intercept = 0.0, np.zeros(d), None
        if intercept_variance is not None:
            mean, center = float(share @ y / share.sum()), mean_of_rows(rows, weights)
            intercept = mean, intercept_variance
        y, root, scale = y - mean, np.sqrt(share), np.sqrt(units)

        def centred(part: slice[int, int, None]) -> Array:
            some = rows[part]
            dense = some.toarray() if is_sparse(some) else some
            return np.asarray((dense - center) * scale * root[part, None])

        parts = row_chunks(rows, unpacked=True)
        if d <= n:
            matrix, product = np.zeros((d, d)), np.zeros(d)
            for part in parts:
                some = centred(part)
                matrix += some.T @ some
                product += some.T @ (root[part] * y[part])
        else:
            product, matrix = root * y, np.empty((n, n))
            for part in parts:
                some = centred(part)
                for other in parts:
                    matrix[part, other] = some @ centred(other).T
        if not np.isfinite(matrix).all():
            return None
        with one_blas_thread(len(matrix)):
            values, vectors = linalg.eigh(matrix)
        values = np.maximum(values, 0.0)
        squares = (vectors.T @ product) ** 2 * (1.0 if d <= n else values)
        rest = float(y @ (share * y))
        if not (math.isfinite(rest) and np.isfinite(squares).all()):
            return None
        return cls(values, squares, rest, float(share.sum()), intercept)

    def evidence(self, variance: float | Array, noise: float) -> tuple[float, Array, Array]:
        """Log evidence, its slopes and second derivatives by logs of the two variances.

        variance: of the coefficients; noise: its variance.
        """
        ratio = variance / noise * self.values
        shrunk = 1.0 / (1.0 + ratio)
        explained = variance / noise**2 * self.squares * shrunk
        rest, both = self.rest / noise, ratio * shrunk
        value = -0.5 * (
            self.mass * math.log(2.0 * math.pi * noise)
            + rest
            + np.log1p(ratio).sum()
            - explained.sum()
        )
        slope = 0.5 * ((explained - ratio) @ shrunk)
        by_noise = 0.5 * (rest - self.mass - explained.sum()) - slope
        # shrunk' = -ratio shrunk^2, explained' = explained shrunk by the prior variance
        second = 0.5 * ((explained * (1.0 - ratio) - ratio) @ shrunk**2)
        mixed = 0.5 * ((ratio - 2.0 * explained) @ shrunk**2)
        of_noise = 0.5 * (explained @ (2.0 - both) - rest) - mixed
        if self.intercept is not None:
            mean, prior = self.intercept
            ratio_0, part = prior * self.mass / noise, noise / self.mass
            whole = prior + part
            value -= 0.5 * (math.log1p(ratio_0) + mean**2 / whole)
            by_noise += 0.5 * (ratio_0 / (1.0 + ratio_0) + mean**2 * part / whole**2)
            of_mean = mean**2 * part * (prior - part) / whole**3
            of_noise += 0.5 * (of_mean - ratio_0 / (1.0 + ratio_0) ** 2)
        bent = np.array([[second, mixed], [mixed, of_noise]])
        return float(value), np.array([slope, by_noise]), bent


class SpectrumTarget(EvidenceTarget):
    """The same of Gaussian noise and one prior sd, whose evidence takes no fit."""

    def __init__(
        self,
        problem: BinaryProblems,
        sought: Sought,
        start: Sequence[Start] | None,
        spectrum: Spectrum,
    ) -> None:
        super().__init__(problem, sought, start)
        self.spectrum, self.knows_curvature = spectrum, True

    def point_at(self, u: Array, tol: float, near: Evaluation | None) -> HyperPoint[Evaluation]:
        """The value at u."""
        if near is not None and self.ended(u):
            return HyperPoint(u, -math.inf, near)
        here = self.evaluation(u, NO_FITS)
        assert here.curve is not None
        return HyperPoint(u, here.curve[0], here)

    def evaluation(self, u: Array, result: BinaryFits) -> Evaluation:
        """With the log density at u, its slopes and second derivatives."""
        plain = super().evaluation(u, result)
        noise = float(np.exp(self.powers * u[self.k :])[0])
        variance = np.exp(2.0 * u[0]) if self.k else self.fixed
        assert variance is not None
        value, slopes, bent = self.spectrum.evidence(variance, noise)
        of_prior, slopes_of_prior, bent_of_prior = plain.prior
        sought = slice(1 - self.k, None)
        curve = (
            value + of_prior,
            2.0 * slopes[sought] + slopes_of_prior,
            4.0 * bent[sought, sought] + bent_of_prior,
        )
        return replace(plain, curve=curve)

    def error(self, point: HyperPoint[Evaluation], tol: float) -> float:
        """Rounding alone."""
        return ROUNDING * abs(point.value)

    def slopes(self, point: HyperPoint[Evaluation]) -> Array:
        assert point.fit.curve is not None
        return point.fit.curve[1]

    def metric(self, point: HyperPoint[Evaluation]) -> Array:
        assert point.fit.curve is not None
        return np.asarray(-point.fit.curve[2])

    def jump(self, point: HyperPoint[Evaluation]) -> None:
        """Newton's steps need none."""

    def other_starts(self, mode: HyperPoint[Evaluation]) -> list[Array]:
        """With less noise: of few rows the density has two modes."""
        return [start - LITTLE * (np.arange(len(start)) >= self.k) for start in self.starts]

    def result_of(self, point: HyperPoint[Evaluation], result: BinaryFits) -> BinaryFits:
        """The fits of a point, from those at the mode, without a sweep."""
        learnt = self.learnt(point.u)
        prior = self.problem.prior(learnt.variance)
        problem = self.problem.with_loss(learnt.loss).problems[0].with_prior(prior)
        return BinaryFits([with_noise(post, problem) for post in result.posteriors], [])


def with_noise(post: Posterior, problem: Problem) -> Posterior:
    """The fit of a problem with Gaussian noise, from one with other variances, without a sweep.

    Its sites are known, and their sum over the rows is that of the other fit but for a factor.

    Parameters
    ----------
    post : FullPosterior
        Of the same rows, with Gaussian noise.
    problem : Problem
        With another prior variance or variance of the noise.
    """
    sites, last = problem.exact_sites(), post.problem
    assert sites is not None
    if isinstance(post, WidePosterior):
        return replace(post, state=GPState(sites, post.state.sweeps, None), problem=problem)
    assert isinstance(problem.loss, Gaussian)
    assert isinstance(last.loss, Gaussian)
    share = last.loss.variance / problem.loss.variance
    old, new = last.base, problem.base
    assert isinstance(post.state, State)
    state = post.state._replace(
        precision=share * (post.state.precision - old.precision) + new.precision,
        shift=share * (post.state.shift - old.shift) + new.shift,
        sites=sites,
        log_scale=new.log_scale + float(sites.log_scale.sum()),
    )
    return replace(post, state=state, problem=problem)


# ---- the search ----

#: steps of the logs of prior sds, and of numbers of the likelihood, from where a search begins to
#: where some fit is to hold
ELSEWHERE = ((0.0, 0.0), (0.0, 1.0), *((step, 0.0) for step in (-1.5, 1.5, -3.0, 3.0, -4.5, 4.5)))
#: shares of the variance of the rows that are left out of a stage, with tolerances of its fits
STAGES = ((0.1, 1e-2), (1e-10, 1e-4))
#: least number of columns, and how many times the directions there are
FROM, WORTH = 150, 1.2
#: the longest step from a mode in few directions to one in all columns, in logs
LAST_STEP = 0.1
#: least number of sweeps that a fit of a search may take, and its default tolerance
SWEEPS, TOL = 100, 1e-6
#: damping of fits that failed, and how many times the sweeps it needs
REPAIRS = ((0.5, 2), (0.2, 5))
#: below the end of the range, of a prior sd of x.theta of 1e3, from where it is flat
EDGE = math.log(10.0)


def highest(target: EvidenceTarget, start: Learnt) -> SearchEnd[Evaluation] | None:
    """Where the search ends from a start, or from another prior sd. None: no fit was valid."""
    middle = target.unknowns_of(start)
    for small, unseen in in_directions(target.problem) if target.is_one_sd else ():
        part = EvidenceTarget(small, target.sought, unplaced(target.start))
        part.first_metric, part.starts = target.first_metric, [middle]
        with suppress(FloatingPointError), one_blas_thread(small.d):
            end = part.found()[0]
            step = np.linalg.solve(end.metric, part.slopes(end.point))
            middle = end.point.u + np.clip(step, -LAST_STEP, LAST_STEP)
            target.start = unplaced(part.starts_at(middle, end.point.fit.result))
            target.first_metric = end.metric, max(unseen**2, target.finest)
        target.n_fits += part.n_fits
    is_sd = np.arange(len(middle)) < target.k
    steps = np.unique([np.where(is_sd, *step) for step in ELSEWHERE], axis=0)
    for step in steps[np.argsort(np.abs(steps).max(axis=1), kind="stable")]:
        target.starts = [middle + step]
        with suppress(FloatingPointError):
            return target.found()[0]
    return None


def unplaced(starts: Sequence[Start] | None) -> Sequence[Start] | None:
    """Starts of fits of the same rows in other columns."""
    if starts is None:
        return None
    return [WarmStart(one.sites, n_sweeps=one.n_sweeps) for one in starts]


def in_directions(problem: BinaryProblems) -> Iterator[tuple[BinaryProblems, float]]:
    """The problems in the directions of each stage, and the share that is left out of it.

    A prior of one variance is the same in all bases of the weights, and so is the evidence.
    Directions in which the rows do not vary keep the prior. Sites are of rows, and so the same in
    all bases: fits in one begin with those of another. What the rows vary in little hardly moves
    the maximum, so that a search goes in few directions first, and takes its last steps in all
    columns. None where there are few columns. O(n d^2 + d^3).
    """
    first, d = problem.problems[0], problem.d
    full = first.posterior == "full" and first.batch_size is None
    if not (full and first.loss.latents == 1 and problem.flat and d >= FROM):
        return
    if is_sparse(first.data.X):
        return
    X, ones = first.data.X, first.shape[1] - d
    center, squares = first.prior.center, np.zeros((d, d))
    if center is None:
        center = np.zeros(d)

    def standardised(part: slice[int, int, None]) -> Array:
        return np.asarray((X[part, :d] - center) / problem.units.scale)

    with one_blas_thread(d):
        for part in row_chunks(X):
            Z = standardised(part)
            squares += Z.T @ Z
        if not np.isfinite(squares).all():
            return
        values, vectors = np.linalg.eigh(squares)
    sums = np.cumsum(values)
    for share, tol in STAGES:
        basis = vectors[:, np.searchsorted(sums, share * sums[-1]) :]
        r = basis.shape[1]
        if WORTH * r > d:
            return
        rows, schedule = np.ones((len(X), r + ones)), problem.schedule
        with one_blas_thread(d):
            for part in row_chunks(X):
                rows[part, :r] = standardised(part) @ basis
        coarse = schedule.with_numbers(tol=max(schedule.tol, tol))
        # until there is a prior variance
        flat = prior_of(np.ones(r + ones), np.zeros(r + ones), True, intercept=ones > 0)
        problems = [
            one.with_prior(flat)._replace(
                data=one.data._replace(X=rows), names=None, schedule=coarse.filled()
            )
            for one in problem.problems
        ]
        yield problem._replace(problems=problems, d=r, units=Units(np.ones(r))), share


def beyond(previous: Sites, last: Sites, share: float) -> Sites:
    """Sites that go on by this share of their last move, and keep their signs."""
    with np.errstate(all="ignore"):
        rise = share * np.log(last.precision / previous.precision)
    rise = np.clip(np.where(np.isfinite(rise), rise, 0.0), -1.0, 1.0)
    shift = last.shift + share * (last.shift - previous.shift)
    return Sites(last.precision * np.exp(rise), shift, last.log_scale)


def valid_fits(
    problem: BinaryProblems,
    variance: float | Array,
    schedule: Schedule,
    start: Sequence[Start] | None,
    repairs: bool = True,
) -> tuple[BinaryFits | None, int]:
    """Valid fits, and how many were made. None: there are none.

    From a start, from none, then, where they are repaired, longer or damped ones.
    """
    tries, count = [(schedule, start)], 0
    if start is not None:
        tries.append((schedule, None))
    while tries:
        other, begin = tries.pop(0)
        result, count = None, count + 1
        with suppress(*FAILURES):
            result = problem.fit(variance, other, begin)
        if result is not None and result.valid:
            return result, count
        if repairs and not tries and schedule.stores != "none":
            tries, repairs = _repaired(schedule, result), False
    return None, count


def _repaired(
    schedule: Schedule, result: BinaryFits | None
) -> list[tuple[Schedule, Sequence[Start] | None]]:
    """Schedules and starts of longer or damped fits. result: the last ones, which are not valid."""
    tries: list[tuple[Schedule, Sequence[Start] | None]] = []
    if result is not None and all(post.history[-1].n_refused == 0 for post in result.posteriors):
        tries.append((schedule, result.posteriors))
    for share, times in REPAIRS:
        damping = share * (schedule.damping or 1.0)
        longer = schedule.with_numbers(damping=damping, sweeps=times * schedule.sweeps)
        tries.append((longer, None))
    return tries


def schedule_of(schedule: Schedule) -> Schedule:
    """The schedule of a search: a fixed number of sweeps (``tol=0``) is not valid, nor are few."""
    if not isinstance(schedule, EP | SharedSites | DEP):
        return schedule
    sweeps = max(schedule.sweeps, SWEEPS)
    return schedule.with_numbers(sweeps=sweeps, tol=schedule.tol or TOL)


def final(
    problem: BinaryProblems, learnt: Learnt, near: BinaryFits | None, repairs: bool
) -> BinaryFits:
    """The fits with what was learnt, by the schedule of the problem, from fits near them.

    repairs: whether an invalid fit is repaired, if it can be.
    """
    variance, schedule = learnt.variance, problem.schedule
    problem = problem.with_loss(learnt.loss)
    if near is not None and problem.gives(near, variance):
        return near
    start = None if near is None or schedule.stores == "none" else near.posteriors
    first = fit_from(partial(problem.fit, variance, schedule), start)
    if not repairs or first.valid:
        return first
    repaired, _ = valid_fits(problem, variance, schedule, None)
    return first if repaired is None else repaired


def warn_of_range(target: EvidenceTarget, variance: float) -> None:
    """Warn of a common prior variance at the upper end of its range, where it is flat."""
    if 0.5 * math.log(variance) > target.bounds[0, 1] - EDGE:
        warn_user(
            f"the log evidence rises up to prior_variance={variance:.3g}, and hardly falls beyond: "
            "a plane separates the classes, or nearly, and does not bound the coefficients; "
            "prior_variance=None has a weak prior, or give a number",
            EvidenceWarning,
        )


def warn_lost(target: EvidenceTarget, kept: str, promised: float = 0.0) -> None:
    """Warn of points that were lost; kept: what prior_variance_ is then.

    promised: nats that a maximum beyond the end may have more.
    """
    said = ""
    if target.n_lost:
        said = (
            f"{target.n_lost} of {target.n_tried} points of the search of the prior variance gave "
            "no fit that converged with all its sites and a log evidence of at most 0; "
        )
    elif promised > SLIGHT_GAIN:
        said = f"the search ended before its maximum, which may have {promised:.2g} nats more; "
    if said:
        warn_user(
            f"{said}prior_variance_ is {kept}; try scheme='exact', a schedule with damping, or a "
            "number as prior_variance",
            ConvergenceWarning,
        )


# ---- averages ----

#: the share of a sd by which an average is to change one, else it is not taken; the curvature above
#: which one over a prior sd alone is not taken, and the nats of a row, of labels
CHANGE, SURE, SLIGHT = 0.05, 4.0, 5e-4
#: tolerance of fits that only tell how much an average would change
ROUGH = 0.03
#: distance of a mode from an end of the range at which it has no average
AT_END = 1e-3
#: moves of a coefficient, in sd where the prior variance is e^2 times as large, above which only
#: the prior bounds it, with so many rows a column: without a plane they are up to 1.4, else 1.9
UNBOUNDED, ENOUGH_ROWS = 1.5, 10
#: share of its prior variance below which the variance of a weight is told by data
TOLD = 1.0 - 1e-9
#: hyper-parameters that are scales of new y
SCALES = ("sd", "scale")


def averaged(
    target: EvidenceTarget,
    end: SearchEnd[Evaluation],
    learnt: Learnt,
    result: BinaryFits,
    always: bool,
) -> tuple[Averages, Learnt] | None:
    """Fits that are averaged over hyper-parameters, and these: means of v. None: the mode stands.

    Parameters
    ----------
    target : EvidenceTarget
        Under proper priors.
    end : SearchEnd
        Of the evidence.
    learnt, fits
        The hyper-parameters there, and the fits.
    always : bool
        Also where the average changes little.
    """
    if not 0 < len(target.unknowns) <= MOST:
        return None
    u = target.unknowns_of(learnt)
    mode = target.point(u, target.evaluation(u, result))
    if not always and _room(target, u) >= AT_END and not _matters(target, mode, end):
        return None
    if len(u) > target.k:  # its priors are new
        found = climbed(target, u)
        if found is None or _room(target, found.point.u) < AT_END:
            return None
        mode = found.point
    points = design(target, [mode], "auto", 0)
    if points is None or len(points.points) == 1:
        return None
    return _mixture(target, points, mode, result)


def _room(target: EvidenceTarget, u: Array) -> float:
    """Distance from the ends of the ranges. Negative beyond them."""
    low, high = target.ends.T
    return float(np.min([u - low, high - u]))


def _matters(
    target: EvidenceTarget, mode: HyperPoint[Evaluation], end: SearchEnd[Evaluation]
) -> bool:
    """Whether the average changes a sd by more than CHANGE, as far as a fit an axis tells."""
    alone = target.k == len(target.unknowns) == 1
    if alone and float(end.metric[0, 0]) > 2.0 * SURE:  # about what it is
        return False
    axes = target.axes(mode, ROUGH)
    if alone and axes[0, 0] ** -2 > SURE:
        return False
    sides = [target.point_at(mode.u - axis, ROUGH, mode.fit) for axis in axes.T]
    points = [one for one in sides if one is not None and one.value > -math.inf]
    if len(points) < len(sides):
        return True
    result: BinaryFits = mode.fit.result
    others = [target.result_of(one, result) for one in points]
    is_scale = np.array([one.name in SCALES for one in target.unknowns])
    moves = np.array([one.u - mode.u for one in points])[:, is_scale]
    of_scales = float(np.max(grown((moves**2).sum(axis=0), 0.0), initial=0.0))
    by_post = zip(result.posteriors, *(one.posteriors for one in others), strict=True)
    variance = target.learnt(mode.u).variance * target.units
    changes = [_change(list(posts), variance) for posts in by_post]
    if max(of_scales, *changes) < CHANGE:
        return False
    labels = result.posteriors[0].problem.loss
    of_labels = alone and (labels.by_margin or labels.latents != 1)
    return not (of_labels and _gap_of_rows(result, others[0]) < SLIGHT)


def _change(posts: list[Posterior], prior: Array) -> float:
    """As :func:`epfast.inference.design.change`, of the coefficients that the data tell.

    posts: at the mode, and beside it. prior: variances at the mode, (d,), which are the posterior's
    of constant columns.
    """
    moments = [(post.mean[..., : len(prior)], post.variance[..., : len(prior)]) for post in posts]
    told = moments[0][1] < TOLD * prior
    first, *others = ((mean[told], variance[told]) for mean, variance in moments)
    return change(*first, others)


def _gap_of_rows(result: BinaryFits, others: BinaryFits) -> float:
    """Nats of a row by which two fits differ, about."""
    most = 0.0
    for post, other in zip(result.posteriors, others.posteriors, strict=True):
        (m, v), (m2, v2) = post.marginals_of_rows(), other.marginals_of_rows()
        gap = (m2 - m) ** 2 + (np.sqrt(v2) - np.sqrt(v)) ** 2
        assert post.sites is not None
        tau = post.sites.precision
        if tau.shape != gap.shape:  # of nested classes
            return math.inf
        counts = len(gap) if post.problem.data.weights is None else post.problem.data.weights.sum()
        most = max(most, float(0.5 * np.sum(tau * gap) / counts))
    return most


def _mixture(
    target: EvidenceTarget,
    points: WeightedPoints[Evaluation],
    mode: HyperPoint[Evaluation],
    result: BinaryFits,
) -> tuple[Averages, Learnt]:
    """The average of the fits of the points."""
    some = [
        one._replace(fit=replace(one.fit, result=target.result_of(one, result)))
        for one in points.points
    ]
    points = points._replace(points=some)
    posteriors = mixtures(target, points, mode, lambda point: point.fit.result.posteriors)
    if len(mode.u) == target.k == 1:
        u = np.array([one.u[0] for one in some])
        order = np.argsort(u)
        _warn_unbounded(points.logs[order], u[order], [some[k].fit.result for k in order])
    average = posteriors[0]
    middle = mode.u.copy()
    middle[: target.k] = 0.5 * average.weights @ np.log(average.points[:, : target.k])
    found = target.learnt(middle)
    return Averages(posteriors, []), found._replace(loss=target.learnt(mode.u).loss)


def _warn_unbounded(values: Array, u: Array, results: list[BinaryFits]) -> None:
    """Warn of a coefficient that grows with the prior sd, from the most probable one on.

    values: of the log density at logs u of prior sds, in their order.
    """
    if results[0].posteriors[0].problem.loss.by_margin is False:
        return
    probable = values > values.max() + math.log(0.05)
    for k in range(int(values.argmax()), len(results)):
        there = int(np.searchsorted(u, u[k] + 1.0))
        if there == len(results) or not probable[there]:
            return
        for post, above in zip(results[k].posteriors, results[there].posteriors, strict=True):
            n, size = post.problem.shape[0], post.mean.size
            moves = (np.abs(above.mean - post.mean) / np.sqrt(post.variance)).ravel()
            moves /= u[there] - u[k]
            if n >= ENOUGH_ROWS * size and moves.max() > UNBOUNDED:
                j = int(moves.argmax())
                low, high = np.exp(2.0 * u[[k, there]])
                warn_user(
                    f"the data hardly bound the coefficient {post.labels[j]!r}: its mean is "
                    f"{post.mean.flat[j]:.3g} at prior_variance={low:.3g} and "
                    f"{above.mean.flat[j]:.3g} at {high:.3g}, which is about "
                    "as probable. A plane, or a column alone, tells the classes of some rows "
                    "without error, and only the prior keeps the coefficient finite: the far end "
                    "of its interval may be too near",
                    DataWarning,
                )
                return

"""The hyper-parameters of linear models: what a fit at some of them is, and the search."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

from epfast import _checks, priors
from epfast._arrays import Array, row_chunks
from epfast.estimators.base import ConvergenceWarning, EvidenceWarning, in_threads, shares
from epfast.estimators.units import Units
from epfast.gaussian import (
    FactorizedPosterior,
    FullPosterior,
    IntegratedPosterior,
    Problem,
    WidePosterior,
    fit_problem,
)
from epfast.gaussian.engines.shards import WarmStart
from epfast.gaussian.held import Chart, gains, with_noise
from epfast.gaussian.hyper import mixtures
from epfast.gaussian.latent_posterior import LatentPosterior
from epfast.gaussian.problem import (
    mean_of_rows,
    prior_of,
)
from epfast.inference import FAILURES, DataWarning, Sites, fit_from, start_may_be_dropped
from epfast.inference.hyper import (
    LEFT,
    MOST,
    ROUNDING,
    TINY,
    HyperPoint,
    SearchEnd,
    Target,
    Unknown,
    WeightedPoints,
    axes_of,
    change,
    climbed,
    design,
    grown,
    principal_axes,
)
from epfast.inference.learning import STEP
from epfast.inference.records import warn_user
from epfast.inference.runtime import one_blas_thread
from epfast.losses import Gaussian, Loss
from epfast.priors import HalfCauchy
from epfast.schedules import DEP, EP, Schedule, SharedSites

# ---- fits with given hyper-parameters ----


Posterior = FullPosterior | FactorizedPosterior | LatentPosterior


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
                freedom = float(tau @ seen) - post.problem.intercept
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
        return self.problems[k].with_precision(self.precision(variance))

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
            problem = self.problems[k]._replace(prior=prior, base=prior, schedule=schedule)
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
        cls, loss: Loss, learn: Any, responses: Array, weights: Array | None, shifts: bool
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
        begun = loss.started(responses, weights)
        begun = loss.with_parameters(**{name: getattr(begun, name) for name in names})
        unseen = _unseen(begun, responses, weights) if "cuts" in names else ()
        new = cls(begun, names, np.empty((0, 2)), unseen)
        bounds = [new._range(name, shifts) for name in names]
        if not bounds:
            return new
        new = new._replace(bounds=np.concatenate(bounds))
        return new._replace(loss=new.at(np.clip(new.start, *new.bounds.T)))

    @property
    def size(self) -> int:
        return len(self.bounds)

    @property
    def places(self) -> Iterator[tuple[str, slice]]:
        """The names, and where the free numbers of each are."""
        first = 0
        for name in self.names:
            last = first + np.size(getattr(self.loss, name))
            yield name, slice(first, last)
            first = last

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

    def at(self, free: Array) -> Loss:
        """The loss with these free numbers."""
        values: dict[str, Any] = {}
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
        after = np.tri(count) - self._middle(count) @ np.tri(count)
        by_gap = after * np.append(0.0, np.diff(cuts))
        is_seen = ~np.isin(classes, self.unseen)
        blocks = np.cumsum(is_seen)[:-1]
        widths = np.append(np.insert(np.diff(cuts), 0, 1.0), 1.0)  # noise of one cut has unit 1
        nearest = np.full(blocks[-1] + 2, np.inf)
        for width, block in zip(widths[is_seen], np.cumsum(is_seen)[is_seen], strict=True):
            nearest[block - 1 : block + 1] = np.minimum(nearest[block - 1 : block + 1], width)

        def of_rows(responses: Array) -> NDArray[np.intp]:
            result = np.full((len(responses), 2), count)
            ends: Any = self.loss.numbers_of(responses)
            for at in ends.T:
                rows = np.flatnonzero((at >= 0) & (at < count))
                result[rows, blocks[at[rows]] % 2] = at[rows]
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

    def slopes(self, loss: Loss, gradient: dict[str, Any]) -> Array:
        """By the free numbers, (k,), from the gradient by the parameters of the loss."""
        parts = []
        for name in self.names:
            value, slope = getattr(loss, name), np.atleast_1d(gradient[name])
            if np.ndim(value) == 0:
                parts.append(slope * value)
            else:  # a gap moves the cuts after it, and all of them by what their middle moves
                after = np.cumsum(slope[::-1])[::-1]
                middle = self._middle(len(value))
                above = np.cumsum(middle[::-1])[::-1]
                by_gap = (after - above * after[0])[1:] * np.diff(value)
                parts.append(np.append(after[0], by_gap))
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

    def flat(self, post: Any) -> list[str]:
        """What the evidence hardly tells from numbers nearer to an end of the range, in words."""
        free, flat = self._replace(loss=post.loss).start, []
        for name, part in self.places:
            value = getattr(post.loss, name)
            sides: list[tuple[int, float, float]] = []
            unseen = np.ndim(value) > 0 and self.unseen  # by at_ends
            for k in () if unseen else range(part.start, part.stop):
                low, high = self.bounds[k]
                if min(free[k] - low, high - free[k]) > NEAR:  # else at_ends names it
                    sides += [(k, low, -AWAY), (k, high, AWAY)]
            moved = [free + step * (np.arange(len(free)) == k) for k, _, step in sides]
            try:
                gains = post.loss_gain(*(self.at(np.clip(u, *self.bounds.T)) for u in moved))
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

    def _free(self, value: Any) -> Array:
        if np.ndim(value) == 0:
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


def weak_prior(name: str, scale: float) -> OfPower | None:
    """A weak prior of a parameter. None: there is none.

    That of scales is half-Cauchy with this median. 1 / size and 1 / shape are the squares of a sd
    of log y, or of the log of its mean. The gamma of df is that of Juarez & Steel (2010).
    """
    known: dict[str, tuple[priors.Scale, float]] = {
        "variance": (priors.HalfCauchy(scale), 0.5),
        "scale": (priors.HalfCauchy(scale), 1.0),
        "size": (priors.HalfCauchy(scale), -0.5),
        "shape": (priors.HalfCauchy(scale), -0.5),
        "df": (priors.Gamma(2.0, 0.1), 1.0),
        "share": (priors.Flat(), 1.0),
        "epsilon": (priors.Flat(), 1.0),
    }
    return OfPower(*known[name]) if name in known else None


def _written(name: str, value: Any) -> str:
    if np.ndim(value) == 0:
        return f"{name}={value:.3g}"
    return f"{name}=({', '.join(f'{part:.3g}' for part in value)})"


def _why(name: str, above: bool) -> str:
    return ENDS.get((name, above), "y says nothing of it")


def _names(loss: Loss, learn: Any) -> tuple[str, ...]:
    if learn is None:
        return loss.learnable[:1]
    if isinstance(learn, str) or not isinstance(learn, Iterable):
        raise TypeError(
            f"learn is {_checks.describe(learn)}; allowed: a tuple of names, as ('scale',)"
        )
    names = tuple(learn)
    for name in names:
        if not isinstance(name, str) or name not in loss.learnable:
            known = ", ".join(map(repr, loss.learnable)) or "(), it has no parameters"
            given = _checks.describe(name)
            raise ValueError(f"learn holds {given}; allowed with {loss!r}: {known}")
    return tuple(dict.fromkeys(names))


def _unseen(loss: Loss, responses: Array, weights: Array | None) -> tuple[int, ...]:
    """The classes between the cuts that no row has."""
    count = len(getattr(loss, "cuts", ())) + 1
    mass = np.bincount(responses[:, 0].astype(np.intp), weights, count)
    return tuple(np.flatnonzero(mass == 0.0).tolist())


def warn_ends(parameters: LossParameters, loss: Loss, post: Any) -> None:
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


class EvidenceTarget(Target):
    """Log of prior and evidence of all problems, by prior sds and numbers of the likelihood."""

    #: BFGS goes on as well by rougher slopes: sweeps of 90 searches are a tenth fewer
    share = 0.1

    def __init__(
        self,
        problem: BinaryProblems,
        sds: list[Unknown],
        ranges: Array,
        parameters: LossParameters,
        *,
        fixed: float | Array | None = None,
        groups: NDArray[np.intp] | None = None,
        start: list[Posterior] | None = None,
    ) -> None:
        """sds: prior standard deviations that are sought, in ranges (k, 2).

        The numbers of the parameters have no priors. fixed: the prior variance where no sd is
        sought. groups: of the columns, 0 to k - 1. None: one prior sd for all. start: of the first
        fit.
        """
        self.problem, self.fixed, self.groups, self.start = problem, fixed, groups, start
        self.k = len(sds)
        self.fine = schedule_of(problem.schedule)
        self.finest = float(self.fine.tol) or TOL
        #: slopes are off by this and degrees of freedom, of which there are no more
        self.enough = self.finest**2 * min(problem.problems[0].shape) * len(problem.problems)
        self.nearly = 100.0 * self.enough
        self.of_axes = min(self.of_axes, 10.0 * self.finest)
        self.of_points = min(self.of_points, 20.0 * self.of_axes)
        if parameters.loss.log_concave is False:  # values are not flat in sites that creep
            self.of_points = self.of_axes
        self.knows_curvature = not problem.flat
        self.little = LITTLE
        #: whether fits that fail are tried again
        self.repairs = True
        #: points without a valid fit, and all points
        self.n_lost = self.n_tried = 0
        #: the last two points, of one unknown
        self._trail: list[tuple[float, Fits]] = []
        self._sides: dict[bytes, tuple[float, float]] = {}
        self._summed: tuple[Any, Any] = (None, None)
        self.ends = np.log(ranges)
        self.seek(sds, parameters, {})

    def seek(self, sds: list[Unknown], parameters: LossParameters, priors: dict[str, Any]) -> None:
        """Have prior sds and these numbers of the likelihood for unknowns, under priors."""
        numbers = [name for name, part in parameters.places for _ in range(part.start, part.stop)]
        own = [Unknown(NAMES.get(name, name), priors.get(name)) for name in numbers]
        self.parameters, self.unknowns = parameters, [*sds, *own]
        #: of the numbers of the likelihood: a sd is no variance
        self.powers = np.array([2.0 if one.name == "sd" else 1.0 for one in own])
        self.numbers = slice(self.k, None)
        ends = parameters.bounds / self.powers[:, None]
        self.bounds = self.ends = np.concatenate([self.ends[: self.k], ends])

    @property
    def is_one_sd(self) -> bool:
        """Whether the prior sd of all columns is the only unknown."""
        return self.k == len(self.unknowns) == 1 and self.groups is None

    # ---- what hyper-parameters mean ----

    def values(self, u: Array) -> Array:
        """Prior variances, and numbers of the likelihood."""
        return np.exp(np.where(np.arange(u.shape[-1]) < self.k, 2.0, 1.0) * u)

    def at(self, learnt: Learnt) -> Array:
        """The unknowns of a prior variance and a loss, (m,)."""
        given = np.broadcast_to(learnt.variance, (self.problem.d,))
        first = [0] if self.groups is None else np.unique(self.groups, return_index=True)[1]
        numbers = self.parameters._replace(loss=learnt.loss).start / self.powers
        return np.append(0.5 * np.log(given[first[: self.k]]), numbers)

    def learnt(self, u: Array) -> Learnt:
        """The prior variance, or that of each column, and the loss."""
        loss: Loss = self.parameters.at(self.powers * u[self.k :])
        if not self.k:
            assert self.fixed is not None
            return Learnt(self.fixed, loss)
        variances = np.exp(2.0 * u[: self.k])
        common = self.groups is None
        return Learnt(float(variances[0]) if common else variances[self.groups], loss)

    # ---- fits ----

    def fitted(self, u: Array, tol: float, near: Any) -> Any:
        """Valid fits at u, from those near it, from none, or damped. None: there are none."""
        self.n_tried += 1
        learnt = self.learnt(u)
        problem = self.problem.with_loss(learnt.loss)
        schedule = self.fine
        if schedule.stores == "none":  # a start would count the rows again
            near = None
        elif near is None:
            near = self.start
        else:
            near = self.starts_at(u, near)
        if isinstance(schedule, EP | SharedSites | DEP):
            given: Any = schedule
            schedule = replace(given, tol=max(tol, self.finest))
        for fits in attempts(problem, learnt.variance, schedule, near, self.repairs):
            self.n_fits += 1
            if fits is not None and problem.certified(fits):
                if len(u) == 1:
                    last = [one for one in self._trail[-1:] if one[0] != u[0]]
                    self._trail = [*last, (float(u[0]), fits)]
                return fits
        self.n_lost += 1
        return None

    def starts_at(self, u: Array, near: Fits) -> list[Any]:
        """Starts at u from fits near it: their sites on the line through the last two points."""
        first = near.posteriors[0].problem
        plain = self.problem.flat and first.schedule.is_automatic and first.loss.latents == 1
        plain = plain and first.covariance == "full" and first.wide is None
        if not plain or len(self._trail) < 2 or self._trail[1][1] is not near:
            return near.posteriors
        (u_0, before), (u_1, _) = self._trail
        share = (float(u[0]) - u_1) / (u_1 - u_0)
        if not LEAST_SHARE < abs(share) < MOST_SHARE:
            return near.posteriors
        pairs = zip(before.posteriors, near.posteriors, strict=True)
        return [WarmStart(beyond(a.sites, b.sites, share), n_sweeps=b.n_sweeps) for a, b in pairs]

    def error(self, point: HyperPoint, tol: float) -> float:
        """As of one fit; without a fixed point values change with sites to first order."""
        sites = [post.sites for post in point.fit.posteriors]
        size = sum(float(np.abs(one.log_scale).sum()) for one in sites if one is not None)
        tol = max(tol, self.finest)
        if not self.problem.flat:
            return tol + ROUNDING * size
        freedom = float(self._sums(point)[1].sum()) if self.k else 1.0
        return tol**2 * max(freedom, 1.0) + ROUNDING * size

    # ---- derivatives ----

    def slopes(self, point: HyperPoint) -> Array:
        """Slopes of the log density at a fixed point, else by differences, (m,)."""
        if not self.problem.flat:
            return np.array([self._parabola(point)[0]])
        slopes = np.empty(len(self.unknowns))
        if self.k:
            squares, freedom = self._sums(point)
            slopes[: self.k] = squares - freedom
        slopes[self.k :] = self._gains(point)[0]
        return np.asarray(slopes + self.log_prior(point.u)[1])

    def metric(self, point: HyperPoint) -> Array:
        """Minus second derivatives, about: by degrees of freedom, and with the cavities held."""
        if not self.problem.flat:
            return np.array([[self._parabola(point)[1]]])
        k, bent = self.k, self.log_prior(point.u)[2]
        metric = -bent
        if k:
            metric[:k, :k] += np.diag(2.0 * self._sums(point)[1])
        metric[k:, k:] -= self._gains(point)[1]
        return metric

    def jump(self, point: HyperPoint) -> Array | None:
        """MacKay's step of the prior sds, and numbers of the loss by what a fit leaves of y."""
        if not self.problem.flat:
            return None
        there = np.array(point.u)
        if self.k:
            squares, freedom = self._sums(point)
            there[: self.k] += 0.5 * np.log(np.maximum(squares, TINY) / freedom)
        posts = point.fit.posteriors
        if self.parameters.names and len(posts) == 1:
            (post,) = posts
            data, loss = post.problem.data, self.learnt(point.u).loss
            loss = loss.started_beside(post.marginals_of_rows()[0], data.y, data.weights)
            there[self.k :] = self.parameters._replace(loss=loss).start / self.powers
        return there

    def _sums(self, point: HyperPoint) -> tuple[Array, Array]:
        """Squares of means over prior variances, and degrees of freedom, of each group, (k,)."""
        if self._summed[0] is not point.fit:  # slopes, metric and jump of a point ask for them
            variances, units = np.exp(2.0 * point.u[: self.k]), self.problem.units.variances
            squares, freedom = point.fit.sums(variances, self.groups, units)
            self._summed = point.fit, (squares, np.maximum(freedom, TINY))
        both: tuple[Array, Array] = self._summed[1]
        return both

    def _gains(self, point: HyperPoint) -> tuple[Array, Array]:
        """Slopes and second derivatives by numbers of the loss, the cavities of the fits held."""
        free, given = self.powers * point.u[self.k :], self.parameters
        if not len(free):
            return free, np.zeros((0, 0))
        try:
            chart = given.chart(free)
            slopes, bent = gains(point.fit.posteriors, given.at, free, given.bounds, chart)
        except FloatingPointError:  # no cavity, no gain
            slopes = np.full(len(free), math.nan)
            bent = np.diag(slopes)
        return self.powers * slopes, np.outer(self.powers, self.powers) * bent

    def _parabola(self, point: HyperPoint) -> tuple[float, float]:
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

    def other_starts(self, mode: HyperPoint) -> list[Array]:
        """As of one fit, but where improper cavities of outliers are all that is found."""
        if self.learnt(mode.u).loss.log_concave is False:
            return []
        counts, self.repairs = (self.n_lost, self.n_tried), False
        starts = super().other_starts(mode)
        (self.n_lost, self.n_tried), self.repairs = counts, True
        return starts


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
        rows: Any,
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

        def centred(part: slice) -> Array:
            some = rows[part]
            dense = some.toarray() if hasattr(some, "indptr") else some
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

    def evidence(self, variance: float, noise: float) -> tuple[float, Array, Array]:
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

    def __init__(self, spectrum: Spectrum, *given: Any, **more: Any) -> None:
        super().__init__(*given, **more)
        self.spectrum, self.knows_curvature = spectrum, True

    def fitted(self, u: Array, tol: float, near: Any) -> Any:
        """No fit."""
        return None

    def point_at(self, u: Array, tol: float, near: Any) -> HyperPoint:
        """The value at u."""
        return HyperPoint(u, -math.inf if self.ended(u) else self._exact(u)[0], None)

    def error(self, point: HyperPoint, tol: float) -> float:
        """Rounding alone."""
        return ROUNDING * abs(point.value)

    def slopes(self, point: HyperPoint) -> Array:
        return self._exact(point.u)[1]

    def metric(self, point: HyperPoint) -> Array:
        return -self._exact(point.u)[2]

    def jump(self, point: HyperPoint) -> None:
        """Newton's steps need none."""

    def other_starts(self, mode: HyperPoint) -> list[Array]:
        """With less noise: of few rows the density has two modes."""
        return [start - LITTLE * (np.arange(len(start)) >= self.k) for start in self.starts]

    def _exact(self, u: Array) -> tuple[float, Array, Array]:
        """The log density, its slopes and second derivatives."""
        learnt: Any = self.learnt(u)
        value, slopes, bent = self.spectrum.evidence(learnt.variance, learnt.loss.variance)
        sought = slice(1 - self.k, None)
        of_prior, slopes_of_prior, bent_of_prior = self.log_prior(u)
        return (
            value + of_prior,
            2.0 * slopes[sought] + slopes_of_prior,
            4.0 * bent[sought, sought] + bent_of_prior,
        )

    def fits_at(self, u: Array, fits: Fits) -> Fits:
        """The fits at u, from those at another point."""
        learnt = self.learnt(u)
        at = self.problem.with_loss(learnt.loss).at(0, learnt.variance)
        return Fits([with_noise(post, at) for post in fits.posteriors], [])


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


def highest(target: EvidenceTarget, start: Learnt) -> SearchEnd | None:
    """Where the search ends from a start, or from another prior sd. None: no fit was valid."""
    middle = target.at(start)
    for small, unseen in in_directions(target.problem) if target.is_one_sd else ():
        part = EvidenceTarget(small, target.unknowns, np.exp(target.ends), target.parameters)
        part.start, part.known, part.starts = unplaced(target.start), target.known, [middle]
        with suppress(FloatingPointError):
            end = part.found()[0]
            step = np.linalg.solve(end.metric, part.slopes(end.point))
            middle = end.point.u + np.clip(step, -LAST_STEP, LAST_STEP)
            target.start = unplaced(part.starts_at(middle, end.point.fit))
            target.known = end.metric, max(unseen**2, target.finest)
        target.n_fits += part.n_fits
    is_sd = np.arange(len(middle)) < target.k
    steps = np.unique([np.where(is_sd, *step) for step in ELSEWHERE], axis=0)
    for step in sorted(steps.tolist(), key=lambda step: np.abs(step).max()):
        target.starts = [middle + step]
        with suppress(FloatingPointError):
            return target.found()[0]
    return None


def unplaced(starts: list[Any] | None) -> list[Any] | None:
    """Starts of fits of the same rows in other columns."""
    return starts and [WarmStart(one.sites, n_sweeps=one.n_sweeps) for one in starts]


def in_directions(problem: BinaryProblems) -> Iterator[tuple[BinaryProblems, float]]:
    """The problems in the directions of each stage, and the share that is left out of it.

    None where there are few columns. O(n d^2 + d^3).
    """
    first, d = problem.problems[0], problem.d
    full = first.covariance == "full" and first.wide is None and first.batch_size is None
    if not (full and first.loss.latents == 1 and problem.flat and d >= FROM):
        return
    if not isinstance(first.data.X, np.ndarray):
        return
    X, ones = first.data.X, first.shape[1] - d
    center, squares = np.zeros(d) if first.center is None else first.center, np.zeros((d, d))

    def standardised(part: slice) -> Array:
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
        coarse = replace(schedule, tol=max(schedule.tol, tol))
        # until there is a prior variance
        flat = prior_of(np.ones(r + ones), np.zeros(r + ones), True)
        new = {"prior": flat, "base": flat, "center": None, "names": None, "schedule": coarse}
        problems = [one._replace(data=one.data._replace(X=rows), **new) for one in problem.problems]
        yield problem._replace(problems=problems, d=r, units=Units(np.ones(r))), share


def beyond(before: Sites, now: Sites, share: float) -> Sites:
    """Sites that go on by this share of their last move, and keep their signs."""
    with np.errstate(all="ignore"):
        rise = share * np.log(now.precision / before.precision)
    rise = np.clip(np.where(np.isfinite(rise), rise, 0.0), -1.0, 1.0)
    shift = now.shift + share * (now.shift - before.shift)
    return Sites(now.precision * np.exp(rise), shift, now.log_scale)


def attempts(
    problem: BinaryProblems,
    variance: float | Array,
    schedule: Any,
    start: list[Posterior] | None,
    repairs: bool = True,
) -> Iterator[Fits | None]:
    """Fits from a start, from none, then, where they are repaired, longer or damped ones."""

    def attempt(schedule: Any, start: list[Posterior] | None) -> Fits | None:
        try:
            return problem.fit(variance, schedule, start)
        except FAILURES:
            return None

    first: Fits | None = None
    for begin in (start, None) if start is not None else (None,):
        first = attempt(schedule, begin)
        yield first
    if not repairs or schedule.stores == "none":
        return
    if first is not None and all(post.history[-1].n_refused == 0 for post in first.posteriors):
        yield attempt(schedule, first.posteriors)
    for damping, times in REPAIRS:
        damped = {"damping": damping * schedule.damping, "sweeps": times * schedule.sweeps}
        yield attempt(replace(schedule, **damped), None)


def schedule_of(schedule: Any) -> Any:
    """The schedule of a search: a fixed number of sweeps (``tol=0``) is not valid, nor are few."""
    if not isinstance(schedule, EP | SharedSites | DEP):
        return schedule
    given: Any = schedule
    return replace(given, sweeps=max(schedule.sweeps, SWEEPS), tol=schedule.tol or TOL)


def final(problem: BinaryProblems, learnt: Learnt, near: Fits | None, repairs: bool) -> Fits:
    """The fits with what was learnt, by the schedule of the problem, from fits near them.

    repairs: whether an invalid fit is repaired, if it can be.
    """
    variance, schedule = learnt.variance, problem.schedule
    problem = problem.with_loss(learnt.loss)
    if near is not None and problem.has_made(near, variance):
        return near
    start = None if near is None or schedule.stores == "none" else near.posteriors
    first = fit_from(partial(problem.fit, variance, schedule), start)
    if not repairs or problem.certified(first):
        return first
    tried = attempts(problem, variance, schedule, None)
    return next((one for one in tried if one is not None and problem.certified(one)), first)


def warn_of_range(target: EvidenceTarget, variance: float) -> None:
    """Warn of a common prior variance at the upper end of its range, where it is flat."""
    if 0.5 * math.log(variance) > target.bounds[0, 1] - EDGE:
        warn_user(
            f"the log evidence rises up to prior_variance={variance:.3g}, and hardly falls beyond: "
            "a plane separates the classes, or nearly, and does not bound the coefficients; "
            "prior_variance=None has a weak prior, or give a number",
            EvidenceWarning,
        )


def warn_lost(target: EvidenceTarget, kept: str, left: float = 0.0) -> None:
    """Warn of points that were lost; kept: what prior_variance_ is then.

    left: nats that a maximum beyond the end may have more.
    """
    said = ""
    if target.n_lost:
        said = (
            f"{target.n_lost} of {target.n_tried} points of the search of the prior variance gave "
            "no fit that converged with all its sites and a log evidence of at most 0; "
        )
    elif left > LEFT:
        said = f"the search ended before its maximum, which may have {left:.2g} nats more; "
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


def under_weak_priors(target: EvidenceTarget, loss: Any, scale: float) -> None:
    """Give numbers of the likelihood weak priors. Those that have none stay as a loss has them.

    scale: median of the half-Cauchy prior of the noise.
    """
    given = target.parameters
    weak: dict[str, Any] = {name: weak_prior(name, scale) for name in given.names}
    if "variance" in weak:  # the unknown is its root
        weak["variance"] = HalfCauchy(scale)
    names = tuple(name for name in given.names if weak[name] is not None)
    target.seek(target.unknowns[: target.k], given.only(names, loss), weak)


def averaged(
    target: EvidenceTarget, end: SearchEnd, learnt: Learnt, fits: Fits, always: bool
) -> tuple[Fits, Learnt] | None:
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
    u = target.at(learnt)
    mode = target.point(u, fits)
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
    return _mixture(target, points, mode, fits)


def _room(target: EvidenceTarget, u: Array) -> float:
    """Distance from the ends of the ranges. Negative beyond them."""
    low, high = target.ends.T
    return float(np.min([u - low, high - u]))


def _matters(target: EvidenceTarget, mode: HyperPoint, end: SearchEnd) -> bool:
    """Whether the average changes a sd by more than CHANGE, as far as a fit an axis tells."""
    alone = target.k == len(target.unknowns) == 1
    if alone and float(end.metric[0, 0]) > 2.0 * SURE:  # about what it is
        return False

    def fitted(u: Array, near: Any) -> HyperPoint | None:
        return target.point_at(u, ROUGH, near)

    if target.knows_curvature:
        axes = axes_of(target.metric(mode))
    else:
        axes = principal_axes(mode, fitted, target.slopes)
    if alone and axes[0, 0] ** -2 > SURE:
        return False
    beside = [fitted(mode.u - axis, mode.fit) for axis in axes.T]
    known = [one for one in beside if one is not None and one.value > -math.inf]
    if len(known) < len(beside):
        return True
    others = [_fits_at(target, one, mode.fit) for one in known]
    is_scale = np.array([one.name in SCALES for one in target.unknowns])
    moves = np.array([one.u - mode.u for one in known])[:, is_scale]
    of_scales = float(np.max(grown((moves**2).sum(axis=0), 0.0), initial=0.0))
    by_post = zip(mode.fit.posteriors, *(one.posteriors for one in others), strict=True)
    variance = target.learnt(mode.u).variance * target.problem.units.variances
    changes = [_change(list(posts), variance) for posts in by_post]
    if max(of_scales, *changes) < CHANGE:
        return False
    labels = mode.fit.posteriors[0].problem.loss
    of_labels = alone and (labels.by_margin or labels.latents != 1)
    return not (of_labels and _gap_of_rows(mode.fit, others[0]) < SLIGHT)


def _change(posts: list[Any], prior: Array) -> float:
    """As :func:`epfast.inference.hyper.change`, of the coefficients that the data tell.

    posts: at the mode, and beside it. prior: variances at the mode, (d,), which are the posterior's
    of constant columns.
    """
    moments = [(post.mean[..., : len(prior)], post.variance[..., : len(prior)]) for post in posts]
    told = moments[0][1] < TOLD * prior
    first, *others = ((mean[told], variance[told]) for mean, variance in moments)
    return change(*first, others)


def _gap_of_rows(fits: Fits, others: Fits) -> float:
    """Nats of a row by which two fits differ, about."""
    most = 0.0
    for post, other in zip(fits.posteriors, others.posteriors, strict=True):
        (m, v), (m2, v2) = post.marginals_of_rows(), other.marginals_of_rows()
        gap = (m2 - m) ** 2 + (np.sqrt(v2) - np.sqrt(v)) ** 2
        tau = post.sites.precision
        if tau.shape != gap.shape:  # of nested classes
            return math.inf
        counts = len(gap) if post.problem.data.weights is None else post.problem.data.weights.sum()
        most = max(most, float(0.5 * np.sum(tau * gap) / counts))
    return most


def _fits_at(target: EvidenceTarget, point: HyperPoint, fits: Fits) -> Fits:
    """The fits of a point, or, where its value took none, those that others make."""
    if isinstance(target, SpectrumTarget):
        return target.fits_at(point.u, fits)
    known: Fits = point.fit
    return known


def _mixture(
    target: EvidenceTarget, points: WeightedPoints, mode: HyperPoint, fits: Fits
) -> tuple[Fits, Learnt]:
    """The average of the fits of the points."""
    some = [one._replace(fit=_fits_at(target, one, fits)) for one in points.points]
    points = points._replace(points=some)
    posteriors = mixtures(target, points, mode, lambda point: point.fit.posteriors)
    if len(mode.u) == target.k == 1:
        u = np.array([one.u[0] for one in some])
        order = np.argsort(u)
        _warn_unbounded(points.logs[order], u[order], [some[k].fit for k in order])
    average = posteriors[0]
    middle = mode.u.copy()
    middle[: target.k] = 0.5 * average.weights @ np.log(average.points[:, : target.k])
    found = target.learnt(middle)
    return Fits(posteriors, []), found._replace(loss=target.learnt(mode.u).loss)


def _warn_unbounded(values: Array, u: Array, fits: list[Fits]) -> None:
    """Warn of a coefficient that grows with the prior sd, from the most probable one on.

    values: of the log density at logs u of prior sds, in their order.
    """
    if fits[0].posteriors[0].problem.loss.by_margin is False:
        return
    probable = values > values.max() + math.log(0.05)
    for k in range(int(values.argmax()), len(fits)):
        there = int(np.searchsorted(u, u[k] + 1.0))
        if there == len(fits) or not probable[there]:
            return
        for post, above in zip(fits[k].posteriors, fits[there].posteriors, strict=True):
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

"""Fits with a prior that is a site per weight: their problem, what they return, and its check."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace
from typing import ClassVar, NoReturn

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, special

from epfast import _checks, families
from epfast._arrays import Array, Given, Matrix, Which, is_sparse
from epfast._core.row_sweeps import SiteFits
from epfast.gaussian.checking import LinearProposal
from epfast.gaussian.engine import proper
from epfast.gaussian.forms.weights import ByRows, DualState, ShrunkState, WeightEngine
from epfast.gaussian.linear_posterior import FullPosterior
from epfast.gaussian.online import Warn
from epfast.gaussian.prior import PerWeightPrior, WeightPrior
from epfast.gaussian.problem import Problem, sum_of_sites
from epfast.gaussian.rows import Data
from epfast.gaussian.state import MOST_BYTES, in_memory
from epfast.inference import Fit, Sites, interrupted, run_from, start_may_be_dropped, warn_of
from epfast.inference.certificates import Check
from epfast.inference.hyper import HyperPoint, Target, Unknown, rounding_of
from epfast.inference.importance import Proposal, smoothed
from epfast.inference.learning import derivatives_by_loss
from epfast.inference.records import check_proper
from epfast.inference.runtime import cached_property
from epfast.losses import Loss, Prior, SpikeAndSlab
from epfast.schedules import EP, FilledSchedule, Schedule

#: damping of the sites of rows in automatic order, with fewer rows than weights: these and the
#: sites of the weights answer each other
TOGETHER = 0.5


def with_prior_sites(problem: Problem, prior: Prior, intercept: float | None) -> Problem:
    """The problem with a prior per weight. Raises where they do not go together.

    intercept: prior variance of the last weight, which has no site.
    """
    if not isinstance(prior, Prior):
        raise TypeError(
            f"prior is {_checks.describe(prior)}; allowed: an object of epfast.losses, "
            "SpikeAndSlab, LaplacePrior, StudentTPrior or Horseshoe"
        )
    schedule, X = problem.schedule, problem.data.X
    if schedule.power != 1.0:
        raise ValueError(
            f"power is {schedule.power:g} beside prior={prior!r}; allowed: 1, since its moments "
            "are those of t itself"
        )
    if problem.loss.latents != 1:
        raise ValueError(f"loss is {problem.loss!r} beside a prior=; allowed: one latent per row")
    if problem.posterior == "wide" and 8 * X.shape[0] * X.shape[1] > MOST_BYTES:
        raise MemoryError(
            f"prior={prior!r} takes the rows as a dense matrix of {X.shape[0]} x {X.shape[1]} "
            f"numbers; allowed: up to {MOST_BYTES >> 30} GB"
        )
    kind: type = type(schedule)
    wide = problem.posterior == "wide" and kind is EP and schedule.order == "auto"
    if wide and _pull_at_each_other(problem, prior):
        schedule = dataclasses.replace(schedule, damping=min(TOGETHER, schedule.damping))
        problem = problem._replace(schedule=schedule)
    visits = np.flatnonzero(_has_entries(X))
    if intercept is not None:
        visits = visits[visits < X.shape[1] - 1]
    return with_prior(problem, prior, visits, intercept)


def _pull_at_each_other(problem: Problem, prior: Prior) -> bool:
    """Whether sites of rows and of weights oscillate in sweeps over both in turn.

    Labels by themselves do not say how large few weights are: that is for the prior, whose sites
    follow those of the rows by orders of magnitude where it has heavy tails.
    """
    return problem.exact_sites() is None and not (
        problem.loss.log_concave is False or prior.log_concave
    )


def with_prior(
    problem: Problem, prior: Prior, visits: NDArray[np.intp], intercept: float | None
) -> Problem:
    """The same rows with a prior whose sites begin at a normal one. It is not checked."""
    d = len(problem.prior.shift)
    precision = np.full(d, 1.0 / prior.spread)
    if intercept is not None:
        precision[-1] = 1.0 / intercept
    sites = Sites(precision, np.zeros(d), 0.5 * np.log(precision / (2.0 * math.pi)))
    whole = precision if problem.posterior == "wide" else np.diag(precision)
    normal = WeightPrior(whole, np.zeros(d), intercept=intercept is not None)
    own = PerWeightPrior(*normal.parts, prior=prior, start=sites, visits=visits)
    return problem.with_prior(own)


def _has_entries(X: Matrix) -> NDArray[np.bool_]:
    """(d,), whether a column is more than zeros: else its weight keeps its prior, exactly."""
    if is_sparse(X):
        return np.bincount(X.indices[X.data != 0.0], minlength=X.shape[1]) > 0
    return np.asarray((X != 0).any(axis=0))


# ---- the exact posterior under a spike and a slab, against its approximation ----


LOG_2PI = math.log(2.0 * math.pi)
#: inclusion probabilities that are drawn with are no nearer to 0 or 1, so that no model is out of
#: reach
LEAST_INCLUSION = 1e-3
#: inclusion probability from which a weight is in enough draws for its moments
SELDOM = 0.05
#: an inclusion probability is off by so much, and by so many standard errors, see
#: :meth:`ShrunkPosterior.check`. Then: draws at a time
OFF, ERRORS, BLOCK = 0.06, 2.0, 256


class Models(Proposal):
    """Models drawn by the inclusion probabilities, and their weights by the sites of the rows.

    The weights of a model are normal given sites of the rows: so is the prior of those that are in.
    Reported are the weights that are in often enough to be met.
    """

    has_moments = False  # there are too many models to sum over

    def __init__(self, post: ShrunkPosterior) -> None:
        share, problem, rows = post.inclusion_probability, post.problem, post.state.sites
        self.judged = np.flatnonzero(share >= min(SELDOM, share.max()))
        self.unit = post.mean[self.judged], np.sqrt(post.variance[self.judged])
        self.problem, self.prior_sites, self.rows = problem, post.prior_per_weight, rows
        assert isinstance(self.prior_sites.prior, SpikeAndSlab)
        self.prior = self.prior_sites.prior
        self.share = np.clip(share, LEAST_INCLUSION, 1.0 - LEAST_INCLUSION)
        self.visited = np.zeros(len(share), dtype=bool)
        self.visited[self.prior_sites.visits] = True
        self.size = self.width = 2 * len(share)  # an indicator and a weight each
        if problem.posterior != "wide":
            gram, self.shift = sum_of_sites(problem, rows)
            self.gram: Array | None = np.asarray(gram)
        else:
            X = problem.data.X
            X = X.toarray() if is_sparse(X) else np.asarray(X, dtype=np.float64)
            self.gram, self.columns, self.shift = None, X, X.T @ rows.shift

    def _of_model(self, one: Array) -> tuple[NDArray[np.intp], Array, Array]:
        """Weights that are in, their mean, and the Cholesky factor of their precision."""
        d = len(self.share)
        which = np.flatnonzero(~self.visited | (special.ndtr(one[:d]) < self.share))
        start = self.prior_sites.start.precision[which]
        precision = np.where(self.visited[which], 1.0 / self.prior.variance, start)
        if self.gram is not None:
            matrix = self.gram[np.ix_(which, which)]
        else:
            columns = self.columns[:, which]
            matrix = columns.T @ (self.rows.precision[:, None] * columns)
        matrix[np.diag_indices(len(which))] += precision
        factor = np.asarray(linalg.cholesky(matrix, lower=True))
        mean = np.asarray(linalg.cho_solve((factor, True), self.shift[which]))
        return which, mean, factor

    def draw(self, z: Array) -> Array:
        d = len(self.share)
        theta = np.zeros((len(z), d))
        for row, one in zip(theta, z, strict=True):
            which, mean, factor = self._of_model(one)
            away = linalg.solve_triangular(factor, one[d + which], lower=True, trans="T")
            row[which] = mean + away
        return theta

    def log_ratio(self, z: Array, theta: Array) -> Array:
        d, prior, visited = len(self.share), self.prior, self.visited
        within = special.ndtr(z[:, :d]) < self.share
        with np.errstate(divide="ignore"):
            odds = within * np.log(prior.share) + np.where(within, 0.0, np.log1p(-prior.share))
        odds -= np.where(within, np.log(self.share), np.log1p(-self.share))
        result = odds[:, visited].sum(axis=1) + self.prior_sites.of_normal(theta)
        slab = -0.5 * (LOG_2PI + np.log(prior.variance) + theta**2 / prior.variance)
        result += np.where(within & visited, slab, 0.0).sum(axis=1)
        for k, one in enumerate(z):
            which, _, factor = self._of_model(one)
            square = one[d + which] @ one[d + which]
            result[k] += 0.5 * (len(which) * LOG_2PI + square) - np.log(np.diag(factor)).sum()
        return np.asarray(result - self.problem.losses(theta).sum(axis=0))

    def reported(self, theta: Array) -> Array:
        return theta[:, self.judged]

    def moments(self) -> tuple[Array, Array]:
        return self.unit


def worst_inclusion(models: Models, share: Array, draws: int, seed: int) -> str:
    """Which inclusion probability is off beyond doubt by weighted draws, in words, or "".

    share: those of the approximation, (d,).
    """
    rng = np.random.default_rng([seed, 1])
    within, log_weight = np.empty((draws, len(share)), dtype=bool), np.empty(draws)
    for first in range(0, draws, BLOCK):
        part = slice(first, min(first + BLOCK, draws))
        z = rng.standard_normal((part.stop - first, models.size))
        theta = models.draw(z)
        within[part], log_weight[part] = theta != 0.0, models.log_ratio(z, theta)
    log_weight = smoothed(log_weight)[0]
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    exact = weight @ within
    error = np.sqrt(weight**2 @ (within - exact) ** 2)
    off = np.where(models.visited, np.abs(exact - share), 0.0)
    j = int(np.argmax(np.where(off > ERRORS * error, off, 0.0)))
    if not off[j] > max(OFF, ERRORS * error[j]):
        return ""
    exact_j, share_j = f"{exact[j]:.2g}", f"{share[j]:.2g}"
    return f"the inclusion probability of weight {j} is {share_j}, and {exact_j} by the draws"


# ---- what a fit with a prior that is a site per weight returns ----


class ShrunkPosterior(FullPosterior):
    """A full posterior whose prior is a site per weight: spike and slab, Laplace, and others.

    ``prior_precision`` is that of the normal prior that the sites begin with. With fewer rows than
    weights it keeps its rows, in pickles and files too; ``precision`` and ``covariance``, (d, d),
    are then made where they are asked for, up to 2 GB.
    """

    state: ShrunkState
    problem: Problem

    kind: ClassVar[str] = "shrunk"

    # -- the prior --

    @property
    def prior_per_weight(self) -> PerWeightPrior:
        """The prior, the sites that it begins with, and which weights have some."""
        assert isinstance(self.problem.prior, PerWeightPrior)
        return self.problem.prior

    @property
    def prior(self) -> Prior:
        """The prior of each weight but the intercept."""
        return self.prior_per_weight.prior

    @property
    def prior_sites(self) -> Sites:
        """Sites of the prior, (d,) each. That of an intercept is its normal prior."""
        return self.state.prior_sites

    @cached_property
    def prior_cavities(self) -> tuple[Array, Array]:
        """Mean and variance of each weight without its prior, (d,). Without data they are inf."""
        return self.prior_sites.cavities(self.mean, self.variance)

    @property
    def inclusion_probability(self) -> Array:
        """(d,), posterior probability that each weight is not 0, of a ``SpikeAndSlab``.

        At the cavities. It is 1 for an intercept.

        Raises
        ------
        ValueError
            If the prior is another one.
        """
        prior = self.prior
        if not isinstance(prior, SpikeAndSlab):
            raise ValueError(
                f"prior is {prior!r}, under which no weight is 0; allowed: a SpikeAndSlab"
            )
        visits = self.prior_per_weight.visits
        result = np.full(len(self.mean), prior.share)
        if self.problem.prior.intercept:
            result[-1] = 1.0
        mean, variance = self.prior_cavities
        result[visits] = prior.inclusion_probability(mean[visits], variance[visits])
        return result

    def prior_gradient(self) -> dict[str, float]:
        """Derivatives of the log evidence by parameters of the prior.

        At a fixed point of EP the sites do not contribute: it is the sum over the weights of
        d log Z_j with the cavities held fixed.

        Returns
        -------
        dict
            A number for each name of ``prior.learnable``.

        Raises
        ------
        FloatingPointError
            If a cavity is improper.
        """
        visits = self.prior_per_weight.visits
        mean, variance = (part[visits] for part in self.prior_cavities)
        check_proper(variance)
        return self.prior.slopes(mean, variance)

    def learned(self, names: tuple[str, ...] | list[str] | None = None) -> ShrunkPosterior:
        """The fit whose prior has the largest log evidence.

        The search is that of :func:`epfast.fit_hyper`, with flat priors. Fits begin with the sites
        of the one before, and those that do not converge are left out. The log evidence of sparse
        priors has several maxima: this is the one uphill of here. A share and the variance beside
        it hardly differ where few weights are in.

        Parameters
        ----------
        names : sequence of str, optional
            Of ``prior.learnable``, and ``"loss."`` before one of ``loss.learnable``, as
            ``"loss.variance"``. None: all of the prior.

        Returns
        -------
        ShrunkPosterior
        """
        whole, prior, loss = self._with_rows(), self.prior, self.known_loss()
        allowed = (*prior.learnable, *(f"loss.{name}" for name in loss.learnable))
        chosen = tuple(prior.learnable if names is None else names)
        if not chosen:
            raise ValueError(f"names is empty; allowed: some of {', '.join(allowed)}")
        for name in chosen:
            _checks.choice("names", name, allowed)
        if not whole.converged:
            raise ValueError(
                "the posterior has not converged, so that its log evidence says nothing; allowed: "
                "one that has, as of another share or scale, or of more sweeps"
            )
        return PriorTarget(whole, chosen).highest()

    def with_numbers(
        self,
        values: dict[str, float],
        start: ShrunkPosterior | None = None,
        warn: Warn = warn_of,
        tol: float | None = None,
    ) -> ShrunkPosterior:
        """The fit of the same rows with other parameters, named as in :meth:`learned`.

        The fit begins with the sites of ``start``. ``warn`` is called with the fit. ``tol`` is that
        of the schedule, if none is given.
        """
        whole = self._with_rows()
        loss = {name[5:]: x for name, x in values.items() if name.startswith("loss.")}
        prior = {name: x for name, x in values.items() if not name.startswith("loss.")}
        problem = whole.problem
        if tol is not None:
            problem = problem._replace(schedule=replace(problem.schedule, tol=tol))
        if loss:
            problem = problem._replace(loss=problem.loss.with_parameters(**loss))
        old = whole.prior_per_weight
        intercept = 1.0 / old.start.precision[-1] if problem.prior.intercept else None
        changed = whole.prior.with_parameters(**prior)
        problem = with_prior(problem, changed, old.visits, intercept)

        def result(fit: Fit[ShrunkState]) -> ShrunkPosterior:
            return ShrunkPosterior(fit.state, problem, fit.converged, fit.history)

        fit = None
        try:
            engine = WeightEngine(problem)
            guess = start_may_be_dropped(start, problem)
            fit = run_from(engine, problem.schedule, start, guess=guess)
            warn(fit, engine, problem.schedule)
            return result(fit)
        except KeyboardInterrupt as pressed:
            raise interrupted(pressed, fit, result, start or self, lambda: self) from None

    # -- moments --

    @property
    def mean(self) -> Array:
        return self.state.mean

    @property
    def variance(self) -> Array:
        return self.state.variance

    @cached_property
    def precision(self) -> Array:
        """(d, d), posterior precision of the weights. O(n d^2) with fewer rows, up to 2 GB."""
        if self.state.precision is not None:
            return self.state.precision
        in_memory("precision", self.shift.size, "ask for variance or predict_latent(X)")
        rows = sum_of_sites(self.problem, self.state.sites)[0]
        return np.asarray(rows + np.diag(self.prior_sites.precision))

    @property
    def prior_precision(self) -> Array:
        precision = self.problem.prior.precision
        return precision if precision.ndim == 2 else np.diag(precision)

    def _evidence(self) -> float:
        return self.state.log_evidence

    @cached_property
    def _by_rows(self) -> DualState:
        """Matrices of the n x n form. O(n^2 d), once."""
        sites = families.joined(self.state.sites, self.prior_sites)
        return proper(ByRows(self.problem).rebuild(sites, 0))

    @property
    def _unpacks(self) -> bool:
        return self.state.precision is None

    def _of_block(self, block: Matrix) -> tuple[Array, Array]:
        if self.state.precision is not None:
            return super()._of_block(block)
        assert not is_sparse(block)
        scaled = block / self.prior_sites.precision
        cross = np.asarray((self.problem.data.X @ scaled.T).T)
        spread = np.einsum("ij,ij->i", scaled, block)
        explained = np.einsum("ij,ij->i", cross @ self._by_rows.R, cross)
        return block @ self.mean, np.asarray(spread - explained)

    # -- rows --

    @cached_property
    def residual(self) -> float:
        """As :attr:`epfast.FullPosterior.residual`, over the sites of rows and of weights.

        The sites of a Gaussian likelihood are exact.
        """
        if self.scheme is None:
            return float("nan")
        visits, residual = self.prior_per_weight.visits, 0.0
        if self._with_rows().problem.exact_sites() is None:
            residual = super().residual
        if not len(visits):
            return residual
        core = SiteFits(self.prior.tilted(), 1.0, 0.0)
        sites = families.select(self.prior_sites, visits)
        mean, variance = (np.ascontiguousarray(x[visits]) for x in (self.mean, self.variance))
        core.fit(mean, variance, np.ones((len(visits), 1)), *families.copied(sites))
        return float("inf") if core.n_refused else max(residual, core.residual)

    def _proposal(self) -> Proposal:
        if not isinstance(self.prior, SpikeAndSlab):
            return LinearProposal(self)
        return Models(self)

    def check(self, draws: int = 1000, rng: np.random.Generator | int | None = 0) -> Check:
        """As :meth:`epfast.FullPosterior.check`. With a ``SpikeAndSlab`` models are drawn.

        Indicators are drawn by the inclusion probabilities, the weights that are in from their
        normal distribution given the sites of the rows: O(d^3) per draw at most, of the weights
        that are in. Weights whose inclusion probability is below 0.05 are in too few draws to be
        judged: their entries in the arrays are EP's, with errors NaN. "good" asks too that no
        inclusion probability is off by more than 0.06 beyond two standard errors: of 60 designs of
        60 x 120, all 9 that were off by more than 0.05 were flagged with 2,000 draws, and
        10 of the others. Without this it was 8 and 9.
        """
        seed = _checks.seed("rng", rng)
        check, prior = super().check(draws, seed), self.prior
        if not isinstance(prior, SpikeAndSlab):
            return check
        models = Models(self)
        if check.verdict == "good":
            off = worst_inclusion(models, self.inclusion_probability, draws, seed)
            check = replace(check, verdict="usable", reason=off) if off else check

        def whole(of_judged: Array, others: Array | float) -> Array:
            result = np.full_like(self.mean, others)
            result[models.judged] = of_judged
            return result

        check = replace(
            check,
            mean=whole(check.mean, self.mean),
            sd=whole(check.sd, np.sqrt(self.variance)),
            shifts=whole(check.shifts, 0.0),
            sd_factors=whole(check.sd_factors, 1.0),
            mean_se=whole(check.mean_se, np.nan),
            shift_ses=whole(check.shift_ses, np.nan),
        )
        return self._remembered(check)

    def with_checked_rows(
        self, data: Data, schedule: Schedule | FilledSchedule | None, warn: Warn = warn_of
    ) -> NoReturn:
        """Refused: the sites of the prior would have to move."""
        raise ValueError(
            f"the posterior has prior={self.prior!r}, whose sites move with new rows; allowed with "
            "it: epfast.fit_linear of all the rows, with start=post for the same ones"
        )

    def remove(self, rows: ArrayLike, X: Given = None, y: Given = None) -> NoReturn:
        """Refused: the sites of the prior would have to move."""
        raise ValueError(
            f"the posterior has prior={self.prior!r}, whose sites move where rows go; allowed with "
            "it: epfast.fit_linear of the rows that are left"
        )


# ---- the search of its prior ----


#: reach of the logs of parameters, or log odds of shares, about where the search begins
REACH = 12.0
#: parameters between 0 and 1, and the largest of them
SHARES, LARGEST_SHARE = ("share", "loss.share", "loss.epsilon"), 1.0 - 1e-9


class PriorTarget(Target[ShrunkPosterior]):
    """The log evidence by numbers of a prior per weight and of the loss, which have no priors."""

    def __init__(self, post: ShrunkPosterior, names: tuple[str, ...]) -> None:
        """names: as in :meth:`ShrunkPosterior.learned`. The search begins with the fit."""
        self.post, self.names = post, names
        self.unknowns = [Unknown(name, None) for name in names]
        self.shares = np.array([name in SHARES for name in names])
        self.of_loss = np.array([name.startswith("loss.") for name in names])
        loss, prior = post.problem.loss, post.prior
        numbers, ranges = [], []
        for name in names:
            own, of_loss = name.removeprefix("loss."), name.startswith("loss.")
            numbers.append(getattr(loss if of_loss else prior, own))
            most = LARGEST_SHARE if name in SHARES else math.inf
            ranges.append(loss.range_of(own) if of_loss else (0.0, most))
        self.ends = self._unknowns(np.transpose(ranges)).T
        start = np.clip(self._unknowns(np.array(numbers)), *self.ends.T)
        self.starts = [start]
        self.bounds = np.clip(self.ends, start[:, None] - REACH, start[:, None] + REACH)

    def _unknowns(self, numbers: Array) -> Array:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(self.shares, special.logit(numbers), np.log(numbers))

    def values(self, u: Array, which: Which = slice(None)) -> Array:
        """The hyper-parameters of unknowns, all of them or some."""
        return np.where(self.shares[which], special.expit(u), np.exp(u))

    def _loss_at(self, u: Array) -> Loss:
        """The loss with numbers of these unknowns."""
        names = [name[5:] for name in self.names if name.startswith("loss.")]
        values = dict(zip(names, self.values(u, self.of_loss).tolist(), strict=True))
        loss: Loss = self.post.problem.loss.with_parameters(**values)
        return loss

    def rounding(self, post: ShrunkPosterior) -> float:
        return rounding_of(post.sites)

    def valid_fit(
        self, u: Array, tol: float, start: ShrunkPosterior | None
    ) -> ShrunkPosterior | None:
        if start is None and np.array_equal(u, self.starts[0]):
            return self.post
        named = dict(zip(self.names, self.values(u).tolist(), strict=True))
        post = self.post.with_numbers(named, start, lambda *fit: None, tol)
        return post if post.converged else None

    def slopes(self, point: HyperPoint[ShrunkPosterior]) -> Array:
        u, post, some = point.u, point.fit, self.of_loss
        try:
            by_prior = post.prior_gradient()
            slopes = np.array([by_prior.get(name, 0.0) for name in self.names])
            slopes *= self.values(u) * np.where(self.shares, 1.0 - self.values(u), 1.0)
            if some.any():
                of_some = [post], self._loss_at, u[some], self.bounds[some]
                slopes[some] = derivatives_by_loss(*of_some)[0]
        except FloatingPointError:  # no cavity, no slope
            return np.full(len(u), math.nan)
        return slopes

    def highest(self) -> ShrunkPosterior:
        """The fit at the mode, by the schedule of the one that it began with."""
        mode = self.modes()[0]
        found = mode.fit
        if found is not self.post:
            found = self.posterior_at(mode.u, self.post.problem.schedule.tol, found) or found
        return found

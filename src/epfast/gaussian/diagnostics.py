"""How far a posterior is from a fixed point of EP, and what it says of a row without its site."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from epfast._arrays import Array, is_sparse
from epfast._core.latents import LatentSites
from epfast._core.row_sweeps import SiteFits
from epfast.gaussian.prior import WeightPrior
from epfast.gaussian.problem import Problem, RowsOrProcess
from epfast.gaussian.shards import WarmStart
from epfast.gaussian.state import State
from epfast.gaussian.table import engine_of
from epfast.inference import Sites, SweepInfo
from epfast.inference.loop import (
    NO_FIXED_POINT,
    RESIDUAL,
    change,
    is_sharp,
    mean_beyond_precision,
    not_a_fixed_point,
)
from epfast.inference.records import check_proper
from epfast.inference.runtime import no_tick
from epfast.losses import LatentLoss, Loss
from epfast.schedules import DAEP, EP, DoubleLoop, FilledSchedule
from epfast.schemes import Scheme

ROUGH = (
    "the sweeps stand still at what is no fixed point of EP (residual {:.2g}), by rounding: K is "
    "too large or too close to singular for this loss; scale it, add jitter, or use another loss"
)

STUCK = (
    "the sweeps stand still where a cavity is improper, which is no fixed point of EP: damp them, "
    "try schedule=epfast.DoubleLoop(), or use a loss with a larger scale"
)


class Judged(Protocol):
    """What is read of a posterior of a process, to judge it."""

    @property
    def mean(self) -> Array: ...

    @property
    def variance(self) -> Array: ...

    @property
    def log_evidence(self) -> float: ...

    @property
    def evidence_bound(self) -> float: ...

    @property
    def residual(self) -> float: ...

    @property
    def loss(self) -> Loss | None: ...

    @property
    def scheme(self) -> Scheme | None: ...

    @property
    def schedule(self) -> FilledSchedule: ...

    @property
    def history(self) -> list[SweepInfo]: ...

    @property
    def converged(self) -> bool: ...


def broken(post: Judged) -> str | None:
    """The condition of a valid posterior that fails, in words, or None if none does."""
    evidence = post.log_evidence
    if evidence > post.evidence_bound:
        return (
            f"the log evidence is {evidence:.4g}, above 0, where no factor is above 1: EP failed; "
            "try damping, schedule=epfast.DoubleLoop() or another kernel, and do not use the result"
        )
    if not _met_its_tolerance(post):
        return None
    reason = mean_beyond_precision(post.mean, post.variance)
    if reason:
        return reason
    schedule, scheme = post.schedule, post.scheme
    tol = max(schedule.tol, schedule.match if isinstance(schedule, DoubleLoop) else 0.0)
    if scheme is None or scheme.relaxes or scheme.learns:
        return None
    if not not_a_fixed_point(post.residual, tol):
        return None
    if post.loss is not None and not post.loss.log_concave and np.isinf(post.residual):
        return STUCK
    return (NO_FIXED_POINT if is_sharp(scheme) else ROUGH).format(post.residual)


def _met_its_tolerance(post: Judged) -> bool:
    """Whether the last sweep, or step of a double loop, met its tolerance."""
    if not post.history:
        return False
    last, schedule = post.history[-1], post.schedule
    if isinstance(schedule, DoubleLoop):
        if last.mismatch is not None:
            return bool(last.mismatch <= schedule.match)
        schedule = schedule.start  # it may end with these sweeps
    return bool(last.change <= schedule.tol)


def trusted(post: Judged) -> bool:
    """Whether a posterior is at a fixed point of EP and meets all conditions."""
    last = post.history[-1] if post.history else None
    if last is not None and last.n_refused > 0:
        return False
    if broken(post) is not None:
        return False
    # a fixed number of sweeps has no tolerance to meet
    return bool(post.converged or post.residual <= RESIDUAL)


# ---- fixed points, and rows without their sites ----


def residual_of_rows(
    problem: RowsOrProcess, sweep: int, sites: Sites, mean: Array, variance: Array
) -> float:
    """Largest gap between tilted moments and marginals: means in sd, variances relative. O(n).

    inf: the cavity of a row is improper, or its fit. Rows of weight 0 do not count.
    """
    if problem.loss.latents > 1:
        return _residual_of_latents(problem, sites, mean, variance)
    tilted, (_, y, weights, _) = problem.tilted(), problem.data
    tilted.begin_sweep(sweep)
    core = SiteFits(tilted, problem.schedule.power, 0.0)
    precision, shift, log_scale = map(np.copy, sites)
    core.fit(mean, variance, y, precision, shift, log_scale, weights)
    return float("inf") if core.n_refused else core.residual


def _residual_of_latents(
    problem: RowsOrProcess, sites: Sites, mean: Array, variance: Array
) -> float:
    """As :func:`residual_of_rows`, over rows and latents."""
    loss, (n, latents) = problem.loss, mean.shape
    assert isinstance(loss, LatentLoss)
    core = LatentSites(loss.latent_moments(), 0.0)
    h, s, tau, nu = (np.ascontiguousarray(x.T) for x in (mean, variance, *sites[:2]))
    new, scale = np.empty((latents, 2, n)), np.empty(n)
    core.fit(h, s, problem.data.y, np.arange(n), tau, nu, sites.log_scale, new, scale)
    return float("inf") if core.n_refused else core.residual


def residual_of_sweep(problem: RowsOrProcess, state: State) -> float:
    """The change of one undamped sweep, all factors at once."""
    inner = getattr(problem.schedule, "inner", problem.schedule)
    power, rule = problem.schedule.power, getattr(inner, "site_rule", None)
    schedule = EP(tol=0.0, power=power, damping=1.0, order="parallel", site_rule=rule).filled()
    if problem.data.groups is not None:
        schedule = DAEP(problem.data.groups, power=power, damping=1.0).filled()
    assert isinstance(problem.prior, WeightPrior)
    engine = engine_of(problem._replace(schedule=schedule, base=problem.prior.state))
    assert state.sites is not None
    start = engine.init(WarmStart(state.sites, state.shift, state, state.sweeps))
    swept = engine.sweep(start, True, no_tick)
    if swept.counts.refused:
        return float("inf")
    swept_summary = engine.summary(swept.state, evidence=False)
    return change(engine.summary(start, evidence=False), swept_summary)


def loo_of_rows(problem: RowsOrProcess, sites: Sites, mean: Array, variance: Array) -> Array:
    """Log probabilities of responses, (n,), without their own sites. O(n).

    The arguments are those of :func:`residual_of_rows`.
    """
    weights = problem.data.weights
    share = 1.0 if weights is None else 1.0 / np.maximum(weights, 1.0)
    return predicted(problem, *sites.cavities(mean, variance, share))


def loo_of_columns(problem: Problem, state: State) -> Array:
    """The same with diagonal sites, one per row or minibatch, which is taken out. O(nonzeros)."""
    assert state.sites is not None
    return predicted(problem, *_without_columns(problem, state, state.sites))


def _without_columns(problem: Problem, state: State, sites: Sites) -> tuple[Array, Array]:
    """Mean and variance of x.theta without the site of its row, (n,) each; see Sites.cavities.

    Sites are diagonal: one per row or minibatch.
    """
    n, copies = problem.shape[0], problem.copies()
    factor = np.arange(n) // (problem.batch_size or 1)
    mean, variance = np.empty((2, n))
    for part in problem.slices():
        rows = problem.data.X[part]
        if is_sparse(rows):
            row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
            columns, x = rows.indices, rows.data
        else:
            row, columns = np.indices(rows.shape).reshape(2, -1)
            x = np.asarray(rows, dtype=np.float64).ravel()
        share: Array | float = 1.0
        if copies is not None and problem.batch_size is None:
            share = 1.0 / np.maximum(copies[part], 1.0)[row]
        entries = factor[part][row], columns
        precision, shift = (
            whole[columns] - share * np.asarray(site[entries]).ravel()
            for whole, site in zip(state[:2], sites[:2], strict=True)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = x * shift / precision, x * x / precision, ~(precision > 0.0)
        mean[part], of_rows, improper = (
            np.bincount(row, values, rows.shape[0]) for values in parts
        )
        variance[part] = np.where(improper == 0.0, of_rows, np.inf)
    return mean, variance


def predicted(problem: RowsOrProcess, mean: Array, variance: Array) -> Array:
    """Log probabilities of the responses under cavities, if all of these are proper."""
    check_proper(variance)
    return problem.loss.log_predictive(problem.data.y, mean, variance)

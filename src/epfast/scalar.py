"""Scalar sites: one factor per row of X, acting on h = x.theta, with a full covariance.

EP by the exact blocked sweep (``_core/sweep.pyx``) in sequential or shuffled order, and in parallel
order by Gram matrix and Cholesky; ADF, one pass that stores no site.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from epfast import _checks
from epfast._checks import Array
from epfast._core.sweep import Blocks, update_parallel
from epfast._core.tilted import Moments
from epfast.losses import Loss, break_points
from epfast.posterior import FullPosterior, Sites, State, SweepInfo, log_evidence
from epfast.schedules import ADF, EP

__all__ = ["fit_scalar", "moments"]

#: numbers of X that are gathered at a time
CHUNK = 1 << 17
#: sweeps between two refreshes of the covariance from the sites
REFRESH = 5


def moments(loss: Loss, beta: float) -> Moments:
    """The tilted moments of a loss, for the core."""
    smooth = loss.has_derivatives and loss.is_continuous and not loss.kinks
    return Moments(loss._core(), beta, loss.name, break_points(loss, beta), smooth)


class Problem(NamedTuple):
    """What stays fixed during a fit."""

    X: NDArray[Any]
    y: Array
    prior_precision: Array
    loss: Loss
    beta: float
    schedule: EP | ADF

    def posterior(self, state: State, converged: bool, history: list[SweepInfo]) -> FullPosterior:
        return FullPosterior(
            state, self.prior_precision, self.loss, self.beta, None, converged, history
        )

    def rows(self, which: Any) -> Array:
        """Some rows of X, (q, d): C-contiguous float64."""
        return np.ascontiguousarray(self.X[which], dtype=np.float64)

    def chunks(self, order: NDArray[np.intp]) -> list[NDArray[np.intp]]:
        step = max(1, CHUNK // self.X.shape[1])
        return [order[i : i + step] for i in range(0, len(order), step)]


def prior_matrix(variance: Array | None, precision: Any, d: int) -> Array:
    """The prior precision, (d, d), from variances (d,) or a matrix given by the user."""
    if precision is None:
        assert variance is not None
        return np.diag(1.0 / variance)
    matrix = _checks.array("prior_precision", precision, shape=(d, d))
    if not np.allclose(matrix, matrix.T, rtol=1e-10, atol=0.0):
        raise ValueError("prior_precision is not symmetric; allowed: a positive definite matrix")
    matrix = 0.5 * (matrix + matrix.T)
    try:
        linalg.cholesky(matrix)
    except linalg.LinAlgError:
        raise ValueError(
            "prior_precision is not positive definite; allowed: a positive definite matrix"
        ) from None
    return matrix


def fit_scalar(
    problem: Problem,
    start: FullPosterior | None,
    record: Callable[[State], float] | None,
    callback: Callable[[SweepInfo, State], Any] | None,
    bar: Any,
    interrupted: Callable[[FullPosterior], KeyboardInterrupt],
) -> FullPosterior:
    """Run the schedule; ``record`` gives the cost of a state, where it is wanted."""
    schedule, (n, d) = problem.schedule, problem.X.shape
    state = _start(problem, start)
    history: list[SweepInfo] = []
    converged = False
    power = schedule.power
    damping = schedule.damping if isinstance(schedule, EP) else 1.0
    sweeps = schedule.sweeps if isinstance(schedule, EP) else 1
    tol = schedule.tol if isinstance(schedule, EP) else 0.0
    triple = moments(problem.loss, problem.beta)
    block = (schedule.block if isinstance(schedule, EP) else None) or max(8, min(64, d // 2))
    core = Blocks(triple, d, min(block, n), power, damping)
    covariance, mean = _moments_of(state)
    try:
        for number in range(sweeps):
            before = time.perf_counter()
            old_mean, old_variance = mean, np.diag(covariance).copy()
            sites = state.sites and Sites(*(part.copy() for part in state.sites))
            order = schedule.visits(n, state.sweeps)
            if schedule.order == "parallel":
                assert sites is not None
                refused = _parallel(problem, state, mean, sites, triple, power, damping, bar)
            else:
                covariance, mean = covariance.copy(), mean.copy()
                refused = _sequential(problem, core, order, covariance, mean, sites, bar)
            if sites is None:
                precision = linalg.cho_solve(linalg.cho_factor(_whole(covariance)), np.eye(d))
                new = State(
                    0.5 * (precision + precision.T),
                    precision @ mean,
                    None,
                    state.log_scale + core.log_scale_total,
                    state.sweeps + 1,
                )
            else:
                proper = _from_sites(problem, sites, state.sweeps + 1)
                if proper is None:  # parallel changes can be too much together: none is taken
                    proper, refused = state._replace(sweeps=state.sweeps + 1), n
                new = proper
            refreshed = (
                schedule.order == "parallel" or number % REFRESH == REFRESH - 1 or refused == n
            )
            if refreshed:
                covariance, mean = _moments_of(new)
            variance = np.diag(covariance)
            moved = np.abs(mean - old_mean) / np.sqrt(variance)
            change = max(moved.max(), np.abs(1.0 - old_variance / variance).max()) / damping
            evidence = log_evidence(new, problem.prior_precision)
            if not (np.isfinite(evidence) and np.isfinite(change)):
                raise FloatingPointError(
                    "the posterior or its evidence overflowed; scale the columns of X"
                )
            info = SweepInfo(
                new.sweeps,
                float(change),
                refused,
                0,
                evidence,
                time.perf_counter() - before,
                None if record is None else record(new),
            )
            state = new
            history.append(info)
            stop = callback is not None and callback(info, state)
            converged = bool(tol > 0.0 and change <= tol)
            if stop or converged:
                break
    except KeyboardInterrupt:
        raise interrupted(problem.posterior(state, False, history)) from None
    return problem.posterior(state, converged, history)


def _sequential(
    problem: Problem,
    core: Blocks,
    order: NDArray[np.intp],
    covariance: Array,
    mean: Array,
    sites: Sites | None,
    bar: Any,
) -> int:
    refused = core.n_refused
    targets = () if sites is None else sites
    for part in problem.chunks(order):
        rows = problem.rows(part)
        core.sweep(rows, problem.y[part], part, covariance, mean, *targets)
        if bar is not None:
            bar.update(len(part))
    return core.n_refused - refused


def _parallel(
    problem: Problem,
    state: State,
    mean: Array,
    sites: Sites,
    triple: Moments,
    power: float,
    damping: float,
    bar: Any,
) -> int:
    """All sites from one posterior: their variances are |L^-1 x|^2, L L' the precision."""
    factor = linalg.cholesky(state.precision, lower=True)
    refused = 0
    for part in problem.chunks(np.arange(len(problem.X))):
        which = slice(part[0], part[-1] + 1)
        rows = problem.rows(which)
        half = linalg.solve_triangular(factor, rows.T, lower=True, check_finite=False)
        variance = np.einsum("ij,ij->j", half, half)
        refused += update_parallel(
            triple,
            problem.y[which],
            rows @ mean,
            variance,
            sites.precision[which],
            sites.shift[which],
            sites.log_scale[which],
            power,
            damping,
        )
        if bar is not None:
            bar.update(len(part))
    return refused


def _from_sites(problem: Problem, sites: Sites, sweeps: int) -> State | None:
    """Prior times sites, O(n d^2); None where that is not a proper Gaussian."""
    precision = problem.prior_precision.copy()
    shift = np.zeros(len(precision))
    for part in problem.chunks(np.arange(len(problem.X))):
        which = slice(part[0], part[-1] + 1)
        rows = problem.rows(which)
        precision += (rows * sites.precision[which, None]).T @ rows
        shift += rows.T @ sites.shift[which]
    precision = 0.5 * (precision + precision.T)
    try:
        linalg.cholesky(precision)
    except (linalg.LinAlgError, ValueError):
        return None
    return State(precision, shift, sites, float(sites.log_scale.sum()), sweeps)


def _moments_of(state: State) -> tuple[Array, Array]:
    factor = linalg.cho_factor(state.precision, lower=True)
    covariance = linalg.cho_solve(factor, np.eye(len(state.shift)))
    return np.ascontiguousarray(covariance), linalg.cho_solve(factor, state.shift)


def _whole(upper: Array) -> Array:
    """The symmetric matrix of which the core keeps the upper triangle."""
    return np.triu(upper) + np.triu(upper, 1).T


def _start(problem: Problem, start: FullPosterior | None) -> State:
    n, d = problem.X.shape
    if isinstance(problem.schedule, ADF):
        if start is None:
            return State(problem.prior_precision.copy(), np.zeros(d), None, 0.0, 0)
        if start.shift.size != d:
            raise ValueError(f"start has {start.shift.size} dimensions; allowed: {d}")
        return start.state._replace(sites=None)
    if start is None:
        flat = Sites(np.zeros(n), np.zeros(n), np.zeros(n))
        return State(problem.prior_precision.copy(), np.zeros(d), flat, 0.0, 0)
    if start.sites is None:
        raise ValueError("start has no sites (it comes from ADF); allowed with EP: a result of EP")
    if start.sites.precision.shape != (n,) or start.shift.size != d:
        raise ValueError(
            f"start has {start.sites.precision.size} sites in {start.shift.size} dimensions; "
            f"allowed: {n} in {d}, the same rows"
        )
    state = _from_sites(problem, start.sites, start.n_sweeps)
    if state is None:
        raise ValueError(
            "start makes the posterior improper with this prior; allowed: another prior"
        )
    return state

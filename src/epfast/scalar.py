"""Scalar sites: one factor per row of X, acting on h = x.theta, with a full covariance.

EP by the exact blocked sweep (``_core/sweep.pyx``) in sequential or shuffled order, and in parallel
order by Gram matrix and Cholesky; ADF, one pass that stores no site. SEP and its relatives, whose
sites are shared by groups of rows, by ``_core/shared.pyx``. The loop over sweeps is one,
:func:`fit_scalar`; an engine for each kind of site knows how to start and how to do one sweep.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from epfast import _checks
from epfast._checks import Array
from epfast._core.shared import Groups
from epfast._core.sweep import Blocks, update_parallel
from epfast._core.tilted import Moments
from epfast.losses import Loss, break_points
from epfast.posterior import FullPosterior, Sites, State, SweepInfo, log_evidence
from epfast.schedules import ADF, EP, SharedSites

__all__ = ["fit_scalar", "moments"]

#: numbers of X that are gathered at a time
CHUNK = 1 << 17
#: sweeps between two refreshes of the covariance from the sites
REFRESH = 5
#: from here on BLAS may use all its threads
MANY_DIMENSIONS = 512


def one_blas_thread(d: int) -> AbstractContextManager[Any]:
    """Hold BLAS to one thread for matrices too small to share, where threadpoolctl is installed.

    On two busy cores a second thread makes products of this size ten times slower.
    """
    if d >= MANY_DIMENSIONS:
        return nullcontext()
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return nullcontext()
    limit: AbstractContextManager[Any] = ThreadpoolController().limit(limits=1, user_api="blas")
    return limit


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
    schedule: EP | ADF | SharedSites

    def posterior(self, state: State, converged: bool, history: list[SweepInfo]) -> FullPosterior:
        return FullPosterior(
            state, self.prior_precision, self.loss, self.beta, None, converged, history
        )

    def rows(self, which: Any) -> Array:
        """Some rows of X, (q, d): C-contiguous float64."""
        return np.ascontiguousarray(self.X[which], dtype=np.float64)

    def chunks(self, order: NDArray[np.intp], work_per_number: int = 1) -> list[NDArray[np.intp]]:
        step = max(1, CHUNK // (self.X.shape[1] * work_per_number))
        return [order[i : i + step] for i in range(0, len(order), step)]


def prior_matrix(precision: Any, d: int) -> Array:
    """A prior precision given by the user, (d, d), checked."""
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


class _Engine(Protocol):
    """How a kind of site is started and swept."""

    def start(self, start: FullPosterior | None) -> State:
        """The state before the first sweep; the engine goes on from it."""

    def sweep(self, state: State, bar: Any) -> tuple[State, int]:
        """One sweep: the new state, and how many sites were refused."""

    #: moments of the posterior; of the covariance the upper triangle holds
    covariance: Array
    mean: Array


def fit_scalar(
    problem: Problem,
    start: FullPosterior | None,
    record: Callable[[State], float] | None,
    callback: Callable[[SweepInfo, State], Any] | None,
    bar: Any,
    interrupted: Callable[[FullPosterior], KeyboardInterrupt],
) -> FullPosterior:
    """Run the schedule; ``record`` gives the cost of a state, where it is wanted."""
    schedule = problem.schedule
    sweeps, tol, damping = (
        (1, 0.0, 1.0)
        if isinstance(schedule, ADF)
        else (schedule.sweeps, schedule.tol, schedule.damping)
    )
    engine: _Engine = (
        _GroupSites(problem, schedule)
        if isinstance(schedule, SharedSites)
        else _RowSites(problem, schedule)
    )
    state = engine.start(start)
    history: list[SweepInfo] = []
    converged = False
    try:
        for _ in range(sweeps):
            before = time.perf_counter()
            old_mean, old_variance = engine.mean, np.diag(engine.covariance).copy()
            new, refused = engine.sweep(state, bar)
            variance = np.diag(engine.covariance)
            moved = np.abs(engine.mean - old_mean) / np.sqrt(variance)
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
            # where every site was refused nothing moves, which is no convergence
            converged = bool(tol > 0.0 and change <= tol and refused < len(problem.X))
            if stop or converged:
                break
    except KeyboardInterrupt:
        raise interrupted(problem.posterior(state, False, history)) from None
    return problem.posterior(state, converged, history)


class _RowSites:
    """EP and ADF: two numbers per row, or none."""

    covariance: Array
    mean: Array

    def __init__(self, problem: Problem, schedule: EP | ADF) -> None:
        n, d = problem.X.shape
        ep = schedule if isinstance(schedule, EP) else EP(power=schedule.power)
        self.problem, self.schedule = problem, schedule
        self.power, self.damping = ep.power, ep.damping
        self.triple = moments(problem.loss, problem.beta)
        block = ep.block or max(8, min(64, d // 2))
        self.core = Blocks(self.triple, d, min(block, n), ep.power, ep.damping)
        self.until_refresh = REFRESH

    def start(self, start: FullPosterior | None) -> State:
        state = _start(self.problem, start)
        self.covariance, self.mean = _moments_of(state)
        return state

    def sweep(self, state: State, bar: Any) -> tuple[State, int]:
        problem, parallel = self.problem, self.schedule.order == "parallel"
        n, d = problem.X.shape
        sites = state.sites and Sites(*(part.copy() for part in state.sites))
        if parallel:
            assert sites is not None
            refused = self._parallel(state, sites, bar)
        else:
            self.covariance, self.mean = self.covariance.copy(), self.mean.copy()
            refused = self._sequential(self.schedule.visits(n, state.sweeps), sites, bar)
        if sites is None:
            precision = linalg.cho_solve(linalg.cho_factor(_whole(self.covariance)), np.eye(d))
            new = State(
                0.5 * (precision + precision.T),
                precision @ self.mean,
                None,
                state.log_scale + self.core.log_scale_total,
                state.sweeps + 1,
            )
        else:
            proper = _from_sites(problem, sites, state.sweeps + 1)
            if proper is None:  # parallel changes can be too much together: none is taken
                proper, refused = state._replace(sweeps=state.sweeps + 1), n
            new = proper
        self.until_refresh -= 1
        if parallel or self.until_refresh == 0 or refused == n:
            self.covariance, self.mean = _moments_of(new)
            self.until_refresh = REFRESH
        return new, refused

    def _sequential(self, order: NDArray[np.intp], sites: Sites | None, bar: Any) -> int:
        problem, core, refused = self.problem, self.core, self.core.n_refused
        targets = () if sites is None else sites
        for part in problem.chunks(order):
            rows = problem.rows(part)
            core.sweep(rows, problem.y[part], part, self.covariance, self.mean, *targets)
            if bar is not None:
                bar.update(len(part))
        return core.n_refused - refused

    def _parallel(self, state: State, sites: Sites, bar: Any) -> int:
        """All sites from one posterior: their variances are |L^-1 x|^2, L L' the precision."""
        problem = self.problem
        factor = linalg.cholesky(state.precision, lower=True)
        refused = 0
        for part in problem.chunks(np.arange(len(problem.X))):
            which = slice(part[0], part[-1] + 1)
            rows = problem.rows(which)
            half = linalg.solve_triangular(factor, rows.T, lower=True, check_finite=False)
            refused += update_parallel(
                self.triple,
                problem.y[which],
                rows @ self.mean,
                np.einsum("ij,ij->j", half, half),
                sites.precision[which],
                sites.shift[which],
                sites.log_scale[which],
                self.power,
                self.damping,
            )
            if bar is not None:
                bar.update(len(part))
        return refused


class _GroupSites:
    """SEP, AEP, DSEP, DAEP: a d x d site per group of rows."""

    covariance: Array
    mean: Array

    def __init__(self, problem: Problem, schedule: SharedSites) -> None:
        self.problem, self.schedule = problem, schedule
        n, _ = problem.X.shape
        #: (K,), rows per group
        self.sizes = np.bincount(schedule.labels(n)).astype(np.float64)
        schedule.batches(n, 0)  # refuses a batch that is too large before the first sweep

    def start(self, start: FullPosterior | None) -> State:
        problem, schedule = self.problem, self.schedule
        count, d = len(self.sizes), problem.X.shape[1]
        shape = (count, d, d)
        if start is None:
            sites = Sites(np.zeros(shape), np.zeros((count, d)), np.zeros(count))
        elif start.sites is None or start.sites.precision.shape != shape:
            found = None if start.sites is None else start.sites.precision.shape
            raise ValueError(
                f"start has sites of shape {found}; allowed with this schedule: {shape}, a result "
                "with shared sites and as many groups"
            )
        else:
            sites = start.sites
        state = self._from_sites(sites, 0 if start is None else start.n_sweeps)
        if state is None:
            raise ValueError(
                "start makes the posterior improper with this prior; allowed: another prior"
            )
        self.core = Groups(
            moments(problem.loss, problem.beta),
            d,
            min(64, len(problem.X)),
            schedule.power,
            schedule.damping,
            start is not None,
        )
        self.covariance, self.mean = _moments_of(state)
        return state

    def sweep(self, state: State, bar: Any) -> tuple[State, int]:
        problem, before = self.problem, self.core.n_refused
        n, d = problem.X.shape
        assert state.sites is not None
        sites = Sites(*(part.copy() for part in state.sites))
        precision, shift = state.precision.copy(), state.shift.copy()
        batches = self.schedule.batches(n, state.sweeps)
        # a batch costs about d rows
        rows_of_work = 1 + d * int(batches.last.sum()) // n
        for part in problem.chunks(np.arange(n), rows_of_work):
            which = batches.rows[part]
            self.core.sweep(
                problem.rows(which),
                problem.y[which],
                batches.group[part],
                batches.last[part],
                *sites,
                self.sizes,
                precision,
                shift,
            )
            if bar is not None:
                bar.update(len(part))
        refused = self.core.n_refused - before
        new = self._from_sites(sites, state.sweeps + 1)
        if new is None:  # rounding at the edge of what is proper: nothing is taken
            return state._replace(sweeps=state.sweeps + 1), n
        self.covariance, self.mean = _moments_of(new)
        return new, refused

    def _from_sites(self, sites: Sites, sweeps: int) -> State | None:
        """Prior times powers of the sites; None where that is not a proper Gaussian."""
        precision = self.problem.prior_precision + np.tensordot(self.sizes, sites.precision, 1)
        if not _is_proper(precision):
            return None
        total = float(self.sizes @ sites.log_scale)
        return State(precision, self.sizes @ sites.shift, sites, total, sweeps)


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
    if not _is_proper(precision):
        return None
    return State(precision, shift, sites, float(sites.log_scale.sum()), sweeps)


def _is_proper(precision: Array) -> bool:
    try:
        linalg.cholesky(precision)
    except (linalg.LinAlgError, ValueError):
        return False
    return True


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
            f"start has sites of shape {start.sites.precision.shape} in {start.shift.size} "
            f"dimensions; allowed: ({n},) in {d}, the same rows"
        )
    state = _from_sites(problem, start.sites, start.n_sweeps)
    if state is None:
        raise ValueError(
            "start makes the posterior improper with this prior; allowed: another prior"
        )
    return state

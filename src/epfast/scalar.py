"""Scalar sites: one factor per row of X, acting on h = x.theta, with a full covariance.

EP by the exact blocked sweep (``_core/sweep.pyx``) in sequential or shuffled order, and in parallel
order by Gram matrix and Cholesky; ADF, one pass that stores no site. SEP and its relatives, whose
sites are shared by groups of rows, by ``_core/shared.pyx``; Laplace fits of many rows at once by
``_core/expansion.pyx``; DEP, which runs EP within shards. An engine for each kind of site knows how
to start and how to do one sweep, for the loop over sweeps (``loop.py``).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from epfast import _checks
from epfast._checks import Array
from epfast._core.expansion import Expansions
from epfast._core.loss import CoreLoss
from epfast._core.rows import Rows
from epfast._core.shared import Groups
from epfast._core.sweep import Blocks, Parallel, add_sites
from epfast._core.tilted import Moments
from epfast.loop import Engine, change
from epfast.losses import Loss, break_points
from epfast.posterior import Data, FullPosterior, Sites, State, SweepInfo, log_evidence
from epfast.schedules import ADF, DEP, EP, SharedSites, as_array
from epfast.schemes import Exact, Scheme

__all__ = ["Problem", "engine_of", "moments"]

EXACT = Exact()
#: numbers of X that are gathered at a time
CHUNK = 1 << 17
#: rows whose marginals are found at a time in parallel order
PARALLEL_ROWS = 128
#: dimensions from which half of the covariance is kept in sequential sweeps
HALF_FROM = 256
#: a variance that falls to less of what it was is computed anew from the sites, with all digits
SHRUNK = 1e-4
#: automatic order: the first sweep begins with every 16th row, one after the other and twice, then
#: takes every 4th and all in parallel; with fewer rows per dimension than this in a share, none
FIRST_SHARE, NEXT_SHARE = 16, 4
ROWS_PER_DIMENSION = 4
#: and what share of the least change so far one of three parallel sweeps must stay below, else the
#: order is sequential
CONTRACTION = 0.7


def moments(
    loss: Loss, beta: float, scheme: Scheme = EXACT, core: CoreLoss | None = None
) -> Moments:
    """The tilted moments of a loss by a scheme, for the core."""
    smooth = loss.has_derivatives and loss.is_continuous and not loss.kinks
    core = loss._core() if core is None else core
    replaced = scheme._site_scheme(loss, core, beta)
    return Moments(core, beta, loss.name, break_points(loss, beta), smooth, replaced)


class Problem(NamedTuple):
    """What stays fixed during a fit."""

    data: Data
    #: what the sites multiply: the prior, or more
    base: State
    prior_precision: Array
    loss: Loss
    beta: float
    schedule: EP | ADF | DEP | SharedSites
    scheme: Scheme = EXACT
    #: rows per factor, for Laplace fits of several at once
    batch_size: int | None = None

    @property
    def shape(self) -> tuple[int, int]:
        n, d = self.data.X.shape
        return n, d

    def moments(self) -> Moments:
        return moments(self.loss, self.beta, self.scheme)

    def posterior(self, state: State, converged: bool, history: list[SweepInfo]) -> FullPosterior:
        return FullPosterior(
            state,
            self.prior_precision,
            self.loss,
            self.beta,
            self.batch_size,
            converged,
            history,
            self.data,
        )

    def rows(self, which: Any) -> Rows:
        """Some rows of X."""
        part = self.data.X[which]
        return Rows(part if self.sparse else np.ascontiguousarray(part, dtype=np.float64))

    @property
    def sparse(self) -> bool:
        return hasattr(self.data.X, "indptr")

    def weights(self, which: Any) -> Array | None:
        return None if self.data.weights is None else self.data.weights[which]

    def chunks(
        self, order: NDArray[np.intp] | range, work_per_number: int = 1
    ) -> list[NDArray[np.intp] | range]:
        step = max(1, CHUNK // (self.shape[1] * work_per_number))
        return [order[i : i + step] for i in range(0, len(order), step)]

    def slices(self) -> list[slice]:
        """All rows in their order, as :meth:`chunks`."""
        n, d = self.shape
        step = max(1, CHUNK // d)
        return [slice(i, min(i + step, n)) for i in range(0, n, step)]

    def copies(self) -> Array | None:
        """(n,), how many copies of itself a row of that weight is; None: one each."""
        w = self.data.weights
        return None if w is None else np.where(w > 0.0, np.maximum(w, 1.0), 0.0)


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


# ---- the engines ----


class _Engine(Engine[State, FullPosterior]):
    """What is said here suits a site per row."""

    problem: Problem
    #: moments of the posterior; of the covariance the upper triangle holds
    covariance: Array
    mean: Array

    def start(self, start: FullPosterior | None) -> State:
        return self._at(_start(self.problem, start))

    def sites(self) -> int:
        return self.problem.shape[0]

    def moments(self) -> tuple[Array, Array]:
        return self.mean, np.diag(self.covariance).copy()

    def log_evidence(self, state: State) -> float:
        return log_evidence(state, self.problem.prior_precision)

    def finish(self, state: State) -> State:
        return state

    def _at(self, state: State) -> State:
        """Go on from a state: its moments."""
        self.covariance, self.mean = _moments_of(state)
        return state

    def _taken(self, old: State, new: State | None, refused: int) -> tuple[State, int]:
        """What a sweep returns; where all changes together are improper (None) none is taken."""
        if new is None:
            return old._replace(sweeps=old.sweeps + 1), self.problem.shape[0]
        return self._at(new), refused


def engine_of(problem: Problem) -> _Engine:
    """The engine for the sites of a problem."""
    schedule = problem.schedule
    if isinstance(schedule, SharedSites):
        return _GroupSites(problem, schedule)
    if isinstance(schedule, DEP):
        return _ShardSites(problem, schedule)
    if problem.batch_size is not None:
        return _FactorSites(problem, schedule)
    return _RowSites(problem, schedule)


# ---- a site per row ----


class _RowSites(_Engine):
    """EP and ADF: two numbers per row, or none."""

    def __init__(self, problem: Problem, schedule: EP | ADF) -> None:
        n, d = problem.shape
        ep = schedule if isinstance(schedule, EP) else EP(power=schedule.power)
        self.problem, self.schedule, self.ep = problem, schedule, ep
        self.order = schedule.order
        if self.order == "auto":
            self.order = "parallel" if ep.tol > 0.0 and ep.damping == 1.0 else "sequential"
        #: whether a parallel order may give way to a sequential one
        self.may_change = schedule.order == "auto"
        #: of the automatic order: the least change of a parallel sweep, and the sweeps since
        self.least, self.stalled = np.inf, 0
        self.triple = problem.moments()
        block = ep.block or max(8, min(64, d // 3))
        full = problem.sparse or d < HALF_FROM
        self.core = Blocks(self.triple, d, min(block, n), ep.power, ep.damping, full)
        self.parallel = Parallel(self.triple, d, min(n, PARALLEL_ROWS), ep.power, ep.damping)
        self.since_refresh = 0

    def start(self, start: FullPosterior | None) -> State:
        return self._begin(_start(self.problem, start))

    def start_from(self, sites: Sites, sweeps: int) -> State:
        """As :meth:`start`, from sites that with the base are proper."""
        state = _from_sites(self.problem, sites, sweeps)
        assert state is not None
        return self._begin(state)

    def _begin(self, state: State) -> State:
        self.flat = state.sites is not None and not state.sites.precision.any()
        self.first = state
        return self._anew()

    def _anew(self) -> State:
        """Go on from where it began; whose sites belong to somebody else, perhaps."""
        self.owned = False
        return self._at(self.first)

    def _targets(self, sites: Sites) -> Sites:
        """Where the new sites go: into the old ones, but for those that are needed still.

        A callback may keep what it was given, and parallel order may take no change at all; the
        automatic one then begins anew.
        """
        if self.owned and not self.states_kept and self.schedule.order != "parallel":
            return sites
        self.owned = True
        return Sites(*(part.copy() for part in sites))

    def sweep(self, state: State, bar: Any) -> tuple[State, int]:
        self.drift = None
        self.triple.begin_sweep(state.sweeps)
        if self.order == "parallel":
            assert state.sites is not None
            if self.may_change and self.flat:
                self.flat = False
                if self.problem.shape[0] < FIRST_SHARE * ROWS_PER_DIMENSION * len(self.mean):
                    # the first step of parallel EP from a wide prior goes too far
                    return self._sequential(state, slice(None), bar)
                state = self._shares(state)
            before = self.covariance, self.mean
            new, refused = self._parallel(state, slice(None), bar)
            if self.may_change and not self._contracts(*before, refused):
                # from the start again: where parallel sweeps end there may be no way back
                self.order, new = "sequential", self._anew()
            return new._replace(sweeps=state.sweeps + 1), refused
        return self._sequential(state, slice(None), bar)

    def finish(self, state: State) -> State:
        if state.sites is None or self.since_refresh == 0:
            return state
        return _from_sites(self.problem, state.sites, state.sweeps) or state

    def interrupted(self, state: State) -> State:
        if state.sites is None:
            return state
        # a sweep may have changed some of them
        return _from_sites(self.problem, state.sites, state.sweeps) or self.first

    # -- one after the other --

    def _sequential(self, state: State, which: slice, bar: Any) -> tuple[State, int]:
        """Sites of a slice of the rows; the other rows are to have flat sites, or which is all."""
        problem, core = self.problem, self.core
        n, d = problem.shape
        sites = state.sites and self._targets(state.sites)
        before, core_scale = core.n_refused, core.log_scale_total
        old_variance = np.diag(self.covariance)
        self.covariance, self.mean = self.covariance.copy(), self.mean.copy()
        targets = () if sites is None else sites
        for part in problem.chunks(self.schedule.checked_visits(n, state.sweeps)[which]):
            sites_of = as_array(part)
            # neighbours by a slice, which copies nothing
            neighbours = isinstance(part, range) and part.step == 1
            take: Any = slice(part[0], part[-1] + 1) if neighbours else sites_of
            rows, weights = problem.rows(take), problem.weights(take)
            labels = problem.data.y[take]
            core.sweep(rows, labels, weights, sites_of, self.covariance, self.mean, *targets)
            if bar is not None:
                bar.update(len(part))
        refused = core.n_refused - before
        self.since_refresh += 1
        variance = np.diag(self.covariance)
        if sites is not None and (
            self.since_refresh == self.ep.refresh
            or refused == n
            or not (variance > SHRUNK * old_variance).all()
        ):
            refreshed = _from_sites(problem, sites, state.sweeps + 1)
            if refreshed is not None:
                self._refresh(refreshed)
                return refreshed, refused
        if not self.core.full:
            self.covariance = whole(self.covariance)
        precision = linalg.cho_solve(linalg.cho_factor(self.covariance), np.eye(d))
        log_scale = (
            state.log_scale + core.log_scale_total - core_scale
            if sites is None
            else problem.base.log_scale + float(sites.log_scale.sum())
        )
        precision = 0.5 * (precision + precision.T)
        shift = precision @ self.mean
        return State(precision, shift, sites, log_scale, state.sweeps + 1), refused

    def _refresh(self, state: State) -> None:
        """Moments from the sites, and how far those of the sweeps were from them."""
        covariance, mean = _moments_of(state)
        sd = np.sqrt(np.diag(covariance))
        gap = np.triu(self.covariance - covariance) / np.outer(sd, sd)
        self.drift = float(max(np.abs(gap).max(), np.abs((self.mean - mean) / sd).max()))
        self.covariance, self.mean = covariance, mean
        self.since_refresh = 0

    # -- all from one posterior --

    def _parallel(self, state: State, which: slice, bar: Any) -> tuple[State, int]:
        """New sites of a slice of the rows; the other rows are to have flat sites."""
        problem, core = self.problem, self.parallel
        assert state.sites is not None
        root = inverse_root(state.precision)
        before = core.n_refused
        precision, shift = problem.base.precision.copy(), problem.base.shift.copy()
        sites = self._targets(state.sites)
        n = problem.shape[0]
        for part in problem.chunks(range(n)[which]):
            take = slice(part[0], part[-1] + 1, which.step)
            target = Sites(*(np.ascontiguousarray(values[take]) for values in sites))
            core.sweep(
                problem.rows(take),
                np.ascontiguousarray(problem.data.y[take]),
                None if (w := problem.weights(take)) is None else np.ascontiguousarray(w),
                self.covariance,
                root,
                self.mean,
                *target,
                precision,
                shift,
            )
            for values, new in zip(sites, target, strict=True):
                values[take] = new
            if bar is not None:
                bar.update(len(part))
        refused = core.n_refused - before
        precision = whole(precision)
        if not is_proper(precision):  # changes can be too much together: none is taken
            return state, n
        total = problem.base.log_scale + float(sites.log_scale.sum())
        return self._at(State(precision, shift, sites, total, state.sweeps)), refused

    def _shares(self, state: State) -> State:
        """From flat sites: sweeps over growing shares of the rows, before the first over all.

        They end within a few standard deviations of where all rows will, for the price of half a
        sweep, so that parallel sweeps neither go too far nor need to be many.
        """
        sweeps = state.sweeps
        for _ in range(2):
            state, _ = self._sequential(state, slice(None, None, FIRST_SHARE), None)
        state, refused = self._parallel(state, slice(None, None, NEXT_SHARE), None)
        if refused == self.problem.shape[0]:
            state = self._anew()
        self.since_refresh = 0
        return state._replace(sweeps=sweeps)

    def _contracts(self, covariance: Array, mean: Array, refused: int) -> bool:
        """Whether the last parallel sweep, or one of the two before it, changed less than all."""
        old, new = np.diag(covariance), np.diag(self.covariance)
        moved = np.abs(self.mean - mean) / np.sqrt(np.maximum(old, new))
        change = float(max(moved.max(), np.abs(np.log(new / old)).max()))
        if refused == self.problem.shape[0]:
            return False
        if change < CONTRACTION * self.least:
            self.least, self.stalled = change, 0
        else:
            self.stalled += 1
        return self.stalled < 3 or change <= self.ep.tol


# ---- sites shared by groups of rows ----


class _GroupSites(_Engine):
    """SEP, AEP, DSEP, DAEP: a d x d site per group of rows."""

    def __init__(self, problem: Problem, schedule: SharedSites) -> None:
        self.problem, self.schedule = problem, schedule
        self.triple = problem.moments()
        n, _ = problem.shape
        #: (K,), rows per group, copies counted
        self.sizes = np.bincount(schedule.labels(n), problem.copies()).astype(np.float64)
        if not self.sizes.all():
            raise ValueError("weights are all 0 in a group; allowed: a row that counts in each")
        schedule.batches(n, 0)  # refuses a batch that is too large before the first sweep

    def start(self, start: FullPosterior | None) -> State:
        problem, schedule = self.problem, self.schedule
        count, (n, d) = len(self.sizes), problem.shape
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
            self.triple, d, min(64, n), schedule.power, schedule.damping, start is not None
        )
        return self._at(state)

    def sweep(self, state: State, bar: Any) -> tuple[State, int]:
        problem, before = self.problem, self.core.n_refused
        self.triple.begin_sweep(state.sweeps)
        n, d = problem.shape
        assert state.sites is not None
        sites = Sites(*(part.copy() for part in state.sites))
        precision, shift = state.precision.copy(), state.shift.copy()
        batches = self.schedule.batches(n, state.sweeps)
        # a batch costs about d rows
        rows_of_work = 1 + d * int(batches.last.sum()) // n
        for part in problem.chunks(np.arange(n), rows_of_work):
            which = batches.rows[part]
            rows = problem.data.X[which]
            dense = rows.toarray() if problem.sparse else rows
            self.core.sweep(
                np.ascontiguousarray(dense, dtype=np.float64),
                problem.data.y[which],
                problem.weights(which),
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
        return self._taken(state, self._from_sites(sites, state.sweeps + 1), refused)

    def _from_sites(self, sites: Sites, sweeps: int) -> State | None:
        """Base times powers of the sites; None where that is not a proper Gaussian."""
        base = self.problem.base
        precision = base.precision + np.tensordot(self.sizes, sites.precision, 1)
        if not is_proper(precision):
            return None
        total = base.log_scale + float(self.sizes @ sites.log_scale)
        return State(precision, base.shift + self.sizes @ sites.shift, sites, total, sweeps)


# ---- Laplace fits of many rows at once ----


class _FactorSites(_Engine):
    """EP and ADF on factors of ``batch_size`` rows, with the full Hessian of each: tau per row."""

    def __init__(self, problem: Problem, schedule: EP | ADF) -> None:
        n, d = problem.shape
        self.problem, self.schedule = problem, schedule
        assert problem.batch_size is not None
        assert problem.scheme is not None
        self.size = min(problem.batch_size, n)
        damping = schedule.damping if isinstance(schedule, EP) else 1.0
        given = problem.scheme.core_arguments(d)
        self.core = Expansions(
            problem.loss._core(),
            d,
            self.size,
            problem.beta,
            schedule.power,
            damping,
            given["scheme"] == "laplace",
            given["slope_curvature"],
            given.get("tolerance", 0.0),
            given.get("max_iterations", 0),
        )

    def sweep(self, state: State, bar: Any) -> tuple[State, int]:
        problem = self.problem
        n = problem.shape[0]
        before = self.core.n_refused
        precision, shift = state.precision.copy(), state.shift.copy()
        parallel = self.schedule.order == "parallel"
        seen = (state.precision, state.shift) if parallel else (precision, shift)
        sites = Sites(*(part.copy() for part in state.sites or _flat(n)))
        factors = self.schedule.checked_visits(-(-n // self.size), state.sweeps)
        for some in map(as_array, problem.chunks(factors, self.size)):
            rows = (some[:, None] * self.size + np.arange(self.size)).ravel()
            rows = rows[rows < n]
            sizes = np.minimum(self.size, n - some * self.size)
            target = Sites(*(part[rows] for part in sites))
            self.core.sweep(
                problem.rows(rows),
                problem.data.y[rows],
                problem.weights(rows),
                sizes,
                *seen,
                *target,
                precision,
                shift,
            )
            for part, changed in zip(sites, target, strict=True):
                part[rows] = changed
            if bar is not None:
                bar.update(len(rows))
        refused = self.core.n_refused - before
        if state.sites is None:
            total = state.log_scale + float(sites.log_scale.sum())
            new = State(whole(precision), shift, None, total, state.sweeps + 1)
            return self._taken(state, new, refused)
        return self._taken(state, _from_sites(problem, sites, state.sweeps + 1), refused)


# ---- EP within shards ----


class _ShardSites(_Engine):
    """DEP: the rows of a shard are fitted by an EP of their own, the cavity as its prior."""

    def __init__(self, problem: Problem, schedule: DEP) -> None:
        n, _ = problem.shape
        self.problem, self.schedule = problem, schedule
        labels = schedule.labels(n)
        order = np.argsort(labels, kind="stable")
        cuts = np.searchsorted(labels[order], np.arange(1, labels.max() + 1))
        #: the rows of each shard; slices where they are neighbours, so that nothing is copied
        self.shards = [
            slice(int(rows[0]), int(rows[-1]) + 1) if rows[-1] - rows[0] + 1 == len(rows) else rows
            for rows in np.split(order, cuts)
        ]

    def sweep(self, state: State, bar: Any) -> tuple[State, int]:
        problem, schedule, refused = self.problem, self.schedule, 0
        assert state.sites is not None
        sites = Sites(*(part.copy() for part in state.sites))
        precision, shift = state.precision, state.shift
        for k in schedule.checked_visits(len(self.shards), state.sweeps):
            rows = self.shards[k]
            data = problem.data
            shard = problem._replace(
                data=data._replace(X=data.X[rows], y=data.y[rows], weights=problem.weights(rows))
            )
            old = Sites(*(values[rows] for values in sites))
            all_precision, all_shift = sum_of_sites(shard, old)
            cavity = State(precision - all_precision, shift - all_shift, None, 0.0, 0)
            if not is_proper(cavity.precision):
                refused += len(old.shift)
                continue
            fitted, refused_here = self._fit(shard._replace(base=cavity), old)
            refused += refused_here
            new = Sites(*(a + schedule.damping * (b - a) for a, b in zip(old, fitted, strict=True)))
            for values, changed in zip(sites, new, strict=True):
                values[rows] = changed
            if schedule.order != "parallel":
                all_precision, all_shift = sum_of_sites(shard, new)
                precision, shift = cavity.precision + all_precision, cavity.shift + all_shift
            if bar is not None:
                bar.update(len(old.shift))
        return self._taken(state, _from_sites(problem, sites, state.sweeps + 1), refused)

    def _fit(self, shard: Problem, sites: Sites) -> tuple[Sites, int]:
        """EP within a shard, from its sites: the new ones, and how many were refused at last."""
        inner = self.schedule.inner
        assert inner is not None
        engine = _RowSites(shard._replace(schedule=inner), inner)
        state, refused = engine.start_from(sites, 0), 0
        for _ in range(inner.sweeps):
            before = engine.moments()
            state, refused = engine.sweep(state, None)
            if change(before, engine.moments()) <= inner.tol * inner.damping:
                break
        assert state.sites is not None
        return state.sites, refused


# ---- what the engines share ----


def sum_of_sites(problem: Problem, sites: Sites) -> tuple[Array, Array]:
    """Precision and shift of the product of all sites, O(n d^2)."""
    d = problem.shape[1]
    precision, shift = np.zeros((d, d)), np.zeros(d)
    for part in problem.slices():
        add_sites(problem.rows(part), sites.precision[part], sites.shift[part], precision, shift)
    return whole(precision), shift


def _from_sites(problem: Problem, sites: Sites, sweeps: int) -> State | None:
    """Base times sites, O(n d^2); None where that is not a proper Gaussian."""
    base, (precision, shift) = problem.base, sum_of_sites(problem, sites)
    precision += base.precision
    if not is_proper(precision):
        return None
    total = base.log_scale + float(sites.log_scale.sum())
    return State(precision, base.shift + shift, sites, total, sweeps)


def whole(upper: Array) -> Array:
    """The symmetric matrix of which the core keeps the upper triangle."""
    return np.asarray(np.triu(upper) + np.triu(upper, 1).T)


def _flat(n: int) -> Sites:
    return Sites(np.zeros(n), np.zeros(n), np.zeros(n))


def is_proper(precision: Array) -> bool:
    try:
        linalg.cholesky(precision)
    except (linalg.LinAlgError, ValueError):
        return False
    return True


def inverse_root(precision: Array) -> Array:
    """C rows of the upper triangle, by columns the lower one L^-1, of precision = L L'."""
    factor = linalg.cholesky(precision, lower=True)
    inverse = linalg.solve_triangular(factor, np.eye(len(factor)), lower=True)
    return np.ascontiguousarray(inverse.T)


def _moments_of(state: State) -> tuple[Array, Array]:
    factor = linalg.cho_factor(state.precision, lower=True)
    covariance = linalg.cho_solve(factor, np.eye(len(state.shift)))
    covariance = 0.5 * (covariance + covariance.T)
    return np.ascontiguousarray(covariance), linalg.cho_solve(factor, state.shift)


def _start(problem: Problem, start: FullPosterior | None) -> State:
    n, d = problem.shape
    base = problem.base
    if isinstance(problem.schedule, ADF):
        if start is None:
            return base
        if start.shift.size != d:
            raise ValueError(f"start has {start.shift.size} dimensions; allowed: {d}")
        return start.state._replace(sites=None)
    if start is None:
        return base._replace(sites=_flat(n))
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

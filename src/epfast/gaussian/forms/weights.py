"""Priors that are sites, one per weight, beside the rows.

A prior site acts on one coordinate, so it is a row e_j of an identity matrix: the sweeps over rows
serve as they are. A sweep visits the rows, from the prior sites as a Gaussian prior, then the
weights. The sites of a Gaussian likelihood are exact and are never visited. A state has the sites
of the rows first, then those of the weights.

With fewer rows than weights all matrices are of order n: a weight is visited by its column of X
(``Duals`` in ``_core/rows.pyx``), O(n^2) each, whatever the sign of its site.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import families
from epfast._arrays import Array, Piece, is_sparse, symmetric_from_upper
from epfast._core.cholesky import inverse_from_factor
from epfast._core.row_sweeps import BlockedSweep, SiteFits
from epfast._core.rows import Duals, Rows, Units
from epfast._core.thread_pool import ThreadPool
from epfast._core.tilted import TiltedMoments
from epfast.gaussian.accelerate import log_mass
from epfast.gaussian.engine import (
    NONE,
    STALLED,
    EPEngine,
    Form,
    Full,
    Start,
    Visited,
    Visits,
    Working,
    block_size,
    contraction,
    flat,
    gaussian,
)
from epfast.gaussian.forms.kernel import GPState, ValueMoments
from epfast.gaussian.orders import (
    AtOnce,
    RowMemory,
    RowState,
    first_memory,
    order_of_rows,
    visits_of,
)
from epfast.gaussian.prior import PerWeightPrior
from epfast.gaussian.problem import Problem, sum_of_sites
from epfast.gaussian.sparse import Moments
from epfast.gaussian.state import State, factor_of, not_proper
from epfast.inference import Counts, Sites, Summary
from epfast.inference.loop import NO_COUNTS, change
from epfast.inference.mixing import Step, mixed, with_step
from epfast.inference.runtime import Tick, cached_property, no_tick

#: damping of sweeps with fewer rows than weights, and where sites are refused or sweeps do not
#: contract
SHORT = 0.5
#: sweeps are mixed (Anderson) below this change, if it falls by no smaller a factor than this, or
#: where sweeps do not contract
MIX_BELOW, SLOW = 0.1, 0.2
#: numbers of a matrix that one call of the core touches
CHUNK = 1 << 28
REMEDY = (
    "standardise the columns of X, drop columns that are alike, damp the sweeps "
    "(EP(damping=0.5)) or allow more of them, or take another prior"
)


class ShrunkState(NamedTuple):
    """The sites of a fit with prior sites, and its moments: plain arrays, picklable."""

    #: (d, d), or None in the n x n form
    precision: Array | None
    #: (d,), precision times mean
    shift: Array
    #: sites of the rows, which are exact for a Gaussian likelihood
    sites: Sites
    log_scale: float
    sweeps: int
    rows_seen: int | None
    #: sites of the weights, (d,) each. Precisions may be negative
    prior_sites: Sites
    mean: Array
    variance: Array
    log_evidence: float


#: as a posterior has it: of weights, or of values whose moments may be yet to be computed
KeptState = (
    State
    | ShrunkState
    | GPState[
        ValueMoments | tuple[ValueMoments, ...] | Moments | None,
        None,
        Array | tuple[Array, ...],
    ]
)
#: as an engine ends with it: the moments may be at hand
EndState = KeptState | Working


class Memory(NamedTuple):
    """What the next sweep goes by."""

    damping: float
    #: of the rows' next sweep
    rows: RowMemory
    #: whether the last sweep refused sites of weights
    refused: bool = False
    #: the change of the last sweep, its least so far, and the sweeps since
    last: float = np.inf
    least: float = np.inf
    stalled: int = 0
    #: whether sweeps are mixed, and the last ones, their sites and how far those of the weights
    #: changed, in their units, (2 d,)
    mixes: bool = False
    steps: tuple[Step, ...] = ()

    def next(self, distance: float) -> Memory:
        """The memory after a sweep that changed the posterior by so much."""
        least, stalled = contraction(distance, self.least, self.stalled)
        troubled = self.refused or stalled >= STALLED
        slow = SLOW * self.last < distance < MIX_BELOW
        return self._replace(
            damping=min(self.damping, SHORT) if troubled else self.damping,
            last=distance,
            least=least,
            stalled=stalled,
            mixes=self.mixes or slow or stalled >= STALLED,
        )


class DualState(NamedTuple):
    """The sites between two sweeps, and what they make in matrices of order n."""

    sites: Sites
    sweeps: int
    log_scale: float
    shift: Array
    mean: Array
    #: (d,). Empty: it was not asked for
    variance: Array
    #: (shift.mean - log det precision) / 2, a part of the log evidence
    log_norm: float
    #: (n, n), R = (K + 1 / precision)^-1, alpha (n,), K and the means of the rows
    R: Array
    alpha: Array
    kernel: Array
    latent: Array
    memory: Memory | None = None
    precision: None = None
    relaxed: None = None


#: in matrices of order d, or n. That of visits of the rows has their memory
WeightState = Working[Memory | RowMemory] | DualState


def split(sites: Sites, n: int) -> tuple[Sites, Sites]:
    """Views of the sites of n rows, and of those of the weights."""
    return Sites(*(part[:n] for part in sites)), Sites(*(part[n:] for part in sites))


class ByWeights(Form[WeightState, ShrunkState]):
    """The form of q with matrices of order d: no fewer rows than weights."""

    def __init__(self, problem: Problem) -> None:
        self.problem, (self.n, d) = problem, problem.shape
        assert isinstance(problem.prior, PerWeightPrior)
        self.prior_of_weights, self.order, self.width = problem.prior, d, d
        # the prior's constants are in the scales of its sites
        self.prior_norm = 0.5 * d * math.log(2.0 * math.pi)
        self.exact = problem.exact_sites()

    @cached_property
    def sum_of_exact(self) -> tuple[Array, Array] | None:
        """The sum of exact sites, (d, d) and (d,). O(n d^2), once."""
        return None if self.exact is None else sum_of_sites(self.problem, self.exact)

    def prior(self) -> WeightState:
        sites = families.joined(self.exact or flat(self.n), self.prior_of_weights.start)
        state = self.rebuild(sites, 0)
        if state is None:
            raise not_proper()
        return state

    def checked_start(self, start: Start) -> Sites:
        weights, visits = self.prior_of_weights.start, self.prior_of_weights.visits
        assert isinstance(start.state, ShrunkState)
        rows, old_weights = start.state.sites, start.state.prior_sites
        shapes = [len(rows.shift), len(old_weights.shift)]
        if shapes != [self.n, len(weights.shift)]:
            raise ValueError(
                f"start has sites of {shapes[0]} rows and {shapes[1]} weights; allowed: {self.n} "
                f"and {len(weights.shift)}, the same rows"
            )
        # what is not visited is exact
        weights = families.copied(weights)
        families.put(weights, visits, families.select(old_weights, visits))
        sites: Sites = families.joined(self.exact or rows, weights)
        return sites

    def rebuild(self, sites: Sites, sweeps: int) -> WeightState | None:
        rows, weights = split(sites, self.n)
        precision, shift = self.sum_of_exact or sum_of_sites(self.problem, rows)
        precision, shift = precision + np.diag(weights.precision), shift + weights.shift
        return gaussian(State(precision, shift, sites, float(sites.log_scale.sum()), sweeps))

    def summary(self, state: WeightState, evidence: bool = True) -> Summary:
        assert isinstance(state, Working)
        total = state.log_scale + state.log_norm + self.prior_norm
        return Summary(state.mean, state.covariance.diagonal().copy(), total)

    def with_weights(
        self, state: WeightState, sites: Sites, old_weights: Sites
    ) -> WeightState | None:
        """A state of these rows with other prior sites than before. O(d^3)."""
        assert isinstance(state, Working)
        weights = split(sites, self.n)[1]
        precision = state.precision + np.diag(weights.precision - old_weights.precision)
        shift, total = state.shift + weights.shift - old_weights.shift, float(sites.log_scale.sum())
        return gaussian(State(precision, shift, sites, total, state.sweeps))

    def of_the_weights(self, state: WeightState) -> tuple[Array, Array]:
        """What visits of weights update: a matrix and a vector, copies."""
        assert isinstance(state, Working)
        return state.covariance.copy(), state.mean.copy()

    def rows_of(self, visits: NDArray[np.intp], weights: Sites) -> Rows:
        """The rows by which these weights are visited."""
        return Units(visits, self.order)

    def result(self, state: WeightState) -> ShrunkState:
        assert state.sites is not None
        rows, weights = split(state.sites, self.n)
        now = self.summary(state)
        plain = state.precision, state.shift, rows, state.log_scale, state.sweeps, None
        return ShrunkState(*plain, weights, *now)


class ByRows(ByWeights):
    """The form of q with matrices of order n: fewer rows than weights."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.order, X = self.n, problem.data.X
        X = X.toarray() if is_sparse(X) else X
        #: (d, n), X'
        self.columns = np.ascontiguousarray(X.T, dtype=np.float64)

    def rebuild(self, sites: Sites, sweeps: int, spread: bool = True) -> DualState | None:
        """spread: whether variances of the weights are wanted. O(n^2 d + n^3)."""
        rows, weights = split(sites, self.n)
        variance, columns = 1.0 / weights.precision, self.columns
        scaled = variance[:, None] * columns
        kernel = scaled.T @ columns
        kernel = 0.5 * (kernel + kernel.T)
        S, b = rows.precision, rows.shift
        solved = _solved(S, kernel, int((variance < 0.0).sum()))
        if solved is None:
            return None
        inverse, log_determinant = solved
        root, sign = np.sqrt(np.abs(S)), np.where(S < 0.0, -1.0, 1.0)
        R = inverse * root * root[:, None]
        prior_mean = scaled.T @ weights.shift
        # rows of precision 0 may still have a shift
        seen = root > 0.0
        safe = np.where(seen, root, 1.0)
        alpha = root * (inverse @ np.where(seen, sign * b / safe - root * prior_mean, 0.0))
        unseen = np.where(seen, 0.0, b)
        alpha += unseen - R @ (kernel @ unseen)
        shift = weights.shift + columns @ b
        mean = variance * (weights.shift + columns @ alpha)
        if spread:
            variance = variance - np.einsum("ij,ij->i", scaled @ R, scaled)
            # below 0 by rounding, where the rows say nearly all
            if not (np.isfinite(mean).all() and (variance > 0.0).all()):
                return None
        latent = columns.T @ mean
        log_determinant += float(np.log(np.abs(weights.precision)).sum())
        log_norm = 0.5 * float(weights.shift @ mean + b @ latent - log_determinant)
        numbers = shift, mean, variance if spread else NONE, log_norm
        total = float(sites.log_scale.sum())
        return DualState(sites, sweeps, total, *numbers, R, alpha, kernel, latent)

    def summary(self, state: WeightState, evidence: bool = True) -> Summary:
        assert isinstance(state, DualState)
        total = state.log_scale + state.log_norm + self.prior_norm
        return Summary(state.mean, state.variance, total)

    def covariance_of_rows(self, state: DualState) -> Array:
        """(n, n), posterior covariance of X theta."""
        covariance = state.kernel - state.kernel @ state.R @ state.kernel
        return np.asarray(0.5 * (covariance + covariance.T))

    def at_rows(self, state: WeightState) -> Callable[[Piece], tuple[Array, Array]]:
        assert isinstance(state, DualState)
        latent, variance = state.latent, self.covariance_of_rows(state).diagonal().copy()
        return lambda part: (latent[part], variance[part])

    def with_weights(
        self, state: WeightState, sites: Sites, old_weights: Sites
    ) -> WeightState | None:
        return self.rebuild(sites, state.sweeps)

    def of_the_weights(self, state: WeightState) -> tuple[Array, Array]:
        assert isinstance(state, DualState)
        return -state.R, state.alpha.copy()

    def rows_of(self, visits: NDArray[np.intp], weights: Sites) -> Duals:
        variance = 1.0 / weights.precision[visits]
        rows = variance[:, None] * self.columns[visits]
        return Duals(rows, variance, variance * weights.shift[visits])


def _solved(S: Array, kernel: Array, negative: int) -> tuple[Array, float] | None:
    """Inverse of sign(S) + sqrt|S| K sqrt|S|, 1 where S is 0, and log of its determinant. O(n^3).

    negative: precisions of prior sites below 0. None where the posterior is improper: it is proper
    where the matrix has as many negative eigenvalues as there are negative precisions in all.
    """
    root, sign = np.sqrt(np.abs(S)), np.where(S < 0.0, -1.0, 1.0)
    with np.errstate(over="ignore", invalid="ignore"):
        matrix = kernel * root * root[:, None]
    matrix[np.diag_indices(len(S))] += sign
    if not np.isfinite(matrix).all():
        return None
    count = negative + int((S < 0.0).sum())
    if count == 0:
        try:
            factor = factor_of(matrix)
        except FloatingPointError:
            return None
        log_determinant = 2.0 * float(np.log(np.diag(factor)).sum())
        inverse_from_factor(factor)
        return symmetric_from_upper(factor.T), log_determinant
    values, vectors = np.linalg.eigh(matrix)
    if int((values < 0.0).sum()) != count or not (np.abs(values) > 0.0).all():
        return None
    return (vectors / values) @ vectors.T, float(np.log(np.abs(values)).sum())


class RowsOfValues(Visits[WeightState, Memory]):
    """Visits of rows by their values, one after the other, in the n x n form."""

    def __init__(self, problem: Problem, form: ByRows, tilted: TiltedMoments) -> None:
        self.problem, self.form, self.schedule = problem, form, problem.schedule
        block = min(form.n, block_size(self.schedule.block, form.n))
        self.core = BlockedSweep(tilted, form.n, block, 1.0, self.schedule.damping, False)

    def visit(self, state: WeightState, sites: Sites, tick: Tick) -> Visited[WeightState, Memory]:
        assert isinstance(state, DualState)
        problem, refused_before, n = self.problem, self.core.n_refused, self.form.n
        covariance, mean = self.form.covariance_of_rows(state), state.latent.copy()
        order = np.asarray(self.schedule.checked_visits(n, state.sweeps), dtype=np.intp)
        own = problem.responses(order), problem.weights(order), order
        self.core.sweep(Units(order, n), *own, covariance, mean, *sites)
        tick(n)
        return Visited(Counts(self.core.n_refused - refused_before))


class WeightEngine(EPEngine[WeightState, ShrunkState, Memory]):
    """EP on rows, in the order of the schedule, and then on the prior of each weight."""

    problem: Problem
    form: ByWeights
    tilted: TiltedMoments
    #: of the rows; of values in the n x n form
    rows: Visits[RowState, RowMemory]
    values: Visits[WeightState, Memory]
    #: of the weights, where all are fitted at once, or one after the other
    core_at_once: SiteFits
    core_in_turn: BlockedSweep

    remedy = REMEDY
    accelerates = True

    def __init__(self, problem: Problem) -> None:
        form = ByRows(problem) if problem.posterior == "wide" else ByWeights(problem)
        super().__init__(problem, form)
        schedule, prior = problem.schedule, form.prior_of_weights
        n = 0 if form.exact is not None else form.n
        self.n_sites, self.of_prior = n + len(prior.visits), prior.prior.tilted()
        most = max(1, len(prior.visits))
        self.block = min(block_size(schedule.block, form.order), most)
        self.ones = np.ones((most, 1))
        if schedule.order == "parallel":
            self.core_at_once = SiteFits(self.of_prior, 1.0, 1.0)
        else:
            self.core_in_turn = BlockedSweep(self.of_prior, form.order, self.block, 1.0, 1.0, False)
        self.tilted = problem.tilted()
        self.order = schedule.order if problem.posterior == "wide" else order_of_rows(problem)
        if n == 0:  # sites of rows are exact
            return
        if not isinstance(form, ByRows):
            rows = Full[RowMemory](problem)
            self.rows = visits_of(self.order, problem, self.tilted, rows, ThreadPool(1))
        else:
            self.values = (
                AtOnce(problem, self.tilted, form, schedule.damping)
                if schedule.order == "parallel"
                else RowsOfValues(problem, form, self.tilted)
            )

    def start_of_run(self, state: WeightState, is_flat: bool) -> WeightState:
        wide = self.problem.posterior == "wide"
        rows = RowMemory(self.order) if wide else first_memory(self.problem, is_flat)
        memory = Memory(self.schedule.damping, rows)
        if self.schedule.order == "auto" and self.problem.posterior == "wide":
            # from little data for each weight undamped sweeps go far astray
            memory = memory._replace(damping=min(SHORT, memory.damping))
        return state._replace(memory=memory)

    def visit(self, state: WeightState, sites: Sites, tick: Tick) -> Visited[WeightState, Memory]:
        form, counts, residual = self.form, NO_COUNTS, 0.0
        now: WeightState | None = state
        self.of_prior.begin_sweep(state.sweeps)
        rows, weights = split(sites, form.n)
        old_weights = families.copied(weights)
        if form.exact is None:
            counts, residual, now = self._visit_rows(state, sites, rows, tick)
        if now is None:
            return Visited(counts, residual=residual)
        assert isinstance(now.memory, Memory)
        refused = self._weights(now, weights, tick)
        counts = counts._replace(refused=counts.refused + refused)
        memory = now.memory._replace(refused=refused > 0)
        new = form.with_weights(now, sites, old_weights)
        if new is not None:
            new = new._replace(sweeps=state.sweeps + 1)
        return Visited(counts, new, memory=memory, residual=residual)

    def accelerate(
        self,
        old: WeightState,
        new: WeightState,
        visited: Visited[WeightState, Memory],
        moved: float,
    ) -> tuple[WeightState, Visited[WeightState, Memory]]:
        """The state with the memory of the next sweep. Slow sweeps are mixed."""
        assert isinstance(old.memory, Memory)
        assert isinstance(new.memory, Memory)
        visited = visited._replace(change=moved * self.schedule.damping / old.memory.damping)
        if self.schedule.order != "auto":
            return new, visited
        return self._mixed(new, new.memory.next(moved), old, old.memory), visited

    def _weights(self, state: WeightState, weights: Sites, tick: Tick) -> int:
        """Fit prior sites in place, and return how many were refused."""
        visits = self.form.prior_of_weights.visits
        if not len(visits):
            return 0
        assert isinstance(state.memory, Memory)
        if self.schedule.order == "parallel":
            at_once = self.core_at_once
            at_once.damping, refused_before = state.memory.damping, at_once.n_refused
            visited = Sites(*map(np.ascontiguousarray, families.select(weights, visits)))
            now = self.form.summary(state, False)
            mean, variance = (np.ascontiguousarray(part[visits]) for part in now[:2])
            at_once.fit(mean, variance, self.ones, *visited)
            families.put(weights, visits, visited)
            tick(len(visits))
            return at_once.n_refused - refused_before
        core = self.core_in_turn
        core.damping, refused_before = state.memory.damping, core.n_refused
        if self.schedule.order == "shuffled":
            visits = visits[np.asarray(self.schedule.checked_visits(len(visits), state.sweeps))]
        matrix, vector = self.form.of_the_weights(state)
        step = max(self.block, CHUNK // self.form.order**2)
        for first in range(0, len(visits), step):
            part = np.ascontiguousarray(visits[first : first + step])
            rows = self.form.rows_of(part, weights)
            core.sweep(rows, self.ones[: len(part)], None, part, matrix, vector, *weights)
            tick(len(part))
        return core.n_refused - refused_before

    def _mixed(
        self, new: WeightState, memory: Memory, old: WeightState, old_memory: Memory
    ) -> WeightState:
        """A sweep with those before it (Anderson mixing), where they move less and less.

        It also finds fixed points that sweeps of any length move away from.
        """
        form = self.form
        assert old.sites is not None
        assert new.sites is not None
        (_, old_weights), (_, weights) = split(old.sites, form.n), split(new.sites, form.n)
        spread = form.summary(old, False).variance
        precision = (weights.precision - old_weights.precision) * spread
        moves = np.concatenate([precision, (weights.shift - old_weights.shift) * np.sqrt(spread)])
        moves /= old_memory.damping
        steps = with_step(memory.steps, new.sites, moves)
        mixture = mixed(steps) if memory.mixes else None
        rebuilt = None if mixture is None else form.rebuild(mixture, new.sweeps)
        if rebuilt is not None and mixture is not None:
            precision = split(mixture, form.n)[1].precision
            if (precision * form.summary(rebuilt, False).variance < 1.0)[
                form.prior_of_weights.visits
            ].all():
                return rebuilt._replace(memory=memory._replace(steps=steps))
        steps = steps[-1:] if memory.mixes else steps
        return new._replace(memory=memory._replace(steps=steps))

    def _visit_rows(
        self, state: WeightState, sites: Sites, rows: Sites, tick: Tick
    ) -> tuple[Counts, float, WeightState | None]:
        """Fit the sites of the rows in place, views of those of all.

        Returns the counts, the residual and the state of all sites. None: it is improper.
        """
        memory = state.memory
        assert isinstance(memory, Memory)
        if isinstance(self.form, ByRows):
            of_values = self.values.visit(state, rows, tick)
            dual = self.form.rebuild(sites, state.sweeps, self.schedule.order == "parallel")
            dual = None if dual is None else dual._replace(memory=memory)
            return of_values.counts, of_values.residual, dual
        assert isinstance(state, Working)
        old: RowState = Working(*state[:-1], memory.rows)
        visited = self.rows.visit(old, rows, tick)
        if visited.swept_state is not None:
            now = visited.swept_state._replace(sites=sites)
        else:
            rebuilt = self.form.rebuild(sites, state.sweeps)
            if rebuilt is None:
                return visited.counts, visited.residual, None
            assert isinstance(rebuilt, Working)
            now = Working(*rebuilt[:-1], None)
        if memory.rows.chunks is not None:
            moved = change(self.form.summary(old, False), self.form.summary(now, False))
            last, _ = self.rows.accelerate(old, now, visited, moved)
            assert last.memory is not None
            memory = memory._replace(rows=last.memory)
        return visited.counts, visited.residual, Working(*now[:-1], memory)

    def finish(self, state: WeightState, hurry: bool = False) -> ShrunkState:
        """Rebuild the state without drift, with the log scales of the last sites."""
        form = self.form
        assert state.sites is not None
        if not hurry and state.sweeps > 0:
            sites = Sites(*(part.copy() for part in state.sites))
            if isinstance(state.memory, Memory) and state.memory.mixes and form.exact is None:
                self._visit_rows(state, sites, split(sites, form.n)[0], no_tick)
            rebuilt = form.rebuild(sites, state.sweeps) or form.rebuild(state.sites, state.sweeps)
            state = state if rebuilt is None else rebuilt
            assert state.sites is not None
            self._rescale(state.sites, form.summary(state, False))
            state = state._replace(log_scale=float(state.sites.log_scale.sum()))
        return form.result(state)

    def _rescale(self, sites: Sites, now: Summary) -> None:
        """Give prior sites the scales by which their integrals over cavities are Z, in place."""
        visits, weights = self.form.prior_of_weights.visits, split(sites, self.form.n)[1]
        visited: Sites = families.select(weights, visits)
        cavity = visited.proper_cavities(now.mean[visits], now.variance[visits])
        lZ, *others = np.empty((3, len(visits)))
        if cavity is None or not len(visits):
            return
        if not self.of_prior.many(self.ones, *cavity, self.ones[:, 0].copy(), lZ, *others):
            weights.log_scale[visits] = lZ + log_mass(*visited[:2], *cavity)

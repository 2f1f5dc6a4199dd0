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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import families
from epfast._arrays import Array, Piece, is_sparse, symmetric_from_upper
from epfast._core.cholesky import inverse_from_factor
from epfast._core.row_sweeps import BlockedSweep, SiteFits
from epfast._core.rows import Duals, Units
from epfast._core.thread_pool import ThreadPool
from epfast.gaussian.accelerate import log_mass
from epfast.gaussian.engine import (
    NONE,
    STALLED,
    EPEngine,
    Full,
    Visited,
    Visits,
    Working,
    contraction,
    flat,
    gaussian,
    proper,
)
from epfast.gaussian.forms.kernel import GPState, ValueMoments
from epfast.gaussian.orders import (
    AtOnce,
    RowMemory,
    block_size,
    first_memory,
    order_of_rows,
    visits_of,
)
from epfast.gaussian.prior import PerWeightPrior
from epfast.gaussian.problem import Problem, sum_of_sites
from epfast.gaussian.sparse import Moments
from epfast.gaussian.state import State, factor_of
from epfast.inference import Counts, Sites, Summary
from epfast.inference.loop import change
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
        object,
        Array | tuple[Array, ...],
    ]
)


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


def split(sites: Sites, n: int) -> tuple[Sites, Sites]:
    """Views of the sites of n rows, and of those of the weights."""
    return Sites(*(part[:n] for part in sites)), Sites(*(part[n:] for part in sites))


class ByWeights(Full[Any]):
    """The form of q with matrices of order d: no fewer rows than weights."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.n, d = problem.shape
        assert isinstance(problem.prior, PerWeightPrior)
        self.prior_of_weights = problem.prior
        # the prior's constants are in the scales of its sites
        self.prior_norm = 0.5 * d * math.log(2.0 * math.pi)
        self.exact = problem.exact_sites()

    @cached_property
    def sum_of_exact(self) -> tuple[Array, Array] | None:
        """The sum of exact sites, (d, d) and (d,). O(n d^2), once."""
        return None if self.exact is None else sum_of_sites(self.problem, self.exact)

    def prior(self) -> Any:
        return proper(
            self.rebuild(
                families.joined(self.exact or flat(self.n), self.prior_of_weights.start), 0
            )
        )

    def checked_start(self, start: Any) -> Sites:
        weights, visits = self.prior_of_weights.start, self.prior_of_weights.visits
        shapes = [len(start.sites.shift), len(start.prior_sites.shift)]
        if shapes != [self.n, len(weights.shift)]:
            raise ValueError(
                f"start has sites of {shapes[0]} rows and {shapes[1]} weights; allowed: {self.n} "
                f"and {len(weights.shift)}, the same rows"
            )
        # what is not visited is exact
        weights = families.copied(weights)
        families.put(weights, visits, families.select(start.prior_sites, visits))
        sites: Sites = families.joined(self.exact or start.sites, weights)
        return sites

    def rebuild(self, sites: Sites, sweeps: int) -> Any:
        rows, weights = split(sites, self.n)
        precision, shift = self.sum_of_exact or sum_of_sites(self.problem, rows)
        precision, shift = precision + np.diag(weights.precision), shift + weights.shift
        return gaussian(State(precision, shift, sites, float(sites.log_scale.sum()), sweeps))

    def with_weights(self, state: Working, sites: Sites, old_weights: Sites) -> Working | None:
        """A state of these rows with other prior sites than before. O(d^3)."""
        weights = split(sites, self.n)[1]
        precision = state.precision + np.diag(weights.precision - old_weights.precision)
        shift, total = state.shift + weights.shift - old_weights.shift, float(sites.log_scale.sum())
        return gaussian(State(precision, shift, sites, total, state.sweeps))

    def of_the_weights(self, state: Working) -> tuple[Array, Array]:
        """What visits of weights update: a matrix and a vector, copies."""
        return state.covariance.copy(), state.mean.copy()

    def rows_of(self, visits: NDArray[np.intp], weights: Sites) -> Any:
        """The rows by which these weights are visited."""
        return Units(visits, self.order)

    def result(self, state: Any) -> Any:
        rows, weights = split(state.sites, self.n)
        now = self.summary(state)
        plain = state.precision, state.shift, rows, state.log_scale, state.sweeps, None
        return ShrunkState(*plain, weights, *now)


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
    memory: Memory | RowMemory | None = None
    precision: None = None


class ByRows(ByWeights):
    """The form of q with matrices of order n: fewer rows than weights."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        self.order, X = self.n, problem.data.X
        X = X.toarray() if is_sparse(X) else X
        #: (d, n), X'
        self.columns = np.ascontiguousarray(X.T, dtype=np.float64)

    def rebuild(self, sites: Sites, sweeps: int, spread: bool = True) -> Any:
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

    def summary(self, state: Any, evidence: bool = True) -> Summary:
        total = state.log_scale + state.log_norm + self.prior_norm
        return Summary(state.mean, state.variance, total)

    def covariance_of_rows(self, state: DualState) -> Array:
        """(n, n), posterior covariance of X theta."""
        covariance = state.kernel - state.kernel @ state.R @ state.kernel
        return np.asarray(0.5 * (covariance + covariance.T))

    def at_rows(self, state: Any) -> Callable[[Piece], tuple[Array, Array]]:
        variance = self.covariance_of_rows(state).diagonal().copy()
        return lambda part: (state.latent[part], variance[part])

    def with_weights(self, state: Any, sites: Sites, old_weights: Sites) -> Any:
        return self.rebuild(sites, state.sweeps)

    def of_the_weights(self, state: Any) -> tuple[Array, Array]:
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


class RowsOfValues(Visits[Any, RowMemory]):
    """Visits of rows by their values, one after the other, in the n x n form."""

    def __init__(self, problem: Problem, form: ByRows, tilted: Any) -> None:
        self.problem, self.form, self.schedule = problem, form, problem.schedule
        block = min(form.n, block_size(self.schedule.block, form.n))
        self.core = BlockedSweep(tilted, form.n, block, 1.0, self.schedule.damping, False)

    def visit(self, state: DualState, sites: Sites, tick: Tick) -> Visited[Any, RowMemory]:
        problem, refused_before, n = self.problem, self.core.n_refused, self.form.n
        covariance, mean = self.form.covariance_of_rows(state), state.latent.copy()
        order = np.asarray(self.schedule.checked_visits(n, state.sweeps), dtype=np.intp)
        own = problem.responses(order), problem.weights(order), order
        self.core.sweep(Units(order, n), *own, covariance, mean, *sites)
        tick(n)
        return Visited(Counts(self.core.n_refused - refused_before))


class WeightEngine(EPEngine[Any, ShrunkState, Memory]):
    """EP on rows, in the order of the schedule, and then on the prior of each weight."""

    problem: Problem
    #: by weights or by rows, whose states differ
    form: Any

    remedy = REMEDY
    accelerates = True

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, (ByRows if problem.posterior == "wide" else ByWeights)(problem))
        schedule, prior = problem.schedule, self.form.prior_of_weights
        n = 0 if self.form.exact is not None else self.form.n
        self.n_sites, self.of_prior = n + len(prior.visits), prior.prior.tilted()
        most = max(1, len(prior.visits))
        self.block = min(block_size(schedule.block, self.form.order), most)
        self.ones = np.ones((most, 1))
        self.core_of_weights: Any = SiteFits(self.of_prior, 1.0, 1.0)
        if schedule.order != "parallel":
            numbers = self.form.order, self.block, 1.0, 1.0, False
            self.core_of_weights = BlockedSweep(self.of_prior, *numbers)
        self.tilted = problem.tilted()
        self.order = schedule.order if problem.posterior == "wide" else order_of_rows(problem)
        if n > 0 and problem.posterior == "wide":
            in_turn = schedule.order != "parallel"
            self.rows: Visits[Any, RowMemory] = (
                RowsOfValues(problem, self.form, self.tilted)
                if in_turn
                else AtOnce(problem, self.tilted, self.form, schedule.damping)
            )
        elif n > 0:
            self.rows = visits_of(self.order, problem, self.tilted, self.form, ThreadPool(1))

    def start_of_run(self, state: Any, is_flat: bool) -> Any:
        wide = self.problem.posterior == "wide"
        rows = RowMemory(self.order) if wide else first_memory(self.problem, is_flat)
        memory = Memory(self.schedule.damping, rows)
        if self.schedule.order == "auto" and self.problem.posterior == "wide":
            # from little data for each weight undamped sweeps go far astray
            memory = memory._replace(damping=min(SHORT, memory.damping))
        return state._replace(memory=memory)

    def visit(self, state: Any, sites: Sites, tick: Tick) -> Visited[Any, Memory]:
        form, visited, now = self.form, Visited[Any, RowMemory](), state
        self.of_prior.begin_sweep(state.sweeps)
        rows, weights = split(sites, form.n)
        old_weights = families.copied(weights)
        if form.exact is None:
            visited, now = self.visit_rows(state, sites, rows, tick)
            if now is None:
                return Visited(visited.counts, residual=visited.residual)
        refused = self._weights(now, weights, tick)
        counts = visited.counts._replace(refused=visited.counts.refused + refused)
        memory = now.memory._replace(refused=refused > 0)
        new = form.with_weights(now, sites, old_weights)
        if new is not None:
            new = new._replace(sweeps=state.sweeps + 1)
        return Visited(counts, new, memory=memory, residual=visited.residual)

    def accelerate(
        self, old: Any, new: Any, visited: Visited[Any, Memory], moved: float
    ) -> tuple[Any, Visited[Any, Memory]]:
        """The state with the memory of the next sweep. Slow sweeps are mixed."""
        visited = visited._replace(change=moved * self.schedule.damping / old.memory.damping)
        if self.schedule.order != "auto":
            return new, visited
        return self._mixed(new._replace(memory=new.memory.next(moved)), old), visited

    def _weights(self, state: Any, weights: Sites, tick: Tick) -> int:
        """Fit prior sites in place, and return how many were refused."""
        visits = self.form.prior_of_weights.visits
        if not len(visits):
            return 0
        core, refused_before = self.core_of_weights, self.core_of_weights.n_refused
        core.damping = state.memory.damping
        if self.schedule.order == "parallel":
            visited = Sites(*map(np.ascontiguousarray, families.select(weights, visits)))
            now = self.form.summary(state, False)
            mean, variance = (np.ascontiguousarray(part[visits]) for part in now[:2])
            core.fit(mean, variance, self.ones, *visited)
            families.put(weights, visits, visited)
            tick(len(visits))
            return int(core.n_refused - refused_before)
        if self.schedule.order == "shuffled":
            visits = visits[np.asarray(self.schedule.checked_visits(len(visits), state.sweeps))]
        matrix, vector = self.form.of_the_weights(state)
        step = max(self.block, CHUNK // self.form.order**2)
        for first in range(0, len(visits), step):
            part = np.ascontiguousarray(visits[first : first + step])
            rows = self.form.rows_of(part, weights)
            core.sweep(rows, self.ones[: len(part)], None, part, matrix, vector, *weights)
            tick(len(part))
        return int(core.n_refused - refused_before)

    def _mixed(self, new: Any, last: Any) -> Any:
        """A sweep with those before it (Anderson mixing), where they move less and less.

        It also finds fixed points that sweeps of any length move away from.
        """
        form, memory = self.form, new.memory
        (_, old), (_, weights) = split(last.sites, form.n), split(new.sites, form.n)
        spread = form.summary(last, False).variance
        precision = (weights.precision - old.precision) * spread
        moves = np.concatenate([precision, (weights.shift - old.shift) * np.sqrt(spread)])
        moves /= last.memory.damping
        steps = with_step(memory.steps, new.sites, moves)
        mixture = mixed(steps) if memory.mixes else None
        rebuilt = None if mixture is None else form.rebuild(mixture, new.sweeps)
        if rebuilt is not None:
            precision = split(rebuilt.sites, form.n)[1].precision
            if (precision * form.summary(rebuilt, False).variance < 1.0)[
                form.prior_of_weights.visits
            ].all():
                return rebuilt._replace(memory=memory._replace(steps=steps))
        steps = steps[-1:] if memory.mixes else steps
        return new._replace(memory=memory._replace(steps=steps))

    def visit_rows(
        self, state: Any, sites: Sites, rows: Sites, tick: Tick
    ) -> tuple[Visited[Any, RowMemory], Any]:
        """Fit the sites of the rows in place. Return the state of all sites, too."""
        old, memory = state._replace(memory=state.memory.rows), state.memory
        visited = self.rows.visit(old, rows, tick)
        now = visited.swept_state
        if now is not None:
            now = now._replace(sites=sites)
        elif self.problem.posterior != "wide":
            now = self.form.rebuild(sites, state.sweeps)
        else:
            now = self.form.rebuild(sites, state.sweeps, self.schedule.order == "parallel")
        if now is None:
            return visited._replace(swept_state=None, swept_moments=None), None
        if memory.rows.chunks is not None:
            moved = change(self.form.summary(old, False), self.form.summary(now, False))
            last, _ = self.rows.accelerate(old, now, visited, moved)
            memory = memory._replace(rows=last.memory)
        return visited, now._replace(memory=memory)

    def finish(self, state: Any, hurry: bool = False) -> ShrunkState:
        """Rebuild the state without drift, with the log scales of the last sites."""
        form = self.form
        if not hurry and state.sweeps > 0:
            sites = Sites(*(part.copy() for part in state.sites))
            if state.memory.mixes and form.exact is None:
                self.visit_rows(state, sites, split(sites, form.n)[0], no_tick)
            rebuilt = form.rebuild(sites, state.sweeps) or form.rebuild(state.sites, state.sweeps)
            state = state if rebuilt is None else rebuilt
            self._rescale(state.sites, form.summary(state, False))
            state = state._replace(log_scale=float(state.sites.log_scale.sum()))
        result: ShrunkState = form.result(state)
        return result

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

"""Priors that are sites, one per weight, beside the rows.

A prior site acts on one coordinate, so it is a row e_j of an identity matrix: the sweeps over rows
serve as they are. A sweep visits the rows, from the prior sites as a Gaussian prior, then the
weights. The sites of a Gaussian likelihood are exact and are never visited.

With fewer rows than weights (``wide_weights.py``) all matrices are of order n: a weight is visited
by its column of X (``Duals`` in ``_core/rows.pyx``), O(n^2) each, whatever the sign of its site.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from epfast import families
from epfast._arrays import Array, symmetric_from_upper
from epfast._core.cholesky import inverse_from_factor
from epfast._core.crew import Crew
from epfast._core.row_sweeps import BlockedSweep, ParallelSweep
from epfast._core.rows import Rows, Units
from epfast.gaussian.engines.base import LEAST_SHARE, Swept, contraction, flat, improper_start
from epfast.gaussian.engines.chunks import ChunkMemory, chunk_size, is_for_chunks, shares_of
from epfast.gaussian.engines.rows import PARALLEL_ROWS, RowEngine, block_size
from epfast.gaussian.problem import LinearProblem, State, factor_of, sum_of_sites
from epfast.inference import Counts, PartOfSweep, Sites, Summary
from epfast.inference.loop import change
from epfast.inference.runtime import Tick, no_tick
from epfast.losses import Prior
from epfast.schedules import Schedule

#: damping of sweeps with fewer rows than weights, and where sites are refused or so many sweeps do
#: not contract: in smaller steps fewer fits settle
SHORT, STALLED = 0.5, 3
#: sweeps are mixed below this change, if it falls by no smaller a factor; so many of them
MIX_BELOW, SLOW, DEPTH = 0.1, 0.3, 8
#: of sweeps with fewer rows than weights
WIDE_DAMPING = 0.5
#: sweeps in a row that contract, after which steps are twice as large again
CALM = 5
#: numbers of a matrix that one call of the core touches
CHUNK = 1 << 28


class PriorSites(NamedTuple):
    """The prior of each weight, and which of them have sites to be fitted."""

    prior: Prior
    #: sites to begin with; those that are not visited are exact
    start: Sites
    #: weights with a site to be fitted
    visits: NDArray[np.intp]


class Moments(NamedTuple):
    """Moments of the posterior in either form."""

    #: (d, d); None in the n x n form
    precision: Array | None
    #: (d,), precision times mean
    shift: Array
    mean: Array
    variance: Array
    #: log of the determinant of the precision
    log_determinant: float
    #: the shift of the posterior times its mean
    square: float
    #: covariance (d, d), or R (n, n) in the n x n form
    matrix: Array
    #: (n,), and K (n, n) with the means of the rows, in the n x n form alone
    alpha: Array | None = None
    kernel: Array | None = None
    latent: Array | None = None


class ShrunkState(NamedTuple):
    """The sites of a fit with prior sites, and its moments: plain arrays, picklable."""

    #: (d, d); None in the n x n form
    precision: Array | None
    shift: Array
    #: of the rows; exact ones for a Gaussian likelihood
    sites: Sites
    log_scale: float
    sweeps: int
    rows_seen: int | None
    #: of the weights, (d,) each; precisions may be negative
    prior_sites: Sites
    mean: Array
    variance: Array
    log_evidence: float


class Step(NamedTuple):
    """A sweep: sites after it, and how far those of the weights moved, in their units, (2 d,)."""

    rows: Sites
    weights: Sites
    moves: Array


class Sweeping(NamedTuple):
    """A :class:`ShrunkState` between two sweeps."""

    precision: Array | None
    shift: Array
    sites: Sites
    log_scale: float
    sweeps: int
    rows_seen: int | None
    prior_sites: Sites
    mean: Array
    variance: Array
    log_evidence: float
    now: Moments
    #: of the rows' next sweep
    memory: ChunkMemory | None
    #: of the steps of prior sites, the least change so far, and the sweeps since
    damping: float
    least: float = np.inf
    stalled: int = 0
    #: change of the last sweep
    last: float = np.inf
    #: whether sweeps are mixed, and the last ones
    mixes: bool = False
    steps: tuple[Step, ...] = ()


def _combined(share: Array, sites: Any) -> Sites:
    """The sum of sites, each times its share."""
    return Sites(
        *(sum(a * x for a, x in zip(share, part, strict=True)) for part in zip(*sites, strict=True))
    )


def _paced(new: Sweeping, before: Sweeping, moved: float, refused: bool) -> Sweeping:
    """What the next sweep goes by, after one that moved the posterior by so much."""
    least, stalled = contraction(moved, before.least, before.stalled)
    troubled = refused or stalled >= STALLED
    slow = SLOW * before.last < moved < MIX_BELOW
    return new._replace(
        damping=min(before.damping, SHORT) if troubled else before.damping,
        least=least,
        stalled=stalled,
        last=moved,
        mixes=before.mixes or slow or stalled >= STALLED,
    )


class WeightEngine:
    """What both forms share: visits of the weights, and how far their sites move."""

    measures = False
    crew: Crew | None = None

    def __init__(
        self, problem: LinearProblem, of_weights: PriorSites, exact: Sites | None, order: int
    ) -> None:
        """exact: sites of the rows that no sweep changes; order: of the largest matrix."""
        schedule, visits = problem.schedule, of_weights.visits
        self.problem, self.schedule, self.of_weights = problem, schedule, of_weights
        self.exact, self.order_of_matrices = exact, order
        self.evidence_bound = problem.evidence_bound
        self.remedy = (
            "standardise the columns of X, drop columns that are alike, damp the sweeps "
            "(EP(damping=0.5)) or allow more of them, or take another prior"
        )
        self.n_sites = len(visits) + (0 if exact is not None else problem.shape[0])
        self.tilted = of_weights.prior.tilted()
        self.is_parallel = schedule.order == "parallel"
        self.block = min(block_size(schedule.block, order), max(1, len(visits)))
        self.ones = np.ones((max(1, len(visits)), 1))
        self._cores: dict[float, Any] = {}

    # -- what a form gives --

    def moments(self, sites: Sites, of_weights: Sites) -> Moments | None:
        """Moments of these sites; None if they are improper."""
        raise NotImplementedError

    def visit_rows(self, state: Sweeping, tick: Tick) -> tuple[Sweeping, Counts]:
        """A sweep over the rows; its state needs no mean and variance of the weights."""
        raise NotImplementedError

    def after(self, state: Sweeping, weights: Sites) -> Moments | None:
        """The same, of the row sites of a state and new prior sites."""
        return self.moments(state.sites, weights)

    def visited(self, state: Sweeping) -> tuple[Array, Array]:
        """What visits of weights update: a matrix and a vector, copies."""
        raise NotImplementedError

    def rows_of(self, visits: NDArray[np.intp], sites: Sites) -> Rows:
        """The rows by which these weights are visited."""
        raise NotImplementedError

    # -- for the loop --

    def init(self, start: Any) -> Sweeping:
        n = self.problem.shape[0]
        rows, weights, sweeps = flat(n), self.of_weights.start, 0
        if start is not None:
            shapes = [len(start.sites.shift), len(start.prior_sites.shift)]
            if shapes != [n, len(weights.shift)]:
                raise ValueError(
                    f"start has sites of {shapes[0]} rows and {shapes[1]} weights; allowed: {n} "
                    f"and {len(weights.shift)}, the same rows"
                )
            rows, sweeps = start.sites, start.n_sweeps
            # what is not visited is exact
            weights = families.copied(weights)
            which = self.of_weights.visits
            families.put(weights, which, families.taken(start.prior_sites, which))
        if self.exact is not None:
            rows = self.exact
        now = self.moments(rows, weights)
        if now is None:
            raise improper_start()
        memory = None
        if self.exact is None and self._chunked():
            memory = ChunkMemory(chunk_size(self.problem), start is None)
        begun = self._state(rows, weights, sweeps, now, memory, self.schedule.damping)
        if self.schedule.order == "auto" and self.problem.wide is not None:
            # from little data for each weight undamped sweeps go far astray
            begun = begun._replace(damping=min(SHORT, self.schedule.damping))
        return begun

    def summary(self, state: Sweeping, evidence: bool = True) -> Summary:
        return Summary(state.mean, state.variance, state.log_evidence)

    def settle(self, state: Sweeping, hurry: bool = False) -> ShrunkState:
        """Free of drift; log scales, which lag behind sites that are damped or mixed, anew."""
        rows, weights, now = state.sites, state.prior_sites, state.now
        if not hurry and state.sweeps > 0:
            if state.mixes and self.exact is None:
                rows = self.visit_rows(state, no_tick)[0].sites
            found = self.moments(rows, weights)
            if found is None:
                rows, found = state.sites, self.moments(state.sites, weights)
            now = found or now
            weights = self._rescaled(weights, now)
            state = self._state(rows, weights, state.sweeps, now, None, state.damping)
        whole: Any = state
        return ShrunkState(*whole[: len(ShrunkState._fields)])

    def sweep(self, state: Sweeping, keep: bool, tick: Tick) -> tuple[Sweeping, Counts]:
        self.tilted.begin_sweep(state.sweeps)
        before, refused, settled = state, 0, None
        if self.exact is None:
            state, counts = self.visit_rows(state, tick)
            refused, settled = counts.refused, counts.settled
        weights, more = self._weights(state, tick)
        sites = state.sites
        now, share = self.after(state, weights), 1.0
        while now is None:
            share *= 0.5
            if share < LEAST_SHARE:
                lost = before._replace(sweeps=before.sweeps + 1)
                return lost, Counts(self.n_sites)
            sites = families.damped(before.sites, sites, share)
            weights = families.damped(before.prior_sites, weights, share)
            now = self.moments(sites, weights)
        new = self._state(
            sites,
            weights,
            before.sweeps + 1,
            now,
            state.memory,
            before.damping,
        )
        moved = change(self.summary(before), self.summary(new))
        left = moved * self.schedule.damping / before.damping
        counts = Counts(refused + more, left=left)
        if self.schedule.order == "auto":
            new = self._mixed(_paced(new, before, moved, more > 0), before)
        if share < 1.0 or settled is False:
            counts = counts._replace(settled=False)
        return new, counts

    # -- parts --

    def _mixed(self, new: Sweeping, before: Sweeping) -> Sweeping:
        """A sweep with those before it (Anderson mixing), where they move less and less.

        It also finds fixed points that sweeps of any length move away from.
        """
        old, weights, spread = before.prior_sites, new.prior_sites, before.variance
        moves = np.concatenate(
            [
                (weights.precision - old.precision) * spread,
                (weights.shift - old.shift) * np.sqrt(spread),
            ]
        )
        moves /= before.damping
        steps = (*before.steps, Step(new.sites, weights, moves))[-DEPTH:]
        new, restarted = new._replace(steps=steps), new._replace(steps=steps[-1:])
        if not new.mixes or len(steps) < 2:
            return new
        if not moves @ moves < steps[-2].moves @ steps[-2].moves:
            return restarted
        share = shares_of([step.moves for step in steps])
        if share is None:
            return restarted
        rows, mixed = (_combined(share, part) for part in list(zip(*steps, strict=True))[:2])
        now = self.moments(rows, mixed)
        if now is None or not (mixed.precision * now.variance < 1.0)[self.of_weights.visits].all():
            return restarted
        found = self._state(rows, mixed, new.sweeps, now, new.memory, new.damping)
        return found._replace(
            least=new.least, stalled=new.stalled, last=new.last, mixes=new.mixes, steps=new.steps
        )

    def _state(
        self,
        rows: Sites,
        weights: Sites,
        sweeps: int,
        now: Moments,
        memory: ChunkMemory | None,
        damping: float,
    ) -> Sweeping:
        scale = float(rows.log_scale.sum() + weights.log_scale.sum())
        evidence = scale + 0.5 * (now.square - now.log_determinant)
        evidence += 0.5 * len(now.mean) * math.log(2.0 * math.pi)
        return Sweeping(
            now.precision,
            now.shift,
            rows,
            scale,
            sweeps,
            None,
            weights,
            now.mean,
            now.variance,
            evidence,
            now,
            memory,
            damping,
        )

    def _rescaled(self, sites: Sites, now: Moments) -> Sites:
        """Prior sites with the scales by which their integrals over the cavities are Z."""
        visits = self.of_weights.visits
        tau, nu = sites.precision[visits], sites.shift[visits]
        mean, variance = now.mean[visits], now.variance[visits]
        rest = 1.0 - tau * variance
        if not len(visits) or not (rest > 0.0).all():
            return sites
        m, v = (mean - nu * variance) / rest, variance / rest
        lZ, *others = np.empty((3, len(visits)))
        if self.tilted.many(self.ones, m, v, self.ones[:, 0].copy(), lZ, *others):
            return sites
        whole = 1.0 + tau * v
        scale = sites.log_scale.copy()
        scale[visits] = lZ + 0.5 * np.log(whole)
        scale[visits] -= 0.5 * (2.0 * m * nu + nu * nu * v - tau * m * m) / whole
        return sites._replace(log_scale=scale)

    def _chunked(self) -> bool:
        order = self.schedule.order
        if order == "auto":
            own = type(self.schedule).visits is not Schedule.visits
            undamped = self.schedule.tol > 0.0 and self.schedule.damping == 1.0
            return undamped and not own and is_for_chunks(self.problem)
        return bool(order == "chunked")

    def _core(self, damping: float) -> Any:
        """Sweeps over the weights with this damping."""
        if damping not in self._cores:
            if self.is_parallel:
                core: Any = ParallelSweep(self.tilted, 1, PARALLEL_ROWS, 1.0, damping)
            else:
                size = self.order_of_matrices
                core = BlockedSweep(self.tilted, size, self.block, 1.0, damping, False)
            self._cores[damping] = core
        return self._cores[damping]

    def _weights(self, state: Sweeping, tick: Tick) -> tuple[Sites, int]:
        """New prior sites, and how many were refused."""
        visits, sites = self.of_weights.visits, families.copied(state.prior_sites)
        if not len(visits):
            return sites, 0
        core = self._core(state.damping)
        before = core.n_refused
        if self.is_parallel:
            some = Sites(*map(np.ascontiguousarray, families.taken(sites, visits)))
            mean, variance = (
                np.ascontiguousarray(part[visits]) for part in (state.now.mean, state.now.variance)
            )
            core.fit(mean, variance, self.ones, *some)
            families.put(sites, visits, some)
            tick(len(visits))
            return sites, core.n_refused - before
        if self.schedule.order == "shuffled":
            visits = visits[np.asarray(self.schedule.checked_visits(len(visits), state.sweeps))]
        matrix, vector = self.visited(state)
        step = max(self.block, CHUNK // self.order_of_matrices**2)
        for first in range(0, len(visits), step):
            part = np.ascontiguousarray(visits[first : first + step])
            rows = self.rows_of(part, sites)
            core.sweep(rows, self.ones, None, part, matrix, vector, *sites)
            tick(len(part))
        return sites, core.n_refused - before


class ByWeights(WeightEngine):
    """Matrices of order d: no fewer rows than weights."""

    def __init__(self, problem: LinearProblem, of_weights: PriorSites, exact: Sites | None) -> None:
        super().__init__(problem, of_weights, exact, problem.shape[1])
        self.rows = None if exact is not None else RowEngine(problem)
        self.known = None if exact is None else sum_of_sites(problem, exact)

    def moments(self, sites: Sites, of_weights: Sites) -> Moments | None:
        gram, shift = sum_of_sites(self.problem, sites) if self.known is None else self.known
        return self._of(gram + np.diag(of_weights.precision), shift + of_weights.shift)

    def after(self, state: Sweeping, weights: Sites) -> Moments | None:
        old = state.prior_sites
        assert state.now.precision is not None
        precision = state.now.precision + np.diag(weights.precision - old.precision)
        return self._of(precision, state.now.shift + weights.shift - old.shift)

    def _of(self, precision: Array, shift: Array) -> Moments | None:
        try:
            factor = factor_of(precision)
        except FloatingPointError:
            return None
        log_determinant = 2.0 * float(np.log(np.diag(factor)).sum())
        mean = linalg.cho_solve((factor, True), shift)
        inverse_from_factor(factor)
        covariance = symmetric_from_upper(factor.T)
        variance = np.diag(covariance).copy()
        square = float(shift @ mean)
        return Moments(precision, shift, mean, variance, log_determinant, square, covariance)

    def visit_rows(self, state: Sweeping, tick: Tick) -> tuple[Sweeping, Counts]:
        engine, weights = self.rows, state.prior_sites
        assert engine is not None
        assert state.precision is not None
        base = State(np.diag(weights.precision), weights.shift, None, 0.0, state.sweeps)
        # scratch of its own, but for what its rows multiply
        engine.problem = engine.form.problem = self.problem._replace(base=base)
        order = self.schedule.order
        if order == "auto":
            order = "sequential" if state.memory is None else "chunked"
        begun = Swept(
            state.precision,
            state.shift,
            state.sites,
            0.0,
            state.sweeps,
            None,
            state.now.matrix,
            state.now.mean,
            state.now.log_determinant,
            state.now.square,
            order,
            state.memory,
        )
        try:
            found, counts = engine.sweep(begun, True, tick)
        except PartOfSweep:
            # its state has no place for prior sites: back to the last whole sweep
            raise KeyboardInterrupt from None
        assert found.sites is not None
        # a mix of sweeps would be one of other prior sites too
        memory = None if found.memory is None else found.memory._replace(mixes=False, steps=())
        now = state.now._replace(
            precision=found.precision,
            shift=found.shift,
            matrix=found.covariance,
            mean=found.mean,
            variance=np.diag(found.covariance).copy(),
            log_determinant=found.log_determinant,
            square=found.square,
        )
        return state._replace(sites=found.sites, now=now, memory=memory), counts

    def visited(self, state: Sweeping) -> tuple[Array, Array]:
        return state.now.matrix.copy(), state.now.mean.copy()

    def rows_of(self, visits: NDArray[np.intp], sites: Sites) -> Rows:
        return Units(visits, self.order_of_matrices)

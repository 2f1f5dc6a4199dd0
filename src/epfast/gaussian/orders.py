"""Orders of visits to scalar sites: one row after the other, all at once, or in chunks.

One row after the other is the exact blocked sweep (``_core/row_sweeps.pyx``), all at once is
parallel EP. In chunks the sites of c rows are fitted from one posterior, then the posterior from
the sites: between sequential EP, c = 1, and parallel EP, c = n. Nearly all of the work is in
products of matrices then, and sweeps contract as sequential ones do while a chunk is a small share
of the rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import families
from epfast._arrays import CSR, Array, Piece, as_array, is_sparse
from epfast._core.chunks import MOST_LANES, ChunkedSweep
from epfast._core.row_sweeps import BlockedSweep, SiteFits
from epfast._core.rows import Rows
from epfast._core.thread_pool import ThreadPool
from epfast._core.tilted import TiltedMoments
from epfast.gaussian.engine import (
    STALLED,
    E,
    EPEngine,
    Form,
    Full,
    M,
    S,
    Start,
    Visited,
    Visits,
    Working,
    block_size,
    contraction,
    gaussian,
    with_moments,
)
from epfast.gaussian.problem import Problem, RowsOrProcess, peak_sites
from epfast.gaussian.state import State, not_proper
from epfast.inference import Counts, Sites, Summary
from epfast.inference.loop import change
from epfast.inference.runtime import Tick, blas_threads, each

Indices = NDArray[np.intp]

#: rows per block of marginals, of dense rows up to so many columns, and of all others
BLOCK, NARROW, WIDE_BLOCK = 128, 256, 1024
#: a chunk that is not taken is halved to no fewer rows, which then go one by one
LEAST = 32
#: a chunk is this part of the rows, or so many for each column, and there are FEWEST of them at
#: least
SHARE, PER_DIMENSION, FEWEST = 16, 2, 4
#: chunks grow, up to this part of the rows, while a sweep changes less than this share of what the
#: last one did
LARGEST, CONTRACTS = 8, 0.6
#: with fewer rows than these, or than so many per dimension, sweeps are sequential
FEW_ROWS, ROWS_PER_DIMENSION = 400, 4
#: from flat sites the first chunk is of so many rows, and each of the next is twice as large
FIRST = 32
#: dimensions from which sequential sweeps keep one triangle of the covariance only, which is faster
HALF_FROM = 256
#: growth of the precision's diagonal after which it is formed anew, for its rounding
DRIFT = 64.0
#: work that a lane of a chunk is for, in multiplications of dense rows; what a row, and a product
#: of two nonzeros of a sparse one, amount to
LANE_WORK, ROW_WORK, PRODUCT_WORK = 3.3e6, 830.0, 8.3
#: rows whose work pays for the sum of a lane, and the most bytes of the sums of all lanes
ROWS_OF_SUM, LANE_BYTES = 100, 1 << 26


def overshoots(problem: Problem) -> bool:
    """Whether t is known not to be log-concave: sites may be negative (likelihoods alone).

    Rows whose sites change at once may overshoot then (Jylänki, Vanhatalo & Vehtari 2011).
    """
    loss = problem.loss
    return loss.is_likelihood and loss.log_concave is False and not loss.by_margin


def is_for_chunks(problem: Problem) -> bool:
    """Whether chunks are the automatic order for so many rows."""
    n, d = problem.data.X.shape
    enough = n >= max(FEW_ROWS, ROWS_PER_DIMENSION * d)
    return enough and not (overshoots(problem) or problem.scheme.relaxes)


def chunk_size(problem: RowsOrProcess) -> int:
    """Rows per chunk to begin with, if none are asked for."""
    n, d = problem.shape
    size = max(64, PER_DIMENSION * d, n // SHARE)
    return problem.schedule.block or max(1, min(n // FEWEST, size))


def block_of(d: int, is_sparse: bool) -> int:
    """Rows per block of marginals."""
    return WIDE_BLOCK if is_sparse or d > NARROW else BLOCK


def lanes_of(d: int, size: int, count: int, nonzeros: Indices | None) -> Indices:
    """How many lanes each chunk of ``size`` of ``count`` rows is cut into: powers of 2.

    They depend on the rows alone and not on threads, so that results do not either.

    Parameters
    ----------
    nonzeros : ndarray of shape (count,) or None
        Of the rows. None: they are dense.
    """
    first = np.arange(0, count, size)
    work = ROW_WORK * np.minimum(size, count - first)
    if nonzeros is None:
        work *= 1.0 + d * d / ROW_WORK
    else:
        work += PRODUCT_WORK * np.add.reduceat(np.square(nonzeros, dtype=np.float64), first)
    by_work = np.minimum(1.0 + work / LANE_WORK, work / (ROWS_OF_SUM * d * d))
    most = np.clip(by_work, 1.0, min(MOST_LANES, 1.0 + LANE_BYTES / (8 * d * d)))
    lanes: Indices = np.exp2(np.floor(np.log2(most))).astype(np.intp)
    return lanes


class ChunkMemory(NamedTuple):
    """What the chunks of the next sweep depend on."""

    #: rows per chunk
    size: int
    #: True until the first site is fitted
    flat: bool
    #: the change of the last sweep, its least so far, and the number of sweeps since
    last: float = np.inf
    least: float = np.inf
    stalled: int = 0
    #: sweeps since the precision was formed anew
    since: int = 0

    def next(self, change: float, n: int, fixed: bool) -> ChunkMemory:
        """The memory after a sweep with this change; fixed: the chunks keep their size."""
        least, stalled = contraction(change, self.least, self.stalled)
        size = self.size
        if stalled >= STALLED and not fixed:
            size, least, stalled = max(min(LEAST, size), size // 4), np.inf, 0
        elif change < CONTRACTS * self.last and not (fixed or self.flat):
            size = max(size, min(2 * size, n // LARGEST))
        return ChunkMemory(size, False, change, least, stalled, self.since + 1)


class RowMemory(NamedTuple):
    """What the next sweep over rows goes by."""

    order: str
    #: None in other orders
    chunks: ChunkMemory | None = None


RowState = Working[RowMemory]


class Layout(NamedTuple):
    """The rows in the order of their visits, as the core takes them."""

    visits: Indices
    #: all rows. None: they are gathered piece by piece
    rows: Rows | None
    #: the rows of X in ``rows``, in the order of the visits
    places: Indices | None
    is_sparse: bool
    #: of ``rows``, where these are sparse
    nonzeros: Indices | None = None


def layout_of(problem: Problem, visits: Indices) -> Layout:
    """Lay out the rows of a problem. A sparse X is copied."""
    X, n = problem.data.X, len(visits)
    if is_sparse(X):
        if X.nnz >= np.iinfo(np.intc).max:
            return Layout(visits, None, None, True)
        rows = ordered(X[visits])
        return Layout(visits, Rows(rows), np.arange(n), True, nonzeros_of(rows))
    if X.dtype != np.float64 or not (X.flags.c_contiguous and X.flags.aligned):
        return Layout(visits, None, None, False)
    return Layout(visits, Rows(X), visits, False)


def nonzeros_of(rows: CSR) -> Indices:
    """Count the stored entries of each row."""
    return np.diff(rows.indptr).astype(np.intp)


def visits_in_chunks(problem: RowsOrProcess, sweep: int, layout: Layout | None) -> Indices:
    """The order of the rows: random, by the seed, unless the schedule has one of its own."""
    schedule, n = problem.schedule, problem.n_rows
    if schedule.order == "parallel" or not schedule.keeps_order:
        return as_array(schedule.checked_visits(n, sweep))
    return schedule.fixed_visits(n) if layout is None else layout.visits


def ordered(rows: CSR) -> CSR:
    """CSR rows, each entry once and in the order of its columns. May change its argument."""
    rows.sum_duplicates()
    return rows


def sequential_core(problem: Problem, tilted: TiltedMoments) -> BlockedSweep:
    """Scratch for one row after the other."""
    schedule, d = problem.schedule, len(problem.base.shift)
    block = block_size(getattr(schedule, "block", None), d)
    damping = 1.0 if schedule.damping is None else schedule.damping
    full = d < HALF_FROM or problem.sparse
    relaxation = problem.scheme.relaxation(tilted)
    return BlockedSweep(tilted, d, block, schedule.power, damping, full, relaxation)


class InChunks(Visits[RowState, RowMemory]):
    """The rows of a chunk from one posterior; chunk after chunk, from flat sites small ones first.

    Few rows that no chunk takes go one after the other.
    """

    in_turn = accelerates = True

    def __init__(self, problem: Problem, tilted: TiltedMoments, threads: ThreadPool) -> None:
        self.problem, self.tilted = problem, tilted
        self.sequential = sequential_core(problem, tilted)
        self.n_threads = threads.threads if tilted.separate else 1
        self.threads = threads
        self.layout: Layout | None = None
        self.core: ChunkedSweep

    def visit(self, state: RowState, sites: Sites, tick: Tick) -> Visited[RowState, RowMemory]:
        assert state.memory is not None
        memory = state.memory.chunks
        assert memory is not None
        layout, first, lost = self._lay_out(state.sweeps), 0, 0
        visits, core, sequential = layout.visits, self.core, self.sequential
        precision, shift = state.precision.copy(), state.shift.copy()
        if not core.begin(precision, shift):
            raise not_proper()
        core.residual = 0.0
        refused_before = core.n_refused + sequential.n_refused

        def work() -> None:
            nonlocal first, lost
            size = FIRST if memory.flat else memory.size
            while first < len(visits):
                rows = size = min(size, memory.size)
                if size == memory.size:
                    rows = self._at_once(size)
                part = slice(first, min(first + rows, len(visits)))
                lost += self._piece(layout, part, size, precision, shift, sites)
                first, size = part.stop, 2 * size
                tick(part.stop - part.start)

        def share(_: int, part: int) -> None:
            if part > 0:
                core.help(part)
                return
            try:
                work()
            finally:
                core.queue.close()

        count = self._threads_for(layout, memory.size)
        if count > 1:
            core.queue.open()
            with blas_threads(1), self.threads:
                self.threads.each(share, count)
        else:
            work()
        refused = lost + core.n_refused + sequential.n_refused - refused_before
        visited = Visited[RowState, RowMemory](
            Counts(min(len(visits), refused)), residual=core.residual
        )
        total = self.problem.base.log_scale + float(sites.log_scale.sum())
        new: RowState | None
        new = gaussian(State(precision, shift, sites, total, state.sweeps + 1))
        if new is None:
            return visited
        now = Summary(new.mean, new.covariance.diagonal().copy())
        old = Summary(state.mean, state.covariance.diagonal().copy())
        schedule = self.problem.schedule
        # where sweeps may end, rounding is known
        ends = change(old, now) <= schedule.tol * schedule.damping
        if ends or core.drift() > DRIFT:
            return visited._replace(swept_moments=now)
        return visited._replace(swept_state=new)

    def accelerate(
        self, old: RowState, new: RowState, visited: Visited[RowState, RowMemory], moved: float
    ) -> tuple[RowState, Visited[RowState, RowMemory]]:
        """The state with the memory of the next sweep."""
        fixed = self.problem.schedule.block is not None
        assert old.memory is not None
        assert old.memory.chunks is not None
        chunks = old.memory.chunks.next(moved, self.problem.shape[0], fixed)
        if visited.swept_state is None:  # the sites have formed the precision anew
            chunks = chunks._replace(since=0)
        return new._replace(memory=RowMemory("chunked", chunks)), visited

    def _lay_out(self, sweep: int) -> Layout:
        """The rows in the order of a sweep; laid out anew where that is another one."""
        layout, visits = self.layout, visits_in_chunks(self.problem, sweep, self.layout)
        if layout is None or (
            layout.visits is not visits and not np.array_equal(layout.visits, visits)
        ):
            self.layout = layout = layout_of(self.problem, visits)
            schedule, d = self.problem.schedule, self.problem.shape[1]
            self.core = ChunkedSweep(
                self.tilted,
                d,
                min(block_of(d, layout.is_sparse), len(visits)),
                schedule.power,
                schedule.damping,
                layout.is_sparse,
                [self.problem.tilted() for _ in range(1, self.n_threads)],
            )
        return layout

    def _threads_for(self, layout: Layout, size: int) -> int:
        """How many threads a chunk of this size is for."""
        if self.n_threads == 1:
            return 1
        if layout.is_sparse and layout.nonzeros is None:  # the rows are gathered
            return self.n_threads
        nonzeros, count = layout.nonzeros, min(size, len(layout.visits))
        part = None if nonzeros is None else nonzeros[:count]
        return min(self.n_threads, int(lanes_of(self.problem.shape[1], count, count, part)[0]))

    def _at_once(self, size: int) -> int:
        """Rows of as many chunks as one look at signals is for."""
        return size * max(1, 8 * self.problem.chunk // (self.problem.shape[1] * size))

    def _piece(
        self, layout: Layout, part: Piece, size: int, P: Array, p: Array, sites: Sites
    ) -> int:
        """Visit some rows in chunks of one size; those that are not taken, in smaller ones.

        Return how many keep their sites, since no order takes them.
        """
        problem, visits, lost = self.problem, layout.visits[part], 0
        nonzeros = None
        if layout.rows is None or layout.places is None:
            gathered = problem.data.X[visits]
            if isinstance(gathered, np.ndarray):
                rows = Rows(np.ascontiguousarray(gathered, dtype=np.float64))
            else:
                gathered = ordered(gathered)
                rows, nonzeros = Rows(gathered), nonzeros_of(gathered)
            places = np.arange(len(visits))
        else:
            rows, places = layout.rows, layout.places[part]
            nonzeros = None if layout.nonzeros is None else layout.nonzeros[part]
        y, weights = problem.data.y, problem.data.weights
        todo = [(0, len(visits), size)]
        while todo:
            first, stop, size = todo.pop()
            which = slice(first, stop)
            part_of = None if nonzeros is None else nonzeros[which]
            lanes = lanes_of(problem.shape[1], size, stop - first, part_of)
            done = self.core.advance(
                rows, places[which], visits[which], y, weights, size, *sites, None, lanes
            )
            first += done
            if first == stop:
                continue
            end = min(first + size, stop)
            todo.append((end, stop, size))
            if end - first > LEAST:
                todo.append((first, end, (end - first + 1) // 2))
            else:
                which = slice(first, end)
                new = self._one_by_one(visits[which], P, p, sites)
                if not self.core.take(rows, places[which], visits[which], new, *sites):
                    lost += end - first
        return lost

    def _one_by_one(self, visits: Indices, P: Array, p: Array, sites: Sites) -> Array:
        """New sites of some rows, (3, count), in sequential order."""
        problem, new = self.problem, np.array(families.select(sites, visits))
        now = with_moments(State(P, p, None, 0.0, 0))
        self.sequential.sweep(
            problem.rows(visits),
            problem.responses(visits),
            problem.weights(visits),
            np.arange(len(visits)),
            now.covariance,
            now.mean,
            *new,
        )
        return new


# ---- one row after the other, and all at once ----


#: damping of sweeps of all rows at once, where sequential ones are stuck
RESTART_DAMPING = 0.5
#: sd of the cavity of the first sites, in the unit of latent values
WIDE = 3.0


class InTurn(Visits[RowState, RowMemory]):
    """One row after the other: each sees what the one before has found."""

    in_turn = True

    def __init__(self, problem: Problem, tilted: TiltedMoments, form: Full[RowMemory]) -> None:
        self.problem, self.schedule, self.form = problem, problem.schedule, form
        self.core = sequential_core(problem, tilted)
        self.relaxation = self.core.relaxation
        self.accelerates = (
            problem.schedule.order == "auto"
            and problem.schedule.tol > 0.0
            and self.relaxation is None
            and overshoots(problem)
        )
        plain = self.schedule.order != "shuffled" and self.schedule.keeps_order
        self.parts = form.parts if plain else None
        self.numbers = np.arange(form.n_rows)

    def visit(self, state: RowState, sites: Sites, tick: Tick) -> Visited[RowState, RowMemory]:
        core, problem, parts = self.core, self.problem, self.parts
        refused_before, core.moved = core.n_refused, 0.0
        covariance, mean = state.covariance.copy(), state.mean.copy()
        if parts is None:
            visits = self.schedule.checked_visits(problem.shape[0], state.sweeps)
        for part in problem.parts(visits) if parts is None else parts:
            numbers = self.numbers[part.which]
            core.sweep(part.rows, part.y, part.weights, numbers, covariance, mean, *sites)
            tick(part.rows.n)
        residual = math.sqrt(core.moved) / self.schedule.damping
        swept_moments = Summary(mean, covariance.diagonal().copy())
        return Visited(
            Counts(core.n_refused - refused_before), swept_moments=swept_moments, residual=residual
        )

    def accelerate(
        self, old: RowState, new: RowState, visited: Visited[RowState, RowMemory], moved: float
    ) -> tuple[RowState, Visited[RowState, RowMemory]]:
        """The state, or the prior where rows are stuck, from which all rows are fitted at once.

        The first rows may pin the posterior where most of the others are outliers, of which some
        have improper cavities then and keep their sites.
        """
        if visited.counts.refused == 0 or new.sweeps == 1:
            return new, visited
        fresh = self.form.prior()._replace(sweeps=new.sweeps, memory=RowMemory("parallel_damped"))
        return fresh, visited._replace(settled=False, swept_moments=None)


class AtOnce(Visits[S, M]):
    """All rows, or values, from the posterior before the sweep."""

    def __init__(
        self,
        problem: RowsOrProcess,
        tilted: TiltedMoments,
        form: Form[S, E],
        damping: float,
        threads: ThreadPool | None = None,
    ) -> None:
        self.problem, self.form, self.threads = problem, form, threads or ThreadPool(1)
        self.numbers = problem.schedule.power, damping
        #: scratch of each thread
        self.cores = [SiteFits(tilted, *self.numbers)]

    def visit(self, state: S, sites: Sites, tick: Tick) -> Visited[S, M]:
        problem, n, at_rows = self.problem, self.problem.n_rows, self.form.at_rows(state)
        # whole blocks, so that the numbers do not depend on the parts
        blocks = problem.chunk // (self.form.width * BLOCK * self.threads.threads)
        step = BLOCK * max(1, blocks)
        parts = [slice(i, min(i + step, n)) for i in range(0, n, step)]
        while len(self.cores) < min(len(parts), self.threads.threads):
            self.cores.append(SiteFits(problem.tilted(), *self.numbers))
        for core in self.cores:
            core.residual = 0.0
        refused_before = sum(core.n_refused for core in self.cores)

        def work(k: int, number: int) -> Iterator[int]:
            part = parts[number]
            own = *at_rows(part), problem.responses(part), *families.select(sites, part)
            self.cores[k].fit(*own, problem.weights(part))
            yield part.stop - part.start

        each(self.threads, work, len(parts), tick)
        refused = sum(core.n_refused for core in self.cores) - refused_before
        return Visited(Counts(refused), residual=max(core.residual for core in self.cores))


def first_sites(problem: Problem, tilted: TiltedMoments | None = None) -> Sites:
    """The sites of all rows in one cavity, about as wide as latent values differ.

    A factor that is far narrower has the Gaussian about its own peak.
    """
    n, responses = problem.n_rows, problem.responses(slice(None))
    center, unit = problem.loss.typical(problem.data.y, problem.data.weights)
    h, s = np.full(n, center), np.full(n, (WIDE * unit) ** 2)
    sites = Sites(np.zeros(n), np.zeros(n), np.zeros(n))
    core = SiteFits(tilted or problem.tilted(), problem.schedule.power, 1.0)
    core.fit(h, s, responses, *sites, problem.weights(slice(None)))
    peaks = peak_sites(problem) if core.n_refused else None
    if peaks is None:
        return sites
    flat = (sites.precision == 0.0) & (sites.shift == 0.0)
    return Sites(*(np.where(flat, peak, site) for peak, site in zip(peaks, sites, strict=True)))


def order_of_rows(problem: Problem) -> str:
    """The order of the first sweep, in place of "auto"."""
    schedule = problem.schedule
    if schedule.order != "auto":
        return str(schedule.order)
    # a schedule with an order of its own keeps it
    return "chunked" if is_for_chunks(problem) and schedule.is_automatic else "sequential"


def first_memory(problem: Problem, is_flat: bool) -> RowMemory:
    """What the first sweep goes by; is_flat: from flat sites."""
    order = order_of_rows(problem)
    chunks = ChunkMemory(chunk_size(problem), is_flat) if order == "chunked" else None
    return RowMemory(order, chunks)


def visits_of(
    order: str, problem: Problem, tilted: TiltedMoments, form: Full[RowMemory], threads: ThreadPool
) -> Visits[RowState, RowMemory]:
    """Visits of the rows in some order."""
    if order == "chunked":
        return InChunks(problem, tilted, threads)
    if order in ("parallel", "parallel_damped"):
        damping = RESTART_DAMPING if order == "parallel_damped" else problem.schedule.damping
        return AtOnce(problem, tilted, form, damping, threads)
    assert order in ("sequential", "shuffled"), order
    return InTurn(problem, tilted, form)


class RowEngine(EPEngine[RowState, State | RowState, RowMemory]):
    """A site per row of X: two numbers and a log scale."""

    problem: Problem
    form: Full[RowMemory]
    tilted: TiltedMoments

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, Full(problem))
        self.tilted = problem.tilted()
        self.exact = problem.sites_unswept()
        self.threads = ThreadPool(1)
        self._visits: dict[str, Visits[RowState, RowMemory]] = {}

    def init(self, start: Start | None) -> RowState:
        """The state of a start. Under another prior the sum over the rows is kept. O(d^3)."""
        first, state = getattr(start, "problem", None), None if start is None else start.state
        kept = first is not None and first.data.X is self.problem.data.X
        if self.exact is None and kept and isinstance(state, State):
            assert first is not None
            under = self._under(self.problem.base, state, first.base)
            if under is not None:
                return self.start_of_run(under, False)
        working: RowState = super().init(start)
        return working

    def _under(self, base: State, state: State, old_base: State) -> RowState | None:
        """The posterior of the sites of a state with another base than the one before. O(d^3)."""
        precision, shift, sites = state.precision, state.shift, state.sites
        assert sites is not None
        if base is not old_base:
            precision = precision - old_base.precision + base.precision
            shift = shift - old_base.shift + base.shift
        total = base.log_scale + float(sites.log_scale.sum())
        swept = State(precision, shift, sites, total, state.sweeps, None, state.relaxed)
        return gaussian(swept)

    def share(self, threads: ThreadPool) -> None:
        """Sweeps in chunks and in parallel order are for these threads, if moments are."""
        if self.tilted.separate:
            self.threads = threads

    def visits(self, state: RowState) -> Visits[RowState, RowMemory]:
        assert state.memory is not None
        order = state.memory.order
        if order not in self._visits:
            visits = visits_of(order, self.problem, self.tilted, self.form, self.threads)
            self._visits[order] = visits
        return self._visits[order]

    def start_of_run(self, state: RowState, is_flat: bool) -> RowState:
        """The state, and how its first sweep goes."""
        return state._replace(memory=first_memory(self.problem, is_flat))

    def drifts(self, state: RowState) -> bool:
        """Whether sweeps have added up changes, whose rounding is in the state."""
        chunks = None if state.memory is None else state.memory.chunks
        return chunks is not None and chunks.since > 0

    def finish(self, state: RowState, hurry: bool = False) -> RowState:
        """The state with its moments."""
        if not hurry and self.drifts(state):
            assert state.sites is not None
            state = self.form.rebuild(state.sites, state.sweeps) or state
        return state._replace(memory=None)

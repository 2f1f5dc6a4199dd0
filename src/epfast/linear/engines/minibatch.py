"""EP and ADF with a factorised posterior: minibatch factors, or rows (Roche 2016)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import families
from epfast._arrays import Array, as_array
from epfast._core.crew import Crew
from epfast._core.minibatch import Design, MinibatchSweep
from epfast.inference import Counts, PartOfSweep, Sites, Summary, run
from epfast.inference.runtime import PacedParts, Tick
from epfast.inference.threads import ALONE, Threads
from epfast.linear.engines.base import adf_start
from epfast.linear.problem import Data, LinearProblem, State
from epfast.linear.sources import Stream
from epfast.schedules import EP

#: rows that settle by EP before a pass of ADF goes on from a flat start: so many and so many per
#: dimension, as far as their sites have no more numbers than this
SETTLE_ROWS, SETTLE_PER_DIMENSION, SETTLE_NUMBERS = 1000, 50, 1 << 23
#: numbers of X that any scheme takes in in a moment
MOMENT = 1 << 13
#: a lane of a parallel sweep has at least so many numbers of X; lanes
LANE, MOST_LANES = 1 << 18, 16
#: EP on these rows
SETTLE_SWEEPS, SETTLE_TOL = 20, 1e-2


class Piece(NamedTuple):
    """Rows at hand, of which a pass visits factors."""

    X: Any
    y: Array
    weights: Array | None
    #: numbers of the factors to visit, in order
    order: NDArray[np.intp]

    def of(self, factors: NDArray[np.intp], size: int) -> Data:
        """The rows of some factors, in the order of X."""
        n = self.X.shape[0]
        rows = (np.sort(factors)[:, None] * size + np.arange(min(size, n))).ravel()
        return Data(self.X, self.y, self.weights).taken(rows[rows < n])

    def rows_of(self, factors: NDArray[np.intp], size: int) -> int:
        """How many rows some factors have."""
        return int(np.minimum(size, self.X.shape[0] - factors * size).sum())


def physical_memory() -> int:
    """Bytes of memory of this machine; 0 where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return 0


def rows_to_settle(schedule: Any, size: int, d: int) -> int:
    """How many rows settle before a pass of ADF, of whole minibatches of so many."""
    rows: int | None = schedule.settle
    if rows is None:
        most = max(1, SETTLE_NUMBERS // d) * size
        rows = min(max(SETTLE_ROWS, SETTLE_PER_DIMENSION * d), most)
    return -(-rows // size) * size


class MinibatchEngine:
    """EP stores sites of (factors, d) numbers, ADF stores none. O(s d) per factor.

    Early in a pass of ADF the diagonal posterior is surer than the few rows allow. What it gets
    wrong then, it unlearns along directions of little curvature only as n^-r, r the curvature there
    over that of the columns: the means stay hundreds of standard deviations off. So the first rows
    settle by EP, and the pass goes on from there.
    """

    order_of_matrices = 0
    measures = False
    crew: Crew | None = None
    #: that sweeps in parallel order are for
    threads = ALONE
    #: settings of the core beside those of the schedule
    for_core: ClassVar[dict[str, Any]] = {}

    def __init__(self, problem: LinearProblem, traced: bool = False) -> None:
        self.problem, self.schedule = problem, problem.schedule
        self.remedy, self.evidence_bound = problem.remedy, problem.evidence_bound
        #: True if the posterior mean is recorded after every factor
        self.traced = traced
        self.size = int(problem.batch_size or 1)
        data, self.d = problem.data, len(problem.prior.shift)
        self.stream = isinstance(data.X, Stream)
        n = 1 if self.stream else data.X.shape[0]
        #: of a stream: known after the pass
        self.n_sites = -(-n // self.size)
        self._check_memory(n)
        self.core = None if self.stream else self._core(n)

    def _check_memory(self, n: int) -> None:
        """Refuse what cannot fit: sites, as they were and as they will be, and rows of a factor."""
        memory, d = physical_memory(), self.d
        for needed, what, cheaper in self._memory(n):
            if 0 < memory < needed:
                raise ValueError(
                    f"X has shape ({n}, {d}), for which {what} numbers: {needed / 2**30:.3g} GB in "
                    f"all, and this machine has {memory / 2**30:.3g} GB; allowed: {cheaper}"
                )

    def _memory(self, n: int) -> tuple[tuple[int, str, str], ...]:
        """What takes memory: bytes, in words, what takes less."""
        sites = 32 * self.n_sites * self.d if self.schedule.stores == "factor" else 0
        # the rows of a factor and what Laplace makes of them; only sparse rows are fewer bytes
        factor = 16 * min(self.size, n) * self.d if self.problem.sparse else 0
        return (
            (
                sites,
                f"EP stores sites of ({self.n_sites}, {self.d})",
                "schedule=ADF(), which stores none, or a larger batch_size",
            ),
            (factor, f"a factor has ({min(self.size, n)}, {self.d})", "a smaller batch_size"),
        )

    def init(self, start: Any) -> State:
        base, shape = self.problem.base, (self.n_sites, self.d)
        if self.schedule.stores == "none":
            if start is None:
                return adf_start(
                    base._replace(precision=base.precision.copy(), shift=base.shift.copy())
                )
            if start.shift.size != self.d:
                raise ValueError(f"start has {start.shift.size} dimensions; allowed: {self.d}")
            return adf_start(start.state)
        if start is None:
            sites = Sites(np.zeros(shape), np.zeros(shape), np.zeros(self.n_sites))
            return base._replace(sites=sites)
        if start.sites is None:
            raise ValueError(
                "start has no sites (it comes from ADF); allowed with EP: a result of EP"
            )
        if [part.shape for part in start.sites] != [shape, shape, shape[:1]]:
            raise ValueError(
                f"start has sites of shape {start.sites.precision.shape}; allowed: {shape}, the "
                "same rows and batch_size"
            )
        state = self._from_sites(self._stored(start.sites), start.n_sweeps)
        if not (state.precision > 0.0).all():
            raise ValueError(
                "start makes the posterior improper with this prior; allowed: another prior"
            )
        return state

    def _stored(self, sites: Sites) -> Sites:
        """Sites of a start, as this engine has them."""
        if not hasattr(sites.precision, "toarray"):
            return sites
        return Sites(sites.precision.toarray(), sites.shift.toarray(), sites.log_scale)

    def summary(self, state: State, evidence: bool = True) -> Summary:
        variance = 1.0 / state.precision
        mean = state.shift * variance
        if not evidence:
            return Summary(mean, variance)
        # the evidence is finite only if every shift and log precision is
        log_ratio = np.add.reduce(np.log(self.problem.prior.precision * variance))
        total = state.log_scale + 0.5 * float(log_ratio + state.shift @ mean)
        return Summary(mean, variance, total)

    def settle(self, state: State, hurry: bool = False) -> State:
        return state

    def share(self, threads: Threads) -> None:
        """Sweeps in parallel order are for these threads, if the scheme is."""
        if self.problem.tilted().separate:
            self.threads = threads

    def sweep(self, state: State, keep: bool, tick: Tick) -> tuple[State, Counts]:
        return (self._pass if state.sites is None else self._sweep)(state, tick)

    @property
    def dimensions(self) -> int:
        """That the numbers of a scheme are for."""
        return self.d

    def _core(self, rows: int) -> MinibatchSweep:
        schedule, problem = self.schedule, self.problem
        return problem.scheme.minibatch(
            problem.loss,
            self.dimensions,
            min(self.size, rows),
            power=schedule.power,
            damping=schedule.damping,
            site_rule=schedule.site_rule,
            **self.for_core,
        )

    def _sweep(self, state: State, tick: Tick) -> tuple[State, Counts]:
        """A sweep over stored sites."""
        data, core = self.problem.data, self.core
        assert core is not None
        assert data.y is not None
        assert state.sites is not None
        core.begin_sweep(state.sweeps)
        before = self._counters(core)
        sites: Sites = families.copied(state.sites)
        precision, shift = state.precision.copy(), state.shift.copy()
        targets: dict[str, Any] = {
            "site_tau": sites.precision,
            "site_nu": sites.shift,
            "site_scale": sites.log_scale,
        }
        trace = np.empty((self.n_sites, self.d)) if self.traced else None
        piece = self._piece(data.X, data.y, state.sweeps)
        parallel = self.schedule.order == "parallel"
        if parallel and trace is None:
            total, more = self._at_once(piece, (precision, shift), targets, tick)
        else:
            total, more = precision.copy(), np.zeros(3, dtype=int)
            if parallel:
                targets |= {"next_tau": total, "next_nu": shift.copy()}
            design = Design(piece.X, core.max_rows)
            for part in PacedParts(len(piece.order), MOMENT // (self.size * self.d)):
                self._visit(core, design, piece, part, (precision, shift), trace, targets)
                tick(len(piece.order[part]))
        refused, failed, clipped = map(int, more + self._counted(core, before))
        if parallel:
            refused += self._undo_improper(total, sites, state.sites)
        new = self._from_sites(sites, state.sweeps + 1)
        return new, Counts(refused, failed, clipped, trace=trace)

    def _at_once(
        self, piece: Piece, moments: tuple[Array, Array], targets: dict[str, Any], tick: Tick
    ) -> tuple[Array, Any]:
        """A sweep in parallel order, on all threads.

        It goes in lanes, by the size of the problem alone; what each adds to the precision is added
        up in their order.

        Returns
        -------
        precision : ndarray of shape (d,)
            After all changes.
        counts : ndarray of shape (3,)
            Refused, failed and clipped by other threads than the caller's.
        """
        lanes, order, n = 1, piece.order, piece.X.shape[0]
        while 2 * lanes <= min(MOST_LANES, len(order)) and 2 * lanes * LANE <= n * self.d:
            lanes *= 2
        assert self.core is not None
        hands = [self.core]
        hands += [self._core(n) for _ in range(1, min(lanes, self.threads.count))]
        designs = [Design(piece.X, self.core.max_rows) for _ in hands]
        after = [(moments[0].copy(), moments[1].copy()) for _ in range(lanes)]

        def work(k: int, lane: int) -> Iterator[int]:
            first, stop = lane * len(order) // lanes, (lane + 1) * len(order) // lanes
            own = piece._replace(order=order[first:stop])
            given = {**targets, "next_tau": after[lane][0], "next_nu": after[lane][1]}
            for part in PacedParts(stop - first, MOMENT // (self.size * self.d)):
                self._visit(hands[k], designs[k], own, part, moments, None, given)
                yield len(own.order[part])

        self.threads.each(work, lanes, tick)
        total = after[0][0]
        for precision, _ in after[1:]:
            total += precision - moments[0]
        counts = [self._counters(core) for core in hands[1:]]
        return total, np.sum(counts, axis=0, dtype=int) if counts else np.zeros(3, dtype=int)

    def _pass(self, state: State, tick: Tick) -> tuple[State, Counts]:
        """A pass of ADF: the posterior itself is the cavity.

        Ctrl-C leaves the posterior of the factors before the call of the core that it falls in;
        while the first rows settle, that before the pass.
        """
        sweeps, core, before = state.sweeps, self.core, (0, 0, 0)
        if core is not None:
            before = self._counters(core)
        # a start goes on from where it is, that of an unfinished pass too
        first = self._rows_to_settle() if sweeps == 0 and state.rows_seen == 0 else 0
        counts, trace, seen = np.zeros(3, dtype=int), None, 0
        reached = state
        try:
            for X, y in self._chunks(first):
                piece, rows = self._piece(X, y, sweeps), X.shape[0]
                if core is None:  # the first piece holds a whole minibatch, or all there is
                    core = self._core(rows)
                if self.traced:
                    trace = np.empty((len(piece.order), self.d))
                done = 0
                if seen == 0:
                    settled = self._settled(piece, first) if first else None
                    if settled is not None:
                        state, counts, done = settled
                        reached = state
                        tick(done)
                        if trace is not None:
                            trace[:done] = state.shift / state.precision
                    core.begin_sweep(sweeps)
                    core.log_scale_total = 0.0
                design = Design(piece.X, core.max_rows)
                rest = piece._replace(order=piece.order[done:])
                later = None if trace is None else trace[done:]
                for part in PacedParts(len(rest.order)):
                    moments = reached.precision.copy(), reached.shift.copy()
                    self._visit(core, design, rest, part, moments, later, {"row_offset": seen})
                    visited = rest.order[part]
                    assert reached.rows_seen is not None
                    # one assignment, which Ctrl-C cannot divide
                    reached = State(
                        *moments,
                        None,
                        state.log_scale + core.log_scale_total,
                        sweeps,
                        reached.rows_seen + piece.rows_of(visited, self.size),
                    )
                    tick(len(visited))
                seen += rows
        except KeyboardInterrupt:
            raise PartOfSweep(reached) from None
        assert core is not None
        self.n_sites = -(-seen // self.size)
        refused, failed, clipped = map(int, counts + self._counted(core, before))
        new = reached._replace(sweeps=sweeps + 1)
        return new, Counts(refused, failed, clipped, trace=trace)

    def _chunks(self, first: int) -> Iterator[tuple[Any, Any]]:
        """The rows of a pass: all at once, or as they come, at first so many."""
        data = self.problem.data
        return data.X.pieces(self.size, first) if self.stream else iter([(data.X, data.y)])

    def _piece(self, X: Any, y: Array, sweeps: int) -> Piece:
        """These rows, in the order of a pass."""
        order = as_array(self.schedule.checked_visits(-(-X.shape[0] // self.size), sweeps))
        return Piece(X, y, self.problem.data.weights, order)

    def _rows_to_settle(self) -> int:
        """Of whole minibatches."""
        return rows_to_settle(self.schedule, self.size, self.d)

    def _settled(self, piece: Piece, rows: int) -> tuple[Any, Array, int] | None:
        """EP on the factors that the pass visits first: posterior, counts, number of factors.

        None where it overflowed: the pass then begins at the prior.
        """
        some = piece.order[: rows // self.size]
        schedule: Any = EP(SETTLE_SWEEPS, SETTLE_TOL, order="sequential")
        numbers = {"power": self.schedule.power, "site_rule": self.schedule.site_rule}
        schedule = schedule.filled(damping=1.0, **numbers)
        problem = self.problem._replace(data=piece.of(some, self.size), schedule=schedule)
        try:
            fit = run(self._engine_of_first(problem), schedule)
        except FloatingPointError:
            return None
        last = fit.history[-1]
        counts = np.array([last.n_refused, last.n_failed, last.n_clipped])
        seen = piece.rows_of(some, self.size)
        state: Any = fit.state._replace(sites=None, sweeps=0, rows_seen=seen)
        return state, counts, len(some)

    def _engine_of_first(self, problem: LinearProblem) -> Any:
        """The engine of EP on the first rows."""
        return MinibatchEngine(problem)

    @staticmethod
    def _counters(core: MinibatchSweep) -> tuple[int, int, int]:
        return core.n_refused, core.n_failed, core.n_clipped

    def _counted(self, core: MinibatchSweep, before: tuple[int, int, int]) -> tuple[int, ...]:
        """Refused, failed and clipped since then."""
        return tuple(now - old for now, old in zip(self._counters(core), before, strict=True))

    def _visit(
        self,
        core: MinibatchSweep,
        design: Design,
        piece: Piece,
        part: slice,
        moments: tuple[Array, Array],
        trace: Array | None,
        targets: dict[str, Any],
    ) -> None:
        """Visit some factors of a piece, in one call: Python handles signals after it."""
        core.sweep(
            design,
            piece.y,
            self.size,
            piece.order[part],
            *moments,
            weight=piece.weights,
            trace=None if trace is None else trace[part],
            **targets,
        )

    def _from_sites(self, sites: Sites, sweeps: int) -> State:
        """Base times sites, summed afresh, so that rounding does not accumulate."""
        base = self.problem.base
        with np.errstate(all="ignore"):  # the loop looks at what came out
            precision = base.precision + np.add.reduce(sites.precision)
            shift = base.shift + np.add.reduce(sites.shift)
            log_scale = base.log_scale + float(np.add.reduce(sites.log_scale))
        return State(precision, shift, sites, log_scale, sweeps)

    @staticmethod
    def _undo_improper(precision: Array, sites: Sites, before: Sites) -> int:
        """Parallel order: restore coordinates that all changes together made improper.

        Returns the number of sites restored.
        """
        bad = ~(precision > 0.0)
        if not bad.any():
            return 0
        sites.precision[:, bad] = before.precision[:, bad]
        sites.shift[:, bad] = before.shift[:, bad]
        return len(sites.precision)

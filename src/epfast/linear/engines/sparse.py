"""EP and ADF with a factorised posterior on CSR rows, in O(nonzeros) per factor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from epfast._arrays import Array
from epfast._core.crew import Crew
from epfast._core.minibatch import MinibatchSweep
from epfast._core.sparse_factors import (
    SparseRows,
    SparseSweep,
    add_entries,
    compared,
    moments_of,
    natural_of,
)
from epfast.inference import Counts, PartOfSweep, Sites, Summary
from epfast.inference.runtime import PacedParts, Tick
from epfast.linear.engines.base import adf_start
from epfast.linear.engines.means import MeansEngine, may_step
from epfast.linear.engines.minibatch import MinibatchEngine, Piece, rows_to_settle
from epfast.linear.ones import stored_rows
from epfast.linear.problem import Data, LinearProblem, Passing, State
from epfast.linear.sources import Stream

#: sweeps between two sums of all sites, which remove rounding drift
REFRESH = 8
#: rows with fewer nonzeros than this share of the columns are fitted among their own columns
FEW = 0.25
#: these are found by a sort below this share, else by marks
SORTED = 0.005


def by_nonzeros(engine: Callable[..., Any]) -> Callable[..., Any]:
    """The maker of an engine, which serves sparse rows by a :class:`SparseEngine`.

    Where the scheme leaves a coordinate alone that no row of a factor has. unseen: no function of
    the user looks at states, nor is there a start with sites.
    """

    def make(problem: LinearProblem, unseen: bool = False, **settings: Any) -> Any:
        X = problem.data.X
        streamed = isinstance(X, Stream)
        if not (X.sparse if streamed else problem.sparse) or not problem.scheme.spares:
            return engine(problem, **settings)
        if unseen and not streamed and not settings:
            return few_columns(problem)
        return _engine(problem, **settings)

    return make


def _engine(problem: LinearProblem, traced: bool = False, **settings: Any) -> SparseEngine:
    kind = SparseMeansEngine if may_step(problem, traced) else SparseEngine
    return kind(problem, traced=traced, **settings)


class SparseEngine(MinibatchEngine):
    """EP stores two numbers per nonzero of a factor's rows, ADF none. O(d) once per sweep.

    total: number of weights of the fit, of which these columns may be a part.
    """

    measures = True
    for_core: ClassVar[dict[str, Any]] = {"sparse": True}
    #: whether a pass of ADF over rows ends with a :class:`Passing`
    keeps_moments = False

    def __init__(
        self, problem: LinearProblem, traced: bool = False, total: int | None = None
    ) -> None:
        self.total = len(problem.prior.shift) if total is None else total
        X = problem.data.X
        #: None: of a stream
        self.design = None
        if not isinstance(X, Stream):
            by_rows = problem.scheme.one_dimension and problem.schedule.stores == "none"
            self.design = SparseRows(X if by_rows else stored_rows(X))
        super().__init__(problem, traced)
        #: where the columns of each factor start, and the columns
        self.pattern: tuple[NDArray[np.intp], NDArray[np.intc]] | None = None
        if self.schedule.stores == "factor" and self.design is not None:
            self.pattern = start, _ = self.design.pattern(self.size)
            small = start[-1] <= np.iinfo(np.intc).max
            #: where the columns start, in their type: else SciPy copies them for each matrix
            self.starts = start.astype(np.intc) if small else start

    def _memory(self, n: int) -> tuple[tuple[int, str, str], ...]:
        if self.design is None:
            return ()
        entries = self.problem.data.X.nnz
        most = min(self.size, n, self.design.widest(self.size)[0])
        return (
            (
                32 * entries if self.schedule.stores == "factor" else 0,
                f"EP stores sites of {entries}",
                "schedule=ADF(), which stores none, or a larger batch_size",
            ),
            (
                16 * most * most if self.problem.scheme.expands else 0,
                f"a factor has a matrix of ({most}, {most})",
                "a smaller batch_size",
            ),
        )

    def _core(self, rows: int) -> MinibatchSweep:
        core = super()._core(rows)
        assert isinstance(core, SparseSweep)
        core.columns = self.d
        return core

    @property
    def dimensions(self) -> int:
        return self.total

    def _rows_to_settle(self) -> int:
        return rows_to_settle(self.schedule, self.size, self.total)

    # ---- states ----

    def init(self, start: Any) -> State:
        if self.schedule.stores == "none":
            if start is None:
                return adf_start(self.problem.base)
            if start.shift.size != self.d:
                raise ValueError(f"start has {start.shift.size} dimensions; allowed: {self.d}")
            return adf_start(start.state)
        if start is None:
            assert self.pattern is not None
            size = len(self.pattern[1])
            sites = self._sites(np.zeros(size), np.zeros(size), np.zeros(self.n_sites))
            return self.problem.base._replace(sites=sites)
        return super().init(start)

    def _sites(self, precision: Array, shift: Array, scale: Array) -> Sites:
        """Sites of these numbers, as CSR matrices: one row per factor."""
        assert self.pattern is not None
        column, shape = self.pattern[1], (self.n_sites, self.d)
        a, b = (sparse.csr_array((x, column, self.starts), shape=shape) for x in (precision, shift))
        return Sites(a, b, scale)

    def _stored(self, sites: Sites) -> Sites:
        """Sites of a start, dense or of any pattern, in the pattern of the rows."""
        assert self.pattern is not None
        start, column = self.pattern
        row = np.repeat(np.arange(self.n_sites), np.diff(start))
        found: list[Array] = []
        for given in (sites.precision, sites.shift):
            part = given
            if hasattr(given, "indptr"):
                same = np.array_equal(given.indptr, start)
                if same and np.array_equal(given.indices, column):
                    found.append(given.data)
                    continue
                part = given.tocsr()
            taken = np.asarray(part[row, column]).ravel()
            if np.count_nonzero(taken) != (
                part.count_nonzero() if hasattr(part, "indptr") else np.count_nonzero(part)
            ):
                raise ValueError("start has sites of other columns; allowed: the same rows")
            found.append(np.asarray(taken, dtype=np.float64))
        return self._sites(found[0], found[1], sites.log_scale)

    def settle(self, state: State, hurry: bool = False) -> State:
        if hurry or state.sites is None:
            return state
        return self._from_sites(state.sites, state.sweeps)

    def _from_sites(self, sites: Sites, sweeps: int) -> State:
        base = self.problem.base
        precision, shift = base.precision.copy(), base.shift.copy()
        assert self.pattern is not None
        add_entries(
            self.pattern[1],
            sites.precision.data,
            sites.shift.data,
            precision,
            shift,
        )
        log_scale = base.log_scale + float(sites.log_scale.sum())
        return State(precision, shift, sites, log_scale, sweeps)

    # ---- sweeps ----

    def _sweep(self, state: State, tick: Tick) -> tuple[State, Counts]:
        data, core, old = self.problem.data, self.core, state.sites
        assert isinstance(core, SparseSweep)
        assert data.y is not None
        assert old is not None
        assert self.design is not None
        assert self.pattern is not None
        core.begin_sweep(state.sweeps)
        before = self._counters(core)
        precision, shift = old.precision.data, old.shift.data
        targets: dict[str, Any] = {
            "site_tau": precision.copy(),
            "site_nu": shift.copy(),
            "site_scale": old.log_scale.copy(),
        }
        parallel = self.schedule.order == "parallel"
        running = _Running(core, state, state, parallel)
        if parallel:
            targets |= {"next_tau": state.precision.copy(), "next_nu": state.shift.copy()}
        if not running.by_rows:
            targets |= {"site_start": self.pattern[0], "site_column": self.pattern[1]}
        trace = np.empty((self.n_sites, self.d)) if self.traced else None
        piece = self._piece(data.X, data.y, state.sweeps)
        for part in PacedParts(len(piece.order)):
            running.visit(self.design, piece, self.size, part, trace, targets)
            tick(len(piece.order[part]))
        refused, failed, clipped = self._counted(core, before)
        found = [targets[name] for name in ("site_tau", "site_nu", "site_scale")]
        if parallel:
            bad = ~(targets["next_tau"] > 0.0)
            if bad.any():
                refused += self.n_sites
                for new, kept in zip(found, (precision, shift), strict=False):
                    np.copyto(new, kept, where=bad[self.pattern[1]])
        sites, sweeps, prior = self._sites(*found), state.sweeps + 1, self.problem.prior
        if parallel or sweeps % REFRESH == 0:
            new = self._from_sites(sites, sweeps)
            moved, half = compared(*state[:2], *new[:2], prior.precision)
        else:
            tau, nu, moved, half = running.natural(prior)
            new = State(tau, nu, sites, self.problem.base.log_scale + found[2].sum(), sweeps)
        measured = moved, float(new.log_scale + half)
        return new, Counts(refused, failed, clipped, trace=trace, measured=measured)

    def _pass(self, state: State, tick: Tick) -> tuple[State, Counts]:
        """A pass of ADF; Ctrl-C leaves the posterior of the factors before it."""
        sweeps, core, before = state.sweeps, self.core, (0, 0, 0)
        if core is not None:
            before = self._counters(core)
        first = self._rows_to_settle() if sweeps == 0 and state.rows_seen == 0 else 0
        counts, trace, seen, done = np.zeros(3, dtype=int), None, 0, 0
        running: _Running | None = None
        prior = self.problem.prior
        try:
            for X, y in self._chunks(first):
                piece = self._piece(X, y, sweeps)
                if core is None:  # the first piece holds a whole minibatch, or all there is
                    core = self._core(X.shape[0])
                assert isinstance(core, SparseSweep)
                if self.traced:
                    trace = np.empty((len(piece.order), self.d))
                done = 0
                if running is None:
                    settled = self._settled(piece, first) if first else None
                    base: State | Apart = state
                    if settled is not None:
                        base, counts, done = settled
                        tick(done)
                        if trace is not None:
                            trace[:done] = base.shift / base.precision
                    core.begin_sweep(sweeps)
                    running = _Running(core, state, base)
                    if isinstance(state, Passing):
                        running.moments = state.moments.copy()
                rest = piece._replace(order=piece.order[done:])
                later = None if trace is None else trace[done:]
                design = SparseRows(X) if self.design is None else self.design
                for part in PacedParts(len(rest.order)):
                    running.visit(design, rest, self.size, part, later, {"row_offset": seen})
                    tick(len(rest.order[part]))
                seen += X.shape[0]
            assert running is not None
            reached, measured = running.reached(prior)
        except KeyboardInterrupt:
            some = state if running is None else running.reached(prior)[0]
            raise PartOfSweep(some) from None
        assert core is not None
        self.n_sites = -(-seen // self.size)
        refused, failed, clipped = map(int, counts + self._counted(core, before))
        new = reached._replace(sweeps=sweeps + 1)
        if self.keeps_moments and running.by_rows:
            new = Passing(*new, running.moments)  # type: ignore[assignment]
        return new, Counts(refused, failed, clipped, trace=trace, measured=measured)

    def _engine_of_first(self, problem: LinearProblem) -> Any:
        engine = few_columns(problem, self.total)
        if isinstance(engine, FewColumns):
            engine.apart = not self.traced
        return engine


class SparseMeansEngine(MeansEngine, SparseEngine):
    """Rows one by one, all means of which may be moved at once."""


class _Running:
    """A posterior that a sweep changes in place: means and variances, or natural parameters."""

    def __init__(
        self, core: SparseSweep, begun: State, base: State | Apart, parallel: bool = False
    ) -> None:
        self.core, self.by_rows = core, core.one_row and not parallel
        #: before the sweep, and where it begins: after the first rows have settled
        self.begun, self.base = begun, base
        #: of what all coordinates come from, but those that lie apart
        self.known = begun if isinstance(base, Apart) else base
        tau, nu = self.known.precision, self.known.shift
        if self.by_rows:
            self.moments = moments_of(tau, nu)
        else:
            self.precision, self.shift = (tau, nu) if parallel else (tau.copy(), nu.copy())
        if isinstance(base, Apart):
            if self.by_rows:
                self.moments[base.columns] = moments_of(base.precision, base.shift)
            else:
                self.precision[base.columns] = base.precision
                self.shift[base.columns] = base.shift
        self.first = core.n_visited
        core.evidence = core.log_scale_total = 0.0

    def visit(
        self,
        design: SparseRows,
        piece: Piece,
        size: int,
        part: slice,
        trace: Array | None,
        targets: dict[str, Any],
    ) -> None:
        """Visit some factors of a piece, in one call: Python handles signals after it."""
        order, some = piece.order[part], None if trace is None else trace[part]
        given = {"weight": piece.weights, "trace": some, **targets}
        if self.by_rows:
            self.core.rows(design, piece.y, order, self.moments, **given)
        else:
            self.core.factors(design, piece.y, size, order, self.precision, self.shift, **given)

    def natural(self, prior: State) -> tuple[Array, Array, float, float]:
        """Precision and shift; then how far the sweep moved, and :func:`compared`'s sum."""
        tau, nu = self.begun.precision, self.begun.shift
        if not self.by_rows:
            moved, half = compared(tau, nu, self.precision, self.shift, prior.precision)
            return self.precision, self.shift, moved, half
        known = self.known.precision, self.known.shift
        return natural_of(self.moments, *known, tau, nu, prior.precision)

    def reached(self, prior: State) -> tuple[State, tuple[float, float]]:
        """The state of ADF so far, how far it is from where the pass begun, its log evidence."""
        base, core = self.base, self.core
        tau, nu, moved, half = self.natural(prior)
        scale = base.log_scale + core.log_scale_total
        if self.by_rows:
            # of rows the core knows the evidence, not the scale
            scale = self._evidence(prior) + core.evidence - half
        assert base.rows_seen is not None
        seen = base.rows_seen + core.n_visited - self.first
        new = State(tau, nu, None, float(scale), base.sweeps, seen)
        return new, (moved, float(scale + half))

    def _evidence(self, prior: State) -> float:
        """Where the sweep begins."""
        base = self.base
        if isinstance(base, Apart):
            return base.evidence
        if base.precision is prior.precision and base.shift is prior.shift:
            return base.log_scale - prior.log_scale
        tau, nu = base.precision, base.shift
        return base.log_scale + compared(tau, nu, tau, nu, prior.precision)[1]


# ---- few rows among many columns ----


class Apart(NamedTuple):
    """A :class:`State` of some columns, where all others are as they were, and its evidence."""

    columns: NDArray[np.intp]
    precision: Array
    shift: Array
    sites: Sites | None
    log_scale: float
    sweeps: int
    rows_seen: int | None
    evidence: float


class Few(NamedTuple):
    """A state among some columns, that of all columns before, and what others have of evidence."""

    some: State
    whole: State
    elsewhere: float

    @property
    def sweeps(self) -> int:
        return self.some.sweeps


def few_columns(problem: LinearProblem, total: int | None = None) -> Any:
    """The engine of rows at hand, among their own columns where these are few."""
    d = len(problem.prior.shift)
    if not problem.data.X.nnz < FEW * d:
        return _engine(problem, total=total)
    return FewColumns(problem, d if total is None else total)


class FewColumns:
    """A :class:`SparseEngine` among the columns that rows have: O(nonzeros), and copies of O(d).

    No function of the user may look at its states. EP starts from flat sites.
    """

    measures = True
    crew: Crew | None = None
    order_of_matrices = 0
    #: whether it settles to a state of these columns alone
    apart = False

    def __init__(self, problem: LinearProblem, total: int) -> None:
        X, prior = stored_rows(problem.data.X), problem.prior
        self.problem, d = problem, len(prior.shift)
        if len(X.indices) < SORTED * d:
            self.columns, places = np.unique(X.indices, return_inverse=True)
        else:
            has = np.zeros(d, dtype=bool)
            has[X.indices] = True
            self.columns = np.flatnonzero(has)
            place = np.empty(d, dtype=np.intc)
            place[self.columns] = np.arange(len(self.columns), dtype=np.intc)
            places = place[X.indices]
        shape = (X.shape[0], max(1, len(self.columns)))
        if not len(self.columns):
            self.columns = np.zeros(1, dtype=np.intp)
        rows = type(X)((X.data, places, X.indptr), shape=shape)
        data = Data(rows, problem.data.y, problem.data.weights)
        some = self._some(prior)
        self.engine = _engine(problem._replace(data=data, prior=some, base=some), total=total)
        self.remedy, self.evidence_bound = problem.remedy, problem.evidence_bound

    @property
    def n_sites(self) -> int:
        return self.engine.n_sites

    def _some(self, state: State) -> State:
        return state._replace(
            precision=state.precision[self.columns], shift=state.shift[self.columns]
        )

    def init(self, start: Any) -> Few:
        prior = self.problem.prior
        if self.problem.schedule.stores != "none":
            return Few(self.engine.init(None), prior, self._elsewhere(prior, 0.0))
        if start is not None and start.shift.size != len(prior.shift):
            raise ValueError(
                f"start has {start.shift.size} dimensions; allowed: {len(prior.shift)}"
            )
        whole = adf_start(prior if start is None else start.state)
        evidence = 0.0 if start is None else start.log_evidence
        return Few(self._some(whole), whole, self._elsewhere(whole, evidence))

    def sweep(self, state: Few, keep: bool, tick: Tick) -> tuple[Few, Counts]:
        try:
            new, counts = self.engine.sweep(state.some, keep, tick)
        except PartOfSweep as pressed:
            raise PartOfSweep(state._replace(some=pressed.state)) from None
        assert counts.measured is not None
        moved, evidence = counts.measured
        measured = moved, evidence + state.elsewhere
        return state._replace(some=new), counts._replace(measured=measured)

    def _elsewhere(self, whole: State, evidence: float) -> float:
        """What other columns have of this log evidence."""
        some, prior = self._some(whole), self.problem.prior
        _, here = compared(*some[:2], *some[:2], prior.precision[self.columns])
        return evidence - whole.log_scale - here

    def summary(self, state: Few, evidence: bool = True) -> Summary:
        return self.engine.summary(state.some, evidence)

    def settle(self, state: Few, hurry: bool = False) -> Any:
        some = self.engine.settle(state.some, hurry)
        if self.apart:
            tau, nu = some.precision, some.shift
            _, half = compared(tau, nu, tau, nu, self.engine.problem.prior.precision)
            evidence = some.log_scale + half + state.elsewhere
            return Apart(self.columns, tau, nu, None, some.log_scale, 0, None, evidence)
        precision, shift = state.whole.precision.copy(), state.whole.shift.copy()
        precision[self.columns], shift[self.columns] = some.precision, some.shift
        sites = some.sites
        if sites is not None:
            parts = [
                sparse.csr_array(
                    (part.data, self.columns[part.indices], part.indptr),
                    shape=(part.shape[0], len(shift)),
                )
                for part in sites[:2]
            ]
            sites = Sites(parts[0], parts[1], sites.log_scale)
        return some._replace(precision=precision, shift=shift, sites=sites)

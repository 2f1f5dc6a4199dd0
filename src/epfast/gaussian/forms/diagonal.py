"""EP and ADF with a diagonal covariance: minibatch factors, or rows (Roche 2016).

Sites have a number per column; of CSR rows, where the scheme leaves a weight alone that no row of a
factor has, one per column of the factor: the entries of a CSR matrix in their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from epfast import families
from epfast._arrays import Array, Which, as_array, is_sparse
from epfast._core.minibatch import Design, MinibatchSweep
from epfast._core.sparse_factors import SparseRows, SparseSweep, add_entries, moments_of, natural_of
from epfast._core.thread_pool import ThreadPool
from epfast.gaussian import accelerate
from epfast.gaussian.accelerate import MeansMemory, MeansState
from epfast.gaussian.engine import (
    EPEngine,
    Form,
    Full,
    Start,
    Visited,
    carry_memory,
    gaussian,
    plain,
    with_moments,
)
from epfast.gaussian.passes import start_of_pass
from epfast.gaussian.prior import WeightPrior
from epfast.gaussian.problem import Problem
from epfast.gaussian.rows import Data, Stream
from epfast.gaussian.state import State
from epfast.inference import Counts, PartOfSweep, Sites, run
from epfast.inference.loop import Extent, change
from epfast.inference.mixing import mixed
from epfast.inference.runtime import (
    Tick,
    TimedPieces,
    each,
    no_tick,
    one_blas_thread,
    physical_memory,
)
from epfast.schedules import EP, FilledSchedule

#: rows that settle by EP before a pass of ADF goes on from a flat start: so many and so many per
#: dimension, as far as their sites have no more numbers than this
WARM_UP_ROWS, WARM_UP_PER_DIMENSION, WARM_UP_NUMBERS = 1000, 50, 1 << 23
#: EP on these rows
WARM_UP_SWEEPS, WARM_UP_TOL = 20, 1e-2
#: numbers of X that any scheme takes in in a moment
MOMENT = 1 << 13
#: a part of a parallel sweep has at least so many numbers of X; most parts
NUMBERS, MOST_PARTS = 1 << 18, 16


def warm_up_rows(schedule: FilledSchedule, size: int, d: int) -> int:
    """How many rows settle before a pass of ADF, of whole minibatches of so many."""
    rows: int | None = schedule.warm_up
    if rows is None:
        most = max(1, WARM_UP_NUMBERS // d) * size
        rows = min(max(WARM_UP_ROWS, WARM_UP_PER_DIMENSION * d), most)
    return -(-rows // size) * size


#: rows as the core takes them, and as they are
RowBlock = tuple[Design | SparseRows, Data]
#: a posterior that visits change: precision and shift, or of CSR rows one by one their moments
Reached = tuple[Array, Array] | Array


class Named(TypedDict):
    """What each call of the core takes by name."""

    weight: Array | None
    site_tau: Array | None
    site_nu: Array | None
    site_scale: Array | None
    trace: Array | None
    row_offset: int


def in_the_core(data: Data, sites: Sites | None, trace: Array | None, first: int) -> Named:
    """The weights, sites and trace of a visit, as the core has them."""
    tau, nu, scale = (None, None, None) if sites is None else sites
    return {
        "weight": data.weights,
        "site_tau": tau,
        "site_nu": nu,
        "site_scale": scale,
        "trace": trace,
        "row_offset": first,
    }


class Dense(Full[MeansMemory]):
    """A diagonal precision, of sites with a number per column."""

    #: whether the core takes CSR rows
    sparse = False

    def __init__(self, problem: Problem, size: int, n_sites: int) -> None:
        super().__init__(problem)
        self.size, self.shape = size, (n_sites, len(problem.base.shift))
        self.shapes, self.weights = (self.shape, self.shape, self.shape[:1]), None

    def rebuild(self, sites: Sites, sweeps: int) -> MeansState | None:
        precision, shift = self.total(sites)
        total = self.problem.base.log_scale + float(sites.log_scale.sum())
        return gaussian(State(precision, shift, sites, total, sweeps))

    def result(self, state: MeansState) -> State:
        return plain(state)._replace(
            sites=None if state.sites is None else self.sites_of_result(state.sites)
        )

    def numbers(self, n: int) -> tuple[int, int]:
        """Numbers of all sites, and of what the largest factor takes beside its rows."""
        count, d = self.shape
        # only sparse rows are fewer numbers than Laplace makes of them
        return count * d, min(self.size, n) * d if self.problem.sparse else 0

    def core(self, rows: int) -> MinibatchSweep:
        """Fits of factors of at most so many rows."""
        problem, schedule = self.problem, self.problem.schedule
        return problem.scheme.minibatch(
            problem.loss,
            self.shape[1],
            min(self.size, rows),
            sparse=self.sparse,
            power=schedule.power,
            damping=1.0 if schedule.damping is None else schedule.damping,
            site_rule=schedule.site_rule,
        )

    def rows(self, data: Data, core: MinibatchSweep) -> RowBlock:
        """Rows for :meth:`visit`."""
        return Design(data.X, core.max_rows), data

    def checked_start(self, start: Start) -> Sites:
        sites: Sites = super().checked_start(start)
        precision, shift = (
            part.toarray() if hasattr(part, "toarray") else part
            for part in (sites.precision, sites.shift)
        )
        return Sites(precision, shift, sites.log_scale)

    def sites_of_result(self, sites: Sites) -> Sites:
        """Sites as users have them."""
        return sites

    def total(self, sites: Sites) -> tuple[Array, Array]:
        """Precision and shift of base times sites."""
        base = self.problem.base
        with np.errstate(all="ignore"):  # the loop looks at what came out
            added = np.add.reduce(sites.precision), np.add.reduce(sites.shift)
            return base.precision + added[0], base.shift + added[1]

    def begin(self, state: MeansState, core: MinibatchSweep) -> Reached:
        """What visits change on their way: a posterior of their own."""
        return state.precision.copy(), state.shift.copy()

    def visit(
        self,
        core: MinibatchSweep,
        rows: RowBlock,
        order: NDArray[np.intp],
        q: Reached,
        sites: Sites | None,
        trace: Array | None = None,
        onto: tuple[Array, Array] | None = None,
        first: int = 0,
    ) -> None:
        """Visit some factors, in one call: Python handles signals after it.

        q: see :meth:`begin`. sites: None, they are forgotten. onto: precision and shift that take
        the changes, where q stays as it is. first: the number of the first row.
        """
        (design, data), (next_tau, next_nu) = rows, (None, None) if onto is None else onto
        assert isinstance(design, Design)
        named = in_the_core(data, sites, trace, first)
        core.sweep(
            design, data.y, self.size, order, *q, next_tau=next_tau, next_nu=next_nu, **named
        )

    def natural(self, q: Reached, start: MeansState) -> tuple[Array, Array]:
        """Precision and shift that visits have left; start: where they began."""
        return q[0].copy(), q[1].copy()

    def log_scale(self, new: MeansState, start: MeansState, core: MinibatchSweep) -> float:
        """The log scale after visits without sites."""
        return float(start.log_scale + core.log_scale_total)


class ByColumns(Dense):
    """Sites with a number per column that the rows of a factor have: (nonzeros,) in all."""

    sparse = True

    def __init__(self, problem: Problem, size: int, n_sites: int) -> None:
        super().__init__(problem, size, n_sites)
        X = problem.data.X
        self.design = None if isinstance(X, Stream) else SparseRows(X)
        if problem.schedule.stores == "factor" and self.design is not None:
            #: where the columns of each factor start, and the columns
            self.start, self.column = self.design.pattern(size)

    def numbers(self, n: int) -> tuple[int, int]:
        if self.design is None:
            return 0, 0
        X, most = self.problem.data.X, min(self.size, n, self.design.widest(self.size)[0])
        assert is_sparse(X)
        return X.nnz, most * most if self.problem.scheme.expands else 0

    def core(self, rows: int) -> SparseSweep:
        core = super().core(rows)
        assert isinstance(core, SparseSweep)
        core.columns = self.shape[1]
        return core

    def rows(self, data: Data, core: MinibatchSweep) -> RowBlock:
        return self.design or SparseRows(data.X), data

    def flat(self) -> Sites:
        size = len(self.column)
        return Sites(np.zeros(size), np.zeros(size), np.zeros(self.shape[0]))

    def checked_start(self, start: Start) -> Sites:
        sites = Form.checked_start(self, start)
        row = np.repeat(np.arange(self.shape[0]), np.diff(self.start))
        entries: list[Array] = []
        for matrix in sites[:2]:
            part = matrix.tocsr() if hasattr(matrix, "tocsr") else matrix
            same = hasattr(part, "indptr") and np.array_equal(part.indptr, self.start)
            if same and np.array_equal(part.indices, self.column):
                entries.append(part.data)
                continue
            selected = np.asarray(part[row, self.column], dtype=np.float64).ravel()
            count = part.count_nonzero() if hasattr(part, "indptr") else np.count_nonzero(part)
            if np.count_nonzero(selected) != count:
                raise ValueError("start has sites of other columns; allowed: the same rows")
            entries.append(selected)
        return Sites(entries[0], entries[1], sites.log_scale)

    def sites_of_result(self, sites: Sites) -> Sites:
        small = len(self.column) <= np.iinfo(np.intc).max
        start = self.start.astype(np.intc) if small else self.start
        precision, shift = (
            sparse.csr_array((part, self.column, start), shape=self.shape) for part in sites[:2]
        )
        return Sites(precision, shift, sites.log_scale)

    def total(self, sites: Sites) -> tuple[Array, Array]:
        base = self.problem.base
        precision, shift = base.precision.copy(), base.shift.copy()
        add_entries(self.column, sites.precision, sites.shift, precision, shift)
        return precision, shift

    def begin(self, state: MeansState, core: MinibatchSweep) -> Reached:
        assert isinstance(core, SparseSweep)
        if core.one_row:
            return moments_of(state.precision, state.shift)
        return super().begin(state, core)

    def visit(
        self,
        core: MinibatchSweep,
        rows: RowBlock,
        order: NDArray[np.intp],
        q: Reached,
        sites: Sites | None,
        trace: Array | None = None,
        onto: tuple[Array, Array] | None = None,
        first: int = 0,
    ) -> None:
        (design, data), (next_tau, next_nu) = rows, (None, None) if onto is None else onto
        assert isinstance(design, SparseRows)
        assert isinstance(core, SparseSweep)
        named = in_the_core(data, sites, trace, first)
        if isinstance(q, np.ndarray):
            core.rows(design, data.y, order, q, **named)
            return
        core.factors(
            design,
            data.y,
            self.size,
            order,
            *q,
            site_start=None if sites is None else self.start,
            site_column=None if sites is None else self.column,
            next_tau=next_tau,
            next_nu=next_nu,
            **named,
        )

    def natural(self, q: Reached, start: MeansState) -> tuple[Array, Array]:
        if isinstance(q, tuple):
            return super().natural(q, start)
        return natural_of(q, start.precision, start.shift)

    def log_scale(self, new: MeansState, start: MeansState, core: MinibatchSweep) -> float:
        assert isinstance(core, SparseSweep)
        if not core.one_row:
            return super().log_scale(new, start, core)
        # of rows the core knows the evidence, not the scale
        return float(start.log_scale + core.evidence + start.log_norm - new.log_norm)


def is_by_columns(problem: Problem) -> bool:
    """Whether factors are fitted among the columns that their rows have."""
    return problem.sparse and problem.scheme.spares


def counters(core: MinibatchSweep) -> tuple[int, int, int]:
    """Refused, failed and clipped so far."""
    return core.n_refused, core.n_failed, core.n_clipped


def since(core: MinibatchSweep, earlier: tuple[int, int, int]) -> tuple[int, ...]:
    """Refused, failed and clipped since then."""
    return tuple(now - old for now, old in zip(counters(core), earlier, strict=True))


class DiagonalEngine(EPEngine[MeansState, State, MeansMemory]):
    """A site per minibatch, or row. O(s d) per factor of s rows, or its nonzeros.

    Sweeps over scalar sites may begin with a step on all means (``accelerate.py``).
    """

    problem: Problem
    form: Dense
    rows: RowBlock

    def __init__(self, problem: Problem, traced: bool = False) -> None:
        """traced: whether the posterior mean is recorded after every factor."""
        n, size = problem.n_rows, problem.batch_size or 1
        kind, count = ByColumns if is_by_columns(problem) else Dense, -(-n // size)
        super().__init__(problem, kind(problem, size, count))
        self.n_sites, self.traced, self.threads = count, traced, ThreadPool(1)
        self._check_memory(n)
        self.core = self.form.core(size if isinstance(problem.data.X, Stream) else n)
        if not isinstance(problem.data.X, Stream):
            self.rows = self.form.rows(problem.data, self.core)
        self.steps = accelerate.may_step(problem, traced)
        self.in_order = np.arange(self.n_sites)
        self.in_turn = self.schedule.stores == "factor" and self.schedule.order != "parallel"
        self.accelerates = self.steps

    def _check_memory(self, n: int) -> None:
        """Refuse what cannot fit: sites, as they were and as they will be, and rows of a factor."""
        memory, (sites, factor) = physical_memory(), self.form.numbers(n)
        sites = sites if self.schedule.stores == "factor" else 0
        what = f"X has shape ({n}, {self.form.shape[1]}), for which"
        limit = f"and this machine has {memory / 2**30:.3g} GB; allowed:"
        if 0 < memory < 32 * sites:
            raise ValueError(
                f"{what} EP stores sites of {sites} numbers: {sites / 2**25:.3g} GB in all, "
                f"{limit} schedule=ADF(), which stores none, or a larger batch_size"
            )
        if 0 < memory < 16 * factor:
            raise ValueError(
                f"{what} a factor has {factor} numbers: {factor / 2**26:.3g} GB in all, "
                f"{limit} a smaller batch_size"
            )

    def share(self, threads: ThreadPool) -> None:
        """Sweeps in parallel order are for these threads, if the scheme is."""
        if self.problem.tilted().separate:
            self.threads = threads

    def visit(
        self, state: MeansState, sites: Sites, tick: Tick, parallel: bool | None = None
    ) -> Visited[MeansState, MeansMemory]:
        """All factors in turn, or all from the posterior before the sweep.

        parallel: whether the latter. None: what the schedule says.
        """
        problem, form = self.problem, self.form
        parallel = not self.in_turn if parallel is None else parallel
        self.core.begin_sweep(state.sweeps)
        visits = problem.schedule.checked_visits(self.n_sites, state.sweeps)
        order = self.in_order if isinstance(visits, range) else as_array(visits)
        trace = np.empty((len(order), form.shape[1])) if self.traced else None
        count = self._n_parts() if parallel and trace is None else 1
        cores, rows = [self.core], [self.rows]
        for _ in range(1, min(count, self.threads.threads)):
            cores.append(form.core(problem.shape[0]))
            rows.append(form.rows(problem.data, cores[-1]))
        earlier = [counters(core) for core in cores]
        q = (state.precision, state.shift) if parallel else form.begin(state, cores[0])

        def work(k: int, part: int) -> Iterator[int]:
            factors = order[part * len(order) // count : (part + 1) * len(order) // count]
            onto = (state.precision.copy(), state.shift.copy()) if parallel else None
            for piece in TimedPieces(len(factors), MOMENT // (form.size * form.shape[1])):
                here = None if trace is None else trace[piece]
                form.visit(cores[k], rows[k], factors[piece], q, sites, here, onto)
                yield len(factors[piece])

        each(self.threads, work, count, tick)
        changes = [since(core, old) for core, old in zip(cores, earlier, strict=True)]
        refused, failed, clipped = map(sum, zip(*changes, strict=True))
        return Visited(Counts(refused, failed, clipped), trace=trace)

    def accelerate(
        self,
        old: MeansState,
        new: MeansState,
        visited: Visited[MeansState, MeansMemory],
        moved: float,
    ) -> tuple[MeansState, Visited[MeansState, MeansMemory]]:
        """The state with the memory of the steps on all means."""
        memory = old.memory
        assert memory is not None
        if memory.steps:
            origin = memory.origin
            assert origin is not None
            moved = change(self.form.summary(origin, False), self.summary(new, False))
            memory = memory.noting(plain(new))
        return new._replace(memory=memory.next(moved, self.schedule.tol)), visited

    def _n_parts(self) -> int:
        """Number of parts of a sweep, a power of 2, by the size of the problem alone."""
        numbers, count = self.problem.shape[0] * self.form.shape[1], 1
        while 2 * count <= min(MOST_PARTS, self.n_sites) and 2 * count * NUMBERS <= numbers:
            count *= 2
        return count

    def start_of_run(self, state: MeansState, is_flat: bool) -> MeansState:
        return state._replace(memory=MeansMemory()) if self.steps else state

    def pre_step(self, state: MeansState) -> MeansState:
        """The posterior from which a sweep is best begun, where sweeps crawl: that of a step."""
        memory = state.memory
        if memory is None or not memory.steps:
            return state
        with one_blas_thread(min(len(state.shift), accelerate.DENSE)), np.errstate(all="ignore"):
            sites = mixed(memory.swept)
            mixture = None if sites is None else self.form.rebuild(sites, state.sweeps)
            stepped = None if mixture is None else self._stepped(carry_memory(state, mixture))
            stepped = self._stepped(state) if stepped is None else stepped
        return state._replace(memory=memory._replace(steps=None)) if stepped is None else stepped

    def _stepped(self, state: MeansState) -> MeansState | None:
        """The posterior after a step on all means, or None where there is none."""
        sites, X = state.sites, self.problem.data.X
        assert sites is not None
        if 0 < physical_memory() < accelerate.BYTES * sites.precision.size:
            return None
        if sites.precision.shape != (X.data if hasattr(X, "indptr") else X).shape:
            return None  # entries of a row that share a column
        new = families.copied(sites)
        if self.visit(state, new, no_tick, parallel=True).counts.refused:
            return None
        swept = self.form.rebuild(new, state.sweeps)
        memory = (
            None if swept is None else accelerate.step_to(self.problem, X, state, swept, sites, new)
        )
        if memory is None:
            return None
        result = self.form.rebuild(new, state.sweeps)
        origin = memory._replace(origin=plain(state))
        return None if result is None else result._replace(memory=origin)


class DiagonalPass(DiagonalEngine):
    """ADF: the posterior itself is the cavity.

    Early in a pass the diagonal posterior is surer than the few rows allow. What it gets wrong
    then, it unlearns along directions of little curvature only as n^-r, r the curvature there over
    that of the columns: the means stay hundreds of standard deviations off. So the first rows
    settle by EP, and the pass goes on from there.
    """

    def init(self, start: Start | None) -> MeansState:
        state: MeansState = start_of_pass(self.problem, start)
        return state

    def visit(  # type: ignore[override]
        self, state: MeansState, sites: None, tick: Tick
    ) -> Visited[MeansState, MeansMemory]:
        """A pass; Ctrl-C leaves the posterior of the factors before the call that it falls in.

        While the first rows settle, that before the pass.
        """
        core, form, sweeps = self.core, self.form, state.sweeps
        # a start goes on from where it is, that of an unfinished pass too
        warms_up = sweeps == 0 and state.rows_seen == 0
        first = warm_up_rows(self.schedule, form.size, form.shape[1]) if warms_up else 0
        counted_before, counts = counters(core), np.zeros(3, dtype=int)
        start, visited_before = state, core.n_visited
        trace, seen, q = None, 0, None
        core.begin_sweep(sweeps)
        try:
            for data in self._chunks(first):
                rows, n = form.rows(data, core), data.X.shape[0]
                count = -(-n // form.size)
                order = as_array(self.schedule.checked_visits(count, sweeps))
                if self.traced:
                    trace = np.empty((count, form.shape[1]))
                done = 0
                if q is None:
                    warm = (
                        self._warmed_up(state, data, order[: first // form.size]) if first else None
                    )
                    if warm is not None:
                        start, counts, done = warm
                        tick(done)
                        if trace is not None:
                            trace[:done] = start.shift / start.precision
                    core.log_scale_total = 0.0
                    if isinstance(core, SparseSweep):
                        core.evidence = 0.0
                    q = form.begin(start, core)
                for part in TimedPieces(count - done):
                    factors = order[done:][part]
                    here = None if trace is None else trace[done:][part]
                    form.visit(core, rows, factors, q, None, here, first=seen)
                    tick(len(factors))
                seen += n
            reached = self._reached(q, start, core.n_visited - visited_before)
        except KeyboardInterrupt:
            # rows are counted where they are visited: Ctrl-C cannot come between
            reached = self._reached(q, start, core.n_visited - visited_before)
            raise PartOfSweep(reached) from None
        refused, failed, clipped = map(int, counts + since(core, counted_before))
        new = reached._replace(sweeps=sweeps + 1)
        extent = Extent(-(-seen // form.size), self.evidence_bound)
        return Visited(Counts(refused, failed, clipped), new, trace=trace, extent=extent)

    def _reached(self, q: Reached | None, start: MeansState, rows: int) -> MeansState:
        """The posterior that visits of so many rows have left, and that was known before.

        q: as they have left it. None: before the first.
        """
        if q is None:
            return start
        precision, shift = self.form.natural(q, start)
        seen = (start.rows_seen or 0) + rows
        new: MeansState
        new = with_moments(State(precision, shift, None, 0.0, start.sweeps, seen))
        scale = self.form.log_scale(new, start, self.core)
        return new._replace(log_scale=scale)

    def _chunks(self, first: int) -> Iterator[Data]:
        """The rows of a pass: all at once, or as they come, at first so many."""
        X = self.problem.data.X
        if isinstance(X, Stream):
            return (Data(*pair) for pair in X.pieces(self.form.size, first))
        return iter([self.problem.data])

    def _warmed_up(
        self, start: MeansState, data: Data, first: NDArray[np.intp]
    ) -> tuple[MeansState, Array, int] | None:
        """EP on the factors that the pass visits first: posterior, counts, number of factors.

        None where it overflowed: the pass then begins at the prior.
        """
        size, n = self.form.size, data.X.shape[0]
        schedule = EP(WARM_UP_SWEEPS, WARM_UP_TOL, order="sequential").filled(
            damping=1.0, power=self.schedule.power, site_rule=self.schedule.site_rule
        )
        which = (np.sort(first)[:, None] * size + np.arange(min(size, n))).ravel()
        data, base = data.select(which[which < n]), self.problem.base
        columns: Which = slice(None)
        if isinstance(self.core, SparseSweep) and self.core.one_row:
            # the other columns keep their prior: sweeps over 2^20 of them would take half of a pass
            assert is_sparse(data.X)
            columns = np.unique(data.X.indices)
            data = data._replace(X=data.X[:, columns])
        prior = base._replace(precision=base.precision[columns], shift=base.shift[columns])
        problem = self.problem._replace(
            data=data, schedule=schedule, prior=WeightPrior.of_state(prior), base=prior
        )
        try:
            fit = run(DiagonalEngine(problem), schedule)
        except FloatingPointError:
            return None
        last = fit.history[-1]
        counts = np.array([last.n_refused, last.n_failed, last.n_clipped])
        precision, shift = base.precision.copy(), base.shift.copy()
        precision[columns], shift[columns] = fit.state.precision, fit.state.shift
        there, here = (with_moments(state).log_norm for state in (fit.state, prior))
        new = start._replace(
            precision=precision,
            shift=shift,
            log_scale=fit.state.log_scale,
            rows_seen=rows_of(first, size, n),
            log_norm=start.log_norm + there - here,
        )
        return new, counts, len(first)


def rows_of(factors: NDArray[np.intp], size: int, n: int) -> int:
    """How many rows some factors have."""
    return int(np.minimum(size, n - factors * size).sum())

"""Sites shared by groups of rows: SEP, AEP, DSEP, DAEP; a (d, d) site per group."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from epfast import _checks, families
from epfast._arrays import Array
from epfast._core.shared_sites import SharedSweep
from epfast.inference import Counts, Sites
from epfast.inference.loop import RELATIVE, change
from epfast.inference.runtime import Tick
from epfast.linear.engines.base import FullEngine, contraction, improper_start, most_of
from epfast.linear.problem import LinearProblem, State, is_proper, moments_of
from epfast.schedules import Batches, SharedSites

#: rows fitted to a cavity per call
ROWS_AT_ONCE = 64
#: batches give way to whole groups at the first change below this, ...
NEAR = 0.1
#: ... or once this many sweeps did not contract
STALLED = 3
#: damping of the sweeps over whole groups that follow; halved down to the least where they diverge
DAMPING, LEAST_DAMPING = 0.5, 0.05


class Ending(NamedTuple):
    """How far a run is from its end: batches first, whole groups then."""

    #: damping of sweeps over whole groups; None before they begin
    damping: float | None = None
    #: least change so far, and the number of sweeps since
    least: float = np.inf
    stalled: int = 0

    def next(self, moved: float) -> Ending:
        """After a sweep with this change."""
        least, stalled = contraction(moved, self.least, self.stalled)
        if self.damping is None:
            near = moved <= NEAR or stalled >= STALLED
            return Ending(DAMPING) if near else Ending(None, least, stalled)
        if stalled < STALLED:
            return Ending(self.damping, least, stalled)
        return Ending(max(LEAST_DAMPING, 0.5 * self.damping))


class SharedState(NamedTuple):
    """A :class:`State` with (K, d, d) sites, and its moments."""

    precision: Array
    shift: Array
    sites: Sites
    log_scale: float
    sweeps: int
    rows_seen: int | None
    covariance: Array
    mean: Array
    #: True once a site had a negative precision; then every batch is tested, and undone if it makes
    #: the posterior improper
    checked: bool
    ending: Ending


class SharedEngine(FullEngine):
    """q = p0 Π_k g_k^N_k. Each batch costs a Cholesky factorisation, O(d^3).

    A run that ends at a tolerance ends with sweeps over whole groups: those over batches have
    another fixed point, which depends on the order of the rows, or none.
    """

    def __init__(self, problem: LinearProblem) -> None:
        super().__init__(problem)
        self.tilted = problem.tilted()
        n, _ = problem.shape
        #: (K,), rows per group, with their copies
        self.sizes = np.bincount(self.schedule.labels(n), problem.copies()).astype(np.float64)
        if not self.sizes.all():
            raise ValueError("weights are all 0 in a group; allowed: a row that counts in each")
        first = self._batches(self.schedule, 0)  # refuses a batch that is too large
        schedule = self.schedule
        #: the schedule of the last sweeps; None if all sweeps are alike
        self.whole: Any = None
        own_batches = type(schedule).batches is not SharedSites.batches
        if schedule.tol > 0.0 and not own_batches and first.last.sum() > len(self.sizes):
            self.whole = schedule.filled()
            object.__setattr__(self.whole, "batch", None)

    def init(self, start: Any) -> SharedState:
        count, (_, d) = len(self.sizes), self.problem.shape
        shape = (count, d, d)
        if start is None:
            sites = Sites(np.zeros(shape), np.zeros((count, d)), np.zeros(count))
        elif start.sites is None or [part.shape for part in start.sites] != [
            shape,
            shape[:2],
            shape[:1],
        ]:
            found = None if start.sites is None else start.sites.precision.shape
            raise ValueError(
                f"start has sites of shape {found}; allowed with this schedule: {shape}, a result "
                "with shared sites and as many groups, and shifts and scales to match"
            )
        else:
            sites = start.sites
        state = self._from_sites(sites, 0 if start is None else start.n_sweeps)
        if state is None:
            raise improper_start()
        # a start may be a fixed point, which batches would leave
        ending = Ending() if start is None or self.whole is None else Ending(DAMPING)
        return self._at(state, start is not None, ending)

    def sweep(self, state: SharedState, keep: bool, tick: Tick) -> tuple[SharedState, Counts]:
        if self.whole is None:
            return self._sweep(state, self.schedule, self.schedule.damping, tick)
        if state.ending.damping is None:
            new, counts = self._sweep(state, self.schedule, self.schedule.damping, tick)
            moved, settled = self._change(state, new), False
        else:
            damping = min(state.ending.damping, self.schedule.damping)
            new, counts = self._sweep(state, self.whole, damping, tick)
            moved = self._change(state, new) / damping
            settled = moved <= self.schedule.tol and counts.settled is None
            if settled:  # the log scales follow
                old, now = (self.summary(s).log_evidence for s in (state, new))
                settled = abs(now - old) <= damping * max(self.schedule.tol, RELATIVE * abs(now))
                return new, counts._replace(settled=settled)
        return new._replace(ending=state.ending.next(moved)), counts._replace(settled=settled)

    def _change(self, old: SharedState, new: SharedState) -> float:
        return change(self.summary(old, evidence=False), self.summary(new, evidence=False))

    def _sweep(
        self, state: SharedState, schedule: Any, damping: float, tick: Tick
    ) -> tuple[SharedState, Counts]:
        """One sweep over the batches of a schedule."""
        problem = self.problem
        self.tilted.begin_sweep(state.sweeps)
        n, d = problem.shape
        core = SharedSweep(
            self.tilted,
            d,
            min(ROWS_AT_ONCE, n),
            schedule.power,
            damping,
            state.checked,
        )
        sites = families.copied(state.sites)
        precision, shift = state.precision.copy(), state.shift.copy()
        batches = self._batches(schedule, state.sweeps)
        # a batch costs as much as about d rows
        rows_of_work = 1 + d * int(batches.last.sum()) // n
        for part in problem.pieces(np.arange(n), rows_of_work):
            which = batches.rows[part]
            rows = problem.data.X[which]
            dense = rows.toarray() if problem.sparse else rows
            core.sweep(
                np.ascontiguousarray(dense, dtype=np.float64),
                problem.responses(which),
                problem.weights(which),
                batches.group[part],
                batches.last[part],
                *sites,
                self.sizes,
                precision,
                shift,
            )
            tick(len(part))
        sweeps = state.sweeps + 1
        _, new, share = most_of(state.sites, sites, lambda s: self._from_sites(s, sweeps))
        if new is None:
            return state._replace(sweeps=sweeps), Counts(self.n_sites)
        settled = None if share == 1.0 else False
        counts = Counts(core.n_refused, settled=settled)
        return self._at(new, core.checked, state.ending), counts

    def _batches(self, schedule: Any, sweep: int) -> Batches:
        """The batches of a schedule, which may be the user's own: the core indexes with them."""
        n, count = self.problem.shape[0], len(self.sizes)
        rows, group, last = map(np.asarray, schedule.batches(n, sweep))
        good = rows.shape == group.shape == last.shape == (n,)
        good = good and rows.dtype.kind in "iu" and group.dtype.kind in "iu"
        good = good and rows.min() >= 0 and rows.max() < n
        good = good and group.min() >= 0 and group.max() < count and bool(last[-1])
        if not good:
            raise ValueError(
                f"{type(schedule).__name__}.batches gave rows {_checks.describe(rows)} of "
                f"groups {_checks.describe(group)}; allowed: each of 0 to {n - 1} once, with its "
                f"group, 0 to {count - 1}, and whether it ends a batch"
            )
        return Batches(rows.astype(np.intp), group.astype(np.intp), last.astype(np.uint8))

    @staticmethod
    def _at(state: State, checked: bool, ending: Ending) -> SharedState:
        """A state with its moments. O(d^3)."""
        assert state.sites is not None
        return SharedState(*state, *moments_of(state), checked, ending)  # type: ignore[arg-type]

    def _from_sites(self, sites: Sites, sweeps: int) -> State | None:
        """Base times powers of the sites; None if that is no proper Gaussian."""
        base = self.problem.base
        precision = base.precision + np.tensordot(self.sizes, sites.precision, 1)
        if not is_proper(precision):
            return None
        total = base.log_scale + float(self.sizes @ sites.log_scale)
        return State(precision, base.shift + self.sizes @ sites.shift, sites, total, sweeps)

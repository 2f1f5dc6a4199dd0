"""Sites shared by groups of rows: SEP, AEP, DSEP, DAEP; a (d, d) site per group."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from epfast import _checks, families
from epfast._arrays import Array
from epfast._core.shared_sites import SharedSweep
from epfast.inference import Counts, Sites
from epfast.inference.executors import Tasks
from epfast.inference.loop import RELATIVE, change
from epfast.inference.runtime import Tick
from epfast.linear.engines.base import FullEngine, contraction, improper_start, most_of
from epfast.linear.engines.local import (
    ROWS_AT_ONCE,
    local_shared,
    neighbours,
    shard_of,
    visit_shared,
)
from epfast.linear.problem import LinearProblem, State, is_proper, moments_of
from epfast.schedules import EP, Batches, SharedSites

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
        self.tasks = Tasks()
        self.sizes = self.group_sizes()
        if not self.sizes.all():
            raise ValueError("weights are all 0 in a group; allowed: a row that counts in each")
        schedule, count = self.schedule, self.batch_count()
        #: the schedule of the last sweeps; None if all sweeps are alike
        self.whole: Any = None
        own_batches = type(schedule).batches is not SharedSites.batches
        if schedule.tol > 0.0 and not own_batches and count > len(self.sizes):
            self.whole = schedule.filled()
            object.__setattr__(self.whole, "batch", None)

    def group_sizes(self) -> Array:
        """Rows per group, with their copies, (K,)."""
        labels = self.schedule.labels(self.problem.shape[0])
        return np.bincount(labels, self.problem.copies()).astype(np.float64)

    def batch_count(self) -> int:
        """How many batches a sweep has; refuses one that is too large."""
        return int(self._batches(self.schedule, 0).last.sum())

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
        lost, sites = self.tasks.n_lost, families.copied(state.sites)
        if schedule.order == "parallel":
            refused, checked = self._together(state, sites, schedule, damping, tick)
        else:
            refused, checked = self._in_turn(state, sites, schedule, damping, tick)
        sweeps = state.sweeps + 1
        _, new, share = most_of(state.sites, sites, lambda s: self._from_sites(s, sweeps))
        if new is None:
            return state._replace(sweeps=sweeps), Counts(self.n_sites)
        settled = None if share == 1.0 else False
        counts = Counts(refused, settled=settled, lost=self.tasks.n_lost - lost)
        return self._at(new, checked, state.ending), counts

    def _in_turn(
        self, state: SharedState, sites: Sites, schedule: Any, damping: float, tick: Tick
    ) -> tuple[int, bool]:
        """Batch after batch, each from the posterior that the one before has left."""
        problem = self.problem
        self.tilted.begin_sweep(state.sweeps)
        n, d = problem.shape
        rows = min(ROWS_AT_ONCE, n)
        core = SharedSweep(self.tilted, d, rows, schedule.power, damping, state.checked)
        batches = self._batches(schedule, state.sweeps)
        posterior = state.precision.copy(), state.shift.copy()
        visit_shared(core, problem, *batches, sites, self.sizes, *posterior, tick)
        return core.n_refused, core.checked

    def _together(
        self, state: SharedState, sites: Sites, schedule: Any, damping: float, tick: Tick
    ) -> tuple[int, bool]:
        """All groups from one posterior, each with its batches in turn: a task per group."""
        calls, counts = self.calls(state, sites, schedule, damping)
        found = self.tasks.together(calls, counts, tick)
        for k, update in enumerate(found):
            families.put(sites, k, update.site)
        checked = any(update.checked for update in found)
        return sum(update.refused for update in found), checked

    def calls(
        self, state: SharedState, sites: Sites, schedule: Any, damping: float
    ) -> tuple[list[tuple[Any, ...]], list[int]]:
        """What is asked of each group, a function and its arguments, and its number of rows."""
        batches = self._batches(schedule, state.sweeps)
        numbers = EP(power=schedule.power, damping=damping)
        calls: list[tuple[Any, ...]] = []
        counts = []
        for k in range(len(self.sizes)):
            mine = batches.group == k
            group = shard_of(self.problem, neighbours(batches.rows[mine]), numbers)
            site, size = families.taken(sites, k), float(self.sizes[k])
            rest = batches.last[mine], state.checked, state.sweeps
            calls.append((local_shared, group, state.precision, state.shift, site, size, *rest))
            counts.append(group.shape[0])
        return calls, counts

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

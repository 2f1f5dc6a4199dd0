"""Sites shared by groups of rows: SEP, AEP, DSEP, DAEP; a (d, d) site per group."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import _checks, families
from epfast._arrays import Array
from epfast._core.shared_sites import SharedSweep
from epfast._core.tilted import TiltedMoments
from epfast.gaussian.engines.base import (
    EPEngine,
    Swept,
    contraction,
    gaussian,
)
from epfast.gaussian.engines.full import Full
from epfast.gaussian.engines.local import Update, is_finite, neighbours, shard_of
from epfast.gaussian.problem import Problem, State
from epfast.inference import Counts, Sites
from epfast.inference.executors import Tasks
from epfast.inference.loop import RELATIVE, change
from epfast.inference.runtime import Tick, no_tick, one_blas_thread
from epfast.schedules import EP, Batches, SharedSites

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
    #: True once a site had a negative precision; then every batch is tested, and undone if it makes
    #: the posterior improper
    checked: bool = False
    #: least change so far, and the number of sweeps since
    least: float = np.inf
    stalled: int = 0

    def next(self, moved: float) -> Ending:
        """After a sweep with this change."""
        least, stalled = contraction(moved, self.least, self.stalled)
        if self.damping is None:
            near = moved <= NEAR or stalled >= STALLED
            go_on = self._replace(least=least, stalled=stalled)
            return Ending(DAMPING, self.checked) if near else go_on
        if stalled < STALLED:
            return self._replace(least=least, stalled=stalled)
        return Ending(max(LEAST_DAMPING, 0.5 * self.damping), self.checked)


def visit_shared(
    problem: Problem,
    tilted: TiltedMoments,
    damping: float,
    checked: bool,
    batches: Batches,
    sites: Sites,
    sizes: Array,
    precision: Array,
    shift: Array,
    tick: Tick = no_tick,
) -> SharedSweep:
    """Take batches in turn from a posterior; sites are updated in place, and the counts returned.

    checked: see :class:`epfast._core.shared_sites.SharedSweep`.
    """
    n, d = problem.shape
    power = problem.schedule.power
    core = SharedSweep(tilted, d, min(ROWS_AT_ONCE, n), power, damping, checked)
    posterior = precision.copy(), shift.copy()
    # a batch costs as much as about d rows
    rows_of_work = 1 + d * int(batches.last.sum()) // n
    for part in problem.pieces(range(n), rows_of_work):
        which = batches.rows[part[0] : part[-1] + 1]
        rows = problem.data.X[which]
        dense = rows.toarray() if problem.sparse else rows
        core.sweep(
            np.ascontiguousarray(dense, dtype=np.float64),
            problem.responses(which),
            problem.weights(which),
            batches.group[part[0] : part[-1] + 1],
            batches.last[part[0] : part[-1] + 1],
            *sites,
            sizes,
            *posterior,
        )
        tick(len(part))
    return core


def local_shared(
    group: Problem,
    precision: Array,
    shift: Array,
    site: Sites,
    size: float,
    last: NDArray[np.uint8],
    checked: bool,
    sweep: int,
) -> Update:
    """A sweep over the batches of one group whose rows share a site, the other sites held fixed.

    Parameters
    ----------
    group : Problem
        See :func:`~.local.shard_of`; of its schedule power and damping count.
    precision, shift : ndarray
        Of the posterior, which has the site to the power ``size``.
    site : Sites
        The site of one row.
    size : float
        Rows of the group, with their copies.
    last : ndarray
        Whether each row ends a batch.
    checked, sweep
        See :func:`visit_shared`; the number of the sweep.
    """
    n, d = group.shape
    tilted = group.tilted()
    tilted.begin_sweep(sweep)
    batches = Batches(np.arange(n), np.zeros(n, dtype=np.intp), last)
    sites = Sites(*(np.array([part], dtype=np.float64) for part in site))
    given = group, tilted, group.schedule.damping, checked, batches, sites, np.array([size])
    with one_blas_thread(d):
        core = visit_shared(*given, precision, shift)
    found = families.taken(sites, 0)
    if not is_finite(found):
        return Update(site, None, n)
    return Update(found, None, core.n_refused, checked=core.checked)


class Tied(Full):
    """The prior times powers of the sites of groups: q = p0 Π_k g_k^N_k."""

    def __init__(self, problem: Problem, sizes: Array) -> None:
        """sizes: rows per group, with their copies, (K,)."""
        super().__init__(problem)
        count, d, self.sizes = len(sizes), self.order, sizes
        self.shapes, self.weights = ((count, d, d), (count, d), (count,)), None

    def built(self, sites: Sites, sweeps: int) -> Swept | None:
        base = self.problem.base
        precision = base.precision + np.tensordot(self.sizes, sites.precision, 1)
        shift = base.shift + self.sizes @ sites.shift
        total = base.log_scale + float(self.sizes @ sites.log_scale)
        return gaussian(State(precision, shift, sites, total, sweeps))


class SharedEngine(EPEngine):
    """Sites that groups of rows share. Each batch costs a Cholesky factorisation, O(d^3).

    A run that ends at a tolerance ends with sweeps over whole groups: those over batches have
    another fixed point, which depends on the order of the rows, or none.
    """

    def __init__(self, problem: Problem) -> None:
        self.schedule, self.problem = problem.schedule, problem
        self.sizes = self.group_sizes()
        super().__init__(problem, Tied(problem, self.sizes))
        self.tilted, self.tasks = problem.tilted(), Tasks()
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
        return int(self.batches(self.schedule, 0).last.sum())

    def begun(self, state: Swept, is_flat: bool) -> Swept:
        # a start may be a fixed point, which batches would leave
        near = Ending(None if self.whole is None else DAMPING, True)
        return state._replace(memory=Ending() if is_flat else near)

    def phase(self, state: Swept) -> tuple[Any, float]:
        """The schedule of the next sweep, and its damping."""
        damping = state.memory.damping
        if damping is None:
            return self.schedule, self.schedule.damping
        return self.whole, min(damping, self.schedule.damping)

    def visit(self, state: Swept, sites: Sites, tick: Tick) -> Counts:
        """Batches in turn, each with the site of its group; or a task per group, from one q."""
        schedule, damping = self.phase(state)
        if schedule.order != "parallel":
            batches = self.batches(schedule, state.sweeps)
            given = self.problem, self.tilted, damping, state.memory.checked, batches
            core = visit_shared(*given, sites, self.sizes, state.precision, state.shift, tick)
            self.checked = core.checked
            return Counts(core.n_refused)
        found = self.tasks.together(*self.calls(state, sites, schedule, damping), tick)
        for k, update in enumerate(found):
            families.put(sites, k, update.site)
        self.checked = any(update.checked for update in found)
        return Counts(sum(update.refused for update in found))

    def after(self, old: Swept, new: Swept, counts: Counts) -> tuple[Swept, Counts]:
        """The state with what says how near the end is; whole groups end a run at a tolerance."""
        new = new._replace(memory=new.memory._replace(checked=self.checked))
        tol, (_, damping) = self.schedule.tol, self.phase(old)
        if self.whole is None:
            return new, counts
        before, now = self.summary(old), self.summary(new)
        moved, settled = change(before, now), False
        if old.memory.damping is not None:
            moved /= damping
            if moved <= tol and counts.settled is None:  # the log scales follow
                near = damping * max(tol, RELATIVE * abs(now.log_evidence))
                settled = abs(now.log_evidence - before.log_evidence) <= near
                return new, counts._replace(settled=settled)
        return new._replace(memory=new.memory.next(moved)), counts._replace(settled=settled)

    def calls(
        self, state: Swept, sites: Sites, schedule: Any, damping: float
    ) -> tuple[list[tuple[Any, ...]], list[int]]:
        """What is asked of each group, a function and its arguments, and its number of rows."""
        batches = self.batches(schedule, state.sweeps)
        numbers = EP(power=schedule.power, damping=damping)
        calls: list[tuple[Any, ...]] = []
        counts = []
        for k in range(len(self.sizes)):
            mine = batches.group == k
            group = shard_of(self.problem, neighbours(batches.rows[mine]), numbers)
            site, size = families.taken(sites, k), float(self.sizes[k])
            rest = batches.last[mine], state.memory.checked, state.sweeps
            calls.append((local_shared, group, state.precision, state.shift, site, size, *rest))
            counts.append(group.shape[0])
        return calls, counts

    def batches(self, schedule: Any, sweep: int) -> Batches:
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

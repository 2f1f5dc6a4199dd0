"""Sweeps whose parts may be tasks: Laplace propagation, sites that groups share, and shards (DEP).

What a worker does are pure functions of arrays that can be pickled: whoever calls one twice gets
the same. They change none of their arguments, and refuse what is not finite.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from epfast import _checks, families
from epfast._arrays import Array, Indices, Matrix, Piece, Which, entries_of, is_sparse
from epfast._core.shared_sites import SharedSweep
from epfast._core.tilted import TiltedMoments
from epfast.gaussian.engine import (
    STALLED,
    AnyEngine,
    Changing,
    EPEngine,
    Full,
    Start,
    Visited,
    Working,
    contraction,
    gaussian,
    proper,
)
from epfast.gaussian.forms.diagonal import DiagonalEngine, DiagonalPass
from epfast.gaussian.orders import RowEngine
from epfast.gaussian.passes import PassEngine, laplace_core, pieces_of
from epfast.gaussian.prior import WeightPrior
from epfast.gaussian.problem import BLOCK, Problem, sum_of_sites
from epfast.gaussian.state import NO_STATE, State, is_proper, stacked_rows
from epfast.inference import Counts, Sites, run
from epfast.inference.executors import Tasks
from epfast.inference.loop import RELATIVE, RunState
from epfast.inference.runtime import Tick, no_tick, one_blas_thread
from epfast.schedules import EP, Batches, FilledSchedule, SharedSites


class WarmStart(NamedTuple):
    """Sites from which a fit begins, and the state that they add up to."""

    sites: Sites | None
    #: of a linear model; of a process, None
    shift: Array | None = None
    #: None: it is to be summed up
    state: RunState | None = None
    n_sweeps: int = 0
    #: of which they make the state. None: they are to be summed up
    problem: Problem | None = None


class KeptRows(NamedTuple):
    """Sites of rows, or minibatches, that stay where the rows are, by their name there."""

    #: of the fit
    token: str
    shard: int
    #: of the visit that begins with them: the answers that the shard has given so far
    number: int


class Update(NamedTuple):
    """What comes back from a worker."""

    #: of the shard or group: precision (d, d) or (d,), shift (d,), log scale ()
    site: Sites
    #: of its rows or minibatches, or None where these share the site, or store none
    rows: Sites | KeptRows | None
    #: factors that kept their site
    refused: int
    #: change of the last sweep within the shard
    distance: float = 0.0
    #: factors whose fit failed as a whole
    failed: int = 0
    #: whether a site has taken precision away
    checked: bool = False


def shard_of(problem: Problem, rows: Which, schedule: FilledSchedule) -> Problem:
    """The problem of some rows without the numbers of the whole: what a worker keeps."""
    return problem._replace(
        data=problem.data.select(rows)._replace(groups=None),
        schedule=schedule,
        prior=WeightPrior.of_state(NO_STATE),
        base=NO_STATE,
        names=None,
    )


def neighbours(rows: Indices) -> Piece | Indices:
    """Numbers of rows, as a slice if they are neighbours in their order, which copies nothing."""
    if (np.diff(rows) == 1).all():
        return slice(int(rows[0]), int(rows[-1]) + 1)
    return rows


def engine_of_shard(problem: Problem) -> AnyEngine:
    """The engine of EP, or of ADF, within a shard."""
    passes = problem.schedule.stores == "none"
    if problem.posterior != "full":
        return (DiagonalPass if passes else DiagonalEngine)(problem)
    if passes:
        return PassEngine(problem)
    return (RowEngine if problem.batch_size is None else LaplaceEngine)(problem)


def site_of(shard: Problem, rows: Sites) -> Sites:
    """The product of the sites of a shard. O(n d^2), or O(n d) of a factorised posterior."""
    if shard.posterior == "full":
        return Sites(*sum_of_sites(shard, rows), rows.log_scale.sum())
    return Sites(*(np.asarray(part.sum(axis=0)) for part in rows))


def flat_site(precision: Array) -> Sites:
    """A flat site of a shard, beside a posterior with this precision."""
    return Sites(np.zeros_like(precision), np.zeros(len(precision)), np.zeros(()))


def with_entries(part: Matrix, numbers: Array) -> Array:
    """Numbers of sites in place of others."""
    if not is_sparse(part):
        return numbers
    entries: Array = sparse.csr_array((numbers, part.indices, part.indptr), shape=part.shape)
    return entries


def is_finite(site: Sites) -> bool:
    """Whether all numbers of some sites are."""
    return all(bool(np.isfinite(entries_of(part)).all()) for part in site)


def damped_rows(old: Sites | None, new: Sites, share: float) -> Sites:
    """Sites between flat ones, or these, and new ones: (n,), (n, d), or CSR of one pattern."""
    if share == 1.0:
        return new
    new_entries = Sites(*map(entries_of, new))
    old_entries = Sites(*(map(np.zeros_like, new_entries) if old is None else map(entries_of, old)))
    return Sites(*map(with_entries, new, families.damped(old_entries, new_entries, share)))


def local_update(
    shard: Problem,
    precision: Array,
    shift: Array,
    site: Sites,
    rows: Sites | None,
    damping: float,
    product: Sites | None = None,
) -> Update:
    """EP, or ADF, on the rows of a shard with its cavity, posterior over site, as the prior.

    Parameters
    ----------
    shard : Problem
        See :func:`shard_of`. Its schedule is that of the sweeps here.
    precision, shift : ndarray
        Of the posterior.
    site : Sites
        That of the shard in it.
    rows : Sites or None
        Those of the rows, or minibatches, from which sweeps begin. None: flat ones. The cavity is
        right all the same, so that sites that were lost cost time and nothing else.
    damping : float
        Of the new sites.
    product : Sites, optional
        That of ``rows``. None: it is ``site``. Of ADF, what new sites are damped towards.

    Returns
    -------
    Update
        With the site as it was where the cavity, or what was found, is no Gaussian.
    """
    nothing = Update(site, rows, shard.n_sites)
    with one_blas_thread(shard.shape[1]):
        cavity = State(precision - site.precision, shift - site.shift, None, 0.0, 0)
        if not is_proper(cavity.precision):
            return nothing
        if cavity.precision.ndim == 1:  # as a prior, normalised, has it
            norm = -0.5 * float(cavity.shift @ (cavity.shift / cavity.precision))
            cavity = cavity._replace(log_scale=norm)
        stores = shard.schedule.stores != "none"
        problem = shard._replace(prior=WeightPrior.of_state(cavity), base=cavity)
        engine = engine_of_shard(problem)
        engine.evidence_bound = math.inf  # a cavity has no evidence
        was = site if product is None else product
        if rows is None and stores:
            was = flat_site(precision)
        fit = run(engine, shard.schedule, _start_of_shard(problem, was, rows) if stores else None)
    end = fit.state
    gain = Sites(
        end.precision - cavity.precision,
        end.shift - cavity.shift,
        np.asarray(end.log_scale - cavity.log_scale),
    )
    new_site: Sites = families.damped(was, gain, damping)
    new_rows = damped_rows(rows, end.sites, damping) if stores else None
    if not (is_finite(new_site) and (new_rows is None or is_finite(new_rows))):
        return nothing
    last = fit.history[-1]
    # what one sweep has changed is what the site has
    distance = last.change if len(fit.history) > 1 else 0.0
    return Update(new_site, new_rows, last.n_refused, distance, last.n_failed)


def _start_of_shard(shard: Problem, product: Sites, rows: Sites | None) -> WarmStart | None:
    """Where sweeps within a shard begin: the cavity times its rows."""
    if rows is None:
        return None
    cavity = shard.base
    state = cavity._replace(
        precision=cavity.precision + product.precision,
        shift=cavity.shift + product.shift,
        sites=rows,
        log_scale=cavity.log_scale + float(product.log_scale),
    )
    return WarmStart(rows, state.shift, state, problem=shard)


# ---- laplace propagation: EP on factors of several rows, with the full Hessian of each ----


def fit_minibatches(problem: Problem, state: State | Working, sites: Sites, tick: Tick) -> Counts:
    """Fit minibatches in turn, or all of them from this posterior. Sites are updated in place."""
    n, d = problem.shape
    size = min(problem.batch_size or 1, n)
    core = laplace_core(problem, d, size)
    last = state.precision.copy(), state.shift.copy()
    together = problem.schedule.order == "parallel"
    seen = (state.precision, state.shift) if together else last
    for part, sizes in pieces_of(problem, size, state.sweeps):
        target: Sites = families.select(sites, part.which)
        core.sweep(part.rows, part.y, part.weights, sizes, *seen, *target, *last)
        families.put(sites, part.which, target)
        tick(len(sizes))
    return Counts(core.n_failed, core.n_failed)


def local_laplace(part: Problem, precision: Array, shift: Array, rows: Sites) -> Update:
    """Laplace propagation on some factors, all from one posterior: no factor sees another.

    Parameters
    ----------
    part : Problem
        Their rows, and a schedule in parallel order. See :func:`~.local.shard_of`.
    precision, shift : ndarray
        Of the posterior.
    rows : Sites
        A precision and a shift per row.
    """
    sites: Sites = families.copied(rows)
    with one_blas_thread(len(shift)):
        counts = fit_minibatches(part, State(precision, shift, sites, 0.0, 0), sites, no_tick)
    if not is_finite(sites):
        return Update(sites, rows, part.n_sites)
    return Update(sites, sites, counts.refused, failed=counts.failed)


class LaplaceEngine(EPEngine[Working, State, None]):
    """Sites of a precision and a shift per row (Smola et al. 2003). O(s d^2 + d^3) per factor.

    With an executor all factors from one posterior, in as many tasks as there are workers.
    """

    problem: Problem
    tasks: Tasks[Update]

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, Full(problem))
        self.n_sites, self.tasks = problem.n_sites, Tasks[Update]()
        self.in_turn = problem.schedule.order != "parallel"

    def visit(self, state: Working, sites: Sites, tick: Tick) -> Visited[Working, None]:
        if not self.tasks.is_remote:
            return Visited(fit_minibatches(self.problem, state, sites, tick))
        problem, q = self.problem, (state.precision, state.shift)
        n, size, count = problem.shape[0], problem.batch_size or 1, problem.n_sites
        parts = np.array_split(np.arange(count), min(count, self.tasks.width))
        takes = [slice(int(p[0]) * size, min(n, (int(p[-1]) + 1) * size)) for p in parts]
        shards = [shard_of(problem, take, problem.schedule) for take in takes]
        calls = [
            partial(local_laplace, shard, *q, families.select(sites, take))
            for shard, take in zip(shards, takes, strict=True)
        ]
        updates = self.tasks.together(calls, [len(part) for part in parts], tick)
        for take, update in zip(takes, updates, strict=True):
            assert isinstance(update.rows, Sites)
            families.put(sites, take, update.rows)
        return Visited(Counts(sum(u.refused for u in updates), sum(u.failed for u in updates)))


# ---- sites shared by groups of rows: SEP, AEP, DSEP, DAEP, with a (d, d) site per group ----


#: batches give way to whole groups at the first change below this, or where they do not contract
NEAR = 0.1
#: damping of the sweeps over whole groups that follow, halved down to the least where they diverge
DAMPING, LEAST_DAMPING = 0.5, 0.05


class Ending(NamedTuple):
    """How far a run is from its end: batches first, whole groups then."""

    #: damping of sweeps over whole groups, or None before they begin
    damping: float | None = None
    #: True once a site had a negative precision. Then every batch is tested, and undone if it makes
    #: the posterior improper
    checked: bool = False
    #: least change so far, and the number of sweeps since
    least: float = np.inf
    stalled: int = 0

    def next(self, distance: float) -> Ending:
        """After a sweep with this change."""
        least, stalled = contraction(distance, self.least, self.stalled)
        if self.damping is None:
            near = distance <= NEAR or stalled >= STALLED
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
    """Fit batches in turn from a posterior. Sites are updated in place, and the counts returned.

    checked: see :class:`epfast._core.shared_sites.SharedSweep`.
    """
    n, d = problem.shape
    power = problem.schedule.power
    core = SharedSweep(tilted, d, min(BLOCK, n), power, damping, checked)
    posterior = precision.copy(), shift.copy()
    # a batch costs as much as about d rows
    rows_of_work = 1 + d * int(batches.last.sum()) // n
    for part in problem.pieces(range(n), rows_of_work):
        which = batches.rows[part[0] : part[-1] + 1]
        rows = problem.data.X[which]
        dense = rows.toarray() if is_sparse(rows) else rows
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
    damping: float,
    size: float,
    last: NDArray[np.uint8] | int | None,
    checked: bool,
    sweep: int,
) -> Update:
    """A sweep over the batches of one group whose rows share a site, the other sites held fixed.

    Parameters
    ----------
    group : Problem
        See :func:`shard_of`. Of its schedule the power counts.
    precision, shift : ndarray
        Of the posterior, which has the site to the power ``size``.
    site : Sites
        The site of one row.
    damping : float
        Of the new site.
    size : float
        Rows of the group, with their copies.
    last : ndarray, or int or None
        Whether each row ends a batch. Or rows per batch, None for the whole group.
    checked, sweep
        See :func:`visit_shared`. The number of the sweep.
    """
    n, d = group.shape
    tilted = group.tilted()
    tilted.begin_sweep(sweep)
    if not isinstance(last, np.ndarray):
        size_of_batch, last = last or n, np.zeros(n, dtype=np.uint8)
        last[size_of_batch - 1 :: size_of_batch] = last[-1] = 1
    batches = Batches(np.arange(n), np.zeros(n, dtype=np.intp), last)
    sites = Sites(*(np.array([part], dtype=np.float64) for part in site))
    arguments = group, tilted, damping, checked, batches, sites, np.array([size])
    with one_blas_thread(d):
        core = visit_shared(*arguments, precision, shift)
    new_site = families.select(sites, 0)
    if not is_finite(new_site):
        return Update(site, None, n)
    return Update(new_site, None, core.n_refused, checked=core.checked)


class Tied(Full[Ending]):
    """The form of q = p0 Π_k g_k^N_k, powers of the sites of groups of rows."""

    #: numbers of rows in each group
    counts: Sequence[int]

    def __init__(self, problem: Problem, sizes: Array | None = None) -> None:
        """sizes: rows per group, with their copies, (K,). By default those of the schedule."""
        super().__init__(problem)
        if sizes is None:
            labels = problem.schedule.labels(problem.shape[0])
            sizes = np.bincount(labels, problem.copies()).astype(np.float64)
            self.counts = np.bincount(labels).tolist()
        if not sizes.all():
            raise ValueError("weights are all 0 in a group; allowed: a row that counts in each")
        count, d, self.sizes = len(sizes), self.order, sizes
        self.shapes, self.weights = ((count, d, d), (count, d), (count,)), None

    def rebuild(self, sites: Sites, sweeps: int) -> GroupState | None:
        base = self.problem.base
        precision = base.precision + np.tensordot(self.sizes, sites.precision, 1)
        shift = base.shift + self.sizes @ sites.shift
        total = base.log_scale + float(self.sizes @ sites.log_scale)
        return gaussian(State(precision, shift, sites, total, sweeps))

    def batches(self, schedule: FilledSchedule, sweep: int) -> Batches:
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

    def batch_count(self) -> int:
        """How many batches a sweep has. Refuses one that is too large."""
        return int(self.batches(self.problem.schedule, 0).last.sum())

    def groups(
        self, schedule: FilledSchedule, sweep: int
    ) -> Sequence[tuple[Problem, NDArray[np.uint8] | int | None]]:
        """The groups as :func:`local_shared` takes them, and where their batches end."""
        batches, power = self.batches(schedule, sweep), EP(power=schedule.power).filled()
        inside = [batches.group == k for k in range(len(self.sizes))]
        rows = [neighbours(batches.rows[which]) for which in inside]
        groups = [shard_of(self.problem, some, power) for some in rows]
        return [(group, batches.last[which]) for group, which in zip(groups, inside, strict=True)]


GroupState = Working[Ending]


class SharedEngine(EPEngine[GroupState, State, Ending]):
    """Sites that groups of rows share. Each batch costs a Cholesky factorisation, O(d^3).

    A run that ends at a tolerance ends with sweeps over whole groups: those over batches have
    another fixed point, which depends on the order of the rows, or none.
    """

    problem: Problem
    accelerates = True
    tilted: TiltedMoments
    form: Tied
    tasks: Tasks[Update]

    def __init__(self, problem: Problem, form: Tied | None = None) -> None:
        form = Tied(problem) if form is None else form
        super().__init__(problem, form)
        self.n_sites, self.tilted, self.tasks = sum(form.counts), problem.tilted(), Tasks[Update]()
        schedule, count = self.schedule, form.batch_count()
        #: the schedule of the last sweeps, or None if all sweeps are alike
        self.whole: FilledSchedule | None = None
        assert isinstance(schedule, SharedSites)
        own_batches = type(schedule).batches is not SharedSites.batches
        if schedule.tol > 0.0 and not own_batches and count > len(form.sizes):
            self.whole = schedule.filled()
            object.__setattr__(self.whole, "batch", None)

    def start_of_run(self, state: GroupState, is_flat: bool) -> GroupState:
        # a start may be a fixed point, which batches would leave
        near = Ending(None if self.whole is None else DAMPING, True)
        return state._replace(memory=Ending() if is_flat else near)

    def phase(self, state: GroupState) -> tuple[FilledSchedule, float]:
        """The schedule of the next sweep, and its damping."""
        damping = None if state.memory is None else state.memory.damping
        if damping is None or self.whole is None:
            return self.schedule, self.schedule.damping
        return self.whole, min(damping, self.schedule.damping)

    def visit(self, state: GroupState, sites: Sites, tick: Tick) -> Visited[GroupState, Ending]:
        """Fit batches in turn, each with the site of its group, or a task per group from one q."""
        assert state.memory is not None
        (schedule, damping), form, checked = self.phase(state), self.form, state.memory.checked
        q = state.precision, state.shift
        if schedule.order != "parallel":
            batches = form.batches(schedule, state.sweeps)
            arguments = self.problem, self.tilted, damping, checked, batches
            core = visit_shared(*arguments, sites, form.sizes, *q, tick)
            memory = state.memory._replace(checked=core.checked)
            return Visited(Counts(core.n_refused), memory=memory)
        calls = []
        for k, (group, last) in enumerate(form.groups(schedule, state.sweeps)):
            site, size = families.select(sites, k), float(form.sizes[k])
            call = partial(local_shared, group, *q, site, damping, size)
            calls.append(partial(call, last, checked, state.sweeps))
        updates = self.tasks.together(calls, form.counts, tick)
        for k, update in enumerate(updates):
            families.put(sites, k, update.site)
        memory = state.memory._replace(checked=any(update.checked for update in updates))
        return Visited(Counts(sum(update.refused for update in updates)), memory=memory)

    def accelerate(
        self, old: GroupState, new: GroupState, visited: Visited[GroupState, Ending], moved: float
    ) -> tuple[GroupState, Visited[GroupState, Ending]]:
        """The state with the distance to its end. At a tolerance whole groups end a run."""
        tol, (_, damping) = self.schedule.tol, self.phase(old)
        if self.whole is None:
            return new, visited
        settled = False
        assert old.memory is not None
        assert new.memory is not None
        if old.memory.damping is not None:
            moved /= damping
            if moved <= tol and visited.settled is None:  # the log scales follow
                last, now = (self.summary(state).log_evidence for state in (old, new))
                near = damping * max(tol, RELATIVE * abs(now))
                return new, visited._replace(settled=abs(now - last) <= near)
        return new._replace(memory=new.memory.next(moved)), visited._replace(settled=settled)


# ---- dEP: each shard of the rows is fitted by an EP of its own, with the cavity as its prior ----


class ShardSite(NamedTuple):
    """What is known of a shard."""

    #: its site in the posterior
    site: Sites
    #: those of its rows: here, or where the rows are. None: there are none
    rows: Sites | KeptRows | None


@dataclass(frozen=True)
class ShardMemory:
    """What a state knows of the shards."""

    parts: tuple[ShardSite, ...]


def _members(labels: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """The numbers of those that have each label."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.searchsorted(labels[order], np.arange(1, labels.max() + 1)))


ShardState = Working[ShardMemory]


class Shards(Full[ShardMemory]):
    """The form of q = p0 Π_k g_k, g_k the product of the sites of shard k's rows, or minibatches.

    What visits change is a list with a :class:`ShardSite` for each shard.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        schedule, (n, _), size = problem.schedule, problem.shape, problem.batch_size or 1
        self.n_sites = problem.n_sites
        by_rows = schedule.shards is not None and not isinstance(schedule.shards, int)
        labels = schedule.labels(n)[::size] if by_rows else schedule.labels(self.n_sites)
        of_rows = np.repeat(labels, size)[:n]
        if by_rows and (of_rows != schedule.labels(n)).any():
            raise ValueError(
                f"shards cuts minibatches of {size} rows; allowed: a label per row, the same for "
                "all rows of a minibatch, or how many shards"
            )
        factors = _members(labels)
        #: factors of each shard, and how many
        self.factors = list(map(neighbours, factors))
        self.sizes = list(map(len, factors))
        order = np.concatenate(factors)
        #: where each factor is, shard after shard. None: in their order
        self.place = None if (np.diff(order) == 1).all() else np.argsort(order)
        rows = map(neighbours, _members(of_rows))
        self.shards = [shard_of(problem, take, schedule.inner) for take in rows]

    def prior(self) -> ShardState:
        return proper(self.rebuild(self._start_of_run(None), self.problem.base.sweeps))

    def checked_start(self, start: Start) -> list[ShardSite]:
        if self.problem.schedule.inner.stores == "none":
            raise ValueError(
                "start is given with inner=ADF(), which stores no sites; allowed: None"
            )
        return self._start_of_run(start)

    def _start_of_run(self, start: Start | None) -> list[ShardSite]:
        """The shards of a start, or with flat sites."""
        problem, inner = self.problem, self.problem.schedule.inner
        if inner.stores == "none":
            return [ShardSite(flat_site(problem.base.precision), None)] * len(self.shards)
        if problem.posterior == "full":
            sites = self.flat() if start is None else super().checked_start(start)
        else:
            whole = engine_of_shard(problem._replace(schedule=inner))
            sites = whole.finish(whole.init(start)).sites
        rows: list[Sites] = [families.select(sites, factors) for factors in self.factors]
        if start is None:
            return [ShardSite(flat_site(problem.base.precision), own) for own in rows]
        return [ShardSite(site_of(*pair), pair[1]) for pair in zip(self.shards, rows, strict=True)]

    def sites_of(self, parts: Sequence[ShardSite]) -> Sites | None:
        """The sites that a state has: of the rows, or minibatches. None: none is stored."""
        rows = [part.rows for part in parts if isinstance(part.rows, Sites)]
        if not rows:
            return None
        sites = stacked_rows(rows)
        return sites if self.place is None else families.select(sites, self.place)

    def call(
        self, k: int, precision: Array, shift: Array, part: ShardSite, damping: float
    ) -> partial[Update]:
        """A visit of a shard."""
        rows = part.rows if isinstance(part.rows, Sites) else None
        return partial(local_update, self.shards[k], precision, shift, part.site, rows, damping)

    def between(self, old: ShardSite, new: ShardSite, share: float) -> ShardSite:
        """A shard this share of the way from one to another."""
        site, old_rows, rows = families.damped(old.site, new.site, share), old.rows, new.rows
        if isinstance(rows, Sites):
            rows = damped_rows(old_rows if isinstance(old_rows, Sites) else None, rows, share)
        return ShardSite(site, rows)

    def rebuild(self, sites: Changing, sweeps: int) -> ShardState | None:
        """Base times the sites of the shards, in their order. None if improper. O(K d^2 + d^3)."""
        base, parts = self.problem.base, zip(*(part.site for part in sites), strict=True)
        precision, shift, scale = (np.sum(numbers, axis=0) for numbers in parts)
        precision += base.precision
        total = base.log_scale + float(scale)
        whole: ShardState | None
        whole = gaussian(State(precision, base.shift + shift, None, total, sweeps))
        if whole is None:
            return None
        return whole._replace(sites=self.sites_of(sites), memory=ShardMemory(tuple(sites)))


class ShardEngine(EPEngine[ShardState, State, ShardMemory]):
    """DEP: a task for each shard.

    All shards from one posterior, or one after the other. Each answer is waited for.
    """

    problem: Problem
    form: Shards
    tasks: Tasks[Update]

    def __init__(self, problem: Problem, form: Shards | None = None) -> None:
        super().__init__(problem, form or Shards(problem))
        self.n_sites, self.tasks = self.form.n_sites, Tasks[Update]()

    def init(self, start: Start | None) -> ShardState:
        self.tasks.cancel()  # of a run from a start that was dropped
        state: ShardState = super().init(start)
        return state

    def copied_sites(self, state: ShardState) -> list[ShardSite]:
        assert state.memory is not None
        return list(state.memory.parts)

    def between(self, state: ShardState, sites: list[ShardSite], share: float) -> list[ShardSite]:
        assert state.memory is not None
        both = zip(state.memory.parts, sites, strict=True)
        return [self.form.between(*pair, share) for pair in both]

    def visit(
        self, state: ShardState, sites: list[ShardSite], tick: Tick
    ) -> Visited[ShardState, ShardMemory]:
        damping, refused, failed, distance = self.schedule.damping, 0, 0, 0.0
        precision, shift = state.precision, state.shift
        visits = [int(k) for k in self.schedule.checked_visits(len(sites), state.sweeps)]
        together = self.schedule.order == "parallel"
        for visited in [visits] if together else [[k] for k in visits]:
            calls = [self.form.call(k, precision, shift, sites[k], damping) for k in visited]
            updates = self.tasks.together(calls, [self.form.sizes[k] for k in visited], tick)
            for k, update in zip(visited, updates, strict=True):
                refused, failed = refused + update.refused, failed + update.failed
                distance = max(distance, update.distance)
                if not together:
                    precision = precision - sites[k].site.precision + update.site.precision
                    shift = shift - sites[k].site.shift + update.site.shift
                sites[k] = ShardSite(update.site, update.rows)
        # sweeps of a shard may return to where they began
        settled = False if distance > self.schedule.tol else None
        return Visited(Counts(refused, failed), settled=settled)

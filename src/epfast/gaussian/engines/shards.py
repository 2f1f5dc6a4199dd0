"""DEP: each shard of the rows is fitted by an EP of its own, with the cavity as its prior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import families
from epfast._arrays import Array
from epfast.gaussian.engines.arrivals import Arrivals, Flow, Lanes, Part
from epfast.gaussian.engines.base import (
    LEAST_SHARE,
    EPEngine,
    flat,
    improper_start,
)
from epfast.gaussian.engines.full import Full, check_sites
from epfast.gaussian.engines.local import (
    damped_rows,
    engine_of_shard,
    flat_site,
    local_update,
    neighbours,
    shard_of,
    site_of,
)
from epfast.gaussian.problem import LinearProblem, State, is_proper, moments_of, stacked_rows
from epfast.inference import Counts, ExecutorFailed, PartOfSweep, Sites
from epfast.inference.executors import Tasks
from epfast.inference.loop import RELATIVE, change
from epfast.inference.runtime import Tick
from epfast.schedules.base import AS_COMPLETED


def _labels_of_factors(schedule: Any, n: int, size: int) -> NDArray[np.intp]:
    """The shard of each factor of so many rows."""
    shards = schedule.shards
    if shards is None or isinstance(shards, int):
        few: NDArray[np.intp] = schedule.labels(-(-n // size))
        return few
    labels: NDArray[np.intp] = schedule.labels(n)
    if (np.repeat(labels[::size], size)[:n] != labels).any():
        raise ValueError(
            f"shards cuts minibatches of {size} rows; allowed: a label per row, the same for all "
            "rows of a minibatch, or how many shards"
        )
    return labels[::size]


def _rows_of(factors: Any, size: int, n: int) -> Any:
    """The rows of some factors."""
    if size == 1:
        return factors
    if isinstance(factors, slice):
        return slice(factors.start * size, min(n, factors.stop * size))
    rows = (factors[:, None] * size + np.arange(size)).ravel()
    return rows[rows < n]


class ShardState(NamedTuple):
    """A :class:`State`, its moments, and the sites of the shards."""

    precision: Array
    shift: Array
    sites: Sites | None
    log_scale: float
    sweeps: int
    rows_seen: int | None
    #: (d, d), or variances (d,), and (d,)
    covariance: Array
    mean: Array
    #: (K, d, d) or (K, d), (K, d), (K,): of each shard, the product of the sites of its rows
    shards: Sites
    #: of answers that are taken as they come
    flow: Flow | None = None


def stacked(sites: Sequence[Sites]) -> Sites:
    """Sites of shards as arrays."""
    return Sites(*map(np.stack, zip(*sites, strict=True)))


class ShardEngine(EPEngine):
    """q = p0 Π_k g_k, g_k the product of the sites of shard k's rows, or minibatches.

    A subclass may have its rows elsewhere: it says what is asked of a shard (:meth:`call`), and
    what the sites of a state are.
    """

    def __init__(self, problem: LinearProblem) -> None:
        super().__init__(problem, Full(problem))
        if problem.covariance != "full":
            self.order_of_matrices = 0
        size = problem.batch_size or 1
        self.n_sites = -(-self.n_sites // size)
        labels = _labels_of_factors(self.schedule, problem.shape[0], size)
        order = np.argsort(labels, kind="stable")
        cuts = np.searchsorted(labels[order], np.arange(1, labels.max() + 1))
        #: factors of each shard
        self.factors = [neighbours(some) for some in np.split(order, cuts)]
        self.in_order = bool((np.diff(order) == 1).all())
        rows = [_rows_of(some, size, problem.shape[0]) for some in self.factors]
        self.shards = [shard_of(problem, some, self.schedule.inner) for some in rows]
        self.sizes = [shard.shape[0] for shard in self.shards]
        self.tasks = Tasks()

    #: of workers that have some of the shards
    lanes: Lanes | None = None

    # -- what a subclass without rows has otherwise --

    def call(
        self, k: int, visit: int, precision: Array, shift: Array, part: Part, share: float
    ) -> tuple[Any, ...]:
        """What is asked of a shard: a function and its arguments."""
        return local_update, self.shards[k], precision, shift, *part, share

    def started(self, start: Any) -> tuple[list[Part], int]:
        """The parts of a start, and its number of sweeps."""
        if start is None:
            nothing = flat_site(self.problem.base.precision)
            return [Part(nothing, self._flat_rows(shard)) for shard in self.shards], 0
        if self.schedule.inner.stores == "none":
            raise ValueError(
                "start is given with inner=ADF(), which stores no sites; allowed: None"
            )
        sites, parts = self._sites_of(start), []
        for shard, some in zip(self.shards, self.factors, strict=True):
            own: Sites = families.taken(sites, some)
            parts.append(Part(site_of(shard, own), own))
        return parts, start.n_sweeps

    def _flat_rows(self, shard: LinearProblem) -> Sites | None:
        """Flat sites of the rows or minibatches of a shard."""
        if shard.schedule.stores == "none":
            return None
        if shard.covariance == "full":
            return flat(shard.shape[0])
        prior = self.problem.prior
        engine = engine_of_shard(shard._replace(prior=prior, base=prior))
        sites: Sites = engine.settle(engine.init(None)).sites
        return sites

    def _sites_of(self, start: Any) -> Sites:
        """The sites of a start, checked."""
        if self.problem.covariance == "full":
            check_sites(self.problem, start)
            sites: Sites = start.sites
            return sites
        whole = engine_of_shard(self.problem._replace(schedule=self.schedule.inner))
        found: Sites = whole.settle(whole.init(start)).sites
        return found

    def parts_of(self, state: ShardState) -> list[Part]:
        """What is known of each shard."""
        own = [families.taken(state.shards, k) for k in range(len(self.sizes))]
        if state.sites is None:
            return [Part(site, None) for site in own]
        return [
            Part(site, families.taken(state.sites, some))
            for site, some in zip(own, self.factors, strict=True)
        ]

    def sites_of(self, parts: Sequence[Part]) -> Sites | None:
        """The sites that a state has: of the rows, or minibatches; None before there are any."""
        found = [part.rows for part in parts if part.rows is not None]
        if len(found) < len(parts):
            return None
        sites = stacked_rows(found)
        if self.in_order:
            return sites
        order = np.concatenate([np.arange(self.n_sites)[some] for some in self.factors])
        in_order: Sites = families.taken(sites, np.argsort(order))
        return in_order

    def damped(self, k: int, old: Part, new: Part, share: float) -> Part:
        """A shard between two parts."""
        site: Sites = families.damped(old.site, new.site, share)
        return Part(site, None if new.rows is None else damped_rows(old.rows, new.rows, share))

    # -- sweeps --

    def init(self, start: Any) -> ShardState:
        self.tasks.cancel()  # of a run from a start that was dropped
        parts, sweeps = self.started(start)
        found = self._built(parts, sweeps)
        if found is None:
            raise improper_start()
        return found

    def sweep(self, state: ShardState, keep: bool, tick: Tick) -> tuple[ShardState, Counts]:
        if self.schedule.order == AS_COMPLETED:
            return self._as_completed(state, tick)
        schedule, lost, refused, failed, moved = self.schedule, self.tasks.n_lost, 0, 0, 0.0
        parts, precision, shift = self.parts_of(state), state.precision, state.shift
        visits = [int(k) for k in schedule.checked_visits(len(parts), state.sweeps)]
        together, damping = schedule.order == "parallel", schedule.damping
        for some in [visits] if together else [[k] for k in visits]:
            calls = [self.call(k, state.sweeps, precision, shift, parts[k], damping) for k in some]
            found = self.tasks.together(calls, [self.sizes[k] for k in some], tick)
            for k, update in zip(some, found, strict=True):
                refused, moved = refused + update.refused, max(moved, update.moved)
                failed += update.failed
                if not together:
                    precision = precision - parts[k].site.precision + update.site.precision
                    shift = shift - parts[k].site.shift + update.site.shift
                parts[k] = Part(update.site, update.rows)
        # sweeps of a shard may go around and end where they began
        settled = False if moved > schedule.tol else None
        counts = Counts(refused, failed, settled=settled, lost=self.tasks.n_lost - lost)
        new, share = self._built(parts, state.sweeps + 1), 1.0
        while new is None:  # improper, so take less of the changes
            share *= 0.5
            if share < LEAST_SHARE:
                again = state._replace(sweeps=state.sweeps + 1)
                return again, counts._replace(refused=self.n_sites)
            both = zip(self.parts_of(state), parts, strict=True)
            some_of = [self.damped(k, *pair, share) for k, pair in enumerate(both)]
            new, counts = self._built(some_of, state.sweeps + 1), counts._replace(settled=False)
        return new, counts

    def _as_completed(self, state: ShardState, tick: Tick) -> tuple[ShardState, Counts]:
        """A pass: as many answers as there are shards, each taken as it comes."""
        tasks, schedule, lost = self.tasks, self.schedule, self.tasks.n_lost
        flow = state.flow
        if flow is None:
            flow = Flow.begun(schedule.damping, len(self.sizes))

        def send(
            k: int, visit: int, precision: Array, shift: Array, part: Part, share: float
        ) -> None:
            tasks.send((k, visit), *self.call(k, visit, precision, shift, part, share))

        parts = self.parts_of(state)
        given = tasks, flow, state.precision, state.shift, parts, self.sizes, send
        arrivals = Arrivals(*given, self.lanes)
        try:
            arrivals.take_in(tick)
        except KeyboardInterrupt:
            raise PartOfSweep(self._reached(state, arrivals)) from None
        except ExecutorFailed as failed:
            failed.posterior = self._reached(state, arrivals)
            raise
        reached = self._reached(state, arrivals)
        left = change(self.summary(state, False), self.summary(reached, False)) / flow.rate
        after = arrivals.flow_after(schedule.tol).passed(left <= schedule.tol)
        new = reached._replace(sweeps=state.sweeps + 1, flow=after)
        settled = None if after.all_agree and arrivals.moved <= schedule.tol else False
        if settled is None and flow.rate < 1.0 and 0.0 < schedule.tol >= left:
            # log scales follow
            before, now = (self.summary(s).log_evidence for s in (state, new))
            near = flow.rate * max(schedule.tol, RELATIVE * abs(now))
            settled = None if abs(now - before) <= near else False
        counts = Counts(arrivals.refused, settled=settled, left=left)
        return new, counts._replace(lost=tasks.n_lost - lost, in_flight=arrivals.width)

    def _reached(self, state: ShardState, arrivals: Arrivals) -> ShardState:
        """The state with what has come so far; a whole one wherever Ctrl-C fell."""
        found = self._built(arrivals.parts, state.sweeps)
        # each part was accepted with a proper posterior, by sums in another order
        return state if found is None else found._replace(flow=state.flow)

    def _built(self, parts: Sequence[Part], sweeps: int) -> ShardState | None:
        """Base times the sites of the shards, in their order; None if improper. O(K d^2 + d^3)."""
        base, shards = self.problem.base, stacked([part.site for part in parts])
        precision = base.precision + shards.precision.sum(axis=0)
        if not is_proper(precision):
            return None
        total = base.log_scale + float(shards.log_scale.sum())
        shift = base.shift + shards.shift.sum(axis=0)
        state = State(precision, shift, self.sites_of(parts), total, sweeps)
        return ShardState(*state, *moments_of(state), shards)

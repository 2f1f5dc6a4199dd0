"""DEP: each shard of the rows is fitted by an EP of its own, with the cavity as its prior."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from epfast import families
from epfast._arrays import Array
from epfast.inference import Counts, ExecutorFailed, PartOfSweep, Sites
from epfast.inference.executors import HERE
from epfast.inference.loop import RELATIVE, change
from epfast.inference.runtime import Tick
from epfast.linear.engines.arrivals import Arrivals, Flow, Part, sender
from epfast.linear.engines.base import FullEngine, improper_start, most_of, start_of
from epfast.linear.engines.local import local_update, neighbours, shard_of, site_of
from epfast.linear.problem import LinearProblem, State, is_proper, moments_of
from epfast.schedules.base import AS_COMPLETED


class ShardState(NamedTuple):
    """A :class:`State`, its moments, and the sites of the shards."""

    precision: Array
    shift: Array
    sites: Sites | None
    log_scale: float
    sweeps: int
    rows_seen: int | None
    covariance: Array
    mean: Array
    #: (K, d, d), (K, d), (K,): of each shard, the product of the sites of its rows
    shards: Sites
    #: of answers that are taken as they come
    flow: Flow | None = None


class ShardEngine(FullEngine):
    """q = p0 Π_k g_k, g_k the product of the sites of shard k's rows."""

    def __init__(self, problem: LinearProblem) -> None:
        super().__init__(problem)
        labels = self.schedule.labels(problem.shape[0])
        order = np.argsort(labels, kind="stable")
        cuts = np.searchsorted(labels[order], np.arange(1, labels.max() + 1))
        #: rows of each shard
        self.rows = [neighbours(rows) for rows in np.split(order, cuts)]
        self.shards = [shard_of(problem, rows, self.schedule.inner) for rows in self.rows]
        self.tasks = HERE

    def init(self, start: Any) -> ShardState:
        self.tasks.cancel()  # of a run from a start that was dropped
        state = start_of(self.problem, start)
        assert state.sites is not None
        parts = self._parts(state.sites)
        if start is None:
            d = self.problem.shape[1]
            shards = [Sites(np.zeros((d, d)), np.zeros(d), np.zeros(())) for _ in self.shards]
        else:
            shards = [site_of(shard, part) for shard, part in zip(self.shards, parts, strict=True)]
        found = self._product(state.sites, Sites(*map(np.stack, zip(*shards, strict=True))))
        if found is None:
            raise improper_start()
        return found._replace(sweeps=state.sweeps)

    def sweep(self, state: ShardState, keep: bool, tick: Tick) -> tuple[ShardState, Counts]:
        if self.schedule.order == AS_COMPLETED:
            return self._as_completed(state, tick)
        assert state.sites is not None
        schedule, lost, refused, moved = self.schedule, self.tasks.n_lost, 0, 0.0
        sites, shards = families.copied(state.sites), families.copied(state.shards)
        precision, shift = state.precision, state.shift
        visits = [int(k) for k in schedule.checked_visits(len(self.rows), state.sweeps)]
        together = schedule.order == "parallel"
        for some in [visits] if together else [[k] for k in visits]:
            calls: list[tuple[Any, ...]] = []
            for k in some:
                own = families.taken(shards, k), families.taken(sites, self.rows[k])
                calls.append((self.shards[k], precision, shift, *own, schedule.damping))
            counts = [self.shards[k].shape[0] for k in some]
            found = self.tasks.together(local_update, calls, counts, tick)
            for k, update in zip(some, found, strict=True):
                refused, moved = refused + update.refused, max(moved, update.moved)
                if not together:
                    precision = precision - shards.precision[k] + update.site.precision
                    shift = shift - shards.shift[k] + update.site.shift
                families.put(shards, k, update.site)
                families.put(sites, self.rows[k], update.rows)
        # sweeps of a shard may go around and end where they began
        counts_of = Counts(refused, settled=False if moved > schedule.tol else None)
        new, counts_of = self._accepted(state, sites, shards, counts_of)
        return new, counts_of._replace(lost=self.tasks.n_lost - lost)

    def _as_completed(self, state: ShardState, tick: Tick) -> tuple[ShardState, Counts]:
        """A pass: as many answers as there are shards, each taken as it comes."""
        tasks, schedule, lost = self.tasks, self.schedule, self.tasks.n_lost
        assert state.sites is not None
        count = len(self.rows)
        flow = Flow.begun(schedule.damping, count) if state.flow is None else state.flow
        own = [families.taken(state.shards, k) for k in range(count)]
        parts = [Part(*both) for both in zip(own, self._parts(state.sites), strict=True)]
        sizes = [shard.shape[0] for shard in self.shards]
        given = flow, state.precision, state.shift, parts, sizes
        arrivals = Arrivals(tasks, *given, sender(self.shards, tasks))
        try:
            arrivals.take_in(tick)
        except KeyboardInterrupt:
            raise PartOfSweep(self._joined(state, arrivals)) from None
        except ExecutorFailed as failed:
            failed.posterior = self._joined(state, arrivals)
            raise
        reached = self._joined(state, arrivals)
        left = change(self.summary(state, False), self.summary(reached, False)) / flow.rate
        after = arrivals.flow_after(schedule.tol).passed(left <= schedule.tol)
        new = reached._replace(sweeps=state.sweeps + 1, flow=after)
        settled = None if after.all_heard and arrivals.moved <= schedule.tol else False
        if settled is None and flow.rate < 1.0 and 0.0 < schedule.tol >= left:
            # log scales follow
            before, now = (self.summary(s).log_evidence for s in (state, new))
            near = flow.rate * max(schedule.tol, RELATIVE * abs(now))
            settled = None if abs(now - before) <= near else False
        counts = Counts(arrivals.refused, settled=settled, left=left)
        return new, counts._replace(lost=tasks.n_lost - lost, in_flight=arrivals.width)

    def _joined(self, state: ShardState, arrivals: Arrivals) -> ShardState:
        """The state with what has come so far; a whole one wherever Ctrl-C fell."""
        parts = arrivals.parts
        assert state.sites is not None
        sites: Sites = families.copied(state.sites)
        for rows, part in zip(self.rows, parts, strict=True):
            assert part.rows is not None
            families.put(sites, rows, part.rows)
        found = self._product(
            sites, Sites(*map(np.stack, zip(*(part.site for part in parts), strict=True)))
        )
        # each part was accepted with a proper posterior, by sums in another order
        return state if found is None else found._replace(sweeps=state.sweeps, flow=state.flow)

    def _parts(self, sites: Sites) -> list[Sites]:
        """The sites of the rows of each shard."""
        return [families.taken(sites, rows) for rows in self.rows]

    def _product(self, sites: Sites, shards: Sites) -> ShardState | None:
        """Base times the sites of the shards, in their order; None if improper. O(K d^2 + d^3)."""
        base = self.problem.base
        precision = base.precision + shards.precision.sum(axis=0)
        if not is_proper(precision):
            return None
        total = base.log_scale + float(shards.log_scale.sum())
        state = State(precision, base.shift + shards.shift.sum(axis=0), sites, total, 0)
        return ShardState(*state, *moments_of(state), shards)

    def _accepted(
        self, old: ShardState, sites: Sites, shards: Sites, counts: Counts
    ) -> tuple[ShardState, Counts]:
        """The state with these sites, or most of them."""
        sweeps = old.sweeps + 1
        new = self._product(sites, shards)
        if new is not None:
            return new._replace(sweeps=sweeps), counts
        assert old.sites is not None

        def build(some: Sites) -> ShardState | None:
            found = map(site_of, self.shards, self._parts(some))
            return self._product(some, Sites(*map(np.stack, zip(*found, strict=True))))

        _, part, _ = most_of(old.sites, families.damped(old.sites, sites, 0.5), build)
        if part is None:
            return old._replace(sweeps=sweeps), counts._replace(refused=self.n_sites)
        return part._replace(sweeps=sweeps), counts._replace(settled=False)

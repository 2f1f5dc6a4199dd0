"""DEP: each shard of the rows is fitted by an EP of its own, with the cavity as its prior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from epfast import families
from epfast._arrays import Array
from epfast.inference import Counts, ExecutorFailed, PartOfSweep, Sites
from epfast.inference.executors import Tasks
from epfast.inference.loop import RELATIVE, change
from epfast.inference.runtime import Tick
from epfast.linear.engines.arrivals import Arrivals, Flow, Part
from epfast.linear.engines.base import LEAST_SHARE, FullEngine, improper_start, start_of
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


def stacked(sites: Sequence[Sites]) -> Sites:
    """Sites of shards as arrays."""
    return Sites(*map(np.stack, zip(*sites, strict=True)))


class ShardEngine(FullEngine):
    """q = p0 Π_k g_k, g_k the product of the sites of shard k's rows.

    A subclass may have its rows elsewhere: it says what is asked of a shard (:meth:`call`), and
    what the sites of a state are.
    """

    def __init__(self, problem: LinearProblem) -> None:
        super().__init__(problem)
        labels = self.schedule.labels(problem.shape[0])
        order = np.argsort(labels, kind="stable")
        cuts = np.searchsorted(labels[order], np.arange(1, labels.max() + 1))
        #: rows of each shard
        self.rows = [neighbours(rows) for rows in np.split(order, cuts)]
        self.shards = [shard_of(problem, rows, self.schedule.inner) for rows in self.rows]
        self.sizes = [shard.shape[0] for shard in self.shards]
        self.tasks = Tasks()

    # -- what a subclass without rows has otherwise --

    def call(
        self, k: int, visit: int, precision: Array, shift: Array, part: Part, share: float
    ) -> tuple[Any, ...]:
        """What is asked of a shard: a function and its arguments."""
        return local_update, self.shards[k], precision, shift, *part, share

    def started(self, start: Any) -> tuple[list[Part], int]:
        """The parts of a start, and its number of sweeps."""
        state = start_of(self.problem, start)
        assert state.sites is not None
        d, parts = self.problem.shape[1], []
        for shard, rows in zip(self.shards, self.rows, strict=True):
            own: Sites = families.taken(state.sites, rows)
            nothing = Sites(np.zeros((d, d)), np.zeros(d), np.zeros(()))
            parts.append(Part(nothing if start is None else site_of(shard, own), own))
        return parts, state.sweeps

    def parts_of(self, state: ShardState) -> list[Part]:
        """What is known of each shard."""
        assert state.sites is not None
        own = [families.taken(state.shards, k) for k in range(len(self.sizes))]
        return [
            Part(site, families.taken(state.sites, rows))
            for site, rows in zip(own, self.rows, strict=True)
        ]

    def sites_of(self, parts: Sequence[Part]) -> Sites:
        """The sites that a state has: of the rows."""
        sites = Sites(*np.empty((3, self.problem.shape[0])))
        for rows, part in zip(self.rows, parts, strict=True):
            assert part.rows is not None
            families.put(sites, rows, part.rows)
        return sites

    def damped(self, k: int, old: Part, new: Part, share: float) -> Part:
        """A shard between two parts."""
        assert old.rows is not None
        assert new.rows is not None
        rows = families.damped(old.rows, new.rows, share)
        return Part(site_of(self.shards[k], rows), rows)

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
        schedule, lost, refused, moved = self.schedule, self.tasks.n_lost, 0, 0.0
        parts, precision, shift = self.parts_of(state), state.precision, state.shift
        visits = [int(k) for k in schedule.checked_visits(len(parts), state.sweeps)]
        together, damping = schedule.order == "parallel", schedule.damping
        for some in [visits] if together else [[k] for k in visits]:
            calls = [self.call(k, state.sweeps, precision, shift, parts[k], damping) for k in some]
            found = self.tasks.together(calls, [self.sizes[k] for k in some], tick)
            for k, update in zip(some, found, strict=True):
                refused, moved = refused + update.refused, max(moved, update.moved)
                if not together:
                    precision = precision - parts[k].site.precision + update.site.precision
                    shift = shift - parts[k].site.shift + update.site.shift
                parts[k] = Part(update.site, update.rows)
        # sweeps of a shard may go around and end where they began
        settled = False if moved > schedule.tol else None
        counts = Counts(refused, settled=settled, lost=self.tasks.n_lost - lost)
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
        arrivals = Arrivals(tasks, flow, state.precision, state.shift, parts, self.sizes, send)
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
        settled = None if after.all_heard and arrivals.moved <= schedule.tol else False
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

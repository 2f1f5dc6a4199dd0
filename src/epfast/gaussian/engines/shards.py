"""DEP: each shard of the rows is fitted by an EP of its own, with the cavity as its prior."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import families
from epfast._arrays import Array
from epfast.gaussian.engines.arrivals import Arrivals, Flow, ShardSite, ShardWorkers
from epfast.gaussian.engines.base import EPEngine, Outcome, Swept, flat, with_moments
from epfast.gaussian.engines.full import Full
from epfast.gaussian.engines.local import (
    damped_rows,
    engine_of_shard,
    flat_site,
    local_update,
    neighbours,
    shard_of,
    site_of,
)
from epfast.gaussian.problem import Problem, State, is_proper, stacked_rows
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


class ShardMemory(NamedTuple):
    """What a state knows of the shards."""

    #: (K, d, d) or (K, d), (K, d), (K,): of each shard, the product of the sites of its rows
    shards: Sites
    #: of answers that are taken as they come
    flow: Flow | None = None


def stacked(sites: Sequence[Sites]) -> Sites:
    """Sites of shards as arrays."""
    return Sites(*map(np.stack, zip(*sites, strict=True)))


class Shards(Full):
    """The form of q = p0 Π_k g_k, g_k the product of the sites of shard k's rows, or minibatches.

    What visits change is a list with a :class:`ShardSite` for each shard.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        schedule, (n, _), size = problem.schedule, problem.shape, problem.batch_size or 1
        self.n_sites = -(-n // size)
        labels = _labels_of_factors(schedule, n, size)
        order = np.argsort(labels, kind="stable")
        cuts = np.searchsorted(labels[order], np.arange(1, labels.max() + 1))
        #: factors of each shard
        self.factors = [neighbours(some) for some in np.split(order, cuts)]
        self.in_order = bool((np.diff(order) == 1).all())
        rows = [_rows_of(some, size, n) for some in self.factors]
        self.shards = [shard_of(problem, some, schedule.inner) for some in rows]
        self.sizes = [shard.shape[0] for shard in self.shards]

    def prior(self) -> Any:
        nothing = flat_site(self.problem.base.precision)
        parts = [ShardSite(nothing, self._flat_rows(shard)) for shard in self.shards]
        return self.built(parts, self.problem.base.sweeps)

    def _flat_rows(self, shard: Problem) -> Sites | None:
        """Flat sites of the rows or minibatches of a shard."""
        if shard.schedule.stores == "none":
            return None
        if shard.covariance == "full":
            return flat(shard.shape[0])
        prior = self.problem.prior
        engine = engine_of_shard(shard._replace(prior=prior, base=prior))
        sites: Sites = engine.finish(engine.init(None)).sites
        return sites

    def taken(self, start: Any) -> Any:
        problem, inner, parts = self.problem, self.problem.schedule.inner, []
        if inner.stores == "none":
            raise ValueError(
                "start is given with inner=ADF(), which stores no sites; allowed: None"
            )
        if problem.covariance == "full":
            sites = super().taken(start)
        else:
            whole = engine_of_shard(problem._replace(schedule=inner))
            sites = whole.finish(whole.init(start)).sites
        for shard, some in zip(self.shards, self.factors, strict=True):
            own: Sites = families.taken(sites, some)
            parts.append(ShardSite(site_of(shard, own), own))
        return parts

    def parts_of(self, state: Swept) -> list[ShardSite]:
        """What is known of each shard."""
        own = [families.taken(state.memory.shards, k) for k in range(len(self.sizes))]
        if state.sites is None:
            return [ShardSite(site, None) for site in own]
        return [
            ShardSite(site, families.taken(state.sites, some))
            for site, some in zip(own, self.factors, strict=True)
        ]

    def sites_of(self, parts: Sequence[ShardSite]) -> Sites | None:
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

    def damped(self, old: ShardSite, new: ShardSite, share: float) -> ShardSite:
        """A shard between two parts."""
        site: Sites = families.damped(old.site, new.site, share)
        return ShardSite(site, None if new.rows is None else damped_rows(old.rows, new.rows, share))

    def built(self, sites: Any, sweeps: int, flow: Flow | None = None) -> Swept | None:
        """Base times the sites of the shards, in their order; None if improper. O(K d^2 + d^3)."""
        base, shards = self.problem.base, stacked([part.site for part in sites])
        precision = base.precision + shards.precision.sum(axis=0)
        if not is_proper(precision):
            return None
        total = base.log_scale + float(shards.log_scale.sum())
        shift = base.shift + shards.shift.sum(axis=0)
        state = State(precision, shift, self.sites_of(sites), total, sweeps)
        return with_moments(state)._replace(memory=ShardMemory(shards, flow))


class ShardEngine(EPEngine):
    """DEP: a task for each shard. A subclass may have its rows elsewhere."""

    #: of workers that have some of the shards
    workers: ShardWorkers | None = None
    tasks: Any

    def __init__(self, problem: Problem, form: Shards | None = None) -> None:
        super().__init__(problem, form or Shards(problem))
        self.n_sites, self.tasks = self.form.n_sites, Tasks()

    def call(
        self, k: int, visit: int, precision: Array, shift: Array, part: ShardSite, share: float
    ) -> tuple[Any, ...]:
        """What is asked of a shard: a function and its arguments."""
        return local_update, self.form.shards[k], precision, shift, *part, share

    def init(self, start: Any) -> Swept:
        self.tasks.cancel()  # of a run from a start that was dropped
        state: Swept = super().init(start)
        return state

    def opened(self, state: Swept) -> list[ShardSite]:
        parts: list[ShardSite] = self.form.parts_of(state)
        return parts

    def between(self, state: Swept, sites: list[ShardSite], share: float) -> list[ShardSite]:
        both = zip(self.form.parts_of(state), sites, strict=True)
        return [self.form.damped(*pair, share) for pair in both]

    def visits(self, state: Swept) -> InRounds | AsTheyCome:
        return (AsTheyCome if self.schedule.order == AS_COMPLETED else InRounds)(self)


class InRounds:
    """All shards from one posterior, or one after the other; each answer is waited for."""

    in_turn = False

    def __init__(self, engine: ShardEngine) -> None:
        self.engine, self.schedule, self.moved = engine, engine.schedule, 0.0

    def sweep(self, state: Swept, sites: list[ShardSite], tick: Tick) -> Outcome:
        engine, tasks, parts = self.engine, self.engine.tasks, sites
        refused, failed, lost, damping = 0, 0, tasks.n_lost, self.schedule.damping
        precision, shift = state.precision, state.shift
        visits = [int(k) for k in self.schedule.checked_visits(len(parts), state.sweeps)]
        together = self.schedule.order == "parallel"
        for some in [visits] if together else [[k] for k in visits]:
            given = precision, shift
            calls = [engine.call(k, state.sweeps, *given, parts[k], damping) for k in some]
            found = tasks.together(calls, [engine.form.sizes[k] for k in some], tick)
            for k, update in zip(some, found, strict=True):
                refused, failed = refused + update.refused, failed + update.failed
                self.moved = max(self.moved, update.moved)
                if not together:
                    precision = precision - parts[k].site.precision + update.site.precision
                    shift = shift - parts[k].site.shift + update.site.shift
                parts[k] = ShardSite(update.site, update.rows)
        return Outcome(refused, failed, lost=tasks.n_lost - lost)

    def after(self, old: Swept, new: Swept, counts: Counts) -> tuple[Swept, Counts]:
        """The state; sweeps of a shard may go around and end where they began."""
        return new, counts._replace(settled=False) if self.moved > self.schedule.tol else counts


class AsTheyCome:
    """A pass: as many answers as there are shards, each taken as it comes."""

    in_turn = False

    def __init__(self, engine: ShardEngine) -> None:
        self.engine, self.schedule = engine, engine.schedule

    def sweep(self, state: Swept, sites: list[ShardSite], tick: Tick) -> Outcome:
        engine, tasks, schedule = self.engine, self.engine.tasks, self.schedule
        lost, flow = tasks.n_lost, state.memory.flow
        self.flow = flow = flow or Flow.begun(schedule.damping, len(sites))

        def send(k: int, visit: int, *given: Any) -> None:
            tasks.send((k, visit), *engine.call(k, visit, *given))

        given = tasks, flow, state.precision, state.shift, sites, engine.form.sizes, send
        self.arrivals = arrivals = Arrivals(*given, engine.workers)
        try:
            arrivals.take_in(tick)
        except KeyboardInterrupt:
            raise PartOfSweep(self._reached(state)) from None
        except ExecutorFailed as failed:
            failed.posterior = self._reached(state)
            raise
        made = self._reached(state)._replace(sweeps=state.sweeps + 1)
        return Outcome(arrivals.refused, lost=tasks.n_lost - lost, made=made)

    def after(self, old: Swept, new: Swept, counts: Counts) -> tuple[Swept, Counts]:
        """The state, with how the next answers are taken; a run ends where all shards agree."""
        summary, tol, arrivals = self.engine.summary, self.schedule.tol, self.arrivals
        rate = self.flow.rate
        left = change(summary(old, False), summary(new, False)) / rate
        after = arrivals.flow_after(tol).passed(left <= tol)
        settled = None if after.all_agree and arrivals.moved <= tol else False
        if settled is None and rate < 1.0 and 0.0 < tol >= left:
            # log scales follow
            before, now = (summary(s).log_evidence for s in (old, new))
            settled = None if abs(now - before) <= rate * max(tol, RELATIVE * abs(now)) else False
        new = new._replace(memory=new.memory._replace(flow=after))
        return new, counts._replace(settled=settled, remaining=left, in_flight=arrivals.width)

    def _reached(self, state: Swept) -> Swept:
        """The state with what has come so far; a whole one wherever Ctrl-C fell."""
        flow = state.memory.flow
        found: Swept | None = self.engine.form.built(self.arrivals.parts, state.sweeps, flow)
        # each part was accepted with a proper posterior, by sums in another order
        return state if found is None else found

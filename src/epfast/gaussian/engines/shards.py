"""DEP: each shard of the rows is fitted by an EP of its own, with the cavity as its prior."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import families
from epfast._arrays import Array
from epfast.gaussian.engines.base import (
    LEAST_SHARE,
    EPEngine,
    Swept,
    Visits,
    contraction,
    with_moments,
)
from epfast.gaussian.engines.full import Full
from epfast.gaussian.engines.local import (
    Update,
    damped_rows,
    engine_of_shard,
    flat_site,
    local_update,
    neighbours,
    shard_of,
    site_of,
)
from epfast.gaussian.problem import Problem, State, is_proper, stacked_rows
from epfast.inference import Counts, Sites
from epfast.inference.executors import LOST, Tasks
from epfast.inference.loop import RELATIVE, change
from epfast.inference.runtime import Tick
from epfast.schedules.base import AS_COMPLETED

#: passes without a contraction after which the share of an answer that is taken is halved, over
#: the share; the least share
STALLED, LEAST_RATE = 3, 1.0 / 16.0
#: passes after which a shard that is in flight is sent once more
LATE = 3
#: passes since an answer that never was
NEVER = 1 << 40


class Flow(NamedTuple):
    """How answers are taken, between two passes."""

    #: share of an answer that is taken
    rate: float
    #: the shards, that which was sent first of all first
    queue: tuple[int, ...]
    #: answers that each shard has given: the number of its visit
    answered: tuple[int, ...]
    #: passes that have ended since each shard was sent, and since that of its last answer was
    sent: tuple[int, ...]
    saw: tuple[int, ...]
    #: least sum of the changes over a pass so far, and passes since
    least: float = np.inf
    stalled: int = 0
    #: passes in a row that moved the posterior by no more than the tolerance
    quiet: int = 0


class ShardSite(NamedTuple):
    """What is known of a shard."""

    #: its site in the posterior
    site: Sites
    #: those of its rows, where they are here
    rows: Sites | None


class ShardMemory(NamedTuple):
    """What a state knows of the shards."""

    parts: tuple[ShardSite, ...]
    #: of answers that are taken as they come
    flow: Flow | None = None


def _members(labels: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """The numbers of those that have each label."""
    order = np.argsort(labels, kind="stable")
    return np.split(order, np.searchsorted(labels[order], np.arange(1, labels.max() + 1)))


class Shards(Full):
    """The form of q = p0 Π_k g_k, g_k the product of the sites of shard k's rows, or minibatches.

    What visits change is a list with a :class:`ShardSite` for each shard.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem)
        schedule, (n, _), size = problem.schedule, problem.shape, problem.batch_size or 1
        self.n_sites = -(-n // size)
        by_rows = schedule.shards is not None and not isinstance(schedule.shards, int)
        labels = schedule.labels(n)[::size] if by_rows else schedule.labels(self.n_sites)
        of_rows = np.repeat(labels, size)[:n]
        if by_rows and (of_rows != schedule.labels(n)).any():
            raise ValueError(
                f"shards cuts minibatches of {size} rows; allowed: a label per row, the same for "
                "all rows of a minibatch, or how many shards"
            )
        factors = _members(labels)
        #: factors of each shard
        self.factors = list(map(neighbours, factors))
        order = np.concatenate(factors)
        #: where each factor is, shard after shard; None: in their order
        self.place = None if (np.diff(order) == 1).all() else np.argsort(order)
        rows = map(neighbours, _members(of_rows))
        self.shards = [shard_of(problem, some, schedule.inner) for some in rows]
        self.sizes = [shard.shape[0] for shard in self.shards]

    def prior(self) -> Any:
        return self.built(self._begun(None), self.problem.base.sweeps)

    def taken(self, start: Any) -> Any:
        if self.problem.schedule.inner.stores == "none":
            raise ValueError(
                "start is given with inner=ADF(), which stores no sites; allowed: None"
            )
        return self._begun(start)

    def _begun(self, start: Any) -> list[ShardSite]:
        """The shards of a start, or with flat sites."""
        problem, inner = self.problem, self.problem.schedule.inner
        if inner.stores == "none":
            return [ShardSite(flat_site(problem.base.precision), None)] * len(self.shards)
        if problem.covariance == "full":
            sites = self.flat() if start is None else super().taken(start)
        else:
            whole = engine_of_shard(problem._replace(schedule=inner))
            sites = whole.finish(whole.init(start)).sites
        rows: list[Sites] = [families.taken(sites, some) for some in self.factors]
        if start is None:
            return [ShardSite(flat_site(problem.base.precision), own) for own in rows]
        return [ShardSite(site_of(*pair), pair[1]) for pair in zip(self.shards, rows, strict=True)]

    def sites_of(self, parts: Sequence[ShardSite]) -> Sites | None:
        """The sites that a state has: of the rows, or minibatches; None: none is stored."""
        found = [part.rows for part in parts if part.rows is not None]
        if not found:
            return None
        sites = stacked_rows(found)
        return sites if self.place is None else families.taken(sites, self.place)

    def between(self, old: ShardSite, new: ShardSite, share: float) -> ShardSite:
        """A shard this share of the way from one to another."""
        site: Sites = families.damped(old.site, new.site, share)
        return ShardSite(site, None if new.rows is None else damped_rows(old.rows, new.rows, share))

    def built(self, sites: Any, sweeps: int) -> Swept | None:
        """Base times the sites of the shards, in their order; None if improper. O(K d^2 + d^3)."""
        base, found = self.problem.base, zip(*(part.site for part in sites), strict=True)
        precision, shift, scale = (np.sum(numbers, axis=0) for numbers in found)
        precision += base.precision
        if not is_proper(precision):
            return None
        total = base.log_scale + float(scale)
        state = State(precision, base.shift + shift, self.sites_of(sites), total, sweeps)
        return with_moments(state)._replace(memory=ShardMemory(tuple(sites)))


class ShardEngine(EPEngine):
    """DEP: a task for each shard. A subclass may have its rows elsewhere.

    All shards from one posterior, or one after the other; each answer is waited for.
    """

    def __init__(self, problem: Problem, form: Shards | None = None) -> None:
        super().__init__(problem, form or Shards(problem))
        self.n_sites, self.tasks = self.form.n_sites, Tasks()

    def call(
        self, k: int, visit: int, precision: Array, shift: Array, part: ShardSite, share: float
    ) -> tuple[Any, ...]:
        """What is asked of a shard: a function and its arguments."""
        return local_update, self.form.shards[k], precision, shift, *part, share

    def idles(self, k: int, flying: set[int]) -> bool:
        """Whether a worker that has a shard does nothing, while others are in flight."""
        return True

    def init(self, start: Any) -> Swept:
        self.tasks.cancel()  # of a run from a start that was dropped
        state: Swept = super().init(start)
        return state

    def opened(self, state: Swept) -> list[ShardSite]:
        return list(state.memory.parts)

    def between(self, state: Swept, sites: list[ShardSite], share: float) -> list[ShardSite]:
        both = zip(state.memory.parts, sites, strict=True)
        return [self.form.between(*pair, share) for pair in both]

    def visits(self, state: Swept) -> Visits:
        return AsTheyCome(self) if self.schedule.order == AS_COMPLETED else self

    def visit(self, state: Swept, sites: list[ShardSite], tick: Tick) -> Counts:
        damping, refused, failed, self.moved = self.schedule.damping, 0, 0, 0.0
        precision, shift = state.precision, state.shift
        visits = [int(k) for k in self.schedule.checked_visits(len(sites), state.sweeps)]
        together = self.schedule.order == "parallel"
        for some in [visits] if together else [[k] for k in visits]:
            given = precision, shift
            calls = [self.call(k, state.sweeps, *given, sites[k], damping) for k in some]
            found = self.tasks.together(calls, [self.form.sizes[k] for k in some], tick)
            for k, update in zip(some, found, strict=True):
                refused, failed = refused + update.refused, failed + update.failed
                self.moved = max(self.moved, update.moved)
                if not together:
                    precision = precision - sites[k].site.precision + update.site.precision
                    shift = shift - sites[k].site.shift + update.site.shift
                sites[k] = ShardSite(update.site, update.rows)
        return Counts(refused, failed)

    def after(self, old: Swept, new: Swept, counts: Counts) -> tuple[Swept, Counts]:
        """The state; sweeps of a shard may go around and end where they began."""
        return new, counts._replace(settled=False) if self.moved > self.schedule.tol else counts


class AsTheyCome(Visits):
    """A pass: as many answers as there are shards, each of which moves the posterior as it comes.

    An answer is that of a visit. One of an older visit is dropped: its shard has answered since,
    and would count twice.
    """

    in_turn = True

    def __init__(self, engine: ShardEngine) -> None:
        self.engine, self.schedule, self.tasks = engine, engine.schedule, engine.tasks
        #: how often answers of a shard were refused in a row
        self.tries: Counter[int] = Counter()
        #: rows that kept their sites; change of the last sweep in a shard; sum of all changes
        self.refused, self.moved, self.changed = 0, 0.0, 0.0

    def visit(self, state: Swept, sites: list[ShardSite], tick: Tick) -> Counts:
        self.precision, self.shift, self.parts = state.precision, state.shift, sites
        count, sizes, taken, none = len(sites), self.engine.form.sizes, 0, (0,) * len(sites)
        begun = Flow(self.schedule.damping, tuple(range(count)), none, none, (NEVER,) * count)
        self.flow = state.memory.flow or begun
        self.queue, self.answered, self.sent, self.saw = map(list, self.flow[1:5])
        self.width = min(self.tasks.width, count)
        for k in self._flying():
            if self.sent[k] and self.sent[k] % LATE == 0:
                self._send(k)
        while taken < count:
            self._fill()
            (k, visit), update = self.tasks.take()
            if visit != self.answered[k]:
                continue
            if update is LOST:
                self._hurry(k)
                continue
            self.answered[k] += 1
            accepted = self._accept(k, update)
            if not accepted:
                self.refused += sizes[k]
                self.tries[k] += 1
                if self._share(k) >= LEAST_SHARE:
                    self._hurry(k)
                    continue
            self.tries[k] = 0
            self.saw[k] = self.sent[k]
            self.refused += update.refused if accepted else 0
            self.moved = max(self.moved, update.moved)
            taken += 1
            tick(sizes[k])
        return Counts(self.refused)

    def after(self, old: Swept, new: Swept, counts: Counts) -> tuple[Swept, Counts]:
        """The state, with how the next answers are taken.

        A run ends where each shard has answered to the posterior that stands still: what a slow
        worker says of an older one moves nothing, and says nothing.
        """
        summary, tol, rate = self.engine.summary, self.schedule.tol, self.flow.rate
        left = change(summary(old, False), summary(new, False)) / rate
        flow = self.flow_after(tol, left <= tol)
        settled = None if max(flow.saw) <= flow.quiet and self.moved <= tol else False
        if settled is None and rate < 1.0 and 0.0 < tol >= left:
            # log scales follow
            before, now = (summary(s).log_evidence for s in (old, new))
            settled = None if abs(now - before) <= rate * max(tol, RELATIVE * abs(now)) else False
        new = new._replace(memory=new.memory._replace(flow=flow))
        return new, counts._replace(settled=settled, remaining=left, in_flight=self.width)

    def flow_after(self, tol: float, quiet: bool) -> Flow:
        """The flow of the next pass; quiet: whether this one moved little."""
        rate, flow = self.flow.rate, self.flow
        least, stalled = contraction(self.changed, flow.least, flow.stalled)
        if stalled * rate >= STALLED and self.changed > tol:
            rate, least, stalled = min(rate, max(LEAST_RATE, 0.5 * rate)), np.inf, 0
        sent, saw = (tuple(passes + 1 for passes in some) for some in (self.sent, self.saw))
        queue, answered, calm = tuple(self.queue), tuple(self.answered), flow.quiet + 1
        return Flow(rate, queue, answered, sent, saw, least, stalled, calm if quiet else 0)

    def _flying(self) -> set[int]:
        """Shards of which an answer will count."""
        return {k for k, visit in self.tasks.flying() if visit == self.answered[k]}

    def _fill(self) -> None:
        """Send shards until there are enough in flight: who waited longest, where a worker idles.

        No worker idles while another has a queue.
        """
        flying = self._flying()
        while len(self.tasks) < self.width or not flying:
            waiting = [k for k in self.queue if k not in flying]
            if not waiting:
                return
            k = next((k for k in waiting if self.engine.idles(k, flying)), waiting[0])
            self._send(k)
            flying.add(k)

    def _hurry(self, k: int) -> None:
        """Let a shard go before others."""
        self.queue.remove(k)
        self.queue.insert(0, k)

    def _send(self, k: int) -> None:
        if k not in self._flying():  # of two that are under way the first counts
            self.sent[k] = 0
        self.queue.remove(k)
        self.queue.append(k)
        visit, q = self.answered[k], (self.precision, self.shift)
        asked = self.engine.call(k, visit, *q, self.parts[k], self._share(k))
        self.tasks.send((k, visit), *asked)

    def _share(self, k: int) -> float:
        return self.flow.rate * float(0.5 ** self.tries[k])

    def _accept(self, k: int, update: Update) -> bool:
        """Put the new site of a shard in place of the old one, unless that makes q improper."""
        gain = families.quotient(update.site, self.parts[k].site)
        precision = self.precision + gain.precision
        if not is_proper(precision) or not np.isfinite(gain.shift).all():
            return False
        diagonal = precision.ndim == 1
        unit = np.sqrt(precision if diagonal else np.diag(precision))
        scale = precision if diagonal else np.outer(unit, unit)
        self.changed += float(np.abs(gain.precision / scale).max())
        self.changed += float(np.abs(gain.shift / unit).max())
        # whatever is in a part is in the posterior, which is made from them anew
        self.parts[k] = ShardSite(update.site, update.rows)
        self.precision, self.shift = precision, self.shift + gain.shift
        return True

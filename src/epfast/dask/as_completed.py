"""Answers of shards that are taken as they come: nobody waits for the slowest worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from epfast import families
from epfast.dask.cluster import Workers
from epfast.gaussian.engine import LEAST_SHARE, Visited, Visits
from epfast.gaussian.shards import ShardEngine, ShardMemory, ShardSite, ShardState, Update
from epfast.gaussian.state import is_proper
from epfast.inference import Counts
from epfast.inference.loop import RELATIVE
from epfast.inference.runtime import Tick

if TYPE_CHECKING:
    from epfast.dask.engines import PlacedShards

#: passes after which a shard that is in flight is sent once more: its worker may never answer
LATE = 3
#: passes since an answer that never was
NEVER = 1 << 40


@dataclass(frozen=True)
class Flow(ShardMemory):
    """What a state knows of the shards, and how answers are taken, between two passes."""

    #: the shards, that which was sent first of all first
    queue: Sequence[int]
    #: answers that each shard has given: the number of its visit
    answered: Sequence[int]
    #: passes that have ended since each shard was sent, and since that of its last answer was
    sent: Sequence[int]
    saw: Sequence[int]
    #: passes in a row that moved the posterior by no more than the tolerance
    quiet: int = 0


class AsCompleted(ShardEngine):
    """DEP in the order "as_completed"."""

    tasks: Workers[Update]
    form: PlacedShards

    def visits(self, state: ShardState) -> Visits[ShardState, ShardMemory]:
        return AsTheyCome(self, state)


class AsTheyCome(Visits[ShardState, ShardMemory]):
    """A pass: as many answers as there are shards, each of which moves the posterior as it comes.

    An answer is that of a visit. One of an older visit is dropped: its shard has answered since,
    and would count twice.
    """

    in_turn = accelerates = True

    def __init__(self, engine: AsCompleted, state: ShardState) -> None:
        self.engine, self.schedule, self.tasks = engine, engine.schedule, engine.tasks
        #: the posterior, as the answers move it
        self.precision, self.shift = state.precision, state.shift
        count = len(engine.form.sizes)
        first = Flow((), range(count), (0,) * count, (0,) * count, (NEVER,) * count)
        self.flow = flow = state.memory if isinstance(state.memory, Flow) else first
        lists = map(list, (flow.queue, flow.answered, flow.sent, flow.saw))
        self.queue, self.answered, self.sent, self.saw = lists
        self.width = min(self.tasks.width, count)
        #: how often answers of a shard were refused in a row
        self.tries: Counter[int] = Counter()

    def visit(
        self, state: ShardState, sites: list[ShardSite], tick: Tick
    ) -> Visited[ShardState, ShardMemory]:
        sizes, n_answers, refused, distance = self.engine.form.sizes, 0, 0, 0.0
        for k in self._flying():
            if self.sent[k] and self.sent[k] % LATE == 0:
                self._send(k, sites)
        while n_answers < len(sites):
            self._fill(sites)
            (k, visit), answers = self.tasks.take()
            if visit != self.answered[k]:
                continue
            if answers is None:
                self._hurry(k)
                continue
            self.answered[k] += 1
            [update] = answers
            accepted = self._accept(k, update, sites)
            if not accepted:
                refused += sizes[k]
                self.tries[k] += 1
                if self._share(k) >= LEAST_SHARE:
                    self._hurry(k)
                    continue
            self.tries[k] = 0
            self.saw[k] = self.sent[k]
            refused += update.refused if accepted else 0
            distance = max(distance, update.distance)
            n_answers += 1
            tick(sizes[k])
        # not while a shard has changed in its last sweep
        settled = None if distance <= self.schedule.tol else False
        return Visited(Counts(refused), settled=settled)

    def accelerate(
        self,
        old: ShardState,
        new: ShardState,
        visited: Visited[ShardState, ShardMemory],
        moved: float,
    ) -> tuple[ShardState, Visited[ShardState, ShardMemory]]:
        """The state, with how the next answers are taken.

        A run ends where each shard has answered to the posterior that stands still: what a slow
        worker says of an older one moves nothing, and says nothing.
        """
        summary, tol, damping = self.engine.summary, self.schedule.tol, self.schedule.damping
        distance = moved / damping
        assert new.memory is not None
        flow = self.flow_after(new.memory.parts, distance <= tol)
        settled = visited.settled if max(flow.saw) <= flow.quiet else False
        if settled is None and damping < 1.0 and 0.0 < tol >= distance:
            # log scales follow
            last, now = (summary(s).log_evidence for s in (old, new))
            near = damping * max(tol, RELATIVE * abs(now))
            settled = None if abs(now - last) <= near else False
        new = new._replace(memory=flow)
        return new, visited._replace(settled=settled, change=distance, in_flight=self.width)

    def flow_after(self, parts: tuple[ShardSite, ...], quiet: bool) -> Flow:
        """The flow of the next pass. ``quiet``: whether this one changed little."""
        sent, saw = (tuple(passes + 1 for passes in some) for some in (self.sent, self.saw))
        calm = self.flow.quiet + 1 if quiet else 0
        return Flow(parts, tuple(self.queue), tuple(self.answered), sent, saw, calm)

    def _flying(self) -> set[int]:
        """Shards of which an answer will count."""
        return {k for k, visit in self.tasks.in_flight() if visit == self.answered[k]}

    def _fill(self, sites: list[ShardSite]) -> None:
        """Send shards until there are enough in flight: who waited longest, where a worker idles.

        No worker idles while another has a queue.
        """
        flying = self._flying()
        while len(self.tasks.in_flight()) < self.width or not flying:
            waiting = [k for k in self.queue if k not in flying]
            if not waiting:
                return
            rows = self.engine.form.rows
            others = [rows[other] for other in flying]
            k = next((k for k in waiting if self.tasks.idles(rows[k], others)), waiting[0])
            self._send(k, sites)
            flying.add(k)

    def _hurry(self, k: int) -> None:
        """Let a shard go before others."""
        self.queue.remove(k)
        self.queue.insert(0, k)

    def _send(self, k: int, sites: list[ShardSite]) -> None:
        if k not in self._flying():  # of two that are under way the first counts
            self.sent[k] = 0
        self.queue.remove(k)
        self.queue.append(k)
        call = self.engine.form.call(k, self.precision, self.shift, sites[k], self._share(k))
        self.tasks.begin({(k, self.answered[k]): [call]})

    def _share(self, k: int) -> float:
        return float(self.schedule.damping * 0.5 ** self.tries[k])

    def _accept(self, k: int, update: Update, sites: list[ShardSite]) -> bool:
        """Put the new site of a shard in place of the old one, unless that makes q improper."""
        gain = families.quotient(update.site, sites[k].site)
        precision = self.precision + gain.precision
        if not is_proper(precision) or not np.isfinite(gain.shift).all():
            return False
        # whatever is in a part is in the posterior, which is made from them anew
        sites[k] = ShardSite(update.site, update.rows)
        self.precision, self.shift = precision, self.shift + gain.shift
        return True

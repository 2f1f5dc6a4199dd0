"""Answers of shards, each taken as it comes: a pass of DEP without a barrier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Self

import numpy as np

from epfast import families
from epfast._arrays import Array
from epfast.gaussian.engines.base import LEAST_SHARE, contraction
from epfast.gaussian.engines.local import Update
from epfast.gaussian.problem import is_proper
from epfast.inference import Sites
from epfast.inference.executors import Tasks
from epfast.inference.runtime import Tick

#: passes without a contraction after which the share is halved, over the share; the least share
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
    #: passes since each shard was heard
    silent: tuple[int, ...]
    #: passes that have ended since each shard was sent, and since that of its last answer was
    sent: tuple[int, ...]
    saw: tuple[int, ...]
    #: least sum of the changes over a pass so far, and passes since
    least: float = np.inf
    stalled: int = 0
    #: passes in a row that moved the posterior by no more than the tolerance
    quiet: int = 0

    @classmethod
    def begun(cls, damping: float, count: int) -> Self:
        """Before the first pass over so many shards."""
        none = (0,) * count
        return cls(damping, tuple(range(count)), none, none, none, (NEVER,) * count)

    def passed(self, quiet: bool) -> Self:
        """After a pass that moved little, or not."""
        return self._replace(quiet=self.quiet + 1 if quiet else 0)

    @property
    def all_agree(self) -> bool:
        """Whether each shard has answered to the posterior that stands still.

        What a slow worker says of an older one moves nothing, and says nothing.
        """
        return max(self.saw) <= self.quiet


class ShardSite(NamedTuple):
    """What is known of a shard."""

    #: its site in the posterior
    site: Sites
    #: those of its rows, where they are here
    rows: Sites | None


class ShardWorkers(NamedTuple):
    """Workers, and which of them has which shard: none idles while another has a queue."""

    #: the worker of each shard
    of: Sequence[Any]
    #: tasks that each takes at a time
    width: Mapping[Any, int]

    @classmethod
    def one(cls, count: int, width: int) -> Self:
        """Workers that all have all of so many shards."""
        return cls((None,) * count, {None: width})


class Arrivals:
    """One pass: as many answers as there are shards.

    An answer is that of a visit. One of an older visit is dropped: its shard has answered since,
    and would count twice.
    """

    def __init__(  # send: of shard k: (k, visit, precision, shift, part, share)
        self,
        tasks: Tasks,
        flow: Flow,
        precision: Array,
        shift: Array,
        parts: Sequence[ShardSite],
        sizes: Sequence[int],
        send: Callable[..., None],
        workers: ShardWorkers | None = None,
    ) -> None:
        self.tasks, self.flow, self.parts = tasks, flow, list(parts)
        self.precision, self.shift, self.sizes, self.send = precision, shift, sizes, send
        self.width = min(tasks.width, len(self.parts))
        self.workers = ShardWorkers.one(len(self.parts), self.width) if workers is None else workers
        self.answered, self.queue = list(flow.answered), list(flow.queue)
        self.heard: set[int] = set()
        #: see :class:`Flow`
        self.sent, self.saw = list(flow.sent), list(flow.saw)
        #: shards to be sent again before others, and how often their answers were refused
        self.again: list[int] = []
        self.tries: dict[int, int] = {}
        #: rows that kept their sites; change of the last sweep in a shard; sum of all changes
        self.refused, self.moved, self.changed = 0, 0.0, 0.0

    def take_in(self, tick: Tick) -> None:
        """Take answers until there are as many as shards."""
        taken, count = 0, len(self.parts)
        for k in self._flying():
            if self.flow.silent[k] and self.flow.silent[k] % LATE == 0:
                self._send(k)
        while taken < count:
            self._fill()
            (k, visit), answer = self.tasks.take()
            if visit != self.answered[k]:
                continue
            if answer.lost:
                self.again.append(k)
                continue
            update: Update = answer.value
            self.answered[k] += 1
            accepted = self._accept(k, update)
            if not accepted:
                self.refused += self.sizes[k]
                self.tries[k] = self.tries.get(k, 0) + 1
                if self._share(k) >= LEAST_SHARE:
                    self.again.append(k)
                    continue
            self.tries.pop(k, None)
            self.heard.add(k)
            self.saw[k] = self.sent[k]
            self.refused += update.refused if accepted else 0
            self.moved = max(self.moved, update.moved)
            taken += 1
            tick(self.sizes[k])

    def flow_after(self, tol: float) -> Flow:
        """The flow of the next pass, but for ``quiet``."""
        rate, (least, stalled) = (
            self.flow.rate,
            contraction(self.changed, self.flow.least, self.flow.stalled),
        )
        if stalled * rate >= STALLED and self.changed > tol:
            rate, least, stalled = min(rate, max(LEAST_RATE, 0.5 * rate)), np.inf, 0
        return self.flow._replace(
            rate=rate,
            queue=tuple(self.queue),
            answered=tuple(self.answered),
            silent=tuple(
                0 if k in self.heard else passes + 1 for k, passes in enumerate(self.flow.silent)
            ),
            sent=tuple(passes + 1 for passes in self.sent),
            saw=tuple(passes + 1 for passes in self.saw),
            least=least,
            stalled=stalled,
        )

    def _flying(self) -> set[int]:
        """Shards of which an answer will count."""
        return {k for k, visit in self.tasks.flying() if visit == self.answered[k]}

    def _fill(self) -> None:
        """Send shards until there are enough in flight: those again, then who waited longest."""
        flying = self._flying()
        while len(self.tasks) < self.width or not flying:
            if self.again:
                k = self.again.pop(0)
            else:
                waiting = [k for k in self.queue if k not in flying]
                if not waiting:
                    return
                k = next((k for k in waiting if self._has_room(k, flying)), waiting[0])
            if k not in flying:
                self._send(k)
                flying.add(k)

    def _has_room(self, k: int, flying: set[int]) -> bool:
        """Whether the worker of a shard has a thread that does nothing."""
        worker = self.workers.of[k]
        busy = sum(self.workers.of[other] == worker for other in flying)
        return bool(busy < self.workers.width.get(worker, 1))

    def _send(self, k: int) -> None:
        if k not in self._flying():  # of two that are under way the first counts
            self.sent[k] = 0
        self.queue.remove(k)
        self.queue.append(k)
        self.send(k, self.answered[k], self.precision, self.shift, self.parts[k], self._share(k))

    def _share(self, k: int) -> float:
        return self.flow.rate * float(0.5 ** self.tries.get(k, 0))

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

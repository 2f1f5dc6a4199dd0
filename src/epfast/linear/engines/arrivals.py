"""Answers of shards, each taken as it comes: a pass of DEP without a barrier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol, Self

import numpy as np

from epfast import families
from epfast._arrays import Array
from epfast.inference import Sites
from epfast.inference.executors import Tasks
from epfast.inference.runtime import Tick
from epfast.linear.engines.base import LEAST_SHARE, contraction
from epfast.linear.engines.local import Update
from epfast.linear.problem import is_proper

#: passes without a contraction after which the share is halved, over the share; the least share
STALLED, LEAST_RATE = 3, 1.0 / 16.0
#: passes after which a shard that is in flight is sent once more
LATE = 3


class Flow(NamedTuple):
    """How answers are taken, between two passes."""

    #: share of an answer that is taken
    rate: float
    #: next shard in turn
    turn: int
    #: answers that each shard has given: the number of its visit
    answered: tuple[int, ...]
    #: passes since each shard was heard
    silent: tuple[int, ...]
    #: least sum of the changes over a pass so far, and passes since
    least: float = np.inf
    stalled: int = 0
    #: passes in a row that moved the posterior by no more than the tolerance
    quiet: int = 0

    @classmethod
    def begun(cls, damping: float, count: int) -> Self:
        """Before the first pass over so many shards."""
        return cls(damping, 0, (0,) * count, (0,) * count)

    def passed(self, quiet: bool) -> Self:
        """After a pass that moved little, or not."""
        return self._replace(quiet=self.quiet + 1 if quiet else 0)

    @property
    def all_heard(self) -> bool:
        """Whether each shard has answered since the posterior stands still."""
        return max(self.silent) < self.quiet


class Part(NamedTuple):
    """What is known of a shard."""

    #: its site in the posterior
    site: Sites
    #: those of its rows, where they are here
    rows: Sites | None


class Sends(Protocol):
    """Sends a shard to its worker."""

    def __call__(
        self, k: int, visit: int, precision: Array, shift: Array, part: Part, share: float
    ) -> None: ...


class Arrivals:
    """One pass: as many answers as there are shards.

    An answer is that of a visit. One of an older visit is dropped: its shard has answered since,
    and would count twice.
    """

    def __init__(
        self,
        tasks: Tasks,
        flow: Flow,
        precision: Array,
        shift: Array,
        parts: Sequence[Part],
        sizes: Sequence[int],
        send: Sends,
    ) -> None:
        self.tasks, self.flow, self.parts = tasks, flow, list(parts)
        self.precision, self.shift, self.sizes, self.send = precision, shift, sizes, send
        self.width = min(tasks.width, len(self.parts))
        self.answered, self.turn = list(flow.answered), flow.turn
        self.heard: set[int] = set()
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
            turn=self.turn,
            answered=tuple(self.answered),
            silent=tuple(
                0 if k in self.heard else passes + 1 for k, passes in enumerate(self.flow.silent)
            ),
            least=least,
            stalled=stalled,
        )

    def _flying(self) -> set[int]:
        """Shards of which an answer will count."""
        return {k for k, visit in self.tasks.flying() if visit == self.answered[k]}

    def _fill(self) -> None:
        """Send shards until there are enough in flight: those again, then the next in turn."""
        flying = self._flying()
        while len(self.tasks) < self.width or not flying:
            if self.again:
                k = self.again.pop(0)
            else:
                count = len(self.parts)
                order = ((self.turn + i) % count for i in range(count))
                free = next((k for k in order if k not in flying), None)
                if free is None:
                    return
                k, self.turn = free, (free + 1) % count
            if k not in flying:
                self._send(k)
                flying.add(k)

    def _send(self, k: int) -> None:
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
        self.parts[k] = Part(update.site, update.rows)
        self.precision, self.shift = precision, self.shift + gain.shift
        return True

"""DEP, DSEP and DAEP whose rows are on the workers of a cluster.

The sites of the shards are the coordinator's, and are all that counts: who loses a worker loses
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor
from typing import Any, NamedTuple

import numpy as np

from epfast import families
from epfast._arrays import Array
from epfast.dask.worker import Facts, Packed, Visit, visit_rows, visit_shared
from epfast.inference import Counts, Sites, evidence_bound
from epfast.inference.executors import Answer, Tasks
from epfast.inference.runtime import Tick
from epfast.linear.engines.arrivals import Part
from epfast.linear.engines.shards import ShardEngine, ShardState, stacked
from epfast.linear.engines.shared import SharedEngine, SharedState
from epfast.linear.problem import LinearProblem


class Elsewhere(NamedTuple):
    """Rows that are not here."""

    shape: tuple[int, int]


class Shard(NamedTuple):
    """A shard by what the cluster knows it by."""

    number: int
    #: a future or a delayed object: what a worker has loaded, or loads for each visit
    rows: Any
    facts: Facts


class Counted(Tasks):
    """Tasks of a cluster, with the bytes that they took."""

    def __init__(self, executor: Executor, width: int) -> None:
        super().__init__(executor, width)
        self.n_bytes = 0

    def take(self) -> tuple[Any, Answer]:
        key, answer = super().take()
        if answer.lost:
            return key, answer
        self.n_bytes += answer.value.site.numbers.nbytes
        return key, answer._replace(value=answer.value.update())


def _asked(
    tasks: Any, token: str, k: int, number: int, q: tuple[Array, Array], site: Sites, share: float
) -> Visit:
    """What is sent to a shard."""
    posterior, own = Packed.of(*q), Packed.of(site.precision, site.shift)
    tasks.n_bytes += posterior.numbers.nbytes + own.numbers.nbytes
    return Visit(token, k, number, posterior, own, float(site.log_scale), share)


def _of_start(start: Any, count: int, d: int) -> tuple[list[Sites], int]:
    """Sites of shards, flat ones without a start."""
    if start is None:
        return [Sites(np.zeros((d, d)), np.zeros(d), np.zeros(())) for _ in range(count)], 0
    shapes = [] if start.sites is None else [part.shape for part in start.sites]
    if shapes != [(count, d, d), (count, d), (count,)]:
        found = shapes[0] if shapes else None
        raise ValueError(
            f"start has sites of shape {found}; allowed: ({count}, {d}, {d}), a result of "
            "epfast.dask.fit_linear with as many shards and columns"
        )
    return [families.taken(start.sites, k) for k in range(count)], start.n_sweeps


class _CountsBytes:
    """Base of an engine on a cluster: a sweep says what it has sent and got."""

    tasks: Counted

    def sweep(self, state: Any, keep: bool, tick: Tick) -> tuple[Any, Counts]:
        before = self.tasks.n_bytes
        swept: Any = super()
        new, counts = swept.sweep(state, keep, tick)
        return new, counts._replace(bytes_sent=self.tasks.n_bytes - before)


class RemoteShards(_CountsBytes, ShardEngine):
    """DEP: sites of rows stay with the worker that has them, those of shards are here."""

    def __init__(
        self, problem: LinearProblem, shards: Sequence[Shard], tasks: Counted, token: str
    ) -> None:
        super(ShardEngine, self).__init__(problem)
        self.remote, self.token = shards, token
        self.sizes = [shard.facts.rows for shard in shards]
        self.tasks: Counted = tasks
        self.evidence_bound = evidence_bound(problem.loss, sum(s.facts.size for s in shards))
        nothing: Any = None
        self.template = problem._replace(
            schedule=self.schedule.inner, prior=nothing, base=nothing, data=nothing
        )

    def call(
        self, k: int, visit: int, precision: Array, shift: Array, part: Part, share: float
    ) -> tuple[Any, ...]:
        asked = _asked(self.tasks, self.token, k, visit, (precision, shift), part.site, share)
        return visit_rows, self.remote[k], self.template, asked

    def started(self, start: Any) -> tuple[list[Part], int]:
        sites, sweeps = _of_start(start, len(self.remote), self.problem.shape[1])
        return [Part(site, None) for site in sites], sweeps

    def parts_of(self, state: ShardState) -> list[Part]:
        return [Part(families.taken(state.shards, k), None) for k in range(len(self.remote))]

    def sites_of(self, parts: Sequence[Part]) -> Sites:
        return stacked([part.site for part in parts])

    def damped(self, k: int, old: Part, new: Part, share: float) -> Part:
        return Part(families.damped(old.site, new.site, share), None)


class RemoteGroups(_CountsBytes, SharedEngine):
    """DSEP and DAEP in rounds: nothing stays on a worker but rows."""

    def __init__(
        self, problem: LinearProblem, shards: Sequence[Shard], tasks: Counted, token: str
    ) -> None:
        self.remote, self.token = shards, token
        super().__init__(problem)
        self.tasks: Counted = tasks
        self.evidence_bound = evidence_bound(problem.loss, float(self.sizes.sum()))
        nothing: Any = None
        #: of a schedule the power counts, which has no arrays
        self.template = problem._replace(prior=nothing, base=nothing, data=nothing)

    def group_sizes(self) -> Array:
        return np.array([shard.facts.size for shard in self.remote])

    def batch_count(self) -> int:
        batch = self.schedule.batch
        rows = [shard.facts.rows for shard in self.remote]
        return sum(-(-n // (n if batch is None else batch)) for n in rows)

    def calls(
        self, state: SharedState, sites: Sites, schedule: Any, damping: float
    ) -> tuple[list[tuple[Any, ...]], list[int]]:
        calls: list[tuple[Any, ...]] = []
        q = state.precision, state.shift
        for shard in self.remote:
            k = shard.number
            site: Sites = families.taken(sites, k)
            asked = _asked(self.tasks, self.token, k, state.sweeps, q, site, damping)
            rest = schedule.batch, state.checked
            calls.append((visit_shared, shard, self.template, asked, *rest))
        return calls, [shard.facts.rows for shard in self.remote]

"""Schedules whose rows are on the workers of a cluster.

The sites of the shards are the coordinator's, and are all that counts: who loses a worker loses
time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from epfast import families
from epfast._arrays import Array
from epfast.dask.as_completed import AsCompleted
from epfast.dask.worker import Facts, Passed, Placed, local_pass, update_kept
from epfast.gaussian.engine import (
    EPEngine,
    Full,
    Start,
    Visited,
    Working,
    plain,
    proper,
    with_moments,
)
from epfast.gaussian.passes import start_of_pass
from epfast.gaussian.problem import Problem
from epfast.gaussian.rows import NO_ROWS, Data
from epfast.gaussian.shards import (
    KeptRows,
    ShardEngine,
    Shards,
    ShardSite,
    ShardState,
    SharedEngine,
    Tied,
    Update,
    flat_site,
    shard_of,
)
from epfast.gaussian.state import State, is_proper
from epfast.inference import Counts, ExecutorFailed, PartOfSweep, Sites, evidence_bound
from epfast.inference.executors import Tasks
from epfast.inference.loop import Extent
from epfast.inference.report import note_weights
from epfast.inference.runtime import Tick
from epfast.losses import Loss
from epfast.schedules import EP, FilledSchedule
from epfast.schedules.base import AS_COMPLETED


def placed(problem: Problem, rows: Placed, schedule: FilledSchedule) -> Problem:
    """The problem of rows that are elsewhere: what a worker does not know of itself."""
    whole = problem._replace(data=NO_ROWS)
    return shard_of(whole, slice(None), schedule)._replace(data=data_elsewhere(rows))


def data_elsewhere(rows: Placed) -> Data:
    """Rows that are elsewhere, in place of those that are here."""
    return Data._make((rows, *NO_ROWS[1:]))


class PlacedShards(Shards):
    """Sites of shards alone: those of rows stay with the workers that have them.

    Laplace propagation, all factors from one posterior, is the same picture: what comes from a
    shard is the product of its factors' sites.
    """

    def __init__(self, problem: Problem, rows: Sequence[Placed]) -> None:
        Full.__init__(self, problem)
        schedule, base = problem.schedule, problem.base
        # of Laplace propagation one sweep, which is damped as a whole
        once = EP(1, 0.0, damping=1.0, power=schedule.power, order="parallel").filled()
        inner = schedule.inner if schedule.stores == "shard" else once
        self.rows, self.shards = rows, [placed(problem, some, inner) for some in rows]
        self.sizes = [some.facts.factors(problem.batch_size) for some in rows]
        self.n_sites, count = sum(self.sizes), len(rows)
        self.shapes = (count, *base.precision.shape), (count, len(base.shift)), (count,)
        self.weights = None

    def prior(self) -> ShardState:
        nothing = flat_site(self.problem.base.precision)
        return proper(self.rebuild([ShardSite(nothing, some.kept) for some in self.rows], 0))

    def checked_start(self, start: Start) -> list[ShardSite]:
        sites = Full.checked_start(self, start)
        own = [families.select(sites, k) for k in range(len(self.rows))]
        return [ShardSite(site, some.kept) for site, some in zip(own, self.rows, strict=True)]

    def call(
        self, k: int, precision: Array, shift: Array, part: ShardSite, damping: float
    ) -> partial[Update]:
        assert isinstance(part.rows, KeptRows)
        return partial(update_kept, self.shards[k], precision, shift, part.site, part.rows, damping)

    def sites_of(self, parts: Sequence[ShardSite]) -> Sites:
        return Sites(*map(np.stack, zip(*(part.site for part in parts), strict=True)))


class PlacedGroups(Tied):
    """Groups whose rows are elsewhere: nothing stays on a worker but rows."""

    def __init__(self, problem: Problem, rows: Sequence[Placed]) -> None:
        super().__init__(problem, np.array([some.facts.size for some in rows]))
        self.counts = [some.facts.rows for some in rows]
        power = EP(power=problem.schedule.power).filled()
        self.shards = [placed(problem, some, power) for some in rows]

    def batch_count(self) -> int:
        size = self.problem.schedule.batch
        return sum(-(-count // (size or count)) for count in self.counts)

    def groups(self, schedule: FilledSchedule, sweep: int) -> Sequence[tuple[Problem, int | None]]:
        return [(shard, schedule.batch) for shard in self.shards]


def engine_of_shards(problem: Problem, rows: Sequence[Placed]) -> ShardEngine | SharedEngine:
    """The engine of sites of shards, or of groups, whose rows are elsewhere."""
    engine: ShardEngine | SharedEngine
    if problem.schedule.stores == "shared":
        engine = SharedEngine(problem, PlacedGroups(problem, rows))
    else:
        kind = AsCompleted if problem.schedule.order == AS_COMPLETED else ShardEngine
        engine = kind(problem, PlacedShards(problem, rows))
    engine.evidence_bound = evidence_bound(problem.loss, sum(some.facts.size for some in rows))
    return engine


def check_rows(facts: list[Facts], loss: Loss) -> None:
    """Refuse what only all chunks together show; warn of weights that are no counts."""
    if not any(part.rows for part in facts):
        raise ValueError("X has no rows; allowed: one at least")
    if not any(part.size for part in facts):
        raise ValueError("weights are all 0; allowed: one row at least that counts")
    if loss.by_margin:
        negative, positive = (any(part.labels[i] for part in facts) for i in (0, 1))
        if not (negative and positive):
            raise ValueError(
                f"y has the label {'+1' if positive else '-1'} alone; allowed: -1 and +1"
            )
    note_weights(np.array([part.fraction for part in facts]))


class Passes(EPEngine[Working, State, None]):
    """ADF: each thread of the cluster passes over shards of its own, one after the other.

    The result is the product of what they end with, over all but one of what they began with. A
    worker that dies takes with it a shard's worth.
    """

    problem: Problem
    tasks: Tasks[Passed]

    def __init__(self, problem: Problem, streams: Sequence[Sequence[Placed]]) -> None:
        super().__init__(problem, Full(problem))
        self.streams = streams

    def init(self, start: Start | None) -> Working:
        return start_of_pass(self.problem, start)

    def visit(self, state: Working, sites: None, tick: Tick) -> Visited[Working, None]:
        base, seen = plain(state), list[Facts]()
        reached: list[Working | None] = [None] * len(self.streams)
        totals = np.zeros(3, dtype=np.intp)

        def send(c: int, i: int) -> None:
            # engines begin at the base
            shard = self.problem._replace(base=base, data=data_elsewhere(self.streams[c][i]))
            self.tasks.begin({(c, i): [partial(local_pass, shard, reached[c])]})

        try:
            for c in range(len(self.streams)):
                send(c, 0)
            while self.tasks.in_flight():
                (c, i), answers = self.tasks.take()
                for passed in answers or ():
                    reached[c] = passed.state
                    seen.append(passed.facts)
                    totals += passed.counts[:3]
                    tick(passed.facts.factors(self.problem.batch_size))
                    i += 1
                if i < len(self.streams[c]):
                    send(c, i)
        except KeyboardInterrupt:
            raise PartOfSweep(self._combined(base, reached)) from None
        except ExecutorFailed as error:
            error.posterior = self._combined(base, reached)
            raise
        new = self._combined(base, reached)
        check_rows(seen, self.problem.loss)
        extent = Extent(
            sum(facts.factors(self.problem.batch_size) for facts in seen),
            evidence_bound(self.problem.loss, sum(facts.size for facts in seen)),
        )
        new = new._replace(sweeps=new.sweeps + 1)
        refused, failed, clipped = totals.tolist()
        counts = Counts(refused, failed, clipped)
        return Visited(counts, new, in_flight=len(self.streams), extent=extent)

    def _combined(self, base: State, reached: Sequence[Working | None]) -> Working:
        """The product of the passes, over all but one of where they began."""
        ends = [plain(end) for end in reached if end is not None]
        if not ends:
            return with_moments(base)
        surplus = len(ends) - 1
        whole = State(
            sum(end.precision for end in ends) - surplus * base.precision,
            sum(end.shift for end in ends) - surplus * base.shift,
            None,
            sum(end.log_scale for end in ends) - surplus * base.log_scale,
            max(end.sweeps for end in ends),
            sum(end.rows_seen or 0 for end in ends) - surplus * (base.rows_seen or 0),
        )
        if not is_proper(whole.precision):
            raise FloatingPointError(
                "the passes of ADF have an improper product; allowed: a loss whose sites add "
                "precision, or fewer streams"
            )
        return with_moments(whole)

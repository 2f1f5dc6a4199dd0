"""Schedules whose rows are on the workers of a cluster.

The sites of the shards are the coordinator's, and are all that counts: who loses a worker loses
time.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple, cast

import numpy as np

from epfast import families
from epfast._arrays import Array
from epfast.dask.worker import (
    Facts,
    Visit,
    answers,
    bytes_of,
    packed,
    unpacked,
    visit_pass,
    visit_rows,
    visit_shared,
)
from epfast.gaussian.engine import EPEngine, Full, Visited, Working, plain, with_moments
from epfast.gaussian.passes import start_of_pass
from epfast.gaussian.problem import Problem
from epfast.gaussian.shards import (
    GroupState,
    ShardEngine,
    Shards,
    ShardSite,
    SharedEngine,
    Update,
    flat_site,
)
from epfast.gaussian.state import State, is_proper
from epfast.inference import Counts, ExecutorFailed, PartOfSweep, Sites, evidence_bound
from epfast.inference.executors import LOST, Tasks
from epfast.inference.report import note_weights
from epfast.inference.runtime import Tick, no_tick
from epfast.losses import Loss
from epfast.schedules import EP


class Shard(NamedTuple):
    """A shard by what the cluster knows it by."""

    number: int
    #: a future or a delayed object: what a worker has loaded, or loads for each visit
    rows: Any
    facts: Facts = Facts()
    #: workers that have it, or are to read it. None: whoever has nothing to do
    homes: Sequence[str] = ()

    @property
    def home(self) -> str | None:
        return next(iter(self.homes), None)


class Workers(Tasks):
    """Tasks on the workers that have the shards, with the bytes that they took.

    A call is a function, a shard, and other arguments. A task makes one call, or several.
    """

    def __init__(self, threads: int) -> None:
        super().__init__(cast(Any, self), threads)
        #: of the fit
        self.token = uuid.uuid4().hex

    def shard_bytes(self, persist: bool, rows: float) -> int | None:
        """Most bytes of a shard of so many rows, or NaN, in all. None: not known."""
        return None

    def shards(self, loads: list[Any], persist: bool) -> list[Shard]:
        """Those that have rows, loaded once. Who persists keeps them, else each visit loads."""
        parts = zip(*self.loaded(loads, persist), strict=True)
        return [Shard(k, *part) for k, part in enumerate(part for part in parts if part[1].rows)]

    def loaded(self, loads: list[Any], persist: bool) -> tuple[Any, Any, Any]:
        """See :meth:`shards`: rows, facts and homes."""
        raise NotImplementedError

    def start(self, parcels: list[Sequence[tuple[Any, ...]]]) -> list[Future[Any]]:
        """Start a task for each list of calls: :func:`attempted` :func:`answers`."""
        raise NotImplementedError

    def submitted(self, calls: Sequence[tuple[Any, ...]]) -> list[Future[Any]]:
        return self.start([call[1:] if call[0] is answers else [call] for call in calls])

    def take(self) -> tuple[Any, Any]:
        key, values = super().take()
        if values is LOST:
            return key, LOST
        self.n_bytes += sum(bytes_of(value[0]) for value in values)
        for i, value in enumerate(values):
            if isinstance(value, Update):
                values[i] = value._replace(site=unpacked(value.site))
        return key, values if len(values) > 1 else values[0]

    def idles(self, shard: Shard, flying: Sequence[Shard]) -> bool:
        """Whether a worker that has a shard does nothing while others are visited."""
        return True

    def parcels(self, shards: Sequence[Shard]) -> list[list[int]]:
        """Positions of the shards that are best visited by one task."""
        return [[i] for i in range(len(shards))]

    def visit_of(
        self, shard: int, number: int, precision: Array, shift: Array, site: Sites, damping: float
    ) -> Visit:
        """What is sent to a shard."""
        q, own = packed(Sites(precision, shift, np.zeros(()))), packed(site)
        self.n_bytes += bytes_of(q) + bytes_of(own)
        return Visit(self.token, shard, number, q, own, damping)

    def close(self) -> None:
        """Forget the fit."""
        raise NotImplementedError

    def together(
        self, calls: Sequence[tuple[Any, ...]], counts: Sequence[int], tick: Tick = no_tick
    ) -> list[Any]:
        parcels = self.parcels([call[1] for call in calls])
        several = [(answers, *(calls[k] for k in parcel)) for parcel in parcels]
        of_each = [sum(counts[k] for k in parcel) for parcel in parcels]
        values: dict[int, Any] = {}
        for parcel, outcome in zip(parcels, super().together(several, of_each, tick), strict=True):
            values |= zip(parcel, outcome if len(parcel) > 1 else [outcome], strict=True)
        return [values[k] for k in range(len(calls))]


class Remote(Shards):
    """Sites of shards alone: those of rows stay with the workers that have them."""

    def __init__(self, problem: Problem, shards: Sequence[Shard]) -> None:
        Full.__init__(self, problem)
        self.sizes = [shard.facts.factors(problem.batch_size) for shard in shards]
        self.n_sites = sum(self.sizes)
        count, precision = len(shards), problem.base.precision
        self.shapes = (count, *precision.shape), (count, len(precision)), (count,)
        self.weights = None

    def prior(self) -> Any:
        nothing = flat_site(self.problem.base.precision)
        return self.rebuild([ShardSite(nothing, None)] * len(self.sizes), 0)

    def checked_start(self, start: Any) -> list[ShardSite]:
        sites = Full.checked_start(self, start)
        return [ShardSite(families.taken(sites, k), None) for k in range(len(self.sizes))]

    def sites_of(self, parts: Sequence[ShardSite]) -> Sites:
        return Sites(*map(np.stack, zip(*(part.site for part in parts), strict=True)))


class RemoteShards(ShardEngine):
    """DEP: sites of rows stay with the worker that has them, those of shards are here.

    Laplace propagation, all factors from one posterior, is the same picture: what comes from a
    shard is the product of its factors' sites.
    """

    def __init__(self, problem: Problem, shards: Sequence[Shard]) -> None:
        super().__init__(problem, Remote(problem, shards))
        self.remote = shards
        self.evidence_bound = evidence_bound(problem.loss, sum(s.facts.size for s in shards))
        nothing: Any = None
        # of Laplace propagation one sweep, which is damped as a whole
        once: Any = EP(1, 0.0, damping=1.0, power=self.schedule.power, order="parallel")
        schedule = self.schedule.inner if self.schedule.stores == "shard" else once
        #: what a worker does not know of itself
        self.template = problem._replace(
            schedule=schedule, prior=nothing, base=nothing, data=nothing
        )

    def call(
        self, k: int, visit: int, precision: Array, shift: Array, part: ShardSite, share: float
    ) -> tuple[Any, ...]:
        sent = self.tasks.visit_of(k, visit, precision, shift, part.site, share)
        return visit_rows, self.remote[k], self.template, sent

    def idles(self, k: int, flying: set[int]) -> bool:
        others = [self.remote[other] for other in flying]
        return bool(self.tasks.idles(self.remote[k], others))


class RemoteGroups(SharedEngine):
    """DSEP and DAEP in rounds: nothing stays on a worker but rows."""

    def __init__(self, problem: Problem, shards: Sequence[Shard]) -> None:
        self.remote = shards
        super().__init__(problem)
        self.n_sites = sum(shard.facts.rows for shard in shards)
        self.evidence_bound = evidence_bound(problem.loss, float(self.sizes.sum()))
        nothing: Any = None
        #: of a schedule the power counts, which has no arrays
        self.template = problem._replace(prior=nothing, base=nothing, data=nothing)

    def group_sizes(self) -> Array:
        return np.array([shard.facts.size for shard in self.remote])

    def batch_count(self) -> int:
        facts = [shard.facts for shard in self.remote]
        return sum(part.factors(self.schedule.batch or part.rows) for part in facts)

    def calls(
        self, state: GroupState, sites: Sites, schedule: Any, damping: float
    ) -> tuple[list[tuple[Any, ...]], list[int]]:
        assert state.memory is not None
        calls: list[tuple[Any, ...]] = []
        for k, shard in enumerate(self.remote):
            q, site = (state.precision, state.shift), families.taken(sites, k)
            sent = self.tasks.visit_of(k, state.sweeps, *q, site, damping)
            rest = schedule.batch, state.memory.checked
            calls.append((visit_shared, shard, self.template, sent, *rest))
        return calls, [shard.facts.rows for shard in self.remote]


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


class Passes(EPEngine[Working, State]):
    """ADF: each thread of the cluster passes over shards of its own, one after the other.

    Passes are combined as shards are: the product of what they end with, over all but one of what
    they began with. A worker that dies takes with it a shard's worth.
    """

    def __init__(self, problem: Problem, streams: Sequence[Sequence[Shard]]) -> None:
        super().__init__(problem, Full(problem))
        self.streams = streams

    def init(self, start: Any) -> Working:
        return start_of_pass(self.problem, start)

    def visit(self, state: Working, sites: None, tick: Tick) -> Visited[Working]:
        begun, seen = plain(state), list[Facts]()
        # engines begin at the base
        template = self.problem._replace(base=begun)
        reached: list[Any] = [None] * len(self.streams)
        done = [0] * len(self.streams)
        totals = np.zeros(3, dtype=np.intp)

        def send(c: int) -> None:
            shard = self.streams[c][done[c]]
            self.tasks.n_bytes += bytes_of(reached[c])
            self.tasks.begin({c: (visit_pass, shard, template, reached[c])})

        try:
            for c in range(len(self.streams)):
                send(c)
            while len(self.tasks):
                c, passed = self.tasks.take()
                if passed is not LOST:
                    reached[c] = passed.state
                    seen.append(passed.facts)
                    totals += passed.counts[:3]
                    tick(passed.facts.factors(self.problem.batch_size))
                    done[c] += 1
                if done[c] < len(self.streams[c]):
                    send(c)
        except KeyboardInterrupt:
            raise PartOfSweep(self._combined(begun, reached)) from None
        except ExecutorFailed as error:
            error.posterior = self._combined(begun, reached)
            raise
        new = self._combined(begun, reached)
        check_rows(seen, self.problem.loss)
        self.evidence_bound = evidence_bound(self.problem.loss, sum(facts.size for facts in seen))
        self.n_sites = sum(facts.factors(self.problem.batch_size) for facts in seen)
        made = new._replace(sweeps=new.sweeps + 1)
        refused, failed, clipped = totals.tolist()
        return Visited(Counts(refused, failed, clipped), made, in_flight=len(self.streams))

    def _combined(self, begun: State, reached: Sequence[Any]) -> Working:
        """The product of the passes, over all but one of where they began."""
        ends = [plain(end) for end in reached if end is not None]
        if not ends:
            return with_moments(begun)
        surplus = len(ends) - 1
        whole = State(
            sum(end.precision for end in ends) - surplus * begun.precision,
            sum(end.shift for end in ends) - surplus * begun.shift,
            None,
            sum(end.log_scale for end in ends) - surplus * begun.log_scale,
            max(end.sweeps for end in ends),
            sum(end.rows_seen or 0 for end in ends) - surplus * (begun.rows_seen or 0),
        )
        if not is_proper(whole.precision):
            raise FloatingPointError(
                "the passes of ADF have an improper product; allowed: a loss whose sites add "
                "precision, or fewer streams"
            )
        return with_moments(whole)

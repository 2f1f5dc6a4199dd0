"""DEP: each shard of the rows is fitted by an EP of its own, with the cavity as its prior."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from epfast import families
from epfast._arrays import Array
from epfast.inference import Counts, Sites, run
from epfast.inference.runtime import Tick
from epfast.linear.engines.base import FullEngine, Swept
from epfast.linear.engines.rows import RowEngine
from epfast.linear.problem import LinearProblem, State, is_proper, sum_of_sites


class _Start(NamedTuple):
    """Sites in the role of a start."""

    sites: Sites
    shift: Array
    n_sweeps: int = 0


class ShardEngine(FullEngine):
    """q = p0 Π_k g_k, g_k the product of the sites of shard k's rows."""

    def __init__(self, problem: LinearProblem) -> None:
        super().__init__(problem)
        labels = self.schedule.labels(problem.shape[0])
        order = np.argsort(labels, kind="stable")
        cuts = np.searchsorted(labels[order], np.arange(1, labels.max() + 1))
        #: rows of each shard; a slice if they are neighbours, which copies nothing
        self.shards: list[Any] = [
            slice(int(rows[0]), int(rows[-1]) + 1) if rows[-1] - rows[0] + 1 == len(rows) else rows
            for rows in np.split(order, cuts)
        ]

    def sweep(self, state: Swept, keep: bool, tick: Tick) -> tuple[Swept, Counts]:
        problem, schedule, refused, moved = self.problem, self.schedule, 0, 0.0
        assert state.sites is not None
        sites = families.copied(state.sites)
        precision, shift = state.precision, state.shift
        for k in schedule.checked_visits(len(self.shards), state.sweeps):
            rows = self.shards[k]
            shard = problem._replace(data=problem.data.taken(rows), schedule=schedule.inner)
            old: Sites = families.taken(sites, rows)
            all_precision, all_shift = sum_of_sites(shard, old)
            cavity = State(precision - all_precision, shift - all_shift, None, 0.0, 0)
            if not is_proper(cavity.precision):
                refused += len(old.shift)
                continue
            inner = RowEngine(shard._replace(base=cavity))
            inner.evidence_bound = math.inf  # a cavity has no evidence
            fit = run(inner, schedule.inner, _Start(old, cavity.shift))
            refused += fit.history[-1].n_refused
            moved = max(moved, fit.history[-1].change)
            new = families.damped(old, fit.state.sites, schedule.damping)
            families.put(sites, rows, new)
            if schedule.order != "parallel":
                all_precision, all_shift = sum_of_sites(shard, new)
                precision, shift = cavity.precision + all_precision, cavity.shift + all_shift
            tick(len(old.shift))
        # sweeps of a shard may go around and end where they began
        counts = Counts(refused, settled=False if moved > schedule.tol else None)
        return self.accepted(state, sites, counts)

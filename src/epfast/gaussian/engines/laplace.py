"""Laplace propagation: EP on factors of several rows, with the full Hessian of each."""

from __future__ import annotations

import numpy as np

from epfast import families
from epfast.gaussian.engines.base import EPEngine, Memoryless, Outcome, Swept
from epfast.gaussian.engines.full import Full
from epfast.gaussian.engines.local import local_laplace, shard_of
from epfast.gaussian.engines.passes import laplace_core, pieces_of
from epfast.gaussian.problem import Problem
from epfast.inference import Sites
from epfast.inference.executors import Tasks
from epfast.inference.runtime import Tick


class LaplaceFactors(Memoryless):
    """Minibatches in turn, or all of them from the posterior before the sweep."""

    def __init__(self, problem: Problem, tasks: Tasks) -> None:
        self.problem, self.schedule, self.tasks = problem, problem.schedule, tasks
        n, d = problem.shape
        assert problem.batch_size is not None
        self.size = min(problem.batch_size, n)
        self.core = laplace_core(problem, d, self.size)
        self.in_turn = self.schedule.order != "parallel"

    def sweep(self, state: Swept, sites: Sites, tick: Tick) -> Outcome:
        if self.tasks.executor is not None:
            return self._in_tasks(state, sites, tick)
        core, problem = self.core, self.problem
        before = core.n_refused, core.n_failed
        precision, shift = state.precision.copy(), state.shift.copy()
        seen = (precision, shift) if self.in_turn else (state.precision, state.shift)
        for some, rows, sizes in pieces_of(problem, self.size, state.sweeps):
            target: Sites = families.taken(sites, rows)
            given = problem.rows(rows), problem.responses(rows), problem.weights(rows), sizes
            core.sweep(*given, *seen, *target, precision, shift)
            families.put(sites, rows, target)
            tick(len(some))
        return Outcome(core.n_refused - before[0], core.n_failed - before[1])

    def _in_tasks(self, state: Swept, sites: Sites, tick: Tick) -> Outcome:
        """All factors from one posterior, in as many tasks as there are workers."""
        tasks, problem = self.tasks, self.problem
        n = problem.shape[0]
        count = -(-n // self.size)
        calls, takes = [], []
        for some in np.array_split(np.arange(count), min(count, tasks.width)):
            take = slice(int(some[0]) * self.size, min(n, (int(some[-1]) + 1) * self.size))
            part = shard_of(problem, take, problem.schedule)
            sizes = np.minimum(self.size, n - some * self.size)
            given = state.precision, state.shift, families.taken(sites, take), sizes
            calls.append((local_laplace, part, *given))
            takes.append(take)
        counts = [len(call[-1]) for call in calls]
        found = tasks.together(calls, counts, tick)
        for take, update in zip(takes, found, strict=True):
            families.put(sites, take, update.rows)
        return Outcome(sum(u.refused for u in found), sum(u.failed for u in found))


class LaplaceEngine(EPEngine):
    """Sites of a precision and a shift per row (Smola et al. 2003). O(s d^2 + d^3) per factor."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, Full(problem))
        self.tasks = Tasks()
        self._visits: LaplaceFactors | None = None

    def visits(self, state: Swept) -> LaplaceFactors:
        if self._visits is None:
            self._visits = LaplaceFactors(self.problem, self.tasks)
        return self._visits

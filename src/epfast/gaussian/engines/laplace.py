"""Laplace propagation: EP on factors of several rows, with the full Hessian of each."""

from __future__ import annotations

import numpy as np

from epfast import families
from epfast._arrays import Array
from epfast.gaussian.engines.base import EPEngine, Swept, Visits
from epfast.gaussian.engines.full import Full
from epfast.gaussian.engines.local import Update, is_finite, shard_of
from epfast.gaussian.engines.passes import laplace_core, pieces_of
from epfast.gaussian.problem import Problem, State
from epfast.inference import Counts, Sites
from epfast.inference.executors import Tasks
from epfast.inference.runtime import Tick, no_tick, one_blas_thread


class LaplaceFactors(Visits):
    """Minibatches in turn, or all of them from the posterior before the sweep."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.in_turn = problem, problem.schedule.order != "parallel"
        n, d = problem.shape
        self.size = min(problem.batch_size or 1, n)
        self.core = laplace_core(problem, d, self.size)

    def visit(self, state: State | Swept, sites: Sites, tick: Tick) -> Counts:
        core = self.core
        before = core.n_refused, core.n_failed
        precision, shift = state.precision.copy(), state.shift.copy()
        seen = (precision, shift) if self.in_turn else (state.precision, state.shift)
        for part, sizes in pieces_of(self.problem, self.size, state.sweeps):
            target: Sites = families.taken(sites, part.which)
            given = part.rows, part.y, part.weights, sizes
            core.sweep(*given, *seen, *target, precision, shift)
            families.put(sites, part.which, target)
            tick(len(sizes))
        return Counts(core.n_refused - before[0], core.n_failed - before[1])


def local_laplace(part: Problem, precision: Array, shift: Array, rows: Sites) -> Update:
    """Laplace propagation on some factors, all from one posterior: no factor sees another.

    Parameters
    ----------
    part : Problem
        Their rows, and a schedule in parallel order; see :func:`~.local.shard_of`.
    precision, shift : ndarray
        Of the posterior.
    rows : Sites
        A precision and a shift per row.
    """
    sites: Sites = families.copied(rows)
    with one_blas_thread(len(shift)):
        state = State(precision, shift, sites, 0.0, 0)
        counts = LaplaceFactors(part).visit(state, sites, no_tick)
    if not is_finite(sites):
        return Update(sites, rows, len(rows.shift))
    return Update(sites, sites, counts.refused, failed=counts.failed)


class LaplaceEngine(EPEngine):
    """Sites of a precision and a shift per row (Smola et al. 2003). O(s d^2 + d^3) per factor.

    With an executor all factors from one posterior, in as many tasks as there are workers.
    """

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, Full(problem))
        self.tasks = Tasks()
        self._factors = LaplaceFactors(problem)

    def visits(self, state: Swept) -> Visits:
        return self._factors if self.tasks.executor is None else self

    def visit(self, state: Swept, sites: Sites, tick: Tick) -> Counts:
        problem, q = self.problem, (state.precision, state.shift)
        n, size = problem.shape[0], problem.batch_size or 1
        count = -(-n // size)
        parts = np.array_split(np.arange(count), min(count, self.tasks.width))
        takes = [slice(int(p[0]) * size, min(n, (int(p[-1]) + 1) * size)) for p in parts]
        shards = [shard_of(problem, take, problem.schedule) for take in takes]
        calls = [
            (local_laplace, shard, *q, families.taken(sites, take))
            for shard, take in zip(shards, takes, strict=True)
        ]
        found = self.tasks.together(calls, [len(part) for part in parts], tick)
        for take, update in zip(takes, found, strict=True):
            families.put(sites, take, update.rows)
        return Counts(sum(u.refused for u in found), sum(u.failed for u in found))

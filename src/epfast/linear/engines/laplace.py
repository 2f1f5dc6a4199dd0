"""Laplace propagation: EP and ADF on factors of several rows, with the full Hessian of each."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epfast import families
from epfast._arrays import Array, as_array, symmetric_from_upper
from epfast.inference import Counts, PartOfSweep, Sites
from epfast.inference.executors import Tasks
from epfast.inference.runtime import Tick
from epfast.linear.engines.base import FullEngine, Swept, flat, plain, with_moments
from epfast.linear.engines.local import laplace_core, local_laplace, shard_of
from epfast.linear.problem import LinearProblem, State


class LaplaceEngine(FullEngine):
    """Sites of a precision and a shift per row (Smola et al. 2003). O(s d^2 + d^3) per factor."""

    def __init__(self, problem: LinearProblem) -> None:
        super().__init__(problem)
        n, d = problem.shape
        assert problem.batch_size is not None
        self.size = min(problem.batch_size, n)
        self.core = laplace_core(problem, d, self.size)
        self.tasks = Tasks()

    def sweep(self, state: Swept, keep: bool, tick: Tick) -> tuple[Swept, Counts]:
        if state.sites is None:
            return self._pass(state, tick)
        if self.tasks.executor is not None:
            return self._in_tasks(state, tick)
        core = self.core
        before = core.n_refused, core.n_failed
        precision, shift = state.precision.copy(), state.shift.copy()
        parallel = self.schedule.order == "parallel"
        seen = (state.precision, state.shift) if parallel else (precision, shift)
        sites: Sites = families.copied(state.sites)
        for some in self._pieces(state.sweeps):
            rows, sizes = self._rows_of(some)
            target: Sites = families.taken(sites, rows)
            self._visit(rows, sizes, seen, target, precision, shift)
            families.put(sites, rows, target)
            tick(len(some))
        counts = Counts(core.n_refused - before[0], core.n_failed - before[1])
        return self.accepted(state, sites, counts)

    def _in_tasks(self, state: Swept, tick: Tick) -> tuple[Swept, Counts]:
        """All factors from one posterior, in as many tasks as there are workers."""
        tasks, problem, lost = self.tasks, self.problem, self.tasks.n_lost
        assert state.sites is not None
        sites: Sites = families.copied(state.sites)
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
        refused, failed = (sum(getattr(u, name) for u in found) for name in ("refused", "failed"))
        return self.accepted(state, sites, Counts(refused, failed, lost=tasks.n_lost - lost))

    def _pieces(self, sweeps: int) -> Iterator[NDArray[np.intp]]:
        """Factors in the order of their visits, some at a time."""
        count = -(-self.problem.shape[0] // self.size)
        factors = self.schedule.checked_visits(count, sweeps)
        return map(as_array, self.problem.pieces(factors, self.size))

    def _rows_of(self, some: NDArray[np.intp]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Rows of some factors, and how many each has."""
        n = self.problem.shape[0]
        rows = (some[:, None] * self.size + np.arange(self.size)).ravel()
        return rows[rows < n], np.minimum(self.size, n - some * self.size)

    def _visit(
        self,
        rows: Any,
        sizes: Any,
        seen: tuple[Array, Array],
        sites: Sites,
        precision: Array,
        shift: Array,
    ) -> None:
        problem = self.problem
        self.core.sweep(
            problem.rows(rows),
            problem.responses(rows),
            problem.weights(rows),
            sizes,
            *seen,
            *sites,
            precision,
            shift,
        )

    def _pass(self, state: Swept, tick: Tick) -> tuple[Swept, Counts]:
        """A pass of ADF. Ctrl-C leaves the posterior of the rows before the piece it falls in."""
        core = self.core
        before, reached = (core.n_refused, core.n_failed), plain(state)
        try:
            for some in self._pieces(state.sweeps):
                precision, shift = reached.precision.copy(), reached.shift.copy()
                rows, sizes = self._rows_of(some)
                sites = flat(len(rows))
                self._visit(rows, sizes, (precision, shift), sites, precision, shift)
                assert reached.rows_seen is not None
                total = reached.log_scale + float(sites.log_scale.sum())
                seen = reached.rows_seen + len(rows)
                # one assignment, which Ctrl-C cannot divide
                reached = State(
                    symmetric_from_upper(precision), shift, None, total, state.sweeps, seen
                )
                tick(len(some))
            counts = Counts(core.n_refused - before[0], core.n_failed - before[1])
            return with_moments(reached._replace(sweeps=state.sweeps + 1)), counts
        except KeyboardInterrupt:
            raise PartOfSweep(reached) from None

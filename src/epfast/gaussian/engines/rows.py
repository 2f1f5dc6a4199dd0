"""Scalar sites: one factor per row of X, acting on h = x.theta, with a full covariance.

EP by the exact blocked sweep (``_core/row_sweeps.pyx``) in sequential or shuffled order, from one
posterior in parallel order, and in chunks (``chunks.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from epfast import families
from epfast._core.row_sweeps import BlockedSweep, ParallelSweep
from epfast._core.tilted import TiltedMoments
from epfast.gaussian.engines.base import (
    EPEngine,
    Memoryless,
    Outcome,
    Swept,
    Visits,
)
from epfast.gaussian.engines.chunks import (
    ChunkMemory,
    InChunks,
    chunk_size,
    is_for_chunks,
    keeps_order,
    overshoots,
)
from epfast.gaussian.engines.full import Full
from epfast.gaussian.problem import LinearProblem, inverse_root
from epfast.inference import Counts, Sites
from epfast.inference.runtime import Tick
from epfast.inference.threads import ALONE, Threads

#: rows per block of marginals in parallel order
PARALLEL_ROWS = 128
#: dimensions from which sequential sweeps keep one triangle of the covariance only
HALF_FROM = 256
#: of sweeps of all rows at once, where sequential ones are stuck
RESTART_DAMPING = 0.5


def block_size(block: int | None, d: int) -> int:
    """Sites per block of the exact blocked sweep, by default a third of d between 8 and 64."""
    return block or max(8, min(64, d // 3))


def sequential_core(problem: LinearProblem, tilted: TiltedMoments) -> BlockedSweep:
    """Scratch for one row after the other."""
    schedule, d = problem.schedule, len(problem.base.shift)
    block = block_size(getattr(schedule, "block", None), d)
    damping = 1.0 if schedule.damping is None else schedule.damping
    full = problem.sparse or d < HALF_FROM
    return BlockedSweep(tilted, d, block, schedule.power, damping, full)


class InTurn:
    """One row after the other: each sees what the one before has found."""

    in_turn = True

    def __init__(self, problem: LinearProblem, tilted: TiltedMoments, form: Full) -> None:
        self.problem, self.schedule, self.form = problem, problem.schedule, form
        self.core = sequential_core(problem, tilted)
        plain = self.schedule.order != "shuffled" and keeps_order(self.schedule)
        self.parts = form.parts if plain else None
        self.numbers = np.arange(problem.n_rows)

    def sweep(self, state: Swept, sites: Sites, tick: Tick) -> Outcome:
        core, problem, parts = self.core, self.problem, self.parts
        before, core.moved = core.n_refused, 0.0
        covariance, mean = state.covariance.copy(), state.mean.copy()
        if parts is None:
            visits = self.schedule.checked_visits(problem.shape[0], state.sweeps)
        for part in problem.parts(visits) if parts is None else parts:
            numbers = self.numbers[part.which]
            core.sweep(part.rows, part.y, part.weights, numbers, covariance, mean, *sites)
            tick(part.rows.n)
        residual = math.sqrt(core.moved) / self.schedule.damping
        left = mean, covariance.diagonal().copy()
        return Outcome(core.n_refused - before, residual=residual, left=left)

    def after(self, old: Swept, new: Swept, counts: Counts) -> tuple[Swept, Counts]:
        """The state; or, where rows are stuck, the prior, from which all rows go at once.

        The first rows may pin the posterior where most of the others are outliers, of which some
        have improper cavities then and keep their sites.
        """
        schedule = self.schedule
        if counts.refused == 0 or new.sweeps == 1 or schedule.order != "auto":
            return new, counts
        if schedule.tol == 0.0 or not overshoots(self.problem):
            return new, counts
        fresh = self.form.prior()._replace(sweeps=new.sweeps, order="parallel_damped")
        return fresh, counts._replace(settled=False, left=None)


class AtOnce(Memoryless):
    """All rows from the posterior before the sweep."""

    in_turn = False

    def __init__(
        self, problem: LinearProblem, tilted: TiltedMoments, damping: float, threads: Threads
    ) -> None:
        self.problem, self.threads = problem, threads
        n, d = problem.shape
        self.numbers = d, min(n, PARALLEL_ROWS), problem.schedule.power, damping
        #: scratch of each thread
        self.cores = [ParallelSweep(tilted, *self.numbers)]

    def sweep(self, state: Swept, sites: Sites, tick: Tick) -> Outcome:
        problem, (n, d) = self.problem, self.problem.shape
        # whole blocks, so that the numbers do not depend on the parts
        blocks = problem.chunk // (d * PARALLEL_ROWS * self.threads.count)
        step = PARALLEL_ROWS * max(1, blocks)
        parts = [slice(i, min(i + step, n)) for i in range(0, n, step)]
        root = inverse_root(state.precision)
        while len(self.cores) < min(len(parts), self.threads.count):
            self.cores.append(ParallelSweep(problem.tilted(), *self.numbers))
        for core in self.cores:
            core.residual = 0.0
        before = sum(core.n_refused for core in self.cores)

        def work(k: int, number: int) -> Iterator[int]:
            part = parts[number]
            self.cores[k].sweep(
                problem.rows(part),
                problem.responses(part),
                problem.weights(part),
                state.covariance,
                root,
                state.mean,
                *families.taken(sites, part),
            )
            yield part.stop - part.start

        self.threads.each(work, len(parts), tick)
        refused = sum(core.n_refused for core in self.cores) - before
        return Outcome(refused, residual=max(core.residual for core in self.cores))


class RowEngine(EPEngine):
    """A site per row of X: two numbers and a log scale."""

    def __init__(self, problem: LinearProblem) -> None:
        super().__init__(problem, Full(problem))
        self.tilted: TiltedMoments = problem.tilted()
        self.threads = ALONE
        self._made: dict[str, Visits] = {}

    def share(self, threads: Threads) -> None:
        """Sweeps in chunks and in parallel order are for these threads, if moments are."""
        if self.tilted.separate:
            self.threads = threads

    def visits(self, state: Swept) -> Visits:
        if state.order not in self._made:
            self._made[state.order] = self._visits(state.order)
        return self._made[state.order]

    def _visits(self, order: str) -> Visits:
        if order == "chunked":
            core = sequential_core(self.problem, self.tilted)
            return InChunks(self.problem, self.tilted, core, self.threads)
        if order in ("parallel", "parallel_damped"):
            damping = RESTART_DAMPING if order == "parallel_damped" else self.schedule.damping
            return AtOnce(self.problem, self.tilted, damping, self.threads)
        return InTurn(self.problem, self.tilted, self.form)

    def begun(self, state: Swept, is_flat: bool) -> Swept:
        """The state, and how its first sweep goes."""
        order = self.schedule.order
        if order == "auto":
            # a schedule with an order of its own keeps it
            undamped = self.schedule.tol > 0.0 and self.schedule.damping == 1.0
            chunks = undamped and keeps_order(self.schedule) and is_for_chunks(self.problem)
            order = "chunked" if chunks else "sequential"
        memory = None
        if order == "chunked":
            memory = ChunkMemory(chunk_size(self.problem), is_flat)
        return state._replace(order=order, memory=memory)

    def drifts(self, state: Swept) -> bool:
        return state.order == "chunked" and state.memory.since > 0

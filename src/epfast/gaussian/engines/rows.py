"""Scalar sites: one factor per row of X, acting on h = x.theta, with a full covariance.

EP by the exact blocked sweep (``_core/row_sweeps.pyx``) in sequential or shuffled order, from one
posterior in parallel order, and in chunks (``chunks.py``).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import numpy as np

from epfast import families
from epfast._core.row_sweeps import SiteFits
from epfast._core.thread_pool import ThreadPool
from epfast._core.tilted import TiltedMoments
from epfast.gaussian.engines.base import (
    EPEngine,
    Form,
    Full,
    Visited,
    Visits,
    Working,
    gaussian,
)
from epfast.gaussian.engines.chunks import (
    BLOCK,
    ChunkMemory,
    InChunks,
    chunk_size,
    is_for_chunks,
    overshoots,
    sequential_core,
)
from epfast.gaussian.problem import Problem, peak_sites
from epfast.gaussian.state import State
from epfast.inference import Counts, Sites, Summary
from epfast.inference.runtime import Tick, each

#: damping of sweeps of all rows at once, where sequential ones are stuck: of 720 fits with 20 to
#: 45 % of outliers 70 do not converge, 93, 76 and 99 with .25, .75 and 1, and 332 without these
#: sweeps
RESTART_DAMPING = 0.5
S = TypeVar("S")

#: sd of the cavity of the first sites, in the unit of latent values: the 600 models converge with 1
#: to 10
WIDE = 3.0


class RowMemory(NamedTuple):
    """What the next sweep over rows goes by."""

    order: str
    #: None in other orders
    chunks: ChunkMemory | None = None


class InTurn(Visits[Working]):
    """One row after the other: each sees what the one before has found."""

    in_turn = True

    def __init__(self, problem: Problem, tilted: TiltedMoments, form: Full) -> None:
        self.problem, self.schedule, self.form = problem, problem.schedule, form
        self.core = sequential_core(problem, tilted)
        self.relaxation = self.core.relaxation
        self.accelerates = (
            problem.schedule.order == "auto"
            and problem.schedule.tol > 0.0
            and self.relaxation is None
            and overshoots(problem)
        )
        plain = self.schedule.order != "shuffled" and self.schedule.keeps_order
        self.parts = form.parts if plain else None
        self.numbers = np.arange(form.n_rows)

    def visit(self, state: Working, sites: Sites, tick: Tick) -> Visited[Working]:
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
        left = Summary(mean, covariance.diagonal().copy())
        return Visited(Counts(core.n_refused - before), swept_moments=left, residual=residual)

    def accelerate(
        self, old: Working, new: Working, visited: Visited[Working], moved: float
    ) -> tuple[Working, Visited[Working]]:
        """The state, or the prior where rows are stuck, from which all rows are fitted at once.

        The first rows may pin the posterior where most of the others are outliers, of which some
        have improper cavities then and keep their sites.
        """
        if visited.counts.refused == 0 or new.sweeps == 1:
            return new, visited
        fresh = self.form.prior()._replace(sweeps=new.sweeps, memory=RowMemory("parallel_damped"))
        return fresh, visited._replace(settled=False, swept_moments=None)


class AtOnce(Visits[S]):
    """All rows, or values, from the posterior before the sweep."""

    def __init__(
        self,
        problem: Problem,
        tilted: TiltedMoments,
        form: Form,
        damping: float,
        threads: ThreadPool | None = None,
    ) -> None:
        self.problem, self.form, self.threads = problem, form, threads or ThreadPool(1)
        self.numbers = problem.schedule.power, damping
        #: scratch of each thread
        self.cores = [SiteFits(tilted, *self.numbers)]

    def visit(self, state: S, sites: Sites, tick: Tick) -> Visited[S]:
        problem, n, at_rows = self.problem, self.problem.n_rows, self.form.at_rows(state)
        # whole blocks, so that the numbers do not depend on the parts
        blocks = problem.chunk // (self.form.width * BLOCK * self.threads.threads)
        step = BLOCK * max(1, blocks)
        parts = [slice(i, min(i + step, n)) for i in range(0, n, step)]
        while len(self.cores) < min(len(parts), self.threads.threads):
            self.cores.append(SiteFits(problem.tilted(), *self.numbers))
        for core in self.cores:
            core.residual = 0.0
        before = sum(core.n_refused for core in self.cores)

        def work(k: int, number: int) -> Iterator[int]:
            part = parts[number]
            own = *at_rows(part), problem.responses(part), *families.taken(sites, part)
            self.cores[k].fit(*own, problem.weights(part))
            yield part.stop - part.start

        each(self.threads, work, len(parts), tick)
        refused = sum(core.n_refused for core in self.cores) - before
        return Visited(Counts(refused), residual=max(core.residual for core in self.cores))


def first_sites(problem: Problem, tilted: TiltedMoments | None = None) -> Sites:
    """The sites of all rows in one cavity, about as wide as latent values differ.

    A factor that is far narrower has the Gaussian about its own peak.
    """
    n, responses = problem.n_rows, problem.responses(slice(None))
    center, unit = problem.loss.typical(problem.data.y, problem.data.weights)
    h, s = np.full(n, center), np.full(n, (WIDE * unit) ** 2)
    sites = Sites(np.zeros(n), np.zeros(n), np.zeros(n))
    core = SiteFits(tilted or problem.tilted(), problem.schedule.power, 1.0)
    core.fit(h, s, responses, *sites, problem.weights(slice(None)))
    peaks = peak_sites(problem) if core.n_refused else None
    if peaks is None:
        return sites
    flat = (sites.precision == 0.0) & (sites.shift == 0.0)
    return Sites(*(np.where(flat, peak, site) for peak, site in zip(peaks, sites, strict=True)))


def order_of_rows(problem: Problem) -> str:
    """The order of the first sweep, in place of "auto"."""
    schedule = problem.schedule
    if schedule.order != "auto":
        return str(schedule.order)
    # a schedule with an order of its own keeps it
    return "chunked" if is_for_chunks(problem) and schedule.is_automatic else "sequential"


def first_memory(problem: Problem, is_flat: bool) -> RowMemory:
    """What the first sweep goes by; is_flat: from flat sites."""
    order = order_of_rows(problem)
    chunks = ChunkMemory(chunk_size(problem), is_flat) if order == "chunked" else None
    return RowMemory(order, chunks)


def visits_of(
    order: str, problem: Problem, tilted: TiltedMoments, form: Full, threads: ThreadPool
) -> Visits[Working]:
    """Visits of the rows in some order."""
    if order == "chunked":
        return InChunks(problem, tilted, threads)
    if order in ("parallel", "parallel_damped"):
        damping = RESTART_DAMPING if order == "parallel_damped" else problem.schedule.damping
        return AtOnce(problem, tilted, form, damping, threads)
    assert order in ("sequential", "shuffled"), order
    return InTurn(problem, tilted, form)


class RowEngine(EPEngine):
    """A site per row of X: two numbers and a log scale."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, Full(problem))
        self.tilted: TiltedMoments = problem.tilted()
        self.exact = problem.sites_unswept()
        self.threads = ThreadPool(1)
        self._visits: dict[str, Visits[Working]] = {}

    def init(self, start: Any) -> Working:
        """The state of a start. Under another prior the sum over the rows is kept. O(d^3)."""
        before = getattr(start, "problem", None)
        if self.exact is None and before is not None and before.data.X is self.problem.data.X:
            state = self._under(self.problem.base, start.state, before.base)
            if state is not None:
                return self.start_of_run(state, False)
        working: Working = super().init(start)
        return working

    def _under(self, base: State, state: Any, before: State) -> Working | None:
        """The posterior of the sites of a state with another base than the one before. O(d^3)."""
        precision, shift, sites = state.precision, state.shift, state.sites
        if base is not before:
            precision = precision - before.precision + base.precision
            shift = shift - before.shift + base.shift
        total = base.log_scale + float(sites.log_scale.sum())
        swept = State(precision, shift, sites, total, state.sweeps, None, state.relaxed)
        return gaussian(swept)

    def share(self, threads: ThreadPool) -> None:
        """Sweeps in chunks and in parallel order are for these threads, if moments are."""
        if self.tilted.separate:
            self.threads = threads

    def visits(self, state: Working) -> Visits[Working]:
        order = state.memory.order
        if order not in self._visits:
            visits = visits_of(order, self.problem, self.tilted, self.form, self.threads)
            self._visits[order] = visits
        return self._visits[order]

    def start_of_run(self, state: Working, is_flat: bool) -> Working:
        """The state, and how its first sweep goes."""
        return state._replace(memory=first_memory(self.problem, is_flat))

    def drifts(self, state: Working) -> bool:
        chunks: ChunkMemory | None = state.memory.chunks
        return chunks is not None and chunks.since > 0

    def known(self, state: Any) -> dict[str, Any]:
        """What is known of the posterior of a state, by its names there."""
        return {"log_evidence": self.summary(state).log_evidence, "_moments": state}

"""EP of a process in which each value is regressed on the sites of its nearest rows alone.

The cavity of a row is N(m_i, v_i), the process there given the sites of some other rows; the
posterior of the row is that times its own site. So q is no joint distribution, and has no evidence,
but a sweep takes O(n m^3 / 3) with m rows, and nothing takes n^2.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from epfast._arrays import Array
from epfast._core.row_sweeps import ParallelSweep
from epfast._core.thread_pool import ThreadPool
from epfast.gaussian.engines.base import EPEngine, Form, Memoryless, Outcome
from epfast.gaussian.engines.kernel import ExactValues, GPState, ValueMoments, Values
from epfast.inference import Sites, Summary
from epfast.inference.runtime import Tick

#: rows that are fitted from the same sites: a share of all, and most of them. Of 3,000 rows of
#: eight columns a sweep of 1, 4, 16 and 64 blocks left .31, .10, .07 and .06 of the distance to the
#: fixed point
BLOCKS, BLOCK = 16, 256


class Regression(Protocol):
    """The process at inputs, each given the sites of rows of its own."""

    #: of the prior at the inputs
    diagonal: Array
    #: rows of each input
    count: int
    pool: ThreadPool | None

    def at(self, which: NDArray[np.intp], sites: Sites) -> tuple[Array, Array]:
        """Mean and variance at some of the inputs."""


def with_sites(cavity: tuple[Array, Array], sites: Sites) -> tuple[Array, Array]:
    """Mean and variance of normal cavities times their sites."""
    mean, variance = cavity
    total = 1.0 + sites.precision * variance
    return (mean + variance * sites.shift) / total, variance / total


class Nearest(Form):
    """The form of q that is a normal distribution of each value, by its nearest rows."""

    def __init__(self, rows: Regression) -> None:
        """rows: all of the fit, each by others."""
        self.rows, self.n = rows, len(rows.diagonal)
        self.order, self.shapes = rows.count, ((self.n,),) * 3

    def prior(self) -> Values:
        """The state of flat sites."""
        sites = self.flat()
        variance = self.rows.diagonal.copy()
        return Values(sites, 0, self.moments(sites, np.zeros(self.n), variance))

    def moments(self, sites: Sites, mean: Array, variance: Array) -> ValueMoments:
        """As a kernel has them, without a determinant."""
        return ValueMoments(sites.shift - sites.precision * mean, mean, variance, np.nan)

    def built(self, sites: Sites, sweeps: int) -> Values:
        """See :class:`epfast.gaussian.engines.base.Form`. O(n m^3 / 3)."""
        cavity = self.rows.at(np.arange(self.n), sites)
        return Values(sites, sweeps, self.moments(sites, *with_sites(cavity, sites)))

    def summary(self, state: Values, evidence: bool = True) -> Summary:
        return Summary(state.moments.mean, state.moments.variance, np.nan)

    def result(self, state: Values) -> GPState:
        """What the sites make, where that is more than visits have left."""
        if state.memory:
            state = self.built(state.sites, state.sweeps)
        return GPState(*state[:3])


class NearestRows(Memoryless):
    """Some rows at a time, each block from the sites that those before it have left."""

    #: a posterior of the sites so far would take as long as a sweep: Ctrl-C goes back
    in_turn = False

    def __init__(self, engine: NearestEngine) -> None:
        self.form, self.data, self.schedule = engine.form, engine.problem.data, engine.schedule
        n, schedule = engine.n_sites, engine.schedule
        self.in_order = None if schedule.order != "auto" else schedule.fixed_visits(n)
        sizes = {"auto": min(max(1, n // BLOCKS), BLOCK), "parallel": n}
        self.size = sizes.get(schedule.order, 1)
        self.core = ParallelSweep(engine.tilted, 1, self.size, schedule.power, schedule.damping)

    def blocks(self, sweeps: int) -> Iterator[NDArray[np.intp]]:
        n, visits = self.form.n, self.in_order
        if visits is None:
            visits = np.asarray(self.schedule.checked_visits(n, sweeps), dtype=np.intp)
        return (visits[first : first + self.size] for first in range(0, n, self.size))

    def sweep(self, state: Values, sites: Sites, tick: Tick) -> Outcome:
        form, y, weights, before = self.form, self.data.y, self.data.weights, self.core.n_refused
        mean, variance = state.moments.mean.copy(), state.moments.variance.copy()
        for block in self.blocks(state.sweeps):
            cavity = form.rows.at(block, sites)
            own = Sites(*(part[block] for part in sites))
            copies = None if weights is None else weights[block]
            self.core.fit(*with_sites(cavity, own), y[block], *own, copies)
            for whole, part in zip(sites, own, strict=True):
                whole[block] = part
            mean[block], variance[block] = with_sites(cavity, own)
            tick(len(block))
        moments = form.moments(sites, mean, variance)
        made = Values(sites, state.sweeps + 1, moments, memory=1)
        return Outcome(self.core.n_refused - before, made=made)


class NearestEngine(EPEngine):
    """EP with a site per value, each by its nearest rows, which ``problem.kernel`` has."""

    form: Nearest

    def __init__(self, problem: Any) -> None:
        super().__init__(problem, Nearest(problem.kernel))
        self.pool, self.evidence_bound = problem.kernel.pool, np.nan
        self.exact, self.tilted = problem.sites_unswept(), problem.tilted()
        self._visits = ExactValues() if self.exact is not None else NearestRows(self)

    def visits(self, state: Values) -> ExactValues | NearestRows:
        return self._visits

    def init(self, start: Any) -> Values:
        if self.exact is None:
            return super().init(start)  # type: ignore[no-any-return]
        return self.form.built(self.exact, 0 if start is None else start.n_sweeps)

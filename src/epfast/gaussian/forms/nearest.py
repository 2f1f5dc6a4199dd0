"""EP of a process in which each value is regressed on the sites of its nearest rows alone.

The cavity of a row is N(m_i, v_i), the process there given the sites of some other rows; the
posterior of the row is that times its own site. So q is no joint distribution, and has no evidence,
but a sweep takes O(n m^3 / 3) with m rows, and nothing takes n^2.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from epfast._arrays import Array
from epfast._core.row_sweeps import SiteFits
from epfast._core.tilted import TiltedMoments
from epfast.gaussian.engine import EPEngine, Form, Visited
from epfast.gaussian.forms.kernel import GPState, ValueMoments
from epfast.gaussian.prior import KernelPrior, NearRows
from epfast.gaussian.problem import Problem
from epfast.inference import Counts, Sites, Summary
from epfast.inference.runtime import Tick

#: rows that are fitted from the same sites: a share of all, and most of them
BLOCKS, BLOCK = 16, 256


def with_sites(cavity: tuple[Array, Array], sites: Sites) -> tuple[Array, Array]:
    """Mean and variance of normal cavities times their sites."""
    mean, variance = cavity
    total = 1.0 + sites.precision * variance
    return (mean + variance * sites.shift) / total, variance / total


NearState = GPState[ValueMoments, bool, Array]


class Nearest(Form[NearState, GPState[ValueMoments, None, Array]]):
    """The form of q that is a normal distribution of each value, by its nearest rows."""

    def __init__(self, rows: NearRows) -> None:
        """rows: all of the fit, each by others."""
        self.rows, self.n = rows, len(rows.diagonal)
        self.order, self.shapes = rows.count, ((self.n,),) * 3

    def prior(self) -> NearState:
        """The state of flat sites."""
        sites = self.flat()
        variance = self.rows.diagonal.copy()
        return GPState(sites, 0, self.moments(sites, np.zeros(self.n), variance))

    def moments(self, sites: Sites, mean: Array, variance: Array) -> ValueMoments:
        """As a kernel has them, without a determinant."""
        return ValueMoments(sites.shift - sites.precision * mean, mean, variance, np.nan)

    def rebuild(self, sites: Sites, sweeps: int) -> NearState:
        """See :class:`epfast.gaussian.engine.Form`. O(n m^3 / 3)."""
        cavity = self.rows.moments_at(np.arange(self.n), sites)
        return GPState(sites, sweeps, self.moments(sites, *with_sites(cavity, sites)))

    def summary(self, state: NearState, evidence: bool = True) -> Summary:
        return Summary(state.moments.mean, state.moments.variance, np.nan)

    def result(self, state: NearState) -> GPState:
        """What the sites make, where that is more than visits have left."""
        if state.memory:  # moments are those that visits in turn have left
            state = self.rebuild(state.sites, state.sweeps)
        return GPState(*state[:3])


class NearestEngine(EPEngine[NearState, GPState[ValueMoments, None, Array], bool]):
    """EP with a site per value, each by its nearest rows, which ``problem.prior.kernel`` has.

    Some rows at a time, each block from the sites that those before it have left. A posterior of
    the sites so far would take as long as a sweep: Ctrl-C goes back.
    """

    form: Nearest
    tilted: TiltedMoments

    def __init__(self, problem: Problem[KernelPrior]) -> None:
        rows = problem.prior.kernel
        assert isinstance(rows, NearRows)
        super().__init__(problem, Nearest(rows))
        self.pool, self.evidence_bound = rows.pool, np.nan
        self.exact, self.tilted = problem.sites_unswept(), problem.tilted()
        n, schedule = self.n_sites, self.schedule
        self.in_order = None if schedule.order != "auto" else schedule.fixed_visits(n)
        sizes = {"auto": min(max(1, n // BLOCKS), BLOCK), "parallel": n}
        self.size = sizes.get(schedule.order, 1)
        self.core = SiteFits(self.tilted, schedule.power, schedule.damping)

    def blocks(self, sweeps: int) -> Iterator[NDArray[np.intp]]:
        n, visits = self.form.n, self.in_order
        if visits is None:
            visits = np.asarray(self.schedule.checked_visits(n, sweeps), dtype=np.intp)
        return (visits[first : first + self.size] for first in range(0, n, self.size))

    def visit(self, state: NearState, sites: Sites, tick: Tick) -> Visited[NearState, bool]:
        form, refused_before, data = self.form, self.core.n_refused, self.problem.data
        mean, variance = state.moments.mean.copy(), state.moments.variance.copy()
        for block in self.blocks(state.sweeps):
            cavity = form.rows.moments_at(block, sites)
            own = Sites(*(part[block] for part in sites))
            copies = None if data.weights is None else data.weights[block]
            self.core.fit(*with_sites(cavity, own), data.y[block], *own, copies)
            for whole, part in zip(sites, own, strict=True):
                whole[block] = part
            mean[block], variance[block] = with_sites(cavity, own)
            tick(len(block))
        moments = form.moments(sites, mean, variance)
        new: NearState = GPState(sites, state.sweeps + 1, moments)
        return Visited(Counts(self.core.n_refused - refused_before), new, memory=True)

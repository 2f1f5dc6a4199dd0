"""The form of q with a sparse precision, and its engine: all rows from one posterior.

The precision keeps its pattern, so that a sweep costs a factor, the entries of its inverse where
columns meet in rows, and a fit of each site. See :mod:`epfast.gaussian.sparse`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from epfast import families
from epfast._arrays import Array, Piece
from epfast._core.thread_pool import ThreadPool
from epfast._core.tilted import TiltedMoments
from epfast.gaussian.engine import EPEngine, Form, Visited, Visits
from epfast.gaussian.forms.kernel import GPState
from epfast.gaussian.orders import AtOnce, first_sites
from epfast.gaussian.prior import SparsePrior
from epfast.gaussian.problem import Problem
from epfast.gaussian.sparse import Moments, as_csr, moments
from epfast.inference import Sites, Summary
from epfast.inference.loop import change
from epfast.inference.runtime import Tick

#: least share of a change that is taken, how much more than the last one it may be, and the share
#: of its precision to which a site may fall in a sweep. With shares above 1 some logistic models of
#: many rows do not converge
LEAST, RISE, FALL = 0.1, 1.5, 0.2
TINY = 1e-9


class Pace(NamedTuple):
    """The share of a change of the sites that is taken, and the last change."""

    share: float = 1.0
    #: of the rows' means in sd, then of their variances, relative, (2 n,)
    change: Array | None = None

    def next(self, change: Array) -> Pace:
        """The share at which a change that goes on as since the last one ends in one step."""
        if not np.isfinite(change).all():
            return Pace()
        share, last = self.share, self.change
        size = 0.0 if last is None else float(last @ last)
        if last is not None and size > 0.0:
            rate = (1.0 - float(change @ last) / size) / share
            share = min(max(1.0 / max(rate, TINY), LEAST), RISE * share, 1.0)
        return Pace(share, change)


def paced(pace: Pace, old: Sites, sites: Sites, h: Array, s: Array) -> Pace:
    """Take a share of the change of sites that were fitted to one posterior, in place.

    h, s: mean and variance of the rows under it.
    """
    # sites in a linear tail would lose all precision at once, and means go anywhere
    falls = (old.precision > 0.0) & (sites.precision >= 0.0)
    least = np.where(falls, FALL * old.precision, -np.inf)
    raised = np.maximum(least - sites.precision, 0.0)
    sites.precision[:] += raised
    sites.shift[:] += raised * h
    more = sites.precision - old.precision
    away = sites.shift - old.shift - more * h
    with np.errstate(all="ignore"):  # of a run that diverges
        pace = pace.next(np.append(away * np.sqrt(s), more * s))
    if pace.share != 1.0:
        for part, of in zip(sites, families.damped(old, sites, pace.share), strict=True):
            part[:] = of
    return pace


SparseState = GPState[Moments, Pace, Array]
#: the same as a posterior has it
SparseResult = GPState[Moments, None, Array]


class Sparse(Form[SparseState, SparseResult]):
    """Prior times a scalar site per row, by a sparse precision."""

    def __init__(self, problem: Problem) -> None:
        assert isinstance(problem.prior, SparsePrior)
        self.problem, self.design = problem, problem.prior.design
        assert self.design.rows is not None
        self.rows = self.design.rows
        self.shapes, self.weights = ((problem.n_rows,),) * 3, len(problem.prior.shift)
        self.width = len(self.design.pattern.dense) + 1
        self.order = max(len(self.design.pattern.dense), self.design.pattern.core.last)
        self.parts = self.design.pattern.split(as_csr(problem.prior.precision))
        self.prior_norm = problem.prior_norm
        #: (2, n), mean and variance of the rows in the last state that was asked for them
        self.of_rows = np.empty((2, problem.n_rows))

    def moments(self, sites: Sites) -> Moments | None:
        """What these sites make, or None if that is improper."""
        numbers, B, C = (part.copy() for part in self.parts)
        design, prior = self.design, self.problem.prior
        with np.errstate(all="ignore"):
            shift = prior.shift + self.rows.add(sites.precision, sites.shift, (numbers, B, C))
            now = moments(design.pattern, (numbers, B, C), shift, design.constraints)
        if now is None:
            return None
        # row by row, where large numbers of a scale and a shift cancel
        rows = sites.log_scale + 0.5 * sites.shift * np.asarray(self.rows.X @ now.mean)
        return now.of_mass(float(rows.sum() + 0.5 * (prior.shift @ now.mean)))

    def rebuild(self, sites: Sites, sweeps: int) -> SparseState | None:
        """See :class:`epfast.gaussian.engine.Form`."""
        now = self.moments(sites)
        return None if now is None else GPState(sites, sweeps, now.with_inverse())

    def at_rows(self, state: SparseState) -> Callable[[Piece], tuple[Array, Array]]:
        def of(part: Piece) -> tuple[Array, Array]:
            self.of_rows[:, part] = self.rows.marginals(state.moments, part)
            h, s = self.of_rows[:, part]
            return h, s

        return of

    def summary(self, state: SparseState, evidence: bool = True) -> Summary:
        now: Moments = state.moments
        return Summary(now.mean, now.variances(), self.log_evidence(state))

    def log_evidence(self, state: SparseState) -> float:
        """EP's log p(y), with all constants."""
        return float(self.problem.base.log_scale + self.prior_norm + state.moments.log_mass)

    def result(self, state: SparseState) -> SparseResult:
        return GPState(state.sites, state.sweeps, state.moments._replace(inverse=None))


class SparseEngine(EPEngine[SparseState, SparseResult, Pace]):
    """EP with a site per row, all of them from one posterior."""

    problem: Problem
    form: Sparse
    tilted: TiltedMoments

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, Sparse(problem))
        self.exact, self.tilted = problem.exact_sites(), problem.tilted()
        self._at_once: Visits[SparseState, Pace] = AtOnce(
            problem, self.tilted, self.form, self.schedule.damping
        )

    def share(self, threads: ThreadPool) -> None:
        """The fits of sites are for these threads, if moments are."""
        if self.tilted.separate:
            numbers = self.schedule.damping
            self._at_once = AtOnce(self.problem, self.tilted, self.form, numbers, threads)

    def start_of_run(self, state: SparseState, is_flat: bool) -> SparseState:
        """The state, or that of the first sites, from which nearly all fits converge."""
        first = None
        if is_flat and self.schedule.tol > 0.0:
            first = first_sites(self.problem, self.tilted)
        state = state if first is None else self.form.rebuild(first, state.sweeps) or state
        return state._replace(memory=Pace())

    def visit(self, state: SparseState, sites: Sites, tick: Tick) -> Visited[SparseState, Pace]:
        """All sites, each a share of the way; what is left is the change of a whole sweep."""
        visited = self._at_once.visit(state, sites, tick)
        pace = paced(state.memory or Pace(), state.sites, sites, *self.form.of_rows)
        new = self.form.rebuild(sites, state.sweeps + 1)
        if new is None:
            return visited
        ends = [Summary(now.moments.mean, now.moments.variances()) for now in (state, new)]
        distance = change(*ends) / (pace.share * self.schedule.damping)
        return visited._replace(swept_state=new, memory=pace, change=distance, damping=pace.share)

"""Scalar sites: one factor per row of X, acting on h = x.theta, with a full covariance.

EP by the exact blocked sweep (``_core/row_sweeps.pyx``) in sequential or shuffled order, and in
parallel order by Gram matrix and Cholesky; ADF, which stores no site.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from epfast import families
from epfast._arrays import Array, as_array, symmetric_from_upper
from epfast._core.row_sweeps import BlockedSweep, ParallelSweep
from epfast.inference import Counts, PartOfSweep, Sites
from epfast.inference.runtime import Tick, no_tick
from epfast.linear.engines.base import (
    LEAST_SHARE,
    FullEngine,
    contraction,
    plain,
    start_of,
    with_precision,
)
from epfast.linear.problem import (
    LinearProblem,
    State,
    from_sites,
    inverse_root,
    is_proper,
    moments_of,
)

#: rows per block of marginals in parallel order
PARALLEL_ROWS = 128
#: dimensions from which sequential sweeps keep one triangle of the covariance only
HALF_FROM = 256
#: refresh the covariance when a variance shrank below this fraction (cancellation)
SHRUNK = 1e-4
#: sweeps between two refreshes
REFRESH = 5
#: automatic order, first sweep: every 16th row twice in sequential order, every 4th row in
#: parallel, then all rows in parallel; with fewer rows per dimension in the first share, all rows
#: in sequential order
FIRST_SHARE, NEXT_SHARE = 16, 4
ROWS_PER_DIMENSION = 4
#: a row that moves by no more stands still, if the tolerance is not larger
STANDS = 1e-4


def block_size(block: int | None, d: int) -> int:
    """Sites per block of the exact blocked sweep, by default a third of d between 8 and 64."""
    return block or max(8, min(64, d // 3))


def settles(moved: float, tol: float) -> bool | None:
    """None, or False where some row still moves by this much of its own sd, or log variance.

    The weights may stand still in their own sd and the rows not, along directions that the prior
    leaves free.
    """
    return None if moved <= max(tol, STANDS) else False


class AutoOrder(NamedTuple):
    """The order of the next sweep, and what the automatic order has seen."""

    order: str
    #: True for order="auto": parallel sweeps may give way to sequential ones
    may_change: bool = False
    #: True until the first site is fitted
    flat: bool = False
    #: least change of a parallel sweep, and the number of sweeps since
    least: float = np.inf
    stalled: int = 0

    @classmethod
    def of(cls, schedule: Any, sites: Sites | None) -> AutoOrder:
        """The order of the first sweep."""
        flat = sites is not None and not sites.precision.any()
        if schedule.order != "auto":
            return cls(schedule.order, flat=flat)
        parallel = schedule.tol > 0.0 and schedule.damping == 1.0
        return cls("parallel" if parallel else "sequential", True, flat)

    def next(self, change: float, lost: bool, tol: float) -> AutoOrder:
        """The order after a parallel sweep: sequential once three of them did not contract.

        lost: the sweep was of no use.
        """
        least, stalled = contraction(change, self.least, self.stalled)
        contracts = not lost and (stalled < 3 or change <= tol)
        order = self.order if contracts else "sequential"
        return self._replace(order=order, least=least, stalled=stalled)


class RowState(NamedTuple):
    """A :class:`State`, its moments, and the progress of the sweeps."""

    precision: Array
    shift: Array
    sites: Sites | None
    log_scale: float
    sweeps: int
    rows_seen: int | None
    #: (d, d) and (d,); only the upper triangle of the covariance is valid
    covariance: Array
    mean: Array
    order: AutoOrder
    #: sweeps since the last refresh
    since_refresh: int
    #: initial state of a warm start, borrowed: copy before writing; None: flat sites
    origin: State | None

    def at(self, state: State) -> RowState:
        """Replace the state and its moments. O(d^3)."""
        covariance, mean = moments_of(state)
        return self._replace(covariance=covariance, mean=mean, **state._asdict())


class RowEngine(FullEngine):
    """EP stores two numbers per row, ADF none."""

    def __init__(self, problem: LinearProblem) -> None:
        super().__init__(problem)
        schedule, (n, d) = self.schedule, problem.shape
        self.tilted = problem.tilted()
        block = block_size(getattr(schedule, "block", None), d)
        full = problem.sparse or d < HALF_FROM
        numbers = schedule.power, schedule.damping
        self.sequential = BlockedSweep(self.tilted, d, min(block, n), *numbers, full)
        self.parallel = ParallelSweep(self.tilted, d, min(n, PARALLEL_ROWS), *numbers)
        self.refresh = getattr(schedule, "refresh", None) or REFRESH

    def init(self, start: Any) -> RowState:
        return self.begun(start_of(self.problem, start), None if start is None else start.sites)

    def begun(self, state: State, theirs: Sites | None) -> RowState:
        """The initial state; ``theirs`` are the sites of a start, which are copied."""
        origin = None
        if theirs is not None and state.sites is not None:
            origin, state = state, state._replace(sites=families.copied(state.sites))
        order = AutoOrder.of(self.schedule, state.sites)
        return RowState(*state, *moments_of(state), order, 0, origin)

    def _restarted(self, state: RowState) -> RowState:
        """Restart from the initial state: a diverged parallel run is a bad start."""
        origin = state.origin
        if origin is None:
            first = start_of(self.problem, None)
        else:
            assert origin.sites is not None
            first = origin._replace(sites=families.copied(origin.sites))
        return state.at(first)._replace(sweeps=state.sweeps, since_refresh=0)

    def sweep(self, state: RowState, keep: bool, tick: Tick) -> tuple[RowState, Counts]:
        self.tilted.begin_sweep(state.sweeps)
        if state.sites is None:
            return self._pass(state, tick)
        if state.order.order != "parallel":
            return self._sequential(state, slice(None), keep, tick)
        n, d = self.problem.shape
        auto = state.order
        # a parallel sweep may be undone as a whole; the automatic order then restarts
        keep = keep or not auto.may_change
        if auto.may_change and auto.flat:
            state = state._replace(order=auto._replace(flat=False))
            if n < FIRST_SHARE * ROWS_PER_DIMENSION * d:
                # the first step of parallel EP from a wide prior goes too far
                return self._sequential(state, slice(None), keep, tick)
            state, keep = self._shares(state, keep), False
        new, counts = self._parallel(state, slice(None), keep, tick)
        if auto.may_change:
            moved = _largest_move(state, new)
            # sites that are flat again: the sweep before went too far for any row to matter
            lost = counts.refused == n or _is_flat(new.sites)
            order = state.order.next(moved, lost, self.schedule.tol)
            if order.order == "sequential":
                # the start is no result: the sweep goes on from there, and is nothing to stop at
                start = self._restarted(state)._replace(order=order)
                new, counts = self._sequential(start, slice(None), False, tick)
                return new, counts._replace(settled=False)
            new = new._replace(order=order)
        return new._replace(sweeps=state.sweeps + 1), counts

    def settle(self, state: RowState, hurry: bool = False) -> State:
        if state.sites is None or state.since_refresh == 0 or hurry:
            return plain(state)
        return from_sites(self.problem, state.sites, state.sweeps) or plain(state)

    # -- sequential --

    def _sequential(
        self, state: RowState, which: slice, keep: bool, tick: Tick
    ) -> tuple[RowState, Counts]:
        """Fit the sites of a slice of the rows; outside the slice sites must be flat."""
        problem, core = self.problem, self.sequential
        n = problem.shape[0]
        assert state.sites is not None
        sites: Sites = families.copied(state.sites) if keep else state.sites
        before, core.moved = core.n_refused, 0.0
        old_variance = np.diag(state.covariance)
        covariance, mean = state.covariance.copy(), state.mean.copy()
        for part in problem.pieces(self.schedule.checked_visits(n, state.sweeps)[which]):
            self._visit(part, covariance, mean, *sites)
            tick(len(part))
        refused = core.n_refused - before
        settled = settles(math.sqrt(core.moved) / self.schedule.damping, self.schedule.tol)
        new = state._replace(
            sites=sites,
            sweeps=state.sweeps + 1,
            covariance=covariance,
            mean=mean,
            since_refresh=state.since_refresh + 1,
        )
        if (
            new.since_refresh == self.refresh
            or refused == n
            or not (np.diag(covariance) > SHRUNK * old_variance).all()
        ):
            anew = from_sites(problem, sites, new.sweeps)
            if anew is not None:
                refreshed = new.at(anew)._replace(since_refresh=0)
                return refreshed, Counts(refused, drift=_drift(new, refreshed), settled=settled)
        total = problem.base.log_scale + float(sites.log_scale.sum())
        new = with_precision(new._replace(log_scale=total), core.full)
        return new, Counts(refused, settled=settled)

    def _visit(self, part: Any, covariance: Array, mean: Array, *sites: Array) -> None:
        """Fit the sites of some rows, numbered, one after the other."""
        problem = self.problem
        # a slice takes neighbours without a copy
        neighbours = isinstance(part, range) and part.step == 1
        take: Any = slice(part[0], part[-1] + 1) if neighbours else as_array(part)
        self.sequential.sweep(
            problem.rows(take),
            problem.responses(take),
            problem.weights(take),
            as_array(part),
            covariance,
            mean,
            *sites,
        )

    def _pass(self, state: RowState, tick: Tick) -> tuple[RowState, Counts]:
        """A pass of ADF. Ctrl-C leaves the posterior of the rows before the piece it falls in."""
        core, before = self.sequential, self.sequential.n_refused
        core.log_scale_total, reached = 0.0, state
        try:
            visits = self.schedule.checked_visits(self.problem.shape[0], state.sweeps)
            for part in self.problem.pieces(visits):
                covariance, mean = reached.covariance.copy(), reached.mean.copy()
                self._visit(part, covariance, mean)
                assert reached.rows_seen is not None
                # one assignment, which Ctrl-C cannot divide
                reached = reached._replace(
                    covariance=covariance,
                    mean=mean,
                    log_scale=state.log_scale + core.log_scale_total,
                    rows_seen=reached.rows_seen + len(part),
                )
                tick(len(part))
            new = with_precision(reached, core.full)._replace(sweeps=state.sweeps + 1)
        except KeyboardInterrupt:
            some = state if reached is state else with_precision(reached, core.full)
            raise PartOfSweep(some) from None
        return new, Counts(core.n_refused - before)

    # -- parallel --

    def _parallel(
        self, state: RowState, which: slice, keep: bool, tick: Tick
    ) -> tuple[RowState, Counts]:
        """Fit the sites of a slice from one posterior; outside the slice sites must be flat.

        Where all changes together are improper: as much of them is taken as is proper, or, where
        the order may change, none.
        """
        problem, core = self.problem, self.parallel
        assert state.sites is not None
        root = inverse_root(state.precision)
        before, core.residual = core.n_refused, 0.0
        precision, shift = problem.base.precision.copy(), problem.base.shift.copy()
        sites = families.copied(state.sites) if keep else state.sites
        n = problem.shape[0]
        for part in problem.pieces(range(n)[which]):
            take = slice(part[0], part[-1] + 1, which.step)
            target = Sites(*map(np.ascontiguousarray, families.taken(sites, take)))
            core.sweep(
                problem.rows(take),
                problem.responses(take),
                problem.weights(take),
                state.covariance,
                root,
                state.mean,
                *target,
                precision,
                shift,
            )
            families.put(sites, take, target)
            tick(len(part))
        refused = core.n_refused - before
        precision = symmetric_from_upper(precision)
        share, new = 1.0, precision
        while not is_proper(precision):
            share *= 0.5
            if state.order.may_change or share < LEAST_SHARE:
                return state, Counts(n)
            precision = state.precision + share * (new - state.precision)
        settled = settles(core.residual, self.schedule.tol)
        if share < 1.0:
            shift = state.shift + share * (shift - state.shift)
            sites, settled = families.damped(state.sites, sites, share), False
        total = problem.base.log_scale + float(sites.log_scale.sum())
        found = state.at(State(precision, shift, sites, total, state.sweeps))
        return found, Counts(refused, settled=settled)

    def _shares(self, state: RowState, keep: bool) -> RowState:
        """Sweep over growing shares of the rows, from flat sites, before the first sweep over all.

        For the price of half a sweep the mean comes within a few standard deviations of the end, so
        that parallel sweeps do not overshoot and few are needed.
        """
        sweeps = state.sweeps
        new, _ = self._sequential(state, slice(None, None, FIRST_SHARE), keep, no_tick)
        new, _ = self._sequential(new, slice(None, None, FIRST_SHARE), False, no_tick)
        new, counts = self._parallel(new, slice(None, None, NEXT_SHARE), False, no_tick)
        if counts.refused == self.problem.shape[0]:
            new = self._restarted(new)
        return new._replace(sweeps=sweeps, since_refresh=0)


def _is_flat(sites: Sites | None) -> bool:
    return sites is not None and not (sites.precision.any() or sites.shift.any())


def _drift(swept: RowState, refreshed: RowState) -> float:
    """Rounding drift that a refresh removed, in posterior standard deviations."""
    sd = np.sqrt(np.diag(refreshed.covariance))
    gap = np.triu(swept.covariance - refreshed.covariance) / np.outer(sd, sd)
    return float(max(np.abs(gap).max(), np.abs((swept.mean - refreshed.mean) / sd).max()))


def _largest_move(before: RowState, after: RowState) -> float:
    """Largest move of a mean, in the larger of its two sd, or of the log of a variance."""
    old, new = np.diag(before.covariance), np.diag(after.covariance)
    with np.errstate(all="ignore"):  # NaN contracts no less than a large number
        moved = np.abs(after.mean - before.mean) / np.sqrt(np.maximum(old, new))
        return float(max(moved.max(), np.abs(np.log(new / old)).max()))

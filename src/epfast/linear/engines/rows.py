"""Scalar sites: one factor per row of X, acting on h = x.theta, with a full covariance.

EP by the exact blocked sweep (``_core/row_sweeps.pyx``) in sequential or shuffled order, and in
parallel order by Gram matrix and Cholesky; ADF, which stores no site.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from epfast import families
from epfast._arrays import Array, as_array, symmetric_from_upper
from epfast._core.row_sweeps import BlockedSweep, ParallelSweep
from epfast.inference import Counts, PartOfSweep, Sites
from epfast.inference.runtime import Tick
from epfast.inference.threads import ALONE, Threads
from epfast.linear.engines.base import (
    LEAST_SHARE,
    FullEngine,
    plain,
    start_of,
    with_precision,
)
from epfast.linear.engines.chunks import (
    Chunks,
    Numbers,
    Pace,
    chunk_size,
    is_for_chunks,
    moves_of,
    overshoots,
)
from epfast.linear.engines.revisits import Seen, revisit
from epfast.linear.problem import (
    LinearProblem,
    State,
    from_sites,
    inverse_root,
    is_proper,
    moments_of,
)
from epfast.schedules import Schedule

#: rows per block of marginals in parallel order
PARALLEL_ROWS = 128
#: dimensions from which sequential sweeps keep one triangle of the covariance only
HALF_FROM = 256
#: refresh the covariance when a variance shrank below this fraction, or grew beyond its inverse:
#: so far a sweep has no digits left (cancellation)
SHRUNK = 1e-4
#: rounding drift, in posterior sd, with which no fit ends
DRIFTED = 1e-4
#: sweeps between two refreshes
REFRESH = 5
#: a lane of a parallel sweep takes at least so many products, a row without any so many of them,
#: and so many times as many as its sum; lanes, and numbers in the sums of all
LANE, ROW, WORTH, MOST_LANES, LANE_NUMBERS = 1 << 22, 500, 32, 16, 1 << 23
#: rows from which some are visited again: rounds over fewer cost as much as sweeps
REVISITED_FROM = 2000
#: of sweeps of all rows at once, where sequential ones are stuck
CAREFUL = 0.5
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
    #: of the next sweep
    order: str
    #: sweeps since the last refresh
    since_refresh: int
    #: of sweeps in chunks
    pace: Pace | None
    #: what the sites make, if that is at hand and rounding has left it alone
    exact: State | None = None

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
        #: of threads, in parallel order, by the damping
        self.hands: dict[float, list[ParallelSweep]] = {}
        #: whether sequential sweeps begin anew where sites are stuck
        self.begins_anew = schedule.order == "auto" and overshoots(problem) and schedule.tol > 0.0
        self.chunks = Chunks(problem, self.tilted, self.sequential)
        self.refresh = getattr(schedule, "refresh", None) or REFRESH
        self.threads = ALONE

    def share(self, threads: Threads) -> None:
        """Sweeps in chunks and in parallel order are for these threads, if moments are."""
        if self.tilted.separate:
            self.threads = self.chunks.threads = threads

    def init(self, start: Any) -> RowState:
        return self.begun(start_of(self.problem, start), None if start is None else start.sites)

    def begun(self, state: State, theirs: Sites | None) -> RowState:
        """The initial state; ``theirs`` are the sites of a start, which are copied."""
        if theirs is not None and state.sites is not None:
            state = state._replace(sites=families.copied(state.sites))
        order, flat = self.schedule.order, state.sites is not None and _is_flat(state.sites)
        if order == "auto":
            # a schedule with an order of its own keeps it
            own = type(self.schedule).visits is not Schedule.visits
            undamped = self.schedule.tol > 0.0 and self.schedule.damping == 1.0
            chunks = undamped and not own and is_for_chunks(self.problem)
            order = "chunked" if chunks else "sequential"
        pace = Pace(chunk_size(self.problem), flat) if order == "chunked" else None
        if pace is not None:  # these are changed in place
            state = state._replace(precision=state.precision.copy(), shift=state.shift.copy())
        many = self.problem.shape[0] >= REVISITED_FROM
        if pace is not None and self.schedule.order == "auto" and many:
            pace = pace._replace(seen=Seen())
        return RowState(*state, *moments_of(state), order, 0, pace)

    def sweep(self, state: RowState, keep: bool, tick: Tick) -> tuple[RowState, Counts]:
        self.tilted.begin_sweep(state.sweeps)
        if state.sites is None:
            return self._pass(state, tick)
        if state.order == "chunked":
            return self._chunked(state, keep, tick)
        if state.order in ("parallel", "careful"):
            return self._parallel(state, tick)
        new, counts = self._sequential(state, tick)
        if self.begins_anew and counts.refused > 0 and new.sweeps > 1:
            return self._anew(new), counts._replace(settled=False)
        return new, counts

    def settle(self, state: RowState, hurry: bool = False) -> State:
        if hurry and state.pace is not None and state.sites is not None:
            # a sweep may have gone on in its arrays
            return plain(self._of_chunks(state, state.precision, state.shift, state.sites))
        if state.sites is None or state.since_refresh == 0 or hurry:
            return plain(state)
        if state.exact is not None:
            return state.exact
        return from_sites(self.problem, state.sites, state.sweeps) or plain(state)

    # -- sequential --

    def _sequential(self, state: RowState, tick: Tick) -> tuple[RowState, Counts]:
        problem, core = self.problem, self.sequential
        n = problem.shape[0]
        assert state.sites is not None
        sites: Sites = families.copied(state.sites)
        before, core.moved = core.n_refused, 0.0
        old_variance = np.diag(state.covariance)
        covariance, mean = state.covariance.copy(), state.mean.copy()
        for part in problem.pieces(self.schedule.checked_visits(n, state.sweeps)):
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
            exact=None,
        )
        if (
            new.since_refresh == self.refresh
            or refused == n
            or _moved_far(old_variance, np.diag(covariance))
        ):
            anew = from_sites(problem, sites, new.sweeps)
            if anew is not None:
                refreshed = new.at(anew)._replace(since_refresh=0)
                return refreshed, Counts(refused, drift=_drift(new, refreshed), settled=settled)
        total = problem.base.log_scale + float(sites.log_scale.sum())
        new = with_precision(new._replace(log_scale=total), core.full)
        # drift that is back after one sweep is rounding of a mean so far off: told at the end
        fresh = state.since_refresh == 0
        if settled is None and refused == 0 and self._stands(state, new):
            anew = from_sites(problem, sites, new.sweeps)
            if anew is not None and not fresh and _gap(new, anew) > DRIFTED:
                refreshed = new.at(anew)._replace(since_refresh=0)
                return refreshed, Counts(0, drift=_drift(new, refreshed), settled=False)
            new = new._replace(exact=anew)
        return new, Counts(refused, settled=settled)

    def _stands(self, old: RowState, new: RowState) -> bool:
        """Whether the loop may end here: its own change is at least a third of this one."""
        return bool(_largest_move(old, new) <= 3.0 * self.schedule.tol * self.schedule.damping)

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

    def _anew(self, state: RowState) -> RowState:
        """From the prior, all rows at once with damping.

        The first rows of a sequential sweep may pin the posterior where most of the others are
        outliers, of which some have improper cavities then, and keep their sites.
        """
        fresh = self.begun(start_of(self.problem, None), None)
        return fresh._replace(sweeps=state.sweeps, order="careful")

    # -- in chunks --

    def _chunked(self, state: RowState, keep: bool, tick: Tick) -> tuple[RowState, Counts]:
        """Fit the sites in chunks. Ctrl-C leaves the posterior of the chunks before.

        Without a use for the old sites, those go on in its arrays, with precision and shift: these
        belong to each other after every chunk.
        """
        chunks, pace, n = self.chunks, state.pace, self.problem.shape[0]
        assert state.sites is not None
        assert pace is not None
        visits, refused = chunks.visits(state.sweeps), 0
        chunks.lay_out(visits)
        # dense rows move alike
        seen = pace.seen if chunks.is_sparse else None
        # sweeps are mixed, and rows visited again, by how far they moved
        mixes, watched = pace.mixes, pace.mixes or seen is not None
        precision, shift, sites = state.precision, state.shift, state.sites
        if keep or watched:
            precision, shift, sites = precision.copy(), shift.copy(), families.copied(sites)
        spread = np.zeros(n) if watched else None

        def again(which: Numbers, size: int) -> None:
            nonlocal refused
            assert spread is not None
            refused += chunks.again(which, size, precision, shift, sites, spread)

        try:
            refused = chunks.sweep(visits, pace, precision, shift, sites, spread, tick)
            residual = chunks.core.residual
            if seen is not None and spread is not None and refused == 0:
                seen = revisit(again, visits, state.sites, sites, spread, seen, self.schedule.tol)
        except KeyboardInterrupt:
            raise PartOfSweep(self._of_chunks(state, precision, shift, sites)) from None
        new, drift = self._of_chunks(state, precision, shift, sites), None
        covariance, mean = chunks.moments(new)
        new = new._replace(sweeps=state.sweeps + 1, covariance=covariance, mean=mean)
        if pace.is_stale(chunks.core.drift()):
            anew = from_sites(self.problem, sites, new.sweeps)
            if anew is not None:
                before, new = new, new.at(anew)
                drift, pace = _drift(before, new), pace._replace(since=0)
        pace = pace.next(_largest_move(state, new), n, self.schedule.block is not None)
        pace = pace._replace(seen=seen)
        if spread is not None and mixes:
            pace, better = pace.mixed(plain(new), moves_of(state.sites, sites, spread))
            new = new if better is None else new.at(better)
        settled = settles(residual, self.schedule.tol)
        return new._replace(pace=pace), Counts(min(n, refused), drift=drift, settled=settled)

    def _of_chunks(self, state: RowState, precision: Array, shift: Array, sites: Sites) -> RowState:
        """The state with these sites and their precision, of which the upper triangle is given."""
        return state._replace(
            precision=symmetric_from_upper(precision),
            shift=shift,
            sites=sites,
            log_scale=self.problem.base.log_scale + float(sites.log_scale.sum()),
        )

    # -- parallel --

    def _parallel(self, state: RowState, tick: Tick) -> tuple[RowState, Counts]:
        """Fit the sites from one posterior, and take as much of their changes as is proper."""
        problem, base = self.problem, self.problem.base
        damping = CAREFUL if state.order == "careful" else self.schedule.damping
        assert state.sites is not None
        root = inverse_root(state.precision)
        sites = families.copied(state.sites)
        n = problem.shape[0]
        pieces = problem.pieces(range(n))
        lanes = lanes_of(problem, len(pieces))
        hands = self._hands(lanes, damping)
        before = sum(core.n_refused for core in hands)
        for core in hands:
            core.residual = 0.0
        sums = [(base.precision.copy(), base.shift.copy())]
        sums += [(np.zeros_like(sums[0][0]), np.zeros(problem.shape[1])) for _ in range(1, lanes)]

        def work(k: int, lane: int) -> Iterator[int]:
            for part in pieces[lane * len(pieces) // lanes : (lane + 1) * len(pieces) // lanes]:
                take = slice(part[0], part[-1] + 1)
                target = Sites(*map(np.ascontiguousarray, families.taken(sites, take)))
                hands[k].sweep(
                    problem.rows(take),
                    problem.responses(take),
                    problem.weights(take),
                    state.covariance,
                    root,
                    state.mean,
                    *target,
                    *sums[lane],
                )
                families.put(sites, take, target)
                yield len(part)

        self.threads.each(work, lanes, tick)
        refused = sum(core.n_refused for core in hands) - before
        precision, shift = sums[0]
        for more, further in sums[1:]:
            precision += more
            shift += further
        precision = symmetric_from_upper(precision)
        share, new = 1.0, precision
        while not is_proper(precision):
            share *= 0.5
            if share < LEAST_SHARE:
                return state._replace(sweeps=state.sweeps + 1), Counts(n)
            precision = state.precision + share * (new - state.precision)
        settled = settles(max(core.residual for core in hands), self.schedule.tol)
        if share < 1.0:
            shift = state.shift + share * (shift - state.shift)
            sites, settled = families.damped(state.sites, sites, share), False
        total = problem.base.log_scale + float(sites.log_scale.sum())
        found = state.at(State(precision, shift, sites, total, state.sweeps + 1))
        return found, Counts(refused, settled=settled)

    def _hands(self, lanes: int, damping: float) -> list[ParallelSweep]:
        """Scratch of each thread that so many lanes are for."""
        schedule, (n, d) = self.schedule, self.problem.shape
        hands = self.hands.setdefault(damping, [])
        while len(hands) < max(1, min(lanes, self.threads.count)):
            tilted = self.problem.tilted() if hands else self.tilted
            rows = min(n, PARALLEL_ROWS)
            hands.append(ParallelSweep(tilted, d, rows, schedule.power, damping))
        return hands


def lanes_of(problem: LinearProblem, most: int) -> int:
    """In how many lanes, each with a sum of its own, a parallel sweep goes: a power of 2.

    By the size of the problem alone: it is the same to the last bit on any number of threads.
    """
    n, d = problem.shape
    entries = (problem.data.X.nnz / max(n, 1)) ** 2 if problem.sparse else d**2
    work, most = n * (entries + ROW), min(most, MOST_LANES, 1 + LANE_NUMBERS // d**2)
    lanes = 1
    while 2 * lanes <= most and work >= 2 * lanes * max(LANE, WORTH * d**2):
        lanes *= 2
    return lanes


def _moved_far(old: Array, new: Array) -> bool:
    """Whether variances changed by so much that updates have lost their digits."""
    return not ((new > SHRUNK * old) & (SHRUNK * new < old)).all()


def _is_flat(sites: Sites | None) -> bool:
    return sites is not None and not (sites.precision.any() or sites.shift.any())


def _drift(swept: RowState, refreshed: RowState) -> float:
    """Rounding drift that a refresh removed, in posterior standard deviations."""
    sd = np.sqrt(np.diag(refreshed.covariance))
    with np.errstate(over="ignore"):
        gap = np.triu(swept.covariance - refreshed.covariance) / np.outer(sd, sd)
        moved = (swept.mean - refreshed.mean) / sd
    return float(max(np.abs(gap).max(), np.abs(moved).max()))


def _gap(swept: RowState, anew: State) -> float:
    """As :func:`_drift`, from the precisions alone, without a factorisation. O(d^2)."""
    unit = np.sqrt(np.diag(anew.precision))
    with np.errstate(over="ignore"):
        gap = (swept.precision - anew.precision) / np.outer(unit, unit)
        moved = (anew.precision @ swept.mean - anew.shift) / unit
    return float(max(np.abs(gap).max(), np.abs(moved).max()))


def _largest_move(before: RowState, after: RowState) -> float:
    """Largest move of a mean, in the larger of its two sd, or of the log of a variance."""
    old, new = np.diag(before.covariance), np.diag(after.covariance)
    with np.errstate(all="ignore"):  # NaN contracts no less than a large number
        moved = np.abs(after.mean - before.mean) / np.sqrt(np.maximum(old, new))
        return float(max(moved.max(), np.abs(np.log(new / old)).max()))

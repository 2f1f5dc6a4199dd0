"""Scalar sites: one factor per row of X, acting on h = x.theta, with a full covariance.

EP by the exact blocked sweep (``_core/row_sweeps.pyx``) in sequential or shuffled order, from one
posterior in parallel order, and in chunks (``chunks.py``).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from epfast import families
from epfast._arrays import Array
from epfast._core.row_sweeps import SiteFits
from epfast._core.thread_pool import ThreadPool
from epfast._core.tilted import TiltedMoments
from epfast.gaussian.engines.base import (
    STANDS,
    EPEngine,
    Form,
    Full,
    Visits,
    Working,
    gaussian,
)
from epfast.gaussian.engines.chunks import (
    BLOCK,
    SLOW,
    ChunkMemory,
    InChunks,
    Step,
    chunk_size,
    is_for_chunks,
    mixed_in,
    moves_of,
    overshoots,
    sequential_core,
)
from epfast.gaussian.engines.joint import cavities, fitted_at, log_mass
from epfast.gaussian.problem import Problem, State, peak_sites
from epfast.inference import Counts, Sites
from epfast.inference.loop import change
from epfast.inference.runtime import Tick, each

#: damping of sweeps of all rows at once, where sequential ones are stuck: of 720 fits with 20 to
#: 45 % of outliers 70 do not converge, 93, 76 and 99 with .25, .75 and 1, and 332 without these
#: sweeps
RESTART_DAMPING = 0.5
#: sd of the cavity of the first sites, in the unit of latent values: the 600 models converge with 1
#: to 10
WIDE = 3.0
#: the order of passes, and columns from which they are taken: fits of 2,000 rows take 1.2 times as
#: long with them at 100 columns, 0.9 at 200, half as long at 500, 0.55 with MNIST's 784
MEANS, MEANS_FROM = "means", 200
#: most steps on the means in a pass, which end at this share of the first one: four on MNIST left
#: 0.4 of it where sites were far off, from near the second leaves 0.02. With 4 or 16, or shares of
#: .01 to .3, no fit of eleven with 200 to 784 columns takes another sweep
MEAN_STEPS, ENOUGH = 8, 0.03


class InTurn(Visits):
    """One row after the other: each sees what the one before has found."""

    in_turn = True

    def __init__(self, problem: Problem, tilted: TiltedMoments, form: Full) -> None:
        self.problem, self.schedule, self.form = problem, problem.schedule, form
        self.core = sequential_core(problem, tilted)
        self.relaxation = self.core.relaxation
        self.follows = (
            problem.schedule.order == "auto"
            and problem.schedule.tol > 0.0
            and self.relaxation is None
            and overshoots(problem)
        )
        plain = self.schedule.order != "shuffled" and self.schedule.keeps_order
        self.parts = form.parts if plain else None
        self.numbers = np.arange(form.n_rows)

    def visit(self, state: Working, sites: Sites, tick: Tick) -> Counts:
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
        return Counts(core.n_refused - before, residual=residual, left=left)

    def after(self, old: Working, new: Working, counts: Counts) -> tuple[Working, Counts]:
        """The state, or the prior where rows are stuck, from which all rows are fitted at once.

        The first rows may pin the posterior where most of the others are outliers, of which some
        have improper cavities then and keep their sites.
        """
        if counts.refused == 0 or new.sweeps == 1:
            return new, counts
        fresh = self.form.prior()._replace(sweeps=new.sweeps, order="parallel_damped")
        return fresh, counts._replace(settled=False, left=None)


class AtOnce(Visits):
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

    def visit(self, state: Any, sites: Sites, tick: Tick) -> Counts:
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
            given = *at_rows(part), problem.responses(part), *families.taken(sites, part)
            self.cores[k].fit(*given, problem.weights(part))
            yield part.stop - part.start

        each(self.threads, work, len(parts), tick)
        refused = sum(core.n_refused for core in self.cores) - before
        return Counts(refused, residual=max(core.residual for core in self.cores))


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


def has_mean_passes(problem: Problem) -> bool:
    """Whether the automatic order has passes, see :class:`MeansFirst`."""
    schedule, X = problem.schedule, problem.data.X
    if not isinstance(X, np.ndarray) or X.shape[1] < MEANS_FROM:
        return False
    plain = schedule.is_automatic and schedule.block is None and schedule.power == 1.0
    dense = X.dtype == np.float64 and X.flags.c_contiguous and problem.data.weights is None
    return bool(plain and dense and problem.scheme.integrates and problem.loss.log_concave)


def order_of(state: Working) -> str:
    """The order of a state's sweeps that are no passes."""
    if state.order != MEANS:
        return state.order
    return "sequential" if state.memory is None else "chunked"


class Ahead(NamedTuple):
    """The pass that follows a state."""

    #: those of the state, by which it is known
    before: Sites
    #: mean and variance (n,) of the rows in the state
    h: Array
    s: Array
    #: the sites of the state, with shifts of converged means, and those that the pass fits then
    held: Sites
    sites: Sites
    refused: int
    #: the settled means of the weights, and what their last step has moved a row, in its sd
    mean: Array
    gap: float
    #: the largest move of a row's mean, in its sd, and of the log of its sd, by its own site
    moves: tuple[float, float]


class MeansFirst(Visits):
    """All rows from one posterior, whose means settle before its variances move: a pass.

    With the precisions of all sites held, and so the variances of all rows, a step that gives each
    row the mean of its tilted distribution is O(n d). The pass fits the sites at the cavities that
    come out, O(n d^2 + d^3), and contracts as variances do, which hardly depend on each other.
    Whether there is one to follow is known by the marginals of the rows in the new posterior.
    """

    def __init__(self, engine: RowEngine, otherwise: Visits) -> None:
        self.engine, self.otherwise, self.in_turn = engine, otherwise, False
        self.core = SiteFits(engine.tilted, 1.0, 1.0)
        #: the last pass that was taken, or None: it was a sweep of the other kind
        self.taken: Ahead | None = None
        #: the passes so far without another sweep
        self.steps: tuple[Step, ...] = ()

    def visit(self, state: Working, sites: Sites, tick: Tick) -> Counts:
        ahead = self.taken = self._ahead(state) if state.order == MEANS else None
        self.in_turn = ahead is None and self.otherwise.in_turn
        if ahead is None:
            return self.otherwise.visit(state, sites, tick)
        tick(self.engine.n_sites)
        if not ahead.refused and max(ahead.moves[1], ahead.gap) <= self.engine.schedule.tol:
            return Counts(made=self.engine.form.with_shifts(state, ahead.held, ahead.mean))
        for part, new in zip(sites, ahead.sites, strict=True):
            part[:] = new
        return Counts(ahead.refused)

    def after(self, old: Working, new: Working, counts: Counts) -> tuple[Working, Counts]:
        """The state of mixed passes. Another pass follows unless this one did not contract.

        What is left of the distance to a fixed point is what the pass has moved, times the factor
        by which passes contract: the next one's moves of the rows over those of this one.
        """
        taken = self.taken
        if taken is None:
            self.steps = ()
            new, counts = self.otherwise.after(old, new, counts)
            return new._replace(order=MEANS), counts
        if new.sites is taken.held:
            return new, counts._replace(remaining=max(taken.moves[1], taken.gap))
        ends = [self.engine.summary(state, False) for state in (old, new)]
        moved, tol, ahead = change(*ends), self.engine.schedule.tol, self._ahead(new)
        # rows that are refused do not move
        rate = math.inf if ahead is None else max(ahead.moves) / max(*taken.moves, 1e-300)
        if counts.refused or not rate <= 1.0:
            self.steps = ()
            return new._replace(order=order_of(new)), counts
        if max(ahead.moves) > max(tol, STANDS):
            counts = counts._replace(settled=False)
        moves = moves_of(taken.before, ahead.before, taken.s)
        self.steps, better = mixed_in(self.steps, new, moves)
        if better is not None and rate > SLOW and rate * moved > tol:
            new = better
        if new.memory is not None:  # of chunks: the sites have made this state
            new = new._replace(memory=new.memory._replace(since=0))
        return new, counts._replace(remaining=rate * moved)

    def _ahead(self, state: Working) -> Any:
        """The pass from a state, looked up or found, or None where there is none. O(n d^2)."""
        before, last = state.sites, self.engine.ahead
        if last is not None and last[0] is before:
            return last[1]
        ahead, start, y = None, self._settled(state), self.engine.problem.responses(slice(None))
        if start is not None:
            h, s, held, settled, mean, gap = start
            sites = Sites(before.precision.copy(), held.shift.copy(), before.log_scale.copy())
            refused = self.core.n_refused
            self.core.fit(settled, s, y, *sites)
            refused = self.core.n_refused - refused
            moved = np.abs(settled - h) / np.sqrt(s), 0.5 * np.abs(sites.precision - before[0]) * s
            moves = float(moved[0].max()), float(moved[1].max())
            ahead = Ahead(before, h, s, held, sites, refused, mean, gap, moves)
        self.engine.ahead = before, ahead
        return ahead

    def _settled(self, state: Working) -> tuple[Any, ...] | None:
        """Mean and variance of the rows, sites whose means have converged, and these means.

        They are those of the rows, then of the weights, and the largest last change of a row, in
        its sd. None where a cavity is improper, or where the means do not converge.
        """
        engine, problem, sites = self.engine, self.engine.problem, state.sites
        form: Full = engine.form
        X, y, shift = problem.data.X, problem.responses(slice(None)), problem.base.shift
        parts, at_rows = [part.which for part in form.parts], form.at_rows(state)
        h, s = np.empty((2, engine.n_sites))

        def work(_: int, k: int) -> Iterator[int]:
            h[parts[k]], s[parts[k]] = at_rows(parts[k])
            yield parts[k].stop - parts[k].start

        each(engine.threads, work, len(parts))
        if not (s > 0.0).all():
            return None
        sd, now, first, last = np.sqrt(s), h, 0.0, math.inf
        with np.errstate(all="ignore"):  # steps that diverge are not taken
            for step in range(MEAN_STEPS):
                cavity = cavities(sites, now, s)
                fit = None if cavity is None else fitted_at(engine.tilted, y, *cavity)
                if cavity is None or fit is None:
                    return None
                shifts = fit.mean / s - cavity[0] / cavity[1]
                mean = state.covariance @ (shift + shifts @ X)
                there = X @ mean
                last, now = float(np.abs((there - now) / sd).max()), there
                first = last if step == 0 else first
                # as fitted, and then with the precision that is held
                mass = [log_mass(tau, nu, *cavity) for tau, nu in (fit[:2], (sites[0], shifts))]
                scale = fit.log_scale - mass[0] + mass[1]
                sites = Sites(sites.precision, shifts, scale)
                if last <= max(ENOUGH * first, 0.1 * engine.schedule.tol):
                    break
        return (h, s, sites, now, mean, last) if last <= first else None


#: gives the problem of the next sweep, with its prior and loss, or None where it is the same, and
#: whether it is far from the one before
Learns = Callable[[Working], tuple[Problem | None, bool]]


def order_of_rows(problem: Problem) -> str:
    """The order of the first sweep, in place of "auto"."""
    schedule = problem.schedule
    if schedule.order != "auto":
        return str(schedule.order)
    # a schedule with an order of its own keeps it
    return "chunked" if is_for_chunks(problem) and schedule.is_automatic else "sequential"


def visits_of(
    order: str, problem: Problem, tilted: TiltedMoments, form: Full, threads: ThreadPool
) -> Visits:
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
        self._made: dict[str, Visits] = {}
        self.has_passes = self.form.rooted = has_mean_passes(problem)
        #: sites, and the pass that follows their state, if any does
        self.ahead: tuple[Sites, Ahead | None] | None = None
        self.learns: Any = None

    def init(self, start: Any) -> Working:
        """The state of a start. Under another prior the sum over the rows is kept. O(d^3)."""
        before = getattr(start, "problem", None)
        if self.exact is None and before is not None and before.data.X is self.problem.data.X:
            state = self._under(self.problem.base, start.state, before.base)
            if state is not None:
                return self.begun(state, False)
        working: Working = super().init(start)
        return working

    def learn(self, learns: Learns) -> None:
        """Let prior and loss follow the sites between sweeps. Passes would have to start again."""
        self.learns, self.steps, self.has_passes, self.exact = learns, True, False, None

    def before(self, state: Working) -> Working:
        """The posterior of the same sites under the prior that follows from them."""
        (there, self.far), problem, memory = self.learns(state), self.problem, state.memory
        new = None if there is None else self._under(there.base, state, problem.base)
        if there is None or new is None:
            return state
        if there.loss is not problem.loss:
            self.tilted, self._made = there.tilted(), {}
        prior, base, loss = there.prior, there.base, there.loss
        self.problem = self.form.problem = problem._replace(prior=prior, base=base, loss=loss)
        self.form.prior_norm = self.problem.prior_norm
        self.evidence_bound = self.problem.evidence_bound
        if memory is not None:  # sweeps under another prior are not mixed with those that follow
            memory = memory._replace(steps=())
        return new._replace(order=state.order, memory=memory)

    def _under(self, base: State, state: Any, before: State) -> Working | None:
        """The posterior of the sites of a state with another base than the one before. O(d^3)."""
        precision, shift, sites = state.precision, state.shift, state.sites
        if base is not before:
            precision = precision - before.precision + base.precision
            shift = shift - before.shift + base.shift
        total = base.log_scale + float(sites.log_scale.sum())
        swept = State(precision, shift, sites, total, state.sweeps, None, state.relaxed)
        return gaussian(swept, self.form.rooted)

    def share(self, threads: ThreadPool) -> None:
        """Sweeps in chunks and in parallel order are for these threads, if moments are."""
        if self.tilted.separate:
            self.threads = threads

    def visits(self, state: Working) -> Visits:
        order = order_of(state) if state.order == MEANS else state.order
        if order not in self._made:
            made = visits_of(order, self.problem, self.tilted, self.form, self.threads)
            self._made[order] = MeansFirst(self, made) if self.has_passes else made
        return self._made[order]

    def begun(self, state: Working, is_flat: bool) -> Working:
        """The state, and how its first sweep goes."""
        order, memory = order_of_rows(self.problem), None
        if order == "chunked":
            memory = ChunkMemory(chunk_size(self.problem), is_flat)
        if self.has_passes and not is_flat:
            order = MEANS
        return state._replace(order=order, memory=memory)

    def drifts(self, state: Working) -> bool:
        return isinstance(state.memory, ChunkMemory) and state.memory.since > 0

    def known(self, state: Any) -> dict[str, Any]:
        """What is known of the posterior of a state, by its names there."""
        attributes: dict[str, Any] = {"log_evidence": self.summary(state).log_evidence}
        if state.root is None:
            return attributes | {"_moments": state}
        attributes |= {"mean": state.mean, "_root": state.root}
        ahead = None if self.ahead is None else self.ahead[1]
        if ahead is not None and state.sites is ahead.before:
            attributes["_at_rows"] = ahead.h, ahead.s
        elif ahead is not None and state.sites is ahead.held:
            attributes["_at_rows"] = self.problem.data.X @ state.mean, ahead.s
        return attributes

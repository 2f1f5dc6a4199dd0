"""Sweeps of message passing over a graph."""

from __future__ import annotations

import copy
import logging
import math
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np

from epfast._arrays import Array
from epfast._core import graph as core
from epfast._core.graph_blocks import BlockBatch
from epfast._core.thread_pool import ThreadPool
from epfast.families import POSSIBLE
from epfast.gaussian.engine import block_size
from epfast.gaussian.forms.sparse import Pace, paced
from epfast.graph.beliefs import BlockBelief, SparseBelief
from epfast.graph.blocks import (
    About,
    BlockPrior,
    LinearPart,
    LinearState,
    abouts,
    belief_from,
    belief_of,
    believed,
    is_wide,
    natural,
    prior_belief,
)
from epfast.graph.catalogue.linear import LinearFactor
from epfast.graph.factors import Batch
from epfast.graph.limit import FIRST, SLOW, TRIES, Limit
from epfast.graph.problem import GraphProblem, GraphState, legal
from epfast.graph.sparse_blocks import FormsOnPattern, SparseBlockPrior, naturals
from epfast.graph.variables import Index, LinearForm, by_key, ends
from epfast.inference import Counts, Sites, Summary, Swept
from epfast.inference.loop import change
from epfast.inference.runtime import Tick, cached_property
from epfast.schedules import EP

logger = logging.getLogger("epfast")

#: most factors per call of the core, so that Ctrl-C takes effect
FACTORS_PER_CALL = 1 << 16
#: every so many sweeps beliefs are recomputed from priors and sites. That changes 853 fits by
#: rounding alone. Without it beliefs about a walk of steps of variance 1e-300 are not their sum
REFRESH = 10
#: relative rounding error of beliefs above which they are recomputed at the end of a fit, and the
#: last change above which this is checked: of 853 fits of small graphs eight ended with such a
#: change, with errors of 6e-13 at most
DRIFT, DIVERGES = 1e-6, 1.0
#: increases of the change, less half of its decreases, after which updates become sequential: of
#: the 853 fits, 243 of them with all updates at once, 691, 686, 679 and 674 converge with 1, 3,
#: 6 and without this rule, in 55,866, 57,806, 58,640 and 59,387 sweeps
MOST_GROWTHS = 3
#: a move, in standard deviations, that sequential sweeps make after so many increases where they
#: diverge alone: 1,214 of 1,500 random graphs converge by themselves, with moves up to 200
ASTRAY = 1e3
#: moves above the first number are too many after so many increases, of sweeps without damping: of
#: the same 1,214 fits none had more than 27
RESTLESS, MOST_RESTLESS = 0.1, 30
#: damping of the sweeps that follow, from the start of the fit, beside that of the sweeps before:
#: of 25 trends, walks with velocities and seasons that diverge, 23 converge within 200 sweeps with
#: 0.7, and 23 with 0.5, in 1.5 times as many
LESS = 0.7
#: damping where factors that share a site are updated together: 108 fits of SEP and AEP take 4,509
#: sweeps, 6,216 and 3,982 with .25 and .7, and six do not converge without it
SHARED_DAMPING = 0.5
#: the change while the limit is not known yet
FAR = 1e8
#: sweeps between two comparisons of watched forms, where there is no extrapolation
WATCHED = 12
#: change above which beliefs are recomputed, since digits were lost beside larger numbers: without
#: this rule the log evidence of the 853 fits changes by 6e-8 at most, but nothing is left of priors
#: where a factor is removed that was 1e29 sd away
LOSING = 1e6
#: most halvings of a step of all factors that makes a belief improper, as one of 22,218 steps in
#: the 853 fits did. They are the same with 0
HALVINGS = 30
#: advice for fits that fail, and for those whose sweeps diverged
REMEDY = (
    "damp the sweeps (EP(damping=0.5)), allow more of them, or give the variables proper, "
    "narrower priors"
)
DIVERGED = (
    "the sweeps diverged and are damped by {:.2g} now: allow more of them, make one block of the "
    "variables that depend on each other (Graph.block), or give the variables proper, narrower "
    "priors"
)


def remedy_for(reasons: dict[str, int], damping: float = 1.0) -> str:
    """Advice for fits that fail, with the reasons why user-defined factors were refused.

    damping: by divergence, see :class:`epfast.graph.problem.GraphState`.
    """
    remedy = DIVERGED.format(damping) if damping < 1.0 else REMEDY
    waited = "; ".join(f"{count} times: {reason}" for reason, count in reasons.items())
    return f"factors of your own were refused {waited}; {remedy}" if waited else remedy


def for_core(
    batch: Batch, problem: GraphProblem, moving: dict[int, tuple[Array, Array]], slot: int
) -> tuple[core.GraphBatch, list[About]]:
    """A batch for the core, and its forms over blocks.

    moving: moments of blocks, by place, but for those with a sparse precision. Of these each form
    is a variable, and their beliefs are one after another from ``slot`` on.
    """
    numbers = [prior.number for prior in problem.priors]
    edges, about = problem.edges(batch), abouts(batch, numbers, problem.model.sizes)
    for k, part in enumerate(about):
        if part.block not in moving:
            slots = slot + 2 * np.arange(batch.n)
            edges.at[part.edges] = slots
            about[k] = part._replace(slot=slots)
            slot += 2 * batch.n
    made = batch.factor.sweep(batch, edges, problem.tied)
    for part in about:
        if part.slot is None:
            place = int(problem.at[problem.priors[part.block].number])
            made = BlockBatch(made, part.rows, place, part.at, block_size(None, part.rows.d))
            made.about(*moving[part.block])
    return made, about


class SitesOfFactors(NamedTuple):
    """Sites of the factors of a posterior."""

    #: (n,), batch and row of each
    key: Index
    row: Index
    #: (n,), where the site of each begins among the numbers, and how many it has
    first: Index
    counts: Index
    numbers: Array
    #: (n,)
    log_scale: Array

    def select(self, which: Index) -> tuple[Index, Array]:
        """Where the sites of some factors begin among their numbers, and these numbers."""
        counts = self.counts[which]
        starts = ends(counts)
        inner = np.arange(starts[-1]) - np.repeat(starts[:-1], counts)
        return starts, self.numbers[np.repeat(self.first[which], counts) + inner]

    def find(self, key: Index, row: Index) -> Index:
        """The places of some factors. -1: there is none."""
        if not len(self.key):
            return np.full(len(key), -1)
        width = 1 + max(self.row.max(), row.max(initial=0))
        mine, wanted = self.key * width + self.row, key * width + row
        turn, order = np.argsort(mine), np.argsort(wanted)  # what is sorted is found in the cache
        place = np.searchsorted(mine[turn], wanted[order])
        found = np.empty_like(turn, shape=len(key))
        found[order] = turn[np.minimum(place, len(turn) - 1)]
        return np.where(mine[found] == wanted, found, -1)


class GraphStart(Protocol):
    """What is read of the posterior from which sweeps begin."""

    problem: GraphProblem
    state: GraphState

    @property
    def by_factor(self) -> SitesOfFactors: ...


def kept_sites(
    problem: GraphProblem, batches: Sequence[Batch], start: GraphStart
) -> tuple[Array, Array]:
    """Sites and log scales of the factors of batches, where an earlier posterior has them.

    Sites of new factors are flat. If the factors of a batch now share a site, it is the mean of
    their old sites. If they shared a site before, each factor gets that site.
    """
    old, sites, scales = start.by_factor, [], []
    keys = np.concatenate([batch.key_of_each for batch in batches])
    places = old.find(keys, np.concatenate([batch.rows for batch in batches]))
    parts = np.split(places, np.cumsum([batch.n for batch in batches])[:-1])
    for batch, at in zip(batches, parts, strict=True):
        counts = problem.numbers(batch)
        kept, scale = np.zeros(counts.sum()), np.zeros(batch.n)
        if (at >= 0).any():
            there = (at >= 0) & (old.counts[at] == counts)
            kept[np.repeat(there, counts)] = old.select(at[there])[1]
            scale[there] = old.log_scale[at[there]]
        if problem.tied:
            kept = kept.reshape(batch.n, -1).mean(axis=0)
        sites.append(kept)
        scales.append(scale)
    return np.concatenate(sites), np.concatenate(scales)


def log_integrals(problem: GraphProblem, state: GraphState, batch: Batch) -> Array:
    """Log of the integral of each factor of a batch over the beliefs, (n,)."""
    problem = problem._replace(schedule=legal(EP()))
    moving = {
        k: (np.array(q.covariance), np.array(q.mean))
        for k, q in enumerate(state.blocks)
        if isinstance(q, BlockBelief)
    }
    made, about = for_core(batch, problem, moving, len(state.beliefs))
    blocks = state.all_blocks
    forms = [naturals(*blocks[a.block].latent(a.X)) for a in about if a.slot is not None]
    log_z, scale, sites = np.full(batch.n, np.nan), np.zeros(batch.n), np.zeros(made.width)
    # read from one copy and written to another, since factors may share variables
    beliefs = np.concatenate([state.beliefs, *(pairs.ravel() for pairs in forms)])
    copies = beliefs.copy(), sites, sites.copy()
    whole = core.Program([made], np.array([[0, 0, batch.n]]))
    whole.run(0, 1, False, beliefs, *copies, scale, 1.0, 1.0, log_z)
    return log_z


#: beliefs about blocks; those of linear models are their engines'
Blocks = tuple[BlockBelief | SparseBelief, ...]


class SweepArrays(NamedTuple):
    """The arrays of a sweep: beliefs before it, and what it changes."""

    before: Array
    beliefs: Array
    sites: Array
    scale: Array


class GraphEngine:
    """Sweeps over all factors, alternately forward and backward."""

    pool: ThreadPool | None = None
    remedy = REMEDY

    def __init__(
        self, problem: GraphProblem, watch: LinearForm | None = None, by_parts: bool = True
    ) -> None:
        self.whole = problem
        self.n_sites = problem.model.n_factors
        priors = dict(enumerate(problem.priors))
        #: priors of blocks of matrices, by place
        self.dense = dense = {k: p for k, p in priors.items() if isinstance(p, BlockPrior)}
        self.order_of_matrices = max((prior.d for prior in dense.values()), default=0)
        self.evidence_bound = problem.evidence_bound
        #: engines of blocks that are linear models of their own, by place
        linear = problem.linear() if by_parts else {}
        self.linear = {
            place: LinearPart(dense[place], problem.model.batches[k], problem.schedule)
            for place, k in linear.items()
        }
        #: the rest of the problem, for the core
        self.problem = problem = problem.rest(linear)
        #: forms whose distance from their limit is the change. None: the moves of all variables
        self.watch = watch
        #: the last of these distances
        self.distance = FAR
        self.n_gaussians = problem.model.n_gaussians
        schedule = problem.schedule
        all_gaussian = problem.model.n_gaussians == len(problem.model.families)
        # long fits reach the same fixed point in fewer sweeps
        slow = watch is None and schedule.tol > 0.0
        self.limit: Limit | None = None
        if slow or (watch is not None and all_gaussian):
            self.limit = self._limit(SLOW if slow else FIRST)
        self.program = problem.program(problem.model.order())
        self.blocks = [k for k in range(len(problem.model.blocks)) if k not in self.linear]
        #: beliefs about blocks of matrices, which a sweep changes in place
        self.moving = {
            k: (np.array(prior.precision), np.array(prior.mean))
            for k, prior in dense.items()
            if k in self.blocks
        }
        self.about: list[About] = []
        self.batches: list[core.GraphBatch] = []
        first_site = 0
        #: batches with their factors in the order of updates
        self.in_order = list(map(Batch.select, problem.model.batches, self.program.rows))
        #: for each of them the places in the beliefs of the numbers of its sites
        self.site_places = [problem.site_places(batch)[0] for batch in self.in_order]
        # beliefs about forms over sparse blocks are after those of variables
        slot, first_factor = len(problem.prior), 0
        for batch in self.in_order:
            made, about = for_core(batch, problem, self.moving, slot)
            slot += 2 * sum(len(part.at) for part in about if part.slot is not None)
            factors = first_factor + np.arange(batch.n)
            self.about += [part._replace(at=first_site + part.at, of=factors) for part in about]
            self.batches.append(made)
            first_site += made.width
            first_factor += batch.n
        #: natural parameters of these beliefs, by which the next sweep begins
        self.slots = np.empty(slot - len(problem.prior))
        #: blocks with a sparse precision, by place
        self.sparse = {
            k: FormsOnPattern(prior, [part for part in self.about if part.block == k])
            for k, prior in priors.items()
            if isinstance(prior, SparseBlockPrior)
        }
        self.core, self.pieces = self._runs(self.program.segments)
        #: if all factors read the same beliefs, each batch is one run
        self.together = self._runs(
            np.array(
                [(k, 0, batch.n) for k, batch in enumerate(problem.model.batches)], dtype=np.intp
            ).reshape(-1, 3)
        )
        #: places in the beliefs of the belief about the last form over each block
        numbers = [prior.number for prior in problem.priors]
        first = problem.at[np.array(numbers, dtype=np.intp)]
        self.of_forms = (first[:, None] + np.arange(2)).ravel()
        self.others = problem.others()
        prior = problem.prior
        self.prior_partition = core.compare(prior, prior, problem.model.n_gaussians)[1]
        self.prior_partition += self.others.prior_partition(prior)
        self.block_priors = tuple(map(self._prior_of, range(len(problem.model.blocks))))
        of_blocks = (self.block_priors[k] for k in self.moving)
        self.prior_partition += sum(belief.partition for belief in of_blocks if belief is not None)
        #: whether all factors are updated together from the first sweep on
        self.starts_together = schedule.order == "parallel" or (
            problem.tied and schedule.batch is None
        )
        #: scratch for the beliefs before a sweep that changes them in place
        self.before = np.empty_like(prior)
        #: the posterior from which sweeps begin again if they diverge. None: from the priors
        self.start: GraphStart | None = None

    def _limit(self, first: int) -> Limit:
        return Limit(self.n_gaussians, first, TRIES if self.problem.sparse else 1)

    def _prior_of(self, k: int) -> BlockBelief | None:
        if k in self.sparse:  # it may be flat
            return None
        block = self.dense[k]
        if k in self.linear:  # its engine has the prior
            return BlockBelief(np.full_like(block.precision, np.nan), block.mean, 0.0)
        belief = prior_belief(block)
        assert belief is not None  # it was checked when the block was made
        return belief

    def _runs(self, segments: Index) -> tuple[core.Program, list[tuple[int, int, int]]]:
        """The core's program of these runs, and for each call its first run, end and factors."""
        sizes = np.cumsum(np.diff(segments[:, 1:]).ravel())
        if not len(sizes):
            return core.Program(self.batches, segments), []
        pieces = np.searchsorted(sizes, np.arange(0, sizes[-1], FACTORS_PER_CALL), "right")
        pieces[0] = 0
        ends = [*np.unique(pieces).tolist(), len(sizes)]
        return core.Program(self.batches, segments), [
            (a, b, int(sizes[b - 1] - (sizes[a - 1] if a else 0))) for a, b in pairwise(ends)
        ]

    @property
    def reasons(self) -> Counter[str]:
        """Why user-defined factors were refused, and how often."""
        counts: Counter[str] = Counter()
        for batch in self.batches:
            if isinstance(batch, core.PythonBatch):
                counts += batch.reasons
        return counts

    # ---- start and end ----

    def init(self, start: GraphStart | None) -> GraphState:
        self.start = start
        sites, scale = self._first_sites(), np.zeros(self.core.n_factors)
        prior = self.added_up(sites)
        state = GraphState(prior, sites, scale, 0, self.starts_together, blocks=self.block_priors)
        if start is None:
            linear = tuple(part.init(None, 0) for part in self.linear.values())
            return self._begun(state._replace(linear=linear))
        old: GraphState = start.state
        same = start.problem.is_that(self.whole)
        copies = {name: getattr(old, name).copy() for name in ("beliefs", "sites", "log_scale")}
        if same and self.problem.goes_on(start.problem):  # the same numbers to the last bit
            self.start = None
            return old._replace(**copies, linear=copy.deepcopy(old.linear))
        linear = tuple(self._resumed(part, start) for part in self.linear.values())
        if same:
            fresh = GraphState(**copies, sweeps=old.sweeps, together=self.starts_together)
            return fresh._replace(blocks=old.blocks, linear=linear)
        state = state._replace(linear=linear, sweeps=old.sweeps)
        if self.batches:
            sites, scale = kept_sites(self.problem, self.in_order, start)
            # the factor that excluded a category may have been removed
            categories = self.others.of_categories(len(state.beliefs))[self.places[0]]
            sites[categories & (sites < POSSIBLE)] = 0.0
        blocks, beliefs = self._of_blocks(state, sites), self.added_up(sites)
        if blocks is None or not self.is_proper(beliefs):
            return self._begun(state)
        return state._replace(beliefs=beliefs, sites=sites, log_scale=scale, blocks=blocks)

    def _first_sites(self) -> Array:
        """Sites before the first sweep: flat, unless this leaves a variable without moments."""
        problem, sites = self.problem, [np.empty(0)]
        for batch, places in zip(self.in_order, self.site_places, strict=True):
            with np.errstate(over="ignore"):
                given = batch.factor.first_sites(batch)
            sites.append(np.zeros(len(places)))
            if given is not None and problem.schedule.stores == "factor":
                flat = (problem.prior[places].reshape(-1, 2) == 0.0).all(axis=1)
                flat &= np.isfinite(given).all(axis=1)
                sites[-1] = np.where(flat[:, None], given, 0.0).ravel()
        first = np.concatenate(sites)
        # together they may leave it improper
        first[self.others.improper(problem.prior, self.added_up(first))[self.places[0]]] = 0.0
        return first

    def _begun(self, state: GraphState) -> GraphState:
        """The state, with wide messages to blocks with a sparse precision or a very wide prior."""
        return self._with_sparse(self._with_wide(state))

    def _with_sparse(self, state: GraphState) -> GraphState:
        """The state, with wide messages to blocks with a sparse precision."""
        if not self.sparse:
            return state
        sites = state.sites.copy()
        for about in self.about:
            if about.block in self.sparse:
                known = np.isfinite(about.first).all(axis=1, keepdims=True)
                sites[about.at], sites[about.at + 1] = np.where(known, about.first, 0.0).T
        return self.complete(state._replace(sites=sites))

    def complete(self, state: GraphState) -> GraphState:
        """The state, with beliefs about blocks with a sparse precision as the sites make them."""
        blocks = list(state.blocks)
        for k, forms in self.sparse.items():
            blocks[k] = forms.built(state.sites)
            if blocks[k] is None:
                raise ValueError(
                    f"the belief about variable {self.problem.priors[k].number}, a block of shape "
                    f"({forms.prior.d},), is not positive definite to rounding: its prior and its "
                    "factors leave something undetermined; allowed: finite variances, or more "
                    "factors"
                )
        return state._replace(blocks=tuple(blocks))

    def _with_wide(self, state: GraphState) -> GraphState:
        """The state, with wide messages to blocks whose priors are very wide."""
        problem = self.problem
        if problem.schedule.stores == "none":
            return state
        wide = [k for k in self.moving if is_wide(self.dense[k], k, self.about)]
        if not wide:
            return state
        sites, blocks = state.sites.copy(), list(state.blocks)
        for about in self.about:
            if about.block in wide:
                sites[about.at], sites[about.at + 1] = about.first.T
        for k in wide:
            precision, shift = natural(self.dense[k], k, self.about, sites)
            block = belief_of(precision, shift)
            if block is None:
                return state
            blocks[k] = block
        return state._replace(sites=sites, blocks=tuple(blocks))

    def _resumed(self, part: LinearPart, start: GraphStart) -> LinearState:
        """The state of a linear model with its sites in an earlier posterior."""
        alone = self.problem.having((part.batch,))
        kept = None if self.problem.tied else kept_sites(alone, (part.batch,), start)
        return part.init(kept, start.state.sweeps)

    def _of_blocks(self, state: GraphState, sites: Array) -> Blocks | None:
        """Beliefs about blocks as priors times sites. None if one is improper.

        Beliefs about linear models are unchanged, since their engines have them.
        """
        blocks: list[BlockBelief | SparseBelief] = []
        for k, old in enumerate(state.blocks):
            belief = old
            if k in self.sparse:
                forms = self.sparse[k]
                belief = forms.built(sites) if forms.n or old is None else old
            elif k in self.moving and self.problem.schedule.stores == "none":
                belief = belief_from(*self.moving[k])
            elif k in self.moving:
                belief = believed(self.dense[k], k, self.about, sites)
            if belief is None:
                return None
            blocks.append(belief)
        return tuple(blocks)

    @cached_property
    def sharp(self) -> bool:
        """Whether moments of some factors change sharply, as those of quick Laplace."""
        factors = [batch.factor for batch in self.problem.model.batches]
        return any(isinstance(factor, LinearFactor) and factor.sharp for factor in factors)

    @cached_property
    def places(self) -> tuple[Index, Array | None]:
        """For each number of the sites its place in the beliefs, and its weight. None: 1."""
        where = np.concatenate([np.empty(0, dtype=np.intp), *self.site_places])
        if not self.problem.tied:
            return where, None
        counts = np.array([batch.n for batch in self.problem.model.batches], dtype=np.float64)
        return where, np.repeat(counts, list(map(len, self.site_places)))

    def added_up(self, sites: Array) -> Array:
        """Beliefs as the sum of priors and sites."""
        places, times = self.places
        prior, weights = self.problem.prior, sites if times is None else sites * times
        return np.asarray(prior + np.bincount(places, weights, len(prior)))

    def is_proper(self, beliefs: Array) -> bool:
        """Whether every variable that has a proper prior has a proper belief."""
        return self.problem.is_proper(beliefs, self.others)

    def finish(self, state: GraphState, hurry: bool = False) -> GraphState:
        """Recompute beliefs from priors and sites if sweeps diverge or were interrupted."""
        blocks = list(state.blocks)
        for (k, part), linear in zip(self.linear.items(), state.linear, strict=True):
            blocks[k] = part.belief(linear, hurry)
        state = state._replace(blocks=tuple(blocks))
        if self.problem.schedule.stores == "none" or (state.change <= DIVERGES and not hurry):
            return state
        places, times = self.places
        sites = state.sites if times is None else state.sites * times
        total, size = self.problem.added_up(state.beliefs, places, sites)
        total[self.of_forms] = state.beliefs[self.of_forms]
        if (np.abs(total - state.beliefs) <= DRIFT * size + 1e-300).all():
            return state
        return state._replace(beliefs=total) if self.is_proper(total) else state

    def summary(self, state: GraphState, evidence: bool = True) -> Summary:
        n = self.n_gaussians
        precision, shift = state.beliefs[: 2 * n].reshape(n, 2).T
        beliefs = state.all_blocks
        blocks = [beliefs[k] for k in self.blocks]
        with np.errstate(all="ignore"):
            mean, variance = shift / precision, 1.0 / precision
        return Summary(
            np.concatenate([mean, *(block.summary.mean for block in blocks)]),
            np.concatenate([variance, *(block.summary.variance for block in blocks)]),
        )

    # ---- sweep ----

    def sweep(
        self, state: GraphState, keep: bool, tick: Tick, summary: Summary | None = None
    ) -> Swept[GraphState]:
        swept = self._sweep(state, keep, tick)
        if not self.linear:
            return swept
        pairs = zip(self.linear.values(), state.linear, strict=True)
        others = [part.sweep(old, keep, tick) for part, old in pairs]
        every: list[Swept[GraphState] | Swept[LinearState]] = [swept, *others]
        counts = (part.counts for part in every)
        refused, failed = map(sum, zip(*(count[:2] for count in counts), strict=True))
        return swept._replace(
            state=swept.state._replace(linear=tuple(part.state for part in others)),
            change=max(part.change for part in every),
            log_evidence=sum(part.log_evidence for part in every),
            counts=Counts(refused, failed),
            settled=False if any(part.settled is False for part in others) else swept.settled,
        )

    def _sweep(self, state: GraphState, keep: bool, tick: Tick) -> Swept[GraphState]:
        """One sweep of the factors of the core."""
        if not self.batches:
            evidence = sum(state.all_blocks[k].partition for k in self.sparse)
            return Swept(state._replace(sweeps=state.sweeps + 1), 0.0, evidence)
        schedule, in_order = self.problem.schedule, self._is_in_order(state)
        work, looks = self._begin(state, keep), state.together
        if in_order:
            looks = self._to_the_limit(state, work.beliefs, work.sites, work.scale)
        work, pace = self._run(state, work, tick)
        refused, failed = self.core.counts()
        self._refuse_the_impossible()
        self.remedy = remedy_for(self.reasons, state.damping)
        blocks, settled = state.all_blocks, None
        # one direction may move nothing and the next one much, if moments change sharply
        most = schedule.tol * schedule.damping * state.damping
        if self.sharp and in_order and state.change > most:
            settled = False
        if state.together or self.blocks:
            work, blocks, whole = self._accepted(state, work)
            settled = settled if whole else False
        if self.others.excludes_all(work.beliefs):  # the next sweep names the factor
            settled = False
        moved, partition = self._measure(state, work, blocks, pace)
        distance = moved if self.watch is None else self._watched(work, moved, looks)
        new = self._next(state, work, blocks, pace, moved, distance)
        return Swept(
            new,
            distance / (state.damping * schedule.damping),
            partition - self.prior_partition + float(work.scale.sum()),
            Counts(refused, failed),
            settled=settled,
            damping=state.damping,
        )

    def _is_in_order(self, state: GraphState) -> bool:
        """Whether factors are updated one after the other, and have sites."""
        return not state.together and self.problem.schedule.stores != "none"

    def _damping(self, state: GraphState) -> float:
        """Of the updates of a sweep."""
        shared = state.together and not self.starts_together
        damping: float = self.problem.schedule.damping * state.damping
        return damping * SHARED_DAMPING if shared else damping

    def _begin(self, state: GraphState, keep: bool) -> SweepArrays:
        """The arrays of the sweep: copies, or those of the state if it is not needed again."""
        stores = self.problem.schedule.stores != "none"
        if self._is_in_order(state) and not keep and not self.blocks:
            # between two runs beliefs are the sums of priors and sites
            np.copyto(self.before, state.beliefs)
            work = SweepArrays(self.before, state.beliefs, state.sites, state.log_scale)
        else:
            copies = (x.copy() for x in (state.beliefs, state.sites, state.log_scale))
            work = SweepArrays(state.beliefs, *copies)
        if state.sweeps and state.sweeps % REFRESH == 0 and stores:
            np.copyto(work.beliefs, self.added_up(work.sites))
        if not stores:
            work.sites[:] = work.scale[:] = 0.0
        self._move_blocks(state.all_blocks)
        return work

    def _run(self, state: GraphState, work: SweepArrays, tick: Tick) -> tuple[SweepArrays, Pace]:
        """Update all factors once."""
        schedule, damping = self.problem.schedule, self._damping(state)
        before, beliefs, sites, scale = work
        backward = state.sweeps % 2 == 1 and schedule.stores != "none"
        forms = len(self.slots) > 0
        if forms:
            beliefs = np.concatenate([beliefs, self.slots])
        old = (sites.copy(), scale.copy()) if forms else (sites, scale)
        # if all factors are updated together, they read the old beliefs and sites
        read, old_sites = (beliefs.copy(), sites.copy()) if state.together else (beliefs, sites)
        arrays = backward, read, beliefs, old_sites, sites, scale, schedule.power, damping
        program, pieces = self.together if state.together else (self.core, self.pieces)
        for first, stop, count in pieces[::-1] if backward else pieces:
            program.run(first, stop, *arrays)
            tick(count)
        if not forms:
            return work, state.pace
        pace = self._paced(state.pace, old, sites, scale)
        return work._replace(beliefs=beliefs[: len(before)].copy()), pace

    def _measure(
        self, state: GraphState, work: SweepArrays, blocks: Blocks, pace: Pace
    ) -> tuple[float, float]:
        """How far the sweep moved beliefs, and the sum of their log partition functions.

        Beliefs that lost digits are recomputed, in place.
        """
        before, beliefs, sites, _ = work
        distance, partition = core.compare(before, beliefs, self.n_gaussians)
        distance = float(np.maximum(distance, self.others.change(before, beliefs)))
        if distance > LOSING and self.problem.schedule.stores != "none":
            anew = self.added_up(sites)
            if self.is_proper(anew):
                np.copyto(beliefs, anew)
                _, partition = core.compare(before, beliefs, self.n_gaussians)
        old = state.all_blocks
        for k in self.blocks:
            moved = change(old[k].summary, blocks[k].summary)
            moved /= pace.share if k in self.sparse else 1.0
            distance = float(np.maximum(distance, moved))
        partition += self.others.partition(beliefs)
        partition += sum(blocks[k].partition for k in self.blocks)
        return distance, partition

    def _watched(self, work: SweepArrays, moved: float, looks: bool) -> float:
        """How far watched forms moved, or beliefs where these are not looked at."""
        assert self.watch is not None
        if not looks:
            return max(moved, self.distance)
        terms = self.watch.terms
        places = self.problem.at[terms.variables]
        self.distance = core.compare_forms(
            work.before, work.beliefs, terms.starts, places, terms.coefficient
        )
        return self.distance

    def _next(
        self,
        state: GraphState,
        work: SweepArrays,
        blocks: Blocks,
        pace: Pace,
        moved: float,
        distance: float,
    ) -> GraphState:
        """The state after the sweep, or the start of the fit where sweeps diverge."""
        schedule, together = self.problem.schedule, state.together
        # in a cycle moves decrease as often as they increase. Sequential sweeps go forward and
        # backward, and are compared with those of the same direction
        more = moved > state.moves[1 if together else 0]
        grown = state.grown + 2 if more else max(0, state.grown - 1)
        diverges = grown >= 2 * MOST_GROWTHS and schedule.stores != "none"
        if diverges and together and not self.problem.tied:
            logger.info("parallel updates diverge: sequential updates from now on")
            together, diverges, grown = False, False, 0
        if self.problem.tied and distance > 0.5 * state.change:
            together = True
        new = GraphState(
            work.beliefs,
            work.sites,
            work.scale,
            state.sweeps + 1,
            together,
            distance,
            (state.moves[1], moved),
            grown,
            damping=state.damping,
            blocks=blocks,
            pace=pace,
        )
        restless = moved > RESTLESS and grown * self._damping(state) >= 2 * MOST_RESTLESS
        return self._begun_again(new) if diverges and (moved > ASTRAY or restless) else new

    def _paced(self, pace: Pace, begun: tuple[Array, Array], sites: Array, scale: Array) -> Pace:
        """Take a share of the change of the sites of forms over sparse blocks, in place.

        All of these are fitted to one belief, so that their changes may overshoot together. begun:
        sites and scales before the sweep.
        """
        parts = [part for part in self.about if part.slot is not None]
        at, slot, of = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("at", "slot", "of")
        )
        precision, shift = (self.slots[slot - len(self.problem.prior) + k] for k in (0, 1))
        old, new = (Sites(x[at], x[at + 1], y[of]) for x, y in (begun, (sites, scale)))
        with np.errstate(all="ignore"):  # of sweeps that diverge
            pace = paced(pace, old, new, shift / precision, 1.0 / precision)
        sites[at], sites[at + 1], scale[of] = new
        return pace

    def _begun_again(self, state: GraphState) -> GraphState:
        """The start of the fit, for sweeps with more damping."""
        damping = LESS * state.damping
        text = "sweep %d: updates diverge, they begin again with damping %.3g"
        logger.info(text, state.sweeps, self.problem.schedule.damping * damping)
        if self.limit is not None:
            self.limit = self._limit(state.sweeps + FIRST)
        begun = self.init(self.start)
        return state._replace(
            beliefs=begun.beliefs,
            sites=begun.sites,
            log_scale=begun.log_scale,
            blocks=begun.blocks,
            moves=(math.inf, math.inf),
            grown=0,
            damping=damping,
            pace=Pace(),
        )

    def _refuse_the_impossible(self) -> None:
        """Raise if a factor excludes all values that its neighbours' beliefs allow."""
        triples = zip(self.problem.model.batches, self.program.rows, self.batches, strict=True)
        for batch, rows, made in triples:
            if made.impossible:
                at = rows[made.impossible - 1]
                raise ValueError(
                    f"the evidence is 0: factor {batch.rows[at]} of batch "
                    f"{batch.key_of_each[at]}, a "
                    f"{type(batch.factor).__name__}, excludes all values that the priors and the "
                    "other factors allow; allowed: priors, tables and observations that some "
                    "values of the variables fulfil (for example small numbers in place of 0)"
                )

    def _move_blocks(self, blocks: Blocks) -> None:
        """Set the beliefs about blocks at which the next sweep begins."""
        for k, (covariance, mean) in self.moving.items():
            np.copyto(covariance, blocks[k].covariance)
            np.copyto(mean, blocks[k].mean)
        for k, forms in self.sparse.items():
            at = forms.slot - len(self.problem.prior)
            belief = blocks[k]
            assert isinstance(belief, SparseBelief)
            self.slots[at], self.slots[at + 1] = forms.beliefs(belief).T

    def _to_the_limit(self, state: GraphState, beliefs: Array, sites: Array, scale: Array) -> bool:
        """Extrapolate to the limit of the sweeps when it is due. Whether to compare watched forms.

        Beliefs remain the sums of priors and sites.
        """
        if self.limit is None or self.limit.tries < 1:
            return state.sweeps % WATCHED == 0 and state.sweeps > 0
        self.limit, limit = self.limit.push(state.sweeps, beliefs, sites, scale)
        if limit is None or not self.is_proper(limit[0]):
            return False
        blocks = self._of_blocks(state, limit[1])
        if blocks is None:
            return False
        self._move_blocks(blocks)
        np.copyto(beliefs, limit[0])
        np.copyto(sites, limit[1])
        np.copyto(scale, limit[2])
        return True

    def one_step_ahead(self) -> dict[int, Array]:
        """For each batch log Z of its factors, in one sequential pass."""
        state = self.init(None)
        log_z = np.full(self.core.n_factors, np.nan)
        beliefs, sites, scale = state.beliefs, state.sites, state.log_scale
        for first, stop, _ in self.pieces:
            self.core.run(
                first, stop, False, beliefs, beliefs, sites, sites, scale, 1.0, 1.0, log_z
            )
        self._refuse_the_impossible()
        row = np.concatenate([batch.rows for batch in self.in_order])
        groups = by_key(np.concatenate([batch.key_of_each for batch in self.in_order]))
        return {key: log_z[which[np.argsort(row[which])]] for key, which in groups.items()}

    def _accepted(self, state: GraphState, work: SweepArrays) -> tuple[SweepArrays, Blocks, bool]:
        """The result of a sweep if it is proper, else after halving the step until it is.

        Returns it, beliefs about blocks, and whether it was the whole step.
        """
        before, beliefs, sites, _ = work
        beliefs[self.of_forms] = np.tile([1.0, 0.0], len(self.of_forms) // 2)
        share = 1.0
        while True:
            blocks = self._of_blocks(state, sites) if self.is_proper(beliefs) else None
            if blocks is not None:
                return work._replace(beliefs=beliefs, sites=sites), blocks, share == 1.0
            share *= 0.5
            if share < 0.5**HALVINGS:
                return work._replace(beliefs=before, sites=state.sites), state.all_blocks, False
            sites = state.sites + 0.5 * (sites - state.sites)
            beliefs = before + 0.5 * (beliefs - before)

"""What a fit of a graph is made of: model, schedule, priors in effect, order of the sites."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks
from epfast._arrays import AnyArray, Array
from epfast._core.graph import compare, runs
from epfast.gaussian.forms.sparse import Pace
from epfast.gaussian.shards import WarmStart
from epfast.graph.beliefs import BlockBelief, SparseBelief
from epfast.graph.blocks import BlockPrior, LinearState, is_linear
from epfast.graph.catalogue.linear import LinearFactor
from epfast.graph.factors import Batch, Edges
from epfast.graph.marginals import Others
from epfast.graph.model import CATEGORICAL, GraphModel
from epfast.graph.sparse_blocks import SparseBlockPrior, prior_in_effect
from epfast.graph.variables import Index, Terms, ends
from epfast.inference import DataWarning
from epfast.inference.records import warn_user
from epfast.inference.report import note_working
from epfast.schedules import ADF, AEP, EP, SEP, FilledSchedule, Schedule

#: rounding of the log evidence for each factor
ROUNDING = 1e-8
#: orders of EP
ORDERS = ("auto", "sequential", "parallel")


def places(families: NDArray[np.int8], sizes: Index) -> Index:
    """Where the natural parameters of each variable begin, (n + 1,). The last is their total.

    Scalar Gaussians come first, then the other variables, in the order of their numbers. sizes: how
    many natural parameters each has.
    """
    order = np.argsort(families != 0, kind="stable")
    at = np.empty(len(families) + 1, dtype=np.intp)
    at[order] = np.concatenate([[0], np.cumsum(sizes[order])])[:-1]
    at[-1] = sizes.sum()
    return at


def priors_in_effect(model: GraphModel, at: Index) -> Array:
    """Natural parameters of the priors, given the batches, in the order of ``at``.

    A variable that a walk defines has a flat prior. A categorical variable without a prior has a
    flat one if a factor of categorical and Dirichlet variables alone is about it, and equal
    probabilities otherwise.
    """
    families, sizes = model.families, model.sizes
    prior = np.empty(at[-1])
    prior[np.repeat(at[:-1] - ends(sizes)[:-1], sizes) + np.arange(at[-1])] = model.natural
    known = families != CATEGORICAL
    for batch in model.joined:
        if batch.defined is not None:
            prior[at[batch.defined]] = prior[at[batch.defined] + 1] = 0.0
        variables, starts = batch.terms.variables, batch.terms.starts
        alone = np.logical_and.reduceat(families[variables] >= CATEGORICAL, starts[:-1])
        known[variables[np.repeat(alone, batch.terms.counts)]] = True
    for k in np.unique(sizes[~known]):
        inner = at[np.flatnonzero(~known & (sizes == k)), None] + np.arange(k)
        prior[inner[~prior[inner].any(axis=1)]] = -math.log(k)
    return prior


def legal(schedule: Schedule | FilledSchedule) -> FilledSchedule:
    """The schedule with its numbers filled in. Raises if a graph cannot have such sweeps."""
    if not isinstance(schedule, EP | ADF | SEP | AEP):
        _checks.schedule(schedule, EP, "epfast.EP(), ADF(), SEP() or AEP()")
    if type(schedule).visits is not Schedule.visits:
        raise ValueError(
            f"schedule is {type(schedule).__name__}, which overrides visits(); allowed for a "
            f"graph: order = {', '.join(map(repr, ORDERS))}"
        )
    orders = ("auto", "sequential") if schedule.stores != "factor" else ORDERS
    if schedule.order not in (None, *orders):
        raise ValueError(
            f"order is {schedule.order!r}; allowed for a graph: {' or '.join(map(repr, orders))}"
        )
    for name in ("block", "site_rule", "refresh", "warm_up"):
        if getattr(schedule, name, None) not in (None, 0):
            raise ValueError(f"{name} is {getattr(schedule, name)!r}; allowed for a graph: None")
    batch = getattr(schedule, "batch", None)
    if batch not in (None, 1):
        raise ValueError(
            f"batch is {batch}; allowed for a graph: 1, or AEP() for all factors at once"
        )
    return schedule.filled(power=1.0, damping=schedule.usual_damping("row"))


def has_one_set(terms: Terms) -> bool:
    """Whether all factors have the same variables."""
    first = terms.variables[: terms.starts[1]]
    n = len(terms.starts) - 1
    return len(terms.variables) == n * len(first) and bool(
        (terms.variables.reshape(n, -1) == first).all()
    )


def numbers_of_prior(prior: BlockPrior | SparseBlockPrior) -> tuple[AnyArray, ...]:
    """The numbers of the prior of a block, as arrays."""
    if isinstance(prior, BlockPrior):
        return prior.precision, prior.mean
    P = prior.precision
    return P.data, P.indices, P.indptr, prior.mean


class GraphState(NamedTuple):
    """Beliefs and sites as plain arrays. Sites are in the order of the program."""

    #: natural parameters of all variables
    beliefs: Array
    #: natural parameters of all sites
    sites: Array
    #: (n_factors,)
    log_scale: Array
    #: sweeps done so far
    sweeps: int
    #: whether the next sweep updates all factors from the same beliefs
    together: bool = False
    #: change of the last sweep, and moves of the last two sweeps
    change: float = math.inf
    moves: tuple[float, float] = (math.inf, math.inf)
    #: twice the number of increases of the move, less its decreases since
    grown: int = 0
    #: damping beside that of the schedule, which is lower after sweeps that diverged
    damping: float = 1.0
    #: beliefs about blocks. None: it is yet to be made of the sites, as in a file
    blocks: tuple[BlockBelief | SparseBelief | None, ...] = ()
    #: states of blocks that are linear models, see :class:`epfast.graph.blocks.LinearPart`
    linear: tuple[LinearState, ...] = ()
    #: their sites in a file, which states follow from
    starts: tuple[WarmStart, ...] = ()
    #: of forms over blocks with a sparse precision
    pace: Pace = Pace()

    @property
    def all_blocks(self) -> tuple[BlockBelief | SparseBelief, ...]:
        """Beliefs about all blocks, which a state has from its completion on."""
        beliefs = tuple(belief for belief in self.blocks if belief is not None)
        assert len(beliefs) == len(self.blocks)
        return beliefs


class UpdateOrder(NamedTuple):
    """The order of a sweep: sorted rows of each batch, and runs of independent factors."""

    #: for each batch its rows in the order of the program
    rows: tuple[Index, ...]
    #: (n_runs, 3): batch, first row and end of each run, among the sorted rows
    segments: Index


class GraphProblem(NamedTuple):
    """What a fit is made of: a model, a schedule and the priors in effect. See :func:`ready`."""

    model: GraphModel
    schedule: FilledSchedule
    #: (n_variables + 1,), see :func:`places`
    at: Index
    #: natural parameters of the priors, in that order
    prior: Array
    #: priors of blocks, of sparse ones times the Gaussian factors about them
    priors: tuple[BlockPrior | SparseBlockPrior, ...] = ()
    #: keys of the batches of these factors
    in_priors: tuple[int, ...] = ()

    def with_priors(self) -> GraphProblem:
        """The problem with the priors of blocks, and the batches that these have in them."""
        model, own = self.model, dict[int, list[Batch]]()
        for batch in model.batches if model.blocks else ():
            own.setdefault(batch.block, []).append(batch)
        found = [prior_in_effect(block, own.get(block.number, [])) for block in model.blocks]
        keys = tuple(key for _, batches in found for key in batches)
        return self._replace(priors=tuple(prior for prior, _ in found), in_priors=keys)

    @property
    def sparse(self) -> set[int]:
        """Numbers of the blocks with a sparse precision."""
        return {prior.number for prior in self.priors if isinstance(prior, SparseBlockPrior)}

    def linear(self) -> dict[int, int]:
        """Blocks that are linear models of their own, by place, with the batch of each.

        ADF has none, since its single pass keeps the order of the graph.
        """
        batch_of: dict[int, int] = {}
        if self.schedule.stores == "none":
            return batch_of
        for place, block in enumerate(self.priors):
            if isinstance(block, SparseBlockPrior):
                continue
            about = [
                k
                for k, batch in enumerate(self.model.batches)
                if any(part.block == block.number for part in batch.parts)
            ]
            if len(about) == 1 and is_linear(self.model.batches[about[0]], self.schedule):
                batch_of[place] = about[0]
        return batch_of

    def rest(self, linear: dict[int, int]) -> GraphProblem:
        """The problem without the batches of linear models, and those that priors have.

        Its batches are joined.
        """
        gone = {self.model.batches[k].key for k in linear.values()} | set(self.in_priors)
        return self.having(tuple(one for one in self.model.joined if one.key not in gone))

    def having(self, batches: tuple[Batch, ...]) -> GraphProblem:
        """The problem with these batches alone."""
        return self._replace(model=self.model._replace(batches=batches, joined=batches))

    def seen(self) -> NDArray[np.bool_]:
        """Which variables have factors."""
        seen = np.zeros(len(self.model.families), dtype=bool)
        for batch in self.model.joined:
            seen[batch.terms.variables] = True
        return seen

    def check(self) -> None:
        """Refuse graphs that cannot become proper."""
        seen = self.seen()
        # zeros are a uniform prior of beta, categorical and Dirichlet variables, and proper
        may = np.flatnonzero(self.model.families <= 1)
        flat = np.zeros(len(seen), dtype=bool)
        flat[may] = (self.prior[self.at[may]] == 0.0) & (self.prior[self.at[may] + 1] == 0.0)
        if (flat & ~seen).any():
            raise ValueError(
                f"{(flat & ~seen).sum()} variables have neither a prior nor a factor; allowed: "
                "a finite variance, or factors about them"
            )

    def check_schedule(self) -> None:
        """Refuse schedules that the factors do not support."""
        for batch in self.model.joined:
            batch.factor.check_schedule(batch, self.schedule)
        sparse = self.sparse if self.schedule.stores != "factor" else set()
        for batch in self.model.batches if sparse else ():
            over = any(part.block in sparse for part in batch.parts)
            if over and batch.key not in self.in_priors:
                raise ValueError(
                    f"schedule is {_checks.describe(self.schedule)}; allowed with batch "
                    f"{batch.key}, whose forms are over a block with a sparse precision: EP()"
                )
        linear = self.linear().values() if self.tied else ()
        for k, batch in enumerate(self.model.batches if self.tied else ()):
            if batch.key in self.in_priors:
                continue
            name = type(self.schedule).__name__
            given = f"schedule is {name}, where the factors of a batch share a site; allowed"
            if not (k in linear if batch.parts else has_one_set(batch.terms)):
                raise ValueError(
                    f"{given}: batches whose factors all have the same scalar "
                    "variables, batches of losses of forms X @ w over a block of their own, or EP()"
                )

    def warn(self) -> None:
        """Warn of variables without factors, and where EP stays at its start."""
        seen = self.seen()
        for reason in self.symmetries():
            warn_user(reason, DataWarning)
        factors = [batch.factor for batch in self.model.joined]
        found = [factor.loss for factor in factors if isinstance(factor, LinearFactor)]
        for loss in {repr(one): one for one in found}.values():
            note_working(loss)
        if not seen.all():
            warn_user(
                f"{(~seen).sum()} of {len(seen)} variables have no factors, and their posterior is "
                "their prior",
                DataWarning,
            )

    def symmetries(self) -> list[str]:
        """Why EP stays at its start although this is not a mode, each reason once."""
        n, batches = len(self.model.families), self.model.joined
        everything = np.ones(n, dtype=bool)
        stays = [batch.factor.symmetry(batch, self.prior_of, everything) != "" for batch in batches]
        kinds = {type(batch.factor) for batch in batches}
        #: for each kind which variables have factors that break its symmetry: those of other
        #: kinds, and its own that have none
        broken = {kind: np.zeros(n, dtype=bool) for kind in kinds}
        for batch, same in zip(batches, stays, strict=True):
            for kind in kinds - ({type(batch.factor)} if same else set()):
                broken[kind][batch.terms.variables] = True
        reasons = (
            batch.factor.symmetry(batch, self.prior_of, ~broken[type(batch.factor)])
            for batch, same in zip(batches, stays, strict=True)
            if same
        )
        return [reason for reason in dict.fromkeys(reasons) if reason]

    @property
    def tied(self) -> bool:
        """Whether the factors of a batch share a site."""
        return bool(self.schedule.stores == "shared")

    def is_that(self, other: GraphProblem) -> bool:
        """Whether another problem has the same variables, factors and kinds of sites."""
        if self is other:
            return True

        def numbers(problem: GraphProblem) -> list[ArrayLike]:
            model = problem.model
            parts: list[ArrayLike] = [problem.tied, list(problem.linear().items()), problem.at]
            parts += [model.families, problem.prior, model.times]
            parts += [part for block in model.blocks for part in numbers_of_prior(block)]
            for batch in model.joined:
                parts += [batch.key_of_each, batch.rows, *batch.terms[:2]]
            return parts

        mine, others = numbers(self), numbers(other)
        return len(mine) == len(others) and all(map(np.array_equal, mine, others))

    def goes_on(self, other: GraphProblem) -> bool:
        """Whether the schedules are equal, except in the number of sweeps and the tolerance."""
        mine, others = (
            {name: value for name, value in vars(x).items() if name not in ("sweeps", "tol")}
            for x in (self.schedule, other.schedule)
        )
        return type(self.schedule) is type(other.schedule) and mine == others

    def prior_of(self, variables: Index) -> Array:
        """Natural parameters of the priors of variables with k of them each, (n, k)."""
        k = self.model.sizes[variables[0]] if len(variables) else 2
        return np.asarray(self.prior[self.at[variables][:, None] + np.arange(k)])

    def site_places(self, batch: Batch) -> tuple[Index, Index]:
        """Places in the beliefs of the numbers of the sites of a batch, and where sites begin."""
        terms = batch.terms.select(slice(0, 1)) if self.tied else batch.terms
        sizes = self.model.sizes[terms.variables]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        inner = np.arange(ends[-1]) - np.repeat(ends[:-1], sizes)
        return np.repeat(self.at[terms.variables], sizes) + inner, ends[terms.starts]

    def added_up(self, beliefs: Array, where: Index, sites: Array) -> tuple[Array, Array]:
        """Priors plus sites, and the size of what was summed, for a bound of the rounding error.

        Removed sites leave rounding errors. Up to 1e-3 standard deviations are harmless.
        """
        n, length = 2 * self.model.n_gaussians, len(self.prior)
        total = self.prior + np.bincount(where, sites, length)
        size: Array = np.abs(self.prior)
        size += np.bincount(where, np.abs(sites), length).astype(np.float64)
        size[1:n:2] += 1e3 * np.sqrt(np.maximum(beliefs[:n:2], 0.0))
        return total, size

    def edges(self, batch: Batch) -> Edges:
        """Neighbours of a batch for the core, where a form over a block is a Gaussian variable."""
        variables = batch.terms.variables
        kind = np.maximum(self.model.families[variables], 0).astype(np.intc)
        return Edges(batch.terms.starts, self.at[variables], kind, self.model.sizes[variables])

    def numbers(self, batch: Batch) -> Index:
        """How many numbers the site of each factor of a batch has."""
        return np.add.reduceat(self.model.sizes[batch.terms.variables], batch.terms.starts[:-1])

    def others(self) -> Others:
        """All variables other than scalar Gaussians."""
        return Others.of(self.model.families, self.model.sizes, self.at[:-1])

    def is_proper(self, beliefs: Array, others: Others) -> bool:
        """Whether every variable that has a proper prior has a proper belief."""
        n = self.model.n_gaussians
        precision, prior = beliefs[: 2 * n : 2], self.prior[: 2 * n : 2]
        gaussian = bool(np.where(prior > 0.0, precision > 0.0, precision >= 0.0).all())
        return gaussian and not others.improper(self.prior, beliefs).any()

    def evidence(self, state: GraphState) -> float:
        """EP's log p(y) of a state, without the contribution of blocks."""
        others, n = self.others(), self.model.n_gaussians
        after, before = (
            compare(eta, eta, n)[1] + partition(eta)
            for eta, partition in (
                (state.beliefs, others.partition),
                (self.prior, others.prior_partition),
            )
        )
        return float(after - before + state.log_scale.sum())

    @property
    def evidence_bound(self) -> float:
        """The largest possible log evidence: the log of the mass of the priors, or inf."""
        pairs = self.prior[self.at[np.flatnonzero(self.model.families < 2), None] + np.arange(2)]
        if not pairs.any(axis=1).all() or not all(batch.bounded for batch in self.model.joined):
            return math.inf
        if not all(prior.precision.diagonal().all() for prior in self.priors):
            return math.inf
        others = self.others()
        mass = others.partition(self.prior) - others.prior_partition(self.prior)
        return ROUNDING * self.model.n_factors + mass

    def program(self, order: Index) -> UpdateOrder:
        """Runs of factors without a common variable, for a sequential order. O(edges).

        Factors of forms over a block are updated one after the other within a run.
        """
        batches = self.model.batches
        if not batches:
            return UpdateOrder((), np.empty((0, 3), dtype=np.intp))
        counts = np.concatenate([batch.terms.counts for batch in batches])
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
        variables = np.concatenate([batch.terms.variables for batch in batches])
        n = len(self.model.families)
        sparse = self.sparse
        alone = np.isin(variables, list(sparse))  # such forms are updated from the same belief
        variables[alone] = n + np.arange(alone.sum())
        n += int(alone.sum())
        first = np.concatenate([[0], np.cumsum([batch.n for batch in batches])]).astype(np.intp)
        kind = np.zeros(first[-1], dtype=np.uint8)
        for a, batch in zip(first, batches, strict=False):
            if batch.labels is not None:
                kind[a : a + batch.n] = batch.labels
        dense = [any(part.block not in sparse for part in batch.parts) for batch in batches]
        in_order = np.array(dense, dtype=np.uint8)
        rows, segments = runs(starts, variables, order, first, n, kind, in_order)
        return UpdateOrder(tuple(rows[a:b] - a for a, b in pairwise(first)), segments)


def ready(model: GraphModel, schedule: FilledSchedule) -> GraphProblem:
    """What a fit of a model is made of. Raises if beliefs cannot become proper."""
    if not model.batches:
        raise ValueError("the graph has no factors; allowed: one or more, by add()")
    at, model = places(model.families, model.sizes), model.for_fit(schedule.stores == "shared")
    problem = GraphProblem(model, schedule, at, priors_in_effect(model, at)).with_priors()
    problem.check()
    problem.check_schedule()
    problem.warn()
    return problem

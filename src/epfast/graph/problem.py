"""A graph as it is fitted: variables, batches of factors, schedule, order of the sites."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast._arrays import AnyArray, Array
from epfast._core.graph import compare, runs
from epfast.families import FAMILIES
from epfast.gaussian.forms.sparse import Pace
from epfast.graph.arguments import Argument, form_of
from epfast.graph.blocks import BlockPrior, is_linear
from epfast.graph.factors import Batch, Edges
from epfast.graph.marginals import Others
from epfast.graph.sparse_blocks import SparseBlockPrior, prior_in_effect
from epfast.graph.variables import Block, Index, Linear, LinearForm, Terms, Variables, ends
from epfast.inference import DataWarning
from epfast.inference.records import warn_user
from epfast.inference.report import note_working
from epfast.schedules import ADF, AEP, EP, SEP, FilledSchedule, Schedule

#: number of blocks in place of a family, since their beliefs are stored separately
BLOCK = -1
CATEGORICAL, DIRICHLET = map(list(FAMILIES).index, ("categorical", "dirichlet"))
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


def priors_in_effect(problem: GraphProblem, at: Index) -> Array:
    """Natural parameters of the priors, given the batches, in the order of ``at``.

    A variable that a walk defines has a flat prior. A categorical variable without a prior has a
    flat one if a factor of categorical and Dirichlet variables alone is about it, and equal
    probabilities otherwise.
    """
    families, sizes = problem.families, problem.sizes
    prior = np.empty(at[-1])
    prior[np.repeat(at[:-1] - ends(sizes)[:-1], sizes) + np.arange(at[-1])] = problem.given
    known = families != CATEGORICAL
    for batch in problem.batches:
        if batch.defined is not None:
            prior[at[batch.defined]] = prior[at[batch.defined] + 1] = 0.0
        variables, starts = batch.terms.variables, batch.terms.starts
        alone = np.logical_and.reduceat(families[variables] >= CATEGORICAL, starts[:-1])
        known[variables[np.repeat(alone, batch.terms.counts)]] = True
    for k in np.unique(sizes[~known]):
        inner = at[np.flatnonzero(~known & (sizes == k)), None] + np.arange(k)
        prior[inner[~prior[inner].any(axis=1)]] = -math.log(k)
    return prior


def legal(schedule: Schedule) -> FilledSchedule:
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
    #: beliefs about blocks, of :class:`epfast.graph.blocks.BlockBelief` or
    #: :class:`epfast.graph.sparse_blocks.SparseBelief`
    blocks: tuple[Any, ...] = ()
    #: states of blocks that are linear models, see :class:`epfast.graph.blocks.LinearPart`
    linear: tuple[Any, ...] = ()
    #: of forms over blocks with a sparse precision
    pace: Pace = Pace()


class UpdateOrder(NamedTuple):
    """The order of a sweep: sorted rows of each batch, and runs of independent factors."""

    #: for each batch its rows in the order of the program
    rows: tuple[Index, ...]
    #: (n_runs, 3): batch, first row and end of each run, among the sorted rows
    segments: Index


class GraphProblem(NamedTuple):
    """A graph, and its schedule during a fit. See :class:`epfast.Graph`."""

    #: identity of the graph, also in files, by which it recognises its variables
    graph: str
    #: (n_variables,), place of its family in FAMILIES, or BLOCK
    families: NDArray[np.int8] = np.empty(0, dtype=np.int8)
    #: (n_variables,), how many natural parameters it has. Of a block those of a form over it
    sizes: Index = np.empty(0, dtype=np.intp)
    #: (n_variables,), time of each state of a chain. -inf for other variables
    times: Array = np.empty(0)
    #: natural parameters of the priors as the user gave them, variable by variable
    given: Array = np.empty(0)
    batches: tuple[Batch, ...] = ()
    blocks: tuple[BlockPrior | SparseBlockPrior, ...] = ()
    #: arrays of variables and blocks, by their names or by their places among these
    made: dict[str | int, Variables | Block] = {}  # noqa: RUF012
    #: number of the next batch
    added: int = 0
    # set for a fit, see :meth:`ready`
    schedule: Any = None
    #: (n_variables + 1,), see :func:`places`
    at: Index = np.empty(0, dtype=np.intp)
    #: natural parameters of the priors, in that order
    prior: Array = np.empty(0)
    #: priors of blocks, of sparse ones times the Gaussian factors about them
    priors: tuple[Any, ...] = ()
    #: keys of the batches of these factors
    known: tuple[int, ...] = ()

    def with_variables(
        self, family: int, natural: Array, name: str | None, made: Variables | Block
    ) -> GraphProblem:
        """The problem with new variables. natural: (n, k). made: the object that the user has."""
        n, k = natural.shape
        key = len(self.made) if name is None else name
        return self._replace(
            families=np.append(self.families, np.full(n, family, dtype=np.int8)),
            sizes=np.append(self.sizes, np.full(n, k)),
            times=np.append(self.times, np.full(n, -np.inf)),
            given=np.append(self.given, natural),
            made=self.made | {key: made},
        )

    def with_batch(self, batch: Batch) -> GraphProblem:
        """The problem with one more batch, and the times that it gives to variables."""
        if not batch.n:
            raise ValueError("y or the neighbours are empty; allowed: one factor or more")
        for earlier in self.batches:
            if batch.defined is None or earlier.defined is None:
                continue
            if np.isin(batch.defined, earlier.defined).any():
                raise ValueError(
                    "x holds variables that another walk defines; allowed: other variables"
                )
        times = self.times
        if batch.times is not None:
            times = times.copy()
            times[batch.times[0]] = batch.times[1]
        batches = (*self.batches, batch.copy()._replace(key=self.added))
        return self._replace(batches=batches, times=times, added=self.added + 1)

    def check_handle(self, name: str, value: Linear) -> None:
        """Refuse variables of another graph, or of a copy that was changed differently."""
        if value.graph != self.graph:
            raise ValueError(f"{name} is of another graph; allowed: variables of this one")
        for numbers, family, width in value.held():
            if numbers.size and numbers.max() >= len(self.families):
                raise ValueError(
                    f"{name} is over variables that were made later, or in a copy of the graph; "
                    "allowed: variables of this graph"
                )
            kind = BLOCK if family == "block" else list(FAMILIES).index(family)
            if (self.families[numbers] != kind).any() or (self.sizes[numbers] != width).any():
                raise ValueError(
                    f"{name} is over variables of a copy of the graph, which are of other families "
                    "in this graph; allowed: variables of this graph"
                )

    def check_handles(self, arguments: Mapping[str, Argument]) -> None:
        """Refuse arguments with variables of another graph."""
        for name, value in arguments.items():
            if isinstance(value, Linear):
                self.check_handle(name, value)

    def form(self, name: str, value: Linear, blocks: bool = True) -> LinearForm:
        """Linear forms of this graph, checked. blocks: whether they may be over blocks."""
        form = form_of(name, value, blocks)
        self.check_handle(name, value)
        return form

    def ready(self, schedule: FilledSchedule) -> GraphProblem:
        """The problem with a schedule, for a fit. Raises if beliefs cannot become proper."""
        if not self.batches:
            raise ValueError("the graph has no factors; allowed: one or more, by add()")
        at = places(self.families, self.sizes)
        prior = priors_in_effect(self, at)
        problem = self._replace(schedule=schedule, at=at, prior=prior).with_priors()
        problem.check()
        return problem

    def with_priors(self) -> GraphProblem:
        """The problem with the priors of blocks as a fit has them."""
        own: dict[int, list[Batch]] = {}
        for batch in self.batches:
            own.setdefault(batch.block, []).append(batch)
        found = [prior_in_effect(block, own.get(block.number, [])) for block in self.blocks]
        known = tuple(key for _, keys in found for key in keys)
        return self._replace(priors=tuple(prior for prior, _ in found), known=known)

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
                for k, batch in enumerate(self.batches)
                if any(part.block == block.number for part in batch.parts)
            ]
            if len(about) == 1 and is_linear(self.batches[about[0]], self.schedule):
                batch_of[place] = about[0]
        return batch_of

    def rest(self, linear: dict[int, int]) -> GraphProblem:
        """The problem without the batches of linear models, and those that priors have."""
        left = (batch for k, batch in enumerate(self.batches) if k not in linear.values())
        return self._replace(batches=tuple(batch for batch in left if batch.key not in self.known))

    @property
    def n_gaussians(self) -> int:
        return int((self.families == 0).sum())

    @property
    def n_factors(self) -> int:
        return sum(batch.n for batch in self.batches)

    def check(self, quiet: bool = False) -> None:
        """Refuse graphs that cannot become proper. Warn of variables without factors."""
        seen = np.zeros(len(self.families), dtype=bool)
        for batch in self.batches:
            seen[batch.terms.variables] = True
        # zeros are a uniform prior of beta, categorical and Dirichlet variables, and proper
        may = np.flatnonzero(self.families <= 1)
        flat = np.zeros(len(seen), dtype=bool)
        flat[may] = (self.prior[self.at[may]] == 0.0) & (self.prior[self.at[may] + 1] == 0.0)
        if (flat & ~seen).any():
            raise ValueError(
                f"{(flat & ~seen).sum()} variables have neither a prior nor a factor; allowed: "
                "a finite variance, or factors about them"
            )
        for batch in self.batches:
            batch.factor.check_schedule(batch, self.schedule)
        sparse = self.sparse if self.schedule.stores != "factor" else set()
        for batch in self.batches if sparse else ():
            over = any(part.block in sparse for part in batch.parts)
            if over and batch.key not in self.known:
                raise ValueError(
                    f"schedule is {_checks.describe(self.schedule)}; allowed with batch "
                    f"{batch.key}, whose forms are over a block with a sparse precision: EP()"
                )
        linear = self.linear().values() if self.tied else ()
        for k, batch in enumerate(self.batches if self.tied else ()):
            if batch.key in self.known:
                continue
            name = type(self.schedule).__name__
            given = f"schedule is {name}, where the factors of a batch share a site; allowed"
            if not (k in linear if batch.parts else has_one_set(batch.terms)):
                raise ValueError(
                    f"{given}: batches whose factors all have the same scalar "
                    "variables, batches of losses of forms X @ w over a block of their own, or EP()"
                )
        if quiet:
            return
        for reason in self.symmetries():
            warn_user(reason, DataWarning)
        found = [getattr(batch.factor, "loss", None) for batch in self.batches]
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
        n, reasons = len(self.families), dict[str, None]()
        everything = np.ones(n, dtype=bool)
        alike = [
            bool(batch.factor.symmetry(batch, self.prior_of, everything)) for batch in self.batches
        ]
        for batch, stays in zip(self.batches, alike, strict=True):
            if not stays:
                continue
            # what breaks it: factors of other kinds, and those of its kind that are not alike
            alone = everything.copy()
            for other, same in zip(self.batches, alike, strict=True):
                if not same or type(other.factor) is not type(batch.factor):
                    alone[other.terms.variables] = False
            reasons[batch.factor.symmetry(batch, self.prior_of, alone)] = None
        return [reason for reason in reasons if reason]

    @property
    def tied(self) -> bool:
        """Whether the factors of a batch share a site."""
        return bool(self.schedule.stores == "shared")

    def is_that(self, other: GraphProblem) -> bool:
        """Whether another problem has the same variables, factors and kinds of sites."""
        if self is other:
            return True
        mine, others = (
            [
                *(problem.tied, list(problem.linear().items()), problem.at, problem.families),
                *(problem.prior, problem.times),
                *(part for block in problem.blocks for part in numbers_of_prior(block)),
                *(
                    x
                    for batch in problem.batches
                    for x in (batch.key, batch.rows, *batch.terms[:2])
                ),
            ]
            for problem in (self, other)
        )
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
        k = self.sizes[variables[0]] if len(variables) else 2
        return np.asarray(self.prior[self.at[variables][:, None] + np.arange(k)])

    def site_places(self, batch: Batch) -> tuple[Index, Index]:
        """Places in the beliefs of the numbers of the sites of a batch, and where sites begin."""
        terms = batch.terms.select(slice(0, 1)) if self.tied else batch.terms
        sizes = self.sizes[terms.variables]
        ends = np.concatenate([[0], np.cumsum(sizes)])
        inner = np.arange(ends[-1]) - np.repeat(ends[:-1], sizes)
        return np.repeat(self.at[terms.variables], sizes) + inner, ends[terms.starts]

    def added_up(self, beliefs: Array, where: Index, sites: Array) -> tuple[Array, Array]:
        """Priors plus sites, and the size of what was summed, for a bound of the rounding error.

        Removed sites leave rounding errors. Up to 1e-3 standard deviations are harmless.
        """
        n, length = 2 * self.n_gaussians, len(self.prior)
        total = self.prior + np.bincount(where, sites, length)
        size: Array = np.abs(self.prior)
        size += np.bincount(where, np.abs(sites), length).astype(np.float64)
        size[1:n:2] += 1e3 * np.sqrt(np.maximum(beliefs[:n:2], 0.0))
        return total, size

    def edges(self, batch: Batch) -> Edges:
        """Neighbours of a batch for the core, where a form over a block is a Gaussian variable."""
        variables = batch.terms.variables
        kind = np.maximum(self.families[variables], 0).astype(np.intc)
        return Edges(batch.terms.starts, self.at[variables], kind, self.sizes[variables])

    def numbers(self, batch: Batch) -> Index:
        """How many numbers the site of each factor of a batch has."""
        return np.add.reduceat(self.sizes[batch.terms.variables], batch.terms.starts[:-1])

    def others(self) -> Others:
        """All variables other than scalar Gaussians."""
        return Others.of(self.families, self.sizes, self.at[:-1])

    def is_proper(self, beliefs: Array, others: Others) -> bool:
        """Whether every variable that has a proper prior has a proper belief."""
        n = self.n_gaussians
        precision, prior = beliefs[: 2 * n : 2], self.prior[: 2 * n : 2]
        gaussian = bool(np.where(prior > 0.0, precision > 0.0, precision >= 0.0).all())
        return gaussian and not others.improper(self.prior, beliefs).any()

    def evidence(self, state: GraphState) -> float:
        """EP's log p(y) of a state, without the contribution of blocks."""
        others, n = self.others(), self.n_gaussians
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
        pairs = self.prior[self.at[np.flatnonzero(self.families < 2), None] + np.arange(2)]
        if not pairs.any(axis=1).all() or not all(batch.bounded for batch in self.batches):
            return math.inf
        if not all(prior.precision.diagonal().all() for prior in self.priors):
            return math.inf
        others = self.others()
        mass = others.partition(self.prior) - others.prior_partition(self.prior)
        return ROUNDING * self.n_factors + mass

    def order(self) -> Index:
        """The sequential order of all factors: by time, then as they were added.

        The time of a factor is the last time of its variables. Chains are therefore visited from
        one end to the other, in whatever order their factors were added.
        """
        time = [
            np.maximum.reduceat(self.times[batch.terms.variables], batch.terms.starts[:-1])
            for batch in self.batches
        ]
        return np.argsort(np.concatenate([*time, []]), kind="stable")

    def program(self, order: Index) -> UpdateOrder:
        """Runs of factors without a common variable, for a sequential order. O(edges).

        Factors of forms over a block are updated one after the other within a run.
        """
        batches = self.batches
        if not batches:
            return UpdateOrder((), np.empty((0, 3), dtype=np.intp))
        counts = np.concatenate([batch.terms.counts for batch in batches])
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
        variables = np.concatenate([batch.terms.variables for batch in batches])
        n = len(self.families)
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

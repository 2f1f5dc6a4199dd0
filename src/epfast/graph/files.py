"""Posteriors of graphs in files: what is written, and checks of what was read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import numpy as np

from epfast import _checks, priors, schemes
from epfast._arrays import AnyArray
from epfast.families import FAMILIES
from epfast.gaussian.files import Shape, check_shapes, shapes
from epfast.gaussian.forms.sparse import Pace
from epfast.gaussian.shards import WarmStart
from epfast.graph import catalogue
from epfast.graph.beliefs import BlockBelief
from epfast.graph.blocks import BlockPrior
from epfast.graph.catalogue.linear import LinearFactor
from epfast.graph.engine import GraphEngine, GraphStart
from epfast.graph.factors import Batch, Kind
from epfast.graph.model import BLOCK, CATEGORICAL, GraphModel
from epfast.graph.problem import (
    GraphProblem,
    GraphState,
    legal,
    places,
)
from epfast.graph.sparse_blocks import SparseBlockPrior
from epfast.graph.variables import Block, BlockTerms, Index, Scales, Terms, Variables, finite_rows
from epfast.losses import describe as describe_loss

#: a posterior that was read
Started = TypeVar("Started", bound=GraphStart)


def kinds_below(kind: type[Kind]) -> Iterator[type[Kind]]:
    """All subclasses of a kind of factor."""
    for below in kind.__subclasses__():
        yield below
        yield from kinds_below(below)


#: the factors of the library, which files may hold
KINDS = tuple(kind for kind in kinds_below(Kind) if kind.__module__.startswith(catalogue.__name__))
#: classes in these posteriors, beside those in all posteriors
PARTS = (
    *(
        Batch,
        Block,
        BlockBelief,
        BlockPrior,
        GraphProblem,
        GraphState,
        GraphModel,
        SparseBlockPrior,
        BlockTerms,
        Terms,
        Pace,
        WarmStart,
    ),
    *(Scales, Variables, *KINDS),
    *(getattr(priors, name) for name in priors.__all__ if name != "Scale"),
)
#: shapes of the arrays of a posterior, see :func:`epfast.gaussian.files.check_shapes`
SHAPES = (
    shapes("problem.model", families="n", sizes="n", natural="p")
    | shapes("problem.model", times=Shape("n", infinite=True))
    | shapes("problem", at=Shape("n", more=1), prior="p")
    | shapes("state", beliefs="p", sites="s", log_scale="f")
)
OF_BATCHES = shapes("", rows="n", defined="n", labels="n") | shapes(
    "terms", starts=Shape("n", more=1), variables="t", coefficient="t"
)


def parted(problem: GraphProblem, state: GraphState) -> tuple[GraphState, GraphProblem]:
    """State and problem as a file holds them, with the sites of linear models.

    What follows from the sites of a block with a sparse precision is left out, and its prior in
    effect.

    Raises
    ------
    TypeError
        For factors that the user defined, and for losses and schemes with functions.
    """
    for batch in problem.model.batches:
        check_saved(batch)
    starts = tuple(
        WarmStart(model.sites, problem.priors[place].mean, None, int(model.sweeps))
        for place, model in zip(problem.linear(), state.linear, strict=True)
    )
    blocks = tuple(belief if isinstance(belief, BlockBelief) else None for belief in state.blocks)
    state = state._replace(linear=(), starts=starts, blocks=blocks, change=float(state.change))
    return state, problem._replace(priors=(), in_priors=())


def check_saved(batch: Batch) -> None:
    """Refuse factors, losses and schemes with functions of the user."""
    factor = batch.factor
    if not isinstance(factor, KINDS):
        raise_unsaved(batch, "has factors of your own")
    for loss in np.atleast_1d(np.array(getattr(factor, "loss", ()), dtype=object)):
        if describe_loss(loss) is None:
            raise_unsaved(batch, f"has a loss of your own, {loss!r}")
    if isinstance(factor, LinearFactor) and schemes.describe(factor.scheme) is None:
        raise_unsaved(batch, f"has a scheme of your own, {factor.scheme!r}")


def raise_unsaved(batch: Batch, why: str) -> None:
    """Refuse a batch that cannot be saved."""
    raise TypeError(
        f"batch {batch.key} {why}, which cannot be saved; allowed: those of the library; pickle "
        "(or cloudpickle) the posterior, or fit again"
    )


def index(value: AnyArray, stop: int, least: int = 0, ndim: int | None = 1) -> Index:
    """Whole numbers from least to stop - 1."""
    if value.dtype.kind not in "iu" or (ndim is not None and value.ndim != ndim):
        raise ValueError(f"{_checks.describe(value)} in place of whole numbers")
    if value.size and not (value.min() >= least and value.max() < stop):
        raise ValueError(f"numbers are outside {least} to {stop - 1}")
    return np.array(value, dtype=np.intp, order="C")


def check_batch(batch: Batch, kinds: Index, sizes: Index, blocks: dict[int, int]) -> None:
    """Refuse a batch with wrong shapes, on which compiled code relies.

    kinds, sizes: of the variables. blocks: lengths of blocks, by their numbers.
    """
    check_shapes(batch, OF_BATCHES)
    starts, variables, _ = batch.terms
    of = kinds[index(variables, len(kinds))]
    index(batch.rows, 2**62)
    fits = starts[0] == 0 and starts[-1] == len(variables) and (np.diff(starts) > 0).all()
    if not (batch.n and fits and all(len(value) == batch.n for value in batch.data.values())):
        raise ValueError(f"batch {batch.key}: starts or numbers are not those of its rows")
    edges = [(variables == part.block).sum() for part in batch.parts]
    if sum(edges) != (of < 0).sum() or any(count != batch.n for count in edges):
        raise ValueError(f"batch {batch.key}: neighbours are not those of its forms over blocks")
    if batch.defined is not None:
        index(batch.defined, len(kinds))
    if batch.labels is not None:
        index(batch.labels, 2)
    if batch.parts and not batch.factor.pattern.startswith("n+"):
        raise ValueError(f"batch {batch.key}: its factors take no forms over blocks")
    for block, rows in batch.parts:
        if rows.shape != (batch.n, blocks[block]):
            raise ValueError(f"batch {batch.key}: rows of a block have shape {rows.shape}")
        finite_rows(rows, blocks[block])
    batch.factor.check(batch, np.maximum(of, 0), sizes[variables])


def checked(post: Started) -> Started:
    """A posterior that was read, with the states of its linear models.

    Refuses arrays with inconsistent shapes, on which compiled code relies. That the numbers are
    those that were written is checked by a digest elsewhere.
    """
    check_shapes(post, SHAPES)
    problem, state = post.problem, post.state
    families, sizes = problem.model.families, index(problem.model.sizes, 2**31)
    n, kinds = len(families), index(families, len(FAMILIES), BLOCK)
    wrong = np.where(kinds < CATEGORICAL, sizes != 2, sizes < 2).any()
    if not n or wrong or (problem.at != places(families, sizes)).any():
        raise ValueError("sizes do not fit the families of the variables")
    blocks = {prior.number: prior.d for prior in problem.model.blocks}
    if list(blocks) != np.flatnonzero(kinds == BLOCK).tolist():
        raise ValueError("blocks have other numbers")
    for prior, belief in zip(problem.model.blocks, state.blocks, strict=True):
        check_shapes(prior, shapes("", precision="d|dd", mean="d"))
        if belief is not None:
            check_shapes(belief, shapes("", covariance="dd", mean="d"))
            if len(belief.mean) != prior.d:
                raise ValueError(f"the belief about block {prior.number} is of another length")
    for made in problem.model.variables.values():
        numbers = made.number if isinstance(made, Block) else made.numbers
        index(np.asarray(numbers), n, ndim=None)
        problem.model.check_handle("variables", made)
        if isinstance(made, Block) and blocks.get(made.number) != made.size:
            raise ValueError(f"block {made.number} has another shape")
    for batch in problem.model.batches:
        check_batch(batch, kinds, sizes, blocks)
    legal(problem.schedule)
    post.problem = problem = problem.with_priors()
    problem.check()
    problem.check_schedule()
    rest = problem.rest(problem.linear()).model
    many = sum(len(problem.site_places(batch)[0]) for batch in rest.batches), rest.n_factors
    if (len(state.sites), len(state.log_scale)) != many:
        raise ValueError("sites are not those of the factors")
    if not problem.is_proper(state.beliefs, problem.others()):
        raise ValueError("beliefs are improper")
    engine, change = GraphEngine(problem), state.pace.change
    missing = [belief is None for belief in state.blocks]
    if missing != [prior.number in problem.sparse for prior in problem.priors]:
        raise ValueError("beliefs about blocks are missing")
    if change is not None and change.shape != engine.slots.shape:
        raise ValueError("the last change is of other forms")
    linear = tuple(
        part.engine.init(start)
        for part, start in zip(engine.linear.values(), state.starts, strict=True)
    )
    post.state = engine.complete(state._replace(linear=linear, starts=()))
    return post

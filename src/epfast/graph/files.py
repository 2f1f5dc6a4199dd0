"""Posteriors of graphs in files: what is written, and what one that was read must fulfil."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from typing import Any

import numpy as np

from epfast import priors, schemes
from epfast.families import FAMILIES
from epfast.gaussian.files import check_shapes
from epfast.graph.blocks import BlockBelief, BlockPrior, LinearPart, Start
from epfast.graph.factors import Batch
from epfast.graph.factors_categorical import Mixture
from epfast.graph.legality import LEGAL, check_batch, index
from epfast.graph.problem import (
    BLOCK,
    CATEGORICAL,
    GraphProblem,
    GraphState,
    check_handle,
    legal,
    places,
)
from epfast.graph.variables import Block, Part, Scales, Terms, Variables
from epfast.losses import describe as describe_loss

#: what these posteriors consist of, beside what all do
PARTS = (
    *(Batch, Block, BlockBelief, BlockPrior, GraphProblem, GraphState, Part, Start, Terms),
    *(Scales, Variables, *LEGAL),
    *(getattr(priors, name) for name in priors.__all__ if name != "Scale"),
)
#: arrays of a posterior, see :func:`epfast.gaussian.files.check_shapes`
SHAPES = """problem.families n, problem.sizes n, problem.at n+, problem.times n?, problem.given p,
    problem.prior p, state.beliefs p, state.sites s, state.log_scale f, state.residual r"""


def parted(problem: GraphProblem, state: GraphState) -> tuple[GraphProblem, GraphState]:
    """What a file holds of a problem and a state.

    Of linear models their sites; of factors what batches do not have in their own numbers.

    Raises
    ------
    TypeError
        For factors of the user's own, losses and schemes with functions.
    """
    linear = tuple(
        Start(found.sites, problem.blocks[place].mean, int(found.sweeps))
        for place, found in zip(problem.linear(), state.linear, strict=True)
    )
    return problem._replace(batches=tuple(map(_parted, problem.batches))), state._replace(
        linear=linear, change=float(state.change)
    )


def _parted(batch: Batch) -> Batch:
    factor, unsaved = batch.factor, ""
    if type(factor) not in LEGAL:
        unsaved = "is of factors of your own"
    elif batch.scheme is not None and schemes.describe(batch.scheme) is None:
        unsaved = f"has a scheme of yours, {batch.scheme!r}"
    else:
        values: dict[str, Any] = {
            f.name: None if f.default is MISSING else f.default for f in fields(factor)
        }
        values |= {name: getattr(factor, name) for name in factor.kept}
        if isinstance(factor, Mixture):
            values["loss"] = tuple(factor.losses(sum(name.startswith("y") for name in batch.data)))
        for loss in np.atleast_1d(np.array(values.get("loss", ()), dtype=object)):
            if describe_loss(loss) is None:
                unsaved = f"has a loss of yours, {loss!r}"
    if unsaved:
        raise TypeError(
            f"batch {batch.key} {unsaved}, which no file can hold; allowed: those of the library; "
            "pickle (or cloudpickle) the posterior, or fit again"
        )
    return batch._replace(factor=replace(factor, **values))


def checked(post: Any) -> Any:
    """A posterior that was read, with the states of its linear models.

    Refuses arrays that do not fit together, on which compiled code relies; a digest tells that the
    numbers are those that were written.
    """
    check_shapes(post, SHAPES)
    problem, state = post.problem, post.state
    families, sizes = problem.families, index(problem.sizes, 2**31)
    n, kinds = len(families), index(families, len(FAMILIES), BLOCK)
    wrong = np.where(kinds < CATEGORICAL, sizes != 2, sizes < 2).any()
    if not n or wrong or (problem.at != places(families, sizes)).any():
        raise ValueError("sizes are none of the families of the variables")
    blocks = {prior.number: prior.d for prior in problem.blocks}
    if list(blocks) != np.flatnonzero(kinds == BLOCK).tolist():
        raise ValueError("blocks have other numbers")
    for prior, belief in zip(problem.blocks, state.blocks, strict=True):
        check_shapes(prior, "precision dd, mean d")
        check_shapes(belief, "covariance dd, mean d")
        if len(belief.mean) != prior.d:
            raise ValueError(f"the belief about block {prior.number} is of another length")
    for made in problem.made.values():
        numbers = made.number if isinstance(made, Block) else made.numbers
        index(np.asarray(numbers), n, ndim=None)
        check_handle("made", made, families, sizes)
    for batch in problem.batches:
        check_batch(batch, kinds, sizes, blocks)
    legal(problem.schedule)
    problem.check(quiet=True)
    linear = problem.linear()
    rest = problem.rest(linear)
    many = sum(len(problem.site_places(batch)[0]) for batch in rest.batches), rest.n_factors
    residual = problem.n_factors if problem.schedule.order == "residual" else 0
    kept = 0 if state.residual is None else len(state.residual)
    if (len(state.sites), len(state.log_scale), kept) != (*many, residual):
        raise ValueError("sites are not those of the factors")
    if not problem.is_proper(state.beliefs, problem.others()):
        raise ValueError("beliefs are improper")
    begun = tuple(
        LinearPart(problem.blocks[place], problem.batches[k], problem.schedule).engine.init(start)
        for (place, k), start in zip(linear.items(), state.linear, strict=True)
    )
    post.state = state._replace(linear=begun)
    return post

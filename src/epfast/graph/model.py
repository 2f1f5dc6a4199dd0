"""Models: variables with their priors, and batches of factors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast._arrays import Array
from epfast.families import FAMILIES
from epfast.graph.arguments import Argument, form_of
from epfast.graph.blocks import BlockPrior
from epfast.graph.factors import Batch
from epfast.graph.sparse_blocks import SparseBlockPrior
from epfast.graph.variables import Block, Index, Linear, LinearForm, Variables

#: number of blocks in place of a family, since their beliefs are stored separately
BLOCK = -1
CATEGORICAL, DIRICHLET = map(list(FAMILIES).index, ("categorical", "dirichlet"))


class GraphModel(NamedTuple):
    """A graph: variables with their priors, and batches of factors. See :class:`epfast.Graph`."""

    #: identity of the graph, also in files, by which it recognises its variables
    graph: str
    #: (n_variables,), place of its family in FAMILIES, or BLOCK
    families: NDArray[np.int8] = np.empty(0, dtype=np.int8)
    #: (n_variables,), how many natural parameters it has. Of a block those of a form over it
    sizes: Index = np.empty(0, dtype=np.intp)
    #: (n_variables,), time of each state of a chain. -inf for other variables
    times: Array = np.empty(0)
    #: natural parameters of the priors as the user gave them, variable by variable
    natural: Array = np.empty(0)
    batches: tuple[Batch, ...] = ()
    blocks: tuple[BlockPrior | SparseBlockPrior, ...] = ()
    #: arrays of variables and blocks, by their names or by their places among these
    variables: dict[str | int, Variables | Block] = {}  # noqa: RUF012
    #: number of the next batch
    added: int = 0

    def with_variables(
        self, family: int, natural: Array, name: str | None, array: Variables | Block
    ) -> GraphModel:
        """The model with new variables. natural: (n, k). array: the object that the user has."""
        n, k = natural.shape
        key = len(self.variables) if name is None else name
        return self._replace(
            families=np.append(self.families, np.full(n, family, dtype=np.int8)),
            sizes=np.append(self.sizes, np.full(n, k)),
            times=np.append(self.times, np.full(n, -np.inf)),
            natural=np.append(self.natural, natural),
            variables=self.variables | {key: array},
        )

    def with_batch(self, batch: Batch) -> GraphModel:
        """The model with one more batch, and the times that it gives to variables."""
        if not batch.n:
            raise ValueError("y or the neighbours are empty; allowed: one factor or more")
        if batch.defined is not None:
            earlier = [each.defined for each in self.batches if each.defined is not None]
            if np.isin(batch.defined, np.concatenate([[], *earlier])).any():
                raise ValueError(
                    "x holds variables that another walk defines; allowed: other variables"
                )
        times = self.times
        if batch.times is not None:
            times = times.copy()
            times[batch.times[0]] = batch.times[1]
        batches = (*self.batches, batch.copy(self.added))
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

    @property
    def n_gaussians(self) -> int:
        return int((self.families == 0).sum())

    @property
    def n_factors(self) -> int:
        return sum(batch.n for batch in self.batches)

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

"""Factors of a graph: the base of their kinds, batches of them, and beliefs for predictions."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar, NamedTuple, TypeAlias, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from epfast import _checks
from epfast._arrays import CSR, Array, Which
from epfast._core.graph import GraphBatch
from epfast.graph.arguments import Argument, neighbours_of, numbers_of
from epfast.graph.beliefs import Belief, BlockBelief, ScaleBelief, SparseBelief
from epfast.graph.variables import (
    BlockTerms,
    Index,
    LinearForm,
    Scales,
    Terms,
    Variables,
    ends,
)
from epfast.losses.names import LossGiven
from epfast.schedules import FilledSchedule

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)

R = TypeVar("R")
#: a method of a kind of factor, which takes neighbours and data of its own
OfKind: TypeAlias = Callable[..., R]  # type: ignore[explicit-any]


#: letters of the families, in patterns of neighbours: Gaussian, gamma, beta, categorical, Dirichlet
LETTERS = np.frombuffer(b"ngbcd", dtype=np.uint8)


#: how a gamma, beta or Dirichlet belief is fitted to the tilted marginal
MATCHES = ("statistics", "moments")


#: the number of a batch before it is in a graph
NEW = -1


class Batch(NamedTuple):
    """Factors of one kind that were added together. Row i of each array is of factor i."""

    #: its number in the graph, or NEW
    key: int
    factor: Kind
    #: neighbours of each factor. The coefficients are 1 except for linear forms
    terms: Terms
    #: data of the factors, with the factors along the first axis
    data: dict[str, Array]
    #: places of the factors when they were added, (n,). Some may have been removed since. Before
    #: they are added, in the shape of the neighbours
    rows: Index
    #: parts of the forms over blocks. ``terms`` has the number of the block as a neighbour
    parts: tuple[BlockTerms, ...] = ()
    #: numbers of variables and their times, by which factors are ordered. The graph takes these
    #: over. None: there are no times
    times: tuple[Index, Array] | None = None
    #: the variable that each factor defines, (n,), so that its own prior is ignored. None: none
    defined: Index | None = None
    #: 0 or 1 for each factor. Factors of the same label are vectorised together. None: all are 0
    labels: NDArray[np.uint8] | None = None
    #: whether no factor exceeds 1
    bounded: bool = False
    #: whether they are no part of another batch in a fit
    apart: bool = False
    #: (n,), numbers of the batches to which the factors were added, of batches that are joined for
    #: a fit. None: all to this one
    keys: Index | None = None

    @property
    def n(self) -> int:
        return self.rows.size

    @property
    def key_of_each(self) -> Index:
        """The number of the batch to which each factor was added."""
        return np.full(self.n, self.key) if self.keys is None else self.keys

    @property
    def block(self) -> int:
        """The number of the block that the factors have as their only neighbour. -1: of others."""
        alone = len(self.parts) == 1 and len(self.terms.variables) == self.n
        return self.parts[0].block if alone else -1

    @property
    def last(self) -> Index:
        """The place of the last neighbour of each factor."""
        return self.terms.starts[1:] - 1

    @property
    def table(self) -> Index:
        """Neighbours, (n, k), of factors that all have k of them."""
        return self.terms.variables.reshape(self.n, -1)

    def select(self, which: Which) -> Batch:
        """Select factors."""
        return self._replace(
            terms=self.terms.select(which),
            data={name: value[which] for name, value in self.data.items()},
            rows=self.rows[which],
            parts=tuple(part.select(which) for part in self.parts),
            defined=None if self.defined is None else self.defined[which],
            labels=None if self.labels is None else self.labels[which],
            keys=None if self.keys is None else self.keys[which],
        )

    def copy(self, key: int) -> Batch:
        """Copy the arrays, since the user may change them before the fit. key: in the graph."""
        return self._replace(
            key=key,
            terms=Terms._make(part.copy() for part in self.terms),
            data={name: value.copy() for name, value in self.data.items()},
            rows=self.rows.ravel(),
            parts=tuple(part._replace(rows=part.rows.copy()) for part in self.parts),
            times=None,
        )


def of_one_kind(batches: Iterable[Batch]) -> tuple[Batch, ...]:
    """Batches with those of one kind as one, since a sweep has a price per batch."""
    kinds: dict[Hashable, list[Batch]] = {}
    for batch in batches:
        kind: Hashable = batch.key
        if not (batch.apart or batch.parts):
            shapes = [(name, x.shape[1:]) for name, x in batch.data.items()]
            kind = batch.factor, batch.defined is None, *shapes
        try:
            kinds.setdefault(kind, []).append(batch)
        except TypeError:  # a kind with arrays has no hash
            kinds[batch.key] = [batch]
    return tuple(one[0] if len(one) == 1 else as_one(one) for one in kinds.values())


def as_one(batches: list[Batch]) -> Batch:
    """Batches of one kind as one. Its number is that of the first."""
    first, terms = batches[0], [batch.terms for batch in batches]
    defined = [batch.defined for batch in batches if batch.defined is not None]
    zeros = [np.zeros(batch.n, dtype=np.uint8) for batch in batches]
    labels = [
        z if one.labels is None else one.labels for one, z in zip(batches, zeros, strict=True)
    ]
    counts = np.concatenate([part.counts for part in terms])
    variables = np.concatenate([part.variables for part in terms])
    coefficient = np.concatenate([part.coefficient for part in terms])
    return first._replace(
        terms=Terms(ends(counts), variables, coefficient),
        data={name: np.concatenate([one.data[name] for one in batches]) for name in first.data},
        rows=np.concatenate([batch.rows for batch in batches]),
        defined=np.concatenate(defined) if defined else None,
        labels=np.concatenate(labels) if any(map(np.any, labels)) else None,
        bounded=all(batch.bounded for batch in batches),
        keys=np.concatenate([batch.key_of_each for batch in batches]),
    )


class Edges(NamedTuple):
    """Neighbours of the factors of a batch, as the core takes them."""

    #: (n + 1,), where those of each factor begin
    starts: Index
    #: for each neighbour where its natural parameters begin, its family, and their number
    at: Index
    kind: NDArray[np.intc]
    size: Index


@dataclass(frozen=True)
class Beliefs:
    """Beliefs about the variables of a graph, by which factors predict."""

    #: (n_variables + 1,), where the natural parameters of each variable begin
    at: Index
    #: natural parameters of all variables
    natural: Array
    #: by the numbers of the blocks
    blocks: Mapping[int, BlockBelief | SparseBelief]
    #: returns the log of the integral of each factor of a batch over the beliefs
    log_z: Callable[[Batch], Array]

    def of(self, variables: Variables) -> Belief:
        """The belief about an array of variables."""
        natural = self.natural_of(variables.numbers.ravel(), variables.width)
        if variables.family == "gaussian":  # rounding of sites that cancel
            natural[natural[:, 0] <= 0.0] = 0.0
        kind = ScaleBelief if isinstance(variables, Scales) else Belief
        return kind(variables.family, variables.shape, natural)

    def natural_of(self, numbers: Index, width: int = 2) -> Array:
        """Natural parameters of the variables of these numbers, (..., width)."""
        return np.asarray(self.natural[self.at[numbers][..., None] + np.arange(width)])

    def latent(self, form: LinearForm) -> tuple[Array, Array]:
        """Mean and variance of linear forms, in their shape."""
        at = self.at[form.terms.variables]
        precision = np.maximum(self.natural[at], 0.0)
        shift = np.where(precision > 0.0, self.natural[at + 1], 0.0)
        rows = np.repeat(np.arange(form.size), form.terms.counts)
        a = form.terms.coefficient
        with np.errstate(all="ignore"):  # flat variables: as a belief shows them
            means = np.where((precision == 0.0) & (shift == 0.0), 0.0, a * shift / precision)
            variances = np.where(a == 0.0, 0.0, a * a / precision)
        mean: Array = form.offset + np.bincount(rows, means, form.size)
        variance: Array = np.bincount(rows, variances, form.size).astype(np.float64)
        for part in form.parts:
            more, spread = self.blocks[part.block].latent(part.rows)
            mean, variance = mean + more, variance + spread
        return mean.reshape(form.shape), variance.reshape(form.shape)


class Kind:
    """Base of the kinds of factors. A kind is a definition, and a batch has the data.

    A kind makes a batch from the arguments of the user (``attach``), gives it to the core for
    sweeps (``sweep``), and has its log density for the check. The kind in a batch is without what
    the batch has, so that files hold it once. Predictions are optional methods with
    the names of those of a posterior. They take the beliefs and the arguments of :meth:`attach`,
    without the observations.
    """

    #: families of the neighbours of a factor, as a regular expression of LETTERS
    pattern: ClassVar[str] = "[ngbcd]+"
    #: what errors recommend in place of predictions
    instead: ClassVar[str] = "none, as it has no predictions"

    #: checks neighbours and data, and makes the batch
    attach: OfKind[Batch]

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        """The batch for the core, in the order of the program."""
        raise NotImplementedError

    def log_density(self, batch: Batch, theta: Array) -> Array:
        """Log of the product of the factors at draws of all variables, (k,) of (k, variables)."""
        raise ValueError(
            f"batch {batch.key} is of {type(self).__name__}, a constraint that no draw fulfils; "
            "allowed for a check: factors with a density"
        )

    def check(self, batch: Batch, families: Index, sizes: Index) -> None:
        """Check a batch that was read from a file, and convert its data to doubles.

        families, sizes: of the neighbours. A form over a block counts as a Gaussian neighbour.
        """
        letters = np.insert(LETTERS[families], batch.terms.starts[1:], ord(";"))
        if not re.fullmatch(f"(?:{self.pattern};)+", letters.tobytes().decode()):
            raise ValueError(f"neighbours of {type(self).__name__} are of other families")

    def check_schedule(self, batch: Batch, schedule: FilledSchedule) -> None:
        """Refuse schedules that the factors of a batch do not support, such as powers."""

    def first_sites(self, batch: Batch) -> Array | None:
        """First sites where the prior of a variable is flat, natural parameters, (terms, 2).

        Used by factors whose messages to such variables have no moments. None: flat sites.
        """
        return None

    def symmetry(
        self, batch: Batch, prior: Callable[[Index], Array], alone: NDArray[np.bool_]
    ) -> str:
        """Why EP stays at its start although this is not a mode. Empty if it moves.

        prior: returns natural parameters of variables with k of them, (n, k). alone: for each
        variable of the graph whether it has no factor of another kind, or with a "" of its own.
        """
        return ""


def name_of(factor: Kind | LossGiven) -> str:
    """How messages call a factor that a user gave."""
    return type(factor).__name__ if isinstance(factor, Kind) else repr(factor)


@cache
def takes(call: OfKind[Batch | Array], first: int) -> inspect.Signature:
    """What a method of a kind takes from its parameter of this number on, without types."""
    taken = list(inspect.signature(call).parameters.values())[first:]
    return inspect.Signature([one.replace(annotation=one.empty) for one in taken])


def bind(
    method: str,
    call: OfKind[Batch | Array],
    kind: Kind,
    name: str,
    neighbours: tuple[Argument, ...],
    data: Mapping[str, Argument],
) -> dict[str, Argument]:
    """The arguments of ``add`` or a prediction by name. Refuses those that it does not take.

    Variables that the factor itself has are among them. call: the function of its class. name: that
    of the factor in messages.
    """
    signature = takes(call, 1 if method == "add" else 2)  # predictions have the beliefs, too
    try:
        bound = signature.bind(*neighbours, **data)
    except TypeError as error:
        shown = f"{method}({name}, {str(signature)[1:-1]})"
        raise TypeError(f"{method}() {error}; allowed: {shown}") from None
    named = dict(vars(kind))
    for key, value in bound.arguments.items():
        if signature.parameters[key].kind is inspect.Parameter.VAR_KEYWORD:
            named |= value
        elif key == "h":  # as in the formula of a table
            named |= {f"h_{j + 1}": one for j, one in enumerate(value)}
        elif isinstance(value, list | tuple):
            named |= {f"{key}[{j}]": one for j, one in enumerate(value)}
        else:
            named[key] = value
    return named


def chain_times(batch: Batch) -> tuple[Index, Array] | None:
    """Times of variables if the forms make a chain, as x[1:] - x[:-1]. None otherwise."""
    terms = batch.terms
    if batch.parts or len(terms.starts) < 3 or not (terms.counts == 2).all():
        return None
    pairs = terms.variables.reshape(-1, 2)
    if not (np.abs(np.diff(pairs, axis=1)) == 1).all():
        return None
    numbers = np.unique(pairs)
    return numbers, numbers.astype(np.float64)


def check_numbers(batch: Batch, **least: float) -> None:
    """Convert data of a file with a number for each factor, by name, with least allowed values."""
    for name, smallest in least.items():
        batch.data[name] = _checks.array(name, batch.data[name], shape=(batch.n,))
        if not (batch.data[name] >= smallest).all():
            raise ValueError(f"{name} holds {batch.data[name].min():g}; allowed: >= {smallest:g}")


def check_spread(batch: Batch) -> None:
    """Refuse a batch with variances of 0, which has no density."""
    if not batch.data["variance"].all():
        raise ValueError(
            f"batch {batch.key} is of {type(batch.factor).__name__} with variance 0, a constraint "
            "that no draw fulfils; allowed for a check: variances above 0"
        )


def only_power_1(schedule: FilledSchedule, where: bool | np.bool_, what: str) -> None:
    """Refuse powers other than 1 if ``where`` is true. what: the factors, for the message."""
    if schedule.power != 1.0 and where:
        raise ValueError(f"power is {schedule.power:g}; allowed for {what}: 1")


def batch_of_forms(kind: Kind, h: LinearForm, noise: ArrayLike, y: Array) -> Batch:
    """A batch of factors of forms with noise."""
    data = {
        "offset": h.offset.copy(),
        "noise": numbers_of("noise", noise, h.shape, least=0.0),
        "y": y,
    }
    terms, parts = neighbours_of(h)
    return Batch(NEW, kind, terms, data, np.arange(h.size).reshape(h.shape), parts)


def plain_batch(kind: Kind, numbers: Index, data: dict[str, Array]) -> Batch:
    """A batch whose factors all have the same number of neighbours, (..., neighbours)."""
    n, k = math.prod(numbers.shape[:-1]), numbers.shape[-1]
    flat = np.ascontiguousarray(numbers, dtype=np.intp).ravel()
    terms = Terms(np.arange(0, n * k + 1, k, dtype=np.intp), flat, np.ones(n * k))
    return Batch(NEW, kind, terms, data, np.arange(n).reshape(numbers.shape[:-1]))


def expanded(batch: Batch, column: Index) -> Batch:
    """The batch with columns of draws as neighbours. A block is replaced by its d columns.

    column: of each variable. Of a block its first column.
    """
    terms, parts = batch.terms, []
    counts = np.ones(len(terms.variables), dtype=np.intp)
    for part in batch.parts:
        edges, rows = np.flatnonzero(terms.variables == part.block), sparse.csr_array(part.rows)
        counts[edges] = np.diff(rows.indptr)
        parts.append((edges, rows))
    starts = ends(counts)
    variables = np.repeat(column[terms.variables], counts)
    coefficient = np.repeat(terms.coefficient, counts)
    for edges, rows in parts:
        shift = np.repeat(starts[edges] - rows.indptr[:-1], counts[edges])
        place = shift + np.arange(rows.nnz)
        variables[place] += rows.indices
        coefficient[place] *= rows.data
    return batch._replace(terms=Terms(starts[terms.starts], variables, coefficient), parts=())


def form_matrix(batch: Batch, width: int, keep: Which = slice(None)) -> CSR:
    """Coefficients of the forms of an expanded batch, CSR (n, width). keep: which neighbours."""
    terms = batch.terms
    owner = np.repeat(np.arange(batch.n), terms.counts)
    entries = terms.coefficient[keep], (owner[keep], terms.variables[keep])
    forms: CSR = sparse.csr_array(entries, shape=(batch.n, width))
    return forms


def forms_at(batch: Batch, theta: Array, keep: Which = slice(None)) -> Array:
    """Linear forms of the factors of an expanded batch, (k, n), at draws (k, width)."""
    forms = form_matrix(batch, theta.shape[1], keep) @ theta.T
    return np.asarray(forms.T + batch.data["offset"])


def log_normal(x: Array, variance: Array) -> Array:
    """Log densities of N(0, variance)."""
    return np.asarray(-0.5 * x * x / variance - 0.5 * np.log(variance) - HALF_LOG_2PI)

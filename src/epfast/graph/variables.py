"""Variables of a graph, and linear forms over them: index arrays, nothing symbolic."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from types import EllipsisType
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray
from scipy import sparse

from epfast import _checks
from epfast._arrays import (
    CSR,
    AnyArray,
    Array,
    Matrix,
    RowsGiven,
    Slice,
    Which,
    entries_of,
    is_sparse,
)
from epfast.gaussian.sparse import as_csr

Index = NDArray[np.intp]
#: an index along an axis, and that of an array of variables
Part = int | Slice | EllipsisType | list[int] | Index | NDArray[np.int32] | NDArray[np.bool_] | None
Key = Part | tuple[Part, ...]


def ends(counts: ArrayLike) -> Index:
    """Where rows of these lengths begin, and where the last one ends."""
    lengths = np.asarray(counts)
    found = np.zeros(len(lengths) + 1, dtype=np.intp)
    np.cumsum(lengths, out=found[1:])
    return found


def by_key(keys: Index) -> dict[int, Index]:
    """The places of each key, in order."""
    turn = np.argsort(keys, kind="stable")
    each, first = np.unique(keys[turn], return_index=True)
    return dict(zip(each.tolist(), np.split(turn, first[1:]), strict=True))


class Terms(NamedTuple):
    """Sums of coefficients times variables, one per factor: ragged rows."""

    #: (n + 1,), where the terms of each factor begin
    starts: Index
    #: (terms,), numbers of variables
    variables: Index
    #: (terms,)
    coefficient: Array

    @property
    def counts(self) -> Index:
        return self.starts[1:] - self.starts[:-1]  # np.diff takes 5 us more, at each of many calls

    def select(self, which: Which) -> Terms:
        """Select factors."""
        counts = self.counts[which]
        starts = ends(counts)
        place = np.repeat(self.starts[:-1][which] - starts[:-1], counts) + np.arange(starts[-1])
        return Terms(starts, self.variables[place], self.coefficient[place])


def no_terms(n: int) -> Terms:
    """Terms of n forms without scalar variables."""
    return Terms(np.zeros(n + 1, dtype=np.intp), np.empty(0, dtype=np.intp), np.empty(0))


def joined(a: Terms, b: Terms) -> Terms:
    """The terms of both, factor by factor."""
    counts = a.counts + b.counts
    owner = np.concatenate([np.repeat(np.arange(len(counts)), terms.counts) for terms in (a, b)])
    order = np.argsort(owner, kind="stable")
    variables, coefficient = (
        np.concatenate(pair)[order] for pair in zip(a[1:], b[1:], strict=True)
    )
    return Terms(ends(counts), variables, coefficient)


def merged(terms: Terms) -> Terms:
    """Terms with each variable once per factor: coefficients of the same variable are added."""
    counts, width = terms.counts, int(terms.variables.max(initial=0)) + 1
    n = len(counts)
    pairs = np.repeat(np.arange(n) * width, counts) + terms.variables
    # they are nearly sorted: a stable sort of 4,000 takes 7 us, one that is not 77
    turn = np.sort(pairs, kind="stable")
    if (turn[1:] > turn[:-1]).all():
        return terms
    once, place = np.unique(pairs, return_inverse=True)
    coefficient = np.bincount(place, weights=terms.coefficient).astype(np.float64)
    return Terms(ends(np.bincount(once // width, minlength=n)), once % width, coefficient)


class BlockTerms(NamedTuple):
    """The part of forms over a block: x'w, with a row x for each form."""

    #: number of the block
    block: int
    #: (n, d), dense or CSR
    rows: Matrix

    def select(self, which: Which) -> BlockTerms:
        """Select forms."""
        return self._replace(rows=self.rows[which])

    def times(self, numbers: Array) -> BlockTerms:
        rows = self.rows
        if is_sparse(rows):
            return self._replace(rows=sparse.csr_array(sparse.diags_array(numbers) @ rows))
        return self._replace(rows=rows * numbers[:, None])


def dense(rows: Matrix) -> Array:
    """Rows as an array."""
    return rows.toarray() if is_sparse(rows) else rows


def added(a: tuple[BlockTerms, ...], b: tuple[BlockTerms, ...]) -> tuple[BlockTerms, ...]:
    """The sums of the parts of two arrays of forms, form by form."""
    of = {part.block: part.rows for part in a}
    for block, rows in b:
        there = of.get(block)
        if there is None:
            of[block] = rows
        elif is_sparse(there) and is_sparse(rows):
            of[block] = there + rows
        else:
            of[block] = dense(there) + dense(rows)
    return tuple(BlockTerms(block, of[block]) for block in sorted(of))


class Linear:
    """Arithmetic of linear forms, for :class:`LinearForm` and Gaussian variables."""

    #: NumPy arrays leave the arithmetic to the form
    __array_ufunc__ = None
    #: identity of the graph of its variables
    graph: str

    def __array__(
        self, dtype: DTypeLike | None = None, copy: bool | None = None
    ) -> NDArray[np.object_]:
        """An array of one object, so that a sparse X leaves X @ variables to this class."""
        whole = np.empty((), dtype=object)
        whole[()] = self
        return whole

    def form(self) -> LinearForm:
        raise NotImplementedError

    def held(self) -> list[tuple[Index, str, int]]:
        """Numbers of its variables, each with its family (or "block") and width."""
        form = self.form()
        parts = [(np.array([part.block]), "block", 2) for part in form.parts]
        return [(form.terms.variables, "gaussian", 2), *parts]

    def __add__(self, other: Linear | ArrayLike) -> LinearForm:
        with np.errstate(over="ignore", invalid="ignore"):  # refused where the form is used
            return self.form().plus(other)

    __radd__ = __add__

    def __neg__(self) -> LinearForm:
        return self.form().times(-1.0)

    def __sub__(self, other: Linear | ArrayLike) -> LinearForm:
        return self.__add__(-other if isinstance(other, Linear) else -finite_numbers(other))

    def __rsub__(self, other: Linear | ArrayLike) -> LinearForm:
        return self.__neg__().__add__(other)

    def __mul__(self, other: Linear | ArrayLike) -> LinearForm:
        if isinstance(other, Linear):
            raise TypeError(
                "a product of variables is not a linear form; allowed: numbers times variables, or "
                "the factor epfast.graph.Product()"
            )
        with np.errstate(over="ignore", invalid="ignore"):
            return self.form().times(finite_numbers(other))

    __rmul__ = __mul__

    def __truediv__(self, other: Linear | ArrayLike) -> LinearForm:
        numbers = finite_numbers(other)
        if not numbers.all():
            raise ValueError("a form is divided by 0; allowed: numbers other than 0")
        with np.errstate(over="ignore", invalid="ignore"):
            return self.form().times(1.0 / numbers)


def finite_numbers(value: ArrayLike, name: str = "form") -> Array:
    """Finite numbers of any shape."""
    given = _checks.real_array(name, value)
    if not np.isfinite(given).all():
        raise ValueError(f"{name} holds NaN or infinity; allowed: finite numbers")
    return np.asarray(given, dtype=np.float64)


@dataclass(frozen=True, eq=False, repr=False)
class LinearForm(Linear):
    """An array of linear forms h = sum_j a_j x_j + x'w + offset over Gaussian variables."""

    graph: str
    shape: tuple[int, ...]
    #: scalar variables
    terms: Terms
    #: (n,), where n is the product of the shape
    offset: Array
    #: parts over blocks with a full covariance, each block once
    parts: tuple[BlockTerms, ...] = ()

    def form(self) -> LinearForm:
        return self

    def __repr__(self) -> str:
        return f"LinearForm(shape={self.shape})"

    @property
    def size(self) -> int:
        return len(self.offset)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a single form has no length")
        return self.shape[0]

    def __getitem__(self, key: Key) -> LinearForm:
        places = np.arange(self.size).reshape(self.shape)[key]
        return self._spread(np.asarray(places))

    def reshape(self, *shape: int) -> LinearForm:
        return replace(self, shape=np.empty(self.shape, dtype=bool).reshape(*shape).shape)

    def times_matrix(self, matrix: CSR, shape: tuple[int, ...]) -> LinearForm:
        """The forms of this shape that a CSR matrix (m, n) makes of all, without scalar ones."""
        assert not len(self.terms.variables)
        parts = tuple(part._replace(rows=matrix @ as_csr(part.rows)) for part in self.parts)
        offset = matrix @ self.offset
        return LinearForm(self.graph, shape, no_terms(len(offset)), offset, parts)

    def _spread(self, places: Index) -> LinearForm:
        flat = places.ravel()
        parts = tuple(part.select(flat) for part in self.parts)
        return LinearForm(
            self.graph, places.shape, self.terms.select(flat), self.offset[flat], parts
        )

    def broadcast(self, shape: tuple[int, ...]) -> LinearForm:
        """The form broadcast to this shape."""
        if shape == self.shape:
            return self
        places = np.arange(self.size).reshape(self.shape)
        return self._spread(np.broadcast_to(places, shape))

    def plus(self, other: Linear | ArrayLike) -> LinearForm:
        if isinstance(other, Linear):
            b = other.form()
            if b.graph != self.graph:
                raise ValueError(
                    "a form has variables of two graphs; allowed: variables of one graph"
                )
            shape = together(form=self.shape, other=b.shape)
            a, b = self.broadcast(shape), b.broadcast(shape)
            terms, parts = joined(a.terms, b.terms), added(a.parts, b.parts)
            return replace(a, terms=terms, offset=a.offset + b.offset, parts=parts)
        a, numbers = self._beside(other)
        return replace(a, offset=a.offset + numbers)

    def times(self, numbers: ArrayLike) -> LinearForm:
        a, numbers = self._beside(numbers)
        coefficient = a.terms.coefficient * np.repeat(numbers, a.terms.counts)
        parts = tuple(part.times(numbers) for part in a.parts)
        terms = a.terms._replace(coefficient=coefficient)
        return replace(a, terms=terms, offset=a.offset * numbers, parts=parts)

    def _beside(self, numbers: ArrayLike) -> tuple[LinearForm, Array]:
        """The form and numbers, broadcast to one shape, with the numbers as (n,)."""
        numbers = finite_numbers(numbers)
        shape = together(form=self.shape, numbers=numbers.shape)
        return self.broadcast(shape), np.broadcast_to(numbers, shape).ravel()

    def sum(self, axis: int | None = None) -> LinearForm:
        """Sum of the forms along an axis. None: over all."""
        places = np.arange(self.size).reshape(self.shape)
        if axis is None:
            places = places.reshape(1, -1)
            shape: tuple[int, ...] = ()
        else:
            places = np.moveaxis(places, axis, -1)
            shape = places.shape[:-1]
            places = places.reshape(-1, places.shape[-1])
        chosen = self.terms.select(places.ravel())
        n, width = places.shape
        starts = chosen.starts[::width] if width else np.zeros(n + 1, np.intp)
        sums = sparse.csr_array(
            (np.ones(places.size), places.ravel(), np.arange(n + 1) * width), (n, self.size)
        )
        with np.errstate(over="ignore", invalid="ignore"):
            offset = self.offset[places].sum(axis=1)
        return LinearForm(
            self.graph,
            shape,
            chosen._replace(starts=np.ascontiguousarray(starts)),
            offset,
            tuple(part._replace(rows=sums @ part.rows) for part in self.parts),
        )


def finite_rows(X: RowsGiven, d: int) -> Matrix:
    """Check X of X @ variables, (n, d). Returns an array of doubles or a CSR matrix."""
    rows = _checks.rows("X", X, d)
    if not np.isfinite(entries_of(rows)).all():
        raise ValueError("X holds NaN or infinity; allowed: finite numbers")
    if is_sparse(rows):
        doubles: CSR = sparse.csr_array(rows, dtype=np.float64)
        return doubles
    return np.ascontiguousarray(rows, dtype=np.float64)


def together(**shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The shape to which arrays of these shapes broadcast. Names are for the message."""
    try:
        return np.broadcast_shapes(*shapes.values())
    except ValueError:
        shown = " and ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(
            f"shapes of {shown} do not broadcast; allowed: shapes that NumPy broadcasts"
        ) from None


def spread(name: str, value: ArrayLike, shape: tuple[int, ...]) -> AnyArray:
    """An array broadcast to a shape."""
    given = np.asarray(value)
    if given.shape == shape:
        return given
    try:
        return np.broadcast_to(given, shape)
    except ValueError:
        raise ValueError(
            f"{name} has shape {np.shape(value)}; allowed: a number, or a shape that broadcasts "
            f"to {shape}"
        ) from None


class Variables(Linear):
    """An array of variables of a graph, which is indexed and sliced like a NumPy array.

    Arithmetic of Gaussian variables makes linear forms: ``s[home] - s[away] + edge``, ``2 * x``,
    ``X @ w``. ``post[variables]`` is the belief about them.
    """

    def __init__(self, graph: str, family: str, numbers: Index, width: int = 2) -> None:
        #: identity of their graph
        self.graph = graph
        #: "gaussian", "gamma", "beta", "categorical" or "dirichlet"
        self.family = family
        #: number of each in its graph
        self.numbers = numbers
        #: number of natural parameters of each, for the last two that of categories
        self.width = width

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape

    @property
    def size(self) -> int:
        return self.numbers.size

    @property
    def ndim(self) -> int:
        return self.numbers.ndim

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("a single variable has no length")
        return self.shape[0]

    def __getitem__(self, key: Key) -> Variables:
        parts = key if isinstance(key, tuple) else (key,)
        for part in parts:
            if isinstance(part, (slice, type(None), type(Ellipsis))):
                continue
            if isinstance(part, Linear) or np.asarray(part).dtype.kind not in "iub":
                raise TypeError(
                    f"an index of variables is {_checks.describe(part)}; allowed: whole numbers, "
                    "slices, or booleans"
                )
        try:
            numbers = np.asarray(self.numbers[key], dtype=np.intp)
            return type(self)(self.graph, self.family, numbers, self.width)
        except IndexError as error:
            raise IndexError(f"variables of shape {self.shape}: {error}") from None

    def reshape(self, *shape: int) -> Variables:
        return type(self)(self.graph, self.family, self.numbers.reshape(*shape), self.width)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.family}, shape={self.shape})"

    def held(self) -> list[tuple[Index, str, int]]:
        return [(self.numbers, self.family, self.width)]

    def form(self) -> LinearForm:
        if self.family != "gaussian":
            raise TypeError(
                f"a linear form is over {self.family} variables; allowed: scalar Gaussian variables"
            )
        n = self.size
        terms = Terms(np.arange(n + 1), self.numbers.ravel().astype(np.intp), np.ones(n))
        return LinearForm(self.graph, self.shape, terms, np.zeros(n))

    def sum(self, axis: int | None = None) -> LinearForm:
        """Sum of Gaussian variables along an axis. None: over all."""
        return self.form().sum(axis)

    def __rmatmul__(self, X: RowsGiven) -> LinearForm:
        """Linear forms X @ variables: one per row of X, dense or CSR."""
        if self.ndim != 1:
            raise ValueError(f"X @ variables of shape {self.shape}; allowed: one axis, (d,)")
        self.form()
        rows = finite_rows(X, self.size)
        n = rows.shape[0]
        if is_sparse(rows):
            starts, columns = rows.indptr.astype(np.intp), rows.indices
            coefficient = np.asarray(rows.data, dtype=np.float64)
        else:
            starts = np.arange(n + 1) * self.size
            columns = np.tile(np.arange(self.size), n)
            coefficient = np.array(rows, dtype=np.float64).ravel()
        terms = Terms(starts.astype(np.intp), self.numbers[columns], coefficient)
        return LinearForm(self.graph, (n,), terms, np.zeros(n))


class Scales(Variables):
    """Standard deviations s of a graph. Its factors use the gamma variables 1 / s^2."""


class Block(Linear):
    """An array of d Gaussian variables of a graph, whose belief keeps all correlations.

    Its entries are linear forms, and so are sums of them, such as ``w[0] - w[2]``, and ``X @ w``,
    one per row of X, of a block with one axis. ``post[w]`` is the belief about the block.
    """

    def __init__(self, graph: str, number: int, shape: tuple[int, ...]) -> None:
        #: identity of its graph
        self.graph = graph
        #: its number among the variables of the graph
        self.number = number
        self.shape = shape

    @property
    def size(self) -> int:
        return math.prod(self.shape)

    @property
    def d(self) -> int:
        return self.size

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"Block(shape={self.shape})"

    def form(self) -> LinearForm:
        return self._forms(sparse.csr_array(sparse.eye_array(self.size)), self.shape)

    def __getitem__(self, key: Key) -> LinearForm:
        return self.form()[key]

    def reshape(self, *shape: int) -> LinearForm:
        """The entries in another shape."""
        return self.form().reshape(*shape)

    def sum(self, axis: int | None = None) -> LinearForm:
        """Sum of entries along an axis. None: over all."""
        return self.form().sum(axis)

    def __rmatmul__(self, X: RowsGiven) -> LinearForm:
        """Linear forms X @ w: one per row of X, dense or CSR."""
        if len(self.shape) != 1:
            raise ValueError(
                f"X @ a block of shape {self.shape}; allowed: one axis, as that of g.block(d)"
            )
        rows = finite_rows(X, self.size)
        return self._forms(rows, rows.shape[:1])

    def _forms(self, rows: Matrix, shape: tuple[int, ...]) -> LinearForm:
        n = rows.shape[0]
        part = BlockTerms(self.number, rows)
        return LinearForm(self.graph, shape, no_terms(n), np.zeros(n), (part,))

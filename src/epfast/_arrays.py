"""Arrays: their types, slices of their rows, and triangles."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, Self, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    Slice = slice[int | None, int | None, int | None]
    #: neighbours
    Piece = slice[int, int, None]
else:
    Slice = Piece = slice

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
#: rows that are selected
Which = Slice | Indices | NDArray[np.bool_]
#: a function of the user's: which arguments it takes is said where it is taken
UserFunction = Callable[..., ArrayLike]


class COO(Protocol):
    """What is read of a ``scipy.sparse`` COO matrix or array."""

    data: Array
    row: Indices
    col: Indices


class CSR(Protocol):
    """What is read of a ``scipy.sparse`` CSR matrix or array, which has no types of its own."""

    data: Array
    indices: NDArray[np.integer]
    indptr: NDArray[np.integer]
    shape: tuple[int, int]
    dtype: np.dtype[np.generic]

    @property
    def nnz(self) -> int: ...

    @property
    def T(self) -> CSR: ...  # noqa: N802

    def toarray(self) -> Array: ...

    def tocsr(self) -> CSR: ...

    def copy(self) -> Self: ...

    def multiply(self, other: Array | CSR) -> CSR: ...

    def count_nonzero(self) -> int: ...

    def sum(self, axis: int | None = None) -> Array: ...

    def power(self, n: float, dtype: type[float]) -> CSR: ...

    def tocoo(self) -> COO: ...

    def sum_duplicates(self) -> None: ...

    @property
    def has_canonical_format(self) -> bool: ...

    def diagonal(self) -> Array: ...

    @overload
    def __getitem__(self, which: tuple[int, int], /) -> float: ...

    @overload
    def __getitem__(self, which: int | Which | tuple[Which, Which | list[int]], /) -> CSR: ...

    def __add__(self, other: CSR, /) -> CSR: ...

    @overload
    def __sub__(self, other: CSR, /) -> CSR: ...

    @overload
    def __sub__(self, other: Array, /) -> Array: ...

    def __mul__(self, other: Array, /) -> CSR: ...

    def __rmul__(self, other: float, /) -> CSR: ...

    def __abs__(self) -> CSR: ...

    @overload
    def __matmul__(self, other: Array, /) -> Array: ...

    @overload
    def __matmul__(self, other: CSR, /) -> CSR: ...

    def __rmatmul__(self, other: Array, /) -> Array: ...


#: rows, or a precision
Matrix = Array | CSR


class SparseGiven(Protocol):
    """A matrix of ``scipy.sparse`` of any format, as a user gives it."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def dtype(self) -> np.dtype[np.generic]: ...

    def tocsr(self) -> CSR: ...


#: numbers as a user gives them, which may be left out
Given = ArrayLike | None
#: rows as a user gives them: dense, sparse, or chunks (X, y) of a stream
RowsGiven = Given | SparseGiven | Iterable[tuple[ArrayLike, ArrayLike]]
#: an array of the dtype that a user gave
AnyArray = NDArray[Any]


def is_sparse(matrix: Matrix) -> TypeIs[CSR]:
    """Whether a matrix is CSR, and not dense."""
    return hasattr(matrix, "indptr")


#: rows of a square matrix per slice, and numbers of other arrays at a time
ROWS, NUMBERS = 256, 1 << 20


def slices(n: int) -> list[Piece]:
    """Slices of the rows of a square matrix of order n, ROWS rows each."""
    return [slice(i, min(i + ROWS, n)) for i in range(0, n, ROWS)]


def entries_of(rows: Matrix) -> Array:
    """The entries of rows, or of sites. Of a sparse matrix the stored ones."""
    return rows.data if is_sparse(rows) else np.asarray(rows)


def pieces(n: int, width: int, entries: int | None = None) -> list[Piece]:
    """Slices of n things of ``width`` numbers each, with about ``entries`` numbers, or NUMBERS."""
    step = max(1, (NUMBERS if entries is None else entries) // max(1, width))
    return [slice(i, min(i + step, n)) for i in range(0, n, step)]


def row_chunks(rows: Matrix, entries: int | None = None, unpacked: bool = False) -> list[Piece]:
    """Slices of rows with about ``entries`` numbers each, or NUMBERS: temporary arrays stay small.

    Of CSR rows these are nonzeros, unless the rows are to be unpacked.
    """
    n, width = rows.shape
    if is_sparse(rows) and not unpacked:
        width = rows.nnz // max(1, n)
    return pieces(n, width, entries)


def to_float64(given: AnyArray) -> Array:
    """Convert to C-contiguous float64. A long double out of range silently becomes infinity."""
    if given.dtype == np.float64 and given.flags.c_contiguous and given.flags.aligned:
        return given
    with np.errstate(over="ignore", invalid="ignore"):
        return np.array(given, dtype=np.float64, order="C")


def symmetric_from_upper(upper: Array) -> Array:
    """The symmetric matrix with this upper triangle. The core keeps upper triangles only."""
    below = np.tri(len(upper), k=-1, dtype=np.bool_)
    return np.where(below, upper.T, upper)


def as_array(visits: NDArray[np.intp] | range) -> NDArray[np.intp]:
    """An order of visits as an array."""
    if isinstance(visits, range):
        return np.arange(visits.start, visits.stop, visits.step, dtype=np.intp)
    return visits

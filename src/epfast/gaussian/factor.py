"""Pivoted incomplete Cholesky factors of a kernel matrix, from its columns on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import scipy
from numpy.typing import ArrayLike
from scipy import linalg

from epfast import _checks
from epfast._arrays import Array, Indices, Matrix, is_sparse
from epfast.gaussian.prior import ROUNDING, square
from epfast.gaussian.rows import check_finite
from epfast.inference.runtime import one_blas_thread

__all__ = ["KernelColumns", "LowRankFactor", "incomplete_cholesky"]

#: largest difference between two values of one entry, relative to the largest diagonal entry
AGREEMENT = 1e-8
#: columns prepared at a time: those of the largest residuals are likely to be the next pivots, and
#: a product of G with a few vectors takes little longer than with one
AHEAD = 32
#: columns after which it is looked whether the error shrinks fast enough, and how far beyond the
#: most columns it may be projected
PROJECTED, SLACK = 256, 2.0
#: entries of X per call of a kernel object
CHUNK = 1 << 18


class KernelOfInputs(Protocol):
    """What is used of a kernel of sklearn.gaussian_process.kernels."""

    def diag(self, X: ArrayLike, /) -> Array: ...

    def __call__(self, X: ArrayLike, Y: ArrayLike, /) -> Array: ...


@dataclass(frozen=True, eq=False)
class KernelColumns:
    """A kernel matrix K that is never formed: its diagonal, and its columns when asked for.

    Parameters
    ----------
    diagonal : array_like of shape (n,)
        Kernel of each input with itself, >= 0.
    column : callable
        ``column(i)`` is the kernel of all inputs with input i, (n,), K[:, i]; it may be a view.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> x = np.linspace(0.0, 1.0, 1000)
    >>> K = epfast.KernelColumns(np.ones(1000), lambda i: np.exp(-np.abs(x - x[i])))
    >>> bool(epfast.incomplete_cholesky(K, 50).residual.max() < 0.02)
    True
    """

    diagonal: Array
    column: Callable[[int], ArrayLike]

    def __post_init__(self) -> None:
        diagonal = _checks.array("diagonal", self.diagonal, shape=(None,)).copy()
        if diagonal.size == 0 or not (diagonal >= 0.0).all():
            raise ValueError(
                f"diagonal is {_checks.describe(self.diagonal)}, empty or with a negative entry; "
                "allowed: numbers >= 0, one at least"
            )
        _checks.function("column", self.column, "i")
        diagonal.flags.writeable = False
        object.__setattr__(self, "diagonal", diagonal)

    @classmethod
    def rbf(
        cls, X: ArrayLike | Matrix, length_scale: float, variance: float = 1.0
    ) -> KernelColumns:
        """The kernel ``variance exp(-|x - z|^2 / (2 length_scale^2))``.

        Parameters
        ----------
        X : array_like or sparse matrix of shape (n, d)
            The inputs. The kernel keeps a copy of a dense X. A scipy.sparse CSR matrix of float64
            is used in place, whose distances lose digits far from 0.
        length_scale, variance : float
            > 0.

        Returns
        -------
        KernelColumns
            A column costs one pass over X.
        """
        scale = _checks.number("length_scale", length_scale, above=0.0)
        height = _checks.number("variance", variance, above=0.0)
        rows = _checks.rows("X", X)
        check_finite(rows)
        if is_sparse(rows):
            with np.errstate(over="ignore"):
                squares = np.asarray(rows.multiply(rows).sum(axis=1)).ravel()
            if not np.isfinite(squares).all():
                raise ValueError("X holds numbers whose squares overflow; allowed: below 1e150")
        else:
            rows = np.array(rows, dtype=np.float64)

        def distances(i: int) -> Array:
            """Squared distances of input i to all of them."""
            if not is_sparse(rows):
                cdist = scipy.spatial.distance.cdist
                return np.asarray(cdist(rows, rows[i : i + 1], "sqeuclidean").ravel())
            distance = rows @ rows[i : i + 1].toarray().ravel()
            distance *= -2.0
            distance += squares
            distance += squares[i]
            # the distance of an input to itself is 0; rounding must not make any negative
            distance[i] = 0.0
            return np.asarray(np.maximum(distance, 0.0, out=distance))

        def column(i: int) -> Array:
            result = distances(i)
            with np.errstate(over="ignore"):
                result /= scale
                result /= -2.0 * scale
            np.exp(result, out=result)
            result *= height
            return result

        return cls(np.full(rows.shape[0], height), column)

    @classmethod
    def from_sklearn(cls, kernel: KernelOfInputs, X: ArrayLike) -> KernelColumns:
        """A kernel object of scikit-learn on given inputs.

        Parameters
        ----------
        kernel : sklearn.gaussian_process.kernels.Kernel
            Without white noise, which no column of low rank can hold.
        X : array_like of shape (n, d)
            The inputs; (n,) of any kind for a kernel on texts, graphs and the like.

        Returns
        -------
        KernelColumns
        """
        if not (callable(kernel) and hasattr(kernel, "diag")):
            raise TypeError(
                f"kernel is {_checks.describe(kernel)}; allowed: a kernel of "
                "sklearn.gaussian_process.kernels"
            )
        vectors = getattr(kernel, "requires_vector_input", True)
        rows = _checks.array("X", X, shape=(None, None)) if vectors else np.asarray(X)
        n = len(rows)
        step = max(1, CHUNK // max(1, rows.size // max(1, n)))

        def column(i: int) -> Array:
            # by chunks, since kernels copy their arguments
            parts = [kernel(rows[k : k + step], rows[i : i + 1]).ravel() for k in range(0, n, step)]
            return np.concatenate(parts)

        return cls(kernel.diag(rows), column)


@dataclass(frozen=True, eq=False)
class LowRankFactor:
    """K ~ G G' with the columns of K at the pivots reproduced exactly.

    Attributes
    ----------
    G : ndarray of shape (n, r)
        C-contiguous. ``G[pivots]`` is lower triangular, with a positive diagonal.
    pivots : ndarray of int of shape (r,)
        The inputs whose columns were taken, in order.
    residual : ndarray of shape (n,)
        Diagonal of K - G G', >= 0.
    traces : ndarray of shape (r + 1,)
        Trace of K - G G' with 0, 1, ..., r columns: its error in the nuclear norm.
    """

    G: Array
    pivots: Indices
    residual: Array
    traces: Array

    @property
    def rank(self) -> int:
        """r, the number of columns."""
        return len(self.pivots)


def incomplete_cholesky(
    K: ArrayLike | KernelColumns, rank: int, *, tol: float = 0.0
) -> LowRankFactor:
    """Pivoted incomplete Cholesky factorisation of a kernel matrix that is not formed.

    The next pivot is the input with the largest residual variance (Fine & Scheinberg 2001, figure
    2; Harbrecht, Peters & Schneider 2012, algorithm 1). O(n r^2) time, r columns of K. In memory
    the n ``rank`` numbers of a factor, and n r more for a moment where it ends early.

    Parameters
    ----------
    K : array_like of shape (n, n), or KernelColumns
        Symmetric, positive semi-definite to rounding. An array is read by rows.
    rank : int
        Columns at most.
    tol : float
        Stop where the trace of K - G G' is at most this share of the trace of K. With 0 the factor
        ends at ``rank`` columns, or where the residual is at the level of rounding.

    Returns
    -------
    LowRankFactor

    Raises
    ------
    ValueError, TypeError
        With the name of the argument, what was given, and what is allowed. A kernel that is not
        positive semi-definite or not symmetric is refused where the columns that were asked for
        show it.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> x = np.linspace(-3, 3, 200)
    >>> K = np.exp(-0.5 * np.subtract.outer(x, x) ** 2)
    >>> factor = epfast.incomplete_cholesky(K, 100, tol=1e-8)
    >>> factor.rank, bool(np.abs(K - factor.G @ factor.G.T).max() < 1e-6)
    (15, True)
    """
    kernel = kernel_columns("K", K)
    most = _checks.integer("rank", rank, least=1)
    tol = _checks.number("tol", tol, least=0.0)
    return _extended(kernel, most, lambda _, traces: traces[-1] <= tol * traces[0])


def certified_factor(
    kernel: KernelColumns, precision: Array | float, most: int, nats: float
) -> LowRankFactor | None:
    """The factor that leaves a truncation error of at most so many nats. None: of too high a rank.

    It is given up, too, where its error shrinks too slowly to get there: O(n r^2) is lost then.

    Parameters
    ----------
    kernel : KernelColumns
    precision : ndarray of shape (n,), or float
        Of the sites; see :func:`truncation_error`.
    most : int
        Columns at most.
    nats : float

    Returns
    -------
    LowRankFactor or None
    """
    errors: list[float] = []

    def enough(residual: Array, traces: list[float]) -> bool:
        errors.append(truncation_error(precision, residual))
        k = len(traces) - 1
        if k > 0 and k % PROJECTED == 0:
            # as a power of the rank: errors of smooth kernels shrink faster
            slope = np.log2(errors[k // 2] / errors[k]) if errors[k] > 0.0 else np.inf
            if not k * (errors[k] / nats) ** (1.0 / slope) <= SLACK * most:
                return True
        return errors[-1] <= nats

    factor = _extended(kernel, most, enough, PROJECTED)
    return factor if truncation_error(precision, factor.residual) <= nats else None


def truncation_error(precision: Array | float, residual: Array) -> float:
    """What a factor changes of the log evidence, in nats: sum of |precision| residual / 2.

    An estimate, and no bound. Of probit sites it was 2 to 23 times the difference where that was
    below 1 nat, and more above, in 27 of 27 processes of 2, 8 and 20 columns. With Gaussian noise
    the evidence is above the exact one by no more than that (Titsias 2009).

    precision: of the sites; residual: variances that the factor leaves, (n,).
    """
    return 0.5 * float(np.sum(np.abs(precision) * residual))


def _extended(
    kernel: KernelColumns,
    most: int,
    enough: Callable[[Array, list[float]], bool],
    room: int | None = None,
) -> LowRankFactor:
    """Columns until the residual variances and the traces are enough, or only rounding is left.

    room: for so many columns there is memory at first, AHEAD or more. None: for all.
    """
    n = len(kernel.diagonal)
    most = min(most, n)
    residual = kernel.diagonal.copy()
    scale, eps = float(residual.max()), float(np.finfo(float).eps)
    pivots, traces = np.empty(most, dtype=np.intp), [float(residual.sum())]
    G = np.empty((n, min(most, room or most)))
    # columns since the last products; G is C-contiguous, so they are written some at a time
    recent = np.empty((min(AHEAD, most), n))
    products: dict[int, Array] = {}
    k = first = 0
    with one_blas_thread(most):
        while k < most and not enough(residual, traces):
            pivot = int(residual.argmax())
            # rounding error of a residual that is zero
            least = 10.0 * np.sqrt(n) * eps * scale
            if residual[pivot] <= least:
                break
            if pivot not in products:
                G = _with_columns(G, first, recent[: k - first], most)
                first = k
                likely = np.argsort(-residual, kind="stable")[: min(AHEAD, most - k)]
                block = G[likely, :k] @ G[:, :k].T
                products = dict(zip(likely.tolist(), block, strict=True))
            name, earlier, since = f"column({pivot}) of K", pivots[:k], recent[: k - first]
            values = _checks.real_array(name, kernel.column(pivot))
            if values.dtype.kind == "f":  # single precision: larger rounding errors
                eps = max(eps, float(np.finfo(values.dtype).eps))
            column = _checks.array(name, values, shape=(n,)) - products[pivot]
            column -= since[:, pivot] @ since
            _check_column(pivot, earlier, column, residual, max(AGREEMENT * scale, least))
            root = np.sqrt(residual[pivot])
            column /= root
            column[earlier], column[pivot] = 0.0, root
            recent[k - first] = column
            np.square(column, out=column)
            residual -= column
            residual[pivot] = 0.0
            if residual.min() < -max(ROUNDING * scale, least):
                raise ValueError(
                    f"K is not positive semi-definite: column({pivot}) leaves a residual variance "
                    f"of {residual.min():.2g}; allowed: a covariance matrix"
                )
            np.maximum(residual, 0.0, out=residual)
            pivots[k] = pivot
            k += 1
            traces.append(float(residual.sum()))
    G = _with_columns(G, first, recent[: k - first], most)
    return LowRankFactor(
        np.ascontiguousarray(G[:, :k]), pivots[:k].copy(), residual, np.array(traces)
    )


def _with_columns(G: Array, first: int, columns: Array, most: int) -> Array:
    """G with more columns, in its memory where there is room, else in twice as much."""
    end, (n, room) = first + len(columns), G.shape
    if end > room:
        G = np.concatenate([G, np.empty((n, min(most - room, room)))], axis=1)
    G[:, first:end] = columns.T
    return G


def factor_at(columns: Array, pivots: Indices, diagonal: Array) -> LowRankFactor:
    """The factor of a kernel matrix from its columns at given pivots: a smooth function of these.

    Pivots that the others reproduce to rounding are left out, and the order may change. O(n r^2).

    Parameters
    ----------
    columns : ndarray of shape (n, r)
        K[:, pivots].
    pivots : ndarray of int of shape (r,)
    diagonal : ndarray of shape (n,)
        Of K.

    Returns
    -------
    LowRankFactor
    """
    among = np.ascontiguousarray(columns[pivots])
    triangle, failed = linalg.lapack.dpotrf(among, lower=1, clean=1)
    least = among.diagonal().max(initial=0.0) * ROUNDING
    if failed or triangle.diagonal().min(initial=np.inf) ** 2 <= least:
        few = incomplete_cholesky(among, max(1, len(pivots)))
        pivots, columns = pivots[few.pivots], columns[:, few.pivots]
        triangle = np.tril(few.G[few.pivots])
    solved = linalg.solve_triangular(triangle, columns.T, lower=True, check_finite=False)
    G = np.ascontiguousarray(solved.T)
    # what the triangle holds exactly
    G[pivots] = triangle
    residual = np.maximum(diagonal - np.einsum("ij,ij->i", G, G), 0.0)
    traces = np.append(0.0, np.cumsum(np.einsum("ij,ij->j", G, G)))
    return LowRankFactor(G, pivots, residual, np.maximum(diagonal.sum() - traces, 0.0))


def _check_column(
    pivot: int, earlier: Indices, column: Array, residual: Array, most: float
) -> None:
    """Check that a column, minus its part from earlier ones, agrees with them and the diagonal.

    It is 0 at earlier pivots if K is symmetric.
    """
    gap = column[pivot] - residual[pivot]
    if abs(gap) > most:
        raise ValueError(
            f"K is not a kernel (entry {pivot} of column({pivot}) differs by {gap:.2g} from that "
            "of the diagonal); allowed: a covariance matrix"
        )
    gap = np.abs(column[earlier]).max(initial=0.0)
    if gap > most:
        raise ValueError(
            f"K is not symmetric (column({pivot}) differs by {gap:.2g} from earlier columns); "
            "allowed: a covariance matrix"
        )


def kernel_columns(name: str, K: ArrayLike | KernelColumns) -> KernelColumns:
    """A kernel given by the user, checked."""
    if isinstance(K, KernelColumns):
        return K
    matrix = _checks.real_array(name, K)
    square(name, matrix.shape)
    largest = _checks.covariance(name, matrix)
    if largest > (1.0 + AGREEMENT) * np.diag(matrix).max():
        raise ValueError(
            f"{name} is not positive semi-definite: its largest entry is not on the diagonal; "
            "allowed: a covariance matrix"
        )
    # symmetric: a row is a column, and lies in one piece
    by_rows = matrix if matrix.flags.c_contiguous else matrix.T
    return KernelColumns(np.diag(matrix), lambda i: by_rows[i])

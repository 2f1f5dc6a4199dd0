"""A sparse precision: the order in which its columns are eliminated, its factor, its moments.

Columns that many rows act on, as those of common effects, are dense. The others go first:

    P = [S  B],   S = R R' by its sparse factor, V = S^-1 B, T = C - B' V,
        [B' C]

so that the dense weights have the covariance T^-1, and given them, w, the others the mean S^-1 h -
V w and the covariance S^-1. A row (r, u) of both has the variance r' S^-1 r + (u - V' r)' T^-1 (u -
V' r), a sum of squares, and r asks for entries of S^-1 on the pattern alone: see
:mod:`epfast._core.sparse`.
"""

from __future__ import annotations

import math
import sys
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, sparse
from scipy.sparse.linalg import spilu

from epfast._arrays import CSR, Array, Indices, Matrix, Piece, is_sparse
from epfast._core.cholesky import gaussian_moments
from epfast._core.row_sweeps import add_sites
from epfast._core.rows import Rows
from epfast._core.sparse import SparseFactor, SparseRows, elimination_tree, factor_pattern
from epfast.inference.runtime import cached_property

#: share of the rows that act on a dense column, at least
DENSE = 0.25
#: the last columns, of whose entries so many are in the factor, are one dense matrix: of InstEval's
#: 4,128 columns 1,255
FILLED = 0.6
#: operations of LAPACK that take the time of one beside it, on matrices of some hundred columns
BLAS = 16.0
#: columns by their degree are tried first, and kept if nothing is filled but the last ones: minimum
#: degree takes minutes where two groups of 10^5 and 10^4 levels cross. The factor is given up where
#: it has so many times the entries of the pattern
MOST_FILL = 50
#: numbers of a factor at most, 8 GB
MOST_NUMBERS = 1 << 30
#: entries of dense columns that are made at a time
PART = 1 << 24


def as_csr(rows: Matrix) -> CSR:
    """Rows as CSR."""
    if is_sparse(rows):
        return rows
    packed: CSR = sparse.csr_array(np.asarray(rows, np.float64))
    return packed


def dense_columns(X: CSR) -> Indices:
    """Columns that many rows of CSR X act on, (c,)."""
    counts = np.bincount(X.indices, minlength=X.shape[1])
    return np.flatnonzero(counts >= DENSE * X.shape[0])


def inner_entries(X: CSR, dense: Indices) -> tuple[NDArray[np.bool_], Indices]:
    """Which entries of CSR X are in no dense column, and where these of each row start."""
    kept = ~np.isin(X.indices, dense)
    return kept, np.append(0, np.cumsum(kept))[X.indptr]


def pairs_of(X: CSR, dense: Indices) -> float:
    """How many pairs of columns that are not dense the rows of CSR X have."""
    sizes = np.diff(inner_entries(X, dense)[1]).astype(np.float64)
    return float(np.sum(sizes**2) / 2.0)


def meetings(X: CSR, dense: Indices) -> CSR:
    """Where columns meet in rows of CSR X, but for dense ones, (d, d)."""
    kept, start = inner_entries(X, dense)
    ones = np.ones(int(kept.sum()), dtype=np.float32)
    rows = sparse.csr_array((ones, X.indices[kept], start), shape=X.shape)
    both: CSR = sparse.csr_array(rows.T @ rows)
    return both


def elimination_order(pattern: CSR) -> Indices:
    """Minimum degree of a symmetric pattern (d, d), by SuperLU: the columns in their order, (d,).

    An incomplete factor that drops everything costs no factorisation.
    """
    d = pattern.shape[0]
    if d == 0:
        return np.empty(0, dtype=np.intp)
    ones = sparse.csc_array(pattern, dtype=np.float64, copy=True)
    ones.data[:] = 1.0
    dominant = sparse.csc_array(ones + sparse.diags_array(2.0 + ones.sum(axis=0)))
    options = {"SymmetricMode": True}
    factors = spilu(
        dominant,
        drop_tol=1.0,
        fill_factor=1.0,
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options=options,
    )
    return np.argsort(factors.perm_c).astype(np.intp)


class Pattern:
    """Which columns are dense, in which order the others go, and where their factor has entries."""

    def __init__(
        self, dense: Indices, order: Indices, start: Indices, row: NDArray[np.intc]
    ) -> None:
        """dense (c,), order (s,): columns, s + c = d. start, row: of the factor."""
        self.dense, self.order, self.start, self.row = dense, order, start, row

    def __getstate__(self) -> dict[str, Indices]:
        return {name: vars(self)[name] for name in ("dense", "order", "start", "row")}

    @classmethod
    def of(cls, matrix: CSR, dense: Indices) -> Pattern:
        """The pattern of a symmetric matrix (d, d), CSR, dense: columns that go last."""
        rest = np.setdiff1d(np.arange(matrix.shape[0]), dense)
        inner = sparse.csc_array(matrix)[:, rest][rest]
        first = np.argsort(np.diff(inner.indptr), kind="stable")
        elimination = eliminated(inner, first, MOST_FILL * inner.nnz)
        if elimination is None or elimination.fills:
            first = elimination_order(inner)
            elimination = eliminated(inner, first)
        assert elimination is not None
        check_memory(elimination.counts, elimination.lead)
        return cls(dense, rest[first], *factor_pattern(*elimination[:-1]))

    @property
    def d(self) -> int:
        return len(self.dense) + len(self.order)

    @cached_property
    def core(self) -> SparseFactor:
        return SparseFactor(self.start, self.row, len(self.order))

    @cached_property
    def rank(self) -> Indices:
        """The number of each column among the dense or the others, (d,)."""
        rank = np.empty(self.d, dtype=np.intp)
        rank[self.dense], rank[self.order] = np.arange(len(self.dense)), np.arange(len(self.order))
        return rank

    @cached_property
    def is_dense(self) -> NDArray[np.bool_]:
        """(d,)."""
        return np.isin(np.arange(self.d), self.dense)

    @cached_property
    def diagonal(self) -> Indices:
        """Where the diagonal of S is among its numbers, (s,)."""
        every = np.arange(len(self.order))
        return self.core.places(every, every)

    @property
    def work(self) -> float:
        """Operations of a factor and its inverse, about."""
        by_column = np.diff(self.start).astype(np.float64)
        return float((by_column**2).sum()) + 0.5 * self.core.last**3 / BLAS

    def split(self, matrix: CSR) -> tuple[Array, Array, Array]:
        """The numbers of S, B (s, c) and C (c, c) of a symmetric CSR matrix within the pattern."""
        inner, across, both = self._places(matrix)
        s, c = len(self.order), len(self.dense)
        parts = np.zeros(self.core.size), np.zeros((s, c)), np.zeros((c, c))
        for part, (to, of) in zip(parts, (inner, across, both), strict=True):
            part.ravel()[to] = matrix.data[of]
        return parts

    def _places(self, matrix: CSR) -> tuple[tuple[Indices, Indices], ...]:
        """Where the entries of a CSR matrix go: in S, B and C, to which number from which entry."""
        indptr, indices = matrix.indptr, matrix.indices
        cached = vars(self).get("_last")
        if cached is not None and all(map(np.array_equal, cached[:2], (indptr, indices))):
            places: tuple[tuple[Indices, Indices], ...] = cached[2]
            return places
        row = np.repeat(np.arange(self.d), np.diff(indptr))
        is_dense, across = self.is_dense[row], self.is_dense[indices]
        i, j, c = self.rank[row], self.rank[indices], len(self.dense)
        none = np.flatnonzero(~is_dense & ~across & (i >= j))
        places_of_S = self.core.places(i[none], j[none])
        if (places_of_S < 0).any():
            raise ValueError("the matrix has entries outside the pattern")
        mixed, both = np.flatnonzero(~is_dense & across), np.flatnonzero(is_dense & across)
        of_rest = ((i[of] * c + j[of], of) for of in (mixed, both))
        places = (places_of_S, none), *of_rest
        self._last = indptr, indices, places
        return places


class Elimination(NamedTuple):
    """What an order makes of a symmetric pattern."""

    #: the upper triangle by columns, the tree, and how many columns have a sparse factor
    start: Indices
    row: NDArray[np.intc]
    parents: Indices
    counts: Indices
    lead: int
    #: whether these columns get entries that the pattern has not
    fills: bool


def eliminated(pattern: CSR, order: Indices, most: int = sys.maxsize) -> Elimination | None:
    """A symmetric pattern, CSC, in some order. None: the factor has more entries than that."""
    upper = sparse.csc_array(sparse.triu(pattern[:, order][order]))
    upper.sort_indices()
    start, row = upper.indptr.astype(np.intp), upper.indices.astype(np.intc)
    tree = elimination_tree(start, row, most)
    if tree is None:
        return None
    lead = last_ones(tree[1])
    own = np.bincount(row, minlength=len(order)) - 1  # the diagonal is there
    return Elimination(start, row, *tree, lead, bool((tree[1] > own)[:lead].any()))


def last_ones(counts: Indices) -> int:
    """How many columns go before those whose entries are nearly all in the factor."""
    d = len(counts)
    rest = d - np.arange(d)
    entries = np.cumsum((counts + 1.0)[::-1])[::-1]
    filled = entries >= FILLED * rest * (rest + 1) / 2.0
    return int(np.argmax(filled)) if filled.any() else d


def check_memory(counts: Indices, lead: int) -> None:
    """Refuse a factor that would not fit."""
    numbers = int(counts[:lead].sum()) + lead + (len(counts) - lead) ** 2
    if numbers > MOST_NUMBERS:
        raise MemoryError(
            f"the factor of the precision would have {numbers:,} numbers, {8e-9 * numbers:,.0f} "
            f"GB; allowed: up to {MOST_NUMBERS:,}; fewer columns that meet in rows or in the "
            "prior, or posterior='factorized'"
        )


class Kriging(NamedTuple):
    """Constraints A w = 0 on a Gaussian of precision P (Rue and Held 2005, section 2.3.3).

    With A P^-1 A' = L L' the covariance is P^-1 - K K', and a draw w becomes w - K M w.
    """

    #: K = P^-1 A' L'^-1, (d, k), and M = L^-1 A, (k, d)
    along: Array
    against: Array


class Moments(NamedTuple):
    """A Gaussian by the factor of its sparse precision P, under constraints if there are some."""

    pattern: Pattern
    #: the factor of S; V (s, c); covariance (c, c) of the dense weights and its root T, T T'
    numbers: Array
    slope: Array
    covariance: Array
    root: Array
    #: (d,)
    mean: Array
    #: log det P, under constraints with log det A P^-1 A', of the space that they leave
    log_determinant: float
    #: log of the integral of exp(shift.w - w' P w / 2) and what else its maker knows, but for 2 pi
    log_mass: float
    #: None: no constraints
    bound: Kriging | None = None
    #: entries of S^-1 on the pattern, and variances of the weights, (d,). None: not at hand
    inverse: Array | None = None
    variance: Array | None = None

    def of_mass(self, at_mean: float) -> Moments:
        """The same with the log mass of what is at_mean at the mean, whose rounding is its own."""
        return self._replace(log_mass=at_mean - 0.5 * self.log_determinant)

    def bounded(self, variance: Array, rows: CSR) -> Array:
        """Variances of x.w of rows (n, d) without the constraints, (n,), with them."""
        if self.bound is None:
            return variance
        return np.maximum(variance - squares(np.asarray(rows @ self.bound.along)), 0.0)

    def half(self, columns: Array) -> Array:
        """H (d, m) with H' H = columns' P^-1 columns, for columns (d, m)."""
        pattern = self.pattern
        inner = np.array(columns[pattern.order], order="C")
        outer = columns[pattern.dense] - self.slope.T @ inner
        pattern.core.solve(self.numbers, inner, "half")
        return np.concatenate([inner, self.root.T @ outer])

    def products(self, columns: Array) -> Array:
        """The covariance times columns (d, m)."""
        pattern = self.pattern
        inner = np.array(columns[pattern.order], order="C")
        outer = self.covariance @ (columns[pattern.dense] - self.slope.T @ inner)
        pattern.core.solve(self.numbers, inner)
        result = np.empty(columns.shape)
        result[pattern.order], result[pattern.dense] = inner - self.slope @ outer, outer
        if self.bound is None:
            return result
        return result - self.bound.along @ (self.bound.along.T @ columns)

    def colored(self, noise: Array) -> Array:
        """Standard normal draws (k, d) as draws about the mean, (k, d)."""
        pattern = self.pattern
        inner = np.array(noise[:, pattern.order].T, order="C")
        pattern.core.solve(self.numbers, inner, "back")
        outer = self.root @ noise[:, pattern.dense].T
        result = np.empty(noise.shape)
        result[:, pattern.order], result[:, pattern.dense] = (inner - self.slope @ outer).T, outer.T
        if self.bound is None:
            return result
        return result - (result @ self.bound.against.T) @ self.bound.along.T

    def with_inverse(self) -> Moments:
        """The same, with entries of S^-1 and variances at hand."""
        if self.inverse is not None:
            return self
        pattern, inverse = self.pattern, self.pattern.core.inverse(self.numbers)
        variance = np.empty(pattern.d)
        variance[pattern.order] = inverse[pattern.diagonal] + squares(self.slope @ self.root)
        variance[pattern.dense] = squares(self.root)
        if self.bound is not None:
            variance = np.maximum(variance - squares(self.bound.along), 0.0)
        return self._replace(inverse=inverse, variance=variance)

    def entries(self) -> Array:
        """Entries of S^-1 on the pattern."""
        inverse = self.inverse
        return self.pattern.core.inverse(self.numbers) if inverse is None else inverse

    def variances(self) -> Array:
        """Variances of the weights, (d,)."""
        variance = self.variance if self.variance is not None else self.with_inverse().variance
        assert variance is not None
        return variance

    def covariances_of(self, columns: Indices) -> Array:
        """Covariances (k, q, q) of the weights in each row of columns (k, q)."""
        pattern, (k, q) = self.pattern, columns.shape
        inverse = self.entries()
        pairs = columns[:, :, None], columns[:, None, :]
        one, other = (np.broadcast_to(of, (k, q, q)) for of in pairs)
        inner = ~(pattern.is_dense[one] | pattern.is_dense[other])
        places = np.zeros(one.shape, dtype=np.intp)
        places[inner] = pattern.core.places(pattern.rank[one[inner]], pattern.rank[other[inner]])
        beside = np.zeros((pattern.d, len(self.root)))
        beside[pattern.order] = -self.slope @ self.root
        beside[pattern.dense] = self.root
        result = np.zeros(one.shape)
        result[inner] = inverse[places[inner]]
        result += beside[columns] @ np.swapaxes(beside[columns], 1, 2)
        if self.bound is not None:
            reach = self.bound.along[columns]
            result -= reach @ np.swapaxes(reach, 1, 2)
        for i in np.flatnonzero((places < 0).any(axis=(1, 2))):  # columns that do not meet
            units = np.zeros((pattern.d, q))
            units[columns[i], np.arange(q)] = 1.0
            result[i] = self.products(units)[columns[i]]
        return result


def squares(rows: Array) -> Array:
    """Sums of squares of rows (k, c), (k,)."""
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def moments(
    pattern: Pattern,
    parts: tuple[Array, Array, Array],
    shift: Array,
    constraints: Array | None = None,
) -> Moments | None:
    """The Gaussian of a precision and a shift (d,). None: it is improper.

    parts: numbers of S, which are overwritten, B and C, see :meth:`Pattern.split`. constraints:
    (k, d). O(work of the pattern).
    """
    core, (numbers, B, C) = pattern.core, parts
    with np.errstate(all="ignore"):
        if not core.factor(numbers):
            return None
        c = len(pattern.dense)
        both = np.column_stack([B, shift[pattern.order]])
        core.solve(numbers, both, "half")
        half, own = both[:, :c], both[:, c].copy()
        log_determinant = core.log_determinant(numbers)
        mean, covariance = np.empty(pattern.d), np.empty((c, c))
        root: Array | None = np.empty((c, c))
        if c:
            rest = gaussian_moments(C - half.T @ half, shift[pattern.dense] - half.T @ own, True)
            if rest is None:
                return None
            covariance, mean[pattern.dense], _, root = rest
            assert root is not None
            log_determinant -= 2.0 * float(np.log(root.diagonal()).sum())
            both[:, c] -= half @ mean[pattern.dense]
        core.solve(numbers, both, "back")
        mean[pattern.order] = both[:, c]
        slope = np.ascontiguousarray(both[:, :c])
        if not (math.isfinite(log_determinant) and np.isfinite(mean).all()):
            return None
    assert root is not None
    free = Moments(pattern, numbers, slope, covariance, root, mean, log_determinant, math.nan)
    whole = free if constraints is None else conditioned(free, constraints)
    return None if whole is None else whole.of_mass(0.5 * float(shift @ whole.mean))


def conditioned(free: Moments, constraints: Array) -> Moments | None:
    """The same under constraints (k, d). None: they are dependent to rounding."""
    along = free.products(constraints.T)
    try:
        factor = linalg.cholesky(constraints @ along, lower=True)
    except (linalg.LinAlgError, ValueError):
        return None
    against = linalg.solve_triangular(factor, constraints, lower=True)
    along = linalg.solve_triangular(factor, along.T, lower=True).T
    gap = against @ free.mean
    log_determinant = free.log_determinant + 2.0 * float(np.log(factor.diagonal()).sum())
    bound = Kriging(along, against)
    return free._replace(mean=free.mean - along @ gap, bound=bound, log_determinant=log_determinant)


class RowsOnPattern:
    """Rows of a CSR matrix X on a pattern: what they add to a precision, and their moments."""

    def __init__(self, pattern: Pattern, X: CSR) -> None:
        self.pattern, self.X, self.n = pattern, X, X.shape[0]
        self.U = np.ascontiguousarray(X[:, pattern.dense].toarray(), dtype=np.float64)
        kept, start = inner_entries(X, pattern.dense)
        columns = pattern.rank[X.indices[kept]]
        shape = self.n, len(pattern.order)
        rows = sparse.csr_array((X.data[kept], columns, start), shape=shape)
        rows.sum_duplicates()
        starts, of = rows.indptr.astype(np.intp), rows.indices.astype(np.intc)
        self.core = SparseRows(starts, of, rows.data.astype(np.float64), pattern.core)

    @classmethod
    def of(cls, X: CSR, precision: CSR, dense: Indices) -> RowsOnPattern:
        """Rows on the pattern that they make with a precision (d, d), CSR."""
        return cls(Pattern.of(abs(precision) + meetings(X, dense), dense), X)

    @property
    def work(self) -> float:
        """Operations of a sum over the rows, and of their variances, about."""
        return float(2.0 * self.core.n_pairs + self.U.size * (1.0 + self.U.shape[1] / BLAS))

    def add(self, precision: Array, shift: Array, parts: tuple[Array, Array, Array]) -> Array:
        """Add sum_i precision_i x_i x_i' to parts of a matrix. Return sum_i shift_i x_i, (d,)."""
        (numbers, B, C), pattern = parts, self.pattern
        inner, total = np.zeros(len(pattern.order)), np.zeros(pattern.d)
        U, to = (self.U, B) if len(C) else (None, None)
        self.core.add(precision, shift, numbers, inner, U, to)
        total[pattern.order] = inner
        if len(C):
            outer = np.zeros(len(C))
            add_sites(Rows(self.U), precision, shift, C, outer)
            total[pattern.dense] = outer
        return total

    def marginals(self, now: Moments, part: Piece) -> tuple[Array, Array]:
        """Mean and variance of x.w of some rows."""
        (first, last, _), pattern = part.indices(self.n), self.pattern
        (h, s), mean = np.empty((2, last - first)), now.mean
        at_hand = now.entries(), mean[pattern.order], self.U, now.slope, now.root
        self.core.marginals(*at_hand, mean[pattern.dense], first, h, s)
        return h, s if now.bound is None else now.bounded(s, self.X[part])


def latent(rows: CSR, now: Moments) -> tuple[Array, Array]:
    """Mean and variance of x.w of CSR rows, which need not be those of the pattern."""
    on_pattern = RowsOnPattern(now.pattern, rows)
    mean, variance = on_pattern.marginals(now, slice(None))
    others = np.flatnonzero(~on_pattern.core.whole)  # columns that meet here alone
    step = max(1, PART // now.pattern.d)
    for some in (others[i : i + step] for i in range(0, len(others), step)):
        half = now.half(rows[some].T.toarray())
        variance[some] = now.bounded(squares(half.T), rows[some])
    return mean, variance


# ---- the pattern of a fit, and what it costs ----


#: a model of the time of a fit in nanoseconds: sweeps, and what a row takes in each beside its
#: pairs of columns
SWEEPS, OF_A_ROW = 10.0, 50.0
#: pivots of a precision of unit diagonal that are rounding
ROUNDING = 1e-14


class SparseDesign:
    """The pattern of rows and prior, the rows on it, and constraints (k, d) on the weights."""

    def __init__(
        self,
        pattern: Pattern,
        of_prior: Pattern,
        constraints: Array | None = None,
        rows: RowsOnPattern | None = None,
    ) -> None:
        """of_prior: the pattern of the prior alone, which takes less. rows: None, not known."""
        self.pattern, self.of_prior, self.constraints = pattern, of_prior, constraints
        self.rows = rows

    def __getstate__(self) -> dict[str, Pattern | Array | None]:
        return vars(self) | {"rows": None}

    @classmethod
    def of(cls, X: CSR, precision: CSR, dense: Indices, constraints: Array | None) -> SparseDesign:
        """X (n, d) and the prior precision (d, d), CSR. dense: columns that are so."""
        rows = RowsOnPattern.of(X, precision, dense)
        of_prior = Pattern.of(precision, np.empty(0, dtype=np.intp))
        return cls(rows.pattern, of_prior, constraints, rows)

    @property
    def nanoseconds(self) -> float:
        """What a fit takes, about."""
        assert self.rows is not None
        work = self.pattern.work + self.rows.work + OF_A_ROW * self.rows.n
        return float(SWEEPS * work)

    def with_rows(self, X: CSR) -> SparseDesign:
        """The same with the rows of the fit, or some of them."""
        rows = RowsOnPattern(self.pattern, X)
        if not rows.core.whole.all():
            raise ValueError(
                f"X has columns that meet in no row of the fit, first in row "
                f"{int(np.argmin(rows.core.whole))}; allowed: the rows that were fitted"
            )
        return SparseDesign(self.pattern, self.of_prior, self.constraints, rows)

    def without_rows(self) -> SparseDesign:
        return SparseDesign(self.pattern, self.of_prior, self.constraints)


def is_proper(design: SparseDesign, precision: CSR) -> bool:
    """Whether a precision is positive definite, beside rounding of its diagonal."""
    scale = 1.0 / np.sqrt(precision.diagonal())
    unit = sparse.csr_array(precision, copy=True)
    unit.data *= np.repeat(scale, np.diff(unit.indptr)) * scale[unit.indices]
    numbers, _, _ = design.of_prior.split(unit)
    core = design.of_prior.core
    return bool(core.factor(numbers) and core.least_pivot(numbers) > ROUNDING)


def dense_nanoseconds(X: CSR) -> float:
    """What a fit in matrices of order min(n, d) takes, about."""
    n, d = map(float, X.shape)
    work = 2.0 * n * d**2 + 2.0 * d**3 if d <= n else 2.0 * n**3 + n * X.nnz
    return work / BLAS

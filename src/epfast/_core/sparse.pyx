"""A positive definite matrix P of a fixed pattern: its factor, and entries of its inverse there.

The columns are in their order of elimination. The first ones, ``lead`` of them, have a factor
L D L', D diagonal, L of unit diagonal. What is left of the last ones, nearly all of whose entries
are in the factor, is one dense matrix, for LAPACK. All numbers of P are in one array of ``size``:

    the entries of L below the diagonal, column by column, then D, then the dense matrix, by columns

of which the lower triangle is read. A factor takes the place of P, and the inverse has the same
places. An entry of the inverse on the pattern follows from those of later columns (Takahashi, Fagan
and Chin 1973, Erisman and Tinney 1975, Rue and Martino 2007).
"""

import numpy as np

from libc.math cimport INFINITY, sqrt

from epfast._core.cholesky cimport factorize, heed_signals, invert_factored
from epfast._core.lapack cimport blas_int, dtrsm
from epfast._core.rows cimport in_range, long_enough

cdef enum:
    LOOK = 1 << 26              # numbers between two looks at signals


# ---- the pattern ----


def elimination_tree(
    const ptrdiff_t[::1] start not None, const int[::1] row not None, ptrdiff_t most=1 << 62
):
    """Parents of the columns, (n,), and how many entries of each are below its diagonal in L.

    start, row: P's upper triangle by columns, or more of it. None if L has more than ``most``
    entries. O(entries of L), in memory of n. (Liu 1990; Davis, ACM TOMS 849, 2005.)
    """
    cdef ptrdiff_t n = start.shape[0] - 1, k, p, i, total = 0
    parents, counts, flags = np.full(n, -1), np.zeros(n, np.intp), np.full(n, -1)
    cdef ptrdiff_t[::1] parent = parents, count = counts, flag = flags
    in_range("start", start, row.shape[0] + 1)
    for p in range(row.shape[0]):
        if not 0 <= row[p] < n:
            raise ValueError("row is out of range")
    with nogil:
        for k in range(n):
            flag[k] = k
            for p in range(start[k], start[k + 1]):
                i = row[p]
                while i < k and flag[i] != k:
                    if parent[i] == -1:
                        parent[i] = k
                    count[i] += 1
                    total += 1
                    flag[i] = k
                    i = parent[i]
            if total > most:
                break
            if k % 1024 == 0:
                heed_signals()
    return None if total > most else (parents, counts)


def factor_pattern(
    const ptrdiff_t[::1] start not None, const int[::1] row not None,
    const ptrdiff_t[::1] parent not None, const ptrdiff_t[::1] count not None, ptrdiff_t lead,
):
    """Where the first ``lead`` columns of L start, (lead + 1,), and their rows, rising in each."""
    cdef ptrdiff_t n = start.shape[0] - 1, k, p, i
    starts = np.zeros(lead + 1, np.intp)
    np.cumsum(np.asarray(count)[:lead], out=starts[1:])
    rows = np.empty(starts[lead], np.intc)
    cdef ptrdiff_t[::1] at = starts, flag = np.full(n, -1), free = starts[:lead].copy()
    cdef int[::1] of = rows
    if parent.shape[0] != n or count.shape[0] != n or not 0 <= lead <= n:
        raise ValueError("the tree is of another pattern")
    in_range("start", start, row.shape[0] + 1)
    with nogil:
        for k in range(n):
            flag[k] = k
            for p in range(start[k], start[k + 1]):
                i = row[p]
                while 0 <= i < k and flag[i] != k:
                    if i < lead:
                        if free[i] >= at[i + 1]:
                            with gil:
                                raise ValueError("the tree is of another pattern")
                        of[free[i]] = <int> k
                        free[i] += 1
                    flag[i] = k
                    i = parent[i]
            if k % 1024 == 0:
                heed_signals()
    return starts, rows


cdef class SparseFactor:
    """The pattern of L, see above: where its columns start, (lead + 1,), their rows, and n."""

    cdef readonly ptrdiff_t n, lead, last, size
    cdef const ptrdiff_t[::1] start
    cdef const int[::1] row

    def __init__(
        self, const ptrdiff_t[::1] start not None, const int[::1] row not None, ptrdiff_t n
    ):
        cdef ptrdiff_t j, p
        self.start, self.row, self.n = start, row, n
        self.lead = start.shape[0] - 1
        self.last = n - self.lead
        if self.lead < 0 or self.last < 0 or start[0] != 0 or start[self.lead] != row.shape[0]:
            raise ValueError("the pattern does not fit")
        for j in range(self.lead):
            if start[j] > start[j + 1]:
                raise ValueError("start falls")
        for j in range(self.lead):
            for p in range(start[j], start[j + 1]):
                if not (row[p - 1] if p > start[j] else j) < row[p] < n:
                    raise ValueError("rows of a column do not rise")
        self.size = row.shape[0] + self.lead + self.last * self.last

    cdef ptrdiff_t place(self, ptrdiff_t a, ptrdiff_t b) noexcept nogil:
        """Of the entry in column a and row b >= a; -1: it is not in the pattern."""
        cdef ptrdiff_t low, high, middle
        if a >= self.lead:
            return self.row.shape[0] + self.lead + (a - self.lead) * self.last + b - self.lead
        if a == b:
            return self.row.shape[0] + a
        low, high = self.start[a], self.start[a + 1]
        while low < high:
            middle = (low + high) // 2
            if self.row[middle] < b:
                low = middle + 1
            else:
                high = middle
        return low if low < self.start[a + 1] and self.row[low] == b else -1

    def places(self, const ptrdiff_t[::1] a not None, const ptrdiff_t[::1] b not None):
        """Where the entries (a_k, b_k) are, whichever is larger, (k,). -1: not in the pattern."""
        cdef ptrdiff_t k
        found = np.empty(a.shape[0], np.intp)
        cdef ptrdiff_t[::1] to = found
        long_enough("b", b.shape[0], a.shape[0])
        in_range("a", a, self.n)
        in_range("b", b, self.n)
        with nogil:
            for k in range(a.shape[0]):
                to[k] = self.place(min(a[k], b[k]), max(a[k], b[k]))
        return found

    # ---- the factor ----

    def factor(self, double[::1] x not None):
        """Turn P into its factor; False: it is not positive definite. Of the last columns L L'."""
        cdef bint is_definite = False
        # of the call: threads may share a pattern
        cdef double[::1] work = np.empty(max(self.n, 1))
        cdef ptrdiff_t[:, ::1] way = np.empty((3, max(self.lead, 1)), np.intp)
        self.fits(x)
        if self.size == 0:
            return True
        with nogil:
            if self.eliminate(&x[0], &work[0], &way[0, 0], &way[1, 0], &way[2, 0]):
                is_definite = self.last == 0 or factorize(
                    &x[self.row.shape[0] + self.lead], self.last
                ) == 0
        return is_definite

    cdef int fits(self, const double[::1] x) except -1:
        if x.shape[0] != self.size:
            raise ValueError("the numbers are of another pattern")
        return 0

    cdef int eliminate(
        self, double *x, double *w, ptrdiff_t *head, ptrdiff_t *chain, ptrdiff_t *at
    ) except -1 nogil:
        """The first columns, each by those before it that have its row; 0: not definite.

        head: the first of the columns that go to a row next, chain: those after it, at: their
        entries there.
        """
        cdef ptrdiff_t j, k, p, q, after, end, m = self.last, done = 0
        cdef double *D = x + self.row.shape[0]
        cdef double *T = D + self.lead
        cdef double d, f, entry
        cdef const int *row = &self.row[0] if self.row.shape[0] else NULL
        cdef const ptrdiff_t *start = &self.start[0]
        for j in range(self.lead):
            head[j] = -1
        for j in range(self.lead):
            for p in range(start[j], start[j + 1]):
                w[row[p]] = x[p]
            d, k = D[j], head[j]
            while k != -1:
                after, p, end = chain[k], at[k], start[k + 1]
                entry = x[p]
                f = entry * D[k]
                d -= entry * f
                for q in range(p + 1, end):
                    w[row[q]] -= x[q] * f
                done += end - p
                self.follow(k, p + 1, head, chain, at)
                k = after
            if not 0.0 < d < INFINITY:
                return 0
            D[j] = d
            for p in range(start[j], start[j + 1]):
                x[p] = w[row[p]] / d
            self.follow(j, start[j], head, chain, at)
            if done > LOOK:
                heed_signals()
                done = 0
        for k in range(self.lead):  # what they leave of the last ones
            end = start[k + 1]
            p = end
            while p > start[k] and row[p - 1] >= self.lead:
                p -= 1
            while p < end:
                f, j = x[p] * D[k], row[p] - self.lead
                for q in range(p, end):
                    T[j * m + row[q] - self.lead] -= x[q] * f
                done += end - p
                p += 1
            if done > LOOK:
                heed_signals()
                done = 0
        return 1

    cdef void follow(
        self, ptrdiff_t k, ptrdiff_t p, ptrdiff_t *head, ptrdiff_t *chain, ptrdiff_t *at
    ) noexcept nogil:
        """Column k goes on to the column of its entry p, if that is one of the first."""
        cdef ptrdiff_t j
        if p < self.start[k + 1] and self.row[p] < self.lead:
            j = self.row[p]
            at[k], chain[k] = p, head[j]
            head[j] = k

    def log_determinant(self, const double[::1] x not None):
        """Of P, from its factor."""
        nnz, lead, m = self.row.shape[0], self.lead, self.last
        self.fits(x)
        whole = np.asarray(x)
        return float(
            np.log(whole[nnz:nnz + lead]).sum() + 2.0 * np.log(whole[nnz + lead::m + 1]).sum()
        )

    def least_pivot(self, const double[::1] x not None):
        """The least variance, inverse, of a column given those after it; inf without columns."""
        nnz, lead, m = self.row.shape[0], self.lead, self.last
        self.fits(x)
        whole = np.asarray(x)
        pivots = np.append(whole[nnz:nnz + lead], whole[nnz + lead::m + 1] ** 2)
        return float(pivots.min(initial=INFINITY))

    # ---- solves ----

    def solve(self, const double[::1] x not None, double[:, ::1] B not None, str which="both"):
        """B (n, k) <- P^-1 B; which: "half", its root R^-1 with P = R R'; "back", R'^-1."""
        cdef bint forward = which != "back", backward = which != "half"
        self.fits(x)
        if B.shape[0] != self.n:
            raise ValueError("B has other rows")
        if B.shape[1] == 0 or self.n == 0:
            return
        with nogil:
            if forward:
                self.forward(&x[0], &B[0, 0], B.shape[1])
            if backward:
                self.backward(&x[0], &B[0, 0], B.shape[1])

    cdef int forward(self, const double *x, double *B, ptrdiff_t k) except -1 nogil:
        cdef ptrdiff_t j, p, c, done = 0
        cdef const double *D = x + self.row.shape[0]
        cdef double root, entry
        cdef double *own
        cdef double *to
        for j in range(self.lead):
            own = B + j * k
            for p in range(self.start[j], self.start[j + 1]):
                entry, to = x[p], B + self.row[p] * k
                for c in range(k):
                    to[c] -= entry * own[c]
            root = 1.0 / sqrt(D[j])
            for c in range(k):
                own[c] *= root
            done += k * (self.start[j + 1] - self.start[j] + 1)
            if done > LOOK:
                heed_signals()
                done = 0
        self.last_ones(x, B, k, b"T")
        return 0

    cdef int backward(self, const double *x, double *B, ptrdiff_t k) except -1 nogil:
        cdef ptrdiff_t j, p, c, done = 0
        cdef const double *D = x + self.row.shape[0]
        cdef double root, entry
        cdef double *own
        cdef const double *of
        self.last_ones(x, B, k, b"N")
        for j in range(self.lead - 1, -1, -1):
            own = B + j * k
            root = 1.0 / sqrt(D[j])
            for c in range(k):
                own[c] *= root
            for p in range(self.start[j], self.start[j + 1]):
                entry, of = x[p], B + self.row[p] * k
                for c in range(k):
                    own[c] -= entry * of[c]
            done += k * (self.start[j + 1] - self.start[j] + 1)
            if done > LOOK:
                heed_signals()
                done = 0
        return 0

    cdef void last_ones(self, const double *x, double *B, ptrdiff_t k, char *trans) noexcept nogil:
        """The triangle of the last columns, of B' by columns."""
        cdef blas_int m = <blas_int> self.last, columns = <blas_int> k
        cdef double one = 1.0
        cdef char *right = b"R"
        cdef char *lower = b"L"
        cdef char *plain = b"N"
        if m > 0:
            dtrsm(
                right, lower, trans, plain, &columns, &m, &one,
                <double *> x + self.row.shape[0] + self.lead, &m, B + self.lead * k, &columns,
            )

    # ---- the entries of the inverse ----

    def inverse(self, const double[::1] x not None):
        """The entries of P^-1 on the pattern, (size,), from its factor."""
        self.fits(x)
        numbers = np.array(x)
        cdef double[::1] z = numbers, work = np.empty(max(self.n, 1))
        if self.size:
            with nogil:
                if self.last > 0:
                    invert_factored(&z[self.row.shape[0] + self.lead], self.last)
                self.take_back(&x[0], &z[0], &work[0])
        return numbers

    cdef int take_back(self, const double *x, double *z, double *w) except -1 nogil:
        """From the last of the first columns to the first: Z_ij = -sum_k L_kj Z_ki."""
        cdef ptrdiff_t j, p, q, r, k, i, end, m = self.last, done = 0
        cdef const double *D = x + self.row.shape[0]
        cdef double *diagonal = z + self.row.shape[0]
        cdef double *T = diagonal + self.lead
        cdef double *own
        cdef double entry, s
        cdef const int *row = &self.row[0] if self.row.shape[0] else NULL
        cdef const ptrdiff_t *start = &self.start[0]
        for j in range(self.lead - 1, -1, -1):
            end = start[j + 1]
            for p in range(start[j], end):
                w[row[p]] = 0.0
            for p in range(start[j], end):
                k, entry = row[p], x[p]
                if k < self.lead:
                    s, q = entry * diagonal[k], start[k]
                    for r in range(p + 1, end):  # the rest of column j is in column k
                        i = row[r]
                        while row[q] < i:
                            q += 1
                        s += x[r] * z[q]
                        w[i] += entry * z[q]
                else:
                    own = T + (k - self.lead) * m - self.lead
                    s = entry * own[k]
                    for r in range(p + 1, end):
                        i = row[r]
                        s += x[r] * own[i]
                        w[i] += entry * own[i]
                w[k] += s
                done += end - p
            s = 1.0 / D[j]
            for p in range(start[j], end):
                z[p] = -w[row[p]]
                s += x[p] * w[row[p]]
            diagonal[j] = s
            if done > LOOK:
                heed_signals()
                done = 0
        return 0


# ---- rows ----


cdef class SparseRows:
    """Rows of few entries, and where the pairs of their columns are in P.

    Given by CSR: columns rise in each row. ``whole`` (n,) says which rows have all pairs there; of
    others nothing is right.
    """

    cdef readonly ptrdiff_t n
    cdef readonly object whole
    cdef const ptrdiff_t[::1] start
    cdef const int[::1] column
    cdef const double[::1] value
    cdef int[::1] place             # of the pairs (a, b), b <= a, one row after the other
    cdef ptrdiff_t[::1] first       # of each row
    cdef ptrdiff_t size, order

    def __init__(
        self, const ptrdiff_t[::1] start not None, const int[::1] column not None,
        const double[::1] value not None, SparseFactor factor not None,
    ):
        cdef ptrdiff_t i, a, b, p = 0, q, k
        self.n, self.order, self.size = start.shape[0] - 1, factor.n, factor.size
        self.start, self.column, self.value = start, column, value
        in_range("start", start, column.shape[0] + 1)
        long_enough("value", value.shape[0], column.shape[0])
        if self.size > 1 << 31:
            raise MemoryError("the factor has more numbers than are counted here")
        self.first = np.zeros(self.n + 1, np.intp)
        for i in range(self.n):
            k = start[i + 1] - start[i]
            if k < 0:
                raise ValueError("start falls")
            self.first[i + 1] = self.first[i] + k * (k + 1) // 2
        self.place = np.empty(self.first[self.n], np.intc)
        self.whole = np.ones(self.n, np.bool_)
        cdef unsigned char[::1] whole = self.whole.view(np.uint8)
        with nogil:
            for i in range(self.n):
                for a in range(start[i], start[i + 1]):
                    if not (column[a - 1] if a > start[i] else -1) < column[a] < factor.n:
                        with gil:
                            raise ValueError("columns of a row do not rise")
                    for b in range(start[i], a + 1):
                        q = factor.place(column[b], column[a])
                        if q < 0:
                            whole[i], q = 0, 0
                        self.place[p] = <int> q
                        p += 1
                if i % 65536 == 0:
                    heed_signals()

    @property
    def n_pairs(self):
        """Of all rows."""
        return self.place.shape[0]

    def add(
        self, const double[::1] tau not None, const double[::1] nu not None,
        double[::1] x not None, double[::1] h not None, const double[:, ::1] U,
        double[:, ::1] B,
    ):
        """P <- P + sum_i tau_i r_i r_i', h <- h + sum_i nu_i r_i, B <- B + sum_i tau_i r_i u_i'.

        U (n, c): rows u_i of dense columns, for B (order, c). None: there are none.
        """
        cdef ptrdiff_t i, a, b, p, k, c = 0 if U is None else U.shape[1]
        cdef double of
        long_enough("tau", min(tau.shape[0], nu.shape[0]), self.n)
        long_enough("h", h.shape[0], self.order)
        if x.shape[0] != self.size:
            raise ValueError("the numbers are of another pattern")
        if c:
            long_enough("U", U.shape[0], self.n)
            if B.shape[0] != self.order or B.shape[1] != c:
                raise ValueError("B does not fit")
        with nogil:
            for i in range(self.n):
                p = self.first[i]
                for a in range(self.start[i], self.start[i + 1]):
                    of = tau[i] * self.value[a]
                    h[self.column[a]] += nu[i] * self.value[a]
                    for b in range(self.start[i], a + 1):
                        x[self.place[p]] += of * self.value[b]
                        p += 1
                    for k in range(c):
                        B[self.column[a], k] += of * U[i, k]

    def marginals(
        self, const double[::1] z not None, const double[::1] mean not None,
        const double[:, ::1] U not None, const double[:, ::1] V not None,
        const double[:, ::1] root not None, const double[::1] of_dense not None, ptrdiff_t first,
        double[::1] h not None, double[::1] s not None,
    ):
        """Mean and variance of the rows (r_i, u_i) from ``first``.

        h_i = r_i.mean + u_i.of_dense, s_i = r_i' Z r_i + |root' (u_i - V' r_i)|^2, for the entries
        z of Z, U (n, c), V (order, c) and an upper triangle, root (c, c).
        """
        cdef ptrdiff_t i, a, b, p, j, k, c = U.shape[1]
        cdef double total, along, center, value
        cdef double[::1] rest = np.empty(c), turned = np.empty(c)
        long_enough("mean", mean.shape[0], self.order)
        long_enough("of_dense", of_dense.shape[0], c)
        long_enough("h", h.shape[0], s.shape[0])
        if (
            z.shape[0] != self.size or not 0 <= first <= self.n - s.shape[0]
            or U.shape[0] < self.n or V.shape[0] != self.order or V.shape[1] != c
            or root.shape[0] != c or root.shape[1] != c
        ):
            raise ValueError("the numbers do not fit")
        with nogil:
            for i in range(first, first + s.shape[0]):
                p, total, center = self.first[i], 0.0, 0.0
                for k in range(c):
                    rest[k], turned[k] = U[i, k], 0.0
                    center += U[i, k] * of_dense[k]
                for a in range(self.start[i], self.start[i + 1]):
                    along, value = 0.0, self.value[a]
                    center += value * mean[self.column[a]]
                    for k in range(c):
                        rest[k] -= value * V[self.column[a], k]
                    for b in range(self.start[i], a):
                        along += z[self.place[p]] * self.value[b]
                        p += 1
                    total += value * (2.0 * along + z[self.place[p]] * value)
                    p += 1
                for j in range(c):
                    for k in range(j, c):
                        turned[k] += root[j, k] * rest[j]
                for k in range(c):
                    total += turned[k] * turned[k]
                h[i - first], s[i - first] = center, total

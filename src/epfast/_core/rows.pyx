"""Rows of X in memory, dense or compressed sparse (CSR), and their products.

Matrices are square, symmetric and by columns. "lower" is their lower triangle by columns, the upper
one by C rows. A batch of rows a_j, first <= j < first + q, is the columns of a d x q matrix A.
"""

import numpy as np

from libc.math cimport fabs, sqrt

from libc.string cimport memcpy

from epfast._core.lapack cimport blas_int, daxpy, ddot, dgemm, dgemv, dsymm, dsyrk, dtrmm

cdef enum:
    PANEL = 64
    WIDE = 256                  # order above which triangles are multiplied in place: a third less


cdef void add_lower(
    blas_int d, blas_int q, double scale, double *W, double *V, double *C
) noexcept nogil:
    """C <- C + scale W V', lower triangle only, where W V' is symmetric; W and V are d x q.

    By panels of dgemm, which knows no sign, where dsyrk would need a root of each weight.
    """
    cdef blas_int p = 0, height, width
    cdef double unit = 1.0
    while p < d:
        height, width = d - p, min(<blas_int> PANEL, d - p)
        dgemm(
            b"N", b"T", &height, &width, &q, &scale, W + p, &d, V + p, &d, &unit,
            C + <ptrdiff_t> p * d + p, &d
        )
        p += width


cdef void subtract_weighted(
    blas_int d, blas_int q, const double *weight, const double *V, double *W, double *C
) noexcept nogil:
    """C <- C - V diag(weight) V', lower triangle only; V and the scratch W are d x q.

    By dsyrk, which touches nothing of the upper triangle: once for each sign of the weights.
    """
    cdef double unit = 1.0, minus = -1.0, root
    cdef blas_int taken
    cdef ptrdiff_t i, j
    cdef bint negative
    for negative in range(2):
        taken = 0
        for j in range(q):
            if weight[j] < 0.0 if negative else weight[j] > 0.0:
                root = sqrt(fabs(weight[j]))
                for i in range(d):
                    W[taken * <ptrdiff_t> d + i] = root * V[j * d + i]
                taken += 1
        if taken > 0:
            dsyrk(b"L", b"N", &d, &taken, &unit if negative else &minus, W, &d, &unit, C, &d)


cdef int long_enough(str name, ptrdiff_t length, ptrdiff_t least) except -1:
    """Raise ValueError for an array that is too short: the loops go by its partners' lengths."""
    if length < least:
        raise ValueError(f"{name} has length {length}; needed: {least}")


cdef int in_range(str name, const ptrdiff_t[::1] index, ptrdiff_t stop) except -1:
    """Raise ValueError for a number that is not from 0 to stop - 1."""
    cdef ptrdiff_t i
    cdef ptrdiff_t signs = 0            # negative where one number is out of range
    for i in range(index.shape[0]):
        signs |= index[i] | (stop - 1 - index[i])
    if signs < 0:
        raise ValueError(f"{name} holds numbers outside 0 to {stop - 1}")


cdef int square(str name, const double[:, ::1] matrix, ptrdiff_t d) except -1:
    """Raise ValueError for a matrix that is not (d, d)."""
    if matrix.shape[0] != d or matrix.shape[1] != d:
        raise ValueError(f"{name} has shape ({matrix.shape[0]}, {matrix.shape[1]}); needed: {d, d}")


cdef class Rows:
    """A chunk of X: Rows(dense array) or Rows(CSR matrix).

    What a CSR matrix refers to is looked at here, O(nnz): nobody can change its own copies later.
    """

    def __init__(self, X):
        self.n, self.d = X.shape
        self.sparse = hasattr(X, "indptr")
        if not self.sparse:
            self.dense = X
            return
        self.start = np.array(X.indptr, dtype=np.intc)
        self.column = np.array(X.indices, dtype=np.intc)
        self.value = np.array(X.data, dtype=np.float64)
        if not self.is_valid():
            raise ValueError(
                "X is not a valid CSR matrix, or was changed during the fit; allowed: increasing "
                "row pointers, n + 1 of them, and columns 0 to d - 1"
            )

    cdef bint is_valid(self) noexcept nogil:
        """Whether no index leads out of an array."""
        cdef ptrdiff_t i, size = min(self.column.shape[0], self.value.shape[0])
        cdef bint good = self.start.shape[0] == self.n + 1
        if not good:
            return False
        good = self.start[0] >= 0 and self.start[self.n] <= size
        for i in range(self.n):
            good = good and self.start[i] <= self.start[i + 1]
        if not good:
            return False
        for i in range(self.start[0], self.start[self.n]):
            good &= 0 <= self.column[i] < self.d
        return good

    cdef void times_symmetric(
        self, ptrdiff_t first, blas_int q, double *M, bint full, double *V
    ) noexcept nogil:
        """V = M A. full: both triangles of M hold (needed if sparse), else the lower. O(d^2 q)"""
        cdef blas_int d = <blas_int> self.d, one = 1
        cdef double unit = 1.0, zero = 0.0, a
        cdef ptrdiff_t i, j, k
        if self.sparse:
            for j in range(q):
                for i in range(self.d):
                    V[j * self.d + i] = 0.0
                for k in range(self.start[first + j], self.start[first + j + 1]):
                    a = self.value[k]
                    daxpy(&d, &a, M + self.column[k] * self.d, &one, V + j * self.d, &one)
        elif full:
            dgemm(
                b"N", b"N", &d, &q, &d, &unit, M, &d, <double *> &self.dense[first, 0], &d, &zero,
                V, &d
            )
        else:
            dsymm(
                b"L", b"L", &d, &q, &unit, M, &d, <double *> &self.dense[first, 0], &d, &zero, V,
                &d
            )

    cdef void times_vector(
        self, ptrdiff_t first, blas_int q, const double *x, double *out
    ) noexcept nogil:
        """out_j = a_j.x"""
        cdef blas_int d = <blas_int> self.d, one = 1
        cdef double unit = 1.0, zero = 0.0
        cdef ptrdiff_t j, k
        if self.sparse:
            for j in range(q):
                out[j] = 0.0
                for k in range(self.start[first + j], self.start[first + j + 1]):
                    out[j] += self.value[k] * x[self.column[k]]
        else:
            dgemv(
                b"T", &d, &q, &unit, <double *> &self.dense[first, 0], &d, <double *> x, &one,
                &zero, out, &one
            )

    cdef void times_rows(
        self, ptrdiff_t first, blas_int q, double *V, double *S
    ) noexcept nogil:
        """S = A' V, q x q, for V = M A with a symmetric M. O(d q^2)"""
        cdef blas_int d = <blas_int> self.d
        cdef double unit = 1.0, zero = 0.0, total
        cdef ptrdiff_t i, j, k
        if self.sparse:
            for j in range(q):
                for i in range(j + 1):
                    total = 0.0
                    for k in range(self.start[first + i], self.start[first + i + 1]):
                        total += self.value[k] * V[j * self.d + self.column[k]]
                    S[j * q + i] = S[i * q + j] = total
        else:
            dgemm(
                b"T", b"N", &q, &q, &d, &unit, <double *> &self.dense[first, 0], &d, V, &d, &zero,
                S, &q
            )

    cdef void quadratic(
        self, ptrdiff_t first, blas_int q, const double *M, const double *root, double *V,
        double *out
    ) noexcept nogil:
        """out_j = a_j' M a_j, M = root' root with root lower triangular. O(d^2 q), sparse O(nnz^2)

        Dense rows use root, sparse ones M. V: scratch, d x q.
        """
        cdef blas_int d = <blas_int> self.d, one = 1, p = 0, height, width
        cdef double unit = 1.0, zero = 0.0, total
        cdef const double *column
        cdef ptrdiff_t i, j, k
        if self.sparse:
            for j in range(q):
                total = 0.0
                for k in range(self.start[first + j], self.start[first + j + 1]):
                    column = M + self.column[k] * self.d
                    for i in range(self.start[first + j], self.start[first + j + 1]):
                        total += self.value[k] * self.value[i] * column[self.column[i]]
                out[j] = total
            return
        if d > WIDE:
            memcpy(V, &self.dense[first, 0], q * self.d * sizeof(double))
            dtrmm(b"L", b"L", b"N", b"N", &d, &q, &unit, <double *> root, &d, V, &d)
            p = d
        while p < d:
            # rows p to p + width of root have p + width columns
            width = min(<blas_int> PANEL, d - p)
            height = p + width
            dgemm(
                b"N", b"N", &width, &q, &height, &unit, <double *> root + p, &d,
                <double *> &self.dense[first, 0], &d, &zero, V + p, &d
            )
            p += width
        for j in range(q):
            out[j] = ddot(&d, V + j * self.d, &one, V + j * self.d, &one)

    cdef void add_gram(
        self, ptrdiff_t first, blas_int q, const double *weight, double *V, double *C
    ) noexcept nogil:
        """C <- C + sum_j weight_j a_j a_j', lower triangle. O(d^2 q), sparse O(nnz^2). V: d x q."""
        cdef ptrdiff_t i, j, k, d = self.d
        cdef double a
        if self.sparse:
            # entries of a row need not be in the order of the columns
            for j in range(q):
                for k in range(self.start[first + j], self.start[first + j + 1]):
                    a = weight[j] * self.value[k]
                    for i in range(self.start[first + j], self.start[first + j + 1]):
                        if self.column[i] >= self.column[k]:
                            C[self.column[k] * d + self.column[i]] += a * self.value[i]
            return
        for j in range(q):
            for i in range(d):
                V[j * d + i] = weight[j] * self.dense[first + j, i]
        add_lower(<blas_int> d, q, 1.0, V, <double *> &self.dense[first, 0], C)

    cdef void add_combination(
        self, ptrdiff_t first, blas_int q, const double *weight, double *x
    ) noexcept nogil:
        """x <- x + sum_j weight_j a_j"""
        cdef blas_int d = <blas_int> self.d, one = 1
        cdef double unit = 1.0
        cdef ptrdiff_t j, k
        if self.sparse:
            for j in range(q):
                for k in range(self.start[first + j], self.start[first + j + 1]):
                    x[self.column[k]] += weight[j] * self.value[k]
        else:
            dgemv(
                b"N", &d, &q, &unit, <double *> &self.dense[first, 0], &d, <double *> weight,
                &one, &unit, x, &one
            )


cdef class Units(Rows):
    """Rows of the identity of order d, by their numbers: sites on the values of a process."""

    def __init__(self, index, ptrdiff_t d):
        self.index = index
        in_range("index", self.index, d)
        self.n, self.d = len(index), d
        self.sparse = False

    cdef void times_symmetric(
        self, ptrdiff_t first, blas_int q, double *M, bint full, double *V
    ) noexcept nogil:
        self.columns_of(first, q, M, 0, self.d, V)

    cdef void columns_of(
        self, ptrdiff_t first, blas_int q, const double *M, ptrdiff_t start, ptrdiff_t stop,
        double *V
    ) noexcept nogil:
        """Some rows of columns of M, of which only the lower triangle is read."""
        cdef ptrdiff_t i, j, k, d = self.d
        cdef const ptrdiff_t *index = &self.index[first]
        for j in range(q):
            for i in range(max(index[j], start), stop):
                V[j * d + i] = M[index[j] * d + i]
        # rows of M above the diagonal, neighbours in index side by side
        for i in range(start, stop):
            for j in range(q):
                k = index[j]
                if i < k:
                    V[j * d + i] = M[i * d + k]

    cdef void times_vector(
        self, ptrdiff_t first, blas_int q, const double *x, double *out
    ) noexcept nogil:
        cdef ptrdiff_t j
        for j in range(q):
            out[j] = x[self.index[first + j]]

    cdef void times_rows(
        self, ptrdiff_t first, blas_int q, double *V, double *S
    ) noexcept nogil:
        cdef ptrdiff_t i, j
        for j in range(q):
            for i in range(q):
                S[j * q + i] = V[j * self.d + self.index[first + i]]


cdef class Duals(Rows):
    """Coordinates j of weights N(mu, Sigma), by n numbers each in place of d.

    Sigma = D - D X' R X D and mu = D (shift + X' alpha), with D the inverse of precisions of single
    weights. Sweeps update -R and alpha as if they were Sigma and mu: with the rows a_j = D_j X' e_j
    the covariance of weights i and j is (i = j) D_j - a_i' R a_j, and R a_j takes the place of
    their column of Sigma. variance (n,) holds D_j, offset D_j shift_j.
    """

    def __init__(self, rows, variance, offset):
        super().__init__(rows)
        self.variance, self.offset = variance, offset
        long_enough("variance", self.variance.shape[0], self.n)
        long_enough("offset", self.offset.shape[0], self.n)

    cdef void times_vector(
        self, ptrdiff_t first, blas_int q, const double *x, double *out
    ) noexcept nogil:
        cdef ptrdiff_t j
        Rows.times_vector(self, first, q, x, out)
        for j in range(q):
            out[j] += self.offset[first + j]

    cdef void times_rows(
        self, ptrdiff_t first, blas_int q, double *V, double *S
    ) noexcept nogil:
        cdef ptrdiff_t j
        Rows.times_rows(self, first, q, V, S)
        for j in range(q):
            S[j * q + j] += self.variance[first + j]

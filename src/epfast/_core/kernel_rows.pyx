"""Rows of a kernel matrix, computed on request and cached.

|x - x'|^2 = |x|^2 + |x'|^2 - 2 x.x', so that a row of the RBF kernel is a product of X with a
vector, dense or sparse, and one vector exp.
"""

import numpy as np

from libc.math cimport fmax
from libc.string cimport memcpy

from epfast._core.vector cimport kernels
from epfast._core.lapack cimport blas_int


cdef class KernelRows:
    """k(x_i, x_j) for the rows of X, RBF with the given gamma, linear where it is 0; or K itself.

    X is a C-contiguous array or a CSR matrix, norm the squares |x|^2 of its rows.
    """

    def __init__(self, X=None, norm=None, double gamma=0.0, const double[:, ::1] K=None):
        self.gamma, self.K = gamma, K
        if K is not None:
            self.n = K.shape[0]
            self.diagonal = np.diag(K).copy()
            return
        self.X, self.n, self.norm = Rows(X), X.shape[0], norm
        self.diagonal = norm if gamma == 0.0 else np.ones(self.n)
        self.x = np.zeros(X.shape[1])

    cdef void part(
        self, ptrdiff_t i, ptrdiff_t first, ptrdiff_t count, double *out
    ) noexcept nogil:
        """Columns first to first + count of row i. O(d count), sparse O(nnz of those rows)"""
        cdef ptrdiff_t j
        cdef double twice_gamma = 2.0 * self.gamma
        cdef const double *x
        if self.K is not None:
            memcpy(out, &self.K[i, first], count * sizeof(double))
            return
        if self.X.sparse:
            for j in range(self.X.start[i], self.X.start[i + 1]):
                self.x[self.X.column[j]] = self.X.value[j]
            x = &self.x[0]
        else:
            x = &self.X.dense[i, 0]
        self.X.times_vector(first, <blas_int> count, x, out)
        if self.X.sparse:
            for j in range(self.X.start[i], self.X.start[i + 1]):
                self.x[self.X.column[j]] = 0.0
        if self.gamma > 0.0:
            for j in range(count):
                # rounding may leave a square below 0
                out[j] = -fmax(
                    0.0, self.gamma * (self.norm[i] + self.norm[first + j]) - twice_gamma * out[j]
                )
            kernels.exp(count, out, out)


cdef class RowCache:
    """The block of rows and columns first to first + count; the rows used last, in size bytes.

    Two rows are kept whatever the size, since a step of SMO needs two. computed: rows so far.
    """

    def __init__(self, KernelRows source not None, ptrdiff_t first, ptrdiff_t count, double size):
        self.source, self.first, self.count = source, first, count
        self.slots = min(count, max(2, <ptrdiff_t> (size / (8.0 * count))))
        given = source.K is not None
        self.room = np.empty((0 if given else self.slots, count))
        self.slot_of = np.full(count, -1, dtype=np.intp)
        self.owner, self.newer, self.older = np.empty((3, self.slots), dtype=np.intp)

    cdef const double *row(self, ptrdiff_t i) noexcept nogil:
        """Row i of the block, counted from its first; valid until two others were asked for."""
        cdef ptrdiff_t slot, oldest
        if self.source.K is not None:
            return &self.source.K[self.first + i, self.first]
        slot = self.slot_of[i]
        if slot >= 0:
            if slot == self.newest:
                return &self.room[slot, 0]
            # out of the ring
            self.newer[self.older[slot]] = self.newer[slot]
            self.older[self.newer[slot]] = self.older[slot]
        else:
            self.computed += 1
            if self.used < self.slots:
                slot = self.used
                self.used += 1
            else:
                slot = self.newer[self.newest]
                self.slot_of[self.owner[slot]] = -1
                self.newer[self.older[slot]] = self.newer[slot]
                self.older[self.newer[slot]] = self.older[slot]
            self.owner[slot], self.slot_of[i] = i, slot
            self.source.part(self.first + i, self.first, self.count, &self.room[slot, 0])
            if self.used == 1:
                self.newer[slot] = self.older[slot] = self.newest = slot
                return &self.room[slot, 0]
        # in again, between the newest and the oldest
        oldest = self.newer[self.newest]
        self.older[slot], self.newer[slot] = self.newest, oldest
        self.newer[self.newest] = self.older[oldest] = slot
        self.newest = slot
        return &self.room[slot, 0]

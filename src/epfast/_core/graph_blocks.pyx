"""Factors over blocks of variables, whose beliefs have a full covariance.

Of a block w ~ N(m, S) a factor sees one form, z = x'w ~ N(x'm, x'Sx), which is a scalar neighbour
like any other: its natural parameters stand in the slot of the block while the factor is updated,
and what that adds to its site changes S and m by rank one. As in row_sweeps.pyx, q rows go
together: with V = S X', C = X V, h = X m, the updates are run on (C, h) alone, and S and m follow
in products of matrices.
"""

import numpy as np

from libc.math cimport INFINITY, NAN, isfinite

from epfast._core.graph cimport GraphBatch, Update
from epfast._core.lapack cimport blas_int, dgemm, dgemv, dtrsm
from epfast._core.rows cimport Rows, long_enough, square
from epfast._core.site cimport SMALLEST
from epfast._core.status cimport OK, Status

#: of a form whose variance is less, as that of a row of zeros: it is certain
cdef double CERTAIN = 1e-300


cdef class BlockBatch(GraphBatch):
    """Factors of ``inner``, one neighbour of each of which is a form over a block.

    rows: x of each factor; slot: where inner looks for the belief about the form; place: (n,) where
    the site of the form is, among the sites of the batch. q: rows that go together. Where the form
    is over several blocks, inner is of this kind too.
    """

    cdef readonly GraphBatch inner
    cdef Rows rows
    cdef ptrdiff_t slot, q
    cdef const ptrdiff_t[::1] place
    cdef double[:, ::1] S, V, W, C
    cdef double[::1] m, h, c, k

    def __init__(
        self, GraphBatch inner not None, Rows rows not None, ptrdiff_t slot,
        const ptrdiff_t[::1] place, ptrdiff_t q,
    ):
        cdef ptrdiff_t i
        if inner.tied or rows.n != inner.n or place.shape[0] != inner.n or slot < 0 or q < 1:
            raise ValueError("the parts of a batch do not fit together")
        for i in range(place.shape[0]):
            if not 0 <= place[i] <= inner.width - 2:
                raise ValueError("a place is out of range")
        self.inner, self.rows, self.slot, self.place, self.q = inner, rows, slot, place, q
        self.n, self.width = inner.n, inner.width
        self.V, self.W = np.empty((q, rows.d)), np.empty((q, rows.d))
        self.C = np.empty((q, q))
        self.h, self.c, self.k = np.empty((3, q))

    def about(self, double[:, ::1] S not None, double[::1] m not None):
        """Set the belief about the block, covariance and mean, which sweeps change in place."""
        square("S", S, self.rows.d)
        long_enough("m", m.shape[0], self.rows.d)
        self.S, self.m = S, m

    cdef int reraise(self) except -1:
        return self.inner.reraise()

    cdef Status run(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, ptrdiff_t stop
    ) noexcept nogil:
        cdef Status status = OK
        cdef blas_int q
        while first < stop and status == OK:
            q = <blas_int> min(self.q, stop - first)
            status = self.together(how, sites, scale, first, q)
            first += q
        self.n_refused += self.inner.n_refused
        self.n_failed += self.inner.n_failed
        self.inner.n_refused = self.inner.n_failed = 0
        return status

    cdef Status together(
        self, const Update *how, double *sites, double *scale, ptrdiff_t first, blas_int q
    ) noexcept nogil:
        """q factors from the first. O(4 d^2 q) where they go one after the other."""
        cdef blas_int d = <blas_int> self.rows.d, one = 1
        cdef double unit = 1.0, minus = -1.0, s, t, b, denominator, root, precision
        cdef bint in_order = how.out == how.q and how.away == 0
        cdef double *S = &self.S[0, 0]
        cdef double *V = &self.V[0, 0]
        cdef double *W = &self.W[0, 0]
        cdef double *C = &self.C[0, 0]
        cdef double *site
        cdef double *read = <double *> how.q + self.slot
        cdef double *written = how.out + self.slot
        cdef ptrdiff_t i, j, r
        cdef Status status = OK
        self.rows.times_symmetric(first, q, S, True, V)
        self.rows.times_rows(first, q, V, C)
        self.rows.times_vector(first, q, &self.m[0], &self.h[0])
        for j in range(q):
            s = C[j * q + j]
            precision = 1.0 / s if s > CERTAIN else (1.0 / CERTAIN if s >= 0.0 else NAN)
            read[0] = written[0] = precision
            read[1] = written[1] = self.h[j] * precision
            site = sites + self.place[first + j] + how.away
            t, b = site[0], site[1]
            if status == OK:
                status = self.inner.run(how, sites, scale, first + j, first + j + 1)
            t, b = site[0] - t, site[1] - b
            denominator = 1.0 + t * s
            if not (in_order and SMALLEST < denominator < INFINITY and isfinite(b)):
                # all from the same belief; or what the sites add up to will tell
                t, b, denominator = 0.0, 0.0, 1.0
            self.c[j] = t / denominator
            self.k[j] = (b - t * self.h[j]) / denominator
            for i in range(j + 1, q if in_order else 0):
                root = self.c[j] * C[j * q + i]
                self.h[i] += self.k[j] * C[j * q + i]
                for r in range(i, q):
                    C[i * q + r] -= root * C[j * q + r]
        if not in_order:
            return status
        # T: row j right of the diagonal is c_j C_ji; V <- V T^-1
        for j in range(q):
            for i in range(j + 1, q):
                C[j * q + i] *= self.c[j]
        dtrsm(b"R", b"L", b"T", b"U", &d, &q, &unit, C, &q, V, &d)
        dgemv(b"N", &d, &q, &unit, V, &d, &self.k[0], &one, &unit, &self.m[0], &one)
        for j in range(q):
            for i in range(self.rows.d):
                W[j * self.rows.d + i] = self.c[j] * V[j * self.rows.d + i]
        dgemm(b"N", b"T", &d, &d, &q, &minus, W, &d, V, &d, &unit, S, &d)
        return status

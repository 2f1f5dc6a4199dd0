"""Rows of a kernel matrix, computed on request and cached."""

from epfast._core.rows cimport Rows


cdef class KernelRows:
    cdef readonly ptrdiff_t n
    cdef Rows X                             # None where the matrix is given
    cdef const double[:, ::1] K             # None where it is not
    cdef double gamma                       # of exp(-gamma |x - x'|^2); 0: x.x'
    cdef double[::1] norm                   # |x|^2
    cdef double[::1] diagonal
    cdef double[::1] x                      # scratch: one row of X, dense
    cdef void part(
        self, ptrdiff_t i, ptrdiff_t first, ptrdiff_t count, double *out
    ) noexcept nogil


cdef class RowCache:
    cdef KernelRows source
    cdef ptrdiff_t first, count, slots, used, newest
    cdef double[:, ::1] room                # a row per slot
    cdef ptrdiff_t[::1] slot_of, owner      # row to slot, or -1; slot to row
    cdef ptrdiff_t[::1] newer, older        # slots, a ring: the oldest is newer than the newest
    cdef readonly ptrdiff_t computed
    cdef const double *row(self, ptrdiff_t i) noexcept nogil

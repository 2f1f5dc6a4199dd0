"""Models of learned operators, as other modules of the core look them up."""


cdef class Model:
    cdef readonly ptrdiff_t k, outputs      # coordinates of a tuple, targets
    cdef readonly ptrdiff_t used            # features in use; 0: nothing is known
    cdef readonly ptrdiff_t cap             # most features
    cdef readonly bint by_moments           # coordinates are all means, then all variances
    cdef ptrdiff_t ld
    cdef double[::1] phi, gain              # scratch
    cdef double[::1] mu                     # (T, ld)
    cdef double[::1] S                      # T of S = T + T^T
    cdef int reserve(self, ptrdiff_t outputs, ptrdiff_t cap) except -1
    cdef double features(self, const double *x) noexcept nogil
    cdef bint grow(self, double rest) noexcept nogil
    cdef void look(self, const double *x, double *targets, double *spread) noexcept nogil
    cdef int check(self, const double[::1] x) except -1
    cdef int put(self, ptrdiff_t n, mean, S) except -1
    cdef tuple weights(self)

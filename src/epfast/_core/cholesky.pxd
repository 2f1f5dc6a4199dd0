"""Cholesky factors and inverses in place, cut into pieces between which Python sees signals."""

from epfast._core.crew cimport Crew


cdef int heed_signals() except -1 nogil
cdef ptrdiff_t columns_at_once(ptrdiff_t n) noexcept nogil
cdef int factorize(double *A, ptrdiff_t n, Crew crew=*) except -1 nogil
cdef int invert_triangle(double *L, ptrdiff_t n, Crew crew=*) except -1 nogil
cdef int invert_factored(double *L, ptrdiff_t n, Crew crew=*) except -1 nogil
cdef void add_product(
    double *C, ptrdiff_t n, double *W, ptrdiff_t k, double sign, Crew crew
) noexcept nogil

"""Cholesky factors and inverses in place, cut into pieces between which Python sees signals."""


cdef int heed_signals() except -1 nogil
cdef ptrdiff_t columns_at_once(ptrdiff_t n) noexcept nogil
cdef int factorize(double *A, ptrdiff_t n) except -1 nogil
cdef int invert_triangle(double *L, ptrdiff_t n) except -1 nogil
cdef int invert_factored(double *L, ptrdiff_t n) except -1 nogil

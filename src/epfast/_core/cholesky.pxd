"""Cholesky factors and inverses in place, cut into pieces between which Python sees signals."""

from epfast._core.thread_pool cimport ThreadPool


cdef int heed_signals() except -1 nogil
cdef ptrdiff_t columns_at_once(ptrdiff_t n) noexcept nogil
cdef int factorize(double *A, ptrdiff_t n, ThreadPool pool=*) except -1 nogil
cdef int invert_triangle(double *L, ptrdiff_t n, ThreadPool pool=*) except -1 nogil
cdef int invert_factored(double *L, ptrdiff_t n, ThreadPool pool=*) except -1 nogil
cdef void add_product(
    double *C, ptrdiff_t n, double *W, ptrdiff_t k, double sign, ThreadPool pool
) noexcept nogil

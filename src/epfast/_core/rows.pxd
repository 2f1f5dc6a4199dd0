"""Rows of X in memory, dense or compressed sparse (CSR), and their products."""

from epfast._core.lapack cimport blas_int


cdef class Rows:
    cdef readonly ptrdiff_t n, d
    cdef readonly bint sparse
    cdef const double[:, ::1] dense
    cdef const int[::1] start, column       # CSR: where each row starts; the columns of its entries
    cdef const double[::1] value
    cdef bint is_valid(self) noexcept nogil
    cdef void times_symmetric(
        self, ptrdiff_t first, blas_int q, double *M, bint full, double *V
    ) noexcept nogil
    cdef void times_vector(
        self, ptrdiff_t first, blas_int q, const double *x, double *out
    ) noexcept nogil
    cdef void times_rows(
        self, ptrdiff_t first, blas_int q, double *V, double *S
    ) noexcept nogil
    cdef void quadratic(
        self, ptrdiff_t first, blas_int q, const double *M, const double *root, double *V,
        double *out
    ) noexcept nogil
    cdef void add_gram(
        self, ptrdiff_t first, blas_int q, const double *weight, double *V, double *C
    ) noexcept nogil
    cdef void add_combination(
        self, ptrdiff_t first, blas_int q, const double *weight, double *x
    ) noexcept nogil


cdef class Units(Rows):
    cdef const ptrdiff_t[::1] index
    cdef void columns_of(
        self, ptrdiff_t first, blas_int q, const double *M, ptrdiff_t start, ptrdiff_t stop,
        double *V
    ) noexcept nogil


cdef class Duals(Rows):
    cdef const double[::1] variance, offset


cdef void subtract_weighted(
    blas_int d, blas_int q, const double *weight, const double *V, double *W, double *C
) noexcept nogil


cdef void add_lower(
    blas_int d, blas_int q, double scale, double *W, double *V, double *C
) noexcept nogil


cdef int long_enough(str name, ptrdiff_t length, ptrdiff_t least) except -1


cdef int in_range(str name, const ptrdiff_t[::1] index, ptrdiff_t stop) except -1


cdef int square(str name, const double[:, ::1] matrix, ptrdiff_t d) except -1

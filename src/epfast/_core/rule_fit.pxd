"""Newton-Cholesky fit to any rule: for other modules of the core."""

from epfast._core.lapack cimport blas_int
from epfast._core.loss cimport CoreLoss


cdef int newton_cholesky(
    blas_int z, blas_int p, const double *basis, const double *weight, const double *log_f,
    bint flat, double *alpha, double *work, CoreLoss watch
) noexcept nogil
cdef bint newton_sigma(ptrdiff_t d, double *log_f, double *work) noexcept nogil

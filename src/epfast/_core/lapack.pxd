"""BLAS and LAPACK for the core: the one place that knows where they come from.

The routines below have the same names and signatures whatever the Meson option ``lapack`` chose:
Fortran calling convention (everything by pointer, matrices by columns), ``noexcept nogil``, and
``blas_int`` for every integer. They are pointers, which lapack.pyx sets at import:

    scipy      from scipy.linalg.cython_blas and cython_lapack, so that nothing is linked
    openblas   from scipy-openblas32, linked; the release wheels carry the library with them

Only lapack.pyx reads the declarations of SciPy, all 1,600 of them: they took Cython 1.2 s a module.
"""

include "lapack_int.pxi"

ctypedef double (*Ddot)(
    blas_int *n, double *x, blas_int *incx, double *y, blas_int *incy
) noexcept nogil
ctypedef void (*Daxpy)(
    blas_int *n, double *a, double *x, blas_int *incx, double *y, blas_int *incy
) noexcept nogil
ctypedef void (*Dscal)(blas_int *n, double *a, double *x, blas_int *incx) noexcept nogil
ctypedef void (*Dcopy)(
    blas_int *n, double *x, blas_int *incx, double *y, blas_int *incy
) noexcept nogil
ctypedef void (*Dgemv)(
    char *trans, blas_int *m, blas_int *n, double *alpha, double *a, blas_int *lda, double *x,
    blas_int *incx, double *beta, double *y, blas_int *incy
) noexcept nogil
ctypedef void (*Dsymv)(
    char *uplo, blas_int *n, double *alpha, double *a, blas_int *lda, double *x, blas_int *incx,
    double *beta, double *y, blas_int *incy
) noexcept nogil
ctypedef void (*Dger)(
    blas_int *m, blas_int *n, double *alpha, double *x, blas_int *incx, double *y, blas_int *incy,
    double *a, blas_int *lda
) noexcept nogil
ctypedef void (*Dsyr)(
    char *uplo, blas_int *n, double *alpha, double *x, blas_int *incx, double *a, blas_int *lda
) noexcept nogil
ctypedef void (*Dtrsv)(
    char *uplo, char *trans, char *diag, blas_int *n, double *a, blas_int *lda, double *x,
    blas_int *incx
) noexcept nogil
ctypedef void (*Dgemm)(
    char *transa, char *transb, blas_int *m, blas_int *n, blas_int *k, double *alpha, double *a,
    blas_int *lda, double *b, blas_int *ldb, double *beta, double *c, blas_int *ldc
) noexcept nogil
ctypedef void (*Dsymm)(
    char *side, char *uplo, blas_int *m, blas_int *n, double *alpha, double *a, blas_int *lda,
    double *b, blas_int *ldb, double *beta, double *c, blas_int *ldc
) noexcept nogil
ctypedef void (*Dsyrk)(
    char *uplo, char *trans, blas_int *n, blas_int *k, double *alpha, double *a, blas_int *lda,
    double *beta, double *c, blas_int *ldc
) noexcept nogil
ctypedef void (*Dtrsm)(
    char *side, char *uplo, char *transa, char *diag, blas_int *m, blas_int *n, double *alpha,
    double *a, blas_int *lda, double *b, blas_int *ldb
) noexcept nogil
ctypedef void (*Dtrmm)(
    char *side, char *uplo, char *transa, char *diag, blas_int *m, blas_int *n, double *alpha,
    double *a, blas_int *lda, double *b, blas_int *ldb
) noexcept nogil
ctypedef void (*Dlauum)(
    char *uplo, blas_int *n, double *a, blas_int *lda, blas_int *info
) noexcept nogil
ctypedef void (*Dpotrf)(
    char *uplo, blas_int *n, double *a, blas_int *lda, blas_int *info
) noexcept nogil
ctypedef void (*Dpotrs)(
    char *uplo, blas_int *n, blas_int *nrhs, double *a, blas_int *lda, double *b, blas_int *ldb,
    blas_int *info
) noexcept nogil
ctypedef void (*Dpotri)(
    char *uplo, blas_int *n, double *a, blas_int *lda, blas_int *info
) noexcept nogil
ctypedef void (*Dtrtri)(
    char *uplo, char *diag, blas_int *n, double *a, blas_int *lda, blas_int *info
) noexcept nogil
ctypedef void (*Dsyev)(
    char *jobz, char *uplo, blas_int *n, double *a, blas_int *lda, double *w, double *work,
    blas_int *lwork, blas_int *info
) noexcept nogil

cdef Ddot ddot
cdef Daxpy daxpy
cdef Dscal dscal
cdef Dcopy dcopy
cdef Dgemv dgemv
cdef Dsymv dsymv
cdef Dger dger
cdef Dsyr dsyr
cdef Dtrsv dtrsv
cdef Dgemm dgemm
cdef Dsymm dsymm
cdef Dsyrk dsyrk
cdef Dtrsm dtrsm
cdef Dtrmm dtrmm
cdef Dlauum dlauum
cdef Dpotrf dpotrf
cdef Dpotrs dpotrs
cdef Dpotri dpotri
cdef Dtrtri dtrtri
cdef Dsyev dsyev

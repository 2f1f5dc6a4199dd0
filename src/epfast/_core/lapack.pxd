"""BLAS and LAPACK for the core: the one place that knows where they come from.

The routines below have the same names and signatures whatever the Meson option ``lapack`` chose:
Fortran calling convention (everything by pointer, matrices by columns), ``noexcept nogil``, and
``blas_int`` for every integer.

    scipy      from scipy.linalg.cython_blas and cython_lapack; fetched at import, nothing is linked
    openblas   from scipy-openblas32, linked; the release wheels carry the library with them

BLAS    ddot daxpy dscal dcopy dgemv dsymv dger dsyr dtrsv dgemm dsymm dsyrk dtrmm dtrsm
LAPACK  dpotrf dpotrs dpotri dsyev dtrtri dlauum
"""

include "lapack_source.pxi"

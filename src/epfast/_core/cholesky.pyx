"""Cholesky factors and inverses in place, cut into pieces between which Python sees signals.

LAPACK returns from a matrix of order 4,000 after seconds, and nothing acts on Ctrl-C meanwhile.
Here matrices above the order WHOLE go by blocks: the same algorithms in calls of BLAS of about
1e9 operations. Between these the handlers of signals run, and an exception of theirs ends the work.
Matrices are symmetric or triangular, n x n; only the lower triangle by columns is touched.
"""

from cpython.exc cimport PyErr_CheckSignals

from epfast._core.lapack cimport (
    blas_int, dgemm, dlauum, dpotrf, dsyrk, dtrmm, dtrsm, dtrtri,
)

cdef enum:
    WHOLE = 1024                # largest order that LAPACK takes in one call
    BLOCK = 256
    TALL = 512                  # rows per call
    SMALL = 32                  # largest triangle that is inverted without products of matrices

cdef double OPERATIONS = 1e9    # of a call, about


cdef int heed_signals() except -1 nogil:
    """Run the handlers of signals that came; the exception of one (Ctrl-C) is passed on."""
    with gil:
        return PyErr_CheckSignals()


cdef ptrdiff_t columns_at_once(ptrdiff_t n) noexcept nogil:
    """How many vectors to multiply with a matrix of order n, or to solve for, in one call."""
    return max(<ptrdiff_t> 16, <ptrdiff_t> (OPERATIONS / (2.0 * n * n)))


cdef int factorize(double *A, ptrdiff_t n) except -1 nogil:
    """A <- L with A = L L'. O(n^3 / 3). Not 0: A is not positive definite."""
    cdef ptrdiff_t i, j
    cdef blas_int ld = <blas_int> n, info = 0, b, m, k
    cdef double unit = 1.0, minus = -1.0
    if n <= WHOLE:
        dpotrf(b"L", &ld, A, &ld, &info)
        return info
    j = 0
    while j < n:
        b, k = <blas_int> min(BLOCK, n - j), <blas_int> j
        if j > 0:
            dsyrk(b"L", b"N", &b, &k, &minus, A + j, &ld, &unit, A + j * n + j, &ld)
        dpotrf(b"L", &b, A + j * n + j, &ld, &info)
        if info != 0:
            return info
        i = j + b
        while i < n:
            m = <blas_int> min(TALL, n - i)
            if j > 0:
                dgemm(
                    b"N", b"T", &m, &b, &k, &minus, A + i, &ld, A + j, &ld, &unit, A + j * n + i,
                    &ld
                )
            dtrsm(
                b"R", b"L", b"T", b"N", &m, &b, &unit, A + j * n + j, &ld, A + j * n + i, &ld
            )
            heed_signals()
            i += TALL
        j += BLOCK
    return 0


cdef void invert_halves(double *L, blas_int n, blas_int ld) noexcept nogil:
    """L <- L^-1 by halves. O(n^3 / 3), in dtrmm; LAPACK solves, at a third of the rate."""
    cdef blas_int info = 0, h = n // 2 // 16 * 16, rest = n - h
    cdef double unit = 1.0, minus = -1.0
    cdef double *corner = L + h
    cdef double *below = L + h * <ptrdiff_t> ld + h
    if n <= SMALL:
        dtrtri(b"L", b"N", &n, L, &ld, &info)
        return
    invert_halves(L, h, ld)
    invert_halves(below, rest, ld)
    dtrmm(b"L", b"L", b"N", b"N", &rest, &h, &minus, below, &ld, corner, &ld)
    dtrmm(b"R", b"L", b"N", b"N", &rest, &h, &unit, L, &ld, corner, &ld)


cdef int invert_triangle(double *L, ptrdiff_t n) except -1 nogil:
    """L <- L^-1, row by row of blocks. O(n^3 / 3)"""
    cdef ptrdiff_t i, k
    cdef blas_int ld = <blas_int> n, b, c, rest
    cdef double unit = 1.0, minus = -1.0
    if n <= WHOLE:
        invert_halves(L, ld, ld)
        return 0
    i = 0
    while i < n:
        b = <blas_int> min(BLOCK, n - i)
        k = 0
        while k < i:
            c, rest = BLOCK, <blas_int> (i - k - BLOCK)
            dtrmm(b"R", b"L", b"N", b"N", &b, &c, &unit, L + k * n + k, &ld, L + k * n + i, &ld)
            if rest > 0:
                dgemm(
                    b"N", b"N", &b, &c, &rest, &unit, L + (k + c) * n + i, &ld,
                    L + k * n + k + c, &ld, &unit, L + k * n + i, &ld
                )
            heed_signals()
            k += BLOCK
        rest = <blas_int> i
        if i > 0:
            dtrsm(b"L", b"L", b"N", b"N", &b, &rest, &minus, L + i * n + i, &ld, L + i, &ld)
        invert_halves(L + i * n + i, b, ld)
        i += BLOCK
    return 0


cdef int invert_factored(double *L, ptrdiff_t n) except -1 nogil:
    """L <- (L L')^-1. O(2 n^3 / 3)"""
    cdef ptrdiff_t i, k
    cdef blas_int ld = <blas_int> n, info = 0, b, c, rest
    cdef double unit = 1.0
    if n <= WHOLE:
        invert_halves(L, ld, ld)
        dlauum(b"L", &ld, L, &ld, &info)
        return 0
    invert_triangle(L, n)
    i = 0
    while i < n:
        b = <blas_int> min(BLOCK, n - i)
        rest = <blas_int> i
        if i > 0:
            dtrmm(b"L", b"L", b"T", b"N", &b, &rest, &unit, L + i * n + i, &ld, L + i, &ld)
        dlauum(b"L", &b, L + i * n + i, &ld, &info)
        rest = <blas_int> (n - i - b)
        if rest == 0:
            break
        k = 0
        while k < i:
            c = <blas_int> min(TALL, i - k)
            dgemm(
                b"T", b"N", &b, &c, &rest, &unit, L + i * n + i + b, &ld, L + k * n + i + b, &ld,
                &unit, L + k * n + i, &ld
            )
            heed_signals()
            k += TALL
        dsyrk(b"L", b"T", &b, &rest, &unit, L + i * n + i + b, &ld, &unit, L + i * n + i, &ld)
        i += BLOCK
    return 0


def cholesky(double[::1, :] A not None):
    """A <- its Cholesky factor, in the lower triangle. Whether A is positive definite."""
    cdef int info
    square(A)
    with nogil:
        info = factorize(&A[0, 0], A.shape[0])
    return info == 0


def inverse_triangle(double[::1, :] L not None):
    """L <- L^-1, of a lower triangle without zeros on its diagonal."""
    square(L)
    with nogil:
        invert_triangle(&L[0, 0], L.shape[0])


def inverse_from_factor(double[::1, :] L not None):
    """L <- the lower triangle of (L L')^-1."""
    square(L)
    with nogil:
        invert_factored(&L[0, 0], L.shape[0])


cdef int square(double[::1, :] A) except -1:
    if A.shape[0] != A.shape[1] or A.shape[0] == 0:
        raise ValueError(f"the matrix has shape {(A.shape[0], A.shape[1])}; allowed: (n, n)")
    return 0

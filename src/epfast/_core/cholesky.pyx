"""Cholesky factors and inverses in place, cut into pieces between which Python sees signals.

LAPACK returns from a matrix of order 4,000 after seconds, and nothing acts on Ctrl-C meanwhile.
Here matrices above the order WHOLE go by blocks, in calls of BLAS of about 1e9 operations. Between
these the handlers of signals run, and an exception of theirs ends the work. Triangles are inverted
by halves at all orders: LAPACK solves with small triangles on the way, at a third of the speed.
Matrices are symmetric or triangular, n x n; only the lower triangle by columns is touched.
"""

from cpython.exc cimport PyErr_CheckSignals

from epfast._core.lapack cimport (
    blas_int, dgemm, dlauum, dpotrf, dsyrk, dtrmm, dtrsm, dtrtri,
)

cdef enum:
    WHOLE = 1024                # largest order that LAPACK takes in one call
    SMALL_BLOCK = 16            # and for triangles, of which it makes less than of products
    STRIP = 256                 # columns of a product
    BLOCK = 256
    TALL = 512                  # rows per call

cdef double OPERATIONS = 1e9    # of a call, about


cdef int heed_signals() except -1 nogil:
    """Run the handlers of signals that came; the exception of one (Ctrl-C) is passed on."""
    with gil:
        return PyErr_CheckSignals()


cdef ptrdiff_t columns_at_once(ptrdiff_t n) noexcept nogil:
    """How many vectors to multiply with a matrix of order n, or to solve for, in one call."""
    return max(<ptrdiff_t> 16, <ptrdiff_t> (OPERATIONS / (2.0 * n * n)))


cdef ptrdiff_t half(ptrdiff_t n) noexcept nogil:
    """About half, of whole blocks."""
    return (n // 2 + SMALL_BLOCK - 1) // SMALL_BLOCK * SMALL_BLOCK


cdef int subtract_product(
    blas_int m, blas_int n, blas_int k, double *A, double *B, bint transposed, double *C,
    blas_int ld
) except -1 nogil:
    """C <- C - A B, m x n, or C - A B'; in calls of about OPERATIONS, or of STRIP columns."""
    cdef double unit = 1.0, minus = -1.0
    cdef ptrdiff_t first = 0, step = n
    cdef blas_int some
    if 2.0 * m * n * k > OPERATIONS:
        step = max(<ptrdiff_t> STRIP, <ptrdiff_t> (OPERATIONS / (2.0 * m * k)))
    while first < n:
        some = <blas_int> min(step, n - first)
        if transposed:
            dgemm(
                b"N", b"T", &m, &some, &k, &minus, A, &ld, B + first, &ld, &unit, C + first * ld,
                &ld
            )
        else:
            dgemm(
                b"N", b"N", &m, &some, &k, &minus, A, &ld, B + first * ld, &ld, &unit,
                C + first * ld, &ld
            )
        if step < n:
            heed_signals()
        first += step
    return 0


cdef int solve_left(double *L, ptrdiff_t n, double *B, ptrdiff_t m, blas_int ld) except -1 nogil:
    """B <- L^-1 B, n x m; the diagonal blocks of L are inverted already."""
    cdef blas_int order = <blas_int> n, count = <blas_int> m
    cdef ptrdiff_t h = half(n)
    cdef double unit = 1.0
    if n <= SMALL_BLOCK:
        dtrmm(b"L", b"L", b"N", b"N", &order, &count, &unit, L, &ld, B, &ld)
        return 0
    solve_left(L, h, B, m, ld)
    subtract_product(<blas_int> (n - h), count, <blas_int> h, L + h, B, False, B + h, ld)
    return solve_left(L + h * ld + h, n - h, B + h, m, ld)


cdef int solve_right(double *L, ptrdiff_t n, double *B, ptrdiff_t m, blas_int ld) except -1 nogil:
    """B <- B L^-1, m x n; the diagonal blocks of L are inverted already."""
    cdef blas_int order = <blas_int> n, count = <blas_int> m
    cdef ptrdiff_t h = half(n)
    cdef double unit = 1.0
    if n <= SMALL_BLOCK:
        dtrmm(b"R", b"L", b"N", b"N", &count, &order, &unit, L, &ld, B, &ld)
        return 0
    solve_right(L + h * ld + h, n - h, B + h * ld, m, ld)
    subtract_product(count, <blas_int> h, <blas_int> (n - h), B + h * ld, L + h, False, B, ld)
    return solve_right(L, h, B, m, ld)


cdef int solve_right_transposed(
    double *L, ptrdiff_t n, double *B, ptrdiff_t m, blas_int ld
) except -1 nogil:
    """B <- B L'^-1, m x n."""
    cdef blas_int order = <blas_int> n, count = <blas_int> m
    cdef ptrdiff_t h = half(n)
    cdef double unit = 1.0
    if n <= SMALL_BLOCK:
        dtrsm(b"R", b"L", b"T", b"N", &count, &order, &unit, L, &ld, B, &ld)
        return 0
    solve_right_transposed(L, h, B, m, ld)
    subtract_product(count, <blas_int> (n - h), <blas_int> h, B, L + h, True, B + h * ld, ld)
    return solve_right_transposed(L + h * ld + h, n - h, B + h * ld, m, ld)


cdef int factorize(double *A, ptrdiff_t n) except -1 nogil:
    """A <- L with A = L L'. O(n^3 / 3). Not 0: A is not positive definite."""
    return factorize_part(A, n, <blas_int> n)


cdef int factorize_part(double *A, ptrdiff_t n, blas_int ld) except -1 nogil:
    cdef blas_int order = <blas_int> n, info = 0, rest
    cdef blas_int k, some
    cdef ptrdiff_t h = half(n), first
    cdef double unit = 1.0, minus = -1.0
    cdef double *below = A + h
    if n <= WHOLE:
        dpotrf(b"L", &order, A, &ld, &info)
        return info
    info = factorize_part(A, h, ld)
    if info != 0:
        return info
    solve_right_transposed(A, h, below, n - h, ld)
    # the lower triangle of what is left, by blocks of columns
    k, first = <blas_int> h, 0
    while first < n - h:
        some = <blas_int> min(STRIP, n - h - first)
        rest = <blas_int> (n - h - first)
        dsyrk(
            b"L", b"N", &some, &k, &minus, below + first, &ld, &unit,
            A + (h + first) * ld + h + first, &ld
        )
        rest = rest - some
        if rest > 0:
            dgemm(
                b"N", b"T", &rest, &some, &k, &minus, below + first + some, &ld, below + first,
                &ld, &unit, A + (h + first) * ld + h + first + some, &ld
            )
        heed_signals()
        first += some
    return factorize_part(A + h * ld + h, n - h, ld)


cdef int invert_triangle(double *L, ptrdiff_t n) except -1 nogil:
    """L <- L^-1. O(n^3 / 3)"""
    cdef blas_int ld = <blas_int> n
    invert_blocks(L, n, ld)
    return invert_part(L, n, ld)


cdef void invert_blocks(double *L, ptrdiff_t n, blas_int ld) noexcept nogil:
    """The diagonal blocks at which the halving ends."""
    cdef blas_int order = <blas_int> n, info = 0
    cdef ptrdiff_t h = half(n)
    if n <= SMALL_BLOCK:
        dtrtri(b"L", b"N", &order, L, &ld, &info)
        return
    invert_blocks(L, h, ld)
    invert_blocks(L + h * ld + h, n - h, ld)


cdef int invert_part(double *L, ptrdiff_t n, blas_int ld) except -1 nogil:
    """By halves: that of the lower left block B is -C^-1 B A^-1."""
    cdef ptrdiff_t h = half(n), j, i
    if n <= SMALL_BLOCK:
        return 0
    solve_left(L + h * ld + h, n - h, L + h, h, ld)
    solve_right(L, h, L + h, n - h, ld)
    for j in range(h):
        for i in range(h, n):
            L[j * ld + i] = -L[j * ld + i]
    invert_part(L, h, ld)
    return invert_part(L + h * ld + h, n - h, ld)


cdef int invert_factored(double *L, ptrdiff_t n) except -1 nogil:
    """L <- (L L')^-1. O(2 n^3 / 3)"""
    cdef ptrdiff_t i, k
    cdef blas_int ld = <blas_int> n, info = 0, b, c, rest
    cdef double unit = 1.0
    invert_triangle(L, n)
    if n <= WHOLE:
        dlauum(b"L", &ld, L, &ld, &info)
        return 0
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

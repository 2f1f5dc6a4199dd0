"""Cholesky factors and inverses in place, cut into pieces between which Python sees signals.

LAPACK returns from a matrix of order 4,000 after seconds, and nothing acts on Ctrl-C meanwhile.
Here matrices above the order WHOLE go by blocks, in calls of BLAS of about 1e9 operations. Between
these the handlers of signals run, and an exception of theirs ends the work. Triangles are inverted
by halves at all orders: LAPACK solves with small triangles on the way, at a third of the speed.
Matrices are symmetric or triangular, n x n; only the lower triangle by columns is touched.

A pool of threads shares tiles of what BLAS does at once otherwise, from the order TOGETHER on.
"""

import numpy as np

from cpython.exc cimport PyErr_CheckSignals
from libc.math cimport isfinite, log
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from epfast._core.thread_pool cimport ThreadPool, is_at_work, part_size
from epfast._core.lapack cimport (
    blas_int, ddot, dgemm, dlauum, dpotrf, dsymm, dsyrk, dtrmm, dtrsm, dtrsv, dtrtri,
)

cdef enum:
    WHOLE = 1024                # largest order that LAPACK takes in one call
    SMALL_BLOCK = 16            # and for triangles, of which it makes less than of products
    STRIP = 256                 # columns of a product
    BLOCK = 256
    TALL = 512                  # rows per call
    TOGETHER = 256              # least order that a pool shares
    WIDTH = 128                 # columns of a tile, and of a panel of a factor
    LEAVES = 128                # triangles at most that are inverted one per thread

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


cdef int factorize(double *A, ptrdiff_t n, ThreadPool pool=None) except -1 nogil:
    """A <- L with A = L L'. O(n^3 / 3). Not 0: A is not positive definite."""
    if n >= TOGETHER and is_at_work(pool):
        return factorize_together(A, n, pool)
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


cdef int invert_triangle(double *L, ptrdiff_t n, ThreadPool pool=None) except -1 nogil:
    """L <- L^-1. O(n^3 / 3)"""
    cdef blas_int ld = <blas_int> n
    if n >= TOGETHER and is_at_work(pool):
        return invert_together(L, n, pool)
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


cdef int invert_factored(double *L, ptrdiff_t n, ThreadPool pool=None) except -1 nogil:
    """L <- (L L')^-1. O(2 n^3 / 3)"""
    invert_triangle(L, n, pool)
    return square_triangle(L, n, pool)


cdef int square_triangle(double *L, ptrdiff_t n, ThreadPool pool=None) except -1 nogil:
    """L <- L' L. O(n^3 / 3)"""
    cdef ptrdiff_t i, k
    cdef blas_int ld = <blas_int> n, info = 0, b, c, rest
    cdef double unit = 1.0
    if n >= TOGETHER and is_at_work(pool):
        return square_together(L, n, pool)
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


# ---- by a pool ----

cdef struct Job:
    double *A                   # of order n by columns, which is its distance of columns
    ptrdiff_t n
    ptrdiff_t first, size       # a panel, or a triangle on the diagonal
    ptrdiff_t start, step       # where the parts begin, and how much each takes
    ptrdiff_t stop
    ptrdiff_t rest              # order of the triangle below that one
    double *corner              # a triangle as it was
    double *panel               # n x size, whose product with its own transpose is added
    double sign
    ptrdiff_t width             # columns of a tile
    bint factors                # whether the first tile is a panel's triangle, which follows
    int info


cdef int factorize_together(double *A, ptrdiff_t n, ThreadPool pool) except -1 nogil:
    """Panel by panel: its solve by rows, then what it leaves by tiles, the next panel's first."""
    cdef Job job
    cdef ptrdiff_t k = 0
    job.A, job.n, job.first, job.size, job.info = A, n, 0, min(<ptrdiff_t> WIDTH, n), 0
    job.width, job.sign, job.factors = WIDTH, -1.0, True
    factor_of_panel(&job, 0)
    while job.info == 0:
        k = job.first + job.size
        if k >= n:
            break
        job.start, job.step = k, part_size(pool, n - k, SMALL_BLOCK)
        pool.run(solve_panel, &job, (n - k + job.step - 1) // job.step)
        job.step = max(<ptrdiff_t> WIDTH, min(<ptrdiff_t> TALL, (n - k) // 4))
        job.panel = A + job.first * n
        pool.run(add_tile, &job, tiles(&job))
        heed_signals()
        job.first, job.size = k, min(<ptrdiff_t> WIDTH, n - k)
    return job.info


cdef void factor_of_panel(Job *job, ptrdiff_t first) noexcept nogil:
    """The triangle of the panel that begins there."""
    cdef blas_int order = <blas_int> min(<ptrdiff_t> WIDTH, job.n - first), ld = <blas_int> job.n
    cdef blas_int info = 0
    dpotrf(b"L", &order, job.A + first * job.n + first, &ld, &info)
    job.info = info


cdef void solve_panel(void *what, ptrdiff_t part) noexcept nogil:
    """Rows of the panel times L'^-1, L its triangle."""
    cdef Job *job = <Job *> what
    cdef ptrdiff_t i = job.start + part * job.step
    cdef blas_int m = <blas_int> min(job.step, job.n - i), k = <blas_int> job.size
    cdef blas_int ld = <blas_int> job.n
    cdef double unit = 1.0
    cdef double *column = job.A + job.first * job.n
    dtrsm(b"R", b"L", b"T", b"N", &m, &k, &unit, column + job.first, &ld, column + i, &ld)


cdef void add_product(
    double *C, ptrdiff_t n, double *W, ptrdiff_t k, double sign, ThreadPool pool
) noexcept nogil:
    """C <- C + sign W W', lower triangle; W is n x k by columns."""
    cdef Job job
    if k == 0:
        return
    job.A, job.n, job.size, job.start, job.panel, job.sign = C, n, k, 0, W, sign
    job.factors = False
    # wider than in a factorisation: there are fewer columns to multiply
    job.width, job.step = BLOCK, TALL
    pool.run(add_tile, &job, tiles(&job))


cdef ptrdiff_t rows_of_tiles(Job *job, ptrdiff_t j) noexcept nogil:
    """How many tiles the columns from j have: one on the diagonal, those of ``step`` rows below."""
    return 1 + (max(<ptrdiff_t> 0, job.n - j - job.width) + job.step - 1) // job.step


cdef ptrdiff_t tiles(Job *job) noexcept nogil:
    """How many tiles the lower triangle from ``start`` has."""
    cdef ptrdiff_t count = 0, j = job.start
    while j < job.n:
        count += rows_of_tiles(job, j)
        j += job.width
    return count


cdef void add_tile(void *what, ptrdiff_t part) noexcept nogil:
    """A tile, plus the product of its rows of the panel."""
    cdef Job *job = <Job *> what
    cdef ptrdiff_t j = job.start, i
    cdef blas_int m, w, k = <blas_int> job.size, ld = <blas_int> job.n
    cdef double unit = 1.0
    while part >= rows_of_tiles(job, j):
        part -= rows_of_tiles(job, j)
        j += job.width
    w = <blas_int> min(job.width, job.n - j)
    if part == 0:
        dsyrk(
            b"L", b"N", &w, &k, &job.sign, job.panel + j, &ld, &unit, job.A + j * job.n + j, &ld
        )
        if job.factors and j == job.start:
            factor_of_panel(job, j)
        return
    i = j + w + (part - 1) * job.step
    m = <blas_int> min(job.step, job.n - i)
    dgemm(
        b"N", b"T", &m, &w, &k, &job.sign, job.panel + i, &ld, job.panel + j, &ld, &unit,
        job.A + j * job.n + i, &ld
    )


cdef int invert_together(double *L, ptrdiff_t n, ThreadPool pool) except -1 nogil:
    """By halves down to LEAVES: a lower left block by its columns, then by its rows."""
    cdef Job leaves[LEAVES]
    cdef ptrdiff_t count = 0
    split(L, n, 0, n, max(<ptrdiff_t> SMALL_BLOCK, n // 32 + SMALL_BLOCK), leaves, &count)
    pool.run(invert_small_blocks, leaves, count)
    halve(L, n, 0, n, max(<ptrdiff_t> SMALL_BLOCK, n // 32 + SMALL_BLOCK), pool)
    pool.run(invert_leaf, leaves, count)
    return 0


cdef void split(
    double *L, ptrdiff_t n, ptrdiff_t first, ptrdiff_t size, ptrdiff_t least, Job *leaves,
    ptrdiff_t *count
) noexcept nogil:
    """Note the triangles where the halving ends."""
    cdef ptrdiff_t h = half(size)
    if size <= least:
        leaves[count[0]].A, leaves[count[0]].n = L, n
        leaves[count[0]].first, leaves[count[0]].size = first, size
        count[0] += 1
        return
    split(L, n, first, h, least, leaves, count)
    split(L, n, first + h, size - h, least, leaves, count)


cdef int halve(
    double *L, ptrdiff_t n, ptrdiff_t first, ptrdiff_t size, ptrdiff_t least, ThreadPool pool
) except -1 nogil:
    """The lower left blocks of all triangles that are halved, the largest first."""
    cdef ptrdiff_t h = half(size)
    if size <= least:
        return 0
    share_solve(L, n, first, h, size - h, True, pool)
    share_solve(L, n, first, h, size - h, False, pool)
    halve(L, n, first, h, least, pool)
    return halve(L, n, first + h, size - h, least, pool)


cdef int share_solve(
    double *L, ptrdiff_t n, ptrdiff_t first, ptrdiff_t h, ptrdiff_t rest, bint left, ThreadPool pool
) except -1 nogil:
    """B <- C^-1 B by columns, or B <- -B A^-1 by rows; as many at a time as a second allows."""
    cdef Job job
    cdef ptrdiff_t total = h if left else rest, order = rest if left else h, some
    job.A, job.n, job.first, job.size, job.rest = L, n, first, h, rest
    job.start = 0
    some = max(
        <ptrdiff_t> (OPERATIONS / (1.0 * order * order)), <ptrdiff_t> SMALL_BLOCK
    ) * pool.threads
    while job.start < total:
        job.stop = min(total, job.start + some)
        job.step = part_size(pool, job.stop - job.start, SMALL_BLOCK // 2)
        pool.run(
            solve_some_columns if left else solve_some_rows, &job,
            (job.stop - job.start + job.step - 1) // job.step
        )
        heed_signals()
        job.start = job.stop
    return 0


cdef void solve_some_columns(void *what, ptrdiff_t part) noexcept nogil:
    cdef Job *job = <Job *> what
    cdef ptrdiff_t n = job.n, h = job.first + job.size, j = job.start + part * job.step
    solve_left(
        job.A + h * n + h, job.rest, job.A + (job.first + j) * n + h, min(job.step, job.stop - j),
        <blas_int> n
    )


cdef void solve_some_rows(void *what, ptrdiff_t part) noexcept nogil:
    cdef Job *job = <Job *> what
    cdef ptrdiff_t n = job.n, i = job.start + part * job.step, m = min(job.step, job.stop - i)
    cdef ptrdiff_t j, k
    cdef double *B = job.A + job.first * n + job.first + job.size + i
    solve_right(job.A + job.first * n + job.first, job.size, B, m, <blas_int> n)
    for j in range(job.size):
        for k in range(m):
            B[j * n + k] = -B[j * n + k]


cdef void invert_small_blocks(void *what, ptrdiff_t part) noexcept nogil:
    cdef Job *leaf = <Job *> what + part
    invert_blocks(leaf.A + leaf.first * leaf.n + leaf.first, leaf.size, <blas_int> leaf.n)


cdef void invert_leaf(void *what, ptrdiff_t part) noexcept nogil:
    cdef Job *leaf = <Job *> what + part
    invert_part(leaf.A + leaf.first * leaf.n + leaf.first, leaf.size, <blas_int> leaf.n)


cdef int square_together(double *L, ptrdiff_t n, ThreadPool pool) except -1 nogil:
    """L <- L' L, the lower triangle: block rows downwards, each by columns."""
    cdef Job job
    cdef ptrdiff_t i = 0, j
    job.A, job.n = L, n
    job.corner = <double *> malloc(BLOCK * BLOCK * sizeof(double))
    if job.corner == NULL:
        with gil:
            raise MemoryError
    try:
        while i < n:
            job.first, job.size = i, min(<ptrdiff_t> BLOCK, n - i)
            # the columns need the block on the diagonal as it was
            for j in range(job.size):
                memcpy(
                    job.corner + j * job.size, L + (i + j) * n + i, job.size * sizeof(double)
                )
            job.step = part_size(pool, i, SMALL_BLOCK)
            pool.run(square_tile, &job, 1 + (i + job.step - 1) // job.step)
            heed_signals()
            i += BLOCK
    finally:
        free(job.corner)
    return 0


cdef void square_tile(void *what, ptrdiff_t part) noexcept nogil:
    """Some columns of a block row; the first part is the block on the diagonal."""
    cdef Job *job = <Job *> what
    cdef ptrdiff_t n = job.n, i = job.first, j = (part - 1) * job.step
    cdef blas_int b = <blas_int> job.size, m, rest = <blas_int> (n - i - job.size)
    cdef blas_int ld = <blas_int> n, info = 0
    cdef double unit = 1.0
    cdef double *corner = job.A + i * n + i
    if part == 0:
        dlauum(b"L", &b, corner, &ld, &info)
        if rest > 0:
            dsyrk(b"L", b"T", &b, &rest, &unit, corner + b, &ld, &unit, corner, &ld)
        return
    m = <blas_int> min(job.step, i - j)
    dtrmm(b"L", b"L", b"T", b"N", &b, &m, &unit, job.corner, &b, job.A + j * n + i, &ld)
    if rest > 0:
        dgemm(
            b"T", b"N", &b, &m, &rest, &unit, corner + b, &ld, job.A + j * n + i + b, &ld, &unit,
            job.A + j * n + i, &ld
        )


def cholesky(double[::1, :] A not None, ThreadPool pool=None):
    """A <- its Cholesky factor, in the lower triangle. Whether A is positive definite."""
    cdef int info
    square(A)
    with nogil:
        info = factorize(&A[0, 0], A.shape[0], pool)
    return info == 0


def inverse_triangle(double[::1, :] L not None, ThreadPool pool=None):
    """L <- L^-1, of a lower triangle without zeros on its diagonal."""
    square(L)
    with nogil:
        invert_triangle(&L[0, 0], L.shape[0], pool)


def inverse_from_factor(double[::1, :] L not None, ThreadPool pool=None):
    """L <- the lower triangle of (L L')^-1."""
    square(L)
    with nogil:
        invert_factored(&L[0, 0], L.shape[0], pool)


def gaussian_moments(
    double[:, ::1] P not None, const double[::1] p not None, bint rooted=False
):
    """P^-1, P^-1 p and (p.P^-1 p - log det P) / 2, for the upper triangle of P by rows.

    The other triangle of P is filled in. The fourth result is the upper triangle R of P^-1 = R R',
    if it is asked for, else None.

    None if P is not positive definite or something is not finite. O(d^3)
    """
    cdef blas_int d = <blas_int> P.shape[0], one = 1
    cdef ptrdiff_t n = P.shape[0], i, j
    cdef double log_norm = 0.0
    cdef double[:, ::1] S, root
    cdef double[::1] m
    cdef double *L
    cdef double *z
    if not n == P.shape[1] == p.shape[0]:
        raise ValueError(f"P has shape {(P.shape[0], P.shape[1])}; p has {p.shape[0]} numbers")
    covariance, mean = np.empty((n, n)), np.empty(n)
    upper = np.empty((n, n)) if rooted else None
    S, m, root = covariance, mean, upper
    L, z = &S[0, 0], &m[0]
    with nogil:
        for i in range(n):
            for j in range(i, n):
                L[i * n + j] = P[i, j]
                P[j, i] = P[i, j]
            z[i] = p[i]
        if factorize(L, n) != 0:
            with gil:
                return None
        for i in range(n):
            log_norm -= log(L[i * n + i])
        dtrsv(b"L", b"N", b"N", &d, L, &d, z, &one)
        log_norm += 0.5 * ddot(&d, z, &one, z, &one)
        dtrsv(b"L", b"T", b"N", &d, L, &d, z, &one)
        invert_triangle(L, n)
        if rooted:
            for i in range(n):
                for j in range(n):
                    root[i, j] = L[i * n + j] if j >= i else 0.0
        square_triangle(L, n)
        for i in range(n):
            for j in range(i + 1, n):
                L[j * n + i] = L[i * n + j]
    return (covariance, mean, log_norm, upper) if isfinite(log_norm) else None


def symmetric_times(double[::1, :] A not None, B, ThreadPool pool=None):
    """A B by columns, (n, m), for the lower triangle of a symmetric A (n, n)."""
    cdef const double[::1, :] right = np.asfortranarray(B)
    cdef ptrdiff_t m = right.shape[1], step
    cdef double[::1, :] result
    cdef Product job
    square(A)
    if right.shape[0] != A.shape[0]:
        raise ValueError(f"the matrix has {right.shape[0]} rows; allowed: {A.shape[0]}")
    found = np.empty((A.shape[0], m), order="F")
    if m == 0:
        return found
    result = found
    job.A, job.B, job.C, job.n = &A[0, 0], &right[0, 0], &result[0, 0], A.shape[0]
    job.start = 0
    with nogil:
        while job.start < m:
            step = columns_at_once(job.n) * (1 if pool is None else pool.threads)
            job.stop = min(m, job.start + step)
            job.step = job.stop - job.start
            if is_at_work(pool):
                job.step = part_size(pool, job.step, SMALL_BLOCK)
                pool.run(
                    multiply_columns, &job, (job.stop - job.start + job.step - 1) // job.step
                )
            else:
                multiply_columns(&job, 0)
            heed_signals()
            job.start = job.stop
    return found


cdef struct Product:
    double *A
    const double *B
    double *C
    ptrdiff_t n, start, stop, step


cdef void multiply_columns(void *what, ptrdiff_t part) noexcept nogil:
    cdef Product *job = <Product *> what
    cdef ptrdiff_t j = job.start + part * job.step
    cdef blas_int n = <blas_int> job.n, m = <blas_int> min(job.step, job.stop - j)
    cdef double unit = 1.0, zero = 0.0
    dsymm(
        b"L", b"L", &n, &m, &unit, job.A, &n, <double *> job.B + j * job.n, &n, &zero,
        job.C + j * job.n, &n
    )


cdef int square(double[::1, :] A) except -1:
    if A.shape[0] != A.shape[1] or A.shape[0] == 0:
        raise ValueError(f"the matrix has shape {(A.shape[0], A.shape[1])}; allowed: (n, n)")
    return 0

"""A kernel matrix and the posterior of its process given Gaussian sites, in one n x n array.

The lower triangle of C rows holds the kernel matrix K, whose diagonal is stored separately. The
rest, by columns the lower triangle with the diagonal, is work space for B = I + S K S with
S = diag(tau)^1/2 (Rasmussen & Williams 2006, eq. 3.26), its Cholesky factor and inverse. In the end
it holds the lower triangle of the Cholesky factor of B or of one of

    R = (K + diag(tau)^-1)^-1,      Sigma = (K^-1 + diag(tau))^-1 = K - K R K.

Sites of negative precision come after the others, whose posterior is Sigma_+ with R_+: with
D = |tau|^1/2 on them, N, and C = I - D Sigma_+ D = L L' there,

    Sigma = Sigma_+ + U U',     U = Sigma_+[:, N] D L^-T,

which exists iff C is positive definite. R = diag(tau) - diag(tau) Sigma diag(tau) throughout.
"""

import numpy as np

from libc.float cimport DBL_EPSILON
from libc.math cimport NAN, isnan, log, sqrt
from libc.string cimport memset

from epfast._core.cholesky cimport (
    columns_at_once, factorize, heed_signals, invert_factored, invert_triangle,
)
from epfast._core.thread_pool cimport Task, ThreadPool, is_at_work
from epfast._core.lapack cimport blas_int, ddot, dpotrs, dsymm, dsymv, dsyrk, dtrsm
from epfast._core.rows cimport long_enough
from epfast._core.vector cimport (
    EPF_MATERN12, EPF_MATERN32, EPF_MATERN52, EPF_RBF, kernels,
)

cdef double SMALL = 1e-3        # tau K_ii below which Sigma is not taken from (1 - R / tau) / tau

cdef enum:
    COLUMNS = 64                # of K at hand at a time
    TILE = 32
    SHARED = 128                # least order that a pool shares
    STRIPS = 4                  # parts per thread, of what is added up in arrays of each

#: stationary kernels of :meth:`KernelMatrix.pour`
KINDS = {
    "rbf": EPF_RBF, "matern12": EPF_MATERN12, "matern32": EPF_MATERN32, "matern52": EPF_MATERN52,
}


def stationary(
    const double[::1] squares not None, int kind, double scale, double[::1] values not None,
    double[::1] slopes=None,
):
    """k(scale d) of squared distances d, and dk / d log length scale; k a row of KINDS."""
    cdef ptrdiff_t n = squares.shape[0]
    long_enough("values", values.shape[0], n)
    if slopes is not None:
        long_enough("slopes", slopes.shape[0], n)
    if n > 0:
        with nogil:
            kernels.stationary(
                kind, n, scale, &squares[0], &values[0], NULL if slopes is None else &slopes[0]
            )


cdef struct Job:
    double *W                   # n x n
    ptrdiff_t n
    const double *scale
    const double *tau
    double *variance
    const double *diag
    const unsigned char *is_small
    int kind
    double width, height
    const double *squares
    const double *x
    const double *z
    double *work                # of each part
    ptrdiff_t parts


# Each part of what follows is TILE rows or columns of the array; the longest ones go first.

cdef void fill_tiles(void *what, ptrdiff_t part) noexcept nogil:
    """Columns of the other triangle but for the diagonal: scale_i K_ij scale_j."""
    cdef Job *job = <Job *> what
    cdef ptrdiff_t i, j, n = job.n, a = ((n + TILE - 1) // TILE - 1 - part) * TILE, b = 0
    cdef double *W = job.W
    while b <= a:
        for j in range(b, min(b + TILE, n)):
            for i in range(max(a, j + 1), min(a + TILE, n)):
                W[j * n + i] = job.scale[i] * job.scale[j] * W[i * n + j]
        b += TILE


cdef void scale_columns(void *what, ptrdiff_t part) noexcept nogil:
    """Variances from the diagonal of B^-1, and R from B^-1."""
    cdef Job *job = <Job *> what
    cdef ptrdiff_t i, j, n = job.n
    cdef double *W = job.W
    for j in range(part * TILE, min((part + 1) * TILE, n)):
        if job.tau[j] * job.diag[j] >= SMALL:
            job.variance[j] = (1.0 - W[j * n + j]) / job.tau[j]
        for i in range(j, n):
            W[j * n + i] *= job.scale[i] * job.scale[j]


cdef void variances_of_columns(void *what, ptrdiff_t part) noexcept nogil:
    """Variances from the inverse of the factor of B."""
    cdef Job *job = <Job *> what
    cdef ptrdiff_t j, n = job.n
    cdef blas_int m, one = 1
    cdef double *column
    for j in range(part * TILE, min((part + 1) * TILE, n)):
        if job.tau[j] * job.diag[j] >= SMALL:
            m, column = <blas_int> (n - j), job.W + j * n + j
            job.variance[j] = (1.0 - ddot(&m, column, &one, column, &one)) / job.tau[j]


cdef void covariance_columns(void *what, ptrdiff_t part) noexcept nogil:
    """(1 - R / tau) / tau, where no tau is small."""
    cdef Job *job = <Job *> what
    cdef ptrdiff_t i, j, n = job.n
    cdef double *W = job.W
    for j in range(part * TILE, min((part + 1) * TILE, n)):
        if job.is_small[j]:
            continue
        for i in range(j, n):
            if not job.is_small[i]:
                W[j * n + i] = (
                    (1.0 if i == j else 0.0) - W[j * n + i] / job.tau[i]
                ) / job.tau[j]


cdef void pour_columns(void *what, ptrdiff_t part) noexcept nogil:
    cdef Job *job = <Job *> what
    cdef ptrdiff_t i, j, k, a = part * TILE, b = a + 1, m, n = job.n
    cdef const double *row
    cdef double values[TILE]
    while b < n:
        for j in range(a, min(a + TILE, n - 1)):
            i = max(b, j + 1)
            m = min(b + TILE, n) - i
            if m <= 0:
                continue
            row = job.squares + j * (2 * n - j - 1) // 2 - j - 1
            kernels.stationary(job.kind, m, job.width, row + i, values, NULL)
            for k in range(m):
                job.W[(i + k) * n + j] = job.height * values[k]
        b += TILE


cdef void contract_columns(void *what, ptrdiff_t part) noexcept nogil:
    """Every so many-th column: diagonal, sums, and scratch of 2 n in ``work``."""
    cdef Job *job = <Job *> what
    cdef ptrdiff_t j = part, n = job.n
    cdef double *W = job.W
    cdef double *sums = job.work + part * (2 * n + 3)
    cdef double *values = sums + 3
    cdef const double *alpha = job.x
    cdef const double *row
    sums[0] = sums[1] = sums[2] = 0.0
    while j < n:
        sums[2] += alpha[j] * alpha[j] - W[j * n + j]
        if j + 1 < n:
            row = job.squares + j * (2 * n - j - 1) // 2
            kernels.stationary(job.kind, n - j - 1, job.width, row, values, values + n)
            kernels.contract(
                n - j - 1, alpha[j], alpha + j + 1, W + j * n + j + 1, values, values + n, sums
            )
        j += job.parts


cdef void couple_columns(void *what, ptrdiff_t part) noexcept nogil:
    """Every so many-th four columns: y and q, n each, in ``work``."""
    cdef Job *job = <Job *> what
    cdef ptrdiff_t i, j = 4 * part, n = job.n
    cdef int r, k, rows
    cdef double *W = job.W
    cdef double *y = job.work + part * 2 * n
    cdef double *q = y + n
    cdef const double *x = job.x
    cdef const double *z = job.z
    cdef double v
    cdef double sums[8]
    for i in range(n):
        y[i] = q[i] = 0.0
    while j < n:
        rows = <int> min(4, n - j)
        for r in range(8):
            sums[r] = 0.0
        for r in range(rows):
            for k in range(r + 1, rows):
                v = W[(j + r) * n + j + k]
                y[j + r] += v * x[j + k]
                y[j + k] += v * x[j + r]
                q[j + r] += v * v * z[j + k]
                q[j + k] += v * v * z[j + r]
        i = j + rows
        if i < n:
            kernels.couple(
                rows, n - i, W + j * n + i, n, x + j, z + j, x + i, z + i, y + i, q + i, sums
            )
        for r in range(rows):
            y[j + r] += sums[2 * r]
            q[j + r] += sums[2 * r + 1]
        j += 4 * job.parts


cdef class KernelMatrix:
    """K, taken from the lower triangle of C rows of ``array``; the rest is lost.

    The diagonal of K is that of the array, or stored separately by an earlier one.

    Every method overwrites what the others left in the other triangle. Where it takes long, signals
    are handled on the way: an exception of theirs (Ctrl-C) leaves K as it was, the rest undefined.
    A pool of threads shares what takes O(n^3), and most of what takes O(n^2).
    """

    cdef readonly ptrdiff_t n
    cdef double[:, ::1] W
    cdef readonly object array, diagonal
    cdef double[::1] diag
    cdef double[::1] root
    cdef double[:, ::1] columns             # scratch, n x COLUMNS by columns
    cdef ptrdiff_t[::1] few                 # which of K they are
    cdef double[::1] work                   # of the parts that a pool shares
    cdef public ThreadPool pool

    def __init__(self, double[:, ::1] array not None, diagonal=None):
        self.W, self.array, self.n = array, np.asarray(array), array.shape[0]
        self.diagonal = np.array(self.array.diagonal() if diagonal is None else diagonal)
        self.diag = self.diagonal
        self.root = np.empty(self.n)
        self.columns = np.empty((min(COLUMNS, self.n), self.n))
        self.few = np.empty(len(self.columns), dtype=np.intp)
        self.work = np.empty(1)

    # ---- parts ----

    cdef Job job(self) noexcept nogil:
        cdef Job job
        memset(&job, 0, sizeof(Job))
        job.W, job.n, job.diag, job.scale = &self.W[0, 0], self.n, &self.diag[0], &self.root[0]
        return job

    cdef void share(self, Task task, Job *job, ptrdiff_t parts) noexcept nogil:
        """All parts, by the pool if there is one."""
        cdef ptrdiff_t part
        if self.n >= SHARED and is_at_work(self.pool):
            self.pool.run(task, job, parts)
            return
        for part in range(parts):
            task(job, part)

    cdef ptrdiff_t strips(self):
        """How many parts add up in arrays of their own."""
        if self.n >= SHARED and is_at_work(self.pool):
            return STRIPS * self.pool.threads
        return 1

    cdef void fill(self) noexcept nogil:
        """The other triangle but for the diagonal: root_i K_ij root_j. In tiles for the cache."""
        cdef Job job = self.job()
        self.share(fill_tiles, &job, (self.n + TILE - 1) // TILE)

    def load(self, double jitter=0.0):
        """The other triangle: K + jitter I."""
        cdef ptrdiff_t i
        self.root[:] = 1.0
        with nogil:
            self.fill()
            for i in range(self.n):
                self.W[i, i] = self.diag[i] + jitter

    def is_positive(self, double jitter):
        """Whether K + jitter I is positive definite. O(n^3 / 3)"""
        cdef int info
        self.load(jitter)
        with nogil:
            info = factorize(&self.W[0, 0], self.n, self.pool)
        return info == 0

    cdef void times_vector(self, double *x, double *out) noexcept nogil:
        """K x, whatever the diagonal of the array holds."""
        cdef blas_int n = <blas_int> self.n, one = 1
        cdef double unit = 1.0, zero = 0.0
        cdef double *W = &self.W[0, 0]
        self.swap_diagonal()
        dsymv(b"U", &n, &unit, W, &n, x, &one, &zero, out, &one)
        self.swap_diagonal()

    cdef int times_columns(self, ptrdiff_t m, double *X, double *out) except -1 nogil:
        """K X, n x m by columns."""
        cdef ptrdiff_t first, step = columns_at_once(self.n)
        cdef blas_int n = <blas_int> self.n, some
        cdef double unit = 1.0, zero = 0.0
        first = 0
        while first < m:
            some = <blas_int> min(step, m - first)
            self.swap_diagonal()
            dsymm(
                b"L", b"U", &n, &some, &unit, &self.W[0, 0], &n, X + first * n, &n, &zero,
                out + first * n, &n
            )
            self.swap_diagonal()
            heed_signals()
            first += step
        return 0

    cdef void swap_diagonal(self) noexcept nogil:
        cdef ptrdiff_t i
        cdef double value
        for i in range(self.n):
            value = self.W[i, i]
            self.W[i, i] = self.diag[i]
            self.diag[i] = value

    cdef void column(self, ptrdiff_t k, double *out) noexcept nogil:
        """Column k of K."""
        cdef ptrdiff_t i
        for i in range(k):
            out[i] = self.W[k, i]
        out[k] = self.diag[k]
        for i in range(k + 1, self.n):
            out[i] = self.W[i, k]

    cdef void store_column(self, ptrdiff_t k, const double *column) noexcept nogil:
        """Row and column k of the other triangle."""
        cdef ptrdiff_t i
        for i in range(k):
            self.W[i, k] = column[i]
        for i in range(k, self.n):
            self.W[k, i] = column[i]

    cdef int factor_of_b(self, const double *tau) except -1 nogil:
        """root = max(tau, 0)^1/2 and the Cholesky factor of B. Not 0: B is not positive.

        B is above the identity. Where rounding of S K S says otherwise, the diagonal is raised by
        as much as that rounding: 2, 8, 32, 128 units in the last place of its largest entry.
        """
        cdef ptrdiff_t i, n = self.n
        cdef int _attempt, info = 0
        cdef double *W = &self.W[0, 0]
        cdef double largest = 0.0, raised = 0.0
        for i in range(n):
            self.root[i] = sqrt(tau[i]) if tau[i] > 0.0 else 0.0
            largest = max(largest, self.root[i] * self.root[i] * self.diag[i])
        for _attempt in range(5):
            self.fill()
            for i in range(n):
                W[i * n + i] = 1.0 + self.root[i] * self.root[i] * self.diag[i] + raised
            info = factorize(W, n, self.pool)
            if info == 0:
                break
            raised = max(2.0 * DBL_EPSILON * largest, 4.0 * raised)
        return info

    cdef void alpha_of(self, const double *nu, double *alpha, double *work) noexcept nogil:
        """alpha = nu - S B^-1 S K nu, from the factor of B: K^-1 times the posterior mean.

        Where tau K_ii > 1 the same is S B^-1 S (nu / tau), which does not cancel.
        """
        cdef ptrdiff_t i
        cdef blas_int n = <blas_int> self.n, one = 1, info = 0
        for i in range(self.n):
            work[i] = 0.0 if self.root[i] * self.root[i] * self.diag[i] > 1.0 else nu[i]
        self.times_vector(work, alpha)
        for i in range(self.n):
            alpha[i] *= -self.root[i]
            if self.root[i] * self.root[i] * self.diag[i] > 1.0:
                alpha[i] += nu[i] / self.root[i]
        dpotrs(b"L", &n, &one, &self.W[0, 0], &n, alpha, &n, &info)
        for i in range(self.n):
            alpha[i] = work[i] + self.root[i] * alpha[i]

    cdef double positive_part(
        self, const double[::1] tau, const double[::1] nu, double[::1] alpha, double[::1] mean
    ) except? -1.0 nogil:
        """The factor of B, alpha and mean given the sites with tau > 0 and all shifts.

        Returns log |I + K diag(max(tau, 0))|, or NaN where B is not positive definite.
        """
        cdef double total = 0.0
        cdef ptrdiff_t i
        if self.factor_of_b(&tau[0]) != 0:
            return NAN
        for i in range(self.n):
            total += 2.0 * log(self.W[i, i])
        self.alpha_of(&nu[0], &alpha[0], &mean[0])
        self.times_vector(&alpha[0], &mean[0])
        return total

    def pour(self, const double[::1] squares not None, int kind, double scale, double height):
        """K_ij = height k(scale |x_i - x_j|^2), k a row of KINDS; squares as of pdist. O(n^2)"""
        cdef Job job = self.job()
        cdef ptrdiff_t j, n = self.n
        long_enough("squares", squares.shape[0], n * (n - 1) // 2)
        if n == 1:
            self.diag[0] = height
            return
        job.squares, job.kind, job.width, job.height = &squares[0], kind, scale, height
        with nogil:
            for j in range(n):
                self.diag[j] = height
            self.share(pour_columns, &job, (n + TILE - 2) // TILE)

    def contract(
        self, const double[::1] alpha not None, const double[::1] squares not None, int kind,
        double scale,
    ):
        """sum_ij (alpha_i alpha_j - R_ij) times k, and times dk / d log length scale. O(n^2)

        As :meth:`pour` has it, for height 1; R as :meth:`precision` leaves it.
        """
        cdef Job job = self.job()
        cdef ptrdiff_t k, part, n = self.n, size = 2 * n + 3
        cdef double total[3]
        cdef double[::1] work
        long_enough("alpha", alpha.shape[0], n)
        long_enough("squares", squares.shape[0], n * (n - 1) // 2)
        job.parts = self.strips()
        work = np.empty(job.parts * size)
        job.squares, job.kind, job.width = &squares[0] if n > 1 else NULL, kind, scale
        job.x, job.work = &alpha[0], &work[0]
        total[0] = total[1] = total[2] = 0.0
        with nogil:
            self.share(contract_columns, &job, job.parts)
            for part in range(job.parts):
                for k in range(3):
                    total[k] += work[part * size + k]
        return total[2] + 2.0 * total[0], 2.0 * total[1]

    def couple(
        self, const double[::1] x not None, const double[::1] z not None, double[::1] y not None,
        double[::1] q not None,
    ):
        """y = A x and q = (A o A) z, A what is beside the diagonal of the other triangle. O(n^2)"""
        cdef Job job = self.job()
        cdef ptrdiff_t i, part, n = self.n
        long_enough("vectors", min(x.shape[0], z.shape[0], y.shape[0], q.shape[0]), n)
        job.parts = self.strips()
        if self.work.shape[0] < 2 * n * job.parts:
            self.work = np.empty(2 * n * job.parts)
        job.x, job.z, job.work = &x[0], &z[0], &self.work[0]
        with nogil:
            self.share(couple_columns, &job, job.parts)
            for i in range(n):
                y[i] = q[i] = 0.0
            for part in range(job.parts):
                for i in range(n):
                    y[i] += self.work[2 * part * n + i]
                    q[i] += self.work[(2 * part + 1) * n + i]

    # ---- moments ----

    def factor(self, const double[::1] tau not None):
        """The Cholesky factor of B, of the sites with tau > 0. O(n^3 / 3)

        Whether B is positive definite.
        """
        cdef int info
        long_enough("tau", tau.shape[0], self.n)
        with nogil:
            info = self.factor_of_b(&tau[0])
        return info == 0

    def marginals(
        self, const double[::1] tau not None, const double[::1] nu not None,
        double[::1] alpha not None, double[::1] mean not None, double[::1] variance not None,
    ):
        """Posterior marginals where no tau is negative; alpha = K^-1 mean. O(2 n^3 / 3)

        Returns log |I + K diag(tau)|, or NaN where B is not positive definite.
        """
        cdef Job job = self.job()
        cdef ptrdiff_t n = self.n
        cdef double total
        with nogil:
            total = self.positive_part(tau, nu, alpha, mean)
        if isnan(total):
            return total
        with nogil:
            self.small_variances(&tau[0], &variance[0])
            invert_triangle(job.W, n, self.pool)
            job.tau, job.variance = &tau[0], &variance[0]
            self.share(variances_of_columns, &job, (n + TILE - 1) // TILE)
        return total

    def precision(
        self, const double[::1] tau not None, const double[::1] nu not None,
        double[::1] alpha not None, double[::1] mean not None, double[::1] variance not None,
    ):
        """As :meth:`marginals` for any tau, and R in the other triangle. O(n^3)

        NaN also where negative tau make the posterior improper.
        """
        cdef ptrdiff_t i, j, k, n = self.n, count, first, step = columns_at_once(self.n)
        cdef blas_int order = <blas_int> n, info = 0, m, one = 1, some
        cdef double *W = &self.W[0, 0]
        cdef double unit = 1.0, minus = -1.0, total
        cdef Job job = self.job()
        cdef const ptrdiff_t[::1] N = np.flatnonzero(np.asarray(tau) < 0.0).astype(np.intp)
        cdef double[:, ::1] V, U, C             # by columns: n x m, n x m, m x m
        cdef double[::1] D, x
        count = N.shape[0]
        V, U, C = np.empty((count, n)), np.empty((count, n)), np.empty((count, count))
        D, x = np.sqrt(-np.asarray(tau)[np.asarray(N)]), np.empty(count)
        m = <blas_int> count
        with nogil:
            total = self.positive_part(tau, nu, alpha, mean)
        if isnan(total):
            return total
        with nogil:
            if m > 0:
                # V = Sigma_+[:, N] = K (I - S B^-1 S K)[:, N]
                for k in range(count):
                    self.column(N[k], &U[k, 0])
                    for i in range(n):
                        U[k, i] *= self.root[i]
                first = 0
                while first < count:
                    some = <blas_int> min(step, count - first)
                    dpotrs(b"L", &order, &some, W, &order, &U[first, 0], &order, &info)
                    heed_signals()
                    first += step
                for k in range(count):
                    for i in range(n):
                        U[k, i] = (1.0 if i == N[k] else 0.0) - self.root[i] * U[k, i]
                self.times_columns(m, &U[0, 0], &V[0, 0])
                for k in range(count):
                    for j in range(count):
                        C[k, j] = (1.0 if j == k else 0.0) - D[k] * D[j] * V[k, N[j]]
                info = factorize(&C[0, 0], count, self.pool)
        if info != 0:
            return np.nan
        with nogil:
            if m > 0:
                for k in range(count):
                    total += 2.0 * log(C[k, k])
                    x[k] = D[k] * mean[N[k]]
                dpotrs(b"L", &m, &one, &C[0, 0], &m, &x[0], &m, &info)
                for k in range(count):
                    for i in range(n):
                        # nu - tau mean would cancel where sites are sharp
                        alpha[i] += x[k] * D[k] * U[k, i]
                        U[k, i] = D[k] * V[k, i]
                        mean[i] += x[k] * U[k, i]
                step = columns_at_once(count)
                first = 0
                while first < n:
                    some = <blas_int> min(step, n - first)
                    dtrsm(
                        b"R", b"L", b"T", b"N", &some, &m, &unit, &C[0, 0], &m, &U[0, first],
                        &order
                    )
                    heed_signals()
                    first += step
            self.small_variances(&tau[0], &variance[0])
            invert_factored(W, n, self.pool)
            job.tau, job.variance = &tau[0], &variance[0]
            self.share(scale_columns, &job, (n + TILE - 1) // TILE)
            for k in range(count):
                for i in range(n):
                    variance[i] += U[k, i] * U[k, i]
                    U[k, i] *= tau[i]
            if m > 0:
                # R_+ where no site is negative, else diag(tau) - tau Sigma_+ tau; less tau U U' tau
                for k in range(count):
                    for i in range(n):
                        V[k, i] = tau[i] * ((1.0 if i == N[k] else 0.0) - V[k, i] * tau[N[k]])
                    self.store_column(N[k], &V[k, 0])
                step = columns_at_once(n)
                first = 0
                while first < count:
                    some = <blas_int> min(step, count - first)
                    dsyrk(
                        b"L", b"N", &order, &some, &minus, &U[first, 0], &order, &unit, W, &order
                    )
                    heed_signals()
                    first += step
        return total

    cdef int small_variances(self, const double *tau, double *variance) except -1 nogil:
        """Variances of Sigma_+ where tau is small, from the factor of B. O(n^2) each"""
        cdef ptrdiff_t i, j, k = 0
        cdef blas_int n = <blas_int> self.n, one = 1, m
        cdef double unit = 1.0
        while k < self.n:
            m = 0
            while k < self.n and m < self.columns.shape[0]:
                if tau[k] * self.diag[k] < SMALL:
                    self.few[m] = k
                    self.column(k, &self.columns[m, 0])
                    for i in range(self.n):
                        self.columns[m, i] *= self.root[i]
                    m += 1
                k += 1
            if m == 0:
                break
            dtrsm(
                b"L", b"L", b"N", b"N", &n, &m, &unit, &self.W[0, 0], &n, &self.columns[0, 0], &n
            )
            for j in range(m):
                variance[self.few[j]] = self.diag[self.few[j]] - ddot(
                    &n, &self.columns[j, 0], &one, &self.columns[j, 0], &one
                )
            heed_signals()
        return 0

    def covariance(self, const double[::1] tau not None, double small=SMALL):
        """Sigma in the place of R, which :meth:`precision` left. O(n^2), for small tau n^2 each

        small: of tau K_ii, below which a column is not taken from R; eps / small of K_ii is lost.
        """
        cdef Job job = self.job()
        cdef ptrdiff_t i, k, n = self.n, count, first, step = columns_at_once(self.n)
        cdef blas_int order = <blas_int> n, m
        cdef double *W = &self.W[0, 0]
        cdef double unit = 1.0, zero = 0.0
        cdef double[:, ::1] X, Y
        flat = np.flatnonzero(np.abs(np.asarray(tau)) * self.diagonal < small)
        cdef const ptrdiff_t[::1] few = flat.astype(np.intp)
        count = few.shape[0]
        X, Y = np.empty((count, n)), np.empty((count, n))
        cdef unsigned char[::1] is_small = np.zeros(n, dtype=np.uint8)
        with nogil:
            if count > 0:
                # K - K R K, some columns
                for k in range(count):
                    is_small[few[k]] = True
                    self.column(few[k], &X[k, 0])
                first = 0
                while first < count:
                    m = <blas_int> min(step, count - first)
                    dsymm(
                        b"L", b"L", &order, &m, &unit, W, &order, &X[first, 0], &order, &zero,
                        &Y[first, 0], &order
                    )
                    heed_signals()
                    first += step
                self.times_columns(count, &Y[0, 0], &X[0, 0])
                for k in range(count):
                    self.column(few[k], &Y[k, 0])
                    for i in range(n):
                        X[k, i] = Y[k, i] - X[k, i]
            job.tau, job.is_small = &tau[0], &is_small[0]
            self.share(covariance_columns, &job, (n + TILE - 1) // TILE)
            for k in range(count):
                self.store_column(few[k], &X[k, 0])

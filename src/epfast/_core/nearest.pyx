"""Regression of a process at inputs, each on the sites of its own rows, such as the nearest ones.

With K the kernel of the m rows of an input, k the kernel between them and the input, and
B = I + S K S, S = diag(tau)^1/2 (Rasmussen & Williams 2006, eq. 3.26), its latent value has

    variance  k_0 - |L^-1 S k|^2,   mean  k' alpha,   B = L L',

where alpha = nu - S B^-1 S K nu, or S B^-1 S (nu / tau) of rows with tau K_ii > 1.
"""

import numpy as np

from libc.float cimport DBL_EPSILON
from libc.math cimport NAN, sqrt

from epfast._core.lapack cimport blas_int, ddot, dpotrf, dtrsm
from epfast._core.rows cimport in_range, long_enough
from epfast._core.thread_pool cimport ThreadPool, is_at_work
from epfast._core.vector cimport kernels

cdef enum:
    STRIPS = 4                  # parts per thread, each with scratch of its own


cdef struct Job:
    const ptrdiff_t *index      # q x m
    const ptrdiff_t *input
    const double *X
    const double *Q
    const double *K             # NULL: by distances
    const double *tau
    const double *nu
    double *mean
    double *variance
    double *work
    ptrdiff_t q, m, d, size, parts
    int kind
    double scale, height


cdef void squares_of(Job *job, ptrdiff_t i, double *Z, double *out) noexcept nogil:
    """Squared distances between input i and its rows, as pdist orders them. O(m^2 d)"""
    cdef ptrdiff_t a, b, k, count = job.m + 1
    cdef const double *x
    cdef double *row = out
    cdef double *z
    cdef double away
    for a in range(count):
        x = job.Q + job.input[i] * job.d if a == 0 else job.X + job.index[i * job.m + a - 1] * job.d
        for k in range(job.d):
            Z[k * count + a] = x[k]
    for a in range(count - 1):
        for b in range(count - 1 - a):
            row[b] = 0.0
        for k in range(job.d):
            z = Z + k * count + a
            away = z[0]
            for b in range(count - 1 - a):
                row[b] += (z[b + 1] - away) * (z[b + 1] - away)
        row += count - 1 - a


cdef void regress_part(void *what, ptrdiff_t part) noexcept nogil:
    """Every so many-th input. O(m^3 / 3) each"""
    cdef Job *job = <Job *> what
    cdef ptrdiff_t i = part, j, r, m = job.m, count = m + 1
    cdef blas_int order = <blas_int> m, two = 2, one = 1, info = 0
    cdef int attempt
    cdef double unit = 1.0, raised, largest, total, own
    cdef double *B = job.work + part * job.size
    cdef double *known = B + m * m              # S k, and what the mean is a product with, m x 2
    cdef double *target = known + m
    cdef double *root = target + m
    cdef double *blunt = root + m               # nu, 0 where tau K_ii > 1
    cdef double *diagonal = blunt + m           # m + 1
    cdef double *values = diagonal + count      # of the kernel, as pdist orders them
    cdef double *Z = values + m * count // 2
    cdef const double *row                      # of the kernel, right of the diagonal
    cdef ptrdiff_t at
    while i < job.q:
        if job.K == NULL:
            squares_of(job, i, Z, values)
            kernels.stationary(job.kind, m * count // 2, job.scale, values, values, NULL)
            for j in range(m * count // 2):
                values[j] *= job.height
            for j in range(count):
                diagonal[j] = job.height
        else:
            at = 0
            for j in range(count):
                row = job.K + (i * count + j) * count
                diagonal[j] = row[j]
                for r in range(j + 1, count):
                    values[at] = row[r]
                    at += 1
        largest, raised = 0.0, 0.0
        for j in range(m):
            r = job.index[i * m + j]
            root[j] = sqrt(job.tau[r]) if job.tau[r] > 0.0 else 0.0
            own = root[j] * root[j] * diagonal[j + 1]
            largest = max(largest, own)
            blunt[j] = 0.0 if own > 1.0 else job.nu[r]
            target[j] = -root[j] * diagonal[j + 1] * blunt[j]
            if own > 1.0:
                target[j] += job.nu[r] / root[j]
            known[j] = root[j] * values[j]
        # rounding of S K S may leave B no longer above the identity: see kernel_matrix.pyx
        for attempt in range(5):
            row = values + m
            for j in range(m):
                B[j * m + j] = 1.0 + root[j] * root[j] * diagonal[j + 1] + raised
                for r in range(m - 1 - j):
                    B[j * m + j + 1 + r] = root[j] * root[j + 1 + r] * row[r]
                    if attempt == 0:
                        target[j] -= root[j] * row[r] * blunt[j + 1 + r]
                        target[j + 1 + r] -= root[j + 1 + r] * row[r] * blunt[j]
                row += m - 1 - j
            info = 0
            if m > 0:
                dpotrf(b"L", &order, B, &order, &info)
            if info == 0:
                break
            raised = max(2.0 * DBL_EPSILON * largest, 4.0 * raised)
        total = diagonal[0]
        own = 0.0
        if info == 0 and m > 0:
            dtrsm(b"L", b"L", b"N", b"N", &order, &two, &unit, B, &order, known, &order)
            total -= ddot(&order, known, &one, known, &one)
            own = ddot(&order, values, &one, blunt, &one)
            own += ddot(&order, known, &one, target, &one)
        # clip rounding errors at 0; a NaN says that B has no factor
        job.variance[i] = max(total, 0.0) if info == 0 else NAN
        job.mean[i] = own
        i += job.parts


def regress(
    const ptrdiff_t[:, ::1] index not None, const double[::1] tau not None,
    const double[::1] nu not None, double[::1] mean not None, double[::1] variance not None,
    const double[:, :, ::1] K=None, const double[:, ::1] X=None, const double[:, ::1] Q=None,
    const ptrdiff_t[::1] inputs=None, int kind=0, double scale=0.0, double height=0.0,
    ThreadPool pool=None,
):
    """Mean and variance of the process at q inputs, each given the sites tau, nu of the rows index.

    index (q, m). The kernel between each input, the first, and its rows is K (q, m + 1, m + 1), or
    height k(scale d) of the squared distances d of Q[inputs] and X[index], k a row of KINDS. Sites
    of negative precision are not for this: they count as 0. The pool shares the inputs.
    """
    cdef Job job
    cdef double[::1] work
    flat = np.asarray(index).ravel()
    job.q, job.m, job.d = index.shape[0], index.shape[1], 0
    long_enough("mean and variance", min(mean.shape[0], variance.shape[0]), job.q)
    in_range("index", flat, min(tau.shape[0], nu.shape[0]))
    job.X = job.Q = job.K = NULL
    job.input = NULL
    if K is not None:
        if K.shape[0] < job.q or K.shape[1] != job.m + 1 or K.shape[2] != job.m + 1:
            raise ValueError(f"K has shape {np.shape(K)}; allowed: {(job.q, job.m + 1, job.m + 1)}")
    else:
        if X is None or Q is None or inputs is None or X.shape[1] != Q.shape[1]:
            raise ValueError("X, Q or inputs do not fit; allowed: rows of as many columns")
        job.d = X.shape[1]
        long_enough("inputs", inputs.shape[0], job.q)
        in_range("inputs", inputs[:job.q], Q.shape[0])
        in_range("index", flat, X.shape[0])
    if job.q == 0:
        return
    job.parts = min(job.q, STRIPS * pool.threads if is_at_work(pool) else 1)
    job.size = job.m * (job.m + 5) + 1 + (job.m + 1) * job.m // 2 + (job.m + 1) * job.d
    work = np.empty(job.parts * job.size)
    if K is not None:
        job.K = &K[0, 0, 0]
    elif job.d > 0:
        job.X, job.Q = &X[0, 0], &Q[0, 0]
    if K is None:
        job.input = &inputs[0]
    job.index = &index[0, 0] if job.m > 0 else NULL
    job.tau = &tau[0] if tau.shape[0] > 0 else NULL
    job.nu = &nu[0] if nu.shape[0] > 0 else NULL
    job.mean, job.variance, job.work = &mean[0], &variance[0], &work[0]
    job.kind, job.scale, job.height = kind, scale, height
    with nogil:
        if job.parts > 1:
            pool.run(regress_part, &job, job.parts)
        else:
            regress_part(&job, 0)
    bad = int(np.isnan(np.asarray(variance)[:job.q]).sum())
    if bad:
        raise FloatingPointError(
            f"of {bad} inputs the kernel between their nearest rows is no covariance to rounding; "
            "scale the kernel, add noise to it, or take fewer rows"
        )

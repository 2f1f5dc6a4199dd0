"""Sweeps over scalar sites of a linear model: the exact blocked sweep, and all sites at once.

Site i acts on h_i = a_i.theta and holds two numbers, tau_i and nu_i. Ordinary sequential EP changes
the covariance by one rank-one update per site. Here q sites form a block (math: guide). With
V = Sigma A, S = A' V, h = A' mu, the q updates are run on (S, h) alone, and each step's column of
the updated covariance is V u_i with U = T^-1, T unit upper triangular, T_ji = c_j S_ji with S at
step j. Hence

    Sigma <- Sigma - (V T^-1) diag(c) (V T^-1)',    mu <- mu + (V T^-1) k

is the result of site-by-site EP, in matrix products.

A row of weight w counts as w copies of itself where w >= 1, each with its factor t, and as one copy
with the factor t^w below. tau_i, nu_i and scale_i are those of all its copies together. With copies
c and power a, the cavity lacks the share a / c of them.
"""

import numpy as np

from libc.math cimport INFINITY, fabs, fmax, fmin, isfinite, log, sqrt

from epfast._core.cholesky cimport add_product
from epfast._core.thread_pool cimport ThreadPool, is_at_work, part_size
from epfast._core.lapack cimport blas_int, dgemm, dgemv, dtrsm
from epfast._core.relaxed cimport Relaxation
from epfast._core.rows cimport Rows, Units, in_range, long_enough, square, subtract_weighted
from epfast._core.site cimport HEAVY, POINT, SMALLEST, cavity, new_site, converged_copies, site
from epfast._core.status cimport CALLBACK_FAILED, NOT_FINITE, OK, Status
from epfast._core.tilted cimport TiltedMoments
from epfast._core.vector cimport kernels

cdef enum:
    FEWEST = 64                 # rows of a part
    TOGETHER = 256              # rows of a product with a triangle

# ---- one after the other ----

cdef struct Job:
    double *Sigma               # d x d by columns, lower triangle
    double *V                   # d x q
    double *W
    double *T                   # q x q
    double *mu
    const double *c
    const double *k
    ptrdiff_t d, q, step
    void *units
    ptrdiff_t first


cdef void take_columns(void *what, ptrdiff_t part) noexcept nogil:
    """Some rows of V = Sigma A, of rows A of the identity."""
    cdef Job *job = <Job *> what
    cdef ptrdiff_t start = part * job.step
    (<Units> job.units).columns_of(
        job.first, <blas_int> job.q, job.Sigma, start, min(start + job.step, job.d), job.V
    )


cdef void solve_rows(void *what, ptrdiff_t part) noexcept nogil:
    """Some rows of V <- V T^-1, of mu <- mu + V k, and of W = V |diag(c)|^1/2, c > 0 first."""
    cdef Job *job = <Job *> what
    cdef ptrdiff_t i = part * job.step, r, j, at = 0
    cdef blas_int m = <blas_int> min(job.step, job.d - i), q = <blas_int> job.q, one = 1
    cdef blas_int d = <blas_int> job.d
    cdef double unit = 1.0, root
    cdef double *V = job.V + i
    cdef bint negative
    dtrsm(b"R", b"L", b"T", b"U", &m, &q, &unit, job.T, &q, V, &d)
    dgemv(b"N", &m, &q, &unit, V, &d, <double *> job.k, &one, &unit, job.mu + i, &one)
    for negative in range(2):
        for j in range(q):
            if job.c[j] < 0.0 if negative else job.c[j] > 0.0:
                root = sqrt(fabs(job.c[j]))
                for r in range(m):
                    job.W[at * job.d + i + r] = root * V[j * job.d + r]
                at += 1


cdef class BlockedSweep:
    """Scratch for sequential sweeps in d dimensions with blocks of q sites.

    full: both triangles of the covariance are kept; else its lower by columns, the upper by C rows,
    and the other triangle is not touched. log_determinant adds up the log of how much each update
    shrinks the determinant of the covariance, log_scale_total the log scales of sites that are not
    stored, moved is the square of the largest change of a row's h, in its sd, or of the log of its
    variance. The caller resets them. Given a relaxation, it fits the sites. A pool
    shares the work on half of a covariance.
    """

    cdef TiltedMoments moments
    cdef readonly Relaxation relaxation
    cdef ptrdiff_t d, q
    cdef double power
    cdef public double damping
    cdef double[:, ::1] V, W
    cdef double[:, ::1] S
    cdef double[::1] h, c, k
    cdef readonly bint full
    cdef readonly ptrdiff_t n_refused
    cdef public double log_scale_total, log_determinant, moved
    cdef public ThreadPool pool

    def __init__(
        self, TiltedMoments moments not None, ptrdiff_t d, ptrdiff_t q, double power,
        double damping, bint full, Relaxation relaxation=None,
    ):
        self.moments, self.relaxation = moments, relaxation
        self.d, self.q = d, q
        self.power, self.damping = power, damping
        self.full = full
        self.V, self.W = np.empty((q, d)), np.empty((q, d))
        self.S = np.empty((q, q))
        self.h, self.c, self.k = np.empty(q), np.empty(q), np.empty(q)

    cdef Status block(
        self, blas_int q, Rows A, ptrdiff_t first, bint units, const double *y,
        const double *weight, const ptrdiff_t *sites, double *Sigma, double *mu, double *tau,
        double *nu, double *scale
    ) noexcept nogil:
        """q rows of A from the first. O(4 d^2 q), with half of the covariance O(3 d^2 q)."""
        cdef blas_int d = <blas_int> self.d, one = 1
        cdef double unit = 1.0, minus = -1.0, s, t = 0.0, b = 0.0, g = 0.0, denominator, root
        cdef double move
        cdef double old_tau = 0.0, old_nu = 0.0, copies = 1.0, exponent = 1.0
        cdef double *S = &self.S[0, 0]
        cdef double *V = &self.V[0, 0]
        cdef double *W = &self.W[0, 0]
        cdef ptrdiff_t i, j, r, stride = self.moments.loss.stride
        cdef bint refused = False, relaxed = self.relaxation is not None
        cdef bint together = not self.full and self.d >= 2 * FEWEST and is_at_work(self.pool)
        cdef Job job
        cdef Status status
        if together:
            job.V, job.W, job.T, job.mu = V, W, S, mu
            job.c, job.k, job.d, job.q = &self.c[0], &self.k[0], self.d, q
            job.step = part_size(self.pool, self.d, FEWEST)
        if together and units:
            job.first, job.units, job.Sigma = first, <void *> A, Sigma
            self.pool.run(take_columns, &job, (self.d + job.step - 1) // job.step)
        else:
            A.times_symmetric(first, q, Sigma, self.full, V)
        A.times_rows(first, q, V, S)
        A.times_vector(first, q, mu, &self.h[0])
        for j in range(q):
            if not (isfinite(S[j * q + j]) and isfinite(self.h[j])):
                return NOT_FINITE
        for j in range(q):
            s = S[j * q + j]
            if weight != NULL:
                # without sites there are no copies to be alike
                copies = 1.0 if tau == NULL else fmax(1.0, weight[j])
                exponent = weight[j] / copies
            if tau != NULL:
                old_tau, old_nu = tau[sites[j]], nu[sites[j]]
            if relaxed:
                status = self.relaxation.new_site(
                    sites[j], y + j * stride, self.h[j], s, old_tau, old_nu, &t, &b, &g, &refused
                )
            else:
                status = new_site(
                    self.moments, y + j * stride, self.h[j], s, self.power, copies, exponent,
                    old_tau, old_nu, &t, &b, &g, &refused
                )
            if status == CALLBACK_FAILED:
                return status
            t = self.damping * (t - old_tau)
            b = self.damping * (b - old_nu)
            denominator = 1.0 + t * s
            if refused or not SMALLEST < denominator < INFINITY:
                self.n_refused += 1
                t, b, denominator = 0.0, 0.0, 1.0
            elif tau != NULL:
                tau[sites[j]] += t
                nu[sites[j]] += b
                scale[sites[j]] += self.damping * (g - scale[sites[j]])
                # what the row's own h moved by, of its sd or log sd, squared
                move = b - t * self.h[j]
                self.moved = fmax(self.moved, move * move * s / denominator)
                self.moved = fmax(self.moved, t * s * t * s)
            else:
                self.log_scale_total += g
            self.log_determinant += log(denominator)
            self.c[j] = t / denominator
            self.k[j] = (b - t * self.h[j]) / denominator
            for i in range(j + 1, q):
                root = self.c[j] * S[j * q + i]
                self.h[i] += self.k[j] * S[j * q + i]
                for r in range(i, q):
                    S[i * q + r] -= root * S[j * q + r]
        # T: row j right of the diagonal is c_j S_ji; by columns it is the lower triangle of T'
        for j in range(q):
            for i in range(j + 1, q):
                S[j * q + i] *= self.c[j]
        # V <- V T^-1; what S holds by columns is T', so T is its transpose
        if together:
            self.pool.run(solve_rows, &job, (self.d + job.step - 1) // job.step)
            # W holds what is subtracted first, then what is added
            i = r = 0
            for j in range(q):
                i += self.c[j] > 0.0
                r += self.c[j] < 0.0
            add_product(Sigma, self.d, W, i, -1.0, self.pool)
            add_product(Sigma, self.d, W + i * self.d, r, 1.0, self.pool)
            return OK
        dtrsm(b"R", b"L", b"T", b"U", &d, &q, &unit, S, &q, V, &d)
        dgemv(b"N", &d, &q, &unit, V, &d, &self.k[0], &one, &unit, mu, &one)
        if self.full:
            for j in range(q):
                for i in range(self.d):
                    W[j * self.d + i] = self.c[j] * V[j * self.d + i]
            dgemm(b"N", b"T", &d, &d, &q, &minus, W, &d, V, &d, &unit, Sigma, &d)
        else:
            subtract_weighted(d, q, &self.c[0], V, W, Sigma)
        return OK

    def sweep(
        self, Rows A not None, const double[:, ::1] y not None, const double[::1] weight,
        const ptrdiff_t[::1] sites, double[:, ::1] Sigma, double[::1] mu, double[::1] tau=None,
        double[::1] nu=None, double[::1] scale=None,
    ):
        """Update the sites of the rows of A, in order, q at a time.

        y (n, width) holds the responses of the rows, (n, 1) their labels for a loss of the margin.
        weight may be None: all 1. sites numbers the entries of tau, nu and scale that belong to the
        rows; without them no site is stored (ADF). Sigma and mu are updated in place.
        """
        cdef ptrdiff_t first = 0
        cdef bint weighted = weight is not None, stored = tau is not None
        cdef bint units = isinstance(A, Units)
        cdef Status status = OK
        self.moments.loss.check_responses(y, A.n)
        self.check(A, weight, sites, Sigma, mu, tau, nu, scale)
        with nogil:
            while first < A.n:
                status = self.block(
                    <blas_int> min(self.q, A.n - first), A, first, units, &y[first, 0],
                    &weight[first] if weighted else NULL, &sites[first], &Sigma[0, 0], &mu[0],
                    &tau[0] if stored else NULL, &nu[0] if stored else NULL,
                    &scale[0] if stored else NULL,
                )
                if status != OK:
                    break
                first += self.q
        if status == CALLBACK_FAILED:
            self.moments.loss.reraise()
        if status == NOT_FINITE:
            raise FloatingPointError(
                "a mean or variance of a site overflowed; scale the columns of X or the kernel, or "
                "try damping or a power below 1"
            )

    cdef int check(
        self, Rows A, const double[::1] weight, const ptrdiff_t[::1] sites,
        const double[:, ::1] Sigma, const double[::1] mu, const double[::1] tau,
        const double[::1] nu, const double[::1] scale,
    ) except -1:
        """Raise ValueError for arrays that do not fit together, so that no loop leaves one."""
        cdef ptrdiff_t stop
        square("Sigma", Sigma, self.d)
        long_enough("mu", mu.shape[0], A.d)
        long_enough("the posterior", self.d, A.d)
        long_enough("sites", sites.shape[0], A.n)
        if weight is not None:
            long_enough("weight", weight.shape[0], A.n)
        if tau is None and self.relaxation is None:
            return 0
        stop = self.relaxation.precision.shape[0] if tau is None else tau.shape[0]
        if self.relaxation is not None:
            stop = min(stop, self.relaxation.precision.shape[0], self.relaxation.shift.shape[0])
        if tau is not None:
            stop = min(stop, nu.shape[0], scale.shape[0])
        in_range("sites", sites, stop)


# ---- all from one posterior ----

cdef class SiteFits:
    """Scratch for fits of rows from their marginals, q at a time.

    residual: the largest distance of a site from its fixed point met so far, as the mismatch of the
    tilted mean with that of the posterior, in its standard deviations, or of the variances,
    relative; the caller's to set back.
    """

    def __init__(
        self, TiltedMoments moments not None, double power, double damping, ptrdiff_t q=128
    ):
        self.moments, self.power, self.damping, self.q = moments, power, damping, q
        self.work, self.failed = np.empty((9, q)), np.empty(q, np.uint8)

    cdef Status batch(
        self, blas_int q, const double *h, const double *s, const double *y, const double *weight,
        double *tau, double *nu, double *scale
    ) noexcept nogil:
        """New sites from the posterior marginals N(h, s) of q rows; O(q)."""
        cdef double *m = &self.work[2, 0]
        cdef double *v = &self.work[3, 0]
        cdef double *power = &self.work[4, 0]
        cdef double *lZ = &self.work[5, 0]
        cdef double *dlZ = &self.work[6, 0]
        cdef double *d2lZ = &self.work[7, 0]
        cdef double *copies = &self.work[8, 0]
        cdef double t = 0.0, b = 0.0, g = 0.0
        cdef ptrdiff_t j, stride = self.moments.loss.stride
        cdef bint refused = False, fitted = False
        cdef Status status
        # of whole rows without weights, all at once
        if (
            weight == NULL and not self.moments.may_be_exact()
            and kernels.cavities(q, self.power, SMALLEST, h, s, tau, nu, m, v)
        ):
            for j in range(q):
                power[j] = self.power
            status = self.moments.batch(q, y, m, v, power, lZ, dlZ, d2lZ, &self.failed[0])
            if status == CALLBACK_FAILED:
                return status
            if kernels.fit_sites(
                q, 1.0 / self.power, self.damping, SMALLEST, h, s, m, v, lZ, dlZ, d2lZ, tau, nu,
                scale, &self.residual
            ):
                return OK
            fitted = True
        for j in range(q):
            copies[j] = 1.0 if weight == NULL else fmax(1.0, weight[j])
            power[j] = self.power * (1.0 if weight == NULL else fmin(1.0, weight[j]))
            if power[j] == 0.0 or not cavity(
                h[j], s[j], self.power / copies[j], tau[j], nu[j], &m[j], &v[j]
            ):
                copies[j] = 0.0                 # refused, or a row of weight 0
                m[j], v[j] = 0.0, 1.0
        if not fitted:
            status = self.moments.batch(q, y, m, v, power, lZ, dlZ, d2lZ, &self.failed[0])
            if status == CALLBACK_FAILED:
                return status
        for j in range(q):
            if power[j] > 0.0 and self.moments.exact(
                y + j * stride, (1.0 if weight == NULL else weight[j]), &t, &b, &g
            ):
                self.residual = fmax(self.residual, fabs(t - tau[j]) * s[j])
                self.residual = fmax(
                    self.residual, fabs(b - nu[j] - (t - tau[j]) * h[j]) * sqrt(s[j])
                )
                if self.damping > 0.0:          # what is known at once needs none
                    tau[j], nu[j], scale[j] = t, b, g
                continue
            if copies[j] == 0.0 or self.failed[j] or not site(
                m[j], v[j], lZ[j], dlZ[j], d2lZ[j], copies[j] / self.power, &t, &b, &g
            ):
                self.n_refused += power[j] != 0.0
                continue
            if s[j] > 0.0:
                self.residual = fmax(
                    self.residual, fabs(m[j] + v[j] * dlZ[j] - h[j]) / sqrt(s[j])
                )
                self.residual = fmax(
                    self.residual, fabs(v[j] * (1.0 + v[j] * d2lZ[j]) / s[j] - 1.0)
                )
            if copies[j] > HEAVY and v[j] != POINT and self.damping > 0.0:
                status = converged_copies(
                    self.moments, y + j * stride, h[j], s[j], self.power, copies[j], tau[j], nu[j],
                    &t, &b, &g, &refused
                )
                if status == CALLBACK_FAILED:
                    return status
                if refused:
                    self.n_refused += 1
                    continue
            tau[j] += self.damping * (t - tau[j])
            nu[j] += self.damping * (b - nu[j])
            scale[j] += self.damping * (g - scale[j])
        return OK

    def fit(
        self, const double[::1] h, const double[::1] s, const double[:, ::1] y not None,
        double[::1] tau, double[::1] nu, double[::1] scale, const double[::1] weight=None,
    ):
        """New sites from the posterior marginals N(h, s) of their values."""
        cdef ptrdiff_t first = 0
        cdef blas_int q
        cdef bint weighted = weight is not None
        cdef Status status = OK
        self.moments.loss.check_responses(y, h.shape[0])
        if weighted:
            long_enough("weight", weight.shape[0], h.shape[0])
        long_enough(
            "sites", min(s.shape[0], tau.shape[0], nu.shape[0], scale.shape[0]), h.shape[0]
        )
        with nogil:
            while first < h.shape[0]:
                q = <blas_int> min(self.q, h.shape[0] - first)
                status = self.batch(
                    q, &h[first], &s[first], &y[first, 0], &weight[first] if weighted else NULL,
                    &tau[first], &nu[first], &scale[first]
                )
                if status == CALLBACK_FAILED:
                    break
                first += q
        if status == CALLBACK_FAILED:
            self.moments.loss.reraise()


def add_sites(
    Rows A not None, const double[::1] tau, const double[::1] nu, double[:, ::1] P, double[::1] p
):
    """P <- P + sum_i tau_i a_i a_i' (lower triangle by columns), p <- p + sum_i nu_i a_i."""
    cdef ptrdiff_t first = 0
    cdef blas_int q
    cdef double[:, ::1] V = np.empty((64, A.d))
    long_enough("sites", min(tau.shape[0], nu.shape[0]), A.n)
    square("P", P, A.d)
    long_enough("p", p.shape[0], A.d)
    with nogil:
        while first < A.n:
            q = <blas_int> min(64, A.n - first)
            A.add_gram(first, q, &tau[first], &V[0, 0], &P[0, 0])
            A.add_combination(first, q, &nu[first], &p[0])
            first += q


def marginals(
    Rows A not None, const double[:, ::1] Sigma, const double[:, ::1] root, const double[::1] mu,
    double[::1] h, double[::1] s
):
    """h_i = a_i.mu and s_i = a_i' Sigma a_i.

    root: Sigma = root' root, lower triangle by columns.
    """
    cdef ptrdiff_t first = 0
    cdef blas_int q
    cdef double[:, ::1] V = np.empty((TOGETHER, A.d))
    square("Sigma", Sigma, A.d)
    square("root", root, A.d)
    long_enough("mu", mu.shape[0], A.d)
    long_enough("marginals", min(h.shape[0], s.shape[0]), A.n)
    with nogil:
        while first < A.n:
            q = <blas_int> min(TOGETHER, A.n - first)
            A.times_vector(first, q, &mu[0], &h[first])
            A.quadratic(first, q, &Sigma[0, 0], &root[0, 0], &V[0, 0], &s[first])
            first += q

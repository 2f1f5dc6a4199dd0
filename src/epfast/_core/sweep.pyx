"""Sweeps over scalar sites of a linear model: the exact blocked sweep, and all sites at once.

Site i acts on h_i = a_i.theta and holds two numbers, tau_i and nu_i. Ordinary sequential EP changes
the covariance by one rank-one update per site. Here q sites go together (math: guide): with
V = Sigma A, S = A' V, h = A' mu, the q updates are run on (S, h) alone, and each step's column of
the updated covariance is V u_i with U = T^-1, T unit upper triangular, T_ji = c_j S_ji as S stood
at step j. So

    Sigma <- Sigma - (V T^-1) diag(c) (V T^-1)',    mu <- mu + (V T^-1) k

is what site-by-site EP computes, in matrix products.

A row of weight w counts as w copies of itself where w >= 1, each with its factor t, and as one copy
with the factor t^w below. tau_i, nu_i and scale_i are those of all its copies together; with copies
c and power a, the cavity lacks the share a / c of them.
"""

import numpy as np

from libc.math cimport fabs, fmax, fmin, isfinite, log, sqrt

from epfast._core.lapack cimport blas_int, dgemm, dgemv, dtrsm
from epfast._core.rows cimport Rows, subtract_weighted
from epfast._core.tilted cimport LOSS_FAILED, NONE, Moments, Trouble

cdef double SMALLEST = 1e-10            # least 1 + dtau s: below, the posterior would be improper
cdef double POINT = 1e-300              # stands in for the variance of a row of zeros

cdef int MAX_INNER = 60                 # iterations in which the copies of a row settle
cdef double SETTLED = 1e-10             # by this much of the posterior of h

# ---- one site ----

cdef inline bint cavity(
    double h, double s, double share, double tau, double nu, double *m, double *v
) noexcept nogil:
    """N(m, v): the posterior N(h, s) without a share of the site. False where it is improper."""
    cdef double rest = 1.0 - share * tau * s
    if s == 0.0:                            # a row of zeros: its factor is the number t(0)
        m[0], v[0] = 0.0, POINT
        return True
    if not rest > SMALLEST:
        return False
    v[0] = s / rest
    m[0] = (h - share * nu * s) / rest
    return True


cdef inline bint site(
    double m, double v, double lZ, double dlZ, double d2lZ, double times,
    double *tau, double *nu, double *scale
) noexcept nogil:
    """The Gaussian that turns the cavity into the tilted moments, to a power. False: there is none.

    Its scale makes the integral over the cavity Z.
    """
    cdef double shrink = 1.0 + v * d2lZ     # tilted over cavity variance
    cdef double t, b
    if v == POINT:
        tau[0], nu[0], scale[0] = 0.0, 0.0, times * lZ
        return isfinite(lZ)
    if not shrink > SMALLEST:
        return False
    t = -d2lZ / shrink
    b = (dlZ - m * d2lZ) / shrink
    if not (isfinite(t) and isfinite(b)):
        return False
    lZ += 0.5 * log(1.0 / shrink) - 0.5 * (m + v * b) * (m + v * b) * shrink / v + 0.5 * m * m / v
    tau[0], nu[0], scale[0] = times * t, times * b, times * lZ
    return True


cdef Trouble new_site(
    Moments moments, double y, double h, double s, double power, double copies, double exponent,
    double tau, double nu, double *new_tau, double *new_nu, double *new_scale, bint *refused
) noexcept nogil:
    """The undamped new site of one factor, from the posterior N(h, s) of its a.theta.

    refused: the cavity or the fit is improper, and nothing is returned. Copies all change at once;
    so that many do not overshoot, they settle first with all other sites as they are.
    """
    cdef double m = 0.0, v = 0.0, lZ = 0.0, dlZ = 0.0, d2lZ = 0.0, rest, alone = 0.0, without = 0.0
    cdef double share = 0.5, away_tau, away_nu, change_tau, change_nu, size
    cdef double last_tau = 0.0, last_nu = 0.0
    cdef Trouble trouble
    cdef int _iteration
    refused[0] = True
    if exponent == 0.0:                     # a row of weight 0: t^0 = 1
        new_tau[0] = new_nu[0] = new_scale[0] = 0.0
        refused[0] = False
        return NONE
    if not cavity(h, s, power / copies, tau, nu, &m, &v):
        return NONE
    trouble = moments.at(y, m, v, power * exponent, &lZ, &dlZ, &d2lZ)
    if trouble == NONE:
        refused[0] = not site(
            m, v, lZ, dlZ, d2lZ, copies / power, new_tau, new_nu, new_scale
        )
    if copies == 1.0 or refused[0] or not cavity(h, s, 1.0, tau, nu, &without, &alone):
        return trouble
    for _iteration in range(MAX_INNER):
        # a step from (tau, nu) towards the sites found from there, in the units of the posterior
        rest = 1.0 + tau * alone
        away_tau = (new_tau[0] - tau) * alone / rest
        away_nu = (new_nu[0] - nu) * sqrt(alone / rest)
        if fabs(away_tau) <= SETTLED and fabs(away_nu) <= SETTLED:
            return NONE
        if _iteration > 0:
            # Aitken's relaxation: where the last step went too far the next is shorter
            change_tau, change_nu = away_tau - last_tau, away_nu - last_nu
            size = change_tau * change_tau + change_nu * change_nu
            if size > 0.0:
                share *= -(last_tau * change_tau + last_nu * change_nu) / size
            share = fmin(1.0, fmax(0.01, fabs(share)))
        last_tau, last_nu = away_tau, away_nu
        tau += share * (new_tau[0] - tau)
        nu += share * (new_nu[0] - nu)
        rest = 1.0 + tau * alone
        if not (rest > SMALLEST and cavity(
            (without + nu * alone) / rest, alone / rest, power / copies, tau, nu, &m, &v
        )):
            return NONE
        trouble = moments.at(y, m, v, power * exponent, &lZ, &dlZ, &d2lZ)
        if trouble != NONE or not site(
            m, v, lZ, dlZ, d2lZ, copies / power, new_tau, new_nu, new_scale
        ):
            refused[0] = True
            return trouble
    # not settled: what was reached, which the next visit goes on from
    new_tau[0], new_nu[0] = tau, nu
    return NONE


# ---- one after the other ----

cdef class Blocks:
    """Scratch for sequential sweeps in d dimensions with blocks of q sites.

    full: both triangles of the covariance are kept; else its lower by columns, the upper by C rows,
    and the other triangle is not touched. log_determinant adds up the log of how much each update
    shrinks the determinant of the covariance.
    """

    cdef Moments moments
    cdef ptrdiff_t d, q
    cdef double power, damping
    cdef double[:, ::1] V, W
    cdef double[:, ::1] S
    cdef double[::1] h, c, k
    cdef readonly bint full
    cdef readonly ptrdiff_t n_refused
    cdef readonly double log_scale_total, log_determinant

    def __init__(
        self, Moments moments not None, ptrdiff_t d, ptrdiff_t q, double power, double damping,
        bint full
    ):
        self.moments = moments
        self.d, self.q = d, q
        self.power, self.damping = power, damping
        self.full = full
        self.V, self.W = np.empty((q, d)), np.empty((q, d))
        self.S = np.empty((q, q))
        self.h, self.c, self.k = np.empty(q), np.empty(q), np.empty(q)

    cdef Trouble block(
        self, blas_int q, Rows A, ptrdiff_t first, const double *y, const double *weight,
        const ptrdiff_t *sites, double *Sigma, double *mu, double *tau, double *nu, double *scale
    ) noexcept nogil:
        """q rows of A from the first. O(4 d^2 q), with half of the covariance O(3 d^2 q)."""
        cdef blas_int d = <blas_int> self.d, one = 1
        cdef double unit = 1.0, minus = -1.0, s, t = 0.0, b = 0.0, g = 0.0, denominator, root
        cdef double old_tau = 0.0, old_nu = 0.0, copies = 1.0, exponent = 1.0
        cdef double *S = &self.S[0, 0]
        cdef double *V = &self.V[0, 0]
        cdef double *W = &self.W[0, 0]
        cdef ptrdiff_t i, j, r
        cdef bint refused = False
        cdef Trouble trouble
        A.times_symmetric(first, q, Sigma, self.full, V)
        A.times_rows(first, q, V, S)
        A.times_vector(first, q, mu, &self.h[0])
        for j in range(q):
            s = S[j * q + j]
            if weight != NULL:
                # without sites there are no copies to be alike
                copies = 1.0 if tau == NULL else fmax(1.0, weight[j])
                exponent = weight[j] / copies
            if tau != NULL:
                old_tau, old_nu = tau[sites[j]], nu[sites[j]]
            trouble = new_site(
                self.moments, y[j], self.h[j], s, self.power, copies, exponent, old_tau, old_nu,
                &t, &b, &g, &refused
            )
            if trouble == LOSS_FAILED:
                return trouble
            t = self.damping * (t - old_tau)
            b = self.damping * (b - old_nu)
            denominator = 1.0 + t * s
            if refused or not denominator > SMALLEST:
                self.n_refused += 1
                t, b, denominator = 0.0, 0.0, 1.0
            elif tau != NULL:
                tau[sites[j]] += t
                nu[sites[j]] += b
                scale[sites[j]] += self.damping * (g - scale[sites[j]])
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
        dtrsm(b"R", b"L", b"T", b"U", &d, &q, &unit, S, &q, V, &d)
        dgemv(b"N", &d, &q, &unit, V, &d, &self.k[0], &one, &unit, mu, &one)
        if self.full:
            for j in range(q):
                for i in range(self.d):
                    W[j * self.d + i] = self.c[j] * V[j * self.d + i]
            dgemm(b"N", b"T", &d, &d, &q, &minus, W, &d, V, &d, &unit, Sigma, &d)
        else:
            subtract_weighted(d, q, &self.c[0], V, W, Sigma)
        return NONE

    def sweep(
        self, Rows A not None, const double[::1] y, const double[::1] weight,
        const ptrdiff_t[::1] sites, double[:, ::1] Sigma, double[::1] mu, double[::1] tau=None,
        double[::1] nu=None, double[::1] scale=None,
    ):
        """Update the sites of the rows of A, in order, q at a time.

        weight may be None: all 1. sites numbers the entries of tau, nu and scale that belong to the
        rows; without them no site is stored (ADF). Sigma and mu are updated in place.
        """
        cdef ptrdiff_t first = 0
        cdef bint weighted = weight is not None, stored = tau is not None
        cdef Trouble trouble = NONE
        with nogil:
            while first < A.n:
                trouble = self.block(
                    <blas_int> min(self.q, A.n - first), A, first, &y[first],
                    &weight[first] if weighted else NULL, &sites[first], &Sigma[0, 0], &mu[0],
                    &tau[0] if stored else NULL, &nu[0] if stored else NULL,
                    &scale[0] if stored else NULL,
                )
                if trouble == LOSS_FAILED:
                    break
                first += self.q
        if trouble == LOSS_FAILED:
            self.moments.loss.reraise()


# ---- all from one posterior ----

cdef class Parallel:
    """Scratch for parallel sweeps in d dimensions, q rows at a time.

    residual: the largest distance of a site from its fixed point met so far, as the mismatch of the
    tilted mean with that of the posterior, in its standard deviations, or of the variances,
    relative.
    """

    cdef Moments moments
    cdef ptrdiff_t d, q
    cdef double power, damping
    cdef double[:, ::1] V
    cdef double[:, ::1] work                # rows: see sweep
    cdef unsigned char[::1] lost
    cdef readonly ptrdiff_t n_refused
    cdef readonly double residual

    def __init__(
        self, Moments moments not None, ptrdiff_t d, ptrdiff_t q, double power, double damping
    ):
        self.moments = moments
        self.d, self.q = d, q
        self.power, self.damping = power, damping
        self.V, self.work, self.lost = np.empty((q, d)), np.empty((9, q)), np.empty(q, np.uint8)

    cdef Trouble batch(
        self, blas_int q, const double *y, const double *weight, double *tau, double *nu,
        double *scale
    ) noexcept nogil:
        """New sites from the posterior marginals N(h, s) of q rows; O(q)."""
        cdef double *h = &self.work[0, 0]
        cdef double *s = &self.work[1, 0]
        cdef double *m = &self.work[2, 0]
        cdef double *v = &self.work[3, 0]
        cdef double *power = &self.work[4, 0]
        cdef double *lZ = &self.work[5, 0]
        cdef double *dlZ = &self.work[6, 0]
        cdef double *d2lZ = &self.work[7, 0]
        cdef double *copies = &self.work[8, 0]
        cdef double t = 0.0, b = 0.0, g = 0.0
        cdef ptrdiff_t j
        cdef Trouble trouble
        for j in range(q):
            copies[j] = 1.0 if weight == NULL else fmax(1.0, weight[j])
            power[j] = self.power * (1.0 if weight == NULL else fmin(1.0, weight[j]))
            if power[j] == 0.0 or not cavity(
                h[j], s[j], self.power / copies[j], tau[j], nu[j], &m[j], &v[j]
            ):
                copies[j] = 0.0                 # refused, or a row of weight 0
                m[j], v[j] = 0.0, 1.0
        trouble = self.moments.batch(q, y, m, v, power, lZ, dlZ, d2lZ, &self.lost[0])
        if trouble == LOSS_FAILED:
            return trouble
        for j in range(q):
            if copies[j] == 0.0 or self.lost[j] or not site(
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
            tau[j] += self.damping * (t - tau[j])
            nu[j] += self.damping * (b - nu[j])
            scale[j] += self.damping * (g - scale[j])
        return NONE

    def sweep(
        self, Rows A not None, const double[::1] y, const double[::1] weight,
        const double[:, ::1] Sigma, const double[:, ::1] root, const double[::1] mu,
        double[::1] tau, double[::1] nu, double[::1] scale, double[:, ::1] P=None,
        double[::1] p=None,
    ):
        """New sites of the rows of A, all for the posterior N(mu, Sigma).

        root: Sigma = root' root, lower triangle by columns. Precision P (lower triangle by columns)
        and shift p of the new sites are added up, where given.
        """
        cdef ptrdiff_t first = 0
        cdef blas_int q
        cdef bint weighted = weight is not None, summed = P is not None
        cdef Trouble trouble = NONE
        with nogil:
            while first < A.n:
                q = <blas_int> min(self.q, A.n - first)
                A.times_vector(first, q, &mu[0], &self.work[0, 0])
                A.quadratic(
                    first, q, &Sigma[0, 0], &root[0, 0], &self.V[0, 0], &self.work[1, 0]
                )
                trouble = self.batch(
                    q, &y[first], &weight[first] if weighted else NULL, &tau[first], &nu[first],
                    &scale[first]
                )
                if trouble == LOSS_FAILED:
                    break
                if summed:
                    A.add_gram(first, q, &tau[first], &self.V[0, 0], &P[0, 0])
                    A.add_combination(first, q, &nu[first], &p[0])
                first += q
        if trouble == LOSS_FAILED:
            self.moments.loss.reraise()

    def fit(
        self, const double[::1] h, const double[::1] s, const double[::1] y, double[::1] tau,
        double[::1] nu, double[::1] scale,
    ):
        """New sites from the posterior marginals N(h, s) of their values."""
        cdef ptrdiff_t first = 0, j
        cdef blas_int q
        cdef Trouble trouble = NONE
        with nogil:
            while first < h.shape[0]:
                q = <blas_int> min(self.q, h.shape[0] - first)
                for j in range(q):
                    self.work[0, j], self.work[1, j] = h[first + j], s[first + j]
                trouble = self.batch(
                    q, &y[first], NULL, &tau[first], &nu[first], &scale[first]
                )
                if trouble == LOSS_FAILED:
                    break
                first += q
        if trouble == LOSS_FAILED:
            self.moments.loss.reraise()


def add_sites(
    Rows A not None, const double[::1] tau, const double[::1] nu, double[:, ::1] P, double[::1] p
):
    """P <- P + sum_i tau_i a_i a_i' (lower triangle by columns), p <- p + sum_i nu_i a_i."""
    cdef ptrdiff_t first = 0
    cdef blas_int q
    cdef double[:, ::1] V = np.empty((64, A.d))
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
    """h_i = a_i.mu and s_i = a_i' Sigma a_i, with root as in Parallel.sweep."""
    cdef ptrdiff_t first = 0
    cdef blas_int q
    cdef double[:, ::1] V = np.empty((64, A.d))
    with nogil:
        while first < A.n:
            q = <blas_int> min(64, A.n - first)
            A.times_vector(first, q, &mu[0], &h[first])
            A.quadratic(first, q, &Sigma[0, 0], &root[0, 0], &V[0, 0], &s[first])
            first += q

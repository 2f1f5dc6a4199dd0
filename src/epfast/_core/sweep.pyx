"""The exact blocked sweep over scalar sites of a linear model (math: guide).

Site i acts on h_i = a_i.theta and holds two numbers, tau_i and nu_i. Ordinary sequential EP changes
the covariance by one rank-one update per site. Here q sites go together: with V = Sigma A',
S = A V, h = A mu, the q updates are run on (S, h) alone, and each step's column of the updated
covariance is V u_i with U = T^-1, T unit upper triangular, T_ji = c_j S_ji as S stood at step j. So

    Sigma <- Sigma - (V T^-1) diag(c) (V T^-1)',    mu <- mu + (V T^-1) k

is what site-by-site EP computes, in matrix products.
"""

import numpy as np

from libc.math cimport fabs, isfinite, log, sqrt

from epfast._core.lapack cimport blas_int, dgemm, dgemv, dsymm, dsyrk, dtrsm
from epfast._core.tilted cimport LOSS_FAILED, NONE, Moments, Trouble

cdef double SMALLEST = 1e-10            # least 1 + dtau s: below, the posterior would be improper


cdef Trouble new_site(
    Moments moments, double y, double h, double s, double power, double tau, double nu,
    double *new_tau, double *new_nu, double *new_scale, bint *refused
) noexcept nogil:
    """The undamped new site of one factor, from the posterior N(h, s) of its a.theta.

    refused: the cavity or the fit is improper, and nothing is returned.
    """
    cdef double rest = 1.0 - power * tau * s, m, v, lZ = 0.0, dlZ = 0.0, d2lZ = 0.0, shrink, t, b
    cdef Trouble trouble
    refused[0] = True
    if not rest > SMALLEST:
        return NONE
    v = s / rest
    m = (h - power * nu * s) / rest
    trouble = moments.at(y, m, v, power, &lZ, &dlZ, &d2lZ)
    shrink = 1.0 + v * d2lZ                 # tilted over cavity variance
    if trouble != NONE or not shrink > SMALLEST:
        return trouble
    # fit of t^a over the cavity, then its root
    t = -d2lZ / shrink
    b = (dlZ - m * d2lZ) / shrink
    if not (isfinite(t) and isfinite(b)):
        return NONE
    # scale: int N(h; m, v) g^a dh = Z
    lZ += 0.5 * log(1.0 / shrink) - 0.5 * (m + v * b) * (m + v * b) * shrink / v + 0.5 * m * m / v
    new_tau[0], new_nu[0], new_scale[0] = t / power, b / power, lZ / power
    refused[0] = False
    return NONE


def update_parallel(
    Moments moments not None, const double[::1] y, const double[::1] h, const double[::1] s,
    double[::1] tau, double[::1] nu, double[::1] scale, double power, double damping,
):
    """New sites for the posterior marginals N(h, s) of all a_i.theta; returns how many refused."""
    cdef ptrdiff_t i, count = 0
    cdef double t = 0.0, b = 0.0, c = 0.0
    cdef bint refused = False
    cdef Trouble trouble = NONE
    with nogil:
        for i in range(y.shape[0]):
            trouble = new_site(
                moments, y[i], h[i], s[i], power, tau[i], nu[i], &t, &b, &c, &refused
            )
            if trouble == LOSS_FAILED:
                break
            if refused:
                count += 1
                continue
            tau[i] += damping * (t - tau[i])
            nu[i] += damping * (b - nu[i])
            scale[i] += damping * (c - scale[i])
    if trouble == LOSS_FAILED:
        moments.loss.reraise()
    return count


cdef class Blocks:
    """Scratch for sweeps in d dimensions with blocks of q sites."""

    cdef Moments moments
    cdef ptrdiff_t d, q
    cdef double power, damping
    cdef double[:, ::1] A, V, W
    cdef double[:, ::1] S
    cdef double[::1] y, h, c, k
    cdef readonly ptrdiff_t n_refused
    cdef readonly double log_scale_total

    def __init__(
        self, Moments moments not None, ptrdiff_t d, ptrdiff_t q, double power, double damping
    ):
        self.moments = moments
        self.d, self.q = d, q
        self.power, self.damping = power, damping
        self.A, self.V, self.W = np.empty((q, d)), np.empty((q, d)), np.empty((q, d))
        self.S = np.empty((q, q))
        self.h, self.c, self.k = np.empty(q), np.empty(q), np.empty(q)

    cdef Trouble block(
        self, blas_int q, const double[:, ::1] A, const double[::1] y, const ptrdiff_t[::1] sites,
        double[:, ::1] Sigma, double[::1] mu, double[::1] tau, double[::1] nu, double[::1] scale
    ) noexcept nogil:
        """Sigma: its lower triangle by columns, that is the upper by C rows. O(3 d^2 q + d q^2)."""
        cdef blas_int d = <blas_int> self.d, one = 1, positive = 0, negative = 0
        cdef double unit = 1.0, zero = 0.0, minus = -1.0, s, t = 0.0, b = 0.0, g = 0.0, denominator
        cdef double *S = &self.S[0, 0]
        cdef ptrdiff_t i, j, r, site
        cdef bint refused = False, stored = tau is not None
        cdef Trouble trouble
        cdef double old_tau, old_nu, root
        dsymm(
            b"L", b"L", &d, &q, &unit, &Sigma[0, 0], &d, <double *> &A[0, 0], &d, &zero,
            &self.V[0, 0], &d
        )
        dgemm(
            b"T", b"N", &q, &q, &d, &unit, <double *> &A[0, 0], &d, &self.V[0, 0], &d, &zero, S, &q
        )
        dgemv(
            b"T", &d, &q, &unit, <double *> &A[0, 0], &d, &mu[0], &one, &zero, &self.h[0], &one
        )
        for j in range(q):
            site = sites[j]
            s = S[j * q + j]
            old_tau = tau[site] if stored else 0.0
            old_nu = nu[site] if stored else 0.0
            trouble = new_site(
                self.moments, y[j], self.h[j], s, self.power, old_tau, old_nu, &t, &b, &g, &refused
            )
            if trouble == LOSS_FAILED:
                return trouble
            t = self.damping * (t - old_tau)
            b = self.damping * (b - old_nu)
            denominator = 1.0 + t * s
            if refused or not denominator > SMALLEST:
                self.n_refused += 1
                t, b, denominator = 0.0, 0.0, 1.0
            elif stored:
                tau[site] += t
                nu[site] += b
                scale[site] += self.damping * (g - scale[site])
            else:
                self.log_scale_total += g
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
        dtrsm(b"R", b"L", b"T", b"U", &d, &q, &unit, S, &q, &self.V[0, 0], &d)
        dgemv(b"N", &d, &q, &unit, &self.V[0, 0], &d, &self.k[0], &one, &unit, &mu[0], &one)
        # columns of positive c to the front of W, of negative c to its end
        for j in range(q):
            if self.c[j] == 0.0:
                continue
            root = sqrt(fabs(self.c[j]))
            if self.c[j] > 0.0:
                r = positive
                positive += 1
            else:
                negative += 1
                r = q - negative
            for i in range(self.d):
                self.W[r, i] = root * self.V[j, i]
        if positive:
            dsyrk(
                b"L", b"N", &d, &positive, &minus, &self.W[0, 0], &d, &unit, &Sigma[0, 0], &d
            )
        if negative:
            dsyrk(
                b"L", b"N", &d, &negative, &unit, &self.W[q - negative, 0], &d, &unit,
                &Sigma[0, 0], &d
            )
        return NONE

    def sweep(
        self, const double[:, ::1] A, const double[::1] y, const ptrdiff_t[::1] sites,
        double[:, ::1] Sigma, double[::1] mu, double[::1] tau=None, double[::1] nu=None,
        double[::1] scale=None,
    ):
        """Update the sites of the rows of A, in order, q at a time.

        sites numbers the entries of tau, nu and scale that belong to the rows; without them no site
        is stored (ADF). Sigma (its C upper triangle) and mu are updated in place.
        """
        cdef ptrdiff_t first = 0, n = A.shape[0]
        cdef Trouble trouble = NONE
        with nogil:
            while first < n:
                trouble = self.block(
                    <blas_int> min(self.q, n - first), A[first:], y[first:], sites[first:], Sigma,
                    mu, tau, nu, scale
                )
                if trouble == LOSS_FAILED:
                    break
                first += self.q
        if trouble == LOSS_FAILED:
            self.moments.loss.reraise()

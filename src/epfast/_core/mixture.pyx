"""Mixtures of Gaussians: the tilted moments of a row, and sweeps of ADF, SEP and EP over rows.

x ~ sum_j w_j N(mu_j, I / gamma). A belief is a vector of numbers that add up in products:

    precisions (J, d, d), shifts (J, d)    of the means mu_j
    alpha - 1 (J,)                         of a Dirichlet over w, where weights are learnt
    shape - 1, rate                        of a gamma over gamma, where the noise is learnt
    the log of its size                    the natural parameter of a constant

With cavity N(m_j, S_j), e = x - m_j, C = S_j + v I, v = 1 / gamma, and r_j the probability of
component j, whose complement q is summed over the others, the site of mu_j at known noise is

    M = v I + q S,  u = C^-1 e,  b = M^-1 e,  k = r q / (1 + r q u'S b)
    precision r M^-1 - k b b',  shift = r u + precision m*,  m* = m_j + r S u

(Li et al. 2015, supplement B.2, by Woodbury: no difference of inverses of moments). It takes
precision away along b where q is not small. Unknown noise is integrated over by the trapezoidal
rule in log gamma, in the eigenbasis of S_j; with p the joint weights of component and point, and
c = 1 / (s + v) in that basis,

    K = diag(q + sum p v c) + S^1/2 (sum p (u - u_)(u - u_)' + r q u_ u_') S^1/2
    precision S^-1/2 (K^-1 - I) S^-1/2                  K is the tilted covariance, scaled by S
"""

import numpy as np

from libc.math cimport INFINITY, exp, expm1, fmax, fmin, isfinite, log, log1p, sqrt
from libc.string cimport memcpy

from epfast._core.lapack cimport blas_int, dgemm, dpotrf, dpotri, dsyev
from epfast._core.rows cimport in_range, long_enough
from epfast._core.special cimport digamma, dirichlet_of_logs, log_gamma, shape_of_gap
from epfast._core.vector cimport (
    EPF_MIXTURE_BLOCK, EPF_MIXTURE_MOST, EPF_MIXTURE_POINTS, epf_mixture, kernels
)

cdef double LOG_2PI = 1.837877066409345483560659472811235
# terms below exp(-DEEP) of the largest are left out of integrals
cdef double DEEP = 40.0
# widest step of the trapezoidal rule in log gamma, and the same in standard deviations: its error
# is below rounding
cdef double STEP = 0.2
cdef double STEP_IN_SD = 0.5

cdef enum:
    SMALL = 8                   # largest order that takes no call of LAPACK
    MOST_POINTS = EPF_MIXTURE_POINTS
    MOST_HALVINGS = 12          # of the step of a batch


cdef bint factorize(double *A, ptrdiff_t d) noexcept nogil:
    """The lower triangle by rows becomes L, A = L L'; False: A is not positive definite."""
    cdef blas_int order = <blas_int> d, info = 0
    cdef ptrdiff_t i, j, k
    cdef double total
    if d > SMALL:
        dpotrf(b"U", &order, A, &order, &info)
        return info == 0
    for i in range(d):
        for j in range(i + 1):
            total = A[i * d + j]
            for k in range(j):
                total -= A[i * d + k] * A[j * d + k]
            if i > j:
                A[i * d + j] = total / A[j * d + j]
            elif total > 0.0:
                A[i * d + i] = sqrt(total)
            else:
                return False
    return True


cdef double log_det(const double *L, ptrdiff_t d) noexcept nogil:
    """Of L L'."""
    cdef ptrdiff_t i
    cdef double total = 0.0
    for i in range(d):
        total += log(L[i * d + i])
    return 2.0 * total


cdef void solve(const double *L, ptrdiff_t d, const double *b, double *x) noexcept nogil:
    """x = (L L')^-1 b"""
    cdef ptrdiff_t i, k
    cdef double total
    for i in range(d):
        total = b[i]
        for k in range(i):
            total -= L[i * d + k] * x[k]
        x[i] = total / L[i * d + i]
    for i in range(d - 1, -1, -1):
        total = x[i] / L[i * d + i]
        x[i] = total
        for k in range(i):
            x[k] -= L[i * d + k] * total


cdef void invert(double *L, ptrdiff_t d) noexcept nogil:
    """L <- (L L')^-1, both triangles."""
    cdef blas_int order = <blas_int> d, info = 0
    cdef ptrdiff_t i, j
    dpotri(b"U", &order, L, &order, &info)
    for i in range(d):
        for j in range(i):
            L[j * d + i] = L[i * d + j]


cdef inline void times(const double *A, ptrdiff_t d, const double *x, double *y) noexcept nogil:
    """y = A x"""
    cdef ptrdiff_t i, k
    cdef double total
    for i in range(d):
        total = 0.0
        for k in range(d):
            total += A[i * d + k] * x[k]
        y[i] = total


cdef inline double dot(ptrdiff_t d, const double *x, const double *y) noexcept nogil:
    cdef ptrdiff_t i
    cdef double total = 0.0
    for i in range(d):
        total += x[i] * y[i]
    return total


cdef double dirichlet_size(const double *alpha, ptrdiff_t J) noexcept nogil:
    """log of the integral of prod_j w_j^(alpha_j - 1)."""
    cdef ptrdiff_t j
    cdef double total = 0.0, size = 0.0
    for j in range(J):
        size += alpha[j]
        total += log_gamma(alpha[j])
    return total - log_gamma(size)


cdef class MixtureRows:
    """The rows X (n, d) of a mixture of J components, and scratch for their fits.

    log_weights: (J,), or None: learnt; noise: the variance, or 0: learnt.
    """

    cdef readonly ptrdiff_t n_rows, n_naturals
    cdef ptrdiff_t n, d, J, P                       # P: numbers of a belief
    cdef bint learns_weights, learns_noise, alone
    cdef double noise, damping
    cdef const double[:, ::1] X
    cdef const double[::1] log_weights
    cdef double[:, :, ::1] S, M                     # (J, d, d)
    cdef double[:, ::1] m, e, u, b, s               # (J, d)
    cdef double[::1] r, q, logs, det, alpha, target, step, slope, work
    cdef epf_mixture small                          # for few dimensions
    cdef double[::1] blocks
    cdef double[:, ::1] points                      # (MOST_POINTS, J)
    cdef double[::1] tau, site, cavity, total, moved
    cdef double[::1] belief
    cdef double[:, ::1] sites
    cdef const double[::1] sizes
    cdef int stores                                 # 0: none, 1: shared, 2: own
    cdef ptrdiff_t in_batch, fitted                 # rows of the batch
    cdef readonly ptrdiff_t n_refused

    def __init__(
        self, const double[:, ::1] X not None, ptrdiff_t J, const double[::1] log_weights,
        double noise
    ):
        cdef ptrdiff_t d = X.shape[1]
        if J < 1 or d < 1:
            raise ValueError(f"{J} components in {d} dimensions")
        self.X, self.n, self.d, self.J, self.noise = X, X.shape[0], d, J, noise
        self.n_rows = self.n
        self.learns_weights, self.learns_noise = log_weights is None, noise == 0.0
        if not self.learns_weights:
            long_enough("log_weights", log_weights.shape[0], J)
            self.log_weights = log_weights
        self.P = J * d * (d + 1) + J * self.learns_weights + 2 * self.learns_noise + 1
        self.n_naturals = self.P
        self.S, self.M = np.empty((J, d, d)), np.empty((J, d, d))
        self.m, self.e, self.u, self.b, self.s = np.empty((5, J, d))
        self.r, self.q, self.logs, self.det, self.alpha, self.target, self.step = np.empty((7, J))
        self.slope = np.empty(J)
        self.work = np.empty(3 * d * d + 8 * d)
        if self.learns_noise:
            self.points = np.empty((MOST_POINTS, J + 8))
            self.tau = np.empty(MOST_POINTS)
        if d <= EPF_MIXTURE_MOST:
            self.blocks = np.empty((J + 8) * EPF_MIXTURE_BLOCK + 8)
            self.small.d, self.small.J, self.small.noise = d, J, noise
            self.small.logs, self.small.blocks = &self.logs[0], &self.blocks[0]
            self.small.r, self.small.q = &self.r[0], &self.q[0]
            if self.learns_noise:
                self.small.tau, self.small.points = &self.tau[0], &self.points[0, 0]
        self.site, self.cavity, self.total, self.moved = np.empty((4, self.P))

    # ---- one row ----

    cdef void complements(self) noexcept nogil:
        """q = 1 - r, without a difference."""
        cdef ptrdiff_t i, j
        for j in range(self.J):
            self.q[j] = 0.0
            for i in range(self.J):
                if i != j:
                    self.q[j] += self.r[i]

    cdef bint responsibilities(self, double *log_z) noexcept nogil:
        """r and q from logs; False where they are not finite."""
        cdef ptrdiff_t j
        cdef double top = -INFINITY, total = 0.0
        for j in range(self.J):
            top = fmax(top, self.logs[j])
        if not isfinite(top):
            return False
        for j in range(self.J):
            self.r[j] = exp(self.logs[j] - top)
            total += self.r[j]
        log_z[0] = top + log(total)
        for j in range(self.J):
            self.r[j] /= total
        self.complements()
        return isfinite(log_z[0])

    cdef bint moments(self, const double *x, const double *cavity) noexcept nogil:
        """Covariance, mean and e of each component under the cavity."""
        cdef ptrdiff_t j, i, d = self.d, J = self.J
        cdef const double *shift = cavity + J * d * d
        for j in range(J):
            memcpy(&self.S[j, 0, 0], cavity + j * d * d, d * d * sizeof(double))
            if not factorize(&self.S[j, 0, 0], d):
                return False
            invert(&self.S[j, 0, 0], d)
            times(&self.S[j, 0, 0], d, shift + j * d, &self.m[j, 0])
            for i in range(d):
                self.e[j, i] = x[i] - self.m[j, i]
        return True

    cdef bint at_known_noise(self, double *site, double *scale) noexcept nogil:
        """The sites of the means; scale: log Z less their sizes. O(J d^3)"""
        cdef ptrdiff_t j, i, k, d = self.d, J = self.J
        cdef double *C
        cdef double *precision
        cdef double *shift
        cdef double *near = &self.work[0]           # m*
        cdef double *Su = &self.work[d]
        cdef double r, q, share, along, v = self.noise, log_z
        for j in range(J):
            C = &self.M[j, 0, 0]
            memcpy(C, &self.S[j, 0, 0], d * d * sizeof(double))
            for i in range(d):
                C[i * d + i] += v
            if not factorize(C, d):
                return False
            solve(C, d, &self.e[j, 0], &self.u[j, 0])
            self.det[j] = log_det(C, d)
            self.logs[j] -= 0.5 * (
                dot(d, &self.e[j, 0], &self.u[j, 0]) + self.det[j] + d * LOG_2PI
            )
        if not self.responsibilities(&log_z):
            return False
        scale[0] = log_z
        for j in range(J):
            r, q = self.r[j], self.q[j]
            precision, shift = site + j * d * d, site + J * d * d + j * d
            for i in range(d * d):
                precision[i] = q * (&self.S[j, 0, 0])[i]
            for i in range(d):
                precision[i * d + i] += v
            if not factorize(precision, d):
                return False
            self.det[j] -= log_det(precision, d)
            solve(precision, d, &self.e[j, 0], &self.b[j, 0])
            invert(precision, d)
            times(&self.S[j, 0, 0], d, &self.u[j, 0], Su)
            along = r * q * dot(d, Su, &self.b[j, 0])
            share = r * q / (1.0 + along)
            for i in range(d):
                near[i] = self.m[j, i] + r * Su[i]
                for k in range(i + 1):
                    precision[i * d + k] = (
                        r * precision[i * d + k] - share * self.b[j, i] * self.b[j, k]
                    )
                    precision[k * d + i] = precision[i * d + k]
            times(precision, d, near, shift)
            for i in range(d):
                self.u[j, i] *= r
                shift[i] += self.u[j, i]
            scale[0] -= 0.5 * (
                dot(d, shift, near) + dot(d, &self.u[j, 0], &self.m[j, 0])
                - self.det[j] + log1p(along)
            )
        return True

    cdef double terms_at(self, double tau, double shape, double v, double *out) noexcept nogil:
        """Logs of the terms of the integral over log gamma at tau from its start; the largest."""
        cdef ptrdiff_t j, k, count
        cdef double prior = shape * (tau - expm1(tau)), product, wide, size, top = -INFINITY
        for j in range(self.J):
            size, product, count = 0.0, 1.0, 0
            for k in range(self.d):
                wide = self.s[j, k] + v
                size += self.e[j, k] * self.e[j, k] / wide
                product *= wide
                count += 1
                # no overflow between two logs
                if count == 8 or not 1e-30 < product < 1e30:
                    size += log(product)
                    product, count = 1.0, 0
            out[j] = prior + self.logs[j] - 0.5 * (size + log(product))
            top = fmax(top, out[j])
        return top

    cdef bint at_unknown_noise(
        self, double shape, double rate, double *site, double *out
    ) noexcept nogil:
        """The same; out: as ``found`` of epf_mixture. O(J (d^3 + points d^2))"""
        cdef ptrdiff_t j, i, k, p, first, count, d = self.d, J = self.J
        cdef blas_int order = <blas_int> d, info = 0, size = <blas_int> (d * d + 8 * d)
        cdef double step = fmin(STEP, STEP_IN_SD / sqrt(shape + 0.5 * d)), start = rate / shape
        cdef double top = -INFINITY, low = 0.0, tau, v, found, total, weight, gain, mean, gap, c
        cdef double *U
        cdef double *K = &self.work[d * d + 8 * d]
        cdef double *T = K + d * d
        cdef double *g
        cdef double *near = &self.work[0]
        cdef double *precision
        cdef double *shift
        cdef double unit = 1.0, zero = 0.0
        for j in range(J):
            U = &self.M[j, 0, 0]                    # eigenvectors, as rows
            memcpy(U, &self.S[j, 0, 0], d * d * sizeof(double))
            dsyev(b"V", b"U", &order, U, &order, &self.s[j, 0], &self.work[0], &size, &info)
            if info != 0 or not self.s[j, 0] > 0.0:
                return False
            times(U, d, &self.e[j, 0], &self.u[j, 0])
            memcpy(&self.e[j, 0], &self.u[j, 0], d * sizeof(double))
            found = dot(d, &self.e[j, 0], &self.e[j, 0])
            low = fmin(low, -log1p(0.5 * found / rate))
        # the modes of all terms are between low and the start of both walks
        first = 0
        tau = step * (1.0 + <ptrdiff_t> (log1p(0.5 * d / shape) / step))
        total = tau
        while True:                                 # up, then down from there
            if first >= MOST_POINTS:
                return False
            found = self.terms_at(tau, shape, start * exp(-tau), &self.points[first, 0])
            if found != found:
                return False
            self.tau[first] = tau
            top = fmax(top, found)
            first += 1
            if found < top - DEEP:
                break
            tau += step
        tau = total - step
        while True:
            if first >= MOST_POINTS:
                return False
            found = self.terms_at(tau, shape, start * exp(-tau), &self.points[first, 0])
            if found != found:
                return False
            self.tau[first] = tau
            top = fmax(top, found)
            first += 1
            if tau < low and found < top - DEEP:
                break
            tau -= step
        if not isfinite(top):
            return False
        count, total, tau = first, 0.0, 0.0
        for p in range(count):
            for j in range(J):
                if self.points[p, j] == top:
                    tau = self.tau[p]
                self.points[p, j] = exp(self.points[p, j] - top)
                total += self.points[p, j]
        for j in range(J):
            self.r[j] = 0.0
        mean, gap = 0.0, 0.0
        for p in range(count):
            weight = 0.0
            for j in range(J):
                self.points[p, j] /= total
                self.r[j] += self.points[p, j]
                weight += self.points[p, j]
            found = self.tau[p] - tau
            mean += weight * expm1(found)
            gap += weight * (expm1(found) - found)
        out[1], out[2], out[3] = mean, gap - (mean - log1p(mean)), tau
        # with the size of the old gamma, Gamma(a) / b^a, as the integral has its inverse
        out[0] = top + log(step * total) - 0.5 * d * LOG_2PI - shape * (1.0 + log(start))
        for p in range(count):
            self.tau[p] = start * exp(-self.tau[p])
        self.complements()
        for j in range(J):
            U, g = &self.M[j, 0, 0], &self.u[j, 0]
            precision, shift = site + j * d * d, site + J * d * d + j * d
            for k in range(d):
                g[k] = self.q[j]
                near[k] = 0.0
            for p in range(count):
                weight = self.points[p, j]
                if weight > 0.0:
                    v = self.tau[p]
                    for k in range(d):
                        c = 1.0 / (self.s[j, k] + v)
                        g[k] += weight * v * c
                        near[k] += weight * c
            for i in range(d * d):
                K[i] = 0.0
            for i in range(d):
                K[i * d + i] = g[i]
                g[i] = near[i] * self.e[j, i]       # the sum of p u
                near[i] = near[i] / self.r[j] if self.r[j] > 0.0 else 0.0
            for p in range(count):
                weight = self.points[p, j]
                if weight > 0.0:
                    v = self.tau[p]
                    for k in range(d):
                        self.b[j, k] = (
                            sqrt(self.s[j, k]) * (1.0 / (self.s[j, k] + v) - near[k])
                            * self.e[j, k]
                        )
                    for i in range(d):
                        gain = weight * self.b[j, i]
                        for k in range(i + 1):
                            K[i * d + k] += gain * self.b[j, k]
            gain = self.r[j] * self.q[j]
            for i in range(d):
                self.b[j, i] = sqrt(self.s[j, i]) * near[i] * self.e[j, i]
                for k in range(i + 1):
                    K[i * d + k] += gain * self.b[j, i] * self.b[j, k]
            if not factorize(K, d):
                return False
            found = log_det(K, d)
            invert(K, d)
            for i in range(d):
                K[i * d + i] -= 1.0
                near[i] = self.s[j, i] * g[i]
            for i in range(d):
                for k in range(i + 1):
                    K[i * d + k] /= sqrt(self.s[j, i]) * sqrt(self.s[j, k])
                    K[k * d + i] = K[i * d + k]
            # back: U holds eigenvectors by rows; near becomes m*, g the gradient
            dgemm(
                b"N", b"N", &order, &order, &order, &unit, U, &order, K, &order, &zero, T, &order
            )
            dgemm(
                b"N", b"T", &order, &order, &order, &unit, T, &order, U, &order, &zero,
                precision, &order
            )
            for i in range(d):
                self.b[j, i], self.e[j, i] = 0.0, self.m[j, i]
                for k in range(d):
                    self.b[j, i] += U[k * d + i] * g[k]
                    self.e[j, i] += U[k * d + i] * near[k]
                for k in range(i):
                    precision[i * d + k] = 0.5 * (precision[i * d + k] + precision[k * d + i])
                    precision[k * d + i] = precision[i * d + k]
            times(precision, d, &self.e[j, 0], shift)
            for i in range(d):
                shift[i] += self.b[j, i]
            out[0] -= 0.5 * (
                dot(d, shift, &self.e[j, 0]) + dot(d, &self.b[j, 0], &self.m[j, 0]) + found
            )
        return True

    cdef bint fit(self, const double *x, const double *cavity, double *site) noexcept nogil:
        """The site of a row; False: the cavity is improper, or numbers are out of range."""
        cdef ptrdiff_t j, p, J = self.J, at = J * self.d * (self.d + 1)
        cdef double scale, size = 0.0, shape = 1.0, rate = 1.0, new_shape, new_rate
        cdef const double *noise = cavity + self.P - 3
        cdef double *found = &self.small.found[0]
        if self.learns_weights:
            for j in range(J):
                self.alpha[j] = cavity[at + j] + 1.0
                size += self.alpha[j]
                if not self.alpha[j] > 0.0:
                    return False
            for j in range(J):
                self.logs[j] = log(self.alpha[j] / size)
        else:
            for j in range(J):
                self.logs[j] = self.log_weights[j]
        if self.learns_noise:
            shape, rate = noise[0] + 1.0, noise[1]
            if not (shape > 0.0 and rate > 0.0):
                return False
        if self.d <= EPF_MIXTURE_MOST:
            self.small.gamma[0], self.small.gamma[1] = shape, rate
            if not kernels.mixture_row(&self.small, x, cavity, site):
                return False
        elif not self.moments(x, cavity):
            return False
        elif self.learns_noise:
            if not self.at_unknown_noise(shape, rate, site, found):
                return False
        elif not self.at_known_noise(site, found):
            return False
        scale = found[0]
        if self.learns_noise:
            new_shape = shape_of_gap(found[2], shape)
            new_rate = new_shape / (1.0 + found[1]) * (rate / shape) * exp(-found[3])
            site[self.P - 3], site[self.P - 2] = new_shape - shape, new_rate - rate
            if not (new_shape > 0.0 and new_rate > 0.0):
                return False
            scale += new_shape * log(new_rate) - log_gamma(new_shape)
        if self.learns_weights:
            # E log w_j of the mixture of Dirichlets alpha + unit_k with weights r_k
            for j in range(J):
                self.target[j] = (
                    digamma(self.alpha[j]) + self.r[j] / self.alpha[j] - digamma(size) - 1.0 / size
                )
            scale += dirichlet_size(&self.alpha[0], J)
            for j in range(J):
                self.alpha[j] += self.r[j]          # near the answer
            if not dirichlet_of_logs(
                &self.target[0], &self.alpha[0], &self.step[0], &self.slope[0], J
            ):
                return False
            scale -= dirichlet_size(&self.alpha[0], J)
            for j in range(J):
                site[at + j] = self.alpha[j] - 1.0 - cavity[at + j]
        site[self.P - 1] = scale
        for p in range(self.P):
            if not isfinite(site[p]):
                return False
        return True

    cdef bint is_proper(self, const double *eta) noexcept nogil:
        cdef ptrdiff_t j, d = self.d, at = self.J * d * (d + 1)
        for j in range(self.J):
            memcpy(&self.M[0, 0, 0], eta + j * d * d, d * d * sizeof(double))
            if not factorize(&self.M[0, 0, 0], d):
                return False
        if self.learns_weights:
            for j in range(self.J):
                if not eta[at + j] > -1.0:
                    return False
        if self.learns_noise:
            return eta[self.P - 3] > -1.0 and eta[self.P - 2] > 0.0
        return True

    def tilted(
        self, const double[::1] x not None, const double[::1] cavity not None,
        double[::1] site not None
    ):
        """The site of a row x (d,) by a cavity; False where there is none."""
        long_enough("x", x.shape[0], self.d)
        long_enough("cavity", min(cavity.shape[0], site.shape[0]), self.P)
        return self.fit(&x[0], &cavity[0], &site[0])

    # ---- sweeps: see epfast.parametric.engine ----

    def begin(
        self, double[::1] belief not None, const double[::1] base, double[:, ::1] sites,
        const double[::1] sizes, double damping, bint alone
    ):
        """Take in a state, whose arrays change in place; alone: each row is a batch."""
        long_enough("belief", belief.shape[0], self.P)
        self.stores = 0 if sites is None else 1 if sizes is not None else 2
        if sites is not None:
            long_enough("sites", sites.shape[1], self.P)
            self.sites = sites
        if sizes is not None:
            long_enough("sizes", sizes.shape[0], sites.shape[0])
            self.sizes = sizes
        self.belief, self.damping, self.alone = belief, damping, alone
        self.n_refused, self.in_batch = 0, 0

    def visit(
        self, const ptrdiff_t[::1] rows not None, const ptrdiff_t[::1] group,
        const unsigned char[::1] last
    ):
        """Fit some rows, in their order; of shared sites with group and whether a batch ends."""
        cdef ptrdiff_t i, n = rows.shape[0], count = 0
        in_range("rows", rows, self.n)
        if self.stores == 1:
            count = self.sites.shape[0]
            if group is None or last is None:
                raise ValueError("shared sites without groups")
            long_enough("group", min(group.shape[0], last.shape[0]), n)
            in_range("group", group, count)
        elif self.stores == 2:
            long_enough("sites", self.sites.shape[0], self.n)
        with nogil:
            for i in range(n):
                if self.stores == 0:
                    self.assume(rows[i])
                elif self.stores == 1:
                    self.share(rows[i], group[i], last[i])
                else:
                    self.own(rows[i])

    cdef void assume(self, ptrdiff_t row) noexcept nogil:
        """ADF: the belief becomes the fit."""
        cdef ptrdiff_t p
        if not self.fit(&self.X[row, 0], &self.belief[0], &self.site[0]):
            self.n_refused += 1
            return
        for p in range(self.P):
            self.belief[p] += self.site[p]

    cdef void own(self, ptrdiff_t row) noexcept nogil:
        """EP: a share of the way from the old site to the new; both beliefs are proper."""
        cdef ptrdiff_t p
        cdef double *old = &self.sites[row, 0]
        for p in range(self.P):
            self.cavity[p] = self.belief[p] - old[p]
        if not self.fit(&self.X[row, 0], &self.cavity[0], &self.site[0]):
            self.n_refused += 1
            return
        for p in range(self.P):
            if self.damping == 1.0:
                old[p] = self.site[p]
            else:
                old[p] += self.damping * (self.site[p] - old[p])
            self.belief[p] = self.cavity[p] + old[p]

    cdef void share(self, ptrdiff_t row, ptrdiff_t group, bint last) noexcept nogil:
        """A row of a batch; at its end the site of the group moves, and the belief with it."""
        cdef ptrdiff_t p
        cdef double *site = &self.sites[group, 0]
        cdef double rate
        cdef int _tried
        if self.in_batch == 0:
            for p in range(self.P):
                self.cavity[p] = self.belief[p] - site[p]
                self.total[p] = 0.0
            self.fitted = 0
        self.in_batch += 1
        if self.fit(&self.X[row, 0], &self.cavity[0], &self.site[0]):
            self.fitted += 1
            for p in range(self.P):
                self.total[p] += self.site[p] - site[p]
        else:
            self.n_refused += 1
        if not last:
            return
        # alone, the belief is on the way between two proper ones; else half of the way may do
        rate = self.damping
        for _tried in range(MOST_HALVINGS):
            for p in range(self.P):
                self.moved[p] = self.belief[p] + rate * self.total[p]
            if self.alone or self.is_proper(&self.moved[0]):
                for p in range(self.P):
                    site[p] += rate / self.sizes[group] * self.total[p]
                    self.belief[p] = self.moved[p]
                break
            rate *= 0.5
        else:
            self.n_refused += self.fitted
        self.in_batch = 0

    def end(self):
        """A batch that has not ended is dropped; log scale (in the belief), refused, failed."""
        self.in_batch = 0
        return None, self.n_refused, 0

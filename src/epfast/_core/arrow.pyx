"""Scalar sites of rows that each act on common weights and on the effects of one level of a group.

Row i has x_i (d,) for the common weights and z_i (q,) for the effects of its level, of which there
are J. The precision of all weights is an arrow: with sites tau_i and the priors A_0 and D_0

    P = [A  B],   A = A_0 + sum_i tau_i x_i x_i',   B_j = sum_{i in j} tau_i x_i z_i',
        [B' D]    D_j = D_0 + sum_{i in j} tau_i z_i z_i',

and D is diagonal but for its blocks. With E_j = D_j^-1 B_j' and S = A - sum_j B_j E_j the common
weights have the covariance V = S^-1, and given them the effects of a level the mean D_j^-1 h_j -
E_j w and the covariance D_j^-1, whatever the other levels are (Rasmussen & Williams 2006, A.3).
Nothing takes (d + J q)^2: a level and the common weights have (d + q)^2 numbers.

Rows of a level are visited one after the other, and levels all from the same V, some of them
together, so that moments are found for a row of each at a time.
"""

import numpy as np

from libc.math cimport INFINITY, fmax, isfinite, log, sqrt

from epfast._core.lapack cimport blas_int
from epfast._core.row_sweeps cimport SiteFits
from epfast._core.rows cimport in_range, long_enough, square
from epfast._core.site cimport SMALLEST
from epfast._core.status cimport CALLBACK_FAILED, NOT_FINITE, OK, Status
from epfast._core.tilted cimport TiltedMoments

cdef enum:
    LANES = 64                  # levels that are visited together, at most
    FEWEST = 8                  # and at least
    NUMBERS = 1 << 13           # of their covariances: what stays near


cdef bint factorized(double *D, ptrdiff_t q) noexcept nogil:
    """The Cholesky factor of D, q x q, in its lower triangle; False: it is not definite."""
    cdef ptrdiff_t a, b, k
    cdef double rest
    for a in range(q):
        for b in range(a + 1):
            rest = D[a * q + b]
            for k in range(b):
                rest -= D[a * q + k] * D[b * q + k]
            if b < a:
                D[a * q + b] = rest / D[b * q + b]
            elif not 0.0 < rest < INFINITY:
                return False
            else:
                D[a * q + a] = sqrt(rest)
    return True


cdef class ArrowSweep:
    """Scratch for the rows X (n, d) and Z (n, q).

    ``order`` has the rows level by level; those of level j are from start[j] to start[j + 1].
    moved: as in BlockedSweep.
    """

    cdef SiteFits core
    cdef ptrdiff_t stride
    cdef const double[:, ::1] X, Z
    cdef const ptrdiff_t[::1] order, start
    cdef ptrdiff_t n, d, q, J, count    # count: of lanes
    cdef double[:, :, ::1] C            # covariance of the common weights and of a level, by lane
    cdef double[:, ::1] mean, along     # of these, and C times the row
    cdef double[::1] row
    cdef double[:, ::1] y, sites        # of the rows of the lanes: tau, nu, scale and weight
    cdef ptrdiff_t[::1] which, lane
    cdef double[:, ::1] D, half         # q x q, q x d
    cdef double[::1] h
    cdef readonly ptrdiff_t n_refused
    cdef public double moved

    def __init__(
        self, TiltedMoments moments not None, double power, double damping,
        const double[:, ::1] X not None, const double[:, ::1] Z not None,
        const ptrdiff_t[::1] order not None, const ptrdiff_t[::1] start not None,
    ):
        cdef ptrdiff_t j, m = X.shape[1] + Z.shape[1]
        self.core = SiteFits(moments, power, damping, LANES)
        self.stride = moments.loss.stride
        self.X, self.Z, self.order, self.start = X, Z, order, start
        self.n, self.d, self.q, self.J = X.shape[0], X.shape[1], Z.shape[1], start.shape[0] - 1
        long_enough("Z", Z.shape[0], self.n)
        in_range("order", order, self.n)
        in_range("start", start, order.shape[0] + 1)
        if self.J < 1 or self.d < 1 or self.q < 1:
            raise ValueError("no level, or no weight")
        for j in range(self.J):
            if start[j] > start[j + 1]:
                raise ValueError("start falls")
        self.count = max(FEWEST, min(LANES, NUMBERS // (m * m)))
        self.C, self.row = np.empty((LANES, m, m)), np.empty(m)
        self.mean, self.along = np.empty((LANES, m)), np.empty((LANES, m))
        self.y, self.sites = np.empty((LANES, self.stride)), np.empty((4, LANES))
        self.which, self.lane = np.empty(LANES, np.intp), np.empty(LANES, np.intp)
        self.D, self.half = np.empty((self.q, self.q)), np.empty((self.q, self.d))
        self.h = np.empty(self.q)

    cdef int check(
        self, const double[:, ::1] V, const double[::1] common, const double[:, :, ::1] E,
        const double[:, :, ::1] inverse, const double[:, ::1] own
    ) except -1:
        """Refuse arrays of other shapes, so that no loop leaves one."""
        square("V", V, self.d)
        long_enough("common", common.shape[0], self.d)
        if (
            E.shape[0] < self.J or E.shape[1] != self.q or E.shape[2] != self.d
            or inverse.shape[0] < self.J or inverse.shape[1] != self.q
            or inverse.shape[2] != self.q or own.shape[0] < self.J or own.shape[1] != self.q
        ):
            raise ValueError("arrays of the levels do not fit")
        return 0

    def build(
        self, const double[::1] tau not None, const double[::1] nu not None,
        double[:, ::1] A not None, double[::1] h not None, const double[:, ::1] prior not None,
        double[:, :, ::1] E not None, double[:, :, ::1] inverse not None,
        double[:, ::1] own not None,
    ):
        """What sites make of the priors A (d, d) with the shift h (d,), and prior (q, q).

        A and h become those of the common weights alone, S and its shift; E_j, D_j^-1 and
        D_j^-1 h_j are written. O(n (d + q)^2 / 2 + J q d^2)

        Returns
        -------
        log determinant of D and sum_j h_j' D_j^-1 h_j, or None if a level is improper.
        """
        cdef ptrdiff_t j, r, i, a, b, k, u, d = self.d, q = self.q
        cdef double t, b_i, weighted, logs = 0.0, product = 0.0
        cdef double *D = &self.D[0, 0]
        cdef double *W = &self.half[0, 0]
        cdef double *g = &self.h[0]
        cdef double *S = &A[0, 0]
        cdef double *e
        cdef const double *x
        cdef const double *z
        cdef bint proper = True
        self.check(A, h, E, inverse, own)
        square("prior", prior, q)
        long_enough("sites", min(tau.shape[0], nu.shape[0]), self.n)
        with nogil:
            for j in range(self.J):
                for a in range(q):
                    g[a] = 0.0
                    for b in range(q):
                        D[a * q + b] = prior[a, b]
                    for k in range(d):
                        W[a * d + k] = 0.0
                for r in range(self.start[j], self.start[j + 1]):
                    i = self.order[r]
                    t, b_i, x, z = tau[i], nu[i], &self.X[i, 0], &self.Z[i, 0]
                    for a in range(q):
                        g[a] += b_i * z[a]
                        weighted = t * z[a]
                        for b in range(a + 1):
                            D[a * q + b] += weighted * z[b]
                        for k in range(d):
                            W[a * d + k] += weighted * x[k]
                    for k in range(d):
                        h[k] += b_i * x[k]
                        weighted = t * x[k]
                        if weighted != 0.0:
                            for u in range(k + 1):
                                S[k * d + u] += weighted * x[u]
                if not factorized(D, q):
                    proper = False
                    break
                # W <- L^-1 B', g <- L^-1 h, and inverse: L^-1, by rows
                for a in range(q):
                    logs += 2.0 * log(D[a * q + a])
                    for b in range(q):
                        inverse[j, a, b] = 1.0 if a == b else 0.0
                    for b in range(a):
                        t = D[a * q + b]
                        g[a] -= t * g[b]
                        for k in range(d):
                            W[a * d + k] -= t * W[b * d + k]
                        for k in range(b + 1):
                            inverse[j, a, k] -= t * inverse[j, b, k]
                    t = 1.0 / D[a * q + a]
                    g[a] *= t
                    for k in range(d):
                        W[a * d + k] *= t
                    for k in range(a + 1):
                        inverse[j, a, k] *= t
                    product += g[a] * g[a]
                    for k in range(d):
                        t = W[a * d + k]
                        h[k] -= t * g[a]
                        if t != 0.0:
                            for u in range(k + 1):
                                S[k * d + u] -= t * W[a * d + u]
                # E = L'^-1 W, and so on
                for a in range(q):
                    e = &E[j, a, 0]
                    own[j, a] = 0.0
                    for k in range(d):
                        e[k] = 0.0
                    for b in range(a, q):
                        t = inverse[j, b, a]
                        own[j, a] += t * g[b]
                        for k in range(d):
                            e[k] += t * W[b * d + k]
                for a in range(q):
                    for b in range(q):
                        D[a * q + b] = 0.0
                        for k in range(max(a, b), q):
                            D[a * q + b] += inverse[j, k, a] * inverse[j, k, b]
                for a in range(q):
                    for b in range(q):
                        inverse[j, a, b] = D[a * q + b]
            for k in range(d):
                for u in range(k):
                    S[u * d + k] = S[k * d + u]
        return (logs, product) if proper else None

    cdef void take(
        self, const double[:, ::1] V, const double[::1] common, const double[:, :, ::1] E,
        const double[:, :, ::1] inverse, const double[:, ::1] own, ptrdiff_t j, ptrdiff_t lane
    ) noexcept nogil:
        """Mean and covariance of the common weights and of level j. O(q d^2)"""
        cdef ptrdiff_t a, b, k, u, d = self.d, q = self.q, m = d + q
        cdef double *C = &self.C[lane, 0, 0]
        cdef double *mean = &self.mean[lane, 0]
        cdef double value
        for k in range(d):
            mean[k] = common[k]
            for u in range(d):
                C[k * m + u] = V[k, u]
        for a in range(q):
            value = own[j, a]
            for k in range(d):
                value -= E[j, a, k] * mean[k]
            mean[d + a] = value
            for k in range(d):
                value = 0.0
                for u in range(d):
                    value -= E[j, a, u] * C[u * m + k]
                C[(d + a) * m + k] = C[k * m + d + a] = value
            for b in range(a + 1):
                value = inverse[j, a, b]
                for k in range(d):
                    value -= C[(d + a) * m + k] * E[j, b, k]
                C[(d + a) * m + d + b] = C[(d + b) * m + d + a] = value

    cdef double project(self, ptrdiff_t i, ptrdiff_t lane, double *h) noexcept nogil:
        """Variance, and mean h, of the latent value of row i, whose level is in this lane."""
        cdef ptrdiff_t k, u, d = self.d, q = self.q, m = d + q
        cdef double *a = &self.row[0]
        cdef double *v = &self.along[lane, 0]
        cdef double *mean = &self.mean[lane, 0]
        cdef double *C = &self.C[lane, 0, 0]
        cdef double s = 0.0, value
        h[0] = 0.0
        for k in range(d):
            a[k] = self.X[i, k]
        for k in range(q):
            a[d + k] = self.Z[i, k]
        for k in range(m):
            v[k] = 0.0
        # rows of crossed groups are mostly zeros
        for u in range(m):
            value = a[u]
            if value != 0.0:
                h[0] += value * mean[u]
                for k in range(m):
                    v[k] += value * C[u * m + k]
        for u in range(m):
            s += a[u] * v[u]
        return s

    cdef void update(
        self, ptrdiff_t lane, double s, double h, double t, double b
    ) noexcept nogil:
        """Take the change (t, b) of a site into a lane, whose row was projected last."""
        cdef ptrdiff_t k, u, m = self.d + self.q
        cdef double *v = &self.along[lane, 0]
        cdef double *mean = &self.mean[lane, 0]
        cdef double *C = &self.C[lane, 0, 0]
        cdef double c, denominator = 1.0 + t * s, move = b - t * h
        self.moved = fmax(self.moved, move * move * s / denominator)
        self.moved = fmax(self.moved, t * s * t * s)
        for k in range(m):
            mean[k] += move / denominator * v[k]
            c = t / denominator * v[k]
            for u in range(m):
                C[k * m + u] -= c * v[u]

    cdef Status lanes(
        self, const double *y, const double *weight, ptrdiff_t first, ptrdiff_t last, double *tau,
        double *nu, double *scale
    ) noexcept nogil:
        """Fit the rows of levels that the lanes have, a row of each at a time."""
        cdef ptrdiff_t j, i, k, place, count = 1, step = 0, stride = self.stride
        cdef double h, s, t, b
        cdef double *new = &self.sites[0, 0]
        cdef Status status
        while True:
            count = 0
            for j in range(first, last):
                if self.start[j] + step >= self.start[j + 1]:
                    continue
                i = self.order[self.start[j] + step]
                s = self.project(i, j - first, &h)
                if not (isfinite(s) and isfinite(h)):
                    return NOT_FINITE
                self.core.work[0, count], self.core.work[1, count] = h, s
                self.which[count], self.lane[count] = i, j - first
                new[count], new[LANES + count], new[2 * LANES + count] = tau[i], nu[i], scale[i]
                if weight != NULL:
                    new[3 * LANES + count] = weight[i]
                for k in range(stride):
                    self.y[count, k] = y[i * stride + k]
                count += 1
            if count == 0:
                return OK
            status = self.core.batch(
                <blas_int> count, &self.core.work[0, 0], &self.core.work[1, 0], &self.y[0, 0],
                NULL if weight == NULL else new + 3 * LANES, new, new + LANES, new + 2 * LANES
            )
            if status == CALLBACK_FAILED:
                return status
            for place in range(count):
                i = self.which[place]
                h, s = self.core.work[0, place], self.core.work[1, place]
                t, b = new[place] - tau[i], new[LANES + place] - nu[i]
                if not SMALLEST < 1.0 + t * s < INFINITY:
                    self.n_refused += 1
                    continue
                tau[i], nu[i], scale[i] = new[place], new[LANES + place], new[2 * LANES + place]
                self.update(self.lane[place], s, h, t, b)
            step += 1

    def sweep(
        self, const double[:, ::1] y not None, const double[::1] weight, ptrdiff_t first,
        ptrdiff_t last, double[::1] tau not None, double[::1] nu not None,
        double[::1] scale not None, const double[:, ::1] V not None,
        const double[::1] common not None, const double[:, :, ::1] E not None,
        const double[:, :, ::1] inverse not None, const double[:, ::1] own not None,
    ):
        """Fit the rows of levels first to last - 1, each level one row after the other.

        V, common, E, inverse and own are what the sites before the sweep make, see build.
        O(4 (d + q)^2) a row.
        """
        cdef ptrdiff_t j, some
        cdef ptrdiff_t before = self.core.n_refused
        cdef bint weighted = weight is not None
        cdef Status status = OK
        self.core.moments.loss.check_responses(y, self.n)
        self.check(V, common, E, inverse, own)
        long_enough("sites", min(tau.shape[0], nu.shape[0], scale.shape[0]), self.n)
        if weighted:
            long_enough("weight", weight.shape[0], self.n)
        if not 0 <= first <= last <= self.J:
            raise ValueError("no such levels")
        if self.n == 0:
            return
        with nogil:
            while first < last and status == OK:
                some = min(first + self.count, last)
                for j in range(first, some):
                    self.take(V, common, E, inverse, own, j, j - first)
                status = self.lanes(
                    &y[0, 0], &weight[0] if weighted else NULL, first, some, &tau[0], &nu[0],
                    &scale[0]
                )
                first = some
        self.n_refused += self.core.n_refused - before
        if status == CALLBACK_FAILED:
            self.core.moments.loss.reraise()
        if status == NOT_FINITE:
            raise FloatingPointError(
                "a mean or variance of a site overflowed; scale the columns of X, or try damping "
                "or a power below 1"
            )

    def marginals(
        self, const double[:, ::1] V not None, const double[::1] common not None,
        const double[:, :, ::1] E not None, const double[:, :, ::1] inverse not None,
        const double[:, ::1] own not None, double[::1] h not None, double[::1] s not None,
    ):
        """Mean and variance of the latent values of all rows. O((d + q)^2) each."""
        cdef ptrdiff_t j, r, i
        self.check(V, common, E, inverse, own)
        long_enough("marginals", min(h.shape[0], s.shape[0]), self.n)
        with nogil:
            for j in range(self.J):
                self.take(V, common, E, inverse, own, j, 0)
                for r in range(self.start[j], self.start[j + 1]):
                    i = self.order[r]
                    s[i] = self.project(i, 0, &h[i])

"""EP within rows of several classes: probit factors Phi(z_j) under a Gaussian over z = a + u.

a are the differences of the latent value of the class of a row and those of the other classes, with
a full covariance, and u ~ N(0, 1) is common to them. Each factor gets a scalar site on z_j, whose
precision is never negative. Factors are fitted in turn, in rounds until the sites converge.
"""

import numpy as np

from libc.math cimport fabs, fmax, isfinite, log, sqrt

from epfast._core.cholesky cimport heed_signals
from epfast._core.loss cimport CoreLoss
from epfast._core.rows cimport long_enough
from epfast._core.vector cimport kernels

cdef extern from *:
    """
    #define NESTED_LEAST 1e-10      /* least share of a precision that a cavity keeps */
    """
    const double NESTED_LEAST

cdef enum:
    SEEN_EVERY = 256                # rows between two looks at signals


cdef class NestedRows:
    """Scratch of one thread for rows of so many factors."""

    cdef readonly ptrdiff_t count
    cdef CoreLoss probit
    cdef double[:, ::1] S                           # covariance of z
    cdef double[::1] center, column, scale

    def __init__(self, ptrdiff_t count):
        if count < 1:
            raise ValueError(f"{count} factors")
        self.count = count
        self.probit = CoreLoss.table("probit")
        self.S = np.empty((count, count))
        self.center, self.column, self.scale = np.empty((3, count))

    cdef inline void moved(self, ptrdiff_t j, double dt, double db, double size) noexcept nogil:
        """Add precision dt and shift db to z_j; size = 1 + dt S_jj."""
        cdef ptrdiff_t k = self.count, i, at
        cdef double share = (db - dt * self.center[j]) / size, less
        cdef double *column = &self.column[0]
        cdef double *center = &self.center[0]
        cdef double *row
        for i in range(k):
            column[i] = self.S[j, i]
        for i in range(k):
            center[i] += share * column[i]
        for i in range(k):
            row, less = &self.S[i, 0], dt / size * column[i]
            for at in range(k):
                row[at] -= less * column[at]

    cdef ptrdiff_t row(
        self, const double *mean, const double *V, double *tau, double *nu, ptrdiff_t rounds,
        double enough, double *own, double *value
    ) noexcept nogil:
        """Sites of a row, in place; how many factors were refused in the last round."""
        cdef ptrdiff_t k = self.count, i, j, refused = 0, _round
        cdef double logdet = 0.0, largest, s, h, rest, v, m, root, a, size, t, b, dt, db
        cdef double minus, slope, curvature, d, d2, total, shift
        for i in range(k):
            self.center[i] = mean[i]
            for j in range(k):
                self.S[i, j] = V[i * k + j] + 1.0
        for j in range(k):
            self.scale[j] = 0.0
            if tau[j] != 0.0 or nu[j] != 0.0:
                size = 1.0 + tau[j] * self.S[j, j]
                logdet += log(size)
                self.moved(j, tau[j], nu[j], size)
        for _round in range(rounds):
            largest, refused = 0.0, 0
            for j in range(k):
                s, h = self.S[j, j], self.center[j]
                rest = 1.0 - tau[j] * s
                if not rest > NESTED_LEAST:
                    refused += 1
                    continue
                v, m = s / rest, (h - s * nu[j]) / rest
                root = 1.0 / sqrt(1.0 + v)
                a = m * root
                kernels.loss(&self.probit.c, 1, &a, NULL, 0, &minus, &slope, &curvature)
                d, d2 = -slope * root, -curvature * root * root
                size = 1.0 + v * d2
                if not (size > 0.0 and isfinite(minus)):
                    refused += 1
                    continue
                t, b = -d2 / size, (d - m * d2) / size
                # the log of the site at 0, so that cavity times site integrates to Z
                total = 1.0 + t * v
                self.scale[j] = 0.5 * (log(total) - (v * b * b + 2.0 * m * b - t * m * m) / total)
                self.scale[j] -= minus
                dt, db = t - tau[j], b - nu[j]
                largest = fmax(largest, fmax(fabs(dt * s), fabs((db - dt * h) * sqrt(s))))
                size = 1.0 + dt * s
                logdet += log(size)
                self.moved(j, dt, db, size)
                tau[j], nu[j] = t, b
            if largest < enough:
                break
        total, shift, own[0], value[0] = 1.0, 0.0, 0.0, -0.5 * logdet
        for j in range(k):
            total += tau[j]
            shift += nu[j]
            own[0] += self.scale[j]
            value[0] += 0.5 * nu[j] * (self.center[j] + mean[j])
            value[0] -= 0.5 * tau[j] * mean[j] * self.center[j]
        value[0] += own[0]
        # u integrated out
        own[0] += 0.5 * (shift * shift / total - log(total))
        return refused

    def fit(
        self, const double[:, ::1] mean not None, const double[:, :, ::1] V not None,
        double[:, ::1] tau not None, double[:, ::1] nu not None, ptrdiff_t rounds, double enough,
        double[::1] own not None, double[::1] value not None,
    ):
        """New sites of rows, in place, from those that are there; at most so many rounds.

        mean (n, k) and V (n, k, k) are those of a without the sites; rounds end where no site moves
        by more than enough, in units of its marginal. own (n,) is the log of a site at a = 0, u
        integrated out; value (n,) the log of the integral of the row. Returns how many factors
        were refused in the last rounds.
        """
        cdef ptrdiff_t n = mean.shape[0], k = self.count, i, refused = 0
        if (
            V.shape[0] < n or tau.shape[0] < n or nu.shape[0] < n
            or not (mean.shape[1] == V.shape[1] == V.shape[2] == tau.shape[1] == nu.shape[1] == k)
        ):
            raise ValueError(f"mean, V, tau and nu are not of {n} rows and {k} factors")
        long_enough("own", own.shape[0], n)
        long_enough("value", value.shape[0], n)
        with nogil:
            for i in range(n):
                refused += self.row(
                    &mean[i, 0], &V[i, 0, 0], &tau[i, 0], &nu[i, 0], rounds, enough, &own[i],
                    &value[i]
                )
                if i % SEEN_EVERY == SEEN_EVERY - 1:
                    heed_signals()
        return refused

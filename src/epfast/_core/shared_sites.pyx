"""Shared sites (SEP, AEP, DSEP, DAEP): a site per group of rows, q = p0 prod_k g_k^N_k.

The M rows of a batch, all of group k, are fitted against one cavity q / g_k^a. Its precision
P - a G_k differs from the posterior's by a matrix of full rank. So a batch costs a Cholesky
factorisation, O(d^3), and a row of it O(d^2), in matrix products. Each fit is a rank-one site
(tau* x x', nu* x, scale*), and the group's site is set to their average,

    g_k <- g_k + (rho / N_k) sum_m (g*_m - g_k)        natural parameters and log scale

where a refused row has no term. A row of weight w counts as w copies of itself where w >= 1, each
with its factor t, and as one copy with the factor t^w below. Many copies that all change the site
at once overshoot. Those of a heavy row that is a batch of its own converge first: (tau*, nu*) is
the fit to the cavity without it, whose precision is that of

    B = P - (w + a (1 - w / N_k)) G_k    and    w (1 - a / N_k) tau* x x'
"""

import numpy as np

from libc.math cimport fmax, fmin, isfinite

from epfast._core.lapack cimport blas_int, daxpy, ddot, dgemm, dpotrf, dtrsm
from epfast._core.rows cimport in_range, long_enough, square
from epfast._core.site cimport HEAVY, fixed_site, new_site
from epfast._core.status cimport CALLBACK_FAILED, OK, Status
from epfast._core.tilted cimport TiltedMoments


cdef class SharedSweep:
    """The running batch in d dimensions, its rows taken q at a time.

    checked: whether a batch is undone that would make the posterior improper, for a Cholesky
    factorisation more. Without it this begins with the first site of negative precision, before
    which all sites are positive semidefinite and the posterior cannot be improper. n_refused: rows.
    """

    cdef TiltedMoments moments
    cdef ptrdiff_t d, q
    cdef double power, damping
    cdef readonly bint checked
    cdef bint running, improper
    cdef double[:, ::1] factor, fitted          # (d, d): cavity; sum of tau* x x', its C lower half
    cdef double[:, ::1] V                       # (q, d)
    cdef double[::1] half, fitted_shift         # (d,): L^-1 shift of the cavity; sum of nu* x
    cdef double fitted_scale, fitted_copies     # sum of scale*; copies of rows that were fitted
    cdef ptrdiff_t fitted_rows
    cdef readonly ptrdiff_t n_refused

    def __init__(
        self, TiltedMoments moments not None, ptrdiff_t d, ptrdiff_t q, double power,
        double damping, bint checked
    ):
        self.moments = moments
        self.d, self.q = d, q
        self.power, self.damping, self.checked = power, damping, checked
        self.factor, self.fitted, self.V = np.empty((d, d)), np.empty((d, d)), np.empty((q, d))
        self.half, self.fitted_shift = np.empty(d), np.empty(d)

    cdef void open(
        self, const double[:, ::1] G, const double[::1] g, const double[:, ::1] P,
        const double[::1] p
    ) noexcept nogil:
        """A new batch: its cavity, posterior (P, p) over site (G, g) to the power. O(d^3 / 3)."""
        cdef blas_int d = <blas_int> self.d, one = 1, info = 0
        cdef double unit = 1.0
        cdef ptrdiff_t i, j
        for i in range(self.d):
            for j in range(self.d):
                self.factor[i, j] = P[i, j] - self.power * G[i, j]
            self.half[i] = p[i] - self.power * g[i]
        dpotrf(b"L", &d, &self.factor[0, 0], &d, &info)
        self.improper = info != 0
        if not self.improper:
            dtrsm(
                b"L", b"L", b"N", b"N", &d, &one, &unit, &self.factor[0, 0], &d, &self.half[0], &d
            )
        self.fitted[:, :] = 0.0
        self.fitted_shift[:] = 0.0
        self.fitted_scale = self.fitted_copies = 0.0
        self.fitted_rows = 0
        self.running = True

    cdef Status settled(
        self, const double *x, const double *y, double w, double size, double mean,
        double variance, const double[:, ::1] G, const double[::1] g, const double[:, ::1] P,
        const double[::1] p, double *t, double *b, double *c, bint *refused
    ) noexcept nogil:
        """The site per copy of a heavy row, x, from the explicit one in (t, b, c). O(d^3 / 3)

        The cavity of the batch is lost. Where B is improper the site stays as it is.
        """
        cdef blas_int d = <blas_int> self.d, one = 1, info = 0
        cdef double a = self.power, k = 1.0 + w * (1.0 - a / size) / a, unit = 1.0
        cdef double share = w + a * (1.0 - w / size), spread, center
        cdef ptrdiff_t i, j
        cdef Status status
        for i in range(self.d):
            for j in range(self.d):
                self.factor[i, j] = P[i, j] - share * G[i, j]
            self.half[i] = p[i] - share * g[i]
            self.V[0, i] = x[i]
        dpotrf(b"L", &d, &self.factor[0, 0], &d, &info)
        if info != 0:
            return OK
        dtrsm(b"L", b"L", b"N", b"N", &d, &one, &unit, &self.factor[0, 0], &d, &self.half[0], &d)
        dtrsm(b"L", b"L", b"N", b"N", &d, &one, &unit, &self.factor[0, 0], &d, &self.V[0, 0], &d)
        spread = ddot(&d, &self.V[0, 0], &one, &self.V[0, 0], &one)
        center = ddot(&d, &self.V[0, 0], &one, &self.half[0], &one)
        if not (spread > 0.0 and isfinite(spread) and isfinite(center)):
            return OK
        status = fixed_site(
            self.moments, y, 1.0 / spread, center / spread, k, a, mean, 1.0 / variance, t, b, c,
            refused
        )
        t[0], b[0], c[0] = t[0] / (k * a), b[0] / (k * a), c[0] / (k * a)
        return status

    cdef Status add(
        self, blas_int q, const double[:, ::1] A, const double *y, const double *weight,
        bint alone, double size, const double[:, ::1] G, const double[::1] g,
        const double[:, ::1] P, const double[::1] p
    ) noexcept nogil:
        """Fit q rows to the cavity of the batch. With V = L^-1 A', variances are |v|^2. O(d^2 q)

        alone: the row is the batch.
        """
        cdef blas_int d = <blas_int> self.d, one = 1
        cdef double unit = 1.0, mean, variance, t = 0.0, b = 0.0, c = 0.0, copies = 1.0, w = 1.0
        cdef bint refused = False
        cdef ptrdiff_t i, j, stride = self.moments.loss.stride
        cdef Status status
        if self.improper:
            for j in range(q):
                self.n_refused += weight == NULL or weight[j] > 0.0
            return OK
        self.V[:q, :] = A[:q, :]
        dtrsm(
            b"L", b"L", b"N", b"N", &d, &q, &unit, &self.factor[0, 0], &d, &self.V[0, 0], &d
        )
        for j in range(q):
            if weight != NULL and weight[j] == 0.0:
                self.V[j, :] = 0.0
                continue
            variance = ddot(&d, &self.V[j, 0], &one, &self.V[j, 0], &one)
            mean = ddot(&d, &self.V[j, 0], &one, &self.half[0], &one)
            if weight != NULL:
                copies, w = fmax(1.0, weight[j]), fmin(1.0, weight[j])
            # the marginal is the cavity's already, so there is no site to take out
            status = new_site(
                self.moments, y + j * stride, mean, variance, self.power, 1.0, w, 0.0, 0.0, &t, &b,
                &c, &refused
            )
            if alone and copies > HEAVY and variance > 0.0 and status == OK and not refused:
                status = self.settled(
                    &A[0, 0], y, copies, size, mean, variance, G, g, P, p, &t, &b, &c, &refused
                )
            t, b, c = copies * t, copies * b, copies * c
            if status == CALLBACK_FAILED:
                return status
            if refused:
                self.n_refused += 1
                self.V[j, :] = 0.0
                continue
            if t < 0.0:
                self.checked = True
            for i in range(self.d):
                self.V[j, i] = t * A[j, i]
            daxpy(&d, &b, <double *> &A[j, 0], &one, &self.fitted_shift[0], &one)
            self.fitted_scale += c
            self.fitted_copies += copies
            self.fitted_rows += 1
        dgemm(
            b"N", b"T", &d, &d, &q, &unit, &self.V[0, 0], &d, <double *> &A[0, 0], &d, &unit,
            &self.fitted[0, 0], &d
        )
        return OK

    cdef void close(
        self, double[:, ::1] G, double[::1] g, double *scale, double size, double[:, ::1] P,
        double[::1] p
    ) noexcept nogil:
        """Move the group's site to the fitted ones, the posterior with it. O(d^2)"""
        cdef blas_int d = <blas_int> self.d, info = 0
        cdef double copies = self.fitted_copies, rate = self.damping / size, change
        cdef ptrdiff_t i, j
        self.running = False
        if copies == 0.0:
            return
        if self.checked:
            for i in range(self.d):
                for j in range(i + 1):
                    change = P[i, j] + self.damping * (self.fitted[i, j] - copies * G[i, j])
                    self.factor[i, j] = self.factor[j, i] = change
            dpotrf(b"L", &d, &self.factor[0, 0], &d, &info)
            if info != 0:
                self.n_refused += self.fitted_rows
                return
        for i in range(self.d):
            for j in range(i + 1):
                change = self.fitted[i, j] - copies * G[i, j]
                G[i, j] += rate * change
                P[i, j] += self.damping * change
                G[j, i], P[j, i] = G[i, j], P[i, j]
            change = self.fitted_shift[i] - copies * g[i]
            g[i] += rate * change
            p[i] += self.damping * change
        scale[0] += rate * (self.fitted_scale - copies * scale[0])

    def sweep(
        self, const double[:, ::1] A, const double[:, ::1] y not None, const double[::1] weight,
        const ptrdiff_t[::1] group, const unsigned char[::1] last,
        double[:, :, ::1] G, double[:, ::1] g, double[::1] scale, const double[::1] sizes,
        double[:, ::1] P, double[::1] p,
    ):
        """Take the rows of A in order, each of a group; last marks the last row of a batch.

        y (n, width) holds the responses of the rows, (n, 1) their labels for a loss of the margin.
        A batch may go on in the next call; weight may be None: all 1. sizes: copies of rows per
        group. Sites (G, g, scale) and posterior (P, p) are updated in place.
        """
        cdef ptrdiff_t first = 0, stop, k, n = A.shape[0]
        cdef bint alone, weighted = weight is not None
        cdef Status status = OK
        self.moments.loss.check_responses(y, n)
        square("P", P, self.d)
        long_enough("p", min(A.shape[1], G.shape[1], G.shape[2], g.shape[1], p.shape[0]), self.d)
        long_enough("rows", min(group.shape[0], last.shape[0]), n)
        if weighted:
            long_enough("weight", weight.shape[0], n)
        in_range("group", group, min(G.shape[0], g.shape[0], scale.shape[0], sizes.shape[0]))
        with nogil:
            while first < n:
                k = group[first]
                alone = not self.running and last[first]
                if not self.running:
                    self.open(G[k], g[k], P, p)
                stop = first + 1
                while stop < n and stop - first < self.q and not last[stop - 1]:
                    stop += 1
                status = self.add(
                    <blas_int> (stop - first), A[first:], &y[first, 0],
                    &weight[first] if weighted else NULL, alone, sizes[k], G[k], g[k], P, p
                )
                if status == CALLBACK_FAILED:
                    break
                if last[stop - 1]:
                    self.close(G[k], g[k], &scale[k], sizes[k], P, p)
                first = stop
        if status == CALLBACK_FAILED:
            self.moments.loss.reraise()

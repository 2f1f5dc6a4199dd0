"""Laplace and quick Laplace fits of minibatch factors with a full covariance (Smola et al. 2003).

A factor t(theta) = prod_k exp(-beta w_k l(h_k; y_k)), h_k = a_k.theta over its rows, is expanded to
second order in each h_k: at the mode of cavity times t^a (Laplace), found by Newton, or at the mean
of the cavity (quick Laplace). The site is a product of one Gaussian per row,

    log g_k(h) = scale_k + nu_k h - tau_k h^2 / 2,    tau_k = beta w_k l'',  nu_k = slope + tau_k h

so the full Hessian of the factor, sum_k tau_k a_k a_k', is stored as two numbers per row.
"""

import numpy as np

from libc.math cimport fabs, fmax, isfinite

from epfast._core.lapack cimport blas_int, ddot, dpotrf, dpotrs, dsymv
from epfast._core.loss cimport CoreLoss
from epfast._core.rows cimport Rows, in_range, long_enough, square
from epfast._core.status cimport CALLBACK_FAILED, NO_FIT, OK, Status
from epfast._core.vector cimport kernels

cdef int MAX_HALVINGS = 40
cdef double BESIDE = 1e-6           # from a kink, in margins: Newton ends nearer than that


cdef class LaplaceSweep:
    """Scratch for factors of up to s rows in d dimensions."""

    cdef CoreLoss loss
    cdef ptrdiff_t d
    cdef double power, damping, tolerance
    cdef int max_iterations
    cdef bint newton, slope_curvature, half_sums
    cdef double[:, ::1] cavity, hessian, V      # V: (64, d), scratch of products
    cdef double[::1] center, theta, step, trial, gradient
    cdef double[:, ::1] rows                    # (9, s): see fit
    cdef ptrdiff_t first, s                     # the rows of the factor at hand
    cdef readonly ptrdiff_t n_failed            # factors whose fit failed, or was refused

    def __init__(
        self, CoreLoss loss not None, ptrdiff_t d, ptrdiff_t s, double power, double damping,
        bint newton, bint slope_curvature, double tolerance, int max_iterations,
        bint half_sums=False,
    ):
        self.loss = loss
        self.d = d
        self.power, self.damping = power, damping
        self.newton, self.slope_curvature, self.half_sums = newton, slope_curvature, half_sums
        self.tolerance, self.max_iterations = tolerance, max_iterations
        self.cavity, self.hessian = np.empty((d, d)), np.empty((d, d))
        self.V, self.rows = np.empty((min(64, s), d)), np.empty((9, s))
        self.center, self.theta, self.step = np.empty(d), np.empty(d), np.empty(d)
        self.trial, self.gradient = np.empty(d), np.empty(d)

    cdef void gram(
        self, Rows A, double scale, const double *weight, double[:, ::1] C
    ) noexcept nogil:
        """C <- C + scale sum_k weight_k a_k a_k', lower triangle by columns."""
        cdef double[64] part
        cdef ptrdiff_t done = 0, q, k
        while done < self.s:
            q = min(<ptrdiff_t> self.V.shape[0], self.s - done)
            for k in range(q):
                part[k] = scale * weight[done + k]
            A.add_gram(self.first + done, <blas_int> q, part, &self.V[0, 0], &C[0, 0])
            done += q

    cdef Status derivatives(
        self, Rows A, const double *y, const double *weight, double *theta, double *value,
        double beside=0.0
    ) noexcept nogil:
        """At theta: value[0] = sum_k w_k l_k; rows 0 to 3: h, w l, w dl/dh, w d2l/dh2.

        beside: added to each h, in units of the larger of 1 and its size.
        """
        cdef double *h = &self.rows[0, 0]
        cdef double *points = &self.rows[4, 0]
        cdef bint by_margin = self.loss.c.width == 0
        cdef double w
        cdef ptrdiff_t k
        A.times_vector(self.first, <blas_int> self.s, theta, h)
        for k in range(self.s):
            points[k] = h[k] + beside * fmax(1.0, fabs(h[k]))
        if self.loss.shifted:
            self.loss.to_points(self.s, y, points)
        for k in range(self.s):
            if by_margin and not self.loss.shifted:
                points[k] *= y[k]
            if not isfinite(points[k]):
                return NO_FIT
        if kernels.loss(
            &self.loss.c, self.s, points, y if not by_margin else NULL, self.loss.stride,
            &self.rows[1, 0], &self.rows[2, 0], &self.rows[3, 0]
        ) != 0:
            return CALLBACK_FAILED
        value[0] = 0.0
        for k in range(self.s):
            w = 1.0 if weight == NULL else weight[k]
            if self.slope_curvature:
                self.rows[3, k] = fabs(self.rows[2, k])
            if w == 0.0:                    # not 0 times infinity
                self.rows[1, k] = self.rows[2, k] = self.rows[3, k] = 0.0
            self.rows[1, k] *= w
            self.rows[2, k] *= w * y[k * self.loss.stride] if by_margin else w
            self.rows[3, k] *= w
            value[0] += self.rows[1, k]
        return OK if isfinite(value[0]) else NO_FIT

    cdef Status newton_step(self, Rows A, double beta, double *decrement) noexcept nogil:
        """step = -H^-1 gradient of the negative log of cavity times factor; O(s d^2 + d^3)."""
        cdef blas_int d = <blas_int> self.d, one = 1, info = 0
        cdef double unit = 1.0, minus = -1.0, zero = 0.0
        cdef ptrdiff_t i
        for i in range(self.d):
            self.step[i] = self.theta[i] - self.center[i]
        dsymv(
            b"L", &d, &unit, &self.cavity[0, 0], &d, &self.step[0], &one, &zero,
            &self.gradient[0], &one
        )
        for i in range(self.s):
            self.rows[5, i] = beta * self.rows[2, i]
        A.add_combination(self.first, <blas_int> self.s, &self.rows[5, 0], &self.gradient[0])
        self.hessian[:, :] = self.cavity
        self.gram(A, beta, &self.rows[3, 0], self.hessian)
        dpotrf(b"L", &d, &self.hessian[0, 0], &d, &info)
        if info != 0:
            return NO_FIT
        for i in range(self.d):
            self.step[i] = minus * self.gradient[i]
        dpotrs(b"L", &d, &one, &self.hessian[0, 0], &d, &self.step[0], &d, &info)
        decrement[0] = -ddot(&d, &self.gradient[0], &one, &self.step[0], &one)
        return OK if isfinite(decrement[0]) else NO_FIT

    cdef double distance(self, double *theta) noexcept nogil:
        """(theta - center)' cavity (theta - center) / 2"""
        cdef blas_int d = <blas_int> self.d, one = 1
        cdef double unit = 1.0, zero = 0.0
        cdef ptrdiff_t i
        # gradient serves as scratch: newton_step writes it before it is read
        for i in range(self.d):
            self.step[i] = theta[i] - self.center[i]
        dsymv(
            b"L", &d, &unit, &self.cavity[0, 0], &d, &self.step[0], &one, &zero,
            &self.gradient[0], &one
        )
        return 0.5 * ddot(&d, &self.step[0], &one, &self.gradient[0], &one)

    cdef Status mode(self, Rows A, const double *y, const double *weight) noexcept nogil:
        """theta <- argmax of cavity times t^power by Newton with step halving, from the center."""
        cdef double beta = self.loss.c.beta * self.power
        cdef double value = 0.0, objective, new, decrement = 0.0, t
        cdef Status status
        cdef ptrdiff_t i
        cdef int _iteration, _halving
        cdef double[::1] move = self.trial
        status = self.derivatives(A, y, weight, &self.theta[0], &value)
        if status != OK:
            return status
        objective = beta * value + self.distance(&self.theta[0])
        for _iteration in range(self.max_iterations):
            if self.loss.heed() != OK:
                return CALLBACK_FAILED
            status = self.newton_step(A, beta, &decrement)
            if status != OK:
                return status
            move[:] = self.step
            t = 1.0
            for _halving in range(MAX_HALVINGS):
                for i in range(self.d):
                    self.theta[i] += t * move[i]
                status = self.derivatives(A, y, weight, &self.theta[0], &value)
                if status == CALLBACK_FAILED:
                    return status
                new = beta * value + self.distance(&self.theta[0])
                if status == OK and (
                    new <= objective - 1e-4 * t * decrement
                    or decrement <= 1e-14 * fabs(objective)
                ):
                    break
                for i in range(self.d):
                    self.theta[i] -= t * move[i]
                t *= 0.5
            else:
                # no descent left: at a kink, or at the limit of rounding
                return self.derivatives(A, y, weight, &self.theta[0], &value)
            objective = new
            # the decrement is the squared step in standard deviations; convergence is quadratic
            if t == 1.0 and decrement <= self.tolerance * self.tolerance:
                return OK
        return NO_FIT

    cdef Status mean_slopes(self, Rows A, const double *y, const double *weight) noexcept nogil:
        """Derivatives at theta, with the half sums of the slopes on both sides."""
        cdef Status status
        cdef double value = 0.0
        cdef ptrdiff_t k
        cdef int side
        for side in range(-1, 2, 2):
            status = self.derivatives(A, y, weight, &self.theta[0], &value, side * BESIDE)
            if status != OK:
                return status
            for k in range(self.s):
                if side < 0:
                    self.rows[5, k] = 0.0
                self.rows[5, k] += 0.5 * self.rows[2, k]
        status = self.derivatives(A, y, weight, &self.theta[0], &value)
        for k in range(self.s):
            self.rows[2, k] = self.rows[5, k]
            if self.slope_curvature:
                self.rows[3, k] = fabs(self.rows[2, k])
        return status

    cdef Status fit(
        self, Rows A, const double *y, const double *weight, const double[:, ::1] P,
        const double[::1] p, const double *tau, const double *nu
    ) noexcept nogil:
        """New sites in rows 6 (tau), 7 (nu) and 8 (scale), from posterior (P, p) and old sites."""
        cdef blas_int d = <blas_int> self.d, one = 1, info = 0
        cdef double value = 0.0, beta = self.loss.c.beta, h, slope
        cdef Status status
        cdef ptrdiff_t k
        self.cavity[:, :] = P
        self.gram(A, -self.power, tau, self.cavity)
        for k in range(self.s):
            self.rows[5, k] = -self.power * nu[k]
        self.center[:] = p
        A.add_combination(self.first, <blas_int> self.s, &self.rows[5, 0], &self.center[0])
        self.hessian[:, :] = self.cavity
        dpotrf(b"L", &d, &self.hessian[0, 0], &d, &info)
        if info != 0:
            return NO_FIT
        dpotrs(b"L", &d, &one, &self.hessian[0, 0], &d, &self.center[0], &d, &info)
        self.theta[:] = self.center
        if self.newton:
            status = self.mode(A, y, weight)
        else:
            status = self.derivatives(A, y, weight, &self.theta[0], &value)
        if status == OK and self.newton and self.half_sums:
            status = self.mean_slopes(A, y, weight)
        if status != OK:
            return status
        for k in range(self.s):
            h, slope = self.rows[0, k], -beta * self.rows[2, k]
            self.rows[6, k] = beta * self.rows[3, k]
            self.rows[7, k] = slope + self.rows[6, k] * h
            self.rows[8, k] = -beta * self.rows[1, k] - h * (slope + 0.5 * self.rows[6, k] * h)
            if not (isfinite(self.rows[6, k]) and isfinite(self.rows[7, k])):
                return NO_FIT
        return OK

    def sweep(
        self, Rows A not None, const double[:, ::1] y not None, const double[::1] weight,
        const ptrdiff_t[::1] sizes, const double[:, ::1] P, const double[::1] p, double[::1] tau,
        double[::1] nu, double[::1] scale, double[:, ::1] new_P, double[::1] new_p,
    ):
        """Refit factor after factor, each against (P, p) without its sites.

        The rows of A belong to factors of the given sizes, in order; y (n, width) holds their
        responses, (n, 1) their labels for a loss of the margin. The sites are updated in
        place, and what they changed is added to (new_P, new_p), which may be (P, p) themselves
        (sequential order). Only the lower triangles by columns hold. A change that would make new_P
        improper is refused.
        """
        cdef ptrdiff_t i, at = 0
        cdef bint weighted = weight is not None
        cdef Status status = OK
        self.loss.check_responses(y, A.n)
        square("P", P, self.d)
        square("new_P", new_P, self.d)
        long_enough("p", min(p.shape[0], new_p.shape[0], A.d), self.d)
        long_enough("sites", min(tau.shape[0], nu.shape[0], scale.shape[0]), A.n)
        in_range("sizes", sizes, self.rows.shape[1] + 1)
        long_enough("rows of A", A.n, np.sum(sizes))
        if weighted:
            long_enough("weight", weight.shape[0], A.n)
        with nogil:
            for i in range(sizes.shape[0]):
                if self.loss.heed() != OK:
                    status = CALLBACK_FAILED
                    break
                self.first, self.s = at, sizes[i]
                status = self.update(
                    A, &y[at, 0], &weight[at] if weighted else NULL, P, p, &tau[at], &nu[at],
                    &scale[at], new_P, new_p
                )
                if status == CALLBACK_FAILED:
                    break
                if status == NO_FIT:
                    self.n_failed += 1
                at += self.s
        if status == CALLBACK_FAILED:
            self.loss.reraise()

    cdef Status update(
        self, Rows A, const double *y, const double *weight, const double[:, ::1] P,
        const double[::1] p, double *tau, double *nu, double *scale, double[:, ::1] new_P,
        double[::1] new_p
    ) noexcept nogil:
        """One factor of sweep."""
        cdef blas_int d = <blas_int> self.d, info = 0
        cdef bint negative = False
        cdef Status status = self.fit(A, y, weight, P, p, tau, nu)
        cdef ptrdiff_t k
        if status != OK:
            return status
        for k in range(self.s):
            self.rows[6, k] = self.damping * (self.rows[6, k] - tau[k])
            self.rows[7, k] = self.damping * (self.rows[7, k] - nu[k])
            negative = negative or self.rows[6, k] < 0.0
        self.hessian[:, :] = new_P
        self.gram(A, 1.0, &self.rows[6, 0], self.hessian)
        if negative:
            self.cavity[:, :] = self.hessian
            dpotrf(b"L", &d, &self.cavity[0, 0], &d, &info)
            if info != 0:
                return NO_FIT
        new_P[:, :] = self.hessian
        A.add_combination(self.first, <blas_int> self.s, &self.rows[7, 0], &new_p[0])
        for k in range(self.s):
            tau[k] += self.rows[6, k]
            nu[k] += self.rows[7, k]
            scale[k] += self.damping * (self.rows[8, k] - scale[k])
        return OK

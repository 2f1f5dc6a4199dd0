"""Gaussian fits of minibatch factors with a diagonal cavity, and the sweep over them (math: guide).

A factor is t(theta) = exp(-beta sum_k l(m_k)) with margins m_k = y_k x_k.theta over the rows of a
minibatch; its cavity is N(mu, diag v). Every scheme fits

    log g(theta) = c + sum_j [ b_j (theta_j - mu_j) - tau_j (theta_j - mu_j)^2 / 2 ]

and the sweep turns it into a site about the origin (precision tau, shift nu = b + tau mu).

    s rows   d columns   z points of a general rule   p monomials
"""

import numpy as np

from libc.math cimport NAN, exp, fabs, isfinite, log, sqrt

from epfast._core.lapack cimport (
    blas_int, ddot, dgemm, dgemv, dpotrf, dpotrs, dsyrk,
)
from epfast._core.loss cimport CoreLoss, epf_pairs_work, kernels
from epfast._core.tilted cimport LOSS_FAILED, Moments, Trouble
from epfast._core.tilted cimport NONE as INTEGRATED

SCHEMES = {
    "laplace": LAPLACE,
    "quick_laplace": QUICK_LAPLACE,
    "quadrature": QUADRATURE,
    "variational": VARIATIONAL,
    "variational_rule": VARIATIONAL_RULE,
    "scalar": SCALAR,
}
SITE_RULES = {"nonnegative": NONNEGATIVE, "keep": KEEP, "floor": FLOOR}

cdef double FLOOR_SHARE = -0.9
cdef int MAX_HALVINGS = 40
cdef int MAX_NEWTON = 200
cdef double UNDETERMINED = 1e-9         # relative error of a fit that counts as none

cdef enum:
    POINT_BLOCK = 64

ctypedef fused real:
    float
    double


# ---- Newton-Cholesky fit of a log-quadratic function to any rule (Roche 2016, eq. 10-11) ----

def monomials(const double[:, ::1] points, bint full):
    """The basis at standardised points, (z, p): 1, t_j, (t_j^2 - 1) / sqrt 2 and, if full, t_i t_j.

    Hermite polynomials: orthonormal under the standard normal, so that the Hessian of a good rule
    is near the identity.
    """
    t = np.asarray(points)
    columns = [np.ones((t.shape[0], 1)), t, (t * t - 1.0) / np.sqrt(2.0)]
    if full:
        i, j = np.triu_indices(t.shape[1], 1)
        columns.append(t[:, i] * t[:, j])
    return np.ascontiguousarray(np.hstack(columns))


cdef double rule_loss(
    ptrdiff_t z, const double *weight, const double *f, const double *u
) noexcept nogil:
    """sum_i w_i (exp(u_i) - f_i u_i); infinite where exp overflows."""
    cdef double total = 0.0
    cdef ptrdiff_t i
    for i in range(z):
        total += weight[i] * (exp(u[i]) - f[i] * u[i])
    return total


cdef int solve_spd(blas_int n, double *a, double *rhs) noexcept nogil:
    """rhs <- a^-1 rhs for a symmetric a (lower triangle, destroyed); a ridge if it is singular."""
    cdef blas_int info = 0, one = 1, i
    cdef double ridge = 0.0
    for i in range(n):
        ridge = max(ridge, a[i * n + i])
    ridge *= 1e-15 * n
    for i in range(n):
        a[i * n + i] += ridge
    dpotrf(b"L", &n, a, &n, &info)
    if info == 0:
        dpotrs(b"L", &n, &one, a, &n, rhs, &n, &info)
    return info


cdef int newton_cholesky(
    blas_int z, blas_int p, const double *basis, const double *weight, const double *log_f,
    bint flat, double *alpha, double *work
) noexcept nogil:
    """Minimise sum_i w_i [exp(alpha.phi_i) - f_i alpha.phi_i] over alpha; f = exp(log_f).

    basis is (z, p) by rows. f is scaled by its maximum, so that nothing overflows; the start is the
    weighted least-squares fit of log f (flat: a constant); each Newton step is halved until the
    strictly convex loss falls. O(z p^2 + p^3) per step. work: z (p + 5) + p (p + 2).
    """
    cdef double *scaled = work
    cdef double *f = scaled + z * p
    cdef double *u = f + z
    cdef double *trial = u + z
    cdef double *direction = trial + z
    cdef double *residual = direction + z
    cdef double *hessian = residual + z
    cdef double *step = hessian + p * p
    cdef double *gradient = step + p
    cdef double one = 1.0, zero = 0.0, top = log_f[0], root, total, mass, loss, new, t, descent
    cdef blas_int inc = 1
    cdef ptrdiff_t i, j
    cdef int _iteration, _halving

    for i in range(z):
        top = max(top, log_f[i])
    if not isfinite(top):
        return 1
    total = mass = 0.0
    for i in range(z):
        f[i] = exp(log_f[i] - top)
        total += weight[i]
        mass += weight[i] * f[i]
    for j in range(p):
        alpha[j] = 0.0
    if flat:
        alpha[0] = log(mass / total)
    else:
        # weights w f, and a little of w so that every point counts
        for i in range(z):
            root = sqrt(weight[i] * (f[i] + 1e-6))
            residual[i] = root * max(log_f[i] - top, -745.0)
            for j in range(p):
                scaled[i * p + j] = root * basis[i * p + j]
        dsyrk(b"L", b"N", &p, &z, &one, scaled, &p, &zero, hessian, &p)
        dgemv(b"N", &p, &z, &one, scaled, &p, residual, &inc, &zero, alpha, &inc)
        if solve_spd(p, hessian, alpha) != 0:
            return 1
    dgemv(b"T", &p, &z, &one, <double *> basis, &p, alpha, &inc, &zero, u, &inc)
    loss = rule_loss(z, weight, f, u)
    if not isfinite(loss):
        for j in range(p):
            alpha[j] = 0.0
        alpha[0] = log(mass / total)
        for i in range(z):
            u[i] = alpha[0]
        loss = rule_loss(z, weight, f, u)

    for _iteration in range(MAX_NEWTON):
        for i in range(z):
            residual[i] = weight[i] * (f[i] - exp(u[i]))
            root = sqrt(weight[i] * exp(u[i]))
            for j in range(p):
                scaled[i * p + j] = root * basis[i * p + j]
        dgemv(b"N", &p, &z, &one, <double *> basis, &p, residual, &inc, &zero, gradient, &inc)
        dsyrk(b"L", b"N", &p, &z, &one, scaled, &p, &zero, hessian, &p)
        for j in range(p):
            step[j] = gradient[j]
        if solve_spd(p, hessian, step) != 0:
            return 1
        descent = ddot(&p, gradient, &inc, step, &inc)      # Newton decrement, squared
        if not isfinite(descent):
            return 1
        dgemv(b"T", &p, &z, &one, <double *> basis, &p, step, &inc, &zero, direction, &inc)
        t = 1.0
        for _halving in range(MAX_HALVINGS):
            for i in range(z):
                trial[i] = u[i] + t * direction[i]
            new = rule_loss(z, weight, f, trial)
            if new <= loss - 1e-4 * t * descent or descent <= 1e-14 * fabs(loss):
                break
            t *= 0.5
        else:
            if descent > 1e-10 * fabs(loss):
                return 1
            break
        for j in range(p):
            alpha[j] += t * step[j]
        for i in range(z):
            u[i] = trial[i]
        loss = new
        # quadratic convergence: the error left is of the order of the last decrement
        if descent <= 1e-26 * total:
            break
    else:
        if descent > 1e-16 * total:
            return 1
    if flat:
        # the factor of the Hessian tells whether the rounding of the gradient, eps times its mass,
        # moves the solution: values of f far below the largest do not pin it down
        root = hessian[0]
        for j in range(p):
            root = min(root, hessian[j * p + j])
        if 1e-16 * mass > UNDETERMINED * root * root:
            return 1
    alpha[0] += top
    return 0


def fit_rule(
    const double[:, ::1] basis, const double[::1] weights, const double[::1] log_values, bint flat
):
    """Coefficients of the fit in the given basis, (p,); None where Newton does not converge."""
    cdef ptrdiff_t z = basis.shape[0], p = basis.shape[1]
    alpha = np.empty(p)
    cdef double[::1] a = alpha
    cdef double[::1] work = np.empty(z * (p + 5) + p * (p + 2))
    cdef int failed
    with nogil:
        failed = newton_cholesky(
            z, p, &basis[0, 0], &weights[0], &log_values[0], flat, &a[0], &work[0]
        )
    return None if failed else alpha


# ---- one factor ----

cdef class Factors:
    """A scheme with its numbers and its scratch: fits factors one by one, or sweeps over many.

    The arguments are checked by the callers (linear.py, backend.py).
    """

    def __init__(
        self, CoreLoss loss not None, str scheme, ptrdiff_t d, ptrdiff_t max_rows, *,
        double beta=1.0, double gamma=0.0, double power=1.0, double damping=1.0,
        double tolerance=1e-5, int max_iterations=50, bint slope_curvature=False,
        str site_rule="nonnegative", points=None, weights=None, bint flat_start=False,
        Moments moments=None,
    ):
        cdef ptrdiff_t z, p
        self.loss = loss
        self.moments = moments
        self.scheme = SCHEMES[scheme]
        self.site_rule = SITE_RULES[site_rule]
        self.d, self.max_rows = d, max_rows
        self.beta, self.gamma, self.power, self.damping = beta, gamma, power, damping
        self.tolerance, self.max_iterations = tolerance, max_iterations
        self.slope_curvature = slope_curvature
        self.flat_start = flat_start

        self.row_scratch = np.zeros(6 * max_rows)
        self.m = &self.row_scratch[0]
        self.value = self.m + max_rows
        self.slope = self.value + max_rows
        self.curvature = self.slope + max_rows
        self.trial = self.curvature + max_rows
        self.row_a = self.trial + max_rows
        self.column_scratch = np.zeros(8 * d)
        self.mu = &self.column_scratch[0]
        self.v = self.mu + d
        self.b = self.v + d
        self.tau = self.b + d
        self.step = self.tau + d
        self.column_a = self.step + d
        self.column_b = self.column_a + d
        self.theta = self.column_b + d
        self.packed = np.empty(1)
        if self.scheme == LAPLACE:
            p = min(d, max_rows)
            # scaled rows, Hessian in the smaller of the two spaces and its factor
            self.hessian = np.empty(max_rows * d + 2 * p * p)
        elif self.scheme in (QUADRATURE, VARIATIONAL):
            self.scratch = np.empty(max(1, epf_pairs_work(&loss.c, max_rows, d)))
        elif self.scheme == VARIATIONAL_RULE:
            self.points = points
            self.weights = weights
            self.basis = monomials(points, False)
            z, p = self.basis.shape[0], self.basis.shape[1]
            self.alpha = np.empty(p)
            self.newton_work = np.empty(z * (p + 5) + p * (p + 2))
            self.point_values = np.empty(z)
            # scaled rows, then margins and values at a block of points
            self.scratch = np.empty(max_rows * (d + 2 * POINT_BLOCK))

    # -- the schemes; all O(s d) or dearer as said --

    cdef Outcome fit(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y, double *c
    ) noexcept nogil:
        """From mu and v: b and tau, and c = log g(mu). Of t^power, divided by the power again."""
        cdef double beta = self.beta * self.power
        cdef Outcome outcome
        cdef ptrdiff_t k, j
        kernels.margins(s, self.d, x, ld, y, self.mu, self.m)
        for k in range(s):
            if not isfinite(self.m[k]):
                self.bad_row = k
                return NOT_FINITE
        if self.scheme == VARIATIONAL:
            outcome = self.variational(s, x, ld, y, beta, c)
        elif self.scheme == QUADRATURE:
            outcome = self.quadrature(s, x, ld, y, beta, c)
        elif self.scheme == QUICK_LAPLACE:
            outcome = self.expand(s, x, ld, y, beta, c)
        elif self.scheme == LAPLACE:
            outcome = self.laplace(s, x, ld, y, beta, c)
        elif self.scheme == SCALAR:
            outcome = self.scalar(x, 1.0 if y == NULL else y[0], c)
        else:
            outcome = self.variational_rule(s, x, ld, y, beta, c)
        if outcome == FITTED and self.power != 1.0:
            c[0] /= self.power
            for j in range(self.d):
                self.b[j] /= self.power
                self.tau[j] /= self.power
        return outcome

    cdef Outcome scalar(self, const double *x, double y, double *c) noexcept nogil:
        """One row: from the triple at the cavity of y x.theta, the moments of each theta_j.

        mean_j = mu_j + v_j a_j dlZ, variance_j = v_j (1 + v_j a_j^2 d2lZ), a = y x. c makes the
        integral of the fit over the cavity Z.
        """
        cdef double spread = 0.0, a, rest, lZ = 0.0, dlZ = 0.0, d2lZ = 0.0
        cdef Trouble trouble
        cdef ptrdiff_t j
        for j in range(self.d):
            spread += x[j] * x[j] * self.v[j]
        if spread == 0.0:                   # a row of zeros: its factor is the number t(0)
            spread = 1e-300
        trouble = self.moments.at(1.0, self.m[0], spread, self.power, &lZ, &dlZ, &d2lZ)
        if trouble == LOSS_FAILED:
            return CALLBACK_FAILED
        if trouble != INTEGRATED or not isfinite(spread):
            return NOT_FITTED
        c[0] = lZ
        for j in range(self.d):
            a = y * x[j]
            rest = 1.0 + self.v[j] * a * a * d2lZ
            if not rest > 0.0:
                return NOT_FITTED
            self.tau[j] = -a * a * d2lZ / rest
            self.b[j] = a * dlZ / rest
            c[0] -= 0.5 * (log(rest) + self.b[j] * self.b[j] * self.v[j] * rest)
        return FITTED

    cdef Outcome center(self, ptrdiff_t s, double beta, double *c) noexcept nogil:
        """c = -beta sum_k l(m_k)."""
        cdef double total = 0.0
        cdef ptrdiff_t k
        if kernels.loss(&self.loss.c, s, self.m, self.value, NULL, NULL) != 0:
            return CALLBACK_FAILED
        for k in range(s):
            total += self.value[k]
        c[0] = -beta * total
        return FITTED

    cdef Outcome two_sided(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y, double beta, double *c
    ) noexcept nogil:
        """step_j = gamma sqrt(v_j); b_j <- D_j, tau_j <- S_j (kern.h); c at the center."""
        cdef ptrdiff_t j
        cdef int failed
        for j in range(self.d):
            self.step[j] = self.gamma * sqrt(self.v[j])
        failed = kernels.pairs(
            &self.loss.c, s, self.d, x, ld, y, self.m, self.step, self.b, self.tau, &self.scratch[0]
        )
        if failed != 0:
            return CALLBACK_FAILED if failed > 0 else NOT_FITTED
        return self.center(s, beta, c)

    cdef Outcome variational(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y, double beta, double *c
    ) noexcept nogil:
        """Variational quadrature on the 2d + 1 rule: as many points as monomials, so the minimum of
        eq. 10 interpolates log f (guide). b = D / (2 step), tau = S / step^2."""
        cdef Outcome outcome = self.two_sided(s, x, ld, y, beta, c)
        cdef ptrdiff_t j
        for j in range(self.d):
            self.b[j] *= 0.5 * beta / self.step[j]
            self.tau[j] *= beta / self.step[j] / self.step[j]
        return outcome

    cdef Outcome quadrature(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y, double beta, double *c
    ) noexcept nogil:
        """Gauss quadrature, eq. 7: moments under weights w_j f_j, divided by the cavity.

        With log f relative to the center, log f(+-) = (+-D - S) / 2; the largest of all is taken
        out before exp. b and tau of a coordinate whose variance vanishes are left NaN."""
        cdef Outcome outcome = self.two_sided(s, x, ld, y, beta, c)
        cdef double side = 0.5 / (self.gamma * self.gamma)
        cdef double middle = 1.0 - self.d / (self.gamma * self.gamma)
        cdef double top = 0.0, mass, up, down, shift, rest, second, variance
        cdef ptrdiff_t j, i
        if outcome != FITTED:
            return outcome
        for j in range(self.d):
            up = 0.5 * beta * (self.b[j] - self.tau[j])
            down = -0.5 * beta * (self.b[j] + self.tau[j])
            self.column_a[j], self.column_b[j] = up, down
            if not (isfinite(up) and isfinite(down)):
                return NOT_FITTED
            top = max(top, max(up, down))
        mass = middle * exp(-top)
        for j in range(self.d):
            self.column_a[j] = exp(self.column_a[j] - top)
            self.column_b[j] = exp(self.column_b[j] - top)
            mass += side * (self.column_a[j] + self.column_b[j])
        if not mass > 0.0:
            return NOT_FITTED
        c[0] += top + log(mass)
        for j in range(self.d):
            up = side * self.column_a[j] / mass
            down = side * self.column_b[j] / mass
            shift = up - down                           # mean - mu, in steps
            rest = 1.0 - (up + down)
            if rest < 0.5:                              # at most one j: no cancellation either
                rest = middle * exp(-top)
                for i in range(self.d):
                    if i != j:
                        rest += side * (self.column_a[i] + self.column_b[i])
                rest /= mass
            second = (up + down) * rest + 4.0 * up * down       # variance, in steps^2
            variance = second * self.step[j] * self.step[j]
            self.tau[j] = 1.0 / variance - 1.0 / self.v[j]
            self.b[j] = shift * self.step[j] / variance
            if second > 0.0 and isfinite(self.tau[j]) and isfinite(self.b[j]):
                c[0] += 0.5 * (log(self.v[j] / variance) - shift * shift / second)
            else:
                self.tau[j] = self.b[j] = NAN
        return FITTED

    cdef Outcome expand(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y, double beta, double *c
    ) noexcept nogil:
        """Second-order Taylor expansion of log t where the margins m were taken (eq. 6)."""
        cdef double total = 0.0
        cdef ptrdiff_t k, j
        if kernels.loss(
            &self.loss.c, s, self.m, self.value, self.slope,
            NULL if self.slope_curvature else self.curvature
        ) != 0:
            return CALLBACK_FAILED
        for k in range(s):
            total += self.value[k]
            if self.slope_curvature:
                self.curvature[k] = fabs(self.slope[k])
            if y != NULL:
                self.slope[k] *= y[k]
        kernels.weighted_sums(s, self.d, x, ld, self.slope, self.curvature, self.b, self.tau)
        c[0] = -beta * total
        for j in range(self.d):
            self.b[j] *= -beta
            self.tau[j] *= beta
        return FITTED

    cdef double tilted_at(
        self, ptrdiff_t s, double beta, const double *m, bint *failed
    ) noexcept nogil:
        """-beta sum_k l(m_k) - sum_j (theta_j - mu_j)^2 / (2 v_j) for the theta in self.theta."""
        cdef double total = 0.0, away
        cdef ptrdiff_t k, j
        if kernels.loss(&self.loss.c, s, m, self.value, NULL, NULL) != 0:
            failed[0] = True
            return 0.0
        for k in range(s):
            total -= beta * self.value[k]
        for j in range(self.d):
            away = self.theta[j] - self.mu[j]
            total -= 0.5 * away * away / self.v[j]
        return total

    cdef Outcome laplace(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y, double beta, double *c
    ) noexcept nogil:
        """Expansion at the mode of cavity x factor, found by Newton with the full Hessian
        Z'WZ + diag(1/v), Z = y X, and step halving.

        Where s < d the Newton system is solved in the space of the rows (Woodbury): O(s^3 + s d)
        per iteration after O(s^2 d) once; else O(s d^2 + d^3). A negative curvature counts as 0 in
        the Newton matrix only.
        """
        cdef ptrdiff_t d = self.d, k, j, i
        cdef bint by_rows = s < d, failed = False
        cdef blas_int n = <blas_int> (s if by_rows else d), one = 1, info = 0
        cdef blas_int rows = <blas_int> s, columns = <blas_int> d
        cdef double *scaled = &self.hessian[0]
        cdef double *gram = scaled + s * d              # Z V Z', where by_rows
        cdef double *h = gram + n * n
        cdef double unit = 1.0, zero = 0.0, sign, root, objective, new, t, size, change
        cdef double *gradient = self.column_a
        cdef double *direction = self.column_b
        cdef int _iteration, _halving
        cdef Outcome outcome

        for j in range(d):
            self.theta[j] = self.mu[j]
        if by_rows:
            for k in range(s):
                sign = y[k] if y != NULL else 1.0
                for j in range(d):
                    scaled[k * d + j] = sign * x[k * ld + j] * sqrt(self.v[j])
            dsyrk(b"L", b"T", &rows, &columns, &unit, scaled, &columns, &zero, gram, &rows)

        objective = self.tilted_at(s, beta, self.m, &failed)
        if failed:
            return CALLBACK_FAILED
        if not isfinite(objective):
            return NOT_FITTED
        for _iteration in range(self.max_iterations):
            # b and tau are free until the end: minus the slope and the curvature of log t
            outcome = self.expand(s, x, ld, y, beta, c)
            if outcome != FITTED:
                return outcome
            for j in range(d):
                gradient[j] = self.b[j] - (self.theta[j] - self.mu[j]) / self.v[j]
            for k in range(s):
                self.curvature[k] = sqrt(beta * max(self.curvature[k], 0.0))
            if by_rows:
                # (I/v + Z'WZ)^-1 g = V g - V Z' R (I + R G R)^-1 R Z V g,  R = sqrt W, G = Z V Z'
                for j in range(d):
                    direction[j] = self.v[j] * gradient[j]
                kernels.margins(s, d, x, ld, y, direction, self.row_a)
                for k in range(s):
                    self.row_a[k] *= self.curvature[k]
                    for i in range(k, s):
                        h[k * s + i] = self.curvature[k] * gram[k * s + i] * self.curvature[i]
                    h[k * s + k] += 1.0
                dpotrf(b"L", &n, h, &n, &info)
                if info != 0:
                    return NOT_FITTED
                dpotrs(b"L", &n, &one, h, &n, self.row_a, &n, &info)
                for k in range(s):
                    self.row_a[k] *= self.curvature[k]
                    if y != NULL:
                        self.row_a[k] *= y[k]
                kernels.weighted_sums(s, d, x, ld, self.row_a, self.row_a, self.step, direction)
                for j in range(d):
                    direction[j] = self.v[j] * (gradient[j] - self.step[j])
            else:
                for k in range(s):
                    root = self.curvature[k]
                    for j in range(d):
                        scaled[k * d + j] = root * x[k * ld + j]
                dsyrk(b"L", b"N", &columns, &rows, &unit, scaled, &columns, &zero, h, &columns)
                for j in range(d):
                    h[j * d + j] += 1.0 / self.v[j]
                    direction[j] = gradient[j]
                dpotrf(b"L", &n, h, &n, &info)
                if info != 0:
                    return NOT_FITTED
                dpotrs(b"L", &n, &one, h, &n, direction, &n, &info)

            # halve the step until the objective does not fall; the margins are linear in it
            kernels.margins(s, d, x, ld, y, direction, self.row_a)
            t = 1.0
            for _halving in range(MAX_HALVINGS):
                for j in range(d):
                    self.step[j] = self.theta[j]
                    self.theta[j] += t * direction[j]
                for k in range(s):
                    self.trial[k] = self.m[k] + t * self.row_a[k]
                new = self.tilted_at(s, beta, self.trial, &failed)
                if failed:
                    return CALLBACK_FAILED
                # near the mode rounding must not look like a fall
                if new >= objective - 1e-15 * fabs(objective):
                    break
                for j in range(d):
                    self.theta[j] = self.step[j]
                t *= 0.5
            else:
                break                               # at a kink, or at the limit of the arithmetic
            for k in range(s):
                self.m[k] = self.trial[k]
            objective = new
            size = change = 0.0
            for j in range(d):
                size += self.theta[j] * self.theta[j]
                change += t * direction[j] * t * direction[j]
            if not isfinite(change):
                return NOT_FITTED
            if change <= self.tolerance * self.tolerance * size:
                break

        kernels.margins(s, d, x, ld, y, self.theta, self.m)
        outcome = self.expand(s, x, ld, y, beta, c)
        for j in range(d):                              # from about theta to about mu
            change = self.theta[j] - self.mu[j]
            c[0] -= change * (self.b[j] + 0.5 * self.tau[j] * change)
            self.b[j] += self.tau[j] * change
        return outcome

    cdef Outcome variational_rule(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y, double beta, double *c
    ) noexcept nogil:
        """Variational quadrature on any rule, by Newton-Cholesky: O(s d z) for the factor at the
        points, O(z p^2) per Newton step, p = 2d + 1."""
        cdef ptrdiff_t d = self.d, z = self.points.shape[0], first = 0, count, k, j, i
        cdef double *scaled = &self.scratch[0]
        cdef double *at_points = scaled + s * d
        cdef double *values = at_points + s * POINT_BLOCK
        cdef blas_int columns = <blas_int> d, rows = <blas_int> s, block
        cdef double unit = 1.0, root2 = sqrt(2.0), sign, total
        for k in range(s):
            sign = y[k] if y != NULL else 1.0
            for j in range(d):
                scaled[k * d + j] = sign * x[k * ld + j] * sqrt(self.v[j])
        while first < z:
            count = min(z - first, <ptrdiff_t> POINT_BLOCK)
            block = <blas_int> count
            for i in range(count):
                for k in range(s):
                    at_points[i * s + k] = self.m[k]
            dgemm(
                b"T", b"N", &rows, &block, &columns, &unit, scaled, &columns,
                &self.points[first, 0], &columns, &unit, at_points, &rows
            )
            for i in range(s * count):
                if not isfinite(at_points[i]):
                    return NOT_FITTED
            if kernels.loss(&self.loss.c, s * count, at_points, values, NULL, NULL) != 0:
                return CALLBACK_FAILED
            for i in range(count):
                total = 0.0
                for k in range(s):
                    total += values[i * s + k]
                self.point_values[first + i] = -beta * total
                if not isfinite(total):
                    return NOT_FITTED
            first += count
        if newton_cholesky(
            z, self.basis.shape[1], &self.basis[0, 0], &self.weights[0], &self.point_values[0],
            self.flat_start, &self.alpha[0], &self.newton_work[0]
        ) != 0:
            return NOT_FITTED
        # alpha is in t = (theta - mu) / sqrt v and (t^2 - 1) / sqrt 2
        c[0] = self.alpha[0]
        for j in range(d):
            self.b[j] = self.alpha[1 + j] / sqrt(self.v[j])
            self.tau[j] = -root2 * self.alpha[1 + d + j] / self.v[j]
            c[0] -= self.alpha[1 + d + j] / root2
        return FITTED

    def fit_one(self, const double[:, ::1] z, const double[::1] mean, const double[::1] variance):
        """The raw fit of one factor, z = y X (s, d): (precision, shift, log_scale), about 0.

        None where the scheme fails, if only in one coordinate."""
        cdef ptrdiff_t j
        cdef double c = 0.0
        cdef Outcome outcome
        for j in range(self.d):
            self.mu[j] = mean[j]
            self.v[j] = variance[j]
        with nogil:
            outcome = self.fit(z.shape[0], &z[0, 0], self.d, NULL, &c)
        self.raise_for(outcome, 0, "yX")
        if outcome == NOT_FITTED:
            return None
        precision, shift = np.empty(self.d), np.empty(self.d)
        cdef double[::1] p = precision
        cdef double[::1] h = shift
        for j in range(self.d):
            p[j] = self.tau[j]
            h[j] = self.b[j] + self.tau[j] * self.mu[j]
            c -= self.mu[j] * (self.b[j] + 0.5 * self.tau[j] * self.mu[j])
            if not (isfinite(p[j]) and isfinite(h[j]) and isfinite(c)):
                return None
        return precision, shift, c

    cdef int raise_for(self, Outcome outcome, ptrdiff_t first_row, str name) except -1:
        if outcome == CALLBACK_FAILED:
            self.loss.reraise()
        if outcome == NOT_FINITE:
            raise ValueError(
                f"{name} gives a margin that is not finite in row {first_row + self.bad_row}: it "
                "holds NaN or infinity, or numbers too large; allowed: finite numbers"
            )
        return 0

    # -- the sweep --

    cdef Outcome update(
        self, ptrdiff_t s, const double *x, ptrdiff_t ld, const double *y,
        const double *tau, const double *nu, double *new_tau, double *new_nu,
        double *site_tau, double *site_nu, double *site_scale
    ) noexcept nogil:
        """One factor: cavity, fit, site rule, damping. Reads the posterior (tau, nu), adds the
        site's change to (new_tau, new_nu), the same arrays where the order is not parallel.
        site_tau NULL: no site is stored, the cavity is the posterior (ADF)."""
        cdef ptrdiff_t j
        cdef double old_tau, old_nu, cavity, t, h, c = 0.0, origin = 0.0
        cdef bint acted, kept
        cdef ptrdiff_t lost = 0
        cdef Outcome outcome
        for j in range(self.d):
            cavity, h = tau[j], nu[j]
            if site_tau != NULL:
                t = cavity - self.power * site_tau[j]
                if t > 0.0:
                    cavity, h = t, h - self.power * site_nu[j]
                # else: the posterior stands in for an improper cavity; the site is kept, below
            self.v[j] = 1.0 / cavity
            self.mu[j] = h / cavity
        outcome = self.fit(s, x, ld, y, &c)
        if outcome == FITTED:
            for j in range(self.d):
                lost += not (isfinite(self.tau[j]) and isfinite(self.b[j]))
        if outcome == NOT_FITTED or lost == self.d or (outcome == FITTED and not isfinite(c)):
            self.n_failed += 1
            self.n_refused += self.d
            return NOT_FITTED
        if outcome != FITTED:
            return outcome
        for j in range(self.d):
            old_tau = site_tau[j] if site_tau != NULL else 0.0
            old_nu = site_nu[j] if site_tau != NULL else 0.0
            t = self.tau[j]
            acted = False
            kept = not (isfinite(t) and isfinite(self.b[j])) or (
                site_tau != NULL and not tau[j] - self.power * old_tau > 0.0
            )
            if self.site_rule == NONNEGATIVE and t < 0.0:
                t, acted = 0.0, True
            elif self.site_rule == FLOOR and t < FLOOR_SHARE / self.v[j]:
                t, acted = FLOOR_SHARE / self.v[j], True
            h = self.b[j] + t * self.mu[j]
            if kept or not tau[j] + self.damping * (t - old_tau) > 0.0:
                t, h, acted = old_tau, old_nu, True
            self.n_refused += acted
            # the site keeps its value at the cavity mean, whatever the rule did
            origin -= self.mu[j] * (h - 0.5 * t * self.mu[j])
            t = self.damping * (t - old_tau)
            h = self.damping * (h - old_nu)
            new_tau[j] += t
            new_nu[j] += h
            if site_tau != NULL:
                site_tau[j] += t
                site_nu[j] += h
        if site_scale != NULL:
            site_scale[0] += self.damping * (c + origin - site_scale[0])
        else:
            self.log_scale_total += self.damping * (c + origin)
        return FITTED

    def sweep(
        self, const real[:, :] X, const double[::1] y, ptrdiff_t batch_size,
        const ptrdiff_t[::1] order, double[::1] tau, double[::1] nu, *,
        double[:, ::1] site_tau=None, double[:, ::1] site_nu=None, double[::1] site_scale=None,
        double[::1] next_tau=None, double[::1] next_nu=None, double[:, ::1] trace=None,
        ptrdiff_t row_offset=0,
    ):
        """Update the factors numbered in order, each the rows [i, i + 1) * batch_size of X.

        tau, nu (d,) hold the posterior, in place; sites, where stored, (factors, d) and (factors,).
        next_tau, next_nu: parallel order, the posterior is read only, the changes are added here.
        trace (updates, d) takes the posterior mean after each update. row_offset is added to the
        number of a bad row. n_refused, n_failed and log_scale_total of the object are added to.
        """
        cdef ptrdiff_t n = X.shape[0], d = self.d, u, f, first, s, k, j, ld
        cdef const double *x
        cdef double *new_tau = &tau[0]
        cdef double *new_nu = &nu[0]
        cdef bint stored = site_tau is not None, traced = trace is not None, in_place = False
        cdef Outcome outcome = FITTED
        if next_tau is not None:
            new_tau, new_nu = &next_tau[0], &next_nu[0]
        if real is double:
            in_place = X.strides[1] == sizeof(double) and X.strides[0] % sizeof(double) == 0
        if in_place:
            ld = X.strides[0] // <ptrdiff_t> sizeof(double)
        else:
            ld = d
            if self.packed.shape[0] < self.max_rows * d:
                self.packed = np.empty(self.max_rows * d)
        first = 0
        with nogil:
            for u in range(order.shape[0]):
                f = order[u]
                first = f * batch_size
                s = min(batch_size, n - first)
                if in_place:
                    x = <const double *> &X[first, 0]
                else:
                    for k in range(s):
                        for j in range(d):
                            self.packed[k * d + j] = X[first + k, j]
                    x = &self.packed[0]
                outcome = self.update(
                    s, x, ld, &y[first], &tau[0], &nu[0], new_tau, new_nu,
                    &site_tau[f, 0] if stored else NULL, &site_nu[f, 0] if stored else NULL,
                    &site_scale[f] if stored else NULL
                )
                if outcome == CALLBACK_FAILED or outcome == NOT_FINITE:
                    break
                if traced:
                    for j in range(d):
                        trace[u, j] = new_nu[j] / new_tau[j]
        self.raise_for(outcome, row_offset + first, "X")

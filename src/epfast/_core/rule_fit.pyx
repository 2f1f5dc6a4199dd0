"""Newton-Cholesky fit of a log-quadratic function to any rule (Roche 2016, eqs 10-11).

    z points of the rule   p monomials
"""

import numpy as np

from libc.math cimport exp, fabs, isfinite, log, sqrt

from epfast._core.lapack cimport blas_int, ddot, dgemv, dpotrf, dpotrs, dsyrk
from epfast._core.loss cimport CoreLoss
from epfast._core.status cimport OK

cdef int MAX_HALVINGS = 40
cdef int MAX_NEWTON = 200
cdef int MAX_SIGMA = 10000
cdef double UNDETERMINED = 1e-9         # relative error of a fit that counts as none


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
    bint flat, double *alpha, double *work, CoreLoss watch
) noexcept nogil:
    """Minimise sum_i w_i [exp(alpha.phi_i) - f_i alpha.phi_i] over alpha; f = exp(log_f).

    basis is (z, p) by rows. f is scaled by its maximum, so that nothing overflows; the start is the
    weighted least-squares fit of log f (flat: a constant); each Newton step is halved until the
    strictly convex loss falls. O(z p^2 + p^3) per step. work: z (p + 5) + p (p + 2). watch (None in
    tests) looks for signals. Returns 0, 1 without convergence, 2 where an exception waits.
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
        if watch is not None and watch.heed() != OK:
            return 2
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


cdef bint newton_sigma(ptrdiff_t d, double *log_f, double *work) noexcept nogil:
    """The same fit to the 2d + 1 points of the precision-3 rule, of equal weights, from a constant:
    log_f, (2d + 1,), the center first, <- log g there.

    Each point beside the center has an unknown of its own, u_i = log g: in these and alpha_0 the
    Hessian is an arrow, its Cholesky factor has no fill, and a step takes O(d). It moves u_i by
    f_i exp(-u_i) - 1, whatever the others do, so that converged points need no more steps:
    one that is n nats below the others takes n. work: 6 (2d + 1). False without convergence.
    """
    cdef ptrdiff_t i, z = 2 * d + 1, moving = z, left
    cdef double *u = work                               # of the points that still move, as the rest
    cdef double *f = u + z                              # log f, over its maximum
    cdef double *step = f + z
    cdef double *place = step + z
    cdef double *weight = place + z                     # exp(f)
    cdef double *mass = weight + z                      # exp(u), of a trial from the second step on
    cdef double top = log_f[0], level = 0.0, loss, new, t, at, descent
    cdef int _iteration, _halving

    for i in range(z):
        top = max(top, log_f[i])
    if not isfinite(top):
        return False
    for i in range(z):
        f[i], place[i] = log_f[i] - top, <double> i
        weight[i] = exp(f[i])
        level += weight[i]
    level /= z
    for i in range(z):
        u[i], mass[i] = log(level), level
    for _iteration in range(MAX_SIGMA):
        descent = loss = 0.0
        for i in range(moving):
            step[i] = exp(f[i] - u[i]) - 1.0
            descent += mass[i] * step[i] * step[i]      # Newton decrement, squared
            loss += mass[i] - weight[i] * u[i]
        if not isfinite(descent):
            return False
        t = 1.0
        for _halving in range(MAX_HALVINGS):
            new = 0.0
            for i in range(moving):
                at = u[i] + t * step[i]
                mass[i] = exp(at)
                new += mass[i] - weight[i] * at
            if new <= loss - 1e-4 * t * descent or descent <= 1e-14 * fabs(loss):
                break
            t *= 0.5
        left = 0
        for i in range(moving):
            u[left] = u[i] + t * step[i]
            # quadratic convergence: what is left is the square of the step
            if t == 1.0 and fabs(step[i]) <= 1e-7:
                log_f[<ptrdiff_t> place[i]] = u[left] + top
            else:
                f[left], place[left] = f[i], place[i]
                weight[left], mass[left] = weight[i], mass[i]
                left += 1
        moving = left
        if moving == 0:
            return True
    return False


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
            z, p, &basis[0, 0], &weights[0], &log_values[0], flat, &a[0], &work[0], None
        )
    return None if failed else alpha

"""Gamma functions, and the members of a family that have given statistics: projections."""

import numpy as np

from libc.math cimport INFINITY, NAN, exp, expm1, fabs, fmax, fmin, isfinite, log, log1p, sqrt

cdef double HALF_LOG_2PI = 0.918938533204672741780329736405618

# from here on the asymptotic series are right to rounding
cdef double FAR = 8.0

cdef enum:
    MOST_STEPS = 100            # of Newton's method; some ten are usual
    NEAR_STEPS = 6              # from what should be near


cdef inline double stirling(double x) noexcept nogil:
    """log Gamma(x) - (x - 1/2) log x + x - log(2 pi) / 2 for large x."""
    cdef double r = 1.0 / (x * x)
    return (1.0 / 12.0 - r * (1.0 / 360.0 - r * (1.0 / 1260.0 - r * (1.0 / 1680.0 - r * (
        1.0 / 1188.0 - r * (691.0 / 360360.0 - r * (
            1.0 / 156.0 - r * 3617.0 / 122400.0))))))) / x


cdef inline double log_gamma_far(double x) noexcept nogil:
    return (x - 0.5) * log(x) - x + HALF_LOG_2PI + stirling(x)


cdef double log_gamma(double x) noexcept nogil:
    """log Gamma(x), x > 0."""
    cdef double y = x * (x + 7.0)
    if x >= FAR:
        return log_gamma_far(x)
    # x (x + 1) ... (x + 7): the first with the last is y, the second with the last but one y + 6
    return log_gamma_far(x + 8.0) - log(y * (y + 6.0) * (y + 10.0) * (y + 12.0))


cdef inline double near(double x, double *first, double *second) noexcept nogil:
    """x + 8 with the sums of 1 / (x + k) and of its square over k < 8, or x and 0 if it is far."""
    cdef double y = x * (x + 7.0), a, b, inverse, p, q
    if x >= FAR:
        first[0] = second[0] = 0.0
        return x
    # 1 / (x + k) + 1 / (x + 7 - k) = (2 x + 7) / (y + k (7 - k)), one division for all
    a, b = y * (y + 6.0), (y + 10.0) * (y + 12.0)
    inverse = 1.0 / (a * b)
    p, q = b * inverse, a * inverse                     # 1 / a and 1 / b
    x, y = 2.0 * x + 7.0, 2.0 * y
    a, b = (y + 6.0) * p, (y + 22.0) * q
    first[0] = x * (a + b)
    # the sum of 1 / (y + c)^2 is a^2 - 2 p + b^2 - 2 q, and the squares of the two are that
    # sum times x^2 less twice the products 1 / (y + c)
    second[0] = x * x * (a * a - 2.0 * p + b * b - 2.0 * q) - 2.0 * (a + b)
    return 0.5 * (x - 7.0) + 8.0


cdef double log_beta(double a, double b) noexcept nogil:
    """log B(a, b), also where one is little beside the other."""
    cdef double least = fmin(a, b), x
    a = fmax(a, b)
    x = a + least
    if a < FAR:
        return log_gamma(a) + log_gamma(least) - log_gamma(x)
    return (
        log_gamma(least) - (a - 0.5) * log1p(least / a) - least * (log(x) - 1.0)
        + stirling(a) - stirling(x)
    )


cdef inline double tail(double x) noexcept nogil:
    """log x - digamma(x) for large x."""
    cdef double r = 1.0 / (x * x)
    return 0.5 / x + r * (1.0 / 12.0 - r * (1.0 / 120.0 - r * (1.0 / 252.0 - r * (
        1.0 / 240.0 - r * (1.0 / 132.0 - r * (691.0 / 32760.0 - r * (
            1.0 / 12.0 - r * 3617.0 / 8160.0)))))))


cdef double digamma(double x) noexcept nogil:
    cdef double first, second
    x = near(x, &first, &second)
    return log(x) - tail(x) - first


cdef inline double slope_tail(double x) noexcept nogil:
    """x^2 trigamma(x) - x for large x."""
    cdef double r = 1.0 / (x * x)
    return 0.5 + (1.0 / 6.0 - r * (1.0 / 30.0 - r * (1.0 / 42.0 - r * (1.0 / 30.0 - r * (
        5.0 / 66.0 - r * (691.0 / 2730.0 - r * (7.0 / 6.0 - r * (
            3617.0 / 510.0 - r * 43867.0 / 798.0)))))))) / x


cdef double trigamma(double x) noexcept nogil:
    cdef double first, second
    x = near(x, &first, &second)
    return (x + slope_tail(x)) / (x * x) + second


cdef inline double drop(double a, double b) noexcept nogil:
    """trigamma(a) - trigamma(a + b) for large a, also where b is little beside it."""
    cdef double x = a + b
    return (
        b / (a * x) + 0.5 * (b / a) * (a + x) / (a * x * x)
        + (slope_tail(a) - 0.5) / (a * a) - (slope_tail(x) - 0.5) / (x * x)
    )


cdef double gap(double a) noexcept nogil:
    """log a - digamma(a): log E x - E log x of a gamma variable of shape a."""
    cdef double first, second, x = near(a, &first, &second)
    return tail(a) if a >= FAR else log(a / x) + tail(x) + first


cdef double shape_of_gap(double s, double guess) noexcept nogil:
    """The shape of the gamma variable with log E x - E log x = s; NaN where there is none.

    Newton's method for 1 / a (Minka 2002, Estimating a gamma distribution), from the guess if it
    is near where that begins.
    """
    cdef double x, a, step, far, first, second
    cdef int _step
    if not 0.0 < s < INFINITY:
        return NAN
    # 12 s / (3 - s + sqrt((s - 3)^2 + 24 s)), without a difference
    if s < 3.0:
        x = 12.0 * s / (3.0 - s + sqrt((s - 3.0) * (s - 3.0) + 24.0 * s))
    else:
        x = 0.5 * (s - 3.0 + sqrt((s - 3.0) * (s - 3.0) + 24.0 * s))
    # its error is 1.5 % at most
    if fabs(guess * x - 1.0) < 0.02:
        x = 1.0 / guess
    for _step in range(MOST_STEPS):
        a = 1.0 / x
        if a >= FAR:
            step = (s - tail(a)) / slope_tail(a)
        else:
            far = near(a, &first, &second)
            second = a * a * ((far + slope_tail(far)) / (far * far) + second) - a
            step = (s - tail(far) - log(a / far) - first) / second
        x = x + step if x + step > 0.0 else 0.5 * x
        # the error of the next is of the square
        if fabs(step) <= 1e-8 * x:
            break
    return 1.0 / x


cdef bint beta_of_logs(double g, double h, double *alpha, double *beta) noexcept nogil:
    """The beta variable with E log x = g and E log(1 - x) = h; False where there is none.

    Newton's method for the logs of both, from alpha and beta as they are if that is near, else from
    what is right for large ones.
    """
    cdef double rest = -expm1(fmax(g, h)) - exp(fmin(g, h))
    # strictly inside: Jensen's inequality
    if not (g < 0.0 and h < 0.0 and rest > 0.0 and isfinite(g) and isfinite(h)):
        return False
    if alpha[0] > 0.0 and beta[0] > 0.0 and beta_newton(g, h, alpha, beta, NEAR_STEPS):
        return True
    alpha[0], beta[0] = 0.5 + 0.5 * exp(g) / rest, 0.5 + 0.5 * exp(h) / rest
    return beta_newton(g, h, alpha, beta, MOST_STEPS)


cdef bint beta_newton(
    double g, double h, double *alpha, double *beta, int most
) noexcept nogil:
    cdef double a = alpha[0], b = beta[0], x, far_a, far_b, far_x, a1, a2, b1, b2, x1, x2, rest
    cdef double F, G, c, p, q, det, da, db, size, last = INFINITY
    cdef int _step
    for _step in range(most):
        x = a + b
        far_a, far_b, far_x = near(a, &a1, &a2), near(b, &b1, &b2), near(x, &x1, &x2)
        rest = tail(far_x)
        c = (far_x + slope_tail(far_x)) / (far_x * far_x) + x2
        # of large ones differences of logs, not logs
        if a >= FAR:
            F = g - log1p(-b / x) + tail(a) - rest
            p = drop(a, b)
        else:
            F = g - log(far_a / far_x) + tail(far_a) - rest + a1 - x1
            p = (far_a + slope_tail(far_a)) / (far_a * far_a) + a2 - c
        if b >= FAR:
            G = h - log1p(-a / x) + tail(b) - rest
            q = drop(b, a)
        else:
            G = h - log(far_b / far_x) + tail(far_b) - rest + b1 - x1
            q = (far_b + slope_tail(far_b)) / (far_b * far_b) + b2 - c
        det = p * q - c * c
        if not det > 0.0:
            return False
        da = (q * F + c * G) / (det * a)
        db = (p * G + c * F) / (det * b)
        size = fmax(fabs(da), fabs(db))
        if not isfinite(size):
            return False
        if size > 1.0:
            da, db = da / size, db / size
        a, b = a * exp(da), b * exp(db)
        # the error of the next is of the square; or steps have stopped to shrink, by rounding
        if size < 1e-8 or (size < 1e-6 and size >= 0.5 * last):
            alpha[0], beta[0] = a, b
            return True
        last = size
    return False


cdef double log_multivariate_beta(const double *eta, ptrdiff_t J) noexcept nogil:
    """log of the integral of prod_j p_j^eta_j over the simplex, as a product of beta functions."""
    cdef ptrdiff_t j
    cdef double total = 0.0, size = eta[0] + 1.0
    for j in range(1, J):
        total += log_beta(size, eta[j] + 1.0)
        size += eta[j] + 1.0
    return total


cdef bint dirichlet_of_logs(
    const double *logs, double *alpha, double *step, double *slope, ptrdiff_t J
) noexcept nogil:
    """The Dirichlet with these E log p, by Newton from alpha as it is; False where there is none.

    The Hessian is diagonal and of rank one (Minka 2000, Estimating a Dirichlet distribution).
    """
    cdef ptrdiff_t j
    cdef double size, common, curvature, total, share, largest, last = INFINITY
    cdef int _step
    for _step in range(MOST_STEPS):
        size = 0.0
        for j in range(J):
            size += alpha[j]
        common, curvature = digamma(size), trigamma(size)
        total, share = 0.0, 0.0
        for j in range(J):
            slope[j] = 1.0 / trigamma(alpha[j])
            step[j] = (logs[j] - digamma(alpha[j]) + common) * slope[j]
            total += step[j]
            share += slope[j]
        total *= curvature / (1.0 - curvature * share)
        largest = 0.0
        for j in range(J):
            step[j] = (step[j] + total * slope[j]) / alpha[j]
            largest = fmax(largest, fabs(step[j]))
        if not isfinite(largest):
            return False
        for j in range(J):
            alpha[j] *= exp(step[j] / fmax(1.0, largest))
        # the error of the next is of the square; or steps have stopped to shrink, by rounding
        if largest < 1e-8 or (largest < 1e-6 and largest >= 0.5 * last):
            return True
        last = largest
    return False


cdef double digamma_change(double a, double d) noexcept nogil:
    """digamma(a + d) - digamma(a), also where d is little beside a."""
    cdef double x = a + d
    if fmin(a, x) < FAR:
        return digamma(x) - digamma(a)
    return log1p(d / a) + 0.5 * (d / a) / x + ((tail(a) - 0.5 / a) - (tail(x) - 0.5 / x))


cdef bint dirichlet_change(
    const double *alpha, const double *rise, double *d, double *step, double *slope, ptrdiff_t J
) noexcept nogil:
    """The d by which alpha + d has E log p larger by this rise; False where there is none.

    Newton's method as that of :func:`dirichlet_of_logs`, from d as it is. All are differences: of
    a large alpha nothing is lost in those of E log p.
    """
    cdef ptrdiff_t j
    cdef double size, more, common, curvature, total, share, largest, last = INFINITY
    cdef int _step
    for _step in range(MOST_STEPS):
        size = more = 0.0
        for j in range(J):
            size += alpha[j]
            more += d[j]
        common, curvature = digamma_change(size, more), trigamma(size + more)
        total = share = 0.0
        for j in range(J):
            slope[j] = 1.0 / trigamma(alpha[j] + d[j])
            step[j] = (rise[j] - digamma_change(alpha[j], d[j]) + common) * slope[j]
            total += step[j]
            share += slope[j]
        total *= curvature / (1.0 - curvature * share)
        largest = 0.0
        for j in range(J):
            step[j] = (step[j] + total * slope[j]) / (alpha[j] + d[j])
            largest = fmax(largest, fabs(step[j]))
        if not isfinite(largest):
            return False
        for j in range(J):
            d[j] += (alpha[j] + d[j]) * expm1(step[j] / fmax(1.0, largest))
        if largest < 1e-8 or (largest < 1e-6 and largest >= 0.5 * last):
            return True
        last = largest
    return False


def log_gammas(const double[::1] x):
    """log Gamma of positive numbers, (n,)."""
    cdef ptrdiff_t i
    result = np.empty(x.shape[0])
    cdef double[::1] found = result
    with nogil:
        for i in range(x.shape[0]):
            found[i] = log_gamma(x[i]) if 0.0 < x[i] < INFINITY else NAN
    return result


def log_betas(const double[::1] a, const double[::1] b):
    """log of the beta function of positive numbers, (n,)."""
    cdef ptrdiff_t i
    if a.shape[0] != b.shape[0]:
        raise ValueError("a and b are of different lengths")
    result = np.empty(a.shape[0])
    cdef double[::1] found = result
    with nogil:
        for i in range(a.shape[0]):
            found[i] = log_beta(a[i], b[i]) if fmin(a[i], b[i]) > 0.0 else NAN
    return result


def log_multivariate_betas(const double[:, ::1] eta not None):
    """log of the integral of prod_j p_j^eta_j over the simplex, (n,), for all eta > -1."""
    cdef ptrdiff_t i
    result = np.empty(eta.shape[0])
    cdef double[::1] found = result
    with nogil:
        for i in range(eta.shape[0]):
            found[i] = log_multivariate_beta(&eta[i, 0], eta.shape[1])
    return result


def digammas(const double[::1] x):
    """The derivative of that, (n,)."""
    cdef ptrdiff_t i
    result = np.empty(x.shape[0])
    cdef double[::1] found = result
    with nogil:
        for i in range(x.shape[0]):
            found[i] = digamma(x[i]) if 0.0 < x[i] < INFINITY else NAN
    return result


def gamma_shapes(const double[::1] gap):
    """Shapes of gamma variables with these log E x - E log x, (n,); NaN where there is none."""
    cdef ptrdiff_t i
    result = np.empty(gap.shape[0])
    cdef double[::1] a = result
    with nogil:
        for i in range(gap.shape[0]):
            a[i] = shape_of_gap(gap[i], NAN)
    return result


def beta_parameters(const double[::1] log_p, const double[::1] log_q):
    """alpha and beta of beta variables with these E log x, E log(1 - x), (n,); NaN: none."""
    cdef ptrdiff_t i
    if log_p.shape[0] != log_q.shape[0]:
        raise ValueError("log_p and log_q are of different lengths")
    first, second = np.full((2, log_p.shape[0]), NAN)
    cdef double[::1] a = first
    cdef double[::1] b = second
    with nogil:
        for i in range(log_p.shape[0]):
            beta_of_logs(log_p[i], log_q[i], &a[i], &b[i])
    return first, second


def dirichlet_parameters(const double[:, ::1] logs not None):
    """alpha of Dirichlets with these E log p, (n, J); NaN where there is none."""
    cdef ptrdiff_t i, j, n = logs.shape[0], J = logs.shape[1]
    result = np.ones((n, J))
    cdef double[:, ::1] alpha = result
    cdef double[::1] step = np.empty(J), slope = np.empty(J)
    with nogil:
        for i in range(n):
            if not dirichlet_of_logs(&logs[i, 0], &alpha[i, 0], &step[0], &slope[0], J):
                for j in range(J):
                    alpha[i, j] = -INFINITY
    result[np.isinf(result)] = np.nan
    return result

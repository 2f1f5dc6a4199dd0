"""The two factors of the paper on learned operators, and their messages to 40 digits."""

import mpmath
import numpy as np
from scipy import special

#: cavities (m, v) of the latent value and beta messages to its probability
LOGISTIC = [
    ((0.0, 1e-4), (1, 2)), ((3.0, 1e-2), (2, 1)), ((-6.0, 0.5), (1, 2)), ((0.5, 1.0), (3.5, 2.0)),
    ((2.0, 10.0), (1, 2)), ((-9.0, 40.0), (2, 1)), ((17.0, 200.0), (1, 2)), ((-1.0, 200.0), (9, 7)),
]  # fmt: skip
#: incoming gamma messages (shape, rate), and (s1, r1, s2)
COMPOUND = [
    ((1.5, 1e-3), (1, 1, 1)), ((1.5, 3e4), (1, 1, 1)), ((6.0, 0.5), (1, 1, 1)),
    ((20.0, 100.0), (2, 0.5, 3)), ((51.0, 3e4), (1, 1, 1)), ((51.0, 1e-3), (1, 1, 1)),
]  # fmt: skip


def logistic(z, data):
    """Beta(alpha, beta) density of sigma(z)."""
    a, b = data.T
    inner = (a - 1.0) * special.log_expit(z) + (b - 1.0) * special.log_expit(-z)
    return inner - special.betaln(a, b)


def compound(tau, data):
    """Gamma(tau; s2, r2), r2 ~ Gamma(s1, r1) integrated out."""
    s1, r1, s2 = data.T
    inner = s1 * np.log(r1) + (s2 - 1.0) * np.log(tau) - (s1 + s2) * np.log(r1 + tau)
    return inner - special.betaln(s1, s2)


def true_logistic(message, beta):
    """Mean, variance and log_z."""
    with mpmath.workdps(40):
        (m, v), (a, b) = (map(mpmath.mpf, pair) for pair in (message, beta))

        def log_density(z):
            of_beta = -(a - 1) * mpmath.log1p(mpmath.exp(-z)) - (b - 1) * mpmath.log1p(
                mpmath.exp(z)
            )
            of_beta -= mpmath.log(mpmath.beta(a, b))
            return of_beta - (z - m) ** 2 / (2 * v) - mpmath.log(2 * mpmath.pi * v) / 2

        mode = mpmath.findroot(
            lambda z: (a - 1) - (a + b - 2) / (1 + mpmath.exp(-z)) - (z - m) / v, m / (1 + v)
        )
        # the trapezoid rule: poles of the sigmoid are pi away from the axis, whatever v
        h = min(mpmath.mpf(1) / 4, mpmath.mpf(0.3) / mpmath.sqrt(1 / v + (a + b - 2) / 4))
        most = int(14 * mpmath.sqrt(v) / h)
        z = [mode + h * k for k in range(-most, most + 1)]
        w = [h * mpmath.exp(log_density(x)) for x in z]
        total = mpmath.fsum(w)
        mean = mpmath.fsum(x * y for x, y in zip(z, w, strict=True)) / total
        squares = mpmath.fsum((x - mean) ** 2 * y for x, y in zip(z, w, strict=True))
        return float(mean), float(squares / total), float(mpmath.log(total))


def true_compound(message, numbers):
    """Shape, rate and log_z: Tricomi's U for the integrals, differences of it for E log x."""
    with mpmath.workdps(60):
        (a, b), (s1, r1, s2) = (map(mpmath.mpf, pair) for pair in (message, numbers))

        def log_integral(k):
            """Log of the integral of x^(k - 1) exp(-b x) (r1 + x)^-(s1 + s2)."""
            u = mpmath.hyperu(k, k + 1 - s1 - s2, b * r1)
            return mpmath.loggamma(k) + (k - s1 - s2) * mpmath.log(r1) + mpmath.log(u)

        k, h = a + s2 - 1, mpmath.mpf(10) ** -12
        log_mean = log_integral(k + 1) - log_integral(k)
        # a five-point rule, right to h^4
        d = [log_integral(k + j * h) for j in (-2, -1, 1, 2)]
        gap = log_mean - (d[0] - 8 * d[1] + 8 * d[2] - d[3]) / (12 * h)
        begin = (3 - gap + mpmath.sqrt((gap - 3) ** 2 + 24 * gap)) / (12 * gap)
        shape = mpmath.findroot(lambda s: mpmath.log(s) - mpmath.psi(0, s) - gap, begin)
        log_z = log_integral(k) + a * mpmath.log(b) - mpmath.loggamma(a)
        log_z += s1 * mpmath.log(r1) - mpmath.log(mpmath.beta(s1, s2))
        return float(shape), float(shape / mpmath.exp(log_mean)), float(log_z)


def divergence(mean, variance, other_mean, other_variance):
    """KL of Gaussians."""
    ratio = variance / other_variance
    return 0.5 * ((mean - other_mean) ** 2 / other_variance + ratio - 1.0 - np.log(ratio))

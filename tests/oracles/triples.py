"""Triples in closed form, (y, m, v, power) -> (lZ, dlZ, d2lZ), and cavities to compare them at."""

import numpy as np
from scipy import special

V = np.repeat([1e-4, 0.05, 1.0, 30.0], 6)
M = np.tile([-2.1, -0.6, 0.03, 0.4, 1.7, 3.0], 4)
Y = np.where(np.arange(24) % 3 == 0, -1.0, 1.0)


def assert_triples(got, want, rtol=1e-9, v=V):
    """On their natural scales: 1, 1 / sd and 1 / v."""
    for a, b, unit in zip(got, want, (1.0, np.sqrt(v), v), strict=True):
        np.testing.assert_allclose(a * unit, b * unit, rtol=rtol, atol=rtol)


def probit(y, m, v, power=1.0):
    """Of Phi(y h); Rasmussen & Williams (2006), section 3.6."""
    assert power == 1.0
    scale = np.sqrt(1 + v)
    z = y * m / scale
    log_z = special.log_ndtr(z)
    g = y * np.exp(-0.5 * z**2 - log_z) / np.sqrt(2 * np.pi) / scale
    return log_z, g, -g * (y * z / scale + g)


def noisy_step(epsilon):
    """Of a step from epsilon to 1 - epsilon."""

    def triple(y, m, v, power=1.0):
        scale = np.sqrt(v)
        z = y * m / scale
        high, low = (1 - epsilon) ** power, epsilon**power
        total = low + (high - low) * special.ndtr(z)
        g = y * (high - low) * np.exp(-0.5 * z**2) / np.sqrt(2 * np.pi) / scale / total
        return np.log(total), g, -g * (y * z / scale + g)

    return triple

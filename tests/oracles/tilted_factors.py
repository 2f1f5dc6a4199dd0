"""Tilted marginals of factors of a graph by brute force: sums over dense grids, in NumPy.

Each function takes the cavities and gives log Z with the statistics of each neighbour: (mean,
variance) of a Gaussian, (E log x, E x) of a gamma variable, (E log x, E log(1 - x)) of a beta one.
"""

import numpy as np
from scipy.special import betaln, expit, gammaln, log_expit

from epfast._core.graph import Program


def log_normal(x, mean, variance):
    return -0.5 * (x - mean) ** 2 / variance - 0.5 * np.log(2.0 * np.pi * variance)


def weights(log_f, t):
    """Normalised weights of a density given at equally spaced t, and the log of its integral."""
    top = log_f.max()
    w = np.exp(log_f - top)
    total = w.sum() * (t[1] - t[0])
    return w / w.sum(), top + np.log(total)


def zoom(log_f, low, high, n=400_001, rounds=30):
    """A grid over where the density of one number is more than nothing."""
    for _ in range(rounds):
        t = np.linspace(low, high, n // 10)
        f = log_f(t)
        live = np.flatnonzero(f > f.max() - 75.0)
        a, b = t[max(live[0] - 1, 0)], t[min(live[-1] + 1, len(t) - 1)]
        if (b - a) > 0.5 * (high - low):
            break
        low, high = a, b
    t = np.linspace(low, high, n)
    return t, *weights(log_f(t), t)


def moments(w, x):
    mean = w @ x
    return mean, w @ (x - mean) ** 2


def noise(m, v, shape, rate, power=1.0):
    """N(d; 0, 1 / tau)^power with d ~ N(m, v), tau ~ Ga(shape, rate): of d and tau."""

    def log_f(t):
        tau = np.exp(t)
        prior = shape * np.log(rate) - gammaln(shape) + shape * t - rate * tau
        to_power = 0.5 * (power - 1.0) * (t - np.log(2 * np.pi)) - 0.5 * np.log(power)
        return prior + to_power + log_normal(m, 0.0, v + 1.0 / (power * tau))

    t, w, log_z = zoom(log_f, -200.0, 200.0)
    tau = np.exp(t)
    gain = power * v * tau / (1.0 + power * v * tau)
    mean = m - gain * m
    d = w @ mean, w @ (v * (1.0 - gain)) + moments(w, mean)[1]
    return log_z, d, (w @ t, w @ tau)


def product(x, y, z, variance=0.0):
    """N(z; x y, variance), each (mean, variance): of x, y and z."""
    scale = np.sqrt((z[1] + variance) / y[1])

    def log_f(t):
        at = scale * np.sinh(t)
        total = log_normal(at, *x) + np.log(scale * np.cosh(t))
        return total + log_normal(z[0], at * y[0], z[1] + variance + at**2 * y[1])

    # as wide as x may be
    away = np.abs(x[0]) + 60.0 * np.sqrt(x[1]) + np.abs(z[0] / (y[0] if y[0] else 1.0))
    t, w, log_z = zoom(log_f, -np.arcsinh(away / scale), np.arcsinh(away / scale))
    at = scale * np.sinh(t)
    V = z[1] + variance + at**2 * y[1]
    gap = z[0] - at * y[0]
    found = [moments(w, at)]
    for mean, var in (
        (y[0] + y[1] * at * gap / V, y[1] * (z[1] + variance) / V),
        (z[0] - z[1] * gap / V, z[1] * (variance + at**2 * y[1]) / V),
    ):
        found.append((w @ mean, w @ var + moments(w, mean)[1]))
    return log_z, *found


def logistic(m, v, alpha, beta):
    """p = expit(z), z ~ N(m, v), p ~ Beta(alpha, beta): of z and p."""

    def log_f(z):
        return (
            log_normal(z, m, v)
            + (alpha - 1.0) * log_expit(z)
            + (beta - 1.0) * log_expit(-z)
            - betaln(alpha, beta)
        )

    away = 60.0 * np.sqrt(v) + v * (alpha + beta)
    z, w, log_z = zoom(log_f, m - away, m + away)
    return log_z, moments(w, z), (w @ log_expit(z), w @ log_expit(-z)), moments(w, expit(z))


def compound_gamma(s1, r1, s2, shape, rate, power=1.0):
    """tau^(s2 - 1) / (r1 + tau)^(s1 + s2), normalised, to a power; tau ~ Ga(shape, rate)."""

    def log_f(t):
        prior = shape * np.log(rate) - gammaln(shape) + shape * t - rate * np.exp(t)
        factor = (s2 - 1.0) * t - (s1 + s2) * np.logaddexp(np.log(r1), t)
        factor = factor + s1 * np.log(r1) + gammaln(s1 + s2) - gammaln(s1) - gammaln(s2)
        return prior + power * factor

    t, w, log_z = zoom(log_f, -80.0 / (shape + power * (s2 - 1.0)) - 30.0, 100.0)
    return log_z, (w @ t, w @ np.exp(t)), moments(w, np.exp(t))


def updated(batch, cavities, families, power=1.0):
    """One update of one factor whose sites are flat: (refused, log Z, tilted natural parameters).

    log Z is that of the cavities as they are normalised.
    """
    cavities = [np.asarray(eta, dtype=np.float64) for eta in cavities]
    q = np.concatenate(cavities)
    program = Program([batch], np.array([[0, 0, 1]], dtype=np.intp))
    sites, scale = np.zeros(program.n_sites), np.zeros(1)
    program.run(0, 1, False, q, q, sites, sites, scale, power, 1.0)
    np.testing.assert_array_equal(q, np.concatenate(cavities) + sites)
    log_z, first, found = power * scale[0], 0, []
    for eta, family in zip(cavities, families, strict=True):
        tilted = eta + power * sites[first : first + len(eta)]
        first += len(eta)
        if family.is_proper(tilted[None])[0]:
            log_z += family.log_partition(tilted[None])[0]
        if family.is_proper(eta[None])[0]:
            log_z -= family.log_partition(eta[None])[0]
        found.append(tilted)
    return program.counts()[0], log_z, found


def places(*sizes):
    """Where neighbours of so many numbers are, one after the other; of one factor."""
    at = np.concatenate([[0], np.cumsum(sizes)])[:-1].astype(np.intp)
    return np.array([0, len(sizes)], dtype=np.intp), at

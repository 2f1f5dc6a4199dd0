"""Log densities of two variables, as users write them, and their integrals on a grid."""

import numpy as np

from epfast import EP, Graph
from epfast.families import Gaussian as Family
from epfast.graph import Factor


def step(x, z, a, v):
    """N(z; a x, v)"""
    return -0.5 * (z - a * x) ** 2 / v - 0.5 * np.log(2.0 * np.pi * v)


def seen(x, y, v):
    """N(y; x, v)"""
    return -0.5 * (x - y) ** 2 / v - 0.5 * np.log(2.0 * np.pi * v)


def cavities(rng, m, k=2):
    """Natural parameters of m factors with k Gaussian neighbours."""
    tau = np.exp(rng.normal(size=(k, m)))
    return tuple(np.stack([t, t * rng.normal(size=m)], axis=1) for t in tau)


def one_factor(log_t, scheme, messages, **data):
    """Posterior of factors whose cavities are the priors: tilted moments, log_z."""
    g = Graph()
    x = [g.gaussian(mean=Family.mean(eta), variance=Family.variance(eta)) for eta in messages]
    g.add(Factor(log_t, scheme), *x, **data)
    post = g.fit(EP(1, 0))
    return post, x


def by_grid(log_t, messages, size=3001, wide=11.0):
    """log_z, means and variances of two variables, of one factor."""
    (m0, s0), (m1, s1) = (
        (float(Family.mean(eta)[0]), float(Family.variance(eta)[0]) ** 0.5) for eta in messages
    )
    u = np.linspace(-wide, wide, size)
    a, b = m0 + s0 * u, m1 + s1 * u
    value = log_t(a[:, None], b[None, :]) - 0.5 * (u[:, None] ** 2 + u**2)
    p = np.exp(value - value.max())
    log_z = np.log(p.sum() * (u[1] - u[0]) ** 2 / (2.0 * np.pi)) + value.max()
    p /= p.sum()
    ea, eb = p.sum(1) @ a, p.sum(0) @ b
    return log_z, (ea, eb), (p.sum(1) @ (a - ea) ** 2, p.sum(0) @ (b - eb) ** 2)


SMOOTH = {
    "tanh": lambda x, z: -5.0 * (2.0 * np.tanh(x) + z - 1.0) ** 2,
    "poisson": lambda x, z: 3.0 * (x + z) - np.exp(x + z),
    "product": lambda x, z: -0.5 * (x * z - 1.0) ** 2 / 0.3,
    "cauchy": lambda x, z: -np.log1p((x - z) ** 2 / 0.2),
    "nothing": lambda x, z: 0.0 * x,
    "two modes": lambda x, z: np.logaddexp(-8.0 * (x - z - 2) ** 2, -8.0 * (x + z + 2) ** 2),
}

"""Expectation propagation for a linear model in fifteen lines of NumPy: the reference.

The posterior is p(theta) Π_i t_i(x_i.theta), with p = N(0, prior): row i of X and y_i make the
factor t_i. EP puts a site g_i(h) = exp(scale_i + nu_i h - tau_i h^2 / 2) in place of each factor.
A Gaussian process is the case X = I, prior = K.
"""

import numpy as np


def plain_ep(
    X, y, triple, prior, *, power=1.0, damping=1.0, sweeps=1000, tol=1e-12, blocks=None, sites=None
):
    """Mean and covariance of theta, and the log evidence.

    ``triple(y, m, v, power)`` gives log Z, Z = E[t(h)^power] for h ~ N(m, v), and its first two
    derivatives by m. ``blocks`` are the rows that go together: one after the other if None,
    ``[slice(None)]`` is all at once. ``sites`` (3, n), if given, is the start and holds the end.
    """
    sites = np.zeros((3, len(X))) if sites is None else sites
    blocks = [slice(i, i + 1) for i in range(len(X))] if blocks is None else blocks
    for _ in range(sweeps):
        before = sites.copy()
        for i in blocks:
            mean, covariance, _ = posterior(X, prior, sites)
            h, s = X[i] @ mean, np.einsum("ij,jk,ik->i", X[i], covariance, X[i])
            tau, nu, _ = sites[:, i]
            v = 1 / (1 / s - power * tau)  # cavity N(m, v) = q / g^power
            m = v * (h / s - power * nu)
            lZ, dlZ, d2lZ = triple(y[i], m, v, power)  # tilted moments, as derivatives of log Z
            tau, nu = -d2lZ / (1 + v * d2lZ), (dlZ - m * d2lZ) / (1 + v * d2lZ)  # site g^power
            scale = lZ - log_integral(1 / v + tau, m / v + nu) + log_integral(1 / v, m / v)
            sites[:, i] += damping * (np.array([tau, nu, scale]) / power - sites[:, i])  # update
        if np.allclose(sites, before, rtol=0.0, atol=tol * np.abs(sites).max()):
            break
    return posterior(X, prior, sites)


def posterior(X, prior, sites):
    """Mean, covariance and log of the integral of N(theta; 0, prior) Π_i g_i; O(d^3)."""
    tau, nu, scale = sites
    ratio = np.eye(X.shape[1]) + prior @ (X.T * tau) @ X  # prior / covariance
    covariance = np.linalg.solve(ratio, prior)
    mean = covariance @ X.T @ nu
    return mean, covariance, scale.sum() + (nu @ X @ mean - np.linalg.slogdet(ratio)[1]) / 2


def log_integral(precision, shift):
    """log ∫ exp(shift h - precision h^2 / 2) dh, but for log(2 pi) / 2."""
    return (shift**2 / precision - np.log(precision)) / 2


def residual(X, y, triple, prior, sites, power=1.0):
    """The most that one more update of any one site would change, on the scale of the posterior."""
    new = np.array(sites, dtype=float)
    covariance = posterior(X, prior, new)[1]
    plain_ep(X, y, triple, prior, power=power, sweeps=1, blocks=[slice(None)], sites=new)
    s = np.einsum("ij,jk,ik->i", X, covariance, X)
    return np.abs((new - sites) * [s, np.sqrt(s), np.ones_like(s)]).max()

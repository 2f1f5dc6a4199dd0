"""EP, SEP and ADF for mixtures of Gaussians in plain NumPy, and a Gibbs sampler for the truth.

x ~ sum_j w_j N(mu_j, I / gamma), mu_j ~ N(m_j, S_j); w known or Dirichlet, gamma known or Gamma.
A belief is one vector of natural parameters: precisions (J, d, d), shifts (J, d), then alpha - 1
(J,) where weights are learnt, then shape - 1 and rate where the noise is. Tilted moments come from
the law of total covariance and matrix inverses; none of the formulas of the core is used.
"""

from typing import NamedTuple

import numpy as np
from scipy import optimize, special


class Model(NamedTuple):
    d: int
    J: int
    weights: np.ndarray | None = None  # None: learnt
    noise: float | None = None  # variance; None: learnt

    @property
    def size(self):
        return (
            self.J * self.d * (self.d + 1) + self.J * (self.weights is None) + 2 * (not self.noise)
        )

    def parts(self, eta):
        """Precisions, shifts, alpha or None, (shape, rate) or None."""
        J, d = self.J, self.d
        at = J * d * d
        precision, shift = eta[:at].reshape(J, d, d), eta[at : at + J * d].reshape(J, d)
        rest = eta[at + J * d :]
        alpha = rest[:J] + 1.0 if self.weights is None else None
        gamma = (rest[-2] + 1.0, rest[-1]) if self.noise is None else None
        return precision, shift, alpha, gamma

    def joined(self, precision, shift, alpha=None, gamma=None):
        parts = [precision.ravel(), shift.ravel()]
        parts += [] if self.weights is not None else [alpha - 1.0]
        parts += [] if self.noise is not None else [[gamma[0] - 1.0, gamma[1]]]
        return np.concatenate(parts)


def dirichlet_of_logs(logs):
    """alpha with E log w = logs, by a general root finder."""

    def gap(u):
        a = np.exp(u)
        return special.digamma(a) - special.digamma(a.sum()) - logs

    def slope(u):
        a = np.exp(u)
        return np.diag(special.polygamma(1, a) * a) - special.polygamma(1, a.sum()) * a

    best = None
    for first in (0.0, 2.0, 5.0, -2.0):
        for start in (np.full(len(logs), first), logs + first):
            found = optimize.root(gap, start, jac=slope, tol=1e-15)
            size = abs(gap(found.x)).max()
            if best is None or size < best[0]:
                best = size, found.x
    assert best[0] < 1e-10
    return np.exp(best[1])


def gamma_of_logs(mean, logs):
    """Shape and rate with E x = mean and E log x = logs."""
    gap = np.log(mean) - logs
    u = optimize.brentq(
        lambda u: u - special.digamma(np.exp(u)) - gap, -20.0, 30.0, xtol=1e-14, rtol=1e-15
    )
    return np.exp(u), np.exp(u) / mean


def log_partition(model, eta):
    precision, shift, alpha, gamma = model.parts(eta)
    total = 0.0
    for P, h in zip(precision, shift, strict=True):
        total += 0.5 * h @ np.linalg.solve(P, h) - 0.5 * np.linalg.slogdet(P / (2 * np.pi))[1]
    if alpha is not None:
        total += special.gammaln(alpha).sum() - special.gammaln(alpha.sum())
    if gamma is not None:
        total += special.gammaln(gamma[0]) - gamma[0] * np.log(gamma[1])
    return total


def grid(model, gamma, points=1501, reach=14.0):
    """Values of the precision of the noise and their probabilities: the trapezoidal rule in logs.

    (with one point, where the noise is known)
    """
    if model.noise is not None:
        return np.array([1.0 / model.noise]), np.ones(1)
    shape, rate = gamma
    spread = max(1.0 / np.sqrt(shape), 1.0 / shape)
    t = np.log(shape / rate) + np.linspace(-reach - 2.0 * reach * spread, reach, points)
    logs = shape * np.log(rate) - special.gammaln(shape) + shape * t - rate * np.exp(t)
    return np.exp(t), np.exp(logs) * (t[1] - t[0])


def tilted(model, eta, x):
    """log Z and the natural parameters of the projection of cavity times factor."""
    precision, shift, alpha, gamma = model.parts(eta)
    S = np.linalg.inv(precision)
    m = np.einsum("jkl,jl->jk", S, shift)
    weights = model.weights if alpha is None else alpha / alpha.sum()
    values, masses = grid(model, gamma)
    J, d = model.J, model.d
    logs, means, covariances = np.empty((len(values), J)), [], []
    for q, value in enumerate(values):
        C = S + np.eye(d) / value
        gain = S @ np.linalg.inv(C)
        e = x - m
        size = np.einsum("jk,jk->j", e, np.linalg.solve(C, e[:, :, None])[:, :, 0])
        logs[q] = np.log(weights) - 0.5 * (size + np.linalg.slogdet(2 * np.pi * C)[1])
        means.append(m + np.einsum("jkl,jl->jk", gain, e))
        covariances.append(S - gain @ S)
    means, covariances = np.array(means), np.array(covariances)
    with np.errstate(divide="ignore"):
        joint = logs + np.log(masses)[:, None]
    log_Z = special.logsumexp(joint)
    p = np.exp(joint - log_Z)  # (Q, J)
    r = p.sum(axis=0)
    new_m, new_P = np.empty_like(m), np.empty_like(precision)
    for j in range(J):
        new_m[j] = (1 - r[j]) * m[j] + p[:, j] @ means[:, j]
        away = means[:, j] - new_m[j]
        V = np.tensordot(p[:, j], covariances[:, j], 1)
        V += (p[:, j, None] * away).T @ away
        V += (1 - r[j]) * (S[j] + np.outer(m[j] - new_m[j], m[j] - new_m[j]))
        new_P[j] = np.linalg.inv(V)
    new_alpha = new_gamma = None
    if alpha is not None:
        A = alpha.sum()
        new_alpha = dirichlet_of_logs(special.digamma(alpha) + r / alpha - special.digamma(A + 1.0))
    if gamma is not None:
        mass = p.sum(axis=1)
        new_gamma = gamma_of_logs(mass @ values, mass @ np.log(values))
    new = model.joined(new_P, np.einsum("jkl,jl->jk", new_P, new_m), new_alpha, new_gamma)
    return log_Z, new


def ep(model, base, X, sites, scales, orders, damping=1.0):
    """EP over rows in the given orders; sites (n, P) and scales (n,) change in place."""
    q = base + sites.sum(axis=0)
    for order in orders:
        for n in order:
            cavity = q - sites[n]
            log_Z, new = tilted(model, cavity, X[n])
            scale = log_Z + log_partition(model, cavity) - log_partition(model, new)
            sites[n] += damping * (new - cavity - sites[n])
            scales[n] += damping * (scale - scales[n])
            q = cavity + sites[n]
    return q, evidence(model, base, q, scales.sum())


def sep(model, base, X, site, scale, orders, damping=1.0, batch=1):
    """SEP: one site; the batches of each order are fitted against one cavity."""
    N = len(X)
    q = base + N * site
    for order in orders:
        for first in range(0, N, batch):
            cavity, change, rise = q - site, 0.0, 0.0
            for n in order[first : first + batch]:
                log_Z, new = tilted(model, cavity, X[n])
                change = change + new - cavity - site
                rise += log_Z + log_partition(model, cavity) - log_partition(model, new) - scale
            site, scale = site + damping / N * change, scale + damping / N * rise
            q = q + damping * change
    return q, site, evidence(model, base, q, N * scale)


def adf(model, base, X, order):
    """ADF, one pass."""
    q, total = base, 0.0
    for n in order:
        log_Z, q = tilted(model, q, X[n])
        total += log_Z
    return q, total


def evidence(model, base, q, scale):
    return log_partition(model, q) - log_partition(model, base) + scale


def gibbs(X, weights, noise, mean, precision, draws, seed, burn=200):
    """Posterior means (J, d) and covariances (J, d, d) of the components: weights, noise known."""
    rng = np.random.default_rng(seed)
    J, d = mean.shape
    mu = mean.copy()
    total, square = np.zeros((J, d)), np.zeros((J, d, d))
    for step in range(burn + draws):
        logs = np.log(weights) - 0.5 / noise * ((X[:, None] - mu) ** 2).sum(axis=2)
        label = (logs + rng.gumbel(size=logs.shape)).argmax(axis=1)
        for j in range(J):
            mine = X[label == j]
            P = precision[j] + np.eye(d) * len(mine) / noise
            L = np.linalg.cholesky(P)
            center = np.linalg.solve(P, precision[j] @ mean[j] + mine.sum(axis=0) / noise)
            mu[j] = center + np.linalg.solve(L.T, rng.standard_normal(d))
        if step >= burn:
            total += mu
            square += mu[:, :, None] * mu[:, None, :]
    found = total / draws
    return found, square / draws - found[:, :, None] * found[:, None, :]

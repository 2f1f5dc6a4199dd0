"""Poisson and binomial losses as the core takes them, and in plain NumPy; data for them."""

import numpy as np
from scipy.special import gammaln

from epfast._core.loss import LOSS_WIDTHS, CoreLoss

KINDS = ["poisson", "binomial"]


def poisson(counts):
    counts = np.asarray(counts, dtype=float)
    return np.column_stack([counts, gammaln(counts + 1.0)])


def binomial(counts, trials):
    counts, trials = np.broadcast_arrays(np.asarray(counts, float), np.asarray(trials, float))
    constant = gammaln(trials + 1.0) - gammaln(counts + 1.0) - gammaln(trials - counts + 1.0)
    return np.column_stack([counts, trials, constant])


def softplus(h):
    return np.logaddexp(0.0, h)


def sigmoid(h):
    return 0.5 * (1.0 + np.tanh(0.5 * h))


def value(kind, h, y):
    if kind == "poisson":
        return np.exp(h) - y[..., 0] * h + y[..., 1]
    return y[..., 1] * softplus(h) - y[..., 0] * h - y[..., 2]


def slope(kind, h, y):
    return np.exp(h) - y[..., 0] if kind == "poisson" else y[..., 1] * sigmoid(h) - y[..., 0]


def curvature(kind, h, y):
    return np.exp(h) if kind == "poisson" else y[..., 1] * sigmoid(h) * sigmoid(-h)


def user_loss(kind, beta=1.0):
    """The same loss as Python functions."""
    parts = [lambda h, y, f=f: f(kind, h, y) for f in (value, slope, curvature)]
    return CoreLoss.python(*parts, beta=beta, width=LOSS_WIDTHS[kind])


def core_of(kind, made, beta=1.0):
    return CoreLoss.table(kind, beta=beta) if made == "table" else user_loss(kind, beta)


def data(kind, n, d, seed=0):
    rng = np.random.default_rng([seed, n, d])
    X = rng.normal(0.0, 0.5, (n, d))
    h = X @ rng.normal(size=d)
    if kind == "poisson":
        return X, poisson(rng.poisson(np.exp(h)))
    trials = rng.integers(1, 9, n)
    return X, binomial(rng.binomial(trials, sigmoid(h)), trials)

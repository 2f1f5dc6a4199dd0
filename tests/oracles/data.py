"""Data for the tests: small, seeded, and never separable by accident of a default."""

import numpy as np


def prior_of_ones(variance, intercept, rows, weights=None):
    """(d + 1, d + 1), the prior precision of rows with a column of ones: b + mean.w is N(0, V)."""
    counts = np.ones(len(rows)) if weights is None else weights
    row = np.append(rows.mean(axis=0) if weights is None else rows.T @ (counts / counts.sum()), 1.0)
    own = np.full(len(row) - 1, 0.0) + 1.0 / np.asarray(variance)
    return np.diag(np.append(own, 0.0)) + np.outer(row, row / intercept)


def classes(n, d, *, seed=0, scale=1.0, noise=1.0, intercept=False, direction=None):
    """X (n, d) and labels sign(X theta + noise); seed may be a list, scale one per column.

    ``direction`` is theta, drawn if None; ``intercept`` makes the last column of X ones.
    """
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)) * scale
    if intercept:
        X[:, -1] = 1.0
    theta = rng.normal(size=d) if direction is None else np.asarray(direction)
    return X, np.where(X @ theta + noise * rng.normal(size=n) > 0, 1.0, -1.0)


def first_column(n, d, *, seed=0, noise=1.0):
    """Classes of which only the first column tells something."""
    return classes(n, d, seed=seed, noise=noise, direction=np.eye(d)[0])


def rbf(X, Z=None, *, width=1.0, variance=1.0):
    """The squared exponential kernel between the rows of X and of Z."""
    Z = X if Z is None else Z
    return variance * np.exp(-0.5 * ((X[:, None] - Z[None]) ** 2).sum(-1) / width**2)


def process(n, *, d=2, width=1.0, variance=4.0, noise=0.5, seed=0):
    """Inputs, their kernel matrix, and labels of a wave along the first two inputs."""
    X = np.random.default_rng(seed).normal(size=(n, d))
    f = np.sin(2 * X[:, 0]) + X[:, 1] + noise * np.random.default_rng(seed + 1).normal(size=n)
    return X, rbf(X, width=width, variance=variance), np.where(f > 0, 1.0, -1.0)


def clusters(n, flips, seed):
    """A kernel matrix of two classes, one of two clusters, and labels of which some are flipped."""
    rng = np.random.default_rng(seed)
    y = np.where(rng.permutation(n) < n // 2, 1.0, -1.0)
    centre = np.where(y > 0, 0.0, rng.choice([-2.0, 2.0], n))
    X = rng.normal(size=(n, 2)) + centre[:, None]
    return rbf(X) + 1e-6 * np.eye(n), np.where(rng.random(n) < flips, -y, y)

"""Poisson regression with large means, wide priors and columns of any scale, by defaults."""

import warnings

import numpy as np
import pytest
from scipy import special

import epfast
from epfast import losses

PRIOR = 100.0


def log_posterior(X, y, theta):
    """Of the rows of theta, (k, d), with all constants."""
    h = theta @ X.T
    d = X.shape[1]
    fit = (y * h - np.exp(np.minimum(h, 700.0)) - special.gammaln(y + 1.0)).sum(axis=1)
    return fit - 0.5 * (theta**2).sum(axis=1) / PRIOR - 0.5 * d * np.log(2.0 * np.pi * PRIOR)


def brute_force(X, y, start):
    """Log evidence by a grid about the mode, which Newton's steps find."""
    d = X.shape[1]
    for _ in range(100):
        mean = np.exp(X @ start)
        precision = (X.T * mean) @ X + np.eye(d) / PRIOR
        start = start + np.linalg.solve(precision, X.T @ (y - mean) - start / PRIOR)
    root = np.linalg.cholesky(np.linalg.inv(precision))
    u = np.linspace(-10.0, 10.0, 201)
    grid = np.stack([axis.ravel() for axis in np.meshgrid(*[u] * d)], axis=1)
    parts = np.array_split(start + grid @ root.T, 50)
    found = np.concatenate([log_posterior(X, y, part) for part in parts])
    cell = (u[1] - u[0]) ** d * np.prod(np.diag(root))
    return special.logsumexp(found) + np.log(cell)


@pytest.mark.parametrize("mean", [1e4, 1e6])
@pytest.mark.parametrize("scale", [None, 1.0, 50.0])
def test_evidence_of_large_counts(mean, scale):
    rng = np.random.default_rng(int(mean))
    n = 60
    X = np.ones((n, 1))
    theta = np.array([np.log(mean)])
    if scale is not None:
        X = np.column_stack([X, scale * rng.normal(size=n)])
        theta = np.append(theta, 0.7 / scale)
    y = rng.poisson(np.exp(X @ theta)).astype(float)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        post = epfast.fit_linear(X, y, loss=losses.Poisson(), prior_variance=PRIOR)
    assert post.converged
    assert post.log_evidence == pytest.approx(brute_force(X, y, theta), abs=2e-4)


def test_log_factorials_of_few_and_many_counts():
    for y in (np.array([0.0, 3.0, 7.0]), np.arange(50.0) % 5, np.array([1e9, 0.0])):
        found = losses.Poisson().responses("y", y, y.size)
        np.testing.assert_array_equal(found, np.column_stack([y, special.gammaln(y + 1.0)]))

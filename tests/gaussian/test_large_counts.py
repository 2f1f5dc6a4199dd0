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


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("prior_variance", [1.0, 1e4, 1e8])
@pytest.mark.parametrize("mean", [1e6, 1e9, 1e12])
def test_counts_far_narrower_than_the_prior(mean, prior_variance, weighted):
    """Weighted least squares of log y is right to 1 / sqrt(y) of a sd at such counts.

    Sites are refused from flat ones, as rounding leaves no digits of a factor that is 1e5 times
    narrower than its cavity; from the peaks of the factors none is.
    """
    rng = np.random.default_rng(0)
    Z = np.column_stack([np.ones(50), rng.normal(size=(50, 2))])
    y = rng.poisson(mean * np.exp(0.3 * Z[:, 1])).astype(float)
    weights = np.arange(50) % 3 + 1.0 if weighted else None
    W = y if weights is None else weights * y
    precision = (Z.T * W) @ Z + np.eye(3) / prior_variance
    expected = np.linalg.solve(precision, (Z.T * W) @ np.log(y))
    given = {"loss": "poisson", "prior_variance": prior_variance, "weights": weights}
    post = epfast.fit_linear(Z, y, **given)
    assert post.converged
    variance = np.diag(np.linalg.inv(precision))
    assert np.all(np.abs(post.mean - expected) < 10.0 * mean**-0.5 * np.sqrt(variance) + 1e-12)
    np.testing.assert_allclose(post.variance, variance, rtol=1e-2 * (1e6 / mean) ** 0.5)


@pytest.mark.parametrize("loss", ["poisson", "binomial"])
def test_raw_columns_and_a_wide_prior(loss):
    """Newton's steps on the likelihood are the truth, to the bias of a mean from a mode at n = 40.

    The prior sd of x.theta is 1e3 times 30,000, a column of incomes as they come.
    """
    rng = np.random.default_rng(1)
    n = 40
    income, z = 30000.0 + 8000.0 * rng.normal(size=n), rng.normal(size=n)
    Z = np.column_stack([np.ones(n), (income - 30000.0) / 8000.0, z])
    if loss == "poisson":
        y = response = rng.poisson(np.exp(Z @ [1.0, 0.3, 0.3])).astype(float)
    else:
        y = rng.binomial(30, special.expit(Z @ [1.0, 0.3, 0.3])).astype(float)
        response = np.column_stack([y, np.full(n, 30.0)])
    b = np.zeros(3)
    for _ in range(50):
        p, mean = special.expit(Z @ b), np.exp(Z @ b)
        mean, curvature = (mean, mean) if loss == "poisson" else (30.0 * p, 30.0 * p * (1.0 - p))
        b = b + np.linalg.solve((Z.T * curvature) @ Z, Z.T @ (y - mean))
    sd = np.sqrt(np.diag(np.linalg.inv((Z.T * curvature) @ Z)))
    X = np.column_stack([np.ones(n), income, z])
    for prior_variance in (1e4, 1e6):
        post = epfast.fit_linear(X, response, loss=loss, prior_variance=prior_variance)
        assert post.converged
        found = post.mean[1:] * [8000.0, 1.0]
        assert np.all(np.abs(found - b[1:]) < 0.1 * sd[1:])


def test_estimators_of_large_counts():
    """As in weighted least squares of log y, without an argument but the loss."""
    rng = np.random.default_rng(2)
    X = rng.normal(size=(100, 1))
    for mean in (1e6, 1e9):
        y = rng.poisson(mean * np.exp(0.3 * X[:, 0]))
        model = epfast.LinearRegressor(loss="poisson").fit(X, y)
        assert model.converged_
        assert model.coef_[0] == pytest.approx(0.3, abs=5.0 * mean**-0.5)
        assert model.intercept_ == pytest.approx(np.log(mean), abs=5.0 * mean**-0.5)

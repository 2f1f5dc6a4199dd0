"""Full covariance: prediction and samples."""

import mpmath
import numpy as np
import pytest
from scipy import special

import epfast
from tests.oracles.scalar_sites import (
    LOSSES,
    brute,
    data,
    fit,
)


def test_prediction_and_samples():
    X, y = data(30, 4)
    rows = np.random.default_rng(5).normal(size=(11, 4)) * np.linspace(1, 100, 11)[:, None]
    for loss in ("logistic", "probit"):
        post = fit(X, y, loss, prior_variance=2.0)
        mean, variance = post.predict_latent(rows)
        np.testing.assert_allclose(mean, rows @ post.mean, rtol=1e-11)
        np.testing.assert_allclose(variance, np.diag(rows @ post.covariance @ rows.T), rtol=1e-10)
        p = np.exp(brute(LOSSES[loss], np.ones(11), mean, variance, 1.0)[0])
        np.testing.assert_allclose(post.predict_proba(rows), p, atol=2e-8)
    closed = special.ndtr(mean / np.sqrt(1 + variance))
    np.testing.assert_allclose(post.predict_proba(rows), closed, rtol=1e-12)
    sd = np.sqrt(post.variance)
    draws, correlation = post.sample(40_000, 1) / sd, post.covariance / np.outer(sd, sd)
    np.testing.assert_allclose(draws.mean(axis=0), post.mean / sd, atol=0.025)
    np.testing.assert_allclose(np.cov(draws.T), correlation, atol=0.035)
    np.testing.assert_array_equal(post.sample(3, 5), post.sample(3, np.random.default_rng(5)))


@pytest.mark.parametrize("ratio", [1.0, 1e3, 1e6])
def test_evidence_of_noise_far_below_the_response(ratio):
    """The marginal density of y in 50 digits. Scales of sites lost eps ratio^2 of each row."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(12, 2))
    y = ratio * X @ [1.0, -2.0] + rng.normal(size=12)
    variance = 4.0 * ratio**2
    noise = epfast.losses.Gaussian(1.0)
    post = epfast.fit_linear(X, y, loss=noise, prior_variance=variance)
    with mpmath.workdps(50):
        rows = mpmath.matrix(X.tolist())
        K = variance * rows * rows.T + mpmath.eye(12)
        z = mpmath.lu_solve(K, mpmath.matrix(y.tolist()))
        quadratic = sum(a * b for a, b in zip(y.tolist(), z, strict=True))
        exact = -(quadratic + mpmath.log(mpmath.det(K)) + 12 * mpmath.log(2 * mpmath.pi)) / 2
    assert post.log_evidence == pytest.approx(float(exact), rel=1e-9)

"""Full covariance: prediction and samples."""

import numpy as np
from scipy import special

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

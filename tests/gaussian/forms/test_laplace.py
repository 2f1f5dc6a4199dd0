"""Laplace propagation on minibatch factors (Smola et al. 2003)."""

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import ADF, EP, SEP
from tests.oracles.full_fits import TIGHT, assert_same, data, fit, ordered


def map_of(X, y, precision):
    def cost(theta):
        return np.logaddexp(0, -y * (X @ theta)).sum() + 0.5 * theta @ precision @ theta

    def slope(theta):
        return X.T @ (-y / (1 + np.exp(y * (X @ theta)))) + precision @ theta

    def hessian(theta):
        p = 1 / (1 + np.exp(-X @ theta))
        return (X * (p * (1 - p))[:, None]).T @ X + precision

    theta = np.zeros(X.shape[1])
    for _ in range(50):
        theta = theta - np.linalg.solve(hessian(theta), slope(theta))
    assert abs(slope(theta)).max() < 1e-9
    return theta, hessian(theta), cost(theta)


@pytest.mark.parametrize("scheme", ["laplace", "quick_laplace"])
@pytest.mark.parametrize("order", ["sequential", "shuffled", "parallel"])
@pytest.mark.parametrize("batch_size", [1, 7, 20, 60, 100])
def test_laplace_propagation_finds_the_mode(batch_size, order, scheme):
    """Smola et al. (2003), Lemma 1: fixed points are stationary points of the exact posterior."""
    X, y = data()
    schedule = EP(**TIGHT, **ordered(order, 2), damping=0.7 if order == "parallel" else 1.0)
    if scheme == "quick_laplace":
        # expanded at the mean of the cavity, it has that fixed point only in the limit of many rows
        post = fit(X, y, "logistic", scheme=scheme, batch_size=batch_size, schedule=schedule)
        assert np.isfinite(post.log_evidence)
        return
    precision = np.eye(5) + 0.1
    arguments = {"prior_precision": precision, "schedule": schedule}
    post = fit(X, y, "logistic", scheme=scheme, batch_size=batch_size, **arguments)
    theta, hessian, cost = map_of(X, y, precision)
    assert post.converged
    assert post.residual < 1e-8
    np.testing.assert_allclose(post.mean, theta, atol=1e-8)
    np.testing.assert_allclose(post.precision, hessian, rtol=1e-7)
    # the evidence is that of Laplace's method
    evidence = -cost + 0.5 * np.linalg.slogdet(precision)[1] - 0.5 * np.linalg.slogdet(hessian)[1]
    assert post.log_evidence == pytest.approx(evidence, abs=1e-7)


@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_laplace_propagation_is_exact_in_one_step_for_normal_factors(order):
    """Smola et al. (2003), Theorem 2."""
    X, y = data()
    loss = epfast.CustomLoss(lambda m: 0.5 * (m - 1) ** 2, lambda m: m - 1, lambda m: 1 + 0 * m)
    schedule = EP(1, 0.0, order=order)
    post = fit(X, y, loss, scheme="laplace", batch_size=9, schedule=schedule, prior_variance=2.0)
    covariance = np.linalg.inv(np.eye(5) / 2 + X.T @ X)
    np.testing.assert_allclose(post.covariance, covariance, rtol=1e-10, atol=1e-13)
    np.testing.assert_allclose(post.mean, covariance @ X.T @ y, rtol=1e-10, atol=1e-12)


def test_first_parallel_step_is_the_bayes_committee_machine():
    """Flat sites, each chunk fitted to the prior alone, the results multiplied (Tresp 2000)."""
    X, y = data()
    prior = np.eye(5) / 3.0
    precision, shift = prior.copy(), np.zeros(5)
    for part in (slice(0, 25), slice(25, 50), slice(50, 60)):
        theta, hessian, _ = map_of(X[part], y[part], prior)
        precision += hessian - prior
        shift += hessian @ theta
    schedule = EP(1, 0.0, order="parallel")
    post = fit(X, y, "logistic", scheme="laplace", batch_size=25, schedule=schedule)
    np.testing.assert_allclose(post.precision, precision, rtol=1e-7)
    np.testing.assert_allclose(post.shift, shift, rtol=1e-6)


def test_laplace_weights_powers_sparse_and_adf():
    X, y = data()
    w = np.random.default_rng(3).integers(0, 3, 60)
    rows = np.repeat(np.arange(60), w)
    options = {"scheme": "laplace", "batch_size": 12}
    a = fit(X, y, "logistic", weights=w, **options)
    assert_same(a, fit(X[rows], y[rows], "logistic", **options), 1e-7)
    assert_same(fit(sparse.csr_matrix(X), y, "logistic", weights=w, **options), a)
    power = fit(X, y, "logistic", weights=w, **options | {"schedule": EP(**TIGHT, power=0.5)})
    assert_same(power, a, 1e-7)
    once = fit(X, y, "logistic", **options | {"schedule": ADF()})
    assert_same(once, fit(X, y, "logistic", **options | {"schedule": EP(1, 0.0)}), 1e-10)
    assert fit(X, y, "squared_hinge", **options).residual < 1e-8
    for scheme in ("variational", "quadrature", "exact"):
        with pytest.raises(ValueError, match=r"^scheme\b"):
            fit(X, y, scheme=scheme, batch_size=3)
    with pytest.raises(ValueError, match=r"^schedule\b"):
        fit(X, y, scheme="laplace", batch_size=3, schedule=SEP())

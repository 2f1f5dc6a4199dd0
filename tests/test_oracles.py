"""The oracles themselves: against each other, and where the answer is known."""

import mpmath as mp
import numpy as np
import pytest

from tests.oracles import brute_force
from tests.oracles.data import classes, process
from tests.oracles.plain_ep import plain_ep, posterior, residual

LOGISTIC = brute_force.triple(lambda m: np.logaddexp(0.0, -m))


def gaussian(noise):
    """The triple of t(h) = N(y; h, noise)^power."""

    def triple(y, m, v, power):
        spread = v + noise / power
        scale = 0.5 * (np.log(2 * np.pi * noise / power) - power * np.log(2 * np.pi * noise))
        lZ = scale - 0.5 * (np.log(2 * np.pi * spread) + (y - m) ** 2 / spread)
        return lZ, (y - m) / spread, -1 / spread

    return triple


@pytest.mark.parametrize("power", [1.0, 0.5])
def test_plain_ep_of_gaussian_factors_is_regression(power):
    X, _ = classes(20, 3)
    y = X @ [1.0, 2.0, -1.0] + 0.3
    mean, covariance, evidence = plain_ep(X, y, gaussian(0.5), 2.0 * np.eye(3), power=power)
    total = 2.0 * X @ X.T + 0.5 * np.eye(20)
    solved = np.linalg.solve(total, y)
    np.testing.assert_allclose(mean, 2.0 * X.T @ solved, atol=1e-10)
    expected = 2.0 * np.eye(3) - 4.0 * X.T @ np.linalg.solve(total, X)
    np.testing.assert_allclose(covariance, expected, atol=1e-10)
    log_det = np.linalg.slogdet(2 * np.pi * total)[1]
    assert evidence == pytest.approx(-0.5 * (log_det + y @ solved), abs=1e-9)


def test_every_order_of_plain_ep_ends_at_one_fixed_point():
    X, y = classes(15, 2, noise=2.0)
    ends = []
    for blocks, damping in ((None, 1.0), ([slice(None)], 0.7), ([slice(0, 9), slice(9, 15)], 0.8)):
        sites = np.zeros((3, 15))
        given = {"blocks": blocks, "damping": damping, "sites": sites}
        ends.append(plain_ep(X, y, LOGISTIC, np.eye(2), **given))
        assert residual(X, y, LOGISTIC, np.eye(2), sites) < 1e-10
        for part, again in zip(ends[-1], posterior(X, np.eye(2), sites), strict=True):
            np.testing.assert_array_equal(part, again)
    for end in ends[1:]:
        for part, other in zip(end, ends[0], strict=True):
            np.testing.assert_allclose(part, other, atol=1e-9)


def test_plain_ep_of_a_process_is_that_of_its_weights():
    """K = G G', f = G w: the same fit in the space of w."""
    _, K, y = process(8)
    G = np.linalg.cholesky(K)
    mean, covariance, evidence = plain_ep(np.eye(8), y, LOGISTIC, K)
    weights = plain_ep(G, y, LOGISTIC, np.eye(8))
    np.testing.assert_allclose(mean, G @ weights[0], atol=1e-8)
    np.testing.assert_allclose(covariance, G @ weights[1] @ G.T, atol=1e-8)
    assert evidence == pytest.approx(weights[2], abs=1e-9)


@pytest.mark.parametrize("d", [1, 2])
def test_plain_ep_is_near_the_integral(d):
    X, y = classes(12, d, noise=2.0, scale=0.7)
    mean, covariance, evidence = plain_ep(X, y, LOGISTIC, np.eye(d))
    found = brute_force.linear_posterior(
        lambda m: np.logaddexp(0.0, -m), X, y, np.eye(d), mean, covariance
    )
    assert evidence == pytest.approx(found[0], abs=5e-3)
    np.testing.assert_allclose(mean, found[1], atol=5e-3)
    np.testing.assert_allclose(covariance, found[2], atol=5e-3)


@pytest.mark.parametrize(("m", "v"), [(0.2, 1e-4), (-4.0, 0.3), (3.0, 20.0)])
def test_quadrature_is_that_of_fifty_digits(m, v):
    exact = brute_force.fifty_digits(lambda h: -mp.log1p(mp.exp(-h)), m, v)
    found = brute_force.tilted(lambda h: -np.logaddexp(0.0, -h), [m], [v])
    by_slopes = brute_force.tilted(
        lambda h: -np.logaddexp(0.0, -h),
        [m],
        [v],
        derivatives=lambda h: (1 / (1 + np.exp(h)), -1 / (2 + np.exp(h) + np.exp(-h))),
    )
    unit = np.array([1.0, np.sqrt(v), v])
    np.testing.assert_allclose(np.ravel(found) * unit, exact * unit, rtol=0, atol=1e-12)
    np.testing.assert_allclose(np.ravel(by_slopes), exact, rtol=1e-10)


def test_grids_integrate_a_normal():
    rng = np.random.default_rng(0)
    for d in (1, 2):
        root = rng.normal(size=(d, d))
        covariance, center = root @ root.T + np.eye(d), rng.normal(size=d)
        log_mass, mean, spread = brute_force.posterior(
            lambda theta, c=center, S=covariance: brute_force.log_prior(theta - c, S) + 3.0,
            *(center + 0.5, 1.5 * covariance),
        )
        assert log_mass == pytest.approx(3.0, abs=1e-9)
        np.testing.assert_allclose(mean, center, atol=1e-9)
        np.testing.assert_allclose(spread, covariance, atol=1e-9)

"""Derivatives of the log evidence with the sites of fits held, against fits; Newton's steps."""

import numpy as np
import pytest

from epfast import EP, losses
from epfast.gaussian.fit_linear import fit_linear
from epfast.gaussian.held import curvature, newton, newton_step

RNG = np.random.default_rng(11)
X = RNG.normal(size=(80, 4)) + 3.0
Y = X @ [1.0, -0.5, 0.1, 0.0] + 0.5 * RNG.normal(size=80)
GROUPS = np.array([0, 1, 1, 0])


def fitted(u, **given):
    return fit_linear(X, prior_variance=np.exp(u)[GROUPS], schedule=EP(500, 1e-12), **given)


def test_of_gaussian_noise_it_is_that_of_the_log_evidence():
    """Its sites do not change with the prior: second derivatives are exact."""
    u, given = np.array([0.3, -1.2]), {"y": Y, "loss": losses.Gaussian(0.3)}

    def log_evidence(i, j):
        step = 1e-3 * (np.arange(2) == abs(i) - 1) * np.sign(i)
        step = step + 1e-3 * (np.arange(2) == abs(j) - 1) * np.sign(j)
        return fitted(u + step, **given).log_evidence

    post = fitted(u, **given)
    found = curvature(post.mean, post.covariance, GROUPS, np.exp(u))
    for i, j in np.ndindex(2, 2):
        k, m = i + 1, j + 1
        values = log_evidence(k, m) - log_evidence(k, -m) - log_evidence(-k, m)
        assert found[i, j] == pytest.approx((values + log_evidence(-k, -m)) / 4e-6, abs=1e-4)


@pytest.mark.parametrize("limit", [5.0, 0.5])
def test_newton(limit):
    """The maximum of a function that is convex where it starts, and that at a bound."""

    def bell(x):
        value = np.exp(-0.5 * x @ x)
        return value, -x * value, (np.outer(x, x) - np.eye(2)) * value

    bounds = np.array([[-limit, limit], [0.5, 9.0]])
    found = newton(lambda x: bell(x - [1.0, 0.0]), np.array([3.0, 4.0]), bounds)
    np.testing.assert_allclose(found, [min(1.0, limit), 0.5], atol=1e-7)


def test_a_step_of_unknown_derivatives():
    u, bounds = np.zeros(2), np.array([[-1.0, 1.0]] * 2)
    assert newton_step(u, np.ones(2), np.full((2, 2), np.nan), bounds) is None
    assert newton_step(u, np.array([1.0, np.nan]), -np.eye(2), bounds) is None


@pytest.mark.parametrize("power", [1.0, 2.0])
@pytest.mark.parametrize("sign", [-1.0, 1.0])
def test_a_variance_that_hardly_matters_goes_to_its_end(power, sign):
    """The density is linear in a variance near 0, in its inverse far away: Newton's steps crawl."""
    u, bounds = np.array([3.0 * sign, 0.0]), np.array([[-9.0, 8.0]] * 2)
    slope = sign * 1e-2
    slopes, bent = np.array([slope, slope]), -power * abs(slope) * np.eye(2)
    found = newton_step(u, slopes, bent, bounds, np.array([True, False]), power)
    assert found == pytest.approx([8.0 if sign > 0.0 else -9.0, sign / power])

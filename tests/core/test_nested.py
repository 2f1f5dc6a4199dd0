"""EP within rows of several classes, in the core."""

import numpy as np
import pytest
from scipy import special, stats

from epfast._core.nested import NestedRows

pytestmark = pytest.mark.simd


def rows(n, k, seed=0):
    rng = np.random.default_rng(seed)
    half = rng.normal(size=(n, k, k + 1))
    return rng.normal(size=(n, k)), half @ half.swapaxes(1, 2) / k


def fitted(mean, V, rounds=60, enough=1e-12, tau=None, nu=None):
    n, k = mean.shape
    tau = np.zeros((n, k)) if tau is None else tau.copy()
    nu = np.zeros((n, k)) if nu is None else nu.copy()
    own, value = np.empty((2, n))
    refused = NestedRows(k).fit(mean, V, tau, nu, rounds, enough, own, value)
    assert refused == 0
    return tau, nu, own, value


def plain(mean, V, rounds):
    """One row in NumPy, each time from the whole matrix."""
    k = len(mean)
    K, tau, nu, scale = V + 1.0, np.zeros(k), np.zeros(k), np.zeros(k)
    for _ in range(rounds):
        for j in range(k):
            S = np.linalg.inv(np.linalg.inv(K) + np.diag(tau))
            c = S @ (np.linalg.solve(K, mean) + nu)
            v = 1.0 / (1.0 / S[j, j] - tau[j])
            m = v * (c[j] / S[j, j] - nu[j])
            a = m / np.sqrt(1.0 + v)
            ratio = np.exp(stats.norm.logpdf(a) - special.log_ndtr(a))
            d, d2 = ratio / np.sqrt(1.0 + v), -ratio * (a + ratio) / (1.0 + v)
            tau[j], nu[j] = -d2 / (1.0 + v * d2), (d - m * d2) / (1.0 + v * d2)
            grown = 1.0 + tau[j] * v
            scale[j] = special.log_ndtr(a) + 0.5 * np.log(grown)
            scale[j] -= 0.5 * (v * nu[j] ** 2 + 2.0 * m * nu[j] - tau[j] * m**2) / grown
    S = np.linalg.inv(np.linalg.inv(K) + np.diag(tau))
    c = S @ (np.linalg.solve(K, mean) + nu)
    value = scale.sum() + 0.5 * (np.linalg.slogdet(S)[1] - np.linalg.slogdet(K)[1])
    value += 0.5 * (c @ np.linalg.solve(S, c) - mean @ np.linalg.solve(K, mean))
    return tau, nu, value


@pytest.mark.parametrize("k", [1, 2, 5])
def test_rounds_are_those_of_plain_ep(k):
    mean, V = rows(4, k)
    tau, nu, _, value = fitted(mean, V, rounds=3, enough=0.0)
    for i in range(4):
        want = plain(mean[i], V[i], 3)
        for got, expected in zip((tau[i], nu[i], value[i]), want, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-10)


def test_one_factor_is_exact():
    mean, V = rows(20, 1)
    value = fitted(mean, V)[3]
    want = special.log_ndtr(mean[:, 0] / np.sqrt(2.0 + V[:, 0, 0]))
    np.testing.assert_allclose(value, want, rtol=1e-12, atol=1e-13)


def test_the_site_of_a_row_integrates_to_the_value():
    """With u integrated out: diag(tau) less a product, nu less a share, and the log at 0."""
    mean, V = rows(6, 3)
    tau, nu, own, value = fitted(mean, V)
    for i in range(6):
        T = np.diag(tau[i]) - np.outer(tau[i], tau[i]) / (1.0 + tau[i].sum())
        b = nu[i] - tau[i] * nu[i].sum() / (1.0 + tau[i].sum())
        P = np.linalg.inv(V[i])
        shift = P @ mean[i] + b
        total = own[i] + 0.5 * np.linalg.slogdet(P)[1] - 0.5 * np.linalg.slogdet(P + T)[1]
        total += 0.5 * shift @ np.linalg.solve(P + T, shift) - 0.5 * mean[i] @ P @ mean[i]
        assert value[i] == pytest.approx(total, abs=1e-10)


def test_a_start_at_the_fixed_point_stays():
    mean, V = rows(5, 4)
    tau, nu, own, value = fitted(mean, V)
    again = fitted(mean, V, rounds=1, tau=tau, nu=nu)
    for got, want in zip(again, (tau, nu, own, value), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-10)


def test_values_are_near_those_of_draws():
    mean, V = rows(3, 3, seed=2)
    value = fitted(mean, V)[3]
    rng = np.random.default_rng(0)
    for i in range(3):
        a = rng.multivariate_normal(mean[i], V[i], size=400_000)
        u = rng.normal(size=(400_000, 1))
        truth = np.log(special.ndtr(a + u).prod(axis=1).mean())
        assert value[i] == pytest.approx(truth, abs=0.02)


def test_shapes_are_checked():
    mean, V = rows(3, 2)
    with pytest.raises(ValueError, match="not of 3 rows and 3 factors"):
        NestedRows(3).fit(mean, V, mean.copy(), mean.copy(), 1, 0.0, np.empty(3), np.empty(3))
    with pytest.raises(ValueError, match="own"):
        NestedRows(2).fit(mean, V, mean.copy(), mean.copy(), 1, 0.0, np.empty(2), np.empty(3))
    with pytest.raises(ValueError, match="0 factors"):
        NestedRows(0)

"""Factors of the user's own by quadrature, against grids and closed forms."""

import numpy as np
import pytest

import epfast
from epfast import EP, Graph
from epfast.families import Gaussian as Family
from epfast.graph import Factor
from tests.oracles.own_factors import SMOOTH, by_grid, cavities, one_factor, seen


class TestQuadrature:
    @pytest.mark.parametrize("seed", range(4))
    @pytest.mark.parametrize("name", SMOOTH)
    def test_two_variables_against_a_grid(self, name, seed):
        messages = cavities(np.random.default_rng(seed), 1)
        log_z, mean, variance = by_grid(SMOOTH[name], messages)
        post, x = one_factor(SMOOTH[name], "quadrature", messages)
        assert post.log_evidence == pytest.approx(log_z, abs=1e-8)
        for j in range(2):
            sd = variance[j] ** 0.5
            np.testing.assert_allclose(post[x[j]].mean, mean[j], atol=1e-8 * sd)
            np.testing.assert_allclose(post[x[j]].variance, variance[j], rtol=1e-8)

    @pytest.mark.parametrize("v", [1e-2, 1e-6, 1e-12])
    def test_narrow_ridge(self, v):
        """x and z all but equal: the messages are Gaussian ones."""
        messages = cavities(np.random.default_rng(5), 3)
        post, (x, z) = one_factor(lambda x, z: seen(x, z, v), "quadrature", messages)
        for mine, (own, other) in ((x, messages), (z, messages[::-1])):
            tau = own[:, 0] + 1.0 / (1.0 / other[:, 0] + v)
            nu = own[:, 1] + Family.mean(other) / (1.0 / other[:, 0] + v)
            np.testing.assert_allclose(post[mine].variance, 1.0 / tau, rtol=1e-8)
            np.testing.assert_allclose(post[mine].mean, nu / tau, atol=1e-8)

    @pytest.mark.parametrize("scale", [1e-6, 1e-3, 1.0, 1e3])
    @pytest.mark.parametrize("away", [0.0, 20.0])
    def test_scales(self, scale, away):
        """A density far narrower or wider than the cavity, and far from its mean."""
        messages = cavities(np.random.default_rng(6), 4, 1)
        y = Family.mean(messages[0]) + away
        post, (x,) = one_factor(lambda x, y: seen(x, y, scale**2), "quadrature", messages, y=y)
        tau = messages[0][:, 0] + scale**-2
        mean = (messages[0][:, 1] + y * scale**-2) / tau
        np.testing.assert_allclose(post[x].variance, 1.0 / tau, rtol=1e-8)
        np.testing.assert_allclose(post[x].mean, mean, atol=1e-8 * tau.max() ** -0.5)

    def test_jumps_and_kinks(self):
        from scipy import stats

        messages = (np.array([[1.0, 0.0]]),)
        post, (x,) = one_factor(lambda x: np.where(x > 0.7, 0.0, -np.inf), "quadrature", messages)
        exact = stats.truncnorm(0.7, np.inf)
        assert post.log_evidence == pytest.approx(stats.norm.logsf(0.7), abs=1e-8)
        np.testing.assert_allclose(post[x].mean, exact.mean(), atol=1e-8)
        np.testing.assert_allclose(post[x].variance, exact.var(), atol=1e-8)

    def test_two_narrow_modes(self):
        def log_t(x):
            return np.logaddexp(-50.0 * (x - 3.0) ** 2, -50.0 * (x + 3.0) ** 2)

        post, (x,) = one_factor(log_t, "quadrature", (np.array([[1.0, 0.0]]),))
        np.testing.assert_allclose(post[x].mean, 0.0, atol=1e-8)
        # each a Gaussian of precision 101
        np.testing.assert_allclose(post[x].variance, 1 / 101 + (300 / 101) ** 2, rtol=1e-8)

    @pytest.mark.parametrize(
        ("log_t", "reason"),
        [
            (lambda x: x**4, "no end"),
            (lambda x: np.full_like(x, np.nan), "all over"),
            (lambda x: np.full_like(x, -np.inf), "all over"),
            (lambda x: np.log(np.where(x > 0.1, x, -1.0)), "NaN somewhere"),
        ],
    )
    def test_failures_are_counted_with_a_reason(self, log_t, reason):
        g = Graph()
        x = g.gaussian(3, mean=[0.0, 1.0, 2.0])
        g.add(Factor(log_t, "quadrature"), x)
        with pytest.warns(epfast.ConvergenceWarning, match=reason):
            post = g.fit(EP(2, 1e-6))
        np.testing.assert_array_equal(post[x].mean, [0.0, 1.0, 2.0])
        assert post.history[-1].n_refused == 3
        assert not post.converged
        assert [count for told, count in post.reasons.items() if reason in told] == [6]

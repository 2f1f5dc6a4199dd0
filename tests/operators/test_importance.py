"""Factors of the user's own by importance sampling."""

import numpy as np
import pytest

import epfast
from epfast import EP, Graph
from epfast.families import Gaussian as Family
from epfast.graph import Factor, ImportanceMessages
from tests.oracles.own_factors import SMOOTH, by_grid, cavities, one_factor, seen


class TestImportance:
    @pytest.mark.parametrize("name", ["tanh", "poisson", "product", "cauchy"])
    def test_within_its_standard_error(self, name):
        messages = cavities(np.random.default_rng(8), 1)
        log_z, mean, variance = by_grid(SMOOTH[name], messages)
        z = []
        for seed in range(20):
            scheme = ImportanceMessages(draws=4000, seed=seed)
            post, x = one_factor(SMOOTH[name], scheme, messages)
            z.append([post.log_evidence - log_z] + [
                (post[x[j]].mean[0] - mean[j]) / variance[j] ** 0.5 for j in range(2)
            ])  # fmt: skip
        z = np.array(z)
        # the mean of twenty is as far from 0 as its own spread says
        assert (np.abs(z.mean(axis=0)) < 4.5 * z.std(axis=0) / np.sqrt(20)).all()
        # and one has the error of some thousand independent draws
        assert (z.std(axis=0) < 1.0 / np.sqrt(800)).all()

    def test_narrow(self):
        """The proposal finds a density a thousand times narrower than the cavity."""
        messages = cavities(np.random.default_rng(9), 3, 1)
        y = Family.mean(messages[0]) + 0.5
        scheme = ImportanceMessages(draws=4000, rounds=6)
        post, (x,) = one_factor(lambda x, y: seen(x, y, 1e-6), scheme, messages, y=y)
        np.testing.assert_allclose(post[x].variance, 1e-6, rtol=0.2)
        np.testing.assert_allclose(post[x].mean, y, atol=2e-4)

    def test_the_seed_decides(self):
        messages = cavities(np.random.default_rng(10), 4)

        def fit(seed):
            scheme = ImportanceMessages(draws=500, seed=seed)
            return one_factor(SMOOTH["tanh"], scheme, messages)[0].state.beliefs

        np.testing.assert_array_equal(fit(3), fit(3))
        assert not np.array_equal(fit(3), fit(4))

    def test_draws_do_not_depend_on_the_order_of_rows(self):
        """The draws of a factor are its own: others beside it change nothing."""
        from epfast.operators.importance import uniform

        rows = np.array([5, 2, 7])
        drawn = uniform(1, rows, 0, 1000, 3)
        np.testing.assert_array_equal(drawn[1], uniform(1, rows[1:2], 0, 1000, 3)[0])
        assert ((drawn > 0.0) & (drawn < 1.0)).all()
        np.testing.assert_allclose(drawn.mean(axis=1), 0.5, atol=5 * 12**-0.5 / 1000**0.5)
        flat = np.sort(np.concatenate([drawn.ravel(), uniform(2, rows, 0, 1000, 3).ravel()]))
        assert np.diff(flat).min() > 0.0
        assert np.abs(np.corrcoef(drawn[0].T) - np.eye(3)).max() < 0.15

    def test_few_effective_draws_are_refused(self):
        g = Graph()
        x = g.gaussian(variance=100.0)
        g.add(Factor(seen, ImportanceMessages(draws=200, rounds=0, min_ess=199)), x, y=3.0, v=1e-4)
        with pytest.warns(epfast.ConvergenceWarning, match="too few effective draws"):
            post = g.fit(EP(1, 1e-6))
        assert post[x].variance == 100.0

    @pytest.mark.parametrize("k", [1, 3, 6])
    @pytest.mark.parametrize("centre", [1.0, -12.0])
    def test_peaks_that_are_narrow_beside_the_cavity(self, k, centre):
        """A normal density of sd 0.02 under a prior of variance 10: moments in closed form."""
        asked = [0]

        def log_t(*x):
            asked[0] += np.size(x[0])
            return sum(-0.5 * ((v - centre) / 0.02) ** 2 for v in x)

        g = Graph()
        x = [g.gaussian(variance=10.0) for _ in range(k)]
        g.add(Factor(log_t, scheme="importance"), *x)
        post = g.fit()
        assert post.converged
        precision = 0.1 + 0.02**-2
        for one in x:
            assert post[one].mean == pytest.approx(centre * 0.02**-2 / precision, abs=0.004)
            assert post[one].variance == pytest.approx(1.0 / precision, rel=0.25)
        expected = 0.5 * np.log(0.1 / precision) - 0.5 * centre**2 / (10.0 + 0.02**2)
        assert post.log_evidence == pytest.approx(k * expected, abs=0.1 * k)
        assert asked[0] < 40_000

    def test_what_cannot_change_is_not_asked_again(self):
        """No draw has a weight: the second sweep sees what the first saw, and is the last."""
        asked = [0]

        def log_t(x):
            asked[0] += np.size(x)
            return np.where(x > 1e6, 0.0, -np.inf)

        g = Graph()
        x = g.gaussian()
        g.add(Factor(log_t, ImportanceMessages(draws=200, rounds=0, min_ess=50)), x)
        with pytest.warns(epfast.ConvergenceWarning, match="-?inf|infinite"):
            post = g.fit(EP(100))
        assert post.n_sweeps == 2
        assert asked[0] < 2000

    def test_three_variables(self):
        rng = np.random.default_rng(11)
        messages = cavities(rng, 1, 3)

        def log_t(x, y, z):
            return seen(x + y - z, 1.0, 0.5)

        post, x = one_factor(log_t, ImportanceMessages(draws=40_000), messages)
        exact, z = one_factor(log_t, "laplace", messages)
        for mine, theirs in zip(x, z, strict=True):
            np.testing.assert_allclose(post[mine].mean, exact[theirs].mean, atol=0.03)
        assert post.log_evidence == pytest.approx(exact.log_evidence, abs=0.03)

"""Factors of the user's own over gamma, beta and categorical variables."""

import numpy as np
import pytest
from scipy import special, stats

from epfast import EP, Graph
from epfast.graph import CompoundGamma, Factor, ImportanceMessages, Noise


def noise(x, tau, y):
    """N(y; x, 1 / tau)"""
    return 0.5 * (np.log(tau) - tau * (y - x) ** 2 - np.log(2.0 * np.pi))


def compound(tau, s1, r1, s2):
    constant = s1 * np.log(r1) - special.betaln(s1, s2)
    return constant + (s2 - 1.0) * np.log(tau) - (s1 + s2) * np.log(r1 + tau)


def votes(p, a, b):
    return a * np.log(p) + b * np.log1p(-p)


Y = np.array([0.3, -1.2, 0.8, 2.0])


def of_noise(scheme, schedule):
    """A level and a precision."""
    g = Graph()
    x, tau = g.gaussian(variance=9.0), g.gamma(shape=2.0, rate=1.5)
    if scheme is None:
        g.add(Noise(tau), Y - x)
    else:
        g.add(Factor(noise, scheme), x, tau, y=Y)
    post = g.fit(schedule)
    belief = [post[x].mean, post[x].variance, post[tau].shape, post[tau].rate, post.log_evidence]
    return np.array(belief, dtype=float)


class TestQuadrature:
    @pytest.mark.full
    @pytest.mark.parametrize("power", [1.0])
    def test_noise_of_unknown_precision(self, power):
        schedule = EP(300, 1e-11, power=power)
        np.testing.assert_allclose(
            of_noise("quadrature", schedule), of_noise(None, schedule), rtol=1e-8
        )

    @pytest.mark.parametrize(("shape", "rate"), [(1.5, 0.01), (0.3, 2.0), (40.0, 1e-3), (1e3, 1e5)])
    def test_compound_gamma(self, shape, rate):
        found = []
        for own in (False, True):
            g = Graph()
            tau = g.gamma(2, shape=shape, rate=rate)
            if own:
                g.add(Factor(compound, "quadrature"), tau, s1=1.0, r1=[0.5, 20.0], s2=1.3)
            else:
                g.add(CompoundGamma(1.0, [0.5, 20.0], 1.3), tau)
            post = g.fit(EP(2, 0))
            found.append([*post[tau].shape, *post[tau].rate, post.log_evidence])
        np.testing.assert_allclose(found[1], found[0], rtol=1e-8)

    @pytest.mark.parametrize("alpha", [0.05, 1.0, 300.0])
    def test_conjugate_votes(self, alpha):
        a, b = np.array([0.0, 3.0, 200.0]), np.array([1.0, 2.0, 0.0])
        g = Graph()
        p = g.beta(3, alpha=alpha, beta=0.5)
        g.add(Factor(votes, "quadrature"), p, a=a, b=b)
        post = g.fit(EP(2, 0))
        np.testing.assert_allclose(post[p].alpha, alpha + a, rtol=1e-8)
        np.testing.assert_allclose(post[p].beta, 0.5 + b, rtol=1e-8)
        exact = special.betaln(alpha + a, 0.5 + b) - special.betaln(alpha, 0.5)
        assert post.log_evidence == pytest.approx(exact.sum(), abs=1e-8)

    def test_beta_and_gaussian_against_a_grid(self):
        def log_t(p, x):
            return -2.0 * (special.logit(p) - np.tanh(x)) ** 2

        g = Graph()
        p, x = g.beta(alpha=2.0, beta=3.0), g.gaussian(mean=0.5, variance=2.0)
        g.add(Factor(log_t, "quadrature"), p, x)
        post = g.fit(EP(1, 0))
        u, v = np.linspace(-16, 14, 3001)[:, None], 0.5 + 2.0**0.5 * np.linspace(-10, 10, 2001)
        weight = stats.beta(2.0, 3.0).logpdf(special.expit(u)) + special.log_expit(u)
        weight = weight + special.log_expit(-u) + stats.norm(0.5, 2.0**0.5).logpdf(v)
        weight = np.exp(weight + log_t(special.expit(u), v))
        Z = weight.sum()
        assert post.log_evidence == pytest.approx(np.log(Z * 0.01 * 2.0**0.5 * 0.01), abs=1e-8)
        assert float(post[x].mean) == pytest.approx((weight * v).sum() / Z, abs=1e-8)
        alpha, beta = float(post[p].alpha), float(post[p].beta)
        for f, mine in ((special.log_expit(u), alpha), (special.log_expit(-u), beta)):
            exact = special.digamma(mine) - special.digamma(alpha + beta)
            assert exact == pytest.approx((weight * f).sum() / Z, abs=1e-8)


class TestImportance:
    @pytest.mark.full
    def test_noise_of_unknown_precision(self):
        schedule = EP(300, 1e-9)
        found = of_noise(ImportanceMessages(draws=40_000), schedule)
        np.testing.assert_allclose(found, of_noise(None, schedule), rtol=0.05, atol=0.03)

    def test_votes(self):
        g = Graph()
        p = g.beta(alpha=2.0, beta=2.0)
        g.add(Factor(votes, ImportanceMessages(draws=40_000)), p, a=10.0, b=5.0)
        post = g.fit(EP(1, 0))
        np.testing.assert_allclose([post[p].alpha, post[p].beta], [12.0, 7.0], rtol=0.05)


class TestProject:
    def test_categories_and_gamma(self):
        class Rates:
            """exp(-tau x) of a category: t = tau^k exp(-tau c) where the category is k."""

            def project(self, messages, data):
                h, tau = messages
                K = h.shape[1]
                shape, rate = tau[:, 0] + 1.0, tau[:, 1]
                logs = h - special.logsumexp(h, axis=1, keepdims=True)
                k = np.arange(K)
                # of each category a gamma of shape + k
                c = data["c"]
                inner = special.gammaln(shape[:, None] + k) - special.gammaln(shape[:, None])
                inner += shape[:, None] * np.log(rate)[:, None]
                inner -= (shape[:, None] + k) * np.log(rate + c)[:, None]
                both = logs + inner
                log_z = special.logsumexp(both, axis=1)
                target = np.stack([tau[:, 0] + 0.5, rate + c], axis=1)
                return log_z, (both, target)

        g = Graph()
        h = g.categorical(4, probabilities=[0.2, 0.3, 0.5])
        tau = g.gamma(4, shape=2.0, rate=1.0)
        g.add(Factor(scheme=Rates()), h, tau, c=[0.1, 1.0, 2.0, 3.0])
        post = g.fit(EP(3, 0))
        np.testing.assert_allclose(post[h].probabilities.sum(axis=1), 1.0)
        assert (np.diff(post[h].probabilities[:, 2]) < 0.0).all()
        np.testing.assert_allclose(post[tau].shape, 2.5)
        assert np.isfinite(post.log_evidence)
        assert post.n_refused == 0


class TestDoor:
    @pytest.mark.parametrize(
        ("scheme", "kind", "words"),
        [
            ("laplace", "gamma", "gaussian"),
            ("laplace", "beta", "gaussian"),
            ("quadrature", "categorical", "gaussian or gamma or beta"),
            ("importance", "categorical", "gaussian or gamma or beta"),
        ],
    )
    def test_families(self, scheme, kind, words):
        g = Graph()
        more = {"probabilities": [0.5, 0.5]} if kind == "categorical" else {}
        x = getattr(g, kind)(3, **more)
        with pytest.raises(TypeError, match=f"{kind} variable; allowed: {words}$"):
            g.add(Factor(lambda x: 0.0 * x, scheme), x)

    def test_improper_gamma_cavities_wait(self):
        g = Graph()
        tau = g.gamma(rate=0.0)
        g.add(Factor(lambda tau: -tau, "quadrature"), tau)
        with pytest.warns(match="a cavity is improper"):
            g.fit(EP(2, 1e-6))

"""Laplace messages of factors of the user's own."""

import numpy as np
import pytest

import epfast
from epfast import EP, Graph
from epfast.graph import Factor


class TestLaplace:
    def test_lemma_1_and_variances_on_a_tree(self):
        """Eq. 6 of the paper, nonlinear: the fixed point is the mode, variances those there."""
        from bench.smola2003 import graph as bench

        for terms in bench.MODELS.values():
            mode, variance = bench.mode(terms)
            for reading in ("marginal", "diagonal"):
                found = bench.by_graph(terms, reading)
                assert np.abs(bench.joint(terms, found.mean)[0]).max() <= 2e-13
                np.testing.assert_allclose(found.mean, mode, atol=1e-11)
                if reading == "marginal":
                    np.testing.assert_allclose(found.variance, variance, rtol=1e-10)
                else:
                    assert (found.variance < 1.001 * variance).all()

    def test_loops(self):
        """Lemma 1 does not ask for a tree."""
        rng = np.random.default_rng(0)
        a, b = np.array([0, 1, 2, 3, 0]), np.array([1, 2, 3, 0, 2])
        y = rng.normal(size=5)

        def log_t(s, t, y):
            return -np.log1p((y - np.tanh(s) - 0.5 * t) ** 2)

        g = Graph()
        x = g.gaussian(4)
        g.add(Factor(log_t), x[a], x[b], y=y)
        post = g.fit(EP(300, 1e-11, damping=0.7))
        mean = post[x].mean

        def joint(point):
            return log_t(point[a], point[b], y).sum() - 0.5 * point @ point

        for i in range(4):
            e = 1e-5 * np.eye(4)[i]
            assert joint(mean + e) - joint(mean - e) == pytest.approx(0.0, abs=1e-13)

    def test_derivatives_given_or_not(self):
        def log_t(x, y):
            return y * x - np.exp(x)

        def gradient(x, y):
            return [y - np.exp(x)]

        def hessian(x, y):
            return [[-np.exp(x)]]

        y, found = np.array([0.0, 3.0, 50.0]), []
        for more in ({}, {"gradient": gradient}, {"hessian": hessian},
                     {"gradient": gradient, "hessian": hessian}):  # fmt: skip
            g = Graph()
            x = g.gaussian(3, variance=100.0)
            g.add(Factor(log_t, **more), x, y=y)
            post = g.fit(EP(3, 0))
            found.append(np.stack([post[x].mean, post[x].variance]))
        for other in found[:-1]:
            np.testing.assert_allclose(other, found[-1], rtol=1e-8)
        mode = found[-1][0]
        np.testing.assert_allclose(y - np.exp(mode) - mode / 100.0, 0.0, atol=1e-12)

    def test_mixed_differences(self):
        """A dense Hessian of four variables, by differences."""
        rng = np.random.default_rng(3)
        root = rng.normal(size=(4, 4))
        P, b = root @ root.T, rng.normal(size=4)

        def log_t(*x):
            v = np.stack(x, axis=1)
            return -0.5 * np.einsum("ni,ij,nj->n", v, P, v) + v @ b

        g = Graph()
        x = g.gaussian(4)
        g.add(Factor(log_t), *x.reshape(4, 1))
        post = g.fit(EP(3, 0))
        covariance = np.linalg.inv(P + np.eye(4))
        np.testing.assert_allclose(post[x].mean, covariance @ b, atol=1e-9)
        np.testing.assert_allclose(post[x].variance, np.diag(covariance), rtol=1e-9)
        evidence = 0.5 * (b @ covariance @ b + np.linalg.slogdet(covariance)[1])
        assert post.log_evidence == pytest.approx(evidence, abs=1e-9)

    def test_convex_the_wrong_way(self):
        """log t curves upwards at the start; the mode is found all the same."""
        g = Graph()
        x = g.gaussian(variance=0.9)
        g.add(Factor(lambda x: -3.0 * np.cos(2.0 * x) - 0.3 * x), x)
        post = g.fit(EP(3, 0))
        mode = float(post[x].mean)
        assert 6.0 * np.sin(2.0 * mode) - 0.3 - mode / 0.9 == pytest.approx(0.0, abs=1e-9)
        curvature = 1.0 / 0.9 - 12.0 * np.cos(2.0 * mode)
        np.testing.assert_allclose(post[x].variance, 1.0 / curvature, rtol=1e-9)

    @pytest.mark.parametrize(
        ("log_t", "reason"),
        [
            (lambda x: 2.0 * x**2, "no maximum"),
            (lambda x: np.full_like(x, np.nan), "not finite"),
            (lambda x: np.full_like(x, -np.inf), "not finite"),
            (lambda x: -3.0 * np.abs(x - 0.5), "no second derivative"),
        ],
    )
    def test_failures_are_counted_with_a_reason(self, log_t, reason):
        g = Graph()
        x = g.gaussian(3, mean=[0.0, 1.0, 2.0])
        g.add(Factor(log_t), x)
        with pytest.warns(epfast.ConvergenceWarning, match=reason):
            post = g.fit(EP(2, 1e-6))
        np.testing.assert_array_equal(post[x].mean, [0.0, 1.0, 2.0])
        assert post.history[-1].n_refused == 3
        assert sum(post.reasons.values()) == 6

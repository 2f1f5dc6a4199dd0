"""Certificates of graphs: draws against the exact posterior, and what they cannot tell."""

import numpy as np
import pytest
from scipy import integrate, special, stats

from epfast import EP, Graph, losses
from epfast.graph import (
    Between,
    CompoundGamma,
    Factor,
    LogisticLink,
    Mixture,
    Noise,
    Product,
    QuadratureMessages,
    Table,
    Transition,
    Walk,
)
from tests.graph.models import GRAPHS

# k-hat needs arviz; the checks work without


def test_a_gaussian_tree_of_independent_variables_is_exact(monkeypatch):
    """Beliefs are the posterior: unsmoothed, weights say so whatever the draws."""
    monkeypatch.setattr("epfast.inference.importance._smoother", lambda: None)
    g = Graph()
    x = g.gaussian(4, mean=1.0, variance=[1.0, 2.0, 3.0, 0.1])
    g.add(losses.Gaussian(0.5), x, [0.3, 1.0, -1.0, 2.0], noise=0.25)
    post = g.fit(EP(tol=1e-12))
    found = post.check(draws=200)
    assert found.verdict == "good"
    np.testing.assert_allclose(found.log_evidence, post.log_evidence, rtol=1e-10)
    np.testing.assert_allclose(found.mean, post[x].mean, rtol=1e-8)
    np.testing.assert_allclose(found.sd, post[x].sd, rtol=1e-8)


def one_factor(kind):
    """A graph of one factor, the log of whose integral EP knows exactly."""
    g = Graph()
    x = g.gaussian(3, mean=[0.3, -0.4, 0.8], variance=[0.5, 0.3, 0.4])
    tau, h = g.gamma(shape=3.0, rate=2.0), g.categorical(2, probabilities=[0.3, 0.7])
    add = {
        "loss": lambda: g.add("logistic", x[0] - 2.0 * x[1] + 0.3, -1),
        "noisy loss": lambda: g.add("poisson", x[0] + x[1], 2, noise=0.3),
        "probit": lambda: g.add("probit", x[0] + x[1], 1, noise=0.7),
        "hinge": lambda: g.add("hinge", x[0], 1, noise=0.7),
        "between": lambda: g.add(Between(0.1, 1.0), x[0]),
        "noisy between": lambda: g.add(Between(0.5, np.inf), x[0] - x[1], noise=0.5),
        "far between": lambda: g.add(Between(3.0, 4.0), x[0] - x[1], noise=0.05),
        "transition": lambda: g.add(Transition(0.3, factor=0.7), x[0], x[1]),
        "noise": lambda: g.add(Noise(tau), 0.4 - x[0] + x[1]),
        "product": lambda: g.add(Product(0.4), x[0], x[1], x[2]),
        "observed product": lambda: g.add(Product(0.4), x[0], x[1], 0.6),
        "compound": lambda: g.add(CompoundGamma(1.5, 2.0, 2.5), tau),
        "table": lambda: g.add(Table([[0.3, 0.1], [2.0, 0.7]]), h[0], h[1]),
        "tables": lambda: g.add(Table([[0.3, 0.1], [2.0, 0.7]]), h),
        "mixture": lambda: g.add(
            Mixture(h[0], [losses.Gaussian(0.3), losses.Gaussian(2.0)]), [x[0], x[1] - x[0]], 0.7
        ),
        "vectors": lambda: g.add(
            Mixture(h[0], losses.Gaussian(0.5), vectors=True),
            [x[:2], x[1:]],
            [0.7, -0.3],
            noise=0.1,
        ),
        "own": lambda: g.add(
            Factor(lambda x, y: -np.log1p((x - y) ** 2), QuadratureMessages()), x[:1], y=2.0
        ),
    }
    add[kind]()
    return g


KINDS = """loss,noisy loss,probit,hinge,between,noisy between,far between,transition,noise,product,
observed product,compound,table,tables,mixture,vectors,own""".replace("\n", "").split(",")


@pytest.mark.filterwarnings("ignore::epfast.DataWarning")
@pytest.mark.parametrize("kind", KINDS)
def test_densities_of_all_kinds(kind):
    """With one factor the evidence of EP is the integral, and so are all means and variances."""
    post = one_factor(kind).fit(EP(tol=1e-10))
    found = post.check(draws=100_000, seed=1)
    assert found.verdict in ("good", "usable"), str(found)
    assert abs(found.log_evidence - post.log_evidence) < 4.0 * found.log_evidence_se + 1e-9
    assert found.log_evidence_se < 0.02
    assert (np.abs(found.shifts) < 4.5 * found.shift_ses + 1e-9).all()
    np.testing.assert_allclose(found.sd_factors, 1.0, atol=0.05)
    assert len(found.mean) == 8


def test_the_compound_gamma_is_the_density():
    g = Graph()
    tau = g.gamma(shape=1.0, rate=0.0)
    g.add(CompoundGamma(3.0, 2.0, 2.5), tau)
    found = g.fit().check(draws=50_000)
    assert abs(found.log_evidence) < 4.0 * found.log_evidence_se
    s1, r1, s2 = 3.0, 2.0, 2.5
    mean = r1 * s2 / (s1 - 1.0)
    assert abs(found.mean[0] - mean) < 5.0 * found.mean_se[0]
    total = integrate.quad(
        lambda t: (
            np.exp(s1 * np.log(r1) - special.betaln(s1, s2)) * t ** (s2 - 1) / (r1 + t) ** 5.5
        ),
        0.0,
        np.inf,
    )[0]
    assert abs(total - 1.0) < 1e-9


def test_what_ep_gets_wrong_is_seen():
    """Clutter with two modes between which EP settles on one, or a belief that was never fitted."""
    g = Graph()
    x = g.gaussian(variance=4.0)
    g.add(losses.Gaussian(1.0), x, [1.0, 1.2, 0.8, 1.1])
    post = g.fit(EP(sweeps=1, tol=0.0, damping=0.05))
    assert post.check().verdict == "do not use"


def test_correlated_variables_are_told_from_beliefs_without_correlation():
    """Marginals of a loop are too narrow; the draws say by how much."""
    g = Graph()
    x = g.gaussian(2, variance=1.0)
    g.add(losses.Gaussian(0.5), x[0] + x[1], 0.0)
    g.add(losses.Gaussian(0.5), x[0] + 0.9 * x[1], 0.0)
    post = g.fit(EP(tol=1e-9))
    found = post.check(draws=50_000)
    P = np.eye(2) + 2.0 * np.outer([1.0, 1.0], [1.0, 1.0]) + 2.0 * np.outer([1.0, 0.9], [1.0, 0.9])
    np.testing.assert_allclose(found.sd, np.sqrt(np.diag(np.linalg.inv(P))), rtol=0.05)
    assert found.verdict in ("usable", "do not use")


def test_many_variables_are_uncertain_never_good():
    rng = np.random.default_rng(0)
    n = 300
    g = Graph()
    x = g.gaussian(n, variance=4.0)
    g.add(Walk(0.01), x)
    g.add(losses.Gaussian(1.0), x, rng.normal(size=n))
    found = g.fit().check(draws=1000)
    assert found.verdict == "uncertain"
    assert "cannot tell" in found.reason
    g = Graph()
    g.add("probit", g.gaussian(1001), 1)
    with pytest.raises(ValueError, match="1001 variables; allowed for a check: 1000"):
        g.fit().check()


@pytest.mark.parametrize("name", ["products", "chains", "forms", "precisions", "categories"])
def test_whole_graphs(name):
    """It runs, repeats with its seed, or refuses by name."""
    post = GRAPHS[name](np.random.default_rng(3)).fit()
    if name in ("products", "chains"):
        with pytest.raises(ValueError, match=r"(LogisticLink|Walk with variance 0), a constraint"):
            post.check(draws=200)
        return
    found = post.check(draws=2000)
    assert str(found) == str(post.check(draws=2000))
    assert len(found.mean) == len(found.sd) == len(found.shifts)


def test_refusals():
    g = Graph()
    x = g.gaussian(3, variance=[1.0, np.inf, np.inf])
    g.add(Transition(0.0), x[0], x[1])
    g.add(Between(-1e-9, 1.0), x[2], noise=1.0)
    with pytest.warns(), pytest.raises(ValueError, match="a belief is improper"):
        g.fit(EP(sweeps=2)).check()
    g.add(losses.Gaussian(1.0), x[2], 0.0)
    with pytest.raises(ValueError, match="variance 0, a constraint"):
        g.fit().check()
    g = Graph()
    z, p = g.gaussian(), g.beta()
    g.add(LogisticLink(), z, p)
    with pytest.raises(ValueError, match="LogisticLink"):
        g.fit().check()
    g = Graph()
    g.add("probit", g.gaussian(2), 1)
    for name, bad in (("draws", 5), ("draws", 1.5), ("seed", -1)):
        with pytest.raises((ValueError, TypeError), match=name):
            g.fit().check(**{name: bad})


def test_draws_of_beta_variables():
    g = Graph()
    p = g.beta(2, alpha=[2.0, 5.0], beta=[3.0, 1.5])

    def log_t(p, k):
        return k * np.log(p) + (3.0 - k) * np.log1p(-p)

    g.add(Factor(log_t, "quadrature"), p, k=[1.0, 2.0])
    found = g.fit().check(draws=50_000)
    a, b = np.array([3.0, 7.0]), np.array([5.0, 2.5])
    np.testing.assert_allclose(found.mean, stats.beta(a, b).mean(), atol=5.0 * found.mean_se.max())
    np.testing.assert_allclose(found.sd, stats.beta(a, b).std(), rtol=0.03)
    want = special.betaln(a, b) - special.betaln([2.0, 5.0], [3.0, 1.5])
    assert abs(found.log_evidence - want.sum()) < 4.0 * found.log_evidence_se

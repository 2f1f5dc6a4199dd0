"""Certificates of graphs: draws against the exact posterior, and what they cannot tell."""

import numpy as np
import pytest
from scipy import integrate, sparse, special, stats

import epfast
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


def test_a_gaussian_tree_of_independent_variables_is_exact():
    """Beliefs are the posterior: weights say so whatever the draws."""
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
    found = post.check(draws=100_000, rng=1)
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
    post = g.fit()
    assert post.check(draws=200).verdict == "uncertain"
    with pytest.raises(ValueError, match="draws is 10,000,000; allowed for 1,001 variables"):
        post.check(draws=10_000_000)


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


@pytest.mark.parametrize("variance", [4.0, [4.0, 1e8, 1e8], 1e8])
def test_a_block_is_drawn_with_its_covariance(variance):
    """A linear model is exact, its evidence too: all weights of draws are alike."""
    rng = np.random.default_rng(1)
    X, y = rng.normal([0.0, 3.0, 0.0], 1.0, (30, 3)), rng.normal(size=30)
    g = Graph()
    before, w = g.gaussian(), g.block(3, variance=variance, mean=[0.5, 0.0, 0.0])
    h, v = g.categorical(2, prior=[0.3, 0.7]), g.block(2)
    g.add("gaussian", X @ w, y, noise=0.5)
    g.add("gaussian", sparse.csr_array(X[:4, :2]) @ v + 1.0, y[:4], noise=0.5)
    g.add("gaussian", before, 1.0, noise=2.0)
    g.add(Table([0.2, 0.9]), h)
    post = g.fit()
    found = post.check(draws=2000)
    # in the order in which they were made
    mean = [post[before].mean[None], post[w].mean, post[h].mean.ravel(), post[v].mean]
    sd = [post[before].sd[None], post[w].sd, post[h].sd.ravel(), post[v].sd]
    np.testing.assert_allclose(found.mean, np.concatenate(mean), atol=5.0 * found.mean_se.max())
    np.testing.assert_allclose(found.sd, np.concatenate(sd), rtol=0.1)
    np.testing.assert_allclose(found.log_evidence, post.log_evidence, atol=1e-6)
    assert found.effective_draws > 1500


@pytest.mark.full
def test_a_block_beside_a_precision():
    """Regression with unknown noise: log evidence by quadrature over its precision."""
    rng = np.random.default_rng(2)
    X, y = rng.normal(size=(25, 2)), rng.normal(size=25)
    g = Graph()
    w, tau, shift = g.block(2, variance=3.0), g.gamma(shape=2.0, rate=1.0), g.gaussian()
    g.add(Noise(tau), y - 0.5 * (X @ w) - shift)
    t = np.linspace(1e-3, 12.0, 4000)
    A = np.column_stack([0.5 * X, np.ones(25)])
    root = A @ np.diag([3.0, 3.0, 1.0]) @ A.T
    logs = [stats.multivariate_normal(np.zeros(25), root + np.eye(25) / x).logpdf(y) for x in t]
    exact = np.log(np.trapezoid(np.exp(logs) * stats.gamma(2.0).pdf(t), t))
    found = g.fit().check(draws=20_000)
    assert abs(found.log_evidence - exact) < 4.0 * found.log_evidence_se + 1e-3
    assert found.log_evidence_se < 0.1


def test_draws_for_arviz():
    """By name or place, of their shapes; moments are those of the beliefs."""
    pytest.importorskip("xarray")
    g = Graph()
    w, _ = g.block(2, name="w"), g.gamma((2, 3), shape=4.0, rate=2.0)
    _, h = g.beta(name="p"), g.categorical(2, prior=[0.2, 0.5, 0.3], name="h")
    x = g.gaussian(mean=3.0, variance=4.0)
    g.add("gaussian", [[1.0, 0.0], [1.0, 0.1]] @ w, [0.0, 1.0], noise=0.3)
    g.add(Table([0.2, 0.9, 0.1]), h)
    g.add("gaussian", x, 1.0)
    with pytest.warns(epfast.DataWarning):
        post = g.fit()
    data = post.to_arviz(draws=20_000, rng=4)
    drawn = data["posterior"]
    again = post.sample(20_000, 4)
    assert set(drawn.data_vars) == set(again) == {"w", "v1", "p", "h", "v4"}
    assert drawn["v1"].shape == (1, 20_000, 2, 3)
    assert drawn["p"].shape == (1, 20_000)
    for name, values in again.items():
        np.testing.assert_array_equal(np.asarray(drawn[name]).reshape(values.shape), values)
        if name == "h":
            share = (values[:, :, None] == np.arange(3)).mean(axis=0)
            np.testing.assert_allclose(share, post[h].probabilities, atol=0.02)
            continue
        belief = post[name if name in post.variables else int(name[1:])]
        np.testing.assert_allclose(values.mean(axis=0), belief.mean, atol=0.05 * belief.sd.max())
        np.testing.assert_allclose(values.std(axis=0), belief.sd, rtol=0.05)
    covariance = np.cov(again["w"].T)
    np.testing.assert_allclose(covariance, post[w].covariance, atol=0.02)
    g = Graph()
    g.add("probit", g.gaussian(2, variance=np.inf), 1)
    with pytest.warns(epfast.ConvergenceWarning):
        post = g.fit(EP(sweeps=2))
    with pytest.raises(ValueError, match="v0 is improper"):
        post.to_arviz()

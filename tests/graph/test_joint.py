"""Laplace propagation with sites over all neighbours of a factor."""

import numpy as np
import pytest

import epfast
from bench.smola2003 import graph as bench
from epfast import ADF, EP, SEP, Graph
from epfast.graph import Factor, LaplaceMessages

JOINT = LaplaceMessages("joint")
PAIRS = np.array([0, 1, 2, 3, 0]), np.array([1, 2, 3, 0, 2])
Y = np.random.default_rng(0).normal(size=5)


def log_t(s, t, y):
    return -np.log1p((y - np.tanh(s) - 0.5 * t) ** 2)


def on_loops(scheme=JOINT):
    """Four variables, five factors."""
    g = Graph()
    x = g.gaussian(4, name="x")
    g.add(Factor(log_t, scheme), x[PAIRS[0]], x[PAIRS[1]], y=Y)
    return g, x


def laplace(x):
    """Hessian of minus the log of the joint density, and the log evidence by it."""

    def joint(point):
        value = log_t(point[PAIRS[0]], point[PAIRS[1]], Y).sum() - 0.5 * point @ point
        return value - 2.0 * np.log(2.0 * np.pi)

    e = 1e-3 * np.eye(4)
    hessian = np.array(
        [
            [
                joint(x + a + b) - joint(x + a - b) - joint(x - a + b) + joint(x - a - b)
                for a in e
            ]
            for b in e
        ]
    ) / -4e-6  # fmt: skip
    evidence = joint(x) + 2.0 * np.log(2.0 * np.pi) - 0.5 * np.linalg.slogdet(hessian)[1]
    return hessian, evidence


@pytest.mark.parametrize("kind", bench.MODELS)
def test_equals_plain_numpy(kind):
    """Eq. 6 of the paper, variables without a prior; after as many sweeps."""
    terms = bench.MODELS[kind]
    found, plain = bench.by_graph(terms, "joint"), bench.by_blocks(terms)
    np.testing.assert_allclose(found.mean, plain.mean, atol=1e-13)
    np.testing.assert_allclose(found.variance, plain.variance, rtol=1e-12)
    assert found.sweeps == plain.sweeps <= 5


@pytest.mark.parametrize("damping", [1.0, 0.5])
def test_is_the_laplace_fit_of_the_joint_density_on_loops(damping):
    g, x = on_loops()
    post = g.fit(EP(200, 1e-11, damping=damping))
    assert post.converged
    hessian, evidence = laplace(post[x].mean)
    np.testing.assert_allclose(post.covariance @ hessian, np.eye(4), atol=1e-5)
    np.testing.assert_allclose(post[x].variance, post.covariance.diagonal(), rtol=1e-12)
    assert post.log_evidence == pytest.approx(evidence, abs=1e-5)
    marginal = on_loops(LaplaceMessages("marginal"))
    other = marginal[0].fit(EP(300, 1e-11, damping=0.7))[marginal[1]]
    np.testing.assert_allclose(post[x].mean, other.mean, atol=1e-8)
    assert np.abs(other.variance / post[x].variance - 1.0).max() > 0.01


def test_a_factor_of_one_variable_is_as_by_the_other_readings():
    found = []
    for reading in ("joint", "marginal"):
        g = Graph()
        x = g.gaussian(2, variance=3.0)
        g.add(Factor(lambda x, y: y * x - np.exp(x), LaplaceMessages(reading)), x, y=[1.0, 4.0])
        if reading == "joint":  # one more, of two variables, which says nothing
            flat = Factor(lambda x, z: 0.0 * x * z, JOINT, hessian=lambda x, z: [[0.0, 0.0]] * 2)
            g.add(flat, x[:1], x[1:])
        post = g.fit(EP(9, 0.0))
        found.append((*post[x].mean, *post[x].variance, post.log_evidence))
    np.testing.assert_allclose(*found, rtol=1e-9, atol=1e-12)


def test_forms_and_draws_have_the_correlations():
    g, x = on_loops()
    post = g.fit()
    mean, variance = post.predict_latent(x[0] - 2.0 * x[1] + 1.0)
    row = np.array([1.0, -2.0, 0.0, 0.0])
    np.testing.assert_allclose(mean, row @ post[x].mean + 1.0)
    np.testing.assert_allclose(variance, row @ post.covariance @ row)
    draws = post.sample(40_000, 0)["x"]
    np.testing.assert_allclose(np.cov(draws.T), post.covariance, atol=0.03)


def test_goes_on_to_the_bit():
    g, _ = on_loops()
    half = g.fit(EP(2, 0.0))
    np.testing.assert_array_equal(
        g.fit(EP(2, 0.0), start=half).covariance, g.fit(EP(4, 0.0)).covariance
    )
    fewer = Graph.of(half)
    fewer.remove(0, [0])
    with pytest.raises(ValueError, match="start has other factors"):
        fewer.fit(start=half)


@pytest.mark.parametrize("reading", ["marginal", "joint"])
@pytest.mark.parametrize("variance", [1e4, 1e6, np.inf])
@pytest.mark.parametrize("kind", bench.MODELS)
def test_wide_priors_take_few_sweeps(kind, variance, reading):
    terms = bench.MODELS[kind]
    g = Graph()
    mean, spread = np.zeros(5), np.full(5, variance)
    mean[:2], spread[:2] = np.transpose(bench.PRIOR)
    x = g.gaussian(5, mean=mean, variance=spread)
    for term in terms:
        factor = Factor(
            term.log_t, LaplaceMessages(reading), gradient=term.gradient, hessian=term.hessian
        )
        g.add(factor, *(x[[i]] for i in term.nodes))
    post = g.fit()
    assert post.converged
    assert post.n_sweeps <= 10
    mode, exact = bench.mode(terms)
    np.testing.assert_allclose(post[x].mean, mode, atol=2.0 / variance + 1e-9)
    np.testing.assert_allclose(post[x].variance, exact, rtol=2.0 / variance + 1e-9)


def test_what_has_no_place_beside_joint_sites():
    g, x = on_loops()
    for schedule in (ADF(), SEP(), EP(power=0.5), EP(order="shuffled"), EP(order="parallel")):
        with pytest.raises(ValueError, match=r"(schedule|order) is"):
            g.fit(schedule)
    with pytest.raises(ValueError, match="joint sites; allowed for one pass"):
        g.one_step_ahead()
    with pytest.raises(ValueError, match="watch is given"):
        g.fit(watch=x[0] - x[1])
    batch = g.add(epfast.Probit(), x[0], 1)
    with pytest.raises(ValueError, match="has other variables or factors"):
        g.fit()
    g.remove(batch)
    g.gamma()
    with pytest.raises(ValueError, match="has other variables or factors"):
        g.fit()


def test_factors_without_a_maximum_wait():
    g, x = on_loops()
    g.add(Factor(lambda s, t: 9.0 * s * t, JOINT), x[0], x[1])
    with pytest.warns(epfast.ConvergenceWarning, match="no maximum"):
        post = g.fit(EP(5))
    assert post.reasons
    assert post.history[-1].n_refused == 1
    h = Graph()
    z = h.gaussian(2, variance=np.inf)
    h.add(Factor(lambda s, t: -0.5 * (s - t) ** 2, JOINT), z[0], z[1])
    with pytest.raises(FloatingPointError, match="do not determine all variables"):
        h.fit()

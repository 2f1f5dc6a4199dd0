"""Categorical variables in a graph: tables, mixtures, and their doors."""

import itertools
import pickle

import numpy as np
import pytest
from scipy import sparse
from scipy.special import logsumexp

import epfast
from epfast import losses
from epfast.graph import CompoundGamma, Graph, Mixture, Noise, Product, Table
from tests.oracles.tilted_factors import log_normal

TIGHT = epfast.EP(sweeps=500, tol=1e-11, damping=0.7)


def test_priors_are_what_was_given():
    g = Graph()
    h = g.categorical(4, probabilities=[2.0, 6.0])
    k = g.categorical((2, 3), n=5)
    w = g.categorical(probabilities=[[1.0, 0.0, 1.0], [0.2, 0.3, 0.5]])
    g.add(Table([1.0, 1.0]), h)
    with pytest.warns(epfast.inference.DataWarning):
        post = g.fit()
    np.testing.assert_allclose(post[h].probabilities, [[0.25, 0.75]] * 4)
    np.testing.assert_allclose(post[k].probabilities, np.full((2, 3, 5), 0.2))
    np.testing.assert_allclose(post[w].probabilities, [[0.5, 0, 0.5], [0.2, 0.3, 0.5]], atol=1e-300)
    np.testing.assert_allclose(post[h[1:]].mean, [[0.25, 0.75]] * 3)
    np.testing.assert_allclose(post[h].variance, np.full((4, 2), 0.1875))
    np.testing.assert_allclose(post[h[0]].logits, np.log([0.25, 0.75]))
    np.testing.assert_allclose(post.log_evidence, 0.0, atol=1e-12)


@pytest.mark.parametrize("damping", [1.0, 0.5])
def test_a_tree_of_tables_is_exact(damping):
    """Variables of 2, 3 and 4 categories: marginals and evidence by enumeration."""
    rng = np.random.default_rng(0)
    sizes = [2, 3, 4, 3, 2]
    edges = [(0, 1), (1, 2), (1, 3), (3, 4)]
    tables = {edge: rng.random([sizes[j] for j in edge]) for edge in edges}
    tables[1, 2][0] = 0.0
    priors = [rng.dirichlet(np.ones(k)) for k in sizes]
    g = Graph()
    h = [g.categorical(probabilities=p) for p in priors]
    for (a, b), p in tables.items():
        g.add(Table(p), h[a], h[b])
    post = g.fit(epfast.EP(sweeps=300, tol=1e-12, damping=damping))
    total, marginals = 0.0, [np.zeros(k) for k in sizes]
    for states in itertools.product(*map(range, sizes)):
        weight = np.prod([p[s] for p, s in zip(priors, states, strict=True)])
        for (a, b), p in tables.items():
            weight *= p[states[a], states[b]]
        total += weight
        for marginal, s in zip(marginals, states, strict=True):
            marginal[s] += weight
    for variable, marginal in zip(h, marginals, strict=True):
        found = post[variable].probabilities
        np.testing.assert_allclose(found, marginal / total, rtol=1e-9)
    assert post.converged
    np.testing.assert_allclose(post.log_evidence, np.log(total), rtol=1e-10)


def test_a_hidden_chain_with_likelihoods_of_its_own():
    """Tables that broadcast: one of transitions for all, one of emissions for each."""
    rng = np.random.default_rng(1)
    n, K = 40, 3
    step, likelihood = rng.dirichlet(np.ones(K), size=K), rng.random((n, K))
    g = Graph()
    h = g.categorical(n, probabilities=np.ones(K))
    g.add(Table(step), h[:-1], h[1:])
    g.add(Table(likelihood), h)
    post = g.fit()
    # the priors are uniform, 1 / K each
    forward, log_z = likelihood[0] / K, 0.0
    for k in range(1, n):
        forward = (forward @ step) * likelihood[k] / K
        log_z += np.log(forward.sum())
        forward /= forward.sum()
    assert post.converged
    assert post.n_sweeps <= 5  # the last one moves nothing
    np.testing.assert_allclose(post[h[-1]].probabilities, forward, rtol=1e-10)
    first = likelihood[0] @ np.ones(K) / K
    assert first > 0.0
    np.testing.assert_allclose(post.log_evidence, log_z, rtol=1e-10)


def test_a_mixture_with_known_means_is_exact():
    rng = np.random.default_rng(2)
    y, prior = 3.0 * rng.normal(size=20), np.array([0.2, 0.5, 0.3])
    means, variances = np.array([-2.0, 0.0, 3.0]), [0.5, 2.0, 9.0]
    g = Graph()
    x, h = g.gaussian(mean=means, variance=1e-8), g.categorical(20, probabilities=prior)
    g.add(Mixture(h, [losses.Gaussian(v) for v in variances]), list(x), y)
    post = g.fit()
    each = np.log(prior) + log_normal(y[:, None], means, np.array(variances))
    total = logsumexp(each, axis=1)
    np.testing.assert_allclose(post[h].probabilities, np.exp(each - total[:, None]), atol=1e-6)
    np.testing.assert_allclose(post.log_evidence, total.sum(), rtol=1e-6)


def test_a_gate_over_a_known_outlier_is_a_contaminated_loss():
    """Minka's clutter, with the labels as variables and summed out: the same fixed point."""
    rng = np.random.default_rng(3)
    n = 30
    y = np.where(rng.random(n) < 0.5, rng.normal(2.0, 1.0, n), rng.normal(0.0, np.sqrt(10), n))
    g = Graph()
    x, h = g.gaussian(variance=100.0), g.categorical(n, probabilities=[0.5, 0.5])
    g.add(Mixture(h, [losses.Gaussian(1.0), losses.Gaussian(10.0)]), [x, 0.0], y)
    gate = g.fit(TIGHT)
    g = Graph()
    u = g.gaussian(variance=100.0)
    loss = losses.Contaminated(
        losses.Gaussian(1.0), 0.5, log_density=lambda y: log_normal(y, 0.0, 10.0)
    )
    g.add(loss, u + np.zeros(n), y)
    summed = g.fit(TIGHT)
    assert gate.converged
    assert summed.converged
    np.testing.assert_allclose(gate[x].mean, summed[u].mean, rtol=1e-9)
    np.testing.assert_allclose(gate[x].variance, summed[u].variance, rtol=1e-9)
    np.testing.assert_allclose(gate.log_evidence, summed.log_evidence, rtol=1e-9)


def test_clusters_of_vectors():
    rng = np.random.default_rng(4)
    centres = np.array([[-3.0, 0.0], [3.0, 1.0], [0.0, -4.0]])
    label = rng.integers(3, size=90)
    y = centres[label] + 0.7 * rng.normal(size=(90, 2))
    g = Graph()
    x = g.gaussian(mean=centres + rng.normal(size=(3, 2)), variance=10.0)
    h = g.categorical(90, n=3)
    g.add(Mixture(h, losses.Gaussian(0.49), vectors=True), list(x), y)
    post = g.fit()
    assert post.converged
    np.testing.assert_array_equal(post[h].probabilities.argmax(axis=1), label)
    for k in range(3):
        mine = y[label == k]
        # labels are certain: conjugate
        variance = 1.0 / (0.1 + len(mine) / 0.49)
        prior = post.problem.prior[post.problem.at[x[k].numbers] + 1]
        mean = variance * (prior + mine.sum(axis=0) / 0.49)
        np.testing.assert_allclose(post[x[k]].mean, mean, atol=0.02)
        np.testing.assert_allclose(post[x[k]].variance, [variance] * 2, rtol=0.05)


def test_mixtures_of_regressions_and_other_losses():
    """Two lines, and losses of labels: forms of several variables, shared between categories."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(80, 2))
    label = rng.integers(2, size=80)
    y = np.where(label == 0, X @ [2.0, 0.0], X @ [0.0, -2.0]) + 0.1 * rng.normal(size=80)
    g = Graph()
    w, v = g.gaussian(mean=[1.0, 0.0]), g.gaussian(mean=[0.0, -1.0])
    h = g.categorical(80, n=2)
    g.add(Mixture(h, losses.Gaussian(0.01)), [X @ w, X @ v], y, noise=0.02)
    post = g.fit(epfast.EP(sweeps=200, damping=0.5, tol=1e-6))
    np.testing.assert_allclose(post[w].mean, [2.0, 0.0], atol=0.15)
    np.testing.assert_allclose(post[v].mean, [0.0, -2.0], atol=0.15)
    labels = np.sign(y).astype(int)
    g = Graph()
    w, h = g.gaussian(2), g.categorical(80, probabilities=[0.9, 0.1])
    g.add(Mixture(h, ["probit", "hinge"]), [X @ w, w[0] - w[1]], labels)
    assert g.fit(epfast.EP(sweeps=200, damping=0.5)).converged


def test_warm_starts_and_pickles_keep_tables_and_mixtures():
    rng = np.random.default_rng(6)
    g = Graph()
    h, x = g.categorical(6, n=2), g.gaussian(mean=[-1.0, 1.0])
    g.add(Table([[0.9, 0.1], [0.1, 0.9]]), h[:-1], h[1:])
    key = g.add(Mixture(h, losses.Gaussian(1.0)), list(x), rng.normal(size=6))
    first = g.fit(TIGHT)
    again = pickle.loads(pickle.dumps(g)).fit(TIGHT, start=first)
    assert again.n_sweeps - first.n_sweeps <= 20
    np.testing.assert_allclose(again[h].logits, first[h].logits, rtol=1e-8, atol=1e-10)
    g.remove(key, [0, 3])
    fewer = g.fit(TIGHT, start=first)
    np.testing.assert_allclose(fewer[h].logits, g.fit(TIGHT)[h].logits, rtol=1e-7, atol=1e-9)


def test_a_symmetric_mixture_is_said_to_be_stuck():
    y = np.array([-3.0, -2.9, 3.0, 3.1])
    for means in ([0.0, 0.0], [-0.1, 0.1]):
        g = Graph()
        x, h = g.gaussian(mean=means, variance=10.0), g.categorical(4, n=2)
        g.add(Mixture(h, losses.Gaussian(1.0)), list(x), y)
        if means[1] > 0.0:
            post = g.fit(epfast.EP(sweeps=200, damping=0.5))
            assert abs(post[x].mean[1] - post[x].mean[0]) > 4.0
            continue
        with pytest.warns(epfast.inference.DataWarning, match="equal priors"):
            post = g.fit()
        np.testing.assert_allclose(post[x].mean[0], post[x].mean[1])


def test_arrays_may_be_used_again_after_an_add():
    """What is added is what the arrays held then; none is changed."""
    rng = np.random.default_rng(7)
    evidence = []
    for spoil in (False, True):
        y, noise, p = np.linspace(-1.0, 2.0, 6), np.full(6, 0.3), np.array([[0.9, 0.1], [0.2, 0.8]])
        X = sparse.csr_array(np.arange(1.0, 13.0).reshape(6, 2))
        g = Graph()
        h, w = g.categorical(6, n=2), g.gaussian(2, mean=[1.0, 2.0])
        x, tau = g.gaussian(6), g.gamma(6, shape=2.0)
        g.add(Table(p), h[1:], h[:-1])
        g.add(Mixture(h, losses.Gaussian(1.0)), [x, w[0]], y, noise=noise)
        g.add(Noise(tau), y - x)
        g.add(Product(noise[:3]), x[:3], x[3:], y[:3])
        g.add(CompoundGamma(noise), tau)
        g.add(losses.Gaussian(1.0), X @ w, y, noise=noise)
        if spoil:
            for array in (y, noise, p, X.data):
                array[...] = rng.random(array.shape)
        evidence.append(g.fit(epfast.EP(sweeps=5, tol=0.0)).log_evidence)
    np.testing.assert_array_equal(*evidence)


# ---- the door ----


def graph():
    g = Graph()
    return g, g.categorical(3, n=2), g.categorical(3, n=4), g.gaussian(3)


def mix(h, loss="probit", **more):
    return Mixture(h, loss, **more)


CALLS = {
    "no table": (lambda g, h, k, x: g.add(Table([1.0, 2.0])), "no variable"),
    "wrong size": (lambda g, h, k, x: g.add(Table(np.ones((2, 3))), h, k), r"\(\.\.\., 2, 4\)"),
    "flat p": (lambda g, h, k, x: g.add(Table(1.0), h), r"p has shape \(\)"),
    "negative": (lambda g, h, k, x: g.add(Table([1.0, -1.0]), h), "below 0"),
    "NaN": (lambda g, h, k, x: g.add(Table([1.0, np.nan]), h), "NaN"),
    "zeros": (lambda g, h, k, x: g.add(Table([0.0, 0.0]), h), "table of zeros"),
    "twice": (lambda g, h, k, x: g.add(Table(np.eye(2)), h, h), "twice"),
    "leading axes": (lambda g, h, k, x: g.add(Table(np.ones((5, 2))), h), "leading axes"),
    "Gaussian": (lambda g, h, k, x: g.add(Table([1.0, 2.0]), x), "h_1 is a gaussian"),
    "another": (lambda g, h, k, x: g.add(Table([1.0, 2.0]), graph()[1]), "another graph"),
    "shapes": (lambda g, h, k, x: g.add(Table(np.ones((2, 4))), h[:2], k), "do not go together"),
    "words": (lambda g, h, k, x: g.add(Table("abc"), h), "p"),
    "forms": (lambda g, h, k, x: g.add(mix(h), x, 1), "list of 2"),
    "too few forms": (lambda g, h, k, x: g.add(mix(h), [x], 1), "list of 2"),
    "no variable": (lambda g, h, k, x: g.add(mix(h), [1.0, 2.0], 1), "no variable"),
    "h": (lambda g, h, k, x: g.add(mix(x), [x, x], 1), "h is a gaussian"),
    "h is a list": (lambda g, h, k, x: g.add(mix([0, 1]), [x, x], 1), "h is"),
    "losses": (lambda g, h, k, x: g.add(mix(h, ["probit"] * 3), [x, x], 1), "3 losses"),
    "loss": (lambda g, h, k, x: g.add(mix(h, "prbit"), [x, x], 1), "prbit"),
    "y": (lambda g, h, k, x: g.add(mix(h), [x, x], [1, -1]), "shapes"),
    "y's values": (lambda g, h, k, x: g.add(mix(h), [x, x], [1, -1, 3]), "y"),
    "no y": (lambda g, h, k, x: g.add(mix(h), [x, x]), "y is None"),
    "noise": (lambda g, h, k, x: g.add(mix(h), [x, x], 1, noise=-1.0), ">= 0"),
    "form": (lambda g, h, k, x: g.add(mix(h), [x, np.nan], 1), "NaN"),
    "a gamma's form": (lambda g, h, k, x: g.add(mix(h), [x, g.gamma(3)], 1), "scalar Gaussian"),
    "vectors": (
        lambda g, h, k, x: g.add(
            mix(h, losses.Gaussian(1.0), vectors=True), [x[[0, 0]], x[:2]], np.ones((3, 2))
        ),
        "twice",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_factors_that_cannot_be(name):
    call, message = CALLS[name]
    g, *variables = graph()
    with pytest.raises((TypeError, ValueError), match=message):
        call(g, *variables)
    with pytest.raises(ValueError, match="no factor"):
        g.fit()


def test_variables_that_cannot_be():
    g = Graph()
    for more in ({}, {"n": 2, "probabilities": [0.5, 0.5]}, {"n": 1}, {"n": 2.5}):
        with pytest.raises((TypeError, ValueError), match=r"n\b"):
            g.categorical(3, **more)
    for p in ([1.0], 1.0, [np.nan, 1.0], [-1.0, 2.0], [0.0, 0.0], [np.inf, 1.0], np.ones((2, 2))):
        with pytest.raises(ValueError, match="probabilities"):
            g.categorical(3, probabilities=p)

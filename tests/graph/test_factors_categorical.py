"""Categorical variables in a graph: tables, mixtures, and their doors."""

import itertools
import pickle

import numpy as np
import pytest
from scipy import sparse, stats
from scipy.special import expit, logsumexp

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


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("order", ["auto", "parallel"])
def test_a_network_of_conditional_tables_has_the_evidence_of_what_is_seen(seed, order):
    """p(root) and p(child | parent) of random trees, a third of the entries 0: by enumeration."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(2, 5, 6)
    parent = [int(rng.integers(k)) for k in range(1, 6)]
    tables = [
        rng.dirichlet(np.ones(k), size=j) for j, k in zip(sizes[parent], sizes[1:], strict=True)
    ]
    for table in tables:
        table[:, 1:] *= rng.random(table[:, 1:].shape) < 0.6
        table /= table.sum(axis=1, keepdims=True)
    root = rng.dirichlet(np.ones(sizes[0]))
    seen = {5: 0, 3: 0}
    joint = np.zeros(sizes)
    for states in itertools.product(*map(range, sizes)):
        weight = root[states[0]] * all(states[v] == k for v, k in seen.items())
        for child, (up, table) in enumerate(zip(parent, tables, strict=True), 1):
            weight *= table[states[up], states[child]]
        joint[states] = weight
    g = Graph()
    given = seed % 2 == 1
    h = [g.categorical(prior=root if given else None, n=sizes[0])]
    h += [g.categorical(n=k) for k in sizes[1:]]
    if not given:
        g.add(Table(root), h[0])
    for child, (up, table) in enumerate(zip(parent, tables, strict=True), 1):
        g.add(Table(table), h[up], h[child])
    for v, k in seen.items():
        g.add(Table(np.eye(sizes[v])[k]), h[v])
    post = g.fit(epfast.EP(sweeps=200, tol=1e-12, order=order))
    assert post.converged
    np.testing.assert_allclose(post.log_evidence, np.log(joint.sum()), rtol=1e-9)
    for v, variable in enumerate(h):
        marginal = joint.sum(axis=tuple(np.delete(np.arange(6), v))) / joint.sum()
        np.testing.assert_allclose(post[variable].probabilities, marginal, atol=1e-12)


def test_a_label_without_tables_has_equal_probabilities():
    """A mixture of two: log of the mean of both densities, in closed form, and one with a table."""
    y, means = np.array([0.3, -1.0, 2.0]), np.array([-1.0, 1.5])
    for share in (None, [0.8, 0.2]):
        g = Graph()
        h = g.categorical(3, 2)
        x = g.gaussian(mean=means, variance=1e-8)
        g.add(Mixture(h, "gaussian"), list(x), y)
        if share is not None:
            g.add(Table(share), h)
        weights = np.log([0.5, 0.5] if share is None else share)
        exact = logsumexp(weights + log_normal(y[:, None], means, 1.0), axis=1).sum()
        np.testing.assert_allclose(g.fit().log_evidence, exact, rtol=1e-6)


def test_products_of_tiny_probabilities_do_not_underflow():
    """Two hypotheses, each 1e-300 every other time: 1e-300^(n / 2), by the sum over both."""
    n = 2000
    g = Graph()
    h = g.categorical(n, n=2)
    g.add(Table([0.5, 0.5]), h[0])
    g.add(Table(np.eye(2)), h[:-1], h[1:])
    likelihood = np.where(np.arange(n)[:, None] % 2 == [0, 1], 1.0, 1e-300)
    g.add(Table(likelihood), h)
    post = g.fit()
    assert post.converged
    np.testing.assert_allclose(post.log_evidence, 0.5 * n * np.log(1e-300), rtol=1e-10)
    np.testing.assert_allclose(post[h].probabilities, 0.5, rtol=1e-6)


def chain(first, last, n=5):
    g = Graph()
    h = g.categorical(n, n=2)
    g.add(Table(first), h[0])
    g.add(Table(np.eye(2)), h[:-1], h[1:])
    g.add(Table(last), h[-1])
    return g


def gate(inputs, output):
    """Two inputs, and their disjunction."""
    g = Graph()
    a, b, c = (g.categorical(n=2) for _ in range(3))
    either = np.zeros((2, 2, 2))
    either[[0, 0, 1, 1], [0, 1, 0, 1], [0, 1, 1, 1]] = 1.0
    g.add(Table(either), a, b, c)
    for variable, value in ((a, inputs[0]), (b, inputs[1]), (c, output)):
        g.add(Table(np.eye(2)[value]), variable)
    return g


def prior_of_zero():
    g = Graph()
    c = g.categorical(1, prior=[1.0, 0.0])
    g.add(Table([0.0, 1.0]), c)
    return g


def row_of_zeros():
    g = Graph()
    a, b = g.categorical(n=2), g.categorical(n=3)
    g.add(Table([[0.0, 0.0, 0.0], [0.2, 0.3, 0.5]]), a, b)
    g.add(Table([1.0, 0.0]), a)
    return g


def mixture_of_nothing():
    g = Graph()
    h, x = g.categorical(3, prior=[0.0, 1.0]), g.gaussian(2, mean=[0.0, 1.0])
    g.add(Table([1.0, 0.0]), h)
    g.add(Mixture(h, "gaussian"), list(x), np.zeros(3))
    return g


IMPOSSIBLE = {
    "chain": lambda: chain([1.0, 0.0], [0.0, 1.0]),
    "gate": lambda: gate((0, 0), 1),
    "other gate": lambda: gate((1, 0), 0),
    "prior": prior_of_zero,
    "row": row_of_zeros,
    "mixture": mixture_of_nothing,
}
SCHEDULES = {
    "sequential": epfast.EP(sweeps=50),
    "damped": epfast.EP(sweeps=50, damping=0.3),
    "parallel": epfast.EP(sweeps=50, order="parallel"),
    "power": epfast.EP(sweeps=50, power=0.5),
    "one pass": epfast.ADF(),
}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_evidence_of_zero_is_refused_and_names_a_factor(case, schedule):
    """No configuration has a weight: enumeration. One pass forgets what a gate related."""
    if "gate" in case and schedule == "one pass":
        pytest.skip("ADF sees each factor once, the gate before its inputs")
    with pytest.raises(
        ValueError, match=r"evidence is 0: factor \d of batch \d, a (Table|Mixture)"
    ):
        IMPOSSIBLE[case]().fit(SCHEDULES[schedule])


def test_what_is_nearly_impossible_is_not_refused():
    """1e-300 in place of 0, in the chain above: 2 * 1e-300 * .5, and both ends as probable."""
    g = chain([1.0, 1e-300], [1e-300, 1.0])
    post = g.fit()
    assert post.converged
    np.testing.assert_allclose(post.log_evidence, np.log(2e-300), rtol=1e-12)
    np.testing.assert_allclose(post[post.variables[0]].probabilities, 0.5, rtol=1e-10)


def test_an_observation_that_goes_leaves_no_zeros():
    """Taken back, and the contrary observed, from the old posterior: as a fit from the start."""
    g = chain([1.0, 0.0], [1.0, 1.0])
    before = g.fit()
    h = before.variables[0]
    np.testing.assert_array_equal(before[h].probabilities, [[1.0, 0.0]] * 5)
    assert np.isneginf(before[h].logits[:, 1]).all()
    g.remove(0)
    g.add(Table([0.0, 1.0]), h[0])
    post = g.fit(start=before)
    np.testing.assert_array_equal(post[h].probabilities, [[0.0, 1.0]] * 5)
    np.testing.assert_allclose(post.log_evidence, 0.0, atol=1e-9)


@pytest.mark.parametrize("kind", ["plain", "added", "in place"])
def test_a_mixture_with_known_means_is_exact(kind):
    """Noise is added to the variances of losses, and is that of a loss by name."""
    rng = np.random.default_rng(2)
    y, prior = 3.0 * rng.normal(size=20), np.array([0.2, 0.5, 0.3])
    noise = None if kind == "plain" else rng.uniform(0.1, 2.0, 20)
    means, variances = np.array([-2.0, 0.0, 3.0]), np.array([0.5, 2.0, 9.0])
    loss = "gaussian" if kind == "in place" else [losses.Gaussian(v) for v in variances]
    g = Graph()
    x, h = g.gaussian(mean=means, variance=1e-8), g.categorical(20, probabilities=prior)
    g.add(Mixture(h, loss), list(x), y, noise=noise)
    post = g.fit()
    whole = np.zeros(3) if kind == "in place" else variances
    whole = whole if noise is None else whole + noise[:, None]
    each = np.log(prior) + log_normal(y[:, None], means, whole)
    total = logsumexp(each, axis=1)
    np.testing.assert_allclose(post[h].probabilities, np.exp(each - total[:, None]), atol=1e-6)
    np.testing.assert_allclose(post.log_evidence, total.sum(), rtol=1e-6)


def test_responses_of_a_mixture_may_be_pairs():
    """Counts out of trials, from known probabilities."""
    rng, logits, prior = np.random.default_rng(2), np.array([-1.0, 1.5]), np.array([0.3, 0.7])
    trials = rng.integers(1, 9, size=12)
    count = rng.binomial(trials, 0.5)
    g = Graph()
    x, h = g.gaussian(mean=logits, variance=1e-8), g.categorical(12, probabilities=prior)
    g.add(Mixture(h, losses.Binomial()), list(x), np.column_stack([count, trials]))
    post = g.fit()
    each = np.log(prior) + stats.binom.logpmf(count[:, None], trials[:, None], expit(logits))
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
    "shapes": (lambda g, h, k, x: g.add(Table(np.ones((2, 4))), h[:2], k), "do not broadcast"),
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
    "no y": (lambda g, h, k, x: g.add(mix(h), [x, x]), "missing .*: .y."),
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
    for more in ({}, {"n": 3, "prior": [0.5, 0.5]}, {"n": 1}, {"n": 2.5}):
        with pytest.raises((TypeError, ValueError), match=r"n\b"):
            g.categorical(3, **more)
    for p in ([1.0], 1.0, [np.nan, 1.0], [-1.0, 2.0], [0.0, 0.0], [np.inf, 1.0], np.ones((2, 2))):
        with pytest.raises(ValueError, match="probabilities"):
            g.categorical(3, probabilities=p)

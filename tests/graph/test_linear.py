"""Losses on linear forms: against fit_linear, against one factor at a time, by properties."""

import itertools

import numpy as np
import pytest

import epfast
from epfast import AEP, EP, SEP, Graph, losses
from epfast._core.graph import runs
from epfast.graph import Between
from epfast.graph.engine import GraphEngine

LOSSES = {
    "logistic": lambda rng, h: np.where(h + rng.logistic(size=len(h)) > 0, 1, -1),
    "probit": lambda rng, h: np.where(h + rng.normal(size=len(h)) > 0, 1, -1),
    "poisson": lambda rng, h: rng.poisson(np.exp(np.clip(h, -5, 3))),
    "student_t": lambda rng, h: h + rng.standard_t(4, size=len(h)),
    "laplace_noise": lambda rng, h: h + rng.laplace(size=len(h)),
    "gaussian": lambda rng, h: h + rng.normal(size=len(h)),
}


def rows(seed, n=60, d=4):
    rng = np.random.default_rng(seed)
    return rng, rng.normal(size=(n, d)), rng.normal(size=d)


@pytest.mark.parametrize("name", LOSSES)
def test_scalar_weights_are_a_factorised_fit(name):
    rng, X, w = rows(0)
    y = LOSSES[name](rng, X @ w)
    g = Graph()
    weights = g.gaussian(4, variance=2.0)
    g.add(name, X @ weights + 0.3, y)
    post = g.fit(EP(tol=1e-12, sweeps=2000))
    fit = epfast.fit_linear(
        X,
        y,
        loss=name,
        posterior="factorized",
        prior_variance=2.0,
        offset=np.full(60, 0.3),
        schedule=EP(tol=1e-12, sweeps=2000, order="sequential"),
    )
    assert post.converged
    np.testing.assert_allclose(post[weights].mean, fit.mean, atol=1e-9)
    np.testing.assert_allclose(post[weights].variance, fit.variance, rtol=1e-9)
    assert abs(post.log_evidence - fit.log_evidence) < 1e-8


def games(seed, players=30, n=400, noise=1.0):
    rng = np.random.default_rng(seed)
    i, j = rng.integers(0, players, (2, n))
    keep = i != j
    g = Graph()
    s = g.gaussian(players, variance=rng.uniform(0.5, 3.0, players))
    g.add("probit", s[i[keep]] - s[j[keep]], 1, noise=0.5)
    g.add(Between(-0.4, 0.4), s[i[keep][:50]] - 2.0 * s[j[keep][:50]], noise=noise)
    return g, s


def one_by_one(problem):
    """Runs of a single factor, in the sequential order."""
    whole = problem.program(problem.model.order())
    sizes = [batch.n for batch in problem.model.batches]
    owner = np.repeat(np.arange(len(sizes)), sizes)
    first = np.cumsum([0, *sizes])
    place = [np.argsort(rows) for rows in whole.rows]
    single = []
    for f in problem.model.order():
        k = owner[f]
        at = place[k][f - first[k]]
        single.append((k, at, at + 1))
    return whole._replace(segments=np.array(single, dtype=np.intp))


@pytest.mark.parametrize("seed", range(3))
def test_runs_are_one_factor_after_the_other(seed, monkeypatch):
    g, s = games(seed)
    fit = g.fit(EP(sweeps=5, tol=0.0))
    problem = type(fit.problem)
    program = one_by_one(fit.problem)
    assert len(program.segments) == fit.problem.model.n_factors
    assert len(GraphEngine(fit.problem).program.segments) < len(program.segments) / 3
    monkeypatch.setattr(problem, "program", lambda self, order: program)
    single = g.fit(EP(sweeps=5, tol=0.0))
    np.testing.assert_allclose(fit[s].mean, single[s].mean, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(fit[s].variance, single[s].variance, rtol=1e-12)
    assert abs(fit.log_evidence - single.log_evidence) < 1e-10


@pytest.mark.parametrize("in_order", [(), (0,), (0, 1, 2, 3, 4)])
@pytest.mark.parametrize("batches", [1, 2, 5])
def test_runs_keep_the_order(batches, in_order):
    """Of two factors that share a variable the first has the earlier run; each goes once.

    Or the earlier place in a run, of a batch that visits its factors one after the other.
    """
    rng = np.random.default_rng(batches)
    counts = rng.integers(1, 4, 400)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
    variables = np.concatenate([rng.choice(60, k, replace=False) for k in counts]).astype(np.intp)
    order = rng.permutation(400).astype(np.intp)
    first = np.linspace(0, 400, batches + 1).astype(np.intp)
    kind = rng.integers(0, 2, 400).astype(np.uint8)
    serial = np.isin(np.arange(batches), in_order).astype(np.uint8)
    rows, segments = runs(starts, variables, order, first, 60, kind, serial)
    assert sorted(rows) == list(range(400))
    run = np.full(400, -1)
    for k, (batch, a, b) in enumerate(segments):
        some = rows[first[batch] + a : first[batch] + b]
        run[some] = 1000 * k + (np.arange(b - a) if serial[batch] else 0)
        assert len(some) > 0
        assert serial[batch] or (np.diff(kind[some].astype(int)) >= 0).all()
    sets = [set(variables[a:b]) for a, b in itertools.pairwise(starts)]
    for p, f in enumerate(order):
        for g in order[:p]:
            if sets[f] & sets[g]:
                assert run[g] < run[f]


@pytest.mark.parametrize("order", ["sequential", "parallel"])
@pytest.mark.parametrize("power", [0.5, 1.0])
def test_orders_have_one_fixed_point(order, power):
    g, s = games(1, noise=1.0 if power == 1.0 else 0.0)
    post = g.fit(EP(tol=1e-12, power=power, sweeps=3000))
    other = g.fit(EP(tol=1e-12, power=power, order=order, damping=0.3, sweeps=3000))
    assert post.converged
    assert other.converged
    np.testing.assert_allclose(other[s].mean, post[s].mean, atol=1e-9)
    assert abs(other.log_evidence - post.log_evidence) < 1e-8


def test_parallel_sweeps_that_diverge_go_on_one_by_one():
    """Hubs: the factors of an item all at once overshoot, undamped."""
    rng = np.random.default_rng(0)
    g = Graph()
    item, person = g.gaussian(5, variance=100.0), g.gaussian(1000, variance=0.57)
    g.add("logistic", person[:, None] - item, np.where(rng.random((1000, 5)) < 0.7, 1, -1))
    post = g.fit(EP(order="parallel", damping=1.0, tol=1e-8, sweeps=300))
    other = g.fit(EP(tol=1e-8))
    assert post.converged
    assert not post.state.together
    np.testing.assert_allclose(post[item].mean, other[item].mean, atol=1e-6)


def test_a_run_resumes_to_the_bit():
    g, _ = games(2)
    whole = g.fit(EP(sweeps=25, tol=0.0))
    first = g.fit(EP(sweeps=12, tol=0.0))
    rest = g.fit(EP(sweeps=13, tol=0.0), start=first)
    np.testing.assert_array_equal(whole.state.beliefs, rest.state.beliefs)
    assert whole.log_evidence == rest.log_evidence


def test_factors_come_and_go():
    g, s = games(3)
    before = g.fit(EP(tol=1e-12, sweeps=500))
    more = g.add("logistic", s[:5] - 0.2, 1)
    online = g.fit(EP(tol=1e-12, sweeps=500), start=before)
    fresh = g.fit(EP(tol=1e-12, sweeps=500))
    np.testing.assert_allclose(online[s].mean, fresh[s].mean, atol=1e-10)
    g.remove(more, [0, 3])
    g.remove(more, [1, 2, 4])
    back = g.fit(EP(tol=1e-12, sweeps=500), start=online)
    np.testing.assert_allclose(back[s].mean, before[s].mean, atol=1e-10)
    assert abs(back.log_evidence - before.log_evidence) < 1e-9


@pytest.mark.parametrize("schedule", [SEP(tol=1e-10, sweeps=500), AEP(tol=1e-10, sweeps=500)])
def test_shared_sites_of_gaussian_factors_are_exact(schedule):
    y = np.random.default_rng(0).normal(size=50) + 1.0
    g = Graph()
    x = g.gaussian((), variance=4.0)
    g.add(losses.Gaussian(2.0), x, y)
    post = g.fit(schedule)
    variance = 1.0 / (0.25 + 25.0)
    assert post.converged
    assert abs(post[x].mean - variance * y.sum() / 2.0) < 1e-8
    assert abs(post[x].variance / variance - 1.0) < 1e-8


def test_stochastic_ep_of_one_weight_is_that_of_the_linear_wing():
    rng = np.random.default_rng(1)
    y = np.where(rng.random(80) < 0.8, 1, -1)
    g = Graph()
    x = g.gaussian(1, variance=4.0)
    g.add("probit", x[0], y)
    post = g.fit(AEP(tol=1e-12, sweeps=1000))
    fit = epfast.fit_linear(
        np.ones((80, 1)),
        y,
        loss="probit",
        prior_variance=4.0,
        schedule=AEP(tol=1e-12, sweeps=1000),
    )
    np.testing.assert_allclose(post[x].mean, fit.mean, atol=1e-8)
    np.testing.assert_allclose(post[x].variance, fit.variance, rtol=1e-8)


def test_noise_of_unknown_size_is_another_factor():
    g = epfast.Graph()
    x, tau = g.gaussian(2), g.gamma()
    with pytest.raises(TypeError, match=r"noise is Variables\(gamma, shape=\(\)\); .*Noise\(tau\)"):
        g.add("gaussian", x, [1.0, 2.0], noise=tau)

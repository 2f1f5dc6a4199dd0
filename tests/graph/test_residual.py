"""Visits by residuals: the same fixed points, with the factors first whose neighbours moved."""

import numpy as np
import pytest

from epfast import EP, SEP, Graph, fit_gp, fit_linear, load
from epfast.graph import Factor
from epfast.losses import Gaussian
from tests.graph.models import GRAPHS
from tests.graph.test_gaussian import random_tree


@pytest.mark.parametrize("seed", range(6))
def test_trees_are_exact(seed):
    rng = np.random.default_rng(seed)
    g, x, dense = random_tree(rng, int(rng.integers(3, 12)))
    post = g.fit(EP(tol=1e-12, order="residual"))
    mean, variance, evidence = dense.solved()
    assert post.converged
    np.testing.assert_allclose(post[x].mean, mean, atol=1e-10)
    np.testing.assert_allclose(post[x].variance, variance, rtol=1e-10)
    assert abs(post.log_evidence - evidence) < 1e-9


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("damping", [1.0, 0.6])
@pytest.mark.parametrize("name", GRAPHS)
def test_the_fixed_point_is_that_of_sequential_order(name, damping):
    g = GRAPHS[name](np.random.default_rng(3))
    schedule = {"sweeps": 2000, "tol": 1e-11, "damping": damping}
    one, other = (g.fit(EP(order=order, **schedule)) for order in ("sequential", "residual"))
    assert one.converged
    assert other.converged
    np.testing.assert_allclose(other.state.beliefs, one.state.beliefs, rtol=1e-7, atol=1e-8)
    assert abs(other.log_evidence - one.log_evidence) < 1e-8


def hard_loop(rng, n=400):
    """Many easy factors, and a few that are tied in a loop."""
    g = Graph()
    x = g.gaussian(n, variance=100.0)
    g.add(Gaussian(1.0), x, rng.normal(size=n))
    a = np.arange(6)
    g.add(Gaussian(0.05), x[a] - x[(a + 1) % 6], 0.3)
    g.add(Gaussian(0.05), x[a] - x[(a + 2) % 6], 0.1)
    return g, n + 12


def test_few_updates_where_few_factors_are_hard():
    """A sweep is as many updates as there are factors; ticks count them."""
    rng = np.random.default_rng(0)
    g, n = hard_loop(rng)
    posts, ticks = {}, {}
    for order in ("sequential", "residual"):
        seen = []
        posts[order] = g.fit(EP(tol=1e-9, sweeps=5000, order=order), progress=seen.append)
        ticks[order] = sum(seen)
        assert ticks[order] == n * posts[order].n_sweeps
    np.testing.assert_allclose(
        posts["residual"].state.beliefs, posts["sequential"].state.beliefs, rtol=1e-6, atol=1e-6
    )
    # sequential sweeps go to the limit of their slow tail; without that they take over four times
    assert 3 * ticks["residual"] < 2 * ticks["sequential"]


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize("name", GRAPHS)
def test_saved_and_resumed_is_uninterrupted(name, tmp_path):
    def schedule(n):
        return EP(sweeps=n, tol=0.0, order="residual")

    g, h = (GRAPHS[name](np.random.default_rng(3)) for _ in range(2))
    whole, part = g.fit(schedule(9)), h.fit(schedule(4))
    part.save(tmp_path / "post.npz")
    again = load(tmp_path / "post.npz")
    for on in (h.fit(schedule(5), start=part), Graph.of(again).fit(schedule(5), start=again)):
        np.testing.assert_array_equal(on.state.beliefs, whole.state.beliefs)
        np.testing.assert_array_equal(on.state.residual, whole.state.residual)
    # callbacks keep states as they were
    kept = []
    g.fit(schedule(9), callback=lambda info, state: kept.append(state))
    np.testing.assert_array_equal(kept[3].residual, part.state.residual)
    np.testing.assert_array_equal(kept[3].beliefs, part.state.beliefs)
    # and another order goes on from it
    assert np.isfinite(h.fit(EP(sweeps=3, tol=0.0), start=part).log_evidence)


def test_refusals():
    g = Graph()
    x = g.gaussian(3)
    g.add("probit", x, 1)
    with pytest.raises(ValueError, match=r"order is 'residual'; allowed"):
        SEP(order="residual")
    g.add(Factor(lambda x: -x * x), x)
    with pytest.raises(ValueError, match=r"order is 'residual'.*factors of your own"):
        g.fit(EP(order="residual"))
    X, y = np.random.default_rng(0).normal(size=(8, 2)), np.tile([1.0, -1.0], 4)
    for fit in (
        lambda: fit_linear(X, y, schedule=EP(order="residual")),
        lambda: fit_linear(X, y, posterior="factorized", schedule=EP(order="residual")),
        lambda: fit_gp(np.eye(8), y, schedule=EP(order="residual")),
        lambda: fit_gp(np.eye(8), y, rank=2, schedule=EP(order="residual")),
    ):
        with pytest.raises((ValueError, TypeError), match=r"residual.*allowed"):
            fit()


def test_who_waits_is_counted_though_no_sweep_comes_by():
    """A factor between flat variables waits, and nothing moves any more."""
    g = Graph()
    x = g.gaussian(3, variance=[1.0, np.inf, np.inf])
    g.add("probit", x[1] - x[2], 1)
    g.add(Gaussian(1.0), x[0], 0.3)
    with pytest.warns(match="1 of 2 sites were refused"):
        post = g.fit(EP(sweeps=20, order="residual"))
    assert not post.converged
    assert post.history[-1].n_refused == 1


@pytest.mark.parametrize(
    "given", [{"damping": 0.1}, {"power": 0.5}, {"power": 1.5, "damping": 0.5}]
)
def test_one_factor_alone_is_visited_until_it_settles(given):
    """What damping leaves, and a power changes, is a residual of the factor's own."""
    g = Graph()
    x = g.gaussian(2, variance=[1.0, 3.0])
    g.add("probit", x[0] - x[1], 1)
    one, other = (
        g.fit(EP(sweeps=1000, tol=1e-9, order=order, **given))
        for order in ("residual", "sequential")
    )
    assert one.converged
    np.testing.assert_allclose(one.state.beliefs, other.state.beliefs, rtol=1e-7)
    assert abs(one.log_evidence - other.log_evidence) < 1e-7

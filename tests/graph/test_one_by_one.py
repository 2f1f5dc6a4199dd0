"""Factors that are added one by one are those of one batch, and a fit has them as one."""

import numpy as np
import pytest

import epfast
from epfast import EP, Graph
from epfast.graph import Between, Table, Transition

RNG = np.random.default_rng(0)
N, PLAYERS = 150, 12
I = RNG.integers(0, PLAYERS, N)  # noqa: E741
J = (I + RNG.integers(1, PLAYERS, N)) % PLAYERS
SEEN = RNG.normal(size=(N, 2))


def model(apart):
    """A graph, its variables, and the batches of games and of observations."""
    g = Graph()
    s = g.gaussian(PLAYERS)
    games, seen = [], []
    for rows in np.array_split(np.arange(N), N if apart else 1):
        games.append(g.add(Between(0.0, np.inf), s[I[rows]] - s[J[rows]], noise=2.0))
        seen.append(g.add("gaussian", s[I[rows]], SEEN[rows, 0], noise=4.0))
    return g, s, games, seen


def test_the_fit_is_that_of_one_batch():
    (one, s, games, _), (g, t, apart, each) = model(False), model(True)
    schedule = EP(sweeps=300, tol=1e-12)
    post, other = one.fit(schedule), g.fit(schedule)
    np.testing.assert_allclose(other[t].mean, post[s].mean, atol=1e-11)
    np.testing.assert_allclose(other[t].variance, post[s].variance, rtol=1e-11)
    assert other.log_evidence == pytest.approx(post.log_evidence, abs=1e-10)
    assert len(other.problem.model.joined) == 2
    # sites by the batches as they were added
    assert sorted(other.by_batch) == sorted(apart + each)
    rows, starts, sites, _ = post.by_batch[games[0]]
    place = int(np.flatnonzero(rows == 7)[0])
    mine = other.by_batch[apart[7]]
    assert mine[0].tolist() == [0]
    np.testing.assert_allclose(mine[2], sites[starts[place] : starts[place + 1]], atol=1e-11)


def test_one_step_ahead_has_the_batches_that_were_added():
    g, _, apart, each = model(True)
    found = g.one_step_ahead()
    assert sorted(found) == sorted(apart + each)
    # visited in the order in which they were added
    alone = Graph()
    s = alone.gaussian(PLAYERS)
    first = alone.add(Between(0.0, np.inf), s[I[0]] - s[J[0]], noise=2.0)
    np.testing.assert_allclose(found[apart[0]], alone.one_step_ahead()[first])


def test_factors_are_removed_and_fits_continue(tmp_path):
    g, s, apart, each = model(True)
    post = g.fit(EP(sweeps=300, tol=1e-10))
    again = g.fit(EP(sweeps=300, tol=1e-8), start=post)
    assert len(again.history) == 1
    post.save(tmp_path / "post.npz")
    loaded = epfast.load(tmp_path / "post.npz")
    np.testing.assert_array_equal(loaded[s].mean, post[s].mean)
    np.testing.assert_array_equal(
        Graph.of(loaded).fit(start=loaded)[s].mean, g.fit(start=post)[s].mean
    )
    for key in (apart[3], each[40], apart[149]):
        g.remove(key)
    g.add(Between(0.0, np.inf), s[0] - s[1], noise=2.0)
    warm, cold = g.fit(EP(sweeps=300, tol=1e-10), start=post), g.fit(EP(sweeps=300, tol=1e-10))
    np.testing.assert_allclose(warm[s].mean, cold[s].mean, atol=1e-8)
    assert warm.log_evidence == pytest.approx(cold.log_evidence, abs=1e-8)
    with pytest.raises(ValueError, match=f"batch is {apart[3]}; allowed"):
        g.remove(apart[3])


def test_an_impossible_factor_is_named_by_its_batch():
    g = Graph()
    h = g.categorical(2, n=2)
    table = Table([[0.0, 1.0], [1.0, 0.0]])
    g.add(Table([1.0, 0.0]), h[0])
    g.add(Table([1.0, 0.0]), h[1])
    last = g.add(table, h[0], h[1])
    with pytest.raises(ValueError, match=f"the evidence is 0: factor 0 of batch [0-{last}]"):
        g.fit()


def test_kinds_that_differ_stay_apart():
    """Tables of two and three categories, and steps of two variances: as enumeration has them."""
    g = Graph()
    two, three = g.categorical(n=2), g.categorical(n=3)
    g.add(Table([0.3, 0.7]), two)
    g.add(Table([0.2, 0.3, 0.5]), three)
    joint = RNG.random((2, 3))
    g.add(Table(joint), two, three)
    Z = (np.outer([0.3, 0.7], [0.2, 0.3, 0.5]) * joint).sum()
    assert g.fit().log_evidence == pytest.approx(np.log(Z))
    chain = Graph()
    x = chain.gaussian(variance=[1.0, np.inf, np.inf])
    chain.add(Transition(0.5), x[0], x[1])
    chain.add(Transition(2.0), x[1], x[2])
    chain.add("gaussian", x[2], 2.0)
    np.testing.assert_allclose(chain.fit()[x].mean, 2.0 * np.array([1.0, 1.5, 3.5]) / 4.5)

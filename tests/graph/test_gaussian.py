"""Graphs whose factors are all Gaussian, against dense linear algebra."""

import numpy as np
import pytest

from epfast import ADF, EP, Graph
from epfast.graph import Transition, Walk
from epfast.losses import Gaussian


class Dense:
    """The joint Gaussian of the same factors; a flat prior is the density 1."""

    def __init__(self, variance, mean=0.0):
        variance = np.asarray(variance, dtype=float)
        known = np.isfinite(variance)
        precision = np.where(known, 1.0 / variance, 0.0)
        self.P, self.b = np.diag(precision), precision * mean
        self.c = -0.5 * np.sum(np.log(2.0 * np.pi * variance[known]) + (mean**2 / variance)[known])

    def add(self, a, y, variance):
        """N(y; a.x, variance)"""
        self.P += np.outer(a, a) / variance
        self.b += a * y / variance
        self.c -= 0.5 * (np.log(2.0 * np.pi * variance) + y * y / variance)

    def solved(self):
        covariance = np.linalg.inv(self.P)
        mean = covariance @ self.b
        _, log_det = np.linalg.slogdet(self.P)
        evidence = self.c + 0.5 * (self.b @ mean + len(mean) * np.log(2.0 * np.pi) - log_det)
        return mean, np.diag(covariance), evidence


def random_tree(rng, n):
    """A graph and its dense counterpart: a tree of forms and transitions, observations."""
    variance, mean = rng.uniform(0.5, 20.0, n), rng.normal(size=n)
    g, dense = Graph(), Dense(variance, mean)
    x = g.gaussian(n, mean=mean, variance=variance)
    parents = np.array([rng.integers(0, i) for i in range(1, n)])
    children = rng.permutation(np.arange(1, n))
    by_form = rng.random(n - 1) < 0.5
    for child in children:
        parent, v = parents[child - 1], rng.uniform(0.1, 4.0)
        a, b, y = rng.normal(size=3)
        row = np.zeros(n)
        if by_form[child - 1]:
            g.add(Gaussian(v), a * x[child] - b * x[parent] + 0.5, y, noise=0.25)
            row[[child, parent]] = a, -b
            dense.add(row, y - 0.5, v + 0.25)
        else:
            g.add(Transition(v, factor=b), x[parent], x[child])
            row[[child, parent]] = 1.0, -b
            dense.add(row, 0.0, v)
    seen = rng.choice(n, size=max(1, n // 2), replace=False)
    y = rng.normal(size=len(seen))
    g.add(Gaussian(2.0), x[seen], y)
    for i, value in zip(seen, y, strict=True):
        dense.add(np.eye(n)[i], value, 2.0)
    return g, x, dense


@pytest.mark.parametrize("seed", range(20))
def test_trees_are_exact(seed):
    rng = np.random.default_rng(seed)
    g, x, dense = random_tree(rng, int(rng.integers(2, 12)))
    post = g.fit(EP(tol=1e-12))
    mean, variance, evidence = dense.solved()
    assert post.converged
    assert post.n_refused == 0
    np.testing.assert_allclose(post[x].mean, mean, atol=1e-10)
    np.testing.assert_allclose(post[x].variance, variance, rtol=1e-10)
    assert abs(post.log_evidence - evidence) < 1e-9


def chain(rng, n, walk_first):
    variance = np.r_[10.0, np.full(n - 1, np.inf)]
    rate, steps = 0.7, rng.uniform(0.5, 2.0, n - 1)
    times = np.concatenate([[0.0], np.cumsum(steps)])
    y = rng.normal(size=n) * 3.0
    g, dense = Graph(), Dense(variance)
    x = g.gaussian(n, variance=variance)
    adds = [lambda: g.add(Walk(rate), x, time=times), lambda: g.add(Gaussian(1.5), x, y)]
    for add in adds if walk_first else adds[::-1]:
        add()
    for i in range(n - 1):
        dense.add(np.eye(n)[i + 1] - np.eye(n)[i], 0.0, rate * steps[i])
    for i in range(n):
        dense.add(np.eye(n)[i], y[i], 1.5)
    return g, x, dense


@pytest.mark.parametrize("walk_first", [True, False])
def test_a_chain_takes_a_sweep_forward_and_one_backward(walk_first):
    g, x, dense = chain(np.random.default_rng(1), 40, walk_first)
    post = g.fit(EP(sweeps=2, tol=0.0))
    mean, variance, evidence = dense.solved()
    np.testing.assert_allclose(post[x].mean, mean, atol=1e-11)
    np.testing.assert_allclose(post[x].variance, variance, rtol=1e-11)
    assert abs(post.log_evidence - evidence) < 1e-10


def test_adf_filters():
    """After the one pass the last state has seen all, and the evidence is that of the filter."""
    g, x, dense = chain(np.random.default_rng(2), 40, True)
    post = g.fit(ADF())
    mean, variance, evidence = dense.solved()
    np.testing.assert_allclose(post[x[-1]].mean, mean[-1], rtol=1e-11)
    np.testing.assert_allclose(post[x[-1]].variance, variance[-1], rtol=1e-11)
    assert abs(post.log_evidence - evidence) < 1e-10


def test_a_walk_defines_all_but_the_first():
    """Priors of the others go: as if they had been flat."""
    y = np.array([1.0, -2.0, 0.5])
    posts = []
    for variance in (2.25, [2.25, np.inf, np.inf]):
        g = Graph()
        x = g.gaussian(3, variance=variance)
        g.add(Walk(0.3), x)
        g.add(Gaussian(), x, y)
        posts.append(g.fit()[x])
    np.testing.assert_array_equal(posts[0].mean, posts[1].mean)


def test_chains_by_label():
    """Interleaved chains are those of each label alone."""
    rng = np.random.default_rng(3)
    by, time = np.array(["b", "a", "b", "a", "b"]), np.array([0.0, 1.0, 2.0, 5.0, 7.0])
    y = rng.normal(size=5)
    g = Graph()
    x = g.gaussian(5, variance=4.0)
    g.add(Walk(0.5), x, by=by, time=time)
    g.add(Gaussian(), x, y)
    post = g.fit(EP(tol=1e-12))
    for label in "ab":
        some = by == label
        alone = Graph()
        z = alone.gaussian(some.sum(), variance=4.0)
        alone.add(Walk(0.5), z, time=time[some])
        alone.add(Gaussian(), z, y[some])
        np.testing.assert_allclose(post[x[some]].mean, alone.fit(EP(tol=1e-12))[z].mean, rtol=1e-12)


@pytest.mark.parametrize("power", [0.5, 1.2])
def test_powers_have_one_fixed_point(power):
    """From flat sites and from those of another power."""
    g, x, _ = random_tree(np.random.default_rng(4), 6)
    schedule = EP(power=power, tol=1e-13, sweeps=1000)
    post, other = g.fit(schedule), g.fit(schedule, start=g.fit(EP(tol=1e-13)))
    assert post.converged
    assert other.converged
    np.testing.assert_allclose(other[x].mean, post[x].mean, atol=1e-10)
    np.testing.assert_allclose(other[x].variance, post[x].variance, rtol=1e-10)
    assert abs(other.log_evidence - post.log_evidence) < 1e-9


def test_digits_beside_huge_sites_come_back():
    """A factor that is removed was 1e29 sd away: priors are not lost in its rounding."""
    g = Graph()
    x, z = g.gaussian(mean=0.5), g.gaussian(mean=0.5)
    g.add(Transition(0.0, factor=0.6), x, z)
    far = g.add("gaussian", x - 0.5 * z, 1e29)
    post = g.fit(EP(sweeps=4, tol=0.0))
    g.remove(far)
    post = g.fit(start=post)
    # x with z = 0.6 x: precision 1 + .36, shift .5 + .3
    assert post.converged
    np.testing.assert_allclose(post[x].mean, 0.8 / 1.36, rtol=1e-12)
    np.testing.assert_allclose(post[z].mean, 0.6 * 0.8 / 1.36, rtol=1e-12)

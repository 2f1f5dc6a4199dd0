"""Small graphs of every kind of factor, for tests of what holds for all of them."""

import numpy as np

from epfast import Graph, losses, schemes
from epfast.graph import (
    Between,
    Category,
    CompoundGamma,
    LogisticLink,
    Mixture,
    Noise,
    Product,
    Table,
    Transition,
    Walk,
)


def forms(rng):
    g = Graph()
    s = g.gaussian(6, mean=rng.normal(size=6), variance=2.0, name="skill")
    edge = g.gaussian(variance=0.5)
    a, b = np.array([0, 1, 2, 3, 4, 0]), np.array([1, 2, 3, 4, 5, 5])
    g.add("probit", s[a] - s[b] + edge, np.where(rng.random(6) < 0.5, 1, -1), noise=0.5)
    g.add(Between(-0.5, 0.7), s[a[:3]] - 2.0 * s[b[:3]], noise=1.0)
    g.add("poisson", s[:3] + 0.3, rng.poisson(2.0, 3))
    student = losses.NAMED["student_t"](4.0)
    g.add(student, s[2:5], rng.normal(size=3), scheme=schemes.resolve("quadrature"))
    g.add(losses.Gaussian(0.5), s[1:5], rng.normal(size=4), noise=[0.1, 0.2, 0.3, 0.4])
    return g


def chains(rng):
    g = Graph()
    x = g.gaussian((2, 5), variance=3.0, name="state")
    z = g.gaussian(3, variance=[1.0, np.inf, np.inf])
    g.add(Walk(0.4), x, by=np.repeat(["a", "b"], 5), time=np.tile([0.0, 1.0, 1.0, 2.5, 4.0], 2))
    g.add(Transition([0.3, 0.2], factor=0.9), z[:2], z[1:])
    g.add("logistic", x, np.where(rng.random((2, 5)) < 0.6, 1, -1))
    g.add(losses.Gaussian(), z, rng.normal(size=3))
    return g


def precisions(rng):
    g = Graph()
    x, tau = g.gaussian(8, variance=10.0, name="x"), g.gamma(2, shape=1.5, rate=[0.5, 0.2])
    broad = g.gamma(shape=1.0, rate=0.0, name="broad")
    g.add(Noise(tau[0]), x[1:] - x[:-1])
    g.add(Noise(tau[1], match="moments"), rng.normal(size=8) - x)
    g.add(CompoundGamma(1.5, 2.0, 1.0), broad)
    g.add(Noise(broad), x[0] - 0.5 * x[3])
    return g


def products(rng):
    g = Graph()
    u, v = g.gaussian(3, mean=1.0, name="u"), g.gaussian(2, mean=0.5, variance=2.0)
    z, p = g.gaussian(3, variance=np.inf), g.beta(3, alpha=[1.0, 2.0, 3.0], beta=1.5, name="p")
    g.add(Product(0.3), u[:, None], v, rng.normal(size=(3, 2)))
    g.add(Product(0.1), u, v[[0, 1, 0]], z)
    g.add(LogisticLink(), z, p)
    return g


def categories(rng):
    g = Graph()
    h = g.categorical(6, probabilities=[0.3, 0.7], name="label")
    k = g.categorical(6, n=3)
    centre = g.gaussian((2, 2), mean=[[-1.0, 0.0], [1.0, 0.5]], variance=4.0)
    g.add(Table(rng.random((2, 3))), h, k)
    g.add(Table(rng.random((6, 3))), k)
    pair = (losses.Gaussian(0.25), losses.Gaussian(2.0))
    g.add(Mixture(h[:, None], pair), list(centre[:, 0]), rng.normal(size=(6, 1)))
    g.add(Mixture(h, losses.Gaussian(1.0), vectors=True), list(centre), rng.normal(size=(6, 2)))
    return g


def probabilities(rng):
    g = Graph()
    share, rows = g.dirichlet(3, [1.0, 2.0, 0.5], name="share"), g.dirichlet(2, 1.5, shape=(2, 3))
    h, k = g.categorical(5, n=3, name="class"), g.categorical(5, probabilities=[0.2, 0.8])
    g.add(Category(share), h)
    g.add(Category(share, match="moments"), rng.integers(3, size=4))
    g.add(Table(rows[0]), h, rng.integers(2, size=5))
    g.add(Table(rows[1]), h, k)
    g.add(Table(rows[1]), [0, 2], [1, 1])
    centre = g.gaussian(mean=[-1.0, 0.0, 2.0])
    g.add(Mixture(h, "gaussian"), list(centre), rng.normal(size=5))
    return g


#: graphs that tests/golden/ has recorded, by what they have; each is a function of a generator
RECORDED = {f.__name__: f for f in (forms, chains, precisions, products, categories)}
GRAPHS = RECORDED | {"probabilities": probabilities}


def shared(rng):
    """A graph whose factors of a batch are all about the same variables."""
    g = Graph()
    x, tau = g.gaussian(3, variance=4.0, name="x"), g.gamma(shape=2.0, rate=1.0)
    X = rng.normal(size=(12, 3))
    g.add("logistic", X @ x, np.where(rng.random(12) < 0.5, 1, -1))
    g.add(Noise(tau), rng.normal(size=7) - (x[0] + x[1]))
    h = g.categorical(probabilities=[0.4, 0.6])
    g.add(Table(rng.random((5, 2)) + 0.1), h)
    return g


def beliefs(post):
    """Natural parameters of all variables."""
    return post.state.beliefs

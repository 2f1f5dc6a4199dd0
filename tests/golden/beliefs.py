"""Graphs, ratings, networks and operators, and what they gave before a change, in beliefs.npz.

    python tests/golden/beliefs.py --write              # keep the results of the epfast on the path
    python tests/golden/beliefs.py --compare            # how far its results are from those kept
    python tests/golden/beliefs.py --compare --only table     # of the fits with this in their name
    python tests/golden/beliefs.py --compare --nudge 1e-15    # whether rounding of data moves them

These are other fits than those of ``many.py``, which says what the bounds are: here are graphs by
kinds of factors, families of variables, losses, schemes and schedules, what a graph or a rating may
be asked after its fit, networks by their schedules, and operators by their settings. What is read
are public attributes, so that classes and modules may have other names.

What is left out, and why:

- SEP and AEP of graphs whose factors are about different variables, which are refused.
- Learned messages until a tolerance: an operator asks where it is unsure, and its errors do not
  settle. They are paths of some sweeps.
- Fits with ``SampledFactor``, whose draws depend on the bits of a message. Its answers to the same
  messages are here.
- The standard deviations of what an operator predicts, and messages that it learns as moments for
  factors of a graph: both are small differences.
- Draws without a seed.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

sys.path.append(str(Path(__file__).parents[2]))  # as a script

import epfast
from epfast import graph, losses, priors, schemes
from epfast.operators import CallableOracle, DensityOracle, SampledFactor, SiteOracle
from tests.golden.fits import LOSSES, NEW, Bounds, Data, Fit, labels, latent, noisy, path
from tests.golden.many import Given, having, moved, settled
from tests.golden.record import ONCE, SEARCHED, SETTLED, Record


class Draws(np.random.Generator):
    """A generator whose normal numbers are off by the nudge of the data."""

    def __init__(self, data: Data, *seed: int) -> None:
        super().__init__(np.random.PCG64([57, *seed]))
        self.data = data

    def normal(self, *args: Any, **more: Any) -> Any:
        return moved(super().normal(*args, **more), self.data)

    def signs(self, *shape: int) -> np.ndarray:
        """-1 and 1."""
        return np.where(self.random(shape) < 0.5, -1, 1)

    def near(self, value: Any) -> Any:
        """Numbers that are off by the nudge."""
        return moved(np.asarray(value, np.float64), self.data)


def of_graph(post: Any) -> Given:
    """Beliefs about all variables, the log evidence, and whether the fit converged."""
    found = {"log_evidence": post.log_evidence}
    found["converged"] = post.converged or not post.schedule.tol
    for name, array in post.variables.items():
        belief = post[array]
        if hasattr(belief, "probabilities"):
            found[f"{name} probabilities"] = belief.probabilities
        else:
            found[f"{name} mean"], found[f"{name} variance"] = belief.mean, belief.variance
    return found


#: a graph of the numbers that it draws
Maker = Callable[[Draws], epfast.Graph]


def of_fit(make: Maker, data: Data, schedule: Any = None, seed: int = 0) -> Given:
    """What the fit of a graph gives."""
    return of_graph(make(Draws(data, seed)).fit(schedule or settled()))


# ---- graphs by kinds of factors and schedules ----


def sums(rng: Draws) -> epfast.Graph:
    """Sums of variables, products with matrices, and offsets."""
    g = epfast.Graph()
    s, edge = g.gaussian((3, 4), mean=rng.normal(size=(3, 4)), variance=2.0), g.gaussian()
    g.add("logistic", s.sum(axis=1) - 0.5 * edge, rng.signs(3))
    g.add(losses.Gaussian(0.3), s.sum(axis=0) + rng.normal(size=4), rng.normal(size=4))
    g.add("probit", rng.normal(size=(6, 3)) @ s[:, 0], rng.signs(6), noise=[0.1] * 3 + [0.4] * 3)
    g.add("poisson", 0.5 * s[1] + s[2] / 4.0 - edge, rng.poisson(1.5, 4))
    return g


def ties(rng: Draws) -> epfast.Graph:
    """Bounds of differences, some of them open."""
    g = epfast.Graph()
    s = g.gaussian(5, mean=rng.normal(size=5), variance=rng.near([0.5, 1.0, 1.5, 2.0, 2.5]))
    low, high = np.array([-0.5, -np.inf, 0.2, -1.0]), np.array([0.5, 0.3, np.inf, 2.0])
    g.add(graph.Between(low, high), s[:-1] - s[1:], noise=rng.near([1.0, 2.0, 0.5, 0.1]))
    g.add(graph.Between(upper=0.7), s[0] - 2.0 * s[4])
    return g


def steps(rng: Draws) -> epfast.Graph:
    """Transitions of factors and variances of their own, a walk, and counts."""
    g = epfast.Graph()
    z = g.gaussian(7, variance=[1.5] + 6 * [np.inf], name="z")
    g.add(graph.Transition(rng.near(np.linspace(0.2, 0.7, 6)), factor=0.9), z[:-1], z[1:])
    x = g.gaussian(6, mean=0.5, variance=2.0)
    g.add(graph.Walk(0.3), x, by=list("aaabbb"), time=rng.near([0.0, 1.3, 3.2, 0.0, 0.7, 4.4]))
    g.add("poisson", z[1:] + x, rng.poisson(2.0, 6))
    g.add("logistic", z - 0.3, rng.signs(7))
    return g


def levels(rng: Draws) -> epfast.Graph:
    """Groups with noise of precisions of their own, matched in both ways."""
    g = epfast.Graph()
    level, own = g.gaussian(variance=25.0), g.gaussian(4, mean=rng.normal(size=4), variance=2.0)
    tau = g.gamma(4, shape=2.0, rate=rng.near([1.0, 0.5, 2.0, 1.5]))
    common = g.gamma(shape=3.0, rate=1.0, name="common")
    at = np.arange(16) % 4
    g.add(graph.Noise(tau[at]), rng.normal(size=16) + 1.0 - (level + own[at]))
    g.add(graph.Noise(common, match="moments"), own - 0.5 * level)
    return g


def sds(rng: Draws) -> epfast.Graph:
    """Scales with each prior."""
    g = epfast.Graph()
    x = g.gaussian(9, variance=4.0)
    kinds = (
        priors.HalfNormal(1.5),
        priors.HalfStudentT(4.0, 2.0),
        priors.HalfCauchy(1.0),
        priors.Exponential(0.8),
        priors.Gamma(2.0, 1.0),
        priors.InverseGamma(2.0, 1.0),
        priors.Uniform(4.0),
        priors.PC(1.2),
        None,
    )
    for k, prior in enumerate(kinds):
        s = g.scale(prior, name=f"s{k}")
        g.add(graph.Noise(s), (0.5 + 0.2 * k) * rng.normal(size=6) - x[k])
    return g


def broad(rng: Draws) -> epfast.Graph:
    """Compound gammas, one for all and one for each."""
    g = epfast.Graph()
    tau, one = g.gamma(3, shape=1.0, rate=0.0), g.gamma(shape=1.0, rate=0.0, name="one")
    x = g.gaussian(4, mean=rng.normal(size=4), variance=3.0)
    g.add(graph.CompoundGamma(rng.near([1.5, 2.0, 2.5]), 1.0, 2.0), tau)
    g.add(graph.CompoundGamma(2.0, rng.near(1.5), 1.5, match="moments"), one)
    g.add(graph.Noise(tau), x[1:] - x[:-1])
    g.add(graph.Noise(one), rng.normal(size=4) - x)
    return g


def matrix(rng: Draws) -> epfast.Graph:
    """A matrix of rank one with noise of its own for each entry, and hidden products."""
    g = epfast.Graph()
    u, v = g.gaussian(4, mean=1.5, variance=0.5), g.gaussian(3, mean=rng.near([1.0, 2.0, 0.5]))
    z = g.gaussian(2, variance=np.inf, name="z")
    g.add(
        graph.Product(rng.near(np.full((4, 1), 0.4))), u[:, None], v, 2.0 + rng.normal(size=(4, 3))
    )
    g.add(graph.Product(), u[:2], v[1:], z)
    g.add(losses.Gaussian(0.5), z, rng.normal(size=2) + 2.0)
    return g


def odds(rng: Draws) -> epfast.Graph:
    """Log odds and probabilities, matched in both ways."""
    g = epfast.Graph()
    z = g.gaussian(5, mean=rng.normal(size=5), variance=3.0)
    p = g.beta(5, alpha=rng.near([2.0, 5.0, 1.0, 4.0, 1.5]), beta=2.0, name="p")
    q = g.beta(alpha=3.0, beta=1.2)
    g.add(graph.LogisticLink(), z, p)
    g.add(graph.LogisticLink(match="moments"), z[:2], q)
    g.add("probit", z[1:] - z[:-1], rng.signs(4))
    return g


def tables(rng: Draws) -> epfast.Graph:
    """A hidden chain, a table of three variables, and tables of each observation."""
    g = epfast.Graph()
    h = g.categorical(6, probabilities=[0.2, 0.3, 0.5], name="h")
    k = g.categorical(2, n=2)
    stay = rng.near([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]])
    g.add(graph.Table(stay), h[:-1], h[1:])
    g.add(graph.Table(rng.random((6, 3)) + 0.2), h)
    g.add(graph.Table(rng.random((3, 2, 2)) + 0.1), h[2], k[0], k[1])
    g.add(graph.Table([[1.0, 0.0, 2.0], [0.5, 1.0, 0.3]]), k, h[4:])
    return g


def gates(rng: Draws) -> epfast.Graph:
    """Mixtures by losses of each category, with known numbers, noise and vectors."""
    g = epfast.Graph()
    h = g.categorical(7, probabilities=[0.4, 0.6], name="h")
    centre = g.gaussian(2, mean=rng.near([-1.5, 1.5]), variance=2.0)
    slope = g.gaussian((2, 3), mean=[[1.0, 0.0, -1.0], [-1.0, 0.5, 1.0]], variance=1.5)
    pair = (losses.Gaussian(0.5), losses.StudentT(4.0, 1.0))
    y = np.where(np.arange(7) % 2, 1.5, -1.5) + 0.4 * rng.normal(size=7)
    g.add(graph.Mixture(h, pair), list(centre), y, noise=0.2)
    g.add(graph.Mixture(h[:4], losses.Gaussian(4.0)), [0.0, centre[1]], y[:4])
    g.add(
        graph.Mixture(h, losses.Gaussian(1.0), vectors=True), list(slope), rng.normal(size=(7, 3))
    )
    g.add(graph.Mixture(h, "logistic"), list(centre), rng.signs(7))
    return g


def weights(rng: Draws) -> epfast.Graph:
    """A block with a dense precision beside scalars, and noise of unknown precision."""
    g = epfast.Graph()
    A = rng.normal(size=(5, 5))
    w = g.block(5, precision=np.eye(5) + 0.2 * A @ A.T, mean=rng.normal(size=5))
    level, tau = g.gaussian(3, variance=2.0), g.gamma(shape=2.0, rate=1.0)
    X, at = rng.normal(size=(14, 5)), np.arange(14) % 3
    g.add("logistic", X @ w + level[at], rng.signs(14))
    g.add(graph.Noise(tau), rng.normal(size=14) - X @ w)
    g.add(graph.Between(-1.0, 1.5), w[1:] - w[:-1], noise=0.5)
    g.add("gaussian", w[:2], rng.normal(size=2), noise=0.7)
    return g


def alone(rng: Draws) -> epfast.Graph:
    """A block of a few variances, with factors of it alone."""
    g = epfast.Graph()
    w = g.block(4, variance=rng.near([1.0, 2.0, 0.5, 3.0]), name="w")
    X = rng.normal(size=(12, 4))
    g.add("probit", X @ w, rng.signs(12))
    g.add("poisson", 0.4 * X[:5] @ w + 0.2, rng.poisson(1.0, 5))
    g.add(losses.Gaussian(2.0), X[5:] @ w, rng.normal(size=7))
    return g


def field(rng: Draws) -> epfast.Graph:
    """A block with a sparse precision, of a chain."""
    g = epfast.Graph()
    d = 12
    bands = [np.full(d - 1, -0.9), np.full(d, 2.2), np.full(d - 1, -0.9)]
    w = g.block(d, precision=sparse.diags_array(bands, offsets=[-1, 0, 1]).tocsc())
    level = g.gaussian(2, variance=2.0)
    g.add("logistic", w + level[np.arange(d) % 2], rng.signs(d))
    g.add("poisson", 0.5 * w[::2] + rng.normal(size=6), rng.poisson(1.5, 6))
    g.add("gaussian", w[3:6], rng.normal(size=3), noise=0.4)
    return g


def states(rng: Draws) -> epfast.Graph:
    """States of a level and a slope, by transitions of matrices, with counts and outliers."""
    g = epfast.Graph()
    n = 9
    x = g.block((n, 2), variance=[[4.0, 1.0]] + (n - 1) * [[np.inf, np.inf]], name="state")
    step = graph.Transition(np.diag([0.1, 0.02]), factor=[[1.0, 1.0], [0.0, 0.9]])
    g.add(step, x[:-1], x[1:])
    g.add("poisson", 0.3 * x[:, 0] + 0.1 * rng.normal(size=n), rng.poisson(2.0, n))
    g.add("gaussian", x[:, 0], rng.normal(size=n), noise=0.5)
    return g


def trend(rng: Draws) -> epfast.Graph:
    """A chain of flat states in a sparse block, whose steps have an unknown precision."""
    g = epfast.Graph()
    x = g.block((10,), variance=[4.0] + 9 * [np.inf])
    s, tau = g.scale(priors.HalfNormal(1.0)), g.gamma(shape=3.0, rate=1.0)
    y = np.sin(0.5 * np.arange(10)) + 0.3 * rng.normal(size=10)
    g.add(graph.Noise(s), x[1:] - x[:-1])
    g.add(graph.Noise(tau), y - x)
    return g


def step_of_own(x: Any, z: Any, a: Any, v: Any) -> Any:
    """A smooth step from x to z."""
    return -0.5 * (z - np.tanh(a * x)) ** 2 / v - 0.5 * np.log(2.0 * np.pi * v)


def rate_of_own(tau: Any, y: Any) -> Any:
    """A count with the rate tau."""
    return y * np.log(tau) - tau


def share_of_own(p: Any, x: Any, y: Any) -> Any:
    """A label with the probability p, or Phi of x."""
    return np.log(np.where(y > 0, 0.8 * p, 1.0 - 0.8 * p)) - 0.1 * (x - p) ** 2


def sum_of_own(x: Any, z: Any, u: Any, y: Any) -> Any:
    """A label of the sum of a few variables."""
    return -np.logaddexp(0.0, -y * (x + 0.5 * z * u))


def own(scheme: Any, rng: Draws, **more: Any) -> epfast.Graph:
    """Log densities of two Gaussian variables, by a scheme."""
    g = epfast.Graph()
    x = g.gaussian(5, mean=rng.normal(size=5), variance=1.5)
    a, v = rng.near([0.5, 1.0, 1.5, 0.7]), rng.near([0.5, 0.4, 0.6, 0.3])
    g.add(graph.Factor(step_of_own, scheme=scheme, **more), x[:-1], x[1:], a=a, v=v)
    return g


def own_families(scheme: Any, rng: Draws) -> epfast.Graph:
    """Log densities of gamma, beta and Gaussian variables, by a scheme."""
    g = epfast.Graph()
    tau = g.gamma(3, shape=2.0, rate=rng.near([1.0, 0.5, 2.0]))
    p, x = g.beta(4, alpha=2.0, beta=rng.near([1.5, 2.0, 3.0, 1.0])), g.gaussian(4)
    g.add(graph.Factor(rate_of_own, scheme=scheme), tau, y=[1.0, 4.0, 2.0])
    g.add(graph.Factor(share_of_own, scheme=scheme), p, x, y=rng.signs(4).astype(float))
    return g


def own_of_three(scheme: Any, rng: Draws) -> epfast.Graph:
    """Log densities of three Gaussian variables, by a scheme."""
    g = epfast.Graph()
    x, z = g.gaussian(4, mean=rng.normal(size=4)), g.gaussian(4, mean=1.0, variance=0.5)
    u = g.gaussian(mean=0.8, variance=0.4)
    g.add(graph.Factor(sum_of_own, scheme=scheme), x, z, u, y=rng.signs(4).astype(float))
    return g


class Averaging:
    """A Gaussian observation of each neighbour, as an object with ``project``."""

    takes_flat = True

    def __init__(self, power: bool) -> None:
        self.takes_power = power

    def project(self, messages: Any, data: Any, power: float = 1.0) -> Any:
        (eta,), y = messages, data["y"]
        target = eta + power * np.stack([np.full(len(y), 2.0), 2.0 * y], axis=1)
        return -0.5 * power * y**2, (target,)


def projected(power: bool, rng: Draws) -> epfast.Graph:
    """A factor with ``project()`` beside labels."""
    g = epfast.Graph()
    x = g.gaussian(4, variance=[1.0, 2.0, np.inf, 3.0])
    g.add(graph.Factor(scheme=Averaging(power)), x, y=rng.normal(size=4))
    g.add("logistic", x[1:] - x[:-1], rng.signs(3))
    return g


def tied(rng: Draws) -> epfast.Graph:
    """Batches whose factors are all about the same variables, for shared sites."""
    g = epfast.Graph()
    x, tau = g.gaussian(3, mean=rng.normal(size=3), variance=2.0), g.gamma(shape=3.0, rate=2.0)
    g.add("logistic", rng.normal(size=(15, 3)) @ x, rng.signs(15))
    g.add("poisson", 0.4 * rng.normal(size=(8, 3)) @ x, rng.poisson(1.0, 8))
    g.add(graph.Noise(tau), rng.normal(size=9) - (x[0] - x[2]))
    return g


def tied_table(rng: Draws) -> epfast.Graph:
    """The same tables of the same category, and a mixture of its forms."""
    g = epfast.Graph()
    h = g.categorical(probabilities=[0.3, 0.3, 0.4])
    p = g.beta(alpha=2.0, beta=3.0)
    z = g.gaussian(mean=0.5, variance=2.0)
    g.add(graph.Table(rng.near(rng.random((6, 3)) + 0.3)), h)
    g.add("probit", rng.normal(size=8) * z, rng.signs(8))
    g.add(graph.LogisticLink(), z, p)
    return g


MAKERS: dict[str, Maker] = {
    make.__name__: make
    for make in (
        *(sums, ties, steps, levels, sds, broad, matrix, odds, tables, gates),
        *(weights, alone, field, states, trend, tied, tied_table),
    )
}

#: schedules of a graph by sites of each factor
BY_FACTOR: dict[str, Any] = {
    "sequential": settled(order="sequential"),
    "damping": settled(damping=0.6),
    "parallel": settled(order="parallel", damping=0.5),
    "power": settled(power=0.7, damping=0.9),
    "two sweeps": path(sweeps=2),
    "a damped path": path(sweeps=4, damping=0.7, order="parallel"),
    "one pass": epfast.ADF(),
    "three passes": epfast.ADF(passes=3),
}
ONCE_OVER = ("one pass", "three passes")
#: schedules of batches about the same variables
SHARED: dict[str, Any] = {
    "SEP": path(epfast.SEP, sweeps=4),
    "SEP, power": path(epfast.SEP, sweeps=4, power=0.6),
    "SEP, damping": path(epfast.SEP, sweeps=4, damping=0.5),
    "SEP, settled": epfast.SEP(sweeps=3000, tol=1e-10),
    "AEP": path(epfast.AEP, sweeps=4),
    "AEP, settled": epfast.AEP(sweeps=3000, tol=1e-10),
    "AEP, power": epfast.AEP(sweeps=3000, tol=1e-10, power=0.6),
}
#: what is refused (powers of noisy bounds, one pass over sparse precisions), or does not settle
WITHOUT = {
    "ties, power",
    "weights, power",
    "odds, power",
    *(f"{name}, {how}" for name in ("field", "states", "trend") for how in ONCE_OVER),
}


def kinds(data: Data) -> Iterator[Fit]:
    """Each kind of factor by schedules."""
    for name, make in MAKERS.items():
        more = SHARED if name.startswith("tied") else {}
        for how, schedule in (BY_FACTOR | more).items():
            if f"{name}, {how}" not in WITHOUT:
                yield Fit(f"{name}, {how}", partial(of_fit, make, data, schedule))


def losses_of_graphs(data: Data) -> Iterator[Fit]:
    """Each loss on forms of scalars, of a block, and of both."""

    def make(loss: Any, response: Any, where: str, rng: Draws, **more: Any) -> epfast.Graph:
        g = epfast.Graph()
        X = rng.normal(size=(10, 3))
        h = latent(X, 4)
        y = response(h)
        if where == "scalars":
            x = g.gaussian(3, mean=0.2, variance=2.0)
            g.add(loss, X @ x, y, **more)
            return g
        w, level = g.block(3, variance=2.0), g.gaussian(2)
        form = X @ w if where == "a block" else X @ w + level[np.arange(10) % 2]
        g.add(loss, form, y, **more)
        g.add(losses.Gaussian(1.0), level, rng.normal(size=2))
        return g

    for name, (loss, response) in LOSSES.items():
        for where in ("scalars", "a block", "both"):
            schedule = settled(order="sequential", damping=0.8)
            call = partial(of_fit, partial(make, loss, response, where), data, schedule)
            yield Fit(f"{name}, {where}", call)
    for name, scheme in {
        "quadrature": schemes.Quadrature(),
        "laplace": schemes.Laplace(tol=1e-13),
        "variational": schemes.Variational(),
    }.items():
        for loss in ("logistic", "poisson"):
            chosen = partial(make, *LOSSES[loss], "scalars", scheme=scheme, noise=0.1)
            yield Fit(f"{loss} by {name}", partial(of_fit, chosen, data))


def owns(data: Data) -> Iterator[Fit]:
    """Factors of the user's own by each scheme."""
    Laplace, Sampled = graph.LaplaceMessages, graph.ImportanceMessages
    damped = settled(damping=0.7)
    for name, (make, schedule) in {
        "laplace": (partial(own, "laplace"), None),
        "laplace, parallel": (partial(own, "laplace"), settled(order="parallel", damping=0.5)),
        "laplace, diagonal": (partial(own, Laplace("diagonal")), damped),
        "laplace, joint": (partial(own, Laplace("joint")), damped),
        "laplace of three": (partial(own_of_three, "laplace"), damped),
        "laplace of three, joint": (partial(own_of_three, Laplace("joint")), damped),
        "quadrature": (partial(own, "quadrature"), None),
        "quadrature, power": (partial(own, "quadrature"), settled(power=0.6)),
        "quadrature, tolerance": (partial(own, graph.QuadratureMessages(tol=1e-11)), None),
        "quadrature, two sweeps": (partial(own, "quadrature"), path(sweeps=2)),
        "quadrature, one pass": (partial(own, "quadrature"), epfast.ADF()),
        "quadrature of families": (partial(own_families, "quadrature"), None),
        "quadrature of families, damping": (partial(own_families, "quadrature"), damped),
        "importance": (partial(own, Sampled(draws=600)), None),
        "importance of families": (partial(own_families, Sampled(draws=600, seed=3)), None),
        "importance of three": (partial(own_of_three, Sampled(draws=600, rounds=2)), damped),
        "importance of three, power": (
            partial(own_of_three, Sampled(draws=600)),
            settled(power=0.7, damping=0.7),
        ),
        "project": (partial(projected, False), None),
        "project, power": (partial(projected, True), settled(power=0.7)),
        "project, parallel": (partial(projected, True), settled(order="parallel", damping=0.5)),
    }.items():
        yield Fit(name, partial(of_fit, make, data, schedule))


# ---- what a graph may be asked ----


def continued(data: Data) -> Iterator[Fit]:
    """Fits that go on from others: more factors, fewer factors, from files."""

    def again(name: str, schedule: Any) -> Given:
        g = MAKERS[name](Draws(data, 1))
        return of_graph(g.fit(schedule, start=g.fit(path(sweeps=1))))

    def of_file(name: str) -> Given:
        post = MAKERS[name](Draws(data, 2)).fit(path(sweeps=2))
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "post.npz"
            post.save(file)
            post = epfast.load(file)
        return of_graph(epfast.Graph.of(post).fit(path(sweeps=2), start=post))

    def more(name: str, loss: Any, schedule: Any) -> Given:
        rng = Draws(data, 3)
        g = MAKERS[name](rng)
        first = g.fit(settled())
        x = next(iter(g.variables.values()))
        form = x if np.ndim(first[x].mean) < 2 else x[0]
        g.add(loss, 0.5 * form + 0.2, rng.signs(*np.shape(first[form].mean)))
        return of_graph(g.fit(schedule, start=first))

    def fewer(name: str, rows: Any, schedule: Any) -> Given:
        g = MAKERS[name](Draws(data, 4))
        first = g.fit(settled())
        g.remove(0, rows)
        return of_graph(g.fit(schedule, start=first))

    def watched() -> Given:
        rng, g = Draws(data, 5), epfast.Graph()
        s = g.gaussian(6, variance=50.0)
        a, b = np.arange(18) % 6, (np.arange(18) + 1 + np.arange(18) // 6) % 6
        g.add("probit", s[a] - s[b], rng.signs(18), noise=rng.near(2.0))
        post = g.fit(settled(sweeps=3000), watch=s[1:] - s[0])
        mean, variance = post.predict_latent(s[1:] - s[0])
        return {"mean": mean, "variance": variance, "log_evidence": post.log_evidence}

    def stopped() -> Given:
        g = sums(Draws(data, 6))
        return of_graph(g.fit(settled(tol=0.0), callback=lambda info, state: info.sweep >= 2))

    for name in MAKERS:
        yield Fit(f"{name}, from a sweep", partial(again, name, settled(damping=0.8)))
        yield Fit(f"{name}, from a file", partial(of_file, name))
    for name in ("sums", "ties", "steps", "levels", "odds", "matrix", "weights", "alone", "field"):
        for loss in ("logistic", "probit"):
            call = partial(more, name, loss, settled(damping=0.9))
            yield Fit(f"{name}, {loss} of more", call)
    for name in ("sums", "ties", "levels", "odds", "tables", "weights", "alone", "field"):
        yield Fit(f"{name}, fewer rows", partial(fewer, name, [0, 1], settled(damping=0.9)))
        yield Fit(f"{name}, without a batch", partial(fewer, name, None, settled(damping=0.9)))
    yield Fit("watched differences", watched)
    yield Fit("stopped by a callback", stopped)


def questions(data: Data) -> Iterator[Fit]:
    """Predictions, checks, draws, intervals, and log densities one step ahead."""

    def fitted(make: Maker) -> tuple[Any, Any, Draws]:
        rng = Draws(data, 7)
        g = make(rng)
        return g, g.fit(settled(damping=0.9)), rng

    def checked(make: Maker) -> Given:
        _, post, _ = fitted(make)
        found = post.check(2000, 1)
        names = ("log_evidence", "log_evidence_se", "khat", "mean", "sd", "effective_draws")
        return {name: getattr(found, name) for name in names}

    def drawn(make: Maker) -> Given:
        _, post, _ = fitted(make)
        return post.sample(20, rng=1)

    def ahead(make: Maker) -> Given:
        g, _, _ = fitted(make)
        return {f"nats {key}": value for key, value in g.one_step_ahead().items()}

    def of_forms() -> Given:
        _, post, rng = fitted(sums)
        s, edge = post.variables.values()
        form = s[0] - 0.5 * edge + rng.normal(size=4)
        found = dict(
            zip(("latent mean", "latent variance"), post.predict_latent(form), strict=True)
        )
        for name, (loss, response) in LOSSES.items():
            y = response(np.linspace(-1.0, 1.0, 4))
            for method, more in {
                "predict": (),
                "predict_variance": (),
                "predict_proba": (),
                "log_predictive": (y,),
            }.items():
                try:
                    value = getattr(post, method)(loss, form, *more)
                except (TypeError, ValueError, AttributeError, NotImplementedError):
                    continue  # not all losses have all of them
                prefix = "nats " if method == "log_predictive" else ""
                found[f"{prefix}{name} {method}"] = value
        return found

    def of_noise() -> Given:
        _, post, rng = fitted(levels)
        level, own, tau, common = post.variables.values()
        form = level + own
        y = rng.normal(size=4)
        return {
            "predict": post.predict(graph.Noise(tau), form),
            "predict variance": post.predict_variance(graph.Noise(tau), form),
            "nats": post.log_predictive(graph.Noise(tau), y - form),
            "nats of common": post.log_predictive(graph.Noise(common), y - form),
            "shape": post[tau].shape,
            "rate": post[tau].rate,
            "interval": post.credible_interval(own, 0.9),
        }

    def of_scales() -> Given:
        _, post, _ = fitted(sds)
        found = {}
        for name, s in list(post.variables.items())[1:]:
            found[f"{name} interval"] = post.credible_interval(s)
            found[f"{name} median"] = post[s].quantile(0.5)
            found[f"{name} shape"] = post[s].shape
        return found

    def of_products() -> Given:
        _, post, _ = fitted(matrix)
        u, v, _ = post.variables.values()
        return {
            "predict": post.predict(graph.Product(0.2), u[:, None], v),
            "predict variance": post.predict_variance(graph.Product(0.2), u[:, None], v),
            "link": post.predict(graph.LogisticLink(), u),
        }

    def of_tables() -> Given:
        _, post, rng = fitted(tables)
        h, k = post.variables.values()
        one, two = rng.near(rng.random((3, 2))), rng.near(rng.random((3, 2, 3)))
        return {
            "one": post.predict_proba(graph.Table(one), h, None),
            "two": post.predict_proba(graph.Table(two), h[:2], k, None),
            "label": post.predict(graph.Table(two), None, k, h[2:4]),
            "logits": post[h].logits,
        }

    def of_mixtures() -> Given:
        _, post, rng = fitted(gates)
        h, centre, slope = post.variables.values()
        pair, forms = graph.Mixture(h, (losses.Gaussian(0.5), losses.Gaussian(2.0))), list(centre)
        vector = graph.Mixture(h[0], losses.Gaussian(1.0), vectors=True)
        return {
            "predict": post.predict(pair, forms, noise=0.1),
            "predict variance": post.predict_variance(pair, forms, noise=0.1),
            "nats": post.log_predictive(pair, forms, rng.normal(size=7)),
            "labels": post.predict_proba(graph.Mixture(h, "logistic"), forms),
            "nats of vectors": post.log_predictive(vector, list(slope), rng.normal(size=3)),
        }

    def of_chains() -> Given:
        _, post, _ = fitted(steps)
        z, x = post.variables.values()
        step = graph.Transition(0.3, factor=0.8)
        return {
            "predict": post.predict(step, z[-1]),
            "predict variance": post.predict_variance(step, z[-1]),
            "between": post.predict_proba(graph.Between(-0.5, 0.5), x[1:] - x[:-1], noise=0.3),
            "nats": post.log_predictive(graph.Between(upper=1.0), x + 0.2),
        }

    def of_blocks(make: Maker) -> Given:
        _, post, rng = fitted(make)
        w = next(iter(post.variables.values()))
        form = w[0] + 0.5 * w[2] if make is states else rng.normal(size=(3, w.size)) @ w
        mean, variance = post.predict_latent(form)
        return {
            "mean": mean,
            "variance": variance,
            "covariances": post[w].covariances_of(np.array([[0, 1], [0, 2]])),
            "proba of labels": post.predict_proba("logistic", form),
            "nats": post.log_predictive("poisson", 0.1 * form, np.ones(np.shape(mean))),
        }

    for make in (sums, ties, levels, sds, broad, tables, gates, weights, alone, field, states):
        yield Fit(f"{make.__name__}, check", partial(checked, make))
        yield Fit(f"{make.__name__}, draws", partial(drawn, make))
    for make in (sums, ties, steps, levels, odds, matrix, tables, gates, weights, alone):
        yield Fit(f"{make.__name__}, one step ahead", partial(ahead, make))
    yield Fit("predictions of forms", of_forms)
    yield Fit("predictions of noise", of_noise)
    yield Fit("scales", of_scales)
    yield Fit("predictions of products", of_products)
    yield Fit("predictions of tables", of_tables)
    yield Fit("predictions of mixtures", of_mixtures)
    yield Fit("predictions of chains", of_chains)
    for make in (weights, alone, field, states):
        yield Fit(f"{make.__name__}, forms", partial(of_blocks, make))


# ---- ratings ----


def league(data: Data, seed: int, players: int = 7, games: int = 45) -> Given:
    """Games of two players through time, some of them drawn, some at home."""
    rng = Draws(data, 8, seed)
    skill = np.linspace(-1.0, 1.0, players)
    a = rng.integers(0, players, games)
    b = (a + rng.integers(1, players, games)) % players
    better = skill[a] - skill[b] + 1.4 * np.random.default_rng([seed, 2]).normal(size=games) > 0.0
    return {
        "winner": np.where(better, a, b),
        "loser": np.where(better, b, a),
        "time": rng.near(np.sort(rng.random(games)) * 20.0),
        "draw": rng.random(games) < 0.2,
        "home": rng.integers(-1, 2, games),
    }


def sides(data: Data, seed: int) -> Given:
    """Games of teams of some sizes, with ranks, ties and partial play."""
    rng = Draws(data, 9, seed)
    teams, ranks, shares = [], [], []
    for _ in range(14):
        players = rng.permutation(8)
        cuts = sorted(rng.choice(np.arange(1, 6), 1 + int(rng.integers(0, 2)), replace=False))
        game = [part.tolist() for part in np.split(players[:6], cuts)]
        teams.append(game)
        ranks.append(rng.integers(1, 4, len(game)).tolist())
        shares.append([rng.near(0.3 + 0.7 * rng.random(len(team))).tolist() for team in game])
    return {"teams": teams, "ranks": ranks, "weights": shares}


def of_ratings(result: Any, schedule: Any = None) -> Given:
    """Ratings of all players, parameters, the history of a player."""
    mean, variance = result.rating(result.players)
    history = result.history(result.players[0])
    found = {
        "converged": result.converged or (schedule is not None and not schedule.tol),
        "mean": mean,
        "variance": variance,
        "history mean": history.mean,
        "history variance": history.sd**2,
        "log_evidence": result.log_evidence,
        "parameters": [result.prior_sd, result.drift, result.margin],
        "joint": result.joint,
    }
    if result.home_advantage is not None:
        found["home"] = result.home_advantage
    return found


def first_games(games: Given, n: int | None, m: int | None = None) -> Given:
    """The games from n to m."""
    return {name: column[n:m] for name, column in games.items()}


def ratings(data: Data) -> Iterator[Fit]:
    """Ratings by the arguments of a fit, and what they may be asked."""
    from epfast import rating

    near = Draws(data, 10).near
    sd, drift, margin = (float(near(value)) for value in (1.1, 0.03, 0.4))
    fixed = having(prior_sd=sd, drift=drift, margin=margin, schedule=settled())
    columns = having(time="time", draw="draw", home="home")
    days = np.datetime64("2024-01-01") + np.arange(45).astype("timedelta64[D]")
    known = {0: (0.5, 0.3), 3: (-0.4, 0.6), "nobody": (2.0, 1.0)}

    def found(seed: int, **given: Any) -> Given:
        games = league(data, seed)
        if given.pop("dated", False):
            games["time"] = days
        given = fixed | given
        return of_ratings(rating.fit(games, **given), given["schedule"])

    table: dict[str, Given] = {
        "constant": having(drift=0.0, margin=0.0),
        "through time": having(time="time", margin=0.0),
        "draws": having(draw="draw", drift=0.0),
        "home": having(home="home", margin=0.0),
        "all columns": columns,
        "dates": columns | having(dated=True),
        "priors": columns | having(priors=known),
        "prior mean": columns | having(prior_mean=2.0),
        "wide margin": columns | having(margin=1.5),
        "fast drift": columns | having(drift=2.0),
        "narrow prior": columns | having(prior_sd=0.2),
        "one pass": having(time="time", draw="draw", schedule=epfast.ADF()),
        "three sweeps": columns | having(schedule=path()),
        "damping": columns | having(schedule=settled(damping=0.6)),
        "parallel": columns | having(schedule=settled(order="parallel", damping=0.6)),
        "power": columns | having(schedule=settled(power=0.8)),
        "default schedule": columns | having(schedule=None),
    }
    for name, given in table.items():
        for seed in (1, 2):
            yield Fit(f"{name}, league {seed}", partial(found, seed, **given))

    def of_sides(seed: int, *without: str, **given: Any) -> Given:
        games = {name: part for name, part in sides(data, seed).items() if name not in without}
        given = fixed | having(drift=0.0) | given
        return of_ratings(rating.fit(**games, **given), given["schedule"])

    for seed in (1, 2, 3):
        yield Fit(f"teams, {seed}", partial(of_sides, seed, "weights"))
        yield Fit(
            f"teams in order, {seed}", partial(of_sides, seed, "weights", "ranks", margin=0.0)
        )
        yield Fit(f"teams, partial play, {seed}", partial(of_sides, seed))
        through = having(time=near(np.arange(14.0)), drift=0.1)
        yield Fit(f"teams through time, {seed}", partial(of_sides, seed, **through))
        yield Fit(f"teams, one pass, {seed}", partial(of_sides, seed, schedule=epfast.ADF()))
        yield Fit(f"teams, prior mean, {seed}", partial(of_sides, seed, prior_mean=1.5))

    def updated(seed: int, cuts: tuple[int, ...], **given: Any) -> Given:
        games = league(data, seed)
        given = fixed | given
        result = rating.fit(first_games(games, None, cuts[0]), **given)
        for n, m in zip(cuts, (*cuts[1:], None), strict=True):
            result = result.update(first_games(games, n, m))
        return of_ratings(result, given["schedule"])

    for name, given in {
        "constant": having(drift=0.0, draw="draw"),
        "through time": having(time="time", margin=0.0),
        "all columns": columns,
        "one pass": having(time="time", draw="draw", schedule=epfast.ADF()),
    }.items():
        yield Fit(f"update, {name}", partial(updated, 3, (30,), **given))
        yield Fit(f"updates, {name}", partial(updated, 3, (30, 36, 44), **given))

    def asked(seed: int, **given: Any) -> Given:
        games = league(data, seed)
        result = rating.fit(games, **fixed | given)
        later = {"time": 25.0} if "time" in given else {}
        wins = result.predict([0, 1, 2, "new"], [3, 4, 5, 0], **later)
        at = result.rating([0, 1, 2], **later)
        return {
            "win": wins.win,
            "loss": wins.loss,
            "one": result.predict(1, 2).win,
            "at mean": at[0],
            "at variance": at[1],
            "nats ahead": result.one_step_ahead(),
        }

    def at_home(seed: int) -> Given:
        result = rating.fit(league(data, seed), **columns, **fixed)
        parts = result.predict([0, 1, 2], [3, 4, 5], home=[1, 0, -1])
        return {"win": parts.win, "loss": parts.loss, "table": table_of(result)}

    def table_of(result: Any) -> Any:
        shown = result.table(0.9)
        return [np.asarray(shown[name], np.float64) for name in ("rating", "sd", "5%", "95%")]

    def checked(seed: int) -> Given:
        check = rating.fit(league(data, seed), **columns, **fixed).check(500, 2)
        return {"log_evidence": check.log_evidence, "mean": check.mean, "sd": check.sd}

    def of_teams(seed: int) -> Given:
        result = rating.fit(**sides(data, seed), **fixed | having(drift=0.0))
        parts = result.predict([[0, 1], [2]], [[3], [4, 5]])
        return {"win": parts.win, "draw": parts.draw, "nats ahead": result.one_step_ahead()}

    for seed in (4, 5):
        yield Fit(f"asked, constant, {seed}", partial(asked, seed, drift=0.0, margin=0.0))
        yield Fit(f"asked, through time, {seed}", partial(asked, seed, time="time", margin=0.0))
        yield Fit(f"asked, draws, {seed}", partial(asked, seed, draw="draw", drift=0.0))
        yield Fit(f"asked, at home, {seed}", partial(at_home, seed))
        yield Fit(f"asked, teams, {seed}", partial(of_teams, seed))
        yield Fit(f"check, {seed}", partial(checked, seed))

    def large(**given: Any) -> Given:
        result = rating.fit(league(data, 6, 260, 900), **fixed | given)
        mean, variance = result.rating(result.players)
        wins = result.predict([0, 1, 2, 3], [10, 20, 30, 40]).win
        return {"mean": mean[::9], "variance": variance[::9], "win": wins} | {
            "log_evidence": result.log_evidence,
            "nats ahead": result.one_step_ahead()[::20],
        }

    sweeps = having(schedule=path(sweeps=12))
    yield Fit("many players, a product", partial(large, **columns, **sweeps))
    yield Fit("many players, one pass", partial(large, **columns, schedule=epfast.ADF()))


def home_in_one_pass(data: Data) -> Iterator[Fit]:
    """One pass over games at home, which loses digits."""
    from epfast import rating

    def found(seed: int, drift: float, **given: Any) -> Given:
        prior_sd, margin = Draws(data, 10).near([1.1, 0.4])
        schedule = epfast.ADF()
        given |= having(prior_sd=prior_sd, margin=margin, drift=drift, schedule=schedule)
        columns = having(draw="draw", home="home")
        return of_ratings(rating.fit(league(data, seed), **columns, **given), schedule)

    for seed in (1, 2):
        yield Fit(f"constant, league {seed}", partial(found, seed, 0.0))
        yield Fit(f"through time, league {seed}", partial(found, seed, 0.03, time="time"))


def chosen_ratings(data: Data) -> Iterator[Fit]:
    """Ratings whose parameters are chosen from the games."""
    from epfast import rating

    def found(seed: int, **given: Any) -> Given:
        known = {0: tuple(Draws(data, 17).near([0.5, 0.8]))}
        games = league(data, seed)
        return of_ratings(rating.fit(games, schedule=settled(), priors=known, **given))

    for name, given in {
        "prior_sd": having(drift=0.0, margin=0.0),
        "drift": having(time="time", prior_sd=1.0),
        "margin": having(draw="draw", prior_sd=1.0),
        "all": having(time="time", draw="draw", home="home"),
    }.items():
        for seed in (1, 2):
            yield Fit(f"{name}, league {seed}", partial(found, seed, **given))
    yield Fit(
        "teams", lambda: of_ratings(rating.fit(**sides(data, 1), drift=0.0, schedule=settled()))
    )


# ---- networks ----


def of_network(net: Any, new: Any) -> Given:
    """Weights of all layers, noise, the scale of the prior, and predictions."""
    mean, variance = net.predict(new)
    found = {
        "weights mean": np.concatenate([layer.mean.ravel() for layer in net.weights]),
        "weights variance": np.concatenate([layer.variance.ravel() for layer in net.weights]),
        "noise variance": net.noise_variance,
        "prior variance": net.prior_variance,
        "predict mean": mean,
        "predict variance": variance,
    }
    if net.history:
        found["log_evidence"] = net.history[-1].log_evidence
    return found


def networks(data: Data) -> Iterator[Fit]:
    """Networks by schedules, outputs and layers, and what may be done with one."""
    X = data.rows(40 + NEW, 4, 57)[:, :3]
    h = latent(X)
    rows, new = X[:40], X[40:]
    responses = {"gaussian": noisy(h)[:40], "probit": labels(h)[:40]}

    def found(loss: str, **given: Any) -> Given:
        given = {"hidden": (4,), "loss": loss} | given
        return of_network(epfast.fit_network(rows, responses[loss], **given), new)

    by_schedule: dict[str, Any] = {
        "ADF": epfast.ADF(passes=2, order="sequential"),
        "ADF, shuffled": epfast.ADF(passes=4, order="shuffled", seed=1),
        "SEP": path(epfast.SEP),
        "SEP, shuffled": path(epfast.SEP, order="shuffled", seed=2),
        "SEP, batches": path(epfast.SEP, batch=5),
        "SEP, damping": path(epfast.SEP, damping=0.5),
        "AEP, damping": path(epfast.AEP, damping=0.4),
        "DSEP": path(epfast.DSEP, groups=5, order="sequential"),
        "DSEP, damping": path(epfast.DSEP, groups=4, order="shuffled", damping=0.5),
        "DSEP, batches": path(epfast.DSEP, groups=4, batch=3),
        "EP": path(order="sequential"),
        "EP, shuffled": path(order="shuffled", seed=3),
        "EP, damping": path(damping=0.6),
    }
    for loss in responses:
        for name, schedule in by_schedule.items():
            yield Fit(f"{loss}, {name}", partial(found, loss, schedule=schedule))
    short = having(schedule=epfast.ADF(passes=3, order="shuffled"))
    for name, given in {
        "two layers": having(hidden=(4, 3)),
        "three layers": having(hidden=(3, 3, 2)),
        "wide": having(hidden=(20,)),
        "known prior": having(prior=0.7),
        "prior": having(prior=(4.0, 2.0)),
        "noise": having(noise=(3.0, 0.5)),
        "units of X": having(standardize=False),
        "another seed": having(rng=5),
    }.items():
        for loss in responses:
            yield Fit(f"{loss}, {name}", partial(found, loss, **short | given))

    def passes_of_own() -> Given:
        return of_network(epfast.fit_network(rows, responses["gaussian"], hidden=(3,)), new)

    def more(loss: str, schedule: Any) -> Given:
        y = responses[loss]
        net = epfast.fit_network(rows[:30], y[:30], hidden=(4,), loss=loss, schedule=schedule)
        return of_network(net.partial_fit(rows[30:], y[30:]), new)

    def again(loss: str, schedule: Any) -> Given:
        y = responses[loss]
        net = epfast.fit_network(rows, y, hidden=(4,), loss=loss, schedule=schedule)
        with tempfile.TemporaryDirectory() as folder:
            net.save(Path(folder) / "net.npz")
            net = epfast.load(Path(folder) / "net.npz")
        net = epfast.fit_network(rows, y, hidden=(4,), start=net)
        return of_network(net, new)

    def asked(loss: str) -> Given:
        net = epfast.fit_network(rows, responses[loss], hidden=(4,), loss=loss, **short)
        found = {"nats": net.log_predictive(rows[:8], responses[loss][:8])}
        found["draws"] = np.concatenate([part.ravel() for part in net.sample(2, rng=1)])
        found["responses"] = net.sample_y(new, 6, rng=2)
        if loss == "probit":
            found["proba"] = net.predict_proba(new)
        return found

    yield Fit("passes that are chosen", passes_of_own)
    for loss in responses:
        for name, schedule in {"ADF": epfast.ADF(), "SEP": path(epfast.SEP)}.items():
            yield Fit(f"{loss}, more rows, {name}", partial(more, loss, schedule))
        for name, schedule in {"SEP": path(epfast.SEP), "EP": path(sweeps=2)}.items():
            yield Fit(f"{loss}, a start from a file, {name}", partial(again, loss, schedule))
        yield Fit(f"{loss}, asked", partial(asked, loss))


def of_mixture(found: Any, new: Any) -> Given:
    """Centres, weights, noise, and shares of new rows."""
    return {
        "mean": found.mean,
        "variance": found.variance,
        "log_evidence": found.log_evidence,
        "weights": found.weights,
        "noise variance": found.noise_variance,
        "shares": found.predict_proba(new),
        "nats": found.log_predictive(new),
    }


def mixtures(data: Data) -> Iterator[Fit]:
    """Mixtures of Gaussians that are well apart, by schedules and priors."""
    rng = Draws(data, 11)
    centres = np.array([[-2.5, 0.0], [2.5, 1.0], [0.0, 3.5]])
    rows = centres[np.arange(45) % 3] + 0.7 * rng.normal(size=(45, 2))
    new = centres.mean(axis=0) + rng.normal(size=(NEW, 2))

    def found(**given: Any) -> Given:
        given = {"n_components": 3, "prior_mean": centres, "prior_variance": 4.0} | given
        return of_mixture(epfast.fit_mixture(rows, **given), new)

    def again(**given: Any) -> Given:
        mix = epfast.fit_mixture(rows, 3, prior_mean=centres, prior_variance=4.0, **given)
        with tempfile.TemporaryDirectory() as folder:
            mix.save(Path(folder) / "mixture.npz")
            mix = epfast.load(Path(folder) / "mixture.npz")
        return of_mixture(epfast.fit_mixture(rows, 3, start=mix), new)

    for name, given in {
        "EP": having(schedule=settled()),
        "EP, damping": having(schedule=settled(damping=0.6)),
        "EP, path": having(schedule=path(sweeps=4)),
        "known noise": having(noise_variance=0.5, schedule=settled()),
        "known weights": having(weights=[0.3, 0.3, 0.4], schedule=settled()),
        "concentration": having(concentration=[2.0, 1.0, 3.0], schedule=settled()),
        "noise prior": having(noise_prior=(3.0, 1.0), schedule=settled()),
        "ADF": having(schedule=epfast.ADF(passes=2)),
        "SEP": having(schedule=path(epfast.SEP, sweeps=6)),
        "SEP, batches": having(schedule=path(epfast.SEP, sweeps=6, batch=5)),
        "AEP": having(schedule=path(epfast.AEP, sweeps=6)),
        "DSEP": having(schedule=path(epfast.DSEP, sweeps=6, groups=5)),
        "DSEP, shuffled": having(schedule=path(epfast.DSEP, groups=5, order="shuffled")),
    }.items():
        yield Fit(name, partial(found, **given))
    yield Fit("a start from a file, EP", partial(again, schedule=path(sweeps=2)))
    yield Fit("a start from a file, SEP", partial(again, schedule=path(epfast.SEP)))


# ---- operators ----


def margin_of_own(m: Any) -> Any:
    """A loss of the margin, in Python."""
    return np.logaddexp(0.0, -m)


def label_of_own(x: Any, data: Any) -> Any:
    """A log density of a label and a scale."""
    return -np.logaddexp(0.0, -data[:, 0] * data[:, 1] * x)


def link_of_own(x: Any, p: Any) -> Any:
    """A log density of log odds and a probability."""
    return -((x - np.log(p) + np.log1p(-p)) ** 2)


def compound_of_own(tau: Any) -> Any:
    """A broad prior of a precision."""
    return 0.5 * np.log(tau) - 3.5 * np.log1p(tau)


def of_operator(operator: Any) -> Given:
    """How often an operator was asked and asked."""
    return {"calls": operator.calls, "visits": operator.visits, "audits": operator.audits}


def operators(data: Data) -> Iterator[Fit]:
    """Learned messages of rows, processes and factors by settings, for some sweeps."""
    X = data.rows(50 + NEW, 4, 58)[:, :3]
    h = latent(X)
    rows, new, y = X[:50], X[50:], labels(h)[:50]
    few = path(sweeps=4, order="sequential")

    def of_rows(scheme: Any, loss: Any = None, schedule: Any = few) -> Given:
        loss = epfast.CustomLoss(margin_of_own) if loss is None else loss
        post = epfast.fit_linear(rows, y, loss=loss, scheme=scheme(), schedule=schedule)
        mean, variance = post.predict_latent(new)
        found = {"mean": post.mean, "variance": post.variance, "log_evidence": post.log_evidence}
        found |= {"latent mean": mean, "latent variance": variance}
        return found | of_operator(post.operator)

    def learned(**given: Any) -> Any:
        return partial(epfast.Learned, **{"oracle": "exact", "tolerance": 0.01} | given)

    for name, given in {
        "tolerance": having(tolerance=0.003),
        "loose": having(tolerance=0.1),
        "beliefs": having(targets="belief"),
        "moments": having(targets="moments"),
        "audits": having(audit=0.2, seed=3),
        "no audits": having(audit=0.0),
        "small batch": having(batch=8),
        "cap": having(batch=16, cap=20),
        "data": having(data_width=1),
        "fourier": having(features=("fourier", 40, 30), batch=30),
        "threshold": having(threshold=-6.0),
        "polish": having(polish=2),
        "by quadrature": having(oracle=schemes.Quadrature()),
    }.items():
        yield Fit(f"rows, {name}", partial(of_rows, learned(**given)))
    yield Fit(
        "rows, shuffled", partial(of_rows, learned(), schedule=path(order="shuffled", seed=1))
    )
    yield Fit("rows, ADF", partial(of_rows, learned(), schedule=epfast.ADF(order="sequential")))
    yield Fit("rows, SEP", partial(of_rows, learned(), schedule=path(epfast.SEP)))
    yield Fit("rows, probit", partial(of_rows, learned(), loss="probit"))

    def of_process(scheme: Any) -> Given:
        K, K_new, (_, f) = data.kernel(30, 59)
        loss = epfast.CustomLoss(margin_of_own)
        post = epfast.fit_gp(K, labels(f), loss=loss, scheme=scheme(), schedule=few)
        mean, variance = post.predict_latent(K_new, np.full(NEW, 2.0))
        found = {"mean": post.mean, "latent mean": mean, "latent variance": variance}
        return found | of_operator(post.operator)

    yield Fit("process", partial(of_process, learned()))
    yield Fit("process, beliefs", partial(of_process, learned(targets="belief")))

    def again() -> Given:
        loss = epfast.CustomLoss(margin_of_own)
        given = having(loss=loss, schedule=few)
        first = epfast.fit_linear(rows[:25], y[:25], scheme=learned()(), **given)
        post = epfast.fit_linear(rows, y, scheme=epfast.Learned(first.operator), **given)
        found = {"mean": post.mean, "variance": post.variance, "log_evidence": post.log_evidence}
        return found | of_operator(post.operator)

    yield Fit("rows, an operator of other rows", again)

    def of_factors(operator: Any, schedule: Any = None, power: float = 1.0) -> Given:
        rng, g = Draws(data, 12), epfast.Graph()
        x = g.gaussian(6, mean=rng.normal(size=6), variance=3.0)
        signs, scale = rng.signs(24).astype(float), rng.near(np.linspace(0.5, 1.5, 24))
        batch = g.add(graph.Factor(scheme=operator()), x[np.arange(24) % 6], y=signs, s=scale)
        post = g.fit(schedule or path(sweeps=4, power=power))
        return of_graph(post) | of_operator(post.operator(batch))

    def labelled(**given: Any) -> Any:
        given = {"data_width": 2, "tolerance": 0.005} | given
        oracle = given.pop("oracle", DensityOracle(label_of_own))
        return partial(epfast.Operator, oracle, **given)

    for name, given in {
        "default": {},
        "beliefs": having(targets="belief", batch=12),
        "function": having(oracle=function_of_own(exact=True)),
        "fourier": having(features=("fourier", 40, 30)),
    }.items():
        yield Fit(f"factors, {name}", partial(of_factors, labelled(**given)))
    yield Fit("factors, power", partial(of_factors, labelled(power=0.5), power=0.5))
    parallel = path(sweeps=4, order="parallel", damping=0.5)
    yield Fit("factors, parallel", partial(of_factors, labelled(), parallel))

    def linked(*operators: Any) -> Given:
        rng, g = Draws(data, 13), epfast.Graph()
        x = g.gaussian(4, mean=rng.normal(size=4), variance=2.0)
        p = g.beta(8, alpha=rng.near(np.linspace(2.0, 6.0, 8)), beta=3.0)
        chosen = tuple(make() for make in operators)
        g.add(graph.Factor(scheme=chosen if len(chosen) > 1 else chosen[0]), x[np.arange(8) % 4], p)
        return of_graph(g.fit(path(sweeps=3)))

    def both(*outputs: int, **given: Any) -> Any:
        families = ("gaussian", "beta")
        oracle = DensityOracle(link_of_own, families, outputs=outputs)
        output = outputs if len(outputs) > 1 else outputs[0]
        return partial(epfast.Operator, oracle, families, output, 0.02, **given)

    yield Fit("a link, one operator", partial(linked, both(0, 1)))
    yield Fit("a link, one of each", partial(linked, both(0), both(1)))

    def compound() -> Given:
        rng, g = Draws(data, 14), epfast.Graph()
        tau = g.gamma(40, shape=rng.near(np.linspace(1.0, 9.0, 40)), rate=2.0)
        oracle = DensityOracle(compound_of_own, ("gamma",))
        operator = epfast.Operator(oracle, ("gamma",), tolerance=0.02)
        batch = g.add(graph.Factor(scheme=operator), tau)
        post = g.fit(path(sweeps=2))
        return of_graph(post) | of_operator(post.operator(batch))

    yield Fit("precisions", compound)

    def projections(**given: Any) -> Given:
        rng, oracle = Draws(data, 15), SiteOracle("logistic")
        operator = epfast.Operator(oracle, **{"tolerance": 0.01} | given)
        messages = np.stack([rng.normal(size=80), 0.2 + rng.normal(size=80) ** 2], axis=1)
        beliefs = operator.project(messages)
        found = {"mean": beliefs[:, 0], "variance": beliefs[:, 1]} | of_operator(operator)
        found["targets"], _ = operator.predict(messages[:9] * 0.9)
        with tempfile.TemporaryDirectory() as folder:
            operator.save(Path(folder) / "operator.npz")
            loaded = epfast.load(Path(folder) / "operator.npz", oracle=oracle)
        return found | {"loaded": loaded.predict(messages[:5])[0]}

    for name, given in {
        "default": {},
        "beliefs": having(targets="belief"),
        "small cap": having(batch=8, cap=10),
        "fourier": having(features=("fourier", 30, 20)),
    }.items():
        yield Fit(f"projections, {name}", partial(projections, **given))


def answers_of_own(messages: Any, data: Any) -> Any:
    """Beliefs about the forms of labels with a scale, by quadrature."""
    answer = DensityOracle(label_of_own).answer(messages, data)
    return answer.belief, None, answer.log_z


function_of_own = partial(CallableOracle, answers_of_own, gives="beliefs", has_log_z=True)


def oracles(data: Data) -> Iterator[Fit]:
    """True messages by each oracle, and by their powers."""
    rng = Draws(data, 16)
    n = 8
    normal = np.stack([rng.normal(size=n), 0.1 + rng.normal(size=n) ** 2], axis=1)
    positive = rng.near(1.5 + 3.0 * rng.random((n, 2)))
    signs = np.stack([rng.signs(n), 0.5 + rng.random(n)], axis=1)

    def asked(oracle: Any, messages: Any, given: Any = None, power: float = 1.0) -> Given:
        answer = oracle.answer(messages, given, power)
        return {"belief": answer.belief, "errors": answer.sd, "nats": answer.log_z}

    families = ("gaussian", "beta")
    pairs = np.hstack([normal, positive])
    table: dict[str, tuple[Any, ...]] = {
        "density": (DensityOracle(label_of_own), normal, signs),
        "density, power": (DensityOracle(label_of_own), normal, signs, 0.6),
        "density of a gamma": (DensityOracle(compound_of_own, ("gamma",)), positive),
        "density of two": (DensityOracle(link_of_own, families, outputs=(0, 1)), pairs),
        "a function": (function_of_own(), normal, signs),
    }
    for name, arguments in table.items():
        yield Fit(name, partial(asked, *arguments))
    for loss, (given, response) in LOSSES.items():
        if loss != "binomial":  # its data are not its responses
            y = np.asarray(response(normal[:, 0]), np.float64)
            yield Fit(f"sites, {loss}", partial(asked, SiteOracle(given), normal, y))


def sampled(data: Data) -> Iterator[Fit]:
    """True messages by draws, which depend on the bits of messages and data: these are the same."""
    rng = np.random.default_rng([57, 18])
    n, scale = 8, Draws(data, 19).near(1.1)
    normal = np.stack([rng.normal(size=n), 0.1 + rng.normal(size=n) ** 2], axis=1)
    positive = 1.5 + 3.0 * rng.random((n, 2))
    signs = np.stack([rng.choice([-1.0, 1.0], n), 0.5 + rng.random(n)], axis=1)

    def moved_by(log_density: Any) -> Any:
        return lambda *x: scale * log_density(*x)

    label, compound, link = map(moved_by, (label_of_own, compound_of_own, link_of_own))

    def density(x: Any, data: Any) -> Any:
        return np.exp(label(x, data))

    def simulate(x: Any, rng: np.random.Generator) -> Any:
        return scale * x + rng.normal(size=x.shape)

    def asked(messages: Any, observed: Any = None, power: float = 1.0, **given: Any) -> Given:
        answer = SampledFactor(**{"draws": 2000} | given).answer(messages, observed, power)
        return {"belief": answer.belief, "errors": answer.sd, "nats": answer.log_z}

    pairs = np.hstack([normal, positive])
    both = np.hstack([normal, normal[::-1]])
    families, two = ("gaussian", "beta"), ("gaussian", "gaussian")
    fixed = having(proposal=("gaussian", 0.0, 20.0), min_ess=20.0)
    for name, call in {
        "a log density": partial(asked, normal, signs, log_density=label),
        "a density": partial(asked, normal, signs, density=density),
        "power": partial(asked, normal, signs, 0.6, log_density=label),
        "cavity": partial(asked, normal, signs, log_density=label, proposal="cavity", seed=4),
        "fixed proposal": partial(asked, normal, signs, log_density=label, **fixed),
        "a gamma": partial(asked, positive, log_density=compound, inputs=("gamma",)),
        "a beta": partial(asked, pairs, log_density=link, inputs=families, output=1),
        "log odds": partial(asked, pairs, log_density=link, inputs=families),
        "forwards": partial(asked, both, sample=simulate, inputs=two, output=1),
        "backwards": partial(asked, both, sample=simulate, inputs=two),
        "an observation": partial(asked, normal, signs[:, :1], sample=simulate, observe=0.5),
    }.items():
        yield Fit(name, call)


GROUPS: dict[str, tuple[Callable[[Data], Iterator[Fit]], Bounds]] = {
    "kinds": (kinds, SETTLED),
    "losses": (losses_of_graphs, SETTLED),
    "own factors": (owns, SETTLED),
    "continued": (continued, SETTLED),
    "questions": (questions, SETTLED),
    "ratings": (ratings, SETTLED),
    # rounding moves the evidence by 2e-5 nats
    "home in one pass": (home_in_one_pass, Bounds(1e-4, 1e-3)),
    "chosen ratings": (chosen_ratings, SEARCHED),
    "networks": (networks, SETTLED),
    "mixtures": (mixtures, SETTLED),
    "operators": (operators, SETTLED),
    "oracles": (oracles, ONCE),
    "sampled": (sampled, SETTLED),
}

RECORD = Record(Path(__file__).with_name("beliefs.npz"), GROUPS)

if __name__ == "__main__":
    sys.exit(RECORD.main(__doc__))

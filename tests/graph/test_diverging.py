"""Loops in which messages diverge: levels with slopes, velocities, seasons."""

import warnings

import numpy as np
import pytest

import epfast
from epfast import EP


class Model:
    """Factors N(form; target, variance) of scalars, and the same as linear algebra."""

    def __init__(self, prior):
        self.prior, self.parts, self.seen = np.asarray(prior, dtype=float), [], []

    def add(self, places, weights, target, variance):
        """One factor for each row of places, (n, k)."""
        self.parts.append((np.asarray(places), weights, target, variance))

    def graph(self):
        g = epfast.Graph()
        x = g.gaussian(variance=self.prior)
        for places, weights, target, variance in self.parts:
            form = sum(w * x[at] for w, at in zip(weights, places.T, strict=True))
            g.add("gaussian", form, np.broadcast_to(target, len(places)), noise=variance)
        return g, x

    def exact(self):
        """Mean and sd of each variable."""
        precision, shift = np.diag(1.0 / self.prior), np.zeros(len(self.prior))
        for places, weights, target, variance in self.parts:
            rows = np.zeros((len(places), len(shift)))
            np.put_along_axis(rows, places, np.tile(weights, (len(places), 1)), axis=1)
            precision += rows.T @ rows / variance
            shift += rows.T @ np.broadcast_to(target, len(places)) / variance
        covariance = np.linalg.inv(precision)
        return covariance @ shift, np.sqrt(np.diag(covariance))


def trend(steps, level, slope, noise=1.0, kept=1.0, dimensions=1, seed=0):
    """A level and its slope, the share of which that is kept in a step may be below 1."""
    rng = np.random.default_rng(seed)
    n, t = dimensions * steps, np.arange(1, steps)
    prior = np.tile(np.r_[100.0, np.full(steps - 1, 1e6)], 2 * dimensions)
    model = Model(prior)
    for first in range(0, n, steps):
        a, b = first, n + first
        speed = np.cumsum(rng.normal(0.0, slope**0.5, steps))
        y = np.cumsum(speed) + rng.normal(0.0, noise**0.5, steps)
        model.add(np.stack([a + t, a + t - 1, b + t - 1], axis=1), [1.0, -1.0, -1.0], 0.0, level)
        model.add(np.stack([b + t, b + t - 1], axis=1), [1.0, -kept], 0.0, slope)
        model.add(a + np.arange(steps)[:, None], [1.0], y, noise)
    return model


def season(steps, length=12, seed=0):
    """A level, and effects of seasons of which each ``length`` sum to about 0."""
    rng = np.random.default_rng(seed)
    model = Model(np.r_[100.0, np.full(steps - 1, 1e4), np.ones(length), np.full(steps - 12, 1e4)])
    t = np.arange(steps)
    y = np.resize(rng.normal(size=length), steps) + rng.normal(0.0, 0.5, steps)
    model.add(np.stack([t[1:], t[:-1]], axis=1), [1.0, -1.0], 0.0, 0.01)
    sums = steps + np.arange(length - 1, steps)[:, None] - np.arange(length)
    model.add(sums, [1.0] * length, 0.0, 0.01)
    model.add(np.stack([t, steps + t], axis=1), [1.0, 1.0], y, 0.3)
    return model


MODELS = {
    "ten steps": lambda: trend(10, 0.09, 0.0025),
    "smooth": lambda: trend(50, 0.01, 0.0001),
    "many steps": lambda: trend(300, 0.09, 0.0025),
    "sharp": lambda: trend(20, 0.0001, 0.1),
    "velocities": lambda: trend(50, 0.001 / 3.0, 0.001, noise=0.5, dimensions=2),
    "damped slope": lambda: trend(50, 0.09, 0.0025, kept=0.8),
    "one year": lambda: season(12),
    "ten years": lambda: season(120),
}


def distance(post, x, exact):
    mean, sd = exact
    return float(np.max(np.abs(post[x].mean - mean) / sd))


@pytest.mark.parametrize("name", MODELS)
def test_means_are_those_of_linear_algebra(name):
    """Belief propagation on Gaussian graphs has the exact means where it converges (Weiss and
    Freeman 2001). Undamped sweeps go to 1e20 standard deviations and more."""
    model = MODELS[name]()
    g, x = model.graph()
    post = g.fit()
    assert post.converged
    assert post.state.damping < 1.0
    assert distance(post, x, model.exact()) < 1e-3


@pytest.mark.parametrize(
    "schedule",
    [
        EP(sweeps=500, tol=1e-6, order="sequential"),
        EP(sweeps=500, tol=1e-6, order="parallel", damping=1.0),
        EP(sweeps=500, tol=0.0),
    ],
)
def test_in_all_orders(schedule):
    model = MODELS["ten steps"]()
    g, x = model.graph()
    post = g.fit(schedule)
    assert post.converged == (schedule.tol > 0.0)
    assert distance(post, x, model.exact()) < 1e-3


@pytest.mark.parametrize("damping", [1.0, 0.97])
def test_damping_is_where_sweeps_begin(damping):
    """The sweeps after the first attempt are those of a schedule with that damping."""
    g, x = MODELS["ten steps"]().graph()
    post = g.fit(EP(sweeps=200, tol=1e-6, damping=damping))
    other = g.fit(EP(sweeps=200, tol=1e-6, damping=0.7 * damping))
    assert post.converged
    assert post.state.damping == 0.7
    assert other.state.damping == 1.0
    assert np.max(np.abs(post[x].mean - other[x].mean) / post[x].sd) < 1e-4
    assert np.max(np.abs(post[x].sd / other[x].sd - 1.0)) < 1e-5
    assert abs(post.log_evidence - other.log_evidence) < 1e-5


@pytest.mark.parametrize("loss", ["probit", "poisson"])
def test_other_observations(loss):
    """The fixed point is that of sweeps which are damped from the first one on."""
    rng, steps, t = np.random.default_rng(0), 30, np.arange(1, 30)
    g = epfast.Graph()
    x = g.gaussian((2, steps), variance=np.r_[10.0, np.full(steps - 1, 1e6)])
    g.add("gaussian", x[0, t] - x[0, t - 1] - x[1, t - 1], np.zeros(steps - 1), noise=0.01)
    g.add("gaussian", x[1, t] - x[1, t - 1], np.zeros(steps - 1), noise=0.0001)
    seen = rng.choice([-1, 1], steps) if loss == "probit" else rng.poisson(2.0, steps)
    g.add(loss, x[0], seen)
    post, other = g.fit(), g.fit(EP(sweeps=2000, tol=1e-9, damping=0.4))
    assert post.converged
    assert other.converged
    assert post.state.damping < other.state.damping == 1.0
    assert np.max(np.abs(post[x].mean - other[x].mean) / other[x].sd) < 1e-3
    assert abs(post.log_evidence - other.log_evidence) < 1e-6


def test_what_does_not_converge_is_said():
    """A walk of second differences that is much smoother than what is seen: no damping that was
    tried converges. Numbers stay finite, and the advice is about what was tried."""
    t = np.arange(2, 50)
    model = Model(np.full(50, 1e4))
    model.add(np.stack([t, t - 1, t - 2], axis=1), [1.0, -2.0, 1.0], 0.0, 1e-4)
    model.add(np.arange(50)[:, None], [1.0], np.random.default_rng(0).normal(size=50), 1.0)
    g, x = model.graph()
    with pytest.warns(epfast.ConvergenceWarning, match=r"diverged and are damped by 0\..*block"):
        post = g.fit()
    assert not post.converged
    assert np.max(np.abs(post[x].mean)) < 100.0
    assert np.isfinite(post.log_evidence)


def test_resumed_sweeps_are_the_same():
    """To the last bit, where nothing is extrapolated, whenever they were interrupted."""
    g = MODELS["ten steps"]().graph()[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        whole = g.fit(EP(sweeps=60, tol=0.0))
        for first in (5, 40):
            part = g.fit(EP(sweeps=first, tol=0.0))
            post = g.fit(EP(sweeps=60 - first, tol=0.0), start=part)
            np.testing.assert_array_equal(post.state.sites, whole.state.sites)

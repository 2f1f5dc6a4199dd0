"""Figures of the design: the Nile with unknown precisions, and Minka's clutter."""

import numpy as np
import pytest
from scipy.special import logsumexp

import epfast
from epfast import losses
from epfast.graph import Graph, Mixture, Noise
from tests.oracles.tilted_factors import log_normal


def nile(folder):
    y = np.loadtxt(folder / "nile.csv", delimiter=",", skiprows=1)[:, 1]
    return (y - y.mean()) / y.std()


@pytest.mark.full
def test_the_nile_with_both_precisions_unknown(data_folder):
    """A level that walks, x_1 ~ N(0, 100), precisions Ga(1, .1); flat states otherwise."""
    y = nile(data_folder)
    g = Graph()
    x = g.gaussian(variance=np.append(100.0, np.full(99, np.inf)))
    observation, state = g.gamma(shape=1.0, rate=0.1), g.gamma(shape=1.0, rate=0.1)
    g.add(Noise(observation), y - x)
    g.add(Noise(state), x[1:] - x[:-1])
    post = g.fit(epfast.EP(sweeps=157, damping=0.5, tol=1e-6))
    assert post.converged
    assert post.history[-1].n_refused == 0
    assert abs(post[observation].mean - 2.052) < 6e-4
    assert abs(post[observation].sd - 0.359) < 6e-4
    assert abs(post[state].mean - 15.67) < 6e-3
    assert abs(post[state].sd - 7.20) < 6e-3
    # by a grid over both precisions, with a Kalman filter for each: what factorised beliefs miss
    mean, variance, precisions = exact_nile(y)
    for found, (m, s) in zip((post[observation], post[state]), precisions, strict=True):
        assert abs(found.mean - m) < 0.2 * s
        assert 0.75 < found.sd / s < 0.95
    sd = np.sqrt(variance)
    assert np.max(np.abs(post[x].mean - mean) / sd) < 0.1
    ratio = post[x].sd / sd
    assert ratio.min() > 0.84
    assert ratio.max() < 1.07


def exact_nile(y, nodes=60):
    """Means and variances of the states, and (mean, sd) of both precisions."""
    o, s = (
        np.exp(np.linspace(np.log(0.8), np.log(5.0), nodes)),
        np.exp(np.linspace(0.3, 5.0, nodes)),
    )
    o, s = (v.ravel() for v in np.meshgrid(o, s))
    n = len(y)
    log_w = np.log(o) - 0.1 * o + np.log(s) - 0.1 * s
    m, v = np.zeros(len(o)), np.full(len(o), 100.0)
    filtered = []
    for k in range(n):
        if k:
            v = v + 1.0 / s
        log_w += log_normal(y[k], m, v + 1.0 / o)
        gain = v / (v + 1.0 / o)
        m, v = m + gain * (y[k] - m), v * (1.0 - gain)
        filtered.append((m, v))
    w = np.exp(log_w - logsumexp(log_w))
    means, variances = np.empty(n), np.empty(n)
    for k in range(n - 1, -1, -1):
        m0, v0 = filtered[k]
        if k < n - 1:
            back = v0 / (v0 + 1.0 / s)
            m, v = m0 + back * (m - m0), v0 + back**2 * (v - v0 - 1.0 / s)
        means[k] = w @ m
        variances[k] = w @ v + w @ (m - means[k]) ** 2
    precisions = [(w @ t, np.sqrt(w @ t**2 - (w @ t) ** 2)) for t in (o, s)]
    return means, variances, precisions


def clutter(seed, n):
    """Half the points are N(2, 1), half N(0, 10)."""
    rng = np.random.default_rng(seed)
    return np.where(rng.random(n) < 0.5, rng.normal(2.0, 1.0, n), rng.normal(0.0, np.sqrt(10), n))


def exact_clutter(y):
    t = np.linspace(-6.0, 10.0, 16001)
    f = log_normal(t, 0.0, 100.0)
    for value in y:
        f = f + np.log(0.5) + np.logaddexp(log_normal(value, t, 1.0), log_normal(value, 0.0, 10.0))
    log_z = logsumexp(f) + np.log(t[1] - t[0])
    w = np.exp(f - logsumexp(f))
    return w @ t, w @ (t - w @ t) ** 2, log_z


@pytest.mark.parametrize("gate", [False, True])
def test_clutter(gate):
    """Minka (2001), n = 200: some 80 negative sites, and EP all but exact."""
    negative = []
    for seed in range(12):
        y = clutter(seed, 200)
        g = Graph()
        x = g.gaussian(variance=100.0)
        if gate:
            h = g.categorical(200, probabilities=[0.5, 0.5])
            key = g.add(Mixture(h, [losses.Gaussian(1.0), losses.Gaussian(10.0)]), [x, 0.0], y)
        else:
            loss = losses.Contaminated(
                losses.Gaussian(1.0), 0.5, log_density=lambda y: log_normal(y, 0.0, 10.0)
            )
            key = g.add(loss, x + np.zeros(200), y)
        post = g.fit(epfast.EP(sweeps=8, tol=1e-4))
        mean, variance, log_z = exact_clutter(y)
        assert post.converged
        assert abs(post[x].mean - mean) < 1e-3 * np.sqrt(variance)
        assert abs(post[x].variance / variance - 1.0) < 1e-3
        assert abs(post.log_evidence - log_z) < 1e-4
        _, starts, sites, _ = post.by_batch[key]
        negative.append((sites[starts[:-1]] < 0.0).sum())
    assert 60 < np.mean(negative) < 100

"""Sweeps that are slow: levels that many variables share."""

import numpy as np
import pytest

import epfast
from epfast import EP, losses
from epfast.graph import Noise


def tastings(seed, wines=50):
    """Scores of wines by 4 tasters: a level, wines, tasters, all additive."""
    rng = np.random.default_rng(seed)
    wine, taster = np.divmod(np.arange(4 * wines), 4)
    y = 6.0 + rng.normal(size=wines)[wine] + 0.7 * rng.normal(size=4)[taster]
    return wine, taster, y + 0.4 * rng.normal(size=4 * wines)


@pytest.mark.parametrize("damping", [1.0, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_a_shared_level_settles(damping, seed):
    """The level moves in all of them at once: by itself that takes a thousand sweeps."""
    wine, taster, y = tastings(seed)
    g = epfast.Graph()
    x = g.gaussian(55, mean=np.append(np.zeros(54), 5.0), variance=np.append(np.ones(54), 10.0))
    g.add(losses.Gaussian(0.16), x[54] + x[wine] + x[50 + taster], y)
    post = g.fit(EP(sweeps=200, tol=1e-6, damping=damping))
    assert post.converged
    assert post.n_sweeps < 150
    X = np.zeros((200, 55))
    X[np.arange(200), wine] = X[np.arange(200), 50 + taster] = X[:, 54] = 1.0
    precision = X.T @ X / 0.16 + np.diag(np.append(np.ones(54), 0.1))
    exact = np.linalg.solve(precision, X.T @ y / 0.16 + np.append(np.zeros(54), 0.5))
    assert np.max(np.abs(post[x].mean - exact) / post[x].sd) < 1e-3


def test_beside_gamma_variables():
    wine, taster, y = tastings(0, 8)
    g = epfast.Graph()
    quality, mood = g.gaussian(8), g.gaussian(4)
    level, tau = g.gaussian(mean=5.0, variance=10.0), g.gamma(shape=1.0, rate=0.1)
    g.add(Noise(tau), y - level - quality[wine] - mood[taster])
    post = g.fit()
    assert post.converged
    long = g.fit(EP(sweeps=5000, tol=0.0))
    for part in (quality, mood, level, tau):
        assert np.max(np.abs(post[part].mean - long[part].mean) / long[part].sd) < 1e-3
        assert np.max(np.abs(post[part].sd / long[part].sd - 1.0)) < 1e-6
    assert abs(post.log_evidence - long.log_evidence) < 1e-6


def test_warnings_point_to_the_call():
    g = epfast.Graph()
    x = g.gaussian()
    g.add("logistic", x + np.zeros(5), 1)
    with pytest.warns(epfast.ConvergenceWarning) as caught:
        g.fit(EP(sweeps=2, tol=1e-12))
    assert caught[0].filename == __file__

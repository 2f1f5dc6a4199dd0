"""Variables in many factors: all factors at once diverge there, which is seen."""

import numpy as np
import pytest

import epfast


def item_response(persons, seed=0):
    rng = np.random.default_rng(seed)
    ability, difficulty = 0.8 * rng.normal(size=persons), np.array([-2.5, -1.0, 0.0, 1.0, -2.0])
    p = 1.0 / (1.0 + np.exp(-(ability[:, None] - difficulty)))
    g = epfast.Graph()
    alpha, theta = g.gaussian(5, variance=100.0), g.gaussian(persons, variance=0.64)
    g.add("logistic", theta[:, None] - alpha, np.where(rng.random(p.shape) < p, 1, -1))
    return g, alpha


@pytest.mark.parametrize(("damping", "seed"), [(0.2, 1), (0.5, 2), (0.7, 0), (1.0, 0)])
def test_factors_at_once_fall_back(damping, seed):
    """The changes may go up and down in turn, in a cycle: growths need not follow each other."""
    g, alpha = item_response(1000, seed)
    right = g.fit(epfast.EP(sweeps=200, tol=1e-8))
    post = g.fit(epfast.EP(sweeps=200, tol=1e-8, order="parallel", damping=damping))
    assert right.converged
    assert post.converged
    assert np.max(np.abs(post[alpha].mean - right[alpha].mean) / right[alpha].sd) < 1e-6
    assert abs(post.log_evidence - right.log_evidence) < 1e-9 * abs(right.log_evidence)


def test_small_damping_is_left_alone():
    """All at once with damping that suffices: as many sweeps as it takes, and no fall back."""
    g, alpha = item_response(100)
    post = g.fit(epfast.EP(sweeps=2000, tol=1e-8, order="parallel", damping=0.1))
    assert post.converged
    assert post.state.together
    assert np.max(np.abs(post[alpha].mean - g.fit()[alpha].mean) / post[alpha].sd) < 1e-5

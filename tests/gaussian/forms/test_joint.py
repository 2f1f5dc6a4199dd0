"""Joint steps of a process: the fixed point of the sweeps, and soon."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

import epfast
from epfast import EP, fit_gp
from epfast.gaussian import accelerate
from epfast.gaussian.forms import kernel

N = 160


def process(variance: float = 4.0, n: int = N):
    rng = np.random.default_rng(3)
    X = rng.normal(size=(n, 2))
    latent = np.sin(2.0 * X[:, 0]) + X[:, 1]
    K = variance * np.exp(-0.5 * ((X[:, None] - X[None]) ** 2).sum(axis=2))
    return K, latent + 0.3 * rng.normal(size=n)


def labels(values):
    return np.where(values > 0.0, 1.0, -1.0)


@pytest.mark.parametrize("variance", [0.1, 4.0, 1e3])
@pytest.mark.parametrize("loss", ["probit", "logistic"])
def test_the_fixed_point_is_that_of_the_sweeps_in_fewer_factorisations(loss, variance):
    K, values = process(variance)
    y = labels(values)
    slow = fit_gp(K, y, loss=loss, schedule=EP(1000, 1e-10, order="sequential"))
    fast = fit_gp(K, y, loss=loss, schedule=EP(1000, 1e-10))
    assert fast.converged
    assert fast.history[-1].change <= 1e-10
    assert fast.residual < 1e-8
    sd = np.sqrt(slow.variance)
    assert np.abs((fast.mean - slow.mean) / sd).max() < 1e-7
    np.testing.assert_allclose(fast.variance, slow.variance, rtol=1e-7)
    assert fast.log_evidence == pytest.approx(slow.log_evidence, abs=1e-8)
    np.testing.assert_allclose(fast.sites.log_scale, slow.sites.log_scale, atol=1e-6)
    np.testing.assert_allclose(
        fast.marginal_precision, slow.marginal_precision, atol=1e-7 * np.abs(slow.factor).max()
    )
    assert len(fast.history) <= 0.6 * len(slow.history)


def test_steps_converge_quadratically():
    K, values = process()
    changes = [info.change for info in fit_gp(K, labels(values), schedule=EP(50, 1e-12)).history]
    # a sweep, then steps: each is off by about the square of the one before
    assert len(changes) <= 5
    for before, after in pairwise(changes[1:]):
        assert after <= max(before**2, 1e-12)


def test_steps_that_rounding_keeps_from_the_fixed_point_are_followed_by_sweeps():
    K, values = process(1e4)
    assert fit_gp(K, labels(values), schedule=EP(50, 1e-11)).converged


@pytest.mark.parametrize("loss", ["noisy_step", "hinge", "quasi01", "poisson"])
def test_where_sites_are_not_log_concave_or_smooth(loss):
    K, values = process()
    y = np.round(np.exp(0.5 * values)) if loss == "poisson" else labels(values)
    slow = fit_gp(K, y, loss=loss, schedule=EP(1000, 1e-9, order="sequential"))
    fast = fit_gp(K, y, loss=loss, schedule=EP(1000, 1e-9))
    assert slow.converged
    assert fast.converged
    assert fast.residual < 1e-7
    assert fast.log_evidence == pytest.approx(slow.log_evidence, abs=1e-6)


@pytest.mark.parametrize("loss", ["probit", "hinge"])
def test_means_of_a_step_are_those_of_its_posterior(loss, monkeypatch):
    """Means are not to first order only: a posterior is linear in its shifts."""
    K, values = process()
    K += 1e-6 * np.eye(N)
    errors, plain = [], kernel.joint_sites

    def step(*given):
        found = plain(*given)
        if found is not None:
            covariance = np.linalg.inv(np.linalg.inv(K) + np.diag(found.precision))
            errors.append(np.abs(covariance @ found.shift - found.mean).max())
        return found

    monkeypatch.setattr(accelerate, "OF_SQUARE", 0.0)
    monkeypatch.setattr(kernel, "joint_sites", step)
    fit_gp(K, labels(values), loss=loss, schedule=EP(50, 1e-8))
    assert errors
    assert max(errors) < 1e-6


def test_passes_that_do_not_come_to_an_end_give_way_to_a_sweep(monkeypatch):
    K, values = process()
    y, count = labels(values), {}
    swept = fit_gp(K, y, schedule=EP(1000, 1e-8, order="sequential"))
    for passes in (1, 30):
        monkeypatch.setattr(accelerate, "PASSES", passes)
        post = fit_gp(K, y, schedule=EP(1000, 1e-8))
        assert post.converged
        count[passes] = len(post.history)
    assert count[1] == len(swept.history)
    assert count[30] < 0.6 * count[1]


def test_a_warm_start_takes_one_step():
    K, values = process()
    y = labels(values)
    cold = fit_gp(1.02 * K, y, schedule=EP(100, 1e-4))
    warm = fit_gp(1.02 * K, y, schedule=EP(100, 1e-4), start=fit_gp(K, y))
    assert len(warm.history) == 1 < len(cold.history)
    assert warm.log_evidence == pytest.approx(cold.log_evidence, abs=1e-7)


def test_a_start_far_away_is_left_by_sweeps():
    K, values = process(1e4)
    y = labels(values)
    cold = fit_gp(K, y, schedule=EP(500, 1e-9))
    warm = fit_gp(K, y, schedule=EP(500, 1e-9), start=fit_gp(1e-4 * K, -y))
    assert warm.converged
    assert warm.log_evidence == pytest.approx(cold.log_evidence, abs=1e-7)


def test_only_the_automatic_order_to_a_tolerance_takes_joint_steps(monkeypatch):
    K, values = process()
    y, steps = labels(values), []
    plain = kernel.joint_sites
    monkeypatch.setattr(kernel, "joint_sites", lambda *g: steps.append(1) or plain(*g))
    fit_gp(K, y, schedule=EP(3, 0.0))
    fit_gp(K, y, schedule=EP(50, damping=0.9))
    fit_gp(K, y, schedule=EP(50, power=0.9))
    fit_gp(K, y, schedule=EP(50, order="shuffled", seed=0))
    fit_gp(K, y, weights=np.full(N, 2.0), schedule=EP(50))
    fit_gp(K, y, loss="noisy_step", scheme=epfast.schemes.Relaxed(weight=0.03), schedule=EP(200))
    few = slice(0, kernel.JOINT_FROM - 1)
    fit_gp(K[few, few], y[few], schedule=EP(50))
    assert not steps
    fit_gp(K, y, schedule=EP(50))
    assert steps


def test_a_step_without_a_proper_posterior_gives_way_to_a_sweep(monkeypatch):
    K, values = process()
    y = labels(values)
    right = fit_gp(K, y, schedule=EP(100, 1e-8))
    plain = kernel.joint_sites

    def improper(*given):
        found = plain(*given)
        return None if found is None else found._replace(precision=-1e6 - found.precision)

    monkeypatch.setattr(kernel, "joint_sites", improper)
    swept = fit_gp(K, y, schedule=EP(100, 1e-8))
    assert swept.converged
    assert len(swept.history) > len(right.history)
    assert swept.log_evidence == pytest.approx(right.log_evidence, abs=1e-7)

"""Sparse priors of more weights than there are labels: fits settle."""

import numpy as np
import pytest

import epfast
from epfast import losses


def wide_labels(seed, n=80, d=200):
    rng = np.random.default_rng(seed)
    X, w = rng.normal(size=(n, d)), np.zeros(d)
    w[:6] = 2.0 * rng.normal(size=6)
    return X, np.where(X @ w + rng.normal(size=n) > 0.0, 1.0, -1.0)


@pytest.mark.full
@pytest.mark.parametrize(
    "prior",
    [losses.Horseshoe(0.1), losses.StudentTPrior(1.0, 0.05), losses.SpikeAndSlab(0.05, 4.0)],
)
@pytest.mark.parametrize("loss", ["logistic", "probit"])
def test_wide_labels_settle(loss, prior):
    # their sites and those of the weights swung, and half of these fits did not converge
    for seed in range(4):
        X, y = wide_labels(seed)
        assert epfast.fit_linear(X, y, loss=loss, prior=prior).converged


@pytest.mark.full
def test_wide_labels_are_learnt_from():
    X, y = wide_labels(0)
    post = epfast.fit_linear(X, y, loss="logistic", prior=losses.Horseshoe(0.1))
    found = post.learned()
    assert found.log_evidence > post.log_evidence
    slope = found.prior_gradient()["scale"] * found.prior.scale
    assert abs(slope) < 1e-2


@pytest.mark.full
def test_a_check_looks_at_inclusion_probabilities():
    # means are right here, but one probability is off by .085 (a Gibbs sampler, 3 x 2,500 scans)
    rng = np.random.default_rng(13)
    X, w = rng.normal(size=(60, 120)), np.zeros(120)
    w[rng.choice(120, 6, replace=False)] = rng.normal(size=6)
    prior = losses.SpikeAndSlab(0.05, 1.0)
    post = epfast.fit_linear(X, X @ w + rng.normal(size=60), loss="gaussian", prior=prior)
    check = post.check(20_000)
    assert check.verdict == "usable"
    assert "inclusion probability of weight" in check.reason

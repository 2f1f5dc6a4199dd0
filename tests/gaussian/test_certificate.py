"""What a fit of a process is trusted for, and what it says where it failed."""

import warnings
from dataclasses import replace

import numpy as np
import pytest

from epfast import EP, ConvergenceWarning, DoubleLoop, fit_gp
from epfast.gaussian.diagnostics import broken, trusted
from tests.oracles.data import classes, process, rbf

X, K, Y = process(60)
LINE, LABELS = classes(150, 8, seed=0, noise=0.7)


def gap(post, kernel):
    """Of means, in sd, or of variances, as a share: predictions at the inputs beside the fit."""
    mean, variance = post.predict_latent(kernel, np.diag(kernel))
    of_means = np.abs(mean - post.mean) / np.sqrt(post.variance)
    return float(np.maximum(of_means, 0.01 * np.abs(variance / post.variance - 1.0)).max())


@pytest.mark.parametrize("loss", ["probit", "noisy_step"])
@pytest.mark.parametrize("width", [1.0, 30.0, 1e5])
def test_predictions_at_the_inputs_are_the_posterior(loss, width):
    """By the definition of both, however close to singular the kernel of a wide process is."""
    kernel = rbf(LINE, width=width)
    post = fit_gp(kernel, LABELS, loss=loss, schedule=EP(300, 1e-3))
    assert gap(post, kernel) < (1e-3 if width == 1e5 else 1e-9)
    assert post.converged
    assert trusted(post)


def test_an_evidence_above_0_is_a_proof_of_failure():
    post = fit_gp(K, Y)
    scale = post.sites.log_scale + 1.0
    sites = post.sites._replace(log_scale=scale)
    spoiled = replace(post, state=post.state._replace(sites=sites))
    assert spoiled.log_evidence > 0.0
    assert "above 0" in broken(spoiled)
    assert not trusted(spoiled)
    assert broken(post) is None


def test_a_fixed_number_of_sweeps_is_trusted_by_its_residual():
    enough = fit_gp(K, Y, schedule=EP(30, 0.0))
    assert not enough.converged
    assert trusted(enough)
    assert not trusted(fit_gp(K, Y, schedule=EP(1, 0.0)))


def test_divergence_names_its_remedy():
    """A constant latent value, and labels that contradict each other."""
    labels = np.where(np.random.default_rng(0).permutation(60) < 36, 1.0, -1.0)
    ones = np.ones((60, 60))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        try:
            post = fit_gp(ones, labels, loss="noisy_step", schedule=EP(200, 1e-6))
        except FloatingPointError as error:  # the last bits of a singular matrix decide
            said = str(error)
            assert "EP diverged" in said
        else:
            said = str(caught[0].message)
            assert "cavity is improper" in said
            assert not post.converged
            assert np.isfinite(post.mean).all()
    assert "DoubleLoop" in said
    assert "jitter" not in said
    post = fit_gp(ones, labels, loss="noisy_step", schedule=DoubleLoop())
    assert trusted(post)


# ---- rows of features in the place of kernels ----


def test_rows_are_no_kernel():
    for arguments in ({}, {"rank": 5}):
        with pytest.raises(ValueError, match=r"K has shape \(60, 2\); .*epfast.GPClassifier"):
            fit_gp(X, Y, **arguments)
    for method in ("predict_proba", "predict", "predict_variance", "predict_latent"):
        with pytest.raises(TypeError, match=r"k_star_diag .*missing.*epfast.GPClassifier"):
            getattr(fit_gp(K, Y), method)(X)


def test_good_fits_say_nothing():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for loss in ("probit", "logistic", "hinge", "quasi01"):
            assert fit_gp(K, Y, loss=loss).converged


def test_rounding_that_is_no_rounding_is_no_fixed_point():
    """Sites of another kernel, where sweeps diverge: what has settled is at a fixed point."""
    labels = np.where(np.random.default_rng(0).permutation(60) < 36, 1.0, -1.0)
    ones = np.ones((60, 60))
    start = fit_gp(ones, labels, loss="noisy_step", schedule=DoubleLoop(start=EP(20)))
    for variance in (0.9, 1.277, 1.4, 2.2, 2.8):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            try:
                post = fit_gp(
                    variance * ones, labels, loss="noisy_step", schedule=EP(100), start=start
                )
            except FloatingPointError:
                continue
        assert not post.converged or post.residual < 1e-3

"""When a fit may be believed: the policy of the loop, seen through the public functions alone.

Each test fails where one line of that policy is wrong, whichever engine is behind it.
"""

import contextlib
import itertools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from scipy.special import log_ndtr

import epfast
from epfast import EP


def rows(seed, n=30, d=3, scale=1.0):
    rng = np.random.default_rng(seed)
    return scale * rng.normal(size=(n, d)), np.where(rng.random(n) < 0.5, 1.0, -1.0)


@pytest.mark.parametrize("seed", [0, 4, 16])
def test_a_fixed_point_of_impossible_evidence_has_not_converged(seed):
    """p(y) is at most 1 where each factor is: a log evidence of millions is no result.

    Quadrature of few points in a wide prior sees factors where the posterior is not; its sweeps
    stand still all the same.
    """
    X, y = rows(seed, 30, 6, 30.0)
    with pytest.warns(epfast.ConvergenceWarning, match="cannot be above 0"):
        post = epfast.fit_linear(
            X,
            y,
            batch_size=3,
            scheme="variational",
            posterior="factorized",
            prior_variance=1e4,
            schedule=EP(power=0.5),
        )
    assert post.history[-1].change < 1e-5  # so nothing but the bound speaks against it
    assert post.log_evidence > 1e6
    assert not post.converged


def probit_site(log_scale):
    """Tilted moments of exp(log_scale) Phi(h), in closed form."""

    def moments(mean, variance):
        root = np.sqrt(1.0 + variance)
        z = mean / root
        ratio = np.exp(-0.5 * z * z - 0.5 * np.log(2.0 * np.pi) - log_ndtr(z))
        return log_ndtr(z) + log_scale, ratio / root, -ratio * (z + ratio) / root**2

    return epfast.CustomSite(moments)


@pytest.mark.parametrize("order", ["sequential", "parallel"])
def test_a_damped_fit_ends_when_its_evidence_has_settled(order):
    """A factor times c adds n log c to the log evidence, and moves no mean and no variance.

    Started from the fit without c, damped sweeps have nothing to settle but the log scales.
    """
    X, y = rows(1)
    before = epfast.fit_linear(X, y, loss=probit_site(0.0), schedule=EP(tol=1e-10))
    damped = EP(damping=0.2, order=order, sweeps=200)
    post = epfast.fit_linear(X, y, loss=probit_site(np.log(0.5)), schedule=damped, start=before)
    assert post.converged
    expected = before.log_evidence + len(y) * np.log(0.5)
    assert post.log_evidence == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("order", ["sequential", "chunked", "parallel"])
def test_a_start_further_off_than_none_is_dropped(order):
    """With damping 0.5 a distance is halved per sweep: 30 sweeps are enough from flat sites alone.

    Those of rows with a noise variance of 1e-6 are 20 sweeps further off.
    """
    X, _ = rows(2)
    y = np.where(X.sum(axis=1) > 0.5, 1.0, -1.0)
    sure = epfast.fit_linear(X, y, loss=epfast.losses.Gaussian(1e-6))
    schedule = EP(sweeps=30, damping=0.5, order=order, tol=1e-6)
    post = epfast.fit_linear(X, y, schedule=schedule, start=sure)
    assert post.converged
    truth = epfast.fit_linear(X, y, schedule=EP(tol=1e-10))
    np.testing.assert_allclose(post.mean, truth.mean, atol=1e-5)


@pytest.mark.parametrize("order", ["sequential", "chunked", "parallel"])
@pytest.mark.parametrize("seed", [3, 6])
def test_rows_of_a_damped_fit_have_settled_too(seed, order):
    """Columns that differ by 1e-4 leave the weights a sd of 1e3, in which the rows' moves vanish.

    A fit without damping is the truth. Damped rows stop within some 14 tolerances of it, since
    their last moves all go one way: at 46 or more, if the moves were not divided by the damping.
    """
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(20, 1))
    X = np.column_stack([z, z + 1e-4 * rng.normal(size=(20, 1))])
    y = np.where(z[:, 0] + rng.normal(size=20) > 0.0, 1.0, -1.0)
    truth = epfast.fit_linear(X, y, prior_variance=1e6, schedule=EP(tol=1e-10))
    schedule = EP(damping=0.01, order=order, sweeps=2000, tol=1e-3)
    post = epfast.fit_linear(X, y, prior_variance=1e6, schedule=schedule)
    assert post.converged
    (mean, variance), (expected, expected_variance) = (p.predict_latent(X) for p in (post, truth))
    assert np.all(np.abs(mean - expected) < 0.02 * np.sqrt(expected_variance))
    np.testing.assert_allclose(np.log(variance / expected_variance), 0.0, atol=0.02)


@pytest.mark.parametrize(
    ("order", "batch_size", "workers"),
    [
        *itertools.product(("sequential", "parallel", "auto"), (None, 1, 4), (0,)),
        *itertools.product(("parallel",), (1, 4), (2,)),
    ],
)
def test_factors_whose_product_is_improper_have_no_fixed_point(order, batch_size, workers):
    """t(h) = exp(a h^2 / 2) over rows (1, -1) takes away 2 n a of a precision 1: none is left.

    The direction (1, 1) has a prior sd of 1e3, in which all moves along (1, -1) vanish: a change
    per sweep within the tolerance says nothing here.
    """
    a, n = 0.1, 8
    X = np.tile([1.0, -1.0], (n, 1))
    flat, tight = np.full((2, 2), 0.5e-6), np.array([[0.5, -0.5], [-0.5, 0.5]])
    loss = epfast.CustomLoss(
        value=lambda m: -0.5 * a * m**2, slope=lambda m: -a * m, curvature=lambda m: 0 * m - a
    )
    pool = ThreadPoolExecutor(workers) if workers else contextlib.nullcontext()
    with pool as executor, pytest.warns(epfast.ConvergenceWarning):
        post = epfast.fit_linear(
            X,
            np.ones(n),
            loss=loss,
            executor=executor,
            scheme=epfast.schemes.Laplace(curvature="exact"),
            batch_size=batch_size,
            prior_precision=flat + tight,
            schedule=EP(order=order, tol=1e-3),
        )
    assert not post.converged

"""The process at new inputs, jointly: against NumPy's formulas with the sites of the fit."""

import numpy as np
import pytest

from epfast import EP, SEP, fit_gp, incomplete_cholesky
from epfast.gaussian.factor import factor_at
from tests.oracles.data import process, rbf

X, K, Y = process(60)
Z = np.random.default_rng(5).normal(size=(25, 2))
CROSS, PRIOR = rbf(Z, X, variance=4.0), rbf(Z, variance=4.0)
TIGHT = EP(500, 1e-11)


@pytest.mark.parametrize("loss", ["probit", "logistic", "noisy_step"])
def test_joint_predictions(loss):
    post = fit_gp(K, Y, loss=loss, schedule=TIGHT)
    mean, covariance = post.predict_latent(CROSS, PRIOR, joint=True)
    tau, nu = post.sites.precision, post.sites.shift
    # (K + 1 / tau)^-1 = T (1 + K T)^-1, whatever the sign of tau
    R = np.linalg.solve(np.eye(60) + tau[:, None] * K, np.diag(tau))
    np.testing.assert_allclose(covariance, PRIOR - CROSS @ R @ CROSS.T, atol=1e-8)
    np.testing.assert_allclose(
        mean, CROSS @ np.linalg.solve(np.eye(60) + tau[:, None] * K, nu), atol=1e-8
    )
    for diagonal in (PRIOR, np.diag(PRIOR), 4.0):
        marginal = post.predict_latent(CROSS, diagonal)
        np.testing.assert_allclose(marginal[0], mean, rtol=1e-12)
        np.testing.assert_allclose(marginal[1], np.diag(covariance), rtol=1e-9)


def test_joint_predictions_at_the_inputs_are_the_posterior():
    post = fit_gp(K, Y)
    mean, covariance = post.predict_latent(K, K, joint=True)
    np.testing.assert_allclose(mean, post.mean, atol=1e-9)
    np.testing.assert_allclose(covariance, post.covariance, atol=1e-9)


@pytest.mark.parametrize("given", [PRIOR, None], ids=["conditional", "regressors"])
def test_joint_predictions_of_low_rank(given):
    """Of the linear model with the rows of the factor, and what the factor leaves."""
    post = fit_gp(K, Y, rank=12, schedule=TIGHT)
    P = post.pivots
    rows = CROSS[:, P] @ np.linalg.inv(np.linalg.cholesky(K[np.ix_(P, P)])).T
    G = K[:, P] @ np.linalg.inv(np.linalg.cholesky(K[np.ix_(P, P)])).T
    S = np.linalg.inv(np.eye(12) + G.T @ (post.sites.precision[:, None] * G))
    expected = rows @ S @ rows.T
    if given is not None:
        expected += PRIOR - rows @ rows.T
    mean, covariance = post.predict_latent(CROSS[:, P], given, joint=True)
    np.testing.assert_allclose(covariance, expected, atol=1e-7)
    np.testing.assert_allclose(mean, rows @ S @ (G.T @ post.sites.shift), atol=1e-7)
    marginal = post.predict_latent(CROSS[:, P], None if given is None else 4.0)[1]
    np.testing.assert_allclose(np.diag(covariance), marginal, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("rank", [None, 12])
def test_draws_have_the_moments_of_the_prediction(rank):
    post = fit_gp(K, Y, rank=rank)
    cross = CROSS if rank is None else CROSS[:, post.pivots]
    mean, covariance = post.predict_latent(cross, PRIOR, joint=True)
    draws = post.sample_latent(cross, PRIOR, 20000, rng=3)
    assert draws.shape == (20000, 25)
    sd = np.sqrt(np.diag(covariance))
    assert (abs(draws.mean(axis=0) - mean) < 5.0 * sd / np.sqrt(20000)).all()
    error = np.sqrt((np.outer(sd**2, sd**2) + covariance**2) / 20000)
    assert (abs(np.cov(draws.T) - covariance) < 5.0 * error).all()
    np.testing.assert_array_equal(draws[:5], post.sample_latent(cross, PRIOR, 20000, rng=3)[:5])
    assert post.sample_latent(cross, PRIOR, 0).shape == (0, 25)


def test_bad_arguments():
    post = fit_gp(K, Y)
    for wrong, message in (
        (np.ones(25), r"K_star_star has shape \(25,\)"),
        (PRIOR[:5, :5], "K_star_star has shape"),
        (PRIOR + np.arange(25), "symmetric"),
        (-PRIOR, "K_star_star"),
        (PRIOR * np.nan, "K_star_star"),
    ):
        with pytest.raises(ValueError, match=message):
            post.predict_latent(CROSS, wrong, joint=True)
    with pytest.raises(TypeError, match="joint is"):
        post.predict_latent(CROSS, PRIOR, joint=1)
    with pytest.raises(ValueError, match="size is -1"):
        post.sample_latent(CROSS, PRIOR, -1)
    assert post.predict_latent(np.empty((0, 60)), np.empty((0, 0)), joint=True)[1].shape == (0, 0)


# ---- low rank, pivots held fixed ----


def columns(theta, pivots):
    return rbf(X, X[pivots], variance=np.exp(theta[0]), width=np.exp(theta[1]))


def test_a_factor_at_given_pivots():
    pivots = incomplete_cholesky(K, 15).pivots
    theta = np.array([0.7, 0.3])
    C = columns(theta, pivots)
    factor = factor_at(C, pivots, np.full(60, np.exp(0.7)))
    low = C @ np.linalg.solve(C[pivots], C.T)
    np.testing.assert_allclose(factor.G @ factor.G.T, low, atol=1e-8)
    np.testing.assert_allclose(factor.residual, np.exp(0.7) - np.diag(low), atol=1e-8)
    assert sorted(factor.pivots) == sorted(pivots)
    triangle = factor.G[factor.pivots]
    np.testing.assert_array_equal(triangle, np.tril(triangle))
    assert factor.traces[0] == pytest.approx(60 * np.exp(0.7))
    assert factor.traces[-1] == pytest.approx(factor.residual.sum(), abs=1e-8)
    # pivots that say the same twice
    wide = factor_at(columns([0.7, 9.0], pivots), pivots, np.full(60, np.exp(0.7)))
    assert wide.rank < 15
    assert np.isfinite(wide.G).all()


@pytest.mark.parametrize("loss", ["probit", "logistic"])
@pytest.mark.parametrize("power", [1.0, 0.5])
def test_the_gradient_of_low_rank(loss, power):
    pivots, theta = incomplete_cholesky(K, 15).pivots, np.array([1.2, 0.1])
    schedule = EP(1000, 1e-12, power=power)

    def fit(at):
        factor = factor_at(columns(at, pivots), pivots, np.full(60, np.exp(at[0])))
        return fit_gp(factor, Y, loss=loss, schedule=schedule)

    post, h = fit(theta), 1e-5
    order = post.pivots
    dK = [
        (columns(theta + step, order) - columns(theta - step, order)) / (2 * h)
        for step in h * np.eye(2)
    ]
    expected = [
        (fit(theta + step).log_evidence - fit(theta - step).log_evidence) / (2 * h)
        for step in h * np.eye(2)
    ]
    np.testing.assert_allclose(post.log_evidence_gradient(dK), expected, rtol=1e-6)
    np.testing.assert_allclose(post.log_evidence_gradient(np.array(dK)), expected, rtol=1e-6)
    np.testing.assert_allclose(post.log_evidence_gradient(dK[0]), expected[:1], rtol=1e-6)


def test_the_gradient_of_full_rank_is_that_of_the_process():
    whole, exact = fit_gp(K, Y, rank=60, schedule=TIGHT), fit_gp(K, Y, schedule=TIGHT)
    dK = K * np.square(np.linalg.norm(X[:, None] - X[None], axis=2))
    np.testing.assert_allclose(
        whole.log_evidence_gradient(dK[:, whole.pivots]),
        exact.log_evidence_gradient(dK),
        rtol=1e-4,
    )


def test_no_gradient_of_shared_sites():
    post = fit_gp(K, Y, rank=5, schedule=SEP(sweeps=3, tol=0.0))
    with pytest.raises(ValueError, match=r"allowed for the gradient: epfast\.EP"):
        post.log_evidence_gradient(np.zeros((60, 5)))
    good = fit_gp(K, Y, rank=5)
    with pytest.raises(ValueError, match="dK has shape"):
        good.log_evidence_gradient(np.zeros((1, 60, 60)))


def test_kernels_that_overflow_are_refused():
    """Sites of both signs, as with Student-t noise, have infinite terms of both signs."""
    rng = np.random.default_rng(0)
    post = fit_gp(rbf(Z[:7], Z[:7]) + np.eye(7), 30.0 * rng.standard_t(1, size=7), loss="student_t")
    assert (post.sites.precision < 0.0).any()
    cross = 1.7e308 * np.sign(post.alpha)[None]
    for ask in (
        lambda: post.predict_latent(cross, [2.0]),
        lambda: post.predict_latent(cross, [[2.0]], joint=True),
        lambda: post.predict_mean(cross),
        lambda: post.sample_latent(cross, [[2.0]], 3, 0),
    ):
        with pytest.raises(ValueError, match=r"^K_star or K_star_star overflows"):
            ask()

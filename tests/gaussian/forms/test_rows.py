"""Scalar sites with a full covariance: against EP in plain NumPy, fixed points, exact cases."""

import numpy as np
import pytest
from scipy import stats

import epfast
from epfast import ADF, EP
from epfast.backend import tilted_moments
from tests.oracles.scalar_sites import (
    LOSSES,
    SOFTPLUS,
    assert_near,
    data,
    every_loss,
    exactly,
    fit,
    plain_ep,
    residual,
)

# fmt: off
SCHEDULES = [  # seven sweeps: not a multiple of those between two refreshes
    EP(sweeps=7, tol=0), EP(sweeps=3, tol=0, order="shuffled", seed=3), ADF(),
    EP(sweeps=6, tol=0, order="parallel", damping=0.4), EP(sweeps=2, tol=0, power=0.5),
    EP(sweeps=2, tol=0, power=1.3, damping=0.7, block=4), ADF(order="shuffled", seed=1, power=0.6),
]
# fmt: on


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@every_loss
def test_equals_plain_ep_and_is_saved(name, schedule, tmp_path):
    X, y = data(40, 4)
    y[::9] *= -1
    prior = np.cov(np.random.default_rng(1).normal(size=(4, 30)))
    for beta in (1.0, 0.8) if name == "probit" else (0.8,):
        given = {"loss": LOSSES[name].given, "schedule": schedule, "beta": beta}
        post = fit(X, y, prior_precision=prior, **given)
        plain = plain_ep(X, y, name, prior, schedule, beta)
        assert_near(post, plain, 1e-9 if name == "probit" and beta * post.power == 1 else 1e-7)
        assert post.n_refused == plain.refused
        assert len(post.history) == post.n_sweeps == schedule.sweeps
        assert post.history[-1].log_evidence == pytest.approx(post.log_evidence, rel=1e-12)
        np.testing.assert_allclose(post.variance, np.diag(post.covariance), rtol=1e-13)
        if name in ("quasi01", "noisy_step", "ramp") and plain.sites is not None:
            assert (post.sites.precision < 0).any()  # a surprising label flattens the posterior
    post.save(tmp_path / "post.npz")
    back = epfast.load(tmp_path / "post.npz", SOFTPLUS[0] if name == "callable" else None)
    parts = "mean covariance precision shift prior_precision sites beta batch_size converged"
    for part in [*parts.split(), "n_sweeps", "n_refused", "log_evidence", "history"]:
        np.testing.assert_array_equal(getattr(back, part), getattr(post, part), err_msg=part)
    np.testing.assert_array_equal(back.predict_proba(X), post.predict_proba(X))


@pytest.mark.filterwarnings("ignore:.*refused:epfast.ConvergenceWarning")
@pytest.mark.parametrize(("n", "d"), [(1, 1), (50, 1), (7, 40), (1, 9), (70, 40), (131, 17)])
def test_any_shape_and_block(n, d):
    X, y = data(n, d)
    variance = np.linspace(0.5, 5.0, d)
    cases = [("probit", {"sweeps": 4}), ("quasi01", {"order": "shuffled", "seed": 1})]
    for loss, given in [*cases, ("logistic", {"power": 2.0, "damping": 1.0})]:
        given = {"sweeps": 2, "tol": 0, "damping": 0.8} | given
        first = fit(X, y, loss, schedule=EP(**given), prior_variance=variance)
        plain = plain_ep(X, y, loss, np.diag(1 / variance), EP(**given))
        assert_near(first, plain, 1e-9 if loss == "probit" else 1e-7)
        assert first.n_refused == plain.refused
        # with a power of 2 the cavity lacks twice a site that holds most of the precision
        assert first.n_refused > 0 or loss != "logistic" or n != 7
        for q in (1, 3, 7, 32, n, n + 9):
            post = fit(X, y, loss, schedule=EP(**given, block=q), prior_variance=variance)
            assert_near(post, first, 1e-10)


@pytest.mark.filterwarnings("ignore:.*refused:epfast.ConvergenceWarning")
@pytest.mark.parametrize("power", [1.0, 0.7])
@pytest.mark.parametrize("name", ["probit", "logistic", "hinge", "squared_hinge", "noisy_step"])
def test_fixed_point(name, power):
    """The same from every order and start, and no site update, by the oracle, changes it."""
    X, y = data(50, 4, noise=1.0)
    orders = [{"damping": 0.8}, {"order": "shuffled", "seed": 4, "damping": 0.7}]
    orders += [{"order": "parallel", "damping": 0.3}]
    posts, start, given = [], None, {"loss": LOSSES[name].given, "prior_variance": 2.0}
    for order in orders:
        schedule = EP(sweeps=1000, tol=1e-11, power=power, **order)
        posts.append(fit(X, y, schedule=schedule, start=start, **given))
        start = fit(X, y, schedule=EP(3, 0.0), **given | {"prior_variance": 8.0})
        assert posts[-1].converged
        assert posts[-1].history[-1].change <= 1e-11
        assert residual(posts[-1], X, y, name, np.eye(4) / 2, power) <= 1e-8
        assert_near(posts[-1], posts[0], 1e-7)
    again = fit(X, y, schedule=EP(tol=1e-9, power=power), start=posts[0], **given)
    assert (again.converged, len(again.history)) == (True, 1)


@pytest.mark.parametrize("schedule", [EP(), EP(order="parallel"), ADF()], ids=str)
@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
def test_sites_without_mass_are_refused(schedule):
    (X, y), wall = data(20, 2), epfast.CustomLoss(lambda m: np.full_like(m, np.inf))
    with pytest.raises(FloatingPointError, match="20 of 20"):
        tilted_moments(wall, y, 0 * y, 1 + 0 * y)
    post = fit(X, y, wall, schedule=schedule)
    assert post.n_refused == 20 * post.n_sweeps
    np.testing.assert_allclose(post.covariance, 25 * np.eye(2), rtol=1e-12)
    assert (*post.mean, post.log_evidence) == pytest.approx((0.0, 0.0, 0.0), abs=1e-12)
    assert not post.converged


@pytest.mark.parametrize("schedule", [EP(2, 0.0), EP(1, 0.0, order="parallel"), ADF()], ids=str)
@every_loss
def test_evidence_is_exact_where_ep_is(name, schedule):
    """Orthogonal rows under an isotropic prior: the posterior factorises over the sites."""
    length = np.array([0.3, 1.0, 3.0, 8.0])
    X = np.linalg.qr(np.random.default_rng(2).normal(size=(6, 6)))[0][:4] * length[:, None]
    y, spread = np.array([1.0, -1.0, 1.0, 1.0]), 2 * length**2
    lz, d1, d2 = exactly(name, y, np.zeros(4), spread, 1.0)
    post = fit(X, y, LOSSES[name].given, prior_variance=2.0, schedule=schedule)
    assert post.log_evidence == pytest.approx(lz.sum(), rel=1e-9)
    np.testing.assert_allclose(X @ post.mean, spread * d1, rtol=1e-8, atol=1e-12)
    np.testing.assert_allclose(post.predict_latent(X)[1], spread + spread**2 * d2, rtol=1e-8)


def test_evidence_is_near_brute_force():
    """EP's own error at its fixed point, as measured: in log evidence and standard deviations."""
    X, y = data(25, 2, noise=3.0, scale=0.5)
    grid = np.stack(np.meshgrid(*2 * [np.linspace(-9, 9, 301)]), axis=-1).reshape(-1, 2)
    gaps = {"probit": (2e-4, 3e-4), "logistic": (2e-3, 2e-3), "hinge": (0.06, 0.05)}
    for name, (gap, off) in gaps.items():
        post = fit(X, y, LOSSES[name].given, prior_variance=2.0, schedule=EP(300, 1e-10))
        theta = post.mean + grid @ (root := np.linalg.cholesky(post.covariance)).T
        log_f = -0.25 * (theta**2).sum(axis=1) - LOSSES[name].value(y * (theta @ X.T)).sum(axis=1)
        f = np.exp(log_f) * np.linalg.det(root) * 0.06**2 / (4 * np.pi)
        assert abs(post.log_evidence - np.log(f.sum())) < gap
        assert (np.abs(f @ theta / f.sum() - post.mean) < off * np.sqrt(post.variance)).all()


def test_adf_goes_on_row_by_row_and_its_evidence_is_the_chain_of_predictions():
    X, y = data(30, 3)
    post, total, m, v = None, 0.0, np.zeros(1), 25 * (X[:1] ** 2).sum(axis=1)
    for i in range(30):
        total += tilted_moments("probit", y[i : i + 1], m, v)[0][0]
        post = fit(X[i : i + 1], y[i : i + 1], schedule=ADF(), start=post)
        m, v = post.predict_latent(X[(i + 1) % 30][None])
    assert_near(post, fit(X, y, schedule=ADF()), 1e-10)
    assert post.log_evidence == pytest.approx(total, rel=1e-10)


@pytest.mark.parametrize(
    "schedule", [EP(), ADF(), EP(order="parallel", damping=1.0), EP(60, 0.0, 0.4, 0.5)]
)
def test_gaussian_sites_are_bayesian_regression(schedule):
    X, y = data(40, 6)
    prior, loss = np.eye(6) + 0.3, epfast.CustomLoss(lambda m: 0.5 * (m - 1) ** 2)
    post = fit(X, y, loss, prior_precision=prior, schedule=schedule)
    covariance = np.linalg.inv(prior + X.T @ X)
    np.testing.assert_allclose(post.covariance, covariance, rtol=1e-9, atol=1e-10)
    np.testing.assert_allclose(post.mean, covariance @ X.T @ y, rtol=1e-9, atol=1e-9)
    marginal = stats.multivariate_normal(np.zeros(40), np.eye(40) + X @ np.linalg.inv(prior) @ X.T)
    exact = marginal.logpdf(y) + 20 * np.log(2 * np.pi)  # y^2 = 1: (y h - 1)^2 = (h - y)^2
    assert post.log_evidence == pytest.approx(exact, rel=1e-9)

"""What a fit of a process returns: gradients of the evidence, prediction, files."""

import pickle

import numpy as np
import pytest
from scipy import linalg, special

import epfast
from epfast import EP, ConvergenceWarning, NoisyStep, fit_gp
from tests import batteries
from tests.oracles.data import process, rbf

TIGHT = {"sweeps": 300, "tol": 1e-11}


@pytest.mark.parametrize("loss", ["probit", "logistic", NoisyStep(0.1)])
@pytest.mark.parametrize("power", [1.0, 0.7])
def test_gradient_of_the_evidence(loss, power):
    X, _, y = process(50)
    schedule = EP(2000, 1e-11, power=power, damping=0.7)
    distance = ((X[:, None] - X[None]) ** 2).sum(-1)

    def fit(log_width, log_variance):
        K = rbf(X, width=np.exp(log_width), variance=np.exp(log_variance))
        return K, fit_gp(K, y, loss=loss, schedule=schedule)

    at = np.array([0.2, 1.0])
    K, gp = fit(*at)
    by_width = K * distance / np.exp(2 * at[0])
    gradient = gp.log_evidence_gradient(np.stack([by_width, K]))
    np.testing.assert_allclose(gp.log_evidence_gradient(m for m in (by_width, K)), gradient)
    np.testing.assert_allclose(gp.log_evidence_gradient(K), gradient[1:])
    for k in range(2):
        step = 1e-4 * np.eye(2)[k]
        up, down = fit(*(at + step))[1], fit(*(at - step))[1]
        slope = (up.log_evidence - down.log_evidence) / 2e-4
        assert gradient[k] == pytest.approx(slope, rel=1e-6, abs=1e-7)


@pytest.mark.parametrize("power", [1.0, 0.6])
def test_gradient_by_epsilon(power):
    _, K, y = process(50)
    schedule = EP(2000, 1e-11, power=power, damping=0.7)

    def fit(epsilon):
        return fit_gp(K, y, loss=NoisyStep(epsilon), schedule=schedule)

    slope = (fit(0.1001).log_evidence - fit(0.0999).log_evidence) / 2e-4
    assert fit(0.1).loss_gradient()["epsilon"] == pytest.approx(slope, rel=1e-6)


def test_gradient_away_from_a_fixed_point_warns():
    _, K, y = process(50)
    gp = fit_gp(K, y, schedule=EP(1, 0.0))
    with pytest.warns(ConvergenceWarning, match="residual"):
        gp.log_evidence_gradient(K)


def test_prediction_is_that_of_the_joint_process():
    """An input without label: the posterior over both by EP with a flat site there."""
    X, _, y = process(40)
    Z = np.random.default_rng(9).normal(size=(7, 2))
    both = rbf(np.concatenate([X, Z]), variance=4.0)
    gp = fit_gp(both[:40, :40], y, schedule=EP(**TIGHT))
    mean, variance = gp.predict_latent(both[40:, :40], np.diag(both)[40:])
    precision = np.zeros(47)
    precision[:40] = gp.sites.precision
    covariance = linalg.solve(np.eye(47) + both * precision, both)
    np.testing.assert_allclose(mean, (covariance[:, :40] @ gp.sites.shift)[40:], atol=1e-9)
    np.testing.assert_allclose(variance, np.diag(covariance)[40:], atol=1e-9)
    p = gp.predict_proba(both[40:, :40], 4.0)
    np.testing.assert_allclose(p, special.ndtr(mean / np.sqrt(1 + variance)), atol=1e-12)
    noisy = fit_gp(both[:40, :40], y, loss=NoisyStep(0.1), schedule=EP(500, 1e-9, damping=0.7))
    mean, variance = noisy.predict_latent(both[40:, :40], 4.0)
    want = 0.1 + 0.8 * special.ndtr(mean / np.sqrt(variance))
    np.testing.assert_allclose(noisy.predict_proba(both[40:, :40], 4.0), want, atol=1e-12)


def test_leave_one_out_is_the_posterior_without_the_site():
    _, K, y = process(40)
    gp = fit_gp(K, y, schedule=EP(**TIGHT))
    loo = gp.loo_log_predictive()
    for i in (0, 11, 39):
        precision, shift = gp.sites.precision.copy(), gp.sites.shift.copy()
        precision[i] = shift[i] = 0.0
        covariance = linalg.solve(np.eye(40) + K * precision, K)
        z = y[i] * (covariance @ shift)[i] / np.sqrt(1 + covariance[i, i])
        assert loo[i] == pytest.approx(special.log_ndtr(z), rel=1e-8)


def test_samples_have_the_moments():
    _, K, y = process(20)
    gp = fit_gp(K, y)
    draws = gp.sample(40_000, 5)
    assert draws.shape == (40_000, 20)
    sd = np.sqrt(gp.variance)
    assert (abs(draws.mean(axis=0) - gp.mean) < 5 * sd / 200).all()
    assert abs(np.cov(draws.T) - gp.covariance).max() < 0.1 * gp.variance.max()
    np.testing.assert_array_equal(gp.sample(3, 5), gp.sample(3, np.random.default_rng(5)))


@pytest.mark.parametrize("loss", ["probit", NoisyStep(0.2)])
def test_save_and_load(loss, tmp_path):
    _, K, y = process(30)
    gp = fit_gp(K, y, loss=loss, schedule=EP(100, 1e-8, damping=0.7))
    gp.save(tmp_path / "gp.npz")
    again = epfast.load(tmp_path / "gp.npz")
    assert type(again) is type(gp)
    assert again.loss == gp.loss
    assert again.log_evidence == gp.log_evidence
    assert again.residual == gp.residual
    assert again.history == gp.history
    for name in ("scheme", "schedule", "beta", "power", "converged", "n_sweeps"):
        assert getattr(again, name) == getattr(gp, name)
    for other in (again, pickle.loads(pickle.dumps(gp))):
        assert other.problem.prior.kernel is None  # the matrices are those of the posterior
        for name in ("mean", "variance", "alpha", "covariance", "y"):
            np.testing.assert_array_equal(getattr(other, name), getattr(gp, name))
        np.testing.assert_array_equal(other.predict_proba(K, 4.0), gp.predict_proba(K, 4.0))
        assert other.residual == gp.residual
        np.testing.assert_array_equal(other.loo_log_predictive(), gp.loo_log_predictive())
    assert fit_gp(K, y, loss=loss, start=again, schedule=EP(1, 0.0)).history[0].change < 1e-7
    own = fit_gp(K, y, loss=lambda m: np.logaddexp(0.0, -m), schedule=EP(2, 0.0))
    own.save(tmp_path / "own.npz")
    with pytest.raises(ValueError, match="loss"):
        epfast.load(tmp_path / "own.npz").predict_proba(K, 4.0)
    logistic = epfast.load(tmp_path / "own.npz", loss="logistic").predict_proba(K, 4.0)
    np.testing.assert_allclose(logistic, own.predict_proba(K, 4.0), rtol=1e-8)
    laplace = fit_gp(K, y, scheme="laplace", loss="logistic")
    laplace.save(tmp_path / "laplace.npz")
    assert epfast.load(tmp_path / "laplace.npz").scheme == laplace.scheme
    assert epfast.load(tmp_path / "laplace.npz").residual == laplace.residual
    arrays = dict(np.load(tmp_path / "gp.npz"))
    arrays["state.moments.mean"] = arrays["state.moments.mean"][:-1]
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match="not a posterior"):
        epfast.load(tmp_path / "bad.npz")


def test_bad_prediction():
    gp = fit_gp(np.eye(2), [1, -1])
    for K_star, diagonal in (
        (np.ones((1, 3)), [1.0]),
        (np.ones(2), [1.0]),
        ([[1.0, np.nan]], [1.0]),
        ([[1.0, 0.0]], [1.0, 2.0]),
        ([[1.0, 0.0]], [-1.0]),
        ([[1.0, 0.0]], [np.nan]),
    ):
        with pytest.raises(ValueError, match=r"K_star|k_star_diag"):
            gp.predict_latent(K_star, diagonal)
    assert gp.predict_proba(np.empty((0, 2)), np.empty(0)).shape == (0,)
    for dK in (np.ones((3, 3)), np.full((2, 2), np.nan), np.ones((1, 2, 3))):
        with pytest.raises(ValueError, match="dK"):
            gp.log_evidence_gradient(dK)


@pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")
@pytest.mark.parametrize(
    "name", [name for name, loss in batteries.LOSSES.items() if loss.latents == 1]
)
def test_responses_of_every_loss_come_back(name, tmp_path):
    """Intervals without an end among them."""
    X, y = batteries.rows(batteries.LOSSES[name])
    gp = fit_gp(rbf(X), y, loss=name, schedule=EP(3, 0.0))
    gp.save(tmp_path / "gp.npz")
    for given in (None, name):
        again = epfast.load(tmp_path / "gp.npz", loss=given)
        np.testing.assert_array_equal(again.y, gp.y)
        np.testing.assert_array_equal(again.loo_log_predictive(), gp.loo_log_predictive())

"""Processes with several latent values per observation."""

import pickle

import numpy as np
import pytest

import epfast
from epfast import losses

CLASSES, NOISE = losses.Multiclass(3, correlated=False), losses.Heteroscedastic()
BOTH = pytest.mark.parametrize("loss", [CLASSES, NOISE], ids=repr)
TIGHT = epfast.EP(tol=1e-10, sweeps=3000)


def data(loss, n=60, seed=0):
    rng = np.random.default_rng(seed)
    x = np.sort(rng.uniform(-3, 3, n))
    latent = np.stack([2 * np.sin(2 * x + k) for k in range(loss.latents)], axis=1)
    return x, kernel(x, x), loss.sample(latent, rng)


def kernel(a, b, scale=1.0):
    return 2.0 * np.exp(-0.5 * np.subtract.outer(a, b) ** 2 / scale**2)


@BOTH
def test_a_linear_kernel_is_a_linear_model(loss):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 3))
    y = loss.sample(0.7 * X @ rng.normal(size=(3, loss.latents)), rng)
    post = epfast.fit_linear(X, y, loss=loss, prior_variance=2.0, schedule=TIGHT)
    gp = epfast.fit_gp(2.0 * X @ X.T, y, loss=loss, schedule=TIGHT)
    assert gp.log_evidence == pytest.approx(post.log_evidence, abs=1e-7)
    mean, variance = post.predict_latent(X)
    np.testing.assert_allclose(gp.mean.T, mean, atol=1e-6)
    np.testing.assert_allclose(gp.variance.T, variance, atol=1e-6)
    new = rng.normal(size=(7, 3))
    prior = 2.0 * (new**2).sum(axis=1)
    np.testing.assert_allclose(
        gp.log_predictive(2.0 * new @ X.T, prior, np.zeros(7)),
        post.log_predictive(new, np.zeros(7)),
        atol=1e-6,
    )
    np.testing.assert_allclose(gp.loo_log_predictive(), post.loo_log_predictive(), atol=1e-6)


@BOTH
@pytest.mark.parametrize("order", ["sequential", "shuffled", "parallel"])
def test_all_orders_agree(loss, order):
    _, K, y = data(loss)
    first = epfast.fit_gp(K, y, loss=loss, schedule=TIGHT)
    schedule = epfast.EP(tol=1e-10, sweeps=8000, order=order)
    gp = epfast.fit_gp(K, y, loss=loss, schedule=schedule)
    assert first.converged
    assert gp.converged
    assert first.residual < 1e-7
    np.testing.assert_allclose(gp.mean, first.mean, atol=1e-7)
    assert gp.log_evidence == pytest.approx(first.log_evidence, abs=1e-8)


@BOTH
def test_kernels_of_their_own(loss):
    x, K, y = data(loss)
    whole, each = (epfast.fit_gp(k, y, loss=loss, schedule=TIGHT) for k in (K, [K] * loss.latents))
    assert each.log_evidence == pytest.approx(whole.log_evidence, abs=1e-8)
    scales = [0.5, 1.0, 3.0][: loss.latents]
    K = [kernel(x, x, scale) for scale in scales]
    gp = epfast.fit_gp(K, y, loss=loss, schedule=TIGHT)
    assert gp.converged
    new = np.array([-1.0, 0.2])
    mean, variance = gp.predict_latent([kernel(new, x, s) for s in scales], [2.0] * loss.latents)
    assert mean.shape == variance.shape == (2, loss.latents)
    mean, variance = gp.predict_latent(K, [2.0] * loss.latents)
    np.testing.assert_allclose(mean, gp.mean.T, atol=1e-6)
    np.testing.assert_allclose(variance, gp.variance.T, atol=1e-6)


def test_predictions():
    x, K, y = data(CLASSES)
    gp = epfast.fit_gp(K, y, loss=CLASSES)
    new = np.linspace(-3, 3, 9)
    rows, prior = kernel(new, x), np.full(9, 2.0)
    p = gp.predict_proba(rows, prior)
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    np.testing.assert_array_equal(gp.predict(rows, prior), p.argmax(axis=1))
    draws = gp.sample_latent(rows, kernel(new, new), 20_000, 0)
    assert draws.shape == (20_000, 9, 3)
    np.testing.assert_allclose(draws.mean(axis=0), gp.predict_latent(rows, prior)[0], atol=0.05)
    assert gp.sample(5, 0).shape == (5, 3, 60)
    assert gp.credible_interval().shape == (3, 60, 2)
    assert gp.covariance.shape == (3, 60, 60)
    assert len(gp.summary().index) == 180


def test_the_gradient_of_the_evidence():
    _, K, y = data(CLASSES)
    gp = epfast.fit_gp(K, y, loss=CLASSES, schedule=TIGHT)
    up, down = (
        epfast.fit_gp(K * (1 + s * 1e-4), y, loss=CLASSES, schedule=TIGHT).log_evidence
        for s in (1, -1)
    )
    assert gp.log_evidence_gradient(K)[0] == pytest.approx((up - down) / 2e-4, rel=1e-5)


@BOTH
def test_files_and_pickles(loss, tmp_path):
    _, K, y = data(loss)
    gp = epfast.fit_gp(K, y, loss=loss)
    gp.save(tmp_path / "gp.npz")
    for other in (epfast.load(tmp_path / "gp.npz"), pickle.loads(pickle.dumps(gp))):
        assert other.log_evidence == gp.log_evidence
        assert other.residual == gp.residual
        np.testing.assert_array_equal(other.log_predictive(K, 2.0, y), gp.log_predictive(K, 2.0, y))
        again = epfast.fit_gp(K, y, loss=loss, start=other)
        np.testing.assert_allclose(again.mean, gp.mean, atol=1e-3)
    with np.load(tmp_path / "gp.npz") as file:
        arrays = dict(file)
    arrays["state.sites.shift"] = arrays["state.sites.shift"] + 1.0
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(ValueError, match="damaged"):
        epfast.load(tmp_path / "bad.npz")


@pytest.mark.full
def test_certificates():
    _, K, y = data(NOISE, 100)
    check = epfast.fit_gp(K, y, loss=NOISE).check(2000)
    assert check.verdict in ("good", "usable", "uncertain")
    assert check.mean.shape == (200,)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"weights": np.ones(60)}, "weights"),
        ({"rank": 5}, "rank"),
        ({"scheme": "laplace"}, "scheme"),
        ({"schedule": epfast.DoubleLoop()}, "schedule"),
        ({"schedule": epfast.EP(power=0.5)}, "power"),
        ({"schedule": epfast.EP(order="chunked")}, "order"),
        ({"overwrite_K": True}, "overwrite_K"),
        ({"offset": np.zeros(60)}, "offset"),
    ],
    ids=lambda x: "" if isinstance(x, str) else next(iter(x)),
)
def test_refused(more, said):
    _, K, y = data(CLASSES)
    with pytest.raises(ValueError, match=said):
        epfast.fit_gp(K, y, loss=CLASSES, **more)
    with pytest.raises(ValueError, match="K holds 2"):
        epfast.fit_gp([K, K], y, loss=CLASSES)
    with pytest.raises(TypeError, match="start"):
        epfast.fit_gp(K, y, loss=CLASSES, start=epfast.fit_gp(K, np.where(y > 0, 1, -1)))

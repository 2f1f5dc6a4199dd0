"""Posteriors of linear models with several latents: predictions, files, refusals, certificates."""

import pickle

import numpy as np
import pytest
from scipy import stats

import epfast
from epfast import losses

CLASSES, NOISE = losses.Multiclass(3, correlated=False), losses.Heteroscedastic()
BOTH = pytest.mark.parametrize("loss", [CLASSES, NOISE], ids=repr)


def data(loss, n=150, d=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    latent = X @ (0.7 * rng.normal(size=(d, loss.latents)))
    return X, loss.sample(latent, rng)


def fit(loss, n=150, **more):
    X, y = data(loss, n)
    return X, y, epfast.fit_linear(X, y, loss=loss, intercept=True, **more)


@BOTH
def test_shapes(loss):
    X, _, post = fit(loss)
    C, d, n = loss.latents, 4, len(X)
    assert post.mean.shape == post.variance.shape == post.shift.shape == (C, d)
    assert post.covariance.shape == post.precision.shape == (C, d, d)
    assert post.sites.precision.shape == post.sites.shift.shape == (n, C)
    assert post.sites.log_scale.shape == (n,)
    assert post.credible_interval(0.9).shape == (C, d, 2)
    assert post.sample(7, 0).shape == (7, C, d)
    assert post.sample_y(X[:5], 7, 0).shape == (7, 5)
    assert len(post.labels) == C * d
    table = post.summary()
    np.testing.assert_allclose(np.asarray(table["mean"]), post.mean.ravel())
    np.testing.assert_allclose(post.precision @ post.covariance, [np.eye(d)] * C, atol=1e-9)
    np.testing.assert_allclose(np.einsum("kij,kj->ki", post.precision, post.mean), post.shift)
    assert post.loss_gradient() == {}
    assert post.n_latents == C


@BOTH
def test_latents_of_new_rows(loss):
    X, _, post = fit(loss)
    mean, variance = post.predict_latent(X)
    whole = np.concatenate([X, np.ones((len(X), 1))], axis=1)
    np.testing.assert_allclose(mean, whole @ post.mean.T)
    want = np.einsum("ni,kij,nj->nk", whole, post.covariance, whole)
    np.testing.assert_allclose(variance, want)
    center, cross = post.predict_latent(X[:9], joint=True)
    np.testing.assert_allclose(center, mean[:9])
    np.testing.assert_allclose(np.einsum("kii->ik", cross), variance[:9])
    draws = post.sample(40_000, 0)
    np.testing.assert_allclose(draws.mean(axis=0), post.mean, atol=0.03)
    np.testing.assert_allclose(draws.var(axis=0), post.variance, rtol=0.05)


def test_classes_of_new_rows():
    X, y, post = fit(CLASSES)
    p = post.predict_proba(X)
    assert p.shape == (150, 3)
    np.testing.assert_allclose(p.sum(axis=1), 1.0, rtol=1e-12)
    np.testing.assert_array_equal(post.predict(X), p.argmax(axis=1))
    rows = np.arange(150)
    np.testing.assert_allclose(post.log_predictive(X, y), np.log(p[rows, y.astype(int)]))
    assert post.score(X, y) == pytest.approx(post.log_predictive(X, y).mean())
    np.testing.assert_allclose(post.predict_variance(X), p * (1 - p))
    drawn = post.sample_y(X[:4], 40_000, 0)
    for k in range(3):
        np.testing.assert_allclose((drawn == k).mean(axis=0), p[:4, k], atol=0.015)


def test_noise_of_new_rows():
    X, y, post = fit(NOISE, 400)
    mean, variance = post.predict(X), post.predict_variance(X)
    drawn = post.sample_y(X[:4], 60_000, 0)
    np.testing.assert_allclose(drawn.mean(axis=0), mean[:4], atol=0.05)
    np.testing.assert_allclose(drawn.var(axis=0), variance[:4], rtol=0.05)
    plain = epfast.fit_linear(X, y, loss=losses.Gaussian(float(y.var())), intercept=True)
    assert post.log_evidence > plain.log_evidence
    with pytest.raises(ValueError, match="no labels"):
        post.predict_proba(X)


@BOTH
def test_left_out_rows(loss):
    """Against fits without the row."""
    X, y, post = fit(loss, 60, prior_variance=0.3)
    found, away = post.loo_log_predictive(), []
    for i in range(0, 60, 6):
        rest = np.arange(60) != i
        other = epfast.fit_linear(X[rest], y[rest], loss=loss, intercept=True, prior_variance=0.3)
        away.append(found[i] - other.log_predictive(X[i : i + 1], y[i : i + 1])[0])
    assert np.abs(away).max() < 0.2
    assert np.abs(away).mean() < 0.04


@BOTH
def test_files_and_pickles(loss, tmp_path):
    X, y, post = fit(loss)
    post.save(tmp_path / "post.npz")
    for other in (epfast.load(tmp_path / "post.npz"), pickle.loads(pickle.dumps(post))):
        assert other.loss == loss
        assert other.log_evidence == post.log_evidence
        assert other.n_sweeps == post.n_sweeps
        np.testing.assert_array_equal(other.predict(X), post.predict(X))
        with pytest.raises(ValueError, match="with_rows"):
            other.check()
        with pytest.raises(ValueError, match="X and y are needed"):
            other.loo_log_predictive()
        known = other.with_rows(X, y)
        assert known.residual == post.residual
        np.testing.assert_array_equal(known.loo_log_predictive(), post.loo_log_predictive())
        np.testing.assert_array_equal(other.loo_log_predictive(X, y), post.loo_log_predictive())
        again = epfast.fit_linear(X, y, loss=loss, intercept=True, start=other)
        assert again.n_sweeps <= post.n_sweeps + 2
        np.testing.assert_allclose(again.mean, post.mean, atol=1e-4)
        with pytest.raises(ValueError, match="rows"):
            other.with_rows(X[1:], y[1:])


@pytest.mark.full
def test_certificates():
    post = fit(NOISE, 400)[2]
    check = post.check(2000)
    # not log-concave, and other modes are not looked for
    assert check.verdict == "usable"
    assert "of this mode" in check.reason
    assert check.mean.shape == (8,)
    assert check.log_evidence == pytest.approx(post.log_evidence, abs=0.1)


def test_the_certificate_of_classes():
    post, draws = epfast.fit_linear(*data(CLASSES, 80), loss=CLASSES, prior_variance=1.0), 400
    check = post.check(draws)
    # the product over the classes is too sure of what they have in common, and the check says so
    assert check.verdict == "do not use"
    assert check.repaired
    assert check.effective_draws_repaired > 0.5 * draws
    assert (check.sd_factors > 1.0).all()
    assert check.log_evidence == pytest.approx(post.log_evidence, abs=5.0)
    draws = post.sample(5, 0)
    latent = np.einsum("skd,nd->snk", draws, post.problem.data.X)
    want = -CLASSES.values(latent, post.problem.data.y)
    # the log of a probability near 1 has the digits of that
    np.testing.assert_allclose(post.log_likelihood(draws), want, rtol=1e-12, atol=1e-15)


def test_draws_for_arviz():
    pytest.importorskip("xarray")
    post = fit(CLASSES)[2]
    found = post.to_arviz(20)
    assert "log_likelihood" in list(found.children if hasattr(found, "children") else found)


def test_names_of_columns():
    pandas = pytest.importorskip("pandas")
    X, y = data(CLASSES)
    frame = pandas.DataFrame(X, columns=["a", "b", "c"])
    post = epfast.fit_linear(frame, y, loss=CLASSES, intercept=True)
    assert post.labels[:4] == ("class 0: a", "class 0: b", "class 0: c", "class 0: intercept")
    with pytest.raises(ValueError, match="columns"):
        post.predict(frame[["b", "a", "c"]])


@BOTH
@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"weights": np.full(150, 0.5)}, "weights"),
        ({"posterior": "factorized"}, "posterior"),
        ({"batch_size": 10}, "batch_size"),
        ({"scheme": "laplace"}, "scheme"),
        ({"scheme": "importance"}, "scheme"),
        ({"schedule": epfast.ADF()}, "schedule"),
        ({"schedule": epfast.SEP()}, "schedule"),
        ({"schedule": epfast.EP(power=0.5)}, "power"),
        ({"schedule": epfast.EP(site_rule="keep")}, "site_rule"),
        ({"schedule": epfast.EP(order="sequential", block=4)}, "block"),
        ({"beta": 0.5}, "beta"),
        ({"record": "cost"}, "record"),
        ({"prior": losses.SpikeAndSlab()}, "prior"),
        ({"offset": np.zeros(150)}, "offset"),
        ({"prior_mean": np.zeros(2)}, "prior_mean"),
    ],
    ids=lambda x: "" if isinstance(x, str) else next(iter(x)),
)
def test_refused(loss, more, said):
    X, y = data(loss)
    with pytest.raises(ValueError, match=said):
        epfast.fit_linear(X, y, loss=loss, **more)


def test_refused_starts_and_rows():
    X, y, post = fit(CLASSES)
    with pytest.raises(TypeError, match="start"):
        epfast.fit_linear(X, y, loss=CLASSES, start=epfast.fit_linear(X, np.sign(X[:, 0])))
    with pytest.raises(ValueError, match="start"):
        epfast.fit_linear(X, y, loss=CLASSES, start=post)  # no intercept
    with pytest.raises(ValueError, match="start"):
        epfast.fit_linear(X[1:], y[1:], loss=CLASSES, start=post, intercept=True)
    with pytest.raises(ValueError, match="y"):
        epfast.fit_linear(X, None, loss=CLASSES)
    with pytest.raises(ValueError, match="shape"):
        epfast.fit_linear(X, np.stack([y, y], 1), loss=CLASSES)
    with pytest.raises(ValueError, match="bytes"):
        epfast.fit_linear(np.zeros((2, 20_000)), [0, 1], loss=CLASSES)
    bad = X.copy()
    bad[3, 1] = np.nan
    with pytest.raises(ValueError, match="X"):
        epfast.fit_linear(bad, y, loss=CLASSES)
    with pytest.raises(ValueError, match="scheme"):
        epfast.backend.tilted_moments(CLASSES, [0], [[0.0] * 3], [[1.0] * 3], scheme="laplace")


def test_interrupts(monkeypatch):
    X, y = data(CLASSES)
    calls = []

    def press(info, state):
        calls.append(info)
        if len(calls) == 2:
            raise KeyboardInterrupt

    with pytest.raises(epfast.Interrupted) as stopped:
        epfast.fit_linear(X, y, loss=CLASSES, callback=press)
    post = stopped.value.posterior
    assert not post.converged
    assert np.isfinite(post.log_evidence)
    again = epfast.fit_linear(X, y, loss=CLASSES, start=post)
    assert again.converged


def test_inputs_stay():
    X, y = data(CLASSES)
    kept = X.copy(), y.copy()
    post = epfast.fit_linear(X, y, loss=CLASSES)
    sites = [part.copy() for part in post.sites]
    epfast.fit_linear(X, y, loss=CLASSES, start=post, schedule=epfast.EP(sweeps=2, tol=0))
    np.testing.assert_array_equal(X, kept[0])
    np.testing.assert_array_equal(y, kept[1])
    for got, want in zip(post.sites, sites, strict=True):
        np.testing.assert_array_equal(got, want)


def test_standard_normal_noise_is_recovered():
    """Coverage of 90 % intervals by the noise that is found."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (3000, 1))
    y = X[:, 0] + np.exp(X[:, 0]) * rng.normal(size=3000)
    post = epfast.fit_linear(X, y, loss="heteroscedastic", intercept=True)
    sd = np.sqrt(post.predict_variance(X))
    inside = np.abs(y - post.predict(X)) < stats.norm.ppf(0.95) * sd
    for half in (X[:, 0] < 0, X[:, 0] > 0):
        assert inside[half].mean() == pytest.approx(0.9, abs=0.06)

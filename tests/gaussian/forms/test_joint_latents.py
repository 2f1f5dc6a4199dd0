"""Nested EP: several classes with covariances between them."""

import pickle

import numpy as np
import pytest
from scipy import sparse, special

import epfast
from epfast import losses
from epfast.gaussian.forms import nested

LOSS = losses.Multiclass(3, correlated=True)
TIGHT = epfast.EP(tol=1e-10, sweeps=500)


def data(n=60, d=3, count=3, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d))
    return X, losses.Multiclass(count, correlated=False).sample(
        X @ rng.normal(size=(d, count)), rng
    )


def test_two_classes_are_probit():
    """h_1 - h_0 is sqrt(2) times the latent of probit, of the same prior variance."""
    X, y = data(count=2)
    loss = losses.Multiclass(2, correlated=True)
    post = epfast.fit_linear(X, y, loss=loss, prior_variance=0.7, schedule=TIGHT)
    probit = epfast.fit_linear(
        X, np.where(y > 0, 1, -1), loss="probit", prior_variance=0.7, schedule=TIGHT
    )
    assert post.log_evidence == pytest.approx(probit.log_evidence, abs=1e-9)
    np.testing.assert_allclose((post.mean[1] - post.mean[0]) / np.sqrt(2), probit.mean, atol=1e-8)
    turn = np.kron([-1.0, 1.0], np.eye(3)) / np.sqrt(2)
    np.testing.assert_allclose(turn @ post.covariance @ turn.T, probit.covariance, atol=1e-9)
    np.testing.assert_allclose(post.predict_proba(X)[:, 1], probit.predict_proba(X), atol=1e-9)
    np.testing.assert_allclose(post.loo_log_predictive(), probit.loo_log_predictive(), atol=1e-8)


def test_evidence_and_moments_on_a_grid():
    rng = np.random.default_rng(1)
    X, y, product = (
        rng.normal(size=(6, 1)),
        np.array([0, 2, 1, 2, 0, 1]),
        losses.Multiclass(3, correlated=False),
    )
    grid = np.linspace(-7.0, 7.0, 57)
    theta = np.stack(np.meshgrid(grid, grid, grid, indexing="ij"), -1).reshape(-1, 3)
    latent = X[None, :, :] * theta[:, None, :]
    value = -product.values(latent, product.responses("y", y, 6)).sum(axis=1)
    total = value - 0.5 * (theta**2).sum(axis=1) - 1.5 * np.log(2 * np.pi)
    truth = special.logsumexp(total) + 3 * np.log(grid[1] - grid[0])
    weight = special.softmax(total)
    mean = weight @ theta
    covariance = (theta - mean).T @ (weight[:, None] * (theta - mean))
    post = epfast.fit_linear(X, y, loss=LOSS)
    assert post.log_evidence == pytest.approx(truth, abs=0.02)
    np.testing.assert_allclose(post.mean[:, 0], mean, atol=0.01)
    np.testing.assert_allclose(post.covariance, covariance, atol=0.01)
    # the product over the classes is further away
    other = epfast.fit_linear(X, y, loss=product)
    assert abs(other.log_evidence - truth) > abs(post.log_evidence - truth)


def test_what_classes_have_in_common_is_that_of_the_prior():
    X, y = data(400)
    post = epfast.fit_linear(X, y, loss=LOSS, prior_variance=2.0, schedule=TIGHT)
    together = np.kron(np.ones(3), np.eye(3))
    found = together @ post.covariance @ together.T
    np.testing.assert_allclose(found, 6.0 * np.eye(3), atol=1e-9)
    np.testing.assert_allclose(post.mean.sum(axis=0), 0.0, atol=1e-8)
    assert post.check().verdict == "good"


def test_all_orders_agree():
    X, y = data()
    first = epfast.fit_linear(X, y, loss=LOSS, schedule=TIGHT)
    for schedule in (
        epfast.EP(order="parallel", tol=1e-10, sweeps=2000),
        epfast.EP(damping=0.5, tol=1e-10, sweeps=2000),
    ):
        post = epfast.fit_linear(X, y, loss=LOSS, schedule=schedule)
        assert post.converged
        np.testing.assert_allclose(post.mean, first.mean, atol=1e-7)
        assert post.log_evidence == pytest.approx(first.log_evidence, abs=1e-8)
    assert first.converged
    assert first.residual < 1e-7
    assert (first.sites.precision >= 0.0).all()


def test_sweeps_that_creep_are_not_damped():
    """From a narrow prior to a wide one: the first moves grow, in one direction."""
    X, y = pytest.importorskip("sklearn.datasets").load_iris(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    given = {"loss": LOSS, "intercept": True, "schedule": epfast.EP(sweeps=200, tol=1e-6)}
    start = None
    for variance in (50.0, 2e3, 7e4):
        cold = epfast.fit_linear(X, y, prior_variance=variance, **given)
        warm = epfast.fit_linear(X, y, prior_variance=variance, start=start, **given)
        assert warm.converged
        assert len(warm.history) < 2 * len(cold.history)
        assert warm.log_evidence == pytest.approx(cold.log_evidence, abs=1e-5)
        start = warm


def test_passes_and_sweeps_that_crawl(monkeypatch):
    """Where planes separate the classes and the prior is wide; the fixed point stays."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(60, 3))
    y = np.argmax(X @ rng.normal(size=(3, 3)), axis=1)
    given = {"loss": LOSS, "prior_variance": 1e3, "schedule": epfast.EP(tol=1e-9, sweeps=500)}
    by_passes = epfast.fit_linear(X, y, **given)
    monkeypatch.setattr(nested, "MOST_CURVATURES", 0)  # no passes
    plain = epfast.fit_linear(X, y, **given)
    assert len(by_passes.history) < 0.8 * len(plain.history)
    assert by_passes.converged
    np.testing.assert_allclose(by_passes.mean, plain.mean, rtol=1e-6)
    assert by_passes.log_evidence == pytest.approx(plain.log_evidence, abs=1e-7)


def test_a_pass_with_offsets_and_sparse_rows():
    """It is exact at the fixed point: nothing moves there."""
    X, y = data()
    offset = np.random.default_rng(3).normal(size=(60, 3))
    for rows in (X, sparse.csr_array(X)):
        given = {"loss": LOSS, "offset": offset, "prior_variance": 5.0}
        post = epfast.fit_linear(rows, y, schedule=TIGHT, **given)
        loose = epfast.EP(tol=1e-3, sweeps=50)
        again = epfast.fit_linear(rows, y, schedule=loose, start=post, **given)
        assert len(again.history) == 1
        np.testing.assert_allclose(again.mean, post.mean, atol=1e-7)
        assert again.log_evidence == pytest.approx(post.log_evidence, abs=1e-8)


def test_permuted_classes():
    X, y = data(count=4)
    loss, order = losses.Multiclass(4, correlated=True), np.array([2, 0, 3, 1])
    first = epfast.fit_linear(X, y, loss=loss, schedule=TIGHT)
    other = epfast.fit_linear(X, order[y.astype(int)], loss=loss, schedule=TIGHT)
    np.testing.assert_allclose(other.mean[order], first.mean, atol=1e-7)
    assert other.log_evidence == pytest.approx(first.log_evidence, abs=1e-7)
    np.testing.assert_allclose(other.predict_proba(X)[:, order], first.predict_proba(X), atol=1e-6)


def test_offsets_and_sparse_rows():
    X, y = data()
    known = np.array([0.4, -0.2, 0.1])
    offset = np.repeat((X @ known)[:, None], 3, axis=1)
    post = epfast.fit_linear(X, y, loss=LOSS, offset=offset, schedule=TIGHT)
    other = epfast.fit_linear(X, y, loss=LOSS, prior_mean=known, schedule=TIGHT)
    np.testing.assert_allclose(post.mean + known, other.mean, atol=1e-8)
    assert post.log_evidence == pytest.approx(other.log_evidence, abs=1e-8)
    shift = np.random.default_rng(0).normal(size=(60, 3))
    moved = epfast.fit_linear(X, y, loss=LOSS, offset=shift, schedule=TIGHT)
    assert moved.check().log_evidence == pytest.approx(moved.log_evidence, abs=0.2)
    part = epfast.fit_linear(sparse.csr_matrix(X), y, loss=LOSS, schedule=TIGHT)
    whole = epfast.fit_linear(X, y, loss=LOSS, schedule=TIGHT)
    np.testing.assert_allclose(part.mean, whole.mean, atol=1e-10)


def test_predictions_are_those_of_draws():
    X, y = data()
    post = epfast.fit_linear(X, y, loss=LOSS, intercept=True)
    p = post.predict_proba(X[:5])
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    drawn = post.sample_y(X[:5], 40_000, 0)
    for k in range(3):
        np.testing.assert_allclose((drawn == k).mean(axis=0), p[:, k], atol=0.015)
    np.testing.assert_array_equal(post.predict(X[:5]), p.argmax(axis=1))
    mean, variance = post.predict_latent(X[:5])
    draws = np.concatenate([X[:5], np.ones((5, 1))], axis=1) @ post.sample(40_000, 0).swapaxes(1, 2)
    np.testing.assert_allclose(draws.mean(axis=0), mean, atol=0.15)
    np.testing.assert_allclose(draws.var(axis=0), variance, rtol=0.05)
    assert post.predict_latent(X[:5], joint=True)[1].shape == (5, 3, 3)
    np.testing.assert_allclose(
        post.log_predictive(X[:5], y[:5]), np.log(p[np.arange(5), y[:5].astype(int)])
    )
    assert post.variance.shape == (3, 4)
    assert post.covariance.shape == (12, 12)
    assert len(post.labels) == len(post.summary().index) == 12


def test_left_out_rows():
    X, y = data()
    post = epfast.fit_linear(X, y, loss=LOSS, prior_variance=0.3)
    found = post.loo_log_predictive()
    for i in range(0, 60, 12):
        rest = np.arange(60) != i
        other = epfast.fit_linear(X[rest], y[rest], loss=LOSS, prior_variance=0.3)
        assert found[i] == pytest.approx(
            other.log_predictive(X[i : i + 1], y[i : i + 1])[0], abs=0.01
        )


def test_files_and_pickles(tmp_path):
    X, y = data()
    post = epfast.fit_linear(X, y, loss=LOSS, intercept=True)
    post.save(tmp_path / "post.npz")
    for other in (epfast.load(tmp_path / "post.npz"), pickle.loads(pickle.dumps(post))):
        assert other.loss == LOSS
        assert other.log_evidence == post.log_evidence
        np.testing.assert_array_equal(other.predict_proba(X), post.predict_proba(X))
        known = other.with_rows(X, y)
        assert known.residual == post.residual
        again = epfast.fit_linear(X, y, loss=LOSS, intercept=True, start=other)
        assert again.n_sweeps <= post.n_sweeps + 2


def test_refused():
    X, y = data()
    with pytest.raises(ValueError, match="order"):
        epfast.fit_linear(X, y, loss=LOSS, schedule=epfast.EP(order="sequential"))
    with pytest.raises(ValueError, match="3000"):
        epfast.fit_linear(np.zeros((3, 1001)), [0, 1, 2], loss=LOSS)
    plain = epfast.fit_linear(X, y, loss=losses.Multiclass(3, correlated=False))
    with pytest.raises(TypeError, match="start"):
        epfast.fit_linear(X, y, loss=LOSS, start=plain)
    with pytest.raises(ValueError, match="correlated"):
        epfast.fit_gp(X @ X.T, y, loss=LOSS)
    with pytest.raises(TypeError, match="correlated"):
        losses.Multiclass(3, correlated="yes")

"""ADF in one pass: right where a diagonal posterior alone goes wrong, and chunks in any form."""

import numpy as np
import pytest

import epfast
from epfast import ADF, EP
from tests.oracles.data import classes


def independent(n, d=20, size=3.9, seed=0):
    """Independent normal columns, logistic labels, theta of this length."""
    rng = np.random.default_rng(seed)
    X, theta = rng.normal(size=(n, d)), rng.normal(size=d)
    theta *= size / np.linalg.norm(theta)
    return X, np.where(rng.random(n) < 1.0 / (1.0 + np.exp(-X @ theta)), 1.0, -1.0), theta


def excess(post, theta):
    """Test log loss above that of the truth, without the noise of labels."""
    X = np.random.default_rng(99).normal(size=(20_000, len(theta)))
    p, q = 1.0 / (1.0 + np.exp(-X @ theta)), post.predict_proba(X)
    return float((p * np.log(p / q) + (1.0 - p) * np.log((1.0 - p) / (1.0 - q))).mean())


@pytest.mark.parametrize("batch_size", [None, 10, 100])
@pytest.mark.parametrize("variance", [1.0, 25.0])
def test_a_factorised_pass_is_right(variance, batch_size):
    """Plain ADF with scalar sites and prior 25 is 111 sd off, by twice the length of theta."""
    X, y, theta = independent(100_000)
    given = {"posterior": "factorized", "prior_variance": variance, "batch_size": batch_size}
    post = epfast.fit_linear(X, y, schedule=ADF(), **given)
    assert np.abs((post.mean - theta) / np.sqrt(post.variance)).max() < 20.0
    assert excess(post, theta) < 1e-3
    chunks = ((X[i : i + 7001], y[i : i + 7001]) for i in range(0, 100_000, 7001))
    found = epfast.fit_linear(chunks, schedule=ADF(), **given)
    np.testing.assert_allclose(found.mean, post.mean, rtol=1e-10)
    if batch_size is None and variance == 25.0:
        plain = epfast.fit_linear(X, y, schedule=ADF(warm_up=0), **given)
        assert np.abs((plain.mean - theta) / np.sqrt(plain.variance)).max() > 50.0


def test_chunks_have_a_full_covariance_by_default():
    X, y, theta = independent(30_000)
    chunks = [(X[i : i + 999], y[i : i + 999]) for i in range(0, 30_000, 999)]
    whole = epfast.fit_linear(X, y, schedule=ADF())
    for given in (chunks, iter(chunks)):
        post = epfast.fit_linear(given, schedule=ADF())
        assert isinstance(post, epfast.FullPosterior)
        np.testing.assert_allclose(post.mean, whole.mean, rtol=1e-9)
        np.testing.assert_allclose(post.covariance, whole.covariance, rtol=1e-7, atol=1e-12)
        assert post.log_evidence == pytest.approx(whole.log_evidence, rel=1e-10)
    assert np.abs((post.mean - theta) / np.sqrt(post.variance)).max() < 5.0
    assert excess(post, theta) < 1e-3


@pytest.mark.parametrize("d", [5, 300])
@pytest.mark.parametrize("batch_size", [None, 8])
def test_chunks_may_be_cut_anywhere(d, batch_size):
    """Narrow and wide (half of the covariance is kept); rows in float32 and in columns."""
    X, y = classes(120, d, scale=0.3)
    given = {"posterior": "full", "batch_size": batch_size, "schedule": ADF()}
    whole = epfast.fit_linear(X, y, **given)
    for cuts in ([], [3], [1, 2, 3, 50], [64, 64, 100]):
        parts = zip(np.split(np.asfortranarray(X), cuts), np.split(y, cuts), strict=True)
        post = epfast.fit_linear(iter([(a, b) for a, b in parts if len(a)]), **given)
        np.testing.assert_allclose(post.mean, whole.mean, rtol=1e-7, atol=1e-9)
        assert post.log_evidence == pytest.approx(whole.log_evidence, rel=1e-9)
    on = epfast.fit_linear(
        iter([(X[80:], y[80:])]),
        **given,
        start=epfast.fit_linear(iter([(X[:80], y[:80])]), **given),
    )
    np.testing.assert_allclose(on.mean, whole.mean, rtol=1e-7, atol=1e-9)
    assert on.n_sweeps == 2


def test_wide_chunks_are_factorised():
    chunks = [(np.ones((2, 5001)), np.array([1.0, -1.0]))]
    post = epfast.fit_linear(chunks, schedule=ADF())
    assert isinstance(post, epfast.FactorizedPosterior)


@pytest.mark.parametrize("given", [{"posterior": "full"}, {}])
def test_what_chunks_refuse(given):
    X, y = classes(20, 3)

    def chunks():
        yield X, y

    for more, words in (
        ({"schedule": EP()}, "chunks of X"),
        ({"schedule": ADF(2)}, "schedule is .*one pass"),
        ({"schedule": ADF(order="shuffled")}, "schedule is .*sequential"),
        ({"schedule": ADF(), "weights": np.ones(20)}, "^weights"),
        ({"schedule": ADF(), "record": "cost"}, "^record"),
    ):
        with pytest.raises(ValueError, match=words):
            epfast.fit_linear(chunks(), **given, **more)
    X[7, 1] = np.inf
    with pytest.raises(ValueError, match="NaN or infinity"):
        epfast.fit_linear(chunks(), schedule=ADF(), **given)


def test_settled_rows_are_those_that_the_pass_visits_first():
    """All of them: EP. Some: EP on these, and ADF from there."""
    X, y = classes(63, 4)
    for batch_size in (None, 10):
        given = {"posterior": "factorized", "batch_size": batch_size}
        all_of_them = epfast.fit_linear(X, y, schedule=ADF(), **given)
        ep = epfast.fit_linear(X, y, schedule=EP(sweeps=20, tol=1e-2, order="sequential"), **given)
        np.testing.assert_allclose(all_of_them.mean, ep.mean, rtol=1e-12)
        assert all_of_them.log_evidence == pytest.approx(ep.log_evidence, rel=1e-12)
        ep = EP(sweeps=20, tol=1e-2, order="sequential")
        first = epfast.fit_linear(X[:30], y[:30], schedule=ep, **given)
        then = epfast.fit_linear(X[30:], y[30:], schedule=ADF(), start=first, **given)
        settled = epfast.fit_linear(X, y, schedule=ADF(warm_up=30), **given)
        np.testing.assert_allclose(settled.mean, then.mean, rtol=1e-12)
        assert settled.log_evidence == pytest.approx(then.log_evidence, rel=1e-12)
        traced = epfast.fit_linear(
            X, y, schedule=ADF(warm_up=30), record="factor", **given
        ).history[0]
        assert np.isfinite(traced.factor_cost).all()
        assert traced.factor_cost[-1] == pytest.approx(traced.cost, rel=1e-9)

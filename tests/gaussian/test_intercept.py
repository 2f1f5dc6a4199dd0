"""intercept=: a column of ones, whose weight has its prior at the means of the other columns."""

import warnings

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import ADF, DEP, EP, SEP, fit_linear
from epfast.losses import SpikeAndSlab
from tests.oracles.data import classes, prior_of_ones

X, Y = classes(80, 3)
X += [0.5, -1.0, 2.0]
ONES = np.column_stack([X, np.ones(80)])
NEW = np.random.default_rng(5).normal(size=(7, 3))
WEIGHTS = np.resize([1.0, 2.0, 0.5, 0.0], 80)
#: legal combinations of every engine of full covariances
FITS = {
    "rows": {},
    "weights": {"weights": WEIGHTS},
    "laplace": {"batch_size": 8},
    "shared": {"schedule": SEP(sweeps=20, tol=0.0)},
    "shards": {"schedule": DEP(3, tol=1e-9)},
    "adf": {"schedule": ADF()},
}
FACTORIZED = {
    "rows": {},
    "minibatches": {"batch_size": 8, "scheme": "laplace"},
    "chunks": {"batch_size": 10, "schedule": ADF(), "scheme": "laplace"},
}


def check_same(post, plain, rtol=0.0):
    """Two posteriors of the same weights, of which one was given the ones."""
    np.testing.assert_allclose(post.mean, plain.mean, rtol=rtol)
    np.testing.assert_allclose(post.covariance, plain.covariance, rtol=rtol)
    assert post.log_evidence == pytest.approx(plain.log_evidence, rel=rtol, abs=0.0)
    rows = np.column_stack([NEW, np.ones(7)])
    for got, wanted in zip(post.predict_latent(NEW), plain.predict_latent(rows), strict=True):
        np.testing.assert_allclose(got, wanted, rtol=rtol)


@pytest.mark.parametrize("is_sparse", [False, True])
@pytest.mark.parametrize(("intercept", "variance"), [(True, 100.0), (4, 4.0)])
@pytest.mark.parametrize("kind", FITS)
def test_it_is_a_column_of_ones(kind, intercept, variance, is_sparse):
    rows, ones, given = X, ONES, FITS[kind]
    if is_sparse:
        if "weights" in given or "batch_size" in given:
            pytest.skip("not with CSR rows in this form")
        rows, ones = map(sparse.csr_matrix, (X, ONES))
    prior = prior_of_ones(2.0, variance, X, given.get("weights"))
    check_same(
        fit_linear(rows, Y, prior_variance=2.0, intercept=intercept, **given),
        fit_linear(ones, Y, prior_precision=prior, **given),
        1e-11,
    )


@pytest.mark.parametrize("kind", FACTORIZED)
def test_of_a_factorised_posterior_it_has_its_prior_at_0(kind):
    given = FACTORIZED[kind] | {"posterior": "factorized"}
    data = (iter([(X[:35], Y[:35]), (X[35:], Y[35:])]),) if kind == "chunks" else (X, Y)
    check_same(
        fit_linear(*data, prior_variance=2.0, intercept=True, **given),
        fit_linear(ONES, Y, prior_variance=[2.0, 2.0, 2.0, 100.0], **given),
    )


def test_chunks_have_it_at_the_mean_of_the_first():
    chunks = iter([(X[:35], Y[:35]), (X[35:], Y[35:])])
    prior = prior_of_ones(1.0, 100.0, X[:35])
    check_same(
        fit_linear(chunks, intercept=True, schedule=ADF()),
        fit_linear(iter([(ONES, Y)]), prior_precision=prior, schedule=ADF()),
        1e-9,
    )


def test_a_prior_mean_is_of_the_slopes():
    """Beside a matrix: b + mean.w is N(mean.m, V), so that rows about their mean know no more."""
    P, m = np.eye(3) + 0.5, np.array([1.0, 0.0, -0.5])
    about = X - X.mean(axis=0)
    post = fit_linear(X, Y, prior_precision=P, prior_mean=m, intercept=True)
    wide = np.zeros((4, 4))
    wide[:3, :3], wide[3, 3] = P, 0.01
    plain = fit_linear(
        np.column_stack([about, np.ones(80)]), Y, prior_precision=wide, prior_mean=np.append(m, 0)
    )
    back = np.eye(4)
    back[3, :3] = -X.mean(axis=0)
    np.testing.assert_allclose(post.mean, back @ plain.mean, rtol=1e-9)
    np.testing.assert_allclose(post.covariance, back @ plain.covariance @ back.T, rtol=1e-8)
    assert post.log_evidence == pytest.approx(plain.log_evidence, abs=1e-9)


def test_the_posterior_goes_on_with_it(tmp_path):
    given = {"schedule": EP(tol=1e-9)}
    post = fit_linear(X, Y, prior_variance=2.0, intercept=True, **given)
    plain = fit_linear(ONES, Y, prior_precision=prior_of_ones(2.0, 100.0, X), **given)
    post.save(tmp_path / "post.npz")
    loaded = epfast.load(tmp_path / "post.npz")
    np.testing.assert_array_equal(loaded.predict_proba(NEW), post.predict_proba(NEW))
    np.testing.assert_array_equal(loaded.loo_log_predictive(X, Y), post.loo_log_predictive())
    np.testing.assert_array_equal(loaded.problem.prior.center, X.mean(axis=0))
    assert loaded.with_rows(X, Y).residual == post.residual <= 1e-8
    rows, labels = NEW, np.ones(7)
    check_same(
        post.partial_fit(rows, labels).remove([1, 2]),
        plain.partial_fit(np.column_stack([rows, np.ones(7)]), labels).remove([1, 2]),
    )
    again = fit_linear(X, Y, prior_variance=2.0, intercept=True, start=post)
    assert again.n_sweeps == post.n_sweeps + 1
    first = fit_linear(X[:40], Y[:40], intercept=True, schedule=ADF())
    second = fit_linear(X[40:], Y[40:], intercept=True, schedule=ADF(), start=first)
    np.testing.assert_array_equal(second.prior_precision, first.prior_precision)


# ---- columns far from 0 ----


def chunks_of(rows, y):
    return iter([(rows[:150], y[:150]), (rows[150:], y[150:])])


#: fits of rows and responses
FAR = {
    "dense": fit_linear,
    "CSR": lambda rows, y, **more: fit_linear(sparse.csr_matrix(rows), y, **more),
    "parallel": lambda rows, y, **more: fit_linear(
        rows, y, schedule=EP(1000, order="parallel"), **more
    ),
    "laplace": lambda rows, y, **more: fit_linear(rows, y, batch_size=10, **more),
    "shared": lambda rows, y, **more: fit_linear(rows, y, schedule=SEP(sweeps=20, tol=0.0), **more),
    "shards": lambda rows, y, **more: fit_linear(rows, y, schedule=DEP(4), **more),
    "ADF": lambda rows, y, **more: fit_linear(rows, y, schedule=ADF(), **more),
    "chunks": lambda rows, y, **more: fit_linear(chunks_of(rows, y), schedule=ADF(), **more),
    "numbers": lambda rows, y, **more: fit_linear(
        rows, y + rows[:, 1] - rows[:, 1].mean(), loss="gaussian", **more
    ),
    "classes": lambda rows, y, **more: fit_linear(
        rows, (y + np.sign(rows[:, 1] - rows[:, 1].mean()) + 2) // 2, loss="multiclass", **more
    ),
}


@pytest.mark.filterwarnings("ignore:the columns of X differ:epfast.DataWarning")
@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("kind", FAR)
def test_columns_far_from_0_change_nothing(kind, wide):
    """10^4 standard deviations: slopes stay within 1e-3 of theirs, predictions within 1e-4."""
    rng = np.random.default_rng(3)
    rows = rng.normal(size=(40, 60) if wide and kind != "chunks" else (300, 5))
    y = np.where(rows[:, 0] + 0.5 + rng.logistic(size=len(rows)) > 0, 1.0, -1.0)
    new, off = rng.normal(size=(9, rows.shape[1])), np.zeros(rows.shape[1])
    off[[0, 2]] = 1e4, -1e4
    near, far = (FAR[kind](rows + o, y, intercept=True) for o in (0.0, off))
    slopes = [np.atleast_2d(post.mean)[:, :-1] for post in (near, far)]
    spread = [np.sqrt(np.atleast_2d(post.variance)[:, :-1]) for post in (near, far)]
    assert np.abs((slopes[1] - slopes[0]) / spread[0]).max() < 1e-3
    np.testing.assert_allclose(spread[1], spread[0], rtol=1e-3)
    (m, v), (mean, variance) = near.predict_latent(new), far.predict_latent(new + off)
    assert np.abs((mean - m) / np.sqrt(v)).max() < 1e-4
    np.testing.assert_allclose(variance, v, rtol=1e-4)
    assert far.log_evidence == pytest.approx(near.log_evidence, abs=1e-3)
    draws = far.sample(4000, 0).reshape(4000, -1, rows.shape[1] + 1)
    latent = (draws @ np.append(new[0] + off, 1.0)).mean(axis=0)
    assert np.abs((latent - np.ravel(m[0])) / np.sqrt(np.ravel(v[0]))).max() < 5 / np.sqrt(4000)


def test_what_is_too_far_is_told():
    """Rounding from 1e5 standard deviations on; at once where the prior of an intercept is at 0."""
    rows = X + np.array([0.0, 3e6, 0.0])
    with pytest.warns(epfast.DataWarning, match=r"column 1 of X lies .* subtract a number"):
        fit_linear(rows, Y, intercept=True, schedule=EP(2, 0.0))
    for more in ({"posterior": "factorized"}, {"prior": SpikeAndSlab(0.5, 1.0)}):
        with pytest.warns(epfast.DataWarning, match=r"column 2 of X lies .* at the means"):
            fit_linear(X + np.array([0.0, 0.0, 30.0]), Y, intercept=True, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("error", epfast.DataWarning)
        fit_linear(np.column_stack([X, np.full(80, 7.0)]), Y, intercept=True)
        fit_linear(X + np.array([2005.0, 0.0, 0.0]), Y, intercept=True)


@pytest.mark.parametrize("wrong", [0, -1.0, np.nan, np.inf, "yes", None, [1.0]])
def test_bad_input(wrong):
    with pytest.raises((ValueError, TypeError), match=r"^intercept is "):
        fit_linear(X, Y, intercept=wrong)


def test_the_columns_are_counted_without_it():
    post = fit_linear(X, Y, intercept=True)
    with pytest.raises(ValueError, match=r"X has shape \(80, 4\); allowed: \(n, 3\)"):
        post.predict_latent(ONES)
    with pytest.raises(
        ValueError, match=r"prior_variance has shape \(4,\); allowed: a number, or shape \(3,\)"
    ):
        fit_linear(X, Y, intercept=True, prior_variance=np.ones(4))
    with pytest.raises(TypeError, match="a pair"):
        fit_linear(iter([1]), intercept=True, schedule=ADF())

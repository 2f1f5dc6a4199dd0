"""intercept=: the same fit as with a column of ones that the user appends."""

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import ADF, EP, SEP, fit_linear
from tests.oracles.data import classes

X, Y = classes(80, 3)
ONES = np.column_stack([X, np.ones(80)])
NEW = np.random.default_rng(5).normal(size=(7, 3))
#: legal combinations of every engine
FITS = {
    "rows": {},
    "laplace": {"batch_size": 8},
    "shared": {"schedule": SEP(sweeps=20, tol=0.0)},
    "adf": {"schedule": ADF()},
    "factorized": {"posterior": "factorized"},
    "minibatches": {"posterior": "factorized", "batch_size": 8, "scheme": "laplace"},
}


def both(given, intercept=True, variance=100.0, X=X, ones=ONES):
    prior = np.append(np.full(3, 2.0), variance)
    return (
        fit_linear(X, Y, prior_variance=2.0, intercept=intercept, **given),
        fit_linear(ones, Y, prior_variance=prior, **given),
    )


def check_same(post, plain):
    np.testing.assert_array_equal(post.mean, plain.mean)
    np.testing.assert_array_equal(post.covariance, plain.covariance)
    assert post.log_evidence == plain.log_evidence
    rows = np.column_stack([NEW, np.ones(7)])
    for got, wanted in zip(post.predict_latent(NEW), plain.predict_latent(rows), strict=True):
        np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("intercept", "variance"), [(True, 100.0), (4, 4.0)])
@pytest.mark.parametrize("kind", FITS)
def test_it_is_a_column_of_ones(kind, intercept, variance):
    check_same(*both(FITS[kind], intercept, variance))


def test_sparse_rows_and_chunks_and_a_matrix_prior():
    check_same(*both({}, X=sparse.csr_matrix(X), ones=sparse.csr_matrix(ONES)))
    P = np.eye(3) + 0.5
    wide = np.zeros((4, 4))
    wide[:3, :3], wide[3, 3] = P, 0.01
    check_same(
        fit_linear(X, Y, prior_precision=P, prior_mean=[1.0, 0, 0], intercept=True),
        fit_linear(ONES, Y, prior_precision=wide, prior_mean=[1.0, 0, 0, 0]),
    )
    given = {"posterior": "factorized", "batch_size": 10, "schedule": ADF(), "scheme": "laplace"}
    chunks = [(X[:35], Y[:35]), (X[35:], Y[35:])]
    post = fit_linear(iter(chunks), intercept=True, **given)
    prior = [1.0, 1.0, 1.0, 100.0]
    check_same(post, fit_linear(ONES, Y, prior_variance=prior, **given))


def test_the_posterior_goes_on_with_it(tmp_path):
    post, plain = both({"schedule": EP(tol=1e-9)})
    post.save(tmp_path / "post.npz")
    loaded = epfast.load(tmp_path / "post.npz")
    np.testing.assert_array_equal(loaded.predict_proba(NEW), post.predict_proba(NEW))
    np.testing.assert_array_equal(loaded.loo_log_predictive(X, Y), post.loo_log_predictive())
    assert loaded.with_rows(X, Y).residual == post.residual <= 1e-8
    rows, labels = NEW, np.ones(7)
    check_same(
        post.partial_fit(rows, labels).remove([1, 2]),
        plain.partial_fit(np.column_stack([rows, np.ones(7)]), labels).remove([1, 2]),
    )
    again = fit_linear(X, Y, prior_variance=2.0, intercept=True, start=post)
    assert again.n_sweeps == post.n_sweeps + 1


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

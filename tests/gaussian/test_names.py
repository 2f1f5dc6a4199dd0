"""Names of columns: from frames, through everything a posterior does."""

import pickle

import numpy as np
import pytest

import epfast
from tests.oracles.data import classes

pandas = pytest.importorskip("pandas")

NAMES = ("age", "dose", "sex")


def frame(n=60, seed=0):
    X, y = classes(n, 3, seed=seed)
    return pandas.DataFrame(X, columns=list(NAMES)), y


@pytest.mark.parametrize("covariance", ["full", "factorized"])
def test_names_survive(tmp_path, covariance):
    X, y = frame()
    post = epfast.fit_linear(X, y, posterior=covariance)
    post.save(tmp_path / "post.npz")
    others = [epfast.load(tmp_path / "post.npz"), pickle.loads(pickle.dumps(post))]
    others.append(others[0].with_rows(X, y))
    if covariance == "full":
        others += [post.partial_fit(*frame(20, seed=1)), post.remove([0, 3])]
    for other in [post, *others]:
        assert other.names == NAMES
        assert list(other.summary().index) == list(NAMES)


def test_without_a_frame_there_are_none(tmp_path):
    X, y = frame()
    for given in (X.to_numpy(), X.set_axis([0, 1, 2], axis=1), X.to_numpy().tolist()):
        post = epfast.fit_linear(given, y)
        assert post.names is None
        assert post.labels == ("x0", "x1", "x2")
        post.save(tmp_path / "post.npz")
        assert epfast.load(tmp_path / "post.npz").names is None


def test_columns_in_another_order_are_refused():
    X, y = frame()
    post = epfast.fit_linear(X, y)
    wrong = X[["dose", "age", "sex"]]
    calls = [post.predict, post.predict_latent, lambda Z: post.sample_y(Z, 1), post.remove]
    for call in calls[:3]:
        with pytest.raises(ValueError, match=r"X has the columns \('dose', 'age', 'sex'\)"):
            call(wrong)
    for call in (post.with_rows, post.partial_fit):
        with pytest.raises(ValueError, match="allowed: those that were fitted, in their order"):
            call(wrong, y)
    np.testing.assert_array_equal(post.predict(X), post.predict(X.to_numpy()))


@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("covariance", [None, "full", "factorized"])
def test_names_of_chunks(covariance, intercept):
    X, y = frame()
    how = {"schedule": epfast.ADF(), "posterior": covariance, "intercept": intercept}
    chunks = [(X[:20], y[:20]), (X[20:].to_numpy(), y[20:])]
    post = epfast.fit_linear(iter(chunks), **how)
    assert post.names == (*NAMES, "intercept")[: 3 + intercept]
    same = epfast.fit_linear([(X[:20].to_numpy(), y[:20]), chunks[1]], **how)
    assert same.names is None
    np.testing.assert_array_equal(post.mean, same.mean)
    wrong = X[["dose", "age", "sex"]]
    for call in (
        lambda: epfast.fit_linear([(X, y), (wrong, y)], **how),
        lambda: epfast.fit_linear([(wrong, y)], start=post, **how),
        lambda: epfast.fit_linear(wrong, y, start=post, **how),
    ):
        with pytest.raises(ValueError, match=r"X has the columns \('dose', 'age', 'sex'\)"):
            call()


def test_a_start_has_the_columns_of_the_fit():
    X, y = frame()
    start = epfast.fit_linear(X, y)
    with pytest.raises(ValueError, match="allowed: those that were fitted, in their order"):
        epfast.fit_linear(X[["sex", "age", "dose"]], y, start=start)
    np.testing.assert_allclose(epfast.fit_linear(X, y, start=start).mean, start.mean, atol=1e-6)
    classes = np.arange(len(y)) % 3
    start = epfast.fit_linear(X, classes, loss="multiclass")
    with pytest.raises(ValueError, match="allowed: those that were fitted, in their order"):
        epfast.fit_linear(X[["sex", "age", "dose"]], classes, loss="multiclass", start=start)

"""Classifiers and regressors in the manners of scikit-learn, by threads: no cluster is needed."""

import pickle

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.metrics import accuracy_score, r2_score

import epfast
import epfast.dask as epd
from epfast import DEP

N, D = 600, 3
RNG = np.random.default_rng(11)
CENTRES = np.array([[1.5, 0.0, 0.0], [0.0, 1.5, 0.0], [-1.0, -1.0, 0.5]])
NUMBERS = RNG.permutation(np.arange(N) % 3)
X = RNG.normal(size=(N, D)) + CENTRES[NUMBERS]
WORDS = np.array(["east", "north", "west"])[NUMBERS]
ROWS = da.from_array(X, (150, D))
TIGHT = DEP(tol=1e-8, sweeps=60)
WEIGHTS = RNG.uniform(0.2, 2.0, N)


def lazy(y):
    return da.from_array(np.asarray(y), 150)


def serial(y, weights=None, **given):
    return epfast.LinearClassifier(prior_variance=1.0, **given).fit(X, y, weights)


# ---- more than two classes ----


@pytest.mark.parametrize("loss", ["logistic", "probit"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_several_classes_are_those_of_one_machine(loss, weighted):
    weights = WEIGHTS if weighted else None
    lazy_weights = lazy(WEIGHTS) if weighted else None
    model = epd.LinearClassifier(loss=loss, schedule=TIGHT).fit(ROWS, lazy(WORDS), lazy_weights)
    plain = serial(WORDS, weights, loss=loss)
    np.testing.assert_array_equal(model.classes_, plain.classes_)
    np.testing.assert_allclose(model.coef_, plain.coef_, atol=1e-5)
    np.testing.assert_allclose(model.intercept_, plain.intercept_, atol=1e-5)
    np.testing.assert_allclose(model.coef_covariance_, plain.coef_covariance_, atol=1e-6)
    assert model.log_evidence_ == pytest.approx(plain.log_evidence_, abs=1e-4)
    assert len(model.posteriors_) == 3
    assert not hasattr(model, "posterior_")
    found = model.predict_proba(ROWS)
    assert isinstance(found, da.Array)
    assert (found.shape, found.chunks[0]) == ((N, 3), ROWS.chunks[0])
    assert 0.0 < model.coupling_ < 1.0
    assert abs(model.coupling_ - plain.coupling_) < 0.1  # which leaves each row out
    plain.coupling_ = model.coupling_
    np.testing.assert_allclose(found.compute(), plain.predict_proba(X), atol=1e-5)
    np.testing.assert_array_equal(model.predict(ROWS).compute(), plain.predict(X))
    for ours, theirs in zip(model.predict_latent(ROWS), plain.predict_latent(X), strict=True):
        np.testing.assert_allclose(ours.compute(), theirs, atol=1e-4)
    expected = accuracy_score(WORDS, plain.predict(X), sample_weight=weights)
    assert model.score(ROWS, lazy(WORDS), lazy_weights) == pytest.approx(expected)


KINDS = {
    "floats": NUMBERS * 1.5 // 1.0,
    "int8": NUMBERS.astype(np.int8) - 1,
    "bools": NUMBERS == 1,
    "strings": WORDS,
    "objects": WORDS.astype(object),
}


@pytest.mark.parametrize("kind", KINDS)
def test_labels_of_any_kind(kind):
    y = KINDS[kind]
    model = epd.LinearClassifier().fit(ROWS, lazy(y))
    assert model.classes_.tolist() == np.unique(y).tolist()
    found = model.predict(ROWS).compute()
    assert found.dtype == model.classes_.dtype
    assert model.score(ROWS, lazy(y)) == np.mean(found == y) > 0.7
    assert model.fit(ROWS, lazy(y)[:, None]).score(ROWS, lazy(y)[:, None]) > 0.7


@pytest.mark.full
def test_frames():
    dd = pytest.importorskip("dask.dataframe", reason="needs pyarrow")
    frame = pd.DataFrame(X, columns=list("abc"))
    frame["flag"] = X[:, 0] > 0
    frame["count"] = pd.array(NUMBERS, dtype="Int64")
    frame["y"] = pd.Categorical(WORDS)
    frame["text"] = WORDS
    frames = dd.from_pandas(frame, npartitions=4)
    for name in ("y", "text", "count"):
        model = epd.LinearClassifier().fit(frames[["a", "b", "c", "flag"]], frames[name])
        assert list(model.feature_names_in_) == ["a", "b", "c", "flag"]
        assert model.n_features_in_ == 4
        found = model.predict(frames[["a", "b", "c", "flag"]]).compute()
        true = frame[name].to_numpy()
        assert model.classes_.dtype == (np.int64 if name == "count" else object)
        assert model.score(frames[["a", "b", "c", "flag"]], frames[name]) == np.mean(found == true)
    assert model.fit(ROWS, lazy(WORDS)).n_features_in_ == 3
    assert not hasattr(model, "feature_names_in_")
    rest = ["a", "count"]
    posted = epd.fit_linear(frames[rest], da.from_array(KINDS["bools"] * 2.0 - 1.0, 150))
    assert posted.names == ("a", "count")
    model.fit(frames[["a", "b"]], frames["y"])
    with pytest.raises(ValueError, match=r"X has the columns \('b', 'a'\); allowed"):
        model.predict(frames[["b", "a"]])
    for name in ("text", "y"):
        with pytest.raises(TypeError, match=f"X has the column '{name}' of dtype .*; allowed: col"):
            epd.fit_linear(frames[["a", name]], frames["flag"])
        other = frames[["a", name]].rename(columns={name: "b"})
        with pytest.raises(TypeError, match="X has the column 'b' of dtype"):
            epd.predict(model.posteriors_[0], other)
    holes = frame.copy()
    holes.loc[200, "count"], holes.loc[300, "text"] = pd.NA, None
    holes = dd.from_pandas(holes, npartitions=4)
    with pytest.raises(ValueError, match="chunk 1: X holds NaN or infinity, first in row 50"):
        epd.fit_linear(holes[["a", "count"]], lazy(KINDS["bools"] * 2.0 - 1.0))
    for name, place in (("count", "chunk 1: y .* row 50"), ("text", "chunk 2: y .* row 0")):
        with pytest.raises(ValueError, match=place):
            epd.LinearClassifier().fit(holes[["a"]], holes[name])


def planted(value, dtype=None):
    y = np.array(NUMBERS, dtype=dtype or float)
    y[200] = value
    return lazy(y)


REFUSED = [
    (lazy(np.ones(N)), ValueError, r"y has 1 class, \[1.0\]; allowed: two classes or more"),
    (planted(np.nan), ValueError, "chunk 1: y holds a label that is missing, first in row 50"),
    (planted(None, object), ValueError, "chunk 1: y holds a label that is missing"),
    (planted(0.5), ValueError, "chunk 1: y holds 0.5; allowed: labels"),
    (planted(0.5, object), ValueError, "chunk 1: y holds 0.5; allowed: labels, as"),
    (planted(np.inf), ValueError, "chunk 1: y holds inf; allowed: labels"),
    (planted("a", object), TypeError, "chunk 1: y holds labels that cannot be sorted"),
    (lazy(NUMBERS * 1j), TypeError, r"chunk \d: y has dtype complex128; allowed"),
    (lazy(np.zeros(N, "M8[s]")), TypeError, r"chunk \d: y has dtype datetime64"),
    (lazy(WORDS.astype("S")), TypeError, r"chunk \d: y has dtype \|S5; allowed"),
    (lazy(np.where(np.arange(N) < 300, 7, WORDS.astype(object))), TypeError, "y holds labels of "),
    (da.stack([lazy(NUMBERS)] * 2, 1), ValueError, r"y has shape \(600, 2\); allowed: \(n,\)"),
    (lazy(NUMBERS)[:450], ValueError, "y has the row chunks"),
    (NUMBERS, TypeError, "y is an array of shape .*; allowed: a dask array"),
    (ROWS[:0, 0], ValueError, "y has the row chunks|y has no rows"),
]


@pytest.mark.parametrize(("y", "kind", "text"), REFUSED, ids=[text for _, _, text in REFUSED])
def test_labels_that_are_refused(y, kind, text):
    with pytest.raises(kind, match=text):
        epd.LinearClassifier().fit(ROWS, y)


GIVEN = [
    ({"loss": "multiclass"}, "allowed in a classifier on a cluster: .* each class against the"),
    ({"loss": "gaussian"}, "loss is .*; allowed in a classifier"),
    ({"prior_variance": "evidence"}, "prior_variance is 'evidence'; allowed on a cluster: numbers"),
    ({"client": 3}, "client is 3; allowed: a distributed.Client or None"),
    ({"intercept_variance": -1.0}, "intercept"),
]


@pytest.mark.parametrize(("given", "text"), GIVEN, ids=[text for _, text in GIVEN])
def test_settings_that_are_refused(given, text):
    with pytest.raises((TypeError, ValueError), match=text):
        epd.LinearClassifier(**given).fit(ROWS, lazy(WORDS))


def test_rows_that_are_refused():
    model = epd.LinearClassifier().fit(ROWS, lazy(WORDS))
    for call in (model.predict, model.predict_proba, model.predict_latent):
        with pytest.raises(ValueError, match="X has 2 columns; allowed: 3"):
            call(ROWS[:, :2])
        with pytest.raises(TypeError, match="X has dtype object; allowed: real numbers"):
            call(ROWS.astype(object))
    with pytest.raises(TypeError, match="post is 3; allowed: a FullPosterior"):
        epd.predict(3, ROWS)


# ---- manners of scikit-learn ----


def test_copies_and_files():
    client = object()
    model = epd.LinearClassifier(loss="probit", schedule=TIGHT, client=client)
    again = clone(model)
    assert again.client is client
    assert again.get_params()["loss"] == "probit"
    assert again.set_params(loss="logistic").loss == "logistic"
    assert is_classifier(model)
    assert is_regressor(clone(epd.LinearRegressor()))
    model.client = None
    model.fit(ROWS, lazy(WORDS))
    assert model.converged_
    assert model.n_iter_ == max(post.n_sweeps for post in model.posteriors_)
    model.client = client
    stored = pickle.loads(pickle.dumps(model))
    assert stored.client is None
    np.testing.assert_array_equal(stored.predict(ROWS), model.predict(ROWS))
    assert not hasattr(clone(model), "classes_")


def test_defaults_are_those_of_one_machine():
    """But for the prior, which is as given, and what is learnt or taken from y."""
    ours = epd.LinearClassifier().get_params()
    theirs = epfast.LinearClassifier().get_params()
    assert {k for k in ours if k in theirs and ours[k] != theirs[k]} == {"prior_variance"}
    ours, theirs = epd.LinearRegressor().get_params(), epfast.LinearRegressor().get_params()
    differ = {k for k in ours if k in theirs and ours[k] != theirs[k]}
    assert differ == {"prior_variance", "intercept_variance"}


def test_ctrl_c_leaves_the_estimator_as_it_was(monkeypatch):
    from epfast.dask import estimators

    model = epd.LinearClassifier().fit(ROWS, lazy(WORDS))
    before, calls, fit = dict(model.__dict__), [], estimators.fit_linear

    def pressed(*args, **given):
        calls.append(None)
        post = fit(*args, **given)
        if len(calls) == 2:
            raise epfast.Interrupted(post)
        return post

    monkeypatch.setattr(estimators, "fit_linear", pressed)
    with pytest.raises(epfast.Interrupted):
        model.fit(ROWS, lazy(NUMBERS))
    assert model.__dict__ == before


def test_regressor_is_that_of_one_machine():
    y = X @ [1.0, -2.0, 0.5] + 0.3 + RNG.normal(size=N)
    model = epd.LinearRegressor(schedule=TIGHT).fit(ROWS, lazy(y), lazy(WEIGHTS))
    plain = epfast.LinearRegressor(learn=(), prior_variance=1.0, intercept_variance=100.0)
    plain.fit(X, y, WEIGHTS)
    np.testing.assert_allclose(model.coef_, plain.coef_, atol=1e-8)
    assert model.intercept_ == pytest.approx(plain.intercept_, abs=1e-8)
    assert model.score(ROWS, lazy(y), lazy(WEIGHTS)) == pytest.approx(
        r2_score(y, model.predict(ROWS).compute(), sample_weight=WEIGHTS)
    )
    with pytest.raises(ValueError, match=r"loss is .*; allowed in a regressor"):
        epd.LinearRegressor(loss="probit").fit(ROWS, lazy(y))

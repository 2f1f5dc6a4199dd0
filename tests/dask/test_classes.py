"""Classifiers and regressors in the manners of scikit-learn, by threads: no cluster is needed."""

import pickle

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from scipy import sparse
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
    scales = X.std(axis=0) if weights is None else spread(weights)
    return epfast.LinearClassifier(prior_variance=scales**-2, **given).fit(X, y, weights)


def spread(weights):
    """Weighted standard deviations of the columns."""
    mean = np.average(X, axis=0, weights=weights)
    return np.sqrt(np.average((X - mean) ** 2, axis=0, weights=weights))


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
    ({"standardize": 1}, "standardize is 1; allowed: True or False"),
    ({"prior_variance": [1.0, 2.0]}, r"prior_variance has shape \(2,\); allowed: a number, or"),
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


# ---- units of columns ----

#: the last column has two values, a rare one
TABLE = np.column_stack([X, RNG.random(N) < 0.1])
UNITS = np.array([1e-6, 1e6, 1e3, 1e-3])


def latents(rows, y, model):
    rows = da.from_array(rows, (150, rows.shape[1]))
    return [np.asarray(part) for part in model.fit(rows, lazy(y)).predict_latent(rows)]


@pytest.mark.parametrize("kind", ["two", "three", "numbers", "factorized"])
def test_a_default_call_does_not_depend_on_units(kind):
    """By algebra: coefficients of columns in other units, in another order, or (a full posterior)
    from another zero are others, and latent values are the same."""
    y = {"two": NUMBERS == 0, "factorized": NUMBERS == 0, "three": NUMBERS}.get(kind)
    schedule = DEP(tol=1e-7, sweeps=60)
    model, moves = (
        epd.LinearClassifier(schedule=schedule),
        TABLE.std(axis=0) * [1.0, -1.0, 1.0, 1.0],
    )
    if y is None:
        model, y = epd.LinearRegressor(schedule=schedule), X @ [1.0, -1.0, 0.5]
        y += RNG.normal(size=N)
    others = [TABLE * UNITS, TABLE[:, [2, 0, 3, 1]]]
    if kind == "factorized":
        model.set_params(posterior=kind)
    else:
        others += [TABLE + 1e3 * moves, (TABLE + 1e6 * moves) * UNITS]
    mean, variance = latents(TABLE, y, model)
    for rows in others:
        theirs = latents(rows, y, model)
        np.testing.assert_allclose(theirs[0], mean, rtol=0.0, atol=1e-6 * mean.std())
        np.testing.assert_allclose(theirs[1], variance, rtol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("centred", [False, True])
def test_scales_are_those_of_all_rows(centred, weighted):
    """In chunks, one of which has no row; of the column with two values by half its range."""
    sizes, weights = (100, 0, 340, 160), WEIGHTS * (np.arange(N) % 3 > 0)
    given = (da.from_array(weights, (sizes,)),) if weighted else ()
    rows, y = da.from_array(TABLE, (sizes, 4)), da.from_array(X[:, 0], (sizes,))
    model = epd.LinearRegressor(fit_intercept=centred).fit(rows, y, *given)
    shares = weights / weights.sum() if weighted else np.full(N, 1.0 / N)
    about = shares @ TABLE if centred else 0.0
    scales = np.sqrt(shares @ (TABLE - about) ** 2)
    scales[3] = 0.5 if centred else np.sqrt(0.5)
    np.testing.assert_allclose(model.column_scale_, scales, rtol=1e-12)
    assert (model.prior_variance_, model.standardize_) == (1.0, True)


def test_posteriors_are_those_of_the_columns_as_they_are():
    """Fits are of dense columns less their means. Beside each other: the same rows as CSR."""
    sparse_rows = (ROWS + 2.0).map_blocks(sparse.csr_matrix)
    dense, csr = (
        epd.LinearClassifier(schedule=TIGHT).fit(rows, lazy(NUMBERS == 0)).posterior_
        for rows in (ROWS + 2.0, sparse_rows)
    )
    np.testing.assert_allclose(dense.mean, csr.mean, rtol=1e-6)
    np.testing.assert_allclose(dense.precision, csr.precision, rtol=1e-6)
    np.testing.assert_allclose(dense.covariance, csr.covariance, rtol=1e-6)
    np.testing.assert_allclose(dense.prior_precision, csr.prior_precision, rtol=1e-12)
    total = dense.prior_precision + dense.sites.precision.sum(axis=0)
    np.testing.assert_allclose(total, dense.precision, rtol=1e-9)
    np.testing.assert_allclose(dense.predict_proba(X + 2.0), csr.predict_proba(X + 2.0), rtol=1e-6)


def test_predictions_far_from_0_survive_a_pickle():
    rows = da.from_array(TABLE + 1e6, (150, 4))
    model = epd.LinearClassifier().fit(rows, lazy(NUMBERS == 0))
    again = pickle.loads(pickle.dumps(model))
    for ours, theirs in zip(again.predict_latent(rows), model.predict_latent(rows), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    assert again.posterior_.log_evidence == model.log_evidence_


def test_a_number_is_in_the_units_of_columns():
    """Unless it is said to be that of standardised ones, as what was fitted says."""
    first = epd.LinearClassifier().fit(ROWS, lazy(WORDS))
    given = {"prior_variance": first.prior_variance_, "standardize": first.standardize_}
    again = epd.LinearClassifier(**given).fit(ROWS, lazy(WORDS))
    raw = epd.LinearClassifier(prior_variance=1.0 / first.column_scale_**2).fit(ROWS, lazy(WORDS))
    for model in (again, raw):
        np.testing.assert_allclose(model.coef_, first.coef_, rtol=1e-4)
    assert (raw.standardize_, raw.column_scale_.tolist()) == (False, [1.0] * D)
    unit = epd.LinearClassifier(standardize=False).fit(ROWS, lazy(WORDS))
    given = epd.LinearClassifier(prior_variance=1.0).fit(ROWS, lazy(WORDS))
    np.testing.assert_allclose(unit.coef_, given.coef_, rtol=1e-4)
    assert np.abs(unit.coef_ / first.coef_ - 1.0).max() > 1e-3


def test_what_is_wrong_in_a_chunk_is_told_with_its_number():
    bad = X.copy()
    bad[310, 1] = np.nan
    with pytest.raises(ValueError, match="chunk 2: X holds"):
        epd.LinearClassifier().fit(da.from_array(bad, (150, D)), lazy(WORDS))


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
    """But for what is learnt or taken from y."""
    ours = epd.LinearClassifier().get_params()
    theirs = epfast.LinearClassifier().get_params()
    assert not [k for k in ours if k in theirs and ours[k] != theirs[k]]
    ours, theirs = epd.LinearRegressor().get_params(), epfast.LinearRegressor().get_params()
    assert [k for k in ours if k in theirs and ours[k] != theirs[k]] == ["intercept_variance"]


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
    given = {"prior_variance": spread(WEIGHTS) ** -2.0, "intercept_variance": 100.0}
    plain = epfast.LinearRegressor(learn=(), **given)
    plain.fit(X, y, WEIGHTS)
    np.testing.assert_allclose(model.coef_, plain.coef_, atol=1e-8)
    assert model.intercept_ == pytest.approx(plain.intercept_, abs=1e-8)
    assert model.score(ROWS, lazy(y), lazy(WEIGHTS)) == pytest.approx(
        r2_score(y, model.predict(ROWS).compute(), sample_weight=WEIGHTS)
    )
    with pytest.raises(ValueError, match=r"loss is .*; allowed in a regressor"):
        epd.LinearRegressor(loss="probit").fit(ROWS, lazy(y))

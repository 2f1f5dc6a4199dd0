"""Models of rows on a cluster predict rows in memory: no cluster is needed."""

import pickle

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import epfast
import epfast.dask as epd

N = 300
RNG = np.random.default_rng(5)
X = RNG.normal(size=(N, 3))
FRAME = pd.DataFrame(X, columns=["a", "b", "c"])
ROWS, FRAMES = da.from_array(X, (100, 3)), dd.from_pandas(FRAME, npartitions=3)
TWO = np.where(X[:, 0] + RNG.logistic(size=N) > 0.0, "yes", "no")
Y = {
    "two": TWO,
    "three": np.where(X[:, 1] > 0.8, "may", TWO),
    "numbers": X @ [1.0, -2.0, 0.5] + RNG.normal(size=N),
}
#: the same rows
FORMS = {
    "array": X,
    "single": X.astype(np.float32),
    "list": X.tolist(),
    "frame": FRAME,
    "csr": sparse.csr_matrix(X),
    "csc": sparse.csc_array(X),
}
METHODS = ["predict", "predict_proba", "predict_log_proba", "decision_function"]
METHODS += ["predict_latent", "predict_variance"]


def lazy(y, framed):
    return dd.from_pandas(pd.Series(y), npartitions=3) if framed else da.from_array(y, 100)


def fitted(name, framed):
    """A model that was fitted to collections, after it came from a file."""
    kind = epd.LinearRegressor if name == "numbers" else epd.LinearClassifier
    model = kind().fit(FRAMES if framed else ROWS, lazy(Y[name], framed))
    return pickle.loads(pickle.dumps(model))


def close(found, wanted, form):
    if found.dtype.kind in "UO":
        return (found == wanted).all()
    return np.allclose(found, wanted, rtol=0.0, atol=1e-5 if form == "single" else 1e-10)


@pytest.mark.parametrize("framed", [False, True], ids=["arrays", "frames"])
@pytest.mark.parametrize("name", Y)
def test_rows_in_memory_are_predicted_at_once(name, framed):
    """As the same rows are in a collection, which stay lazy."""
    model = fitted(name, framed)
    for method in (method for method in METHODS if hasattr(model, method)):
        later = getattr(model, method)(FRAMES if framed else ROWS)
        pairs = isinstance(later, tuple)
        assert all(isinstance(part, da.Array) for part in (later if pairs else [later]))
        wanted = np.stack(dask.compute(*later)) if pairs else later.compute()
        for form, rows in FORMS.items():
            found = getattr(model, method)(rows)
            assert all(type(part) is np.ndarray for part in (found if pairs else [found]))
            assert close(np.stack(found) if pairs else found, wanted, form), (method, form)


@pytest.mark.parametrize("name", Y)
def test_scores_in_memory(name):
    model, weights = fitted(name, False), np.arange(N) % 3.0
    wanted = model.score(ROWS, lazy(Y[name], False), lazy(weights, False))
    for rows in FORMS.values():
        for y in (Y[name], Y[name].tolist(), pd.Series(Y[name]), Y[name][:, None]):
            assert model.score(rows, y, weights) == pytest.approx(wanted, abs=1e-6)


def test_posteriors_take_both():
    signs = np.where(TWO == "yes", 1, -1)
    for post in (
        epd.fit_linear(FRAMES, lazy(signs, True)),
        epd.fit_linear(FRAMES, lazy(signs, True), posterior="factorized"),
        epfast.fit_linear(FRAME, signs),
    ):
        for function in (epd.predict, epd.predict_proba, epd.predict_latent):
            wanted, later = function(post, X), getattr(post, function.__name__)(FRAMES)
            np.testing.assert_allclose(np.asarray(dask.compute(later)[0]), wanted, atol=1e-10)
            np.testing.assert_array_equal(function(post, FRAME), wanted)
        assert isinstance(post.predict_variance(ROWS), da.Array)
        with pytest.raises(TypeError, match=r"X is a Dask Array; allowed: what is in memory"):
            post.score(ROWS, signs)
        with pytest.raises(TypeError, match=r"X is a Dask Array; allowed: what is in memory"):
            post.predict_latent(ROWS, joint=True)


def test_what_does_not_fit_is_refused():
    model, other = fitted("two", True), FRAME[["b", "a", "c"]]
    for call in (model.predict, model.predict_latent, lambda rows: model.score(rows, TWO)):
        for rows in (other, dd.from_pandas(other, npartitions=3)):
            with pytest.raises(ValueError, match=r"X has the columns \('b', 'a', 'c'\); allowed"):
                call(rows)
        with pytest.raises(ValueError, match=r"X has shape \(300, 2\); allowed: \(n, 3\)"):
            call(X[:, :2])
    for rows, text in (
        (X[0], r"X has shape \(3,\); allowed: \(n, 3\)"),
        ([["a", "b", "c"]], "X has dtype <U1; allowed: real numbers"),
        (np.full((1, 3), np.nan), "X holds NaN or infinity"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            model.predict_proba(rows)
    assert model.predict(X[:0]).shape == (0,)
    assert model.predict_proba(X[:0]).shape == (0, 2)
    for y, weights, text in (
        (TWO[:5], None, r"y has shape \(5,\); allowed: \(300,\), one per row"),
        (lazy(TWO, False), None, "y is a Dask Array; allowed: what is in memory"),
        (TWO, -np.ones(N), "sample_weight holds numbers below 0"),
        (TWO, np.zeros(N), "sample_weight adds up to 0"),
    ):
        with pytest.raises((TypeError, ValueError), match=text):
            model.score(X, y, weights)


@pytest.mark.parametrize(
    "fit",
    [
        lambda X, y: epfast.fit_linear(X, y, loss="gaussian"),
        lambda X, y: epfast.fit_linear(X, y, loss="gaussian", schedule=epfast.ADF()),
        lambda X, y: epfast.fit_network(X, y),
        *(
            lambda X, y, kind=kind: kind().fit(X, y)
            for kind in (
                *(epfast.LinearClassifier, epfast.LinearRegressor, epfast.GPClassifier),
                *(epfast.GPRegressor, epfast.NetworkClassifier, epfast.NetworkRegressor),
            )
        ),
    ],
)
def test_fits_in_memory_name_those_of_collections(fit):
    """They would compute the whole collection here, in silence."""
    y = np.where(TWO == "yes", 1, -1)
    for rows, responses, name in (
        (ROWS, da.from_array(y, 100), "X is a Dask Array"),
        (FRAMES, dd.from_pandas(pd.Series(y), npartitions=3), "X is a Dask DataFrame"),
        (X, da.from_array(y, 100), "y is a Dask Array"),
        (FRAME, dd.from_pandas(pd.Series(y), npartitions=3), "y is a Dask Series"),
    ):
        with pytest.raises(TypeError, match=f"{name}; allowed: .*epfast.dask.fit_linear"):
            fit(rows, responses)

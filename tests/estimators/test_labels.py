"""Labels of classes: two of them are told apart without a sort, as np.unique does."""

import re
import warnings
from functools import partial

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_iris
from sklearn.gaussian_process.kernels import RBF

import epfast
from epfast import GPClassifier, LinearClassifier
from epfast.estimators import base

KINDS = {
    "numbers": [3.5, -2.5],
    "whole numbers": [7, -1],
    "unsigned": [np.uint8(200), np.uint8(3)],
    "truth": [False, True],
    "words": ["spam", "ham"],
    "three": [2, 0, 1],
    "three words": ["c", "a", "b"],
    "zeros of both signs": [0.0, -0.0, 1.0],
    "one": [5],
    "objects": np.array(["b", "a"], dtype=object),
    "not a number": [1.0, np.nan],
}


@pytest.mark.parametrize("kind", KINDS)
def test_numbered_as_numpy_does(kind):
    rng = np.random.default_rng(0)
    for n in (1, 2, 3, 17):
        labels = rng.choice(np.asarray(KINDS[kind]), size=n)
        classes, index = base.numbered(labels)
        want, places = np.unique(labels, return_inverse=True)
        assert classes.dtype == want.dtype
        assert index.dtype == places.dtype
        np.testing.assert_array_equal(classes, want)
        np.testing.assert_array_equal(index, places)


@pytest.mark.parametrize("kind", ["numbers", "words", "truth"])
def test_two_labels_are_not_sorted(kind, monkeypatch):
    labels = np.asarray(KINDS[kind])[np.random.default_rng(1).integers(0, 2, 50)]
    if kind == "numbers":
        labels = np.sign(labels)
    sizes, unique = [], np.unique

    def watched(given, *args, **named):
        sizes.append(np.size(given))
        return unique(given, *args, **named)

    monkeypatch.setattr(np, "unique", watched)
    X = np.random.default_rng(2).normal(size=(50, 3))
    model = LinearClassifier(prior_variance=1.0).fit(X, labels)
    assert max(sizes, default=0) <= 3
    assert list(model.classes_) == sorted(set(labels.tolist()))


def test_fractions_are_no_labels():
    X = np.random.default_rng(2).normal(size=(4, 2))
    with pytest.raises(ValueError, match="continuous"):
        LinearClassifier().fit(X, [0.5, 1.5, 0.5, 1.5])


@pytest.mark.parametrize("kind", ["linear", "process", "network"])
def test_one_posterior_or_one_for_each_class(kind):
    iris = load_iris()
    model = {
        "linear": LinearClassifier(),
        "process": epfast.GPClassifier(RBF(2.0), optimizer=None),
        "network": epfast.NetworkClassifier(hidden=(5,), random_state=0),
    }[kind]
    with pytest.raises(AttributeError, match="is not fitted, so it has no posterior_"):
        _ = model.posterior_
    rows = slice(0, 150, 5)
    model.fit(iris.data[rows], iris.target[rows])
    with pytest.raises(AttributeError, match=r"3 classes against the rest, .*posteriors_"):
        _ = model.posterior_
    assert len(model.posteriors_) == 3
    model.fit(iris.data[rows], iris.target[rows] == 1)
    assert model.posterior_ is model.posteriors_[0]


@pytest.mark.parametrize(
    "model",
    [LinearClassifier(prior_variance=1.0), epfast.GPClassifier(4.0 * RBF(1.0), optimizer=None)],
)
@pytest.mark.parametrize("dead", ["a", "b", "c"])
@pytest.mark.parametrize("given", ["sample_weight", "class_weight"])
def test_a_class_of_weight_0_stays_with_probability_0(model, dead, given):
    """The others have the probabilities of a fit without its rows, which says what is right."""
    rng = np.random.default_rng(3)
    X, far = rng.normal(size=(60, 3)), 10.0 * rng.normal(size=(200, 3))
    y = np.array(["b", "d", "a", "c"])[np.argmax(X @ rng.normal(size=(3, 4)), axis=1)]
    fitted = clone(model)
    if given == "class_weight":
        fitted.set_params(class_weight={dead: 0.0}).fit(X, y)
    else:
        fitted.fit(X, y, sample_weight=np.where(y == dead, 0.0, 1.0))
    keep = y != dead
    plain = clone(model).fit(X[keep], y[keep])
    assert list(fitted.classes_) == ["a", "b", "c", "d"]
    place = list(fitted.classes_).index(dead)
    p, q = fitted.predict_proba(far), plain.predict_proba(far)
    assert (p[:, place] == 0.0).all()
    np.testing.assert_allclose(np.delete(p, place, axis=1), q, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(fitted.predict(far), plain.predict(far))
    scores = fitted.decision_function(far)
    assert scores.shape == (200, 4)
    assert (scores[:, place] == -np.inf).all()
    assert (fitted.predict_log_proba(far)[:, place] == -np.inf).all()


@pytest.mark.parametrize("kind", [LinearClassifier, epfast.GPClassifier])
def test_two_classes_of_three_are_left(kind):
    rng = np.random.default_rng(4)
    X = rng.normal(size=(40, 2))
    y = np.digitize(X[:, 0] + rng.normal(size=40), [-0.5, 0.5])
    model = kind().fit(X, y, sample_weight=(y != 1) * 1.0)
    p = model.predict_proba(X)
    assert p.shape == model.decision_function(X).shape == (40, 3)
    assert (p[:, 1] == 0.0).all()
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    assert set(model.predict(X)) == {0, 2}
    for weights, said in (((y == 1) * 1.0, r"1 class, \[1\]"), (0.0 * y, "sample_weight is zero")):
        with pytest.raises(ValueError, match=said):
            kind().fit(X, y, sample_weight=weights)
    with pytest.raises(ValueError, match="class_weight is"):
        kind(class_weight={0: 0.0, 1: 0.0, 2: 0.0}).fit(X, y)
    if kind is LinearClassifier:
        with pytest.raises(ValueError, match=r"rows of \[1\] all had weight 0 in fit"):
            model.partial_fit(X, y)


# ---- weights that are no counts ----

SHARES = np.random.default_rng(6).uniform(0.2, 2.0, 60)
#: what is given to fit, and to the estimator, and what is said
WEIGHTS = {
    "fractions": ({"sample_weight": SHARES}, {}, "sample_weight holds weights that are no counts"),
    "balanced": ({}, {"class_weight": "balanced"}, "class_weight is 'balanced'.*Threshold"),
    "by class": ({}, {"class_weight": {0: 1, 1: 5}}, r"class_weight is \{0: 1, 1: 5\}"),
    "counts": ({"sample_weight": np.arange(60) % 4}, {}, None),
    "ones": ({"sample_weight": np.ones(60)}, {"class_weight": {0: 1, 1: 1}}, None),
    "none": ({}, {}, None),
}


@pytest.mark.full
@pytest.mark.parametrize("kind", [LinearClassifier, epfast.GPClassifier])
@pytest.mark.parametrize("name", WEIGHTS)
def test_weights_that_are_no_counts_are_named(kind, name):
    """In a warning, below the summary, and where the verdict of a check is."""
    rng = np.random.default_rng(5)
    X = rng.normal(size=(60, 2))
    y = (X[:, 0] + rng.logistic(size=60) > 1.0).astype(int)
    to_fit, to_model, said = WEIGHTS[name]
    if kind is LinearClassifier:
        model = kind(prior_variance=1.0, **to_model)
    else:
        model = kind(1.0 * RBF(1.0), optimizer=None, **to_model)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(X, y, **to_fit)
    told = [str(w.message) for w in caught if issubclass(w.category, epfast.DataWarning)]
    assert [bool(re.search(said or "", text)) for text in told] == [True] * (said is not None)
    last = model.posterior_.summary().attrs["notes"][-1]
    if kind is LinearClassifier:
        notes = model.summary().attrs["notes"]
        assert ("class_weight is" in notes[-1]) == ("class_weight" in to_model)
    check = model.posterior_.check(200)
    fractions = name in ("fractions", "balanced")
    assert ("no counts" in last) == ("no counts" in str(check)) == fractions
    assert check.verdict == "good"


def test_summaries_say_what_is_modelled():
    rng = np.random.default_rng(5)
    X = rng.normal(size=(90, 2))
    kinds = np.array(["a", "b", "c"])[(X + rng.normal(size=(90, 2)) > 0.0).sum(axis=1)]
    two = LinearClassifier(prior_variance=1.0).fit(X, kinds == "c")
    assert two.summary().attrs["notes"][-1] == "coefficients are for True, against False"
    assert two.summary()["mean"]["x0"] > 0.0
    many = LinearClassifier(prior_variance=1.0).fit(X, kinds).summary()
    for kind, table in many.items():
        assert table.attrs["notes"][-1] == f"coefficients are for {kind!r}, against the rest"
    assert many["a"]["mean"]["x0"] < 0.0 < many["c"]["mean"]["x0"]
    joint = LinearClassifier(prior_variance=1.0, loss="multiclass").fit(X, kinds)
    assert joint.summary().attrs["notes"][-1] == "class 0 is 'a', class 1 is 'b', class 2 is 'c'"


def test_weights_of_the_functions():
    X, y = np.random.default_rng(5).normal(size=(60, 2)), np.where(np.arange(60) % 3, 1, -1)
    K = X @ X.T + np.eye(60)
    fits = [
        partial(epfast.fit_linear, X, y, intercept=True),
        partial(epfast.fit_gp, K, y),
        partial(epfast.fit_gp, K, y, rank=60),
    ]
    for fit in fits:
        with pytest.warns(epfast.DataWarning, match="no counts, as") as caught:
            fit(weights=SHARES)
        assert caught[0].filename == __file__
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            fit(weights=np.arange(60) % 3)


def test_columns_of_text_are_named():
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame({"age": [30.0, 40.0, 50.0], "plan": ["a", "b", "a"]})
    for model in (LinearClassifier(), GPClassifier()):
        with pytest.raises(ValueError, match=r"no numbers in the columns plan; .*OneHotEncoder"):
            model.fit(frame, [0, 1, 0])


@pytest.mark.filterwarnings("ignore::epfast.estimators.EvidenceWarning")
@pytest.mark.parametrize(
    "kind", [epfast.LinearRegressor, epfast.GPRegressor, epfast.NetworkRegressor]
)
def test_two_outputs_are_not_values_and_variances(kind):
    X = np.linspace(0.0, 1.0, 12)[:, None]
    pair = np.column_stack([np.random.default_rng(0).normal(size=12), 1.0 + X[:, 0]])
    with pytest.raises(ValueError, match=r"y has 2 columns; .*MultiOutputRegressor"):
        kind().fit(X, pair)
    if kind is epfast.NetworkRegressor:  # has no loss
        return
    assert np.isfinite(kind(loss=epfast.losses.Gaussian()).fit(X, pair).predict(X)).all()

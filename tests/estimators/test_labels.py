"""Labels of classes: two of them are told apart without a sort, as np.unique does."""

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.gaussian_process.kernels import RBF

import epfast
from epfast import LinearClassifier
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

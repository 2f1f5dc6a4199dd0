"""Rows and responses in units whose squares are no doubles."""

import numpy as np
import pytest
from scipy import sparse

from epfast import GPClassifier, GPRegressor, LinearClassifier, LinearRegressor

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3))
Y = X[:, 0] + RNG.normal(size=40)
LABELS = Y > 0
MODELS = {
    "linear classifier": (LinearClassifier, LABELS),
    "linear regressor": (LinearRegressor, Y),
    "process classifier": (GPClassifier, LABELS),
    "process regressor": (GPRegressor, Y),
}


@pytest.mark.parametrize("unit", [1e-200, 1e200])
@pytest.mark.parametrize("name", MODELS)
def test_units_without_squares_are_refused(name, unit):
    """They gave fits that knew nothing, a KeyError or an OverflowError."""
    kind, y = MODELS[name]
    with pytest.raises(ValueError, match=r"X has numbers up to .*allowed: .*another unit"):
        kind().fit(unit * X, y)
    if y is Y:
        with pytest.raises(ValueError, match=r"y varies by .*allowed: .*another unit"):
            kind().fit(X, unit * y)


@pytest.mark.parametrize("unit", [1e-60, 1e60])
@pytest.mark.parametrize("name", ["linear classifier", "linear regressor", "process regressor"])
def test_other_units_change_no_prediction(name, unit):
    kind, y = MODELS[name]
    model, same = kind().fit(X, y), kind().fit(unit * X, y)
    np.testing.assert_allclose(same.predict(unit * X), model.predict(X), rtol=1e-4, atol=1e-4)


def test_sparse_rows_have_a_size_too():
    with pytest.raises(ValueError, match="X has numbers up to"):
        LinearRegressor().fit(sparse.csr_matrix(1e200 * X), Y)


# ---- numbers at the ends of the range of doubles, and what is no number ----

ENDS = {
    "sample_weight": (
        lambda kind: kind().fit(ROWS, TARGETS[kind], 1e-300),
        "sample_weight has a m",
    ),
    "infinite": (lambda kind: kind().fit(ROWS, TARGETS[kind], np.inf), "sample_weight has a max"),
    "two": (lambda kind: kind().fit(ROWS, TARGETS[kind], np.ones((20, 2))), "sample_weight cannot"),
    "text": (lambda kind: kind().fit("a", TARGETS[kind]), "X or y cannot be used"),
    "imaginary": (lambda kind: kind().fit(1j * ROWS, TARGETS[kind]), "X or y cannot be used"),
    "long": (lambda kind: kind().fit([[10**400]] * 20, TARGETS[kind]), "X or y cannot be used"),
    "object": (lambda kind: kind().fit(object(), TARGETS[kind]), "X or y cannot be used"),
    "short": (lambda kind: kind().fit(ROWS, TARGETS[kind][:-1]), "X or y cannot be used"),
    "new": (lambda kind: kind().fit(ROWS, TARGETS[kind]).predict("a"), "X cannot be used"),
}
ROWS = np.random.default_rng(2).normal(size=(20, 2))
TARGETS = dict.fromkeys([LinearClassifier, GPClassifier], np.arange(20) % 2)
TARGETS |= dict.fromkeys([LinearRegressor, GPRegressor], ROWS[:, 0] + 0.1 * np.arange(20))


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.parametrize("kind", TARGETS)
def test_the_argument_is_named(kind, name):
    """No error of NumPy, SciPy or scikit-learn alone."""
    door, said = ENDS[name]
    with pytest.raises((TypeError, ValueError), match=said):
        door(kind)


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", [LinearRegressor, GPRegressor])
@pytest.mark.parametrize("size", [1e308, 1e-300])
def test_sizes_of_numbers_are_named(kind, size):
    fit, y = kind().fit, TARGETS[kind]
    with pytest.raises(ValueError, match=r"^y is constant, of size .*; allowed: from"):
        fit(ROWS, np.full(20, size))
    if size > 1.0:
        with pytest.raises(ValueError, match=r"^offset holds 1e\+308; allowed: up to 1e\+150"):
            fit(ROWS, y, offset=np.full(20, size))
    for learn in (np.ones((2, 2)), np.ones(3), [size]):
        with pytest.raises((TypeError, ValueError), match=r"^learn "):
            kind(learn=learn).fit(ROWS, y)
    if kind is GPRegressor:
        with pytest.raises(ValueError, match=r"^random_state is "):
            kind(random_state=size).fit(ROWS, y)

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

"""The demonstration: its optima do not hang on the last bits."""

import numpy as np
import pytest

import epfast
from epfast import _demo


@pytest.mark.slow
def test_the_quasi01_optimum_is_one_whatever_the_rounding():
    data = pytest.importorskip("sklearn.datasets")
    features, target = data.load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(0)
    X = features - features.mean(axis=0)
    X /= np.linalg.norm(X, axis=0)
    X = np.hstack([X, np.ones((len(X), 1))]) * (1.0 + 1e-12 * rng.normal(size=(len(X), 31)))
    y = np.where(target == 0, 1.0, -1.0)
    hinge = _demo._optimum(epfast.Hinge(), X, y, np.zeros(31))
    assert _demo._cost(epfast.Hinge(), X, y)(hinge) == pytest.approx(54.7298, abs=1e-3)
    loss = epfast.Quasi01(epsilon=0.1)
    found = _demo._optimum(loss, X, y, hinge)
    assert _demo._cost(loss, X, y)(found) == pytest.approx(12.0006, abs=1e-3)

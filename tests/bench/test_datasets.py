"""The public data sets, as bench.lib.datasets reads them."""

import numpy as np
import pytest

from bench.lib import datasets

pytestmark = pytest.mark.slow

SHAPES = {
    "haberman": (306, 4),
    "ionosphere": (351, 33),
    "wdbc": (569, 31),
    "bank": (45211, 43),
    "census": (32561, 101),
}
# rows, features, rows with y = +1
RAW = {
    "australian": (690, 14, 307),
    "breast": (683, 9, 239),
    "crabs": (200, 6, 100),
    "haberman": (306, 3, 81),
    "heart": (270, 13, 120),
    "ionosphere": (351, 34, 225),
    "pima": (768, 8, 268),
    "pima_ripley": (532, 7, 177),
    "sonar": (208, 60, 111),
    "spam": (4601, 57, 1813),
}


@pytest.fixture(params=SHAPES)
def dataset(request, data_folder):
    return datasets.load(request.param)


def test_encoding(dataset):
    assert dataset.X.shape == SHAPES[dataset.name]
    np.testing.assert_array_equal(dataset.X[:, -1], 1.0)
    np.testing.assert_allclose(np.linalg.norm(dataset.X[:, :-1], axis=0), 1.0)
    np.testing.assert_allclose(dataset.X[:, :-1].sum(axis=0), 0.0, atol=1e-10)
    assert set(np.unique(dataset.y)) == {-1.0, 1.0}


@pytest.mark.parametrize("name", RAW)
def test_raw_tables(data_folder, name):
    raw = datasets.load_raw(name)
    assert (*raw.X.shape, int((raw.y > 0).sum())) == RAW[name]
    assert set(np.unique(raw.y)) == {-1.0, 1.0}
    assert len(raw.columns) == raw.X.shape[1]
    assert np.isfinite(raw.X).all()


def test_mnist(data_folder):
    mnist = datasets.load_mnist()
    assert mnist.X.shape == (60000, 784)
    assert mnist.X_test.shape == (10000, 784)
    assert mnist.X.max() == 255
    assert np.bincount(mnist.digit)[:3].tolist() == [5923, 6742, 5958]
    assert np.bincount(mnist.digit_test)[:3].tolist() == [980, 1135, 1032]

"""The public data sets, as bench.lib.datasets reads them."""

import numpy as np
import pytest

from bench.lib import datasets

pytestmark = pytest.mark.full

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
    "spambase": (4601, 57, 1813),
}
# rows, numbers, 0/1 columns, rows with y = +1
MIXED = {
    "ionosphere": (351, 34, 0, 225),
    "sonar": (208, 60, 0, 111),
    "wdbc": (569, 30, 0, 212),
    "breast": (683, 9, 0, 239),
    "pima": (768, 8, 0, 268),
    "heart": (270, 13, 0, 120),
    "haberman": (306, 3, 0, 81),
    "australian": (690, 14, 0, 307),
    "blood": (748, 4, 0, 178),
    "fertility": (100, 9, 0, 12),
    "crabs": (200, 5, 1, 100),
    "banknote": (1372, 4, 0, 610),
    "spambase": (4601, 57, 0, 1813),
    "adult2000": (2000, 6, 94, 491),
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


@pytest.mark.parametrize("name", datasets.MIXED)
def test_numbers_and_categories(data_folder, name):
    mixed = datasets.load_mixed(name)
    counts = (*mixed.numbers.shape, mixed.levels.shape[1], int((mixed.y > 0).sum()))
    assert counts == MIXED[name]
    assert len(mixed.levels) == len(mixed.y)
    assert np.isin(mixed.levels, [0.0, 1.0]).all()
    assert set(np.unique(mixed.y)) == {-1.0, 1.0}


def test_the_sample_of_the_census_is_of_its_rows(data_folder):
    sample, whole = datasets.load_mixed("adult2000"), datasets.load("census")
    assert sample.levels.shape[1] + sample.numbers.shape[1] == whole.X.shape[1] - 1
    assert (sample.levels.sum(1) <= 8).all()


def test_mnist(data_folder):
    mnist = datasets.load_mnist()
    assert mnist.X.shape == (60000, 784)
    assert mnist.X_test.shape == (10000, 784)
    assert mnist.X.max() == 255
    assert np.bincount(mnist.digit)[:3].tolist() == [5923, 6742, 5958]
    assert np.bincount(mnist.digit_test)[:3].tolist() == [980, 1135, 1032]


def test_year(tmp_path, monkeypatch):
    """The file as bench/README.md has it; no year before all its rows are there."""
    table = np.arange(12.0).reshape(4, 3)
    np.savetxt(tmp_path / "year_prediction.csv", table, delimiter=",", header="a,b,year")
    monkeypatch.setenv(datasets.VARIABLE, str(tmp_path))
    with pytest.raises(RuntimeError, match=r"got shape \(4, 3\)"):
        datasets.load_year()
    monkeypatch.setattr(datasets, "YEAR", (4, 3))
    np.testing.assert_array_equal(datasets.load_year(), table)
    (tmp_path / "year_prediction.csv").unlink()
    with pytest.raises(FileNotFoundError, match="no year_prediction"):
        datasets.load_year()

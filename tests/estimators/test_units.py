"""The moments of columns, and their scales: by fractions, NumPy, and algebra."""

from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from scipy import sparse

from epfast.estimators.units import ColumnMoments


def table(n=60, seed=0):
    """Numbers, counts with many zeros, two values, one rare, one number, zeros, ones."""
    rng = np.random.default_rng(seed)
    columns = [rng.normal(size=n) * 3.0 + 5.0, rng.standard_cauchy(size=n)]
    columns += [rng.poisson(0.3, n).astype(float), rng.normal(size=n) * (rng.random(n) < 0.2)]
    columns += [rng.integers(0, 2, n).astype(float), (np.arange(n) == 7).astype(float)]
    columns += [np.where(rng.random(n) < 0.3, -3.0, 7.5), np.full(n, 0.1), np.zeros(n), np.ones(n)]
    return np.stack(columns, axis=1), rng.integers(0, 4, n).astype(float)


def exact(column, weights, centred):
    """The scale by its definition, in rational numbers up to the last root."""
    x = [Fraction(v) for v, w in zip(column.tolist(), weights.tolist(), strict=True) if w > 0]
    w = [Fraction(v) for v in weights.tolist() if v > 0]
    values = sorted(set(x))
    if len(values) == 2:
        x, w = values, [Fraction(1), Fraction(1)]
    mean = sum(a * b for a, b in zip(x, w, strict=True)) / sum(w) if centred else 0
    square = sum((a - mean) ** 2 * b for a, b in zip(x, w, strict=True)) / sum(w)
    return float(square) ** 0.5 or 1.0


@pytest.mark.parametrize("centred", [True, False])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix, sparse.csr_array])
@pytest.mark.parametrize("weighted", [True, False])
def test_the_scales_are_those_of_the_definition(centred, form, weighted):
    X, weights = table()
    given = weights if weighted else np.ones(len(X))
    right = [exact(column, given, centred) for column in X.T]
    moments = ColumnMoments.of(form(X), weights if weighted else None)
    np.testing.assert_allclose(moments.scales(centred), right, rtol=1e-13)
    assert moments.mass == given.sum()
    np.testing.assert_allclose(moments.mean, np.average(X, 0, given), rtol=1e-13)
    about = np.average(X, 0, given) if centred else 0.0
    squares = np.average((X - about) ** 2, 0, given)
    np.testing.assert_allclose(moments.variances(centred), squares, rtol=1e-12, atol=1e-25)


@pytest.mark.parametrize("centred", [True, False])
def test_columns_of_one_number(centred):
    """1 about the mean. Without an intercept the size of the number, of a column of ones 1."""
    X = np.array([[0.1, 0.0, 1.0, -4.0, 1e6, 0.1 + 0.2]] * 7)
    X[3, 5] = 0.3  # one number but for the last digit
    right = np.ones(6) if centred else [0.1, 1.0, 1.0, 4.0, 1e6, 0.3]
    for form in (np.asarray, sparse.csr_matrix):
        moments = ColumnMoments.of(form(X), np.linspace(0.1, 0.7, 7))
        np.testing.assert_allclose(moments.scales(centred), right, rtol=1e-15)
        assert moments.constant.all()
        assert (moments.variances(True) == 0.0).all()


@pytest.mark.parametrize("unit", [1e-150, 1e-6, 3.0, 1e6, 1e150])
@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_scales_have_the_unit_of_their_columns(unit, form):
    X, weights = table()
    X = X[:, :7]  # constants about their means have no unit
    for centred in (True, False):
        before, after = (ColumnMoments.of(form(Z), weights) for Z in (X, X * unit))
        np.testing.assert_allclose(after.scales(centred), before.scales(centred) * unit, rtol=1e-12)


def test_scales_of_the_largest_numbers():
    X = np.array([[1.0, 1.0], [-1.0, 3.0], [0.0, 3.0]]) * 2.0**1021
    for form in (np.asarray, sparse.csr_matrix):
        right = [np.sqrt(2 / 3), 1.0]
        found = ColumnMoments.of(form(X)).scales(True) * 2.0**-1021
        np.testing.assert_allclose(found, right, rtol=1e-15)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_scales_about_the_mean_do_not_change_with_a_constant(form):
    """2^-20 is a digit of all numbers here, so that X + c is exact, up to 1e6 sds and more."""
    rng = np.random.default_rng(1)
    X = np.round(rng.normal(size=(400, 3)) * 2.0**20) / 2.0**20
    X[:, 2] = X[:, 2] > 1.0
    before = ColumnMoments.of(X).scales(True)
    for shift in (1.0, 1e3, 1e6):
        after = ColumnMoments.of(form(X + np.round(shift))).scales(True)
        np.testing.assert_allclose(after, before, rtol=1e-12)
    rounded = ColumnMoments.of(form(X + 1e6 / 3.0)).scales(True)
    np.testing.assert_allclose(rounded, before, rtol=1e-9)


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_matrix])
def test_weights_are_rows_repeated(form):
    X, weights = table()
    whole = ColumnMoments.of(form(np.repeat(X, weights.astype(int), axis=0)))
    for factor in (1.0, 1e-200):
        moments = ColumnMoments.of(form(X), weights * factor)
        for centred in (True, False):
            right = whole.scales(centred)
            np.testing.assert_allclose(moments.scales(centred), right, rtol=1e-12)
        np.testing.assert_array_equal(moments.two_valued, whole.two_valued)


def test_entries_that_are_stored_as_zeros_and_twice():
    """And the rows that are given stay as they are."""
    data, places = np.array([1.0, 2.0, 0.0, -4.0, 1.5, 1.5]), np.array([0, 0, 1, 0, 1, 1])
    rows = sparse.csr_matrix((data, places, np.array([0, 3, 4, 4, 6])), shape=(4, 3))
    kept = rows.copy()
    moments, right = ColumnMoments.of(rows), ColumnMoments.of(rows.toarray())
    for ours, theirs in zip(moments, right, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-14)
    np.testing.assert_array_equal(rows.data, kept.data)
    np.testing.assert_array_equal(rows.indptr, kept.indptr)


def test_sparse_rows_are_not_made_dense():
    """Of 10^11 entries, which would be 800 GB."""
    rng, n, d = np.random.default_rng(0), 10**6, 10**5
    places = rng.integers(0, n, 1000), rng.integers(0, d, 1000)
    rows = sparse.csr_matrix((rng.normal(size=1000), places), shape=(n, d))
    moments = ColumnMoments.of(rows)
    mean, square = (np.asarray(part.mean(axis=0)).ravel() for part in (rows, rows.power(2)))
    np.testing.assert_allclose(moments.variances(False), square, rtol=1e-12)
    np.testing.assert_allclose(moments.variances(True), square - mean**2, rtol=1e-12)


@pytest.mark.parametrize("cut", ["rows", "halves"])
def test_parts_merge_to_the_whole(cut):
    X, weights = table()
    weights[:5] = 0.0  # so that there are parts without rows
    size = 1 if cut == "rows" else 31
    starts = range(0, len(X), size)
    parts = [ColumnMoments.of(X[i : i + size], weights[i : i + size]) for i in starts]
    whole, merged = ColumnMoments.of(X, weights), reduce(ColumnMoments.merged, parts)
    np.testing.assert_array_equal(merged.two_valued, whole.two_valued)
    for ours, theirs in zip(merged, whole, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-14)
    for centred in (True, False):
        np.testing.assert_allclose(merged.scales(centred), whole.scales(centred), rtol=1e-12)


@pytest.mark.parametrize(
    ("values", "two"),
    [([0, 1, 0], True), ([0, 2, 1], False), ([0, 1, 2], False), ([3, 3, 3], True)],
)
def test_a_third_value_comes_with_any_part(values, two):
    parts = [ColumnMoments.of(np.array([[float(value)]])) for value in values]
    for order in (parts, parts[::-1]):
        assert reduce(ColumnMoments.merged, order).two_valued.item() is two


def test_no_rows():
    for form in (np.asarray, sparse.csr_matrix):
        empty = ColumnMoments.of(form(np.zeros((0, 2))))
        absent = ColumnMoments.of(form(np.ones((3, 2))), np.zeros(3))
        for moments in (empty, absent, empty.merged(absent)):
            assert moments.mass == 0.0
            assert (moments.scales(True) == 1.0).all()
            assert (moments.scales(False) == 1.0).all()


def test_any_numbers_are_taken():
    X = np.array([[1, 200], [3, 100], [7, 250]])
    right = X.astype(float).std(axis=0)
    for kind in (np.uint8, np.int64, np.float32):
        for form in (np.asarray, sparse.csr_matrix):
            scales = ColumnMoments.of(form(X.astype(kind))).scales(True)
            np.testing.assert_allclose(scales, right, rtol=1e-14)

"""Points on either side of the margins: products over the rows, and where they do not do."""

import itertools
import math

import mpmath as mp
import numpy as np
import pytest

import epfast
from epfast import backend, losses
from epfast._core.vector import column_sizes, largest_move

pytestmark = pytest.mark.simd

VALUES = {
    "logistic": lambda m: mp.log1p(mp.exp(-m)),
    "probit": lambda m: -mp.log(mp.erfc(-m / mp.sqrt(2)) / 2),
}
MARGIN = [name for name, kind in losses.NAMED.items() if kind.by_margin]


def by_sixty_digits(loss, rows, mean, step, columns):
    """Slope, its size and precision of these columns, about the mean."""
    value = VALUES[loss]
    margins = [mp.mpf(float(m)) for m in rows @ mean]
    for j in columns:
        reach = mp.mpf(float(step[j]))
        delta = [reach * mp.mpf(float(x)) for x in rows[:, j]]
        pairs = list(zip(margins, delta, strict=True))
        odd = [value(m - e) - value(m + e) for m, e in pairs]
        even = sum(value(m + e) + value(m - e) - 2 * value(m) for m, e in pairs)
        yield j, sum(odd) / (2 * reach), sum(map(abs, odd)) / (2 * reach), even / reach**2


@pytest.mark.parametrize("loss", VALUES)
@pytest.mark.parametrize("seed", range(12))
def test_slope_and_precision_to_sixty_digits(loss, seed):
    """Margins up to 40, steps from 1e-5 to 300: products, Taylor's series, and row by row."""
    mp.mp.dps = 80
    rng = np.random.default_rng([seed, len(loss)])
    for scale in 10.0 ** rng.uniform(-5.0, 2.5, 5):
        s, d = int(rng.integers(1, 14)), int(rng.integers(2, 12))
        rows = rng.normal(size=(s, d))
        rows[:, 0] *= 10.0 ** rng.uniform(-1.0, 1.1)
        mean, variance = np.zeros(d), np.full(d, scale**2)
        mean[0] = 1.0
        precision, shift, _ = backend.fit_minibatch(loss, rows, mean, variance)
        step = math.sqrt(d + 0.5) * np.sqrt(variance)
        for j, slope, size, tau in by_sixty_digits(loss, rows, mean, step, [0, d - 1]):
            assert abs(precision[j] - tau) <= 2e-10 * tau
            found = shift[j] - mp.mpf(float(precision[j])) * mp.mpf(float(mean[j]))
            assert abs(found - slope) <= 1e-10 * (size + abs(tau * mean[j]))


@pytest.mark.parametrize("loss", MARGIN)
@pytest.mark.parametrize("scale", [1.0, 30.0, 1e4, 1e8])
def test_many_rows_are_the_sum_of_blocks(loss, scale):
    """Exponents of long products are kept, whatever the steps; blocks of rows add up."""
    rng = np.random.default_rng(3)
    rows, d = rng.normal(size=(3001, 9)), 9
    mean, variance = rng.normal(size=d), np.full(d, scale)
    whole = backend.fit_minibatch(loss, rows, mean, variance)
    parts = [
        backend.fit_minibatch(loss, rows[k : k + 100], mean, variance)
        for k in range(0, len(rows), 100)
    ]
    for one, some in zip(whole, zip(*parts, strict=True), strict=True):
        total = sum(some)
        size = sum(np.abs(part) for part in some)
        np.testing.assert_array_less(np.abs(one - total), 1e-12 * size + 1e-300)


@pytest.mark.parametrize("loss", VALUES)
def test_margins_beyond_the_range_of_products(loss):
    """One row far out: the others keep their digits, in all columns."""
    mp.mp.dps = 80
    rng = np.random.default_rng(8)
    for far in (-1e5, -5e3, 5e3, 1e5):
        rows = rng.normal(size=(30, 10))
        rows[17] = 0.0
        rows[17, 0], rows[17, 9] = far, 1.0
        mean, variance = np.zeros(10), np.full(10, 2.0)
        mean[0] = 1.0
        precision, shift, _ = backend.fit_minibatch(loss, rows, mean, variance)
        step = math.sqrt(10.5) * np.sqrt(variance)
        rest = np.delete(rows, 17, axis=0)
        for j, slope, size, tau in by_sixty_digits(loss, rest, mean, step, [5, 8]):
            assert abs(precision[j] - tau) <= 1e-10 * tau
            assert abs(shift[j] - slope) <= 1e-10 * size


@pytest.mark.parametrize("loss", MARGIN)
def test_columns_of_zeros_say_nothing(loss):
    rng = np.random.default_rng(4)
    rows = rng.normal(size=(40, 21))
    rows[:, ::2] = 0.0
    precision, shift, _ = backend.fit_minibatch(loss, rows, np.ones(21), np.full(21, 3.0))
    assert (precision[::2] == 0.0).all()
    assert (shift[::2] == 0.0).all()
    assert (shift[1::2] != 0.0).all()


# ---- floats ----


def fitted(X, y, loss, scheme, **given):
    schedule = epfast.EP(sweeps=3, tol=0.0)
    return epfast.fit_linear(
        X, y, loss=loss, scheme=scheme, posterior="factorized", batch_size=16, schedule=schedule,
        **given,
    )  # fmt: skip


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("scheme", ["variational", "quadrature", "quick_laplace", "laplace"])
def test_floats_give_what_the_same_doubles_give(scheme):
    """In place, with gaps between the rows, in columns, weighted; narrow and wide."""
    rng = np.random.default_rng(5)
    for d, loss in itertools.product((1, 3, 8, 21, 101), ("logistic", "probit", "squared_hinge")):
        X = rng.normal(size=(120, 2 * d)).astype(np.float32) / math.sqrt(d)
        y = np.where(rng.normal(size=120) > 0.0, 1.0, -1.0)
        layouts = [X, X[:, :d], X[:, ::2], np.asfortranarray(X), X[::-1]]
        for rows, weights in itertools.product(layouts, (None, rng.integers(0, 3, 120))):
            some = y[: len(rows)]
            # a prior so narrow that sweeps do not magnify rounding
            given = {"weights": weights, "prior_variance": 0.1}
            ours = fitted(rows, some, loss, scheme, **given)
            same = fitted(rows.astype(np.float64), some, loss, scheme, **given)
            np.testing.assert_allclose(ours.mean, same.mean, rtol=1e-10, atol=1e-12)
            np.testing.assert_allclose(ours.variance, same.variance, rtol=1e-10)
            np.testing.assert_allclose(ours.log_evidence, same.log_evidence, rtol=1e-10)


def test_floats_that_are_not_finite_are_named():
    X = np.ones((50, 12), dtype=np.float32)
    X[33, 5] = np.nan
    with pytest.raises(ValueError, match="not finite in row 33"):
        fitted(X, np.where(np.arange(50) % 2, 1.0, -1.0), "hinge", "variational")


# ---- sizes of columns ----


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_sizes_of_columns(kind):
    rng = np.random.default_rng(6)
    for n, d in itertools.product((1, 3, 4, 9), (1, 2, 7, 8, 19)):
        X = rng.normal(size=(2 * n, d + 3)).astype(kind)
        for rows in (X, X[::2], X[:, :d], X[1::2, 2:]):
            largest, squares = np.empty((2, rows.shape[1]))
            assert column_sizes(rows, largest, squares)
            np.testing.assert_array_equal(largest, np.abs(rows).max(axis=0))
            exact = rows.astype(np.float64)
            np.testing.assert_allclose(squares, (exact**2).sum(axis=0), rtol=1e-14)
    assert not column_sizes(np.asfortranarray(rng.normal(size=(4, 3))), *np.empty((2, 3)))
    assert not column_sizes(np.ones((4, 3), dtype=np.int64), *np.empty((2, 3)))
    with pytest.raises(ValueError, match=r"other shapes than \(3,\)"):
        column_sizes(np.ones((4, 3)), np.empty(3), np.empty(2))


def test_sizes_leave_out_what_is_no_number():
    X = np.array([[np.nan, 1.0, 2.0], [3.0, -np.inf, -5.0]])
    largest, squares = np.empty((2, 3))
    assert column_sizes(X, largest, squares)
    np.testing.assert_array_equal(largest, [3.0, np.inf, 5.0])
    assert math.isnan(squares[0])
    assert squares[1] == np.inf


# ---- moves ----


def test_largest_moves_are_those_of_plain_numpy():
    rng = np.random.default_rng(7)
    for n in (1, 2, 7, 8, 9, 40):
        for _ in range(20):
            old_mean, mean = rng.normal(size=(2, n))
            old, new = np.exp(rng.normal(size=(2, n)))
            moved = np.abs((mean - old_mean) / np.sqrt(new)).max()
            wanted = max(moved, 0.5 * np.abs(np.log(old / new)).max())
            assert math.isclose(largest_move(old_mean, old, mean, new), wanted, rel_tol=1e-13)
    one, two = np.ones(9), np.full(9, 2.0)
    for bad in (0.0, -1.0, np.nan):
        wrong = one.copy()
        wrong[8] = bad
        assert math.isnan(largest_move(one, one, one, wrong))  # 0 / 0 where the variance is 0
        assert largest_move(one, wrong, two, one) == (np.inf if bad == 0.0 else 1.0)
    assert largest_move(one, one, two[::2], one) is None
    assert largest_move(one, one, two, np.ones(8)) is None

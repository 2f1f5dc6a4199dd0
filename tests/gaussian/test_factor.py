"""Pivoted incomplete Cholesky factors, and kernels of which columns come on demand."""

import numpy as np
import pytest
from scipy import linalg, sparse

from epfast import KernelColumns, fit_gp, incomplete_cholesky
from epfast.gaussian import factor as factors
from epfast.gaussian.factor import PROJECTED, certified_factor, factor_at, kernel_columns
from tests.oracles.data import process, rbf


def plain_factor(K, rank):
    """The definition, on the whole residual matrix: O(n^2 r)."""
    left, G, pivots = K.copy(), np.empty((len(K), 0)), []
    for _ in range(rank):
        p = int(np.diag(left).argmax())
        column = left[:, p] / np.sqrt(left[p, p])
        left = left - np.outer(column, column)
        G = np.column_stack([G, column])
        pivots.append(p)
    return G, pivots, left


@pytest.mark.parametrize("rank", [1, 31, 32, 33, 70])
def test_the_factor_is_that_of_the_definition(rank):
    X = np.random.default_rng(1).normal(size=(150, 4))
    K = rbf(X, width=1.5, variance=4.0)
    G, pivots, left = plain_factor(K, rank)
    factor = incomplete_cholesky(K, rank)
    assert factor.rank == rank
    assert factor.pivots.tolist() == pivots
    np.testing.assert_allclose(factor.G, G, atol=1e-10)
    np.testing.assert_allclose(factor.residual, np.diag(left), atol=1e-10)
    assert factor.traces[-1] == pytest.approx(np.trace(left), rel=1e-9)
    assert len(factor.traces) == rank + 1
    assert (np.diff(factor.traces) < 0.0).all()
    triangle = factor.G[factor.pivots]
    np.testing.assert_array_equal(triangle, np.tril(triangle))
    assert (np.diag(triangle) > 0.0).all()
    np.testing.assert_allclose((factor.G @ factor.G.T)[:, pivots], K[:, pivots], atol=1e-10)


def test_the_error_against_the_best_of_that_rank():
    """No factor is better than that of the eigenvectors; for a smooth kernel this is near it."""
    _, K, _ = process(200)
    values = linalg.eigvalsh(K)[::-1]
    factor = incomplete_cholesky(K, 60)
    for rank in (5, 20, 60):
        assert values[rank:].sum() <= factor.traces[rank] <= 10.0 * values[rank:].sum()
    error = linalg.eigvalsh(K - factor.G @ factor.G.T)
    assert error[0] > -1e-12
    assert error.sum() == pytest.approx(factor.traces[60], rel=1e-6)


def test_the_tolerance():
    _, K, _ = process(200)
    loose, tight = incomplete_cholesky(K, 200, tol=1e-2), incomplete_cholesky(K, 200, tol=1e-6)
    for factor, tol in ((loose, 1e-2), (tight, 1e-6)):
        assert factor.traces[-1] <= tol * np.trace(K) < factor.traces[-2]
        assert factor.G.flags.c_contiguous
        assert factor.G.shape == (200, factor.rank)
        np.testing.assert_allclose(np.diag(K - factor.G @ factor.G.T), factor.residual, atol=1e-12)
    np.testing.assert_array_equal(loose.G, tight.G[:, : loose.rank])
    assert incomplete_cholesky(K, 200, tol=1.0).rank == 0


def test_it_ends_at_rounding():
    """Kernels whose rank is known: duplicates, linear, zero, one input."""
    rng = np.random.default_rng(2)
    X = np.repeat(rng.normal(size=(9, 2)), 4, axis=0)
    twins = incomplete_cholesky(rbf(X, variance=4.0), 36)
    assert twins.rank == 9
    np.testing.assert_allclose(twins.G @ twins.G.T, rbf(X, variance=4.0), atol=1e-12)
    Z = rng.normal(size=(50, 3)) * 1e5
    linear = incomplete_cholesky(Z @ Z.T, 50)
    assert linear.rank == 3
    np.testing.assert_allclose(linear.G @ linear.G.T, Z @ Z.T, rtol=1e-9, atol=1e-3)
    zero = incomplete_cholesky(np.zeros((4, 4)), 2)
    assert zero.G.shape == (4, 0)
    assert zero.traces.tolist() == [0.0]
    assert incomplete_cholesky([[4.0]], 3).G.tolist() == [[2.0]]
    whole = incomplete_cholesky(
        rbf(rng.normal(size=(300, 1)), variance=4.0), 300
    )  # numerically singular
    assert whole.rank < 50
    assert whole.residual.max() < 1e-11


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16, np.longdouble])
def test_layouts(dtype):
    X, _, _ = process(40)
    K = rbf(X, variance=4.0).astype(dtype)
    want = incomplete_cholesky(K.astype(np.float64), 10)
    wide = np.empty((80, 80), dtype)
    wide[::2, ::2] = K
    for matrix in (K, np.asfortranarray(K), wide[::2, ::2], K.tolist()):
        if isinstance(matrix, np.ndarray):
            matrix.flags.writeable = False
        before = np.array(matrix)
        found = incomplete_cholesky(matrix, 10)
        np.testing.assert_array_equal(matrix, before)
        np.testing.assert_allclose(found.G, want.G, rtol=1e-12, atol=1e-12)
    # to the rounding of what was given, and not an error beyond that
    assert incomplete_cholesky(K, 40).rank > (5 if dtype == np.float16 else 15)
    whole = incomplete_cholesky(np.array([[4, 2], [2, 3]]), 2)
    np.testing.assert_allclose(whole.G @ whole.G.T, [[4, 2], [2, 3]], atol=1e-14)


def test_columns_on_demand():
    X, K, _ = process(120)
    want = incomplete_cholesky(K, 25)
    asked = []

    def view(i):
        asked.append(i)
        return K[:, i]

    K.flags.writeable = False
    kernels = {
        "views": KernelColumns(np.diag(K), view),
        "rbf": KernelColumns.rbf(X, 1.0, 4.0),
        "sparse": KernelColumns.rbf(sparse.csr_array(X), 1.0, 4.0),
        "lists": KernelColumns(np.diag(K).tolist(), lambda i: K[i].tolist()),
    }
    for kernel in kernels.values():
        found = incomplete_cholesky(kernel, 25)
        np.testing.assert_array_equal(found.pivots, want.pivots)
        np.testing.assert_allclose(found.G, want.G, atol=1e-10)
    assert asked == want.pivots.tolist()  # no column but those


def test_kernels_of_scikit_learn():
    kernels = pytest.importorskip("sklearn.gaussian_process.kernels")
    X, K, _ = process(120)
    kernel = 4.0 * kernels.RBF(1.0)
    found = incomplete_cholesky(KernelColumns.from_sklearn(kernel, X), 25)
    np.testing.assert_allclose(found.G, incomplete_cholesky(K, 25).G, atol=1e-10)
    noisy = KernelColumns.from_sklearn(kernel + kernels.WhiteKernel(0.1), X)
    with pytest.raises(ValueError, match="diagonal"):
        incomplete_cholesky(noisy, 25)
    with pytest.raises(TypeError, match="kernel"):
        KernelColumns.from_sklearn("rbf", X)


def test_distances_far_from_the_origin():
    """There |x|^2 + |z|^2 - 2 x.z would cancel."""
    X = 1e5 + np.random.default_rng(0).normal(size=(60, 2))
    X[30:] = X[:30]
    kernel = KernelColumns.rbf(X, 1.0)
    for i in (0, 29, 45):
        assert kernel.column(i)[i] == 1.0
        np.testing.assert_allclose(kernel.column(i), rbf(X, X[i][None])[:, 0], atol=1e-13)
    with np.errstate(all="raise", under="ignore"):
        np.testing.assert_array_equal(
            KernelColumns.rbf([[1e300], [-1e300]], 1e-200).column(0), [1, 0]
        )
    with pytest.raises(ValueError, match="squares overflow"):
        KernelColumns.rbf(sparse.csr_array([[1e300], [1.0]]), 1.0)
    with pytest.raises(ValueError, match="at least one row"):
        KernelColumns.rbf(np.empty((0, 2)), 1.0)


def test_bad_columns():
    K = rbf(np.arange(5.0)[:, None], variance=4.0)
    diagonal = np.diag(K)
    for column, message in (
        (lambda i: np.full(5, np.nan), r"column\(0\) of K holds NaN"),
        (lambda i: K[i, :4], r"column\(0\) of K has shape \(4,\)"),
        (lambda i: K, "has shape"),
        (lambda i: ["a"] * 5, "dtype"),
        (lambda i: None, "column"),
        (lambda i: 0.5 * K[i], "not a kernel"),
        (lambda i: np.triu(K)[i], "not symmetric"),
    ):
        with pytest.raises((ValueError, TypeError), match=message):
            incomplete_cholesky(KernelColumns(diagonal, column), 5)
    with pytest.raises(ZeroDivisionError):
        incomplete_cholesky(KernelColumns(diagonal, lambda i: 1 / 0), 5)
    for bad, message in (
        ([1.0, -1.0], "diagonal"),
        ([1.0, np.nan], "diagonal"),
        ([], "diagonal"),
        ([[1.0]], "diagonal"),
    ):
        with pytest.raises(ValueError, match=message):
            KernelColumns(bad, lambda i: K[i])
    with pytest.raises(TypeError, match="column"):
        KernelColumns(diagonal, K)
    for arguments, message in (
        ((np.ones((3, 2)), 0.0), "length_scale"),
        ((np.ones((3, 2)), 1.0, -1.0), "variance"),
        ((np.ones(3), 1.0), "X has shape"),
        (([[np.nan]], 1.0), "NaN"),
        ((sparse.csr_array([[np.inf]]), 1.0), "infinity"),
    ):
        with pytest.raises(ValueError, match=message):
            KernelColumns.rbf(*arguments)


@pytest.mark.parametrize(
    ("K", "message"),
    [
        (np.ones((2, 3)), r"K has shape \(2, 3\)"),
        (np.empty((0, 0)), "K has shape"),
        ([[1.0, np.nan], [np.nan, 1.0]], "NaN"),
        ([[1.0, 0.5], [0.4, 1.0]], "not symmetric"),
        ([[1.0, 2.0], [2.0, 1.0]], "not positive semi-definite"),
        ([[0.0, 1.0], [1.0, 0.0]], "not positive semi-definite"),
        ([[1.0, 0.0], [0.0, -1.0]], "negative diagonal"),
        (np.eye(3) - 0.6 * (1 - np.eye(3)), "residual variance"),
        ([["a"]], "dtype"),
    ],
)
def test_bad_kernels(K, message):
    with pytest.raises((ValueError, TypeError), match=message):
        incomplete_cholesky(K, 3)
    with pytest.raises((ValueError, TypeError), match=message):
        fit_gp(K, np.ones(len(K)), rank=3)


@pytest.mark.parametrize("nats", [1.0, 1e-3])
def test_as_few_columns_as_a_truncation_error_asks_for(nats):
    _, K, _ = process(300)
    precision = np.random.default_rng(0).uniform(-0.5, 0.5, size=300)
    factor = certified_factor(kernel_columns("K", K), precision, 300, nats)
    left = np.diag(K - factor.G @ factor.G.T)
    assert 0.5 * np.abs(precision) @ left <= nats * (1.0 + 1e-6)
    G, pivots, left = plain_factor(K, factor.rank)
    assert factor.pivots.tolist() == pivots
    np.testing.assert_allclose(factor.G, G, atol=1e-8)
    fewer = np.diag(plain_factor(K, factor.rank - 1)[2])
    assert 0.5 * np.abs(precision) @ fewer > nats
    assert certified_factor(kernel_columns("K", K), precision, factor.rank - 1, nats) is None
    assert certified_factor(kernel_columns("K", K), precision, factor.rank, nats) is not None


def test_memory_grows_with_the_rank(monkeypatch):
    """Columns that go beyond the memory at first are those of a factor that has all of it."""
    monkeypatch.setattr(factors, "PROJECTED", factors.AHEAD)
    monkeypatch.setattr(factors, "SLACK", np.inf)
    X = np.random.default_rng(1).normal(size=(300, 3))
    K = rbf(X, width=1.0)
    found = certified_factor(kernel_columns("K", K), 1.0, 300, 0.1)
    assert 4 * factors.AHEAD < found.rank < 300
    np.testing.assert_allclose(found.G, incomplete_cholesky(K, found.rank).G, atol=1e-10)


def test_ranks_beyond_reach_are_given_up_early():
    """Of columns asked for: those of a kernel in 8 dimensions, and in 2 at a short length scale."""
    asked = []

    def columns(X, width):
        def column(i):
            asked.append(i)
            return rbf(X, X[[i]], width=width).ravel()

        asked.clear()
        return KernelColumns(np.ones(len(X)), column)

    rng = np.random.default_rng(0)
    X = rng.normal(size=(2000, 8))
    assert certified_factor(columns(X, 2.0), 0.2, 600, 1e-3) is None
    assert len(asked) == PROJECTED
    found = certified_factor(columns(X[:, :2], 0.3), 0.2, 900, 1e-3)
    assert len(asked) == found.rank > PROJECTED


def test_the_factor_at_pivots():
    """In their order, but for those that the others reproduce."""
    X, K, _ = process(80)
    factor = incomplete_cholesky(K, 12)
    same = factor_at(K[:, factor.pivots], factor.pivots, np.diag(K))
    np.testing.assert_array_equal(same.pivots, factor.pivots)
    np.testing.assert_allclose(same.G, factor.G, atol=1e-9)
    np.testing.assert_allclose(same.residual, factor.residual, atol=1e-9)
    wide = rbf(X, width=100.0, variance=4.0)  # most of these columns are the same to rounding
    few = factor_at(wide[:, factor.pivots], factor.pivots, np.diag(wide))
    assert set(few.pivots) < set(factor.pivots)
    np.testing.assert_allclose(few.G @ few.G.T, wide, atol=1e-8)

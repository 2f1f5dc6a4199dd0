"""A pool of threads does what one thread does: factors, inverses, products, sweeps."""

import threading

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from epfast._core.cholesky import cholesky, inverse_from_factor, inverse_triangle, symmetric_times
from epfast._core.kernel_matrix import KINDS, KernelMatrix
from epfast._core.row_sweeps import BlockedSweep
from epfast._core.rows import Rows, Units
from epfast._core.thread_pool import ThreadPool
from epfast.losses import Logistic, NoisyStep
from epfast.schemes import Exact

COUNTS = (2, 3, 9)
SIZES = (256, 257, 383, 512, 700, 1100)


def positive(n):
    rng = np.random.default_rng(n)
    root = rng.normal(size=(n, n))
    return np.asfortranarray(root @ root.T / n + np.eye(n))


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("n", SIZES)
def test_factors_and_inverses(n, count):
    """Against NumPy; what is above the diagonal stays."""
    A = positive(n)
    L = np.linalg.cholesky(A)
    with ThreadPool(count) as pool:
        factor = A.copy(order="F")
        assert cholesky(factor, pool)
        triangle, inverse = factor.copy(order="F"), factor.copy(order="F")
        inverse_triangle(triangle, pool)
        inverse_from_factor(inverse, pool)
        product = symmetric_times(A, A[:, : n // 2], pool)
    for found, expected in (
        (factor, L),
        (triangle, np.linalg.inv(L)),
        (inverse, np.linalg.inv(A)),
    ):
        np.testing.assert_array_equal(np.triu(found, 1), np.triu(A, 1))
        np.testing.assert_allclose(np.tril(found), np.tril(expected), rtol=0, atol=1e-11)
    np.testing.assert_allclose(product, A @ A[:, : n // 2], rtol=0, atol=1e-11)


@pytest.mark.parametrize("at", [3, 200, 299])
def test_a_matrix_that_is_not_positive(at):
    A = positive(300)
    A[at, at] = -1.0
    with ThreadPool(2) as pool:
        assert not cholesky(A, pool)


def test_products_of_other_shapes():
    A = positive(20)
    assert symmetric_times(A, np.empty((20, 0))).shape == (20, 0)
    np.testing.assert_allclose(symmetric_times(A, A[:, 1:3]), A @ A[:, 1:3], atol=1e-12)
    with pytest.raises(ValueError, match="the matrix has 19 rows; allowed: 20"):
        symmetric_times(A, A[:19])


def posterior(n, pool, negative):
    """All that a kernel matrix gives, for sites of all kinds."""
    rng = np.random.default_rng(0)
    squares = pdist(rng.normal(size=(n, 3)), "sqeuclidean")
    kernel = KernelMatrix(np.zeros((n, n)), np.zeros(n))
    kernel.pool = pool
    kernel.pour(squares, KINDS["rbf"], 0.7, 2.0)
    tau, nu = rng.uniform(0.2, 2.0, n), rng.normal(size=n)
    tau[:3] = 1e-5
    if negative:
        tau[10:14] = -0.05
    moments = np.empty((2, 3, n))
    found = [np.tril(kernel.array, -1)]
    if not negative:
        found.append(kernel.marginals(tau, nu, *moments[0]))
    found.append(kernel.precision(tau, nu, *moments[1]))
    found += [moments[1:] if negative else moments, np.triu(kernel.array)]
    found.append(kernel.contract(moments[1, 0].copy(), squares, KINDS["rbf"], 0.7))
    kernel.covariance(tau)
    sums = np.empty((2, n))
    kernel.couple(nu, tau, *sums)
    return [*found, np.triu(kernel.array), sums, kernel.is_positive(1e-9)]


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("negative", [False, True])
@pytest.mark.parametrize("n", [129, 300, 611])
def test_kernel_matrices(n, negative, count):
    with ThreadPool(count) as pool:
        shared = posterior(n, pool, negative)
    for ours, alone in zip(shared, posterior(n, None, negative), strict=True):
        scale = max(1.0, float(np.abs(alone).max()))
        np.testing.assert_allclose(ours, alone, rtol=0, atol=1e-11 * scale)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("loss", [Logistic(), NoisyStep(0.2)], ids=["logistic", "noisy"])
@pytest.mark.parametrize("rows", ["units", "dense"])
def test_blocked_sweeps(rows, loss, count):
    """Also with sites of negative precision, of a noisy step, and rows that are no units."""
    n = 400
    rng = np.random.default_rng(1)
    y = np.where(rng.random((n, 1)) < 0.5, 1.0, -1.0)
    X = np.eye(n) if rows == "units" else rng.normal(size=(n, n)) / np.sqrt(n)
    order = np.asarray(rng.permutation(n), dtype=np.intp)

    def swept(pool):
        core = BlockedSweep(Exact().tilted(loss), n, 60, 1.0, 1.0, False)
        core.pool = pool
        A = Units(order, n) if rows == "units" else Rows(np.ascontiguousarray(X[order]))
        Sigma, mu, sites = np.ascontiguousarray(positive(n)), np.zeros(n), np.zeros((3, n))
        core.sweep(A, y, None, order, Sigma, mu, *sites)
        return np.triu(Sigma), mu, sites, core.log_determinant

    with ThreadPool(count) as pool:
        shared = swept(pool)
    for ours, alone in zip(shared, swept(None), strict=True):
        np.testing.assert_allclose(ours, alone, rtol=1e-10, atol=1e-12)
    assert (shared[2][0] < 0.0).any() == isinstance(loss, NoisyStep)


# ---- its life ----


def test_threads_end_with_the_block():
    before = threading.active_count()
    with ThreadPool(3) as pool, pool:
        assert threading.active_count() == before + 2
    assert threading.active_count() == before
    with pool:  # once more
        assert threading.active_count() == before + 2
        assert cholesky(positive(300), pool)
    assert threading.active_count() == before
    with pytest.raises(ZeroDivisionError), ThreadPool(2):
        raise ZeroDivisionError
    assert threading.active_count() == before


def test_outside_the_block_it_is_alone():
    A, B = positive(300), positive(300)
    cholesky(A, ThreadPool(2))
    cholesky(B)
    np.testing.assert_array_equal(A, B)


def test_numbers_of_threads():
    assert ThreadPool(1).threads == 1
    assert ThreadPool(1000).threads <= 1000
    with pytest.raises(ValueError, match="threads is 0; allowed: an integer > 0"):
        ThreadPool(0)


def test_a_system_that_gives_no_threads(monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    A = positive(300)
    expected = np.linalg.cholesky(A)
    monkeypatch.setattr(threading.Thread, "start", refused)
    with ThreadPool(3) as pool:
        assert cholesky(A, pool)
    np.testing.assert_allclose(np.tril(A), expected, atol=1e-12)


def test_ctrl_c_while_threads_begin(monkeypatch):
    """Those that have begun end."""
    before, plain = threading.active_count(), threading.Thread.start

    def start(self):
        plain(self)
        if threading.active_count() == before + 2:
            raise KeyboardInterrupt

    pool = ThreadPool(4)
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(KeyboardInterrupt):
            pool.__enter__()
    assert threading.active_count() == before


def test_crews_beside_each_other():
    """Many small pieces of work at once, in threads with a pool each."""
    A, results = positive(300), []

    def work():
        with ThreadPool(3) as pool:
            for _ in range(20):
                L = A.copy(order="F")
                assert cholesky(L, pool)
                results.append(L)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 60
    for L in results:
        np.testing.assert_array_equal(L, results[0])

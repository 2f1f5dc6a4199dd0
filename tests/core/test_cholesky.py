"""Cholesky factors and inverses by blocks, against LAPACK."""

import numpy as np
import pytest
from scipy import linalg

from epfast._core.cholesky import cholesky, inverse_from_factor, inverse_triangle
from epfast._core.kernel_matrix import KernelMatrix

SIZES = [1, 2, 300, 1024, 1025, 1290, 1537]


def positive(n, seed=0):
    rng = np.random.default_rng([seed, n])
    root = rng.normal(size=(n, n))
    return np.asfortranarray(root @ root.T / n + np.eye(n))


@pytest.mark.parametrize("n", SIZES)
def test_factor_and_inverse(n):
    A = positive(n)
    L = A.copy(order="F")
    assert cholesky(L)
    np.testing.assert_array_equal(np.triu(L, 1), np.triu(A, 1))
    np.testing.assert_allclose(np.tril(L), linalg.cholesky(A, lower=True), rtol=0, atol=1e-12)
    inverse_from_factor(L)
    np.testing.assert_array_equal(np.triu(L, 1), np.triu(A, 1))
    np.testing.assert_allclose(np.tril(L), np.tril(linalg.inv(A)), rtol=0, atol=1e-11)


@pytest.mark.parametrize("n", SIZES)
def test_inverse_of_a_triangle(n):
    L = positive(n)
    expected = linalg.solve_triangular(L, np.eye(n), lower=True)
    above = np.triu(L, 1)
    inverse_triangle(L)
    np.testing.assert_array_equal(np.triu(L, 1), above)
    np.testing.assert_allclose(np.tril(L), expected, rtol=0, atol=1e-11)


@pytest.mark.parametrize("n", [5, 1500])
def test_a_matrix_that_is_not_positive(n):
    A = positive(n)
    A[n - 3, n - 3] = -1.0
    assert not cholesky(A)


def test_shapes():
    with pytest.raises(ValueError, match=r"shape \(2, 3\); allowed: \(n, n\)"):
        cholesky(np.zeros((2, 3), order="F"))


@pytest.mark.parametrize("negative", [0, 40])
def test_a_posterior_of_a_process_above_one_call(negative):
    """R, marginals and covariance, with small and with negative precisions."""
    n = 1200
    K, rng = np.ascontiguousarray(positive(n)), np.random.default_rng(3)
    tau = rng.uniform(0.0, 2.0, n)
    tau[:30] = 1e-5
    tau[30 : 30 + negative] = -0.05
    nu = rng.normal(size=n)
    kernel = KernelMatrix(K.copy())
    alpha, mean, variance = np.empty((3, n))
    log_determinant = kernel.precision(tau, nu, alpha, mean, variance)
    sigma = linalg.inv(linalg.inv(K) + np.diag(tau))
    np.testing.assert_allclose(variance, np.diag(sigma), rtol=1e-9)
    np.testing.assert_allclose(mean, sigma @ nu, rtol=0, atol=1e-9)
    expected = np.linalg.slogdet(np.eye(n) + K * tau)[1]
    assert log_determinant == pytest.approx(expected, rel=1e-10)
    R = np.diag(tau) - tau[:, None] * sigma * tau
    np.testing.assert_allclose(np.triu(kernel.array), np.triu(R), rtol=0, atol=1e-9)
    kernel.covariance(tau)
    np.testing.assert_allclose(np.triu(kernel.array), np.triu(sigma), rtol=0, atol=1e-9)
    np.testing.assert_array_equal(np.tril(kernel.array, -1), np.tril(K, -1))
    if not negative:
        other = np.empty((3, n))
        kernel.marginals(tau, nu, *other)
        np.testing.assert_allclose(other[2], np.diag(sigma), rtol=1e-9)

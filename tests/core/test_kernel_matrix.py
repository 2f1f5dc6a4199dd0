"""The passes over one triangle against NumPy on whole matrices and scikit-learn's kernels."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from epfast._core.kernel_matrix import KINDS, KernelMatrix

SIZES = (1, 2, 3, 4, 5, 9, 33, 70)
#: kind: order of the Matern kernel, scale times the square of the length scale
SHAPES = {
    "rbf": (None, 0.5),
    "matern12": (0.5, 1.0),
    "matern32": (1.5, 3.0),
    "matern52": (2.5, 5.0),
}


def squares(n: int) -> tuple[np.ndarray, np.ndarray]:
    X = np.random.default_rng(n).normal(size=(n, 3))
    return X, pdist(X, "sqeuclidean") if n > 1 else np.empty(0)


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("n", SIZES)
def test_pour_and_contract_are_the_kernel_and_its_gradient(n, kind):
    kernels = pytest.importorskip("sklearn.gaussian_process.kernels")
    nu, factor = SHAPES[kind]
    length, height = 0.7, 2.5
    shape = kernels.RBF(length) if nu is None else kernels.Matern(length, nu=nu)
    X, distances = squares(n)
    K, dK = shape(X, eval_gradient=True)
    matrix = KernelMatrix(np.full((n, n), 7.0), np.zeros(n))
    matrix.pour(distances, KINDS[kind], factor / length**2, height)
    np.testing.assert_allclose(np.tril(matrix.array, -1), height * np.tril(K, -1), atol=1e-14)
    np.testing.assert_array_equal(matrix.diagonal, height)
    assert (matrix.array[np.triu_indices(n)] == 7.0).all()
    rng = np.random.default_rng(1)
    R, alpha = rng.normal(size=(n, n)), rng.normal(size=n)
    R += R.T
    matrix.array[np.triu_indices(n)] = R[np.triu_indices(n)]
    weight = np.outer(alpha, alpha) - R
    found = matrix.contract(alpha, distances, KINDS[kind], factor / length**2)
    size = np.abs(weight).sum()
    assert found[0] == pytest.approx((weight * K).sum(), abs=1e-13 * size)
    assert found[1] == pytest.approx((weight * dK[:, :, 0]).sum(), abs=1e-13 * size)


@pytest.mark.parametrize("n", SIZES)
def test_couple_is_a_product_with_the_matrix_and_with_its_square(n):
    rng = np.random.default_rng(n)
    A = rng.normal(size=(n, n))
    A += A.T
    given = np.where(np.tri(n, k=-1) > 0, np.nan, A)
    matrix = KernelMatrix(given.copy(), np.zeros(n))
    x, z, y, q = rng.normal(size=(4, n))
    matrix.couple(x, z, y, q)
    beside = A - np.diag(np.diag(A))
    np.testing.assert_allclose(y, beside @ x, atol=1e-12)
    np.testing.assert_allclose(q, beside**2 @ z, atol=1e-12)
    np.testing.assert_array_equal(matrix.array, given)


def test_short_vectors_are_refused():
    matrix, ones = KernelMatrix(np.eye(5)), np.ones(5)
    with pytest.raises(ValueError, match="squares has length 9; needed: 10"):
        matrix.pour(np.ones(9), 0, 1.0, 1.0)
    with pytest.raises(ValueError, match="squares has length 9; needed: 10"):
        matrix.contract(ones, np.ones(9), 0, 1.0)
    with pytest.raises(ValueError, match="alpha has length 4; needed: 5"):
        matrix.contract(np.ones(4), np.ones(10), 0, 1.0)
    with pytest.raises(ValueError, match="vectors has length 4; needed: 5"):
        matrix.couple(ones, ones, ones.copy(), np.ones(4))

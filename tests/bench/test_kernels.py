"""Kernels on tuples of messages against brute quadrature, and what makes them kernels."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from bench.jitkrittum2015.kernels import (
    Combined,
    ExpectedProduct,
    JointEmbedding,
    MeanVariance,
    Tuples,
    diagonal,
    median_heuristic,
)
from epfast.operators.learners import embedding_squares

WIDTHS = (1.3, 0.4)
KERNELS = [
    ExpectedProduct(WIDTHS),
    JointEmbedding(WIDTHS, 0.7),
    MeanVariance(WIDTHS, (2.0, 0.5)),
    Combined(math.prod, (ExpectedProduct((1.3,)), ExpectedProduct((0.4,)))),
    Combined(sum, (JointEmbedding((1.3,), 0.6), MeanVariance((0.4,), (1.0,)))),
]
NAMES = ["expected product", "joint embedding", "mean and variance", "product", "sum"]


def tuples(n, c=2, seed=0):
    rng = np.random.default_rng(seed)
    return Tuples(rng.normal(size=(n, c)), rng.gamma(2.0, 0.5, size=(n, c)))


def embedded(width, mean, variance, points):
    """(5) at points, by 200 Gauss-Hermite nodes: E k(x, point) for x ~ N(mean, variance)."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    x = mean + np.sqrt(variance) * nodes
    kernel = np.exp(-0.5 * (x[:, None] - points) ** 2 / width**2)
    return weights @ kernel / weights.sum()


def test_expected_product_by_quadrature():
    a, b = tuples(3), tuples(4, seed=1)
    found = ExpectedProduct(WIDTHS)(a, b)
    points = np.linspace(-25.0, 25.0, 20_001)
    for i in range(3):
        for j in range(4):
            truth = 1.0
            for k, width in enumerate(WIDTHS):
                density = stats.norm.pdf(points, b[0][j, k], np.sqrt(b[1][j, k]))
                values = embedded(width, a[0][i, k], a[1][i, k], points)
                truth *= (values * density).sum() * (points[1] - points[0])
            assert_allclose(found[i, j], truth, rtol=1e-10)


def test_squared_distance_of_embeddings():
    """||mu_r - mu_s||^2 term by term, of messages by many draws at equal probabilities."""
    a, b = tuples(2, c=1), tuples(3, c=1, seed=1)
    levels = (np.arange(1500) + 0.5) / 1500
    draws = [
        [stats.norm.ppf(levels, m, np.sqrt(v)) for m, v in zip(*t, strict=True)] for t in (a, b)
    ]

    def product(x, y):
        return np.exp(-0.5 * (x[:, None] - y) ** 2 / 1.3**2).mean()

    found = embedding_squares((1.3,), a, b)
    for i, x in enumerate(draws[0]):
        for j, y in enumerate(draws[1]):
            truth = product(x, x) - 2.0 * product(x, y) + product(y, y)
            assert_allclose(found[i, j], truth, atol=2e-3)
    assert_allclose(JointEmbedding((1.3,), 0.7)(a, b), np.exp(-found / (2 * 0.49)), rtol=1e-14)


def test_correlated_formula_of_the_paper():
    """B.3 with matrices: sqrt(det(D) / det(Sigma^-1)) exp(-1/2 (m - m')^T D (m - m'))."""
    a, b = tuples(3), tuples(4, seed=1)
    found, sigma = ExpectedProduct(WIDTHS)(a, b), np.diag(np.square(WIDTHS))
    for i in range(3):
        for j in range(4):
            inverse = np.linalg.inv(np.diag(a[1][i]) + np.diag(b[1][j]) + sigma)
            gap = a[0][i] - b[0][j]
            truth = np.sqrt(np.linalg.det(inverse) * np.linalg.det(sigma))
            assert_allclose(found[i, j], truth * np.exp(-0.5 * gap @ inverse @ gap), rtol=1e-13)


def test_mean_variance():
    a, b = tuples(3), tuples(4, seed=1)
    x, y = (np.concatenate([m / WIDTHS, v / [2.0, 0.5]], axis=1) for m, v in (a, b))
    truth = np.exp(-0.5 * ((x[:, None] - y) ** 2).sum(axis=-1))
    assert_allclose(MeanVariance(WIDTHS, (2.0, 0.5))(a, b), truth, rtol=1e-14)


def test_product_and_sum_of_expected_products():
    a, b = tuples(3), tuples(4, seed=1)
    parts = tuple(ExpectedProduct((width,)) for width in WIDTHS)
    matrices = [
        part(Tuples(a[0][:, [j]], a[1][:, [j]]), Tuples(b[0][:, [j]], b[1][:, [j]]))
        for j, part in enumerate(parts)
    ]
    product = Combined(math.prod, parts)(a, b)
    assert_allclose(product, matrices[0] * matrices[1], rtol=1e-15)
    assert_allclose(Combined(sum, parts)(a, b), matrices[0] + matrices[1], rtol=1e-15)
    # with a diagonal Sigma and independent messages, B.4 is the joint expected product
    assert_allclose(product, ExpectedProduct(WIDTHS)(a, b), rtol=1e-14)


@pytest.mark.parametrize("kernel", KERNELS, ids=NAMES)
def test_is_a_kernel(kernel):
    a, b = tuples(60), tuples(5, seed=1)
    matrix = kernel(a, a)
    assert_allclose(matrix, matrix.T, rtol=1e-13)
    assert np.linalg.eigvalsh(matrix).min() > -1e-12
    assert_allclose(diagonal(kernel, a), np.diagonal(matrix), rtol=1e-13)
    assert_allclose(kernel(a, b), kernel(b, a).T, rtol=1e-13)


@pytest.mark.parametrize("kernel", KERNELS, ids=NAMES)
def test_point_masses(kernel):
    mean = np.array([[0.0, 1.0], [0.5, 1.0]])
    a = Tuples(mean, np.zeros((2, 2)))
    assert np.isfinite(kernel(a, a)).all()
    if isinstance(kernel, ExpectedProduct):
        assert_allclose(kernel(a, a)[0, 1], np.exp(-0.5 * (0.5 / 1.3) ** 2), rtol=1e-14)


def test_far_and_narrow():
    a = Tuples(np.array([[0.0, 0.0], [1e6, 0.0]]), np.array([[1e-12, 1.0], [1e-12, 1e12]]))
    for kernel in KERNELS:
        assert np.isfinite(kernel(a, a)).all()


def test_median_heuristic():
    a = tuples(31)
    found = median_heuristic(a)
    assert_allclose(np.square(found.widths), a[1].mean(axis=0), rtol=1e-14)
    squares = [
        embedding_squares(found.widths, (a[0][[i]], a[1][[i]]), (a[0][[j]], a[1][[j]]))[0, 0]
        for i in range(31)
        for j in range(31)
    ]
    assert_allclose(found.outer**2, np.median(squares), rtol=1e-12)
    half = median_heuristic(a, 0.5)
    assert_allclose(np.square(half.widths), 0.5 * np.square(found.widths), rtol=1e-14)
    assert_allclose(half.outer**2, 0.5 * found.outer**2, rtol=1e-14)


def test_width_of_point_masses():
    mean, variance = tuples(31)
    found = median_heuristic(Tuples(mean, variance * [1.0, 0.0]), 0.5)
    assert_allclose(found.widths[1] ** 2, 5.0 * mean[:, 1].var(), rtol=1e-14)
    # with labels -1 and 1 the inner kernel falls as with the messages Beta(1 + y, 2 - y)
    moments = np.array([2.0 / 3.0, 1.0 / 3.0]), 1.0 / 18.0
    away = (moments[0][0] - moments[0][1]) ** 2 / (2.0 * moments[1] + 0.5 * moments[1])
    assert_allclose(2.0**2 / 5.0, away, rtol=1e-14)


def test_median_heuristic_without_widths():
    mean, variance = tuples(5)
    with pytest.raises(ValueError, match="variance is 0 in column 1, where all means are equal"):
        median_heuristic(Tuples(mean * [1.0, 0.0], variance * [1.0, 0.0]))
    with pytest.raises(ValueError, match="half of the pairs of tuples are equal"):
        median_heuristic(Tuples(np.ones((5, 2)), np.ones((5, 2))))


def test_inputs_are_left_alone():
    a = tuples(4)
    given = [part.copy() for part in a]
    for kernel in KERNELS:
        kernel(a, a)
    assert all((x == y).all() for x, y in zip(a, given, strict=True))

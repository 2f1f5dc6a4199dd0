"""Regression on shared features against dense algebra; the grid of evidence; pivoted Cholesky."""

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from epfast.operators.learners import Ridge, evidence_grid, pivoted_cholesky


def batch(n=40, d=7, t=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) / np.sqrt(d)
    return x, x @ rng.normal(size=(d, t)) + 0.1 * rng.normal(size=(n, t)), rng


def dense(x, y, noise):
    """(12), (13) as they are written."""
    weight = 1.0 / noise
    covariance = np.linalg.inv((x.T * weight) @ x + np.eye(x.shape[1]))
    return (covariance @ (x.T * weight) @ y).T, covariance


@pytest.mark.parametrize("n", [4, 40])
def test_batch(n):
    x, y, rng = batch(n)
    noise = rng.uniform(0.01, 0.1, n)
    found = Ridge(x, y, noise)
    mean, covariance = dense(x, y, noise)
    assert_allclose(found.mean, mean, atol=1e-12)
    assert_allclose(found.covariance(), covariance, atol=1e-13)
    new = rng.normal(size=(5, x.shape[1]))
    predicted, spread = found.predict(new)
    assert_allclose(predicted, new @ mean.T, atol=1e-12)
    assert_allclose(spread, np.einsum("ni,ij,nj->n", new, covariance, new), rtol=1e-11)


def test_left_out():
    x, y, rng = batch(15)
    noise = rng.uniform(0.01, 0.1, len(x))
    residual, variance = Ridge(x, y, noise).left_out()
    for i in range(len(x)):
        others = np.delete(np.arange(len(x)), i)
        mean, spread = Ridge(x[others], y[others], noise[others]).predict(x[i : i + 1])
        assert_allclose(residual[i], y[i] - mean[0], atol=1e-12)
        assert_allclose(variance[i], spread[0] + noise[i], rtol=1e-11)


def test_left_out_with_hardly_any_noise():
    """A row that no other is like keeps a finite residual."""
    x = np.eye(3)
    for found in Ridge(x, np.ones((3, 1)), np.full(3, 1e-12)).left_out():
        assert_allclose(found, 1.0, rtol=1e-3)


def test_small_noise_keeps_its_digits():
    """Where the Gram matrix has lost all digits, the fit is that of 60 digits."""
    t = np.linspace(-1.0, 1.0, 12)
    x, y, noise = np.vander(t, 8, increasing=True) / 3.0, np.exp(t)[:, None], 1e-13
    with mpmath.workdps(60):
        design = mpmath.matrix(x.tolist())
        precision = design.T * design / mpmath.mpf(noise) + mpmath.eye(8)
        truth = mpmath.lu_solve(precision, design.T * mpmath.matrix(y.tolist()) / mpmath.mpf(noise))
        truth = np.array([float(v) for v in truth])
    assert_allclose(Ridge(x, y, np.full(12, noise)).mean[0], truth, rtol=1e-9)


# ---- pivoted Cholesky ----


def gaussian(points, width=1.0):
    return np.exp(-0.5 * ((points[:, None] - points) ** 2).sum(-1) / width**2)


def test_full_rank_is_the_matrix():
    rng = np.random.default_rng(2)
    kernel = gaussian(rng.normal(size=(20, 3)), 0.7) + 0.1 * np.eye(20)
    pivots, factor, _ = pivoted_cholesky(lambda i: kernel[i], np.diagonal(kernel), 20)
    assert_allclose(factor @ factor.T, kernel, atol=1e-14)
    assert_allclose(np.triu(factor[pivots], 1), 0.0, atol=0.0)
    assert sorted(pivots) == list(range(20))


def test_stops_at_the_numerical_rank():
    points = np.random.default_rng(3).normal(size=(300, 2))
    kernel = gaussian(points, 2.0)
    asked = []

    def column(i):
        asked.append(i)
        return kernel[i]

    pivots, factor, residual = pivoted_cholesky(column, np.ones(300), 200, tol=1e-6)
    assert asked == list(pivots)
    assert len(asked) < 80
    assert residual.max() <= 1e-6
    assert_allclose(kernel - factor @ factor.T, 0.0, atol=1.1e-6)
    assert_allclose(residual, 1.0 - (factor**2).sum(axis=1), atol=1e-12)
    # each pivot is the row that those before it explain least
    left = np.ones(300)
    for k, i in enumerate(pivots):
        assert left[i] == pytest.approx(left.max(), abs=1e-12)
        left -= factor[:, k] ** 2


def test_equal_rows_are_taken_once():
    kernel = np.ones((5, 5))
    _, factor, _ = pivoted_cholesky(lambda i: kernel[i], np.ones(5), 5, tol=0.0)
    assert factor.shape == (5, 1)


# ---- the grid of evidence ----


def test_evidence_against_dense_algebra():
    rng = np.random.default_rng(4)
    n, t = 15, 2
    a, b = rng.normal(size=(n, 2)), rng.normal(size=(n, 1))
    squares = np.array([((p[:, None] - p) ** 2).sum(-1) for p in (a, b)])
    y, relative = rng.normal(size=(n, t)), rng.uniform(0.5, 2.0, n)
    widths, noises = np.array([[0.5, 1.0], [2.0, 1.0]]), np.array([1e-6, 1e-2, 1.0])
    log_evidence, amplitudes = evidence_grid(squares, y, widths, noises, relative)
    for g, (u, v) in enumerate(widths):
        kernel = gaussian(a, u) * gaussian(b, v)
        for h, noise in enumerate(noises):
            covariance = kernel + noise * np.diag(relative)
            amplitude = np.einsum("it,ij,jt->t", y, np.linalg.inv(covariance), y) / n
            assert_allclose(amplitudes[g, h], amplitude, rtol=1e-9)
            truth = sum(
                stats.multivariate_normal.logpdf(y[:, o], cov=amplitude[o] * covariance)
                for o in range(t)
            )
            assert_allclose(log_evidence[g, h], truth, rtol=1e-9)


def test_evidence_finds_the_width_and_the_noise():
    rng = np.random.default_rng(5)
    x = rng.uniform(-3.0, 3.0, size=(150, 1))
    covariance = 4.0 * (gaussian(x, 0.5) + 1e-2 * np.eye(150))
    y = np.linalg.cholesky(covariance) @ rng.normal(size=(150, 3))
    widths, noises = np.array([[0.125], [0.25], [0.5], [1.0], [2.0]]), np.logspace(-6, 0, 7)
    log_evidence, amplitude = evidence_grid((x - x.T)[None] ** 2, y, widths, noises, np.ones(150))
    assert np.unravel_index(log_evidence.argmax(), (5, 7)) == (2, 4)
    assert_allclose(amplitude[2, 4], 4.0, rtol=0.4)


def test_output_that_does_not_vary():
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(10, 1)), rng.normal(size=(10, 1))
    grid = np.array([[0.5], [1.0]]), np.array([1e-3, 1e-1]), np.ones(10)
    squares = (x - x.T)[None] ** 2
    alone, _ = evidence_grid(squares, y, *grid)
    both, amplitude = evidence_grid(squares, np.hstack([y, np.zeros((10, 1))]), *grid)
    assert_allclose(both, alone)
    assert_allclose(amplitude[..., 1], 0.0)


def test_inputs_are_left_alone():
    x, y, rng = batch(10, 3, 2)
    noise, squares, diagonal = (
        rng.uniform(0.1, 1.0, 10),
        rng.uniform(size=(1, 10, 10)),
        np.ones(10),
    )
    given = [a.copy() for a in (x, y, noise, squares, diagonal)]
    Ridge(x, y, noise).predict(x)
    evidence_grid(squares, y, np.ones((1, 1)), np.array([0.1]), noise)
    pivoted_cholesky(lambda i: np.eye(10)[i], diagonal, 3)
    for a, b in zip(given, (x, y, noise, squares, diagonal), strict=True):
        assert (a == b).all()

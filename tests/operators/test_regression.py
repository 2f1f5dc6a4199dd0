"""Regression on shared features against dense algebra; the grid of evidence; pivoted Cholesky."""

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy import stats

from epfast.operators.regression import (
    Batch,
    Regression,
    Standard,
    evidence_grid,
    pivoted_cholesky,
)


def batch(n=40, d=7, t=3, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, d)) / np.sqrt(d)
    return x, x @ rng.normal(size=(d, t)) + 0.1 * rng.normal(size=(n, t)), rng


def dense(x, y, noise, prior):
    """(12), (13) as they are written."""
    weight = 1.0 / np.broadcast_to(noise, len(x))
    covariance = np.linalg.inv((x.T * weight) @ x + np.eye(x.shape[1]) / prior)
    return (covariance @ (x.T * weight) @ y).T, covariance


@pytest.mark.parametrize("noise", [0.01, "rows"])
@pytest.mark.parametrize("prior", [1.0, 3.0])
@pytest.mark.parametrize("n", [4, 40])
def test_batch(n, noise, prior):
    x, y, rng = batch(n)
    noise = rng.uniform(0.01, 0.1, n) if noise == "rows" else noise
    found = Regression.fit(x, y, noise, prior)
    mean, covariance = dense(x, y, noise, prior)
    assert_allclose(found.mean, mean, atol=1e-12)
    assert_allclose(found.covariance, covariance, atol=1e-13)
    new = rng.normal(size=(5, x.shape[1]))
    predicted = found.predict(new)
    assert_allclose(predicted.mean, new @ mean.T, atol=1e-12)
    assert_allclose(predicted.spread, np.einsum("ni,ij,nj->n", new, covariance, new), rtol=1e-11)


def test_2000_updates_are_the_batch():
    rng = np.random.default_rng(1)
    # features as those of a smooth kernel: a spectrum that falls off
    x = rng.normal(size=(2300, 200)) * np.logspace(-0.5, -4.0, 200)
    y = rng.normal(size=(2300, 2))
    found = Regression.fit(x[:300], y[:300], 1e-4)
    for row, target in zip(x[300:], y[300:], strict=True):
        found.update(row, target, 1e-4)
    whole = Regression.fit(x, y, 1e-4)
    mean, covariance = dense(x, y, 1e-4, 1.0)
    for regression in (found, whole):
        assert_allclose(regression.mean, mean, atol=1e-10)
        assert_allclose(regression.covariance, covariance, atol=1e-10)
    assert_allclose(found.mean, whole.mean, atol=1e-10)
    assert_allclose(found.covariance, whole.covariance, atol=1e-10)


def test_updates_of_rows_with_their_own_noise():
    x, y, rng = batch()
    noise = rng.uniform(0.01, 0.1, len(x))
    found = Regression.fit(x[:10], y[:10], noise[:10], 2.0)
    apart = found.copy()
    for i in range(10, len(x)):
        before = found.predict(x[i : i + 1]).spread[0]
        assert_allclose(found.update(x[i], y[i], noise[i]), before, rtol=1e-12)
        assert found.predict(x[i : i + 1]).spread[0] < before
    mean, covariance = dense(x, y, noise, 2.0)
    assert_allclose(found.mean, mean, atol=1e-11)
    assert_allclose(found.covariance, covariance, atol=1e-12)
    assert_allclose(apart.mean, dense(x[:10], y[:10], noise[:10], 2.0)[0], atol=1e-11)


@pytest.mark.parametrize("n", [4, 40])
def test_log_evidence(n):
    x, y, rng = batch(n)
    noise = rng.uniform(0.01, 0.1, n)
    covariance = 3.0 * x @ x.T + np.diag(noise)
    truth = stats.multivariate_normal.logpdf(y.T, cov=covariance)
    assert_allclose(Batch(x, y, noise, 3.0).log_evidence(), truth, rtol=1e-10)


def test_left_out():
    x, y, rng = batch(15)
    noise = rng.uniform(0.01, 0.1, len(x))
    found = Batch(x, y, noise, 2.0).left_out()
    for i in range(len(x)):
        others = np.delete(np.arange(len(x)), i)
        predicted = Regression.fit(x[others], y[others], noise[others], 2.0).predict(x[i : i + 1])
        assert_allclose(found.residual[i], y[i] - predicted.mean[0], atol=1e-12)
        assert_allclose(found.variance[i], predicted.spread[0] + noise[i], rtol=1e-11)


def test_left_out_with_hardly_any_noise():
    """A row that no other is like keeps a finite residual."""
    x = np.eye(3)
    found = Batch(x, np.ones((3, 1)), 1e-12).left_out()
    assert_allclose(found.residual, 1.0, rtol=1e-3)
    assert_allclose(found.variance, 1.0, rtol=1e-3)


def test_small_noise_keeps_its_digits():
    """Where the Gram matrix has lost all digits, the fit is that of 60 digits."""
    t = np.linspace(-1.0, 1.0, 12)
    x, y, noise = np.vander(t, 8, increasing=True) / 3.0, np.exp(t)[:, None], 1e-13
    with mpmath.workdps(60):
        design = mpmath.matrix(x.tolist())
        precision = design.T * design / mpmath.mpf(noise) + mpmath.eye(8)
        truth = mpmath.lu_solve(precision, design.T * mpmath.matrix(y.tolist()) / mpmath.mpf(noise))
        truth = np.array([float(v) for v in truth])
    assert_allclose(Regression.fit(x, y, noise).mean[0], truth, rtol=1e-9)


def test_standard_units():
    y = np.array([[1.0, 5.0], [3.0, 5.0], [5.0, 5.0]])
    units = Standard.of(y)
    scaled = units.apply(y)
    assert_allclose(scaled.mean(axis=0), 0.0, atol=1e-15)
    assert_allclose(scaled.std(axis=0), [1.0, 0.0])
    assert units.sd[1] == 1.0
    assert_allclose(units.undo(scaled), y)
    # what rounding leaves is no unit
    assert Standard.of(np.full((10, 1), 0.1)).sd[0] == 1.0


# ---- pivoted Cholesky ----


def gaussian(points, width=1.0):
    return np.exp(-0.5 * ((points[:, None] - points) ** 2).sum(-1) / width**2)


def test_full_rank_is_the_matrix():
    rng = np.random.default_rng(2)
    kernel = gaussian(rng.normal(size=(20, 3)), 0.7) + 0.1 * np.eye(20)
    found = pivoted_cholesky(lambda i: kernel[i], np.diagonal(kernel), 20)
    assert_allclose(found.factor @ found.factor.T, kernel, atol=1e-14)
    assert_allclose(np.triu(found.triangle, 1), 0.0, atol=0.0)
    assert sorted(found.pivots) == list(range(20))


def test_stops_at_the_numerical_rank():
    points = np.random.default_rng(3).normal(size=(300, 2))
    kernel = gaussian(points, 2.0)
    asked = []

    def column(i):
        asked.append(i)
        return kernel[i]

    found = pivoted_cholesky(column, np.ones(300), 200, tol=1e-6)
    assert asked == list(found.pivots)
    assert len(asked) < 80
    assert found.residual.max() <= 1e-6
    assert_allclose(kernel - found.factor @ found.factor.T, 0.0, atol=1.1e-6)
    assert_allclose(found.residual, 1.0 - (found.factor**2).sum(axis=1), atol=1e-12)
    # each pivot is the row that those before it explain least
    left = np.ones(300)
    for k, i in enumerate(found.pivots):
        assert left[i] == pytest.approx(left.max(), abs=1e-12)
        left -= found.factor[:, k] ** 2


def test_equal_rows_are_taken_once():
    kernel = np.ones((5, 5))
    found = pivoted_cholesky(lambda i: kernel[i], np.ones(5), 5, tol=0.0)
    assert found.factor.shape == (5, 1)


# ---- the grid of evidence ----


def test_evidence_against_dense_algebra():
    rng = np.random.default_rng(4)
    n, t = 15, 2
    a, b = rng.normal(size=(n, 2)), rng.normal(size=(n, 1))
    squares = np.array([((p[:, None] - p) ** 2).sum(-1) for p in (a, b)])
    y, relative = rng.normal(size=(n, t)), rng.uniform(0.5, 2.0, n)
    widths, noises = np.array([[0.5, 1.0], [2.0, 1.0]]), np.array([1e-6, 1e-2, 1.0])
    found = evidence_grid(squares, y, widths, noises, relative)
    for g, (u, v) in enumerate(widths):
        kernel = gaussian(a, u) * gaussian(b, v)
        for h, noise in enumerate(noises):
            covariance = kernel + noise * np.diag(relative)
            amplitude = np.einsum("it,ij,jt->t", y, np.linalg.inv(covariance), y) / n
            assert_allclose(found.amplitude[g, h], amplitude, rtol=1e-9)
            truth = sum(
                stats.multivariate_normal.logpdf(y[:, o], cov=amplitude[o] * covariance)
                for o in range(t)
            )
            assert_allclose(found.log_evidence[g, h], truth, rtol=1e-9)
    i, j = found.best
    assert found.log_evidence[i, j] == found.log_evidence.max()


def test_evidence_finds_the_width_and_the_noise():
    rng = np.random.default_rng(5)
    x = rng.uniform(-3.0, 3.0, size=(150, 1))
    covariance = 4.0 * (gaussian(x, 0.5) + 1e-2 * np.eye(150))
    y = np.linalg.cholesky(covariance) @ rng.normal(size=(150, 3))
    widths, noises = np.array([[0.125], [0.25], [0.5], [1.0], [2.0]]), np.logspace(-6, 0, 7)
    found = evidence_grid((x - x.T)[None] ** 2, y, widths, noises)
    assert found.best == (2, 4)
    assert_allclose(found.amplitude[found.best], 4.0, rtol=0.4)


def test_output_that_does_not_vary():
    rng = np.random.default_rng(6)
    x, y = rng.normal(size=(10, 1)), rng.normal(size=(10, 1))
    widths, noises, squares = [[0.5], [1.0]], [1e-3, 1e-1], (x - x.T)[None] ** 2
    alone = evidence_grid(squares, y, widths, noises)
    both = evidence_grid(squares, np.hstack([y, np.zeros((10, 1))]), widths, noises)
    assert_allclose(both.log_evidence, alone.log_evidence)
    assert_allclose(both.amplitude[..., 1], 0.0)


# ---- the door ----


def refused(match, function, *args, **kwargs):
    with pytest.raises((ValueError, TypeError), match=match):
        function(*args, **kwargs)


def test_door():
    x, y, _ = batch(5, 3, 2)
    refused("noise is 0", Regression.fit, x, y, 0.0)
    refused("noise has shape", Regression.fit, x, y, np.ones(4))
    refused("noise has a minimum", Regression.fit, x, y, -np.ones(5))
    refused("prior is nan", Regression.fit, x, y, 1.0, np.nan)
    refused("features holds NaN", Regression.fit, np.full((5, 3), np.nan), y, 1.0)
    refused("features has shape", Regression.fit, np.ones((0, 3)), np.ones((0, 2)), 1.0)
    refused("targets has shape", Regression.fit, x, y[:4], 1.0)
    found = Regression.fit(x, y, 1.0)
    refused("features has shape", found.predict, x[:, :2])
    refused("features has shape", found.update, x, y[0], 1.0)
    refused("targets has shape", found.update, x[0], y, 1.0)
    refused("noise is 0", found.update, x[0], y[0], 0.0)
    refused("targets has shape", Standard.of, np.ones((0, 2)))
    refused("rank is 0", pivoted_cholesky, lambda i: np.ones(2), np.ones(2), 0)
    refused("tol is -1", pivoted_cholesky, lambda i: np.ones(2), np.ones(2), 1, -1.0)
    refused("diagonal", pivoted_cholesky, lambda i: np.ones(2), -np.ones(2), 1)
    refused("kernel_column", pivoted_cholesky, lambda i: np.ones(3), np.ones(2), 1)
    refused("squares has shape", evidence_grid, np.ones((1, 5, 4)), y, [[1.0]], [1.0])
    refused("widths has a minimum", evidence_grid, np.ones((1, 5, 5)), y, [[0.0]], [1.0])
    refused("noises has a minimum", evidence_grid, np.ones((1, 5, 5)), y, [[1.0]], [0.0])
    refused("at least one", evidence_grid, np.ones((1, 5, 5)), y, [[1.0]], [])
    refused("relative", evidence_grid, np.ones((1, 5, 5)), y, [[1.0]], [1.0], np.zeros(5))


def test_inputs_are_left_alone():
    x, y, rng = batch(10, 3, 2)
    noise, squares = rng.uniform(0.1, 1.0, 10), rng.uniform(size=(1, 10, 10))
    given = [a.copy() for a in (x, y, noise, squares)]
    found = Regression.fit(x, y, noise)
    found.update(x[0], y[0], 0.1)
    found.predict(x)
    evidence_grid(squares, y, [[1.0]], [0.1])
    diagonal = np.ones(10)
    pivoted_cholesky(lambda i: np.eye(10)[i], diagonal, 3)
    assert (diagonal == 1.0).all()
    for a, b in zip(given, (x, y, noise, squares), strict=True):
        assert (a == b).all()

"""Density of Gaussian noise whose precision has a gamma distribution."""

from __future__ import annotations

import numpy as np

from epfast._arrays import Array
from epfast.families import Gamma

#: points and weights of a panel
POINTS, WEIGHTS = np.polynomial.legendre.leggauss(16)
#: distances from a centre at which panels end, in units of its width
ENDS = np.concatenate([[0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0], 6.0 * 1.4 ** np.arange(30)])
ENDS = np.concatenate([-ENDS[:0:-1], ENDS])


def log_noise_density(mean: Array, variance: Array, shape: Array, rate: Array) -> Array:
    """Log of int N(0 | mean, variance + 1 / tau) Ga(tau | shape, rate) dtau, (n,).

    Gauss-Legendre quadrature in t = log(tau rate / shape), with panels that are narrow near the
    modes. There are at most two modes and a minimum between them, the roots of a cubic in exp(t).
    """
    # in units in which tau is about 1 under the prior
    scale = rate / shape
    with np.errstate(all="ignore"):
        v, m = variance / scale, mean / np.sqrt(scale)
        square = m * m
        centers, widths = _centers(v, square, shape)
        ends = (centers[:, :, None] + widths[:, :, None] * ENDS).reshape(len(v), -1)
        ends.sort(axis=1)
        logs = _log_integrand(ends, v[:, None], square[:, None], shape[:, None])
        logs = np.where(np.isnan(logs), -np.inf, logs)
        top = logs.max(axis=1)
        top = np.where(np.isfinite(top), top, 0.0)
        # panels that matter: between modes and minima the integrand is largest at an end
        high = np.maximum(logs[:, 1:], logs[:, :-1]) > top[:, None] - 80.0
        row, panel = np.nonzero(high)
        left, right = ends[row, panel], ends[row, panel + 1]
        half = 0.5 * (right - left)[:, None]
        t = left[:, None] + half + half * POINTS
        logs = _log_integrand(t, v[row, None], square[row, None], shape[row, None])
        sums = (np.exp(logs - top[row, None]) * WEIGHTS).sum(axis=1) * half[:, 0]
        total = top + np.log(np.bincount(row, sums, len(v)))
    # log Gamma(a) - a log a + a, by a series without cancellation where a is large
    large = np.maximum(shape, 100.0)
    small = np.minimum(shape, 100.0)
    u = 1.0 / large
    series = 0.5 * np.log(2.0 * np.pi * u) + u * (1 / 12 - u * u * (1 / 360 - u * u / 1260))
    plain = Gamma.log_partition(np.stack([small - 1.0, small], axis=1)) + small
    norm = np.where(shape > 100.0, series, plain)
    found = total - norm - 0.5 * np.log(2.0 * np.pi * scale)
    with np.errstate(all="ignore"):
        alone = -0.5 * (np.log(2.0 * np.pi) + np.log(variance) + mean / variance * mean)
    # noise that vanishes beside the variance in doubles
    return np.where(np.isinf(v), alone, found)


def _log_integrand(t: Array, v: Array, square: Array, shape: Array) -> Array:
    spread = v + np.exp(-t)
    return np.asarray(-shape * (np.expm1(t) - t) - 0.5 * np.log(spread) - 0.5 * square / spread)


def _centers(v: Array, square: Array, a: Array) -> tuple[Array, Array]:
    """Modes and other centres of the integrand, and its widths there, (n, k)."""
    # derivative 0, with z = exp(-t): a (z - 1) (z + v)^2 + z^2 (z + v) / 2 - square z^2 / 2 = 0
    whole = v, square
    v, square = np.minimum(v, 1e100), np.minimum(square, 1e100)
    cubic = np.stack(
        [
            a + 0.5,
            2.0 * a * v - a + 0.5 * v - 0.5 * square,
            a * v * v - 2.0 * a * v,
            -a * v * v,
        ]
    )
    cubic = cubic[1:] / cubic[0]
    companion = np.zeros((len(a), 3, 3))
    companion[:, 1, 0] = companion[:, 2, 1] = 1.0
    companion[:, :, 2] = -cubic[::-1].T
    z = np.linalg.eigvals(companion).real
    v, square = whole
    # the last two: the mode of the prior, and the mode for v = 0
    saddle = (square + 2.0 * a) / (2.0 * a + 1.0)
    bends = np.stack([v, 0.5 * square, 1.0 / a, np.ones_like(a), saddle], axis=1)
    with np.errstate(all="ignore"):
        centers = -np.log(np.concatenate([z, bends], axis=1))
        centers = np.where(np.isfinite(centers), np.clip(centers, -708.0, 708.0), 0.0)
        # minus the second derivative
        s = np.exp(-centers)
        v, square, a = v[:, None], square[:, None], a[:, None]
        spread = v + s
        share = s / spread
        curve = a / s + 0.5 * share * (v / spread + square / spread * (s - v) / spread)
        widths = 1.0 / np.sqrt(np.abs(curve))
    widths = np.where(np.isfinite(widths), np.clip(widths, 1e-8, 1.0), 1.0)
    widths[:, 3:6] = 1.0
    return centers, widths

"""EP of rows with a full covariance in NumPy, and the rows that the scripts on speed fit."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.special import erfcx, log_ndtr

Array = NDArray[np.float64]
#: slope and curvature of log Z in the mean of the cavity, from y, its mean and its variance
Moments = Callable[[Array, Array, Array], tuple[Array, Array]]

TOLERANCE = 1e-6
#: rows whose products stay in cache
CHUNK = 512


def synthetic(n: int, d: int, loss: str) -> tuple[Array, Array]:
    """Rows, the last column constant, and labels drawn from the model."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    X[:, -1] = 1.0
    noise = rng.standard_normal(n) if loss == "probit" else rng.logistic(size=n)
    return X, np.where(X @ (rng.standard_normal(d) / np.sqrt(d)) + noise > 0.0, 1.0, -1.0)


def plain_probit(y: Array, m: Array, v: Array) -> tuple[Array, Array]:
    """The formulas of GPML."""
    root = 1.0 / np.sqrt(1.0 + v)
    z = y * m * root
    r = np.exp(-0.5 * (z * z + np.log(2.0 * np.pi)) - log_ndtr(z))
    return y * r * root, -r * (z + r) * root * root


def fast_probit(y: Array, m: Array, v: Array) -> tuple[Array, Array]:
    """The same by erfcx alone, for z below its overflow at 37."""
    root = 1.0 / np.sqrt(1.0 + v)
    z = y * m * root
    r = np.sqrt(2.0 / np.pi) / erfcx(-np.sqrt(0.5) * np.minimum(z, 37.0))
    return y * r * root, -r * (z + r) * root * root


def logistic(nodes: int = 24) -> Moments:
    """Moments by a Gauss-Hermite rule: values at all nodes, then a product with the weights."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    w /= w.sum()
    weights = np.stack([w, w * x, w * (x * x - 1.0)], axis=1)
    buffers: dict[int, Array] = {}

    def moments(y: Array, m: Array, v: Array) -> tuple[Array, Array]:
        t = buffers.setdefault(len(y), np.empty((len(y), nodes)))
        sd = np.sqrt(v)
        np.multiply((-y * sd)[:, None], x, out=t)
        t += (-y * m)[:, None]
        np.exp(t, out=t)
        t += 1.0
        np.reciprocal(t, out=t)
        Z, first, second = (t @ weights).T
        slope = first / Z
        return slope / sd, (second / Z - slope * slope) / v

    return moments


def parallel(
    X: Array,
    y: Array,
    moments: Moments,
    triangular: bool = False,
    sweeps: int = 50,
) -> tuple[Array, Array, int]:
    """Mean, covariance and sweeps of parallel EP, prior N(0, I); ``sweeps + 1`` if it fails.

    The variances of the rows a come from a product X Sigma, or from the squares of the
    triangular product X L^-T. The first four sweeps are damped by a half.
    """
    n, d = X.shape
    tau, nu = np.zeros(n), np.zeros(n)
    mean, variance, Sigma, root = np.zeros(d), np.ones(d), np.eye(d), np.eye(d)
    V = np.empty((min(CHUNK, n), d))
    for sweep in range(1, sweeps + 1):
        step = 0.5 if sweep <= 4 else 1.0
        precision, shift = np.eye(d), np.zeros(d)
        for lo in range(0, n, CHUNK):
            part = slice(lo, min(lo + CHUNK, n))
            A, t, b = X[part], tau[part], nu[part]
            work, h = V[: len(A)], A @ mean
            if triangular:
                work[...] = A
                linalg.blas.dtrmm(1.0, root, work.T, lower=1, overwrite_b=1)
                s = np.einsum("ij,ij->i", work, work)
            else:
                np.matmul(A, Sigma, out=work)
                s = np.einsum("ij,ij->i", work, A)
            rest = 1.0 - t * s
            m, v = (h - b * s) / rest, s / rest
            slope, curvature = moments(y[part], m, v)
            shrink = 1.0 + v * curvature
            t += step * (-curvature / shrink - t)
            b += step * ((slope - m * curvature) / shrink - b)
            np.maximum(t, 0.0, out=t)  # these losses are log-concave
            np.multiply(A, np.sqrt(t)[:, None], out=work)
            precision += work.T @ work  # NumPy takes syrk for this
            shift += b @ A
        if not np.isfinite(precision).all():  # undamped steps can run away
            break
        factor = linalg.cho_factor(precision, lower=True)
        Sigma = linalg.cho_solve(factor, np.eye(d))
        root = linalg.solve_triangular(factor[0], np.eye(d), lower=True)  # root' root = Sigma
        old_mean, old_variance = mean, variance
        mean, variance = Sigma @ shift, np.diag(Sigma).copy()
        change = max(
            np.abs((mean - old_mean) / np.sqrt(variance)).max(),
            0.5 * np.abs(np.log(old_variance / variance)).max(),
        )
        if change <= step * TOLERANCE:
            return mean, Sigma, sweep
    return mean, Sigma, sweeps + 1

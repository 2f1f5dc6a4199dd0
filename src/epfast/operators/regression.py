"""Bayesian linear regression on shared features, and what chooses its kernel and its dictionary.

Equations are those of Jitkrittum et al. (2015), Kernel-based just-in-time learning for passing
expectation propagation messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from epfast._arrays import Array

#: largest value of an output, over that of all, below which it does not vary but by rounding
FIXED = 1e-12


class Ridge:
    """Weights w_o ~ N(0, I) of T outputs y_o = x^T w_o + noise, by a batch of rows: (12), (13).

    The triangle of a QR decomposition is the Cholesky factor of the precision in (12), with twice
    the digits that its Gram matrix would leave. A fit costs (n + D) D^2.

    Parameters
    ----------
    features : ndarray of shape (n, D)
    targets : ndarray of shape (n, T)
    noise : ndarray of shape (n,)
        Variances of the noise of the rows.
    """

    def __init__(self, features: Array, targets: Array, noise: Array) -> None:
        n, d = features.shape
        self.features, self.targets, self.noise = features, targets, noise
        root = np.sqrt(noise)[:, None]
        #: x_i / sigma_i = leverage_i R, R^T R the precision of the weights
        orthogonal, self.triangle = linalg.qr(
            np.concatenate([features / root, np.eye(d)]),
            mode="economic",
            overwrite_a=True,
            check_finite=False,
        )
        self._leverages = orthogonal[:n]
        #: (T, D)
        self.mean: Array = linalg.solve_triangular(
            self.triangle, self._leverages.T @ (targets / root), check_finite=False
        ).T

    def covariance(self) -> Array:
        """Covariance of the weights of each output, (D, D)."""
        inverse = self._inverse()
        return np.asarray(inverse @ inverse.T)

    def predict(self, features: Array) -> tuple[Array, Array]:
        """Outputs of rows (m, T), and x^T Sigma x (m,), which (15) has in common for all."""
        spread = ((features @ self._inverse()) ** 2).sum(axis=1)
        return features @ self.mean.T, np.asarray(spread)

    def left_out(self) -> tuple[Array, Array]:
        """Each row from the others: what is left of the outputs, (n, T), and its variance (n,)."""
        # share of a row's own output in its prediction: x^T Sigma x / noise
        own = np.minimum((self._leverages**2).sum(axis=1), 1.0 - 1e-15)
        residual = self.targets - self.features @ self.mean.T
        return residual / (1.0 - own)[:, None], self.noise / (1.0 - own)

    def _inverse(self) -> Array:
        identity = np.eye(len(self.triangle))
        return np.asarray(linalg.solve_triangular(self.triangle, identity, check_finite=False))


def pivoted_cholesky(
    kernel_column: Callable[[int], Array], diagonal: Array, rank: int, tol: float = 1e-6
) -> tuple[NDArray[np.intp], Array, Array]:
    """Take the row of a kernel matrix that the others explain least, again and again.

    An incomplete Cholesky factor, K ~ factor factor^T.

    Parameters
    ----------
    kernel_column : callable
        Column i of the matrix, (n,).
    diagonal : ndarray of shape (n,)
    rank : int
        Most rows taken.
    tol : float, default=1e-06
        Part of the largest diagonal entry below which nothing is left to explain.

    Returns
    -------
    pivots : ndarray of shape (r,)
        Rows in the order in which they were taken.
    factor : ndarray of shape (n, r)
        Its rows of the pivots are lower triangular: the Cholesky factor of their kernel matrix.
    residual : ndarray of shape (n,)
        What is left of the diagonal.

    Notes
    -----
    O(n r^2), and r columns of the kernel.
    """
    left = diagonal.copy()
    rank = min(rank, len(left))
    enough = max(tol, 4.0 * np.finfo(np.float64).eps) * left.max()
    factor = np.zeros((rank, len(left)))  # transposed: rows are appended
    pivots = np.zeros(rank, dtype=np.intp)
    for k in range(rank):
        i = int(left.argmax())
        if left[i] <= enough:
            return pivots[:k], factor[:k].T, left
        root = math.sqrt(left[i])
        row = (kernel_column(i) - factor[:k, i] @ factor[:k]) / root
        row[pivots[:k]] = 0.0
        row[i] = root
        pivots[k], factor[k] = i, row
        left = np.maximum(left - row * row, 0.0)
        left[pivots[: k + 1]] = 0.0
    return pivots, factor.T, left


def evidence_grid(
    squares: Array, targets: Array, widths: Array, noises: Array, relative: Array
) -> tuple[Array, Array]:
    """Log evidence of Gaussian processes with the kernels exp(-1/2 sum_k squares_k / w_k^2).

    Parameters
    ----------
    squares : ndarray of shape (k, n, n)
        Squared distances in each of k kinds of coordinates.
    targets : ndarray of shape (n, T)
        Outputs. Each has an amplitude a of its own: its covariance is a (K + noise diag(relative)).
        One that is 0 throughout says nothing.
    widths : ndarray of shape (g, k)
    noises : ndarray of shape (h,)
        Variances of the noise over the amplitude.
    relative : ndarray of shape (n,)
        Noise of the rows in relation to each other.

    Returns
    -------
    log_evidence : ndarray of shape (g, h)
        Summed over outputs.
    amplitude : ndarray of shape (g, h, T)
        The best amplitude of each output.

    Notes
    -----
    One eigendecomposition per width, g n^3, serves all noises and outputs. The amplitude that is
    best is the mean of (U^T z)^2 / (lambda + noise).
    """
    n = len(targets)
    root = np.sqrt(relative)
    size = np.abs(targets).max(axis=0)
    varies = size > FIXED * size.max()
    z = targets / root[:, None]
    log_evidence = np.empty((len(widths), len(noises)))
    amplitude = np.empty((*log_evidence.shape, z.shape[1]))
    for g, width in enumerate(widths):
        exponent = np.tensordot(-0.5 / width**2, squares, axes=1)
        kernel = np.exp(exponent, out=exponent)
        # K + noise diag(r) = r^1/2 (r^-1/2 K r^-1/2 + noise) r^1/2
        kernel /= root[:, None] * root
        eigenvalues, vectors = linalg.eigh(kernel, overwrite_a=True, check_finite=False)
        spectrum = np.maximum(eigenvalues, 0.0)[:, None] + noises  # (n, h)
        rotated = (vectors.T @ z) ** 2  # (n, T)
        amplitude[g] = (1.0 / spectrum).T @ rotated / n
        log_evidence[g] = -0.5 * (
            n * (np.log(2.0 * math.pi * amplitude[g][:, varies]) + 1.0).sum(axis=1)
            + varies.sum() * (np.log(spectrum).sum(axis=0) + np.log(relative).sum())
        )
    return log_evidence, amplitude

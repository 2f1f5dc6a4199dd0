"""Bayesian linear regression on shared features, and what chooses its kernel and its dictionary.

Equations are those of Jitkrittum et al. (2015), Kernel-based just-in-time learning for passing
expectation propagation messages.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg
from scipy.linalg import blas

from epfast import _checks
from epfast._arrays import Array, symmetric_from_upper

#: largest value of an output, over that of all, below which it does not vary but by rounding
FIXED = 1e-12


class Standard(NamedTuple):
    """Units of outputs: mean and standard deviation of a first batch."""

    #: (T,)
    mean: Array
    #: (T,), 1 where an output does not vary
    sd: Array

    @classmethod
    def of(cls, targets: Array) -> Standard:
        """Units of a batch (n, T)."""
        given = _checks.array("targets", targets, shape=(None, None))
        if len(given) == 0:
            raise ValueError("targets has shape (0, T); allowed: at least one row")
        mean, sd = given.mean(axis=0), given.std(axis=0)
        # an output that does not vary but by rounding has no unit
        fixed = sd <= 1e-14 * np.abs(given).max(axis=0)
        return cls(mean, np.where(fixed, 1.0, sd))

    def apply(self, targets: Array) -> Array:
        """Outputs (n, T) in these units."""
        return (targets - self.mean) / self.sd

    def undo(self, standardised: Array) -> Array:
        """Outputs (n, T) from these units."""
        return self.mean + self.sd * standardised


class Prediction(NamedTuple):
    """Outputs of new tuples, without the noise."""

    #: (n, T)
    mean: Array
    #: variance x^T Sigma x (n,), which (15) has in common for all outputs
    spread: Array


class LeftOut(NamedTuple):
    """Each row of a batch, predicted from the others."""

    #: outputs less predictions (n, T)
    residual: Array
    #: variance of the residuals, noise included (n,)
    variance: Array


class Regression:
    """Weights w_o ~ N(0, prior I) of T outputs y_o = x^T w_o + noise, whose covariance they share.

    Attributes
    ----------
    mean : ndarray of shape (T, D)
    upper : ndarray of shape (D, D)
        Upper triangle of the covariance. What stands below it is not read.

    Notes
    -----
    A prediction costs D (D + T), an update 2 D^2 + T D, a fit of n rows (n + D) D^2.
    """

    def __init__(self, mean: Array, upper: Array) -> None:
        self.mean = _checks.array("mean", mean, shape=(None, None)).copy()
        d = self.mean.shape[1]
        self.upper = _checks.array("upper", upper, shape=(d, d)).copy()

    @classmethod
    def fit(cls, features: Array, targets: Array, noise: Any, prior: float = 1.0) -> Regression:
        """The posterior of a batch, (12) and (13).

        Parameters
        ----------
        features : array_like of shape (n, D)
        targets : array_like of shape (n, T)
        noise : float or array_like of shape (n,)
            Variance of the noise, of all rows or of each.
        prior : float, default=1.0
            Variance of each weight.
        """
        return Batch(features, targets, noise, prior).regression()

    @property
    def covariance(self) -> Array:
        """Covariance of the weights of each output, (D, D)."""
        return symmetric_from_upper(self.upper)

    def predict(self, features: Array) -> Prediction:
        """Outputs of rows of features (n, D), (15) without the noise."""
        x = _checks.array("features", features, shape=(None, len(self.upper)))
        # dsymm reads one triangle; its order is Fortran's, so the upper one is the lower there
        product = blas.dsymm(1.0, self.upper.T, x.T, lower=1)
        return Prediction(x @ self.mean.T, np.einsum("ni,in->n", x, product))

    def update(self, features: Array, targets: Array, noise: float) -> float:
        """Take in one row, (16) as a gain, and return x^T Sigma x before it.

        Parameters
        ----------
        features : array_like of shape (D,)
        targets : array_like of shape (T,)
        noise : float
            Variance of the noise.
        """
        t, d = self.mean.shape
        x = _checks.array("features", features, shape=(d,))
        y = _checks.array("targets", targets, shape=(t,))
        noise = _checks.number("noise", noise, above=0.0)
        column = blas.dsymv(1.0, self.upper.T, x, lower=1)
        spread = float(x @ column)
        scale = 1.0 / (noise + spread)
        self.mean += np.outer(y - self.mean @ x, scale * column)
        # one triangle: the covariance stays symmetric whatever is rounded
        blas.dsyr(-scale, column, lower=1, a=self.upper.T, overwrite_a=1)
        return spread

    def copy(self) -> Regression:
        """The same, apart from this one."""
        return Regression(self.mean, self.upper)


class Batch:
    """A batch of rows by QR: posterior, log evidence, and each row from the others.

    The parameters are those of :meth:`Regression.fit`. The triangle of QR is the Cholesky factor of
    the precision in (12), with twice the digits that its Gram matrix would leave.
    """

    def __init__(self, features: Array, targets: Array, noise: Any, prior: float = 1.0) -> None:
        x = _checks.array("features", features, shape=(None, None))
        if 0 in x.shape:
            raise ValueError(f"features has shape {x.shape}; allowed: at least one row and column")
        self.targets = _checks.array("targets", targets, shape=(len(x), None))
        self.noise = row_noise(noise, len(x))
        self.prior = _checks.number("prior", prior, above=0.0)
        self.features = x
        n, d = x.shape
        root = np.sqrt(self.noise)[:, None]
        rows = np.concatenate([x / root, np.eye(d) / math.sqrt(self.prior)])
        scaled = np.concatenate([self.targets / root, np.zeros((d, self.targets.shape[1]))])
        #: x_i / sigma_i = leverage_i R, R^T R the precision of the weights
        orthogonal, self.triangle = linalg.qr(
            rows, mode="economic", overwrite_a=True, check_finite=False
        )
        self._leverages = orthogonal[:n]
        self.mean = linalg.solve_triangular(
            self.triangle, orthogonal.T @ scaled, check_finite=False
        ).T
        self._residual = self.targets - x @ self.mean.T

    def regression(self) -> Regression:
        """The posterior, to be updated row by row."""
        inverse = linalg.solve_triangular(
            self.triangle, np.eye(len(self.triangle)), check_finite=False
        )
        return Regression(self.mean, inverse @ inverse.T)

    def log_evidence(self) -> Array:
        """Log density of the outputs (T,) under N(0, prior X X^T + noise)."""
        n, d = self.features.shape
        squares = (self._residual**2 / self.noise[:, None]).sum(axis=0)
        squares += (self.mean**2).sum(axis=1) / self.prior
        log_det = 2.0 * np.log(np.abs(np.diagonal(self.triangle))).sum()
        log_det += d * math.log(self.prior) + np.log(self.noise).sum()
        found: Array = -0.5 * (squares + log_det + n * math.log(2.0 * math.pi))
        return found

    def left_out(self) -> LeftOut:
        """Each row from the others, in closed form."""
        # share of a row's own output in its prediction: x^T Sigma x / noise
        own = np.minimum((self._leverages**2).sum(axis=1), 1.0 - 1e-15)
        return LeftOut(self._residual / (1.0 - own)[:, None], self.noise / (1.0 - own))


def row_noise(noise: Any, n: int) -> Array:
    """Variances of the noise of n rows, from one for all or one each."""
    given = _checks.real_array("noise", noise)
    if given.ndim == 0:
        return np.full(n, _checks.number("noise", noise, above=0.0))
    return _checks.array("noise", given, shape=(n,), positive=True)


class PivotedCholesky(NamedTuple):
    """Incomplete Cholesky factor of a kernel matrix, K ~ factor factor^T."""

    #: rows in the order in which they were taken (r,)
    pivots: NDArray[np.intp]
    #: (n, r). That of the pivots is lower triangular
    factor: Array
    #: what is left of the diagonal (n,)
    residual: Array

    @property
    def triangle(self) -> Array:
        """Cholesky factor of the kernel matrix of the pivots, (r, r)."""
        return self.factor[self.pivots]


def pivoted_cholesky(
    kernel_column: Callable[[int], Array], diagonal: Array, rank: int, tol: float = 1e-6
) -> PivotedCholesky:
    """Take the row of a kernel matrix that the others explain least, again and again.

    Parameters
    ----------
    kernel_column : callable
        Column i of the matrix, (n,).
    diagonal : array_like of shape (n,)
    rank : int
        Most rows taken.
    tol : float, default=1e-06
        Part of the largest diagonal entry below which nothing is left to explain.

    Notes
    -----
    O(n r^2), and r columns of the kernel.
    """
    left = _checks.array("diagonal", diagonal, shape=(None,)).copy()
    n = len(left)
    rank = min(_checks.integer("rank", rank, least=1), n)
    tol = _checks.number("tol", tol, least=0.0)
    if n == 0 or not (left >= 0.0).all():
        raise ValueError("diagonal is empty or has negative entries; allowed: (n,), numbers >= 0")
    enough = max(tol, 4.0 * np.finfo(np.float64).eps) * left.max()
    factor = np.zeros((rank, n))  # transposed: rows are appended
    pivots = np.zeros(rank, dtype=np.intp)
    for k in range(rank):
        i = int(left.argmax())
        if left[i] <= enough:
            return PivotedCholesky(pivots[:k], factor[:k].T, left)
        column = _checks.array("kernel_column(i)", kernel_column(i), shape=(n,))
        root = math.sqrt(left[i])
        row = (column - factor[:k, i] @ factor[:k]) / root
        row[pivots[:k]] = 0.0
        row[i] = root
        pivots[k], factor[k] = i, row
        left = np.maximum(left - row * row, 0.0)
        left[pivots[: k + 1]] = 0.0
    return PivotedCholesky(pivots, factor.T, left)


class EvidenceGrid(NamedTuple):
    """Log evidence over widths and noises, the amplitude of each output at its best."""

    #: (widths, noises), summed over outputs
    log_evidence: Array
    #: (widths, noises, T)
    amplitude: Array

    @property
    def best(self) -> tuple[int, int]:
        """Where the evidence is largest: indices of width and noise."""
        i, j = np.unravel_index(int(self.log_evidence.argmax()), self.log_evidence.shape)
        return int(i), int(j)


def evidence_grid(
    squares: Array, targets: Array, widths: Array, noises: Array, relative: Array | None = None
) -> EvidenceGrid:
    """Log evidence of Gaussian processes with the kernels exp(-1/2 sum_k squares_k / w_k^2).

    Parameters
    ----------
    squares : array_like of shape (k, n, n)
        Squared distances in each of k kinds of coordinates.
    targets : array_like of shape (n, T)
        Outputs. Each has an amplitude a of its own: its covariance is a (K + noise diag(relative)).
        One that is 0 throughout says nothing.
    widths : array_like of shape (g, k)
    noises : array_like of shape (h,)
        Variances of the noise over the amplitude.
    relative : array_like of shape (n,), optional
        Noise of the rows in relation to each other, 1 by default.

    Notes
    -----
    One eigendecomposition per width, g n^3, serves all noises and outputs. The amplitude that is
    best is the mean of (U^T z)^2 / (lambda + noise).
    """
    distances = _checks.array("squares", squares, shape=(None, None, None))
    k, n = distances.shape[:2]
    if distances.shape[2] != n or 0 in distances.shape:
        raise ValueError(f"squares has shape {distances.shape}; allowed: (k, n, n), k, n >= 1")
    z = _checks.array("targets", targets, shape=(n, None))
    grid = _checks.array("widths", widths, shape=(None, k), positive=True)
    levels = _checks.array("noises", noises, shape=(None,), positive=True)
    if len(grid) == 0 or len(levels) == 0:
        raise ValueError("widths or noises is empty; allowed: at least one of each")
    weight = (
        np.ones(n)
        if relative is None
        else _checks.array("relative", relative, shape=(n,), positive=True)
    )
    root = np.sqrt(weight)
    size = np.abs(z).max(axis=0)
    varies = size > FIXED * size.max()
    t = int(varies.sum())
    z = z / root[:, None]
    log_evidence = np.empty((len(grid), len(levels)))
    amplitude = np.empty((len(grid), len(levels), z.shape[1]))
    for g, width in enumerate(grid):
        exponent = np.tensordot(-0.5 / width**2, distances, axes=1)
        kernel = np.exp(exponent, out=exponent)
        # K + noise diag(r) = r^1/2 (r^-1/2 K r^-1/2 + noise) r^1/2
        kernel /= root[:, None] * root
        eigenvalues, vectors = linalg.eigh(kernel, overwrite_a=True, check_finite=False)
        spectrum = np.maximum(eigenvalues, 0.0)[:, None] + levels  # (n, h)
        rotated = (vectors.T @ z) ** 2  # (n, T)
        amplitude[g] = (1.0 / spectrum).T @ rotated / n
        log_evidence[g] = -0.5 * (
            n * (np.log(2.0 * math.pi * amplitude[g][:, varies]) + 1.0).sum(axis=1)
            + t * (np.log(spectrum).sum(axis=0) + np.log(weight).sum())
        )
    return EvidenceGrid(log_evidence, amplitude)

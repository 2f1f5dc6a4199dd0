"""Kernels on tuples of incoming messages, exact, and their random Fourier features.

A message is its mean and its variance. Equations, appendices and steps of algorithm 1 are those of
Jitkrittum et al. (2015), Kernel-based just-in-time learning for passing expectation propagation
messages. ``epfast.Operator`` has algorithm 1 compiled, with the widths of appendix A. Here are the
kernels that the paper compares it with, and a regression that plain NumPy updates row by row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from epfast.operators.learners import Ridge, embedding_squares, median_widths

Array = NDArray[np.float64]


class Tuples(NamedTuple):
    """Tuples of c messages each: means (n, c) and variances (n, c), 0 for a point mass."""

    mean: Array
    variance: Array

    def column(self, which: int) -> Tuples:
        """The messages of one neighbour, as tuples of one."""
        part = slice(which, which + 1)
        return Tuples(self.mean[:, part], self.variance[:, part])

    def rows(self, which: slice | NDArray[np.intp]) -> Tuples:
        """Some of them."""
        return Tuples(self.mean[which], self.variance[which])


class Kernel(Protocol):
    """A positive definite function of two tuples."""

    def __call__(self, a: Tuples, b: Tuples) -> Array:
        """Kernel matrix (n, n')."""


def diagonal(kernel: Kernel, a: Tuples) -> Array:
    """Kernel of each tuple with itself (n,)."""
    return np.array([kernel(one, one)[0, 0] for i in range(len(a.mean)) for one in [a.rows([i])]])


@dataclass(frozen=True)
class ExpectedProduct:
    """Inner product of the mean embeddings (5), (6) of joint messages: E_r E_s k(x, y), B.3.

    widths: of the Gaussian kernel k on the variable of each neighbour.
    """

    widths: tuple[float, ...]

    def __call__(self, a: Tuples, b: Tuples) -> Array:
        exponent = np.zeros((len(a.mean), len(b.mean)))
        scale = np.ones_like(exponent)
        for j, width in enumerate(self.widths):
            total = width**2 + a.variance[:, j, None] + b.variance[:, j]
            exponent -= 0.5 * (a.mean[:, j, None] - b.mean[:, j]) ** 2 / total
            scale *= width**2 / total
        return np.sqrt(scale) * np.exp(exponent)


@dataclass(frozen=True)
class JointEmbedding:
    """Gaussian kernel of width ``outer`` on mean embeddings of the joint message (7)."""

    widths: tuple[float, ...]
    outer: float

    def __call__(self, a: Tuples, b: Tuples) -> Array:
        return np.exp(-0.5 / self.outer**2 * embedding_squares(self.widths, a, b))


@dataclass(frozen=True)
class MeanVariance:
    """Gaussian kernel on means and variances as coordinates, a width each, B.2."""

    mean_widths: tuple[float, ...]
    variance_widths: tuple[float, ...]

    def __call__(self, a: Tuples, b: Tuples) -> Array:
        away = self.coordinates(a)[:, None] - self.coordinates(b)
        return np.exp(-0.5 * (away**2).sum(axis=2))

    def coordinates(self, a: Tuples) -> Array:
        """Means and variances over their widths (n, 2 c)."""
        parts = a.mean / self.mean_widths, a.variance / self.variance_widths
        return np.concatenate(parts, axis=1)


@dataclass(frozen=True)
class Combined:
    """Kernels of tuples of one, one per message: their product, B.4, or their sum, B.5."""

    combine: Callable[[list[Array]], Array]
    parts: tuple[Kernel, ...]

    def __call__(self, a: Tuples, b: Tuples) -> Array:
        found = [part(a.column(j), b.column(j)) for j, part in enumerate(self.parts)]
        return np.asarray(self.combine(found))


def median_heuristic(a: Tuples, factor: float = 1.0) -> JointEmbedding:
    """The kernel (7) with the widths of appendix A, their squares multiplied by a factor."""
    return JointEmbedding(*median_widths(*a, factor))


# ---- features: maps of tuples whose products approach a kernel ----

Features = Callable[[Tuples], Array]


def cosines(inner: Features, omega: Array, rng: np.random.Generator) -> Features:
    """Of a Gaussian kernel on what another map gives: sqrt(2 / D) cos(omega^T map + phase)."""
    phase = rng.uniform(0.0, 2.0 * math.pi, len(omega))
    return lambda a: math.sqrt(2.0 / len(omega)) * np.cos(inner(a) @ omega.T + phase)


def product_features(kernel: ExpectedProduct, d: int, rng: int | np.random.Generator) -> Features:
    """Of the expected product, B.3 and steps 1 to 3: sqrt(2 / D) E cos(omega^T x + phase)."""
    rng = np.random.default_rng(rng)
    omega = rng.standard_normal((d, len(kernel.widths))) / kernel.widths
    of_means = cosines(lambda a: a.mean, omega, rng)
    return lambda a: of_means(a) * np.exp(-0.5 * a.variance @ (omega**2).T)


def embedding_features(
    kernel: JointEmbedding, d_in: int, d_out: int, rng: int | np.random.Generator
) -> Features:
    """The two stages of algorithm 1, for (7) and (8)."""
    rng = np.random.default_rng(rng)
    inner = product_features(ExpectedProduct(kernel.widths), d_in, rng)
    return cosines(inner, rng.standard_normal((d_out, d_in)) / kernel.outer, rng)


def moment_features(kernel: MeanVariance, d: int, rng: int | np.random.Generator) -> Features:
    """Of means and variances, B.1 and B.2."""
    rng = np.random.default_rng(rng)
    omega = rng.standard_normal((d, 2 * len(kernel.mean_widths)))
    return cosines(kernel.coordinates, omega, rng)


def kronecker(parts: list[Features]) -> Features:
    """Of a product of kernels, one per message, B.4: all products, D^c of them."""

    def features(a: Tuples) -> Array:
        found = np.ones((len(a.mean), 1))
        for j, part in enumerate(parts):
            found = (found[:, :, None] * part(a.column(j))[:, None, :]).reshape(len(found), -1)
        return found

    return features


def concatenated(parts: list[Features]) -> Features:
    """Of a sum of kernels, one per message, B.5: side by side, c D of them."""
    return lambda a: np.concatenate([part(a.column(j)) for j, part in enumerate(parts)], axis=1)


class Online:
    """The weights of a regression on features, updated row by row: (16) as a gain."""

    def __init__(self, features: Array, targets: Array, noise: float) -> None:
        first = Ridge(features, targets, np.full(len(targets), noise))
        self.mean, self.covariance, self.noise = first.mean, first.covariance(), noise

    def predict(self, x: Array) -> tuple[Array, float]:
        """Targets (T,) at features (D,), and x^T Sigma x."""
        return self.mean @ x, float(x @ self.covariance @ x)

    def update(self, x: Array, y: Array) -> None:
        """Take in one row."""
        column = self.covariance @ x
        gain = column / (self.noise + x @ column)
        self.mean += np.outer(y - self.mean @ x, gain)
        self.covariance -= np.outer(gain, column)

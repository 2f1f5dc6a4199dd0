"""Regressions of messages: random features, incomplete Cholesky, forests; how each is chosen.

Widths and noise of random features are those of the least leave-one-out error, of incomplete
Cholesky those of the least hold-out error, over the grids of the authors' program.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from sklearn.ensemble import ExtraTreesRegressor, RandomForestRegressor

from bench.jitkrittum2015.kernels import (
    Combined,
    ExpectedProduct,
    Features,
    JointEmbedding,
    Kernel,
    MeanVariance,
    Tuples,
    concatenated,
    diagonal,
    embedding_features,
    kronecker,
    median_heuristic,
    moment_features,
    product_features,
)
from epfast.operators.learners import Ridge, embedding_squares, pivoted_cholesky

Array = NDArray[np.float64]
Learner = Callable[[Tuples], Array]

#: what the squares of widths are multiplied by, and variances of the noise
FACTORS = (0.1, 0.2, 1.0 / 3.0, 0.5, 1.0, 2.0, 5.0, 10.0)
NOISES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)
#: tuples that widths are the medians of
FOR_MEDIANS = 1000
#: rank of incomplete Cholesky factors where they are held out
HELD_RANK = 100


class Sizes(NamedTuple):
    """Numbers of features: D_in and D_out, of candidates and of the chosen one."""

    candidate: tuple[int, int]
    final: tuple[int, int]
    rank: int
    trees: int
    factors: tuple[float, ...]


PAPER = Sizes((300, 500), (500, 1000), 800, 64, FACTORS)
QUICK = Sizes((30, 50), (50, 100), 80, 16, (0.5, 1.0))


class Chosen(NamedTuple):
    """A regression, its features, and where on the grid it was found."""

    features: Features
    regression: Ridge
    factor: float
    noise: float

    def predict(self, a: Tuples) -> Array:
        """Targets of new tuples."""
        return self.regression.predict(self.features(a))[0]


def fitted(features: Features, a: Tuples, targets: Array, factor: float, noise: float) -> Chosen:
    """Regression with the same noise for all rows."""
    regression = Ridge(features(a), targets, np.full(len(targets), noise))
    return Chosen(features, regression, factor, noise)


#: random features of a kernel whose squared widths, from the tuples, are multiplied by a factor
Draw = Callable[[Tuples, float, tuple[int, int], int], Features]


def joint_embedding(a: Tuples, factor: float, sizes: tuple[int, int], seed: int) -> Features:
    """The paper's choice, KJIT."""
    return embedding_features(median_heuristic(a, factor), *sizes, seed)


def mean_variance(a: Tuples, factor: float, sizes: tuple[int, int], seed: int) -> Features:
    """B.2, squared widths the medians of squared differences."""
    widths = []
    for column in np.concatenate(a, axis=1).T:
        squares = (column[:, None] - column) ** 2
        middle = float(np.median(squares)) or float(squares.mean())
        widths.append(math.sqrt(factor * middle) if middle > 1e-20 else 1.0)
    c = a.mean.shape[1]
    kernel = MeanVariance(tuple(widths[:c]), tuple(widths[c:]))
    return moment_features(kernel, sizes[1], seed)


def product_widths(a: Tuples, factor: float) -> list[float]:
    """Widths of embeddings: mean variances."""
    return [math.sqrt(factor * v) for v in a.variance.mean(axis=0)]


def joint_product(a: Tuples, factor: float, sizes: tuple[int, int], seed: int) -> Features:
    """B.3 on the joint message."""
    kernel = ExpectedProduct(tuple(product_widths(a, factor)))
    return product_features(kernel, sizes[1], seed)


def product(a: Tuples, factor: float, sizes: tuple[int, int], seed: int) -> Features:
    """B.4; as many products as the others have features."""
    widths, rng = product_widths(a, factor), np.random.default_rng(seed)
    each = round(sizes[1] ** (1.0 / len(widths)))
    return kronecker([product_features(ExpectedProduct((w,)), each, rng) for w in widths])


def total(a: Tuples, factor: float, sizes: tuple[int, int], seed: int) -> Features:
    """B.5; as many features in all as the others have."""
    widths, rng = product_widths(a, factor), np.random.default_rng(seed)
    each = sizes[1] // len(widths)
    return concatenated([product_features(ExpectedProduct((w,)), each, rng) for w in widths])


RANDOM: dict[str, Draw] = {
    "KJIT: Gaussian on joint embeddings": joint_embedding,
    "MV kernel": mean_variance,
    "expected product, joint": joint_product,
    "product of expected products": product,
    "sum of expected products": total,
}


def by_left_out(draw: Draw, a: Tuples, targets: Array, sizes: Sizes, seed: int = 0) -> Chosen:
    """Random features with the widths and noise of the least leave-one-out error."""
    first = a.rows(slice(FOR_MEDIANS))
    errors: dict[tuple[float, float], float] = {}
    for factor in sizes.factors:
        found = left_out_errors(draw(first, factor, sizes.candidate, seed)(a), targets)
        errors |= {(factor, noise): error for noise, error in zip(NOISES, found, strict=True)}
    factor, noise = min(errors, key=errors.__getitem__)
    return fitted(draw(first, factor, sizes.final, seed), a, targets, factor, noise)


def left_out_errors(features: Array, targets: Array) -> list[float]:
    """Sum of squared leave-one-out residuals for each noise, by one eigendecomposition."""
    eigenvalues, vectors = np.linalg.eigh(features.T @ features)
    rotated = features @ vectors
    across = rotated.T @ targets
    errors = []
    for noise in NOISES:
        shrunk = 1.0 / (np.maximum(eigenvalues, 0.0) + noise)
        residual = targets - rotated @ (shrunk[:, None] * across)
        own = (rotated * rotated) @ shrunk
        errors.append(float(((residual / (1.0 - own)[:, None]) ** 2).sum()))
    return errors


# ---- incomplete Cholesky ----


def gaussian_sum(a: Tuples, factor: float) -> Kernel:
    """Sum of Gaussian kernels on the embedding of each message.

    Of the two data Beta(1, 2) and Beta(2, 1) half of the pairs are equal and the median is 0: the
    mean takes its place.
    """
    parts = []
    for j, width in enumerate(product_widths(a, factor)):
        column = a.column(j)
        squares = embedding_squares((width,), column, column)
        gamma = float(np.median(squares)) or float(squares.mean())
        parts.append(JointEmbedding((width,), math.sqrt(factor * gamma)))
    return Combined(sum, tuple(parts))


KERNELS: dict[str, Callable[[Tuples, float], Kernel]] = {
    "IChol, Gaussian on joint embeddings": median_heuristic,
    "IChol, sum of Gaussians on embeddings": gaussian_sum,
}


def nystrom(kernel: Kernel, a: Tuples, rank: int) -> Features:
    """Features L^-1 k(Z, x) of the pivots Z of an incomplete Cholesky factor."""

    def column(i: int) -> Array:
        return kernel(a, a.rows(slice(i, i + 1)))[:, 0]

    taken, factor, _ = pivoted_cholesky(column, diagonal(kernel, a), rank, 1e-8)
    pivots = a.rows(taken)
    return lambda b: solve_triangular(factor[taken], kernel(pivots, b), lower=True).T


Make = Callable[[Tuples, float], Kernel]


def by_hold_out(make: Make, a: Tuples, targets: Array, sizes: Sizes, seed: int = 0) -> Chosen:
    """Ridge regression by incomplete Cholesky, with the least hold-out error on random parts.

    A fifth is fitted, three tenths are held out, three times: as in the program, at its rank.
    """
    rng = np.random.default_rng(seed)
    first, n = a.rows(slice(FOR_MEDIANS)), len(targets)
    errors = dict.fromkeys(itertools.product(sizes.factors, NOISES), 0.0)
    for _ in range(3):
        order = rng.permutation(n)
        inside, outside = order[: n // 5], order[n // 5 : n // 2]
        part, rest = a.rows(inside), a.rows(outside)
        for factor in sizes.factors:
            features = nystrom(make(first, factor), part, HELD_RANK)
            for noise in NOISES:
                found = fitted(features, part, targets[inside], factor, noise).predict(rest)
                errors[factor, noise] += ((found - targets[outside]) ** 2).sum()
    factor, noise = min(errors, key=errors.__getitem__)
    return fitted(nystrom(make(first, factor), a, sizes.rank), a, targets, factor, noise)


# ---- forests ----


FORESTS: dict[str, Callable[..., Any]] = {
    "Breiman's random forest": RandomForestRegressor,
    "extremely randomised trees": ExtraTreesRegressor,
}


def forest(kind: str, a: Tuples, targets: Array, sizes: Sizes) -> Learner:
    """A forest on means and variances, which the paper does not say."""
    trees = FORESTS[kind](n_estimators=sizes.trees, random_state=0)
    trees.fit(np.concatenate(a, axis=1), targets)
    return lambda b: np.asarray(trees.predict(np.concatenate(b, axis=1)))

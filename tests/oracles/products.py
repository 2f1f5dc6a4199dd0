"""The product of the sites of fits of disjoint rows, under one prior."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Product(NamedTuple):
    """A Gaussian, and the log of the integral of prior times sites."""

    mean: NDArray[np.float64]
    precision: NDArray[np.float64]
    log_evidence: float


def log_integral(precision: NDArray[np.float64], shift: NDArray[np.float64]) -> float:
    """Of exp(shift.theta - theta.precision.theta / 2), but for powers of 2 pi."""
    full = np.diag(precision) if precision.ndim == 1 else precision
    return float(0.5 * (shift @ np.linalg.solve(full, shift) - np.linalg.slogdet(full)[1]))


def product_of(posts: list[Any], prior_mean: float = 0.0) -> Product:
    """Of posteriors with the same prior, whose means are all that number."""
    prior = np.asarray(posts[0].prior_precision)
    pull = prior_mean * (prior if prior.ndim == 1 else prior.sum(axis=1))
    precision = prior + sum(post.precision - prior for post in posts)
    shift = pull + sum(post.shift - pull for post in posts)
    full = np.diag(precision) if precision.ndim == 1 else precision
    own = log_integral(prior, pull)
    gains = [post.log_evidence - log_integral(post.precision, post.shift) + own for post in posts]
    log_evidence = log_integral(precision, shift) - own + sum(gains)
    return Product(np.linalg.solve(full, shift), precision, log_evidence)

"""Beta variables: by the mean of their log odds, and means under them by quadrature."""

from __future__ import annotations

import numpy as np
from scipy import special

from epfast._arrays import Array

#: Newton steps for a mean of log odds. Five are usual
MOST_STEPS = 50


def trigamma(x: Array) -> Array:
    """The second derivative of log Gamma: the variance of the log of a gamma variable."""
    return np.asarray(special.zeta(2.0, x))


def beta_of_log_odds(mean: Array, total: Array) -> Array:
    """Beta variables by the mean of their log odds and alpha + beta, (n, 2).

    Newton's method for the log odds x of alpha over beta. psi(total p) - psi(total q) grows faster
    than x and than 2 sinh(x) / total, and is convex beyond 0: from the nearer of their two answers
    steps go down to the root.
    """
    goal = np.abs(mean)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        x = np.minimum(goal, np.arcsinh(0.5 * goal * total))
        for _ in range(MOST_STEPS):
            more, less = total * special.expit(x), total * special.expit(-x)
            rise = more * special.expit(-x) * (trigamma(more) + trigamma(less))
            step = (special.psi(more) - special.psi(less) - goal) / rise
            x = np.maximum(x - step, 0.0)
            if not (np.abs(step) > 1e-9 * np.maximum(x, 1e-3)).any():
                break
        more, less = total * special.expit(x), total * special.expit(-x)
    up = mean >= 0.0
    return np.stack([np.where(up, more, less), np.where(up, less, more)], axis=1)


def jacobi_rule(p: Array, count: int) -> tuple[Array, Array]:
    """Nodes and weights, (n, count), of means under beta variables: exact to degree 2 count - 1.

    Golub and Welsch's eigenvalues, O(count^3) per row.
    """
    alpha, beta = p[:, :1], p[:, 1:]
    total, k = alpha + beta, np.arange(1.0, count)
    before = 2.0 * k + total
    diagonal = np.empty((len(p), count))
    diagonal[:, :1] = alpha / total
    diagonal[:, 1:] = 0.5 + 0.5 * (alpha - beta) / before * (total - 2.0) / (before - 2.0)
    # squares of the entries beside it; the first is the variance
    squares = np.empty((len(p), count - 1))
    squares[:, :1] = alpha / total * (beta / total) / (total + 1.0)
    j, b = k[1:], before[:, 1:] - 2.0
    squares[:, 1:] = (
        (j / b) * ((j + total - 2.0) / b) * ((j + alpha - 1.0) / (b + 1.0))
        * ((j + beta - 1.0) / (b - 1.0))
    )  # fmt: skip
    matrix = np.zeros((len(p), count, count))
    i = np.arange(count)
    matrix[:, i, i] = diagonal
    matrix[:, i[1:], i[:-1]] = np.sqrt(squares)
    nodes, vectors = np.linalg.eigh(matrix)  # reads the lower triangle
    return nodes, vectors[:, 0, :] ** 2

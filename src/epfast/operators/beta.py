"""Beta variables by the mean of their log odds."""

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

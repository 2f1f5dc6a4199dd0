"""Messages of the logistic factor: parallel EP on simulated data, exact or sampled projections.

The factor is p = sigma(z). Its neighbours send N(z; m, v) and the datum, Beta(p; 1 + y, 2 - y);
what is learned is the belief of z, the Gaussian with the moments of the tilted density.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from bench.jitkrittum2015.kernels import Tuples
from epfast import backend

Array = NDArray[np.float64]

#: sets of data, sweeps of EP, and the sweeps of which messages are kept
SETS, SWEEPS, KEPT = 20, 10, 5
#: variance of the sampler's proposal, N(0, 200)
PROPOSAL = 200.0


class Messages(NamedTuple):
    """What goes into logistic factors, and what comes out."""

    #: N(m, v) of z
    m: Array
    v: Array
    #: the datum, 0 or 1
    y: Array
    #: belief of z
    mean: Array
    variance: Array

    def tuples(self) -> Tuples:
        """The pair of messages by moments; Beta(1 + y, 2 - y) has mean (1 + y) / 3."""
        beta = np.full_like(self.y, 1.0 / 18.0)
        return Tuples(
            np.stack([self.m, (1.0 + self.y) / 3.0], axis=1), np.stack([self.v, beta], axis=1)
        )

    def select(self, rows: NDArray[np.intp]) -> Messages:
        """Some of them."""
        return Messages(*(column[rows] for column in self))


def projected(m: Array, v: Array, y: Array) -> tuple[Array, Array]:
    """Mean and variance of N(z; m, v) sigma(z)^y sigma(-z)^(1-y), compiled."""
    _, slope, curvature = backend.tilted_moments("logistic", 2.0 * y - 1.0, m, v)
    return m + v * slope, v + v * v * curvature


def sampled(of: Messages, draws: int, rng: np.random.Generator) -> Messages:
    """The same messages with projections by importance sampling (2), fresh draws for each."""
    mean, variance = np.empty_like(of.m), np.empty_like(of.m)
    for i, (m, v, y) in enumerate(zip(of.m, of.v, of.y, strict=True)):
        z = np.sqrt(PROPOSAL) * rng.standard_normal(draws)
        log_w = -0.5 * (z - m) ** 2 / v + 0.5 * z * z / PROPOSAL + 0.5 * np.log(PROPOSAL / v)
        # most draws fall where nothing is
        near = log_w > log_w.max() - 40.0
        z, log_w = z[near], log_w[near]
        w = np.exp(log_w) * special.expit((2.0 * y - 1.0) * z)
        w /= w.sum()
        mean[i] = w @ z
        variance[i] = w @ (z - mean[i]) ** 2
    return of._replace(mean=mean, variance=variance)


def simulate(d: int, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Rows from N(0, I), and labels 0 and 1 of the model with weights from N(0, I)."""
    w = rng.standard_normal(d)
    X = rng.standard_normal((n, d))
    return X, (rng.random(n) < special.expit(X @ w)).astype(float)


def parallel_ep(X: Array, y: Array, projection: Any = projected) -> list[Messages]:
    """The messages of each sweep of EP, prior N(0, I), with all sites at once, undamped.

    ``projection`` takes and returns what ``projected`` does. A site whose projection is NaN stays.
    """
    tau, nu = np.zeros(len(y)), np.zeros(len(y))
    messages = []
    for _ in range(SWEEPS):
        covariance = np.linalg.inv((X.T * tau) @ X + np.eye(X.shape[1]))
        mean = covariance @ (X.T @ nu)
        marginal = np.einsum("ij,jk,ik->i", X, covariance, X)
        v = 1.0 / (1.0 / marginal - tau)
        m = v * (X @ mean / marginal - nu)
        found = Messages(m, v, y, *projection(m, v, y))
        messages.append(found)
        answered = np.isfinite(found.mean)
        tau = np.where(answered, 1.0 / found.variance - 1.0 / v, tau)
        nu = np.where(answered, found.mean / found.variance - m / v, nu)
    return messages


class Split(NamedTuple):
    """Messages to learn from, and others."""

    train: Messages
    test: Messages


def collect(d: int, n: int, train: int, test: int, seed: int = 0) -> Split:
    """Messages of the first sweeps of EP on sets of data, shuffled and split."""
    rng = np.random.default_rng(seed)
    runs = [parallel_ep(*simulate(d, n, rng)) for _ in range(SETS)]
    kept = [messages for run in runs for messages in run[:KEPT]]
    pooled = Messages(*(np.concatenate(column) for column in zip(*kept, strict=True)))
    order = rng.permutation(len(pooled.m))
    return Split(pooled.select(order[:train]), pooled.select(order[train : train + test]))


def log_kl(mean: Array, variance: Array, to_mean: Array, to_log_variance: Array) -> Array:
    """Log KL(N(mean, variance) || N(to_mean, exp(to_log_variance))), NaN where not finite."""
    with np.errstate(all="ignore"):
        ratio = np.log(variance) - to_log_variance
        # expm1(x) - x keeps its digits at small x
        shift = (mean - to_mean) ** 2 * np.exp(-to_log_variance)
        found = np.log(0.5 * (np.expm1(ratio) - ratio + shift))
    return np.where(np.isfinite(found), found, np.nan)

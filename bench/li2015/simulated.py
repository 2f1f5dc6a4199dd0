"""The simulated probit regression of Li et al. (2015), section 5.1, and its true posterior."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

Array = NDArray[np.float64]

#: dimensions, and components of the mixture
D, J = 4, 5
INPUTS = ("Gaussian", "mixture")


class Toy(NamedTuple):
    """Simulated rows, labels, and the component of each row."""

    X: Array
    y: Array
    component: NDArray[np.intp]

    def head(self, n: int) -> Toy:
        """The first rows."""
        return Toy(self.X[:n], self.y[:n], self.component[:n])


class Truth(NamedTuple):
    """Posterior moments by importance sampling."""

    mean: Array
    covariance: Array
    ess: float
    mean_error: float  # of the mean, in standard deviations: half the difference of the halves
    covariance_error: float  # of the covariance, relative Frobenius norm


def simulate(inputs: str, n: int, seed: int) -> Toy:
    rng = np.random.default_rng([seed, INPUTS.index(inputs)])
    if inputs == "Gaussian":
        component = np.zeros(n, dtype=np.intp)
        X = rng.standard_normal((n, D))
    else:
        means = 2.0 * rng.standard_normal((J, D))
        component = rng.integers(J, size=n)
        X = means[component] + 0.5 * rng.standard_normal((n, D))
    theta = rng.standard_normal(D)
    y = np.where(X @ theta + rng.standard_normal(n) > 0, 1.0, -1.0)
    return Toy(X, y, component)


def importance(data: Toy, q: Any, draws: int, seed: int, freedom: float = 20.0) -> Truth:
    """Moments of the posterior; the proposal is t with EP's mean and 1.05 times its covariance."""
    yX = data.X * data.y[:, None]
    root = np.linalg.cholesky(1.05 * q.covariance)
    halves, weight_sum, weight_square = [], 0.0, 0.0
    top = None
    for half in range(2):
        points = stats.qmc.Sobol(D + 1, seed=np.random.default_rng([seed, half])).random(draws // 2)
        points = np.clip(points, 1e-12, 1 - 1e-12)
        chi = stats.chi2.ppf(points[:, D], freedom) / freedom
        z = special.ndtri(points[:, :D]) / np.sqrt(chi)[:, None]
        theta = q.mean + z @ root.T
        log_t = -0.5 * (freedom + D) * np.log1p((z * z).sum(axis=1) / freedom)
        log_w = -0.5 * (theta * theta).sum(axis=1) - log_t
        for i in range(0, len(theta), 256):  # a block of margins stays in cache
            log_w[i : i + 256] += special.log_ndtr(theta[i : i + 256] @ yX.T).sum(axis=1)
        top = log_w.max() if top is None else top
        w = np.exp(log_w - top)
        halves.append((w.sum(), w @ theta, (theta.T * w) @ theta))
        weight_sum, weight_square = weight_sum + w.sum(), weight_square + (w * w).sum()

    def moments(total: float, first: Array, second: Array) -> tuple[Array, Array]:
        mean = first / total
        return mean, second / total - np.outer(mean, mean)

    (mean_a, cov_a), (mean_b, cov_b) = (moments(*half) for half in halves)
    mean, cov = moments(*(a + b for a, b in zip(*halves, strict=True)))
    return Truth(
        mean,
        cov,
        float(weight_sum**2 / weight_square),
        float(np.abs(0.5 * (mean_a - mean_b) / np.sqrt(np.diag(cov))).max()),
        float(0.5 * np.linalg.norm(cov_a - cov_b) / np.linalg.norm(cov)),
    )


class Error(NamedTuple):
    """How far an approximation is from the truth."""

    kl: float  # KL(p || q), p Gaussian with the true moments
    mean: float  # largest error of a mean, in posterior standard deviations
    covariance: float  # Frobenius norm of the error, over that of the covariance
    sd_ratio: float  # geometric mean of sd / true sd


def compare(q: Any, truth: Truth) -> Error:
    away = q.mean - truth.mean
    variance = np.diag(truth.covariance)
    product = q.precision @ truth.covariance
    kl = 0.5 * (np.trace(product) - D - np.linalg.slogdet(product)[1] + away @ q.precision @ away)
    return Error(
        float(kl),
        float(np.abs(away / np.sqrt(variance)).max()),
        float(np.linalg.norm(q.covariance - truth.covariance) / np.linalg.norm(truth.covariance)),
        float(np.exp(0.5 * np.log(q.variance / variance).mean())),
    )


def mean_error(errors: list[Error]) -> Error:
    """Average over repetitions: geometric for KL, which spans decades."""
    columns = np.array(errors)
    kl = float(np.exp(np.log(columns[:, 0]).mean()))
    return Error(kl, *(float(v) for v in columns[:, 1:].mean(axis=0)))

"""The exact posterior under a spike and a slab beside its approximation, for certificates."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg, special

from epfast._arrays import Array
from epfast.gaussian.problem import sum_of_sites
from epfast.inference.importance import Proposal, smoothed
from epfast.losses import SpikeAndSlab

LOG_2PI = math.log(2.0 * math.pi)
#: inclusion probabilities that are drawn with are no nearer to 0 or 1
LEAST_INCLUSION = 1e-3
#: inclusion probability from which a weight is in enough draws for its moments
SELDOM = 0.05
#: an inclusion probability is off by so much, and by so many standard errors; draws at a time
OFF, ERRORS, BLOCK = 0.06, 2.0, 256


class Models(Proposal):
    """Models drawn by the inclusion probabilities, and their weights by the sites of the rows.

    The weights of a model are normal given sites of the rows: so is the prior of those that are in.
    Reported are the weights that are in often enough to be met.
    """

    known = False  # there are too many models to sum over

    def __init__(self, post: Any) -> None:
        """post: a ShrunkPosterior with this prior."""
        share, problem, rows = post.inclusion_probability, post.problem, post.sites
        self.judged = np.flatnonzero(share >= min(SELDOM, share.max()))
        self.unit = post.mean[self.judged], np.sqrt(post.variance[self.judged])
        self.problem, self.prior_sites, self.rows = problem, problem.prior_sites, rows
        self.prior: SpikeAndSlab = self.prior_sites.prior
        self.share = np.clip(share, LEAST_INCLUSION, 1.0 - LEAST_INCLUSION)
        self.visited = np.zeros(len(share), dtype=bool)
        self.visited[self.prior_sites.visits] = True
        self.size = self.width = 2 * len(share)  # an indicator and a weight each
        if problem.wide is None:
            gram, self.shift = sum_of_sites(problem, rows)
            self.gram: Array | None = np.asarray(gram)
        else:
            X = problem.data.X
            X = X.toarray() if problem.sparse else np.asarray(X, dtype=np.float64)
            self.gram, self.columns, self.shift = None, X, X.T @ rows.shift

    def _of_model(self, one: Array) -> tuple[NDArray[np.intp], Array, Array]:
        """Weights that are in, their mean, and the Cholesky factor of their precision."""
        d = len(self.share)
        which = np.flatnonzero(~self.visited | (special.ndtr(one[:d]) < self.share))
        start = self.prior_sites.start.precision[which]
        precision = np.where(self.visited[which], 1.0 / self.prior.variance, start)
        if self.gram is not None:
            matrix = self.gram[np.ix_(which, which)]
        else:
            some = self.columns[:, which]
            matrix = some.T @ (self.rows.precision[:, None] * some)
        matrix[np.diag_indices(len(which))] += precision
        factor = np.asarray(linalg.cholesky(matrix, lower=True))
        mean = np.asarray(linalg.cho_solve((factor, True), self.shift[which]))
        return which, mean, factor

    def draw(self, z: Array) -> Array:
        d = len(self.share)
        theta = np.zeros((len(z), d))
        for row, one in zip(theta, z, strict=True):
            which, mean, factor = self._of_model(one)
            away = linalg.solve_triangular(factor, one[d + which], lower=True, trans="T")
            row[which] = mean + away
        return theta

    def log_ratio(self, z: Array, theta: Array) -> Array:
        d, prior, visited = len(self.share), self.prior, self.visited
        within = special.ndtr(z[:, :d]) < self.share
        with np.errstate(divide="ignore"):
            odds = within * np.log(prior.share) + np.where(within, 0.0, np.log1p(-prior.share))
        odds -= np.where(within, np.log(self.share), np.log1p(-self.share))
        result = odds[:, visited].sum(axis=1) + self.prior_sites.of_normal(theta)
        slab = -0.5 * (LOG_2PI + np.log(prior.variance) + theta**2 / prior.variance)
        result += np.where(within & visited, slab, 0.0).sum(axis=1)
        for k, one in enumerate(z):
            which, _, factor = self._of_model(one)
            square = one[d + which] @ one[d + which]
            result[k] += 0.5 * (len(which) * LOG_2PI + square) - np.log(np.diag(factor)).sum()
        return np.asarray(result - self.problem.losses(theta).sum(axis=0))

    def reported(self, theta: Array) -> Array:
        return theta[:, self.judged]

    def moments(self) -> tuple[Array, Array]:
        return self.unit


def worst_inclusion(models: Models, given: Array, draws: int, seed: int) -> str:
    """Which inclusion probability is off beyond doubt, by weighted draws, in words; or nothing.

    given: those of the approximation, (d,).
    """
    rng = np.random.default_rng([seed, 1])
    within, log_weight = np.empty((draws, len(given)), dtype=bool), np.empty(draws)
    for first in range(0, draws, BLOCK):
        part = slice(first, min(first + BLOCK, draws))
        z = rng.standard_normal((part.stop - first, models.size))
        theta = models.draw(z)
        within[part], log_weight[part] = theta != 0.0, models.log_ratio(z, theta)
    log_weight = smoothed(log_weight)[0]
    weight = np.exp(log_weight - log_weight.max())
    weight /= weight.sum()
    exact = weight @ within
    error = np.sqrt(weight**2 @ (within - exact) ** 2)
    off = np.where(models.visited, np.abs(exact - given), 0.0)
    j = int(np.argmax(np.where(off > ERRORS * error, off, 0.0)))
    if not off[j] > max(OFF, ERRORS * error[j]):
        return ""
    exact_j, given_j = f"{exact[j]:.2g}", f"{given[j]:.2g}"
    return f"the inclusion probability of weight {j} is {given_j}, and {exact_j} by the draws"

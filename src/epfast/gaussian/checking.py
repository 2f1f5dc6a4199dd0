"""Comparison of the exact posterior with its approximation, by importance sampling."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from epfast._arrays import Array, Piece, is_sparse
from epfast.gaussian.prior import WeightPrior
from epfast.gaussian.problem import RowsOrProcess, peak_sites
from epfast.gaussian.state import inverse_root, log_determinant
from epfast.inference import Sites
from epfast.inference.best_gaussian import best_sites, peaks, sites_near_mode
from epfast.inference.importance import Proposal
from epfast.inference.runtime import cached_property

#: largest number of weights for which a better Gaussian is looked for, O(n d^2) per step
BETTER_UP_TO = 2000
#: largest number of weights for which other modes are looked for, O(n d^2) per step of a climb
MODES_UP_TO = 200
#: draws of the prior from which modes are looked for, and climbs. As many points are means by a few
#: rows
STARTS, CLIMBS = 64, 4
#: sd of latent values with which a climb begins, in those of the prior, where EP's are smaller
LEAST_SPREAD = 0.1
#: degrees of freedom, beside the number of weights, of the densities of these importance weights
HEAVIER = 7.0


class Sampled(Protocol):
    """What is read of a posterior, to draw from it."""

    @property
    def problem(self) -> RowsOrProcess: ...

    @property
    def mean(self) -> Array: ...

    @property
    def variance(self) -> Array: ...

    @property
    def sites(self) -> Sites | None: ...

    @property
    def log_evidence(self) -> float: ...

    @property
    def n_normals(self) -> int: ...

    def colored(self, noise: Array) -> Array: ...

    def latent_at(self, draws: ArrayLike) -> Array: ...

    def log_likelihood(self, draws: ArrayLike) -> Array: ...

    def marginals_of_rows(self) -> tuple[Array, Array]: ...

    def better(self) -> Proposal | None: ...


class Refitted(Sampled, Protocol):
    """The same, where there is one of any sites of the rows."""

    @property
    def precision(self) -> Array: ...

    def of_sites(self, precision: Array, shift: Array) -> Refitted | None: ...


class SiteProposal(Proposal):
    """A posterior, by its own draws: prior times Gaussian sites, beside prior times likelihood.

    The prior is in both, so that their ratio takes the latent values of the rows alone.
    """

    def __init__(self, post: Sampled, is_best: bool = False, by_rows: bool = False) -> None:
        """by_rows: the latent values of the rows are reported, in place of the weights."""
        self.post, self.is_best, self.by_rows = post, is_best, by_rows
        self.problem = post.problem
        self.size = post.n_normals
        self.width = max(self.size, post.mean.size, self.problem.shape[0] if by_rows else 0)

    def draw(self, z: Array) -> Array:
        return np.asarray(self.post.mean.ravel() + self.post.colored(z))

    def log_ratio(self, z: Array, theta: Array) -> Array:
        assert self.post.sites is not None
        precision, shift, scale = self.post.sites
        drawn = theta.reshape(len(theta), *self.post.mean.shape)
        h = self.post.latent_at(drawn)
        site = (h * (shift - 0.5 * precision * h)).reshape(len(h), -1).sum(axis=1) + scale.sum()
        likelihood = self.post.log_likelihood(drawn).sum(axis=1)
        return np.asarray(self.post.log_evidence - site + likelihood)

    def better(self) -> Proposal | None:
        """A Gaussian closer to the exact posterior, see ``better`` of the posterior."""
        return self.post.better()

    def reported(self, theta: Array) -> Array:
        return np.asarray(self.problem.latent(theta).T) if self.by_rows else theta

    def moments(self) -> tuple[Array, Array]:
        post = self.post
        moments = post.marginals_of_rows() if self.by_rows else (post.mean, post.variance)
        return moments[0].ravel(), np.sqrt(moments[1]).ravel()


def closest_gaussian(post: Refitted) -> tuple[Refitted, bool] | None:
    """The posterior that maximises the evidence bound, and whether there is no other one."""
    problem = post.problem
    flat = np.zeros(problem.shape[0])
    starts = [(flat, flat)]
    at_peaks = peak_sites(problem)
    if at_peaks is not None:
        starts.append((at_peaks.precision, at_peaks.shift))
    best = best_sites(partial(_values, problem), partial(_marginals, post), starts)
    found = None if best is None else post.of_sites(*best[:2])
    return None if found is None or best is None else (found, best[2])


def _values(problem: RowsOrProcess, latent: Array, part: Piece) -> Array:
    """Beta times the weighted loss of some rows."""
    values = problem.loss.values(latent, problem.responses(part))
    weights = problem.data.weights
    return values if weights is None else weights[part, None] * values


def _marginals(post: Refitted, precision: Array, shift: Array) -> tuple[Array, Array, float] | None:
    """Moments of the latent values, and the log normaliser, of prior times sites."""
    other = post.of_sites(precision, shift)
    try:
        return None if other is None else (*other.marginals_of_rows(), other.log_evidence)
    except (FloatingPointError, ValueError):  # overflows
        return None


class LinearProposal(SiteProposal):
    """A Gaussian over the weights of a linear model, with those of several latents in a row."""

    has_density = True
    post: Refitted

    def __init__(self, post: Refitted, is_best: bool = False, by_rows: bool = False) -> None:
        super().__init__(post, is_best, by_rows)

    @cached_property
    def log_volume(self) -> float:
        """Log of the normaliser of the normal prior over that of the Gaussian. O(d^3)."""
        return float(self.problem.prior_norm) - 0.5 * log_determinant(self.post.precision)

    @property
    def is_plain(self) -> bool:
        """Whether the model is one that other Gaussians can be found for."""
        return type(self.problem.prior) is WeightPrior and self.problem.loss.latents == 1

    @cached_property
    def _root(self) -> Array:
        """A root of the covariance, an upper triangle. O(d^3)."""
        return inverse_root(self.post.precision)

    def log_ratio(self, z: Array, theta: Array) -> Array:
        square = np.einsum("ij,ij->i", z, z)
        return np.asarray(self.log_volume + 0.5 * square - self.problem.cost(theta))

    def squares(self, theta: Array) -> Array:
        away, precision = (theta - self.post.mean.ravel()).T, self.post.precision
        if precision.ndim == 1:
            return np.asarray((precision[:, None] * away**2).sum(axis=0))
        z = linalg.solve_triangular(self._root, away)
        return np.asarray(np.einsum("ij,ij->j", z, z))

    def better(self) -> LinearProposal | None:
        """The same with the best Gaussian, or None if there is none, or the weights are too many.

        There is none for other priors, or for several latents.
        """
        if not self.is_plain or self.size > BETTER_UP_TO:
            return None
        closest = closest_gaussian(self.post)
        return None if closest is None else LinearProposal(*closest, self.by_rows)

    def others(self, seed: int, log_evidence: float) -> tuple[list[LinearProposal], bool]:
        """Gaussians at other modes, if there are any, and the prior, and whether they are valid.

        Climbs begin where importance weights would be largest, of draws of the prior and of means
        under the prior and the peaks of a few rows alone. A search is believed if it finds the
        Gaussian that it does not know of, this one.
        """
        problem, d = self.problem, self.size
        if not self.is_plain or d > MODES_UP_TO:
            return [], False
        prior = self.post.of_sites(*np.zeros((2, problem.shape[0])))
        assert prior is not None
        parts = [self, LinearProposal(prior, False, self.by_rows)]
        points, spread = self._starts(parts[1], np.random.default_rng([seed, 2]))
        centers = np.stack([part.post.mean for part in parts])
        log_target = -problem.cost(np.concatenate([centers, points]))
        mass = min(log_evidence, log_target[0] + self.log_volume)
        log_target = log_target[2:]
        log_drawn = np.max([part.log_density(points) for part in parts], axis=0)
        within = d + 3.0 * np.sqrt(2.0 * d)
        near = believed = bool((self.squares(points) < within).any())
        for _ in range(CLIMBS):
            log_weight = log_target - log_drawn - mass
            best = int(np.where(np.isfinite(log_weight), log_weight, -np.inf).argmax())
            if near and not log_weight[best] > 0.0:  # below the mean of the weights, about 1
                break
            log_target[best] = -np.inf
            h = np.asarray(problem.data.X @ points[best], dtype=np.float64)
            sites = sites_near_mode(
                partial(_values, problem), partial(_marginals, self.post), h, spread
            )
            post = None if sites is None else self.post.of_sites(*sites)
            if post is None:
                continue
            mode = LinearProposal(post, False, self.by_rows)
            if self.squares(post.mean[None])[0] < within:
                believed = True
            if not any(part.is_near(mode) for part in parts):
                parts.append(mode)
                log_drawn = np.maximum(log_drawn, mode.log_density(points))
        return parts[1:], believed

    def is_near(self, other: LinearProposal) -> bool:
        """Whether another Gaussian is about the same."""
        pairs = (self, other.post), (other, self.post)
        away = max(one.squares(post.mean[None])[0] for one, post in pairs)
        return bool(away < 0.25 and abs(self.log_volume - other.log_volume) < 0.25)

    def log_density(self, theta: Array) -> Array:
        """Log of a density with heavier tails at theta (k, d), up to that of the problem."""
        d = self.size
        return np.asarray(
            -self.log_volume - 0.5 * (d + HEAVIER) * np.log1p(self.squares(theta) / (d + HEAVIER))
        )

    def _starts(self, prior: LinearProposal, rng: np.random.Generator) -> tuple[Array, Array]:
        """Points (k, d) from which to climb, and variances (n,) of the latent values there."""
        problem, (n, d) = self.problem, self.problem.shape
        least, own = (one.post.marginals_of_rows()[1] for one in (prior, self))
        variance = np.maximum(own, LEAST_SPREAD**2 * least)
        points = prior.draw(rng.standard_normal((STARTS, d)))
        if problem.loss.by_margin:
            return points, variance
        rows = np.sort(rng.permutation(n)[:STARTS])
        center, precision = peaks(problem.loss, np.ascontiguousarray(problem.data.y[rows]))
        has = precision > 0.0
        rows, center, precision = rows[has], center[has], precision[has]
        if not len(rows):
            return points, variance
        variance[rows] = np.minimum(variance[rows], 1.0 / precision)
        X = problem.data.X[rows]
        X = X.toarray() if is_sparse(X) else np.asarray(X, dtype=np.float64)
        # as many rows of each as a number up to d says
        order = rng.random((2 * STARTS, len(rows))).argsort(axis=1)
        sites = np.where(order < rng.integers(1, d + 1, size=(2 * STARTS, 1)), precision, 0.0)
        assert isinstance(problem.prior, WeightPrior)
        prior_precision = problem.prior.precision
        if prior_precision.ndim == 1:
            prior_precision = np.diag(prior_precision)
        matrices = prior_precision + np.einsum("sk,ki,kj->sij", sites, X, X, optimize=True)
        vectors = problem.prior.shift + (sites * center) @ X
        try:
            means = np.linalg.solve(matrices, vectors[:, :, None])[:, :, 0]
        except np.linalg.LinAlgError:
            return points, variance
        return np.concatenate([points, means]), variance

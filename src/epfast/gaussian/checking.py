"""The exact posterior beside its approximation, for certificates."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import linalg

from epfast._arrays import Array
from epfast.gaussian.problem import (
    LinearProblem,
    State,
    inverse_root,
    is_proper,
    log_determinant,
    log_evidence,
    sum_of_sites,
)
from epfast.inference import Sites
from epfast.inference.best_gaussian import best_sites, climbed, peaks

#: largest number of weights for which a better Gaussian is looked for: O(n d^2) per step
BETTER_UP_TO = 2000
#: largest number of weights for which other modes are looked for: O(n d^2) per step of a climb
MODES_UP_TO = 200
#: draws of the prior from which modes are looked for, and half the means by a few rows; climbs
STARTS, CLIMBS = 64, 4
#: sd of latent values with which a climb begins, in those of the prior, where EP's are smaller
LEAST_SPREAD = 0.1
#: log of an importance weight, of which the mean is about 1, from which a climb is worth while
HEAVY = 1.0
#: degrees of freedom, beside the number of weights, of the densities of these importance weights
HEAVIER = 7.0
#: multiplications that solving for means by a few rows may take
WORK = 3e8


class LinearProposal(NamedTuple):
    """N(mean, root root') over the weights, beside prior times likelihood of a problem.

    Of several latents the weights are (C d,), one latent after the other.
    """

    problem: LinearProblem
    mean: Array
    #: (d,) or (d, d)
    root: Array
    #: log of the normaliser of the normal prior over that of the Gaussian
    log_volume: float
    #: (n, d): X theta is reported in place of the weights; None: the weights
    rows: Array | None = None
    #: see :class:`epfast.inference.importance.Proposal`
    is_best: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether the model is one that other Gaussians can be found for: see :meth:`better`."""
        return self.problem.prior_sites is None and self.problem.loss.latents == 1

    @property
    def size(self) -> int:
        return len(self.mean)

    @property
    def width(self) -> int:
        return self.size if self.rows is None else max(self.rows.shape)

    def draw(self, z: Array) -> Array:
        return self.mean + (z * self.root if self.root.ndim == 1 else z @ self.root.T)

    def log_ratio(self, z: Array, theta: Array) -> Array:
        square = np.einsum("ij,ij->i", z, z)
        return np.asarray(self.log_volume + 0.5 * square - self.problem.cost(theta))

    def reported(self, theta: Array) -> Array:
        return theta if self.rows is None else theta @ self.rows.T

    def moments(self) -> tuple[Array, Array]:
        root = self.root
        if self.rows is not None:
            root = self.rows * root if root.ndim == 1 else self.rows @ root
        sd = root if root.ndim == 1 else np.sqrt(np.einsum("ij,ij->i", root, root))
        return self.reported(self.mean), np.asarray(sd)

    def squares(self, theta: Array) -> Array:
        away = theta - self.mean
        if self.root.ndim == 1:
            return np.asarray(((away / self.root) ** 2).sum(axis=1))
        z = linalg.solve_triangular(self.root, away.T)
        return np.asarray(np.einsum("ij,ij->j", z, z))

    def better(self) -> LinearProposal | None:
        """The same with the best Gaussian; None if there is none, or the weights are too many.

        There is none for other priors, or for several latents.
        """
        if not self.is_plain or self.size > BETTER_UP_TO:
            return None
        found = _BestGaussian(self.problem)
        best = best_sites(found.values, found.marginals, self.problem.shape[0])
        drawn = None if best is None else self._of_sites(found, best.precision, best.shift)
        return None if drawn is None or best is None else drawn._replace(is_best=best.is_unique)

    def _of_sites(
        self, found: _BestGaussian, precision: Array, shift: Array
    ) -> LinearProposal | None:
        state = found.state(precision, shift)
        if state is None:
            return None
        root = inverse_root(state.precision)
        return proposal(self.problem, root @ (root.T @ state.shift), root, self.rows)

    def others(self, seed: int, log_evidence: float) -> tuple[list[LinearProposal], bool]:
        """Gaussians at other modes, where there are any, and the prior; whether they are believed.

        Climbs begin where importance weights would be largest, of draws of the prior and of means
        under the prior and the peaks of a few rows alone. A search is believed if it finds the
        Gaussian that it does not know of, this one.
        """
        problem, d = self.problem, self.size
        if not self.is_plain or d > MODES_UP_TO:
            return [], False
        found = _BestGaussian(problem)
        root = root_of(problem.prior_precision)
        parts = [self, proposal(problem, problem.prior_mean, root, self.rows)]
        points, spread = self._starts(parts[1], np.random.default_rng([seed, 2]))
        centers = np.stack([part.mean for part in parts])
        log_target = -problem.cost(np.concatenate([centers, points]))
        mass = min(log_evidence, log_target[0] + self.log_volume)
        log_target = log_target[2:]
        log_drawn = np.max([part.log_density(points) for part in parts], axis=0)
        within = d + 3.0 * np.sqrt(2.0 * d)
        near = believed = bool((self.squares(points) < within).any())
        for _ in range(CLIMBS):
            log_weight = log_target - log_drawn - mass
            best = int(np.where(np.isfinite(log_weight), log_weight, -np.inf).argmax())
            if near and not log_weight[best] > HEAVY:
                break
            log_target[best] = -np.inf
            h = np.asarray(problem.data.X @ points[best], dtype=np.float64)
            sites = climbed(found.values, found.marginals, h, spread)
            mode = None if sites is None else self._of_sites(found, *sites)
            if mode is None:
                continue
            if self.squares(mode.mean[None])[0] < within:
                believed = True
            if not any(part.is_near(mode) for part in parts):
                parts.append(mode)
                log_drawn = np.maximum(log_drawn, mode.log_density(points))
        return parts[1:], believed

    def is_near(self, other: LinearProposal) -> bool:
        """Whether another Gaussian is about the same."""
        away = max(self.squares(other.mean[None])[0], other.squares(self.mean[None])[0])
        return bool(away < 0.25 and abs(self.log_volume - other.log_volume) < 0.25)

    def log_density(self, theta: Array) -> Array:
        """Log of a density with heavier tails at theta (k, d), up to that of the problem."""
        d = self.size
        return np.asarray(
            -self.log_volume - 0.5 * (d + HEAVIER) * np.log1p(self.squares(theta) / (d + HEAVIER))
        )

    def _latent_variance(self) -> Array:
        """(n,), of the latent values."""
        result, root = np.empty(self.problem.shape[0]), self.root
        for part in self.problem.slices(unpacked=True):
            rows = _dense(self.problem, part)
            half = rows * root if root.ndim == 1 else rows @ root
            result[part] = np.einsum("ij,ij->i", half, half)
        return result

    def _starts(self, prior: LinearProposal, rng: np.random.Generator) -> tuple[Array, Array]:
        """Points (k, d) from which to climb, and variances (n,) of the latent values there."""
        problem, (n, d) = self.problem, self.problem.shape
        assert problem.data.y is not None
        variance = np.maximum(self._latent_variance(), LEAST_SPREAD**2 * prior._latent_variance())
        points = prior.draw(rng.standard_normal((STARTS, d)))
        if problem.loss.by_margin:
            return points, variance
        some = np.sort(rng.permutation(n)[:STARTS])
        center, precision = peaks(problem.loss, np.ascontiguousarray(problem.data.y[some]))
        has = precision > 0.0
        some, center, precision = some[has], center[has], precision[has]
        if not len(some):
            return points, variance
        variance[some] = np.minimum(variance[some], 1.0 / precision)
        X = problem.data.X[some]
        X = X.toarray() if problem.sparse else np.asarray(X, dtype=np.float64)
        count = int(np.clip(WORK / (d * d * (d + len(some))), 1, 2 * STARTS))
        # as many rows of each as a number up to d says
        order = rng.random((count, len(some))).argsort(axis=1)
        sites = np.where(order < rng.integers(1, d + 1, size=(count, 1)), precision, 0.0)
        prior_precision = problem.prior_precision
        if prior_precision.ndim == 1:
            prior_precision = np.diag(prior_precision)
        matrices = prior_precision + np.einsum("sk,ki,kj->sij", sites, X, X, optimize=True)
        vectors = problem.prior.shift + (sites * center) @ X
        try:
            means = np.linalg.solve(matrices, vectors[:, :, None])[:, :, 0]
        except np.linalg.LinAlgError:
            return points, variance
        return np.concatenate([points, means]), variance


def _dense(problem: LinearProblem, part: slice) -> Array:
    """Rows of X, (k, d)."""
    some = problem.data.X[part]
    return some.toarray() if problem.sparse else np.asarray(some, dtype=np.float64)


def proposal(
    problem: LinearProblem, mean: Array, root: Array, rows: Array | None = None
) -> LinearProposal:
    """The Gaussian of this mean and root, see :func:`root_of`. O(d^3) with a full prior."""
    diagonal = root if root.ndim == 1 else np.diag(root)
    latents = len(mean) // len(problem.prior.shift)
    volume = np.log(np.abs(diagonal)).sum()
    volume += 0.5 * latents * log_determinant(problem.prior_precision)
    return LinearProposal(problem, mean, root, float(volume), rows)


class SiteProposal(NamedTuple):
    """Prior times Gaussian sites of the rows, beside prior times likelihood.

    The prior is in both, so that their ratio takes the latent values of the rows alone.
    """

    #: a posterior with a site per row that has ``n_normals``, ``colored`` and ``closest``
    post: Any
    #: see :class:`epfast.inference.importance.Proposal`
    is_best: bool = False

    @property
    def size(self) -> int:
        size: int = self.post.n_normals
        return size

    @property
    def width(self) -> int:
        return max(self.size, int(self.post.mean.size))

    def draw(self, z: Array) -> Array:
        return np.asarray(self.post.mean.ravel() + self.post.colored(z))

    def log_ratio(self, z: Array, theta: Array) -> Array:
        precision, shift, scale = self.post.sites
        drawn = theta.reshape(len(theta), *self.post.mean.shape)
        h = self.post.latent_at(drawn)
        site = (h * (shift - 0.5 * precision * h)).reshape(len(h), -1).sum(axis=1) + scale.sum()
        likelihood = self.post.log_likelihood(drawn).sum(axis=1)
        return np.asarray(self.post.log_evidence - site + likelihood)

    def reported(self, theta: Array) -> Array:
        return theta

    def moments(self) -> tuple[Array, Array]:
        return self.post.mean.ravel(), np.sqrt(self.post.variance).ravel()

    def better(self) -> Any:
        """What is closer to the exact posterior, see :meth:`closest` of the posterior."""
        return self.post.closest()


def root_of(precision: Array) -> Array:
    """A root of the inverse: (d,), or an upper triangle (d, d). O(d^3)."""
    return 1.0 / np.sqrt(precision) if precision.ndim == 1 else inverse_root(precision)


class _BestGaussian:
    """The problem as :func:`best_sites` takes it."""

    def __init__(self, problem: LinearProblem) -> None:
        prior = problem.prior
        full = np.diag(prior.precision) if prior.precision.ndim == 1 else prior.precision
        self.problem, self.prior = problem, prior._replace(precision=full)
        self.log_determinant = log_determinant(prior.precision)

    def values(self, latent: Array, part: slice) -> Array:
        data = self.problem.data
        assert data.y is not None
        found = self.problem.loss.values(latent, data.y[part])
        return found if data.weights is None else data.weights[part, None] * found

    def state(self, precision: Array, shift: Array) -> State | None:
        sites = Sites(precision, shift, np.zeros(len(shift)))
        matrix, vector = sum_of_sites(self.problem, sites)
        matrix += self.prior.precision
        if not is_proper(matrix):
            return None
        return self.prior._replace(precision=matrix, shift=self.prior.shift + vector)

    def marginals(self, precision: Array, shift: Array) -> tuple[Array, Array, float] | None:
        state = self.state(precision, shift)
        if state is None:
            return None
        root = inverse_root(state.precision)
        center = root @ (root.T @ state.shift)
        mean, variance = np.empty((2, len(shift)))
        for part in self.problem.slices(unpacked=True):
            block = _dense(self.problem, part)
            mean[part] = block @ center
            half = linalg.blas.dtrmm(1.0, root, block.T, lower=0, trans_a=1)
            variance[part] = np.einsum("ij,ij->j", half, half)
        return mean, variance, log_evidence(state, self.log_determinant)

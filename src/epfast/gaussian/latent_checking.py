"""The exact posterior of a model with several latents per row, for certificates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epfast._arrays import Array
from epfast.gaussian.engines.latent_means import marginals
from epfast.gaussian.problem import LinearProblem, inverse_root, log_determinant
from epfast.inference import Sites
from epfast.losses import Multiclass

#: latent values that a certificate looks at, at a time
AT_ONCE = 1 << 18
#: largest number of weights for which a Gaussian with covariances between classes is made
BETTER_UP_TO = 2000


def losses_of(problem: LinearProblem, theta: Array) -> Array:
    """Minus the log likelihood of each row at weights (k, C, d), (k, n)."""
    size, latents, d = theta.shape
    X, y, loss = problem.data.X, problem.data.y, problem.loss
    assert y is not None
    result, flat = np.empty((size, len(y))), theta.reshape(-1, d).T
    step = max(1, AT_ONCE // (size * latents))
    for first in range(0, len(y), step):
        part = slice(first, first + step)
        rows = X[part] if problem.sparse else np.asarray(X[part], dtype=np.float64)
        latent = np.asarray(rows @ flat).reshape(-1, size, latents)
        result[:, part] = loss.values(np.moveaxis(latent, 0, 1), y[part])
    return result


def cost_of(problem: LinearProblem, theta: Array) -> Array:
    """Minus the log likelihood and prior density at weights (k, C, d), up to a constant, (k,)."""
    away = theta - problem.prior_mean
    cost = 0.5 * np.einsum("ski,ski->s", away @ problem.prior.precision, away)
    return np.asarray(cost + losses_of(problem, theta).sum(axis=1))


class _Proposal:
    """What both Gaussians share: the weights of all latents beside prior times likelihood."""

    problem: LinearProblem
    #: (C, d)
    mean: Array
    log_volume: float

    is_best: ClassVar[bool] = False

    @property
    def size(self) -> int:
        return self.mean.size

    @property
    def width(self) -> int:
        return self.mean.size

    def log_ratio(self, z: Array, theta: Array) -> Array:
        cost = cost_of(self.problem, theta.reshape(-1, *self.mean.shape))
        return np.asarray(self.log_volume + 0.5 * np.einsum("ij,ij->i", z, z) - cost)

    def reported(self, theta: Array) -> Array:
        return theta


@dataclass(frozen=True, eq=False)
class LatentProposal(_Proposal):
    """The posterior over the weights of all latents, beside prior times likelihood."""

    problem: LinearProblem
    sites: Sites
    #: (C, d)
    mean: Array
    #: (C, d, d), root root' are the covariances
    roots: Array
    #: log of the normaliser of the prior over that of the Gaussian
    log_volume: float

    def draw(self, z: Array) -> Array:
        one = z.reshape(-1, *self.mean.shape)
        drawn = self.mean + np.einsum("kij,skj->ski", self.roots, one)
        return np.asarray(drawn).reshape(len(z), -1)

    def moments(self) -> tuple[Array, Array]:
        return self.mean.ravel(), np.sqrt(np.einsum("kij,kij->ki", self.roots, self.roots)).ravel()

    def better(self) -> JointProposal | None:
        """A Gaussian that knows how classes go together; None of other latents, or if too large.

        About the same mean, with the precision P0 + Σ_i x_i x_i' W_i, W_i the curvature of the
        factors under the cavities. O(n (C d)^2).
        """
        loss, sites, (latents, d) = self.problem.loss, self.sites, self.mean.shape
        if not isinstance(loss, Multiclass) or latents * d > BETTER_UP_TO:
            return None
        X, y = self.problem.data.X, self.problem.data.y
        h, s = marginals(X, self.mean, np.stack([root @ root.T for root in self.roots]))
        rest = 1.0 - sites.precision * s
        if not (rest > 0.0).all():
            return None
        v = s / rest
        m = h - v * (sites.shift - sites.precision * h)
        slopes, W = np.empty((len(h), latents)), np.empty((len(h), latents, latents))
        if y is None or loss.latent_moments().curvatures(y, m, v, slopes, W):
            return None
        precision: Array = np.kron(np.eye(latents), self.problem.prior.precision).astype(np.float64)
        whole = precision.reshape(latents, d, latents, d)
        rows = X.tocsr() if self.problem.sparse else X
        for j in range(latents):
            for k in range(j + 1):
                weight = W[:, j, k]
                scaled = rows.multiply(weight[:, None]) if self.problem.sparse else (
                    rows * weight[:, None]
                )  # fmt: skip
                block = rows.T @ scaled
                block = block.toarray() if hasattr(block, "toarray") else block
                whole[j, :, k] += block
                if k < j:
                    whole[k, :, j] += block
        root = inverse_root(precision)
        volume = np.log(np.abs(np.diag(root))).sum()
        volume += 0.5 * latents * log_determinant(self.problem.prior.precision)
        return JointProposal(self.problem, self.mean, root, float(volume))


@dataclass(frozen=True, eq=False)
class JointProposal(_Proposal):
    """A Gaussian over the weights of all latents together, as :class:`LatentProposal`."""

    problem: LinearProblem
    #: (C, d)
    mean: Array
    #: (C d, C d), root root' is the covariance
    root: Array
    log_volume: float

    def draw(self, z: Array) -> Array:
        return np.asarray(self.mean.ravel() + z @ self.root.T)

    def moments(self) -> tuple[Array, Array]:
        return self.mean.ravel(), np.sqrt(np.einsum("ij,ij->i", self.root, self.root))

    def better(self) -> None:
        """There is none at hand."""

"""The exact posterior of a process beside its approximation, for certificates."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import linalg

from epfast._arrays import Array, symmetric_from_upper
from epfast._core.kernel_matrix import KernelMatrix
from epfast.inference import Sites
from epfast.inference.best_gaussian import best_sites
from epfast.linear.engines.kernel import log_evidence, moments_of
from epfast.losses import Loss

#: largest number of observations for which a better Gaussian is looked for: O(n^3) per step
BETTER_UP_TO = 1500


class SiteProposal(NamedTuple):
    """Prior times Gaussian sites over the latent values, beside prior times likelihood.

    The prior is in both, so that their ratio needs the sites alone, however singular the kernel.
    """

    loss: Loss
    #: (n, width)
    y: Array
    mean: Array
    #: (n, r), root root' is the covariance
    root: Array
    sites: Sites
    #: log of the integral of prior times sites
    log_normaliser: float
    #: (n, n): K strictly below the diagonal, and (n,) its diagonal
    packed: Array
    diagonal: Array
    #: (n,), powers of the likelihoods; None: 1
    weights: Array | None = None
    #: see :class:`epfast.inference.importance.Proposal`
    is_best: bool = False

    @property
    def size(self) -> int:
        return int(self.root.shape[1])

    @property
    def width(self) -> int:
        return len(self.mean)

    def draw(self, z: Array) -> Array:
        return np.asarray(self.mean + z @ self.root.T)

    def log_ratio(self, z: Array, theta: Array) -> Array:
        precision, shift, scale = self.sites
        site = theta @ shift - 0.5 * theta**2 @ precision + scale.sum()
        return np.asarray(self.log_normaliser - site - self._values(theta.T, slice(None)).sum(0))

    def _values(self, latent: Array, part: slice) -> Array:
        """Losses of some observations, (n, draws), times their weights."""
        found = self.loss.values(latent, self.y[part])
        return found if self.weights is None else self.weights[part, None] * found

    def reported(self, theta: Array) -> Array:
        return theta

    def moments(self) -> tuple[Array, Array]:
        return self.mean, np.sqrt(np.einsum("ij,ij->i", self.root, self.root))

    def better(self) -> SiteProposal | None:
        """The same with the best Gaussian; None if there is none, or n is too large."""
        n = len(self.mean)
        if n > BETTER_UP_TO:
            return None
        kernel = np.tril(self.packed, -1)
        kernel += kernel.T
        kernel[np.diag_indices(n)] = self.diagonal
        matrix = KernelMatrix(kernel)

        def marginals(precision: Array, shift: Array) -> tuple[Array, Array, float] | None:
            sites = Sites(precision, shift, np.zeros(n))
            found = moments_of(matrix, sites, covariance=False)
            if found is None:
                return None
            return found.mean, found.variance, log_evidence(sites, found)

        best = best_sites(self._values, marginals, n)
        if best is None:
            return None
        sites = Sites(best.precision, best.shift, np.zeros(n))
        moments = moments_of(matrix, sites, covariance=True)
        if moments is None:
            return None
        return self._replace(
            mean=moments.mean,
            root=root_of(symmetric_from_upper(matrix.array)),
            sites=sites,
            log_normaliser=log_evidence(sites, moments),
            is_best=best.is_unique,
        )


def root_of(covariance: Array) -> Array:
    """A root (n, r) of a covariance of rank r to rounding, by Cholesky with pivots. O(n^2 r)."""
    factor, pivots, rank, _ = linalg.lapack.dpstrf(covariance, lower=1)
    rank = max(1, rank)
    root = np.empty((len(covariance), rank))
    root[pivots - 1] = np.tril(factor)[:, :rank]
    return root

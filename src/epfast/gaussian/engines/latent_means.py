"""A Newton step on all means of several latents at once, while variances stand still.

With q a product over the latents, sweeps move what one latent has in common with others slowly: a
number added to all classes changes no probability, and only the prior tells it. At a fixed point
the means solve P0 (theta_k - mu0) = Σ_i x_i d_ik, d the slopes of log Z at the cavities. With the
variances of the cavities held fixed d falls with the tilted means by W, (C, C) for each row, and
Newton's equations (P0 + Σ_i x_i x_i' W_i) step = rest are solved by conjugate gradients.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast._arrays import Array, row_chunks
from epfast.gaussian.problem import LinearProblem, inverse_of
from epfast.inference import Sites

#: conjugate gradients end where the rest is this share of the first, or after so many steps
ENOUGH, MOST_STEPS = 1e-6, 400
#: a step that leaves the slopes further from the sites than this multiple is not taken
FURTHER = 2.0


def marginals(X: Any, mean: Array, covariance: Array) -> tuple[Array, Array]:
    """Mean and variance of the latents of all rows, (n, C) each. O(C n d^2)."""
    n, latents = X.shape[0], len(mean)
    h, s = np.empty((2, n, latents))
    for part in row_chunks(X, unpacked=True):
        block = X[part].toarray() if hasattr(X, "indptr") else X[part]
        h[part] = block @ mean.T
        for k in range(latents):
            s[part, k] = np.einsum("ij,ij->i", block @ covariance[k], block)
    return h, s


class LatentMeansStep:
    """Scratch for steps on the means of classes."""

    def __init__(self, problem: LinearProblem, moments: Any) -> None:
        self.problem, self.moments = problem, moments
        self.prior_covariance = inverse_of(problem.prior.precision)

    def shifts(self, sites: Sites, mean: Array, covariance: Array) -> Array | None:
        """Shifts of the sites, (n, C), after a step; None where there is none to take."""
        problem, (n, latents) = self.problem, sites.shift.shape
        X, y, prior = problem.data.X, problem.data.y, problem.prior
        h, s = marginals(X, mean, covariance)
        rest = 1.0 - sites.precision * s
        if not (rest > 0.0).all():
            return None
        v = s / rest
        slope = sites.shift - sites.precision * h
        d, W = np.empty((n, latents)), np.empty((n, latents, latents))
        if self.moments.curvatures(y, h - v * slope, v, d, W):
            return None
        away = d - slope
        aim = d + np.einsum("ijk,ik->ij", W, v * away)
        right = np.asarray(X.T @ aim).T - (mean @ prior.precision - prior.shift)
        step = self._solved(W, right, covariance)
        moved = np.asarray(X @ step.T)
        new = aim - np.einsum("ijk,ik->ij", W, moved)
        center = h + moved
        # slopes where the step leads
        if self.moments.curvatures(y, center - v * new, v, d, W):
            return None
        size = np.sqrt(v)
        if not np.abs((d - new) * size).max() <= FURTHER * np.abs(away * size).max():
            return None
        return np.asarray(new + sites.precision * center)

    def _solved(self, W: Array, right: Array, covariance: Array) -> Array:
        """The step, (C, d), by conjugate gradients.

        Each latent by its covariance, and what all have in common by that of the prior.
        """
        X, prior = self.problem.data.X, self.problem.prior.precision

        def times(z: Array) -> Array:
            pulled = np.einsum("ijk,ik->ij", W, np.asarray(X @ z.T))
            return np.asarray(z @ prior + np.asarray(X.T @ pulled).T)

        def nearly(r: Array) -> Array:
            common = self.prior_covariance @ r.sum(axis=0) / len(r)
            return np.asarray(np.einsum("kij,kj->ki", covariance, r) + common)

        step, r = np.zeros_like(right), right.copy()
        z = nearly(r)
        p, size = z, float((r * z).sum())
        first = size
        for _ in range(MOST_STEPS):
            if not size > ENOUGH**2 * first:
                break
            q = times(p)
            share = size / float((p * q).sum())
            step += share * p
            r -= share * q
            z = nearly(r)
            size, before = float((r * z).sum()), size
            p = z + (size / before) * p
        return step

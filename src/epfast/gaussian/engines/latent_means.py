"""A Newton step on all means of several latents at once, while variances stand still.

With q a product over the latents, sweeps move what one latent has in common with others slowly: a
number added to all classes changes no probability, and only the prior tells it. At a fixed point
the means solve P0 (theta_k - mu0) = Σ_i x_i d_ik, d the slopes of log Z at the cavities. With the
variances of the cavities held fixed d falls with the tilted means by W, (C, C) for each row, and
Newton's equations (P0 + Σ_i x_i x_i' W_i) step = rest are solved by conjugate gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from epfast._arrays import Array, row_chunks
from epfast.inference import Sites

#: conjugate gradients end where the rest is this share of the first, or after so many steps
ENOUGH, MOST_STEPS = 1e-6, 400
#: a step that leaves the slopes further from the sites than this multiple is not taken
FURTHER = 2.0


def by_latent(sites: Sites) -> Sites:
    """Sites as the core has them: precision and shift (C, n), log scale (n,)."""
    precision, shift = (np.ascontiguousarray(part.T) for part in sites[:2])
    return Sites(precision, shift, sites.log_scale)


def newton_step(
    moments: Any, y: Any, sites: Sites, h: Array, s: Array, solve: Callable[..., Array]
) -> tuple[Array, Array] | None:
    """Means of the latents and shifts of the sites, (n, C) each, after a step; None: there is none.

    h, s: means and variances of the latents. solve: (W, aim, slope) -> how far they move, with aim
    the slopes where they are, and slope those that the sites have.
    """
    n, latents = h.shape
    rest = 1.0 - sites.precision * s
    if not (rest > 0.0).all():
        return None
    v = np.ascontiguousarray(s / rest)
    slope = sites.shift - sites.precision * h
    d, W = np.empty((n, latents)), np.empty((n, latents, latents))
    if moments.curvatures(y, np.ascontiguousarray(h - v * slope), v, d, W):
        return None
    away = d - slope
    aim = d + np.einsum("ijk,ik->ij", W, v * away)
    moved = solve(W, aim, slope)
    new, center = aim - np.einsum("ijk,ik->ij", W, moved), h + moved
    # slopes where the step leads
    if moments.curvatures(y, np.ascontiguousarray(center - v * new), v, d, W):
        return None
    size = np.sqrt(v)
    if not np.abs((d - new) * size).max() <= FURTHER * np.abs(away * size).max():
        return None
    return center, np.asarray(new + sites.precision * center)


def conjugate_gradients(
    right: Array,
    pull: Callable[[Array], Array],
    nearly: Callable[[Array], tuple[Array, Array]],
    enough: float = ENOUGH,
    most: int = MOST_STEPS,
) -> Array:
    """z with (P + pull) z = right, P the precision of the prior.

    nearly: about the solution, and P times that; so P is never applied to anything else. NaN where
    P + pull is not positive.
    """
    step, r = np.zeros_like(right), right.copy()
    z, back = nearly(r)
    p, kp, size = z, back, float((r * z).sum())
    first = size
    for _ in range(most):
        if not size > enough**2 * first:
            break
        q = kp + pull(p)
        curvature = float((p * q).sum())
        if not curvature > 0.0:
            return np.full_like(right, np.nan)
        share = size / curvature
        step += share * p
        r -= share * q
        z, back = nearly(r)
        size, before = float((r * z).sum()), size
        p, kp = z + (size / before) * p, back + (size / before) * kp
    return step


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

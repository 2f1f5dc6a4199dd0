"""Why a fit of a process is not to be trusted, from what costs little: O(n^2)."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from epfast._arrays import Array
from epfast.inference import evidence_bound
from epfast.inference.loop import NO_FIXED_POINT, RESIDUAL, is_sharp

#: largest gap between the mean and K alpha, in posterior sd
ROUNDING = 1e-3


def rounding_gap(packed: Array, diagonal: Array, alpha: Array, mean: Array, sd: Array) -> float:
    """Largest |K alpha - mean| in posterior sd; packed: K strictly below the diagonal. O(n^2)."""
    # by columns the lower triangle of packed is the upper one of its transpose
    product = linalg.blas.dsymv(1.0, packed.T, alpha, lower=0)
    product += (diagonal - packed.diagonal()) * alpha
    gap = np.abs(product - mean)
    # what is certain and right has no gap
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.where(gap > 0.0, gap / sd, 0.0).max(initial=0.0))


def broken(post: Any) -> str | None:
    """The certificate that a posterior breaks, in words; None if it breaks none.

    post: a GPPosterior or LowRankGPPosterior.
    """
    evidence = post.log_evidence
    if post.loss is not None and evidence > evidence_bound(post.loss, len(post.y)):
        return (
            f"the log evidence is {evidence:.4g}, above 0, where no factor is above 1: EP failed; "
            "try damping, schedule=epfast.DoubleLoop() or another kernel, and do not use the result"
        )
    gap = getattr(post, "rounding", 0.0)
    if not gap <= ROUNDING:
        return (
            f"rounding spoils the posterior at new inputs: K alpha differs from the mean by "
            f"{gap:.2g} posterior sd; K is too close to singular for sites this sharp: try a "
            "shorter length scale, jitter, or another loss"
        )
    last = post.history[-1].change if post.history else np.inf
    stands = post.scheme is not None and last <= getattr(post.schedule, "tol", 0.0)
    if stands and is_sharp(post.scheme) and not post.residual <= RESIDUAL:
        return NO_FIXED_POINT.format(post.residual)
    return None


def trusted(post: Any) -> bool:
    """Whether a posterior is at a fixed point of EP and breaks no certificate."""
    last = post.history[-1] if post.history else None
    if last is not None and last.n_refused > 0:
        return False
    if broken(post) is not None:
        return False
    # a fixed number of sweeps has no tolerance to meet
    return bool(post.converged or post.residual <= RESIDUAL)

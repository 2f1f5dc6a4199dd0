"""Why a fit of a process is not to be trusted, from what costs little: O(n^2)."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import linalg

from epfast._arrays import Array
from epfast.inference import evidence_bound
from epfast.inference.loop import NO_FIXED_POINT, RESIDUAL, blurred, is_sharp, stands_off

#: largest gap between the mean and K alpha, in posterior sd
ROUNDING = 1e-3
#: rows of the kernel at a time
STRIP = 128
#: inputs of the fit at which variances are predicted
WATCHED = 16
#: a tenth of a variance counts as the largest gap of a mean
SHARE_OF_VARIANCES = 0.01
ROUGH = (
    "the sweeps stand still at what is no fixed point of EP (residual {:.2g}), by rounding: K is "
    "too large or too close to singular for this loss; scale it, add jitter, or use another loss"
)

STUCK = (
    "the sweeps stand still where a cavity is improper, which is no fixed point of EP: damp them, "
    "try schedule=epfast.DoubleLoop(), or use a loss with a larger scale"
)


def rounding_gap(packed: Array, diagonal: Array, alpha: Array, mean: Array, sd: Array) -> float:
    """Largest |K alpha - mean| in posterior sd; packed: K strictly below the diagonal. O(n^2)."""
    with np.errstate(all="ignore"):
        product = diagonal * alpha
        # strips of rows without the diagonal, which may hold much larger numbers
        for first in range(0, len(alpha), STRIP):
            rows = slice(first, first + STRIP)
            below = np.tril(packed[rows, : first + STRIP], first - 1)
            product[rows] += below @ alpha[: below.shape[1]]
            product[: below.shape[1]] += below.T @ alpha[rows]
        gap = np.abs(product - mean)
        # what is certain and right has no gap
        return float(np.where(gap > 0.0, gap / sd, 0.0).max(initial=0.0))


def variance_gap(packed: Array, diagonal: Array, variance: Array) -> float:
    """Largest share by which a variance that is predicted at some inputs is off. O(n^2).

    packed: K strictly below the diagonal, R = (K + 1 / precision)^-1 in the other triangle.
    """
    n = len(diagonal)
    some = np.unique(np.linspace(0, n - 1, WATCHED).astype(np.intp))
    rows = packed[some]
    for row, k in zip(rows, some, strict=True):
        row[k], row[k + 1 :] = diagonal[k], packed[k + 1 :, k]
    with np.errstate(all="ignore"):
        lost = np.einsum("ij,ji->i", rows, linalg.blas.dsymm(1.0, packed.T, rows.T, lower=1))
        gap = np.abs(diagonal[some] - lost - variance[some])
        return float(np.where(gap > 0.0, gap / variance[some], 0.0).max(initial=0.0))


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
            f"rounding spoils the posterior at new inputs: at those of the fit predictions are off "
            f"by {gap:.2g} posterior sd, or by {100.0 * gap:.2g} of a variance; K is too close to "
            "singular for sites this sharp: try a shorter length scale, jitter, or another loss"
        )
    if not _stands(post):
        return None
    reason = blurred(post.mean, post.variance)
    if reason:
        return reason
    asked = max(post.schedule.tol, getattr(post.schedule, "match", 0.0))
    judged = post.scheme is not None and not (post.scheme.relaxes or post.scheme.learns)
    if not judged or not stands_off(post.residual, asked):
        return None
    if post.loss is not None and not post.loss.log_concave and np.isinf(post.residual):
        return STUCK
    return (NO_FIXED_POINT if is_sharp(post.scheme) else ROUGH).format(post.residual)


def _stands(post: Any) -> bool:
    """Whether the last sweep, or step of a double loop, met its tolerance."""
    if not post.history:
        return False
    last, schedule = post.history[-1], post.schedule
    if last.mismatch is not None:
        return bool(last.mismatch <= schedule.match)
    # a double loop may end with the sweeps before it
    return bool(last.change <= getattr(getattr(schedule, "start", schedule), "tol", 0.0))


def trusted(post: Any) -> bool:
    """Whether a posterior is at a fixed point of EP and breaks no certificate."""
    last = post.history[-1] if post.history else None
    if last is not None and last.n_refused > 0:
        return False
    if broken(post) is not None:
        return False
    # a fixed number of sweeps has no tolerance to meet
    return bool(post.converged or post.residual <= RESIDUAL)

"""Why a fit of a process is not to be trusted, from what costs little: O(n^2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast.inference import evidence_bound
from epfast.inference.loop import (
    NO_FIXED_POINT,
    RESIDUAL,
    is_sharp,
    mean_beyond_precision,
    not_a_fixed_point,
)

ROUGH = (
    "the sweeps stand still at what is no fixed point of EP (residual {:.2g}), by rounding: K is "
    "too large or too close to singular for this loss; scale it, add jitter, or use another loss"
)

STUCK = (
    "the sweeps stand still where a cavity is improper, which is no fixed point of EP: damp them, "
    "try schedule=epfast.DoubleLoop(), or use a loss with a larger scale"
)


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
    if not _stands(post):
        return None
    reason = mean_beyond_precision(post.mean, post.variance)
    if reason:
        return reason
    asked = max(post.schedule.tol, getattr(post.schedule, "match", 0.0))
    judged = post.scheme is not None and not (post.scheme.relaxes or post.scheme.learns)
    if not judged or not not_a_fixed_point(post.residual, asked):
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

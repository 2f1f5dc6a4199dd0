"""Probit regression by the methods of Li et al. (2015): fits, and ADF that is iterated."""

from __future__ import annotations

from typing import Any

import epfast


def fit(X: Any, y: Any, schedule: Any, prior: float = 1.0, start: Any = None, **more: Any) -> Any:
    """A fit with exact moments, a site per row and a full covariance; a start brings its prior."""
    given = {"start": start} if start is not None else {"prior_variance": prior}
    return epfast.fit_linear(
        X, y, loss="probit", posterior="full", schedule=schedule, **given, **more
    )


def adf(X: Any, y: Any, passes: int, seed: int, prior: float = 1.0) -> Any:
    """ADF that goes on over the same rows: after k passes it has counted each of them k times."""
    post = None
    for k in range(passes):
        post = fit(X, y, epfast.ADF(order="shuffled", seed=seed + k), prior, post)
    return post

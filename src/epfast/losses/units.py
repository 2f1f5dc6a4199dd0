"""Where responses are and how far they spread: the units in which a search begins."""

from __future__ import annotations

import numpy as np

from epfast._arrays import Array

#: share of the location below which a spread is rounding
ROUNDING = 1e-13
#: of the normal distribution: standard deviation over median distance from the median
NORMAL = 1.4826


def _standardiser(location: float, spread: float) -> tuple[float, float]:
    if not spread > ROUNDING * abs(location):
        spread = abs(location)
    return location, spread if spread > 0.0 else 1.0


def moments(y: Array, weights: Array | None = None) -> tuple[float, float]:
    """Mean and standard deviation. Where all are alike, their size in place of that, or 1."""
    share = _shares(len(y), weights)
    mean = float(share @ y)
    return _standardiser(mean, float(np.sqrt(share @ (y - mean) ** 2)))


def medians(y: Array, weights: Array | None = None) -> tuple[float, float]:
    """As :func:`moments`, of the bulk of y whatever its outliers: by medians."""
    middle = _median(y, weights)
    spread = NORMAL * _median(np.abs(y - middle), weights)
    if not spread > ROUNDING * abs(middle):
        return moments(y, weights)
    return _standardiser(middle, spread)


def log_mean(y: Array, offset: Array | None, weights: Array | None = None) -> float:
    """log of the mean of counts over that of exp(offset). Half a count is added to all."""
    share = _shares(len(y), weights)
    shift = np.zeros(len(y)) if offset is None else offset
    top = float(shift.max())
    base = top + float(np.log(share @ np.exp(shift - top)))
    total = float(len(y)) if weights is None else float(weights.sum())
    return float(np.log(share @ y + 0.5 / total)) - base


def _shares(n: int, weights: Array | None) -> Array:
    return np.full(n, 1.0 / n) if weights is None else weights / weights.sum()


def _median(y: Array, weights: Array | None) -> float:
    """The least y up to which there is half of the weight."""
    if weights is None:
        middle = (len(y) + 1) // 2 - 1
        return float(np.partition(y, middle)[middle])
    order = np.argsort(y, kind="stable")
    mass = np.cumsum(weights[order])
    return float(y[order][np.searchsorted(mass, 0.5 * mass[-1])])

"""Quantiles of predictive distributions: inversion of E[P(y <= x | h)], h ~ N(mean, variance)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray
from scipy import special

from epfast import _checks
from epfast._arrays import Array, Which
from epfast.losses.prediction import NEAR, panels

if TYPE_CHECKING:
    from epfast.losses.base import Loss

#: P(y <= x) and P(y > x) at numbers x (n,), of these rows
Tails = Callable[[Array, Which], tuple[Array, Array]]
#: the same of a given h, of the same shape
TailsGiven = Callable[[Array, Array], tuple[Array, Array]]

#: rows at a time
ROWS = 2048
#: most doublings of a bracket, and steps within it
DOUBLINGS, STEPS = 200, 200
#: where a root ends, in units of its scale
CLOSE = 1e-13
#: the largest count
LOG_MOST = 700.0
MOST = np.exp(LOG_MOST)
#: nats that the weights of a mixture reach down
MIXTURE_REACH = 40.0


def level_of(level: float) -> float:
    """A level of a quantile, in (0, 1)."""
    result = _checks.number("level", level, above=0.0)
    if not result < 1.0:
        raise ValueError(f"level is {result:g}; allowed: less than 1")
    return result


def root(tails: Tails, level: float, guess: Array, step: Array, whole: bool = False) -> Array:
    """x at which P(y <= x) comes to the level, (n,), row by row.

    Parameters
    ----------
    tails : callable
    level : float
    guess, step : ndarray of shape (n,)
        Where to begin, and a length over which P changes.
    whole : bool
        Whether the least count x with P(y <= x) >= level is wanted: infinite beyond exp(700). Steps
        are of log(1 + x).
    """
    level, result = level_of(level), np.empty(len(guess))
    for first in range(0, len(guess), ROWS):
        rows = np.arange(first, min(first + ROWS, len(guess)))
        result[rows] = _root(tails, level, guess[rows], step[rows], rows, whole)
    return result


def _root(
    tails: Tails, level: float, guess: Array, scale: Array, rows: NDArray[np.intp], whole: bool
) -> Array:
    x = np.clip(np.floor(guess), 0.0, MOST) if whole else guess
    low, high = np.full(len(x), -1.0 if whole else -np.inf), np.full(len(x), np.inf)
    at_low, at_high, step, side = -high, high.copy(), scale.copy(), np.zeros(len(x))
    for trial in range(DOUBLINGS + STEPS):
        # neighbours, or to rounding; beyond the largest count there is none
        least = np.maximum(1.0, CLOSE * low) if whole else CLOSE * (scale + np.abs(x))
        i = np.flatnonzero((high - low > least) & (low < MOST))
        if not len(i):
            break
        value = _over(level, *tails(x[i], rows[i]))
        above, before = value >= 0.0, side[i]
        # an end that stays twice counts half (Illinois)
        at_low[i] = np.where(above, np.where(before > 0.0, 0.5, 1.0) * at_low[i], value)
        at_high[i] = np.where(above, value, np.where(before < 0.0, 0.5, 1.0) * at_high[i])
        low[i] = np.where(above & ((value > 0.0) | whole), low[i], x[i])
        high[i] = np.where(above, x[i], high[i])
        side[i] = np.where(above, 1.0, -1.0)
        with np.errstate(all="ignore"):
            left, right = (np.log1p(end[i]) if whole else end[i] for end in (low, high))
            chord = (left * at_high[i] - right * at_low[i]) / (at_high[i] - at_low[i])
            middle = 0.5 * (left + right)
        inside = (chord > left) & (chord < right) & (trial % 3 < 2)
        u = np.where(inside, chord, middle)
        u = np.where(np.isinf(left), right - step[i], np.where(np.isinf(right), left + step[i], u))
        step[i] *= 2.0
        if whole:
            u = np.floor(np.expm1(np.clip(u, 0.0, LOG_MOST)))
            u = np.clip(u, low[i] + 1.0, np.minimum(np.maximum(high[i] - 1.0, low[i] + 1.0), MOST))
        x[i] = u
    if whole:
        return np.where(high > MOST, np.inf, high)
    return np.asarray(0.5 * (low + high))


def _over(level: float, below: Array, above: Array) -> Array:
    """Nats by which a level is passed. Precise in the tail that it is in."""
    with np.errstate(divide="ignore"):
        if level <= 0.5:
            return np.asarray(np.log(below) - np.log(level))
        return np.asarray(np.log1p(-level) - np.log(above))


def of_mixture(
    level: float, losses: Sequence[Loss], weights: Array, latents: Iterable[tuple[Array, Array]]
) -> Array:
    """Quantiles of a mixture, (n,), the parts of which are losses with means and variances of h.

    Parameters
    ----------
    level : float
    losses : sequence of Loss
    weights : ndarray of shape (k,)
    latents : sequence of pairs of ndarray of shape (n,)
    """
    level, parts = level_of(level), list(zip(losses, latents, strict=True))

    def tails(y: Array, rows: Which) -> tuple[Array, Array]:
        both = [loss.predict_tails(y, m[rows], v[rows]) for loss, (m, v) in parts]
        below, above = (weights @ np.stack(part) for part in zip(*both, strict=True))
        return below, above

    main, latent = parts[int(np.argmax(weights))]
    guess = main.predict_quantile(level, *latent)
    if losses[0].discrete:
        return root(tails, level, guess, np.ones(len(guess)), whole=True)
    lower = main.predict_quantile(0.8 * level, *latent)
    return root(tails, level, guess, np.maximum(guess - lower, np.finfo(np.float64).tiny))


def expected(
    given: TailsGiven, x: Array, center: Array, width: Array | float, m: Array, sd: Array
) -> tuple[Array, Array]:
    """E of both tails over h ~ N(m, sd^2). They turn at h near center, over some widths."""
    near = center[:, None] + np.multiply.outer(np.broadcast_to(width, x.shape), NEAR)
    h, log_weight = panels(m, sd, near)
    weight = np.exp(log_weight)
    below, above = given(x[:, None, None], h)
    return np.einsum("ijk,ijk->i", weight, below), np.einsum("ijk,ijk->i", weight, above)


def laplace_tails(x: Array, sd: Array, left: float, right: float) -> tuple[Array, Array]:
    """P(g + e <= x) and its rest: g ~ N(0, sd^2), e falling at rates left and right of 0."""
    sd = np.maximum(sd, 1e-12 * (1.0 / left + 1.0 / right))
    share = right / (left + right)  # of e < 0
    minus = share * np.exp(
        0.5 * (left * sd) ** 2 + left * x + special.log_ndtr(-x / sd - left * sd)
    )
    plus = (1.0 - share) * np.exp(
        0.5 * (right * sd) ** 2 - right * x + special.log_ndtr(x / sd - right * sd)
    )
    below = special.ndtr(x / sd) + minus - plus
    above = special.ndtr(-x / sd) + plus - minus
    return below, above


def student_tails(x: Array, variance: Array, df: float, scale: float) -> tuple[Array, Array]:
    """P(g + e <= x) and its rest: g ~ N(0, variance), e Student's t: a mixture of normals."""
    a = 2.0 * MIXTURE_REACH / df
    side = a + np.sqrt(2.0 * a)
    low, high = -side, np.log1p(side)
    t = np.linspace(low, high, int((high - low) * np.sqrt(20.0 + df)) + 2)
    log_weight = 0.5 * df * (t - np.expm1(t))
    weight = np.exp(log_weight - log_weight.max())
    z = x[:, None] / np.sqrt(variance[:, None] + scale**2 * np.exp(-t))
    weight /= weight.sum()
    return special.ndtr(z) @ weight, special.ndtr(-z) @ weight

"""The Gaussian closest to prior times likelihood, from which a check draws if a fit failed.

The maximum of the evidence bound E_q[log p(y, theta) - log q(theta)] over Gaussians (Opper &
Archambeau 2009), by sites: natural gradient steps (Khan & Lin 2017) that only go up. It shares no
code with EP, so that a fit that went wrong does not take its check along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from epfast._arrays import Array, Piece, pieces
from epfast.losses import Loss

#: values of w beta l(h; y) for some rows: (latent (k, nodes), slice of the rows) -> (k, nodes)
Values = Callable[[Array, Piece], Array]
#: posterior of the prior times exp(shift h - precision h^2 / 2): means and variances of the latent
#: values, log normaliser. None if it is improper
Marginals = Callable[[Array, Array], tuple[Array, Array, float] | None]

#: most steps
STEPS = 60
#: the bound has converged where a step adds less, in nats
LEAST_GAIN = 1e-3
#: what is left of a step at a maximum, of a row in its sd or its log variance: a search that fails
#: leaves 2,000 and more
STILL = 10.0
#: of curvatures by quadrature, in units of the largest
ROUNDING = 1e-6
#: distances from where a factor may have its peak, in units of the loss
REACHES = 2.0 ** np.arange(-20.0, 6.0)
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(48)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
#: steps of a climb to a mode, and nodes and weights of its quadrature
CLIMB, FEW = 8, np.polynomial.hermite_e.hermegauss(12)
FEW = FEW[0], FEW[1] / FEW[1].sum()


def best_sites(
    values: Values, marginals: Marginals, starts: Sequence[tuple[Array, Array]]
) -> tuple[Array, Array, bool] | None:
    """Sites of the best Gaussian, precision and shift. None if none is found.

    And whether no curvature was negative: with log-concave factors there is one maximum.

    Takes values of the loss alone: slopes and curvatures under a Gaussian are moments of values.
    Negative curvatures count as 0. starts: sites, of which those of the largest bound are the first
    ones. Under a wide prior the bound of a growing loss may be too low to have any digits.
    """
    bound = -np.inf
    for sites in starts:
        there = marginals(*sites)
        if there is not None:
            moments = _expectations(values, *there[:2])
            reached = _bound(*sites, there, moments[0])
            if reached > bound:
                bound, (precision, shift), here = reached, sites, there
                _, slope, curvature = moments
    if not np.isfinite(bound):
        return None
    for _ in range(STEPS):
        wanted = np.maximum(curvature, 0.0)
        move = wanted - precision, wanted * here[0] - slope - shift
        for share in 0.5 ** np.arange(12):
            trial = precision + share * move[0], shift + share * move[1]
            there = marginals(*trial)
            if there is None:
                continue
            moments = _expectations(values, *there[:2])
            reached = _bound(*trial, there, moments[0])
            if reached > bound:
                break
        else:
            break
        gain, bound = reached - bound, reached
        (precision, shift), here, (_, slope, curvature) = trial, there, moments
        if gain < LEAST_GAIN:
            break
    mean, variance, _ = here
    bent = np.abs(np.maximum(curvature, 0.0) - precision) * variance
    uphill = np.abs(shift - precision * mean + slope) * np.sqrt(variance)
    if not max(bent.max(), uphill.max()) < STILL:
        return None
    return precision, shift, bool((curvature > -ROUNDING * np.abs(curvature).max()).all())


def sites_near_mode(
    values: Values, marginals: Marginals, mean: Array, variance: Array
) -> tuple[Array, Array] | None:
    """Sites near a mode: a few steps as those of :func:`best_sites`, whether they go up or not.

    mean, variance: of the latent values where the climb begins, (n,) each.
    """
    sites = None
    for step in range(CLIMB):
        with np.errstate(all="ignore"):
            _, slope, curvature = _expectations(values, mean, variance, *FEW)
        wanted = np.maximum(curvature, 0.0)
        wanted = np.stack([wanted, wanted * mean - slope])
        trial = wanted if sites is None else 0.5 * (sites + wanted)
        there = marginals(*trial) if np.isfinite(trial).all() else None
        if there is None:
            break
        moved = np.abs(there[0] - mean) / np.sqrt(there[1] + variance)
        sites, (mean, variance) = trial, there[:2]
        if step > 1 and moved.max() < 0.1:
            break
    return None if sites is None else (sites[0], sites[1])


def peaks(loss: Loss, responses: Array) -> tuple[Array, Array]:
    """Where the factors of rows are largest, and their precisions there, (n,) each. 0: no peak.

    A peak is looked for where the loss says that a response is, :meth:`epfast.losses.Loss.typical`.
    """
    n = len(responses)
    typical = [loss.typical(responses[i : i + 1]) for i in range(n)]
    center, unit = np.array(typical, dtype=np.float64).T
    away = unit[:, None] * REACHES
    with np.errstate(all="ignore"):
        places = center[:, None] + np.concatenate([np.zeros((n, 1)), -away, away], axis=1)
        level = loss.values(places, responses)
        rise = np.minimum(*np.split(level[:, 1:], 2, axis=1)) - level[:, :1]
        rise = np.where(np.isfinite(rise), rise, -np.inf)
        half = 0.5 * np.minimum(rise.max(axis=1), 1.0)
        first = away[np.arange(n), (rise >= half[:, None]).argmax(axis=1)]
        precision = np.where(half > 0.0, 2.0 * half / first**2, 0.0)
    return center, np.where(np.isfinite(precision), precision, 0.0)


def _bound(
    precision: Array, shift: Array, moments: tuple[Array, Array, float], value: Array
) -> float:
    mean, variance, log_normaliser = moments
    sites = shift @ mean - 0.5 * precision @ (variance + mean**2)
    return float(log_normaliser - value.sum() - sites)


def _expectations(
    values: Values, mean: Array, variance: Array, nodes: Array = NODES, weights: Array = WEIGHTS
) -> tuple[Array, Array, Array]:
    """E[l], E[l'] and E[l''] for h ~ N(mean, variance), (n,) each."""
    # no narrower than the rounding of the mean
    least = np.finfo(np.float64).eps * np.maximum(1.0, np.abs(mean))
    sd = np.maximum(np.sqrt(np.maximum(variance, 0.0)), least)
    value, slope, curvature = np.empty((3, len(mean)))
    for part in pieces(len(mean), len(nodes)):
        with np.errstate(over="ignore", invalid="ignore"):
            level = values(mean[part, None] + sd[part, None] * nodes, part)
            value[part] = level @ weights
            slope[part] = level @ (weights * nodes) / sd[part]
            curvature[part] = level @ (weights * (nodes**2 - 1.0)) / sd[part] ** 2
    return value, slope, curvature

"""The Gaussian closest to prior times likelihood: what a check draws from where a fit failed.

The maximum of the evidence bound E_q[log p(y, theta) - log q(theta)] over Gaussians (Opper &
Archambeau 2009), by sites: natural gradient steps (Khan & Lin 2017) that only go up. It shares no
code with EP, so that a fit that went wrong does not take its check along.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from epfast._arrays import Array, row_chunks

#: values of w beta l(h; y) for some rows: (latent (k, nodes), slice of the rows) -> (k, nodes)
Values = Callable[[Array, slice], Array]
#: posterior of the prior times exp(shift h - precision h^2 / 2): means and variances of the latent
#: values, log normaliser; None if it is improper
Marginals = Callable[[Array, Array], tuple[Array, Array, float] | None]

STEPS = 60
#: smallest sd of a latent value, in units of its mean or 1, under which expectations are taken
NARROWEST = 1e-3
#: the bound has settled where a step adds less, in nats
SETTLED = 1e-3
#: of curvatures by quadrature, in units of the largest
ROUNDING = 1e-6
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(48)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


class Best(NamedTuple):
    """What :func:`best_sites` found."""

    #: (n,) each, of a site per row
    precision: Array
    shift: Array
    #: whether no curvature was negative: with log-concave factors there is one maximum
    is_unique: bool


def best_sites(values: Values, marginals: Marginals, n: int) -> Best | None:
    """Sites of the best Gaussian, from no sites on; None if nothing is found.

    Takes values of the loss alone: slopes and curvatures under a Gaussian are moments of values.
    Negative curvatures count as 0.
    """
    precision, shift = np.zeros((2, n))
    found = marginals(precision, shift)
    if found is None:
        return None
    bound, value, slope, curvature = -np.inf, *_expectations(values, *found[:2])
    bound = _bound(precision, shift, found, value)
    for _ in range(STEPS):
        wanted = np.maximum(curvature, 0.0)
        move = wanted - precision, wanted * found[0] - slope - shift
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
        (precision, shift), found, (value, slope, curvature) = trial, there, moments
        if gain < SETTLED:
            break
    if not np.isfinite(bound):
        return None
    return Best(precision, shift, bool((curvature > -ROUNDING * np.abs(curvature).max()).all()))


def _bound(
    precision: Array, shift: Array, found: tuple[Array, Array, float], value: Array
) -> float:
    mean, variance, log_normaliser = found
    sites = shift @ mean - 0.5 * precision @ (variance + mean**2)
    return float(log_normaliser - value.sum() - sites)


def _expectations(values: Values, mean: Array, variance: Array) -> tuple[Array, Array, Array]:
    """E[l], E[l'] and E[l''] for h ~ N(mean, variance), (n,) each."""
    # no narrower than what differences of values resolve
    sd = np.maximum(np.sqrt(np.maximum(variance, 0.0)), NARROWEST * np.maximum(1.0, np.abs(mean)))
    value, slope, curvature = np.empty((3, len(mean)))
    for part in row_chunks(mean[:, None], (1 << 20) // len(NODES)):
        with np.errstate(over="ignore", invalid="ignore"):
            at = values(mean[part, None] + sd[part, None] * NODES, part)
            value[part] = at @ WEIGHTS
            slope[part] = at @ (WEIGHTS * NODES) / sd[part]
            curvature[part] = at @ (WEIGHTS * (NODES**2 - 1.0)) / sd[part] ** 2
    return value, slope, curvature

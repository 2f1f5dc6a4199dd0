"""Integrals over h for predictions: by the core, or by panels of Gauss-Legendre quadrature."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from epfast._arrays import Array, pieces

if TYPE_CHECKING:
    from epfast.losses.base import Loss

#: nodes per panel, reach of the panels in standard deviations, and how many there are at least
NODES, REACH, PANELS = 12, 11.0, 16
#: ends of panels about where a function of h turns, in its widths
NEAR = np.array([-30.0, -9.0, -3.0, -1.0, -0.25, 0.0, 0.25, 1.0, 3.0, 9.0, 30.0])


def panels(mean: Array, sd: Array, breaks: Array) -> tuple[Array, Array]:
    """Nodes h and logs of their weights, (n, panels, NODES), of E[f(h)], h ~ N(mean, sd^2).

    breaks: where f changes, (n, b) or (b,), at which panels end.
    """
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    with np.errstate(all="ignore"):
        near = np.nan_to_num((breaks - mean[:, None]) / sd[:, None])
        regular = np.broadcast_to(np.linspace(-REACH, REACH, PANELS + 1), (len(mean), PANELS + 1))
        edges = np.sort(np.concatenate([regular, np.clip(near, -REACH, REACH)], axis=1), axis=1)
        half = 0.5 * np.diff(edges, axis=1)[:, :, None]
        z = 0.5 * (edges[:, 1:] + edges[:, :-1])[:, :, None] + half * nodes
        log_weight = np.log(half * weights) - 0.5 * z * z - 0.5 * np.log(2.0 * np.pi)
        return mean[:, None, None] + sd[:, None, None] * z, log_weight


def log_odds_by_panels(loss: Loss, mean: Array, variance: Array) -> Array:
    """Log of E[t(h)] / E[t(-h)], h ~ N(mean, variance), (n,), some rows at a time.

    For losses whose values are a function of Python: one call of it has all nodes of many rows.
    """
    points = NEAR if loss.beta == 1.0 else np.concatenate([NEAR, NEAR / loss.beta])
    result = np.empty(len(mean))
    for part in pieces(len(mean), NODES * (PANELS + len(points))):
        h, log_weight = panels(mean[part], np.sqrt(variance[part]), points)
        masses = []
        with np.errstate(all="ignore"):
            for x in (h, -h):
                terms = log_weight - loss.beta * loss.evaluate(x, derivatives=False)[0]
                top = terms.max(axis=(1, 2), keepdims=True)
                masses.append(top[:, 0, 0] + np.log(np.exp(terms - top).sum(axis=(1, 2))))
            result[part] = masses[0] - masses[1]
    if np.isnan(result).any():
        raise FloatingPointError("the loss leaves both labels without probability at some row of X")
    return result


def log_integral(loss: Loss, responses: Array, mean: Array, variance: Array) -> Array:
    """log E[t(h)], (n,), by the exact tilted moments; where h is certain, log t(h).

    Raises
    ------
    FloatingPointError
        Where there is none.
    """
    certain = (variance == 0.0) & ("values" in loss.gives)
    variance = np.where(certain, 1.0, variance)
    log_z, *others = np.empty((3, len(mean)))
    lost = loss.tilted().many(responses, mean, variance, np.ones(len(mean)), log_z, *others)
    if certain.any():
        log_z[certain] = -loss.values(mean[certain], responses[certain])
    if lost:
        raise FloatingPointError(
            f"{lost} of {len(mean)} predictive probabilities could not be integrated: the latent "
            "mean or variance there is out of range, or moments of your own are not finite; scale "
            "the columns of X, or narrow the prior"
        )
    return log_z

"""Predictive probabilities of labels, by closed panels of Gauss-Legendre quadrature."""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast._arrays import Array, row_chunks

#: nodes per panel, and reach of the panels in standard deviations
NODES, REACH = 12, 9.0


def label_probability(loss: Any, mean: Array, variance: Array) -> Array:
    """Probability of the label +1 for h ~ N(mean, variance), (n,), some rows at a time."""
    result = np.empty(len(mean))
    points = loss.break_points()
    numbers_per_row = NODES * (NODES + 2 * len(points))
    for part in row_chunks(mean[:, None], max(1, (1 << 21) // numbers_per_row)):
        result[part] = _by_panels(loss, points, mean[part], np.sqrt(variance[part]))
    return finite_probability(result)


def log_label_probability(loss: Any, mean: Array, variance: Array) -> Array:
    """log of the probability of the label +1, (n,), where it may be below the least double."""
    up, down = _panels(loss, loss.break_points(), mean, np.sqrt(variance))
    with np.errstate(all="ignore"):
        tops = up.max(axis=(1, 2)), down.max(axis=(1, 2))
        masses = [
            np.log(np.exp(part - top[:, None, None]).sum(axis=(1, 2))) + top
            for part, top in zip((up, down), tops, strict=True)
        ]
        return finite_probability(-np.logaddexp(0.0, masses[1] - masses[0]))


def _by_panels(loss: Any, points: Array, mean: Array, sd: Array) -> Array:
    """E[t(h)] / (E[t(h)] + E[t(-h)]), h ~ N(mean, sd^2)."""
    up, down = _panels(loss, points, mean, sd)
    with np.errstate(all="ignore"):
        top = np.maximum(up.max(axis=(1, 2)), down.max(axis=(1, 2)))[:, None, None]
        mass_up = np.exp(up - top).sum(axis=(1, 2))
        mass_down = np.exp(down - top).sum(axis=(1, 2))
        return np.asarray(mass_up / (mass_up + mass_down))


def _panels(loss: Any, points: Array, mean: Array, sd: Array) -> tuple[Array, Array]:
    """Terms of log t(h) and of log t(-h) for h ~ N(mean, sd^2). Panels end where the loss bends."""
    nodes, node_weights = np.polynomial.legendre.leggauss(NODES)
    inner = np.concatenate([-points, [0.0], points])
    with np.errstate(all="ignore"):
        breaks = np.nan_to_num((inner[None, :] - mean[:, None]) / sd[:, None])
        regular = np.broadcast_to(np.linspace(-REACH, REACH, 13), (len(mean), 13))
        edges = np.sort(np.concatenate([regular, np.clip(breaks, -REACH, REACH)], 1), 1)
        half = 0.5 * np.diff(edges, axis=1)
        z = (0.5 * (edges[:, 1:] + edges[:, :-1]))[:, :, None] + half[:, :, None] * nodes
        h = mean[:, None, None] + sd[:, None, None] * z
        log_weight = np.log(half[:, :, None] * node_weights) - 0.5 * z * z
        up = log_weight - loss.beta * loss.evaluate(h, derivatives=False)[0]
        down = log_weight - loss.beta * loss.evaluate(-h, derivatives=False)[0]
        return up, down


def finite_probability(p: Array) -> Array:
    """The same probabilities. Raises if one is not finite."""
    if not np.isfinite(p).all():
        raise FloatingPointError("the loss leaves both labels without probability at some row of X")
    return p


def log_integral(loss: Any, responses: Array, mean: Array, variance: Array) -> Array:
    """log E[t(h)], (n,), by the exact tilted moments.

    Raises
    ------
    FloatingPointError
        Where there is none.
    """
    log_z, *others = np.empty((3, len(mean)))
    lost = loss.tilted().many(responses, mean, variance, np.ones(len(mean)), log_z, *others)
    if lost:
        raise FloatingPointError(
            f"{lost} of {len(mean)} predictive probabilities could not be integrated: the latent "
            "mean or variance there is out of range; scale the columns of X, or narrow the prior"
        )
    return log_z

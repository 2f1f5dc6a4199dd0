"""Predictions by panels of Gauss-Legendre quadrature over h, and those of labels."""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast._arrays import Array, row_chunks

#: nodes per panel, reach of the panels in standard deviations, and how many there are at least
NODES, REACH, PANELS = 12, 11.0, 16


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


def label_probability(loss: Any, mean: Array, variance: Array) -> Array:
    """Probability of the label +1 for h ~ N(mean, variance), (n,), some rows at a time."""
    result = np.empty(len(mean))
    points = loss.break_points()
    numbers_per_row = NODES * (PANELS + 2 * len(points))
    for part in row_chunks(mean[:, None], max(1, (1 << 21) // numbers_per_row)):
        result[part] = _by_panels(loss, points, mean[part], np.sqrt(variance[part]))
    return finite_probability(result)


def log_label_probability(loss: Any, mean: Array, variance: Array) -> Array:
    """log of the probability of the label +1, (n,), where it may be below the least double."""
    up, down = _terms(loss, loss.break_points(), mean, np.sqrt(variance))
    with np.errstate(all="ignore"):
        tops = up.max(axis=(1, 2)), down.max(axis=(1, 2))
        masses = [
            np.log(np.exp(part - top[:, None, None]).sum(axis=(1, 2))) + top
            for part, top in zip((up, down), tops, strict=True)
        ]
        return finite_probability(-np.logaddexp(0.0, masses[1] - masses[0]))


def _by_panels(loss: Any, points: Array, mean: Array, sd: Array) -> Array:
    """E[t(h)] / (E[t(h)] + E[t(-h)]), h ~ N(mean, sd^2)."""
    up, down = _terms(loss, points, mean, sd)
    with np.errstate(all="ignore"):
        top = np.maximum(up.max(axis=(1, 2)), down.max(axis=(1, 2)))[:, None, None]
        mass_up = np.exp(up - top).sum(axis=(1, 2))
        mass_down = np.exp(down - top).sum(axis=(1, 2))
        return np.asarray(mass_up / (mass_up + mass_down))


def _terms(loss: Any, points: Array, mean: Array, sd: Array) -> tuple[Array, Array]:
    """Terms of log t(h) and of log t(-h) for h ~ N(mean, sd^2). Panels end where the loss bends."""
    h, log_weight = panels(mean, sd, np.concatenate([-points, [0.0], points]))
    with np.errstate(all="ignore"):
        up, down = (
            log_weight - loss.beta * loss.evaluate(x, derivatives=False)[0] for x in (h, -h)
        )
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

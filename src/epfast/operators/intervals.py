"""Adaptive integrals of many densities of one variable at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast._arrays import Array

#: nodes of Gauss and Kronrod's rule of 15 points on (-1, 1), their weights, and those of Gauss's 7
_HALF = np.array(
    [
        0.991455371120812639206854697526329,
        0.949107912342758524526189684047851,
        0.864864423359769072789712788640926,
        0.741531185599394439863864773280788,
        0.586087235467691130294144691693013,
        0.405845151377397166906606412076961,
        0.207784955007898467600689403773245,
        0.0,
    ]
)
_KRONROD = np.array(
    [
        0.022935322010529224963732008058970,
        0.063092092629978553290700663189204,
        0.104790010322250183839876322541518,
        0.140653259715525918745189590510238,
        0.169004726639267902826583426598550,
        0.190350578064785409913256402421014,
        0.204432940075298892414161999234649,
        0.209482141084727828012999174891714,
    ]
)
_GAUSS = np.zeros(8)
_GAUSS[1::2] = (
    0.129484966168869693270611432679082,
    0.279705391489276667901467771423780,
    0.381830050505118944950369775488975,
    0.417959183673469387755102040816327,
)
_INNER = np.concatenate([-_HALF, _HALF[-2::-1]])
#: the nodes and, without a weight, the ends of a cell: a jump between an end and a node shows
#: as a value that is not the one extrapolated
NODES = np.concatenate([[-1.0], _INNER, [1.0]])
KRONROD = np.concatenate([[0.0], _KRONROD, _KRONROD[-2::-1], [0.0]])
GAUSS = np.concatenate([[0.0], _GAUSS, _GAUSS[-2::-1], [0.0]])
#: (2, 17), value at an end less the one extrapolated from the nodes, times the length between them
SLIP = np.zeros((2, 17))
SLIP[:, 1:-1] = -np.linalg.solve(
    np.polynomial.legendre.legvander(_INNER, 14).T,
    np.polynomial.legendre.legvander([-1.0, 1.0], 14).T,
).T
SLIP[[0, 1], [0, -1]] = 1.0
SLIP *= 1.0 - _HALF[0]

#: widths of the density about its mode that a first interval has on each side. Cells grow
REACH, GROWTH = 9.0, 2.0
#: logs below the mode at which a density is nothing
NOTHING = 40.0
#: longest first cells, one after the other, on each side of the mode. Then they grow
CAVITY = 20.0
#: doublings of an interval at whose ends the density is not yet nothing
MOST_GROWTHS = 60
#: rounds of halving cells
MOST_ROUNDS = 40
#: part of an integral that may be in doubt. Above it a fit has failed
DOUBTFUL = 1e-6


class Range(NamedTuple):
    """Where densities are integrated: centre + width w, w within low and high. (m,) each."""

    centre: Array
    width: Array
    low: Array
    high: Array
    #: longest first cell, in widths
    most: Array
    #: log density that counts as 1. NaN where none is seen
    top: Array

    def taken(self, which: Any) -> Range:
        return Range(*(value[which] for value in self))


class Sums(NamedTuple):
    """Integrals of densities and of their products with two functions for each variable."""

    #: (m,). Of those that failed for want of evaluations what they came to
    log_z: Array
    #: (m, 2) for each variable
    means: tuple[Array, ...]
    #: (m,), 0: fine. See QuadratureMessages.reasons
    reason: NDArray[np.intp]


#: log densities and functions at points (c, p) of rows (c,)
Columns = Callable[[Array, Any], tuple[Array, list[Array]]]


def seen(value: Array) -> tuple[Array, NDArray[np.intp], Array]:
    """Log densities of a scan (m, p), -inf for what is none. The best of each, NaN if none is."""
    value = np.where(np.isfinite(value), value, -np.inf)
    best = value.argmax(axis=1)
    top = value.max(axis=1)
    return value, best, np.where(np.isfinite(top), top, np.nan)


def around(
    points: Array, value: Array, spread: Array, middle: Array, width: Array, top: Array, step: float
) -> Range:
    """An interval about what a scan sees. Without a width at the mode, that of what it sees."""
    nothing = np.isnan(top)
    weights = np.exp(value - np.where(nothing, 0.0, top)[:, None])
    weights /= np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)
    mean = (weights * points).sum(axis=1)
    sd = np.sqrt((weights * (points - mean[:, None]) ** 2).sum(axis=1))
    usual = np.maximum(sd, step * spread)
    width = np.where(np.isfinite(width) & (width > 0.0), width, usual)
    counts = value > np.where(nothing, np.inf, top)[:, None] - NOTHING
    places = (points - middle[:, None]) / width[:, None]
    beyond = np.where(counts.any(axis=1), step * spread / width, 0.0)
    low = np.minimum(np.where(counts, places, 0.0).min(axis=1) - beyond, -REACH)
    high = np.maximum(np.where(counts, places, 0.0).max(axis=1) + beyond, REACH)
    return Range(middle, width, low, high, np.maximum(spread / width, REACH), top)


def enclosed(columns: Columns, where: Range) -> tuple[Range, NDArray[np.bool_]]:
    """Intervals grown until the density is nothing at both ends. Where that came to an end."""
    ends = np.stack([where.low, where.high], axis=1)
    growing = np.ones(ends.shape, dtype=bool)
    for _ in range(MOST_GROWTHS):
        rows, side = np.nonzero(growing)
        if not len(rows):
            break
        u = where.centre[rows] + where.width[rows] * ends[rows, side]
        value = columns(u[:, None], rows)[0][:, 0] - where.top[rows]
        still = value > -NOTHING
        growing[rows, side] = still
        ends[rows[still], side[still]] *= 2.0
    return where._replace(low=ends[:, 0], high=ends[:, 1]), np.asarray(~growing.any(axis=1))


def integrals(columns: Columns, where: Range, functions: int, tol: float, evaluations: int) -> Sums:
    """Integrals over intervals, and means of so many functions."""
    m = len(where.centre)
    reason = np.where(np.isnan(where.top), 1, 0)
    good = np.flatnonzero(reason == 0)

    def of(index: NDArray[np.intp]) -> Columns:
        return lambda u, rows: columns(u, index[rows])

    part, ended = enclosed(of(good), where.taken(good))
    reason[good[~ended]] = 2
    good, part = good[ended], part.taken(ended)
    total, top, doubt = np.zeros((0, 1 + functions)), np.zeros(0), np.zeros(0)
    if len(good):
        total, top, doubt = adaptive(of(good), part, functions, tol, evaluations)
    log_z, means = np.full(m, np.nan), np.full((m, functions), np.nan)
    with np.errstate(all="ignore"):
        log_z[good] = np.log(total[:, 0]) + top + np.log(part.width)
        means[good] = total[:, 1:] / total[:, :1]
    failed = good[~(doubt < DOUBTFUL)]
    reason[failed] = 3
    pairs = tuple(means[:, j : j + 2] for j in range(0, functions, 2))
    return Sums(log_z, pairs, reason)


def adaptive(
    columns: Columns, where: Range, functions: int, tol: float, evaluations: int
) -> tuple[Array, Array, Array]:
    """Integrals over w of the density over exp(top) and of its products. Top. What is in doubt."""
    m = len(where.centre)
    top = where.top.copy()
    rows, middle, half = cells(where)
    used, doubt = np.zeros(m, dtype=np.intp), np.zeros(m)
    done = np.zeros((m, 1 + functions))
    for step in range(MOST_ROUNDS):
        u = where.centre[rows][:, None] + where.width[rows][:, None] * (
            middle[:, None] + half[:, None] * NODES
        )
        value, products = columns(u, rows)
        if step == 0:  # now more is seen than before
            np.maximum.at(top, rows, np.where(value < np.inf, value, -np.inf).max(axis=1))
        value = value - top[rows][:, None]
        with np.errstate(all="ignore"):
            p = np.where(value > -745.0, np.exp(value), np.where(np.isnan(value), np.nan, 0.0))
            p *= half[:, None]
            # where the density is 0, products with infinite functions are 0, too
            values = np.stack([p, *(np.where(p > 0.0, p * f, p) for f in products)], axis=-1)
        found = np.einsum("cix,i->cx", values, KRONROD)
        error = np.abs(found - np.einsum("cix,i->cx", values, GAUSS)).max(axis=1)
        used += np.bincount(rows, minlength=m) * len(NODES)
        with np.errstate(all="ignore"):
            whole = (done[:, 0] + np.bincount(rows, found[:, 0], m))[rows]
            size = error / whole
            # what is in doubt is far below the difference of two rules, once that is small
            slip = np.abs(values[..., 0] @ SLIP.T).max(axis=1)
            wrong = np.minimum(size, (200.0 * size) ** 1.5) + slip / whole
        # where the density is no number somewhere, smaller cells do not help
        used[np.bincount(rows, ~np.isfinite(found).all(axis=1), m) > 0] = evaluations
        split = ~(wrong <= tol) & (used[rows] < evaluations)
        kept = ~split
        done += np.stack([np.bincount(rows[kept], c, m) for c in found[kept].T], axis=1)
        doubt += np.bincount(rows[kept], wrong[kept], m)
        if not split.any():
            return done, top, doubt
        half = 0.5 * np.concatenate([half[split], half[split]])
        rows = np.concatenate([rows[split], rows[split]])
        middle = np.concatenate([middle[split], middle[split]])
        middle += half * np.repeat([-1.0, 1.0], len(half) // 2)
    return done, top, np.where(np.bincount(rows, minlength=m) > 0, np.inf, doubt)


def cells(where: Range) -> tuple[NDArray[np.intp], Array, Array]:
    """First cells: rows (c,), middles and half lengths (c,). Short ones about the mode."""
    m = len(where.centre)
    found = []
    for sign, end in ((-1.0, -where.low), (1.0, where.high)):
        edge, length = np.zeros(m), np.full(m, REACH / GROWTH / GROWTH)
        going = np.arange(m)
        while len(going):
            stop = np.minimum(edge[going] + length[going], end[going])
            found.append((going, sign * 0.5 * (edge[going] + stop), 0.5 * (stop - edge[going])))
            edge[going] = stop
            # about the cavity short enough to see what is narrow there
            near = stop < CAVITY * where.most[going]
            length[going] = np.where(near, np.minimum(stop, where.most[going]), stop)
            going = going[stop < end[going]]
    rows, middle, half = (np.concatenate(column) for column in zip(*found, strict=True))
    return rows, middle, half

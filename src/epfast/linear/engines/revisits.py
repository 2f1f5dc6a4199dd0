"""Rows that still move, visited again before the next sweep.

In the tail of a fit few rows move, those of rare columns, and all others wait for them: 100 of
32,561 on LIBSVM's a9a. A sweep contracts by a factor of two there, and so does a visit to these
rows alone, for a small part of the cost. Their sites are fitted as in any chunk.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import families
from epfast._arrays import Array
from epfast.inference import Sites
from epfast.linear.engines.base import contraction

Numbers = NDArray[np.intp]
#: visits these rows, numbered in the order of the visits, in chunks of so many
Visit = Callable[[Numbers, int], None]

#: rows count that move by more than this share of the largest move, or of the tolerance
OF_MOST, OF_TOL = 1e-3, 1e-2
#: and they are one in so many at most
OF_ROWS = 4
#: the others must move by less than this share of what the next sweep would leave of the largest
WORTH = 0.3
#: sweeps that leave less of the largest move are not to be helped
FAST = 0.03
#: chunks of a round: rows of the same column must not all be fitted from one posterior
PIECES = 4
#: of a site's precision, relative to the largest
ROUNDING = 1e-9
#: rounds at most, and those without a new least move
ROUNDS, STALLED = 4, 2


class Seen(NamedTuple):
    """What a sweep over all rows tells."""

    #: largest move of a row; inf before the first sweep
    largest: float = math.inf
    #: what a sweep leaves of the largest move by itself, if known
    rate: float = 0.0
    #: whether rows were visited again after it
    more: bool = False
    #: whether rounds have always ended with rows at rest, or nearer to it
    useful: bool = True


def row_moves(old: Sites, new: Sites, spread: Array) -> Array:
    """(n,), the larger of the moves of precision and shift in units of rows of these variances."""
    with np.errstate(all="ignore"):  # of a run that diverges
        precision = np.abs(new.precision - old.precision) * spread
        shift = np.abs(new.shift - old.shift) * np.sqrt(spread)
        return np.asarray(np.maximum(precision, shift))


def threshold(moves: Array, rate: float, tol: float) -> float:
    """The move above which rows are visited again; inf: too many are, or it is not worth it.

    O(n). rate: what a sweep leaves of the largest move.
    """
    largest = float(moves.max())
    most = WORTH * rate * largest
    least = max(OF_MOST * largest, OF_TOL * tol)
    count = len(moves) // OF_ROWS
    if not (FAST <= rate < 1.0 and least <= most) or np.count_nonzero(moves > most) > count:
        return math.inf
    if np.count_nonzero(moves > least) <= count:
        return least
    return float(np.partition(moves, len(moves) - count - 1)[len(moves) - count - 1])


def revisit(
    visit: Visit, visits: Numbers, old: Sites, sites: Sites, spread: Array, seen: Seen, tol: float
) -> Seen:
    """Visit the rows again that moved in a sweep, until they have settled beside the others.

    old: the sites before the sweep. sites and spread, (n,), are changed by ``visit``. Where a site
    takes precision away, rows may come to rest elsewhere, or not at all: none is visited.
    """
    moves = row_moves(old, sites, spread)
    largest = float(moves.max())
    rate = largest / seen.largest if seen.largest > 0.0 else 1.0
    if seen.more and rate < 1.0:
        rate = seen.rate
    now = seen._replace(largest=largest, rate=rate, more=False)
    least = threshold(moves, rate, tol) if seen.useful else math.inf
    if sites.precision.min() < -ROUNDING * sites.precision.max():
        return now
    which = np.flatnonzero(moves[visits] > least)
    now = now._replace(more=len(which) > 0)
    best, stalled = now.largest, 0
    for _ in range(ROUNDS):
        if len(which) == 0:
            return now
        rows = visits[which]
        before = Sites(*map(np.array, families.taken(sites, rows)))
        visit(which, max(1, -(-len(which) // PIECES)))
        moves = row_moves(before, families.taken(sites, rows), spread[rows])
        which = which[moves > least]
        best, stalled = contraction(float(moves.max()), best, stalled)
        if stalled > STALLED:
            return now._replace(useful=False)
    return now

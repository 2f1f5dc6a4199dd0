"""Reduced rank extrapolation of the states of slow sweeps."""

from __future__ import annotations

import numpy as np

from epfast._arrays import Array

#: sweeps between two states: one forward and one backward
PERIOD = 2
#: differences of states that are combined
RANK = 5
#: sweep of the first state. Earlier sweeps are not dominated by the slow modes
FIRST = 8
#: the same without watched forms, since most fits have converged by then
SLOW = 24
#: cycles without contraction, beside forms over sparse blocks, which are updated together: of 64
#: graphs of scalars beside a chain of 300 states 6 do not converge with 1, and all with 5
TRIES = 5
#: steps, in standard deviations, that are rounding errors
STILL = 1e-13


class Limit:
    """States of some sweeps, and the point to which they converge.

    Near a fixed point sweeps are linear, and often few modes are slow, such as the level of a group
    of variables with a weak link to the others. The combination of states whose differences cancel
    best is the fixed point, up to modes beyond the rank (Eddy 1979, Mesina 1977).

    Parameters
    ----------
    n : int
        Number of scalar Gaussians. Their shifts are compared, in units of standard deviations.
    first : int
        Sweeps before the first state.
    tries : int
        Cycles without contraction after which no more states are stored.
    """

    def __init__(self, n: int, first: int = FIRST, tries: int = 1) -> None:
        self.n, self.first, self.tries = n, first, tries
        #: number of states in this cycle, and their beliefs, sites and scales, a row each
        self.count = 0
        self.beliefs = self.sites = self.scales = np.empty((0, 0))
        #: length of the last difference at the end of the previous cycle
        self.length = np.inf
        self.helps = True

    def visit(
        self, sweeps: int, beliefs: Array, sites: Array, scales: Array
    ) -> tuple[Array, Array, Array] | None:
        """Store a state after so many sweeps. At the end of a cycle return the limit, a state."""
        if sweeps < self.first or sweeps % PERIOD:
            return None
        if not len(self.beliefs):
            self.beliefs = np.empty((RANK + 1, len(beliefs)))
            self.sites, self.scales = np.empty((RANK, len(sites))), np.empty((RANK, len(scales)))
        self.beliefs[self.count] = beliefs
        if self.count:
            self.sites[self.count - 1] = sites
            self.scales[self.count - 1] = scales
        self.count += 1
        if self.count <= RANK:
            return None
        self.count = 0
        precision = beliefs[: 2 * self.n : 2]
        with np.errstate(all="ignore"):
            weights = np.where(precision > 0.0, 1.0 / np.sqrt(precision), 0.0)
        steps = np.diff(self.beliefs[:, 1 : 2 * self.n : 2], axis=0) * weights
        products = steps @ steps.T
        length, self.length = self.length, float(np.sqrt(products[-1, -1]))
        size = float(np.trace(products))
        if size <= self.n * STILL**2:
            return beliefs, sites, scales
        if not products[-1, -1] < products[0, 0]:
            return None  # not near a fixed point yet
        if not (self.length < length and size < np.inf):
            # no contraction, and therefore no limit
            self.tries -= 1
            self.helps = self.tries > 0
            return None
        shares = np.linalg.solve(products + 1e-14 * size * np.eye(RANK), np.ones(RANK))
        shares /= shares.sum()
        return shares @ self.beliefs[1:], shares @ self.sites, shares @ self.scales

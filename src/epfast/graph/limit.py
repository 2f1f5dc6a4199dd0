"""Where sweeps that change slowly go: reduced rank extrapolation of their states."""

from __future__ import annotations

import numpy as np

from epfast._arrays import Array

#: sweeps between two states: one forward and one backward
PERIOD = 2
#: differences of states that are combined
RANK = 5
#: first state: before it sweeps change much more than what moves slowly
FIRST = 8
#: first state where nobody watches forms: most fits are done by then
SLOW = 24
#: steps, in standard deviations, that are rounding
STILL = 1e-13


class Limit:
    """States of some sweeps, and the point to which they converge.

    Near a fixed point sweeps are linear, and slow where few modes are: a group of variables that
    little ties to the others. The combination of states whose differences cancel best is that
    fixed point, but for the modes beyond the rank (Eddy 1979; Mesina 1977).

    n : int
        Scalar Gaussians, whose shifts in units of their standard deviations are compared.
    first : int
        Sweeps before the first state.
    """

    def __init__(self, n: int, first: int = FIRST) -> None:
        self.n, self.first = n, first
        #: states of this cycle so far, and their beliefs, sites and scales: rows, allocated once
        self.count = 0
        self.beliefs = self.sites = self.scales = np.empty((0, 0))
        #: length of the last difference, at the end of each cycle
        self.length = np.inf
        self.helps = True

    def visit(
        self, sweeps: int, beliefs: Array, sites: Array, scales: Array
    ) -> tuple[Array, Array, Array] | None:
        """Keep a state after so many sweeps; the limit, as a state, when it is due."""
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
            # no contraction: what is a limit then?
            self.helps = False
            return None
        shares = np.linalg.solve(products + 1e-14 * size * np.eye(RANK), np.ones(RANK))
        shares /= shares.sum()
        return shares @ self.beliefs[1:], shares @ self.sites, shares @ self.scales

"""Reduced rank extrapolation of the states of slow sweeps."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from epfast._arrays import Array
from epfast.inference.mixing import shares_of

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
#: the largest coefficient of a state: a mode may shrink by 1e-4 a sweep
LARGEST = 1e4
#: steps, in standard deviations, that are rounding errors
STILL = 1e-13


class Limit(NamedTuple):
    """States of some sweeps, from which the point to which they converge is found.

    Near a fixed point sweeps are linear, and often few modes are slow, such as the level of a group
    of variables with a weak link to the others. The combination of states whose differences cancel
    best is the fixed point, up to modes beyond the rank (Eddy 1979, Mesina 1977).
    """

    #: number of scalar Gaussians. Their shifts are compared, in units of standard deviations
    n: int
    #: sweeps before the first state
    first: int = FIRST
    #: cycles without contraction after which no more states are stored
    tries: int = 1
    #: beliefs, sites and scales of this cycle
    states: tuple[tuple[Array, Array, Array], ...] = ()
    #: length of the last difference at the end of the previous cycle
    length: float = np.inf

    def push(self, sweeps: int, *state: Array) -> tuple[Limit, tuple[Array, ...] | None]:
        """Store beliefs, sites and scales of a sweep. At the end of a cycle return their limit."""
        if sweeps < self.first or sweeps % PERIOD:
            return self, None
        beliefs, sites, scales = state
        states = (*self.states, (beliefs.copy(), sites.copy(), scales.copy()))
        if len(states) <= RANK:
            return self._replace(states=states), None
        precision = beliefs[: 2 * self.n : 2]
        with np.errstate(all="ignore"):
            weights = np.where(precision > 0.0, 1.0 / np.sqrt(precision), 0.0)
        shifts = np.array([each[0][1 : 2 * self.n : 2] for each in states])
        steps = np.diff(shifts, axis=0) * weights
        squares = (steps * steps).sum(axis=1)
        size, length = float(squares.sum()), float(np.sqrt(squares[-1]))
        limit = self._replace(states=(), length=length)
        if size <= self.n * STILL**2:
            return limit, state
        if not squares[-1] < squares[0]:
            return limit, None  # not near a fixed point yet
        if not (length < self.length and size < np.inf):
            # no contraction, and therefore no limit
            return limit._replace(tries=self.tries - 1), None
        shares = shares_of(list(steps), LARGEST)
        if shares is None:
            return limit, None
        return limit, tuple(shares @ np.array(each) for each in zip(*states[1:], strict=True))

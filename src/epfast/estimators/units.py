"""The units of columns: moments that merge, and the scales that standardised weights have."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from epfast._arrays import Array, Indices, row_chunks
from epfast.estimators.base import Rows
from epfast.gaussian.rows import NO_SPREAD, ends_of, mean_of_rows

#: units from 0 from where rows are taken less an origin: k units cost 2 log10(k) of 16 digits
FAR = 100.0


class ColumnMoments(NamedTuple):
    """Moments of the columns of rows, and their ends. Parts of the rows merge to the whole.

    Rows of weight 0 are absent.
    """

    #: sum of the weights
    mass: float
    #: weighted means, (d,)
    mean: Array
    #: weighted root mean squares about the means, (d,): their squares would overflow at 1e200
    spread: Array
    #: least and largest entries, (d,). Infinite without rows
    low: Array
    high: Array
    #: whether no entry lies between the ends, (d,)
    two_valued: NDArray[np.bool_]

    @classmethod
    def of(cls, rows: Rows, weights: Array | None = None) -> ColumnMoments:
        """Those of rows, dense or CSR, in passes for the ends, the means, and the squares."""
        shares = np.ones(rows.shape[0]) if weights is None else weights
        if not shares.all():
            rows, shares = rows[shares > 0.0], shares[shares > 0.0]
        n, d = rows.shape
        if n == 0:
            none, end = np.zeros(d), np.full(d, np.inf)
            return cls(0.0, none, none, end, -end, np.ones(d, dtype=np.bool_))
        if sparse.issparse(rows):
            stored: sparse.csr_array = rows
            if not stored.has_canonical_format:
                stored = stored.copy()
                stored.sum_duplicates()
            rows = stored
        mass = float(shares.sum())
        ends = low, high = [np.asarray(end, dtype=np.float64) for end in ends_of(rows)]
        if sparse.issparse(rows):
            middle, about = mean_of_rows(rows, shares), _about_stored
        else:
            middle, about = _mean_of_dense(rows, shares / mass), _about_dense
        with np.errstate(all="ignore"):
            # a power of two, so that division is exact
            reach = np.frexp(np.maximum(high - middle, middle - low))[1]
            unit = np.ldexp(1.0, np.clip(reach, -1000, 1000))
            first, second, between = about(rows, shares / mass, middle, unit, ends)
            # the rounding of the mean leaves both
            mean = np.clip(middle + unit * first, low, high)
            spread = unit * np.sqrt(np.maximum(second - first**2, 0.0))
            spread[low == high] = 0.0
        return cls(mass, mean, spread, low, high, ~between)

    def merged(self, other: ColumnMoments) -> ColumnMoments:
        """Those of the rows of both (Chan, Golub & LeVeque 1983)."""
        mass = self.mass + other.mass
        if mass == 0.0:
            return self
        ours, share = self.mass / mass, other.mass / mass
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        two_valued = self.two_valued & other.two_valued
        for part in (self, other):
            if part.mass > 0.0:
                for end in (part.low, part.high):
                    two_valued = two_valued & ((end == low) | (end == high))
        away = other.mean - self.mean
        within = np.hypot(np.sqrt(ours) * self.spread, np.sqrt(share) * other.spread)
        spread = np.hypot(within, np.sqrt(ours * share) * away)
        return ColumnMoments(mass, self.mean + share * away, spread, low, high, two_valued)

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Whether a column is one number, to rounding, (d,)."""
        largest = np.maximum(np.abs(self.low), np.abs(self.high))
        with np.errstate(over="ignore"):
            return np.asarray(self.high - self.low <= NO_SPREAD * largest)

    def scales(self, centred: bool) -> Array:
        """The unit of each column, (d,): weights times these have one prior variance.

        The standard deviation, or, not centred, the root mean square. Of a column with two values
        what it would be if both were as frequent (Gelman 2008): a rare level of a one-hot table
        is then not shrunk less than a frequent one. 1 of a constant column, or, not centred, of
        one of zeros.
        """
        with np.errstate(all="ignore"):
            if centred:
                scales = np.where(self.two_valued, 0.5 * self.high - 0.5 * self.low, self.spread)
                none = self.constant
            else:
                equal = np.hypot(self.low, self.high) * np.sqrt(0.5)
                two = self.two_valued & (self.high > self.low)
                scales = np.where(two, equal, np.hypot(self.mean, self.spread))
                none = scales == 0.0
        return np.where(none, 1.0, scales)

    def origin(self, scales: Array) -> Array | None:
        """The means, where a column lies so far from 0 that digits are lost there. Else None."""
        with np.errstate(over="ignore"):
            far = (np.abs(self.mean) > FAR * scales).any()
        return self.mean if far else None

    def variances(self, centred: bool) -> Array:
        """Weighted variances, or, not centred, mean squares, (d,). 0 of a constant column."""
        with np.errstate(over="ignore"):
            if centred:
                return np.where(self.constant, 0.0, self.spread**2)
            return np.asarray(self.mean**2 + self.spread**2)


class Units(NamedTuple):
    """What columns are measured in, and from where."""

    #: (d,): coefficients times these have the common prior variance, or that of their group
    scale: Array
    #: (d,), what is taken from dense rows far from 0. None: nothing
    origin: Array | None = None

    @property
    def variances(self) -> Array:
        """Prior variances of the coefficients over the common one, (d,)."""
        return self.scale**-2


def total_of(
    moments: ColumnMoments, scale: Array, centred: bool, groups: Indices | None = None
) -> Array:
    """The total variance of the columns of each group, in these units, (k,); 1 where it is none.

    Without groups that of all columns. Constant ones do not count.
    """
    which = np.zeros(len(scale), dtype=np.intp) if groups is None else groups
    with np.errstate(all="ignore"):
        size = moments.spread if centred else np.hypot(moments.mean, moments.spread)
        shares = np.where(moments.constant, 0.0, (size / scale) ** 2)
        totals = np.bincount(which, shares)
    return np.where((totals > 1e-200) & (totals < 1e200), totals, 1.0)


#: sums of shares times differences from a middle, over a unit, and of shares times their squares,
#: and whether there is an entry between the ends, (d,) each
Sums = tuple[Array, Array, NDArray[np.bool_]]


def _mean_of_dense(rows: Rows, shares: Array) -> Array:
    # in one order, so that frames and arrays have the same sums
    with np.errstate(all="ignore"):
        parts = [shares[part] @ np.ascontiguousarray(rows[part]) for part in row_chunks(rows)]
        return np.asarray(sum(parts), dtype=np.float64)


def _about_dense(rows: Rows, shares: Array, middle: Array, unit: Array, ends: list[Array]) -> Sums:
    first, second = np.zeros((2, len(unit)))
    between = np.zeros(len(unit), dtype=np.bool_)
    for part in row_chunks(rows):
        some, share = np.ascontiguousarray(rows[part], dtype=np.float64), shares[part]
        away = (some - middle) / unit
        first += share @ away
        second += share @ away**2
        between |= ((some > ends[0]) & (some < ends[1])).any(axis=0)
    return first, second, between


def _about_stored(
    rows: sparse.csr_array, shares: Array, middle: Array, unit: Array, ends: list[Array]
) -> Sums:
    n, d = rows.shape
    first, second, stored, inside = np.zeros((4, d))
    counts = np.zeros(d, dtype=np.intp)
    for part in row_chunks(rows):
        some = rows[part]
        j, x = some.indices, some.data
        share = np.repeat(shares[part], np.diff(some.indptr))
        away = (x - middle[j]) / unit[j]
        sums = share, share * away, share * away**2, (x > ends[0][j]) & (x < ends[1][j])
        for total, one in zip((stored, first, second, inside), sums, strict=True):
            total += np.bincount(j, one, d)
        counts += np.bincount(j, minlength=d)
    # entries that are not stored are zeros
    absent = np.where(counts == n, 0.0, 1.0 - stored)
    away = -middle / unit
    first, second = first + absent * away, second + absent * away**2
    zero_inside = (counts < n) & (ends[0] < 0.0) & (ends[1] > 0.0)
    return first, second, (inside > 0.0) | zero_inside

"""Notes on data that a fit takes, and that are hardly what the user means."""

from __future__ import annotations

import numpy as np
from scipy import linalg
from scipy.sparse.linalg import lsmr

from epfast import _checks
from epfast._arrays import Array, Matrix, is_sparse
from epfast._core.vector import column_sizes as _core_sizes
from epfast.gaussian.problem import Problem
from epfast.gaussian.rows import (
    FAR_CONSTANT,
    Data,
    is_mapped,
    mean_of_rows,
    rounding_of_mean,
)
from epfast.inference.records import DataWarning, warn_user

#: rows that are looked at, evenly spaced
LOOKED_AT = 4_000
#: ratio of the scales of two columns that is worth a note: one prior variance leaves nothing of the
#: effect of a column that is so small
SCALES = 1e3
#: standard deviations from 0 of a column that are worth a note: beside an intercept with its prior
#: at the means of the columns, where rounding tells, and beside one with its prior at 0, which
#: holds slopes down
FAR, FAR_AT_0 = 1e5, 10.0
#: share of the rarer label, and number of rows, where a missing intercept is worth a note
BALANCED, ENOUGH_ROWS = 0.4, 20
#: rows, and columns in which all combinations are sought that are constant. Steps in which they are
#: sought among more columns
SPAN_ROWS, SPAN_COLUMNS, STEPS = 500, 200, 300
#: rows are sorted if responses change sides in this share of the times that a random order gives,
#: and that is often enough to be sure
SELDOM, ENOUGH_CHANGES = 0.2, 8.0
#: prior standard deviation of x.theta from which a prior is flat: it calls all labels certain
FLAT = 100.0


def _note(text: str) -> None:
    warn_user(text, DataWarning)


def some_rows(X: Matrix, count: int = LOOKED_AT) -> Matrix:
    """Evenly spaced rows, dense or sparse."""
    step = X.shape[0] // count
    return X if step < 2 else X[::step]  # a slice of sparse rows is a copy


def note_factorized(shape: tuple[int, ...]) -> None:
    """Note that the default is a diagonal covariance, for rows of this shape."""
    _note(
        f"X has shape {shape}: the posterior is factorised, a diagonal covariance, which "
        "understates the uncertainty of correlated columns; posterior='full' takes O(d^2) memory, "
        "posterior='factorized' says that this is meant",
    )


def column_sizes(X: Matrix, center: Array | None = None) -> tuple[Array, Array]:
    """Largest entry, in size, and mean square of each column, (d,), over some rows.

    center: of dense rows the sizes of so many columns are meant about their means.
    """
    rows = some_rows(X)
    n, d = rows.shape
    largest = np.zeros(d)
    if is_sparse(rows):
        with np.errstate(over="ignore", invalid="ignore"):
            np.maximum.at(largest, rows.indices, np.abs(rows.data))
            squared = np.bincount(rows.indices, np.square(rows.data, dtype=np.float64), d)
            return largest, squared / n
    if center is not None:
        rows = np.array(rows, dtype=np.float64)
        away = rows[:, : len(center)]
        mean = mean_of_rows(away)
        away -= mean
        away[np.abs(away) <= rounding_of_mean(n) * np.abs(mean)] = 0.0
    squares = np.empty(d)
    if not _core_sizes(rows, largest, squares):
        _core_sizes(np.ascontiguousarray(rows, dtype=np.float64), largest, squares)
    return largest, squares / n


def note_scales(size: Array) -> None:
    """Note that columns, of these largest entries, differ by SCALES under one prior variance."""
    size = size[(size > 0.0) & np.isfinite(size)]  # the core refuses what is not finite
    if size.size and size.max() / SCALES > size.min():
        _note(
            f"the columns of X differ in scale (largest entries from {size.min():.2g} to "
            f"{size.max():.2g}), and one prior variance for all holds the small ones down: "
            "standardise them (StandardScaler), or give a prior_variance per column",
        )


def places(X: Matrix) -> tuple[Array, Array]:
    """Means and variances of the columns, over some rows. A constant column has variance 0."""
    rows = some_rows(X)
    mean, rounding = mean_of_rows(rows), rounding_of_mean(rows.shape[0])
    with np.errstate(over="ignore", invalid="ignore"):
        if is_sparse(rows):
            spread = mean_of_rows(rows.power(2, float)) - mean**2
            lost = 2.0 * rounding * mean**2
        else:
            spread, lost = np.square(rows - mean).mean(axis=0), (rounding * mean) ** 2
        return mean, np.where(spread > lost, spread, 0.0)


def note_far(mean: Array, variance: Array, centered: bool) -> None:
    """Note that a column lies far from 0, for its spread, beside an intercept.

    centered: whether the intercept has its prior at the means of the columns.
    """
    constant = np.flatnonzero((variance == 0.0) & (np.abs(mean) > FAR_CONSTANT))
    if len(constant):
        j = int(constant[0])
        _note(f"column {j} of X is {mean[j]:.6g} in all rows, beside an intercept: leave it out")
    with np.errstate(over="ignore", invalid="ignore"):
        far = np.where(variance > 0.0, np.abs(mean) / np.sqrt(np.maximum(variance, 1e-300)), 0.0)
    j = int(np.argmax(far))
    if not far[j] > (FAR if centered else FAR_AT_0):
        return
    why = "where rounding tells in slopes and evidence"
    if not centered:
        why = (
            "and the prior of the intercept at 0 holds its slope down (with posterior='factorized' "
            "or a prior=; else it is at the means of the columns)"
        )
    _note(
        f"column {j} of X lies {far[j]:.2g} standard deviations from 0, {why}: subtract a number "
        f"such as {mean[j]:.6g} from it",
    )


def note_intercept(X: Matrix, y: Array) -> None:
    """Note that the labels are unbalanced, and that no combination of columns is constant."""
    if len(y) < ENOUGH_ROWS:
        return
    positive = float((y > 0.0).mean())
    if min(positive, 1.0 - positive) >= BALANCED or _has_constant(some_rows(X, SPAN_ROWS)):
        return
    _note(
        f"{100 * positive:.0f} % of the labels are +1, and X has no constant column, so that a row "
        "of zeros has probability 1/2: write intercept=True",
    )


def _has_constant(rows: Matrix) -> bool:
    """Whether some combination of the columns is 1 in all rows."""
    n, d = rows.shape
    if d >= n:
        return True  # then some combination is
    dense = np.asarray(rows.toarray() if is_sparse(rows) else rows, dtype=np.float64)
    if ((dense == dense[0]).all(axis=0) & (dense[0] != 0.0)).any():
        return True
    size = np.abs(dense).max(axis=0)
    scaled = dense / np.where(size > 0.0, size, 1.0)
    if d > SPAN_COLUMNS:  # dummies of one or two factors take a few steps
        weights = lsmr(scaled, np.ones(n), atol=0.0, btol=1e-9, conlim=0.0, maxiter=STEPS)[0]
    else:
        weights = linalg.lstsq(scaled, np.ones(n), lapack_driver="gelsy")[0]
    return bool(np.abs(scaled @ weights - 1.0).max() < 1e-8)


def order_of_one_pass(data: Data) -> str:
    """The order in which ADF takes rows in: their own, unless they come sorted by response."""
    if data.y is None or not _sorted(data.y[:, 0]):
        return "sequential"
    if not is_mapped(data.X):
        return "shuffled"
    _note(
        "the rows of the memory map come sorted by response, and one pass forgets the first ones: "
        "write them in a random order, or use ADF(order='shuffled'), which reads here and there",
    )
    return "sequential"


def _sorted(y: Array) -> bool:
    """Whether responses change sides far more seldom than in a random order."""
    high = y > np.median(y) if len(np.unique(y[:100])) > 2 else y > 0.5 * (y.min() + y.max())
    share = float(high.mean())
    expected = 2.0 * share * (1.0 - share) * (len(y) - 1)
    return expected >= ENOUGH_CHANGES and (high[1:] != high[:-1]).sum() < SELDOM * expected


def prior_scale(mean_square: Array, variance: Array) -> float:
    """Prior standard deviation of x.theta, root mean square over the rows.

    ``variance`` is that of the columns. A column of ones in X, of an intercept, does not count.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(mean_square[: len(variance)] @ variance))


def note_separable(problem: Problem, mean: Array, scale: float) -> None:
    """Note that a plane separates the labels, where the prior is flat: of this scale."""
    data = problem.data
    for part in problem.slices():
        rows = _checks.rows("X", data.X[part])  # a callback may have changed a CSR matrix
        if not (np.asarray(rows @ mean) * data.y[part, 0] > 0.0).all():
            return
    _note(
        f"a plane separates the labels, and the prior is flat (standard deviation of x.theta: "
        f"{scale:.2g}): the data do not bound the weights, whose size is that of the prior; give a "
        "prior_variance that you believe in, such as 1 for standardised columns",
    )

"""The form of q with one large group: common weights, and the effects of many levels.

Given the common weights the levels are independent, so that the precision is an arrow, see
:mod:`epfast._core.arrow`. A sweep is O(n (d + q)^2) with d common weights and q effects of a level,
and the state has J q (q + d) + d^2 numbers with J levels, where a matrix of all weights has
(d + J q)^2.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from epfast._arrays import Array
from epfast._core.arrow import ArrowSweep
from epfast._core.cholesky import gaussian_moments
from epfast.gaussian.engines.base import EPEngine, Form
from epfast.gaussian.engines.kernel import GPState
from epfast.gaussian.problem import Problem, log_determinant
from epfast.inference import Counts, Sites, Summary
from epfast.inference.runtime import Tick

#: rows between two looks at signals
PART = 20_000


class RowsByLevel(NamedTuple):
    """Rows as the core takes them."""

    #: (n, d), of the common weights, and (n, q), of the effects of the level of the row
    X: Array
    Z: Array
    #: (n,), rows level by level, and where each level starts, (J + 1,)
    order: NDArray[np.intp]
    start: NDArray[np.intp]


class Levels(NamedTuple):
    """Which columns of X are those of a large group, and their prior."""

    #: (J, q), the columns of each level, and (d,), all others
    columns: NDArray[np.intp]
    common: NDArray[np.intp]
    #: None where a posterior does not know its rows
    rows: RowsByLevel | None
    #: prior precision of the effects of a level, (q, q), and of the common weights, (d, d)
    precision: Array
    common_precision: Array

    @property
    def log_determinant(self) -> float:
        """Log determinant of the prior precision."""
        of_levels = len(self.columns) * log_determinant(self.precision)
        return of_levels + log_determinant(self.common_precision)

    def spread(self, common: Array, of_levels: Array) -> Array:
        """Numbers of the common weights and of the effects, in the order of the columns."""
        numbers = np.empty((*common.shape[:-1], self.common.size + self.columns.size))
        numbers[..., self.common], numbers[..., self.columns] = common, of_levels
        return numbers

    def without_rows(self) -> Levels:
        return self._replace(rows=None)


def level_of_rows(X: Any, columns: NDArray[np.intp]) -> NDArray[np.intp]:
    """The level (n,) whose columns (J, q) a row of CSR X acts on; -1 if on none, -2 if on two."""
    rows, level = _entries(X, columns)[:2]
    least, most = np.full(X.shape[0], len(columns)), np.full(X.shape[0], -1)
    np.minimum.at(least, rows, level)
    np.maximum.at(most, rows, level)
    return np.where(least < most, -2, most)


def _entries(X: Any, columns: NDArray[np.intp]) -> tuple[Any, ...]:
    """Row, level, effect and value of the entries of CSR X in these columns."""
    place = np.full(X.shape[1], -1)
    place[columns] = np.arange(columns.size).reshape(columns.shape)
    at = place[X.indices]
    rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    kept = (at >= 0) & (X.data != 0.0)
    return rows[kept], *np.divmod(at[kept], columns.shape[1]), X.data[kept]


def rows_by_level(X: Any, columns: NDArray[np.intp], common: NDArray[np.intp]) -> RowsByLevel:
    """CSR rows, of which each has one level; one without any counts to the first, with zeros."""
    level = np.maximum(level_of_rows(X, columns), 0)
    Z = np.zeros((X.shape[0], columns.shape[1]))
    row, _, effect, value = _entries(X, columns)
    np.add.at(Z, (row, effect), value)
    order = np.argsort(level, kind="stable")
    start = np.searchsorted(level[order], np.arange(len(columns) + 1))
    dense = np.ascontiguousarray(X[:, common].toarray(), dtype=np.float64)
    return RowsByLevel(dense, Z, order, start.astype(np.intp))


def arranged(problem: Problem, levels: Levels) -> Problem:
    """The problem with its rows by these levels."""
    X = problem.data.X
    X = X if hasattr(X, "indptr") else sparse.csr_array(X)
    levels = levels._replace(rows=rows_by_level(X, levels.columns, levels.common))
    return problem._replace(data=problem.data._replace(X=X), covariance="arrow", levels=levels)


class ArrowMoments(NamedTuple):
    """What sites make of the prior."""

    #: covariance (d, d) and mean (d,) of the common weights
    covariance: Array
    common: Array
    #: of each level: its effects, given the common weights w, are N(own - slope w, inverse),
    #: (J, q), (J, q, d) and (J, q, q)
    own: Array
    slope: Array
    inverse: Array
    #: (shift.mean - log det precision) / 2
    log_norm: float

    @property
    def of_levels(self) -> Array:
        """Mean of the effects, (J, q)."""
        return np.asarray(self.own - self.slope @ self.common)

    def covariances(self) -> Array:
        """Covariance of the effects of each level, (J, q, q)."""
        added = self.slope @ self.covariance
        return np.asarray(self.inverse + added @ np.swapaxes(self.slope, 1, 2))

    def variances(self) -> Array:
        """Variances of the effects, (J, q)."""
        added = ((self.slope @ self.covariance) * self.slope).sum(-1)
        return np.asarray(np.diagonal(self.inverse, axis1=1, axis2=2) + added)


def log_evidence(problem: Problem, state: GPState) -> float:
    """EP's log p(y), with all constants."""
    moments, scale = state.moments, float(state.sites.log_scale.sum())
    return float(problem.base.log_scale + scale + problem.prior_norm + moments.log_norm)


class Arrow(Form):
    """Prior times a scalar site per row."""

    def __init__(self, problem: Problem) -> None:
        levels, schedule = problem.levels, problem.schedule
        self.problem, self.levels, rows = problem, levels, levels.rows
        self.shapes, self.weights = ((problem.n_rows,),) * 3, len(problem.base.shift)
        self.order = len(levels.common)
        self.tilted = problem.tilted()
        self.core = ArrowSweep(self.tilted, schedule.power, schedule.damping, *rows)
        self.starts = rows.start

    def moments(self, sites: Sites) -> ArrowMoments | None:
        """What these sites make, or None if that is improper. O(n (d + q)^2)."""
        (count, q), d = self.levels.columns.shape, len(self.levels.common)
        precision = np.array(self.levels.common_precision)
        shift = self.problem.base.shift[self.levels.common]
        own, slope, inverse = np.empty((count, q)), np.empty((count, q, d)), np.empty((count, q, q))
        arrays = precision, shift, self.levels.precision, slope, inverse, own
        with np.errstate(all="ignore"):
            terms = self.core.build(sites.precision, sites.shift, *arrays)
        whole = None if terms is None else gaussian_moments(precision, shift)
        if terms is None or whole is None or not math.isfinite(sum(terms)):
            return None
        covariance, common, log_norm, _ = whole
        log_norm += 0.5 * (terms[1] - terms[0])
        return ArrowMoments(covariance, common, own, slope, inverse, log_norm)

    def built(self, sites: Sites, sweeps: int) -> GPState | None:
        """See :class:`epfast.gaussian.engines.base.Form`."""
        moments = self.moments(sites)
        return None if moments is None else GPState(sites, sweeps, moments)

    def summary(self, state: GPState, evidence: bool = True) -> Summary:
        levels, moments = self.levels, state.moments
        mean = levels.spread(moments.common, moments.of_levels)
        variance = levels.spread(moments.covariance.diagonal(), moments.variances())
        return Summary(mean, variance, log_evidence(self.problem, state))

    def result(self, state: GPState) -> GPState:
        return state._replace(order="", memory=None)


class ArrowEngine(EPEngine):
    """EP with a site per row, each of which has one level of ``problem.levels``.

    One row after the other within a level, and all levels from the same common weights. Fits take
    one sweep more than with all rows in turn (20 tables of 8 to 100 levels of 2 to 30 rows), and
    moments of a row of each of 64 levels at a time a third of the time.
    """

    form: Arrow

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, Arrow(problem))
        self.exact, self.tilted = problem.exact_sites(), self.form.tilted
        # whole levels, of PART rows each part or one level
        start = self.form.starts
        cuts = np.searchsorted(start, np.arange(0, start[-1], PART), side="left")
        self.cuts = np.unique(np.append(cuts, len(start) - 1))

    def visit(self, state: GPState, sites: Sites, tick: Tick) -> Counts:
        form, core, data = self.form, self.form.core, self.form.problem.data
        before, core.moved, now = core.n_refused, 0.0, state.moments
        of_levels = now.covariance, now.common, now.slope, now.inverse, now.own
        for first, last in zip(self.cuts[:-1], self.cuts[1:], strict=True):
            core.sweep(data.y, data.weights, int(first), int(last), *sites, *of_levels)
            tick(int(form.starts[last] - form.starts[first]))
        residual = math.sqrt(core.moved) / form.problem.schedule.damping
        return Counts(core.n_refused - before, residual=residual)

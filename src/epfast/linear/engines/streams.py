"""One pass of ADF with a full covariance over chunks of rows that come one after the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from epfast._arrays import symmetric_from_upper
from epfast._core.laplace_factors import LaplaceSweep
from epfast._core.row_sweeps import BlockedSweep
from epfast._core.rows import Rows
from epfast.inference import Counts, PartOfSweep
from epfast.inference.runtime import Tick
from epfast.linear.engines.base import (
    FullEngine,
    Swept,
    adf_start,
    flat,
    plain,
    with_moments,
    with_precision,
)
from epfast.linear.engines.local import laplace_core
from epfast.linear.engines.rows import HALF_FROM, block_size
from epfast.linear.problem import LinearProblem, State, log_determinant
from epfast.linear.sources import Stream


def of_stream(engine: Callable[[LinearProblem], Any]) -> Callable[[LinearProblem], Any]:
    """The maker of an engine, which serves chunks of rows by a :class:`StreamEngine`."""

    def make(problem: LinearProblem) -> Any:
        if isinstance(problem.data.X, Stream):
            return StreamEngine(problem)
        return engine(problem)

    return make


class StreamEngine(FullEngine):
    """Scratch for one row, or minibatch, after the other: O(d^2) memory beside a chunk."""

    def __init__(self, problem: LinearProblem) -> None:
        self.problem, self.schedule = problem, problem.schedule
        self.remedy, self.evidence_bound = problem.remedy, problem.evidence_bound
        self.stream: Stream = problem.data.X
        d = self.order_of_matrices = self.stream.d
        self.prior_log_determinant = log_determinant(problem.prior.precision)
        #: known after the pass
        self.n_sites = 1
        if problem.batch_size is None:
            self.tilted = problem.tilted()
            whole = self.stream.sparse or d < HALF_FROM
            power = self.schedule.power
            self.core = BlockedSweep(self.tilted, d, block_size(None, d), power, 1.0, whole)

    def init(self, start: Any) -> Swept:
        if start is None:
            return with_moments(adf_start(self.problem.base))
        d = self.stream.d
        if start.shift.size != d:
            raise ValueError(f"start has {start.shift.size} dimensions; allowed: {d}")
        return with_moments(adf_start(start.state))

    def sweep(self, state: Swept, keep: bool, tick: Tick) -> tuple[Swept, Counts]:
        by_rows = self.problem.batch_size is None
        return (self._rows if by_rows else self._minibatches)(state, tick)

    def _chunks(self, batch_size: int) -> Any:
        """Parts of the stream, so small that Python handles signals in between: rows, responses."""
        step = max(1, self.problem.chunk // (self.stream.d * batch_size)) * batch_size
        for X, y in self.stream.pieces(batch_size):
            for i in range(0, X.shape[0], step):
                part = X[i : i + step]
                dense = None if self.stream.sparse else np.ascontiguousarray(part, np.float64)
                # of a stream alone nobody has looked at the entries
                if not np.isfinite(part.data if dense is None else dense).all():
                    raise ValueError("a chunk's X holds NaN or infinity; allowed: finite numbers")
                yield Rows(part if dense is None else dense), y[i : i + step]

    def _rows(self, state: Swept, tick: Tick) -> tuple[Swept, Counts]:
        """A pass over rows. Ctrl-C leaves the posterior of those before the part it falls in."""
        core, reached = self.core, state
        self.tilted.begin_sweep(state.sweeps)
        before, core.log_scale_total = core.n_refused, 0.0
        try:
            for rows, y in self._chunks(1):
                covariance, mean = reached.covariance.copy(), reached.mean.copy()
                core.sweep(rows, y, None, np.arange(rows.n, dtype=np.intp), covariance, mean)
                assert reached.rows_seen is not None
                # one assignment, which Ctrl-C cannot divide
                reached = reached._replace(
                    covariance=covariance,
                    mean=mean,
                    log_scale=state.log_scale + core.log_scale_total,
                    rows_seen=reached.rows_seen + rows.n,
                )
                tick(rows.n)
            new = with_precision(reached, core.full)._replace(sweeps=state.sweeps + 1)
        except KeyboardInterrupt:
            some = state if reached is state else with_precision(reached, core.full)
            raise PartOfSweep(some) from None
        assert new.rows_seen is not None
        assert state.rows_seen is not None
        self.n_sites = new.rows_seen - state.rows_seen
        return new, Counts(core.n_refused - before)

    def _minibatches(self, state: Swept, tick: Tick) -> tuple[Swept, Counts]:
        """A pass over minibatches, as over rows."""
        size, factors = self.problem.batch_size, 0
        core: LaplaceSweep | None = None
        assert size is not None
        reached = plain(state)
        try:
            for rows, y in self._chunks(size):
                if core is None:  # the first part holds a whole minibatch, or all there is
                    core = laplace_core(self.problem, self.stream.d, min(size, rows.n))
                sizes = np.minimum(size, rows.n - np.arange(0, rows.n, size))
                sites = flat(rows.n)
                precision, shift = reached.precision.copy(), reached.shift.copy()
                core.sweep(rows, y, None, sizes, precision, shift, *sites, precision, shift)
                assert reached.rows_seen is not None
                reached = State(
                    symmetric_from_upper(precision),
                    shift,
                    None,
                    reached.log_scale + float(sites.log_scale.sum()),
                    state.sweeps,
                    reached.rows_seen + rows.n,
                )
                factors += len(sizes)
                tick(len(sizes))
            new = with_moments(reached._replace(sweeps=state.sweeps + 1))
        except KeyboardInterrupt:
            raise PartOfSweep(reached) from None
        assert core is not None
        self.n_sites = factors
        return new, Counts(core.n_refused, core.n_failed)

"""ADF with a full covariance: one posterior takes in row after row, or minibatch after minibatch.

No site is stored. The rows are at hand, or come in chunks of a stream.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from epfast._arrays import as_array, symmetric_from_upper
from epfast._core.laplace_factors import LaplaceSweep
from epfast._core.rows import Rows
from epfast.gaussian.engine import (
    EPEngine,
    Full,
    M,
    Start,
    Visited,
    Working,
    flat,
    natural,
    plain,
    with_moments,
)
from epfast.gaussian.orders import sequential_core
from epfast.gaussian.problem import Problem, RowSlice
from epfast.gaussian.rows import Stream
from epfast.gaussian.state import State
from epfast.inference import Counts, PartOfSweep
from epfast.inference.loop import Extent
from epfast.inference.runtime import Tick

#: some factors, so few that Python handles signals after them: their rows, and how many each has
Piece = tuple[RowSlice, NDArray[np.intp]]


def start_of_pass(problem: Problem, start: Start | None) -> Working[M]:
    """The state before a pass."""
    d, state = len(problem.base.shift), problem.base if start is None else start.state
    assert isinstance(state, State)
    if state.shift.size != d:
        raise ValueError(f"start has {state.shift.size} dimensions; allowed: {d}")
    return with_moments(state._replace(sites=None, rows_seen=state.rows_seen or 0))


class PassEngine(EPEngine[Working, State, None]):
    """One posterior that forgets what it was made of.

    Ctrl-C leaves the posterior of the rows before the piece it hits.
    """

    problem: Problem

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem, Full(problem))
        self.by_rows = problem.batch_size is None
        self.tilted = problem.tilted() if self.by_rows else None
        self.core = sequential_core(problem, self.tilted) if self.tilted else None

    def init(self, start: Start | None) -> Working:
        return start_of_pass(self.problem, start)

    def visit(self, state: Working, sites: None, tick: Tick) -> Visited[Working, None]:
        reached, factors, counts = state, 0, np.zeros(2, dtype=int)
        try:
            visit = self._rows if self.by_rows else self._minibatches
            for part, sizes in self._pieces(state.sweeps):
                # one assignment, which Ctrl-C cannot divide
                reached, lost = visit(reached, part, sizes)
                counts += lost
                factors += len(sizes)
                tick(len(sizes))
            new = self._whole(reached)._replace(sweeps=state.sweeps + 1)
        except KeyboardInterrupt:
            raise PartOfSweep(state if reached is state else self._whole(reached)) from None
        extent = Extent(factors, self.evidence_bound)
        return Visited(Counts(int(counts[0]), int(counts[1])), new, extent=extent)

    def _rows(
        self, state: Working, part: RowSlice, sizes: NDArray[np.intp]
    ) -> tuple[Working, tuple[int, int]]:
        """Take in rows, in the moments."""
        core, count = self.core, len(sizes)
        assert core is not None
        covariance, mean = state.covariance.copy(), state.mean.copy()
        refused_before, core.log_scale_total = core.n_refused, 0.0
        numbers = np.arange(count, dtype=np.intp)
        core.sweep(*part[1:], numbers, covariance, mean)
        new = state._replace(
            covariance=covariance,
            mean=mean,
            log_scale=state.log_scale + core.log_scale_total,
            rows_seen=(state.rows_seen or 0) + count,
        )
        return new, (core.n_refused - refused_before, 0)

    def _minibatches(
        self, state: Working, part: RowSlice, sizes: NDArray[np.intp]
    ) -> tuple[Working, tuple[int, int]]:
        """Take in minibatches, in precision and shift."""
        core = laplace_core(self.problem, len(state.shift), int(sizes.max()))
        sites = flat(part.rows.n)
        precision, shift = state.precision.copy(), state.shift.copy()
        core.sweep(*part[1:], sizes, precision, shift, *sites, precision, shift)
        new = state._replace(
            precision=symmetric_from_upper(precision),
            shift=shift,
            log_scale=state.log_scale + float(sites.log_scale.sum()),
            rows_seen=(state.rows_seen or 0) + part.rows.n,
        )
        return new, (core.n_failed, core.n_failed)

    def _whole(self, state: Working) -> Working:
        """The other picture of a posterior, which visits leave behind. O(d^3)."""
        if self.core is None:
            return with_moments(plain(state))
        precision, shift = natural(state.covariance, state.mean, self.core.full)
        whole = with_moments(plain(state._replace(precision=precision, shift=shift)))
        # the next pass goes on from the moments as they are, to the bit
        return whole._replace(covariance=state.covariance, mean=state.mean)

    def _pieces(self, sweeps: int) -> Iterator[Piece]:
        size, stream = self.problem.batch_size or 1, self.problem.data.X
        if not isinstance(stream, Stream):
            yield from pieces_of(self.problem, min(size, self.problem.shape[0]), sweeps)
            return
        step = max(1, self.problem.chunk // (stream.d * size)) * size
        for X, y in stream.pieces(size):
            for i in range(0, X.shape[0], step):
                part = X[i : i + step]
                dense = None if stream.sparse else np.ascontiguousarray(part, np.float64)
                # of a stream alone nobody has looked at the entries
                if not np.isfinite(part.data if dense is None else dense).all():
                    raise ValueError("a chunk's X holds NaN or infinity; allowed: finite numbers")
                rows = Rows(part if dense is None else dense)
                sizes = np.minimum(size, rows.n - np.arange(0, rows.n, size))
                which = slice(i, i + rows.n)
                yield RowSlice(which, rows, y[which], None), sizes


def pieces_of(problem: Problem, size: int, sweeps: int) -> Iterator[Piece]:
    """Factors in the order of their visits, some at a time."""
    n = problem.shape[0]
    factors = problem.schedule.checked_visits(-(-n // size), sweeps)
    if size == 1:
        yield from ((part, np.ones(part.rows.n, np.intp)) for part in problem.parts(factors))
        return
    for piece in map(as_array, problem.pieces(factors, size)):
        which = (piece[:, None] * size + np.arange(size)).ravel()
        which = which[which < n]
        part = problem.rows(which), problem.responses(which), problem.weights(which)
        yield RowSlice(which, *part), np.minimum(size, n - piece * size)


def laplace_core(problem: Problem, d: int, size: int) -> LaplaceSweep:
    """Sweeps over factors of at most so many rows, for the core."""
    options = problem.scheme.core_arguments(d)
    return LaplaceSweep(
        problem.loss.shifted_core(),
        d,
        size,
        problem.schedule.power,
        problem.schedule.damping,
        options["scheme"] == "laplace",
        options["slope_curvature"],
        options.get("tolerance", 0.0),
        options.get("max_iterations", 0),
        options.get("half_sums", False),
    )

"""EP and ADF with a factorised posterior: minibatch factors, or rows (Roche 2016)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from epfast import families
from epfast._arrays import Array, as_array
from epfast._core.minibatch import MinibatchSweep
from epfast.inference import Counts, PartOfSweep, Sites, Summary
from epfast.inference.runtime import PacedParts, Tick
from epfast.linear.engines.base import adf_start
from epfast.linear.problem import LinearProblem, State
from epfast.linear.sources import Stream


class MinibatchEngine:
    """EP stores sites of (factors, d) numbers, ADF stores none. O(s d) per factor."""

    remedy = "scale the columns of X"
    order_of_matrices = 0

    def __init__(self, problem: LinearProblem, traced: bool = False) -> None:
        self.problem, self.schedule = problem, problem.schedule
        #: True if the posterior mean is recorded after every factor
        self.traced = traced
        self.size = problem.batch_size or 1
        data, self.d = problem.data, len(problem.prior.shift)
        self.stream = isinstance(data.X, Stream)
        #: of a stream: known after the pass
        self.n_sites = 1 if self.stream else -(-len(data.X) // self.size)
        self.core = None if self.stream else self._core(len(data.X))

    def init(self, start: Any) -> State:
        base, shape = self.problem.base, (self.n_sites, self.d)
        if self.schedule.stores == "none":
            if start is None:
                return adf_start(
                    base._replace(precision=base.precision.copy(), shift=base.shift.copy())
                )
            if start.shift.size != self.d:
                raise ValueError(f"start has {start.shift.size} dimensions; allowed: {self.d}")
            return adf_start(start.state)
        if start is None:
            sites = Sites(np.zeros(shape), np.zeros(shape), np.zeros(self.n_sites))
            return base._replace(sites=sites)
        if start.sites is None:
            raise ValueError(
                "start has no sites (it comes from ADF); allowed with EP: a result of EP"
            )
        if [part.shape for part in start.sites] != [shape, shape, shape[:1]]:
            raise ValueError(
                f"start has sites of shape {start.sites.precision.shape}; allowed: {shape}, the "
                "same rows and batch_size"
            )
        state = self._from_sites(start.sites, start.n_sweeps)
        if not (state.precision > 0.0).all():
            raise ValueError(
                "start makes the posterior improper with this prior; allowed: another prior"
            )
        return state

    def summary(self, state: State, evidence: bool = True) -> Summary:
        variance = 1.0 / state.precision
        mean = state.shift * variance
        if not evidence:
            return Summary(mean, variance)
        # the evidence is finite only if every shift and log precision is
        log_ratio = np.log(self.problem.prior.precision * variance).sum()
        total = state.log_scale + 0.5 * float(log_ratio + state.shift @ mean)
        return Summary(mean, variance, total)

    def settle(self, state: State, hurry: bool = False) -> State:
        return state

    def sweep(self, state: State, keep: bool, tick: Tick) -> tuple[State, Counts]:
        return (self._pass if state.sites is None else self._sweep)(state, tick)

    def _core(self, rows: int) -> MinibatchSweep:
        schedule, problem = self.schedule, self.problem
        return problem.scheme.minibatch(
            problem.loss,
            self.d,
            min(self.size, rows),
            power=schedule.power,
            damping=schedule.damping,
            site_rule=schedule.site_rule,
        )

    def _sweep(self, state: State, tick: Tick) -> tuple[State, Counts]:
        """A sweep over stored sites."""
        data, core = self.problem.data, self.core
        assert core is not None
        assert data.y is not None
        assert state.sites is not None
        core.begin_sweep(state.sweeps)
        before = core.n_refused, core.n_failed, core.n_clipped
        sites: Sites = families.copied(state.sites)
        precision, shift = state.precision.copy(), state.shift.copy()
        order = as_array(self.schedule.checked_visits(self.n_sites, state.sweeps))
        targets: dict[str, Any] = {
            "site_tau": sites.precision,
            "site_nu": sites.shift,
            "site_scale": sites.log_scale,
        }
        parallel = self.schedule.order == "parallel"
        if parallel:
            targets |= {"next_tau": precision.copy(), "next_nu": shift.copy()}
        trace = np.empty((self.n_sites, self.d)) if self.traced else None
        for part in PacedParts(self.n_sites):
            core.sweep(
                data.X,
                data.y,
                self.size,
                order[part],
                precision,
                shift,
                trace=None if trace is None else trace[part],
                **targets,
            )
            tick(len(order[part]))
        refused = core.n_refused - before[0]
        if parallel:
            refused += self._undo_improper(targets["next_tau"], sites, state.sites)
        new = self._from_sites(sites, state.sweeps + 1)
        failed, clipped = core.n_failed - before[1], core.n_clipped - before[2]
        return new, Counts(refused, failed, clipped, trace=trace)

    def _pass(self, state: State, tick: Tick) -> tuple[State, Counts]:
        """A pass of ADF: the posterior itself is the cavity.

        Ctrl-C leaves the posterior of the factors before the call of the core that it falls in.
        """
        core, seen, trace, reached = self.core, 0, None, state
        before = (0, 0, 0) if core is None else self._counters(core)
        try:
            for X, y in self._chunks():
                if core is None:  # the first chunk holds a whole minibatch, or all there is
                    core = self._core(len(X))
                if seen == 0:
                    core.begin_sweep(state.sweeps)
                    core.log_scale_total = 0.0
                n_factors = -(-len(X) // self.size)
                if self.traced:
                    trace = np.empty((n_factors, self.d))
                order = as_array(self.schedule.checked_visits(n_factors, state.sweeps))

                for part in PacedParts(n_factors):
                    precision, shift = reached.precision.copy(), reached.shift.copy()
                    traced = None if trace is None else trace[part]
                    some = order[part]
                    core.sweep(
                        X, y, self.size, some, precision, shift, trace=traced, row_offset=seen
                    )
                    rows = int(np.minimum(self.size, len(X) - some * self.size).sum())
                    assert reached.rows_seen is not None
                    # one assignment, which Ctrl-C cannot divide
                    reached = reached._replace(
                        precision=precision,
                        shift=shift,
                        log_scale=state.log_scale + core.log_scale_total,
                        rows_seen=reached.rows_seen + rows,
                    )
                    tick(len(some))
                seen += len(X)
        except KeyboardInterrupt:
            raise PartOfSweep(reached) from None
        assert core is not None
        self.n_sites = -(-seen // self.size)
        refused, failed, clipped = (
            now - old for now, old in zip(self._counters(core), before, strict=True)
        )
        new = reached._replace(sweeps=state.sweeps + 1)
        return new, Counts(refused, failed, clipped, trace=trace)

    def _chunks(self) -> Iterator[tuple[Any, Any]]:
        """Rows and their responses, some at a time if they come from a stream."""
        data = self.problem.data
        return data.X.pieces(self.size) if self.stream else iter([(data.X, data.y)])

    @staticmethod
    def _counters(core: MinibatchSweep) -> tuple[int, int, int]:
        return core.n_refused, core.n_failed, core.n_clipped

    def _from_sites(self, sites: Sites, sweeps: int) -> State:
        """Base times sites, summed afresh, so that rounding does not accumulate."""
        base = self.problem.base
        precision = base.precision + sites.precision.sum(axis=0)
        shift = base.shift + sites.shift.sum(axis=0)
        log_scale = base.log_scale + float(sites.log_scale.sum())
        return State(precision, shift, sites, log_scale, sweeps)

    @staticmethod
    def _undo_improper(precision: Array, sites: Sites, before: Sites) -> int:
        """Parallel order: restore coordinates that all changes together made improper.

        Returns the number of sites restored.
        """
        bad = ~(precision > 0.0)
        if not bad.any():
            return 0
        sites.precision[:, bad] = before.precision[:, bad]
        sites.shift[:, bad] = before.shift[:, bad]
        return len(sites.precision)

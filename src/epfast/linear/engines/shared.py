"""Sites shared by groups of rows: SEP, AEP, DSEP, DAEP; a (d, d) site per group."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from epfast import families
from epfast._arrays import Array
from epfast._core.shared_sites import SharedSweep
from epfast.inference import Counts, Sites
from epfast.inference.runtime import Tick
from epfast.linear.engines.base import FullEngine, improper_start
from epfast.linear.problem import LinearProblem, State, is_proper, moments_of

#: rows fitted to a cavity per call
ROWS_AT_ONCE = 64


class SharedState(NamedTuple):
    """A :class:`State` with (K, d, d) sites, and its moments."""

    precision: Array
    shift: Array
    sites: Sites
    log_scale: float
    sweeps: int
    rows_seen: int | None
    covariance: Array
    mean: Array
    #: True once a site had a negative precision; then every batch is tested, and undone if it makes
    #: the posterior improper
    checked: bool


class SharedEngine(FullEngine):
    """q = p0 Π_k g_k^N_k. Each batch costs a Cholesky factorisation, O(d^3)."""

    def __init__(self, problem: LinearProblem) -> None:
        super().__init__(problem)
        self.tilted = problem.tilted()
        n, _ = problem.shape
        #: (K,), rows per group, with their copies
        self.sizes = np.bincount(self.schedule.labels(n), problem.copies()).astype(np.float64)
        if not self.sizes.all():
            raise ValueError("weights are all 0 in a group; allowed: a row that counts in each")
        self.schedule.batches(n, 0)  # refuses a batch that is too large before the first sweep

    def init(self, start: Any) -> SharedState:
        count, (_, d) = len(self.sizes), self.problem.shape
        shape = (count, d, d)
        if start is None:
            sites = Sites(np.zeros(shape), np.zeros((count, d)), np.zeros(count))
        elif start.sites is None or start.sites.precision.shape != shape:
            found = None if start.sites is None else start.sites.precision.shape
            raise ValueError(
                f"start has sites of shape {found}; allowed with this schedule: {shape}, a result "
                "with shared sites and as many groups"
            )
        else:
            sites = start.sites
        state = self._from_sites(sites, 0 if start is None else start.n_sweeps)
        if state is None:
            raise improper_start()
        return self._at(state, start is not None)

    def sweep(self, state: SharedState, keep: bool, tick: Tick) -> tuple[SharedState, Counts]:
        problem = self.problem
        self.tilted.begin_sweep(state.sweeps)
        n, d = problem.shape
        core = SharedSweep(
            self.tilted,
            d,
            min(ROWS_AT_ONCE, n),
            self.schedule.power,
            self.schedule.damping,
            state.checked,
        )
        sites = families.copied(state.sites)
        precision, shift = state.precision.copy(), state.shift.copy()
        batches = self.schedule.batches(n, state.sweeps)
        # a batch costs as much as about d rows
        rows_of_work = 1 + d * int(batches.last.sum()) // n
        for part in problem.pieces(np.arange(n), rows_of_work):
            which = batches.rows[part]
            rows = problem.data.X[which]
            dense = rows.toarray() if problem.sparse else rows
            core.sweep(
                np.ascontiguousarray(dense, dtype=np.float64),
                problem.responses(which),
                problem.weights(which),
                batches.group[part],
                batches.last[part],
                *sites,
                self.sizes,
                precision,
                shift,
            )
            tick(len(part))
        new = self._from_sites(sites, state.sweeps + 1)
        if new is None:  # all changes together are improper: take none
            return state._replace(sweeps=state.sweeps + 1), Counts(self.n_sites)
        return self._at(new, core.checked), Counts(core.n_refused)

    @staticmethod
    def _at(state: State, checked: bool) -> SharedState:
        """A state with its moments. O(d^3)."""
        assert state.sites is not None
        return SharedState(*state, *moments_of(state), checked)  # type: ignore[arg-type]

    def _from_sites(self, sites: Sites, sweeps: int) -> State | None:
        """Base times powers of the sites; None if that is no proper Gaussian."""
        base = self.problem.base
        precision = base.precision + np.tensordot(self.sizes, sites.precision, 1)
        if not is_proper(precision):
            return None
        total = base.log_scale + float(self.sizes @ sites.log_scale)
        return State(precision, base.shift + self.sizes @ sites.shift, sites, total, sweeps)

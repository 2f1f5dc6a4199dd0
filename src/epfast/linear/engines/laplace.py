"""Laplace propagation: EP and ADF on factors of several rows, with the full Hessian of each."""

from __future__ import annotations

import numpy as np

from epfast import families
from epfast._arrays import as_array, symmetric_from_upper
from epfast._core.laplace_factors import LaplaceSweep
from epfast.inference import Counts, Sites
from epfast.inference.runtime import Tick
from epfast.linear.engines.base import FullEngine, Swept, flat, with_moments
from epfast.linear.problem import LinearProblem, State


def laplace_core(problem: LinearProblem, d: int, size: int) -> LaplaceSweep:
    """Sweeps over factors of at most so many rows, for the core."""
    given = problem.scheme.core_arguments(d)
    return LaplaceSweep(
        problem.loss.core(),
        d,
        size,
        problem.schedule.power,
        problem.schedule.damping,
        given["scheme"] == "laplace",
        given["slope_curvature"],
        given.get("tolerance", 0.0),
        given.get("max_iterations", 0),
    )


class LaplaceEngine(FullEngine):
    """Sites of a precision and a shift per row (Smola et al. 2003). O(s d^2 + d^3) per factor."""

    def __init__(self, problem: LinearProblem) -> None:
        super().__init__(problem)
        n, d = problem.shape
        assert problem.batch_size is not None
        self.size = min(problem.batch_size, n)
        self.core = laplace_core(problem, d, self.size)

    def sweep(self, state: Swept, keep: bool, tick: Tick) -> tuple[Swept, Counts]:
        problem, core = self.problem, self.core
        n = problem.shape[0]
        before = core.n_refused, core.n_failed
        precision, shift = state.precision.copy(), state.shift.copy()
        parallel = self.schedule.order == "parallel"
        seen = (state.precision, state.shift) if parallel else (precision, shift)
        sites = families.copied(state.sites) if state.sites else flat(n)
        factors = self.schedule.checked_visits(-(-n // self.size), state.sweeps)
        for some in map(as_array, problem.pieces(factors, self.size)):
            rows = (some[:, None] * self.size + np.arange(self.size)).ravel()
            rows = rows[rows < n]
            sizes = np.minimum(self.size, n - some * self.size)
            target: Sites = families.taken(sites, rows)
            core.sweep(
                problem.rows(rows),
                problem.responses(rows),
                problem.weights(rows),
                sizes,
                *seen,
                *target,
                precision,
                shift,
            )
            families.put(sites, rows, target)
            tick(len(some))
        counts = Counts(core.n_refused - before[0], core.n_failed - before[1])
        if state.sites is None:
            total = state.log_scale + float(sites.log_scale.sum())
            symmetric = symmetric_from_upper(precision)
            new = State(symmetric, shift, None, total, state.sweeps + 1)
            return with_moments(new), counts
        return self.accepted(state, sites, counts)

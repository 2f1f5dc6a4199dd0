"""Processes with several latent values per observation: a product over them of processes.

In automatic order a log-concave likelihood takes a step on all means, as in
``latent_means.py``, then all sites at once; else one observation after the other.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast._arrays import Array, as_array, symmetric_from_upper
from epfast._core.latents import LatentSites
from epfast._core.rows import Rows
from epfast.gaussian.engines.base import EPEngine, Form
from epfast.gaussian.engines.kernel import GPState, Kernel, ValueMoments
from epfast.gaussian.engines.latent_means import by_latent, conjugate_gradients, newton_step
from epfast.inference import Counts, Sites, Summary
from epfast.inference.loop import change
from epfast.inference.runtime import Tick

#: observations up to which the first sweep visits one after the other; a sweep of all sites at once
#: that leaves more than this share of the last change is followed by such a one
SEQUENTIAL_UP_TO, CONTRACTS = 400, 0.5
#: largest number of curvatures, (C, C) for each observation, for steps on the means
MOST_CURVATURES = 1 << 25


def one_of(sites: Sites, k: int) -> Sites:
    """Scalar sites of one latent; the log scale of an observation is in none of them."""
    precision, shift = (np.ascontiguousarray(part[:, k]) for part in sites[:2])
    return Sites(precision, shift, np.zeros(len(precision)))


def evidence_of(sites: Sites, now: tuple[ValueMoments, ...]) -> float:
    """EP's log p(y), with all constants."""
    total = float(sites.log_scale.sum())
    for k, part in enumerate(now):
        total += 0.5 * float(sites.shift[:, k] @ part.mean) - 0.5 * part.log_determinant
    return total


class Kernels(Form):
    """The form of q with a matrix of order n per latent, in the array of its kernel."""

    def __init__(self, problem: Any) -> None:
        self.forms, self.order = [Kernel(kernel) for kernel in problem.kernel], problem.n_rows
        self.shape = problem.n_rows, problem.loss.latents
        self.shapes = self.shape, self.shape, self.shape[:1]

    def built(self, sites: Sites, sweeps: int) -> GPState | None:
        """Their covariances are in the arrays of the kernels then. O(C n^3)."""
        found = []
        for k, form in enumerate(self.forms):
            some = one_of(sites, k)
            part = form.moments(some)
            if part is None:
                return None
            form.hold_covariance(some, part)
            found.append(part)
        return GPState(sites, sweeps, tuple(found))

    def summary(self, state: GPState, evidence: bool = True) -> Summary:
        mean, variance = (
            np.concatenate([getattr(part, name) for part in state.moments])
            for name in ("mean", "variance")
        )
        if not evidence:
            return Summary(mean, variance)
        return Summary(mean, variance, evidence_of(state.sites, state.moments))

    def result(self, state: GPState) -> GPState:
        """The arrays of the kernels go into the result."""
        for k, form in enumerate(self.forms):
            form.matrix.factor(one_of(state.sites, k).precision)
        arrays = [(form.matrix.array, form.matrix.diagonal) for form in self.forms]
        factor, diagonal = zip(*arrays, strict=True)
        return GPState(*state[:3], None, factor, diagonal)


class LatentProcessEngine(EPEngine):
    """EP on observations of several processes, in C n^2 numbers and twice that beside.

    A step on all means, then all observations at once, or one after the other.
    """

    def __init__(self, problem: Any) -> None:
        super().__init__(problem, Kernels(problem))
        self.pool = problem.kernel[0].pool
        schedule, (n, latents) = self.schedule, self.form.shape
        self.moments = problem.loss.latent_moments()
        self.core = LatentSites(self.moments, schedule.damping, n)
        self.at_once = schedule.order == "parallel"
        joins = schedule.order == "auto" and schedule.tol > 0.0 and schedule.damping == 1.0
        joins = joins and problem.loss.log_concave
        self.joins = bool(joins and n * latents**2 <= MOST_CURVATURES)

    def begun(self, state: GPState, is_flat: bool) -> GPState:
        return state._replace(memory=(not is_flat or self.n_sites > SEQUENTIAL_UP_TO, np.inf))

    def unswept(self, state: GPState) -> tuple[GPState, Counts]:
        # the arrays of the kernels have other covariances
        same = self.form.built(state.sites, state.sweeps + 1)
        return same._replace(memory=(False, state.memory[1])), Counts(self.n_sites)

    def visit(self, state: GPState, sites: Sites, tick: Tick) -> Counts:
        before = self.core.n_refused
        if self.joins:
            self.at_once = state.memory[0]
        mean, shifts = np.stack([part.mean for part in state.moments]), state.sites.shift
        if self.joins and state.sites.precision.any():
            stepped = self._step(state, mean)
            if stepped is not None:
                mean, shifts = stepped
        stood = state.sites._replace(shift=shifts)
        found = (self._all if self.at_once else self._by_one)(state, mean, stood)
        for part, new in zip(sites, found, strict=True):
            part[:] = new
        tick(self.form.order)
        return Counts(self.core.n_refused - before)

    def after(self, old: GPState, new: GPState, counts: Counts) -> tuple[GPState, Counts]:
        """The state, with what the next sweep goes by."""
        moved = change(self.form.summary(old, False), self.form.summary(new, False))
        contracts = counts.settled is None and moved < CONTRACTS * old.memory[1]
        return new._replace(memory=(contracts or not self.at_once, moved)), counts

    # -- all at once --

    def _all(self, state: GPState, mean: Array, sites: Sites) -> Sites:
        """New sites of all observations from one posterior."""
        variance = np.stack([part.variance for part in state.moments])
        n, latents = sites.shift.shape
        new, scale, numbers = np.zeros((latents, 2, n)), np.empty(n), np.arange(n)
        y = self.problem.data.y
        self.core.fit(mean, variance, y, numbers, *by_latent(sites), new, scale)
        first, second = (np.ascontiguousarray(new[:, j].T) for j in range(2))
        return Sites(first, second, scale)

    def _step(self, state: GPState, mean: Array) -> tuple[Array, Array] | None:
        """Means (C, n) and shifts (n, C) after a step on all means; None: there is none to take.

        K is not inverted. Each latent is solved for by its covariance, of which K^-1 times that is
        known; what all have in common by K, where that is the same for all.
        """
        covariance = [symmetric_from_upper(kernel.array) for kernel in self.problem.kernel]
        common, tau = self.problem.common, state.sites.precision.T

        def nearly(r: Array) -> tuple[Array, Array]:
            z = np.stack([matrix @ part for matrix, part in zip(covariance, r, strict=True)])
            back = r - tau * z
            if common is not None:
                total = r.sum(axis=0) / len(r)
                z, back = z + common @ total, back + total
            return z, back

        def solve(W: Array, aim: Array, slope: Array) -> Array:
            def pull(z: Array) -> Array:
                return np.asarray(np.einsum("ijk,ki->ji", W, z))

            return conjugate_gradients((aim - slope).T, pull, nearly).T

        variance = np.stack([part.variance for part in state.moments])
        found = newton_step(
            self.moments, self.problem.data.y, state.sites, mean.T, variance.T, solve
        )
        return None if found is None else (np.ascontiguousarray(found[0].T), found[1])

    # -- one after the other --

    def _by_one(self, state: GPState, center: Array, sites: Sites) -> Sites:
        """O(C n^3)."""
        n = self.form.order
        covariance = np.stack(
            [symmetric_from_upper(kernel.array) for kernel in self.problem.kernel]
        )
        mean, (tau, nu, scale) = center.copy(), by_latent(sites)
        scale = scale.copy()
        visits = as_array(self.schedule.checked_visits(n, state.sweeps))
        rows = Rows(np.eye(n)[visits])
        self.core.sweep(rows, self.problem.data.y, visits, covariance, mean, tau, nu, scale)
        return Sites(np.ascontiguousarray(tau.T), np.ascontiguousarray(nu.T), scale)

"""The form of q with a matrix: precision and covariance of order d, or of d weights per latent."""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast._arrays import Array
from epfast._core.row_sweeps import add_sites
from epfast.gaussian.engines.base import Form, Swept, gaussian, plain, with_moments
from epfast.gaussian.problem import (
    Problem,
    RowSlice,
    State,
    log_determinant,
    log_evidence,
    moments_of,
)
from epfast.inference import Sites, Summary


class Full(Form):
    """The prior times a scalar site per row, which are added up in O(n d^2)."""

    def __init__(self, problem: Problem) -> None:
        n = problem.n_rows
        self.problem, self.shapes = problem, ((n,),) * 3
        self.weights = len(problem.base.shift)
        self.order = len(problem.base.shift) if problem.covariance == "full" else 0
        self.prior_log_determinant = log_determinant(problem.prior.precision)
        #: whether states have a root of the covariance
        self.rooted = False
        #: all rows, where those of X are as the core takes them
        self.parts: list[RowSlice] | None = None
        X = problem.data.X
        if isinstance(X, np.ndarray) and X.dtype == np.float64 and X.flags.c_contiguous:
            self.parts = list(problem.parts(range(n)))

    def prior(self) -> Swept:
        return with_moments(self.problem.base._replace(sites=self.flat()))

    def built(self, sites: Sites, sweeps: int) -> Swept | None:
        """Base times the sites; None if that is improper. O(n d^2 + d^3)."""
        base = self.problem.base
        precision, shift = base.precision.copy(), base.shift.copy()
        for part in self.parts or self.problem.parts(range(self.problem.n_rows)):
            tau, nu = sites.precision[part.which], sites.shift[part.which]
            add_sites(part.rows, tau, nu, precision, shift)
        total = base.log_scale + float(sites.log_scale.sum())
        return gaussian(State(precision, shift, sites, total, sweeps), self.rooted)

    def with_shifts(self, state: Swept, sites: Sites, mean: Array) -> Swept:
        """The state after sites of the same precisions, whose mean is known. O(n d)."""
        base = self.problem.base
        shift = base.shift + sites.shift @ self.problem.data.X
        total = base.log_scale + float(sites.log_scale.sum())
        state = state._replace(shift=shift, mean=mean, sites=sites, log_scale=total)
        return state._replace(square=float(shift @ mean), sweeps=state.sweeps + 1)

    def summary(self, state: Any, evidence: bool = True) -> Summary:
        if state.precision.ndim == 1:
            variance, mean = moments_of(state)
        else:
            # of several latents, one after the other
            variance = state.covariance.diagonal(0, -2, -1).ravel()
            mean = state.mean.ravel()
        if not evidence:
            return Summary(mean, variance)
        if not isinstance(state, Swept):
            return Summary(mean, variance, log_evidence(state, self.prior_log_determinant))
        away = self.prior_log_determinant - state.log_determinant + state.square
        return Summary(mean, variance, float(state.log_scale + 0.5 * away))

    def result(self, state: Any) -> State:
        return plain(state)

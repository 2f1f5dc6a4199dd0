"""The search of the prior variance that maximises the log evidence of linear classifiers."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
from scipy import optimize, sparse

from epfast._arrays import Array
from epfast.inference import FAILURES, Interrupted, fit_from
from epfast.linear import FactorizedPosterior, FullPosterior, LinearProblem, fit_problem
from epfast.linear.fit import unfitted
from epfast.schedules import ADF, EP, Schedule, SharedSites

Posterior = FullPosterior | FactorizedPosterior

#: range of the search: prior variance of x.theta, x about its mean
LATENT_VARIANCES = (1e-6, 1e6)
#: points of the first pass, evenly spaced in the logarithm
GRID = 9
#: accuracy of log(prior variance): of the root of the slope, at fixed points of EP, ...
ROOT_ACCURACY = 1e-10
#: ... or of the largest value, which cannot be located more precisely
ACCURACY = 1e-4


class BinaryProblems(NamedTuple):
    """The binary problems of a fit, without the prior variance of the coefficients."""

    #: one problem, or one per class
    problems: list[LinearProblem]
    #: number of coefficients, before the intercept
    d: int
    intercept_variance: float | None

    @property
    def schedule(self) -> Any:
        return self.problems[0].schedule

    def unfitted(self) -> Posterior:
        """The prior, as a posterior of the first problem."""
        prior: Posterior = unfitted(self.problems[0])
        return prior

    @property
    def full(self) -> bool:
        return self.problems[0].covariance == "full"

    def fit(
        self, variance: float | Array, schedule: Schedule, starts: list[Posterior] | None = None
    ) -> list[Posterior]:
        """Fit each problem with this prior variance."""
        prior = np.broadcast_to(np.asarray(variance, dtype=np.float64), (self.d,))
        if self.intercept_variance is not None:
            prior = np.append(prior, self.intercept_variance)
        found: list[Posterior] = []
        for k, problem in enumerate(self.problems):
            problem = problem.with_prior(prior)._replace(schedule=schedule)
            start = None if starts is None else starts[k]
            # a warning is for who called the estimator, two calls, that called fit_from that
            # called this
            found.append(fit_problem(problem, start, stacklevel=6))
        return found


class Search:
    """The maximum of the log evidence over u, the log of the prior variance."""

    def __init__(self, problem: BinaryProblems) -> None:
        self.problem = problem
        #: start of the next fit
        self.last: list[Posterior] | None = None
        self.failure: Exception | None = None

    def fits(self, u: float, schedule: Schedule) -> list[Posterior] | None:
        """Fits at u; None if none succeeds."""
        try:
            found = fit_from(partial(self.problem.fit, math.exp(u), schedule), self.last)
        except FAILURES as error:
            self.failure = error
            return None
        if not isinstance(schedule, ADF):  # ADF would count the rows again
            self.last = found
        return found

    def value(self, u: float, schedule: Schedule) -> float:
        found = self.fits(u, schedule)
        return -math.inf if found is None else total_evidence(found)

    def slope(self, u: float) -> float:
        """d log Z / du at a fixed point: (E|w|^2 / variance - d) / 2 for the coefficients w.

        There log Z does not change with the sites, to first order. NaN without a fixed point.
        """
        found = self.fits(u, self.problem.schedule)
        if found is None or not all(post.converged for post in found):
            return math.nan
        d = self.problem.d
        squares = sum((post.mean[:d] ** 2 + post.variance[:d]).sum() for post in found)
        return 0.5 * float(squares * math.exp(-u) - d * len(found))

    def maximum(self, least: float, most: float) -> tuple[float, list[Posterior] | None]:
        """The best prior variance in [least, most], and fits to start from."""
        try:
            return self._maximum(least, most)
        except KeyboardInterrupt as pressed:
            if isinstance(pressed, Interrupted) or self.last is None:
                raise
            raise Interrupted(self.last[-1]) from None

    def _maximum(self, least: float, most: float) -> tuple[float, list[Posterior] | None]:
        schedule = quick = self.problem.schedule
        if isinstance(schedule, EP | SharedSites):
            sweeps, tol = min(schedule.sweeps, 20), max(schedule.tol, 1e-3)
            quick = replace(cast(Any, schedule), sweeps=sweeps, tol=tol)
        grid = np.linspace(math.log(least), math.log(most), GRID).tolist()
        values = [self.value(u, quick) for u in grid]
        top = int(np.argmax(values))
        if values[top] == -math.inf:
            assert self.failure is not None
            raise self.failure
        low, high = grid[max(0, top - 1)], grid[min(GRID - 1, top + 1)]
        if isinstance(schedule, EP) and self.problem.full:
            try:
                if self.slope(low) > 0.0 > self.slope(high):
                    root = optimize.brentq(self.slope, low, high, xtol=ROOT_ACCURACY)
                    return math.exp(root), self.last
            except ValueError:  # brentq refuses a NaN on its way
                pass
        # the search visits the inside of the bracket only: add its ends
        tried = {u: self.value(u, schedule) for u in (low, high)}

        def loss(u: float) -> float:
            tried[u] = self.value(u, schedule)
            return -max(tried[u], -1e50)  # a finite number for a failed fit

        optimize.minimize_scalar(
            loss, bounds=(low, high), method="bounded", options={"xatol": ACCURACY}
        )
        return math.exp(max(tried, key=lambda u: tried[u])), self.last


def variance_range(rows: Any, weights: Array | None, centred: bool) -> tuple[float, float]:
    """The range of LATENT_VARIANCES over the total variance of the columns (about 0 if told)."""
    share = np.ones(rows.shape[0]) if weights is None else weights
    share = share / share.sum()
    rounding = rows.shape[0] * np.finfo(float).eps
    with np.errstate(all="ignore"):
        mean = rows.T @ share
        if sparse.issparse(rows):
            square = rows.multiply(rows).T @ share
            spread, lost = square - mean**2, rounding
        else:
            square = (rows**2).T @ share
            spread, lost = ((rows - mean) ** 2).T @ share, rounding**2
        # a constant column leaves the rounding of its mean
        spread = np.where(spread > lost * square, spread, 0.0)
        for scale in (spread if centred else square, square):
            total = float(np.sum(scale))
            if math.isfinite(total) and 1e-200 < total < 1e200:
                return LATENT_VARIANCES[0] / total, LATENT_VARIANCES[1] / total
    return LATENT_VARIANCES


def total_evidence(posteriors: list[Posterior]) -> float:
    """The sum of the log evidences of all binary problems."""
    return float(sum(post.log_evidence for post in posteriors))


def with_ones(rows: Any) -> Any:
    """A C-contiguous copy of X with a column of ones at the end."""
    n, d = rows.shape
    if sparse.issparse(rows):
        return sparse.hstack([rows, np.ones((n, 1))], format="csr")
    result = np.empty((n, d + 1))
    result[:, :d] = rows
    result[:, d] = 1.0
    return result

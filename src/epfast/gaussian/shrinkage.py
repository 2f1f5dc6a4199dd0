"""Fits with a prior that is a site per weight: the problem, and runs of it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast.gaussian.engines.weights import ByWeights, PriorSites, ShrunkState, WeightEngine
from epfast.gaussian.engines.wide_weights import ByRows
from epfast.gaussian.problem import LinearProblem, exact_sites, prior_of
from epfast.gaussian.wide import MOST_BYTES
from epfast.inference import Fit, Sites, is_guess, run_from
from epfast.losses import Prior
from epfast.schedules import EP

#: damping of the sites of rows in automatic order, beside that of the weights
TOGETHER = 0.5


class Shrinkage(NamedTuple):
    """A problem whose weights have a prior that is sites."""

    #: its prior is the normal one that the sites begin with
    problem: LinearProblem
    of_weights: PriorSites

    def with_prior(self, prior: Prior) -> Shrinkage:
        """The same rows with another prior."""
        old = self.of_weights
        intercept = 1.0 / old.start.precision[-1] if self.problem.intercept else None
        return _with(self.problem, prior, old.visits, intercept)

    def engine(self) -> WeightEngine:
        """The engine in the form that suits the shape of the rows."""
        kind = ByWeights if self.problem.wide is None else ByRows
        return kind(self.problem, self.of_weights, exact_rows(self.problem))

    def run(self, start: Any = None, callback: Any = None, progress: Any = False) -> Fit:
        return run_from(
            self.engine(),
            self.problem.schedule,
            start,
            guess=is_guess(start, self.problem),
            callback=callback,
            progress=progress,
        )

    def unswept(self) -> ShrunkState:
        """The state before the first sweep."""
        engine = self.engine()
        return engine.settle(engine.init(None))


def shrinkage_of(problem: LinearProblem, prior: Any, intercept: float | None) -> Shrinkage:
    """The problem of a prior at the door; raises where they do not go together.

    intercept: prior variance of the last weight, which has no site.
    """
    if not isinstance(prior, Prior):
        raise TypeError(
            f"prior is {_checks.describe(prior)}; allowed: an object of epfast.losses, "
            "SpikeAndSlab, LaplacePrior, StudentTPrior or Horseshoe"
        )
    schedule, X = problem.schedule, problem.data.X
    if schedule.power != 1.0:
        raise ValueError(
            f"power is {schedule.power:g} beside prior={prior!r}; allowed: 1, since its moments "
            "are those of t itself"
        )
    if problem.loss.latents != 1:
        raise ValueError(f"loss is {problem.loss!r} beside a prior=; allowed: one latent per row")
    if problem.wide is not None and 8 * X.shape[0] * X.shape[1] > MOST_BYTES:
        raise MemoryError(
            f"prior={prior!r} takes the rows as a dense matrix of {X.shape[0]} x {X.shape[1]} "
            f"numbers; allowed: up to {MOST_BYTES >> 30} GB"
        )
    wide = problem.wide is not None and type(schedule) is EP and schedule.order == "auto"
    if wide and _pull_at_each_other(problem, prior):
        schedule = dataclasses.replace(schedule, damping=min(TOGETHER, schedule.damping))
        problem = problem._replace(schedule=schedule)
    visits = np.flatnonzero(_has_entries(X))
    if intercept is not None:
        visits = visits[visits < X.shape[1] - 1]
    return _with(problem, prior, visits, intercept)


def _pull_at_each_other(problem: LinearProblem, prior: Prior) -> bool:
    """Whether sites of rows and of weights, each fitted anew after the other, swing.

    Labels by themselves do not say how large few weights are: that is for the prior, whose sites
    follow those of the rows by orders of magnitude where it has heavy tails.
    """
    return exact_rows(problem) is None and not (
        problem.loss.log_concave is False or prior.log_concave
    )


def _with(
    problem: LinearProblem, prior: Prior, visits: NDArray[np.intp], intercept: float | None
) -> Shrinkage:
    d = len(problem.prior.shift)
    precision = np.full(d, 1.0 / prior.spread)
    if intercept is not None:
        precision[-1] = 1.0 / intercept
    sites = Sites(precision, np.zeros(d), 0.5 * np.log(precision / (2.0 * math.pi)))
    normal = prior_of(precision, np.zeros(d), problem.wide is None)
    problem = problem._replace(prior=normal, base=normal)
    return Shrinkage(problem, PriorSites(prior, sites, visits))


def _has_entries(X: Any) -> NDArray[np.bool_]:
    """(d,), whether a column is more than zeros: else its weight keeps its prior, exactly."""
    if hasattr(X, "indptr"):
        return np.bincount(X.indices[X.data != 0.0], minlength=X.shape[1]) > 0
    return np.asarray((X != 0).any(axis=0))


def exact_rows(problem: LinearProblem) -> Sites | None:
    """As :func:`exact_sites`, of the rows of a problem."""
    return exact_sites(problem.loss, problem.data.y, problem.data.weights)

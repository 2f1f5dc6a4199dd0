"""Problems with a prior that is a site per weight."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast.gaussian.problem import PriorSites, Problem, prior_of
from epfast.gaussian.wide import MOST_BYTES
from epfast.inference import Sites
from epfast.losses import Prior
from epfast.schedules import EP

#: damping of the sites of rows in automatic order, beside that of the weights
TOGETHER = 0.5


def with_prior_sites(problem: Problem, prior: Any, intercept: float | None) -> Problem:
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
    return with_prior(problem, prior, visits, intercept)


def _pull_at_each_other(problem: Problem, prior: Prior) -> bool:
    """Whether sites of rows and of weights, each fitted anew after the other, swing.

    Labels by themselves do not say how large few weights are: that is for the prior, whose sites
    follow those of the rows by orders of magnitude where it has heavy tails.
    """
    return problem.exact_sites() is None and not (
        problem.loss.log_concave is False or prior.log_concave
    )


def with_prior(
    problem: Problem, prior: Prior, visits: NDArray[np.intp], intercept: float | None
) -> Problem:
    """The same rows with a prior whose sites begin at a normal one; not checked."""
    d = len(problem.prior.shift)
    precision = np.full(d, 1.0 / prior.spread)
    if intercept is not None:
        precision[-1] = 1.0 / intercept
    sites = Sites(precision, np.zeros(d), 0.5 * np.log(precision / (2.0 * math.pi)))
    normal = prior_of(precision, np.zeros(d), problem.wide is None)
    found = PriorSites(prior, sites, visits)
    return problem._replace(prior=normal, base=normal, prior_sites=found)


def _has_entries(X: Any) -> NDArray[np.bool_]:
    """(d,), whether a column is more than zeros: else its weight keeps its prior, exactly."""
    if hasattr(X, "indptr"):
        return np.bincount(X.indices[X.data != 0.0], minlength=X.shape[1]) > 0
    return np.asarray((X != 0).any(axis=0))

"""Wide data, fewer rows than columns: EP on h = X theta works with matrices of order n.

The prior that the rows give h is N(X m, X S X'), see :class:`epfast.gaussian.prior.CenteredPrior`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from epfast.gaussian.notes import is_mapped
from epfast.gaussian.prior import WeightPrior, prior_of
from epfast.gaussian.problem import Problem
from epfast.gaussian.state import MOST_BYTES, in_memory
from epfast.schedules import EP

#: largest product of a row's prior mean and variance, of which EP loses about so many roundings:
#: the log evidence of 16 fits of 30 rows and 60 columns is 4e-5 nats off at 2e6, .009 at 2e7, and
#: .5 at 2e8
FAR = 1e7


def is_for_wide(choices: Any, X: Any) -> bool:
    """Whether a fit by these choices takes the n x n form.

    Scalar sites of EP with a full covariance, fewer rows than columns; not in chunks, nor relaxed.
    """
    schedule = choices.schedule
    if not (isinstance(schedule, EP) and choices.posterior == "full"):
        return False
    by_rows = choices.batch_size is None and choices.loss.latents == 1
    if not by_rows or choices.scheme.relaxes or not hasattr(X, "shape"):
        return False
    return schedule.order != "chunked" and is_wide(*X.shape)


def is_wide(n: int, d: int) -> bool:
    """Whether n rows of d columns are wide.

    Sweeps of order n take less time up to n = 1.5 d, but from n = d on the d x d form has shorter
    predictions, and keeps no rows.
    """
    return n < d


def own_rows(X: Any, is_copy: bool) -> Any:
    """X, which predictions need, as nobody else changes it: a copy, but of a read-only map."""
    if is_copy:
        return X
    if hasattr(X, "indptr"):
        return X.copy()
    return X if is_mapped(X) and not X.flags.writeable else np.array(X, order="C")


def in_best_form(problem: Problem) -> Problem:
    """The same problem, in the d x d form where the prior mean of a row costs too many digits."""
    prior, X = problem.prior, problem.data.X
    if not prior.shift.any():
        return problem
    with np.errstate(over="ignore", invalid="ignore"):
        far = not (np.abs(prior.mean_of_rows(X)) * prior.variance_of_rows(X) <= FAR).all()
    return in_d_by_d(problem) if far and 8 * X.shape[1] ** 2 <= MOST_BYTES else problem


def in_d_by_d(problem: Problem) -> Problem:
    """The same problem in the d x d form. O(d^2) numbers."""
    prior = problem.prior
    normal = prior.in_form(WeightPrior)
    if prior.precision.ndim == 1:
        in_memory("a matrix of the weights", len(prior.shift), "the n x n form makes none")
    if prior.precision.ndim == 1 or prior.center is not None:
        own = prior.precision, normal.mean, True, prior.center, prior.intercept
        normal = prior_of(*own)
    return problem.with_prior(normal)._replace(posterior="full")

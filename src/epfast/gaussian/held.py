"""How the log evidence changes with hyper-parameters, what a fit has held: sites, or cavities.

With the sites held the model is a linear one with Gaussian noise, of known log evidence for each
prior. With the cavities held, that of other likelihoods is a sum of integrals over the rows. Both
have the slopes of the log evidence at a fixed point of EP, and second derivatives for Newton's
steps to its maximum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast._arrays import Array
from epfast.gaussian.engines.kernel import GPState
from epfast.gaussian.problem import Problem
from epfast.gaussian.wide_posterior import WidePosterior
from epfast.inference.learning import STEP
from epfast.losses import Loss

#: most steps of Newton's method, the last one, and the longest one in a principal direction: 400
#: fits with one to five hyper-parameters take 2,665 runs to their modes, 2,804 and 2,850 with .75
#: and 3 for the longest
STEPS, LAST, LONGEST = 50, 1e-6, 1.5
#: slope in nats below which a variance may go to the end of its range, and how far its second
#: derivative may be from that of an exponential: 272 classifiers and regressors take 139,736
#: sweeps, 142,041 without this, 139,534 and 139,521 with .01 and .1 for the first, and 139,895
#: and 139,413 with .1 and .6 for the second. The 400 fits are the same
LEAST_SLOPE, FADES = 0.03, 0.3
#: no curvature
TINY = 1e-300


def with_noise(post: Any, problem: Problem) -> Any:
    """The fit of a problem with Gaussian noise, from one with other variances, without a sweep.

    Its sites are known, and their sum over the rows is that of the other fit but for a factor.

    Parameters
    ----------
    post : FullPosterior
        Of the same rows, with Gaussian noise.
    problem : Problem
        With another prior variance or variance of the noise.
    """
    sites: Any = problem.exact_sites()
    before = post.problem
    if isinstance(post, WidePosterior):
        return replace(post, state=GPState(sites, post.state.sweeps), problem=problem)
    noise: Any = problem.loss
    share = before.loss.variance / noise.variance
    old, new = before.base, problem.base
    state = post.state._replace(
        precision=share * (post.state.precision - old.precision) + new.precision,
        shift=share * (post.state.shift - old.shift) + new.shift,
        sites=sites,
        log_scale=new.log_scale + float(sites.log_scale.sum()),
    )
    return replace(post, state=state, problem=problem)


def curvature(mean: Array, covariance: Array, groups: NDArray[np.intp], variances: Array) -> Array:
    """Second derivatives of the log evidence by logs of k prior variances, the sites held, (k, k).

    mean, covariance: of the weights under the posterior, whose groups are 0 to k - 1.
    """
    # in units of the prior sd, where nothing is out of range
    sd = np.sqrt(variances)[groups]
    mean, covariance = mean / sd, covariance / np.outer(sd, sd)
    with_group = np.eye(len(variances))[groups]
    squares = (mean**2 + covariance.diagonal()) @ with_group
    products = covariance * (np.outer(mean, mean) + 0.5 * covariance)
    return np.asarray(with_group.T @ products @ with_group - 0.5 * np.diag(squares))


class Chart(NamedTuple):
    """Numbers of a loss of which a row has few, such as cuts: those at both ends of its class.

    There are q of them, functions of p free numbers near u. They are in groups, of each of which a
    row has one at most, so that all of a group are moved at once.
    """

    #: the loss with such numbers (q,)
    loss_at: Callable[[Array], Loss]
    #: (q,) each: the numbers at u, and small changes of them
    at: Array
    steps: Array
    #: (q,), the group of each
    groups: NDArray[np.intp]
    #: which numbers rows of responses (n, w) have of each group, (n, groups): q where none
    of_rows: Callable[[Array], NDArray[np.intp]]
    #: (q, p) each: slopes by the free numbers, and second derivatives by each of them
    slopes: Array
    bends: Array

    def gains(self, posteriors: list[Any]) -> tuple[Array, Array]:
        """Slopes (q,) and second derivatives (q, q) by these numbers, the cavities held."""

        def by_row(*groups: int, sign: float = 1.0) -> Array:
            moved = sign * np.where(np.isin(self.groups, groups), self.steps, 0.0)
            loss = self.loss_at(self.at + moved)
            return np.concatenate([post.log_integrals(loss) for post in posteriors])

        q, count = len(self.at), int(self.groups.max()) + 1
        rows = np.concatenate([self.of_rows(post.problem.data.y) for post in posteriors])
        slopes, bent = np.zeros(q + 1), np.zeros((q + 1, q + 1))
        here, size = by_row(), np.append(self.steps, 1.0)
        on = [by_row(group) for group in range(count)]
        for i in range(count):
            at, back = rows[:, i], by_row(i, sign=-1.0)
            np.add.at(slopes, at, (on[i] - back) / (2.0 * size[at]))
            np.add.at(bent, (at, at), (on[i] + back - 2.0 * here) / size[at] ** 2)
            for j in range(i):
                one, both = rows[:, j], by_row(i, j)
                second = (both - on[i] - on[j] + here) / (size[at] * size[one])
                np.add.at(bent, (at, one), second)
                np.add.at(bent, (one, at), second)
        return slopes[:q], bent[:q, :q]


def gains(
    posteriors: list[Any],
    loss_at: Callable[[Array], Loss],
    u: Array,
    bounds: Array,
    chart: Chart | None = None,
) -> tuple[Array, Array]:
    """How the log evidence changes with the loss at u (p,), the cavities of the fits held.

    chart: at u, by which a few integrals of each row do. None: O(p^2) of them.

    Returns
    -------
    slopes (p,) and second derivatives (p, p), by differences. They are 0 for what is not in bounds
    (p, 2).

    Raises
    ------
    FloatingPointError
        If a cavity is improper.
    """
    p, (low, high) = len(u), bounds.T
    slopes, bent, free = np.zeros(p), np.zeros((p, p)), np.flatnonzero(low < high)
    if len(free) == 0:
        return slopes, bent
    if chart is not None:
        by_number, second = chart.gains(posteriors)
        slopes[free] = (by_number @ chart.slopes)[free]
        whole = chart.slopes.T @ second @ chart.slopes + np.diag(by_number @ chart.bends)
        bent[np.ix_(free, free)] = whole[np.ix_(free, free)]
        return slopes, bent
    steps, (i, j) = STEP * np.eye(p)[free], np.tril_indices(len(free), -1)
    moves = np.concatenate([np.zeros((1, p)), steps, -steps, steps[i] + steps[j]])
    losses = [loss_at(u + move) for move in moves]
    values = np.array([sum(p.log_integrals(loss).sum() for p in posteriors) for loss in losses])
    (here,), on, back, both = np.split(values, np.cumsum([1, len(free), len(free)]))
    slopes[free] = (on - back) / (2.0 * STEP)
    bent[free, free] = (on + back - 2.0 * here) / STEP**2
    bent[free[i], free[j]] = bent[free[j], free[i]] = (both - on[i] - on[j] + here) / STEP**2
    return slopes, bent


def newton_step(
    u: Array, slopes: Array, bent: Array, bounds: Array, to_ends: Any = False, power: float = 1.0
) -> Array | None:
    """Where Newton's step leads from u (p,), uphill in each principal direction, in bounds (p, 2).

    None: derivatives are not known.

    bent: second derivatives. to_ends (p,): whether u is the log of a prior variance, over
    ``power``, that may go to the end of its range. Where such a variance hardly matters, the slope
    is in proportion to it or to its inverse, and all of Newton's steps would be as long.
    """
    if not (np.isfinite(slopes).all() and np.isfinite(bent).all()):
        return None
    outwards = np.where(slopes > 0.0, u >= bounds[:, 1], u <= bounds[:, 0])
    free = np.flatnonzero(~outwards & (bounds[:, 0] < bounds[:, 1]))
    values, vectors = np.linalg.eigh(-bent[np.ix_(free, free)])
    along = slopes[free] @ vectors
    there = u.copy()
    there[free] += vectors @ (along / np.maximum(values, np.abs(along) / LONGEST + TINY))
    size = power * np.abs(slopes)
    fades = to_ends & (size < LEAST_SLOPE) & (np.abs(bent.diagonal() + size) < FADES * size)
    there = np.where(fades, np.where(slopes > 0.0, bounds[:, 1], bounds[:, 0]), there)
    return np.asarray(np.clip(there, *bounds.T))


def newton(
    function: Callable[[Array], tuple[float, Array, Array]], u: Array, bounds: Array
) -> Array:
    """A local maximum within bounds (p, 2), by Newton's steps, each halved until it rises.

    function: value, slopes and second derivatives. A value of -inf, or NaN, is worse than all.
    """
    u = np.clip(u, *bounds.T)
    value, slopes, bent = function(u)
    for _ in range(STEPS):
        aim = newton_step(u, slopes, bent, bounds)
        if aim is None:
            break
        if np.abs(aim - u).max(initial=0.0) <= LAST:
            return aim
        share = 1.0
        reached: Any = (np.nan,)
        while not reached[0] >= value and share * np.abs(aim - u).max() > LAST:
            there = u + share * (aim - u)
            reached = function(there)
            share *= 0.5
        if not reached[0] >= value:
            break
        u, (value, slopes, bent) = there, reached
    return u

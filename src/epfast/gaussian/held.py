"""How the log evidence changes with numbers of a likelihood, the cavities of a fit held.

It is then a sum of integrals over the rows, with the slopes of the log evidence at a fixed point of
EP. Of Gaussian noise it is known, and so are the fits themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast._arrays import Array
from epfast.gaussian.forms.kernel import GPState
from epfast.gaussian.problem import Problem
from epfast.gaussian.wide_posterior import WidePosterior
from epfast.inference.learning import STEP
from epfast.losses import Loss


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

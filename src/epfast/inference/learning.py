"""How the log evidence changes with parameters of the likelihood, at a fixed point of EP.

The sites do not contribute there: it is a sum of integrals over the rows, at fixed cavities.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from epfast._arrays import Array
from epfast._core.tilted import TiltedMoments
from epfast.inference.loop import RESIDUAL
from epfast.inference.records import ConvergenceWarning, Sites, check_proper, warn_user
from epfast.losses import Loss
from epfast.schedules import FilledSchedule

#: change of the log of a parameter, of the differences
STEP = 1e-3
#: of the fourth order: multiples of the step, and their weights
STENCIL = ((-2.0, 1.0 / 12.0), (-1.0, -8.0 / 12.0), (1.0, 8.0 / 12.0), (2.0, -1.0 / 12.0))


class ResponsesOfRows(Protocol):
    """What is read of the data of a fit."""

    @property
    def y(self) -> Array: ...

    @property
    def weights(self) -> Array | None: ...


class SchemeOfRows(Protocol):
    """What is read of a scheme."""

    @property
    def relaxes(self) -> bool: ...

    def tilted(self, loss: Loss, /) -> TiltedMoments: ...


class ProblemOfRows(Protocol):
    """What is read of a problem with its rows."""

    @property
    def data(self) -> ResponsesOfRows: ...

    @property
    def loss(self) -> Loss: ...

    @property
    def scheme(self) -> SchemeOfRows: ...

    @property
    def schedule(self) -> FilledSchedule: ...


class WithCavities(Protocol):
    """What is read of a posterior whose rows have cavities."""

    @property
    def problem(self) -> ProblemOfRows: ...

    @property
    def log_integrals(self) -> Callable[[Loss], Array]: ...


def log_integrals(
    problem: ProblemOfRows, sites: Sites, mean: Array, variance: Array
) -> Callable[[Loss], Array]:
    """log Z_i of the rows, (n,), at the cavities of a fixed point, as a function of the loss.

    Times the weights of the rows. NaN in all of them where one is out of range.

    Parameters
    ----------
    problem : Problem
        With its rows.
    sites, mean, variance
        Scalar sites, and the latent values of the rows under the posterior.
    """
    check_stationary(problem)
    power, y, weights = problem.schedule.power, problem.data.y, problem.data.weights
    ones = np.ones(len(y))
    copies = ones if weights is None else np.where(weights > 0.0, np.maximum(weights, 1.0), 0.0)
    exponent = ones if weights is None else np.minimum(weights, 1.0)
    counts = copies > 0.0
    share = power / np.where(counts, copies, 1.0)
    m, v = sites.cavities(mean, variance, np.where(counts, share, 0.0))
    check_proper(v)
    y_of, m, v, powers = (np.ascontiguousarray(x[counts]) for x in (y, m, v, power * exponent))
    lZ, dlZ, d2lZ = np.empty((3, len(y_of)))

    def by_row(changed: Loss) -> Array:
        lost = problem.scheme.tilted(changed).many(y_of, m, v, powers, lZ, dlZ, d2lZ)
        result = np.zeros(len(y))
        result[counts] = np.nan if lost else (copies / power)[counts] * lZ
        return result

    return by_row


def loss_gradient(
    problem: ProblemOfRows, sites: Sites, mean: Array, variance: Array
) -> dict[str, Array | float]:
    """Slopes of the log evidence by the learnable parameters of the loss.

    At a fixed point the sites do not contribute: what is left is the sum over the rows of
    d log Z_i / d theta at fixed cavities, here by differences of the tilted moments.

    The arguments are those of :func:`log_integrals`.
    """
    loss, by_row = problem.loss, log_integrals(problem, sites, mean, variance)
    result: dict[str, Array | float] = {}
    for name in loss.learnable:
        value = np.asarray(getattr(loss, name), dtype=float)
        own = loss.numbers_of(problem.data.y) if value.ndim else None
        several, steps = np.atleast_1d(value), loss.steps(name, STEP)
        # of a row that depends on two neighbours, every second number is moved at once
        count = len(several) if own is None else 2
        slopes = np.zeros(len(several))
        for first in range(count):
            moves = np.where(np.arange(len(several)) % count == first, steps, 0.0)
            change = np.zeros(len(problem.data.y))
            for multiple, weight in STENCIL:
                moved = several + multiple * moves
                one = moved if value.ndim else float(moved[0])
                change += weight * by_row(loss.with_parameters(**{name: one}))
            if own is None:
                slopes[first] = change.sum() / steps[first]
                continue
            for blocks in own.T:
                rows = (blocks % 2 == first) & (blocks >= 0) & (blocks < len(several))
                slopes += np.bincount(blocks[rows], change[rows], len(several)) / steps
        result[name] = slopes if value.ndim else float(slopes[0])
    return result


def check_stationary(problem: ProblemOfRows) -> None:
    """Refuse gradients of relaxed EP."""
    if problem.scheme.relaxes:
        raise ValueError(
            "the posterior is that of relaxed EP, whose log evidence is not stationary in the "
            "sites; allowed: a fit without relaxation"
        )


def note_residual(residual: float) -> None:
    """Warn the user, two callers up, of a gradient away from a fixed point."""
    if not residual <= RESIDUAL:
        warn_user(
            f"the gradient is taken at a residual of {residual:.2g}, where it is not that of the "
            "log evidence; fit with more sweeps or a smaller tolerance",
            ConvergenceWarning,
        )


class Chart(NamedTuple):
    """Numbers of a loss of which a row has few, such as cuts: those at both ends of its class.

    There are q of them, functions of p free numbers near u. They are in groups, of each of which a
    row has one at most, so that all of a group are moved at once.
    """

    #: the loss with such numbers (q,)
    loss_at: Callable[[Array], Loss]
    #: (q,) each: the numbers at u, and small changes of them
    numbers: Array
    steps: Array
    #: (q,), the group of each
    groups: NDArray[np.intp]
    #: which numbers rows of responses (n, w) have of each group, (n, groups): q where none
    of_rows: Callable[[Array], NDArray[np.intp]]
    #: (q, p) each: slopes by the free numbers, and second derivatives by each of them
    slopes: Array
    bends: Array

    def derivatives(self, posteriors: Sequence[WithCavities]) -> tuple[Array, Array]:
        """Slopes (q,) and second derivatives (q, q) by these numbers, at fixed cavities."""

        def by_row(*groups: int, sign: float = 1.0) -> Array:
            moved = sign * np.where(np.isin(self.groups, groups), self.steps, 0.0)
            loss = self.loss_at(self.numbers + moved)
            return np.concatenate([post.log_integrals(loss) for post in posteriors])

        q, count = len(self.numbers), int(self.groups.max()) + 1
        rows = np.concatenate([self.of_rows(post.problem.data.y) for post in posteriors])
        slopes, bent = np.zeros(q + 1), np.zeros((q + 1, q + 1))
        here, size = by_row(), np.append(self.steps, 1.0)
        on = [by_row(group) for group in range(count)]
        for i in range(count):
            own, back = rows[:, i], by_row(i, sign=-1.0)
            np.add.at(slopes, own, (on[i] - back) / (2.0 * size[own]))
            np.add.at(bent, (own, own), (on[i] + back - 2.0 * here) / size[own] ** 2)
            for j in range(i):
                one, both = rows[:, j], by_row(i, j)
                second = (both - on[i] - on[j] + here) / (size[own] * size[one])
                np.add.at(bent, (own, one), second)
                np.add.at(bent, (one, own), second)
        return slopes[:q], bent[:q, :q]


def derivatives_by_loss(
    posteriors: Sequence[WithCavities],
    loss_at: Callable[[Array], Loss],
    u: Array,
    bounds: Array,
    chart: Chart | None = None,
) -> tuple[Array, Array]:
    """How the log evidence changes with the loss at u (p,), at the fixed cavities of fits.

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
        by_number, second = chart.derivatives(posteriors)
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

"""How the log evidence changes with parameters of the likelihood, at a fixed point of EP."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from epfast._arrays import Array
from epfast.inference.loop import RESIDUAL
from epfast.inference.records import ConvergenceWarning, Sites, check_proper, warn_user

#: change of the log of a parameter, of the differences: with .01, 1e-4 and 1e-5 slopes of 20 fits
#: change by 2e-6, 8e-10 and 8e-9 of their size, or of 1, and with 1e-4 and .01 the log evidence of
#: 29 fits with hyper-parameters by 4e-9 and 4e-7 at most
STEP = 1e-3
#: of the fourth order: multiples of the step, and their weights
STENCIL = ((-2.0, 1.0 / 12.0), (-1.0, -8.0 / 12.0), (1.0, 8.0 / 12.0), (2.0, -1.0 / 12.0))


def check_stationary(problem: Any) -> None:
    """Refuse gradients of relaxed EP."""
    if problem.scheme is not None and problem.scheme.relaxes:
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


def log_integrals(
    problem: Any, sites: Sites, mean: Array, variance: Array
) -> Callable[[Any], Array]:
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
    rows = [np.ascontiguousarray(part[counts]) for part in (y, m, v, power * exponent)]
    lZ, *others = np.empty((3, len(rows[0])))

    def by_row(changed: Any) -> Array:
        lost = problem.scheme.tilted(changed).many(*rows, lZ, *others)
        result = np.zeros(len(y))
        result[counts] = np.nan if lost else (copies / power)[counts] * lZ
        return result

    return by_row


def loss_gradient(problem: Any, *at_rows: Any) -> dict[str, Any]:
    """Slopes of the log evidence by the learnable parameters of the loss.

    At a fixed point the sites do not contribute: what is left is the sum over the rows of
    d log Z_i / d theta at fixed cavities, here by differences of the tilted moments.

    The arguments are those of :func:`log_integrals`.
    """
    loss, by_row = problem.loss, log_integrals(problem, *at_rows)
    result: dict[str, Any] = {}
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
                given = moved if value.ndim else float(moved[0])
                change += weight * by_row(loss.with_parameters(**{name: given}))
            if own is None:
                slopes[first] = change.sum() / steps[first]
                continue
            for at in own.T:
                rows = (at % 2 == first) & (at >= 0) & (at < len(several))
                slopes += np.bincount(at[rows], change[rows], len(several)) / steps
        result[name] = slopes if value.ndim else float(slopes[0])
    return result

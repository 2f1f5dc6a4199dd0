"""L-BFGS that begins with small steps, and the root of the slopes where it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import linalg, optimize

from epfast._arrays import Array

#: a root of the slopes: most numbers that are free, steps of the differences, most steps, and the
#: accuracy
MOST_FREE, STEP, ROUNDS, ROOT = 8, 1e-4, 12, 1e-11
#: distance from a bound that counts as none
END = 1e-9


def descend(
    objective: Callable[[Array], tuple[float, Array]],
    start: Array,
    bounds: Array,
    options: dict[str, Any],
) -> None:
    """Minimise within bounds (p, 2). The objective, which also gives its slopes, keeps the best.

    Within bounds on all sides the first step of L-BFGS-B is minus the slopes, often to a far corner
    of the box, where fits fail. In units in which these are as long as their root it is at most 1.
    """
    start = np.clip(start, *bounds.T)
    first: Any = objective(start)
    unit: Any = max(1.0, float(np.linalg.norm(first[1]))) ** -0.5

    def scaled(z: Array) -> tuple[float, Array]:
        nonlocal first
        value, slopes = objective(np.clip(unit * z, *bounds.T)) if first is None else first
        first = None  # the start was looked at above
        return value, unit * slopes

    optimize.minimize(
        scaled,
        start / unit,
        jac=True,
        method="L-BFGS-B",
        bounds=(bounds.T / unit).T,
        options=options | {"gtol": float(np.min(unit)) * options["gtol"]},
    )


def root_of_slopes(
    evaluate: Callable[[Array], tuple[float, Array] | None],
    u: Array,
    bounds: Array,
    *,
    enough: bool = True,
) -> tuple[Array, Array]:
    """Where the slopes of the free numbers are 0, by secants, or u. And all slopes there.

    Values of the evidence locate a maximum to half of their digits only.

    evaluate: the log evidence and its slopes, or None where no fit holds. enough: whether these are
    good enough. Else there is no step.
    """
    here = evaluate(u)
    if here is None:
        return u, np.full(len(u), np.inf)
    all_slopes = here[1]
    inside = (u > bounds[:, 0] + END) & (u < bounds[:, 1] - END)
    free = np.flatnonzero(inside)
    if not 0 < len(free) <= MOST_FREE or not enough:
        return u, all_slopes
    bent = np.empty((len(free), len(free)))
    for j, k in enumerate(free):
        moved = u.copy()
        moved[k] += STEP
        there = evaluate(moved)
        if there is None:
            return u, all_slopes
        bent[j] = (there[1] - all_slopes)[free] / STEP
    bent = 0.5 * (bent + bent.T)
    if linalg.eigvalsh(bent)[-1] >= 0.0:  # no maximum: a flat direction
        return u, all_slopes
    for _ in range(ROUNDS):
        step, moved = -linalg.solve(bent, all_slopes[free]), u.copy()
        moved[free] += step
        if not ((moved >= bounds[:, 0]) & (moved <= bounds[:, 1])).all():
            break
        there = evaluate(moved)
        if there is None:
            break
        if not np.abs(there[1][free]).max() < np.abs(all_slopes[free]).max():
            break
        change = (there[1] - all_slopes)[free] - bent @ step
        bent += np.outer(change, step) / (step @ step)  # Broyden
        u, all_slopes = moved, there[1]
        if np.abs(step).max() < ROOT:
            break
    return u, all_slopes

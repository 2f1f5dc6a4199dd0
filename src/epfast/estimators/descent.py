"""L-BFGS that begins with small steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import optimize

from epfast._arrays import Array


def descend(
    objective: Callable[[Array], tuple[float, Array]],
    start: Array,
    bounds: Array,
    options: dict[str, Any],
) -> None:
    """Minimise within bounds (p, 2); the objective, which also gives its slopes, keeps the best.

    Within bounds on all sides the first step of L-BFGS-B is minus the slopes, often to a far corner
    of the box, where fits fail. In units in which these are as long as their root it is at most 1.
    """
    start = np.clip(start, *bounds.T)
    first: Any = objective(start)
    unit = max(1.0, float(np.linalg.norm(first[1]))) ** -0.5

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
        bounds=bounds / unit,
        options=options | {"gtol": unit * options["gtol"]},
    )

"""Points about the mode of a hyper-parameter, for an average over it.

Each point has a fit by EP, and its weight is prior density times evidence: after Rue, Martino &
Chopin (2009), with EP in place of their Laplace approximation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple


class HyperPoint(NamedTuple):
    """A value of a hyper-parameter."""

    #: its logarithm
    u: float
    #: log of prior density times evidence, over u
    value: float
    #: what was fitted there
    fit: Any


def around(
    mode: HyperPoint,
    fitted: Callable[[float, Any], HyperPoint | None],
    step: float,
    drop: float,
    least: float = -math.inf,
    most: int = 9,
) -> list[HyperPoint]:
    """Points on both sides of a mode, until the value has fallen by ``drop``; sorted by u.

    Parameters
    ----------
    mode : HyperPoint
    fitted : callable
        The point at u, from the fit next to it; None if there is no fit.
    step : float
        Distance of the points.
    drop : float
        In nats.
    least : float
        No u is below this.
    most : int
        Points on a side.
    """
    found = [mode]
    for side in (-step, step):
        near = mode
        for k in range(1, most + 1):
            u = mode.u + k * side
            here = fitted(u, near.fit) if u >= least else None
            if here is None:
                break
            found.append(here)
            if here.value < mode.value - drop:
                break
            near = here
    return sorted(found, key=lambda point: point.u)

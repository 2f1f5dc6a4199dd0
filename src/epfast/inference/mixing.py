"""Anderson mixing: the next point of a fixed-point iteration, from its last steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from epfast._arrays import Array
from epfast.inference.records import Sites

#: the largest coefficient of a step that says something
LARGEST_SHARE = 100.0
#: the largest condition of the Gram matrix of the differences between changes
CONDITION = 1e10
#: sweeps that are mixed
DEPTH = 5


class Step(NamedTuple):
    """A sweep: the sites after it, and how far it moved, (k,)."""

    sites: Sites
    moves: Array


def with_step(steps: tuple[Step, ...], sites: Sites, moves: Array) -> tuple[Step, ...]:
    """The last sweeps and this one, or this one alone where it did not move less than the last."""
    less = not steps or moves @ moves < steps[-1].moves @ steps[-1].moves
    return (*(steps if less else ()), Step(sites, moves))[-DEPTH:]


def mixed(steps: tuple[Step, ...]) -> Sites | None:
    """The sites from which the next sweep is best begun. None: they are not known."""
    share = shares_of([step.moves for step in steps]) if len(steps) > 1 else None
    if share is None:
        return None

    def combined(*arrays: Array) -> Array:
        result: Array = np.zeros_like(arrays[0])
        with np.errstate(all="ignore"):
            for number, array in zip(share, arrays, strict=True):
                result += number * array
        return result

    return Sites(*map(combined, *(step.sites for step in steps)))


def shares_of(moves: Sequence[Array], largest: float = LARGEST_SHARE) -> Array | None:
    """Coefficients of steps with these changes, which sum to 1. None if they are ill-conditioned.

    The combined change is the shortest. A linear map would have its fixed point there
    (Walker & Ni 2011).

    Parameters
    ----------
    moves : sequence of ndarray of shape (n,)
        Two or more.
    largest : float
        The largest coefficient that says something.

    Returns
    -------
    ndarray of shape (k,) or None
    """
    with np.errstate(all="ignore"):  # of a run that diverges
        products = np.array([[a @ b for b in moves] for a in moves])
        # products of the differences with each other and with the last change
        changes = np.diff(products, axis=0)
        gram, last = np.diff(changes, axis=1), changes[:, -1]
    if not np.isfinite(gram).all():
        return None
    values, vectors = np.linalg.eigh(gram)
    # a direction of almost no length has no information
    kept = values > values[-1] / CONDITION
    back = vectors[:, kept] / values[kept] @ (vectors[:, kept].T @ last)
    share = np.append(back, 1.0) - np.append(0.0, back)
    return share if np.abs(share).max() <= largest else None

"""Responses of every kind: which of them a loss takes is found by trying, so that no list is kept.

For the batteries over ``epfast.losses.NAMED``.
"""

from typing import NamedTuple

import numpy as np


class Kind(NamedTuple):
    """Responses of a kind."""

    #: ``draw(rng, n)``: what a user gives for n rows
    draw: object
    #: all there are, as a user gives them, for sums over y; None: a continuum
    support: object
    #: of these, as numbers
    numbers: object


def _trials(rng, n):
    trials = rng.integers(1, 9, n)
    return np.stack([rng.binomial(trials, 0.4), trials], axis=1)


def _intervals(rng, n):
    lower = rng.normal(size=n)
    upper = lower + rng.exponential(size=n)
    kind = rng.integers(0, 4, n)
    upper = np.where(kind == 1, np.inf, np.where(kind == 3, lower, upper))
    return _short(np.stack([np.where(kind == 0, -np.inf, lower), upper], axis=1))


def _short(numbers):
    """Numbers that are the same in single precision."""
    return numbers.astype(np.float32).astype(np.float64)


#: each takes less than those before it, so that the first that a loss takes is its own
KINDS = {
    "real": Kind(lambda rng, n: _short(rng.normal(size=n)), None, None),
    "positive": Kind(lambda rng, n: _short(rng.gamma(2.0, size=n)), None, None),
    "counts": Kind(lambda rng, n: rng.poisson(2.0, n), np.arange(4000), np.arange(4000)),
    "classes": Kind(lambda rng, n: rng.permutation(np.arange(n) % 3), *2 * [np.arange(3)]),
    "labels": Kind(lambda rng, n: rng.permutation(np.resize([-1, 1], n)), *2 * [np.array([-1, 1])]),
    "intervals": Kind(_intervals, None, None),
    "trials": Kind(_trials, np.array([[0, 1], [1, 1]]), np.array([0, 1])),
}


def kind_of(loss):
    """The kind of response that a loss takes."""
    for kind in KINDS.values():
        try:
            loss.responses("y", kind.draw(np.random.default_rng(0), 50), 50)
        except (ValueError, TypeError):
            continue
        return kind
    raise AssertionError(f"{loss!r} takes none of {', '.join(KINDS)}: add its kind")


def example(loss, n, seed=0):
    """Responses that a loss takes, as a user gives them."""
    return kind_of(loss).draw(np.random.default_rng(seed), n)

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


#: each takes less than those before it, so that the first that a loss takes is its own
KINDS = {
    "real": Kind(lambda rng, n: rng.normal(size=n), None, None),
    "positive": Kind(lambda rng, n: rng.gamma(2.0, size=n), None, None),
    "counts": Kind(lambda rng, n: rng.poisson(2.0, n), np.arange(400), np.arange(400)),
    "labels": Kind(lambda rng, n: rng.permutation(np.resize([-1, 1], n)), *2 * [np.array([-1, 1])]),
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

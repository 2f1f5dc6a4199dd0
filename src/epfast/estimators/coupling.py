"""Probabilities of several classes, from log odds of each class against the rest.

The answers p_k, class k or not, do not add up to 1. Two ways to combine them are common. The one
takes them as they are, and normalises: p(k) in proportion to p_k. The other takes them as
independent, given that exactly one of them is yes: p(k) in proportion to p_k prod_{j != k}
(1 - p_j), that is to the odds p_k / (1 - p_k). The one is right where the answers are
probabilities of the classes already. The other is right where no plane separates a class from the
rest, though planes separate each two: there p_k is near 1/2 whatever x is, and what the others
deny is what is known. Between them lie p_k / (1 - p_k)^a, whose log probability of a label is
concave in a. The rows that a fit has left out choose a, the *coupling*: a maximises the sum of
their log probabilities less a, which stands for a prior density in proportion to exp(-a). Without
it labels that x says nothing of would draw a at random, since there the sum is flat to a nat.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from epfast._arrays import Array
from epfast.inference.report import leave_one_out

__all__ = ["best", "left_out", "log_probabilities", "tally"]

#: where the score of a coupling is summed
GRID = np.linspace(0.0, 1.0, 9)
#: a probability of 1 leaves odds that are finite
LEAST_LOG = -1e-300


def log_probabilities(scores: Array, coupling: float = 0.0) -> Array:
    """Of classes, (n, 2) or (n, k), from log odds, (n,) or (n, k): normalised."""
    if scores.ndim == 1:
        return np.asarray(special.log_expit(np.stack([-scores, scores], axis=1)))
    return _normalised(*_answers(scores), coupling).T.copy()


def _answers(scores: Array) -> tuple[Array, Array]:
    """log p_k and log(1 - p_k), (k, n) each."""
    scores = np.ascontiguousarray(scores.T)
    return special.log_expit(scores), special.log_expit(-scores)


def _normalised(yes: Array, no: Array, coupling: float) -> Array:
    """Log probabilities of the classes, (k, n)."""
    logs = yes - coupling * no
    logs -= logs.max(axis=0)
    return np.asarray(logs - np.log(np.exp(logs).sum(axis=0)))


def left_out(posteriors: list[Any], index: NDArray[np.intp]) -> Array | None:
    """Log odds of each row under the other rows, (n, k). None: the sites do not give them.

    index: the class of each row, (n,).
    """
    scores = np.empty((len(index), len(posteriors)))
    for k, post in enumerate(posteriors):
        right = leave_one_out(post)
        if right is None:
            return None
        right = np.minimum(right, LEAST_LOG)
        odds = right - np.log(-np.expm1(right))
        scores[:, k] = np.where(index == k, odds, -odds)
    return scores if np.isfinite(scores).all() else None


def tally(scores: Array | None, index: NDArray[np.intp], weights: Array | None) -> Array:
    """Summed log probability of the labels by each coupling of GRID. 0 without scores."""
    if scores is None:
        return np.zeros(len(GRID))
    rows = np.arange(len(index))
    share = np.ones(len(index)) if weights is None else weights
    answers = _answers(scores)
    return np.array([share @ _normalised(*answers, a)[index, rows] for a in GRID])


def best(sums: Array) -> float:
    """The coupling of the largest sum less itself, by the parabola through the three about it."""
    sums = sums - GRID
    k = int(np.argmax(sums))
    middle = int(np.clip(k, 1, len(GRID) - 2))
    below, here, above = sums[middle - 1 : middle + 2]
    bend = below - 2.0 * here + above
    if not bend < 0.0:  # a line, or no rows
        return float(GRID[k])
    vertex = GRID[middle] + 0.5 * (GRID[1] - GRID[0]) * (below - above) / bend
    return float(np.clip(vertex, 0.0, 1.0))

"""A dictionary of tuples: widths by evidence, rows by pivoted Cholesky.

The kernel is Gaussian in coordinates of messages, each divided by a width. In Cholesky features of
the dictionary a Gaussian process is a Bayesian linear regression.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy import linalg

from epfast._arrays import Array
from epfast.operators.regression import (
    PivotedCholesky,
    Ridge,
    evidence_grid,
    pivoted_cholesky,
)

#: stored tuples that choose widths and noise
MOST_SEEN = 160
#: overall widths of a first search, and of later ones, over the last
WIDE = np.exp2(np.arange(-1.5, 5.0, 0.5))
NEAR = np.exp2([-1.0, -0.5, 0.0, 0.5, 1.0])
#: widths of one kind of coordinate, over those of the others
APART = np.exp2([-2.0, -1.0, 1.0, 2.0])
#: variances of the noise over the amplitude: of an exact oracle, and of one with errors
ROUNDING = 10.0 ** np.arange(-10.0, -2.0, 2.0)
ERRORS = 10.0 ** np.arange(-7.0, 0.5, 0.5)
#: median of a chi-squared variable with one degree of freedom
MEDIAN = 0.4549364231195724
#: by which variances are larger than that: the process is too sure where there is no tuple yet
SAFETY = 12.0
#: a quantile of the squares of what is foreseen, and of a chi-squared variable
QUANTILE, TAIL = 0.9, 2.705543454095404


class Store(NamedTuple):
    """Tuples that the oracle has answered."""

    #: (n, k), coordinates of the messages and the datum
    x: Array
    #: (n, T)
    targets: Array
    #: (n,), squared standard errors over their mean, 1 where the oracle is exact
    relative: Array
    #: that mean. 0: the oracle is exact
    errors: float


class Widths(NamedTuple):
    """What the evidence has chosen."""

    #: (k,)
    widths: Array
    #: variance of the noise over the amplitude
    noise: float
    #: (T,), of the standardised targets
    amplitude: Array
    log_evidence: float


def choose(
    store: Store, z: Array, kinds: Array, base: Array, last: Widths | None, seed: int
) -> Widths:
    """Widths and noise by the evidence of at most MOST_SEEN tuples.

    Parameters
    ----------
    z : ndarray of shape (n, T)
        The targets in their units.
    kinds : ndarray of shape (k,)
        Which coordinates share a width, in units of their base.
    base : ndarray of shape (k,)
    last : Widths or None
        Where to search, of the last time.
    """
    n, k = store.x.shape
    which = np.arange(n)
    if n > MOST_SEEN:
        which = np.sort(np.random.default_rng(seed).permutation(n)[:MOST_SEEN])
    x = store.x[which] / base
    varies = (z[which] != z[which[0]]).any(axis=0)
    z = z[which][:, varies]
    groups = [kinds == kind for kind in np.unique(kinds)]
    squares = np.zeros((len(groups), len(x), len(x)))
    for square, group in zip(squares, groups, strict=True):
        for column in x[:, group].T:
            square += np.subtract.outer(column, column) ** 2
    noises = ERRORS if store.errors else ROUNDING
    amplitude = np.ones(store.targets.shape[1])
    if not z.shape[1]:
        return Widths(base, noises[0], amplitude, 0.0)

    # log evidence, widths of the groups, noise, and amplitudes of what varies
    best: tuple[float, Array, float, Array]
    best = -np.inf, np.ones(len(groups)), noises[0], np.ones(z.shape[1])

    def look(widths: Array) -> None:
        nonlocal best
        evidence, amplitudes = evidence_grid(squares, z, widths, noises, store.relative[which])
        i, j = np.unravel_index(int(evidence.argmax()), evidence.shape)
        if evidence[i, j] > best[0]:
            best = float(evidence[i, j]), widths[i], float(noises[j]), amplitudes[i, j]

    at = np.ones(len(groups))
    if last is not None:
        at = np.array([(last.widths / base)[group][0] for group in groups])
    look(np.outer(WIDE if last is None else NEAR, at))
    for _ in range(2 if len(groups) > 1 else 0):
        before = best[0]
        for j in range(len(groups)):
            tried = np.tile(best[1], (len(APART), 1))
            tried[:, j] *= APART
            look(tried)
        if best[0] <= before:
            break
    widths = np.empty(k)
    for ratio, group in zip(best[1], groups, strict=True):
        widths[group] = ratio * base[group]
    amplitude[varies] = best[3]
    return Widths(widths, best[2], amplitude, best[0])


def dictionary_of(x: Array, cap: int, near: float) -> PivotedCholesky:
    """At most cap of these rows, that explain the others' rows of the kernel to ``near``."""

    def column(i: int) -> Array:
        away = x - x[i]
        return np.asarray(np.exp(-0.5 * np.einsum("nk,nk->n", away, away)))

    return pivoted_cholesky(column, np.ones(len(x)), cap, near)


def foreseen(x: Array, z: Array, noise: Array, amplitude: Array, cap: int, near: float) -> Array:
    """By how much the first half of the tuples was too sure of the second, (T,)."""
    half = len(x) // 2
    first = x[:half]
    cholesky = dictionary_of(first, cap, near)
    batch = Ridge(cholesky.factor, z[:half], noise[:half] + cholesky.residual)
    cross = x[half:, None] - first[cholesky.pivots]
    kernel = np.exp(-0.5 * np.einsum("nrk,nrk->nr", cross, cross))
    phi = linalg.solve_triangular(cholesky.triangle, kernel.T, lower=True).T
    mean, spread = batch.predict(phi)
    variance = spread + np.maximum(1.0 - (phi**2).sum(axis=1), 0.0) + noise[half:]
    squares = (z[half:] - mean) ** 2 / (amplitude * variance[:, None])
    return np.asarray(np.quantile(squares, QUANTILE, axis=0) / TAIL)


def fitted(
    store: Store, z: Array, chosen: Widths, cap: int, near: float
) -> tuple[tuple[Array, ...], Array]:
    """The regression on a dictionary of the tuples, at most cap of them. O(n cap^2).

    near: share of a row of the kernel that the dictionary may leave out.

    Returns
    -------
    model : tuple of ndarray
        Rows over the widths (r, k), the lower Cholesky factor of their kernel matrix, mean (T, r)
        and covariance (r, r) of the weights.
    inflation : ndarray of shape (T,)
        By which predicted variances are too small, at least 1.
    """
    x = store.x / chosen.widths
    cholesky = dictionary_of(x, cap, near)
    noise = chosen.noise * store.relative
    # what the dictionary leaves out of a row is noise to it
    batch = Ridge(cholesky.factor, z, noise + cholesky.residual)
    residual, variance = batch.left_out()
    squares = residual**2 / (chosen.amplitude * variance[:, None])
    inflation = np.maximum(
        np.median(squares, axis=0) / MEDIAN, foreseen(x, z, noise, chosen.amplitude, cap, near)
    )
    inflation = np.where(inflation > 1.0, inflation, 1.0)
    model = x[cholesky.pivots], cholesky.triangle, batch.mean, batch.covariance()
    return model, inflation if store.errors else SAFETY * inflation

"""All sites of a process at once: EP's fixed point where the posterior is linear in its sites.

A factorisation gives the covariance Sigma and mean mu for sites (tau, nu). For other sites, dt and
dn away, cavities follow to first order from that one Sigma, in O(n^2):

    h_i = mu_i + sum_j Sigma_ij (dn_j - dt_j m_j) - u_i (dn_i - dt_i m_i),   m_j the tilted mean,
    u_i = Sigma_ii exp(-sum_{j != i} Sigma_ij^2 / Sigma_ii dt_j / (1 + Sigma_jj dt_j)),

and cavity i is N(h_i, u_i) without the old site i. Own sites enter exactly, the means of the others
too, and the variances to first order. EP on these cavities settles within some passes over Sigma,
mixed by Anderson's rule. The next factorisation, at its sites, is off by the square of the step.
So factorisations converge quadratically, where sweeps contract by a factor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from epfast._arrays import Array
from epfast._core.kernel_matrix import KernelMatrix
from epfast._core.tilted import TiltedMoments
from epfast.inference import Sites
from epfast.inference.mixing import shares_of

#: passes over Sigma at most, and the share of the first move that may be left then: of 76 steps in
#: 37 fits of 150 to 600 values that came to an end the longest had 15 passes, half of them six or
#: fewer. Of 180 fits of noisy steps 88 converge, and 84 where nothing may be left
PASSES, MOST_LEFT = 30, 0.05
#: passes that are mixed, once their change is at most this: with 3 or 12 no fit takes another
#: sweep. Probit with a prior variance of 400 takes 4, 5 and 6 sweeps where it is 1, .3 and .1
MIXED, NEAR = 6, 1.0
#: accuracy of the passes, as a share of the tolerance, and of the square of the first move: with
#: shares of .01 to 1 the fits take 1.02 to .98 of the time. Without the second rule they take 1.07
#: times as long, and with .1 in its place 141 sweeps instead of 135
OF_TOL, OF_SQUARE = 0.1, 1e-3


class Cavities(NamedTuple):
    """Tilted moments at cavities, and their sites."""

    precision: Array
    shift: Array
    log_scale: Array
    mean: Array
    variance: Array

    @property
    def sites(self) -> Sites:
        return Sites(self.precision, self.shift, self.log_scale)


def fitted_at(tilted: TiltedMoments, y: Array, m: Array, v: Array) -> Cavities | None:
    """The sites that cavities N(m, v) ask for, or None if some have none. O(n)."""
    log_z, slope, second = np.empty((3, len(m)))
    if tilted.many(y, m, v, np.ones(len(m)), log_z, slope, second):
        return None
    left = 1.0 + v * second
    if not (left > 0.0).all():
        return None
    precision, shift = -second / left, (slope - m * second) / left
    return Cavities(
        precision,
        shift,
        log_z + log_mass(precision, shift, m, v),
        m + v * slope,
        v * left,
    )


def log_mass(precision: Array, shift: Array, m: Array, v: Array) -> Array:
    """Minus log of the integral of N(f; m, v) exp(shift f - precision f^2 / 2)."""
    ratio = 1.0 + precision * v
    return np.asarray(
        0.5 * np.log(ratio) - (0.5 * shift**2 * v + shift * m - 0.5 * precision * m**2) / ratio
    )


def cavities(sites: Sites, mean: Array, variance: Array) -> tuple[Array, Array] | None:
    """Mean and variance of the cavities, or None if one is improper. O(n)."""
    ratio = 1.0 - sites.precision * variance
    if not (ratio > 0.0).all():
        return None
    return (mean - sites.shift * variance) / ratio, variance / ratio


def joint_sites(
    kernel: KernelMatrix,
    tilted: TiltedMoments,
    y: Array,
    sites: Sites,
    mean: Array,
    variance: Array,
    tol: float,
) -> Cavities | None:
    """EP's fixed point by the covariance in the array of ``kernel``, and its tilted moments.

    None if passes do not come near to it. O(n^2) per pass.
    """
    if not (variance > 0.0).all():
        return None
    before = cavities(sites, mean, variance)
    if before is None:
        return None
    (m0, v0), n = before, len(mean)
    sd0 = np.sqrt(v0)
    tau0, nu0, _ = sites
    across, squared = np.empty((2, n))

    def at(x: Array) -> tuple[Cavities, Array] | None:
        """Sites at cavities x, in the old ones' sd and log variance, and the cavities they give."""
        fit = fitted_at(tilted, y, m0 + sd0 * x[:n], v0 * np.exp(x[n:]))
        if fit is None:
            return None
        dt, dn = fit.precision - tau0, fit.shift - nu0
        ratio = 1.0 + variance * dt
        if not (ratio > 0.0).all():
            return None
        kernel.couple(dn - dt * fit.mean, dt / ratio, across, squared)
        u = variance * np.exp(-squared / variance)
        # with the own site as it was, then without it
        h = mean + across + (u - variance) * (dt * fit.mean - dn)
        there = cavities(sites, h, u)
        if there is None:
            return None
        image = np.concatenate([(there[0] - m0) / sd0, np.log(there[1] / v0)])
        return (fit, image) if np.isfinite(image).all() else None

    with np.errstate(all="ignore"):  # what overflows ends the passes
        return _fixed_point(at, np.zeros(2 * n), tol)


def _fixed_point(
    at: Callable[[Array], tuple[Cavities, Array] | None], x: Array, tol: float
) -> Cavities | None:
    """The fixed point of cavities, by passes that Anderson's rule mixes."""
    first = 0.0
    past: list[tuple[Array, Array]] = []
    for k in range(PASSES):
        answer = at(x)
        if answer is None:
            return None
        fit, image = answer
        f = image - x
        size = float(np.abs(f).max())
        first = size if k == 0 else first
        if size <= max(OF_TOL * tol, OF_SQUARE * first * min(1.0, first)):
            return fit
        past = [*past, (f, image)][-MIXED - 1 :] if size <= NEAR else []
        if len(past) < 2:
            x = image if past else x + 0.5 * f
            continue
        share = shares_of([move for move, _ in past])
        mixed = None if share is None else share @ np.array([to for _, to in past])
        if mixed is None or not np.abs(mixed - x).max() <= 3.0 * NEAR:
            mixed, past = x + 0.5 * f, []
        x = mixed
    return fit if size <= MOST_LEFT * first else None

"""The energies of relaxed EP (Qi & Guo 2012, section 4.2 and appendix A) at a posterior of it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from epfast._arrays import Array

__all__ = ["RelaxedEnergies", "relaxed_energies"]


class RelaxedEnergies(NamedTuple):
    """Equations 25 and 32 of the paper."""

    primal: float
    dual: float


def relaxed_energies(post: Any) -> RelaxedEnergies:
    """See :meth:`epfast.GPPosterior.relaxed_energies`; post is a GPPosterior. O(n^2)."""
    if post.relaxed is None or post.scheme is None:
        raise ValueError(
            "the posterior is not one of relaxed EP with a known scheme; allowed: a result of "
            "fit_gp(scheme=schemes.Relaxed())"
        )
    n, (tau, nu) = len(post.y), post.sites[:2]
    b, rho = post.relaxed
    mean, variance = post.mean, post.variance
    # of f_i, (n,) each: q r_i, and q r_i divided by site i with its normaliser
    log_z, eased_mean, eased_variance = _times(mean, variance, b, rho)
    log_c, m, v = _times(mean, variance, b - tau, rho - nu)
    post.known_loss()
    tilted_moments = post.problem.tilted()
    lZ, slope, curvature = np.empty((3, n))
    if tilted_moments.many(post.problem.data.y, m, v, np.ones(n), lZ, slope, curvature):
        raise FloatingPointError("a tilted distribution cannot be integrated")
    log_g = 0.5 * float(nu @ mean) - 0.5 * post.moments.log_determinant
    share = (n - 1) / n
    exponents = b if post.scheme.is_normal else b / np.where(b == 0.0, 1.0, tau)
    penalty = post.scheme.weight * float(np.abs(exponents).sum())
    dual = share * float((log_g + log_z).sum()) - float((log_g + log_c + lZ).sum()) + penalty
    # means of the log sites, up to constants, under both
    tilted = _mean_logs(post, m + v * slope, v + v * v * curvature)
    eased = _mean_logs(post, eased_mean, eased_variance)
    rest = float(tilted.sum() - np.trace(tilted)) - share * float(eased.sum())
    return RelaxedEnergies(dual + rest, dual)


def _times(
    mean: Array, variance: Array, precision: Array, shift: Array
) -> tuple[Array, Array, Array]:
    """N(mean, variance) times exp(shift f - precision f^2 / 2): log integral, mean, variance."""
    rest = 1.0 + precision * variance
    if not (rest > 0.0).all():
        raise FloatingPointError(f"{int((rest <= 0.0).sum())} of {len(rest)} cavities are improper")
    new_variance = variance / rest
    new_mean = (mean + variance * shift) / rest
    log_integral = 0.5 * (new_mean**2 / new_variance - mean**2 / variance - np.log(rest))
    return log_integral, new_mean, new_variance


def _mean_logs(post: Any, mean: Array, variance: Array) -> Array:
    """(n, n): row i, mean of log site k when f_i has this mean and variance, given f_i q."""
    slope = post.covariance / post.variance[:, None]
    means = post.mean + slope * (mean - post.mean)[:, None]
    variances = post.variance + slope**2 * (variance - post.variance)[:, None]
    return np.asarray(
        post.sites.shift * means - 0.5 * post.sites.precision * (means**2 + variances)
    )

"""The log evidence of the caller's arrays."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy import linalg

from epfast import _checks
from epfast._arrays import Array
from epfast._core.kernel_matrix import KernelMatrix
from epfast.gaussian.forms import kernel
from epfast.gaussian.prior import ROUNDING
from epfast.gaussian.state import factor_of, not_proper
from epfast.inference import Sites

#: difference, in standard deviations, up to which a posterior is that of a site on each value: it
#: is 1e-10 at most after 20 sweeps over 100 processes, half of them singular to rounding
SAME = 1e-6
#: most rounding of matrices, in nats: under priors that are singular to 4 to 10 digits results of
#: rows are off by a tenth of it at most, and by far less where the prior mean is 0
MOST_LOST = 0.1


def log_evidence(
    sites: tuple[ArrayLike, ArrayLike, ArrayLike],
    mean: ArrayLike,
    covariance: ArrayLike,
    prior_mean: ArrayLike | None,
    prior_covariance: ArrayLike,
) -> float:
    """EP's log evidence, the log of the integral of the prior times all sites.

    The prior is N(prior_mean, prior_covariance), normalised. Site i is
    exp(log_scale_i + shift_i h_i - precision_i h_i^2 / 2), with h_i = a_i.theta, or theta_i for a
    process. Their product is proportional to the posterior N(mean, covariance), and

        log Z = Σ log_scale + log N(0; prior_mean, prior_covariance) - log N(0; mean, covariance).

    These are the arrays of :func:`sweep`, from whichever prior it began. No constant is left out.
    It holds for any power, and between sweeps too, when EP has not converged. O(d^3)

    Parameters
    ----------
    sites : tuple of (precision, shift, log_scale)
        Three arrays (n,): ``tau``, ``nu`` and ``log_scale`` of :func:`sweep`, or the ``sites`` of
        a fit with a site per row. Of minibatches precision and shift are (n, d).
    mean : array_like of shape (d,)
        Mean of the posterior that these sites and the prior make.
    covariance : array_like of shape (d, d) or (d,)
        Its covariance. (d,): variances of a diagonal one.
    prior_mean : array_like of shape (d,), or None
        None: 0.
    prior_covariance : array_like of shape (d, d) or (d,), or float
        (d,): variances of a diagonal one. A number: one variance for all. For a process its kernel
        matrix, which may be singular.

    Returns
    -------
    float

    Raises
    ------
    ValueError, TypeError
        For arguments that are not allowed, and where the posterior is improper.
    FloatingPointError
        If rounding hides the result: ``prior_covariance`` is nearly singular, and means are far off
        in its narrow directions.

    Notes
    -----
    Where mean and covariance are those of one site for each of the d values, as of a process, the
    determinants are taken together, log|I + prior_covariance diag(precision)|, by the sites. The
    result has all digits then, even if a kernel matrix is singular to rounding. Else both matrices
    must be positive definite, and some digits are lost where they are nearly singular.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> K, y = np.array([[2.0, 1.0], [1.0, 2.0]]), np.array([1.0, -1.0])
    >>> Sigma, mu, tau, nu, log_scale = K.copy(), *np.zeros((4, 2))
    >>> for _ in range(20):
    ...     refused = epfast.backend.sweep(Sigma, mu, None, y, tau, nu, log_scale=log_scale)
    >>> round(epfast.backend.log_evidence((tau, nu, log_scale), mu, Sigma, None, K), 4)
    -1.6299
    """
    center = _checks.array("mean", mean, shape=(None,))
    d = len(center)
    if d == 0:
        raise ValueError("mean has shape (0,); allowed: at least one dimension")
    given, before = _sites(sites, d), np.zeros(d)
    if prior_mean is not None:
        before = _checks.array("prior_mean", prior_mean, shape=(d,))
    after = _covariance("covariance", covariance, d)
    if _checks.real_array("prior_covariance", prior_covariance).ndim == 0:
        prior = np.full(d, _checks.number("prior_covariance", prior_covariance, above=0.0))
    else:
        prior = _covariance("prior_covariance", prior_covariance, d)
    if after.ndim < prior.ndim:
        raise ValueError(
            f"covariance has shape ({d},) beside a prior_covariance of shape ({d}, {d}); allowed: "
            f"({d}, {d})"
        )
    if after.ndim > prior.ndim:
        prior = np.diag(prior)
    rounding = 0.0
    with np.errstate(over="ignore", invalid="ignore"):
        if _are_of_values(given, center, after, before, prior):
            total = _of_values(given, before, prior)
        else:
            top, lost = _log_volume("covariance", center, after)
            bottom, lost_too = _log_volume("prior_covariance", before, prior)
            total = float(given.log_scale.sum()) + top - bottom
            rounding = lost + lost_too
    if not math.isfinite(total):
        raise ValueError(
            "sites, mean and covariance make a log evidence that overflows; allowed: numbers of "
            "moderate size"
        )
    if rounding > MOST_LOST:
        raise FloatingPointError(
            "prior_covariance is nearly singular, and mean or prior_mean far off where it is "
            "narrow: rounding hides the log evidence; give a prior of a lower condition number"
        )
    return total


def _sites(sites: tuple[ArrayLike, ArrayLike, ArrayLike], d: int) -> Sites:
    """Precision, shift and log scale, checked."""
    try:
        precision, shift, scale = sites
    except (TypeError, ValueError):
        raise TypeError(
            f"sites is {_checks.describe(sites)}; allowed: three arrays, precision, shift and "
            "log_scale"
        ) from None
    scale = _checks.array("sites.log_scale", scale, shape=(None,))
    given = _checks.real_array("sites.precision", precision)
    shape = (len(scale), d) if given.ndim == 2 else (len(scale),)
    precision = _checks.array("sites.precision", given, shape=shape)
    return Sites(precision, _checks.array("sites.shift", shift, shape=shape), scale)


def _covariance(name: str, value: ArrayLike, d: int) -> Array:
    """A covariance (d, d), symmetric to the last bit, or variances (d,)."""
    given = _checks.real_array(name, value)
    if given.ndim == 1:
        return _checks.array(name, given, shape=(d,), positive=True)
    matrix = _checks.array(name, given, shape=(d, d))
    _checks.covariance(name, matrix, _checks.half_digits(given))
    return np.asarray(0.5 * matrix + 0.5 * matrix.T)


def _are_of_values(sites: Sites, mean: Array, covariance: Array, before: Array, K: Array) -> bool:
    """Whether these are the moments that a site on each value makes. O(d^3), no inverse.

    They solve mean = before + K (shift - precision mean) and covariance = K - K precision
    covariance.
    """
    if covariance.ndim == 1 or sites.precision.shape != mean.shape:
        return False
    sd = np.sqrt(covariance.diagonal())
    away = mean - before - K @ (sites.shift - sites.precision * mean)
    rest = K - covariance - (K * sites.precision) @ covariance
    return bool(
        (np.abs(away) <= SAME * sd).all() and (np.abs(rest) <= SAME * sd * sd[:, None]).all()
    )


def _of_values(sites: Sites, before: Array, K: Array) -> float:
    """The log evidence of a site on each value, whose prior is N(before, K). O(d^3)."""
    form = kernel.Kernel(KernelMatrix(K), before if before.any() else None)
    if not form.matrix.is_positive(ROUNDING * float(K.diagonal().max()) + 1e-300):
        raise ValueError(
            "prior_covariance is not positive semi-definite; allowed: a covariance matrix"
        )
    moments = form.moments(sites)
    if moments is None:
        raise ValueError(
            "sites make an improper posterior beside prior_covariance; allowed: sites of which "
            "covariance is the posterior covariance"
        )
    return kernel.log_evidence(sites, moments, form.offset)


def _log_volume(name: str, mean: Array, covariance: Array) -> tuple[float, float]:
    """Log of the integral of exp(shift.x - x'precision x / 2), but for log(2 pi) d / 2. O(d^3).

    And about what rounding of mean and covariance makes of it.
    """
    if covariance.ndim == 1:
        return 0.5 * float((mean * mean / covariance + np.log(covariance)).sum()), 0.0
    # of unit diagonal, since units of columns lose no digits
    sd = np.sqrt(covariance.diagonal())
    try:
        if not (sd > 0.0).all():
            raise not_proper()
        matrix = covariance / sd / sd[:, None]
        factor = factor_of(matrix)
    except FloatingPointError:
        raise ValueError(
            f"{name} is not positive definite to rounding; allowed: a positive definite matrix"
        ) from None
    half = linalg.solve_triangular(factor, mean / sd, lower=True, check_finite=False)
    square, size = float(half @ half), float(np.abs(matrix).sum(axis=0).max())
    inverse_condition = float(linalg.lapack.dpocon(factor, size, uplo="L")[0])
    lost = _checks.EPS / max(inverse_condition, 1e-300) * (len(mean) + square)
    return 0.5 * square + float(np.log(factor.diagonal() * sd).sum()), lost

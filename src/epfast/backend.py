"""Array-in, array-out primitives for other people's EP code."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks, losses, schemes
from epfast._checks import Array
from epfast._core import loss as _loss
from epfast._core.minibatch import Factors, fit_rule, monomials
from epfast._core.rows import Rows, Units
from epfast._core.sweep import Blocks
from epfast.scalar import HALF_FROM, moments
from epfast.schemes import Scheme

__all__ = [
    "build_config",
    "erfcx",
    "exp",
    "expm1",
    "fit_minibatch",
    "log",
    "log1p",
    "log_ndtr",
    "loss_values",
    "sigma_points",
    "sweep",
    "tilted_moments",
    "variational_fit",
]


def fit_minibatch(
    loss: Any,
    yX: ArrayLike,
    mean: ArrayLike,
    variance: ArrayLike,
    scheme: str | Scheme = "variational",
    *,
    beta: float = 1.0,
    gamma: float | None = None,
    curvature: str = "exact",
) -> tuple[Array, Array, float]:
    """Fit an unnormalised Gaussian with diagonal precision to one minibatch factor.

    The factor is t(theta) = exp(-beta Σ_k loss(z_k.theta)), z_k the rows of ``yX``; the fit is
    g(theta) = exp(log_scale + shift.theta - Σ_j precision_j theta_j^2 / 2), near the cavity
    N(mean, diag(variance)). The raw fit: no site rule is applied.

    Parameters
    ----------
    loss, scheme, beta, gamma, curvature
        As in :func:`epfast.fit_linear`.
    yX : array_like of shape (s, d)
        Rows of features times their labels.
    mean, variance : array_like of shape (d,)
        The cavity; variances positive.

    Returns
    -------
    precision, shift : ndarray of shape (d,)
        About the origin.
    log_scale : float

    Raises
    ------
    FloatingPointError
        If the scheme fails, if only in one coordinate: a factor that vanishes at the points, a
        quadrature that finds no variance, Newton that does not converge.
    """
    found_loss = losses.resolve(loss)
    found_scheme = schemes.resolve(scheme, gamma, curvature)
    found_scheme.check_loss(found_loss)
    rows = _checks.array("yX", yX, shape=(None, None))
    if 0 in rows.shape:
        raise ValueError(f"yX has shape {rows.shape}; allowed: at least one row and column")
    d = rows.shape[1]
    factors = Factors(
        found_loss._core(),
        d=d,
        max_rows=len(rows),
        beta=_checks.number("beta", beta, above=0.0),
        **found_scheme.core_arguments(d),
    )
    fit = factors.fit_one(
        rows,
        _checks.array("mean", mean, shape=(d,)),
        _checks.array("variance", variance, shape=(d,), positive=True),
    )
    if fit is None:
        raise FloatingPointError(f"scheme {found_scheme!r} found no fit of this factor")
    return fit


def sigma_points(
    mean: ArrayLike, variance: ArrayLike, gamma: float | None = None
) -> tuple[Array, Array]:
    """The precision-3 rule of Roche (2016), eq. 7, for N(mean, diag(variance)).

    Parameters
    ----------
    mean, variance : array_like of shape (d,)
    gamma : float, optional
        Distance of the points in standard deviations, sqrt(d + 1/2) by default.

    Returns
    -------
    points : ndarray of shape (2 d + 1, d)
        The mean; mean + gamma sigma_j e_j; mean - gamma sigma_j e_j.
    weights : ndarray of shape (2 d + 1,)
        Sum 1; equal for the default gamma, the first negative if gamma < sqrt(d).
    """
    center = _checks.array("mean", mean, shape=(None,))
    spread = _checks.array("variance", variance, shape=center.shape, positive=True)
    if center.size == 0:
        raise ValueError("mean has shape (0,); allowed: at least one dimension")
    schemes._check_gamma(gamma)
    points, weights = schemes.sigma_rule(center.size, schemes._default_gamma(gamma, center.size))
    return center + points * np.sqrt(spread), weights


def variational_fit(
    points: ArrayLike,
    weights: ArrayLike,
    log_values: ArrayLike,
    basis: str = "diagonal",
    *,
    start: str = "least_squares",
) -> tuple[Array, Array, float]:
    """The Gaussian nearest to a function known at the points of a rule, by Newton with Cholesky.

    Minimises Σ_i w_i [g(x_i) - f(x_i) log g(x_i)] over g(x) = exp(log_scale + shift.x - x'Px / 2)
    (Roche 2016, eq. 10-11), with f scaled by its maximum and the step safeguarded.

    Parameters
    ----------
    points : array_like of shape (z, d)
        Points that determine all the unknowns: 2 d + 1, or (d + 1)(d + 2) / 2 for "full".
    weights : array_like of shape (z,)
        Positive.
    log_values : array_like of shape (z,)
        log f at the points, finite.
    basis : {"diagonal", "full"}
        Diagonal or full precision matrix P.
    start : {"least_squares", "flat"}
        Newton starts from the weighted least-squares fit of log f, or from a constant.

    Returns
    -------
    precision : ndarray of shape (d,) or (d, d)
    shift : ndarray of shape (d,)
    log_scale : float
        About the origin.

    Raises
    ------
    FloatingPointError
        If Newton does not converge, as where f spans many orders of magnitude and too few points
        carry all of its mass.
    """
    _checks.choice("basis", basis, ("diagonal", "full"))
    _checks.choice("start", start, ("least_squares", "flat"))
    x = _checks.array("points", points, shape=(None, None))
    z, d = x.shape
    unknowns = 2 * d + 1 if basis == "diagonal" else (d + 1) * (d + 2) // 2
    if 0 in x.shape:
        raise ValueError(f"points has shape {x.shape}; allowed: at least one point and coordinate")
    w = _checks.array("weights", weights, shape=(z,), positive=True)
    f = _checks.array("log_values", log_values, shape=(z,))
    # standardised, so that the monomials are of one size whatever the scale of the points
    with np.errstate(all="ignore"):
        share = w / w.max()
        center = share @ x / share.sum()
        scale = np.sqrt(share @ (x - center) ** 2 / share.sum())
        terms = monomials((x - center) / scale, basis == "full")
    if not np.isfinite(terms).all() or np.linalg.matrix_rank(terms) < unknowns:
        raise ValueError(
            f"points of shape {x.shape} do not determine the {unknowns} unknowns of this basis; "
            "allowed: at least so many, with three values in each coordinate, of moderate size"
        )
    alpha = fit_rule(terms, share, f, start == "flat")
    if alpha is None:
        raise FloatingPointError("Newton-Cholesky did not converge on these log_values")
    with np.errstate(all="ignore"):
        fit = _about_origin(alpha, center, scale, basis)
    if not all(np.isfinite(part).all() for part in fit):
        raise FloatingPointError("the fit overflows at the scale of these points")
    return fit


def _about_origin(
    alpha: Array, center: Array, scale: Array, basis: str
) -> tuple[Array, Array, float]:
    """From coefficients of the standardised monomials to precision, shift and log scale."""
    d = len(center)
    slope, square = alpha[1 : d + 1] / scale, alpha[d + 1 : 2 * d + 1] / np.sqrt(2.0)
    matrix = np.diag(-2.0 * square / scale**2)
    if basis == "full":
        i, j = np.triu_indices(d, 1)
        matrix[i, j] = matrix[j, i] = -alpha[2 * d + 1 :] / (scale[i] * scale[j])
    shift = slope + matrix @ center
    log_scale = alpha[0] - square.sum() - slope @ center - 0.5 * center @ matrix @ center
    return (matrix if basis == "full" else np.diag(matrix).copy()), shift, float(log_scale)


def loss_values(loss: Any, margins: ArrayLike) -> tuple[Array, Array, Array]:
    """Value, slope and curvature of a loss at margins of any shape; see ``Loss.evaluate``."""
    value, slope, curvature = losses.resolve(loss).evaluate(margins)
    return value, slope, curvature


def tilted_moments(
    loss: Any,
    y: ArrayLike,
    mean: ArrayLike,
    variance: ArrayLike,
    power: ArrayLike = 1.0,
    scheme: str | Scheme = "exact",
    *,
    beta: float = 1.0,
    gamma: float | None = None,
    curvature: str = "exact",
) -> tuple[Array, Array, Array]:
    """Tilted moments of scalar sites t(h) = exp(-beta loss(y h)) under cavities N(mean, variance).

    Many sites at a time, by the vector kernels. Scheme "exact" has closed forms for piecewise
    linear losses of up to 16 knots at any power, and probit and logistic at ``beta * power = 1``:
    to 1e-10 relative for abs(mean) up to 1e3 standard deviations and variances from 1e-12 to 1e12.
    Where one of the three passes through 0 (lZ where t exceeds 1, d2lZ where t is not log-concave)
    its error is 1e-10 of the terms that cancel: for d2lZ, of 1 / variance. The others go one by
    one by adaptive quadrature. A loss of your own with kinks or jumps is better given as a
    :class:`epfast.PiecewiseLinear`, whose knots are known.

    Parameters
    ----------
    loss, beta
        As in :func:`epfast.fit_linear`.
    y : array_like of shape (n,)
        Labels -1 and +1.
    mean, variance : array_like of shape (n,)
        The cavities of h; variances positive.
    power : float or array_like of shape (n,)
        The site enters as t(h)^power.
    scheme, gamma, curvature
        As in :func:`epfast.fit_linear` with scalar sites. The schemes other than "exact" fit a
        Gaussian g to t^power near the cavity, or weigh draws.

    Returns
    -------
    lZ, dlZ, d2lZ : ndarray of shape (n,)
        log of the integral of t^power times the cavity, and its first two derivatives in ``mean``
        (Rasmussen & Williams 2006, section 3.6); in general log Z, (tilted mean - mean) / variance
        and (tilted variance - variance) / variance^2 as the scheme has them.

    Raises
    ------
    FloatingPointError
        If an integral vanishes or is not finite, or the scheme finds no fit.
    """
    center = _checks.array("mean", mean, shape=(None,))
    spread = _checks.array("variance", variance, shape=center.shape, positive=True)
    labels = _checks.labels("y", y, center.size)
    found_loss, tilt = losses.resolve(loss), _checks.number("beta", beta, above=0.0)
    found_scheme = schemes.resolve(scheme, gamma, curvature, scalar=True)
    found_scheme.check_loss(found_loss)
    triple = moments(found_loss, tilt, found_scheme)
    result = np.empty_like(center), np.empty_like(center), np.empty_like(center)
    if np.ndim(power) == 0:
        exponents = np.full(center.size, _checks.number("power", power, above=0.0))
    else:
        exponents = _checks.array("power", power, shape=center.shape, positive=True)
    for extreme in (exponents.min(), exponents.max()) if exponents.size else ():
        found_loss.check_tilt(tilt, float(extreme))
    lost = triple.many(labels, center, spread, exponents, *result)
    if lost:
        raise FloatingPointError(f"{lost} of {center.size} tilted moments could not be integrated")
    return result


def sweep(
    Sigma: Array,
    mu: Array,
    A: Any,
    y: ArrayLike,
    tau: Array,
    nu: Array,
    loss: Any = "probit",
    scheme: str | Scheme = "exact",
    *,
    beta: float = 1.0,
    power: float = 1.0,
    damping: float = 1.0,
    block: int | None = None,
    order: ArrayLike | None = None,
    log_scale: Array | None = None,
) -> int:
    """One sequential EP sweep over scalar sites, in place: the exact blocked sweep (guide).

    Site i acts on h = a_i.theta, a_i row i of ``A``, as exp(nu_i h - tau_i h^2 / 2); the posterior
    is N(mu, Sigma). The arrays are those of the caller, who also refreshes Sigma and mu from prior
    and sites now and then, to stop the drift of rounding. O(4 n d^2), with d >= 256 O(3 n d^2).

    Parameters
    ----------
    Sigma : ndarray of shape (d, d)
        Covariance, C-contiguous float64, symmetric; changed in place.
    mu : ndarray of shape (d,)
        Mean; changed in place.
    A : array_like or sparse matrix of shape (n, d), or None
        None is the identity: sites on the values of a Gaussian process, n = d, Sigma its kernel
        matrix before the first sweep. O(n^3)
    y : array_like of shape (n,)
        Labels -1 and +1.
    tau, nu : ndarray of shape (n,)
        Precision and shift of each site; changed in place. Both 0 before the first sweep, with
        Sigma and mu those of the prior.
    loss, scheme, beta
        As in :func:`tilted_moments`.
    power, damping
        As in :class:`epfast.EP`.
    block : int, optional
        Sites per block, by default d / 3 between 8 and 64; it does not change the result.
    order : array_like of int, optional
        The rows to visit, in order; all by default.
    log_scale : ndarray of shape (n,), optional
        log of each site at h = 0, changed in place; for the log evidence.

    Returns
    -------
    int
        Sites that were refused, and kept, since a cavity or fit was improper.
    """
    d = len(_in_place("Sigma", Sigma, (None, None)))
    _in_place("Sigma", Sigma, (d, d))
    _in_place("mu", mu, (d,))
    if not np.allclose(Sigma, Sigma.T, rtol=1e-8, atol=1e-300):
        raise ValueError("Sigma is not symmetric; allowed: a covariance matrix")
    if not (np.diag(Sigma) > 0.0).all():
        raise ValueError("Sigma has a diagonal entry <= 0; allowed: a covariance matrix")
    rows: Any = A
    if hasattr(A, "tocsr"):
        rows = _checks.sparse_design("A", A, d)
        _checks.array("A", rows.data, shape=(None,))
    elif A is not None:
        rows = _checks.array("A", A, shape=(None, d))
    n = d if A is None else rows.shape[0]
    labels = _checks.labels("y", y, n)
    sites = [_in_place("tau", tau, (n,)), _in_place("nu", nu, (n,))]
    sites.append(np.zeros(n) if log_scale is None else _in_place("log_scale", log_scale, (n,)))
    visits = np.arange(n) if order is None else np.asarray(order)
    if visits.ndim != 1 or visits.dtype.kind not in "iu":
        raise TypeError(f"order is {_checks.describe(visits)}; allowed: row numbers, (k,)")
    if visits.size and not (visits.min() >= 0 and visits.max() < n):
        raise ValueError(f"order holds {visits.min()} to {visits.max()}; allowed: 0 to {n - 1}")
    found_loss = losses.resolve(loss)
    found_scheme = schemes.resolve(scheme, None, "exact", scalar=True)
    found_scheme.check_loss(found_loss)
    tilt = _checks.number("beta", beta, above=0.0)
    found_loss.check_tilt(tilt, _checks.number("power", power, above=0.0))
    _checks.number("damping", damping, above=0.0, most=1.0)
    size = max(8, min(64, d // 3)) if block is None else _checks.integer("block", block, least=1)
    if visits.size == 0:
        return 0
    core = Blocks(
        moments(found_loss, tilt, found_scheme),
        d,
        min(size, len(visits)),
        power,
        damping,
        A is not None and (hasattr(rows, "indptr") or d < HALF_FROM),
    )
    visits = visits.astype(np.intp)
    if A is None:
        part: Rows = Units(visits, d)
    else:
        part = Rows(rows if order is None else rows[visits])
    core.sweep(part, labels[visits], None, visits, Sigma, mu, *sites)
    if not core.full:
        i, j = np.tril_indices(d, -1)
        Sigma[i, j] = Sigma[j, i]
    return core.n_refused


def _in_place(name: str, value: Any, shape: tuple[int | None, ...]) -> Array:
    """An array of the caller that is to be changed: no copy would do."""
    if not (isinstance(value, np.ndarray) and value.dtype == np.float64):
        raise TypeError(f"{name} is {_checks.describe(value)}; allowed: a float64 array")
    if not (value.flags.c_contiguous and value.flags.writeable and value.flags.aligned):
        raise ValueError(f"{name} is not contiguous or not writeable; allowed: an array that is")
    return _checks.array(name, value, shape=shape)


def build_config() -> dict[str, Any]:
    """Which BLAS, which instruction set, which compiler: what this build is and what it uses.

    Returns
    -------
    dict
        version; lapack ("scipy" or "openblas") and its version where linked; simd (in use),
        simd_available (on this CPU), simd_width (doubles); compiler, cython, buildtype,
        bounds_checks, sanitizer; numpy and scipy. The environment variable EPFAST_SIMD, read at
        import, forces a lower instruction set.
    """
    import scipy

    return _loss.build_facts() | {"numpy": np.__version__, "scipy": scipy.__version__}


def _elementwise(name: str, x: ArrayLike) -> Array:
    given = _checks.real_array("x", x)
    flat = _checks.to_float64(given).ravel()
    out = np.empty_like(flat)
    _loss.elementwise(name, flat, out)
    return out.reshape(given.shape)


def exp(x: ArrayLike) -> Array:
    """exp by the vector kernels, any shape; within 2 ulp, subnormal results included."""
    return _elementwise("exp", x)


def expm1(x: ArrayLike) -> Array:
    """exp(x) - 1 by the vector kernels, any shape; within 2 ulp."""
    return _elementwise("expm1", x)


def log(x: ArrayLike) -> Array:
    """Natural logarithm by the vector kernels, any shape; within 4 ulp, NaN below 0."""
    return _elementwise("log", x)


def log1p(x: ArrayLike) -> Array:
    """log(1 + x) by the vector kernels, any shape; within 4 ulp, NaN below -1."""
    return _elementwise("log1p", x)


def erfcx(x: ArrayLike) -> Array:
    """exp(x^2) erfc(x) by the vector kernels, any shape; within 8 ulp for x >= 0."""
    return _elementwise("erfcx", x)


def log_ndtr(x: ArrayLike) -> Array:
    """log of the standard normal distribution function, any shape; within 12 ulp."""
    return _elementwise("log_ndtr", x)

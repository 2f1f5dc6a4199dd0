"""Factors of several rows, and rules of quadrature."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks, losses
from epfast._arrays import Array
from epfast._core.rule_fit import fit_rule, monomials
from epfast.backend.sites import FLOAT64, apart, in_place, scheme_of
from epfast.schemes import Scheme
from epfast.schemes.kinds import check_gamma, distance, sigma_rule


class Minibatch:
    """Fits of minibatch factors with diagonal precision, for many calls.

    An object has its own scratch memory, so that each thread needs its own object.

    Parameters
    ----------
    loss, scheme
        As in :func:`fit_minibatch`.
    d : int
        Number of dimensions.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> factor = epfast.backend.Minibatch("logistic", "variational", 2)
    >>> precision, shift, log_scale = factor.fit(np.eye(2), np.zeros(2), np.ones(2))
    >>> precision.round(3)
    array([0.228, 0.228])
    """

    __slots__ = ("_core", "_rows", "d", "loss", "scheme")

    def __init__(
        self, loss: Any, scheme: str | Scheme, d: int, *, beta: float | None = None
    ) -> None:
        self.loss = losses.resolve(loss).tempered(beta)
        self.scheme = scheme_of(scheme, self.loss, "minibatch")
        self.d = _checks.integer("d", d, least=1)
        self._rows = 0
        self._core: Any = None

    def fit(
        self,
        X: ArrayLike,
        mean: ArrayLike,
        variance: ArrayLike,
        y: ArrayLike | None = None,
        out: tuple[Array, Array] | None = None,
    ) -> tuple[Array, Array, float]:
        """Fit one factor near a cavity.

        Parameters
        ----------
        X : array_like of shape (s, d)
            Rows of features, multiplied by their labels if y is None.
        mean, variance : array_like of shape (d,)
            Mean and variances of the cavity. Variances are positive. C-contiguous arrays of float64
            are fastest.
        y : array_like of shape (s,) or (s, k), optional
            Labels, or other responses of the loss.
        out : pair of ndarray of shape (d,), optional
            Arrays for precision and shift: contiguous, float64, without common memory.

        Returns
        -------
        precision, shift : ndarray of shape (d,)
            Natural parameters of the fit.
        log_scale : float
            Log of the fit at the origin.

        Raises
        ------
        ValueError, TypeError
            For arguments that are not allowed.
        FloatingPointError
            If the scheme fails, even in a single coordinate.
        """
        return self._fit("X", X, mean, variance, y, out)

    def _fit(
        self, name: str, X: Any, mean: Any, variance: Any, y: Any, out: Any
    ) -> tuple[Array, Array, float]:
        """As :meth:`fit`. Name is that of X in errors."""
        if not (type(X) is np.ndarray and X.ndim == 2):
            X = _checks.array(name, X, shape=(None, self.d))
        rows = len(X)
        if rows == 0:
            raise ValueError(f"{name} has shape {X.shape}; allowed: at least one row")
        if rows > self._rows:
            self._core = self.scheme.minibatch(self.loss, self.d, rows)
            self._rows = rows
        precision, shift = (np.empty(self.d), np.empty(self.d)) if out is None else _pair(out)
        if not self.loss.by_margin:
            y = self.loss.responses("y", y, rows)
        try:
            scale = self._core.fit_into(X, mean, variance, y, precision, shift, name)
        except (TypeError, ValueError):
            # other arrays are converted, and errors name the argument
            arrays = (
                _checks.array(name, X, shape=(None, self.d)),
                _checks.array("mean", mean, shape=(self.d,)),
                _checks.array("variance", variance, shape=(self.d,), positive=True),
            )
            if y is not None and self.loss.by_margin:
                y = self.loss.responses("y", y, rows)
            for part in (precision, shift):
                in_place("out", part, (self.d,), finite=False)
            given = {name: X, "mean": mean, "variance": variance, "y": y}
            apart({"out[0]": precision, "out[1]": shift}, given)
            scale = self._core.fit_into(*arrays, y, precision, shift, name)
        return precision, shift, scale


def _pair(out: Any) -> tuple[Array, Array]:
    """The two arrays that a fit is written to."""
    if not (isinstance(out, tuple | list) and len(out) == 2):
        raise TypeError(
            f"out is {_checks.describe(out)}; allowed: a pair of arrays of float64, (d,)"
        )
    return out[0], out[1]


def fit_minibatch(
    loss: Any,
    yX: ArrayLike,
    mean: ArrayLike,
    variance: ArrayLike,
    scheme: str | Scheme = "variational",
    *,
    beta: float | None = None,
) -> tuple[Array, Array, float]:
    """Fit an unnormalised Gaussian with diagonal precision to one minibatch factor.

    The factor is t(theta) = exp(-beta Σ_k loss(z_k.theta)), z_k the rows of ``yX``. The fit is
    g(theta) = exp(log_scale + shift.theta - Σ_j precision_j theta_j^2 / 2), near the cavity
    N(mean, diag(variance)). No site rule is applied to it.

    Parameters
    ----------
    loss, scheme, beta
        As in :func:`epfast.fit_linear`.
    yX : array_like of shape (s, d)
        Rows of features times their labels.
    mean, variance : array_like of shape (d,)
        Mean and variances of the cavity. Variances are positive.

    Returns
    -------
    precision, shift : ndarray of shape (d,)
        Natural parameters of g.
    log_scale : float
        Log of g at the origin.

    Raises
    ------
    FloatingPointError
        If the scheme fails, even in a single coordinate. The factor vanishes at all points, the
        quadrature finds no variance, or Newton's method does not converge.
    """
    rows = yX
    if not (type(yX) is np.ndarray and yX.ndim == 2 and yX.dtype is FLOAT64):
        rows = _checks.array("yX", yX, shape=(None, None))
    if rows.size == 0:  # type: ignore[union-attr]
        raise ValueError(f"yX has shape {np.shape(rows)}; allowed: at least one row and column")
    d = rows.shape[1]  # type: ignore[union-attr]
    return Minibatch(loss, scheme, d, beta=beta)._fit("yX", rows, mean, variance, None, None)


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
        The mean, then mean + gamma sigma_j e_j, then mean - gamma sigma_j e_j.
    weights : ndarray of shape (2 d + 1,)
        Weights with sum 1. They are equal for the default gamma. The first is negative if
        gamma < sqrt(d).
    """
    center = _checks.array("mean", mean, shape=(None,))
    spread = _checks.array("variance", variance, shape=center.shape, positive=True)
    if center.size == 0:
        raise ValueError("mean has shape (0,); allowed: at least one dimension")
    check_gamma(gamma)
    points, weights = sigma_rule(center.size, distance(gamma, center.size))
    return center + points * np.sqrt(spread), weights


def variational_fit(
    points: ArrayLike,
    weights: ArrayLike,
    log_values: ArrayLike,
    basis: str = "diagonal",
    *,
    start: str = "least_squares",
) -> tuple[Array, Array, float]:
    """The nearest Gaussian to a function at quadrature points, by Newton with Cholesky.

    Minimises Σ_i w_i [g(x_i) - f(x_i) log g(x_i)] over g(x) = exp(log_scale + shift.x - x'Px / 2)
    (Roche 2016, eq. 10-11), with f scaled by its maximum and the step safeguarded.

    Parameters
    ----------
    points : array_like of shape (z, d)
        Points that determine all unknowns. There are 2 d + 1 unknowns, or (d + 1)(d + 2) / 2 for
        "full".
    weights : array_like of shape (z,)
        Positive.
    log_values : array_like of shape (z,)
        log f at the points, finite.
    basis : {"diagonal", "full"}, default="diagonal"
        Whether the precision matrix P is diagonal or full.
    start : {"least_squares", "flat"}, default="least_squares"
        Newton starts from the weighted least-squares fit of log f, or from a constant.

    Returns
    -------
    precision : ndarray of shape (d,) or (d, d)
    shift : ndarray of shape (d,)
    log_scale : float
        Natural parameters of g, and its log at the origin.

    Raises
    ------
    FloatingPointError
        If Newton's method does not converge, for example because a few points have all of the mass
        of f.
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
    # standardise the points, so that all monomials have a similar size
    with np.errstate(all="ignore"):
        share = w / w.max()
        center = share @ x / share.sum()
        scale = np.sqrt(share @ (x - center) ** 2 / share.sum())
        terms = monomials((x - center) / scale, basis == "full")
    if not np.isfinite(terms).all() or np.linalg.matrix_rank(terms) < unknowns:
        raise ValueError(
            f"points of shape {x.shape} do not determine the {unknowns} unknowns of this basis; "
            f"allowed: at least {unknowns} points of moderate size, with three values or more in "
            "each coordinate"
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
    """Precision, shift and log scale from coefficients of the standardised monomials."""
    d = len(center)
    slope, square = alpha[1 : d + 1] / scale, alpha[d + 1 : 2 * d + 1] / np.sqrt(2.0)
    matrix = np.diag(-2.0 * square / scale**2)
    if basis == "full":
        i, j = np.triu_indices(d, 1)
        matrix[i, j] = matrix[j, i] = -alpha[2 * d + 1 :] / (scale[i] * scale[j])
    shift = slope + matrix @ center
    log_scale = alpha[0] - square.sum() - slope @ center - 0.5 * center @ matrix @ center
    return (matrix if basis == "full" else np.diag(matrix).copy()), shift, float(log_scale)

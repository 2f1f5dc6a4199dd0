"""Factors of several rows, and rules of quadrature."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks, losses
from epfast._arrays import Array, Given
from epfast._core.minibatch import MinibatchSweep
from epfast.backend.sites import FLOAT64, apart, in_place, scheme_of
from epfast.losses.names import LossGiven
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
        self, loss: LossGiven, scheme: str | Scheme, d: int, *, beta: float | None = None
    ) -> None:
        self.loss = losses.resolve(loss).tempered(beta)
        self.scheme = scheme_of(scheme, self.loss, "minibatch")
        self.d = _checks.integer("d", d, least=1)
        self._rows = 0
        self._core: MinibatchSweep | None = None

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
        self,
        name: str,
        X: ArrayLike,
        mean: ArrayLike,
        variance: ArrayLike,
        y: Given,
        out: tuple[Array, Array] | None,
    ) -> tuple[Array, Array, float]:
        """As :meth:`fit`. Name is that of X in errors."""
        if not (type(X) is np.ndarray and X.ndim == 2):
            X = _checks.array(name, X, shape=(None, self.d))
        rows = len(X)
        if rows == 0:
            raise ValueError(f"{name} has shape {X.shape}; allowed: at least one row")
        core = self._core
        if core is None or rows > self._rows:
            core = self._core = self.scheme.minibatch(self.loss, self.d, rows)
            self._rows = rows
        if not (out is None or (isinstance(out, tuple | list) and len(out) == 2)):
            raise TypeError(
                f"out is {_checks.describe(out)}; allowed: a pair of arrays of float64, (d,)"
            )
        precision, shift = (np.empty(self.d), np.empty(self.d)) if out is None else out
        if not self.loss.by_margin:
            y = self.loss.responses("y", y, rows)
        try:
            scale = core.fit_into(X, mean, variance, y, precision, shift, name)
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
            scale = core.fit_into(*arrays, y, precision, shift, name)
        return precision, shift, scale


def fit_minibatch(
    loss: LossGiven,
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

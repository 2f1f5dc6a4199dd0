"""Scalar sites: their tilted moments, and sweeps over them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks, losses, schemes
from epfast._arrays import Array, Given, Matrix, SparseGiven, entries_of, is_sparse
from epfast._core.row_sweeps import BlockedSweep
from epfast._core.rows import Rows, Units
from epfast.gaussian.engine import block_size
from epfast.gaussian.orders import HALF_FROM
from epfast.losses.names import LossGiven
from epfast.schemes import Scheme

#: arrays for three moments: (3, n), or three of (n,)
MomentsOut = Array | Sequence[Array]
FLOAT64 = np.dtype(np.float64)


def scheme_of(scheme: str | Scheme, loss: losses.Loss, factor: str) -> Scheme:
    """The scheme of a name or an object. Raises if it does not support the loss."""
    resolved = schemes.resolve(scheme)
    reason = resolved.refuses(loss, factor)
    if reason is not None:
        raise ValueError(reason)
    return resolved


class TiltedMoments:
    """Tilted moments of scalar sites, for many calls with one loss.

    ``TiltedMoments(loss, power)(y, mean, variance)`` is :func:`tilted_moments` without its
    overhead. A call on 4 sites takes as long as some calls of ``scipy.special.log_ndtr``. An object
    has its own scratch memory, so that each thread needs its own object.

    Parameters
    ----------
    loss, scheme
        As in :func:`tilted_moments`.
    power : float, default=1.0
        Sites enter as t(h)^power.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> probit = epfast.backend.TiltedMoments("probit")
    >>> probit(np.array([1.0, -1.0]), np.zeros(2), np.ones(2))[0].round(3)
    array([-0.693, -0.693])
    """

    __slots__ = ("_call", "loss", "power")

    def __init__(
        self,
        loss: LossGiven,
        power: float = 1.0,
        scheme: str | Scheme = "exact",
        *,
        beta: float | None = None,
    ) -> None:
        self.loss = losses.resolve(loss).tempered(beta)
        self.power = _checks.number("power", power, above=0.0)
        self.loss.check_power(self.power)
        self._call = scheme_of(scheme, self.loss, "row").tilted(self.loss).call

    def __call__(
        self,
        y: ArrayLike,
        mean: ArrayLike,
        variance: ArrayLike,
        out: MomentsOut | None = None,
    ) -> tuple[Array, Array, Array]:
        """Moments at some sites.

        Parameters
        ----------
        y, mean, variance : array_like
            As in :func:`tilted_moments`. C-contiguous arrays (n,) of float64 are fastest.
        out : ndarray of shape (3, n), or three of (n,), optional
            As in :func:`tilted_moments`.

        Returns
        -------
        lZ, dlZ, d2lZ : ndarray
            As :func:`tilted_moments`, in ``out`` if it is given.

        Raises
        ------
        ValueError
            For numbers that are not finite, variances that are not positive, or wrong responses.
        FloatingPointError
            If an integral vanishes or is not finite.
        """
        if not self.loss.by_margin:
            y = _responses(self.loss, y, mean, variance, self.power)
        return self._call(y, mean, variance, self.power, out)


def tilted_moments(
    loss: LossGiven,
    y: ArrayLike,
    mean: ArrayLike,
    variance: ArrayLike,
    power: ArrayLike = 1.0,
    scheme: str | Scheme = "exact",
    *,
    beta: float | None = None,
    out: MomentsOut | None = None,
) -> tuple[Array, Array, Array]:
    """Tilted moments of scalar sites t(h) = exp(-beta loss(y h)) under cavities N(mean, variance).

    Sites are vectorised. The scheme "exact" has closed forms for piecewise linear losses of up to
    16 knots at any power, and for probit and logistic at ``beta * power = 1``. Relative errors are
    within 1e-10 for abs(mean) up to 1e3 standard deviations and variances from 1e-12 to 1e12. Where
    a result passes through 0 (lZ where t exceeds 1, d2lZ where t is not log-concave), its error is
    1e-10 of the terms that cancel, for d2lZ of 1 / variance. Other losses use adaptive quadrature
    for each site. It is as precise if t changes near margin 0 (near 1 for the squared hinge). For a
    loss of your own with kinks or jumps, use :class:`~epfast.losses.PiecewiseLinear`, which has the
    positions of its knots.

    Parameters
    ----------
    loss, beta
        As in :func:`epfast.fit_linear`.
    y : array_like of shape (n,)
        Labels -1 and +1, or other responses of the loss. One for all sites, or one for each. With
        one more axis if a response has several numbers.
    mean, variance : array_like of shape (n,)
        Means and variances of the cavities of h. Variances are positive. They broadcast with
        ``power`` to the shape of the sites, which may be any shape and is (n,) below. With a loss
        of C latents they are (n, C), and so are dlZ and d2lZ, which are then the first and second
        derivatives by the mean of each latent.
    power : float or array_like of shape (n,), default=1.0
        The factor enters as t(h)^power.
    out : ndarray of shape (3, n), or three of (n,), optional
        Arrays for the results, of float64 and of exactly these shapes. They share no memory with
        each other or with the arguments.
    scheme
        As in :func:`epfast.fit_linear` with scalar sites. Schemes other than "exact" fit a Gaussian
        to t^power near the cavity, or use weighted draws.

    Returns
    -------
    lZ, dlZ, d2lZ : ndarray of shape (n,)
        Log Z, the log of the integral of t^power times the cavity, and its first two derivatives by
        ``mean`` (Rasmussen & Williams 2006, section 3.6). Other schemes return their log Z,
        (tilted mean - mean) / variance and (tilted variance - variance) / variance^2.

    Raises
    ------
    FloatingPointError
        If an integral vanishes or is not finite, or the scheme finds no fit.
    """
    resolved = losses.resolve(loss).tempered(beta)
    if resolved.latents != 1:
        return _of_latents(resolved, y, mean, variance, power, scheme, out)
    exponent: float | Array
    if isinstance(power, float) or _checks.real_array("power", power).ndim == 0:
        exponent = _checks.number("power", power, above=0.0)
        resolved.check_power(exponent)
    else:
        shape = _checks.real_array("power", power).shape
        exponent = _checks.array("power", power, shape=shape, positive=True)
        for extreme in (exponent.min(), exponent.max()) if exponent.size else ():
            resolved.check_power(float(extreme))
    tilted = scheme_of(scheme, resolved, "row").tilted(resolved)
    if not resolved.by_margin:
        y = _responses(resolved, y, mean, variance, exponent)
    return tilted.call(y, mean, variance, exponent, out)


def _responses(
    loss: losses.Loss, y: Given, mean: ArrayLike, variance: ArrayLike, power: float | Array
) -> Array:
    """The responses for the core, for sites of this shape."""
    shape: tuple[int, ...]
    if (
        type(mean) is np.ndarray
        and type(variance) is np.ndarray
        and type(power) is float
        and mean.shape == variance.shape
    ):
        shape = mean.shape
    else:
        given = {"mean": mean, "variance": variance, "power": power}
        shapes = [_checks.real_array(name, value).shape for name, value in given.items()]
        try:
            shape = np.broadcast_shapes(*shapes)
        except ValueError:
            raise ValueError(
                f"mean, variance and power have the shapes {', '.join(map(str, shapes))}; allowed: "
                "one shape, or numbers"
            ) from None
    n = math.prod(shape)
    if len(shape) != 1 or type(y) is not np.ndarray or y.ndim == 0:
        numbers = _checks.real_array("y", y)
        if numbers.shape[: len(shape)] != shape:
            try:
                numbers = np.broadcast_to(numbers, shape)
            except ValueError:
                raise ValueError(
                    f"y has shape {numbers.shape}; allowed: {shape}, that of the sites, with one "
                    "axis more where the loss takes several numbers"
                ) from None
        y = numbers.reshape(n, *numbers.shape[len(shape) :])
    responses = loss.responses("y", y, n)
    return responses.reshape(*shape, responses.shape[1])


def _of_latents(
    loss: losses.Loss,
    y: Given,
    mean: ArrayLike,
    variance: ArrayLike,
    power: ArrayLike,
    scheme: str | Scheme,
    out: MomentsOut | None,
) -> tuple[Array, Array, Array]:
    """As :func:`tilted_moments`, for a loss of several latents."""
    assert isinstance(loss, losses.LatentLoss)
    center = _checks.array("mean", mean, shape=(None, loss.latents or None))
    loss = loss.filled(max(2, center.shape[1]), False)
    if np.shape(_checks.real_array("variance", variance)) in ((), center.shape[1:]):
        variance = np.broadcast_to(variance, center.shape)
    spread = _checks.array("variance", variance, shape=center.shape, positive=True)
    loss.check_power(_checks.number("power", power, above=0.0))
    scheme_of(scheme, loss, "latents")
    if out is not None:
        raise ValueError(f"out is given; allowed with {loss!r}: None")
    moments = loss.tilted_moments(loss.responses("y", y, len(center)), center, spread)
    if not np.isfinite(moments[0]).all():
        raise FloatingPointError("an integral vanishes or is not finite")
    return moments


def sweep(
    Sigma: Array,
    mu: Array,
    A: ArrayLike | SparseGiven | None,
    y: ArrayLike,
    tau: Array,
    nu: Array,
    loss: LossGiven = "probit",
    scheme: str | Scheme = "exact",
    *,
    beta: float | None = None,
    power: float = 1.0,
    damping: float = 1.0,
    block: int | None = None,
    order: ArrayLike | None = None,
    log_scale: Array | None = None,
) -> int:
    """One sequential EP sweep over scalar sites, in place, in blocks with the exact result.

    Site i acts on h = a_i.theta, a_i row i of ``A``, as exp(nu_i h - tau_i h^2 / 2). The posterior
    is N(mu, Sigma). The arrays belong to the caller, who should sometimes recompute Sigma and mu
    from prior and sites, to remove rounding errors: with the prior N(m, K) Sigma is
    (I + K A' diag(tau) A)^-1 K, and mu is m + Sigma A' (nu - tau A m). O(4 n d^2), with d >= 256
    O(3 n d^2).

    Parameters
    ----------
    Sigma : ndarray of shape (d, d)
        Covariance, C-contiguous float64, symmetric to rounding. Changed in place.
    mu : ndarray of shape (d,)
        Mean. Changed in place.
    A : array_like or sparse matrix of shape (n, d), or None
        None is the identity, for sites on the values of a Gaussian process with n = d. Sigma is
        then its kernel matrix before the first sweep. O(n^3)
    y : array_like of shape (n,)
        Labels -1 and +1.
    tau, nu : ndarray of shape (n,)
        Precision and shift of each site. Changed in place. Both 0 before the first sweep, with
        Sigma and mu those of the prior.
    loss, scheme, beta
        As in :func:`tilted_moments`.
    power, damping
        As in :class:`epfast.EP`.
    block : int, optional
        Sites per block, by default d / 3, and from 8 to 64. It does not change the result.
    order : array_like of int, optional
        The rows to visit, in order. All by default.
    log_scale : ndarray of shape (n,), optional
        Log of each site at h = 0, for :func:`log_evidence`. Changed in place.

    Returns
    -------
    int
        Number of sites that were refused, and kept their value, since a cavity or fit was improper.

    Raises
    ------
    FloatingPointError
        If a mean or variance of h overflows. Earlier blocks are then updated, and nothing is NaN.
        If Sigma or mu overflows. Nothing is changed then.
    """
    d = len(in_place("Sigma", Sigma, (None, None)))
    in_place("Sigma", Sigma, (d, d))
    in_place("mu", mu, (d,))
    _checks.covariance("Sigma", Sigma)
    if not (np.diag(Sigma) > 0.0).all():
        raise ValueError("Sigma has a diagonal entry <= 0; allowed: a covariance matrix")
    rows: Matrix | None = None
    if _checks.is_sparse_given(A):
        rows = _checks.sparse_design("A", A, d)
        _checks.array("A", rows.data, shape=(None,))
    elif A is not None:
        rows = _checks.array("A", A, shape=(None, d))
    n = d if rows is None else rows.shape[0]
    found_loss = losses.resolve(loss).tempered(beta)
    responses = found_loss.responses("y", y, n)
    sites = [in_place("tau", tau, (n,)), in_place("nu", nu, (n,))]
    sites.append(np.zeros(n) if log_scale is None else in_place("log_scale", log_scale, (n,)))
    changed = {"Sigma": Sigma, "mu": mu, "tau": sites[0], "nu": sites[1], "log_scale": sites[2]}
    read = {} if rows is None else {"A": entries_of(rows)}
    apart(changed, {**read, "y": responses})
    visits = np.arange(n) if order is None else _checks.real_array("order", order)
    if visits.ndim != 1 or visits.dtype.kind not in "iu":
        raise TypeError(f"order is {_checks.describe(visits)}; allowed: row numbers, (k,)")
    if visits.size and not (visits.min() >= 0 and visits.max() < n):
        raise ValueError(f"order holds {visits.min()} to {visits.max()}; allowed: 0 to {n - 1}")
    found_scheme = scheme_of(scheme, found_loss, "row")
    found_loss.check_power(_checks.number("power", power, above=0.0))
    _checks.number("damping", damping, above=0.0, most=1.0)
    if block is not None:
        _checks.integer("block", block, least=1)
    if visits.size == 0:
        return 0
    core = BlockedSweep(
        found_scheme.tilted(found_loss),
        d,
        min(block_size(block, d), len(visits)),
        power,
        damping,
        rows is not None and (is_sparse(rows) or d < HALF_FROM),
    )
    visits = visits.astype(np.intp)
    if rows is None:
        part: Rows = Units(visits, d)
    else:
        part = Rows(rows if order is None else rows[visits])
    before = [array.copy() for array in changed.values()]
    np.add(0.5 * before[0], 0.5 * before[0].T, out=Sigma)
    core.sweep(part, responses[visits], None, visits, *changed.values())
    if not (np.isfinite(Sigma).all() and np.isfinite(mu).all()):
        for array, old in zip(changed.values(), before, strict=True):
            array[...] = old
        raise FloatingPointError("Sigma or mu overflow; give a covariance of moderate size")
    if not core.full:
        i, j = np.tril_indices(d, -1)
        Sigma[i, j] = Sigma[j, i]
    return core.n_refused


def apart(written: dict[str, Array], read: Mapping[str, Given]) -> None:
    """Refuse arrays for results that share memory with each other or with arguments."""
    for name, array in written.items():
        for other, value in {**written, **read}.items():
            if other != name and isinstance(value, np.ndarray) and np.shares_memory(array, value):
                raise ValueError(
                    f"{name} shares memory with {other}; allowed: arrays without common memory"
                )


def in_place(
    name: str, value: Array, shape: tuple[int | None, ...], *, finite: bool = True
) -> Array:
    """Check an array of the caller that is changed in place, without a copy.

    finite: whether its numbers are read before they are written.
    """
    if not (isinstance(value, np.ndarray) and value.dtype == np.float64):
        raise TypeError(f"{name} is {_checks.describe(value)}; allowed: a float64 array")
    if not (value.flags.c_contiguous and value.flags.writeable and value.flags.aligned):
        raise ValueError(
            f"{name} is not contiguous or not writeable; allowed: an array that is both"
        )
    return _checks.array(name, value, shape=shape, finite=finite)

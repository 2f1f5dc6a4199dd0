"""Losses: what a factor is. A site is t(h) = exp(-beta l(y h)) with l the loss at the margin y h.

The smooth losses live in ``_core/losses.h``, one row each; every row is usable by its name.
Piecewise linear losses are rows of numbers, built here. A user's own loss is a :class:`CustomLoss`,
a ``scipy.LowLevelCallable``, or just a vectorised function; a :class:`CustomSite` gives the tilted
moments of a site in place of a loss.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import LowLevelCallable, special

from epfast import _checks
from epfast._checks import Array
from epfast._core.loss import LOSS_PARAMETERS, CoreLoss
from epfast._core.site_schemes import SITE_SIGNATURE, UserSite
from epfast._core.tilted import Moments, SiteScheme

__all__ = [
    "CustomLoss",
    "CustomSite",
    "Hinge",
    "Logistic",
    "Loss",
    "NoisyStep",
    "PiecewiseLinear",
    "Probit",
    "Quasi01",
]

VectorFunction = Callable[[NDArray[np.float64]], ArrayLike]
MomentsFunction = Callable[
    [NDArray[np.float64], NDArray[np.float64]], tuple[ArrayLike, ArrayLike, ArrayLike]
]


@dataclass(frozen=True)
class Loss:
    """A loss of the core's table, by name.

    Parameters
    ----------
    name : str
        A row of ``_core/losses.h``: ``"logistic"``, ``"probit"``, ``"piecewise_linear"``, ...
    parameters : tuple of float
        The numbers that the row takes.
    """

    name: str
    parameters: tuple[float, ...] = ()
    #: slope and curvature are known; the Laplace schemes need them
    has_derivatives: bool = field(default=True, init=False, repr=False)
    #: no jumps; the Laplace schemes need that too
    is_continuous: bool = field(default=True, init=False, repr=False)
    #: margins where the loss has a kink or a jump, for integration piece by piece
    kinks: tuple[float, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        by_name = tuple(name for name, count in LOSS_PARAMETERS.items() if count >= 0)
        _checks.choice("name", self.name, by_name)
        parameters = _checks.array("parameters", self.parameters, shape=(None,))
        if parameters.size != LOSS_PARAMETERS[self.name]:
            raise ValueError(
                f"parameters has {parameters.size} numbers; allowed for the loss {self.name!r}: "
                f"{LOSS_PARAMETERS[self.name]}"
            )
        self._set(parameters=tuple(map(float, parameters)))

    def _core(self) -> CoreLoss:
        return CoreLoss.table(self.name, self.parameters)

    def _site_scheme(self, core: CoreLoss) -> SiteScheme | None:
        """What stands in for integration in scheme "exact"; None: nothing."""
        return None

    def check_tilt(self, beta: float, power: float) -> None:
        """Refuse a power of t that the scalar site does not know, as its reason; here none.

        Raises
        ------
        ValueError
            With the reason.
        """

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def evaluate(self, margins: ArrayLike, *, derivatives: bool = True) -> tuple[Array, ...]:
        """Value, slope and curvature at each margin.

        Parameters
        ----------
        margins : array_like
            Any shape.
        derivatives : bool
            Whether slope and curvature are wanted.

        Returns
        -------
        value, slope, curvature : ndarray
            Of the shape of ``margins``; only ``(value,)`` without derivatives. At a kink or a jump
            value and slope are half sums of the one-sided limits (Roche 2016, section 3.2).
        """
        given = _checks.real_array("margins", margins)
        flat = _checks.to_float64(given).ravel()
        outputs = [np.empty_like(flat) for _ in range(3 if derivatives else 1)]
        if derivatives and not self.has_derivatives:
            raise ValueError(f"the loss {self!r} has no slope and curvature")
        self._core().at(flat, *outputs)
        return tuple(out.reshape(given.shape) for out in outputs)


@dataclass(frozen=True)
class Logistic(Loss):
    """l(m) = log(1 + exp(-m)): t is the logistic function."""

    name: str = field(default="logistic", init=False, repr=False)
    parameters: tuple[float, ...] = field(default=(), init=False, repr=False)


@dataclass(frozen=True)
class Probit(Loss):
    """l(m) = -log Phi(m): t is the standard normal distribution function."""

    name: str = field(default="probit", init=False, repr=False)
    parameters: tuple[float, ...] = field(default=(), init=False, repr=False)


@dataclass(frozen=True)
class PiecewiseLinear(Loss):
    """Any piecewise linear loss, continuous or not.

    Parameters
    ----------
    knots : sequence of float
        Margins where the slope or the value changes, increasing, at least one.
    slopes : sequence of float
        One more than knots: left of the first knot, between knots, right of the last.
    value : float
        The loss just left of the first knot.
    jumps : sequence of float, optional
        What is added at each knot; all 0 by default.

    Examples
    --------
    The ramp loss, a hinge cut off at 2:

    >>> import epfast
    >>> ramp = epfast.PiecewiseLinear(knots=(-1.0, 1.0), slopes=(0.0, -1.0, 0.0), value=2.0)
    >>> ramp.evaluate([-3.0, 0.0, 2.0])[0]
    array([2., 1., 0.])
    """

    name: str = field(default="piecewise_linear", init=False, repr=False)
    parameters: tuple[float, ...] = field(default=(), init=False, repr=False)
    knots: tuple[float, ...] = ()
    slopes: tuple[float, ...] = ()
    value: float = 0.0
    jumps: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        knots = _checks.array("knots", self.knots, shape=(None,))
        if knots.size == 0 or not (knots[1:] > knots[:-1]).all():
            raise ValueError(f"knots is {self.knots}; allowed: at least one, increasing")
        slopes = _checks.array("slopes", self.slopes, shape=(knots.size + 1,))
        jumps = np.zeros(knots.size)
        if self.jumps is not None:
            jumps = _checks.array("jumps", self.jumps, shape=(knots.size,))
        value = level = _checks.number("value", self.value)
        parameters = [float(knots.size), slopes[0]]
        with np.errstate(over="ignore", invalid="ignore"):
            for i, knot in enumerate(knots):
                if i:
                    level += slopes[i] * (knot - knots[i - 1])
                parameters += [knot, level, level + jumps[i], slopes[i + 1]]
                level += jumps[i]
        if not np.isfinite(parameters).all():
            raise ValueError("knots and slopes give an infinite loss at a knot; allowed: finite")
        self._set(
            parameters=tuple(map(float, parameters)),
            value=value,
            knots=tuple(map(float, knots)),
            slopes=tuple(map(float, slopes)),
            jumps=tuple(map(float, jumps)),
            is_continuous=not jumps.any(),
            kinks=tuple(map(float, knots)),
        )


@dataclass(frozen=True)
class Hinge(PiecewiseLinear):
    """l(m) = max(0, 1 - m), the loss of support vector machines."""

    knots: tuple[float, ...] = field(default=(1.0,), init=False, repr=False)
    slopes: tuple[float, ...] = field(default=(-1.0, 0.0), init=False, repr=False)
    value: float = field(default=0.0, init=False, repr=False)
    jumps: tuple[float, ...] | None = field(default=None, init=False, repr=False)


@dataclass(frozen=True)
class Quasi01(PiecewiseLinear):
    """The quasi 0-1 loss (Roche 2016, section 3.2), a continuous stand-in for the error count.

    1 - epsilon m below 0, 1 - m / epsilon up to epsilon, then 0.

    Parameters
    ----------
    epsilon : float
        In [1e-100, 1e100]; at 1 it is the hinge.
    """

    epsilon: float = 0.1
    knots: tuple[float, ...] = field(default=(), init=False, repr=False)
    slopes: tuple[float, ...] = field(default=(), init=False, repr=False)
    value: float = field(default=1.0, init=False, repr=False)
    jumps: tuple[float, ...] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        epsilon = _checks.number("epsilon", self.epsilon, least=1e-100, most=1e100)
        # the values at the second knot come out as exact zeros: slope * width = -1
        self._set(epsilon=epsilon, knots=(0.0, epsilon), slopes=(-epsilon, -1.0 / epsilon, 0.0))
        super().__post_init__()
        exact = list(self.parameters)
        exact[7] = exact[8] = 0.0
        self._set(parameters=tuple(exact))


@dataclass(frozen=True)
class NoisyStep(PiecewiseLinear):
    """The likelihood with flipped labels, t(h) = epsilon + (1 - 2 epsilon) step(h), as a loss.

    l is -log(epsilon) below 0 and -log(1 - epsilon) above (Qi & Guo 2012).

    Parameters
    ----------
    epsilon : float
        Probability that a label is flipped, in (0, 0.5).
    """

    epsilon: float = 0.1
    knots: tuple[float, ...] = field(default=(0.0,), init=False, repr=False)
    slopes: tuple[float, ...] = field(default=(0.0, 0.0), init=False, repr=False)
    value: float = field(default=0.0, init=False, repr=False)
    jumps: tuple[float, ...] | None = field(default=None, init=False, repr=False)

    def __post_init__(self) -> None:
        epsilon = _checks.number("epsilon", self.epsilon, least=1e-300, most=0.5)
        if epsilon == 0.5:
            raise ValueError("epsilon is 0.5; allowed: less than 0.5 (labels would say nothing)")
        value = float(-np.log(epsilon))
        self._set(epsilon=epsilon, value=value, jumps=(float(-np.log1p(-epsilon)) - value,))
        super().__post_init__()


@dataclass(frozen=True)
class CustomLoss(Loss):
    """A loss from your own functions.

    Parameters
    ----------
    value : callable or scipy.LowLevelCallable
        Vectorised: an array of margins (n,) in, an array of losses (n,) out. A LowLevelCallable
        has one of the signatures ``double (double)``, ``double (double, void *)`` (values) or
        ``int (int n, double *m, double *out, void *user)``, out being n rows of (value, slope,
        curvature), which returns non-zero on failure. It is called without the GIL.
    slope, curvature : callable, optional
        First and second derivative, vectorised likewise; the Laplace schemes need both.
    """

    name: str = field(default="custom", init=False, repr=False)
    parameters: tuple[float, ...] = field(default=(), init=False, repr=False)
    value: VectorFunction | LowLevelCallable = None
    slope: VectorFunction | None = None
    curvature: VectorFunction | None = None

    def __post_init__(self) -> None:
        functions = {"slope": self.slope, "curvature": self.curvature}
        if isinstance(self.value, LowLevelCallable):
            for name, function in functions.items():
                if function is not None:
                    raise ValueError(
                        f"{name} is given beside a LowLevelCallable; allowed: None, use the "
                        "signature that returns all three"
                    )
            _, has_derivatives = CoreLoss.low_level(self.value)
            self._set(has_derivatives=has_derivatives)
            return
        if not callable(self.value):
            raise TypeError(f"value is {_checks.describe(self.value)}; allowed: a callable")
        for name, function in functions.items():
            if function is not None and not callable(function):
                raise TypeError(f"{name} is {_checks.describe(function)}; allowed: a callable")
        self._set(has_derivatives=self.slope is not None and self.curvature is not None)

    def _core(self) -> CoreLoss:
        if isinstance(self.value, LowLevelCallable):
            return CoreLoss.low_level(self.value)[0]
        return CoreLoss.python(self.value, self.slope, self.curvature)


@dataclass(frozen=True)
class CustomSite(Loss):
    """A scalar site t(y h) whose tilted moments are your own, for ``scheme="exact"``.

    t itself is never asked for, so that minibatches, ``record="cost"``, ``beta`` and powers other
    than 1 are refused. A site where a moment is NaN or infinite is refused and counted.

    Parameters
    ----------
    moments : callable or scipy.LowLevelCallable
        ``f(m, v) -> (lZ, dlZ, d2lZ)``, arrays (n,) in and out: log of the integral of t(u) under
        u ~ N(m, v), and its first two derivatives in m. u = y h is the margin, so that labels do
        not appear. A LowLevelCallable has the signature ``int (int n, double *m, double *v,
        double *out, void *user)``, out being n rows of (lZ, dlZ, d2lZ), and returns non-zero on
        failure; it is called without the GIL.

    Examples
    --------
    Probit with noise of a variance of its own:

    >>> import epfast, numpy as np
    >>> from scipy.special import log_ndtr
    >>> def moments(m, v, noise=0.25):
    ...     scale = np.sqrt(noise + v)
    ...     z = m / scale
    ...     ratio = np.exp(-0.5 * z * z - 0.5 * np.log(2 * np.pi) - log_ndtr(z))
    ...     return log_ndtr(z), ratio / scale, -ratio * (z + ratio) / scale**2
    >>> X, y = np.array([[1.0], [2.0], [-1.0]]), np.array([1, 1, -1])
    >>> post = epfast.fit_linear(X, y, loss=epfast.CustomSite(moments), scheme="exact",
    ...                          posterior="full", batch_size=None)
    >>> post.predict_proba([[0.0], [1.0]]).round(2)
    array([0.5 , 0.95])
    """

    name: str = field(default="custom_site", init=False, repr=False)
    parameters: tuple[float, ...] = field(default=(), init=False, repr=False)
    moments: MomentsFunction | LowLevelCallable = None

    def __post_init__(self) -> None:
        self._set(has_derivatives=False)
        if isinstance(self.moments, LowLevelCallable):
            found = _signature(self.moments)
            if found != SITE_SIGNATURE:
                raise ValueError(
                    f"moments is a LowLevelCallable of signature {found!r}; allowed: "
                    f"{SITE_SIGNATURE!r}"
                )
        elif not callable(self.moments):
            raise TypeError(f"moments is {_checks.describe(self.moments)}; allowed: a callable")

    def _core(self) -> CoreLoss:
        return CoreLoss.python(self._has_no_values)

    def _has_no_values(self, margins: Any) -> Any:
        raise ValueError(
            "loss is a CustomSite, which gives tilted moments and no values; allowed here: a Loss "
            "or CustomLoss"
        )

    def evaluate(self, margins: ArrayLike, *, derivatives: bool = True) -> tuple[Array, ...]:
        """Refused: a site of this kind has no values."""
        self._has_no_values(margins)
        return ()

    def _site_scheme(self, core: CoreLoss) -> UserSite:
        return UserSite(core, self.moments, isinstance(self.moments, LowLevelCallable))

    def check_tilt(self, beta: float, power: float) -> None:
        for name, value in (("beta", beta), ("power", power)):
            if value != 1.0:
                raise ValueError(
                    f"{name} is {value:g}; allowed with a CustomSite: 1, since its moments are "
                    "those of t itself"
                )

    def class_probability(self, mean: Array, variance: Array) -> Array:
        """Z(+) / (Z(+) + Z(-)) for h ~ N(mean, variance), Z(-) at the mirrored mean."""
        core = self._core()
        triple = Moments(core, 1.0, self.name, (), False, self._site_scheme(core))
        ones = np.ones_like(mean)
        up, down = ([np.empty_like(mean) for _ in range(3)] for _ in range(2))
        triple.many(ones, mean, variance, ones, *up)
        triple.many(ones, -mean, variance, ones, *down)
        return np.asarray(special.expit(up[0] - down[0]))


NAMED: dict[str, Callable[..., Loss]] = {
    "logistic": Logistic,
    "probit": Probit,
    "hinge": Hinge,
    "quasi01": Quasi01,
    "noisy_step": NoisyStep,
}


_BY_NAME = {name: kind() for name, kind in NAMED.items()}


def _signature(function: LowLevelCallable) -> str:
    """As SciPy spells it, but for const."""
    return str(function.signature).replace("const ", "").replace(" const", "")


def resolve(loss: Any) -> Loss:
    """The loss meant by a name, a Loss, a LowLevelCallable or a vectorised callable."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        if loss in _BY_NAME:
            return _BY_NAME[loss]
        # a row of the core's table that needs no numbers
        known = [name for name, count in LOSS_PARAMETERS.items() if count == 0]
        return Loss(_checks.choice("loss", loss, tuple(dict.fromkeys([*NAMED, *known]))))
    if isinstance(loss, LowLevelCallable) and _signature(loss) == SITE_SIGNATURE:
        return CustomSite(loss)
    if isinstance(loss, LowLevelCallable) or (callable(loss) and not isinstance(loss, type)):
        return CustomLoss(loss)
    raise TypeError(
        f"loss is {_checks.describe(loss)}; allowed: one of {', '.join(map(repr, NAMED))}, a Loss, "
        "a scipy.LowLevelCallable, or a vectorised callable"
    )


def break_points(loss: Loss, beta: float) -> Array:
    """Where panels of quadrature should end, beside the mirror images of these points.

    The kinks of the loss, and closing in on where t changes, over a width that does not depend on
    the spread of h.
    """
    near = np.array([0.25, 1.0, 3.0, 9.0, 30.0])
    if not isinstance(loss, PiecewiseLinear):
        return np.concatenate([near, near / beta])
    points = [np.array(loss.kinks)]
    if len(loss.kinks) <= 16:
        for knot, *slopes in zip(loss.knots, loss.slopes[:-1], loss.slopes[1:], strict=True):
            for rate in {abs(slope) * beta for slope in slopes if slope}:
                points += [knot - near / rate, knot + near / rate]
    return np.concatenate(points)

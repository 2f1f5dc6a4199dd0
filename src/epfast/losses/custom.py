"""A user's own loss, or the tilted moments of a user's own site."""

from __future__ import annotations

import inspect
from _ctypes import CFuncPtr
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import LowLevelCallable

from epfast import _checks
from epfast._arrays import Array, Given
from epfast._core.loss import CoreLoss
from epfast._core.scalar_schemes import SITE_SIGNATURE, UserSite
from epfast.losses import prediction
from epfast.losses.base import SMOOTH, Loss

#: draws of a prediction
DRAWS = 4000

VectorFunction = Callable[[NDArray[np.float64]], ArrayLike]
#: tilted moments (lZ, dlZ, d2lZ) at cavities of these means and variances
MomentsFunction = Callable[[Array, Array], tuple[ArrayLike, ArrayLike, ArrayLike]]


def signature(function: LowLevelCallable) -> str:
    """The signature as SciPy spells it, without const."""
    return str(function.signature).replace("const ", "").replace(" const", "")


def compiled(name: str, value: Any) -> LowLevelCallable | None:
    """The C function that is meant: SciPy's, a function of ctypes, or one of ``numba.cfunc``.

    None for anything else. The machine code lives as long as ``value``, which is to be kept.
    """
    if isinstance(value, LowLevelCallable):
        return value
    function = getattr(value, "ctypes", value)  # of an array it is no function
    if not isinstance(function, CFuncPtr):
        return None
    try:
        return LowLevelCallable(function)
    except (AttributeError, TypeError, ValueError):  # which types it has is not known
        raise ValueError(
            f"{name} is {_checks.describe(value)}, whose argtypes or restype are no types of a "
            "loss; allowed: a function of ctypes with both set"
        ) from None


class Vectorised:
    """A user's function of arrays (n,). One that takes numbers alone is refused in words."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function

    def __call__(self, *arrays: Array) -> Any:
        try:
            return self.function(*arrays)
        except Exception as error:
            if not self._takes_numbers(*arrays):
                raise
            raise TypeError(
                f"{self.name} takes a number and fails with an array of them ({error}); allowed: "
                "a function of arrays, as with np.where in place of if, np.vectorize or "
                "numba.vectorize make one; or a numba.cfunc"
            ) from error

    def _takes_numbers(self, *arrays: Array) -> bool:
        """Whether it takes a number, and not an array in which the same number stands twice."""
        try:
            returned = self.function(*(float(one[0]) for one in arrays))
        except Exception:
            return False
        try:
            self.function(*(np.full(2, float(one[0])) for one in arrays))
        except Exception:
            return bool(np.ndim(returned) <= 1)
        return False


class Simulator:
    """A user's function ``f(*arrays, rng=rng)`` that draws a number for each row.

    Parameters
    ----------
    name : str
        Of the argument that it was given as.
    function : callable
    *wanted : tuple of str
        Names of its arrays. Of several such tuples one is enough.

    Raises
    ------
    TypeError
        If it is no function of these and rng, as far as Python tells.
    """

    def __init__(
        self, name: str, function: Callable[..., ArrayLike], *wanted: tuple[str, ...]
    ) -> None:
        _checks.function(name, function)
        self.name, self.function = name, function
        if not any(self._takes(names) for names in wanted):
            allowed = " or ".join(f"({', '.join([*names, 'rng'])})" for names in wanted)
            raise TypeError(
                f"{name} is a function of {inspect.signature(function)}; allowed: of {allowed}, "
                "where rng, by this name, is the numpy.random.Generator to draw from"
            )

    def _takes(self, names: tuple[str, ...]) -> bool:
        try:
            known = inspect.signature(self.function)
        except (TypeError, ValueError):  # of C
            return True
        try:
            known.bind(*names, rng=None)
        except TypeError:
            return False
        return True

    def __call__(self, *arrays: Array, rng: np.random.Generator) -> Array:
        """Draws (n,), which may be infinite."""
        n, points = len(arrays[0]), [one for one in arrays if one.ndim == 1]
        if not self._takes(("",) * len(arrays)):
            raise TypeError(
                f"{self.name} is a function of {inspect.signature(self.function)}; allowed: of "
                f"{len(arrays)} arrays and rng (data come last)"
            )
        try:
            # the arrays of the call are its own: what it writes into them is lost
            returned = Vectorised(self.name, partial(self.function, rng=rng))(
                *(one.copy() for one in arrays)
            )
        except Exception as error:
            ranges = ", ".join(f"{one.min():.4g} to {one.max():.4g}" for one in points)
            error.add_note(f"raised by {self.name}, at {n} values of {ranges}")
            raise
        draws = _checks.array(f"what {self.name} returned", returned, shape=(n,), finite=False)
        lost = np.isnan(draws)
        if lost.any():
            where = ", ".join(f"{one[lost.argmax()]:.4g}" for one in points)
            raise ValueError(
                f"{self.name} returned NaN for {lost.sum()} of {n} values, first for {where}; "
                "allowed: numbers (infinity for a run that failed, which then has no weight)"
            )
        return draws


@dataclass(frozen=True)
class CustomLoss(Loss):
    """A loss from your own functions.

    Parameters
    ----------
    value : callable, scipy.LowLevelCallable, numba.cfunc or function of ctypes
        Vectorised: an array of margins (n,) in, an array of losses (n,) out. A compiled function
        has one of the signatures ``double (double)``, ``double (double, void *)`` (values) or
        ``int (int n, double *m, double *out, void *user)``, out being n rows of (value, slope,
        curvature), which returns non-zero on failure. It is called without the GIL.
    slope, curvature : callable, optional
        First and second derivative, vectorised likewise. The Laplace schemes need both.
    is_likelihood : bool, default=False
        Whether exp(-l(h)) + exp(-l(-h)) = 1 for every h, so that the factor is the probability of
        a label, at most 1. Log evidences of such losses can be compared, and are checked.
    """

    value: VectorFunction | LowLevelCallable | None = None
    slope: VectorFunction | None = None
    curvature: VectorFunction | None = None
    is_likelihood: bool = field(default=False, kw_only=True)  # type: ignore[misc]
    #: ``value`` where it is compiled
    compiled: LowLevelCallable | None = field(default=None, init=False, repr=False, compare=False)

    row = "custom"

    def __post_init__(self) -> None:
        super().__post_init__()
        # a probability is at most 1
        self._set(bounded=_checks.flag("is_likelihood", self.is_likelihood))
        functions = {"slope": self.slope, "curvature": self.curvature}
        self._set(compiled=compiled("value", self.value))
        if self.compiled is not None:
            for name, function in functions.items():
                if function is not None:
                    raise ValueError(
                        f"{name} is given beside a compiled function; allowed: None, use the "
                        "signature that returns all three"
                    )
            _, has_derivatives = CoreLoss.low_level(self.compiled)
            self._set(gives=SMOOTH if has_derivatives else SMOOTH - {"derivatives"})
            return
        _checks.function("value", self.value, "margins")
        for name, function in functions.items():
            if function is not None:
                _checks.function(name, function, "margins", other=" or None")
        if self.slope is None or self.curvature is None:
            self._set(gives=SMOOTH - {"derivatives"})

    def core(self) -> CoreLoss:
        if self.compiled is not None:
            return CoreLoss.low_level(self.compiled, self.beta)[0]
        assert self.value is not None
        value = Vectorised("value", self.value)
        slope = self.slope and Vectorised("slope", self.slope)
        curvature = self.curvature and Vectorised("curvature", self.curvature)
        return CoreLoss.python(value, slope, curvature, self.beta)

    def log_odds(self, mean: Array, variance: Array) -> Array:
        if self.compiled is not None:
            return super().log_odds(mean, variance)
        return prediction.log_odds_by_panels(self, mean, variance)


@dataclass(frozen=True)
class CustomSite(Loss):
    """A scalar site t(y h) whose tilted moments are your own, for ``scheme="exact"``.

    t itself is never asked for, so that minibatches, ``record="cost"``, ``beta`` and powers other
    than 1 are refused. A site where a moment is NaN or infinite is refused and counted.

    Parameters
    ----------
    moments : callable, scipy.LowLevelCallable, numba.cfunc or function of ctypes
        ``f(m, v) -> (lZ, dlZ, d2lZ)``, arrays (n,) in and out: log of the integral of t(u) under
        u ~ N(m, v), and its first two derivatives in m. u = y h is the margin, so that labels do
        not appear. A compiled function has the signature ``int (int n, double *m, double *v,
        double *out, void *user)``, out being n rows of (lZ, dlZ, d2lZ), and returns non-zero on
        failure. It is called without the GIL.
    is_likelihood : bool, default=False
        Whether t(h) + t(-h) = 1 for every h, as in :class:`CustomLoss`.

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
    >>> post = epfast.fit_linear(X, y, loss=epfast.CustomSite(moments))
    >>> post.predict_proba([[0.0], [1.0]]).round(2)
    array([0.5, 0.9])
    """

    moments: MomentsFunction | LowLevelCallable | None = None
    is_likelihood: bool = field(default=False, kw_only=True)  # type: ignore[misc]
    #: ``moments`` where they are compiled
    compiled: LowLevelCallable | None = field(default=None, init=False, repr=False, compare=False)

    row = "custom_site"

    def __post_init__(self) -> None:
        super().__post_init__()
        # a probability is at most 1
        self._set(bounded=_checks.flag("is_likelihood", self.is_likelihood))
        self._set(gives=frozenset({"moments"}))
        self.check_power(self.beta, "beta")
        self._set(compiled=compiled("moments", self.moments))
        if self.compiled is not None:
            actual = signature(self.compiled)
            if actual != SITE_SIGNATURE:
                raise ValueError(
                    f"moments is a compiled function of signature {actual!r}; allowed: "
                    f"{SITE_SIGNATURE!r}"
                )
        else:
            _checks.function("moments", self.moments, "m", "v")

    def core(self) -> CoreLoss:
        return CoreLoss.python(self._has_no_values)

    def own_moments(self, core: CoreLoss) -> UserSite:
        if self.compiled is not None:
            return UserSite(core, self.compiled, True)
        assert self.moments is not None
        return UserSite(core, Vectorised("moments", self.moments), False)


@dataclass(frozen=True)
class Implicit(Loss):
    """A factor that only the scheme knows: y are data of its oracle, as they are.

    For likelihoods that can be simulated, or evaluated by an :class:`epfast.Operator` alone: with
    ``scheme=epfast.Learned(oracle=...)``. Fits need no values of the loss. ``post.predict_latent``
    says what is known of h. ``predict``, ``predict_variance`` and ``sample_y`` take a simulator.

    Parameters
    ----------
    width : int, default=1
        Numbers of a response: y is (n,), or (n, width).
    simulate : callable, optional
        ``f(h, rng=rng)``: a draw of y, a number, for each latent value (N,). rng is a
        ``numpy.random.Generator``.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> def counts(h, rng):
    ...     return rng.poisson(np.exp(h)) * (rng.random(len(h)) < 0.7)
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(50, 2))
    >>> y = counts(X @ [1.0, -0.5], rng)
    >>> oracle = epfast.SampledFactor(sample=counts, observe=0.0, draws=50_000)
    >>> scheme = epfast.Learned(oracle=oracle)
    >>> post = epfast.fit_linear(X, y, loss=epfast.losses.Implicit(), scheme=scheme)
    >>> bool(np.abs(post.mean - [1.0, -0.5]).max() < 0.3)
    True
    """

    width: int = 1
    simulate: Callable[..., ArrayLike] | None = None
    row = "implicit"
    by_margin = False

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(gives=frozenset())
        self.check_power(self.beta, "beta")
        self._set(width=_checks.integer("width", self.width, least=1, most=64))
        if self.simulate is not None:
            Simulator("simulate", self.simulate, ("h",))

    @property
    def response_width(self) -> int:  # type: ignore[override]
        """Numbers of a response."""
        return self.width

    def core(self) -> CoreLoss:
        return CoreLoss.python(self._has_no_values, width=self.width)

    def responses(self, name: str, y: Given, n: int) -> Array:
        return _checks.responses(name, y, n, self.width).reshape(n, self.width)

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        if self.simulate is None:
            raise ValueError("simulate is None; allowed: a function that draws y, f(h, rng=rng)")
        flat = np.array(latent, dtype=np.float64).ravel()
        draws = Simulator("simulate", self.simulate, ("h",))(flat, rng=rng)
        return _checks.array("what simulate returned", draws, shape=flat.shape).reshape(
            latent.shape
        )

    def predict(self, mean: Array, variance: Array) -> Array:
        """Mean of y over 4,000 draws of h and of y."""
        return np.asarray(self._drawn(mean, variance).mean(axis=0))

    def predict_variance(self, mean: Array, variance: Array) -> Array:
        """Variance of y over the same draws."""
        return np.asarray(self._drawn(mean, variance).var(axis=0))

    def _drawn(self, mean: Array, variance: Array) -> Array:
        rng = np.random.default_rng(0)
        h = mean + np.sqrt(variance) * rng.standard_normal((DRAWS, len(mean)))
        return self.sample(h, rng)

"""Losses of the margin y h, y = -1 or +1: smooth ones, and piecewise linear ones."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast.losses.base import SMOOTH, SPREAD, Loss, closing_in


class SmoothMargin(Loss):
    """Base of those that are convex, fall with the margin, and are never negative."""

    log_concave = True
    rises = True
    bounded = True


@dataclass(frozen=True)
class Logistic(SmoothMargin):
    """l(m) = log(1 + exp(-m)): t is the logistic function."""

    row = "logistic"
    is_likelihood = True


@dataclass(frozen=True)
class Probit(SmoothMargin):
    """l(m) = -log Phi(m): t is the standard normal distribution function."""

    row = "probit"
    is_likelihood = True


@dataclass(frozen=True)
class SquaredHinge(SmoothMargin):
    """l(m) = max(0, 1 - m)^2."""

    row = "squared_hinge"

    def panel_ends(self) -> Array:
        return closing_in(1.0, min(1.0, 1.0 / np.sqrt(self.beta)))


@dataclass(frozen=True)
class PiecewiseLinear(Loss):
    """Any piecewise linear loss, continuous or not.

    Parameters
    ----------
    knots : sequence of float, default=()
        Margins where the slope or the value changes, increasing, at least one.
    slopes : sequence of float, default=()
        One more than knots: left of the first knot, between knots, right of the last.
    value : float, default=0.0
        The loss just left of the first knot.
    jumps : sequence of float, optional
        What is added at each knot. All 0 by default.

    Examples
    --------
    The ramp loss, a hinge cut off at 2:

    >>> import epfast
    >>> ramp = epfast.PiecewiseLinear(knots=(-1.0, 1.0), slopes=(0.0, -1.0, 0.0), value=2.0)
    >>> ramp.evaluate([-3.0, 0.0, 2.0])[0]
    array([2., 1., 0.])
    """

    knots: tuple[float, ...] = ()
    slopes: tuple[float, ...] = ()
    value: float = 0.0
    jumps: tuple[float, ...] | None = None

    row = "piecewise_linear"

    def __post_init__(self) -> None:
        super().__post_init__()
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
            gives=SMOOTH - {"continuous"} if jumps.any() else SMOOTH,
            kinks=tuple(map(float, knots)),
            # the loss is convex
            log_concave=bool((np.diff(slopes) >= 0.0).all()) and not jumps.any(),
            rises=bool(slopes.max() <= 0.0 and jumps.max() <= 0.0),
        )
        # not negative at a knot, and it does not fall outward
        at_knots = np.reshape(self.parameters[2:], (-1, 4))[:, 1:3]
        self._set(bounded=bool(at_knots.min() >= 0.0 and slopes[0] <= 0.0 <= slopes[-1]))

    def panel_ends(self) -> Array:
        kinks = np.array(self.kinks)
        return np.concatenate([kinks[0] - SPREAD[::-1], kinks, kinks[-1] + SPREAD])


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
    epsilon : float, default=0.1
        In [1e-100, 1e100]. At 1 it is the hinge.
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
        self._set(parameters=tuple(exact), bounded=True)


@dataclass(frozen=True)
class NoisyStep(PiecewiseLinear):
    """The likelihood with flipped labels, t(h) = epsilon + (1 - 2 epsilon) step(h), as a loss.

    l is -log(epsilon) below 0 and -log(1 - epsilon) above (Qi & Guo 2012).

    Parameters
    ----------
    epsilon : float, default=0.1
        Probability that a label is flipped, in (0, 0.5).
    """

    epsilon: float = 0.1
    knots: tuple[float, ...] = field(default=(0.0,), init=False, repr=False)
    slopes: tuple[float, ...] = field(default=(0.0, 0.0), init=False, repr=False)
    value: float = field(default=0.0, init=False, repr=False)
    jumps: tuple[float, ...] | None = field(default=None, init=False, repr=False)

    is_likelihood = True
    learnable = ("epsilon",)
    ranges: ClassVar = {"epsilon": (1e-6, 0.49)}

    def __post_init__(self) -> None:
        epsilon = _checks.number("epsilon", self.epsilon, least=1e-300, most=0.5)
        if epsilon == 0.5:
            raise ValueError("epsilon is 0.5; allowed: less than 0.5 (labels would say nothing)")
        value = float(-np.log(epsilon))
        self._set(epsilon=epsilon, value=value, jumps=(float(-np.log1p(-epsilon)) - value,))
        super().__post_init__()

"""Likelihoods of positive times, which may be right-censored: gamma and Weibull."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import special

from epfast import _checks
from epfast._arrays import Array
from epfast.losses import quantiles, units
from epfast.losses.base import Loss


def _times(name: str, y: Any, n: int) -> Array:
    """log t, and 1 where t is observed, 0 where censored, (n, 2)."""
    given = _checks.responses(name, y, n, 1, 2)
    time, observed = given.T if given.ndim == 2 else (given, np.ones(n))
    if not (time > 0.0).all():
        raise ValueError(f"{name} has a time of {time.min():g}; allowed: times > 0")
    if not ((observed == 0.0) | (observed == 1.0)).all():
        raise ValueError(
            f"{name} has other numbers than 0 and 1 in its second column; allowed: (time, 1), or "
            "(time, 0) where the time is censored"
        )
    return np.stack([np.log(time), observed], axis=1)


@dataclass(frozen=True)
class GammaNoise(Loss):
    """Positive y, gamma distributed with mean exp(h) and a shape. Shape 1 is exponential.

    l(h; y) = shape (h + y exp(-h)) - (shape - 1) log y - shape log(shape) + log Gamma(shape). y is
    (n,), or (n, 2): times, and 1 where they are observed, 0 where the event came later.

    Parameters
    ----------
    shape : float, default=1.0
        In [1e-3, 1e4]. The variance of y given h is exp(2 h) / shape.
    """

    name: str = field(default="gamma", init=False, repr=False)
    parameters: tuple[float, ...] = field(default=(), init=False, repr=False)
    shape: float = 1.0

    by_margin = False
    is_likelihood = True
    log_concave = True
    response_width = 2
    learnable = ("shape",)

    def __post_init__(self) -> None:
        k = _checks.number("shape", self.shape, above=0.0, least=1e-3, most=1e4)
        self._set(beta=_checks.number("beta", self.beta, above=0.0))
        self._set(shape=k, parameters=(k, float(np.log(k)), float(special.gammaln(k))))

    def responses(self, name: str, y: Any, n: int) -> Array:
        """Check times (n,), or times and flags (n, 2). The core reads log t and flags, (n, 2)."""
        return _times(name, y, n)

    def as_given(self, responses: Array) -> Array:
        return np.column_stack([np.exp(responses[:, 0]), responses[:, 1]])

    def typical(self, responses: Array, weights: Array | None = None) -> tuple[float, float]:
        shift = responses[:, 2] if self.has_offset else 0.0
        return units.moments(responses[:, 0] - shift, weights)[0], 1.0

    def limits(self, name: str) -> tuple[float, float]:
        return 1e-2, 5e3

    def predict(self, mean: Array, variance: Array) -> Array:
        """Mean of y, exp(mean + variance / 2). Infinite beyond the largest double."""
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(mean + 0.5 * variance))

    def predict_variance(self, mean: Array, variance: Array) -> Array:
        """Variance of y."""
        with np.errstate(over="ignore", invalid="ignore"):
            expected = np.exp(2.0 * mean + variance)
            result = expected * (np.expm1(variance) + np.exp(variance) / self.shape)
        return np.asarray(np.where(np.isnan(result), np.inf, result))

    def _tails(self, log_y: Array, h: Array) -> tuple[Array, Array]:
        """P(log y' <= log y) and its rest, given h."""
        x = self.shape * np.exp(np.minimum(log_y - h, 700.0))
        return special.gammainc(self.shape, x), special.gammaincc(self.shape, x)

    @property
    def _width(self) -> float:
        """The range of h over which these turn."""
        return float(1.0 / np.sqrt(1.0 + self.shape))

    def predict_tails(self, y: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        return _tails_of_times(self, y, mean, variance)

    def predict_quantile(self, level: float, mean: Array, variance: Array) -> Array:
        sd = np.sqrt(variance + special.polygamma(1, self.shape))
        return np.exp(quantiles.of_location(self._tails, level, mean, variance, sd, self._width))

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        """Draw times."""
        with np.errstate(over="ignore"):
            return np.asarray(
                np.exp(latent) * rng.gamma(self.shape, 1.0 / self.shape, latent.shape)
            )

    def describe(self) -> dict[str, Any]:
        return {"shape": self.shape}


@dataclass(frozen=True)
class Weibull(Loss):
    """Positive y, Weibull distributed with scale exp(h) and a shape. Shape 1 is exponential.

    P(y > t) = exp(-(t exp(-h))^shape). y is (n,), or (n, 2): times, and 1 where they are observed,
    0 where the event came later.

    Parameters
    ----------
    shape : float, default=1.0
        In [1e-3, 1e4].
    """

    name: str = field(default="weibull", init=False, repr=False)
    parameters: tuple[float, ...] = field(default=(), init=False, repr=False)
    shape: float = 1.0

    by_margin = False
    is_likelihood = True
    log_concave = True
    response_width = 2
    learnable = ("shape",)

    def __post_init__(self) -> None:
        k = _checks.number("shape", self.shape, above=0.0, least=1e-3, most=1e4)
        self._set(beta=_checks.number("beta", self.beta, above=0.0))
        self._set(shape=k, parameters=(k, float(np.log(k))))

    def responses(self, name: str, y: Any, n: int) -> Array:
        """Check times (n,), or times and flags (n, 2). The core reads log t and flags, (n, 2)."""
        return _times(name, y, n)

    def as_given(self, responses: Array) -> Array:
        return np.column_stack([np.exp(responses[:, 0]), responses[:, 1]])

    def typical(self, responses: Array, weights: Array | None = None) -> tuple[float, float]:
        shift = responses[:, 2] if self.has_offset else 0.0
        return units.moments(responses[:, 0] - shift, weights)[0], 1.0

    def limits(self, name: str) -> tuple[float, float]:
        return 1e-2, 5e3

    def predict(self, mean: Array, variance: Array) -> Array:
        """Mean of y, exp(mean + variance / 2) Gamma(1 + 1 / shape)."""
        with np.errstate(over="ignore"):
            return np.asarray(
                np.exp(mean + 0.5 * variance + special.gammaln(1.0 + 1.0 / self.shape))
            )

    def predict_variance(self, mean: Array, variance: Array) -> Array:
        """Variance of y."""
        first, second = (special.gammaln(1.0 + k / self.shape) for k in (1.0, 2.0))
        with np.errstate(over="ignore", invalid="ignore"):
            square = np.exp(2.0 * mean + variance + 2.0 * first)
            result = square * np.expm1(variance + (second - 2.0 * first))
        return np.asarray(np.where(np.isnan(result), np.inf, result))

    def _tails(self, log_y: Array, h: Array) -> tuple[Array, Array]:
        """P(log y' <= log y) and its rest, given h."""
        hazard = np.exp(np.minimum(self.shape * (log_y - h), 700.0))
        return -np.expm1(-hazard), np.exp(-hazard)

    @property
    def _width(self) -> float:
        """The range of h over which these turn."""
        return 1.0 / self.shape

    def predict_tails(self, y: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        return _tails_of_times(self, y, mean, variance)

    def predict_quantile(self, level: float, mean: Array, variance: Array) -> Array:
        sd = np.sqrt(variance + 2.0 * self._width**2)
        return np.exp(quantiles.of_location(self._tails, level, mean, variance, sd, self._width))

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        """Draw times."""
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(latent) * rng.weibull(self.shape, latent.shape))

    def describe(self) -> dict[str, Any]:
        return {"shape": self.shape}


def _tails_of_times(
    loss: GammaNoise | Weibull, y: Array, mean: Array, variance: Array
) -> tuple[Array, Array]:
    """See :meth:`Loss.predict_tails`: h is a location of log y."""
    with np.errstate(divide="ignore"):
        log_y = np.log(np.maximum(y, 0.0))
    at = np.maximum(log_y, -1e3)
    below, above = quantiles.expected(loss._tails, at, at, loss._width, mean, np.sqrt(variance))
    return below, above

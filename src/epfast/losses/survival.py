"""Likelihoods of positive times, which may be right-censored: gamma and Weibull."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy import special

from epfast import _checks
from epfast._arrays import Array
from epfast.losses import units
from epfast.losses.counts import LogLink


@dataclass(frozen=True)
class TimeLikelihood(LogLink):
    """Base of the positive times, or right-censored ones, of which h is a location of the log."""

    shape: float = 1.0

    learnable = ("shape",)
    ranges: ClassVar = {"shape": (1e-2, 5e3)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(shape=_checks.number("shape", self.shape, above=0.0, least=1e-3, most=1e4))

    def responses(self, name: str, y: Any, n: int) -> Array:
        """Check times (n,), or times and flags (n, 2). The core reads log t and flags, (n, 2)."""
        given = _checks.responses(name, y, n, 1, 2)
        time, observed = given.T if given.ndim == 2 else (given, np.ones(n))
        if not (time > 0.0).all():
            raise ValueError(f"{name} has a time of {time.min():g}; allowed: times > 0")
        if not ((observed == 0.0) | (observed == 1.0)).all():
            raise ValueError(
                f"{name} has other numbers than 0 and 1 in its second column; allowed: (time, 1), "
                "or (time, 0) where the time is censored"
            )
        return np.stack([np.log(time), observed], axis=1)

    def as_given(self, responses: Array) -> Array:
        return np.column_stack([np.exp(responses[:, 0]), responses[:, 1]])

    def typical(self, responses: Array, weights: Array | None = None) -> tuple[float, float]:
        return units.moments(responses[:, 0] - self.offset_of(responses), weights)[0], 1.0

    def predict_tails(self, y: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        with np.errstate(divide="ignore"):
            log_y = np.log(np.maximum(y, 0.0))
        return self._tails(np.maximum(log_y, -1e3), mean, variance)

    def predict_quantile(self, level: float, mean: Array, variance: Array) -> Array:
        scale = np.sqrt(variance) + self.turn(mean)
        return np.exp(self._root(level, mean, variance, mean, scale))

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        """Draw times."""
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(latent) * self.multiples(latent.shape, rng))


@dataclass(frozen=True)
class GammaNoise(TimeLikelihood):
    """Positive y, gamma distributed with mean exp(h) and a shape. Shape 1 is exponential.

    l(h; y) = shape (h + y exp(-h)) - (shape - 1) log y - shape log(shape) + log Gamma(shape). y is
    (n,), or (n, 2): times, and 1 where they are observed, 0 where the event came later.

    Parameters
    ----------
    shape : float, default=1.0
        In [1e-3, 1e4]. The variance of y given h is exp(2 h) / shape.
    """

    row = "gamma"

    def __post_init__(self) -> None:
        super().__post_init__()
        k = self.shape
        parameters = (k, float(np.log(k)), float(special.gammaln(k)))
        self._set(parameters=parameters, log_square=float(np.log1p(1.0 / k)))

    def tails_given(self, x: Array, h: Array) -> tuple[Array, Array]:
        rate = self.shape * np.exp(np.minimum(x - h, 700.0))
        return special.gammainc(self.shape, rate), special.gammaincc(self.shape, rate)

    def turn(self, x: Any) -> float:
        return float(1.0 / np.sqrt(1.0 + self.shape))

    def multiples(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        return rng.gamma(self.shape, 1.0 / self.shape, shape)


@dataclass(frozen=True)
class Weibull(TimeLikelihood):
    """Positive y, Weibull distributed with scale exp(h) and a shape. Shape 1 is exponential.

    P(y > t) = exp(-(t exp(-h))^shape). y is (n,), or (n, 2): times, and 1 where they are observed,
    0 where the event came later.

    Parameters
    ----------
    shape : float, default=1.0
        In [1e-3, 1e4].
    """

    row = "weibull"

    def __post_init__(self) -> None:
        super().__post_init__()
        k = self.shape
        log_mean = float(special.gammaln(1.0 + 1.0 / k))
        log_square = float(special.gammaln(1.0 + 2.0 / k)) - 2.0 * log_mean
        self._set(parameters=(k, float(np.log(k))), log_mean=log_mean, log_square=log_square)

    def tails_given(self, x: Array, h: Array) -> tuple[Array, Array]:
        hazard = np.exp(np.minimum(self.shape * (x - h), 700.0))
        return -np.expm1(-hazard), np.exp(-hazard)

    def turn(self, x: Any) -> float:
        return 1.0 / self.shape

    def multiples(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        return rng.weibull(self.shape, shape)

"""Likelihoods with a log link, of counts and of times that may be censored. Binomial counts.

Poisson, negative binomial, gamma and Weibull: the mean is a multiple of exp(h).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy import special

from epfast import _checks
from epfast._arrays import Array, Given, Which
from epfast.losses import quantiles, units
from epfast.losses.base import Likelihood
from epfast.losses.classification import Logistic

#: largest count that is exact as a double
LARGEST = 2.0**53
#: a p whose 1 - p has less than 13 digits of it
ROUNDED = 1e-3
#: log of about the least normal double
LEAST_LOG = -705.0


def _counts(name: str, given: Array) -> Array:
    return _checks.whole(name, given, LARGEST, "counts, integers >= 0")


def _negative_binomial_tails(
    k: Array, h: Array, size: float, log_size: float
) -> tuple[Array, Array]:
    """P(y <= k) and P(y > k) of the mean exp(h)."""
    # by the smaller of p and 1 - p, as the other rounds to 1
    swapped = h < log_size
    small = special.expit(-np.abs(h - log_size))
    a, b = np.where(swapped, k + 1.0, size), np.where(swapped, size, k + 1.0)
    one, other = special.betainc(a, b, small), special.betainc(b, a, 1.0 - small)
    # a dear function, where that has rounded
    rounded = small < ROUNDED
    other = np.where(rounded, 1.0 - one, other)
    special.betaincc(a, b, small, out=other, where=rounded & (one > 0.9))
    below, above = np.where(swapped, other, one), np.where(swapped, one, other)
    # nearly p^size / (size B(k + 1, size)), where p is no normal number
    deep = log_size - h < LEAST_LOG
    if not deep.any():
        return below, above
    log_below = size * np.minimum(log_size - h, 0.0) - special.betaln(k + 1.0, size) - log_size
    log_below = np.minimum(log_below, 0.0)
    below = np.where(deep, np.exp(log_below), below)
    return below, np.where(deep, -np.expm1(log_below), above)


class LogLink(Likelihood):
    """Base of those whose mean is a multiple of exp(h), as is their standard deviation, or part."""

    #: log E[y | h] - h
    log_mean: ClassVar[float] = 0.0
    #: log E[y^2 | h] - 2 log E[y | h]. Of counts less the variance of Poisson
    log_square: ClassVar[float] = 0.0

    def tails_given(self, x: Array, h: Array) -> tuple[Array, Array]:
        """P(y <= k) and P(y > k) given h: x is the count k, or the log of a time k."""
        raise NotImplementedError

    def turn(self, x: Array) -> Array | float:
        """The range of h over which these turn."""
        raise NotImplementedError

    def multiples(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array | float:
        """Draw y exp(-h), or of counts their rate times exp(-h)."""
        return 1.0

    def _tails(self, x: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Both of :meth:`tails_given` for h ~ N(mean, variance), (n,)."""
        center = np.log(np.maximum(x, 0.5)) if self.discrete else x
        width, sd = self.turn(np.maximum(x, 0.0)), np.sqrt(variance)
        below, above = quantiles.expected(self.tails_given, x, center, width, mean, sd)
        return below, above

    def _root(self, level: float, mean: Array, variance: Array, guess: Array, step: Array) -> Array:
        """x at which they come to a level, (n,), from a guess."""

        def tails(x: Array, rows: Which) -> tuple[Array, Array]:
            return self._tails(x, mean[rows], variance[rows])

        return quantiles.root(tails, level, guess, step, whole=self.discrete)

    def predict(self, mean: Array, variance: Array) -> Array:
        """Mean of y, that of a multiple of exp(h). Infinite beyond the largest double."""
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(mean + 0.5 * variance + self.log_mean))

    def predict_variance(self, mean: Array, variance: Array) -> Array:
        """Variance of y, of counts with that of Poisson."""
        with np.errstate(over="ignore", invalid="ignore"):
            square = np.exp(2.0 * mean + variance + 2.0 * self.log_mean)
            rate_variance = square * np.expm1(variance + self.log_square)
        rate_variance = np.where(np.isnan(rate_variance), np.inf, rate_variance)
        return rate_variance + self.predict(mean, variance) if self.discrete else rate_variance


class CountLikelihood(LogLink):
    """Base of the counts with mean exp(h)."""

    discrete = True

    def responses(self, name: str, y: Given, n: int) -> Array:
        """Check counts (n,). The core reads the count and log count!, (n, 2)."""
        count = _counts(name, _checks.responses(name, y, n, 1))
        return np.stack([count, special.gammaln(count + 1.0)], axis=1)

    def typical(self, responses: Array, weights: Array | None = None) -> tuple[float, float]:
        offset = responses[:, 2] if self.has_offset else None
        return units.log_mean(responses[:, 0], offset, weights), 1.0

    def turn(self, x: Array) -> Array:
        # with the variance of the rate over its square: 1 / size
        return np.asarray(np.sqrt(1.0 / (x + 1.0) + np.expm1(self.log_square)))

    def predict_tails(self, y: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        return self._tails(y, mean, variance)

    def predict_quantile(self, level: float, mean: Array, variance: Array) -> Array:
        # as if log y were normal; a search of whole numbers corrects it
        most, normal = quantiles.LOG_MOST, special.ndtri(quantiles.level_of(level))
        spread = np.hypot(np.sqrt(variance), self.turn(np.exp(np.minimum(mean, most))))
        guess = np.exp(np.clip(mean + normal * spread, -1.0, most))
        return self._root(level, mean, variance, guess, np.clip(spread, 0.1, 8.0))

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        """Draw counts. A mean above 1e15 counts as 1e15."""
        with np.errstate(over="ignore"):
            rate = np.exp(latent) * self.multiples(latent.shape, rng)
            return rng.poisson(np.minimum(rate, 1e15)).astype(np.float64)


@dataclass(frozen=True)
class Poisson(CountLikelihood):
    """Counts with mean exp(h): l(h; y) = exp(h) - y h + log y!."""

    row = "poisson"
    bounded = True

    def tails_given(self, x: Array, h: Array) -> tuple[Array, Array]:
        rate = np.exp(np.minimum(h, 700.0))
        return special.gammaincc(x + 1.0, rate), special.gammainc(x + 1.0, rate)


@dataclass(frozen=True)
class NegativeBinomial(CountLikelihood):
    """Counts with mean exp(h) and a size: their variance is exp(h) + exp(2 h) / size.

    l(h; y) = (y + size) log(size + exp(h)) - y h - size log(size)
    - log(Gamma(y + size) / (Gamma(size) y!)). A large size is Poisson.

    Parameters
    ----------
    size : float, default=1.0
        Often called r, or 1 / alpha. In [1e-100, 1e15].
    """

    size: float = 1.0

    row = "negative_binomial"
    bounded = True
    learnable = ("size",)
    ranges: ClassVar = {"size": (1e-3, 1e6)}

    def __post_init__(self) -> None:
        super().__post_init__()
        size = _checks.number("size", self.size, above=0.0, least=1e-100, most=1e15)
        log_square = float(np.log1p(1.0 / size))
        self._set(size=size, parameters=(size, float(np.log(size))), log_square=log_square)

    def tails_given(self, x: Array, h: Array) -> tuple[Array, Array]:
        return _negative_binomial_tails(x, h, self.size, self.parameters[1])

    def multiples(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        return rng.gamma(self.size, 1.0 / self.size, shape)


@dataclass(frozen=True)
class TimeLikelihood(LogLink):
    """Base of the positive times, or right-censored ones, of which h is a location of the log."""

    shape: float = 1.0

    learnable = ("shape",)
    ranges: ClassVar = {"shape": (1e-2, 5e3)}

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(shape=_checks.number("shape", self.shape, above=0.0, least=1e-3, most=1e4))

    def responses(self, name: str, y: Given, n: int) -> Array:
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

    def turn(self, x: Array) -> float:
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

    def turn(self, x: Array) -> float:
        return 1.0 / self.shape

    def multiples(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        return rng.weibull(self.shape, shape)


@dataclass(frozen=True)
class Binomial(Likelihood):
    """Successes among trials with probability 1 / (1 + exp(-h)).

    l(h; y, n) = n log(1 + exp(h)) - y h - log binom(n, y). y has two columns: count and trials.
    """

    row = "binomial"
    bounded = True
    discrete = True
    response_width = 3

    def responses(self, name: str, y: Given, n: int) -> Array:
        """Check (count, trials), (n, 2). The core reads log binom(trials, count) too, (n, 3)."""
        given = _checks.responses(name, y, n, 2)
        count, trials = _counts(name, given).T
        if not (count <= trials).all():
            raise ValueError(
                f"{name} has a count above its trials; allowed: (count, trials), count <= trials"
            )
        constant = -np.log1p(trials) - special.betaln(trials - count + 1.0, count + 1.0)
        return np.stack([count, trials, constant], axis=1)

    def outcomes(self, responses: Array) -> tuple[Array, Array]:
        """Shares of successes, which weigh as their trials do."""
        count, trials = responses[:, 0], responses[:, 1]
        return count / np.maximum(trials, 1.0), trials.copy()

    def predict_proba(self, mean: Array, variance: Array) -> Array:
        """Probability of success in one trial, E[1 / (1 + exp(-h))]."""
        return _BERNOULLI.predict_proba(mean, variance)

    def predict(self, mean: Array, variance: Array) -> Array:
        """Mean of count / trials, which is the probability of success."""
        return self.predict_proba(mean, variance)

    def predict_variance(self, mean: Array, variance: Array) -> Array:
        """Variance of the outcome of one trial."""
        p = self.predict_proba(mean, variance)
        return p * (1.0 - p)

    def predict_tails(self, y: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        """Probabilities of an outcome below y and above y, of one trial."""
        above = np.where(y < 1.0, self.predict_proba(mean, variance), 0.0)
        above = np.where(y < 0.0, 1.0, above)
        return 1.0 - above, above

    def predict_quantile(self, level: float, mean: Array, variance: Array) -> Array:
        level = quantiles.level_of(level)
        failure = self.predict_proba(-mean, variance)
        return np.asarray(failure < level, dtype=np.float64)

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        """Draw outcomes of one trial, 0 or 1."""
        return np.asarray(rng.random(latent.shape) < special.expit(latent), dtype=np.float64)

    def replicate(self, latent: Array, responses: Array, rng: np.random.Generator) -> Array:
        """Draw counts of as many trials as were observed."""
        p = special.expit(latent + self.offset_of(responses))
        return rng.binomial(responses[:, 1].astype(np.int64), p).astype(np.float64)


_BERNOULLI = Logistic()

"""Losses of counts: Poisson, and binomial with trials."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import special

from epfast import _checks
from epfast._arrays import Array
from epfast.losses import prediction
from epfast.losses.base import Loss

#: largest count that is exact as a double
LARGEST = 2.0**53


def _counts(name: str, given: Array) -> Array:
    if not ((given >= 0.0) & (given <= LARGEST) & (given == np.floor(given))).all():
        raise ValueError(
            f"{name} holds numbers from {given.min():g} to {given.max():g}, or fractions; allowed: "
            "counts, integers >= 0"
        )
    return given


@dataclass(frozen=True)
class Poisson(Loss):
    """Counts with mean exp(h): l(h; y) = exp(h) - y h + log y!."""

    name: str = field(default="poisson", init=False, repr=False)
    parameters: tuple[float, ...] = field(default=(), init=False, repr=False)

    by_margin = False
    is_likelihood = True
    response_width = 2

    def responses(self, name: str, y: Any, n: int) -> Array:
        """Check counts (n,); the core reads the count and log count!, (n, 2)."""
        count = _counts(name, _checks.array(name, y, shape=(n,)))
        return np.stack([count, special.gammaln(count + 1.0)], axis=1)

    def predict(self, mean: Array, variance: Array) -> Array:
        """Mean of y, E[exp(h)] = exp(mean + variance / 2); infinite beyond the largest double."""
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(mean + 0.5 * variance))

    def predict_variance(self, mean: Array, variance: Array) -> Array:
        """Variance of y: E[exp(h)] + Var[exp(h)]."""
        with np.errstate(over="ignore"):
            expected = np.exp(mean + 0.5 * variance)
            return np.asarray(expected + expected**2 * np.expm1(variance))

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        """Draw counts; a mean above 1e15 counts as 1e15."""
        with np.errstate(over="ignore"):
            return rng.poisson(np.minimum(np.exp(latent), 1e15)).astype(np.float64)


@dataclass(frozen=True)
class Binomial(Loss):
    """Successes among trials with probability 1 / (1 + exp(-h)).

    l(h; y, n) = n log(1 + exp(h)) - y h - log binom(n, y). y has two columns: count and trials.
    """

    name: str = field(default="binomial", init=False, repr=False)
    parameters: tuple[float, ...] = field(default=(), init=False, repr=False)

    by_margin = False
    is_likelihood = True
    response_width = 3

    def responses(self, name: str, y: Any, n: int) -> Array:
        """Check (count, trials), (n, 2); the core reads log binom(trials, count) too, (n, 3)."""
        given = _checks.array(name, y, shape=(n, 2))
        count, trials = _counts(name, given).T
        if not (count <= trials).all():
            raise ValueError(
                f"{name} has a count above its trials; allowed: (count, trials), count <= trials"
            )
        constant = -np.log1p(trials) - special.betaln(trials - count + 1.0, count + 1.0)
        return np.stack([count, trials, constant], axis=1)

    def predict_proba(self, mean: Array, variance: Array) -> Array:
        """Probability of success in one trial, E[1 / (1 + exp(-h))]."""
        return prediction.label_probability(_BERNOULLI, mean, variance)

    def predict(self, mean: Array, variance: Array) -> Array:
        """Mean of count / trials, which is the probability of success."""
        return self.predict_proba(mean, variance)

    def predict_variance(self, mean: Array, variance: Array) -> Array:
        """Variance of the outcome of one trial."""
        p = self.predict_proba(mean, variance)
        return p * (1.0 - p)

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        """Draw outcomes of one trial, 0 or 1."""
        return np.asarray(rng.random(latent.shape) < special.expit(latent), dtype=np.float64)


_BERNOULLI = Loss("logistic")

"""Losses of counts: Poisson, and binomial with trials."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
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


class CountLoss(Loss):
    """Base of the losses that are not of the margin: minus the log probability of y."""

    by_margin = False
    is_likelihood = True

    def evaluate(
        self, margins: ArrayLike, y: Any = None, *, derivatives: bool = True
    ) -> tuple[Array, ...]:
        """Value, slope and curvature of -log p(y | h) in h.

        Parameters
        ----------
        margins : array_like of shape (n,)
            Latent values h.
        y : array_like of shape (n,) or (n, 2)
            Responses, one per latent value.
        derivatives : bool
            Whether slope and curvature are wanted.

        Returns
        -------
        value, slope, curvature : ndarray of shape (n,)
            Only ``(value,)`` without derivatives.
        """
        h = _checks.array("margins", margins, shape=(None,), finite=False)
        return self.at(h, self.responses("y", y, len(h)), derivatives)

    def at(self, h: Array, responses: Array, derivatives: bool = True) -> tuple[Array, ...]:
        """As :meth:`evaluate`, with the result of :meth:`responses`."""
        outputs = np.empty((3 if derivatives else 1, len(h)))
        value, slope, curvature = (*outputs, None, None)[:3]
        self.core().at(np.ascontiguousarray(h), value, slope, curvature, responses)
        return tuple(outputs)

    def values(self, latent: Array, responses: Array) -> Array:
        columns = latent if latent.ndim == 2 else latent[:, None]
        found = [self.at(column, responses, False)[0] for column in columns.T]
        return np.asarray(self.beta * np.stack(found, axis=1).reshape(latent.shape))

    def break_points(self) -> Array:
        return np.empty(0)

    def log_predictive(self, responses: Array, mean: Array, variance: Array) -> Array:
        """log E[p(y | h)^beta], (n,); at variance 0 the log probability at the mean."""
        result = -self.values(mean, responses)
        uncertain = variance > 0.0
        if uncertain.any():
            result[uncertain] = prediction.log_integral(
                self, responses[uncertain], mean[uncertain], variance[uncertain]
            )
        return result


@dataclass(frozen=True)
class Poisson(CountLoss):
    """Counts with mean exp(h): l(h; y) = exp(h) - y h + log y!."""

    name: str = field(default="poisson", init=False, repr=False)
    parameters: tuple[float, ...] = field(default=(), init=False, repr=False)

    response_width = 2

    def responses(self, name: str, y: Any, n: int) -> Array:
        """Check counts (n,); the core reads the count and log count!, (n, 2)."""
        count = _counts(name, _checks.array(name, y, shape=(n,)))
        return np.stack([count, special.gammaln(count + 1.0)], axis=1)

    def predict_proba(self, mean: Array, variance: Array) -> Array:
        """Refused: a count has no label."""
        raise ValueError("loss is Poisson, whose y are counts; allowed for it: predict")

    def predict(self, mean: Array, variance: Array) -> Array:
        """Mean of y, E[exp(h)]."""
        with np.errstate(over="ignore"):
            return np.asarray(np.exp(mean + 0.5 * variance))

    def predict_variance(self, mean: Array, variance: Array) -> Array:
        """Variance of y: E[exp(h)] + Var[exp(h)]."""
        with np.errstate(over="ignore"):
            expected = np.exp(mean + 0.5 * variance)
            return np.asarray(expected + expected**2 * np.expm1(variance))


@dataclass(frozen=True)
class Binomial(CountLoss):
    """Successes among trials with probability 1 / (1 + exp(-h)).

    l(h; y, n) = n log(1 + exp(h)) - y h - log binom(n, y). y has two columns: count and trials.
    """

    name: str = field(default="binomial", init=False, repr=False)
    parameters: tuple[float, ...] = field(default=(), init=False, repr=False)

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


_BERNOULLI = Loss("logistic")

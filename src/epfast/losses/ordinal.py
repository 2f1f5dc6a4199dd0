"""Likelihoods of ordered classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from epfast import _checks
from epfast._arrays import Array, Given
from epfast.losses import quantiles
from epfast.losses.base import Likelihood
from epfast.losses.classification import Logistic

LINKS = ("probit", "logit")
#: most levels that are taken from y: more are counts, or a mistake
MOST_LEVELS = 1000
_LOGISTIC = Logistic()


@dataclass(frozen=True)
class Ordinal(Likelihood):
    """Ordered classes 0 to K - 1: class k if h plus noise is between cuts k - 1 and k.

    P(y <= k) = F(cut_k - h), F the normal or the logistic distribution function. A model with an
    intercept shifts all cuts: then hold one of them, or leave the intercept out. By its name,
    ``loss="ordinal"``, a fit takes the levels from y, 0 to its largest, and cuts evenly in [-1, 1].

    Parameters
    ----------
    cuts : sequence of float, default=(-1.0, 1.0)
        The K - 1 cuts, increasing.
    link : {"probit", "logit"}, default="probit"
        The distribution of the noise: standard normal, or logistic.
    """

    cuts: tuple[float, ...] = (-1.0, 1.0)
    link: str = "probit"

    discrete = True
    bounded = True
    response_width = 1
    learnable = ("cuts",)

    def __post_init__(self) -> None:
        cuts = _checks.array("cuts", self.cuts, shape=(None,))
        if cuts.size == 0 or not (cuts[1:] > cuts[:-1]).all():
            raise ValueError(f"cuts is {self.cuts}; allowed: at least one, increasing")
        link = _checks.choice("link", self.link, LINKS)
        super().__post_init__()
        own = tuple(map(float, cuts))
        parameters = (float(len(own) + 1), -np.inf, *own, np.inf)
        self._set(cuts=own, link=link, name=f"ordinal_{link}", parameters=parameters)

    @classmethod
    def of(cls, y: Given) -> Ordinal:
        """The loss of the levels 0 to max(y), two or more, with cuts evenly in [-1, 1].

        y that are no levels get the defaults, whose :meth:`responses` refuse them.
        """
        given = _checks.real_array("y", y).ravel()
        most = float(given.max(initial=1.0))
        if most >= MOST_LEVELS:
            raise ValueError(
                f"y holds numbers up to {most:g}; allowed with loss='ordinal', which takes its "
                f"levels from y: integers 0 to {MOST_LEVELS - 1}"
            )
        if not ((given >= 0.0) & (given == np.floor(given))).all():
            return cls()
        return cls(tuple(np.linspace(-1.0, 1.0, int(most)).tolist()) if most > 1.0 else (0.0,))

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.cuts) + 1

    def responses(self, name: str, y: Given, n: int) -> Array:
        """Check classes (n,)."""
        given, most = _checks.responses(name, y, n, 1), len(self.cuts)
        allowed = (
            f"classes, integers 0 to {most} with {most} cuts, as losses.Ordinal(cuts) has them"
        )
        return _checks.whole(name, given, most, allowed)[:, None].copy()

    def started(self, responses: Array, weights: Array | None = None) -> Ordinal:
        """Cuts by the shares of the classes, each with half a row more."""
        mass = np.bincount(responses[:, 0].astype(np.intp), weights, self.n_classes) + 0.5
        below = np.cumsum(mass)[:-1] / mass.sum()
        cuts = special.ndtri(below) if self.link == "probit" else special.logit(below)
        return self.with_parameters(cuts=tuple(map(float, cuts)))

    def numbers_of(self, responses: Array) -> NDArray[np.intp]:
        """The cuts below and above the class of each row, (n, 2)."""
        above = responses[:, 0].astype(np.intp)
        return np.stack([above - 1, above], axis=1)

    def predict_proba(self, mean: Array, variance: Array) -> Array:
        """Probabilities of the classes, (n, K)."""
        proba = np.empty((len(mean), self.n_classes))
        for k in range(self.n_classes):
            given = np.full((len(mean), 1), float(k))
            proba[:, k] = np.exp(self.log_predictive(given, mean, variance))
        return np.asarray(proba / proba.sum(axis=1, keepdims=True))

    def predict(self, mean: Array, variance: Array) -> Array:
        """The most probable class, (n,)."""
        proba = self.predict_proba(mean, variance)
        return np.asarray(proba.argmax(axis=1), dtype=np.float64)

    def predict_variance(self, mean: Array, variance: Array) -> Array:
        """Variance of the number of the class, (n,)."""
        p, k = self.predict_proba(mean, variance), np.arange(self.n_classes)
        return np.asarray((p * (k - (p @ k)[:, None]) ** 2).sum(axis=1))

    def predict_tails(self, y: Array, mean: Array, variance: Array) -> tuple[Array, Array]:
        at = np.concatenate([[-np.inf], self.cuts, [np.inf]])
        cut = at[np.clip(np.floor(y) + 1.0, 0, len(at) - 1).astype(np.intp)]
        margin = np.clip(cut - mean, -1e6, 1e6)
        return self._below(margin, variance), self._below(-margin, variance)

    def predict_quantile(self, level: float, mean: Array, variance: Array) -> Array:
        level = quantiles.level_of(level)
        below = np.stack([self._below(cut - mean, variance) for cut in self.cuts], axis=1)
        return np.asarray((below < level).sum(axis=1), dtype=np.float64)

    def _below(self, margin: Array, variance: Array) -> Array:
        """E[F(margin - h)], h ~ N(0, variance)."""
        if self.link == "probit":
            return np.asarray(special.ndtr(margin / np.sqrt(1.0 + variance)))
        return _LOGISTIC.predict_proba(margin, variance)

    def sample(self, latent: Array, rng: np.random.Generator) -> Array:
        """Draw classes."""
        noise = (
            rng.standard_normal(latent.shape)
            if self.link == "probit"
            else rng.logistic(size=latent.shape)
        )
        return np.searchsorted(self.cuts, latent + noise).astype(np.float64)

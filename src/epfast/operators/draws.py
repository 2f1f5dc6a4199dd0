"""Weighted draws of the variables of a factor, and proposals that they come from."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

from epfast._arrays import Array
from epfast.operators.importance import ENOUGH, TEMPERATURES
from epfast.operators.messages import KINDS

#: a message of one input, (1, 2)
Message = Array
#: share of draws from the cavity in a proposal that was fitted again
SPARE = 0.1


class WeightedDraws(NamedTuple):
    """Weighted draws for one message."""

    #: (M,) for each input, as :meth:`MessageKind.statistics` takes them
    u: list[Array]
    log_w: Array

    @property
    def broken(self) -> bool:
        """Whether a weight is infinite or NaN."""
        return not bool((self.log_w < np.inf).all())

    def weights(self) -> Array:
        """Normalised weights. NaN if all are 0."""
        w = np.exp(self.log_w - self.log_w.max())
        return np.asarray(w / w.sum())

    def ess(self) -> float:
        """Effective draws, (sum w)^2 / sum w^2. 0 if all weights are."""
        top = self.log_w.max()
        if not np.isfinite(top):
            return 0.0
        w = np.exp(self.log_w - top)
        return float(w.sum() ** 2 / (w * w).sum())

    def log_mean(self) -> float:
        """Log of the mean weight."""
        top = self.log_w.max()
        return float(top + np.log(np.exp(self.log_w - top).mean()))

    def joined(self, more: WeightedDraws) -> WeightedDraws:
        """With more of them."""
        u = [np.concatenate(pair) for pair in zip(self.u, more.u, strict=True)]
        return WeightedDraws(u, np.concatenate([self.log_w, more.log_w]))


class MessageProposal(NamedTuple):
    """A product of messages, one for each drawn input. Or a mixture of several such products."""

    products: tuple[tuple[Message, ...], ...]
    shares: tuple[float, ...]

    def draw(self, kinds: list[str], rng: np.random.Generator, size: int) -> list[Array]:
        """Draws (size,) of each input."""
        if len(self.products) == 1:
            pairs = zip(kinds, self.products[0], strict=True)
            return [KINDS[kind].draw(p[0], rng, size) for kind, p in pairs]
        which = np.digitize(rng.random(size), np.cumsum(self.shares)[:-1])
        found = [np.empty(size) for _ in kinds]
        for part, product in enumerate(self.products):
            mine = np.flatnonzero(which == part)
            for u, kind, p in zip(found, kinds, product, strict=True):
                u[mine] = KINDS[kind].draw(p[0], rng, len(mine))
        return found

    def log_density(self, kinds: list[str], u: list[Array]) -> Array:
        """Log of its density at draws."""
        logs = [
            np.log(share) + sum(log_message(*each) for each in zip(kinds, product, u, strict=True))
            for share, product in zip(self.shares, self.products, strict=True)
        ]
        return np.asarray(np.logaddexp.reduce(logs, axis=0))


def log_message(kind: str, p: Message, u: Array) -> Array:
    """Log density of u under a message."""
    return np.asarray(KINDS[kind].log_density(KINDS[kind].natural(p), u[None])[0])


def projected(kind: str, u: Array, w: Array) -> tuple[Message, float]:
    """The projection (1) of weighted draws, NaN where there is none. And their variance of u."""
    seen = w > 0.0
    u, w = u[seen], w[seen]
    centre = np.sum(w * u)
    if kind == "gamma":  # the log of the mean, which no exp(u) is far above
        centre = special.logsumexp(u, b=w)
    first, second = KINDS[kind].integrands(u[None], np.array([[centre]]))
    eta = KINDS[kind].target(first @ w, second @ w, np.array([centre]))
    return KINDS[kind].usual(eta), float(np.sum(w * (u - np.sum(w * u)) ** 2))


def coordinate(kind: str, x: Array) -> tuple[Array, Array]:
    """u by the variable x, and log |dx / du|. Not finite outside of its support."""
    if kind == "gaussian":
        return x, np.zeros_like(x)
    if kind == "gamma":
        u = np.log(np.where(x > 0.0, x, np.nan))
        return u, u
    u = special.logit(np.where((x > 0.0) & (x < 1.0), x, np.nan))
    return u, special.log_expit(u) + special.log_expit(-u)


def log_match(x: Array, y: float, width: float) -> Array:
    """Log of a Gaussian kernel between draws and what is observed. Of width 0, of equality."""
    if width == 0.0:
        return np.where(np.isnan(x), np.nan, np.where(x == y, 0.0, -np.inf))
    z = (x - y) / width
    return np.asarray(-0.5 * z * z - np.log(width * np.sqrt(2.0 * np.pi)))


def refitted(
    kinds: list[str], draws: WeightedDraws, cavities: tuple[Message, ...]
) -> MessageProposal | None:
    """The next proposal: projections of the draws, widened, with 10 % cavity. None: no weight is.

    Where too few draws are effective to fit anything, weights are taken to a power below 1.
    """
    top = draws.log_w.max()
    if not np.isfinite(top):
        return None
    product = []
    w: NDArray[np.float64] = np.empty(0)
    for temperature in TEMPERATURES:
        w = np.where(draws.log_w > -np.inf, np.exp(temperature * (draws.log_w - top)), 0.0)
        w /= w.sum()
        if ENOUGH * len(kinds) * (w * w).sum() <= 1.0:
            break
    for kind, u in zip(kinds, draws.u[: len(kinds)], strict=True):
        p, variance = projected(kind, u, w)
        if not (variance > 0.0 and KINDS[kind].is_proper(p)[0]):
            return None
        product.append(KINDS[kind].widened(p))
    return MessageProposal((tuple(product), cavities), (1.0 - SPARE, SPARE))

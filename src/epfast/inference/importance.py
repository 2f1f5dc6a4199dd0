"""Importance sampling from a Gaussian to the exact posterior, in antithetic pairs."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
from scipy import special

from epfast._arrays import Array

#: numbers drawn at a time
BLOCK = 1 << 20
#: by how much standard errors of weighted means are wider than the delta method has them: without
#: it 94 % of them reach the mean of a long run within two (``bench/certificates/check.py``)
WIDER = 1.1


class Proposal(Protocol):
    """A Gaussian to draw from, and the exact posterior beside it."""

    @property
    def is_best(self) -> bool:
        """Whether it is the closest Gaussian there is, and the only one."""

    @property
    def size(self) -> int:
        """Number of standard normal numbers in a draw."""

    @property
    def width(self) -> int:
        """Numbers that a draw takes in memory."""

    def draw(self, z: Array) -> Array:
        """Turn standard normal draws (k, size) into draws of the parameters, (k, p)."""

    def log_ratio(self, z: Array, theta: Array) -> Array:
        """Log of prior times likelihood over the density of the Gaussian, (k,)."""

    def reported(self, theta: Array) -> Array:
        """What a check reports of the parameters, (k, q)."""

    def moments(self) -> tuple[Array, Array]:
        """Mean and standard deviation of what is reported, (q,) each."""

    def better(self) -> Proposal | None:
        """The closest Gaussian, found without the approximation; None if that is not possible."""


class Weights(NamedTuple):
    """Smoothed importance weights of draws, and what they show."""

    #: (draws,), normalised; the second half belongs to the mirrored draws
    weights: Array
    #: (draws,), the same for the Gaussian itself: 1 / draws if that was drawn from
    base: Array
    #: log of the mean weight
    log_mean: float
    #: shape of the Pareto tail; None without arviz
    khat: float | None

    @property
    def effective(self) -> float:
        """Effective number of draws."""
        return float(1.0 / (self.weights**2).sum())


@dataclass(frozen=True)
class Sampler:
    """Antithetic draws z and -z, the same ones each time they are gone through.

    df: degrees of freedom of a multivariate t in place of the normal distribution; None: normal.
    """

    draws: int
    seed: int
    df: float | None = None

    def blocks(self, proposal: Proposal) -> Iterator[tuple[slice, Array]]:
        """Yield a slice of the pairs, and their first halves (k, size)."""
        pairs, size = self.draws // 2, proposal.size
        step = max(1, min(pairs, BLOCK // (2 * proposal.width)))
        for number, i in enumerate(range(0, pairs, step)):
            rng = np.random.default_rng([self.seed, number])
            part = slice(i, min(i + step, pairs))
            z = rng.standard_normal((part.stop - part.start, size))
            if self.df is not None:
                z *= np.sqrt(self.df / rng.chisquare(self.df, len(z)))[:, None]
            yield part, z

    def log_base(self, z: Array) -> Array:
        """Log of the normal density over that of the draws, (k,)."""
        if self.df is None:
            return np.zeros(len(z))
        size, df = z.shape[1], self.df
        square = np.einsum("ij,ij->i", z, z)
        constant = special.gammaln(0.5 * df) - special.gammaln(0.5 * (df + size))
        constant += 0.5 * size * np.log(0.5 * df)
        return np.asarray(constant - 0.5 * square + 0.5 * (df + size) * np.log1p(square / df))

    def weigh(self, proposal: Proposal) -> Weights | None:
        """Weights of all draws; None if none has any weight. One look at the data per draw."""
        pairs = self.draws // 2
        log_weight, log_base = np.empty((2, 2, pairs))
        for part, z in self.blocks(proposal):
            log_base[:, part] = self.log_base(z)
            for side, signed in enumerate((z, -z)):
                with np.errstate(over="ignore", invalid="ignore"):
                    found = proposal.log_ratio(signed, proposal.draw(signed))
                log_weight[side, part] = np.where(np.isnan(found), -np.inf, found)
        total = (log_weight + log_base).ravel()
        if not np.isfinite(total.max()):
            return None
        smooth, khat = smoothed(total)
        base = log_base.ravel()
        mean, base_mean = (special.logsumexp(part) for part in (smooth, base))
        return Weights(
            np.exp(smooth - mean), np.exp(base - base_mean), float(mean - base_mean), khat
        )


class Moments(NamedTuple):
    """Moments of the exact posterior in units of some Gaussian, with standard errors."""

    #: (q,), mean minus that of the Gaussian, in its standard deviations
    shift: Array
    shift_se: Array
    #: (q,), log of the standard deviation over that of the Gaussian
    log_sd: Array
    log_sd_se: Array
    #: standard error of the log of the mean weight
    log_mean_se: float

    def beside(self, mean: Array, sd: Array, to_mean: Array, to_sd: Array) -> Moments:
        """The same in units of N(to_mean, to_sd^2), in place of N(mean, sd^2)."""
        share = sd / to_sd
        return self._replace(
            shift=(mean - to_mean) / to_sd + share * self.shift,
            shift_se=share * self.shift_se,
            log_sd=self.log_sd + np.log(share),
        )


def moments(sampler: Sampler, proposal: Proposal, found: Weights, relative: bool = True) -> Moments:
    """Weighted moments by a second pass over the same draws, with errors by the delta method.

    The weights of the Gaussian itself give its known moments; the differences from them are what
    is averaged, so that weights that are all alike leave no error at all. relative: the
    moments of the proposal are known; else they are units alone.
    """
    mean, sd = proposal.moments()
    sd = np.where(sd > 0.0, sd, 1.0)
    pairs, q = sampler.draws // 2, len(mean)
    weights, own = found.weights.reshape(2, pairs), found.base.reshape(2, pairs)
    base = relative * own
    # sums over pairs of first and second moments a, b (less those of the base), and of their
    # products with the pair's weights
    a, aa, aw = np.zeros((3, q))
    b, bb, bw, bv = np.zeros((4, q))
    square, base_square, drift = np.zeros((3, q))
    w, v = weights.sum(axis=0), base.sum(axis=0)
    for part, z in sampler.blocks(proposal):
        first, second = np.zeros((2, len(z), q))
        for side, signed in enumerate((z, -z)):
            u = (proposal.reported(proposal.draw(signed)) - mean) / sd
            share, known = weights[side, part, None], base[side, part, None]
            first += share * u
            drift += (known * u).sum(axis=0)
            u *= u
            square += (share * u).sum(axis=0)
            base_square += (known * u).sum(axis=0)
            second += (share - known) * u
        for total, values in ((a, first), (b, second)):
            total += values.sum(axis=0)
        aa += np.einsum("ij,ij->j", first, first)
        bb += np.einsum("ij,ij->j", second, second)
        aw += w[part] @ first
        bw += w[part] @ second
        bv += v[part] @ second
    shift = a
    variance = aa - 2.0 * shift * aw + shift**2 * (w @ w)
    spread = np.maximum(square - shift**2, 1e-300)
    error = bb + square**2 * (w @ w) + base_square**2 * (v @ v)
    error += -2.0 * square * bw + 2.0 * base_square * bv - 2.0 * square * base_square * (w @ v)
    reference = np.maximum(base_square - drift**2, 1e-300) if relative else np.ones(q)
    return Moments(
        shift,
        WIDER * np.sqrt(np.maximum(variance, 0.0)),
        0.5 * np.log(spread / reference),
        WIDER * 0.5 * np.sqrt(np.maximum(error, 0.0)) / spread,
        WIDER * float(np.sqrt(((w - own.sum(axis=0)) ** 2).sum())),
    )


# ---- Pareto smoothing ----


def _smoother() -> Callable[[Array], tuple[Array, Any]] | None:
    """ArviZ's smoothing of log weights: of arviz_stats (1.x), or of arviz (0.x); None: neither."""
    try:
        from arviz_stats.base import array_stats

        return lambda log_weights: array_stats.psislw(-log_weights)
    except ImportError:
        pass
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the next version of arviz
            from arviz import psislw
    except ImportError:
        return None
    smooth: Callable[[Array], tuple[Array, Any]] = psislw
    return smooth


def smoothed(log_weights: Array) -> tuple[Array, float | None]:
    """Pareto-smoothed log weights and k-hat (Vehtari et al. 2024); as given without arviz."""
    smooth = _smoother()
    if smooth is None:
        return log_weights, None
    low = np.maximum(log_weights, log_weights.max() - 1e4)  # no infinities
    if np.ptp(low) < 1e-10:
        return log_weights, -np.inf
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        result, khat = smooth(low.copy())
    result = np.asarray(result, dtype=np.float64)
    # the smallest weight stays as it is: what was divided by is seen there
    least = int(low.argmin())
    result = result + (low[least] - result[least])
    return np.where(np.isneginf(log_weights), -np.inf, result), float(khat)

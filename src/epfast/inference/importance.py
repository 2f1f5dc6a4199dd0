"""Importance sampling from Gaussians to the exact posterior, in antithetic pairs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy import special

from epfast._arrays import Array, Piece, pieces

#: numbers drawn at a time
BLOCK = 1 << 20
#: by how much standard errors of weighted means are wider than the delta method has them
#: (``bench/certificates/check.py``)
WIDER = 1.1
#: share of the draws of a Gaussian that is so much wider and of so few degrees of freedom, for mass
#: far outside it
DEFENSIVE, WIDTH, LEAST_DF = 0.2, 2.0, 4.0
#: share of the draws that the first of several Gaussians keeps
OF_FIRST = 0.4


def defensive(size: int) -> float:
    """Share of the wider draws: in many dimensions they miss the shell where the mass is."""
    return min(DEFENSIVE, 1.0 / size)


class Proposal:
    """A distribution to draw from, and the exact posterior beside it.

    Where there are others to draw from as well, see :meth:`better` and :meth:`others`, each knows
    its density at their draws.
    """

    #: standard normal numbers in a draw, and numbers that it takes in memory
    size: int
    width: int
    #: whether it is the closest Gaussian there is, and the only one
    is_best = False
    #: whether :meth:`moments` are those of what is drawn. Else they are units alone
    has_moments = True
    #: whether it has ``log_volume`` and ``squares``, so that others may be drawn from beside it
    has_density = False

    def draw(self, z: Array) -> Array:
        """Turn standard normal draws (k, size) into draws of the parameters, (k, p)."""
        raise NotImplementedError

    def log_ratio(self, z: Array, theta: Array) -> Array:
        """Log of prior times likelihood over the density of what is drawn, (k,)."""
        raise NotImplementedError

    def reported(self, theta: Array) -> Array:
        """What a check reports of the parameters, (k, q)."""
        return theta

    def moments(self) -> tuple[Array, Array]:
        """Mean and standard deviation of what is reported, (q,) each, by the approximation."""
        raise NotImplementedError

    @property
    def log_volume(self) -> float:
        """Minus the log of its density at its mean, up to that of the problem."""
        raise NotImplementedError

    def squares(self, theta: Array) -> Array:
        """Squared distances (k,) from its mean, in units of its covariance."""
        raise NotImplementedError

    def better(self) -> Proposal | None:
        """The closest Gaussian, found without the approximation. None if that is not possible."""
        return None

    def others(self, seed: int, log_evidence: float) -> tuple[Sequence[Proposal], bool]:
        """Gaussians at other modes, and wide ones, and whether these are all that matter."""
        return [], False


class ImportanceWeights(NamedTuple):
    """Importance weights of draws, and what they show."""

    #: (draws,), normalised. The second half belongs to the mirrored draws
    weights: Array
    #: (draws,), the same for the Gaussian whose weights are nearest. All alike if these are nearer
    base: Array
    #: log of the mean weight
    log_mean: float
    #: shape of the Pareto tail, see :func:`smoothed`
    khat: float
    #: which Gaussian that is, else the one whose draws have the largest weights
    reference: int
    #: whether the weights of that Gaussian are the base
    relative: bool

    @property
    def effective(self) -> float:
        """Effective number of draws."""
        return float(1.0 / (self.weights**2).sum())

    @property
    def log_mean_se(self) -> float:
        """Standard error of the log of the mean weight."""
        of_pairs = (self.weights - self.base).reshape(2, -1).sum(axis=0)
        return WIDER * float(np.sqrt((of_pairs**2).sum()))


@dataclass(frozen=True)
class Sampler:
    """Antithetic draws z and -z of one or several Gaussians, the same ones each time.

    df: degrees of freedom of a multivariate t in place of the normal distribution, beside which a
    share is wider and has fewer. None: normal.
    """

    draws: int
    seed: int
    df: float | None = None

    def shares(self, parts: Sequence[Proposal]) -> Array:
        """(parts,), pairs of each."""
        pairs, n_others = self.draws // 2, len(parts) - 1
        each = (pairs - int(OF_FIRST * pairs)) // max(1, n_others)
        return np.array([pairs - n_others * each, *n_others * [each]])

    def blocks(self, parts: Sequence[Proposal]) -> Iterator[tuple[int, Piece, Array]]:
        """Yield the Gaussian, a slice of the pairs, and their first halves (k, size)."""
        end = 0
        for number, (part, count) in enumerate(zip(parts, self.shares(parts), strict=True)):
            start, end = end, end + int(count)
            # one stream of numbers for all blocks of a Gaussian: draws do not depend on them
            stream, blocks = [self.seed, number], pieces(end - start, 2 * part.width, BLOCK)
            lengths = self._lengths(np.random.default_rng(stream), blocks, part.size)
            rng = np.random.default_rng(stream)
            for some in blocks:
                z = rng.standard_normal((some.stop - some.start, part.size))
                if lengths is not None:
                    z *= lengths[some, None]
                yield number, slice(start + some.start, start + some.stop), z

    def _lengths(self, rng: np.random.Generator, blocks: list[Piece], size: int) -> Array | None:
        """What normal draws are multiplied by, from the numbers after them, (k,). None: 1."""
        if self.df is None:
            return None
        for some in blocks:
            rng.standard_normal((some.stop - some.start, size))
        wide = rng.random(sum(some.stop - some.start for some in blocks)) < defensive(size)
        df = np.where(wide, LEAST_DF, self.df)
        return np.asarray(np.where(wide, WIDTH, 1.0) * np.sqrt(df / rng.chisquare(df)))

    def log_density(self, square: Array, size: int) -> Array:
        """Log of the density of draws at squared distances, over the normal one at its mean."""
        if self.df is None:
            return -0.5 * square
        logs = []
        wide = defensive(size)
        for df, width, share in ((self.df, 1.0, 1.0 - wide), (LEAST_DF, WIDTH, wide)):
            height = special.gammaln(0.5 * (df + size)) - special.gammaln(0.5 * df) + np.log(share)
            height -= 0.5 * size * np.log(0.5 * df * width**2)
            logs.append(height - 0.5 * (df + size) * np.log1p(square / (df * width**2)))
        return np.asarray(np.logaddexp(*logs))

    def weigh(self, *parts: Proposal) -> ImportanceWeights | None:
        """Weights of all draws. None if none has any weight. One look at the data per draw."""
        pairs = self.draws // 2
        log_weight, log_base = np.empty((2, pairs)), np.empty((len(parts), 2, pairs))
        log_share = np.log(self.shares(parts) / pairs)
        for j, block, z in self.blocks(parts):
            own = np.einsum("ij,ij->i", z, z)
            for side, signed in enumerate((z, -z)):
                theta = parts[j].draw(signed)
                # logs of the densities of all over that of the one that is drawn from
                normal, drawn = np.empty((2, len(parts), len(z)))
                for k, part in enumerate(parts):
                    square = own if k == j else part.squares(theta)
                    height = 0.5 * own
                    if k != j:
                        height = height + parts[j].log_volume - part.log_volume
                    normal[k] = height - 0.5 * square
                    drawn[k] = height + log_share[k] + self.log_density(square, z.shape[1])
                total = special.logsumexp(drawn, axis=0)
                log_base[:, side, block] = normal - total
                with np.errstate(over="ignore", invalid="ignore"):
                    log_ratio = parts[j].log_ratio(signed, theta)
                log_weight[side, block] = np.where(np.isnan(log_ratio), -np.inf, log_ratio) - total
        if not np.isfinite(log_weight.max()):
            return None
        # as they are: smoothed weights of a draw and its mirror image differ where these are alike
        khat = smoothed(log_weight.ravel())[1]
        mean = special.logsumexp(log_weight)
        weights = np.exp(log_weight.ravel() - mean)
        bases = log_base.reshape(len(parts), -1)
        base_means = special.logsumexp(bases, axis=1)
        bases = np.exp(bases - base_means[:, None])
        alike = np.full(len(weights), 1.0 / len(weights))
        gaps = ((weights - bases) ** 2).sum(axis=1)
        best = int(gaps.argmin())
        relative = bool(gaps[best] < ((weights - alike) ** 2).sum())
        base, base_mean = bases[best], base_means[best]
        if not relative:
            by_pair = weights.reshape(2, pairs).sum(axis=0)
            ends = np.cumsum(self.shares(parts))[:-1]
            best = int(np.argmax([part.mean() for part in np.split(by_pair, ends)]))
            base, base_mean = alike, np.log(len(alike))
        return ImportanceWeights(weights, base, float(mean - base_mean), khat, best, relative)


class ExactMoments(NamedTuple):
    """Moments of the exact posterior in units of some Gaussian, with standard errors."""

    #: (q,), mean minus that of the Gaussian, in its standard deviations
    shift: Array
    shift_se: Array
    #: (q,), log of the standard deviation over that of the Gaussian
    log_sd: Array
    log_sd_se: Array
    #: standard error of the log of the mean weight
    log_mean_se: float

    def beside(self, mean: Array, sd: Array, to_mean: Array, to_sd: Array) -> ExactMoments:
        """The same in units of N(to_mean, to_sd^2), in place of N(mean, sd^2)."""
        share = sd / to_sd
        return self._replace(
            shift=(mean - to_mean) / to_sd + share * self.shift,
            shift_se=share * self.shift_se,
            log_sd=self.log_sd + np.log(share),
        )


def moments(
    sampler: Sampler,
    parts: Sequence[Proposal],
    used: ImportanceWeights,
    unit: tuple[Array, Array],
    has_moments: bool = True,
) -> ExactMoments:
    """Weighted moments by a second pass over the same draws, with errors by the delta method.

    unit: mean and standard deviation, (q,) each, of ``parts[used.reference]``. The weights of that
    Gaussian give these. The differences from them are what is averaged, so that weights that are
    all alike leave no error at all. has_moments: that is so. Else they are units alone.
    """
    mean, sd = unit
    relative = has_moments and used.relative
    pairs, q = sampler.draws // 2, len(mean)
    weights, base = used.weights.reshape(2, pairs), relative * used.base.reshape(2, pairs)
    # sums over pairs of first and second moments a, b (less those of the base), and of their
    # products with the pair's weights
    a, aa, aw, av = np.zeros((4, q))
    b, bb, bw, bv = np.zeros((4, q))
    center, square, drift, base_square = np.zeros((4, q))
    w, v = weights.sum(axis=0), base.sum(axis=0)
    for number, part, z in sampler.blocks(parts):
        first, second = np.zeros((2, len(z), q))
        for side, signed in enumerate((z, -z)):
            u = (parts[number].reported(parts[number].draw(signed)) - mean) / sd
            share, less = weights[side, part, None], base[side, part, None]
            first += (share - less) * u
            center += (share * u).sum(axis=0)
            drift += (less * u).sum(axis=0)
            u *= u
            square += (share * u).sum(axis=0)
            base_square += (less * u).sum(axis=0)
            second += (share - less) * u
        for total, values in ((a, first), (b, second)):
            total += values.sum(axis=0)
        aa += np.einsum("ij,ij->j", first, first)
        bb += np.einsum("ij,ij->j", second, second)
        aw += w[part] @ first
        av += v[part] @ first
        bw += w[part] @ second
        bv += v[part] @ second
    ww, vv, wv = w @ w, v @ v, w @ v
    variance = aa + center**2 * ww + drift**2 * vv
    variance += -2.0 * center * aw + 2.0 * drift * av - 2.0 * center * drift * wv
    error = bb + square**2 * ww + base_square**2 * vv
    error += -2.0 * square * bw + 2.0 * base_square * bv - 2.0 * square * base_square * wv
    spread = np.maximum(square - center**2, 1e-300)
    reference = np.maximum(base_square - drift**2, 1e-300) if relative else np.ones(q)
    return ExactMoments(
        a,
        WIDER * np.sqrt(np.maximum(variance, 0.0)),
        0.5 * np.log(spread / reference),
        WIDER * 0.5 * np.sqrt(np.maximum(error, 0.0)) / spread,
        used.log_mean_se,
    )


# ---- Pareto smoothing ----

#: draws in the tail, below which a Pareto distribution is not fitted
LEAST_TAIL = 5
#: relative difference of the weights in a tail that are all alike
ALL_ALIKE = 1e-10
#: number above 0 whose inverse, times 100, is a double
SMALLEST = 1e-300


def smoothed(log_weights: Array) -> tuple[Array, float]:
    """Pareto-smoothed log weights and k-hat (Vehtari et al. 2024), not normalised.

    k-hat is -inf where the largest weights are all alike, and inf where too few have any weight for
    a tail. Then the weights stay as they are.
    """
    n, top = len(log_weights), log_weights.max()
    if not np.isfinite(top):
        return log_weights, np.inf
    weights = np.exp(log_weights - top)
    order = np.argsort(weights)
    size = math.ceil(min(n / 5.0, 3.0 * math.sqrt(n)))
    if 1.0 - weights[order[-size]] <= ALL_ALIKE:
        return log_weights, -np.inf
    cutoff = max(weights[order[-size - 1]], np.finfo(np.float64).tiny)
    tail = order[weights[order] > cutoff]
    if len(tail) < LEAST_TAIL:
        return log_weights, np.inf
    k, sigma = generalised_pareto(weights[tail] - cutoff)
    levels = (np.arange(len(tail)) + 0.5) / len(tail)
    beyond = -np.log1p(-levels)
    with np.errstate(over="ignore"):
        quantiles = cutoff + sigma * (np.expm1(k * beyond) / k if k else beyond)
    result = log_weights.copy()
    result[tail] = top + np.minimum(np.log(quantiles), 0.0)
    return result, k


def generalised_pareto(excesses: Array) -> tuple[float, float]:
    """Shape k and scale of a generalised Pareto distribution of ordered numbers > 0.

    Zhang and Stephens (2009): the posterior mean of b = -k / scale, over a grid, under a prior by
    the first quartile and the largest number. k is then drawn towards 0.5, as by ten numbers more
    (Vehtari et al. 2024).
    """
    n = len(excesses)
    m = 30 + int(math.sqrt(n))
    quartile, most = max(excesses[int(n / 4.0 + 0.5) - 1], SMALLEST), excesses[-1]
    b = 1.0 / most + (1.0 - np.sqrt(m / (np.arange(m) + 0.5))) / (3.0 * quartile)
    b[b == 0.0] = 1e-12 / most  # the exponential distribution, whose k is 0
    k = np.array([np.log1p(-one * excesses).mean() for one in b])
    share = special.softmax(n * (np.log(-b / k) - k - 1.0))
    middle = float(share @ b)
    k_of_it = float(np.log1p(-middle * excesses).mean())
    return (n * k_of_it + 5.0) / (n + 10.0), -k_of_it / middle

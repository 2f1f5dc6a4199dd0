"""Exponential families by their natural parameters, of any shape.

A product of members adds natural parameters, a quotient subtracts them, a power scales them. The
functions take any named tuple of arrays: scalar sites (n,), diagonal ones (n, d), matrices. The
classes are the families that a variable of a graph may have.
"""

from __future__ import annotations

from operator import methodcaller
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import special

from epfast._arrays import Array, Which
from epfast._core.special import (
    beta_parameters,
    digammas,
    dirichlet_parameters,
    gamma_shapes,
    log_betas,
    log_gammas,
    log_multivariate_betas,
)

_COPY = methodcaller("copy")
T = TypeVar("T", bound=tuple[Array, ...])

#: the log that stands for a probability of 0: a natural parameter is finite, and sums of some of
#: these stay one. Logs of what is possible are above POSSIBLE, for messages are cut at -2^24
ZERO, POSSIBLE = -(2.0**40), -(2.0**36)


def product(a: T, b: T) -> T:
    """Return a b."""
    return type(a)(*(x + y for x, y in zip(a, b, strict=True)))


def quotient(a: T, b: T) -> T:
    """Return a / b."""
    return type(a)(*(x - y for x, y in zip(a, b, strict=True)))


def power(a: T, exponent: float | Array) -> T:
    """Return a^exponent."""
    return type(a)(*(exponent * x for x in a))


def damped(old: T, new: T, share: float) -> T:
    """Return old^(1 - share) new^share: damping, or with share 1 / N a site shared by N factors."""
    return type(old)(*(x + share * (y - x) for x, y in zip(old, new, strict=True)))


def select(a: T, which: int | Which) -> T:
    """Select members by an index of the first axis."""
    return type(a)(*(x[which] for x in a))


def joined(a: T, b: T) -> T:
    """The members of one, then those of another."""
    return type(a)(*map(np.concatenate, zip(a, b, strict=True)))


def put(a: T, which: int | Which, new: T) -> None:
    """Overwrite the members with this index, in place."""
    for x, y in zip(a, new, strict=True):
        x[which] = y


def copied(a: T) -> T:
    """Copy every array."""
    return type(a)(*map(_COPY, a))


# ---- families of variables: members are rows of natural parameters, (n, k) ----


class Family:
    """An exponential family: p(x) = exp(eta . s(x) - A(eta)), up to a base measure.

    All methods take natural parameters (n, k) and give a number per row, or (n, k).
    """

    #: as users call it
    name: ClassVar[str]
    #: names of the natural parameters. Of a family whose members differ in their number, one name
    parameters: ClassVar[tuple[str, ...]]
    #: what a belief shows beside mean and variance: methods of eta
    shown: ClassVar[tuple[str, ...]]

    @staticmethod
    def is_proper(eta: Array) -> NDArray[np.bool_]:
        """Whether each can be normalised."""
        raise NotImplementedError

    @staticmethod
    def log_partition(eta: Array) -> Array:
        """A(eta), of proper members, (n,)."""
        raise NotImplementedError

    @staticmethod
    def mean(eta: Array) -> Array:
        """E[x]."""
        raise NotImplementedError

    @staticmethod
    def variance(eta: Array) -> Array:
        """Var[x]."""
        raise NotImplementedError

    @staticmethod
    def statistics(eta: Array) -> Array:
        """What :meth:`matching` takes, of proper members: E[s(x)], or what it is a function of."""
        raise NotImplementedError

    @staticmethod
    def matching(statistics: Array) -> Array:
        """Natural parameters, (n, k), of the members with these statistics: the KL projection.

        NaN where there is none.
        """
        raise NotImplementedError

    @staticmethod
    def by_moments(mean: Array, variance: Array) -> Array:
        """Those with this mean and variance, not the projection for gamma and beta variables."""
        raise NotImplementedError

    @staticmethod
    def draw(eta: Array, size: int, rng: np.random.Generator) -> Array:
        """Draws of proper members, (size, n)."""
        raise NotImplementedError


class Scalar(Family):
    """A family of numbers, integrated over and drawn by a coordinate u from -inf to inf.

    u is (m,), or (m, p), with rows of natural parameters eta (m, 2).
    """

    @staticmethod
    def x(u: Array) -> Array:
        """The variable at u."""
        raise NotImplementedError

    @staticmethod
    def log_density(eta: Array, u: Array) -> Array:
        """Log density of u, normalised."""
        raise NotImplementedError

    @staticmethod
    def derivatives(eta: Array, u: Array) -> tuple[Array, Array]:
        """The first two derivatives of the log density, at u (m,)."""
        raise NotImplementedError

    @staticmethod
    def location(eta: Array) -> tuple[Array, Array]:
        """Centre and width of u."""
        raise NotImplementedError

    @staticmethod
    def integrands(u: Array, centre: Array) -> tuple[Array, Array]:
        """Two functions of u, about a centre, whose means give the projection."""
        raise NotImplementedError

    @staticmethod
    def units(width: Array) -> tuple[Array, Array]:
        """How large the integrands are where u varies on this width."""
        return width, width * width

    @staticmethod
    def target(first: Array, second: Array, centre: Array) -> Array:
        """Natural parameters of the projection, by the means of the integrands."""
        raise NotImplementedError


class Gaussian(Scalar):
    """Scalar Gaussians: precision tau and shift nu = tau mean. Statistics s(x) = (-x^2 / 2, x)."""

    name = "gaussian"
    parameters = ("precision", "shift")
    shown = ("precision", "shift")

    @staticmethod
    def precision(eta: Array) -> Array:
        return np.asarray(eta[:, 0])

    @staticmethod
    def shift(eta: Array) -> Array:
        return np.asarray(eta[:, 1])

    @staticmethod
    def is_proper(eta: Array) -> NDArray[np.bool_]:
        return np.asarray((eta[:, 0] > 0.0) & np.isfinite(eta).all(axis=1))

    @staticmethod
    def log_partition(eta: Array) -> Array:
        tau, nu = eta.T
        return np.asarray(0.5 * (nu * nu / tau - np.log(tau) + np.log(2.0 * np.pi)))

    @staticmethod
    def mean(eta: Array) -> Array:
        return np.asarray(eta[:, 1] / eta[:, 0])

    @staticmethod
    def variance(eta: Array) -> Array:
        return np.asarray(1.0 / eta[:, 0])

    @staticmethod
    def statistics(eta: Array) -> Array:
        """Mean and variance, which do not cancel where E[x^2] would."""
        return np.stack([Gaussian.mean(eta), Gaussian.variance(eta)], axis=1)

    @staticmethod
    def matching(statistics: Array) -> Array:
        """statistics: mean and variance."""
        mean, variance = statistics.T
        with np.errstate(all="ignore"):
            tau = np.where(variance > 0.0, 1.0 / variance, np.nan)
        return np.stack([tau, tau * mean], axis=1)

    @staticmethod
    def by_moments(mean: Array, variance: Array) -> Array:
        return Gaussian.matching(np.stack([mean, variance], axis=1))

    @staticmethod
    def draw(eta: Array, size: int, rng: np.random.Generator) -> Array:
        return rng.normal(Gaussian.mean(eta), np.sqrt(Gaussian.variance(eta)), (size, len(eta)))

    @staticmethod
    def x(u: Array) -> Array:
        return u

    @staticmethod
    def log_density(eta: Array, u: Array) -> Array:
        tau, nu = eta.T if u.ndim == 1 else eta.T[:, :, None]
        d = u - nu / tau
        return np.asarray(-0.5 * tau * d * d + 0.5 * np.log(tau / (2.0 * np.pi)))

    @staticmethod
    def derivatives(eta: Array, u: Array) -> tuple[Array, Array]:
        return eta[:, 1] - eta[:, 0] * u, -eta[:, 0]

    @staticmethod
    def location(eta: Array) -> tuple[Array, Array]:
        return eta[:, 1] / eta[:, 0], 1.0 / np.sqrt(eta[:, 0])

    @staticmethod
    def integrands(u: Array, centre: Array) -> tuple[Array, Array]:
        d = u - centre
        return d, d * d

    @staticmethod
    def target(first: Array, second: Array, centre: Array) -> Array:
        variance = second - first * first
        return Gaussian.matching(np.stack([centre + first, variance], axis=1))


def _log_gamma(x: Array) -> Array:
    return log_gammas(np.array(x, dtype=np.float64).ravel()).reshape(x.shape)


def _digamma(x: Array) -> Array:
    return digammas(np.array(x, dtype=np.float64).ravel()).reshape(x.shape)


class Gamma(Scalar):
    """Gamma variables: shape - 1 and rate. Statistics s(x) = (log x, -x)."""

    name = "gamma"
    parameters = ("shape - 1", "rate")
    shown = ("shape", "rate")

    @staticmethod
    def shape(eta: Array) -> Array:
        return np.asarray(eta[:, 0] + 1.0)

    @staticmethod
    def rate(eta: Array) -> Array:
        return np.asarray(eta[:, 1])

    @staticmethod
    def is_proper(eta: Array) -> NDArray[np.bool_]:
        return np.asarray((eta[:, 0] > -1.0) & (eta[:, 1] > 0.0) & np.isfinite(eta).all(axis=1))

    @staticmethod
    def log_partition(eta: Array) -> Array:
        shape, rate = eta[:, 0] + 1.0, eta[:, 1]
        return np.asarray(_log_gamma(shape) - shape * np.log(rate))

    @staticmethod
    def mean(eta: Array) -> Array:
        return np.asarray((eta[:, 0] + 1.0) / eta[:, 1])

    @staticmethod
    def variance(eta: Array) -> Array:
        return np.asarray((eta[:, 0] + 1.0) / eta[:, 1] ** 2)

    @staticmethod
    def statistics(eta: Array) -> Array:
        """E[log x] and E[x]."""
        shape, rate = eta[:, 0] + 1.0, eta[:, 1]
        return np.stack([_digamma(shape) - np.log(rate), shape / rate], axis=1)

    @staticmethod
    def matching(statistics: Array) -> Array:
        """statistics: E[log x] and E[x]. The shape is right to 1e-12 up to 1e4, 2e-9 at 1e6.

        Where log E[x] - E[log x] is known without a difference, :meth:`by_gap` does better.
        """
        logs, mean = statistics.T
        with np.errstate(all="ignore"):
            return Gamma.by_gap(mean, np.log(mean) - logs)

    @staticmethod
    def by_gap(mean: Array, gap: Array) -> Array:
        """The members with E[x] = mean and log E[x] - E[log x] = gap, to rounding."""
        with np.errstate(all="ignore"):
            shape = gamma_shapes(np.array(gap, dtype=np.float64))
            rate = np.where(mean > 0.0, shape / mean, np.nan)
        return np.stack([shape - 1.0, rate], axis=1)

    @staticmethod
    def by_moments(mean: Array, variance: Array) -> Array:
        with np.errstate(all="ignore"):
            rate = np.where((mean > 0.0) & (variance > 0.0), mean / variance, np.nan)
        return np.stack([mean * rate - 1.0, rate], axis=1)

    @staticmethod
    def draw(eta: Array, size: int, rng: np.random.Generator) -> Array:
        return rng.gamma(eta[:, 0] + 1.0, 1.0 / eta[:, 1], (size, len(eta)))

    @staticmethod
    def x(u: Array) -> Array:
        return np.asarray(np.exp(np.clip(u, -700.0, 700.0)))

    @staticmethod
    def log_density(eta: Array, u: Array) -> Array:
        shape, rate = eta.T if u.ndim == 1 else eta.T[:, :, None]
        shape = shape + 1.0
        d = u - np.log(shape / rate)
        constant = shape * np.log(shape) - shape - special.gammaln(shape)
        return np.asarray(constant - shape * (np.expm1(d) - d))

    @staticmethod
    def derivatives(eta: Array, u: Array) -> tuple[Array, Array]:
        x = eta[:, 1] * np.exp(u)
        return eta[:, 0] + 1.0 - x, -x

    @staticmethod
    def location(eta: Array) -> tuple[Array, Array]:
        shape, rate = eta[:, 0] + 1.0, eta[:, 1]
        return special.digamma(shape) - np.log(rate), np.sqrt(trigamma(shape))

    @staticmethod
    def integrands(u: Array, centre: Array) -> tuple[Array, Array]:
        d = u - centre
        return d, np.expm1(d) - d

    @staticmethod
    def target(first: Array, second: Array, centre: Array) -> Array:
        with np.errstate(all="ignore"):
            rise = np.log1p(second + first)
            # the gap log E x - E log x without the centre, which would cancel
            return Gamma.by_gap(np.exp(centre + rise), rise - first)


def trigamma(x: Array) -> Array:
    """The second derivative of log Gamma: the variance of the log of a gamma variable."""
    return np.asarray(special.zeta(2.0, x))


def log_odds(p: Array) -> tuple[Array, Array]:
    """Means and standard deviations of the log odds of beta variables, (n,) each."""
    alpha, beta = p.T
    mean = special.psi(alpha) - special.psi(beta)
    return mean, np.sqrt(trigamma(alpha) + trigamma(beta))


class Beta(Scalar):
    """Beta variables: alpha - 1 and beta - 1. Statistics s(x) = (log x, log(1 - x))."""

    name = "beta"
    parameters = ("alpha - 1", "beta - 1")
    shown = ("alpha", "beta")

    @staticmethod
    def alpha(eta: Array) -> Array:
        return np.asarray(eta[:, 0] + 1.0)

    @staticmethod
    def beta(eta: Array) -> Array:
        return np.asarray(eta[:, 1] + 1.0)

    @staticmethod
    def is_proper(eta: Array) -> NDArray[np.bool_]:
        return np.asarray((eta > -1.0).all(axis=1) & np.isfinite(eta).all(axis=1))

    @staticmethod
    def log_partition(eta: Array) -> Array:
        return np.asarray(log_betas(*np.ascontiguousarray(eta.T + 1.0)))

    @staticmethod
    def mean(eta: Array) -> Array:
        alpha, beta = eta.T + 1.0
        return np.asarray(alpha / (alpha + beta))

    @staticmethod
    def variance(eta: Array) -> Array:
        alpha, beta = eta.T + 1.0
        total = alpha + beta
        return np.asarray(alpha / total * (beta / total) / (total + 1.0))

    @staticmethod
    def statistics(eta: Array) -> Array:
        """E[log x] and E[log(1 - x)]."""
        return np.asarray(_digamma(eta + 1.0) - _digamma(eta.sum(axis=1, keepdims=True) + 2.0))

    @staticmethod
    def matching(statistics: Array) -> Array:
        """statistics: E[log x] and E[log(1 - x)]. Right to 1e-9 for parameters of 0.01 to 1e4."""
        logs = np.array(statistics, dtype=np.float64).T
        parameters = beta_parameters(*(np.ascontiguousarray(column) for column in logs))
        return np.stack(parameters, axis=1) - 1.0

    @staticmethod
    def by_moments(mean: Array, variance: Array) -> Array:
        with np.errstate(all="ignore"):
            total = mean * (1.0 - mean) / variance - 1.0
        total = np.where((variance > 0.0) & (total > 0.0), total, np.nan)
        return np.stack([mean * total - 1.0, (1.0 - mean) * total - 1.0], axis=1)

    @staticmethod
    def draw(eta: Array, size: int, rng: np.random.Generator) -> Array:
        return rng.beta(eta[:, 0] + 1.0, eta[:, 1] + 1.0, (size, len(eta)))

    @staticmethod
    def x(u: Array) -> Array:
        # never 0 or 1, whose logs times 0 are NaN
        return np.asarray(np.clip(special.expit(u), 1e-300, 1.0 - 2.0**-53))

    @staticmethod
    def log_density(eta: Array, u: Array) -> Array:
        alpha, beta = (eta + 1.0).T if u.ndim == 1 else (eta + 1.0).T[:, :, None]
        inner = alpha * special.log_expit(u) + beta * special.log_expit(-u)
        return np.asarray(inner - special.betaln(alpha, beta))

    @staticmethod
    def derivatives(eta: Array, u: Array) -> tuple[Array, Array]:
        alpha, beta = (eta + 1.0).T
        p, q = special.expit(u), special.expit(-u)
        return alpha * q - beta * p, -(alpha + beta) * p * q

    @staticmethod
    def location(eta: Array) -> tuple[Array, Array]:
        return log_odds(eta + 1.0)

    @staticmethod
    def integrands(u: Array, centre: Array) -> tuple[Array, Array]:
        # less what they are at the centre: their means have no more digits than that leaves
        return (
            special.log_expit(u) - special.log_expit(centre),
            special.log_expit(-u) - special.log_expit(-centre),
        )

    @staticmethod
    def units(width: Array) -> tuple[Array, Array]:
        return width, width

    @staticmethod
    def target(first: Array, second: Array, centre: Array) -> Array:
        logs = [first + special.log_expit(centre), second + special.log_expit(-centre)]
        return Beta.matching(np.stack(logs, axis=1))


def _log_sum(eta: Array) -> Array:
    """Logs of sums of exp along rows."""
    top = eta.max(axis=1)
    return np.asarray(top + np.log(np.exp(eta - top[:, None]).sum(axis=1)))


class Categorical(Family):
    """Variables of K categories: logits, any number added to all of which is nothing."""

    name = "categorical"
    parameters = ("logit",)
    shown = ("probabilities", "logits")

    @staticmethod
    def probabilities(eta: Array) -> Array:
        """Probabilities of the categories, (n, K)."""
        return np.asarray(np.exp(Categorical.logits(eta)))

    @staticmethod
    def logits(eta: Array) -> Array:
        """Logs of the probabilities, (n, K). -inf where one is 0."""
        logits = eta - _log_sum(eta)[:, None]
        return np.where(logits < POSSIBLE, -np.inf, logits)

    @staticmethod
    def is_proper(eta: Array) -> NDArray[np.bool_]:
        return np.asarray(np.isfinite(eta).all(axis=1))

    @staticmethod
    def log_partition(eta: Array) -> Array:
        return _log_sum(eta)

    @staticmethod
    def mean(eta: Array) -> Array:
        """Means of the indicators of the categories, (n, K)."""
        return Categorical.probabilities(eta)

    @staticmethod
    def variance(eta: Array) -> Array:
        """Variances of the indicators, (n, K)."""
        p = Categorical.mean(eta)
        return np.asarray(p * (1.0 - p))

    @staticmethod
    def statistics(eta: Array) -> Array:
        """Probabilities."""
        return Categorical.mean(eta)

    @staticmethod
    def matching(statistics: Array) -> Array:
        """statistics: probabilities > 0, (n, K)."""
        with np.errstate(all="ignore"):
            return np.asarray(np.log(np.where(statistics > 0.0, statistics, np.nan)))

    @staticmethod
    def by_moments(mean: Array, variance: Array) -> Array:
        return Categorical.matching(mean)

    @staticmethod
    def draw(eta: Array, size: int, rng: np.random.Generator) -> Array:
        """Numbers of categories."""
        ends = np.cumsum(Categorical.probabilities(eta), axis=1)[:, :-1]
        return np.asarray((rng.random((size, len(eta), 1)) > ends).sum(axis=2))


class Dirichlet(Family):
    """Probabilities of K categories: concentrations - 1. U(p) = log p."""

    name = "dirichlet"
    parameters = ("concentration - 1",)
    shown = ("concentration",)

    @staticmethod
    def concentration(eta: Array) -> Array:
        return np.asarray(eta + 1.0)

    @staticmethod
    def is_proper(eta: Array) -> NDArray[np.bool_]:
        return np.asarray((eta > -1.0).all(axis=1) & np.isfinite(eta).all(axis=1))

    @staticmethod
    def log_partition(eta: Array) -> Array:
        return log_multivariate_betas(np.array(eta, dtype=np.float64, order="C"))

    @staticmethod
    def mean(eta: Array) -> Array:
        """Means of the probabilities, (n, K)."""
        alpha = eta + 1.0
        return np.asarray(alpha / alpha.sum(axis=1, keepdims=True))

    @staticmethod
    def variance(eta: Array) -> Array:
        """Variances of the probabilities, (n, K)."""
        alpha = eta + 1.0
        total, mean = alpha.sum(axis=1, keepdims=True), Dirichlet.mean(eta)
        return np.asarray(mean * ((total - alpha) / total) / (total + 1.0))

    @staticmethod
    def statistics(eta: Array) -> Array:
        """E[log p]."""
        alpha = eta + 1.0
        return np.asarray(_digamma(alpha) - _digamma(alpha.sum(axis=1, keepdims=True)))

    @staticmethod
    def matching(statistics: Array) -> Array:
        """statistics: E[log p], (n, K). The parameters are right to 1e-8 up to 1e5."""
        return dirichlet_parameters(np.array(statistics, dtype=np.float64)) - 1.0

    @staticmethod
    def by_moments(mean: Array, variance: Array) -> Array:
        """Those with these means, and the sum of these variances."""
        with np.errstate(all="ignore"):
            total = (mean * (1.0 - mean)).sum(axis=1) / variance.sum(axis=1) - 1.0
        total = np.where((variance > 0.0).all(axis=1) & (total > 0.0), total, np.nan)
        return np.asarray(mean * total[:, None] - 1.0)

    @staticmethod
    def draw(eta: Array, size: int, rng: np.random.Generator) -> Array:
        """Probabilities, (size, n, K)."""
        alpha, shape = eta + 1.0, (size, *eta.shape)
        # logs of gamma variables, since those themselves may underflow
        logs = np.log(rng.standard_gamma(alpha + 1.0, shape))
        logs -= rng.standard_exponential(shape) / alpha
        logs -= logs.max(axis=2, keepdims=True)
        p = np.exp(logs)
        return np.asarray(p / p.sum(axis=2, keepdims=True))


#: families of numbers, by their names
SCALARS: dict[str, type[Scalar]] = {kind.name: kind for kind in (Gaussian, Gamma, Beta)}
#: families of variables, by their names
FAMILIES: dict[str, type[Family]] = {
    **SCALARS,
    **{kind.name: kind for kind in (Categorical, Dirichlet)},
}

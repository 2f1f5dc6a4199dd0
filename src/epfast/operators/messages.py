"""Messages that operators learn on, by their usual parameters: Gaussian, gamma and beta.

Rows are (n, 2): mean and variance of a Gaussian, shape and rate of a gamma message, alpha and beta
of a beta message. Messages of c inputs stand side by side, (n, 2 c). Numbers in equations are those
of Jitkrittum et al. (2015), Kernel-based just-in-time learning for passing expectation propagation
messages.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from epfast import _checks
from epfast._arrays import Array
from epfast.families import Beta, Family, Gamma, Gaussian
from epfast.operators.beta import beta_of_log_odds, jacobi_rule, trigamma

#: largest frequencies of the characteristic function of a beta message, and how many nodes of
#: Gauss and Jacobi's rule are right to 1e-13 there
NODES = ((30.0, 20), (80.0, 40), (200.0, 80), (450.0, 160))
#: numbers of an array that is built at once
MOST_NUMBERS = 1 << 22
#: shape from where on a series replaces a difference of trigammas
LARGE = 1e4

Complex = NDArray[np.complex128]


class MessageKind:
    """Messages of one family. All methods take and give rows (n, 2) of usual parameters.

    Cavity and belief are proper members. :meth:`check` checks them.
    """

    #: as users call it
    name: ClassVar[str]
    #: names of the two usual parameters
    parameters: ClassVar[tuple[str, str]]
    #: the family, by its natural parameters
    family: ClassVar[type[Family]]

    @classmethod
    def check(cls, name: str, p: ArrayLike) -> Array:
        """Rows as float64, C-contiguous.

        Raises
        ------
        TypeError, ValueError
            For another shape, NaN or infinity, or a message that is not proper.
        """
        found = _checks.array(name, p, shape=(None, 2))
        for column, parameter in enumerate(cls.parameters):
            least = found[:, column].min(initial=np.inf)
            if parameter != "mean" and not least > 0.0:
                raise ValueError(
                    f"{name} holds {parameter} = {least:g}; allowed for {cls.name} messages: "
                    "finite numbers > 0"
                )
        return found

    @staticmethod
    def is_proper(p: Array) -> NDArray[np.bool_]:
        """Whether each is finite and can be normalised, (n,)."""
        raise NotImplementedError

    @staticmethod
    def natural(p: Array) -> Array:
        """Natural parameters of the family."""
        raise NotImplementedError

    @staticmethod
    def usual(eta: Array) -> Array:
        """The inverse of :meth:`natural`."""
        raise NotImplementedError

    @staticmethod
    def moments(p: Array) -> tuple[Array, Array]:
        """Mean and variance, (n,) each."""
        raise NotImplementedError

    @staticmethod
    def coordinates(p: Array) -> Array:
        """Coordinates without limits on which sites vary smoothly."""
        raise NotImplementedError

    @staticmethod
    def targets(cavity: Array, belief: Array) -> Array:
        """Site targets: what the factor adds to the cavity, in its units. 0 where it adds nothing.

        The first is a shift of the centre in cavity standard deviations, the second the log of a
        ratio of widths.
        """
        raise NotImplementedError

    @staticmethod
    def belief(cavity: Array, targets: Array) -> Array:
        """The inverse of :meth:`targets`: projected beliefs (1)."""
        raise NotImplementedError

    @staticmethod
    def widened(p: Array) -> Array:
        """Members of about the same mean and twice the variance, with heavier tails."""
        raise NotImplementedError

    @staticmethod
    def draw(p: Array, rng: np.random.Generator, size: int) -> Array:
        """Draws (size,) from one message (2,), as :meth:`statistics` takes them."""
        raise NotImplementedError

    @staticmethod
    def characteristic(p: Array, omega: Array) -> Complex:
        """E exp(i omega x) of each message at frequencies (D,): (n, D)."""
        raise NotImplementedError

    @staticmethod
    def statistics(belief: Array, u: Array) -> Array:
        """Sufficient statistics less their means under beliefs, (n, M, 2), at draws u (n, M).

        A draw of a gamma variable is its logarithm, of a beta variable its log odds.
        """
        raise NotImplementedError

    @staticmethod
    def covariance(belief: Array) -> Array:
        """Covariance of the statistics under each belief, (n, 2, 2)."""
        raise NotImplementedError

    @staticmethod
    def slopes(cavity: Array, belief: Array) -> Array:
        """Derivatives of the targets by the means of the statistics, (n, 2, 2)."""
        raise NotImplementedError

    @classmethod
    def errors(cls, cavity: Array, belief: Array, ess: Array) -> Array:
        """Standard errors of the targets if means are those of ess (n,) independent draws.

        A Gaussian's are sqrt(v_belief / v_cavity) / sqrt(ess) and sqrt(2 / ess).
        """
        slopes = cls.slopes(cavity, belief)
        variance = np.einsum("nti,nij,ntj->nt", slopes, cls.covariance(belief), slopes)
        return np.asarray(np.sqrt(variance / ess[:, None]))


def _matrices(a: Array | float, b: Array | float, c: Array | float, d: Array | float) -> Array:
    """Matrices [[a, b], [c, d]], (n, 2, 2)."""
    return np.stack(np.broadcast_arrays(a, b, c, d), axis=-1).reshape(-1, 2, 2)


def _log_gamma_draws(shape: float, rng: np.random.Generator, size: int) -> Array:
    """Logs of gamma variables: of one of shape + 1 times U^(1 / shape), which never underflows."""
    more = np.log(rng.standard_gamma(shape + 1.0, size))
    return np.asarray(more - rng.standard_exponential(size) / shape)


class GaussianMessages(MessageKind):
    """Gaussian messages: mean and variance."""

    name = "gaussian"
    parameters = ("mean", "variance")
    family = Gaussian

    @staticmethod
    def is_proper(p: Array) -> NDArray[np.bool_]:
        return np.asarray((p[:, 1] > 0.0) & np.isfinite(p).all(axis=1))

    @staticmethod
    def natural(p: Array) -> Array:
        return np.stack([1.0 / p[:, 1], p[:, 0] / p[:, 1]], axis=1)

    @staticmethod
    def usual(eta: Array) -> Array:
        return np.stack([eta[:, 1] / eta[:, 0], 1.0 / eta[:, 0]], axis=1)

    @staticmethod
    def moments(p: Array) -> tuple[Array, Array]:
        return p[:, 0].copy(), p[:, 1].copy()

    @staticmethod
    def coordinates(p: Array) -> Array:
        return np.stack([p[:, 0], np.log(p[:, 1])], axis=1)

    @staticmethod
    def targets(cavity: Array, belief: Array) -> Array:
        m, v = cavity.T
        return np.stack([(belief[:, 0] - m) / np.sqrt(v), np.log(belief[:, 1] / v)], axis=1)

    @staticmethod
    def belief(cavity: Array, targets: Array) -> Array:
        m, v = cavity.T
        return np.stack([m + np.sqrt(v) * targets[:, 0], v * np.exp(targets[:, 1])], axis=1)

    @staticmethod
    def widened(p: Array) -> Array:
        return np.asarray(p * [1.0, 2.0])

    @staticmethod
    def draw(p: Array, rng: np.random.Generator, size: int) -> Array:
        return np.asarray(p[0] + np.sqrt(p[1]) * rng.standard_normal(size))

    @staticmethod
    def characteristic(p: Array, omega: Array) -> Complex:
        return np.asarray(np.exp(1j * p[:, :1] * omega - 0.5 * p[:, 1:] * omega**2))

    @staticmethod
    def statistics(belief: Array, u: Array) -> Array:
        d = u - belief[:, :1]
        return np.stack([d, d * d - belief[:, 1:]], axis=-1)

    @staticmethod
    def covariance(belief: Array) -> Array:
        v = belief[:, 1]
        return _matrices(v, 0.0, 0.0, 2.0 * v * v)

    @staticmethod
    def slopes(cavity: Array, belief: Array) -> Array:
        return _matrices(1.0 / np.sqrt(cavity[:, 1]), 0.0, 0.0, 1.0 / belief[:, 1])


class GammaMessages(MessageKind):
    """Gamma messages: shape and rate."""

    name = "gamma"
    parameters = ("shape", "rate")
    family = Gamma

    @staticmethod
    def is_proper(p: Array) -> NDArray[np.bool_]:
        return np.asarray((p > 0.0).all(axis=1) & np.isfinite(p).all(axis=1))

    @staticmethod
    def natural(p: Array) -> Array:
        return np.stack([p[:, 0] - 1.0, p[:, 1]], axis=1)

    @staticmethod
    def usual(eta: Array) -> Array:
        return np.stack([eta[:, 0] + 1.0, eta[:, 1]], axis=1)

    @staticmethod
    def moments(p: Array) -> tuple[Array, Array]:
        mean = p[:, 0] / p[:, 1]
        return mean, mean / p[:, 1]

    @staticmethod
    def coordinates(p: Array) -> Array:
        return np.asarray(np.log(p))

    @staticmethod
    def targets(cavity: Array, belief: Array) -> Array:
        a, b = cavity.T
        wider = np.log(belief[:, 0] / a)
        return np.stack([np.sqrt(a) * (wider - np.log(belief[:, 1] / b)), wider], axis=1)

    @staticmethod
    def belief(cavity: Array, targets: Array) -> Array:
        a, b = cavity.T
        shift = targets[:, 0] / np.sqrt(a)
        return np.stack([a * np.exp(targets[:, 1]), b * np.exp(targets[:, 1] - shift)], axis=1)

    @staticmethod
    def widened(p: Array) -> Array:
        return 0.5 * p

    @staticmethod
    def draw(p: Array, rng: np.random.Generator, size: int) -> Array:
        return np.asarray(_log_gamma_draws(p[0], rng, size) - np.log(p[1]))

    @staticmethod
    def characteristic(p: Array, omega: Array) -> Complex:
        ratio = omega / p[:, 1:]
        with np.errstate(over="ignore"):
            log_size = np.where(
                np.abs(ratio) < 1.0, 0.5 * np.log1p(ratio * ratio), np.log(np.hypot(1.0, ratio))
            )
        return np.asarray(np.exp(p[:, :1] * (1j * np.arctan(ratio) - log_size)))

    @staticmethod
    def statistics(belief: Array, u: Array) -> Array:
        """x over its mean, and log x."""
        a, b = belief[:, :1], belief[:, 1:]
        d = u - np.log(a / b)
        return np.stack([np.expm1(d), d + np.log(a) - special.psi(a)], axis=-1)

    @staticmethod
    def covariance(belief: Array) -> Array:
        a = belief[:, 0]
        return _matrices(1.0 / a, 1.0 / a, 1.0 / a, trigamma(a))

    @staticmethod
    def slopes(cavity: Array, belief: Array) -> Array:
        a = belief[:, 0]
        # d log a by the gap log E x - E log x = log a - psi(a)
        drop = np.where(a < LARGE, a * trigamma(a) - 1.0, (0.5 + 1.0 / (6.0 * a)) / a)
        return _matrices(np.sqrt(cavity[:, 0]), 0.0, -1.0 / drop, 1.0 / drop)


class BetaMessages(MessageKind):
    """Beta messages: alpha and beta."""

    name = "beta"
    parameters = ("alpha", "beta")
    family = Beta

    @staticmethod
    def is_proper(p: Array) -> NDArray[np.bool_]:
        return np.asarray((p > 0.0).all(axis=1) & np.isfinite(p).all(axis=1))

    @staticmethod
    def natural(p: Array) -> Array:
        return np.asarray(p - 1.0)

    @staticmethod
    def usual(eta: Array) -> Array:
        return np.asarray(eta + 1.0)

    @staticmethod
    def moments(p: Array) -> tuple[Array, Array]:
        alpha, beta = p.T
        total = alpha + beta
        return alpha / total, alpha / total * (beta / total) / (total + 1.0)

    @staticmethod
    def coordinates(p: Array) -> Array:
        """Mean and log variance of the log odds."""
        alpha, beta = p.T
        mean = special.psi(alpha) - special.psi(beta)
        return np.stack([mean, np.log(trigamma(alpha) + trigamma(beta))], axis=1)

    @staticmethod
    def targets(cavity: Array, belief: Array) -> Array:
        mean, log_variance = BetaMessages.coordinates(cavity).T
        shift = special.psi(belief[:, 0]) - special.psi(belief[:, 1]) - mean
        wider = np.log(belief.sum(axis=1) / cavity.sum(axis=1))
        return np.stack([shift * np.exp(-0.5 * log_variance), wider], axis=1)

    @staticmethod
    def belief(cavity: Array, targets: Array) -> Array:
        mean, log_variance = BetaMessages.coordinates(cavity).T
        total = cavity.sum(axis=1) * np.exp(targets[:, 1])
        return beta_of_log_odds(mean + targets[:, 0] * np.exp(0.5 * log_variance), total)

    @staticmethod
    def widened(p: Array) -> Array:
        return 0.5 * p

    @staticmethod
    def draw(p: Array, rng: np.random.Generator, size: int) -> Array:
        return _log_gamma_draws(p[0], rng, size) - _log_gamma_draws(p[1], rng, size)

    @staticmethod
    def characteristic(p: Array, omega: Array) -> Complex:
        """1F1(alpha, alpha + beta, i omega), by Gauss and Jacobi's rule.

        Right to 1e-12 for frequencies up to 450, with 20 nodes up to 30 and at most 160. O(160^3)
        per row there.

        Raises
        ------
        ValueError
            Beyond 450.
        """
        largest = np.abs(omega).max(initial=0.0)
        if not largest <= NODES[-1][0]:
            raise ValueError(
                f"omega has a frequency of {largest:g}; allowed for beta messages: up to "
                f"{NODES[-1][0]:g}"
            )
        count = next(nodes for most, nodes in NODES if largest <= most)
        result = np.empty((len(p), len(omega)), dtype=np.complex128)
        step = max(1, MOST_NUMBERS // (count * max(count, len(omega))))
        for first in range(0, len(p), step):
            part = slice(first, first + step)
            nodes, weights = jacobi_rule(p[part], count)
            waves = np.exp(1j * nodes[:, :, None] * omega)
            result[part] = np.einsum("nk,nkd->nd", weights, waves)
        return result

    @staticmethod
    def statistics(belief: Array, u: Array) -> Array:
        """log x and log (1 - x)."""
        means = special.psi(belief) - special.psi(belief.sum(axis=1, keepdims=True))
        logs = np.stack([special.log_expit(u), special.log_expit(-u)], axis=-1)
        return np.asarray(logs - means[:, None, :])

    @staticmethod
    def covariance(belief: Array) -> Array:
        both = trigamma(belief.sum(axis=1))
        first, second = trigamma(belief).T
        return _matrices(first - both, -both, -both, second - both)

    @staticmethod
    def slopes(cavity: Array, belief: Array) -> Array:
        first, second = trigamma(belief).T
        sd = np.exp(0.5 * BetaMessages.coordinates(cavity)[:, 1])
        total = belief.sum(axis=1)
        # alpha and beta move by the inverse of the covariance, targets by these
        by_both = _matrices(first / sd, -second / sd, 1.0 / total, 1.0 / total)
        return np.asarray(by_both @ np.linalg.inv(BetaMessages.covariance(belief)))


#: by the names of families
KINDS: dict[str, type[MessageKind]] = {
    kind.name: kind for kind in (GaussianMessages, GammaMessages, BetaMessages)
}


def check_inputs(name: str, given: Any) -> tuple[str, ...]:
    """Families of the inputs of a factor, one or more."""
    families = (given,) if isinstance(given, str) else given
    if not isinstance(families, tuple | list) or not families:
        raise TypeError(
            f"{name} is {_checks.describe(given)}; allowed: a tuple of families, "
            f"{', '.join(map(repr, KINDS))}"
        )
    return tuple(_checks.choice(f"{name}[{i}]", f, tuple(KINDS)) for i, f in enumerate(families))


def check_messages(name: str, given: Any, inputs: tuple[str, ...]) -> tuple[Array, ...]:
    """Messages (n, 2 c) as rows (n, 2) for each of the c inputs, checked."""
    found = _checks.real_array(name, given)
    if found.ndim != 2 or found.shape[1] != 2 * len(inputs):
        raise ValueError(
            f"{name} has shape {found.shape}; allowed: (n, {2 * len(inputs)}), two numbers for "
            f"each of the inputs {inputs}"
        )
    return tuple(
        KINDS[family].check(
            name if len(inputs) == 1 else f"{name}[:, {2 * i}:{2 * i + 2}]",
            found[:, 2 * i : 2 * i + 2],
        )
        for i, family in enumerate(inputs)
    )


def check_data(name: str, given: Any, n: int) -> Array | None:
    """Data of n factors, (n, q) float64 without NaN, from (n,) or (n, q). Or None."""
    if given is None:
        return None
    found = _checks.real_array(name, given)
    if found.ndim not in (1, 2) or len(found) != n:
        raise ValueError(f"{name} has shape {found.shape}; allowed: ({n},) or ({n}, q), or None")
    result = _checks.array(name, found, shape=(None,) * found.ndim, finite=False)
    if np.isnan(result).any():
        raise ValueError(f"{name} holds NaN; allowed: numbers")
    return result[:, None] if result.ndim == 1 else result

"""Messages that operators learn on, by their usual parameters: Gaussian, gamma and beta.

Rows are (n, 2): mean and variance of a Gaussian, shape and rate of a gamma message, alpha and beta
of a beta message. Messages of c inputs stand side by side, (n, 2 c). Numbers in equations are those
of Jitkrittum et al. (2015), Kernel-based just-in-time learning for passing expectation propagation
messages.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from epfast import _checks
from epfast._arrays import Array, Given
from epfast.families import Beta, Gamma, Gaussian, Scalar, log_odds, trigamma

#: shape from where on a series replaces a difference of trigammas
LARGE = 1e4
#: Newton steps for a mean of log odds. Five are usual
MOST_STEPS = 50


class Messages(ABC):
    """Messages of one family, as operators learn them: rows (n, 2) of usual parameters.

    Members are proper. Natural parameters and what they say are those of ``family``.
    """

    family: ClassVar[type[Scalar]]
    #: names of the two usual parameters
    parameters: ClassVar[tuple[str, str]]

    @property
    def name(self) -> str:
        """As users call it."""
        return self.family.name

    def check(self, name: str, p: ArrayLike) -> Array:
        """Rows as float64, C-contiguous.

        Raises
        ------
        TypeError, ValueError
            For another shape, NaN or infinity, or a message that is not proper.
        """
        rows = _checks.array(name, p, shape=(None, 2))
        for column, parameter in enumerate(self.parameters):
            least = rows[:, column].min(initial=np.inf)
            if parameter != "mean" and not least > 0.0:
                raise ValueError(
                    f"{name} holds {parameter} = {least:g}; allowed for {self.name} messages: "
                    "finite numbers > 0"
                )
        return rows

    def is_proper(self, p: Array) -> NDArray[np.bool_]:
        """Whether each is finite and can be normalised, (n,)."""
        positive = p[:, [name != "mean" for name in self.parameters]]
        return np.asarray((positive > 0.0).all(axis=1) & np.isfinite(p).all(axis=1))

    @abstractmethod
    def natural(self, p: Array) -> Array:
        """Natural parameters of the family."""

    @abstractmethod
    def usual(self, eta: Array) -> Array:
        """Usual parameters of natural ones."""

    @abstractmethod
    def moments(self, p: Array) -> tuple[Array, Array]:
        """Mean and variance, (n,) each. The features of the paper's mode alone use it."""

    @abstractmethod
    def coordinates(self, p: Array) -> Array:
        """Coordinates without limits on which sites vary smoothly, (n, 2)."""

    @abstractmethod
    def targets(self, cavity: Array, belief: Array) -> Array:
        """Site targets, (n, 2): what the factor adds to the cavity, in its units.

        A shift of the centre in standard deviations of the cavity, and the log of a ratio of
        widths. 0 for nothing.
        """

    @abstractmethod
    def belief(self, cavity: Array, targets: Array) -> Array:
        """Projected beliefs (1) by their site targets."""

    def widened(self, p: Array) -> Array:
        """Members of about the same mean and twice the variance, with heavier tails."""
        return np.asarray(0.5 * p)

    @abstractmethod
    def draw(self, p: Array, rng: np.random.Generator, size: int) -> Array:
        """Draws (size,) of the coordinate u of the family from one message (2,)."""

    @abstractmethod
    def slopes(self, cavity: Array, belief: Array) -> Array:
        """Derivatives of the targets by the means of the family's integrands, (2, 2).

        Of one message: cavity (2,) and belief (2,), about whose centre the integrands are.
        """


def _log_gamma_draws(shape: float, rng: np.random.Generator, size: int) -> Array:
    """Logs of gamma variables: of one of shape + 1 times U^(1 / shape), which never underflows."""
    more = np.log(rng.standard_gamma(shape + 1.0, size))
    return np.asarray(more - rng.standard_exponential(size) / shape)


def beta_of_log_odds(mean: Array, total: Array) -> Array:
    """Beta variables by the mean of their log odds and alpha + beta, (n, 2).

    Newton's method for the log odds x of alpha over beta. psi(total p) - psi(total q) grows faster
    than x and than 2 sinh(x) / total, and is convex beyond 0: from the nearer of their two answers
    steps go down to the root.
    """
    goal = np.abs(mean)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        x = np.minimum(goal, np.arcsinh(0.5 * goal * total))
        for _ in range(MOST_STEPS):
            more, less = total * special.expit(x), total * special.expit(-x)
            rise = more * special.expit(-x) * (trigamma(more) + trigamma(less))
            step = (special.psi(more) - special.psi(less) - goal) / rise
            x = np.maximum(x - step, 0.0)
            if not (np.abs(step) > 1e-9 * np.maximum(x, 1e-3)).any():
                break
        more, less = total * special.expit(x), total * special.expit(-x)
    up = mean >= 0.0
    return np.stack([np.where(up, more, less), np.where(up, less, more)], axis=1)


class GaussianMessages(Messages):
    """Gaussian messages: mean and variance."""

    family = Gaussian
    parameters = ("mean", "variance")

    def natural(self, p: Array) -> Array:
        return np.stack([1.0 / p[:, 1], p[:, 0] / p[:, 1]], axis=1)

    def usual(self, eta: Array) -> Array:
        return np.stack([eta[:, 1] / eta[:, 0], 1.0 / eta[:, 0]], axis=1)

    def moments(self, p: Array) -> tuple[Array, Array]:
        return p[:, 0].copy(), p[:, 1].copy()

    def coordinates(self, p: Array) -> Array:
        return np.stack([p[:, 0], np.log(p[:, 1])], axis=1)

    def targets(self, cavity: Array, belief: Array) -> Array:
        m, v = cavity.T
        return np.stack([(belief[:, 0] - m) / np.sqrt(v), np.log(belief[:, 1] / v)], axis=1)

    def belief(self, cavity: Array, targets: Array) -> Array:
        m, v = cavity.T
        return np.stack([m + np.sqrt(v) * targets[:, 0], v * np.exp(targets[:, 1])], axis=1)

    def widened(self, p: Array) -> Array:
        return np.stack([p[:, 0], 2.0 * p[:, 1]], axis=1)

    def draw(self, p: Array, rng: np.random.Generator, size: int) -> Array:
        return np.asarray(p[0] + np.sqrt(p[1]) * rng.standard_normal(size))

    def slopes(self, cavity: Array, belief: Array) -> Array:
        return np.diag([1.0 / np.sqrt(cavity[1]), 1.0 / belief[1]])


class GammaMessages(Messages):
    """Gamma messages: shape and rate."""

    family = Gamma
    parameters = ("shape", "rate")

    def natural(self, p: Array) -> Array:
        return np.stack([p[:, 0] - 1.0, p[:, 1]], axis=1)

    def usual(self, eta: Array) -> Array:
        return np.stack([eta[:, 0] + 1.0, eta[:, 1]], axis=1)

    def moments(self, p: Array) -> tuple[Array, Array]:
        mean = p[:, 0] / p[:, 1]
        return mean, mean / p[:, 1]

    def coordinates(self, p: Array) -> Array:
        return np.asarray(np.log(p))

    def targets(self, cavity: Array, belief: Array) -> Array:
        a, b = cavity.T
        wider = np.log(belief[:, 0] / a)
        return np.stack([np.sqrt(a) * (wider - np.log(belief[:, 1] / b)), wider], axis=1)

    def belief(self, cavity: Array, targets: Array) -> Array:
        a, b = cavity.T
        shift = targets[:, 0] / np.sqrt(a)
        return np.stack([a * np.exp(targets[:, 1]), b * np.exp(targets[:, 1] - shift)], axis=1)

    def draw(self, p: Array, rng: np.random.Generator, size: int) -> Array:
        return np.asarray(_log_gamma_draws(p[0], rng, size) - np.log(p[1]))

    def slopes(self, cavity: Array, belief: Array) -> Array:
        a, root = belief[0], np.sqrt(cavity[0])
        # d log a by the gap log E x - E log x = log a - psi(a)
        drop = a * trigamma(a) - 1.0 if a < LARGE else (0.5 + 1.0 / (6.0 * a)) / a
        return np.array([[root, root], [0.0, -1.0 / drop]])


class BetaMessages(Messages):
    """Beta messages: alpha and beta."""

    family = Beta
    parameters = ("alpha", "beta")

    def natural(self, p: Array) -> Array:
        return np.asarray(p - 1.0)

    def usual(self, eta: Array) -> Array:
        return np.asarray(eta + 1.0)

    def moments(self, p: Array) -> tuple[Array, Array]:
        alpha, beta = p.T
        total = alpha + beta
        return alpha / total, alpha / total * (beta / total) / (total + 1.0)

    def coordinates(self, p: Array) -> Array:
        """Mean and log variance of the log odds."""
        mean, sd = log_odds(p)
        return np.stack([mean, 2.0 * np.log(sd)], axis=1)

    def targets(self, cavity: Array, belief: Array) -> Array:
        mean, sd = log_odds(cavity)
        shift = log_odds(belief)[0] - mean
        return np.stack([shift / sd, np.log(belief.sum(axis=1) / cavity.sum(axis=1))], axis=1)

    def belief(self, cavity: Array, targets: Array) -> Array:
        mean, sd = log_odds(cavity)
        total = cavity.sum(axis=1) * np.exp(targets[:, 1])
        return beta_of_log_odds(mean + targets[:, 0] * sd, total)

    def draw(self, p: Array, rng: np.random.Generator, size: int) -> Array:
        return _log_gamma_draws(p[0], rng, size) - _log_gamma_draws(p[1], rng, size)

    def slopes(self, cavity: Array, belief: Array) -> Array:
        variances, total = trigamma(belief), belief.sum()
        covariance = np.diag(variances) - trigamma(total)
        sd = np.sqrt(trigamma(cavity).sum())
        # alpha and beta move by the inverse of the covariance, targets by these
        by_both = np.array([variances / sd * [1.0, -1.0], [1.0 / total, 1.0 / total]])
        return np.asarray(by_both @ np.linalg.inv(covariance))


#: by the names of families
KINDS: dict[str, Messages] = {
    kind.name: kind for kind in (GaussianMessages(), GammaMessages(), BetaMessages())
}


def check_places(
    inputs: str | Sequence[str], outputs: int | Sequence[int], name: str = "outputs"
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """Families of the inputs, one or more, and places of the outputs among them, each once."""
    given = (inputs,) if isinstance(inputs, str) else inputs
    if not isinstance(given, tuple | list) or not given:
        raise TypeError(
            f"inputs is {_checks.describe(inputs)}; allowed: a tuple of families, "
            f"{', '.join(map(repr, KINDS))}"
        )
    families = tuple(_checks.choice(f"inputs[{i}]", f, tuple(KINDS)) for i, f in enumerate(given))
    places = outputs if isinstance(outputs, tuple | list) else (outputs,)
    checked = tuple(_checks.integer(name, at, least=0, most=len(families) - 1) for at in places)
    if not checked or len(set(checked)) < len(checked):
        raise ValueError(
            f"{name} is {_checks.describe(outputs)}; allowed: places of inputs, each once"
        )
    return families, checked


def check_messages(name: str, given: ArrayLike, inputs: tuple[str, ...]) -> tuple[Array, ...]:
    """Messages (n, 2 c) as rows (n, 2) for each of the c inputs, checked."""
    numbers = _checks.real_array(name, given)
    if numbers.ndim != 2 or numbers.shape[1] != 2 * len(inputs):
        raise ValueError(
            f"{name} has shape {numbers.shape}; allowed: (n, {2 * len(inputs)}), two numbers for "
            f"each of the inputs {inputs}"
        )
    return tuple(
        KINDS[family].check(
            name if len(inputs) == 1 else f"{name}[:, {2 * i}:{2 * i + 2}]",
            numbers[:, 2 * i : 2 * i + 2],
        )
        for i, family in enumerate(inputs)
    )


def check_data(name: str, given: Given, n: int) -> Array | None:
    """Data of n factors, (n, q) float64 without NaN, from (n,) or (n, q). Or None."""
    if given is None:
        return None
    numbers = _checks.real_array(name, given)
    if numbers.ndim not in (1, 2) or len(numbers) != n:
        raise ValueError(f"{name} has shape {numbers.shape}; allowed: ({n},) or ({n}, q), or None")
    result = _checks.array(name, numbers, shape=(None,) * numbers.ndim, finite=False)
    if np.isnan(result).any():
        raise ValueError(f"{name} holds NaN; allowed: numbers")
    return result[:, None] if result.ndim == 1 else result

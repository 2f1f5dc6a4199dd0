"""Messages that operators learn on, by their usual parameters: Gaussian, gamma and beta.

Rows are (n, 2): mean and variance of a Gaussian, shape and rate of a gamma message, alpha and beta
of a beta message. Messages of c inputs stand side by side, (n, 2 c). Numbers in equations are those
of Jitkrittum et al. (2015), Kernel-based just-in-time learning for passing expectation propagation
messages.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from epfast import _checks
from epfast._arrays import Array, Given
from epfast.families import Beta, Gamma, Gaussian

#: shape from where on a series replaces a difference of trigammas
LARGE = 1e4
#: Newton steps for a mean of log odds. Five are usual
MOST_STEPS = 50


class Messages:
    """Messages of one family: what families have in common.

    Rows (n, 2) are usual parameters of proper members. Each family has

    - ``moments(p)``: mean and variance, (n,) each
    - ``coordinates(p)``: coordinates without limits on which sites vary smoothly
    - ``targets(cavity, belief)``: site targets, what the factor adds to the cavity, in its units: a
      shift of the centre in cavity standard deviations, and the log of a ratio of widths. 0 for
      nothing. ``belief(cavity, targets)``: projected beliefs (1)
    - ``draw(p, rng, size)``: draws u (size,) from one message (2,)
    - ``slopes(cavity, belief)``: derivatives of the targets by the means of the integrands about
      the centre of the belief, for one message: (2, 2), at cavity (2,) and belief (2,)

    What a variable is integrated over and drawn by is u, from -inf to inf. With natural parameters
    eta (m, 2) and u (m,) or (m, p) each family has

    - ``x(u)``: the variable at u
    - ``log_density(eta, u)``: log density of u, normalised. ``derivatives(eta, u)``: its first two
    - ``location(eta)``: centre and width of u
    - ``integrands(u, centre)``: two functions of u, about a centre, whose means give the
      projection. ``target(first, second, centre)``: that by these means, natural parameters (m, 2)
    """

    #: as users call it
    name: ClassVar[str]
    #: names of the two usual parameters
    parameters: ClassVar[tuple[str, str]]
    #: usual parameters less natural ones
    above: ClassVar[tuple[float, float]] = (1.0, 1.0)

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

    def natural(self, p: Array) -> Array:
        """Rows as natural parameters of the family."""
        return np.asarray(p - self.above)

    def usual(self, eta: Array) -> Array:
        """Rows of natural parameters."""
        return np.asarray(eta + self.above)

    def widened(self, p: Array) -> Array:
        """Members of about the same mean and twice the variance, with heavier tails."""
        return np.asarray(0.5 * p)

    def is_proper(self, p: Array) -> NDArray[np.bool_]:
        """Whether each is finite and can be normalised, (n,)."""
        positive = p[:, [name != "mean" for name in self.parameters]]
        return np.asarray((positive > 0.0).all(axis=1) & np.isfinite(p).all(axis=1))

    def units(self, width: Array) -> tuple[Array, Array]:
        """How large the integrands are where u varies on this width."""
        return width, width * width


def _log_gamma_draws(shape: float, rng: np.random.Generator, size: int) -> Array:
    """Logs of gamma variables: of one of shape + 1 times U^(1 / shape), which never underflows."""
    more = np.log(rng.standard_gamma(shape + 1.0, size))
    return np.asarray(more - rng.standard_exponential(size) / shape)


def trigamma(x: Array) -> Array:
    """The second derivative of log Gamma: the variance of the log of a gamma variable."""
    return np.asarray(special.zeta(2.0, x))


def log_odds(p: Array) -> tuple[Array, Array]:
    """Means and standard deviations of the log odds of beta variables, (n,) each."""
    alpha, beta = p.T
    mean = special.psi(alpha) - special.psi(beta)
    return mean, np.sqrt(trigamma(alpha) + trigamma(beta))


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

    name = "gaussian"
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
        return np.asarray(p * [1.0, 2.0])

    def draw(self, p: Array, rng: np.random.Generator, size: int) -> Array:
        return np.asarray(p[0] + np.sqrt(p[1]) * rng.standard_normal(size))

    def slopes(self, cavity: Array, belief: Array) -> Array:
        return np.diag([1.0 / np.sqrt(cavity[1]), 1.0 / belief[1]])

    def x(self, u: Array) -> Array:
        return u

    def log_density(self, eta: Array, u: Array) -> Array:
        tau, nu = eta.T if u.ndim == 1 else eta.T[:, :, None]
        d = u - nu / tau
        return np.asarray(-0.5 * tau * d * d + 0.5 * np.log(tau / (2.0 * np.pi)))

    def derivatives(self, eta: Array, u: Array) -> tuple[Array, Array]:
        return eta[:, 1] - eta[:, 0] * u, -eta[:, 0]

    def location(self, eta: Array) -> tuple[Array, Array]:
        return eta[:, 1] / eta[:, 0], 1.0 / np.sqrt(eta[:, 0])

    def integrands(self, u: Array, centre: Array) -> tuple[Array, Array]:
        d = u - centre
        return d, d * d

    def target(self, first: Array, second: Array, centre: Array) -> Array:
        variance = second - first * first
        return Gaussian.matching(np.stack([centre + first, variance], axis=1))


class GammaMessages(Messages):
    """Gamma messages: shape and rate."""

    name = "gamma"
    parameters = ("shape", "rate")
    above = (1.0, 0.0)

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

    def x(self, u: Array) -> Array:
        return np.asarray(np.exp(np.clip(u, -700.0, 700.0)))

    def log_density(self, eta: Array, u: Array) -> Array:
        shape, rate = eta.T if u.ndim == 1 else eta.T[:, :, None]
        shape = shape + 1.0
        d = u - np.log(shape / rate)
        constant = shape * np.log(shape) - shape - special.gammaln(shape)
        return np.asarray(constant - shape * (np.expm1(d) - d))

    def derivatives(self, eta: Array, u: Array) -> tuple[Array, Array]:
        x = eta[:, 1] * np.exp(u)
        return eta[:, 0] + 1.0 - x, -x

    def location(self, eta: Array) -> tuple[Array, Array]:
        shape, rate = eta[:, 0] + 1.0, eta[:, 1]
        return special.digamma(shape) - np.log(rate), np.sqrt(special.polygamma(1, shape))

    def integrands(self, u: Array, centre: Array) -> tuple[Array, Array]:
        d = u - centre
        return d, np.expm1(d) - d

    def target(self, first: Array, second: Array, centre: Array) -> Array:
        with np.errstate(all="ignore"):
            rise = np.log1p(second + first)
            # the gap log E x - E log x without the centre, which would cancel
            return Gamma.by_gap(np.exp(centre + rise), rise - first)


class BetaMessages(Messages):
    """Beta messages: alpha and beta."""

    name = "beta"
    parameters = ("alpha", "beta")

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

    def x(self, u: Array) -> Array:
        # never 0 or 1, whose logs times 0 are NaN
        return np.asarray(np.clip(special.expit(u), 1e-300, 1.0 - 2.0**-53))

    def log_density(self, eta: Array, u: Array) -> Array:
        alpha, beta = (eta + 1.0).T if u.ndim == 1 else (eta + 1.0).T[:, :, None]
        inner = alpha * special.log_expit(u) + beta * special.log_expit(-u)
        return np.asarray(inner - special.betaln(alpha, beta))

    def derivatives(self, eta: Array, u: Array) -> tuple[Array, Array]:
        alpha, beta = (eta + 1.0).T
        p, q = special.expit(u), special.expit(-u)
        return alpha * q - beta * p, -(alpha + beta) * p * q

    def location(self, eta: Array) -> tuple[Array, Array]:
        return log_odds(eta + 1.0)

    def integrands(self, u: Array, centre: Array) -> tuple[Array, Array]:
        # less what they are at the centre: their means have no more digits than that leaves
        return (
            special.log_expit(u) - special.log_expit(centre),
            special.log_expit(-u) - special.log_expit(-centre),
        )

    def units(self, width: Array) -> tuple[Array, Array]:
        return width, width

    def target(self, first: Array, second: Array, centre: Array) -> Array:
        logs = [first + special.log_expit(centre), second + special.log_expit(-centre)]
        return Beta.matching(np.stack(logs, axis=1))


MessageKind = GaussianMessages | GammaMessages | BetaMessages
#: by the names of families
KINDS: dict[str, MessageKind] = {
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

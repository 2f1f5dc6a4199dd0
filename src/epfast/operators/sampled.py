"""Messages of a factor that can be evaluated, or only drawn from: the oracle of the paper, (2)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
from scipy import special

from epfast import _checks
from epfast._arrays import Array, UserFunction
from epfast.losses.custom import Simulator
from epfast.operators.importance import ENOUGH, tempered
from epfast.operators.messages import KINDS, Messages, check_places
from epfast.operators.oracles import NOT_REPRESENTABLE, Answer, Oracle
from epfast.operators.tilted import row_values

#: where draws come from: the default, "cavity", or a family and its parameters for each variable
Proposal = str | tuple[tuple[str, float, float], ...] | None

#: share of effective draws below which the default proposal is fitted again
POOR = 0.05
#: share of draws from the cavity in a proposal that was fitted again
SPARE = 0.1
#: most draws over draws, where max_draws is None
DOUBLINGS = 16

POINT_MASS = (
    "a point mass gives weight 0 to every draw; allowed: log_density= or density=, or the width "
    "of a Gaussian kernel, observe= (0: an exact match, for counts)"
)

#: a message of one input, (1, 2)
Message = Array


class WeightedDraws:
    """Weighted draws for one message.

    Parameters
    ----------
    u : list of ndarray of shape (M,)
        Those of each input, as ``Messages.integrands`` takes them.
    log_w : ndarray of shape (M,)
    """

    def __init__(self, u: list[Array], log_w: Array) -> None:
        self.u, self.log_w = u, log_w
        self.top = float(log_w.max())
        #: weights over the largest. NaN if all are 0
        self.w: Array = np.exp(log_w - self.top)
        #: effective draws, (sum w)^2 / sum w^2. 0 if all weights are
        self.ess = float(np.nan_to_num(self.w.sum() ** 2 / (self.w**2).sum()))
        #: whether a weight is infinite or NaN
        self.broken = not bool((log_w < np.inf).all())

    def joined(self, more: WeightedDraws) -> WeightedDraws:
        """With more of them."""
        u = [np.concatenate(pair) for pair in zip(self.u, more.u, strict=True)]
        return WeightedDraws(u, np.concatenate([self.log_w, more.log_w]))


class MessageProposal(NamedTuple):
    """A product of messages, one for each drawn input. Or a mixture of several such products."""

    kinds: list[Messages]
    products: tuple[tuple[Message, ...], ...]
    shares: tuple[float, ...] = (1.0,)

    def draw(self, rng: np.random.Generator, size: int) -> list[Array]:
        """Draws (size,) of each input."""
        which = np.zeros(size, dtype=np.intp)
        if len(self.shares) > 1:
            which = np.digitize(rng.random(size), np.cumsum(self.shares)[:-1])
        draws = [np.empty(size) for _ in self.kinds]
        for part, product in enumerate(self.products):
            rows = np.flatnonzero(which == part)
            for u, kind, p in zip(draws, self.kinds, product, strict=True):
                u[rows] = kind.draw(p[0], rng, len(rows))
        return draws

    def log_density(self, u: list[Array]) -> Array:
        """Log of its density at draws."""
        logs = [
            np.log(share) + log_messages(self.kinds, product, u)
            for share, product in zip(self.shares, self.products, strict=True)
        ]
        return np.asarray(np.logaddexp.reduce(logs, axis=0))


@dataclass(frozen=True, kw_only=True)
class SampledFactor(Oracle):
    """True messages by importance sampling, of a factor that is evaluated or drawn from.

    Give one of ``log_density``, ``density`` and ``sample``. Draws of the inputs come from a
    proposal r and have the weights w = f m_1 ... m_c / r (2). A message is the projection of the
    weighted draws.

    Parameters
    ----------
    log_density, density : callable, optional
        ``f(x_1, ..., x_c[, data])``: log of the factor, or the factor, at draws x_l (M,) of each
        variable, (M,) float64. data (M, q) where there are data.
    sample : callable, optional
        ``f(x_1, ..., x_{c-1}[, data], rng=rng)``: draws (M,) of the last variable given the others.
        Its weights are the messages over r. The factor itself is not needed. rng is a
        ``numpy.random.Generator``. A run that fails returns infinity, which has weight 0: NaN is
        refused.
    inputs : tuple of str, default=("gaussian",)
        Families of the variables: "gaussian", "gamma" or "beta".
    output : int, default=0
        The place in inputs of the variable whose message is wanted.
    proposal : None, "cavity" or tuple
        ``None``: the cavity with twice its variance (a gamma or beta message with half its
        parameters), and where less than 1 draw in 20 is effective once more the projection of
        the draws, widened likewise, mixed with 10 % cavity. Or fixed: ``("gaussian", 0, 200)``, of
        several drawn variables a tuple of these.
    draws : int, default=10000
        Draws per message.
    max_draws : int, optional
        Draws double up to this number while fewer than min_ess are effective. 16 draws by default.
    min_ess : float, default=100.0
        Effective draws below which a message is refused. Targets are good to tol / 3 from about
        20 / tol^2 on.
    observe : float, optional
        With ``sample``: the last variable is no input, but observed with Gaussian noise of this
        standard deviation: the last column of data. 0: equal to it, for counts.
    seed : int, default=0

    Notes
    -----
    Random numbers depend on seed, message, datum and power alone: the same message has the same
    answer, in any block. Standard errors are those of self-normalised importance sampling, to first
    order. Gamma variables are drawn by their logarithms, beta variables by their log odds.

    References
    ----------
    Jitkrittum et al. (2015), Kernel-based just-in-time learning for passing expectation propagation
    messages, section 3 (N(0, 200) and 500,000 draws).

    Examples
    --------
    >>> import numpy as np
    >>> from epfast.operators import SampledFactor
    >>> step = SampledFactor(sample=lambda x, rng: x + rng.normal(size=x.shape),
    ...                      inputs=("gaussian", "gaussian"), output=1)
    >>> step.answer([[0.0, 1.0, 0.0, 2.0]]).belief.round(1)
    array([[-0.,  1.]])
    """

    log_density: UserFunction | None = None
    density: UserFunction | None = None
    sample: UserFunction | None = None
    inputs: tuple[str, ...] = ("gaussian",)
    output: int = 0
    proposal: Proposal = None
    draws: int = 10_000
    max_draws: int | None = None
    min_ess: float = 100.0
    observe: float | None = None
    seed: int = 0
    outputs: tuple[int, ...] = field(default=(0,), init=False, repr=False)
    exact = False
    reasons = (
        "",
        "fewer than min_ess draws are effective after max_draws: the proposal misses the tilted "
        "density, or hardly a draw of sample equals what is observed (see observe)",
        "a weight is not finite: the factor, or a message, is infinite or NaN at a draw",
        "the projected variance is not positive",
        NOT_REPRESENTABLE,
    )

    def __post_init__(self) -> None:
        families, places = check_places(self.inputs, self.output, "output")
        draws = _checks.integer("draws", self.draws, least=10, most=10**8)
        most = DOUBLINGS * draws if self.max_draws is None else self.max_draws
        _checks.freeze(
            self,
            inputs=families,
            output=places[0],
            outputs=places,
            draws=draws,
            max_draws=_checks.integer("max_draws", most, least=draws, most=10**10),
            min_ess=_checks.number("min_ess", self.min_ess, least=2.0),
            seed=_checks.integer("seed", self.seed, least=0),
        )
        if self.min_ess >= most:
            raise ValueError(
                f"min_ess is {self.min_ess:g} of at most {most} draws; allowed: fewer than draws"
            )
        self._check_functions()
        _checks.freeze(self, proposal=self._checked_proposal())

    def _check_functions(self) -> None:
        names = "log_density", "density", "sample"
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) != 1:
            raise TypeError(
                f"{' and '.join(given) or 'no function'} is given; allowed: one of log_density, "
                "density and sample"
            )
        if self.sample is None:
            _checks.function(given[0], getattr(self, given[0]))
        else:
            self._simulator()
        if self.observe is not None:
            _checks.freeze(self, observe=_checks.number("observe", self.observe, least=0.0))
            if self.sample is None:
                raise ValueError("observe is given; allowed with sample=, a density has the datum")
        elif self.sample is not None and len(self.inputs) == 1:
            raise ValueError(
                f"sample has one input, {self.inputs}, so that what it draws is observed, and "
                + POINT_MASS
            )

    def _checked_proposal(self) -> Proposal:
        kinds, given = self._drawn, self.proposal
        if given is None:
            return None
        if isinstance(given, str):
            return _checks.choice("proposal", given, ("cavity",))
        if isinstance(given, tuple | list) and given and isinstance(given[0], str):
            given = (given,) * len(kinds)
        if not isinstance(given, tuple | list) or len(given) != len(kinds):
            raise TypeError(
                f"proposal is {_checks.describe(self.proposal)}; allowed: None, 'cavity', or for "
                f"each of the drawn variables {[kind.name for kind in kinds]} a tuple as "
                "('gaussian', 0, 200)"
            )
        checked = []
        for at, (kind, one) in enumerate(zip(kinds, given, strict=True)):
            if not isinstance(one, tuple | list) or len(one) != 3 or one[0] != kind.name:
                raise ValueError(
                    f"proposal for input {at} is {_checks.describe(one)}; allowed: "
                    f"({kind.name!r}, {', '.join(kind.parameters)})"
                )
            p = kind.check(f"proposal for input {at}", [one[1:]])
            checked.append((kind.name, float(p[0, 0]), float(p[0, 1])))
        return tuple(checked)

    @property
    def _drawn(self) -> list[Messages]:
        """Families of the inputs that are drawn from the proposal: all but a sampled one."""
        sampled = self.sample is not None and self.observe is None
        return [KINDS[family] for family in (self.inputs[:-1] if sampled else self.inputs)]

    def solve(self, messages: tuple[Array, ...], data: Array | None, power: float) -> Answer:
        if self.sample is not None and power != 1.0:
            raise ValueError(
                f"power is {power:g}; allowed with sample=: 1, since the factor is not evaluated"
            )
        if self.observe is not None and data is None:
            raise ValueError("data is None; allowed with observe=: what is observed, (n,)")
        rows = []
        for i, key in enumerate(fingerprints(messages, data, self.seed, power)):
            rng = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "little")))
            cavities = tuple(p[i : i + 1] for p in messages)
            datum = None if data is None else data[i]
            draw = partial(self._some, cavities, datum, power, rng)
            draws = self._enough(draw, cavities[: len(self._drawn)])
            rows.append(self._row(cavities[self.output], draws))
        belief, log_z, sd, reason = map(np.array, zip(*rows, strict=True))
        return self.finished(messages, [belief], log_z, sd, reason)

    def _row(self, cavity: Message, draws: WeightedDraws) -> tuple[Array, float, Array, int]:
        """The answer to one message, as in an Answer."""
        nothing = np.full(2, np.nan), np.nan, np.full(3, np.nan)
        if draws.broken:
            return *nothing, 2
        if draws.ess < self.min_ess:
            return *nothing, 1
        kind, count = KINDS[self.inputs[self.output]], len(draws.log_w)
        belief, variance, pulls = projected(kind, draws.u[self.output], draws.w / draws.w.sum())
        if not variance > 0.0:
            return *nothing, 3
        sd = np.sqrt(((pulls @ kind.slopes(cavity[0], belief[0]).T) ** 2).sum(axis=0))
        # the mean of the weights has this relative error
        of_log_z = np.sqrt(max(1.0 / draws.ess - 1.0 / count, 0.0))
        return belief[0], draws.top + np.log(draws.w.mean()), np.append(sd, of_log_z), 0

    def _enough(
        self, draw: Callable[[MessageProposal, int], WeightedDraws], cavities: tuple[Message, ...]
    ) -> WeightedDraws:
        """Draws for one message: as many as are needed, or max_draws."""
        kinds, product = self._drawn, cavities
        if self.proposal is None:
            product = tuple(kind.widened(p) for kind, p in zip(kinds, cavities, strict=True))
        elif self.proposal != "cavity":
            product = tuple(np.array([one[1:]]) for one in self.proposal)
        proposal = MessageProposal(kinds, (product,))
        draws = draw(proposal, self.draws)
        poor = self.proposal is None and draws.ess < POOR * self.draws
        again = refitted(kinds, draws, cavities) if poor and not draws.broken else None
        if again is not None:
            proposal, draws = again, draw(again, self.draws)
        while draws.ess < self.min_ess and not draws.broken:
            more = min((self.max_draws or 0) - len(draws.log_w), len(draws.log_w))
            if more <= 0:
                break
            draws = draws.joined(draw(proposal, more))
        return draws

    def _some(
        self,
        cavities: tuple[Message, ...],
        datum: Array | None,
        power: float,
        rng: np.random.Generator,
        proposal: MessageProposal,
        size: int,
    ) -> WeightedDraws:
        """So many draws from the proposal, and logs of their weights (2)."""
        u, kinds = proposal.draw(rng, size), proposal.kinds
        log_w = log_messages(kinds, cavities[: len(kinds)], u) - proposal.log_density(u)
        x = [kind.family.x(one) for kind, one in zip(kinds, u, strict=True)]
        if self.log_density is not None:
            log_w += power * self._called("log_density", x, datum)
            return WeightedDraws(u, log_w)
        if self.density is not None:
            values = self._called("density", x, datum)
            if (values < 0.0).any():
                raise ValueError(f"density returned {values.min():g}; allowed: numbers >= 0")
            return WeightedDraws(u, log_w + power * np.log(values))
        if self.observe is not None and datum is not None:
            known = data_rows(datum[:-1] if len(datum) > 1 else None, size)
            drawn = self._simulator()(*x, *known, rng=rng)
            return WeightedDraws(u, log_w + log_match(drawn, datum[-1], self.observe))
        drawn = self._simulator()(*x, *data_rows(datum, size), rng=rng)
        last, log_slope = coordinate(self.inputs[-1], drawn)
        inside = np.isfinite(last) & np.isfinite(log_slope)
        # outside of its support a message is 0
        log_w[~inside] = -np.inf
        log_m = log_messages([KINDS[self.inputs[-1]]], cavities[-1:], [last[inside]])
        log_w[inside] += log_m - log_slope[inside]
        return WeightedDraws([*u, last], log_w)

    def _called(self, name: str, x: list[Array], datum: Array | None) -> Array:
        """What a density of the user's returns at draws (M,), checked."""
        function = self.log_density if name == "log_density" else self.density
        assert function is not None
        # the arrays of the call are its own: what it writes into them is lost
        values = function(*[one.copy() for one in x], *data_rows(datum, len(x[0])))
        return row_values(name, values, len(x[0]))

    def _simulator(self) -> Simulator:
        """The user's sample, checked."""
        assert self.sample is not None
        x = tuple(f"x_{i + 1}" for i in range(len(self._drawn)))
        return Simulator("sample", self.sample, x, (*x, "data"))


def data_rows(datum: Array | None, count: int) -> list[Array]:
    """The last argument of the functions of the user: the datum, for each of the draws."""
    return [] if datum is None else [np.broadcast_to(datum, (count, len(datum)))]


def fingerprints(messages: tuple[Array, ...], data: Array | None, *settings: float) -> list[bytes]:
    """16 bytes for each row, by its messages, its datum and the settings. Equal for equal ones."""
    parts = messages if data is None else (*messages, data)
    rows = np.concatenate(parts, axis=1) + 0.0  # -0.0 is 0.0
    start, digests = hashlib.blake2b(repr(settings).encode(), digest_size=16), []
    for row in rows:
        hasher = start.copy()
        hasher.update(row.tobytes())
        digests.append(hasher.digest())
    return digests


def log_messages(kinds: list[Messages], product: tuple[Message, ...], u: list[Array]) -> Array:
    """Log density of u (M,) of each input under a product of messages."""
    logs = [
        kind.family.log_density(kind.natural(p), one[None])[0]
        for kind, p, one in zip(kinds, product, u, strict=True)
    ]
    return np.asarray(sum(logs))


def projected(kind: Messages, u: Array, w: Array) -> tuple[Message, float, Array]:
    """The projection (1) of weighted draws, NaN where there is none. And their variance of u.

    The last result, (M, 2), says by how much each draw moves the means of the integrands.
    """
    seen = w > 0.0
    u, w = u[seen], w[seen]
    centre = np.sum(w * u)
    variance = float(np.sum(w * (u - centre) ** 2))
    if kind.name == "gamma":  # the log of the mean, which no exp(u) is far above
        centre = special.logsumexp(u, b=w)
    first, second = kind.family.integrands(u[None], np.array([[centre]]))
    means = first @ w, second @ w
    belief = kind.usual(kind.family.target(*means, np.array([centre])))
    pulls = w * (first - means[0]), w * (second - means[1])
    return belief, variance, np.concatenate(pulls).T


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
        return np.where(x == y, 0.0, -np.inf)
    z = (x - y) / width
    return np.asarray(-0.5 * z * z - np.log(width * np.sqrt(2.0 * np.pi)))


def refitted(
    kinds: list[Messages], draws: WeightedDraws, cavities: tuple[Message, ...]
) -> MessageProposal | None:
    """The next proposal: projections of the draws, widened, with 10 % cavity. None: no weight is.

    Where too few draws are effective to fit anything, weights are taken to a power below 1.
    """
    if not np.isfinite(draws.top):
        return None
    (w,), _ = tempered(draws.log_w[None], ENOUGH * len(kinds))
    product = []
    for kind, u in zip(kinds, draws.u[: len(kinds)], strict=True):
        p, variance, _ = projected(kind, u, w)
        if not (variance > 0.0 and kind.is_proper(p)[0]):
            return None
        product.append(kind.widened(p))
    return MessageProposal(kinds, (tuple(product), cavities), (1.0 - SPARE, SPARE))

"""Messages of a factor that can be evaluated, or only drawn from: the oracle of the paper, (2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import ArrayLike

from epfast import _checks
from epfast._arrays import Array
from epfast.operators.answers import (
    NOT_REPRESENTABLE,
    Answer,
    Oracle,
    check_places,
    fingerprints,
)
from epfast.operators.density import Density, row_values
from epfast.operators.draws import (
    Message,
    MessageProposal,
    WeightedDraws,
    coordinate,
    log_match,
    log_message,
    projected,
    refitted,
)
from epfast.operators.messages import KINDS

#: share of effective draws below which the default proposal is fitted again
POOR = 0.05
#: most draws over draws, where max_draws is None
DOUBLINGS = 16

POINT_MASS = (
    "a point mass gives weight 0 to every draw; allowed: log_density= or density=, or the width "
    "of a Gaussian kernel, observe= (0: an exact match, for counts)"
)


class Row(NamedTuple):
    """The answer to one message, as in an Answer."""

    belief: Array
    log_z: float
    sd: Array
    reason: int


def refused(reason: int) -> Row:
    """A row without an answer."""
    return Row(np.full(2, np.nan), np.nan, np.full(3, np.nan), reason)


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
        Its weights are the messages over r. The factor itself is not needed.
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
    >>> from epfast.operators.sampled import SampledFactor
    >>> step = SampledFactor(sample=lambda x, rng: x + rng.normal(size=x.shape),
    ...                      inputs=("gaussian", "gaussian"), output=1)
    >>> step.answer([[0.0, 1.0, 0.0, 2.0]]).belief.round(1)
    array([[-0.,  1.]])
    """

    log_density: Callable[..., ArrayLike] | None = None
    density: Callable[..., ArrayLike] | None = None
    sample: Callable[..., ArrayLike] | None = None
    inputs: tuple[str, ...] = ("gaussian",)
    output: int = 0
    proposal: Any = None
    draws: int = 10_000
    max_draws: int | None = None
    min_ess: float = 100.0
    observe: float | None = None
    seed: int = 0
    outputs: tuple[int, ...] = field(default=(0,), init=False, repr=False)
    exact: bool = field(default=False, init=False, repr=False)
    reasons: tuple[str, ...] = field(
        default=(
            "",
            "fewer than min_ess draws are effective after max_draws: the proposal misses the "
            "tilted density",
            "a weight is not finite: the factor, or a message, is infinite or NaN at a draw",
            "the projected variance is not positive",
            NOT_REPRESENTABLE,
        ),
        init=False,
        repr=False,
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
        given = {
            name: function
            for name in ("log_density", "density", "sample")
            if (function := getattr(self, name)) is not None
        }
        if len(given) != 1:
            raise TypeError(
                f"{' and '.join(given) or 'no function'} is given; allowed: one of log_density, "
                "density and sample"
            )
        for name, function in given.items():
            if not callable(function):
                raise TypeError(f"{name} is {_checks.describe(function)}; allowed: a callable")
        if self.observe is not None:
            _checks.freeze(self, observe=_checks.number("observe", self.observe, least=0.0))
            if self.sample is None:
                raise ValueError("observe is given; allowed with sample=, a density has the datum")
        elif self.sample is not None and len(self.inputs) == 1:
            raise ValueError(
                f"sample has one input, {self.inputs}, so that what it draws is observed, and "
                + POINT_MASS
            )

    def _checked_proposal(self) -> Any:
        if self.proposal is None or isinstance(self.proposal, str):
            if self.proposal not in (None, "cavity"):
                _checks.choice("proposal", self.proposal, ("cavity",))
            return self.proposal
        kinds, given = self._drawn, self.proposal
        if isinstance(given, tuple | list) and given and isinstance(given[0], str):
            given = (given,) * len(kinds)
        if not isinstance(given, tuple | list) or len(given) != len(kinds):
            raise TypeError(
                f"proposal is {_checks.describe(self.proposal)}; allowed: None, 'cavity', or for "
                f"each of the drawn variables {tuple(kinds)} a tuple as ('gaussian', 0, 200)"
            )
        found = []
        for at, (kind, one) in enumerate(zip(kinds, given, strict=True)):
            if not isinstance(one, tuple | list) or len(one) != 3 or one[0] != kind:
                raise ValueError(
                    f"proposal for input {at} is {_checks.describe(one)}; allowed: ({kind!r}, "
                    f"{', '.join(KINDS[kind].parameters)})"
                )
            p = KINDS[kind].check(f"proposal for input {at}", [one[1:]])
            found.append((kind, *map(float, p[0])))
        return tuple(found)

    @property
    def _drawn(self) -> list[str]:
        """Families of the inputs that are drawn from the proposal: all but a sampled one."""
        sampled = self.sample is not None and self.observe is None
        return list(self.inputs[:-1] if sampled else self.inputs)

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
            rows.append(self._row(cavities, self._weighted(cavities, datum, power, rng)))
        belief, log_z, sd, reason = map(np.array, zip(*rows, strict=True))
        return self.finished(messages, [belief], log_z, sd, reason)

    def _row(self, cavities: tuple[Message, ...], found: WeightedDraws) -> Row:
        """The answer to one message."""
        if found.broken:
            return refused(2)
        ess, count = found.ess(), len(found.log_w)
        if ess < self.min_ess:
            return refused(1)
        kind, cavity, u = self.inputs[self.output], cavities[self.output], found.u[self.output]
        w = found.weights()
        belief, variance = projected(kind, u, w)
        if not variance > 0.0:
            return refused(3)
        if not KINDS[kind].is_proper(belief)[0]:
            return refused(4)
        seen = w > 0.0
        moved = KINDS[kind].statistics(belief, u[None, seen]) @ KINDS[kind].slopes(
            cavity, belief
        ).transpose(0, 2, 1)
        sd = np.sqrt(((w[seen, None] * moved[0]) ** 2).sum(axis=0))
        # the mean of the weights has this relative error
        of_log_z = np.sqrt(max(1.0 / ess - 1.0 / count, 0.0))
        return Row(belief[0], found.log_mean(), np.append(sd, of_log_z), 0)

    def _weighted(
        self,
        cavities: tuple[Message, ...],
        datum: Array | None,
        power: float,
        rng: np.random.Generator,
    ) -> WeightedDraws:
        """Draws for one message: as many as are needed, or max_draws."""
        kinds = self._drawn
        mine = cavities[: len(kinds)]
        if self.proposal is None:
            widened = (KINDS[kind].widened(p) for kind, p in zip(kinds, mine, strict=True))
            proposal = MessageProposal((tuple(widened),), (1.0,))
        elif self.proposal == "cavity":
            proposal = MessageProposal((mine,), (1.0,))
        else:
            proposal = MessageProposal(
                (tuple(np.array([one[1:]]) for one in self.proposal),), (1.0,)
            )
        found = self._some(proposal, cavities, datum, power, rng, self.draws)
        poor = self.proposal is None and found.ess() < POOR * self.draws
        if poor and not found.broken:
            again = refitted(kinds, found, mine)
            if again is not None:
                proposal = again
                found = self._some(proposal, cavities, datum, power, rng, self.draws)
        while found.ess() < self.min_ess and not found.broken:
            left = cast("int", self.max_draws) - len(found.log_w)
            if left <= 0:
                break
            more = min(left, len(found.log_w))
            found = found.joined(self._some(proposal, cavities, datum, power, rng, more))
        return found

    def _some(
        self,
        proposal: MessageProposal,
        cavities: tuple[Message, ...],
        datum: Array | None,
        power: float,
        rng: np.random.Generator,
        size: int,
    ) -> WeightedDraws:
        """So many draws from the proposal, and logs of their weights (2)."""
        kinds = self._drawn
        u = proposal.draw(kinds, rng, size)
        log_w = -proposal.log_density(kinds, u)
        for each in zip(kinds, cavities[: len(kinds)], u, strict=True):
            log_w += log_message(*each)
        x = [KINDS[kind].x(one) for kind, one in zip(kinds, u, strict=True)]
        if self.sample is None:
            log_w += power * self._log_densities(x, datum)
            return WeightedDraws(u, log_w)
        drawn = self._sampled(x, datum, rng)
        if self.observe is not None and datum is not None:
            log_w += log_match(drawn, datum[-1], self.observe)
            return WeightedDraws(u, log_w)
        last, log_slope = coordinate(self.inputs[-1], drawn)
        inside = np.isfinite(last) & np.isfinite(log_slope)
        # outside of its support a message is 0; NaN is no weight
        log_w[~inside] = np.where(np.isnan(drawn[~inside]), np.nan, -np.inf)
        log_m = log_message(self.inputs[-1], cavities[-1], last[inside])
        log_w[inside] += log_m - log_slope[inside]
        return WeightedDraws([*u, last], log_w)

    def _log_densities(self, x: list[Array], datum: Array | None) -> Array:
        """Logs of the factor at draws."""
        name = "density" if self.log_density is None else "log_density"
        function = getattr(self, name)
        found = Density(with_data(function), name=name).values(
            np.stack(x, axis=1), repeated_datum(datum, len(x[0]))
        )
        if self.log_density is not None:
            return found
        if (found < 0.0).any():
            raise ValueError(f"density returned {found.min():g}; allowed: numbers >= 0")
        return np.asarray(np.log(found))

    def _sampled(self, x: list[Array], datum: Array | None, rng: np.random.Generator) -> Array:
        """Draws of the last variable."""
        assert self.sample is not None
        count = len(x[0])
        if datum is not None and self.observe is not None:
            datum = datum[:-1] if len(datum) > 1 else None
        data = repeated_datum(datum, count)
        found = self.sample(*x, *data.values(), rng=rng)
        return row_values("sample", found, count)


def with_data(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function of draws, and of data as the keyword that a Density gives."""

    def called(*x: Array, data: Array | None = None) -> Any:
        return function(*x) if data is None else function(*x, data)

    return called


def repeated_datum(datum: Array | None, count: int) -> dict[str, Array]:
    """The datum (q,) for each draw, (count, q), to read. Empty if there is none."""
    return {} if datum is None else {"data": np.broadcast_to(datum, (count, len(datum)))}

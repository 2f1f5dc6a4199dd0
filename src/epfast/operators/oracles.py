"""Oracles give true messages: schemes on losses, log densities, functions of the user's own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks, losses, schemes
from epfast._arrays import Array, UserFunction
from epfast.losses import Loss
from epfast.operators.messages import KINDS, check_data, check_messages, check_places
from epfast.operators.quadrature import QuadratureMessages
from epfast.operators.tilted import FactorCavities, FactorRows, Tilted
from epfast.schemes import ImportanceSampling, Scheme

#: the last reason of every oracle
NOT_REPRESENTABLE = "the projection is not representable: no proper message with finite targets"
#: by how much two answers to one message may differ: rounding in blocks of other lengths
SAME = 1e-8


class Answer(NamedTuple):
    """True messages of n factors. NaN in rows that are refused."""

    #: (n, 2 outputs), usual parameters of the projected beliefs (1)
    belief: Array
    #: (n,), log of the integral of t^power times the normalised cavities. NaN where the oracle has
    #: none, see :attr:`Oracle.has_log_z`
    log_z: Array
    #: (n, 2 outputs + 1), standard errors of the site targets of each output, then of log_z. 0
    #: where exact
    sd: Array
    #: (n,), 0: fine. Else the place of a reason in those of the oracle
    reason: NDArray[np.intp]


class Oracle:
    """Base of the oracles. One of your own overrides ``solve``, or ``answer`` as a whole.

    Oracles hold no state: an answer depends on the message, the datum and the power alone, not on
    the others in the call.
    """

    #: families of the incoming messages: "gaussian", "gamma" or "beta"
    inputs: tuple[str, ...]
    #: places in inputs of the variables whose beliefs are given
    outputs: tuple[int, ...]
    #: whether answers are without noise
    exact: bool
    #: why messages are refused. The first is ""
    reasons: tuple[str, ...]
    #: whether log_z is known
    has_log_z: bool = True

    def answer(
        self, messages: ArrayLike, data: ArrayLike | None = None, power: float = 1.0
    ) -> Answer:
        """Projected beliefs of the outputs.

        Parameters
        ----------
        messages : array_like of shape (n, 2 c)
            Usual parameters of the c incoming messages of n factors: mean and variance of a
            Gaussian, shape and rate of a gamma, alpha and beta of a beta message.
        data : array_like of shape (n,) or (n, q), optional
            What is observed by each factor.
        power : float, default=1.0
            Factors enter as t^power.

        Returns
        -------
        Answer

        Raises
        ------
        TypeError, ValueError
            For messages that are not proper, data of another length, and functions of the user's
            that return what they should not.
        """
        rows = check_messages("messages", messages, self.inputs)
        n = len(rows[0])
        given = check_data("data", data, n)
        exponent = _checks.number("power", power, above=0.0)
        if n == 0:
            return self.finished(rows, [np.empty((0, 2))] * len(self.outputs), np.empty(0))
        with np.errstate(all="ignore"):  # what overflows is refused
            return self.solve(rows, given, exponent)

    def solve(self, messages: tuple[Array, ...], data: Array | None, power: float) -> Answer:
        """As :meth:`answer`, with checked arguments.

        Parameters
        ----------
        messages : tuple of ndarray of shape (n, 2)
            Those of each input.
        data : ndarray of shape (n, q), optional
        power : float

        Returns
        -------
        Answer
            By :meth:`finished`.
        """
        raise NotImplementedError

    def finished(
        self,
        messages: tuple[Array, ...],
        beliefs: list[Array],
        log_z: Array,
        sd: Array | None = None,
        reason: NDArray[np.intp] | None = None,
    ) -> Answer:
        """An answer of beliefs (n, 2) for each output. What is not representable is refused."""
        n = len(log_z)
        if sd is None:
            sd = np.zeros((n, 2 * len(self.outputs) + 1))
        reasons = np.zeros(n, dtype=np.intp) if reason is None else reason.astype(np.intp)
        fine = np.isfinite(sd).all(axis=1)
        if self.has_log_z:
            fine &= np.isfinite(log_z)
        with np.errstate(all="ignore"):
            for output, belief in zip(self.outputs, beliefs, strict=True):
                kind = KINDS[self.inputs[output]]
                fine &= kind.is_proper(belief)
                fine &= np.isfinite(kind.targets(messages[output], belief)).all(axis=1)
        reasons[(reasons == 0) & ~fine] = len(self.reasons) - 1
        good = reasons == 0
        return Answer(
            np.where(good[:, None], np.concatenate(beliefs, axis=1), np.nan),
            np.where(good, log_z, np.nan),
            np.where(good[:, None], sd, np.nan),
            reasons,
        )


@dataclass(frozen=True, init=False)
class SiteOracle(Oracle):
    """Messages to the latent value of a loss, by a scheme: beliefs from its triple.

    Parameters
    ----------
    loss : str or Loss
        A loss of one latent value.
    scheme : str or Scheme, default="exact"
        One of :mod:`epfast.schemes`, that serves scalar sites and draws nothing.

    Notes
    -----
    Data are what ``loss.responses`` made of y, (n, width), or y itself where that is (n,). For a
    loss of the margin they are labels. Without data messages are those of the margin, or of h - y
    for a loss of that. The belief
    is N(m + v dlZ, v + v^2 d2lZ): where it is far narrower than the cavity the sum has lost digits.
    """

    loss: Loss
    scheme: Scheme
    inputs = ("gaussian",)
    outputs = (0,)
    exact = True
    reasons = (
        "",
        "the scheme has no tilted moments there",
        "the tilted variance is not positive",
        NOT_REPRESENTABLE,
    )

    def __init__(self, loss: str | Loss, scheme: str | Scheme = "exact") -> None:
        loss, scheme = losses.resolve(loss), schemes.resolve(scheme)
        if loss.latents != 1:
            raise ValueError(f"loss is {loss!r}, of several latents; allowed: of one")
        if isinstance(scheme, ImportanceSampling):
            raise ValueError(
                f"scheme is {scheme!r}, whose draws have no standard errors; allowed: a scheme "
                "that draws nothing, or SampledFactor"
            )
        reason = scheme.refuses(loss, "row")
        if reason is not None:
            raise ValueError(reason)
        _checks.freeze(self, loss=loss, scheme=scheme)

    def solve(self, messages: tuple[Array, ...], data: Array | None, power: float) -> Answer:
        self.loss.check_power(power)
        m, v = np.ascontiguousarray(messages[0].T)
        n = len(m)
        triple = np.empty((3, n))
        y = responses_of(self.loss, data, n)
        self.scheme.tilted(self.loss).many(y, m, v, np.full(n, power), *triple)
        log_z, slope, curvature = triple
        shrinkage = 1.0 + v * curvature
        belief = np.stack([m + v * slope, v * shrinkage], axis=1)
        reason = np.where(np.isfinite(triple).all(axis=0), np.where(shrinkage > 0.0, 0, 2), 1)
        return self.finished(messages, [belief], log_z, reason=reason)


def responses_of(loss: Loss, data: Array | None, n: int) -> Array:
    """Responses for the core, (n, width), from them or from y. Without data those of margins."""
    if data is None:
        if loss.by_margin and not loss.has_offset:
            return np.ones((n, 1))
        if loss.by_residual and not loss.has_offset:
            return loss.responses("data", np.zeros(n), n)
        raise ValueError(f"data is None; allowed with {loss!r}: y, or what responses() made of it")
    width = loss.response_width + (loss.has_offset and not loss.by_residual)
    if data.shape[1] == 1 and not loss.has_offset:
        return loss.responses("data", data[:, 0], n)
    if data.shape[1] != width:
        raise ValueError(f"data has shape {data.shape}; allowed with {loss!r}: ({n}, {width})")
    if loss.by_margin:
        _checks.labels("data[:, 0]", data[:, 0], n)
    return data


@dataclass(frozen=True)
class DensityOracle(Oracle):
    """Messages of a factor that is given by its log density, by quadrature.

    Parameters
    ----------
    log_density : callable
        ``f(x_1, ..., x_c[, data])``: log of the factor at points (N,) of each variable, (N,)
        float64. data (N, q) where there are data.
    inputs : tuple of str, default=("gaussian",)
        Families of the variables, one or two. A :class:`epfast.SampledFactor` takes more.
    outputs : tuple of int, default=(0,)
        Places in inputs of the variables whose beliefs are given.

    Notes
    -----
    Projections are the true ones (1): E log x and E x of a gamma, E log x and E log (1 - x) of a
    beta variable. By quadrature of one variable a message takes some 30 to 80 us in a batch and is
    right to 1e-12.
    """

    log_density: UserFunction
    inputs: tuple[str, ...] = ("gaussian",)
    outputs: tuple[int, ...] = (0,)
    exact = True
    reasons = (
        *(reason.replace("log_t", "log_density") for reason in QuadratureMessages.reasons),
        NOT_REPRESENTABLE,
    )

    def __post_init__(self) -> None:
        _checks.function("log_density", self.log_density)
        families, places = check_places(self.inputs, self.outputs)
        if len(families) > 2:
            raise ValueError(f"inputs is {families}; allowed: one or two, or a SampledFactor")
        _checks.freeze(self, inputs=families, outputs=places)

    def solve(self, messages: tuple[Array, ...], data: Array | None, power: float) -> Answer:
        n = len(messages[0])
        kinds = [KINDS[family] for family in self.inputs]
        etas = tuple(kind.natural(p) for kind, p in zip(kinds, messages, strict=True))
        centres = [kind.family.location(eta)[0] for kind, eta in zip(kinds, etas, strict=True)]
        cavities = FactorCavities(
            etas,
            np.zeros((n, len(etas)), dtype=np.bool_),
            np.stack(centres, axis=1),
            FactorRows({} if data is None else {"data": data}, np.arange(n)),
            power,
        )
        tilted = Tilted(self.inputs, with_data(self.log_density), name="log_density")
        projections = QuadratureMessages().fit(tilted, cavities)
        beliefs = [kinds[j].usual(projections.targets[j]) for j in self.outputs]
        return self.finished(messages, beliefs, projections.log_z, reason=projections.reason)


def with_data(function: UserFunction) -> UserFunction:
    """The function of draws, and of data as the keyword that Tilted gives."""

    def called(*x: Array, data: Array | None = None) -> ArrayLike:
        return function(*x) if data is None else function(*x, data)

    return called


@dataclass(frozen=True)
class CallableOracle(Oracle):
    """A function of the user's that gives site targets or beliefs.

    Parameters
    ----------
    function : callable
        ``f(messages[, data]) -> (values, errors)``, or ``(values, errors, log_z)`` with has_log_z.
        messages (n, 2 c) and data (n, q) are as in :meth:`Oracle.answer`. values (n, 2 outputs) are
        site targets, or usual parameters of beliefs. A row of NaN refuses its message. errors
        (n, 2 outputs) are standard errors of the site targets, with has_log_z (n, 2 outputs + 1),
        those of log_z last. None means that there is no noise, or none is known. log_z is (n,).
    inputs, outputs
        As in :class:`DensityOracle`.
    exact : bool, default=False
        Whether answers are without noise. Then the first row of a call is asked once more by
        itself, and another answer is an error.
    gives : {"targets", "beliefs"}, default="targets"
    has_log_z : bool, default=False

    Notes
    -----
    Powers other than 1 are refused: the function gives answers of the factor itself. What the
    function raises is raised, with a note.
    """

    function: UserFunction
    inputs: tuple[str, ...] = ("gaussian",)
    outputs: tuple[int, ...] = (0,)
    exact: bool = False
    gives: str = "targets"
    has_log_z: bool = False
    reasons = ("", "the function returned NaN", NOT_REPRESENTABLE)

    def __post_init__(self) -> None:
        _checks.function("function", self.function)
        families, places = check_places(self.inputs, self.outputs)
        _checks.choice("gives", self.gives, ("targets", "beliefs"))
        for name in ("exact", "has_log_z"):
            _checks.flag(name, getattr(self, name))
        _checks.freeze(self, inputs=families, outputs=places)

    def solve(self, messages: tuple[Array, ...], data: Array | None, power: float) -> Answer:
        if power != 1.0:
            raise ValueError(
                f"power is {power:g}; allowed with a CallableOracle: 1, since the function gives "
                "answers of the factor itself"
            )
        rows = np.concatenate(messages, axis=1)
        values, sd, log_z = self._called(rows, data)
        if self.exact:
            alone = self._called(rows[:1], None if data is None else data[:1])
            for first, again in zip((values, log_z), (alone[0], alone[2]), strict=True):
                if not np.allclose(first[:1], again, rtol=SAME, atol=SAME, equal_nan=True):
                    raise ValueError(
                        f"function returned {first[0]} and then {again[0]} for the same message; "
                        "allowed with exact=True: the same (say exact=False)"
                    )
        refused = np.isnan(values).any(axis=1)
        beliefs = []
        for at, output in enumerate(self.outputs):
            kind, pair = KINDS[self.inputs[output]], values[:, 2 * at : 2 * at + 2]
            if self.gives == "beliefs":
                kind.check("beliefs that function returned", pair[~refused])
                beliefs.append(pair)
            else:
                beliefs.append(kind.belief(messages[output], pair))
        return self.finished(messages, beliefs, log_z, sd, np.where(refused, 1, 0))

    def _called(self, rows: Array, data: Array | None) -> tuple[Array, Array, Array]:
        """Values, standard errors of targets and log_z, and log_z, checked."""
        n, width = len(rows), 2 * len(self.outputs)
        # the arrays of the call are its own: what it writes into them is lost
        arguments = (rows.copy(),) if data is None else (rows.copy(), data.copy())
        try:
            answer = self.function(*arguments)
        except Exception as error:
            error.add_note(f"raised by the function of a CallableOracle, on {n} messages")
            raise
        parts = ("values", "errors", "log_z") if self.has_log_z else ("values", "errors")
        if not isinstance(answer, tuple | list) or len(answer) != len(parts):
            raise ValueError(
                f"function returned {_checks.describe(answer)}; allowed: a tuple "
                f"({', '.join(parts)})"
            )
        name = "{} that function returned".format
        values = _checks.array(name("values"), answer[0], shape=(n, width), finite=False)
        fine = ~np.asarray(np.isnan(values).all(axis=1))
        _checks.array(name("values"), values[fine], shape=(None, width))
        log_z, sd = np.full(n, np.nan), np.zeros((n, width + 1))
        if self.has_log_z:
            log_z = _checks.array(name("log_z"), answer[2], shape=(n,), finite=False)
            _checks.array(name("log_z"), log_z[fine], shape=(None,))
        if answer[1] is not None:
            columns = width + self.has_log_z
            errors = _checks.array(name("errors"), answer[1], shape=(n, columns), finite=False)
            sd[fine, :columns] = _checks.array(name("errors"), errors[fine], shape=(None, columns))
            if (sd < 0.0).any():
                raise ValueError(f"{name('errors')} hold a negative number; allowed: numbers >= 0")
            if self.exact and sd.any():
                raise ValueError(
                    f"{name('errors')} are not 0; allowed with exact=True: None (say exact=False)"
                )
        return values, sd, log_z

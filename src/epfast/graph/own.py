"""Factors that users define: any log density, or any object that projects messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks
from epfast._arrays import Array, UserFunction
from epfast._core.graph import GraphBatch, PythonBatch
from epfast.families import FAMILIES, SCALARS
from epfast.graph.arguments import rows_of
from epfast.graph.factors import (
    Batch,
    Edges,
    Kind,
    only_power_1,
    plain_batch,
)
from epfast.graph.learned import LearnedMessages, check_operators
from epfast.graph.variables import Index, Variables
from epfast.operators.importance import ImportanceMessages
from epfast.operators.just_in_time import Operator
from epfast.operators.laplace import LaplaceMessages
from epfast.operators.quadrature import QuadratureMessages
from epfast.operators.tilted import (
    FactorCavities,
    FactorRows,
    MessageScheme,
    Projections,
    Tilted,
    called,
)
from epfast.schedules import FilledSchedule

#: schemes by their names
NAMED = {
    "laplace": LaplaceMessages,
    "quadrature": QuadratureMessages,
    "importance": ImportanceMessages,
}


@runtime_checkable
class Projects(Protocol):
    """An object of the user that projects messages."""

    def project(
        self, messages: tuple[Array, ...], data: dict[str, Array], /
    ) -> tuple[ArrayLike, Sequence[ArrayLike]]: ...


@runtime_checkable
class ProjectsPowers(Protocol):
    """One that may project those of powers of its factor."""

    takes_power: bool

    def project(
        self, messages: tuple[Array, ...], data: dict[str, Array], /, *, power: float
    ) -> tuple[ArrayLike, Sequence[ArrayLike]]: ...


class Projecting:
    """An object of the user with ``project(messages, data)``, as a scheme."""

    families: frozenset[str] = frozenset(FAMILIES)
    reasons: tuple[str, ...] = ("", "project() gave NaN")

    def __init__(self, given: Projects | ProjectsPowers) -> None:
        self.takes_flat = bool(getattr(given, "takes_flat", False))
        #: the object if its calls have powers, or if they have none
        self.of_powers: ProjectsPowers | None = None
        self.plain: Projects | None = None
        if isinstance(given, ProjectsPowers) and given.takes_power:
            self.of_powers = given
        elif isinstance(given, Projects):
            self.plain = given

    @property
    def takes_power(self) -> bool:
        return self.of_powers is not None

    def refuses(self, families: tuple[str, ...]) -> str | None:
        return None

    def fit(self, cavities: FactorCavities) -> Projections:
        messages = tuple(eta.copy() for eta in cavities.messages)
        data = cavities.rows.data
        if self.of_powers is not None:
            answer = self.of_powers.project(messages, data, power=cavities.power)
        else:
            assert self.plain is not None
            answer = self.plain.project(messages, data)
        if not (isinstance(answer, tuple | list) and len(answer) == 2):
            raise TypeError(
                f"project() returned {_checks.describe(answer)}; allowed: a pair of log_z (n,) and "
                "targets, natural parameters (n, k) for each neighbour"
            )
        n = cavities.n
        log_z = _checked("log_z", answer[0], (n,))
        if not isinstance(answer[1], tuple | list) or len(answer[1]) != len(messages):
            raise TypeError(
                f"project() returned {_checks.describe(answer[1])} as targets; allowed: "
                f"{len(messages)} arrays, one for each neighbour"
            )
        targets = tuple(
            _checked(f"targets[{j}]", value, eta.shape)
            for j, (value, eta) in enumerate(zip(answer[1], messages, strict=True))
        )
        fine = np.isfinite(log_z)
        for target in targets:
            fine &= np.isfinite(target).all(axis=1)
        return Projections(log_z, targets, np.where(fine, 0, 1))


def _checked(name: str, value: ArrayLike, shape: tuple[int, ...]) -> Array:
    given = np.asarray(value)
    if given.dtype.kind not in "fiu":
        raise TypeError(f"project() returned {name} of dtype {given.dtype}; allowed: float64")
    if given.shape != shape:
        raise ValueError(f"project() returned {name} of shape {given.shape}; allowed: {shape}")
    return np.array(given, dtype=np.float64)


#: what is taken for the scheme of a factor
SchemeGiven: TypeAlias = (
    str
    | MessageScheme
    | Operator
    | tuple[Operator | None, ...]
    | list[Operator | None]
    | Projects
    | ProjectsPowers
)


@dataclass(frozen=True)
class Factor(Kind):
    """A factor of your own: any log density of its neighbours.

    Parameters
    ----------
    log_t : callable, optional
        ``log_t(x_1, ..., x_k, **data)`` returns log t, (n,). x_j is an array (n,) of values of
        neighbour j, one per factor, and data are the keywords of ``add``, (n, ...). -inf is a
        density of 0, and NaN makes the update fail. One call has many factors, in any order, and
        often several points of each. What differs between factors therefore goes into data
        keywords, not into a closure. None if ``scheme`` is an operator or an object of your own.
    scheme : {"laplace", "quadrature", "importance"}, Operator, tuple or object, default="laplace"
        How messages are computed:

        - ``"laplace"``: mode and curvature, fast, for any number of Gaussian neighbours
          (:class:`LaplaceMessages`)
        - ``"quadrature"``: moments to about 1e-10, for one or two Gaussian, gamma or beta
          neighbours (:class:`QuadratureMessages`)
        - ``"importance"``: moments by sampling, for any number of neighbours
          (:class:`ImportanceMessages`)
        - an object of one of these classes, with parameters of its own
        - an :class:`epfast.Operator`, which learns messages. Its ``output`` are all of its inputs.
          Or a tuple with an operator for each neighbour, or None for a neighbour without message
        - any object with ``project(messages, data)``, see Notes
    gradient, hessian : callable, optional
        Derivatives of log_t for the Laplace scheme, with the arguments of log_t. They return a
        sequence of k arrays (n,), and k sequences of these. An entry may be a number for all rows.
        None: differences of sixth order, with errors of about 1e-10 where log_t is smooth.

    Notes
    -----
    Added as ``g.add(Factor(log_t), x, z, name=values)`` with arrays of variables that broadcast, a
    factor for each row, and data with the rows first. Data in a closure must be the same for all
    rows.

    ``project(messages, data)`` gets the natural parameters of the cavities, in a tuple with an
    array (n, k) for each neighbour. They are precision and precision times mean of a Gaussian
    variable, shape - 1 and rate of a gamma variable, alpha - 1 and beta - 1 of a beta variable,
    and logits of a categorical variable. All cavities are proper. data is a dict of arrays with
    the rows first. The method returns ``(log_z, targets)``. log_z, (n,), is the log of the integral
    of t times the normalised cavities. targets is a tuple with the natural parameters, (n, k), of
    the projection of each tilted marginal. NaN refuses an update. The library divides by the
    cavity, damps, adds the evidence and refuses improper sites. Two attributes ask for more:

    - ``takes_power = True``: the call is ``project(messages, data, power=a)``, and log_z and
      targets are those of t^a. Without it powers other than 1 are refused.
    - ``takes_flat = True``: Gaussian cavities may have precision 0, and then have density 1.

    A fit copies its operators when it begins, and the copies learn during the sweeps. An operator
    of several batches has one copy. ``post.operator(batch)`` returns the copy, and
    ``fit(start=post)`` continues with it. The first ``data_width`` columns of the data
    are inputs of an operator, in the order of the keywords: an array (n,) is a column, and (n, q)
    is q columns. If its oracle refuses, the update is refused. The power of an operator is that of
    the schedule. Errors of similar messages add up. For n factors of one variable choose a
    tolerance of 10 / n.

    Exceptions of the functions end the fit, and leave posteriors as they were. With
    ``EP(order="parallel", damping=...)`` all factors of a batch are fitted in one call.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> def log_t(x, z, y):
    ...     return -0.5 * (y - np.tanh(x) - z) ** 2
    >>> g = epfast.Graph()
    >>> x, z = g.gaussian(2), g.gaussian(variance=0.5)
    >>> batch = g.add(epfast.graph.Factor(log_t, scheme="quadrature"), x, z, y=[0.3, -1.0])
    >>> post = g.fit()
    >>> post[x].mean.round(3)
    array([ 0.216, -0.407])

    References
    ----------
    Smola, Vishwanathan & Eskin (2003), Laplace propagation. Jitkrittum et al. (2015), Kernel-based
    just-in-time learning for passing expectation propagation messages.
    """

    instead: ClassVar[str] = (
        "post[...] of its neighbours: draw from their beliefs and call your log_t"
    )
    log_t: UserFunction | None = None
    scheme: SchemeGiven = "laplace"
    gradient: UserFunction | None = field(default=None, kw_only=True)
    hessian: UserFunction | None = field(default=None, kw_only=True)

    #: the scheme with the methods ``refuses`` and ``fit`` of those of the library
    messages: MessageScheme | LearnedMessages | Projecting = field(
        init=False, repr=False, compare=False
    )

    def __post_init__(self) -> None:
        scheme = self.scheme
        if isinstance(scheme, str):
            scheme = NAMED[_checks.choice("scheme", scheme, tuple(NAMED))]()
        messages, own = scheme, ""
        if isinstance(scheme, Operator | tuple | list):
            check_operators(scheme)
            scheme = scheme if isinstance(scheme, Operator) else tuple(scheme)
            messages, own = LearnedMessages(scheme), "an operator"
        elif not isinstance(scheme, MessageScheme):
            if isinstance(scheme, type) or not callable(getattr(scheme, "project", None)):
                raise TypeError(
                    f"scheme is {_checks.describe(scheme)}; allowed: "
                    f"{', '.join(map(repr, NAMED))}, an object of their classes, an "
                    "epfast.Operator or a tuple of them, or an object with project(messages, data)"
                )
            messages, own = Projecting(scheme), "a scheme with project()"
        if not own:
            _checks.function("log_t", self.log_t)
        elif self.log_t is not None:
            raise TypeError(f"log_t is given with {own}; allowed: None")
        _checks.freeze(self, scheme=scheme, messages=messages)
        for name in ("gradient", "hessian"):
            given = getattr(self, name)
            if given is None:
                continue
            _checks.function(name, given, other=" or None")
            if not isinstance(scheme, LaplaceMessages):
                raise ValueError(f"{name} is given; allowed for scheme='laplace'")

    @property
    def learned(self) -> LearnedMessages | None:
        return self.messages if isinstance(self.messages, LearnedMessages) else None

    def tilted(self, families: tuple[str, ...]) -> Tilted:
        """The tilted density of neighbours of these families, of a factor that has a log_t."""
        assert self.log_t is not None
        return Tilted(families, self.log_t, self.gradient, self.hessian)

    def projections(self, families: tuple[str, ...]) -> Callable[[FactorCavities], Projections]:
        """What finds the projections of factors with neighbours of these families."""
        if isinstance(self.messages, MessageScheme):
            return partial(self.messages.fit, self.tilted(families))
        return self.messages.fit

    def attach(self, /, *neighbours: Variables, **data: ArrayLike) -> Batch:
        scheme = self.messages
        if not neighbours:
            raise ValueError("the factor has no neighbours; allowed: variables of the graph")
        supported = tuple(name for name in FAMILIES if name in scheme.families)
        pairs: dict[str, tuple[Variables, *tuple[str, ...]]] = {
            f"neighbours[{j}]": (value, *supported) for j, value in enumerate(neighbours)
        }
        axes = max(1, rows_of(pairs).ndim - 1)
        reason = scheme.refuses(tuple(value.family for value in neighbours))
        if reason is not None:
            raise ValueError(reason)
        given = {name: np.asarray(value) for name, value in data.items()}
        for name, value in given.items():
            if value.dtype.kind not in "fiubUS":
                raise TypeError(f"{name} has dtype {value.dtype}; allowed: numbers, or strings")
            if value.dtype.kind == "f" and np.isnan(value).any():
                raise ValueError(f"{name} holds NaN; allowed: numbers")
        beside = {name: value.shape[:axes] for name, value in given.items()}
        numbers = rows_of(pairs, **beside)
        shape, rows = numbers.shape[:-1] or (1,), {}
        for name, value in given.items():
            rest = value.shape[axes:]
            rows[name] = np.array(np.broadcast_to(value, shape + rest)).reshape(-1, *rest)
        if self.learned is not None:
            self.learned.check_data(rows)
        return plain_batch(self, numbers, rows)._replace(apart=True)

    def check_schedule(self, batch: Batch, schedule: FilledSchedule) -> None:
        messages, power = self.messages, schedule.power
        if isinstance(messages, Projecting):
            what = "a scheme with project() without takes_power"
            only_power_1(schedule, not messages.takes_power, what)
        elif isinstance(messages, LearnedMessages) and messages.power != power:
            raise ValueError(
                f"power is {power:g}, and an operator of batch {batch.key} has power "
                f"{messages.power:g}; allowed: an operator of the same power"
            )

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        k = batch.table.shape[1]
        families = tuple(list(FAMILIES)[kind] for kind in edges.kind[:k])
        fits = BatchFits(self, batch, families, edges.size[:k])
        return PythonBatch(fits, *edges, self.messages.takes_flat, tied)

    def log_density(self, batch: Batch, theta: Array) -> Array:
        if self.log_t is None:
            raise ValueError(
                f"batch {batch.key} has a scheme with project(), and no log_t; allowed for a "
                "check: factors with a density"
            )
        k = len(theta)
        x = theta[:, batch.table].reshape(k * batch.n, -1)
        rows = FactorRows(batch.data, batch.rows).select(np.tile(np.arange(batch.n), k))
        return np.asarray(called("log_t", self.log_t, x, rows).reshape(k, -1).sum(axis=1))


class BatchFits:
    """The Python callback of the core: fits the factors of a batch, a run at a time."""

    def __init__(
        self, kind: Factor, batch: Batch, families: tuple[str, ...], widths: Index
    ) -> None:
        self.fit, self.why = kind.projections(families), kind.messages.reasons
        self.families, self.ends = families, np.cumsum(widths)[:-1]
        self.rows = FactorRows(batch.data, batch.rows)
        for value in batch.data.values():
            value.setflags(write=False)
        #: how often fits failed, by reason
        self.reasons: Counter[str] = Counter()

    def __call__(
        self, rows: Index, cavity: Array, flat: NDArray[np.bool_], belief: Array, power: float
    ) -> tuple[Array, Array, NDArray[np.uint8]]:
        """log Z, targets, and which fits failed, as the core asks for them."""
        messages, beliefs = self._split(cavity), self._split(belief)
        start = np.zeros(flat.shape)
        with np.errstate(all="ignore"):
            for j, (family, eta, q) in enumerate(
                zip(self.families, messages, beliefs, strict=True)
            ):
                if family == "gaussian":
                    proper = FAMILIES[family].is_proper(q)
                    mean, incoming = q[:, 1] / q[:, 0], eta[:, 1] / eta[:, 0]
                    incoming[flat[:, j]] = 0.0
                    start[:, j] = np.where(proper, mean, incoming)
                elif family in SCALARS:
                    start[:, j] = SCALARS[family].location(eta)[0]
        # rows that follow each other, often all of a batch, without a copy of their data
        first, stop = int(rows[0]), int(rows[-1]) + 1
        which = slice(first, stop) if stop - first == len(rows) else rows
        data = self.rows.select(which)
        answer = self.fit(FactorCavities(messages, flat, start, data, power))
        for number in answer.reason[answer.reason > 0].tolist():
            self.reasons[self.why[number]] += 1
        failed = (answer.reason > 0).astype(np.uint8)
        return answer.log_z, np.concatenate(answer.targets, axis=1), failed

    def _split(self, values: Array) -> tuple[Array, ...]:
        """Natural parameters of each neighbour, views."""
        return tuple(np.split(values, self.ends, axis=1))

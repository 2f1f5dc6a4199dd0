"""The table of cells: which choices of a fit go together, and the engine of each.

It maps (form of q, factor, sites stored) to an engine and its extra arguments, beyond those of all
engines. :func:`choose` makes a :class:`Request` of the user into :class:`Choices`, with numbers in
place of None. It refuses a combination that is not in the table, and an argument that the engine
does not take, with the reason and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple, TypeAlias, TypeVar

import numpy as np

from epfast import _checks, losses, schemes
from epfast._arrays import Array, Indices, Matrix
from epfast.gaussian import notes
from epfast.gaussian.double_loop import DescentEngine
from epfast.gaussian.engine import AnyEngine, EPEngine, flat
from epfast.gaussian.forms import stack
from epfast.gaussian.forms.diagonal import DiagonalEngine, DiagonalPass
from epfast.gaussian.forms.kernel import Dual, GPState, ProcessEngine
from epfast.gaussian.forms.nearest import NearestEngine
from epfast.gaussian.forms.nested import NestedEngine
from epfast.gaussian.forms.sparse import SparseEngine
from epfast.gaussian.forms.stack import LatentEngine
from epfast.gaussian.forms.weights import EndState, WeightEngine
from epfast.gaussian.orders import RowEngine
from epfast.gaussian.passes import PassEngine
from epfast.gaussian.prior import CenteredPrior, KernelPrior, PerWeightPrior, WeightPrior
from epfast.gaussian.problem import Problem, RowsOrProcess
from epfast.gaussian.rows import Data, Stream
from epfast.gaussian.shards import LaplaceEngine, ShardEngine, SharedEngine
from epfast.gaussian.state import NO_STATE, State
from epfast.losses import Loss
from epfast.schedules import DEP, EP, FilledSchedule, Schedule
from epfast.schedules.base import AS_COMPLETED
from epfast.schemes import Scheme

Q = TypeVar("Q", bound=WeightPrior | KernelPrior)

#: arguments that only some combinations take, by their names. None: not given
Options = Mapping[str, object]
NO_OPTIONS: Options = MappingProxyType({})


@dataclass(frozen=True)
class Request:
    """What a user asks of a fit, as it was given beside the loss; see ``epfast.fit_linear``."""

    loss: losses.Loss
    scheme: str | Scheme | None = None
    #: form of q, a key of the table
    posterior: str = "full"
    batch_size: int | None = None
    schedule: Schedule | FilledSchedule | None = None
    beta: float | None = None
    options: Options = field(default_factory=dict)


#: of one whose kernel is yet to come
NO_KERNEL = KernelPrior()


class Choices(NamedTuple):
    """A legal combination."""

    loss: losses.Loss
    scheme: Scheme
    schedule: FilledSchedule
    posterior: str
    batch_size: int | None

    def problem(self, data: Data, prior: Q, names: tuple[str, ...] | None = None) -> Problem[Q]:
        """The problem of these rows with this prior, in the n x n form if that is for it."""
        schedule = self.schedule
        if schedule.stores == "none":
            schedule = schedule.filled(order=notes.order_of_one_pass(data))
        # streams do not know how many rows they have, nor do rows that are elsewhere
        n = None if data.y is None else len(data.y)
        shared = schedule.stores == "shared" and data.X is not None
        if shared:
            data = data._replace(groups=schedule.labels(data.X.shape[0]))
        posterior = "wide" if isinstance(prior, CenteredPrior) else self.posterior
        problem = Problem(
            data,
            self.loss,
            self.scheme.bound(self.loss, self.posterior, schedule, n),
            schedule,
            self.batch_size,
            posterior,
            prior,
            NO_STATE if isinstance(prior, KernelPrior) else prior.state,
            names,
        )
        problem.check_weights()
        return problem


# ---- the cells ----


#: the schedules, by the sites that they store
SCHEDULES = {
    "factor": "EP",
    "none": "ADF",
    "shared": "SEP, AEP, DSEP, DAEP",
    "shard": "DEP",
    "descent": "DoubleLoop",
}
#: numbers of a schedule that only some engines use
SCHEDULE_NUMBERS = ("damping", "power", "site_rule", "block", "warm_up")


#: makes the engine of a problem. What it takes beside that differs
MakesEngine: TypeAlias = Callable[..., AnyEngine | DescentEngine]  # type: ignore[explicit-any]


class Combination(NamedTuple):
    """A row of a table."""

    #: ``engine(problem)``
    engine: MakesEngine
    #: extra arguments, beyond those of all engines
    takes: frozenset[str]
    #: True if the site of a factor is stored as numbers per row, which only an expansion gives
    by_expansion: bool = False
    #: whether it needs moments that are those of the integral that they claim
    by_integrals: bool = False
    #: whether sites of negative precision have no place in it
    log_concave: bool = False
    #: whether all rows are fitted from one posterior, whatever the order
    at_once: bool = False


Key = tuple[str, str, str]
#: kinds of posterior, by their covariance
COVARIANCES = "full", "factorized"
#: forms of q that rows may have, and processes
FORMS = "full", "sparse", "factorized"
PROCESSES = "process", "nearest"
Table = Mapping[Key, Combination]


#: factors of rows in the arguments of the user
FACTORS = {
    "row": "batch_size=None",
    "latents": "several latents per row",
    "minibatch": "a batch_size",
}


def form_in_words(posterior: str, factor: str) -> str:
    """A form of q and its factors in the arguments of the user."""
    if posterior == "nearest":
        return "a process by nearest rows"
    if posterior == "process":
        return "a process of several latents" if factor == "latents" else "a process"
    return f"posterior={posterior!r}, {FACTORS[factor]}"


def words(key: Key) -> str:
    """A key of a table in the arguments of the user."""
    return f"{form_in_words(*key[:2])}, {SCHEDULES[key[2]]}"


def _row(engine: MakesEngine, takes: str, **only: bool) -> Combination:
    return Combination(engine, frozenset(takes.split(", ")), **only)


def of_latents(
    problem: Problem,
) -> LatentEngine[stack.StackState, State, stack.StackState] | NestedEngine:
    """The engine of several latents per row: a product over them, or one Gaussian."""
    return NestedEngine(problem) if problem.loss.correlated else stack.of_rows(problem)


def of_rows(problem: Problem) -> RowEngine | ProcessEngine | WeightEngine:
    """The engine of a site per row, in matrices of order d or n; and of one per weight."""
    if isinstance(problem.prior, PerWeightPrior):
        return WeightEngine(problem)
    if problem.posterior == "wide":
        return ProcessEngine(problem, Dual(problem))
    return RowEngine(problem)


ORDERS = "order='shuffled', order='parallel'"
LAPLACE = f"weights, sparse X, damping, power, executor, client, {ORDERS}"
SHARDS = f"{LAPLACE}, order='as_completed'"
PASS = "weights, sparse X, chunks of X, power, order='shuffled'"
COLUMNS = "weights, sparse X, power, site_rule, record='factor', order='shuffled'"
ENGINES: Table = {
    ("full", "row", "factor"): _row(
        of_rows,
        "weights, prior, sparse X, damping, power, block, scheme='relaxed', order='chunked', "
        + ORDERS,
    ),
    ("full", "row", "none"): _row(PassEngine, PASS),
    ("full", "row", "shared"): _row(SharedEngine, LAPLACE),
    ("full", "row", "shard"): _row(ShardEngine, SHARDS),
    ("full", "minibatch", "factor"): _row(LaplaceEngine, LAPLACE, by_expansion=True),
    ("full", "minibatch", "none"): _row(PassEngine, PASS, by_expansion=True),
    ("full", "latents", "factor"): _row(
        of_latents, f"sparse X, damping, block, order='chunked', {ORDERS}"
    ),
    **{
        ("factorized", factor, stored): _row(engine, takes)
        for factor in ("minibatch", "row")
        for stored, engine, takes in (
            ("factor", DiagonalEngine, f"{COLUMNS}, damping, order='parallel'"),
            ("none", DiagonalPass, f"{COLUMNS}, chunks of X, warm_up"),
            ("shard", ShardEngine, f"{SHARDS}, site_rule"),
        )
    },
    ("sparse", "row", "factor"): _row(
        SparseEngine,
        "weights, sparse X, constraints, damping, power, order='parallel'",
        at_once=True,
    ),
    ("process", "row", "factor"): _row(
        ProcessEngine, f"weights, damping, power, block, scheme='relaxed', {ORDERS}"
    ),
    ("process", "latents", "factor"): _row(stack.of_values, f"damping, {ORDERS}"),
    ("process", "row", "descent"): _row(DescentEngine, "power", by_integrals=True),
    ("nearest", "row", "factor"): _row(
        NearestEngine, f"weights, damping, power, {ORDERS}", by_integrals=True, log_concave=True
    ),
}
#: what users choose among
OF_PROCESSES, OF_ROWS = (
    {k: row for k, row in ENGINES.items() if k[0] in kinds} for kinds in (PROCESSES, FORMS)
)


def engine_of(problem: RowsOrProcess, **settings: bool) -> AnyEngine:
    """The engine of a legal problem."""
    factor = "row" if problem.batch_size is None else "minibatch"
    factor = "latents" if problem.loss.latents != 1 else factor
    form = "full" if problem.is_full else problem.posterior
    engine = ENGINES[form, factor, problem.schedule.stores].engine(problem, **settings)
    assert isinstance(engine, EPEngine)
    return engine


def at_start(problem: RowsOrProcess) -> EndState:
    """The state before the first sweep without a start: the prior and flat sites."""
    if isinstance(problem.prior, CenteredPrior):
        return GPState(flat(problem.shape[0]), 0, None)
    engine = engine_of(problem)
    state: EndState = engine.finish(engine.init(None), True)
    return state


# ---- who is refused ----


class Asked(NamedTuple):
    """An argument that only some combinations take."""

    #: what the user calls it
    argument: str
    value: object
    #: in the table
    name: str
    #: the other argument that it does not go with. "": the combination takes it, or does not
    beside: str = ""


def legal(
    posterior: str,
    factor: str,
    schedule: Schedule | FilledSchedule,
    scheme: Scheme,
    loss: Loss,
    options: Options = NO_OPTIONS,
) -> Combination:
    """The cell of a combination, or an error that says why there is none.

    Parameters
    ----------
    posterior, factor : str
        See the table.
    schedule : Schedule
    scheme : Scheme
    loss : Loss
    options : dict
        Arguments that only some combinations take. None: not given.

    Returns
    -------
    Combination

    Raises
    ------
    ValueError
        If the combination makes no sense.
    """
    key = (posterior, factor, schedule.stores)
    table = OF_PROCESSES if posterior in PROCESSES else OF_ROWS
    if key not in table:
        raise ValueError(_no_cell(key, table, schedule))
    row = table[key]
    _check_cell(key, row, schedule, scheme, loss)
    arguments = asked(schedule, scheme, options)
    for one in arguments:
        if one.beside or one.name not in row.takes:
            raise ValueError(_not_taken(one, key, table))
    for one in arguments:
        if one.name == "power" and schedule.power is not None:
            loss.check_power(schedule.power)
    return row


def _no_cell(key: Key, table: Table, schedule: Schedule | FilledSchedule) -> str:
    """Why there is no such cell, and what is allowed."""
    posterior, factor, stores = key
    stored = [s for p, f, s in table if (p, f) == (posterior, factor)]
    if not stored:
        forms = sorted({repr(p) for p, f, _ in table if f == factor}, reverse=True)
        beside = SCHEDULES[stores] if posterior in PROCESSES else FACTORS[factor]
        return f"posterior is {posterior!r}; allowed with {beside}: {', '.join(forms)}"
    others = "; or " + " | ".join(words(k) for k in table if k[2] == stores)
    return (
        f"schedule is {_checks.describe(schedule)}; allowed with "
        f"{form_in_words(posterior, factor)}: "
        + ", ".join(SCHEDULES[one] for one in stored)
        + (others if len(others) > len("; or ") else "")
    )


def _check_cell(
    key: Key, row: Combination, schedule: Schedule | FilledSchedule, scheme: Scheme, loss: Loss
) -> None:
    """Refuse a loss, a scheme or an order that a cell is not for."""
    factor = key[1]
    if (factor == "latents") != (loss.latents != 1):
        raise ValueError(
            f"loss is {loss!r}; allowed with {words(key)}: one with "
            + ("several latents" if factor == "latents" else "one latent")
            + " per row"
        )
    reason = scheme.refuses(loss, factor)
    if reason is not None:
        raise ValueError(reason)
    if row.by_expansion and not scheme.expands:
        raise ValueError(
            f"scheme is {_checks.describe(scheme)}; allowed with {words(key)}: 'laplace' or "
            "'quick_laplace', whose sites the rows of a factor share out (batch_size=None is for "
            "scalar sites)"
        )
    if row.by_integrals and not (scheme.integrates or scheme.relaxes):
        raise ValueError(
            f"scheme is {_checks.describe(scheme)}; allowed with {words(key)}: 'exact', whose "
            "mean and variance are derivatives of the evidence"
        )
    if row.log_concave and loss.log_concave is not True:
        raise ValueError(
            f"loss is {loss!r}; allowed with {words(key)}: a log-concave likelihood, whose sites "
            "have no negative precision"
        )
    if row.at_once and schedule.order not in ("auto", "parallel"):
        raise ValueError(
            f"order is {schedule.order!r}; allowed with {words(key)}: 'auto' or 'parallel'"
        )


def asked(schedule: Schedule | FilledSchedule, scheme: Scheme, options: Options) -> list[Asked]:
    """The arguments that only some combinations take, then those that exclude each other."""
    every = [Asked(name, value, name) for name, value in options.items() if value is not None]
    if scheme.relaxes:
        every.append(Asked("scheme", scheme, "scheme='relaxed'"))
    for name in SCHEDULE_NUMBERS:
        value = getattr(schedule, name, None)
        if value is not None and not (name in ("damping", "power") and value == 1.0):
            every.append(Asked(name, value, name))
    if schedule.order in ("parallel", "shuffled", "chunked", "as_completed"):
        every.append(Asked("order", schedule.order, f"order={schedule.order!r}"))
    excluded: dict[str, tuple[str, ...]] = {}
    if schedule.order == "parallel":
        excluded["order='parallel'"] = ("block",)
    if scheme.relaxes:
        none = "power", "weights", "prior", "order='parallel'", "order='chunked'"
        excluded["scheme='relaxed'"] = none
    found = {one.name: one for one in every}
    for other, names in excluded.items():
        every += [found[name]._replace(beside=other) for name in names if name in found]
    return every


def _not_taken(one: Asked, key: Key, table: Table) -> str:
    """Why an argument is refused, and what is allowed."""
    if one.beside:
        beside = f" beside {one.beside}"
        allowed = "; allowed: another order" if one.argument == "order" else "; allowed: None"
    else:
        users = [words(k) for k, other in table.items() if one.name in other.takes]
        beside, allowed = "", "; it is for " + " | ".join(users) if users else ""
    value = _checks.describe(one.value)
    return f"{one.argument} is {value}{beside}; not allowed with {words(key)}{allowed}"


# ---- from what is asked to what is chosen ----


DEFAULT_SCHEDULE, EXACT = EP(), schemes.Exact()
#: copies of a row that a weight makes, on average at most: a fit takes as many times as long
MOST_COPIES = 100
#: what a schedule may be: of rows, and of a process
ALLOWED = (
    "epfast.EP, ADF, SEP, AEP, DSEP, DAEP or DEP",
    "epfast.EP or epfast.DoubleLoop",
)


def choose(request: Request) -> Choices:
    """The choices that are asked for. It raises if they conflict."""
    posterior, batch_size, options = request.posterior, request.batch_size, request.options
    schedule = DEFAULT_SCHEDULE if request.schedule is None else request.schedule
    process = posterior in PROCESSES
    _checks.schedule(schedule, Schedule, ALLOWED[process])
    if batch_size is not None:
        batch_size = _checks.integer("batch_size", batch_size, least=1)
    factor = "row" if batch_size is None else "minibatch"
    loss = request.loss.tempered(request.beta)
    if loss.latents != 1:
        for name, value, allowed in (
            ("posterior", posterior, "full"),
            ("batch_size", batch_size, None),
        ):
            if value != allowed and not process:
                raise ValueError(
                    f"{name} is {value!r}; allowed with {loss!r}, which has several latents "
                    f"per row: {allowed!r}"
                )
        factor = "latents"
    if request.scheme is None:
        scheme = default_scheme(loss, factor, posterior)
    else:
        scheme = schemes.resolve(request.scheme)
    tasks = options.get("executor") is not None or options.get("client") is not None
    schedule = schedule.resolved("parallel" if tasks else "sequential")
    legal(posterior, factor, schedule, scheme, loss, options)
    # of a shard, or before a descent
    within = getattr(schedule, "inner", getattr(schedule, "start", None))
    if within is not None:
        legal(posterior, factor, within, scheme, loss)
    if schedule.order == AS_COMPLETED and options.get("client") is None:
        raise ValueError(
            f"order is {AS_COMPLETED!r}; allowed: 'auto', 'sequential', 'shuffled' or 'parallel' "
            f"({AS_COMPLETED!r} is for epfast.dask.fit_linear)"
        )
    if tasks:
        _check_tasks(schedule, scheme)
    numbers: dict[str, float | str] = {"power": 1.0, "damping": schedule.usual_damping(factor)}
    if posterior == "factorized":
        # scalar sites are never clipped: a negative precision is right where t is not log-concave
        clips = factor == "minibatch" or not scheme.one_dimension
        numbers["site_rule"] = "nonnegative" if clips else "keep"
    return Choices(loss, scheme, schedule.filled(**numbers), posterior, batch_size)


def default_scheme(loss: losses.Loss, factor: str, posterior: str) -> Scheme:
    """The scheme where none is named: one that holds on columns of unit variance."""
    if factor != "minibatch":
        return EXACT
    reason = schemes.Laplace().refuses(loss, factor)
    if reason is None or "values" not in loss.gives:
        return schemes.Laplace(curvature="exact")  # which says what is wrong
    slopes = list(getattr(loss, "slopes", ()))
    convex, by_slope = slopes == sorted(slopes) != [], schemes.Laplace(curvature="slope")
    if convex and posterior != "full" and by_slope.refuses(loss, factor) is None:
        return by_slope
    raise ValueError(
        f"scheme is None, for {loss!r} with a batch_size: {reason.split('; allowed')[0]}; allowed: "
        "batch_size=None, a site per row, whose moments are exact, or a scheme that is named, as "
        "schemes.Laplace(curvature='slope') or, with posterior='factorized', 'variational'; they "
        "may fail on columns of unit variance"
    )


def _check_tasks(schedule: Schedule | FilledSchedule, scheme: Scheme) -> None:
    """Refuse an executor for what is no set of tasks."""
    if scheme.learns:
        raise ValueError(
            f"executor is given and the scheme is {scheme!r}, which learns as it goes; allowed "
            "with an executor: a scheme that does not"
        )
    if not (isinstance(schedule, DEP) or schedule.order == "parallel"):
        raise ValueError(
            f"schedule is {_checks.describe(schedule)}, which is no set of tasks; allowed with an "
            "executor: DEP(); DSEP() or DAEP() in the order 'auto' or 'parallel'; or with a "
            "batch_size EP(order='parallel')"
        )


def is_for_wide(choices: Choices, X: Matrix | Stream) -> bool:
    """Whether a fit by these choices takes the n x n form.

    Scalar sites of EP with a full covariance, fewer rows than columns; not in chunks, nor relaxed.
    """
    schedule = choices.schedule
    if not (isinstance(schedule, EP) and choices.posterior == "full"):
        return False
    by_rows = choices.batch_size is None and choices.loss.latents == 1
    if not by_rows or choices.scheme.relaxes or not hasattr(X, "shape"):
        return False
    return schedule.order != "chunked" and is_wide(*X.shape)


def is_wide(n: int, d: int) -> bool:
    """Whether n rows of d columns are wide.

    Sweeps of order n take less time up to n = 1.5 d, but from n = d on the d x d form has shorter
    predictions, and keeps no rows.
    """
    return n < d


# ---- several latents per row ----


def copies(loss: losses.Loss, weights: Array, name: str = "weights") -> Indices:
    """The numbers of the rows, each as often as its weight says. Weights must be whole.

    A power of a factor of several latents has no moments of closed form, as that of one latent has.
    """
    parts = weights % 1.0
    if parts.any() or weights.sum() > MOST_COPIES * len(weights):
        raise ValueError(
            f"{name} holds {weights[np.argmax(parts)]:g}, with a mean of {weights.mean():g}; "
            f"allowed with {loss!r}, which has several latents per row: whole numbers, "
            f"{MOST_COPIES} on average at most; a loss of two labels, as 'probit', each class "
            "against the rest, takes any weights"
        )
    return np.repeat(np.arange(len(weights)), weights.astype(np.intp))

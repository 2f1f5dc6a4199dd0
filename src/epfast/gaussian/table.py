"""The table of cells: which choices go together, and the engine of each; and who is refused.

It maps (form of q, factor, sites stored) to an engine and its extra arguments, beyond those of all
engines. :func:`legal` refuses a combination that is not in the table and an argument that the
engine does not take, with the reason and what is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from epfast import _checks
from epfast.gaussian.engines.base import flat
from epfast.gaussian.engines.diagonal import DiagonalEngine, DiagonalPass
from epfast.gaussian.engines.double_loop import DescentEngine
from epfast.gaussian.engines.kernel import Dual, GPState, ProcessEngine
from epfast.gaussian.engines.latents import LatentEngine
from epfast.gaussian.engines.nearest import NearestEngine
from epfast.gaussian.engines.nested import NestedEngine
from epfast.gaussian.engines.passes import PassEngine
from epfast.gaussian.engines.prior_sites import WeightEngine
from epfast.gaussian.engines.rows import RowEngine
from epfast.gaussian.engines.shards import LaplaceEngine, ShardEngine, SharedEngine
from epfast.gaussian.engines.sparse import SparseEngine
from epfast.gaussian.problem import Problem
from epfast.inference import Engine
from epfast.losses import Loss

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


class Combination(NamedTuple):
    """A row of a table."""

    #: ``engine(problem)``
    engine: Callable[[Any], Any]
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
#: forms of q that are processes
PROCESSES = "process", "nearest"
Table = Mapping[Key, Combination]


def words(key: Key) -> str:
    """A key of a table in the arguments of the user."""
    covariance, factor, stores = key
    if covariance == "nearest":
        return f"a process by nearest rows, {SCHEDULES[stores]}"
    if covariance == "process":
        several = " of several latents" if factor == "latents" else ""
        return f"a process{several}, {SCHEDULES[stores]}"
    size = {"row": "batch_size=None", "latents": "several latents per row"}.get(
        factor, "a batch_size"
    )
    return f"posterior={covariance!r}, {size}, {SCHEDULES[stores]}"


def _row(engine: Callable[[Any], Any], takes: str, **only: bool) -> Combination:
    return Combination(engine, frozenset(takes.split(", ")), **only)


def of_latents(problem: Problem) -> LatentEngine | NestedEngine:
    """The engine of several latents per row: a product over them, or one Gaussian."""
    return (NestedEngine if problem.loss.correlated else LatentEngine)(problem)


def of_rows(problem: Problem) -> RowEngine | ProcessEngine | WeightEngine:
    """The engine of a site per row, in matrices of order d or n; and of one per weight."""
    if problem.prior_sites is not None:
        return WeightEngine(problem)
    return RowEngine(problem) if problem.wide is None else ProcessEngine(problem, Dual(problem))


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
    ("process", "latents", "factor"): _row(LatentEngine, f"damping, {ORDERS}"),
    ("process", "row", "descent"): _row(DescentEngine, "power", by_integrals=True),
    ("nearest", "row", "factor"): _row(
        NearestEngine, f"weights, damping, power, {ORDERS}", by_integrals=True, log_concave=True
    ),
}
#: what users choose among
OF_PROCESSES, OF_ROWS = (
    {k: row for k, row in ENGINES.items() if k[0] in kinds}
    for kinds in (PROCESSES, ("full", "sparse", "factorized"))
)


def legal(
    covariance: str,
    factor: str,
    schedule: Any,
    scheme: Any,
    loss: Loss,
    given: Mapping[str, Any],
) -> Combination:
    """The engine of a combination, or an error that says why there is none.

    Parameters
    ----------
    covariance, factor : str
        See the table.
    schedule : Schedule
    scheme : Scheme
    loss : Loss
    given : dict
        Arguments that only some combinations take. None: not given.

    Returns
    -------
    Combination

    Raises
    ------
    ValueError
        If the combination makes no sense.
    """
    key = (covariance, factor, schedule.stores)
    table = OF_PROCESSES if covariance in PROCESSES else OF_ROWS
    if key not in table:
        stores = [stored for c, f, stored in table if (c, f) == (covariance, factor)]
        if not stores:
            forms = sorted({repr(c) for c, f, _ in table if f == factor}, reverse=True)
            beside = words((covariance, factor, schedule.stores)).split(", ")[1]
            raise ValueError(
                f"posterior is {covariance!r}; allowed with {beside}: {', '.join(forms)}"
            )
        others = "; or " + " | ".join(words(k) for k in table if k[2] == schedule.stores)
        raise ValueError(
            f"schedule is {_checks.describe(schedule)}; allowed with "
            f"{words((covariance, factor, stores[0])).rsplit(', ', 1)[0]}: "
            + ", ".join(SCHEDULES[stored] for stored in stores)
            + (others if len(others) > len("; or ") else "")
        )
    row = table[key]
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
    asked = {name: value for name, value in given.items() if value is not None}
    if scheme.relaxes:
        asked["scheme='relaxed'"] = scheme
    for name in SCHEDULE_NUMBERS:
        value = getattr(schedule, name, None)
        if value is not None and not (name in ("damping", "power") and value == 1.0):
            asked[name] = value
    if schedule.order in ("parallel", "shuffled", "chunked", "as_completed"):
        asked[f"order={schedule.order!r}"] = schedule.order
    pairs: dict[str, tuple[str, ...]] = {}
    if schedule.order == "parallel":
        pairs["order='parallel'"] = ("block",)
    if scheme.relaxes:
        none = "power", "weights", "prior", "order='parallel'", "order='chunked'"
        pairs["scheme='relaxed'"] = none
    for other, names in pairs.items():
        asked |= {f"{name} beside {other}": asked[name] for name in names if name in asked}
    for name, value in asked.items():
        if name not in row.takes:
            users = [words(k) for k, other in table.items() if name in other.takes]
            allowed = "; it is for " + " | ".join(users) if users else ""
            argument, _, beside = name.partition(" beside ")
            argument = argument.split("=")[0]
            if beside:
                allowed = "; allowed: another order" if argument == "order" else "; allowed: None"
            raise ValueError(
                f"{argument} is {_checks.describe(value)}"
                + (f" beside {beside}" if beside else "")
                + f"; not allowed with {words(key)}{allowed}"
            )
    if "power" in asked:
        loss.check_power(asked["power"])
    return row


def engine_of(problem: Problem, **settings: Any) -> Engine:
    """The engine of a legal problem."""
    factor = "row" if problem.batch_size is None else "minibatch"
    factor = "latents" if problem.loss.latents != 1 else factor
    engine: Engine = ENGINES[problem.covariance, factor, problem.schedule.stores].engine(
        problem, **settings
    )
    return engine


def at_start(problem: Problem) -> Any:
    """The state before the first sweep without a start: the prior and flat sites."""
    if problem.wide is not None and problem.prior_sites is None:
        return GPState(flat(problem.shape[0]), 0)
    engine: Any = engine_of(problem)
    return engine.finish(engine.init(None), True)

"""Engines of linear models, and the table of legal combinations.

The table maps (covariance, factor, sites stored) to an engine and its extra arguments, beyond those
of all engines.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from epfast.inference import Engine, Sites
from epfast.inference.combinations import Combination, Table
from epfast.linear.engines.base import adf_start, flat
from epfast.linear.engines.diagonal import DiagonalEngine, DiagonalPass
from epfast.linear.engines.kernel import Dual, GPState, ProcessEngine
from epfast.linear.engines.laplace import LaplaceEngine
from epfast.linear.engines.nested import NestedEngine
from epfast.linear.engines.passes import PassEngine
from epfast.linear.engines.rows import RowEngine
from epfast.linear.engines.shards import ShardEngine
from epfast.linear.engines.shared import SharedEngine
from epfast.linear.engines.stack import StackEngine
from epfast.linear.problem import LinearProblem

__all__ = ["ENGINES", "at_start", "engine_of"]

SHUFFLED, PARALLEL, CHUNKED, AS_COMPLETED = (
    f"order={name!r}" for name in ("shuffled", "parallel", "chunked", "as_completed")
)


def _row(engine: Callable[[Any], Any], *takes: str, by_expansion: bool = False) -> Combination:
    return Combination(engine, frozenset(takes), by_expansion)


def of_latents(problem: LinearProblem) -> StackEngine | NestedEngine:
    """The engine of several latents per row: a product over them, or one Gaussian."""
    return (NestedEngine if problem.loss.correlated else StackEngine)(problem)


def of_rows(problem: LinearProblem) -> RowEngine | ProcessEngine:
    """The engine of a site per row, in matrices of order d or n."""
    return RowEngine(problem) if problem.wide is None else ProcessEngine(problem, Dual(problem))


ENGINES: Table = {
    ("full", "row", "factor"): _row(
        of_rows,
        *(
            "weights",
            "prior",
            "sparse X",
            "damping",
            "power",
            "block",
            SHUFFLED,
            CHUNKED,
            PARALLEL,
        ),
    ),
    ("full", "row", "none"): _row(
        PassEngine, "weights", "sparse X", "chunks of X", "power", SHUFFLED
    ),
    ("full", "row", "shared"): _row(
        SharedEngine, "weights", "sparse X", "damping", "power", "executor", SHUFFLED, PARALLEL
    ),
    ("full", "row", "shard"): _row(
        ShardEngine,
        *("weights", "sparse X", "damping", "power", "executor"),
        *(SHUFFLED, PARALLEL, AS_COMPLETED),
    ),
    **{
        ("factorized", factor, "shard"): _row(
            ShardEngine,
            *("weights", "sparse X", "damping", "power", "site_rule", "executor"),
            *(SHUFFLED, PARALLEL, AS_COMPLETED),
        )
        for factor in ("minibatch", "row")
    },
    ("full", "minibatch", "factor"): _row(
        LaplaceEngine,
        *("weights", "sparse X", "damping", "power", "executor", SHUFFLED, PARALLEL),
        by_expansion=True,
    ),
    ("full", "minibatch", "none"): _row(
        PassEngine,
        *("weights", "sparse X", "chunks of X", "power", SHUFFLED),
        by_expansion=True,
    ),
    ("full", "latents", "factor"): _row(
        of_latents, "sparse X", "damping", "block", SHUFFLED, CHUNKED, PARALLEL
    ),
    **{
        ("factorized", factor, stored): _row(
            engine,
            *("weights", "sparse X", "power", "site_rule", "record='factor'", SHUFFLED),
            *more,
        )
        for factor in ("minibatch", "row")
        for stored, engine, more in (
            ("factor", DiagonalEngine, ("damping", PARALLEL)),
            ("none", DiagonalPass, ("chunks of X", "settle")),
        )
    },
}


def engine_of(problem: LinearProblem, **settings: Any) -> Engine[Any]:
    """The engine of a legal problem."""
    factor = "row" if problem.batch_size is None else "minibatch"
    factor = "latents" if problem.loss.latents != 1 else factor
    engine: Engine[Any] = ENGINES[problem.covariance, factor, problem.schedule.stores].engine(
        problem, **settings
    )
    return engine


def at_start(problem: LinearProblem) -> Any:
    """The state before the first sweep without a start: the prior and flat sites."""
    if problem.wide is not None:
        return GPState(flat(problem.shape[0]), 0)
    if problem.loss.latents != 1:
        engine = of_latents(problem)
        return engine.settle(engine.init(None), True)
    base, stores = problem.base, problem.schedule.stores
    if stores == "none":
        return adf_start(base)
    n, d = problem.shape
    count = -(-n // (problem.batch_size or 1))
    shape: tuple[int, ...] = (d,)
    if stores == "shared":
        assert problem.groups is not None
        count, shape = int(problem.groups.max()) + 1, (d, d)
    elif problem.covariance == "full":
        count, shape = n, ()
    shift = np.zeros((count, d) if shape else count)
    return base._replace(sites=Sites(np.zeros((count, *shape)), shift, np.zeros(count)))

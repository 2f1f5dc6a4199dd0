"""What runs on the workers of a cluster: loading a shard, and visiting it."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Generic, NamedTuple, TypeAlias, TypeVar, overload

import numpy as np
from dask.delayed import Delayed
from distributed import Future
from numpy.typing import NDArray

from epfast import _checks, families
from epfast._arrays import Array, Matrix, symmetric_from_upper
from epfast._core.vector import build_facts
from epfast.gaussian.engine import Working
from epfast.gaussian.online import joined_data
from epfast.gaussian.problem import Problem
from epfast.gaussian.rows import NO_ROWS, Data, copies_of, data_of, ends_of, mean_of_rows, with_ones
from epfast.gaussian.shards import KeptRows, Update, local_update
from epfast.gaussian.table import engine_of
from epfast.inference import Counts, Sites
from epfast.inference.executors import Answers, Calls, attempted
from epfast.inference.report import fraction
from epfast.inference.runtime import no_tick, one_blas_thread
from epfast.losses import Loss

T = TypeVar("T")
#: rows of a shard, or what is wrong with them; a future of them, or what loads them
Lazy: TypeAlias = "Data | Exception | Future[Data | Exception] | Delayed"


class Kept(NamedTuple):
    """Sites of the rows, or minibatches, of a shard, and their product."""

    rows: Sites
    product: Sites


#: by the token of the fit, the shard and the visit that they begin: a cache, no part of the truth.
#: Without it a visit begins with flat sites.
ROWS: dict[str, dict[int, dict[int, Kept | None]]] = {}
#: the last fits that are over: a visit that ends after its fit leaves nothing
OVER: deque[str] = deque(maxlen=100)


#: most sweeps over rows whose sites were lost, after which a fit that is resumed goes on nearly
#: from where it was
AGAIN = 20


class Opaque(Generic[T]):
    """Calls that Dask does not look into."""

    def __init__(self, calls: Calls[T]) -> None:
        self.calls = calls


def answers(shards: Iterable[Lazy], opaque: Opaque[T]) -> Answers[T]:
    """The values of calls whose first argument is a problem that has the rows of these shards."""
    return attempted([partial(_answer, *pair) for pair in zip(shards, opaque.calls, strict=True)])


def _answer(shard: Lazy, call: partial[T]) -> T:
    problem, *rest = call.args
    value = call.func(problem._replace(data=good(shard)), *map(unpacked, rest), **call.keywords)
    return packed(value)


class Facts(NamedTuple):
    """What the coordinator knows of a shard: nothing before it is read."""

    rows: int = 0
    #: with their copies
    size: float = 0.0
    #: whether there are labels -1, +1
    labels: tuple[bool, bool] = (False, False)
    #: sum of the weights of rows, and their weighted mean, (d,). None without rows
    total: float = 0.0
    mean: Array | None = None
    #: least and largest entries of the columns, (d,) each. None without rows, or an intercept
    ends: tuple[Array, Array] | None = None
    #: a weight that is no count; 0 without one
    fraction: float = 0.0

    def factors(self, size: int | None) -> int:
        """How many minibatches of this size the rows are. None: a factor per row."""
        return -(-self.rows // (size or 1))


class Placed(NamedTuple):
    """The rows of a shard where they are, in place of an X: what the cluster knows them by."""

    #: of the sites of its rows, before the first visit
    kept: KeptRows
    rows: Lazy
    facts: Facts = Facts()
    #: workers that have them, or are to read them. None: whoever has nothing to do
    homes: Sequence[str] = ()

    @property
    def home(self) -> str | None:
        return next(iter(self.homes), None)


def load(
    numbers: Sequence[int],
    X: Sequence[Matrix],
    y: Sequence[NDArray[np.generic]],
    weights: Sequence[NDArray[np.generic]] | None,
    loss: Loss,
    intercept: bool,
    columns: int,
) -> Data | Exception:
    """Chunks of rows as one shard, checked. Empty ones are left out.

    numbers: of the chunks, for errors. What is wrong is a value: an exception would be that of a
    lost task.
    """
    parts: list[Data] = []
    for i, number in enumerate(numbers):
        if X[i].shape[0] == 0:
            continue
        try:
            some = None if weights is None else weights[i]
            parts.append(_checked(X[i], y[i], some, loss, columns))
        except (ValueError, TypeError) as error:
            return type(error)(f"chunk {number}: {error}")
    if not parts:
        return NO_ROWS
    data = joined_data(parts)
    return data._replace(X=with_ones(data.X)) if intercept else data


def _checked(
    X: Matrix,
    y: NDArray[np.generic],
    weights: NDArray[np.generic] | None,
    loss: Loss,
    columns: int,
) -> Data:
    """One chunk. Weights of one chunk may all be 0."""
    if getattr(getattr(X, "dtype", None), "kind", "") == "O":
        raise TypeError("X has dtype object; allowed: real numbers")
    y = np.asarray(y)
    if loss.response_width == 1 and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    data = data_of(_checks.rows("X", X, columns), y, None, loss)
    if weights is None:
        return data
    copies = _checks.array("weights", np.asarray(weights), shape=(len(y),))
    if not ((copies >= 0.0) & (copies <= 1e15)).all():
        raise ValueError("weights holds numbers below 0 or above 1e15; allowed: from 0 to 1e15")
    return data._replace(weights=copies)


def good(shard: Lazy) -> Data:
    """A shard whose rows are good, loaded here if it was not. Else raises what is wrong."""
    if isinstance(shard, Delayed):
        shard = shard.compute(scheduler="synchronous")
    if isinstance(shard, Exception):
        raise shard
    assert isinstance(shard, Data)
    return shard


def facts_of(shard: Lazy, intercept: bool) -> Facts:
    """What the coordinator asks of each shard."""
    X, y, weights, _ = good(shard)
    if y is None:
        return Facts()
    n, first = len(y), y[:, 0]
    counted = np.ones(n) if weights is None else weights
    size, total = float(copies_of(counted).sum()), float(counted.sum())
    labels = bool((first < 0.0).any()), bool((first > 0.0).any())
    mean = mean_of_rows(X, weights) if total > 0.0 else None
    ends = ends_of(X) if intercept and mean is not None else None
    return Facts(n, size, labels, total, mean, ends, fraction(counted))


@overload
def packed(value: Array) -> Array: ...
@overload
def packed(value: T) -> T: ...
def packed(value: T | Array) -> T | Array:
    """What travels: of a precision the upper triangle, (1, d (d + 1) / 2)."""
    if isinstance(value, Update):
        return value._replace(site=packed(value.site))
    if isinstance(value, Sites):
        return value._replace(precision=packed(value.precision))
    if isinstance(value, np.ndarray) and value.ndim == 2:
        return value[np.triu_indices(len(value))][None]
    return value


@overload
def unpacked(value: Array) -> Array: ...
@overload
def unpacked(value: T) -> T: ...
def unpacked(value: T | Array) -> T | Array:
    """What :func:`packed` was given."""
    if isinstance(value, Update):
        return value._replace(site=unpacked(value.site))
    if isinstance(value, Sites):
        return value._replace(precision=unpacked(value.precision))
    if isinstance(value, np.ndarray) and value.ndim == 2:
        d = math.isqrt(2 * value.size)
        upper = np.zeros((d, d))
        upper[np.triu_indices(d)] = value[0]
        return symmetric_from_upper(upper)
    return value


def bytes_of(value: T) -> int:
    """Of the arrays in tuples."""
    if isinstance(value, tuple):
        return sum(map(bytes_of, value))
    return value.nbytes if isinstance(value, np.ndarray) and value.ndim else 0


def update_kept(
    shard: Problem, precision: Array, shift: Array, site: Sites, rows: KeptRows, damping: float
) -> Update:
    """As :func:`local_update`. The sites of the rows, which ADF has none of, stay here.

    Who asks twice for the same visit gets the same: the sites that it began with are kept.
    """
    token, k, number = rows
    own = ROWS.setdefault(token, {}).setdefault(k, {})
    # another order of events may have brought this shard further
    latest = own[max(own)] if own else None
    kept = own.get(number, latest)
    old_rows, product = (None, None) if kept is None else kept
    # of a site whose rows are flat again nothing can be damped row by row
    cold = kept is None and bool(site.precision.any() or site.shift.any())
    if cold and shard.schedule.tol > 0.0:  # so that the shard has its site again
        sweeps = max(AGAIN, shard.schedule.sweeps)
        shard = shard._replace(schedule=replace(shard.schedule, sweeps=sweeps))
    share = 1.0 if cold else damping
    update = local_update(shard, precision, shift, site, old_rows, share, product)
    next_kept = kept
    if isinstance(update.rows, Sites) and (kept is None or update.rows is not kept.rows):
        next_kept = Kept(update.rows, update.site)
    # a thread per fit and shard at a time, but one that was sent twice: each writes a whole entry
    ROWS.setdefault(token, {})[k] = {number: kept, number + 1: next_kept}
    if token in OVER:
        ROWS.pop(token, None)
    if cold:
        update = update._replace(site=families.damped(site, update.site, damping))
    return update._replace(rows=rows._replace(number=number + 1))


class Passed(NamedTuple):
    """What comes back from a part of a pass of ADF."""

    #: of the engine. None before the first row
    state: Working | None
    counts: Counts
    facts: Facts


def local_pass(shard: Problem, state: Working | None) -> Passed:
    """A pass of ADF over a shard, from where the one before has ended. None: from the base."""
    facts = facts_of(shard.data, shard.prior.intercept)
    if not facts.rows:
        return Passed(state, Counts(), facts)
    engine = engine_of(shard)
    if state is None:
        state = engine.init(None)
    with one_blas_thread(engine.order_of_matrices):
        swept = engine.sweep(state, True, no_tick)
    return Passed(swept.state._replace(sweeps=state.sweeps), swept.counts, facts)


def forget(token: str) -> None:
    """Drop the sites of a fit, which is over."""
    OVER.append(token)
    ROWS.pop(token, None)


def version() -> str:
    """That of epfast here."""
    return str(build_facts()["version"])

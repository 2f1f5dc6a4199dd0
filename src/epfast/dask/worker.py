"""What runs on the workers of a cluster: loading a shard, and visiting it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from epfast import _checks, families
from epfast._arrays import Array, symmetric_from_upper
from epfast._core.vector import build_facts
from epfast.gaussian.online import joined_data
from epfast.gaussian.problem import Problem
from epfast.gaussian.rows import NO_ROWS, Data, copies_of, data_of, ends_of, mean_of_rows, with_ones
from epfast.gaussian.shards import Update, local_shared, local_update
from epfast.gaussian.table import engine_of
from epfast.inference import Counts, Sites
from epfast.inference.report import fraction
from epfast.inference.runtime import no_tick, one_blas_thread
from epfast.losses import Loss
from epfast.schedules import EP


class Kept(NamedTuple):
    """Sites of the rows, or minibatches, of a shard, and their product."""

    rows: Sites
    made: Sites


#: by the token of the fit, the shard and the visit that they begin: a cache, no part of the truth.
#: Without it a visit begins with flat sites.
ROWS: dict[str, dict[int, dict[int, Kept | None]]] = {}
#: the last fits that are over: a visit that ends after its fit leaves nothing
OVER: deque[str] = deque(maxlen=100)


#: most sweeps over rows whose sites were lost. Nine fits that were resumed two sweeps before their
#: end took 1 to 3 sweeps with 20 of these, and 4 to 23 with one
AGAIN = 20


class Opaque:
    """Arguments that Dask does not look into."""

    def __init__(self, value: Any) -> None:
        self.value = value


def answers(shards: Iterable[Any], calls: Opaque) -> list[Any]:
    """The values of calls of these shards, each a function and its other arguments."""
    pairs = zip(shards, calls.value, strict=True)
    return [function(good(shard), *rest) for shard, (function, *rest) in pairs]


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


class Loaded(NamedTuple):
    """A shard in the memory of a worker."""

    data: Data
    facts: Facts


def load(*chunks: Any) -> Loaded | Exception:
    """As _loaded. What is wrong is a value: an exception would be that of a lost task."""
    try:
        return _loaded(*chunks)
    except (ValueError, TypeError) as error:
        return error


def _loaded(
    numbers: Sequence[int],
    X: Sequence[Any],
    y: Sequence[Any],
    weights: Sequence[Any] | None,
    loss: Loss,
    intercept: bool,
    columns: int,
) -> Loaded:
    """Chunks of rows as one shard, checked. Empty ones are left out.

    numbers: of the chunks, for errors.
    """
    parts: list[Data] = []
    for i, number in enumerate(numbers):
        if X[i].shape[0] == 0:
            continue
        try:
            some = None if weights is None else weights[i]
            parts.append(_checked(X[i], y[i], some, loss, columns))
        except (ValueError, TypeError) as error:
            raise type(error)(f"chunk {number}: {error}") from None
    if not parts:
        return Loaded(NO_ROWS, Facts())
    data = joined_data(parts)
    if intercept:
        data = data._replace(X=with_ones(data.X))
    n, first = len(data.y), data.y[:, 0]
    counted = np.ones(n) if data.weights is None else data.weights
    size, total = float(copies_of(counted).sum()), float(counted.sum())
    labels = bool((first < 0.0).any()), bool((first > 0.0).any())
    mean = mean_of_rows(data.X, data.weights) if total > 0.0 else None
    ends = ends_of(data.X) if intercept and mean is not None else None
    return Loaded(data, Facts(n, size, labels, total, mean, ends, fraction(counted)))


def _checked(X: Any, y: Any, weights: Any, loss: Loss, columns: int) -> Data:
    """One chunk. Weights of one chunk may all be 0."""
    if getattr(getattr(X, "dtype", None), "kind", "") == "O":
        raise TypeError("X has dtype object; allowed: real numbers")
    y = np.asarray(y)
    if loss.response_width == 1 and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    data = data_of(_checks.rows("X", X, columns), y, None, loss)
    if weights is None:
        return data
    given = _checks.array("weights", np.asarray(weights), shape=(len(y),))
    if not ((given >= 0.0) & (given <= 1e15)).all():
        raise ValueError("weights holds numbers below 0 or above 1e15; allowed: from 0 to 1e15")
    return data._replace(weights=given)


def good(shard: Any) -> Loaded:
    """A shard whose rows are good, loaded here if it was not. Else raises what is wrong."""
    if hasattr(shard, "compute"):
        shard = shard.compute(scheduler="synchronous")
    if isinstance(shard, Exception):
        raise shard
    loaded: Loaded = shard
    return loaded


def facts_of(shard: Any) -> Facts:
    """What the coordinator asks of each shard."""
    return good(shard).facts


def packed(site: Any) -> Any:
    """A site, or a posterior, as it travels: of a matrix the upper triangle, (1, d (d + 1) / 2)."""
    matrix = site.precision
    if matrix.ndim == 1:
        return site
    return site._replace(precision=matrix[np.triu_indices(len(matrix))][None])


def unpacked(site: Any) -> Any:
    """What :func:`packed` was given."""
    triangle, d = site.precision, len(site.shift)
    if triangle.ndim == 1:
        return site
    upper = np.zeros((d, d))
    upper[np.triu_indices(d)] = triangle[0]
    return site._replace(precision=symmetric_from_upper(upper))


def bytes_of(state: Any) -> int:
    """Of the arrays of a state, or of a site. None: 0."""
    parts = state or ()
    return sum(part.nbytes for part in parts if isinstance(part, np.ndarray) and part.ndim)


def _answer(update: Update) -> Update:
    """What a worker sends back: the site, and no sites of rows."""
    return update._replace(site=packed(update.site), rows=None)


class Visit(NamedTuple):
    """What is asked of a shard."""

    #: of the fit
    token: str
    shard: int
    #: answers that the shard has given so far
    number: int
    #: both :func:`packed`
    posterior: Sites
    site: Sites
    damping: float

    def numbers(self) -> tuple[Array, Array, Sites]:
        """Precision and shift of the posterior, and the site."""
        precision, shift, _ = unpacked(self.posterior)
        return precision, shift, unpacked(self.site)


def visit_rows(shard: Loaded, problem: Problem, visit: Visit) -> Update:
    """EP, or a pass of ADF, on the rows of a shard. Their sites, which ADF has none of, stay here.

    Who asks twice for the same visit gets the same: the sites that it began with are kept.
    """
    local, (precision, shift, site) = problem._replace(data=shard.data), visit.numbers()
    own = ROWS.setdefault(visit.token, {}).setdefault(visit.shard, {})
    # another order of events may have brought this shard further
    latest = own[max(own)] if own else None
    kept = own.get(visit.number, latest)
    rows, made = (None, None) if kept is None else kept
    # of a site whose rows are flat again nothing can be damped row by row
    cold = kept is None and bool(site.precision.any() or site.shift.any())
    damping = 1.0 if cold else visit.damping
    if cold and local.schedule.tol > 0.0:  # so that the shard has its site again
        sweeps = max(AGAIN, local.schedule.sweeps)
        local = local._replace(schedule=replace(local.schedule, sweeps=sweeps))
    update = local_update(local, precision, shift, site, rows, damping, made)
    after = kept
    if update.rows is not None and (kept is None or update.rows is not kept.rows):
        after = Kept(update.rows, update.site)
    # a thread per fit and shard at a time, but one that was sent twice: each writes a whole entry
    ROWS.setdefault(visit.token, {})[visit.shard] = {visit.number: kept, visit.number + 1: after}
    if visit.token in OVER:
        ROWS.pop(visit.token, None)
    if cold:
        update = update._replace(site=families.damped(site, update.site, visit.damping))
    return _answer(update)


def visit_shared(
    shard: Loaded,
    problem: Problem,
    visit: Visit,
    batch: int | None,
    checked: bool,
) -> Update:
    """A sweep over the batches of a group whose rows share a site. No state stays here."""
    n = shard.facts.rows
    step = n if batch is None else batch
    last = np.zeros(n, dtype=np.uint8)
    last[step - 1 :: step] = 1
    last[-1] = 1
    precision, shift, site = visit.numbers()
    numbers = EP(power=problem.schedule.power, damping=visit.damping).filled()
    local = problem._replace(data=shard.data, schedule=numbers)
    rest = shard.facts.size, last, checked, visit.number
    return _answer(local_shared(local, precision, shift, site, *rest))


class Passed(NamedTuple):
    """What comes back from a part of a pass of ADF."""

    #: of the engine. None before the first row
    state: Any
    counts: Counts
    facts: Facts


def visit_pass(shard: Loaded, problem: Problem, state: Any) -> Passed:
    """A pass of ADF over a shard, from where the one before has ended. None: from the base."""
    if not shard.facts.rows:
        return Passed(state, Counts(), shard.facts)
    engine: Any = engine_of(problem._replace(data=shard.data))
    begun = engine.init(None) if state is None else state
    with one_blas_thread(engine.order_of_matrices):
        swept = engine.sweep(begun, True, no_tick)
    return Passed(swept.state._replace(sweeps=begun.sweeps), swept.counts, shard.facts)


def forget(token: str) -> None:
    """Drop the sites of a fit, which is over."""
    OVER.append(token)
    ROWS.pop(token, None)


def version() -> str:
    """That of epfast here."""
    return str(build_facts()["version"])

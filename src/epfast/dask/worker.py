"""What runs on the workers of a cluster: loading a shard, and visiting it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from epfast import _checks, families
from epfast._arrays import Array, symmetric_from_upper
from epfast._core.vector import build_facts
from epfast.inference import Sites
from epfast.linear.engines.local import Update, local_shared, local_update
from epfast.linear.ones import with_ones
from epfast.linear.problem import Data, LinearProblem, data_of
from epfast.losses import Loss
from epfast.schedules import EP

#: sites of the rows of shards, by the token of the fit, the shard and the visit that they begin:
#: a cache, no part of the truth. Without it a visit begins with flat sites.
ROWS: dict[str, dict[int, dict[int, Sites | None]]] = {}
#: the last fits that are over: a visit that ends after its fit leaves nothing
OVER: deque[str] = deque(maxlen=100)


class Facts(NamedTuple):
    """What the coordinator knows of a shard."""

    rows: int
    columns: int
    #: with their copies
    size: float
    #: chunks without a row
    empty: int
    #: whether there are labels -1, +1
    labels: tuple[bool, bool]
    n_bytes: int


class Loaded(NamedTuple):
    """A shard in the memory of a worker."""

    data: Data
    facts: Facts


def load(
    numbers: Sequence[int],
    X: Sequence[Any],
    y: Sequence[Any],
    weights: Sequence[Any] | None,
    loss: Loss,
    intercept: bool,
    columns: int,
) -> Loaded:
    """Chunks of rows as one shard, checked; empty ones are left out.

    numbers: of the chunks, for errors.
    """
    parts: list[Data] = []
    for i, number in enumerate(numbers):
        if X[i].shape[0] == 0:
            continue
        try:
            parts.append(_checked(X[i], y[i], None if weights is None else weights[i], loss))
        except (ValueError, TypeError) as error:
            raise type(error)(f"chunk {number}: {error}") from None
        if parts[-1].X.shape[1] != columns:
            raise ValueError(
                f"chunk {number} of X has {parts[-1].X.shape[1]} columns; allowed: {columns}"
            )
    empty = len(numbers) - len(parts)
    if not parts:
        return Loaded(Data(None, None), Facts(0, columns, 0.0, empty, (False, False), 0))
    rows = [part.X for part in parts]
    whole: Any = rows[0]
    if len(rows) > 1:
        is_sparse = any(hasattr(part, "indptr") for part in rows)
        whole = sparse.vstack(rows, format="csr") if is_sparse else np.concatenate(rows)
    whole = with_ones(whole) if intercept else whole
    responses = np.concatenate([_responses(part) for part in parts])
    counted = None
    if weights is not None:
        counted = np.concatenate(
            [np.ones(len(_responses(p))) if p.weights is None else p.weights for p in parts]
        )
    data = Data(whole, responses, counted)
    n, n_columns = whole.shape
    size = float(n) if counted is None else float(_copies(counted).sum())
    first = responses[:, 0]
    labels = bool((first < 0.0).any()), bool((first > 0.0).any())
    return Loaded(data, Facts(n, n_columns, size, empty, labels, _bytes_of(whole)))


def _responses(part: Data) -> Array:
    assert part.y is not None
    return part.y


def _copies(weights: Array) -> Array:
    return np.where(weights > 0.0, np.maximum(weights, 1.0), 0.0)


def _bytes_of(rows: Any) -> int:
    return int(rows.data.nbytes + rows.indices.nbytes if hasattr(rows, "indptr") else rows.nbytes)


def _checked(X: Any, y: Any, weights: Any, loss: Loss) -> Data:
    """One chunk; weights of one chunk may all be 0."""
    if getattr(getattr(X, "dtype", None), "kind", "") == "O":
        raise TypeError("X has dtype object; allowed: real numbers")
    y = np.asarray(y)
    if loss.response_width == 1 and y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    found = data_of(X, y, None, loss)
    if weights is None:
        return found
    given = _checks.array("weights", np.asarray(weights), shape=(len(y),))
    if not ((given >= 0.0) & (given <= 1e15)).all():
        raise ValueError("weights holds numbers below 0 or above 1e15; allowed: from 0 to 1e15")
    return found._replace(weights=given)


def facts_of(shard: Loaded) -> Facts:
    """What the coordinator asks of each shard."""
    return shard.facts


class Packed(NamedTuple):
    """A Gaussian in natural parameters, by the upper triangle: d (d + 3) / 2 numbers."""

    numbers: Array
    d: int

    @classmethod
    def of(cls, precision: Array, shift: Array) -> Packed:
        """Pack a matrix and a vector."""
        d = len(shift)
        return cls(np.concatenate([precision[np.triu_indices(d)], shift]), d)

    def unpacked(self) -> tuple[Array, Array]:
        """The matrix and the vector."""
        upper = np.zeros((self.d, self.d))
        count = self.d * (self.d + 1) // 2
        upper[np.triu_indices(self.d)] = self.numbers[:count]
        return symmetric_from_upper(upper), self.numbers[count:].copy()


def site_from(packed: Packed, log_scale: float) -> Sites:
    """The site of a shard."""
    return Sites(*packed.unpacked(), np.asarray(log_scale))


class Answered(NamedTuple):
    """What a worker sends back: an :class:`Update` by its numbers."""

    site: Packed
    log_scale: float
    refused: int
    moved: float
    checked: bool

    def update(self) -> Update:
        """Unpack it."""
        return Update(
            site_from(self.site, self.log_scale),
            None,
            self.refused,
            self.moved,
            checked=self.checked,
        )


def _answered(update: Update) -> Answered:
    site = Packed.of(update.site.precision, update.site.shift)
    scale = float(update.site.log_scale)
    return Answered(site, scale, update.refused, update.moved, update.checked)


class Visit(NamedTuple):
    """What is asked of a shard."""

    #: of the fit
    token: str
    shard: int
    #: answers that the shard has given so far
    number: int
    posterior: Packed
    site: Packed
    log_scale: float
    damping: float

    def numbers(self) -> tuple[Array, Array, Sites]:
        """Precision and shift of the posterior, and the site."""
        return *self.posterior.unpacked(), site_from(self.site, self.log_scale)


def visit_rows(shard: Loaded, problem: LinearProblem, asked: Visit) -> Answered:
    """EP on the rows of a shard; their sites stay here.

    Who asks twice for the same visit gets the same: the sites that it began with are kept.
    """
    own = ROWS.setdefault(asked.token, {}).setdefault(asked.shard, {})
    # another order of events may have brought this shard further
    latest = own[max(own)] if own else None
    rows = own.get(asked.number, latest)
    precision, shift, site = asked.numbers()
    # of a site whose rows are flat again nothing can be damped row by row
    cold = rows is None and bool(site.precision.any() or site.shift.any())
    damping = 1.0 if cold else asked.damping
    mine = problem._replace(data=shard.data)
    update = local_update(mine, precision, shift, site, rows, damping)
    # a thread per fit and shard at a time, but one that was sent twice: each writes a whole entry
    mine_now = {asked.number: rows, asked.number + 1: update.rows}
    ROWS.setdefault(asked.token, {})[asked.shard] = mine_now
    if asked.token in OVER:
        ROWS.pop(asked.token, None)
    if cold:
        update = update._replace(site=families.damped(site, update.site, asked.damping))
    return _answered(update)


def visit_shared(
    shard: Loaded,
    problem: LinearProblem,
    asked: Visit,
    batch: int | None,
    checked: bool,
) -> Answered:
    """A sweep over the batches of a group whose rows share a site; no state stays here."""
    n = shard.facts.rows
    step = n if batch is None else batch
    last = np.zeros(n, dtype=np.uint8)
    last[step - 1 :: step] = 1
    last[-1] = 1
    precision, shift, site = asked.numbers()
    numbers = EP(power=problem.schedule.power, damping=asked.damping)
    mine = problem._replace(data=shard.data, schedule=numbers)
    size = shard.facts.size
    return _answered(local_shared(mine, precision, shift, site, size, last, checked, asked.number))


def forget(token: str) -> None:
    """Drop the sites of a fit, which is over."""
    OVER.append(token)
    ROWS.pop(token, None)


def version() -> str:
    """That of epfast here."""
    found: str = build_facts()["version"]
    return found

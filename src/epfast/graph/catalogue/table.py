"""Tables over categorical variables: t(h_1, .., h_m) = p[h_1, .., h_m].

- The message to a variable is the sum of the table times the cavities of the others.
- The evidence is the log of the sum of the table times all cavities.

Rows that are unknown are factors of :mod:`epfast.graph.catalogue.category`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast._core.graph import GraphBatch
from epfast._core.graph_factors import (
    TableBatch,
)
from epfast.graph.arguments import Neighbour, rows_of, variables_of
from epfast.graph.catalogue.category import Categories, chosen_by
from epfast.graph.factors import MATCHES, Batch, Beliefs, Edges, Kind, plain_batch
from epfast.graph.variables import (
    Index,
    Variables,
    together,
)

#: most entries of a table, since each takes time in every sweep
MOST_ENTRIES = 1 << 24


@dataclass(frozen=True, eq=False)
class Table(Kind):
    """A table over categorical variables: t(h_1, .., h_m) = p[h_1, .., h_m].

    Parameters
    ----------
    p : array_like of shape (..., K_1, .., K_m), or Variables of shape (..., K_1)
        Numbers >= 0 for variables with K_1, .., K_m categories. They need not be normalised.
        Leading axes broadcast with the variables, for a table for each factor. If zeros leave no
        possible state, the fit raises a ValueError. Dirichlet variables are unknown rows
        p(h_2 | h_1) of a table over two variables.
    match : {"statistics", "moments"}, default="statistics"
        How beliefs about Dirichlet variables are matched, see :class:`Category`.

    Notes
    -----
    Added as ``g.add(Table(p), h_1, .., h_m)`` with arrays of categorical variables that broadcast,
    and a factor for each row. Messages are exact sums. Their cost is m times the entries of p.

    With Dirichlet variables it is added as ``g.add(Table(p), x, z)``, where x and z are categorical
    variables or observed categories, numbers from 0 on: ``Table(P)`` with ``h[:-1], h[1:]`` learns
    the transitions of a chain, and ``Table(confusion[rater])`` with ``label[item], answer`` how
    raters err. A permutation of the categories of x may be equally probable. EP settles on one of
    them, by the priors of the rows: those of a confusion matrix must favour the diagonal. Each
    factor has messages to all rows, so that a vocabulary of thousands of words takes much memory.

    Raises
    ------
    ValueError
        When added, if the last axes of p are not the categories of the variables, or if a table
        has numbers below 0 or only zeros.

    Examples
    --------
    A hidden chain of three states that tend to stay the same. The last state is observed:

    >>> import epfast
    >>> g = epfast.Graph()
    >>> h = g.categorical(3, n=2)
    >>> stay = g.add(epfast.graph.Table([[0.9, 0.1], [0.1, 0.9]]), h[:-1], h[1:])
    >>> seen = g.add(epfast.graph.Table([0.2, 0.8]), h[2])
    >>> g.fit()[h].probabilities.round(3)
    array([[0.308, 0.692],
           [0.26 , 0.74 ],
           [0.2  , 0.8  ]])

    References
    ----------
    Pearl (1988), Probabilistic reasoning in intelligent systems (belief propagation).
    """

    pattern: ClassVar[str] = "c+"
    p: Array | Variables
    match: str = "statistics"

    def __post_init__(self) -> None:
        _checks.choice("match", self.match, MATCHES)
        if isinstance(self.p, Variables):
            variables_of("p", self.p, "dirichlet")
            return
        if self.match != "statistics":
            raise ValueError(
                f"match is {self.match!r} with a table of numbers; allowed: 'statistics', or "
                "Dirichlet variables for p"
            )
        given = _checks.real_array("p", self.p)
        object.__setattr__(self, "p", np.array(given, dtype=np.float64))

    @property
    def entries(self) -> Array:
        """The numbers of a known table."""
        assert not isinstance(self.p, Variables)  # whose batches are of another kind
        return self.p

    def tables(self, sizes: tuple[int | None, ...]) -> Array:
        """Each table as a row. sizes: the numbers of categories. None: any."""
        p, m = self.entries, len(sizes)
        last = p.shape[max(0, p.ndim - m) :]
        fits = len(last) == m and all(
            k == n if n is not None else k for k, n in zip(last, sizes, strict=True)
        )
        if not fits or p.size > MOST_ENTRIES:
            shown = ", ".join("K" if n is None else str(n) for n in sizes)
            raise ValueError(
                f"p has shape {p.shape}; allowed: (..., {shown}), the categories of the variables "
                f"along the last axes, with at most {MOST_ENTRIES} entries"
            )
        rows: Array = p.reshape(-1, math.prod(last))
        if not (np.isfinite(p).all() and (p >= 0.0).all() and (rows > 0.0).any(axis=1).all()):
            raise ValueError(
                "p holds a number below 0, NaN or infinity, or a table of zeros, which excludes "
                "all states; allowed: finite numbers >= 0"
            )
        return rows

    def attach(self, *h: Categories) -> Batch:
        if not h:
            raise ValueError("a table has no variable; allowed: one categorical variable or more")
        if isinstance(self.p, Variables):
            if len(h) != 2:
                raise ValueError(
                    f"h has {len(h)} variables; allowed with Dirichlet variables: two, x and z"
                )
            return chosen_by(self.match, self.p, *h)
        return self.attach_known(h)

    def attach_known(self, h: Sequence[Categories]) -> Batch:
        """Factors of a table of numbers."""
        given = {f"h_{j + 1}": (value, "categorical") for j, value in enumerate(h)}
        widths = tuple(variables_of(name, *one).width for name, one in given.items())
        lead = self.entries.shape[: max(0, self.entries.ndim - len(h))]
        tables = self.tables(widths)
        numbers = rows_of(given, **{"leading axes of p": lead})
        data = {}
        if len(tables) > 1:
            places = np.broadcast_to(np.arange(len(tables)).reshape(lead), numbers.shape[:-1])
            data["log_p"] = logs_of(tables)[places.ravel()]
        return plain_batch(self, numbers, data)._replace(bounded=bool(self.entries.max() <= 1.0))

    def check(self, batch: Batch, families: Index, sizes: Index) -> None:
        super().check(batch, families, sizes)
        table = sizes.reshape(batch.table.shape)
        if len(self.tables(tuple(table[0]))) == 1 and batch.data:
            raise ValueError("log_p is given beside one table")
        logs = batch.data.get("log_p", np.zeros(1))
        impossible = not (logs < np.inf).all() or np.isinf(logs).all(axis=-1).any()
        if (table != table[0]).any() or impossible:
            raise ValueError("p is of other categories than its variables, or log_p of none")

    def logs(self, batch: Batch) -> Array:
        """Logs of the tables, a row for each factor, or one row for all."""
        return batch.data["log_p"] if batch.data else logs_of(self.entries.reshape(1, -1))

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        shape = edges.size[: batch.table.shape[1]].copy()
        return TableBatch(*edges, self.logs(batch), shape, tied)

    def log_density(self, batch: Batch, theta: Array) -> Array:
        names, logs = batch.table, self.logs(batch)
        shape = self.entries.shape[self.entries.ndim - names.shape[1] :]
        at = np.ravel_multi_index(tuple(theta[:, names].astype(np.intp).transpose(2, 0, 1)), shape)
        return np.asarray(logs[np.arange(batch.n) % len(logs), at].sum(axis=1))

    def predict_proba(self, q: Beliefs, *h: Neighbour) -> Array:
        """Probabilities of the categories of the variable in the place of None."""
        if isinstance(self.p, Variables):
            return Table(q.of(self.p).mean).predict_proba(q, *h)
        empty = [j for j, value in enumerate(h) if value is None]
        if len(empty) != 1:
            raise ValueError(
                f"h has None in {len(empty)} places; allowed: one None, for the variable to predict"
            )
        given = {
            j: variables_of(f"h_{j + 1}", value, "categorical")
            for j, value in enumerate(h)
            if value is not None
        }
        self.tables(tuple(given[j].width if j in given else None for j in range(len(h))))
        letters = "abcdefghijklmnopqrstuvwxyz"[: len(h)]
        operands = [self.p / self.p.max()]
        for variables in given.values():
            logits = q.of(variables).logits
            operands.append(np.exp(logits - logits.max(axis=-1, keepdims=True)))
        shapes = {f"h_{j + 1}": variables.shape for j, variables in given.items()}
        together(**{"leading axes of p": self.p.shape[: self.p.ndim - len(h)]}, **shapes)
        taken = ",".join(["..." + letters, *(f"...{letters[j]}" for j in given)])
        masses = np.einsum(f"{taken}->...{letters[empty[0]]}", *operands)
        total = masses.sum(axis=-1, keepdims=True)
        if not (total > 0.0).all():
            raise ValueError(
                "p excludes all categories of the variable; allowed: a p that leaves one possible"
            )
        return np.asarray(masses / total)

    def predict(self, q: Beliefs, *h: Neighbour) -> Array:
        """The most probable category of the variable in the place of None."""
        return np.asarray(self.predict_proba(q, *h).argmax(axis=-1))

    def log_predictive(self, q: Beliefs, *h: Categories) -> Array:
        """Logs of the mean entries of the table, over the beliefs about h and p."""
        return q.log_z(self.attach(*h))


def logs_of(p: Array) -> Array:
    """Logs, with -inf for 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(p))

"""Categories that are chosen by unknown probabilities: t(p, z) = p_z, and t(P, x, z) = P_xz.

With cavities Dir(a_x) of the rows and m of the categories:

- The message to z is the mean of the rows under m(x), and that to x the mean under m(z).
- The tilted belief about a row is a mixture of Dirichlets: Dir(a_x) where another row is chosen,
  and Dir(a_x + e_z). It is projected by Newton's method for E log p, or by moments.
- The evidence is the log of sum_xz m(x) m(z) a_xz / a_x0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast._arrays import AnyArray, Array, Given
from epfast._core.graph import GraphBatch
from epfast._core.graph_dirichlet import DirichletBatch
from epfast.graph.arguments import Argument, Neighbour, rows_of, variables_of
from epfast.graph.factors import MATCHES, Batch, Beliefs, Edges, Kind, plain_batch
from epfast.graph.variables import Index, Linear, Variables, together

#: categorical variables, or observed categories
Categories = Variables | Given


@dataclass(frozen=True, eq=False)
class Category(Kind):
    """A category z with unknown probabilities p: t(p, z) = p_z.

    Parameters
    ----------
    p : Variables
        Dirichlet variables, one for each z or one for all.
    match : {"statistics", "moments"}, default="statistics"
        How the belief about p is matched: "statistics" keeps E[log p] (the projection of EP),
        "moments" the means and the sum of the variances.

    Notes
    -----
    Added as ``g.add(Category(p), z)``. ``z`` is categorical variables, or observed categories,
    numbers from 0 to K - 1. The factor is a generative one, so that z needs no prior: the class of
    an item, the first state of a chain, the label of a :class:`Mixture` whose weights are p. Where
    all z are observed the posterior is exact, and its concentrations are the prior's plus counts.

    Probabilities that depend on another category are :class:`Table` with rows of Dirichlet
    variables, ``g.add(Table(P), x, z)``. Only the priors tell the categories of x apart: give the
    rows of a confusion matrix a prior that favours the diagonal.

    Raises
    ------
    TypeError, ValueError
        When added, for a p that is not of Dirichlet variables, a z with another number of
        categories, or observations that are not whole numbers from 0 to K - 1.

    Examples
    --------
    Five draws of three categories, one of which is not known:

    >>> import epfast
    >>> g = epfast.Graph()
    >>> p, z = g.dirichlet(3), g.categorical(n=3)
    >>> seen = g.add(epfast.graph.Category(p), [0, 0, 2, 0])
    >>> hidden = g.add(epfast.graph.Category(p), z)
    >>> post = g.fit()
    >>> post[p].mean.round(3), post[z].probabilities.round(3)
    (array([0.571, 0.143, 0.286]), array([0.571, 0.143, 0.286]))

    References
    ----------
    Minka (2000), Estimating a Dirichlet distribution: Newton's method of the projection. Minka &
    Lafferty (2002), Expectation-propagation for the generative aspect model.
    """

    #: rows of p, the category that selects one where there are several, and z if it is not observed
    pattern: ClassVar[str] = "d+c?c?"
    p: Neighbour
    match: str = "statistics"

    def __post_init__(self) -> None:
        _checks.choice("match", self.match, MATCHES)

    def attach(self, z: Categories) -> Batch:
        p = variables_of("p", self.p, "dirichlet")
        return chosen(self.match, {"p": p}, None, z)

    def check(self, batch: Batch, families: Index, sizes: Index) -> None:
        super().check(batch, families, sizes)
        if (batch.terms.counts != batch.terms.counts[0]).any():
            raise ValueError("factors of Category differ in their number of neighbours")
        rows, widths = n_rows(batch), sizes.reshape(batch.n, -1)
        K = int(widths[0, 0])
        fits = (families.reshape(batch.n, -1)[:, :rows] == families[0]).all()
        wanted = [K] * rows + ([rows] if rows > 1 else []) + ([] if batch.data else [K])
        if not fits or widths.shape[1] != len(wanted) or (widths != wanted).any():
            raise ValueError("categories of Category differ in their number")
        if batch.data:
            z: AnyArray = observed("z", batch.data["z"], K)
            batch.data["z"] = z

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        z = np.asarray(batch.data["z"], dtype=np.intp) if batch.data else None
        by_moments = self.match == "moments"
        return DirichletBatch(*edges, z, by_moments, tied)

    def log_density(self, batch: Batch, theta: Array) -> Array:
        names, rows = batch.table, n_rows(batch)
        column = np.broadcast_to(names[:, 0], (len(theta), batch.n))
        if rows > 1:
            x = theta[:, names[:, rows]].astype(np.intp)
            column = names[np.arange(batch.n), x]
        z = (batch.data["z"] if batch.data else theta[:, names[:, -1]]).astype(np.intp)
        with np.errstate(divide="ignore"):
            logs = np.log(np.take_along_axis(theta, column + z, axis=1))
        return np.asarray(logs.sum(axis=1))

    def symmetry(
        self, batch: Batch, prior: Callable[[Index], Array], alone: NDArray[np.bool_]
    ) -> str:
        rows = n_rows(batch)
        etas = np.stack([prior(names) for names in batch.table[:, :rows].T], axis=1)
        others = [prior(names) for names in batch.table[:, rows:].T]
        told = any(np.ptp(eta, axis=1).any() for eta in others)
        if not others or told or not alone[batch.table].all():
            return ""
        if batch.data:
            blind = (etas == etas[:, :1]).all()
        elif rows == etas.shape[2]:  # the same for all, with another number on the diagonal
            off = np.broadcast_to(~np.eye(rows, dtype=bool), etas.shape)
            on = etas.diagonal(axis1=1, axis2=2)
            blind = not np.ptp(on) and not np.ptp(etas[off])
        else:
            blind = not np.ptp(etas, axis=2).any() and (etas == etas[:, :1]).all()
        if not blind:
            return ""
        return (
            "the categories of a variable have equal priors, and so have the probabilities that "
            "they choose from; a permutation of the categories is equally probable, and EP stays "
            "where all are alike; give the probabilities different priors (the rows of a confusion "
            "matrix favour the diagonal)"
        )

    def predict_proba(self, q: Beliefs) -> Array:
        """Probabilities of the categories of a new z."""
        return q.of(variables_of("p", self.p, "dirichlet")).mean

    def predict(self, q: Beliefs) -> Array:
        """The most probable category of a new z."""
        return np.asarray(self.predict_proba(q).argmax(axis=-1))

    def log_predictive(self, q: Beliefs, z: Categories) -> Array:
        """Log probabilities of z."""
        return q.log_z(self.attach(z))


def n_rows(batch: Batch) -> int:
    """How many rows of probabilities each factor has."""
    k = batch.table.shape[1] - (not batch.data)
    return 1 if k == 1 else k - 1


def observed(name: str, value: Categories, K: int) -> Index:
    """Observed categories: whole numbers from 0 to K - 1."""
    given = np.asarray(value)
    if isinstance(value, Linear) or given.dtype.kind not in "iu":
        raise TypeError(
            f"{name} is {_checks.describe(value)}; allowed: categorical variables, or observed "
            f"categories, whole numbers from 0 to {K - 1}"
        )
    if given.size == 0 or given.min() < 0 or given.max() >= K:
        shown = f"holds {given.min()} to {given.max()}" if given.size else "is empty"
        raise ValueError(f"{name} {shown}; allowed: whole numbers from 0 to {K - 1}")
    return np.ascontiguousarray(given, dtype=np.intp)


def categories(name: str, value: Categories, K: int) -> Variables | Index:
    """Categorical variables with K categories, or observed ones."""
    if value is None:
        raise ValueError(f"{name} is None; allowed: categorical variables, or whole numbers")
    if not isinstance(value, Variables):
        return observed(name, value, K)
    if variables_of(name, value, "categorical").width != K:
        raise ValueError(
            f"{name} has {value.width} categories; allowed: {K}, as the probabilities have"
        )
    return value


def chosen(match: str, rows: dict[str, Variables], x: Variables | None, z: Categories) -> Batch:
    """Factors P_xz of rows of probabilities, by their names. x: None if there is one row."""
    K = next(iter(rows.values())).width
    given = categories("z", z, K)
    neighbours: dict[str, tuple[Argument, *tuple[str, ...]]] = {
        name: (row, "dirichlet") for name, row in rows.items()
    }
    data: dict[str, AnyArray] = {}
    if x is not None:
        neighbours["x"] = (x, "categorical")
    if isinstance(given, Variables):
        neighbours["z"] = (given, "categorical")
        numbers = rows_of(neighbours)
    else:
        numbers = rows_of(neighbours, z=given.shape)
        data["z"] = np.broadcast_to(given, numbers.shape[:-1]).ravel()
    return plain_batch(Category(None, match), numbers, data)._replace(bounded=True)


def chosen_by(match: str, P: Variables, x: Categories, z: Categories) -> Batch:
    """Factors P_xz of a table of probabilities (..., categories of x)."""
    if not P.ndim:
        raise ValueError(
            "p is a single Dirichlet variable; allowed: (..., K), one for each category of x (for "
            "one variable epfast.graph.Category)"
        )
    n = P.shape[-1]
    given = categories("x", x, n) if n > 1 else observed("x", x, n)
    if isinstance(given, Variables):
        return chosen(match, {f"p[..., {k}]": P[..., k] for k in range(n)}, given, z)
    # a category that is observed selects the row
    shape = together(**{"leading axes of p": P.shape[:-1], "x": given.shape})
    places = np.broadcast_to(P.numbers, (*shape, n)), np.broadcast_to(given, shape)[..., None]
    numbers = np.take_along_axis(*places, axis=-1)[..., 0]
    return chosen(match, {"p": Variables(P.graph, P.family, numbers, P.width)}, None, z)

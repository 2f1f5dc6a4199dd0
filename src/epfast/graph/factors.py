"""Factors of a graph, and how a batch of them is made of what the user gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray
from scipy import sparse

from epfast import _checks
from epfast._arrays import Array
from epfast._core.graph import GaussianBatch, GraphBatch, LinearBatch
from epfast.graph.variables import (
    Form,
    Index,
    Linear,
    Part,
    Terms,
    Variables,
    entries_of,
    joined,
    merged,
)
from epfast.losses import Gaussian, Interval, Loss, Probit, resolve


class Batch(NamedTuple):
    """Factors of one kind that were added together; row by row the same in all arrays."""

    #: its number among those of its graph
    key: int
    #: the kind: a factor of this module, or a loss on a linear form
    factor: Any
    #: neighbours of each factor; for others than linear forms the coefficients are 1
    terms: Terms
    #: numbers of each factor, with its rows along the first axis
    data: dict[str, Array]
    #: rows as they were added: some may have been removed since
    rows: Index
    scheme: Any = None
    #: blocks with a full covariance: a form over one is a neighbour, with its number in ``terms``
    parts: tuple[Part, ...] = ()

    @property
    def n(self) -> int:
        return len(self.rows)

    def taken(self, which: Any) -> Batch:
        """Select factors."""
        return self._replace(
            terms=self.terms.taken(which),
            data={name: value[which] for name, value in self.data.items()},
            rows=self.rows[which],
            parts=tuple(part.taken(which) for part in self.parts),
        )

    def copy(self) -> Batch:
        """Copy the arrays: the user's may change before the fit."""
        return self._replace(
            terms=self.terms.taken(slice(None)),
            data={name: value.copy() for name, value in self.data.items()},
            parts=tuple(part._replace(rows=part.rows.copy()) for part in self.parts),
        )


class Added(NamedTuple):
    """What adding a factor gives: its batch, and what becomes of the variables."""

    batch: Batch
    #: times of variables: (numbers, times)
    times: tuple[Index, Array] | None = None


def chain_times(terms: Terms) -> tuple[Index, Array] | None:
    """Times of variables that forms of two neighbours each make a chain, as x[1:] - x[:-1]."""
    if len(terms.starts) < 3 or not (terms.counts == 2).all():
        return None
    pairs = terms.variables.reshape(-1, 2)
    if not (np.abs(np.diff(pairs, axis=1)) == 1).all():
        return None
    numbers = np.unique(pairs)
    return numbers, numbers.astype(np.float64)


class Kind:
    """Base of the kinds of factors; one is a definition, a batch has its neighbours and numbers."""

    #: attributes that batches need beside their own numbers: what a file holds of the kind
    kept: ClassVar[tuple[str, ...]] = ()
    #: whether the core fits them, without Python
    compiled: ClassVar[bool] = True
    #: whether factors of a batch may share a site
    shares: ClassVar[bool] = True

    def attach(self, graph: str, key: int, /, *neighbours: Any, **data: Any) -> Added:
        """Check neighbours and numbers, and make the batch."""
        raise NotImplementedError

    def sweep(self, batch: Batch, at: Index, tied: bool) -> GraphBatch:
        """The batch for the core, in the order of the program."""
        raise NotImplementedError

    def defines(self, batch: Batch) -> Index:
        """Variables whose own priors go as long as the batch is there."""
        return np.empty(0, dtype=np.intp)

    def refuses_power(self, batch: Batch) -> str | None:
        """Why a batch allows no power but 1; None: it does."""
        return None

    @property
    def learned(self) -> Any:
        """Operators that learn the messages, as :class:`LearnedMessages`; None: nothing learns."""
        return None

    def with_learned(self, learned: Any) -> Kind:
        """The same kind with other operators."""
        raise NotImplementedError

    def kinds(self, batch: Batch) -> NDArray[np.uint8]:
        """0 or 1 for each factor: those of a kind go side by side where they may."""
        return np.zeros(batch.n, dtype=np.uint8)

    def first_sites(self, batch: Batch) -> Array | None:
        """Sites to begin with where the prior of a variable is flat, natural parameters, (n, k).

        None: flat ones. For factors whose messages to such variables have no moments.
        """
        return None

    @property
    def bounded(self) -> bool:
        """Whether no factor exceeds 1."""
        return False

    def symmetry(self, batch: Batch, prior: Callable[[Index], Array], alone: Any) -> str:
        """Why EP stays where it begins, at what is no mode of the posterior; empty if it moves.

        prior: natural parameters of Gaussian variables, (n, 2); alone: of each variable of the
        graph whether no factor of another kind is about it.
        """
        return ""


#: coefficients below do not overflow where some of a form add up
LARGE = 1e290


def check_instance(factor: Any) -> None:
    """Refuse a class in place of a factor."""
    if isinstance(factor, type) and issubclass(factor, (Kind, Loss)):
        raise TypeError(
            f"factor is the class {factor.__name__}; allowed: an instance, {factor.__name__}()"
        )


def form_of(graph: str, name: str, value: Any, blocks: bool = False) -> Form:
    """A linear form of this graph; blocks: whether it may be over blocks."""
    if not isinstance(value, Linear):
        raise TypeError(
            f"{name} is {_checks.describe(value)}; allowed: a linear form over Gaussian variables "
            "of the graph, as s[i] - s[j]"
        )
    form = value.form()
    if form.graph != graph:
        raise ValueError(f"{name} is over variables of another graph; allowed: those of this one")
    if form.size == 0:
        raise ValueError(f"{name} is empty; allowed: one form or more")
    if form.parts and not blocks:
        raise TypeError(
            f"{name} is over a block; allowed here: forms over scalar Gaussian variables (forms "
            "over blocks go with losses, Between and Noise)"
        )
    coefficient = form.terms.coefficient
    if not np.abs(coefficient).max(initial=0.0) < LARGE:
        coefficient = merged(form.terms).coefficient
    numbers = (coefficient, form.offset, *(entries_of(part.rows) for part in form.parts))
    if not all(np.isfinite(array).all() for array in numbers):
        raise ValueError(f"{name} overflows: a coefficient or an offset is infinite; allowed: less")
    return form


def neighbours_of(form: Form) -> tuple[Terms, tuple[Part, ...]]:
    """Neighbours of factors of forms: scalar variables, then what each has of a block."""
    terms, n = merged(form.terms), form.size
    for part in form.parts:
        whole = Terms(np.arange(n + 1), np.full(n, part.block, dtype=np.intp), np.ones(n))
        terms = joined(terms, whole) if len(terms.variables) else whole
    if (terms.counts == 0).any():
        raise ValueError("form has no variable in some row; allowed: one variable or more")
    return terms, form.parts


def per_row(name: str, value: Any, form: Form, **limits: Any) -> Array:
    """A number for each form, from one for all or an array that broadcasts."""
    if isinstance(value, Linear):
        raise TypeError(
            f"{name} is {value!r}; allowed: numbers. Noise of unknown precision is the factor "
            "Noise(tau) of epfast.graph, on y - form"
        )
    given = _checks.real_array(name, value)
    try:
        spread = np.broadcast_to(given, form.shape)
    except ValueError:
        raise ValueError(
            f"{name} has shape {given.shape}; allowed: a number, or one for each form, {form.shape}"
        ) from None
    numbers = _checks.array(name, np.ravel(spread), shape=(form.size,))
    least = limits.get("least")
    if least is not None and not (numbers >= least).all():
        raise ValueError(f"{name} holds {numbers.min():g}; allowed: numbers >= {least:g}")
    return numbers


def scalar_loss(loss: Any) -> Loss:
    """A loss of one latent value, by name too."""
    found = resolve(loss)
    if found.latents != 1:
        raise ValueError(
            f"loss is {found!r}, with several latent values; allowed: losses of one, or several "
            "factors"
        )
    return found


#: variance of a form without noise, where a likelihood needs one
NO_NOISE = 1e-150


def loss_with_noise(loss: Any, noise: Any) -> tuple[Loss, Any]:
    """A loss of one latent value beside the noise of its form, None: not given.

    A loss by name whose own noise is Gaussian has that of the form in its place.
    """
    found = scalar_loss(loss)
    if noise is None:
        return found, 0.0
    if not (isinstance(loss, str) and found.in_units_of_y) or isinstance(noise, Linear):
        return found, noise
    kind = type(found).__name__
    if not isinstance(found, Gaussian | Interval):
        raise ValueError(
            f"noise is given beside {loss!r}, a loss with a width of its own; allowed: "
            f"losses.{kind}(...) with that width, whose form noise adds to, or no noise"
        )
    given = _checks.real_array("noise", noise)
    if not (given > 0.0).all():
        raise ValueError(
            f"noise holds {np.min(given):g}; allowed beside {loss!r}, whose variance it is: "
            f"numbers > 0 (noise on the form of a variance 1: losses.{kind}())"
        )
    return found.with_parameters(variance=NO_NOISE), noise


def with_responses(form: Form, y: Any) -> tuple[Form, Any]:
    """Forms and responses of one shape, responses as rows, (n,) or (n, width).

    They broadcast, as in NumPy. An axis of y beyond those of the form (beyond the first, where the
    form is a single one) holds the numbers of one response.
    """
    if y is None:
        raise ValueError("y is None; allowed: a response for each form")
    given = np.asarray(y)
    axes = max(1, len(form.shape))
    width = given.shape[axes:]
    try:
        shape = np.broadcast_shapes(form.shape, given.shape[:axes])
    except ValueError:
        raise ValueError(
            f"y has shape {given.shape}; allowed: what goes with forms of shape {form.shape}"
        ) from None
    wide = form.broadcast(shape)
    if wide.size == 0:
        raise ValueError(f"y has shape {given.shape}; allowed: one response or more")
    return wide, np.broadcast_to(given, shape + width).reshape(wide.size, *width)


def responses_of(loss: Loss, y: Any, shape: tuple[int, ...]) -> Array:
    """Responses of a loss, (n, width), n the forms of an array of this shape."""
    if y is None:
        raise ValueError("y is None; allowed: a response for each form")
    given, n, wide = np.asarray(y), math.prod(shape), shape or (1,)
    width = given.shape[len(wide) :]
    try:
        spread = np.broadcast_to(given, wide + width)
    except ValueError:
        raise ValueError(
            f"y has shape {given.shape}; allowed: what goes with forms of shape {shape}"
        ) from None
    flat = spread.reshape(n, *width)
    return loss.observed(flat, n)


@dataclass(frozen=True)
class LinearFactor(Kind):
    """A loss or likelihood of the library on linear forms, h = sum_j a_j x_j + offset + noise."""

    kept: ClassVar[tuple[str, ...]] = ("loss",)
    loss: Loss

    def attach(
        self,
        graph: str,
        key: int,
        form: Any = None,
        y: Any = None,
        *,
        noise: Any = 0.0,
        scheme: Any = "exact",
    ) -> Added:
        h = form_of(graph, "form", form, blocks=True)
        chosen = scheme
        reason = chosen.refuses(self.loss, "row")
        if reason is not None:
            raise ValueError(reason)
        h, flat = with_responses(h, y)
        data = {
            "offset": h.offset.copy(),
            "noise": per_row("noise", noise, h, least=0.0),
            "y": np.ascontiguousarray(self.loss.observed(flat, h.size)),
        }
        terms, parts = neighbours_of(h)
        if type(self.loss) is Gaussian and self.loss.beta == 1.0:
            # a variance more; y has a share of that of the loss for each row
            with np.errstate(over="ignore"):
                share = data["noise"] / self.loss.variance
            if not np.isfinite(share).all():
                raise ValueError(
                    f"noise is {data['noise'].max():.2g} beside {self.loss!r}, and their ratio "
                    "overflows; allowed: variances of moderate size"
                )
            data["y"][:, 1] += share
            data["noise"] = np.zeros(h.size)
        if type(self.loss) is Probit and chosen.integrates and data["noise"].any():
            # Phi(y h) with noise s^2 on h is Phi(y h / sqrt(1 + s^2))
            shrink = 1.0 / np.sqrt(1.0 + data["noise"])
            coefficient = terms.coefficient * np.repeat(shrink, terms.counts)
            terms = terms._replace(coefficient=coefficient)
            data |= {"offset": data["offset"] * shrink, "noise": np.zeros(h.size)}
        batch = Batch(key, self, terms, data, np.arange(h.size), chosen, parts)
        return Added(batch, times=None if parts else chain_times(terms))

    def refuses_power(self, batch: Batch) -> str | None:
        if not batch.data["noise"].any():
            return None
        return f"factors of {type(self.loss).__name__} with noise on their forms"

    def sweep(self, batch: Batch, at: Index, tied: bool) -> GraphBatch:
        terms, data = batch.terms, batch.data
        places = at[terms.variables]
        if type(self.loss) is Gaussian and batch.scheme.integrates and self.loss.beta == 1.0:
            y, variance = data["y"].T
            return GaussianBatch(
                terms.starts,
                places,
                terms.coefficient,
                y - data["offset"],
                variance * self.loss.variance + data["noise"],
                tied,
            )
        return LinearBatch(
            batch.scheme.tilted(self.loss),
            terms.starts,
            places,
            terms.coefficient,
            data["offset"],
            data["noise"],
            data["y"],
            tied,
        )

    @property
    def bounded(self) -> bool:
        return self.loss.bounded


@dataclass(frozen=True)
class Between(Kind):
    """A form h that is known to lie between two ends: t = 1 there, 0 elsewhere.

    Parameters
    ----------
    lower, upper : float or array_like
        The ends, of all forms or of each; infinite ones leave a side open.

    Notes
    -----
    Added as ``g.add(Between(lower, upper), form, noise=variance)``: a factor for each form; ends
    and noise are numbers or arrays that broadcast with it. With noise the factor is the probability
    that h plus N(0, noise) lies there. The moments are exact, far out too.

    Raises
    ------
    ValueError
        When added, for ends that are NaN or not lower < upper, or noise < 0.

    Examples
    --------
    A game that was drawn: performances, ratings with noise, differ by 0.5 at most.

    >>> import epfast
    >>> g = epfast.Graph()
    >>> s = g.gaussian(2, mean=[1.0, 0.0])
    >>> batch = g.add(epfast.graph.Between(-0.5, 0.5), s[0] - s[1], noise=2.0)
    >>> g.fit()[s].mean.round(2)
    array([0.76, 0.24])

    References
    ----------
    Herbrich, Minka & Graepel (2006), TrueSkill: a Bayesian skill rating system.
    """

    lower: Any = -np.inf
    upper: Any = np.inf

    def attach(self, graph: str, key: int, form: Any = None, *, noise: Any = 0.0) -> Added:
        h = form_of(graph, "form", form, blocks=True)
        ends = []
        for name in ("lower", "upper"):
            given = _checks.real_array(name, getattr(self, name))
            try:
                ends.append(np.broadcast_to(given, h.shape).ravel().astype(np.float64))
            except ValueError:
                raise ValueError(
                    f"{name} has shape {given.shape}; allowed: a number, or one for each form, "
                    f"{h.shape}"
                ) from None
        if np.isnan(ends).any() or not (ends[0] < ends[1]).all():
            raise ValueError("lower is not below upper; allowed: lower < upper, no NaN")
        data = {
            "y": np.stack(ends, axis=1),
            "offset": h.offset.copy(),
            "noise": per_row("noise", noise, h, least=0.0),
        }
        terms, parts = neighbours_of(h)
        return Added(Batch(key, self, terms, data, np.arange(h.size), None, parts))

    def sweep(self, batch: Batch, at: Index, tied: bool) -> GraphBatch:
        terms, data = batch.terms, batch.data
        return LinearBatch(
            Interval(NO_NOISE).tilted(),
            terms.starts,
            at[terms.variables],
            terms.coefficient,
            data["offset"],
            data["noise"],
            data["y"],
            tied,
            True,
        )

    def kinds(self, batch: Batch) -> NDArray[np.uint8]:
        return np.asarray(np.isfinite(batch.data["y"]).all(axis=1), dtype=np.uint8)

    def refuses_power(self, batch: Batch) -> str | None:
        return "factors Between with noise" if batch.data["noise"].any() else None

    @property
    def bounded(self) -> bool:
        return True


#: seconds that the search for values that all bounds allow may take
SEARCH = 10.0
#: room between bounds that a linear program resolves, in units of their largest
ROOM = 1e-7
#: factors that an error names
MOST_NAMED = 6


def check_room(batches: tuple[Batch, ...], at: Index) -> None:
    """Refuse factors Between without noise that no values of the variables fulfil together.

    at: (n_variables + 1,), a column of the variables' own for each, blocks with their d columns. By
    a linear program: the most room t that is left at every end, whose multipliers are those of the
    factors that exclude one another.
    """
    rows, ends, names = [], [], []
    for batch in batches:
        if not isinstance(batch.factor, Between):
            continue
        taken = batch.taken(batch.data["noise"] == 0.0)
        if not taken.n:
            continue
        terms, owner = taken.terms, np.repeat(np.arange(taken.n), taken.terms.counts)
        scalar = ~np.isin(terms.variables, [part.block for part in taken.parts])
        entries = (owner[scalar], at[terms.variables[scalar]])
        shape = (taken.n, int(at[-1]))
        matrix = sparse.csr_array((terms.coefficient[scalar], entries), shape)
        for part in taken.parts:
            inner = sparse.coo_array(part.rows)
            a = terms.coefficient[terms.variables == part.block][inner.row]
            matrix += sparse.csr_array(
                (a * inner.data, (inner.row, at[part.block] + inner.col)), shape
            )
        rows.append(matrix)
        ends.append(taken.data["y"] - taken.data["offset"][:, None])
        names += [f"factor {row} of batch {batch.key}" for row in taken.rows]
    if len(names) < 2:
        return
    matrix, bounds = sparse.vstack(rows, format="csr"), np.concatenate(ends)
    size = np.abs(bounds[np.isfinite(bounds)]).max(initial=1e-300)
    # matrix x + t <= upper, -matrix x + t <= -lower
    high, low = (np.flatnonzero(np.isfinite(bounds[:, k])) for k in (1, 0))
    both = sparse.vstack([matrix[high], -matrix[low]], format="csr")
    ones = sparse.csr_array(np.ones((both.shape[0], 1)))
    most = np.concatenate([bounds[high, 1], -bounds[low, 0]]) / size
    cost = np.zeros(both.shape[1] + 1)
    cost[-1] = -1.0
    found = scipy.optimize.linprog(
        cost,
        sparse.hstack([both, ones], format="csr"),
        most,
        bounds=[*[(None, None)] * both.shape[1], (None, 1.0)],
        method="highs",
        options={"time_limit": SEARCH},
    )
    if found.status != 0 or -found.fun > ROOM:
        return
    active = np.abs(found.ineqlin.marginals) > ROOM
    guilty = [names[k] for k in np.unique(np.concatenate([high, low])[active])]
    raise ValueError(
        f"the evidence is 0: {', '.join(guilty[:MOST_NAMED])} (Between, without noise) leave no "
        "room to one another; allowed: ends that some values of all variables fulfil, or noise="
    )


def variables_of(graph: str, name: str, value: Any, *families: str) -> Variables:
    """Variables of this graph, of one of the families."""
    if not isinstance(value, Variables):
        raise TypeError(
            f"{name} is {_checks.describe(value)}; allowed: variables of the graph, "
            + " or ".join(families)
        )
    if value.graph != graph:
        raise ValueError(f"{name} is of another graph; allowed: variables of this one")
    if value.family not in families:
        raise TypeError(
            f"{name} is a {value.family} variable; allowed here: {' or '.join(families)}"
        )
    if value.size == 0:
        raise ValueError(f"{name} is empty; allowed: one variable or more")
    return value


def rows_of(*neighbours: Variables, names: tuple[str, ...]) -> tuple[tuple[int, ...], Index]:
    """The shape that variables broadcast to, and their numbers, (n, neighbours)."""
    try:
        shape = np.broadcast_shapes(*(v.shape for v in neighbours))
    except ValueError:
        shapes = " and ".join(f"{n} {v.shape}" for n, v in zip(names, neighbours, strict=True))
        raise ValueError(
            f"shapes of {shapes} do not go together; allowed: shapes that NumPy broadcasts"
        ) from None
    numbers = [np.broadcast_to(v.numbers, shape).ravel() for v in neighbours]
    return shape, np.stack(numbers, axis=1)

"""Factors with categorical neighbours: tables, and mixtures of losses on linear forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from epfast import _checks, losses, schemes
from epfast._arrays import Array
from epfast._core.graph import GraphBatch
from epfast._core.graph_factors import MixtureBatch, TableBatch
from epfast.graph.factors import (
    Added,
    Batch,
    Kind,
    form_of,
    loss_with_noise,
    responses_of,
    rows_of,
    variables_of,
)
from epfast.graph.factors_continuous import NUMBER, numbers_of, plain_terms
from epfast.graph.variables import Form, Index, Linear, Terms, merged
from epfast.losses import Loss

#: entries of a table; each costs in every sweep
MOST_ENTRIES = 1 << 24


@dataclass(frozen=True, eq=False)
class Table(Kind):
    """A table of categorical variables: t(h_1, .., h_m) = p[h_1, .., h_m].

    Parameters
    ----------
    p : array_like of shape (..., K_1, .., K_m)
        Numbers >= 0, a probability or not, for variables with K_1, .., K_m categories; leading axes
        broadcast with the variables, as with likelihoods of one variable each. Where zeros leave
        no state possible, the fit raises a ValueError.

    Notes
    -----
    Added as ``g.add(Table(p), h_1, .., h_m)``: arrays of categorical variables that broadcast, a
    factor for each row. Exact sums, of m times as many terms as p has entries.

    Raises
    ------
    ValueError
        When added, for a p whose last axes are not the categories of the variables, with numbers
        below 0, or all 0.

    Examples
    --------
    A hidden chain of three states that tend to stay, the last of which is seen:

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

    kept: ClassVar[tuple[str, ...]] = ("p",)
    p: Any

    def __post_init__(self) -> None:
        given = _checks.real_array("p", self.p)
        object.__setattr__(self, "p", np.array(given, dtype=np.float64))

    def attach(self, graph: str, key: int, *h: Any) -> Added:
        if not h:
            raise ValueError("a table has no variable; allowed: one categorical variable or more")
        names = tuple(f"h_{j + 1}" for j in range(len(h)))
        neighbours = [
            variables_of(graph, name, value, "categorical")
            for name, value in zip(names, h, strict=True)
        ]
        p = self.p
        sizes = tuple(v.width for v in neighbours)
        if p.shape[max(0, p.ndim - len(sizes)) :] != sizes or p.size > MOST_ENTRIES:
            raise ValueError(
                f"p has shape {p.shape}; allowed: (..., {', '.join(map(str, sizes))}), the "
                f"categories of the variables along the last axes, and {MOST_ENTRIES} entries"
            )
        lead = p.shape[: p.ndim - len(sizes)]
        tables = p.reshape(-1, math.prod(sizes))
        if not (np.isfinite(p).all() and (p >= 0.0).all() and (tables > 0.0).any(axis=1).all()):
            raise ValueError(
                "p holds a number below 0, NaN or infinity, or a table of zeros; allowed: finite "
                "numbers >= 0"
            )
        shape, numbers = rows_of(*neighbours, names=names)
        try:
            shape = np.broadcast_shapes(shape, lead)
        except ValueError:
            raise ValueError(
                f"p has leading axes {lead}; allowed: those that broadcast with {shape}"
            ) from None
        numbers = np.stack([np.broadcast_to(v.numbers, shape).ravel() for v in neighbours], axis=1)
        ordered = np.sort(numbers, axis=1)
        if (np.diff(ordered, axis=1) == 0).any():
            raise ValueError("a table has a variable twice; allowed: different ones")
        with np.errstate(divide="ignore"):
            logs = np.log(tables)
        data = {}
        if len(tables) > 1:
            places = np.arange(len(tables)).reshape(lead)
            data["log_p"] = logs[np.broadcast_to(places, shape).ravel()]
        return Added(Batch(key, self, plain_terms(numbers), data, np.arange(len(numbers))))

    def sweep(self, batch: Batch, at: Index, tied: bool) -> GraphBatch:
        terms = batch.terms
        m = int(terms.starts[1])
        shape = np.array(self.p.shape[self.p.ndim - m :], dtype=np.intp)
        with np.errstate(divide="ignore"):
            logs = batch.data["log_p"] if batch.data else np.log(self.p.reshape(1, -1))
        return TableBatch(
            terms.starts,
            at[terms.variables],
            np.full(m * batch.n, NUMBER["categorical"]),
            np.tile(shape, batch.n),
            logs,
            shape,
            tied,
        )

    @property
    def bounded(self) -> bool:
        return bool(np.max(self.p) <= 1.0)


@dataclass(frozen=True, eq=False)
class Mixture(Kind):
    """A gate: the category h tells which of K linear forms has the response.

    The factor is prod_p t_h(x_hp; y_p) with t_k a loss or likelihood of the library: clusters,
    outliers, mixtures of regressions.

    Parameters
    ----------
    h : Variables
        Categorical variables, one for each response (or one for all).
    loss : Loss, str, or a sequence of K of them
        Of each category; the same for all if there is one.
    vectors : bool
        Whether the last axis of forms, y and noise are the numbers of one response, independent
        given its category.

    Notes
    -----
    Added as ``g.add(Mixture(h, loss), forms, y, noise=None)`` with ``forms`` a list of K linear
    forms (variables too, or numbers, of what is known), each an array that broadcasts with y. Noise
    on forms is as in :meth:`Graph.add <epfast.Graph.add>`. The moments are exact where those of the
    losses are: the sum over the categories, whose beliefs are ``post[h].probabilities``.

    With equal priors of all categories their equal beliefs are a fixed point of EP, at which it
    stays: give the components different prior means.

    Examples
    --------
    >>> import numpy as np
    >>> from epfast import losses
    >>> from epfast.graph import Graph, Mixture
    >>> y = np.array([-2.1, 1.9, 2.2, -1.7, 2.0])
    >>> g = Graph()
    >>> centre, label = g.gaussian(mean=[-1.0, 1.0], variance=4.0), g.categorical(5, n=2)
    >>> batch = g.add(Mixture(label, losses.Gaussian(0.25)), list(centre), y)
    >>> post = g.fit()
    >>> post[centre].mean.round(2)
    array([-1.87,  2.01])
    >>> post[label].probabilities.argmax(axis=1)
    array([0, 1, 1, 0, 1])

    References
    ----------
    Minka (2001), Expectation propagation for approximate Bayesian inference (clutter). Minka & Winn
    (2008), Gates.
    """

    kept: ClassVar[tuple[str, ...]] = ("loss", "vectors")
    h: Any
    loss: Any
    vectors: bool = False

    def attach(
        self, graph: str, key: int, forms: Any = None, y: Any = None, *, noise: Any = None
    ) -> Added:
        h = variables_of(graph, "h", self.h, "categorical")
        _checks.flag("vectors", self.vectors)
        kind, noise = self.with_noise(noise)
        each = kind.losses(h.width)
        parts = forms_of(graph, forms, h.width)
        shape, rows = self.shapes(h.shape, parts, y, noise, each)
        n, P = math.prod(rows), math.prod(shape) // max(1, math.prod(rows))
        h_numbers = np.broadcast_to(h.numbers, rows).reshape(n, 1)
        terms, inner = assembled([form.broadcast(shape) for form in parts], n, P)
        data = {
            **inner,
            "offset": columns([form.broadcast(shape).offset for form in parts], n, P),
            "noise": np.tile(
                numbers_of("noise", noise, shape, least=0.0).reshape(n, P), (1, h.width)
            ),
        }
        for k, loss in enumerate(each):
            data[f"y{k}"] = responses_of(loss, y, shape).reshape(n, P, -1)
        return Added(Batch(key, kind, joined_with(terms, h_numbers), data, np.arange(n)))

    def with_noise(self, noise: Any) -> tuple[Mixture, Any]:
        """The kind, with losses by name as they are beside this noise; and the noise."""
        if noise is None:
            return self, 0.0
        many = isinstance(self.loss, Sequence) and not isinstance(self.loss, str)
        found = [loss_with_noise(loss, noise)[0] for loss in (self.loss if many else [self.loss])]
        return replace(self, loss=found if many else found[0]), noise

    def losses(self, K: int) -> list[Loss]:
        """The loss of each of K categories."""
        many = isinstance(self.loss, Sequence) and not isinstance(self.loss, str)
        if many and len(self.loss) != K:
            raise ValueError(f"loss has {len(self.loss)} losses; allowed: one, or {K} of them")
        found = (
            [losses.resolve(loss) for loss in self.loss]
            if many
            else [losses.resolve(self.loss)] * K
        )
        for loss in found:
            if loss.latents != 1:
                raise ValueError(f"loss is {loss!r}, with several latent values; allowed: one")
        return found

    def shapes(
        self, h: tuple[int, ...], forms: list[Form], y: Any, noise: Any, each: list[Loss]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shapes of the forms, all broadcast, and of the responses."""
        given = [form.shape for form in forms] + [np.shape(noise)]
        try:
            return self._shapes(h, given, np.shape(y))
        except ValueError:
            raise ValueError(
                f"h has shape {h}, forms {[form.shape for form in forms]}, y {np.shape(y)} and "
                f"noise {np.shape(noise)}; allowed: shapes that NumPy broadcasts"
                + (", h without the last axis" if self.vectors else "")
            ) from None

    def _shapes(
        self, h: tuple[int, ...], forms: list[tuple[int, ...]], y: tuple[int, ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        if self.vectors:
            shape = np.broadcast_shapes(*forms, (*h, 1))
            # y may have numbers of each response behind
            shape = np.broadcast_shapes(shape, y) if len(y) <= max(1, len(shape)) else shape
            return shape, shape[:-1]
        shape = np.broadcast_shapes(*forms, h)
        shape = np.broadcast_shapes(shape, y) if len(y) <= max(1, len(shape)) else shape
        return shape, shape

    def sweep(self, batch: Batch, at: Index, tied: bool) -> GraphBatch:
        terms, data = batch.terms, batch.data
        K = sum(name.startswith("y") for name in data)
        last = terms.starts[1:] - 1
        kind = np.zeros(len(terms.variables), dtype=np.intc)
        size = np.full(len(terms.variables), 2, dtype=np.intp)
        kind[last], size[last] = NUMBER["categorical"], K
        exact = schemes.resolve("exact")
        return MixtureBatch(
            terms.starts,
            at[terms.variables],
            kind,
            size,
            [exact.tilted(loss) for loss in self.losses(K)],
            data["coefficient"],
            data["which"],
            data["offset"],
            data["noise"],
            [np.ascontiguousarray(flat(data[f"y{k}"])) for k in range(K)],
            tied,
        )

    def symmetry(self, batch: Batch, prior: Callable[[Index], Array], alone: Any) -> str:
        terms, data = batch.terms, batch.data
        K = sum(name.startswith("y") for name in data)
        each = self.losses(K)
        last = np.zeros(len(terms.variables), dtype=bool)
        last[terms.starts[1:] - 1] = True
        about = terms.variables[~last]
        means = prior(about)
        # of each part of a response the categories have forms alike
        form = (batch.n, K, -1)
        a = np.sort(data["coefficient"], axis=2).reshape(*form, data["coefficient"].shape[2])
        b, c = data["offset"].reshape(form), data["noise"].reshape(form)
        alike = all((v == v[:, :1]).all() for v in (a, b, c)) and (means == means[0]).all()
        shared = len(np.unique(about)) < K
        if shared or not alike or any(loss != each[0] for loss in each) or not alone[about].all():
            return ""
        return (
            "the categories of a Mixture have equal priors of what they are about: their equal "
            "beliefs are a fixed point, at which EP stays if the categories are as probable; give "
            "the components different prior means"
        )

    @property
    def bounded(self) -> bool:
        many = isinstance(self.loss, Sequence) and not isinstance(self.loss, str)
        return all(losses.resolve(x).bounded for x in (self.loss if many else [self.loss]))


def flat(y: Array) -> Array:
    """Responses (n, P, width) as rows."""
    return y.reshape(y.shape[0] * y.shape[1], y.shape[2])


def forms_of(graph: str, forms: Any, k: int) -> list[Form]:
    """The k forms of a mixture, one for each category; numbers are forms over nothing."""
    if isinstance(forms, Linear) or not isinstance(forms, Sequence) or len(forms) != k:
        given = f"{len(forms)} of them" if isinstance(forms, Sequence) else type(forms).__name__
        raise TypeError(
            f"forms is {given}; allowed: a list of {k} linear forms or numbers, one for each "
            "category of h"
        )
    return [
        form_of(graph, f"forms[{j}]", form) if isinstance(form, Linear) else _constant(j, form)
        for j, form in enumerate(forms)
    ]


def _constant(k: int, value: Any) -> Form:
    """A form without variables."""
    name = f"forms[{k}]"
    numbers = np.asarray(_checks.real_array(name, value), dtype=np.float64)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name} holds NaN or infinity; allowed: finite numbers")
    starts = np.zeros(numbers.size + 1, dtype=np.intp)
    none = Terms(starts, np.empty(0, dtype=np.intp), np.empty(0))
    return Form("", numbers.shape, none, numbers.ravel())


def columns(parts: list[Array], n: int, P: int) -> Array:
    """Numbers of the P forms of each category, (n, K P)."""
    return np.concatenate([part.reshape(n, P) for part in parts], axis=1)


def joined_with(terms: Terms, last: Index) -> Terms:
    """Terms with one more neighbour of each factor at the end."""
    n = len(last)
    starts = terms.starts + np.arange(n + 1)
    at = np.delete(np.arange(starts[-1]), starts[1:] - 1)
    variables = np.empty(starts[-1], dtype=np.intp)
    variables[at], variables[starts[1:] - 1] = terms.variables, last[:, 0]
    return Terms(starts, variables, np.ones(len(variables)))


def assembled(forms: list[Form], n: int, P: int) -> tuple[Terms, dict[str, NDArray[Any]]]:
    """The variables of each factor, and of each of its K P forms the terms by their places there.

    forms: of each category, n P in all.
    """
    row, form, variable, coefficient = [], [], [], []
    for k, each in enumerate(forms):
        terms = merged(each.terms)
        place = np.repeat(np.arange(n * P), terms.counts)
        row.append(place // P)
        form.append(k * P + place % P)
        variable.append(terms.variables)
        coefficient.append(terms.coefficient)
    rows, fs, variables, a = (np.concatenate(x) for x in (row, form, variable, coefficient))
    if not len(rows):
        raise ValueError("forms have no variable; allowed: one variable or more")
    once = np.stack([rows, fs // P, variables], axis=1)
    if len(np.unique(once, axis=0)) < len(once):
        raise ValueError(
            "forms have a variable twice in a vector of a category; allowed: once in each"
        )
    pairs, back = np.unique(np.stack([rows, variables], axis=1), axis=0, return_inverse=True)
    counts = np.bincount(pairs[:, 0], minlength=n)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
    local = back.ravel() - starts[rows]
    # terms of a form one after the other
    order = np.lexsort((fs, rows))
    rows, fs, local, a = rows[order], fs[order], local[order], a[order]
    group = rows * len(forms) * P + fs
    first = np.searchsorted(group, group)
    turn = np.arange(len(group)) - first
    shape = (n, len(forms) * P, int(turn.max()) + 1)
    dense, which = np.zeros(shape), np.zeros(shape, dtype=np.intp)
    dense[rows, fs, turn], which[rows, fs, turn] = a, local
    terms = Terms(starts, np.ascontiguousarray(pairs[:, 1]).astype(np.intp), np.ones(len(pairs)))
    return terms, {"coefficient": dense, "which": which}

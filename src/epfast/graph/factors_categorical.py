"""Factors with categorical neighbours: tables, and mixtures of losses on linear forms."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks, losses, schemes
from epfast._arrays import AnyArray, Array, Given
from epfast._core.graph import GraphBatch
from epfast._core.graph_factors import MixtureBatch, TableBatch
from epfast.graph.factors import (
    Batch,
    Beliefs,
    Edges,
    Kind,
    Neighbour,
    form_of,
    log_t,
    loss_with_noise,
    numbers_of,
    plain_batch,
    rows_of,
    scalar_loss,
    variables_of,
    with_responses,
)
from epfast.graph.factors_dirichlet import MATCHES, Categories, chosen_by
from epfast.graph.variables import (
    Index,
    Linear,
    LinearForm,
    Terms,
    Variables,
    finite_numbers,
    joined,
    merged,
    no_terms,
    together,
)
from epfast.inference.files import restore_responses
from epfast.losses import Loss, Ordinal
from epfast.losses.names import LossGiven

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

    @property
    def bounded(self) -> bool:
        return bool(np.max(self.entries) <= 1.0)

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
        return plain_batch(self, numbers, data)

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


#: linear forms or numbers, one of each category
FormsGiven = Sequence[Linear | ArrayLike] | None


class Components(NamedTuple):
    """What a mixture is made of, broadcast to common shapes."""

    #: with objects in place of names of losses
    kind: Mixture
    #: of each category
    losses: list[Loss]
    forms: list[LinearForm]
    #: variance of the noise on each form
    noise: Array
    #: of the forms, and of the responses
    shape: tuple[int, ...]
    rows: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class Mixture(Kind):
    """A gate: the category h selects which of K linear forms has the response.

    The factor is prod_p t_h(x_hp; y_p), where t_k is a loss or likelihood of the library. It makes
    clusters, outliers and mixtures of regressions.

    Parameters
    ----------
    h : Variables
        Categorical variables, one for each response or one for all.
    loss : Loss, str, or sequence of K of them
        The loss of each category, or one for all.
    vectors : bool, default=False
        Whether the last axis of forms, y and noise holds the numbers of one response. They are
        independent given the category.

    Notes
    -----
    Added as ``g.add(Mixture(h, loss), forms, y, noise=None)``. ``forms`` is a list of K arrays that
    broadcast with y. Each is a linear form, variables, or known numbers. ``noise`` is as in
    :meth:`Graph.add <epfast.Graph.add>`. The moments are sums over the categories, exact if those
    of the losses are. ``post[h].probabilities`` are the beliefs about the categories.

    If all components have equal priors, their equal beliefs are a fixed point of EP. Give the
    components different prior means.

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

    pattern: ClassVar[str] = "n*c"
    h: Variables | None
    loss: LossGiven | Sequence[LossGiven]
    vectors: bool = False

    @property
    def bounded(self) -> bool:
        return all(losses.resolve(loss).bounded for loss in self.given)

    @property
    def given(self) -> Sequence[LossGiven]:
        """The loss of each category as given, or one for all."""
        loss = self.loss
        return [loss] if isinstance(loss, str) or not isinstance(loss, Sequence) else loss

    def losses(self, K: int) -> list[Loss]:
        """The loss of each of K categories."""
        if len(self.given) not in (1, K):
            raise ValueError(f"loss has {len(self.given)} losses; allowed: one, or {K} of them")
        resolved = [scalar_loss(loss) for loss in self.given]
        return resolved if len(resolved) == K else resolved * K

    def known(self, forms: FormsGiven, y: Given, noise: Given) -> Components:
        """The arguments, broadcast to common shapes."""
        h = variables_of("h", self.h, "categorical")
        _checks.flag("vectors", self.vectors)
        kind, extra = self, 0.0 if noise is None else noise
        if noise is not None:
            kind = replace(self, loss=[loss_with_noise(loss, noise)[0] for loss in self.given])
        each, parts = kind.losses(h.width), forms_of(forms, h.width)
        shapes = {f"forms[{k}]": form.shape for k, form in enumerate(parts)}
        shapes |= {"noise": np.shape(extra), "h": (*h.shape, 1) if self.vectors else h.shape}
        shape = together(**shapes)
        of_y = () if y is None else np.shape(y)
        if len(of_y) <= max(1, len(shape)):  # else the last axes are within a response
            shape = together(**shapes, y=of_y)
        rows = shape[:-1] if self.vectors else shape
        variance = numbers_of("noise", extra, shape, least=0.0)
        forms_of_each = [form.broadcast(shape) for form in parts]
        return Components(kind, each, forms_of_each, variance, shape, rows)

    def attach(self, forms: FormsGiven = None, y: Given = None, *, noise: Given = None) -> Batch:
        kind, each, parts, extra, shape, rows = self.known(forms, y, noise)
        assert self.h is not None  # it was checked
        n, K = math.prod(rows), len(each)
        P = math.prod(shape) // max(1, n)
        terms, data = assembled(parts, n, P)
        data["offset"] = np.concatenate([form.offset.reshape(n, P) for form in parts], axis=1)
        data["noise"] = np.tile(extra.reshape(n, P), (1, K))
        _, given = with_responses(parts[0], y)
        for k, loss in enumerate(each):
            data[f"y{k}"] = loss.observed(given, n * P).reshape(n, P, -1)
        labels = np.broadcast_to(self.h.numbers, rows)[..., None]
        kind = replace(kind, h=None, loss=tuple(each))
        batch = plain_batch(kind, labels, data)
        return batch._replace(terms=joined(terms, batch.terms))

    def check(self, batch: Batch, families: Index, sizes: Index) -> None:
        super().check(batch, families, sizes)
        data, n = batch.data, batch.n
        K, P = self.categories(batch)
        if (sizes[batch.last] != K).any() or {*data} - {f"y{k}" for k in range(K)} != SHARED:
            raise ValueError("categories of a Mixture differ in their number")
        for name in ("coefficient", "offset", "noise"):
            flat = _checks.array(name, data[name].reshape(n, -1), shape=(n, None))
            data[name] = flat.reshape(data[name].shape)
        which = data["which"]
        if (data["noise"] < 0.0).any() or which.dtype.kind not in "iu" or which.min() < 0:
            raise ValueError("noise or which holds numbers below 0")
        for k, loss in enumerate(self.losses(K)):
            y = np.ascontiguousarray(data[f"y{k}"].reshape(n * P, -1))
            data[f"y{k}"] = restore_responses(y, loss).reshape(n, P, -1)

    def categories(self, batch: Batch) -> tuple[int, int]:
        """The number of categories, and of forms of each."""
        K = len(batch.data) - len(SHARED)
        return K, batch.data["offset"].shape[1] // K

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        data, (K, P) = batch.data, self.categories(batch)
        exact = schemes.resolve("exact")
        return MixtureBatch(
            *edges,
            [exact.tilted(loss) for loss in self.losses(K)],
            data["coefficient"],
            data["which"],
            data["offset"],
            data["noise"],
            [np.ascontiguousarray(data[f"y{k}"].reshape(batch.n * P, -1)) for k in range(K)],
            tied,
        )

    def log_density(self, batch: Batch, theta: Array) -> Array:
        terms, data, n = batch.terms, batch.data, batch.n
        K, P = self.categories(batch)
        h = theta[:, terms.variables[batch.last]].astype(np.intp)
        which: Index = terms.variables[terms.starts[:-1, None, None] + data["which"]]
        total = np.zeros(len(theta))
        for k, loss in enumerate(self.losses(K)):
            part = slice(k * P, (k + 1) * P)
            forms = np.einsum(
                "npm,knpm->knp", data["coefficient"][:, part], theta[:, which[:, part]]
            )
            forms = (forms + data["offset"][:, part]).reshape(len(theta), n * P)
            y = np.ascontiguousarray(data[f"y{k}"].reshape(n * P, -1))
            logs = log_t(loss, y, forms, data["noise"][:, part].ravel())
            logs = logs.reshape(len(theta), n, P).sum(axis=2)
            total += np.where(h == k, logs, 0.0).sum(axis=1)
        return total

    def symmetry(
        self, batch: Batch, prior: Callable[[Index], Array], alone: NDArray[np.bool_]
    ) -> str:
        terms, data = batch.terms, batch.data
        K, _ = self.categories(batch)
        each = self.losses(K)
        about = np.delete(terms.variables, batch.last)
        means = prior(about)
        # whether the categories have equal forms, for each part of a response
        form = (batch.n, K, -1)
        a = np.sort(data["coefficient"], axis=2).reshape(*form, data["coefficient"].shape[2])
        b, c = data["offset"].reshape(form), data["noise"].reshape(form)
        alike = all((v == v[:, :1]).all() for v in (a, b, c)) and (means == means[0]).all()
        shared = len(np.unique(about)) < K
        if shared or not alike or any(loss != each[0] for loss in each) or not alone[about].all():
            return ""
        return (
            "the components of a Mixture have equal priors, and their equal beliefs are a fixed "
            "point, at which EP stays if the categories are equally probable; give the components "
            "different prior means"
        )

    def predict(self, q: Beliefs, forms: FormsGiven, *, noise: Given = None) -> Array:
        """Mean of y."""
        means, share = self.by_category(q, "predict", forms, noise)
        return np.asarray((share * means).sum(axis=0))

    def log_predictive(
        self, q: Beliefs, forms: FormsGiven, y: Given, *, noise: Given = None
    ) -> Array:
        """Log density of y."""
        return q.log_z(self.attach(forms, y, noise=noise))

    def predict_variance(self, q: Beliefs, forms: FormsGiven, *, noise: Given = None) -> Array:
        """Variance of y."""
        means, share = self.by_category(q, "predict", forms, noise)
        within, _ = self.by_category(q, "predict_variance", forms, noise)
        between = (means - (share * means).sum(axis=0)) ** 2
        return np.asarray((share * (within + between)).sum(axis=0))

    def predict_proba(self, q: Beliefs, forms: FormsGiven, *, noise: Given = None) -> Array:
        """Probabilities of labels or classes."""
        predicted, share = self.by_category(q, "predict_proba", forms, noise)
        return np.asarray((share * predicted).sum(axis=0))

    def by_category(
        self, q: Beliefs, method: str, forms: FormsGiven, noise: Given
    ) -> tuple[Array, Array]:
        """Predictions of the losses, and weights, with the categories along the first axis."""
        for loss in map(scalar_loss, self.given):
            if method != "predict_proba" and (loss.by_margin or isinstance(loss, Ordinal)):
                raise ValueError(
                    f"loss is {loss!r}, whose y are classes without a mean; allowed for such a "
                    "mixture: predict_proba, log_predictive"
                )
        _, each, parts, extra, shape, rows = self.known(forms, None, noise)
        assert self.h is not None  # it was checked
        predicted = []
        for loss, form in zip(each, parts, strict=True):
            # known numbers are a form of no graph
            mean, variance = q.latent(form) if form.graph else (form.offset, extra * 0.0)
            predicted.append(getattr(loss, method)(mean.ravel(), variance.ravel() + extra))
        found = np.stack(predicted)
        found = found.reshape(len(each), *shape, *found.shape[2:])
        share = np.exp(np.broadcast_to(q.of(self.h).logits, (*rows, len(each))))
        share = np.moveaxis(share, -1, 0)
        return found, share.reshape(share.shape + (1,) * (found.ndim - share.ndim))


#: data of a Mixture other than the responses of each category
SHARED = {"coefficient", "which", "offset", "noise"}


def forms_of(forms: FormsGiven, k: int) -> list[LinearForm]:
    """The k forms of a mixture, one for each category. Numbers are forms without variables."""
    if isinstance(forms, Linear) or not isinstance(forms, Sequence) or len(forms) != k:
        given = f"{len(forms)} of them" if isinstance(forms, Sequence) else type(forms).__name__
        raise TypeError(
            f"forms is {given}; allowed: a list of {k} linear forms or numbers, one for each "
            "category of h"
        )
    made = []
    for j, form in enumerate(forms):
        name = f"forms[{j}]"
        if isinstance(form, Linear):
            made.append(form_of(name, form))
        else:
            numbers = finite_numbers(form, name)
            made.append(LinearForm("", numbers.shape, no_terms(numbers.size), numbers.ravel()))
    return made


def assembled(forms: list[LinearForm], n: int, P: int) -> tuple[Terms, dict[str, AnyArray]]:
    """The variables of each factor, and the terms of its K P forms by places among these.

    forms: those of each category, n P in all.
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
        raise ValueError("forms have no variables; allowed: one variable or more")
    once = np.stack([rows, fs // P, variables], axis=1)
    if len(np.unique(once, axis=0)) < len(once):
        raise ValueError(
            "forms have a variable twice in a vector of a category; allowed: once in each"
        )
    pairs, back = np.unique(np.stack([rows, variables], axis=1), axis=0, return_inverse=True)
    counts = np.bincount(pairs[:, 0], minlength=n)
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.intp)
    local = back.ravel() - starts[rows]
    # the terms of a form follow one another
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

"""Gates: the category h selects which of K linear forms has the response, prod_p t_h(x_hp; y_p).

- Given h the forms have the moments of their losses. The tilted belief sums over h, and is
  projected to the variables of the forms and to h.
- The evidence is the log of this sum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from epfast import _checks, schemes
from epfast._arrays import AnyArray, Array, Given
from epfast._core.graph import GraphBatch
from epfast._core.graph_factors import (
    MixtureBatch,
)
from epfast.graph.arguments import form_of, numbers_of, variables_of, with_responses
from epfast.graph.catalogue.linear import log_likelihood_at, loss_with_noise, scalar_loss
from epfast.graph.factors import Batch, Beliefs, Edges, Kind, plain_batch
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

#: linear forms or numbers, one of each category
FormsGiven = Sequence[Linear | ArrayLike] | None


class Components(NamedTuple):
    """What a mixture is made of, broadcast to common shapes."""

    h: Variables
    #: of each category
    losses: list[Loss]
    forms: list[LinearForm]
    #: variance of the noise on each form
    noise: Array
    #: of the forms, and of the responses
    shape: tuple[int, ...]
    rows: tuple[int, ...]


#: data of a Mixture other than the responses of each category
SHARED = {"coefficient", "which", "offset", "noise"}


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
    def each(self) -> Sequence[LossGiven]:
        """The loss of each category as given, or one for all."""
        loss = self.loss
        return [loss] if isinstance(loss, str) or not isinstance(loss, Sequence) else loss

    def losses(self, K: int, noise: Given = None) -> list[Loss]:
        """The loss of each of K categories, with its noise."""
        if len(self.each) not in (1, K):
            raise ValueError(f"loss has {len(self.each)} losses; allowed: one, or {K} of them")
        resolved = [loss_with_noise(loss, noise)[0] for loss in self.each]
        return resolved if len(resolved) == K else resolved * K

    def components(self, forms: FormsGiven, y: Given, noise: Given) -> Components:
        """The arguments, broadcast to common shapes."""
        h = variables_of("h", self.h, "categorical")
        _checks.flag("vectors", self.vectors)
        extra = 0.0 if noise is None else noise
        each = self.losses(h.width, noise)
        parts = forms_of(forms, h.width)
        shapes = {f"forms[{k}]": form.shape for k, form in enumerate(parts)}
        shapes |= {"noise": np.shape(extra), "h": (*h.shape, 1) if self.vectors else h.shape}
        shape = together(**shapes)
        of_y = () if y is None else np.shape(y)
        if len(of_y) <= max(1, len(shape)):  # else the last axes are within a response
            shape = together(**shapes, y=of_y)
        rows = shape[:-1] if self.vectors else shape
        variance = numbers_of("noise", extra, shape, least=0.0)
        forms_of_each = [form.broadcast(shape) for form in parts]
        return Components(h, each, forms_of_each, variance, shape, rows)

    def attach(self, forms: FormsGiven, y: Given, *, noise: Given = None) -> Batch:
        found = self.components(forms, y, noise)
        each, rows = found.losses, found.rows
        n, K = math.prod(rows), len(each)
        P = math.prod(found.shape) // max(1, n)
        terms, data = assembled(found.forms, n, P)
        data["offset"] = np.concatenate([form.offset.reshape(n, P) for form in found.forms], axis=1)
        data["noise"] = np.tile(found.noise.reshape(n, P), (1, K))
        _, given = with_responses(found.forms[0], y)
        for k, loss in enumerate(each):
            data[f"y{k}"] = loss.observed(given, n * P).reshape(n, P, -1)
        labels = np.broadcast_to(found.h.numbers, rows)[..., None]
        kind = replace(self, h=None, loss=tuple(each))
        batch = plain_batch(kind, labels, data)
        bounded = all(loss.bounded for loss in each)
        return batch._replace(terms=joined(terms, batch.terms), bounded=bounded)

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
            logs = log_likelihood_at(loss, y, forms, data["noise"][:, part].ravel())
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
        for loss in map(scalar_loss, self.each):
            if method != "predict_proba" and (loss.by_margin or isinstance(loss, Ordinal)):
                raise ValueError(
                    f"loss is {loss!r}, whose y are classes without a mean; allowed for such a "
                    "mixture: predict_proba, log_predictive"
                )
        found = self.components(forms, None, noise)
        each = []
        for loss, form in zip(found.losses, found.forms, strict=True):
            # known numbers are a form of no graph
            mean, variance = q.latent(form) if form.graph else (form.offset, 0.0 * found.noise)
            each.append(getattr(loss, method)(mean.ravel(), variance.ravel() + found.noise))
        predicted = np.stack(each)
        predicted = predicted.reshape(len(each), *found.shape, *predicted.shape[2:])
        share = np.exp(np.broadcast_to(q.of(found.h).logits, (*found.rows, len(each))))
        share = np.moveaxis(share, -1, 0)
        return predicted, share.reshape(share.shape + (1,) * (predicted.ndim - share.ndim))


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

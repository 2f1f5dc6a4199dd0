"""Factors of a graph: the base of their kinds, batches, and factors of linear forms."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from epfast import _checks, schemes
from epfast._arrays import CSR, AnyArray, Array, Given, Which, entries_of
from epfast._core.graph import GraphBatch, InformationBatch, LinearBatch
from epfast.graph.variables import (
    BlockTerms,
    Index,
    Linear,
    LinearForm,
    Terms,
    Variables,
    ends,
    joined,
    merged,
    spread,
    together,
)
from epfast.inference.files import restore_responses
from epfast.inference.loop import is_sharp
from epfast.losses import Gaussian, Interval, Loss, Probit, resolve
from epfast.losses.names import LossGiven
from epfast.schemes import Scheme

if TYPE_CHECKING:
    from epfast.graph.posterior import GraphPosterior
    from epfast.graph.problem import GraphProblem

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)
#: letters of the families, in patterns of neighbours: Gaussian, gamma, beta, categorical
LETTERS = np.frombuffer(b"ngbc", dtype=np.uint8)


#: variables that a user gives as neighbours of factors. Left out, or other things, are refused
Neighbour = Linear | None
#: what a user gives of a factor: neighbours, forms, numbers, a scheme
Argument = Neighbour | Given | Sequence[Linear | ArrayLike] | Scheme


class Gaussians(NamedTuple):
    """Factors of forms that are Gaussians of these: peak exp(-precision (value - x'w)^2 / 2)."""

    #: (n,) each
    value: Array
    precision: Array
    log_peak: Array


class Batch(NamedTuple):
    """Factors of one kind that were added together. Row i of each array is of factor i."""

    #: its number in the graph
    key: int
    factor: Kind
    #: neighbours of each factor. The coefficients are 1 except for linear forms
    terms: Terms
    #: data of the factors, with the factors along the first axis
    data: dict[str, Array]
    #: places of the factors when they were added, (n,). Some may have been removed since. Before
    #: they are added, in the shape of the neighbours
    rows: Index
    #: parts of the forms over blocks. ``terms`` has the number of the block as a neighbour
    parts: tuple[BlockTerms, ...] = ()
    #: numbers of variables and their times, by which factors are ordered. The graph takes these
    #: over. None: there are no times
    times: tuple[Index, Array] | None = None

    @property
    def n(self) -> int:
        return self.rows.size

    @property
    def block(self) -> int:
        """The number of the block that the factors have as their only neighbour. -1: of others."""
        alone = len(self.parts) == 1 and len(self.terms.variables) == self.n
        return self.parts[0].block if alone else -1

    @property
    def last(self) -> Index:
        """The place of the last neighbour of each factor."""
        return self.terms.starts[1:] - 1

    @property
    def table(self) -> Index:
        """Neighbours, (n, k), of factors that all have k of them."""
        return self.terms.variables.reshape(self.n, -1)

    def select(self, which: Which) -> Batch:
        """Select factors."""
        return self._replace(
            terms=self.terms.select(which),
            data={name: value[which] for name, value in self.data.items()},
            rows=self.rows[which],
            parts=tuple(part.select(which) for part in self.parts),
        )

    def copy(self) -> Batch:
        """Copy the arrays, since the user may change them before the fit."""
        return self._replace(
            terms=self.terms.select(slice(None)),
            data={name: value.copy() for name, value in self.data.items()},
            rows=self.rows.ravel(),
            parts=tuple(part._replace(rows=part.rows.copy()) for part in self.parts),
            times=None,
        )


class Edges(NamedTuple):
    """Neighbours of the factors of a batch, as the core takes them."""

    #: (n + 1,), where those of each factor begin
    starts: Index
    #: for each neighbour where its natural parameters begin, its family, and their number
    at: Index
    kind: NDArray[np.intc]
    size: Index


def chain_times(batch: Batch) -> tuple[Index, Array] | None:
    """Times of variables if the forms make a chain, as x[1:] - x[:-1]. None otherwise."""
    terms = batch.terms
    if batch.parts or len(terms.starts) < 3 or not (terms.counts == 2).all():
        return None
    pairs = terms.variables.reshape(-1, 2)
    if not (np.abs(np.diff(pairs, axis=1)) == 1).all():
        return None
    numbers = np.unique(pairs)
    return numbers, numbers.astype(np.float64)


class Kind:
    """Base of the kinds of factors. A kind is a definition, and a batch has the data.

    A kind makes a batch from the arguments of the user (``attach``), gives it to the core for
    sweeps (``sweep``), and has its log density for the check. The kind in a batch is without what
    the batch has, so that files hold it once. Predictions are optional methods with
    the names of those of a posterior. They take the posterior and the arguments of :meth:`attach`,
    without the observations.
    """

    #: families of the neighbours of a factor, as a regular expression of LETTERS
    pattern: ClassVar[str] = "[ngbc]+"
    #: names of data with a number for each factor, (n,), and their least allowed values
    numbers: ClassVar[dict[str, float]] = {}
    #: whether factors of a batch may share a site
    shares: ClassVar[bool] = True
    #: operators that learn the messages, as ``LearnedMessages``. None: no operators
    learned: ClassVar[Any] = None
    #: what errors recommend in place of predictions
    instead: ClassVar[str] = "none, as it has no predictions"

    @property
    def bounded(self) -> bool:
        """Whether no factor exceeds 1."""
        return False

    @property
    def sharp(self) -> bool:
        """Whether moments change sharply, as those of quick Laplace."""
        return False

    def attach(self, model: GraphProblem, /, *neighbours: Any, **data: Any) -> Batch:
        """Check neighbours and data, and make the batch."""
        raise NotImplementedError

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        """The batch for the core, in the order of the program."""
        raise NotImplementedError

    def log_density(self, batch: Batch, theta: Array) -> Array:
        """Log of the product of the factors at draws of all variables, (k,) of (k, variables)."""
        raise ValueError(
            f"batch {batch.key} is of {type(self).__name__}, a constraint that no draw fulfils; "
            "allowed for a check: factors with a density"
        )

    def log_z(self, post: GraphPosterior, /, *neighbours: Argument, **data: Argument) -> Array:
        """Log of the integral of each factor over the beliefs. The arguments are as for ``add``."""
        return post.log_integrals(self.attach(post.problem, *neighbours, **data))

    def check(self, batch: Batch, families: Index, sizes: Index) -> None:
        """Check a batch that was read from a file, and convert its data to doubles.

        families, sizes: of the neighbours. A form over a block counts as a Gaussian neighbour.
        """
        letters = np.insert(LETTERS[families], batch.terms.starts[1:], ord(";"))
        if not re.fullmatch(f"(?:{self.pattern};)+", letters.tobytes().decode()):
            raise ValueError(f"neighbours of {type(self).__name__} are of other families")
        for name, least in self.numbers.items():
            batch.data[name] = _checks.array(name, batch.data[name], shape=(batch.n,))
            if not (batch.data[name] >= least).all():
                raise ValueError(f"{name} holds {batch.data[name].min():g}; allowed: >= {least:g}")

    def defines(self, batch: Batch) -> Index:
        """Variables that the batch defines, so that their own priors are ignored."""
        return np.empty(0, dtype=np.intp)

    def check_power(self, batch: Batch, power: float) -> None:
        """Refuse a power that the factors of a batch do not support."""

    def gaussians(self, batch: Batch) -> Gaussians | None:
        """Factors of forms over a block alone as Gaussians of x'w. None: they are others."""
        return None

    def labels(self, batch: Batch) -> NDArray[np.uint8]:
        """0 or 1 for each factor. Factors of the same label are vectorised together."""
        return np.zeros(batch.n, dtype=np.uint8)

    def first_sites(self, batch: Batch) -> Array | None:
        """First sites where the prior of a variable is flat, natural parameters, (terms, 2).

        Used by factors whose messages to such variables have no moments. None: flat sites.
        """
        return None

    def symmetry(
        self, batch: Batch, prior: Callable[[Index], Array], alone: NDArray[np.bool_]
    ) -> str:
        """Why EP stays at its start although this is not a mode. Empty if it moves.

        prior: returns natural parameters of Gaussian variables, (n, 2). alone: for each variable of
        the graph whether it has no factor of another kind.
        """
        return ""


def check_spread(batch: Batch) -> None:
    """Refuse a batch with variances of 0, which has no density."""
    if not batch.data["variance"].all():
        raise ValueError(
            f"batch {batch.key} is of {type(batch.factor).__name__} with variance 0, a constraint "
            "that no draw fulfils; allowed for a check: variances above 0"
        )


def only_power_1(power: float, where: bool | np.bool_, what: str) -> None:
    """Refuse powers other than 1 if ``where`` is true. what: the factors, for the message."""
    if power != 1.0 and where:
        raise ValueError(f"power is {power:g}; allowed for {what}: 1")


#: coefficients below this do not overflow in sums over a form
LARGE = 1e290


def kind_of(factor: Kind | LossGiven) -> Kind:
    """The kind of a factor that a user gives: a loss is a factor of a form. Refuses a class."""
    if isinstance(factor, type) and issubclass(factor, (Kind, Loss)):
        raise TypeError(
            f"factor is the class {factor.__name__}; allowed: an instance, {factor.__name__}()"
        )
    return factor if isinstance(factor, Kind) else LinearFactor(factor)


def form_of(
    model: GraphProblem, name: str, value: Linear | None, blocks: bool = False
) -> LinearForm:
    """Check a linear form of this graph. blocks: whether it may be over blocks."""
    if not isinstance(value, Linear):
        raise TypeError(
            f"{name} is {_checks.describe(value)}; allowed: a linear form over Gaussian variables "
            "of the graph, such as s[i] - s[j]"
        )
    form = value.form()
    model.check_handle(name, value)
    if form.size == 0:
        raise ValueError(f"{name} is empty; allowed: one form or more")
    if form.parts and not blocks:
        raise TypeError(
            f"{name} is over a block; allowed for this factor: forms over scalar Gaussian "
            "variables (losses, Between and Noise take forms over blocks)"
        )
    coefficient = form.terms.coefficient
    if not np.abs(coefficient).max(initial=0.0) < LARGE:
        coefficient = merged(form.terms).coefficient
    numbers = (coefficient, form.offset, *(entries_of(part.rows) for part in form.parts))
    if not all(np.isfinite(array).all() for array in numbers):
        raise ValueError(
            f"{name} overflows: a coefficient or an offset is infinite; allowed: smaller numbers"
        )
    return form


def neighbours_of(form: LinearForm) -> tuple[Terms, tuple[BlockTerms, ...]]:
    """Neighbours of factors of forms: scalar variables, then blocks."""
    terms, n = merged(form.terms), form.size
    for part in form.parts:
        whole = Terms(np.arange(n + 1), np.full(n, part.block, dtype=np.intp), np.ones(n))
        terms = joined(terms, whole) if len(terms.variables) else whole
    if (terms.counts == 0).any():
        raise ValueError("form has a row without variables; allowed: one variable or more in each")
    return terms, form.parts


def numbers_of(
    name: str,
    value: Given,
    shape: tuple[int, ...],
    least: float = -np.inf,
    above: bool = False,
    finite: bool = True,
) -> Array:
    """A number for each factor, (n,), from a number for all or an array that broadcasts."""
    if isinstance(value, Linear):
        raise TypeError(
            f"{name} is {value!r}; allowed: numbers. For noise of unknown precision add the factor "
            "epfast.graph.Noise(tau) of the form y - form"
        )
    given = spread(name, _checks.real_array(name, value), shape)
    numbers = _checks.array(name, np.ravel(given), shape=(math.prod(shape),), finite=finite)
    if least > -np.inf and not ((numbers > least) if above else (numbers >= least)).all():
        sign = ">" if above else ">="
        raise ValueError(f"{name} holds {numbers.min():g}; allowed: numbers {sign} {least:g}")
    return numbers


def scalar_loss(loss: LossGiven) -> Loss:
    """A loss of one latent value, from an object or a name."""
    resolved = resolve(loss)
    if resolved.latents != 1:
        raise ValueError(
            f"loss is {resolved!r}, with several latent values; allowed: losses of one latent value"
        )
    return resolved


#: variance in place of 0, for likelihoods that need a positive one
NO_NOISE = 1e-150
#: variance in place of that of a flat form
VAST = 1e100


def loss_with_noise(loss: LossGiven, noise: Given) -> tuple[Loss, ArrayLike]:
    """A loss of one latent value, and the noise on its form. noise: None if it was not given.

    If the loss is a name and has a Gaussian variance of its own, ``noise`` replaces this variance.
    """
    resolved = scalar_loss(loss)
    if noise is None:
        return resolved, 0.0
    if not (isinstance(loss, str) and resolved.in_units_of_y) or isinstance(noise, Linear):
        return resolved, noise
    kind = type(resolved).__name__
    if not isinstance(resolved, Gaussian | Interval):
        raise ValueError(
            f"noise is given with {loss!r}, a loss with a width of its own; allowed: an object, "
            f"losses.{kind}(...), to which noise is added, or no noise"
        )
    given = _checks.real_array("noise", noise)
    if not (given > 0.0).all():
        raise ValueError(
            f"noise holds {np.min(given):g}; allowed with the name {loss!r}, whose variance it is: "
            f"numbers > 0 (to add noise to a variance of 1, give losses.{kind}())"
        )
    return resolved.with_parameters(variance=NO_NOISE), noise


def with_responses(form: LinearForm, y: Given) -> tuple[LinearForm, AnyArray]:
    """Broadcast forms and responses to one shape. Responses become rows, (n,) or (n, width).

    Axes of y beyond those of the form hold the numbers of one response. A single form counts as
    having one axis.
    """
    if y is None:
        raise ValueError("y is None; allowed: a response for each form")
    given = np.asarray(y)
    axes = max(1, len(form.shape))
    width = given.shape[axes:]
    shape = together(y=given.shape[:axes], form=form.shape)
    wide = form.broadcast(shape)
    if wide.size == 0:
        raise ValueError(f"y has shape {given.shape}; allowed: one response or more")
    return wide, np.broadcast_to(given, shape + width).reshape(wide.size, *width)


def batch_of_forms(kind: Kind, key: int, h: LinearForm, noise: ArrayLike, y: Array) -> Batch:
    """A batch of factors of forms with noise."""
    data = {
        "offset": h.offset.copy(),
        "noise": numbers_of("noise", noise, h.shape, least=0.0),
        "y": y,
    }
    terms, parts = neighbours_of(h)
    return Batch(key, kind, terms, data, np.arange(h.size).reshape(h.shape), parts)


def expanded(batch: Batch, column: Index) -> Batch:
    """The batch with columns of draws as neighbours. A block is replaced by its d columns.

    column: of each variable. Of a block its first column.
    """
    terms, parts = batch.terms, []
    counts = np.ones(len(terms.variables), dtype=np.intp)
    for part in batch.parts:
        edges, rows = np.flatnonzero(terms.variables == part.block), sparse.csr_array(part.rows)
        counts[edges] = np.diff(rows.indptr)
        parts.append((edges, rows))
    starts = ends(counts)
    variables = np.repeat(column[terms.variables], counts)
    coefficient = np.repeat(terms.coefficient, counts)
    for edges, rows in parts:
        shift = np.repeat(starts[edges] - rows.indptr[:-1], counts[edges])
        place = shift + np.arange(rows.nnz)
        variables[place] += rows.indices
        coefficient[place] *= rows.data
    return batch._replace(terms=Terms(starts[terms.starts], variables, coefficient), parts=())


def form_matrix(batch: Batch, width: int, keep: Which = slice(None)) -> CSR:
    """Coefficients of the forms of an expanded batch, CSR (n, width). keep: which neighbours."""
    terms = batch.terms
    owner = np.repeat(np.arange(batch.n), terms.counts)
    entries = terms.coefficient[keep], (owner[keep], terms.variables[keep])
    forms: CSR = sparse.csr_array(entries, shape=(batch.n, width))
    return forms


def forms_at(batch: Batch, theta: Array, keep: Which = slice(None)) -> Array:
    """Linear forms of the factors of an expanded batch, (k, n), at draws (k, width)."""
    forms = form_matrix(batch, theta.shape[1], keep) @ theta.T
    return np.asarray(forms.T + batch.data["offset"])


def log_normal(x: Array, variance: Array) -> Array:
    """Log densities of N(0, variance)."""
    return np.asarray(-0.5 * x * x / variance - 0.5 * np.log(variance) - HALF_LOG_2PI)


def log_t(loss: Loss, y: Array, h: Array, noise: Array) -> Array:
    """log t(h; y) at h (k, n), with the noise on h integrated out."""
    logs = -loss.values(np.ascontiguousarray(h.T), y).T
    noisy = np.flatnonzero(noise > 0.0)
    if len(noisy):
        k = len(h)
        responses = np.ascontiguousarray(np.repeat(y[noisy], k, axis=0))
        means = np.ascontiguousarray(h[:, noisy].T).ravel()
        smooth = loss.tilted().call(responses, means, np.repeat(noise[noisy], k))[0]
        logs[:, noisy] = np.reshape(smooth, (len(noisy), k)).T
    return np.asarray(logs)


def latent(post: GraphPosterior, h: LinearForm, noise: ArrayLike) -> tuple[Array, Array]:
    """Mean and variance of forms with noise, (n,)."""
    mean, variance = post.predict_latent(h)
    return mean.ravel(), variance.ravel() + numbers_of("noise", noise, h.shape, least=0.0)


def by_loss(method: str) -> Callable[..., Array]:
    """The prediction of a loss at linear forms."""

    def predicted(
        self: LinearFactor, post: GraphPosterior, form: Linear, *, noise: Given = None
    ) -> Array:
        h = form_of(post.problem, "form", form, blocks=True)
        loss, noise = loss_with_noise(self.loss, noise)
        prediction = getattr(loss, method)(*latent(post, h, noise))
        return np.asarray(prediction.reshape(h.shape + prediction.shape[1:]))

    return predicted


@dataclass(frozen=True)
class LinearFactor(Kind):
    """A loss or likelihood of the library on linear forms, h = sum_j a_j x_j + offset + noise."""

    pattern: ClassVar[str] = "n+"
    numbers: ClassVar[dict[str, float]] = {"offset": -np.inf, "noise": 0.0}
    #: as the user gave it. In a batch an object
    loss: Any
    scheme: Any = None

    predict = by_loss("predict")
    predict_variance = by_loss("predict_variance")
    predict_proba = by_loss("predict_proba")

    def log_predictive(
        self, post: GraphPosterior, form: Linear, y: Given, *, noise: Given = None
    ) -> Array:
        h, flat = with_responses(form_of(post.problem, "form", form, True), y)
        loss, noise = loss_with_noise(self.loss, noise)
        logs = loss.log_predictive(loss.observed(flat, h.size), *latent(post, h, noise))
        return np.asarray(logs.reshape(h.shape))

    def attach(
        self,
        model: GraphProblem,
        form: Linear | None = None,
        y: Given = None,
        *,
        noise: Given = None,
        scheme: str | Scheme = "exact",
    ) -> Batch:
        loss, noise = loss_with_noise(self.loss, noise)
        scheme = schemes.resolve(scheme)
        h = form_of(model, "form", form, blocks=True)
        reason = scheme.refuses(loss, "row")
        if reason is not None:
            raise ValueError(reason)
        h, flat = with_responses(h, y)
        responses = np.ascontiguousarray(loss.observed(flat, h.size))
        batch = batch_of_forms(LinearFactor(loss, scheme), model.added, h, noise, responses)
        terms, data = batch.terms, batch.data
        if type(loss) is Gaussian and loss.beta == 1.0:
            # the noise is added to the variance, as a share of that of the loss for each row
            with np.errstate(over="ignore"):
                share = data["noise"] / loss.variance
            if not np.isfinite(share).all():
                raise ValueError(
                    f"noise is {data['noise'].max():.2g} with {loss!r}, and the ratio of the "
                    "variances overflows; allowed: variances of moderate size"
                )
            data["y"][:, 1] += share
            data["noise"] = np.zeros(h.size)
        if type(loss) is Probit and scheme.integrates and data["noise"].any():
            # Phi(y h) with noise s^2 on h is Phi(y h / sqrt(1 + s^2))
            shrink = 1.0 / np.sqrt(1.0 + data["noise"])
            coefficient = terms.coefficient * np.repeat(shrink, terms.counts)
            batch = batch._replace(terms=terms._replace(coefficient=coefficient))
            data |= {"offset": data["offset"] * shrink, "noise": np.zeros(h.size)}
        return batch._replace(times=chain_times(batch))

    def check(self, batch: Batch, families: Index, sizes: Index) -> None:
        super().check(batch, families, sizes)
        reason = self.scheme.refuses(scalar_loss(self.loss), "row")
        if reason is not None:
            raise ValueError(reason)
        batch.data["y"] = restore_responses(batch.data["y"], self.loss)

    def check_power(self, batch: Batch, power: float) -> None:
        what = f"factors of {type(self.loss).__name__} with noise on their forms"
        only_power_1(power, batch.data["noise"].any(), what)
        self.loss.check_power(power)

    def gaussians(self, batch: Batch) -> Gaussians | None:
        data, beta = batch.data, self.loss.beta
        found = self.loss.exact_sites(data["y"])
        if found is None or not self.scheme.integrates or data["noise"].any():
            return None
        value, variance = found
        log_peak = -0.5 * beta * np.log(2.0 * math.pi * variance)
        return Gaussians(value - data["offset"], beta / variance, log_peak)

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        data, a = batch.data, batch.terms.coefficient
        if type(self.loss) is Gaussian and self.scheme.integrates and self.loss.beta == 1.0:
            y, variance = data["y"].T
            variance = variance * self.loss.variance + data["noise"]
            return InformationBatch(edges.starts, edges.at, a, y - data["offset"], variance, tied)
        moments, numbers = self.scheme.tilted(self.loss), (data["offset"], data["noise"], data["y"])
        return LinearBatch(moments, edges.starts, edges.at, a, *numbers, tied)

    def log_density(self, batch: Batch, theta: Array) -> Array:
        h = forms_at(batch, theta)
        return np.asarray(log_t(self.loss, batch.data["y"], h, batch.data["noise"]).sum(axis=1))

    @property
    def bounded(self) -> bool:
        return bool(self.loss.bounded)

    @property
    def sharp(self) -> bool:
        return is_sharp(self.scheme)


@dataclass(frozen=True)
class Between(Kind):
    """A form h that is observed to lie between two bounds: t = 1 there, 0 elsewhere.

    Parameters
    ----------
    lower : float or array_like, default=-inf
        Lower bound, one for all forms or one for each.
    upper : float or array_like, default=inf
        Upper bound, one for all forms or one for each.

    Notes
    -----
    Added as ``g.add(Between(lower, upper), form, noise=variance)``, with a factor for each form.
    Bounds and noise are numbers or arrays that broadcast with the form. With noise the factor is
    the probability that h + N(0, noise) lies between the bounds. The moments are exact, also far in
    the tails.

    Raises
    ------
    ValueError
        When added, for bounds that are NaN or not lower < upper, or for noise < 0.

    Examples
    --------
    A game that was drawn: two performances, which are ratings plus noise, differ by 0.5 at most.

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

    pattern: ClassVar[str] = "n+"
    numbers: ClassVar[dict[str, float]] = {"offset": -np.inf, "noise": 0.0}
    bounded: ClassVar[bool] = True
    loss: ClassVar[Loss] = Interval(NO_NOISE)
    lower: ArrayLike = -np.inf
    upper: ArrayLike = np.inf
    log_density = LinearFactor.log_density

    def attach(
        self, model: GraphProblem, form: Linear | None = None, *, noise: ArrayLike = 0.0
    ) -> Batch:
        h = form_of(model, "form", form, blocks=True)
        ends = [
            numbers_of(name, getattr(self, name), h.shape, finite=False)
            for name in ("lower", "upper")
        ]
        if not (ends[0] < ends[1]).all():
            raise ValueError("lower is not below upper; allowed: lower < upper, no NaN")
        return batch_of_forms(Between(), model.added, h, noise, np.stack(ends, axis=1))

    def check(self, batch: Batch, families: Index, sizes: Index) -> None:
        super().check(batch, families, sizes)
        y = batch.data["y"] = _checks.array("y", batch.data["y"], shape=(batch.n, 2), finite=False)
        if not (y[:, 0] < y[:, 1]).all():
            raise ValueError("lower is not below upper")

    def check_power(self, batch: Batch, power: float) -> None:
        only_power_1(power, batch.data["noise"].any(), "factors Between with noise")

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        data, moments = batch.data, self.loss.tilted()
        numbers = batch.terms.coefficient, data["offset"], data["noise"], data["y"]
        return LinearBatch(moments, edges.starts, edges.at, *numbers, tied, True)

    def labels(self, batch: Batch) -> NDArray[np.uint8]:
        return np.asarray(np.isfinite(batch.data["y"]).all(axis=1), dtype=np.uint8)

    def log_predictive(
        self, post: GraphPosterior, form: Linear, *, noise: ArrayLike = 0.0
    ) -> Array:
        h = form_of(post.problem, "form", form, blocks=True)
        bounds = self.attach(post.problem, h, noise=noise).data["y"]
        mean, variance = latent(post, h, noise)
        logs = self.loss.log_predictive(bounds, mean, np.minimum(variance, VAST))
        return np.asarray(logs.reshape(h.shape))

    def predict_proba(self, post: GraphPosterior, form: Linear, *, noise: ArrayLike = 0.0) -> Array:
        return np.exp(post.log_predictive(self, form, noise=noise))


def variables_of(model: GraphProblem, name: str, value: Neighbour, *families: str) -> Variables:
    """Variables of this graph, of one of the families."""
    if not isinstance(value, Variables):
        raise TypeError(
            f"{name} is {_checks.describe(value)}; allowed: variables of the graph, "
            f"{' or '.join(families)}, not linear forms"
        )
    model.check_handle(name, value)
    if value.family not in families:
        raise TypeError(f"{name} is a {value.family} variable; allowed: {' or '.join(families)}")
    if value.size == 0:
        raise ValueError(f"{name} is empty; allowed: one variable or more")
    return value


def rows_of(
    model: GraphProblem,
    neighbours: Mapping[str, tuple[Neighbour, *tuple[str, ...]]],
    /,
    **beside: tuple[int, ...],
) -> Index:
    """Numbers of variables that broadcast with one another and other arrays, (..., neighbours).

    neighbours: variables by name, each with the families that it may have. beside: shapes of the
    other arrays.
    """
    given = {name: variables_of(model, name, *one) for name, one in neighbours.items()}
    shape = together(**{name: v.shape for name, v in given.items()}, **beside)
    numbers = np.stack([np.broadcast_to(v.numbers, shape) for v in given.values()], axis=-1)
    if not numbers.size:
        raise ValueError(f"the neighbours have shape {shape}; allowed: one factor or more")
    if (np.diff(np.sort(numbers)) == 0).any():
        raise ValueError("a factor has a variable twice; allowed: different variables")
    return numbers


def plain_batch(kind: Kind, key: int, numbers: Index, data: dict[str, Array]) -> Batch:
    """A batch whose factors all have the same number of neighbours, (..., neighbours)."""
    n, k = math.prod(numbers.shape[:-1]), numbers.shape[-1]
    flat = np.ascontiguousarray(numbers, dtype=np.intp).ravel()
    terms = Terms(np.arange(0, n * k + 1, k, dtype=np.intp), flat, np.ones(n * k))
    return Batch(key, kind, terms, data, np.arange(n).reshape(numbers.shape[:-1]))

"""Factors with gamma and beta neighbours, and products of variables."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast._core.graph import GraphBatch
from epfast._core.graph_factors import (
    CompoundGammaBatch,
    LogisticBatch,
    NoiseBatch,
    ProductBatch,
)
from epfast.families import FAMILIES
from epfast.graph.factors import (
    Added,
    Batch,
    Kind,
    chain_times,
    form_of,
    neighbours_of,
    rows_of,
    variables_of,
)
from epfast.graph.variables import Index, Terms, Variables, joined

NUMBER = {name: k for k, name in enumerate(FAMILIES)}
#: how a gamma or beta belief is fitted to the tilted marginal
MATCHES = ("statistics", "moments")


def numbers_of(
    name: str,
    value: Any,
    shape: tuple[int, ...],
    *,
    least: float | None = None,
    above: bool = False,
) -> Array:
    """A finite number for each factor, (n,), from one for all or an array that broadcasts."""
    given = _checks.real_array(name, value)
    try:
        spread = np.broadcast_to(given, shape)
    except ValueError:
        raise ValueError(
            f"{name} has shape {given.shape}; allowed: a number, or one for each factor, {shape}"
        ) from None
    found = _checks.array(name, np.ravel(spread), shape=(int(np.prod(shape)),))
    if least is not None and not ((found > least) if above else (found >= least)).all():
        sign = ">" if above else ">="
        raise ValueError(f"{name} holds {found.min():g}; allowed: numbers {sign} {least:g}")
    return found


def plain_terms(numbers: Index) -> Terms:
    """Neighbours that all factors have as many of, (n, neighbours)."""
    n, k = numbers.shape
    flat = np.ascontiguousarray(numbers, dtype=np.intp).ravel()
    return Terms(np.arange(0, n * k + 1, k, dtype=np.intp), flat, np.ones(n * k))


@dataclass(frozen=True, eq=False)
class Noise(Kind):
    """A form that is Gaussian noise of unknown precision: form ~ N(0, 1 / tau).

    Parameters
    ----------
    tau : Variables
        Gamma variables, or scales, see :meth:`Graph.scale <epfast.Graph.scale>`: one for all forms,
        or an array that broadcasts with them.
    match : {"statistics", "moments"}
        The belief about tau keeps E[log tau] and E[tau] (the projection of EP), or the mean and
        variance.

    Notes
    -----
    Added as ``g.add(Noise(tau), form)``; observations are ``y - form``, a random walk is
    ``x[1:] - x[:-1]``. The moments are integrals over tau. One Gaussian neighbour may have a flat
    cavity, so that states need no prior of their own; where E[1 / tau] is infinite the first
    message to it has the variance 1 / E[tau], and counts as refused while that is so.

    The beliefs keep no correlations. Standard deviations of precisions come out small by some 20 %
    in a local level model with both unknown, and beside a block of d weights too large, by 1.13 for
    d / n = 0.2 and 1.27 for 0.5: see :func:`epfast.fit_hyper`.

    Examples
    --------
    >>> import numpy as np
    >>> from epfast.graph import Graph, Noise
    >>> y = np.array([2.1, 1.9, 2.2, 1.7, 2.0, 2.3])
    >>> g = Graph()
    >>> level, precision = g.gaussian(variance=100.0), g.gamma(shape=1.0, rate=0.1)
    >>> batch = g.add(Noise(precision), y - level)
    >>> post = g.fit()
    >>> post[level].mean.round(2), post[precision].mean.round(1)
    (np.float64(2.03), np.float64(16.6))

    References
    ----------
    West (1987), On scale mixtures of normal distributions: the integral is a Student-t density.
    """

    kept: ClassVar[tuple[str, ...]] = ("match",)
    tau: Any
    match: str = "statistics"

    def __post_init__(self) -> None:
        _checks.choice("match", self.match, MATCHES)

    def attach(self, graph: str, key: int, form: Any = None) -> Added:
        tau = variables_of(graph, "tau", self.tau, "gamma")
        h = form_of(graph, "form", form, blocks=True)
        try:
            shape = np.broadcast_shapes(h.shape, tau.shape)
        except ValueError:
            raise ValueError(
                f"tau has shape {tau.shape}, and form {h.shape}; allowed: shapes that NumPy "
                "broadcasts"
            ) from None
        h = h.broadcast(shape)
        terms, parts = neighbours_of(h)
        n = h.size
        precisions = plain_terms(np.broadcast_to(tau.numbers, shape).reshape(n, 1))
        both = joined(terms, precisions)
        data = {"offset": h.offset.copy()}
        batch = Batch(key, self, both, data, np.arange(n), None, parts)
        return Added(batch, times=None if parts else chain_times(terms))

    def sweep(self, batch: Batch, at: Index, tied: bool) -> GraphBatch:
        terms = batch.terms
        kind = np.zeros(len(terms.variables), dtype=np.intc)
        kind[terms.starts[1:] - 1] = NUMBER["gamma"]
        return NoiseBatch(
            terms.starts,
            at[terms.variables],
            kind,
            np.full(len(kind), 2),
            terms.coefficient,
            batch.data["offset"],
            self.match == "moments",
            tied,
        )


@dataclass(frozen=True)
class Product(Kind):
    """A product of two Gaussian variables: z = x y + N(0, variance).

    Parameters
    ----------
    variance : float or array_like
        Of the noise, >= 0; above 0 where z is observed. With 0 the factor is a constraint, whatever
        the power.

    Notes
    -----
    Added as ``g.add(Product(), x, y, z)``, three arrays of variables, or z an array of numbers, as
    the entries of a matrix that is factorised are. ``z`` may be a variable without a prior of its
    own (``variance=inf``). The moments are integrals over x.

    With equal priors of x and y about 0, (x, y) and (-x, -y) are as good: means of 0 are a fixed
    point of EP. Give means that break the symmetry.

    Raises
    ------
    ValueError
        When added, for a variable that is there twice, a variance < 0, or one of 0 where z is
        numbers.

    Examples
    --------
    >>> import epfast
    >>> g = epfast.Graph()
    >>> x, y = g.gaussian(mean=1.0), g.gaussian(mean=3.0, variance=0.1)
    >>> batch = g.add(epfast.graph.Product(0.1), x, y, 6.0)
    >>> post = g.fit()
    >>> post[x].mean.round(2), post[y].mean.round(2)
    (np.float64(1.99), np.float64(3.04))

    References
    ----------
    Stern, Herbrich & Graepel (2009), Matchbox: large scale online Bayesian recommendations.
    """

    variance: Any = 0.0

    def attach(self, graph: str, key: int, x: Any = None, y: Any = None, z: Any = None) -> Added:
        neighbours = [variables_of(graph, n, v, "gaussian") for n, v in (("x", x), ("y", y))]
        names: tuple[str, ...] = ("x", "y")
        if z is None:
            raise ValueError("z is None; allowed: Gaussian variables, or numbers")
        if isinstance(z, Variables):
            neighbours.append(variables_of(graph, "z", z, "gaussian"))
            names = ("x", "y", "z")
            shape, numbers = rows_of(*neighbours, names=names)
            observed = np.empty((len(numbers), 0))
        else:
            given = _checks.real_array("z", z)
            shape, _ = rows_of(*neighbours, names=names)
            try:
                shape = np.broadcast_shapes(shape, given.shape)
            except ValueError:
                raise ValueError(
                    f"z has shape {given.shape}; allowed: one that broadcasts with {shape}"
                ) from None
            numbers = np.stack(
                [np.broadcast_to(v.numbers, shape).ravel() for v in neighbours], axis=1
            )
            observed = numbers_of("z", given, shape)[:, None]
        if not len(numbers):
            raise ValueError("z is empty; allowed: one factor or more")
        ordered = np.sort(numbers, axis=1)
        if (np.diff(ordered, axis=1) == 0).any():
            raise ValueError("a product has a variable twice; allowed: different ones")
        limits: dict[str, Any] = {"least": 0.0, "above": observed.size > 0}
        data = {"variance": numbers_of("variance", self.variance, shape, **limits), "z": observed}
        return Added(Batch(key, self, plain_terms(numbers), data, np.arange(len(numbers))))

    def sweep(self, batch: Batch, at: Index, tied: bool) -> GraphBatch:
        terms = batch.terms
        edges = len(terms.variables)
        return ProductBatch(
            terms.starts,
            at[terms.variables],
            np.zeros(edges, dtype=np.intc),
            np.full(edges, 2),
            batch.data["variance"],
            np.ascontiguousarray(batch.data["z"]).ravel(),
            tied,
        )

    def symmetry(self, batch: Batch, prior: Callable[[Index], Array], alone: Any) -> str:
        pairs = batch.terms.variables.reshape(batch.n, -1)[:, :2]
        centred = (prior(pairs.ravel())[:, 1] == 0.0).reshape(pairs.shape)
        if not (centred & alone[pairs]).all(axis=1).any():
            return ""
        return (
            "x and y of a Product have prior means of 0, and no factors of other kinds: (x, y) and "
            "(-x, -y) are as good, and EP stays at means of 0; give prior means other than 0"
        )


@dataclass(frozen=True)
class LogisticLink(Kind):
    """A probability of its log odds: p = 1 / (1 + exp(-z)).

    Parameters
    ----------
    match : {"statistics", "moments"}
        The belief about p keeps E[log p] and E[log(1 - p)] (the projection of EP), or the mean and
        variance.

    Notes
    -----
    Added as ``g.add(LogisticLink(), z, p)``, Gaussian and beta variables, arrays that broadcast. A
    constraint, whatever the power. The moments are integrals over z.

    Raises
    ------
    TypeError
        When added, for variables of other families.

    Examples
    --------
    >>> import epfast
    >>> g = epfast.Graph()
    >>> z, p = g.gaussian(variance=4.0), g.beta(alpha=8.0, beta=3.0)
    >>> batch = g.add(epfast.graph.LogisticLink(), z, p)
    >>> post = g.fit()
    >>> post[z].mean.round(2), post[p].mean.round(2)
    (np.float64(1.2), np.float64(0.74))

    References
    ----------
    Jitkrittum et al. (2015), Kernel-based just-in-time learning for passing expectation propagation
    messages, section 4.
    """

    kept: ClassVar[tuple[str, ...]] = ("match",)
    match: str = "statistics"

    def __post_init__(self) -> None:
        _checks.choice("match", self.match, MATCHES)

    def attach(self, graph: str, key: int, z: Any = None, p: Any = None) -> Added:
        neighbours = variables_of(graph, "z", z, "gaussian"), variables_of(graph, "p", p, "beta")
        _, numbers = rows_of(*neighbours, names=("z", "p"))
        return Added(Batch(key, self, plain_terms(numbers), {}, np.arange(len(numbers))))

    def sweep(self, batch: Batch, at: Index, tied: bool) -> GraphBatch:
        terms = batch.terms
        edges = len(terms.variables)
        return LogisticBatch(
            terms.starts,
            at[terms.variables],
            np.tile([NUMBER["gaussian"], NUMBER["beta"]], batch.n),
            np.full(edges, 2),
            self.match == "moments",
            tied,
        )


@dataclass(frozen=True)
class CompoundGamma(Kind):
    """A broad distribution of precisions: tau ~ Ga(s2, r) with r ~ Ga(s1, r1), r integrated out.

    Its density is that of r1 times a beta prime variable. It has heavier tails than any gamma
    distribution.

    Parameters
    ----------
    s1, r1, s2 : float or array_like
        All > 0.
    match : {"statistics", "moments"}
        The belief about tau keeps E[log tau] and E[tau] (the projection of EP), or the mean and
        variance.

    Notes
    -----
    Added as ``g.add(CompoundGamma(s1, r1, s2), tau)``. It is a prior: ``tau`` itself may be
    ``g.gamma(rate=0)``. The moments are integrals over tau; where tau has no mean as yet (s1 <= 1)
    sweeps begin at the gamma distribution with r at its mean.

    Raises
    ------
    ValueError
        When added, for numbers that are not above 0 or do not broadcast with tau.

    Examples
    --------
    >>> import epfast
    >>> g = epfast.Graph()
    >>> level, tau = g.gaussian(variance=100.0), g.gamma(shape=1.0, rate=0.0)
    >>> prior = g.add(epfast.graph.CompoundGamma(2.0, 1.0, 1.0), tau)
    >>> noise = g.add(epfast.graph.Noise(tau), [2.1, 1.9, 2.2, 1.7, 2.0] - level)
    >>> g.fit()[tau].mean.round(1)
    np.float64(8.7)

    References
    ----------
    Jitkrittum et al. (2015), Kernel-based just-in-time learning for passing expectation propagation
    messages, section 4.
    """

    kept: ClassVar[tuple[str, ...]] = ("match",)
    s1: Any = 1.0
    r1: Any = 1.0
    s2: Any = 1.0
    match: str = "statistics"

    def __post_init__(self) -> None:
        _checks.choice("match", self.match, MATCHES)

    def attach(self, graph: str, key: int, tau: Any = None) -> Added:
        precisions = variables_of(graph, "tau", tau, "gamma")
        columns = [
            numbers_of(name, getattr(self, name), precisions.shape, least=0.0, above=True)
            for name in ("s1", "r1", "s2")
        ]
        numbers = precisions.numbers.reshape(-1, 1)
        data = {"numbers": np.stack(columns, axis=1)}
        return Added(Batch(key, self, plain_terms(numbers), data, np.arange(len(numbers))))

    def first_sites(self, batch: Batch) -> Array:
        s1, r1, s2 = batch.data["numbers"].T
        return np.stack([s2 - 1.0, s1 / r1], axis=1)

    def sweep(self, batch: Batch, at: Index, tied: bool) -> GraphBatch:
        terms = batch.terms
        edges = len(terms.variables)
        return CompoundGammaBatch(
            terms.starts,
            at[terms.variables],
            np.full(edges, NUMBER["gamma"]),
            np.full(edges, 2),
            batch.data["numbers"],
            self.match == "moments",
            tied,
        )

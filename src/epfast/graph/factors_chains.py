"""Factors of chains: transitions from one variable to the next, random walks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from epfast import _checks
from epfast._core.graph import GraphBatch, TransitionBatch
from epfast.graph.factors import Added, Batch, Kind, rows_of, variables_of
from epfast.graph.variables import Index, Terms


@dataclass(frozen=True)
class Transition(Kind):
    """Gaussian transitions x' = factor x + N(0, variance) from one variable to the next.

    Parameters
    ----------
    variance : float or array_like
        Of the noise, >= 0.
    factor : float or array_like

    Notes
    -----
    Added as ``g.add(Transition(variance), before, after)``, two arrays of variables of one shape.
    ``after`` keeps its own prior, which times the transition is the model: a state that only the
    transition defines has ``variance=inf``. Messages are exact.

    Raises
    ------
    ValueError
        When added, for a transition from a variable to itself, a variance < 0 or a factor of 0.

    Examples
    --------
    >>> import epfast, numpy as np
    >>> g = epfast.Graph()
    >>> x = g.gaussian(variance=np.array([1.0, np.inf, np.inf]))
    >>> steps = g.add(epfast.graph.Transition(0.5, factor=0.9), x[:-1], x[1:])
    >>> seen = g.add("gaussian", x[2], 2.0)
    >>> g.fit()[x].mean.round(2)
    array([0.63, 0.92, 1.22])

    References
    ----------
    Kalman (1960), A new approach to linear filtering and prediction problems.
    """

    shares: ClassVar[bool] = False
    variance: Any
    factor: Any = 1.0

    def attach(self, graph: str, key: int, before: Any = None, after: Any = None) -> Added:
        x = variables_of(graph, "before", before, "gaussian")
        z = variables_of(graph, "after", after, "gaussian")
        _, pairs = rows_of(x, z, names=("before", "after"))
        numbers = np.unique(pairs)
        batch = transitions(self, key, pairs, self.factor, self.variance)
        return Added(batch, times=(numbers, numbers.astype(np.float64)))

    def refuses_power(self, batch: Batch) -> str | None:
        return constant_step(batch)

    def sweep(self, batch: Batch, at: Index, tied: bool) -> GraphBatch:
        return transition_sweep(batch, at)


def transitions(kind: Kind, key: int, pairs: Index, factor: Any, variance: Any) -> Batch:
    """A batch of transitions between pairs of variables, (n, 2)."""
    n = len(pairs)
    if (pairs[:, 0] == pairs[:, 1]).any():
        raise ValueError("a transition goes from a variable to itself; allowed: two variables")
    data = {}
    for name, value in (("factor", factor), ("variance", variance)):
        given = np.ravel(_checks.real_array(name, value))
        data[name] = _checks.array(
            name, np.broadcast_to(given, (n,)) if len(given) == 1 else given, shape=(n,)
        )
    if not (data["variance"] >= 0.0).all():
        raise ValueError(f"variance holds {data['variance'].min():g}; allowed: numbers >= 0")
    if not data["factor"].all():
        raise ValueError("factor holds 0; allowed: numbers other than 0")
    terms = Terms(np.arange(0, 2 * n + 1, 2), np.ascontiguousarray(pairs).ravel(), np.ones(2 * n))
    return Batch(key, kind, terms, data, np.arange(n))


def constant_step(batch: Batch) -> str | None:
    """Why a batch of transitions allows no power but 1: one without noise is no density."""
    if batch.data["variance"].all():
        return None
    return f"factors {type(batch.factor).__name__} of variance 0"


def transition_sweep(batch: Batch, at: Index) -> GraphBatch:
    """The core's batch of transitions."""
    places = at[batch.terms.variables].reshape(-1, 2)
    return TransitionBatch(places, batch.data["factor"], batch.data["variance"])


@dataclass(frozen=True)
class Walk(Kind):
    """Random walks through time: chains of variables, x' = x + N(0, rate (t' - t)).

    Parameters
    ----------
    rate : float
        Variance of the step per unit of time, >= 0.

    Notes
    -----
    Added as ``g.add(Walk(rate), x, by=labels, time=times)``: a chain for each label (None: one
    chain), in the order of the times, which do not fall within a chain. The prior of the first
    variable of a chain stays; the walk defines the others, whose own priors go. Labels and times
    are (n,), n the variables of x. Messages are exact.

    Raises
    ------
    ValueError
        When added, for times that fall within a chain, a variable that is there twice or that
        another walk defines, or no chain of two.

    Examples
    --------
    Two players, each at two times:

    >>> import epfast
    >>> g = epfast.Graph()
    >>> s = g.gaussian(4)
    >>> walks = g.add(epfast.graph.Walk(0.1), s, by=["ann", "ann", "bob", "bob"], time=[0, 5, 0, 2])
    >>> won = g.add("probit", s[1] - s[3], 1)
    >>> g.fit()[s].mean.round(2)
    array([ 0.41,  0.62, -0.41, -0.5 ])

    References
    ----------
    Dangauthier, Herbrich, Minka & Graepel (2007), TrueSkill through time: revisiting the history of
    chess.
    """

    kept: ClassVar[tuple[str, ...]] = ("rate",)
    shares: ClassVar[bool] = False
    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _checks.number("rate", self.rate, least=0.0))

    def attach(
        self, graph: str, key: int, x: Any = None, *, by: Any = None, time: Any = None
    ) -> Added:
        states = variables_of(graph, "x", x, "gaussian")
        n = states.size
        numbers = states.numbers.ravel()
        if len(np.unique(numbers)) < n:
            raise ValueError("x has a variable twice; allowed: each once")
        times = np.arange(n, dtype=np.float64)
        if time is not None:
            times = _checks.array("time", np.ravel(_checks.real_array("time", time)), shape=(n,))
        chain = np.zeros(n, dtype=np.intp)
        if by is not None:
            labels = np.ravel(np.asarray(by))
            if labels.shape != (n,):
                raise ValueError(
                    f"by has shape {np.shape(by)}; allowed: a label per variable, ({n},)"
                )
            chain = np.unique(labels, return_inverse=True)[1].ravel()
        order = np.argsort(chain, kind="stable")
        same = chain[order][1:] == chain[order][:-1]
        steps = np.diff(times[order])[same]
        if (steps < 0.0).any():
            raise ValueError("time falls within a chain; allowed: times sorted within `by`")
        pairs = np.stack([numbers[order][:-1][same], numbers[order][1:][same]], axis=1)
        if not len(pairs):
            raise ValueError("x has no chain of two variables; allowed: chains of two or more")
        with np.errstate(over="ignore"):
            variance = self.rate * steps
        if not np.isfinite(variance).all():
            raise ValueError("rate times the steps of time overflows; allowed: smaller ones")
        batch = transitions(self, key, pairs, 1.0, variance)
        return Added(batch, (numbers, times))

    def defines(self, batch: Batch) -> Index:
        return np.asarray(batch.terms.variables[1::2])

    def refuses_power(self, batch: Batch) -> str | None:
        return constant_step(batch)

    def sweep(self, batch: Batch, at: Index, tied: bool) -> GraphBatch:
        return transition_sweep(batch, at)

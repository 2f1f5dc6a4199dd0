"""Factors of chains: transitions from one variable to the next, random walks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast._core.graph import GraphBatch, TransitionBatch
from epfast.graph.factors import (
    Batch,
    Edges,
    Kind,
    check_spread,
    log_normal,
    numbers_of,
    only_power_1,
    plain_batch,
    rows_of,
    variables_of,
)
from epfast.graph.variables import Index

if TYPE_CHECKING:
    from epfast.graph.posterior import GraphPosterior
    from epfast.graph.problem import GraphProblem


class GaussianStep(Kind):
    """Gaussian transitions x' = factor x + N(0, variance) between pairs of variables."""

    pattern: ClassVar[str] = "nn"
    numbers: ClassVar[dict[str, float]] = {"factor": -np.inf, "variance": 0.0}
    shares: ClassVar[bool] = False

    def check_power(self, batch: Batch, power: float) -> None:
        # a transition without noise is not a density
        what = f"factors {type(self).__name__} of variance 0"
        only_power_1(power, not batch.data["variance"].all(), what)

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        places = edges.at.reshape(-1, 2)
        return TransitionBatch(places, batch.data["factor"], batch.data["variance"])

    def log_density(self, batch: Batch, theta: Array) -> Array:
        check_spread(batch)
        before, after = batch.table.T
        step = theta[:, after] - batch.data["factor"] * theta[:, before]
        return np.asarray(log_normal(step, batch.data["variance"]).sum(axis=1))


@dataclass(frozen=True)
class Transition(GaussianStep):
    """Gaussian transitions x' = factor x + N(0, variance) from one variable to the next.

    Parameters
    ----------
    variance : float or array_like
        Variance of the noise, >= 0.
    factor : float or array_like, default=1.0
        Coefficient of x, not 0.

    Notes
    -----
    Added as ``g.add(Transition(variance), before, after)`` with two arrays of variables of one
    shape. The model is the transition times the prior of ``after``. Give ``after`` the prior
    ``variance=inf`` if only the transition defines it. Messages are exact.

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

    variance: Any
    factor: Any = 1.0

    def attach(self, model: GraphProblem, before: Any = None, after: Any = None) -> Batch:
        given = {"before": (before, "gaussian"), "after": (after, "gaussian")}
        pairs = rows_of(model, given)
        numbers = np.unique(pairs)
        steps = self.steps(pairs.shape[:-1])
        batch = plain_batch(Transition(None), model.added, pairs, steps)
        return batch._replace(times=(numbers, numbers.astype(np.float64)))

    def steps(self, shape: tuple[int, ...]) -> dict[str, Array]:
        """Factor and variance of each transition."""
        parameters = {
            "factor": numbers_of("factor", self.factor, shape),
            "variance": numbers_of("variance", self.variance, shape, least=0.0),
        }
        if not parameters["factor"].all():
            raise ValueError("factor holds 0; allowed: numbers other than 0")
        return parameters

    def predict(self, post: GraphPosterior, before: Any) -> Array:
        x = variables_of(post.problem, "before", before, "gaussian")
        return np.asarray(self.steps(x.shape)["factor"].reshape(x.shape) * post[x].mean)

    def predict_variance(self, post: GraphPosterior, before: Any) -> Array:
        x = variables_of(post.problem, "before", before, "gaussian")
        step = {name: value.reshape(x.shape) for name, value in self.steps(x.shape).items()}
        return np.asarray(step["factor"] ** 2 * post[x].variance + step["variance"])


@dataclass(frozen=True)
class Walk(GaussianStep):
    """Random walks through time: chains of variables, x' = x + N(0, rate (t' - t)).

    Parameters
    ----------
    rate : float
        Variance of the step per unit of time, >= 0.

    Notes
    -----
    Added as ``g.add(Walk(rate), x, by=labels, time=times)``, with a label and a time for each
    variable of x. Each label is a chain. Without ``by`` there is one chain, and without ``time``
    the times are 0, 1, 2, ... Times may not decrease within a chain. The first variable of a chain
    keeps its prior. The walk defines the others, and their own priors are ignored. Messages are
    exact.

    Raises
    ------
    ValueError
        When added, for times that decrease within a chain, a variable that is in x twice or that
        another walk defines, or if no chain has two variables.

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

    instead: ClassVar[str] = (
        "the steps of a walk one by one, Transition(rate * (t' - t)) from its variables"
    )
    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _checks.number("rate", self.rate, least=0.0))

    def attach(
        self, model: GraphProblem, x: Any = None, *, by: Any = None, time: Any = None
    ) -> Batch:
        states = variables_of(model, "x", x, "gaussian")
        n = states.size
        numbers = states.numbers.ravel()
        if len(np.unique(numbers)) < n:
            raise ValueError("x has a variable twice; allowed: each variable once")
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
            raise ValueError(
                "time decreases within a chain; allowed: times that are sorted within each label"
            )
        pairs = np.stack([numbers[order][:-1][same], numbers[order][1:][same]], axis=1)
        if not len(pairs):
            raise ValueError("x has no chain of two variables; allowed: chains of two or more")
        with np.errstate(over="ignore"):
            variance = self.rate * steps
        if not np.isfinite(variance).all():
            raise ValueError("rate times the steps of time overflows; allowed: smaller numbers")
        steps = {"factor": np.ones(len(pairs)), "variance": variance}
        return plain_batch(self, model.added, pairs, steps)._replace(times=(numbers, times))

    def defines(self, batch: Batch) -> Index:
        return np.asarray(batch.table[:, 1])

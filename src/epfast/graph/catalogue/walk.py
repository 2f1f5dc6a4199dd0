"""Random walks through time: steps x' = x + N(0, rate (t' - t)), with the messages of steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epfast import _checks
from epfast._arrays import Given
from epfast.graph.arguments import Neighbour, variables_of
from epfast.graph.catalogue.steps import GaussianStep
from epfast.graph.factors import Batch, plain_batch


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

    def attach(self, x: Neighbour, *, by: Given = None, time: Given = None) -> Batch:
        states = variables_of("x", x, "gaussian")
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
        batch = plain_batch(self, pairs, steps)
        return batch._replace(times=(numbers, times), defined=pairs[:, 1].copy())

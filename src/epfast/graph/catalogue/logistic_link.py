"""Probabilities as functions of their log odds: p = 1 / (1 + exp(-z)).

- Messages are those of the projected tilted belief about z and p, an integral over z.
- The evidence is the log of this integral. A constraint has no density.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from epfast import _checks
from epfast._arrays import Array
from epfast._core.graph import GraphBatch
from epfast._core.graph_factors import (
    LogisticBatch,
)
from epfast.graph.arguments import Neighbour, rows_of, variables_of
from epfast.graph.catalogue.linear import LossFactor
from epfast.graph.factors import MATCHES, Batch, Beliefs, Edges, Kind, plain_batch
from epfast.graph.variables import (
    Variables,
)


@dataclass(frozen=True)
class LogisticLink(Kind):
    """A probability as a function of its log odds: p = 1 / (1 + exp(-z)).

    Parameters
    ----------
    match : {"statistics", "moments"}, default="statistics"
        How the belief about p is matched: "statistics" keeps E[log p] and E[log(1 - p)] (the
        projection of EP), "moments" the mean and variance.

    Notes
    -----
    Added as ``g.add(LogisticLink(), z, p)`` with arrays of Gaussian and beta variables that
    broadcast. The factor is a constraint, for any power. The moments are integrals over z.

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

    pattern: ClassVar[str] = "nb"
    match: str = "statistics"

    def __post_init__(self) -> None:
        _checks.choice("match", self.match, MATCHES)

    def attach(self, z: Neighbour, p: Neighbour) -> Batch:
        numbers = rows_of({"z": (z, "gaussian"), "p": (p, "beta")})
        return plain_batch(self, numbers, {})

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        return LogisticBatch(*edges, self.match == "moments", tied)

    def predict(self, q: Beliefs, z: Variables) -> Array:
        """Mean of the probability."""
        variables_of("z", z, "gaussian")
        return LossFactor("logistic").predict_proba(q, z)

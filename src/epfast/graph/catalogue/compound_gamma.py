"""Gamma distributions whose rate has one, too: tau ~ Ga(s2, r) with r ~ Ga(s1, r1).

- The message to tau is the projected tilted belief, an integral over tau, divided by the cavity.
- The evidence is the log of this integral.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from epfast import _checks
from epfast._arrays import Array
from epfast._core.graph import GraphBatch
from epfast._core.graph_factors import (
    CompoundGammaBatch,
)
from epfast.graph.arguments import Neighbour, numbers_of, rows_of
from epfast.graph.factors import MATCHES, Batch, Edges, Kind, check_numbers, plain_batch
from epfast.graph.variables import Index

#: numbers of each factor, by the names of the two distributions
PARAMETERS = "s1", "r1", "s2"


@dataclass(frozen=True)
class CompoundGamma(Kind):
    """A broad distribution of precisions: tau ~ Ga(s2, r) with r ~ Ga(s1, r1), r integrated out.

    Its density is that of r1 times a beta prime variable. It has heavier tails than any gamma
    distribution.

    Parameters
    ----------
    s1, r1, s2 : float or array_like, default=1.0
        Parameters of the two gamma distributions, > 0.
    match : {"statistics", "moments"}, default="statistics"
        How the belief about tau is matched: "statistics" keeps E[log tau] and E[tau] (the
        projection of EP), "moments" the mean and variance.

    Notes
    -----
    Added as ``g.add(CompoundGamma(s1, r1, s2), tau)``. It is a prior, so that ``tau`` itself may be
    ``g.gamma(rate=0)``. The moments are integrals over tau. Where tau has no mean yet (s1 <= 1),
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

    pattern: ClassVar[str] = "g"
    instead: ClassVar[str] = "post[tau], as the factor is the prior of tau alone"
    s1: ArrayLike = 1.0
    r1: ArrayLike = 1.0
    s2: ArrayLike = 1.0
    match: str = "statistics"

    def __post_init__(self) -> None:
        _checks.choice("match", self.match, MATCHES)

    def attach(self, tau: Neighbour) -> Batch:
        numbers = rows_of({"tau": (tau, "gamma")})
        data = {
            name: numbers_of(name, getattr(self, name), numbers.shape[:-1], least=0.0, above=True)
            for name in PARAMETERS
        }
        return plain_batch(CompoundGamma(match=self.match), numbers, data)

    def check(self, batch: Batch, families: Index, sizes: Index) -> None:
        super().check(batch, families, sizes)
        check_numbers(batch, **dict.fromkeys(PARAMETERS, math.ulp(0.0)))

    def first_sites(self, batch: Batch) -> Array:
        s1, r1, s2 = (batch.data[name] for name in PARAMETERS)
        return np.stack([s2 - 1.0, s1 / r1], axis=1)

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        numbers = np.stack([batch.data[name] for name in PARAMETERS], axis=1)
        return CompoundGammaBatch(*edges, numbers, self.match == "moments", tied)

    def log_density(self, batch: Batch, theta: Array) -> Array:
        s1, r1, s2 = (batch.data[name] for name in PARAMETERS)
        tau = theta[:, batch.terms.variables]
        scale = s1 * np.log(r1) - special.betaln(s1, s2)
        logs = scale + (s2 - 1.0) * np.log(tau) - (s1 + s2) * np.log(r1 + tau)
        return np.asarray(logs.sum(axis=1))

"""Priors of standard deviations s, divided by the gamma prior of the variable tau = 1 / s^2.

- The message to tau is the projection of the tilted belief, an integral over tau by quadrature.
- The evidence is the log of this integral.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from epfast import _checks
from epfast._arrays import Array
from epfast._core.graph import GraphBatch
from epfast.graph.arguments import Neighbour, rows_of
from epfast.graph.factors import Batch, Edges, Kind, plain_batch
from epfast.graph.own import Factor
from epfast.graph.variables import (
    Index,
)
from epfast.priors import InverseGamma, Scale

#: the mode of a prior is searched for logs of standard deviations between -BEGIN and BEGIN
BEGIN = 20.0


@dataclass(frozen=True)
class ScaleFactor(Kind):
    """The prior of standard deviations s, divided by the gamma prior of tau = 1 / s^2.

    Messages begin at this gamma prior.
    """

    pattern: ClassVar[str] = "g"
    instead: ClassVar[str] = "post[s], as the factor is the prior of a scale alone"
    prior: Scale
    #: parameters of the gamma prior
    shape: float
    rate: float

    @classmethod
    def of(cls, prior: Scale) -> ScaleFactor:
        """With a gamma prior around the mode over log s, if there is one."""
        if isinstance(prior, InverseGamma):
            return cls(prior, prior.shape, prior.scale)
        s = np.exp(np.linspace(-BEGIN, BEGIN, 401))
        at = s[s <= prior.most]
        value = [prior.log_density(float(one)) + math.log(one) for one in at]
        k = int(np.argmax(value))
        return cls(prior, 1.0, float(at[k]) ** 2 if 0 < k < len(at) - 1 else 1.0)

    def log_t(self, tau: Array) -> Array:
        """Log density of the scale, as a density of tau, less that of the gamma prior."""
        log_tau = np.log(tau)
        density = np.array([self.prior.log_density(float(s)) for s in tau**-0.5])
        constant = self.shape * math.log(self.rate) - math.lgamma(self.shape)
        base = constant + (self.shape - 1.0) * log_tau - self.rate * tau
        return np.asarray(density - math.log(2.0) - 1.5 * log_tau - base)

    def attach(self, tau: Neighbour) -> Batch:
        return plain_batch(self, rows_of({"tau": (tau, "gamma")}), {})

    def check(self, batch: Batch, families: Index, sizes: Index) -> None:
        super().check(batch, families, sizes)
        for name in ("shape", "rate"):
            _checks.number(name, getattr(self, name), above=0.0)
        if not isinstance(self.prior, Scale):
            raise ValueError("the prior of a scale is not one of epfast.priors")

    def sweep(self, batch: Batch, edges: Edges, tied: bool) -> GraphBatch:
        return Factor(self.log_t, "quadrature").sweep(batch, edges, tied)

    def log_density(self, batch: Batch, theta: Array) -> Array:
        tau = theta[:, batch.terms.variables]
        return np.asarray(self.log_t(tau.ravel()).reshape(tau.shape).sum(axis=1))

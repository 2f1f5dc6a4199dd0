"""Tilted moments of scalar sites by integration, or by sampling."""

from __future__ import annotations

from dataclasses import dataclass

from epfast import _checks
from epfast._core.loss import CoreLoss
from epfast._core.scalar_schemes import Sampling
from epfast._core.tilted import TiltedMoments
from epfast.losses import Loss
from epfast.schemes.base import RowScheme


@dataclass(frozen=True)
class Exact(RowScheme):
    """Tilted moments in closed form or by one-dimensional quadrature, for scalar sites."""

    one_dimension = "it integrates over one dimension"
    integrates = True

    def refuses(self, loss: Loss, factor: str) -> str | None:
        if not loss.gives:
            return f"loss is {loss!r}, which has no values; allowed: scheme=epfast.Learned(...)"
        if factor == "row" or (factor == "latents" and type(self) is Exact):
            return None  # every loss, a CustomSite too
        return super().refuses(loss, factor)

    def tilted(self, loss: Loss, core: CoreLoss | None = None) -> TiltedMoments:
        return loss.tilted(core)


@dataclass(frozen=True)
class ImportanceSampling(RowScheme):
    """Tilted moments from weighted draws: from the cavity, weighted by t^power. For scalar sites.

    Draws come in antithetic pairs, mean +- z standard deviations. Those of sweep k (from 0) are
    seeded by [seed, k]: the same data, schedule and seed give the same result, and a resumed run
    goes on as if it had not stopped. Every sweep draws afresh, so that the posterior keeps moving
    by the noise, which falls as 1 / sqrt(samples). ``tol`` is rarely met.

    Parameters
    ----------
    samples : int, default=1000
        Draws per site and visit. An odd last one has no mirror image.
    seed : int, default=0
        Of the random numbers.
    """

    samples: int = 1000
    seed: int = 0
    one_dimension = "in d dimensions a cavity is too wide a proposal for a minibatch"

    def __post_init__(self) -> None:
        samples = _checks.integer("samples", self.samples, least=2, most=10**9)
        _checks.freeze(self, samples=samples, seed=_checks.integer("seed", self.seed, least=0))

    def tilted(self, loss: Loss, core: CoreLoss | None = None) -> TiltedMoments:
        core = loss.shifted_core() if core is None else core
        return loss.tilted(core, Sampling(core, self.samples, self.seed))

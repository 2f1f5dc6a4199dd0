"""What all results share: record and choices."""

from __future__ import annotations

from typing import Any

from epfast.inference.records import Sites, SweepInfo
from epfast.losses import Loss


class Posterior:
    """Base of the results of a fit; a subclass has ``state``, ``problem`` and the record."""

    state: Any
    problem: Any
    converged: bool
    history: list[SweepInfo]

    # -- the record --

    @property
    def sites(self) -> Sites | None:
        sites: Sites | None = self.state.sites
        return sites

    @property
    def n_sweeps(self) -> int:
        """Sweeps in all, those of warm starts included."""
        sweeps: int = self.state.sweeps
        return sweeps

    @property
    def n_refused(self) -> int:
        """Sites that kept their old value, summed over the sweeps of this fit."""
        return sum(info.n_refused for info in self.history)

    # -- the choices --

    @property
    def loss(self) -> Loss | None:
        """The loss; None if the posterior was loaded and its loss could not be saved."""
        loss: Loss | None = self.problem.loss
        return loss

    @property
    def scheme(self) -> Any:
        """The scheme; None if the posterior was loaded and its scheme could not be saved."""
        return self.problem.scheme

    @property
    def schedule(self) -> Any:
        return self.problem.schedule

    @property
    def beta(self) -> float:
        """Inverse temperature of the factors exp(-beta loss)."""
        beta: float = self.problem.beta
        return beta

    @property
    def power(self) -> float:
        """Power of power EP; 1 is EP."""
        power: float = self.problem.schedule.power
        return power

    def known_loss(self) -> Loss:
        """The loss; raises if the posterior was loaded without it."""
        if self.loss is None:
            raise ValueError(
                "the loss of this posterior was not saved with it; use predict_latent, or load "
                "with the loss given"
            )
        return self.loss

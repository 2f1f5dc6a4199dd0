"""Schedules: which sites are stored and who goes when. A schedule is data; the fits run it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from epfast import _checks

__all__ = ["ADF", "EP", "Schedule"]

ORDERS = ("sequential", "shuffled", "parallel")


class Schedule:
    """Base of the schedules."""

    order: str
    seed: int | None

    def visits(self, n_factors: int, sweep: int) -> NDArray[np.intp]:
        """The factors in the order of the given sweep.

        A shuffled order depends on the seed and the number of the sweep alone, so that a resumed
        run goes on as if it had not stopped.
        """
        if self.order == "shuffled":
            rng = np.random.default_rng([int(self.seed or 0), sweep])
            return rng.permutation(n_factors).astype(np.intp)
        return np.arange(n_factors, dtype=np.intp)

    def _check_order(self, allowed: tuple[str, ...]) -> None:
        _checks.choice("order", self.order, allowed)
        if self.seed is not None:
            _checks.integer("seed", self.seed, least=0)
        if self.order == "shuffled" and self.seed is None:
            raise ValueError("order is 'shuffled' and seed is None; allowed: an integer seed >= 0")


@dataclass(frozen=True)
class EP(Schedule):
    """Expectation propagation: a site per factor, several sweeps.

    Parameters
    ----------
    sweeps : int
        Sweeps at most.
    tol : float
        Stop when a sweep changes the posterior by less: the largest change of a mean in posterior
        standard deviations or of a precision relative to itself, over the damping. 0 never stops.
    damping : float
        In (0, 1]; the share of the new site: g <- g^(1 - damping) g_new^damping. 1 is undamped.
    power : float
        > 0; the power a of power EP: cavity q / g^a, fit of t^a, site = fit^(1/a). 1 is EP.
    order : {"sequential", "shuffled", "parallel"}
        "shuffled" visits the factors in a new random order each sweep (the rows of a factor stay
        together); "parallel" fits all from the same posterior, then updates once.
    block : int, optional
        Sites per block of the exact blocked sweep; for scalar sites.
    seed : int, optional
        Needed by "shuffled".
    """

    sweeps: int = 20
    tol: float = 1e-5
    damping: float = 1.0
    power: float = 1.0
    order: str = "sequential"
    block: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _checks.integer("sweeps", self.sweeps, least=1)
        _checks.number("tol", self.tol, least=0.0)
        _checks.number("damping", self.damping, above=0.0, most=1.0)
        _checks.number("power", self.power, above=0.0)
        if self.block is not None:
            _checks.integer("block", self.block, least=1)
        self._check_order(ORDERS)


@dataclass(frozen=True)
class ADF(Schedule):
    """Assumed density filtering: one pass, no site stored, O(d) memory beside the data.

    From flat sites this is the first sweep of EP. X may be a memory map or an iterator of chunks.

    Parameters
    ----------
    power : float
        As in :class:`EP`.
    order : {"sequential", "shuffled"}
        As in :class:`EP`; an iterator of chunks allows "sequential" only.
    seed : int, optional
        Needed by "shuffled".
    """

    power: float = 1.0
    order: str = "sequential"
    seed: int | None = None

    def __post_init__(self) -> None:
        _checks.number("power", self.power, above=0.0)
        self._check_order(("sequential", "shuffled"))

"""The loop over sweeps: a schedule turns a state into a new one until it settles.

What is swept, and how, is the matter of an :class:`Engine`.
"""

from __future__ import annotations

import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from epfast._checks import Array
from epfast.posterior import SweepInfo
from epfast.schedules import ADF, DEP, EP, SharedSites

#: from here on BLAS may use all its threads
MANY_DIMENSIONS = 512
#: share of the rows whose sites may be refused in the last sweep without a warning
REFUSED_SHARE = 0.1


def one_blas_thread(d: int) -> AbstractContextManager[Any]:
    """Hold BLAS to one thread for matrices too small to share, where threadpoolctl is installed.

    On two busy cores a second thread makes products of this size ten times slower.
    """
    controller = None if d >= MANY_DIMENSIONS else _blas()
    limit: AbstractContextManager[Any] = (
        nullcontext() if controller is None else controller.limit(limits=1, user_api="blas")
    )
    return limit


@cache
def _blas() -> Any:
    """The BLAS libraries of the process, looked up once: that takes longer than a small fit."""
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController().select(user_api="blas")


class ConvergenceWarning(UserWarning):
    """Numerical trouble that the result counts: fits that failed, sites that were kept."""


def warn_of_refusals(refused: int, sites: int) -> None:
    """Say it where many sites were refused in the last sweep; for the warnings of a fit."""
    if refused > REFUSED_SHARE * sites:
        warnings.warn(
            f"{refused} of {sites} sites were refused in the last sweep (an improper cavity or "
            "fit); try damping, a power below 1 or another loss",
            ConvergenceWarning,
            stacklevel=4,
        )


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during a fit; ``posterior`` is what was found so far, from which to resume."""

    def __init__(self, posterior: Any) -> None:
        super().__init__("interrupted; .posterior holds what was found so far")
        self.posterior = posterior


def progress_bar(progress: bool) -> Any:
    """Return a bar that counts factors, or None."""
    if not progress:
        return None
    try:
        from tqdm.auto import tqdm
    except ImportError:
        raise ImportError("progress=True needs tqdm: pip install 'epfast[plot]' or tqdm") from None
    return tqdm(unit="factor")


class HasSweeps(Protocol):
    """What a state tells of itself: how many sweeps it has behind it."""

    @property
    def sweeps(self) -> int: ...


S = TypeVar("S", bound=HasSweeps)
P = TypeVar("P")


class Engine(ABC, Generic[S, P]):
    """How a kind of site is started and swept: states S, results P that it can go on from."""

    #: what the last sweep found wrong with the covariance, where it was computed anew
    drift: float | None = None
    #: whether states that were swept already may still be looked at
    states_kept: bool = False
    #: what to tell of numbers that overflow
    remedy: str = "scale the columns of X"

    @abstractmethod
    def start(self, start: P | None) -> S:
        """The state before the first sweep; the engine goes on from it."""

    @abstractmethod
    def sweep(self, state: S, bar: Any) -> tuple[S, int]:
        """One sweep: the new state, and how many sites were refused."""

    @abstractmethod
    def finish(self, state: S) -> S:
        """The state as its sites have it, without what sweeps may have left in its digits."""

    def interrupted(self, state: S) -> S:
        """As :meth:`finish`, after a sweep from the state that did not end."""
        return self.finish(state)

    @abstractmethod
    def moments(self) -> tuple[Array, Array]:
        """Means and variances of the posterior now, which no later sweep changes."""

    def moved(self, before: tuple[Array, Array]) -> float:
        """How far the last sweep moved the posterior, from the moments before it."""
        return change(before, self.moments())

    @abstractmethod
    def log_evidence(self, state: S) -> float:
        """EP's log p(y) after a sweep."""

    @abstractmethod
    def sites(self) -> int:
        """How many there are."""


def run(
    engine: Engine[S, P],
    schedule: EP | ADF | DEP | SharedSites,
    posterior: Callable[[S, bool, list[SweepInfo]], P],
    d: int,
    start: P | None,
    record: Callable[[S], float] | None,
    callback: Callable[[SweepInfo, S], Any] | None,
    progress: bool,
) -> P:
    """Run the schedule on matrices of order d.

    ``posterior`` makes the result of the last state, of whether it converged, and of the records of
    the sweeps; ``record`` gives the cost of a state, where it is wanted.
    """
    sweeps, tol, damping = (
        (1, 0.0, 1.0)
        if isinstance(schedule, ADF)
        else (schedule.sweeps, schedule.tol, schedule.damping)
    )
    history: list[SweepInfo] = []
    converged = False
    engine.states_kept = callback is not None
    with one_blas_thread(d):
        state = engine.start(start)
        bar = progress_bar(progress)
        try:
            for _ in range(sweeps):
                began = time.perf_counter()
                before = engine.moments()
                new, refused = engine.sweep(state, bar)
                moved = engine.moved(before) / damping
                evidence = engine.log_evidence(new)
                if not (np.isfinite(evidence) and np.isfinite(moved)):
                    raise FloatingPointError(
                        f"the posterior or its evidence overflowed; {engine.remedy}"
                    )
                info = SweepInfo(
                    new.sweeps,
                    moved,
                    refused,
                    0,
                    evidence,
                    time.perf_counter() - began,
                    None if record is None else record(new),
                    drift=engine.drift,
                )
                state = new
                history.append(info)
                stop = callback is not None and callback(info, state)
                # where every site was refused nothing moves, which is no convergence
                converged = bool(tol > 0.0 and moved <= tol and refused < engine.sites())
                if stop or converged:
                    break
        except KeyboardInterrupt:
            raise Interrupted(posterior(engine.interrupted(state), False, history)) from None
        finally:
            if bar is not None:
                bar.close()
        return posterior(engine.finish(state), converged, history)


def change(old: tuple[Array, Array], new: tuple[Array, Array]) -> float:
    """Largest change of a mean, in standard deviations, or of a variance, relative."""
    (old_mean, old_variance), (mean, variance) = old, new
    unit = np.where(variance == 0.0, 1.0, variance)  # what is certain does not move
    moved = np.abs(mean - old_mean) / np.sqrt(unit)
    return float(max(moved.max(), (np.abs(variance - old_variance) / unit).max()))

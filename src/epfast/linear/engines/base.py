"""What the engines with a full covariance share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np

from epfast import families
from epfast._arrays import Array, symmetric_from_upper
from epfast._core.crew import Crew
from epfast.inference import Counts, Sites, Summary
from epfast.linear.problem import (
    LinearProblem,
    State,
    from_sites,
    inverse_of,
    log_determinant,
    log_evidence,
    moments_of,
)

#: least share of a sweep's change that is tried, where the whole makes the posterior improper
LEAST_SHARE = 1.0 / 1024.0

S = TypeVar("S", bound=Any)
T = TypeVar("T")


#: a sweep contracts if its change is below this share of the least change so far
CONTRACTION = 0.7


def contraction(moved: float, least: float, stalled: int) -> tuple[float, int]:
    """The least change so far and the number of sweeps since, after a sweep with this change."""
    return (moved, 0) if moved < CONTRACTION * least else (least, stalled + 1)


class Swept(NamedTuple):
    """A :class:`State` and its moments, between two sweeps."""

    precision: Array
    shift: Array
    sites: Sites | None
    log_scale: float
    sweeps: int
    rows_seen: int | None
    #: (d, d), of which only the upper triangle is valid, or variances (d,); and (d,)
    covariance: Array
    mean: Array


def with_moments(state: State) -> Swept:
    """A state with its moments. O(d^3), or O(d) of a diagonal one."""
    return Swept(*state, *moments_of(state))


def most_of(
    old: Sites, new: Sites, build: Callable[[Sites], T | None]
) -> tuple[Sites, T | None, float]:
    """Build from new sites; where that is improper from half of their change, or half of that.

    Returns
    -------
    sites, built, share
        The share of the change that was taken; 0 and None if no share was proper.
    """
    sites, built, share = new, build(new), 1.0
    while built is None:
        share *= 0.5
        if share < LEAST_SHARE:
            return old, None, 0.0
        sites = families.damped(old, new, share)
        built = build(sites)
    return sites, built, share


def improper_start() -> ValueError:
    """The error for a start whose sites make the posterior improper."""
    return ValueError("start makes the posterior improper with this prior; allowed: another prior")


class FullEngine:
    """Base of the engines with a full covariance; adds O(d^3) to the cost of a sweep."""

    measures = False
    crew: Crew | None = None

    def __init__(self, problem: LinearProblem) -> None:
        self.problem, self.schedule = problem, problem.schedule
        self.remedy, self.evidence_bound = problem.remedy, problem.evidence_bound
        self.n_sites, self.order_of_matrices = problem.shape
        self.prior_log_determinant = log_determinant(problem.prior.precision)

    def init(self, start: Any) -> Any:
        return with_moments(start_of(self.problem, start))

    def summary(self, state: Any, evidence: bool = True) -> Summary:
        diagonal = state.covariance.ndim == 1
        variance = state.covariance if diagonal else state.covariance.diagonal().copy()
        if not evidence:
            return Summary(state.mean, variance)
        return Summary(state.mean, variance, log_evidence(state, self.prior_log_determinant))

    def settle(self, state: Any, hurry: bool = False) -> State:
        return plain(state)

    def accepted(self, old: Any, sites: Sites, counts: Counts) -> tuple[Any, Counts]:
        """The result of a sweep that found these sites, or most of them. O(n d^2)."""
        sweeps = old.sweeps + 1
        _, new, share = most_of(old.sites, sites, lambda s: from_sites(self.problem, s, sweeps))
        if new is None:
            return old._replace(sweeps=sweeps), counts._replace(refused=self.n_sites)
        return with_moments(new), counts if share == 1.0 else counts._replace(settled=False)


def plain(state: Any) -> State:
    """The state without what an engine adds to it."""
    return State(*state[: len(State._fields)])


def with_precision(state: S, full: bool) -> S:
    """A state with precision and shift from its moments. O(d^3).

    full: not only the upper triangle of the covariance is valid.
    """
    if not full:
        state = state._replace(covariance=symmetric_from_upper(state.covariance))
    with np.errstate(over="ignore", invalid="ignore"):  # the loop looks at what came out
        precision = inverse_of(state.covariance)
        new: S = state._replace(precision=precision, shift=precision @ state.mean)
    return new


def flat(n: int) -> Sites:
    """Flat scalar sites, g = 1."""
    return Sites(np.zeros(n), np.zeros(n), np.zeros(n))


def adf_start(state: State) -> State:
    """A state that ADF goes on from."""
    return state._replace(sites=None, rows_seen=state.rows_seen or 0)


def start_of(problem: LinearProblem, start: Any) -> State:
    """The initial state of scalar sites; it borrows the arrays of the start."""
    n, d = problem.shape
    if problem.schedule.stores == "none":
        if start is None:
            return adf_start(problem.base)
        if start.shift.size != d:
            raise ValueError(f"start has {start.shift.size} dimensions; allowed: {d}")
        return adf_start(start.state)
    if start is None:
        return problem.base._replace(sites=flat(n))
    if start.sites is None:
        raise ValueError("start has no sites (it comes from ADF); allowed with EP: a result of EP")
    shapes = [part.shape for part in start.sites]
    if shapes != [(n,)] * 3 or start.shift.size != d:
        raise ValueError(
            f"start has sites of shape {shapes[0]} in {start.shift.size} dimensions; allowed: "
            f"({n},) in {d}, the same rows"
        )
    found = from_sites(problem, start.sites, start.n_sweeps)
    if found is None:
        raise improper_start()
    return found

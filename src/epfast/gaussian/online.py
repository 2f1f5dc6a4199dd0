"""Rows that come and go: their sites are added to a posterior, and taken out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from epfast import _checks, families
from epfast._arrays import Matrix, Which, is_sparse
from epfast.gaussian.engine import AnyEngine, Working
from epfast.gaussian.forms.kernel import GPState
from epfast.gaussian.forms.weights import EndState, KeptState
from epfast.gaussian.problem import Problem, sum_of_sites
from epfast.gaussian.rows import NO_ROWS, Data
from epfast.gaussian.state import State, is_proper
from epfast.gaussian.table import engine_of
from epfast.inference import Fit, Sites, SweepInfo, interrupted, run, warn_of
from epfast.inference.loop import Ended, OfSites
from epfast.schedules import ADF, EP, FilledSchedule, Schedule
from epfast.schemes import Relaxed

R = TypeVar("R", covariant=True)
#: what warns of a fit
Warn = Callable[[Ended, OfSites, FilledSchedule], None]


class TakesRows(Protocol[R]):
    """What is read of a posterior that takes in rows."""

    @property
    def problem(self) -> Problem: ...

    @property
    def state(self) -> KeptState: ...

    @property
    def history(self) -> list[SweepInfo]: ...

    def with_more_rows(self, fit: Fit[EndState], problem: Problem) -> R: ...


def extended(
    post: TakesRows[R],
    data: Data,
    schedule: Schedule | FilledSchedule | None,
    warn: Warn = warn_of,
    engine_of_new: Callable[[Problem], AnyEngine] = engine_of,
) -> R:
    """A posterior with more rows, see :meth:`epfast.FullPosterior.partial_fit`.

    data: the new rows, checked. engine_of_new: makes the engine of their problem.
    """
    problem, state = post.problem, post.state
    stored = state.sites
    filled = schedule_of_rows(problem, stored, schedule)
    if isinstance(state, GPState):
        base = problem.base._replace(sweeps=state.sweeps)
    else:
        assert isinstance(state, State)
        base = state._replace(relaxed=None)
    scheme = problem.scheme
    if isinstance(scheme, Relaxed) and scheme.freeze is not None:  # by the sweeps of these rows
        scheme = replace(scheme, freeze=scheme.freeze + state.sweeps)
    new = problem._replace(data=data, schedule=filled, scheme=scheme, base=base)
    new.check_weights()

    def result(fit: Fit[EndState]) -> R:
        whole = fit.state
        assert isinstance(whole, State | Working | GPState)
        if stored is None:  # ADF may have stopped on its way
            seen = data.select(slice((whole.rows_seen or 0) - (state.rows_seen or 0)))
            rows = joined_data([problem.data, seen])
        else:
            old, new_sites, relaxed = state.relaxed, whole.sites, whole.relaxed
            assert new_sites is not None
            whole = whole._replace(sites=families.joined(stored, new_sites))
            if old is not None and relaxed is not None:
                whole = whole._replace(relaxed=families.joined(old, relaxed))
            rows = joined_data([problem.data, data], len(stored.shift))
        joined = problem._replace(data=rows, schedule=filled)
        every = fit._replace(state=whole, history=post.history + fit.history)
        return post.with_more_rows(every, joined)

    fit = None
    try:
        engine = engine_of_new(new)
        fit = run(engine, filled)
        warn(fit, engine, filled)
        return result(fit)
    except KeyboardInterrupt as pressed:
        raise interrupted(pressed, fit, result, post, lambda: post) from None


def schedule_of_rows(
    problem: Problem, stored: Sites | None, schedule: Schedule | FilledSchedule | None
) -> FilledSchedule:
    """The schedule by which a posterior with these sites takes in rows."""
    if stored is not None and (stored.shift.ndim != 1 or problem.batch_size is not None):
        raise ValueError(
            "the posterior has sites that rows share; allowed: a result of EP on scalar sites, or "
            "of ADF"
        )
    if schedule is None:
        schedule = (EP if stored is not None else ADF)(power=problem.schedule.power)
    if not isinstance(schedule, EP if stored is not None else ADF):
        raise ValueError(
            f"schedule is {_checks.describe(schedule)}; allowed for this posterior: "
            + ("epfast.EP" if stored is not None else "epfast.ADF, since it has no sites")
        )
    return schedule.filled(power=1.0, damping=1.0)


def joined_data(parts: Sequence[Data], first: int | None = None) -> Data:
    """All rows, where all are known, and the weights of all.

    Nothing, if some have weights and it is not known how many others there are; first: how many the
    first ones are, where that is known.
    """
    if len(parts) == 1:
        return parts[0]
    weights = None
    if any(part.weights is not None for part in parts):
        per_row = [part.y if part.weights is None else part.weights for part in parts]
        counts = [None if y is None else len(y) for y in per_row]
        counts[0] = first if counts[0] is None else counts[0]
        sizes = [n for n in counts if n is not None]
        if len(sizes) < len(counts):
            return NO_ROWS
        pairs = zip(parts, sizes, strict=True)
        weights = np.concatenate([np.ones(n) if p.weights is None else p.weights for p, n in pairs])
    if any(part.y is None for part in parts):
        return NO_ROWS._replace(weights=weights)
    rows = [part.X for part in parts]
    if any(is_sparse(X) for X in rows):
        X: Matrix = sparse.csr_matrix(sparse.vstack(rows, format="csr"))
    else:
        X = np.concatenate([part for part in rows if not is_sparse(part)])
    return Data(X, np.concatenate([part.y for part in parts]), weights)


def without(
    problem: Problem, state: State, removal: NDArray[np.bool_], rest: Problem
) -> State | None:
    """The state of the rest of the rows, by taking sites out. None: it is improper."""
    if problem.batch_size is not None:
        raise ValueError("the posterior has minibatch factors; allowed: scalar or shared sites")
    stored, out = state.sites, some_rows(problem, removal)
    assert stored is not None
    if out.data.groups is None:
        kept, removed = families.select(stored, ~removal), families.select(stored, removal)
        precision, shift = sum_of_sites(out, removed)
        scale = float(removed.log_scale.sum())
    else:
        kept = stored
        times = np.bincount(out.data.groups, out.copies(), minlength=len(stored.shift))
        precision, shift = np.tensordot(times, stored.precision, 1), times @ stored.shift
        scale = float(times @ stored.log_scale)
    natural = state.precision - precision, state.shift - shift
    relaxed = None if state.relaxed is None else families.select(state.relaxed, ~removal)
    new = State(*natural, kept, state.log_scale - scale, state.sweeps, relaxed=relaxed)
    return new if is_proper(new.precision) else None


def removal_mask(problem: Problem, rows: ArrayLike) -> NDArray[np.bool_]:
    """(n,), whether each row is one of those that are to be removed."""
    n = problem.shape[0]
    numbers = np.atleast_1d(_checks.real_array("rows", rows))
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise TypeError(f"rows is {_checks.describe(rows)}; allowed: an integer or a list of them")
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < n):
        raise ValueError(f"rows holds {numbers.min()} to {numbers.max()}; allowed: 0 to {n - 1}")
    removal = np.zeros(n, dtype=bool)
    removal[numbers] = True
    if removal.all():
        raise ValueError("rows are all there are; allowed: leave one at least")
    return removal


def some_rows(problem: Problem, which: Which) -> Problem:
    """The problem of some of the rows."""
    return problem._replace(data=problem.data.select(which), prior=problem.prior.of_other_rows())

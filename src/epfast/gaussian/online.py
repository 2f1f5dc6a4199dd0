"""Diagnostics and online updates: residual, leave-one-out, adding and removing rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import linalg, sparse

from epfast import _checks, families
from epfast._arrays import Array
from epfast._core.row_sweeps import ParallelSweep, marginals
from epfast.gaussian.engines.kernel import loo_of_values
from epfast.gaussian.engines.local import WarmStart
from epfast.gaussian.engines.passes import engine_of_rows
from epfast.gaussian.engines.rows import PARALLEL_ROWS
from epfast.gaussian.problem import (
    Data,
    LinearProblem,
    State,
    inverse_root,
    is_proper,
    sum_of_sites,
)
from epfast.gaussian.table import engine_of
from epfast.inference import Fit, Sites, interrupted, run, warn_of
from epfast.inference.loop import change
from epfast.inference.runtime import no_tick, one_blas_thread
from epfast.schedules import ADF, DAEP, EP


def residual(problem: LinearProblem, state: State) -> float:
    """See :attr:`epfast.FullPosterior.residual`. O(n d^2)."""
    assert state.sites is not None
    problem = problem._replace(base=problem.prior)
    n, d = problem.shape
    with one_blas_thread(d):
        if problem.groups is not None or problem.batch_size is not None:
            return _by_a_sweep(problem, state)
        core = ParallelSweep(
            problem.tilted(), d, min(n, PARALLEL_ROWS), problem.schedule.power, damping=0.0
        )
        root, sites = inverse_root(state.precision), families.copied(state.sites)
        covariance = np.ascontiguousarray(root @ root.T)
        mean = linalg.cho_solve((linalg.cholesky(state.precision, lower=True), True), state.shift)
        for part in problem.slices():
            core.sweep(
                problem.rows(part),
                problem.responses(part),
                problem.weights(part),
                covariance,
                root,
                mean,
                *families.taken(sites, part),
            )
    return float("inf") if core.n_refused else core.residual


def _by_a_sweep(problem: LinearProblem, state: State) -> float:
    """The change of one undamped sweep, all factors at once."""
    power = problem.schedule.power
    schedule: Any = EP(tol=0.0, power=power, damping=1.0, order="parallel")
    if problem.groups is not None:
        schedule = DAEP(problem.groups, power=power, damping=1.0)
    engine = engine_of(problem._replace(schedule=schedule))
    assert state.sites is not None
    before = engine.init(WarmStart(state.sites, state.shift, state, state.sweeps))
    after, _ = engine.sweep(before, True, no_tick)
    return change(engine.summary(before, evidence=False), engine.summary(after, evidence=False))


def leave_one_out(problem: LinearProblem, state: State) -> Array:
    """See :meth:`epfast.FullPosterior.loo_log_predictive`. O(n d^2), or O(nonzeros)."""
    stored = state.sites
    assert stored is not None
    n, d = problem.shape
    if state.precision.ndim == 1:
        return _predicted(problem, *_without_columns(problem, state, stored))
    if problem.groups is None:
        return loo_of_values(problem, stored, *latent_of_rows(problem, state))
    mean, variance = np.empty(n), np.empty(n)
    with one_blas_thread(d):
        proper = np.ones(n, dtype=bool)
        for k in range(len(stored.shift)):
            rows = np.flatnonzero(problem.groups == k)
            cavity = state._replace(
                precision=state.precision - stored.precision[k],
                shift=state.shift - stored.shift[k],
            )
            if is_proper(cavity.precision):
                _marginals(problem, cavity, rows, mean, variance)
            else:
                proper[rows] = False
    return _predicted(problem, proper, mean, variance)


def _without_columns(
    problem: LinearProblem, state: State, sites: Sites
) -> tuple[NDArray[np.bool_], Array, Array]:
    """Whether cavities are proper, mean and variance of x.theta under them, (n,) each.

    Sites are diagonal: one per row or minibatch.
    """
    n, copies = problem.shape[0], problem.copies()
    factor = np.arange(n) // (problem.batch_size or 1)
    proper, mean, variance = np.empty(n, dtype=bool), np.empty(n), np.empty(n)
    for part in problem.slices():
        rows = problem.data.X[part]
        if problem.sparse:
            row = np.repeat(np.arange(rows.shape[0]), np.diff(rows.indptr))
            columns, x = rows.indices, rows.data
        else:
            row, columns = np.indices(rows.shape).reshape(2, -1)
            x = np.asarray(rows, dtype=np.float64).ravel()
        share: Any = 1.0
        if copies is not None and problem.batch_size is None:
            share = 1.0 / np.maximum(copies[part], 1.0)[row]
        entries = factor[part][row], columns
        precision, shift = (
            whole[columns] - share * np.asarray(site[entries]).ravel()
            for whole, site in zip(state[:2], sites[:2], strict=True)
        )
        with np.errstate(divide="ignore", invalid="ignore"):
            parts = x * shift / precision, x * x / precision, ~(precision > 0.0)
        mean[part], variance[part], bad = (
            np.bincount(row, values, rows.shape[0]) for values in parts
        )
        proper[part] = bad == 0.0
    return proper, mean, variance


def latent_of_rows(problem: LinearProblem, state: State) -> tuple[Array, Array]:
    """Mean and variance of x.theta under the posterior, for all rows, (n,) each. O(n d^2)."""
    n, d = problem.shape
    mean, variance = np.empty(n), np.empty(n)
    with one_blas_thread(d):
        _marginals(problem, state, slice(None), mean, variance)
    return mean, variance


def _predicted(problem: LinearProblem, proper: Any, mean: Array, variance: Array) -> Array:
    """Log probabilities under the cavities, if all are proper."""
    if not proper.all():
        count = len(proper)
        raise FloatingPointError(f"{count - int(proper.sum())} of {count} cavities are improper")
    assert problem.data.y is not None
    return problem.loss.log_predictive(problem.data.y, mean, variance)


def extended(
    post: Any,
    data: Data,
    schedule: Any,
    warn: Callable[..., Any] = warn_of,
    engine_of_new: Callable[[LinearProblem], Any] = engine_of_rows,
) -> Any:
    """A posterior with more rows, see :meth:`epfast.FullPosterior.partial_fit`.

    data: the new rows, checked. engine_of_new: makes the engine of their problem.
    """
    problem, state = post.problem, post.state
    stored = state.sites
    schedule = schedule_of_rows(problem, stored, schedule)
    new = problem.continued(data, schedule, state._replace(sites=None))
    new.check_weights()

    def result(fit: Fit) -> Any:
        if stored is None:  # ADF may have stopped on its way
            whole = fit.state
            some = data.taken(slice(whole.rows_seen - (state.rows_seen or 0)))
            rows = joined_data(problem.data, some, None)
        else:
            sites = Sites(*map(np.concatenate, zip(stored, fit.state.sites, strict=True)))
            whole = fit.state._replace(sites=sites)
            rows = joined_data(problem.data, data, len(stored.shift))
        known = problem._replace(data=rows, schedule=schedule)
        history = post.history + fit.history
        return post.with_more_rows(whole, known, converged=fit.converged, history=history)

    fit = None
    try:
        engine = engine_of_new(new)
        fit = run(engine, schedule)
        warn(fit, engine, schedule, stacklevel=4)
        return result(fit)
    except KeyboardInterrupt as pressed:
        raise interrupted(pressed, fit, result, post, lambda: post) from None


def schedule_of_rows(problem: LinearProblem, stored: Sites | None, schedule: Any) -> Any:
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


def joined_data(old: Data, new: Data, n_old: int | None) -> Data:
    """Old rows, then new ones; no rows if the old ones are unknown, but the weights of all."""
    weights = None
    if old.weights is not None or new.weights is not None:
        if old.y is None and old.weights is None and n_old is None:
            return Data(None, None)
        weights = np.concatenate([_weights(old, n_old), _weights(new, None)])
    if old.y is None or new.y is None:
        return Data(None, None, weights)
    if hasattr(old.X, "indptr") or hasattr(new.X, "indptr"):
        X: Any = sparse.csr_matrix(sparse.vstack([old.X, new.X], format="csr"))
    else:
        X = np.concatenate([old.X, new.X])
    return Data(X, np.concatenate([old.y, new.y]), weights)


def _weights(data: Data, n: int | None) -> Array:
    """The weights of n rows, or as many as are known."""
    if data.weights is not None:
        return data.weights
    if data.y is not None:
        n = len(data.y)
    assert n is not None
    return np.ones(n)


def remove_rows(
    problem: LinearProblem, state: State, rows: ArrayLike
) -> tuple[State, LinearProblem]:
    """See :meth:`epfast.FullPosterior.remove`."""
    if problem.batch_size is not None:
        raise ValueError("the posterior has minibatch factors; allowed: scalar or shared sites")
    stored = state.sites
    assert stored is not None
    gone = removal_mask(problem, rows)
    out = _some(problem, gone)
    if problem.groups is None:
        left, removed = families.taken(stored, ~gone), families.taken(stored, gone)
        precision, shift = sum_of_sites(out, removed)
        scale = float(removed.log_scale.sum())
    else:
        left, groups = stored, out.groups
        assert groups is not None
        times = np.bincount(groups, out.copies(), minlength=len(stored.shift))
        precision, shift = np.tensordot(times, stored.precision, 1), times @ stored.shift
        scale = float(times @ stored.log_scale)
    new = State(
        state.precision - precision,
        state.shift - shift,
        left,
        state.log_scale - scale,
        state.sweeps,
    )
    if not is_proper(new.precision):
        raise improper_rest()
    return new, _some(problem, ~gone)


def removal_mask(problem: LinearProblem, rows: ArrayLike) -> NDArray[np.bool_]:
    """(n,), whether each row is one of those that are to be removed."""
    n = problem.shape[0]
    taken = np.atleast_1d(_checks.real_array("rows", rows))
    if taken.dtype.kind not in "iu" or taken.ndim != 1:
        raise TypeError(f"rows is {_checks.describe(rows)}; allowed: an integer or a list of them")
    if taken.size and not (taken.min() >= 0 and taken.max() < n):
        raise ValueError(f"rows holds {taken.min()} to {taken.max()}; allowed: 0 to {n - 1}")
    gone = np.zeros(n, dtype=bool)
    gone[taken] = True
    if gone.all():
        raise ValueError("rows are all there are; allowed: leave one at least")
    return gone


def improper_rest() -> ValueError:
    """The error where what is left of a posterior is improper."""
    return ValueError("rows leave an improper posterior behind; allowed: other rows")


def _some(problem: LinearProblem, which: Any) -> LinearProblem:
    groups = None if problem.groups is None else problem.groups[which]
    return problem._replace(data=problem.data.taken(which), groups=groups)


def _marginals(
    problem: LinearProblem, state: State, which: Any, mean: Array, variance: Array
) -> None:
    """Write mean and variance of x.theta, for some rows, into these entries of the arrays."""
    root = inverse_root(state.precision)
    covariance = np.ascontiguousarray(root @ root.T)
    center = covariance @ state.shift
    for part in problem.pieces(np.arange(problem.shape[0])[which]):
        h, s = np.empty(len(part)), np.empty(len(part))
        marginals(problem.rows(part), covariance, root, center, h, s)
        mean[part], variance[part] = h, s

"""What can be asked of the sites of a posterior with full covariance, and done with them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from epfast import _checks
from epfast._checks import Array
from epfast._core.sweep import Parallel, marginals
from epfast.loop import change, one_blas_thread
from epfast.losses import Logistic, Loss, NoisyStep, Probit
from epfast.posterior import Data, FullPosterior, Sites, State, label_probability
from epfast.scalar import (
    PARALLEL_ROWS,
    Problem,
    engine_of,
    inverse_root,
    is_proper,
    moments,
    sum_of_sites,
)
from epfast.schedules import ADF, DAEP, EP

__all__ = ["add_rows", "leave_one_out", "remove_rows", "residual"]


def residual(post: FullPosterior) -> float:
    """See :attr:`FullPosterior.residual`."""
    if post.sites is None:
        return float("nan")
    problem = _problem(post, None, None)
    n, d = problem.shape
    with one_blas_thread(d):
        if problem.data.groups is not None or post.batch_size is not None:
            engine = engine_of(problem)
            state = engine.start(post)
            before = engine.moments()
            engine.sweep(state, None)
            return change(before, engine.moments())
        core = Parallel(
            problem.moments(), d, min(n, PARALLEL_ROWS), problem.data.power, damping=0.0
        )
        root, sites = inverse_root(post.precision), Sites(*(part.copy() for part in post.sites))
        covariance = np.ascontiguousarray(root @ root.T)
        for part in problem.slices():
            core.sweep(
                problem.rows(part),
                problem.data.y[part],
                problem.weights(part),
                covariance,
                root,
                post.mean,
                *(values[part] for values in sites),
            )
    return float("inf") if core.n_refused else core.residual


def leave_one_out(post: FullPosterior, X: Any, y: Any) -> Array:
    """See :meth:`FullPosterior.loo_log_predictive`."""
    stored = _stored(post)
    problem = _problem(post, X, y)
    n, d = problem.shape
    mean, variance = np.empty(n), np.empty(n)
    with one_blas_thread(d):
        if problem.data.groups is None:
            _marginals(problem, post.state, slice(None), mean, variance)
            copies = problem.copies()
            share = 1.0 if copies is None else 1.0 / np.maximum(copies, 1.0)
            rest = 1.0 - share * stored.precision * variance
            mean, variance = mean - share * stored.shift * variance, variance
            proper = rest > 0.0
            mean, variance = (part / np.where(proper, rest, 1.0) for part in (mean, variance))
        else:
            proper = np.ones(n, dtype=bool)
            for k in range(len(stored.shift)):
                rows = np.flatnonzero(problem.data.groups == k)
                cavity = State(
                    post.precision - stored.precision[k],
                    post.shift - stored.shift[k],
                    None,
                    0.0,
                    0,
                )
                if is_proper(cavity.precision):
                    _marginals(problem, cavity, rows, mean, variance)
                else:
                    proper[rows] = False
    if not proper.all():
        raise FloatingPointError(f"{n - int(proper.sum())} of {n} cavities are improper")
    return log_predictive(problem.loss, problem.beta, problem.data.y, mean, variance)


def log_predictive(loss: Loss, beta: float, labels: Array, mean: Array, variance: Array) -> Array:
    """Log probability of the labels of h ~ N(mean, variance), accurate where that underflows."""
    if beta == 1.0 and isinstance(loss, Logistic | NoisyStep | Probit) and (variance > 0.0).all():
        log_z, *others = np.empty((3, len(mean)))
        moments(loss, beta).many(labels, mean, variance, np.ones(len(mean)), log_z, *others)
        return log_z
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(label_probability(loss, beta, labels * mean, variance)))


def add_rows(post: FullPosterior, X: Any, y: Any, weights: Any, schedule: Any) -> FullPosterior:
    """See :meth:`FullPosterior.partial_fit`."""
    from epfast.linear import design_of, fit_rows  # which needs this module's users

    loss, stored = known_loss(post), post.sites is not None
    if post.sites is not None and (post.sites.shift.ndim != 1 or post.batch_size is not None):
        raise ValueError(
            "the posterior has sites that rows share; allowed: a result of EP on scalar sites, or "
            "of ADF"
        )
    schedule = (EP() if stored else ADF()) if schedule is None else schedule
    if not isinstance(schedule, EP if stored else ADF):
        raise ValueError(
            f"schedule is {_checks.describe(schedule)}; allowed for this posterior: "
            + ("epfast.EP" if stored else "epfast.ADF, since it has no sites")
        )
    data = design_of(X, y, weights, schedule.power, post.shift.size)
    base = post.state._replace(sites=None)
    problem = Problem(data, base, post.prior_precision, loss, post.beta, schedule)
    new = fit_rows(problem)
    old = post.data
    joined = old and Data(
        _stack(old.X, data.X),
        np.concatenate([old.y, data.y]),
        None
        if old.weights is None and data.weights is None
        else np.concatenate([_ones(part) for part in (old, data)]),
        data.power,
    )
    sites = (
        None
        if post.sites is None or new.sites is None
        else Sites(*(np.concatenate(pair) for pair in zip(post.sites, new.sites, strict=True)))
    )
    return replace(
        new,
        state=new.state._replace(sites=sites),
        history=post.history + new.history,
        data=joined,
    )


def remove_rows(post: FullPosterior, rows: ArrayLike, X: Any, y: Any) -> FullPosterior:
    """See :meth:`FullPosterior.remove`."""
    stored = _stored(post)
    if post.batch_size is not None:
        raise ValueError("the posterior has minibatch factors; allowed: scalar or shared sites")
    problem = _problem(post, X, y)
    data, n = problem.data, problem.shape[0]
    taken = np.atleast_1d(np.asarray(rows))
    if taken.dtype.kind not in "iu" or taken.ndim != 1:
        raise TypeError(f"rows is {_checks.describe(rows)}; allowed: an integer or a list of them")
    if taken.size and not (taken.min() >= 0 and taken.max() < n):
        raise ValueError(f"rows holds {taken.min()} to {taken.max()}; allowed: 0 to {n - 1}")
    gone = np.zeros(n, dtype=bool)
    gone[taken] = True
    left = ~gone
    if not left.any():
        raise ValueError("rows are all there are; allowed: leave one at least")
    part = problem._replace(data=_some(data, gone))
    if data.groups is None:
        out = Sites(*(values[gone] for values in stored))
        sites = Sites(*(values[left] for values in stored))
        precision, shift = sum_of_sites(part, out)
        scale = float(out.log_scale.sum())
    else:
        copies = part.copies()
        sites = stored
        assert part.data.groups is not None
        times = np.bincount(part.data.groups, copies, minlength=len(sites.shift))
        precision, shift = np.tensordot(times, sites.precision, 1), times @ sites.shift
        scale = float(times @ sites.log_scale)
    state = State(
        post.precision - precision,
        post.shift - shift,
        sites,
        post.state.log_scale - scale,
        post.n_sweeps,
    )
    if not is_proper(state.precision):
        raise ValueError("rows leave an improper posterior behind; allowed: other rows")
    kept = None if post.data is None else _some(data, left)
    return replace(post, state=state, converged=False, data=kept)


# ---- shared ----


def _stored(post: FullPosterior) -> Sites:
    if post.sites is None:
        raise ValueError("the posterior has no sites (it comes from ADF); allowed: a result of EP")
    return post.sites


def known_loss(post: Any) -> Loss:
    """The loss of a posterior that was not loaded without it."""
    if post.loss is None:
        raise ValueError("the loss of this posterior was not saved with it; load with the loss")
    loss: Loss = post.loss
    return loss


def _problem(post: FullPosterior, X: Any, y: Any) -> Problem:
    """The fit that the posterior came from, with its rows at hand or given."""
    from epfast.linear import design_of

    loss, data = known_loss(post), post.data
    if data is None:
        if X is None or y is None:
            raise ValueError(
                "X and y are needed, since the posterior was loaded or unpickled; allowed: the "
                "rows that were fitted"
            )
        data = design_of(X, y, None, 1.0, post.shift.size)
        assert post.sites is not None
        if post.sites.shift.shape != (len(data.y),):
            raise ValueError(
                f"X has {len(data.y)} rows and the posterior sites of shape "
                f"{post.sites.shift.shape}; allowed: a site per row, and the rows that were fitted"
            )
    elif X is not None or y is not None:
        raise ValueError("X or y is given, and the posterior knows its rows; allowed: None")
    d = post.shift.size
    base = State(post.prior_precision, np.zeros(d), None, 0.0, 0)
    schedule: Any = EP(tol=0.0, power=data.power, order="parallel")
    if data.groups is not None:
        schedule = DAEP(data.groups, power=data.power)
    return Problem(
        data,
        base,
        post.prior_precision,
        loss,
        post.beta,
        schedule,
        data.scheme,
        post.batch_size,
    )


def _marginals(problem: Problem, state: State, which: Any, mean: Array, variance: Array) -> None:
    """Mean and variance of x.theta for some rows, into these entries of the arrays."""
    root = inverse_root(state.precision)
    covariance = np.ascontiguousarray(root @ root.T)
    center = covariance @ state.shift
    for part in problem.chunks(np.arange(problem.shape[0])[which]):
        h, s = np.empty(len(part)), np.empty(len(part))
        marginals(problem.rows(part), covariance, root, center, h, s)
        mean[part], variance[part] = h, s


def _some(data: Data, which: NDArray[np.bool_]) -> Data:
    return data._replace(
        X=data.X[which],
        y=data.y[which],
        weights=None if data.weights is None else data.weights[which],
        groups=None if data.groups is None else data.groups[which],
    )


def _ones(data: Data) -> Array:
    return np.ones(len(data.y)) if data.weights is None else data.weights


def _stack(a: Any, b: Any) -> Any:
    if hasattr(a, "indptr") or hasattr(b, "indptr"):
        return sparse.csr_matrix(sparse.vstack([a, b], format="csr"))
    return np.concatenate([a, b])

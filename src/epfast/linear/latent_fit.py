"""Fits of linear models with several latent values per row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from epfast import _checks
from epfast._arrays import Array, Held
from epfast.inference import Fit, Interrupted, is_guess, reached, run_from, warn_of
from epfast.linear import notes
from epfast.linear.choices import choose
from epfast.linear.engines import engine_of
from epfast.linear.engines.nested import takes
from epfast.linear.joint_posterior import JointPosterior
from epfast.linear.latent_posterior import LatentPosterior
from epfast.linear.ones import with_ones
from epfast.linear.priors import prior_at_door
from epfast.linear.problem import LinearProblem, data_of, weights_of
from epfast.linear.sources import check_names, column_names, is_stream
from epfast.losses import LatentLoss, Loss

#: bytes of the largest matrices of a fit, all together
MOST_BYTES = 16 << 30
#: copies of a row that a weight makes, on average at most
MOST_COPIES = 100
#: matrices (C, d, d) that a fit has at a time
MATRICES = 8


def fit_latents(
    X: Any,
    y: Any,
    loss: LatentLoss,
    choices: tuple[Any, ...],
    normal: tuple[Any, Any, Any, Any],
    intercept: float | None,
    offset: Any,
    given: dict[str, Any],
    start: Any = None,
    callback: Any = None,
    progress: Any = False,
) -> LatentPosterior:
    """See :func:`epfast.fit_linear`.

    Parameters
    ----------
    loss : Loss
        With several latents.
    choices : tuple
        scheme, posterior, batch_size, schedule, beta.
    normal : tuple
        prior_variance, prior_precision, prior_covariance, prior_mean.
    intercept : float or None
        Its prior variance.
    given : dict
        Arguments that only some combinations take, by name; None where they were not given. Rows of
        whole ``weights`` are copied.
    """
    scheme, posterior, batch_size, schedule, beta = choices
    if is_stream(X, y):
        raise ValueError(
            f"X is an iterable of chunks, or y None; allowed with {loss!r}: all rows at once"
        )
    names, weights = column_names(X), given.pop("weights")
    if not isinstance(getattr(X, "shape", None), tuple):
        X = _checks.real_array("X", X)
    asked = {name: value for name, value in given.items() if value is not None}
    if hasattr(X, "tocsr"):
        asked["sparse X"] = X
    covariance = "full" if posterior is None else posterior
    chosen = choose(loss, scheme, covariance, batch_size, schedule, beta, asked)
    _checks.callback(callback)
    _checks.progress(progress)
    if start is not None and not isinstance(start, LatentPosterior):
        raise TypeError(
            f"start is {_checks.describe(start)}; allowed with {loss!r}: a LatentPosterior, a "
            "JointPosterior or None"
        )
    if y is None:
        raise ValueError("y is None; allowed: a response per row of X, (n,)")
    rows = _checks.rows("X", X)
    rows = rows if intercept is None else with_ones(rows)
    if not hasattr(rows, "indptr"):
        rows = np.ascontiguousarray(rows, dtype=np.float64)
    d = rows.shape[1]
    counts = weights_of(weights, rows.shape[0])
    if counts is not None:
        y = _checks.responses("y", y, rows.shape[0], 1)
        places = copies(loss, counts)
        rows, y = rows[places], y[places]
        offset = offset if offset is None else np.asarray(offset)[places]
    loss = filled(loss, y, d, chosen.schedule, start)
    kind = kind_of(loss)
    if start is not None and type(start) is not kind:
        raise TypeError(
            f"start is {_checks.describe(start)}; allowed with {loss!r}: a {kind.__name__} or None"
        )
    if start is not None:
        check_names(start.problem.names, names)
    check_size(loss, d)
    found = loss.with_offset(offset is not None)
    prior = prior_at_door(*normal, d - (intercept is not None), True, intercept)
    problem = chosen._replace(loss=found).problem(data_of(rows, y, None, found, offset), prior)
    problem = problem._replace(intercept=intercept is not None, names=names)
    if normal[1] is None and normal[2] is None and np.ndim(normal[0]) == 0:
        sizes = notes.column_sizes(rows)
        if sizes is not None:
            notes.note_scales(sizes, stacklevel=4)
    return fit_problem_of_latents(problem, start, callback, progress)


def copies(loss: Loss, weights: Array, name: str = "weights") -> NDArray[np.intp]:
    """The numbers of the rows, each as often as its weight says; weights are to be whole.

    A power of a factor of several latents has no moments of closed form, as that of one latent has.
    """
    parts = weights % 1.0
    if parts.any() or weights.sum() > MOST_COPIES * len(weights):
        raise ValueError(
            f"{name} holds {weights[np.argmax(parts)]:g}, with a mean of {weights.mean():g}; "
            f"allowed with {loss!r}, which has several latents per row: whole numbers, "
            f"{MOST_COPIES} on average at most; a loss of two labels, as 'probit', each class "
            "against the rest, takes any weights"
        )
    return np.repeat(np.arange(len(weights)), weights.astype(np.intp))


def filled(loss: LatentLoss, y: Any, d: int, schedule: Any, start: Any = None) -> LatentLoss:
    """The loss with numbers in place of None: as y and d weights per latent, or the start, say."""
    if start is not None:
        return loss.filled(start.n_latents, isinstance(start, JointPosterior))
    known = loss.filled(loss.latents_in(y), None)
    return known.filled(known.latents, takes(schedule) and known.with_correlations(d))


def check_size(loss: LatentLoss, d: int) -> None:
    """Refuse fits whose matrices would not fit in memory."""
    size = 8 * MATRICES * loss.latents * d * d
    if size > MOST_BYTES:
        raise ValueError(
            f"X has {d} columns: {loss.latents} covariances take {size:.3g} bytes in all; allowed: "
            f"{MOST_BYTES:.3g}, with fewer columns, or a fit per class (one against the rest) with "
            "posterior='factorized'"
        )


def kind_of(loss: Loss) -> type[LatentPosterior]:
    """What a fit with this loss returns."""
    return JointPosterior if loss.correlated else LatentPosterior


def fit_problem_of_latents(
    problem: LinearProblem,
    start: Any = None,
    callback: Any = None,
    progress: Any = False,
    stacklevel: int = 4,
    warn: Any = warn_of,
) -> LatentPosterior:
    """Run a problem whose parts are legal and checked."""

    def result(fit: Fit) -> LatentPosterior:
        return kind_of(problem.loss)(fit.state, problem, fit.converged, fit.history)

    fit = None
    try:
        held = Held("X, y or weights", *problem.data)
        engine = engine_of(problem)
        fit = run_from(
            engine,
            problem.schedule,
            start,
            guess=is_guess(start, problem),
            callback=held.after(callback),
            progress=held.after(progress),
        )
        warn(fit, engine, problem.schedule, stacklevel)
        return result(fit)
    except KeyboardInterrupt as pressed:
        fit = reached(pressed) or fit
        if fit is None:
            raise Interrupted(start or unfitted_latents(problem)) from None
        raise Interrupted(result(fit)) from None


def unfitted_latents(problem: LinearProblem) -> LatentPosterior:
    """The prior as a posterior: before the first sweep, without a start."""
    engine = engine_of(problem)
    return kind_of(problem.loss)(engine.settle(engine.init(None), True), problem, False, [])

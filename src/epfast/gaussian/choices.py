"""The choices of a fit: legal together, with numbers in place of None."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from epfast import _checks, losses, schemes
from epfast._arrays import Array
from epfast.gaussian import notes
from epfast.gaussian.engines.nested import takes
from epfast.gaussian.problem import Data, Problem
from epfast.gaussian.table import PROCESSES, legal
from epfast.schedules import DEP, EP, Schedule
from epfast.schedules.base import AS_COMPLETED
from epfast.schemes import Scheme

#: kinds of posterior, by their covariance, and with the form that has a sparse precision
COVARIANCES = ("full", "factorized")
FORMS = ("full", "sparse", "factorized")
DEFAULT_SCHEDULE, EXACT = EP(), schemes.Exact()
#: bytes of the matrices of a fit of several latents, all together, and how many (C, d, d) it has
MOST_BYTES, MATRICES = 16 << 30, 8
#: copies of a row that a weight makes, on average at most: 300 rows take .02, .06 and .43 s with
#: weights of 1, 10 and 100
MOST_COPIES = 100


class Choices(NamedTuple):
    """A legal combination."""

    loss: losses.Loss
    scheme: Scheme
    schedule: Any
    covariance: str
    batch_size: int | None

    def problem(self, data: Data, prior: Any = None, **parts: Any) -> Problem:
        """The problem of these rows with this prior. ``parts`` are other fields of it."""
        schedule = self.schedule
        if schedule.stores == "none":
            schedule = schedule.filled(order=notes.order_of_one_pass(data))
        # streams do not know how many rows they have, nor do rows that are elsewhere
        n = None if data.y is None else len(data.y)
        shared = schedule.stores == "shared" and data.X is not None
        groups = schedule.labels(data.X.shape[0]) if shared else None
        problem = Problem(
            data,
            self.loss,
            self.scheme.bound(self.loss, self.covariance, schedule, n),
            schedule,
            self.covariance,
            self.batch_size,
            prior,
            prior,
            groups,
            **parts,
        )
        problem.check_weights()
        return problem


#: what a schedule may be: of rows, and of a process
SCHEDULES = (
    "epfast.EP, ADF, SEP, AEP, DSEP, DAEP or DEP",
    "epfast.EP or epfast.DoubleLoop",
)


def choose_process(
    loss: Any,
    scheme: Any,
    schedule: Any,
    form: str = "process",
    given: dict[str, Any] | None = None,
) -> Choices:
    """As :func:`choose`, for :func:`epfast.fit_gp`. ``form`` of q is "process" or "nearest"."""
    return choose(loss, scheme, form, None, schedule, None, given, PROCESSES)


def choose(
    loss: Any,
    scheme: Any,
    posterior: str,
    batch_size: int | None,
    schedule: Any,
    beta: float | None = None,
    given: dict[str, Any] | None = None,
    forms: tuple[str, ...] = FORMS,
) -> Choices:
    """The choices that arguments of :func:`epfast.fit_linear` mean. It raises if they conflict.

    given: arguments that only some combinations take. None: not given. forms: that q may have.
    """
    schedule, given = DEFAULT_SCHEDULE if schedule is None else schedule, given or {}
    process = forms is PROCESSES
    _checks.schedule(schedule, Schedule, SCHEDULES[process])
    _checks.choice("posterior", posterior, forms)
    if batch_size is not None:
        batch_size = _checks.integer("batch_size", batch_size, least=1)
    factor = "row" if batch_size is None else "minibatch"
    loss = losses.resolve(loss).tempered(beta)
    if loss.latents != 1:
        for name, value, allowed in (
            ("posterior", posterior, "full"),
            ("batch_size", batch_size, None),
        ):
            if value != allowed and not process:
                raise ValueError(
                    f"{name} is {value!r}; allowed with {loss!r}, which has several latents "
                    f"per row: {allowed!r}"
                )
        factor = "latents"
    scheme = default_scheme(loss, factor, posterior) if scheme is None else schemes.resolve(scheme)
    tasks = given.get("executor") is not None or given.get("client") is not None
    schedule = schedule.resolved("parallel" if tasks else "sequential")
    legal(posterior, factor, schedule, scheme, loss, given)
    # of a shard, or before a descent
    within = getattr(schedule, "inner", getattr(schedule, "start", None))
    if within is not None:
        legal(posterior, factor, within, scheme, loss, {})
    if schedule.order == AS_COMPLETED and given.get("client") is None:
        raise ValueError(
            f"order is {AS_COMPLETED!r}; allowed: 'auto', 'sequential', 'shuffled' or 'parallel' "
            f"({AS_COMPLETED!r} is for epfast.dask.fit_linear)"
        )
    if tasks:
        _check_tasks(schedule, scheme)
    numbers: dict[str, Any] = {"power": 1.0, "damping": schedule.usual_damping(factor)}
    if posterior == "factorized":
        # scalar sites are never clipped: a negative precision is right where t is not log-concave
        clips = factor == "minibatch" or not scheme.one_dimension
        numbers["site_rule"] = "nonnegative" if clips else "keep"
    schedule = schedule.filled(**numbers)
    return Choices(loss, scheme, schedule, posterior, batch_size)


def default_scheme(loss: losses.Loss, factor: str, posterior: str) -> Scheme:
    """The scheme where none is named: one that holds on columns of unit variance."""
    if factor != "minibatch":
        return EXACT
    reason = schemes.Laplace().refuses(loss, factor)
    if reason is None or "values" not in loss.gives:
        return schemes.Laplace(curvature="exact")  # which says what is wrong
    slopes = list(getattr(loss, "slopes", ()))
    convex, by_slope = slopes == sorted(slopes) != [], schemes.Laplace(curvature="slope")
    if convex and posterior != "full" and by_slope.refuses(loss, factor) is None:
        return by_slope
    raise ValueError(
        f"scheme is None, for {loss!r} with a batch_size: {reason.split('; allowed')[0]}; allowed: "
        "batch_size=None, a site per row, whose moments are exact, or a scheme that is named, as "
        "schemes.Laplace(curvature='slope') or, with posterior='factorized', 'variational'; they "
        "may fail on columns of unit variance"
    )


def _check_tasks(schedule: Any, scheme: Scheme) -> None:
    """Refuse an executor for what is no set of tasks."""
    if scheme.learns:
        raise ValueError(
            f"executor is given and the scheme is {scheme!r}, which learns as it goes; allowed "
            "with an executor: a scheme that does not"
        )
    if not (isinstance(schedule, DEP) or schedule.order == "parallel"):
        raise ValueError(
            f"schedule is {_checks.describe(schedule)}, which is no set of tasks; allowed with an "
            "executor: DEP(); DSEP() or DAEP() in the order 'auto' or 'parallel'; or with a "
            "batch_size EP(order='parallel')"
        )


# ---- several latents per row ----


def copies(loss: losses.Loss, weights: Array, name: str = "weights") -> NDArray[np.intp]:
    """The numbers of the rows, each as often as its weight says. Weights must be whole.

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


def filled(
    loss: losses.LatentLoss, y: Any, d: int, schedule: Any, start: Any = None
) -> losses.LatentLoss:
    """The loss with numbers in place of None: as y and d weights per latent, or the start, say.

    Refuses fits whose matrices would not fit in memory.
    """
    if start is not None:
        complete = loss.filled(start.n_latents, start.problem.loss.correlated)
    else:
        known = loss.filled(loss.latents_in(y), None)
        complete = known.filled(known.latents, takes(schedule) and known.with_correlations(d))
    if start is not None and start.problem.loss.correlated != complete.correlated:
        kind = "JointPosterior" if complete.correlated else "LatentPosterior"
        raise TypeError(
            f"start is {_checks.describe(start)}; allowed with {loss!r}: a {kind} or None"
        )
    size = 8 * MATRICES * complete.latents * d * d
    if size > MOST_BYTES:
        raise ValueError(
            f"X has {d} columns: {complete.latents} covariances take {size:.3g} bytes in all; "
            f"allowed: {MOST_BYTES:.3g}, with fewer columns, or a fit per class (one against the "
            "rest) with posterior='factorized'"
        )
    return complete

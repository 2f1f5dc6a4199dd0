"""The four choices of a fit of a linear model: legal together, with numbers in place of None."""

from __future__ import annotations

from typing import Any, NamedTuple

from epfast import _checks, losses, schemes
from epfast.inference.combinations import legal
from epfast.linear import notes
from epfast.linear.defaults import default_scheme
from epfast.linear.engines import ENGINES
from epfast.linear.problem import Data, LinearProblem, State
from epfast.schedules import DEP, EP, Schedule
from epfast.schedules.base import AS_COMPLETED
from epfast.schemes import Scheme

#: kinds of posterior, by their covariance
COVARIANCES = ("full", "factorized")


class Choices(NamedTuple):
    """A legal combination."""

    loss: losses.Loss
    scheme: Scheme
    schedule: Any
    covariance: str
    batch_size: int | None

    def problem(self, data: Data, prior: State) -> LinearProblem:
        """The problem of these rows with this prior."""
        schedule = self.schedule
        # a stream does not know how many rows it has
        n = getattr(data.X, "shape", (None,))[0]
        if schedule.stores == "none":
            schedule = schedule.filled(order=notes.order_of_one_pass(data))
        n = None if data.y is None else len(data.y)
        groups = schedule.labels(data.X.shape[0]) if schedule.stores == "shared" else None
        problem = LinearProblem(
            data,
            self.loss,
            self.scheme.bound(self.loss, self.covariance, schedule, n),
            schedule,
            self.covariance,
            self.batch_size,
            prior,
            prior,
            groups,
        )
        problem.check_weights()
        return problem


def choose(
    loss: Any,
    scheme: Any,
    posterior: str,
    batch_size: int | None,
    schedule: Any,
    beta: float | None = None,
    given: dict[str, Any] | None = None,
) -> Choices:
    """The choices that arguments of :func:`epfast.fit_linear` mean; raises if they do not combine.

    given: arguments that only some combinations take, those that were given.
    """
    schedule = EP() if schedule is None else schedule
    _checks.schedule(schedule, Schedule, "epfast.EP, ADF, SEP, AEP, DSEP, DAEP or DEP")
    full = _checks.choice("posterior", posterior, COVARIANCES) == "full"
    factor = "row"
    if batch_size is not None:
        batch_size = _checks.integer("batch_size", batch_size, least=1)
        factor = "minibatch"
    found_loss = losses.resolve(loss).tempered(beta)
    if found_loss.latents != 1:
        for name, value, allowed in (
            ("posterior", posterior, "full"),
            ("batch_size", batch_size, None),
        ):
            if value != allowed:
                raise ValueError(
                    f"{name} is {value!r}; allowed with {found_loss!r}, which has several latents "
                    f"per row: {allowed!r}"
                )
        factor = "latents"
    if scheme is None:
        scheme = default_scheme(found_loss, "row" if factor == "latents" else factor, full)
    found = schemes.resolve(scheme)
    schedule = schedule.resolved("executor" in (given or {}))
    legal(ENGINES, posterior, factor, schedule, found, found_loss, given or {})
    if isinstance(schedule, DEP) and schedule.inner is not None:
        legal(ENGINES, posterior, factor, schedule.inner, found, found_loss, {})
    _check_tasks(schedule, found, given or {})
    damped = "row" if factor == "latents" else factor
    numbers: dict[str, Any] = {"power": 1.0, "damping": schedule.usual_damping(damped)}
    if not full:
        # scalar sites are never clipped: a negative precision is right where t is not log-concave
        clips = factor == "minibatch" or not found.one_dimension
        numbers["site_rule"] = "nonnegative" if clips else "keep"
    schedule = schedule.filled(**numbers)
    return Choices(found_loss, found, schedule, posterior, batch_size)


def _check_tasks(schedule: Any, scheme: Scheme, given: dict[str, Any]) -> None:
    """Refuse an executor for what is no set of tasks, and an order of tasks without one."""
    if "executor" not in given:
        if schedule.order == AS_COMPLETED:
            raise ValueError(
                f"order is {AS_COMPLETED!r} without an executor; allowed: 'auto', 'sequential', "
                "'shuffled' or 'parallel', or executor= beside it"
            )
        return
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

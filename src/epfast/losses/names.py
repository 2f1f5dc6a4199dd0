"""The registry of losses: their names, and how they are given, saved and restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from scipy import LowLevelCallable

from epfast import _checks
from epfast._core.loss import LOSS_PARAMETERS
from epfast._core.scalar_schemes import SITE_SIGNATURE
from epfast.losses.base import Loss
from epfast.losses.classification import (
    Hinge,
    Logistic,
    NoisyStep,
    PiecewiseLinear,
    Probit,
    Quasi01,
    SquaredHinge,
)
from epfast.losses.counts import Binomial, Poisson
from epfast.losses.custom import CustomLoss, CustomSite, signature

#: the loss that each name means, with the defaults of its class
NAMED: dict[str, Callable[..., Loss]] = {
    "logistic": Logistic,
    "probit": Probit,
    "hinge": Hinge,
    "squared_hinge": SquaredHinge,
    "quasi01": Quasi01,
    "noisy_step": NoisyStep,
    "poisson": Poisson,
    "binomial": Binomial,
}

_BY_NAME = {name: kind() for name, kind in NAMED.items()}


def resolve(loss: Any) -> Loss:
    """The loss meant by a name, a Loss, a LowLevelCallable or a vectorised callable."""
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        if loss in _BY_NAME:
            return _BY_NAME[loss]
        # a row of the core's table without parameters
        known = [name for name, count in LOSS_PARAMETERS.items() if count == 0]
        return Loss(_checks.choice("loss", loss, tuple(dict.fromkeys([*NAMED, *known]))))
    if isinstance(loss, LowLevelCallable) and signature(loss) == SITE_SIGNATURE:
        return CustomSite(loss)
    if isinstance(loss, LowLevelCallable) or (callable(loss) and not isinstance(loss, type)):
        return CustomLoss(loss)
    if isinstance(loss, type) and issubclass(loss, Loss):
        raise TypeError(
            f"loss is the class {loss.__name__}; allowed: an instance, {loss.__name__}()"
        )
    raise TypeError(
        f"loss is {_checks.describe(loss)}; allowed: one of {', '.join(map(repr, NAMED))}, a Loss, "
        "a scipy.LowLevelCallable, or a vectorised callable"
    )


def describe(loss: Loss | None) -> dict[str, Any] | None:
    """A loss as JSON, without beta; None if it cannot be saved."""
    names = {kind: name for name, kind in NAMED.items()}
    if loss is None or not (type(loss) in names or type(loss) in (Loss, PiecewiseLinear)):
        return None
    return {"name": names.get(type(loss), loss.name), **loss.describe()}


def restore(described: dict[str, Any], beta: float) -> Loss:
    """The loss that :func:`describe` wrote."""
    arguments: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else v for k, v in described.items()
    }
    name = arguments.pop("name")
    if name in NAMED:
        kind = NAMED[name]
        # 0.1.0 saved rows of the table, some of which are classes now
        arguments.pop("parameters", None)
        return kind(**arguments, beta=beta)
    if name == "piecewise_linear" and "knots" in arguments:
        return PiecewiseLinear(**arguments, beta=beta)
    return Loss(name, **arguments, beta=beta)

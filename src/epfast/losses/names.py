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
from epfast.losses.contaminated import Contaminated
from epfast.losses.counts import Binomial, NegativeBinomial, Poisson
from epfast.losses.custom import CustomLoss, CustomSite, signature
from epfast.losses.latents import Heteroscedastic, Multiclass
from epfast.losses.ordinal import Ordinal
from epfast.losses.regression import Censored, Gaussian, Interval, LaplaceNoise, Quantile, StudentT
from epfast.losses.survival import GammaNoise, Weibull

#: the loss that each name means, with the defaults of its class
NAMED: dict[str, Callable[..., Loss]] = {
    "logistic": Logistic,
    "probit": Probit,
    "hinge": Hinge,
    "squared_hinge": SquaredHinge,
    "quasi01": Quasi01,
    "noisy_step": NoisyStep,
    "poisson": Poisson,
    "negative_binomial": NegativeBinomial,
    "binomial": Binomial,
    "contaminated": Contaminated,
    "gaussian": Gaussian,
    "student_t": StudentT,
    "laplace_noise": LaplaceNoise,
    "quantile": Quantile,
    "censored": Censored,
    "interval": Interval,
    "ordinal": Ordinal,
    "gamma_noise": GammaNoise,
    "weibull": Weibull,
}

#: losses with several latents per row
WITH_LATENTS: dict[str, Callable[..., Loss]] = {
    "multiclass": Multiclass,
    "heteroscedastic": Heteroscedastic,
}

#: classes that files know, with their names. A Loss itself is known by the row of its table
SAVED: dict[type, str] = {kind: name for name, kind in NAMED.items() if isinstance(kind, type)}
SAVED |= {PiecewiseLinear: "piecewise_linear", Loss: ""}
SAVED |= {Multiclass: "multiclass", Heteroscedastic: "heteroscedastic"}
#: what a class says of its losses beside methods
CONSTANTS = ("latents", "by_margin", "by_residual", "response_width", "is_likelihood")

_BY_NAME = {name: kind() for name, kind in NAMED.items()}


def resolve(loss: Any, y: Any = None) -> Loss:
    """The loss meant by a name, a Loss, a LowLevelCallable or a vectorised callable.

    y: responses, from which a loss by its name takes how many levels there are.
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        if loss == "ordinal" and y is not None:
            return Ordinal.of(y)
        if loss in _BY_NAME:
            return _BY_NAME[loss]
        if loss in WITH_LATENTS:
            return WITH_LATENTS[loss]()
        # a row of the core's table without parameters
        known = [name for name, count in LOSS_PARAMETERS.items() if count == 0]
        return Loss(
            _checks.choice("loss", loss, tuple(dict.fromkeys([*NAMED, *WITH_LATENTS, *known])))
        )
    if isinstance(loss, LowLevelCallable) and signature(loss) == SITE_SIGNATURE:
        return CustomSite(loss)
    if isinstance(loss, LowLevelCallable) or (callable(loss) and not isinstance(loss, type)):
        return CustomLoss(loss)
    if isinstance(loss, type) and issubclass(loss, Loss):
        raise TypeError(
            f"loss is the class {loss.__name__}; allowed: an instance, {loss.__name__}()"
        )
    raise TypeError(
        f"loss is {_checks.describe(loss)}; allowed: one of "
        f"{', '.join(map(repr, NAMED | WITH_LATENTS))}, a Loss, a "
        "scipy.LowLevelCallable, or a vectorised callable"
    )


#: names of losses of labels, and of those of numbers
LABELS = (*(name for name, loss in _BY_NAME.items() if loss.by_margin), "multiclass")
NUMBERS = tuple(name for name in NAMED if name not in LABELS)


def loss_at_door(given: Any, names: tuple[str, ...], y: Any = None) -> Loss:
    """The loss that is meant, of responses y. Of a name that is not known these alone are listed.

    names: LABELS or NUMBERS.
    """
    if isinstance(given, str) and given not in LABELS + NUMBERS + tuple(WITH_LATENTS):
        other = _checks.did_you_mean(given, LABELS if names is NUMBERS else NUMBERS)
        if other and not _checks.did_you_mean(given, names):
            kinds = "classifiers take" if names is NUMBERS else "regressors take"
            raise ValueError(
                f"loss is {given!r}; allowed: {', '.join(map(repr, names))}{other} That is a loss "
                f"that {kinds}"
            )
        _checks.choice("loss", given, names)
    return resolve(given, y)


def describe(loss: Loss | None) -> dict[str, Any] | None:
    """A loss as JSON, without beta. None if it cannot be saved.

    A user's subclass is saved as the class of ours that it comes from, if it adds data alone.
    """
    if loss is None:
        return None
    for kind in type(loss).__mro__:
        if kind in SAVED:
            described = _numbers_of(loss, kind)
            if described is None:
                return None
            return described if kind is type(loss) or _is_that(loss, kind, described) else None
    return None


def _numbers_of(loss: Loss, kind: Any) -> dict[str, Any] | None:
    """Name and arguments. None if one of them cannot be written."""
    if kind is PiecewiseLinear:
        # a subclass need not describe these
        given = {name: getattr(loss, name) for name in ("knots", "slopes", "value", "jumps")}
    elif kind is Loss:
        given = {"parameters": loss.parameters}
    else:
        given = kind.describe(loss)
    for name, value in given.items():
        if isinstance(value, Loss):
            given[name] = describe(value)
        if callable(value) or (isinstance(value, Loss) and given[name] is None):
            return None
    return {"name": SAVED[kind] or loss.name, **given}


def _is_that(loss: Loss, kind: Any, described: dict[str, Any]) -> bool:
    """Whether a loss of a user's class is one of ours with these numbers, and nothing else."""
    classes = type(loss).__mro__
    for own in classes[: classes.index(kind)]:
        for name, value in vars(own).items():
            # what a constructor made is compared below; new names are not called by the library
            overrides = not name.startswith("__") and hasattr(kind, name)
            if overrides and (callable(value) or hasattr(value, "__get__")):
                return False
    if any(getattr(loss, name) != getattr(kind, name) for name in CONSTANTS):
        return False
    try:
        plain = restore(described, loss.beta)
    except (TypeError, ValueError):
        return False
    return all(
        getattr(plain, name) == getattr(loss, name)
        for name in ("name", "parameters", "kinks", "gives")
    )


def restore(described: dict[str, Any], beta: float) -> Loss:
    """The loss that :func:`describe` wrote."""
    arguments: dict[str, Any] = {
        k: tuple(v) if isinstance(v, list) else restore(v, 1.0) if isinstance(v, dict) else v
        for k, v in described.items()
    }
    name = arguments.pop("name")
    if name in WITH_LATENTS:
        return WITH_LATENTS[name](**arguments).tempered(beta)
    if name in NAMED:
        kind = NAMED[name]
        # 0.1.0 saved rows of the table, some of which are classes now
        arguments.pop("parameters", None)
        return kind(**arguments, beta=beta)
    if name == "piecewise_linear" and "knots" in arguments:
        return PiecewiseLinear(**arguments, beta=beta)
    return Loss(name, **arguments, beta=beta)

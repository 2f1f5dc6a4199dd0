"""The registry of losses: their names, and how they are given, saved and restored."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields
from typing import TypeAlias

from scipy import LowLevelCallable

from epfast import _checks
from epfast._arrays import Given
from epfast._core.scalar_schemes import SITE_SIGNATURE
from epfast.losses.base import Json, Loss
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
from epfast.losses.counts import Binomial, GammaNoise, NegativeBinomial, Poisson, Weibull
from epfast.losses.custom import CustomLoss, CustomSite, VectorFunction, compiled, signature
from epfast.losses.latents import Heteroscedastic, Multiclass
from epfast.losses.ordinal import Ordinal
from epfast.losses.regression import Censored, Gaussian, Interval, LaplaceNoise, Quantile, StudentT

#: a loss as a user gives it: itself, its name, or a function, compiled or of arrays
LossGiven: TypeAlias = Loss | str | LowLevelCallable | VectorFunction


def _by_name(*kinds: type[Loss]) -> dict[str, Callable[..., Loss]]:
    """Classes by their names in lower case, with underscores."""
    return {re.sub("(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower(): kind for kind in kinds}


#: the loss that each name means, with the defaults of its class
NAMED = _by_name(
    *(Logistic, Probit, Hinge, SquaredHinge, Quasi01, NoisyStep),
    *(Poisson, NegativeBinomial, Binomial, Contaminated),
    *(Gaussian, StudentT, LaplaceNoise, Quantile, Censored, Interval),
    *(Ordinal, GammaNoise, Weibull),
)

#: losses with several latents per row
WITH_LATENTS = _by_name(Multiclass, Heteroscedastic)

#: classes that files know
SAVED: dict[str, Callable[..., Loss]] = NAMED | WITH_LATENTS | _by_name(PiecewiseLinear)

#: other names of families and links, and the loss of each
ALIASES = {
    "asymmetric_laplace": "quantile",
    "asymmetriclaplace": "quantile",
    "bernoulli": "logistic",
    "binary": "logistic",
    "gamma": "gamma_noise",
    "laplace": "laplace_noise",
    "logit": "logistic",
    "nb": "negative_binomial",
    "negativebinomial": "negative_binomial",
    "negbin": "negative_binomial",
    "negbinomial": "negative_binomial",
    "normal": "gaussian",
    "student": "student_t",
    "studentt": "student_t",
    "t": "student_t",
    "tobit": "censored",
}

_DEFAULTS = {name: kind() for name, kind in NAMED.items()}


def own_name(name: str) -> str:
    """The name here of a loss by another name. Anything else as it is."""
    return ALIASES.get(name, name) if isinstance(name, str) else name


def resolve(loss: LossGiven, y: Given = None) -> Loss:
    """The loss meant by a name, a Loss, a compiled function or a vectorised callable.

    y: responses, from which a loss by its name takes how many levels there are.
    """
    if isinstance(loss, Loss):
        return loss
    if isinstance(loss, str):
        loss = own_name(loss)
        if loss == "ordinal" and y is not None:
            return Ordinal.of(y)
        if loss in _DEFAULTS:
            return _DEFAULTS[loss]
        _checks.choice("loss", loss, (*NAMED, *WITH_LATENTS))
        return WITH_LATENTS[loss]()
    function = compiled("loss", loss)
    if function is not None and signature(function) == SITE_SIGNATURE:
        return CustomSite(loss)
    if function is not None or (callable(loss) and not isinstance(loss, type)):
        return CustomLoss(loss)
    if isinstance(loss, type) and issubclass(loss, Loss):
        raise TypeError(
            f"loss is the class {loss.__name__}; allowed: an instance, {loss.__name__}()"
        )
    raise TypeError(
        f"loss is {_checks.describe(loss)}; allowed: one of "
        f"{', '.join(map(repr, NAMED | WITH_LATENTS))}, a Loss, a "
        "scipy.LowLevelCallable, a numba.cfunc, or a vectorised callable"
    )


#: names of losses of labels, and of those of numbers
LABELS = (*(name for name, loss in _DEFAULTS.items() if loss.by_margin), "multiclass")
NUMBERS = tuple(name for name in NAMED if name not in LABELS)


def loss_at_door(given: LossGiven, names: tuple[str, ...], y: Given = None) -> Loss:
    """The loss that is meant, of responses y. Of a name that is not known these alone are listed.

    names: LABELS or NUMBERS.
    """
    given = own_name(given) if isinstance(given, str) else given
    if isinstance(given, str) and given not in LABELS + NUMBERS + tuple(WITH_LATENTS):
        hint = _checks.did_you_mean(given, LABELS if names is NUMBERS else NUMBERS)
        if hint and not _checks.did_you_mean(given, names):
            kinds = "classifiers take" if names is NUMBERS else "regressors take"
            raise ValueError(
                f"loss is {given!r}; allowed: {', '.join(map(repr, names))}{hint} That is a loss "
                f"that {kinds}"
            )
        _checks.choice("loss", given, names)
    return resolve(given, y)


def describe(loss: Loss | None) -> dict[str, Json] | None:
    """A loss as JSON, without beta. None if it cannot be saved, as one of a user's class."""
    if loss is None:
        return None
    (name,) = _by_name(type(loss))
    if SAVED.get(name) is not type(loss):
        return None
    given = {f.name: getattr(loss, f.name) for f in fields(loss) if f.init and f.name != "beta"}
    for key, value in given.items():
        if isinstance(value, Loss):
            given[key] = describe(value)
        if callable(value) or (isinstance(value, Loss) and given[key] is None):
            return None
    return {**given, "name": name}


def restore(described: dict[str, Json], beta: float) -> Loss:
    """The loss that :func:`describe` wrote."""
    arguments = {
        k: tuple(v) if isinstance(v, list) else restore(v, 1.0) if isinstance(v, dict) else v
        for k, v in described.items()
    }
    return SAVED[str(arguments.pop("name"))](**arguments).tempered(beta)

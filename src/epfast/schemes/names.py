"""The registry of schemes: their names, and how they are saved and restored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from epfast import _checks
from epfast.schemes.base import Scheme
from epfast.schemes.exact import Exact, ImportanceSampling
from epfast.schemes.laplace import Laplace, QuickLaplace
from epfast.schemes.quadrature import Quadrature, Variational
from epfast.schemes.relaxed import Relaxed

#: the scheme that each name means, with the defaults of its class
NAMED: dict[str, Callable[..., Scheme]] = {
    "exact": Exact,
    "laplace": Laplace,
    "quick_laplace": QuickLaplace,
    "quadrature": Quadrature,
    "variational": Variational,
    "importance": ImportanceSampling,
    "relaxed": Relaxed,
}

_BY_NAME = {name: kind() for name, kind in NAMED.items()}


def resolve(scheme: Any) -> Scheme:
    """The scheme meant by a name or a Scheme."""
    if isinstance(scheme, Scheme):
        return scheme
    return _BY_NAME[_checks.choice("scheme", scheme, tuple(NAMED))]


def describe(scheme: Scheme | None) -> dict[str, Any] | None:
    """A scheme as JSON; None if it cannot be saved."""
    names = {kind: name for name, kind in NAMED.items()}
    if scheme is None or type(scheme) not in names:
        return None
    numbers = scheme.describe()
    return None if numbers is None else {"name": names[type(scheme)], **numbers}


def restore(described: dict[str, Any] | None) -> Scheme | None:
    """The scheme that :func:`describe` wrote."""
    if described is None:
        return None
    numbers = dict(described)
    return NAMED[numbers.pop("name")](**numbers)

"""The registry of schemes: their names, and how they are saved and restored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
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
    """A scheme as JSON, by its fields. None if it cannot be saved."""
    names = {kind: name for name, kind in NAMED.items()}
    if scheme is None or type(scheme) not in names:
        return None
    found: dict[str, Any] = {"name": names[type(scheme)]}
    for one in fields(scheme):  # type: ignore[arg-type]
        value = getattr(scheme, one.name)
        found[one.name] = describe(value) if isinstance(value, Scheme) else value
        if isinstance(value, Scheme) and found[one.name] is None:
            return None
    return found


def restore(described: dict[str, Any] | None) -> Scheme | None:
    """The scheme that :func:`describe` wrote."""
    if described is None:
        return None
    numbers = dict(described)
    for name, value in numbers.items():
        if isinstance(value, dict):
            numbers[name] = restore(value)
        elif isinstance(value, list):
            numbers[name] = tuple(value)
    return NAMED[numbers.pop("name")](**numbers)

"""Exponential families by their natural parameters, of any shape.

A product of members adds natural parameters, a quotient subtracts them, a power scales them. The
functions take any named tuple of arrays: scalar sites (n,), diagonal ones (n, d), matrices.
"""

from __future__ import annotations

from typing import Any, TypeVar

T = TypeVar("T", bound=tuple[Any, ...])


def product(a: T, b: T) -> T:
    """Return a b."""
    return type(a)(*(x + y for x, y in zip(a, b, strict=True)))


def quotient(a: T, b: T) -> T:
    """Return a / b."""
    return type(a)(*(x - y for x, y in zip(a, b, strict=True)))


def power(a: T, exponent: Any) -> T:
    """Return a^exponent."""
    return type(a)(*(exponent * x for x in a))


def damped(old: T, new: T, share: float) -> T:
    """Return old^(1 - share) new^share: damping, or with share 1 / N a site shared by N factors."""
    return type(old)(*(x + share * (y - x) for x, y in zip(old, new, strict=True)))


def taken(a: T, which: Any) -> T:
    """Select members by an index of the first axis."""
    return type(a)(*(x[which] for x in a))


def put(a: T, which: Any, new: T) -> None:
    """Overwrite the members with this index, in place."""
    for x, y in zip(a, new, strict=True):
        x[which] = y


def copied(a: T) -> T:
    """Copy every array."""
    return type(a)(*[x.copy() for x in a])

"""What an operator keeps: tuples that the oracle has answered, refits. And which oracle it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from epfast._arrays import Array
from epfast.inference.files import plain
from epfast.operators.answers import Oracle
from epfast.operators.dictionary import Store
from epfast.operators.settings import PATCHES
from epfast.schemes import Scheme
from epfast.schemes.kinds import describe as describe_scheme


class Refit(NamedTuple):
    """What an operator was when widths and weights were fitted anew."""

    #: tuples in the store
    tuples: int
    visits: int
    #: features in use
    features: int
    #: by which predicted variances were too small, the largest of the targets
    inflation: float


class Known(NamedTuple):
    """A tuple that the oracle has answered."""

    #: coordinates, (k,)
    x: Array
    #: usual parameters, (2 c,)
    messages: Array
    #: (q,), empty without data
    data: Array
    #: (T,)
    targets: Array
    #: their standard errors, (T,)
    errors: Array

    @property
    def key(self) -> bytes:
        """The same for the same answer to the same message."""
        return b"|".join(part.tobytes() for part in self)


def stacked(store: Sequence[Known]) -> Store:
    """As arrays. The oracle is exact where no answer has an error."""
    errors = np.stack([known.errors for known in store])
    squares = (errors[:, :-1] ** 2).mean(axis=1)
    mean = float(squares.mean())
    relative = np.maximum(squares / mean, 1e-6) if mean > 0.0 else None
    x = np.stack([known.x for known in store])
    return Store(x, np.stack([known.targets for known in store]), relative, mean)


def described(oracle: Any) -> dict[str, Any]:
    """An oracle as JSON: class, what it says of itself, else its options without functions."""
    if isinstance(oracle, str):
        return {"class": "str", "described": oracle}
    if isinstance(oracle, Scheme):
        found = describe_scheme(oracle)
        return {"class": type(oracle).__name__, "described": found, "options": options_of(oracle)}
    known = oracle.describe() if isinstance(oracle, Oracle) else None
    options = options_of(oracle) if known is None else None
    given = {"class": type(oracle).__name__, "described": known, "options": options}
    # as it comes back from a file
    result: dict[str, Any] = json.loads(json.dumps(plain("oracle", given)))
    return result


def options_of(value: Any) -> Any:
    """What of a value JSON can hold. None in place of functions."""
    if is_dataclass(value) and not isinstance(value, type):
        mine = {
            field.name: options_of(getattr(value, field.name))
            for field in fields(value)
            if field.init
        }
        return {"class": type(value).__name__, **mine}
    try:
        return plain("option", value)
    except TypeError:
        return None


def _is_same(first: Any, second: Any) -> bool:
    """Whether two oracles answer alike. Of those that hold functions, which are the same."""
    if first is second or (type(first) is type(second) and bool(first == second)):
        return True
    one, other = described(first), described(second)
    return one["described"] is not None and one == other


def check_alike(first: tuple[Any, Any], second: tuple[Any, Any]) -> None:
    """Whether operators of such (settings, oracle) can be pooled: equal, but for the seed."""
    (settings, oracle), (others, its) = first, second
    if replace(others, seed=settings.seed) != settings:
        raise ValueError(
            f"the operators have the settings {settings} and {others}; allowed to be pooled: the "
            "same, but for the seed"
        )
    if settings.features == PATCHES:
        raise ValueError(
            "the operators have features='patches', which keep no tuples; allowed to be pooled: "
            "'dictionary' or ('fourier', d_in, d_out)"
        )
    if not _is_same(oracle, its):
        raise ValueError(
            f"the operators ask {oracle!r} and {its!r}; allowed to be pooled: the same oracle"
        )

"""What an operator keeps: tuples that the oracle has answered, refits. And which oracle it was."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple

import numpy as np

from epfast._arrays import Array
from epfast.inference.files import plain
from epfast.operators.answers import Oracle
from epfast.operators.dictionary import Store
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


class StoredTuple(NamedTuple):
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


def stacked(store: Sequence[StoredTuple]) -> Store:
    """As arrays. The oracle is exact where no answer has an error."""
    x, targets, errors = (
        np.stack([getattr(known, name) for known in store]) for name in ("x", "targets", "errors")
    )
    squares = (errors[:, :-1] ** 2).mean(axis=1)
    mean = float(squares.mean())
    relative = np.maximum(squares / mean, 1e-6) if mean > 0.0 else np.ones(len(x))
    return Store(x, targets, relative, mean)


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

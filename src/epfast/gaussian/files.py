"""Posteriors of rows and processes as files: their fields, as named arrays and plain JSON.

What a class is pickled as, its file holds. Functions of the user are not written: a loss or a
scheme that has some is None when it is read.
"""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
from scipy import sparse

from epfast import _checks, losses, schemes
from epfast._arrays import Array, entries_of
from epfast.inference.files import as_ours, plain
from epfast.inference.records import SweepInfo
from epfast.losses import LatentLoss, Loss, Prior, restore_prior
from epfast.schedules import Schedule
from epfast.schemes import Scheme

#: an axis of an array, see :func:`check_shapes`
AXIS = re.compile(r"[a-z]\+?")
#: sparse matrices by their names
SPARSE = {kind.__name__: kind for kind in (sparse.csr_matrix, sparse.csr_array)}


def contents(post: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays and the header of a file: a tree of objects as JSON, arrays by their path in it.

    Where an object has an array that was met before, it refers to that.
    """
    arrays: dict[str, Any] = {}
    saved: dict[int, tuple[Any, Any]] = {}

    def named_parts(name: str, parts: dict[str, Any]) -> dict[str, Any]:
        return {key: pack(f"{name}.{key}".strip("."), item) for key, item in parts.items()}

    def pack(name: str, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            if id(value) not in saved:
                arrays[name] = value
                saved[id(value)] = value, {"array": name}
            return saved[id(value)][1]
        if hasattr(value, "indptr"):
            parts = {part: getattr(value, part) for part in ("data", "indices", "indptr")}
            return {
                "sparse": type(value).__name__,
                "shape": list(value.shape),
                "parts": [pack(f"{name}.{part}", array) for part, array in parts.items()],
            }
        if isinstance(value, Loss):
            filled = isinstance(value, LatentLoss)
            return {
                "loss": losses.describe(value.with_offset(False)),
                "beta": value.beta,
                "offset": value.has_offset,
                "latents": value.latents if filled else None,
                "correlated": value.correlated if filled else None,
            }
        if isinstance(value, Prior):
            return {"prior": value.describe()}
        if isinstance(value, Scheme):
            return {"scheme": schemes.describe(value)}
        if isinstance(value, Schedule):
            value = as_ours(value)
        if isinstance(value, SweepInfo):
            value = value._replace(factor_cost=None)
        if isinstance(value, dict):
            return {"dict": [[key, pack(f"{name}.{key}", item)] for key, item in value.items()]}
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            named = dict(zip(value._fields, value, strict=True))
            return {"type": type(value).__name__, "fields": named_parts(name, named)}
        if isinstance(value, list | tuple):
            packed = [pack(f"{name}.{k}", item) for k, item in enumerate(value)]
            return {type(value).__name__: packed}
        if is_dataclass(value) or type(value).__module__.startswith("epfast."):
            state = value.__getstate__()
            if is_dataclass(value):  # without what was computed later
                cached = set(vars(value)) - {field.name for field in fields(value)}
                state = {key: item for key, item in state.items() if key not in cached}
            return {"type": type(value).__name__, "fields": named_parts(name, state)}
        return plain(name, value)

    described = pack("", post)
    return arrays, {"posterior": post.kind, "fields": described}


def restored(
    value: Any, arrays: dict[str, Array], kinds: dict[str, Any], given: Loss | None
) -> Any:
    """The object that :func:`contents` has described.

    kinds: classes by their names, the only ones that are made. given: a loss in place of that of
    the file.
    """

    def unpack(value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        if "array" in value:
            return arrays[value["array"]]
        if "sparse" in value:
            triple = tuple(map(unpack, value["parts"]))
            matrix = SPARSE[value["sparse"]](triple, shape=tuple(value["shape"]))
            matrix.check_format(full_check=True)
            return matrix
        if "loss" in value:
            return _loss(value, given)
        if "prior" in value:
            return restore_prior(value["prior"])
        if "scheme" in value:
            return schemes.restore(value["scheme"])
        if "dict" in value:
            return {key: unpack(item) for key, item in value["dict"]}
        if "list" in value:
            return list(map(unpack, value["list"]))
        if "tuple" in value:
            return tuple(map(unpack, value["tuple"]))
        kind = kinds[_checks.choice("type", value["type"], tuple(kinds))]
        parts = {key: unpack(item) for key, item in value["fields"].items()}
        if hasattr(kind, "_fields"):
            return kind(**parts)
        instance = object.__new__(kind)
        if hasattr(kind, "__setstate__"):
            instance.__setstate__(parts)
        else:
            instance.__dict__.update(parts)
        return instance

    return unpack(value)


def check_shapes(post: Any, shapes: str) -> None:
    """Refuse arrays of a posterior that do not fit together, on which compiled code relies.

    shapes: for each array or tuple of arrays its place, and a letter per axis, alternatives behind
    a "|", then a comma. Equal letters are equal lengths, a "+" is one more; "=" stands for integers
    below that length, "?" for numbers that may be infinite.
    """
    lengths: dict[str, int] = {}
    for one in shapes.split(","):
        place, *allowed = one.replace("|", " ").split()
        values = [post]
        for name in place.split("."):
            values = [getattr(value, name) for value in values if value is not None]
            values = [part for v in values for part in (v if type(v) is tuple else (v,))]
        for value in values:
            if value is not None:
                _check_shape(place, value, allowed, lengths)


def _check_shape(place: str, value: Any, allowed: list[str], lengths: dict[str, int]) -> None:
    fitting = [one for one in allowed if len(AXIS.findall(one.split("=")[0])) == value.ndim]
    if not fitting:
        raise ValueError(f"{place} has shape {value.shape}")
    spec = fitting[0]
    axes, _, below = spec.strip("?").partition("=")
    for axis, length in zip(AXIS.findall(axes), value.shape, strict=True):
        more = len(axis) - 1
        if lengths.setdefault(axis[0], length - more) != length - more:
            raise ValueError(f"{place} has shape {value.shape}, and others {lengths[axis[0]]}")
    numbers = entries_of(value)
    if below:
        if numbers.dtype.kind not in "iu" or (numbers.size and not numbers.min() >= 0):
            raise ValueError(f"{place} holds no numbers of rows or columns")
        if numbers.size and numbers.max() >= lengths[below]:
            raise ValueError(f"{place} holds numbers beyond {lengths[below] - 1}")
    elif numbers.dtype.kind not in "fiub" or not (spec[-1] == "?" or np.isfinite(numbers).all()):
        raise ValueError(f"{place} holds NaN or infinity, or no numbers")
    elif spec[-1] == "?" and np.isnan(numbers).any():
        raise ValueError(f"{place} holds NaN")


def _loss(described: dict[str, Any], given: Loss | None) -> Loss | None:
    """The given loss, or that of the file, at the temperature of the fit."""
    beta, latents = float(described["beta"]), described["latents"]
    loss = given
    if given is None and described["loss"] is not None:
        loss = losses.restore(described["loss"], beta)
    elif given is not None and given.beta == 1.0:
        loss = given.tempered(beta)
    if isinstance(loss, LatentLoss) and latents is not None:
        loss = loss.filled(latents, described["correlated"])
    if loss is not None and latents is not None and loss.latents != latents:
        raise ValueError(f"the fit has {latents} latents per row, and the loss is {loss!r}")
    return loss.with_offset() if loss is not None and described["offset"] else loss

"""Posteriors of rows and processes as files: their fields, as named arrays and plain JSON.

What a class is pickled as, its file holds. Functions of the user are not written: a loss or a
scheme that has some is None when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from operator import attrgetter, itemgetter, methodcaller
from typing import NamedTuple, TypeAlias

import numpy as np
from scipy import sparse

from epfast import _checks, losses, schemes
from epfast._arrays import Array, Matrix, entries_of
from epfast.inference.files import Plain, as_ours, plain
from epfast.inference.records import SweepInfo
from epfast.losses import LatentLoss, Loss, Prior, restore_prior
from epfast.schedules import Schedule
from epfast.schemes import Scheme

#: sparse matrices by their names
SPARSE = {kind.__name__: kind for kind in (sparse.csr_matrix, sparse.csr_array)}


#: what a file has of a posterior: numbers, texts, arrays, matrices, and objects of these
Part: TypeAlias = Plain | Array | Loss | Prior | Scheme | sparse.csr_array


class Shape(NamedTuple):
    """What an array of a file has to be."""

    #: a letter per axis, alternatives with a "|". Equal letters are equal lengths
    axes: str
    #: integers from 0 on, below the length that has this letter
    below: str = ""
    #: whether numbers may be infinite
    infinite: bool = False
    #: by how much an axis is longer than its letter says
    more: int = 0


def contents(post: Part) -> tuple[dict[str, Array], dict[str, Plain]]:
    """The arrays and the header of a file: a tree of objects as JSON, arrays by their path in it.

    Where an object has an array that was met before, it refers to that.
    """
    arrays: dict[str, Array] = {}
    saved: dict[int, tuple[Array, Plain]] = {}

    def named_parts(name: str, parts: Mapping[str, Part]) -> Plain:
        return {key: pack(f"{name}.{key}".strip("."), item) for key, item in parts.items()}

    def pack(name: str, value: Part) -> Plain:
        if isinstance(value, np.ndarray):
            if id(value) not in saved:
                arrays[name] = value
                saved[id(value)] = value, {"array": name}
            return saved[id(value)][1]
        if hasattr(value, "indptr"):
            parts = {part: getattr(value, part) for part in ("data", "indices", "indptr")}
            return {
                "sparse": type(value).__name__,
                "shape": list(attrgetter("shape")(value)),
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
            return pack_object(name, as_ours(value))
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
            return pack_object(name, value)
        return plain(name, value)

    def pack_object(name: str, value: Part) -> Plain:
        state = methodcaller("__getstate__")(value)
        if is_dataclass(value):  # without what was computed later
            cached = set(vars(value)) - {field.name for field in fields(value)}
            state = {key: item for key, item in state.items() if key not in cached}
        return {"type": type(value).__name__, "fields": named_parts(name, state)}

    described = pack("", post)
    return arrays, {"posterior": attrgetter("kind")(post), "fields": described}


def restored(
    value: Plain, arrays: dict[str, Array], kinds: Mapping[str, type], given: Loss | None
) -> Part:
    """The object that :func:`contents` has described.

    kinds: classes by their names, the only ones that are made. given: a loss in place of that of
    the file.
    """

    def unpack(value: Plain) -> Part:
        if not isinstance(value, dict):
            return value
        if "array" in value:
            return arrays[itemgetter("array")(value)]
        if "sparse" in value:
            kind, parts, shape = itemgetter("sparse", "parts", "shape")(value)
            matrix = SPARSE[kind](tuple(map(unpack, parts)), shape=tuple(shape))
            matrix.check_format(full_check=True)
            return matrix
        if "loss" in value:
            return _loss(value, given)
        if "prior" in value:
            return restore_prior(itemgetter("prior")(value))
        if "scheme" in value:
            return schemes.restore(itemgetter("scheme")(value))
        if "dict" in value:
            return {key: unpack(item) for key, item in itemgetter("dict")(value)}
        if "list" in value:
            return list(map(unpack, itemgetter("list")(value)))
        if "tuple" in value:
            return tuple(map(unpack, itemgetter("tuple")(value)))
        name, named = itemgetter("type", "fields")(value)
        of_kind = kinds[_checks.choice("type", name, tuple(kinds))]
        fields_of = {key: unpack(item) for key, item in named.items()}
        if hasattr(of_kind, "_fields"):
            return of_kind(**fields_of)
        instance: Part = object.__new__(of_kind)
        if hasattr(instance, "__setstate__"):
            methodcaller("__setstate__", fields_of)(instance)
        else:
            instance.__dict__.update(fields_of)
        return instance

    return unpack(value)


def shapes(owner: str, **places: str | Shape) -> dict[str, Shape]:
    """What arrays, or tuples of arrays, have to be, by their places: attributes of one owner."""
    dot = "." if owner else ""
    return {
        f"{owner}{dot}{name}": Shape(one) if isinstance(one, str) else one
        for name, one in places.items()
    }


def check_shapes(post: Part, shapes: Mapping[str, Shape]) -> None:
    """Refuse arrays of a posterior that do not fit together, on which compiled code relies.

    shapes: see :func:`shapes`. An array comes after those whose lengths bound its numbers.
    """
    lengths: dict[str, int] = {}
    for place, shape in shapes.items():
        for array in _arrays_at(post, place):
            _check_shape(place, array, shape, lengths)


def _arrays_at(part: Part, place: str) -> list[Matrix]:
    name, _, rest = place.partition(".")
    value = attrgetter(name)(part)
    found = [one for one in (value if type(value) is tuple else (value,)) if one is not None]
    return [array for one in found for array in _arrays_at(one, rest)] if rest else found


def _check_shape(place: str, array: Matrix, shape: Shape, lengths: dict[str, int]) -> None:
    axes = next((one for one in shape.axes.split("|") if len(one) == len(array.shape)), None)
    if axes is None:
        raise ValueError(f"{place} has shape {array.shape}")
    for axis, length in zip(axes, array.shape, strict=True):
        if lengths.setdefault(axis, length - shape.more) != length - shape.more:
            raise ValueError(f"{place} has shape {array.shape}, and others {lengths[axis]}")
    numbers = entries_of(array)
    if shape.below:
        if numbers.dtype.kind not in "iu" or (numbers.size and not numbers.min() >= 0):
            raise ValueError(f"{place} holds no numbers of rows or columns")
        if numbers.size and numbers.max() >= lengths[shape.below]:
            raise ValueError(f"{place} holds numbers beyond {lengths[shape.below] - 1}")
    elif numbers.dtype.kind not in "fiub" or not (shape.infinite or np.isfinite(numbers).all()):
        raise ValueError(f"{place} holds NaN or infinity, or no numbers")
    elif shape.infinite and np.isnan(numbers).any():
        raise ValueError(f"{place} holds NaN")


def _loss(described: dict[str, Plain], given: Loss | None) -> Loss | None:
    """The given loss, or that of the file, at the temperature of the fit."""
    beta, latents, saved = itemgetter("beta", "latents", "loss")(described)
    beta, loss = float(beta), given
    if given is None and saved is not None:
        loss = losses.restore(saved, beta)
    elif given is not None and given.beta == 1.0:
        loss = given.tempered(beta)
    if isinstance(loss, LatentLoss) and latents is not None:
        loss = loss.filled(latents, itemgetter("correlated")(described))
    if loss is not None and latents is not None and loss.latents != latents:
        raise ValueError(f"the fit has {latents} latents per row, and the loss is {loss!r}")
    return loss.with_offset() if loss is not None and described["offset"] else loss

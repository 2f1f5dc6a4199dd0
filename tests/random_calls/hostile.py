"""Hostile arguments, and legal ones in other kinds of array."""

from __future__ import annotations

import ctypes
import ctypes.util
import itertools
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from scipy import LowLevelCallable, sparse

import epfast
from tests.random_calls.values import Draw, PlantedError

try:
    import pandas as pd
except ImportError:  # the frames are left out
    pd = None  # type: ignore[assignment]


class Subclass(np.ndarray):
    """An array that keeps its type."""


class Real(float):
    """A float that keeps its type."""


def _raises(margins: Any) -> Any:
    raise PlantedError("planted")


#: functions in place of a loss that return what they should not
BAD_CALLABLES: tuple[Any, ...] = (
    _raises,
    lambda m: np.full(np.shape(m), np.nan),
    lambda m: np.full(np.shape(m), np.inf),
    lambda m: np.zeros(3),
    lambda m: 0.0,
    lambda m: None,
    lambda m: "a",
    lambda m: np.asarray(m, dtype=complex),
    lambda m: -np.square(m) * 1e200,
    lambda m: np.asarray(np.logaddexp(0.0, -m), dtype="f4"),
    lambda m, y: m,
    lambda m: m.fill(0.0),
)


# ---- hostile values ----


@cache
def in_c() -> Any:
    """A loss in C: abs, of any platform's C library."""
    function = ctypes.CDLL(ctypes.util.find_library("m") or ctypes.util.find_library("c")).fabs
    function.argtypes, function.restype = [ctypes.c_double], ctypes.c_double
    return LowLevelCallable(function)


SCALARS: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2, 7, 2**31, 2**63, -(2**63), 10**400),
    *(0.0, -0.0, 0.5, -1.5, math.nan, math.inf, -math.inf, 1e308, -1e308, 1e150, 1e-150),
    *(5e-324, 1e-310, 1e-16, 1e16, np.float32(0.5), np.float32("nan"), np.float16(2.0)),
    *(np.int8(3), np.uint64(2**63), np.int64(2), np.bool_(True), np.longdouble(0.5)),
    *(np.array(1.0), np.array([1.0]), np.array([[1.0]]), np.array("a"), np.array(None)),
    *(np.array([], dtype=float), np.ma.masked, np.datetime64("2020-01-01"), Real(0.5)),
    *(Fraction(1, 3), Decimal("0.5"), 1j, "", "a", "1.0", "logistic", "full", "exact"),
    *("\0", "auto", b"x", [], (), {}, set(), [1.0], (1.0, 2.0), {"a": 1}, [None], [[1], [2, 3]]),
    *(Ellipsis, NotImplemented, int, float, object(), range(3), slice(1), np, np.nan, len),
    *(epfast.EP, epfast.EP(), epfast.Logistic, epfast.Logistic(), epfast.schemes.Exact),
    *(epfast.schemes.Exact(), epfast.ADF(), math.sin, lambda *a: 0, lambda: None),
    *(Path("none"), epfast.Sites(np.zeros(1), np.zeros(1), np.zeros(1))),
)


def scalar(draw: Draw) -> Any:
    """A value of any kind."""
    if draw.chance(0.02):
        return draw.of(BAD_CALLABLES)
    if draw.chance(0.01):
        return in_c()
    return draw.of(SCALARS)


def _planted(draw: Draw, a: np.ndarray, value: Any, dtype: Any = None) -> np.ndarray:
    """A copy with one entry replaced."""
    out = np.array(a, dtype=dtype)
    if out.size:
        out.reshape(-1)[draw.integer(0, out.size - 1)] = value
    return out


def _forged(draw: Draw, a: np.ndarray) -> Any:
    """A sparse matrix that contradicts itself, past SciPy's own checks."""
    found = sparse.csr_matrix(np.atleast_2d(np.asarray(a, dtype=float)))
    pick = draw.integer(0, 6)
    if pick == 0 and found.nnz:
        found.indices[:] = 10**6
    elif pick == 1 and found.nnz:
        found.indices[0] = -5
    elif pick == 2:
        found.data = found.data[: found.nnz // 2].copy()
    elif pick == 3:
        found.indptr[-1] = 10**6
    elif pick == 4:
        found.indptr = found.indptr[:-1].copy()
    elif pick == 5 and len(found.indptr) > 2:
        found.indptr[1] = -1
    else:
        found.indices = found.indices.astype(np.int64)[::-1]
    return found


#: (draw, a legal array of float64) -> something else
SPOILS: tuple[Callable[[Draw, np.ndarray], Any], ...] = (
    lambda draw, a: _planted(draw, a, draw.of((math.nan, math.inf, -math.inf))),
    lambda draw, a: _planted(draw, a, draw.of((math.nan, math.inf, -math.inf))),
    lambda draw, a: np.full_like(a, math.nan),
    lambda draw, a: _planted(draw, a, draw.of((1e308, -1e308, 1e155, 5e-324, 1e-200))),
    lambda draw, a: a * draw.of((1e150, 1e-150, 1e300, 1e-300, 1e-310, 1e20, 1e-20)),
    lambda draw, a: a * 0.0,
    lambda draw, a: -a,
    lambda draw, a: np.full_like(a, 3.0),
    lambda draw, a: a[:-1].copy(),
    lambda draw, a: np.concatenate([a, a]),
    lambda draw, a: a[None],
    lambda draw, a: a[..., None],
    lambda draw, a: a.T.copy(),
    lambda draw, a: a.ravel(),
    lambda draw, a: a[:0],
    lambda draw, a: a[..., :0],
    lambda draw, a: np.float64(a.flat[0]) if a.size else a,
    lambda draw, a: np.array(1.0),
    lambda draw, a: a.astype(bool),
    lambda draw, a: a.astype(complex),
    lambda draw, a: a.astype(str),
    lambda draw, a: a.astype("S3"),
    lambda draw, a: np.zeros(a.shape, dtype="M8[s]"),
    lambda draw, a: np.zeros(a.shape, dtype=[("a", "f8")]),
    lambda draw, a: _planted(draw, a, None, object),
    lambda draw, a: _planted(draw, a, "x", object),
    lambda draw, a: _planted(draw, a, 10**400, object),
    lambda draw, a: np.where(a > 0, np.longdouble("1e4000"), np.longdouble(1)),
    lambda draw, a: np.ma.array(a, mask=draw.rng.random(a.shape) < 0.5),
    lambda draw, a: a.astype(np.float16),
    lambda draw, a: np.nan_to_num(a).astype(np.int8),
    lambda draw, a: np.nan_to_num(abs(a)).astype(np.uint64),
    lambda draw, a: [list(np.atleast_1d(a)[0:1]), 1.0],
    lambda draw, a: iter(a) if a.ndim else iter([]),
    lambda draw, a: (row for row in np.atleast_1d(a)),
    lambda draw, a: sparse.csr_matrix(np.atleast_2d(a)),
    lambda draw, a: sparse.csr_matrix(_planted(draw, np.atleast_2d(a), math.nan)),
    lambda draw, a: sparse.csr_matrix(np.atleast_2d(a)).astype(complex),
    _forged,
    _forged,
    lambda draw, a: None if pd is None else pd.DataFrame(np.atleast_2d(a).astype(str)),
    lambda draw, a: None if pd is None else pd.Series(_planted(draw, a, None, object).ravel()),
    lambda draw, a: None if pd is None else pd.Series(a.ravel().astype(str), dtype="category"),
)


@cache
def _memory_map() -> tuple[np.memmap, Iterator[int]]:
    """Parts of 512 numbers of one file, taken in turn."""
    parts = 64
    with tempfile.TemporaryFile() as file:  # the map has a descriptor of its own
        whole = np.memmap(file, dtype=np.float64, mode="w+", shape=(parts, 512))
    return whole, itertools.cycle(range(parts))


def _mapped(a: np.ndarray) -> np.ndarray:
    if a.size > 512:
        return a
    whole, parts = _memory_map()
    out = whole[next(parts), : a.size].reshape(a.shape)
    out[...] = a
    return out


def _strided(a: np.ndarray) -> np.ndarray:
    out = np.full(tuple(2 * k for k in a.shape), np.nan)[
        tuple(slice(None, None, 2) for _ in a.shape)
    ]
    out[...] = a
    return out


def _unaligned(a: np.ndarray) -> np.ndarray:
    raw = np.zeros(a.nbytes + 1, dtype=np.uint8)
    out = raw[1:].view(np.float64).reshape(a.shape)
    out[...] = a
    return out


def _read_only(a: np.ndarray) -> np.ndarray:
    out = a.copy()
    out.flags.writeable = False
    return out


def _frame(a: np.ndarray) -> Any:
    if pd is None or a.ndim not in (1, 2):
        return a
    index = np.arange(len(a))[::-1] + 5
    return pd.Series(a, index=index) if a.ndim == 1 else pd.DataFrame(a, index=index)


def _sparse(draw: Draw, a: np.ndarray) -> Any:
    """Some kind of sparse matrix; out of order, with duplicates, with zeros that are stored."""
    kind = draw.of(("csr", "csc", "coo", "lil", "dok", "bsr", "dia", "twice", "order", "zeros"))
    kind = "strided" if draw.chance(0.1) else kind
    matrix = draw.of((sparse.csr_matrix, sparse.csr_array))(a)
    if kind == "twice":
        half = sparse.coo_matrix(0.5 * a)
        parts = [np.concatenate([part, part]) for part in (half.data, half.row, half.col)]
        start = np.searchsorted(np.sort(parts[1]), np.arange(len(a) + 1)).astype(np.int32)
        order = np.argsort(parts[1], kind="stable")
        return sparse.csr_matrix((parts[0][order], parts[2][order], start), a.shape)
    if kind == "strided":
        for name in ("data", "indices", "indptr"):
            part = getattr(matrix, name)
            setattr(matrix, name, np.repeat(part, 2)[::2])
        return matrix
    if kind == "order":
        for i in range(len(a)):
            part = slice(matrix.indptr[i], matrix.indptr[i + 1])
            matrix.indices[part] = matrix.indices[part][::-1].copy()
            matrix.data[part] = matrix.data[part][::-1].copy()
        matrix.has_sorted_indices = False
        return matrix
    if kind == "zeros" and matrix.nnz:
        full = np.arange(a.size)
        start = np.arange(len(a) + 1) * a.shape[1]
        return sparse.csr_matrix((a.ravel().copy(), full % a.shape[1], start), a.shape)
    return matrix.asformat(kind) if kind != "zeros" else matrix


#: (draw, array) -> the same numbers otherwise
DRESSES: tuple[Callable[[Draw, np.ndarray], Any], ...] = (
    lambda draw, a: np.asfortranarray(a),
    lambda draw, a: _strided(a),
    lambda draw, a: a[::-1].copy()[::-1],
    lambda draw, a: _read_only(a),
    lambda draw, a: a.tolist(),
    lambda draw, a: tuple(map(tuple, a)) if a.ndim == 2 else tuple(a) if a.ndim == 1 else a,
    lambda draw, a: a.astype(object),
    lambda draw, a: a.astype(">f8"),
    lambda draw, a: a.astype(np.longdouble),
    lambda draw, a: np.ma.array(a),
    lambda draw, a: a.view(Subclass),
    lambda draw, a: _mapped(a),
    lambda draw, a: _unaligned(a),
    lambda draw, a: _frame(a),
    lambda draw, a: a.astype(np.int64) if _are_integers(a) else a,
)


def _are_integers(a: np.ndarray) -> bool:
    return bool(((a == np.rint(a)) & (np.abs(a) < 2.0**53)).all())


def dressed(draw: Draw, a: np.ndarray, may_be_sparse: bool = False) -> Any:
    """The same numbers in another kind of array."""
    if may_be_sparse and a.ndim == 2 and a.size and draw.chance(0.4):
        return _sparse(draw, a)
    return draw.of(DRESSES)(draw, a)


def spoiled(draw: Draw, value: Any) -> Any:
    """Something else in place of a legal value."""
    if isinstance(value, np.ndarray) and draw.chance(0.85):
        try:
            return draw.of(SPOILS)(draw, np.asarray(value, dtype=np.float64))
        except (IndexError, OverflowError, TypeError, ValueError):  # it was spoiled before
            pass
    return scalar(draw)


def snapshot(value: Any) -> Any:
    """What a call could change of an argument, as bytes; None where there is nothing."""
    if isinstance(value, np.ndarray):
        plain = np.asarray(value)
        return plain.tobytes() if plain.dtype != object else repr(plain.tolist())
    if sparse.issparse(value):
        names = ("data", "indices", "indptr", "row", "col", "offsets")
        parts = (getattr(value, name, None) for name in names)
        return tuple(p.tobytes() for p in parts if isinstance(p, np.ndarray) and p.dtype != object)
    if pd is not None and isinstance(value, pd.DataFrame | pd.Series):
        return snapshot(value.to_numpy())  # of strings, objects made anew each time
    if isinstance(value, list | tuple | dict):
        return repr(value)
    return None


def snapshots(given: Mapping[str, Any]) -> dict[str, Any]:
    """:func:`snapshot` of each argument."""
    return {name: snapshot(value) for name, value in given.items()}

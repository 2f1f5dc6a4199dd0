"""What no argument takes, and arrays that are odd but good; the rows X, Y that tests break."""

import copy
import ctypes
import re

import numpy as np
import pytest
from scipy import LowLevelCallable, sparse

import epfast

N, D = 23, 3
RNG = np.random.default_rng(20160601)
X = RNG.normal(size=(N, D))
Y = np.where(X @ [1.0, -1.0, 0.5] + RNG.normal(size=N) > 0, 1.0, -1.0)
MU, VAR, EYE = np.zeros(D), np.ones(D), np.eye(D)
for shared in (X, Y, MU, VAR, EYE):
    shared.flags.writeable = False  # a function that writes into its input fails

NAN, INF, HUGE_INT = float("nan"), float("inf"), 10**400
with np.errstate(over="ignore"):
    BEYOND = 100.0 * np.longdouble(1e308)  # of a double's range; infinite where it is a double
NOT_NUMBERS = ["1", b"1", 1j, True, [1.0], {}, np.ones(2), np.datetime64("2016-01-01")]
NOT_FINITE = [NAN, INF, -INF, np.float32("nan"), BEYOND, HUGE_INT]
NOT_POSITIVE = [0.0, -0.0, -1, -1e-300]
BAD_OPTIONAL = NOT_NUMBERS + NOT_FINITE + NOT_POSITIVE  # where None is good
BAD_POSITIVE = [*BAD_OPTIONAL, None]
BAD_COUNT = [0, -1, 1.5, NAN, "3", True, [3], 1j]  # where None is good
BAD_COUNTS = [*BAD_COUNT, None]
BAD_NAME = ["nope", "", 5, b"exact", ["exact"], True]  # where None is good
BAD_NAMES = [*BAD_NAME, None]
BAD_TOL = [*NOT_NUMBERS, *NOT_FINITE, None, -1e-9]
BAD_SEED = [-1, 1.5, "1", True, [1]]
RAGGED = [[1.0, 2.0], [3.0]]
NOT_REAL = ["text", RAGGED, {}, object(), len, {1.0}, (i for i in range(3)), [[None] * D] * N]
BAD_X = [*NOT_REAL, None, 1j, [HUGE_INT, 1.0], sparse.eye_array(3)]


def put(array, value):
    """A copy of array with one entry replaced, of the wider dtype."""
    out = np.array(array, dtype=np.result_type(np.asarray(array), np.asarray(value)))
    out.flat[out.size // 2] = value
    return out


def bad_contents(good):
    """Arrays of the right shape that hold the wrong things."""
    good = np.asarray(good)
    things, single, long = good.astype(object), good.astype("f4"), good.astype(np.longdouble)
    return [
        *[good.astype(complex), good.astype("M8[s]"), good.astype(str), things * 1j],
        *[put(good, NAN), put(good, INF), put(good, -INF), put(single, np.float32("nan"))],
        *[put(things, None), put(things, HUGE_INT), put(long, BEYOND)],
    ]


def bad_arrays(good):
    good = np.asarray(good)
    shapes = [good[None], good[..., None], good[:0], good[:-1], good[:, None], good[0]]
    return [None, *NOT_REAL, *shapes, *bad_contents(good), sparse.csr_array(np.atleast_2d(good))]


BAD_ROWS = [
    *[v for v in bad_arrays(X) if getattr(v, "shape", None) != (N - 1, D)],
    *[X[:, :0], 5.0, put(np.float32(X), np.float32(INF)), (row for row in X), [[HUGE_INT] * D] * N],
]
BAD_LABELS = [
    *[None, *NOT_REAL, Y[:-1], Y[:, None], Y[None], Y[:0], 1.0, Y > 0, (Y > 0) * 1, Y * 2, 0 * Y],
    *[np.where(Y > 0, "a", "b"), sparse.csr_array(Y[None]), *bad_contents(Y)],
]
REAL, INT = ctypes.c_double, ctypes.c_int
SIGNATURES = ((REAL,), (REAL,) * 3, (INT, REAL), (ctypes.c_float,) * 2, (INT, INT, REAL))
IN_C = [LowLevelCallable(ctypes.CFUNCTYPE(*types)(len)) for types in SIGNATURES]
BAD_LOSS = [*BAD_NAMES, epfast.Hinge, 1.0, LowLevelCallable, *IN_C]


def every_bad_value(keywords, positions=()):
    """Parametrise a test by (name, call, value).

    ``keywords`` are (argument, functions that take it by keyword, values that each refuses);
    ``positions`` are (argument that the error names, call of a value, values).
    """
    calls = [
        (name, lambda v, f=f, name=name: f(**{name: v}), values)
        for name, functions, values in keywords
        for f in functions
    ]
    return pytest.mark.parametrize(
        ("name", "call", "value"),
        [
            pytest.param(name, call, value, id=f"{i}-{name}-{j}")
            for i, (name, call, values) in enumerate([*calls, *positions])
            for j, value in enumerate(values)
        ],
    )


def check_error(name, call, value):
    """The call raises an error that names the argument and says what is allowed; value stays."""
    before = copy.deepcopy(value) if isinstance(value, np.ndarray) else None
    with pytest.raises((ValueError, TypeError)) as caught:
        call(value)
    message = str(caught.value)
    assert re.search(rf"\b{name}\b", message[:40]), message
    assert re.search(r"allow(ed|s)|any more; write", message), message
    assert len(message) < 500, message
    if before is not None:
        np.testing.assert_array_equal(value, before)


# ---- odd but good ----


def unaligned(array):
    out = np.zeros(array.nbytes + 1, dtype=np.uint8)[1:].view(array.dtype).reshape(array.shape)
    out[...] = array
    return out


def frozen(array):
    out = array.copy()
    out.flags.writeable = False
    return out


LAYOUTS = {
    "fortran": np.asfortranarray,
    "strided": lambda a: np.kron(a, np.ones((2,) * a.ndim, a.dtype))[
        (slice(None, None, 2),) * a.ndim
    ],
    "rows_strided": lambda a: np.repeat(a, 2, axis=0)[::2],
    "rows_reversed": lambda a: a[::-1].copy()[::-1],
    "all_reversed": lambda a: np.flip(np.flip(a).copy()),
    "read_only": frozen,
    "big_endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "unaligned": unaligned,
    "list": lambda a: a.tolist(),
    "objects": lambda a: a.astype(object),
    "longdouble": lambda a: a.astype(np.longdouble),
}


def odd_rows(layout, dtype):
    """Rows in the given layout and type, and the same as plain float64."""
    rows = np.array(X if dtype[0] == "f" else np.round(3 * X) % 2).astype(dtype)
    return LAYOUTS[layout](rows), np.ascontiguousarray(rows, dtype=np.float64)

"""Bad input gets its error, odd but good input gets the plain result, nothing gives NaN silently."""

import ctypes
import io
import re
import threading
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import LowLevelCallable, sparse

import epfast
from epfast import (
    ADF,
    EP,
    CustomLoss,
    Hinge,
    Logistic,
    Loss,
    NoisyStep,
    PiecewiseLinear,
    Probit,
    Quasi01,
    backend,
    fit_linear,
    load,
)
from epfast.schemes import Laplace, Quadrature, QuickLaplace, Variational

CLEAN = (ValueError, TypeError, FloatingPointError)
N, D = 23, 3
RNG = np.random.default_rng(20160601)
X = RNG.normal(size=(N, D))
Y = np.where(X @ [1.0, -1.0, 0.5] + RNG.normal(size=N) > 0, 1.0, -1.0)
for shared in (X, Y):
    shared.flags.writeable = False  # whoever writes into its input fails here
MU, VAR = np.zeros(D), np.ones(D)
LOSSES = ["logistic", "hinge", "quasi01", "probit", "noisy_step"]
SCHEMES = ["variational", "quadrature", "laplace", "quick_laplace"]


def put(array, value):
    """A copy of array with one entry replaced."""
    out = np.array(array, dtype=np.result_type(np.asarray(array).dtype, type(value)))
    out.flat[out.size // 2] = value
    return out


def fit(rows=X, labels=Y, **arguments):
    return fit_linear(rows, labels, **({"schedule": EP(sweeps=2)} | arguments))


def stream(*chunks, **arguments):
    return fit_linear(iter(chunks), **({"schedule": ADF()} | arguments))


def minibatch(loss="logistic", yX=X, mean=MU, variance=VAR, *args, **arguments):
    return backend.fit_minibatch(loss, yX, mean, variance, *args, **arguments)


def posterior(**arguments):
    return fit(**arguments)


# ---- the table of bad values ----

NAN, INF = float("nan"), float("inf")
NOT_NUMBERS = [None, "1", b"1", 1j, True, [1.0], {}, np.ones(2), np.datetime64("2016-01-01")]
NOT_FINITE = [NAN, INF, -INF, np.float32("nan"), np.longdouble("1e4000"), 10**400]
NOT_POSITIVE = [0.0, -0.0, -1, -1e-300]
NOT_COUNTS = [0, -1, 1.5, NAN, "3", True, [3], 1j]
NOT_NAMES = ["nope", "", 5, None, b"exact", ["exact"]]
POSITIVE = NOT_NUMBERS + NOT_FINITE + NOT_POSITIVE
RAGGED = [[1.0, 2.0], [3.0]]
NOT_REAL = ["text", RAGGED, {}, object(), lambda: 0]


def bad_arrays(good):
    """Wrong in shape, type or content, whatever the argument."""
    good = np.asarray(good)
    return [
        *NOT_REAL,
        None,
        good[None],
        good[..., None],
        good[:0],
        good[:-1],
        good.astype(complex),
        good.astype("M8[s]"),
        good.astype(str),
        good.astype(object) * 1j,
        put(good, NAN),
        put(good, INF),
        put(good, -INF),
        put(good.astype(np.float32), np.float32("nan")),
        put(good.astype(object), None),
        put(good.astype(object), 10**400),
        put(good.astype(np.longdouble), np.longdouble("1e4000")),
        sparse.csr_array(np.atleast_2d(good)),
    ]


def bad_rows():
    """For X: any number of rows will do, unless it is none."""
    odd = [X[:, :0], 5.0, [[10**400] * D] * N, np.float32(X) * np.float32(INF), (x for x in X)]
    return [v for v in bad_arrays(X) if np.shape(v) != (N - 1, D)] + odd if True else []


POST = posterior()
FLAT = fit(schedule=ADF())
RULE_4 = RNG.normal(size=(15, 4))
SQUARE = np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)], dtype=float)
POINTS, WEIGHTS = backend.sigma_points(MU, VAR)
LOGS = -0.5 * (POINTS**2).sum(axis=1)
EYE = np.eye(D)

BAD = {
    "X": (lambda v: fit(v), []),
}

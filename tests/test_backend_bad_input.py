"""Functions of epfast.backend: bad input gets its error, odd good input the plain result."""

import copy
from functools import partial

import numpy as np
import pytest

import epfast
from epfast import backend
from epfast.schemes import QuickLaplace, Variational
from tests.oracles.bad_values import (
    BAD_LOSS,
    BAD_NAMES,
    BAD_OPTIONAL,
    BAD_ROWS,
    BAD_X,
    LAYOUTS,
    MU,
    NOT_REAL,
    VAR,
    X,
    bad_arrays,
    bad_contents,
    check_error,
    every_bad_value,
    odd_rows,
    put,
)

POINTS, WEIGHTS = backend.sigma_points(MU, VAR)
CUBE = np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)], dtype=float)
ONES = np.ones(4)


def minibatch(loss="logistic", yX=X, mean=MU, variance=VAR, scheme="variational", **arguments):
    return backend.fit_minibatch(loss, yX, mean, variance, scheme, **arguments)


def bound(X=X, mean=MU, variance=VAR):
    return backend.Minibatch("logistic", "variational", len(MU)).fit(X, mean, variance)


def tilted(loss="logistic", y=ONES, mean=ONES, variance=ONES, **arguments):
    return backend.tilted_moments(loss, y, mean, variance, **arguments)


KEYWORDS = [
    ("loss", [minibatch, tilted], BAD_LOSS),
    ("scheme", [minibatch], [*BAD_NAMES, "exact", "relaxed", Variational, len]),
    ("scheme", [tilted], [*BAD_NAMES, Variational, len]),
    ("beta", [minibatch, tilted], BAD_OPTIONAL),
    ("power", [tilted], [*(v for v in BAD_OPTIONAL if type(v) is not list), None]),
    ("gamma", [partial(backend.sigma_points, MU, VAR)], BAD_OPTIONAL),
    ("margins", [epfast.Hinge().evaluate], BAD_X),
    ("y", [tilted, partial(tilted, "gaussian")], [*bad_contents(ONES), ONES[:-1], *NOT_REAL]),
    ("y", [tilted], [2.0 * ONES, ONES[None]]),
    ("mean", [tilted], [*bad_contents(ONES), *NOT_REAL, ONES[:-1]]),
    ("variance", [partial(tilted, mean=0 * ONES)], [*bad_contents(ONES), -ONES, 0 * ONES, 0.0]),
    ("yX", [minibatch], [v for v in BAD_ROWS if not hasattr(v, "send")]),
    ("yX", [partial(minibatch, mean=1e200 * VAR)], [X * 1e200]),
    ("X", [bound], [v for v in BAD_ROWS if not hasattr(v, "send")]),
    ("mean", [minibatch, bound], bad_arrays(MU)),
    ("mean", [partial(backend.sigma_points, variance=VAR)], [*bad_contents(MU), 5.0, *NOT_REAL]),
    ("variance", [minibatch, bound], [*bad_arrays(VAR), 0 * VAR, put(VAR, -1.0)]),
    ("variance", [partial(backend.sigma_points, MU)], [*bad_arrays(VAR), 0 * VAR, -VAR]),
]
POSITIONS = [
    ("scheme", lambda v: minibatch(loss="noisy_step", scheme=v), ["laplace", QuickLaplace()]),
    ("rule", lambda v: minibatch(scheme=Variational(rule=(v, WEIGHTS))), bad_arrays(POINTS)),
    ("rule", lambda v: minibatch(scheme=Variational(rule=(POINTS, v))), bad_arrays(WEIGHTS)),
    ("rule", lambda v: minibatch(scheme=Variational(rule=(POINTS, v))), [-WEIGHTS, 0 * WEIGHTS]),
    ("rule", lambda v: minibatch(scheme=Variational(rule=(POINTS, v))), [put(WEIGHTS, 0.0)]),
    ("rule", lambda v: minibatch(scheme=Variational(rule=(v, np.ones(8)))), [CUBE, 0 * CUBE]),
    ("mean", lambda v: backend.sigma_points(v, v), [[]]),
]


@every_bad_value(KEYWORDS, POSITIONS)
def test_error_names_the_argument(name, call, value):
    check_error(name, call, value)


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "i1", "u2", "?"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_types(layout, dtype):
    convert = LAYOUTS[layout]
    given, plain = odd_rows(layout, dtype)
    before = copy.deepcopy(given)
    want = minibatch(yX=plain, mean=X[0], variance=VAR + 1)
    for got in (
        minibatch(yX=given, mean=convert(X[0]), variance=convert(VAR + 1)),
        bound(given, convert(X[0]), convert(VAR + 1)),
    ):
        np.testing.assert_allclose(np.hstack(got), np.hstack(want), rtol=1e-12)
    logistic = epfast.Logistic()
    np.testing.assert_array_equal(logistic.evaluate(given), logistic.evaluate(plain))
    np.testing.assert_array_equal(given, before)

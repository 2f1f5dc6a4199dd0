"""Schemes: bad arguments get their error."""

import numpy as np
import pytest

import epfast
from epfast import schemes
from epfast.schemes import ImportanceSampling, Laplace, Quadrature, QuickLaplace, Variational
from tests.oracles.bad_values import (
    BAD_COUNT,
    BAD_COUNTS,
    BAD_NAME,
    BAD_NAMES,
    BAD_OPTIONAL,
    BAD_POSITIVE,
    BAD_SEED,
    BAD_TOL,
    check_error,
    every_bad_value,
)

POINTS, WEIGHTS = epfast.backend.sigma_points(np.zeros(3), np.ones(3))
KEYWORDS = [
    ("scheme", [schemes.resolve], [*BAD_NAMES, Variational, len]),
    ("gamma", [Quadrature, Variational], BAD_OPTIONAL),
    ("curvature", [Laplace, QuickLaplace], BAD_NAME),
    ("tol", [Laplace], BAD_TOL),
    ("max_iter", [Laplace], BAD_COUNTS),
    ("solver", [Variational], BAD_NAMES),
    ("rule", [Variational], [*BAD_NAMES, (), (POINTS,), [POINTS, WEIGHTS]]),
    ("samples", [ImportanceSampling], [*BAD_COUNTS, 1, 10**10]),
    ("seed", [ImportanceSampling], [*BAD_SEED, None]),
    ("weight", [schemes.Relaxed], BAD_POSITIVE),
    ("objective", [schemes.Relaxed], BAD_NAMES),
    ("freeze", [schemes.Relaxed], BAD_COUNT),
    ("scheme", [schemes.Relaxed], [*BAD_NAMES, "exact", Laplace, schemes.Relaxed()]),
]
POSITIONS = [("gamma", lambda v: Variational(v, "fifth"), [1.0])]


@every_bad_value(KEYWORDS, POSITIONS)
def test_error_names_the_argument(name, call, value):
    check_error(name, call, value)


@pytest.mark.parametrize("name", schemes.NAMED)
def test_a_name_is_a_class_with_its_defaults(name):
    scheme = schemes.resolve(name)
    assert scheme == schemes.NAMED[name]()
    assert schemes.resolve(scheme) is scheme
    described = schemes.describe(scheme)
    assert described["name"] == name
    assert schemes.restore(described) == scheme

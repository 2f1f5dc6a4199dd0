"""Patches against the functions that they interpolate."""

import numpy as np
import pytest

from epfast import backend
from epfast._core.just_in_time import JustInTime, LearnedSite
from epfast._core.loss import CoreLoss
from epfast._core.tilted import TiltedMoments
from epfast.operators.patches import Patches

EXACT = backend.TiltedMoments("logistic")


def logistic(m, v):
    lZ, dlZ, d2lZ = EXACT(np.ones_like(m), m, v)
    return dlZ * np.sqrt(v), np.log1p(v * d2lZ), lZ


def cavities(n=9000, seed=1):
    rng = np.random.default_rng(seed)
    return rng.normal(0, 4, n), np.exp(rng.uniform(-3, 3, n))


@pytest.mark.parametrize(("tolerance", "leaves", "calls"), [(1e-4, 25, 5000), (1e-6, 60, 11_000)])
def test_the_logistic_factor(tolerance, leaves, calls):
    """Some dozens of boxes hold 9000 messages to the tolerance."""
    patches = Patches(logistic, tolerance)
    m, v = cavities()
    found, exact = patches.predict(m, v), logistic(m, v)
    assert 1 < patches.leaves <= leaves
    assert patches.leaves * 81 <= patches.calls <= calls
    assert np.abs(found.shift - exact[0]).max() < tolerance / 2
    assert np.abs(found.log_ratio - exact[1]).max() < tolerance / 2
    assert (np.abs(found.log_z - exact[2]) / np.maximum(1, np.abs(exact[2]))).max() < tolerance / 2
    assert found.error.max() <= tolerance
    # what is built stays; what it says does not depend on who was there before
    before = patches.calls
    again = patches.predict(m, v)
    assert patches.calls == before
    other = Patches(logistic, tolerance).predict(m[::-1], v[::-1])
    for one, two, three in zip(found, again, other, strict=True):
        np.testing.assert_array_equal(one, two)
        np.testing.assert_allclose(one, three[::-1], rtol=0, atol=2 * tolerance)


def polynomial(m, v):
    u = np.log(v)
    return m**3 - 2 * m * u**2, u**4 + m, 1 + m * u


def test_polynomials_are_exact_in_one_box():
    patches = Patches(polynomial, 1e-3, box=((-1, 2), (-2, 1)))
    rng = np.random.default_rng(0)
    m, v = rng.uniform(-1, 2, 500), np.exp(rng.uniform(-2, 1, 500))
    found = patches.predict(m, v)
    for one, two in zip(found[:3], polynomial(m, v), strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-12)
    assert (patches.leaves, patches.calls) == (1, 81)


def test_the_outer_box_grows():
    """In both directions of both axes; what was fitted stays."""
    patches = Patches(logistic, 1e-4, box=((0, 1), (0, 1)))
    patches.predict([0.5], [1.5])
    assert patches.leaves == 1
    m = np.array([-700.0, 30.0, 5000.0, 0.0, 0.5, 1e6])
    v = np.array([1.0, 1e-6, 1e4, 1e5, 1.5, 1e-8])
    found, exact = patches.predict(m, v), logistic(m, v)
    assert np.abs(found.shift - exact[0]).max() < 1e-4
    assert np.abs(found.log_ratio - exact[1]).max() < 1e-4
    before = patches.calls
    patches.predict(m, v)
    assert patches.calls == before


def test_too_far_for_boxes():
    """Beyond 64 doublings the function itself is asked."""
    patches = Patches(lambda m, v: (m * 0, m * 0, m * 0 + 2.0))
    found = patches.predict([1e200, 0.0], [1.0, 1.0])
    np.testing.assert_allclose(found.log_z, [2.0, 2.0], rtol=1e-13)
    assert (patches.leaves, patches.calls) == (1, 82)


def step(m, v):
    return np.abs(m), m * 0, m * 0


def test_a_kink_is_cut_down_to_the_smallest_boxes():
    patches = Patches(step, 1e-6, box=((-1, 2), (-1, 1)), depth=5)
    m = np.linspace(-1, 2, 400)
    found = patches.predict(m, np.ones(400))
    exact = np.abs(m)
    np.testing.assert_array_less(np.abs(found.shift - exact), 0.02)
    rough = found.error > 1e-6  # and says so
    assert 0 < rough.mean() < 0.1
    np.testing.assert_allclose(found.shift[~rough], exact[~rough], atol=1e-6)


def test_beyond_so_many_leaves_the_function_is_asked():
    patches = Patches(logistic, 1e-6, leaves=3)
    m, v = cavities(300)
    found = patches.predict(m, v)
    assert patches.leaves == 3
    for one, two in zip(found[:3], logistic(m, v), strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)
    assert (found.error == 0.0).sum() > 100
    none = Patches(logistic, leaves=0).predict(m, v)
    np.testing.assert_array_equal(none.shift, logistic(m, v)[0])


def half(m, v):
    return np.where(m > 0.1, np.sin(m), np.nan), m * 0, m * 0


def test_where_the_function_has_no_number():
    patches = Patches(half, 1e-6, box=((-1, 1), (-1, 1)), depth=4)
    found = patches.predict([0.3, 0.9, 0.12], np.ones(3))
    np.testing.assert_allclose(found.shift, np.sin([0.3, 0.9, 0.12]), atol=1e-6)
    with pytest.raises(FloatingPointError, match="1 of 2 cavities"):
        patches.predict([0.3, 0.05], np.ones(2))


def test_errors_come_through_and_leave_the_boxes_as_they_were():
    fail = [True]

    def shaky(m, v):
        if fail[0]:
            raise KeyError("mine")
        return logistic(m, v)

    patches = Patches(shaky, 1e-4)
    with pytest.raises(KeyError, match="mine"):
        patches.predict([0.0], [1.0])
    fail[0] = False
    np.testing.assert_allclose(patches.predict([0.0], [1.0]).log_z, np.log(0.5), atol=1e-4)


@pytest.mark.parametrize(
    "moments",
    [
        lambda m, v: (m, v),
        lambda m, v: None,
        lambda m, v: (m, v, v[1:]),
        lambda m, v: (m, v, "a"),
        lambda m, v: (m, v, 1j * v),
        lambda m, v: 1.0,
    ],
)
def test_functions_that_return_something_else(moments):
    with pytest.raises(ValueError, match=r"moments returned.*allowed"):
        Patches(moments).predict([0.0], [1.0])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tolerance": 0.0}, ValueError),
        ({"tolerance": np.nan}, ValueError),
        ({"tolerance": "a"}, TypeError),
        ({"box": ((1, 0), (0, 1))}, ValueError),
        ({"box": ((0, 1), (0, np.inf))}, ValueError),
        ({"box": (0, 1)}, ValueError),
        ({"depth": -1}, ValueError),
        ({"depth": 1.5}, TypeError),
        ({"leaves": -1}, ValueError),
        ({"moments": 3}, TypeError),
    ],
)
def test_bad_arguments(options, error):
    with pytest.raises(error, match="allowed"):
        Patches(**{"moments": logistic} | options)


def test_bad_cavities():
    patches = Patches(logistic)
    for m, v in (([0.0], [0.0]), ([np.nan], [1.0]), ([0.0, 1.0], [1.0]), ([0.0], [np.inf])):
        with pytest.raises(ValueError, match="allowed"):
            patches.predict(m, v)


def test_they_answer_sites():
    """As the model of a site of the core: the oracle is never asked; errors come through."""
    patches = Patches(logistic, 1e-8)
    core, m, v = CoreLoss.table("logistic"), *cavities(2000)
    y = np.random.default_rng(3).choice([-1.0, 1.0], 2000)
    jit = JustInTime(3, tolerance=1e-6)
    jit.model = patches.core
    site = LearnedSite(core, jit, lambda *given: None)
    lZ, dlZ, d2lZ = np.empty((3, 2000))
    moments = TiltedMoments(core, scheme=site)
    assert moments.many(y[:, None], m, v, np.ones(2000), lZ, dlZ, d2lZ) == 0
    exact = EXACT(y, m, v)
    np.testing.assert_allclose(lZ, exact[0], rtol=1e-7, atol=1e-8)
    np.testing.assert_allclose(dlZ * np.sqrt(v), exact[1] * np.sqrt(v), atol=1e-8)
    np.testing.assert_allclose(d2lZ * v, exact[2] * v, atol=1e-8)
    assert (jit.calls, jit.visits) == (0, 2000)

    def fails(m, v):
        raise KeyError("mine")

    jit.model = Patches(fails).core
    with pytest.raises(KeyError, match="mine"):
        moments.many(y[:, None], m, v, np.ones(2000), lZ, dlZ, d2lZ)

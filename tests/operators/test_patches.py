"""Patches against the functions that they interpolate."""

import pickle

import numpy as np
import pytest

import epfast
from epfast import backend
from epfast._core.just_in_time import JustInTime, LearnedSite
from epfast._core.loss import CoreLoss
from epfast._core.tilted import TiltedMoments
from epfast.operators import SiteOracle
from epfast.operators.messages import KINDS
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


# ---- operators of patches ----


def operator(**given):
    return epfast.Operator(SiteOracle("logistic"), features="patches", **given)


def test_an_operator_of_patches():
    """Messages to the tolerance; another cavity in known boxes asks nothing but audits."""
    op = operator(tolerance=1e-5, audit=0.05)
    messages = np.column_stack(cavities(2000))
    exact = SiteOracle("logistic").answer(messages)
    targets = KINDS["gaussian"].targets
    found = op.project(messages)
    assert np.abs(targets(messages, found) - targets(messages, exact.belief)).max() < 1e-5
    assert op.visits == 2000
    assert op.audits > 50
    assert not any(wrong for _, wrong in op.audited)
    assert op.calls == op.learner.asked + op.audits
    assert op.learner.asked % 81 == 0
    asked = op.learner.asked
    np.testing.assert_allclose(op.project(messages), found, rtol=1e-14)
    assert op.learner.asked == asked
    known, sd = op.predict(messages)
    np.testing.assert_allclose(known[:, 2], exact.log_z, rtol=0, atol=1e-4)
    assert sd.max() <= 1e-5


def test_a_fit_with_patches_is_exact_to_its_tolerance():
    """1e-6 without an argument, in 5 sweeps of 400 rows; the same boxes serve the next fit."""
    rng = np.random.default_rng(3)
    X = rng.normal(size=(400, 4))
    y = np.where(X @ [1.0, -2.0, 0.0, 0.5] + rng.logistic(size=400) > 0, 1, -1)
    loss = epfast.CustomLoss(lambda margin: np.logaddexp(0.0, -margin))
    exact = epfast.fit_linear(X, y, loss="logistic")
    post = epfast.fit_linear(
        X, y, loss=loss, scheme=epfast.Learned(oracle="exact", features="patches")
    )
    assert np.abs((post.mean - exact.mean) / np.sqrt(exact.variance)).max() < 1e-5
    assert abs(post.log_evidence - exact.log_evidence) < 1e-3
    again = epfast.fit_linear(X, y, loss=loss, scheme=epfast.Learned(post.operator))
    assert again.operator.learner.asked == post.operator.learner.asked
    assert sum(info.n_calls for info in post.history) == post.operator.calls
    assert sum(info.n_audits for info in post.history) == post.operator.audits > 0
    assert exact.history[0].n_calls is None
    K = np.exp(-0.5 * (X[:60, None] - X[:60]) ** 2).prod(axis=2)
    process = epfast.fit_gp(K, y[:60], loss=loss, scheme=epfast.Learned(post.operator))
    truth = epfast.fit_gp(K, y[:60], loss="logistic")
    np.testing.assert_allclose(process.mean, truth.mean, rtol=0, atol=1e-5)


def test_patches_in_a_graph():
    def fitted(*factor):
        graph = epfast.Graph()
        x = graph.gaussian(3, variance=[1.0, 4.0, 9.0])
        graph.add(epfast.graph.Factor(*factor), x[[0, 1, 2, 1]])
        return graph.fit()

    post = fitted(None, operator(tolerance=1e-6, audit=0.0))
    exact = fitted(lambda x: -np.logaddexp(0.0, -x), "quadrature")
    np.testing.assert_allclose(post.log_evidence, exact.log_evidence, rtol=0, atol=1e-5)
    asked = [info.n_calls for info in post.history]
    assert asked[0] > 0 == asked[-1]


@pytest.mark.parametrize("way", ["copy", "pickle", "file"])
def test_boxes_are_kept(way, tmp_path):
    op = operator(tolerance=1e-4)
    messages = np.column_stack(cavities(300))
    found = op.project(messages)
    if way == "file":
        op.save(tmp_path / "op.npz")
        other = epfast.load(tmp_path / "op.npz")
    else:
        other = op.copy() if way == "copy" else pickle.loads(pickle.dumps(op))
    assert (other.calls, other.visits, other.audits) == (op.calls, op.visits, op.audits)
    np.testing.assert_array_equal(other.predict(messages)[0], op.predict(messages)[0])
    asked = op.learner.asked
    np.testing.assert_array_equal(other.project(messages), found)
    assert other.learner.asked == asked
    # by itself from here on
    other.project([[90.0, 1e-3]])
    assert other.learner.asked > op.learner.asked == asked


@pytest.mark.parametrize(
    "broken",
    [
        {"links": lambda a: a["links"] * 0},
        {"links": lambda a: np.where(a["links"] == 0, 5, a["links"])},
        {"links": lambda a: a["links"][:-1]},
        {"boxes": lambda a: a["boxes"] * np.nan},
        {"boxes": lambda a: a["boxes"][:, ::-1]},
        {"coefficients": lambda a: a["coefficients"][:-1]},
        {"coefficients": lambda a: a["coefficients"] + np.inf},
        {"root": lambda a: np.array(len(a["boxes"]))},
        {"root": lambda a: np.array(-1)},
        {"asked": lambda a: np.array(-1)},
    ],
)
def test_boxes_that_are_no_tree_are_refused(broken):
    op = operator(tolerance=1e-3)
    op.project(np.column_stack(cavities(200)))
    ((name, change),) = broken.items()
    arrays = op.learner.arrays()
    other = operator(tolerance=1e-3)
    with pytest.raises((ValueError, OverflowError)):
        other.learner.restore({**arrays, name: change(arrays)})
    other.learner.restore(arrays)
    np.testing.assert_array_equal(other.predict([[0.3, 1.0]])[0], op.predict([[0.3, 1.0]])[0])


def test_kinks_stay_with_the_oracle():
    """Boxes as small as may be: the oracle is asked, and its answer is exact."""
    op = epfast.Operator(SiteOracle("hinge"), features="patches", tolerance=1e-9)
    messages = np.column_stack(cavities(20))
    found = op.project(messages)
    exact = SiteOracle("hinge").answer(messages).belief
    targets = KINDS["gaussian"].targets
    assert np.abs(targets(messages, found) - targets(messages, exact)).max() < 1e-8


def test_what_patches_cannot_do():
    factor = epfast.SampledFactor(log_density=lambda x: -np.logaddexp(0.0, -x), draws=100)
    for given in (
        {"coordinates": "value"},
        {"targets": "belief"},
        {"threshold": -8.0},
        {"inputs": ("gamma",)},
        {"inputs": ("gaussian", "gaussian")},
    ):
        with pytest.raises(ValueError, match="features is 'patches'"):
            epfast.Operator(SiteOracle("logistic"), **given, features="patches")
    with pytest.raises(ValueError, match="answers have noise"):
        epfast.Operator(factor, features="patches")
    with pytest.raises(ValueError, match="keep no tuples"):
        operator().learn([[0.0, 1.0]], [[0.0, 0.0, 0.0]])
    with pytest.raises(ValueError, match="keep no tuples"):
        operator() + operator()
    with pytest.raises(ValueError, match="scheme without a loss"):
        epfast.Operator("exact", features="patches").project([[0.0, 1.0]])
    X, y = np.ones((5, 1)), [1.0, 2.0, 0.0, 4.0, 2.0]
    with pytest.raises(ValueError, match="features is 'patches'"):
        epfast.fit_linear(
            X, y, loss="poisson", scheme=epfast.Learned(oracle="exact", features="patches")
        )

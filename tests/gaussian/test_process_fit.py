"""fit_gp: schedules, what goes in, and what is refused."""

import numpy as np
import pytest

import epfast
from epfast import EP, ConvergenceWarning, fit_gp
from tests.oracles.data import process

TIGHT = {"sweeps": 300, "tol": 1e-11}


def test_warm_start_and_resume():
    _, K, y = process(60)
    schedule = EP(6, 0.0, order="shuffled", seed=2)
    whole = fit_gp(K, y, schedule=schedule)
    half = fit_gp(K, y, schedule=EP(3, 0.0, order="shuffled", seed=2))
    again = fit_gp(K, y, schedule=EP(3, 0.0, order="shuffled", seed=2), start=half)
    assert again.n_sweeps == 6
    np.testing.assert_allclose(again.mean, whole.mean, rtol=0, atol=1e-10)
    settled = fit_gp(K, y, schedule=EP(**TIGHT))
    assert fit_gp(K, y, schedule=EP(**TIGHT), start=settled).history[0].change < 1e-10
    near = fit_gp(1.1 * K, y, schedule=EP(**TIGHT), start=settled)
    assert near.log_evidence == pytest.approx(
        fit_gp(1.1 * K, y, schedule=EP(**TIGHT)).log_evidence, rel=1e-10
    )


def test_callback_and_damping():
    _, K, y = process(30)
    seen = []
    gp = fit_gp(K, y, callback=lambda info, state: seen.append((info.sweep, state)) or True)
    assert len(seen) == gp.n_sweeps == 1
    assert not gp.converged
    slow = fit_gp(K, y, schedule=EP(300, 1e-10, damping=0.3))
    fast = fit_gp(K, y, schedule=EP(300, 1e-10))
    np.testing.assert_allclose(slow.mean, fast.mean, atol=1e-8)


def test_overwriting_the_kernel():
    _, K, y = process(70)
    plain, mine = fit_gp(K, y), K.copy()
    gp = fit_gp(mine, y, overwrite_K=True)
    assert np.shares_memory(gp.factor, mine)
    np.testing.assert_array_equal(gp.mean, plain.mean)
    with pytest.raises(ValueError, match="overwrite_K"):
        fit_gp(K.astype(np.float32), y, overwrite_K=True)
    with pytest.raises(ValueError, match="overwrite_K"):
        fit_gp(np.asfortranarray(K), y, overwrite_K=True)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.longdouble])
def test_layouts(dtype):
    _, K, y = process(20)
    given = K.astype(dtype)
    want = fit_gp(given.astype(np.float64), y)
    wide = np.empty((40, 40), dtype)
    wide[::2, ::2] = given
    for matrix in (given, np.asfortranarray(given), wide[::2, ::2], given.tolist()):
        if isinstance(matrix, np.ndarray):
            matrix.flags.writeable = False
        for labels in (y, y.astype(int), y.astype(np.float32), y.tolist()):
            np.testing.assert_allclose(fit_gp(matrix, labels).mean, want.mean, rtol=1e-9)
    integers = np.diag([1, 2, 3])
    np.testing.assert_allclose(
        fit_gp(integers, [1, -1, 1]).variance[0], fit_gp([[1]], [1]).variance
    )


@pytest.mark.parametrize(
    ("K", "message"),
    [
        (np.ones((2, 3)), r"K has shape \(2, 3\)"),
        (np.ones(4), "K has shape"),
        (np.empty((0, 0)), "K has shape"),
        ([[1.0, np.nan], [np.nan, 1.0]], "NaN"),
        ([[1.0, np.inf], [np.inf, 1.0]], "infinity"),
        ([[1.0, 0.5], [0.4, 1.0]], "not symmetric"),
        ([[1.0, 2.0], [2.0, 1.0]], "not positive semi-definite"),
        ([[1.0, 0.0], [0.0, -1.0]], "negative diagonal"),
        ([["a", "b"], ["c", "d"]], "dtype"),
        ([[1j, 0], [0, 1j]], "dtype"),
    ],
)
def test_bad_kernels(K, message):
    with pytest.raises((ValueError, TypeError), match=message):
        fit_gp(K, [1, -1])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"y": [1, 2]}, "y"),
        ({"y": [1, -1, 1]}, "y"),
        ({"y": [1, np.nan]}, "y"),
        ({"loss": "nope"}, "loss"),
        ({"scheme": "nope"}, "scheme"),
        ({"scheme": "laplace", "loss": "noisy_step"}, "jump"),
        ({"schedule": epfast.SEP()}, "schedule"),
        ({"schedule": epfast.ADF()}, "schedule"),
        ({"beta": 0.0}, "beta"),
        ({"jitter": -1.0}, "jitter"),
        ({"jitter": np.nan}, "jitter"),
        ({"start": 3}, "start"),
        ({"callback": 3}, "callback"),
        ({"progress": 3}, "progress"),
        ({"overwrite_K": 1}, "overwrite_K"),
    ],
)
def test_bad_arguments(arguments, message):
    given = {"y": [1, -1]} | arguments
    with pytest.raises((ValueError, TypeError), match=message):
        fit_gp(np.eye(2), **given)


def test_one_class_and_one_observation():
    _, K, _ = process(30)
    gp = fit_gp(K, np.ones(30))
    assert gp.converged
    assert (gp.mean > 0).all()
    assert np.isfinite(fit_gp([[1e-300]], [1]).log_evidence)


def test_jitter_is_added_to_the_diagonal():
    _, K, y = process(30)
    np.testing.assert_allclose(
        fit_gp(K, y, jitter=0.5).mean, fit_gp(K + 0.5 * np.eye(30), y).mean, rtol=1e-10
    )


@pytest.mark.parametrize("scale", [1e-300, 1e-12, 1e12])
def test_extreme_scales(scale):
    _, K, y = process(30, variance=1.0)
    try:
        gp = fit_gp(scale * K, y, schedule=EP(50, 1e-6))
    except FloatingPointError:
        return
    assert np.isfinite(gp.mean).all()
    assert np.isfinite(gp.log_evidence)


def test_the_input_is_not_changed():
    _, K, y = process(30)
    K_before, y_before = K.copy(), y.copy()
    fit_gp(K, y, jitter=0.1, schedule=EP(3, 0.0))
    np.testing.assert_array_equal(K, K_before)
    np.testing.assert_array_equal(y, y_before)


def test_not_settled_is_said():
    _, K, y = process(60, variance=1e3)
    with pytest.warns(ConvergenceWarning, match="did not converge"):
        gp = fit_gp(K, y, schedule=EP(2, 1e-10))
    assert not gp.converged

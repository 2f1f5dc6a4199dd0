"""Your own loss: Python callables and C functions against the built-in ones."""

import ctypes
import math
import threading
import weakref

import numpy as np
import pytest
from scipy import LowLevelCallable

import epfast
from tests.oracles.data import first_column

SIGMOID = lambda m: 1 / (1 + np.exp(-m))  # noqa: E731
PYTHON = epfast.CustomLoss(
    lambda m: np.logaddexp(0, -m), lambda m: SIGMOID(m) - 1, lambda m: SIGMOID(m) * SIGMOID(-m)
)

SCALAR = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)
SCALAR_DATA = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double, ctypes.c_void_p)
DOUBLES = ctypes.POINTER(ctypes.c_double)
BATCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, DOUBLES, DOUBLES, ctypes.c_void_p)


def batch_logistic(n, m, out, user):
    scale = ctypes.cast(user, DOUBLES)[0] if user else 1.0
    for i in range(n):
        p = float(SIGMOID(m[i]))
        triple = (np.logaddexp(0, -m[i]), p - 1, p * (1 - p))
        for j in range(3):
            out[3 * i + j] = scale * triple[j]
    return 0


SCALAR_C = SCALAR(lambda m: np.logaddexp(0, -m))
SCALAR_DATA_C = SCALAR_DATA(lambda m, user: ctypes.cast(user, DOUBLES)[0] * np.logaddexp(0, -m))
BATCH_C = BATCH(batch_logistic)
FAILING_C = BATCH(lambda n, m, out, user: 3)
SILENT_C = BATCH(lambda n, m, out, user: 0)


def data(n=37, d=5):
    return first_column(n, d)


def fit(X, y, **given):
    """Minibatches of a factorised posterior, five sweeps."""
    given = {"batch_size": 10, "schedule": epfast.EP(sweeps=5, tol=0)} | given
    given = ({} if given["batch_size"] is None else {"scheme": "variational"}) | given
    return epfast.fit_linear(X, y, posterior="factorized", prior_variance=25.0, **given)


def user_data(value):
    number = ctypes.c_double(value)
    return number, ctypes.cast(ctypes.pointer(number), ctypes.c_void_p)


@pytest.mark.parametrize("scheme", ["variational", "quadrature", "quick_laplace", "laplace"])
@pytest.mark.parametrize("loss", [PYTHON, LowLevelCallable(BATCH_C)], ids=["python", "batch"])
def test_a_callable_equals_the_built_in_loss(loss, scheme):
    X, y = data()
    given = {"scheme": scheme, "batch_size": 4, "schedule": epfast.EP(sweeps=2, tol=0)}
    mine = fit(X, y, loss=loss, **given)
    built_in = fit(X, y, loss="logistic", **given)
    np.testing.assert_allclose(mine.mean, built_in.mean, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(mine.precision, built_in.precision, rtol=1e-7)
    np.testing.assert_allclose(mine.log_evidence, built_in.log_evidence, rtol=1e-8)
    np.testing.assert_allclose(mine.predict_proba(X), built_in.predict_proba(X), rtol=1e-6)


def test_value_only_callables():
    X, y = data()
    built_in = fit(X, y, schedule=epfast.ADF())
    number, pointer = user_data(1.0)
    for loss in (
        lambda m: np.logaddexp(0, -m),
        LowLevelCallable(SCALAR_C),
        LowLevelCallable(SCALAR_DATA_C, pointer),
    ):
        mine = fit(X, y, loss=loss, schedule=epfast.ADF())
        np.testing.assert_allclose(mine.mean, built_in.mean, rtol=1e-8, atol=1e-10)
        with pytest.raises(ValueError, match="slope and curvature"):
            fit(X, y, loss=loss, scheme="quick_laplace")
    assert number.value == 1.0


def test_user_data_reaches_the_function():
    m = np.linspace(-300, 300, 301)  # more than one block
    number, pointer = user_data(2.5)
    value, slope, curvature = epfast.CustomLoss(LowLevelCallable(BATCH_C, pointer)).evaluate(m)
    expected = epfast.Logistic().evaluate(m)
    for got, want in zip((value, slope, curvature), expected, strict=True):
        np.testing.assert_allclose(got, number.value * want, rtol=1e-9, atol=1e-15)


def test_errors_come_through():
    X, y = data()

    class OwnError(Exception):
        pass

    def fails(m):
        raise OwnError("on purpose")

    with pytest.raises(OwnError, match="on purpose"):
        fit(X, y, loss=fails)
    with pytest.raises(RuntimeError, match="C function"):
        fit(X, y, loss=LowLevelCallable(FAILING_C))
    for result, match in [
        (lambda m: m[:-1], "shape"),
        (lambda m: m + 1j, "complex"),
        (lambda m: ["a"] * len(m), "dtype"),
        (lambda m: m * np.nan, "NaN"),
    ]:
        with pytest.raises((TypeError, ValueError), match=match):
            fit(X, y, loss=result)
    with pytest.raises(FloatingPointError):
        epfast.backend.fit_minibatch(LowLevelCallable(SILENT_C), X, np.zeros(5), np.ones(5))


class Compiled:
    """What numba.cfunc makes: called with numbers, with the C function as ``ctypes``."""

    def __init__(self, function, values):
        self.ctypes, self.values = function, values

    def __call__(self, *values):
        return self.values(*values)


SITE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, DOUBLES, DOUBLES, DOUBLES, ctypes.c_void_p)


@SITE
def site_in_c(n, m, v, out, user):
    for i in range(n):  # exp(h / 2 - h^2 / 2), whose integral is Gaussian
        s, z = 1.0 + v[i], m[i] - 0.5
        out[3 * i] = 0.125 - 0.5 * np.log(s) - 0.5 * z * z / s
        out[3 * i + 1], out[3 * i + 2] = -z / s, -1.0 / s
    return 0


@pytest.mark.parametrize("function", [SCALAR_C, SCALAR_DATA_C, BATCH_C])
def test_a_compiled_function_needs_no_wrapper(function):
    """A function of ctypes, or an object with one, is the LowLevelCallable of it."""
    X, y = data(10, 2)
    user = () if function is not SCALAR_DATA_C else user_data(1.0)[1:]
    if user:  # which such an object cannot carry
        function = SCALAR_DATA(lambda m, user: np.logaddexp(0, -m))
    right = epfast.fit_linear(X, y)
    made = Compiled(function, lambda m: np.logaddexp(0, -m))
    for loss in (function, made, epfast.CustomLoss(made), LowLevelCallable(function)):
        post = epfast.fit_linear(X, y, loss=loss)
        np.testing.assert_allclose(post.mean, right.mean, rtol=1e-8, atol=1e-10)
        assert not post.loss.core().interpreted


def test_a_compiled_site_needs_no_wrapper():
    """t = exp(h / 2 - h^2 / 2) of the margin is a Gaussian: ridge regression on targets y / 2."""
    X, y = data()
    mean = np.linalg.solve(np.eye(5) + X.T @ X, X.T @ (0.5 * y))
    made = Compiled(site_in_c, lambda n, m, v, out, user: 0)
    for loss in (site_in_c, made, epfast.CustomSite(made)):
        np.testing.assert_allclose(epfast.fit_linear(X, y, loss=loss).mean, mean, rtol=1e-8)
    with pytest.raises(ValueError, match="allowed: 'double"):
        epfast.CustomLoss(made)


def test_a_posterior_keeps_the_machine_code():
    """It goes with the object that compiled it."""
    X, y = data()
    made = Compiled(SCALAR(lambda m: np.logaddexp(0, -m)), None)
    held, post = weakref.ref(made), epfast.fit_linear(X, y, loss=made)
    del made
    assert held() is not None
    post.partial_fit(X, y)
    del post
    assert held() is None


def test_a_function_of_numbers_is_refused_in_words():
    X, y = data()

    def value(m):
        return np.log1p(np.exp(-m)) if m > -30 else -m

    def moments(m, v):
        return math.log1p(m * m), 0.0, -0.1

    bare = ctypes.CDLL(None).abs  # without argtypes
    for loss, name in ((value, "value"), (epfast.CustomSite(moments), "moments")):
        with pytest.raises(
            TypeError, match=f"{name} takes a number .*; allowed: a function of arr"
        ):
            epfast.fit_linear(X, y, loss=loss)
    with pytest.raises(ValueError, match=r"loss is .* argtypes"):
        epfast.fit_linear(X, y, loss=bare)
    right = epfast.fit_linear(X, y)
    post = epfast.fit_linear(X, y, loss=np.vectorize(value))
    np.testing.assert_allclose(post.mean, right.mean, rtol=1e-8, atol=1e-10)


def test_wrong_signature():
    wrong = ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(lambda m: m)
    with pytest.raises(ValueError, match="allowed: 'double \\(double\\)'"):
        epfast.CustomLoss(LowLevelCallable(wrong))


def test_a_callable_may_keep_or_overwrite_what_it_is_given():
    X, y = data()
    kept = []

    def value(m):
        kept.append(m)
        result = np.logaddexp(0, -m)
        m[:] = np.nan
        return result

    loss = epfast.CustomLoss(value, PYTHON.slope, PYTHON.curvature)
    for scheme in ("variational", "laplace"):
        mine = fit(X, y, loss=loss, scheme=scheme, schedule=epfast.ADF())
        built_in = fit(X, y, scheme=scheme, schedule=epfast.ADF())
        np.testing.assert_allclose(mine.mean, built_in.mean, rtol=1e-7, atol=1e-9)
    assert all(np.isnan(m).all() for m in kept)


def test_nothing_is_kept_alive():
    class Value:
        def __call__(self, m):
            return np.logaddexp(0, -m)

    X, y = data()
    value = Value()
    gone = weakref.ref(value)
    fit(X, y, loss=epfast.CustomLoss(value))
    del value
    assert gone() is None


def test_threads_do_not_meet():
    X, y = data(200, 6)
    losses = ["logistic", "hinge", PYTHON, LowLevelCallable(BATCH_C)]
    expected = [fit(X, y, loss=loss).mean for loss in losses]
    got = [None] * len(losses)

    def work(i):
        got[i] = fit(X, y, loss=losses[i]).mean

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(losses))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for a, b in zip(got, expected, strict=True):
        np.testing.assert_array_equal(a, b)

"""Bad input gets its error, odd good input the plain result, and nothing gives NaN silently."""

import copy
import ctypes
import json
import re
import tracemalloc
import warnings
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import LowLevelCallable, sparse

import epfast
from epfast import ADF, EP, CustomLoss, Loss, PiecewiseLinear, backend, fit_linear, load
from epfast.schemes import Laplace, Quadrature, QuickLaplace, Variational

CLEAN = (ValueError, TypeError, FloatingPointError)
N, D = 23, 3
RNG = np.random.default_rng(20160601)
X = RNG.normal(size=(N, D))
Y = np.where(X @ [1.0, -1.0, 0.5] + RNG.normal(size=N) > 0, 1.0, -1.0)
MU, VAR, EYE = np.zeros(D), np.ones(D), np.eye(D)
for shared in (X, Y, MU, VAR, EYE):
    shared.flags.writeable = False  # a function that writes into its input fails

LOSSES = ["logistic", "hinge", "quasi01", "probit", "noisy_step"]
SCHEMES = ["variational", "quadrature", "laplace", "quick_laplace"]
POINTS, WEIGHTS = backend.sigma_points(MU, VAR)
LOGS = -0.5 * (POINTS**2).sum(axis=1)
CUBE = np.array([[i, j, k] for i in (-1, 1) for j in (-1, 1) for k in (-1, 1)], dtype=float)


def fit(rows=X, labels=Y, **arguments):
    return fit_linear(rows, labels, **({"schedule": EP(sweeps=2)} | arguments))


def stream(*chunks, **arguments):
    return fit_linear(iter(chunks), **({"schedule": ADF()} | arguments))


def minibatch(loss="logistic", yX=X, mean=MU, variance=VAR, scheme="variational", **arguments):
    return backend.fit_minibatch(loss, yX, mean, variance, scheme, **arguments)


def rule_fit(points=POINTS, weights=WEIGHTS, log_values=LOGS, **arguments):
    return backend.variational_fit(points, weights, log_values, **arguments)


POST, ONE_PASS = fit(), fit(schedule=ADF())


# ---- bad values: (argument, call of a value, values) ----


def put(array, value):
    """A copy of array with one entry replaced, of the wider dtype."""
    out = np.array(array, dtype=np.result_type(np.asarray(array), np.asarray(value)))
    out.flat[out.size // 2] = value
    return out


NAN, INF, HUGE_INT = float("nan"), float("inf"), 10**400
NOT_NUMBERS = ["1", b"1", 1j, True, [1.0], {}, np.ones(2), np.datetime64("2016-01-01")]
NOT_FINITE = [NAN, INF, -INF, np.float32("nan"), np.longdouble("1e4000"), HUGE_INT]
NOT_POSITIVE = [0.0, -0.0, -1, -1e-300]
BAD_GAMMA = NOT_NUMBERS + NOT_FINITE + NOT_POSITIVE
BAD_POSITIVE = [*BAD_GAMMA, None]
BAD_COUNT = [0, -1, 1.5, NAN, "3", True, [3], 1j]
BAD_NAME = ["nope", "", 5, b"exact", ["exact"], True]
RAGGED = [[1.0, 2.0], [3.0]]
NOT_REAL = ["text", RAGGED, {}, object(), len, {1.0}, (i for i in range(3)), [[None] * D] * N]


def bad_contents(good):
    """Arrays of the right shape that hold the wrong things."""
    good = np.asarray(good)
    return [
        good.astype(complex),
        good.astype("M8[s]"),
        good.astype(str),
        good.astype(object) * 1j,
        put(good, NAN),
        put(good, INF),
        put(good, -INF),
        put(good.astype(np.float32), np.float32("nan")),
        put(good.astype(object), None),
        put(good.astype(object), HUGE_INT),
        put(good.astype(np.longdouble), np.longdouble("1e4000")),
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
ROWS_TO_PREDICT = [
    *[X[:, :2], X[0], X[None], 5.0, None, "text", RAGGED, X[:, :, None], sparse.csr_array(X)],
    *[X * 1e200, [[1e308] * D], *bad_contents(X)],
]
BAD_PRIOR = [
    *[v for v in BAD_POSITIVE if not isinstance(v, list)],
    *[[1.0, 2.0], VAR[:, None], EYE, RAGGED, np.array([]), 1e-320, [1e-320] * D],
    *[put(VAR, 0.0), put(VAR, -1.0), *bad_contents(VAR)],
]
BAD_PRIOR_PRECISION = [
    *[5.0, VAR, np.eye(D + 1), EYE[None], RAGGED, "text", EYE + 1e-9, -EYE, 0 * EYE, 1e-320 * EYE],
    *[sparse.csr_array(EYE), *bad_contents(EYE)],
]
BAD_LOSS = [*BAD_NAME, None, epfast.Hinge, 1.0, LowLevelCallable]
BAD_SCHEME = [*BAD_NAME, None, "exact", Variational, len]
UNKNOWN = [5, [1], object()]
TABLE = [
    ("X", lambda v: fit(v), BAD_ROWS),
    ("X", lambda v: stream((v, Y)), [v for v in BAD_ROWS if v is not None]),
    ("X", lambda v: fit_linear(v, schedule=ADF()), [[], iter([]), iter([None]), iter([(X,)])]),
    ("X", lambda v: stream((X, Y), v), [None, X, (X, Y, Y), 5, (X[:, :2], Y), (put(X, NAN), Y)]),
    ("X", lambda v: fit(iter([(X, Y)]), v), [Y]),
    ("X", lambda v: stream((X, Y), schedule=v), [EP(), ADF(order="shuffled", seed=1)]),
    ("y", lambda v: fit(labels=v), BAD_LABELS),
    ("y", lambda v: fit(X.tolist(), v), [None]),
    ("y", lambda v: stream((X, v)), BAD_LABELS),
    ("y", lambda v: stream((X, Y), (X, v)), [Y[:-1], 0 * Y, None]),
    ("loss", lambda v: fit(loss=v), BAD_LOSS),
    ("loss", lambda v: minibatch(v), BAD_LOSS),
    ("loss", lambda v: backend.loss_values(v, [1.0]), BAD_LOSS),
    ("name", lambda v: Loss(v), [*BAD_NAME, None, "piecewise_linear"]),
    ("scheme", lambda v: fit(scheme=v), BAD_SCHEME),
    ("scheme", lambda v: minibatch(scheme=v), BAD_SCHEME),
    ("scheme", lambda v: fit(loss="noisy_step", scheme=v), ["laplace", QuickLaplace()]),
    ("scheme", lambda v: fit(loss=np.square, scheme=v), ["quick_laplace", Laplace()]),
    ("posterior", lambda v: fit(posterior=v), [*BAD_NAME, None, "full"]),
    ("batch_size", lambda v: fit(batch_size=v), [*BAD_COUNT, None, 10**30]),
    ("prior_variance", lambda v: fit(prior_variance=v), BAD_PRIOR),
    ("prior_precision", lambda v: fit(prior_precision=v), BAD_PRIOR_PRECISION),
    ("prior_precision", lambda v: fit(prior_precision=v, prior_variance=3.0), [EYE]),
    ("schedule", lambda v: fit(schedule=v), [EP, "EP", *UNKNOWN]),
    ("beta", lambda v: fit(beta=v), BAD_POSITIVE),
    ("beta", lambda v: minibatch(beta=v), BAD_POSITIVE),
    ("gamma", lambda v: fit(gamma=v), BAD_GAMMA),
    ("gamma", lambda v: fit(gamma=v, scheme=Quadrature()), [1.0]),
    ("gamma", lambda v: minibatch(gamma=v), BAD_GAMMA),
    ("gamma", lambda v: backend.sigma_points(MU, VAR, v), BAD_GAMMA),
    ("gamma", lambda v: Quadrature(v), BAD_GAMMA),
    ("gamma", lambda v: Variational(v), BAD_GAMMA),
    ("gamma", lambda v: Variational(v, "fifth"), [1.0]),
    ("gamma", lambda v: fit(scheme=Variational(v, solver="newton")), [0.5, 1.0, 1e-200, 1e200]),
    ("curvature", lambda v: fit(curvature=v), [*BAD_NAME, None]),
    ("curvature", lambda v: minibatch(curvature=v), [*BAD_NAME, None]),
    ("curvature", lambda v: fit(curvature=v, scheme=Laplace()), ["slope"]),
    ("curvature", lambda v: Laplace(v), [*BAD_NAME, None]),
    ("curvature", lambda v: QuickLaplace(v), [*BAD_NAME, None]),
    ("site_rule", lambda v: fit(site_rule=v), [*BAD_NAME, None]),
    ("record", lambda v: fit(record=v), BAD_NAME),
    ("record", lambda v: stream((X, Y), record=v), ["cost", "factor"]),
    ("callback", lambda v: fit(callback=v), [5, "stop", [len]]),
    ("start", lambda v: fit(start=v), [*UNKNOWN, POST.state, POST.mean, ONE_PASS]),
    ("start", lambda v: fit(X[:, :2], start=v), [POST]),
    ("start", lambda v: fit(batch_size=5, start=v), [POST]),
    ("start", lambda v: fit(X[:, :2], start=v, schedule=ADF()), [ONE_PASS, POST]),
    ("sweeps", lambda v: EP(sweeps=v), [*BAD_COUNT, None]),
    ("tol", lambda v: EP(tol=v), [*NOT_NUMBERS, *NOT_FINITE, None, -1e-9]),
    ("damping", lambda v: EP(damping=v), [*BAD_POSITIVE, 1.1]),
    ("power", lambda v: EP(power=v), BAD_POSITIVE),
    ("power", lambda v: ADF(power=v), BAD_POSITIVE),
    ("order", lambda v: EP(order=v), [*BAD_NAME, None]),
    ("order", lambda v: ADF(order=v), [*BAD_NAME, None, "parallel"]),
    ("block", lambda v: EP(block=v), BAD_COUNT),
    ("seed", lambda v: EP(order="shuffled", seed=v), [-1, 1.5, "1", True, [1], None]),
    ("seed", lambda v: ADF(order="shuffled", seed=v), [-1, 1.5, "1", True, [1], None]),
    ("tol", lambda v: Laplace(tol=v), [*NOT_NUMBERS, *NOT_FINITE, None, -1e-9]),
    ("max_iter", lambda v: Laplace(max_iter=v), [*BAD_COUNT, None]),
    ("rule", lambda v: Variational(rule=v), [*BAD_NAME, None, (), (POINTS,), [POINTS, WEIGHTS]]),
    ("rule", lambda v: fit(scheme=Variational(rule=(v, WEIGHTS))), bad_arrays(POINTS)),
    ("rule", lambda v: fit(scheme=Variational(rule=(POINTS, v))), bad_arrays(WEIGHTS)),
    ("rule", lambda v: fit(scheme=Variational(rule=(POINTS, v))), [-WEIGHTS, put(WEIGHTS, 0.0)]),
    ("rule", lambda v: fit(scheme=Variational(rule=(v, np.ones(8)))), [CUBE, 0 * CUBE]),
    ("rule", lambda v: fit(RNG.normal(size=(N, 5)), scheme=Variational(rule=v)), ["fifth"]),
    ("solver", lambda v: Variational(solver=v), [*BAD_NAME, None]),
    ("epsilon", lambda v: epfast.Quasi01(v), [*BAD_POSITIVE, 1e-320]),
    ("epsilon", lambda v: epfast.NoisyStep(v), [*BAD_POSITIVE, 0.5, 0.7]),
    ("knots", lambda v: PiecewiseLinear(v, (0.0,) * 4), [(), (1, 0, 2), (1, 1, 2), 5.0, *NOT_REAL]),
    ("knots", lambda v: PiecewiseLinear(v, (0.0,) * 4), bad_contents([0.0, 1.0, 2.0])),
    ("knots", lambda v: PiecewiseLinear(v, (0.0, 1.0, 0.0)), [(-1e308, 1e308)]),
    ("slopes", lambda v: PiecewiseLinear((0.0, 1.0), v), bad_arrays([-1.0, 0.0, 1.0])),
    ("value", lambda v: PiecewiseLinear((0.0,), (0.0, 1.0), v), [*NOT_NUMBERS, *NOT_FINITE, None]),
    ("jumps", lambda v: PiecewiseLinear((0, 1), (0, 0, 0), 0, v), bad_arrays([1.0, 2.0])[1:]),
    ("value", lambda v: CustomLoss(v), [None, 5, "logistic", np.ones(3)]),
    ("slope", lambda v: CustomLoss(np.square, v), [5, "x", np.ones(3)]),
    ("curvature", lambda v: CustomLoss(np.square, np.square, v), [5, "x", np.ones(3)]),
    ("parameters", lambda v: Loss("logistic", v), [(1.0,), None, 5]),
    ("margins", lambda v: epfast.Logistic().evaluate(v), [*NOT_REAL, None, 1j, sparse.eye(3)]),
    ("margins", lambda v: backend.loss_values("hinge", v), [*NOT_REAL, None, [HUGE_INT, 1.0]]),
    ("yX", lambda v: minibatch(yX=v), [v for v in BAD_ROWS if not hasattr(v, "send")]),
    ("yX", lambda v: minibatch(yX=v, mean=1e200 * VAR), [X * 1e200]),
    ("mean", lambda v: minibatch(mean=v), bad_arrays(MU)),
    ("variance", lambda v: minibatch(variance=v), [*bad_arrays(VAR), 0 * VAR, put(VAR, -1.0)]),
    ("mean", lambda v: backend.sigma_points(v, VAR), [*bad_contents(MU), 5.0, *NOT_REAL]),
    ("mean", lambda v: backend.sigma_points(v, v), [[]]),
    ("variance", lambda v: backend.sigma_points(MU, v), [*bad_arrays(VAR), 0 * VAR, -VAR]),
    ("points", lambda v: rule_fit(v), [*bad_contents(POINTS), *NOT_REAL, POINTS[0], 5.0, None]),
    ("points", lambda v: rule_fit(v), [0 * POINTS, put(0 * POINTS, 1.0), POINTS[:, :0]]),
    ("points", lambda v: rule_fit(v, np.ones(8), np.arange(8.0)), [CUBE]),
    ("points", lambda v: rule_fit(v, WEIGHTS, LOGS, basis="full"), [POINTS]),
    ("weights", lambda v: rule_fit(weights=v), [*bad_arrays(WEIGHTS), 0 * WEIGHTS, -WEIGHTS]),
    ("log_values", lambda v: rule_fit(log_values=v), bad_arrays(LOGS)),
    ("basis", lambda v: rule_fit(basis=v), [*BAD_NAME, None]),
    ("start", lambda v: rule_fit(start=v), [*BAD_NAME, None]),
    *[
        ("x", getattr(backend, name), [*NOT_REAL, None, 1j, [HUGE_INT, 1.0], sparse.eye(3)])
        for name in ("exp", "expm1", "log", "log1p", "erfcx", "log_ndtr")
    ],
    ("X", lambda v: POST.predict_latent(v), ROWS_TO_PREDICT),
    ("X", lambda v: POST.predict_proba(v), ROWS_TO_PREDICT),
    ("size", lambda v: POST.sample(v, 1), [-1, 1.5, "3", None, True, (2, 3)]),
    ("rng", lambda v: POST.sample(3, v), [-1, 1.5, "3", None, True, np.random.RandomState]),
    ("path", lambda v: POST.save(v), [None, 5, 2**40, True, 1.5, [1]]),
    ("path", lambda v: load(v), [None, 5, 2**40, True, 1.5, [1]]),
]


@pytest.mark.parametrize(
    ("name", "call", "value"),
    [
        pytest.param(name, call, value, id=f"{i}-{name}-{j}")
        for i, (name, call, values) in enumerate(TABLE)
        for j, value in enumerate(values)
    ],
)
def test_error_names_the_argument(name, call, value):
    before = copy.deepcopy(value) if isinstance(value, np.ndarray) else None
    with pytest.raises((ValueError, TypeError)) as caught:
        call(value)
    message = str(caught.value)
    assert re.search(rf"\b{name}\b", message[:40]), message
    assert re.search(r"allow(ed|s)", message), message
    assert len(message) < 500, message
    if before is not None:
        np.testing.assert_array_equal(value, before)


# ---- odd but good input: the same result as the plain array ----


def spread(array):
    """The array as every second entry, along each axis, of a larger one."""
    out = np.full([2 * k for k in array.shape], 1, array.dtype)
    view = out[tuple(slice(None, None, 2) for _ in array.shape)]
    view[...] = array
    return view


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
    "strided": spread,
    "rows_strided": lambda a: np.repeat(a, 2, axis=0)[::2],
    "rows_reversed": lambda a: a[::-1].copy()[::-1],
    "all_reversed": lambda a: np.flip(np.flip(a).copy()),
    "read_only": frozen,
    "big_endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "unaligned": unaligned,
    "list": lambda a: a.tolist(),
    "objects": lambda a: a.astype(object),
    "subclass": lambda a: a.view(type("Sub", (np.ndarray,), {})),
    "longdouble": lambda a: a.astype(np.longdouble),
}


def same(one, other, rtol=1e-12):
    for name in ("mean", "variance", "log_evidence", "n_refused", "n_sweeps"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol, err_msg=name)


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "i1", "u2", "?"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_types(layout, dtype):
    convert = LAYOUTS[layout]
    rows = np.array(X if dtype[0] == "f" else np.round(3 * X) % 2).astype(dtype)
    plain = np.ascontiguousarray(rows, dtype=np.float64)
    given, labels = convert(rows), Y if layout == "objects" else convert(Y)
    before = copy.deepcopy(given)
    arguments = {"batch_size": 4, "loss": "probit", "record": "factor"}
    for schedule in (EP(sweeps=2), ADF()):
        one = fit(given, labels, schedule=schedule, **arguments)
        same(one, fit(plain, Y, schedule=schedule, **arguments))
    np.testing.assert_allclose(one.predict_proba(given), one.predict_proba(plain), rtol=1e-12)
    got = minibatch(yX=given, mean=convert(X[0]), variance=convert(VAR + 1))
    for a, b in zip(got, minibatch(yX=plain, mean=X[0], variance=VAR + 1), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    values = backend.loss_values("logistic", given)
    np.testing.assert_array_equal(values, epfast.Logistic().evaluate(plain))
    np.testing.assert_array_equal(backend.exp(given), backend.exp(plain))
    np.testing.assert_array_equal(given, before)


@pytest.mark.parametrize("dtype", ["f8", "f4", "i2"])
def test_memory_map(tmp_path, dtype):
    np.save(tmp_path / "rows.npy", (2 * X).astype(dtype))
    mapped = np.load(tmp_path / "rows.npy", mmap_mode="r")
    same(fit(mapped, Y), fit((2 * X).astype(dtype).astype(float), Y))


def test_data_frame():
    pandas = pytest.importorskip("pandas")
    frame, series = pandas.DataFrame(X, columns=list("abc")), pandas.Series(Y.astype(int))
    same(fit(frame, series), fit())
    same(fit(frame.assign(b=1), series), fit(np.column_stack([X[:, 0], np.ones(N), X[:, 2]])))
    for column in ("text", pandas.array([1.0, *[pandas.NA] * (N - 1)])):
        with pytest.raises((TypeError, ValueError), match=r"\bX\b"):
            fit(frame.assign(b=column), series)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 1), (7, 1), (5, 9)])
def test_small_shapes(shape, scheme):
    rows, labels = RNG.normal(size=shape), np.ones(shape[0])
    for schedule in (EP(sweeps=2), ADF()):
        arguments = {"scheme": scheme, "schedule": schedule}
        whole = fit(rows, labels, batch_size=shape[0], **arguments)
        for batch_size in (shape[0] + 1, 10**12, np.int64(10**18)):
            same(fit(rows, labels, batch_size=batch_size, **arguments), whole)
        check_finite(fit(rows, labels, batch_size=1, **arguments))
        in_threes = fit(rows, labels, batch_size=3, **arguments)
    parts = [(rows[i : i + 1], labels[i : i + 1]) for i in range(shape[0])]
    same(stream(*parts, batch_size=3, scheme=scheme), in_threes)


def test_input_stays_and_results_are_not_views_of_it():
    rows, labels = np.array(X), np.array(Y)
    post = fit(rows, labels, batch_size=N)
    mean, sites = post.mean.copy(), copy.deepcopy(post.sites)
    fit(rows, labels, batch_size=N, start=post, callback=lambda info, state: True)
    np.testing.assert_array_equal(rows, X)
    np.testing.assert_array_equal(labels, Y)
    rows[:], labels[:] = NAN, 0.0
    np.testing.assert_array_equal(post.mean, mean)
    for part, before in zip(post.sites, sites, strict=True):
        np.testing.assert_array_equal(part, before)


# ---- the ends of the number line ----

ZEROS = (0.0, 0.0, 0.0)
ENDS = {
    "logistic": ((INF, -1.0, 0.0), ZEROS),
    "probit": ((INF, -INF, 1.0), ZEROS),
    "hinge": ((INF, -1.0, 0.0), ZEROS),
    "quasi01": ((INF, -0.1, 0.0), ZEROS),
    "noisy_step": ((-np.log(0.1), 0.0, 0.0), (-np.log(0.9), 0.0, 0.0)),
}


@pytest.mark.parametrize("loss", ENDS)
def test_losses_at_the_ends(loss):
    for count in (1, 9):  # a lone lane and whole vectors
        for margin, wanted in zip((-INF, INF, NAN), (*ENDS[loss], (NAN,) * 3), strict=True):
            got = backend.loss_values(loss, np.full(count, margin))
            np.testing.assert_allclose(got, np.repeat([wanted], count, 0).T, rtol=1e-15)
    assert not np.isnan(backend.loss_values(loss, [1e308, -1e308, 1e-308, 5e-324, -0.0])).any()


@pytest.mark.parametrize("mean", [-50.0, -1e6, -1e9, -1e12, -1e100, -1e150])
@pytest.mark.parametrize("variance", [1e-12, 1e-6, 1e-5, 1e-4, 1.0])
def test_probit_far_in_the_tail(mean, variance):
    """There -log Phi(m) is m^2 / 2 + log|m| + ..., of curvature 1 - 1/m^2 + ..."""
    precision, shift, _ = minibatch("probit", [[1.0]], [mean], [variance])
    np.testing.assert_allclose(precision, 1.0 - 1.0 / mean**2, rtol=1e-5)
    np.testing.assert_allclose(shift, -2.0 / mean, rtol=1e-2, atol=1e-10 * abs(mean))


@pytest.mark.parametrize("d", [2, 4, 8, 9, 17])
@pytest.mark.parametrize("loss", LOSSES)
def test_columns_do_not_disturb_each_other(loss, d):
    """A column whose steps are beyond the fast range shares a vector with tiny ones."""
    rows = np.full((5, d), 1e-13)
    alone = minibatch(loss, rows, np.zeros(d), np.ones(d))
    rows[:, 0] = 1e6
    beside = minibatch(loss, rows, np.zeros(d), np.ones(d))
    for one, other in zip(alone[:2], beside[:2], strict=True):
        np.testing.assert_allclose(other[1:], one[1:], rtol=1e-9)


# ---- a user's own loss ----


def softplus(m):
    return np.logaddexp(0.0, -m)


def in_place(m):
    return np.logaddexp(0.0, np.negative(m, out=m), out=m)


def fail(m):
    raise ZeroDivisionError("mine")


BAD_CALLABLES = {
    "raises": (fail, "mine"),
    "no_argument": (lambda: 0.0, "argument"),
    "none": (lambda m: None, "loss"),
    "scalar": (lambda m: 0.0, r"loss.*shape \(\)"),
    "short": (lambda m: m[:-1], r"loss.*shape \(\d+,\)"),
    "column": (lambda m: m[:, None], r"loss.*shape \(\d+, 1\)"),
    "text": (lambda m: "text", "loss"),
    "texts": (lambda m: m.astype(str), "loss"),
    "complex": (lambda m: m * 1j, "loss"),
    "nan": (lambda m: m * NAN, "loss"),
    "one_nan": (lambda m: np.where(m < np.sort(m)[-1], 0.0, NAN), "loss"),
}


@pytest.mark.parametrize("kind", BAD_CALLABLES)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_bad_callables(kind, scheme):
    function, match = BAD_CALLABLES[kind]
    loss = CustomLoss(function, function, function)
    for call in (
        lambda: minibatch(loss, scheme=scheme),
        lambda: fit(loss=loss, scheme=scheme),
        lambda: minibatch(CustomLoss(softplus, function, function), scheme="laplace"),
        lambda: loss.evaluate([1.0, 2.0]),
    ):
        with pytest.raises((*CLEAN, ZeroDivisionError), match=match):
            call()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("value", [INF, -INF])
def test_infinite_losses_are_said(value, scheme):
    loss = CustomLoss(*[lambda m: np.full(m.shape, value)] * 3)
    with pytest.raises(FloatingPointError, match=r"scheme|loss"):
        minibatch(loss, scheme=scheme)
    with pytest.warns(epfast.ConvergenceWarning, match="failed"):
        check_finite(fit(loss=loss, scheme=scheme))


def test_odd_callables():
    kept = []

    def keeps(m):
        kept.append((m, m.copy()))
        return softplus(m)

    def nested(m):
        fit(loss="probit", schedule=EP(sweeps=1))
        return softplus(m)

    results = [np.ndarray.tolist, frozen, lambda v: v.astype(">f8"), lambda v: np.repeat(v, 2)[::2]]
    for function in [in_place, keeps, nested, *[lambda m, f=f: f(softplus(m)) for f in results]]:
        same(fit(loss=function), fit(), rtol=1e-9)
    for margins, before in kept:
        np.testing.assert_array_equal(margins, before)
    same(fit(loss=lambda m: (m < 0).astype(np.int8)), fit(loss=lambda m: (m < 0) * 1.0))
    spoiling = CustomLoss(in_place, in_place, in_place).evaluate([0.5, 2.0])
    np.testing.assert_allclose(spoiling, [softplus(np.array([0.5, 2.0]))] * 3)


DOUBLE, POINTER = ctypes.c_double, ctypes.POINTER(ctypes.c_double)
BATCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, POINTER, POINTER, ctypes.c_void_p)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_bad_low_level_callables(scheme):
    one = LowLevelCallable(ctypes.CFUNCTYPE(DOUBLE, DOUBLE)(softplus))
    for types in ((DOUBLE,), (DOUBLE,) * 3, (ctypes.c_int, DOUBLE), (ctypes.c_float,) * 2):
        with pytest.raises(ValueError, match=r"signature.*allowed"):
            fit(loss=LowLevelCallable(ctypes.CFUNCTYPE(*types)(len)), scheme=scheme)
    for code in (1, -1, 0):  # error codes; outputs that are not written
        loss = LowLevelCallable(BATCH(lambda n, m, out, user, code=code: code))
        for call in (fit, minibatch):
            with pytest.raises((*CLEAN, RuntimeError, epfast.ConvergenceWarning)):
                call(loss=loss, scheme=scheme)
    if "laplace" in scheme:
        with pytest.raises(ValueError, match="scheme"):
            fit(loss=one, scheme=scheme)
    with pytest.raises(ValueError, match="slope"):
        CustomLoss(one, np.square)


def test_memory_does_not_grow():
    def work(times):
        for _ in range(times):
            fit(loss=lambda m: softplus(m))
            with pytest.raises(ZeroDivisionError):
                fit(loss=fail)
            with pytest.raises(ValueError, match="X"):
                fit(put(X, NAN))

    tracemalloc.start()
    try:
        work(5)
        before = tracemalloc.get_traced_memory()[0]
        work(30)
        assert tracemalloc.get_traced_memory()[0] - before < 30_000
    finally:
        tracemalloc.stop()


# ---- files ----


def header(key, value):
    def change(arrays):
        text = json.loads(str(arrays["header"]))
        text[key] = value
        arrays["header"] = np.array(json.dumps(text))

    return change


DAMAGE = [
    *[lambda a, k=k: a.pop(k) for k in ("header", "precision", "shift", "sites_shift")],
    lambda a: a.update(precision=-a["precision"]),
    lambda a: a.update(shift=put(a["shift"], NAN)),
    lambda a: a.update(shift=a["shift"][:2]),
    lambda a: a.update(precision=a["precision"].astype(str)),
    lambda a: a.update(sites_shift=a["sites_shift"][:, :1]),
    *[lambda a, v=v: a.update(header=np.array(v)) for v in ("{", "[1]", "3", {"format": 1})],
    *[header("format", v) for v in (0, "1", None)],
    *[header("beta", v) for v in (NAN, INF, -1, 0, "x", None, [1])],
    *[header("batch_size", v) for v in (NAN, -3, 0, "x", None, 1.5)],
    *[header("log_scale", v) for v in (NAN, INF, "x", None)],
    *[header("sweeps", v) for v in (NAN, -3, "x", None)],
    *[header("history", v) for v in (3, [3], [{"sweep": 1}], None)],
    *[header("loss", {"name": "piecewise_linear", "parameters": v}) for v in ([], [1e8])],
    *[header("loss", v) for v in ("logistic", {}, {"name": "nope"}, {"name": ["hinge"]}, 3)],
    header("loss", {"name": "quasi01", "epsilon": -1}),
]


@pytest.mark.parametrize("change", DAMAGE, ids=range(len(DAMAGE)))
def test_load_of_damaged_files(tmp_path, change):
    path = tmp_path / "bad.npz"
    POST.save(path)
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    change(arrays)
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=r"bad\.npz"):
        load(path)


@pytest.mark.parametrize("content", ["", "text", "PK\x03\x04", "half", "flipped", "array", "zip"])
def test_load_of_other_files(tmp_path, content):
    path = tmp_path / "other.npz"
    POST.save(path)
    whole = path.read_bytes()
    if content == "array":
        with path.open("wb") as file:
            np.save(file, X)
    elif content == "zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("readme", "text")
    else:
        middle = len(whole) // 2
        spoiled = {"half": whole[:middle], "flipped": whole.replace(b"precision", b"precisiom")}
        path.write_bytes(spoiled.get(content, content.encode()))
    with pytest.raises(ValueError, match=r"other\.npz"):
        load(path)


def test_paths_and_losses_of_files(tmp_path):
    with pytest.raises(OSError, match="none"):
        load(tmp_path / "none.npz")
    with pytest.raises(OSError, match="nowhere"):
        POST.save(tmp_path / "nowhere" / "x.npz")
    for value in (np.int64(2), np.float32(2), 2):
        loss = PiecewiseLinear((0, np.int8(1)), (np.float32(-1), 0, 0), value)
        fit(loss=loss).save(str(tmp_path / "x"))
        assert load(str(tmp_path / "x")).loss == loss
    with pytest.raises((ValueError, TypeError), match=r"^loss"):
        load(tmp_path / "x", loss="nope")


# ---- anything at all ----


def check_finite(post):
    assert np.isfinite(post.mean).all()
    assert np.isfinite(post.variance).all()
    assert (post.variance > 0).all()
    assert np.isfinite(post.log_evidence)
    assert not np.isnan([info.change for info in post.history]).any()


SIZES = (1e-300, 1e-160, 1e-30, 1e-8, 1e-3, 0.1, 1.0, 2.0, 30.0, 1e8, 1e30, 1e160, 1e300)
POWERS, SHARES = st.sampled_from(SIZES), st.sampled_from([1.0, 0.5, 1e-3, 1e-300])
STEPS = PiecewiseLinear((-1, 0, 2), (1, -1, 3, 2), 0.5, (1, -1, 0))
ANY_LOSS = st.sampled_from([*LOSSES, STEPS, np.abs, softplus])
ANY_SCHEME = st.sampled_from([*SCHEMES, Variational(solver="newton"), Variational(rule="fifth")])
ORDERS = st.sampled_from(["sequential", "shuffled", "parallel"])
ANY_EP = st.builds(
    EP, st.integers(1, 4), damping=SHARES, power=SHARES | POWERS, order=ORDERS, seed=st.just(0)
)
fuzz = settings(deadline=None, derandomize=True, max_examples=120, database=None)


@st.composite
def problems(draw):
    n, d = draw(st.integers(1, 12)), draw(st.integers(1, 10))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    with np.errstate(all="ignore"):
        scales = draw(POWERS) * 10.0 ** rng.choice(draw(st.sampled_from([[0], [-9, 0, 9]])), d)
        rows = np.clip(np.trunc(rng.normal(size=(n, d)) * 8) / 4 * scales, -1e308, 1e308)
    return rows, np.where(rng.random(n) < draw(st.sampled_from([0.0, 0.5])), 1.0, -1.0)


@fuzz
@given(
    problem=problems(), loss=ANY_LOSS, scheme=ANY_SCHEME,
    schedule=ANY_EP | st.builds(ADF, power=SHARES | POWERS),
    beta=st.just(1.0) | POWERS, gamma=st.none() | POWERS, prior=st.just(25.0) | POWERS,
    batch_size=st.integers(1, 13), site_rule=st.sampled_from(["nonnegative", "keep", "floor"]),
    curvature=st.sampled_from(["exact", "slope"]), record=st.sampled_from([None, "cost", "factor"]),
)  # fmt: skip
def test_fit_is_finite_or_refuses(problem, prior, **arguments):
    rows, labels = problem
    if not isinstance(arguments["scheme"], str):
        arguments |= {"gamma": None, "curvature": "exact"}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        try:
            post = fit_linear(rows, labels, prior_variance=prior, **arguments)
        except CLEAN:
            return
        check_finite(post)
        try:
            probability = post.predict_proba(rows)
        except CLEAN:
            return
    assert ((probability >= 0.0) & (probability <= 1.0)).all()


@fuzz
@given(
    problem=problems(), loss=ANY_LOSS, scheme=ANY_SCHEME, mean=st.just(0.0) | POWERS,
    variance=st.just(1.0) | POWERS, beta=st.just(1.0) | POWERS, gamma=st.none() | POWERS,
)  # fmt: skip
def test_minibatch_is_finite_or_refuses(problem, loss, scheme, mean, variance, beta, gamma):
    d = problem[0].shape[1]
    gamma = gamma if isinstance(scheme, str) else None
    cavity = np.full(d, mean), np.full(d, variance)
    try:
        precision, shift, scale = minibatch(
            loss, problem[0], *cavity, scheme, beta=beta, gamma=gamma
        )
    except CLEAN:
        return
    found = ~np.isnan(precision) | (scheme != "quadrature")  # which says NaN where it finds none
    assert np.isfinite([precision[found], shift[found]]).all()
    assert np.isfinite(scale)


@fuzz
@given(
    seed=st.integers(0, 99), d=st.integers(1, 3), extra=st.integers(0, 9), scale=POWERS,
    height=POWERS, weight=POWERS, full=st.booleans(), flat=st.booleans(),
)  # fmt: skip
def test_rule_fit_is_finite_or_refuses(seed, d, extra, scale, height, weight, full, flat):
    rng = np.random.default_rng(seed)
    z = extra + ((d + 1) * (d + 2) // 2 if full else 2 * d + 1)
    points, weights, logs = rng.normal(size=(z, d)), rng.random(z), rng.normal(size=z)
    try:
        fitted = rule_fit(
            points * scale, weights * weight, logs * height,
            basis="full" if full else "diagonal", start="flat" if flat else "least_squares",
        )  # fmt: skip
    except CLEAN:
        return
    assert all(np.isfinite(part).all() for part in fitted)

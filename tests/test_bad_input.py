"""Bad input gets its error, odd but good input gets the plain result, nothing gives NaN silently."""

import copy
import ctypes
import re
import threading
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
    shapes = [good[None], good[..., None], good[:0], good[:-1], good[:, None], good[0], None]
    return NOT_REAL + shapes + bad_contents(good) + [sparse.csr_array(np.atleast_2d(good))]


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
    ("X", lambda v: fit_linear(v, schedule=ADF()), [[], iter([]), iter([None]), iter([(X,)]), 5]),
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
    ("loss", lambda v: Loss(v), BAD_NAME),
    ("scheme", lambda v: fit(scheme=v), BAD_SCHEME),
    ("scheme", lambda v: minibatch(scheme=v), BAD_SCHEME),
    ("scheme", lambda v: fit(loss="noisy_step", scheme=v), ["laplace", QuickLaplace()]),
    ("scheme", lambda v: fit(loss=np.square, scheme=v), ["quick_laplace", Laplace()]),
    ("posterior", lambda v: fit(posterior=v), [*BAD_NAME, None, "full"]),
    ("batch_size", lambda v: fit(batch_size=v), [*BAD_COUNT, None]),
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
    ("slopes", lambda v: PiecewiseLinear((0.0, 1.0), v), bad_arrays([-1.0, 0.0, 1.0])),
    ("value", lambda v: PiecewiseLinear((0.0,), (0.0, 1.0), v), [*NOT_NUMBERS, *NOT_FINITE, None]),
    ("jumps", lambda v: PiecewiseLinear((0, 1, 2), (0,) * 4, 0, v), bad_arrays(np.ones(3))[:-1]),
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
    ("mean", lambda v: backend.sigma_points(v, VAR), [*bad_contents(MU), [], 5.0, *NOT_REAL]),
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
    assert re.search(rf"\b{name}\b", message), message
    assert len(message) < 600
    if before is not None:
        np.testing.assert_array_equal(value, before)


@pytest.mark.parametrize(
    "parameters", [(), (1e8,), (1e3, 0.0), (NAN, 0.0), (-5.0, 0.0), (1, 0, 0, 0, NAN, 0), "ab", None]
)
def test_raw_piecewise_parameters_never_reach_c_unchecked(parameters):
    with pytest.raises((ValueError, TypeError), match="parameters"):
        Loss("piecewise_linear", parameters).evaluate([1.0])


def test_overflow_of_the_pieces_is_an_error():
    with pytest.raises(ValueError, match="knots|slopes|value"):
        PiecewiseLinear((-1e308, 1e308), (0.0, 1.0, 0.0))


# ---- odd but good input: the same result as the plain array ----


def memory_map(array, path):
    np.save(path / "array.npy", array)
    return np.load(path / "array.npy", mmap_mode="r")


def spread(array):
    """The array as every second entry, along each axis, of a larger one full of NaN."""
    out = np.full([2 * k for k in array.shape], NAN, dtype=array.dtype)
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
    "matrix_subclass": lambda a: a.view(type("Sub", (np.ndarray,), {})),
    "longdouble": lambda a: a.astype(np.longdouble),
}
DTYPES = ["f8", "f4", "f2", "i8", "i1", "u2", "?"]
NUMBERS = np.round(3 * X) % 2


def same(one, other, rtol=1e-12):
    for name in ("mean", "variance", "log_evidence", "n_refused", "n_sweeps"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=rtol, err_msg=name)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_types(layout, dtype):
    rows = np.array(X if dtype[0] == "f" else NUMBERS).astype(dtype)
    plain = np.ascontiguousarray(rows, dtype=np.float64)
    given_rows, given_labels = LAYOUTS[layout](rows), LAYOUTS[layout](Y)
    before = copy.deepcopy(given_rows)
    arguments = {"batch_size": 4, "loss": "probit", "record": "factor"}
    for schedule in (EP(sweeps=2), ADF()):
        one = fit(given_rows, given_labels, schedule=schedule, **arguments)
        same(one, fit(plain, Y, schedule=schedule, **arguments))
    np.testing.assert_allclose(one.predict_proba(given_rows), one.predict_proba(plain), rtol=1e-12)
    got = minibatch(yX=given_rows, mean=LAYOUTS[layout](X[0]), variance=LAYOUTS[layout](VAR + 1))
    want = minibatch(yX=plain, mean=X[0], variance=VAR + 1)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12)
    for a, b in zip(backend.loss_values("logistic", given_rows), epfast.Logistic().evaluate(plain)):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(backend.exp(given_rows), backend.exp(plain))
    np.testing.assert_array_equal(given_rows, before)


@pytest.mark.parametrize("dtype", ["f8", "f4"])
def test_memory_map(tmp_path, dtype):
    rows = X.astype(dtype)
    mapped = memory_map(rows, tmp_path)
    same(fit(mapped, Y), fit(rows.astype(float), Y))


def test_data_frame():
    pandas = pytest.importorskip("pandas")
    frame, series = pandas.DataFrame(X, columns=list("abc")), pandas.Series(Y.astype(int), name="y")
    same(fit(frame, series), fit())
    same(fit(frame.assign(b=1), series), fit(np.column_stack([X[:, 0], np.ones(N), X[:, 2]])))
    with pytest.raises((TypeError, ValueError), match="X"):
        fit(frame.assign(b="text"), series)
    with pytest.raises((TypeError, ValueError), match="X"):
        fit(frame.assign(b=pandas.array([1.0, *[pandas.NA] * (N - 1)])), series)


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("shape", [(1, 1), (1, 3), (2, 1), (7, 1), (5, 9)])
def test_small_shapes(shape, scheme):
    rows, labels = RNG.normal(size=shape), np.ones(shape[0])
    for schedule in (EP(sweeps=2), ADF()):
        arguments = {"scheme": scheme, "schedule": schedule}
        whole = fit(rows, labels, batch_size=shape[0], **arguments)
        for batch_size in (shape[0] + 1, 10**12, np.int64(10**18), 10**30):
            same(fit(rows, labels, batch_size=batch_size, **arguments), whole)
        single = fit(rows, labels, batch_size=1, **arguments)
        assert np.isfinite(single.mean).all()
        if schedule == ADF():
            parts = [(rows[i : i + 1], labels[i : i + 1]) for i in range(shape[0])]
            same(stream(*parts, batch_size=3, scheme=scheme), fit(
                rows, labels, batch_size=3, **arguments))

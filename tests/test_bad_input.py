"""Bad input gets its error, odd good input the plain result, and nothing gives NaN silently."""

import contextlib
import copy
import ctypes
import io
import json
import re
import tracemalloc
from functools import partial

import numpy as np
import pytest
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


def fit(X=X, y=Y, **arguments):
    return fit_linear(X, y, **({"schedule": EP(sweeps=2)} | arguments))


def stream(*chunks, **arguments):
    return fit_linear(iter(chunks), **({"schedule": ADF()} | arguments))


def minibatch(loss="logistic", yX=X, mean=MU, variance=VAR, scheme="variational", **arguments):
    return backend.fit_minibatch(loss, yX, mean, variance, scheme, **arguments)


def rule_fit(points=POINTS, weights=WEIGHTS, log_values=LOGS, **arguments):
    return backend.variational_fit(points, weights, log_values, **arguments)


def check_finite(post):
    assert np.isfinite([post.mean, post.variance]).all()
    assert np.isfinite(post.log_evidence)


POST, ONE_PASS = fit(), fit(schedule=ADF())


# ---- bad values: (argument, call of a value, values) ----


def put(array, value):
    """A copy of array with one entry replaced, of the wider dtype."""
    out = np.array(array, dtype=np.result_type(np.asarray(array), np.asarray(value)))
    out.flat[out.size // 2] = value
    return out


NAN, INF, HUGE_INT = float("nan"), float("inf"), 10**400
with np.errstate(over="ignore"):
    BEYOND = 100.0 * np.longdouble(1e308)  # of a double's range; infinite where it is a double
NOT_NUMBERS = ["1", b"1", 1j, True, [1.0], {}, np.ones(2), np.datetime64("2016-01-01")]
NOT_FINITE = [NAN, INF, -INF, np.float32("nan"), BEYOND, HUGE_INT]
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
ROWS_TO_PREDICT = [
    *[X[:, :2], X[0], X[None], 5.0, None, "text", RAGGED, X[:, :, None]],
    *[sparse.csr_array(X[:, 1:]), sparse.csr_array(X * INF)],
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
REAL, INT = ctypes.c_double, ctypes.c_int
SIGNATURES = ((REAL,), (REAL,) * 3, (INT, REAL), (ctypes.c_float,) * 2, (INT, INT, REAL))
IN_C = [LowLevelCallable(ctypes.CFUNCTYPE(*types)(len)) for types in SIGNATURES]
BAD_LOSS = [*BAD_NAME, None, epfast.Hinge, 1.0, LowLevelCallable, *IN_C]
BAD_SCHEME = [*BAD_NAME, None, "exact", Variational, len]
BAD_START = [5, [1], POST.state, POST.mean]
BAD_NAMES, BAD_COUNTS = [*BAD_NAME, None], [*BAD_COUNT, None]
BAD_TOL, BAD_SEED = [*NOT_NUMBERS, *NOT_FINITE, None, -1e-9], [-1, 1.5, "1", True, [1]]
BAD_PATH = [None, 5, 2**40, True, 1.5, [1]]
BAD_X = [*NOT_REAL, None, 1j, [HUGE_INT, 1.0], sparse.eye_array(3)]
WIDE = RNG.normal(size=(N, 5))

# (argument, functions that take it, values that each refuses)
KEYWORDS = [
    ("loss", [fit, minibatch], BAD_LOSS),
    ("scheme", [fit, minibatch], BAD_SCHEME),
    ("posterior", [fit], BAD_NAMES),
    ("batch_size", [fit], [*[v for v in BAD_COUNTS if v is not None], 10**30]),
    ("prior_variance", [fit], BAD_PRIOR),
    ("prior_precision", [fit], BAD_PRIOR_PRECISION),
    ("schedule", [fit], [EP, "EP", 5, [EP()]]),
    ("beta", [fit, minibatch], BAD_POSITIVE),
    ("gamma", [fit, minibatch, partial(backend.sigma_points, MU, VAR)], BAD_GAMMA),
    ("gamma", [Quadrature, Variational], BAD_GAMMA),
    ("curvature", [fit, minibatch, Laplace, QuickLaplace], BAD_NAMES),
    ("site_rule", [fit], BAD_NAMES),
    ("record", [fit], BAD_NAME),
    ("record", [partial(stream, (X, Y))], ["cost", "factor"]),
    ("callback", [fit], [5, "stop", [len]]),
    ("start", [fit], [*BAD_START, ONE_PASS]),
    ("start", [partial(fit, X[:, :2]), partial(fit, batch_size=5)], [*BAD_START, POST]),
    ("start", [partial(fit, WIDE, schedule=ADF())], [*BAD_START, POST, ONE_PASS]),
    ("sweeps", [EP], BAD_COUNTS),
    ("tol", [EP, Laplace], BAD_TOL),
    ("damping", [EP], [*BAD_POSITIVE, 1.1]),
    ("power", [EP, ADF], BAD_POSITIVE),
    ("order", [EP, ADF], BAD_NAMES),
    ("block", [EP], BAD_COUNT),
    ("seed", [EP, ADF], BAD_SEED),
    ("seed", [partial(EP, order="shuffled"), partial(ADF, order="shuffled")], [*BAD_SEED, None]),
    ("max_iter", [Laplace], BAD_COUNTS),
    ("solver", [Variational], BAD_NAMES),
    ("rule", [Variational], [*BAD_NAMES, (), (POINTS,), [POINTS, WEIGHTS]]),
    ("epsilon", [epfast.Quasi01, epfast.NoisyStep], [*BAD_POSITIVE, 1e-320]),
    ("epsilon", [epfast.NoisyStep], [0.5, 0.7]),
    ("knots", [partial(PiecewiseLinear, slopes=(0, 0, 0))], [(), (1, 0), (1, 1), (-1e308, 1e308)]),
    ("knots", [partial(PiecewiseLinear, slopes=(0, 0, 0))], [*NOT_REAL, *bad_contents([0.0, 1.0])]),
    ("slopes", [partial(PiecewiseLinear, (0.0, 1.0))], bad_arrays([-1.0, 0.0, 1.0])),
    ("value", [partial(PiecewiseLinear, (0.0,), (0.0, 1.0))], [*NOT_NUMBERS, *NOT_FINITE, None]),
    ("jumps", [partial(PiecewiseLinear, (0, 1), (0, 0, 0))], bad_arrays([1.0, 2.0])[1:]),
    ("value", [CustomLoss], [None, 5, "logistic", np.ones(3)]),
    ("slope", [partial(CustomLoss, np.square)], [5, "x", np.ones(3)]),
    ("curvature", [partial(CustomLoss, np.square, np.square)], [5, "x", np.ones(3)]),
    ("name", [Loss], [*BAD_NAMES, "piecewise_linear"]),
    ("parameters", [partial(Loss, "logistic")], [(1.0,), None, 5]),
    ("margins", [epfast.Logistic().evaluate, partial(backend.loss_values, "hinge")], BAD_X),
    ("yX", [minibatch], [v for v in BAD_ROWS if not hasattr(v, "send")]),
    ("yX", [partial(minibatch, mean=1e200 * VAR)], [X * 1e200]),
    ("mean", [minibatch], bad_arrays(MU)),
    ("mean", [partial(backend.sigma_points, variance=VAR)], [*bad_contents(MU), 5.0, *NOT_REAL]),
    ("variance", [minibatch], [*bad_arrays(VAR), 0 * VAR, put(VAR, -1.0)]),
    ("variance", [partial(backend.sigma_points, MU)], [*bad_arrays(VAR), 0 * VAR, -VAR]),
    ("points", [rule_fit], [*bad_contents(POINTS), *NOT_REAL, POINTS[0], 5.0, None]),
    ("points", [rule_fit], [0 * POINTS, put(0 * POINTS, 1.0), POINTS[:, :0]]),
    ("points", [partial(rule_fit, basis="full")], [POINTS]),
    ("points", [partial(rule_fit, weights=np.ones(8), log_values=np.arange(8.0))], [CUBE]),
    ("weights", [rule_fit], [*bad_arrays(WEIGHTS), 0 * WEIGHTS, -WEIGHTS]),
    ("log_values", [rule_fit], bad_arrays(LOGS)),
    ("basis", [rule_fit], BAD_NAMES),
    ("start", [rule_fit], BAD_NAMES),
    ("x", [backend.exp, backend.expm1, backend.log], BAD_X),
    ("x", [backend.log1p, backend.erfcx, backend.log_ndtr], BAD_X),
    ("X", [POST.predict_latent, POST.predict_proba], ROWS_TO_PREDICT),
    ("size", [partial(POST.sample, rng=1)], [-1, 1.5, "3", None, True, (2, 3)]),
    ("rng", [partial(POST.sample, 3)], [*BAD_SEED, None, np.random.RandomState]),
    ("path", [POST.save, load], BAD_PATH),
]
POSITIONS = [
    ("X", fit, BAD_ROWS),
    ("X", lambda v: stream((v, Y)), [v for v in BAD_ROWS if v is not None]),
    ("X", lambda v: fit_linear(v, schedule=ADF()), [[], iter([]), iter([None]), iter([(X,)])]),
    ("X", lambda v: stream((X, Y), v), [None, X, (X, Y, Y), 5, (X[:, :2], Y), (put(X, NAN), Y)]),
    ("X", lambda v: fit(iter([(X, Y)]), v), [Y]),
    ("X", lambda v: stream((X, Y), schedule=v), [EP(), ADF(order="shuffled", seed=1)]),
    ("y", partial(fit, X), BAD_LABELS),
    ("y", partial(fit, X.tolist()), [None]),
    ("y", lambda v: stream((X, v)), BAD_LABELS),
    ("y", lambda v: stream((X, Y), (X, v)), [Y[:-1], 0 * Y, None]),
    ("loss", lambda v: backend.loss_values(v, [1.0]), BAD_LOSS),
    ("scheme", lambda v: fit(loss="noisy_step", scheme=v), ["laplace", QuickLaplace()]),
    ("scheme", lambda v: fit(loss=np.square, scheme=v), ["quick_laplace", Laplace()]),
    ("prior_precision", lambda v: fit(prior_precision=v, prior_variance=3.0), [EYE]),
    ("gamma", lambda v: fit(gamma=v, scheme=Quadrature()), [1.0]),
    ("gamma", lambda v: Variational(v, "fifth"), [1.0]),
    ("gamma", lambda v: fit(scheme=Variational(v, solver="newton")), [0.5, 1.0, 1e-200, 1e200]),
    ("curvature", lambda v: fit(curvature=v, scheme=Laplace()), ["slope"]),
    ("rule", lambda v: fit(scheme=Variational(rule=(v, WEIGHTS))), bad_arrays(POINTS)),
    ("rule", lambda v: fit(scheme=Variational(rule=(POINTS, v))), bad_arrays(WEIGHTS)),
    ("rule", lambda v: fit(scheme=Variational(rule=(POINTS, v))), [-WEIGHTS, put(WEIGHTS, 0.0)]),
    ("rule", lambda v: fit(scheme=Variational(rule=(v, np.ones(8)))), [CUBE, 0 * CUBE]),
    ("rule", lambda v: fit(WIDE, scheme=Variational(rule=v)), ["fifth"]),
    ("mean", lambda v: backend.sigma_points(v, v), [[]]),
]
CALLS = [
    (name, lambda v, f=f, name=name: f(**{name: v}), values)
    for name, functions, values in KEYWORDS
    for f in functions
] + POSITIONS


@pytest.mark.parametrize(
    ("name", "call", "value"),
    [
        pytest.param(name, call, value, id=f"{i}-{name}-{j}")
        for i, (name, call, values) in enumerate(CALLS)
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
    want = minibatch(yX=plain, mean=X[0], variance=VAR + 1)
    np.testing.assert_allclose(np.hstack(got), np.hstack(want), rtol=1e-12)
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
    assert all(np.array_equal(*pair) for pair in zip(post.sites, sites, strict=True))


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
    results = [np.ndarray.tolist, frozen, lambda v: v.astype(">f8"), lambda v: np.repeat(v, 2)[::2]]
    for function in [in_place, *[lambda m, f=f: f(softplus(m)) for f in results]]:
        same(fit(loss=function), fit(), rtol=1e-9)
    same(fit(loss=lambda m: (m < 0).astype(np.int8)), fit(loss=lambda m: (m < 0) * 1.0))
    spoiling = CustomLoss(in_place, in_place, in_place).evaluate([0.5, 2.0])
    np.testing.assert_allclose(spoiling, [softplus(np.array([0.5, 2.0]))] * 3)


def test_memory_does_not_grow():
    def work(times):
        for _ in range(times):
            for arguments in ({"loss": lambda m: softplus(m)}, {"loss": fail}, {"X": put(X, NAN)}):
                with contextlib.suppress(ZeroDivisionError, ValueError):
                    fit(**arguments)

    tracemalloc.start()
    work(5)
    before = tracemalloc.get_traced_memory()[0]
    work(30)
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert grown < 30_000


# ---- files ----


def header(key, value):
    def change(arrays):
        text = json.loads(str(arrays["header"]))
        text[key] = value
        arrays["header"] = np.array(json.dumps(text))

    return change


DAMAGE = [
    *[lambda a, k=k: a.pop(k) for k in ("header", "precision", "shift", "sites_shift")],
    *[lambda a, v=v: a.update(precision=v) for v in (-VAR, put(VAR, NAN), VAR.astype(str))],
    *[lambda a, v=v: a.update(shift=v) for v in (put(MU, INF), MU[:2], EYE, MU.astype(complex))],
    lambda a: a.update(sites_shift=a["sites_shift"][:, :1]),
    *[lambda a, v=v: a.update(header=np.array(v)) for v in ("{", "[1]", "3", {"format": 1})],
    *[header("format", v) for v in (0, "1", None)],
    *[header("beta", v) for v in (NAN, INF, -1, 0, "x", None, [1])],
    *[header("batch_size", v) for v in (NAN, -3, 0, "x", None, 1.5)],
    *[header(k, v) for k in ("log_scale", "sweeps") for v in (NAN, INF, "x", None)],
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


@pytest.mark.parametrize("content", ["", "text", "PK\x03\x04", "half", "renamed", "array"])
def test_load_of_other_files(tmp_path, content):
    path = tmp_path / "other.npz"
    POST.save(path)
    np.save(array := io.BytesIO(), X)
    whole = path.read_bytes()
    other = {"half": whole[: len(whole) // 2], "renamed": whole.replace(b"shift", b"shirt")}
    other["array"] = array.getvalue()
    path.write_bytes(other.get(content, content.encode()))
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

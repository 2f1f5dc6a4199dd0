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
    ("slopes", lambda v: PiecewiseLinear((0.0, 1.0), v), bad_arrays([-1.0, 0.0, 1.0])),
    ("value", lambda v: PiecewiseLinear((0.0,), (0.0, 1.0), v), [*NOT_NUMBERS, *NOT_FINITE, None]),
    (
        "jumps",
        lambda v: PiecewiseLinear((0, 1, 2), (0,) * 4, 0, v),
        [v for v in bad_arrays(np.ones(3)) if v is not None],
    ),
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
    assert re.search(rf"\b{name}\b", message), message
    assert len(message) < 600
    if before is not None:
        np.testing.assert_array_equal(value, before)


def test_overflow_of_the_pieces_is_an_error():
    with pytest.raises(ValueError, match="knots|slopes|value"):
        PiecewiseLinear((-1e308, 1e308), (0.0, 1.0, 0.0))


# ---- odd but good input: the same result as the plain array ----


def memory_map(array, path):
    np.save(path / "array.npy", array)
    return np.load(path / "array.npy", mmap_mode="r")


def spread(array):
    """The array as every second entry, along each axis, of a larger one full of NaN."""
    out = np.full([2 * k for k in array.shape], NAN if array.dtype.kind == "f" else 1, array.dtype)
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
        np.testing.assert_allclose(
            getattr(one, name), getattr(other, name), rtol=rtol, err_msg=name
        )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_types(layout, dtype):
    rows = np.array(X if dtype[0] == "f" else NUMBERS).astype(dtype)
    plain = np.ascontiguousarray(rows, dtype=np.float64)
    given_rows = LAYOUTS[layout](rows)
    given_labels = Y if layout == "objects" else LAYOUTS[layout](Y)
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
        for batch_size in (shape[0] + 1, 10**12, np.int64(10**18)):
            same(fit(rows, labels, batch_size=batch_size, **arguments), whole)
        single = fit(rows, labels, batch_size=1, **arguments)
        assert np.isfinite(single.mean).all()
        if schedule == ADF():
            parts = [(rows[i : i + 1], labels[i : i + 1]) for i in range(shape[0])]
            pieces = stream(*parts, batch_size=3, scheme=scheme)
            same(pieces, fit(rows, labels, batch_size=3, **arguments))


def test_callers_arrays_stay_and_results_are_not_views():
    rows, labels = np.array(X), np.array(Y)
    post = fit(rows, labels, batch_size=N)
    np.testing.assert_array_equal(rows, X)
    np.testing.assert_array_equal(labels, Y)
    mean, sites = post.mean.copy(), post.sites.precision.copy()
    again = fit(rows, labels, batch_size=N, start=post)
    rows[:], labels[:] = NAN, 0.0
    np.testing.assert_array_equal(post.mean, mean)
    np.testing.assert_array_equal(post.sites.precision, sites)
    assert again.n_sweeps == 4
    with pytest.raises(ValueError, match="y"):
        fit(labels=labels)


# ---- the ends of the number line ----


@pytest.mark.parametrize(
    ("loss", "left", "right"),
    [
        ("logistic", (INF, -1.0, 0.0), (0.0, 0.0, 0.0)),
        ("probit", (INF, -INF, 1.0), (0.0, 0.0, 0.0)),
        ("hinge", (INF, -1.0, 0.0), (0.0, 0.0, 0.0)),
        ("quasi01", (INF, -0.1, 0.0), (0.0, 0.0, 0.0)),
        ("noisy_step", (-np.log(0.1), 0.0, 0.0), (-np.log(0.9), 0.0, 0.0)),
    ],
)
def test_losses_at_the_ends(loss, left, right):
    for count in (1, 9):  # a lone lane and whole vectors
        for margin, wanted in ((-INF, left), (INF, right), (NAN, (NAN,) * 3)):
            got = backend.loss_values(loss, np.full(count, margin))
            for value, want in zip(got, wanted, strict=True):
                np.testing.assert_allclose(value, np.full(count, want), rtol=1e-15)
    big = backend.loss_values(loss, np.array([1e308, -1e308, 1e-308, 5e-324, 0.0, -0.0]))
    assert not np.isnan(big).any()
    assert [part.shape for part in backend.loss_values(loss, np.empty((0, 3)))] == [(0, 3)] * 3


@pytest.mark.parametrize("mean", [-50.0, -1e6, -1e9, -1e12, -1e100, -1e150])
@pytest.mark.parametrize("variance", [1e-12, 1e-6, 1e-5, 1e-4, 1.0])
def test_probit_far_in_the_tail(mean, variance):
    """There -log Phi(m) is m^2 / 2 + log|m| + ..., of curvature 1 - 1/m^2 + ..."""
    precision, shift, _ = minibatch("probit", [[1.0]], [mean], [variance])
    np.testing.assert_allclose(precision, 1.0 - 1.0 / mean**2, rtol=1e-5)
    np.testing.assert_allclose(shift, 2.0 / -mean, rtol=1e-3, atol=1e-10 * abs(mean))


@pytest.mark.parametrize("d", [2, 4, 8, 9, 17])
@pytest.mark.parametrize("loss", LOSSES)
def test_columns_do_not_disturb_each_other(loss, d):
    """A column with a step beyond the fast range shares a vector with tiny ones."""
    rows = np.full((5, d), 1e-13)
    alone = minibatch(loss, rows, np.zeros(d), np.ones(d))
    rows[:, 0] = 1e6
    beside = minibatch(loss, rows, np.zeros(d), np.ones(d))
    for one, other in zip(alone[:2], beside[:2], strict=True):
        np.testing.assert_allclose(other[1:], one[1:], rtol=1e-9)


def test_quadrature_with_all_mass_on_one_point():
    for x, mean, want in ((30.0, -30.0, 6.0381920564e15), (60.0, -100.0, 5.4689644965e31)):
        precision, _, _ = minibatch("logistic", [[x]], [mean], [1.0], "quadrature")
        np.testing.assert_allclose(precision, want, rtol=1e-9)


@pytest.mark.parametrize("scale", [1.0, 2.0, 3.0])
@pytest.mark.parametrize("loss", ["logistic", "probit", "hinge"])
def test_quadrature_on_unscaled_data_stays_finite(loss, scale):
    rng = np.random.default_rng(0)
    rows = scale * rng.normal(size=(60, 5))
    labels = np.where(rng.normal(size=60) > 0, 1.0, -1.0)
    try:
        check_finite(fit(rows, labels, loss=loss, scheme="quadrature", schedule=EP(sweeps=3)))
    except FloatingPointError:
        pass


# ---- a user's own loss ----


def softplus(m):
    return np.logaddexp(0.0, -m)


def in_place(m):
    np.negative(m, out=m)
    return np.logaddexp(0.0, m, out=m)


def fail(m):
    raise ZeroDivisionError("mine")


@pytest.mark.parametrize(
    ("function", "error", "match"),
    [
        (fail, ZeroDivisionError, "mine"),
        (lambda: 0.0, TypeError, "argument"),
        (lambda m: None, CLEAN, r"loss.*shape \(\)"),
        (lambda m: 0.0, CLEAN, r"loss.*shape \(\)"),
        (lambda m: m[:-1], CLEAN, r"loss.*shape \(\d+,\)"),
        (lambda m: m[:, None], CLEAN, r"loss.*shape \(\d+, 1\)"),
        (lambda m: "text", CLEAN, "loss"),
        (lambda m: m.astype(str).astype(object) + "x", CLEAN, "loss"),
        (lambda m: m * 1j, CLEAN, "loss"),
        (lambda m: m * NAN, CLEAN, "loss"),
        (lambda m: np.where(m < np.sort(m)[-1], 0.0, NAN), CLEAN, "loss"),
        (lambda m: m - INF, CLEAN, "loss"),
    ],
)
@pytest.mark.parametrize("scheme", SCHEMES)
def test_bad_callables(function, error, match, scheme):
    loss = CustomLoss(function, function, function)
    for call in (
        lambda: minibatch(loss, scheme=scheme),
        lambda: fit(loss=loss, scheme=scheme),
        lambda: loss.evaluate([1.0, 2.0]),
    ):
        with pytest.raises(error, match=match):
            call()
    with pytest.raises(error, match=match):  # a bad derivative only
        minibatch(CustomLoss(softplus, function, function), scheme="laplace")


def test_odd_callables():
    plain, kept = fit(), []

    def keeps(m):
        kept.append((m, m.copy()))
        return softplus(m)

    def nested(m):
        fit(loss="probit", schedule=EP(sweeps=1))
        return softplus(m)

    for function in (
        *[softplus, in_place, keeps, nested, lambda m: softplus(m).tolist()],
        *[lambda m: softplus(m).astype(">f8"), lambda m: frozen(softplus(m))],
        lambda m: np.repeat(softplus(m), 2)[::2],
    ):
        same(fit(loss=function), plain, rtol=1e-9)
    for margins, copied in kept:
        np.testing.assert_array_equal(margins, copied)
    integers = fit(loss=lambda m: (m < 0).astype(np.int8))
    same(integers, fit(loss=lambda m: (m < 0) * 1.0))
    spoiling = CustomLoss(in_place, in_place, in_place)
    for part in spoiling.evaluate([0.5, 2.0]):
        np.testing.assert_allclose(part, softplus(np.array([0.5, 2.0])))


DOUBLE, POINTER = ctypes.c_double, ctypes.POINTER(ctypes.c_double)
ONE = ctypes.CFUNCTYPE(DOUBLE, DOUBLE)
WITH_DATA = ctypes.CFUNCTYPE(DOUBLE, DOUBLE, ctypes.c_void_p)
BATCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, POINTER, POINTER, ctypes.c_void_p)


def triple(n, m, out, user):
    margins = np.ctypeslib.as_array(m, (n,))
    np.ctypeslib.as_array(out, (n, 3))[:] = np.transpose(epfast.Logistic().evaluate(margins))
    return 0


def test_low_level_callables():
    scale = (DOUBLE * 1)(2.0)
    scaled = WITH_DATA(lambda m, user: float(softplus(m)) * ctypes.cast(user, POINTER)[0])
    data = ctypes.cast(scale, ctypes.c_void_p)
    many = {"batch_size": N}  # more pairs than one block of the stack
    same(fit(loss=LowLevelCallable(ONE(softplus)), **many), fit(**many), rtol=1e-9)
    same(fit(loss=LowLevelCallable(scaled, data), **many), fit(beta=2.0, **many), rtol=1e-9)
    for scheme in SCHEMES:
        got = minibatch(LowLevelCallable(BATCH(triple)), scheme=scheme)
        for a, b in zip(got, minibatch(scheme=scheme), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-8)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_bad_low_level_callables(scheme):
    for function in (
        ctypes.CFUNCTYPE(DOUBLE)(lambda: 0.0),
        ctypes.CFUNCTYPE(DOUBLE, DOUBLE, DOUBLE)(lambda m, n: 0.0),
        ctypes.CFUNCTYPE(ctypes.c_int, DOUBLE)(lambda m: 0),
        ctypes.CFUNCTYPE(ctypes.c_float, ctypes.c_float)(lambda m: 0),
    ):
        with pytest.raises(ValueError, match=r"signature.*allowed"):
            fit(loss=LowLevelCallable(function), scheme=scheme)
    for function in (BATCH(lambda n, m, out, user: 1), BATCH(lambda n, m, out, user: 0)):
        for call in (fit, minibatch):  # an error code; outputs that are not written
            with pytest.raises((*CLEAN, RuntimeError), match="loss"):
                call(loss=LowLevelCallable(function), scheme=scheme)
    if scheme in ("laplace", "quick_laplace"):
        with pytest.raises(ValueError, match="scheme"):
            fit(loss=LowLevelCallable(ONE(softplus)), scheme=scheme)
    with pytest.raises(ValueError, match="slope"):
        CustomLoss(LowLevelCallable(ONE(softplus)), np.square)


# ---- files ----


def rewrite(source, target, change):
    with np.load(source) as file:
        arrays = {name: file[name] for name in file.files}
    change(arrays)
    np.savez(target, **arrays)


def header(old, new):
    def change(arrays):
        text = str(arrays["header"])
        assert re.search(old, text)
        arrays["header"] = np.array(re.sub(old, new, text))

    return change


@pytest.mark.parametrize(
    "change",
    [
        *[lambda a, k=k: a.pop(k) for k in ("header", "precision", "shift", "sites_shift")],
        lambda a: a.update(precision=-a["precision"]),
        lambda a: a.update(shift=put(a["shift"], NAN)),
        lambda a: a.update(shift=a["shift"][:2]),
        lambda a: a.update(precision=a["precision"].astype(str)),
        lambda a: a.update(sites_shift=a["sites_shift"][:, :1]),
        lambda a: a.update(header=np.array("{")),
        lambda a: a.update(header=np.array("[1]")),
        lambda a: a.update(header=np.array({"format": 1}, dtype=object)),
        *[header(*pair) for pair in (('"format": 1', '"format": 99'), ("logistic", "nope"))],
        *[header(r'"beta": [^,]*', f'"beta": {v}') for v in ("NaN", "-1", '"x"', "null")],
        *[header(r'"batch_size": [^,]*', f'"batch_size": {v}') for v in ("0", "-3", "null")],
        *[header(r'"log_scale": [^,]*', f'"log_scale": {v}') for v in ("NaN", "Infinity", "null")],
        header('"name": "logistic"', '"name": "piecewise_linear", "parameters": [1e8]'),
        header('"history": ', '"history": 3, "old": '),
    ],
)
def test_load_of_damaged_files(tmp_path, change):
    POST.save(tmp_path / "good.npz")
    rewrite(tmp_path / "good.npz", tmp_path / "bad.npz", change)
    with pytest.raises(ValueError, match=r"bad\.npz"):
        load(tmp_path / "bad.npz")


@pytest.mark.parametrize("content", [b"", b"text", b"PK\x03\x04", "half", "array", "zip"])
def test_load_of_other_files(tmp_path, content):
    path = tmp_path / "other.npz"
    POST.save(path)
    if content == "half":
        content = path.read_bytes()[: path.stat().st_size // 2]
    if isinstance(content, bytes):
        path.write_bytes(content)
    elif content == "array":
        path.write_bytes((np.save(tmp_path / "a.npy", X), (tmp_path / "a.npy").read_bytes())[1])
    else:
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("readme", "text")
    with pytest.raises(ValueError, match=r"other\.npz"):
        load(path)


def test_save_and_load(tmp_path):
    with pytest.raises(OSError, match="none"):
        load(tmp_path / "none.npz")
    with pytest.raises(OSError, match="nowhere"):
        POST.save(tmp_path / "nowhere" / "x.npz")
    for value in (np.int64(2), np.float32(2), 2):
        loss = PiecewiseLinear((0, np.int8(1)), (np.float32(-1), 0, 0), value)
        fit(loss=loss).save(tmp_path / "x")
        assert load(str(tmp_path / "x")).loss == loss
    with pytest.raises((ValueError, TypeError), match="^loss"):
        load(tmp_path / "x", loss="nope")


# ---- many threads, many fits ----


def test_two_threads_give_what_one_gives():
    calls = [
        {"loss": loss, "scheme": scheme, "curvature": "slope", "batch_size": 3}
        for loss in ("logistic", "hinge", CustomLoss(softplus, softplus, softplus))
        for scheme in SCHEMES
    ]
    want = [fit(**call).shift for call in calls]
    got: dict[int, list] = {}

    def work(i):
        got[i] = [fit(**call).shift for call in calls]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for result in got.values():
        np.testing.assert_array_equal(result, want)
    assert len(got) == 3


def test_memory_does_not_grow():
    tracemalloc = pytest.importorskip("tracemalloc")

    def work(times):
        for _ in range(times):
            fit(loss=lambda m: softplus(m))
            with pytest.raises(ZeroDivisionError):
                fit(loss=fail)
            with pytest.raises(ValueError, match="X"):
                fit(put(X, NAN))

    work(5)
    tracemalloc.start()
    try:
        work(1)
        before = tracemalloc.get_traced_memory()[0]
        work(30)
        assert tracemalloc.get_traced_memory()[0] - before < 30_000
    finally:
        tracemalloc.stop()


def test_many_knots_stay_within_memory():
    knots = np.linspace(-5.0, 5.0, 3000)
    steps = PiecewiseLinear(knots, np.append(-np.linspace(1.0, 0.0, 3000), 0.0), 10.0)
    assert np.isfinite(fit(loss=steps, schedule=ADF()).predict_proba(X)).all()


# ---- anything at all ----


def check_finite(post):
    assert np.isfinite(post.mean).all()
    assert np.isfinite(post.variance).all()
    assert (post.variance > 0).all()
    assert np.isfinite(post.log_evidence)
    for info in post.history:
        assert np.isfinite([info.change, info.log_evidence]).all()


POWERS = st.sampled_from(
    [1e-300, 1e-160, 1e-30, 1e-8, 1e-3, 0.1, 1.0, 2.0, 30.0, 1e8, 1e30, 1e160, 1e300]
)
NEAR_ONE = st.sampled_from([1.0, 1.0, 0.5, 1e-3, 1e-300])
ANY_LOSS = st.sampled_from(
    [*LOSSES, PiecewiseLinear((-1, 0, 2), (1, -1, 3, 2), 0.5, (1, -1, 0)), np.square, softplus]
)
ANY_SCHEME = st.sampled_from([*SCHEMES, Variational(solver="newton"), Variational(rule="fifth")])
ANY_SCHEDULE = st.one_of(
    st.builds(ADF, power=NEAR_ONE | POWERS),
    st.builds(
        EP,
        sweeps=st.integers(1, 4),
        damping=NEAR_ONE,
        power=NEAR_ONE | POWERS,
        order=st.sampled_from(["sequential", "shuffled", "parallel"]),
        seed=st.just(0),
    ),
)
fuzz = settings(deadline=None, derandomize=True, max_examples=150, database=None)


@st.composite
def problems(draw):
    n, d = draw(st.integers(1, 12)), draw(st.integers(1, 10))
    rng = np.random.default_rng(draw(st.integers(0, 99)))
    scales = draw(POWERS) * np.array(
        [draw(st.sampled_from([1.0, 1.0, 1e-9, 1e9])) for _ in range(d)]
    )
    with np.errstate(all="ignore"):
        rows = np.clip(np.trunc(rng.normal(size=(n, d)) * 8) / 4 * scales, -1e308, 1e308)
    return rows, np.where(rng.random(n) < draw(st.sampled_from([0.0, 0.5])), 1.0, -1.0)


@fuzz
@given(
    problem=problems(), loss=ANY_LOSS, scheme=ANY_SCHEME, schedule=ANY_SCHEDULE,
    beta=st.just(1.0) | POWERS, gamma=st.none() | POWERS, prior=st.just(25.0) | POWERS,
    batch_size=st.integers(1, 13), site_rule=st.sampled_from(["nonnegative", "keep", "floor"]),
    curvature=st.sampled_from(["exact", "slope"]), record=st.sampled_from([None, "cost", "factor"]),
)  # fmt: skip
def test_fit_is_finite_or_refuses(problem, prior, **arguments):
    rows, labels = problem
    if not isinstance(arguments["scheme"], str):
        arguments |= {"gamma": None, "curvature": "exact"}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", epfast.ConvergenceWarning)
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
    rows, _ = problem
    d = rows.shape[1]
    gamma = gamma if isinstance(scheme, str) else None
    try:
        fitted = minibatch(
            loss, rows, np.full(d, mean), np.full(d, variance), scheme, beta=beta, gamma=gamma
        )
    except CLEAN:
        return
    precision, shift, log_scale = fitted
    lost = np.isnan(precision) if scheme == "quadrature" else np.zeros(d, dtype=bool)
    assert np.isfinite(precision[~lost]).all()
    assert np.isfinite(shift[~lost]).all()
    assert np.isfinite(log_scale)


@fuzz
@given(
    seed=st.integers(0, 99), d=st.integers(1, 4), extra=st.integers(0, 9), scale=POWERS,
    spread_of_logs=POWERS, weight=POWERS, basis=st.sampled_from(["diagonal", "full"]),
    start=st.sampled_from(["least_squares", "flat"]),
)  # fmt: skip
def test_rule_fit_is_finite_or_refuses(seed, d, extra, scale, spread_of_logs, weight, basis, start):
    rng = np.random.default_rng(seed)
    z = (2 * d + 1 if basis == "diagonal" else (d + 1) * (d + 2) // 2) + extra
    try:
        fitted = backend.variational_fit(
            rng.normal(size=(z, d)) * scale, rng.random(z) * weight, rng.normal(size=z) * spread_of_logs,
            basis, start=start,
        )  # fmt: skip
    except CLEAN:
        return
    assert all(np.isfinite(part).all() for part in fitted)


@fuzz
@given(value=st.floats(width=64), name=st.sampled_from(["exp", "expm1", "erfcx", "log_ndtr"]))
def test_kernels_take_any_number(value, name):
    got = getattr(backend, name)(np.full(9, value))
    assert np.isnan(got).all() == np.isnan(value)

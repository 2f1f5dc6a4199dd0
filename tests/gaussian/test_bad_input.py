"""fit_linear: bad input gets its error, odd good input the plain result, nothing gives NaN."""

import copy
import warnings
from functools import partial

import numpy as np
import pytest
from scipy import sparse

import epfast
from epfast import ADF, EP, fit_linear
from epfast.schemes import NAMED, Laplace, QuickLaplace, Variational
from tests.oracles.bad_values import (
    BAD_COUNT,
    BAD_LABELS,
    BAD_LOSS,
    BAD_NAME,
    BAD_OPTIONAL,
    BAD_ROWS,
    BAD_SEED,
    EYE,
    INF,
    LAYOUTS,
    MU,
    NAN,
    RAGGED,
    RNG,
    VAR,
    D,
    N,
    X,
    Y,
    bad_arrays,
    bad_contents,
    check_error,
    every_bad_value,
    odd_rows,
    put,
)

#: the paper's minibatches give an impossible evidence, which is said
pytestmark = pytest.mark.filterwarnings("ignore::epfast.ConvergenceWarning")

LOGISTIC = epfast.Logistic()
SCHEMES = [name for name, kind in NAMED.items() if kind().refuses(LOGISTIC, "minibatch") is None]
MINIBATCHES = {"posterior": "factorized", "scheme": "variational", "batch_size": 10}
MINIBATCHES |= {"prior_variance": 25.0}


def fit(X=X, y=Y, **arguments):
    """Minibatches of ten rows."""
    given = MINIBATCHES | {"schedule": EP(sweeps=2, tol=0.0)} | arguments
    matrix = "prior_precision" in arguments or "prior_covariance" in arguments
    if matrix and "prior_variance" not in arguments:
        del given["prior_variance"]
    if given["schedule"] == ADF() and given.get("start") is not None:
        given.pop("prior_variance")
    return fit_linear(X, y, **given)


def rowwise(X=X, y=Y, **arguments):
    """A site per row under a full covariance."""
    return fit_linear(X, y, **({"schedule": EP(sweeps=2, tol=0.0)} | arguments))


def stream(*chunks, **arguments):
    return fit_linear(iter(chunks), **(MINIBATCHES | {"schedule": ADF()} | arguments))


def check_finite(post):
    assert np.isfinite([post.mean, post.variance]).all()
    assert np.isfinite(post.log_evidence)


with warnings.catch_warnings():
    warnings.simplefilter("ignore", epfast.ConvergenceWarning)
    POST, ONE_PASS, FULL = fit(), fit(schedule=ADF()), rowwise()


# ---- bad values: (argument, call of a value, values) ----


ROWS_TO_PREDICT = [
    *[X[:, :2], X[0], X[None], 5.0, None, "text", RAGGED, X[:, :, None]],
    *[sparse.csr_array(X[:, 1:]), sparse.csr_array(X * INF)],
    *[X * 1e200, [[1e308] * D], *bad_contents(X)],
]
BAD_PRIOR = [
    *[v for v in BAD_OPTIONAL if not isinstance(v, list)],
    *[[1.0, 2.0], VAR[:, None], EYE, RAGGED, np.array([]), 1e-320, [1e-320] * D],
    *[put(VAR, 0.0), put(VAR, -1.0), *bad_contents(VAR)],
]
BAD_PRIOR_PRECISION = [
    *[5.0, VAR, np.eye(D + 1), EYE[None], RAGGED, "text", -EYE, 0 * EYE, 1e-320 * EYE],
    *[sparse.csr_array(-EYE), sparse.csr_array(np.eye(D + 1)), *bad_contents(EYE)],
]
BAD_PRIOR_MEAN = [v for v in bad_arrays(MU) if v is not None]
BAD_SCHEME = [*BAD_NAME, Variational, len]
BAD_START = [5, [1], POST.state, POST.mean]
BAD_PATH = [None, 5, 2**40, True, 1.5, [1]]
BAD_WEIGHTS = [
    v for v in [*bad_arrays(np.ones(N)), -np.ones(N), put(np.ones(N), -1.0)] if v is not None
]
DENSE_BAD_ROWS = [v for v in BAD_ROWS if not sparse.issparse(v)]
WIDE = RNG.normal(size=(N, 5))

KEYWORDS = [
    ("loss", [fit, rowwise], BAD_LOSS),
    ("scheme", [fit], [*BAD_SCHEME, "exact"]),
    ("scheme", [rowwise], BAD_SCHEME),
    ("posterior", [fit, rowwise], BAD_NAME),
    ("batch_size", [fit], [*BAD_COUNT, 10**30]),
    ("prior_variance", [fit, rowwise], BAD_PRIOR),
    ("prior_precision", [fit], [*BAD_PRIOR_PRECISION, EYE + 1e-9]),
    ("prior_precision", [rowwise], BAD_PRIOR_PRECISION),
    ("prior_covariance", [fit], [*BAD_PRIOR_PRECISION, EYE + 1e-9]),
    ("prior_covariance", [rowwise], [*BAD_PRIOR_PRECISION, EYE + np.eye(D, k=1)]),
    ("constraints", [rowwise], [5.0, np.ones(D + 1), 0 * EYE, EYE, RAGGED, "text", EYE * NAN]),
    ("prior_mean", [fit, rowwise], BAD_PRIOR_MEAN),
    ("weights", [rowwise, fit], BAD_WEIGHTS),
    ("weights", [partial(stream, (X, Y))], [np.ones(N), 1.0]),
    ("schedule", [fit, rowwise], [EP, "EP", 5, [EP()]]),
    ("beta", [fit, rowwise], BAD_OPTIONAL),
    ("record", [fit, rowwise], BAD_NAME),
    ("record", [rowwise], ["factor"]),
    ("record", [partial(stream, (X, Y))], ["cost", "factor"]),
    ("callback", [fit, rowwise], [5, "stop", [len]]),
    ("progress", [fit, rowwise], [5, "stop", [len], None]),
    ("start", [fit], [*BAD_START, ONE_PASS, FULL]),
    ("start", [rowwise], [*BAD_START, POST, ONE_PASS]),
    ("start", [partial(fit, X[:, :2]), partial(fit, batch_size=5)], [*BAD_START, POST]),
    ("start", [partial(rowwise, X[:, :2]), partial(rowwise, X[:9], Y[:9])], [FULL]),
    ("start", [partial(fit, WIDE, schedule=ADF())], [*BAD_START, POST, ONE_PASS]),
    ("X", [POST.predict_latent, POST.predict_proba, FULL.predict_latent], ROWS_TO_PREDICT),
    ("size", [partial(POST.sample, rng=1)], [-1, 1.5, "3", None, True, (2, 3)]),
    ("rng", [partial(POST.sample, 3)], [*BAD_SEED, np.random.RandomState]),
    ("path", [POST.save], BAD_PATH),
]
POSITIONS = [
    ("X", fit, DENSE_BAD_ROWS),
    ("X", rowwise, DENSE_BAD_ROWS),
    ("X", lambda v: stream((v, Y)), [v for v in DENSE_BAD_ROWS if v is not None]),
    ("X", lambda v: fit_linear(v, schedule=ADF()), [[], iter([]), iter([None]), iter([(X,)])]),
    ("X", lambda v: stream((X, Y), v), [None, X, (X, Y, Y), 5, (X[:, :2], Y), (put(X, NAN), Y)]),
    ("X", lambda v: fit(iter([(X, Y)]), v), [Y]),
    ("X", lambda v: stream((X, Y), schedule=v), [EP()]),
    ("schedule", lambda v: stream((X, Y), schedule=v), [ADF(order="shuffled", seed=1), ADF(2)]),
    ("y", partial(fit, X), BAD_LABELS),
    ("y", partial(rowwise, X), BAD_LABELS),
    ("y", partial(fit, X.tolist()), [None]),
    ("y", lambda v: stream((X, v)), BAD_LABELS),
    ("y", lambda v: stream((X, Y), (X, v)), [Y[:-1], 0 * Y, None]),
    ("scheme", lambda v: fit(loss="noisy_step", scheme=v), ["laplace", QuickLaplace()]),
    ("scheme", lambda v: fit(loss=np.square, scheme=v), ["quick_laplace", Laplace()]),
    ("prior_precision", lambda v: fit(prior_precision=v, prior_variance=3.0), [EYE]),
    ("prior_precision", lambda v: fit(prior_precision=v, prior_variance=25), [EYE]),
    ("prior_covariance", lambda v: fit(prior_covariance=v, prior_variance=25), [EYE]),
    ("prior_covariance", lambda v: rowwise(prior_covariance=v, prior_precision=EYE), [EYE]),
    (
        "prior_variance",
        lambda v: fit_linear(
            X, Y, schedule=ADF(), start=ONE_PASS, **MINIBATCHES | {"prior_variance": v}
        ),
        [25.0, 1, VAR],
    ),
    ("gamma", lambda v: fit(scheme=Variational(v, solver="newton")), [0.5, 1.0, 1e-200, 1e200]),
    ("rule", lambda v: fit(WIDE, scheme=Variational(rule=v)), ["fifth"]),
]


@every_bad_value(KEYWORDS, POSITIONS)
def test_error_names_the_argument(name, call, value):
    check_error(name, call, value)


# ---- odd but good input: the same result as the plain array ----


def same(one, other, rtol=1e-12):
    for name in ("mean", "variance", "log_evidence", "n_refused", "n_sweeps"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol, err_msg=name)


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "i1", "u2", "?"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_and_types(layout, dtype):
    convert = LAYOUTS[layout]
    given, plain = odd_rows(layout, dtype)
    labels = Y if layout == "objects" else convert(Y)
    before = copy.deepcopy(given)
    arguments = {"batch_size": 4, "loss": "probit", "record": "factor"}
    for schedule in (EP(sweeps=2, tol=0.0), ADF()):
        one = fit(given, labels, schedule=schedule, **arguments)
        same(one, fit(plain, Y, schedule=schedule, **arguments))
    np.testing.assert_allclose(one.predict_proba(given), one.predict_proba(plain), rtol=1e-12)
    same(rowwise(given, labels), rowwise(plain, Y))
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
    for schedule in (EP(sweeps=2, tol=0.0), ADF()):
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

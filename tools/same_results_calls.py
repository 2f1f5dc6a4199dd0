"""The calls of ``same_results.py``: data, losses, and one function per entry point.

Each turns a case, which is plain data (``same_results_cases.py``), into a call, in the arguments of
0.1.0 or of the versions after it (``NEW``). Arguments that a case does not name are not passed.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import dataclasses
import inspect
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import LowLevelCallable, sparse
from scipy.special import log_ndtr
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import epfast

#: a case
Spec = dict[str, Any]
#: the public names after 0.1.0: schemes and schedules hold their own numbers
NEW = hasattr(epfast, "DoubleLoop")


class AbsentError(Exception):
    """The case has an argument that this version does not have."""


# ---- data ----


def _made(n: int, d: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng([2024, seed])
    X = rng.normal(size=(n, d))
    X[:, -1] = 1.0
    return X, np.where(X @ rng.normal(size=d) + rng.logistic(size=n) > 0, 1.0, -1.0)


DATA = {
    "small": _made(30, 3, 0),
    "six": _made(33, 6, 1),
    "long": _made(220, 3, 2),  # enough for the shares of the automatic order
    "wide": _made(8, 12, 3),
    "further": _made(9, 3, 4),
}
N = 30
NEW_ROWS = {d: _made(5, d, 10 + d)[0] for d in (3, 6, 12)}
GROUPS = {"cut": 3, "labels": np.arange(N) % 3}
WEIGHTS = {
    "whole": 1.0 + np.arange(N) % 3,
    "fractions": 0.2 + 0.1 * (np.arange(N) % 17),
    "zeros": np.arange(N) % 4 * 1.0,
}


def _priors(name: str, d: int) -> Spec:
    diagonal = np.linspace(0.2, 1.0, d)
    return {
        "scalar": {"prior_variance": 4.0},
        "vector": {"prior_variance": np.linspace(1.0, 5.0, d)},
        "diagonal": {"prior_precision": np.diag(diagonal)},
        "matrix": {"prior_precision": np.diag(diagonal) + 0.05},
        "that of the start": {},
    }[name]


def _rows(name: str, X: np.ndarray, y: np.ndarray) -> tuple[Any, ...]:
    cuts = [0, 11, 15, len(y)]
    pairs = [(X[i:j], y[i:j]) for i, j in itertools.pairwise(cuts)]
    return {
        "dense": (X, y),
        "sparse": (sparse.csr_matrix(np.where(np.abs(X) > 0.3, X, 0.0)), y),
        "float32": (X.astype(np.float32), y),
        "fortran": (np.asfortranarray(X), y),
        "chunks": (pairs,),
        "iterator": (iter(pairs),),
    }[name]


def _kernel(A: np.ndarray, B: np.ndarray) -> np.ndarray:
    return 4.0 * np.exp(-0.5 * ((A[:, None] - B[None]) ** 2).sum(axis=2))


INPUTS = DATA["small"][0][:, :2]
NEW_INPUTS = NEW_ROWS[3][:, :2]
K = _kernel(INPUTS, INPUTS)
K_STAR = _kernel(NEW_INPUTS, INPUTS)
#: derivatives of K by the logarithms of its variance and of its length
DK = np.stack([K, K * ((INPUTS[:, None] - INPUTS[None]) ** 2).sum(axis=2)])

# ---- choice 1: losses ----


def _sigmoid(m: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-m))


def _softplus(m: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, -m)


def _probit_moments(m: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, ...]:
    """Probit with noise of variance 1/4."""
    scale = np.sqrt(0.25 + v)
    z = m / scale
    ratio = np.exp(-0.5 * z * z - 0.5 * np.log(2.0 * np.pi) - log_ndtr(z))
    return log_ndtr(z), ratio / scale, -ratio * (z + ratio) / scale**2


def _batch_logistic(n: int, m: Any, out: Any, user: Any) -> int:
    x, table = np.ctypeslib.as_array(m, (n,)), np.ctypeslib.as_array(out, (n, 3))
    p = _sigmoid(x)
    table[:] = np.stack([_softplus(x), p - 1.0, p * (1.0 - p)], axis=1)
    return 0


def _batch_site(n: int, m: Any, v: Any, out: Any, user: Any) -> int:
    parts = _probit_moments(np.ctypeslib.as_array(m, (n,)), np.ctypeslib.as_array(v, (n,)))
    np.ctypeslib.as_array(out, (n, 3))[:] = np.stack(parts, axis=1)
    return 0


_DOUBLES = ctypes.POINTER(ctypes.c_double)
_BATCH = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, _DOUBLES, _DOUBLES, ctypes.c_void_p)(
    _batch_logistic
)
_SITE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, _DOUBLES, _DOUBLES, _DOUBLES, ctypes.c_void_p)(
    _batch_site
)
_ERFC = ctypes.CDLL(ctypes.util.find_library("m")).erfc
_ERFC.restype, _ERFC.argtypes = ctypes.c_double, [ctypes.c_double]

NAMED = {
    name: name for name in ("logistic", "probit", "squared_hinge", "hinge", "quasi01", "noisy_step")
}
LOSSES: dict[str, Any] = NAMED | {
    "ramp": epfast.PiecewiseLinear(knots=(-1.0, 1.0), slopes=(0.0, -1.0, 0.0), value=2.0),
    "python": epfast.CustomLoss(
        _softplus, lambda m: _sigmoid(m) - 1.0, lambda m: _sigmoid(m) * _sigmoid(-m)
    ),
    "python_values": _softplus,
    "python_site": epfast.CustomSite(_probit_moments),
    "c_values": LowLevelCallable(_ERFC),  # bounded
    # fewer combinations
    "c_batch": LowLevelCallable(_BATCH),
    "c_site": LowLevelCallable(_SITE),
    "quasi01(0.3)": epfast.Quasi01(0.3),
    "noisy_step(0.03)": epfast.NoisyStep(0.03),
}
CUSTOM = ("python", "python_values", "python_site", "c_values", "c_batch", "c_site")

# ---- schemes and schedules: (name, numbers) ----

CLASSES = {
    "exact": "Exact",
    "laplace": "Laplace",
    "quick_laplace": "QuickLaplace",
    "quadrature": "Quadrature",
    "variational": "Variational",
    "importance": "ImportanceSampling",
}


def _own_rule(d: int) -> tuple[np.ndarray, np.ndarray]:
    """More points than unknowns: the origin and two points on each axis and each diagonal."""
    axes = np.vstack([np.eye(d), 0.6 * np.eye(d), np.ones((1, d)) / np.sqrt(d)])
    points = np.vstack([np.zeros((1, d)), 1.7 * axes, -1.7 * axes])
    return points, np.linspace(1.0, 2.0, len(points)) / len(points)


def scheme_of(spec: tuple[str, Spec], d: int) -> Any:
    """A name, or an object where there are numbers; d dimensions per factor."""
    name, numbers = spec[0], dict(spec[1])
    if not numbers:
        return name
    if numbers.get("rule") == "own":
        numbers["rule"] = _own_rule(d)
    return getattr(epfast.schemes, CLASSES[name])(**numbers)


def schedule_of(spec: tuple[str, Spec], site_rule: str | None = None) -> Any:
    """The object, with the double loop after it where ``fallback`` says so."""
    kind, numbers = getattr(epfast, spec[0]), dict(spec[1])
    if "inner" in numbers:
        numbers["inner"] = schedule_of(numbers["inner"])
    for name in {"groups", "shards"} & set(numbers):
        numbers[name] = GROUPS[numbers[name]]
    fallback = numbers.pop("fallback", False)
    if NEW:
        if site_rule is not None:
            numbers["site_rule"] = site_rule
        taken = {field.name for field in dataclasses.fields(kind)}
        if kind is epfast.ADF and site_rule is not None and "settle" in taken:
            numbers["settle"] = 0  # as before there was a choice
        for name in {"refresh", "site_rule"} & set(numbers) - taken:
            raise AbsentError(f"{kind.__name__} has no {name}")
        return epfast.DoubleLoop(start=kind(**numbers)) if fallback else kind(**numbers)
    return kind(**numbers, fallback="double_loop") if fallback else kind(**numbers)


# ---- entry points: from a case to a call ----


def fit_linear(case: Spec) -> Any:
    """A linear model, after another one where the case has a start."""
    X, y = DATA[case.get("data", "small")]
    batch_size = case["batch_size"]
    # named always: its default depends on the scheme now
    site_rule = case.get("site_rule", "nonnegative" if case["posterior"] == "factorized" else None)
    # with a factorised posterior a single row is a minibatch, in as many dimensions
    scalar = batch_size is None and case["posterior"] == "full"
    arguments = {
        "loss": LOSSES[case["loss"]],
        "scheme": scheme_of(case["scheme"], 1 if scalar else X.shape[1]),
        "posterior": case["posterior"],
        "batch_size": batch_size,
        "schedule": schedule_of(case["schedule"], site_rule),
        **_priors(case.get("prior", "scalar"), X.shape[1]),
        **{name: case[name] for name in ("beta", "record") if name in case},
    }
    name, numbers = case["scheme"]
    if not NEW:
        if set(numbers) in ({"gamma"}, {"curvature"}):
            arguments |= {"scheme": name, **numbers}
        if site_rule is not None:
            arguments["site_rule"] = site_rule
    if "weights" in case:
        arguments["weights"] = WEIGHTS[case["weights"]]
    if "start" in case:
        first = {"schedule": case["start"], "prior": "scalar"}
        if case.get("prior", "scalar") != "that of the start":
            del first["prior"]
        kept = {k: v for k, v in case.items() if k not in ("start", "record", "after")}
        arguments["start"] = fit_linear(kept | first)
    return epfast.fit_linear(*_rows(case.get("rows", "dense"), X, y), **arguments)


def fit_gp(case: Spec) -> Any:
    """A process, of low rank where the case has a rank."""
    matrix: Any = K.copy()
    if case.get("columns"):
        matrix = epfast.KernelColumns.rbf(INPUTS, length_scale=1.0, variance=4.0)
    batch_size = case.get("batch_size")
    scheme = scheme_of(case["scheme"], 1 if batch_size is None else case["rank"])
    arguments = {"loss": LOSSES[case["loss"]], "schedule": schedule_of(case["schedule"])}
    passed = ("beta", "jitter", "rank", "rank_tol", "batch_size", "overwrite_K")
    arguments |= {name: case[name] for name in passed if name in case}
    if "relaxation" in case:
        if NEW:
            kind = epfast.schemes.Relaxed
            inner = (
                {} if case["scheme"][0] == "exact" else {"scheme": epfast.schemes.resolve(scheme)}
            )
            scheme = kind(**case["relaxation"], **inner)
        else:
            arguments["relaxation"] = epfast.Relaxation(**case["relaxation"])
    if "start" in case:
        kept = {k: v for k, v in case.items() if k not in ("start", "overwrite_K")}
        arguments["start"] = fit_gp(kept | {"schedule": case["start"]})
    return epfast.fit_gp(matrix, DATA["small"][1], scheme=scheme, **arguments)


def fit_svm(case: Spec) -> Any:
    """A support vector machine."""
    X, y = DATA["six"]
    arguments = {k: v for k, v in case.items() if k not in ("entry", "rows", "start")}
    if "chunks" in arguments:
        arguments["chunks"] = {"cut": 3, "labels": np.arange(len(y)) % 4}[arguments["chunks"]]
    if arguments.get("order") == "sequential" and _default(epfast.fit_svm, "order") == "serial":
        arguments["order"] = "serial"  # as 0.1.0 has it
    if case["kernel"] == "precomputed":
        X = X @ X.T
    if "start" in case:
        first = {"max_iter": 4} | {k: v for k, v in arguments.items() if k in ("C", "kernel")}
        if "gamma" in case:
            first["gamma"] = case["gamma"]
        arguments["alpha"] = epfast.fit_svm(X, y, **first).alpha
    return epfast.fit_svm(*_rows(case.get("rows", "dense"), X, y), **arguments)


def _default(function: Callable[..., Any], name: str) -> Any:
    return inspect.signature(function).parameters[name].default


def _labels(case: Spec, X: np.ndarray, y: np.ndarray) -> np.ndarray:
    if case.get("classes", 2) == 2:
        return np.where(y > 0, "yes", "no")
    return np.digitize(X[:, 0], [-0.5, 0.5])


def fit_linear_classifier(case: Spec) -> Any:
    """The linear model's face for scikit-learn."""
    X, y = DATA["six"]
    X, labels = X[:, :-1], _labels(case, X, y)
    d = X.shape[1] + case["fit_intercept"]
    arguments = {
        "loss": LOSSES[case["loss"]],
        "scheme": scheme_of(case["scheme"], 1 if case["batch_size"] is None else d),
        "posterior": case["posterior"],
        "batch_size": case["batch_size"],
        "prior_variance": case["prior_variance"],
        "fit_intercept": case["fit_intercept"],
        "schedule": schedule_of(case["schedule"]),
    }
    if case["fit_intercept"]:
        arguments["intercept_variance"] = 100.0
    arguments |= {name: case[name] for name in ("beta", "class_weight") if name in case}
    given = {}
    if "weights" in case:
        given["sample_weight"] = np.resize(WEIGHTS[case["weights"]], len(labels))
    rows = sparse.csr_matrix(X) if case.get("rows") == "sparse" else X
    return epfast.LinearClassifier(**arguments).fit(rows, labels, **given)


def fit_gp_classifier(case: Spec) -> Any:
    """The process's face for scikit-learn."""
    X, y = DATA["small"]
    bounds = (1e-2, 1e2) if case["optimizer"] else "fixed"
    kernel = ConstantKernel(2.0, bounds) * RBF(1.3, bounds)
    arguments = {
        "kernel": kernel,
        "optimizer": case["optimizer"],
        "loss": LOSSES[case["loss"]],
        "scheme": scheme_of(case["scheme"], 1),
        "schedule": schedule_of(case["schedule"]),
        **{name: case[name] for name in ("jitter", "rank") if name in case},
    }
    return epfast.GPClassifier(**arguments).fit(INPUTS, _labels(case, X, y))


def call_backend(case: Spec) -> Any:
    """A primitive: arrays in, arrays out."""
    X, y = DATA["small"]
    loss, scheme = LOSSES[case["loss"]], scheme_of(case["scheme"], case["d"])
    if case["call"] == "tilted_moments":
        mean, variance = np.linspace(-3.0, 3.0, N), np.geomspace(0.02, 4.0, N)
        return epfast.backend.tilted_moments(loss, y, mean, variance, case["power"], scheme)
    mean, variance = np.array([0.3, -0.2, 0.1]), np.array([0.5, 1.0, 2.0])
    return epfast.backend.fit_minibatch(loss, y[:7, None] * X[:7], mean, variance, scheme)

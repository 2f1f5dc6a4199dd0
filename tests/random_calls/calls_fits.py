"""Random calls of the fits, with few sweeps: linear models, processes, support vectors."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

import epfast
from epfast import schedules
from tests.random_calls import values
from tests.random_calls.calls import random_call
from tests.random_calls.hostile import BAD_CALLABLES
from tests.random_calls.oracles import Case
from tests.random_calls.values import Draw

#: sweeps at most of the fits here; those of fits.py have more
SWEEPS = 4


def rows_of(draw: Draw) -> np.ndarray:
    """A small matrix of rows."""
    n, d = draw.integer(1, values.LARGEST), draw.integer(1, 4)
    return draw.rng.normal(size=(n, d)) * draw.of((1.0, 1.0, 1.0, 1e-3, 1e3))


def short(draw: Draw, stores: str, n: int) -> Any:
    """A schedule of few sweeps."""
    found = values.schedule(draw, stores, n)
    most = {name: SWEEPS for name in ("sweeps", "steps") if getattr(found, name, 0) > SWEEPS}
    try:
        return dataclasses.replace(found, **most)
    except (TypeError, ValueError):
        return found


def prior(draw: Draw, d: int) -> dict[str, Any]:
    """Arguments for the prior."""
    pick = draw.integer(0, 5)
    variance = draw.rng.gamma(1.0, size=d) * draw.scale(-2, 2) + 1e-6
    if pick == 0:
        return {"prior_variance": variance}
    if pick == 1:
        return {"prior_precision": np.diag(1.0 / variance), "prior_mean": draw.rng.normal(size=d)}
    if pick == 2:
        return {"prior_variance": float(variance[0]), "prior_mean": draw.rng.normal(size=d)}
    return {"prior_variance": draw.of((1.0, 25.0))} if pick == 3 else {}


@random_call(7)
def fit_linear(draw: Draw) -> Case:
    X = rows_of(draw)
    n, d = X.shape
    name = values.loss(draw)
    given: dict[str, Any] = {"X": X, "y": values.responses(draw, name, n), "loss": name}
    given |= prior(draw, d)
    if draw.chance(0.4):
        given["posterior"] = draw.of(("full", "factorized"))
    if draw.chance(0.3):
        given["batch_size"] = draw.of((1, 2, 3, n))
    if draw.chance(0.3):
        given["scheme"] = values.scheme(draw)
    given["schedule"] = short(draw, draw.of(tuple(values.SCHEDULES)), n)
    if draw.chance(0.7):
        given["schedule"] = schedules.EP(sweeps=2)
    for key, value in (
        ("weights", draw.of((1.0, 0.5, 3.0, 0.0)) * np.ones(n)),
        ("beta", 0.5),
        ("record", draw.of(("cost", "factor"))),
        ("progress", lambda count: None),
        ("callback", draw.of((lambda info, state: False, lambda info, state: True))),
        ("intercept", draw.of((True, 3.0))),
        ("offset", draw.rng.normal(size=n)),
    ):
        if draw.chance(0.08) and key in values.arguments(epfast.fit_linear):
            given[key] = value
    return Case("fit_linear", epfast.fit_linear, given)


@random_call(1)
def fit_chunks(draw: Draw) -> Case:
    X = rows_of(draw)
    y = values.RESPONSES["labels"](draw.rng, len(X))
    bad = draw.chance(0.5)

    def chunks() -> Iterator[Any]:
        for k in range(3):
            if bad and k == 2:
                yield draw.of((X, (X, y[:-1]), (X[:, :-1], y), (X, y, y), None, (X * np.nan, y)))
            yield X, y

    given = {"X": chunks(), "posterior": "factorized", "schedule": schedules.ADF()}
    if draw.chance(0.5):
        given |= {"batch_size": 2, "scheme": draw.of(("variational", "laplace", "quick_laplace"))}
    return Case("fit_linear(chunks)", epfast.fit_linear, given)


def kernel(draw: Draw, n: int) -> np.ndarray:
    """A kernel matrix, now and then singular, of low rank, or indefinite."""
    x = np.sort(draw.rng.normal(size=n)) * draw.scale(-1, 1)
    K = draw.scale(-1, 2) * np.exp(-0.5 * np.subtract.outer(x, x) ** 2)
    pick = draw.py.random()
    if pick < 0.1:
        return np.asarray(K * 0.0 + 1.0)
    if pick < 0.15:
        return np.asarray(K - 2.0 * np.eye(n))
    if pick < 0.2:
        return np.zeros((n, n))
    if pick < 0.3:
        return np.asarray(K * draw.of((1e150, 1e-150, 1e8)))
    return np.asarray(K + 1e-6 * np.eye(n))


@random_call(5)
def fit_gp(draw: Draw) -> Case:
    n = draw.integer(1, values.LARGEST)
    name = values.loss(draw)
    given: dict[str, Any] = {"K": kernel(draw, n), "y": values.responses(draw, name, n)}
    given |= {"loss": name, "schedule": short(draw, draw.of(("factor", "factor", "descent")), n)}
    changes = set()
    if draw.chance(0.3):
        given["scheme"] = values.scheme(draw)
    if draw.chance(0.2):
        given["rank"] = draw.integer(1, n)
        given["schedule"] = short(draw, draw.of(tuple(values.SCHEDULES)), n)
    elif draw.chance(0.1):
        given["jitter"] = 1e-6
    elif draw.chance(0.1):
        given["overwrite_K"] = True
        changes.add("K")
    return Case("fit_gp", epfast.fit_gp, given, changes=frozenset(changes))


@random_call(3)
def incomplete_cholesky(draw: Draw) -> Case:
    n = draw.integer(1, values.LARGEST)
    given = {"K": kernel(draw, n), "rank": draw.integer(1, n)}
    if draw.chance(0.3):
        x = draw.rng.normal(size=(n, 2))
        given["K"] = epfast.KernelColumns.rbf(x, 1.0)
    if draw.chance(0.2):
        column = draw.of((*BAD_CALLABLES, np.ones))
        given["K"] = epfast.KernelColumns(np.ones(n), lambda i: column(i))
    return Case("incomplete_cholesky", epfast.incomplete_cholesky, given)


@random_call(1)
def kernel_columns(draw: Draw) -> Case:
    given = {"X": rows_of(draw), "length_scale": draw.scale(-2, 2)}
    return Case("KernelColumns.rbf", epfast.KernelColumns.rbf, given)


@random_call(5)
def fit_svm(draw: Draw) -> Case:
    X = rows_of(draw)
    n = len(X)
    given: dict[str, Any] = {"X": X, "y": values.RESPONSES["labels"](draw.rng, n)}
    for key, value in (
        ("C", draw.scale(-2, 3)),
        ("kernel", draw.of(("rbf", "linear"))),
        ("gamma", draw.of(("scale", "auto", 1.0, 0.1))),
        ("tol", draw.scale(-5, -1)),
        ("chunks", draw.integer(1, n)),
        ("order", draw.of(("serial", "parallel"))),
        ("finish", draw.chance(0.5)),
        ("alpha", np.zeros(n)),
    ):
        if draw.chance(0.25):
            given[key] = value
    given["max_iter"] = 1000
    return Case("fit_svm", epfast.fit_svm, given)


class Changed:
    """A callback that changes the rows under the fit, or their shape."""

    def __init__(self, X: Any, how: int) -> None:
        self.X, self.how = X, how

    def __call__(self, info: Any, state: Any) -> bool:
        if sparse.issparse(self.X):
            (self.X.indices if self.how else self.X.indptr)[:] = 10**6
        elif self.how:
            self.X[...] = np.nan
        else:
            with contextlib.suppress(AttributeError, ValueError):
                self.X.shape = self.X.shape[::-1]
        return False


@random_call(0.3)
def changed_rows(draw: Draw) -> Case:
    X = rows_of(draw)
    given: dict[str, Any] = {"X": X, "y": values.RESPONSES["labels"](draw.rng, len(X))}
    if draw.chance(0.6):
        given["X"] = sparse.csr_matrix(X)
    given |= {"callback": Changed(given["X"], draw.integer(0, 1)), "schedule": schedules.EP(5)}
    if draw.chance(0.3) and not sparse.issparse(given["X"]):
        given |= {"posterior": "factorized"}
    return Case("fit_linear(changed)", epfast.fit_linear, given, changes=frozenset({"X"}))

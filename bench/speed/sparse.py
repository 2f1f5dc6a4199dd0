"""Sparse rows with a factorised posterior: hashed features, beside SGDClassifier.

    python -m bench sparse [--quick]             # 3 min; needs no data

200,000 rows of 25 columns out of 2^20, drawn by a Zipf law of exponent 1.1 and hashed, with normal
true weights and probit labels: what Graepel et al. (2010), "Web-scale Bayesian click-through rate
prediction", ICML 27, update online with one pass of assumed density filtering. That pass takes a
few multiply-adds per nonzero, so that random access to the weights limits it; ``touch`` loads and
stores them and does nothing else (``sparse_limit.c``), ``visit`` also what EP stores per nonzero.
A visit is measured where all of that fits the caches, where the columns do, and where nothing does.

Both sides run in turns in one process and one thread; what is given is the least of all rounds.
"""

from __future__ import annotations

import argparse
import ctypes
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.linear_model import SGDClassifier

import epfast
from bench.lib import compile, harness
from epfast._core.sparse_factors import SparseRows, moments_of

ROWS, COLUMNS, NONZEROS, EXPONENT, TEST_ROWS = 200_000, 1 << 20, 25, 1.1, 20_000
CHUNK = 1000
ROUNDS, QUICK_ROUNDS = 30, 3
#: rows whose sites fit the second cache, and visits in so many times each round
CACHED_ROWS, VISITS = 300, 20_000
ALPHAS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
#: goals
ROWS_PER_SECOND, ALGEBRA = 1e6, 2.0


def data(n: int, d: int, k: int = NONZEROS, seed: int = 0) -> tuple[Any, np.ndarray]:
    """Rows and labels."""
    rng = np.random.default_rng(seed)
    share = np.cumsum(np.arange(1.0, d + 1.0) ** -EXPONENT)
    column = np.searchsorted(share / share[-1], rng.random(n * k))
    column = rng.permutation(d)[np.minimum(column, d - 1)].astype(np.int32)
    X = sparse.csr_matrix((np.ones(n * k), column, np.arange(0, n * k + 1, k)), shape=(n, d))
    X.sum_duplicates()
    return X, np.where(X @ rng.normal(size=d) + rng.normal(size=n) > 0.0, 1.0, -1.0)


def least(tasks: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Seconds of each task: the least over rounds that run each once."""
    found = dict.fromkeys(tasks, np.inf)
    for _ in range(rounds):
        for name, task in tasks.items():
            found[name] = min(found[name], harness.timed(task)[1])
    return found


def sgd(alpha: float = 1e-4) -> SGDClassifier:
    return SGDClassifier(loss="log_loss", alpha=alpha, max_iter=1, tol=None, random_state=0)


def log_loss(model: Any, X: Any, y: np.ndarray) -> float:
    proba = model.predict_proba(X)
    up = proba if proba.ndim == 1 else proba[:, 1]
    return float(-np.log(np.maximum(np.where(y > 0.0, up, 1.0 - up), 1e-300)).mean())


def one_pass(n: int, d: int, rounds: int) -> tuple[list[Any], dict[str, Any]]:
    """One pass of ADF beside an epoch: seconds, log loss, memory."""
    X, y = data(n + TEST_ROWS, d)
    X_test, y_test, X, y = X[n:], y[n:], X[:n], y[:n]
    adf = {"loss": "probit", "posterior": "factorized", "schedule": epfast.ADF()}
    limit = compile.library(
        Path(__file__).with_name("sparse_limit.c"),
        {"touch": (None, [ctypes.c_size_t, *[ctypes.c_void_p] * 3, ctypes.c_size_t])},
    )
    moments = moments_of(np.ones(d), np.zeros(d))
    places = [part.ctypes.data for part in (X.indptr, X.indices, moments)]
    core = epfast.schemes.Exact().minibatch(
        epfast.losses.Probit(), d, 1, sparse=True, power=1.0, damping=1.0, site_rule="keep"
    )
    rows, labels, order = SparseRows(X), y[:, None].copy(), np.arange(n, dtype=np.intp)
    tasks: dict[str, Callable[[], Any]] = {
        "SGDClassifier, one epoch": lambda: sgd().fit(X, y),
        "fit_linear": lambda: epfast.fit_linear(X, y, **adf),
        "LinearClassifier": lambda: epfast.LinearClassifier(**adf, prior_variance=1.0).fit(X, y),
        "its loop over rows": lambda: core.rows(rows, labels, order, moments),
        "touch": lambda: limit.touch(n, *places, 64),
    }
    seconds = least(tasks, rounds)
    post = epfast.fit_linear(X, y, **adf)
    model = epfast.LinearClassifier(**adf, prior_variance=1.0).fit(X, y)
    tracemalloc.start()
    epfast.fit_linear(X, y, **adf)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    losses = {f"SGD, alpha {a:g}": log_loss(sgd(a).fit(X, y), X_test, y_test) for a in ALPHAS}
    best = min(losses.values())
    ours = [log_loss(found, X_test, y_test) for found in (post, model)]
    epoch = seconds["SGDClassifier, one epoch"]
    harness.table(
        ["task", "ms", "over the epoch", "ns per row", "ns per nonzero"],
        [(k, 1e3 * s, s / epoch, 1e9 * s / n, 1e9 * s / X.nnz) for k, s in seconds.items()],
        f"{n} rows, {d} columns, {X.nnz} nonzeros",
    )
    harness.table(
        ["fit", "test log loss"],
        [("fit_linear", ours[0]), ("LinearClassifier", ours[1]), *losses.items()],
    )
    ratios = [seconds[name] / epoch for name in ("fit_linear", "LinearClassifier")]
    speed = n / seconds["fit_linear"]
    goals = [
        (
            *("ADF", "one pass takes no longer than an epoch of SGDClassifier"),
            *(max(ratios) <= 1.0, "fit_linear {:.2f}, LinearClassifier {:.2f}".format(*ratios)),
        ),
        (
            *("ADF", "test log loss below the best epoch of five alphas"),
            *(max(ours) < best, f"{ours[0]:.4f}, {ours[1]:.4f} against {best:.4f}"),
        ),
        (
            *("ADF", f"{ROWS_PER_SECOND:g} rows per second"),
            *(speed >= ROWS_PER_SECOND, f"{speed:.3g}"),
        ),
        (
            *("ADF", "memory beside X is O(d): at most ten numbers per column"),
            *(peak <= 80 * d, f"{peak / d:.0f} bytes per column"),
        ),
    ]
    return goals, {"seconds": seconds, "log_loss": losses, "ours": ours, "peak": peak}


def chunks(n: int, d: int) -> tuple[list[Any], dict[str, Any]]:
    """Calls of partial_fit."""
    X, y = data(n, d)
    ours = epfast.LinearClassifier(loss="probit", posterior="factorized", prior_variance=1.0)
    theirs, post = sgd(), epfast.fit_linear(
        X[:CHUNK], y[:CHUNK], posterior="factorized", schedule=epfast.ADF()
    )  # fmt: skip
    found: dict[str, float] = {}
    for i in range(0, n, CHUNK):
        part = X[i : i + CHUNK], y[i : i + CHUNK]
        tasks: dict[str, Callable[[], Any]] = {
            "SGDClassifier": lambda part=part: theirs.partial_fit(*part, classes=[-1, 1]),
            "LinearClassifier": lambda part=part: ours.partial_fit(*part, classes=[-1, 1]),
            "two copies of d numbers": lambda: (post.precision.copy(), post.shift.copy()),
        }
        for name, seconds in least(tasks, 1).items():
            found[name] = min(found.get(name, np.inf), seconds)
    harness.table(
        ["call", "ms"],
        [(name, 1e3 * seconds) for name, seconds in found.items()],
        f"partial_fit of {CHUNK} rows, {d} columns",
    )
    return [], {"seconds": found}


def per_nonzero(d: int, n: int, rounds: int) -> dict[str, float]:
    """Linear algebra of a visit: the slope of seconds in the nonzeros of a row."""
    found = {}
    limit = compile.library(
        Path(__file__).with_name("sparse_limit.c"),
        {"visit": (None, [ctypes.c_size_t, *[ctypes.c_void_p] * 6, ctypes.c_size_t])},
    )
    for kind in ("ADF", "EP", "visit"):
        tasks, entries = {}, []
        for k in (25, 75):
            X, y = data(n, d, k)
            core = epfast.schemes.Exact().minibatch(
                epfast.losses.Probit(), d, 1, sparse=True, power=1.0, damping=1.0, site_rule="keep"
            )
            moments, sites = moments_of(np.ones(d), np.zeros(d)), {}
            if kind != "ADF":
                names = ("site_tau", "site_nu", "site_scale")
                sizes = (X.nnz, X.nnz, n)
                sites = {name: np.zeros(size) for name, size in zip(names, sizes, strict=True)}
            order = np.arange(n, dtype=np.intp)
            given = SparseRows(X), y[:, None].copy(), order, moments
            tasks[k] = lambda core=core, given=given, sites=sites: core.rows(*given, **sites)
            if kind == "visit":
                arrays = (X.indptr, X.indices, X.data, moments, *list(sites.values())[:2])
                places = [array.ctypes.data for array in arrays]
                tasks[k] = lambda places=places, arrays=arrays: limit.visit(n, *places, 64)
            entries.append(X.nnz)
        seconds = least(tasks, max(rounds, rounds * VISITS // n))  # type: ignore[arg-type]
        found[kind] = 1e9 * (seconds[75] - seconds[25]) / (entries[1] - entries[0])  # type: ignore[index]
    return found


def minibatches(n: int, d: int, rounds: int) -> tuple[list[Any], dict[str, Any]]:
    """Minibatch factors: seconds per nonzero, whatever the number of columns."""
    found = {}
    for columns in (d >> 6, d):
        X, y = data(n, columns)
        for scheme in ("laplace", "variational", "quick_laplace"):

            def task(X: Any = X, y: np.ndarray = y, scheme: str = scheme) -> None:
                schedule = epfast.ADF(settle=0)
                epfast.fit_linear(
                    X, y, posterior="factorized", batch_size=100, scheme=scheme, schedule=schedule
                )  # fmt: skip

            found[scheme, columns] = 1e9 * least({"": task}, rounds)[""] / X.nnz
    harness.table(
        ["scheme", "columns", "ns per nonzero"],
        [(*key, value) for key, value in found.items()],
        f"One pass over {n} rows, minibatches of 100, logistic",
    )
    return [], {"ns": {f"{scheme} {columns}": ns for (scheme, columns), ns in found.items()}}


def run(options: argparse.Namespace) -> dict[str, Any]:
    n, d = (20_000, 1 << 16) if options.quick else (ROWS, COLUMNS)
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        goals, first = one_pass(n, d, rounds)
        _, second = chunks(min(n, 40 * CHUNK), d)
        places = {
            "everything in cache": (1 << 12, CACHED_ROWS),
            "columns in cache": (1 << 12, n // 4),
            f"{d} columns": (d, n // 4),
        }
        visits = {place: per_nonzero(*sizes, rounds) for place, sizes in places.items()}
        _, third = minibatches(n // 4, d, max(2, rounds // 10))
    harness.table(
        ["where", "ADF", "EP", "EP's loads and stores alone"],
        [(place, *ns.values()) for place, ns in visits.items()],
        "Linear algebra, ns per nonzero and visit",
    )
    ours = [f"{ns['EP']:.2f} with {place}" for place, ns in visits.items()]
    goals.append(
        (
            *("EP", f"linear algebra in cache, ns per nonzero and visit, at most {ALGEBRA:g}"),
            *(visits["everything in cache"]["EP"] <= ALGEBRA, ", ".join(ours)),
        )
    )
    return {
        "goals": goals,
        "one_pass": first,
        "chunks": second,
        "algebra": visits,
        "minibatches": third,
    }

"""Sparse rows with a factorised posterior: hashed features, beside SGDClassifier.

    python -m bench sparse [--quick]             # 1 min; needs no data

200,000 rows of 25 columns out of 2^20, drawn by a Zipf law of exponent 1.1 and hashed, with normal
true weights and probit labels: what Graepel et al. (2010), "Web-scale Bayesian click-through rate
prediction", ICML 27, update online with one pass of assumed density filtering. Both sides take
turns in one process and one thread, and the fastest rounds are compared.
"""

from __future__ import annotations

import argparse
import tracemalloc
import warnings
from functools import partial
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.linear_model import SGDClassifier

import epfast
from bench.lib import harness

NONZEROS, EXPONENT, TEST_ROWS = 25, 1.1, 20_000
ALPHAS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2)
#: beside X, at most: ten numbers per column
BYTES_PER_COLUMN = 80
ADF = {"loss": "probit", "posterior": "factorized", "schedule": epfast.ADF()}


def data(n: int, d: int, k: int = NONZEROS) -> tuple[Any, np.ndarray]:
    """Rows and labels."""
    rng = np.random.default_rng(0)
    share = np.cumsum(np.arange(1.0, d + 1.0) ** -EXPONENT)
    column = np.searchsorted(share / share[-1], rng.random(n * k))
    column = rng.permutation(d)[np.minimum(column, d - 1)].astype(np.int32)
    X = sparse.csr_matrix((np.ones(n * k), column, np.arange(0, n * k + 1, k)), shape=(n, d))
    X.sum_duplicates()
    return X, np.where(X @ rng.normal(size=d) + rng.normal(size=n) > 0.0, 1.0, -1.0)


def sgd(alpha: float = 1e-4) -> SGDClassifier:
    return SGDClassifier(loss="log_loss", alpha=alpha, max_iter=1, tol=None, random_state=0)


def classifier() -> epfast.LinearClassifier:
    return epfast.LinearClassifier(**ADF, prior_variance=1.0)


def log_loss(model: Any, X: Any, y: np.ndarray) -> float:
    proba = model.predict_proba(X)
    up = proba if proba.ndim == 1 else proba[:, 1]
    return float(-np.log(np.maximum(np.where(y > 0.0, up, 1.0 - up), 1e-300)).mean())


def run(options: argparse.Namespace) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    n, d = (20_000, 1 << 16) if options.quick else (200_000, 1 << 20)
    X, y = data(n + TEST_ROWS, d)
    X_test, y_test, X, y = X[n:], y[n:], X[:n], y[:n]
    fit = partial(epfast.fit_linear, X, y, **ADF)
    tasks = {
        "SGDClassifier, one epoch": lambda: sgd().fit(X, y),
        "fit_linear": fit,
        "LinearClassifier": lambda: classifier().fit(X, y),
    }
    timed = harness.interleave(tasks, 15, budget=10.0)
    seconds = {name: min(timing.values) for name, timing in timed.items()}
    tracemalloc.start()
    post = fit()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    losses = {f"SGD, alpha {a:g}": log_loss(sgd(a).fit(X, y), X_test, y_test) for a in ALPHAS}
    best = min(losses.values())
    losses["fit_linear"] = log_loss(post, X_test, y_test)
    losses["LinearClassifier"] = log_loss(classifier().fit(X, y), X_test, y_test)
    harness.show(
        ({"task": k, "ms": 1e3 * s, "ns per nonzero": 1e9 * s / X.nnz} for k, s in seconds.items()),
        f"{n} rows, {d} columns, {X.nnz} nonzeros",
    )
    harness.show({"fit": name, "test log loss": value} for name, value in losses.items())
    names = ("fit_linear", "LinearClassifier")
    ratios = [seconds[name] / seconds["SGDClassifier, one epoch"] for name in names]
    found = [losses[name] for name in names]
    said = "fit_linear {:.2f}, LinearClassifier {:.2f}".format(*ratios)
    nats = "{:.4f}, {:.4f} against {:.4f}".format(*found, best)
    one_epoch = "one pass takes no longer than an epoch of SGDClassifier"
    memory = "memory beside X is O(d): at most ten numbers per column"
    goals: list[harness.Claim] = [
        ("ADF", one_epoch, max(ratios) <= 1.0, said),
        ("ADF", "test log loss below the best epoch of five alphas", max(found) < best, nats),
        ("ADF", memory, peak <= BYTES_PER_COLUMN * d, f"{peak / d:.0f} bytes per column"),
    ]
    return {"goals": goals, "one_pass": {"seconds": seconds, "log_loss": losses, "peak": peak}}

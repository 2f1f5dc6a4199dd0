"""Scalar sites with a full covariance, on one thread: against scikit-learn and dgemm.

    EPFAST_DATA=folder python -m bench linear [--quick] [--only sklearn]       # 3 min

N = 32,561 and d = 100 unless said otherwise: rows are standard normal with a constant last column,
weights N(0, 1/d), labels drawn from the model, and the prior is N(0, I). A fit is a call of
``fit_linear``, checks of the input and evidence included, until a sweep changes no mean by more
than 1e-6 standard deviations nor the log of one of these by more than 1e-6.

- sklearn: LogisticRegression (lbfgs, C = prior variance, default tolerance), on these data and,
  with ``EPFAST_DATA``, on one-hot Census (d = 101), LIBSVM's a9a and w8a (sparse; prior variance
  25) and MNIST, 3 against 8 (d = 785, prior variance 1). What counts is the fastest rounds.
- chunked_sweeps: a sweep in one chunk, as a share of the rate of dgemm, for d from 64 to 785: the 2
  d^2 N flops of marginal variances and Gram matrix over its time, tilted moments included.
"""

from __future__ import annotations

import argparse
import itertools
import os
from functools import partial
from typing import Any

import numpy as np

import epfast
from bench.lib import harness
from bench.lib.datasets import VARIABLE, load, load_libsvm, load_mnist
from bench.lib.harness import Claim
from bench.speed.numpy_ep import TOLERANCE, Array, synthetic

ROWS, QUICK_ROWS, DIMENSION = 32_561, 300, 100
LOSSES = ("probit", "logistic")
#: columns of X, those from which the aim holds, and the share of dgemm's rate that is aimed at
DIMENSIONS, AIMED_FROM, AIM = (64, 100, 128, 256, 785), 128, 0.8
#: numbers in the rows of a sweep, in a full run and in a quick one; columns of dgemm's other factor
NUMBERS, COLUMNS = (4_000_000, 100_000), 256


def ours(X: Any, y: Array, loss: str, prior_variance: float = 1.0, **schedule: Any) -> Any:
    """One fit of epfast, to the tolerance unless something else is asked for."""
    settings = {"tol": TOLERANCE, "sweeps": 50} | schedule
    return epfast.fit_linear(
        *(X, y),
        loss=loss,
        posterior="full",
        prior_variance=prior_variance,
        schedule=epfast.EP(**settings),
    )


def rows(options: argparse.Namespace, loss: str) -> tuple[Array, Array]:
    return synthetic(QUICK_ROWS if options.quick else ROWS, DIMENSION, loss)


def data_sets(options: argparse.Namespace) -> list[tuple[str, Any, Array, float, float | None]]:
    """Name, rows, labels, prior variance, and the most of scikit-learn's time that is aimed at."""
    found = [("synthetic", *rows(options, "logistic"), 1.0, 2.0)]
    if options.quick or not os.environ.get(VARIABLE):
        print("\nwithout real data")
        return found
    census, mnist = load("census"), load_mnist()
    some = np.isin(mnist.digit, (3, 8))
    X = np.hstack([mnist.X[some] / 255.0, np.ones((some.sum(), 1))])
    return [
        *found,
        ("census", census.X, census.y, 25.0, 1.0),
        ("a9a, sparse", *load_libsvm("a9a"), 25.0, 1.5),
        ("w8a, sparse", *load_libsvm("w8a"), 25.0, 4.0),
        ("MNIST 3 or 8", X, np.where(mnist.digit[some] == 3, 1.0, -1.0), 1.0, None),
    ]


def against_sklearn(options: argparse.Namespace) -> tuple[dict, list[Claim]]:
    """Fits to the tolerance, and to the default 1e-5, against LogisticRegression."""
    from sklearn.linear_model import LogisticRegression

    cells, goals = [], []
    for (name, X, y, variance, most), loss in itertools.product(data_sets(options), LOSSES):
        model = LogisticRegression(C=variance, fit_intercept=False, max_iter=1000)
        fit = ours(X, y, loss, variance)
        tasks = {
            "ours": partial(ours, X, y, loss, variance),
            "ours, 1e-5": partial(ours, X, y, loss, variance, tol=1e-5),
            "sklearn": partial(model.fit, X, y),
        }
        timed = harness.interleave(tasks, 31, budget=12.0)
        over, fastest = (
            timed["ours"].over(timed["sklearn"]),
            timed["ours"].fastest(timed["sklearn"]),
        )
        cells.append(
            {
                "data": f"{name}, {loss}",
                "sweeps": fit.n_sweeps,
                "iterations of lbfgs": int(model.n_iter_[0]),
                **{f"{key}, s": timing for key, timing in timed.items()},
                "ours / theirs": over,
                "fastest": fastest,
                "with tol=1e-5": timed["ours, 1e-5"].over(timed["sklearn"]),
            }
        )
        if most is not None:
            claim = f"a fit at most {most:g} times as long as LogisticRegression"
            said = f"ours / theirs {over}; fastest rounds {fastest:.2f}"
            goals.append((f"scikit-learn, {name}, {loss}", claim, fastest <= most, said))
    harness.show(cells, "EP, default order, against the lbfgs of LogisticRegression")
    return {"cells": cells}, goals


def chunked_sweeps(options: argparse.Namespace) -> tuple[dict, list[Claim]]:
    """A sweep in one chunk of all rows: a fit of four sweeps less one of two, over two."""
    cells = []
    for d in DIMENSIONS[:3] if options.quick else DIMENSIONS:
        n = max(NUMBERS[options.quick] // d, 16 * d)  # the factor of q is a small share
        X, y = synthetic(n, d, "probit")
        rng = np.random.default_rng(0)
        A, B, C = rng.random((COLUMNS, d)), rng.random((d, d)), np.empty((COLUMNS, d))
        order = {"order": "parallel", "damping": 1.0, "tol": 0.0}
        tasks = {
            "gemm": partial(np.matmul, A, B, C),
            "two": partial(ours, X, y, "probit", sweeps=2, **order),
            "four": partial(ours, X, y, "probit", sweeps=4, **order),
        }
        timed = harness.interleave(tasks, 31, budget=12.0)
        pairs = zip(timed["four"].values, timed["two"].values, strict=False)
        sweep = harness.summarize([(four - two) / 2.0 for four, two in pairs])
        share = timed["gemm"].scaled(n / COLUMNS).over(sweep)
        rate = 2e-9 * COLUMNS * d * d / timed["gemm"].median
        cells.append({"d": d, "rows": n, "gflops": rate, "sweep_seconds": sweep, "share": share})
    harness.show(cells, f"A sweep of 2 d^2 N flops against dgemm, {COLUMNS} x d by d x d")
    holds = harness.in_part([c["share"].median >= AIM for c in cells if c["d"] >= AIMED_FROM])
    claim = f"at least {100 * AIM:.0f} % of dgemm's rate from d = {AIMED_FROM} on"
    said = ", ".join(f"d = {c['d']}: {100 * c['share'].median:.0f} %" for c in cells)
    return {"cells": cells}, [("chunked sweeps", claim, holds, said)]


PARTS = {"sklearn": against_sklearn, "chunked_sweeps": chunked_sweeps}


def arguments(parser: argparse.ArgumentParser) -> None:
    harness.choose_parts(parser, PARTS)


def run(options: argparse.Namespace) -> dict[str, Any]:
    return harness.run_parts(options, PARTS)

"""Parts 2 to 4 of ``linear``: against rank-one code in C, NumPy and scikit-learn."""

from __future__ import annotations

import argparse
import ctypes
import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from scipy import linalg
from scipy.special import erfcx, log_ndtr

from bench.lib import compile, harness
from bench.lib.compile import blas
from bench.lib.datasets import VARIABLE, load, load_libsvm, load_mnist
from bench.lib.harness import Claim, Timing
from bench.speed.linear_task import (
    DIMENSION,
    LOSSES,
    TOLERANCE,
    Array,
    fastest,
    ours,
    ratio,
    rounds,
    synthetic,
)

SOURCE = Path(__file__).with_name("rank_one.c")
FUNCTIONS: dict[str, compile.Signature] = {
    "rank_one_sweep": (ctypes.c_size_t, [ctypes.c_size_t, ctypes.c_int] + [ctypes.c_void_p] * 11),
    "gemm_rate": (None, [ctypes.c_size_t, ctypes.c_int, ctypes.c_int] + [ctypes.c_void_p] * 4),
}


# ---- 2. one site at a time, in C ----


def rank_one(library: ctypes.CDLL, X: Array, y: Array, sweeps: int) -> tuple[Array, Array, int]:
    """Mean, covariance and number of refused sites after some sweeps of sequential probit EP."""
    n, d = X.shape
    Sigma, mu, v = np.eye(d), np.zeros(d), np.empty(d)
    tau, nu = np.zeros(n), np.zeros(n)
    arrays = [a.ctypes.data for a in (X, y, Sigma, mu, tau, nu, v)]
    functions = [blas(name) for name in ("ddot", "daxpy", "dsymv", "dsyr")]
    refused = sum(library.rank_one_sweep(n, d, *arrays, *functions) for _ in range(sweeps))
    upper = np.triu(Sigma)  # the lower triangle by columns is the upper by rows
    return mu, upper + np.triu(upper, 1).T, refused


def distance(fit: Any, mean: Array, covariance: Array) -> float:
    """Largest difference of means or covariances, in standard deviations."""
    sd = np.sqrt(fit.variance)
    return float(
        max(
            np.abs((fit.mean - mean) / sd).max(),
            np.abs((fit.covariance - covariance) / np.outer(sd, sd)).max(),
        )
    )


def site_by_site(options: argparse.Namespace, n: int) -> tuple[dict, list[Claim]]:
    """Sequential sweeps against rank_one.c."""
    sweeps = 2
    X, y = synthetic(n, DIMENSION, "probit")
    library = compile.library(SOURCE, FUNCTIONS)
    fixed = {"order": "sequential", "tol": 0.0, "sweeps": sweeps}
    mean, covariance, refused = rank_one(library, X, y, sweeps)
    apart = distance(ours(X, y, "probit", **fixed), mean, covariance)
    timed = harness.interleave(
        {
            "ours": lambda: ours(X, y, "probit", **fixed),
            "rank one": lambda: rank_one(library, X, y, sweeps),
        },
        **rounds(options),
    )
    gain = timed["rank one"].over(timed["ours"])
    harness.table(
        ["sequential probit", "ms per sweep", "quartiles", "least", "us per site"],
        [
            (name, t.median, harness.spread(t), min(t.values), 1e3 * min(t.values) / n)
            for name, t in ((name, t.scaled(1e3 / sweeps)) for name, t in timed.items())
        ],
        f"2. Site by site in C against blocks ({sweeps} sweeps, the whole call of fit_linear); "
        f"{ratio(gain)} x; posteriors {apart:.1e} sd apart, {refused} sites refused",
    )
    goals = [
        (
            "2. site by site",
            "a sequential sweep at least 5 times faster than rank-one updates in C",
            gain.median >= 5.0,
            f"{ratio(gain)} x; fastest rounds {fastest(timed['rank one'], timed['ours']):.2f} x",
        ),
        (
            "2. site by site",
            "the same posterior to 1e-6",
            apart <= 1e-6 and refused == 0,
            f"{apart:.1e} standard deviations apart",
        ),
    ]
    return {
        "sweeps": sweeps,
        "seconds": {name: t._asdict() for name, t in timed.items()},
        "ratio": gain._asdict(),
        "distance": apart,
    }, goals


# ---- 3. parallel, in NumPy ----


def probit_moments(y: Array, m: Array, v: Array) -> tuple[Array, Array]:
    """First two derivatives of log Z in the cavity mean."""
    root = 1.0 / np.sqrt(1.0 + v)
    z = y * m * root
    if z.min() > -10.0:
        r = np.exp(-0.5 * (z * z + np.log(2.0 * np.pi)) - log_ndtr(z))
    else:
        r = np.sqrt(2.0 / np.pi) / erfcx(-np.sqrt(0.5) * z)
    return y * r * root, -r * (z + r) * root * root


def probit_moments_erfcx(y: Array, m: Array, v: Array) -> tuple[Array, Array]:
    """The same by erfcx alone, for z below its overflow at 37."""
    root = 1.0 / np.sqrt(1.0 + v)
    z = y * m * root
    r = np.sqrt(2.0 / np.pi) / erfcx(-np.sqrt(0.5) * np.minimum(z, 37.0))
    return y * r * root, -r * (z + r) * root * root


def logistic_moments(nodes: int = 24) -> Callable[[Array, Array, Array], tuple[Array, Array]]:
    """The same by a Gauss-Hermite rule: values at all nodes, then one product with the weights."""
    x, w = np.polynomial.hermite_e.hermegauss(nodes)
    w /= w.sum()
    weights = np.stack([w, w * x, w * (x * x - 1.0)], axis=1)
    buffers: dict[int, Array] = {}

    def moments(y: Array, m: Array, v: Array) -> tuple[Array, Array]:
        t = buffers.setdefault(len(y), np.empty((len(y), nodes)))
        sd = np.sqrt(v)
        np.multiply((-y * sd)[:, None], x, out=t)
        t += (-y * m)[:, None]
        np.exp(t, out=t)
        t += 1.0
        np.reciprocal(t, out=t)
        Z, first, second = (t @ weights).T
        slope = first / Z
        return slope / sd, (second / Z - slope * slope) / v

    return moments


def numpy_parallel(
    X: Array,
    y: Array,
    moments: Callable,
    way: str = "product",
    chunk: int = 512,
    damped: tuple[float, int] = (1.0, 0),
    sweeps: int = 50,
) -> tuple[Array, Array, int]:
    """Mean, covariance and sweeps of parallel EP, prior N(0, I); one more sweep if it fails.

    way: a.Sigma.a by a "product" X Sigma, or by the squares of X L^-T, "triangular". damped: by how
    much, and in how many sweeps at first.
    """
    n, d = X.shape
    tau, nu = np.zeros(n), np.zeros(n)
    mean, variance, Sigma = np.zeros(d), np.ones(d), np.eye(d)
    root = np.eye(d)
    chunk = min(chunk, n)
    V, s_all, h_all = np.empty((chunk, d)), np.empty(chunk), np.empty(chunk)
    dtrmm = linalg.blas.dtrmm
    for sweep in range(1, sweeps + 1):
        damping = damped[0] if sweep <= damped[1] else 1.0
        precision, shift = np.eye(d), np.zeros(d)
        for lo in range(0, n, chunk):
            part = slice(lo, min(lo + chunk, n))
            A, t, b = X[part], tau[part], nu[part]
            work, s, h = V[: len(A)], s_all[: len(A)], h_all[: len(A)]
            np.matmul(A, mean, out=h)
            if way == "product":
                np.matmul(A, Sigma, out=work)
                np.einsum("ij,ij->i", work, A, out=s)
            else:
                work[...] = A
                dtrmm(1.0, root, work.T, lower=1, overwrite_b=1)
                np.einsum("ij,ij->i", work, work, out=s)
            rest = 1.0 / (1.0 - t * s)
            v = s * rest
            m = (h - b * s) * rest
            slope, curvature = moments(y[part], m, v)
            shrink = 1.0 / (1.0 + v * curvature)
            if damping == 1.0:
                np.multiply(-curvature, shrink, out=t)
                np.multiply(slope - m * curvature, shrink, out=b)
            else:
                t += damping * (-curvature * shrink - t)
                b += damping * ((slope - m * curvature) * shrink - b)
            np.maximum(t, 0.0, out=t)  # these losses are log-concave
            np.multiply(A, np.sqrt(t)[:, None], out=work)
            precision += work.T @ work  # NumPy takes syrk for this
            shift += b @ A
        if not np.isfinite(precision).all():  # undamped steps can run away
            return mean, Sigma, sweeps + 1
        factor = linalg.cho_factor(precision, lower=True)
        Sigma = linalg.cho_solve(factor, np.eye(d))
        if way != "product":  # root' root = Sigma
            root = linalg.solve_triangular(factor[0], np.eye(d), lower=True)
        old_mean, old_variance = mean, variance
        mean, variance = Sigma @ shift, np.diag(Sigma).copy()
        change = max(
            np.abs((mean - old_mean) / np.sqrt(variance)).max(),
            0.5 * np.abs(np.log(old_variance / variance)).max(),
        )
        if change <= damping * TOLERANCE:
            return mean, Sigma, sweep
    return mean, Sigma, sweeps + 1  # not converged


def against_numpy(options: argparse.Namespace, n: int) -> tuple[dict, list[Claim]]:
    """Whole fits by our default order against parallel EP in NumPy."""
    ways = {
        "probit": {"log_ndtr": probit_moments, "erfcx": probit_moments_erfcx},
        "logistic": {"24 nodes": logistic_moments()},
    }
    cells, goals = [], []
    for loss in LOSSES:
        X, y = synthetic(n, DIMENSION, loss)
        variants = {
            f"{label}, {way}, {chunk} rows": (moments, way, chunk)
            for label, moments in ways[loss].items()
            for way in ("product", "triangular")
            for chunk in (512, n)
        }
        trial = harness.interleave(
            {
                name: lambda v=v, X=X, y=y: numpy_parallel(X, y, *v, sweeps=2)
                for name, v in variants.items()
            },
            rounds=3,
        )
        name = min(variants, key=lambda name: trial[name].median)
        # the damping that converges soonest
        fit = ours(X, y, loss)
        runs = {
            (damping, first): numpy_parallel(X, y, *variants[name], (damping, first))
            for damping, first in [(1.0, 0), *itertools.product((0.75, 0.5), (2, 4, 50))]
        }
        damped = min(runs, key=lambda damped: runs[damped][2])
        chosen = *variants[name], damped
        mean, covariance, sweeps = runs[damped]
        timed = harness.interleave(
            {
                "ours": lambda X=X, y=y, loss=loss: ours(X, y, loss),
                "numpy": lambda X=X, y=y, chosen=chosen: numpy_parallel(X, y, *chosen),
            },
            **rounds(options),
        )
        gain = timed["numpy"].over(timed["ours"])
        cells.append(
            {
                "loss": loss,
                "variant": name,
                "damped": damped,
                "sweeps_by_damping": {
                    f"{damping} in {first} sweeps": run[2] for (damping, first), run in runs.items()
                },
                "trial_sweep_ms": {key: 1e3 * t.median / 2 for key, t in trial.items()},
                "sweeps": {"ours": len(fit.history), "numpy": sweeps},
                "seconds": {key: t._asdict() for key, t in timed.items()},
                "ratio": gain._asdict(),
                "ratio_fastest": fastest(timed["numpy"], timed["ours"]),
                "distance": distance(fit, mean, covariance),
            }
        )
    harness.table(
        [
            *("loss", "best NumPy", "damped", "sweeps", "seconds", "our sweeps", "seconds"),
            *("NumPy / ours", "quartiles", "sd apart"),
        ],
        [
            (
                *(c["loss"], c["variant"], "{}, {} sweeps".format(*c["damped"])),
                *(c["sweeps"]["numpy"], c["seconds"]["numpy"]["median"]),
                *(c["sweeps"]["ours"], c["seconds"]["ours"]["median"]),
                *(c["ratio"]["median"], harness.spread(Timing(**c["ratio"])), c["distance"]),
            )
            for c in cells
        ],
        f"3. Fits to {TOLERANCE:g}: parallel EP in NumPy against the default order",
    )
    goals.append(
        (
            "3. NumPy",
            "a fit at least 8 times faster than good parallel EP in NumPy",
            harness.in_part([c["ratio"]["median"] >= 8.0 for c in cells]),
            ", ".join(
                f"{c['loss']} {ratio(Timing(**c['ratio']))} x; fastest rounds "
                f"{c['ratio_fastest']:.2f} x"
                for c in cells
            ),
        )
    )
    return {"cells": cells}, goals


# ---- 4. scikit-learn ----


def against_sklearn(options: argparse.Namespace, n: int) -> tuple[dict, list[Claim]]:
    """Fits to the tolerance, and to the default 1e-5, against LogisticRegression."""
    from sklearn.linear_model import LogisticRegression

    cases: list[tuple[str, Any, Array, float, float | None]] = [
        ("synthetic", *synthetic(n, DIMENSION, "logistic"), 1.0, 2.0)
    ]
    if options.quick:
        print("\na quick run does without real data")
    elif os.environ.get(VARIABLE):
        census, mnist = load("census"), load_mnist()
        cases.append(("census", census.X, census.y, 25.0, 1.0))
        cases.append(("a9a, sparse", *load_libsvm("a9a"), 25.0, 1.5))
        cases.append(("w8a, sparse", *load_libsvm("w8a"), 25.0, 4.0))
        some = np.isin(mnist.digit, (3, 8))
        X = np.hstack([mnist.X[some] / 255.0, np.ones((some.sum(), 1))])
        cases.append(("MNIST 3 or 8", X, np.where(mnist.digit[some] == 3, 1.0, -1.0), 1.0, None))
    else:
        print(f"\n{VARIABLE} is not set: comparison on real data skipped")
    cells, goals = [], []
    for (name, X, y, variance, most), loss in itertools.product(cases, LOSSES):
        model = LogisticRegression(C=variance, fit_intercept=False, max_iter=1000)
        fit = ours(X, y, loss, variance)
        model.fit(X, y)
        timed = harness.interleave(
            {
                "ours": lambda X=X, y=y, v=variance, loss=loss: ours(X, y, loss, v),
                "ours, 1e-5": lambda X=X, y=y, v=variance, loss=loss: ours(X, y, loss, v, tol=1e-5),
                "sklearn": lambda X=X, y=y, model=model: model.fit(X, y),
            },
            **rounds(options),
        )
        over = timed["ours"].over(timed["sklearn"])
        cells.append(
            {
                "data": f"{name}, {loss}",
                "sweeps": len(fit.history),
                "iterations": int(model.n_iter_[0]),
                "seconds": {key: t._asdict() for key, t in timed.items()},
                "ratio": over._asdict(),
                "ratio_fastest": fastest(timed["ours"], timed["sklearn"]),
                "ratio_default": timed["ours, 1e-5"].over(timed["sklearn"])._asdict(),
            }
        )
        if most is None:
            continue
        goals.append(
            (
                f"4. scikit-learn, {name}, {loss}",
                f"a fit at most {most:g} times as long as LogisticRegression",
                fastest(timed["ours"], timed["sklearn"]) <= most,
                f"ours / theirs {ratio(over)}; fastest rounds "
                f"{fastest(timed['ours'], timed['sklearn']):.2f}",
            )
        )
    harness.table(
        [
            *("data", "sweeps", "seconds", "lbfgs iterations", "seconds", "ours/theirs"),
            *("quartiles", "fastest", "with tol=1e-5"),
        ],
        [
            (
                *(c["data"], c["sweeps"], c["seconds"]["ours"]["median"]),
                *(c["iterations"], c["seconds"]["sklearn"]["median"]),
                *(c["ratio"]["median"], harness.spread(Timing(**c["ratio"]))),
                *(c["ratio_fastest"], c["ratio_default"]["median"]),
            )
            for c in cells
        ],
        "4. EP, default order, against scikit-learn's logistic lbfgs (which has no covariance)",
    )
    return {"cells": cells}, goals

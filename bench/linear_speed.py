"""Scalar-site EP with a full covariance, on one thread: against the best simple code, and alone.

    EPFAST_DATA=folder python bench/linear_speed.py [--quick] [--only 1 2 ...]
                                            (needs a C compiler: $CC or gcc; about 3 minutes)

Both sides of a comparison run in this process, on one core, turn by turn; a ratio is the median of
the quotients of the rounds, with its quartiles, and the quotient of the fastest rounds stands
beside it. What other processes and the host of a virtual machine take is left out as far as can be
(``harness.Instant``).

N = 32,561 and d = 100 unless said otherwise: rows are standard normal with a constant last column,
weights N(0, 1/d), labels drawn from the model, and the prior is N(0, I). A fit is a call of
``fit_linear``, checks of the input and evidence included, until a sweep changes no mean by more
than 1e-6 standard deviations nor a variance by more than 1e-6 of itself.

1. Sweeps and seconds of a fit by order, probit and logistic.
2. Sequential EP one site at a time (``rank_one.c``: dsymv, scalar update, dsyr, daxpy; lower
   triangle only, the BLAS functions of SciPy, which epfast uses as well), time per sweep.
3. Parallel EP in NumPy: chunks that stay in cache, buffers allocated once, marginals by the faster
   of two ways, Gram matrix by syrk, Gauss-Hermite for logistic. Whole fits, against the default.
4. scikit-learn's LogisticRegression (lbfgs, C = prior variance, default tolerance), on these data
   and on the one-hot Census data (d = 101, prior variance 25; skipped without data).
5. The matrix work of a sequential sweep as a share of the rate of dgemm at the size of a block:
   3 d^2 N flops that are needed, 4 d^2 N that are done as both triangles are kept.
6. N = 515,345, d = 90, in a process of its own: peak memory beyond X and y, and time per row at
   N/4, N/2 and N.
7. Nanoseconds per site of ``backend.tilted_moments``, and of the core that it calls.
"""

from __future__ import annotations

import argparse
import ctypes
import itertools
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness  # first: fixes the number of BLAS threads
import numpy as np
from harness import Timing
from numpy.typing import NDArray
from scipy import linalg
from scipy.linalg import cython_blas
from scipy.special import erfcx, log_ndtr

Array = NDArray[np.float64]

SOURCE = Path(__file__).with_name("rank_one.c")
ROWS, DIMENSION = 32_561, 100
MANY_ROWS, FEWER_DIMENSIONS = 515_345, 90
TOLERANCE = 1e-6
LOSSES = ("probit", "logistic")
ORDERS = ("sequential", "parallel", "auto")
#: most nanoseconds per site that are aimed at
MOMENTS = {"probit": 15.0, "logistic": 60.0, "hinge": 40.0, "quasi01": None}


def synthetic(n: int, d: int, loss: str) -> tuple[Array, Array]:
    """Rows, the last column constant, and labels drawn from the model. No copy of X is made."""
    rng = np.random.default_rng(0)
    X = np.empty((n, d))
    rng.standard_normal(out=X)
    X[:, -1] = 1.0
    noise = rng.standard_normal(n) if loss == "probit" else rng.logistic(size=n)
    return X, np.where(X @ (rng.standard_normal(d) / np.sqrt(d)) + noise > 0.0, 1.0, -1.0)


def ours(
    X: Array,
    y: Array,
    loss: str,
    prior_variance: float = 1.0,
    callback: Callable | None = None,
    **schedule: Any,
) -> Any:
    """One fit of epfast, to the tolerance unless something else is asked for."""
    import epfast

    settings = {"tol": TOLERANCE, "sweeps": 50} | schedule
    return epfast.fit_linear(
        X,
        y,
        loss=loss,
        scheme="exact",
        posterior="full",
        batch_size=None,
        prior_variance=prior_variance,
        schedule=epfast.EP(**settings),
        callback=callback,
    )


def rounds(options: argparse.Namespace) -> dict[str, Any]:
    """How often things are timed."""
    return {"rounds": 5, "budget": 1.0} if options.quick else {"rounds": 31, "budget": 12.0}


def timed_sweeps(*arguments: Any, **schedule: Any) -> tuple[Any, list[float]]:
    """One fit, and the time of each sweep; the first includes what comes before it."""
    fits: list[Any] = []
    seconds = harness.steps(lambda step: fits.append(ours(*arguments, callback=step, **schedule)))
    return fits[0], seconds


def ratio(timing: Timing) -> str:
    """A ratio with its quartiles."""
    return f"{timing.median:.2f} ({harness.spread(timing)})"


def fastest(over: Timing, under: Timing) -> float:
    """Quotient of the fastest rounds: on a busy machine more stable than the median."""
    return min(over.values) / min(under.values)


# ---- 1. orders ----


def orders(options: argparse.Namespace, n: int) -> tuple[dict, list[tuple]]:
    """Sweeps and seconds of a fit, by order."""
    tasks, fits = {}, {}
    for loss in LOSSES:
        X, y = synthetic(n, DIMENSION, loss)
        for order in ORDERS:
            fits[loss, order] = timed_sweeps(X, y, loss, order=order)
            if fits[loss, order][0].converged:
                tasks[loss, order] = lambda X=X, y=y, loss=loss, order=order: ours(
                    X, y, loss, order=order
                )
    timed = harness.interleave(tasks, **rounds(options))
    cells = []
    for loss, order in fits:
        total = sum(fits[loss, order][1])
        timing = timed.get((loss, order), harness.summarize([total]))
        fit, seconds = fits[loss, order]
        best, _ = fits[loss, "sequential"]
        cells.append(
            {
                "loss": loss,
                "order": order,
                "converged": fit.converged,
                "sweeps": len(fit.history),
                "seconds": timing._asdict(),
                "seconds_of_sweeps": seconds,
                "distance": float(np.abs((fit.mean - best.mean) / np.sqrt(best.variance)).max()),
            }
        )
    harness.table(
        [
            "loss",
            "order",
            "converged",
            "sweeps",
            "seconds",
            "quartiles",
            "least",
            "ms of the sweeps",
        ],
        [
            (
                *(c["loss"], c["order"], c["converged"], c["sweeps"]),
                *(c["seconds"]["median"], harness.spread(Timing(**c["seconds"]))),
                min(c["seconds"]["values"]),
                " ".join(f"{1e3 * s:.0f}" for s in c["seconds_of_sweeps"][:12]),
            )
            for c in cells
        ],
        f"1. Fits to {TOLERANCE:g}, N = {n}, d = {DIMENSION}",
    )
    goals = [
        (
            "1. orders",
            "the default takes no longer than the sequential order",
            harness.in_part(
                [
                    timed[loss, "auto"].over(timed[loss, "sequential"]).median <= 1.0
                    for loss in LOSSES
                ]
            ),
            ", ".join(
                f"{loss}: default / sequential "
                f"{ratio(timed[loss, 'auto'].over(timed[loss, 'sequential']))}, fastest rounds "
                f"{fastest(timed[loss, 'auto'], timed[loss, 'sequential']):.2f}"
                for loss in LOSSES
            ),
        )
    ]
    return {"cells": cells}, goals


# ---- 2. one site at a time, in C ----


def blas(name: str) -> ctypes.c_void_p:
    """Address of one of SciPy's BLAS functions."""
    capsule = cython_blas.__pyx_capi__[name]
    get_name, get_pointer = (
        ctypes.pythonapi.PyCapsule_GetName,
        ctypes.pythonapi.PyCapsule_GetPointer,
    )
    get_name.restype, get_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    get_pointer.restype, get_pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    signature = get_name(capsule)
    if b"int *" not in signature:
        raise RuntimeError(f"SciPy's {name} takes no pointers to int: {signature!r}")
    return ctypes.c_void_p(get_pointer(capsule, signature))


def compile_rank_one(folder: str) -> ctypes.CDLL:
    """Compile rank_one.c into a shared library and declare its functions."""
    path = Path(folder) / "rank_one.so"
    compiler = shlex.split(os.environ.get("CC", "gcc"))
    flags = ["-std=gnu11", "-O3", "-march=native", "-fPIC", "-shared"]
    subprocess.run([*compiler, *flags, str(SOURCE), "-o", str(path), "-lm"], check=True)
    library = ctypes.CDLL(str(path))
    pointer = ctypes.c_void_p
    sweep, gemm = library.rank_one_sweep, library.gemm_rate
    sweep.argtypes = [ctypes.c_size_t, ctypes.c_int] + [pointer] * 11
    sweep.restype = ctypes.c_size_t
    gemm.argtypes = [ctypes.c_size_t, ctypes.c_int, ctypes.c_int] + [pointer] * 4
    gemm.restype = None
    return library


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


def site_by_site(options: argparse.Namespace, n: int) -> tuple[dict, list[tuple]]:
    """Sequential sweeps against rank_one.c."""
    sweeps = 2
    X, y = synthetic(n, DIMENSION, "probit")
    with tempfile.TemporaryDirectory() as folder:
        library = compile_rank_one(folder)
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
            np.abs(1.0 - old_variance / variance).max(),
        )
        if change <= damping * TOLERANCE:
            return mean, Sigma, sweep
    return mean, Sigma, sweeps + 1  # not converged


def against_numpy(options: argparse.Namespace, n: int) -> tuple[dict, list[tuple]]:
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


def against_sklearn(options: argparse.Namespace, n: int) -> tuple[dict, list[tuple]]:
    """Fits to the tolerance, and to the default 1e-5, against LogisticRegression."""
    from datasets import VARIABLE, load
    from sklearn.linear_model import LogisticRegression

    cases = [("synthetic", *synthetic(n, DIMENSION, "logistic"), 1.0, 3.0)]
    if os.environ.get(VARIABLE):
        census = load("census")
        cases.append(("census", census.X, census.y, 25.0, 1.0))
    else:
        print(f"\n{VARIABLE} is not set: comparison on Census skipped")
    cells, goals = [], []
    for name, X, y, variance, most in cases:
        model = LogisticRegression(C=variance, fit_intercept=False, max_iter=1000)
        fit = ours(X, y, "logistic", variance)
        model.fit(X, y)
        timed = harness.interleave(
            {
                "ours": lambda X=X, y=y, v=variance: ours(X, y, "logistic", v),
                "ours, 1e-5": lambda X=X, y=y, v=variance: ours(X, y, "logistic", v, tol=1e-5),
                "sklearn": lambda X=X, y=y, model=model: model.fit(X, y),
            },
            **rounds(options),
        )
        over = timed["ours"].over(timed["sklearn"])
        cells.append(
            {
                "data": name,
                "sweeps": len(fit.history),
                "iterations": int(model.n_iter_[0]),
                "seconds": {key: t._asdict() for key, t in timed.items()},
                "ratio": over._asdict(),
                "ratio_default": timed["ours, 1e-5"].over(timed["sklearn"])._asdict(),
            }
        )
        goals.append(
            (
                f"4. scikit-learn, {name}",
                f"a fit at most {most:g} times as long as LogisticRegression",
                over.median <= most,
                f"ours / theirs {ratio(over)}; fastest rounds "
                f"{fastest(timed['ours'], timed['sklearn']):.2f}",
            )
        )
    harness.table(
        [
            *("data", "sweeps", "seconds", "lbfgs iterations", "seconds", "ours/theirs"),
            *("quartiles", "with tol=1e-5"),
        ],
        [
            (
                *(c["data"], c["sweeps"], c["seconds"]["ours"]["median"]),
                *(c["iterations"], c["seconds"]["sklearn"]["median"]),
                *(c["ratio"]["median"], harness.spread(Timing(**c["ratio"]))),
                c["ratio_default"]["median"],
            )
            for c in cells
        ],
        "4. Logistic EP, default order, against scikit-learn's lbfgs (which has no covariance)",
    )
    return {"cells": cells}, goals


# ---- 5. share of dgemm ----


def matrix_work(options: argparse.Namespace, n: int) -> tuple[dict, list[tuple]]:
    """The flops of the covariance, over the time of a sequential sweep, against dgemm."""
    d, columns, repeats = DIMENSION, 32, 2000
    rng = np.random.default_rng(0)
    A, B, C = rng.standard_normal((d, d)), rng.standard_normal((columns, d)), np.empty((columns, d))
    cells = []
    with tempfile.TemporaryDirectory() as folder:
        library = compile_rank_one(folder)
        dgemm = blas("dgemm")
        for loss in LOSSES:
            X, y = synthetic(n, d, loss)
            sweeps: list[list[float]] = []

            def sweep(X=X, y=y, loss=loss, sweeps=sweeps):
                sweeps.append(
                    timed_sweeps(X, y, loss, order="sequential", tol=0.0, sweeps=4)[1][1:]
                )

            timed = harness.interleave(
                {
                    "gemm": lambda: library.gemm_rate(
                        repeats, d, columns, A.ctypes.data, B.ctypes.data, C.ctypes.data, dgemm
                    ),
                    "sweep": sweep,
                },
                **rounds(options),
            )
            rate = timed["gemm"].scaled(1e9 / (2.0 * repeats * d * d * columns))  # ns per flop
            turns = len(timed["sweep"].values)
            spent = harness.summarize([float(np.median(s)) for s in sweeps[-turns:]])
            share = rate.over(spent.scaled(1e9 / (3.0 * d * d * n)))
            cells.append(
                {
                    "loss": loss,
                    "gflops": 1.0 / rate.median,
                    "sweep_seconds": spent._asdict(),
                    "needed": share._asdict(),
                    "done": share.scaled(4.0 / 3.0)._asdict(),
                    "least_sweep": min(min(each) for each in sweeps),
                    "needed_fastest": min(rate.values)
                    * (3.0 * d * d * n)
                    / (1e9 * min(min(each) for each in sweeps)),
                }
            )
    harness.table(
        ["loss", "dgemm GFLOP/s", "ms per sweep", "needed / dgemm", "quartiles", "done / dgemm"],
        [
            (
                *(c["loss"], c["gflops"], 1e3 * c["sweep_seconds"]["median"]),
                *(c["needed"]["median"], harness.spread(Timing(**c["needed"]))),
                c["done"]["median"],
            )
            for c in cells
        ],
        f"5. Matrix flops of a sequential sweep against dgemm, {d} x {d} by {d} x {columns}",
    )
    goals = [
        (
            "5. matrix work",
            "at least 60 % of the rate of dgemm (3 d^2 N flops, probit)",
            cells[0]["needed"]["median"] >= 0.6,
            ", ".join(
                f"{c['loss']} {100 * c['needed']['median']:.0f} % "
                f"({100 * c['done']['median']:.0f} % of the flops that are done), fastest rounds "
                f"{100 * c['needed_fastest']:.0f} % ({1e3 * c['least_sweep']:.1f} ms)"
                for c in cells
            ),
        )
    ]
    return {"cells": cells}, goals


# ---- 6. many rows ----


def child(n: int) -> None:
    """In a process of its own: the memory of a fit, and fits at N/4, N/2 and N, twice.

    A chunk of rows takes a millisecond, so that most of them meet no stall of the host; a sweep
    takes a second, and all of them do.
    """
    X, y = synthetic(n, FEWER_DIMENSIONS, "probit")
    ours(X[:5000], y[:5000], "probit")
    ours(X[:5000], y[:5000], "probit", order="sequential", sweeps=2, tol=0.0)
    harness.peak_memory(reset=True)
    before = harness.peak_memory()
    fit = ours(X, y, "probit")
    memory = (harness.peak_memory() - before) / 2**20
    del fit
    cells = []
    for size in (n // 4, n // 2, n, n // 4, n // 2, n):
        chunks = [(time.perf_counter(), 0)]  # when they ended, and their rows
        with harness.each_chunk(
            lambda rows, chunks=chunks: chunks.append((time.perf_counter(), rows))
        ):
            fit = ours(X[:size], y[:size], "probit")
        seconds = time.perf_counter() - chunks[0][0]
        us = [1e6 * (t - s) / rows for (s, _), (t, rows) in itertools.pairwise(chunks)]
        cells.append(
            {
                "N": size,
                "sweeps": fit.n_sweeps,
                "us_per_row": np.quantile(us, [0.05, 0.25, 0.5, 0.75, 0.95]).tolist(),
                "seconds": seconds,
            }
        )
    print(
        json.dumps({"memory_mb": memory, "data_mb": (X.nbytes + y.nbytes) / 2**20, "fits": cells})
    )


def many_rows(options: argparse.Namespace, n: int) -> tuple[dict, list[tuple]]:
    """Memory and growth at N = 515,345."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", str(n)], check=True, capture_output=True, text=True
    )
    out = json.loads(done.stdout)
    harness.table(
        ["N", "sweeps", "us per row: 5 %", "25 %", "50 %", "75 %", "95 %", "s of the fit"],
        [(c["N"], c["sweeps"], *c["us_per_row"], c["seconds"]) for c in out["fits"]],
        f"6. Probit, default order, d = {FEWER_DIMENSIONS}; X and y {out['data_mb']:.0f} MB, peak "
        f"memory of the fit beyond them {out['memory_mb']:.1f} MB; quantiles over chunks of rows",
    )
    sizes = [c["N"] for c in out["fits"]]
    slopes = [
        1.0
        + float(np.polyfit(np.log(sizes), np.log([c["us_per_row"][k] for c in out["fits"]]), 1)[0])
        for k in (0, 1)
    ]
    goals = [
        (
            "6. many rows",
            "at most 20 MB beyond X and y",
            out["memory_mb"] <= 20.0,
            f"{out['memory_mb']:.1f} MB, {1e6 * out['memory_mb'] * 1.048576 / n:.0f} bytes per row",
        ),
        (
            "6. many rows",
            "seconds per sweep grow with N (exponent 0.9 to 1.1)",
            0.9 <= slopes[1] <= 1.1,
            f"N^{slopes[1]:.2f} by the lower quartile of the chunks, N^{slopes[0]:.2f} by the "
            "fastest 5 %",
        ),
    ]
    return {**out, "exponent": slopes[1]}, goals


# ---- 7. tilted moments ----


def tilted(options: argparse.Namespace, n: int) -> tuple[dict, list[tuple]]:
    """Nanoseconds per site."""
    import epfast
    from epfast.scalar import moments

    del n
    size = 100_000
    rng = np.random.default_rng(0)
    m, v = 2.0 * rng.standard_normal(size), np.exp(rng.standard_normal(size))
    y = np.where(rng.random(size) < 0.5, 1.0, -1.0)
    ones, out = np.ones(size), [np.empty(size) for _ in range(3)]
    tasks: dict[tuple[str, str], Callable[[], object]] = {}
    for loss in MOMENTS:
        core = moments(epfast.losses.resolve(loss), 1.0)
        tasks[loss, "call"] = lambda loss=loss: epfast.backend.tilted_moments(loss, y, m, v)
        tasks[loss, "core"] = lambda core=core: core.many(y, m, v, ones, *out)
    timed = harness.interleave(tasks, **rounds(options))
    ns = {key: t.scaled(1e9 / size) for key, t in timed.items()}
    harness.table(
        ["loss", "ns per site", "quartiles", "core alone", "quartiles", "aim"],
        [
            (
                *(loss, ns[loss, "call"].median, harness.spread(ns[loss, "call"])),
                *(ns[loss, "core"].median, harness.spread(ns[loss, "core"]), aim),
            )
            for loss, aim in MOMENTS.items()
        ],
        f"7. backend.tilted_moments, {size} sites, m ~ N(0, 4), log v ~ N(0, 1)",
    )
    goals = [
        (
            f"7. tilted moments, {loss}",
            f"at most {aim:g} ns per site",
            ns[loss, "call"].median <= aim,
            f"{ns[loss, 'call'].median:.1f} ns, the core alone {ns[loss, 'core'].median:.1f} ns; "
            f"fastest rounds {min(ns[loss, 'call'].values):.1f}, "
            f"{min(ns[loss, 'core'].values):.1f} ns",
        )
        for loss, aim in MOMENTS.items()
        if aim is not None
    ]
    return {"ns": {f"{loss} {what}": t._asdict() for (loss, what), t in ns.items()}}, goals


PARTS: dict[int, tuple[str, Callable, int, int]] = {  # rows of a full and of a quick run
    1: ("orders", orders, ROWS, 8000),
    2: ("site_by_site", site_by_site, ROWS, 4000),
    3: ("numpy", against_numpy, ROWS, 8000),
    4: ("sklearn", against_sklearn, ROWS, 8000),
    5: ("matrix_work", matrix_work, ROWS, 8000),
    6: ("many_rows", many_rows, MANY_ROWS, MANY_ROWS // 8),
    7: ("tilted", tilted, 0, 0),
}


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        child(int(sys.argv[2]))
        return
    options = harness.start(
        __doc__.splitlines()[0],
        lambda parser: parser.add_argument(
            "--only", type=int, nargs="+", choices=PARTS, default=list(PARTS), help="which parts"
        ),
    )
    found, goals = {}, []
    for number in options.only:
        name, part, full, quick = PARTS[number]
        found[name], judged = part(options, quick if options.quick else full)
        goals += judged
    harness.verdicts(goals, "Goals", ("met", "missed", "met in part"))
    name = "linear_speed"
    if len(options.only) < len(PARTS):  # some parts do not overwrite all
        name += "_" + "".join(map(str, sorted(options.only)))
    harness.write(options.output, name, options, load=os.getloadavg(), **found, goals=goals)


if __name__ == "__main__":
    main()

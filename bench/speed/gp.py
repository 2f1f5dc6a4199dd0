"""Gaussian process classification on one thread: against rank-one code, GPy and scikit-learn.

    python -m bench gp [--quick] [--only gpy ...]
            (needs a C compiler: $CC or gcc; gpy needs GPy, sklearn scikit-learn; 10 minutes)

Five inputs, standard normal; a unit RBF kernel of signal variance 1 unless said otherwise; noisy
labels of a smooth function; probit sites. The kernel matrix is given, but for part sklearn. Both
sides take turns in this process; ratios are those of the fastest rounds.

- site_by_site: a later sequential sweep (a fit of three sweeps less one of one) against one site at
  a time (``rank_one.c``: column, scalar update, rank-one update of one triangle, by dsyr of SciPy's
  BLAS, which epfast uses as well, or by a loop), and its n^3 flops against the rate of dpotrf.
- gpy: GPy's EP, parallel and (n = 1000, once) sequential, each by its own stopping rule, against
  ``epfast.gpy.EP``: posterior, evidence and its gradient by the kernel matrix. Errors are those of
  the log evidence against a fit to 1e-12.
- sklearn: GaussianProcessClassifier (Laplace's approximation of logistic sites) against
  ``GPClassifier``, at fixed hyper-parameters.
"""

from __future__ import annotations

import argparse
import ctypes
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

import epfast
from bench.lib import harness
from bench.lib.compile import blas, library
from bench.lib.harness import Claim
from bench.lib.numpy_reference import rbf

Array = NDArray[np.float64]

SWEEP = {"rank_one_gp_sweep": (ctypes.c_size_t, [ctypes.c_int] + [ctypes.c_void_p] * 9)}
INPUTS, TOLERANCE = 5, 1e-6
#: signal variances at the smaller size
VARIANCES = (1.0, 1e2, 1e4)
#: how many times as fast as rank-one code a sweep should be, at each size
AIMS = (4.0, 10.0)


def problem(n: int) -> tuple[Array, Array]:
    """Inputs and labels."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, INPUTS))
    latent = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.5 * rng.standard_normal(n)
    return X, np.where(latent > 0.0, 1.0, -1.0)


def ours(K: Array, y: Array, **schedule: Any) -> Any:
    """One fit, to the tolerance unless something else is asked for."""
    settings = {"tol": TOLERANCE, "sweeps": 200} | schedule
    return epfast.fit_gp(K, y, loss="probit", scheme="exact", schedule=epfast.EP(**settings))


def sizes(options: argparse.Namespace) -> tuple[int, int]:
    return (200, 400) if options.quick else (1000, 2000)


def rank_one(sweep: Callable, K: Array, y: Array, sweeps: int, dsyr: bool = True) -> Array:
    """The mean after some sweeps of site-by-site EP from flat sites, by dsyr or by a loop."""
    Sigma, mu = K.copy(), np.zeros(len(y))
    tau, nu, scratch = np.zeros((3, len(y)))
    arrays = [a.ctypes.data for a in (y, Sigma, mu, tau, nu, scratch)]
    functions = blas("dcopy"), blas("daxpy"), blas("dsyr") if dsyr else None
    refused = sum(sweep(len(y), *arrays, *functions) for _ in range(sweeps))
    if refused:
        raise RuntimeError(f"rank-one code refused {refused} sites")
    return mu


def site_by_site(options: argparse.Namespace) -> tuple[list[dict], list[Claim]]:
    """Sequential sweeps against rank_one.c, and against dpotrf."""
    sweep = library(Path(__file__).with_name("rank_one.c"), SWEEP).rank_one_gp_sweep
    cells, goals = [], []
    for n, aim in zip(sizes(options), AIMS, strict=True):
        X, y = problem(n)
        K = rbf(X)
        B = np.asfortranarray(K + np.eye(n))

        def blocked(sweeps: int, K: Array = K, y: Array = y) -> Any:
            return ours(K, y, order="sequential", tol=0.0, sweeps=sweeps)

        ways = {
            "ours": blocked,
            "dsyr": lambda sweeps, K=K, y=y: rank_one(sweep, K, y, sweeps),
            "loop": lambda sweeps, K=K, y=y: rank_one(sweep, K, y, sweeps, dsyr=False),
        }
        tasks: dict[Any, Callable] = {
            (name, sweeps): partial(way, sweeps) for name, way in ways.items() for sweeps in (1, 3)
        }
        tasks["dpotrf"] = partial(linalg.lapack.dpotrf, B, lower=1, clean=0)
        least = {name: min(t.values) for name, t in harness.interleave(tasks, budget=20.0).items()}
        seconds = {name: (least[name, 3] - least[name, 1]) / 2.0 for name in ways}
        rival = min(("dsyr", "loop"), key=seconds.__getitem__)
        ratio = seconds[rival] / seconds["ours"]
        share = 3.0 * least["dpotrf"] / seconds["ours"]  # n^3 flops over n^3 / 3
        fit = blocked(2)
        apart = np.abs((fit.mean - rank_one(sweep, K, y, 2)) / np.sqrt(fit.variance)).max()
        cells.append(
            {
                "n": n,
                "ms_per_sweep": 1e3 * seconds["ours"],
                "ms_dsyr": 1e3 * seconds["dsyr"],
                "ms_loop": 1e3 * seconds["loop"],
                "rival": rival,
                "ratio": ratio,
                "ms_dpotrf": 1e3 * least["dpotrf"],
                "share_of_dpotrf": share,
                "sd_apart": float(apart),
            }
        )
        faster = f"a sweep at least {aim:g} times faster than rank-one updates in C"
        rate = "n^3 flops per sweep at 70 % of the rate of dpotrf"
        goals += [
            (f"site by site, n = {n}", faster, ratio >= aim, f"{ratio:.2f} x ({rival})"),
            (f"matrix work, n = {n}", rate, share >= 0.7, f"{100 * share:.0f} %"),
        ]
    harness.show(cells, "Later sequential sweeps against rank-one updates in C")
    return cells, goals


def against_gpy(options: argparse.Namespace) -> tuple[list[dict], list[Claim]]:
    """Posterior, evidence and gradient against GPy's own EP."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # GPy's own, on import
            import GPy
    except ImportError:
        print("\nGPy is not installed: part gpy skipped")
        return [], []
    from epfast.gpy import EP

    theirs = GPy.inference.latent_function_inference.EP
    likelihood = GPy.likelihoods.Bernoulli()
    cells, goals = [], []
    small, large = sizes(options)
    for n, variance in [*((small, variance) for variance in VARIANCES), (large, 1.0)]:
        X, y = problem(n)
        labels = GPy.core.gp.ObsAr((y[:, None] + 1.0) / 2.0)
        K = variance * rbf(X)
        tight = ours(K, y, tol=1e-12, sweeps=1000, order="sequential").log_evidence
        parallel = partial(theirs, ep_mode="nested", parallel_updates=True, max_iters=200)
        methods: dict[str, Callable] = {"epfast": EP, "GPy parallel": parallel}
        if (n, variance) == (small, 1.0):
            methods["GPy sequential"] = partial(theirs, ep_mode="nested")

        def fit(method: Callable, X: Any = X, labels: Any = labels, K: Array = K) -> Any:
            np.random.seed(0)  # noqa: NPY002  (GPy draws its order from it)
            return method().inference(None, X, likelihood, labels, K=K)

        errors = {name: abs(float(fit(how)[1]) - tight) for name, how in methods.items()}
        timed = harness.interleave({k: partial(fit, m) for k, m in methods.items()}, 5)
        for name, timing in timed.items():
            ratio = timing.fastest(timed["epfast"])
            cells.append(
                {
                    "n": n,
                    "signal_variance": variance,
                    "method": name,
                    "seconds": timing,
                    "ratio": ratio,
                    "error_of_evidence": errors[name],
                }
            )
            if name != "epfast":
                least = 2.0 if name == "GPy parallel" else 25.0
                accurate = errors["epfast"] <= max(errors[name], 1e-9)
                claim = f"evidence and gradient at least {least:g} times faster, no less accurate"
                said = f"{ratio:.2f} x; errors of log evidence {errors['epfast']:.1e} and "
                where = f"{name}, n = {n}, signal variance {variance:g}"
                holds = harness.in_part([ratio >= least, accurate])
                goals.append((where, claim, holds, said + f"{errors[name]:.1e}"))
    harness.show(cells, "Posterior, evidence and gradient by the kernel matrix")
    return cells, goals


def against_sklearn(options: argparse.Namespace) -> tuple[list[dict], list[Claim]]:
    """GPClassifier against Laplace's approximation, hyper-parameters fixed."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    cells, goals = [], []
    for n in sizes(options):
        X, y = problem(n)
        kernel = ConstantKernel(1.0) * RBF(1.0)
        schedule = epfast.EP(200, TOLERANCE)
        models = {
            "epfast": epfast.GPClassifier(kernel, optimizer=None, loss="probit", schedule=schedule),
            "scikit-learn": GaussianProcessClassifier(kernel, optimizer=None),
        }
        timed = harness.interleave({k: partial(m.fit, X, y) for k, m in models.items()}, 5)
        ratio = timed["epfast"].fastest(timed["scikit-learn"])
        times = {f"seconds, {name}": timing for name, timing in timed.items()}
        cells.append({"n": n, "sweeps": models["epfast"].n_iter_, **times, "ratio": ratio})
        claim = "a fit takes no longer than that of Laplace's approximation"
        goals.append((f"scikit-learn, n = {n}", claim, ratio <= 1.0, f"ours / theirs {ratio:.2f}"))
    harness.show(cells, "fit(X, y) at fixed hyper-parameters, kernel matrix included")
    return cells, goals


PARTS = {"site_by_site": site_by_site, "gpy": against_gpy, "sklearn": against_sklearn}


def arguments(parser: argparse.ArgumentParser) -> None:
    harness.choose_parts(parser, PARTS)


def run(options: argparse.Namespace) -> dict[str, Any]:
    return harness.run_parts(options, PARTS)

"""Gaussian process classification on one thread: against rank-one code, GPy and scikit-learn.

    python -m bench gp [--quick] [--only 1 2 ...]
                (needs a C compiler: $CC or gcc; part 3 needs GPy, part 4 scikit-learn; 10 minutes)

Both sides of a comparison run in this process, on one core, turn by turn, five times after a first.
What is compared is the fastest of five, step by step (``harness.Fastest``): steps end where a
function is called or returns, in part 1 after some sites of the rank-one code. Our sequential sweep
is one step, and what disturbs it is in its time, so that the ratios of part 1 err to our
disadvantage. Beside a ratio stand the least and the largest without one of the runs.

Five inputs, standard normal; a unit RBF kernel of signal variance 1 unless said otherwise; noisy
labels of a smooth function; probit sites. The kernel matrix is given, but for part 4.

1. A sequential sweep against one site at a time (``rank_one.c``: column, scalar update, rank-one
   update of one triangle, by dsyr of SciPy's BLAS, which epfast uses as well, or by a loop,
   whichever is faster), and its n^3 flops against the rate of dpotrf.
2. Fits to 1e-6 by order: sweeps, seconds, and the error of the log evidence against a fit to 1e-12.
   Signal variance 1, and for n = 1000 also 1e2 and 1e4.
3. GPy's EP, parallel and (n = 1000, once) sequential, each by its own stopping rule, against
   ``epfast.gpy.EP``: posterior, evidence and its gradient by the kernel matrix. Errors as in 2.
4. scikit-learn's GaussianProcessClassifier (Laplace's approximation of logistic sites) against
   ``GPClassifier`` at fixed hyper-parameters.
5. Two threads (``n_jobs=2``) against one, by order: seconds that passed, on all cores, and the
   longest processor time of a thread, which is what passes where nothing else runs.
"""

from __future__ import annotations

import argparse
import ctypes
import time
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

import epfast
from bench.lib import compile, harness
from bench.lib.compile import blas
from bench.lib.harness import Claim, Fastest
from bench.lib.numpy_reference import rbf

Array = NDArray[np.float64]

SOURCE = Path(__file__).with_name("rank_one.c")
FUNCTIONS: dict[str, compile.Signature] = {
    "rank_one_gp_sweep": (ctypes.c_size_t, [ctypes.c_int] * 3 + [ctypes.c_void_p] * 9)
}
INPUTS = 5
TOLERANCE = 1e-6
VARIANCES = (1.0, 1e2, 1e4)
ORDERS = ("sequential", "shuffled", "parallel", "auto")
#: runs after the first, and sites of rank-one code in a step
REPEATS, SITES = 5, 10


def problem(n: int) -> tuple[Array, Array]:
    """Inputs and labels."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, INPUTS))
    latent = np.sin(2.0 * X[:, 0]) + X[:, 1] + 0.5 * rng.standard_normal(n)
    return X, np.where(latent > 0.0, 1.0, -1.0)


def ours(K: Array, y: Array, progress: bool | Callable = False, **schedule: Any) -> Any:
    """One fit, to the tolerance unless something else is asked for."""
    settings = {"tol": TOLERANCE, "sweeps": 200} | schedule
    if settings.get("order") == "shuffled":
        settings["seed"] = 0
    return epfast.fit_gp(
        K, y, loss="probit", scheme="exact", schedule=epfast.EP(**settings), progress=progress
    )  # fmt: skip


def timed(options: argparse.Namespace, tasks: Mapping[str, Callable], **how: Any) -> dict:
    """Turn by turn."""
    return harness.fastest(tasks, 2 if options.quick else REPEATS, **how)


def sizes(options: argparse.Namespace) -> tuple[int, ...]:
    return (200, 400) if options.quick else (1000, 2000)


def variances(options: argparse.Namespace, n: int) -> tuple[float, ...]:
    """Signal variances: more of them take minutes at the larger size."""
    return VARIANCES if n == min(sizes(options)) else VARIANCES[:1]


def words(gain: dict[str, float]) -> str:
    """A quotient in a sentence."""
    return f"{gain['ratio']:.2f} ({gain['least']:.2f}-{gain['largest']:.2f}) x"


# ---- 1. one site at a time, in C ----


class RankOne:
    """Site-by-site EP with its state, from flat sites; dsyr or a loop."""

    def __init__(self, library: ctypes.CDLL, K: Array, y: Array, dsyr: bool) -> None:
        self.library, self.y = library, y
        self.Sigma, self.mu = K.copy(), np.zeros(len(y))
        self.tau, self.nu, self.scratch = np.zeros((3, len(y)))
        self.functions = [blas("dcopy"), blas("daxpy"), blas("dsyr") if dsyr else None]

    def sweep(self, step: Callable[[], None]) -> None:
        """All sites, with a call of ``step`` after every few."""
        n = len(self.y)
        arrays = (self.y, self.Sigma, self.mu, self.tau, self.nu, self.scratch)
        for first in range(0, n, SITES):
            refused = self.library.rank_one_gp_sweep(
                *(n, first, min(first + SITES, n)),
                *(a.ctypes.data for a in arrays),
                *self.functions,
            )
            if refused:
                raise RuntimeError(f"rank-one code refused {refused} sites")
            step()


def site_by_site(options: argparse.Namespace) -> tuple[list[dict], list[Claim]]:
    """Sequential sweeps against rank_one.c, and against dpotrf."""
    cells = []
    library = compile.library(SOURCE, FUNCTIONS)
    for n in sizes(options):
        X, y = problem(n)
        K = rbf(X)
        B = K + np.eye(n)

        def rank_one(step: Callable, dsyr: bool, K=K, y=y) -> RankOne:
            state = RankOne(library, K, y, dsyr)
            for _ in range(2):
                state.sweep(step)
            return state

        def blocked(step: Callable, K=K, y=y) -> Any:
            return ours(K, y, order="sequential", tol=0.0, sweeps=2, progress=step)

        work = np.empty_like(B, order="F")

        def factor(B=B, work=work) -> float:
            work[...] = B.T
            found = linalg.lapack.dpotrf
            return harness.timed(partial(found, work, lower=1, clean=0, overwrite_a=1))[1]

        alone, fit = rank_one(lambda: None, dsyr=True), blocked(lambda *_: None)
        apart = float(np.abs((fit.mean - alone.mu) / np.sqrt(fit.variance)).max())
        tasks = {
            "ours": blocked,
            "dsyr": partial(rank_one, dsyr=True),
            "loop": partial(rank_one, dsyr=False),
        }
        found = {
            name: runs.second_half()
            for name, runs in timed(options, tasks, split=harness.steps).items()
        }
        dpotrf = min(factor() for _ in range(10 * REPEATS))
        sweep = found["ours"].seconds
        rival = min(("dsyr", "loop"), key=lambda name: found[name].seconds)
        cells.append(
            {
                "n": n,
                "ms_per_sweep": 1e3 * sweep,
                "ms_dsyr": 1e3 * found["dsyr"].seconds,
                "ms_loop": 1e3 * found["loop"].seconds,
                "rival": rival,
                **found[rival].over(found["ours"]),
                "ms_dpotrf": 1e3 * dpotrf,
                "gflops_sweep": 1e-9 * n**3 / sweep,
                "gflops_dpotrf": 1e-9 * n**3 / 3.0 / dpotrf,
                # n^3 flops over n^3 / 3
                "share_of_dpotrf": 3.0 * dpotrf / sweep,
                "sd_apart": apart,
            }
        )
    harness.table(
        [
            *("n", "ms per sweep", "dsyr", "loop", "rank one / ours"),
            *("dpotrf", "share of its rate", "sd apart"),
        ],
        [
            (
                *(c["n"], c["ms_per_sweep"], c["ms_dsyr"], c["ms_loop"], c["ratio"]),
                *(c["ms_dpotrf"], c["share_of_dpotrf"], c["sd_apart"]),
            )
            for c in cells
        ],
        "1. Second sequential sweeps against rank-one updates in C",
    )
    goals = []
    for c, least in zip(cells, (4.0, 10.0), strict=True):
        goals += [
            (
                f"1. site by site, n = {c['n']}",
                f"a sweep at least {least:g} times faster than rank-one updates in C",
                c["ratio"] >= least,
                f"{words(c)} ({c['rival']})",
            ),
            (
                f"1. matrix work, n = {c['n']}",
                "n^3 flops per sweep at 70 % of the rate of dpotrf",
                c["share_of_dpotrf"] >= 0.7,
                f"{100 * c['share_of_dpotrf']:.0f} %, {c['gflops_sweep']:.1f} of "
                f"{c['gflops_dpotrf']:.1f} GFLOP/s",
            ),
        ]
    return cells, goals


# ---- 2. orders ----


def orders(options: argparse.Namespace) -> tuple[list[dict], list[Claim]]:
    """Sweeps, seconds and errors of a fit, by order and signal variance."""
    cells, goals = [], []
    for n in sizes(options):
        X, y = problem(n)
        for variance in variances(options, n):
            K = variance * rbf(X)
            with warnings.catch_warnings():  # which orders settle is a result
                warnings.simplefilter("ignore", epfast.ConvergenceWarning)
                tight = ours(K, y, tol=1e-12, sweeps=1000, order="sequential")
                fits = {order: ours(K, y, order=order) for order in ORDERS}
            found = timed(
                options,
                {
                    order: partial(ours, K, y, order=order)
                    for order in ORDERS
                    if fits[order].converged
                },
            )
            best = min(found, key=lambda order: found[order].seconds)
            for order, fit in fits.items():
                sd = np.sqrt(tight.variance)
                cells.append(
                    {
                        "n": n,
                        "signal_variance": variance,
                        "order": order,
                        "converged": fit.converged,
                        "sweeps": len(fit.history),
                        "seconds": found[order].seconds if fit.converged else None,
                        "error_of_evidence": abs(fit.log_evidence - tight.log_evidence),
                        "error_of_mean_sd": float(np.abs((fit.mean - tight.mean) / sd).max()),
                    }
                )
            slower = found["auto"].over(found[best])
            goals.append(
                (
                    f"2. orders, n = {n}, signal variance {variance:g}",
                    "the default is the fastest order, to 10 %",
                    slower["ratio"] <= 1.1,
                    f"default / {best} {words(slower)}",
                )
            )
    harness.table(
        ["n", "variance", "order", "converged", "sweeps", "seconds", "error", "of mean"],
        [tuple(c.values()) for c in cells],
        f"2. Fits to {TOLERANCE:g}; errors of log evidence and mean (in sd) against a fit to 1e-12",
    )
    return cells, goals


# ---- 3. GPy ----


def against_gpy(options: argparse.Namespace) -> tuple[list[dict], list[Claim]]:
    """Posterior, evidence and gradient against GPy's own EP."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # GPy's own, on import
            import GPy
    except ImportError:
        print("\nGPy is not installed: part 3 skipped")
        return [], []
    from epfast.gpy import EP

    likelihood = GPy.likelihoods.Bernoulli()
    cells, goals = [], []
    for n in sizes(options):
        X, y = problem(n)
        labels = GPy.core.gp.ObsAr((y[:, None] + 1.0) / 2.0)
        for variance in variances(options, n):
            K = variance * rbf(X)
            tight = ours(K, y, tol=1e-12, sweeps=1000, order="sequential")
            methods: dict[str, Callable] = {
                "epfast": EP,
                "GPy parallel": partial(
                    GPy.inference.latent_function_inference.EP,
                    ep_mode="nested",
                    parallel_updates=True,
                    max_iters=200,
                ),
            }
            if n == min(sizes(options)) and variance == 1.0:
                methods["GPy sequential"] = partial(
                    GPy.inference.latent_function_inference.EP, ep_mode="nested"
                )

            def run(name: str, methods=methods, K=K, X=X, labels=labels) -> Any:
                method = methods[name]()
                np.random.seed(0)  # noqa: NPY002  (GPy draws its order from it)
                return method.inference(None, X, likelihood, labels, K=K)

            evidence = {name: float(run(name)[1]) for name in methods if "seq" not in name}
            found = timed(options, {name: partial(run, name) for name in evidence})
            if "GPy sequential" in methods:  # long: once
                result, seconds = harness.timed(partial(run, "GPy sequential"))
                evidence["GPy sequential"] = float(result[1])
                found["GPy sequential"] = Fastest([[seconds]] * len(found["epfast"].runs))
            for name, value in evidence.items():
                gain = found[name].over(found["epfast"])
                cells.append(
                    {
                        "n": n,
                        "signal_variance": variance,
                        "method": name,
                        "seconds": found[name].seconds,
                        **gain,
                        "error_of_evidence": abs(value - tight.log_evidence),
                    }
                )
                if name == "epfast":
                    continue
                least = 2.0 if name == "GPy parallel" else 25.0
                goals.append(
                    (
                        f"3. {name}, n = {n}, signal variance {variance:g}",
                        f"evidence and gradient at least {least:g} times faster, no less accurate",
                        harness.in_part(
                            [
                                gain["ratio"] >= least,
                                abs(evidence["epfast"] - tight.log_evidence)
                                <= max(abs(value - tight.log_evidence), 1e-9),
                            ]
                        ),
                        f"{words(gain)}; errors of log evidence "
                        f"{abs(evidence['epfast'] - tight.log_evidence):.1e} and "
                        f"{abs(value - tight.log_evidence):.1e}",
                    )
                )
    harness.table(
        ["n", "variance", "method", "seconds", "x ours", "least", "largest", "error"],
        [tuple(c.values()) for c in cells],
        "3. Posterior, evidence and gradient by the kernel matrix, each by its own stopping rule",
    )
    return cells, goals


# ---- 4. scikit-learn ----


def against_sklearn(options: argparse.Namespace) -> tuple[list[dict], list[Claim]]:
    """GPClassifier against Laplace's approximation, hyper-parameters fixed."""
    from sklearn.gaussian_process import GaussianProcessClassifier
    from sklearn.gaussian_process.kernels import RBF, ConstantKernel

    cells, goals = [], []
    for n in sizes(options):
        X, y = problem(n)
        kernel = ConstantKernel(1.0) * RBF(1.0)
        models = {
            "epfast": epfast.GPClassifier(
                kernel, optimizer=None, loss="probit", schedule=epfast.EP(200, TOLERANCE)
            ),
            "scikit-learn": GaussianProcessClassifier(kernel, optimizer=None),
        }
        found = timed(options, {name: partial(model.fit, X, y) for name, model in models.items()})
        over = found["epfast"].over(found["scikit-learn"])
        cells.append(
            {
                "n": n,
                "sweeps": models["epfast"].n_iter_,
                "seconds": found["epfast"].seconds,
                "seconds_sklearn": found["scikit-learn"].seconds,
                **over,
            }
        )
        goals.append(
            (
                f"4. scikit-learn, n = {n}",
                "a fit takes no longer than that of Laplace's approximation",
                over["ratio"] <= 1.0,
                f"ours / theirs {words(over)}",
            )
        )
    harness.table(
        ["n", "sweeps", "seconds", "scikit-learn", "ours / theirs", "least", "largest"],
        [tuple(c.values()) for c in cells],
        "4. fit(X, y) at fixed hyper-parameters, kernel matrix included",
    )
    return cells, goals


# ---- 5. threads ----


def processor_times(task: Callable[[], Any]) -> tuple[float, float, float]:
    """Seconds that pass, of the processor in this thread, and in all others of the process."""
    began = time.perf_counter(), time.thread_time(), time.process_time()
    task()
    passed, own, total = (
        now - before
        for now, before in zip(
            (time.perf_counter(), time.thread_time(), time.process_time()), began, strict=True
        )
    )
    return passed, own, total - own


def threads(options: argparse.Namespace) -> tuple[list[dict], list[Claim]]:
    """Sweeps on two threads and on one, turn by turn."""
    cells, goals = [], []
    for n in sizes(options):
        X, y = problem(n)
        K = rbf(X)
        for order in ("sequential", "parallel"):
            schedule = epfast.EP(order=order, tol=0.0, sweeps=8)
            taken: dict[int, list[tuple[float, float, float]]] = {1: [], 2: []}
            with harness.all_cores():
                for _ in range(2 if options.quick else 2 * REPEATS):
                    for count, times in taken.items():
                        task = partial(epfast.fit_gp, K, y, schedule=schedule, n_jobs=count)
                        times.append(processor_times(task))
            passed = {count: min(t[0] for t in times) for count, times in taken.items()}
            # with two threads the parts go to whoever is there: the other one may have had none
            longest = {count: min(max(t[1:]) for t in times) for count, times in taken.items()}
            cells.append(
                {
                    "n": n,
                    "order": order,
                    "seconds_one": passed[1],
                    "seconds_two": passed[2],
                    "gain": passed[1] / passed[2],
                    "gain_of_processor": longest[1] / longest[2],
                }
            )
            gain = cells[-1]["gain_of_processor"]
            goals.append(
                (
                    f"5. threads, n = {n}, {order}",
                    "1.7 times as fast on two threads, by processor time",
                    gain >= 1.7,
                    f"{gain:.2f} x; by the clock {cells[-1]['gain']:.2f} x",
                )
            )
    harness.table(
        ["n", "order", "one thread", "two", "gain", "of processor"],
        [tuple(c.values()) for c in cells],
        "5. Fits of 8 sweeps on two threads",
    )
    return cells, goals


PARTS: dict[int, tuple[str, Callable]] = {
    1: ("site_by_site", site_by_site),
    2: ("orders", orders),
    3: ("gpy", against_gpy),
    4: ("sklearn", against_sklearn),
    5: ("threads", threads),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    harness.choose_parts(parser, PARTS)


def run(options: argparse.Namespace) -> dict[str, Any]:
    return harness.run_parts(options, PARTS)

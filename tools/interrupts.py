"""Random Ctrl-C over all fits: none may be lost, none late, each must leave a posterior.

    python tools/interrupts.py --count 400 --seed 0 [--kinds gp,svm] [--large]

Each trial runs a fit in this process and sends it SIGINT at a random time within the fit's own
duration, measured first. It counts

    interrupted   Interrupted came, with a posterior
    done          the fit ended before the signal
    dropped       the signal fell in a finaliser or a callback of the collector: Python drops it
    lost          the signal came within the fit, and no exception did
    plain         a KeyboardInterrupt that is no Interrupted, from within the fit
    empty         Interrupted without a posterior, or with one that is not finite

and prints the latency, from the signal to the exception. --large adds matrices of order 4,000.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

import epfast
from epfast import schemes

#: seconds within which 99 % of the signals must act
LATE = 1.0
#: functions that are called once the arguments of a fit are checked
BEGUN = ("fit_problem", "fit_process", "fit_latent_process", "incomplete_cholesky", "run", "_smo")


def rows(n: int, d: int, seed: int = 0) -> tuple[Any, Any]:
    """Labels of a linear model with noise."""
    rng = np.random.default_rng([seed, n, d])
    X = rng.normal(size=(n, d))
    return X, np.where(X @ rng.normal(size=d) + rng.logistic(size=n) > 0, 1.0, -1.0)


def kernel(n: int) -> tuple[Any, Any]:
    """An RBF kernel on the plane, and labels."""
    X, y = rows(n, 2)
    squares = (X**2).sum(axis=1)
    distance = np.add.outer(squares, squares) - 2.0 * X @ X.T
    return 2.0 * np.exp(-0.5 * np.maximum(distance, 0.0)) + 1e-6 * np.eye(n), y


def chunks(X: Any, y: Any, size: int) -> Any:
    """A generator, which can be read once."""
    for i in range(0, len(X), size):
        yield X[i : i + size], y[i : i + size]


def slow(m: Any) -> Any:
    """A loss in Python."""
    return np.logaddexp(0.0, -m)


def linear_fits() -> dict[str, Callable[[], Any]]:
    """Every engine and order of fit_linear."""
    X, y = rows(20_000, 20)
    few_X, few_y = rows(400, 8)
    wide_X, wide_y = rows(2_000, 600)
    fit, EP = epfast.fit_linear, epfast.EP
    labels = np.arange(len(few_y)) % 5
    fits: dict[str, Callable[[], Any]] = {
        f"rows {order}": lambda order=order: fit(X, y, schedule=EP(30, 0.0, order=order))
        for order in ("auto", "sequential", "shuffled", "parallel")
    }
    fits |= {
        "rows of 600 columns": lambda: fit(wide_X, wide_y, schedule=EP(6, 0.0)),
        "rows, loss in Python": lambda: fit(few_X, few_y, loss=slow, schedule=EP(20, 0.0)),
        "rows, 10^6 samples": lambda: fit(
            few_X[:60], few_y[:60], scheme=schemes.ImportanceSampling(10**6), schedule=EP(2, 0.0)
        ),
        "factorized rows, 10^6 samples": lambda: fit(
            few_X[:60, :3],
            few_y[:60],
            posterior="factorized",
            scheme=schemes.ImportanceSampling(10**6),
            schedule=EP(1, 0.0),
        ),
        "rows ADF": lambda: fit(X, y, schedule=epfast.ADF(passes=20)),
        "minibatches ADF, chunks": lambda: fit(
            chunks(X, y, 997), posterior="factorized", batch_size=10, schedule=epfast.ADF()
        ),
        "factorized rows ADF": lambda: fit(
            X, y, posterior="factorized", schedule=epfast.ADF(passes=10)
        ),
        "Laplace propagation": lambda: fit(X, y, batch_size=20, schedule=EP(20, 0.0)),
        "Laplace propagation ADF": lambda: fit(X, y, batch_size=20, schedule=epfast.ADF(passes=10)),
        "SEP": lambda: fit(few_X, few_y, schedule=epfast.SEP(sweeps=100, tol=0.0)),
        "AEP": lambda: fit(few_X, few_y, schedule=epfast.AEP(sweeps=100, tol=0.0)),
        "DSEP": lambda: fit(few_X, few_y, schedule=epfast.DSEP(labels, sweeps=100, tol=0.0)),
        "DAEP": lambda: fit(few_X, few_y, schedule=epfast.DAEP(labels, sweeps=100, tol=0.0)),
        "DEP": lambda: fit(few_X, few_y, schedule=epfast.DEP(labels, sweeps=100, tol=0.0)),
    }
    for scheme in ("variational", "quadrature", "laplace", "quick_laplace", "exact"):
        size = None if scheme == "exact" else 10
        fits[f"factorized {scheme}"] = lambda scheme=scheme, size=size: fit(
            X, y, posterior="factorized", scheme=scheme, batch_size=size, schedule=EP(15, 0.0)
        )
    return fits


def process_fits(n: int) -> dict[str, Callable[[], Any]]:
    """Every way through fit_gp, at order n."""
    K, y = kernel(n)
    fit, EP, sweeps = epfast.fit_gp, epfast.EP, 2 if n > 2_000 else 10
    steep = epfast.losses.NoisyStep(0.1)
    small_K, small_y = K[: n // 4, : n // 4].copy(), y[: n // 4]
    return {
        f"process {n} sequential": lambda: fit(K, y, schedule=EP(sweeps, 0.0)),
        f"process {n} parallel": lambda: fit(K, y, schedule=EP(sweeps, 0.0, order="parallel")),
        f"process {n} noisy step": lambda: fit(K, y, loss=steep, schedule=EP(sweeps, 0.0)),
        f"double loop {n // 4}": lambda: fit(
            small_K, small_y, loss=steep, schedule=epfast.DoubleLoop(start=EP(2, 1e-12))
        ),
        f"relaxed {n // 4}": lambda: fit(
            small_K, small_y, scheme=schemes.Relaxed(0.03), schedule=EP(3, 0.0)
        ),
        f"rank {n // 10}": lambda: fit(K, y, rank=n // 10, schedule=EP(10, 0.0)),
    }


def other_fits() -> dict[str, Callable[[], Any]]:
    """Support vector machines and estimators."""
    X, y = rows(3_000, 10)
    few_X, few_y = rows(300, 3)
    svm = epfast.fit_svm
    fits = {
        "SVM": lambda: svm(X, y, C=10.0),
        "SVM by chunks": lambda: svm(X, y, C=10.0, chunks=6, sweeps=2),
        "SVM parallel": lambda: svm(X, y, C=10.0, chunks=6, order="parallel"),
        "SVM from alpha": lambda: svm(X, y, C=10.0, alpha=np.full(len(y), 1.0) * balance(y)),
    }
    if hasattr(epfast, "LinearClassifier"):
        from sklearn.gaussian_process.kernels import RBF

        classes = np.digitize(few_X[:, 0], [-0.5, 0.5])
        fits |= {
            "LinearClassifier by evidence": lambda: epfast.LinearClassifier(
                prior_variance="evidence"
            ).fit(X, y),
            "LinearClassifier, classes": lambda: epfast.LinearClassifier(
                prior_variance="evidence"
            ).fit(few_X, classes),
            "GPClassifier": lambda: epfast.GPClassifier(1.0 * RBF(1.0)).fit(few_X, few_y),
            "GPClassifier, classes": lambda: epfast.GPClassifier(1.0 * RBF(1.0)).fit(
                few_X, classes
            ),
        }
    return fits


def balance(y: Any) -> Any:
    """Dual variables that sum to 0 over the labels."""
    return np.where(y > 0, min(1.0, (y < 0).sum() / (y > 0).sum()), min(
        1.0, (y > 0).sum() / (y < 0).sum()
    ))  # fmt: skip


def is_whole(post: Any) -> bool:
    """Whether an interrupted posterior can be used."""
    if post is None:
        return False
    if hasattr(post, "alpha") and hasattr(post, "support"):
        return bool(np.isfinite(post.alpha).all())
    return bool(np.isfinite(post.mean).all() and (post.variance >= 0.0).all())


@contextmanager
def drops_told(told: Callable[[], Any]) -> Iterator[None]:
    """Call ``told`` where Python drops a KeyboardInterrupt: in a finaliser or a callback."""
    hook = sys.unraisablehook

    def dropped(said: Any) -> None:
        # the name alone is what compiled code gives that may not raise: a fault of ours
        if said.exc_type is KeyboardInterrupt and not isinstance(said.object, str):
            told()
        else:
            hook(said)

    sys.unraisablehook = dropped
    try:
        yield
    finally:
        sys.unraisablehook = hook


def trial(fit: Callable[[], Any], delay: float) -> tuple[str, float, str]:
    """What happened to a signal after a delay, and after how long."""
    sent: list[float] = []
    over = threading.Event()
    drops: list[bool] = []

    def send() -> None:
        if not over.wait(delay):
            sent.append(time.perf_counter())
            os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send)
    outcome, where = "done", ""
    try:
        try:
            sender.start()
            with drops_told(lambda: drops.append(True)):
                fit()
            ended = time.perf_counter()
            over.set()
            sender.join()
            if sent and sent[0] < ended - 1e-3:
                outcome = "dropped" if drops else "lost"
            time.sleep(0.0)
        except epfast.Interrupted as pressed:
            ended = time.perf_counter()
            outcome = "interrupted" if is_whole(pressed.posterior) else "empty"
        except KeyboardInterrupt as pressed:
            ended = time.perf_counter()
            frames = traceback.extract_tb(pressed.__traceback__)
            inside = [f for f in frames if "epfast" in f.filename and "tools" not in f.filename]
            # before the arguments are checked, and between the fit and the test, it may be plain
            if any(f.name in BEGUN for f in inside):
                outcome = "plain"
                where = " < ".join(f"{f.name}:{f.lineno}" for f in reversed(frames[-4:]))
        over.set()
        sender.join()
    except KeyboardInterrupt:
        outcome, ended = "done", time.perf_counter()
        over.set()
        sender.join()
    late = ended - sent[0] if sent else 0.0
    return outcome, late, where


def run(
    fits: dict[str, Callable[[], Any]], count: int, seed: int, told: Callable[[str], Any]
) -> dict[str, Any]:
    """``count`` signals over the fits in turn; the counts, latencies and places of plain ones."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    rng = np.random.default_rng(seed)
    seconds: dict[str, float] = {}
    counts = dict.fromkeys(("interrupted", "done", "dropped", "lost", "plain", "empty"), 0)
    latencies: list[tuple[float, str]] = []
    where: list[str] = []
    names = list(fits)
    for k in range(count):
        name = names[k % len(names)]
        if name not in seconds:
            began = time.perf_counter()
            fits[name]()
            seconds[name] = time.perf_counter() - began
            told(f"{name}: {seconds[name]:.2f} s")
        outcome, late, place = trial(fits[name], float(rng.uniform(0.0, seconds[name])))
        if outcome == "done":  # faster than when it was measured: sooner, and once more
            seconds[name] *= 0.8
            outcome, late, place = trial(fits[name], float(rng.uniform(0.0, seconds[name])))
        counts[outcome] += 1
        if outcome in ("interrupted", "plain", "empty"):
            latencies.append((late, name))
        if outcome not in ("interrupted", "done", "dropped"):
            where.append(f"{outcome}: {name}: {place}")
            told(where[-1])
    return {"counts": counts, "latencies": sorted(latencies), "where": where}


def main() -> int:
    """Read the arguments, run, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default="", help="parts of names, with commas; all by default")
    parser.add_argument("--order", type=int, default=1_500, help="of the kernel matrices")
    parser.add_argument("--large", action="store_true", help="kernel matrices of order 4,000 too")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    fits = linear_fits() | process_fits(given.order) | other_fits()
    if given.large:
        fits |= process_fits(4_000)
    kinds = [kind for kind in given.kinds.split(",") if kind]
    fits = {name: fit for name, fit in fits.items() if not kinds or any(k in name for k in kinds)}
    found = run(fits, given.count, given.seed, lambda text: print(text, flush=True))
    late = np.array([late for late, _ in found["latencies"]] or [0.0])
    print(found["counts"])
    print(
        "latency in seconds:", {q: round(float(np.quantile(late, q)), 3) for q in (0.5, 0.9, 0.99)}
    )
    print("slowest:", [(name, round(late, 2)) for late, name in found["latencies"][-8:]])
    bad = sum(found["counts"][name] for name in ("lost", "plain", "empty"))
    return int(bad > 0 or float(np.quantile(late, 0.99)) > LATE)


if __name__ == "__main__":
    sys.exit(main())

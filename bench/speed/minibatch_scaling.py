"""How the cost grows with d and s, what a tiny factor costs, and EP against SGD.

    EPFAST_DATA=folder python -m bench minibatch_scaling [--quick]

1. Microseconds per minibatch for d = 8 ... 4096 (s = 100) and s = 1 ... 3000 (d = 100) within one
   pass over synthetic data of constant total size, with fitted exponents.
2. Nanoseconds per factor of the smallest factors, within stored-site sweeps.
3. One EP pass over Census and Bank against one epoch of scikit-learn's SGDClassifier, turn by turn
   in one process, Python overhead and input checks of both sides included (skipped without data).
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

import epfast
from bench.lib import harness
from bench.lib.datasets import LARGE, VARIABLE, load
from bench.lib.harness import SHORT, Claim

LOSSES = ("logistic", "hinge", "quasi01")
CELLS = (
    *(("variational", loss) for loss in LOSSES),
    *((scheme, "logistic") for scheme in ("quadrature", "quick_laplace", "laplace")),
)
#: sizes, in a full run and in a quick one, and those from which the exponent is fitted
SIZES = {
    "d": ([2**k for k in range(3, 13)], [8, 64], 64),
    "s": ([1, 3, 10, 30, 100, 300, 1000, 3000], [1, 100], 100),
}


def synthetic(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    """Noisy linear labels on features of size 1/sqrt(d)."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d)) / np.sqrt(d)
    y = np.where(X @ rng.standard_normal(d) + 0.3 * rng.standard_normal(n) > 0.0, 1.0, -1.0)
    return X, y


def fit(X, y, loss: str, scheme: str, batch_size: int, schedule=None) -> Callable[[], object]:
    """Make a run of epfast: by default one pass without stored sites."""
    schedule = epfast.ADF(site_rule="nonnegative", settle=0) if schedule is None else schedule
    return lambda: epfast.fit_linear(
        *(X, y),
        loss=loss,
        scheme=scheme,
        posterior="factorized",
        batch_size=batch_size,
        prior_variance=25.0,
        schedule=schedule,
    )


def growth(what: str, quick: bool) -> dict[str, Any]:
    """Time per factor against d or against s; the other one is 100."""
    full, few, fitted_from = SIZES[what]
    sizes, pairs = (few, 40_000) if quick else (full, 2_000_000)
    rows = []
    for size in sizes:
        s, d = (100, size) if what == "d" else (size, 100)
        factors = max(4, round(pairs / (s * d)))
        X, y = synthetic(factors * s, d)
        tasks = {
            f"{SHORT[scheme]} {loss}": fit(X, y, loss, scheme, s)
            for scheme, loss in CELLS
            if scheme != "laplace" or size <= 512  # a step is O(s d^2 + d^3)
        }
        timed = harness.interleave(tasks, 7, 0.01, 1.5)
        rows.append({what: size} | {name: 1e6 * t.median / factors for name, t in timed.items()})
    exponents = {}
    for name in rows[0].keys() - {what}:
        tail = [(r[what], r[name]) for r in rows if name in r and r[what] >= fitted_from]
        if len(tail) > 1:
            exponents[name] = float(np.polyfit(*np.log(tail).T, 1)[0])
    harness.show(
        [*rows, {what: f"exponent, {what} >= {fitted_from}", **exponents}], "us per minibatch"
    )
    return {"us": rows, "exponents": exponents}


def tiny(quick: bool) -> list[dict]:
    """Time per factor of small factors, within sweeps that store their sites."""
    sweeps = 20 if quick else 100
    schedule = epfast.EP(sweeps=sweeps, tol=0.0, site_rule="nonnegative")
    rows = []
    for s, d in ((1, 1), (10, 4), (10, 33)):
        X, y = synthetic(1000 * s, d)
        tasks = {
            f"{loss} {SHORT[scheme]}": fit(X, y, loss, scheme, s, schedule)
            for loss in LOSSES
            for scheme in ("quick_laplace", "quadrature", "variational")
        }
        for name, timing in harness.interleave(tasks, 7, 0.01, 1.0).items():
            rows.append({"s": s, "d": d, "what": name, "ns": timing.scaled(1e6 / sweeps)})
    return harness.show(rows, "Smallest factors, ns per factor, everything included")


def against_sgd() -> list[dict]:
    """One EP pass against one epoch of SGDClassifier, shuffled as by default, and not."""
    if not os.environ.get(VARIABLE):
        print(f"\n{VARIABLE} is not set: comparison with SGDClassifier skipped")
        return []
    from sklearn.linear_model import SGDClassifier

    rows = []
    for data in map(load, reversed(LARGE)):
        for loss, theirs in (("logistic", "log_loss"), ("hinge", "hinge")):
            tasks = {"ep": fit(data.X, data.y, loss, "variational", data.batch_size)}
            for name, shuffle in (("sgd", True), ("sgd, file order", False)):
                model = SGDClassifier(loss=theirs, max_iter=1, tol=None, shuffle=shuffle)
                tasks[name] = lambda model=model, data=data: model.fit(data.X, data.y)
            timed = {k: t.scaled(1e3) for k, t in harness.interleave(tasks, 15).items()}
            over = {f"ep/{k}": timed["ep"].over(timed[k]) for k in ("sgd", "sgd, file order")}
            rows.append({"dataset": data.name, "loss": loss, **timed, **over})
    return harness.show(rows, "One EP pass (VQ, s = 100) against one epoch of SGDClassifier, ms")


def judge(grown: dict[str, Any], small: list[dict], sgd: list[dict]) -> list[Claim]:
    """Compare with the project's goals."""
    slopes = {k: v for k, v in grown["exponents"].items() if not k.startswith("LA")}
    said = ", ".join(f"{k} d^{v:.2f}" for k, v in slopes.items())
    holds = harness.in_part([v <= 1.1 for v in slopes.values()])
    goals: list[Claim] = [("growth", "no steeper than d^1.1 (all but LA)", holds, said)]
    tiny_vq = {
        c["what"]: c["ns"].median
        for c in small
        if (c["s"], c["d"]) == (10, 4) and c["what"].endswith(" VQ")
    }
    said = ", ".join(f"{k}: {v:.0f} ns" for k, v in tiny_vq.items())
    holds = harness.in_part([v < 1000.0 for v in tiny_vq.values()])
    goals.append(("tiny factors (s = 10, d = 4)", "below 1 us per factor, VQ", holds, said))
    for loss, most in (("logistic", 0.2), ("hinge", 0.15)):
        ratios = {c["dataset"]: c["ep/sgd"].median for c in sgd if c["loss"] == loss}
        if ratios:
            said = ", ".join(f"{k} {v:.3f}" for k, v in ratios.items())
            where, claim = f"EP pass / SGD epoch, {loss}", f"at most {most} (Census)"
            goals.append((where, claim, ratios["census"] <= most, said))
    return goals


def run(options: argparse.Namespace) -> dict[str, Any]:
    # schemes that fail on some data take time too
    warnings.simplefilter("ignore", epfast.ConvergenceWarning)
    grown = {what: growth(what, options.quick) for what in SIZES}
    small, sgd = tiny(options.quick), against_sgd()
    return {"growth": grown, "tiny": small, "sgd": sgd, "goals": judge(grown["d"], small, sgd)}

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
from numpy.typing import NDArray

import epfast
from bench.lib import harness
from bench.lib.datasets import LARGE, VARIABLE, load
from bench.lib.harness import SHORT, Claim, Timing

LOSSES = ("logistic", "hinge", "quasi01")


def synthetic(n: int, d: int, seed: int = 0) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Noisy linear labels on features of size 1/sqrt(d)."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, d)) / np.sqrt(d)
    y = np.where(X @ rng.standard_normal(d) + 0.3 * rng.standard_normal(n) > 0.0, 1.0, -1.0)
    return X, y


def exponent(sizes: list[int], times: list[float]) -> float:
    """Slope of log time against log size."""
    return float(np.polyfit(np.log(sizes), np.log(times), 1)[0])


def fit(X, y, loss: str, scheme: str, batch_size: int, schedule=None) -> Callable[[], object]:
    """Make a run of epfast: by default one pass without stored sites."""
    schedule = epfast.ADF(site_rule="nonnegative", settle=0) if schedule is None else schedule
    return lambda: epfast.fit_linear(
        X, y, loss=loss, scheme=scheme, posterior="factorized", batch_size=batch_size,
        prior_variance=25.0, schedule=schedule,
    )  # fmt: skip


def growth(quick: bool) -> dict[str, dict]:
    """Time per factor against d and against s."""
    pairs = 40_000 if quick else 2_000_000
    cells = [("variational", loss) for loss in LOSSES]
    cells += [("quadrature", "logistic"), ("quick_laplace", "logistic"), ("laplace", "logistic")]
    names = [f"{SHORT[scheme]} {loss}" for scheme, loss in cells]
    out = {}
    dims = [8, 64] if quick else [2**k for k in range(3, 13)]
    rows = [1, 100] if quick else [1, 3, 10, 30, 100, 300, 1000, 3000]
    for what, sizes, fitted_from in (("d", dims, 64), ("s", rows, 100)):
        times: dict[str, list[Timing]] = {name: [] for name in names}
        for size in sizes:
            s, d = (100, size) if what == "d" else (size, 100)
            n_factors = max(4, round(pairs / (s * d)))
            X, y = synthetic(n_factors * s, d)
            tasks = {}
            for name, (scheme, loss) in zip(names, cells, strict=True):
                if scheme == "laplace" and size > 512:
                    continue  # O(s d^2 + d^3) per Newton step
                tasks[name] = fit(X, y, loss, scheme, s)
            timed = harness.interleave(tasks, 3 if quick else 7, 0.01, 1.5)
            for name, timing in timed.items():
                times[name].append(timing.scaled(1e6 / n_factors))
        slopes = {}
        for name, timings in times.items():
            tail = [(z, t.median) for z, t in zip(sizes, timings, strict=False) if z >= fitted_from]
            slopes[name] = exponent(*map(list, zip(*tail, strict=True))) if len(tail) > 1 else None
        table = []
        for i, size in enumerate(sizes):
            cells_of_row = [t[i].median if i < len(t) else None for t in times.values()]
            table.append((size, *cells_of_row))
        table.append((f"exponent, {what} >= {fitted_from}", *slopes.values()))
        fixed = "s = 100" if what == "d" else "d = 100"
        harness.table([what, *names], table, f"Microseconds per minibatch against {what} ({fixed})")
        out[what] = {
            "sizes": sizes,
            "us": {name: [t._asdict() for t in ts] for name, ts in times.items()},
            "exponents": slopes,
        }
    return out


def tiny(quick: bool) -> list[dict]:
    """Time per factor of small factors, within sweeps that store their sites."""
    sweeps = 20 if quick else 100
    out = []
    for s, d in ((1, 1), (10, 4), (10, 33)):
        X, y = synthetic(1000 * s, d)
        tasks = {}
        for loss in LOSSES:
            for scheme in ("quick_laplace", "quadrature", "variational"):
                schedule = epfast.EP(sweeps=sweeps, tol=0.0, site_rule="nonnegative")
                tasks[f"{loss} {SHORT[scheme]}"] = fit(X, y, loss, scheme, s, schedule)
        for name, timing in harness.interleave(tasks, 3 if quick else 7, 0.01, 1.0).items():
            ns = timing.scaled(1e9 / (1000 * sweeps))
            out.append({"s": s, "d": d, "what": name, "ns": ns._asdict()})
    harness.table(
        ["s", "d", "what", "ns per factor", "quartiles"],
        [
            (c["s"], c["d"], c["what"], c["ns"]["median"], harness.spread(Timing(**c["ns"])))
            for c in out
        ],
        f"Smallest factors, 1000 factors x {sweeps} sweeps, everything included",
    )
    return out


def against_sgd(quick: bool) -> list[dict]:
    """One EP pass against one epoch of SGDClassifier."""
    if not os.environ.get(VARIABLE):
        print(f"\n{VARIABLE} is not set: comparison with SGDClassifier skipped")
        return []
    from sklearn.linear_model import SGDClassifier

    out = []
    for name in reversed(LARGE):
        data = load(name)
        for loss, theirs in (("logistic", "log_loss"), ("hinge", "hinge")):

            def epoch(shuffle: bool, data=data, theirs=theirs):
                model = SGDClassifier(loss=theirs, max_iter=1, tol=None, shuffle=shuffle)
                return lambda: model.fit(data.X, data.y)

            timed = harness.interleave(
                {
                    "ep": fit(data.X, data.y, loss, "variational", data.batch_size),
                    "sgd": epoch(True),
                    "sgd, file order": epoch(False),
                },
                rounds=3 if quick else 15,
            )
            out.append(
                {
                    "dataset": name,
                    "loss": loss,
                    **{key: value.scaled(1e3)._asdict() for key, value in timed.items()},
                    "ep/sgd": timed["ep"].over(timed["sgd"])._asdict(),
                    "ep/sgd, file order": timed["ep"].over(timed["sgd, file order"])._asdict(),
                }
            )
    harness.table(
        [
            *("data", "loss", "EP pass ms", "quartiles", "SGD epoch ms", "quartiles"),
            *("SGD file order ms", "EP/SGD", "EP/SGD file order"),
        ],
        [
            (
                *(c["dataset"], c["loss"]),
                *(c["ep"]["median"], harness.spread(Timing(**c["ep"]))),
                *(c["sgd"]["median"], harness.spread(Timing(**c["sgd"]))),
                c["sgd, file order"]["median"],
                c["ep/sgd"]["median"],
                c["ep/sgd, file order"]["median"],
            )
            for c in out
        ],
        "One EP pass (VQ, s = 100) against one SGDClassifier epoch (default: shuffled)",
    )
    return out


def judge(grown: dict, small: list[dict], sgd: list[dict]) -> list[Claim]:
    """Compare with the project's goals."""
    slopes = {k: v for k, v in grown["d"]["exponents"].items() if not k.startswith("LA")}
    known = {k: v for k, v in slopes.items() if v is not None}
    goals = []
    if known:
        goals.append(
            (
                "growth",
                "no steeper than d^1.1 (all but LA)",
                harness.in_part([v <= 1.1 for v in known.values()]),
                ", ".join(f"{k} d^{v:.2f}" for k, v in known.items()),
            )
        )
    # What s x d work there is at s = 10, d = 4 costs by itself, at the speed of large factors.
    per_pair = {
        name: series[-1]["median"] * 1e3 / (grown["s"]["sizes"][-1] * 100)
        for name, series in grown["s"]["us"].items()
        if name.startswith("VQ")
    }
    parts = []
    for c in small:
        loss, scheme = c["what"].split()
        if (c["s"], c["d"], scheme) == (10, 4, "VQ"):
            parts.append((loss, c["ns"]["median"], c["ns"]["median"] - 40 * per_pair[f"VQ {loss}"]))
    goals.append(
        (
            "tiny factors (s = 10, d = 4)",
            "overhead below 1 us per factor",
            harness.in_part([p[2] < 1000.0 for p in parts]),
            ", ".join(
                f"VQ {loss}: {total:.0f} ns in all, {rest:.0f} ns beyond 40 pairs at full speed"
                for loss, total, rest in parts
            ),
        )
    )
    for loss, most in (("logistic", 0.2), ("hinge", 0.15)):
        ratios = {c["dataset"]: c["ep/sgd"]["median"] for c in sgd if c["loss"] == loss}
        if ratios:
            goals.append(
                (
                    f"EP pass / SGD epoch, {loss}",
                    f"at most {most} (Census)",
                    ratios["census"] <= most,
                    ", ".join(f"{k} {v:.3f}" for k, v in ratios.items()),
                )
            )
    return goals


def run(options: argparse.Namespace) -> dict[str, Any]:
    # schemes that fail on some data take time too
    warnings.simplefilter("ignore", epfast.ConvergenceWarning)
    grown = growth(options.quick)
    small = tiny(options.quick)
    sgd = against_sgd(options.quick)
    return {"growth": grown, "tiny": small, "sgd": sgd, "goals": judge(grown, small, sgd)}

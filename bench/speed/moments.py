"""Tilted moments of scalar sites, and what weights and powers cost a fit; on one thread.

    EPFAST_DATA=folder python -m bench moments [--quick] [--only 1 2]       (about 2 minutes)

1. Nanoseconds per site of ``backend.tilted_moments``, called with arrays to fill, over 4,096
   sites, m ~ N(0, 2): by loss, for t itself, for t^.5, and for a power of its own to each site,
   uniform in .5 .. 1.5. Variances log-uniform: narrow as in a fit to many rows, .005 .. .1;
   typical, .01 .. 4; and 1 .. 1e12, where only the powers 1 and .5 are compared. Beside them that
   time in exponentials of a vector kernel, the unit of such work.
2. Seconds of a fit of 32,561 x 100 normal rows, and of the Census data (one-hot, d = 101), both
   with a full covariance: with weights uniform in .5 .. 1.5, and with power .5, over those of the
   plain fit. Each may take more sweeps than that; so the ratio per sweep stands beside it.
"""

from __future__ import annotations

import argparse
import os
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

import epfast
from bench.lib import datasets, harness
from bench.lib.harness import Claim
from bench.speed.linear_task import DIMENSION, LOSSES, TOLERANCE, fastest, ratio, rounds, synthetic
from epfast._core import vector

SITES = 4096
#: most nanoseconds per site of the typical cavities that are aimed at
AIMS = {"hinge": 25.0, "squared_hinge": 40.0, "logistic": 40.0}
VARIANCES = {"narrow": (0.005, 0.1), "typical": (0.01, 4.0), "wide": (1.0, 1e12)}
#: loss: its powers
POWERS = {
    "probit": ("1", ".5", "each"),
    "logistic": ("1", ".5", "each"),
    "hinge": ("1", "each"),
    "squared_hinge": ("1", ".5", "each"),
    "noisy_step": ("1", "each"),
    "quasi01": ("1", "each"),
    "poisson": ("1", "each"),
}
WORST = 1.5


def sites(options: argparse.Namespace, n: int) -> tuple[dict, list[Claim]]:
    """Nanoseconds per site, by loss, cavities and powers."""
    rng = np.random.default_rng(0)
    out, z = np.empty((3, n)), rng.standard_normal(n)
    powers = {"1": 1.0, ".5": 0.5, "each": rng.uniform(0.5, 1.5, n)}
    labels, counts = rng.choice([-1.0, 1.0], n), rng.poisson(2.0, n).astype(float)
    exponents, powers_of_e = -rng.uniform(0.0, 40.0, n), np.empty(n)
    tasks: dict[tuple[str, str, str], Callable[[], object]] = {
        ("exp", "", ""): lambda: vector.elementwise("exp", exponents, powers_of_e)
    }
    for width, (low, high) in VARIANCES.items():
        v = np.exp(rng.uniform(np.log(low), np.log(high), n))
        m = z * np.sqrt(v if width == "wide" else 2.0)
        for loss, kinds in POWERS.items():
            y = counts if loss == "poisson" else labels
            for kind in kinds:
                if width == "wide" and (kind == "each" or ".5" not in kinds):
                    continue
                tasks[loss, width, kind] = partial(
                    epfast.backend.tilted_moments, loss, y, m, v, powers[kind], out=out
                )
    timed = harness.interleave(tasks, **rounds(options))
    ns = {key: t.scaled(1e9 / n) for key, t in timed.items()}
    unit = min(ns["exp", "", ""].values)
    harness.table(
        ["loss", "cavities", "power", "ns per site", "quartiles", "least", "exponentials"],
        [
            (*key, t.median, harness.spread(t), min(t.values), min(t.values) / unit)
            for key, t in ns.items()
            if key[0] != "exp"
        ],
        f"1. tilted moments of {n} sites; an exponential takes {unit:.2f} ns",
    )
    goals: list[Claim] = [
        (
            f"1. tilted moments, {loss}",
            f"at most {aim:g} ns per site",
            min(ns[loss, "typical", "1"].values) <= aim,
            f"fastest round {min(ns[loss, 'typical', '1'].values):.1f} ns",
        )
        for loss, aim in AIMS.items()
    ]
    return {"ns": {" ".join(key): t._asdict() for key, t in ns.items()}}, goals


def fits(options: argparse.Namespace, n: int) -> tuple[dict, list[Claim]]:
    """Fits with weights or a power over the plain one."""
    given = {"normal": (*synthetic(n, DIMENSION, "logistic"), 1.0)}
    if os.environ.get("EPFAST_DATA") and not options.quick:
        census = datasets.load("census")
        given["census"] = census.X, census.y, 25.0
    cells: list[tuple[Any, ...]] = []
    goals: list[Claim] = []
    for (name, (X, y, prior)), loss in ((item, loss) for item in given.items() for loss in LOSSES):
        weights = np.random.default_rng(1).uniform(0.5, 1.5, len(y))
        arguments = {"loss": loss, "prior_variance": prior}
        ways: dict[str, dict[str, Any]] = {
            "plain": {},
            "weights": {"weights": weights},
            "power .5": {"schedule": epfast.EP(tol=TOLERANCE, power=0.5)},
        }
        tasks = {
            way: partial(
                epfast.fit_linear, X, y, **{"schedule": epfast.EP(tol=TOLERANCE)} | arguments | more
            )
            for way, more in ways.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            sweeps = {way: len(task().history) for way, task in tasks.items()}
            timed = harness.interleave(tasks, **rounds(options))
        for way in ("weights", "power .5"):
            over = timed[way].over(timed["plain"])
            least = fastest(timed[way], timed["plain"])
            share = least * sweeps["plain"] / sweeps[way]
            cells.append((name, loss, way, sweeps["plain"], sweeps[way], ratio(over), least, share))
            goals.append(
                (
                    f"2. {way}, {loss}, {name}",
                    f"at most {WORST} of the plain fit",
                    least <= WORST,
                    f"{ratio(over)}, fastest rounds {least:.2f}, per sweep {share:.2f}",
                )
            )
    harness.table(
        ["data", "loss", "fit", "sweeps, plain", "sweeps", "ratio", "fastest", "per sweep"],
        cells,
        f"2. fits over the plain one, tolerance {TOLERANCE:g}",
    )
    return {"fits": [list(c) for c in cells]}, goals


PARTS: dict[int, tuple[str, Callable, int, int]] = {  # sites, rows of a full and of a quick run
    1: ("sites", sites, SITES, SITES // 10),
    2: ("fits", fits, 32_561, 1000),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    harness.choose_parts(parser, PARTS)


def run(options: argparse.Namespace) -> dict[str, Any]:
    return harness.run_parts(options, harness.sized(options, PARTS))

"""Jitkrittum et al. (2015), experiment 1 and appendix C: messages learned from a batch.

    python -m bench batch [--quick]            # 2 min; needs no data

The logistic factor. Messages are those of the first 5 of 10 sweeps of parallel EP on 20 simulated
sets, 5,000 to learn from and 3,000 others. The text says d = 20, n = 300; the paper's figures are
of d = 10, n = 400 (their file names). Targets and truth are exact, by compiled moments, or
sampled as in the paper: importance sampling, 10^5 draws from N(0, 200) for each. Reported: mean and
sd of log KL(true belief of z || predicted). Widths and noise are chosen by leave-one-out (random
features) or hold-out (incomplete Cholesky), on the grids of the authors' program. Features of the
forests, which the paper does not say, are means and variances. Eslami's forest is not rebuilt.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.jitkrittum2015.learners import (
    FORESTS,
    KERNELS,
    PAPER,
    QUICK,
    RANDOM,
    Learner,
    Sizes,
    by_hold_out,
    by_left_out,
    forest,
)
from bench.jitkrittum2015.messages import Messages, Split, collect, log_kl, sampled
from bench.lib import harness
from bench.lib.harness import Claim
from bench.lib.pictures import picture

Array = NDArray[np.float64]

#: appendix C: mean log KL and its sd; the forest of Eslami et al. (-6.94, 3.88) is not run here
PUBLISHED = {
    "KJIT: Gaussian on joint embeddings": (-8.97, 1.57),
    "MV kernel": (-6.96, 1.67),
    "expected product, joint": (-2.78, 1.82),
    "product of expected products": (-2.64, 1.65),
    "sum of expected products": (-1.05, 1.93),
    "IChol, Gaussian on joint embeddings": (-8.71, 1.69),
    "IChol, sum of Gaussians on embeddings": (-2.75, 2.84),
    "Breiman's random forest": (-8.69, 1.79),
    "extremely randomised trees": (-8.90, 1.59),
}
KJIT, MV, JOINT, PRODUCT, SUM = RANDOM
#: in the figures of the paper: median and 99th percentile of KJIT's log KL
MEDIAN, HIGH = -8.78, -5.46
#: of log KL, in figure 3b
PERCENTILES = (10, 50, 90, 99, 100)


class Case(NamedTuple):
    """Simulated sets, and how the projections are found."""

    name: str
    d: int
    n: int
    draws: int | None


CASES = [
    Case("d = 10, n = 400, exact", 10, 400, None),
    Case("d = 10, n = 400, sampled", 10, 400, 100_000),
    Case("d = 20, n = 300, exact", 20, 300, None),
]


def score(learner: Learner, test: Messages) -> tuple[Array, Array]:
    """Beliefs (mean, log variance) by a learner, and their log KL."""
    predicted = learner(test.tuples())
    return predicted, log_kl(test.mean, test.variance, *predicted.T)


def examples(learner: Learner, test: Messages) -> dict[str, Any]:
    """Figure 3: how log KL is distributed, and messages of given percentiles of it."""
    predicted, found = score(learner, test)
    order = np.argsort(found)[: np.isfinite(found).sum()]  # NaN are last
    counts, edges = np.histogram(found[order], 40)
    rows = []
    for percentile in PERCENTILES:
        i = order[min(int(percentile / 100 * len(order)), len(order) - 1)]
        rows.append(
            {
                "percentile": percentile,
                "log KL": found[i],
                "cavity, mean": test.m[i],
                "cavity, variance": test.v[i],
                "y": test.y[i],
                "mean": test.mean[i],
                "variance": test.variance[i],
                "predicted mean": predicted[i, 0],
                "predicted variance": np.exp(predicted[i, 1]),
            }
        )
    return {"examples": rows, "histogram": {"counts": counts, "edges": edges}}


def draw(stored: dict[str, Any], folder: Path) -> None:
    """Figure 3."""
    found = stored["figure 3"]
    rows, histogram = found["examples"], found["histogram"]
    with picture(folder / "jitkrittum2015_figure3.png", 3, 2, size=(3.2, 2.6)) as axes:
        axes[0].stairs(histogram["counts"], histogram["edges"], fill=True)
        axes[0].set(title="(a) log KL", ylabel="messages")
        for axis, row in zip(axes[1:], rows, strict=True):
            width = 4.0 * np.sqrt(max(row["variance"], row["cavity, variance"]))
            z = np.linspace(row["mean"] - width, row["mean"] + width, 201)
            for name, mean, variance, line in (
                ("cavity", row["cavity, mean"], row["cavity, variance"], ":"),
                ("belief", row["mean"], row["variance"], "-"),
                ("predicted", row["predicted mean"], row["predicted variance"], "--"),
            ):
                density = np.exp(-0.5 * (z - mean) ** 2 / variance) / np.sqrt(2 * np.pi * variance)
                axis.plot(z, density, line, label=name)
            axis.set_title(f"(b) {row['percentile']} %: {row['log KL']:.1f}")
        axes[1].legend(loc="upper left")


def learn(split: Split, sizes: Sizes) -> tuple[list[dict[str, Any]], Learner]:
    """Every learner of appendix C on a set of messages; and KJIT."""
    a = split.train.tuples()
    targets = np.stack([split.train.mean, np.log(split.train.variance)], axis=1)
    ways = {name: partial(by_left_out, draw) for name, draw in RANDOM.items()}
    ways |= {name: partial(by_hold_out, make) for name, make in KERNELS.items()}
    rows, learners = [], {}
    for name in (*ways, *FORESTS):
        if name in FORESTS:
            learner, seconds = harness.timed(partial(forest, name, a, targets, sizes))
            place = {"widths^2": None, "noise": None}
        else:
            chosen, seconds = harness.timed(partial(ways[name], a, targets, sizes))
            learner, place = chosen.predict, {"widths^2": chosen.factor, "noise": chosen.noise}
        learners[name] = learner
        found = score(learner, split.test)[1]
        good = found[~np.isnan(found)]
        mean, sd = PUBLISHED[name]
        rows.append(
            {
                "learner": name,
                "published": mean,
                "published sd": sd,
                "mean": good.mean(),
                "sd": good.std(),
                "median": np.median(good),
                "high": np.quantile(good, 0.99),
                "dropped": len(found) - len(good),
                **{**place, "seconds": seconds},
            }
        )
    return rows, learners[KJIT]


# ---- verdicts ----


def judge(found: dict[str, list[dict[str, Any]]]) -> list[Claim]:
    """Claims of experiment 1 and appendix C."""
    claims: list[Claim] = []
    for name, rows in found.items():
        by = {row["learner"]: row for row in rows}
        ours = by[KJIT]
        claims.append(
            (
                f"experiment 1, {name}",
                "KJIT: mean log KL -8.97",
                ours["mean"] <= PUBLISHED[KJIT][0] + 0.5,
                f"{ours['mean']:.2f}, sd {ours['sd']:.2f} (1.57); median {ours['median']:.2f} "
                f"({MEDIAN}), 99 % {ours['high']:.2f} ({HIGH}). Holds: at most .5 above; the noise "
                "of a sampled oracle is part of the published error",
            )
        )
        order = [by[k]["mean"] for k in (KJIT, MV, JOINT, SUM)]
        claims.append(
            (
                f"appendix C, {name}",
                "KJIT below MV below expected products below their sum",
                order == sorted(order) and by[PRODUCT]["mean"] < by[SUM]["mean"],
                ", ".join(f"{by[k]['mean']:.2f}" for k in (KJIT, MV, JOINT, PRODUCT, SUM)),
            )
        )
        trees = min(by[k]["mean"] for k in FORESTS)
        claims.append(
            (
                f"appendix C, {name}",
                "KJIT a little below both forests",
                ours["mean"] < trees,
                f"{ours['mean']:.2f} beside {trees:.2f}; worst hundredth {ours['high']:.2f} "
                f"beside {min(by[k]['high'] for k in FORESTS):.2f}",
            )
        )
    return claims


def run(options: argparse.Namespace) -> dict[str, Any]:
    train, test, sizes = (400, 300, QUICK) if options.quick else (5000, 3000, PAPER)
    found = {}
    for name, d, n, draws in CASES:
        split = collect(d, n, train, test)
        if draws is not None:
            rng = np.random.default_rng(1)
            exact = split.test
            count = draws // 50 if options.quick else draws
            split = Split(*(sampled(part, count, rng) for part in split))
            own = log_kl(exact.mean, exact.variance, split.test.mean, np.log(split.test.variance))
            print(f"\n{name}: log KL(exact || sampled) {np.nanmean(own):.2f}")
        found[name], kjit = learn(split, sizes)
        if draws is not None:
            figure = examples(kjit, split.test)
        harness.show(found[name], f"log KL, {name}")
    return {
        "claims": judge(found),
        "learners": found,
        "figure 3": figure,
    }

"""Jitkrittum et al. (2015), experiment 2 and figure 10: what the operator does not know.

    python -m bench uncertainty [--quick]      # 10 s; needs no data

The operator of experiment 1, d = 10, n = 400. Figure 4: predictive variance (15) along two curves
of cavities with the datum Beta(1, 2): log precision 2.6 + .02 m (#1), which leaves the messages
seen, and 1.6 - .02 m^2 (#2), read off the figure; beside them the disagreement of a forest, the
mean KL from its prediction to those of its trees, after Eslami et al. Figure 10: variance beside
log KL. Roughness is the length of the path of a log uncertainty over its range: 1 if it only
rises, 2 for a valley.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.ensemble import RandomForestRegressor

from bench.jitkrittum2015.kernels import Tuples
from bench.jitkrittum2015.learners import PAPER, QUICK, by_left_out, joint_embedding
from bench.jitkrittum2015.messages import collect, log_kl
from bench.lib import harness
from bench.lib.harness import Claim
from bench.lib.pictures import picture

Array = NDArray[np.float64]

#: of means, along the curves
POINTS = np.linspace(-13.0, 13.0, 261)
#: log precisions
CURVES = {"#1": 2.6 + 0.02 * POINTS, "#2": 1.6 - 0.02 * POINTS**2}
#: roughness of a smooth curve, at most; of one that is not, at least
SMOOTH, ROUGH = 4.0, 8.0


def disagreement(trees: RandomForestRegressor, a: Tuples) -> Array:
    """Log of the mean KL from the prediction of a forest to those of its trees."""
    x = np.concatenate(a, axis=1)
    mean, log_variance = trees.predict(x).T
    kl = [
        np.nan_to_num(np.exp(log_kl(mean, np.exp(log_variance), *tree.predict(x).T)))
        for tree in trees.estimators_
    ]
    return np.log(np.mean(kl, axis=0) + 1e-12)


def along(curve: str) -> Tuples:
    """Cavities of a curve, with the datum y = 0."""
    beta = np.full_like(POINTS, 1.0 / 3.0), np.full_like(POINTS, 1.0 / 18.0)
    variance = np.exp(-CURVES[curve])
    return Tuples(np.stack([POINTS, beta[0]], axis=1), np.stack([variance, beta[1]], axis=1))


def row_of(operator: str, found: dict[str, Array]) -> dict[str, Any]:
    """Log uncertainties along the curves; roughness is the length of the path over the range."""
    row: dict[str, Any] = {"operator": operator}
    row |= {f"lowest {curve}": float(values.min()) for curve, values in found.items()}
    row |= {f"highest {curve}": float(values.max()) for curve, values in found.items()}
    return row | {
        f"roughness {curve}": float(np.abs(np.diff(values)).sum() / np.ptp(values))
        for curve, values in found.items()
    }


def tail_of(messages: str, variance: Array, error: Array) -> dict[str, Any]:
    """Figure 10: how log variances and log KL of messages go together."""
    worst = error >= np.nanquantile(error, 0.99)
    confident = variance[worst] <= np.median(variance)
    return {
        "messages": messages,
        "mean log KL": float(np.nanmean(error)),
        "rank correlation": float(stats.spearmanr(variance, error).statistic),
        "confident, of the worst hundredth": float(confident.mean()),
    }


def some(points: Array) -> list[float]:
    """Every tenth, as stored."""
    return np.round(points[::10], 3).tolist()


def draw(stored: dict[str, Any], folder: Path) -> None:
    """Figures 4 and 10."""
    found = stored["pictures"]
    with picture(folder / "jitkrittum2015_uncertainty.png", 2, 2) as axes:
        axes[0].plot(found["mean"], found["log precision"], ".", ms=1, color="grey")
        at = POINTS[::2]
        for name, curve in CURVES.items():
            axes[0].plot(at, curve[::2], label=name)
            axes[1].plot(at, found["kernel"][name], label=name)
            axes[2].plot(at, found["forest"][name], label=name)
        for name in ("training", "test"):
            axes[3].plot(*found[name].values(), ".", ms=2, label=name)
        titles = ("messages", "kernel: log variance", "forest: log disagreement", "figure 10")
        for axis, title in zip(axes, titles, strict=True):
            axis.set(title=title, xlabel="mean of the cavity")
            axis.legend()
        axes[0].set_ylabel("log precision of the cavity")
        axes[3].set(xlabel="log variance", ylabel="log KL")


def judge(rows: list[dict[str, Any]], above: float, tails: list[dict[str, Any]]) -> list[Claim]:
    """Claims on figures 4 and 10."""
    smooth, rough = ([row[f"roughness {curve}"] for curve in CURVES] for row in rows)
    return [
        (
            "figure 4",
            "the kernel is less certain on #1 than on #2",
            above >= 0.95,
            f"on {100 * above:.0f} % of the range",
        ),
        (
            "figure 4",
            "its variance is smooth, a forest's disagreement is not",
            harness.in_part([max(smooth) <= SMOOTH, min(rough) >= ROUGH]),
            "roughness {:.1f} and {:.1f}, of the forest {:.1f} and {:.1f}".format(*smooth, *rough),
        ),
        (
            "figure 10",
            "uncertainty goes with error",
            min(tail["rank correlation"] for tail in tails) > 0.2,
            ", ".join(f"{t['messages']}: {t['rank correlation']:.2f}" for t in tails),
        ),
        (
            "figure 10",
            "no large error while confident",
            max(tail["confident, of the worst hundredth"] for tail in tails) <= 0.02,
            "of the worst hundredth by KL, among the half of the lower variance: "
            + ", ".join(
                f"{t['messages']} {100 * t['confident, of the worst hundredth']:.0f} %"
                for t in tails
            ),
        ),
        (
            "figure 10",
            "errors in training and test are roughly the same",
            abs(tails[0]["mean log KL"] - tails[1]["mean log KL"]) <= 0.5,
            " and ".join(f"{t['mean log KL']:.2f}" for t in tails),
        ),
    ]


def run(options: argparse.Namespace) -> dict[str, Any]:
    train, test, sizes = (400, 300, QUICK) if options.quick else (5000, 3000, PAPER)
    split = collect(10, 400, train, test)
    a = split.train.tuples()
    targets = np.stack([split.train.mean, np.log(split.train.variance)], axis=1)
    kjit = by_left_out(joint_embedding, a, targets, sizes)
    trees = RandomForestRegressor(n_estimators=sizes.trees, random_state=0)
    trees.fit(np.concatenate(a, axis=1), targets)

    def log_variance(b: Tuples) -> Array:
        return np.log(kjit.regression.predict(kjit.features(b))[1] + kjit.noise)

    curves = {
        "kernel": {curve: log_variance(along(curve)) for curve in CURVES},
        "forest": {curve: disagreement(trees, along(curve)) for curve in CURVES},
    }
    points = {}
    for name, part in (("training", split.train), ("test", split.test)):
        mean, belief = kjit.predict(part.tuples()).T
        error = log_kl(part.mean, part.variance, mean, belief)
        points[name] = {"variance": log_variance(part.tuples()), "log_kl": error}
    rows = harness.show([row_of(*found) for found in curves.items()], "log uncertainty")
    tails = [tail_of(name, *part.values()) for name, part in points.items()]
    harness.show(tails, "variance and error")
    above = float((curves["kernel"]["#1"] > curves["kernel"]["#2"]).mean())
    pictures = {
        "mean": some(split.train.m),
        "log precision": some(-np.log(split.train.v)),
        **{
            name: {curve: np.round(values[::2], 3).tolist() for curve, values in by.items()}
            for name, by in curves.items()
        },
        **{name: {key: some(v) for key, v in part.items()} for name, part in points.items()},
    }
    claims = judge(rows, above, tails)
    return {"claims": claims, "curves": rows, "errors": tails, "pictures": pictures}

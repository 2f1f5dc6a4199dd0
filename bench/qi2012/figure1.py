"""Qi & Guo (2012), figure 1: one factor, an outlier or not, by EP and by the relaxed divergence.

    python -m bench figure1 [--quick]          # 2 s; no data files

The cavity is N(m, 1), the factor .99 where w >= 0 and .01 below (eq. 4); m = 2 agrees with it, at
m = -2 it is an outlier. r = N(0, 1 / eta), and q and eta >= 0 are the least of eq. 5, jointly, in
plain NumPy on a grid: KL(t r cavity || q r) + c eta. The figure says that q stays nearer the cavity
than EP's where the factor is an outlier, and is EP's where it is none. The paper gives no c here.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from bench.lib import harness
from bench.lib.pictures import picture

Array = NDArray[np.float64]
MEANS, WEIGHTS = (2.0, -2.0), (0.01, 0.03, 0.1, 0.3, 1.0)
SHOWN = 0.1
W = np.linspace(-14.0, 14.0, 280_001)
T = np.where(W >= 0.0, 0.99, 0.01)


def density(mean: float, variance: float) -> Array:
    return np.asarray(np.exp(-0.5 * (W - mean) ** 2 / variance) / np.sqrt(2.0 * np.pi * variance))


def projected(mean: float, eta: float) -> tuple[float, float, float]:
    """The divergence of t r cavity from its projection, and mean and variance of q."""
    variance = 1.0 / (1.0 + eta)
    p = T * density(mean * variance, variance)
    p /= p.sum()
    M = float(p @ W)
    V = float(p @ (W - M) ** 2)
    inside = p > 0.0
    log_p = np.log(p[inside] / (W[1] - W[0]))
    log_q = -0.5 * ((W[inside] - M) ** 2 / V + np.log(2.0 * np.pi * V))
    kl = float(p[inside] @ (log_p - log_q))
    precision = 1.0 / V - eta
    return kl, M / V / precision, 1.0 / precision


def relaxed(mean: float, weight: float) -> dict[str, Any]:
    """The best eta and its q, beside EP's."""

    def cost(eta: float) -> float:
        return projected(mean, eta)[0] + weight * eta

    grid = np.concatenate([[0.0], np.logspace(-3, 2, 26)])
    values = [cost(eta) for eta in grid]
    k = int(np.argmin(values))
    eta = float(grid[k])
    if k:
        around = grid[max(k - 1, 0)], grid[min(k + 1, len(grid) - 1)]
        eta = float(optimize.minimize_scalar(cost, bounds=around, method="bounded").x)
    _, q_mean, q_variance = projected(mean, eta)
    _, ep_mean, ep_variance = projected(mean, 0.0)
    return {
        "cavity": mean,
        "c": weight,
        "eta": eta,
        "mean": q_mean,
        "variance": q_variance,
        "EP, mean": ep_mean,
        "EP, variance": ep_variance,
    }


def draw(stored: dict[str, Any], folder: Path) -> None:
    """The four panels."""
    near = np.flatnonzero((W > -6) & (W < 6))[::50]
    with picture(folder / "qi2012_figure1.png", 2, 2, sharex=True, sharey=True) as axes:
        for k, mean in enumerate(MEANS):
            found = relaxed(mean, SHOWN)
            left, right = axes[2 * k : 2 * k + 2]
            left.plot(W[near], density(mean, 1.0)[near], label="cavity")
            left.plot(W[near], T[near], color="black", lw=0.8, label="factor")
            p = T * density(mean, 1.0)
            left.plot(W[near], (p / p.sum() / (W[1] - W[0]))[near], label="product")
            right.plot(W[near], density(mean, 1.0)[near], label="cavity")
            ep = density(found["EP, mean"], found["EP, variance"])
            right.plot(W[near], ep[near], label="q by EP")
            q = density(found["mean"], found["variance"])
            right.plot(W[near], q[near], "--", label=f"relaxed, c = {SHOWN:g}")
            for axis, letter in ((left, "ac"[k]), (right, "bd"[k])):
                axis.set(title=f"({letter}) cavity N({mean:g}, 1)", ylim=(0, 1.7))
                axis.legend()
        for axis in axes[2:]:
            axis.set_xlabel("w")


def run(options: argparse.Namespace) -> dict[str, Any]:
    weights = WEIGHTS[1::2] if options.quick else WEIGHTS
    rows = [relaxed(mean, weight) for mean in MEANS for weight in weights]
    harness.show(rows, "One factor")
    agrees, outlier = ([row for row in rows if row["cavity"] == mean] for mean in MEANS)
    moved = [
        (abs(row["mean"] - row["cavity"]), abs(row["EP, mean"] - row["cavity"])) for row in outlier
    ]
    claims = [
        (
            "figure 1b",
            "a factor that agrees is not relaxed: q is that of EP",
            harness.in_part([row["eta"] == 0.0 for row in agrees]),
            ", ".join(f"c = {row['c']:g}: eta {row['eta']:.3g}" for row in agrees),
        ),
        (
            "figure 1d",
            "an outlier moves q less than by EP",
            harness.in_part([mine < theirs for mine, theirs in moved]),
            f"EP N({outlier[0]['EP, mean']:.2f}, {outlier[0]['EP, variance']:.2f}); "
            + ", ".join(
                f"c = {row['c']:g}: eta {row['eta']:.2f}, N({row['mean']:.2f}, "
                f"{row['variance']:.2f})"
                for row in outlier
            ),
        ),
    ]
    return {"claims": claims, "table": rows}

"""Jitkrittum et al. (2015), appendix B: how near random features come to the kernels.

    python -m bench features [--quick]         # 20 s; needs no data

B.3: features of the expected product kernel, squared width 3, on N(m, v) with m ~ N(0, 9) and
v ~ Gamma(3, 1/4); the largest difference of an entry of the kernel matrix, over 10 draws of the
features. B.6: two-stage features of the Gaussian kernel on embeddings of 300 such messages; the
Frobenius norm of the difference over D_in and D_out, the mean of 20 draws. The paper gives neither
its messages of B.6 nor the widths: here those of B.3, and widths by the median heuristic.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from bench.jitkrittum2015.kernels import (
    ExpectedProduct,
    Tuples,
    embedding_features,
    median_heuristic,
    product_features,
)
from bench.lib import harness
from bench.lib.pictures import picture

COUNT, SQUARED_WIDTH = 300, 3.0
#: numbers of features: of B.3, and of both stages of B.6
SINGLE, STAGES = (50, 100, 200, 500, 1000, 2000, 5000), (50, 100, 200, 500, 1000)


def messages(count: int, rng: np.random.Generator) -> Tuples:
    """Univariate Gaussians."""
    mean = 3.0 * rng.standard_normal((count, 1))
    return Tuples(mean, rng.gamma(3.0, 4.0, (count, 1)))


def single(a: Tuples, sizes: tuple[int, ...], repeats: int) -> list[dict[str, Any]]:
    """B.3."""
    kernel = ExpectedProduct((SQUARED_WIDTH**0.5,))
    true, rows = kernel(a, a), []
    for d in sizes:
        found = []
        for seed in range(repeats):
            psi = product_features(kernel, d, seed)(a)
            found.append(np.abs(psi @ psi.T - true).max())
        rows.append({"D": d, "max entry diff": np.mean(found), "sd": np.std(found)})
    return rows


def two_stage(a: Tuples, sizes: tuple[int, ...], repeats: int) -> list[dict[str, Any]]:
    """B.6."""
    kernel = median_heuristic(a)
    true, rows = kernel(a, a), []
    for d_in in sizes:
        row: dict[str, Any] = {"D_in": d_in}
        for d_out in sizes:
            psi = [embedding_features(kernel, d_in, d_out, seed)(a) for seed in range(repeats)]
            row[f"D_out = {d_out}"] = np.mean([np.linalg.norm(p @ p.T - true) for p in psi])
        rows.append(row)
    return rows


def grid(rows: list[dict[str, Any]]) -> np.ndarray:
    """Norms by D_in and D_out."""
    return np.array([[value for key, value in row.items() if key != "D_in"] for row in rows])


def draw(stored: dict[str, Any], folder: Path) -> None:
    """Both pictures of the appendix."""
    with picture(folder / "jitkrittum2015_features.png", 2, size=(4.2, 3.2)) as axes:
        rows = stored["B.3"]
        d, mean, sd = ([row[key] for row in rows] for key in rows[0])
        axes[0].errorbar(d, mean, sd, fmt="o-", ms=4, capsize=3)
        axes[0].set(xscale="log", yscale="log", xlabel="D", title="B.3: largest error of an entry")
        rows = stored["B.6"]
        sizes, norms = [row["D_in"] for row in rows], grid(rows)
        for d_in, line in zip(sizes, norms, strict=True):
            axes[1].loglog(sizes, line, "o-", ms=4, label=f"D_in = {d_in}")
        axes[1].set(xlabel="D_out", title="B.6: Frobenius norm of the error")
        axes[1].yaxis.set_minor_formatter("")
        axes[1].legend()


def run(options: argparse.Namespace) -> dict[str, Any]:
    count, repeats = (60, 3) if options.quick else (COUNT, 20)
    a = messages(count, np.random.default_rng(0))
    one = single(a, SINGLE[:3] if options.quick else SINGLE, min(repeats, 10))
    two = two_stage(a, STAGES[:3] if options.quick else STAGES, repeats)
    harness.show(one, "B.3: expected product")
    harness.show(two, "B.6: joint embeddings")
    norms = grid(two)
    by_out, by_in = norms[:, 0] / norms[:, -1], norms[0] / norms[-1]
    claims = [
        (
            "appendix B.6",
            "D_out has more effect than D_in",
            bool(by_out.min() > by_in.max()),
            f"more D_out takes the error to 1/{by_out.min():.1f} or less, more D_in to "
            f"1/{by_in.max():.2f} at best",
        )
    ]
    return {"claims": claims, "B.3": one, "B.6": two}

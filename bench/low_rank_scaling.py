"""Gaussian processes of low rank: memory and growth with n at rank 500.

    python bench/low_rank_scaling.py [--quick]           # 5 min; needs no data

RBF kernel on random inputs, of which the columns are computed on demand. For each n, in a process
of its own: the seconds of the factorisation, of one EP sweep with exact moments
in parallel order and of one serial sweep of Laplace propagation in chunks of 500 rows, and the peak
of the resident memory beyond X and y over all of it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import harness  # first: fixes the number of BLAS threads
import numpy as np

MB = 2.0**20
SIZES = (5_000, 10_000, 20_000, 40_000)
RANK = 500
MOST_MB = 200.0  # at n = 20,000

CHILD = """
import sys
from harness import now, peak_memory, watch_stalls
import numpy as np
import epfast

watch_stalls()
n, rank = map(int, sys.argv[1:])
rng = np.random.default_rng(0)

def problem(n):
    X = rng.standard_normal((n, 10))
    return X, np.where(np.sin(2 * X[:, 0]) + X[:, 1] + rng.standard_normal(n) > 0, 1.0, -1.0)

def measure(X, y, rank):
    kernel = epfast.KernelColumns.rbf(X, 3.0)
    start = now()
    factor = epfast.incomplete_cholesky(kernel, rank)
    seconds = [now() - start]
    marks = []  # at the end of each sweep

    def mark(info, state):
        marks.append(now())

    epfast.fit_linear(
        factor.G, y, loss="logistic", scheme="laplace", posterior="full", batch_size=500,
        prior_variance=1.0, schedule=epfast.EP(2, 0.0, order="sequential"), callback=mark,
    )
    size = factor.G.nbytes
    del factor
    post = epfast.fit_gp(
        kernel, y, rank=rank, schedule=epfast.EP(2, 0.0, order="parallel"), callback=mark
    )
    post.mean
    return *seconds, marks[3] - marks[2], marks[1] - marks[0], size

measure(*problem(600), 20)  # code and buffers that stay
X, y = problem(n)
before = peak_memory(reset=True)
found = measure(X, y, rank)
print(*found, peak_memory() - before)
"""


def measure(n: int, rank: int) -> list[float]:
    """Seconds of factor, EP sweep and Laplace sweep; bytes of the factor and of the peak."""
    run = subprocess.run(
        [sys.executable, "-c", CHILD, str(n), str(rank)],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode:
        raise RuntimeError(f"n = {n}: {run.stderr}")
    return [float(value) for value in run.stdout.split()]


def main() -> None:
    options = harness.start(__doc__.splitlines()[0])
    sizes, rank = ((1_000, 2_000), 100) if options.quick else (SIZES, RANK)
    rows = []
    for n in sizes:
        factor, sweep, chunks, size, peak = measure(n, rank)
        rows.append(
            {
                "n": n,
                "rank": rank,
                "factor_s": factor,
                "EP_sweep_s": sweep,
                "Laplace_sweep_s": chunks,
                "factor_MB": size / MB,
                "peak_MB": peak / MB,
            }
        )
        print(rows[-1], flush=True)
    harness.table(
        [key.replace("_", " ") for key in rows[0]],
        [tuple(row.values()) for row in rows],
        f"Rank {rank}: seconds, and peak memory beyond X and y",
    )

    def exponent(key: str) -> float:
        n, s = np.log([[row["n"], row[key]] for row in rows]).T
        return float(np.polyfit(n, s, 1)[0])

    growth = {key: exponent(key) for key in ("factor_s", "EP_sweep_s", "Laplace_sweep_s")}
    peaks = {row["n"]: row["peak_MB"] for row in rows}
    claims = [
        (
            "ours",
            f"n = 20,000 at rank 500 peaks at most {MOST_MB:g} MB beyond X",
            peaks[20_000] <= MOST_MB if 20_000 in peaks else None,
            f"MB by n: { {n: round(peak, 1) for n, peak in peaks.items()} }",
        ),
        (
            "ours",
            "the time grows linearly in n",
            harness.in_part([power <= 1.15 for power in growth.values()]),
            "exponents of n: " + ", ".join(f"{k} {v:.2f}" for k, v in growth.items()),
        ),
    ]
    harness.verdicts(claims, "Aims", harness.MET)
    harness.write(
        options.output, "low_rank_scaling", options, claims=claims, growth=growth, results=rows
    )


if __name__ == "__main__":
    main()

"""A yardstick: seconds of fixed work, by which seconds of two machines compare."""

from __future__ import annotations

import numpy as np
from scipy import linalg, sparse

from bench.lib import harness

#: what it takes on the machine of the peers' seconds: an EPYC with AVX-512
THERE = 0.085


def loop(rounds: int = 5) -> float:
    """Least seconds of some rounds: a sparse matrix, a Cholesky factor, logarithms."""
    rng = np.random.default_rng(0)
    rows = sparse.random_array((200_000, 5_000), density=1e-3, rng=rng, format="csr")
    A = rng.normal(size=(1200, 1200))
    A = A @ A.T + 1200.0 * np.eye(1200)
    x, y = rng.normal(size=5_000), rng.normal(size=1_000_000)

    def work() -> None:
        for _ in range(20):
            rows.T @ (rows @ x)
        linalg.cholesky(A)
        np.log1p(np.exp(-np.abs(y)))

    return min(harness.timed(work)[1] for _ in range(rounds))

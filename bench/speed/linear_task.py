"""Scalar-site EP with a full covariance: the task that ``linear`` times, and how."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

import epfast
from bench.lib import harness
from bench.lib.harness import Timing

Array = NDArray[np.float64]

DIMENSION = 100
TOLERANCE = 1e-6
LOSSES = ("probit", "logistic")


def synthetic(n: int, d: int, loss: str) -> tuple[Array, Array]:
    """Rows, the last column constant, and labels drawn from the model. No copy of X is made."""
    rng = np.random.default_rng(0)
    X = np.empty((n, d))
    rng.standard_normal(out=X)
    X[:, -1] = 1.0
    noise = rng.standard_normal(n) if loss == "probit" else rng.logistic(size=n)
    return X, np.where(X @ (rng.standard_normal(d) / np.sqrt(d)) + noise > 0.0, 1.0, -1.0)


def ours(
    X: Array,
    y: Array,
    loss: str,
    prior_variance: float = 1.0,
    callback: Callable | None = None,
    progress: bool | Callable = False,
    **schedule: Any,
) -> Any:
    """One fit of epfast, to the tolerance unless something else is asked for."""
    settings = {"tol": TOLERANCE, "sweeps": 50} | schedule
    return epfast.fit_linear(
        X,
        y,
        loss=loss,
        scheme="exact",
        posterior="full",
        batch_size=None,
        prior_variance=prior_variance,
        schedule=epfast.EP(**settings),
        callback=callback,
        progress=progress,
    )


def rounds(options: argparse.Namespace) -> dict[str, Any]:
    """How often things are timed."""
    return {"rounds": 5, "budget": 1.0} if options.quick else {"rounds": 31, "budget": 12.0}


def timed_sweeps(*arguments: Any, **schedule: Any) -> tuple[Any, list[float]]:
    """One fit, and the time of each sweep; the first includes what comes before it."""
    fits: list[Any] = []
    seconds = harness.steps(lambda step: fits.append(ours(*arguments, callback=step, **schedule)))
    return fits[0], seconds


def ratio(timing: Timing) -> str:
    """A ratio with its quartiles."""
    return f"{timing.median:.2f} ({harness.spread(timing)})"


def fastest(over: Timing, under: Timing) -> float:
    """Quotient of the fastest rounds: on a busy machine more stable than the median."""
    return min(over.values) / min(under.values)

"""Regression on a graph: what linear forms and blocks give beside fit_linear.

    python -m bench regression [--quick]        # 30 s

Logistic and probit regression are graphs as well: one form per row. With scalar weights the beliefs
are those of ``fit_linear(posterior="factorized")``; with a block of weights those of
``posterior="full"``, which the graph is to meet to 1e-10 in at most 1.2 times the time.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np

import epfast
from bench.lib import harness
from epfast import EP

#: goals: largest difference of means, variances and log evidence, and of times
SAME, TIMES = 1e-10, 1.2
TIGHT = EP(sweeps=1000, tol=1e-12)


def data(n: int, d: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, d))
    X[:, 1:] += 0.5 * X[:, :1]
    w = rng.standard_normal(d) / np.sqrt(d)
    return X, np.where(X @ w + rng.logistic(size=n) > 0.0, 1, -1)


def row(name: str, loss: str, found: Any, right: Any, seconds: dict[str, Any]) -> dict[str, Any]:
    mean, variance, log_z, sweeps = found
    ratio = seconds["graph"].over(seconds["linear"])
    return {
        "model": name,
        "loss": loss,
        "mean_off": float(np.abs(mean - right.mean).max()),
        "variance_off": float(np.abs(variance - right.variance).max()),
        "log_z_off": abs(log_z / right.log_evidence - 1.0),
        "sweeps": sweeps,
        "sweeps_fit_linear": right.n_sweeps,
        "time_over_fit_linear": {"median": ratio.median, "q1": ratio.q1, "q3": ratio.q3},
    }


def scalars(X: np.ndarray, y: np.ndarray, loss: str, rounds: int) -> dict[str, Any]:
    """Scalar weights: a factorised posterior."""

    def graph(schedule: EP) -> Any:
        g = epfast.Graph()
        w = g.gaussian(X.shape[1])
        g.add(loss, X @ w, y)
        post = g.fit(schedule)
        return post[w].mean, post[w].variance, post.log_evidence, post.n_sweeps

    def linear(schedule: EP) -> Any:
        return epfast.fit_linear(X, y, loss=loss, posterior="factorized", schedule=schedule)

    ten = EP(sweeps=10, tol=0.0, order="sequential")
    seconds = harness.interleave(
        {"graph": lambda: graph(ten), "linear": lambda: linear(ten)}, rounds
    )
    return row("scalar weights", loss, graph(TIGHT), linear(TIGHT), seconds)


def block(X: np.ndarray, y: np.ndarray, loss: str, rounds: int) -> dict[str, Any]:
    """A block of weights: a full covariance."""

    def graph(schedule: EP | None) -> Any:
        g = epfast.Graph()
        w = g.block(X.shape[1])
        g.add(loss, X @ w, y)
        post = g.fit(schedule)
        return post[w].mean, post[w].variance, post.log_evidence, post.n_sweeps

    def linear(schedule: EP | None) -> Any:
        return epfast.fit_linear(X, y, loss=loss, posterior="full", schedule=schedule)

    usual = EP(sweeps=100, tol=1e-6)
    seconds = harness.interleave(
        {"graph": lambda: graph(usual), "linear": lambda: linear(usual)}, rounds
    )
    return row("block", loss, graph(TIGHT), linear(TIGHT), seconds)


def run(options: argparse.Namespace) -> dict[str, Any]:
    warnings.simplefilter("ignore", epfast.ConvergenceWarning)
    n, d, rounds = (500, 10, 3) if options.quick else (10_000, 50, 9)
    X, y = data(n, d)
    rows, claims = [], []
    for loss in ("logistic", "probit"):
        for name, part in (("scalar weights", scalars), ("block", block)):
            found = part(X, y, loss, rounds)
            rows.append(found)
            off = max(found["mean_off"], found["variance_off"], found["log_z_off"])
            times = found["time_over_fit_linear"]["median"]
            like = "full" if name == "block" else "factorized"
            claims.append(
                (
                    f"{name}, {loss}",
                    f"as fit_linear(posterior={like!r}): means, variances, log evidence to 1e-10",
                    off <= SAME,
                    f"means {found['mean_off']:.1e}, variances {found['variance_off']:.1e}, log "
                    f"evidence {found['log_z_off']:.1e} of it, {n} rows",
                )
            )
            if name == "block":
                evidence = f"{times:.2f} times, {n} rows of {d} columns"
                claims.append((f"{name}, {loss}", "1.2 times its time", times <= TIMES, evidence))
    cells = [[v["median"] if isinstance(v, dict) else v for v in r.values()] for r in rows]
    harness.table([name.replace("_", " ") for name in rows[0]], cells, f"{n} rows, {d} columns")
    return {"claims": claims, "regressions": rows}

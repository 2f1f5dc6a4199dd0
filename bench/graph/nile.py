"""The Nile, a local level model: exact with known variances, beside a grid with unknown ones.

    EPFAST_DATA=folder python -m bench nile [--quick]        # 5 s

Flow at Aswan, 1871 to 1970 (Cobb 1978). Part 1: variances 15099 and 1469.1, x_1 ~ N(0, 1e7); a
tree of Gaussians, on which a forward and a backward sweep are exact. Part 2: both precisions
unknown, Ga(1, .1), flows standardised, x_1 ~ N(0, 100); the truth is a grid over both precisions,
with a Kalman smoother at each point.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
from scipy import special

import epfast
from bench.graph.clutter import log_normal
from bench.lib import harness
from bench.lib.datasets import load_numbers
from epfast import losses
from epfast.graph import Noise, Transition, Walk

OBSERVATION, STATE, FIRST = 15099.0, 1469.1, 1e7
#: of the design
LOG_Z = -641.5855784594


def dense(y: np.ndarray) -> tuple[np.ndarray, np.ndarray, float]:
    """Means, variances and log evidence by linear algebra."""
    n = len(y)
    steps = np.eye(n) - np.eye(n, k=-1)
    weights = np.append(1.0 / FIRST, np.full(n - 1, 1.0 / STATE))
    prior = steps.T @ (weights[:, None] * steps)
    covariance = np.linalg.inv(prior + np.eye(n) / OBSERVATION)
    marginal = np.linalg.inv(prior) + OBSERVATION * np.eye(n)
    quadratic = y @ np.linalg.solve(marginal, y)
    log_z = -0.5 * (quadratic + np.linalg.slogdet(2.0 * np.pi * marginal)[1])
    return covariance @ (y / OBSERVATION), np.diag(covariance), float(log_z)


def known(y: np.ndarray) -> tuple[list[dict[str, Any]], list[harness.Claim]]:
    mean, variance, log_z = dense(y)
    sd = np.sqrt(variance)
    rows = []
    for name, schedule in (
        ("forward and back", epfast.EP(sweeps=2, tol=0.0)),
        ("all at once", epfast.EP(sweeps=400, tol=1e-11, order="parallel", damping=1.0)),
        ("as it is", epfast.EP()),
    ):
        g = epfast.Graph()
        x = g.gaussian(len(y), variance=np.append(FIRST, np.full(len(y) - 1, np.inf)))
        g.add(Walk(STATE), x)
        g.add(losses.Gaussian(OBSERVATION), x, y)
        post = g.fit(schedule)
        rows.append(
            {
                "sweeps_are": name,
                "sweeps": post.n_sweeps,
                "mean_off": float((np.abs(post[x].mean - mean) / sd).max()),
                "variance_off": float(np.abs(post[x].variance / variance - 1.0).max()),
                "log_z": post.log_evidence,
                "log_z_off": abs(post.log_evidence - log_z),
            }
        )
    # the same by transitions between variables
    g = epfast.Graph()
    x = g.gaussian(len(y), variance=np.append(FIRST, np.full(len(y) - 1, np.inf)))
    g.add(Transition(STATE), x[:-1], x[1:])
    g.add(losses.Gaussian(OBSERVATION), x, y)
    other = g.fit(epfast.EP(sweeps=2, tol=0.0))
    harness.show(rows, "Known variances")
    one, parallel = rows[0], rows[1]
    worst = max(one["mean_off"], one["variance_off"])
    return rows, [
        (
            "known variances",
            "two sweeps: smoother to 1e-11, log Z -641.5855784594 to 1e-9",
            worst <= 1e-11 and one["log_z_off"] <= 1e-9 and abs(log_z - LOG_Z) < 1e-9,
            f"{worst:.1e}; log Z {one['log_z']:.10f}, {one['log_z_off']:.1e} off linear algebra; "
            f"with Transition {abs(other.log_evidence - log_z):.1e} off",
        ),
        (
            "known variances",
            "all factors at once: 98 sweeps in place of 2",
            True if parallel["sweeps"] >= 98 else None if parallel["sweeps"] >= 50 else False,
            f"{parallel['sweeps']} sweeps to {parallel['mean_off']:.0e} sd",
        ),
    ]


def grid(y: np.ndarray, nodes: int) -> dict[str, Any]:
    """Moments of states and precisions, and log evidence, by a grid over both precisions."""
    axes = np.linspace(np.log(0.6), np.log(6.0), nodes), np.linspace(-1.0, 6.5, nodes)
    o, s = (np.exp(v).ravel() for v in np.meshgrid(*axes))
    m, v = np.zeros(len(o)), np.full(len(o), 100.0)
    # densities of the logarithms of both precisions
    log_w = sum(np.log(0.1) + np.log(t) - 0.1 * t for t in (o, s))
    filtered = []
    for k, value in enumerate(y):
        v = v + 1.0 / s if k else v
        log_w = log_w + log_normal(value, m, v + 1.0 / o)
        gain = v / (v + 1.0 / o)
        m, v = m + gain * (value - m), v * (1.0 - gain)
        filtered.append((m, v))
    cell = (axes[0][1] - axes[0][0]) * (axes[1][1] - axes[1][0])
    w = np.exp(log_w - special.logsumexp(log_w))
    means, variances = np.empty(len(y)), np.empty(len(y))
    for k in range(len(y) - 1, -1, -1):
        m0, v0 = filtered[k]
        if k < len(y) - 1:
            back = v0 / (v0 + 1.0 / s)
            m, v = m0 + back * (m - m0), v0 + back**2 * (v - v0 - 1.0 / s)
        means[k] = w @ m
        variances[k] = w @ v + w @ (m - means[k]) ** 2
    (o_mean, o_sd), (s_mean, s_sd) = ((w @ t, np.sqrt(w @ t**2 - (w @ t) ** 2)) for t in (o, s))
    return {
        "observation": (float(o_mean), float(o_sd)),
        "state": (float(s_mean), float(s_sd)),
        "mean": means,
        "sd": np.sqrt(variances),
        "log_z": float(special.logsumexp(log_w) + np.log(cell)),
    }


def unknown(y: np.ndarray, nodes: int) -> tuple[list[dict[str, Any]], list[harness.Claim]]:
    y = (y - y.mean()) / y.std()
    right = grid(y, nodes)
    g = epfast.Graph()
    x = g.gaussian(variance=np.append(100.0, np.full(len(y) - 1, np.inf)))
    observation, state = g.gamma(shape=1.0, rate=0.1), g.gamma(shape=1.0, rate=0.1)
    g.add(Noise(observation), y - x)
    g.add(Noise(state), x[1:] - x[:-1])
    post = g.fit(epfast.EP(sweeps=400, damping=0.5, tol=1e-6))
    usual = g.fit()
    off = np.abs(post[x].mean - right["mean"]) / right["sd"]
    ratio = post[x].sd / right["sd"]
    rows = []
    for name, belief in (("observation", post[observation]), ("state", post[state])):
        mean, sd = right[name]
        rows.append(
            {
                "precision": name,
                "mean": float(belief.mean),
                "sd": float(belief.sd),
                "grid_mean": mean,
                "grid_sd": sd,
                "sd_ratio": float(belief.sd / sd),
            }
        )
    harness.show(rows, "Unknown precisions")
    a, b = rows
    close = (
        abs(a["mean"] - 2.052) < 2e-3
        and abs(a["sd"] - 0.359) < 2e-3
        and abs(b["mean"] - 15.67) < 2e-2
        and abs(b["sd"] - 7.20) < 2e-2
    )
    truth = (
        abs(a["grid_mean"] - 2.097) < 5e-3
        and abs(a["grid_sd"] - 0.443) < 5e-3
        and abs(b["grid_mean"] - 15.29) < 5e-2
        and abs(b["grid_sd"] - 8.82) < 5e-2
    )
    return rows, [
        (
            "unknown precisions",
            "EP: 2.052 (.359) and 15.67 (7.20), 157 sweeps with damping .5",
            (True if 140 <= post.n_sweeps <= 175 else None) if close and post.converged else False,
            f"{a['mean']:.3f} ({a['sd']:.3f}), {b['mean']:.2f} ({b['sd']:.2f}), "
            f"{post.n_sweeps} sweeps; undamped {usual.n_sweeps}, "
            + ("settled" if usual.converged else "not settled"),
        ),
        (
            "unknown precisions",
            "the grid: 2.097 (.443) and 15.29 (8.82)",
            truth,
            f"{a['grid_mean']:.3f} ({a['grid_sd']:.3f}), {b['grid_mean']:.2f} "
            f"({b['grid_sd']:.2f}) with {nodes} x {nodes} points",
        ),
        (
            "unknown precisions",
            "states within .093 sd, their sds .85 to 1.06 of the exact ones",
            off.max() <= 0.1 and ratio.min() > 0.84 and ratio.max() < 1.07,
            f"within {off.max():.3f} sd, ratios {ratio.min():.2f} to {ratio.max():.2f}",
        ),
        (
            "unknown precisions",
            "sds of precisions are some 20 % small, for the beliefs are factorised",
            all(0.7 < row["sd_ratio"] < 0.9 for row in rows),
            f"{a['sd_ratio']:.2f} and {b['sd_ratio']:.2f} of the exact ones; log Z "
            f"{post.log_evidence:.3f}, exact {right['log_z']:.3f}",
        ),
    ]


def run(options: argparse.Namespace) -> dict[str, Any]:
    warnings.simplefilter("ignore", epfast.ConvergenceWarning)
    y = load_numbers("nile")[:, 1]
    first, claims = known(y)
    second, more = unknown(y, 60 if options.quick else 200)
    return {"claims": claims + more, "known_variances": first, "unknown_precisions": second}

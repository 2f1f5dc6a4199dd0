"""Learned operators: ns per prediction and update, and fits with a loss in Python.

    python -m bench jitkrittum2015.speed [--quick]   # 4 min; needs no data

Predictions and updates of the core: a dictionary of 100 tuples, two-stage features 300/500 as in
the paper (about 6 ms per message there); beside them the compiled moments of the logistic loss.
Then fits with a loss written in Python, d = 20, 5 sweeps: ``Learned`` at tolerance .01 and at the
tolerance that it chooses by itself, refits included, beside ``scheme="exact"``, which calls the
loss at each node of a quadrature. One
thread; what is compared takes turns, and times are medians with quartiles; the slow fit of the
largest set runs once.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import special

import epfast
from bench.lib import harness
from bench.lib.harness import Claim, Timing
from epfast.inference import DataWarning
from epfast.operators.oracles import SiteOracle

Array = NDArray[np.float64]

D, SWEEPS, MESSAGES = 20, 5, 1000
#: aims: us per prediction and update, sd, times as fast
PREDICT, PAPERS, UPDATE, SD = 2.0, 60.0, 4.0, 0.04
GAINS = {3000: 10.0, 30_000: 50.0}
#: of a round, least seconds of the slow fit above which it runs once
ONCE = 10.0


def messages(n: int, seed: int) -> Array:
    """Cavities N(m, v) as they occur, (n, 2)."""
    rng = np.random.default_rng(seed)
    return np.stack([3.0 * rng.standard_normal(n), np.exp(rng.normal(0.0, 1.0, n))], axis=1)


def learned(features: Any, batch: int, cap: int) -> epfast.Operator:
    """An operator that has seen a batch."""
    found = epfast.Operator(
        SiteOracle("logistic"), tolerance=1e-9, features=features, batch=batch, cap=cap, audit=0.0
    )
    found.project(messages(4 * batch, 0))
    return found


def core(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[Claim]]:
    """Predictions and updates."""
    sizes = (30, 50) if options.quick else (300, 500)
    small, papers = learned("dictionary", 100, 100), learned(("fourier", *sizes), 300, 300)
    given = messages(MESSAGES, 1)
    rows = {
        name: operator.learner.coordinates((given,), None)
        for name, operator in (("dictionary", small), ("paper's", papers))
    }
    oracle = SiteOracle("logistic")
    y = np.zeros(3)
    changed = {name: op.copy().learner.model for name, op in (("d", small), ("p", papers))}
    tasks = {
        f"dictionary, r = {small.learner.model.used}, predict": lambda: small.learner.model.predict(
            rows["dictionary"]
        ),
        "the same, update": lambda: [
            changed["d"].update(x, y, 1e-4) for x in rows["dictionary"][:200]
        ],
        f"two-stage {sizes[0]}/{sizes[1]}, predict": lambda: papers.learner.model.predict(
            rows["paper's"][:200]
        ),
        "two-stage, update": lambda: [
            changed["p"].update(x, y, 1e-4) for x in rows["paper's"][:50]
        ],
        "compiled logistic moments, by SiteOracle": lambda: oracle.answer(given),
    }
    counts = (MESSAGES, 200, 200, 50, MESSAGES)
    found = harness.interleave(tasks, rounds=3 if options.quick else 9)
    times = [t.scaled(1e6 / n) for t, n in zip(found.values(), counts, strict=True)]
    table = [
        {"what": name, "us": t.median, "from": t.q1, "to": t.q3}
        for name, t in zip(tasks, times, strict=True)
    ]
    aims = [
        ("prediction of a dictionary of 100 tuples: at most 2 us", 0, PREDICT),
        ("its update: at most 4 us", 1, UPDATE),
        ("prediction with 300/500 features: at most 60 us (6 ms in the paper)", 2, PAPERS),
    ]
    claims: list[Claim] = [
        ("aim", claim, times[i].median <= most, f"{spread(times[i])} us") for claim, i, most in aims
    ]
    return table, claims


def spread(t: Timing) -> str:
    return f"{t.median:.3g} ({t.q1:.3g} to {t.q3:.3g})"


class Problem(NamedTuple):
    """Rows and labels -1 and 1."""

    X: Array
    y: Array


def simulate(n: int) -> Problem:
    rng = np.random.default_rng(n)
    w, X = rng.standard_normal(D), rng.standard_normal((n, D))
    return Problem(X, np.where(rng.random(n) < special.expit(X @ w), 1.0, -1.0))


def log_loss(margin: Array) -> Array:
    """The loss in Python."""
    return np.logaddexp(0.0, -margin)


def fit(problem: Problem, scheme: Any, loss: Any = None) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        warnings.simplefilter("ignore", epfast.ConvergenceWarning)
        return epfast.fit_linear(
            problem.X,
            problem.y,
            loss=epfast.CustomLoss(log_loss) if loss is None else loss,
            scheme=scheme,
            schedule=epfast.EP(sweeps=SWEEPS, tol=0.0),
            prior_variance=1.0,
        )


def fits(n: int, quick: bool) -> tuple[dict[str, Any], Claim]:
    """Fits of n rows, turn by turn."""
    problem = simulate(n)
    schemes = {
        "dictionary": lambda: epfast.Learned(oracle="exact"),
        "dictionary at .01": lambda: epfast.Learned(oracle="exact", tolerance=0.01),
    }
    exact, first = harness.timed(lambda: fit(problem, "exact"))
    slow, quotients = [first], {name: [] for name in schemes}
    seconds: dict[str, list[float]] = {name: [] for name in schemes}
    posts: dict[str, Any] = {}
    for turn in range(1 if quick else 3):
        if turn and first < ONCE:
            slow.append(harness.timed(lambda: fit(problem, "exact"))[1])
        for name, scheme in schemes.items():
            posts[name], took = harness.timed(lambda scheme=scheme: fit(problem, scheme()))
            seconds[name].append(took)
            quotients[name].append(slow[-1] / took)
    compiled = harness.timed(lambda: fit(problem, "exact", "logistic"))[1]
    sd = np.sqrt(np.diag(exact.covariance))
    row: dict[str, Any] = {"rows": n, "exact, s": float(np.median(slow))}
    for name, post in posts.items():
        row |= {
            f"{name}, s": float(np.median(seconds[name])),
            f"{name}, times": float(np.median(quotients[name])),
            f"{name}, calls": post.operator.calls,
            f"{name}, mean error / sd": float(np.abs((post.mean - exact.mean) / sd).max()),
        }
    row["compiled loss, s"] = compiled
    least = GAINS.get(n, 1.0)
    found = [(row[f"{k}, times"], row[f"{k}, mean error / sd"]) for k in schemes]
    told = [f"{k} {found[i][0]:.0f} times, {found[i][1]:.1g} sd" for i, k in enumerate(schemes)]
    gain, off = found[0]
    claim: Claim = (
        "aim",
        f"{n:,} rows, a loss in Python: {least:.0f} times as fast as 'exact', within {SD} sd",
        harness.in_part([gain >= least, off < SD]),
        f"'exact' takes {1e6 * row['exact, s'] / (SWEEPS * n):.0f} us a visit, and beside that: "
        f"{'; '.join(told)}. The same loss compiled takes {compiled:.3g} s",
    )
    return row, claim


def run(options: argparse.Namespace) -> dict[str, Any]:
    table, claims = core(options)
    harness.table(list(table[0]), [list(row.values()) for row in table], "microseconds")
    rows = []
    for n in (300,) if options.quick else GAINS:
        row, claim = fits(n, options.quick)
        rows.append(row)
        claims.append(claim)
    harness.table(list(rows[0]), [list(row.values()) for row in rows], "fits, 5 sweeps")
    return {"goals": claims, "core": table, "fits": rows}

"""Jitkrittum et al. (2015), experiment 3: 30 logistic regressions in sequence, one operator.

    python -m bench online [--quick]           # 1 min; needs no data

One w ~ N(0, I) in 20 dimensions, 300 rows from N(0, I) in each problem, parallel EP, 10 sweeps. The
paper: beliefs as targets, two-stage features 300/500, first batch 300, threshold -8.5 on the log
predicted variance. Its label is a message, Beta(1 + y, 2 - y); here a coordinate, with the same
inner kernel. Beside it: an oracle that samples, 10^4 draws per message; the targets of section 3.3
and the widths of appendix A; targets of the site; and the dictionary of tuples at tolerance .01,
without audits. The truth is exact EP with compiled moments: errors of posterior means in its sd,
KL, and test errors on labels with and without noise.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from scipy import special

import epfast
from bench.jitkrittum2015 import backward
from bench.jitkrittum2015.sequence import (
    ONLINE,
    PAPER,
    Array,
    Learning,
    Problem,
    draw_trace,
    fit,
    in_sequence,
    log_logistic,
    log_logistic_of,
    trace,
)
from bench.lib import harness
from bench.lib.harness import Claim
from bench.lib.pictures import picture

D, N, PROBLEMS, TEST = 20, 300, 30, 10_000
#: problems of which figure 5 is
TRACED = 5
#: what is judged of the dictionary: the first problems, and the later ones of them
FIRST, LATER = 12, 6
#: read off the figure; the paper's sampler
ERRORS, PROPOSAL = (0.045, 0.10), ("gaussian", 0, 200)

BELIEF, SITE = "paper's: belief, 300/500, -8.5", "targets of the site, nothing else changed"
MOMENTS, WIDE = "section 3.3: E x and E x^2", "widths of appendix A, belief"
DICTIONARY = "dictionary, tolerance 0.01"


def simulate(seed: int, count: int) -> tuple[list[Problem], Array]:
    """Problems of one w; labels of the test rows are noise-free. And noisy ones."""
    rng = np.random.default_rng(seed)
    w = rng.standard_normal(D)

    def labels(X: Array) -> Array:
        return np.where(rng.random(len(X)) < special.expit(X @ w), 1.0, -1.0)

    X_test = rng.standard_normal((TEST, D))
    noisy = labels(X_test)
    problems = []
    for i in range(count):
        X = rng.standard_normal((N, D))
        problems.append(Problem(str(i + 1), X, labels(X), X_test, np.sign(X_test @ w)))
    return problems, noisy


def operators() -> dict[str, dict[str, Any]]:
    """Settings by name."""
    sampled = epfast.SampledFactor(log_density=log_logistic_of, draws=10_000)
    return {
        BELIEF: PAPER,
        MOMENTS: PAPER | {"targets": "moments"},
        WIDE: PAPER | {"width": 1.0},
        "the paper's, sampled oracle": PAPER | {"oracle": sampled},
        SITE: PAPER | {"targets": "site"},
        DICTIONARY: {"tolerance": 0.01, "audit": 0.0},
    }


def draw(stored: dict[str, Any], folder: Path) -> None:
    """Figure 5."""
    with picture(folder / "jitkrittum2015_figure5.png", 1, size=(8.4, 3.2)) as (axis,):
        draw_trace(axis, stored["trace"], ONLINE["threshold"])


def sampled(draws: int, proposal: Any) -> float:
    """Least seconds per message of an oracle that samples, one message at a time."""
    oracle = epfast.SampledFactor(log_density=log_logistic, draws=draws, proposal=proposal)
    rng = np.random.default_rng(0)
    messages = np.stack([3.0 * rng.standard_normal(10), np.exp(rng.normal(0.0, 1.0, 10))], axis=1)
    return min(harness.timed(lambda row=row: oracle.answer(row[None]))[1] for row in messages)


def judge(
    found: dict[str, Learning],
    tests: dict[str, list[float]],
    ratios: dict[str, float],
    other: list[dict[str, Any]],
) -> list[Claim]:
    """Claims of experiment 3, of section 3.3 and appendix A beside the program, and ours."""
    paper, site, best = found[BELIEF], found[SITE], found[DICTIONARY]
    later, first = slice(FIRST - LATER, FIRST), slice(FIRST)
    worst, worst_site = (float(run.all("worst").max()) for run in (paper, site))
    (free, noisy), (free_exact, noisy_exact) = tests[BELIEF], tests["exact EP"]
    calls, off, kl = (best.all(key)[first] for key in ("calls", "worst", "kl"))
    calls_later, last = best.all("calls")[later].sum(), paper.all("calls")[-5:].max()
    targets = {name: found[name] for name in (BELIEF, MOMENTS, WIDE)}
    median = {name: np.median(run.all("worst")) for name, run in targets.items()}
    return [
        (
            "section 4.3",
            "the operator stops asking: uncertainty settles after about 1000 messages",
            bool(last <= 0.02 * paper.parts[0].visits),
            f"{paper.parts[0].calls} calls in problem 1, then "
            + ", ".join(f"{part.calls}" for part in paper.parts[1:6])
            + f"; at most {last:.0f} of {paper.parts[0].visits:,} messages in each of the last "
            "five",
        ),
        (
            "section 4.3",
            "its test errors are those of the sampler",
            abs(free - free_exact) < 0.02 and abs(noisy - noisy_exact) < 0.01,
            f"{free:.3f} beside {free_exact:.3f} without noise ({ERRORS[0]} to {ERRORS[1]} read "
            f"off the figure), {noisy:.3f} beside {noisy_exact:.3f} with",
        ),
        (
            "ours",
            "equal errors hide wrong posteriors: means more than .1 sd off",
            worst > 0.1,
            f"median problem {median[BELIEF]:.2f} sd, worst {worst:.2f}, KL "
            f"{np.median(paper.all('kl')):.2g}",
        ),
        (
            "section 4.3",
            "much faster than sampling: 34 times per problem, once learned",
            next(iter(ratios.values())) >= 34.0,
            "; ".join(f"{ratio:.0f} times less than {what}" for what, ratio in ratios.items()),
        ),
        (
            "aim",
            "targets of the site, nothing else changed: means within .03 sd",
            worst_site < 0.03,
            f"worst {worst_site:.4f}, median problem {np.median(site.all('worst')):.4f}, KL "
            f"{np.median(site.all('kl')):.1g}; belief {worst:.2f}",
        ),
        (
            "aim",
            "dictionary, .01: at most 200 calls in 12 problems, 20 in the last 6 of them; means "
            "within .04 sd, KL median < 1e-3",
            bool(
                calls.sum() <= 200
                and calls_later <= 20
                and off.max() < 0.04
                and np.median(kl) < 1e-3
            ),
            f"{calls.sum():.0f} calls, {calls_later:.0f} in the last 6, worst {off.max():.4f}, KL "
            f"{np.median(kl):.1g}",
        ),
        (
            "section 3.3",
            "to learn E x and E x^2, as the text says, is no worse than mean and log variance",
            bool(median[MOMENTS] <= 1.1 * median[BELIEF]),
            "; ".join(
                f"{name}: median problem {median[name]:.2g} sd, {run.total('calls')} calls, "
                f"{run.refused} refused"
                for name, run in targets.items()
            ),
        ),
        (
            "section 4.3",
            "the operator in the other direction, to p, stops asking too",
            all(row["calls, last five"] <= 0.02 * row["messages, last five"] for row in other),
            "; ".join(
                f"{row['operator']}: {row['calls']} calls, {row['calls, last five']} in the last "
                f"five, log KL {row['log KL, median']:.1f}, worst {row['log KL, worst']:.1f}"
                for row in other
            ),
        ),
    ]


def run(options: argparse.Namespace) -> dict[str, Any]:
    count = 2 if options.quick else PROBLEMS
    few: dict[str, Any] = {"features": ("fourier", 30, 50)} if options.quick else {}
    problems, noisy = simulate(0, count)
    if options.quick:
        problems = [p._replace(X=p.X[:40], y=p.y[:40]) for p in problems]
    exact = [fit(problem, "exact") for problem in problems]
    found = {
        name: in_sequence(name, problems, exact, **settings | (few if name != DICTIONARY else {}))
        for name, settings in operators().items()
    }
    rows = harness.show([learning.row() for learning in found.values()], f"{count} problems")

    X_test, free = problems[0].X_test, problems[0].y_test
    means = {name: [p.mean for p in learning.parts] for name, learning in found.items()}
    means["exact EP"] = [post.mean for post in exact]
    tests = {
        name: [
            float(np.mean([np.mean(np.sign(X_test @ mean) != y) for mean in parts]))
            for y in (free, noisy)
        ]
        for name, parts in means.items()
    }
    test_errors = [
        {"operator": name, "noise-free": without, "noisy": with_noise}
        for name, (without, with_noise) in tests.items()
    ]
    harness.show(test_errors, "test errors, mean over problems")

    draws = 1_000 if options.quick else 500_000
    sampling = {
        f"{draws:,} draws of N(0, 200), as in the paper": sampled(draws, PROPOSAL),
        "10,000 draws of the widened cavity": sampled(10_000, None),
    }
    runs = found[BELIEF]
    late = float(np.median((runs.all("seconds") / runs.all("visits"))[-10:]))
    ratios = {what: seconds / late for what, seconds in sampling.items()}
    other = harness.show(backward.summary(backward.all_of(problems, **few)), "messages to p")
    by_problem = {
        name: {
            "calls": run.all("calls"),
            "worst": run.all("worst"),
            "KL": run.all("kl"),
            "us per message": 1e6 * run.all("seconds") / run.all("visits"),
        }
        for name, run in found.items()
    }
    return {
        "claims": judge(found, tests, ratios, other),
        "operators": rows,
        "operators to p": other,
        "test errors": test_errors,
        "by problem": by_problem,
        "trace": trace(problems[:TRACED], 5, **few),
        "sampling, us per message": {k: 1e6 * seconds for k, seconds in sampling.items()},
    }

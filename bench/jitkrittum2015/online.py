"""Jitkrittum et al. (2015), experiment 3: 30 logistic regressions in sequence, one operator.

    python -m bench online [--quick]           # 2 min; needs no data

One w ~ N(0, I) in 20 dimensions, 300 rows from N(0, I) in each problem, parallel EP, 10 sweeps. The
paper: beliefs as targets, two-stage features 300/500, first batch 300, threshold -8.5 on the log
predicted variance. Its label is a message, Beta(1 + y, 2 - y); here a coordinate, with the same
inner kernel. Beside it: the label folded into z; targets of the site; the dictionary of tuples at
three tolerances, without audits (each call is one of doubt), with them, and without refits; an
oracle that samples, 10^4 draws per message. The truth is exact EP with compiled moments: errors of
posterior means in its sd, KL, and test errors on labels with and without noise.
"""

from __future__ import annotations

import argparse
import functools
import math
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
#: draws of w and of problems over which the calls of the paper's settings are counted
SEEDS = 5
#: problems of which figure 5 is
TRACED = 5
#: what is judged of the dictionary: the first problems, and the later ones of them
FIRST, LATER = 12, 6
TOLERANCES = (0.1, 0.03, 0.01)
#: without refits the tolerance is a threshold on the variance, to which the paper's noise is added
NOISE = 1e-4
#: read off the figure; the paper's sampler
ERRORS, PROPOSAL = (0.045, 0.10), ("gaussian", 0, 200)

BELIEF, SITE = "paper's: belief, 300/500, -8.5", "targets of the site, nothing else changed"
FOLDED, SITE_FOLDED = "the same, label folded into z", "targets of the site, label folded into z"
MOMENTS, WIDE = "section 3.3: E x and E x^2", "widths of appendix A, belief"
NO_REFITS = "dictionary, tolerance 0.01, without refits"


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
    draws = functools.partial(epfast.SampledFactor, draws=10_000)
    found: dict[str, dict[str, Any]] = {
        BELIEF: PAPER,
        MOMENTS: PAPER | {"targets": "moments"},
        WIDE: PAPER | {"width": 1.0},
        FOLDED: {"paper": True, "width": 0.5},
        "the same, sampled oracle": PAPER | {"oracle": draws(log_density=log_logistic_of)},
        SITE: PAPER | {"targets": "site"},
        SITE_FOLDED: {"paper": True, "width": 0.5, "targets": "site"},
        "targets of the site, sampled oracle": PAPER
        | {"targets": "site", "oracle": draws(log_density=log_logistic_of)},
    }
    for tolerance in TOLERANCES:
        found[dictionary(tolerance)] = {"tolerance": tolerance, "audit": 0.0}
    found[f"{dictionary(0.01)}, audits"] = {"tolerance": 0.01}
    found[f"{dictionary(0.03)}, sampled oracle"] = {
        "tolerance": 0.03,
        "oracle": draws(log_density=log_logistic),
    }
    found[NO_REFITS] = {"threshold": math.log(0.01**2 + NOISE), "audit": 0.0}
    return found


def dictionary(tolerance: float) -> str:
    return f"dictionary, tolerance {tolerance}"


def draw(stored: dict[str, Any], folder: Path) -> None:
    """Calls, errors and times over the problems; figure 5."""
    shown = [BELIEF, SITE, *map(dictionary, TOLERANCES), NO_REFITS]
    titles = {
        "calls": "calls of the oracle so far",
        "worst": "largest error of a mean / sd",
        "us per message": "us per message",
    }
    with picture(folder / "jitkrittum2015_online.png", 3, size=(3.4, 3.8)) as axes:
        for name in shown:
            runs = stored["by problem"][name]
            for axis, key in zip(axes, titles, strict=True):
                values = np.cumsum(runs[key]) if key == "calls" else runs[key]
                axis.semilogy(np.arange(1, len(values) + 1), values, lw=1.2, label=name)
        for axis, title in zip(axes, titles.values(), strict=True):
            axis.set(title=title, xlabel="problem")
        handles, labels = axes[0].get_legend_handles_labels()
        axes[0].figure.legend(handles, labels, loc="outside lower center", ncols=2)
    with picture(folder / "jitkrittum2015_figure5.png", 1, size=(8.4, 3.2)) as (axis,):
        draw_trace(axis, stored["trace"], ONLINE["threshold"])


def again(problems: list[Problem], exact: list[Any]) -> list[int]:
    """Calls of a first fit, of the same fit again, and of the next problem after the first."""
    settings = operators()[dictionary(0.01)]
    first, operator = in_sequence("first", problems[:1], exact[:1], **settings)
    same, _ = in_sequence("same", problems[:1], exact[:1], operator=operator)
    other, _ = in_sequence("next", problems[1:2], exact[1:2], operator=operator)
    return [int(run.total("calls")) for run in (first, same, other)]


def sampled(draws: int, proposal: Any) -> float:
    """Least seconds per message of an oracle that samples, one message at a time."""
    oracle = epfast.SampledFactor(log_density=log_logistic, draws=draws, proposal=proposal)
    rng = np.random.default_rng(0)
    messages = np.stack([3.0 * rng.standard_normal(10), np.exp(rng.normal(0.0, 1.0, 10))], axis=1)
    return min(harness.timed(lambda row=row: oracle.answer(row[None]))[1] for row in messages)


def judge(
    found: dict[str, Learning],
    calls: list[int],
    tests: dict[str, list[float]],
    ratios: dict[str, float],
    fits: list[int],
) -> list[Claim]:
    """Claims of experiment 3, and ours."""
    paper, site, best = found[BELIEF], found[SITE], found[dictionary(0.01)]
    later, first = slice(FIRST - LATER, FIRST), slice(FIRST)
    audited = found[f"{dictionary(0.01)}, audits"]
    worst = [float(run.all("worst").max()) for run in (paper, site, found[SITE_FOLDED])]
    dictionary_calls = int(best.all("calls")[first].sum())
    free, noisy = tests[BELIEF]
    free_exact, noisy_exact = tests["exact EP"]
    folded = found[FOLDED].total("calls")
    without = found[NO_REFITS].all("worst")[first].max()
    return [
        (
            "section 4.3",
            "the operator stops asking: uncertainty settles after about 1000 messages",
            bool(paper.all("calls")[-5:].max() <= 0.02 * paper.parts[0].visits),
            f"{paper.parts[0].calls} calls in problem 1, then "
            + ", ".join(f"{part.calls}" for part in paper.parts[1:6])
            + f"; at most {paper.all('calls')[-5:].max():.0f} of {paper.parts[0].visits:,} "
            "messages in each of the last five",
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
            worst[0] > 0.1,
            f"median problem {np.median(paper.all('worst')):.2f} sd, worst {worst[0]:.2f}, KL "
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
            "the paper's settings ask 500 to 750 times in 30 problems",
            harness.in_part([500 <= count <= 750 for count in [*calls, folded]]),
            ", ".join(map(str, calls)) + f" over {len(calls)} draws of w; with the label folded "
            f"into z {folded}",
        ),
        (
            "aim",
            "targets of the site, nothing else changed: means within .03 sd",
            harness.in_part([value < 0.03 for value in worst[1:]]),
            f"worst {worst[1]:.4f}, median problem {np.median(site.all('worst')):.4f}, KL "
            f"{np.median(site.all('kl')):.1g}; label folded into z: {worst[2]:.4f}; belief "
            f"{worst[0]:.2f}",
        ),
        (
            "aim",
            "dictionary, .01: at most 200 calls in 12 problems, 20 in the last 6 of them; means "
            "within .04 sd, KL median < 1e-3",
            bool(
                dictionary_calls <= 200
                and best.all("calls")[later].sum() <= 20
                and best.all("worst")[first].max() < 0.04
                and np.median(best.all("kl")[first]) < 1e-3
            ),
            f"{dictionary_calls} calls, {best.all('calls')[later].sum():.0f} in the last 6, worst "
            f"{best.all('worst')[first].max():.4f}, KL {np.median(best.all('kl')[first]):.1g}. "
            "Without audits; with one message in 256 audited "
            f"{audited.all('calls')[first].sum():.0f} calls and "
            f"{audited.all('calls')[later].sum():.0f}, of them "
            f"{audited.all('audits')[first].sum():.0f} and "
            f"{audited.all('audits')[later].sum():.0f} audits",
        ),
        (
            "aim",
            "a second fit of the same data asks nothing, of other data at most a tenth",
            harness.in_part([fits[1] == 0, 10 * fits[2] <= fits[0]]),
            f"{fits[0]} calls, then {fits[1]}; the next problem {fits[2]} (dictionary, .01)",
        ),
        (
            "aim",
            "without refits it is worse than that",
            bool(without >= 0.04),
            f"worst {without:.2f} sd",
        ),
    ]


def judge_targets(found: dict[str, Learning], other: list[dict[str, Any]]) -> list[Claim]:
    """What section 3.3 and appendix A say, beside the authors' program; and the other operator."""
    runs = {name: found[name] for name in (BELIEF, MOMENTS, WIDE)}
    worst = {name: np.median(run.all("worst")) for name, run in runs.items()}
    return [
        (
            "section 3.3",
            "to learn E x and E x^2, as the text says, is no worse than mean and log variance",
            bool(worst[MOMENTS] <= 1.1 * worst[BELIEF]),
            "; ".join(
                f"{name}: median problem {worst[name]:.2g} sd, {run.total('calls')} calls, "
                f"{run.refused} refused"
                for name, run in runs.items()
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
    problems, noisy = simulate(0, count)
    if options.quick:
        problems = [p._replace(X=p.X[:40], y=p.y[:40]) for p in problems]
    exact = [fit(problem, "exact") for problem in problems]
    found = {}
    for name, settings in operators().items():
        if options.quick and settings.get("paper"):
            settings = settings | {"features": ("fourier", 30, 50)}
        found[name] = in_sequence(name, problems, exact, **settings)[0]
    rows = [learning.row() for learning in found.values()]
    harness.show(rows, f"{count} problems")

    X_test, free = problems[0].X_test, problems[0].y_test
    means = {name: [p.mean for p in learning.parts] for name, learning in found.items()}
    means["exact EP"] = [scores_of.mean for scores_of in exact]
    tests = {
        name: [
            float(np.mean([np.mean(np.sign(X_test @ mean) != y) for mean in parts]))
            for y in (free, noisy)
        ]
        for name, parts in means.items()
    }
    test_errors = [
        {"operator": name, "noise-free": free, "noisy": noisy}
        for name, (free, noisy) in tests.items()
    ]
    harness.show(test_errors, "test errors, mean over problems")

    calls = [found[BELIEF].total("calls")]
    for seed in range(1, 1 if options.quick else SEEDS):
        others = simulate(seed, count)[0]
        truths = [fit(problem, "exact") for problem in others]
        calls.append(in_sequence(BELIEF, others, truths, **PAPER)[0].total("calls"))

    draws = 1_000 if options.quick else 500_000
    sampling = {
        f"{draws:,} draws of N(0, 200), as in the paper": sampled(draws, PROPOSAL),
        "10,000 draws of the widened cavity": sampled(10_000, None),
    }
    runs = found[BELIEF]
    late = float(np.median((runs.all("seconds") / runs.all("visits"))[-10:]))
    ratios = {what: seconds / late for what, seconds in sampling.items()}
    claims = judge(found, calls, tests, ratios, again(problems, exact))
    more = {"features": ("fourier", 30, 50)} if options.quick else {}
    to_p = [
        row
        for name, settings in backward.OPERATORS.items()
        for row in backward.in_sequence(
            name, problems, **settings | (more if "site" in name else {})
        )
    ]
    other = backward.summary(to_p)
    harness.show(other, "messages to p")
    claims += judge_targets(found, other)
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
        "claims": claims,
        "operators": rows,
        "operators to p": other,
        "test errors": test_errors,
        "by problem": by_problem,
        "trace": trace(problems[:TRACED], 5, **more),
        "sampling, us per message": {k: 1e6 * seconds for k, seconds in sampling.items()},
    }

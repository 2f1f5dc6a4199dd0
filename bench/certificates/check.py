"""Whether post.check() tells fits that are right from fits that are not, and its errors are honest.

    EPFAST_DATA=folder python -m bench check [--quick]        # about 3 min

Part 1: exact EP with prior variance 1 on twelve sets, 4,000 draws: the verdict, and the corrected
means against a check of 200,000 other draws, in standard errors, over some seeds. Part 2: the fits
of the old defaults that failed (prior variance 25, variational minibatches of 10 rows, factorised).
Part 3: factorised posteriors by exact sites, beside the largest correlation of two columns.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np

import epfast
from bench.lib import harness
from bench.lib.datasets import MIXED, SMALL, load_mixed

FAILED = ("ionosphere", "sonar", "wdbc", "fertility", "crabs", "spambase", "adult2000")
OLD = {
    "prior_variance": 25,
    "batch_size": 10,
    "posterior": "factorized",
    "scheme": "variational",
}
#: largest correlation of two columns from which factorised posteriors count as of correlated ones
CORRELATED = 0.92
DRAWS, LONG, LONG_SEED = 4000, 200_000, 10_001


def rows_of(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Standardised rows with a constant, and labels."""
    data = load_mixed(name)
    return data.standardised(), data.y


def row_of(name: str, check: epfast.Check) -> dict[str, Any]:
    """What the tables show of a check."""
    return {
        "set": name,
        "verdict": check.verdict,
        "khat": check.khat,
        "effective": round(check.effective_draws),
        "shift": check.shift,
        "shift_se": check.shift_se,
        "sd_factor": check.sd_factor,
        "log_evidence": check.log_evidence_ep,
        "sampled": check.log_evidence,
    }


def right_fits(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[harness.Claim]]:
    rows, gaps = [], []
    long = 20_000 if options.quick else LONG
    for name in SMALL[-3:] if options.quick else SMALL:
        post = epfast.fit_linear(*rows_of(name))
        reference = post.check(long, rng=LONG_SEED)
        found = []
        for seed in range(1 if options.quick else 10):
            check = post.check(DRAWS, rng=seed)
            found.append((check.mean - reference.mean) / check.mean_se)
            if seed == 0:
                row = row_of(name, check)
        gap = np.abs(np.concatenate(found))
        gaps.append(gap)
        worst = np.abs(reference.shifts).max()
        row |= {"long_shift": worst, "within_2": np.mean(gap < 2), "largest": gap.max()}
        rows.append(row)
    harness.show(rows, "Exact EP, prior variance 1")
    every = np.concatenate(gaps)
    good = [row["verdict"] == "good" for row in rows]
    return rows, [
        (
            "what it promises",
            "says 'good' where exact EP is right",
            all(good),
            f"{sum(good)} / {len(good)}",
        ),
        (
            "what it promises",
            "95 % of corrected means within two standard errors of a long run, all within four",
            bool(np.mean(every < 2) >= 0.95 and every.max() < 4),
            f"{np.mean(every < 2):.3f} of {every.size}, largest {every.max():.2f}",
        ),
    ]


def failed_fits(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[harness.Claim]]:
    rows = []
    for name in FAILED[3:5] if options.quick else FAILED:
        post = epfast.fit_linear(*rows_of(name), **OLD)
        rows.append(row_of(name, post.check(DRAWS)) | {"converged": post.converged})
    harness.show(rows, "The old defaults")
    refused = [row["verdict"] == "do not use" for row in rows]
    evidence = f"{sum(refused)} / {len(refused)}"
    return rows, [
        ("what it promises", "says 'do not use' of every failed fit", all(refused), evidence)
    ]


def mean_field(options: argparse.Namespace) -> tuple[list[dict[str, Any]], list[harness.Claim]]:
    rows = []
    for name in ("haberman", "crabs") if options.quick else MIXED:
        X, y = rows_of(name)
        moving = X[:, X.std(axis=0) > 0.0]
        largest = np.abs(np.corrcoef(moving.T) - np.eye(moving.shape[1])).max()
        post = epfast.fit_linear(X, y, posterior="factorized")
        rows.append(row_of(name, post.check(DRAWS)) | {"correlation": largest})
    harness.show(rows, "Factorised posteriors, exact sites")
    strong = [row["verdict"] for row in rows if row["correlation"] > CORRELATED]
    refused = sum(verdict == "do not use" for verdict in strong)
    return rows, [
        (
            "what it promises",
            "says 'do not use' of mean-field posteriors of strongly correlated columns",
            refused == len(strong),
            f"{refused} / {len(strong)} with a correlation above {CORRELATED}",
        )
    ]


def run(options: argparse.Namespace) -> dict[str, Any]:
    warnings.simplefilter("ignore", epfast.ConvergenceWarning)
    result: dict[str, Any] = {}
    claims: list[harness.Claim] = []
    for part in (right_fits, failed_fits, mean_field):
        result[part.__name__], found = part(options)
        claims += found
    return {"claims": claims, **result}

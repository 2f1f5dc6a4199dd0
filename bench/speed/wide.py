"""Fewer rows than columns: fits and predictions in the n x n form, on one thread.

    python -m bench wide [--quick]           # 1 min; needs no data

Sparse rows, 1 % of whose entries are standard normal; labels by a plane and noise. n = 400 and
d = 5,000 are fitted to the default tolerance with the prior N(0, I), and 1,000 new rows get their
probabilities; beside it scikit-learn's LogisticRegression (lbfgs, C = 1, default tolerance) with
its own, and LinearClassifier, which finds the prior variance by the evidence. All run in this
process, turn by turn. Then the d x d form beside the n x n form where both take little time,
and in a process of its own the peak of the resident memory beyond the rows at d = 100,000.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
from scipy import sparse

import epfast
from bench.lib import harness
from bench.speed.linear_task import fastest, ratio, rounds
from epfast.gaussian import fit_problem
from epfast.gaussian.wide import in_d_by_d

ROWS, COLUMNS, NEW_ROWS = 400, 5_000, 1_000
MOST_SECONDS = 0.5
#: rows and columns of the comparison of the two forms
BOTH = ((50, 200), (150, 200), (150, 600), (300, 600), (450, 600))
#: rows, columns and density of the fit whose memory is measured
LARGE = 300, 100_000, 0.01


def data(n: int, d: int, density: float = 0.01) -> tuple[Any, np.ndarray]:
    """Rows and labels."""
    rng = np.random.default_rng(0)
    X = sparse.random(n, d, density=density, format="csr", random_state=1)
    X.data = rng.standard_normal(X.nnz)
    h = np.asarray(X @ rng.standard_normal(d))
    return X, np.where(h + rng.standard_normal(n) > 0, 1.0, -1.0)


def against_sklearn(options: argparse.Namespace) -> dict[str, Any]:
    """Seconds of fit and predictions."""
    from sklearn.linear_model import LogisticRegression

    X, y = data(ROWS + NEW_ROWS, COLUMNS)
    train, new, y = X[:ROWS], X[ROWS:], y[:ROWS]
    timed = harness.interleave(
        {
            "fit": lambda: epfast.fit_linear(train, y),
            "fit and predict": lambda: epfast.fit_linear(train, y).predict_proba(new),
            "LinearClassifier": lambda: epfast.LinearClassifier().fit(train, y).predict_proba(new),
            "LogisticRegression": lambda: (
                LogisticRegression(fit_intercept=False).fit(train, y).predict_proba(new)
            ),
        },
        **rounds(options),
    )
    harness.table(
        ["what", "ms", "quartiles", "least"],
        [
            (name, 1e3 * t.median, harness.spread(t.scaled(1e3)), 1e3 * min(t.values))
            for name, t in timed.items()
        ],
        f"n = {ROWS}, d = {COLUMNS}, 1 % of the entries; {NEW_ROWS} new rows",
    )
    return timed


def both_forms(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of a fit in each form, dense rows."""
    cells = []
    for n, d in BOTH[:2] if options.quick else BOTH:
        rng = np.random.default_rng(0)
        X = rng.standard_normal((n, d))
        y = np.where(X @ rng.standard_normal(d) > 0, 1.0, -1.0)
        ours = epfast.fit_linear(X, y)
        problem = in_d_by_d(ours.problem)
        timed = harness.interleave(
            {
                "n x n": lambda X=X, y=y: epfast.fit_linear(X, y).mean,
                "d x d": lambda problem=problem: fit_problem(problem).mean,
            },
            **rounds(options),
        )
        gap = np.abs((ours.mean - fit_problem(problem).mean) / np.sqrt(ours.variance)).max()
        over = timed["d x d"].over(timed["n x n"])
        cells.append({"n": n, "d": d, "gap_sd": float(gap), "over": over._asdict()})
        cells[-1]["ms"] = 1e3 * timed["n x n"].median
        cells[-1]["fastest"] = fastest(timed["d x d"], timed["n x n"])
    harness.table(
        ["n", "d", "ms, n x n", "d x d over n x n", "fastest rounds", "gap of the means, sd"],
        [
            (c["n"], c["d"], c["ms"], ratio(harness.Timing(**c["over"])), c["fastest"], c["gap_sd"])
            for c in cells
        ],
        "Both forms, dense rows, logistic",
    )
    return cells


def memory() -> tuple[float, float]:
    """In a process of its own: megabytes of the rows, and of the peak beyond them."""
    warnings.simplefilter("ignore", epfast.DataWarning)
    n, d, density = LARGE
    epfast.fit_linear(*data(50, 500)).predict_proba(data(50, 500)[0])
    X, y = data(n, d, density)
    before = harness.peak_memory(reset=True)
    post = epfast.fit_linear(X, y)
    post.predict_proba(X)
    post.variance  # noqa: B018
    size = X.data.nbytes + X.indices.nbytes
    return size / 2**20, (harness.peak_memory() - before) / 2**20


def run(options: argparse.Namespace) -> dict[str, Any]:
    warnings.simplefilter("ignore", epfast.DataWarning)
    timed = against_sklearn(options)
    cells = both_forms(options)
    rows, peak = harness.in_child(memory)
    whole, rival = timed["fit and predict"], timed["LogisticRegression"]
    print(f"\nn, d, density = {LARGE}: rows {rows:.1f} MB, peak beyond them {peak:.1f} MB")
    claims = [
        (
            "against scikit-learn",
            f"n = {ROWS}, d = {COLUMNS}: at most {MOST_SECONDS:g} s with predictions",
            whole.median <= MOST_SECONDS,
            f"{1e3 * whole.median:.0f} ms, {ratio(whole.over(rival))} times LogisticRegression, "
            f"fastest rounds {fastest(whole, rival):.1f} times",
        ),
        (
            "both forms",
            "the n x n form takes no longer where n < d",
            harness.in_part([c["over"]["median"] >= 1.0 for c in cells]),
            ", ".join(f"{c['n']} x {c['d']}: {c['over']['median']:.1f} times" for c in cells),
        ),
        (
            "memory",
            "d = 100,000: at most 100 MB beyond the rows, where a d x d matrix takes 80 GB",
            peak <= 100.0,
            f"{peak:.1f} MB, rows {rows:.1f} MB",
        ),
    ]
    seconds = {name: t._asdict() for name, t in timed.items()}
    return {"goals": claims, "seconds": seconds, "forms": cells, "rows_mb": rows, "peak_mb": peak}

"""Calls with their defaults on fourteen real data sets, against scikit-learn: held-out log loss.

    EPFAST_DATA=folder python -m bench defaults [--quick] [--splits 3]    # about 20 min

Five-fold stratified cross-validation; numbers are standardised on the rows that are trained on,
categories are 0/1 columns. ``fit_linear`` has a constant column and is compared with
LogisticRegression, whose penalty is the same prior; ``LinearClassifier``, also factorised, and, on
the twelve smaller sets, ``GPClassifier`` with the better of LogisticRegression and
LogisticRegressionCV. A call fails on a set where its log loss is above 1.3 times the rival's + .02.
In every fold the contestants take turns; seconds are those of fitting and predicting, summed over
the folds of a split.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold

import epfast
from bench.lib import harness
from bench.lib.datasets import MIXED, load_mixed

FOLDS = 5
SEED = 20251
#: sets of a quick run, and its folds
QUICK, QUICK_FOLDS = ("fertility", "haberman"), 2
#: sets too large for a process with all its latent values
LARGE = ("spambase", "adult2000")
#: a call fails above so much of the rival's log loss, and so much
FACTOR, MORE = 1.3, 0.02
#: as good as
TIE = 0.002
#: of 14 sets, on how many LinearClassifier() is to be better than each
BETTER = {"LogisticRegression": 11, "LogisticRegressionCV": 9}


class Found(NamedTuple):
    """Probabilities of +1 for new rows, and what a fit says of itself."""

    proba: np.ndarray
    log_evidence: float = float("-inf")
    warned: bool = False


Contestant = Callable[[np.ndarray, np.ndarray, np.ndarray], Found]


def _fit_linear(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> Found:
    """Call epfast.fit_linear with its defaults and an intercept."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        post = epfast.fit_linear(X, y, intercept=True)
    return Found(post.predict_proba(X_test), post.log_evidence, _is_told(caught))


def _is_told(caught: list[Any]) -> bool:
    return any(issubclass(warning.category, epfast.ConvergenceWarning) for warning in caught)


def _classifier(make: Callable[[], Any]) -> Contestant:
    """A contestant from a classifier of scikit-learn's kind."""

    def run(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> Found:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = make().fit(X, y)
        evidence = getattr(model, "log_evidence_", None)
        if evidence is None and isinstance(model, epfast.GPClassifier):
            evidence = model.log_marginal_likelihood_value_
        evidence = float("-inf") if evidence is None else float(evidence)
        return Found(model.predict_proba(X_test)[:, 1], evidence, _is_told(caught))

    return run


def cross_validated() -> Any:
    """LogisticRegressionCV as its documentation has it for probabilities."""
    return LogisticRegressionCV(scoring="neg_log_loss", max_iter=5000)


OURS: dict[str, Contestant] = {
    "fit_linear": _fit_linear,
    "LinearClassifier": _classifier(lambda: epfast.LinearClassifier()),
    "factorized": _classifier(lambda: epfast.LinearClassifier(posterior="factorized")),
    "GPClassifier": _classifier(lambda: epfast.GPClassifier()),
}
LOGISTIC: dict[str, Contestant] = {
    "LogisticRegression": _classifier(lambda: LogisticRegression(max_iter=5000)),
    "LogisticRegressionCV": _classifier(cross_validated),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=MIXED, help="some of the sets")
    parser.add_argument("--splits", type=int, default=1, help="divisions into five folds")
    parser.add_argument("--seed", type=int, default=SEED, help="of the first division")


def try_set(name: str, options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any], int]:
    """Log losses and seconds on one set, and fits with positive evidence that did not warn."""
    data = load_mixed(name)
    contestants = OURS | LOGISTIC
    if name in LARGE:
        contestants = {k: run for k, run in contestants.items() if k != "GPClassifier"}
    losses: dict[str, list[float]] = {key: [] for key in contestants}
    seconds = dict.fromkeys(contestants, 0.0)
    splits, silent = (1 if options.quick else options.splits), 0
    for split in range(splits):
        folds = StratifiedKFold(FOLDS, shuffle=True, random_state=options.seed + split)
        parts = list(folds.split(data.numbers, data.y))[: QUICK_FOLDS if options.quick else FOLDS]
        for train, test in parts:
            mean, sd = data.numbers[train].mean(0), data.numbers[train].std(0)
            scaled = (data.numbers - mean) / np.where(sd > 0.0, sd, 1.0)
            X = np.hstack([scaled, data.levels])
            given = (X[train], data.y[train], X[test])
            for key, run in contestants.items():
                found, took = harness.timed(partial(run, *given))
                losses[key].append(float(log_loss(data.y[test], found.proba, labels=[-1.0, 1.0])))
                seconds[key] += took / splits
                silent += key in OURS and found.log_evidence > 0.0 and not found.warned
    n, d = X.shape
    row = {"set": name, "n": n, "d": d}
    return (
        row | {key: float(np.mean(values)) for key, values in losses.items()},
        row | seconds,
        silent,
    )


def rival_of(call: str, row: dict[str, Any]) -> float:
    """The log loss that a call is measured by."""
    plain = row["LogisticRegression"]
    return plain if call == "fit_linear" else min(plain, row["LogisticRegressionCV"])


def judge(rows: list[dict[str, Any]], silent: int, whole: bool) -> list[harness.Claim]:
    """Return the goals; counts of sets are judged where all sets were run."""
    goals: list[harness.Claim] = []
    for call in OURS:
        tried = [row for row in rows if call in row]
        failed = [
            f"{row['set']} ({row[call]:.3f} against {rival_of(call, row):.3f})"
            for row in tried
            if row[call] > FACTOR * rival_of(call, row) + MORE
        ]
        against = "LogisticRegression" if call == "fit_linear" else "the better logistic regression"
        goals.append(
            (
                call,
                f"never fails beside {against}",
                not failed,
                f"fails on {', '.join(failed)}" if failed else f"{len(tried)} sets",
            )
        )
    for rival, least in BETTER.items():
        slack = TIE if rival == "LogisticRegression" else 0.0
        count = sum(row["LinearClassifier"] < row[rival] + slack for row in rows)
        within = f", or within {TIE}," if slack else ""
        goals.append(
            (
                "LinearClassifier",
                f"below {rival}{within} on {least} of {len(MIXED)} sets",
                count >= least if whole else None,
                f"on {count} of {len(rows)}",
            )
        )
    goals.append(("all", "no positive evidence without a warning", not silent, f"{silent} fits"))
    return goals


def run(options: argparse.Namespace) -> dict[str, Any]:
    names = options.only or (QUICK if options.quick else MIXED)
    rows, seconds, silent = [], [], 0
    for name in names:
        row, took, positive = try_set(name, options)
        rows.append(row)
        seconds.append(took)
        silent += positive
    harness.show(rows, "log loss")
    harness.show(seconds, "seconds for a split")
    goals = judge(rows, silent, len(rows) == len(MIXED))
    return {
        "splits": 1 if options.quick else options.splits,
        "seed": options.seed,
        "goals": goals,
        "log_loss": rows,
        "seconds": seconds,
    }

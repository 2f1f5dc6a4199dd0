"""Calls with their defaults on fourteen real data sets, against scikit-learn: held-out log loss.

    EPFAST_DATA=folder python -m bench users.defaults [--quick] [--only wdbc ...]    # about 35 min

Five-fold stratified cross-validation. All calls get the tables as they are: numbers in their units,
and categories as 0/1 columns. "StandardScaler, ..." is the same in a pipeline that standardises the
columns. ``fit_linear`` has a constant column and is compared with LogisticRegression, whose penalty
is the same prior; ``LinearClassifier``, also factorised, and, on the twelve smaller sets,
``GPClassifier`` with the best of the four logistic regressions. A call fails on a set where its log
loss is above 1.3 times the rival's + .02.
In every fold the contestants take turns; seconds are those of fitting and predicting, summed over
the folds.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

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
BETTER = {
    "LogisticRegression": 11,
    "LogisticRegressionCV": 9,
    "StandardScaler, LogisticRegression": 11,
    "StandardScaler, LogisticRegressionCV": 9,
}


#: probabilities of +1 for new rows, from rows, labels and new rows
Contestant = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def fit_linear(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> np.ndarray:
    return np.asarray(epfast.fit_linear(X, y, intercept=True).predict_proba(X_test))


def classifier(make: Callable[[], Any]) -> Contestant:
    """A contestant from a classifier of scikit-learn's kind."""
    return lambda X, y, X_test: make().fit(X, y).predict_proba(X_test)[:, 1]


def cross_validated() -> Any:
    """LogisticRegressionCV as its documentation has it for probabilities."""
    return LogisticRegressionCV(scoring="neg_log_loss", max_iter=5000)


OURS: dict[str, Contestant] = {
    "fit_linear": fit_linear,
    "LinearClassifier": classifier(epfast.LinearClassifier),
    "factorized": classifier(partial(epfast.LinearClassifier, posterior="factorized")),
    "GPClassifier": classifier(epfast.GPClassifier),
}
RIVALS: dict[str, Callable[[], Any]] = {
    "LogisticRegression": partial(LogisticRegression, max_iter=5000),
    "LogisticRegressionCV": cross_validated,
}


def standardised(make: Callable[[], Any]) -> Contestant:
    """A contestant from a classifier whose columns are standardised before."""
    return classifier(lambda: make_pipeline(StandardScaler(), make()))


LOGISTIC: dict[str, Contestant] = {
    **{key: classifier(make) for key, make in RIVALS.items()},
    **{f"StandardScaler, {key}": standardised(make) for key, make in RIVALS.items()},
}


class HeldOut(NamedTuple):
    """Held-out rows of one set, fold after fold, by contestant."""

    n: int
    d: int
    #: whether the label is +1
    hits: np.ndarray
    proba: dict[str, np.ndarray]
    seconds: dict[str, list[float]]

    def loss_of(self, key: str) -> float:
        return float(log_loss(self.hits, self.proba[key]))


def held_out(name: str, contestants: Mapping[str, Contestant], quick: bool) -> HeldOut:
    """Probabilities of the held-out rows, for which the contestants take turns in every fold."""
    data = load_mixed(name)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=SEED)
    X = np.hstack([data.numbers, data.levels])
    parts = list(folds.split(X, data.y))[: QUICK_FOLDS if quick else FOLDS]
    proba: dict[str, list[np.ndarray]] = {key: [] for key in contestants}
    seconds: dict[str, list[float]] = {key: [] for key in contestants}
    for train, test in parts:
        for key, contestant in contestants.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # on convergence, and on what is to come
                found, took = harness.timed(partial(contestant, X[train], data.y[train], X[test]))
            proba[key].append(found)
            seconds[key].append(took)
    hits = np.concatenate([data.y[test] > 0 for _, test in parts])
    whole = {key: np.concatenate(each) for key, each in proba.items()}
    return HeldOut(*X.shape, hits, whole, seconds)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=MIXED, help="some of the sets")


def rival_of(call: str, row: dict[str, Any]) -> float:
    """The log loss that a call is measured by."""
    if call == "fit_linear":
        return float(row["LogisticRegression"])
    return float(min(row[key] for key in LOGISTIC))


def judge(rows: list[dict[str, Any]], whole: bool) -> list[harness.Claim]:
    """Return the goals; counts of sets are judged where all sets were run."""
    goals: list[harness.Claim] = []
    for call in OURS:
        tried = [row for row in rows if call in row]
        failed = [
            f"{row['set']} ({row[call]:.3f} against {rival_of(call, row):.3f})"
            for row in tried
            if row[call] > FACTOR * rival_of(call, row) + MORE
        ]
        against = "LogisticRegression" if call == "fit_linear" else "the best logistic regression"
        goals.append(
            (
                call,
                f"never fails beside {against}",
                not failed,
                f"fails on {', '.join(failed)}" if failed else f"{len(tried)} sets",
            )
        )
    for rival, least in BETTER.items():
        slack = 0.0 if rival.endswith("CV") else TIE
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
    return goals


def run(options: argparse.Namespace) -> dict[str, Any]:
    rows, seconds = [], []
    for name in options.only or (QUICK if options.quick else MIXED):
        contestants = OURS | LOGISTIC
        if name in LARGE:
            del contestants["GPClassifier"]
        found = held_out(name, contestants, options.quick)
        about = {"set": name, "n": found.n, "d": found.d}
        rows.append(about | {key: found.loss_of(key) for key in contestants})
        seconds.append(about | {key: sum(each) for key, each in found.seconds.items()})
    harness.show(rows, "log loss")
    harness.show(seconds, "seconds")
    goals = judge(rows, len(rows) == len(MIXED))
    return {"seed": SEED, "goals": goals, "log_loss": rows, "seconds": seconds}

"""What a user would pick, beside epfast: log loss, calibration and seconds on seven real data sets.

    EPFAST_DATA=folder python -m bench users.peers [--quick] [--only wdbc ...]    # about 15 min

All sets of ``users.defaults`` with at most 600 rows. Five-fold stratified cross-validation. All
calls get the tables as they are. "StandardScaler, ..." is the same after the columns were
standardised on the rows that are trained on. Linear models: ``LogisticRegression``,
``LogisticRegressionCV``, ``LinearClassifier``, and Stan's NUTS for the model whose prior variance
``LinearClassifier`` chooses by the evidence (standardised columns, sd of the weights half-Cauchy,
1,000 + 1,000 steps of one chain, compilation not counted). Processes with an RBF kernel that each
learns: ``GPClassifier``, scikit-learn's ``GaussianProcessClassifier`` (Laplace approximation), and
GPy's ``GPClassification`` (EP; its nested mode, which converges at each kernel, climbed for an hour
on a fold of ionosphere, and is left out). Stan (pystan) and GPy are left out where they are not
installed.

The calibration error is the mean distance of predicted probabilities from observed shares, over ten
bins with equally many rows, of the probabilities of all held-out rows. A forecast that is right
does not reach 0: "chance" is the mean where labels are drawn by the forecast itself.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
from functools import partial
from typing import Any

import numpy as np
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.gaussian_process.kernels import RBF
from sklearn.preprocessing import StandardScaler

from bench.lib import harness
from bench.users.defaults import (
    LOGISTIC,
    OURS,
    QUICK,
    SEED,
    Contestant,
    classifier,
    held_out,
    standardised,
)

#: those of at most 600 rows
SETS = ("ionosphere", "sonar", "wdbc", "heart", "haberman", "fertility", "crabs")
BINS = 10
#: draws of labels for the calibration error that chance alone makes
DRAWS = 200
STEPS = 1000
STAN = """
data {
  int<lower=0> n; int<lower=1> d; matrix[n, d] X; array[n] int<lower=0, upper=1> y;
}
parameters { vector[d] z; real alpha; real<lower=0> sd; }
transformed parameters { vector[d] theta = sd * z; }
model {
  z ~ std_normal(); alpha ~ normal(0, 10); sd ~ cauchy(0, 1);
  y ~ bernoulli_logit_glm(X, alpha, theta);
}
"""


def by_gpy(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> np.ndarray:
    """A classifier of GPy with its EP."""
    import GPy

    labels = (y[:, None] > 0).astype(float)
    model = GPy.models.GPClassification(X, labels, kernel=GPy.kern.RBF(X.shape[1]))
    model.optimize()
    return np.asarray(model.predict(X_test)[0][:, 0])


def by_stan(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> np.ndarray:
    import stan

    data = {"n": len(y), "d": X.shape[1], "X": X, "y": (y > 0).astype(int)}
    with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
        model = stan.build(STAN, data=data, random_seed=1)
        fit = model.sample(num_chains=1, num_warmup=STEPS, num_samples=STEPS)
    latent = X_test @ fit["theta"] + fit["alpha"]
    return np.asarray((1.0 / (1.0 + np.exp(-latent))).mean(axis=1))


def scaled(contestant: Contestant) -> Contestant:
    """The same, of standardised columns."""

    def call(X: np.ndarray, y: np.ndarray, X_test: np.ndarray) -> np.ndarray:
        scaler = StandardScaler().fit(X)
        return contestant(scaler.transform(X), y, scaler.transform(X_test))

    return call


GAUSSIAN_PROCESSES = (
    "GaussianProcessClassifier, RBF",
    "StandardScaler, GaussianProcessClassifier, RBF",
    "GPy, EP",
    "StandardScaler, GPy, EP",
)
by_laplace = partial(GaussianProcessClassifier, 1.0 * RBF(1.0))
CONTESTANTS: dict[str, Contestant] = {
    **LOGISTIC,
    "Stan, NUTS": scaled(by_stan),
    "LinearClassifier": OURS["LinearClassifier"],
    "GaussianProcessClassifier, RBF": classifier(by_laplace),
    "StandardScaler, GaussianProcessClassifier, RBF": standardised(by_laplace),
    "GPy, EP": by_gpy,
    "StandardScaler, GPy, EP": scaled(by_gpy),
    "GPClassifier": OURS["GPClassifier"],
}


def installed() -> dict[str, Contestant]:
    """Linear models, then processes; Stan's model is compiled, which is kept and not counted."""
    found = dict(CONTESTANTS)
    for module, name in ("stan", "Stan, NUTS"), ("GPy", "GPy, EP"):
        if importlib.util.find_spec(module) is None:
            found = {key: each for key, each in found.items() if not key.endswith(name)}
            print(f"{name} is left out: {module} is not installed")
    if "Stan, NUTS" in found:
        X = np.eye(4)
        by_stan(X, np.sign(X[0] - 0.5), X)
    return found


def calibration_error(hits: np.ndarray, proba: np.ndarray) -> float:
    """Mean distance of predicted probabilities from observed shares over equal bins."""
    parts = np.array_split(np.argsort(proba, kind="stable"), BINS)
    return float(np.mean([abs(hits[part].mean() - proba[part].mean()) for part in parts]))


def by_chance(proba: np.ndarray) -> float:
    """The mean calibration error of a forecast that is right."""
    rng = np.random.default_rng(SEED)
    draws = rng.random((DRAWS, len(proba))) < proba
    return float(np.mean([calibration_error(hits, proba) for hits in draws]))


def try_set(name: str, contestants: dict[str, Contestant], quick: bool) -> list[dict[str, Any]]:
    """A row per contestant."""
    found = held_out(name, contestants, quick)
    return [
        {
            "set": name,
            "n": found.n,
            "d": found.d,
            "call": key,
            "log_loss": found.loss_of(key),
            "calibration_error": calibration_error(found.hits, proba),
            "chance": by_chance(proba),
            "seconds": float(np.median(found.seconds[key])),
        }
        for key, proba in found.proba.items()
    ]


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the sets, a row per contestant; seconds of one fit are their median."""
    found = []
    for call in dict.fromkeys(row["call"] for row in rows):
        mine = [row for row in rows if row["call"] == call]
        first = {row["set"]: row["log_loss"] for row in rows if row["call"] == rows[0]["call"]}
        found.append(
            {
                "call": call,
                "log_loss": float(np.mean([row["log_loss"] for row in mine])),
                "better_than_first": sum(row["log_loss"] < first[row["set"]] for row in mine),
                "calibration_error": float(np.mean([row["calibration_error"] for row in mine])),
                "seconds": float(np.median([row["seconds"] for row in mine])),
            }
        )
    return found


def judge(means: list[dict[str, Any]]) -> list[harness.Claim]:
    """No worse than each rival of its kind: .01 in log loss, .01 in calibration."""
    by_call = {row["call"]: row for row in means}
    goals: list[harness.Claim] = []
    for ours, rivals in (
        ("LinearClassifier", (*LOGISTIC, "Stan, NUTS")),
        ("GPClassifier", GAUSSIAN_PROCESSES),
    ):
        for rival in (key for key in rivals if key in by_call):
            for field, words in ("log_loss", "log loss"), ("calibration_error", "calibration"):
                a, b = by_call[ours][field], by_call[rival][field]
                claim = f"{words} not above that of {rival} by .01"
                goals.append((ours, claim, a < b + 0.01, f"{a:.3f}, {b:.3f}"))
    return goals


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=SETS, help="some of the sets")


def run(options: argparse.Namespace) -> dict[str, Any]:
    rows: list[dict[str, Any]] = []
    contestants = installed()
    for name in options.only or (QUICK if options.quick else SETS):
        rows += harness.show(try_set(name, contestants, options.quick), name)
    means = harness.show(summary(rows), "over the sets")
    return {"seed": SEED, "goals": judge(means), "means": means, "sets": rows}

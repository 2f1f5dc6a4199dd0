"""Fourteen small sets of two classes as a newcomer prepares them: standardised, with a constant.

Columns of numbers are standardised, a missing one takes the mean; columns of words become 0/1
columns per level, the first dropped, standardised too; a constant 1 is appended. The files are
those of :mod:`bench.lib.datasets`, in the folder named by ``EPFAST_DATA``.
"""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.lib.datasets import VARIABLE

#: the label counted as y = +1
POSITIVE = {
    "ionosphere": "g",
    "sonar": "M",
    "wdbc": "M",
    "breast_cancer_wisconsin": "4",
    "pima": "1",
    "heart_statlog": "2",
    "haberman": "2",
    "australian": "1",
    "blood_transfusion": "1",
    "fertility": "O",
    "crabs": "M",
    "banknote": "1",
    "spambase": "spam",
    "adult2000": ">50K",
}
NAMES = tuple(POSITIVE)
#: those with at most 1,372 rows
TWELVE = NAMES[:12]


def load_classic(name: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Rows (n, d + 1) and labels -1 and +1; ``adult2000`` is the first 2,000 rows of Adult."""
    if VARIABLE not in os.environ:
        raise RuntimeError(f"{VARIABLE} is not set; it names the folder with the data sets")
    stem, count = ("adult_train", 2000) if name == "adult2000" else (name, None)
    with gzip.open(Path(os.environ[VARIABLE]) / f"{stem}.csv.gz", "rt", newline="") as file:
        rows = list(csv.reader(file))[1:][:count]
    *columns, labels = zip(*rows, strict=True)
    X = np.concatenate([_columns(np.array(column)) for column in columns], axis=1)
    scale = X.std(axis=0)
    X = (X - X.mean(axis=0)) / np.where(scale > 0.0, scale, 1.0)
    y = np.where(np.array(labels) == POSITIVE[name], 1.0, -1.0)
    return np.column_stack([X, np.ones(len(X))]), y


def _columns(column: NDArray[np.str_]) -> NDArray[np.float64]:
    """Numbers as one column, words as one per level but the first."""
    missing = np.isin(column, ("", "?", "NA"))
    try:
        values = np.where(missing, "nan", column).astype(np.float64)
    except ValueError:
        return (column[:, None] == np.unique(column)[None, 1:]).astype(np.float64)
    return np.where(missing, np.nanmean(values), values)[:, None]

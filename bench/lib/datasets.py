"""The public data sets of the reproduced papers.

The files are read from the folder named by the environment variable ``EPFAST_DATA``; the table in
``bench/README.md`` says where each comes from.

``load_raw`` gives a table with the numbers as published; ``load_mixed`` has numbers and categories
apart; ``load`` gives the five sets of Roche (2016), encoded as in that paper; ``load_mnist`` MNIST;
``load_libsvm`` the Adult and Web sets of Smola et al. (2003).

Roche's encoding, in this order: a categorical feature becomes one 0/1 column per level, its first
level (in sorted order) dropped; every column is centred, then scaled to unit Euclidean norm over
the examples; a constant 1 is appended.  ``?`` in the census data is a level like any other, not a
missing row: only so does the dimension come out as the paper's 101 (its three columns with ``?``
would otherwise lose one level each, d = 98, and 2,399 rows would go).  As ``?`` sorts before the
letters, it is the level that is dropped there.
"""

from __future__ import annotations

import csv
import gzip
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

Array = NDArray[np.float64]

VARIABLE = "EPFAST_DATA"

_BANK = "job marital education default housing loan contact month poutcome"
_CENSUS = "workclass education marital_status occupation relationship race sex native_country"


class _Source(NamedTuple):
    """A table: its shape after the cleaning, and the label that is counted as y = +1."""

    files: str  # without their endings; the rows of several files are put together
    positive: str
    n: int
    d: int
    categorical: str = ""  # columns of categories
    drop: str = ""  # columns that are not features
    sample: int | None = None  # so many rows, drawn with seed 0


_SOURCES = {
    "ionosphere": _Source("ionosphere", "g", 351, 34),
    "sonar": _Source("sonar", "M", 208, 60),
    "wdbc": _Source("wdbc", "M", 569, 30),
    "breast": _Source("breast_cancer_wisconsin", "4", 683, 9),
    "pima": _Source("pima", "1", 768, 8),
    "heart": _Source("heart_statlog", "2", 270, 13),
    "haberman": _Source("haberman", "2", 306, 3),
    "australian": _Source("australian", "1", 690, 14),
    "blood": _Source("blood_transfusion", "1", 748, 4),
    "fertility": _Source("fertility", "O", 100, 9),
    "crabs": _Source("crabs", "M", 200, 6, "sp", "index"),
    "banknote": _Source("banknote", "1", 1372, 4),
    "spambase": _Source("spambase", "spam", 4601, 57),
    "adult2000": _Source("adult_train", ">50K", 2000, 100, _CENSUS, sample=2000),
    "bank": _Source("bank_full", "yes", 45211, 42, _BANK),
    "census": _Source("adult_train", ">50K", 32561, 100, _CENSUS),
    "pima_ripley": _Source("pima_tr pima_te", "Yes", 532, 7),
}

#: the sets on which the defaults are tried, and those of them with at most 1,372 rows
MIXED = tuple(_SOURCES)[:14]
SMALL = MIXED[:12]


def find(stem: str, endings: tuple[str, ...]) -> Path:
    """The data file ``stem`` with one of the endings."""
    where = os.environ.get(VARIABLE)
    if not where:
        raise RuntimeError(
            f"set {VARIABLE} to the folder that holds the data files, e.g. "
            f"{VARIABLE}=~/uci python -m bench table1; "
            f"bench/README.md says where each public file comes from"
        )
    folder = Path(where).expanduser()
    path = next((p for e in endings if (p := folder / (stem + e)).is_file()), None)
    if path is None:
        raise FileNotFoundError(
            f"no {' or '.join(stem + e for e in endings)} in {VARIABLE}={where}; "
            f"bench/README.md says where it comes from and how it is laid out"
        )
    return path


def _read(stem: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """Header and rows (as strings) of the file ``stem``.csv.gz or ``stem``.csv."""
    path = find(stem, (".csv.gz", ".csv"))
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as stream:
        header, *rows = csv.reader(stream)
    return header, [tuple(row) for row in rows]


class Raw(NamedTuple):
    """Features as published, (n, d), and labels in {-1, +1}; no constant column."""

    X: Array
    y: Array
    columns: tuple[str, ...]  # levels are written feature=level


def load_raw(name: str) -> Raw:
    """Load a table without any scaling.

    Rows with an empty cell are left out (16 of ``breast``), and so is the column ``index`` of
    ``crabs``, which counts within the groups. A category becomes one 0/1 column per level, the
    first (in sorted order) dropped. ``adult2000`` is a sample of the census data, with the levels
    of all its rows.

    Raises
    ------
    RuntimeError
        If ``EPFAST_DATA`` is not set, or the file has not the expected shape.
    FileNotFoundError
        If the folder lacks the file.
    """
    if name not in _SOURCES:
        raise ValueError(f"name must be one of {', '.join(_SOURCES)}; got {name!r}")
    source = _SOURCES[name]
    header: list[str] = []
    rows: list[tuple[str, ...]] = []
    for stem in source.files.split():
        header, found = _read(stem)
        rows += [row for row in found if all(row)]
    chosen = np.arange(len(rows))
    if source.sample is not None:
        chosen = np.random.default_rng(0).permutation(len(rows))[: source.sample]
    parts: list[Array] = []
    columns: list[str] = []
    *features, labels = zip(*rows, strict=True)
    for title, values in zip(header, features, strict=False):
        if title in source.categorical.split():
            levels = sorted(set(values))[1:]
            parts += [np.equal(values, level)[chosen].astype(np.float64) for level in levels]
            columns += [f"{title}={level}" for level in levels]
        elif title not in source.drop.split():
            parts.append(np.array(values, dtype=np.float64)[chosen])
            columns.append(title)
    X, kinds = np.stack(parts, axis=1), set(labels)
    if X.shape != (source.n, source.d) or len(kinds) != 2 or source.positive not in kinds:
        raise RuntimeError(
            f"{name}: got shape {X.shape} and labels {sorted(kinds)[:4]}, expected "
            f"{(source.n, source.d)} with {source.positive!r} as one of two labels"
        )
    y = np.where(np.equal(labels, source.positive)[chosen], 1.0, -1.0)
    return Raw(X, y, tuple(columns))


class Mixed(NamedTuple):
    """Numbers as published, (n, p), 0/1 columns of the categories, (n, q), labels in {-1, +1}."""

    numbers: Array
    levels: Array
    y: Array

    def standardised(self) -> Array:
        """All columns with mean 0 and variance 1, and one of ones, (n, p + q + 1)."""
        X = np.hstack([self.numbers, self.levels])
        scale = X.std(axis=0)
        X = (X - X.mean(axis=0)) / np.where(scale > 0.0, scale, 1.0)
        return np.column_stack([X, np.ones(len(X))])


def load_mixed(name: str) -> Mixed:
    """Load a table as :func:`load_raw`, numbers and categories apart."""
    raw = load_raw(name)
    level = np.array(["=" in column for column in raw.columns])
    return Mixed(raw.X[:, ~level], raw.X[:, level], raw.y)


# ---- Roche (2016) ----

NAMES = ("haberman", "ionosphere", "wdbc", "bank", "census")
LARGE = ("bank", "census")


@dataclass(frozen=True)
class Dataset:
    """One encoded data set and the paper's settings for it.

    Attributes
    ----------
    name
        One of ``NAMES``.
    X, y
        Features (n, d), C order, last column constant 1; labels (n,) in {-1, +1}.
    columns
        What each column of ``X`` is.
    batch_size, sweeps
        The paper's minibatch size and number of passes over the data.
    """

    name: str
    X: Array
    y: Array
    columns: tuple[str, ...]
    batch_size: int
    sweeps: int

    def head(self, batches: int) -> Dataset:
        """Return the same with only the first minibatches, for quick runs."""
        keep = batches * self.batch_size
        return replace(self, X=self.X[:keep], y=self.y[:keep])

    def as_scripts(self, seed: int = 0) -> Dataset:
        """Return the data as the author's public scripts prepare them, unlike the paper's text.

        There the constant column has unit norm too (value 1/sqrt(n)), and the large sets are
        shuffled.  Both matter: bench/README.md says where.
        """
        X, y = self.X.copy(), self.y
        X[:, -1] /= np.sqrt(len(X))
        if self.name in LARGE:
            order = np.random.default_rng(seed).permutation(len(y))
            X, y = X[order], y[order]
        return replace(self, X=X, y=y)


def load(name: str) -> Dataset:
    """Load and encode one of ``NAMES``; of ionosphere the first two columns are left out."""
    if name not in NAMES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}; got {name!r}")
    raw = load_raw(name)
    first = 2 if name == "ionosphere" else 0
    X = np.column_stack([raw.X[:, first:], np.ones(len(raw.y))])
    features = X[:, :-1]
    features -= features.mean(axis=0)
    norm = np.sqrt(np.einsum("ij,ij->j", features, features))
    features /= np.where(norm > 0.0, norm, 1.0)  # a constant column stays zero
    batch_size, sweeps = (100, 1) if name in LARGE else (10, 5)
    return Dataset(name, X, raw.y, (*raw.columns[first:], "1"), batch_size, sweeps)


# ---- other tables ----


def load_numbers(name: str) -> Array:
    """All columns of a table of numbers, (n, d + 1), the target last."""
    path = find(name, (".csv.gz", ".csv"))
    return np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2)


def load_labelled(name: str) -> tuple[Array, NDArray[np.str_]]:
    """Columns and labels of a table of any number of classes, the label last.

    A column that is not of numbers becomes one 0/1 column per level, the first level (in sorted
    order) dropped.
    """
    *features, labels = zip(*_read(name)[1], strict=True)
    columns: list[Array] = []
    for values in features:
        try:
            columns.append(np.array(values, dtype=np.float64))
        except ValueError:
            levels = sorted(set(values))[1:]
            columns += [np.equal(values, level).astype(np.float64) for level in levels]
    return np.stack(columns, axis=1), np.array(labels)


#: rows, and columns with the target, of Year; the split is fixed
YEAR, YEAR_TRAINING = (515_345, 91), 463_715


def load_year() -> Array:
    """Year (YearPredictionMSD): 90 columns and the year, the first 463,715 rows to train on."""
    table = load_numbers("year_prediction")
    if table.shape != YEAR:
        raise RuntimeError(f"year_prediction: got shape {table.shape}, expected {YEAR}")
    return table


class Mnist(NamedTuple):
    """Pixels (n, 784), uint8, and digits (n,), of the training and the test set."""

    X: NDArray[np.uint8]
    digit: NDArray[np.uint8]
    X_test: NDArray[np.uint8]
    digit_test: NDArray[np.uint8]


def load_mnist() -> Mnist:
    """Load ``mnist.npz`` (arrays ``x_train``, ``y_train``, ``x_test``, ``y_test``)."""
    with np.load(find("mnist", (".npz",)), allow_pickle=False) as file:
        parts = [file[key] for key in ("x_train", "y_train", "x_test", "y_test")]
    if [len(part) for part in parts] != [60000, 60000, 10000, 10000]:
        raise RuntimeError(f"mnist.npz: got {[part.shape for part in parts]}")
    return Mnist(parts[0].reshape(-1, 784), parts[1], parts[2].reshape(-1, 784), parts[3])


#: features of the LIBSVM sets
LIBSVM = {f"a{k}a": 123 for k in (1, 2, 3, 4, 7, 9)} | {f"w{k}a": 300 for k in (1, 7, 8)}


def load_libsvm(name: str) -> tuple[sparse.csr_matrix, Array]:
    """A LIBSVM text file, a constant column appended."""
    from sklearn.datasets import load_svmlight_file

    path = str(find(name, (".gz",)))
    X, y = load_svmlight_file(path, n_features=LIBSVM[name], zero_based=False)
    return sparse.csr_matrix(sparse.hstack([X, np.ones((len(y), 1))])), np.where(y > 0, 1.0, -1.0)

"""The public data sets of the reproduced papers.

The files are read from the folder named by the environment variable ``EPFAST_DATA``; the table in
``bench/README.md`` says where each comes from.

``load`` gives the five sets of Roche (2016), encoded as in that paper; ``load_raw`` the six of
Table 1 of Li et al. (2015) and others, with the numbers as published; ``load_mixed`` the fourteen
on which the defaults are tried, numbers and categories apart; ``load_mnist`` MNIST;
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

__all__ = [
    "LARGE",
    "LIBSVM",
    "MIXED",
    "NAMES",
    "RAW",
    "SMALL",
    "Dataset",
    "Mixed",
    "Raw",
    "encode",
    "load",
    "load_libsvm",
    "load_mixed",
    "load_mnist",
    "load_raw",
]

VARIABLE = "EPFAST_DATA"


class _Source(NamedTuple):
    """What the paper used, and the shape by which the file is recognised."""

    title: str
    stem: str
    uci: str
    n: int
    d: int
    positive: str  # the label counted as y = +1
    first: int  # leading feature columns to leave out
    categorical: frozenset[str]
    batch_size: int
    sweeps: int


_BANK = "job marital education default housing loan contact month poutcome"
_CENSUS = "workclass education marital_status occupation relationship race sex native_country"

# y = +1 is the class the author's scripts call positive; costs do not depend on the choice.
_SOURCES = {
    "haberman": _Source(
        "Haberman", "haberman", "Haberman's Survival, id 43", 306, 4, "2", 0, frozenset(), 10, 5
    ),
    "ionosphere": _Source(
        "Ionosphere", "ionosphere", "Ionosphere, id 52", 351, 33, "g", 2, frozenset(), 10, 5
    ),
    "wdbc": _Source(
        "Breast cancer",
        "wdbc",
        "Breast Cancer Wisconsin (Diagnostic), id 17",
        *(569, 31, "M", 0, frozenset(), 10, 5),
    ),
    "bank": _Source(
        "Bank marketing",
        "bank_full",
        "Bank Marketing (bank-full), id 222",
        *(45211, 43, "yes", 0, frozenset(_BANK.split()), 100, 1),
    ),
    "census": _Source(
        "Census income",
        "adult_train",
        "Adult (adult.data), id 2",
        *(32561, 101, ">50K", 0, frozenset(_CENSUS.split()), 100, 1),
    ),
}

NAMES = tuple(_SOURCES)
SMALL = ("haberman", "ionosphere", "wdbc")
LARGE = ("bank", "census")


@dataclass(frozen=True)
class Dataset:
    """One encoded data set and the paper's settings for it.

    Attributes
    ----------
    name, title
        Short name (one of ``NAMES``) and the name in the paper's Table 1.
    X, y
        Features (n, d), C order, last column constant 1; labels (n,) in {-1, +1}.
    columns
        What each column of ``X`` is.
    batch_size, sweeps
        The paper's minibatch size and number of passes over the data.
    """

    name: str
    title: str
    X: NDArray[np.float64]
    y: NDArray[np.float64]
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


def _find(stem: str, endings: tuple[str, ...], what: str) -> Path:
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
            f"no {' or '.join(stem + e for e in endings)} in {VARIABLE}={where}: it is "
            f"{what}; bench/README.md says how the file is laid out"
        )
    return path


def _read(stem: str, what: str) -> tuple[list[str], list[tuple[str, ...]]]:
    """Header and columns (as strings) of the file ``stem``.csv.gz or ``stem``.csv."""
    path = _find(stem, (".csv.gz", ".csv"), what)
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="") as stream:
        rows = csv.reader(stream)
        header = next(rows)
        columns = list(zip(*rows, strict=True))
    return header, columns


def encode(
    header: list[str], columns: list[tuple[str, ...]], categorical: frozenset[str] = frozenset()
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Design matrix of the paper from columns of strings (see the module's text).

    Returns
    -------
    X : (n, d) array
    names : tuple of str
        One name per column; levels are written ``feature=level``.
    """
    parts: list[NDArray[np.float64]] = []
    names: list[str] = []
    for name, column in zip(header, columns, strict=True):
        if name in categorical:
            levels = sorted(set(column))
            code = {level: i for i, level in enumerate(levels)}
            coded = np.fromiter((code[v] for v in column), np.intp, len(column))
            parts.append((coded[:, None] == np.arange(1, len(levels))).astype(np.float64))
            names += [f"{name}={level}" for level in levels[1:]]
        else:
            parts.append(np.array(column, dtype=np.float64)[:, None])
            names.append(name)
    X = np.concatenate([*parts, np.ones((len(columns[0]), 1))], axis=1)
    features = X[:, :-1]
    features -= features.mean(axis=0)
    norm = np.sqrt(np.einsum("ij,ij->j", features, features))
    features /= np.where(norm > 0.0, norm, 1.0)  # a constant column stays zero
    return np.ascontiguousarray(X), (*names, "1")


def load(name: str) -> Dataset:
    """Load and encode one of ``NAMES``.

    Raises
    ------
    RuntimeError
        If ``EPFAST_DATA`` is not set, or the file does not encode to the paper's shape.
    FileNotFoundError
        If the folder lacks the file.
    """
    if name not in _SOURCES:
        raise ValueError(f"name must be one of {', '.join(NAMES)}; got {name!r}")
    source = _SOURCES[name]
    header, columns = _read(source.stem, f"UCI's {source.uci}")
    labels = columns[-1]
    y = np.where(np.array(labels) == source.positive, 1.0, -1.0)
    keep = slice(source.first, -1)
    X, names = encode(header[keep], columns[keep], source.categorical)
    if X.shape != (source.n, source.d) or len(set(labels)) != 2 or abs(y.sum()) == source.n:
        raise RuntimeError(
            f"{source.stem}: got shape {X.shape} and labels {sorted(set(labels))[:4]}, expected "
            f"{(source.n, source.d)} with {source.positive!r} as one of two labels; "
            f"is it UCI's {source.uci}?"
        )
    return Dataset(name, source.title, X, y, names, source.batch_size, source.sweeps)


# ------------------------------------------------------------------- Li et al. (2015), Table 1


class _RawSource(NamedTuple):
    """A file of numbers: its shape after the cleaning, and the label counted as y = +1."""

    title: str
    files: tuple[str, ...]  # the rows of several files are put together
    what: str
    n: int
    d: int
    positive: str
    drop: tuple[str, ...] = ()  # columns that are not features


_RAW = {
    "australian": _RawSource(
        *("Australian", ("australian",), "UCI's Statlog Australian Credit, id 143"),
        *(690, 14, "1"),
    ),
    "breast": _RawSource(
        *("Breast", ("breast_cancer_wisconsin",), "UCI's Breast Cancer Wisconsin (Original)"),
        *(683, 9, "4"),
    ),
    "crabs": _RawSource(
        *("Crabs", ("crabs",), "crabs of the R package MASS", 200, 6, "M", ("index",)),
    ),
    "haberman": _RawSource(
        *("Haberman", ("haberman",), "UCI's Haberman's Survival, id 43", 306, 3, "2"),
    ),
    "heart": _RawSource(
        *("Heart", ("heart_statlog",), "UCI's Statlog Heart, id 145", 270, 13, "2"),
    ),
    "ionosphere": _RawSource(
        *("Ionos", ("ionosphere",), "UCI's Ionosphere, id 52", 351, 34, "g"),
    ),
    "pima": _RawSource("Pima", ("pima",), "the Pima Indians diabetes data", 768, 8, "1"),
    "pima_ripley": _RawSource(
        *("Pima (Ripley)", ("pima_tr", "pima_te"), "Pima.tr and Pima.te of the R package MASS"),
        *(532, 7, "Yes"),
    ),
    "sonar": _RawSource("Sonar", ("sonar",), "UCI's Sonar, id 151", 208, 60, "M"),
    "spam": _RawSource("Spam", ("spambase",), "UCI's Spambase, id 94", 4601, 57, "spam"),
}

RAW = tuple(_RAW)


class Raw(NamedTuple):
    """Features as published, (n, d), and labels in {-1, +1}; no constant column."""

    name: str
    title: str
    X: NDArray[np.float64]
    y: NDArray[np.float64]
    columns: tuple[str, ...]


def load_raw(name: str) -> Raw:
    """Load one of ``RAW`` without any scaling.

    Rows with an empty cell are left out (16 of ``breast``), and so is the column ``index`` of
    ``crabs``, which counts within the groups.  Its species becomes 0 and 1.

    Raises
    ------
    RuntimeError
        If ``EPFAST_DATA`` is not set, or the file has not the expected shape.
    FileNotFoundError
        If the folder lacks the file.
    """
    if name not in _RAW:
        raise ValueError(f"name must be one of {', '.join(RAW)}; got {name!r}")
    source = _RAW[name]
    header: list[str] = []
    rows: list[tuple[str, ...]] = []
    for stem in source.files:
        header, columns = _read(stem, source.what)
        rows += [row for row in zip(*columns, strict=True) if all(row)]
    kept = [i for i, column in enumerate(header[:-1]) if column not in source.drop]
    two = {"B": 0.0, "O": 1.0}  # the species of crabs
    X = np.array([[two[row[i]] if row[i] in two else float(row[i]) for i in kept] for row in rows])
    labels = {row[-1] for row in rows}
    y = np.array([1.0 if row[-1] == source.positive else -1.0 for row in rows])
    if X.shape != (source.n, source.d) or len(labels) != 2 or source.positive not in labels:
        raise RuntimeError(
            f"{name}: got shape {X.shape} and labels {sorted(labels)[:4]}, expected "
            f"{(source.n, source.d)} with {source.positive!r} as one of two labels; "
            f"is it {source.what}?"
        )
    return Raw(name, source.title, X, y, tuple(header[i] for i in kept))


# ------------------------------------------------------------------- the defaults, tried as a user


class _MixedSource(NamedTuple):
    """A file: its shape after the cleaning, numbers and 0/1 columns together."""

    stem: str
    positive: str
    n: int
    d: int
    categorical: frozenset[str] = frozenset()
    drop: tuple[str, ...] = ()
    sample: int | None = None  # so many rows, drawn with seed 0


_MIXED = {
    "ionosphere": _MixedSource("ionosphere", "g", 351, 34),
    "sonar": _MixedSource("sonar", "M", 208, 60),
    "wdbc": _MixedSource("wdbc", "M", 569, 30),
    "breast": _MixedSource("breast_cancer_wisconsin", "4", 683, 9),
    "pima": _MixedSource("pima", "1", 768, 8),
    "heart": _MixedSource("heart_statlog", "2", 270, 13),
    "haberman": _MixedSource("haberman", "2", 306, 3),
    "australian": _MixedSource("australian", "1", 690, 14),
    "blood": _MixedSource("blood_transfusion", "1", 748, 4),
    "fertility": _MixedSource("fertility", "O", 100, 9),
    "crabs": _MixedSource("crabs", "M", 200, 6, frozenset({"sp"}), ("index",)),
    "banknote": _MixedSource("banknote", "1", 1372, 4),
    "spambase": _MixedSource("spambase", "spam", 4601, 57),
    "adult2000": _MixedSource(
        *("adult_train", ">50K", 2000, 100, frozenset(_CENSUS.split())), sample=2000
    ),
}

MIXED = tuple(_MIXED)
#: those with at most 1,372 rows
SMALL = MIXED[:12]


class Mixed(NamedTuple):
    """Numbers as published, (n, p), 0/1 columns of the categories, (n, q), labels in {-1, +1}."""

    name: str
    numbers: NDArray[np.float64]
    levels: NDArray[np.float64]
    y: NDArray[np.float64]

    def standardised(self) -> NDArray[np.float64]:
        """All columns with mean 0 and variance 1, and one of ones, (n, p + q + 1)."""
        X = np.hstack([self.numbers, self.levels])
        scale = X.std(axis=0)
        X = (X - X.mean(axis=0)) / np.where(scale > 0.0, scale, 1.0)
        return np.column_stack([X, np.ones(len(X))])


def load_mixed(name: str) -> Mixed:
    """Load one of ``MIXED`` without any scaling.

    Rows with an empty cell are left out (16 of ``breast``), and so is the column ``index`` of
    ``crabs``. A category becomes one 0/1 column per level, the first (in sorted order) dropped.
    ``adult2000`` is a sample of the census data, with the levels of all its rows.

    Raises
    ------
    RuntimeError
        If ``EPFAST_DATA`` is not set, or the file has not the expected shape.
    FileNotFoundError
        If the folder lacks the file.
    """
    if name not in _MIXED:
        raise ValueError(f"name must be one of {', '.join(MIXED)}; got {name!r}")
    source = _MIXED[name]
    header, columns = _read(source.stem, f"the table {source.stem}")
    rows = [row for row in zip(*columns, strict=True) if all(row)]
    all_levels = [sorted(set(column))[1:] for column in zip(*rows, strict=True)]
    if source.sample is not None:
        order = np.random.default_rng(0).permutation(len(rows))[: source.sample]
        rows = [rows[i] for i in order]
    numbers: list[NDArray[np.float64]] = []
    levels: list[NDArray[np.float64]] = []
    columns = list(zip(*rows, strict=True))
    for title, column, known in zip(header[:-1], columns[:-1], all_levels[:-1], strict=True):
        if title in source.categorical:
            found = np.array(column)
            levels += [(found == level).astype(np.float64) for level in known]
        elif title not in source.drop:
            numbers.append(np.array(column, dtype=np.float64))
    labels = {row[-1] for row in rows}
    y = np.array([1.0 if row[-1] == source.positive else -1.0 for row in rows])
    shape = (len(rows), len(numbers) + len(levels))
    if shape != (source.n, source.d) or len(labels) != 2 or source.positive not in labels:
        raise RuntimeError(
            f"{name}: got shape {shape} and labels {sorted(labels)[:4]}, expected "
            f"{(source.n, source.d)} with {source.positive!r} as one of two labels"
        )
    empty = np.empty((len(rows), 0))
    return Mixed(
        *(name, np.stack(numbers, axis=1), np.stack(levels, axis=1) if levels else empty, y)
    )


def load_numbers(name: str) -> NDArray[np.float64]:
    """All columns of a table of numbers, (n, d + 1), the target last."""
    _, columns = _read(name, f"the table {name}")
    return np.array(columns, dtype=np.float64).T


#: rows, and columns with the target, of Year; the split is fixed
YEAR, YEAR_TRAINING = (515_345, 91), 463_715


def load_year() -> NDArray[np.float64]:
    """Year (YearPredictionMSD): 90 columns and the year, the first 463,715 rows to train on."""
    path = _find("year_prediction", (".csv.gz", ".csv"), "Year as CSV with a header")
    table = np.loadtxt(path, delimiter=",", skiprows=1)
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
    with np.load(_find("mnist", (".npz",), "MNIST as one .npz"), allow_pickle=False) as file:
        parts = [file[key] for key in ("x_train", "y_train", "x_test", "y_test")]
    if [len(part) for part in parts] != [60000, 60000, 10000, 10000]:
        raise RuntimeError(f"mnist.npz: got {[part.shape for part in parts]}")
    return Mnist(parts[0].reshape(-1, 784), parts[1], parts[2].reshape(-1, 784), parts[3])


#: features of the LIBSVM sets
LIBSVM = {f"a{k}a": 123 for k in (1, 2, 3, 4, 7, 9)} | {f"w{k}a": 300 for k in (1, 7, 8)}


def load_libsvm(name: str) -> tuple[sparse.csr_matrix, NDArray[np.float64]]:
    """A LIBSVM text file, a constant column appended."""
    path = _find(name, (".gz",), f"the LIBSVM set {name}")
    y, start, column, value = [], [0], [], []
    with gzip.open(path, "rt") as lines:
        for line in lines:
            label, *entries = line.split()
            y.append(1.0 if float(label) > 0 else -1.0)
            for entry in entries:
                index, number = entry.split(":")
                column.append(int(index) - 1)
                value.append(float(number))
            column.append(LIBSVM[name])
            value.append(1.0)
            start.append(len(column))
    return sparse.csr_matrix((value, column, start), (len(y), LIBSVM[name] + 1)), np.array(y)

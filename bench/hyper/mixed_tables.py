"""Tables of mixed models and areas: public ones, what R's packages fit of them, simulated ones."""

from __future__ import annotations

import csv
import re
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from bench.lib import datasets

#: labels that are written as numbers, and categories that are not in alphabetical order
TEXT = {
    "sleepstudy": ("Subject",),
    "cbpp": ("herd", "period"),
    "VerbAgg": ("id",),
    "grouseticks": ("INDEX", "BROOD", "LOCATION", "YEAR"),
    "InstEval": ("s", "d", "dept", "service"),
}
IN_ORDER = {
    "VerbAgg": {"mode": ("want", "do")},
    "bacteria": {"trt": ("placebo", "drug", "drug+")},
    "Salamanders": {
        "spp": ("GP", "PR", "DM", "EC-A", "EC-L", "DES-L", "DF"),
        "mined": ("yes", "no"),
    },
}
#: sds of y in Dyestuff2 by REML: of Batch 0, so that the noise is the sd of y
NO_EFFECT = "Dyestuff2"


class Reference(NamedTuple):
    """What a peer fits: values of names in this package's words, and standard errors of some."""

    data: str
    formula: str
    family: str
    peer: str
    values: dict[str, float]
    errors: dict[str, float]
    seconds: float


def frame(name: str) -> Any:
    """A table as a data frame."""
    import pandas

    path = datasets.find(f"mixed/{name}", (".csv.gz", ".csv"))
    table = pandas.read_csv(path, dtype=dict.fromkeys(TEXT.get(name, ()), str))
    for column, levels in IN_ORDER.get(name, {}).items():
        table[column] = pandas.Categorical(table[column], levels)
    return table


def references() -> list[Reference]:
    """All of ``references.csv``."""
    path = datasets.find("mixed/references", (".csv",))
    with open(path, encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    found = []
    for key in dict.fromkeys((row["data"], row["peer"]) for row in rows):
        mine = [row for row in rows if (row["data"], row["peer"]) == key]
        first, seconds = mine[0], np.nan
        values: dict[str, float] = {}
        errors: dict[str, float] = {}
        for row in mine:
            name = in_our_words(row["what"], first["family"])
            if row["what"] == "cpu seconds":
                seconds = float(row["value"])
            elif name and name != "logLik":
                values[name] = float(row["value"])
                if row["se"]:
                    errors[name] = float(row["se"])
        about = (first[key] for key in ("data", "formula", "family", "peer"))
        found.append(Reference(*about, values, errors, seconds))
    return found


def in_our_words(what: str, family: str) -> str:
    """The name of a quantity of R. "": the family has none."""
    what = what.replace("(Intercept)", "Intercept" if what == "(Intercept)" else "1")
    if what == "sigma":
        return "alpha" if family == "negativebinomial" else ""
    if what == "sd NA|Residual":
        return "sigma"
    name, bar, group = what.partition("|")
    name = re.sub(r"factor\((\w+)\)", r"\1", name).removesuffix("TRUE")
    return name + bar + ":".join(sorted(group.split(":")))


def without_brackets(name: str) -> str:
    """A name of ours as :func:`in_our_words` has it."""
    name, bar, group = name.partition("|")
    return re.sub(r"[\[\]]", "", name) + bar + ":".join(sorted(group.split(":")))


# ---- rows ----


class Rows(NamedTuple):
    """Sparse rows, common columns first, responses, and the columns of each group."""

    X: Any
    y: np.ndarray
    groups: tuple[slice, ...]


def codes(*columns: Any) -> np.ndarray:
    """The number of the level of each row; of several columns together."""
    joined = (
        columns[0] if len(columns) == 1 else [":".join(of) for of in zip(*columns, strict=True)]
    )
    return np.unique(np.asarray(joined), return_inverse=True)[1]


def rows(common: Any, groups: list[np.ndarray], y: Any) -> Rows:
    """Rows of common columns (n, c) and of groups by the numbers of their levels, (n,) each."""
    parts, places, start = [sparse.csr_array(common)], [], common.shape[1]
    n = len(y)
    for of in groups:
        size = int(of.max()) + 1
        one = sparse.csr_array((np.ones(n), of, np.arange(n + 1)), shape=(n, size))
        parts.append(one)
        places.append(slice(start, start + size))
        start += size
    return Rows(sparse.hstack(parts, format="csr"), np.asarray(y, dtype=float), tuple(places))


def binary(rng: np.random.Generator, latent: np.ndarray) -> np.ndarray:
    """Labels -1 and 1."""
    return np.where(rng.random(len(latent)) < 1.0 / (1.0 + np.exp(-latent)), 1.0, -1.0)


def verbagg() -> Rows:
    table = frame("VerbAgg")
    common = [np.ones(len(table)), (table.Anger - table.Anger.mean()) / table.Anger.std()]
    levels = {"Gender": "M", "btype": "scold", "situ": "self", "mode": "do"}
    common += [table[name] == level for name, level in levels.items()]
    common.append(table.btype == "shout")
    y = np.where(table.r2 == "Y", 1.0, -1.0)
    return rows(np.column_stack(common).astype(float), [codes(table.id), codes(table.item)], y)


def insteval(is_binary: bool = False) -> Rows:
    table = frame("InstEval")
    common = np.column_stack([np.ones(len(table)), table.service == "1"]).astype(float)
    groups = [codes(table.s), codes(table.d), codes(table.dept, table.service)]
    y = table.y.to_numpy(dtype=float)
    return rows(common, groups, np.where(y >= 4.0, 1.0, -1.0) if is_binary else y)


def grouseticks() -> Rows:
    table = frame("grouseticks")
    height = (table.HEIGHT - table.HEIGHT.mean()) / table.HEIGHT.std()
    common = [np.ones(len(table)), table.YEAR == "96", table.YEAR == "97", height]
    groups = [codes(table[name]) for name in ("BROOD", "INDEX", "LOCATION")]
    return rows(np.column_stack(common).astype(float), groups, table.TICKS)


def crossed(n: int, levels: int) -> Rows:
    """Labels by two crossed groups."""
    rng = np.random.default_rng(0)
    groups = [rng.integers(0, levels, n) for _ in range(2)]
    latent = sum(
        sd * rng.normal(size=levels)[of] for sd, of in zip((1.0, 0.5), groups, strict=True)
    )
    return rows(np.ones((n, 1)), groups, binary(rng, latent))


def slopes(n: int, levels: int) -> tuple[Any, np.ndarray]:
    """Labels by intercepts and slopes, and the columns of those of each level, (levels, 2)."""
    rng = np.random.default_rng(0)
    of, x = rng.integers(0, levels, n), rng.normal(size=n)
    of[:levels] = np.arange(levels)
    own = rng.normal(size=(levels, 2)) * [0.8, 0.5]
    y = binary(rng, 0.3 + 0.5 * x + own[of, 0] + own[of, 1] * x)
    effects = np.column_stack([np.ones(n), x]).ravel()
    places = np.column_stack([2 * of, 2 * of + 1]).ravel()
    Z = sparse.csr_array((effects, places, 2 * np.arange(n + 1)), shape=(n, 2 * levels))
    return sparse.hstack([np.column_stack([np.ones(n), x]), Z], format="csr"), y


def counts(n: int, levels: int, common: int) -> Rows:
    """Counts by a group, beside common columns."""
    rng = np.random.default_rng(0)
    of, X = (
        rng.integers(0, levels, n),
        np.column_stack([np.ones(n), rng.normal(size=(n, common - 1))]),
    )
    of[:levels] = np.arange(levels)
    latent = (
        X @ np.append(0.2, 0.1 * rng.normal(size=common - 1)) + 0.5 * rng.normal(size=levels)[of]
    )
    return rows(X, [of], rng.poisson(np.exp(latent)))


def rasch(persons: int, items: int, seed: int = 0) -> Rows:
    """Labels of all persons and items; items are common columns."""
    rng = np.random.default_rng(seed)
    person, item = np.repeat(np.arange(persons), items), np.tile(np.arange(items), persons)
    latent = -0.5 + rng.normal(size=persons)[person] + 0.5 * rng.normal(size=items)[item]
    common = np.eye(items)[item]
    return rows(common, [person], binary(rng, latent))


#: how the rows of a table are sorted
SORTED = ("by group", "by a column", "by label", "shuffled")


def informative(columns: int, groups: int, of_each: int, by: str, seed: int) -> Rows:
    """Labels by informative columns and a group; unlike in most tables, each column tells much."""
    rng = np.random.default_rng(seed)
    n, of = groups * of_each, np.repeat(np.arange(groups), of_each)
    X = rng.normal(size=(n, columns))
    slope = rng.normal(size=columns) * rng.uniform(0.3, 2.0)
    effect = rng.normal(size=groups) * rng.uniform(0.2, 3.0)
    y = binary(rng, 0.5 + X @ slope + effect[of])
    order = {
        "by group": np.arange(n),
        "by a column": np.argsort(X[:, 0]),
        "by label": np.argsort(y, kind="stable"),
        "shuffled": rng.permutation(n),
    }[by]
    return rows(np.column_stack([np.ones(n), X])[order], [of[order]], y[order])


def differences(size: int) -> Any:
    """Differences of neighbours, (size - 1, size)."""
    return sparse.diags_array([-1.0, 1.0], offsets=[0, 1], shape=(size - 1, size))


def walk(steps: int, sd: float = 0.2) -> tuple[Any, np.ndarray]:
    """The precision of a random walk from a wide start, and counts at its steps."""
    rng, D = np.random.default_rng(0), differences(steps)
    start = sparse.coo_array(([0.01], ([0], [0])), shape=(steps, steps))
    latent = 0.1 * np.cumsum(sd * rng.normal(size=steps))
    return sparse.csr_array(D.T @ D / sd**2 + start), rng.poisson(np.exp(latent)).astype(float)


def areas(side: int, sd: float = 0.5) -> tuple[Any, np.ndarray]:
    """The intrinsic precision of areas on a grid with a wide proper part, and counts in them."""
    rng, D = np.random.default_rng(0), differences(side)
    L, one = D.T @ D, sparse.eye_array(side)
    Q = (sparse.kron(L, one) + sparse.kron(one, L)) / sd**2 + 1e-3 * sparse.eye_array(side**2)
    at = np.arange(side)
    latent = np.sin(at / 30.0)[:, None] * np.cos(at / 40.0)
    return sparse.csr_array(Q), rng.poisson(np.exp(latent.ravel())).astype(float)

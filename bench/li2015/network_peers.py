"""Networks by probabilistic backpropagation, and what else a user would pick for regression.

    EPFAST_DATA=folder python -m bench li2015.network_peers [--quick] [--sets wine power]

Splits, sets and scaling are those of :mod:`bench.li2015.networks`. Beside epfast's SEP and ADF, 40
passes, each with 50 units (Protein 100): scikit-learn's ``MLPRegressor`` as an ensemble of five,
whose predictive is a Gaussian of their mean, and of their variance plus the squared error of
held-out rows; ``GaussianProcessRegressor`` with a scaled RBF kernel of a width per column and
white noise, its evidence maximised from one start, where there are at most 1,500 rows for it (of
up to 5,000 with ``--all``); ``BayesianRidge``. All see standardised columns and y. Coverage is the
share of test responses within central intervals of 90 %. One thread; seconds of one fit, median.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge
from sklearn.neural_network import MLPRegressor

import epfast
from bench.li2015.networks import SETS, rows_of
from bench.lib import harness
from bench.lib.harness import Claim

Array = NDArray[np.float64]
#: predictive means and standard deviations
Predictive = tuple[Array, Array]

SPLITS, QUICK = 5, ("yacht",)
#: a quantile of the standard normal: intervals of 90 %
Z90 = 1.6448536269514722
#: rows of a process
MOST, ALL = 1500, 5000
MEMBERS = 5


def network(hidden: int, schedule: Any) -> Callable[[Array, Array, Array], Predictive]:
    def fit(X: Array, y: Array, new: Array) -> Predictive:
        model = epfast.NetworkRegressor((hidden,), schedule=schedule).fit(X, y)
        mean, sd = model.predict(new, return_std=True)
        return mean, sd

    return fit


def ensemble(hidden: int) -> Callable[[Array, Array, Array], Predictive]:
    def fit(X: Array, y: Array, new: Array) -> Predictive:
        cut = max(2, len(X) // 10)
        held, rest = slice(0, cut), slice(cut, None)
        members = [
            MLPRegressor(
                hidden_layer_sizes=(hidden,),
                early_stopping=len(X) > 1000,
                max_iter=400,
                random_state=k,
            )
            for k in range(MEMBERS)
        ]
        for member in members:
            member.fit(X[rest], y[rest])
        out = np.mean([member.predict(X[held]) for member in members], axis=0)
        found = np.array([member.predict(new) for member in members])
        noise = np.mean((out - y[held]) ** 2)
        return found.mean(axis=0), np.sqrt(found.var(axis=0) + noise)

    return fit


def process(X: Array, y: Array, new: Array) -> Predictive:
    kernel = ConstantKernel(1.0) * RBF(np.ones(X.shape[1]) * 2.0) + WhiteKernel(0.1)
    model = GaussianProcessRegressor(kernel).fit(X, y)
    mean, sd = model.predict(new, return_std=True)
    return mean, sd


def ridge(X: Array, y: Array, new: Array) -> Predictive:
    mean, sd = BayesianRidge().fit(X, y).predict(new, return_std=True)
    return mean, sd


def scores(mean: Array, sd: Array, y: Array) -> tuple[float, float, float]:
    """RMSE, mean log density, share within intervals of 90 %."""
    z = (y - mean) / sd
    density = -0.5 * (np.log(2.0 * np.pi) + z**2) - np.log(sd)
    error = float(np.sqrt(np.mean((y - mean) ** 2)))
    return error, float(density.mean()), float((np.abs(z) <= Z90).mean())


def compared(name: str, splits: int, most: int) -> list[dict[str, Any]]:
    X, y = rows_of(name)
    hidden = SETS[name].hidden
    methods: dict[str, Callable[[Array, Array, Array], Predictive]] = {
        "epfast, SEP": network(hidden, epfast.SEP(sweeps=40, tol=0.0, order="shuffled")),
        "epfast, ADF": network(hidden, epfast.ADF(passes=40)),
        "MLPRegressor, 5": ensemble(hidden),
        "BayesianRidge": ridge,
    }
    if 0.9 * len(y) <= most:
        methods["GaussianProcessRegressor"] = process
    found: dict[str, list[tuple[float, ...]]] = {method: [] for method in methods}
    for split in range(splits):
        order = np.random.default_rng(split).permutation(len(y))
        train, test = np.split(order, [round(0.9 * len(y))])
        location, scale = X[train].mean(axis=0), X[train].std(axis=0)
        scale[scale == 0.0] = 1.0
        rows, new = ((X[part] - location) / scale for part in (train, test))
        unit, zero = y[train].std(), y[train].mean()
        for method, fit in methods.items():
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                task = partial(fit, rows, (y[train] - zero) / unit, new)
                (mean, sd), seconds = harness.timed(task)
            found[method].append((*scores(zero + unit * mean, unit * sd, y[test]), seconds))
    result = []
    for method, values in found.items():
        table = np.array(values)
        error = table.std(axis=0, ddof=1) / np.sqrt(len(table))
        result.append(
            {
                "set": SETS[name].title,
                "method": method,
                "RMSE": float(table[:, 0].mean()),
                "± RMSE": float(error[0]),
                "log-lik.": float(table[:, 1].mean()),
                "± log-lik.": float(error[1]),
                "within 90 %": float(table[:, 2].mean()),
                "s": float(np.median(table[:, 3])),
            }
        )
    return result


def judge(rows: list[dict[str, Any]]) -> list[Claim]:
    """Which method has the largest log-likelihood, and whether SEP's intervals are right."""
    sets = list(dict.fromkeys(row["set"] for row in rows))
    best = {
        name: max((row for row in rows if row["set"] == name), key=lambda row: row["log-lik."])
        for name in sets
    }
    ours = {row["set"]: row for row in rows if row["method"] == "epfast, SEP"}
    wins = [best[name]["method"].startswith("epfast") for name in sets]
    cover = [abs(ours[name]["within 90 %"] - 0.9) <= 0.05 for name in sets]
    faster = [
        ours[row["set"]]["s"] < row["s"] for row in rows if row["method"].startswith("MLPRegressor")
    ]
    return [
        (
            "peers",
            "ours: largest test log-likelihood",
            harness.in_part(wins),
            ", ".join(f"{name}: {best[name]['method']}" for name in sets),
        ),
        (
            "peers",
            "ours: intervals of 90 % by SEP hold 85 to 95 % of the test responses",
            harness.in_part(cover),
            ", ".join(f"{name} {ours[name]['within 90 %']:.3f}" for name in sets),
        ),
        (
            "peers",
            "ours: SEP takes less time than an ensemble of five networks",
            harness.in_part(faster),
            ", ".join(f"{name} {ours[name]['s']:.3g} s" for name in sets),
        ),
    ]


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sets", nargs="+", choices=SETS, default=None, help="which sets")
    parser.add_argument("--all", action="store_true", help="processes of up to 5,000 rows")


def run(options: argparse.Namespace) -> dict[str, Any]:
    names = options.sets or (QUICK if options.quick else tuple(SETS))
    splits = 2 if options.quick else SPLITS
    rows = [row for name in names for row in compared(name, splits, ALL if options.all else MOST)]
    harness.table(list(rows[0]), [list(row.values()) for row in rows], "Regression, test rows")
    return {"table": rows, "claims": judge(rows)}

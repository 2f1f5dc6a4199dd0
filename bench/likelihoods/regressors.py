"""LinearRegressor and GPRegressor beside scikit-learn's: held-out log predictive, coverage, time.

    EPFAST_DATA=folder python -m bench regressors [--quick] [--only 1 2 3]    # about 5 min

Five-fold cross-validation, columns standardised by the training rows. All contestants have their
defaults, but for a kernel of the same kind where scikit-learn's has no noise.

1. Real numbers, linear: mean log density of held-out y, share of them inside central intervals of
   50, 90 and 95 %, seconds of a fit. HuberRegressor has normal noise of its residuals' spread.
2. Counts: the same beside PoissonRegressor (TweedieRegressor of power 1) with its rate plugged in.
3. Real numbers, processes, at most 250 rows: beside GaussianProcessRegressor.
4. Quantiles: mean pinball loss at .1, .5 and .9 beside QuantileRegressor.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.datasets import load_diabetes
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF, ConstantKernel, WhiteKernel
from sklearn.linear_model import BayesianRidge, HuberRegressor, PoissonRegressor, QuantileRegressor
from sklearn.model_selection import KFold

from bench.lib import datasets, harness
from bench.lib.harness import Claim
from epfast import GPRegressor, LinearRegressor, losses

Array = NDArray[np.float64]
FOLDS, LEVELS = 5, (0.5, 0.9, 0.95)
#: rows at most, of processes and of the others
FEW, MANY = 250, 5000


class Predictive(NamedTuple):
    """What a fit says of held-out rows."""

    #: log density or probability of y, (n,)
    log_density: Callable[[Array], Array]
    #: quantiles of a level, (n,)
    quantile: Callable[[float], Array]


#: training rows, their y, and new rows
Contestant = Callable[[Array, Array, Array], Predictive]


def ours(model: Any) -> Contestant:
    """A regressor of ours."""

    def fit(X: Array, y: Array, new: Array) -> Predictive:
        model.fit(X, y)
        return Predictive(
            lambda held: model.score_samples(new, held),
            lambda level: model.predict_quantile(new, level),
        )

    return fit


def normal(model: Any, *, has_sd: bool = True) -> Contestant:
    """A regressor of scikit-learn with normal noise: its own, or as its residuals spread."""

    def fit(X: Array, y: Array, new: Array) -> Predictive:
        model.fit(X, y)
        if has_sd:
            mean, sd = model.predict(new, return_std=True)
        else:
            mean, sd = model.predict(new), np.std(y - model.predict(X))
        found = stats.norm(mean, sd)
        return Predictive(found.logpdf, found.ppf)

    return fit


def poisson() -> Contestant:
    """scikit-learn's Poisson regression, without and with its penalty."""

    def fit(X: Array, y: Array, new: Array) -> Predictive:
        found = stats.poisson(PoissonRegressor(max_iter=1000).fit(X, y).predict(new))
        return Predictive(found.logpmf, found.ppf)

    return fit


def real(name: str, most: int) -> tuple[Array, Array]:
    """Rows and a response that is a real number."""
    if name == "diabetes":
        X, y = load_diabetes(return_X_y=True)
    else:
        table = datasets.load_numbers(name)
        X, y = table[:, :-1], table[:, -1]
    rows = np.random.default_rng(0).permutation(len(y))[:most]
    return X[rows], y[rows]


def counts(name: str) -> tuple[Array, Array]:
    """Rows and a response that is a count."""
    table = datasets.load_numbers(name)
    if name == "haberman":  # positive nodes by age and year
        return table[:, :2], table[:, 2]
    # donations by the months since the first and last
    return table[:, [0, 3]], table[:, 1] - 1.0


def compare(
    X: Array, y: Array, contestants: dict[str, Contestant], quick: bool
) -> dict[str, dict[str, float]]:
    """Mean log predictive, coverage and seconds of each contestant."""
    if quick:
        X, y = X[:50], y[:50]
    folds = list(KFold(FOLDS, shuffle=True, random_state=0).split(X))
    result = {}
    for name, fit in contestants.items():
        logs, inside, seconds = [], {level: [] for level in LEVELS}, 0.0
        for train, test in folds[:1] if quick else folds:
            center, scale = X[train].mean(axis=0), X[train].std(axis=0)
            rows, new = (
                (X[part] - center) / np.where(scale > 0.0, scale, 1.0) for part in (train, test)
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                found, time = harness.timed(lambda a=rows, b=y[train], c=new, f=fit: f(a, b, c))
            seconds += time
            logs.append(found.log_density(y[test]))
            for level in LEVELS:
                low, high = (found.quantile(0.5 * (1.0 + sign * level)) for sign in (-1.0, 1.0))
                inside[level].append((y[test] >= low) & (y[test] <= high))
        row = {"log predictive": float(np.concatenate(logs).mean())}
        row |= {f"{100 * k:g} %": float(np.concatenate(inside[k]).mean()) for k in LEVELS}
        result[name] = row | {"s": seconds / len(logs)}
    return result


def shown(title: str, found: dict[str, dict[str, dict[str, float]]]) -> list[dict[str, Any]]:
    """Print the table of all sets, and return its rows."""
    rows = [[data, who, *row.values()] for data, of in found.items() for who, row in of.items()]
    names = ["data", "contestant", *next(iter(next(iter(found.values())).values()))]
    return harness.table(names, rows, title)


def no_worse(found: dict[str, dict[str, dict[str, float]]], mine: list[str]) -> tuple[bool, str]:
    """Whether on every set the best of mine is within .01 of the best of the others."""
    gaps = {
        data: max(of[who]["log predictive"] for who in mine)
        - max(row["log predictive"] for who, row in of.items() if who not in mine)
        for data, of in found.items()
    }
    worst = min(gaps, key=lambda data: gaps[data])
    return gaps[worst] >= -0.01, f"least gain {gaps[worst]:.3f} nats a row, {worst}"


def linear(options: argparse.Namespace) -> tuple[Any, list[Claim]]:
    mine: dict[str, Contestant] = {
        name: ours(LinearRegressor(loss=name))
        for name in ("gaussian", "student_t", "laplace_noise")
    }
    others = {"BayesianRidge": normal(BayesianRidge())}
    others["HuberRegressor"] = normal(HuberRegressor(max_iter=10_000), has_sd=False)
    sets = ("diabetes", "boston", "concrete", "yacht", "power_plant", "wine_quality_red")
    found = {}
    for name in sets[: 1 if options.quick else None]:
        found[name] = compare(*real(name, MANY), mine | others, options.quick)
    return shown("Linear, real numbers", found), [
        ("1", "as good as BayesianRidge and HuberRegressor", *no_worse(found, list(mine)))
    ]


def of_counts(options: argparse.Namespace) -> tuple[Any, list[Claim]]:
    mine = {name: ours(LinearRegressor(loss=name)) for name in ("poisson", "negative_binomial")}
    found = {}
    for name in ("blood_transfusion", "haberman")[: 1 if options.quick else None]:
        contestants = mine | {"PoissonRegressor": poisson()}
        found[name] = compare(*counts(name), contestants, options.quick)
    return shown("Counts", found), [
        ("2", "as good as PoissonRegressor", *no_worse(found, list(mine)))
    ]


def processes(options: argparse.Namespace) -> tuple[Any, list[Claim]]:
    kernel = ConstantKernel(1.0, (1e-3, 1e4)) * RBF(3.0, (1e-1, 1e3)) + WhiteKernel(0.5)
    mine = {name: ours(GPRegressor(loss=name)) for name in ("gaussian", "student_t")}
    peer = GaussianProcessRegressor(kernel, normalize_y=True, random_state=0)
    found = {}
    for name in ("diabetes", "boston", "yacht")[: 1 if options.quick else None]:
        contestants = mine | {"GaussianProcessRegressor": normal(peer)}
        found[name] = compare(*real(name, FEW), contestants, options.quick)
    return shown("Processes, real numbers", found), [
        ("3", "as good as GaussianProcessRegressor", *no_worse(found, list(mine)))
    ]


def quantiles(options: argparse.Namespace) -> tuple[Any, list[Claim]]:
    rows, good = [], True
    for name in ("diabetes", "boston", "concrete")[: 1 if options.quick else None]:
        X, y = real(name, 100 if options.quick else MANY)
        folds = list(KFold(FOLDS, shuffle=True, random_state=0).split(X))
        for q in (0.1, 0.5, 0.9):
            lost, seconds = np.zeros(2), np.zeros(2)
            for train, test in folds:
                center, scale = X[train].mean(axis=0), X[train].std(axis=0)
                old, new = (X[train] - center) / scale, (X[test] - center) / scale
                model = LinearRegressor(loss=losses.Quantile(q))
                _, seconds[0] = harness.timed(lambda m=model, a=old, b=y[train]: m.fit(a, b))
                peer = QuantileRegressor(quantile=q, alpha=0.0)
                _, seconds[1] = harness.timed(lambda m=peer, a=old, b=y[train]: m.fit(a, b))
                for k, at in enumerate((model.predict_latent(new)[0], peer.predict(new))):
                    away = y[test] - at
                    lost[k] += (away * (q - (away < 0.0))).sum() / len(y)
            good &= bool(lost[0] <= 1.01 * lost[1])
            rows.append([name, q, *lost, *seconds])
    names = ["data", "q", "ours", "QuantileRegressor", "s", "s, theirs"]
    return harness.table(names, rows, "Pinball loss"), [
        ("4", "pinball loss at most 1.01 times QuantileRegressor's", good, "")
    ]


PARTS = {
    1: ("linear", linear),
    2: ("counts", of_counts),
    3: ("processes", processes),
    4: ("quantiles", quantiles),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    harness.choose_parts(parser, PARTS)


def run(options: argparse.Namespace) -> dict[str, Any]:
    return harness.run_parts(options, PARTS)

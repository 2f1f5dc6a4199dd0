"""Processes: hyper-parameters beside NUTS, and predictions beside the most probable ones.

    EPFAST_DATA=folder python -m bench hyper.processes [--quick] [--nuts PYTHON]    # about 10 min

1. Length scale, sd and noise of processes of up to 100 rows, by fit_hyper_gp and by NUTS: errors of
   means in sds, ratios of sds, seconds. ``--nuts``: samples anew by NumPyro, with an interpreter
   that has it (5 min): its numbers are in ``results/hyper_processes_nuts.json``.
2. Mean log density of held-out y, on the sets of ``bench regressors``: GPRegressor with an average
   over hyper-parameters (always, and by its default, which takes one where it matters), less that
   of the same with the hyper-parameters of the largest evidence. Rows are drawn anew each time.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

import numpy as np
from sklearn.gaussian_process.kernels import RBF, ConstantKernel

import epfast
from bench.hyper import hierarchical, tables
from bench.lib import harness
from bench.likelihoods import regressors
from epfast import priors

STORED = harness.RESULTS / "hyper_processes_nuts.json"
#: means of hyper-parameters within so many sds, beside twice the error of NUTS, sds within this
#: share; an average loses so many nats a row at most
NEAR, FACTOR, LOSES = 0.1, 0.1, 0.01
#: training rows, and how often they are drawn; rows that are held out, at most
DRAWN, HELD = {20: 12, 50: 6, 100: 4}, 300
#: with so many rows or less an average is to be better
FEW = 50
REAL = ("diabetes", "boston", "concrete", "yacht", "power_plant", "wine_quality_red")
COUNTS = ("haberman", "blood_transfusion")


def beside_nuts(name: str, nuts: dict[str, Any]) -> dict[str, Any]:
    """A row: errors in sds of NUTS, and ratios of sds."""
    q, half = tables.load(name), priors.HalfNormal(1.0)
    given: dict[str, Any] = {"learn": {"sd": half}}
    if name == "pima":
        q["y"], given = np.where(q["y"] > 0, 1, -1), {"loss": "probit"}
    known = {"length_scale": priors.Gamma(4.0, 2.0), "sd": priors.HalfNormal(2.0)}
    kernel = ConstantKernel(1.0) * RBF(2.0)

    def fit() -> Any:
        return epfast.fit_hyper_gp(kernel, q["X"], q["y"], priors=known, **given)

    fit()
    post, seconds = harness.timed(fit)
    row = {"data": name, "rows": len(q["y"]), "fits": post.n_fits, "seconds": seconds}
    table, parts = post.hyper, {"effects": [], "sds": []}
    for key in post.hyper_names:
        moments = (np.array([table.loc[key, column]]) for column in ("mean", "sd"))
        parts["sds"].append((*moments, nuts["parameters"][key]))
    if "f" in nuts["parameters"]:
        parts["effects"].append((post.mean, post.sd, nuts["parameters"]["f"]))
    return hierarchical.compared(row, parts, nuts)


def gains(name: str, n: int, draws: int) -> dict[str, Any]:
    """A row: mean gain in log density of an average, always and by default, and its error."""
    counts = name in COUNTS
    X, y = regressors.counts(name) if counts else regressors.real(name, regressors.MANY)
    rng, found = np.random.default_rng(1), []
    fits = {"always": True, "by default": "auto"}
    averaged = 0
    for _ in range(draws):
        rows = rng.permutation(len(y))[: n + HELD]
        train, held = rows[:n], rows[n:]
        center, scale = X[train].mean(0), X[train].std(0)
        seen, new = (
            (X[part] - center) / np.where(scale > 0.0, scale, 1.0) for part in (train, held)
        )
        values = []
        for integrate in (False, *fits.values()):
            model = epfast.GPRegressor(
                loss="negative_binomial" if counts else "gaussian", integrate=integrate
            )
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model.fit(seen, y[train])
                values.append(model.score_samples(new, y[held]).mean())
        averaged += isinstance(model.posterior_, epfast.IntegratedPosterior)
        found.append(np.array(values[1:]) - values[0])
    mean, error = np.mean(found, 0), np.std(found, 0, ddof=1) / np.sqrt(draws)
    row: dict[str, Any] = {"data": name, "rows": n, "draws": draws, "averages by default": averaged}
    for key, gain, off in zip(fits, mean, error, strict=True):
        row |= {f"gain, {key}": float(gain), f"error, {key}": float(off)}
    print(f"{name}, {n} rows: {mean[0]:.3f} and {mean[1]:.3f} nats a row", flush=True)
    return row


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", help="some of the sets")
    parser.add_argument("--nuts", help="an interpreter with NumPyro: sample anew")


def run(options: argparse.Namespace) -> dict[str, Any]:
    stored = hierarchical.stored(STORED, options, tuple(tables.PROCESSES))
    goals: list[harness.Claim] = []
    rows = [beside_nuts(name, stored[name]) for name in tables.PROCESSES if name in stored]
    keys = [key for key in max(rows, key=len) if not key.startswith("ratio beyond")]
    harness.table(keys, [[row.get(key) for key in keys] for row in rows], "beside NUTS")
    for row in rows:
        near, wide = row["beyond noise, sds"], row["ratio beyond noise, sds"]
        claim = f"means of hyper-parameters within {NEAR:g} sd, sds within {100 * FACTOR:g} %"
        holds = near <= NEAR and wide <= FACTOR
        goals.append((row["data"], claim, holds, f"{near:.3f} sd, {wide:.3f}"))
    found = [
        gains(name, n, draws)
        for name in options.only or (REAL[1:2] if options.quick else REAL + COUNTS)
        for n, draws in ({20: 3} if options.quick else DRAWN).items()
    ]
    harness.table(list(found[0]), [list(row.values()) for row in found], "gains in nats a row")
    for key in ("always", "by default"):
        worst = min(found, key=lambda row: row[f"gain, {key}"])
        text = f"{worst[f'gain, {key}']:.3f} nats a row, {worst['data']}, {worst['rows']} rows"
        holds = worst[f"gain, {key}"] >= -LOSES
        goals.append((f"average {key}", "no worse than the largest evidence", holds, text))
        worst = min((r for r in found if r["rows"] <= FEW), key=lambda row: row[f"gain, {key}"])
        text = f"{worst[f'gain, {key}']:.3f} nats a row, {worst['data']}, {worst['rows']} rows"
        claim, holds = f"better with {FEW} rows or less", worst[f"gain, {key}"] > 0.0
        goals.append((f"average {key}", claim, holds, text))
    return {"goals": goals, "processes": rows, "predictions": found}

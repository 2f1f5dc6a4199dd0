"""Models of groups beside NUTS: means in sds, ratios of sds, seconds; and one large group.

    EPFAST_DATA=folder python -m bench hyper.hierarchical [--quick] [--nuts PYTHON]    # about 2 min

``--nuts``: samples anew by NumPyro, with an interpreter that has it (10 min): its numbers are in
``results/hyper_nuts.json``. Its seconds count compilation, for which a user waits, and are those of
a process of one thread.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

import epfast
from bench.hyper import tables
from bench.lib import harness
from epfast import priors

STORED = harness.RESULTS / "hyper_nuts.json"
#: means may be so many sds apart, beside twice the error of NUTS, and sds by this factor
NEAR, FACTOR = 0.05, 0.05
#: of the sds of six crossed factors
NEAR_OF_SIX = 0.1
#: share of the seconds of NUTS; and with Gaussian noise and one or two scales
SHARE, SHARE_OF_GAUSSIAN = 1.0 / 15.0, 1.0 / 100.0
#: rows, levels and seconds of the large group
ROWS, LEVELS, SECONDS = 100_000, 10_000, 30.0
QUICK = ("seeds", "sleep")


class Compared(NamedTuple):
    """What a fit says of the parameters of NUTS: name, its weights as rows, or hyper-parameters."""

    post: Any
    #: rows of the linear map from weights to a parameter, by its name
    maps: dict[str, np.ndarray]
    #: hyper-parameters in the order of the numbers of a parameter, by its name
    hyper: dict[str, list[str]]
    #: whether the noise is Gaussian and there are one or two scales
    is_simple: bool = False


def one_hot(group: Any, size: int) -> np.ndarray:
    return np.eye(size)[np.asarray(group, dtype=int)]


def seeds(q: dict[str, Any]) -> Compared:
    X = np.column_stack([np.ones(21), q["x1"], q["x2"], q["x1"] * q["x2"], np.eye(21)])
    sds = {"sd": (slice(4, 25), priors.InverseGamma(1e-3, 1e-3))}
    y = np.column_stack([q["n"], q["N"]])
    post = epfast.fit_hyper(X, y, loss="binomial", sds=sds, prior_variance=1e6)
    return Compared(post, {"w": np.eye(4, 25), "b": np.eye(25)[4:]}, {"sd": ["sd"]})


def radon(q: dict[str, Any]) -> Compared:
    J, half = int(q["J"]), priors.HalfNormal(1.0)
    n, Z = len(q["log_radon"]), one_hot(q["county_idx"] - 1, J)
    X = np.column_stack([Z, np.ones(n), q["log_uppm"], q["floor_measure"]])
    sds = {"county": (slice(0, J), half)}
    post = epfast.fit_hyper(X, q["log_radon"], sds=sds, learn={"sd": half}, prior_variance=100.0)
    maps = {"a": np.eye(J, J + 3), "w": np.eye(J + 3)[J:]}
    return Compared(post, maps, {"sd": ["county"], "sd_y": ["sd"]}, True)


def sleep(q: dict[str, Any]) -> Compared:
    Z, wide = one_hot(q["person"], 18), priors.HalfNormal(60.0)
    X = np.column_stack([np.ones(180), q["day"], Z, Z * q["day"][:, None]])
    post = epfast.fit_hyper(
        X,
        q["y"],
        sds={"1|p": (slice(2, 20), wide), "x|p": (slice(20, 38), wide)},
        correlations={("1|p", "x|p"): priors.LKJ(2.0)},
        learn={"sd": wide},
        prior_variance=1e6,
    )
    hyper = {"sds": ["1|p", "x|p"], "cor": ["cor 1|p,x|p"], "sd_y": ["sd"]}
    return Compared(post, {"w": np.eye(2, 38), "u": np.eye(38)[2:]}, hyper)


def crossed(q: dict[str, Any], sizes: tuple[int, ...], common: list[np.ndarray]) -> Compared:
    y, start = np.where(q["y"] > 0, 1, -1), len(common)
    columns, sds, maps = list(common), {}, {"w": np.arange(start)}
    for k, size in enumerate(sizes):
        sds[f"u{k}"] = slice(start, start + size), priors.HalfNormal(1.0)
        maps[f"u{k}"], start = np.arange(start, start + size), start + size
        columns.append(one_hot(q["g"][k], size))
    X = np.column_stack(columns)
    post = epfast.fit_hyper(X, y, loss="logistic", sds=sds, prior_variance=100.0)
    return Compared(post, {key: np.eye(start)[at] for key, at in maps.items()}, {"sds": list(sds)})


def election(q: dict[str, Any]) -> Compared:
    return crossed(q, tables.ELECTION, [np.ones(len(q["y"])), q["x"]])


def six(q: dict[str, Any]) -> Compared:
    return crossed(q, tables.SIX, [np.ones(len(q["y"]))])


MODELS: dict[str, Callable[[dict[str, Any]], Compared]] = {
    "seeds": seeds,
    "radon": radon,
    "sleep": sleep,
    "election": election,
    "six": six,
}


def try_model(name: str, nuts: dict[str, Any]) -> dict[str, Any]:
    """A row: errors in sds of NUTS, less twice its own error, and ratios of sds."""
    data = tables.load(name)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", epfast.DataWarning)  # of sds near 0
        MODELS[name](data)
        found, seconds = harness.timed(lambda: MODELS[name](data))
    post, noises = found.post, []
    row = {"model": name, "m": len(post.hyper_names), "fits": post.n_fits, "seconds": seconds}
    # means, sds and those of NUTS
    effects, sds = [], []
    for key, A in found.maps.items():
        mean, variance = post.predict_latent(A)
        effects.append((mean, np.sqrt(variance), nuts["parameters"][key]))
    for key, names in found.hyper.items():
        part = post.hyper.loc[names]
        sds.append((part["mean"].to_numpy(), part["sd"].to_numpy(), nuts["parameters"][key]))
    for kind, parts in (("effects", effects), ("sds", sds)):
        away = np.concatenate([(m - t["mean"]) / t["sd"] for m, _, t in parts])
        noise = np.concatenate([t["error"] for *_, t in parts])
        ratio = np.concatenate([s / t["sd"] for _, s, t in parts])
        row |= {
            f"error of {kind}": float(np.abs(away).max()),
            f"beyond noise, {kind}": float((np.abs(away) - 2.0 * noise).max()),
            f"ratios, {kind}": f"{ratio.min():.3f}-{ratio.max():.3f}",
            # of an sd the sampling error is that of a mean, about, over the root of 2
            f"ratio beyond noise, {kind}": float((np.abs(ratio - 1.0) - 1.4 * noise).max()),
        }
        noises.append(float(noise.max()))
    row |= {"noise of NUTS": max(noises), "NUTS, s": nuts["seconds"]}
    return row | {"times": nuts["seconds"] / seconds, "is_simple": found.is_simple}


def judge(rows: list[dict[str, Any]]) -> list[harness.Claim]:
    goals: list[harness.Claim] = []
    for row in rows:
        near = [row[f"beyond noise, {kind}"] for kind in ("effects", "sds")]
        wide = [row[f"ratio beyond noise, {kind}"] for kind in ("effects", "sds")]
        allowed = (NEAR, NEAR_OF_SIX if row["model"] == "six" else NEAR)
        holds = near[0] <= allowed[0] and near[1] <= allowed[1] and max(wide) <= FACTOR
        text = f"{near[0]:.3f}, {near[1]:.3f} sd, {max(wide):.3f}"
        claim = f"means within {allowed[0]:g}, of sds {allowed[1]:g}, and twice NUTS's error"
        goals.append((row["model"], f"{claim}; sds within {100 * FACTOR:g} %", holds, text))
        least = 1.0 / (SHARE_OF_GAUSSIAN if row["is_simple"] else SHARE)
        text = f"{row['seconds']:.2f} against {row['NUTS, s']:.0f} s"
        goals.append((row["model"], f"{least:g} times as fast", row["times"] >= least, text))
    return goals


def large(rows: int, levels: int) -> list[dict[str, Any]]:
    """Intercepts and slopes of many levels: seconds, and how far the sds are from those drawn."""
    rng, out = np.random.default_rng(8), []
    group, x, n = rng.integers(levels, size=rows), rng.normal(size=rows), np.arange(rows)
    own = rng.multivariate_normal([0.0, 0.0], [[0.64, 0.1], [0.1, 0.16]], size=levels)
    latent = 0.3 + 0.5 * x + own[group, 0] + own[group, 1] * x
    parts = [sparse.csr_array((v, (n, group)), shape=(rows, levels)) for v in (np.ones(rows), x)]
    common = sparse.csr_array(np.column_stack([np.ones(rows), x]))
    X, half = sparse.hstack([common, *parts], format="csr"), priors.HalfNormal(1.0)
    sds = {"1|g": (slice(2, levels + 2), half), "x|g": (slice(levels + 2, None), half)}
    pairs = {("1|g", "x|g"): priors.LKJ(2.0)}
    responses = {
        "gaussian": latent + 0.5 * rng.normal(size=rows),
        "poisson": rng.poisson(np.exp(latent)),
        "logistic": np.where(rng.random(rows) < 1.0 / (1.0 + np.exp(-latent)), 1, -1),
    }
    truth = np.array([0.8, 0.4, 0.1 / 0.32])
    for loss, y in responses.items():
        given = {"loss": loss, "sds": sds, "correlations": pairs}
        given |= {"learn": {"sd": half}} if loss == "gaussian" else {}
        post, seconds = harness.timed(lambda y=y, given=given: epfast.fit_hyper(X, y, **given))
        z = (post.hyper["mean"].to_numpy()[:3] - truth) / post.hyper["sd"].to_numpy()[:3]
        covered = (
            np.abs(own - post.mean[2:].reshape(2, -1).T) < 1.645 * post.sd[2:].reshape(2, -1).T
        )
        row = {"loss": loss, "rows": rows, "levels": levels, "seconds": seconds}
        row |= {"fits": post.n_fits, "largest z": float(np.abs(z).max())}
        out.append({**row, "coverage of 90 %": float(covered.mean())})
    return out


def sampled(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What NUTS says of the models: stored, or sampled anew, each in a process of its own."""
    if not options.nuts:
        return json.loads(STORED.read_text(encoding="utf-8"))["models"]
    found: dict[str, dict[str, Any]] = {}
    script = str(Path(__file__).with_name("nuts.py"))
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "out.json"
            subprocess.run([options.nuts, script, name, str(file)], check=True)
            found[name] = json.loads(file.read_text(encoding="utf-8"))
            print(f"{name}: {found[name]['seconds']:.0f} s")
    document = {**harness.provenance(), "models": found}
    (options.output / STORED.name).write_text(json.dumps(document, indent=1) + "\n")
    return found


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--only", nargs="+", choices=MODELS, help="some of the models")
    parser.add_argument("--nuts", help="an interpreter with NumPyro: sample anew")


def run(options: argparse.Namespace) -> dict[str, Any]:
    nuts = sampled(options)
    names = options.only or (QUICK if options.quick else MODELS)
    rows = harness.show([try_model(name, nuts[name]) for name in names], "beside NUTS")
    size = (ROWS // 20, LEVELS // 20) if options.quick else (ROWS, LEVELS)
    found = harness.show(large(*size), "one large group")
    goals = judge(rows)
    for row in found:
        claim = f"{row['rows']} rows, {row['levels']} levels in {SECONDS:g} s"
        goals.append((row["loss"], claim, row["seconds"] <= SECONDS, f"{row['seconds']:.1f} s"))
    return {"goals": goals, "models": rows, "large": found}

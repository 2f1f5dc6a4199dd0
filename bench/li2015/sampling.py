"""Li et al. (2015), figure 7b: logistic regression, tilted moments by sampling.

    python -m bench sampling [--quick]         # about 2 min; needs no data

The figure has no numbers, and the paper says neither on what data nor how it samples. Here
N = 1000 rows in D = 10 dimensions from a standard normal, weights N(0, 1) and labels from the
model, prior N(0, I); scheme "importance": draws from the cavity, in antithetic pairs, new in every
sweep. ADF (one pass), SEP, its fixed point AEP, and EP, the last with and without damping, each
with moments by quadrature ("exact") and by sampling, over repetitions with data of their own. The
distance is that of the posterior mean from that of EP with exact moments, in its standard
deviations (root mean square over the coordinates; the median over the repetitions), and the error
of the standard deviations; test log-likelihood per datum on 5000 new rows.
"""

from __future__ import annotations

import argparse
import itertools
import warnings
from pathlib import Path
from typing import Any

import numpy as np

import epfast
from bench.lib import harness
from bench.lib.pictures import legend_below, picture

DIMENSION, ROWS, TEST = 10, 1000, 5000
SAMPLES = (None, 100, 1000, 10_000)
METHODS: dict[str, Any] = {
    "ADF": lambda seed: epfast.ADF(),
    "SEP": lambda seed: epfast.SEP(sweeps=60, tol=0.0, damping=0.2, order="shuffled", seed=seed),
    "AEP": lambda seed: epfast.AEP(sweeps=40, tol=0.0),
    "EP": lambda seed: epfast.EP(sweeps=10, tol=0.0),
    "EP, damped": lambda seed: epfast.EP(sweeps=60, tol=0.0, damping=0.2),
}


def simulate(seed: int, n: int, test: int) -> tuple[Any, ...]:
    rng = np.random.default_rng(seed)
    theta = rng.standard_normal(DIMENSION)
    X = rng.standard_normal((n + test, DIMENSION))
    y = np.where(X @ theta + rng.logistic(size=n + test) > 0.0, 1.0, -1.0)
    return X[:n], y[:n], X[n:], y[n:]


def repetition(seed: int, n: int, test: int, samples: tuple) -> list[dict[str, Any]]:
    """One repetition: every method with every kind of moments."""
    X, y, X_test, y_test = simulate(seed, n, test)

    def fit(schedule: Any, count: int | None) -> Any:
        scheme = "exact" if count is None else epfast.ImportanceSampling(count, seed=seed)
        with warnings.catch_warnings():  # a run that does not settle is a result
            warnings.simplefilter("ignore", epfast.ConvergenceWarning)
            return epfast.fit_linear(X, y, scheme=scheme, posterior="full", schedule=schedule)

    truth = fit(METHODS["EP"](seed), None)
    sd = np.sqrt(truth.variance)
    rows = []
    for (method, schedule), count in itertools.product(METHODS.items(), samples):
        post = fit(schedule(seed), count)
        p = post.predict_proba(X_test)
        hit = np.maximum(np.where(y_test > 0, p, 1.0 - p), 1e-300)
        rows.append(
            {
                "method": method,
                "samples": "exact" if count is None else str(count),
                "mean_off": float(np.sqrt((((post.mean - truth.mean) / sd) ** 2).mean())),
                "sd_ratio": float((np.sqrt(post.variance) / sd).mean()),
                "log_likelihood": float(np.log(hit).mean()),
                "seconds": sum(info.seconds for info in post.history),
            }
        )
    return rows


def draw(stored: dict[str, Any], folder: Path) -> None:
    """Figure 7b: how far means are off, and the log-likelihood of new rows, over the draws."""
    with picture(folder / "li2015_sampling.png", 2, size=(4.2, 3.4)) as axes:
        for method, colour in zip(METHODS, ("C1", "C2", "C3", "C4", "C0"), strict=True):
            mine = [row for row in stored["table"] if row["method"] == method]
            exact = next(row for row in mine if row["samples"] == "exact")
            sampled = [row for row in mine if row is not exact]
            at = [int(row["samples"]) for row in sampled]
            for axis, key in zip(axes, ("mean_off", "log_likelihood"), strict=True):
                axis.plot(at, [row[key] for row in sampled], "o-", ms=4, color=colour, label=method)
                if exact[key]:
                    axis.axhline(exact[key], color=colour, ls=":", lw=1.0)
        axes[0].set(yscale="log", title="distance of the mean from EP's, in sd")
        kept = [row["log_likelihood"] for row in stored["table"] if row["log_likelihood"] > -1.0]
        axes[1].set(title="test log-likelihood", ylim=(min(kept) - 0.01, max(kept) + 0.01))
        for axis in axes:
            axis.set(xscale="log", xlabel="draws per site")
        axes[0].plot([], [], "k:", lw=1.0, label="exact moments")
        legend_below(axes[0], 6)


def run(options: argparse.Namespace) -> dict[str, Any]:
    n, test, samples, repetitions = (
        (200, 500, SAMPLES[:2], 1) if options.quick else (ROWS, TEST, SAMPLES, 5)
    )
    runs = [repetition(seed, n, test, samples) for seed in range(repetitions)]
    records = [
        {
            "method": rows[0]["method"],
            "samples": rows[0]["samples"],
            **{
                key: float(np.median([row[key] for row in rows]))
                for key in ("mean_off", "sd_ratio", "log_likelihood", "seconds")
            },
        }
        for rows in zip(*runs, strict=True)
    ]
    harness.show(
        records, f"Logistic regression, N = {n}, D = {DIMENSION}, {repetitions} repetitions"
    )
    found = {(r["method"], r["samples"]): r for r in records}
    few, most = str(samples[1]), str(samples[-1])
    off = {method: found[method, most]["mean_off"] for method in METHODS}
    claims = [
        (
            "7b",
            "sampled moments: EP and SEP are nearer than ADF",
            max(off["EP, damped"], off["SEP"]) < off["ADF"],
            ", ".join(f"{m} {value:.3f} sd off" for m, value in off.items()),
        ),
        (
            "ours",
            "EP needs damping where few samples are drawn",
            found["EP", few]["mean_off"] > 2 * found["EP, damped", few]["mean_off"],
            "; ".join(
                f"{c} samples: {found['EP', c]['mean_off']:.2g} sd off, damped "
                f"{found['EP, damped', c]['mean_off']:.2g}"
                for c in map(str, samples[1:])
            ),
        ),
    ]
    return {"claims": claims, "table": records}

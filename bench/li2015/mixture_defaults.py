"""What ``GaussianMixtureEP(J).fit(X)`` finds, beside scikit-learn's mixtures with ten starts.

    python -m bench mixture_defaults [--quick]          # about 3 min; needs scikit-learn

Random sets of J = 2 .. 6 components in 1 .. 8 dimensions, from overlapping to separated, of any
scale; iris, wine (standardised) and blobs of scikit-learn. Held-out log density and adjusted Rand
index; GaussianMixture and BayesianGaussianMixture with spherical covariances, which differ by
component, where ours are one. A third of iris and wine is held out.
"""

from __future__ import annotations

import argparse
import time
import warnings
from typing import Any

import numpy as np

import epfast
from bench.lib import harness

#: schedule and n_init by which ours is fitted
OURS: dict[str, dict[str, Any]] = {
    "ours": {},
    "ours, EP alone, one start": {"schedule": epfast.EP(sweeps=200, tol=1e-6)},
}


def simulated(seed: int) -> tuple[Any, ...]:
    """Rows, held-out rows with labels, components."""
    rng = np.random.default_rng(1000 + seed)
    J, d = int(rng.integers(2, 7)), int(rng.integers(1, 9))
    weights = rng.dirichlet(np.full(J, 3.0)) if seed % 2 else np.full(J, 1.0 / J)
    mean = (1.0, 2.0, 4.0)[seed % 3] * rng.standard_normal((J, d))
    sd, scale = rng.uniform(0.5, 1.5), 10.0 ** rng.uniform(-2, 2)
    label = rng.choice(J, size=2200, p=weights)
    X = scale * (mean[label] + sd * rng.standard_normal((2200, d)))
    return X[:200], X[200:], label[200:], J


def known_sets() -> dict[str, tuple[Any, ...]]:
    from sklearn import datasets

    found = {}
    for name, (X, y) in (
        ("iris", datasets.load_iris(return_X_y=True)),
        ("wine", datasets.load_wine(return_X_y=True)),
        ("blobs", datasets.make_blobs(600, 3, centers=5, cluster_std=0.8, random_state=0)),
    ):
        X = (X - X.mean(axis=0)) / X.std(axis=0)
        order = np.random.default_rng(0).permutation(len(X))
        out, rest = order[: len(X) // 3], order[len(X) // 3 :]
        found[name] = X[rest], X[out], y[out], len(np.unique(y))
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    from sklearn.metrics import adjusted_rand_score
    from sklearn.mixture import BayesianGaussianMixture, GaussianMixture

    sets = {f"set {k}": simulated(k) for k in range(6 if options.quick else 48)} | known_sets()
    rows = []
    for name, (X, out, label, J) in sets.items():
        peers = {"covariance_type": "spherical", "n_init": 10, "random_state": 0}
        models = {key: epfast.GaussianMixtureEP(J, **given) for key, given in OURS.items()}
        models["GaussianMixture"] = GaussianMixture(J, **peers)
        models["BayesianGaussianMixture"] = BayesianGaussianMixture(
            n_components=J, max_iter=500, **peers
        )
        for method, model in models.items():
            began = time.perf_counter()
            with warnings.catch_warnings():  # a run that does not settle is a result
                warnings.simplefilter("ignore")
                model.fit(X)
            rows.append(
                {
                    "set": name,
                    "method": method,
                    "log_density": float(model.score(out)),
                    "rand": float(adjusted_rand_score(label, model.predict(out))),
                    "seconds": time.perf_counter() - began,
                    "converged": bool(model.converged_),
                }
            )
    names = [row["method"] for row in rows[: len(OURS) + 2]]
    shown = []
    for which in ("set", "iris", "wine", "blobs"):
        for method in names:
            mine = [r for r in rows if r["method"] == method and r["set"].startswith(which)]
            keys = ("log_density", "rand", "seconds", "converged")
            shown.append((which, method, *(float(np.mean([r[key] for r in mine])) for key in keys)))
    harness.table(
        ["data", "method", "log density", "Rand index", "seconds", "converged"], shown, "Held out"
    )
    means = {row[1]: row[2:4] for row in shown if row[0] == "set"}
    ours, peer = means["ours"], means["GaussianMixture"]
    claim = (
        "ours",
        "by default not worse than GaussianMixture with ten starts, held out",
        ours[0] >= peer[0] and ours[1] >= peer[1],
        f"log density {ours[0]:.3f} and {peer[0]:.3f}, Rand index {ours[1]:.3f} and {peer[1]:.3f}",
    )
    return {"claims": [claim], "rows": rows}

"""One pass over two million rows: ADF beside an epoch of SGDClassifier, log loss beside seconds.

    python -m bench one_pass [--quick]        # about a minute

Twenty independent standard normal columns, a logistic model whose weights have length 3.9. ``z`` is
the distance of the posterior mean from the weights that made the data, in posterior standard
deviations: the largest over the columns. Among the rivals is ``the truth``, the log loss of those
weights on the test rows.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.special import expit
from sklearn.linear_model import SGDClassifier

import epfast
from bench.lib import harness

ROWS, QUICK_ROWS, TEST_ROWS, COLUMNS, LENGTH = 2_000_000, 20_000, 100_000, 20, 3.9
#: log loss above the truth that still holds
HOLDS = 0.005
#: standard deviations within which the largest of twenty should be
LARGEST_Z = 6.0


def data(rows: int, seed: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, labels in {-1, +1}, and the weights that made them."""
    rng = np.random.default_rng(seed)
    theta = rng.normal(size=COLUMNS)
    theta *= LENGTH / np.linalg.norm(theta)
    X = rng.normal(size=(rows, COLUMNS))
    return X, np.where(rng.random(rows) < expit(X @ theta), 1.0, -1.0), theta


def loss_of(margins: np.ndarray) -> float:
    """Log loss of log odds times labels."""
    return float(np.logaddexp(0.0, -margins).mean())


def run(options: argparse.Namespace) -> dict[str, Any]:
    X, y, theta = data((QUICK_ROWS if options.quick else ROWS) + TEST_ROWS)
    X_test, y_test = X[-TEST_ROWS:], y[-TEST_ROWS:]
    X, y = X[:-TEST_ROWS], y[:-TEST_ROWS]
    rows: list[dict[str, Any]] = []

    def add(name: str, fit: Callable[[], Any]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", epfast.ConvergenceWarning)
            post, seconds = harness.timed(fit)
        row: dict[str, Any] = {"method": name, "seconds": seconds}
        if hasattr(post, "coef_"):
            row["log loss"] = loss_of(y_test * (X_test @ post.coef_[0] + post.intercept_[0]))
        else:
            proba = post.predict_proba(X_test)
            right = np.where(y_test > 0, proba, 1.0 - proba)
            row["log loss"] = float(-np.log(np.maximum(right, 1e-300)).mean())
            row["z"] = float((np.abs(post.mean - theta) / np.sqrt(post.variance)).max())
        rows.append(row)

    rows.append({"method": "the truth", "log loss": loss_of(y_test * (X_test @ theta))})
    add("fit_linear(X, y, schedule=ADF())", lambda: epfast.fit_linear(X, y, schedule=epfast.ADF()))
    add(
        'posterior="factorized"',
        lambda: epfast.fit_linear(X, y, schedule=epfast.ADF(), posterior="factorized"),
    )
    epoch = SGDClassifier(loss="log_loss", max_iter=1, tol=None, random_state=0)
    add("SGDClassifier, one epoch", lambda: epoch.fit(X, y))
    harness.show(rows, f"{len(y)} rows")
    truth, default, factorized, epoch_row = rows
    gap = default["log loss"] - truth["log loss"]
    goals: list[harness.Claim] = [
        ("ADF", f"log loss within {HOLDS} of the truth", gap <= HOLDS, f"{gap:+.5f}"),
        (
            *("ADF", f"mean within {LARGEST_Z:g} posterior sd of the truth"),
            *(default["z"] <= LARGEST_Z, f"{default['z']:.1f}"),
        ),
        (
            *("ADF, factorized", f"log loss within {HOLDS} of the truth"),
            factorized["log loss"] - truth["log loss"] <= HOLDS,
            f"{factorized['log loss'] - truth['log loss']:+.5f}, z {factorized['z']:.0f}",
        ),
        (
            *("ADF", "log loss at most that of an epoch of SGDClassifier"),
            default["log loss"] <= epoch_row["log loss"],
            f"{default['log loss']:.4f} against {epoch_row['log loss']:.4f}, "
            f"{default['seconds'] / epoch_row['seconds']:.2f} times its seconds",
        ),
    ]
    return {"rows": len(y), "goals": goals, "table": rows}

"""Factorised posteriors of rows whose columns are correlated: sweeps and seconds, on one thread.

    EPFAST_DATA=folder python -m bench factorized [--quick]       (about 2 minutes)

Logistic loss, prior N(0, I), raw columns and one of ones; tolerance 1e-5. By plain sweeps, which
end at a cap, and in the automatic order, which takes steps on all means once sweeps settle slowly:
turn by turn. How far from EP's fixed point the plain sweeps end is told in log evidence. Beside
them columns without correlation, where steps must not cost anything.
"""

from __future__ import annotations

import argparse
import warnings
from functools import partial
from typing import Any

import numpy as np

import epfast
from bench.lib import datasets, harness
from bench.speed.linear_task import fastest, ratio, rounds, synthetic

#: sweeps of the plain order at most, in a full run and in a quick one
MOST, MOST_QUICK = 2000, 200
#: sweeps that the automatic order may take
FEW = 60
SETS = ("crabs", "banknote", "spambase", "adult2000")


def tasks(quick: bool) -> dict[str, tuple[Any, np.ndarray]]:
    """Rows and labels."""
    found: dict[str, tuple[Any, np.ndarray]] = {}
    for name in SETS[:2] if quick else SETS:
        mixed = datasets.load_mixed(name)
        ones = np.ones(len(mixed.y))
        found[name] = np.column_stack([mixed.numbers, mixed.levels, ones]), mixed.y
    if not quick:
        found["a9a"] = datasets.load_libsvm("a9a")
    found["normal"] = synthetic(500 if quick else 5000, 20, "logistic")
    return found


def run(options: argparse.Namespace) -> dict[str, Any]:
    warnings.simplefilter("ignore", epfast.DataWarning)
    warnings.simplefilter("ignore", epfast.ConvergenceWarning)
    most = MOST_QUICK if options.quick else MOST
    cells, goals, times = [], [], {}
    for name, (X, y) in tasks(options.quick).items():
        ways = {
            order: partial(
                epfast.fit_linear,
                *(X, y),
                posterior="factorized",
                schedule=epfast.EP(sweeps=most, order=order),
            )
            for order in ("sequential", "auto")
        }
        plain, found = (fit() for fit in ways.values())
        timed = harness.interleave(ways, **rounds(options))
        over = timed["sequential"].over(timed["auto"])
        least = fastest(timed["sequential"], timed["auto"])
        short = found.log_evidence - plain.log_evidence
        cells.append(
            (name, *X.shape, plain.n_sweeps, found.n_sweeps, ratio(over), least, f"{short:+.2g}")
        )
        times[name] = {order: t._asdict() for order, t in timed.items()}
        goals.append(
            (
                name,
                f"converged within {FEW} sweeps, in no more time than by plain ones",
                found.converged and found.n_sweeps <= FEW and least >= 0.97,
                f"{found.n_sweeps} sweeps; plain ones {ratio(over)} times as long, "
                f"{'' if plain.converged else 'not '}converged",
            )
        )
    rows = harness.table(
        ["rows", "n", "d", "plain sweeps", "sweeps", "plain / automatic", "fastest", "evidence"],
        cells,
        f"Factorised posteriors, at most {most} plain sweeps",
    )
    return {"goals": goals, "seconds": times, "rows": rows}

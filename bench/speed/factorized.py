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
from bench.speed.numpy_ep import synthetic

#: sweeps of the plain order at most, in a full run and in a quick one
MOST, MOST_QUICK = 2000, 200
#: sweeps that the automatic order may take
FEW = 60
SETS = ("crabs", "banknote", "spambase", "adult2000")


def data_sets(quick: bool) -> dict[str, tuple[Any, np.ndarray]]:
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
    rows, goals = [], []
    for name, (X, y) in data_sets(options.quick).items():
        ways = {
            order: partial(
                epfast.fit_linear,
                *(X, y),
                posterior="factorized",
                schedule=epfast.EP(sweeps=most, order=order),
            )
            for order in ("sequential", "auto")
        }
        plain, automatic = (fit() for fit in ways.values())
        timed = harness.interleave(ways, 31, budget=12.0)
        over = timed["sequential"].over(timed["auto"])
        fastest = timed["sequential"].fastest(timed["auto"])
        rows.append(
            {
                "rows": name,
                **dict(zip("nd", X.shape, strict=True)),
                "plain sweeps": plain.n_sweeps,
                "sweeps": automatic.n_sweeps,
                "plain / automatic": str(over),
                "fastest": fastest,
                "evidence": f"{automatic.log_evidence - plain.log_evidence:+.2g}",
            }
        )
        claim = f"converged within {FEW} sweeps, in no more time than by plain ones"
        holds = automatic.converged and automatic.n_sweeps <= FEW and fastest >= 0.97
        said = f"{automatic.n_sweeps} sweeps; plain ones {over} times as long"
        goals.append((name, claim, holds, said))
    harness.show(rows, f"Factorised posteriors, at most {most} plain sweeps")
    return {"goals": goals, "rows": rows}

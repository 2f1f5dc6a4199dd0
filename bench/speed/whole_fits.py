"""What whole fits cost, by revision: Python calls, sweeps, instructions, time, memory.

    python -m bench whole_fits [--label NAME] [--fits NAME ...] [--quick]

Of the epfast that is installed, for six fits with default arguments, in 7 minutes (30 s without
the two of "2,000 x 200" and more); needs valgrind, and no data:

- calls: calls of functions of epfast that are written in Python, in a fit after others;
- sweeps;
- instructions: millions in the second fit, counted by callgrind (not in a quick run);
- time: of the fastest of fifteen turns, over that of a product of two 384 x 384 matrices between
  the turns, which a machine that others use lengthens as well; and in milliseconds;
- memory: megabytes that the second fit takes beyond those that were resident before it.

The rows are stored under a label, in place of older ones of the same label; those of others stay.
The table shows the first and the last label, and how many times the first the last takes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

import epfast
from bench.history import revisions, tasks
from bench.lib import harness
from bench.lib.harness import Claim

#: of the first label's instructions and Python calls, the most that the last may take
MOST = 1.05
PACKAGE = str(Path(epfast.__file__).parent)


def rows(n: int, d: int) -> tasks.Task:
    """Dense rows."""
    X, y = tasks.rows(n, d)
    return lambda: epfast.fit_linear(X, y)


def csr() -> tasks.Task:
    """20 of 5,000 columns in each row, which takes a diagonal covariance."""
    rng = np.random.default_rng(0)
    n, d, cells = 20_000, 5_000, 20
    columns = rng.integers(0, d, size=(n, cells))
    X = sparse.csr_array(
        (rng.normal(size=n * cells), columns.ravel(), np.arange(0, n * cells + 1, cells)), (n, d)
    )
    X.sum_duplicates()
    y = np.where(X @ rng.normal(size=d) + rng.logistic(size=n) > 0, 1.0, -1.0)
    return lambda: epfast.fit_linear(X, y, posterior="factorized")


def process() -> tasks.Task:
    """1,000 values, probit."""
    X, y = tasks.rows(1000, 3)
    K = np.exp(-0.5 * ((X[:, None] - X) ** 2).sum(axis=2))
    return lambda: epfast.fit_gp(K, y)


def classifier() -> tasks.Task:
    """The estimator, which searches the prior variance."""
    X, y = tasks.rows(200, 5)
    return lambda: epfast.LinearClassifier().fit(X, y)


FITS: tasks.Tasks = {
    "200 x 5": lambda: rows(200, 5),
    "LinearClassifier, 200 x 5": classifier,
    "1,000 x 100": lambda: rows(1000, 100),
    "2,000 x 200": lambda: rows(2000, 200),
    "20,000 x 5,000, CSR": csr,
    "process of 1,000": process,
}


def python_calls(task: tasks.Task) -> int:
    """Calls of Python functions of epfast."""
    count = 0

    def watch(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    sys.setprofile(watch)
    try:
        task()
    finally:
        sys.setprofile(None)
    return count


def measured(name: str) -> dict[str, Any]:
    """What a fit costs in a process of its own: calls, sweeps, memory."""
    warnings.simplefilter("ignore")
    task = FITS[name]()
    result: Any = task()
    before = harness.peak_memory(reset=True)
    task()
    return {
        "calls": python_calls(task),
        "sweeps": getattr(result, "n_sweeps", None) or int(np.max(result.n_iter_)),
        "memory": (harness.peak_memory() - before) / 2**20,
    }


def timed(fits: tasks.Tasks) -> dict[str, dict[str, float]]:
    """The time of each fit, over the yardstick's and in milliseconds."""
    warnings.simplefilter("ignore")
    fastest = tasks.fastest(fits)
    yardstick = fastest.pop("")
    return {
        name: {"time": seconds / yardstick, "ms": 1e3 * seconds}
        for name, seconds in fastest.items()
    }


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--label", help="of the rows (default: the commit that is checked out)")
    parser.add_argument("--fits", nargs="+", choices=FITS, default=list(FITS), help="which fits")


def run(options: argparse.Namespace) -> dict[str, Any]:
    show = ("git", "-C", revisions.ROOT, "show", "-s", "--abbrev=7", "--format=%h")
    label = options.label or revisions.output(*show).strip()
    chosen = {name: FITS[name] for name in options.fits[: 2 if options.quick else None]}
    found = {name: harness.in_child(measured, name) for name in chosen}
    for name, times in ({} if options.quick else timed(chosen)).items():
        found[name] |= times
    if not options.quick and shutil.which("valgrind"):
        with tempfile.TemporaryDirectory() as folder:
            script = (sys.executable, Path(__file__), "--only", *chosen)
            for name, count in revisions.counted(script, revisions.ROOT, Path(folder)).items():
                found[name]["instructions"] = count
    stored = options.output / f"{options.result}.json"
    old = json.loads(stored.read_text(encoding="utf-8"))["fits"] if stored.exists() else []
    kept = [row for row in old if row["label"] != label or row["fit"] not in found]
    fits = kept + [{"label": label, "fit": name, **row} for name, row in found.items()]
    first = fits[0]["label"]
    cells: list[dict[str, Any]] = []
    goals: list[Claim] = []
    for name in chosen:
        start, last = (
            next(row for row in fits if (row["label"], row["fit"]) == (which, name))
            for which in (first, label)
        )
        for quantity in set(start) & set(last) - {"label", "fit"}:
            ratio = last[quantity] / start[quantity] if start[quantity] else None
            values = {first: start[quantity], label: last[quantity]}
            cells.append({"fit": name, "quantity": quantity} | values | {"ratio": ratio})
            if first != label and ratio and quantity in ("calls", "instructions"):
                claim = f"at most {MOST} times the {quantity} of {first}"
                goals.append((name, claim, ratio <= MOST, f"{ratio:.2f} times"))
    harness.show(cells, "Whole fits")
    return {"fits": fits, **({"goals": goals} if goals else {})}


if __name__ == "__main__":
    tasks.main(FITS)

"""What the scripts share: the runner, one thread, one core, interleaved timing, tables and JSON.

A script is a module with ``run(options)``, which prints its tables and returns what is stored:
lists of records, and under ``claims`` and ``goals`` the verdicts. It may have
``arguments(parser)``, which adds options to the common ones, and ``draw(stored, folder)``, which
draws its pictures from what is stored.

``bench.__main__`` imports this before NumPy: it fixes the number of BLAS threads of the process.
Nothing here or in the scripts takes a private name of epfast, or patches one.
"""

from __future__ import annotations

import os

for _variable in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[_variable] = "1"

# ruff: noqa: E402  (the lines above must come first)
import argparse
import dataclasses
import datetime
import gc
import json
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

import epfast

RESULTS = Path(__file__).parents[1] / "results"
ROOT = RESULTS.parents[1]

SHORT = {"laplace": "LA", "quick_laplace": "QLA", "quadrature": "GQ", "variational": "VQ"}

#: where, the claim, whether it holds (None: in part), evidence and reason
Claim = tuple[str, str, bool | None, str]

T = TypeVar("T")

#: whether the run is to show only that the script works: tasks are timed twice
_quick = False


def scheme(name: str, curvature: str = "exact") -> epfast.schemes.Scheme:
    """Return the scheme of that name; the curvature is a choice of the two Laplaces."""
    numbers = {"curvature": curvature} if name in ("laplace", "quick_laplace") else {}
    return epfast.schemes.NAMED[name](**numbers)


# ---- times and memory ----

#: the clock of the scripts: seconds of the processor, which other processes do not lengthen
now = time.process_time


def timed(task: Callable[[], T]) -> tuple[T, float]:
    """Return what a task returns, and its seconds: for one that is too long to repeat."""
    start = now()
    result = task()
    return result, now() - start


@dataclasses.dataclass(frozen=True)
class Timing:
    """The values of the rounds in their order, with their median and quartiles."""

    median: float
    q1: float
    q3: float
    values: tuple[float, ...]

    def scaled(self, factor: float) -> Timing:
        """Return the same timing in another unit."""
        return summarize([factor * value for value in self.values])

    def over(self, other: Timing) -> Timing:
        """Return the quotients, round by round: what disturbs both sides of a round cancels."""
        pairs = zip(self.values, other.values, strict=False)  # a slow task runs in fewer rounds
        return summarize([mine / theirs for mine, theirs in pairs])

    def fastest(self, other: Timing) -> float:
        """Return the quotient of the fastest rounds, more stable on a busy machine."""
        return min(self.values) / min(other.values)

    def __str__(self) -> str:
        """Show the median with the quartiles."""
        return f"{figure(self.median)} ({figure(self.q1)}-{figure(self.q3)})"


def summarize(values: Sequence[float]) -> Timing:
    """Median and quartiles of a sample."""
    if len(values) < 2:
        return Timing(values[0], values[0], values[0], tuple(values))
    q1, q2, q3 = statistics.quantiles(values, n=4, method="inclusive")
    return Timing(q2, q1, q3, tuple(values))


def interleave(
    tasks: Mapping[Any, Callable[[], object]],
    rounds: int = 9,
    least: float = 0.02,
    budget: float = 5.0,
) -> dict[Any, Timing]:
    """Time callables against each other: every round runs each of them once, in turn.

    A short task is repeated within its turn until it lasts ``least`` seconds; a task that takes
    long runs in fewer rounds (at least three), so as not to use more than ``budget`` seconds.
    The garbage collector is off meanwhile.
    """
    if _quick:
        rounds, least = 2, 0.0
    repeats, turns = {}, {}
    for name, task in tasks.items():
        once = np.inf
        for _ in range(2):  # the first call warms caches and pages up; long tasks skip the second
            once = min(once, timed(task)[1])
            if once > 0.5:
                break
        repeats[name] = max(1, round(least / max(once, 1e-9)))
        turns[name] = max(min(3, rounds), min(rounds, int(budget / (once * repeats[name] + 1e-9))))
    seconds: dict[str, list[float]] = {name: [] for name in tasks}
    collected = gc.isenabled()
    gc.disable()
    try:
        for turn in range(rounds):
            for name, task in tasks.items():
                if turn >= turns[name]:
                    continue
                start = now()
                for _ in range(repeats[name]):
                    task()
                seconds[name].append((now() - start) / repeats[name])
    finally:
        if collected:
            gc.enable()
    return {name: summarize(values) for name, values in seconds.items()}


def peak_memory(reset: bool = False) -> int:
    """Most bytes that were resident at a time in this process, since the last reset on Linux."""
    try:
        if reset:
            Path("/proc/self/clear_refs").write_text("5")
        with open("/proc/self/status") as file:
            return next(1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    except OSError:  # not Linux
        import resource

        unit = 1 if sys.platform == "darwin" else 1024
        return unit * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def in_child(function: Callable[..., T], *arguments: Any) -> T:
    """Return what a function of a module returns in a fresh process, with memory of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(function, *arguments).result()


@contextmanager
def all_cores() -> Iterator[None]:
    """Leave the one core of the scripts for all of them."""
    if not hasattr(os, "sched_getaffinity"):
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


# ---- the runner ----


def machine() -> dict[str, Any]:
    """Return what the numbers depend on: processor, libraries, instruction sets in use."""
    model = platform.processor()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    found = np.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", [])
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numpy_simd": found[-1] if found else "baseline",
        "epfast": epfast.backend.build_config(),
    }


def provenance() -> dict[str, Any]:
    """Return the commit ("+" where the library differs from it), the day, the machine."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(ROOT), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "--short=10", "HEAD")
        commit += "+" if git("status", "--porcelain", "--", "src") else ""
    except (OSError, subprocess.CalledProcessError):
        commit = ""  # not a clone
    day = datetime.datetime.now(datetime.UTC).date().isoformat()
    return {"commit": commit, "date": day, "machine": machine()}


def run(script: ModuleType, name: str, result: str, arguments: Sequence[str]) -> None:
    """Run a script pinned to one core, judge its claims, store what it returns, and draw.

    A quick run shows that the script works: it is not pinned, judges nothing, and writes to the
    folder that it is told, or to a temporary one.
    """
    about = (script.__doc__ or "").splitlines()[0]
    parser = argparse.ArgumentParser(prog=f"python -m bench {name}", description=about)
    parser.add_argument("--quick", action="store_true", help="a short run, to see that it works")
    parser.add_argument(
        "--output",
        type=Path,
        help="folder for the JSON and PNG files (default: results/; with --quick a temporary one)",
    )
    parser.add_argument("--core", type=int, default=None, help="core to run on (default: last)")
    if hasattr(script, "draw"):
        parser.add_argument("--draw", action="store_true", help="pictures of stored results alone")
    if hasattr(script, "arguments"):
        script.arguments(parser)
    options = parser.parse_args(arguments, argparse.Namespace(result=result))
    if options.output is None:
        options.output = Path(tempfile.mkdtemp(prefix="bench_")) if options.quick else RESULTS
    options.output.mkdir(parents=True, exist_ok=True)
    if not getattr(options, "draw", False):
        store(script, options)
    if hasattr(script, "draw"):
        path = options.output / f"{options.result}.json"
        script.draw(json.loads(path.read_text(encoding="utf-8")), options.output)


def store(script: ModuleType, options: argparse.Namespace) -> None:
    """Run a script, judge its claims, and write what it returns."""
    global _quick
    _quick = options.quick
    if not options.quick and hasattr(os, "sched_setaffinity"):
        cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {max(cores) if options.core is None else options.core})
    document = {**provenance(), "quick": options.quick}  # of the tree as it was imported
    about = document["machine"]
    print(
        f"machine: {about['cpu']}, one thread; Python {about['python']}, NumPy {about['numpy']} "
        f"({about['numpy_simd']}); epfast {about['epfast']['version']} "
        f"(SIMD {about['epfast']['simd']})"
    )
    found = script.run(options)
    for key, (title, *words) in VERDICTS.items():
        if options.quick:
            found.pop(key, None)
        elif key in found:
            verdicts(found[key], title, words)
    path = options.output / f"{options.result}.json"
    document |= found
    path.write_text(json.dumps(document, indent=1, default=_plain) + "\n", encoding="utf-8")
    print(f"wrote {path}")


#: a part of a script: it returns what is stored under the part's name, and its verdicts
Part = Callable[[argparse.Namespace], tuple[Any, list[Claim]]]


def choose_parts(parser: argparse.ArgumentParser, parts: Mapping[str, Part]) -> None:
    """Add the option by which some of a script's parts are run."""
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts), help="which parts")


def run_parts(options: argparse.Namespace, parts: Mapping[str, Part]) -> dict[str, Any]:
    """Run the parts asked for; some of them do not overwrite the results of all."""
    found: dict[str, Any] = {}
    goals: list[Claim] = []
    for name in options.only:
        found[name], judged = parts[name](options)
        goals += judged
    if len(options.only) < len(parts):
        options.result = "_".join([options.result, *options.only])
    return {**found, "goals": goals}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return dataclasses.asdict(value) if isinstance(value, Timing) else str(value)


# ---- tables and verdicts ----

Record = dict[str, Any]


def show(rows: Iterable[Record], title: str = "") -> list[Record]:
    """Print records as an aligned table and return them: what a script stores, and pages show.

    Text goes to the left, everything else to the right. Lists and dictionaries are not shown.
    """
    rows = list(rows)
    keys = [
        key
        for key in dict.fromkeys(key for row in rows for key in row)
        if not any(isinstance(row.get(key), (list, tuple, dict, np.ndarray)) for row in rows)
    ]
    print(f"\n{title}")
    columns = []
    for key in keys:
        values = [row.get(key) for row in rows]
        cells = [str(key).replace("_", " ")]
        cells += [value if isinstance(value, str) else figure(value) for value in values]
        width = max(map(len, cells))
        cells.insert(1, "-" * width)
        is_text = all(isinstance(value, str) for value in values)
        columns.append([cell.ljust(width) if is_text else cell.rjust(width) for cell in cells])
    for line in zip(*columns, strict=True):
        print("  ".join(line).rstrip())
    return rows


def figure(value: Any) -> str:
    """Show a number with three or four digits, whatever its size; None as '-'."""
    if value is None or (isinstance(value, float) and np.isnan(value)):
        return "-"
    if isinstance(value, (bool, np.bool_)):
        return "yes" if value else "no"
    if isinstance(value, (int, np.integer, Timing)):
        return str(value)
    size = abs(value)
    if size >= 1e6 or 0 < size < 1e-3:
        return f"{value:.2e}"
    return f"{value:.{0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 10 else 3}f}"


#: the lists of verdicts: a title, and the words for true, false, in part
VERDICTS = {
    "claims": ("Claims", "reproduces", "does not reproduce", "reproduces in part"),
    "goals": ("Goals", "met", "not met", "met in part"),
}


def verdicts(rows: Sequence[Claim], title: str, words: Sequence[str]) -> None:
    """Print claims, one block each."""
    print(f"\n{title}")
    for where, claim, holds, why in rows:
        word = words[2] if holds is None else words[0] if holds else words[1]
        print(f"  [{word}] {where}: {claim}\n      {why}")


def in_part(parts: Sequence[bool]) -> bool | None:
    """All true, all false, or None for a mixture."""
    return all(parts) if all(parts) or not any(parts) else None

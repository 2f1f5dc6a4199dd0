"""What short tasks cost, revision by revision, in instructions.

    python -m bench history [--revisions v0.1.0 HEAD] [--quick]     # 5 min for each; needs no data

Each revision is built from `git archive` in one environment, with the NumPy, SciPy and compiler of
today, and runs the tasks of `tasks.py` under `valgrind --tool=callgrind`, which counts the
instructions of one run whatever else the machine does (with AVX2 at most). The record of a revision
replaces an older one of the same; others stay. A quick run does the tasks with the epfast that is
installed, and counts nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.history.tasks import TASKS
from bench.lib import harness
from bench.lib.harness import Claim

ROOT = Path(__file__).parents[2]
TASKS_FILE = Path(__file__).with_name("tasks.py")
NEEDS = ["pip", "meson-python", "ninja", "cython>=3.2", "numpy", "scipy", "threadpoolctl"]
#: of the least instructions of the revisions before, the most that the last may take
MOST = 1.1


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--revisions", nargs="+", default=["HEAD"], help="what git calls them (default: HEAD)"
    )


def output(*command: str | Path, env: dict[str, str] | None = None) -> str:
    """What a command prints; what it says of an error is shown."""
    found = subprocess.run(list(map(str, command)), env=env, check=True, stdout=subprocess.PIPE)
    return found.stdout.decode()


def environment(folder: Path) -> Path:
    """The interpreter of a new environment that builds and runs all revisions."""
    output(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    output(python, "-m", "pip", "install", "-q", "--upgrade", *NEEDS)
    return python


def built(python: Path, revision: str, folder: Path) -> Path:
    """The folder that holds the package of a revision."""
    source, package = folder / "source", folder / "package"
    source.mkdir(parents=True)
    archive = folder / "source.tar"
    output("git", "-C", ROOT, "archive", "-o", archive, revision)
    output("tar", "-xf", archive, "-C", source)
    path = os.pathsep.join([str(python.parent), os.environ["PATH"]])
    output(
        *(python, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation"),
        *("--target", package, source),
        env={**os.environ, "PATH": path},
    )
    return package


def counted(python: Path, package: Path, folder: Path) -> dict[str, float]:
    """Millions of instructions of one run of each task."""
    names, dumps = folder / "names.json", folder / "callgrind"
    output(
        *("valgrind", "--tool=callgrind", "--quiet", "--dump-before=getppid"),
        *(f"--callgrind-out-file={dumps}", python, TASKS_FILE, names),
        env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": str(package)},
    )
    counts = {}
    for i, name in enumerate(json.loads(names.read_text(encoding="utf-8"))):
        # the dump at the second of the two calls: what came since the first
        text = dumps.with_name(f"{dumps.name}.{2 * i + 2}").read_text(encoding="utf-8")
        (total,) = re.findall(r"^totals: (\d+)$", text, re.M)
        counts[name] = int(total) / 1e6
    return counts


def record(python: Path, revision: str) -> dict[str, Any]:
    """The row of a revision."""
    show = ("git", "-C", ROOT, "show", "-s", "--abbrev=7", "--format=%h%n%cs%n%s")
    about = output(*show, f"{revision}^{{commit}}").split("\n")[:3]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        counts = counted(python, built(python, revision, folder), folder)
    return dict(zip(("revision", "date", "subject"), about, strict=True)) | counts


def merged(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of all revisions, in the order of the history."""
    rows = {row["revision"]: row for row in [*old, *new]}
    order = output("git", "-C", ROOT, "log", "--reverse", "--abbrev=7", "--format=%h").split()
    place = {revision: i for i, revision in enumerate(order)}
    return sorted(rows.values(), key=lambda row: place.get(row["revision"], -1))


def judged(rows: list[dict[str, Any]]) -> list[Claim]:
    """Whether the last revision does each task with as little as those before it."""
    claims: list[Claim] = []
    for name in TASKS:
        *before, last = [row for row in rows if name in row] or [{name: 0.0}]
        if before:
            best = min(before, key=lambda row: row[name])
            ratio = last[name] / best[name]
            claim = f"at most {MOST} times the least instructions before"
            why = f"{ratio:.2f} times those of {best['revision']}; {last[name]:.1f} million"
            claims.append((name, claim, ratio <= MOST, why))
    return claims


def run(options: argparse.Namespace) -> dict[str, Any]:
    if options.quick:
        with tempfile.TemporaryDirectory() as folder:
            names = Path(folder) / "names.json"
            output(sys.executable, TASKS_FILE, names)
            return {"tasks": json.loads(names.read_text(encoding="utf-8"))}
    if shutil.which("valgrind") is None:
        sys.exit("valgrind is not installed; it counts instructions (--quick: tasks alone)")
    stored = harness.RESULTS / f"{options.result}.json"
    old = json.loads(stored.read_text(encoding="utf-8")) if stored.exists() else {}
    new = []
    with tempfile.TemporaryDirectory() as folder:
        python = environment(Path(folder) / "env")
        for revision in options.revisions:
            new.append(record(python, revision))
            print(f"{revision}: {new[-1]['subject']}", flush=True)
    rows = merged(old.get("instructions", []), new)
    lines = [{"task": name} | {row["revision"]: row.get(name) for row in rows} for name in TASKS]
    harness.show(lines, "millions of instructions")
    return {"instructions": rows, "goals": judged(rows)}

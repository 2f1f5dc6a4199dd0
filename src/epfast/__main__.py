"""Command line: ``python -m epfast demo`` and ``info``."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from pathlib import Path

from epfast import _demo, backend


def info() -> None:
    """Print what a report of a fault should hold: versions, BLAS, SIMD, threads."""
    facts = backend.build_config()
    build = f"{facts['buildtype']}, {facts['compiler']}, Cython {facts['cython']}"
    lines = {
        "epfast": f"{facts['version']} ({build})",
        "python": f"{platform.python_version()}, {platform.platform()}",
        "numpy, scipy": f"{facts['numpy']}, {facts['scipy']}",
        "BLAS, LAPACK": f"of {facts['lapack']} {facts['lapack_version']}".rstrip(),
        "SIMD": f"{facts['simd']}, {facts['simd_width']} doubles; this CPU has "
        + ", ".join(facts["simd_available"]),
        "cores": str(_cores()),
    }
    try:
        import threadpoolctl
    except ModuleNotFoundError:
        lines["BLAS threads"] = "unknown without threadpoolctl"
    else:
        for pool in threadpoolctl.threadpool_info():
            lines[f"{pool['internal_api']} {pool['version']}"] = f"{pool['num_threads']} threads"
    width = max(map(len, lines))
    for name, text in lines.items():
        print(f"{name:{width}}  {text}")


def _cores() -> int:
    """Those that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def main(arguments: list[str] | None = None) -> int:
    """Run a command. Returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m epfast", description="Expectation propagation."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        help="a classifier on scikit-learn's breast cancer data, with a check",
    )
    demo.add_argument(
        "--pictures",
        default=".",
        help="folder for epfast_demo.png (default: this one; '' for none)",
    )
    commands.add_parser("info", help="this build: versions, BLAS, SIMD, threads")
    options = parser.parse_args(arguments)
    if options.command == "info":
        info()
        return 0
    pictures = Path(options.pictures) if options.pictures else None
    if pictures is not None and not pictures.is_dir():
        parser.error(f"--pictures is {options.pictures!r}; allowed: a folder that exists, or ''")
    return _demo.run(pictures)


if __name__ == "__main__":
    sys.exit(main())

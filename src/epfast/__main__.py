"""Command line: ``python -m epfast demo``."""

from __future__ import annotations

import argparse
import sys

from epfast import _demo, backend


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m epfast", description="Expectation propagation."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    demo = commands.add_parser(
        "demo",
        help="Roche's experiment on scikit-learn's breast cancer data: three losses, four schemes",
    )
    demo.add_argument("--sweeps", type=int, default=5, help="sweeps over the data (default 5)")
    demo.add_argument(
        "--picture",
        default="epfast_demo.png",
        help="where to save the cost curves (default %(default)s; '' for none)",
    )
    commands.add_parser("config", help="how this copy was built and what it uses")
    options = parser.parse_args(arguments)
    if options.command == "config":
        for name, value in backend.build_config().items():
            print(f"{name}: {value}")
        return 0
    if options.sweeps < 1:
        parser.error(f"--sweeps is {options.sweeps}; allowed: an integer >= 1")
    return _demo.run(options.sweeps, options.picture)


if __name__ == "__main__":
    sys.exit(main())

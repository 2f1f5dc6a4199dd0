"""List the scripts, or run one or a folder: ``python -m bench [table1 [--quick] ...]``."""

from bench.lib import harness  # first: fixes the number of BLAS threads

# ruff: isort: split
import ast
import importlib
import sys
from pathlib import Path

import bench


def listing() -> str:
    """Return the names of the scripts and the first line of each, without importing them."""
    width = max(map(len, bench.SCRIPTS))
    lines = ["python -m bench NAME [--help] [--quick] ...", ""]
    for name in bench.SCRIPTS:
        source = Path(__file__).parent.joinpath(*name.split(".")).with_suffix(".py")
        about = ast.get_docstring(ast.parse(source.read_text(encoding="utf-8")))
        lines.append(f"{name:{width}}  {(about or '').splitlines()[0]}")
    return "\n".join(lines)


def main(arguments: list[str]) -> None:
    """Run the script that the first argument names, or all of that folder."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(listing())
        return
    try:
        names = bench.scripts(arguments[0])
    except ValueError as error:
        sys.exit(f"python -m bench: {error}")
    for name in names:
        if len(names) > 1:
            print(f"\n==== {name}")
        script = importlib.import_module(f"bench.{name}")
        harness.run(script, name, bench.SCRIPTS[name], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])

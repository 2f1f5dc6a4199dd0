"""Killing power of the tests: the share of random one-line mutants of the Python layer that fail.

    python -m pytest -n auto --cov=epfast --cov-context=test --cov-report=    # writes .coverage
    python tools/mutants.py --count 50 --seed 0 -- -n 2

epfast is installed, not in editable mode, with pytest-cov. Each mutant is a copy of the package
with one operator, number, condition or statement changed. The tests that visit its line run, by the
record of coverage; arguments after -- go to pytest, such as the tier of the record. Some mutants
are equivalent to the original and cannot fail.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from coverage import CoverageData

ROOT = Path(__file__).parents[1]
SWAPS = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in",
    ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.And: "or", ast.Or: "and",
}  # fmt: skip


class Mutant(NamedTuple):
    """A part of a file, and what takes its place."""

    path: Path
    line: int
    begin: int
    end: int
    text: str


def changed(node: ast.AST) -> Iterator[tuple[ast.AST, str]]:
    """What may take the place of a node, as a node and a text."""
    match node:
        case ast.Compare(left, [op], [right]) if type(op) in SWAPS:
            yield node, f"{ast.unparse(left)} {SWAPS[type(op)]} {ast.unparse(right)}"
        case ast.BinOp(left, op, right) if type(op) in SWAPS:
            yield node, f"(({ast.unparse(left)}) {SWAPS[type(op)]} ({ast.unparse(right)}))"
        case ast.BoolOp(op, values):
            word = f" {SWAPS[type(op)]} "
            yield node, f"({word.join(f'({ast.unparse(value)})' for value in values)})"
        case ast.If(test) | ast.IfExp(test):
            yield test, f"(not ({ast.unparse(test)}))"
        case ast.Constant(bool(value)):
            yield node, str(not value)
        case ast.Constant(int(value) | float(value)):
            yield node, f"({value!r} * 2 + 1)"
        case ast.Expr(ast.Call()) | ast.AugAssign():
            yield node, "pass"


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of the bodies of a file's functions, each within one line."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    lines = text.encode().splitlines(keepends=True)
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    bodies = (inner for function in functions for inner in function.body)
    # messages, and what only guards against errors of ours
    kept = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr)
        or (isinstance(node, ast.keyword) and node.arg == "strict")
        for inner in ast.walk(node)
    }
    for node in {id(n): n for body in bodies for n in ast.walk(body)}.values():
        for place, new in changed(node) if id(node) not in kept else ():
            if place.lineno == place.end_lineno:
                start = sum(map(len, lines[: place.lineno - 1]))
                begin, end = start + place.col_offset, start + place.end_col_offset
                yield Mutant(path, place.lineno, begin, end, new)


def killer(mutant: Mutant, package: Path, tests: list[str], arguments: list[str]) -> str:
    """The first of these tests that fails on a mutant; "" if none does."""
    part = mutant.path.relative_to(package)
    whole = mutant.path.read_bytes()
    call = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no"]
    with tempfile.TemporaryDirectory() as name:
        shutil.copytree(package, Path(name) / "epfast")
        text = whole[: mutant.begin] + mutant.text.encode() + whole[mutant.end :]
        (Path(name) / "epfast" / part).write_bytes(text)
        (Path(name) / "tests").write_text("\n".join(tests), encoding="utf-8")
        done = subprocess.run(
            [*call, "-p", "no:cacheprovider", *arguments, f"@{name}/tests"],
            cwd=ROOT,
            env=os.environ | {"PYTHONPATH": name},
            capture_output=True,
            text=True,
            check=False,
        )
    lines = done.stdout.splitlines()
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    return (failed or lines[-1:] or ["import"])[0] if done.returncode else ""


def main() -> None:
    """Print each mutant with the test that fails, and the share of those with one."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--coverage", default=ROOT / ".coverage", help="the record of coverage")
    parser.add_argument("pytest", nargs="*", help="arguments of pytest")
    given = parser.parse_args()
    package = Path(find_spec("epfast").origin).parent
    record = CoverageData(given.coverage)
    record.read()
    files = [p for p in sorted(package.rglob("*.py")) if p.name[:2] != "__"]
    every = [mutant for path in files for mutant in mutants(path)]
    killed = 0
    for mutant in random.Random(given.seed).sample(every, given.count):
        old = mutant.path.read_bytes()[mutant.begin : mutant.end].decode()
        place = f"{mutant.path.relative_to(package)}:{mutant.line}: {old} -> {mutant.text}"
        visits = record.contexts_by_lineno(str(mutant.path)).get(mutant.line, ())
        tests = sorted({visit.rpartition("|")[0] for visit in visits} - {""})
        fails = killer(mutant, package, tests, given.pytest) if tests else ""
        killed += bool(fails)
        print(f"{place}\n    {len(tests)} tests: {fails[:150] or 'ALIVE'}", flush=True)
    print(f"{killed} of {given.count} killed, of {len(every)} mutants")


if __name__ == "__main__":
    main()

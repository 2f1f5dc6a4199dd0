"""Code lines of the package: no docstrings, comments or blanks.

python tools/count_lines.py [rooms, default all]
"""

from __future__ import annotations

import ast
import io
import pathlib
import sys
import tokenize

ROOT = pathlib.Path(__file__).parents[1] / "src" / "epfast"
SILENT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def count(path: pathlib.Path) -> tuple[int, int, int]:
    """Code lines, classes and functions of a file."""
    source = path.read_text()
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    classes = functions = 0
    for node in ast.walk(ast.parse(source)):
        classes += isinstance(node, ast.ClassDef)
        functions += isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        body = getattr(node, "body", None)
        first = body[0] if isinstance(body, list) and body else None
        text = first.value if isinstance(first, ast.Expr) else None
        if isinstance(text, ast.Constant) and isinstance(text.value, str):
            lines -= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines), classes, functions


def main() -> None:
    """Print the table."""
    rooms: dict[str, list[int]] = {}
    for path in sorted(ROOT.rglob("*.py")):
        room = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if len(sys.argv) == 1 or room in sys.argv[1:]:
            total = rooms.setdefault(room, [0, 0, 0, 0])
            for k, number in enumerate((1, *count(path))):
                total[k] += number
    rooms["total"] = [sum(column) for column in zip(*rooms.values(), strict=True)]
    print(f"{'room':14}{'files':>7}{'lines':>8}{'classes':>9}{'functions':>11}")
    for room, (files, lines, classes, functions) in rooms.items():
        print(f"{room:14}{files:7}{lines:8}{classes:9}{functions:11}")


if __name__ == "__main__":
    main()

"""Lines of code in each room of epfast, without docstrings, comments and blank lines.

    python tools/count_lines.py [room ...]      # default: all rooms; the last line is the sum

Classes and functions are counted, too.
"""

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "epfast"
DEFINITIONS = ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
#: tokens that are no code
SILENT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def counted(text: str) -> Counter[str]:
    """Count the files (1), the lines of code, the classes and the functions of a module."""
    tree = ast.parse(text)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT:
            lines.update(range(token.start[0], token.end[0] + 1))
    found = Counter(files=1)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, *DEFINITIONS)) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
        if isinstance(node, DEFINITIONS):
            found["classes" if isinstance(node, ast.ClassDef) else "functions"] += 1
    return found + Counter(code=len(lines))


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rooms", nargs="*", help="default: all")
    asked = parser.parse_args().rooms
    rooms: dict[str, Counter[str]] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        room = path.relative_to(SOURCE).parts[0].removesuffix(".py")
        rooms[room] = rooms.get(room, Counter()) + counted(path.read_text(encoding="utf-8"))
    chosen = {room: rooms[room] for room in asked or rooms}
    columns = "files", "code", "classes", "functions"
    print(f"{'room':<14}" + "".join(f"{column:>10}" for column in columns))
    for room, found in [*chosen.items(), ("sum", sum(chosen.values(), Counter()))]:
        print(f"{room:<14}" + "".join(f"{found[column]:>10,}" for column in columns))


if __name__ == "__main__":
    main()

"""Compile the core's C for systems that are not at hand.

    python tools/compile_elsewhere.py BUILD [clang] [aarch64] [musl] [windows]

BUILD is a build directory of meson on x86-64 Linux, which has the C that Cython wrote and the
commands. Needs Debian's packages clang, gcc-aarch64-linux-gnu, musl-tools, gcc-mingw-w64-x86-64.
Objects are compiled, not linked: BLAS and Python of those systems are not needed. Headers of Python
are the host's; for Windows, with its universal C runtime, pyconfig.h is put right as far as the
core sees it.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

TARGETS = {
    "clang": "clang -Wno-unknown-warning-option",
    "aarch64": "aarch64-linux-gnu-gcc",
    "musl": "musl-gcc",
    "windows": "x86_64-w64-mingw32-gcc -D_UCRT",
}
#: what is other on 64-bit Windows than in Linux's pyconfig.h, of what headers of Python ask
WINDOWS = """
#define MS_WINDOWS
#define MS_WIN64
#define SIZEOF_LONG 4
#define SIZEOF_WCHAR_T 2
#define SIZEOF_PTHREAD_T 8
#define ALIGNOF_LONG 4
#define PY_LLP64
#define NT_THREADS
"""


def windows_headers(include: Path, folder: Path) -> None:
    """Copies of the headers of Python, with pyconfig.h of Windows."""
    shutil.copytree(include, folder)
    text = (folder / "pyconfig.h").read_text(encoding="utf-8")
    names = re.findall(r"#define (\w+)", WINDOWS)
    text = re.sub(rf"(?m)^#define ({'|'.join(names)})\b.*$", "", text)
    # of what a system has, nothing but the headers of C
    text = re.sub(r"(?m)^#define HAVE_(?!STD|STRING_H|LONG_DOUBLE|BUILTIN|PROTOTYPES).*$", "", text)
    (folder / "pyconfig.h").write_text(text + WINDOWS, encoding="utf-8")


class Said(NamedTuple):
    """What a compiler said of a file."""

    name: str
    failed: bool
    text: str


def compile_all(build: Path, target: str) -> list[Said]:
    """Files that were not compiled, or not without a warning."""
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    commands = [command for command in commands if command["file"].endswith(".c")]
    if target in ("aarch64", "windows"):  # sets of x86-64; on Windows for its own gcc alone
        commands = [command for command in commands if " -march" not in command["command"]]
    with tempfile.TemporaryDirectory() as scratch:
        headers = Path(scratch, "headers")
        if target == "windows":
            (include,) = set(re.findall(r"-I(\S*include/python\S*)", str(commands)))
            windows_headers(Path(include), headers)

        def one(number: int) -> Said:
            command = commands[number]
            words = shlex.split(command["command"])[1:]
            if target in ("aarch64", "windows"):
                words = [word for word in words if not word.startswith("-DEPF_HAVE_")]
            if target == "windows":
                words = [f"-I{headers}" if "include/python" in word else word for word in words]
            words[words.index("-o") + 1] = f"{scratch}/{number}.o"
            words[words.index("-MF") + 1] = f"{scratch}/{number}.d"
            found = subprocess.run(
                [*TARGETS[target].split(), *words],
                cwd=command["directory"],
                capture_output=True,
                encoding="utf-8",
                check=False,
            )
            return Said(Path(command["file"]).name, found.returncode != 0, found.stderr[:2000])

        with ThreadPoolExecutor(2) as pool:
            said = list(pool.map(one, range(len(commands))))
    wrong = [one for one in said if one.failed or one.text]
    failed = sum(one.failed for one in wrong)
    print(
        f"{target}: {len(said)} files, {failed} failed, {len(wrong) - failed} with warnings",
        flush=True,
    )
    return wrong


def main() -> int:
    """Compile; returns the exit status."""
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    build, chosen = Path(sys.argv[1]), sys.argv[2:] or list(TARGETS)
    wrong = [one for target in chosen for one in compile_all(build, target)]
    for one in wrong:
        print(f"{one.name}: {'failed' if one.failed else 'warnings'}\n{one.text}")
    return 1 if any(one.failed for one in wrong) else 0


if __name__ == "__main__":
    sys.exit(main())

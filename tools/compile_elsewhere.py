"""Compile the core's C for systems that are not at hand.

    python tools/compile_elsewhere.py BUILD [clang] [aarch64] [musl] [windows]

BUILD is a build directory of meson on x86-64 Linux, which has the C that Cython wrote and the
commands. Of Debian's packages it needs clang, gcc-aarch64-linux-gnu, musl-tools and gcc-
mingw-w64-x86-64. Objects are compiled, not linked: BLAS and Python of those systems are not needed.
Headers of Python are the host's; for Windows, with its universal C runtime, pyconfig.h is put right
as far as the core sees it.
"""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

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
    subprocess.run(["cp", "-r", f"{include}/.", str(folder)], check=True)
    text = (folder / "pyconfig.h").read_text(encoding="utf-8")
    names = re.findall(r"#define (\w+)", WINDOWS)
    text = re.sub(rf"(?m)^#define ({'|'.join(names)})\b.*$", "", text)
    # of what a system has, nothing but the headers of C
    text = re.sub(r"(?m)^#define HAVE_(?!STD|STRING_H|LONG_DOUBLE|BUILTIN|PROTOTYPES).*$", "", text)
    (folder / "pyconfig.h").write_text(text + WINDOWS, encoding="utf-8")


def compile_all(build: Path, target: str) -> list[str]:
    """Objects that were not compiled, or not without a warning, and what was said."""
    commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as scratch:

        def one(number: int) -> str | None:
            words = shlex.split(commands[number]["command"])
            if not commands[number]["file"].endswith(".c"):
                return None
            if target in ("aarch64", "windows") and any(w.startswith("-march") for w in words):
                return None  # instruction sets of x86-64, on Windows for its own gcc alone
            kept = []
            for word in words[1:]:
                if word.startswith("-DEPF_HAVE_") and target in ("aarch64", "windows"):
                    continue
                if word.startswith("-I") and target == "windows" and "include/python" in word:
                    headers = Path(scratch, "headers")
                    if not headers.exists():
                        headers.mkdir()
                        windows_headers(Path(word[2:]), headers)
                    word = f"-I{headers}"
                kept.append(word)
            kept[kept.index("-o") + 1] = f"{scratch}/{number}.o"
            kept[kept.index("-MF") + 1] = f"{scratch}/{number}.d"
            found = subprocess.run(
                [*TARGETS[target].split(), *kept],
                cwd=commands[number]["directory"],
                capture_output=True,
                encoding="utf-8",
                check=False,
            )
            if found.returncode == 0 and not found.stderr:
                return ""
            kind = "failed" if found.returncode else "warnings"
            return f"{Path(commands[number]['file']).name}: {kind}\n{found.stderr[:2000]}"

        one(len(commands) - 1)  # copies headers
        with ThreadPoolExecutor(2) as pool:
            told = [text for text in pool.map(one, range(len(commands))) if text is not None]
    wrong = [text for text in told if text]
    print(
        f"{target}: {len(told)} files, {sum('failed' in t.splitlines()[0] for t in wrong)} failed, "
        f"{sum('warnings' in t.splitlines()[0] for t in wrong)} with warnings",
        flush=True,
    )
    return wrong


def main() -> int:
    """Compile; returns the exit status."""
    if len(sys.argv) < 2:
        print(__doc__)
        return 2
    build, chosen = Path(sys.argv[1]), sys.argv[2:] or list(TARGETS)
    wrong = [text for target in chosen for text in compile_all(build, target)]
    print("\n".join(wrong))
    return 1 if any("failed" in text.splitlines()[0] for text in wrong) else 0


if __name__ == "__main__":
    sys.exit(main())

"""The Python blocks of README.md and docs/extending.rst run, and the examples of docstrings."""

import doctest
import importlib
import pkgutil
import re
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

import epfast

ROOT = Path(__file__).parents[1]
MARKDOWN = re.compile(r"^```python\n(.*?)^```\n(?:\s*^```text\n(.*?)^```$)?", re.M | re.S)
RST = re.compile(r"^\.\. code-block:: python\n\n((?:   .*\n|\n)+)", re.M)
#: what needs a compiler
COMPILED = ("numba", "mylosses")


def blocks_of_markdown(text):
    """Where each block starts, the block, and what it prints: the text that follows, or None."""
    return [(m.start(1), m[1], m[2]) for m in MARKDOWN.finditer(text)]


def blocks_of_rst(text):
    """The same; what a block prints is not shown."""
    return [(m.start(1), dedent(m[1]), None) for m in RST.finditer(text)]


PAGES = {"README.md": blocks_of_markdown, "docs/extending.rst": blocks_of_rst}


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page, capsys):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 3))
    names = {"X": X, "y": np.where(X @ [1.0, -1.0, 0.5] + rng.logistic(size=60) > 0, 1, -1)}
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    blocks = [b for b in PAGES[page](text) if not any(word in b[1] for word in COMPILED)]
    assert blocks, "no block was found"
    for start, block, printed in blocks:
        lines_before = "\n" * text.count("\n", 0, start)  # so that errors show the line of the page
        exec(compile(lines_before + block, path, "exec"), names)
        out = capsys.readouterr().out
        assert printed is None or out == printed, block


MODULES = [info.name for info in pkgutil.walk_packages(epfast.__path__, "epfast.")]
#: compiled, programs, and the face of a package that is not there
APART = ("epfast._core", "epfast.__main__", "epfast.gpy")


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith(APART)])
def test_examples_of_docstrings(module):
    if module.startswith("epfast.estimators"):
        pytest.importorskip("sklearn")
    assert doctest.testmod(importlib.import_module(module)).failed == 0

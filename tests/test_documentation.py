"""The Python blocks of the pages run and print what the pages say; so do those of docstrings."""

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
INDENTED = r"((?:   .*\n|\n)+)"
RST = re.compile(
    rf"^\.\. code-block:: python\n\n{INDENTED}(?:^\.\. code-block:: text\n\n{INDENTED})?", re.M
)
#: what needs a compiler
COMPILED = ("numba", "mylosses")
#: versions of ArviZ smooth the tail of weights slightly differently
DRAWS = re.compile(r"[\d,]+ effective draws")


def blocks_of_markdown(text):
    """Where each block starts, the block, and what it prints: the text that follows, or None."""
    return [(m.start(1), m[1], m[2]) for m in MARKDOWN.finditer(text)]


def blocks_of_rst(text):
    """The same."""
    return [
        (m.start(1), dedent(m[1]), m[2] and dedent(m[2]).strip("\n") + "\n")
        for m in RST.finditer(text)
    ]


PAGES = {
    "README.md": blocks_of_markdown,
    "docs/index.rst": blocks_of_rst,
    "docs/tutorial.rst": blocks_of_rst,
    "docs/tutorial_graph.rst": blocks_of_rst,
    "docs/tutorial_simulator.rst": blocks_of_rst,
    "docs/guide.rst": blocks_of_rst,
    "docs/extending.rst": blocks_of_rst,
}
#: pages of which some blocks need the extras sklearn and arviz
WITH_EXTRAS = ("README.md", "docs/index.rst", "docs/tutorial.rst", "docs/guide.rst")
#: pages with a sampler within sweeps, which take another course after another rounding
SAMPLED = ("docs/tutorial_simulator.rst",)
NUMBER = re.compile(r"-?\d+(?:\.(\d*))?")


def nearly(out, printed):
    """Whether texts are the same but for a unit in the last decimal, and counts for a factor 2."""
    if NUMBER.sub("#", out) != NUMBER.sub("#", printed):
        return False
    for a, b in zip(NUMBER.finditer(out), NUMBER.finditer(printed), strict=True):
        one, other = float(a[0]), float(b[0])
        if b[1] is None and not 0.5 * other <= one <= 2.0 * other:
            return False
        if b[1] is not None and abs(one - other) > 1.001 * 10.0 ** -len(b[1]):
            return False
    return True


@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page, capsys):
    if page in WITH_EXTRAS:
        for extra in ("sklearn", "pandas", "arviz"):
            pytest.importorskip(extra)
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
        if printed is not None:
            out, printed = DRAWS.sub("so many", out), DRAWS.sub("so many", printed)
            assert out == printed or (page in SAMPLED and nearly(out, printed)), block


MODULES = [info.name for info in pkgutil.walk_packages(epfast.__path__, "epfast.")]
#: compiled, programs, and the face of a package that is not there
APART = ("epfast._core", "epfast.__main__", "epfast.gpy")


@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith(APART)])
def test_examples_of_docstrings(module):
    if module.startswith("epfast.estimators"):
        pytest.importorskip("sklearn")
    if module.startswith("epfast.dask"):
        pytest.importorskip("distributed", reason="needs the extra dask")
    assert doctest.testmod(importlib.import_module(module)).failed == 0

"""The Python blocks of the pages run and print what the pages say; so do those of docstrings."""

import doctest
import importlib
import pkgutil
import re
import subprocess
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest

import epfast

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[1]
MARKDOWN = re.compile(r"^```python\n(.*?)^```\n(?:\s*^```text\n(.*?)^```$)?", re.M | re.S)
INDENTED = r"((?:   .*\n|\n)+)"
RST = re.compile(
    rf"^\.\. code-block:: python\n\n{INDENTED}(?:^\.\. code-block:: text\n\n{INDENTED})?", re.M
)


def blocks_of_markdown(text):
    """Where each block starts, the block, and what it prints: the text that follows, or None."""
    return [(m.start(1), m[1], m[2]) for m in MARKDOWN.finditer(text)]


def blocks_of_rst(text):
    """The same."""
    return [
        (m.start(1), dedent(m[1]), m[2] and dedent(m[2]).strip("\n") + "\n")
        for m in RST.finditer(text)
    ]


def pages():
    """README, and each page with a block; that of clusters has its own test."""
    found = {"README.md": blocks_of_markdown}
    written = [*(ROOT / "docs").glob("*.rst"), *(ROOT / "docs" / "guide").glob("*.rst")]
    for path in sorted(written):
        if path.name != "dask.rst" and blocks_of_rst(path.read_text(encoding="utf-8")):
            found[path.relative_to(ROOT).as_posix()] = blocks_of_rst
    return found


PAGES = pages()
#: modules of extras, and what in a block needs them
EXTRAS = {
    "sklearn": "sklearn|Classifier|Regressor",
    "pandas": r"summary\(|as_frame",
    "GPy": "GPy",
    "formulae": r"epfast\.formula",
}
#: what blocks need beyond: a compiler
COMPILED = ("numba", "mylosses")
#: pages with a sampler within sweeps, which take another course after another rounding
SAMPLED = ("docs/tutorial_simulator.rst",)
NUMBER = re.compile(r"-?\d+(?:\.(\d*))?")


def nearly(out, printed):
    """Whether texts are the same but for a unit in the last decimal, and counts for a factor 2."""
    if re.sub(r"\s", "", NUMBER.sub("#", out)) != re.sub(r"\s", "", NUMBER.sub("#", printed)):
        return False
    for a, b in zip(NUMBER.finditer(out), NUMBER.finditer(printed), strict=True):
        one, other = float(a[0]), float(b[0])
        if b[1] is None and not 0.5 * other <= one <= 2.0 * other:
            return False
        if b[1] is not None and abs(one - other) > 1.001 * 10.0 ** -len(b[1]):
            return False
    return True


def built(page_text, folder):
    """The module of the page's Cython block, its functions declared and so exported."""
    from Cython.Compiler.Main import CompilationOptions, compile

    code = dedent(re.search(rf"^\.\. code-block:: cython\n\n{INDENTED}", page_text, re.M)[1])
    (folder / "mylosses.pyx").write_text(code)
    (folder / "mylosses.pxd").write_text(re.sub(r":\n.*", "\n", code, count=1, flags=re.S))
    compile(str(folder / "mylosses.pyx"), CompilationOptions(language_level=3))
    place = folder / f"mylosses{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = ["-shared", "-fPIC", f"-I{sysconfig.get_path('include')}"]
    subprocess.run(["cc", *flags, str(folder / "mylosses.c"), "-o", str(place)], check=True)


def missing(block):
    """What a block needs and is not installed."""
    needs = {"numba": "numba", "mylosses": "Cython"}
    return [word for word in COMPILED if word in block and not find_spec(needs[word])]


@pytest.mark.cover(lambda page: page)
@pytest.mark.parametrize("page", PAGES)
def test_blocks_run(page, capsys, tmp_path, monkeypatch):
    path = ROOT / page
    text = path.read_text(encoding="utf-8")
    blocks = PAGES[page](text)
    assert blocks, "no block was found"
    for extra in EXTRAS:
        if any(re.search(EXTRAS[extra], block) for _, block, _ in blocks):
            pytest.importorskip(extra)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    if "import mylosses" in text and find_spec("Cython"):
        built(text, tmp_path)
    names = {}
    for start, block, printed in blocks:
        if missing(block):
            continue
        lines_before = "\n" * text.count("\n", 0, start)  # so that errors show the line of the page
        exec(compile(lines_before + block, path, "exec"), names)
        out = capsys.readouterr().out
        if printed is not None:
            assert out == printed or (page in SAMPLED and nearly(out, printed)), block


MODULES = [info.name for info in pkgutil.walk_packages(epfast.__path__, "epfast.")]
#: compiled, programs, and the face of a package that is not there
APART = ("epfast._core", "epfast.__main__", "epfast.gpy")


@pytest.mark.cover(lambda module: module)
@pytest.mark.parametrize("module", [name for name in MODULES if not name.startswith(APART)])
def test_examples_of_docstrings(module):
    if module.startswith("epfast.estimators"):
        pytest.importorskip("sklearn")
    if module.startswith("epfast.dask"):
        pytest.importorskip("distributed", reason="needs the extra dask")
    if module == "epfast.formula":
        pytest.importorskip("formulae")
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_a_newcomer_sees_public_names_only():
    names = set(dir(epfast))
    assert {"LinearClassifier", "fit_linear", "formula", "losses", "plots", "rating"} <= names
    assert not {"inference", "storage", "parametric", "gaussian"} & names
    assert all(not name.startswith("_") or name == "__version__" for name in names)

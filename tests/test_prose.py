"""What users read: few semicolons, the words of the field, 0.05 in place of .05, all names."""

import ast
import importlib
import re
import textwrap
from pathlib import Path

import pytest

import epfast

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [path for name in (".", "guide", "tables") for path in (DOCS / name).glob("*.rst")]
PAGES += [ROOT / name for name in ("README.md", "CONTRIBUTING.md")]
PROGRAMS = sorted((ROOT / "examples").rglob("*.py"))
SOURCE = Path(epfast.__file__).parent
MODULES = sorted(SOURCE.rglob("*.py"))
#: at most one semicolon per so many sentences
SENTENCES = 10
#: names of parts of the library that only its authors use
PRIVATE = re.compile(
    r"\b(?:houses?|rooms?|wings?|strangers?|doors?|certificates?|told|goes when)\b", re.I
)
#: what has other names: files, benchmarks, quoted output
NAMES = re.compile(r"`+[^`]*`+|\S*(?:test_house|certificates)\S*")
#: ".05", but not the ".2f" of a format or the ".csv" of a file
BARE = re.compile(r"(?<![\w.:)\]}{>'\"*/])\.\d")
CODE = re.compile(r"^```.*?^```$", re.M | re.S)
DIRECTIVE = re.compile(r"^( *)\.\. (?!list-table|glossary)[\w-]+::.*\n(?:\n|\1 +.*\n)*", re.M)
MATH = re.compile(r":math:`[^`]*`")
END = re.compile(r"[.!?:](?=\s|$)")


def prose_of_page(path):
    """A page without its code, formulas and pictures."""
    text = path.read_text(encoding="utf-8") + "\n"
    return MATH.sub("x", DIRECTIVE.sub("", CODE.sub("", text)))


def prose_of_program(path):
    """The docstring of a program of the gallery, and its comments of whole lines."""
    text = path.read_text(encoding="utf-8")
    comments = re.findall(r"^# ?(?!%%)(.*)$", text, re.M)
    return MATH.sub("x", "\n".join([ast.get_docstring(ast.parse(text)) or "", *comments]))


def docstrings(path):
    """Those of a module, of its public classes and functions and of their methods."""
    found, waiting = [], [ast.parse(path.read_text(encoding="utf-8"))]
    while waiting:
        node = waiting.pop()
        found.append(ast.get_docstring(node) or "")
        kinds = ast.ClassDef, ast.FunctionDef
        waiting += [
            inner
            for inner in node.body
            if isinstance(inner, kinds) and not inner.name.startswith("_")
            if not isinstance(node, ast.FunctionDef)
        ]
    return MATH.sub("x", "\n".join(found))


def prose_of_core(path):
    """The docstring of a module of the core, without formulas such as N(h; m, v)."""
    text = path.read_text(encoding="utf-8")
    return re.sub(r"\([^()]*\)", "", text.split('"""')[1])


def messages(source):
    """The texts of errors and warnings, without what is filled in."""
    nodes = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Raise)
        or (isinstance(node, ast.Call) and ast.unparse(node.func) == "warn_user")
    ]
    constants = [c for node in nodes for c in ast.walk(node) if isinstance(c, ast.Constant)]
    return [c.value for c in constants if isinstance(c.value, str)]


TEXTS = {path.relative_to(ROOT).as_posix(): prose_of_page(path) for path in sorted(PAGES)}
TEXTS |= {path.relative_to(ROOT).as_posix(): prose_of_program(path) for path in PROGRAMS}
TEXTS |= {f"epfast/{path.relative_to(SOURCE).as_posix()}": docstrings(path) for path in MODULES}
CORE = sorted((ROOT / "src" / "epfast" / "_core").glob("*.pyx"))
TEXTS |= {f"epfast/_core/{path.name}": prose_of_core(path) for path in CORE}


@pytest.mark.parametrize("name", TEXTS)
def test_sentences_are_short(name):
    text = re.sub(r"`[^`]*`", "x", TEXTS[name])
    # references to several papers have semicolons between them
    text = re.sub(r"\([^()]*\d{4}[^()]*\)", "", text)
    assert text.count(";") <= max(1, len(END.findall(text)) // SENTENCES)


@pytest.mark.parametrize("name", TEXTS)
def test_words_are_those_of_the_field(name):
    assert not PRIVATE.findall(NAMES.sub("", TEXTS[name]))


@pytest.mark.parametrize("name", TEXTS)
def test_numbers_have_their_zero(name):
    assert not BARE.findall(re.sub(r"<[^<>]*>", "", TEXTS[name]))


def test_words_of_messages_are_those_of_the_field():
    texts = {
        path.relative_to(SOURCE).as_posix(): messages(path.read_text(encoding="utf-8"))
        for path in sorted(SOURCE.rglob("*.py"))
    }
    assert texts["graph/fit.py"]
    wrong = [(name, text) for name in texts for text in texts[name] if PRIVATE.search(text)]
    assert not wrong


def test_messages_are_those_of_errors_and_warnings():
    source = """
    def f(x, door):
        "the house"
        if x: raise ValueError(f"{door} is told; allowed: {room(x)}") from None
        warn_user("a stranger" + x, DataWarning)
        return "wing"
    """
    found = messages(textwrap.dedent(source))
    assert found == [" is told; allowed: ", "a stranger"]


def test_what_counts_as_bad():
    assert PRIVATE.search("the room of losses")
    assert not PRIVATE.search("a bedroom, indoors")
    assert BARE.findall("within .05 sd, (.3), -.2") == [".0", ".3", ".2"]
    assert not BARE.findall("0.05, x[:.2], f'{x:.2f}', v1.2.3")


def test_the_reference_has_every_public_name():
    text = (DOCS / "api.rst").read_text(encoding="utf-8")
    listed = set(re.findall(r"^   ([\w.]+)$", text, re.M))
    names = {f"{name}" for name in epfast.__all__} | {"formula.fit", "formula.FormulaFit"}
    for module in ("losses", "schemes", "graph", "rating", "plots", "priors", "backend", "dask"):
        try:
            found = importlib.import_module(f"epfast.{module}").__all__
        except ImportError:  # an extra that is not installed
            continue
        names |= {f"{module}.{name}" for name in found}
    short = {name.rpartition(".")[2] for name in listed}
    # functions between names and objects, modules, and bases without features of their own
    inner = {"NAMED", "describe", "resolve", "restore", "restore_prior", "CoreLoss", "LatentLoss"}
    inner |= {"backend", "graph", "losses", "operators", "priors", "schemes"}
    assert {name for name in names if name.rpartition(".")[2] not in short | inner} == set()
    first = text.partition("\nEstimators\n")[0]
    assert len(re.findall(r"^   ([\w.]+)$", first, re.M)) == 14


def test_docstrings_are_no_fragments():
    """A docstring that begins with a preposition leaves its subject to the reader."""
    rooms = ("gaussian", "inference", "schemes", "schedules", "losses", "backend")
    fragment = re.compile(r'"""(?:Of|By|With|From|To|And|Between) .*')
    for path in (path for room in rooms for path in (SOURCE / room).rglob("*.py")):
        assert not fragment.findall(path.read_text(encoding="utf-8")), path

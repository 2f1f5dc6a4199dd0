"""The counter of what a reader meets counts right, and what it counts does not rise."""

import importlib
import importlib.util
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.full

PATH = Path(__file__).parents[2] / "tools" / "count_reader.py"
if not PATH.exists():
    pytest.skip("needs the tools of the source tree", allow_module_level=True)
spec = importlib.util.spec_from_file_location("count_reader", PATH)
count_reader = importlib.util.module_from_spec(spec)
spec.loader.exec_module(count_reader)

#: a package with two files, and something of all that is counted
FILES = {
    "__init__.py": "",
    "door.py": '''
"""The door; type: ignore and Any in a text do not count."""
from typing import Any, NamedTuple, cast

from madeup_package.core import Engine, halve


class Problem(NamedTuple):
    data: Any
    size: int = 0


def fit(array: Any, *, options: dict[str, Any] = {}, seen: "object" = 1) -> object:
    """Two lines.

    Of text.
    """
    given = array * 1.0  # type: ignore
    fields = {"wide": given}
    del given
    problem = Problem(**({"data": fields["wide"]}))
    engine = Engine(problem.data)
    left: list[object] = [vars(engine), getattr(engine, "rows"), hasattr(engine, "rows")]
    return cast(int, halve(engine))
''',
    "core.py": '''
from typing import ClassVar


class Engine:
    """Holds rows, and is itself no name of them."""

    def __init__(self, rows):
        self.rows = rows

    def visit(self, sites):
        self.refused = self.moved = 0
        self.moved += 1
        sites.left = self.counts[0] = 1
        self.done, (self.last, _) = 1, (2, 3)


class Counts:
    refused: int
    limit: ClassVar[int] = 3
    clipped: int


def halve(engine):
    return deep(engine, 3)


def deep(engine, more):
    return [deep(engine, more - 1) for _ in range(1)] if more else engine.rows
''',
}


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The package, imported, and its folder."""
    folder = tmp_path / "madeup_package"
    folder.mkdir()
    for name, text in FILES.items():
        (folder / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    door = importlib.import_module("madeup_package.door")
    yield door, folder
    for name in [name for name in sys.modules if name.startswith("madeup_package")]:
        del sys.modules[name]


def test_what_a_call_runs_through(package):
    door, folder = package
    found = count_reader.call_counts(lambda: door.fit(1.0), folder)
    assert found["files"] == 2
    steps = count_reader.steps_of(lambda: door.fit(1.0), folder)
    plain = [step for step in steps if "<listcomp>" not in step.function]  # none from 3.12 on
    names = "fit", "Engine.__init__", "halve", *["deep"] * 4
    assert [step.function for step in plain] == list(names)
    assert [step.file for step in plain] == ["door.py", *["core.py"] * 6]
    extra = len(steps) - len(plain)
    assert found["calls"] == 7 + extra
    assert found["deepest"] == steps[-1].depth == 6 + extra
    assert found["functions"] == 4 + bool(extra)


def test_a_call_that_fails_leaves_no_profile(package):
    _, folder = package
    before = sys.getprofile(), sys.gettrace()
    for follow in (count_reader.steps_of, lambda f, root: count_reader.names_of(bool, f, root)):
        with pytest.raises(ZeroDivisionError):
            follow(lambda: 1 / 0, folder)
    assert (sys.getprofile(), sys.gettrace()) == before


def test_what_stands_in_the_source(package):
    found = count_reader.source_counts(package[1])
    assert found["Any"] == 3
    assert found["parameters"] == 10
    assert found["parameters of Any"] == 1
    assert found["object"] == 3
    assert found["getattr, hasattr, vars"] == 3
    assert found["cast"] == found["type: ignore"] == 1
    assert found["set in visit"] == 4
    assert found["fields of Problem"] == found["fields of Counts"] == 2
    assert found["longest function"] == 7
    assert found["functions over 60 lines"] == 0
    longest = count_reader.functions(package[1])[0]
    assert longest == (7, "door.py", "fit")


def test_names_of_an_object(package):
    door, folder = package
    kept = np.ones(3)
    copies = [kept]

    def is_array(value):
        same = isinstance(value, np.ndarray) and np.array_equal(value, kept)
        copies.extend([value] if same else [])
        return same

    found = count_reader.names_of(is_array, lambda: door.fit(kept), folder)
    assert set(found) == {"array", "given", "wide", "data", "rows"}
    assert found["array"] == found["given"] == found["wide"] == {"door.py: fit"}
    assert found["data"] == {"Problem"}
    assert found["rows"] == {"core.py: Engine.__init__", "Engine"}


def test_an_object_is_no_name_of_itself(package):
    door, folder = package
    found = count_reader.names_of(
        lambda value: type(value).__name__ == "Engine", lambda: door.fit(1.0), folder
    )
    assert set(found) == {"engine"}


# ---- what may not rise: who lowers a count lowers its bound ----

#: files, functions, Python calls, deepest stack. Searches take other steps after other rounding
CALLS = {
    "fit_linear": (17, 138, 186, 12),
    "fit_linear, wide": (16, 137, 190, 12),
    "fit_gp": (21, 144, 315, 15),
    "predict_proba": (10, 46, 63, 9),
    "LinearClassifier": (25, 306, 1_100, 30),
    "LinearRegressor": (30, 356, 1_180, 21),
    "GPClassifier": (28, 425, 31_500, 31),
}
COUNTS = {
    "Any": 150,
    "parameters of Any": 92,
    "object": 3,
    "getattr, hasattr, vars": 283,
    "cast": 2,
    "type: ignore": 37,
    "set in visit": 0,
    "fields of Problem": 9,
    "fields of Counts": 5,
    "longest function": 109,
    "functions over 60 lines": 15,
}
NAMES = {"loss in fit_linear": 2, "loss in the core, in fit_linear": 2, "K in fit_gp": 8}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_calls_run_through_no_more(name):
    if name[0].isupper():
        pytest.importorskip("sklearn")
    found = count_reader.call_counts(count_reader.calls()[name])
    for count, bound in zip(("files", "functions", "calls", "deepest"), CALLS[name], strict=True):
        assert 0 < found[count] <= bound, (count, found[count])


def test_the_source_has_no_more():
    found = count_reader.source_counts()
    assert found.keys() == COUNTS.keys() | {"parameters"}
    assert {name: found[name] for name in COUNTS if found[name] > COUNTS[name]} == {}


def test_objects_have_no_more_names():
    found = count_reader.objects()
    assert found.keys() == NAMES.keys()
    assert {what: set(names) for what, names in found.items() if len(names) > NAMES[what]} == {}
    assert all(found.values())


def test_all_calls_are_held():
    assert set(count_reader.calls()) == set(CALLS)

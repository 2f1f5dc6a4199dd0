"""The steps of a fit, as the page *Inside the library* lists them: a trace, told by docstrings.

    python tools/one_fit.py [--write]      # --write: into docs/internals.rst, else to the screen

A list has the functions that a call runs through, in the order of their first calls, each below the
one that it is called from: of each file the one that runs through most others, those that run
through many, and those of KEY. A second list leaves out the files of the first, and what runs below
a function that both have. The clause is the first one of the docstring.
"""

import argparse
import importlib
import importlib.util
import inspect
import re
import sys
import types
import warnings
from pathlib import Path
from typing import Any, NamedTuple

from epfast.inference import Engine

PLACE = Path(__file__)
PAGE = PLACE.parents[1] / "docs" / "internals.rst"
spec = importlib.util.spec_from_file_location("count_reader", PLACE.with_name("count_reader.py"))
assert spec is not None
assert spec.loader is not None
count_reader = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = count_reader  # for its type annotations
spec.loader.exec_module(count_reader)

#: the calls, as on the page, and how many functions one runs through that is listed for that alone
LISTS = {"fit_linear": 20, "LinearClassifier": 60}
#: methods that are listed whatever they run through: those of a sweep
KEY = {"sweep", "visit", "rebuild"}
#: a function that runs through no more than its caller's share of this is a step of its own
SHARE = 0.9


class Line(NamedTuple):
    """A step of a list."""

    #: of its indentation, from 0
    level: int
    file: str
    function: str
    clause: str

    def __str__(self) -> str:
        return f"{'  ' * self.level}- `{self.file}` **{self.function}**: {self.clause}"


class Place(NamedTuple):
    """The first call of a function."""

    file: str
    function: str
    depth: int
    #: when it begins and ends, in calls
    begin: int
    end: int
    #: how many functions it runs through
    size: int

    @property
    def shown(self) -> str:
        """The function as lists have it."""
        return self.function.removesuffix(".__init__").replace(".<locals>", "")

    @property
    def is_key(self) -> bool:
        return self.function.rsplit(".", 1)[-1] in KEY


def places_of(name: str) -> list[Place]:
    """The functions that a call runs through, in the order of their first calls."""
    call = count_reader.calls()[name]
    call()
    steps = count_reader.steps_of(call)
    found: dict[object, Place] = {}
    for begin, step in enumerate(steps):
        if step.code not in found:
            end = begin + 1
            while end < len(steps) and steps[end].depth > step.depth:
                end += 1
            size = len({inner.code for inner in steps[begin + 1 : end]})
            place = Place(step.file, step.function, step.depth, begin, end, size)
            found[step.code] = place
    return list(found.values())


def module_of(place: Place) -> types.ModuleType:
    """The module of a function."""
    name = place.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return importlib.import_module(f"epfast.{name}")


def docstring_of(place: Place) -> str | None:
    """The docstring of a function, its own or inherited; of an ``__init__`` that of the class."""
    name = place.function.removesuffix(".__init__")
    one: Any = None if name.endswith("__") else module_of(place)
    for part in name.split("."):
        one = getattr(one, part, None)
    text = None if one is None else inspect.getdoc(one)
    if not text and place.is_key:
        text = inspect.getdoc(getattr(Engine, name.rsplit(".", 1)[-1], None))
    return text


def clause_of(place: Place) -> str:
    """The first clause of the docstring, or where there is none of that of the module."""
    text = docstring_of(place) or module_of(place).__doc__ or ""
    clause = re.split(r"[.;:](?:\s|$)", text)[0].replace("\n", " ")
    return re.sub(r":\w+:`~?\.?([^`]*)`", r"`\1`", clause).replace("``", "`")


def without_wrappers(place: Place, others: list[Place]) -> Place:
    """The last function of the same file that runs, below one, through nearly as many."""
    below = [one for one in others if place.begin < one.begin < place.end]
    below = [one for one in below if one.file == place.file and one.size >= SHARE * place.size]
    return below[-1] if below and place.size else place


def lines_of(name: str, before: dict[str, list[Line]]) -> list[Line]:
    """The list of a call, beside lists that come before it."""
    places = places_of(name)
    known = {(line.file, line.function) for lines in before.values() for line in lines}
    told = [place for place in places if docstring_of(place)]
    chosen: set[Place] = set()
    for file in {place.file for place in places} - {file for file, _ in known}:
        own = [place for place in told if place.file == file]
        own = own or [place for place in places if place.file == file]
        chosen.add(without_wrappers(max(own, key=lambda place: place.size), own))
    lines: list[Line] = []
    above: list[Place] = []  # those of the list that have not ended
    shared_until = -1
    for place in places:
        above = [one for one in above if one.end > place.begin]
        is_shared = (place.file, place.shown) in known and place.size >= min(LISTS.values())
        within = above[-1].size if above else float("inf")
        is_large = LISTS[name] <= place.size <= SHARE * within
        is_large = is_large and without_wrappers(place, told) is place
        is_large = place in told and (is_large or is_shared or place.is_key)
        if place in chosen or (is_large and place.begin >= shared_until):
            lines.append(Line(len(above), place.file, place.shown, clause_of(place)))
            above.append(place)
            shared_until = max(shared_until, place.end if is_shared else -1)
    return lines


def lists() -> dict[str, list[Line]]:
    """The list of each call."""
    found: dict[str, list[Line]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in LISTS:
            found[name] = lines_of(name, found)
    return found


def as_rst(lines: list[Line]) -> str:
    """A nested list, with blank lines where the level changes."""
    text, level = "", 0
    for line in lines:
        text += "\n" * (line.level != level) + f"{line}\n"
        level = line.level
    return text


def written(name: str, page: str) -> list[Line]:
    """The list of a call on the page."""
    match = block(name).search(page)
    pattern = r"^( *)- `(.*?)` \*\*(.*?)\*\*: (.*)$"
    found = re.findall(pattern, match[2], re.M) if match else []
    return [Line(len(indent) // 2, *parts) for indent, *parts in found]


def faults(name: str, lines: list[Line], elsewhere: set[str]) -> list[str]:
    """What is wrong with the list of a call. elsewhere: files that other lists have."""
    places = {(place.file, place.shown): place for place in reversed(places_of(name))}
    found: list[str] = []
    above: list[Place] = []
    begin = -1
    for line in lines:
        place = places.get(line[1:3])
        if place is None:
            found.append(f"{line.file}: {line.function} is not run")
            continue
        above = above[: line.level]
        if place.begin <= begin or (above and place.begin >= above[-1].end):
            found.append(f"{line.file}: {line.function} runs at another place")
        if line.clause != clause_of(place):
            found.append(f"{line.file}: {line.function} is said to do something else")
        begin = place.begin
        above.append(place)
    files = {file for file, _ in places} - {line.file for line in lines} - elsewhere
    return found + [f"{file} is not listed" for file in sorted(files)]


def block(name: str) -> re.Pattern[str]:
    """The list of a call on the page, and the two comments about it."""
    return re.compile(rf"(\.\. steps of {name}\n\n)(.*?)(\n\.\. end of steps\n)", re.S)


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--write", action="store_true", help="into docs/internals.rst")
    wanted = parser.parse_args()
    page = PAGE.read_text(encoding="utf-8")
    for name, lines in lists().items():
        page, n = block(name).subn(rf"\g<1>{as_rst(lines)}\g<3>", page)
        assert n == 1, f"{PAGE.name} has {n} lists of {name}"
        print(f"{name}\n\n{as_rst(lines)}")
    if wanted.write:
        PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()

"""The lists of steps in *Inside the library* are what a trace of the calls finds.

They are written anew by python tools/one_fit.py --write.
"""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[1]
if not (ROOT / "tools" / "one_fit.py").exists():
    pytest.skip("needs the tools of the source tree", allow_module_level=True)
spec = importlib.util.spec_from_file_location("one_fit", ROOT / "tools" / "one_fit.py")
one_fit = importlib.util.module_from_spec(spec)
spec.loader.exec_module(one_fit)

PAGE = (ROOT / "docs" / "internals.rst").read_text(encoding="utf-8")
LISTS = {name: one_fit.written(name, PAGE) for name in one_fit.LISTS}


def faults(name, lines):
    """Of a list, beside those before it on the page."""
    names = list(LISTS)
    before = names[: names.index(name)]
    return one_fit.faults(name, lines, {line.file for one in before for line in LISTS[one]})


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LISTS)
def test_the_page_has_the_steps_of_a_fit(name):
    if name != "fit_linear":
        pytest.importorskip("sklearn")
    assert 10 < len(LISTS[name]) < 40
    assert faults(name, LISTS[name]) == []


def test_the_steps_of_a_sweep_are_there():
    shown = {line.function.rsplit(".", 1)[-1] for line in LISTS["fit_linear"]}
    assert shown >= one_fit.KEY


def test_a_written_list_is_read_again():
    lines = one_fit.lines_of("fit_linear", {})
    page = "Steps\n\n.. steps of fit_linear\n\n\n.. end of steps\n\nMore\n"
    page = one_fit.block("fit_linear").sub(rf"\g<1>{one_fit.as_rst(lines)}\g<3>", page)
    assert one_fit.written("fit_linear", page) == lines
    assert faults("fit_linear", lines) == []


def test_faults_are_found():
    lines = LISTS["fit_linear"]
    first, second, *others = (k for k, line in enumerate(lines) if line.level == 1)
    swapped = list(lines)
    swapped[first], swapped[second] = lines[second], lines[first]
    assert any("runs at another place" in fault for fault in faults("fit_linear", swapped))
    away = lines[first].file
    left = [line for line in lines if line.file != away]
    assert f"{away} is not listed" in faults("fit_linear", left)
    other = [lines[0], lines[1]._replace(clause="It does something"), *lines[2:]]
    assert faults("fit_linear", other) == [
        f"{lines[1].file}: {lines[1].function} is said to do something else"
    ]
    gone = [*lines, lines[0]._replace(function="fit_nothing")]
    assert faults("fit_linear", gone) == [f"{lines[0].file}: fit_nothing is not run"]
    deep = [line._replace(level=2) if k > others[0] else line for k, line in enumerate(lines)]
    assert any("runs at another place" in fault for fault in faults("fit_linear", deep))

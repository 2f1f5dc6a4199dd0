"""The scripts of bench/: how they are named and found; one of them, run."""

import json
import re
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import bench
from bench.lib import harness

pytestmark = pytest.mark.full

FOLDER = Path(bench.__file__).parent


def test_every_script_is_listed():
    found = {
        ".".join(path.relative_to(FOLDER).with_suffix("").parts)
        for path in FOLDER.glob("*/*.py")
        if path.parent.name != "lib" and "\ndef run(options" in path.read_text(encoding="utf-8")
    }
    assert found == set(bench.SCRIPTS)


def test_full_names():
    assert [bench.full_name(name) for name in bench.SCRIPTS] == list(bench.SCRIPTS)


@pytest.mark.parametrize(
    ("name", "full"),
    [("table1", "roche2016.table1"), ("figures2_3", "roche2016.figures2_3"), ("gp", "speed.gp")],
)
def test_short_names(name, full):
    assert bench.full_name(name) == full


@pytest.mark.parametrize("name", ["", "table", "li2015", "lib.harness"])
def test_unknown_names(name):
    with pytest.raises(ValueError, match=f"no script '{name}'; those there are: roche2016.table1,"):
        bench.full_name(name)


def test_folders():
    assert bench.scripts("roche2016") == ["roche2016.table1", "roche2016.figures2_3"]
    assert "graph.ratings" in bench.scripts("graph")
    assert "smola2003.graph" not in bench.scripts("graph")
    assert bench.scripts("smola2003.graph") == ["smola2003.graph"]
    assert bench.scripts("gp") == ["speed.gp"]
    with pytest.raises(ValueError, match="no script 'lib'"):
        bench.scripts("lib")


def test_listing(run_python):
    code = "import runpy; runpy.run_module('bench', run_name='__main__', alter_sys=True)"
    lines = run_python(code, PYTHONPATH=str(FOLDER.parent)).stdout.splitlines()
    assert [line.split()[0] for line in lines[2:]] == list(bench.SCRIPTS)


def test_wrong_rows_of_exact_ep(run_python, tmp_path, data_folder):
    """On the authors' rows, the same in a quick run."""
    code = "from bench.__main__ import main; "
    code += "main(['jitkrittum2015.uci', '--quick', '--output', 'results'])"
    run_python(code, PYTHONPATH=str(FOLDER.parent))
    stored = json.loads((tmp_path / "results" / "jitkrittum2015_uci.json").read_text())
    wrong = {row["set"]: row["wrong, exact EP"] for row in stored["operators"]}
    sets = ("banknote", "blood", "fertility", "ionosphere")
    assert [wrong[name] for name in sets] == [36, 191, 28, 20]


def test_pictures_are_of_what_is_stored(tmp_path):
    """After a run, and with --draw without one."""
    drawn = []
    script = SimpleNamespace(
        __doc__="A script.",
        run=lambda _: {"n": np.float64(len(drawn))},
        draw=lambda stored, folder: drawn.append((stored["n"], folder)),
    )
    for options in (["--quick"], ["--draw"]):
        harness.run(script, "it", "it", ["--output", str(tmp_path), *options])
    assert drawn == [(0.0, tmp_path)] * 2


@pytest.mark.parametrize("quick", [True, False])
def test_what_a_run_stores(quick, tmp_path, monkeypatch, capsys):
    """A full run has its verdicts; a quick one has none, and is not pinned to a core."""
    pinned = []
    claim = ("section 1", "it holds", True, "1 > 0")
    script = SimpleNamespace(__doc__="A script.", run=lambda _: {"claims": [claim], "table": []})
    monkeypatch.setattr(harness.os, "sched_setaffinity", lambda *_: pinned.append(1), raising=False)
    monkeypatch.setattr(harness, "_quick", False)
    harness.run(script, "it", "it", ["--output", str(tmp_path)] + ["--quick"] * quick)
    stored = json.loads((tmp_path / "it.json").read_text())
    assert list(stored)[:4] == ["commit", "date", "machine", "quick"]
    assert ("claims" in stored) is ("[reproduces]" in capsys.readouterr().out) is not quick
    assert bool(pinned) is not quick
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", stored["date"])
    assert re.fullmatch(r"([0-9a-f]{10}\+?)?", stored["commit"])

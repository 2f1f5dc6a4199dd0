"""The scripts of bench/: how they are named and found; one of them, run."""

import json
from pathlib import Path

import pytest

import bench

FOLDER = Path(bench.__file__).parent


def test_every_script_is_listed():
    found = {
        ".".join(path.relative_to(FOLDER).with_suffix("").parts)
        for path in FOLDER.glob("*/*.py")
        if path.parent.name != "lib" and "\ndef run(options" in path.read_text(encoding="utf-8")
    }
    assert found == set(bench.SCRIPTS)


@pytest.mark.parametrize("name", bench.SCRIPTS)
def test_full_names(name):
    assert bench.full_name(name) == name


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "table"),
    [
        ("li2015.sampling", "table"),
        pytest.param("jitkrittum2015.batch", "learners", marks=pytest.mark.long),
        ("jitkrittum2015.uncertainty", "curves"),
        pytest.param("jitkrittum2015.compound_gamma", "operators", marks=pytest.mark.long),
        pytest.param("jitkrittum2015.online", "operators", marks=pytest.mark.long),
        ("jitkrittum2015.speed", "core"),
    ],
)
def test_run(run_python, tmp_path, name, table):
    check_run(run_python, tmp_path, name, table)


@pytest.mark.slow
def test_run_with_data(run_python, tmp_path, data_folder):
    stored = check_run(run_python, tmp_path, "jitkrittum2015.uci", "operators")
    # exact EP on the authors' rows, the same in a quick run
    wrong = {row["set"]: row["wrong, exact EP"] for row in stored["operators"]}
    sets = ("banknote", "blood", "fertility", "ionosphere")
    assert [wrong[name] for name in sets] == [36, 191, 28, 20]


def check_run(run_python, tmp_path, name, table):
    """Run the quick form of a script; what it stores."""
    code = f"from bench.__main__ import main; main(['{name}', '--quick', '--output', 'results'])"
    printed = run_python(code, PYTHONPATH=str(FOLDER.parent)).stdout
    stored = json.loads((tmp_path / "results" / f"{bench.SCRIPTS[name]}.json").read_text())
    assert stored["quick"]
    assert stored[table]
    for _, claim, _, _ in stored.get("claims", stored.get("goals")):
        assert claim in printed
    return stored

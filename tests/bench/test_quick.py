"""The quick form of every script of bench/: it works, in 20 s, and writes where it is told."""

import json
from pathlib import Path

import pytest

import bench

pytestmark = pytest.mark.full

FOLDER = Path(bench.__file__).parent
#: scripts without a quick form, and why
NONE = {
    "dask.accept": "two clusters of processes; tests/dask/ has its parts in small",
    "dask.order": "a cluster of processes",
}
SCRIPTS = [name for name in bench.SCRIPTS if name not in NONE]
#: seconds of the processor that a quick form takes at most on a quiet machine, how many times that
#: on a busy one, and the seconds of its clock after which a script hangs
MOST, BUSY, HANGS = 20.0, 3.0, 900
#: what a script says that lacks data, a package or a program
LACKS = ("set EPFAST_DATA", "No module named", "needs ", "pip install")
CODE = """
import os
from bench.__main__ import main
main(["{name}", "--quick", "--output", "results"])
print("seconds of the processor:", sum(os.times()[:4]))
"""


def stamps():
    """When each stored result was last changed."""
    return {p: p.stat().st_mtime_ns for p in (FOLDER / "results").rglob("*")}


@pytest.mark.cover(lambda name: SCRIPTS.index(name) // 12)  # the full tier runs a third
@pytest.mark.parametrize("name", SCRIPTS)
def test_quick_form(run_python, tmp_path, name):
    before = stamps()
    code = CODE.format(name=name)
    done = run_python(code, check=False, timeout=HANGS, PYTHONPATH=str(FOLDER.parent))
    if done.returncode and any(word in done.stderr.splitlines()[-1] for word in LACKS):
        pytest.skip(done.stderr.splitlines()[-1])
    assert done.returncode == 0, done.stderr
    assert stamps() == before
    assert [path.name for path in tmp_path.iterdir()] == ["results"]
    stored = json.loads((tmp_path / "results" / f"{bench.SCRIPTS[name]}.json").read_text())
    about = {"commit", "date", "machine", "quick"}
    assert about < set(stored)
    assert stored["quick"]
    assert not {"claims", "goals"} & set(stored)
    assert not any(word in done.stdout for word in ("reproduces", "not met", "[met"))
    assert float(done.stdout.rpartition(":")[2]) < MOST * BUSY

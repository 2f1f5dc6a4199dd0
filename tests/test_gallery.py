"""The scripts of the gallery run, draw, and print what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "examples" / "graph"
PAGE = (ROOT / "docs" / "gallery.rst").read_text(encoding="utf-8")
SCRIPTS = sorted(path.stem for path in FOLDER.glob("*.py"))
#: what hangs on the last digits: sampling after an optimiser, sweeps that go nowhere, and what a
#: learned operator asks
LOOSE = re.compile(
    r"[\d,]+ effective draws|not settled: .*|\d+ of \d+ messages|(?<=learned messages: ).*"
)


def test_each_is_on_the_page():
    for name in SCRIPTS:
        assert f"../examples/graph/{name}.py" in PAGE
        picture = ROOT / "docs" / "_static" / "gallery" / f"{name}.png"
        assert 5_000 < picture.stat().st_size < 100_000


@pytest.mark.slow
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(name, tmp_path):
    pytest.importorskip("matplotlib")
    picture, more = tmp_path / "picture.png", []
    if name == "football":
        data = Path(os.environ.get("EPFAST_DATA", "")) / "international_results.csv.gz"
        if not data.is_file():
            pytest.skip("needs international_results.csv.gz in EPFAST_DATA")
        more = [str(data)]
    # whether audits of a sampler find errors beyond the tolerance hangs on the last digits too
    audits = ["-W", "ignore::UserWarning"] if name == "learned" else []
    found = subprocess.run(
        [sys.executable, "-W", "error", *audits, str(FOLDER / f"{name}.py"), *more, str(picture)],
        env=os.environ | {"MPLBACKEND": "Agg", "PYTHONIOENCODING": "utf-8"},
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=600,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert found.stderr == ""
    assert picture.stat().st_size > 5_000
    assert "exact" in found.stdout
    page = LOOSE.sub("so many", PAGE)
    for line in LOOSE.sub("so many", found.stdout).splitlines():
        assert line in page, line

"""The tutorial page of clusters runs, and prints what it says."""

from pathlib import Path

import pytest

from tests.test_documentation import blocks_of_rst

PAGE = Path(__file__).parents[2] / "docs" / "dask.rst"


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:Port", "ignore:Sending large", "ignore::ResourceWarning")
def test_blocks_run(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    for start, block, printed in blocks_of_rst(text := PAGE.read_text(encoding="utf-8")):
        before = "\n" * text.count("\n", 0, start)
        exec(compile(before + block, PAGE, "exec"), names)
        out = capsys.readouterr().out
        if printed is not None:
            assert out == printed, block

"""Every stored result of the benches has its place on a page of tables."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_each_result_is_on_one_page():
    stored = {path.stem for path in (ROOT / "bench" / "results").glob("*.json")}
    shown = [
        name
        for page in (ROOT / "docs" / "tables").glob("*.rst")
        for name in re.findall(r"^\.\. bench:: (\w+)$", page.read_text(encoding="utf-8"), re.M)
    ]
    assert stored <= set(shown)
    assert len(shown) == len(set(shown))

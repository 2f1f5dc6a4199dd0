"""The checker of built pages finds each fault that it names."""

import importlib.util
from pathlib import Path

import pytest

pytestmark = pytest.mark.full
pytest.importorskip("snowballstemmer")

PATH = Path(__file__).parents[2] / "tools" / "check_pages.py"
if not PATH.exists():
    pytest.skip("needs the tools of the source tree", allow_module_level=True)
spec = importlib.util.spec_from_file_location("check_pages", PATH)
check_pages = importlib.util.module_from_spec(spec)
spec.loader.exec_module(check_pages)

GOOD = (
    '<html lang="en"><head><title>t</title></head><body><h1 id="top">T</h1><h2>a</h2>'
    '<a href="other.html#here">x</a><a href="https://example.org/">y</a>'
    '<img src="a.png" alt="a curve that falls"></body></html>'
)


def found(folder, text):
    (folder / "other.html").write_text('<html lang="en"><h1 id="here">O</h1></html>')
    (folder / "page.html").write_text(text)
    return check_pages.check(folder)


def test_a_good_page(tmp_path):
    assert found(tmp_path, GOOD) == []


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("other.html#here", "gone.html", "leads nowhere"),
        ("#here", "#gone", "no such anchor"),
        ("a curve that falls", "a.png", "alternative text"),
        ('alt="a curve that falls"', "", "alternative text"),
        (' lang="en"', "", "no language"),
        ("<h2>a</h2>", "<h3>a</h3>", "level 3 below one of level 1"),
        ("<h2>a</h2>", "<h1>a</h1>", "2 first headings"),
        ('"a.png"', '"https://example.org/a.png"', "loads https://example.org/a.png"),
        ("</body>", "x" * 300_000, "bytes"),
        ('"https://example.org/"', '"javascript:x"', "link javascript:x"),
    ],
)
def test_faults(tmp_path, before, after, said):
    (line,) = found(tmp_path, GOOD.replace(before, after, 1))
    assert said in line


def test_no_pages(tmp_path):
    assert check_pages.check(tmp_path) == [f"{tmp_path}: no pages"]


def test_searches(tmp_path, monkeypatch):
    monkeypatch.setattr(check_pages, "SEARCHES", ("mixed models", "survival"))
    index = '{"terms":{"mix":[0,2],"model":[1,2],"surviv":0},"titleterms":{}}'
    (tmp_path / "searchindex.js").write_text(f"Search.setIndex({index})")
    assert check_pages.searched(tmp_path) == []
    (tmp_path / "searchindex.js").write_text(
        f"Search.setIndex({index.replace('[1,2]', '1')})".replace('"surviv":0', '"tree":0')
    )
    assert check_pages.searched(tmp_path) == [
        "search for 'mixed models': no page",
        "search for 'survival': no page",
    ]

"""Results on the pages of tables: each has its place, and prose quotes what is stored."""

import json
import re
from pathlib import Path

import pytest

from bench.lib import stored

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "tables").glob("*.rst"))
RESULTS = sorted((ROOT / "bench" / "results").glob("*.json"))
ROLE = re.compile(r":(stored|given|\w+):`([^`]*)`")
#: what is no result: names of parts of a paper and of data, years
NAMES = re.compile(
    r"\b(?:tables?|figures?|sections?|appendix|equations?|eqs?\.?|experiments?|lemma|theorem|part|splits?)"
    r"\s+[A-Z]?\.?\d[\d.]*[a-z]?(?:(?:,| to| and|-)\s*[A-Z]?\.?\d[\d.]*[a-z]?)*"
    r"|\b(?:19|20)\d\d\b",
    re.IGNORECASE,
)
NUMBER = re.compile(r"(?<![\w.])[-.]?\d[\d.,]*(?:e-?\d+)?(?![\w])")


def read(path):
    return path.read_text(encoding="utf-8")


def prose(text):
    """A page without its directives and what is indented below them, but for cells of tables."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith(".. ") and not line.startswith(".. list-table"):
            inside = True
        elif line and not line.startswith(" "):
            inside = False
        if not inside and not line.lstrip().startswith(":"):
            lines.append(line)
    return "\n".join(lines)


def test_each_result_is_on_one_page():
    shown = [
        name for page in PAGES for name in re.findall(r"^\.\. bench:: (\w+)$", read(page), re.M)
    ]
    assert {path.stem for path in RESULTS} <= set(shown)
    assert len(shown) == len(set(shown))


def test_each_picture_is_on_one_page_in_words_too():
    pictures = sorted((ROOT / "bench" / "results").glob("*.png"))
    shown = [name for page in PAGES for name in re.findall(r"(\w+\.png): \S+ \S+", read(page))]
    assert sorted(shown) == [path.name for path in pictures]
    assert max(path.stat().st_size for path in pictures) < 60_000


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_each_result_says_what_it_is_of(path):
    document = json.loads(read(path))
    assert re.fullmatch(r"[0-9a-f]{10}", document["commit"])
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", document["date"])
    assert document["machine"]["cpu"]
    assert not document.get("quick")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_quoted_numbers_are_stored(page):
    text = read(page)
    wrong = [stored.wrong(quote) for kind, quote in ROLE.findall(text) if kind == "stored"]
    assert not list(filter(None, wrong))
    unmarked = NUMBER.findall(NAMES.sub("", ROLE.sub("", prose(text))))
    assert not unmarked


@pytest.mark.parametrize(
    ("text", "value", "same"),
    [
        ("1,747", 1747.3, True),
        ("1,747", 1746.4, False),
        (".05", 0.0549, True),
        ("-8.97", -8.974, True),
        ("3e-5", 3.4e-5, True),
        ("3e-5", 3.6e-5, False),
        ("90 %", 0.904, True),
        ("90 %", 0.9, True),
        ("yes", True, True),
        ("in part", None, True),
        ("21 of 40", "EP 21 of 40; power 2", True),
        ("2", "EP 21 of 40", False),
        ("1.4", "ratio 1.43", False),
        ("0.05", "within .05 sd", True),
        ("0.05", "within 0.05 sd", True),
        ("0.05", "within 10.05 sd", False),
        ("05", "within .05 sd", False),
    ],
)
def test_what_agrees(text, value, same):
    assert stored.agrees(text, value) is same


def test_paths(tmp_path):
    document = {
        "rows": [
            {"a": "x", "n": 1, "t": {"median": 2.0}},
            {"a": "y", "n": 2, "t": {"median": 5.0}},
        ],
        "claims": [["table 1", "it holds", True, "1.5 and 2"]],
        "by": {"one": {"v": 3}, "two": {"v": 4}},
    }
    for path, value in {
        "rows/a=x/t/median": 2.0,
        "rows/a=y,n=2/n": 2,
        "rows/*/t/median/max": 5.0,
        "rows/*/count": 2,
        "by/*/v/sum": 7,
        "rows/0/a": "x",
        "claims/claim=it holds/evidence": "1.5 and 2",
        "claims/where=table 1/holds": True,
    }.items():
        assert stored.look_up(document, path) == value, path
    (tmp_path / "it.json").write_text(json.dumps(document))
    assert not stored.wrong("2.0 <it:rows/a=x/t/median>", tmp_path)
    for quote, why in {
        "2.1 <it:rows/a=x/t/median>": "'2.1' is quoted, 2.0 is stored",
        "2.0 <it:rows/a=z/t/median>": "LookupError",
        "2.0 <it:rows/a=x/no>": "KeyError",
        "2.0 <no:rows>": "FileNotFoundError",
        "2.0": "is not 'number <result:path>'",
    }.items():
        assert why in stored.wrong(quote, tmp_path)

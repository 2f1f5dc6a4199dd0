"""Check the built documentation: links, pictures, headings, sizes, nothing from other hosts.

    python tools/check_pages.py FOLDER

Each link within the pages leads to a page and an anchor that exist. Each picture has an alternative
text of some words. Each page has a language, a title, one first heading, and no leap in headings.
No page is above 300,000 bytes, and none loads a script, a style or a font from another host.
The search finds a page for each of the words that newcomers search for.
"""

from __future__ import annotations

import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from snowballstemmer import stemmer

LARGEST = 300_000
#: pages that Sphinx writes and nobody reads through
OF_SPHINX = {"search.html", "genindex-all.html", "py-modindex.html"}
#: what loads a resource, and by which attribute
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
#: relations of <link> that load nothing
IDLE = {"canonical", "index", "search", "next", "prev", "copyright", "author"}
#: what users of other packages search for
SEARCHES = (
    *("random effect", "mixed model", "hierarchical", "multilevel", "bambi", "brms", "R-hat"),
    *("confidence interval", "missing value", "one-hot", "imbalanced", "regularisation"),
    *("survival", "time series", "multi-output", "cite", "benchmark", "pip install"),
    *("Gaussian process", "calibration", "prior", "GPy", "Stan", "INLA", "PyMC", "Dask"),
    *("probit regression", "Poisson regression", "label noise", "factor graph", "save a model"),
)


class Page(HTMLParser):
    """What a page holds and what is wrong with it by itself."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.headings: list[int] = []
        self.wrong: list[str] = []
        self.language = self.title = ""
        self.feed(text)
        if not self.language:
            self.wrong.append("no language")
        if self.headings.count(1) != 1:
            self.wrong.append(f"{self.headings.count(1)} first headings")
        for before, after in zip(self.headings, self.headings[1:], strict=False):
            if after > before + 1:
                self.wrong.append(f"a heading of level {after} below one of level {before}")

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "html":
            self.language = given.get("lang", "")
        elif tag == "a" and "href" in given:
            self.links.append(given["href"])
        elif tag in {"h1", "h2", "h3", "h4", "h5", "h6"}:
            self.headings.append(int(tag[1]))
        elif tag == "img" and "_thumb." in given.get("src", "") and given.get("alt") == "":
            pass  # of the gallery: the link beside it has the same words
        elif tag == "img" and len(given.get("alt", "").split()) < 3:
            self.wrong.append(f"picture {given.get('src')}: alternative text {given.get('alt')!r}")
        if tag in LOADS and not set(given.get("rel", "").split()) & IDLE:
            place = given.get(LOADS[tag], "")
            if urlsplit(place).netloc:
                self.wrong.append(f"loads {place}")


def check(folder: Path) -> list[str]:
    """What is wrong, a line each."""
    pages = {
        path.resolve(): Page(path.read_text(encoding="utf-8"))
        for path in sorted(folder.rglob("*.html"))
        if "_static" not in path.parts and path.name not in OF_SPHINX
    }
    found = []
    for path, page in pages.items():
        name = path.relative_to(folder.resolve()).as_posix()
        wrong = list(page.wrong)
        if path.stat().st_size > LARGEST:
            wrong.append(f"{path.stat().st_size:,} bytes; allowed: {LARGEST:,}")
        for link in dict.fromkeys(page.links):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if parts.scheme not in {"http", "https", "mailto"}:
                    wrong.append(f"link {link}")
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            if not there.exists():
                wrong.append(f"link {link} leads nowhere")
            elif there in pages and unquote(parts.fragment) not in pages[there].anchors | {""}:
                wrong.append(f"link {link}: no such anchor")
        found += [f"{name}: {line}" for line in wrong]
    return found if pages else [f"{folder}: no pages"]


def searched(folder: Path) -> list[str]:
    """Searches that find no page, by the index that the search page reads."""
    text = (folder / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("(") + 1 : text.rindex(")")])
    stem = stemmer("english").stemWord

    def pages(word: str) -> set[int]:
        entries = (index[kind].get(stem(word), []) for kind in ("terms", "titleterms"))
        return {page for one in entries for page in ([one] if isinstance(one, int) else one)}

    words = {search: re.findall(r"\w{2,}", search.lower()) for search in SEARCHES}
    return [
        f"search for {search!r}: no page"
        for search, given in words.items()
        if not set.intersection(*map(pages, given))
    ]


def main() -> int:
    """Print what is wrong; returns the exit status."""
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    folder = Path(sys.argv[1])
    found = check(folder) + searched(folder)
    print("\n".join(found) or "pages: links, pictures, headings, sizes, searches are right")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

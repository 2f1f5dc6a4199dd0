"""Check the built documentation for readers who see, hear or point otherwise: WCAG 2.1, A and AA.

    python tools/check_accessibility.py FOLDER AXE

AXE is axe.min.js of the npm package axe-core. It looks at each page as Chromium shows it, wide and
narrow, light and dark: contrast, names of links, alternative texts, order of headings, keys. Needs
the PyPI package playwright, and Chromium, whose path CHROMIUM names (default /usr/bin/chromium).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


def check(folder: Path, axe: str) -> dict[tuple[str, str], list[str]]:
    """Pages on which a rule is broken, by the rule and the element."""
    from playwright.sync_api import sync_playwright

    found: dict[tuple[str, str], list[str]] = {}
    pages = [path for path in sorted(folder.rglob("*.html")) if "_static" not in path.parts]
    with sync_playwright() as play:
        chromium = os.environ.get("CHROMIUM", "/usr/bin/chromium")
        browser = play.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for width in (1280, 390):
            for scheme in ("light", "dark"):
                page = browser.new_page(
                    viewport={"width": width, "height": 900}, color_scheme=scheme
                )
                for path in pages:
                    page.goto(path.resolve().as_uri())
                    page.evaluate(axe)
                    answer = page.evaluate("tags => axe.run(document, {runOnly: tags})", TAGS)
                    for rule in answer["violations"]:
                        for node in rule["nodes"]:
                            key = rule["id"], node["html"][:120]
                            where = f"{path.relative_to(folder)}, {width} px, {scheme}"
                            found.setdefault(key, []).append(where)
        browser.close()
    print(f"{len(pages)} pages, {len(found)} elements that break a rule")
    return found


def main() -> int:
    """Print what breaks a rule; returns the exit status."""
    if len(sys.argv) != 3:
        print(__doc__)
        return 2
    found = check(Path(sys.argv[1]), Path(sys.argv[2]).read_text(encoding="utf-8"))
    for (rule, html), places in sorted(found.items()):
        print(f"{rule}: {html}\n    {len(places)} times, as in {places[0]}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""What the theme and the gallery leave out for readers who use a keyboard or hear the page.

Found by tools/check_accessibility.py: headings of the sidebar without a level, boxes that scroll
and cannot be reached by keys, links of the gallery whose text is hidden.
"""

import re
from typing import Any


def mend(app: Any, pagename: str, templatename: str, context: dict[str, Any], doctree: Any) -> None:
    """Change the HTML of a page before it is written."""
    if tree := context.get("furo_navigation_tree"):
        context["furo_navigation_tree"] = tree.replace(
            'role="heading"', 'role="heading" aria-level="2"'
        )
    if body := context.get("body"):
        body = body.replace("<pre>", '<pre tabindex="0">')
        body = body.replace('<div class="table-wrapper', '<div tabindex="0" class="table-wrapper')
        context["body"] = re.sub(
            r'(<a class="reference internal" href="[^"]*")(><span class="doc">([^<"]*)</span></a>)',
            r'\1 aria-label="\3"\2',
            body,
        )


def setup(app: Any) -> dict[str, bool]:
    """Connect to Sphinx, after the theme."""
    app.connect("html-page-context", mend, priority=900)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

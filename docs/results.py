"""The directive ``bench``: the stored results of one script of bench/ as tables and pictures.

``.. bench:: table1`` shows bench/results/table1.json: first the verdicts on claims and on our own
aims, then, folded, every list or dictionary of records, its columns the scalar fields and the
medians of timings. A long table is cut: the file has the rest. The option ``pictures`` names PNG
files of bench/results to show with it, in one line each with what they show; one that is not there
is left out. The option ``only`` names the tables to show, of a script that stores many.

The role ``stored`` shows a number and fails where the results have another: bench/lib/stored.py.
The role ``given`` shows one that a paper or a script gives.
"""

import json
import os
import re
import sys
from html import escape
from pathlib import Path
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from docutils.statemachine import StringList
from sphinx.util.docutils import SphinxDirective

sys.path.insert(0, str(Path(__file__).parents[1]))
import bench
from bench.lib.stored import QUOTE, WORDS, wrong

#: rows of a folded table
MOST = 40
#: characters of a cell
LONGEST = 90
#: titles of the lists of verdicts
VERDICTS = {"claims": "Claims: which hold", "goals": "Our own aims: which hold"}
#: fields of a result that are said in words
ABOUT = ("commit", "date", "machine", "quick")
RESULTS = Path(bench.__file__).parent / "results"
#: the script that stores each
SCRIPTS = {result: script for script, result in bench.SCRIPTS.items()}


def cell(value: Any) -> str:
    """One cell; a number with four digits."""
    if isinstance(value, dict):
        value = value["median"]
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    text = whole(str(value).replace("\n", " "))
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"


def whole(value: Any) -> str:
    """One cell of a verdict: all of a text, with the 0 before a decimal point."""
    return re.sub(r"(?<![\w.])\.(?=\d)", "0.", value) if isinstance(value, str) else cell(value)


def is_cell(value: Any) -> bool:
    """Whether a field is a column: long curves are for the pictures."""
    return value is None or isinstance(value, str | int | float) or "median" in value


def records(value: Any) -> list[dict[str, Any]]:
    """The rows of a table, or nothing if the value is something else."""
    if not (isinstance(value, list) and value):
        return []
    if all(isinstance(row, dict) for row in value):
        return value
    # verdicts of the harness
    if all(isinstance(row, list) and len(row) == 4 and isinstance(row[0], str) for row in value):
        return [
            {"where": where, "claim": claim, "holds": WORDS[holds], "evidence": evidence}
            for where, claim, holds, evidence in value
        ]
    return []


def tables(title: str, value: Any, nests: bool = True) -> dict[str, list[dict[str, Any]]]:
    """The tables in a stored value by their titles: its records, or those of its parts if it nests.

    Parts of parts are left to the file: they are curves, which have their pictures.
    """
    if rows := records(value):
        return {title: rows}
    if not isinstance(value, dict) or is_cell(value):
        return {}
    if all(map(is_cell, value.values())):
        return {title: [{"what": key, "value": part} for key, part in value.items()]}
    if all(isinstance(part, dict) and all(map(is_cell, part.values())) for part in value.values()):
        return {title: [{"what": key, **part} for key, part in value.items()]}
    if not nests:
        return {}
    parts = [tables(f"{title}: {key}", part, nests=False) for key, part in value.items()]
    return {name: rows for part in parts for name, rows in part.items()}


class Bench(SphinxDirective):
    """See the module."""

    required_arguments = 1
    option_spec: ClassVar[dict] = {
        "pictures": directives.unchanged,
        "only": directives.unchanged,
    }

    def run(self) -> list[nodes.Node]:
        """Build the nodes."""
        name = self.arguments[0]
        path = RESULTS / f"{name}.json"
        self.env.note_dependency(str(path))
        if not path.exists():
            text = (
                f"Not run here: ``python -m bench {SCRIPTS[name]}`` writes this section's tables."
            )
            return self.parse([text])
        document = json.loads(path.read_text(encoding="utf-8"))
        machine = document["machine"]
        text = f"Run on {document['date']} at commit {document['commit'] or 'unknown'}"
        text += f", {machine['cpu']}; NumPy {machine['numpy']}"
        if machine.get("epfast"):
            ours = machine["epfast"]
            text += f"; epfast {ours['version']} with {ours['simd']} instructions"
        lines = [text + (". A quick run, not for quoting." if document.get("quick") else "."), ""]
        here = Path(self.env.doc2path(self.env.docname)).parent
        for line in filter(None, self.options.get("pictures", "").splitlines()):
            picture, _, shows = line.strip().partition(": ")
            if (RESULTS / picture).exists():
                relative = os.path.relpath(RESULTS / picture, here)
                lines += [f".. image:: {relative}", f"   :alt: {shows}", ""]
        found = self.parse(lines)
        only = self.options.get("only", "").split() or document
        shown: dict[str, list[dict[str, Any]]] = {}
        for key, value in document.items():
            if key in only and key not in ABOUT:
                shown |= tables(key, value)
        for key, title in VERDICTS.items():
            if rows := shown.pop(key, []):
                found += [nodes.rubric(text=title), self.table(rows, cut=False)]
        for key, rows in shown.items():
            more = f", the first {MOST} of {len(rows)} rows" if len(rows) > MOST else ""
            summary = f"{key.replace('_', ' ')}{more} (bench/results/{name}.json)"
            found += [
                nodes.raw("", f"<details><summary>{escape(summary)}</summary>", format="html"),
                self.table(rows[:MOST]),
                nodes.raw("", "</details>", format="html"),
            ]
        return found

    def parse(self, lines: list[str]) -> list[nodes.Node]:
        """Nodes of reStructuredText."""
        container = nodes.Element()
        self.state.nested_parse(StringList(lines, source=__file__), self.content_offset, container)
        return container.children

    @staticmethod
    def table(rows: list[dict[str, Any]], cut: bool = True) -> nodes.container:
        """Nodes of a table; its columns are the fields that are cells wherever they occur.

        cut: long cells. It scrolls within its own box where it is wide.
        """
        keys = [
            key
            for key in dict.fromkeys(key for row in rows for key in row)
            if all(is_cell(row.get(key)) for row in rows)
        ]
        group = nodes.tgroup(cols=len(keys))
        group += [nodes.colspec(colwidth=1) for _ in keys]
        head, body = nodes.thead(), nodes.tbody()
        lines = [[key.replace("_", " ") for key in keys]]
        lines += [[(cell if cut else whole)(row.get(key)) for key in keys] for row in rows]
        for i, line in enumerate(lines):
            # the words of a verdict are classes too, for their colours
            entries = [
                nodes.entry("", nodes.paragraph(text=text), classes=[text.replace(" ", "-")])
                if text in WORDS.values()
                else nodes.entry("", nodes.paragraph(text=text))
                for text in line
            ]
            (body if i else head).append(nodes.row("", *entries))
        group += [head, body]
        table = nodes.table("", group, classes=["bench" if cut else "verdicts"])
        return nodes.container("", table, classes=["bench-scroll"])


def stored(
    name: str, rawtext: str, text: str, lineno: int, inliner: Any, *_: Any
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """The role: a number, as it is in the results."""
    if message := wrong(text):
        return [], [inliner.reporter.error(message, line=lineno)]
    match = QUOTE.fullmatch(text)
    return [nodes.Text(match["text"] if match else "")], []


def given(
    name: str, rawtext: str, text: str, lineno: int, inliner: Any, *_: Any
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """The role: a number of a paper, or of a script."""
    return [nodes.Text(text)], []


def setup(app: Any) -> dict[str, bool]:
    """Register the directive and the roles."""
    app.add_directive("bench", Bench)
    app.add_role("stored", stored)
    app.add_role("given", given)
    return {"parallel_read_safe": True, "parallel_write_safe": True}

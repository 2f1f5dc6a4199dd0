"""Numbers that pages quote from stored results: ``:stored:`1,747 <table1:cells/.../max>```.

A path leads into bench/results/NAME.json by keys and positions. A step ``key=value,key=value``
keeps the records that have these values (``key^=value``: that begin so), further steps go into
each, and ``min``, ``max``, ``median``, ``mean``, ``sum`` and ``count`` make one number of all. A
list of verdicts is records of where, claim, holds and evidence; a text agrees with evidence, or
another string, that has it.
Slashes and commas beside a space are of a name.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"
QUOTE = re.compile(r"(?P<text>[^<]+?)\s*<(?P<result>\w+):(?P<path>[^>]+)>", re.DOTALL)
WORDS = {True: "yes", False: "no", None: "in part"}
REDUCED: dict[str, Callable[[list[Any]], Any]] = {
    "min": min,
    "max": max,
    "median": statistics.median,
    "mean": statistics.fmean,
    "sum": sum,
    "count": len,
}


def look_up(document: Any, path: str) -> Any:
    """Return what a path leads to. LookupError or TypeError if nothing, or several things."""
    found = [document]
    for step in re.split(r"(?<! )/(?! )", " ".join(path.split())):
        if not found:
            raise LookupError(f"nothing is left at {step!r}")
        if all(isinstance(v, dict) and step in v for v in found):
            found = [v[step] for v in found]
        elif step in REDUCED:
            found = [REDUCED[step](found)]
        elif "=" in step:
            wanted = [part.split("=", 1) for part in re.split(",(?! )", step)]
            rows = [row for value in found for row in value]
            found = [r for r in rows if all(fits(r, k, text) for k, text in wanted)]
        elif step == "*":
            found = [row for v in found for row in (v.values() if isinstance(v, dict) else v)]
        else:
            found = [v[int(step) if isinstance(v, list) else step] for v in found]
        if step in ("claims", "goals"):
            names = ("where", "claim", "holds", "evidence")
            found = [[dict(zip(names, row, strict=True)) for row in rows] for rows in found]
    (value,) = found
    return value


def fits(row: dict[str, Any], key: str, text: str) -> bool:
    """Whether a record has a field that is this text, or with ``key^`` begins with it."""
    value = shown(row.get(key.removesuffix("^")))
    return value.startswith(text) if key.endswith("^") else value == text


def shown(value: Any) -> str:
    """A field as a path has it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def agrees(text: str, value: Any) -> bool:
    """Whether a text is this value, rounded; "%" after it: a share."""
    if value is None or isinstance(value, bool):
        return text == WORDS[value]
    if isinstance(value, str):
        pattern = re.sub(r"^(0?)(?=\\\.)", "0?", re.escape(text))
        return re.search(rf"(?<![\d.]){pattern}(?!\.?\d)", value) is not None
    plain = text.replace(",", "").removesuffix("%").strip()
    number = float(plain)
    digits, _, exponent = plain.lower().partition("e")
    unit = 10.0 ** (int(exponent or 0) - len(digits.partition(".")[2]))
    scaled = 100.0 * value if text.endswith("%") else value
    return abs(scaled - number) <= 0.5000001 * unit


def wrong(quote: str, results: Path = RESULTS) -> str:
    """What is wrong with the contents of a role; "" if nothing is."""
    match = QUOTE.fullmatch(quote)
    if match is None:
        return f"{quote!r} is not 'number <result:path>'"
    text, result, path = match.group("text", "result", "path")
    try:
        document = json.loads((results / f"{result}.json").read_text(encoding="utf-8"))
        value = look_up(document, path)
        return "" if agrees(text, value) else f"{text!r} is quoted, {value!r} is stored: {quote!r}"
    except (LookupError, TypeError, ValueError, OSError) as error:
        return f"{quote!r}: {type(error).__name__}: {error}"

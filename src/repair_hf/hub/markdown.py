"""Markdown out of values that may come from strangers.

In:  captions, file names, answers of a model, options, numbers.
Out: code spans, fences and tables in which nothing of that is read as Markdown, HTML, a link or a mention.

A code span is the one place where no renderer of Markdown makes anything of a text: no tag, no emphasis, no address that becomes a link.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

NONE = "–"
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # Unicode's categories of what a page does not show as it is


def code(text: Any) -> str:
    """`text` as a code span on one line; a dash for None and for nothing."""
    line = " ".join("".join(map(_seen, str(text))).split()) if text is not None else ""
    if not line:
        return NONE
    fence = "`" * (_longest_run(line) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def fenced(text: str, language: str = "") -> str:
    """`text` as a block of code that it cannot end."""
    fence = "`" * max(_longest_run(text) + 1, 3)
    body = "\n".join("".join(map(_seen, line)) for line in text.splitlines())
    return f"{fence}{language}\n{body}\n{fence}"


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], *, labels: int = 1) -> str:
    """A table; numbers are grouped by thousands, strings stand as they are: put `code` around what comes from outside.

    Args:
        heads: Of the columns.
        rows: Cells; a number, a string of Markdown, or None.
        labels: How many columns, from the left, hold words and no numbers.
    """
    rule = ["---" if place < labels else "---:" for place in range(len(heads))]
    lines = [heads, rule, *(map(_cell, cells) for cells in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def without_folders(value: Any) -> Any:
    """Of an absolute path the last part: where it lay on somebody's machine is nobody's business. So in a list; all else as it is."""
    if isinstance(value, list):
        return [without_folders(each) for each in value]
    is_path = isinstance(value, str) and PurePath(value).is_absolute()
    return f"…/{PurePath(value).name}" if is_path else value


def _cell(value: Any) -> str:
    if value is None or value == "":
        return NONE
    if isinstance(value, float):
        return f"{value:,.3f}"
    text = f"{value:,}" if isinstance(value, int) else value
    return text.replace("|", r"\|").replace("\n", " ")  # in a table a bar ends the cell even inside a code span


def _seen(letter: str) -> str:
    if letter in "\t\n\r" or unicodedata.category(letter) not in _UNSEEN:
        return letter
    return f"\\u{ord(letter):04x}"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)

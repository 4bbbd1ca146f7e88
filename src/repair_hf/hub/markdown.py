"""Markdown from untrusted values.

Inside a code span, renderers of Markdown interpret nothing: no tag, no emphasis, no address.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

NONE = "–"
_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # Unicode categories of characters that a page hides


def code(text: Any) -> str:
    """Return `text` as a code span on one line; a dash if it is None or empty."""
    line = " ".join("".join(map(_seen, str(text))).split()) if text is not None else ""
    if not line:
        return NONE
    fence = "`" * (_longest_run(line) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def fenced(text: str, language: str = "") -> str:
    """Return `text` as a fenced block, with a fence that the text cannot close."""
    fence = "`" * max(_longest_run(text) + 1, 3)
    body = "\n".join("".join(map(_seen, line)) for line in text.splitlines())
    return f"{fence}{language}\n{body}\n{fence}"


def table(heads: Sequence[str], rows: Iterable[Sequence[Any]], *, labels: int = 1) -> str:
    """Write a table, with words in the first `labels` columns. Put untrusted text through `code` first."""
    rule = ["---" if place < labels else "---:" for place in range(len(heads))]
    lines = [[head.replace("|", r"\|") for head in heads], rule, *(map(_cell, cells) for cells in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def without_folders(value: Any) -> Any:
    """Shorten absolute paths, also in a list, to their last part: folders of a machine are private."""
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
    return text.replace("|", r"\|").replace("\n", " ")  # a bar ends the cell even inside a code span


def _seen(letter: str) -> str:
    if letter in "\t\n\r" or unicodedata.category(letter) not in _UNSEEN:
        return letter
    return f"\\u{ord(letter):04x}"


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)

"""Markdown from untrusted values.

Inside a code span, renderers of Markdown interpret nothing: no tag, no emphasis, no address.
"""

from __future__ import annotations

import re
import unicodedata
from pathlib import PurePath
from typing import Any

from repair_hf.analysis.tables import NONE

_UNSEEN = ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")  # Unicode categories of characters that a page hides


def code(text: Any) -> str:
    """Return `text` as a code span on one line; a dash if it is None or empty."""
    line = " ".join("".join(map(_seen, str(text))).split()) if text is not None else ""
    if not line:
        return NONE
    fence = "`" * (max(map(len, re.findall("`+", line)), default=0) + 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def without_folders(value: Any) -> Any:
    """Shorten absolute paths, also in lists and dicts, to their last part: folders of a machine are private."""
    if isinstance(value, list):
        return [without_folders(each) for each in value]
    if isinstance(value, dict):
        return {key: without_folders(each) for key, each in value.items()}
    is_path = isinstance(value, str) and PurePath(value).is_absolute()
    return f"…/{PurePath(value).name}" if is_path else value


def _seen(letter: str) -> str:
    if letter in "\t\n\r" or unicodedata.category(letter) not in _UNSEEN:
        return letter
    return f"\\u{ord(letter):04x}"

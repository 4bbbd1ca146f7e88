"""The wording of captions: without what does not change its meaning, and from lists that are stored as text."""

from __future__ import annotations

import ast
import json
import re
import unicodedata
from collections.abc import Sequence

_PLAIN_QUOTES = str.maketrans("‘’“”", "''\"\"")
_ENDINGS = " .,;:!?…。．，、；：！？؟،؛۔।"  # also Chinese, Japanese, Arabic, Urdu and Hindi ones
_TEXT = r"""(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")"""
_LIST = re.compile(rf"\s*(?:array\()?\[\s*(?:{_TEXT}[\s,]*)*\](?:,\s*dtype=[^)]+)?\)?\s*", re.DOTALL)
_NUMBER = re.compile(r"#\d+$")


def bare_caption(caption: str) -> str:
    """Normalize a caption's case, spacing, final punctuation, encoding of accents and form of apostrophes."""
    plain = unicodedata.normalize("NFC", caption).translate(_PLAIN_QUOTES).casefold()
    return " ".join(plain.split()).rstrip(_ENDINGS)


def lists_in(texts: Sequence[str | None]) -> list[list[str] | None] | None:
    """Parse lists of texts as JSON, Python or NumPy write them; None unless every text is one. Empty ones are none."""
    there = [text for text in texts if text]
    if not there or not all(map(_LIST.fullmatch, there)):
        return None
    return [[_text(found) for found in re.findall(_TEXT, text, re.DOTALL)] if text else None for text in texts]


def _text(literal: str) -> str:
    try:  # Python's texts have other escapes
        return json.loads(literal, strict=False)
    except ValueError:
        return ast.literal_eval(literal)


def without_numbers(names: Sequence[str | None]) -> list[str | None]:
    """Drop the numbers of captions, `x.jpg#0`, from the names of images, if all names end in one."""
    there = [name for name in names if name]
    if not there or not all(map(_NUMBER.search, there)):
        return list(names)
    return [_NUMBER.sub("", name) if name else name for name in names]

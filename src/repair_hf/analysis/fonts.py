"""Fonts of the pictures: DejaVu Sans, and for letters that it lacks the first font of this machine that has them."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from functools import lru_cache
from itertools import groupby

from matplotlib.font_manager import FontEntry, fontManager
from matplotlib.ft2font import FT2Font

OWN = "DejaVu Sans"
BOXES = "Last Resort High-Efficiency"  # comes with matplotlib, and has a box for every letter
CJK = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "BOPOMOFO", "IDEOGRAPHIC", "FULLWIDTH", "HALFWIDTH")


def runs(text: str) -> list[tuple[FontEntry, str]]:
    """Split a text by font."""
    return [(font, "".join(letters)) for font, letters in groupby(text, key=font_of)]


def families(text: str) -> list[str]:
    """Name the fonts that a text needs, for matplotlib, which adds the boxes itself."""
    return list(dict.fromkeys([OWN, *(font.name for font, _ in runs(text) if font != _named(BOXES))]))


def missing_letters(texts: Iterable[str]) -> list[str]:
    """List the letters that no font of this machine has."""
    return [letter for letter in sorted(set().union(*texts)) if font_of(letter) == _named(BOXES)]


def missing_font(letters: Iterable[str]) -> str:
    """Name fonts that have some letters."""
    scripts = [unicodedata.name(letter, "SYMBOLS").split()[0] for letter in letters]
    return " and ".join(sorted({f"Noto Sans {'CJK' if name in CJK else name.title()}" for name in scripts}))


@lru_cache(None)
def font_of(letter: str) -> FontEntry:
    """Find the own font or another of this machine that has a letter; boxes stand for it if none has."""
    own, boxes = _named(OWN), _named(BOXES)
    if not letter.isprintable():
        return own
    fonts = [own, *(font for font in fontManager.ttflist if font != boxes and font.style == "normal")]
    return next((font for font in fonts if ord(letter) in _letters(font.fname)), boxes)


@lru_cache(None)
def _named(name: str) -> FontEntry:
    fonts = (font for font in fontManager.ttflist if font.name == name and font.style == "normal")
    return next(font for font in fonts if font.weight in (400, "normal"))


@lru_cache(None)
def _letters(path: str) -> frozenset[int]:
    return frozenset(FT2Font(path).get_charmap())

"""Captions as words with a look, broken into lines, and the words that an edit changed."""

from __future__ import annotations

import difflib
import string
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from matplotlib.font_manager import FontProperties, findfont
from PIL import ImageFont

from repair_hf.analysis.charts import INK, MUTED, ROLES
from repair_hf.analysis.fonts import OWN, runs

Run = tuple[Literal["same", "out", "in"], str]

LEADING = 1.32  # line height over font size


@dataclass(frozen=True)
class Word:
    """A word and how it looks."""

    text: str
    colour: str = INK
    bold: bool = False
    struck: bool = False


LOOKS = {
    "same": Word(""),
    "out": Word("", ROLES["fp"], bold=True, struck=True),
    "in": Word("", ROLES["edit"], bold=True),
}


def words(text: str, colour: str = INK, *, bold: bool = False) -> list[Word]:
    """Split a text at any white space, line breaks included."""
    return [Word(text, colour, bold) for text in text.split()]


def compare(before: str, after: str) -> tuple[list[Run], list[Run]]:
    """Align two texts: `before` as kept and removed words, `after` as kept and added words.

    Words that differ only in case or punctuation count as the same.
    """
    old, new = before.split(), after.split()
    matcher = difflib.SequenceMatcher(None, [_bare(w) for w in old], [_bare(w) for w in new], autojunk=False)
    left: list[Run] = []
    right: list[Run] = []
    for kind, i, j, k, m in matcher.get_opcodes():
        is_same = kind == "equal"
        left.append(("same" if is_same else "out", " ".join(old[i:j])))
        right.append(("same" if is_same else "in", " ".join(new[k:m])))
    return [run for run in left if run[1]], [run for run in right if run[1]]


def marked_words(runs: list[Run]) -> list[Word]:
    """Give runs their look: removed words are struck through, added words are bold."""
    return [replace(LOOKS[kind], text=word) for kind, text in runs for word in text.split()]


def set_lines(content: list[Word], size: float, width: float, most: int) -> list[list[Word]]:
    """Break words into at most `most` lines of `width` points; a text that does not fit ends in an ellipsis."""
    lines: list[list[Word]] = [[]]
    for piece in (piece for word in content for piece in _pieces(word, size, width)):
        if lines[-1] and line_width([*lines[-1], piece], size) > width:
            lines.append([])
        if len(lines) > most:
            break
        lines[-1].append(piece)
    else:
        return lines
    last, end = lines[most - 1], Word("…", MUTED)
    while last and line_width([*last, end], size) > width:
        word = last.pop()
        if not last and len(word.text) > 1:  # a single long word loses letters, not itself
            last.append(replace(word, text=word.text[:-1]))
    return [*lines[: most - 1], [*last, end]]


def fit_lines(
    content: list[Word], sizes: tuple[float, ...], width: float, height: float
) -> tuple[list[list[Word]], float]:
    """Set words at the first of `sizes` at which all of them fit the box; the last size cuts."""
    for size in sizes:
        lines = set_lines(content, size, width, max(1, int(height / (size * LEADING))))
        if not lines[-1] or lines[-1][-1].text != "…":
            break
    return lines, size


def line_width(line: list[Word], size: float) -> float:
    """Width of words on one line, in points."""
    return sum(text_width(word.text, size, word.bold) for word in line) + text_width(" ", size) * (len(line) - 1)


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Width of a text, in points, in the fonts of the pictures."""
    own = findfont(FontProperties(family=OWN, weight="bold" if bold else "normal"))
    files = ((own if font.name == OWN else font.fname, run) for font, run in runs(text))
    return sum(_font(file).getlength(run) for file, run in files) * size / 1000


def is_right_to_left(line: list[Word]) -> bool:
    """Whether a line is written from the right, by its first letter that has a direction."""
    kinds = (unicodedata.bidirectional(letter) for word in line for letter in word.text)
    return next((kind in ("R", "AL") for kind in kinds if kind in ("L", "R", "AL")), False)


@lru_cache(None)
def _font(path: str) -> ImageFont.FreeTypeFont:
    return ImageFont.truetype(path, 1000)


def _bare(word: str) -> str:
    return word.lower().strip(string.punctuation) or word


def _pieces(word: Word, size: float, width: float) -> Iterator[Word]:
    """Cut a word that is wider than the line, such as a URL."""
    rest = word.text
    while len(rest) > 1 and text_width(rest, size, word.bold) > width:
        cut = 1
        while text_width(rest[: cut + 1], size, word.bold) <= width:
            cut += 1
        yield replace(word, text=rest[:cut])
        rest = rest[cut:]
    yield replace(word, text=rest)

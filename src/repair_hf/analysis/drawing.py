"""Paper and pen: what Pillow lacks for setting captions beside pictures.

In:  words with a colour, boxes in pixels, pictures.
Out: lines that fit their box; ink on a picture.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

import matplotlib
from PIL import Image, ImageColor, ImageDraw, ImageFont, ImageOps

from repair_hf.analysis.differences import Run, both_sides

INK, MUTED, PAPER, CARD, RULE = "#1f2933", "#5c6773", "#eef0f3", "#ffffff", "#d5dae0"
# Okabe and Ito's palette: apart for every kind of colour vision.
ROLES = {"q": "#5c6773", "gt": "#009e73", "fp": "#d55e00", "edit": "#0072b2"}
LEADING, MARGIN = 1.32, 28  # line height over font size; pixels around a picture


@dataclass(frozen=True)
class Word:
    """A word and how it looks."""

    text: str
    colour: str = INK
    bold: bool = False
    struck: bool = False


def words(text: str, colour: str = INK, *, bold: bool = False) -> list[Word]:
    """Split at any white space, so that a line break in a caption cannot break the layout."""
    return [Word(text, colour, bold) for text in text.split()]


def changes(before: str, after: str) -> tuple[list[Word], list[Word]]:
    """Both texts, with what the edit took out struck through and what it put in set bold."""
    old, new = both_sides(before, after)
    return _drawn(old), _drawn(new)


def set_lines(content: list[Word], size: int, width: int, most: int) -> list[list[Word]]:
    """Break words into at most `most` lines of `width` pixels; what does not fit ends in an ellipsis."""
    lines: list[list[Word]] = [[]]
    right = 0.0  # where the last line ends
    for piece in (piece for word in content for piece in _pieces(word, size, width)):
        length = font(size, piece.bold).getlength(piece.text)
        if lines[-1] and right + _space(size) + length > width:
            lines.append([])
        if len(lines) > most:
            break
        right = length if not lines[-1] else right + _space(size) + length
        lines[-1].append(piece)
    else:
        return lines
    last, end = lines[most - 1], Word("…", MUTED)
    while last and line_width([*last, end], size) > width:
        word = last.pop()
        if not last and len(word.text) > 1:  # a single long word loses letters rather than itself
            last.append(replace(word, text=word.text[:-1]))
    return [*lines[: most - 1], [*last, end]]


def fit_lines(content: list[Word], sizes: tuple[int, ...], width: int, height: int) -> tuple[list[list[Word]], int]:
    """Take the first of `sizes` at which all the words fit the box; the last one cuts."""
    for size in sizes:
        most = max(1, int(height / (size * LEADING)))
        lines = set_lines(content, size, width, most)
        if size == sizes[-1] or not lines[-1] or lines[-1][-1].text != "…":
            return lines, size
    raise ValueError("`sizes` is empty; give at least one font size.")


def write(pen: ImageDraw.ImageDraw, x: float, y: float, lines: list[list[Word]], size: int) -> float:
    """Write lines from the upper left corner on; give back where the next line would begin."""
    for line in lines:
        left = x
        for word in line:
            face = font(size, word.bold)
            pen.text((left, y), word.text, fill=word.colour, font=face)
            right = left + face.getlength(word.text)
            if word.struck:
                pen.line((left, y + size * 0.66, right, y + size * 0.66), fill=word.colour, width=max(2, size // 11))
            left = right + _space(size)
        y += size * LEADING
    return y


def line_width(line: list[Word], size: int) -> float:
    """Width in pixels of words set on one line."""
    return sum(font(size, word.bold).getlength(word.text) for word in line) + _space(size) * (len(line) - 1)


def title_bar(text: str, aside: str, width: int) -> Image.Image:
    """A dark bar with a title at the left and small print at the right."""
    bar = Image.new("RGB", (width, 92), INK)
    pen = ImageDraw.Draw(bar)
    title = words(text, "white", bold=True)
    write(pen, MARGIN, 25, [title], 34)
    lines = set_lines(words(aside, "#c3cad3"), 18, int(width - 3 * MARGIN - line_width(title, 34)), 1)
    write(pen, width - MARGIN - line_width(lines[0], 18), 38, lines, 18)
    return bar


def text_box(pen: ImageDraw.ImageDraw, box: tuple[int, ...], content: list[Word], colour: str) -> None:
    """Set words in the middle of a tinted box; many words are set smaller."""
    x, y, right, bottom = box
    pen.rectangle(box, fill=tint(colour))
    pen.rectangle((x, y, x + 4, bottom), fill=colour)
    lines, size = fit_lines(content, (26, 23, 20, 17), right - x - 40, bottom - y - 24)
    write(pen, x + 22, y + (bottom - y - len(lines) * size * LEADING) / 2, lines, size)


def contain(picture: Image.Image, width: int, height: int) -> Image.Image:
    """The whole picture, as large as the box allows."""
    return ImageOps.contain(picture.convert("RGB"), (width, height), Image.Resampling.LANCZOS)


def tint(colour: str, share: float = 0.07) -> tuple[int, int, int]:
    """A colour thinned with white."""
    return tuple(round(255 + share * (channel - 255)) for channel in ImageColor.getrgb(colour))


@lru_cache
def font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """The font that comes with matplotlib: the same on every machine, with the letters of most alphabets."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)


def _drawn(runs: list[Run]) -> list[Word]:
    looks = {
        "same": Word(""),
        "out": Word("", ROLES["fp"], bold=True, struck=True),
        "in": Word("", ROLES["edit"], bold=True),
    }
    return [replace(looks[kind], text=word) for kind, text in runs for word in text.split()]


def _space(size: int) -> float:
    return font(size).getlength(" ")


def _pieces(word: Word, size: int, width: int) -> Iterator[Word]:
    """Cut a word that is wider than the line, such as a URL."""
    measure, rest = font(size, word.bold).getlength, word.text
    while len(rest) > 1 and (len(rest) > 200 or measure(rest) > width):
        fits = bisect.bisect_right(range(1, 200), width, key=lambda n, rest=rest: measure(rest[:n]))
        cut = min(max(fits, 1), len(rest) - 1)
        yield replace(word, text=rest[:cut])
        rest = rest[cut:]
    yield replace(word, text=rest)

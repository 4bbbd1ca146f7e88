"""A sheet of paper: a matplotlib figure that is drawn on in points, from its upper left corner."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from PIL import Image

from repair_hf.analysis.charts import CARD, DPI, chart
from repair_hf.analysis.fonts import families
from repair_hf.analysis.typesetting import LEADING, Word, fit_lines, is_right_to_left, line_width

WIDTH = 504  # points: both columns of a paper
CAPTION_SIZES = (9.0, 8.0, 7.0, 6.0)
Box = tuple[float, float, float, float]  # left, top, width, height


@dataclass(frozen=True)
class Sheet:
    """A figure that is drawn on in points, from its upper left corner."""

    figure: Figure
    axes: Axes

    def write(self, x: float, y: float, lines: list[list[Word]], size: float) -> float:
        """Write lines and return where the next line begins."""
        for line in lines:
            left = x
            parts = [(look, list(group)) for look, group in groupby(line, key=lambda word: replace(word, text=""))]
            for look, run in reversed(parts) if is_right_to_left(line) else parts:
                right = left + line_width(run, size)
                text = " ".join(word.text for word in run)
                names = families(text)
                weight = "bold" if look.bold and len(names) == 1 else "normal"
                # parse_math: dollar signs of a caption are letters
                font: dict[str, Any] = {"family": names, "weight": weight, "size": size, "color": look.colour}
                self.axes.text(left, y + 0.93 * size, text, parse_math=False, **font)
                if look.struck:
                    middle = y + 0.66 * size
                    self.axes.plot([left, right], [middle, middle], color=look.colour, lw=size / 10)
                left = right + line_width([Word(""), Word("")], size)
            y += size * LEADING
        return y

    def write_right(self, right: float, y: float, line: list[Word], size: float) -> None:
        self.write(right - line_width(line, size), y, [line], size)

    def fill(self, box: Box, colour: Any, *, edge: Any = None) -> None:
        x, y, width, height = box
        self.axes.add_patch(Rectangle((x, y), width, height, facecolor=colour, edgecolor=edge, lw=0.6 if edge else 0))

    def show(self, box: Box, image: Image.Image, resample: Image.Resampling = Image.Resampling.LANCZOS) -> None:
        """Draw the whole image, as large as the box allows."""
        x, y, width, height = box
        scale = min(width / image.width, height / image.height)
        across, down = image.width * scale, image.height * scale
        pixels = (max(round(across * DPI / 72), 1), max(round(down * DPI / 72), 1))
        left, top = x + (width - across) / 2, y + (height - down) / 2
        shown = image.convert("RGB").resize(pixels, resample)
        extent = (left, left + across, top + down, top)
        self.axes.imshow(np.asarray(shown), extent=extent, aspect="auto", interpolation="nearest", zorder=1)

    def caption(self, box: Box, content: list[Word], colour: str) -> None:
        """Set words in the middle of a tinted box; many words are set smaller."""
        x, y, width, height = box
        self.fill(box, 1 - 0.07 * (1 - np.array(to_rgb(colour))))
        self.fill((x, y, 1.5, height), colour)
        lines, size = fit_lines(content, CAPTION_SIZES, width - 13, height - 6)
        self.write(x + 8, y + (height - len(lines) * size * LEADING) / 2, lines, size)


@contextmanager
def open_sheet(height: float, colour: str = CARD) -> Iterator[Sheet]:
    """Make a sheet of `WIDTH` and a height in points."""
    with chart(height / 72, width=WIDTH / 72) as (figure, axes):
        figure.set_layout_engine("none")
        figure.set_facecolor(colour)
        axes.set_position((0, 0, 1, 1))
        axes.axis("off")
        axes.set(xlim=(0, WIDTH), ylim=(height, 0))
        yield Sheet(figure, axes)

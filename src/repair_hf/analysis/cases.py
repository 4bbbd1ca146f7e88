"""Case studies: one record as a figure, with what the edit changed set apart.

In:  a record.
Out: a figure. Of a caption the changed words are struck through and bold; of an image the changed pixels are shown as a heat map.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from repair_hf.analysis.charts import chart
from repair_hf.analysis.differences import both_sides
from repair_hf.analysis.drawing import ROLES, RULE
from repair_hf.analysis.lettering import write
from repair_hf.runtime.options import UserError

WIDTH = 7.0  # inches: both columns of a paper
CHANGED = 0.1  # of the range of a colour; less is the noise of an encoder
NAMES = {"q": "query", "gt": "ground truth", "fp": "false positive", "edit": "edit"}


def case_figure(record: dict[str, Any]) -> Figure:
    """Draw a record: query, ground truth, false positive, edit, and what differs between the last two.

    Args:
        record: A row of `load_records`, pictures inside.

    Raises:
        UserError: If the record lacks its pictures.
    """
    pictures = ("gt", "fp", "edit") if record["direction"] == "t2i" else ("q",)
    if lacking := [role for role in pictures if record[f"{role}_image"] is None]:
        raise UserError(
            f"Record {record['record_id']} lacks the pictures of {', '.join(lacking)}; join them with --pairs."
        )
    return _image_case(record) if record["direction"] == "t2i" else _caption_case(record)


def changed_pixels(before: Image.Image, after: Image.Image) -> np.ndarray:
    """How far each pixel's colour moved, from 0 to 1: the largest difference of its three channels.

    Shape:
        Returns (height, width) of `before`; `after` is brought to its size.
    """
    one = np.asarray(before.convert("RGB"), float)
    other = np.asarray(after.convert("RGB").resize(before.size, Image.Resampling.BICUBIC), float)
    return np.abs(one - other).max(axis=2) / 255


def _image_case(record: dict[str, Any]) -> Figure:
    heat = changed_pixels(record["fp_image"], record["edit_image"])
    with chart(2.9, columns=4, width=WIDTH) as (figure, panels):
        figure.set_layout_engine("none")
        for place, axes in enumerate(panels):
            axes.set_position([0.01 + 0.2475 * place, 0.15, 0.2375, 0.57])
        for axes, role in zip(panels, ("gt", "fp", "edit"), strict=False):
            _picture(axes, record[f"{role}_image"], _label(record, role), ROLES[role])
        _picture(panels[3], heat, f"changed pixels\n{np.mean(heat > CHANGED):.0%} of the picture", "#222222")
        _line(figure, 0.98, "query", record["q_text"], ROLES["q"])
        _line(figure, 0.12, "instruction", record["edit_instruction"], "#222222")
    return figure


def _caption_case(record: dict[str, Any]) -> Figure:
    with chart(2.1, columns=2, width=WIDTH) as (figure, (left, right)):
        figure.set_layout_engine("none")
        left.set_position([0.01, 0.04, 0.24, 0.84])
        right.set_position([0.28, 0.04, 0.71, 0.9])
        _picture(left, record["q_image"], "query", ROLES["q"])
        right.axis("off")
        fp, edit = both_sides(record["fp_text"], record["edit_text"])
        texts = {"gt": [("same", record["gt_text"])], "fp": fp, "edit": edit}
        y = 1.0
        for role, runs in texts.items():
            right.text(
                0,
                y,
                _label(record, role).replace("\n", " · "),
                color=ROLES[role],
                weight="bold",
                size=7,
                va="top",
                transform=right.transAxes,
            )
            y = write(right, 0, y - 0.09, runs, size=8.5) - 0.03
        right.text(0, y, "instruction", color="#222222", weight="bold", size=7, va="top", transform=right.transAxes)
        write(right, 0, y - 0.09, [("same", record["edit_instruction"] or "not on record")], size=7)
    return figure


def _label(record: dict[str, Any], role: str) -> str:
    rank, score = record.get(f"{role}_rank"), record.get(f"{role}_score")
    if role == "edit":
        near = record["edit_similarity"]
        return "edit" if near is None else f"edit\ncos to false positive {near:.3f}"
    return NAMES[role] + ("" if rank is None or score is None else f"\nrank {rank}, cos {score:.3f}")


def _picture(axes: Axes, picture: Image.Image | np.ndarray, label: str, colour: str) -> None:
    if isinstance(picture, np.ndarray):
        axes.imshow(picture, cmap="inferno", vmin=0, vmax=1, interpolation="nearest")
    else:
        axes.imshow(picture.convert("RGB"), interpolation="lanczos")
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.set_title(label, color=colour, weight="bold", fontsize=6.6, loc="left", pad=3)
    for spine in axes.spines.values():
        spine.set(visible=True, color=RULE)


def _line(figure: Figure, y: float, name: str, text: str | None, colour: str) -> None:
    """A labelled text over the whole width."""
    axes = figure.add_axes([0.01, 0, 0.98, 1])
    axes.axis("off")
    axes.text(0, y, name, color=colour, weight="bold", size=7, va="top")
    write(axes, 0.1, y, [("same", text or "not on record")], size=7, width=0.9)

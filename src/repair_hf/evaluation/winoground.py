"""Winoground (Thrush et al., 2022): two pictures and two captions of the same words, each true of one picture.

`repair-hf export near-misses` writes the same columns; its rows are reported as `winoground_near_misses`.

It comes from the Hub (`facebook/winoground`, whose terms must be accepted) or from a folder with `examples.jsonl` and
`images`. Measures: `text`, each picture is nearer to its own caption than to the other; `image`, each caption is
nearer to its own picture; `group`, both.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from repair_hf.evaluation.cases import Cases, Metric, Photographs, find_photographs, numbered, whole_or_subset
from repair_hf.evaluation.hub import EXPORTED, EncodedImages, exported_kinds, load_test_rows
from repair_hf.runtime.files import read_lines
from repair_hf.runtime.options import UserError
from repair_hf.runtime.texts import UnreadableText

PUBLISHED = 400
NEEDED = ("image_0", "image_1", "caption_0", "caption_1")


def load_winoground(source: str, image_folders: Sequence[Path], *, subset: bool = False) -> Cases:
    """Read Winoground from a Hub id or a folder; with `subset`, the cases whose pictures are found.

    Raises:
        UserError: If cases or pictures are missing.
    """
    pictures: list[Path] | EncodedImages
    if (Path(source) / "examples.jsonl").is_file():
        rows, pictures, missing = _from_folder(Path(source), image_folders)
    else:
        dataset = load_test_rows(source, NEEDED[:2], NEEDED[2:], EXPORTED)
        rows, missing = dataset.remove_columns(list(NEEDED[:2])).to_list(), []
        pictures = EncodedImages(dataset, NEEDED[:2])
    kinds = exported_kinds(rows)
    benchmark = "winoground" if not kinds else "winoground_near_misses"
    if not kinds:
        benchmark = whole_or_subset(benchmark, found=len(rows), published=PUBLISHED, missing=missing, subset=subset)
    captions, caption = numbered([[row[name] for name in NEEDED[2:]] for row in rows])
    ids = [str(row.get("id", place)) for place, row in enumerate(rows)]
    return Cases(
        benchmark,
        Photographs(pictures),
        captions,
        np.arange(2 * len(rows)).reshape(-1, 2),
        caption,
        ids,
        [row["image_id"] for row in rows] if kinds else ids,
        kinds or ["all"] * len(rows),
        judge,
        tuple(
            Metric(f"{measure}{suffix}", measure, group)
            for measure in ("text", "image", "group")
            for suffix, group in {"": None, **{f"_{kind}": (kind,) for kind in sorted(set(kinds))}}.items()
        ),
    )


def judge(scores: np.ndarray, _: np.ndarray | None) -> dict[str, np.ndarray]:
    """Map (n, 2, 2) cosines, pictures by captions, to the smaller of the two margins of each measure."""
    own = np.diagonal(scores, axis1=1, axis2=2)  # (n, 2)
    text = np.minimum(own[:, 0] - scores[:, 0, 1], own[:, 1] - scores[:, 1, 0])
    image = np.minimum(own[:, 0] - scores[:, 1, 0], own[:, 1] - scores[:, 0, 1])
    return {"text": text, "image": image, "group": np.minimum(text, image)}


def _from_folder(folder: Path, image_folders: Sequence[Path]) -> tuple[list[dict], list[Path], list[str]]:
    """Return the rows whose two pictures are found, these pictures (two per row), and the missing names."""
    rows, path = [], folder / "examples.jsonl"
    for number, row in read_lines(path):
        if isinstance(row, UnreadableText):
            raise UserError(f"{path}, line {number} is not JSON: {row}.")
        if not (isinstance(row, dict) and all(isinstance(row.get(name), str) for name in NEEDED)):
            raise UserError(f"{path}, line {number} needs the texts {', '.join(NEEDED)}, got {ascii(row)[:100]}.")
        rows.append(row)
    names = [[f"{row[name]}.png" for name in NEEDED[:2]] for row in rows]
    named = [name for pair in names for name in pair]
    found = find_photographs(named, [folder / "images", folder, *image_folders])
    kept = [place for place, pair in enumerate(names) if all(name in found for name in pair)]
    pictures = [found[name] for place in kept for name in names[place]]
    return [rows[place] for place in kept], pictures, [name for name in named if name not in found]

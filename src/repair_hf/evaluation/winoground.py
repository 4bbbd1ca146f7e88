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

from repair_hf.evaluation.cases import Case, Cases, Metric, texts_of, whole_or_subset, with_files
from repair_hf.evaluation.pictures import EXPORTED, EncodedImages, Photographs, load_test_rows
from repair_hf.runtime.files import read_lines
from repair_hf.runtime.options import UserError
from repair_hf.runtime.texts import UnreadableText

PUBLISHED = 400
ALL = "all"  # the group of cases without kinds
IMAGES, CAPTIONS = ("image_0", "image_1"), ("caption_0", "caption_1")


def load_winoground(source: str, image_folders: Sequence[Path], *, subset: bool = False) -> Cases:
    """Read Winoground from a Hub id or a folder; with `subset`, the cases whose pictures are found.

    Raises:
        UserError: If cases or pictures are missing.
    """
    path = Path(source) / "examples.jsonl"
    if path.is_file():
        cases, pictures, missing = with_files(_from_file(path), [path.parent / "images", path.parent, *image_folders])
    else:
        (cases, pictures), missing = _from_dataset(source), []
    if kinds := sorted({case.group for case in cases} - {ALL}):
        benchmark = "winoground_near_misses"
    else:
        benchmark = whole_or_subset(
            "winoground", found=len(cases), published=PUBLISHED, missing=missing, subset=subset
        )
    metrics = tuple(
        Metric(f"{measure}{suffix}", measure, group)
        for measure in ("text", "image", "group")
        for suffix, group in {"": None, **{f"_{kind}": (kind,) for kind in kinds}}.items()
    )
    return Cases(benchmark, cases, pictures, judge, metrics)


def judge(scores: np.ndarray, _: np.ndarray | None) -> dict[str, np.ndarray]:
    """Map (n, 2, 2) cosines, pictures by captions, to the smaller of the two margins of each measure."""
    own = np.diagonal(scores, axis1=1, axis2=2)  # (n, 2)
    text = np.minimum(own[:, 0] - scores[:, 0, 1], own[:, 1] - scores[:, 1, 0])
    image = np.minimum(own[:, 0] - scores[:, 1, 0], own[:, 1] - scores[:, 0, 1])
    return {"text": text, "image": image, "group": np.minimum(text, image)}


def _from_dataset(source: str) -> tuple[list[Case], Photographs]:
    """Return the cases and pictures of a dataset; those of `repair-hf export near-misses` have kinds."""
    dataset = load_test_rows(source, IMAGES, CAPTIONS, EXPORTED)
    rows, is_export = dataset.remove_columns(list(IMAGES)).to_list(), set(EXPORTED) <= set(dataset.column_names)
    cases = []
    for place, row in enumerate(rows):
        captions, name = texts_of(row, CAPTIONS, f"{source}, row {place}"), str(row.get("id", place))
        group, picture = (row["kind"], row["image_id"]) if is_export else (ALL, name)
        cases.append(Case(name, group, (2 * place, 2 * place + 1), captions, picture))
    return cases, Photographs(EncodedImages(dataset, IMAGES))


def _from_file(path: Path) -> list[Case]:
    cases: list[Case] = []
    for number, row in read_lines(path):
        if isinstance(row, UnreadableText):
            raise UserError(f"{path}, line {number} is not JSON: {row}.")
        *names, first, second = texts_of(row, (*IMAGES, *CAPTIONS), f"{path}, line {number}")
        name = str(row.get("id", len(cases)))
        cases.append(Case(name, ALL, tuple((f"{each}.png", None) for each in names), (first, second), name))
    return cases

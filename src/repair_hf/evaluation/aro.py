"""VG-Relation and VG-Attribution of ARO (Yuksekgonul et al., 2023), from their JSON files or from the Hub.

A case is the part of a photograph that a caption is about, the true caption, and one with two words swapped: "the
horse is eating the grass" against "the grass is eating the horse". Publications use different metrics, so each has its
own name:

| key | meaning |
|---|---|
| `vg_relation_micro` | accuracy over all cases |
| `vg_relation_macro_all` | mean over all relations |
| `vg_relation_micro_excl157` | without the authors' list of 157 relations that are symmetric or otherwise unfit |
| `vg_relation_macro_excl157` | mean over the other relations: the authors' headline |
| `vg_attribution_micro`, `vg_attribution_macro_all` | accuracy over all cases; mean over all pairs of attributes |
| `vg_attribution_macro_min25` | mean over the pairs with at least 25 cases: the authors' headline |

A tie is wrong, as in the authors' code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset

from repair_hf.evaluation.cases import (
    Box,
    Cases,
    Metric,
    Photographs,
    find_photographs,
    first_is_right,
    macro,
    numbered,
    whole_or_subset,
)
from repair_hf.evaluation.hub import EncodedImages, load_test_rows
from repair_hf.evaluation.relations import EXCLUDED
from repair_hf.runtime.files import REPAIR, read_json
from repair_hf.runtime.options import UserError

PUBLISHED = {"vg_relation": 23_937, "vg_attribution": 28_748}
FILES = {"vg_relation": "visual_genome_relation.json", "vg_attribution": "visual_genome_attribution.json"}
KIND = {"vg_relation": "relation_name", "vg_attribution": "attributes"}
CAPTIONS = ("true_caption", "false_caption")
SIDES = ("x", "y", "w", "h")
MIN_CASES = 25  # of a pair of attributes in the headline


def load_visual_genome(benchmark: str, source: str, image_folders: Sequence[Path], *, subset: bool = False) -> Cases:
    """Read `vg_relation` or `vg_attribution`.

    Args:
        benchmark: Its name.
        source: The JSON file, its folder, a Hub id, or the folder of a dataset.
        image_folders: Folders of the photographs, in addition to `images` next to the JSON file.
        subset: Take the cases whose photographs are found, under the name `{benchmark}_subset`.

    Raises:
        UserError: If cases or photographs are missing, or a row is incomplete.
    """
    path = Path(source) / FILES[benchmark] if Path(source).is_dir() else Path(source)
    if path.is_file():
        rows, photographs, missing = _from_file(path, KIND[benchmark], image_folders)
    else:
        rows, photographs = _from_dataset(source, KIND[benchmark])
        missing = []
    benchmark = whole_or_subset(
        benchmark, found=len(rows), published=PUBLISHED[benchmark], missing=missing, subset=subset
    )
    captions, caption = numbered([[row[name] for name in CAPTIONS] for row in rows])
    groups = [row["group"] for row in rows]
    return Cases(
        benchmark,
        photographs,
        captions,
        np.array([[row["part"]] for row in rows], np.int64),
        caption,
        [row["id"] for row in rows],
        [row["photograph"] for row in rows],
        groups,
        first_is_right,
        relation_metrics(groups) if benchmark.startswith("vg_relation") else attribution_metrics(groups),
    )


def relation_metrics(relations: Sequence[str]) -> tuple[Metric, ...]:
    """Return the four metrics of VG-Relation; only two if all relations are on the authors' list."""
    every = tuple(sorted(set(relations)))
    kept = tuple(name for name in every if name not in EXCLUDED)
    without = (Metric("micro_excl157", "accuracy", kept), macro("macro_excl157", kept)) if kept else ()
    return (Metric("micro", "accuracy"), macro("macro_all", every), *without)


def attribution_metrics(pairs: Sequence[str]) -> tuple[Metric, ...]:
    """Return the three metrics of VG-Attribution; the headline only if a pair is frequent enough."""
    count = Counter(pairs)
    frequent = tuple(sorted(pair for pair in count if count[pair] >= MIN_CASES))
    headline = (macro("macro_min25", frequent),) if frequent else ()
    return (Metric("micro", "accuracy"), macro("macro_all", sorted(count)), *headline)


def _from_file(path: Path, kind: str, image_folders: Sequence[Path]) -> tuple[list[dict], Photographs, list[str]]:
    """Return the rows whose photograph is found, the parts that they are about, and the missing photographs."""
    content = read_json(path, needs=None, remedy=REPAIR)
    if not isinstance(content, list):
        raise UserError(f"{path} must hold a list of cases, got {ascii(content)[:100]}.")
    _check_rows(str(path), content, ("image_path", *CAPTIONS), kind, [f"bbox_{side}" for side in SIDES])
    found = find_photographs([row["image_path"] for row in content], [path.parent / "images", *image_folders])
    rows: list[dict] = []
    parts: dict[tuple[str, Box], int] = {}  # many cases share one part of one photograph
    for place, row in enumerate(content):
        if (name := row["image_path"]) in found:
            part = parts.setdefault((name, _box(row, "bbox_")), len(parts))
            rows.append(_row(place, row, kind, name, part))
    photographs = Photographs([found[name] for name, _ in parts], [box for _, box in parts])
    missing = dict.fromkeys(row["image_path"] for row in content if row["image_path"] not in found)
    return rows, photographs, list(missing)


def _from_dataset(source: str, kind: str) -> tuple[list[dict], Photographs]:
    """Return rows and pictures of a dataset. Without boxes, its pictures are the parts. They have no names."""
    dataset: Dataset = load_test_rows(source, ["image"], (*CAPTIONS, kind), ["bbox"])
    has_boxes = "bbox" in dataset.features
    content = dataset.select_columns([*CAPTIONS, kind, *(["bbox"] if has_boxes else [])]).to_list()
    _check_rows(source, content, CAPTIONS, kind)
    boxes = [_given_box(source, place, row["bbox"]) for place, row in enumerate(content)] if has_boxes else None
    rows = [_row(place, row, kind, str(place), place) for place, row in enumerate(content)]
    return rows, Photographs(EncodedImages(dataset, ["image"]), boxes)


def _check_rows(source: str, rows: list, texts: Sequence[str], kind: str, numbers: Sequence[str] = ()) -> None:
    for place, row in enumerate(rows):
        if isinstance(row, dict):
            words: Any = row.get(kind) if isinstance(row.get(kind), list) else [row.get(kind)]
            is_text = all(isinstance(value, str) for value in (*words, *map(row.get, texts)))
            if is_text and all(isinstance(row.get(name), int | float) for name in numbers):
                continue
        needed = [f"the texts {', '.join(texts)}", f"{kind} (a text or several)"]
        needed += [f"the numbers {', '.join(numbers)}"] if numbers else []
        raise UserError(f"{source}, case {place}: needs {', '.join(needed)}, got {ascii(row)[:200]}.")


def _given_box(source: str, place: int, box: Any) -> Box:
    if isinstance(box, dict) and all(isinstance(box.get(side), int | float) for side in SIDES):
        return _box(box)
    raise UserError(
        f"{source}, case {place}: `bbox` must hold the numbers {', '.join(SIDES)}, got {ascii(box)[:200]}."
    )


def _row(place: int, row: dict, kind: str, photograph: str, part: int) -> dict:
    group = row[kind] if isinstance(row[kind], str) else "_".join(row[kind])
    named = {name: row[name] for name in CAPTIONS}
    return {"id": str(place), "photograph": photograph, "part": part, "group": group, **named}


def _box(row: dict, prefix: str = "") -> Box:
    x, y, width, height = (row[prefix + side] for side in SIDES)
    return x, y, x + width, y + height

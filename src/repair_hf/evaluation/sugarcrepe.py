"""SugarCrepe and SugarCrepe++: a word or phrase of a caption is replaced, swapped or added to make a negative caption.

They need the benchmark's JSON files (`add_att.json`, ...) and the photographs of COCO's val2017. SugarCrepe (Hsieh et
al., 2023) sets a caption against a negative one, in seven categories. SugarCrepe++ (Dumpala et al., 2024) sets two
paraphrases against a negative caption, in five.

A file is an object by row number, or a list. The row numbers of SugarCrepe's `swap_obj` have a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from repair_hf.evaluation.cases import (
    Cases,
    Metric,
    Photographs,
    find_photographs,
    first_is_right,
    macro,
    micro_and_macro,
    numbered,
    whole_or_subset,
)
from repair_hf.evaluation.hub import EXPORTED, EncodedImages, exported_kinds, load_test_rows
from repair_hf.runtime.files import REPAIR, read_json
from repair_hf.runtime.options import UserError

# Number of cases in each file of the refined benchmark.
SUGARCREPE = {
    "add_att": 692,
    "add_obj": 2062,
    "replace_att": 788,
    "replace_obj": 1652,
    "replace_rel": 1406,
    "swap_att": 666,
    "swap_obj": 245,
}
SUGARCREPE_PP = {name: count for name, count in SUGARCREPE.items() if not name.startswith("add")}
KINDS = ("add", "replace", "swap")


def load_sugarcrepe(
    folder: Path, image_folders: Sequence[Path], *, subset: bool = False, is_pp: bool = False
) -> Cases:
    """Read SugarCrepe or SugarCrepe++.

    Args:
        folder: Folder of the benchmark's files, or a folder whose `data` holds them.
        image_folders: Folders of the photographs.
        subset: Take the cases whose photographs are found, under the name `{benchmark}_subset`.
        is_pp: Read SugarCrepe++.

    Raises:
        UserError: If files or photographs are missing, or a file has another number of cases.
    """
    if not is_pp and (cases := _exported(folder)) is not None:
        return cases
    benchmark, published = ("sugarcrepe++", SUGARCREPE_PP) if is_pp else ("sugarcrepe", SUGARCREPE)
    texts = ("caption", "caption2", "negative_caption") if is_pp else ("caption", "negative_caption")
    rows = _read(folder, published, texts)
    names = [row["filename"] for row in rows.values()]
    found = find_photographs(names, [*image_folders, folder, folder / "val2017", folder / "images"])
    missing = [name for name in dict.fromkeys(names) if name not in found]
    rows = {case_id: row for case_id, row in rows.items() if row["filename"] in found}
    total = sum(published.values())
    benchmark = whole_or_subset(benchmark, found=len(rows), published=total, missing=missing, subset=subset)
    pictures, picture = numbered([[row["filename"]] for row in rows.values()])
    captions, caption = numbered([row["captions"] for row in rows.values()])
    groups = [row["category"] for row in rows.values()]
    present = [name for name in published if name in groups]
    return Cases(
        benchmark,
        Photographs([found[name] for name in pictures]),
        captions,
        picture,
        caption,
        list(rows),
        [pictures[row] for row in picture[:, 0]],
        groups,
        _judge_triplet if is_pp else first_is_right,
        _metrics_pp(present) if is_pp else _metrics(present),
        compares_captions=is_pp,
    )


def _exported(folder: Path) -> Cases | None:
    """Read a folder of `repair-hf export near-misses`; None for another one."""
    if (folder / "data").is_dir() and next((folder / "data").glob("*.parquet"), None):
        dataset = load_test_rows(str(folder), ["image"], ["caption", "negative_caption", *EXPORTED])
        rows = dataset.remove_columns("image").to_list()
        kinds = exported_kinds(rows)
        captions, caption = numbered([[row["caption"], row["negative_caption"]] for row in rows])
        return Cases(
            "sugarcrepe_near_misses",
            Photographs(EncodedImages(dataset, ["image"])),
            captions,
            np.arange(len(rows))[:, None],
            caption,
            [row["id"] for row in rows],
            [row["image_id"] for row in rows],
            kinds,
            first_is_right,
            micro_and_macro(sorted(set(kinds))),
        )
    return None


def _read(folder: Path, published: dict[str, int], captions: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Map case ids (`swap_obj/17`) to category, photograph and captions, the negative one last."""
    folder = folder / "data" if (folder / "data").is_dir() else folder
    if lacking := [f"{name}.json" for name in published if not (folder / f"{name}.json").is_file()]:
        raise UserError(f"{folder} lacks {', '.join(lacking)}; give the folder that holds the benchmark's JSON files.")
    found: dict[str, dict[str, Any]] = {}
    for category, count in published.items():
        path = folder / f"{category}.json"
        rows = _rows(path, ("filename", *captions))
        if len(rows) != count:
            raise UserError(
                f"{path} has {len(rows):,} cases; the benchmark's has {count:,}. Use the refined files of its first "
                "release."
            )
        for number, row in rows:
            texts = [row[name] for name in captions]
            found[f"{category}/{number}"] = {"category": category, "filename": row["filename"], "captions": texts}
    return found


def _rows(path: Path, needed: tuple[str, ...]) -> list[tuple[str, dict[str, str]]]:
    content = read_json(path, needs=None, remedy=REPAIR)
    if not isinstance(content, dict | list):
        raise UserError(f"{path} must hold cases, by number or in a list, got {ascii(content)[:100]}.")
    rows = list(content.items()) if isinstance(content, dict) else [(str(k), row) for k, row in enumerate(content)]
    for number, row in rows:
        if not (isinstance(row, dict) and all(isinstance(row.get(name), str) for name in needed)):
            raise UserError(f"{path}, case {number}: needs the texts {', '.join(needed)}, got {ascii(row)[:100]}.")
    return rows


def _judge_triplet(scores: np.ndarray, between: np.ndarray | None) -> dict[str, np.ndarray]:
    """Compute the margins: `itt`, both true captions beat the negative one; `tot`, they are nearest to each other."""
    assert between is not None
    first, second, wrong = scores[:, 0].T
    margins = {"p1": first - wrong, "p2": second - wrong}
    return margins | {
        "itt": np.minimum(margins["p1"], margins["p2"]),
        "tot": between[:, 0, 1] - np.maximum(between[:, 0, 2], between[:, 1, 2]),
    }


def _metrics(categories: Sequence[str]) -> tuple[Metric, ...]:
    """Return the metrics by category and kind; `macro` averages categories, `macro_kinds` add, replace and swap."""
    by_kind = {kind: [name for name in categories if name.startswith(kind)] for kind in KINDS}
    by_kind = {kind: names for kind, names in by_kind.items() if names}
    weights = [1 / len(by_kind) / len(names) for names in by_kind.values() for _ in names]
    return (
        *micro_and_macro(categories),
        *(macro(kind, names) for kind, names in by_kind.items()),
        Metric("macro_kinds", "accuracy", tuple(name for names in by_kind.values() for name in names), tuple(weights)),
    )


def _metrics_pp(categories: Sequence[str]) -> tuple[Metric, ...]:
    measures = ("itt", "tot", "p1", "p2")
    return tuple(metric for measure in measures for metric in micro_and_macro(categories, measure))

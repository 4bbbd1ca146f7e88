"""SugarCrepe and SugarCrepe++: a word or phrase of a caption is replaced, swapped or added to make a negative caption.

They need the benchmark's JSON files (`add_att.json`, ...) and the photographs of COCO's val2017. SugarCrepe (Hsieh et
al., 2023) sets a caption against a negative one, in seven categories. SugarCrepe++ (Dumpala et al., 2024) sets two
paraphrases against a negative caption, in five.

A file is an object by row number, or a list. The row numbers of SugarCrepe's `swap_obj` have a gap.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from repair_hf.evaluation.cases import (
    Case,
    Cases,
    Metric,
    first_is_right,
    macro,
    micro_and_macro,
    texts_of,
    whole_or_subset,
    with_files,
)
from repair_hf.evaluation.pictures import EXPORTED, EncodedImages, Photographs, load_test_rows
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
    if not is_pp and next((folder / "data").glob("*.parquet"), None):
        return _exported(folder)
    benchmark, published = ("sugarcrepe++", SUGARCREPE_PP) if is_pp else ("sugarcrepe", SUGARCREPE)
    texts = ("caption", "caption2", "negative_caption") if is_pp else ("caption", "negative_caption")
    rows = _read(folder, published, texts)
    cases, pictures, missing = with_files(rows, [*image_folders, folder, folder / "val2017", folder / "images"])
    total = sum(published.values())
    benchmark = whole_or_subset(benchmark, found=len(cases), published=total, missing=missing, subset=subset)
    present = [name for name in published if name in {case.group for case in cases}]
    if is_pp:
        return Cases(benchmark, cases, pictures, _judge_triplet, _metrics_pp(present), compares_captions=True)
    return Cases(benchmark, cases, pictures, first_is_right, _metrics(present))


def _exported(folder: Path) -> Cases:
    """Read a folder of `repair-hf export near-misses`."""
    captions = ("caption", "negative_caption")
    dataset = load_test_rows(str(folder), ["image"], [*captions, *EXPORTED])
    cases = [
        Case(row["id"], row["kind"], (place,), texts_of(row, captions, f"{folder}, row {place}"), row["image_id"])
        for place, row in enumerate(dataset.remove_columns("image").to_list())
    ]
    pictures = Photographs(EncodedImages(dataset, ["image"]))
    metrics = micro_and_macro(sorted({case.group for case in cases}))
    return Cases("sugarcrepe_near_misses", cases, pictures, first_is_right, metrics)


def _read(folder: Path, published: dict[str, int], captions: tuple[str, ...]) -> list[Case]:
    """Read the benchmark's files; a case's id is `swap_obj/17`, its negative caption is the last."""
    folder = folder / "data" if (folder / "data").is_dir() else folder
    if lacking := [f"{name}.json" for name in published if not (folder / f"{name}.json").is_file()]:
        raise UserError(f"{folder} lacks {', '.join(lacking)}; give the folder that holds the benchmark's JSON files.")
    found = []
    for category, count in published.items():
        path = folder / f"{category}.json"
        rows = read_json(path, needs=None, remedy=REPAIR)
        if not isinstance(rows, dict | list):
            raise UserError(f"{path} must hold cases, by number or in a list, got {ascii(rows)[:100]}.")
        if len(rows) != count:
            raise UserError(
                f"{path} has {len(rows):,} cases; the benchmark's has {count:,}. Use the refined files of its first "
                "release."
            )
        for number, row in rows.items() if isinstance(rows, dict) else enumerate(rows):
            name, *texts = texts_of(row, ("filename", *captions), f"{path}, case {number}:")
            found.append(Case(f"{category}/{number}", category, ((name, None),), tuple(texts), name))
    return found


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

"""Read the published compositional benchmarks, and the sets of the paper's order tests.

| name | a case | where |
|---|---|---|
| `vg_relation`, `vg_attribution` (ARO, Yuksekgonul et al., 2023) | a part of a photograph, its true caption, and one \
with two words swapped | dataset on the Hub |
| `winoground` (Thrush et al., 2022) | two pictures and two captions of the same words, each true of one picture | \
dataset on the Hub, or its repository with the images unpacked |
| `sugarcrepe` (Hsieh et al., 2023) | a photograph of COCO's val2017, its caption, and a negative one, in which a \
phrase is replaced, swapped or added | the authors' files |
| `sugarcrepe_pp` (SugarCrepe++, Dumpala et al., 2024) | the same with a second true caption in other words | the \
authors' files |
| `order` (ARO) | see `evaluation.order` | a file of `benchmarks/aro_order.py` |
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePath
from typing import Any

from datasets import Dataset, Image

from repair_hf.evaluation.benchmark_metrics import (
    SUGARCREPE,
    attribution_metrics,
    judge_winoground,
    relation_metrics,
    sugarcrepe_metrics,
    winoground_metrics,
)
from repair_hf.evaluation.cases import Case, Cases, Judge, Metric, both_are_right, first_is_right
from repair_hf.evaluation.options import CompositionalOptions
from repair_hf.evaluation.order import load_order
from repair_hf.evaluation.pictures import EncodedImages, Photographs, columns_of, load_test_split
from repair_hf.pairs.dataset import Pairs
from repair_hf.pairs.problems import Problems, quoted
from repair_hf.pairs.tables import load_table
from repair_hf.runtime.files import REPAIR, read_json
from repair_hf.runtime.options import PairsOptions, UserError

ORDER = {"coco": "coco", "coco30k": "coco", "flickr30k": "flickr30k"}  # the test split of COCO30K is that of COCO
SIDES = ("x", "y", "w", "h")
SHOWN = 3  # examples in a message
EXAMPLES = "examples.jsonl"  # of Winoground's repository


@dataclass(frozen=True)
class Benchmark:
    """What the rows of a benchmark hold, and how they are judged."""

    published: int  # cases
    captions: tuple[str, ...]  # columns, a true one first
    judge: Judge
    metrics: Callable[[Sequence[str]], tuple[Metric, ...]]  # of the cases' groups
    images: tuple[str, ...] = ("image",)  # columns of a dataset
    group: str | None = None  # column of the group, one word or several
    categories: tuple[str, ...] = ()  # names of the authors' files, which name photographs; none: it is a dataset


SWAPPED: dict[str, Any] = {"captions": ("true_caption", "false_caption"), "judge": first_is_right}
PLUS_PLUS = tuple(name for name in SUGARCREPE if not name.startswith("add"))
BENCHMARKS = {
    "vg_relation": Benchmark(23_937, metrics=relation_metrics, group="relation_name", **SWAPPED),
    "vg_attribution": Benchmark(28_748, metrics=attribution_metrics, group="attributes", **SWAPPED),
    "winoground": Benchmark(
        400,
        captions=("caption_0", "caption_1"),
        judge=judge_winoground,
        metrics=winoground_metrics,
        images=("image_0", "image_1"),
    ),
    "sugarcrepe": Benchmark(
        sum(SUGARCREPE.values()),
        captions=("caption", "negative_caption"),
        judge=first_is_right,
        metrics=sugarcrepe_metrics,
        categories=tuple(SUGARCREPE),
    ),
    "sugarcrepe_pp": Benchmark(
        sum(SUGARCREPE[name] for name in PLUS_PLUS),
        captions=("caption", "caption2", "negative_caption"),
        judge=both_are_right,
        metrics=sugarcrepe_metrics,
        categories=PLUS_PLUS,
    ),
}


def load_benchmarks(options: CompositionalOptions, pairs: Pairs, pairs_options: PairsOptions) -> list[Cases]:
    """Load the benchmarks that the options name.

    `pairs_options` belong to the pairs: only a benchmark's test split gives an order test of its name.
    """
    folders, sets = list(map(Path, options.compositional_images)), []
    for name, source in options.sources().items():
        if name == "order":
            is_test = pairs_options.benchmark is not None and pairs_options.split == "test"
            benchmark = f"{ORDER[str(pairs_options.benchmark)]}_order" if is_test else "order"
            sets.append(load_order(source, pairs, benchmark))
        else:
            sets.append(load_benchmark(name, source, folders))
    return sets


def load_benchmark(name: str, source: str, image_folders: Sequence[Path] = ()) -> Cases:
    """Read a benchmark of the table.

    Args:
        name: Its name.
        source: The Hub id or folder of a dataset; or the folder of the authors' files, or the one whose `data` is it.
        image_folders: Folders of the photographs that the authors' files name.

    Raises:
        UserError: If files, columns or photographs are missing, or a row is incomplete.
    """
    benchmark = BENCHMARKS[name]
    if benchmark.categories:
        cases, pictures = _from_files(benchmark, Path(source), image_folders)
    else:
        cases, pictures = _from_dataset(benchmark, source)
    if not cases:
        raise UserError(f"`compositional` {name}={source} has no case; give the whole benchmark.")
    title = name if len(cases) == benchmark.published else f"{name}_subset"  # another number is not comparable
    return Cases(title, cases, pictures, benchmark.judge, benchmark.metrics([case.group for case in cases]))


def _from_dataset(benchmark: Benchmark, source: str) -> tuple[list[Case], Photographs]:
    """Return the cases and pictures of a dataset; a column `bbox` names the part of a picture that a case is about."""
    columns = benchmark.images
    texts = (*benchmark.captions, *([benchmark.group] if benchmark.group else []))
    unpacked = [home / EXAMPLES for home in (Path(source), Path(source, "data")) if (home / EXAMPLES).is_file()]
    rows = _unpacked(unpacked[0], columns) if unpacked else load_test_split(source)
    dataset = columns_of(rows, source, columns, texts, ("bbox", "id"))
    cases, boxes = [], []
    for number, row in enumerate(dataset.remove_columns(list(columns)).to_list()):
        where, case_id = f"{source}, case {number}:", str(row.get("id", number))
        pictures = tuple(range(number * len(columns), (number + 1) * len(columns)))
        boxes += [_box_of(row["bbox"], where) if "bbox" in row else None] * len(columns)
        group = _group_of(row, benchmark.group, where) if benchmark.group else "all"
        cases.append(Case(case_id, group, pictures, _texts_of(row, benchmark.captions, where), case_id))
    return cases, Photographs(EncodedImages(dataset, columns), boxes)


def _unpacked(table: Path, columns: Sequence[str]) -> Dataset:
    """Load the rows of Winoground's repository, whose pictures are files of the folder `images` beside the table."""
    folder = table.parent.absolute() / "images"
    if not folder.is_dir():
        raise UserError(f"{folder} does not exist, and {table.name} names its pictures. Unpack images.zip there.")
    rows = load_table(table, Problems())
    for column in columns:
        if column in rows.features:
            files = [str(folder / f"{name}.png") for name in rows[column]]
            rows = rows.remove_columns(column).add_column(column, files).cast_column(column, Image())
    return rows


def _from_files(benchmark: Benchmark, folder: Path, image_folders: Sequence[Path]) -> tuple[list[Case], Photographs]:
    """Return the cases and pictures of the authors' files, one a category, which name photographs by `filename`."""
    home = folder / "data" if (folder / "data").is_dir() else folder
    lacking = [f"{name}.json" for name in benchmark.categories if not (home / f"{name}.json").is_file()]
    if lacking:
        raise UserError(f"{folder} lacks {', '.join(lacking)}; give the folder that holds the benchmark's files.")
    cases = []
    for category in benchmark.categories:
        path = home / f"{category}.json"
        rows: Any = read_json(path, needs=None, remedy=REPAIR)
        if not isinstance(rows, dict | list):
            raise UserError(f"{path} must hold cases, by number or in a list, got {ascii(rows)[:100]}.")
        for number, row in rows.items() if isinstance(rows, dict) else enumerate(rows):
            filename, *captions = _texts_of(row, ("filename", *benchmark.captions), f"{path}, case {number}:")
            photograph = PurePath(filename).name
            cases.append(Case(f"{category}/{number}", category, (photograph,), tuple(captions), photograph))
    names = list(dict.fromkeys(case.picture_id for case in cases))
    places = [_find(name, [*image_folders, folder / "images", folder / "val2017", folder]) for name in names]
    missing = [name for name, place in zip(names, places, strict=True) if place is None]
    if missing:
        examples = ", ".join(map(quoted, missing[:SHOWN])) + (", ..." if len(missing) > SHOWN else "")
        raise UserError(
            f"{len(missing):,} of {len(names):,} photographs of {folder} are missing ({examples}): name their folder "
            "by --compositional-images."
        )
    row_of = {name: row for row, name in enumerate(names)}
    numbered = [replace(case, pictures=(row_of[case.picture_id],)) for case in cases]
    return numbered, Photographs([place for place in places if place is not None])


def _find(name: str, folders: Sequence[Path]) -> Path | None:
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _texts_of(row: Any, names: Sequence[str], where: str) -> tuple[str, ...]:
    texts: Any = tuple(row.get(name) if isinstance(row, dict) else None for name in names)
    if not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where} needs the texts {', '.join(names)}, got {ascii(row)[:200]}.")
    return texts


def _group_of(row: dict[str, Any], column: str, where: str) -> str:
    """Return the group of a row, one word or several joined."""
    words = row[column] if isinstance(row[column], list) else [row[column]]
    if not all(isinstance(word, str) for word in words):
        raise UserError(f"{where} needs `{column}`, a text or several, got {ascii(row)[:200]}.")
    return "_".join(words)


def _box_of(cell: Any, where: str) -> tuple[float, float, float, float]:
    box: Any = [cell.get(side) if isinstance(cell, dict) else None for side in SIDES]
    if not all(isinstance(number, int | float) for number in box):
        raise UserError(f"{where} needs a box of the numbers {', '.join(SIDES)}, got {ascii(cell)[:200]}.")
    x, y, width, height = box
    return x, y, x + width, y + height

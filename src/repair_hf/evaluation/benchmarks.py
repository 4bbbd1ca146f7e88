"""Read the published compositional benchmarks: their authors' files, or datasets on the Hub.

| name | a case |
|---|---|
| `vg_relation`, `vg_attribution` (ARO, Yuksekgonul et al., 2023) | a part of a photograph, its true caption, and one \
with two words swapped |
| `sugarcrepe` (Hsieh et al., 2023) | a photograph of COCO's val2017, its caption, and a negative one, in which a \
phrase is replaced, swapped or added |
| `winoground` (Thrush et al., 2022) | two pictures and two captions of the same words, each true of one picture |

`repair-hf contrast` writes the columns of Winoground or SugarCrepe, too; `evaluation.contrast` reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from datasets import Dataset

from repair_hf.evaluation.benchmark_metrics import (
    ALL,
    SUGARCREPE,
    attribution_metrics,
    judge_winoground,
    relation_metrics,
    sugarcrepe_metrics,
    winoground_metrics,
)
from repair_hf.evaluation.cases import Case, Cases, Judge, Metric, first_is_right
from repair_hf.evaluation.options import DEFAULTS, CompositionalOptions
from repair_hf.evaluation.order import load_order
from repair_hf.evaluation.pictures import (
    Box,
    EncodedImages,
    Photographs,
    columns_of,
    find_photographs,
    load_test_split,
)
from repair_hf.pairs.dataset import Pairs
from repair_hf.runtime.files import REPAIR, read_json, read_lines
from repair_hf.runtime.options import PairsOptions, UserError
from repair_hf.runtime.texts import UnreadableText

ORDER = {"coco": "coco", "coco30k": "coco", "flickr30k": "flickr30k"}  # the test split of COCO30K is that of COCO
SIDES = ("x", "y", "w", "h")
SHOWN = 3  # examples in a message


@dataclass(frozen=True)
class Benchmark:
    """Where the cases of a benchmark are, and how they are judged."""

    published: int  # cases
    files: tuple[str, ...]  # the authors' files
    photographs: tuple[str, ...]  # columns of the photographs' file names in these
    images: tuple[str, ...]  # columns of the images in a dataset
    captions: tuple[str, ...]  # columns of the captions, a true one first
    judge: Judge
    metrics: Callable[[Sequence[str]], tuple[Metric, ...]]  # of the cases' groups
    group: str | None = None  # column of the group, one word or several
    has_boxes: bool = False  # whether a case is about a part of its photograph


ARO: dict[str, Any] = {
    "photographs": ("image_path",),
    "images": ("image",),
    "captions": ("true_caption", "false_caption"),
    "judge": first_is_right,
    "has_boxes": True,
}
BENCHMARKS = {
    "vg_relation": Benchmark(
        published=23_937,
        files=("visual_genome_relation.json",),
        metrics=relation_metrics,
        group="relation_name",
        **ARO,
    ),
    "vg_attribution": Benchmark(
        published=28_748,
        files=("visual_genome_attribution.json",),
        metrics=attribution_metrics,
        group="attributes",
        **ARO,
    ),
    "sugarcrepe": Benchmark(
        published=sum(SUGARCREPE.values()),
        files=tuple(f"{name}.json" for name in SUGARCREPE),
        photographs=("filename",),
        images=("image",),
        captions=("caption", "negative_caption"),
        judge=first_is_right,
        metrics=sugarcrepe_metrics,
    ),
    "winoground": Benchmark(
        published=400,
        files=("examples.jsonl",),
        photographs=("image_0", "image_1"),
        images=("image_0", "image_1"),
        captions=("caption_0", "caption_1"),
        judge=judge_winoground,
        metrics=winoground_metrics,
    ),
}


def load_benchmarks(options: CompositionalOptions, pairs: Pairs, pairs_options: PairsOptions) -> list[Cases]:
    """Load or make the benchmarks that the options name.

    `pairs_options` belong to the pairs: only a benchmark's test split gives an order test of its name.
    """
    folders, subset, sets = list(map(Path, options.compositional_images)), options.compositional_subset, []
    for name, source in options.sources().items():
        if name == "order":
            is_test = pairs_options.benchmark is not None and pairs_options.split == "test"
            benchmark = f"{ORDER[str(pairs_options.benchmark)]}_order" if is_test else "order"
            sets.append(load_order(source, pairs, benchmark))
        else:
            sets.append(load_benchmark(name, source, folders, subset=subset))
    return sets


def load_benchmark(name: str, source: str, image_folders: Sequence[Path], *, subset: bool = False) -> Cases:
    """Read a benchmark of the table.

    Args:
        name: Its name.
        source: The folder of its files, or the folder whose `data` holds them; or the Hub id or folder of a dataset.
        image_folders: Folders of the photographs, besides that of the files.
        subset: Take the cases whose photographs are found, under the name `{name}_subset`.

    Raises:
        UserError: If files, cases or photographs are missing, or a row is incomplete.
    """
    benchmark, folder = BENCHMARKS[name], Path(source)
    home = folder / "data" if (folder / "data").is_dir() else folder
    lacking = [file for file in benchmark.files if not (home / file).is_file()]
    missing: list[str] = []
    has_dataset = DEFAULTS[name] is not None or any(home.glob("*.parquet"))
    if has_dataset and len(lacking) == len(benchmark.files):
        others = ("bbox",) if benchmark.has_boxes else ("id",)
        texts = benchmark.captions if benchmark.group is None else (*benchmark.captions, benchmark.group)
        dataset = load_test_split(source)
        cases, pictures = _from_dataset(
            benchmark, columns_of(dataset, source, benchmark.images, texts, others), source
        )
    elif lacking:
        raise UserError(f"{folder} lacks {', '.join(lacking)}; give the folder that holds the benchmark's files.")
    else:
        every = [case for file in benchmark.files for case in _from_file(benchmark, home / file)]
        cases, pictures, missing = _with_files(every, [*image_folders, folder / "images", folder / "val2017", folder])
    title = whole_or_subset(name, len(cases), benchmark.published, missing, subset=subset)
    metrics = benchmark.metrics([case.group for case in cases])
    return Cases(title, cases, pictures, benchmark.judge, metrics)


def whole_or_subset(benchmark: str, found: int, published: int, missing: Sequence[str], *, subset: bool) -> str:
    """Return the name under which to report the cases that were found: the benchmark's, or `{benchmark}_subset`.

    Raises:
        UserError: If cases are missing, and the user did not ask for a subset.
    """
    if found == published and not missing:
        return benchmark
    if subset and found:
        return f"{benchmark}_subset"
    examples = ", ".join(ascii(name) for name in missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
    lacking = f"; {len(missing):,} photographs are missing ({examples})" if missing else ""
    remedy = "name their folder by --compositional-images" if missing else "take the benchmark's own files"
    part = f", or evaluate what is there as `{benchmark}_subset` by --compositional-subset" if found else ""
    raise UserError(
        f"`{benchmark}` has {published:,} cases, and {found:,} can be evaluated here{lacking}: {remedy}{part}."
    )


def _from_file(benchmark: Benchmark, path: Path) -> Iterator[Case]:
    """Yield the cases of a file; a picture is a file's name with its box, or None for all of it."""
    for number, row in _rows(path):
        where = f"{path}, case {number}:"
        texts = _texts_of(row, (*benchmark.photographs, *benchmark.captions), where)
        names, captions = texts[: len(benchmark.photographs)], texts[len(benchmark.photographs) :]
        if len(benchmark.files) > 1:
            group, name = path.stem, f"{path.stem}/{number}"
        else:
            group, name = _group_of(row, benchmark.group, where), str(row.get("id", number))
        box = _box_of({side: row.get(f"bbox_{side}") for side in SIDES}, where) if benchmark.has_boxes else None
        yield Case(name, group, tuple((each, box) for each in names), captions, names[0] if len(names) == 1 else name)


def _rows(path: Path) -> Iterator[tuple[Any, Any]]:
    """Yield number and row of each case of a JSON list, a JSON object by number, or JSON Lines."""
    if path.suffix == ".jsonl":
        for number, row in read_lines(path):
            if isinstance(row, UnreadableText):
                raise UserError(f"{path}, line {number} is not JSON: {row}.")
            yield number, row
        return
    rows = read_json(path, needs=None, remedy=REPAIR)
    if not isinstance(rows, dict | list):
        raise UserError(f"{path} must hold cases, by number or in a list, got {ascii(rows)[:100]}.")
    yield from rows.items() if isinstance(rows, dict) else enumerate(rows)


def _from_dataset(benchmark: Benchmark, dataset: Dataset, source: str) -> tuple[list[Case], Photographs]:
    """Return the cases and pictures of a dataset. Without boxes, its pictures are the parts."""
    columns = benchmark.images
    cases, boxes = [], []
    for place, row in enumerate(dataset.remove_columns(list(columns)).to_list()):
        where, name = f"{source}, case {place}:", str(row.get("id", place))
        pictures = tuple(range(place * len(columns), (place + 1) * len(columns)))
        boxes += [_box_of(row["bbox"], where) if "bbox" in row else None] * len(columns)
        captions, kind = _texts_of(row, benchmark.captions, where), _group_of(row, benchmark.group, where)
        cases.append(Case(name, kind, pictures, captions, name))
    return cases, Photographs(EncodedImages(dataset, columns), boxes)


def _with_files(cases: Sequence[Case], folders: Sequence[Path]) -> tuple[list[Case], Photographs, list[str]]:
    """Find the photographs of cases.

    Returns:
        The cases whose photographs are all found, their pictures, and the names that are missing.
    """
    names = list(dict.fromkeys(name for case in cases for name, _ in case.pictures))
    found = find_photographs(names, folders)
    kept = [case for case in cases if all(name in found for name, _ in case.pictures)]
    parts = dict.fromkeys(part for case in kept for part in case.pictures)  # many cases may share one
    rows = {part: row for row, part in enumerate(parts)}
    numbered = [replace(case, pictures=tuple(rows[part] for part in case.pictures)) for case in kept]
    pictures = Photographs([found[name] for name, _ in parts], [box for _, box in parts])
    return numbered, pictures, [name for name in names if name not in found]


def _texts_of(row: Any, names: Sequence[str], where: str) -> tuple[str, ...]:
    found: Any = tuple(row.get(name) if isinstance(row, dict) else None for name in names)
    if not all(isinstance(text, str) for text in found):
        raise UserError(f"{where} needs the texts {', '.join(names)}, got {ascii(row)[:200]}.")
    return found


def _group_of(row: Mapping[str, Any], column: str | None, where: str) -> str:
    """Return the group of a row, one word or several joined."""
    if column is None:
        return ALL
    cell: Any = row.get(column)
    words = cell if isinstance(cell, list) else [cell]
    if not all(isinstance(word, str) for word in words):
        raise UserError(f"{where} needs `{column}`, a text or several, got {ascii(row)[:200]}.")
    return "_".join(words)


def _box_of(cell: Any, where: str) -> Box:
    found: Any = [cell.get(side) if isinstance(cell, dict) else None for side in SIDES]
    if not all(isinstance(number, int | float) for number in found):
        raise UserError(f"{where} needs a box of the numbers {', '.join(SIDES)}, got {ascii(cell)[:200]}.")
    x, y, width, height = found
    return x, y, x + width, y + height

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

from repair_hf.evaluation.cases import (
    Case,
    Cases,
    Metric,
    first_is_right,
    macro,
    texts_of,
    whole_or_subset,
    with_files,
)
from repair_hf.evaluation.pictures import Box, EncodedImages, Photographs, load_test_rows
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
        cases, pictures, missing = with_files(
            _from_file(path, KIND[benchmark]), [path.parent / "images", *image_folders]
        )
    else:
        (cases, pictures), missing = _from_dataset(source, KIND[benchmark]), []
    name = whole_or_subset(benchmark, found=len(cases), published=PUBLISHED[benchmark], missing=missing, subset=subset)
    metrics = relation_metrics if benchmark == "vg_relation" else attribution_metrics
    return Cases(name, cases, pictures, first_is_right, metrics([case.group for case in cases]))


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


def _from_file(path: Path, kind: str) -> list[Case]:
    content = read_json(path, needs=None, remedy=REPAIR)
    if not isinstance(content, list):
        raise UserError(f"{path} must hold a list of cases, got {ascii(content)[:100]}.")
    cases = []
    for place, row in enumerate(content):
        where = f"{path}, case {place}:"
        group, captions = _texts(row, kind, where)
        (name,) = texts_of(row, ["image_path"], where)
        cases.append(Case(str(place), group, ((name, _box(row, "bbox_", where)),), captions, name))
    return cases


def _from_dataset(source: str, kind: str) -> tuple[list[Case], Photographs]:
    """Return cases and pictures of a dataset. Without boxes, its pictures are the parts. They have no names."""
    dataset = load_test_rows(source, ["image"], (*CAPTIONS, kind), ["bbox"])
    cases, boxes = [], []
    for place, row in enumerate(dataset.remove_columns("image").to_list()):
        where = f"{source}, case {place}:"
        group, captions = _texts(row, kind, where)
        cases.append(Case(str(place), group, (place,), captions, str(place)))
        boxes.append(_box(row["bbox"], "", where) if "bbox" in row else None)
    return cases, Photographs(EncodedImages(dataset, ["image"]), boxes)


def _texts(row: Any, kind: str, where: str) -> tuple[str, tuple[str, ...]]:
    """Return the group of a row, which may be several words, and its captions."""
    captions = texts_of(row, CAPTIONS, where)
    words = row.get(kind) if isinstance(row.get(kind), list) else [row.get(kind)]
    if not all(isinstance(word, str) for word in words):
        raise UserError(f"{where} needs `{kind}`, a text or several, got {ascii(row)[:200]}.")
    return "_".join(words), captions


def _box(row: Any, prefix: str, where: str) -> Box:
    names = [prefix + side for side in SIDES]
    found: Any = [row.get(name) if isinstance(row, dict) else None for name in names]
    if not all(isinstance(number, int | float) for number in found):
        raise UserError(f"{where} needs a box of the numbers {', '.join(names)}, got {ascii(row)[:200]}.")
    x, y, width, height = found
    return x, y, x + width, y + height


# Relations that ARO's authors exclude from VG-Relation's headline: symmetric or otherwise unfit to swap. The list is
# from their notebook (mertyg/vision-language-models-are-bows, MIT); they publish no rule for it.
EXCLUDED = frozenset(
    " ".join(name.split())
    for name in """
    adjusting, around, attached to, beside, between, bigger than, biting, boarding, brushing, by, chewing, cleaning,
    climbing, close to, coming from, coming out of, contain, crossing, dragging, draped over, drinking, drinking from,
    driving, driving down, driving on, eating from, eating in, enclosing, exiting, facing, filled with, floating in,
    floating on, flying, flying above, flying in, flying over, flying through, full of, going down, going into, going
    through, grazing in, growing in, growing on, guiding, hanging from, hanging in, hanging off, hanging over, higher
    than, holding onto, hugging, in between, jumping off, jumping on, jumping over, kept in, larger than, leading,
    leaning over, leaving, licking, longer than, looking in, looking into, looking out, looking over, looking through,
    lying next to, lying on top of, making, mixed with, mounted on, moving, near, next to, of, on the back of, on the
    edge of, on the front of, on the other side of, on the side of, opening, painted on, parked at, parked beside,
    parked by, parked in, parked in front of, parked near, parked next to, perched on, petting, piled on, playing,
    playing in, playing on, playing with, pouring, reaching for, reading, reflected on, riding on, running in, running
    on, running through, seen through, sitting behind, sitting beside, sitting by, sitting in front of, sitting near,
    sitting next to, sitting under, skiing down, skiing on, sleeping in, sleeping on, smiling at, sniffing, splashing,
    sprinkled on, stacked on, standing against, standing around, standing behind, standing beside, standing in front
    of, standing near, standing next to, staring at, stuck in, surrounding, swimming in, swinging, talking to, topped
    with, touching, traveling down, traveling on, tying, typing on, underneath, wading in, waiting for, walking across,
    walking by, walking down, walking next to, walking through, with, working in, working on, worn on, wrapped around,
    wrapped in
    """.split(",")
)

"""Made-up files of compositional benchmarks, on photographs of one colour each."""

import json
from collections.abc import Sequence
from pathlib import Path

from datasets import Dataset, Image
from PIL import Image as Picture

from repair_hf.pairs.dataset import Pairs, load_pairs

COLORS = ("red", "green", "blue", "yellow")
WINO = {"image_0": ["red", "green"], "image_1": ["blue", "yellow"], "caption_0": ["r", "g"], "caption_1": ["b", "y"]}


def color_of(picture: Picture.Image) -> str:
    shown = picture.getpixel((0, 0))
    return next(color for color in COLORS if shown == Picture.new("RGB", (1, 1), color).getpixel((0, 0)))


def captioned(folder: Path, captions: Sequence[Sequence[str]]) -> Pairs:
    """Pairs of a picture for each list of captions."""
    rows = []
    for place, texts in enumerate(captions):
        Picture.new("RGB", (20, 20), (20 * place, 0, 0)).save(folder / f"{place}.png")
        rows.append(json.dumps({"image": f"{place}.png", "captions": texts}))
    (folder / "captions.jsonl").write_text("\n".join(rows))
    return load_pairs(folder, split="all")


def with_images(photographs: Path, columns: dict, names: list[str]) -> Dataset:
    """A dataset in which the colors of some columns are the photographs of these."""
    paths = {name: [str(photographs / f"{color}.png") for color in columns[name]] for name in names}
    dataset = Dataset.from_dict(columns | paths)
    for name in names:
        dataset = dataset.cast_column(name, Image())
    return dataset


def vg_rows(kind: str, groups: list) -> list[dict]:
    """Rows of a Visual Genome file of ARO."""
    return [
        {"image_path": f"{color}.png", "true_caption": f"{color} is right", "false_caption": f"right is {color}"}
        | {kind: group, "bbox_x": 10 * (k % 3), "bbox_y": 2, "bbox_w": 10, "bbox_h": 20}
        for k, (color, group) in enumerate(zip(COLORS * 10, groups, strict=False))
    ]

"""Made-up pairs, failures and records in the form and place that a recipe names."""

import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from datasets import Dataset
from PIL import Image

from repair_hf.mining.false_positives import mine_false_positives, with_ids
from repair_hf.pairs.benchmarks import Size
from repair_hf.pairs.dataset import Pairs
from repair_hf.records.dataset import DROPPED_FEATURES, FEATURES, save_records
from tests.mining.embeddings import random_unit

CLIPS = ("openai/clip-vit-base-patch32", "openai/clip-vit-large-patch14")  # the recipes' models
EDITORS = tuple(f"black-forest-labs/FLUX.2-klein-{size}B" for size in (4, 9)) + ("timbrooks/instruct-pix2pix",)
SIZES = {  # of the splits below, in place of the true ones
    "flickr30k": {"train": Size(6, (12,)), "val": Size(2, (4,)), "test": Size(2, (4,))},
    "coco": {"train": Size(6), "train+restval": Size(8), "val": Size(2, (4,)), "test": Size(2, (4,))},
    "coco30k": {"train": Size(5), "val": Size(2, (4,)), "test": Size(2, (4,))},
}
SPLITS = ["train"] * 6 + ["restval"] * 2 + ["val"] * 2 + ["test"] * 2


def karpathy(file: Path, images: Path, rows: Iterable[tuple[str, Path, list[str]]], *, is_coco: bool) -> None:
    """Write a caption JSON, and link its pictures: a split, a picture and captions for each row."""
    listed = []
    for number, (split, picture, texts) in enumerate(rows):
        folder = ("train2014" if split == "train" else "val2014") if is_coco else ""
        name = f"COCO_{folder}_{number:012}.jpg" if is_coco else f"{number}.jpg"
        place = images / folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        os.link(picture, place)
        listed.append({"filename": name, "split": split, "sentences": [{"raw": text} for text in texts]})
        listed[-1] |= {"filepath": folder, "cocoid": number} if is_coco else {}
    file.write_text(json.dumps({"images": listed}))


def make_data(pictures: Path, recipe: dict) -> None:
    """Put the pictures of `pairs_folder` where a recipe looks for them, in the form of its source."""
    rows = [json.loads(line) for line in (pictures / "captions.jsonl").read_text().splitlines()]
    source = Path(recipe["pairs"])
    if source.suffix == ".json":
        own = [(split, pictures / row["image"], row["captions"]) for row, split in zip(rows, SPLITS, strict=True)]
        source.parent.mkdir(parents=True, exist_ok=True)
        karpathy(source, Path(recipe["image_folder"]), own, is_coco=recipe["benchmark"].startswith("coco"))
        return
    shutil.copytree(pictures, source)
    names = {"restval": "train", "val": "validation"}
    lines = [row | {"split": names.get(split, split)} for row, split in zip(rows, SPLITS, strict=True)]
    (source / "captions.jsonl").write_text("\n".join(map(json.dumps, lines)))


def make_failures(pairs: Pairs, folder: Path) -> None:
    """Write failures mined with random embeddings."""
    rng = np.random.default_rng(0)
    images, texts = (random_unit(rng, count) for count in (len(pairs.images), len(pairs.captions)))
    failures = mine_false_positives(images, texts, pairs.caption_image, d_i2t=2)
    folder.mkdir(parents=True)
    with_ids(failures, pairs).to_parquet(folder / "failures.parquet")


def make_records(pairs: Pairs, folder: Path) -> None:
    """Write two records without source images."""
    ids, captions = pairs.images["image_id"][:], pairs.captions
    rows = []
    for q, fp in ((0, 1), (2, 0)):
        row = {"record_id": f"{q:016x}", "direction": "t2i", "q_id": captions[q]["caption_id"], "fp_id": ids[fp]}
        row |= {"q_text": captions[q]["caption"], "gt_id": ids[q // 2], "fp_score": 0.5, "error_types": []}
        rows.append(dict.fromkeys(FEATURES) | row | {"edit_image": Image.new("RGB", (48, 40), "teal")})
    dropped = Dataset.from_dict(dict.fromkeys(DROPPED_FEATURES, []), features=DROPPED_FEATURES)
    save_records(folder, Dataset.from_list(rows, features=FEATURES), dropped, embed_source_images=False)


def cache_models(clip: Path, cache: Path) -> list[Path]:
    """Put a tiny CLIP, and what is checked of an editor, where the Hub's cache keeps them; return their folders."""
    folders = []
    for name in (*CLIPS, *EDITORS):
        folders.append(cache / f"models--{name.replace('/', '--')}")
        snapshot = folders[-1] / "snapshots" / "0"
        if name in CLIPS:
            shutil.copytree(clip, snapshot)
        else:
            snapshot.mkdir(parents=True)
            (snapshot / "model_index.json").write_text('{"_class_name": "Flux2KleinPipeline"}')
        (folders[-1] / "refs").mkdir()
        (folders[-1] / "refs" / "main").write_text("0")
    return folders

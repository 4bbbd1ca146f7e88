"""Every recipe is parsed by the command that it is named after, and rehearsed on made-up data in the form that it names."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import yaml
from datasets import Dataset
from PIL import Image

from repair_hf.cli.main import main
from repair_hf.cli.subcommands import load_command
from repair_hf.mining.false_positives import mine_false_positives, with_ids
from repair_hf.pairs.benchmarks import Size
from repair_hf.pairs.dataset import Pairs, benchmarks, load_pairs
from repair_hf.records.dataset import DROPPED_FEATURES, FEATURES, save_records
from repair_hf.runtime.command_line import parse

RECIPES = Path(__file__).parents[1] / "recipes"
STAGES = [path for path in sorted(RECIPES.glob("*/*.yaml")) if path.parent.name not in ("accelerate", "study")]
FOLDERS = sorted({path.parent for path in STAGES})
OF_EVERY_RECIPE = ("mine", "synthesize", "train", "evaluate")
SIZES = {  # of the splits below, in place of the true ones
    "flickr30k": {"train": Size(6, (12,)), "val": Size(2, (4,)), "test": Size(2, (4,))},
    "coco": {"train": Size(6), "train+restval": Size(8), "val": Size(2, (4,)), "test": Size(2, (4,))},
    "coco30k": {"train": Size(5), "val": Size(2, (4,)), "test": Size(2, (4,))},
}
SPLITS = ["train"] * 6 + ["restval"] * 2 + ["val"] * 2 + ["test"] * 2


def options_of(path: Path) -> tuple:
    module = load_command(path.stem)
    types = module.ACTIONS["build"][0] if path.stem == "world" else module.OPTIONS
    options = parse(types, ["--config", str(path)], f"repair-hf {path.stem}")
    assert len(options) == len(types)
    return options


@pytest.mark.parametrize("path", STAGES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_recipe_parses(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert options_of(path)


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_the_stages_of_a_recipe_fit_together(folder):
    """One stage reads what another writes, all speak of the same data, and the README names each of them."""
    stages = {stage: yaml.safe_load((folder / f"{stage}.yaml").read_text()) for stage in OF_EVERY_RECIPE}
    assert stages["synthesize"]["failures"] == stages["mine"]["output"]
    assert stages["train"]["records"] == stages["synthesize"]["output"]
    assert stages["evaluate"]["model"] == stages["train"]["output"]
    assert stages["mine"]["model"] == stages["synthesize"]["model"] == stages["train"]["model"]
    for key in ("pairs", "image_folder", "benchmark"):
        assert len({stage.get(key) for stage in stages.values()}) == 1, key
    assert len({stage.get("with_restval") for name, stage in stages.items() if name != "evaluate"}) == 1
    readme = (folder / "README.md").read_text()
    for stage in stages:
        assert f"{stage} --config recipes/{folder.name}/{stage}.yaml" in readme, stage
    if folder.name != "toy":
        for part in ("not run by us", "## Data", "## Hardware, hours, dollars", "## Commands", "## To compare with"):
            assert part.casefold() in readme.casefold(), part


@pytest.mark.parametrize("folder", [each for each in FOLDERS if each.name != "toy"], ids=lambda folder: folder.name)
def test_recipe_is_rehearsed(folder, pairs_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmarks, "SIZES", SIZES)
    recipe = yaml.safe_load((folder / "train.yaml").read_text())
    make_data(pairs_folder, recipe)
    pairs_options = options_of(folder / "train.yaml")[0]
    named = asdict(pairs_options)
    pairs = load_pairs(named.pop("pairs"), **named)
    make_failures(pairs, Path(yaml.safe_load((folder / "mine.yaml").read_text())["output"]))
    make_records(pairs, Path(recipe["records"]))
    said = {}
    for stage in OF_EVERY_RECIPE:
        assert main([stage, "--config", str(folder / f"{stage}.yaml"), "--dry-run"]) == 0, capsys.readouterr().err
        said[stage] = capsys.readouterr().out
    count = {"coco": 8, "coco30k": 5, "flickr30k": 6, None: 8}[recipe.get("benchmark")]
    assert len(pairs.images) == count
    assert f"{count} images and {2 * count} captions would be embedded, and each of them mined" in said["mine"]
    assert "$" in said["synthesize"] and "unknown" not in said["synthesize"]
    assert f"anchors {2 * count}" in said["train"] and "2 with 2 slots" in said["train"]
    assert "2 images and 4 captions would be embedded and ranked" in said["evaluate"]


def make_data(pictures: Path, recipe: dict) -> None:
    """The twelve pictures of `pairs_folder`, where the recipe looks for them and in the form of its source."""
    rows = [json.loads(line) for line in (pictures / "captions.jsonl").read_text().splitlines()]
    source = Path(recipe["pairs"])
    if source.suffix != ".json":
        shutil.copytree(pictures, source)
        names = {"restval": "train", "val": "validation"}
        lines = [row | {"split": names.get(split, split)} for row, split in zip(rows, SPLITS, strict=True)]
        (source / "captions.jsonl").write_text("\n".join(map(json.dumps, lines)))
        return
    images = []
    for number, (row, split) in enumerate(zip(rows, SPLITS, strict=True)):
        path = "train2014" if split == "train" else "val2014"
        is_coco = recipe["benchmark"].startswith("coco")
        name = f"COCO_{path}_{number:012}.jpg" if is_coco else f"{number}.jpg"
        place = Path(recipe["image_folder"]) / (path if is_coco else "") / name
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.open(pictures / row["image"]).save(place)
        sentences = [{"raw": caption} for caption in row["captions"]]
        images.append({"filename": name, "split": split, "sentences": sentences})
        if is_coco:
            images[-1] |= {"filepath": path, "cocoid": number}
    source.write_text(json.dumps({"images": images}))


def make_failures(pairs: Pairs, folder: Path) -> None:
    draw = np.random.default_rng(0)
    images, texts = (
        draw.normal(size=(count, 8)).astype("float32") for count in (len(pairs.images), len(pairs.captions))
    )
    images, texts = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True) for vectors in (images, texts))
    failures = mine_false_positives(images, texts, pairs.caption_image, d_i2t=2)
    folder.mkdir(parents=True)
    with_ids(failures, pairs).to_parquet(folder / "failures.parquet")


def make_records(pairs: Pairs, folder: Path) -> None:
    """Two of them, one for each of two captions, without the source's images."""
    ids, captions = pairs.images["image_id"][:], pairs.captions
    rows = []
    for q, fp in ((0, 1), (2, 0)):
        row = {"record_id": f"{q:016x}", "direction": "t2i", "q_id": captions[q]["caption_id"], "fp_id": ids[fp]}
        row |= {"q_text": captions[q]["caption"], "gt_id": ids[q // 2], "fp_score": 0.5, "error_types": []}
        rows.append(dict.fromkeys(FEATURES) | row | {"edit_image": Image.new("RGB", (48, 40), "teal")})
    dropped = Dataset.from_dict({name: [] for name in DROPPED_FEATURES}, features=DROPPED_FEATURES)
    save_records(folder, Dataset.from_list(rows, features=FEATURES), dropped, embed_source_images=False)

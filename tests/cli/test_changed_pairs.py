"""Pictures, captions or a model that change between two stages are noticed, and the first ones are named."""

import json
import re
import shutil
from pathlib import Path

import pytest
from PIL import Image, ImageOps

from repair_hf.cli.main import main
from repair_hf.encoder.shipped import locate
from repair_hf.pairs.dataset import load_pairs
from repair_hf.records.dataset import load_records
from repair_hf.runtime.options import UserError
from repair_hf.toyworld.corpus import build_world

SYNTHESIZE = "synthesize {pairs} --failures {run}/failures --llm world/oracle --editor world --candidates 1"
TRAIN = "train {pairs} --records {run}/records --use-cpu --max-steps 1 --per-device-train-batch-size 4"


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("q_image", "gt_image", "gt_text", "fp_text")]
SLOW_TRAIN = pytest.param(TRAIN, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of `mine` and `synthesize` on its own world."""
    folder = tmp_path_factory.mktemp("run")
    build_world(folder / "world", splits={"train": 8, "validation": 1, "test": 1})
    words = f"--pairs {folder}/world --model world/base"
    assert main(f"mine {words} --output {folder}/failures".split()) == 0
    assert main([*SYNTHESIZE.format(pairs=words, run=folder).split(), "--output", f"{folder}/records"]) == 0
    return folder


@pytest.fixture
def copied(run, tmp_path):
    """A copy of the world in the same place as far as its pairs know: ids are relative to it."""
    return shutil.copytree(run / "world", tmp_path / "world")


def flip(pairs: Path, name: str) -> None:
    """Turn a picture upside down."""
    file = next(pairs.rglob(name))
    with Image.open(file) as picture:
        ImageOps.flip(picture).save(file)


@pytest.mark.parametrize(
    ("what", "words", "made_by"), [("picture", SYNTHESIZE, "failures"), ("caption", TRAIN, "records")]
)
def test_other_pairs_under_the_same_names_are_an_error(what, words, made_by, run, copied, tmp_path, capsys):
    lines = [json.loads(line) for line in (copied / "captions.jsonl").read_text().splitlines()]
    named = lines[3]["image"]
    if what == "picture":
        flip(copied, named)
    else:
        lines[3]["captions"][2] += " at night"
        (copied / "captions.jsonl").write_text("\n".join(map(json.dumps, lines)))
        named = f"{named}#2"
    typed = words.format(pairs=f"--pairs {copied} --model world/base", run=run).split()
    for dry in (["--dry-run"], []):
        assert main([*typed, "--output", str(tmp_path / "out"), *dry]) == 2
        said = capsys.readouterr().err
        assert f"{run / made_by} was made from other pairs: 1 " in said and f"({named})" in said
    assert not (tmp_path / "out" / "summary.json").exists()


@pytest.mark.parametrize("what", ["q_text", "fp_image", *SLOW])
def test_records_of_the_hub_are_compared_by_what_they_hold(what, run, copied, tmp_path, capsys):
    """They have no digests of the items. Both are given by Python as `load_records(pairs=)`, or by the command."""
    records = shutil.copytree(run / "records", tmp_path / "hub", ignore=shutil.ignore_patterns("items.parquet"))
    role, _, kind = what.partition("_")
    named = [row[f"{role}_id"] for row in load_records(records) if row[what] is not None][2]
    lines = [json.loads(line) for line in (copied / "captions.jsonl").read_text().splitlines()]
    if kind == "image":
        flip(copied, named)
    else:
        image, _, place = named.partition("#")
        next(line for line in lines if line["image"] == image)["captions"][int(place)] += " at night"
        (copied / "captions.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UserError, match=re.escape(f"({named})")):
        load_records(records, pairs=load_pairs(copied))
    if what in ("q_text", "fp_image"):
        typed = TRAIN.format(pairs=f"--pairs {copied} --model world/base", run=run).split()
        typed[typed.index(f"{run}/records")] = str(records)
        assert main([*typed, "--output", str(tmp_path / "out")]) == 2
        said = capsys.readouterr().err
        assert "records was made from other pairs: 1 " in said and f"({named})" in said
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [SYNTHESIZE, SLOW_TRAIN])
def test_the_same_pairs_elsewhere_are_the_same(words, run, copied, tmp_path):
    """Also with other bytes of the same pixels."""
    first = sorted(copied.rglob("*.png"))[0]
    with Image.open(first) as picture:
        picture.load()
        info = picture.info
    from PIL.PngImagePlugin import PngInfo

    kept = PngInfo()
    for key, value in info.items():
        kept.add_text(key, value)
    picture.save(first, compress_level=0, pnginfo=kept)
    typed = words.format(pairs=f"--pairs {copied} --model world/base", run=run).split()
    assert main([*typed, "--output", str(tmp_path / "out")]) == 0


def typed_in(words: str, run: Path, folder: Path) -> list[str]:
    return [*words.format(pairs=f"--pairs {run}/world", run=run).split(), "--output", str(folder / "out")]


@pytest.mark.parametrize("words", [SYNTHESIZE, TRAIN])
def test_another_model_than_the_inputs_is_an_error(words, run, clip_folder, tmp_path, capsys):
    other = [*typed_in(words, run, tmp_path), "--model", str(clip_folder)]
    assert main(other) == main([*other, "--dry-run"]) == 2
    complaint = capsys.readouterr().err
    assert len(re.findall("were made with (world/)?base@", complaint)) == 2 and "--any-model to continue" in complaint
    assert f"--model is {clip_folder.name}@" in complaint and not (tmp_path / "out").exists()


@pytest.mark.parametrize("words", [SYNTHESIZE, SLOW_TRAIN])
def test_another_model_is_taken_if_asked_for_and_the_same_weights_elsewhere_anyway(
    words, run, clip_folder, tmp_path, capsys
):
    moved = shutil.copytree(locate("world/base"), tmp_path / "moved")
    for model in ([str(clip_folder), "--any-model"], [str(moved)]):
        typed = [*typed_in(words, run, tmp_path), "--model", *model, "--dry-run"]
        assert main(typed) == 0, capsys.readouterr().err

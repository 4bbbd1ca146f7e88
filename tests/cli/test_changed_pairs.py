"""Pictures or captions that change between two stages are noticed, and the first ones are named."""

import json
import shutil

import pytest
from PIL import Image, ImageOps

from repair_hf.cli.main import main
from repair_hf.toyworld.corpus import build_world

SYNTHESIZE = "synthesize {pairs} --failures {run}/failures --llm world/oracle --editor world --candidates 1"
TRAIN = "train {pairs} --records {run}/records --use-cpu --max-steps 1 --per-device-train-batch-size 4"


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


@pytest.mark.parametrize(("words", "made_by"), [(SYNTHESIZE, "failures"), (TRAIN, "records")])
@pytest.mark.parametrize("what", ["picture", "caption"])
def test_other_pairs_under_the_same_names_are_an_error(words, made_by, what, run, copied, tmp_path, capsys):
    lines = [json.loads(line) for line in (copied / "captions.jsonl").read_text().splitlines()]
    named = lines[3]["image"]
    file = next(copied.rglob(named))
    if what == "picture":
        with Image.open(file) as picture:
            ImageOps.flip(picture).save(file)
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


@pytest.mark.parametrize("words", [SYNTHESIZE, TRAIN])
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

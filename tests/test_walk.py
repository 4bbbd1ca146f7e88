"""A newcomer's walk with photographs: from a table with absolute paths to the verdict of `analyze`.

Each command after the first is the one that the command before suggested, with the LLM and the editor filled in.
"""

import csv
import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from chat_server import ChatServer
from PIL import Image

from repair_hf.cli.main import main
from repair_hf.pairs.dataset import load_pairs
from repair_hf.records.dataset import load_records

SMALL = "--max-steps 3 --per-device-train-batch-size 8 --learning-rate 1e-3 --use-cpu".split()


def cut(folder: Path, across: int, down: int) -> dict[str, str]:
    """Write the parts of three photographs as JPEG files into a folder, and return the caption of each by its name."""
    sklearn = pytest.importorskip("sklearn", reason="scikit-learn carries two of the photographs")
    import matplotlib

    images = Path(sklearn.__file__).parent / "datasets" / "images"
    photographs = {
        "a woman in uniform before a flag": Path(matplotlib.get_data_path(), "sample_data", "grace_hopper.jpg"),
        "a temple by the water": images / "china.jpg",
        "a pink flower": images / "flower.jpg",
    }
    captions = {}
    for caption, path in photographs.items():
        photograph = Image.open(path)
        width, height = photograph.width // across, photograph.height // down
        for number in range(across * down):
            left, top = number % across * width, number // across * height
            name = f"{path.stem}-{number}.jpg"
            photograph.crop((left, top, left + width, top + height)).save(folder / name)
            captions[name] = f"Part {number % across + 1} of row {number // across + 1} of {caption}."
    return captions


def scripted(body: dict) -> str:
    """Accept every false positive, and edit one word."""
    text = json.dumps(body["messages"])
    if "Edit instruction: " in text:
        return json.dumps({"answer": f"The middle of something else, number {body['seed'] % 1000}."})
    if "gt_valid" in text:
        verdict = {"gt_reason": "It fits.", "gt_valid": True, "fp_reason": "It does not.", "fp_too_similar": False}
        return json.dumps(verdict)
    if "Query caption: " in text:
        return json.dumps({"error_types": ["Attribute"], "edit_instruction": "Make the light warmer."})
    instruction = "It shows another thing. Therefore, replace 'a' with 'one'."
    return json.dumps({"error_types": ["Object"], "edit_instruction": instruction})


@pytest.mark.slow
def test_from_a_table_with_absolute_paths_to_the_verdict(clip_folder, pix2pix_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")
    (photos := tmp_path / "photos").mkdir()
    rows = [(str(photos / name), caption) for name, caption in cut(photos, 4, 4).items()]
    splits = [("train", "train", "train", "val", "test", "test")[place % 6] for place in range(len(rows))]
    shutil.copy(rows[0][0], photos / "copy.jpg")  # of a training picture, in the test split
    with open("photos.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("image", "caption", "split"))
        writer.writerows([*((*row, split) for row, split in zip(rows, splits, strict=True))])
        writer.writerow((photos / "copy.jpg", "A copy.", "test"))

    def suggested(*words: str) -> list[list[str]]:
        """Run a command, and return those that it suggests."""
        capsys.readouterr()
        assert main([*words]) == 0, capsys.readouterr().err
        lines = capsys.readouterr().out.splitlines()
        return [shlex.split(line)[2:] for line in lines if line.startswith("next: ")]

    ids = [set(load_pairs("photos.csv", split=split).images["image_id"]) for split in ("train", "val", "test")]
    assert not ids[0] & ids[2] and len(set.union(*ids)) == len(rows)  # the copy is no image of its own

    mined = f"mine --pairs photos.csv --model {clip_folder} --d-i2t 2 --output runs/failures".split()
    show, synthesize = suggested(*mined)
    assert suggested(*show) == [["analyze", "runs/failures"]]
    assert (tmp_path / "runs" / "failures").is_dir() and suggested("analyze", "runs/failures") == []

    words = {"--llm": "openai/scripted", "--editor": str(pix2pix_folder)}
    synthesize = [words.get(before, word) for before, word in zip(["", *synthesize], synthesize, strict=False)]
    with ChatServer(scripted) as server:
        synthesize += f"--llm-base-url {server.base_url} --editor-steps 1 --editor-size 64".split()
        assert main([*synthesize, "--max-calls", "130", "--concurrency", "1"]) == 1  # what is repaired is usable
        assert re.search(r"[1-9]\d* records are written", capsys.readouterr().out)
        assert suggested("show", "runs/records") == []
        look, train = suggested(*synthesize)
        assert look == ["show", "runs/records"]
        assert suggested(*synthesize) and (tmp_path / "runs" / "records").is_dir()
    records = load_records("runs/records")
    assert {*records["direction"]} == {"t2i", "i2t"}
    assert not any(str(tmp_path) in str(records[name][:]) for name in ("q_id", "gt_id", "fp_id"))

    plain, evaluate = suggested(*train, *SMALL)
    assert plain[0] == "train" and "--records" not in plain and plain[-1] == "runs/train-plain"
    suggested(*plain)
    assert evaluate[:4] == ["evaluate", str(clip_folder), "runs/train-plain", "runs/train"]
    assert suggested(*evaluate) == []
    assert main(["analyze", "runs"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert re.search(r"(Yes|No|Undecided): train − train-plain is [+-][\d.]+ \[.*\] in I2T R@1", shown)

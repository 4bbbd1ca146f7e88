"""Photographs pass through all commands: crops of those that matplotlib and scikit-learn carry.

The LLM is a scripted server on loopback; the retriever and the editor are tiny models with random weights.
"""

import json
from pathlib import Path

import matplotlib
import pytest
import torch
from datasets import load_dataset
from PIL import Image
from transformers import AutoModel

from repair_hf.cli.main import main
from repair_hf.toyworld.server import ChatServer

PLACES = ("top left", "top right", "bottom left", "bottom right")


def photographs() -> dict[str, Path]:
    """Caption -> photograph."""
    sklearn = pytest.importorskip("sklearn", reason="scikit-learn carries two of the photographs")
    images = Path(sklearn.__file__).parent / "datasets" / "images"
    return {
        "a woman in uniform before a flag": Path(matplotlib.get_data_path(), "sample_data", "grace_hopper.jpg"),
        "a temple by the water": images / "china.jpg",
        "a pink flower": images / "flower.jpg",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The four quarters of each photograph, as JPEG files with a caption each."""
    folder, lines = tmp_path_factory.mktemp("photographs"), []
    for caption, path in photographs().items():
        photograph = Image.open(path)
        width, height = photograph.width // 2, photograph.height // 2
        for number, place in enumerate(PLACES):
            left, top = number % 2 * width, number // 2 * height
            name = f"{path.stem}-{number}.jpg"
            photograph.crop((left, top, left + width, top + height)).save(folder / name)
            lines.append(json.dumps({"image": name, "captions": [f"The {place} of {caption}."]}))
    (folder / "captions.jsonl").write_text("\n".join(lines))
    return folder


def scripted(body: dict) -> str:
    """Accept every false positive, and edit one word."""
    text = json.dumps(body["messages"])
    if "Edit instruction: " in text:
        return json.dumps({"answer": f"The middle of something else, number {body['seed'] % 1000}."})
    if "gt_valid" in text:
        verdict = {"gt_reason": "It fits.", "gt_valid": True, "fp_reason": "It does not.", "fp_too_similar": False}
        return json.dumps(verdict)
    if "Query caption: " in text:
        return json.dumps({"edit_instruction": "Make the light warmer and keep everything else."})
    instruction = "It shows another thing. Therefore, replace 'a' with 'one'."
    return json.dumps({"error_types": ["Object"], "edit_instruction": instruction})


def test_photographs_are_mined_repaired_and_trained_on(folder, clip_folder, pix2pix_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")
    pairs = ["--pairs", str(folder), "--split", "all", "--model", str(clip_folder)]
    failures, records, trained = (str(tmp_path / name) for name in ("failures", "records", "trained"))
    assert main(["mine", *pairs, "--d-i2t", "2", "--output", failures]) == 0
    editor = f"--editor {pix2pix_folder} --editor-steps 1 --editor-size 64".split()
    with ChatServer(scripted) as server:
        llm = f"--failures {failures} --llm openai/scripted --llm-base-url {server.base_url}".split()
        assert main(["synthesize", *pairs, *llm, *editor, "--output", records]) == 0
    rows = load_dataset(records, "records", split="train")
    assert {row["direction"] for row in rows} == {"t2i", "i2t"} and len(rows) == 12 + 2 * 12
    assert all((row["edit_image"] is not None) == (row["direction"] == "t2i") for row in rows)
    words = f"--records {records} --max-steps 3 --per-device-train-batch-size 8 --learning-rate 1e-3".split()
    assert main(["train", *pairs, *words, "--output", trained]) == 0
    before, after = (AutoModel.from_pretrained(folder).state_dict() for folder in (clip_folder, trained))
    assert all(not torch.equal(before[name], after[name]) for name in before if name.endswith("proj.weight"))
    assert main(["evaluate", *pairs[:4], "--model", trained, "--output", str(tmp_path / "e")]) == 0

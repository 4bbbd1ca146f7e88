"""Photographs pass through all commands: crops of those that matplotlib and scikit-learn carry.

The LLM is a scripted server on loopback; the retriever and the editor are tiny models with random weights.
"""

import json
from pathlib import Path

import pytest
import torch
from datasets import load_dataset
from photographs import cut, scripted
from transformers import AutoModel

from repair_hf.cli.main import main
from repair_hf.toyworld.server import ChatServer


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The four quarters of each photograph, as JPEG files with a caption each."""
    folder = tmp_path_factory.mktemp("photographs")
    lines = [json.dumps({"image": name, "captions": [caption]}) for name, caption in cut(folder, 2, 2).items()]
    (folder / "captions.jsonl").write_text("\n".join(lines))
    return folder


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

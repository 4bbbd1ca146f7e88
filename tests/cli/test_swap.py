"""One command of `repair-hf synthesize`, with other models: only `--llm` and `--editor` change."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from repair_hf.cli.main import main
from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.mining.false_positives import mine_false_positives
from repair_hf.pairs.dataset import load_pairs
from repair_hf.records.dataset import load_dropped, load_records
from repair_hf.toyworld.corpus import build_world

pytestmark = pytest.mark.slow

SAID = ["direction", "q_id", "fp_id", "gt_reason", "fp_reason", "edit_instruction", "edit_text"]


@pytest.fixture(scope="module")
def address():
    """Of the oracle behind the protocol of OpenAI, as `repair-hf world serve` starts it."""
    words = [sys.executable, "-m", "repair_hf", "world", "serve", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        yield next(word for word in server.stdout.readline().split() if word.startswith("http://"))
        server.terminate()


@pytest.fixture(scope="module")
def synthesize(clip_folder, tmp_path_factory):
    """Types the command; what a test gives is all that changes. Gives back the folder of records."""
    folder = tmp_path_factory.mktemp("swap")
    world = build_world(folder / "world", splits={"train": 8, "validation": 1, "test": 1})
    pairs, encoder = load_pairs(world), DualEncoder.from_pretrained(clip_folder)
    failures = mine_false_positives(*encoder.embed_pairs(pairs), pairs.caption_image, d_i2t=1)
    failures.select([0, 9, 20, *range(40, 46)]).to_parquet(folder / "failures.parquet")
    fixed = ["--pairs", str(world), "--failures", str(folder / "failures.parquet"), "--model", str(clip_folder)]
    fixed += ["--candidates", "1", "--max-error-rate", "1", "--editor-size", "64", "--editor-steps", "2"]

    def type_it(name: str, *models: str) -> Path:
        assert main(["synthesize", *fixed, *models, "--output", str(folder / name)]) == 0
        return folder / name

    return type_it


@pytest.fixture(scope="module")
def by_oracle(synthesize) -> Path:
    return synthesize("oracle", "--llm", "world/oracle", "--editor", "world")


def said(folder: Path) -> list[dict]:
    return load_records(folder).select_columns(SAID).to_list()


def test_an_llm_behind_http_says_what_the_same_one_says_here(synthesize, by_oracle, address, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")  # LiteLLM wants one
    served = synthesize("served", "--llm", "openai/oracle", "--llm-base-url", address, "--editor", "world")
    assert said(served) == said(by_oracle) and len(said(served)) > 5
    assert set(load_records(served)["llm"]) != set(load_records(by_oracle)["llm"])


def test_a_local_llm_takes_the_same_command(synthesize, vlm_folder, tmp_path):
    """Random weights say nothing of use: each failure is dropped for that, and none is lost."""
    model = shutil.copytree(vlm_folder, tmp_path / "vlm")
    settings = json.loads((model / "generation_config.json").read_text())
    settings["eos_token_id"] = list(range(0, 260, 2))  # every other token ends its babble
    (model / "generation_config.json").write_text(json.dumps(settings))
    dropped = load_dropped(synthesize("local", "--llm", str(model), "--editor", "world"))
    assert len(dropped) == 9 and set(dropped["reason"]) == {"llm_unparsed"}


def test_a_local_editor_takes_the_same_command(synthesize, by_oracle, pix2pix_folder):
    edited = synthesize("pix2pix", "--llm", "world/oracle", "--editor", str(pix2pix_folder))
    assert said(edited) == said(by_oracle)  # captions are the LLM's
    pictures, others = (
        [row["edit_image"] for row in load_records(folder) if row["direction"] == "t2i"]
        for folder in (edited, by_oracle)
    )
    assert len(pictures) == len(others) > 0 and all(
        a.tobytes() != b.tobytes() for a, b in zip(pictures, others, strict=True)
    )
    assert all(
        row["editor"].startswith(pix2pix_folder.name) for row in load_records(edited) if row["direction"] == "t2i"
    )

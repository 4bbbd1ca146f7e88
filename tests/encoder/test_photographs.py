"""Real photographs pass through all commands.

The LLM is a scripted server on loopback, the image editor a stub that tints, the encoder a small random CLIP with
CLIP's real vocabulary. Photographs and vocabulary are not shipped: environment variables name them, and without them
the tests are skipped.
"""

import gzip
import json
import os
from pathlib import Path

import pytest
import torch
from datasets import load_dataset
from PIL import Image, ImageChops
from transformers import AutoModel, CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPProcessor, CLIPTokenizer

from repair_hf.cli.main import main
from repair_hf.toyworld.server import ChatServer

PHOTOGRAPHS = os.environ.get("REPAIR_HF_PHOTOGRAPHS")
VOCABULARY = os.environ.get("REPAIR_HF_CLIP_BPE")
pytestmark = pytest.mark.skipif(
    not (PHOTOGRAPHS and VOCABULARY),
    reason="set REPAIR_HF_PHOTOGRAPHS (folder with captions.jsonl) and REPAIR_HF_CLIP_BPE (CLIP's list of merges)",
)


class Tint:
    """An editor that only tints, by seed."""

    id = "tint"

    def edit(self, source, instruction, seeds):
        tints = [Image.new("RGB", source.size, (255, 250 - seed % 50, 220)) for seed in seeds]
        return [ImageChops.multiply(source, tint) for tint in tints]


def scripted(body: dict) -> str:
    """Accept every false positive, and edit one word."""
    text = json.dumps(body["messages"])
    if "Edit instruction: " in text:
        return json.dumps({"answer": f"A photograph of something else, number {body['seed'] % 1000}."})
    if "gt_valid" in text:
        verdict = {"gt_reason": "It fits.", "gt_valid": True, "fp_reason": "It does not.", "fp_too_similar": False}
        return json.dumps(verdict)
    if "Query caption: " in text:
        return json.dumps({"edit_instruction": "Make the light warmer and keep everything else."})
    instruction = "It shows another thing. Therefore, replace 'a' with 'one'."
    return json.dumps({"error_types": ["Object"], "edit_instruction": instruction})


def real_tokenizer() -> CLIPTokenizer:
    """CLIP's vocabulary from its list of merges, in the order in which OpenAI built it."""
    lines = gzip.decompress(Path(VOCABULARY).read_bytes()).decode().split("\n")[1 : 49152 - 256 - 2 + 1]
    merges = [tuple(line.split()) for line in lines]
    shown = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = [chr(code) for code in shown] + [chr(256 + place) for place in range(256 - len(shown))]
    words = [*letters, *(letter + "</w>" for letter in letters), *("".join(pair) for pair in merges)]
    words += ["<|startoftext|>", "<|endoftext|>"]
    return CLIPTokenizer(vocab={word: row for row, word in enumerate(words)}, merges=merges, model_max_length=77)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> str:
    """A random CLIP of width 64 for photographs of 64 px, with the real vocabulary."""
    folder, tokenizer = tmp_path_factory.mktemp("clip"), real_tokenizer()
    ids = [49406, 320, 1125, 539, 320, 2368, 49407]
    assert len(tokenizer) == 49408 and tokenizer("a photo of a cat")["input_ids"] == ids
    small = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
    text = dict(vocab_size=49408, max_position_embeddings=77) | small
    text |= dict(bos_token_id=49406, eos_token_id=49407, pad_token_id=49407)
    vision = dict(image_size=64, patch_size=16) | small
    torch.manual_seed(0)
    CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=64)).save_pretrained(folder)
    pictures = CLIPImageProcessorPil(size={"shortest_edge": 64}, crop_size={"height": 64, "width": 64})
    CLIPProcessor(image_processor=pictures, tokenizer=tokenizer).save_pretrained(folder)
    return str(folder)


def test_photographs_are_mined_repaired_and_trained_on(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr("repair_hf.synthesis.images.load_editor", lambda id, **settings: Tint())
    monkeypatch.setenv("OPENAI_API_KEY", "not-a-key")
    pairs = ["--pairs", PHOTOGRAPHS, "--split", "all", "--model", encoder]
    failures, records, trained = (str(tmp_path / name) for name in ("failures", "records", "trained"))
    assert main(["mine", *pairs, "--max-queries", "30", "--d-i2t", "2", "--output", failures]) == 0
    with ChatServer(scripted) as server:
        words = f"--failures {failures} --llm openai/scripted --llm-base-url {server.base_url} --editor tint".split()
        assert main(["synthesize", *pairs, *words, "--output", records]) == 0
    rows = load_dataset(records, "records", split="train")
    assert {row["direction"] for row in rows} == {"t2i", "i2t"} and len(rows) == 30 + 2 * 30
    assert all((row["edit_image"] is not None) == (row["direction"] == "t2i") for row in rows)
    words = f"--records {records} --max-steps 3 --per-device-train-batch-size 16 --learning-rate 1e-3".split()
    assert main(["train", *pairs, *words, "--output", trained]) == 0
    before, after = AutoModel.from_pretrained(encoder).state_dict(), AutoModel.from_pretrained(trained).state_dict()
    assert all(not torch.equal(before[name], after[name]) for name in before if name.endswith("proj.weight"))
    assert main(["evaluate", *pairs[:4], "--model", trained, "--output", str(tmp_path / "e")]) == 0

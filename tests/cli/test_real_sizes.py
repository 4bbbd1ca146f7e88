"""Each stage once with ViT-B/32 and with SigLIP base at their real sizes, on 100 pictures of 500 x 375.

Weights are random. The vocabulary has the real number of tokens, all but some letters of them unused.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_models import alphabet

from repair_hf.records.columns import DROPPED_FEATURES, FEATURES
from repair_hf.records.dataset import save_records

pytestmark = pytest.mark.slow

PICTURES = 100
BEYOND = 4e9  # bytes of a stage beyond the model


@pytest.fixture(scope="module")
def photographs(tmp_path_factory) -> Path:
    folder, rng, lines = tmp_path_factory.mktemp("photographs"), np.random.default_rng(0), []
    for row in range(PICTURES):
        pixels = rng.integers(0, 256, (12, 16, 3), np.uint8)
        Image.fromarray(pixels).resize((500, 375)).save(folder / f"{row:03d}.jpg")
        captions = [f"photograph {row} told in another way, number {k}" for k in range(5)]
        lines.append(json.dumps({"image": f"{row:03d}.jpg", "captions": captions}))
    (folder / "captions.jsonl").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def repaired_photographs(photographs, tmp_path_factory) -> Path:
    """A record of each picture's first caption: another picture stands for the edit."""
    from datasets import Dataset

    rng, rows = random.Random(0), []
    lines = [json.loads(line) for line in (photographs / "captions.jsonl").read_text().splitlines()]
    for number, line in enumerate(lines):
        fp, edit = rng.sample([other["image"] for other in lines if other is not line], 2)
        row = {"record_id": f"{number:016x}", "direction": "t2i", "q_id": f"{line['image']}#0", "gt_id": line["image"]}
        row |= {"fp_id": fp, "q_text": line["captions"][0], "fp_score": 0.5, "error_types": []}
        rows.append(dict.fromkeys(FEATURES) | row | {"edit_image": {"bytes": (photographs / edit).read_bytes()}})
    folder = tmp_path_factory.mktemp("records")
    dropped = Dataset.from_dict({name: [] for name in DROPPED_FEATURES}, DROPPED_FEATURES)
    save_records(folder, Dataset.from_list(rows, features=FEATURES), dropped)
    return folder


def clip(folder: Path) -> None:
    from transformers import CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPProcessor, CLIPTokenizer

    words = [*alphabet(), *(letter + "</w>" for letter in alphabet())]
    words += [f"<unused {k}>" for k in range(49_406 - len(words))]
    vocab = {word: row for row, word in enumerate([*words, "<|startoftext|>", "<|endoftext|>"])}
    tokenizer = CLIPTokenizer(vocab=vocab, merges=[], model_max_length=77)
    CLIPModel(CLIPConfig()).save_pretrained(folder)
    CLIPProcessor(CLIPImageProcessorPil(), tokenizer).save_pretrained(folder)


def siglip(folder: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import (
        PreTrainedTokenizerFast,
        SiglipConfig,
        SiglipImageProcessorPil,
        SiglipModel,
        SiglipProcessor,
    )

    words = ["<pad>", "</s>", "<unk>", *alphabet()]
    words += [f"<unused {k}>" for k in range(32_000 - len(words))]
    backend = Tokenizer(models.BPE({word: row for row, word in enumerate(words)}, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=64, **special)
    text = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
    SiglipModel(SiglipConfig(text_config=text, vision_config={})).save_pretrained(folder)
    SiglipProcessor(SiglipImageProcessorPil(size={"height": 224, "width": 224}), tokenizer).save_pretrained(folder)


@pytest.mark.parametrize("build", [clip, siglip])
def test_each_stage_takes_at_most_4_gb_beyond_the_model(build, photographs, repaired_photographs, tmp_path):
    torch.manual_seed(0)
    build(tmp_path / "model")
    weights = (tmp_path / "model" / "model.safetensors").stat().st_size
    data, model = f"--pairs {photographs} --split all", f"--model {tmp_path / 'model'}"
    train = f"train {data} {model} --records {repaired_photographs} --max-steps 1 --use-cpu"
    stages = {  # each with the copies of the weights that it holds: gradients and AdamW's two moments, too
        "mine": (f"mine {data} {model}", 1),
        "train": (f"{train} --per-device-train-batch-size 8", 4),
        "evaluate": (f"evaluate {data} {model} --resamples 50", 1),
    }
    peaks = {name: peak(f"{words} --output {tmp_path / name}") - n * weights for name, (words, n) in stages.items()}
    assert max(peaks.values()) < BEYOND, peaks


def peak(words: str) -> int:
    """Run a command in a process of its own, and return the peak of its memory in bytes."""
    process = subprocess.Popen(
        [sys.executable, "-m", "repair_hf", *words.split()],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    assert process.stderr is not None
    complained = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, complained[-3000:]
    return used.ru_maxrss * 1024

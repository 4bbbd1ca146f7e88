"""Each stage once with ViT-B/32 and with SigLIP base at their real sizes, on 100 pictures of 500 x 375.

Weights are random. The vocabulary has the real number of tokens, all but some letters of them unused.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from tiny_models import alphabet

from repair_hf.toyworld.corpus import build_world
from repair_hf.toyworld.renderer import to_png

pytestmark = pytest.mark.slow

PICTURES = 100
BEYOND = 4e9  # bytes of a stage beyond the model


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Pictures of the toy world at the size of photographs: its LLM and its editor read the scene, not the pixels."""
    folder = build_world(tmp_path_factory.mktemp("pictures"), splits={"train": PICTURES, "validation": 1, "test": 1})
    for path in (folder / "images").iterdir():
        path.write_bytes(to_png(Image.open(path).resize((500, 375))))
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
def test_each_stage_takes_at_most_4_gb_beyond_the_model(build, pictures, tmp_path):
    torch.manual_seed(0)
    build(tmp_path / "model")
    weights = (tmp_path / "model" / "model.safetensors").stat().st_size
    data, model = f"--pairs {pictures} --split train", f"--model {tmp_path / 'model'}"
    toy = "--llm world/oracle --editor world"
    failures, records = f"--failures {tmp_path / 'mine'} --limit 20", f"--records {tmp_path / 'synthesize'}"
    stages = {  # each with the copies of the weights that it holds: gradients and AdamW's two moments, too
        "mine": (f"mine {data} {model}", 1),
        "synthesize": (f"synthesize {data} {model} {failures} {toy}", 1),
        "contrast": (f"contrast {data} {toy} --max-items 5", 0),
        "train": (f"train {data} {model} {records} --max-steps 1 --use-cpu --per-device-train-batch-size 8", 4),
        "evaluate": (f"evaluate {data} {model} --contrast {tmp_path / 'contrast'} --resamples 50", 1),
    }
    peaks = {name: peak(f"{words} --output {tmp_path / name}") for name, (words, _) in stages.items()}
    for name, used in peaks.items():
        print(f"{build.__name__} {name}: {used / 1e9:.1f} GB")  # noqa: T201  # pytest -rP shows it
    assert all(peaks[name] - copies * weights < BEYOND for name, (_, copies) in stages.items()), peaks


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

"""Train the toy world's base retriever from scratch: a small CLIP, in place of a pretrained one.

The shipped retriever `world/base` was made with it.

python benchmarks/pretrain.py --world runs/world --output runs/base
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import AutoModel, CLIPConfig, CLIPImageProcessorPil, CLIPModel, CLIPProcessor, CLIPTokenizer

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.command_line import parse
from repair_hf.runtime.locks import LOCK, one_writer
from repair_hf.runtime.options import Bounded, UserError, opt
from repair_hf.runtime.run_folder import write_atomically
from repair_hf.training.config import RepairConfig
from repair_hf.training.finetune import train

START, END = "<|startoftext|>", "<|endoftext|>"
SIDE, PATCH, CONTEXT = 64, 16, 40
WIDTH, HEAD = 128, 32  # width of the shipped retriever's vectors, and of one attention head


@dataclass
class PretrainOptions(Bounded):
    """How a base retriever is trained from scratch. The defaults are the recipe of `world/base`."""

    world: str = opt("runs/world", "Folder of the world (`repair-hf world build`).")
    output: str = opt("runs/base", "Folder of the trained retriever.")
    epochs: float = opt(10.0, "Passes over the training captions.", above=0)
    learning_rate: float = opt(1e-3, "Peak learning rate.", above=0)
    batch_size: int = opt(128, "Pairs in a batch.", least=1)
    width: int = opt(128, "Width of both towers and of the embeddings, a multiple of 32.", least=32)
    seed: int = opt(0, "Seed of the initial weights and of the order of the data.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 32:
            raise UserError(f"`width` must be a multiple of 32, got {self.width}.")


def pretrain(options: PretrainOptions) -> None:
    """Train the toy world's base retriever from scratch, and evaluate it on held-out pictures."""
    pairs, folder = load_pairs(options.world, split="train"), Path(options.output)
    if options.batch_size > len(pairs.images):
        raise UserError(
            f"`batch_size` must be at most {len(pairs.images)}, the training pictures of {options.world}, "
            f"got {options.batch_size}: a batch holds each picture once."
        )
    if folder.exists() and {path.name for path in folder.iterdir()} - {LOCK, "start", "training"}:
        raise UserError(f"{folder} is not empty; give another --output.")
    start = folder / "start"  # random weights; the folder itself becomes loadable after training
    processor = build_processor(pairs.captions["caption"])
    build_model(processor, width=options.width, seed=options.seed).save_pretrained(start)
    processor.save_pretrained(start)
    config = RepairConfig(
        output_dir=str(folder / "training"),
        num_train_epochs=options.epochs,
        learning_rate=options.learning_rate,
        per_device_train_batch_size=options.batch_size,
        warmup_steps=0.05,
        adam_beta2=0.98,
        seed=options.seed,
        disable_tqdm=False,
    )
    trained = train(str(start), pairs, None, config)
    processor.save_pretrained(folder)
    AutoModel.from_pretrained(folder / "training").half().save_pretrained(folder)
    shutil.rmtree(start)
    _write_held_out(folder, options, {"steps": trained["steps"], "seconds": round(trained["seconds"])})
    print(f"base    {trained['steps']:,} steps   {trained['seconds']:,.0f} s   -> {folder}")


def _write_held_out(folder: Path, options: PretrainOptions, trained: dict[str, Any]) -> None:
    """Write `held_out.json`: how the retriever in `folder` was trained, its digest, and its held-out metrics."""
    encoder = DualEncoder.from_pretrained(folder)
    held_out: dict[str, Any] = {"options": asdict(options)} | trained | {"digest": encoder.digest}
    for split in ("validation", "test"):
        pairs = load_pairs(options.world, split=split)
        metrics = held_out[split] = evaluate_retrieval(*encoder.embed_pairs(pairs), pairs.caption_image)
        print(
            f"{split:<11}R@1 I2T {metrics['i2t_R@1']:.1%}   T2I {metrics['t2i_R@1']:.1%}   "
            f"{metrics['n_images']:,} images, {metrics['n_texts']:,} captions"
        )
    write_atomically(folder / "held_out.json", json.dumps(held_out, indent=2) + "\n")


def build_processor(captions: Iterable[str]) -> CLIPProcessor:
    """Build a CLIP processor with a byte-pair vocabulary learnt from `captions`; pictures are resized to 64 px."""
    learner = Tokenizer(models.BPE(end_of_word_suffix="</w>", continuing_subword_prefix=""))
    learner.normalizer = normalizers.Lowercase()
    learner.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(pattern=" ", behavior="removed"),
            pre_tokenizers.Punctuation(),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    trainer = trainers.BpeTrainer(vocab_size=1000, end_of_word_suffix="</w>", show_progress=False)
    learner.train_from_iterator(sorted(set(captions)), trainer)
    learnt: Any = [tuple(merge) for merge in json.loads(learner.to_str())["model"]["merges"]]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = [
        *alphabet,
        *(letter + "</w>" for letter in alphabet),
        *dict.fromkeys(a + b for a, b in learnt),
        START,
        END,
    ]
    tokenizer = CLIPTokenizer(
        vocab={word: row for row, word in enumerate(dict.fromkeys(words))}, merges=learnt, model_max_length=CONTEXT
    )
    pictures = CLIPImageProcessorPil(
        size={"shortest_edge": SIDE},
        crop_size={"height": SIDE, "width": SIDE},
        image_mean=[0.5] * 3,
        image_std=[0.25] * 3,
    )
    return CLIPProcessor(image_processor=pictures, tokenizer=tokenizer)


def build_model(processor: CLIPProcessor, *, width: int = WIDTH, seed: int = 0) -> CLIPModel:
    """Build a CLIP with random weights for a processor of `build_processor`: 3 vision and 2 text layers.

    `width` is that of both towers and of the vectors, a multiple of 32. Width 128 has 0.9 million weights.
    """
    layers = {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_attention_heads": width // HEAD,
        "hidden_act": "gelu",
    }
    tokenizer = processor.tokenizer
    text = layers | {
        "num_hidden_layers": 2,
        "vocab_size": len(tokenizer),
        "max_position_embeddings": CONTEXT,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    vision = layers | {"num_hidden_layers": 3, "image_size": SIDE, "patch_size": PATCH}
    torch.manual_seed(seed)
    return CLIPModel(CLIPConfig(text_config=text, vision_config=vision, projection_dim=width))


if __name__ == "__main__":
    (wanted,) = parse((PretrainOptions,), sys.argv[1:], "pretrain.py")
    with one_writer(wanted.output):
        pretrain(wanted)

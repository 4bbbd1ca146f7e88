"""Train the toy world's base retriever from scratch, as `world/base` was made.

python benchmarks/pretrain.py --world runs/world --output runs/base
"""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

from transformers import AutoModel

from repair_hf.encoder.dual_encoder import DualEncoder
from repair_hf.evaluation.retrieval import evaluate_retrieval
from repair_hf.pairs.dataset import load_pairs
from repair_hf.runtime.command_line import parse
from repair_hf.runtime.locks import LOCK, one_writer
from repair_hf.runtime.options import Bounded, UserError, opt
from repair_hf.runtime.own_files import read_json
from repair_hf.runtime.run_folder import digest, write_atomically
from repair_hf.toyworld.base import build_model, build_processor
from repair_hf.training.config import RepairConfig
from repair_hf.training.finetune import train


@dataclass
class PretrainOptions(Bounded):
    """How a base retriever is trained from scratch. The defaults are the recipe of `world/base`."""

    world: str = opt("runs/world", "Folder of the world (`repair-hf world build`).")
    output: str = opt("runs/base", "Folder of the trained retriever.")
    epochs: float = opt(25.0, "Passes over the training captions; accuracy still rises after the default.", above=0)
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
    made_with = {name: value for name, value in asdict(options).items() if name not in ("world", "output")}
    made_of = {"options": made_with, "world": digest(list(pairs.captions["caption"]))}
    if claim(folder, made_of):
        print(f"base    exists already   -> {folder}")
        return
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
    _write_held_out(folder, options.world, made_of | {"steps": trained["steps"], "seconds": round(trained["seconds"])})
    print(f"base    {trained['steps']:,} steps   {trained['seconds']:,.0f} s   -> {folder}")


def claim(folder: Path, made_of: dict) -> bool:
    """Start `held_out.json` in a new folder, or where this same retriever was started; return whether it is finished.

    Raises:
        UserError: If the folder holds anything else.
    """
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give --output the path of a folder.")
    mark = folder / "held_out.json"
    before = read_json(mark) if mark.is_file() else {}
    there = {path.name for path in folder.iterdir()} - {LOCK} if folder.exists() else set()
    if there and {name: before.get(name) for name in made_of} != made_of:
        raise UserError(f"{folder} holds other files than those of this retriever; give another --output.")
    folder.mkdir(parents=True, exist_ok=True)
    if "test" in before:  # written last
        return True
    write_atomically(mark, json.dumps(made_of, indent=2) + "\n")
    return False


def _write_held_out(folder: Path, world: str, made_of: dict) -> None:
    """Write `held_out.json`: how the retriever in `folder` was trained, its digest, and its held-out metrics."""
    encoder = DualEncoder.from_pretrained(folder)
    held_out = made_of | {"digest": encoder.digest}
    for split in ("validation", "test"):
        pairs = load_pairs(world, split=split)
        metrics = held_out[split] = evaluate_retrieval(*encoder.embed_pairs(pairs), pairs.caption_image)
        print(
            f"{split:<11}R@1 I2T {metrics['i2t_R@1']:.1%}   T2I {metrics['t2i_R@1']:.1%}   "
            f"{metrics['n_images']:,} images, {metrics['n_texts']:,} captions"
        )
    write_atomically(folder / "held_out.json", json.dumps(held_out, indent=2) + "\n")


if __name__ == "__main__":
    (wanted,) = parse((PretrainOptions,), sys.argv[1:], "pretrain.py")
    with one_writer(wanted.output):
        pretrain(wanted)

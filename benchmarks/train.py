"""Time the training step beside the plain one of transformers: what do the edits cost?

    python benchmarks/train.py
    python benchmarks/train.py --architecture vit-b-32 --batch 16 --steps 2
    python benchmarks/train.py --rows edits chunks --chunk-batch 1024    # the memory of a large batch
    python benchmarks/train.py --rows edits --corpus 120000 --steps 1    # the memory of many captions

Each row runs in a process of its own, so that its peak of memory is its own. Pictures are noise, captions the toy
world's. Every item has failures in both directions and each failure an edit, so two pairs stand beside every anchor:
the most expensive case.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from argparse import Namespace
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from common import (
    ARCHITECTURES,
    GPU_HEADS,
    GPU_NOTE,
    GpuUse,
    Noise,
    gpu_watched,
    parser,
    print_notes,
    print_table,
    random_weights,
)

NOTES = {
    "run_clip": "the step of transformers' run_clip.py: pairs, captions padded to the model's maximum",
    "plain": "our step without records: pairs, captions padded to the longest of a group of similar length",
    "edits": "two pairs with edits beside each training pair, in the batch and in grids",
    "batch": "the same in the batch alone: the default",
    "paper": "the paper's fill, in grids",
    "chunks": "as `edits`, with gradient caching; see --chunk-size and --chunk-batch",
    "eager": "as `edits`, without torch's fused attention",
    "compiled": "as `edits`, with torch.compile, which takes minutes before the first step",
}
OPTIONS: dict[str, dict[str, Any]] = {"paper": {"paper": True}}
REFERENCE = "run_clip"
WARM_UP = 2  # steps that are not counted
RING = 8  # nearest items on either side; an item's failures are drawn from these


@dataclass(frozen=True)
class Cost:
    """What one row took."""

    step: float  # median seconds
    batch: int  # anchors in a step
    waiting: float  # share of the time spent waiting for data
    memory: int  # peak bytes of the process beyond model and data
    gpu: GpuUse
    images: float  # encoded for each anchor
    texts: float  # encoded for each anchor
    tokens: float  # of a caption, padding included


def main() -> None:
    """Print each row's fastest round."""
    options = parser("Time the training step.", NOTES)
    options.set_defaults(rows=[row for row in NOTES if row != "compiled"], repeat=2)
    options.add_argument("--architecture", choices=ARCHITECTURES, default="world")
    options.add_argument("--batch", type=int, default=128, help="anchors in a step")
    options.add_argument("--corpus", type=int, default=4000, help="images, with five captions each")
    options.add_argument("--steps", type=int, default=8, help="steps that are counted; two more warm up")
    options.add_argument("--precision", choices=("fp32", "bf16", "fp16"), default="fp32")
    options.add_argument("--chunk-size", type=int, default=64, help="items encoded at once in the row `chunks`")
    options.add_argument("--chunk-batch", type=int, help="anchors in a step of the row `chunks`")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    args = options.parse_args()
    rows = [row for row in NOTES if row == REFERENCE or row in args.rows]
    best: dict[str, Cost] = {}
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as processes:
        for row in rows * args.repeat:
            found = processes.submit(measure, row, args).result()
            best[row] = min(found, best.get(row, found), key=lambda cost: cost.step)
    plain = best[REFERENCE].step / best[REFERENCE].batch
    print_table(
        ("", "batch", "ms a step", "ratio", "images/s", "images", "texts", "tokens", "waiting", "memory", *GPU_HEADS),
        [_cells(row, cost, plain) for row, cost in best.items()],
    )
    print_notes(NOTES, rows, f"{args.architecture}, {args.precision} on {args.device}; ratio: of the time per anchor;")
    print("images, texts: encoded per anchor; tokens: of a caption with its padding;")
    print(f"memory: of the process, beyond model and data; {GPU_NOTE}")


def _cells(row: str, cost: Cost, plain: float) -> tuple[str, ...]:
    counts = f"{cost.images:.2f}", f"{cost.texts:.2f}", f"{cost.tokens:.1f}"
    ratio = cost.step / cost.batch / plain
    memory = f"{cost.memory / 2**20:,.0f} MiB"
    per_second = cost.images * cost.batch / cost.step
    speed = f"{cost.batch:,}", f"{cost.step * 1000:,.0f}", f"{ratio:.2f}", f"{per_second:,.0f}"
    return row, *speed, *counts, f"{cost.waiting:.1%}", memory, *cost.gpu.cells()


def measure(row: str, args: Namespace) -> Cost:
    """Train a few steps as one row does."""
    # this process was spawned, and would spawn the workers of loaders too, each of which imports torch
    multiprocessing.set_start_method(None, force=True)
    from transformers.utils import logging

    logging.set_verbosity_error()
    if row == "chunks":
        args.batch = args.chunk_batch or args.batch
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        trainer, batches = _plain(args, folder) if row == REFERENCE else _ours(row, args, folder)
        clock = _clock()
        trainer.add_callback(clock)
        before = _memory()
        with gpu_watched(args.device) as gpu:
            trainer.train()
        peak = _memory() - before
    spans = [end - begin for begin, end in zip(clock.begins, clock.ends, strict=True)][WARM_UP:]
    whole = clock.ends[-1] - clock.ends[WARM_UP - 1]
    shapes = [[texts.shape for texts in batch] for _, batch in batches]
    return Cost(
        step=median(spans),
        batch=args.batch,
        waiting=1 - sum(spans) / whole,
        memory=peak,
        gpu=gpu,
        images=mean(images / args.batch for images, _ in batches),
        texts=mean(sum(n for n, _ in batch) / args.batch for batch in shapes),
        tokens=mean(sum(n * length for n, length in batch) / sum(n for n, _ in batch) for batch in shapes),
    )


def _ours(row: str, load: Namespace, folder: str) -> tuple[Any, list]:
    """Build a trainer, and return it with three batches: how many images, and the token ids."""
    from repair_hf.training.batches import PairCollator
    from repair_hf.training.config import RepairConfig
    from repair_hf.training.trainer import RepairTrainer

    model, preprocessor, pairs, records = _setting(load)
    if row == "eager":
        model.set_attn_implementation("eager")
    how = OPTIONS.get(row, {}) | {"chunk_size": load.chunk_size if row == "chunks" else None}
    args = RepairConfig(**_arguments(load, folder), **how, torch_compile=row == "compiled", cache_images=False)
    trainer = RepairTrainer(model, args, pairs, None, preprocessor, records=None if row == "plain" else records)
    tables = [table for table in (pairs.images, trainer.fill.images) if table is not None]
    pictures = [Noise(len(table), preprocessor) for table in tables]
    captions = [part["edit_text"] for part in (trainer.fill.texts,) if part is not None]
    captions, at_once = [pairs.captions["caption"], *captions], trainer.data_collator.at_once
    # noise in the place of pictures
    trainer.data_collator = PairCollator(preprocessor, trainer.fill, pictures, captions, at_once)
    some = [batch for _, batch in zip(range(3), trainer.get_train_dataloader(), strict=False)]
    return trainer, [(len(batch["pixels"]), [texts["input_ids"] for texts in batch["texts"]]) for batch in some]


def _plain(load: Namespace, folder: str) -> tuple[Any, list]:
    """Build the step of transformers' example `run_clip.py`; no row decodes images."""
    import torch
    from transformers import Trainer, TrainingArguments

    model, preprocessor, pairs, _ = _setting(load)
    pictures, captions = Noise(len(pairs.images), preprocessor), pairs.captions["caption"][:]
    tokens = preprocessor.processor.tokenizer(
        captions, padding="max_length", max_length=preprocessor.max_length, truncation=True, return_tensors="pt"
    )

    def collate(rows: list[int]) -> dict[str, Any]:
        ids = torch.tensor(rows)
        pixels = preprocessor.normalize(pictures[pairs.caption_image[rows]])
        texts = {name: tokens[name][ids] for name in ("input_ids", "attention_mask")}
        return {"pixel_values": pixels, **texts, "return_loss": True}

    args = TrainingArguments(**_arguments(load, folder), remove_unused_columns=False, dataloader_drop_last=True)
    trainer = Trainer(model, args, collate, list(range(len(captions))))
    trainer.can_return_loss = True
    return trainer, [(load.batch, [tokens["input_ids"][: load.batch]])]


def _arguments(load: Namespace, folder: str) -> dict[str, Any]:
    return {
        "output_dir": folder,
        "max_steps": WARM_UP + load.steps,
        "per_device_train_batch_size": load.batch,
        "learning_rate": 1e-6,
        "logging_strategy": "no",
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": load.device == "cpu",
        "bf16": load.precision == "bf16",
        "fp16": load.precision == "fp16",
    }


def _setting(load: Namespace) -> tuple[Any, Any, Any, Any]:
    """Return the model, its preprocessor, pairs, and records of failures in both directions."""
    from repair_hf.toyworld import captions, scenes

    rng = random.Random(0)
    texts = [captions.write(scenes.sample(rng), rng) for _ in range(5 * load.corpus)]
    model, preprocessor = random_weights(load.architecture, texts[:5000])
    return model, preprocessor, pairs_of(load.corpus, texts), failures_of(load.corpus, texts, rng)


def pairs_of(n_images: int, texts: list[str]) -> Any:
    """Return pairs of images that are never opened, with five captions each."""
    from datasets import Dataset, Features, Image, Value

    from repair_hf.pairs.dataset import Pairs

    images = {"image_id": [f"{row}" for row in range(n_images)], "image": [None] * n_images}
    ids, image_index = [f"{row}" for row in range(len(texts))], [row // 5 for row in range(len(texts))]
    captions = {"caption_id": ids, "caption": texts, "image_index": image_index}
    return Pairs(
        Dataset.from_dict(images, features=Features({"image_id": Value("string"), "image": Image()})),
        Dataset.from_dict(captions),
        (),
    )


def failures_of(n_images: int, texts: list[str], rng: random.Random) -> Any:
    """Return one failure of each caption and five of each image."""
    from datasets import Dataset

    from repair_hf.records.columns import FEATURES

    def near(image: int) -> int:
        return (image + rng.choice([*range(-RING, 0), *range(1, RING + 1)])) % n_images

    rows = [("t2i", caption, near(caption // 5)) for caption in range(len(texts))]
    rows += [("i2t", image, 5 * near(image) + rng.randrange(5)) for image in range(n_images) for _ in range(5)]
    columns = {
        "record_id": [f"{row:016x}" for row in range(len(rows))],
        "direction": [direction for direction, _, _ in rows],
        "q_id": [f"{q}" for _, q, _ in rows],
        "fp_id": [f"{fp}" for _, _, fp in rows],
        "fp_score": [rng.random() for _ in rows],
        "edit_text": [rng.choice(texts) if direction == "i2t" else None for direction, _, _ in rows],
        # never opened: the pixels are noise
        "edit_image": [{"bytes": b"", "path": None} if direction == "t2i" else None for direction, _, _ in rows],
    }
    empty = {name: [None] * len(rows) for name in FEATURES if name not in columns}
    return Dataset.from_dict({name: (columns | empty)[name] for name in FEATURES}, features=FEATURES)


def _clock() -> Any:
    import torch
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        def __init__(self) -> None:
            self.begins: list[float] = []
            self.ends: list[float] = []

        def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            self.begins.append(time.perf_counter())

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            self.ends.append(time.perf_counter())

    return Clock()


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    main()

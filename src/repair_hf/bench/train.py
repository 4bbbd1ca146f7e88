"""The training step beside the plain one that `transformers` users know: what do grids cost, and what saves which part of it?

In:  an architecture (random weights), a batch size, a precision.
Out: for each way to make a step its time, its memory, and how many images and captions it encodes for each anchor.

Each row runs in a process of its own, so that its peak of memory is its own; the rows take turns. Pictures are noise and captions those
of the toy world, as long as COCO's. Each item has failures in both directions, among its 16 nearest on a ring, and each failure an edit:
every grid is full, the dearest case.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any

ROWS = {
    "run_clip": "the step of transformers' run_clip.py: pairs, captions padded to the model's longest",
    "vanilla": "pairs, captions padded to the longest of a group of like length",
    "every slot": "3x3 grids, each slot encoded by itself, captions padded to the longest of the batch",
    "grids": "3x3 grids, each distinct item encoded once, captions padded by groups",
    "neighbours": "the same, batches filled along the failures",
    "chunks": "the same as grids, by gradient caching; its batch and its chunks have a size of their own",
    "eager": "the same as grids, attention by plain products in place of torch's fused one",
    "compiled": "the same as grids, by torch.compile, which takes minutes before the first step",
}
REFERENCE = "run_clip"
SLOW = "compiled"  # measured where it is asked for by name
WARM_UP = 2  # steps that are not counted
RING = 8  # nearest items on either side
LEAST_CORPUS = 2 * (2 * RING + 1)


@dataclass(frozen=True)
class Load:
    """What is trained, and how.

    Args:
        batch: Anchors in a step.
        corpus: Images to draw them from; random batches of a small corpus share more.
        chunk_batch: Anchors in a step of the row `chunks`, which encodes `chunk_size` items at once.
    """

    architecture: str
    batch: int
    corpus: int
    steps: int
    precision: str
    chunk_size: int
    chunk_batch: int
    device: str


@dataclass(frozen=True)
class Found:
    """What one row took.

    Args:
        step: Median seconds of a step.
        batch: Anchors in it.
        waiting: Share of the time between two steps and in them that was spent waiting for data.
        memory: Peak bytes beyond model and data: of the process; on a GPU, of what torch allocates there.
        images: Encoded for each anchor.
        texts: Encoded for each anchor.
        tokens: Of a caption, padding included.
    """

    step: float
    batch: int
    waiting: float
    memory: int
    images: float
    texts: float
    tokens: float


def measure(load: Load, rows: list[str], rounds: int) -> Iterator[dict[str, Found]]:
    """Round by round, what each row took."""
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as processes:
        for _ in range(rounds):
            yield {row: processes.submit(_measure, row, load).result() for row in rows}


def _measure(row: str, load: Load) -> Found:
    from transformers.utils import logging

    logging.set_verbosity_error()
    load = replace(load, batch=load.chunk_batch) if row == "chunks" else load
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        trainer, batches = _plain(load, folder) if row == REFERENCE else _ours(row, load, folder)
        clock = _clock()
        trainer.add_callback(clock)
        before = _memory(load)
        trainer.train()
        peak = _memory(load) - before
    spans = [end - begin for begin, end in zip(clock.begins, clock.ends, strict=True)][WARM_UP:]
    whole = clock.ends[-1] - clock.ends[WARM_UP - 1]
    shapes = [[[len(texts), texts.shape[1]] for texts in batch] for _, batch in batches]
    return Found(
        step=median(spans),
        batch=load.batch,
        waiting=1 - sum(spans) / whole,
        memory=peak,
        images=mean(images / load.batch for images, _ in batches),
        texts=mean(sum(n for n, _ in batch) / load.batch for batch in shapes),
        tokens=mean(sum(n * length for n, length in batch) / sum(n for n, _ in batch) for batch in shapes),
    )


def _ours(row: str, load: Load, folder: str) -> tuple[Any, list]:
    from repair_hf.training.collation import GridCollator
    from repair_hf.training.config import RepairConfig
    from repair_hf.training.grids import Grids
    from repair_hf.training.trainer import RepairTrainer

    model, preprocessor, pairs, records = _setting(load)
    if row == "eager":
        model.set_attn_implementation("eager")
    grids = Grids(pairs, None if row == "vanilla" else records)
    args = RepairConfig(
        **_arguments(load, folder),
        batches="neighbours" if row == "neighbours" else "random",
        chunk_size=load.chunk_size if row == "chunks" else None,
        torch_compile=row == "compiled",
    )
    noise = [_noise(len(table), preprocessor) for table in (pairs.images, grids.edited_images) if table is not None]
    collator_of = _every_slot(GridCollator) if row == "every slot" else GridCollator
    collator = collator_of(preprocessor, noise, grids.captions, chunk_size=args.chunk_size)
    trainer = RepairTrainer(model, args, collator, grids, preprocessor)
    some = [batch for _, batch in zip(range(3), trainer.get_train_dataloader(), strict=False)]
    return trainer, [(len(batch["pixels"]), [texts["input_ids"] for texts in batch["texts"]]) for batch in some]


def _plain(load: Load, folder: str) -> tuple[Any, list]:
    """As in the example `run_clip.py` of transformers, but for the decoding of images, which none of the rows does."""
    import torch
    from transformers import Trainer, TrainingArguments

    model, preprocessor, pairs, _ = _setting(load)
    noise, captions = _noise(len(pairs.images), preprocessor), pairs.captions["caption"][:]
    tokens = preprocessor.processor.tokenizer(
        captions, padding="max_length", max_length=preprocessor.max_length, truncation=True, return_tensors="pt"
    )

    def collate(rows: list[int]) -> dict[str, Any]:
        ids = torch.tensor(rows)
        pixels = preprocessor.normalize(noise[pairs.caption_image[rows]])
        texts = {name: tokens[name][ids] for name in ("input_ids", "attention_mask")}
        return {"pixel_values": pixels, **texts, "return_loss": True}

    args = TrainingArguments(**_arguments(load, folder), remove_unused_columns=False, dataloader_drop_last=True)
    trainer = Trainer(model, args, collate, list(range(len(captions))))
    trainer.can_return_loss = True
    return trainer, [(load.batch, [tokens["input_ids"][: load.batch]])]


def _arguments(load: Load, folder: str) -> dict[str, Any]:
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


def _setting(load: Load) -> tuple[Any, Any, Any, Any]:
    """Model, preprocessor, pairs, and records of failures in both directions."""
    from repair_hf.architectures import random_weights
    from repair_hf.toyworld import captions, scenes

    rng = random.Random(0)
    texts = [captions.write(scenes.sample(rng), rng) for _ in range(5 * load.corpus)]
    model, preprocessor = random_weights(load.architecture, texts[:5000])
    return model, preprocessor, _pairs(load.corpus, texts), _records(load.corpus, texts, rng)


def _pairs(n_images: int, texts: list[str]) -> Any:
    from datasets import Dataset, Features, Image, Value

    from repair_hf.pairs.dataset import Pairs

    images = {"image_id": [f"{row}" for row in range(n_images)], "image": [None] * n_images}
    captions = {
        "caption_id": [f"{row}" for row in range(len(texts))],
        "caption": texts,
        "image_index": [row // 5 for row in range(len(texts))],
    }
    return Pairs(
        Dataset.from_dict(images, features=Features({"image_id": Value("string"), "image": Image()})),
        Dataset.from_dict(captions),
        (),
    )


def _records(n_images: int, texts: list[str], rng: random.Random) -> Any:
    """One failure of each caption, five of each image."""
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
        # never opened, for the pixels are noise
        "edit_image": [{"bytes": b"", "path": None} if direction == "t2i" else None for direction, _, _ in rows],
    }
    empty = {name: [None] * len(rows) for name in FEATURES if name not in columns}
    return Dataset.from_dict({name: (columns | empty)[name] for name in FEATURES}, features=FEATURES)


def _noise(n: int, preprocessor: Any) -> Any:
    """A table of pictures that repeats itself, so that it need not lie in memory n times."""
    import numpy as np
    import torch

    class Noise:
        pixels = torch.randint(256, (min(n, 256), *preprocessor.image_shape), dtype=torch.uint8)

        def __len__(self) -> int:
            return n

        def __getitem__(self, rows: np.ndarray) -> torch.Tensor:
            return self.pixels[torch.from_numpy(np.asarray(rows) % len(self.pixels))]

    return Noise()


def _every_slot(collator: type) -> type:
    """A collator that shares nothing between anchors, and pads all captions to the longest of the batch."""
    import numpy as np
    import torch

    class EverySlot(collator):
        def distinct(self, columns: dict[str, np.ndarray]) -> tuple[np.ndarray, dict[str, torch.Tensor]]:
            anchors, grids = columns  # the names: every grid is full, and its first slot is the anchor
            rows = columns[grids].ravel()
            order = rows.argsort(kind="stable")
            places = torch.from_numpy(order.argsort().reshape(columns[grids].shape))
            return rows[order], {anchors: places[:, 0], grids: places}

        def n_groups(self, n_images: int, n_texts: int) -> int:
            return 1

    return EverySlot


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


def _memory(load: Load) -> int:
    import torch

    if load.device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return torch.cuda.max_memory_allocated()

"""Measure what a training needs before its first step: seconds and memory, by the number of captions.

    python benchmarks/many_captions.py
    python benchmarks/many_captions.py --captions 10000

Each size runs in a process of its own, on data that another one has written. There are five captions for each image,
and one edit for each caption in both directions. Memory is anonymous: mapped files, which the system may drop, are not
counted.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from common import Noise, parser, print_table, random_weights
from train import failures_of, pairs_of

BATCH = 128


def main() -> None:
    """Print a row for each size."""
    options = parser("Measure the start of a training.")
    options.add_argument("--captions", type=int, nargs="+", default=[60_000, 600_000], help="sizes to measure")
    args = options.parse_args()
    context, rows = multiprocessing.get_context("spawn"), []
    for size in args.captions:
        with (
            tempfile.TemporaryDirectory() as folder,
            ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as processes,
        ):
            processes.submit(write, folder, size // 5).result()
            rows.append(processes.submit(measure, folder).result())
    heads = ("captions", "s to open", "s to open and take a step", "MB at the start", "peak MB", "growth")
    print_table(heads, [(f"{size:,}", *row) for size, row in zip(args.captions, rows, strict=True)])


def write(folder: str, n_images: int) -> None:
    """Write pairs and records."""
    from repair_hf.toyworld import captions, scenes

    rng = random.Random(0)
    texts = [captions.write(scenes.sample(rng), rng) for _ in range(5 * n_images)]
    pairs, records = pairs_of(n_images, texts), failures_of(n_images, texts, rng)
    for name, table in (("images", pairs.images), ("captions", pairs.captions), ("records", records)):
        table.to_parquet(f"{folder}/{name}.parquet")


def measure(folder: str) -> tuple[str, ...]:
    """Open a trainer and take a step."""
    from datasets import Dataset

    from repair_hf.pairs.dataset import Pairs
    from repair_hf.training.config import RepairConfig
    from repair_hf.training.trainer import RepairTrainer

    names = ("images", "captions", "records")
    images, captions, records = (Dataset.from_parquet(f"{folder}/{name}.parquet", cache_dir=folder) for name in names)
    model, preprocessor = random_weights("world", captions[:5000]["caption"])
    config = RepairConfig(f"{folder}/out", max_steps=1, per_device_train_batch_size=BATCH, use_cpu=True)
    config.cache_images, config.disable_tqdm = False, True
    before = anonymous()
    began = time.perf_counter()
    with peak_memory() as peak:
        trainer = RepairTrainer(model, config, Pairs(images, captions, ()), None, preprocessor, records=records)
        trainer.data_collator.images = [Noise(len(table), preprocessor) for table in (images, trainer.fill.images)]
        opened = time.perf_counter() - began
        trainer.train()
    seconds = time.perf_counter() - began
    return f"{opened:.1f}", f"{seconds:.1f}", *(f"{size / 1e6:,.0f}" for size in (before, peak[0], peak[0] - before))


@contextmanager
def peak_memory() -> Iterator[list[int]]:
    """Watch `anonymous`: the list holds the most bytes so far."""
    peak, is_done = [anonymous()], threading.Event()

    def watch() -> None:
        while not is_done.wait(0.02):
            peak[0] = max(peak[0], anonymous())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    yield peak
    is_done.set()
    watcher.join()


def anonymous() -> int:
    """Return the bytes of this process that no file backs."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    main()

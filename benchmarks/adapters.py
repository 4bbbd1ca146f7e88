"""Train the toy world's retriever whole, by LoRA adapters, and with one frozen tower: what does each cost and gain?

    python benchmarks/adapters.py
    python benchmarks/adapters.py --rows full lora --epochs 6

Each row runs in a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import sys
import tempfile
from argparse import Namespace
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from common import parser, print_notes, print_table

ROWS: dict[str, dict[str, Any]] = {
    "full": {"learning_rate": 3e-4},
    "lora": {"learning_rate": 2e-3, "lora_rank": 8},
    "lora, text": {"learning_rate": 2e-3, "lora_rank": 8, "lora_towers": "text"},
    "freeze image": {"learning_rate": 3e-4, "freeze": "image"},
}
NOTES = {
    "base": "the retriever before training",
    "full": "all weights",
    "lora": "adapters of rank 8 in both towers",
    "lora, text": "adapters of rank 8 in the text tower",
    "freeze image": "the text tower and the logit scale; the image tower is frozen",
}


def main() -> None:
    """Build a world, repair its failures once, and print a row for each way to train."""
    options = parser("Train a retriever whole and in part.", ROWS)
    options.set_defaults(repeat=1)
    options.add_argument("--train", type=int, default=300, help="training images of the world")
    options.add_argument("--test", type=int, default=200, help="test images of the world")
    options.add_argument("--queries", type=int, default=150, help="queries to mine in each direction")
    options.add_argument("--epochs", type=float, default=3.0)
    options.add_argument("--batch", type=int, default=32, help="anchors in a step")
    args = options.parse_args()
    rows = ["base", *args.rows * args.repeat]
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as processes,
    ):
        os.environ["HF_ASSETS_CACHE"] = folder  # of the processes that follow
        processes.submit(prepare, Path(folder), args).result()
        found = {row: processes.submit(measure, row, Path(folder), args).result() for row in rows}
    heads = ("", "trained", "share", "memory", "ms a step", "steps", "R@1 I2T", "R@1 T2I")
    print_table(heads, [(row, *cells) for row, cells in found.items()])
    print_notes(NOTES, found, "trained: parameters; memory: peak beyond model and data; R@1 on the test split, in %")


def prepare(folder: Path, args: Namespace) -> None:
    """Draw the world, mine the base's failures and repair them."""
    from repair_hf.cli.main import main as run

    shared = ["--pairs", str(folder / "world"), "--model", "world/base"]
    sizes = ["--train", str(args.train), "--validation", "20", "--test", str(args.test)]
    failures, models = str(folder / "failures"), ["--llm", "world/oracle", "--editor", "world"]
    with contextlib.redirect_stdout(sys.stderr):
        for words in (
            ["world", "build", *sizes, "--output", str(folder / "world")],
            ["mine", *shared, "--max-queries", str(args.queries), "--output", failures],
            ["synthesize", *shared, *models, "--failures", failures, "--output", str(folder / "records")],
        ):
            assert run(words) == 0, words


def measure(row: str, folder: Path, args: Namespace) -> tuple[str, ...]:
    """Train as one row does, and return its cells."""
    from repair_hf import DualEncoder, RepairConfig, evaluate_retrieval, load_pairs, load_records, train

    encoder = DualEncoder.from_pretrained("world/base", device="cpu")
    pairs, tested = (load_pairs(folder / "world", split=split) for split in ("train", "test"))
    cells: tuple[str, ...] = ("", "", "", "", "")
    if row != "base":
        plain = {"num_train_epochs": args.epochs, "per_device_train_batch_size": args.batch, "use_cpu": True}
        how = plain | {"disable_tqdm": True} | ROWS[row]
        config = RepairConfig(str(folder / row), **how)
        records = load_records(folder / "records")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with contextlib.redirect_stdout(sys.stderr):
            summary = train(encoder, pairs, records, config)
        memory = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
        trained, step = summary["parameters_trained"], summary["seconds_per_step"] * 1000
        share = trained / summary["parameters"]
        cells = f"{trained:,}", f"{share:.1%}", f"{memory:,.0f} MiB", f"{step:,.0f}", f"{summary['steps']:,}"
        encoder = DualEncoder.from_pretrained(folder / row, device="cpu")  # what was saved
    found = evaluate_retrieval(*encoder.embed_pairs(tested), tested.caption_image)
    return *cells, *(f"{100 * found[f'{side}_R@1']:.1f}" for side in ("i2t", "t2i"))


if __name__ == "__main__":
    main()

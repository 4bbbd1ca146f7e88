"""Measure how long a table of captions takes to load, and how much memory.

    python benchmarks/table.py
    python benchmarks/table.py --rows 300000 5000000

A row has an image and a caption of ten words; 2,000 images share the captions. Each size runs in a process of its own.
`read` is the table alone, `load` is `load_pairs`, which also checks the images. Memory is anonymous: mapped files,
which the system may drop, are not counted.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from common import parser, print_table
from many_captions import peak_memory

IMAGES = 2000
WORDS = "a the dog cat red blue in on street with man woman of two park".split()


def main() -> None:
    """Print a row for each size."""
    options = parser("Measure the loading of a table.")
    options.add_argument("--rows", type=int, nargs="+", default=[300_000, 5_000_000], help="sizes to measure")
    args = options.parse_args()
    context, lines = multiprocessing.get_context("spawn"), []
    with tempfile.TemporaryDirectory() as folder:
        for size in args.rows:
            with ProcessPoolExecutor(1, mp_context=context, max_tasks_per_child=1) as processes:
                megabytes = processes.submit(write, folder, size).result() / 1e6
                read, load = (processes.submit(measure, folder, name).result() for name in ("read", "load"))
            lines.append((f"{size:,}", f"{megabytes:,.0f}", *read, *load))
    print_table(("rows", "MB of the file", "s to read", "MB to read", "s to load", "MB to load"), lines)


def write(folder: str, size: int) -> int:
    """Write a table and its images; return the bytes of the table."""
    import numpy as np
    import PIL.Image

    rng, drawn = random.Random(0), np.random.default_rng(0)
    for number in range(IMAGES):
        PIL.Image.fromarray(drawn.integers(0, 256, (8, 8, 3), dtype=np.uint8)).save(f"{folder}/{number}.png")
    table = Path(folder, "rows.csv")
    with table.open("w", encoding="utf-8") as file:
        file.write("image,caption\n")
        for row in range(size):
            file.write(f'{row % IMAGES}.png,"{" ".join(rng.choices(WORDS, k=9))}, {row}"\n')
    return table.stat().st_size


def measure(folder: str, what: str) -> tuple[str, str]:
    """Return the seconds and the most megabytes of reading or of loading the table."""
    from repair_hf.pairs.dataset import load_pairs
    from repair_hf.pairs.problems import Problems
    from repair_hf.pairs.tables import load_table

    table = Path(folder, "rows.csv")
    began = time.perf_counter()
    with peak_memory() as peak:
        rows = load_table(table, Problems()) if what == "read" else load_pairs(table, split="all")
        assert len(rows)
    return f"{time.perf_counter() - began:.1f}", f"{peak[0] / 1e6:,.0f}"


if __name__ == "__main__":
    main()

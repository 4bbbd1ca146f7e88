"""Time a rerun whose answers are all in the ledger: how long until the candidates are there again?

    python benchmarks/replay.py
    python benchmarks/replay.py --images 1000 --pixels 1280 960

Images are JPEGs of smooth noise. A run that only counts fills the ledger first; then reruns are timed.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
from common import parser
from PIL import Image

from repair_hf.llm.asker import Asker
from repair_hf.llm.ledger import Ledger
from repair_hf.pairs.dataset import Pairs, load_pairs
from repair_hf.synthesis.estimate import NoImages, counting
from repair_hf.synthesis.loop import work_through
from repair_hf.synthesis.options import RepairOptions
from repair_hf.synthesis.record_builder import RecordBuilder, RepairTask
from repair_hf.synthesis.sources import SourceImages
from repair_hf.synthesis.steps import repair

MODEL = "openai/bench"


def main() -> None:
    """Print the seconds of each rerun, and their median."""
    options = parser("Time a rerun whose answers are all in the ledger.")
    options.add_argument("--images", type=int, default=200, help="number of images, with two failures each")
    options.add_argument("--pixels", type=int, nargs=2, default=(640, 480), help="width and height of an image")
    args = options.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pairs = photographs(folder / "pairs", args.images, tuple(args.pixels))
        count, _ = rerun(pairs, folder / "ledger.sqlite")
        seconds = []
        for number in range(args.repeat):
            replayed, taken = rerun(pairs, folder / "ledger.sqlite")
            assert replayed == count, "all answers are in the ledger"
            seconds.append(taken)
            print(f"rerun {number + 1}: {taken:.2f} s of processor time")
    print(f"median: {median(seconds):.2f} s for {count:,} answers, {1000 * median(seconds) / count:.2f} ms each")


def photographs(folder: Path, count: int, size: tuple[int, int]) -> Pairs:
    """Make pairs of so many images of a size, with a caption each."""
    (folder / "images").mkdir(parents=True)
    rng, lines = np.random.default_rng(0), []
    for number in range(count):
        noise = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
        noise.resize(size, Image.Resampling.BICUBIC).save(folder / "images" / f"{number}.jpg", quality=90)
        lines.append(f"images/{number}.jpg,photograph number {number}\n")
    (folder / "pairs.csv").write_text("image,caption\n" + "".join(lines))
    return load_pairs(folder / "pairs.csv", split="all")


def rerun(pairs: Pairs, path: Path) -> tuple[int, float]:
    """Ask about a caption and an image of each image; return the number of answers, and seconds of processor time."""
    builder, count = RecordBuilder(pairs, SourceImages(pairs.images)), len(pairs.images)
    queues = [
        [builder.task(q, {"direction": direction, "q": q, "fp": (q + 1) % count}) for q in range(count)]
        for direction in ("i2t", "t2i")
    ]
    with Ledger(path) as ledger:
        asker = Asker(MODEL, ledger, provider=counting(MODEL))

        async def work(task: RepairTask) -> None:
            await repair(task, asker, NoImages(), builder, RepairOptions())

        start = time.process_time()
        asyncio.run(work_through(asker, queues, work))
        return sum(use.calls + use.replayed for use in asker.usage.values()), time.process_time() - start


if __name__ == "__main__":
    main()

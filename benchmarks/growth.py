"""Print how each stage grows with the data: processor seconds and memory at 1/10 and at 1 of the paper's numbers.

    python benchmarks/growth.py                # 29,000 pictures, 145,000 captions, 107,000 records
    python benchmarks/growth.py --largest 0.1  # 1/100 and 1/10 of them

Pictures are small and the model has few weights: what is measured is what grows with the rows. Each stage is a command
in a process of its own. Its start, measured on 64 pictures, is subtracted. The exponent is the slope between the two
sizes: 1 is linear.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from common import PAPER, print_table

RECORDS = 107_000
START = 64  # pictures of the smallest size, which shows what a stage takes without data
STAGES = {
    "mine": "mine --pairs {data} --split all --model {data}/model --output {out}/mined",
    "dry run": "synthesize --pairs {data} --split all --model {data}/model --failures {out}/mined --llm world/oracle "
    "--editor world --output {out}/priced --dry-run",
    "write records": "",  # `write_records` below, with what the last part of `synthesize` calls
    "train, one step": "train --pairs {data} --split all --model {data}/model --records {out}/records --max-steps 1 "
    "--per-device-train-batch-size 64 --use-cpu --output {out}/trained",
    "evaluate": "evaluate --pairs {data} --split all --model {data}/model --output {out}/evaluated",
    "analyze": "analyze {out}/records --output {out}/report",
    "push": "push records {out}/records --repo me/growth",
}
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Cost:
    """What a stage took: processor seconds, seconds by the clock, and the peak of its memory in bytes."""

    busy: float
    clock: float
    memory: int


def main() -> None:
    """Print one table, a row for each stage."""
    options = argparse.ArgumentParser(description="Measure how stages grow with the data.")
    options.add_argument(
        "--largest", type=float, default=1.0, help="share of the paper's numbers; a tenth comes before"
    )
    options.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="stages to show; all run")
    args = options.parse_args()
    shares = [START / PAPER[0], args.largest / 10, args.largest]
    found = [measure(share) for share in shares]
    heads = (
        "",
        *(f"s at {share:g}" for share in shares[1:]),
        "exponent",
        *(f"MB at {share:g}" for share in shares[1:]),
    )
    print_table(
        (*heads, "exponent", "MB at the start", "clock"),
        [(row, *cells(*(each[row] for each in found))) for row in args.stages],
    )
    print(
        f"1: {PAPER[0]:,} pictures of 32 x 32, {PAPER[1]:,} captions, {RECORDS:,} records; seconds of the processor,"
    )
    print("without the start; memory: peak of the process beyond its start; clock: seconds of the largest size")


def cells(start: Cost, tenth: Cost, whole: Cost) -> tuple[str, ...]:
    """Return the cells of a stage's row."""
    shown: list[str] = []
    for name, unit in (("busy", 1.0), ("memory", 2**20)):
        low, high = (max(getattr(cost, name) - getattr(start, name), 0) / unit for cost in (tenth, whole))
        slope = f"{math.log10(high / low):.2f}" if low > 0 and high > 0 else "-"
        shown += [f"{low:,.1f}", f"{high:,.1f}", slope]
    return *shown, f"{start.memory / 2**20:,.0f}", f"{whole.clock:,.0f}"


def measure(share: float) -> dict[str, Cost]:
    """Make the data of a size, and run each stage on them."""
    processes = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder, "data"), Path(folder, "out")
        ready, own = processes.Pipe()
        for target, given in ((make, (data, round(PAPER[0] * share))), (serve, (own,))):
            process = processes.Process(target=target, args=given, daemon=True)
            process.start()
            if target is make:
                process.join()
        hub = ready.recv()
        costs = {}
        for stage, words in STAGES.items():
            command = [sys.executable, "-m", "repair_hf", *words.format(data=data, out=out).split()]
            if not words:
                code = "import growth, sys; growth.write_records(*sys.argv[1:])"
                command = [sys.executable, "-c", code, str(data), str(out / "records"), str(round(RECORDS * share))]
            costs[stage] = run(command, Path(folder, "home", stage), hub if stage == "push" else None)
        process.terminate()
    return costs


def run(command: list[str], home: Path, hub: str | None) -> Cost:
    """Run a stage; nothing that another one cached is there."""
    env = os.environ | {"HF_HOME": str(home), "HF_ASSETS_CACHE": str(home / "assets"), "PYTHONPATH": paths()}
    env["CUDA_VISIBLE_DEVICES"] = ""  # all stages run on the CPU
    if hub is None:
        env["HF_HUB_OFFLINE"] = "1"
    else:
        env |= {"HF_ENDPOINT": hub, "HF_TOKEN": "token", "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}
    with tempfile.TemporaryFile("w+") as shown:
        began = time.perf_counter()
        process = subprocess.Popen(command, env=env, stdout=shown, stderr=shown, cwd=HERE)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            shown.seek(0)
            sys.exit(f"{' '.join(command)}\n{shown.read()[-3000:]}")
        return Cost(used.ru_utime + used.ru_stime, time.perf_counter() - began, used.ru_maxrss * 1024)


def paths() -> str:
    """Return the import path of a stage."""
    return os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])


def make(data: Path, n_images: int) -> None:
    """Write pictures of noise with five captions each, and a model with few random weights."""
    import numpy as np
    from common import random_weights
    from PIL import Image

    rng, pixels = random.Random(0), np.random.default_rng(0)
    syllables = [first + vowel for first in "bdfgklmnprst" for vowel in "aeiou"]
    words = ["".join(rng.choices(syllables, k=2)) for _ in range(2000)]
    data.mkdir()
    lines, some = [], []
    for row in range(n_images):
        Image.fromarray(pixels.integers(0, 256, (32, 32, 3), np.uint8)).save(data / name_of(row), quality=60)
        captions = [" ".join(rng.choices(words, k=9)) for _ in range(5)]
        lines.append(json.dumps({"image": name_of(row), "captions": captions}))
        some += captions[:1]
    (data / "captions.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    model, preprocessor = random_weights("world", some[:2000])
    model.save_pretrained(data / "model")
    preprocessor.save_pretrained(data / "model")


def name_of(row: int) -> str:
    """Return the file of a picture, its id too."""
    return f"{row:06d}.jpg"


def write_records(data: str, folder: str, count: str) -> None:
    """Write records, half of them in each direction, as the end of `synthesize` does."""
    from datasets import Dataset

    from repair_hf.records.columns import DROPPED_FEATURES
    from repair_hf.records.dataset import build, save_records

    lines = [json.loads(line) for line in Path(data, "captions.jsonl").read_text(encoding="utf-8").splitlines()]
    place = Path(folder)
    place.mkdir(parents=True)
    records = build(rows_of(data, lines, int(count)), place.parent / "records.arrow")
    save_records(place, records, Dataset.from_dict({name: [] for name in DROPPED_FEATURES}, DROPPED_FEATURES))


def rows_of(data: str, lines: list[dict], count: int) -> Iterator[dict]:
    """Yield records whose failures are random; another picture or caption stands for the edit."""
    rng = random.Random(1)
    for number in range(count):
        query, wrong = rng.sample(range(len(lines)), 2)
        asked, told = number % 5, rng.randrange(5)
        q_text, fp_text = lines[query]["captions"][asked], lines[wrong]["captions"][told]
        images = [{"bytes": Path(data, name_of(row)).read_bytes(), "path": None} for row in (query, wrong)]
        row = {"record_id": f"{number:016x}", "round": 1, "fp_score": rng.random(), "error_types": []}
        row |= {"gt_rank": 2, "fp_rank": 1, "gt_reason": q_text, "fp_reason": fp_text, "edit_similarity": 0.9}
        caption, other = f"{name_of(query)}#{asked}", f"{name_of(wrong)}#{told}"
        if number % 2:
            row |= {"direction": "t2i", "q_id": caption, "gt_id": name_of(query), "fp_id": name_of(wrong)}
            yield row | {"q_text": q_text, "gt_image": images[0], "fp_image": images[1], "edit_image": images[1]}
        else:
            row |= {"direction": "i2t", "q_id": name_of(query), "gt_id": caption, "fp_id": other}
            yield row | {
                "q_image": images[0],
                "gt_text": q_text,
                "fp_text": fp_text,
                "edit_text": f"{fp_text} {number}",
            }


def serve(ready: Connection) -> None:
    """Serve a Hub on loopback, and send its address."""
    sys.path.append(str(HERE.parent / "tests" / "support"))
    from hub_server import Hub

    with Hub({"token": "me"}) as hub:
        ready.send(hub.url)
        time.sleep(86_400)


if __name__ == "__main__":
    main()

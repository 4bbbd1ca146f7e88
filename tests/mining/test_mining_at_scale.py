"""Mining by several launched processes, and mining of memory-mapped vectors."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from repair_hf.cli.main import main

CPU_2 = Path(__file__).parents[2] / "recipes" / "accelerate" / "cpu-2.yaml"
SHARED = """
import sys
from repair_hf.cli.main import main
from repair_hf.mining import ranking
from repair_hf.runtime.processes import processes

folder, *words = sys.argv[1:]
assert main(words) == 0
assert main([*words, "--search", "ivf"]) == 2
ranking.PANEL, screened, screen = (8, 8), [], ranking.screen  # three panels of 24 captions
ranking.screen = lambda matrix, panels, *data, **how: screened.extend(panels) or screen(matrix, panels, *data, **how)
assert main(["evaluate", *words[1:-1], f"{folder}/evaluated-two"]) == 0
print("panels", len(screened), flush=True)
print("processes", processes().count, flush=True)
"""
MAPPED = """
import sys, threading
import numpy as np
from repair_hf.mining.false_positives import mine_false_positives

def anonymous() -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("RssAnon")) * 1024

images, texts = (np.load(path, mmap_mode="r") for path in sys.argv[1:])
own = np.arange(len(texts)) % len(images)
mine_false_positives(images[:50], texts[:100], own[:100] % 50)
before = peak = anonymous()
is_done = threading.Event()

def watch() -> None:
    global peak
    while not is_done.wait(0.005):
        peak = max(peak, anonymous())

watcher = threading.Thread(target=watch)
watcher.start()
mine_false_positives(images, texts, own)
is_done.set()
watcher.join()
print(peak - before)
"""


@pytest.mark.slow
def test_two_processes_mine_and_evaluate_as_one(pairs_folder, clip_folder, tmp_path):
    command = f"mine --pairs {pairs_folder} --split all --model {clip_folder} --output"
    (tmp_path / "script.py").write_text(SHARED)
    launcher = [sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(CPU_2)]
    words = [str(tmp_path / "script.py"), str(tmp_path), *command.split(), str(tmp_path / "two")]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run([*launcher, *words], env=environment, capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-4000:]
    assert done.stdout.count("processes 2") == 2, done.stderr[-4000:]

    assert main([*command.split(), str(tmp_path / "one")]) == 0
    one, two = (pq.read_table(tmp_path / name / "failures.parquet") for name in ("one", "two"))
    assert two.equals(one)
    assert done.stdout.count("-> ") == 2, "each table is printed once"
    assert sorted(re.findall(r"panels (\d)", done.stdout)) == ["1", "2"]
    evaluation = ["evaluate", *command.split()[1:], str(tmp_path / "evaluated-one")]
    assert main(evaluation) == 0
    ranks = [pq.read_table(tmp_path / f"evaluated-{name}" / "ranks.parquet") for name in ("one", "two")]
    assert ranks[0].equals(ranks[1])
    assert "`search` ivf runs in one process, got 2" in done.stderr


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc to tell memory from mapped files")
def test_mapped_vectors_are_not_held_in_memory(tmp_path):
    rng = np.random.default_rng(0)
    for name, count in (("images", 100), ("texts", 100_000)):
        vectors = rng.standard_normal((count, 512), np.float32)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        np.save(tmp_path / f"{name}.npy", vectors)
    files = [str(tmp_path / f"{name}.npy") for name in ("images", "texts")]
    done = subprocess.run([sys.executable, "-c", MAPPED, *files], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < vectors.nbytes / 2, "mining took at least half as much memory as the captions"

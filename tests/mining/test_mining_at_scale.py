"""Mining of memory-mapped vectors; tests/encoder/test_distributed.py mines in two processes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

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

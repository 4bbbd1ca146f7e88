"""Run a script of `benchmarks/`."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRAIN = "--batch 8 --corpus 40 --steps 1 --repeat 1"


def run(script: str, words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / f"{script}.py"), *words.split()],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout

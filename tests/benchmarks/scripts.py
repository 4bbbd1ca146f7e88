"""Run a script of `benchmarks/` in this process: another would import torch and its libraries anew."""

import runpy
import shlex
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TRAIN = "--batch 8 --corpus 40 --steps 1 --repeat 1"


def run(script: str, words: str) -> str:
    """Return what the script printed."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as shown:
        patch.syspath_prepend(str(BENCHMARKS))
        patch.setattr(sys, "argv", [f"{script}.py", *shlex.split(words)])
        try:
            runpy.run_path(str(BENCHMARKS / f"{script}.py"), run_name="__main__")
        except SystemExit as ended:
            assert not ended.code
    return shown.getvalue()

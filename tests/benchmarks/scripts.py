"""Run a script of `benchmarks/` in this process: another would import torch and its libraries anew."""

import shlex
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
TRAIN = "--batch 8 --corpus 40 --steps 1 --repeat 1"


def run(script: str, words: str) -> str:
    """Return what the script printed."""
    path, main = BENCHMARKS / f"{script}.py", ModuleType("__main__")
    main.__file__ = str(path)
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as shown:
        patch.syspath_prepend(str(BENCHMARKS))
        patch.setattr(sys, "argv", [path.name, *shlex.split(words)])
        for name in ("__main__", "__mp_main__"):  # the second is what a spawned process calls its main module
            patch.setitem(sys.modules, name, main)
        try:
            exec(compile(path.read_text(), path, "exec"), vars(main))
        except SystemExit as ended:
            assert not ended.code
    return shown.getvalue()

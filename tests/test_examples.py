"""The examples run as they stand, in the toy world, and the notebook is that of its script."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_an_example_runs(script, tmp_path):
    env = os.environ | {"OMP_NUM_THREADS": "1", "HF_HOME": str(tmp_path / "home")}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert list((tmp_path / "runs" / "examples").iterdir())


def test_the_notebook_is_that_of_its_script():
    make = runpy.run_path(str(ROOT / "docs" / "notebook.py"))
    notebook = json.loads(make["NOTEBOOK"].read_text(encoding="utf-8"))
    found = [(cell["cell_type"], "".join(cell["source"])) for cell in notebook["cells"]]
    assert found == make["cells"](make["SCRIPT"].read_text(encoding="utf-8")), "Run `python docs/notebook.py`."
    code = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
    outputs = [output for cell in code for output in cell["outputs"]]
    assert len(outputs) >= 3 and not any(output["output_type"] == "error" for output in outputs)

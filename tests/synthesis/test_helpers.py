"""Another process makes images for a run: some of them, each once; what it leaves undone the run makes itself."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from repair_hf.synthesis.helpers import helpers_of
from tests.synthesis.painter import Painter, make

ROOT = Path(__file__).parents[2]
HELPER = """
import sys, time
from pathlib import Path
from repair_hf.synthesis.helpers import help_out
from tests.synthesis.painter import Painter

class Busy(Painter):
    def edit(self, sources, instructions, seeds):
        print("asked", flush=True)
        time.sleep(600 if sys.argv[2] == "hangs" else 0)
        return super().edit(sources, instructions, seeds)

helpers = Path(sys.argv[1])
help_out(helpers, Busy(batch_size=1), until=lambda: (helpers / "stop").exists())
"""


class Waiting(Painter):
    """Makes nothing before a helper was asked."""

    def __init__(self) -> None:
        super().__init__(batch_size=1)
        self.may_begin = threading.Event()

    def edit(self, sources, instructions, seeds):
        assert self.may_begin.wait(300)
        return super().edit(sources, instructions, seeds)


@pytest.fixture
def helper(tmp_path, request) -> Iterator[subprocess.Popen]:
    command = [sys.executable, "-c", HELPER, str(helpers_of(tmp_path / "run")), request.param]
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests")])
    env = os.environ | {"PYTHONPATH": paths}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as process:
        yield process
        process.kill()


@pytest.mark.parametrize("helper", ["works", "hangs"], indirect=True)
def test_a_helper_makes_some_and_the_run_what_it_leaves(helper, sources, tmp_path, request):
    """The one that works is there before the run begins; the one that is killed comes later."""
    is_killed = request.node.callspec.params["helper"] == "hangs"
    editor = Waiting()
    while not is_killed and not list(helpers_of(tmp_path / "run").glob("*/editor.txt")):
        assert helper.poll() is None
        time.sleep(0.05)

    def watch() -> None:
        assert helper.stdout.readline() == "asked\n"
        if is_killed:
            helper.kill()
        editor.may_begin.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    jobs = [(fp, colour) for fp in range(6) for colour in ("red", "blue", "nothing")]
    found, made, _ = make(editor, sources, tmp_path / "run" / "candidates", jobs, count=2)
    watcher.join()
    alone, *_ = make(Painter(), sources, tmp_path / "alone" / "run" / "candidates", jobs, count=2)
    assert made == 24 and [[path and path.read_bytes() for path in row] for row in found] == [
        [path and path.read_bytes() for path in row] for row in alone
    ]
    if is_killed:
        assert len(editor.calls) == len(jobs)
    else:
        (helpers_of(tmp_path / "run") / "stop").touch()
        helper.wait(300)
        by_helper = 1 + helper.stdout.read().count("asked")
        assert by_helper + len(editor.calls) == len(jobs) and editor.calls
    assert not [path for path in helpers_of(tmp_path / "run").iterdir() if path.is_dir()]

"""Two processes of a launcher against one: the same records, and nothing asked or drawn twice."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from children import launch
from ledgers import rows
from small_world import saved

from repair_hf.cli.main import main
from repair_hf.runtime.processes import Processes, processes

CEILING = 40  # calls, after which some runs stop
NOISY = "--llm world/oracle?keeps_bad=0.2&rejects_good=0.2&malformed_rate=0.1 --editor world --check-edits 6".split()


@pytest.fixture(scope="module")
def one(words, tmp_path_factory) -> Path:
    """What one process makes."""
    folder = tmp_path_factory.mktemp("one") / "run"
    assert main([*words, *NOISY, "--output", str(folder)]) == 0
    return folder


def keys(folder: Path) -> list[str]:
    return sorted(row["key"] for row in rows(folder))


def candidates(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "candidates").rglob("*") if path.is_file()}


def assert_same(folder: Path, one: Path) -> None:
    """The same records as those of one process, and nothing asked or drawn twice."""
    assert saved(folder) == saved(one) and min(map(len, saved(one))) > 5
    assert keys(folder) == keys(one)
    assert candidates(folder) == candidates(one) != {}


@pytest.mark.slow
def test_two_processes_end_what_one_began(words, one, tmp_path):
    grown = tmp_path / "grown"
    assert main([*words, *NOISY, "--output", str(grown), "--max-calls", str(CEILING)]) == 1
    launch(main, [*words, *NOISY, "--output", str(grown)])
    assert_same(grown, one)
    whole, later = (json.loads((run / "summary.json").read_text()) for run in (one, grown))
    assert whole["directions"] == later["directions"] and whole["paid"] == later["paid"]
    assert sum(whole["images"].values()) == sum(later["images"].values()) > 0
    calls = [sum(use["calls"] for use in summary["llm"]) for summary in (whole, later)]
    assert calls[1] == calls[0] - CEILING


COUNTING = """
import sys
from repair_hf.cli.main import main
from repair_hf.synthesis.images import DiffusersEditor

calls, edit = [], DiffusersEditor.edit
DiffusersEditor.edit = lambda self, *given: calls.append(given) or edit(self, *given)
code = main(sys.argv[1:])
print("edited", len(calls), file=sys.stderr)
sys.exit(code)
"""


@pytest.mark.slow  # loads torch and diffusers in three processes
def test_each_process_edits_its_share_with_a_local_pipeline(words, flux_folder, tmp_path):
    """By accelerate's launcher itself."""
    editor = f"--llm world/oracle --editor {flux_folder} --editor-steps 1 --editor-size 64 --candidates 2".split()
    alone, both, program = tmp_path / "alone", tmp_path / "both", tmp_path / "counting.py"
    program.write_text(COUNTING)
    assert main([*words, *editor, "--output", str(alone)]) == 0
    launcher = "-m accelerate.commands.launch --multi_gpu --num_processes 2 --num_machines 1 --mixed_precision no"
    launcher += f" --dynamo_backend no --main_process_port 0 {program}"
    done = subprocess.run(
        [sys.executable, *launcher.split(), *words, *editor, "--output", str(both)],
        env=os.environ | {"ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    shares = [int(count) for count in re.findall(r"edited (\d+)", done.stderr)]
    assert len(shares) == 2 and min(shares) > 0, done.stderr
    made = candidates(both)
    assert set(made) == set(candidates(alone)) and len(made) == 2 * sum(shares)
    assert {row["record_id"] for row in saved(both)[0]} == {row["record_id"] for row in saved(alone)[0]}


@pytest.mark.slow
@pytest.mark.parametrize("checks_left", [None, 2])
def test_one_process_ends_what_two_began_under_a_ceiling_for_both(words, one, tmp_path, checks_left):
    """The ceiling is reached while failures are repaired, or while the main process checks the edits."""
    folder, most = tmp_path / "shrunk", CEILING if checks_left is None else len(keys(one)) - checks_left
    said = launch(main, [*words, *NOISY, "--output", str(folder), "--max-calls", str(most)], exit_code=1)
    assert said.count("processes stopped" if checks_left is None else f"--max-calls {most}") == 2
    assert json.loads((folder / "summary.json").read_text())["open"] > 0
    assert len(keys(folder)) == most
    assert main([*words, *NOISY, "--output", str(folder)]) == 0
    assert_same(folder, one)


def test_every_name_belongs_to_one_process():
    shares = []
    for index in range(3):
        share = Processes()
        share.count, share.index = 3, index
        shares.append({name for name in map(str, range(300)) if share.owns(name)})
    assert sorted(name for share in shares for name in share) == sorted(map(str, range(300)))
    assert min(map(len, shares)) > 60


def test_without_a_launcher_there_is_one():
    assert processes() is processes() and processes().is_main and processes().gather("word") == ["word"]

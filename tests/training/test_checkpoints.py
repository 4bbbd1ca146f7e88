"""A checkpoint that a killed run left half-written is never gone on from."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from repair_hf.training.checkpoints import RUN, newest_checkpoint


@pytest.fixture
def folder(tmp_path) -> Path:
    """With whole checkpoints of 2, 9 and 10 steps, and what is none."""
    for steps in ("2", "9", "10", "twelve"):
        path = tmp_path / f"checkpoint-{steps}"
        path.mkdir()
        torch.save({"cpu": torch.get_rng_state()}, path / "rng_state.pth")
        (path / "trainer_state.json").write_text('{"global_step": 2}')
    return tmp_path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_the_newest_is_that_of_the_most_steps(folder):
    assert newest_checkpoint(folder) == folder / "checkpoint-10"


@pytest.mark.parametrize("name", ["trainer_state.json", "rng_state.pth"])
@pytest.mark.parametrize("spoil", [cut, Path.unlink])
def test_a_half_written_one_is_passed_over(folder, name, spoil):
    spoil(folder / "checkpoint-10" / name)
    assert newest_checkpoint(folder) == folder / "checkpoint-9"


@pytest.fixture
def folder_of_two(folder) -> Path:
    """The same of two processes."""
    for path in folder.glob("checkpoint-*"):
        (path / "rng_state.pth").rename(path / "rng_state_0.pth")
        torch.save({"cpu": torch.get_rng_state()}, path / "rng_state_1.pth")
    return folder


@pytest.mark.parametrize("spoil", [cut, Path.unlink])
def test_random_numbers_of_another_process_must_be_there_too(folder_of_two, spoil):
    assert newest_checkpoint(folder_of_two, 2) == folder_of_two / "checkpoint-10"
    spoil(folder_of_two / "checkpoint-10" / "rng_state_1.pth")
    assert newest_checkpoint(folder_of_two, 2) == folder_of_two / "checkpoint-9"


def test_a_checkpoint_that_tells_of_how_many_processes_it_is_is_believed(folder_of_two):
    """So a run of one is told that it is of another run, and does not quietly start anew."""
    assert newest_checkpoint(folder_of_two, 1) is None
    (folder_of_two / "checkpoint-9" / RUN).write_text(json.dumps({"processes": 2}))
    assert newest_checkpoint(folder_of_two, 1) == folder_of_two / "checkpoint-9"


def test_there_may_be_none(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "nowhere") is None

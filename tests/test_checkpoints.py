"""A checkpoint that a killed run left half-written is never gone on from."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from repair_hf.checkpoints import newest_checkpoint


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


def test_half_written_random_numbers_of_another_process_are_seen(folder):
    torch.save({"cpu": torch.get_rng_state()}, folder / "checkpoint-10" / "rng_state_1.pth")
    assert newest_checkpoint(folder) == folder / "checkpoint-10"
    cut(folder / "checkpoint-10" / "rng_state_1.pth")
    assert newest_checkpoint(folder) == folder / "checkpoint-9"


def test_there_may_be_none(tmp_path):
    assert newest_checkpoint(tmp_path) is None
    assert newest_checkpoint(tmp_path / "nowhere") is None

"""What a full disk raises, whoever writes, becomes one line with the folder and the space needed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from repair_hf.runtime.disk import DiskFull, check_room, naming_full_disk

FULL = Path("/dev/full")  # every write fails, as on a full disk
WRITERS = [lambda: torch.save({"a": torch.zeros(100_000)}, FULL), lambda: FULL.write_bytes(b"data")]


@pytest.mark.skipif(not FULL.exists(), reason="needs a device that is always full")
@pytest.mark.parametrize("write", WRITERS, ids=["torch", "python"])
def test_every_writer_is_understood(write, tmp_path):
    with (
        pytest.raises(DiskFull, match=rf"{tmp_path}: its disk is full. At least 8.0 MB are needed, and .* are free"),
        naming_full_disk(tmp_path, lambda: 8_000_000),
    ):
        write()


def test_other_errors_pass_and_too_little_room_is_said_before(tmp_path):
    with pytest.raises(RuntimeError, match="^boom$"), naming_full_disk(tmp_path, lambda: 1):
        raise RuntimeError("boom")
    words = "Error while serializing: I/O error: No space left on device (os error 28)"  # of safetensors
    with pytest.raises(DiskFull), naming_full_disk(tmp_path, lambda: 1):
        raise RuntimeError(words)
    with pytest.raises(DiskFull, match=r"new/deep: its disk is full. At least 1,000,000,000.0 GB"):
        check_room(tmp_path / "new" / "deep", 10**18)
    check_room(tmp_path / "new", 1)

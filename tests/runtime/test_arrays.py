"""Arrays on disk: whole or not there, no larger than the disk, read without being loaded; draws by seed and item."""

import os
import signal
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from children import Child

from repair_hf.runtime.arrays import in_memory, on_disk
from repair_hf.runtime.draws import uniforms
from repair_hf.runtime.options import UserError
from repair_hf.runtime.processes import processes


def parts():
    yield slice(2, 4), np.array([[4], [9]])
    yield np.array([1, 0]), np.array([[1], [0]])


def test_rows_come_in_any_order_and_stay():
    assert in_memory((4, 1), np.float32, parts()).tolist() == [[0], [1], [4], [9]]


def test_a_file_is_made_once_and_mapped(tmp_path):
    path, calls = tmp_path / "new" / "squares.npy", []

    def counted():
        calls.append(1)
        return parts()

    for _ in range(2):
        found = on_disk(path, (4, 1), np.float32, counted)
        assert isinstance(found, np.memmap) and not found.flags.writeable
        assert found.tolist() == [[0], [1], [4], [9]]
    assert len(calls) == 1
    assert [file.name for file in path.parent.iterdir()] == ["squares.npy"]


def test_what_fails_or_has_too_little_room_leaves_nothing(tmp_path):
    def broken():
        yield slice(0, 1), np.zeros((1, 1))
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        on_disk(tmp_path / "squares.npy", (4, 1), np.float32, broken)
    with pytest.raises(UserError, match=r"squares.npy needs 4,000,000,000\.0 GB, and .* GB free\. Free some space"):
        on_disk(tmp_path / "squares.npy", (10**18, 1), np.float32, parts)
    assert not list(tmp_path.iterdir())


def write_and_die(path: Path) -> None:
    def one_part():
        yield slice(0, 3), np.full((3, 1), 7)
        os.kill(os.getpid(), signal.SIGKILL)

    on_disk(path, (4, 1), np.float32, one_part)


@pytest.mark.slow  # loads torch in a process of its own
def test_a_killed_writer_leaves_a_draft_that_nobody_takes(tmp_path):
    path = tmp_path / "squares.npy"
    assert Child(write_and_die, path).wait() == -signal.SIGKILL
    assert [file.suffix for file in tmp_path.iterdir()] == [".tmp"]
    assert on_disk(path, (4, 1), np.float32, parts).tolist() == [[0], [1], [4], [9]]


def resident() -> int:
    """KiB that this process holds, mapped files left out."""
    status = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("RssAnon"))


@pytest.mark.skipif(not Path("/proc/self/status").is_file(), reason="needs /proc, to see what a process holds")
def test_what_is_mapped_is_not_resident(tmp_path):
    processes()
    ones, before = np.ones((1000, 512), np.float32), resident()
    found = on_disk(
        tmp_path / "x.npy",
        (100_000, 512),
        np.float32,
        lambda: ((slice(k, k + 1000), ones) for k in range(0, 100_000, 1000)),
    )
    assert found[::1000].sum() == 100 * 512
    assert resident() - before < 20_000  # of 200,000


def test_uniforms_are_uniform_and_independent_of_company():
    items = np.arange(20_000)
    draws = uniforms(7, np.full_like(items, 3), items, 0)
    assert ((draws >= 0) & (draws < 1)).all()
    counts = np.histogram(draws, bins=20, range=(0, 1))[0]
    assert ((counts - 1000) ** 2 / 1000).sum() < 44  # chi-squared, 19 degrees of freedom, p = 0.001
    assert abs(np.corrcoef(draws[:-1], draws[1:])[0, 1]) < 0.03
    some = np.array([17, 3, 19_999])
    assert (uniforms(7, np.full_like(some, 3), some, 0) == draws[some]).all()


def test_no_seed_epoch_or_stream_repeats_the_draws_of_another():
    items = np.arange(1000)
    draws = {
        (seed, epoch, stream): uniforms(seed, np.full_like(items, epoch), items, stream)
        for seed, epoch, stream in product(range(4), range(8), range(4))
    }
    assert len({values.tobytes() for values in draws.values()}) == len(draws)
    links = np.corrcoef(np.stack(list(draws.values()))) - np.eye(len(draws))  # of 8,128 pairs
    assert np.abs(links).max() < 0.17  # 5 standard deviations

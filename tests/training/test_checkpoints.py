"""A half-written checkpoint is never resumed; the time between steps is measured by the clock that computes them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

from repair_hf.runtime.options import UserError
from repair_hf.training import checkpoints
from repair_hf.training.checkpoint_files import DIGESTS, RUN, seal
from repair_hf.training.checkpoints import LoopCallback, find_checkpoint, newest_checkpoint

STATES = ("rng_state.pth", "optimizer.pt", "scheduler.pt")
FILES = (*STATES, "trainer_state.json", "model.safetensors")
GONE = (DIGESTS, Path.unlink)  # then the rest is checked as in an older version


@pytest.fixture
def folder(tmp_path) -> Path:
    """With whole checkpoints of 2, 9 and 10 steps, and what is none."""
    for steps in ("2", "9", "10", "twelve"):
        path = tmp_path / f"checkpoint-{steps}"
        path.mkdir()
        for name in STATES:
            torch.save({"cpu": torch.get_rng_state()}, path / name)
        save_file({"weights": torch.zeros(64)}, path / "model.safetensors")
        (path / "trainer_state.json").write_text('{"global_step": 2}')
    return tmp_path


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path) -> None:
    """Change one bit, and keep size and time of the file's last change."""
    before, content = path.stat(), bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    ("is_sealed", "name", "spoil"),
    [(True, name, spoil) for name in (*FILES, DIGESTS) for spoil in (cut, flip, Path.unlink)]
    + [(False, name, spoil) for name in FILES for spoil in (cut, Path.unlink)],
)
def test_a_damaged_checkpoint_is_left_aside(folder, name, spoil, is_sealed):
    """One without digests, of an older version, is whole if nothing is missing or truncated."""
    newest = folder / "checkpoint-10"
    if is_sealed:
        seal(newest)
    spoil(newest / name)
    assert newest_checkpoint(folder)[0] == folder / ("checkpoint-10" if (name, spoil) == GONE else "checkpoint-9")


def test_a_resume_names_what_it_leaves_aside(folder, config, caplog):
    settings = config(folder=".")
    (folder / "checkpoint-10" / "optimizer.pt").unlink()
    cut(folder / "checkpoint-9" / "model.safetensors")
    found = find_checkpoint("last", settings)
    assert found == str(folder / "checkpoint-2")
    (line,) = caplog.messages
    assert "checkpoint-10 (optimizer.pt is missing), " in line and "model.safetensors is truncated" in line
    assert line.endswith("training resumes from checkpoint-2.")
    with pytest.raises(UserError, match="not a whole checkpoint: optimizer.pt is missing"):
        find_checkpoint(str(folder / "checkpoint-10"), settings)
    for path in folder.glob("checkpoint-*"):
        (path / "scheduler.pt").unlink()
    assert find_checkpoint("last", settings) is None
    assert caplog.messages[-1].endswith("training starts anew.")
    assert find_checkpoint(found, settings) is found  # which was read before it was damaged


@pytest.fixture
def folder_of_two(folder) -> Path:
    """The same of two processes."""
    for path in folder.glob("checkpoint-*"):
        (path / "rng_state.pth").rename(path / "rng_state_0.pth")
        torch.save({"cpu": torch.get_rng_state()}, path / "rng_state_1.pth")
    return folder


@pytest.mark.parametrize("spoil", [cut, Path.unlink])
def test_random_numbers_of_another_process_must_be_there_too(folder_of_two, spoil):
    assert newest_checkpoint(folder_of_two, 2) == (folder_of_two / "checkpoint-10", {})
    spoil(folder_of_two / "checkpoint-10" / "rng_state_1.pth")
    assert newest_checkpoint(folder_of_two, 2)[0] == folder_of_two / "checkpoint-9"


def test_a_checkpoint_that_tells_of_how_many_processes_it_is_is_believed(folder_of_two):
    """So a run of one is told that it is of another run, and does not quietly start anew."""
    assert newest_checkpoint(folder_of_two, 1)[0] is newest_checkpoint(folder_of_two / "nowhere")[0] is None
    (folder_of_two / "checkpoint-9" / RUN).write_text(json.dumps({"processes": 2}))
    assert newest_checkpoint(folder_of_two, 1)[0] == folder_of_two / "checkpoint-9"


class World:
    """A process, whose clock is `host`, and a GPU that is busy until `gpu`."""

    def __init__(self) -> None:
        self.host = self.gpu = 0.0
        self.waited_for: list[float] = []  # when the process had to wait

    def works(self, *, launches: float = 0.0) -> None:
        """A second of this process, in which it gives the GPU so many seconds of work at once."""
        self.gpu = max(self.gpu, self.host) + launches if launches else self.gpu
        self.host += 1

    def Event(self, enable_timing: bool) -> Event:
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, world: World) -> None:
        self.world = world

    def record(self) -> None:
        self.at = max(self.world.gpu, self.world.host)

    def synchronize(self) -> None:
        if self.at > self.world.host:
            self.world.waited_for.append(self.at)
            self.world.host = self.at

    def elapsed_time(self, other: Event) -> float:
        return 1000 * (other.at - self.at)


@pytest.fixture
def world(monkeypatch) -> World:
    world = World()
    monkeypatch.setattr(checkpoints.time, "perf_counter", lambda: world.host)
    monkeypatch.setattr(torch.cuda, "Event", world.Event)
    return world


def train(world: World, device: str, launches: float) -> LoopCallback:
    """Three steps of a second, each followed by a second for the next batch; a log after the second takes one too."""
    callback, state = LoopCallback(SimpleNamespace()), SimpleNamespace(global_step=0)
    control = SimpleNamespace(should_log=False, should_save=False)
    told = SimpleNamespace(device=torch.device(device), save_strategy="no"), state, control
    callback.on_train_begin(*told)
    for step in range(3):
        callback.on_step_begin(*told)
        world.works(launches=launches)
        callback.on_step_end(*told)
        if step == 1:
            world.works()
            callback.on_log(*told)
        world.works()  # the next batch
    return callback


def test_on_the_processor_all_time_between_steps_but_that_of_a_log_is_waiting(world):
    spent = train(world, "cpu", 0.0).spent(0, 0)
    assert (spent.seconds, spent.waited) == (7.0, 2.0)


def test_a_gpu_waits_from_when_it_is_through_with_a_step(world):
    """Half a second later than this process, and after the log together with it."""
    assert train(world, "cuda", 1.5).spent(0, 0).waited == 0.5 + 1
    assert not world.waited_for


def test_a_gpu_that_is_busy_does_not_wait_and_is_not_waited_for(world):
    callback = train(world, "cuda", 10.0)
    assert callback.spent(0, 0).waited == 0
    assert len(world.waited_for) <= 2  # at the line of the loss curve, and in the end


@pytest.mark.parametrize(
    ("strategy", "saves", "evaluates", "logs"),
    [
        ("steps", True, False, True),
        ("steps", False, True, False),
        ("best", False, True, True),
        ("best", False, False, False),
    ],
)
def test_a_line_of_the_curve_ends_where_a_checkpoint_may_be_written(strategy, saves, evaluates, logs):
    control = SimpleNamespace(should_log=False, should_save=saves, should_evaluate=evaluates)
    LoopCallback(SimpleNamespace()).on_epoch_end(SimpleNamespace(save_strategy=strategy), None, control)
    assert control.should_log is logs

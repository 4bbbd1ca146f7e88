"""The time between steps: by this process's clock, or by the GPU's without waiting for it at each step."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from repair_hf.training import checkpoints
from repair_hf.training.checkpoints import LoopCallback

STATE, CONTROL = SimpleNamespace(global_step=0), SimpleNamespace(should_log=False, should_save=False)


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


def tell(callback: LoopCallback, device: str, *names: str) -> None:
    for name in names:
        getattr(callback, f"on_{name}")(
            SimpleNamespace(device=torch.device(device), save_strategy="no"), STATE, CONTROL
        )


def train(world: World, device: str, launches: float) -> LoopCallback:
    """Three steps of a second, and a second for the next batch after each; the second ends with a line of the loss curve, which takes one too."""
    callback = LoopCallback(SimpleNamespace())
    tell(callback, device, "train_begin")
    for step in range(3):
        tell(callback, device, "step_begin")
        world.works(launches=launches)
        tell(callback, device, "step_end")
        if step == 1:
            world.works()
            tell(callback, device, "log")
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
    LoopCallback(SimpleNamespace()).on_epoch_end(SimpleNamespace(save_strategy=strategy), STATE, control)
    assert control.should_log is logs

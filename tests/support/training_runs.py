"""What the tests of training read from a model and from a run's folder."""

import json
from pathlib import Path

import torch


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def history(folder: Path) -> list[dict]:
    return json.loads((folder / "trainer_state.json").read_text())["log_history"]


def curve(folder: Path) -> list[dict]:
    return [line for line in history(folder) if "loss" in line]


def losses(folder: Path) -> list[dict]:
    """The curve without the clock."""
    return [{name: value for name, value in line.items() if name != "seconds"} for line in curve(folder)]


def assert_same(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor], rtol: float = 0, atol: float = 0) -> None:
    for name, value in one.items():
        torch.testing.assert_close(
            two[name], value, msg=lambda text, name=name: f"{name}: {text}", rtol=rtol, atol=atol
        )

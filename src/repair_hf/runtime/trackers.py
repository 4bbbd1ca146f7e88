"""The trackers that `report_to` names: transformers sends them the loss curve, and `synthesize` its progress."""

from __future__ import annotations

import importlib
import importlib.util
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from repair_hf.runtime.options import UserError

# The package to install and the modules of which one must be there, where they are not called as the tracker.
_PACKAGES = {"azure_ml": "azureml-sdk", "comet_ml": "comet-ml", "flyte": "flytekit"}
_MODULES = {
    "azure_ml": ("azureml",),
    "flyte": ("flytekit",),
    "kubeflow": ("transformers",),  # a cluster, which needs no package
    "tensorboard": ("tensorboard", "tensorboardX"),
}


PROJECT = "huggingface"  # transformers' default, so that all stages of a run stand in one project

Log = Callable[[Mapping[str, float], int], None]  # values by name, and the step that they belong to


@contextmanager
def tracking(tracker: str, folder: str | Path) -> Iterator[Log]:
    """Open a run of `trackio`, `wandb`, `tensorboard` or `none` with the folder's name, and yield its log."""
    if tracker == "none":
        yield lambda values, step: None
    elif tracker == "tensorboard":
        from torch.utils.tensorboard import SummaryWriter

        with SummaryWriter(str(Path(folder) / "runs")) as writer:

            def log(values: Mapping[str, float], step: int) -> None:
                for name, value in values.items():
                    writer.add_scalar(name, value, step)

            yield log
    else:
        project = os.environ.get(f"{tracker.upper()}_PROJECT", PROJECT)
        run = importlib.import_module(tracker).init(project=project, name=str(folder))
        try:
            yield lambda values, step: run.log(dict(values), step=step)
        finally:
            run.finish()


def check_trackers(names: Sequence[str]) -> None:
    """Raise a `UserError` for a tracker that transformers does not know, or whose package is not installed."""
    from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

    for name in names:
        if name not in INTEGRATION_TO_CALLBACK:
            raise UserError(f"`report_to` {name} is no tracker; known: {', '.join(INTEGRATION_TO_CALLBACK)}, none.")
        if not any(importlib.util.find_spec(module) for module in _MODULES.get(name, (name,))):
            package = _PACKAGES.get(name, name)
            raise UserError(
                f"`report_to` {name} needs the package {package}, which is not installed: `pip install {package}`, "
                "or leave the option out."
            )

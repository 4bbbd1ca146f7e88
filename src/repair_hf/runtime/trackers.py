"""The trackers that `report_to` names: transformers sends them the loss curve, and `synthesize` its progress."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from repair_hf.runtime.options import UserError

PROJECT = "huggingface"  # transformers' default, so that all stages of a run stand in one project

Log = Callable[[Mapping[str, float], int], None]  # values by name, and the step that they belong to


@contextmanager
def tracking(tracker: str, folder: str | Path) -> Iterator[Log]:
    """Open a run of `trackio`, `wandb`, `tensorboard` or `none` with the folder's name, and yield its log."""
    if tracker == "none":
        yield lambda values, step: None
    elif tracker == "tensorboard":
        with _summary_writer()(str(Path(folder) / "runs")) as writer:

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


def _summary_writer() -> Callable:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:  # transformers takes tensorboardX too
        from tensorboardX import SummaryWriter  # type: ignore[no-redef]
    return SummaryWriter


def check_trackers(names: Sequence[str]) -> None:
    """Raise a `UserError` for a tracker that transformers does not know, or whose package is not installed."""
    from transformers.integrations import get_reporting_integration_callbacks

    for name in names:
        try:
            for callback in get_reporting_integration_callbacks([name]):
                callback()
        except (ValueError, RuntimeError, ImportError) as error:
            raise UserError(f"`report_to` {name}: {str(error).rstrip('.')}, or leave the option out.") from error

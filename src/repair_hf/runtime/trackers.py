"""The trackers that `report_to` names: transformers sends them the loss curve, and `synthesize` its progress."""

from __future__ import annotations

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
        return
    from accelerate.tracking import LOGGER_TYPE_TO_CLASS

    kind = LOGGER_TYPE_TO_CLASS[tracker]
    project = os.environ.get(f"{tracker.upper()}_PROJECT", PROJECT)
    run = kind("runs", folder) if kind.requires_logging_directory else kind(project, name=str(folder))
    run.start()
    try:
        yield lambda values, step: run.log(dict(values), step=step)
    finally:
        run.finish()


def check_trackers(names: Sequence[str]) -> None:
    """Raise a `UserError` for a tracker that transformers does not know, or whose package is not installed."""
    from transformers.integrations import get_reporting_integration_callbacks

    for name in names:
        try:
            for callback in get_reporting_integration_callbacks([name]):
                callback()
        except (ValueError, RuntimeError, ImportError) as error:
            raise UserError(f"`report_to` {name}: {str(error).rstrip('.')}, or leave the option out.") from error

"""The checkpoints of a training.

A checkpoint is whole if it has `trainer_state.json`, which the Trainer writes last. There it also holds what decides
its run. A checkpoint without it, whose run was killed while it was written, is left aside.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState  # seen with transformers 5.23

from repair_hf.runtime.files import read_json
from repair_hf.runtime.options import UserError
from repair_hf.runtime.stage import differences

logger = logging.getLogger(__name__)

STATE = "trainer_state.json"  # of transformers


class RunOptions(TrainerCallback, ExportableState):
    """Keep what decides a run in the `trainer_state.json` of its checkpoints."""

    def __init__(self, options: Mapping[str, Any] | None = None) -> None:
        self.options = dict(options or {})

    def state(self) -> dict[str, Any]:
        return {"args": {"options": self.options}, "attributes": {}}


def options_of(checkpoint: Path) -> dict[str, Any] | None:
    """Return what decides the run of a checkpoint; None if it is not whole."""
    try:
        state = read_json(checkpoint / STATE, needs=["stateful_callbacks"])
        return dict(state["stateful_callbacks"][RunOptions.__name__]["args"]["options"])
    except (FileNotFoundError, UserError, KeyError, TypeError, ValueError):
        return None


def find_checkpoint(wanted: str | None, output: str, options: Mapping[str, Any], *, logs: bool = True) -> Path | None:
    """Resolve `resume_from_checkpoint` (a folder, `last` of those in `output`, or None) to a folder; None starts anew.

    Raises:
        UserError: If a named folder is not a whole checkpoint, or the last checkpoint is of other options.
    """
    if wanted is None:
        return None
    if wanted != "last":
        if options_of(Path(wanted)) is None:
            raise UserError(
                f"`resume_from_checkpoint` names {wanted}, which is not a whole checkpoint. Give a `checkpoint-...` "
                "folder, or `last`."
            )
        return Path(wanted)
    paths = [path for path in Path(output).glob("checkpoint-*") if _steps(path).isdigit()]
    paths.sort(key=lambda path: int(_steps(path)), reverse=True)
    newest = next((path for path in paths if options_of(path) is not None), None)
    aside = paths if newest is None else paths[: paths.index(newest)]
    if aside and logs:
        instead = "training starts anew" if newest is None else f"training resumes from {newest.name}"
        logger.warning("Left aside, as incomplete: %s; %s.", ", ".join(map(str, aside)), instead)
    if newest and (changes := differences(options_of(newest) or {}, options)):
        raise UserError(
            f"{newest} is of another run: {changes}. Give another output folder, delete its checkpoints to start "
            "anew, or set `resume_from_checkpoint` to this one to resume from it anyway."
        )
    return newest


def _steps(checkpoint: Path) -> str:
    return checkpoint.name.rpartition("-")[2]

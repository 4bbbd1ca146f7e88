"""Which checkpoint a training goes on from.

In:  a run's folder, perhaps of a run that was killed while it wrote one.
Out: the newest checkpoint that is whole, or none.
"""

from __future__ import annotations

import json
import re
import zipfile
from pathlib import Path

from transformers.trainer import TRAINER_STATE_NAME

from repair_hf.config import RepairConfig
from repair_hf.options import UserError


def checkpoint_to_resume(config: RepairConfig) -> str | None:
    """What `resume_from_checkpoint` stands for; None starts anew.

    Raises:
        UserError: If it names a folder that is no whole checkpoint.
    """
    wanted = config.resume_from_checkpoint
    if wanted == "last":
        newest = newest_checkpoint(config.output_dir)
        return None if newest is None else str(newest)
    if wanted is not None and not _is_whole(Path(wanted)):
        raise UserError(
            f"`resume_from_checkpoint` names {wanted}, no whole checkpoint; give a `checkpoint-...` folder, or `last`."
        )
    return wanted


def newest_checkpoint(folder: str | Path) -> Path | None:
    """The whole checkpoint of the most steps in a run's folder, if there is one."""
    whole = [path for path in Path(folder).glob("checkpoint-*") if _steps(path) >= 0 and _is_whole(path)]
    return max(whole, key=_steps, default=None)


def _steps(path: Path) -> int:
    found = re.fullmatch(r"checkpoint-(\d+)", path.name)
    return int(found[1]) if found else -1


def _is_whole(path: Path) -> bool:
    """The first process writes the trainer's state last, and every process the state of its random numbers before."""
    numbers = list(path.glob("rng_state*.pth"))
    try:
        json.loads((path / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return bool(numbers) and all(zipfile.is_zipfile(file) for file in numbers)  # a zip's directory is its end

"""Which checkpoint a training goes on from.

In:  a run's folder, perhaps of a run that was killed while it wrote one; what is to be run now.
Out: the newest checkpoint that is whole, or none; a refusal to go on from another run's.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer import TRAINER_STATE_NAME

from repair_hf.runtime.options import UserError
from repair_hf.runtime.run_folder import differences, write_atomically
from repair_hf.training.config import RepairConfig

# In each checkpoint: what its run is known by, and what that has taken.
RUN, SPENT = "repair_run.json", "repair_spent.json"


@dataclass(frozen=True)
class Spent:
    """What the steps of a training took.

    Args:
        seconds: Of the loop, evaluations and checkpoints included.
        waited: Seconds of these between steps, for data.
        images: Encoded, all processes together.
        texts: Encoded, all processes together.
    """

    seconds: float = 0.0
    waited: float = 0.0
    images: int = 0
    texts: int = 0

    def __add__(self, other: Spent) -> Spent:
        return Spent(*(one + more for one, more in zip(astuple(self), astuple(other), strict=True)))


class Signature(TrainerCallback):
    """Writes into each checkpoint which run it is of, and what that took so far.

    Args:
        trainer: With a `run`, what the run is known by, and `spent()`, what it has taken.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_save(self, args, state, control, **kwargs):
        spent = self.trainer.spent()
        if state.is_world_process_zero:
            folder = Path(args.output_dir) / f"checkpoint-{state.global_step}"
            write_atomically(folder / SPENT, json.dumps(asdict(spent), indent=2) + "\n")
            write_atomically(folder / RUN, json.dumps(self.trainer.run, indent=2) + "\n")


def checkpoint_to_resume(wanted: str | None, config: RepairConfig, run: Mapping[str, Any]) -> str | None:
    """What `resume_from_checkpoint` stands for; None starts anew.

    Args:
        wanted: A folder, `last`, or None.
        config: Of the training.
        run: What it is known by. With `last`, the checkpoint must be of the same run: a folder that several trainings were given would
            else hand the second the weights of the first.

    Raises:
        UserError: If it names a folder that is no whole checkpoint, or the last one is of another run.
    """
    if wanted == "last":
        newest = newest_checkpoint(config.output_dir, config.world_size)
        if newest is not None:
            _refuse_another_run(newest, run)
        return None if newest is None else str(newest)
    if wanted is not None and not _is_whole(Path(wanted), config.world_size):
        raise UserError(
            f"`resume_from_checkpoint` names {wanted}, no whole checkpoint: {TRAINER_STATE_NAME}, or a process's rng_state*.pth, is not there or is "
            "cut. Give a `checkpoint-...` folder, or `last`."
        )
    return wanted


def spent_before(checkpoint: str | None) -> Spent:
    """What a run had taken when it wrote a checkpoint; nothing without one, or where another program has written it."""
    path = Path(checkpoint or "") / SPENT
    return Spent(**json.loads(path.read_text(encoding="utf-8"))) if checkpoint and path.is_file() else Spent()


def newest_checkpoint(folder: str | Path, processes: int = 1) -> Path | None:
    """The whole checkpoint of the most steps in a run's folder, if there is one.

    Args:
        folder: The run's.
        processes: Of a run that was killed before its checkpoint could tell how many it had.
    """
    whole = [path for path in Path(folder).glob("checkpoint-*") if _steps(path) >= 0 and _is_whole(path, processes)]
    return max(whole, key=_steps, default=None)


def _refuse_another_run(checkpoint: Path, run: Mapping[str, Any]) -> None:
    signature = checkpoint / RUN
    if not signature.is_file():  # killed between the two files: what went before it in the folder is not another's
        return
    if told := differences(json.loads(signature.read_text(encoding="utf-8")), json.loads(json.dumps(run))):
        raise UserError(
            f"{checkpoint} is of another run: {told}. Give another `output_dir`, delete its checkpoints to start anew, or set `resume_from_checkpoint` "
            "to this one to go on from it nevertheless."
        )


def _steps(path: Path) -> int:
    found = re.fullmatch(r"checkpoint-(\d+)", path.name)
    return int(found[1]) if found else -1


def _is_whole(path: Path, processes: int) -> bool:
    """Each process writes the state of its random numbers, the first one then the trainer's state. Then they meet, and `RUN` is written."""
    try:
        json.loads((path / TRAINER_STATE_NAME).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    if (path / RUN).is_file():
        processes = json.loads((path / RUN).read_text(encoding="utf-8")).get("processes", processes)
    names = ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]
    return all(zipfile.is_zipfile(path / name) for name in names)  # a zip's directory is its end

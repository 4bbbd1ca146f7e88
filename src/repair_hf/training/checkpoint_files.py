"""The files of a checkpoint: whether all are there, and as they were written.

`repair_files.json` holds a digest of each other file and is written last. A checkpoint without it, of an older version
or of a run that was killed just before, counts as whole if nothing is missing or truncated.
"""

from __future__ import annotations

import hashlib
import json
import zipfile
from pathlib import Path

from safetensors import SafetensorError, safe_open
from transformers.trainer import OPTIMIZER_NAME, SCHEDULER_NAME, TRAINER_STATE_NAME

from repair_hf.runtime.options import UserError
from repair_hf.runtime.own_files import intact, read_json
from repair_hf.runtime.run_folder import write_atomically

RUN, DIGESTS = "repair_run.json", "repair_files.json"


def seal(folder: Path) -> None:
    """Write the digests. Call it when every process has written its files."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    digests = {name: _digest(folder / name) for name in names if name != DIGESTS}
    write_atomically(folder / DIGESTS, json.dumps(digests, indent=2) + "\n")


def fault(folder: Path, processes: int = 1) -> str | None:
    """Return what is wrong with a checkpoint, as a short clause; None if it is whole.

    `processes` is their number for a checkpoint that does not record it.
    """
    try:
        read_json(folder / TRAINER_STATE_NAME, needs=["global_step"])
        run, digests = (read_json(folder / name) if (folder / name).is_file() else {} for name in (RUN, DIGESTS))
        with intact(folder / RUN):
            states = _random_states(int(run.get("processes", processes)))
    except FileNotFoundError:
        return f"{TRAINER_STATE_NAME} is missing"
    except (OSError, UserError) as error:
        return f"one of its JSON files cannot be read: {str(error).split('. ')[0]}"
    needed = [OPTIMIZER_NAME, SCHEDULER_NAME, *states]
    weights = sorted(path.name for path in folder.glob("*.safetensors")) or ["model.safetensors"]
    for name in dict.fromkeys([*needed, *weights, *digests]):
        if not (folder / name).is_file():
            return f"{name} is missing"
        if name in digests and _digest(folder / name) != digests[name]:
            return f"{name} is not as it was written"
        if not digests and _is_cut(folder / name):
            return f"{name} is truncated"
    return None


def _random_states(processes: int) -> list[str]:
    return ["rng_state.pth"] if processes == 1 else [f"rng_state_{rank}.pth" for rank in range(processes)]


def _is_cut(path: Path) -> bool:
    """Whether a file's end is missing: a zip ends with its directory, safetensors say how long they are."""
    if path.suffix != ".safetensors":
        return not zipfile.is_zipfile(path)
    try:
        with safe_open(path, "pt"):
            return False
    except SafetensorError:
        return True


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

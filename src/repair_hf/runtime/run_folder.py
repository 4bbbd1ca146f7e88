"""The output folder of a stage: what ran there, and whether its result is complete.

It holds `config.yaml` (options), `command.txt` (the command line), `versions.json` (versions, and which inputs were
local) and `summary.json`. The last is written at the end: if it exists, the stage is done. Secrets are hidden in all
of them.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from repair_hf.runtime.options import UserError
from repair_hf.runtime.own_files import read_json, read_yaml
from repair_hf.runtime.redaction import without_secrets

logger = logging.getLogger(__name__)

# Options that decide where, whether and how fast a stage runs, not what it makes; of prompts a digest is recorded.
NOT_PART_OF_THE_RESULT = """
    output dry_run concurrency requests_per_minute tokens_per_minute timeout max_error_rate max_usd max_calls
    answer_attempts batch ledger any_model prompts domain_notes audit always_instruct answers_from
    llm_base_url editor_base_url editor_batch_size editor_offload cache_images cache_folder chunk_size
    dataloader_num_workers dataloader_prefetch_factor dataloader_persistent_workers dataloader_pin_memory
    logging_steps report_to save_total_limit ddp_find_unused_parameters
    push_to_hub hub_model_id hub_private_repo hub_token hub_strategy hub_always_push hub_revision
""".split()
# What options meant before they existed, where that is not "not set".
ABSENT_MEANT = {
    "lora_towers": "both",
    "global_loss": "softmax",
    "dtype": "float32",
    "precision": "fp32",
}
PACKAGES = """
    repair-hf torch transformers tokenizers safetensors datasets accelerate diffusers huggingface_hub evaluate
    litellm faiss-cpu numpy pyarrow pillow pydantic matplotlib
""".split()
MARKS = ("config.yaml", "versions.json", "summary.json")
INPUTS = ("pairs", "image_folder", "model", "embeddings")  # options that may name a folder of the user
FORGET = f"Delete {', '.join(MARKS)} there, then rerun the same command to resume with what else the folder holds"


class RunStopped(RuntimeError):
    """Something outside ended the run, such as a provider that is down or a spent budget; the same command resumes."""


def open_stage(folder: str | Path, *, command: str, options: dict[str, Any], is_bound: bool = False) -> Path:
    """Create a stage's folder and record what is about to run in it. What an interrupted run left there stays.

    `options` holds the resolved options and whatever else decides the result, such as the digest of an input.
    With `is_bound`, an interrupted run can resume with its own options only.

    Raises:
        UserError: See `check_stage`.
    """
    check_stage(folder, command=command, options=options, is_bound=is_bound)
    folder, wanted = Path(folder), _plain(options)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "summary.json").unlink(missing_ok=True)  # the result is about to be rewritten
    write_atomically(folder / "config.yaml", yaml.safe_dump(wanted, sort_keys=False, allow_unicode=True))
    write_atomically(folder / "command.txt", _command_line() + "\n")
    record = {"command": command, "here": _on_this_machine(wanted), **versions()}
    write_atomically(folder / "versions.json", json.dumps(record, indent=2) + "\n")
    return folder


def check_stage(folder: str | Path, *, command: str, options: dict[str, Any], is_bound: bool = False) -> None:
    """Check that a stage may write to a folder, and change nothing.

    Raises:
        UserError: If the folder is an input of the stage, belongs to another stage, holds a finished result of other
            options, is bound to other options, or its own files are damaged.
    """
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file; give --output the path of a folder.")
    _refuse_inputs(folder, options)
    _refuse_other_results(folder, command, _plain(options), is_bound)


def finish_stage(folder: str | Path, summary: dict[str, Any]) -> None:
    """Write the stage's numbers. Call it last: the file means that everything else in the folder is complete."""
    write_atomically(Path(folder) / "summary.json", json.dumps(_plain(summary), indent=2, ensure_ascii=False) + "\n")


def finished(folder: str | Path, options: dict[str, Any], needs: Iterable[str] = ()) -> dict[str, Any] | None:
    """Return the summary if the folder holds the finished result of exactly these options, else None.

    Raises:
        UserError: If the folder's options or summary are damaged, or the summary lacks a key of `needs`.
    """
    folder = Path(folder)
    if not (folder / "summary.json").is_file() or differences(_read_config(folder), _plain(options)):
        return None
    return read_json(folder / "summary.json", needs=needs, remedy=FORGET)


def differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe the options in which the results of two runs differ; empty if there are none.

    An absent option counts as not set (None, 0, False or an empty list), so a new option that is not set keeps old
    folders valid. So does one that is set to what `ABSENT_MEANT`.
    """
    keys = [key for key in {**before, **now} if key not in NOT_PART_OF_THE_RESULT and _differs(key, before, now)]
    return ", ".join(f"{key} ({before.get(key, 'absent')} -> {now.get(key, 'absent')})" for key in keys)


def _differs(key: str, before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    if key in before and key in now:
        return before[key] != now[key]
    return (before.get(key) or now.get(key) or None) not in (None, ABSENT_MEANT.get(key))


def write_atomically(path: str | Path, data: str | bytes) -> None:
    """Write a file under a temporary name, then rename it: readers see the old or the new file, never a part."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        draft.write_bytes(data.encode() if isinstance(data, str) else data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def digest(obj: Any) -> str:
    """Return a short hash of the content of `obj`: the same for equal values, in any order of keys, on any machine."""
    text = json.dumps(_jsonable(obj), sort_keys=True, ensure_ascii=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def name_with_digest(model: str) -> str:
    """Return a Hub id unchanged, and a folder as its name with a digest of its files, which may change under one path.

    Large files are sampled at up to 64 places: further training changes weights everywhere.
    """
    if not Path(model).is_dir():
        return model
    folder, hashed, piece = Path(model).resolve(), hashlib.sha256(), 2**20
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        size = path.stat().st_size
        hashed.update(f"{path.relative_to(folder).as_posix()} {size}\n".encode())
        with path.open("rb") as file:
            for start in range(0, size, max(size // 64, piece)):
                file.seek(start)
                hashed.update(file.read(piece))
    return f"{folder.name}@{hashed.hexdigest()[:12]}"


@cache
def versions() -> dict[str, Any]:
    """Return the versions of Python, the packages and the platform, and the commit of this code if there is one."""
    installed: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            installed[package] = None
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "commit": _commit(),
        "packages": installed,
    }


def _on_this_machine(options: dict[str, Any]) -> list[str]:
    """Return the values that are local paths although they look like Hub ids."""
    values = [one for value in options.values() for one in (value if isinstance(value, list) else [value])]
    return sorted({one for one in values if isinstance(one, str) and one.count("/") == 1 and Path(one).exists()})


def _refuse_inputs(folder: Path, options: dict[str, Any]) -> None:
    """Raise an error if the output folder is an input: training would overwrite the model that it starts from."""
    for name in INPUTS:
        named = options.get(name)
        for one in named if isinstance(named, list) else [named]:
            if isinstance(one, str | Path) and Path(one).is_dir() and folder.is_dir() and folder.samefile(one):
                raise UserError(f"--output {folder} is the folder of `{name}`; give another one, such as runs/NAME.")


def _refuse_other_results(folder: Path, command: str, wanted: dict[str, Any], is_bound: bool) -> None:
    if not (folder / "versions.json").is_file():
        return
    before = read_json(folder / "versions.json", needs=["command"], remedy=FORGET)["command"]
    if before != command:
        raise UserError(f"{folder} belongs to `{before}`, not to `{command}`; give another --output.")
    if not (changes := differences(_read_config(folder), wanted)):
        return
    if (folder / "summary.json").is_file():
        raise UserError(
            f"{folder} holds a finished result with other options: {changes}. "
            "Give another --output, or delete the folder."
        )
    if is_bound:
        raise UserError(
            f"{folder} holds an interrupted run with other options: {changes}. Give the same options, another "
            "--output, or one of its checkpoints as --resume-from-checkpoint; or delete the folder."
        )
    logger.warning("%s was started with other options: %s. Resuming with the new ones.", folder, changes)


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / "config.yaml"
    return read_yaml(path, remedy=FORGET) if path.is_file() else {}


def _plain(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options as JSON would load them, without secrets."""
    return _blot(json.loads(json.dumps(_jsonable(options))))


def _jsonable(obj: Any) -> Any:
    """Convert paths, dataclasses, arrays and sets for JSON; other objects raise an error there."""
    if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
        return _jsonable(dataclasses.asdict(obj))
    if isinstance(obj, dict):
        return {str(key): _jsonable(value) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [_jsonable(value) for value in obj]
    if isinstance(obj, set | frozenset):
        return sorted(_jsonable(value) for value in obj)
    if isinstance(obj, np.generic | np.ndarray):
        return obj.tolist()
    return str(obj) if isinstance(obj, Path) else obj


_SECRET_NAME = re.compile(r"(^|_)(token|(zen)?api_?key|key|secret|password|bearer_token_bedrock)$")


def _blot(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: "<hidden>" if v and _SECRET_NAME.search(k) else _blot(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_blot(item) for item in value]
    return without_secrets(value) if isinstance(value, str) else value


def _command_line() -> str:
    program = Path(sys.argv[0]).name
    words = ["python", "-m", "repair_hf"] if program == "__main__.py" else [program]
    hide_next = False
    for word in sys.argv[1:]:
        name, equals, _ = word.partition("=")
        is_secret = word.startswith("--") and _SECRET_NAME.search(name.lstrip("-").replace("-", "_")) is not None
        shown = f"{name}=<hidden>" if is_secret and equals else _blot(word)
        words.append("<hidden>" if hide_next else shown)
        hide_next = is_secret and not equals
    return shlex.join(words)


def _commit() -> str | None:
    """Return the commit of this package's repository; None for a wheel, even inside another repository."""
    here = Path(__file__).parents[1]
    git = ["git", "-C", str(here)]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", "__init__.py"], check=True, capture_output=True)
        head = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
        changed = subprocess.run([*git, "status", "--porcelain", "."], check=True, capture_output=True).stdout
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    return head + ("+changes" if changed else "")

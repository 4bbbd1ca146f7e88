"""Whole files, digests of content, and the versions of the code."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import logging
import os
import platform
import secrets
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

PACKAGES = """
    repair-hf torch transformers tokenizers safetensors datasets accelerate diffusers huggingface_hub evaluate
    litellm faiss-cpu numpy pyarrow pillow pydantic
""".split()


class RunStopped(RuntimeError):
    """Something outside ended the run, such as a provider that is down or a spent budget; the same command resumes."""


def write_atomically(path: str | Path, data: str | bytes) -> None:
    """Write a file under a temporary name, then rename it: readers see the old or the new file, never a part."""
    path = Path(path)
    draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}.tmp")
    try:
        draft.write_bytes(data.encode() if isinstance(data, str) else data)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_json(path: str | Path, value: Any) -> None:
    """Write a JSON file atomically."""
    write_atomically(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def as_json(obj: Any) -> Any:
    """Return a value as JSON would load it."""
    return json.loads(json.dumps(_jsonable(obj)))


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
    folder = Path(model).resolve()
    hashed, piece = hashlib.sha256(), 2**20
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
    if hasattr(obj, "tolist"):  # an array, or a number of numpy
        return obj.tolist()
    return str(obj) if isinstance(obj, Path) else obj


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

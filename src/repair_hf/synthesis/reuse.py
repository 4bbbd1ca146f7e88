"""Start a run folder with the answers and images that other runs have paid for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from repair_hf.llm.journal import shards

INHERITED = "-inherited-"  # in the name of a journal copied from another folder


def inherit(sources: Iterable[Path], folder: Path, *, images: bool = True) -> bool:
    """Start a new folder with copies of others' journals and candidate images; False if there is nothing to do.

    Sources without a journal are skipped, and what they inherited themselves is not copied again. A folder that exists
    is left alone.
    """
    sources = [source for source in sources if any(not is_inherited(path) for path in shards(source))]
    if not sources or folder.exists():
        return False
    draft = folder.with_name(f".{folder.name}.tmp")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    for kind in ("journal", "images") if images else ("journal",):
        paths = [path for source in sources for path in shards(source, kind) if not is_inherited(path)]
        for number, path in enumerate(paths):
            shutil.copyfile(path, draft / f"{kind}{INHERITED}{number}.jsonl")
    for source in sources if images else ():
        if (source / "candidates").is_dir():
            shutil.copytree(source / "candidates", draft / "candidates", copy_function=_link, dirs_exist_ok=True)
    draft.rename(folder)
    return True


def is_inherited(journal: Path) -> bool:
    """Whether a journal was copied from another folder."""
    return INHERITED in journal.name


def _link(source: str, target: str) -> None:
    if os.path.exists(target):  # another source has the same image
        return
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without hard links
        shutil.copyfile(source, target)

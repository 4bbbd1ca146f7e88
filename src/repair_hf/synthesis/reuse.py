"""Take over the answers and images that other runs have paid for."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from repair_hf.llm.journal import bills, read_entries, shards, total
from repair_hf.runtime.options import UserError

INHERITED = "-inherited-"  # in the name of a journal copied from another folder


def inherit(sources: Iterable[Path], folder: Path, *, images: bool = True) -> bool:
    """Copy others' journals and candidate images into a folder that is not finished; False if there is nothing to do.

    Sources without a journal are skipped, and what they inherited themselves is not copied again.
    """
    sources = [source for source in sources if any(not is_inherited(path) for path in shards(source))]
    if not sources or (folder / "summary.json").exists():
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for source in sources if images else ():
        if (source / "candidates").is_dir():
            shutil.copytree(source / "candidates", folder / "candidates", copy_function=_link, dirs_exist_ok=True)
    for kind in ("journal", "images") if images else ("journal",):
        paths = [path for source in sources for path in shards(source, kind) if not is_inherited(path)]
        for number, path in enumerate(paths):
            _copy(path, folder / f"{kind}{INHERITED}{number}.jsonl")
    return True


def inherited(folder: Path, *, images: bool) -> tuple[float, int]:
    """Return the dollars and answers in a folder's copied journals, which other folders have paid for."""
    return total(read_entries(filter(is_inherited, bills(folder) if images else shards(folder))))


def check_sources(folders: Iterable[str | Path]) -> None:
    """Raise a UserError if a folder holds no paid answers."""
    for folder in folders:
        if not any(shards(Path(folder))):
            raise UserError(
                f"`answers_from` names {folder}, which holds no paid answers (journal.jsonl). Give the --output of "
                "`repair-hf synthesize`, or a folder of a study's products."
            )


def is_inherited(journal: Path) -> bool:
    """Whether a journal was copied from another folder."""
    return INHERITED in journal.name


def _link(source: str, target: str) -> None:
    if os.path.exists(target):  # another source has the same image
        return
    try:
        os.link(source, target)
    except OSError:  # another disk, or a file system without hard links
        _copy(source, target)


def _copy(source: str | Path, target: str | Path) -> None:
    """Copy under a temporary name that counts as inherited, then rename: a copy is whole or absent."""
    draft = f"{target}{INHERITED}.tmp"
    shutil.copyfile(source, draft)
    os.replace(draft, target)
